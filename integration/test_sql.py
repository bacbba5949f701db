"""What SQL's CREATE TABLE and CREATE VIEW make of the formats: a view works, a table is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tseries import TimeSeries, describe

WAY_TO_GO = r"CREATE TEMPORARY VIEW name USING {} OPTIONS \("


@pytest.fixture
def store(tmp_path: Path) -> TimeSeries:
    series = TimeSeries.create(tmp_path / "s", {"value": pa.int64()}, "unlimited")
    series.append("a", 1)
    series.append("b", 2)
    return series


@pytest.fixture(autouse=True)
def catalog(spark: SparkSession) -> Iterator[None]:
    """No test leaves a table behind that it has not dropped."""
    before = {table.name for table in spark.catalog.listTables()}
    yield
    left = [table for table in spark.catalog.listTables() if table.name not in before]
    for table in left:
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")
    assert [table.name for table in left if not table.isTemporary] == []


def refused(spark: SparkSession, sql: str, source: str = "tseries") -> str:
    with pytest.raises(PySparkException) as error:
        spark.sql(sql).collect()
    said = str(error.value)
    assert re.search(WAY_TO_GO.format(source), said), said
    return said


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t USING tseries OPTIONS (path '{path}')",
        "CREATE TABLE t USING tseries LOCATION '{path}'",
        "CREATE TABLE t USING tseries LOCATION '{path}' TBLPROPERTIES ('p' = 'q') COMMENT 'c'",
        "CREATE TABLE t USING tseries",
        "CREATE TABLE t USING tseries OPTIONS (path '{path}') AS SELECT 'a' AS series, 1L AS value",
    ],
)
def test_a_table_over_a_store_is_refused_with_the_way_to_go_and_leaves_nothing(
    spark: SparkSession, store: TimeSeries, sql: str
) -> None:
    refused(spark, sql.format(path=store.describe()["path"]))
    assert not spark.catalog.tableExists("t")
    assert store.describe()["events"] == 2


def test_a_table_with_columns_of_its_own_says_at_each_use_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark asks the format nothing when it makes such a table."""
    spark.sql(f"CREATE TABLE t (series string, value bigint) USING tseries LOCATION '{tmp_path}/s'")
    try:
        for sql in ("SELECT * FROM t", "INSERT INTO t VALUES ('a', 1)"):
            assert "DROP such a table" in refused(spark, sql)
        assert not (tmp_path / "s").exists()
    finally:
        spark.sql("DROP TABLE t")


def test_saving_as_a_table_is_refused_and_leaves_nothing(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'a' AS series, 1L AS value")
    for save in (
        lambda: rows.write.format("tseries").mode("append").saveAsTable("t"),
        lambda: rows.writeTo("t").using("tseries").create(),
    ):
        with pytest.raises(PySparkException, match=WAY_TO_GO.format("tseries")):
            save()
        assert not spark.catalog.tableExists("t")


def test_what_is_saved_as_a_table_with_a_path_is_stored_and_the_table_says_how_to_read_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Such a write looks to the format like one to the path alone."""
    rows = spark.sql("SELECT 'a' AS series, 1L AS value")
    rows.write.format("tseries").option("path", f"{tmp_path}/s").saveAsTable("t")
    try:
        assert describe(tmp_path / "s")["events"] == 1
        assert "DROP such a table" in refused(spark, "SELECT * FROM t")
    finally:
        spark.sql("DROP TABLE t")
    assert describe(tmp_path / "s")["events"] == 1


def test_a_temporary_view_over_a_store_reads_it_and_shows_what_is_added(
    spark: SparkSession, store: TimeSeries
) -> None:
    path = store.describe()["path"]
    spark.sql(f"CREATE TEMPORARY VIEW v USING tseries OPTIONS (path '{path}', limit 1)")
    assert spark.sql("SELECT series, value FROM v ORDER BY 1").collect() == [("a", 1), ("b", 2)]
    store.append("a", 3)
    assert spark.sql("SELECT series, value FROM v ORDER BY 1").collect() == [("a", 3), ("b", 2)]
    spark.sql(
        f"CREATE TEMPORARY VIEW asked USING tseries OPTIONS (path '{path}', series 'a', query "
        "'allEdits', 'from' 'sequence 0')"
    )
    assert spark.sql("SELECT count(*) AS n FROM asked").collect()[0].n == 2
    assert describe(path)["events"] == 3


def test_a_table_over_a_stream_of_time_is_refused_with_the_way_to_go(spark: SparkSession) -> None:
    kafka = "transport 'kafka', subscribe 't', 'kafka.bootstrap.servers' 'localhost:1'"
    for sql in (
        "CREATE TABLE t USING timestream OPTIONS (maxCount '3')",
        f"CREATE TABLE t USING timestream OPTIONS ({kafka})",
    ):
        refused(spark, sql, "timestream")
        assert not spark.catalog.tableExists("t")
    spark.sql(f"CREATE TABLE t (value string) USING timestream OPTIONS ({kafka})")
    try:
        refused(spark, "SELECT * FROM t", "timestream")
    finally:
        spark.sql("DROP TABLE t")
