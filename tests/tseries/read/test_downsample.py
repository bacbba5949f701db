"""Aggregates, fills and gaps, beside DuckDB and loops of a few lines (semantics 32.2 to 32.4)."""

import math
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tseries.queries import aggregate

from pyspark_timestream.core.instants import HOUR_US, MINUTE_US
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.buckets import parse_buckets
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.downsampling import (
    FILLS,
    FUNCTIONS,
    Downsampling,
    parse_aggregates,
    parse_fill,
)
from pyspark_tseries.read.downsample import find_gaps

SCHEMA = pa.schema(
    [
        ("whole", pa.int32()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("money", pa.decimal128(9, 2)),
        ("room", pa.string()),
    ]
)
START = 1_767_225_600_000_000

values = st.fixed_dictionaries(
    {
        "whole": st.none() | st.integers(-(2**31), 2**31 - 1),
        "real": st.none() | st.integers(-800, 800).map(lambda n: n / 8) | st.just(math.nan),
        "text": st.none() | st.text("abc", max_size=2),
        "money": st.none() | st.decimals(-1000, 1000, places=2),
        "room": st.none() | st.sampled_from("xy"),
    }
)
steps = st.lists(st.tuples(st.sampled_from([0, 1, 7, 40, 61, 300]), values), max_size=25)
stores = st.dictionaries(st.sampled_from(["a", "b", "c"]), steps, max_size=3)


def events_of(store: dict[str, list[tuple[int, dict[str, Any]]]]) -> pa.Table:
    rows = []
    for series in sorted(store):
        us = START
        for sequence, (minutes, row) in enumerate(store[series]):
            us += minutes * MINUTE_US
            rows.append({"series": series, "sequence": sequence, "timestamp": us, **row})
    schema = pa.schema(
        [("series", pa.string()), ("sequence", pa.int64()), ("timestamp", pa.int64()), *SCHEMA]
    )
    table = pa.Table.from_pylist(rows, schema)
    return table.set_column(2, "timestamp", table["timestamp"].cast(INSTANT))


def ask(table: pa.Table, width: str = "1 hour", group: str = "series", **named: Any) -> pa.Table:
    wanted = Downsampling(parse_buckets(width), parse_aggregates(SCHEMA, named), group)
    return aggregate(table, SCHEMA, wanted)


SQL = {
    "mean": "avg({})",
    "min": "min({})",
    "max": "max({})",
    "sum": "sum({})",
    "count": "count({})",
    "first": "arg_min({0}, (timestamp, series, sequence)) FILTER ({0} IS NOT NULL)",
    "last": "arg_max({0}, (timestamp, series, sequence)) FILTER ({0} IS NOT NULL)",
    "median": "quantile_cont(CAST({} AS DOUBLE), 0.5)",
    0.9: "quantile_cont(CAST({} AS DOUBLE), 0.9)",
}
QUESTIONS = [
    (column, function)
    for column, functions in {
        "whole": SQL,
        "real": SQL,
        "money": SQL,
        "text": ["min", "max", "count", "first", "last"],
    }.items()
    for function in functions
]


def is_close(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, float):
        same = math.isnan(one) and math.isnan(other)
        return same or math.isclose(one, float(other), rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


@pytest.mark.thorough
@pytest.mark.parametrize("group", ["series", "room"])
@given(stores, st.sampled_from(["15 minutes", "1 hour", "1 day", "1 month"]))
def test_aggregates_are_those_of_duckdb(
    group: str, store: dict[str, list[tuple[int, dict[str, Any]]]], width: str
) -> None:
    events = events_of(store)
    named = {f"c{number}": question for number, question in enumerate(QUESTIONS)}
    found = ask(events, width, group, n=("*", "count"), **named)
    columns = ", ".join(
        f"{SQL[function].format(column)} AS {name}" for name, (column, function) in named.items()
    )
    wanted = duckdb.sql(
        f"""SELECT {group}, time_bucket(INTERVAL '{width}', timestamp) AS timestamp, count(*) AS n,
        {columns} FROM events GROUP BY 1, 2 ORDER BY 1 NULLS LAST, 2"""
    ).to_arrow_table()
    assert found[group].to_pylist() == wanted[group].to_pylist()
    assert to_int64(found["timestamp"]).tolist() == to_int64(wanted["timestamp"]).tolist()
    for name in ("n", *named):
        pairs = zip(found[name].to_pylist(), wanted[name].to_pylist(), strict=True)
        assert all(is_close(one, other) for one, other in pairs), named.get(name)


def test_every_aggregate_has_an_oracle() -> None:
    tested = {function for function in SQL if isinstance(function, str)}
    assert tested | {"time_weighted_mean"} == set(FUNCTIONS)


@given(stores)
def test_a_value_holds_until_the_next_one_in_the_time_weighted_mean(
    store: dict[str, list[tuple[int, dict[str, Any]]]],
) -> None:
    events = events_of(store)
    found = ask(events, mean=("real", "time_weighted_mean"))
    rows = events.to_pylist()
    for bucket in found.to_pylist():
        start = bucket["timestamp"]
        mine = [r for r in rows if r["series"] == bucket["series"] and r["real"] is not None]
        total = covered = 0.0
        for minute in range(60):
            at = start + timedelta(minutes=minute)
            before = [r for r in mine if r["timestamp"] <= at]
            if before:
                total, covered = total + before[-1]["real"], covered + 1
        wanted = total / covered if covered else None
        assert is_close(bucket["mean"], wanted)


def fill_by_loop(
    rows: list[dict[str, Any]], name: str, fill: Any, low: int, high: int
) -> list[tuple[int, Any]]:
    """One series' buckets of an hour and a column's values, filled one after the other."""
    known = {to_us(row["timestamp"]): row[name] for row in rows}
    result: list[tuple[int, Any]] = []
    for at in range(low, high + 1, HOUR_US):
        value = known.get(at)
        if at not in known and name == "n":
            value = 0
        elif at not in known and fill == "previous":
            value = result[-1][1] if result else None
        elif at not in known and fill == "linear":
            before = [us for us, v in known.items() if us < at and v is not None]
            after = [us for us, v in known.items() if us > at and v is not None]
            if before and after:
                a, b = max(before), min(after)
                value = known[a] + (known[b] - known[a]) * (at - a) / (b - a)
        elif at not in known and fill != "null":
            value = fill
        result.append((at, value))
    return result


def to_us(moment: Any) -> int:
    return int(pa.scalar(moment, INSTANT).cast(pa.int64()).as_py())


@pytest.mark.parametrize("fill", [*FILLS, 1.5])
@given(stores, st.sampled_from([(None, None), (-3, 20), (None, 15), (2, None)]))
def test_fills_are_those_of_a_loop(
    fill: Any,
    store: dict[str, list[tuple[int, dict[str, Any]]]],
    hours: tuple[int | None, int | None],
) -> None:
    ends = tuple(None if h is None else START + h * HOUR_US for h in hours)
    low, high = ends
    events = events_of(store)
    us = to_int64(events["timestamp"])
    keep = (us >= (low if low is not None else us.min(initial=0))) & (
        us <= (high if high is not None else us.max(initial=0))
    )
    events = events.filter(pa.array(keep))
    named = parse_aggregates(SCHEMA, {"real": "max", "n": ("*", "count")})
    parse_fill(fill, SCHEMA, named)
    plain = Downsampling(parse_buckets("1 hour"), named)
    filled = Downsampling(parse_buckets("1 hour"), named, "series", fill, is_filled=True)
    rows = aggregate(events, SCHEMA, plain).to_pylist()
    found = aggregate(events, SCHEMA, filled, (low, high)).to_pylist()
    for series in {row["series"] for row in rows}:
        mine = [row for row in rows if row["series"] == series]
        first = to_us(mine[0]["timestamp"]) if low is None else low // HOUR_US * HOUR_US
        last = to_us(mine[-1]["timestamp"]) if high is None else high // HOUR_US * HOUR_US
        for name in ("real", "n"):
            wanted = fill_by_loop(mine, name, fill, first, last)
            got = [(to_us(r["timestamp"]), r[name]) for r in found if r["series"] == series]
            assert [at for at, _ in got] == [at for at, _ in wanted]
            assert all(is_close(a, b) for (_, a), (_, b) in zip(got, wanted, strict=True))


@given(stores, st.integers(0, 400))
def test_gaps_are_those_between_neighbours(
    store: dict[str, list[tuple[int, dict[str, Any]]]], minutes: int
) -> None:
    events = events_of(store)
    found = find_gaps(events, minutes * MINUTE_US).to_pylist()
    wanted = []
    rows = events.to_pylist()
    for one, other in pairwise(rows):
        length = other["timestamp"] - one["timestamp"]
        if one["series"] == other["series"] and length > timedelta(minutes=minutes):
            ends = {"start": one["timestamp"], "end": other["timestamp"], "length": length}
            wanted.append({"series": one["series"], **ends})
    assert found == wanted


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({}, "no aggregate is named"),
        ({"celsius": "mean"}, "no value column 'celsius'"),
        ({"real": "average"}, "'average' is not an aggregate"),
        ({"real": 1.5}, "1.5 is not a quantile"),
        ({"real": True}, "True is not an aggregate"),
        ({"text": "mean"}, "column 'text' .string. has no mean"),
        ({"series": ("real", "mean")}, "a column of events is called 'series'"),
        ({"original_timestamp": ("real", "mean")}, "is called 'original_timestamp'"),
        ({"real": ("*", "sum")}, "no value column '*'"),
    ],
)
def test_what_is_no_aggregate_is_refused(named: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidQuery, match=said) as raised:
        parse_aggregates(SCHEMA, named)
    assert raised.value.next_step


@pytest.mark.parametrize("fill", ["linear", "average", 3.5, np.array([1.0, 2.0])])
def test_a_fill_that_a_column_cannot_hold_is_refused(fill: Any) -> None:
    named = parse_aggregates(SCHEMA, {"money": "max", "whole": "max"})
    with pytest.raises(InvalidQuery, match=r"column '(money|whole)'"):
        parse_fill(fill, SCHEMA, named)


@pytest.mark.parametrize(
    ("data_type", "fill"), [(pa.float64(), True), (pa.int8(), True), (pa.list_(pa.int64()), b"x")]
)
def test_a_fill_is_made_of_nothing_of_another_kind(data_type: pa.DataType, fill: Any) -> None:
    """Arrow makes 1.0 of True, and [120] of bytes."""
    schema = pa.schema([("a", data_type)])
    with pytest.raises(InvalidQuery, match="cannot hold the fill") as refused:
        parse_fill(fill, schema, parse_aggregates(schema, {"a": "last"}))
    assert ("'linear'" in str(refused.value)) == (not pa.types.is_nested(data_type))


def test_a_fraction_fills_no_column_of_whole_numbers() -> None:
    named = parse_aggregates(SCHEMA, {"real": "max", "whole": "max"})
    with pytest.raises(InvalidQuery, match=r"column 'whole' \(int32\) cannot hold the fill 1.5"):
        parse_fill(1.5, SCHEMA, named)
    parse_fill(2.0, SCHEMA, named)


def test_a_sum_that_64_bits_do_not_hold_is_refused_by_name() -> None:
    schema = pa.schema([("n", pa.int64())])
    table = pa.table(
        {
            "series": ["a"] * 2,
            "sequence": [0, 1],
            "timestamp": pa.array([START, START]).cast(INSTANT),
            "n": pa.array([2**63 - 1, 1]),
        }
    )
    wanted = Downsampling(parse_buckets("1 hour"), parse_aggregates(schema, {"n": "sum"}))
    with pytest.raises(InvalidQuery, match="column 'n' does not fit 64 bits"):
        aggregate(table, schema, wanted)
    mean = Downsampling(parse_buckets("1 hour"), parse_aggregates(schema, {"n": "mean"}))
    assert aggregate(table, schema, mean)["n"].to_pylist() == [float(2**62)]


@pytest.mark.parametrize(
    ("values", "quantile", "wanted"),
    [
        ([math.inf, math.inf], 0.5, math.inf),
        ([-math.inf, 1.0], 0.9, -math.inf),
        ([1.0, math.inf], 0.1, math.inf),
        ([-1.5e308, 1.5e308], 0.5, 0.0),
        ([-1.5e308, 1.5e308], 1.0, 1.5e308),
    ],
)
def test_a_quantile_of_extreme_values_lies_on_the_line_between_them(
    values: list[float], quantile: float, wanted: float
) -> None:
    table = events_of({"a": [(0, {"real": value}) for value in values]})
    assert ask(table, real=quantile)["real"].to_pylist() == [wanted]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("kind", "ends", "wanted"),
    [
        (pa.int64(), (2**63 - 1, -(2**63)), [2**63 - 1, (2**64 // 3) - 2**63, -(2**63)]),
        (pa.int64(), (2**53 + 1, 2**53 + 4), [2**53 + 1, 2**53 + 3, 2**53 + 4]),
        (pa.int64(), (2**63 - 1, 2**63 - 1), [2**63 - 1] * 3),
        (pa.int8(), (-128, 127), [-128, 42, 127]),
        (pa.float64(), (9e37, 9e37), [9e37] * 3),
        (pa.float64(), (-math.inf, 1.0), [-math.inf, -math.inf, 1.0]),
        (pa.float64(), (-1.5e308, 1.5e308), [-1.5e308, 0.5e308, 1.5e308]),
    ],
)
def test_a_fill_on_the_line_between_extreme_values_is_on_it(
    kind: pa.DataType, ends: tuple[Any, Any], wanted: list[Any]
) -> None:
    schema = pa.schema([("n", kind)])
    table = pa.table(
        {
            "series": ["a"] * 2,
            "sequence": [0, 1],
            "timestamp": pa.array([START, START + 3 * HOUR_US]).cast(INSTANT),
            "n": pa.array(ends, kind),
        }
    )
    named = parse_aggregates(schema, {"n": "last"})
    filled = Downsampling(parse_buckets("1 hour"), named, "series", "linear", is_filled=True)
    first, _, third, last = aggregate(table, schema, filled)["n"].to_pylist()
    assert (first, last) == (wanted[0], wanted[2])
    assert third == pytest.approx(wanted[1], rel=1e-15)


wholes = st.integers(-(2**63), 2**63 - 1)


@given(wholes, wholes, st.sampled_from([3, 7, 610]))
def test_a_fill_on_the_line_between_whole_numbers_is_the_nearest(
    low: int, high: int, hours: int
) -> None:
    """A double holds 53 bits: beyond 2^50 its product with a fraction is not the nearest."""
    schema = pa.schema([("n", pa.int64())])
    table = pa.table(
        {
            "series": ["a"] * 2,
            "sequence": [0, 1],
            "timestamp": pa.array([START, START + hours * HOUR_US]).cast(INSTANT),
            "n": [low, high],
        }
    )
    named = parse_aggregates(schema, {"n": "last"})
    filled = Downsampling(parse_buckets("1 hour"), named, "series", "linear", is_filled=True)
    found = aggregate(table, schema, filled)["n"].to_pylist()
    for hour, value in enumerate(found):
        assert abs(low + Fraction(high - low) * hour / hours - value) <= Fraction(1, 2)


@pytest.mark.parametrize("name", ["state", "us", "count", "start", "group", "first", "index"])
def test_a_column_may_have_any_name(name: str) -> None:
    rows = [(0, {"real": 5.0}), (20, {"real": 1.0}), (20, {"real": 3.0})]
    events = events_of({"a": rows, "b": rows})
    asked = {f"c{n}": function for n, function in enumerate([*FUNCTIONS, 0.9])}
    wanted = ask(events, **{key: ("real", function) for key, function in asked.items()})
    schema = pa.schema([(name, pa.float64())])
    named = parse_aggregates(schema, {key: (name, function) for key, function in asked.items()})
    renamed = events.select(["series", "sequence", "timestamp", "real"]).rename_columns(
        ["series", "sequence", "timestamp", name]
    )
    found = aggregate(renamed, schema, Downsampling(parse_buckets("1 hour"), named))
    assert found.to_pylist() == wanted.to_pylist()


def test_a_column_that_is_named_as_all_events_are_has_no_aggregates() -> None:
    schema = pa.schema([("*", pa.float64())])
    with pytest.raises(InvalidQuery, match=r"no value column '\*'"):
        parse_aggregates(schema, {"m": ("*", "mean")})


def test_tags_that_are_equal_are_one_group() -> None:
    schema = pa.schema([("tag", pa.float64())])
    other_nan = np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0]
    tags = [0.0, -0.0, math.nan, other_nan, None, -0.0]
    table = pa.table(
        {
            "series": list("abcdef"),
            "sequence": [0] * 6,
            "timestamp": pa.array([START] * 6).cast(INSTANT),
            "tag": pa.array(tags, pa.float64(), from_pandas=False),
        }
    )
    named = parse_aggregates(schema, {"n": ("*", "count")})
    found = aggregate(table, schema, Downsampling(parse_buckets("1 hour"), named, "tag"))
    assert found["n"].to_pylist() == [3, 2, 1]
    zero, nan, null = found["tag"].to_pylist()
    assert (math.copysign(1, zero), math.isnan(nan), null) == (1, True, None)


def test_no_events_give_no_rows_with_the_columns_of_others() -> None:
    empty = events_of({})
    one = events_of({"a": [(0, {"real": 1.0})]})
    named = {f"c{n}": q for n, q in enumerate(QUESTIONS)} | {"t": ("real", "time_weighted_mean")}
    assert ask(empty, **named).schema == ask(one, **named).schema
    assert not ask(empty, **named).num_rows
    assert np.isfinite(ask(one, t=("real", "time_weighted_mean"))["t"][0].as_py())
