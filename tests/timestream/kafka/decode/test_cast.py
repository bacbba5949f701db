"""Casts of typed columns: what fits keeps its meaning, and the rest is null and counted."""

from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT

from pyspark_timestream.kafka.decode.convert import can_cast, cast_column

INTEGERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
LOCAL = pa.timestamp("us")


def bounds(kind):
    width, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    return (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)


def cast(values, source, target):
    """(values, unfit rows) of a cast."""
    assert can_cast(source, target)
    column = values if isinstance(values, pa.Array) else pa.array(values, source)
    found = cast_column(column, target)
    found.column.validate(full=True)
    assert found.column.type == target
    return found.column.to_pylist(), [row for row, bad in enumerate(found.unfit) if bad]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.data())
def test_whole_numbers_beyond_the_type_do_not_fit(source, target, data):
    low, high = bounds(source)
    near = st.sampled_from([edge + by for edge in bounds(target) for by in (-1, 0, 1)])
    drawn = (near | st.integers(low, high)).filter(lambda number: low <= number <= high)
    values = data.draw(st.lists(st.none() | drawn))
    first, last = bounds(target)
    fits = [number is None or first <= number <= last for number in values]
    expected = [number if fine else None for number, fine in zip(values, fits, strict=True)]
    assert cast(values, source, target) == (
        expected,
        [i for i, fine in enumerate(fits) if not fine],
    )


DIGITS = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda pair: pair[1] <= pair[0])


@settings(max_examples=300, deadline=None)
@given(DIGITS, DIGITS, st.data())
def test_decimals_are_rounded_half_up_and_fit_or_are_null(source, target, data):
    limit = 10 ** source[0] - 1
    numbers = st.integers(-limit, limit) | st.sampled_from([limit, -limit, 0, limit // 2])
    values = [
        Decimal((n < 0, tuple(map(int, str(abs(n)))), -source[1]))
        for n in data.draw(st.lists(numbers, max_size=5))
    ]
    expected = []
    for value in values:
        rounded = value.quantize(Decimal(1).scaleb(-target[1]), ROUND_HALF_UP, Context(prec=80))
        expected.append(
            rounded if rounded.copy_abs() < Decimal(10) ** (target[0] - target[1]) else None
        )
    found, unfit = cast(values, pa.decimal128(*source), pa.decimal128(*target))
    assert found == expected
    assert unfit == [row for row, value in enumerate(expected) if value is None]


def test_halves_are_rounded_away_from_zero_as_spark_rounds_them():
    halves = [Decimal("2.5"), Decimal("-2.5"), Decimal("1.5"), Decimal("-0.5"), Decimal("0.4")]
    expected = [Decimal(3), Decimal(-3), Decimal(2), Decimal(-1), Decimal(0)]
    assert cast(halves, pa.decimal128(3, 1), pa.decimal128(2, 0)) == (expected, [])


def test_whole_numbers_become_decimals_and_floating_point():
    wide = [2**63 - 1, -(2**63), None]
    assert cast(wide, pa.int64(), pa.decimal128(19, 0)) == (list(map(to_decimal, wide)), [])
    assert cast([100, 99], pa.int32(), pa.decimal128(3, 1)) == ([None, Decimal("99.0")], [0])
    assert cast([2**64 - 1], pa.uint64(), pa.decimal128(20, 0)) == ([Decimal(2**64 - 1)], [])
    assert cast([2**53 + 1], pa.int64(), pa.float64()) == ([float(2**53 + 1)], [])
    assert cast([1.5, None], pa.float32(), pa.float64()) == ([1.5, None], [])


def to_decimal(number):
    return None if number is None else Decimal(number)


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_outside_of_the_calendar_do_not_fit(unit, zone):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    first, end = -62_135_596_800 * per_second, 253_402_300_800 * per_second
    ticks = pa.array([first - 1, first, 0, end - 1, end, None, 2**63 - 1, -(2**63)])
    source, target = pa.timestamp(unit, tz=zone), pa.timestamp("us", tz=zone)
    found = cast_column(ticks.view(source), target)
    scale = 10**6 // per_second
    expected = [None, first * scale, 0, (end - 1) * scale, None, None, None, None]
    assert found.column.view(pa.int64()).to_pylist() == expected
    assert found.unfit.nonzero()[0].tolist() == [0, 4, 6, 7]


def test_nanoseconds_are_rounded_down():
    ticks = pa.array([1_999, -1, None, 2**63 - 1]).view(pa.timestamp("ns"))
    found = cast_column(ticks, LOCAL)
    expected = [1, -1, None, (2**63 - 1) // 1000]
    assert found.column.view(pa.int64()).to_pylist() == expected
    assert not found.unfit.any()


def test_dates_outside_of_the_calendar_do_not_fit():
    days = pa.array([-719_163, -719_162, 2_932_896, 2_932_897, None], pa.int32()).view(pa.date32())
    found = cast(days, pa.date32(), pa.date32())
    assert found == ([None, date(1, 1, 1), date(9999, 12, 31), None, None], [0, 3])


POINT = pa.struct([("x", pa.int64()), ("name", pa.string()), ("y", pa.int64())])
NARROW = pa.struct([("y", pa.int8()), ("x", pa.int16())])


def test_parts_that_do_not_fit_are_null_and_their_neighbours_stay():
    points = [{"x": 1, "name": "a", "y": 300}, None, {"x": 70_000, "name": None, "y": 3}]
    narrow = [{"y": None, "x": 1}, None, {"y": 3, "x": None}]
    assert cast(points, POINT, NARROW) == (narrow, [0, 2])
    lists = [points, None, [], [points[1], {"x": 1, "name": "", "y": 2}]]
    found = cast(lists, pa.list_(POINT), pa.list_(NARROW))
    assert found == ([narrow, None, [], [None, {"y": 2, "x": 1}]], [0])
    maps = [[("k", points[0])], None, [("a", None), ("b", {"x": 1, "name": "", "y": 2})], []]
    found = cast(maps, pa.map_(pa.string(), POINT), pa.map_(pa.string(), NARROW))
    expected = [[("k", narrow[0])], None, [("a", None), ("b", {"y": 2, "x": 1})], []]
    assert found == (expected, [0])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_slices_are_cast_like_whole_columns(data):
    item = st.none() | st.integers(-200, 200)
    rows = st.none() | st.lists(st.tuples(st.text(max_size=2), item), unique_by=lambda e: e[0])
    values = data.draw(st.lists(rows, max_size=8))
    source, target = pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8())
    lists = [None if row is None else [each for _, each in row] for row in values]
    start = data.draw(st.integers(0, len(values)))
    for kind, to, given_ in [
        (source, target, values),
        (pa.list_(pa.int64()), pa.list_(pa.int8()), lists),
    ]:
        column = pa.array(given_, kind)
        whole, unfit = cast(column, kind, to)
        part, part_unfit = cast(column.slice(start), kind, to)
        assert part == whole[start:]
        assert part_unfit == [row - start for row in unfit if row >= start]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.int64(), pa.string()),
        (pa.string(), pa.int64()),
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.int64()),
        (pa.decimal128(9, 2), pa.float64()),
        (pa.int64(), INSTANT),
        (INSTANT, LOCAL),
        (LOCAL, INSTANT),
        (pa.date32(), INSTANT),
        (pa.binary(), pa.string()),
        (pa.bool_(), pa.int32()),
        (POINT, pa.struct([("z", pa.int64())])),
        (POINT, pa.string()),
        (pa.list_(pa.int32()), pa.list_(pa.string())),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.bool_())),
        (pa.map_(pa.string(), pa.int32()), NARROW),
        (pa.map_(pa.int64(), pa.int32()), pa.map_(pa.int32(), pa.int32())),
    ],
    ids=str,
)
def test_a_cast_that_changes_the_meaning_is_not_allowed(source, target):
    assert not can_cast(source, target)


def test_texts_become_their_bytes_and_nulls_any_type():
    assert cast(["é", None], pa.string(), pa.binary()) == ([b"\xc3\xa9", None], [])
    assert cast(["é"], pa.large_string(), pa.string()) == (["é"], [])
    assert cast([None, None], pa.null(), NARROW) == ([None, None], [])
