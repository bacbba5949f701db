"""A DataFrame or view over a store shows the store as it is, and nothing of an earlier query."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_tseries import TimeSeries

SERIES = 60
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def store(tmp_path: Path) -> TimeSeries:
    """Three series of ten events each."""
    series = TimeSeries.create(tmp_path / "s", {"value": pa.int64()}, "unlimited")
    rows = {"series": [name for name in "abc" for _ in range(10)], "value": list(range(30))}
    series.append_many(pa.table(rows))
    return series


@pytest.fixture
def base(spark: SparkSession, store: TimeSeries) -> DataFrame:
    return spark.read.format("tseries").load(store.describe()["path"])


@pytest.fixture(params=["true", "false"], ids=["pushdown on", "pushdown off"])
def pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, request.param)
    yield
    spark.conf.unset(PUSHDOWN)


def test_a_view_over_a_store_that_grows_shows_what_was_added(
    spark: SparkSession, store: TimeSeries, base: DataFrame
) -> None:
    base.createOrReplaceTempView("growing")

    def counted() -> list[int]:
        by_sql = spark.sql("SELECT count(*) AS n FROM growing").collect()[0].n
        return [base.count(), len(base.collect()), by_sql, base.where("series = 'd'").count()]

    assert counted() == [30, 30, 30, 0]
    for n in range(1, 4):
        store.append("d", n)
        assert counted() == [30 + n, 30 + n, 30 + n, n]
    store.edit("d", 0, 9)
    assert base.where("original_sequence = 0").count() == 1
    assert counted() == [33, 33, 33, 3]


@pytest.mark.outside_ci
def test_an_evaluation_sees_a_commit_whole_or_not_at_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every commit has an event of each series, and several tasks read them, twice in a join."""
    series = TimeSeries.create(tmp_path / "s", {"value": pa.binary()}, auto_compact=False)
    names = [f"s{n:02}" for n in range(SERIES)]
    large = [secrets.token_bytes(2 * 1024 * 1024) for _ in names]
    series.append_many(pa.table({"series": names, "value": large}))
    base = spark.read.format("tseries").option("from", "sequence 0").load(str(tmp_path / "s"))
    base = base.select("series", "sequence")
    assert base.rdd.getNumPartitions() > 2
    stop = threading.Event()

    def grow() -> None:
        while not stop.is_set():
            series.append_many(pa.table({"series": names, "value": [b""] * SERIES}))

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        seen = []
        for _ in range(6):
            once, twice = (base.groupBy("series").agg(F.max("sequence").alias(n)) for n in "mn")
            seen.append(set(once.join(twice, "series").select("m", "n").collect()))
    finally:
        stop.set()
        writer.join()
    assert [len(pairs) for pairs in seen] == [1] * 6
    lasts = [row.m for ((row,),) in zip(seen, strict=True)]
    assert [(row.m, row.n) for ((row,),) in zip(seen, strict=True)] == [(n, n) for n in lasts]
    assert lasts == sorted(set(lasts))


@pytest.mark.usefixtures("pushdown")
def test_filters_of_an_earlier_query_do_not_stay(base: DataFrame) -> None:
    assert base.where("series = 'a'").count() == 10
    assert base.count() == 30
    assert base.where("series = 'b' OR value = 0").count() == 11
    assert base.where("series IN ('a', 'c')").count() == 20
    assert base.where("value > 25").count() == 4


@pytest.mark.usefixtures("pushdown")
def test_filters_of_one_side_of_a_join_do_not_hold_for_the_other(
    spark: SparkSession, base: DataFrame
) -> None:
    one, other = base.where("series = 'a'"), base.where("series = 'b'")
    assert one.union(other).count() == 20
    assert one.union(base).count() == 40
    assert base.union(one).count() == 40
    assert one.join(other.withColumnRenamed("series", "s2"), "sequence").count() == 10
    assert one.join(base.withColumnRenamed("series", "s2"), "sequence").count() == 30
    base.createOrReplaceTempView("base")
    found = spark.sql(
        "SELECT (SELECT count(*) FROM base WHERE series = 'a') AS some, count(*) AS n FROM base"
    )
    assert found.collect()[0].asDict() == {"some": 10, "n": 30}
