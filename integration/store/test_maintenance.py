"""Through Spark: a store looks after itself, grows columns, and still answers as it did before."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from store_query import append, files, read, stream, write_input

from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.maintain.compactor import MIN_GROUPS_TO_MERGE, compact
from pyspark_tseries.maintain.verify import verify


def prefilled(path: Path, commits: int) -> None:
    columns = {"value": pa.int64()}
    store = TimeSeries.create(str(path), columns, "unlimited", auto_compact=False)
    for number in range(commits):
        store.append(f"p{number % 3}", number)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("maintenance", ["true", "false"])
def test_a_store_that_only_runs_a_query_merges_its_files_unless_told_not_to(
    spark: SparkSession, tmp_path: Path, maintenance: str
) -> None:
    store = tmp_path / "store"
    prefilled(store, MIN_GROUPS_TO_MERGE - 2)
    for number in range(2):
        write_input(tmp_path / "in", number, [("a", number, number)])
    stream(files(spark, tmp_path / "in"), store, tmp_path / "checkpoint", autoCompact=maintenance)
    if maintenance == "false":
        assert not (store / "_tseries" / "maintenance.lock").exists()
        assert describe(str(store))["files"] == MIN_GROUPS_TO_MERGE
        return
    end = time.monotonic() + 120
    while describe(str(store))["files"] > 1:
        assert time.monotonic() < end, describe(str(store))["maintenance_error"]
        time.sleep(0.2)
    assert describe(str(store))["events"] == MIN_GROUPS_TO_MERGE
    assert read(spark, store, series="a").count() == 2
    assert verify(str(store)) == []


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((row.series, row.sequence, row.value) for row in frame.collect())


def test_as_of_answers_the_same_before_and_after_later_writes_and_a_compaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    made = TimeSeries.create(str(store), {"value": pa.int64()}, "limit 2", auto_compact=False)
    for number in range(4):
        made.append("a", number)
    then = describe(str(store))["last_commit_time"]
    before = rows(read(spark, store))
    assert before == [("a", 2, 2), ("a", 3, 3)]
    made.edit("a", 3, -3)
    made.append("b", 9)
    compact(str(store))
    assert rows(read(spark, store, asOf=then)) == before
    assert rows(read(spark, store)) == [("a", 4, -3), ("b", 0, 9)]
    with pytest.raises(PySparkException, match="option 'asOf': cannot read 'yesterday'"):
        read(spark, store, asOf="yesterday")


def test_merge_schema_adds_a_column_and_older_events_have_nulls(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    frame = spark.createDataFrame([("a", 1)], "series string, value bigint")
    append(frame, store)
    wider = frame.withColumn("note", F.lit("x"))
    with pytest.raises(PySparkException, match="set mergeSchema to add it"):
        append(wider, store)
    append(wider, store, mergeSchema="true")
    found = read(spark, store).orderBy("sequence").select("value", "note").collect()
    assert [tuple(row) for row in found] == [(1, None), (1, "x")]
