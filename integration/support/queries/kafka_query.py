"""Short words for tests of transport `kafka`: events in, rows and progress out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from broker import Broker, Record
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, StructType

DAY_MS = 1_704_067_200_000
"""2024-01-01T00:00:00Z; tests count seconds from here."""


def event(second: float, partition: int = 0, **fields: Any) -> Record:
    """A record with a timestamp `second` seconds into the day, which its value says too."""
    value = json.dumps({"second": second, **fields})
    return Record(value, None, partition, DAY_MS + int(second * 1000))


def seconds(instant: Any) -> float | None:
    """A timestamp column's value as seconds into the day."""
    return None if instant is None else round(instant.timestamp() - DAY_MS / 1000, 6)


_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


def read_rows(place: Path) -> list[Row]:
    """The rows of a batch that Spark has written, with its number, as Spark would collect them.

    They are in the order of tasks. No job of Spark reads them: tests ask again and again, and each
    of its two jobs takes longer than all of this.
    """
    number = int(place.name.removeprefix("batch="))
    rows: list[Row] = []
    for file in sorted(place.glob("*.parquet")):
        table = pq.ParquetFile(file).read()
        schema = StructType.fromJson(json.loads(table.schema.metadata[_SCHEMA]))
        table = table.append_column("batch", pa.array([number] * len(table), pa.int32()))
        rows += ArrowTableToRowsConversion.convert(table, schema.add("batch", IntegerType()))
    return rows


def write_rows(batch: DataFrame, place: Path) -> None:
    """Keep a batch as Spark's own Parquet files would, in less than half of the processor time."""
    table = batch.toArrow().replace_schema_metadata({_SCHEMA: batch.schema.json()})
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    pq.write_table(table, place / "part-00000.parquet")
    (place / "_SUCCESS").touch()


@dataclass
class Stream:
    """A query over one topic, run piece by piece from one checkpoint."""

    spark: SparkSession
    broker: Broker
    topic: str
    place: Path
    options: dict[str, str] = field(default_factory=dict)
    schema: str | None = None

    def load(self, **options: Any) -> DataFrame:
        """The stream as a DataFrame."""
        return self.configure(self.spark.readStream, **options).load()

    def load_batch(self, **options: Any) -> DataFrame:
        """The topic as a batch DataFrame."""
        return self.configure(self.spark.read, **options).load()

    def configure(self, reader: Any, **options: Any) -> Any:
        """The reader, of streams or of batches, with the topic, options and schema."""
        fixed = {
            "transport": "kafka",
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
        }
        for name, value in {**fixed, **self.options, **options}.items():
            if value is not None:
                reader = reader.option(name.replace("__", "."), str(value))
        return (
            reader.format("timestream")
            if not self.schema
            else reader.format("timestream").schema(self.schema)
        )

    def start(
        self,
        frame: DataFrame | None = None,
        once: bool = True,
        writer_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start writing every row to Parquet files of its batch under `place/rows`."""
        rows = self.place / "rows"

        def keep(batch: DataFrame, number: int) -> None:
            write_rows(batch, rows / f"batch={number:06d}")

        writer = (self.load(**options) if frame is None else frame).writeStream.foreachBatch(keep)
        writer = writer.options(**(writer_options or {}))
        writer = writer.option("checkpointLocation", str(self.place / "checkpoint"))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, frame: DataFrame | None = None, **options: Any) -> list[Row]:
        """Run to the topic's present end; return all rows so far, in order of batch."""
        self.query = self.start(frame, **options)
        self.query.awaitTermination()
        return self.rows()

    def rows(self) -> list[Row]:
        """All rows written so far, in order of batch and task."""
        places = sorted((self.place / "rows").glob("batch=*"))
        return [row for place in places for row in read_rows(place)]

    def report(self) -> dict[str, Any]:
        """The source's report in the last progress."""
        return dict(json.loads(self.query.lastProgress.sources[0].latestOffset))


def ctis(rows: Iterable[Row]) -> list[float | None]:
    """The CTI rows as seconds into the day; the final CTI as infinity."""
    found = [row for row in rows if row["cti"] is not None]
    return [float("inf") if row["cti"].year == 9999 else seconds(row["cti"]) for row in found]


def times(rows: Iterable[Row]) -> list[float | None]:
    """The data rows' start times as seconds into the day."""
    return [seconds(row["start_time"]) for row in rows if row["cti"] is None]


def marks(rows: Sequence[Row]) -> list[str]:
    """Rows in order, an event as `e5`, a CTI as `c5`."""
    return [
        f"c{ctis([row])[0]:g}" if row["cti"] is not None else f"e{seconds(row['start_time']):g}"
        for row in rows
    ]
