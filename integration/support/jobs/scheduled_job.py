"""A job that runs again and again from one checkpoint, without Spark: AvailableNow by the batch."""

from __future__ import annotations

import json
import pickle
from typing import Any

from broker import Broker
from kafka_query import DAY_MS, seconds

from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.reader import KafkaStreamReader, KafkaTransport


class Job:
    """A job's runs over one topic: as Spark would run them, with the wall clock of our choice."""

    def __init__(self, broker: Broker, topic: str, **options: str) -> None:
        self._fixed = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "ctiFrequency": "1",
            "violationPolicy": "flag",
        }
        self.change(**options)
        self.offsets: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    def change(self, **options: str) -> None:
        """Run with these options from now on."""
        self._transport = KafkaTransport({**self._fixed, **options})

    def run(self, now_s: int = 0, batches: int | None = None) -> list[float]:
        """Run to the end of the log at `now_s`; return the CTIs that the run has told.

        With `batches` the run stops after this many, as if it was killed there.
        """
        reader = self._transport.stream_reader(self._transport.schema())
        assert isinstance(reader, KafkaStreamReader)
        now_us = (DAY_MS // 1000 + now_s) * 1_000_000
        reader._driver = StreamDriver(reader._options, now_us=lambda: now_us)
        reader.prepareForTriggerAvailableNow()
        start: dict[str, Any] = self.offsets[-1] if self.offsets else reader.initialOffset()
        rows: list[dict[str, Any]] = []
        self.has_ended = False
        while (end := _stored(reader.latestOffset(start, reader.getDefaultReadLimit()))) != start:
            tasks = reader.partitions(start, end)
            reader._driver, driver = None, reader._driver
            shipped = pickle.loads(pickle.dumps((reader, tasks)))
            rows += [row for task in shipped[1] for batch in shipped[0].read(task)
                     for row in batch.to_pylist()]  # fmt: skip
            reader._driver = driver
            start = end
            self.offsets.append(start)
            batches = None if batches is None else batches - 1
            if batches == 0:
                break
        else:
            self.has_ended = True
        self.rows += rows
        return [seconds(row["cti"]) or 0.0 for row in rows if row["cti"] is not None]

    def late(self) -> list[float | None]:
        """The event times of the rows that were late."""
        return [seconds(row["start_time"]) for row in self.rows if row["violation"] == "late"]


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    """Offsets are text between two batches."""
    return dict(json.loads(json.dumps(offset)))
