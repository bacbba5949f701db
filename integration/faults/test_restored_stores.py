"""A checkpoint or a store that was put back, under real queries: refused by name, with a way out.

The next steps that the errors name are taken here. Each kind of restore is in
tests/tseries/store/test_history.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness import forget_batches
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from store_query import append, files, stored, stream, write_input

from pyspark_tseries import describe


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Four batches of two rows each."""
    for number in range(4):
        add_batch(tmp_path, number)
    return files(spark, tmp_path / "in")


def add_batch(place: Path, number: int) -> None:
    write_input(place / "in", number, [("a", number, number), ("b", number, -number)])


def run(place: Path, frame: DataFrame) -> None:
    stream(frame, place / "s", place / "c", retainedRange="unlimited")


def put_back(place: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(place / name)
        shutil.copytree(place / "backup" / name, place / name)


def back_up(place: Path) -> None:
    for name in ("s", "c"):
        shutil.copytree(place / name, place / "backup" / name)


def values(place: Path, series: str = "a") -> list[object]:
    return [row["value"] for row in stored(place / "s")[series]]


@pytest.mark.outside_ci
def test_an_older_checkpoint_is_refused_and_a_newer_one_or_new_input_goes_on(
    spark: SparkSession, tmp_path: Path, source: DataFrame
) -> None:
    run(tmp_path, source)
    back_up(tmp_path)
    for number in (4, 5):
        add_batch(tmp_path, number)
    run(tmp_path, source)
    newest = shutil.copytree(tmp_path / "c", tmp_path / "newest")
    # The same folder, with yesterday's checkpoint and today's input.
    put_back(tmp_path, "c")
    for number in (4, 5):
        (tmp_path / "in" / f"{number:03}.parquet").unlink()
    for number in (6, 7, 8):
        add_batch(tmp_path, number)
    with pytest.raises(Exception, match=r"batch 4 of query .* has its batch 5: the checkpoint is"):
        run(tmp_path, source)
    # A replay of the last batch with other rows.
    shutil.copytree(newest, tmp_path / "c", dirs_exist_ok=True)
    forget_batches(tmp_path / "c/commits", 4)
    changed = source.withColumn("value", F.col("value") + 1)
    add_batch(tmp_path, 5)
    with pytest.raises(Exception, match=r"batch 5 of query .* comes again with other rows"):
        run(tmp_path, changed)
    assert values(tmp_path) == [0, 1, 2, 3, 4, 5]
    # One way out: it keeps what is stored, and goes on.
    shutil.copy(tmp_path / "c/commits/4", tmp_path / "c/commits/5")
    run(tmp_path, changed)
    assert values(tmp_path) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert spark.version


def test_an_older_store_is_refused_and_the_query_writes_again_what_is_lost(
    tmp_path: Path, source: DataFrame
) -> None:
    run(tmp_path, source)
    back_up(tmp_path)
    for number in (4, 5):
        add_batch(tmp_path, number)
    run(tmp_path, source)
    put_back(tmp_path, "s")
    add_batch(tmp_path, 6)
    with pytest.raises(Exception, match=r"its batch 5: an older state of the store was put back"):
        run(tmp_path, source)
    assert values(tmp_path) == [0, 1, 2, 3]
    # The next step: from number 4 on in 'commits', and from number 5 on in 'offsets'.
    forget_batches(tmp_path / "c/commits", 3)
    forget_batches(tmp_path / "c/offsets", 4)
    run(tmp_path, source)
    assert values(tmp_path) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.outside_ci
def test_store_and_checkpoint_of_one_backup_simply_go_on(tmp_path: Path, source: DataFrame) -> None:
    run(tmp_path, source)
    back_up(tmp_path)
    add_batch(tmp_path, 4)
    run(tmp_path, source)
    put_back(tmp_path, "s", "c")
    run(tmp_path, source)
    assert values(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.outside_ci
def test_averages_of_windows_that_come_again_are_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark adds up floats in the order of its tasks; a batch that comes again is no other one."""
    for number in range(2):
        start_us = number * 3_600_000_000
        rows = [(f"s{i % 9}", start_us + i, i * 7919 % 101) for i in range(900)]
        write_input(tmp_path / "in", number, rows)
    frame = files(spark, tmp_path / "in").repartition(3).withWatermark("timestamp", "0 seconds")
    windows = frame.groupBy("series", F.window("timestamp", "1 minute"))
    means = windows.agg(F.avg(F.col("value") / 7).alias("mean"))
    rows = means.select("series", F.col("window.end").alias("timestamp"), "mean")
    run(tmp_path, rows)
    events = describe(str(tmp_path / "s"))["events"]
    last = max(int(file.name) for file in (tmp_path / "c/commits").iterdir() if file.name.isdigit())
    forget_batches(tmp_path / "c/commits", last - 1)
    run(tmp_path, rows)
    assert describe(str(tmp_path / "s"))["events"] == events == 9


@pytest.mark.outside_ci
def test_a_numbered_write_is_refused_below_its_last_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A constant txnAppId in foreachBatch, and a checkpoint that was deleted."""
    names = {"txnAppId": "nightly", "retainedRange": "unlimited"}

    def rows(*numbers: int) -> DataFrame:
        frame = spark.createDataFrame([(n,) for n in numbers], "value bigint").repartition(2)
        return frame.select(F.lit("a").alias("series"), F.timestamp_micros("value"), "value").toDF(
            "series", "timestamp", "value"
        )

    for version in range(3):
        append(
            rows(10 * version, 10 * version + 1), tmp_path / "s", txnVersion=str(version), **names
        )
    append(rows(21, 20), tmp_path / "s", txnVersion="2", **names)
    with pytest.raises(Exception, match="txnVersion 0 of txnAppId 'nightly' is to be stored"):
        append(rows(300), tmp_path / "s", txnVersion="0", **names)
    with pytest.raises(Exception, match="txnVersion 2 of txnAppId 'nightly' comes again with oth"):
        append(rows(300), tmp_path / "s", txnVersion="2", **names)
    assert describe(str(tmp_path / "s"))["events"] == 6


def test_a_subscription_of_a_store_that_was_put_back_fails_by_name(
    spark: SparkSession, tmp_path: Path, source: DataFrame
) -> None:
    run(tmp_path, source)
    back_up(tmp_path)

    def follow() -> None:
        events = spark.readStream.format("tseries").option("subscriptionRange", "unlimited")
        rows = events.load(str(tmp_path / "s")).select("series", "timestamp", "value")
        stream(rows, tmp_path / "copy", tmp_path / "d", retainedRange="unlimited")

    add_batch(tmp_path, 4)
    run(tmp_path, source)
    follow()
    put_back(tmp_path, "s", "c")
    write_input(tmp_path / "in", 4, [("a", 40, 40), ("b", 40, 40)])
    add_batch(tmp_path, 50)
    run(tmp_path, source)
    with pytest.raises(Exception, match=r"HistoryChanged.*has commit 4 .* this query's check"):
        follow()
    assert describe(str(tmp_path / "copy"))["events"] == 10
