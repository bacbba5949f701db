"""Queries that stopped before the packages got their folders go on from their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from before_the_move import queries
from before_the_move.left import last_offset, left_in_kafka, unpacked
from broker import Broker, Record
from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_timestream import await_end


def test_a_clock_goes_on_from_its_old_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    place = unpacked("clock", tmp_path)
    assert 0 < last_offset(place)["to"] < queries.MAX_TICKS
    await_end(queries.into_store(queries.hourly_ticks(spark), place, seriesName="clock").start())
    rows = spark.read.format("tseries").load(str(place / "store")).orderBy("sequence").collect()
    # The old version had counted the first hour alone; the last tick closes the third one.
    assert [(row.timestamp.hour, row.ticks) for row in rows] == [(0, 60), (1, 60), (2, 60)]


def test_a_kafka_query_fills_its_old_store_as_an_uninterrupted_one(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    old, whole = unpacked("trips", tmp_path), tmp_path / "whole"
    before = len(hours(spark, old / "store"))
    move_topic(broker, queries.TRIPS, old)
    for place in (old, whole):
        run(queries.into_store(queries.hourly_trips(spark, broker.bootstrap), place))
    together = hours(spark, old / "store")
    assert together == hours(spark, whole / "store")
    assert len(together) > before


def test_a_kafka_query_gives_the_rows_that_were_left_after_an_old_one(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    old, whole = unpacked("writers", tmp_path), tmp_path / "whole"
    before = queries.rows_by_partition(old)
    move_topic(broker, queries.WRITERS, old)
    for place in (old, whole):
        run(queries.into_json(queries.kafka_rows(spark, broker.bootstrap, queries.WRITERS), place))
    together, expected = queries.rows_by_partition(old), queries.rows_by_partition(whole)
    assert all(0 < len(rows) < len(together[number]) for number, rows in before.items())
    # Which CTI rows appear on the way depends on batches (semantics 5.7).
    ctis = [[row["cti"] for row in found.pop(None)] for found in (together, expected)]
    assert together == expected
    assert ctis[0] == sorted(ctis[0])
    assert ctis[0][-1] == ctis[1][-1]
    violations = [row.get("violation") for rows in together.values() for row in rows]
    assert 0 < violations.count("late") < len(violations)


def move_topic(broker: Broker, topic: str, place: Path) -> None:
    """Fill a topic with the records of the old one, and let the checkpoint take it for that one."""
    # The names are in the checkpoints, and a given broker keeps the topics of earlier runs.
    if broker.end_offsets(topic):
        broker.delete_topic(topic)
    broker.create_topic(topic, queries.PARTITIONS)
    lines = (place / "records.jsonl").read_text().splitlines()
    broker.produce(topic, [record(**json.loads(line)) for line in lines])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    left = left_in_kafka(topic)
    committed = [
        TopicPartition(topic, int(number), offset, metadata)
        for number, (offset, metadata) in left["committed"].items()
    ]
    groups = [ConsumerGroupTopicPartitions(left["group"], committed)]
    admin.alter_consumer_group_offsets(groups)[left["group"]].result()
    described = admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id
    bits = described.get_most_significant_bits(), described.get_least_significant_bits()
    new_id = "".join(f"{half & (2**64 - 1):016x}" for half in bits)
    for file in (place / "checkpoint" / "offsets").iterdir():
        file.write_text(file.read_text().replace(left["id"], new_id))


def record(value: str | None, headers: list[tuple[str, str]], **fields: Any) -> Record:
    return Record(value, headers=[(name, text) for name, text in headers], **fields)


def run(writer: DataStreamWriter) -> None:
    writer.trigger(availableNow=True).start().awaitTermination()


def hours(spark: SparkSession, store: Path) -> list[Any]:
    """What the query has stored: its events, without those by hand, edits and numbers."""
    rows = spark.read.format("tseries").option("query", "allEdits").load(str(store))
    events = rows.where("original_sequence IS NULL AND series != 'by hand'")
    return (
        events.select("series", "timestamp", "trips", "minutes")
        .sort("series", "timestamp")
        .collect()
    )
