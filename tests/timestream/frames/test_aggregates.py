"""What `aggregate_windows` refuses before a query starts, and means of decimals."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from pyspark_timestream import aggregate_windows
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.frames.aggregates import divide_as_mean

pytestmark = pytest.mark.spark

SCHEMA = (
    "station string, minutes long, heat double, exact decimal(38,2), fine decimal(20,14), "
    "stops array<string>, folded string collate unicode_ci, start_time timestamp, cti timestamp"
)
HOUR = "1 hour"
COUNT = {"trips": "count"}


def read(spark: Any, schema: str = SCHEMA, **options: str) -> Any:
    reader = spark.readStream.format("timestream").option("transport", "kafka")
    reader = reader.option("kafka.bootstrap.servers", "nowhere:1").option("subscribe", "trips")
    reader = reader.option("valueFormat", "json").option("ctiFrequency", "1")
    return reader.options(**options).schema(schema)


def test_a_reader_stays_as_it_is(spark) -> None:
    reader = read(spark)
    before = reader.load().schema
    aggregates = {**COUNT, "sum": ("sum", "minutes"), "mean": ("avg", "minutes")}
    made = aggregate_windows(reader, HOUR, aggregates, by=["station"], slide="20 minutes")
    assert made.columns == ["station", "window", "trips", "sum", "mean"]
    assert reader.load().schema == before
    again = aggregate_windows(reader, HOUR, COUNT, by="station")
    assert again.columns == ["station", "window", "trips"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"window": "0 hours"}, "window='0 hours': accepted is more than nothing"),
        ({"window": "1 month"}, "month"),
        ({"slide": "2 hours"}, "slide='2 hours' is longer than window='1 hour'"),
        ({"slide": "-1 tick"}, "slide='-1 tick'"),
        ({"aggregates": {}}, "aggregates is empty"),
        ({"aggregates": {"a": "sum"}}, r"aggregates\['a'\]='sum': accepted are 'count'"),
        ({"aggregates": {"a": ("median", "minutes")}}, "'median'.*count, sum, min, max, avg, mean"),
        ({"aggregates": {"a": ("sum", "minutes", "heat")}}, r"aggregates\['a'\]"),
        ({"aggregates": {"a": ("sum", 1)}}, r"aggregates\['a'\]"),
        ({"aggregates": {"Window": "count"}}, "'window'.*rename the aggregate"),
        ({"aggregates": {"STATION": "count"}}, "'station'"),
        ({"by": ["station", "station"]}, "the name 'station'"),
        ({"by": ["start_time"]}, "names the event time"),
        ({"by": "CTI"}, "names the event time or 'cti'"),
    ],
)
def test_an_argument_without_meaning_is_refused(spark, given: dict[str, Any], said: str) -> None:
    arguments = {"window": HOUR, "aggregates": COUNT, "by": ["station"], **given}
    with pytest.raises(ValueError, match=said):
        aggregate_windows(read(spark), **arguments)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"aggregates": {"a": ("sum", "heat")}}, "depends on the order.*as a decimal.*groupBy"),
        ({"aggregates": {"a": ("avg", "heat")}}, "'heat' is double.*depends on the order"),
        ({"aggregates": {"a": ("avg", "exact")}}, r"decimal\(38,2\).*at most 28 digits"),
        ({"aggregates": {"a": ("mean", "fine")}}, r"decimal\(20,14\).*sum and count"),
        ({"aggregates": {"a": ("min", "stops")}}, "'stops' is list.*no min"),
        ({"aggregates": {"a": ("max", "folded")}}, "'folded' is string collate.*groupBy"),
        ({"aggregates": {"a": ("max", "speed")}}, "no column 'speed'; accepted: 'station'"),
        ({"by": ["stops"]}, "'stops' is list.*not folded"),
        ({"by": ["speed"]}, "no column 'speed'"),
        ({"event_time": "minutes"}, "'minutes' is LongType"),
        ({"event_time": "cti"}, "is the clock itself"),
    ],
)
def test_what_is_not_folded_is_refused_by_name(spark, given: dict[str, Any], said: str) -> None:
    arguments = {"window": HOUR, "aggregates": COUNT, **given}
    with pytest.raises(SchemaRefused, match=said):
        aggregate_windows(read(spark), **arguments)


def test_a_reader_without_ctis_or_of_another_format_is_refused(spark, tmp_path) -> None:
    rows = "station string, start_time timestamp"
    with pytest.raises(SchemaRefused, match=r"no column 'cti'.*ctiFrequency"):
        aggregate_windows(read(spark, rows), HOUR, COUNT)
    clock = spark.readStream.format("timestream")
    with pytest.raises(SchemaRefused, match="no column 'cti'"):
        aggregate_windows(clock, HOUR, COUNT)
    files = spark.readStream.format("json").schema(SCHEMA)
    for reader in (files.option("path", str(tmp_path)), spark.read.schema(SCHEMA).format("json")):
        with pytest.raises(SchemaRefused, match=r"not format 'timestream'.*groupBy"):
            aggregate_windows(reader.option("path", str(tmp_path)), HOUR, COUNT)


def test_a_mean_of_decimals_is_rounded_as_sparks_own(spark) -> None:
    draw = random.Random(7)
    kinds = [DecimalType(*kind) for kind in [(28, 13), (28, 0), (18, 2), (13, 13), (5, 4), (1, 0)]]
    for kind in kinds:
        top = 10**kind.precision - 1
        drawn = (draw.choice([draw.randint(-top, top), top, -top, 1, 0]) for _ in range(600))
        numbers = [Decimal(number).scaleb(-kind.scale) for number in drawn]
        rows = [(draw.randrange(80), None if draw.random() < 0.1 else each) for each in numbers]
        table = spark.createDataFrame([*rows, (99, None)], f"k int, v {kind.simpleString()}")
        total, count = F.sum("v"), F.count("v")
        found = table.groupBy("k").agg(
            F.avg("v").alias("plain"), divide_as_mean(kind, total, count).alias("ours")
        )
        assert found.schema["ours"].dataType == found.schema["plain"].dataType
        assert [row for row in found.collect() if row.plain != row.ours] == []
