"""Refusals of `aggregate_windows` before a query starts, and means of decimals."""

from __future__ import annotations

import random
from decimal import Decimal
from math import inf, isnan, nan
from typing import Any

import pyarrow as pa
import pytest
from lengths import outside_ci
from pyspark.errors import ArithmeticException
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from pyspark_timestream import advance_time, aggregate_windows
from pyspark_timestream.core.arrow import INSTANT
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.frames import aggregates as module
from pyspark_timestream.frames.aggregates import divide_as_mean
from pyspark_timestream.rules.window_fold import FOLD, fold_rows

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
        ({"slide": "2 hours"}, "slide='2 hours' is longer than window='1 hour'"),
        ({"aggregates": {}}, "aggregates is empty"),
        ({"aggregates": {"a": "sum"}}, r"aggregates\['a'\]='sum': accepted are 'count'"),
        ({"aggregates": {"a": ("median", "minutes")}}, "'median'.*count, sum, min, max, avg, mean"),
        ({"aggregates": {"a": ("sum", "minutes", "heat")}}, r"aggregates\['a'\]"),
        ({"aggregates": {"a": ("sum", 1)}}, r"aggregates\['a'\]"),
        ({"aggregates": {"a": None}}, r"aggregates\['a'\]=None"),
        ({"aggregates": "count"}, "aggregates='count': accepted is a mapping"),
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


def test_a_column_where_its_name_belongs_is_refused(spark) -> None:
    for argument, column in {"by": F.col("station"), "event_time": F.col("start_time")}.items():
        with pytest.raises(SchemaRefused, match=f"{argument}=Column.* and not the name of a"):
            aggregate_windows(read(spark), HOUR, COUNT, **{argument: column})
    with pytest.raises(ValueError, match=r"aggregates\['trips'\]=Column"):
        aggregate_windows(read(spark), HOUR, {"trips": F.count("*")})


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
        ({"event_time": "minutes"}, "'minutes' is bigint"),
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


class Folding:
    """Reads the rows of a table, and folds them in pieces as the tasks of a source do."""

    def __init__(self, spark: Any, rows: pa.Table, draw: random.Random) -> None:
        self._spark, self._rows, self._draw, self._text = spark, rows, draw, ""

    def schema(self, _: object) -> Folding:
        return self

    def option(self, _: str, text: str) -> Folding:
        self._text = text
        return self

    def load(self) -> Any:
        rows, fold = self._rows, FOLD.parse(self._text)
        if fold is None:
            return self._spark.createDataFrame(rows)
        cuts = sorted(self._draw.randrange(len(rows) + 1) for _ in range(4))
        tasks = [
            rows.slice(begin, end - begin).to_batches(max_chunksize=7)
            for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)
        ]
        folded = [each for task in tasks for each in fold_rows(fold, rows.schema, task)]
        made = pa.Table.from_batches(folded, fold.build_schema(rows.schema))
        return self._spark.createDataFrame(made)


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [1, -128, 127]),
    "whole": (pa.int64(), [1, -5, 2**40]),
    "large": (pa.int64(), [2**63 - 1, -(2**63), 1]),
    "float": (pa.float32(), [0.0, -0.0, 1.5, nan]),
    "double": (pa.float64(), [0.0, -0.0, nan, inf, -inf]),
    "text": (pa.string(), ["", "a", "B", "\uffee", "\U0001f600"]),
    "raw": (pa.binary(), [b"", b"\xff", b"a"]),
    "open": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [0, -1, 19000]),
    "seen": (INSTANT, [0, -1, 10**15]),
    "money": (pa.decimal128(18, 6), [Decimal("999999999999.999999"), Decimal("-0.000001")]),
    "wide": (pa.decimal128(38, 10), [Decimal("9" * 27 + ".5"), Decimal("-1.5")]),
    "od`d.x": (pa.int32(), [1, 2, None]),
}
FUNCTIONS = {"count": F.count, "min": F.min, "max": F.max, "sum": F.sum, "avg": F.avg}


def in_order(frame: Any) -> list[tuple[str, ...]]:
    def show(value: Any) -> str:
        # Spark gives any zero and any NaN of a group.
        is_odd = isinstance(value, float) and (value == 0 or isnan(value))
        return str(abs(value)) if is_odd else repr(value)

    return sorted(tuple(map(show, row)) for row in frame.collect())


@pytest.mark.parametrize(
    ("window", "slide", "by"),
    [
        ("1 hour", None, ["double", "float"]),
        ("7 seconds", "3 seconds", ["money", "text"]),
        *outside_ci(("90 minutes", "1 hour", ["od`d.x", "day", "open"]), ("3 seconds", None, [])),
    ],
)
def test_folded_aggregates_of_any_type_and_key_are_those_of_spark(
    spark: Any, monkeypatch: pytest.MonkeyPatch, window: str, slide: str | None, by: list[str]
) -> None:
    monkeypatch.setattr(module, "_check_format", lambda rows: None)
    draw = random.Random(window)
    times = [draw.choice([None, draw.randrange(-9_000_000, 9_000_000)]) for _ in range(200)]
    columns = {
        name: pa.array([draw.choice([None, *values]) for _ in times], kind)
        for name, (kind, values) in {"start_time": (INSTANT, times), **VALUES}.items()
    }
    rows = pa.table({**columns, "cti": pa.nulls(len(times), INSTANT)})
    sums = ["tiny", "whole", "money", "od`d.x"]
    asked = {f"{f} {name}": (f, name) for name in VALUES for f in ("count", "min", "max")}
    asked |= {f"{f} {name}": (f, name) for name in sums for f in ("sum", "avg")}
    asked["sum wide"] = ("sum", "wide")
    quote = lambda name: "`" + name.replace("`", "``") + "`"  # noqa: E731
    plain = advance_time(spark.createDataFrame(rows)).groupBy(
        *map(quote, by), F.window("start_time", window, slide).alias("window")
    )
    expected = plain.agg(*[FUNCTIONS[f](quote(c)).alias(name) for name, (f, c) in asked.items()])
    found = aggregate_windows(Folding(spark, rows, draw), window, asked, by, slide)  # type: ignore[arg-type]
    assert [(f.name, f.dataType) for f in found.schema] == [
        (f.name, f.dataType) for f in expected.schema
    ]
    assert in_order(found) == in_order(expected) != []


@pytest.mark.parametrize("column", ["large", "wide"])
def test_a_folded_sum_that_is_too_large_is_as_in_spark(
    spark: Any, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(module, "_check_format", lambda rows: None)
    kind, (most, *_) = VALUES[column]
    most = Decimal("9" * 28) if column == "wide" else most
    columns = {"start_time": pa.array([1] * 5, INSTANT), column: pa.array([most] * 5, kind)}
    rows = pa.table({**columns, "cti": pa.nulls(5, INSTANT)})

    def add() -> Any:
        reader: Any = Folding(spark, rows, random.Random(1))
        return aggregate_windows(reader, HOUR, {"sum": ("sum", column)}).collect()[0]["sum"]

    before = spark.conf.get("spark.sql.ansi.enabled")
    try:
        spark.conf.set("spark.sql.ansi.enabled", "true")
        with pytest.raises(ArithmeticException):
            add()
        spark.conf.set("spark.sql.ansi.enabled", "false")
        assert add() == spark.createDataFrame(rows).agg(F.sum(column)).collect()[0][0]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
