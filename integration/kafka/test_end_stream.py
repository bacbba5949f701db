"""A running query that is told to end (semantics 11.12), on a real broker."""

import time
from pathlib import Path

import pytest
from broker import Broker
from kafka_query import Stream, event, seconds
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, end_stream
from pyspark_timestream.frames.end import has_ended

pytestmark = pytest.mark.timeout(400)


def windows(made: Stream):
    rows = advance_time(made.load())
    counts = rows.groupBy(F.window("start_time", "10 seconds").alias("w")).count()
    return counts.select("w.start", "count")


def found(made: Stream) -> list[tuple[float | None, int]]:
    return sorted((seconds(row.start), row["count"]) for row in made.rows())


@pytest.mark.outside_ci
def test_a_running_query_that_is_told_to_end_releases_all_and_has_ended(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(2)
    broker.produce(name, [event(1), event(5), event(12), event(31, 1)])
    made = Stream(spark, broker, name, tmp_path, {"ctiFrequency": "1", "ctiDelay": "5 seconds"})
    query = made.query = made.start(windows(made), once=False)
    try:
        deadline = time.monotonic() + 120
        while not query.lastProgress or not query.lastProgress.sources[0].endOffset:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        broker.produce(name, [event(33, 0)])
        end_stream(query, timeout_seconds=120)
    finally:
        query.stop()
    everything = [(0.0, 2), (10.0, 1), (30.0, 2)]
    assert found(made) == everything
    with pytest.raises(ValueError, match="does not run"):
        end_stream(query)
    # Only the checkpoint knows the end.
    made.run(windows(made))
    assert found(made) == everything
    broker.produce(name, [event(50)])
    with pytest.raises(Exception, match="this checkpoint's stream has ended"):
        made.run(windows(made))


def test_a_query_at_its_own_end_is_ended_with_a_final_cti(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(1)
    broker.produce(name, [event(1), event(5), event(12)])
    own = {"ctiFrequency": "1", "endingOffsets": "latest"}
    made = Stream(spark, broker, name, tmp_path, own)
    query = made.query = made.start(windows(made), once=False)
    try:
        deadline = time.monotonic() + 120
        while not has_ended(query):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        query.processAllAvailable()
        assert found(made) == [(0.0, 2)]
        end_stream(query, timeout_seconds=120)
    finally:
        query.stop()
    assert found(made) == [(0.0, 2), (10.0, 1)]


def test_a_query_that_reads_something_else_is_not_ended(spark: SparkSession) -> None:
    ticks = spark.readStream.format("rate").load()
    query = ticks.writeStream.format("noop").start()
    try:
        with pytest.raises(ValueError, match="a source that is not a topic"):
            end_stream(query, timeout_seconds=60)
        assert query.isActive
    finally:
        query.stop()
