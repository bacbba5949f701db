"""Format `tseries` through Spark: found by name, exactly once under SIGKILL, whole among rivals.

Run as a script it is the job that is killed: `INPUT STORE CHECKPOINT OUT_OF_ORDER`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from harness import DeltaLog, InBatch, Job, forget_batches, latest, run_killed
from lengths import repetitions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from store_query import append, files, read, stored, stream, write_input

from pyspark_tseries import describe


def staged(store: Path) -> list[Path]:
    return list((store / "_tseries" / "staging").glob("*"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "a store"


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """Twelve rows of three series, a second apart."""
    name = F.concat(F.lit("s"), (F.col("id") % 3).cast("string"))
    at = F.timestamp_seconds("id").alias("timestamp")
    return spark.range(12).select(name.alias("series"), at, F.col("id").alias("value"))


# -- batch ---------------------------------------------------------------------------------------


def test_units_in_the_metadata_of_columns_go_into_the_store_and_come_back(
    spark: SparkSession, numbers: DataFrame, store: Path
) -> None:
    measured = numbers.withMetadata("value", {"unit": "hPa", "other": 1})
    measured.write.format("tseries").option("retainedRange", "unlimited").mode("append").save(
        str(store)
    )
    assert read(spark, store).schema["value"].metadata == {"unit": "hPa"}
    (field,) = (f for f in DeltaTable(str(store)).schema().fields if f.name == "value")
    assert field.metadata == {"unit": "hPa"}


def test_a_deleted_checkpoint_over_an_old_store_is_said_to_be_a_new_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", 0, [("a", 1, 1), ("a", 2, 2)])
    stream(files(spark, tmp_path / "in"), tmp_path / "s", tmp_path / "old")
    with pytest.raises(Exception, match="this query has stored nothing here before") as failure:
        stream(files(spark, tmp_path / "in"), tmp_path / "s", tmp_path / "new")
    assert "'adjust' would store everything twice" in str(failure.value)
    assert "order the input by time" not in str(failure.value)
    assert describe(str(tmp_path / "s"))["events"] == 2
    # A query that has stored something before is told of its rows.
    write_input(tmp_path / "in", 1, [("a", 1, 3)])
    with pytest.raises(Exception, match="else order the input by time, or set outOfOrder"):
        stream(files(spark, tmp_path / "in"), tmp_path / "s", tmp_path / "old")


def test_a_new_query_whose_first_batches_were_empty_is_told_of_a_new_path(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path / "stored", 0, [("a", 2, 2)])
    stream(files(spark, tmp_path / "stored"), tmp_path / "s", tmp_path / "old")
    # As with windows: nothing of the first batch is released yet.
    write_input(tmp_path / "in", 0, [("a", 1, 1)])
    late = files(spark, tmp_path / "in").where("value > 1")
    stream(late, tmp_path / "s", tmp_path / "new")
    write_input(tmp_path / "in", 1, [("a", 1, 3)])
    with pytest.raises(Exception, match="a new checkpoint and the store has its results already"):
        stream(late, tmp_path / "s", tmp_path / "new")


def test_a_batch_is_written_and_read_by_name_without_any_registration(
    spark: SparkSession, store: Path, numbers: DataFrame
) -> None:
    append(numbers, store, retainedRange="limit 2")
    rows = read(spark, f"file:{store}".replace(" ", "%20"), series="s1").collect()  # type: ignore[arg-type]
    assert [(row.series, row.sequence, row.value) for row in rows] == [("s1", 2, 7), ("s1", 3, 10)]
    assert rows[0].timestamp.timestamp() == 7
    assert rows[0].original_sequence is None
    assert read(spark, store).columns == [
        *("series", "sequence", "timestamp", "author", "value"),
        *("original_sequence", "original_timestamp", "original_author", "edit_timestamp"),
    ]
    assert read(spark, store, series='["s0", "nobody"]').count() == 2
    some = read(spark, store, series="s1", columns="value, sequence")
    assert [row.asDict() for row in some.collect()] == [
        {"value": 7, "sequence": 2},
        {"value": 10, "sequence": 3},
    ]
    assert staged(store) == []


def test_a_batch_with_an_application_id_and_version_is_stored_once(
    store: Path, numbers: DataFrame
) -> None:
    for version in ("0", "0", "1"):
        once = {"txnAppId": "load", "txnVersion": version, "outOfOrder": "adjust"}
        append(numbers, store, **once)
    assert describe(str(store))["events"] == 24


def test_a_large_batch_goes_through_staged_files_and_is_numbered_without_gaps(
    spark: SparkSession, store: Path
) -> None:
    name = (F.col("id") % 500).cast("string").alias("series")
    rows = spark.range(0, 200_000, 1, 4).select(name, F.col("id").alias("value"))
    append(rows, store, retainedRange="unlimited", author="loader")
    assert staged(store) == []
    found = (
        read(spark, store)
        .groupBy("series")
        .agg(F.count("*").alias("n"), F.max("sequence").alias("last"), F.min("author").alias("who"))
    )
    assert found.select("n", "last", "who").distinct().collect() == [(400, 399, "loader")]
    # The input order of one series is the order of its values.
    assert read(spark, store, series="7").where("value != 7 + 500 * sequence").count() == 0
    paths = [str(store / row["path"]) for row in pa.table(actions(store)).to_pylist()]
    query = "select count(distinct (series, sequence)), max(sequence) from read_parquet(?)"
    assert duckdb.execute(query, [paths]).fetchall() == [(200_000, 399)]


def actions(store: Path) -> Any:
    return DeltaTable(store).get_add_actions(flatten=True)


def test_values_of_every_storable_type_come_back(spark: SparkSession, store: Path) -> None:
    kinds = (
        "series string, b tinyint, i int, f float, d decimal(9,2), y binary, t boolean, "
        "day date, ntz timestamp_ntz, utc timestamp, a array<struct<x:int>>, m map<string,double>"
    )
    day, moment = date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001
    values = (1, 2, 0.5, Decimal("1.25"), bytearray(b"x"), True, day, moment, moment)
    row = ("s", *values, [(1,), None], {"k": 1.5})
    frame = spark.createDataFrame([row, ("s", *[None] * 11)], kinds)
    append(frame, store)
    columns = frame.columns[1:]
    back = read(spark, store).orderBy("sequence").select(columns)
    assert back.dtypes == frame.select(columns).dtypes
    assert back.collect() == frame.select(columns).collect()


@pytest.mark.outside_ci
def test_a_series_whose_name_is_of_any_plane_goes_through_spark(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    planes = [(n << 16) + more for n in range(17) for more in (0x41, 0x20BB7 & 0xFFFF, 0xFFFD)]
    names = ["", *(chr(code) for code in planes), "𠮷野家", "a\U0010ffff"]
    for name in names[::17]:
        append(spark.createDataFrame([(name, 0)], "series string, value bigint"), store)
    write_input(tmp_path / "in", 0, [(name, None, 1) for name in names])
    write_input(tmp_path / "in", 1, [(name, None, 2) for name in names[::-1]])
    stream(files(spark, tmp_path / "in"), store, tmp_path / "checkpoint")
    counts = {name: 2 + (name in names[::17]) for name in names}
    found = read(spark, store)
    by_name = found.groupBy("series").count().collect()
    assert {row.series: row["count"] for row in by_name} == counts
    for name in names[::17]:
        assert read(spark, store, series=json.dumps([name])).count() == counts[name]
        assert found.where(F.col("series") == name).count() == counts[name]
    edits = [(name, 5, 0) for name in names]
    append(spark.createDataFrame(edits, "series string, value bigint, edit_of bigint"), store)
    subscription = spark.readStream.format("tseries").option("subscriptionRange", "unlimited")
    query = subscription.load(str(store)).writeStream.format("memory").queryName("planes")
    query.option("checkpointLocation", f"{tmp_path}/subscriber").trigger(
        availableNow=True
    ).start().awaitTermination()
    got = spark.table("planes").groupBy("series").count().collect()
    assert {row.series: row["count"] for row in got} == {name: n + 1 for name, n in counts.items()}


def test_the_session_time_zone_does_not_move_timestamps(
    spark: SparkSession, store: Path, numbers: DataFrame
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        append(numbers, store)
        found = read(spark, store).selectExpr("unix_seconds(timestamp)").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(row[0] for row in found) == list(range(12))
    assert stored(store)["s0"][0]["timestamp"] == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"value": "'x'"}, {}, "column 'value' is of type string, in the store it is of"),
        ({"extra": "1"}, {}, "column 'extra' of type int is not in the store"),
        ({"commit": "1"}, {}, "'commit' is named like a metadata column"),
        ({"edit_of": "99L"}, {}, "the edit of 99 has a timestamp"),
        ({}, {"retainedRange": "limit 9"}, "'limit 9' is not the range 'limit 10'"),
        ({}, {"seriesColum": "x"}, "did you mean 'seriesColumn'"),
        ({}, {"seriesColumn": "x", "seriesName": "y"}, "conflicts with option 'seriesName'"),
        ({}, {"clock": "never"}, "option 'clock': cannot read 'never'"),
        ({}, {"txnAppId": "x"}, "set 'txnVersion' too"),
        ({}, {}, "series 's0': timestamp 1970-01-01T00:00:00Z is before the newest event"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_stores_nothing(
    store: Path, numbers: DataFrame, change: dict[str, str], options: dict[str, str], said: str
) -> None:
    append(numbers, store)
    added = {name: F.expr(sql) for name, sql in change.items()}
    with pytest.raises(PySparkException) as error:
        append(numbers.withColumns(added) if added else numbers, store, **options)
    assert said in str(error.value)
    assert "accepted: " in str(error.value)
    assert "next step: " in str(error.value)
    assert describe(str(store))["events"] == 12
    assert staged(store) == []


def test_what_is_refused_at_once_creates_no_store(
    spark: SparkSession, store: Path, numbers: DataFrame
) -> None:
    with pytest.raises(PySparkException, match="is named like a metadata column"):
        append(numbers.withColumn("kind", F.lit(1)), store)
    with pytest.raises(PySparkException, match="cannot open 'gs:' stores yet"):
        append(numbers, "gs://bucket/store")  # type: ignore[arg-type]
    with pytest.raises(PySparkException, match="there is no store at"):
        read(spark, store)
    assert not store.exists()


def test_overwriting_is_refused(store: Path, numbers: DataFrame) -> None:
    append(numbers, store)
    with pytest.raises(PySparkException, match="a series is only changed by adding events"):
        numbers.write.format("tseries").mode("overwrite").save(str(store))
    assert describe(str(store))["events"] == 12


# -- streams -------------------------------------------------------------------------------------


def test_a_stream_writes_each_batch_once_and_resumes(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(3):
        write_input(source, number, [("a", number, number), ("b", None, number)])
    stream(files(spark, source), store, checkpoint, retainedRange="unlimited")
    assert latest(checkpoint / "commits") == 2
    forget_batches(checkpoint / "commits", 1)  # As if killed before Spark noted the batch.
    write_input(source, 3, [("a", 3, 3), ("b", None, 3)])
    stream(files(spark, source), store, checkpoint)
    for rows in stored(store).values():
        assert [row["sequence"] for row in rows] == [0, 1, 2, 3]
        assert [row["value"] for row in rows] == [0, 1, 2, 3]
    assert staged(store) == []


def test_an_empty_batch_creates_the_store_and_commits_its_writer_alone(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", 0, [("a", 0, 0)])
    frame = files(spark, tmp_path / "in").where("value > 5")
    stream(frame, store, tmp_path / "checkpoint", retainedRange="last 7D")
    facts = describe(str(store))
    assert (facts["last_commit"], facts["retained_range"]) == (0, "last 7D")
    assert (facts["events"], list(facts["cti_writers"].values())) == (0, [None])
    assert DeltaTable(store).file_uris() == []
    assert read(spark, store).count() == 0


def test_a_late_row_ends_the_query_and_stores_nothing_of_its_batch(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", 0, [("a", 5_000_000, 0)])
    write_input(tmp_path / "in", 1, [("a", 4_000_000, 1), ("b", 0, 1)])
    with pytest.raises(PySparkException, match=r"'a': timestamp 1970-01-01T00:00:04Z.*00:00:05Z"):
        stream(files(spark, tmp_path / "in"), store, tmp_path / "checkpoint")
    assert describe(str(store))["events"] == 1
    assert staged(store) == []
    stream(files(spark, tmp_path / "in"), store, tmp_path / "checkpoint", outOfOrder="drop")
    facts = describe(str(store))
    assert (facts["events"], facts["dropped"], facts["last_dropped"]["series"]) == (2, 1, "a")


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_complete_and_update_modes_are_refused(
    spark: SparkSession, store: Path, tmp_path: Path, mode: str
) -> None:
    write_input(tmp_path / "in", 0, [("a", 0, 0)])
    frame = files(spark, tmp_path / "in").groupBy("series").agg(F.max("value").alias("value"))
    writer = frame.writeStream.format("tseries").outputMode(mode).trigger(availableNow=True)
    said = "would change events" if mode == "complete" else "Update mode"
    with pytest.raises(Exception, match=said):
        writer.option("checkpointLocation", f"{tmp_path}/c").start(str(store)).awaitTermination()
    assert not store.exists()


# -- kills ---------------------------------------------------------------------------------------

BATCHES = repetitions(3, 6)
SERIES = repetitions(200, 1000)


def committed_but_not_noted(checkpoint: Path, store: Path) -> InBatch:
    """The store has the query's batch, Spark has not yet noted it."""
    logs: dict[str, DeltaLog] = {}

    def has(batch: int) -> bool:
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        return logs.setdefault(query, DeltaLog(store, f"tseries:q:{query}")).has_batch(batch)

    return InBatch(checkpoint, then=has)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shared", [True, False], ids=["same series", "own series"])
def test_two_queries_that_are_killed_lose_and_double_nothing(tmp_path: Path, shared: bool) -> None:
    """Many series each: the same ones without timestamps, or own ones, checked under `fail`."""
    store, policy = tmp_path / "store", "adjust" if shared else "fail"
    jobs = []
    for query in range(2):
        for number in range(BATCHES):
            rows = list(input_rows(query, number, shared))
            write_input(tmp_path / f"in{query}", number, rows)
        where = [str(tmp_path / f"in{query}"), str(store), str(tmp_path / f"checkpoint{query}")]
        jobs.append(Job(Path(__file__), [*where, policy], log=tmp_path / f"log{query}"))
    points = [committed_but_not_noted(tmp_path / f"checkpoint{n}", store) for n in range(2)]
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda j, p: run_killed(j, p, kills=1, timeout=540), jobs, points))
    assert [(result.hits, result.exit_code) for result in results] == [(1, 0), (1, 0)]
    found = stored(store)
    assert len(found) == SERIES * (1 if shared else 2)
    for rows in found.values():
        assert [row["sequence"] for row in rows] == list(range(len(rows)))
        stamps = [row["timestamp"] for row in rows]
        assert stamps == sorted(stamps)
    values = sorted(row["value"] for rows in found.values() for row in rows)
    assert values == list(range(2 * BATCHES * SERIES))


def input_rows(query: int, number: int, shared: bool) -> Iterator[tuple[str, int | None, int]]:
    first = (query * BATCHES + number) * SERIES
    for i in range(SERIES):
        name = f"s{i}" if shared else f"q{query} s{i}"
        yield name, None if shared else number, first + i


def main() -> None:
    from spark_session import local_spark

    source, store, checkpoint, policy = sys.argv[1:]
    spark = local_spark("tseries job", spark_sql_adaptive_enabled="false")
    frame = files(spark, Path(source))
    options = {"outOfOrder": policy, "retainedRange": "unlimited"}
    stream(frame, Path(store), Path(checkpoint), **options)
    spark.stop()


if __name__ == "__main__":
    main()
