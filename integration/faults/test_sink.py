"""A broker that is killed under a query that writes to a topic: in time, by name, nothing twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from broker import Broker
from kafka_query import event
from lengths import repetitions
from pyspark.sql import SparkSession
from writing import Mark, TopicJob, passed_on

from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.kafka.writer.stream_writer import MarkWriter, QueryRun
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions

pytestmark = pytest.mark.timeout(900)

STEP_S = 20
"""The limit of a step that has a time-out of ten seconds."""


def wait_for(holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Markers:
    """Three drivers that write marks to a topic, one after the other, as fast as they can."""

    def __init__(self, broker: Broker, target: str) -> None:
        self.broker, self.target, self.ended = broker, target, threading.Event()
        self.written, self.failed = [0] * 3, list[Exception]()
        self._threads = [
            threading.Thread(target=self._mark, args=(number,), daemon=True)
            for number in range(len(self.written))
        ]
        for each in self._threads:
            each.start()

    def _mark(self, number: int) -> None:
        client = {"bootstrap.servers": self.broker.bootstrap}
        options = KafkaWriteOptions(self.target, f"w{number}", client=client)
        commits = MarkWriter()
        while not self.ended.is_set():
            batch = self.written[number]
            try:
                commits.write_mark(options, QueryRun("q", "run"), batch, (batch + 1) * 10**6)
            except Exception as error:
                self.failed.append(error)
                return
            self.written[number] += 1

    def have_gone_on(self, before: Sequence[int]) -> bool:
        assert not self.failed, self.failed
        return all(now > then + 1 for now, then in zip(self.written, before, strict=True))

    def check_each_mark_is_there_once(self) -> None:
        self.ended.set()
        for each in self._threads:
            each.join(4 * STEP_S)
            assert not each.is_alive()
        self.broker.wait_for_markers(self.target)
        found = [each for each in self.broker.read(self.target) if each.partition() == 0]
        headers = [dict(each.headers()) for each in sorted(found, key=lambda each: each.offset())]
        for number, written in enumerate(self.written):
            own = [each["cti"] for each in headers if each["cti-writer"] == f"w{number}".encode()]
            seconds = [parse_instant(each.decode()) // 10**6 for each in own]
            assert seconds == [*range(1, written + 1)]


@pytest.mark.soak
def test_a_sink_whose_broker_is_killed_goes_on_or_fails_by_name_and_writes_everything_once(
    spark: SparkSession, stoppable_broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Without a limit of our own, most of the markers never return from this."""
    made = TopicJob(spark, stoppable_broker, topic(), topic(2), tmp_path)
    patient = {"fetchOffset.numRetries": "120", "fetchOffset.retryIntervalMs": "1000"}
    rows = passed_on(made.load(maxOffsetsPerTrigger="5", **patient))
    second = 0

    def produce() -> None:
        nonlocal second
        events = [event(at, station="a") for at in range(second, second + 40)]
        stoppable_broker.produce(made.source, events)
        second += 40

    produce()
    query = made.write(rows, once=False)
    wait_for(lambda: bool(query.lastProgress and query.lastProgress.batchId >= 1), 120)
    markers = Markers(stoppable_broker, topic(2))
    for _ in range(repetitions(1, 4)):
        wait_for(lambda before=tuple(markers.written): markers.have_gone_on(before), 60)
        stoppable_broker.stop()
        time.sleep(10)
        stoppable_broker.start()
        batch, written = query.lastProgress.batchId, tuple(markers.written)
        produce()
        wait_for(
            lambda query=query, batch=batch: (
                not query.isActive or query.lastProgress.batchId > batch + 1
            ),
            6 * STEP_S,
        )
        if not query.isActive:
            failure = str(query.exception())
            assert "DeliveryFailed" in failure or "BrokerUnreachable" in failure
            query = made.write(rows, once=False)
        wait_for(lambda written=written: markers.have_gone_on(written), 4 * STEP_S)
    markers.check_each_mark_is_there_once()
    began_s = time.monotonic()
    query.stop()
    assert time.monotonic() - began_s < 6 * STEP_S
    made.run(rows)
    stoppable_broker.wait_for_markers(made.target)
    times = Counter(row["start_time"] for row in made.values())
    assert (set(times.values()), len(times)) == ({1}, second)
    for partition in (0, 1):
        seconds = [mark.second for mark in made.read(partition) if isinstance(mark, Mark)]
        assert seconds == sorted(set(seconds))
        assert seconds[-1] == second - 1
