"""Columns of schemas: types in Spark's DDL, without secrets and what cannot be a column."""

import base64
import json

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2

from pyspark_timestream.commands.peek.detect import (
    format_columns,
    infer_json,
    list_columns,
    read_struct,
)
from pyspark_timestream.kafka.decode.avro.schemas import check_avro_columns, parse_avro_reader
from pyspark_timestream.kafka.decode.protobuf.decode import plan_fields
from pyspark_timestream.kafka.decode.protobuf.descriptors import create_reader
from pyspark_timestream.kafka.schemas import ReaderSchema


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


AVRO_FIELDS = {
    "n": ("long", "n bigint"),
    "i": (["null", "int"], "i int"),
    "at": (logical("long", "timestamp-millis"), "at timestamp"),
    "local": (logical("long", "local-timestamp-micros"), "local timestamp_ntz"),
    "day": (logical("int", "date"), "day date"),
    "money": (logical("bytes", "decimal", precision=9, scale=2), "money decimal(9,2)"),
    "tags": ({"type": "array", "items": "string"}, "tags array<string>"),
    "sizes": ({"type": "map", "values": "double"}, "sizes map<string,double>"),
    "either": (["int", "string"], None),
    "nothing": ("null", None),
    "password": ("string", None),
}


def test_avro_types_are_those_of_the_columns_that_read_them():
    fields = [{"name": name, "type": kind} for name, (kind, _) in AVRO_FIELDS.items()]
    of_inner = {"x": "float", "again": ["null", "Outer"], "token": "string"}
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": name, "type": kind} for name, kind in of_inner.items()],
    }
    fields += [{"name": "inner", "type": inner}]
    fields += [{"name": "items", "type": {"type": "array", "items": "Inner"}}]
    text = json.dumps({"type": "record", "name": "Outer", "fields": fields})
    found = list_columns(read_struct("avro", ReaderSchema(text, "")))
    expected = [ddl for _, ddl in AVRO_FIELDS.values() if ddl]
    assert format_columns(found.fields) == [
        *expected, "`inner.x` float", "items array<struct<x:float>>",
    ]  # fmt: skip
    assert found.secrets == 3
    check_avro_columns(parse_avro_reader(text), found.fields)


def test_a_schema_without_fields_has_no_columns():
    assert not list_columns(read_struct("avro", ReaderSchema('"string"', ""))).fields.names


PROTOBUF_TYPES = {
    1: "double",
    2: "float",
    3: "bigint",
    4: "decimal(20,0)",
    5: "int",
    7: "bigint",
    8: "boolean",
    9: "string",
    12: "binary",
    13: "bigint",
    17: "int",
    18: "bigint",
}


def test_protobuf_types_are_those_of_the_columns_that_read_them():
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    message = file.message_type.add(name="M")
    for number in PROTOBUF_TYPES:
        message.field.add(name=f"f{number}", number=number, type=number, label=1)
    for number, name, kind, label in (
        (30, "at", ".google.protobuf.Timestamp", 1),
        (31, "maybe", ".google.protobuf.Int64Value", 1),
        (32, "self", ".p.M", 1),
        (33, "inner", ".p.M.Inner", 1),
        (34, "inners", ".p.M.Inner", 3),
    ):
        message.field.add(name=name, number=number, type=11, label=label, type_name=kind)
    inner = message.nested_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=5, label=3)
    inner.field.add(name="cvv", number=2, type=5, label=1)
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    files.file.append(file)
    text = base64.b64encode(files.SerializeToString()).decode()
    found = list_columns(read_struct("protobuf", ReaderSchema(text, "", "p.M")))
    assert format_columns(found.fields) == [
        *(f"f{number} {ddl}" for number, ddl in PROTOBUF_TYPES.items()),
        "at timestamp",
        "maybe bigint",
        "`inner.x` array<int>",
        "inners array<struct<x:array<int>>>",
    ]
    assert found.secrets == 2
    reader = create_reader(files.SerializeToString(), "p.M")
    plan_fields(reader, found.fields)


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        ([1, 2], "bigint"),
        ([1, 2.5], "double"),
        ([None, None], "string"),
        ([True, 1], "string"),
        ([2**63], "string"),
        ([[1], [None], []], "array<bigint>"),
        ([[1, "x"]], "array<string>"),
        ([[{"a": 1}, {"b": 2}]], "array<struct<a:bigint,b:bigint>>"),
        ([{}, None], "string"),
        ([{"a": 1}, 7], "string"),
    ],
)
def test_json_types_are_merged_cautiously(values, ddl):
    found = list_columns(infer_json([{"f": value} for value in values]))
    assert format_columns(found.fields) == [f"f {ddl}"]


def test_names_that_cannot_be_columns_are_left_out():
    found = list_columns(infer_json([{"": 1, " ": 2, "a\nb": 3, "a b": 4, "c`d": 5}]))
    assert format_columns(found.fields) == ["`a b` bigint", "```c````d``` bigint"]
