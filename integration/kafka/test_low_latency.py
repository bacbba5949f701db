"""Asynchronous progress tracking: with our source it reads on, with our sink it is refused."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from pathlib import Path

import pytest
from broker import Broker
from harness import forget_batches, latest
from kafka_query import Stream, event, read_rows
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.timeout(300)
ASYNC = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "0"}


def test_tseries_refuses_it_since_batches_could_be_cut_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("'a' AS series", "timestamp", "value")
    writer = rows.writeStream.format("tseries").options(**ASYNC)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        writer.start(str(tmp_path / "store")).awaitTermination()
    assert not (tmp_path / "store").exists()


def test_the_kafka_source_reads_every_record_once_under_it(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(2)
    stream = Stream(spark, broker, name, tmp_path)
    writer = stream.load().writeStream.format("noop").options(**ASYNC)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for piece in range(3):
            broker.produce(name, [event(n, n % 2) for n in range(10)])
            wait_for_offsets(query, name, 5 * (piece + 1))
        assert sum(batch.numInputRows for batch in query.recentProgress) == 30
    finally:
        query.stop()


@pytest.mark.outside_ci
def test_batches_that_were_not_noted_run_as_one_with_the_same_rows_after_a_crash(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    """A partition is found meanwhile: its first records are late again, and none is missing."""
    seldom = {**ASYNC, "asyncProgressTrackingCheckpointIntervalMs": "5000"}
    options = {"ctiFrequency": "1", "violationPolicy": "flag"}
    stream = Stream(spark, broker, topic(), tmp_path, options)
    checkpoint = tmp_path / "checkpoint"
    # Spark allows sinks of its own only, since the number of a batch may come to stand for others.
    allowed = {**seldom, "_asyncProgressTrackingOverrideSinkSupportCheck": "true"}
    query = stream.query = stream.start(once=False, writer_options=allowed)

    def feed(first: int, awaited: tuple[int, int]) -> int:
        """One event a batch, until one noted has, or follows, the awaited one; that batch."""
        for second in itertools.count(first):
            wanted = len(events(written(stream))) + 1
            broker.produce(stream.topic, [event(second, 0)])
            until(query, lambda wanted=wanted: len(events(written(stream))) >= wanted)
            found = [row.batch for row in written(stream) if (row.partition, row.offset) == awaited]
            done = noted(checkpoint)
            if found and done and done[-1] >= min(found):
                return done[-1]
        raise AssertionError

    try:
        first = feed(50, (0, 0))
        broker.add_partitions(stream.topic, 2)
        broker.produce(stream.topic, [event(0, 1), event(500, 1)])
        last = feed(100, (1, 0))
    finally:
        query.stop()
    assert last > first + 1
    assert last - 1 not in noted(checkpoint)
    before = [row for row in written(stream) if first < row.batch <= last]
    assert (1, 0, "late") in events(before)
    # As if the crash had come before the last batch was done.
    forget_batches(checkpoint / "commits", last - 1)
    forget_the_run(checkpoint)
    query = stream.query = stream.start(once=False, writer_options=allowed)
    try:
        until(query, lambda: latest(checkpoint / "commits") >= last)
    finally:
        query.stop()
    after = [row for row in written(stream) if row.batch == last]
    assert events(after) == events(before)


def forget_the_run(checkpoint: Path) -> None:
    """Start the checkpoint as another process does: this one's Spark may keep the run as active.

    Its last commit may meet a source that is stopped, and then nothing takes it off the list.
    """
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))


def noted(checkpoint: Path) -> list[int]:
    """The batches that are noted as done, in order."""
    return sorted(int(place.name) for place in (checkpoint / "commits").glob("[0-9]*"))


def written(made: Stream) -> list[Row]:
    """The rows of the batches that a running query has written whole."""
    places = sorted(mark.parent for mark in (made.place / "rows").glob("batch=*/_SUCCESS"))
    return [row for place in places for row in read_rows(place)]


def events(rows) -> list[tuple[int, int, str | None]]:
    """Partition, offset and violation of the data rows."""
    return sorted((row.partition, row.offset, row.violation) for row in rows if row.cti is None)


def until(query, holds) -> None:
    """Wait for something that a running query does."""
    deadline = time.monotonic() + 120
    while not holds():
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_for_offsets(query, topic: str, end: int) -> None:
    """Return when a batch up to `end` in both partitions has finished."""
    deadline = time.monotonic() + 120
    while True:
        assert query.exception() is None
        done = query.lastProgress
        if done and done.sources[0].endOffset:
            reached = json.loads(done.sources[0].endOffset)["partitions"].get(topic, {})
            if reached and all(share["to"] == end for share in reached.values()):
                return
        assert time.monotonic() < deadline, f"waited for {end}: {done}"
        time.sleep(0.1)
