"""Edits and range queries of `tseries` through Spark: the conformance cases that have options."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tseries.cases import CASES, INVALID, build

from pyspark_tseries import TimeSeries, describe


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cases")
    build(directory)
    return directory


def read(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format("tseries").options(**options).load(str(store))


def shown(frame: DataFrame) -> str:
    rows = frame.select("sequence", "original_sequence").collect()
    return " ".join(str(s) if original is None else f"{s}>{original}" for s, original in rows)


def append(frame: DataFrame, store: Path, **options: str) -> None:
    frame.write.format("tseries").mode("append").options(**options).save(str(store))


@pytest.mark.timeout(600)
def test_every_case_through_options_gives_what_the_client_gives(
    spark: SparkSession, stores: Path
) -> None:
    found = {}
    for case in CASES:
        found[str(case)] = shown(read(spark, stores / case.store, series="s", **case.options))
    assert found == {str(case): case.expected for case in CASES}


def test_q23_a_relative_time_without_an_anchor_names_the_series(
    spark: SparkSession, stores: Path
) -> None:
    for case in INVALID:
        with pytest.raises(PySparkException, match=r"series 's'.*no timestamp"):
            read(spark, stores / case.store, **case.options).collect()


def test_edits_through_the_sink_are_merged_on_read_in_any_number_of_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    name = F.concat(F.lit("s"), (F.col("id") % 50).cast("string")).alias("series")
    rows = spark.range(1000).select(
        name, F.timestamp_seconds("id").alias("timestamp"), F.col("id").alias("value")
    )
    append(rows, store, retainedRange="unlimited", author="loader")
    edits = spark.range(50).select(
        F.concat(F.lit("s"), F.col("id").cast("string")).alias("series"),
        F.lit(3).cast("long").alias("edit_of"),
        F.lit(-1).cast("long").alias("value"),
    )
    append(edits, store, author="editor")
    merged = read(spark, store)
    assert merged.count() == 1000
    assert merged.where("value = -1 and original_sequence = 3 and sequence = 20").count() == 50
    assert merged.where("original_author = 'loader' and author = 'editor'").count() == 50
    everything = read(spark, store, query="allEdits")
    assert everything.count() == 1050
    last = read(spark, store, **{"from": "last 2", "to": "last 1"})
    assert [row.sequence for row in last.select("sequence").distinct().collect()] == [18]
    assert last.count() == 50


def test_edits_without_an_original_fail_or_are_dropped_by_choice(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    TimeSeries.create(str(store), {"value": pa.int64()}, "limit 5").append("a", 1)
    columns = "series string, of bigint, value bigint"
    edits = spark.createDataFrame([("a", 0, 7), ("a", 5, 8), ("b", 0, 9)], columns)
    with pytest.raises(PySparkException, match=r"'a'.*no original 5.*missingOriginal"):
        append(edits, store, editOfColumn="of")
    assert describe(str(store))["events"] == 1
    append(edits, store, editOfColumn="of", missingOriginal="drop", clock="event")
    assert shown(read(spark, store, query="allEdits")) == "0 1>0"
    assert describe(str(store))["dropped"] == 2


def test_a_stream_of_appends_and_edits_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    source, store = tmp_path / "in", tmp_path / "s"
    columns = "series string, value bigint, edit_of bigint"
    inputs = [[("a", 1, None), ("a", 2, None)], [("a", 3, 0), ("a", 4, 1)], []]
    for rows in inputs:
        if rows:
            frame = spark.createDataFrame(rows, columns).coalesce(1)
            frame.write.mode("append").parquet(str(source))
        stream = spark.readStream.schema(columns).parquet(str(source))
        writer = stream.writeStream.format("tseries").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        writer.start(str(store)).awaitTermination()
    rows = read(spark, store).orderBy("original_sequence").select("value", "original_sequence")
    assert rows.collect() == [(3, 0), (4, 1)]
    assert describe(str(store))["events"] == 4
