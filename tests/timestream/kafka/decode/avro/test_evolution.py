"""Writers' and readers' schemas that differ: resolved as Avro says, and as fastavro does it."""

import io
import json
from decimal import Decimal
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.avro_reading import COPIES, read, rows_of
from timestream.avro_schemas import (
    PLAIN,
    Drawn,
    comparable,
    nullable,
    parse,
    record_of,
    types,
    write,
)
from timestream.builders import INSTANT

from pyspark_timestream import SchemaRefused
from pyspark_timestream.kafka.decode.records import FINE, TYPE

WITH_DEFAULT = [each for each in PLAIN if each.default is not None]
WIDER = {
    "int": [
        ("long", pa.int64(), int),
        ("float", pa.float32(), float),
        ("double", pa.float64(), float),
    ],
    "long": [("float", pa.float32(), float), ("double", pa.float64(), float)],
    "float": [("double", pa.float64(), float)],
    "string": [("bytes", pa.binary(), lambda text: text)],
}
"""Avro type -> wider types, with the column's type and how fastavro's values become Arrow's."""


def with_default(drawn):
    return drawn if drawn.default is not None else nullable(drawn)


@st.composite
def pairs(draw, compatibility):
    """A writer's and a reader's record as drawn fields by name, compatible as Confluent says.

    `backward`: the reader is newer, and may have lost any field. `forward`: the writer is newer.
    Fields that one side lacks have defaults where the reader has them; `full` is both at once.
    """
    shared = {f"s{i}": draw(types(f"s{i}", 1)) for i in range(draw(st.integers(1, 3)))}
    gone = {f"w{i}": draw(types(f"w{i}", 1)) for i in range(draw(st.integers(0, 2)))}
    new = {f"r{i}": draw(defaulted(f"r{i}")) for i in range(draw(st.integers(0, 2)))}
    if compatibility == "forward":
        new = {}
    if compatibility == "full":
        gone = {name: with_default(each) for name, each in gone.items()}
    widened = {
        name: draw(widen(each)) if compatibility == "backward" else each
        for name, each in shared.items()
    }
    writer = {**shared, **gone}
    reader = {**widened, **new}
    order = st.permutations
    return (
        {name: writer[name] for name in draw(order(list(writer)))},
        {name: reader[name] for name in draw(order(list(reader)))},
        set(new),
    )


@st.composite
def defaulted(draw, name):
    if draw(st.booleans()):
        return draw(st.sampled_from(WITH_DEFAULT))
    return nullable(draw(types(name, 1)))


@st.composite
def widen(draw, drawn):
    """Promote a type, or let it be null as well."""
    wider = WIDER.get(drawn.schema, []) if isinstance(drawn.schema, str) else []
    if wider and draw(st.booleans()):
        schema, column, convert = draw(st.sampled_from(wider))
        drawn = Drawn(schema, column, drawn.values, convert)
    return nullable(drawn) if draw(st.booleans()) else drawn


def schema_of(fields, new=()):
    schema = record_of("Evolved", fields).schema
    for field in schema["fields"]:
        if field["name"] in new:
            field["default"] = fields[field["name"]].default
    return schema


@pytest.mark.parametrize("compatibility", ["backward", "forward", "full"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_compatible_schemas_are_resolved_as_fastavro_does(compatibility, data):
    written, wanted, new = data.draw(pairs(compatibility))
    writer, reader = schema_of(written), schema_of(wanted, new)
    values = data.draw(st.lists(record_of("Evolved", written).values, min_size=2, max_size=4))
    bodies = write(writer, values)
    columns = data.draw(st.lists(st.sampled_from(list(wanted)), min_size=1, unique=True))
    fields = [pa.field(name, wanted[name].column) for name in columns]
    expected = []
    for body in bodies:
        oracle = fastavro.schemaless_reader(io.BytesIO(body), parse(writer), parse(reader))
        row = [convert_new(wanted[name], oracle[name], name in new) for name in columns]
        expected.append((comparable(to_single(row, fields)), FINE))
    for copies in (1, COPIES):
        ids = pa.array([5] * len(bodies) * copies, pa.int32())
        block = read(reader, fields, bodies * copies, (), {5: json.dumps(writer)}, ids)
        assert rows_of(block) == expected * copies


def convert_new(drawn, value, is_new):
    """fastavro leaves the default of bytes as text."""
    if is_new and drawn.schema == "bytes" and isinstance(value, str):
        return value.encode("latin-1")
    return drawn.convert(value)


def to_single(row, fields):
    """Promotion to float rounds to single precision, and Python has doubles only."""
    return [
        pa.scalar(value, pa.float64()).cast(pa.float32()).as_py()
        if pa.types.is_float32(field.type) and value is not None
        else value
        for value, field in zip(row, fields, strict=True)
    ]


def record(*fields, **more):
    keys = ("name", "type", "default", "aliases")
    return {
        "type": "record",
        "name": "Evolved",
        "fields": [dict(zip(keys, field, strict=False)) for field in fields],
        **more,
    }


@pytest.fixture(params=[1, 60], ids=["one by one", "in columns"])
def resolve(request):
    """Write values, read column `x` as `kind`: (values, reasons) of one copy."""

    def run(writer, values, reader, kind):
        bodies = write(writer, values) * request.param
        ids = pa.array([1] * len(bodies), pa.int32())
        columns = [pa.field("x", kind)]
        block = read(reader, columns, bodies, (), {1: json.dumps(writer)}, ids)
        found = rows_of(block)
        assert found == found[: len(values)] * request.param
        return [row[0] for row, _ in found[: len(values)]], [why for _, why in found[: len(values)]]

    return run


def test_a_field_is_found_by_the_readers_alias(resolve):
    reader = record(("x", "long", 0, ["was"]))
    assert resolve(record(("was", "int")), [{"was": 7}], reader, pa.int64()) == ([7], [FINE])


def test_a_field_of_the_writer_goes_by_its_own_name_before_an_alias(resolve):
    writer = record(("x", "int"), ("was", "int"))
    reader = record(("x", "long", 0, ["was"]))
    assert resolve(writer, [{"x": 1, "was": 2}], reader, pa.int64()) == ([1], [FINE])


def test_an_alias_yields_to_a_name_and_to_an_earlier_alias(resolve):
    both = record(("x", "long", 5, ["was"]), ("was", "long", 6), ("y", "long", 7, ["was"]))
    assert resolve(record(("was", "int")), [{"was": 1}], both, pa.int64()) == ([5], [FINE])
    same = record(("y", "long", 7, ["was"]), ("x", "long", 5, ["was"]))
    assert resolve(record(("was", "int")), [{"was": 1}], same, pa.int64()) == ([5], [FINE])


def test_a_null_that_the_readers_type_lacks_does_not_fit(resolve):
    writer = record(("x", ["null", "string"]))
    values = [{"x": "a"}, {"x": None}]
    expected = (["a", None], [FINE, TYPE])
    assert resolve(writer, values, record(("x", "string")), pa.string()) == expected


def test_a_branch_that_the_readers_type_cannot_hold_does_not_fit(resolve):
    writer = record(("x", ["int", "string", "long"]))
    values = [{"x": 1}, {"x": "one"}, {"x": 2**40}]
    found = resolve(writer, values, record(("x", "long")), pa.int64())
    assert found == ([1, None, 2**40], [FINE, TYPE, FINE])


def test_a_symbol_that_the_readers_enum_lacks_does_not_fit_without_a_default(resolve):
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    fewer = {**enum, "symbols": ["C", "A"]}
    values = [{"x": "A"}, {"x": "B"}, {"x": "C"}]
    found = resolve(record(("x", enum)), values, record(("x", fewer)), pa.string())
    assert found == (["A", None, "C"], [FINE, TYPE, FINE])
    found = resolve(
        record(("x", enum)), values, record(("x", {**fewer, "default": "A"})), pa.string()
    )
    assert found == (["A", "A", "C"], [FINE, FINE, FINE])


def test_a_union_of_records_is_read_as_the_record_of_the_same_name(resolve):
    records = [{**record(("n", "int")), "name": name} for name in ("P", "Q")]
    values = [{"x": ("P", {"n": 1})}, {"x": ("Q", {"n": 2})}]
    point = pa.struct([("n", pa.int32())])
    found = resolve(record(("x", records)), values, record(("x", records[1])), point)
    assert found == ([None, {"n": 2}], [TYPE, FINE])


@pytest.mark.parametrize("unit", ["millis", "micros", "nanos"])
def test_a_timestamp_keeps_its_writers_unit(resolve, unit):
    ticks = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}[unit]
    writer = record(("x", {"type": "long", "logicalType": f"timestamp-{unit}"}))
    plain = json.loads(json.dumps(writer).replace('"logicalType"', '"no"'))
    body = write(plain, [{"x": 1_700_000_000 * ticks}])[0]
    for read_unit in ("millis", "micros", "nanos"):
        reader = record(("x", {"type": "long", "logicalType": f"timestamp-{read_unit}"}))
        ids = pa.array([1] * 60, pa.int32())
        block = read(
            reader, [pa.field("x", INSTANT)], [body] * 60, (), {1: json.dumps(writer)}, ids
        )
        assert set(block.columns[0].view(pa.int64()).to_pylist()) == {1_700_000_000_000_000}


def test_milliseconds_beyond_64_bits_of_microseconds_do_not_fit(resolve):
    reader = record(("x", {"type": "long", "logicalType": "timestamp-millis"}))
    values = [{"x": each} for each in (0, 2**62, -(2**63), 253_402_300_800_000)]
    column, reasons = resolve(record(("x", "long")), values, reader, INSTANT)
    assert [each is None for each in column] == [False, True, True, True]
    assert reasons == [FINE, TYPE, TYPE, TYPE]


def test_bytes_may_be_read_as_text_as_far_as_they_are_utf_8(resolve):
    values = [{"x": b"caf\xc3\xa9"}, {"x": b"\xff"}]
    found = resolve(record(("x", "bytes")), values, record(("x", "string")), pa.string())
    assert found == (["café", None], [FINE, TYPE])


def test_a_uuid_of_type_fixed_is_text(resolve):
    uuid = {"type": "fixed", "name": "U", "size": 16}
    reader = record(("x", {**uuid, "logicalType": "uuid"}))
    found = resolve(record(("x", uuid)), [{"x": bytes(range(16))}], reader, pa.string())
    assert found == (["00010203-0405-0607-0809-0a0b0c0d0e0f"], [FINE])


@pytest.mark.parametrize("more", [[], [b"\0" * 20]], ids=["short", "short and long"])
def test_decimals_beyond_their_precision_do_not_fit(resolve, more):
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    bodies = [b"\x03\xe7", b"\x03\xe8", b"", b"\xfc\x19", b"\xfc\x18", b"\0" * 8, *more]
    values = [{"x": each} for each in bodies]
    column, reasons = resolve(
        record(("x", "bytes")), values, record(("x", decimal)), pa.decimal128(3, 1)
    )
    expected = ["99.9", "None", "None", "-99.9", "None", "0.0", *["0.0" for _ in more]]
    assert list(map(str, column)) == expected
    assert reasons == [TYPE if each == "None" else FINE for each in expected]


def test_fixed_values_of_other_sizes_are_refused(resolve):
    writer, reader = ({"type": "fixed", "name": "F", "size": size} for size in (2, 3))
    with pytest.raises(SchemaRefused, match="'x' was written as"):
        resolve(record(("x", writer)), [{"x": b"ab"}], record(("x", reader)), pa.binary())


def decimal(precision, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def test_decimals_of_another_scale_are_read_by_their_writers_and_fit_the_column_or_not(resolve):
    values = [{"x": Decimal(text)} for text in ("1.2345", "-99999.9999", "999.5000")]
    reader = record(("x", decimal(5, 2)))
    found = resolve(record(("x", decimal(9, 4))), values, reader, pa.decimal128(5, 2))
    assert found == ([Decimal("1.23"), None, Decimal("999.50")], [FINE, TYPE, FINE])
    found = resolve(record(("x", decimal(9, 4))), values, reader, pa.decimal128(20, 4))
    assert found == ([each["x"] for each in values], [FINE] * 3)


def test_the_least_number_of_eight_bytes_is_a_decimal_that_does_not_fit(resolve):
    bodies = [b"\x80" + b"\0" * 7, b"\x7f" + b"\xff" * 7, b"\x01", b"\xff" * 8]
    values = [{"x": each} for each in bodies]
    for digits in (1, 9, 18):
        reader = record(("x", decimal(digits, 0)))
        found = resolve(record(("x", "bytes")), values, reader, pa.decimal128(digits, 0))
        assert found == ([None, None, Decimal(1), Decimal(-1)], [TYPE, TYPE, FINE, FINE])
    wide = resolve(
        record(("x", "bytes")), values, record(("x", decimal(19, 0))), pa.decimal128(19, 0)
    )
    numbers = [Decimal(int.from_bytes(each, signed=True)) for each in bodies]
    assert wide == (numbers, [FINE] * 4)


@pytest.mark.parametrize(
    ("writer", "reader", "words"),
    [
        (("x", "string"), ("x", "long"), "'x' was written as Avro type string.* has long"),
        (("x", ["string"]), ("x", "long"), "union of string"),
    ],
)
def test_schemas_that_cannot_be_resolved_are_refused_and_no_payload_is_blamed(
    writer, reader, words, resolve
):
    with pytest.raises(SchemaRefused, match=words):
        resolve(record(writer), [{"x": "a", "y": 1}], record(reader), pa.int64())


def test_unions_that_share_only_null_are_resolved(resolve):
    writer, reader = record(("x", ["null", "string"])), record(("x", ["null", "long"]))
    found = resolve(writer, [{"x": None}, {"x": "a"}], reader, pa.int64())
    assert found == ([None, None], [FINE, TYPE])


def test_a_field_that_is_not_wanted_need_not_be_resolved(resolve):
    writer = record(("x", "int"), ("other", "string"))
    reader = record(("x", "int"), ("other", "long"), ("new", "long"))
    assert resolve(writer, [{"x": 1, "other": "a"}], reader, pa.int32()) == ([1], [FINE])


def test_defaults_of_nested_types_are_converted(resolve):
    inner = record(("n", "int"), ("b", "bytes", "\u00ff"))
    reader = record(("x", {"type": "array", "items": {**inner, "name": "I"}}, [{"n": 3}]))
    kind = pa.list_(pa.struct([("b", pa.binary()), ("n", pa.int64())]))
    found = resolve(record(("y", "int")), [{"y": 1}], reader, kind)
    assert found == ([[{"b": b"\xff", "n": 3}]], [FINE])


WIDENED = [
    ("int", "long", [0, -(2**31), 2**31 - 1], [2**31, -(2**63)]),
    ("int", "float", [0.0, -2.0, 2.0**30], [0.5, 2.0**31, float("nan"), float("inf")]),
    ("int", "double", [0.0, -1.0, 2.0**31 - 1], [0.5, 2.0**31, 2.0**63, float("-inf")]),
    ("long", "float", [0.0, 2.0**62], [0.25, 2.0**63, float("nan")]),
    ("long", "double", [0.0, 2.0**53, -(2.0**63)], [1.5, 2.0**63, 1e300]),
]


@pytest.mark.parametrize("union", [False, True])
@pytest.mark.parametrize(("narrow", "wide", "fitting", "other"), WIDENED)
def test_a_number_that_a_producer_widened_is_judged_by_its_value(
    narrow, wide, fitting, other, union, resolve
):
    """Compatibility BACKWARD, the registry's default, allows it: no record may end the query."""
    whole = {"int": pa.int32(), "long": pa.int64()}[narrow]
    values = [{"x": each} for each in fitting + other]
    writer = record(("x", ["null", wide] if union else wide))
    column, reasons = resolve(writer, values, record(("x", narrow)), whole)
    assert column == [*map(int, fitting), *[None] * len(other)]
    assert reasons == [FINE] * len(fitting) + [TYPE] * len(other)
    digits = resolve(writer, values, record(("x", narrow)), pa.decimal128(38, 0))[0]
    beyond = [wide == "long" or (abs(each) < 2.0**63 and each % 1 == 0) for each in other]
    assert digits[: len(fitting)] == [Decimal(int(each)) for each in fitting]
    assert [each is not None for each in digits[len(fitting) :]] == beyond


def test_a_widened_number_fits_a_column_that_is_wider_than_the_readers_schema(resolve):
    writer, values = record(("x", "long")), [{"x": 2**40}, {"x": 1}]
    assert resolve(writer, values, record(("x", "int")), pa.int64()) == ([2**40, 1], [FINE] * 2)
    exact = resolve(
        record(("x", "double")), [{"x": 0.1}, {"x": 1e300}], record(("x", "float")), pa.float64()
    )
    assert exact == (comparable([0.1, 1e300]), [FINE] * 2)


def test_a_double_beyond_a_float_does_not_fit_and_others_are_rounded(resolve):
    values = [{"x": each} for each in (0.1, 1e300, float("-inf"), 1.5)]
    found = resolve(record(("x", "double")), values, record(("x", "float")), pa.float32())
    expected = [float(np.float32(0.1)), None, float("-inf"), 1.5]
    assert found == (comparable(expected), [FINE, TYPE, FINE, FINE])


def test_a_field_that_a_producer_dropped_is_null_and_malformed_without_a_default(resolve):
    writer, values = record(("y", "long")), [{"y": 1}]
    assert resolve(writer, values, record(("x", "long")), pa.int64()) == ([None], [TYPE])
    # A default that is not of its type is none: registries have such schemas.
    reader = record(("x", "long", "zero"))
    assert resolve(writer, values, reader, pa.int64()) == ([None], [TYPE])
    inner = {**record(("x", "long"), ("y", "long")), "name": "Inner"}
    lost = {**record(("y", "long")), "name": "Inner"}
    kind = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    found = resolve(record(("x", lost)), [{"x": {"y": 1}}], record(("x", inner)), kind)
    assert found == ([{"x": None, "y": 1}], [TYPE])


@pytest.mark.parametrize("wide", ["long", "float", "double"])
def test_a_date_that_became_another_number_does_not_fit(wide, resolve):
    date = {"type": "int", "logicalType": "date"}
    found = resolve(record(("x", wide)), [{"x": 3}], record(("x", date)), pa.date32())
    assert found == ([None], [TYPE])


def test_whole_numbers_of_a_union_are_not_rounded_by_its_fractions(resolve):
    values = [{"x": 2**53 + 1}, {"x": 0.5}]
    writer = record(("x", ["long", "double"]))
    found = resolve(writer, values, record(("x", "long")), pa.int64())
    assert found == ([2**53 + 1, None], [FINE, TYPE])


def test_groups_of_narrow_and_wide_writers_keep_their_order_and_their_raw_times():
    texts = {n: record(("x", kind)) for n, kind in enumerate(("int", "long", "double"))}
    values = [[7, 8], [2**40, 9], [0.5, 10.0]]
    written = [write(texts[n], [{"x": v} for v in values[n]]) for n in texts]
    bodies = [body for pair in zip(*written, strict=True) for body in pair]
    ids = pa.array([0, 1, 2, 0, 1, 2], pa.int32())
    writers = {n: json.dumps(each) for n, each in texts.items()}
    reader = record(("x", "int"))
    block = read(reader, [pa.field("x", pa.int32())], bodies, ("x",), writers, ids)
    assert block.columns[0].to_pylist() == [7, None, None, 8, 9, 10]
    assert block.reasons.tolist() == [FINE, TYPE, TYPE, FINE, FINE, FINE]
    raw = [each for piece in block.raw["x"] for each in piece.to_pylist()]
    assert raw == [7, 2**40, 0.5, 8, 9, 10.0]


@pytest.mark.parametrize(
    ("item", "values", "kind", "expected"),
    [
        ("long", [[1], [1, 2**40, 2], [], None], pa.int32(), [[1], None, [], None]),
        (
            record(("x", "long"), ("y", "long"), name="Item"),
            [[{"x": 2**40, "y": 1}, {"x": 1, "y": 2}]],
            pa.struct([("x", pa.int32()), ("y", pa.int32())]),
            [[{"x": None, "y": 1}, {"x": 1, "y": 2}]],
        ),
        (["null", "long"], [[None, 1], [None, 2**40]], pa.int32(), [[None, 1], None]),
        (
            {"type": "array", "items": "long"},
            [[[1], [2**40]], [[2]]],
            pa.list_(pa.int32()),
            [None, [[2]]],
        ),
        (["null", "string", "bytes"], [["a", b"\xff"], ["b"]], pa.string(), [None, ["b"]]),
    ],
    ids=["numbers", "structs keep their fields", "nulls stay", "lists of lists", "branches"],
)
def test_a_list_or_map_with_an_unreadable_item_is_null_as_a_whole(
    item, values, kind, expected, resolve
):
    """Semantics 13.13, as in JSON and Protobuf."""
    reader = "string" if item == ["null", "string", "bytes"] else item
    struct = isinstance(item, dict) and item["type"] == "record"
    pairs = zip(values, expected, strict=True)
    why = [TYPE if struct or (was is not None and e is None) else FINE for was, e in pairs]

    def keyed(value):
        return value and {str(n): each for n, each in enumerate(value)}

    def nullable_of(kind, inner):
        part = "items" if kind == "array" else "values"
        return record(("x", ["null", {"type": kind, part: inner}]))

    found = resolve(
        nullable_of("array", item),
        [{"x": value} for value in values],
        nullable_of("array", reader),
        pa.list_(kind),
    )
    assert found == (comparable(expected), why)
    found = resolve(
        nullable_of("map", item),
        [{"x": {} if value == [] else keyed(value)} for value in values],
        nullable_of("map", reader),
        pa.map_(pa.string(), kind),
    )
    entries = [value and list(keyed(value).items()) for value in expected]
    assert found == (comparable(entries), why)


def test_the_default_of_a_fixed_uuid_is_that_uuid(resolve):
    uuid = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    for default in (bytes(range(16)), b"\xff" * 16, b"\0" * 16):
        reader = record(("x", uuid, default.decode("latin-1")))
        found = resolve(record(("y", "int")), [{"y": 1}], reader, pa.string())
        assert found == ([str(UUID(bytes=default))], [FINE])
    short = record(("x", uuid, "abc"))
    assert resolve(record(("y", "int")), [{"y": 1}], short, pa.string()) == ([None], [TYPE])
