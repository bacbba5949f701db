"""The wanted part of a reader's schema, and its check against the columns that are wanted."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.avro.schemas import (
    DEFAULT,
    AvroReader,
    ParsedSchema,
    Schema,
    describe,
    kind_of,
    read_as,
)
from pyspark_timestream.kafka.decode.cast import can_cast
from pyspark_timestream.kafka.decode.fields import WantedFields
from pyspark_timestream.kafka.options.paths import parse_path

__all__ = [
    "NO_DEFAULT",
    "Wanted",
    "WantedField",
    "build_wanted",
    "check_avro_columns",
    "have_own_unit",
]

NO_DEFAULT: Final = object()

Shape = dict[str, Any]
"""The wanted fields of a record by name, each with its own shape; that of a list is its items'."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A type of the reader's schema, without the parts that are not wanted.

    Attributes:
        schema: the Avro type; never a union, which is `nullable`, nor a name.
        type: the type that it is read as.
        nullable: null is a value of it.
        fields: the wanted fields of a record.
        item: the items of an array, or the values of a map.
    """

    schema: Schema
    type: pa.DataType
    nullable: bool
    fields: tuple["WantedField", ...] = ()
    item: "Wanted | None" = None


class WantedField(NamedTuple):
    """A wanted field of a record: its name, its type, and its default as JSON."""

    name: str
    wanted: Wanted
    default: Any


def check_avro_columns(reader: AvroReader, columns: pa.Schema, raw: tuple[str, ...] = ()) -> None:
    """Check that the reader's schema has the wanted columns, and fields with times and edges.

    Raises:
        SchemaRefused: a path is not in the schema, or its type cannot be read as the column's.
    """
    parsed = reader.parse()
    for column in columns:
        found = _find(parsed, f"column '{column.name}'", column.name)
        _check_type(parsed, f"column '{column.name}'", found, column.type)
    for name in raw:
        found = _find(parsed, f"field '{name}'", name)
        kind = kind_of(_strip_null(parsed, f"field '{name}'", found)[0])
        if kind not in ("string", "enum", "int", "long", "float", "double"):
            raise SchemaRefused(
                f"field '{name}' is of Avro type {describe(found)}, and is neither a time nor an "
                "edge",
                "a string, a number, a date or a timestamp",
                "name another field, or the record's 'timestamp'",
            )


def have_own_unit(reader: AvroReader, raw: tuple[str, ...]) -> bool:
    """True if all fields `raw` are dates or timestamps, whose unit is in the schema."""
    parsed = reader.parse()
    schemas = (_strip_null(parsed, name, _find(parsed, name, name))[0] for name in raw)
    return all(pa.types.is_temporal(read_as(schema)) for schema in schemas)


def _find(parsed: ParsedSchema, what: str, path: str) -> Schema:
    """Return the schema of the field at `path`."""
    schema = parsed.schema
    try:
        parts = parse_path(path)
    except ValueError as error:
        raise SchemaRefused(
            f"{what} is not the path of a field",
            "names with dots between them, such as after.id; in backquotes, a name with dots",
            "correct it, or leave it out",
        ) from error
    for part in parts:
        record = _strip_null(parsed, what, schema)[0]
        if kind_of(record) != "record":
            raise SchemaRefused(
                f"{what} names '{part}' inside an Avro {describe(record)}, and only records have "
                "fields",
                "a path of names from record to record, such as after.id",
                "read the field itself, and take it apart in Spark",
            )
        found = [field for field in record["fields"] if field["name"] == part]
        if not found:
            raise _missing_field(what, part, record)
        schema = found[0]["type"]
    return schema


def _missing_field(what: str, name: str, record: Schema) -> SchemaRefused:
    return SchemaRefused(
        f"{what} is not in the reader's schema: Avro {describe(record)} lacks '{name}'",
        ", ".join(field["name"] for field in record["fields"]) or "nothing: it is empty",
        "name one of them, or leave the column out",
    )


def _strip_null(parsed: ParsedSchema, what: str, schema: Schema) -> tuple[Schema, bool]:
    """Return the one type of a union with null, and if there is a null."""
    found = parsed.look_up(schema)
    if not isinstance(found, list):
        return found, kind_of(found) == "null"
    types = [parsed.look_up(branch) for branch in found if branch != "null"]
    if len(types) > 1:
        raise SchemaRefused(
            f"{what} is of Avro type {describe(found)}: of which type a value is, is not known "
            "before it is read",
            "a type, or a union of a type and null; a union of records where 'valueMessage' or "
            "'keyMessage' names the one to read",
            "leave the column out, or name the record",
        )
    return (types[0] if types else "null"), len(types) < len(found)


def _check_type(parsed: ParsedSchema, what: str, schema: Schema, target: pa.DataType) -> None:
    found = _strip_null(parsed, what, schema)[0]
    kind = kind_of(found)
    if kind == "record" and pa.types.is_struct(target):
        by_name = {field["name"]: field["type"] for field in found["fields"]}
        for child in target:
            if child.name not in by_name:
                raise _missing_field(f"{what}, field '{child.name}',", child.name, found)
            part = f"{what}, field '{child.name}',"
            _check_type(parsed, part, by_name[child.name], child.type)
    elif kind == "array" and pa.types.is_list(target):
        _check_type(parsed, f"{what}, item,", found["items"], target.value_type)
    elif kind == "map" and pa.types.is_map(target) and pa.types.is_string(target.key_type):
        _check_type(parsed, f"{what}, value,", found["values"], target.item_type)
    elif kind in _NESTED or not can_cast(read_as(found), target):
        accepts = _NESTED.get(kind) or str(read_as(found))
        raise SchemaRefused(
            f"{what} is {target}, but in the reader's schema it is of Avro type {describe(found)}",
            accepts,
            "declare it so, and convert it in Spark",
        )


_NESTED: Final = {
    "record": "a struct of some of its fields, or a column for a path inside, such as after.id",
    "array": "an array",
    "map": "a map with string keys",
}


@functools.lru_cache(maxsize=100)
def build_wanted(reader: AvroReader, fields: WantedFields) -> Wanted:
    """Build the part of the reader's schema that `fields` need; they have been checked."""
    shape: Shape = {}
    for column in fields.columns:
        _add(shape, parse_path(column.name), _shape_of(column.type))
    for name in fields.raw:
        _add(shape, parse_path(name), {})
    parsed = reader.parse()
    return _build(parsed, parsed.schema, shape)


def _add(shape: Shape, path: tuple[str, ...], inner: Shape) -> None:
    for part in path:
        shape = shape.setdefault(part, {})
    for name, below in inner.items():
        _add(shape, (name,), below)


def _shape_of(target: pa.DataType) -> Shape:
    if pa.types.is_struct(target):
        return {child.name: _shape_of(child.type) for child in target}
    if pa.types.is_list(target):
        return _shape_of(target.value_type)
    if pa.types.is_map(target):
        return _shape_of(target.item_type)
    return {}


def _build(parsed: ParsedSchema, schema: Schema, shape: Mapping[str, Any]) -> Wanted:
    found, nullable = _strip_null(parsed, "a column", schema)
    kind = kind_of(found)
    if kind == "record":
        by_name = {field["name"]: field for field in found["fields"]}
        fields = tuple(
            WantedField(
                name,
                _build(parsed, by_name[name]["type"], below),
                by_name[name].get(DEFAULT, NO_DEFAULT),
            )
            for name, below in shape.items()
        )
        inner = pa.struct([(field.name, field.wanted.type) for field in fields])
        return Wanted(found, inner, nullable, fields)
    if kind == "array":
        item = _build(parsed, found["items"], shape)
        return Wanted(found, pa.list_(item.type), nullable, item=item)
    if kind == "map":
        item = _build(parsed, found["values"], shape)
        return Wanted(found, pa.map_(pa.string(), item.type), nullable, item=item)
    return Wanted(found, read_as(found), nullable)
