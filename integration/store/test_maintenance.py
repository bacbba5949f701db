"""Through Spark: a store looks after itself, grows columns, and still answers as it did before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
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


def test_merge_schema_adds_fields_of_structs_and_narrower_types_need_no_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    frame = spark.sql("SELECT 'a' series, 1 n, struct(1 x) s, map('k', struct(1 x)) m")
    append(frame, store)
    more = "SELECT 'a' series, 2 n, struct(2L x, 'y' y) s, map('k', struct(2 x, 'z' z)) m"
    with pytest.raises(PySparkException, match="in the store it is of type struct"):
        append(spark.sql(more), store)
    with pytest.raises(PySparkException, match="widen_columns"):
        append(spark.sql(more), store, mergeSchema="true")  # A field has a wider type.
    append(spark.sql(more.replace("2L", "2")), store, mergeSchema="true")
    append(frame, store)
    found = read(spark, store).orderBy("sequence").selectExpr("s.x", "s.y", "m.k.z").collect()
    assert [tuple(row) for row in found] == [(1, None, None), (2, "y", "z"), (1, None, None)]
    assert read(spark, store).schema["s"].dataType.simpleString() == "struct<x:int,y:string>"


def test_a_job_goes_on_with_its_narrower_type_and_a_batch_that_comes_again_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    frame = spark.sql("SELECT 'a' series, 7 n, 1.5f f, CAST(1.25 AS DECIMAL(5, 2)) d")
    append(frame, store, txnAppId="nightly", txnVersion="1")
    wide = {"n": pa.decimal128(20, 2), "f": pa.float64(), "d": pa.decimal128(20, 5)}
    TimeSeries.open(store).widen_columns(wide)
    append(frame, store, txnAppId="nightly", txnVersion="1")
    append(frame, store, txnAppId="nightly", txnVersion="2")
    found = read(spark, store).selectExpr("CAST(n AS INT)", "f", "CAST(d AS DOUBLE)").collect()
    assert [tuple(row) for row in found] == [(7, 1.5, 1.25)] * 2
    with pytest.raises(PySparkException, match=r"is of type string(.|\n)*cast it"):
        append(spark.sql("SELECT 'a' series, 'x' n"), store)


def test_types_that_change_under_a_running_subscription_end_it_and_come_after_its_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    append(spark.sql("SELECT 'a' series, 7 n"), path)
    store = TimeSeries.open(path)

    def start(name: str) -> Any:
        frame = spark.readStream.format("tseries").option("subscriptionRange", "unlimited")
        writer = frame.load(str(path)).writeStream.format("parquet").queryName(name)
        place = str(tmp_path / "rows")
        return writer.option("checkpointLocation", str(tmp_path / "c")).start(place + name)

    query = start("before")
    query.processAllAvailable()
    store.widen_columns({"n": pa.int64()})
    store.append("a", 2**40)
    with pytest.raises(StreamingQueryException, match="'n' is asked for as int"):
        query.awaitTermination(60)
    query = start("after")
    query.processAllAvailable()
    query.stop()
    kept = [
        [number for file in tmp_path.glob(f"rows{name}/*.parquet") for number in numbers(file)]
        for name in ("before", "after")
    ]
    assert kept == [[7], [2**40]]


def numbers(file: Path) -> list[int]:
    return list(pq.read_table(file)["n"].to_pylist())
