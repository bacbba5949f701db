"""Avro schemas: parsed with one clear error, fingerprinted, and checked against the columns."""

import json
import pickle
import sys

import pyarrow as pa
import pytest
from timestream.builders import INSTANT

from pyspark_timestream import MissingExtra, SchemaRefused
from pyspark_timestream.kafka.decode.avro import schemas
from pyspark_timestream.kafka.decode.avro.schemas import (
    build_requested,
    check_avro_columns,
    parse_avro_reader,
    parse_schema,
)
from pyspark_timestream.kafka.decode.records import RequestedFields

POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "long"}, {"name": "next", "type": ["null", "Point"]}],
}
SCHEMA = {
    "type": "record",
    "name": "Event",
    "namespace": "shop.v1",
    "fields": [
        {"name": "id", "type": "long", "doc": "the number"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "either", "type": ["int", "string"]},
        {"name": "point", "type": ["null", POINT]},
        {"name": "points", "type": {"type": "array", "items": "Point"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "raw", "type": "bytes"},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "duration", "type": {"type": "fixed", "name": "D", "size": 12}},
    ],
}
READER = parse_avro_reader(json.dumps(SCHEMA))


def check(name, kind, raw=()):
    check_avro_columns(READER, pa.schema([(name, kind)]), raw)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id", pa.int64()),
        ("id", pa.int8()),
        ("id", pa.decimal128(20, 0)),
        ("text", pa.string()),
        ("at", INSTANT),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(20, 5)),
        ("point", pa.struct([("x", pa.int64())])),
        ("point.next.next.x", pa.int64()),
        ("point.next", pa.struct([("next", pa.struct([("x", pa.int32())]))])),
        ("points", pa.list_(pa.struct([("x", pa.int64())]))),
        ("tags", pa.map_(pa.string(), pa.int64())),
        ("raw", pa.binary()),
        ("time", pa.int32()),
        ("duration", pa.binary()),
    ],
)
def test_columns_that_the_schema_can_fill_are_accepted(name, kind):
    check(name, kind)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("id", pa.string(), "column 'id' is string, .* Avro type long; accepted: int64; next step"),
        ("text", pa.int64(), "column 'text' is int64, .* Avro type string; accepted: string"),
        ("at", pa.int64(), r"Avro type long \(timestamp-micros\); accepted: timestamp"),
        ("at", pa.timestamp("us"), "column 'at' is timestamp"),
        ("local", INSTANT, "column 'local' is timestamp"),
        ("price", pa.float64(), r"bytes \(decimal\); accepted: decimal128\(9, 0\)"),
        ("a..b", pa.int64(), "column 'a..b' is not the path of a field; accepted: names with"),
        ("nix", pa.int64(), "column 'nix' is not in .* 'nix'; accepted: id, text, at, "),
        ("point.y", pa.int64(), "column 'point.y' .* record shop.v1.Point lacks 'y'.*: x, next"),
        ("id.x", pa.int64(), "column 'id.x' names 'x' inside an Avro long, and only records"),
        ("points.x", pa.int64(), "'x' inside an Avro array"),
        ("point", pa.string(), "column 'point' is string, .*accepted: a struct of some"),
        ("point", pa.struct([("y", pa.int64())]), "column 'point', field 'y', is not in .*'y'"),
        ("point", pa.struct([("x", pa.string())]), "column 'point', field 'x', is string"),
        ("points", pa.list_(pa.int64()), "column 'points', item, is int64"),
        ("tags", pa.map_(pa.string(), pa.string()), "column 'tags', value, is string"),
        ("tags", pa.map_(pa.int64(), pa.int64()), "accepted: a map with string keys"),
        ("either", pa.string(), "column 'either' is of Avro type union of int, string: the type"),
    ],
)
def test_a_column_that_the_schema_cannot_fill_is_refused_by_name(name, kind, words):
    with pytest.raises(SchemaRefused, match=words) as refused:
        check(name, kind)
    assert "next step: " in str(refused.value)


def test_raw_fields_are_texts_numbers_dates_and_timestamps():
    for name in ("id", "text", "at", "local", "point.next.x"):
        check("id", pa.int64(), (name,))
    for name in ("raw", "price", "point", "tags"):
        with pytest.raises(SchemaRefused, match=f"field '{name}' is of Avro type"):
            check("id", pa.int64(), (name,))
    with pytest.raises(SchemaRefused, match="field 'ts' is not in the reader's schema"):
        check("id", pa.int64(), ("ts",))
    with pytest.raises(SchemaRefused, match="field 'either' is of Avro type union"):
        check("id", pa.int64(), ("either",))


@pytest.mark.parametrize("root", ['"long"', '["null", "int"]', '{"type": "array", "items": "int"}'])
def test_a_schema_that_is_not_a_record_has_no_columns(root):
    with pytest.raises(SchemaRefused, match="only records have fields"):
        check_avro_columns(parse_avro_reader(root), pa.schema([("x", pa.int64())]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "null",
        '"nix"',
        "{}",
        '{"type": "record", "name": "R"}x',
        '{"type": "record", "fields": []}',
        '{"type": "record", "name": "R", "fields": [{"name": "x"}]}',
        '{"type": "record", "name": "R", "fields": 7}',
        '{"type": "enum", "name": "E"}',
        '{"type": "fixed", "name": "F", "size": "x"}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "array"}',
        '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}, '
        '{"name": "x", "type": "long"}]}',
        '{"type": "enum", "name": "E", "symbols": ["A", "A"]}',
        "[" * 100_000,
    ],
)
def test_a_text_that_is_not_a_schema_has_one_clear_error(text):
    with pytest.raises(ValueError, match="the text is not an Avro schema"):
        parse_avro_reader(text)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4}
FIXED = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4}


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        ({**DECIMAL, "precision": None}, pa.binary()),
        ({**DECIMAL, "precision": 0}, pa.binary()),
        ({**DECIMAL, "precision": -3}, pa.binary()),
        ({**DECIMAL, "precision": "10"}, pa.binary()),
        ({**DECIMAL, "precision": True}, pa.binary()),
        ({**DECIMAL, "scale": 5}, pa.binary()),
        ({**DECIMAL, "scale": -1}, pa.binary()),
        ({**DECIMAL, "scale": "2"}, pa.binary()),
        ({**FIXED, "precision": 5}, pa.binary()),
        ({**FIXED, "size": 8, "logicalType": "uuid"}, pa.binary()),
        ({**DECIMAL, "type": "int"}, pa.int32()),
        ({"type": "int", "logicalType": 5}, pa.int32()),
        ({"type": "int", "logicalType": None}, pa.int32()),
        ({"type": "int", "logicalType": ["date"]}, pa.int32()),
        ({"type": "int", "logicalType": "timestamp-millis"}, pa.int32()),
        ({"type": "string", "logicalType": "date"}, pa.string()),
        ({"type": {"type": "long"}}, pa.int64()),
    ],
    ids=str,
)
def test_an_invalid_logical_type_is_ignored_as_avro_says(kind, plain):
    """Java's library takes such schemas, so registries have them."""
    for wrapped in (kind, ["null", kind]):
        fields = [{"name": "x", "type": wrapped}]
        text = json.dumps({"type": "record", "name": "R", "fields": fields})
        reader = parse_avro_reader(text)
        check_avro_columns(reader, pa.schema([("x", plain)]))
        assert pa.types.is_struct(
            build_requested(reader, RequestedFields(pa.schema([("x", plain)]))).type
        )


@pytest.mark.parametrize("precision", [4, 3])
def test_a_valid_decimal_is_accepted(precision):
    fields = [{"name": "x", "type": {**FIXED, "precision": precision, "scale": 1}}]
    reader = parse_avro_reader(json.dumps({"type": "record", "name": "R", "fields": fields}))
    check_avro_columns(reader, pa.schema([("x", pa.decimal128(9, 2))]))


@pytest.mark.parametrize(
    "field",
    [
        {"name": "x", "type": "int", "default": "a"},
        {"name": "x", "type": ["null", "int"], "default": 7},
        {"name": "x", "type": {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}},
    ],
    ids=str,
)
def test_a_schema_with_a_default_that_is_not_of_its_type_is_accepted(field):
    """Older registries took such schemas, and Java's library reads by them."""
    parse_avro_reader(json.dumps({"type": "record", "name": "R", "fields": [field]}))


def test_the_fingerprint_depends_on_the_canonical_form_only():
    spaced = json.dumps({**SCHEMA, "doc": "other"}, indent=4)
    assert parse_avro_reader(spaced).fingerprint == READER.fingerprint
    other = json.dumps(SCHEMA).replace('"id"', '"number"')
    assert parse_avro_reader(other).fingerprint != READER.fingerprint
    # The example of Avro's documentation for SHA-256.
    digest = "3f2b87a9fe7cc9b13835598c3981cd45e3e355309e5090aa0933d7becb6fba45"
    assert parse_avro_reader('"int"').fingerprint == digest


def test_a_reader_crosses_processes():
    assert pickle.loads(pickle.dumps(READER)) == READER


def test_a_missing_library_is_one_sentence_with_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro.schema", None)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    parse_schema.cache_clear()
    with pytest.raises(MissingExtra, match="pip install 'pyspark-timestream\\[avro\\]'"):
        schemas.parse_avro_reader('"int"')
