"""Brokers are restarted one after the other while records are produced: nobody notices.

Three brokers, replication 3, two replicas in sync at least. Spark's stream, and the same reader on
each of its two paths to librdkafka, read along.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import Broker
from harness import JOBS
from kafka_cluster import SIZE, KafkaCluster, kafka_cluster
from kafka_query import Stream
from process_session import ProcessSession
from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(3_600)

PER_SECOND = 200
PARTITIONS = 3
ROUNDS = int(os.environ.get("RESTART_ROUNDS", "1"))
"""How often each broker is restarted."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with kafka_cluster() as running:
        yield running


class Production:
    """Whole numbers, one after the other, until the block ends."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker, self._topic = broker, topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self.failures: list[str] = []
        self.count = 0

    def __enter__(self) -> Production:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _produce(self) -> None:
        producer = self._broker.producer(enable_idempotence=True, acks="all", linger_ms=5)
        while not self._ended.wait(1 / PER_SECOND):
            producer.produce(
                self._topic,
                str(self.count),
                partition=self.count % PARTITIONS,
                on_delivery=lambda error, _: error and self.failures.append(error.str()),
            )
            self.count += 1
            producer.poll(0)
        left = producer.flush(120)
        self.failures += [f"{left} left"] * bool(left)


def reader(bootstrap: str, topic: str, place: Path, native: str) -> ProcessSession:
    """The stream reader in a process of its own, which takes the path `native`."""
    script = JOBS / "stream_reader.py"
    arguments = [bootstrap, topic, str(place / "count"), str(place / f"values-{native}")]
    return ProcessSession.begin(
        [sys.executable, str(script), *arguments],
        log=place / f"reader-{native}.log",
        env={"TIMESTREAM_NATIVE": native},
    )


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.2)


@pytest.mark.soak
def test_rolling_restarts_under_production_end_no_query_and_lose_nothing(
    cluster: KafkaCluster, spark: SparkSession, tmp_path: Path
) -> None:
    broker = cluster.broker
    topic = broker.create_topic(partitions=PARTITIONS)
    stream = Stream(spark, broker, topic, tmp_path, {"ctiFrequency": "10"})
    paths = {native: reader(broker.bootstrap, topic, tmp_path, native) for native in "01"}
    query = stream.query = stream.start(once=False)
    try:
        with Production(broker, topic) as production:
            wait_for(lambda: any(each.numInputRows for each in query.recentProgress), "a batch")
            for number in range(ROUNDS * SIZE):
                # As operators do in the first round; every second one kills.
                cluster.restart(number % SIZE, hard=number // SIZE % 2 == 1)
                assert query.isActive, query.exception()
        assert production.failures == []
        (tmp_path / "count").write_text(str(production.count))
        ended = {native: path.wait(120) for native, path in paths.items()}
        assert ended == {"0": 0, "1": 0}, "\n".join(path.tail() for path in paths.values())
        query.processAllAvailable()
    finally:
        query.stop()
        for path in paths.values():
            path.kill()
    once_each = dict.fromkeys(range(production.count), 1)
    found = {"spark": [int(row.value) for row in stream.rows() if row.value is not None]}
    found |= {n: [int(v) for v in (tmp_path / f"values-{n}").read_text().split()] for n in paths}
    for name, values in found.items():
        assert Counter(values) == once_each, name
