"""Asynchronous progress tracking: with our source it reads on, with our sink it is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from broker import Broker
from kafka_query import Stream, event
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

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
