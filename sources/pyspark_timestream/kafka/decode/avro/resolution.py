"""Resolves a writer's schema with the wanted part of the reader's, into steps of reading.

The steps follow the bytes: there is one for each type of the writer's schema, in its order. A step
with a `type` reads values of that type, one without only passes over the bytes. Fields go by their
names or the reader's aliases; a field that the writer lacks has the reader's default. Numbers are
promoted as Avro says. The names of records, enums and fixed types need not be the same, except
where a union has several of them. A timestamp keeps its writer's unit, whatever the reader's is.

Schemas that cannot be resolved at all are refused. In a union it depends on the value: one that the
reader's type cannot hold does not fit, as does a symbol that the reader's enum lacks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.avro.binaries import convert_bytes
from pyspark_timestream.kafka.decode.avro.schemas import (
    ParsedSchema,
    Schema,
    describe,
    kind_of,
    read_as,
    time_unit,
)
from pyspark_timestream.kafka.decode.avro.wanted import NO_DEFAULT, Wanted, WantedField

__all__ = ["Again", "Plan", "Record", "Repeated", "Scalar", "Step", "Union", "resolve"]

_PROMOTIONS: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
"""The reader's types that a writer's type can be read as, where there are others than itself."""

_MAX_STEPS: Final = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """Reads a value without parts.

    Attributes:
        kind: the writer's type.
        type: the type to read it as; None: it is passed over.
        size: the bytes of a fixed value.
        symbols: the reader's symbol for each of an enum, None if it lacks it; without a type,
            the writer's.
        scale: (multiply by, then divide by) for a timestamp in microseconds.
    """

    kind: str
    type: pa.DataType | None = None
    size: int = 0
    symbols: tuple[str | None, ...] = ()
    scale: tuple[int, int] = (1, 1)


class RecordField(NamedTuple):
    """A field of the writer's record: its step, and its place in the struct that is read."""

    step: "Step"
    place: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Reads the fields of a record; `defaults` are of the fields that the writer lacks."""

    fields: tuple[RecordField, ...]
    type: pa.DataType | None = None
    defaults: Mapping[int, pa.Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """Reads the branch that the value names.

    Attributes:
        branches: the steps; those of branches that the reader's type cannot hold have no type.
        fits: for each branch, if the reader's type can hold it.
    """

    branches: tuple["Step", ...]
    type: pa.DataType | None = None
    fits: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """Reads the blocks of an array, or of a map if it is `keyed`."""

    item: "Step"
    keyed: bool
    type: pa.DataType | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Passes over a value of a type that contains itself, by its name."""

    name: str


Step: TypeAlias = Scalar | Record | Union | Repeated | Again


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The steps of reading a payload.

    Attributes:
        step: the first step, which reads a record.
        recursive: the steps that `Again` means, by name.
    """

    step: Step
    recursive: Mapping[str, Step]


def resolve(writer: ParsedSchema, wanted: Wanted) -> Plan:
    """Resolve the writer's schema with the wanted part of the reader's.

    Raises:
        SchemaRefused: values of the writer's schema cannot be read with the reader's.
    """
    resolver = _Resolver(writer)
    try:
        return Plan(resolver.read("the value", writer.schema, wanted), resolver.recursive)
    except _Unresolved as error:
        raise SchemaRefused(*error.args) from None


class _Unresolved(Exception):
    """The writer's type cannot be read as the reader's: problem, what is accepted, next step."""


class _Resolver:
    """Builds the steps for one writer's schema."""

    def __init__(self, writer: ParsedSchema) -> None:
        self.recursive: dict[str, Step] = {}
        self._writer = writer
        self._open: list[str] = []
        self._steps = 0

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise SchemaRefused(
                f"a writer's Avro schema has more than {_MAX_STEPS} types, counting a type once "
                "for each place",
                next_step="divide the schema",
            )

    def skip(self, schema: Schema) -> Step:
        """Build the step that passes over values of `schema`."""
        self._count()
        found = self._writer.look_up(schema)
        kind = kind_of(found)
        if kind != "record":
            return self._skip_others(kind, found)
        name = found["name"]
        if name in self._open:
            self.recursive.setdefault(name, Scalar("null"))  # Set below, when it is complete.
            return Again(name)
        self._open.append(name)
        step = Record(tuple(RecordField(self.skip(f["type"]), None) for f in found["fields"]))
        self._open.pop()
        if name in self.recursive:
            self.recursive[name] = step
        return step

    def _skip_others(self, kind: str, schema: Schema) -> Step:
        if kind == "union":
            return Union(tuple(self.skip(branch) for branch in schema))
        if kind == "array":
            return Repeated(self.skip(schema["items"]), keyed=False)
        if kind == "map":
            return Repeated(self.skip(schema["values"]), keyed=True)
        if kind == "fixed":
            return Scalar(kind, size=schema["size"])
        return Scalar(kind, symbols=tuple(schema["symbols"]) if kind == "enum" else ())

    def read(self, what: str, schema: Schema, wanted: Wanted) -> Step:
        """Build the step that reads values of `schema` as `wanted`."""
        self._count()
        found = self._writer.look_up(schema)
        kind = kind_of(found)
        if kind == "union":
            return self._read_union(what, found, wanted)
        if kind == "null" and wanted.nullable:
            return Scalar(kind, wanted.type)
        if kind_of(wanted.schema) not in _PROMOTIONS.get(kind, (kind,)):
            raise _unresolved(what, found, wanted)
        if kind == "record":
            return self._read_record(what, found, wanted)
        if kind in ("array", "map") and wanted.item is not None:
            item = self.read(what, found["items" if kind == "array" else "values"], wanted.item)
            return Repeated(item, kind == "map", wanted.type)
        return _read_scalar(what, kind, found, wanted)

    def _read_union(self, what: str, schemas: list[Schema], wanted: Wanted) -> Step:
        steps, fits = [], []
        for branch in schemas:
            try:
                if self._is_other(branch, schemas, wanted):
                    raise _unresolved(what, branch, wanted)
                steps.append(self.read(what, branch, wanted))
                fits.append(True)
            except _Unresolved:
                steps.append(self.skip(branch))
                fits.append(False)
        if not any(fits):
            raise _unresolved(what, schemas, wanted)
        return Union(tuple(steps), wanted.type, tuple(fits))

    def _is_other(self, branch: Schema, schemas: list[Schema], wanted: Wanted) -> bool:
        """Check for a named type that is not the wanted one, where a union has several."""
        found = self._writer.look_up(branch)
        kind = kind_of(found)
        alike = [each for each in map(self._writer.look_up, schemas) if kind_of(each) == kind]
        if kind not in ("record", "enum", "fixed") or len(alike) == 1:
            return False
        if kind_of(wanted.schema) != kind:
            return False
        names = {name.split(".")[-1] for name in _names_of(wanted.schema)}
        return found["name"].split(".")[-1] not in names

    def _read_record(self, what: str, schema: Schema, wanted: Wanted) -> Step:
        written = {each["name"] for each in schema["fields"]}
        aliases = _list_aliases(wanted.schema)
        places: dict[str, int] = {}
        defaults: dict[int, pa.Array] = {}
        for place, field_ in enumerate(wanted.fields):
            names = [field_.name, *(name for name, of in aliases.items() if of == field_.name)]
            known = [name for name in names if name in written]
            if known:
                places[known[0]] = place
            else:
                defaults[place] = _read_default(what, field_)
        fields = tuple(
            RecordField(self.skip(each["type"]), None)
            if each["name"] not in places
            else RecordField(
                self.read(
                    f"field '{each['name']}'",
                    each["type"],
                    wanted.fields[places[each["name"]]].wanted,
                ),
                places[each["name"]],
            )
            for each in schema["fields"]
        )
        return Record(fields, wanted.type, defaults)


def _unresolved(what: str, writer: Schema, wanted: Wanted) -> _Unresolved:
    null = "null or " if wanted.nullable else ""
    return _Unresolved(
        f"{what} was written as Avro type {describe(writer)}, and the reader's schema has "
        f"{null}{describe(wanted.schema)}",
        "a reader's schema that is compatible with the writer's",
        "correct the reader's schema, or leave the column out",
    )


def _list_aliases(record: Schema) -> dict[str, str]:
    """List the aliases of a record's fields, each with its field; names go before aliases."""
    names = {field["name"] for field in record["fields"]}
    found: dict[str, str] = {}
    for field_ in record["fields"]:
        for alias in field_.get("aliases", ()):
            if alias not in names:
                found.setdefault(alias, field_["name"])
    return found


def _names_of(schema: Schema) -> list[str]:
    return [schema["name"], *schema.get("aliases", ())]


def _read_scalar(what: str, kind: str, schema: Schema, wanted: Wanted) -> Scalar:
    if kind == "enum":
        known = set(wanted.schema["symbols"])
        other = wanted.schema.get("default")
        symbols = tuple(each if each in known else other for each in schema["symbols"])
        return Scalar(kind, wanted.type, symbols=symbols)
    if kind == "fixed" and schema["size"] != wanted.schema["size"]:
        raise _unresolved(what, schema, wanted)
    if pa.types.is_decimal(wanted.type) and kind in ("bytes", "fixed"):
        written = read_as(schema)
        if pa.types.is_decimal(written) and written.scale != wanted.type.scale:
            raise _unresolved(what, schema, wanted)
    size = schema["size"] if kind == "fixed" else 0
    scale = (time_unit(schema) or time_unit(wanted.schema)) if kind in ("int", "long") else None
    if not pa.types.is_timestamp(wanted.type):
        scale = None
    return Scalar(kind, wanted.type, size, scale=scale or (1, 1))


def _read_default(what: str, wanted: WantedField) -> pa.Array:
    """Return the default of a field that the writer lacks, as one value."""
    if wanted.default is NO_DEFAULT:
        raise _Unresolved(
            f"{what} was written without the field '{wanted.name}' of the reader's schema, which "
            "lacks a default for it",
            "a reader's schema with a default for it",
            "add the default, or leave the column out",
        )
    try:
        return pa.array([_convert_default(wanted.wanted, wanted.default)], wanted.wanted.type)
    except (pa.ArrowException, AttributeError, ValueError, TypeError, OverflowError) as error:
        raise _Unresolved(
            f"the default of field '{wanted.name}' is not of its Avro type "
            f"{describe(wanted.wanted.schema)}",
            None,
            "correct the reader's schema",
        ) from error


def _convert_default(wanted: Wanted, default: Any) -> Any:
    """Convert a default from JSON."""
    kind = kind_of(wanted.schema)
    if default is None and wanted.nullable:
        return None
    if kind == "record":
        return {
            each.name: _convert_default(each.wanted, default.get(each.name, each.default))
            for each in wanted.fields
        }
    if wanted.item is not None and kind == "array":
        return [_convert_default(wanted.item, each) for each in default]
    if wanted.item is not None:
        return [(key, _convert_default(wanted.item, each)) for key, each in default.items()]
    if kind in ("bytes", "fixed"):
        return convert_bytes(default.encode("latin-1"), wanted.type)
    if kind in ("float", "double"):
        return float(default)
    if pa.types.is_timestamp(wanted.type):
        times, over = time_unit(wanted.schema) or (1, 1)
        return default * times // over
    return default
