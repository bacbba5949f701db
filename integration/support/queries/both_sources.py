"""Spark's own Kafka source and ours over the same topics, for tests that compare them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker import Broker, Record, unique_name
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

Topic = Callable[..., str]
Outcome = Any
REFUSED = "refused"
"""The outcome of a read or query that fails."""


@dataclass
class Source:
    """One of the two, with the options that both have."""

    name: str
    spark: SparkSession
    broker: Broker
    place: Path
    own: Mapping[str, str] = field(default_factory=dict)

    def read(self, **options: Any) -> DataFrame:
        """A batch DataFrame; `__` stands for `.` in names of options."""
        return self._configured(self.spark.read, options).load()

    def stream(self, **options: Any) -> DataFrame:
        """A streaming DataFrame."""
        return self._configured(self.spark.readStream, options).load()

    def _configured(self, reader: Any, options: Mapping[str, Any]) -> Any:
        given = {"kafka.bootstrap.servers": self.broker.bootstrap, **self.own}
        given |= {name.replace("__", "."): text(each) for name, each in options.items()}
        return reader.format(self.name).options(**given)

    def run(self, frame: DataFrame | None = None, checkpoint: str = "a", **options: Any) -> list:
        """The values of each batch with rows, up to the topic's present end."""
        query = Running(self, self.stream(**options) if frame is None else frame, checkpoint, True)
        query.query.awaitTermination()
        return query.batches

    def start(self, checkpoint: str = "a", **options: Any) -> Running:
        """A query that has taken its first look, and goes on."""
        return Running(self, self.stream(**options), checkpoint)


Both = tuple[Source, Source]


class Running:
    """A query of one source; it ends with the `with` block."""

    def __init__(
        self, source: Source, frame: DataFrame, checkpoint: str = "a", bounded: bool = False
    ) -> None:
        self.batches: list[list[int]] = []

        def keep(batch: DataFrame, _: int) -> None:
            if rows := values(batch):
                self.batches.append(rows)

        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(source.place / checkpoint))
        self.query: StreamingQuery = (
            writer.trigger(availableNow=True) if bounded else writer
        ).start()
        if not bounded:
            self.query.processAllAvailable()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def all(self) -> list[int]:
        """All values so far, after reading to the topic's present end."""
        self.query.processAllAvailable()
        return flat(self.batches)


def flat(batches: Iterable[list[int]]) -> list[int]:
    """The values of all batches, in order."""
    return sorted(value for batch in batches for value in batch)


def numbers(values: Iterable[int], partition: int, at_ms: int | None = None) -> list[Record]:
    """Records of one partition, with numbers as text for values."""
    return [Record(str(value), None, partition, at_ms) for value in values]


def transactional(broker: Broker) -> Any:
    """A producer that may begin transactions."""
    producer = broker.producer(transactional_id=unique_name("writer"))
    producer.init_transactions(30)
    return producer


def send(producer: Any, topic: str, numbered: Iterable[int]) -> None:
    """Numbers into partition 0, in the open transaction."""
    for number in numbered:
        producer.produce(topic, str(number), partition=0)
    producer.flush(30)


def values(frame: DataFrame) -> list[int]:
    """The records' values, which are numbers as text, in order; -1 for none."""
    rows = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS value").collect()
    return sorted(-1 if row.value is None else row.value for row in rows)


def outcome(deed: Callable[[], Outcome]) -> Outcome:
    """The result of `deed`, or that it was refused."""
    try:
        return deed()
    except (PySparkException, Py4JError):
        return REFUSED


def text(value: Any) -> str:
    """An option's value as Spark wants it: JSON for anything but text."""
    return value if isinstance(value, str) else json.dumps(value)


def per_partition(topic: str, numbers: Iterable[int] | Mapping[int, int]) -> dict[str, Any]:
    """Topic -> partition -> number, as options of offsets and timestamps want it."""
    pairs = numbers.items() if isinstance(numbers, Mapping) else enumerate(numbers)
    return {topic: {str(partition): number for partition, number in pairs}}


def alike(both: Iterable[Source], case: Callable[[Source], Outcome], expected: Outcome) -> None:
    """Both sources do the same: what is expected."""
    found = {source.name: outcome(lambda source=source: case(source)) for source in both}
    assert found == dict.fromkeys(found, expected)


def differ(
    both: Iterable[Source], case: Callable[[Source], Outcome], kafka: Outcome, timestream: Outcome
) -> None:
    """Each source does something else, as the table of docs/how-to/migrate-from-kafka.md says."""
    found = {source.name: outcome(lambda source=source: case(source)) for source in both}
    assert found == {"kafka": kafka, "timestream": timestream}
