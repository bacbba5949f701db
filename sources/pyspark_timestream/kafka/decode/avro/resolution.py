"""Resolves a writer's schema with the requested part of the reader's, into steps of reading.

Fields match by name or by the reader's
aliases; a field that the writer lacks gets the reader's default. Numbers are promoted as Avro says.
Names of records, enums and fixed types may differ, except where a union has several of them. A
timestamp keeps the writer's unit, whatever the reader's is.

A registry lets a producer widen a number, change a decimal's scale or drop a field (compatibility
BACKWARD, Confluent's default). A wider number is read as the writer's type, and the column's type
decides about each value. Bad values are a dropped field without a default, numbers that are times
only to the reader, and a branch or symbol that the reader's union or enum lacks. Schemas that
differ in kind are refused (semantics 13.9).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.avro.schemas import (
    DEFAULT,
    NO_DEFAULT,
    ParsedSchema,
    Requested,
    RequestedField,
    Schema,
    describe,
    kind_of,
    read_as,
    time_unit,
)
from pyspark_timestream.kafka.decode.avro.steps import (
    Again,
    Bad,
    Plan,
    Record,
    RecordField,
    Repeated,
    Scalar,
    Step,
    TypedStep,
    Union,
)

_PROMOTIONS: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
"""Writer's type -> the reader's types that it can be read as; others only as themselves."""

_WHOLE: Final = ("int", "long")
_NUMBERS: Final = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
"""Numbers from narrow to wide, as types without logical ones."""

_MAX_STEPS: Final = 100_000


def resolve(writer: ParsedSchema, requested: Requested) -> Plan:
    """Resolve the writer's schema with the requested part of the reader's.

    Raises:
        SchemaRefused: the reader's schema cannot read values of the writer's.
    """
    resolver = _Resolver(writer)
    try:
        return Plan(resolver.read("the value", writer.schema, requested), resolver.recursive)
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
        """Build the step that skips values of `schema`."""
        self._count()
        defined = self._writer.look_up(schema)
        kind = kind_of(defined)
        if kind != "record":
            return self._skip_others(kind, defined)
        name = defined["name"]
        if name in self._open:
            self.recursive.setdefault(name, Scalar("null"))  # Replaced below when complete.
            return Again(name)
        self._open.append(name)
        step = Record(tuple(RecordField(self.skip(f["type"]), None) for f in defined["fields"]))
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

    def read(self, what: str, schema: Schema, requested: Requested) -> TypedStep:
        """Build the step that reads values of `schema` as `requested`, or as a wider number."""
        defined = self._writer.look_up(schema)
        if kind_of(defined) == "union":
            self._count()
            return self._read_union(
                what, defined, _widen(requested, map(self._writer.look_up, defined))
            )
        return self._read_one(what, defined, _widen(requested, [defined]))

    def _read_one(self, what: str, defined: Schema, requested: Requested) -> TypedStep:
        """Build the step for a schema that is not a union."""
        self._count()
        kind = kind_of(defined)
        if kind == "null" and requested.nullable:
            return Scalar(kind, requested.type)
        if kind_of(requested.schema) not in _PROMOTIONS.get(kind, (kind,)):
            if kind in _NUMBERS and kind_of(requested.schema) in _NUMBERS:
                # To the reader a narrower number is a time, but the writer may mean another unit.
                return Bad(self.skip(defined), requested.type)
            raise _unresolved(what, defined, requested)
        if kind == "record":
            return self._read_record(defined, requested)
        if kind in ("array", "map") and requested.item is not None:
            item = self.read(
                what, defined["items" if kind == "array" else "values"], requested.item
            )
            assert item.type is not None, "an item that is read has a type"
            inner = pa.list_(item.type) if kind == "array" else pa.map_(pa.string(), item.type)
            return Repeated(item, kind == "map", inner)
        return _read_scalar(what, kind, defined, requested)

    def _read_union(self, what: str, schemas: list[Schema], requested: Requested) -> Union:
        steps: dict[int, TypedStep] = {}
        nulls = [
            number
            for number, branch in enumerate(schemas)
            if branch == "null" and requested.nullable
        ]
        for number, branch in enumerate(schemas):
            try:
                if self._is_other(branch, schemas, requested):
                    raise _unresolved(what, branch, requested)
                if number not in nulls:
                    step = self._read_one(what, self._writer.look_up(branch), requested)
                    first = next(iter(steps.values()), step)
                    if not isinstance(step, Bad) and step.type == first.type:
                        steps[number] = step
            except _Unresolved:
                continue
        if not steps and not nulls:
            raise _unresolved(what, schemas, requested)
        # At most one array, map or record of a union fits, and scalars get the requested type.
        kind = next((step.type for step in steps.values()), requested.type)
        steps |= {number: Scalar("null", kind) for number in nulls}
        branches = tuple(
            steps.get(number) or Bad(self.skip(each), kind) for number, each in enumerate(schemas)
        )
        return Union(branches, kind)

    def _is_other(self, branch: Schema, schemas: list[Schema], requested: Requested) -> bool:
        """Return whether a union has several named types and this one is not the requested one."""
        defined = self._writer.look_up(branch)
        kind = kind_of(defined)
        alike = [each for each in map(self._writer.look_up, schemas) if kind_of(each) == kind]
        if kind not in ("record", "enum", "fixed") or len(alike) == 1:
            return False
        if kind_of(requested.schema) != kind:
            return False
        names = [requested.schema["name"], *requested.schema.get("aliases", ())]
        return defined["name"].split(".")[-1] not in {name.split(".")[-1] for name in names}

    def _read_record(self, schema: Schema, requested: Requested) -> Record:
        written = {each["name"] for each in schema["fields"]}
        aliases = _list_aliases(requested.schema)
        types = {each.name: each.inner.type for each in requested.fields}
        places: dict[str, int] = {}
        defaults: dict[int, pa.Array] = {}
        missing: list[int] = []
        for place, field_ in enumerate(requested.fields):
            names = [field_.name, *(name for name, of in aliases.items() if of == field_.name)]
            shared = [name for name in names if name in written]
            if shared:
                places[shared[0]] = place
            elif (default := _read_default(field_)) is not None:
                defaults[place] = default
            else:
                missing.append(place)
        fields = []
        for each in schema["fields"]:
            number = places.get(each["name"])
            if number is None:
                fields.append(RecordField(self.skip(each["type"]), None))
                continue
            read_as_ = requested.fields[number]
            step = self.read(f"field '{each['name']}'", each["type"], read_as_.inner)
            types[read_as_.name] = step.type
            fields.append(RecordField(step, number))
        return Record(tuple(fields), pa.struct(list(types.items())), defaults, tuple(missing))


def _widen(requested: Requested, written: Iterable[Schema]) -> Requested:
    """Return `requested` as the writer's type if that is a wider number or another decimal.

    In a union, whole numbers take precedence over fractions, and the reader's scale over others,
    because a value read as the other type would not be the same number.
    """
    reader = kind_of(requested.schema)
    if pa.types.is_decimal(requested.type):
        types = {read_as(each) for each in written if kind_of(each) in ("bytes", "fixed")}
        others = [each for each in types if pa.types.is_decimal(each)]
        if len(others) != 1 or others[0].scale == requested.type.scale:
            return requested
        return replace(requested, type=others[0])
    if requested.type != _NUMBERS.get(reader):
        return requested
    kinds = [kind for kind in map(kind_of, written) if kind in _NUMBERS]
    narrow = [kind for kind in kinds if reader in _WHOLE and kind in _WHOLE]
    widest = max(narrow or kinds, key=list(_NUMBERS).index, default=reader)
    if reader in _PROMOTIONS.get(widest, (widest,)):
        return requested
    return replace(requested, schema=widest, type=_NUMBERS[widest])


def _unresolved(what: str, writer: Schema, requested: Requested) -> _Unresolved:
    null = "null or " if requested.nullable else ""
    return _Unresolved(
        f"{what} was written as Avro type {describe(writer)}, and the reader's schema has "
        f"{null}{describe(requested.schema)}",
        "a reader's schema that is compatible with the writer's",
        "correct the reader's schema, or leave the column out",
    )


def _list_aliases(record: Schema) -> dict[str, str]:
    """Map the aliases of a record's fields to the fields; an alias that is also a name is out."""
    names = {field["name"] for field in record["fields"]}
    aliases: dict[str, str] = {}
    for field_ in record["fields"]:
        for alias in field_.get("aliases", ()):
            if alias not in names:
                aliases.setdefault(alias, field_["name"])
    return aliases


def _read_scalar(what: str, kind: str, schema: Schema, requested: Requested) -> Scalar:
    if kind == "enum":
        accepted = set(requested.schema["symbols"])
        other = requested.schema.get(DEFAULT)
        other = other if other in accepted else None
        symbols = tuple(each if each in accepted else other for each in schema["symbols"])
        return Scalar(kind, requested.type, symbols=symbols)
    if kind == "fixed" and schema["size"] != requested.schema["size"]:
        raise _unresolved(what, schema, requested)
    if pa.types.is_decimal(requested.type) and kind in ("bytes", "fixed"):
        written = read_as(schema)
        if pa.types.is_decimal(written) and written.scale != requested.type.scale:
            # One of several decimals of a union.
            raise _unresolved(what, schema, requested)
    size = schema["size"] if kind == "fixed" else 0
    scale = (time_unit(schema) or time_unit(requested.schema)) if kind in ("int", "long") else None
    if not pa.types.is_timestamp(requested.type):
        scale = None
    return Scalar(kind, requested.type, size, scale=scale or (1, 1))


def _read_default(requested: RequestedField) -> pa.Array | None:
    """Return the default of a field that the writer lacks, as an array of one value.

    None if the field has no default, or one of another type: such schemas are in use.
    """
    if requested.default is NO_DEFAULT:
        return None
    try:
        return pa.array(
            [_convert_default(requested.inner, requested.default)], requested.inner.type
        )
    except (pa.ArrowException, AttributeError, ValueError, TypeError, OverflowError):
        return None


_JSON: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}
"""The JSON type of a default, where it is not a text."""


def _convert_default(requested: Requested, default: Any) -> Any:
    """Convert a default from JSON."""
    kind = kind_of(requested.schema)
    if default is None and requested.nullable:
        return None
    if type(default) not in _JSON.get(kind, (str,)):
        raise TypeError(f"{default!r} is not of type {kind}")
    if kind == "enum" and default not in requested.schema["symbols"]:
        raise ValueError(f"{default!r} is not a symbol")
    if kind == "record":
        return {
            each.name: _convert_default(each.inner, default.get(each.name, each.default))
            for each in requested.fields
        }
    if requested.item is not None and kind == "array":
        return [_convert_default(requested.item, each) for each in default]
    if requested.item is not None:
        return [(key, _convert_default(requested.item, each)) for key, each in default.items()]
    if kind in ("bytes", "fixed"):
        data = default.encode("latin-1")
        if kind == "fixed" and len(data) != requested.schema["size"]:
            raise ValueError(f"{data!r} is not of its size")
        converted = Scalar(kind, requested.type).convert(pa.array([data], pa.binary()))
        if converted.bad.any():
            raise ValueError(f"{data!r} does not fit {requested.type}")
        return converted.column[0].as_py()
    if kind in ("float", "double"):
        return float(default)
    if pa.types.is_timestamp(requested.type):
        times, over = time_unit(requested.schema) or (1, 1)
        return default * times // over
    return default
