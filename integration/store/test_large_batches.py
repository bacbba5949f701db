"""A large batch through Spark: its tasks write the events, the commit publishes or merges them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_tseries.maintain.verify import verify

ROWS = 150_000
SERIES = 100


def batches(spark: SparkSession, directory: Path) -> DataFrame:
    """`ROWS` new rows a batch, in the order of time."""
    reader = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory)).select(
        F.concat(F.lit("series "), F.col("id") % SERIES).alias("series"),
        F.timestamp_micros(F.col("id")).alias("timestamp"),
        F.col("id").cast("double").alias("value"),
    )


def write_input(spark: SparkSession, directory: Path, number: int) -> None:
    rows = spark.range(number * ROWS, (number + 1) * ROWS, numPartitions=1)
    rows.write.mode("append").parquet(str(directory))


def run(frame: DataFrame, store: Path, checkpoint: Path) -> None:
    writer = frame.writeStream.format("tseries").option("retainedRange", "unlimited")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start(str(store)).awaitTermination()


def check(store: Path, batches: int) -> None:
    assert verify(str(store)) == []
    rows = DeltaTable(store).to_pyarrow_table()
    assert rows.num_rows == batches * ROWS
    us = rows["timestamp"].cast(pa.int64()).to_pylist()
    sequence = rows["sequence"].to_pylist()
    assert all(number == at // SERIES for at, number in zip(us, sequence, strict=True))
    assert set(rows["commit"].to_pylist()) == set(range(batches))


def commits_of_files(store: Path) -> dict[int, int]:
    names = (path.name for path in store.glob("kind=event/*.parquet"))
    return dict(Counter(int(name.split("-")[0]) for name in names))


@pytest.mark.outside_ci
@pytest.mark.timeout(300)
def test_tasks_write_a_large_batch_and_a_restart_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, store, checkpoint = (tmp_path / name for name in ("in", "store", "checkpoint"))
    write_input(spark, source, 0)
    frame = batches(spark, source)
    by_series = frame.repartition(2, "series")
    run(by_series, store, checkpoint)
    check(store, 1)
    assert commits_of_files(store) == {0: 2}, "each task's file is published"

    for path in (checkpoint / "commits").iterdir():
        path.unlink()  # As if the query had died between the store's commit and Spark's.
    run(by_series, store, checkpoint)
    check(store, 1)
    assert commits_of_files(store) == {0: 2}

    write_input(spark, source, 1)
    run(frame.repartition(2), store, checkpoint)
    check(store, 2)
    assert commits_of_files(store) == {0: 2, 1: 1}, "tasks that share all series are merged"
    assert list((store / "_tseries" / "staging").iterdir()) == []
