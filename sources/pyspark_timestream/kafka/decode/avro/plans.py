"""Plans of reading Avro payloads: their steps, and how two schemas are resolved into them.

Steps follow the bytes: one per type of the writer's schema, in its order. A step with a `type`
reads values as that type, one without only skips the bytes. `by_block` and `by_row` take *wire
values* (numbers, indices, bytes) from payloads in different ways; the steps turn these into
columns, by the rule for bad values of all formats (semantics 13.13).

`resolve_schemas` makes the steps from a writer's schema and the requested part of the reader's.
Fields match by name or by the reader's aliases; a field that the writer lacks gets the reader's
default. Numbers are promoted as Avro says. Names of records, enums and fixed types may differ,
except where a union has several of them. A timestamp keeps the writer's unit, even if the reader's
differs.

A registry lets a producer widen a number, change a decimal's scale or drop a field (compatibility
BACKWARD, Confluent's default). A wider number is read as the writer's type, and the column's type
decides about each value. Bad values are a dropped field without a default, numbers that are times
only to the reader, and a branch or symbol that the reader's union or enum lacks. Schemas that
differ in kind are refused (semantics 13.9).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID  # noqa: TID251 - formats the ids of others, and makes none

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.core.arrow import Integers, locate, to_mask
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.avro.schemas import (
    DEFAULT,
    NO_DEFAULT,
    ParsedSchema,
    RequestedField,
    RequestedType,
    Schema,
    describe_schema,
    kind_of,
    read_as,
    time_unit,
)
from pyspark_timestream.kafka.decode.convert import (
    Converted,
    build_repeated,
    build_struct,
    cast_scalars,
    find_bad,
    join_converted,
    keep,
)

Wire: TypeAlias = pa.Array | npt.NDArray[Any]

_NUMPY: Final = {
    "boolean": np.bool_,
    "int": np.int64,
    "long": np.int64,
    "float": np.float32,
    "double": np.float64,
}
"""Types with numpy arrays as wire values; an enum has its indices there, other types binary."""

_WORD: Final = 8
_MAX_LONG: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """Reads a scalar.

    Attributes:
        kind: the writer's type.
        type: the type to read it as; None: skip it.
        size: the size of a fixed value in bytes.
        symbols: the reader's symbol for each symbol of the writer's enum, None if the reader lacks
            it; without a type, the writer's symbols.
        scale: (multiply by, then divide by) for a timestamp in microseconds.
    """

    kind: str
    type: pa.DataType | None = None
    size: int = 0
    symbols: tuple[str | None, ...] = ()
    scale: tuple[int, int] = (1, 1)

    @property
    def is_text(self) -> bool:
        """Whether the bytes must be UTF-8, or the payload is broken."""
        return self.kind == "string" and bool(pa.types.is_string(self.type))

    def to_wire(self, values: list[Any]) -> Wire:
        """Make an array of wire values that were read one by one."""
        if self.kind in _NUMPY:
            return np.array(values, _NUMPY[self.kind])
        if self.kind == "enum":
            return pa.array(values, pa.int64())
        return pa.array(values, pa.string() if self.is_text else pa.binary())

    def convert(self, wire: Wire) -> Converted:
        """Convert n wire values to this step's type."""
        target = self.type
        assert target is not None, "only values that are read are converted"
        if self.kind == "enum":
            return find_bad(pa.array(self.symbols, target).take(wire), wire)
        if self.kind not in _NUMPY:
            if pa.types.is_decimal(target):
                return _read_decimals(wire, target)
            if self.kind == "fixed" and pa.types.is_string(target):
                return keep(_format_uuids(wire))
            return cast_scalars(wire, target)
        if pa.types.is_timestamp(target):
            return _scale_values(wire, *self.scale, target)
        if pa.types.is_date32(target):
            return keep(pa.array(wire.astype(np.int32)).view(target))
        numbers = target.to_pandas_dtype()
        if wire.dtype != numbers:
            with np.errstate(invalid="ignore"):  # A signalling NaN is a NaN like any other.
                wire = wire.astype(numbers)
        return keep(pa.array(wire, target))


class RecordField(NamedTuple):
    """A field of the writer's record: its step, and its index in the struct; None: skip it."""

    step: "Step"
    child: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Reads the fields of a record.

    Attributes:
        fields: the writer's fields.
        type: the struct to read them as.
        defaults: the defaults of fields that the writer lacks, by their index in the struct.
        missing: the indexes of fields that the writer lacks and that have no default.
    """

    fields: tuple[RecordField, ...]
    type: pa.DataType | None = None
    defaults: Mapping[int, pa.Array] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    def build(self, rows: int, columns: Mapping[int, Converted]) -> Converted:
        """Build structs from `columns`, by the fields' indexes in the struct."""
        assert self.type is not None, "a record that is read has a type"
        children = dict(columns)
        for index, default in self.defaults.items():
            children[index] = keep(default.take(pa.array(np.zeros(rows, np.int64))))
        for index in self.missing:
            # A field that the writer lacks is bad if it has no default (semantics 13.9).
            children[index] = all_bad(rows, self.type.field(index).type)
        ordered = [children[index] for index in range(self.type.num_fields)]
        return build_struct(self.type, ordered, np.zeros(rows, np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """Reads the branch that the value names; a branch that the reader cannot hold is a `Bad`."""

    branches: tuple["Step", ...]
    type: pa.DataType | None = None

    def join(self, branch_indexes: Integers, branches: Mapping[int, Converted]) -> Converted:
        """Put the values of `branches` in the order of n `branch_indexes`; -1 becomes null."""
        order = np.full(len(branch_indexes), -1, np.int64)
        total = 0
        for branch, values in branches.items():
            if len(values.column) == len(branch_indexes):
                return values
            rows = np.flatnonzero(branch_indexes == branch)
            order[rows] = np.arange(total, total + len(rows))
            total += len(rows)
        return join_converted(list(branches.values()), order, self.type)


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """Reads the blocks of an array; of a map if `keyed`."""

    item: "Step"
    keyed: bool
    type: pa.DataType | None = None

    def build(self, lengths: Integers, items: Sequence[Converted]) -> Converted:
        """Build arrays of `lengths` from their items, or maps from their keys and values."""
        built = build_repeated(self.type, items, lengths, np.zeros(len(lengths), np.bool_))
        if not self.keyed or lengths.max(initial=0) < 2:
            return built
        return _drop_repeated_keys(built, self.type, items, lengths)


@dataclass(frozen=True, slots=True, eq=False)
class SelfReference:
    """Skips a value of a type that contains itself, given its name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Bad:
    """Skips a value that the reader's type cannot hold, and gives a null of `type`."""

    step: "Step"
    type: pa.DataType


TypedStep: TypeAlias = Scalar | Record | Union | Repeated | Bad
Step: TypeAlias = TypedStep | SelfReference


@dataclass(frozen=True, slots=True, eq=False)
class AvroPlan:
    """The first step of reading a payload, and the steps that `SelfReference` refers to by name."""

    step: TypedStep
    recursive: Mapping[str, Step]


def all_bad(rows: int, target: pa.DataType) -> Converted:
    """Return nulls for values that `target` cannot hold."""
    return Converted(pa.nulls(rows, target), np.ones(rows, np.bool_))


def _scale_values(values: Integers, times: int, over: int, target: pa.DataType) -> Converted:
    if times == 1:
        return keep(pa.array(values // over if over > 1 else values).view(target))
    largest = _MAX_LONG // times
    bad = (values > largest) | (values < -largest)
    if not bad.any():
        return keep(pa.array(values * times).view(target))
    scaled = np.where(bad, 0, values) * times
    return Converted(pa.array(scaled, pa.int64(), mask=bad).view(target), bad)


def _read_decimals(values: pa.Array, target: pa.DataType) -> Converted:
    """Read big-endian numbers of up to eight bytes together, and longer ones one by one."""
    bounds, data = locate(values)
    lengths = np.diff(bounds)
    if lengths.max(initial=0) > _WORD:
        long = [_read_long_decimal(value, target) for value in values.to_pylist()]
        return find_bad(pa.array(long, target), values)
    padded = np.concatenate((data, np.zeros(_WORD, np.uint8)))
    words = np.ndarray((len(padded) - _WORD + 1,), ">i8", padded, strides=(1,))
    # The shift to the right removes the bytes after the number and extends its sign.
    numbers = words[bounds[:-1]].astype(np.int64) >> (8 * (_WORD - np.maximum(lengths, 1)))
    bad = lengths == 0
    if target.precision < 19:
        # Compare without the absolute value: the least 64-bit number has none.
        bound = 10**target.precision
        bad |= (numbers >= bound) | (numbers <= -bound)
    halves = np.empty((len(values), 2), np.int64)
    halves[:, 0], halves[:, 1] = numbers, numbers >> 63
    buffers = [None, pa.py_buffer(np.ascontiguousarray(halves))]
    return keep(pa.Array.from_buffers(target, len(values), buffers), bad)


def _read_long_decimal(data: bytes, target: pa.DataType) -> Decimal | None:
    number = int.from_bytes(data, signed=True)
    if not data or abs(number) >= 10**target.precision:
        return None
    sign, digits, _ = Decimal(number).as_tuple()
    return Decimal((sign, digits, -target.scale))


def _format_uuids(values: pa.Array) -> pa.Array:
    """Format 16 bytes each; broken payloads have fewer."""
    texts = [str(UUID(bytes=value.ljust(16, b"\0"))) for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def _drop_repeated_keys(
    built: Converted, target: pa.DataType, entries: Sequence[Converted], lengths: Integers
) -> Converted:
    """Keep the last of a map's entries with equal keys, in the position of the first (13.9)."""
    # Only broken payloads have keys that are null.
    codes = entries[0].column.dictionary_encode().indices.fill_null(-1)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    pairs = owners * (len(owners) + 1) + codes.to_numpy(zero_copy_only=False)
    if len(np.unique(pairs)) == len(pairs):
        return built
    first = np.unique(pairs, return_index=True)[1]
    last = len(pairs) - 1 - np.unique(pairs[::-1], return_index=True)[1]
    last_rows = last[np.argsort(first)]
    last_entries = [keep(entry.column.take(pa.array(last_rows))) for entry in entries]
    new_lengths = np.bincount(owners[last_rows], minlength=len(lengths))
    absent = to_mask(built.column.is_null())
    return Converted(build_repeated(target, last_entries, new_lengths, absent).column, built.bad)


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


def resolve_schemas(writer: ParsedSchema, requested: RequestedType) -> AvroPlan:
    """Resolve the writer's schema with the requested part of the reader's.

    Raises:
        SchemaRefused: the reader's schema cannot read values of the writer's.
    """
    resolver = _Resolver(writer)
    try:
        return AvroPlan(resolver.read("the value", writer.schema, requested), resolver.recursive)
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
            return SelfReference(name)
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

    def read(self, subject: str, schema: Schema, requested: RequestedType) -> TypedStep:
        """Build the step that reads values of `schema` as `requested`, or as a wider number."""
        defined = self._writer.look_up(schema)
        if kind_of(defined) == "union":
            self._count()
            return self._read_union(
                subject, defined, _widen_type(requested, map(self._writer.look_up, defined))
            )
        return self._read_one(subject, defined, _widen_type(requested, [defined]))

    def _read_one(self, subject: str, defined: Schema, requested: RequestedType) -> TypedStep:
        """Build the step for a schema that is not a union."""
        self._count()
        kind = kind_of(defined)
        if kind == "null" and requested.nullable:
            return Scalar(kind, requested.type)
        if kind_of(requested.schema) not in _PROMOTIONS.get(kind, (kind,)):
            if kind in _NUMBERS and kind_of(requested.schema) in _NUMBERS:
                # The reader takes a narrower number for a time; the writer may mean another unit.
                return Bad(self.skip(defined), requested.type)
            raise _unresolved(subject, defined, requested)
        if kind == "record":
            return self._read_record(defined, requested)
        if kind in ("array", "map") and requested.item is not None:
            item = self.read(
                subject, defined["items" if kind == "array" else "values"], requested.item
            )
            assert item.type is not None, "an item that is read has a type"
            inner = pa.list_(item.type) if kind == "array" else pa.map_(pa.string(), item.type)
            return Repeated(item, kind == "map", inner)
        return _read_scalar(subject, kind, defined, requested)

    def _read_union(self, subject: str, schemas: list[Schema], requested: RequestedType) -> Union:
        steps: dict[int, TypedStep] = {}
        nulls = [
            number
            for number, branch in enumerate(schemas)
            if branch == "null" and requested.nullable
        ]
        for number, branch in enumerate(schemas):
            try:
                if self._is_other(branch, schemas, requested):
                    raise _unresolved(subject, branch, requested)
                if number not in nulls:
                    step = self._read_one(subject, self._writer.look_up(branch), requested)
                    earlier = next(iter(steps.values()), step)
                    if not isinstance(step, Bad) and step.type == earlier.type:
                        steps[number] = step
            except _Unresolved:
                continue
        if not steps and not nulls:
            raise _unresolved(subject, schemas, requested)
        # At most one array, map or record of a union fits, and scalars get the requested type.
        data_type = next((step.type for step in steps.values()), requested.type)
        steps |= {number: Scalar("null", data_type) for number in nulls}
        branches = tuple(
            steps.get(number) or Bad(self.skip(branch), data_type)
            for number, branch in enumerate(schemas)
        )
        return Union(branches, data_type)

    def _is_other(self, branch: Schema, schemas: list[Schema], requested: RequestedType) -> bool:
        """Return whether a union has several named types and this one is not the requested one."""
        defined = self._writer.look_up(branch)
        kind = kind_of(defined)
        alike = [
            candidate
            for candidate in map(self._writer.look_up, schemas)
            if kind_of(candidate) == kind
        ]
        if kind not in ("record", "enum", "fixed") or len(alike) == 1:
            return False
        if kind_of(requested.schema) != kind:
            return False
        names = [requested.schema["name"], *requested.schema.get("aliases", ())]
        return defined["name"].split(".")[-1] not in {name.split(".")[-1] for name in names}

    def _read_record(self, schema: Schema, requested: RequestedType) -> Record:
        indexes = _match_fields(schema, requested)
        types = {field_.name: field_.inner.type for field_ in requested.fields}
        fields = []
        for writer_field in schema["fields"]:
            name, written = writer_field["name"], writer_field["type"]
            index = indexes.get(name)
            if index is None:
                fields.append(RecordField(self.skip(written), None))
                continue
            field_ = requested.fields[index]
            step = self.read(f"field '{name}'", written, field_.inner)
            types[field_.name] = step.type
            fields.append(RecordField(step, index))
        defaults: dict[int, pa.Array] = {}
        missing: list[int] = []
        for index in sorted(set(range(len(requested.fields))) - set(indexes.values())):
            default = _read_default(requested.fields[index])
            if default is None:
                missing.append(index)
            else:
                defaults[index] = default
        return Record(tuple(fields), pa.struct(list(types.items())), defaults, tuple(missing))


def _match_fields(schema: Schema, requested: RequestedType) -> dict[str, int]:
    """Return by the writer's name of a field its index in the requested ones, also by aliases."""
    writer_names = {writer_field["name"] for writer_field in schema["fields"]}
    aliases = _list_aliases(requested.schema)
    indexes: dict[str, int] = {}
    for index, field_ in enumerate(requested.fields):
        names = [field_.name, *(alias for alias, name in aliases.items() if name == field_.name)]
        shared = next((name for name in names if name in writer_names), None)
        if shared is not None:
            indexes[shared] = index
    return indexes


def _widen_type(requested: RequestedType, writer_schemas: Iterable[Schema]) -> RequestedType:
    """Return `requested` as the writer's type if that is a wider number or another decimal.

    In a union, whole numbers take precedence over fractions, and the reader's scale over others,
    because a value read as the other type would not be the same number.
    """
    reader = kind_of(requested.schema)
    if pa.types.is_decimal(requested.type):
        types = {
            read_as(schema) for schema in writer_schemas if kind_of(schema) in ("bytes", "fixed")
        }
        others = [decimal for decimal in types if pa.types.is_decimal(decimal)]
        if len(others) != 1 or others[0].scale == requested.type.scale:
            return requested
        return replace(requested, type=others[0])
    if requested.type != _NUMBERS.get(reader):
        return requested
    kinds = [kind for kind in map(kind_of, writer_schemas) if kind in _NUMBERS]
    narrow = [kind for kind in kinds if reader in _WHOLE and kind in _WHOLE]
    widest = max(narrow or kinds, key=list(_NUMBERS).index, default=reader)
    if reader in _PROMOTIONS.get(widest, (widest,)):
        return requested
    return replace(requested, schema=widest, type=_NUMBERS[widest])


def _unresolved(subject: str, writer: Schema, requested: RequestedType) -> _Unresolved:
    null = "null or " if requested.nullable else ""
    return _Unresolved(
        f"{subject} was written as Avro type {describe_schema(writer)}, and the reader's schema "
        f"has {null}{describe_schema(requested.schema)}",
        "a reader's schema that is compatible with the writer's",
        "correct the reader's schema, or leave the column out",
    )


def _list_aliases(record: Schema) -> dict[str, str]:
    """Map the aliases of a record's fields to the fields, without aliases that are also names."""
    names = {field["name"] for field in record["fields"]}
    aliases: dict[str, str] = {}
    for field_ in record["fields"]:
        for alias in field_.get("aliases", ()):
            if alias not in names:
                aliases.setdefault(alias, field_["name"])
    return aliases


def _read_scalar(subject: str, kind: str, schema: Schema, requested: RequestedType) -> Scalar:
    if kind == "enum":
        accepted = set(requested.schema["symbols"])
        fallback = requested.schema.get(DEFAULT)
        fallback = fallback if fallback in accepted else None
        symbols = tuple(symbol if symbol in accepted else fallback for symbol in schema["symbols"])
        return Scalar(kind, requested.type, symbols=symbols)
    if kind == "fixed" and schema["size"] != requested.schema["size"]:
        raise _unresolved(subject, schema, requested)
    if pa.types.is_decimal(requested.type) and kind in ("bytes", "fixed"):
        writer_type = read_as(schema)
        if pa.types.is_decimal(writer_type) and writer_type.scale != requested.type.scale:
            # One of several decimals of a union.
            raise _unresolved(subject, schema, requested)
    size = schema["size"] if kind == "fixed" else 0
    scale = (time_unit(schema) or time_unit(requested.schema)) if kind in ("int", "long") else None
    if not pa.types.is_timestamp(requested.type):
        scale = None
    return Scalar(kind, requested.type, size, scale=scale or (1, 1))


def _read_default(requested: RequestedField) -> pa.Array | None:
    """Return the default of a field that the writer lacks, as an array of one value.

    None if the field has no default, or one of another type, as some schemas in use have.
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


def _convert_default(requested: RequestedType, default: Any) -> Any:
    kind = kind_of(requested.schema)
    if default is None and requested.nullable:
        return None
    if type(default) not in _JSON.get(kind, (str,)):
        raise TypeError(f"{default!r} is not of type {kind}")
    if kind == "enum" and default not in requested.schema["symbols"]:
        raise ValueError(f"{default!r} is not a symbol")
    if kind == "record":
        return {
            field_.name: _convert_default(field_.inner, default.get(field_.name, field_.default))
            for field_ in requested.fields
        }
    if requested.item is not None and kind == "array":
        return [_convert_default(requested.item, element) for element in default]
    if requested.item is not None:
        return [
            (key, _convert_default(requested.item, element)) for key, element in default.items()
        ]
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
