"""Avro schemas: parsed, reduced to the requested part, checked against the columns.

A schema is a JSON text; fastavro resolves its names once per process. A decimal is read as a
decimal and a `date` as a date; timestamps of every unit become timestamps in microseconds, in UTC,
or without a zone if `local-`; enums and uuids become strings; `bytes`, `fixed` and `duration`
become binary. Other logical types (`time-millis`) are ignored, so their values are plain numbers. A
union with null is a nullable value; a union of several other types cannot be read.

A registry answers with a text and the texts that it refers to. fastavro needs one complete text, so
`inline_references` merges them.
"""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.core.arrow import MAX_DIGITS
from pyspark_timestream.errors import MissingExtra, SchemaRefused
from pyspark_timestream.kafka.decode.convert import can_cast
from pyspark_timestream.kafka.decode.records import RequestedFields, Tree, merge, nest
from pyspark_timestream.kafka.options.parsers import parse_path
from pyspark_timestream.kafka.schemas import RegisteredSchema

Schema = Any
"""An Avro schema as fastavro returns it: a name, a list, or a dict; names are full."""

_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
"""Avro type without a logical type -> the type that its values are read as."""

_TIMES: Final = {
    f"{local}timestamp-{unit}": (pa.timestamp("us", tz=zone), scale)
    for local, zone in (("", "UTC"), ("local-", None))
    for unit, scale in (("millis", (1_000, 1)), ("micros", (1, 1)), ("nanos", (1, 1_000)))
}
"""Logical type of a long -> the type that it is read as, and (multiply by, then divide by)."""

DEFAULT: Final = "timestream.default"
"""The key of a field's or an enum's default in a parsed schema.

Under its own key fastavro would check it, and refuse schemas that others read. A default is needed
only for a field that the writer lacks, so it is checked there.
"""


@dataclass(frozen=True, slots=True)
class AvroReader:
    """The reader's schema of a topic: it decides which fields there are, and their defaults.

    Attributes:
        text: the schema as JSON.
        fingerprint: SHA-256 of the parsing canonical form, in hexadecimal digits.
        record: the full name of the only record to read; empty: all records of the schema.
    """

    text: str
    fingerprint: str
    record: str = ""

    def parse(self) -> "ParsedSchema":
        """Parse the schema; if it is a union of records, keep only `record`.

        Raises:
            SchemaRefused: the record is not in it.
        """
        parsed = parse_schema(self.text)
        if not self.record:
            return parsed
        roots = parsed.schema if isinstance(parsed.schema, list) else [parsed.schema]
        names = [find_name(parsed.look_up(root)) for root in roots]
        if self.record not in names:
            raise SchemaRefused(
                f"the reader's schema is not of the record '{self.record}'",
                ", ".join(name for name in names if name) or "a schema of records",
                "give the full name of one of these as 'valueMessage' or 'keyMessage', or leave it "
                "out",
            )
        return parsed._replace(schema=roots[names.index(self.record)])

    def accepts(self, name: str | None) -> bool:
        """Return whether records of this name are requested: the reader's, or an alias of it."""
        if not self.record:
            return True
        return name in _list_record_names(self)


class ParsedSchema(NamedTuple):
    """A parsed schema, and the schemas that it names by their full names."""

    schema: Schema
    names: Mapping[str, Schema]

    def look_up(self, schema: Schema) -> Schema:
        """Return what `schema` stands for: a name is replaced with the schema of that name."""
        return self.names.get(schema, schema) if isinstance(schema, str) else schema


def find_name(schema: Schema) -> str | None:
    """Return the full name of a record, enum or fixed type; None for another type."""
    return schema.get("name") if isinstance(schema, dict) else None


@functools.lru_cache(maxsize=100)
def _list_record_names(reader: AvroReader) -> frozenset[str]:
    parsed = reader.parse()
    record = parsed.look_up(parsed.schema)
    space = record["name"].rpartition(".")[0]
    aliases = record.get("aliases", ())
    full = (a if "." in a or not space else f"{space}.{a}" for a in aliases)
    return frozenset((record["name"], *full))


def parse_avro_reader(text: str, record: str = "") -> AvroReader:
    """Parse the reader's schema as `parse_schema` does; `record` is the only record to read."""
    parsed = parse_schema(text)
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    canonical = to_parsing_canonical_form(parsed.schema)
    return AvroReader(text, fingerprint(canonical, "SHA-256"), record)


@functools.lru_cache(maxsize=1_000)
def parse_schema(text: str) -> ParsedSchema:
    """Parse the JSON text of a schema.

    Raises:
        ValueError: it is not an Avro schema.
        MissingExtra: fastavro is not installed.
    """
    try:
        import fastavro.schema
    except ImportError as error:
        raise MissingExtra.create("reading Avro", "fastavro", "avro") from error
    names: dict[str, Schema] = {}
    try:
        parsed = fastavro.schema.parse_schema(_tidy(json.loads(text)), names)
        _check_names(names)
        return ParsedSchema(parsed, names)
    except Exception as error:  # For bad schemas fastavro raises KeyError, TypeError and others.
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"the text is not an Avro schema ({problem})") from error


def _tidy(schema: Any) -> Any:
    """Drop the parts of a schema that affect no value, and those that Avro says to ignore.

    Avro ignores an invalid logical type: the value is read as its plain type.
    """
    if isinstance(schema, list):
        branches = [_tidy(inner) for inner in schema]
        if any(isinstance(branch, list) for branch in branches):
            raise ValueError("a union is a branch of a union")
        return branches
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("type"), dict | list):
        return _tidy(schema["type"])
    tidied = _move_default(schema)
    if "logicalType" in schema and not _is_logical(schema):
        del tidied["logicalType"]
    for key in ("items", "values"):
        if key in schema:
            tidied[key] = _tidy(schema[key])
    if isinstance(schema.get("fields"), list):
        tidied["fields"] = [_tidy_field(inner) for inner in schema["fields"]]
    return tidied


def _tidy_field(field: Any) -> Any:
    if not isinstance(field, dict):
        return field
    tidied = _move_default(field)
    if isinstance(field.get("type"), dict | list):
        tidied["type"] = _tidy(field["type"])
    return tidied


def _move_default(schema: dict[str, Any]) -> dict[str, Any]:
    return {DEFAULT if key == "default" else key: value for key, value in schema.items()}


def _is_logical(schema: dict[str, Any]) -> bool:
    """Return whether a logical type is valid: a decimal's digits must make sense."""
    if schema["logicalType"] != "decimal":
        return isinstance(schema["logicalType"], str)
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return False
    max_precision: float = math.inf
    if schema.get("type") == "fixed" and type(schema.get("size")) is int:
        max_precision = math.floor(math.log10(2) * (8 * schema["size"] - 1))
    return schema.get("type") in ("bytes", "fixed") and 0 < precision <= max_precision


def _check_names(names: Mapping[str, Schema]) -> None:
    """Check sizes, that names are texts, and that fields differ in name; fastavro does not."""
    for name, schema in names.items():
        size = schema.get("size", 0)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"the size of {name} is {size!r}")
        fields = [field["name"] for field in schema.get("fields", ())]
        owners = [schema, *schema.get("fields", ())]
        texts = [*fields, *schema.get("symbols", ())]
        texts += [alias for owner in owners for alias in owner.get("aliases", ())]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} has a name that is not a text")
        if len(set(fields)) < len(fields):
            raise ValueError(f"{name} has two fields of the same name")


_NAMED: Final = ("record", "error", "enum", "fixed")
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@functools.lru_cache(maxsize=1_000)
def inline_references(schema: RegisteredSchema) -> str:
    """Return an Avro schema's text with each referenced type defined where it is first used.

    The text may name a type by its full name, however deep a reference defines it. Or it may use
    the registry's name for the reference, which may differ from the type's name.

    Raises:
        ValueError: a text is not JSON.
    """
    if not schema.references:
        return schema.text
    definitions: dict[str, _Definition] = {}
    texts = [(reference.name, json.loads(reference.text)) for reference in schema.references]
    for _, text in texts:
        _collect_types(text, "", definitions)
    for name, text in texts:
        definitions.setdefault(name, _Definition(text, ""))
    return json.dumps(_inline_types(json.loads(schema.text), "", definitions, set()))


class _Definition(NamedTuple):
    """The definition of a type, and its enclosing namespace."""

    schema: Any
    space: str


def _collect_types(schema: Any, space: str, definitions: dict[str, _Definition]) -> None:
    """Add all types that `schema` defines, at any depth, to `definitions` by their full names."""
    if isinstance(schema, list):
        for member in schema:
            _collect_types(member, space, definitions)
    if not isinstance(schema, dict):
        return
    inner = space
    if schema.get("type") in _NAMED:
        name = _name_fully(schema, space)
        definitions.setdefault(name, _Definition(schema, space))
        inner = name.rpartition(".")[0]
    fields = schema.get("fields")
    for declared in fields if isinstance(fields, list) else ():
        if isinstance(declared, dict):
            _collect_types(declared.get("type"), inner, definitions)
    for key in ("type", "items", "values"):
        _collect_types(schema.get(key), inner, definitions)


def _inline_types(
    schema: Any, space: str, definitions: Mapping[str, _Definition], defined: set[str]
) -> Any:
    """Copy `schema` with definitions in the place of names that are not defined yet.

    `space` is the enclosing namespace, empty for none. The function adds to `defined`, the full
    names defined so far.
    """
    if isinstance(schema, str):
        # As in Java, a name that the enclosing namespace lacks is looked up without one.
        names = [_full_name(schema, space), schema]
        known_name = next((name for name in names if name in defined), None)
        if schema in _PRIMITIVES or known_name is not None:
            return known_name or schema
        name = next((name for name in names if name in definitions), None)
        return schema if name is None else _inline_types(*definitions[name], definitions, defined)
    if isinstance(schema, list):
        return [_inline_types(member, space, definitions, defined) for member in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _NAMED:
        return _inline_named(schema, space, definitions, defined)
    inner = {
        key: _inline_types(schema[key], space, definitions, defined)
        for key in ("type", "items", "values")
        if key in schema
    }
    return {**schema, **inner}


def _inline_named(
    schema: dict[str, Any],
    space: str,
    definitions: Mapping[str, _Definition],
    defined: set[str],
) -> Any:
    name = _name_fully(schema, space)
    if name in defined:
        return name
    defined.add(name)
    own_space, _, simple = name.rpartition(".")
    copied = {**schema, "name": simple, "namespace": own_space}
    if "fields" in schema:
        copied["fields"] = [
            {**field, "type": _inline_types(field.get("type"), own_space, definitions, defined)}
            for field in schema["fields"]
        ]
    return copied


def _name_fully(schema: Mapping[str, Any], space: str) -> str:
    namespace = schema.get("namespace")
    return _full_name(str(schema.get("name", "")), space if namespace is None else str(namespace))


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def kind_of(schema: Schema) -> str:
    """Name the Avro type of a schema that has been looked up, such as `union` or `long`."""
    if isinstance(schema, list):
        return "union"
    kind = schema["type"] if isinstance(schema, dict) else schema
    return "record" if kind == "error" else str(kind)


def read_as(schema: Schema) -> pa.DataType:
    """Return the type that values of a scalar schema are read as."""
    kind = kind_of(schema)
    logical = _logical_type(schema)
    if logical == "decimal" and schema["precision"] <= MAX_DIGITS:
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical == "date" and kind == "int":
        return pa.date32()
    if logical in _TIMES and kind == "long":
        return _TIMES[logical][0]
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return pa.string()
    return _PLAIN[kind]


def time_unit(schema: Schema) -> tuple[int, int] | None:
    """Return (multiply by, then divide by) for microseconds; None if it is not a timestamp."""
    logical = _logical_type(schema)
    return _TIMES[logical][1] if logical in _TIMES and kind_of(schema) == "long" else None


def _logical_type(schema: Schema) -> str | None:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return logical if isinstance(logical, str) else None


def describe_schema(schema: Schema) -> str:
    """Describe a schema in a few words, for messages."""
    if isinstance(schema, list):
        return f"union of {', '.join(describe_schema(branch) for branch in schema)}"
    if isinstance(schema, str):
        return schema
    name = f" {schema['name']}" if "name" in schema else ""
    logical = f" ({schema['logicalType']})" if "logicalType" in schema else ""
    return f"{kind_of(schema)}{name}{logical}"


NO_DEFAULT: Final = object()


@dataclass(frozen=True, slots=True, eq=False)
class RequestedType:
    """A type of the reader's schema, reduced to the requested parts.

    Attributes:
        schema: the Avro type; never a union, which `nullable` replaces, nor a name.
        type: the type that it is read as.
        nullable: True if the value may be null.
        fields: the requested fields of a record.
        item: the items of an array, or the values of a map.
    """

    schema: Schema
    type: pa.DataType
    nullable: bool
    fields: tuple["RequestedField", ...] = ()
    item: "RequestedType | None" = None


class RequestedField(NamedTuple):
    """A requested field of a record: its name, its type, and its default as JSON."""

    name: str
    inner: RequestedType
    default: Any


def check_avro_columns(reader: AvroReader, columns: pa.Schema, raw: tuple[str, ...] = ()) -> None:
    """Refuse columns, times and edges that the reader's schema lacks or has with other types."""
    parsed = reader.parse()
    for column in columns:
        schema = _find_field(parsed, f"column '{column.name}'", column.name)
        _check_type(parsed, f"column '{column.name}'", schema, column.type)
    for name in raw:
        schema = _find_field(parsed, f"field '{name}'", name)
        kind = kind_of(_strip_null(parsed, f"field '{name}'", schema)[0])
        if kind not in ("string", "enum", "int", "long", "float", "double"):
            raise SchemaRefused(
                f"field '{name}' is of Avro type {describe_schema(schema)}, and is neither a time "
                "nor an edge",
                "a string, a number, a date or a timestamp",
                "name another field, or the record's 'timestamp'",
            )


def are_temporal(reader: AvroReader, raw: tuple[str, ...]) -> bool:
    """Return whether all fields `raw` are dates or timestamps, with units from the schema."""
    parsed = reader.parse()
    schemas = (_strip_null(parsed, name, _find_field(parsed, name, name))[0] for name in raw)
    return all(pa.types.is_temporal(read_as(schema)) for schema in schemas)


def _find_field(parsed: ParsedSchema, subject: str, path: str) -> Schema:
    """Return the schema of the field at `path`."""
    schema = parsed.schema
    try:
        path_names = parse_path(path)
    except ValueError as error:
        raise SchemaRefused(
            f"{subject} is not the path of a field",
            "names with dots between them, such as after.id; in backquotes, a name with dots",
            "correct it, or leave it out",
        ) from error
    for name in path_names:
        record = _strip_null(parsed, subject, schema)[0]
        if kind_of(record) != "record":
            raise SchemaRefused(
                f"{subject} names '{name}' inside an Avro {describe_schema(record)}, and only "
                "records have fields",
                "a path of names from record to record, such as after.id",
                "read the field itself, and take it apart in Spark",
            )
        matches = [field for field in record["fields"] if field["name"] == name]
        if not matches:
            raise _missing_field(subject, name, record)
        schema = matches[0]["type"]
    return schema


def _missing_field(subject: str, name: str, record: Schema) -> SchemaRefused:
    return SchemaRefused(
        f"{subject} is not in the reader's schema: Avro {describe_schema(record)} lacks '{name}'",
        ", ".join(field["name"] for field in record["fields"]) or "nothing: it is empty",
        "name one of them, or leave the column out",
    )


def _strip_null(parsed: ParsedSchema, subject: str, schema: Schema) -> tuple[Schema, bool]:
    """Return the only type of a union beside null, and whether the union has a null."""
    defined = parsed.look_up(schema)
    if not isinstance(defined, list):
        return defined, kind_of(defined) == "null"
    types = [parsed.look_up(branch) for branch in defined if branch != "null"]
    if len(types) > 1:
        raise SchemaRefused(
            f"{subject} is of Avro type {describe_schema(defined)}: the type of a value is known "
            "only after it is read",
            "a type, or a union of a type and null; a union of records where 'valueMessage' or "
            "'keyMessage' names the one to read",
            "leave the column out, or name the record",
        )
    return (types[0] if types else "null"), len(types) < len(defined)


def _check_type(parsed: ParsedSchema, subject: str, schema: Schema, target: pa.DataType) -> None:
    defined = _strip_null(parsed, subject, schema)[0]
    kind = kind_of(defined)
    if kind == "record" and pa.types.is_struct(target):
        by_name = {field["name"]: field["type"] for field in defined["fields"]}
        for child in target:
            if child.name not in by_name:
                raise _missing_field(f"{subject}, field '{child.name}',", child.name, defined)
            child_subject = f"{subject}, field '{child.name}',"
            _check_type(parsed, child_subject, by_name[child.name], child.type)
    elif kind == "array" and pa.types.is_list(target):
        _check_type(parsed, f"{subject}, item,", defined["items"], target.value_type)
    elif kind == "map" and pa.types.is_map(target) and pa.types.is_string(target.key_type):
        _check_type(parsed, f"{subject}, value,", defined["values"], target.item_type)
    elif kind in _NESTED or not can_cast(read_as(defined), target):
        accepts = _NESTED.get(kind) or str(read_as(defined))
        raise SchemaRefused(
            f"{subject} is {target}, but in the reader's schema it is of Avro type "
            f"{describe_schema(defined)}",
            accepts,
            "declare it so, and convert it in Spark",
        )


_NESTED: Final = {
    "record": "a struct of some of its fields, or a column for a path inside, such as after.id",
    "array": "an array",
    "map": "a map with string keys",
}


@functools.lru_cache(maxsize=100)
def build_requested(reader: AvroReader, fields: RequestedFields) -> RequestedType:
    """Build the part of the reader's schema that `fields` need; `fields` have been checked."""
    shape: Tree = {}
    for path, column in zip(fields.column_paths(), fields.columns, strict=True):
        merge(shape, nest(path, _shape_of(column.type)))
    for path in fields.raw_paths().values():
        merge(shape, nest(path, {}))
    parsed = reader.parse()
    return _build_type(parsed, parsed.schema, shape)


def _shape_of(target: pa.DataType) -> Tree:
    """Return the fields in a type; a list or a map has those of its items."""
    if pa.types.is_struct(target):
        return {child.name: _shape_of(child.type) for child in target}
    if pa.types.is_list(target):
        return _shape_of(target.value_type)
    if pa.types.is_map(target):
        return _shape_of(target.item_type)
    return {}


def _build_type(parsed: ParsedSchema, schema: Schema, shape: Mapping[str, Any]) -> RequestedType:
    defined, nullable = _strip_null(parsed, "a column", schema)
    kind = kind_of(defined)
    if kind == "record":
        by_name = {field["name"]: field for field in defined["fields"]}
        fields = tuple(
            RequestedField(
                name,
                _build_type(parsed, by_name[name]["type"], below),
                by_name[name].get(DEFAULT, NO_DEFAULT),
            )
            for name, below in shape.items()
        )
        inner = pa.struct([(field.name, field.inner.type) for field in fields])
        return RequestedType(defined, inner, nullable, fields)
    if kind == "array":
        item = _build_type(parsed, defined["items"], shape)
        return RequestedType(defined, pa.list_(item.type), nullable, item=item)
    if kind == "map":
        item = _build_type(parsed, defined["values"], shape)
        return RequestedType(defined, pa.map_(pa.string(), item.type), nullable, item=item)
    return RequestedType(defined, read_as(defined), nullable)
