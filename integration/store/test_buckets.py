"""Options for buckets and newest values through Spark itself: the rows equal the client's."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tseries.deliveries import AUTUMN, Deliveries

from pyspark_tseries import TimeSeries

CELLS = {"celsius": 1.5, "n": 3, "room": "x"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Deliveries:
    made = Deliveries(str(tmp_path_factory.mktemp("buckets") / "s"), begin=AUTUMN)
    rows = [(name, 40, {**CELLS, "n": n}) for n in range(60) for name in ("a", "b")]
    return made.run([("append", rows), ("edit", "a", 3, {**CELLS, "celsius": 9.0}), ("compact",)])


def read(spark: SparkSession, store: Deliveries, **options: str) -> DataFrame:
    return spark.read.format("tseries").options(**options).load(store.path)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in frame.orderBy("series", "timestamp").collect()]
    return [{**row, "timestamp": row["timestamp"].timestamp()} for row in rows]


def test_every_timezone_aggregate_and_fill_are_those_of_the_client(
    spark: SparkSession, store: Deliveries
) -> None:
    series: TimeSeries = store.series
    for width, zone in (("1 hour", "Europe/Berlin"), ("1 day", "Europe/Berlin"), ("1 day", None)):
        given = {"every": width, "aggregate": "celsius mean, n = n max, events = count"}
        given |= {"fill": "previous"} | ({} if zone is None else {"timezone": zone})
        query = series.range_query().every(width, zone).fill("previous")
        named = {"celsius": "mean", "n": "max", "events": ("*", "count")}
        wanted = query.aggregate(**named).select_from().to_arrow().to_pylist()
        wanted = [{**row, "timestamp": row["timestamp"].timestamp()} for row in wanted]
        assert rows_of(read(spark, store, **given)) == wanted
        # The same, of one series and of some columns.
        some = read(spark, store, series="a", **given).select("timestamp", "events").count()
        assert some == len([row for row in wanted if row["series"] == "a"])


def test_latest_is_the_newest_of_each_series(spark: SparkSession, store: Deliveries) -> None:
    found = read(spark, store, latest="2").select("series", "sequence").collect()
    events = store.series.range_query().from_last(2).select_from().to_arrow()
    pairs = zip(events["series"].to_pylist(), events["sequence"].to_pylist(), strict=True)
    assert sorted(tuple(row) for row in found) == list(pairs)
