"""Columns for the fields of payloads: from schemas, or from JSON values themselves.

A column is a field that is not a struct, by its path. Fields whose names suggest secrets, at any
depth, are left out, and so is what Spark cannot have as a column.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.kafka.decode.avro.schemas import (
    ParsedSchema,
    kind_of,
    parse_schema,
    read_as,
)
from pyspark_timestream.kafka.decode.protobuf.reader import compile_reader, create_reader
from pyspark_timestream.kafka.decode.value_samples import suggests_secret
from pyspark_timestream.kafka.options.paths import format_path
from pyspark_timestream.kafka.options.readers import ReaderSchema

__all__ = ["UINT64", "Columns", "format_columns", "infer_json", "list_columns", "read_schema"]

_MAX_DEPTH: Final = 8
_PLAIN_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_LONG: Final = range(-(2**63), 2**63)

_NOTHING: Final = pa.null()
"""The type of a value that says nothing of its field's type."""

_TYPE_NAMES: Final = {
    "binary": "binary",
    "bool": "boolean",
    "date32[day]": "date",
    "double": "double",
    "duration[us]": "interval day to second",
    "float": "float",
    "int32": "int",
    "int64": "bigint",
    "string": "string",
    "timestamp[us, tz=UTC]": "timestamp",
    "timestamp[us]": "timestamp_ntz",
}

_PROTOBUF_TIMES: Final = {
    "google.protobuf.Timestamp": pa.timestamp("us", tz="UTC"),
    "google.protobuf.Duration": pa.duration("us"),
    "google.type.Date": pa.date32(),
}
_PROTOBUF_WRAPPER: Final = re.compile(r"google\.protobuf\.[A-Za-z0-9]+Value")
UINT64: Final = pa.decimal128(20, 0)
"""The type of a column for unsigned numbers of 64 bits."""


class Columns(NamedTuple):
    """The columns of a part of the records.

    Attributes:
        fields: the columns by the texts of their paths.
        secrets: how many fields are left out since their names suggest secrets.
        left: how many more fields there are than a schema is to have.
    """

    fields: pa.Schema
    secrets: int = 0
    left: int = 0


def list_columns(struct: pa.DataType) -> Columns:
    """List the fields of a struct that are not structs themselves, by their paths."""
    found: list[pa.Field] = []
    secrets = 0
    pending: list[tuple[tuple[str, ...], pa.DataType]]
    pending = [((each.name,), each.type) for each in struct]
    while pending:
        path, kind = pending.pop(0)
        if suggests_secret(path[-1]):
            secrets += 1
        elif pa.types.is_struct(kind):
            # In the place of the struct, so that its fields stay together.
            pending = [((*path, each.name), each.type) for each in kind] + pending
        elif all(name.strip() and name.isprintable() for name in path):
            rest, hidden = _drop_secrets(kind)
            secrets += hidden
            if rest is not None:
                found.append(pa.field(format_path(path), rest))
    return Columns(pa.schema(found), secrets)


def _drop_secrets(kind: pa.DataType) -> tuple[pa.DataType | None, int]:
    """Return a type without the fields that suggest secrets, None if nothing is left."""
    if pa.types.is_list(kind):
        inner, secrets = _drop_secrets(kind.value_type)
        return (None if inner is None else pa.list_(inner)), secrets
    if pa.types.is_map(kind):
        inner, secrets = _drop_secrets(kind.item_type)
        return (None if inner is None else pa.map_(kind.key_type, inner)), secrets
    if not pa.types.is_struct(kind):
        return kind, 0
    kept, secrets = [], 0
    for each in kind:
        if suggests_secret(each.name):
            secrets += 1
            continue
        inner, hidden = _drop_secrets(each.type)
        secrets += hidden
        if inner is not None:
            kept.append((each.name, inner))
    return (pa.struct(kept) if kept else None), secrets


def format_columns(schema: pa.Schema) -> list[str]:
    """Write each column as Spark's DDL does.

    >>> format_columns(pa.schema([("a.b", pa.list_(pa.int64())), ("c", pa.bool_())]))
    ['`a.b` array<bigint>', 'c boolean']
    """
    return [f"{_quote(each.name)} {_format_type(each.type)}" for each in schema]


def _quote(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _format_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{_format_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_format_type(kind.key_type)},{_format_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_quote(e.name)}:{_format_type(e.type)}' for e in kind)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _TYPE_NAMES[str(kind)]


# -- JSON ------------------------------------------------------------------------------------------


def infer_json(objects: Iterable[Mapping[str, Any]]) -> pa.DataType:
    """Infer the struct that JSON objects are; a field of several types is a string."""
    found = pa.struct([])
    for each in objects:
        found = _merge(found, _type_of(each, 0))
    return pa.struct([(each.name, _settle(each.type)) for each in found])


def _type_of(value: Any, depth: int) -> pa.DataType:
    match value:
        case None:
            return _NOTHING
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if value in _LONG else pa.string()
        case float():
            return pa.float64()
        case dict() if depth < _MAX_DEPTH:
            return pa.struct([(name, _type_of(inner, depth + 1)) for name, inner in value.items()])
        case list() if depth < _MAX_DEPTH:
            item = _NOTHING
            for each in value:
                item = _merge(item, _type_of(each, depth + 1))
            return pa.list_(item)
        case _:
            return pa.string()


def _merge(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or other == _NOTHING:
        return one
    if one == _NOTHING:
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_merge(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        merged = {each.name: each.type for each in one}
        for each in other:
            merged[each.name] = _merge(merged.get(each.name, _NOTHING), each.type)
        return pa.struct(list(merged.items()))
    return pa.string()


def _settle(kind: pa.DataType) -> pa.DataType:
    """Return a type that a column can have: what is not known is a string."""
    if kind == _NOTHING or kind == pa.struct([]):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settle(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _settle(each.type)) for each in kind])
    return kind


# -- schemas ---------------------------------------------------------------------------------------


def read_schema(format: str, reader: ReaderSchema) -> pa.DataType:
    """Return the struct that an Avro or Protobuf schema is read as; empty if it lacks fields."""
    if format == "avro":
        parsed = parse_schema(reader.text)
        found = _read_avro(parsed, parsed.schema, ())
    else:
        message = create_reader(base64.b64decode(reader.text), reader.message)
        found = _read_message(compile_reader(message).descriptor, ())
    return found if found is not None and pa.types.is_struct(found) else pa.struct([])


def _read_avro(parsed: ParsedSchema, schema: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of an Avro schema; None if it cannot be a column, or contains itself."""
    schema = parsed.look_up(schema)
    if isinstance(schema, list):
        types = [each for each in schema if each != "null"]
        return _read_avro(parsed, types[0], outer) if len(types) == 1 else None
    match kind_of(schema):
        case "record":
            name = schema["name"]
            if name in outer or len(outer) >= _MAX_DEPTH:
                return None
            fields = [
                (field["name"], _read_avro(parsed, field["type"], (*outer, name)))
                for field in schema["fields"]
            ]
            return _create_struct(fields)
        case "array":
            item = _read_avro(parsed, schema["items"], outer)
            return None if item is None else pa.list_(item)
        case "map":
            item = _read_avro(parsed, schema["values"], outer)
            return None if item is None else pa.map_(pa.string(), item)
        case "null":
            return None
        case _:
            return read_as(schema)


def _read_message(message: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    """Return the struct of a Protobuf message; None if it contains itself."""
    if message.full_name in outer or len(outer) >= _MAX_DEPTH:
        return None
    inside = (*outer, message.full_name)
    return _create_struct([(field.name, _read_field(field, inside)) for field in message.fields])


def _read_field(field: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    is_message = field.type == field.TYPE_MESSAGE
    if is_message and field.is_repeated and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        item = _read_one(value, outer)
        return None if item is None else pa.map_(_read_one(key, outer), item)
    found = _read_one(field, outer)
    return pa.list_(found) if field.is_repeated and found is not None else found


def _read_one(field: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    if field.type == field.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in _PROTOBUF_TIMES:
            return _PROTOBUF_TIMES[name]
        wrapped = field.message_type.fields_by_name.get("value")
        if _PROTOBUF_WRAPPER.fullmatch(name) and wrapped is not None and name not in outer:
            return _read_one(wrapped, (*outer, name))
        return _read_message(field.message_type, outer)
    types: dict[int, pa.DataType] = {
        field.TYPE_DOUBLE: pa.float64(),
        field.TYPE_FLOAT: pa.float32(),
        field.TYPE_BOOL: pa.bool_(),
        field.TYPE_STRING: pa.string(),
        field.TYPE_ENUM: pa.string(),
        field.TYPE_BYTES: pa.binary(),
        field.TYPE_UINT64: UINT64,
        field.TYPE_FIXED64: UINT64,
        field.TYPE_INT32: pa.int32(),
        field.TYPE_SINT32: pa.int32(),
        field.TYPE_SFIXED32: pa.int32(),
        field.TYPE_GROUP: None,
    }
    return types.get(field.type, pa.int64())


def _create_struct(fields: Iterable[tuple[str, pa.DataType | None]]) -> pa.DataType:
    return pa.struct([(name, kind) for name, kind in fields if kind is not None])
