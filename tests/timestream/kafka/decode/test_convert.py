"""Conversion to requested columns: what fits keeps its meaning, and the rest is null and bad.

One table of cases holds for Avro, JSON and Protobuf (semantics 13.13).
"""

import io
import json
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT

from pyspark_timestream.kafka.decode.avro.by_row import read_avro
from pyspark_timestream.kafka.decode.avro.schemas import check_avro_columns, parse_avro_reader
from pyspark_timestream.kafka.decode.convert import can_cast, cast
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.protobuf.decode import read_protobuf
from pyspark_timestream.kafka.decode.protobuf.descriptors import create_reader
from pyspark_timestream.kafka.decode.records import FINE, TYPE, RequestedFields

INTEGERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
LOCAL = pa.timestamp("us")


def bounds(kind):
    width, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    return (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)


def cast_values(values, source, target):
    """(values, bad rows) of a cast."""
    assert can_cast(source, target)
    column = values if isinstance(values, pa.Array) else pa.array(values, source)
    found = cast(column, target)
    found.column.validate(full=True)
    assert found.column.type == target
    return found.column.to_pylist(), [row for row, bad in enumerate(found.bad) if bad]


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
    assert cast_values(values, source, target) == (
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
    found, bad = cast_values(values, pa.decimal128(*source), pa.decimal128(*target))
    assert found == expected
    assert bad == [row for row, value in enumerate(expected) if value is None]


def test_halves_are_rounded_away_from_zero_as_spark_rounds_them():
    halves = [Decimal("2.5"), Decimal("-2.5"), Decimal("1.5"), Decimal("-0.5"), Decimal("0.4")]
    expected = [Decimal(3), Decimal(-3), Decimal(2), Decimal(-1), Decimal(0)]
    assert cast_values(halves, pa.decimal128(3, 1), pa.decimal128(2, 0)) == (expected, [])


def test_whole_numbers_become_decimals_and_floating_point():
    wide = [2**63 - 1, -(2**63), None]
    assert cast_values(wide, pa.int64(), pa.decimal128(19, 0)) == (list(map(to_decimal, wide)), [])
    assert cast_values([100, 99], pa.int32(), pa.decimal128(3, 1)) == ([None, Decimal("99.0")], [0])
    assert cast_values([2**64 - 1], pa.uint64(), pa.decimal128(20, 0)) == ([Decimal(2**64 - 1)], [])
    assert cast_values([2**53 + 1], pa.int64(), pa.float64()) == ([float(2**53 + 1)], [])
    assert cast_values([1.5, None], pa.float32(), pa.float64()) == ([1.5, None], [])


def to_decimal(number):
    return None if number is None else Decimal(number)


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_outside_of_the_calendar_do_not_fit(unit, zone):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    first, end = -62_135_596_800 * per_second, 253_402_300_800 * per_second
    ticks = pa.array([first - 1, first, 0, end - 1, end, None, 2**63 - 1, -(2**63)])
    source, target = pa.timestamp(unit, tz=zone), pa.timestamp("us", tz=zone)
    found = cast(ticks.view(source), target)
    scale = 10**6 // per_second
    expected = [None, first * scale, 0, (end - 1) * scale, None, None, None, None]
    assert found.column.view(pa.int64()).to_pylist() == expected
    assert found.bad.nonzero()[0].tolist() == [0, 4, 6, 7]


def test_nanoseconds_are_rounded_down():
    ticks = pa.array([1_999, -1, None, 2**63 - 1]).view(pa.timestamp("ns"))
    found = cast(ticks, LOCAL)
    expected = [1, -1, None, (2**63 - 1) // 1000]
    assert found.column.view(pa.int64()).to_pylist() == expected
    assert not found.bad.any()


def test_dates_outside_of_the_calendar_do_not_fit():
    days = pa.array([-719_163, -719_162, 2_932_896, 2_932_897, None], pa.int32()).view(pa.date32())
    found = cast_values(days, pa.date32(), pa.date32())
    assert found == ([None, date(1, 1, 1), date(9999, 12, 31), None, None], [0, 3])


POINT = pa.struct([("x", pa.int64()), ("name", pa.string()), ("y", pa.int64())])
NARROW = pa.struct([("y", pa.int8()), ("x", pa.int16())])


def test_parts_that_do_not_fit_are_null_and_their_neighbours_stay():
    points = [{"x": 1, "name": "a", "y": 300}, None, {"x": 70_000, "name": None, "y": 3}]
    narrow = [{"y": None, "x": 1}, None, {"y": 3, "x": None}]
    assert cast_values(points, POINT, NARROW) == (narrow, [0, 2])
    lists = [points, None, [], [points[1], {"x": 1, "name": "", "y": 2}]]
    found = cast_values(lists, pa.list_(POINT), pa.list_(NARROW))
    assert found == ([narrow, None, [], [None, {"y": 2, "x": 1}]], [0])
    maps = [[("k", points[0])], None, [("a", None), ("b", {"x": 1, "name": "", "y": 2})], []]
    found = cast_values(maps, pa.map_(pa.string(), POINT), pa.map_(pa.string(), NARROW))
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
        whole, bad = cast_values(column, kind, to)
        part, part_bad = cast_values(column.slice(start), kind, to)
        assert part == whole[start:]
        assert part_bad == [row - start for row in bad if row >= start]


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
    assert cast_values(["é", None], pa.string(), pa.binary()) == ([b"\xc3\xa9", None], [])
    assert cast_values(["é"], pa.large_string(), pa.string()) == (["é"], [])
    assert cast_values([None, None], pa.null(), NARROW) == ([None, None], [])


BYTE = pa.int8()
PAIR = pa.struct([("a", BYTE), ("b", BYTE)])
BYTES = pa.list_(BYTE)
NAMED = pa.map_(pa.string(), BYTE)

CASES = {
    "a number that fits": (BYTE, 100, 100),
    "a number that does not fit": (BYTE, 1000, None),
    "a struct with a bad field": (PAIR, {"a": 1, "b": 1000}, {"a": 1, "b": None}),
    "an array that fits": (BYTES, [1, 2], [1, 2]),
    "an array with a bad item": (BYTES, [1, 1000, 2], None),
    "an empty array": (BYTES, [], []),
    "a map that fits": (NAMED, {"x": 1}, [("x", 1)]),
    "a map with a bad value": (NAMED, {"x": 1, "y": 1000}, None),
    "a struct whose array has a bad item": (
        pa.struct([("n", BYTE), ("items", BYTES)]),
        {"n": 1, "items": [1, 1000]},
        {"n": 1, "items": None},
    ),
    "an array of structs of which one has a bad field": (
        pa.list_(PAIR),
        [{"a": 1, "b": 1000}, {"a": 2, "b": 3}],
        [{"a": 1, "b": None}, {"a": 2, "b": 3}],
    ),
    "a map of structs of which one has a bad field": (
        pa.map_(pa.string(), PAIR),
        {"x": {"a": 1000, "b": 2}},
        [("x", {"a": None, "b": 2})],
    ),
    "an array of structs whose array has a bad item": (
        pa.list_(pa.struct([("items", BYTES)])),
        [{"items": [1000]}, {"items": [2]}],
        [{"items": None}, {"items": [2]}],
    ),
}


def make_good(kind):
    if pa.types.is_struct(kind):
        return {field.name: make_good(field.type) for field in kind}
    return [] if pa.types.is_list(kind) else {} if pa.types.is_map(kind) else 7


def avro_type(kind, name="v"):
    """The Avro type of the column `kind` with every number a long."""
    if pa.types.is_struct(kind):
        fields = [{"name": f.name, "type": avro_type(f.type, name + f.name)} for f in kind]
        return {"type": "record", "name": f"r_{name}", "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "items": avro_type(kind.value_type, name)}
    if pa.types.is_map(kind):
        return {"type": "map", "values": avro_type(kind.item_type, name)}
    return "long"


def read_as_avro(kind, values):
    schema = {"type": "record", "name": "V", "fields": [{"name": "v", "type": avro_type(kind)}]}
    reader, requested = parse_avro_reader(json.dumps(schema)), pa.schema([("v", kind)])
    check_avro_columns(reader, requested)
    parsed, bodies = fastavro.parse_schema(schema), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, {"v": value})
        bodies.append(out.getvalue())
    return read_avro(reader, RequestedFields(requested), pa.array(bodies, pa.binary()), {})


def read_as_json(kind, values):
    bodies = [json.dumps({"v": value}).encode() for value in values]
    return parse_json(RequestedFields(pa.schema([("v", kind)])), pa.array(bodies, pa.binary()))


def add_field(owner, scope, name, kind):
    """Add the field `name` of the column `kind` with every number an int64."""
    added = owner.field.add(name=name, number=len(owner.field) + 1, label=1)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        added.label = 3
    if pa.types.is_map(kind):
        entry = owner.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=9, label=1)
        add_field(entry, f"{scope}.{entry.name}", "value", kind.item_type)
        added.type, added.type_name = 11, f"{scope}.{entry.name}"
        return
    inner = kind.value_type if pa.types.is_list(kind) else kind
    added.type = 11 if pa.types.is_struct(inner) else 3
    if pa.types.is_struct(inner):
        nested = owner.nested_type.add(name=f"{name.title()}Message")
        added.type_name = f"{scope}.{nested.name}"
        for child in inner:
            add_field(nested, added.type_name, child.name, child.type)


def read_as_protobuf(kind, values):
    file = descriptor_pb2.FileDescriptorProto(name="v.proto", package="p", syntax="proto3")
    add_field(file.message_type.add(name="V"), ".p.V", "v", kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.V"))
    reader = create_reader(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "p.V")
    bodies = [message(v=value).SerializeToString() for value in values]
    requested = RequestedFields(pa.schema([("v", kind)]))
    return read_protobuf(reader, requested, pa.array(bodies, pa.binary()))


@pytest.mark.parametrize("good", [0, 100], ids=["alone", "among good ones"])
@pytest.mark.parametrize("read", [read_as_avro, read_as_json, read_as_protobuf])
@pytest.mark.parametrize("case", CASES)
def test_one_rule_for_bad_values_holds_in_every_format(case, read, good):
    kind, value, expected = CASES[case]
    is_bad = expected is None or " bad " in case
    neighbours = [make_good(kind)] * good
    block = read(kind, [*neighbours, value, *neighbours])
    assert block.columns[0].type == kind
    assert block.columns[0][good].as_py() == expected
    why = [FINE] * good
    assert block.reasons.tolist() == [*why, TYPE if is_bad else FINE, *why]
