"""Columns of Protobuf payloads equal what Google's own library reads, for any bytes."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.protobuf_schemas import (
    COLORS,
    NATURAL,
    Schema,
    expect,
    field,
    file,
    map_field,
    message,
    natural_columns,
    rich_schema,
    show,
)
from timestream.protobuf_wire import HOSTILE, delimited, spoil
from timestream.protobuf_wire import message as random_message

from pyspark_timestream.kafka.decode.protobuf.decode import read_protobuf
from pyspark_timestream.kafka.decode.records import FINE, SYNTAX, TYPE, RequestedFields

# Not Hypothesis' own: it records each number that a message is made of, which takes a minute.
RANDOMS = st.integers(0, 2**32).map(random.Random)

SCALARS = [name.removeprefix("TYPE_").lower() for name in NATURAL if name != "TYPE_ENUM"]
WELL_KNOWN = [
    *(".google.protobuf.Timestamp", ".google.protobuf.Duration", ".google.type.Date"),
    *(".google.type.TimeOfDay", ".google.protobuf.Any", ".google.protobuf.Struct"),
    *(".google.protobuf.Int64Value", ".google.protobuf.StringValue", ".google.protobuf.BoolValue"),
    *(
        ".google.protobuf.DoubleValue",
        ".google.protobuf.BytesValue",
        ".google.protobuf.UInt64Value",
    ),
]
OWN = ["enum .m.Color", ".m.A", ".m.M"]


@st.composite
def random_fields(draw, kinds, owner, proto3):
    """Fields of a message, some in a oneof, and the entries of its maps."""
    fields, nested = [], []
    members = draw(st.integers(0, 3))
    for number in range(1, draw(st.integers(1, 7)) + 1):
        kind, name = draw(st.sampled_from(kinds)), f"f{number}"
        shape = draw(st.sampled_from(["one", "optional", "repeated", "map"]))
        if number <= members:
            fields.append(field(name, number, kind, oneof=0))
        elif shape == "map":
            key = draw(st.sampled_from(["string", "int32", "uint64", "bool"]))
            fields_entry = map_field(owner, name, number, key, kind)
            fields.append(fields_entry[0])
            nested.append(fields_entry[1])
        else:
            optional = shape == "optional" and proto3 and "." not in kind
            fields.append(
                field(name, number, kind, repeated=shape == "repeated", optional=optional)
            )
    oneofs = ["o"] if members else []
    return fields, nested, oneofs


@st.composite
def schemas(draw):
    proto3 = draw(st.booleans())
    made = []
    for name, kinds in (("A", SCALARS + WELL_KNOWN), ("M", SCALARS + WELL_KNOWN + OWN * 4)):
        fields, nested, oneofs = draw(random_fields(kinds, f".m.{name}", proto3))
        made.append(message(name, *fields, nested=nested, oneofs=oneofs))
    syntax = "proto3" if proto3 else "proto2"
    return Schema(file(*made, syntax=syntax, enums=[("Color", COLORS)]))


def read(schema, columns, payloads):
    """Per payload: the reason why it is malformed, and its columns."""
    array = pa.array(payloads, pa.binary())
    block = read_protobuf(schema.reader, RequestedFields(columns), array)
    for column, wanted in zip(block.columns, columns, strict=True):
        column.validate(full=True)
        assert column.type == wanted.type
        assert len(column) == len(payloads)
    assert block.reasons.dtype == np.uint8
    lists = [[show(value) for value in column.to_pylist()] for column in block.columns]
    return [
        (int(reason), [values[row] for values in lists]) for row, reason in enumerate(block.reasons)
    ]


def expect_row(schema, columns, payload):
    """The values that Google's library reads from one payload."""
    if payload is None:
        return FINE, [None] * len(columns)
    parsed = schema.parse(payload)
    if parsed is None:
        return SYNTAX, [None] * len(columns)
    fields = schema.descriptor.fields_by_name
    found = [expect(parsed, fields[each.name], each.type) for each in columns]
    fine = all(whole for _, whole in found)
    return FINE if fine else TYPE, [value for value, _ in found]


@pytest.mark.thorough
@settings(deadline=None)
@given(schemas(), RANDOMS, st.data())
def test_any_message_of_any_schema_is_read_as_googles_library_reads_it(schema, rng, data):
    payloads = [random_message(rng, schema.descriptor) for _ in range(12)]
    payloads = [spoil(rng, each) if rng.random() < 0.3 else each for each in payloads] + [None, b""]
    rng.shuffle(payloads)
    names = data.draw(st.sets(st.sampled_from([f.name for f in schema.descriptor.fields])))
    columns = natural_columns(schema, names)
    assert read(schema, columns, payloads) == [
        expect_row(schema, columns, payload) for payload in payloads
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_thousands_of_random_messages_are_read_as_googles_library_reads_them(syntax):
    schema, rng = rich_schema(syntax), random.Random(1)
    payloads = [random_message(rng, schema.descriptor) for _ in range(2_000)]
    payloads += [spoil(rng, random_message(rng, schema.descriptor)) for _ in range(1_500)]
    rng.shuffle(payloads)
    columns = natural_columns(schema)
    found = read(schema, columns, payloads)
    assert found == [expect_row(schema, columns, payload) for payload in payloads]
    reasons = [reason for reason, _ in found]
    assert min(reasons.count(each) for each in (FINE, SYNTAX, TYPE)) > 100


@pytest.mark.thorough
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize("tail", HOSTILE, ids=lambda tail: tail[:12].hex())
def test_hostile_bytes_are_refused_where_googles_library_refuses_them(syntax, tail):
    schema = rich_schema(syntax)
    columns = natural_columns(schema)
    for payload in (tail, b"\x08\5" + tail, b"\x2a" + delimited(tail)):
        assert read(schema, columns, [b"\x08\7", payload, b"\x08\1"])[1] == expect_row(
            schema, columns, payload
        )


@pytest.mark.outside_ci
@pytest.mark.thorough
@settings(deadline=None)
@given(RANDOMS, st.integers(1, 40))
def test_a_row_depends_on_no_other_row_and_no_other_column(rng, size):
    schema = rich_schema("proto3")
    payloads = [random_message(rng, schema.descriptor) for _ in range(40)]
    payloads = [spoil(rng, each) if rng.random() < 0.4 else each for each in payloads]
    columns = natural_columns(schema)
    whole = read(schema, columns, payloads)
    split = [
        row
        for start in range(0, len(payloads), size)
        for row in read(schema, columns, payloads[start : start + size])
    ]
    assert split == whole
    alone = read(schema, pa.schema([columns.field("i")]), payloads)
    assert [row[1][0] for row in alone] == [row[1][0] for row in whole]
    assert [row[0] == SYNTAX for row in alone] == [row[0] == SYNTAX for row in whole]
    array = pa.array([b"x", None, *payloads], pa.binary())[2:]
    assert read(schema, columns, array) == whole
