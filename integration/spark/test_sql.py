"""Tables and views of SQL over the formats: what they read, write and refuse (semantics 14.4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from broker import Broker
from kafka_query import event, seconds
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, await_end
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
    # Spark's catalogue fails to list views where the code of queries is interpreted.
    before = {table.tableName for table in spark.sql("SHOW TABLES").collect()}
    yield
    shown = spark.sql("SHOW TABLES").collect()
    left = [table for table in shown if table.tableName not in before]
    for table in left:
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.tableName}")
    assert [table.tableName for table in left if not table.isTemporary] == []


def refused(spark: SparkSession, sql: str, source: str = "tseries") -> str:
    with pytest.raises(PySparkException) as error:
        spark.sql(sql).collect()
    said = str(error.value)
    assert re.search(WAY_TO_GO.format(source), said), said
    return said


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t USING tseries",
        "CREATE TABLE t USING tseries OPTIONS (path '{path}') AS SELECT 'a' AS series, 1L AS value",
    ],
)
def test_table_without_a_place_is_refused_with_the_way_to_go_and_leaves_nothing(
    spark: SparkSession, store: TimeSeries, sql: str
) -> None:
    refused(spark, sql.format(path=store.describe()["path"]))
    assert not spark.catalog.tableExists("t")
    assert store.describe()["events"] == 2


@pytest.mark.parametrize(
    "place",
    ["OPTIONS (path '{path}')", "LOCATION '{path}' TBLPROPERTIES ('limt' = 'q') COMMENT 'c'"],
)
def test_table_over_a_store_shows_what_is_added_and_leaves_it_when_dropped(
    spark: SparkSession, store: TimeSeries, place: str
) -> None:
    path = store.describe()["path"]
    spark.sql("CREATE TABLE t USING tseries " + place.format(path=path))
    wanted = "SELECT series, value FROM t ORDER BY series, sequence"
    assert spark.sql(wanted).collect() == [("a", 1), ("b", 2)]
    store.append("a", 3)
    assert spark.sql(wanted).collect() == [("a", 1), ("a", 3), ("b", 2)]
    again = spark.newSession().sql("SELECT count(*) AS n FROM t WHERE series = 'a'")
    assert again.collect()[0].n == 2
    spark.sql("DROP TABLE t")
    assert describe(path)["events"] == 3


def test_table_keeps_its_options_and_those_of_a_read_count_instead(
    spark: SparkSession, store: TimeSeries, tmp_path: Path
) -> None:
    path = store.describe()["path"]
    store.append("a", 3)
    spark.sql(f"CREATE TABLE t USING tseries OPTIONS (path '{path}', limit 1, series 'a')")
    assert spark.sql("SELECT value FROM t").collect() == [(3,)]
    all_of_b = f"SELECT value FROM t WITH (path '{path}', series 'b')"
    assert spark.sql(all_of_b).collect() == [(2,)]
    query = (
        spark.readStream.option("path", path).option("subscriptionRange", "unlimited").table("t")
        .writeStream.format("memory").queryName("added").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert spark.sql("SELECT count(*) AS n FROM added").collect()[0].n == 3
    # Rows of the table know its options, and may go elsewhere all the same.
    rows = spark.table("t").select("series", "value")
    rows.write.format("tseries").mode("append").save(str(tmp_path / "other"))
    assert describe(tmp_path / "other")["events"] == 1
    for sql in ("INSERT INTO t SELECT * FROM t", "CREATE TABLE u USING tseries AS SELECT * FROM t"):
        assert "WITH (path" in refused(spark, sql)
    assert describe(path)["events"] == 3
    spark.sql("DROP TABLE t")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("limt 1", "option 'limt': there is no such option: did you mean 'limit'"),
        ("'storageOptions.AWS_SECRET_ACCESS_KEY' 'hush'", "it is a secret"),
        ("limit 'x'", "option 'limit': cannot read 'x'"),
    ],
)
def test_table_with_a_wrong_option_is_refused_by_its_name(
    spark: SparkSession, store: TimeSeries, given: str, said: str
) -> None:
    path = store.describe()["path"]
    with pytest.raises(PySparkException, match=said) as error:
        spark.sql(f"CREATE TABLE t USING tseries OPTIONS (path '{path}', {given})")
    assert "hush" not in str(error.value)
    assert not spark.catalog.tableExists("t")


def test_table_with_columns_of_its_own_takes_the_store_at_each_use(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark does not ask the format when it makes this table."""
    path = tmp_path / "s"
    spark.sql(f"CREATE TABLE t (series string, value bigint) USING tseries LOCATION '{path}'")
    for sql in ("SELECT * FROM t", "INSERT INTO t VALUES ('a', 1)"):
        assert "DROP such a table" in refused(spark, sql)
    assert not path.exists()
    spark.sql(f"INSERT INTO t WITH (path '{path}', retainedRange 'unlimited') VALUES ('a', 1L)")
    spark.sql(f"INSERT INTO t WITH (path '{path}') (value, series) VALUES (2L, 'a')")
    assert spark.sql(f"SELECT * FROM t WITH (path '{path}')").collect() == [("a", 1), ("a", 2)]
    with pytest.raises(PySparkException, match="'overwrite'"):
        spark.sql(f"INSERT OVERWRITE t WITH (path '{path}') VALUES ('b', 1L)")
    spark.sql("DROP TABLE t")
    assert describe(path)["events"] == 2


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
    """To the format this write looks like a write to the path."""
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


def test_table_over_a_topic_is_read_at_once_and_as_a_stream(
    spark: SparkSession, broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic()
    broker.produce(name, [event(second) for second in (1, 2, 11)])
    spark.sql(
        f"CREATE TABLE t USING timestream OPTIONS (transport 'kafka', subscribe '{name}', "
        f"'kafka.bootstrap.servers' '{broker.bootstrap}', startingOffsets 'earliest', "
        "ctiFrequency '1', finalCti 'true')"
    )
    events = spark.sql("SELECT start_time FROM t WHERE cti IS NULL ORDER BY 1").collect()
    assert [seconds(row.start_time) for row in events] == [1, 2, 11]
    sums = advance_time(spark.readStream.table("t")).groupBy(F.window("start_time", "10 seconds"))
    query = (
        sums.count().writeStream.format("memory").queryName("windows")
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert [row["count"] for row in spark.sql("SELECT * FROM windows ORDER BY 1").collect()] == [
        2,
        1,
    ]
    spark.sql("DROP TABLE t")


def test_table_over_a_clock_is_a_stream_and_its_mistakes_are_told(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t USING timestream OPTIONS (maxCount '3', period '0.01')")
    with pytest.raises(PySparkException, match=r"spark\.readStream"):
        spark.sql("SELECT * FROM t").collect()
    query = spark.readStream.table("t").writeStream.format("memory").queryName("ticks").start()
    await_end(query)
    assert [row.value for row in spark.sql("SELECT value FROM ticks ORDER BY 1").collect()] == [
        0,
        1,
        2,
    ]
    spark.sql("DROP TABLE t")
    kafka = "transport 'kafka', subscribe 't', 'kafka.bootstrap.servers' 'localhost:1'"
    for given, said in (
        ("'kafka.sasl.password' 'hush'", "it is a secret"),
        ("subscrib 'x'", "did you mean 'subscribe'"),
    ):
        with pytest.raises(PySparkException, match=said):
            spark.sql(f"CREATE TABLE t USING timestream OPTIONS ({kafka}, {given})")
        assert not spark.catalog.tableExists("t")
    spark.sql(f"CREATE TABLE t (value string) USING timestream OPTIONS ({kafka})")
    refused(spark, "SELECT * FROM t", "timestream")
    spark.sql("DROP TABLE t")
