"""Short words for tests of writes to a topic: jobs that write, and readers of the result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from broker import Broker
from confluent_kafka import Consumer, TopicPartition
from kafka_query import DAY_MS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_timestream import advance_time
from pyspark_timestream.core.instants import FINAL_US, parse_instant
from pyspark_timestream.kafka.writer.ledger import MARKS, Owner
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions

WINDOWS = "station string, start_time timestamp, cti timestamp"


def fail_once(text: str, marker: Path) -> Callable[[str], str]:
    """A function for rows that fails at the first value with `text` in it, and makes the marker."""
    made = str(marker)

    def passed(value: str) -> str:
        if text in value and not os.path.exists(made):
            open(made, "w").close()
            raise OSError("the first attempt fails")
        return value

    return passed


class WriteProgress:
    """The batches that a query has written to a topic, from the groups where it notes them."""

    def __init__(self, broker: Broker, topic: str, checkpoint: Path, writer: str = "job") -> None:
        self._broker, self._topic, self._checkpoint = broker, topic, checkpoint
        self._options = KafkaWriteOptions(topic, writer)
        self._readers: dict[int | str, Consumer] = {}

    def is_half_written(self, batch: int) -> bool:
        """True if rows of the batch are in the topic, and the mark is not."""
        rows = max(self._next_batch(0), self._next_batch(1))
        return rows == batch + 1 > self._next_batch(MARKS)

    def last_batch_with_rows(self) -> int:
        """The last batch that has rows written by a task."""
        return max(self._next_batch(0), self._next_batch(1)) - 1

    def _next_batch(self, name: int | str) -> int:
        if name not in self._readers:
            query = json.loads((self._checkpoint / "metadata").read_text())["id"]
            group = Owner.of(self._options, query, name).group
            # A frozen job's pending transactions must not hold the look back.
            reader = self._broker.consumer(group_id=group, isolation_level="read_uncommitted")
            self._readers[name] = reader
        asked = [TopicPartition(self._topic, 0)]
        return int(self._readers[name].committed(asked, timeout=10)[0].offset)

    def close(self) -> None:
        """Close the connections."""
        for each in self._readers.values():
            each.close()


class Mark(NamedTuple):
    """A mark as seconds into the day; infinity is the final one."""

    second: float
    writer: str
    closes: bool


@dataclass
class TopicJob:
    """A query from one topic to another, run piece by piece from one checkpoint."""

    spark: SparkSession
    broker: Broker
    source: str
    target: str
    place: Path
    options: dict[str, str] = field(default_factory=dict)

    def load(self, schema: str = WINDOWS, **options: str) -> DataFrame:
        """The source topic, with a CTI at each event; options with `__` for a dot."""
        given = {
            "transport": "kafka",
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "subscribe": self.source,
            "startingOffsets": "earliest",
            "valueFormat": "json",
            "ctiFrequency": "1",
        }
        given |= {name.replace("__", "."): text for name, text in options.items()}
        reader = self.spark.readStream.format("timestream").schema(schema)
        return reader.options(**{name: text for name, text in given.items() if text}).load()

    def write(self, frame: DataFrame, once: bool = True, **options: str) -> StreamingQuery:
        """Start writing `frame` to the target topic."""
        given = {
            "transport": "kafka",
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "topic": self.target,
            "writer": "job",
            "checkpointLocation": str(self.place / "checkpoint"),
            **self.options,
            **options,
        }
        writer = frame.writeStream.format("timestream")
        writer = writer.options(**{name: text for name, text in given.items() if text})
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, frame: DataFrame, **options: str) -> StreamingQuery:
        """Write to the end of what is there now."""
        query = self.write(frame, **options)
        query.awaitTermination()
        return query

    def progress(self) -> WriteProgress:
        """The batches that are written so far."""
        return WriteProgress(self.broker, self.target, self.place / "checkpoint")

    def marks(self, partition: int = 0) -> list[Mark]:
        """The marks of a partition, in order."""
        return [each for each in self.read(partition) if isinstance(each, Mark)]

    def read(self, partition: int = 0) -> list[Mark | Any]:
        """The records of a partition for a read_committed consumer: marks, and values as JSON."""
        found = [each for each in self.broker.read(self.target) if each.partition() == partition]
        return [_mark_or_value(each) for each in sorted(found, key=lambda each: each.offset())]

    def values(self) -> list[Any]:
        """The values of all partitions, without marks."""
        parts = self.broker.end_offsets(self.target)
        return [each for part in parts for each in self.read(part) if not isinstance(each, Mark)]


def _mark_or_value(message: Any) -> Mark | Any:
    headers = dict(message.headers() or [])
    if "cti-writer" not in headers:
        return None if message.value() is None else json.loads(message.value())
    us = parse_instant(headers["cti"].decode())
    second = float("inf") if us == FINAL_US else us / 1e6 - DAY_MS / 1e3
    return Mark(second, headers["cti-writer"].decode(), "cti-close" in headers)


def passed_on(frame: DataFrame) -> DataFrame:
    """The rows of a stream with CTIs as records, and its CTI rows as they are."""
    row = F.to_json(F.struct("station", "start_time"))
    return frame.select(F.when(F.col("cti").isNull(), row).alias("value"), "cti")


def counted(frame: DataFrame, length: str = "10 seconds", at: str = "end") -> DataFrame:
    """The number of events of each station and window, as records."""
    window = F.window("start_time", length)
    counts = advance_time(frame).groupBy(window, "station").count()
    second = F.unix_timestamp(f"window.{at}") - F.lit(DAY_MS // 1000)
    row = F.struct(
        "station", F.col("count").alias("n"), second.alias("second"), F.col(f"window.{at}")
    )
    return counts.select(F.col("station").alias("key"), F.to_json(row).alias("value"))
