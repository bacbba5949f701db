"""Values that are small on the way and large in memory: a task stays bounded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from broker import Broker, Record
from harness import JOBS
from lengths import outside_ci

from pyspark_timestream.kafka.client.native_consumer import load_native_reader

pytestmark = pytest.mark.timeout(300)

COUNT, SIZE = 180, 10_000_000
MOST_MB = 700
"""A block of 64 MB, what is ahead of it, and the copies on the way to Spark."""


def zeros(number: int) -> bytes:
    """Ten megabytes that are a thousand bytes on the way."""
    return bytes([number]) * SIZE


def repeated(number: int) -> bytes:
    """Ten megabytes that are a fiftieth of that on the way."""
    return random.Random(number).randbytes(SIZE // 50) * 50


@pytest.mark.parametrize(
    ("native", "partitions", "before", "value"),
    [
        ("1", 1, 5_000, repeated),
        ("0", 1, 0, zeros),
        *outside_ci(("1", 1, 0, zeros), ("0", 1, 5_000, repeated)),
        *outside_ci(("1", 4, 0, zeros), ("0", 4, 0, zeros)),
    ],
)
def test_values_that_inflate_do_not_fill_a_tasks_memory(
    broker: Broker,
    native: str,
    partitions: int,
    before: int,
    value: Callable[[int], bytes],
) -> None:
    if native == "1" and load_native_reader() is None:
        pytest.skip("the native reader is not built here, or not wanted")
    topic = broker.create_topic(partitions=partitions, max_message_bytes=2 * SIZE)
    broker.produce(topic, [Record("x" * 85, None, n % partitions) for n in range(before)])
    producer = broker.producer(compression_type="zstd", message_max_bytes=2 * SIZE, linger_ms=5)
    for number in range(COUNT):
        producer.produce(topic, value(number), partition=number % partitions)
        producer.flush(60)
    script = JOBS / "reading_memory.py"
    done = subprocess.run(
        [sys.executable, str(script), broker.bootstrap, topic],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "TIMESTREAM_NATIVE": native},
    )
    assert done.returncode == 0, done.stderr
    tasks, rows, size, grown_mb = map(int, done.stdout.split()[-4:])
    assert (tasks, rows, size) == (1, before + COUNT, before * 85 + COUNT * SIZE)
    print(f"native {native}, {partitions} partitions, {before} before: {grown_mb} MB")
    assert grown_mb < MOST_MB
