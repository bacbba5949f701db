"""Short words for tests of a store through Spark: files in, rows of the store out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

INPUT = "series string, timestamp timestamp, value bigint"


def stream(frame: DataFrame, store: Path, checkpoint: Path, **options: str) -> None:
    """Run a query over all there is, to its end."""
    writer = frame.writeStream.format("tseries").options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start(str(store)).awaitTermination()


def files(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory))


def append(frame: DataFrame, store: Path, **options: str) -> None:
    frame.write.format("tseries").mode("append").options(**options).save(str(store))


def read(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format("tseries").options(**options).load(str(store))


def write_input(directory: Path, number: int, rows: list[tuple[str, int | None, int]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    series, stamps, values = zip(*rows, strict=True)
    stamp = pa.array(stamps, pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"series": series, "timestamp": stamp, "value": pa.array(values)})
    path = directory / f"{number:03}.parquet"
    pq.write_table(table, path)
    # Spark takes files in the order of their times, and equal times in any order.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def stored(store: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of a plain Delta reader, per series, by sequence."""
    table = DeltaTable(store).to_pyarrow_table().sort_by("sequence")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        found.setdefault(row["series"], []).append(row)
    return found
