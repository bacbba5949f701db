"""Option `where` with small batches that are handed over, with folded windows, and under kills."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import where_job
from broker import Broker
from handed_blocks import list_blocks
from harness import InBatch, Job, run_killed
from kafka_query import Stream, event
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time

pytestmark = pytest.mark.timeout(400)


def drawn(count: int, partitions: int) -> list[object]:
    """Readings out of order, some late; some have a null that the condition meets."""
    draw = random.Random(7)
    return [
        event(
            number / 4 - 9 * (number % 7 == 6),
            number % partitions,
            station=draw.choice("abc"),
            number=draw.choice([None, *range(40)]),
        )
        for number in range(count)
    ]


@pytest.mark.soak
def test_filtered_batches_are_handed_over_and_windows_folded_from_them_under_kills(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    name, checkpoint = topic(2), tmp_path / "ck"
    broker.produce(name, drawn(240, 2))
    arguments = [broker.bootstrap, name, str(tmp_path)]
    job = Job(Path(where_job.__file__), arguments, log=tmp_path / "log")
    killed = run_killed(job, InBatch(checkpoint, only=2), kills=1, timeout=300)
    assert (killed.hits, killed.exit_code) == (1, 0)
    batch = where_job.configure(spark.read, broker.bootstrap, name, filters=False).load()
    rows = advance_time(batch).where(where_job.WHERE)
    period = F.window("start_time", "10 seconds", "4 seconds").start.alias("start")
    wanted = rows.groupBy("station", period).agg(
        F.count("*").alias("rows"), F.sum("number").alias("numbers")
    )
    found = spark.read.parquet(str(tmp_path / "rows")).select(*wanted.columns)
    expected = sorted(map(repr, wanted.collect()))
    assert sorted(map(repr, found.collect())) == expected
    assert len(expected) > 30


@pytest.mark.outside_ci
@pytest.mark.skipif(os.environ.get("HAND_OVER") == "off", reason="tasks read every batch")
def test_a_handed_batch_is_filtered_and_counted_as_one_of_a_task(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(2)
    broker.produce(name, drawn(120, 2))
    options = {**where_job.OPTIONS, "where": where_job.WHERE, "maxOffsetsPerTrigger": "30"}
    made = {
        most: Stream(
            spark,
            broker,
            name,
            tmp_path / most,
            {**options, "maxDriverRecords": most},
            where_job.SCHEMA,
        )
        for most in ("0", "10000")
    }
    handed: set[str] = set()

    def watch(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(tmp_path / f"watched/batch={number}"))
        handed.update(str(block) for block in list_blocks(spark))

    rows = {most: each.run() for most, each in made.items()}
    assert rows["10000"] == rows["0"]
    assert made["10000"].report() == made["0"].report()
    assert made["0"].report()["events"] == 120
    before = set(map(str, list_blocks(spark)))
    query = made["10000"].load().writeStream.foreachBatch(watch).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "watched-ck")).start().awaitTermination()
    assert len(handed - before) >= 3
    watched = spark.read.parquet(str(tmp_path / "watched"))
    assert watched.where("cti IS NULL").count() == sum(row.cti is None for row in rows["0"])
