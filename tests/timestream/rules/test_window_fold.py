"""Partial rows of windows: Spark gets the same sums from any way of folding."""

import itertools
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.rules import window_fold
from pyspark_timestream.rules.window_fold import FOLD, Partial, WindowFold, fold_rows

INSTANT = pa.timestamp("us", tz="UTC")
ROWS = pa.schema(
    [
        ("start_time", INSTANT),
        ("cti", INSTANT),
        ("violation", pa.string()),
        ("station", pa.string()),
        ("line", pa.float64()),
        ("whole", pa.int64()),
        ("money", pa.decimal128(38, 2)),
        ("number", pa.float64()),
        ("small", pa.float32()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("open", pa.bool_()),
        ("day", pa.date32()),
    ]
)
PARTIALS = (
    Partial("count"),
    *(Partial("count", name) for name in ("whole", "name")),
    *(Partial("sum", name) for name in ("whole", "money")),
    *(
        Partial(function, name)
        for name in ("whole", "money", "number", "small", "name", "raw", "open", "day")
        for function in ("min", "max")
    ),
)
FOLD_OF_ALL = WindowFold("start_time", 10, ("station", "line"), PARTIALS, "{}")
NUMBERS = st.sampled_from([None, 0.0, -0.0, 1.5, -2.5, math.nan, -math.nan, math.inf, -math.inf])
WHOLES = st.none() | st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63), 2**62])
MONEY = st.none() | st.sampled_from(["0.01", "-7.50", "9" * 36 + ".99", "-" + "9" * 36 + ".99"])
DATA = st.fixed_dictionaries(
    {
        "start_time": st.none() | st.integers(-25, 60),
        "cti": st.just(None),
        "violation": st.sampled_from([None, None, None, "adjusted", "late", "malformed"]),
        "station": st.sampled_from([None, "", "a", "b"]),
        "line": NUMBERS,
        "whole": WHOLES,
        "money": MONEY.map(lambda text: None if text is None else Decimal(text)),
        "number": NUMBERS,
        "small": NUMBERS,
        "name": st.sampled_from([None, "", "a", "\U0001f600", "￿", "z"]),
        "raw": st.sampled_from([None, b"", b"\x80", b"\x7f", b"\xff\x00"]),
        "open": st.sampled_from([None, True, False]),
        "day": st.none() | st.integers(-2, 2),
    }
)
CTI_ROWS = st.integers(0, 60).map(lambda us: {**dict.fromkeys(ROWS.names), "cti": us})
Group = tuple[Any, ...]


def order(value: Any) -> Any:
    """As Spark orders values: NaN is the greatest number, and both zeros are one."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    return value.encode() if isinstance(value, str) else value


def add(function: str, values: Iterable[Any]) -> Any:
    """Spark's results for the values of a group, partial ones or rows'."""
    there = [value for value in values if value is not None]
    if function == "count":
        return len(there)
    if not there:
        return None
    if function == "sum":
        return sum(there)
    return (min if function == "min" else max)(order(value) for value in there)


def expect(rows: list[dict[str, Any]]) -> dict[Group, list[Any]]:
    """Pane and key -> its values, of the rows that `advance_time` and `window` leave."""
    kept = [
        row
        for row in rows
        if row["cti"] is None
        and row["start_time"] is not None
        and row["violation"] in (None, "adjusted")
    ]
    groups: dict[Group, list[dict[str, Any]]] = {}
    for row in kept:
        key = (row["start_time"] // 10, row["station"], order(row["line"]))
        groups.setdefault(key, []).append(row)
    return {
        key: [
            add(p.function, [1 if p.column is None else row[p.column] for row in group])
            for p in PARTIALS
        ]
        for key, group in groups.items()
    }


def merge(folded: list[dict[str, Any]]) -> dict[Group, list[Any]]:
    """Pane and key -> the values that Spark makes of partial rows."""
    groups: dict[Group, list[dict[str, Any]]] = {}
    for row in folded:
        key = (row["start_time"] // 10, row["station"], order(row["line"]))
        groups.setdefault(key, []).append(row)
    names = FOLD_OF_ALL.name_partials()
    return {
        key: [
            add("sum" if p.function == "count" else p.function, [row[name] for row in group])
            for p, name in zip(PARTIALS, names, strict=True)
        ]
        for key, group in groups.items()
    }


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = [pa.array([row[f.name] for row in rows], f.type) for f in ROWS]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def read(batches: Iterable[pa.RecordBatch]) -> tuple[list[dict[str, Any]], list[int]]:
    """The partial rows and the CTIs, times as microseconds."""
    table = pa.Table.from_batches(list(batches), FOLD_OF_ALL.build_schema(ROWS))
    for place, each in enumerate(table.schema):
        if each.type == INSTANT or pa.types.is_date32(each.type):
            number = pa.int64() if each.type == INSTANT else pa.int32()
            table = table.set_column(place, each.name, table[each.name].cast(number))
    rows = table.to_pylist()
    ctis = [row["cti"] for row in rows if row["cti"] is not None]
    for row in rows:
        others = [value for name, value in row.items() if name != "cti"]
        assert row["cti"] is None or others == [None] * len(others)
    return [row for row in rows if row["cti"] is None], ctis


@given(st.lists(DATA | CTI_ROWS, max_size=30), st.data())
def test_partial_rows_of_any_cut_add_up_to_those_of_the_rows(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    bounds = itertools.pairwise([0, *cuts, len(rows)])
    tasks = [fold_rows(FOLD_OF_ALL, ROWS, [batch(rows[a:b])]) for a, b in bounds]
    folded, ctis = read(each for task in tasks for each in task)
    assert merge(folded) == expect(rows)
    greatest = max((row["cti"] for row in rows if row["cti"] is not None), default=None)
    assert max(ctis, default=None) == greatest
    assert len(ctis) <= len(cuts) + 1


@given(st.lists(DATA, max_size=30), st.integers(1, 5), st.integers(1, 30))
def test_rows_are_folded_a_bounded_number_at_a_time(
    rows: list[dict[str, Any]], size: int, most: int
) -> None:
    batches = [batch(rows[at : at + size]) for at in range(0, len(rows), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_fold, "_MOST_ROWS", most)
        folded, _ = read(fold_rows(FOLD_OF_ALL, ROWS, batches))
    assert merge(folded) == expect(rows)


@given(st.lists(DATA, min_size=1, max_size=30))
def test_a_partial_row_lies_in_the_pane_of_its_rows(rows: list[dict[str, Any]]) -> None:
    folded, _ = read(fold_rows(FOLD_OF_ALL, ROWS, [batch(rows)]))
    panes = {row["start_time"] // 10 for row in rows if row["start_time"] is not None}
    given_us = {row["start_time"] for row in rows}
    for row in folded:
        assert row["start_time"] // 10 in panes
        # The message about a row before 1970 names the time of a row.
        assert row["start_time"] >= 0 or row["start_time"] in given_us


def test_no_partial_sum_leaves_its_type() -> None:
    many = {**dict.fromkeys(ROWS.names), "start_time": 1, "whole": 2**62}
    folded, _ = read(fold_rows(FOLD_OF_ALL, ROWS, [batch([many, many, many])]))
    place = FOLD_OF_ALL.name_partials()[PARTIALS.index(Partial("sum", "whole"))]
    assert [row[place] for row in folded] == [2**62] * 3
    few = {**many, "whole": 2**60}
    folded, _ = read(fold_rows(FOLD_OF_ALL, ROWS, [batch([few, few, few])]))
    assert [row[place] for row in folded] == [3 * 2**60]


def test_no_partial_sum_of_decimals_leaves_its_type_by_the_last_of_its_digits() -> None:
    """A third of 10^38, rounded up: Spark says of the sum that it is too large."""
    fold = WindowFold("start_time", 10, (), (Partial("sum", "money"),), "")
    rows = pa.schema([("start_time", INSTANT), ("cti", INSTANT), ("money", pa.decimal128(38, 0))])
    third = Decimal("33333333333333333333333333333333333334")
    row = {"start_time": 1, "cti": None, "money": third}
    folded = list(fold_rows(fold, rows, [pa.RecordBatch.from_pylist([row] * 3, rows)]))
    (place,) = fold.name_partials()
    assert [value.as_py() for part in folded for value in part[place]] == [third] * 3


def test_many_rows_of_few_keys_become_few_rows() -> None:
    row = {**dict.fromkeys(ROWS.names), "start_time": 1, "station": "a", "whole": 3}
    batches = [batch([row] * 1000)] * 300
    folded = list(fold_rows(FOLD_OF_ALL, ROWS, batches))
    assert sum(map(len, folded)) <= 3


def test_rows_are_folded_beside_some_with_times_far_away() -> None:
    row = {**dict.fromkeys(ROWS.names), "start_time": 10**15, "station": "a", "whole": 3}
    far = [{**row, "start_time": us} for us in (-7, -6, 0, 9, 4 * 10**15)]
    folded, _ = read(fold_rows(FOLD_OF_ALL, ROWS, [batch([*far, *[row] * 1000])]))
    times = [(row["start_time"], row[FOLD_OF_ALL.name_partials()[0]]) for row in folded]
    assert sorted(times) == [(-7, 1), (-6, 1), (0, 2), (10**15, 1000), (4 * 10**15, 1)]


def test_rows_of_many_keys_are_folded() -> None:
    """Their codes are renumbered, since all pairs of keys would have too many."""
    rows = [
        {**dict.fromkeys(ROWS.names), "start_time": n % 20, "station": str(n), "line": float(n)}
        for n in range(40)
    ]
    folded, _ = read(fold_rows(FOLD_OF_ALL, ROWS, [batch(rows * 5)]))
    assert len(folded) == 40
    assert merge(folded) == expect(rows * 5)


@pytest.mark.parametrize("digits", [2, 16, 17, 30])
def test_decimals_of_any_size_are_folded_as_they_are(digits: int) -> None:
    """Arrow adds numbers with more than 64 bits, in themselves or as sums."""
    money = [Decimal(sign * (10**digits + n)) / 100 for n in range(2) for sign in (-1, 1, 1)]
    rows = [
        {**dict.fromkeys(ROWS.names), "start_time": 1, "station": name, "money": each}
        for each in [*money * 200, None]
        for name in ("b", "a")
    ]
    parts = batch(rows)
    folded, _ = read(fold_rows(FOLD_OF_ALL, ROWS, [parts.slice(0, 7), parts.slice(7)]))
    assert len(folded) == 2
    assert merge(folded) == expect(rows)


def test_values_of_any_type_are_counted() -> None:
    rows = ROWS.append(pa.field("list", pa.list_(pa.struct([("a", pa.int32())]))))
    fold = WindowFold("start_time", 10, (), (Partial("count", "list"), Partial("count")), "{}")
    columns = [pa.nulls(3, each.type) for each in rows]
    columns[0] = pa.array([1, 2, 3]).cast(INSTANT)
    columns[-1] = pa.array([[{"a": 1}], None, []], rows.types[-1])
    (folded,) = fold_rows(fold, rows, [pa.RecordBatch.from_arrays(columns, schema=rows)])
    assert [folded[name].to_pylist() for name in fold.name_partials()] == [[2], [3]]


def test_names_of_partial_columns_are_no_other_columns() -> None:
    fold = WindowFold("partial_0", 1, ("Partial0",), (Partial("count"),), "{}")
    (name,) = fold.name_partials()
    assert name not in ("partial_0", "partial0")
    assert not name.startswith("partial0")


@pytest.mark.parametrize(
    ("partial", "by", "said"),
    [
        (Partial("sum", "number"), (), "depends on the order.*declare 'number' as a decimal"),
        (Partial("sum", "small"), (), "depends on the order"),
        (Partial("sum", "name"), (), "'name' is string, which has no sum"),
        (Partial("min", "list"), (), "no min; accepted: min and max of numbers"),
        (Partial("max", "absent"), (), "no column 'absent'; accepted: 'start_time', 'cti'"),
        (Partial("count"), ("list",), "'list' is list.*not folded.*groupBy"),
        (Partial("count"), ("absent",), "no column 'absent'"),
    ],
)
def test_what_does_not_fold_is_refused_by_name(
    partial: Partial, by: tuple[str, ...], said: str
) -> None:
    rows = ROWS.append(pa.field("list", pa.list_(pa.int32())))
    with pytest.raises(SchemaRefused, match=said):
        WindowFold("start_time", 1, by, (partial,), "{}").build_schema(rows)


@given(
    st.builds(
        WindowFold,
        st.text(),
        st.integers(1, 2**62),
        st.lists(st.text()).map(tuple),
        st.lists(
            st.builds(
                Partial, st.sampled_from(["count", "sum", "min", "max"]), st.none() | st.text()
            )
        ).map(tuple),
        st.text(),
    )
)
def test_the_options_text_reads_back(fold: WindowFold) -> None:
    assert FOLD.parse(fold.to_text()) == fold
    assert FOLD.parse(" ") is None


@pytest.mark.parametrize(
    "changed",
    [
        {"pane": 0},
        {"pane": "1"},
        {"pane": True},
        {"by": [1]},
        {"by": None},
        {"partials": [["median", "a"]]},
        {"partials": [["count"]]},
        {"eventTime": None},
        {"columns": 1},
    ],
)
def test_another_text_is_refused(changed: dict[str, Any]) -> None:
    text = json.loads(WindowFold("t", 1, ("a",), (Partial("count"),), "{}").to_text())
    with pytest.raises(ValueError, match="aggregate_windows"):
        FOLD.parse(json.dumps({**text, **changed}))
