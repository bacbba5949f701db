"""Made what lies beside it, once, with the last version before the packages got their folders.

A later version must go on from it. With that version in a worktree, at the top of the repository:

    git worktree add /tmp/old 412e935 && make -C /tmp/old lint
    cd /tmp/old && PYTHONPATH=integration .venv/bin/python OUR_TESTS/before_the_move/make.py

It starts a broker (see `broker.py` of `integration`) and writes, for each query of `queries.py`, an
archive with its checkpoint, its store or rows and the records of its topic, and for Kafka
`kafka.json`: the ids of the topics, and the metadata of the consumer groups.
"""

from __future__ import annotations

import json
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import queries  # noqa: E402
from broker import Broker, Record, broker  # noqa: E402
from confluent_kafka import TopicPartition  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from spark_session import local_spark  # noqa: E402

from pyspark_tseries import TimeSeries  # noqa: E402

DAY_MS = 1_704_067_200_000
"""2024-01-01T00:00:00Z."""


def main() -> None:
    spark = local_spark("before the move", spark_sql_shuffle_partitions="1")
    with tempfile.TemporaryDirectory() as work, broker() as kafka:
        make_clock(spark, Path(work))
        made = [make_trips(spark, kafka, Path(work)), make_writers(spark, kafka, Path(work))]
        (HERE / "kafka.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    spark.stop()


def make_clock(spark: SparkSession, work: Path) -> None:
    """Stop a clock midway."""
    place = work / "clock"
    writer = queries.into_store(queries.hourly_ticks(spark), place, seriesName="clock")
    query = writer.start()
    while not any(each["batchId"] >= 4 for each in query.recentProgress):
        time.sleep(0.05)
    query.stop()
    archive(place)


def make_trips(spark: SparkSession, kafka: Broker, work: Path) -> dict[str, Any]:
    """Run the query over the first half of the topic, then write its store without Spark."""
    place = work / "trips"
    fill(kafka, queries.TRIPS, place)
    run(lambda: queries.into_store(queries.hourly_trips(spark, kafka.bootstrap), place))
    store = TimeSeries.open(place / "store")
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    store.append("by hand", {"trips": 7, "minutes": 70.5}, noon)
    store.edit("Central", 0, {"trips": 1, "minutes": 1.5})
    store.compact()
    store.append("by hand", {"trips": 8, "minutes": 80.5}, noon)
    return left_in_kafka(kafka, queries.TRIPS, archive(place))


def make_writers(spark: SparkSession, kafka: Broker, work: Path) -> dict[str, Any]:
    """Run the query over the first half of the topic whose writers leave marks."""
    place = work / "writers"
    fill(kafka, queries.WRITERS, place)
    frame = queries.kafka_rows(spark, kafka.bootstrap, queries.WRITERS)
    run(lambda: queries.into_json(frame, place))
    return left_in_kafka(kafka, queries.WRITERS, archive(place))


def records(topic: str) -> list[dict[str, Any]]:
    """All records of a topic, in the order in which they are produced."""
    rng = random.Random(topic)
    return [_record(topic, number, rng) for number in range(240)]


def _record(topic: str, number: int, rng: random.Random) -> dict[str, Any]:
    # A minute apart, up to ten minutes late: more than any delay here, so that some are too late.
    late_s = rng.choice([0, 0, 0, rng.randrange(600)])
    stamp_ms = DAY_MS + 60_000 * number - 1000 * late_s
    partition = number % queries.PARTITIONS
    value: dict[str, Any] | None = {
        "station": rng.choice(["Central", "Harbour", "University"]),
        "minutes": rng.randrange(10, 400) / 10,
    }
    headers: list[tuple[str, str]] = []
    if topic == queries.WRITERS and number % 5 > 2:
        value = None
        headers = [("cti", str(stamp_ms)), ("cti-writer", rng.choice(["north", "south"]))]
    text = None if value is None else json.dumps({**value, "departed": stamp_ms})
    return {"partition": partition, "timestamp_ms": stamp_ms, "value": text, "headers": headers}


def fill(kafka: Broker, topic: str, place: Path) -> None:
    """Write the first half of a topic's records to Kafka, and all of them to a file."""
    kafka.create_topic(topic, queries.PARTITIONS)
    made = records(topic)
    kafka.produce(topic, [Record(**each) for each in made[: len(made) // 2]])
    place.mkdir()
    text = "".join(json.dumps(each, sort_keys=True) + "\n" for each in made)
    (place / "records.jsonl").write_text(text)


def run(writer: Callable[[], Any]) -> None:
    query = writer().trigger(availableNow=True).start()
    query.awaitTermination()


def left_in_kafka(kafka: Broker, topic: str, place: Path) -> dict[str, Any]:
    """What the checkpoint relies on beyond the records."""
    newest = max((place / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    offset = json.loads(newest.read_text().splitlines()[-1])
    group = f"timestream-{offset['stream']}"
    consumer = kafka.consumer(group_id=group)
    parts = [TopicPartition(topic, number) for number in range(queries.PARTITIONS)]
    committed = consumer.committed(parts, timeout=30)
    consumer.close()
    left = {str(each.partition): [each.offset, each.metadata] for each in committed}
    return {"committed": left, "group": group, "id": offset["topics"][topic], "topic": topic}


def archive(place: Path) -> Path:
    """Keep what a query has left, without locks and Hadoop's checksums."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if member.name.endswith((".lock", ".crc")) else member

    with tarfile.open(HERE / f"{place.name}.tar.gz", "w:gz") as tar:
        tar.add(place, place.name, filter=kept)
    return place


if __name__ == "__main__":
    main()
