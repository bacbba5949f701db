"""Every worked trace on a real broker: what a user reads is what the rules say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Broker, Record
from kafka_query import Stream
from pyspark.sql import SparkSession
from timestream.worked_traces import NAMES, as_written, headers_of, timestamp_ms, trace, value_of


@pytest.mark.parametrize("name", NAMES)
def test_a_worked_trace_reads_the_same_from_a_broker(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path, name: str
) -> None:
    told = trace(name)
    made = Stream(spark, broker, topic(), tmp_path, told["options"])
    broker.produce(
        made.topic,
        [
            Record(value_of(each), None, 0, timestamp_ms(each), headers_of(each))
            for each in told["records"]
        ],
    )
    rows = made.load_batch(startingOffsets=None).collect()
    assert as_written(row.asDict() for row in rows) == told["expected"]
