"""Jobs that come back every hour: AvailableNow runs from one checkpoint, on a simulated clock."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from broker import Broker, Record
from kafka_query import DAY_MS, seconds

from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.reader import KafkaStreamReader, KafkaTransport

HOUR_S = 3600


class Job:
    """A job's runs over one topic: as Spark would run them, with the wall clock of our choice."""

    def __init__(self, broker: Broker, topic: str, **options: str) -> None:
        fixed = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "ctiFrequency": "1",
            "violationPolicy": "flag",
        }
        self._transport = KafkaTransport({**fixed, **options})
        self._offset: dict[str, Any] | None = None
        self.rows: list[dict[str, Any]] = []

    def run(self, now_s: int) -> list[float]:
        """Run to the end of what is there at `now_s`; the CTIs that the run has told."""
        reader = self._transport.stream_reader(self._transport.schema())
        assert isinstance(reader, KafkaStreamReader)
        now_us = (DAY_MS // 1000 + now_s) * 1_000_000
        reader._driver = StreamDriver(reader._options, now_us=lambda: now_us)
        reader.prepareForTriggerAvailableNow()
        start, rows = self._offset or reader.initialOffset(), []
        while (end := _stored(reader.latestOffset(start, reader.getDefaultReadLimit()))) != start:
            tasks = reader.partitions(start, end)
            reader._driver, driver = None, reader._driver
            shipped = pickle.loads(pickle.dumps((reader, tasks)))
            rows += [row for task in shipped[1] for batch in shipped[0].read(task)
                     for row in batch.to_pylist()]  # fmt: skip
            reader._driver = driver
            start = end
        self._offset = start
        self.rows += rows
        return [seconds(row["cti"]) or 0.0 for row in rows if row["cti"] is not None]

    def late(self) -> list[float | None]:
        """The event times of the rows that were late."""
        return [seconds(row["start_time"]) for row in self.rows if row["violation"] == "late"]


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    """Offsets are text between two batches."""
    return dict(json.loads(json.dumps(offset)))


def at(second: float, partition: int) -> Record:
    return Record(b"{}", None, partition, DAY_MS + int(second * 1000))


def test_a_job_that_comes_back_every_hour_goes_on_without_a_partition_that_is_quiet(
    broker: Broker, topic: Callable[..., str]
) -> None:
    """24 runs; partition 1 has had one record, partition 2 none at all."""
    name = topic(3)
    broker.produce(name, [at(10, 1)])
    job, told = Job(broker, name, idleTimeout="90 minutes"), []
    for hour in range(24):
        broker.produce(name, [at(HOUR_S * hour, 0), at(HOUR_S * hour + 60, 0)])
        told.append(job.run(HOUR_S * (hour + 1)))
    # Two runs cannot know yet; from then on each has told all that its own records allow.
    assert told[:2] == [[], []]
    assert [ctis[-1] for ctis in told[2:]] == [HOUR_S * hour + 60 for hour in range(2, 24)]
    everything = [cti for ctis in told for cti in ctis]
    assert everything == sorted(everything)
    assert job.late() == []
    # Who comes back meets the policy, and holds the stream back again.
    broker.produce(name, [at(HOUR_S * 20, 1), at(HOUR_S * 30, 1), at(HOUR_S * 40, 0)])
    assert job.run(HOUR_S * 25)[-1] == HOUR_S * 30
    assert job.late() == [HOUR_S * 20]


def test_a_job_without_idle_timeout_waits_for_a_quiet_partition(
    broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic(2)
    job = Job(broker, name)
    for hour in range(3):
        broker.produce(name, [at(HOUR_S * hour, 0)])
        assert job.run(HOUR_S * (hour + 1)) == []


def test_a_job_goes_on_without_a_quiet_partition_of_the_topic_that_it_imports(
    broker: Broker, topic: Callable[..., str]
) -> None:
    name, other = topic(), topic(2)
    source = json.dumps({"topic": other, "frequency": 1})
    job, told = Job(broker, name, ctiImport=source, idleTimeout="90 minutes"), []
    for hour in range(5):
        broker.produce(other, [at(HOUR_S * hour + 30, 0)])
        broker.produce(name, [at(HOUR_S * hour, 0)])
        told.append(job.run(HOUR_S * (hour + 1))[-1:])
    assert told == [[HOUR_S * hour + (30 if hour > 1 else 0)] for hour in range(5)]
