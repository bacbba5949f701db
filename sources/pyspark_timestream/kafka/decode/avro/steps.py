"""The steps of reading Avro payloads, and how the values that they read become columns.

Steps follow the bytes: one per type of the writer's schema, in its order. A step with a `type`
reads values as that type, one without only skips the bytes. `by_block` and `by_row` differ in how
they take *wire values* (numbers, indices, bytes) from payloads. Here these become columns, by the
rule for bad values of all formats (semantics 13.13).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID  # noqa: TID251 - formats the ids of others, and makes none

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.kafka.decode.convert import (
    Converted,
    Longs,
    build_repeated,
    build_struct,
    cast_scalars,
    find_bad,
    join_converted,
    keep,
)
from pyspark_timestream.kafka.decode.records import locate, to_mask

Wire: TypeAlias = pa.Array | npt.NDArray[Any]

_NUMPY: Final = {
    "boolean": np.bool_,
    "int": np.int64,
    "long": np.int64,
    "float": np.float32,
    "double": np.float64,
}
"""Types whose wire values are numpy arrays; those of an enum are its indices, others binary."""

_WORD: Final = 8
_MAX_LONG: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """Reads a scalar.

    Attributes:
        kind: the writer's type.
        type: the type to read it as; None: skip it.
        size: the size of a fixed value in bytes.
        symbols: for each symbol of the writer's enum the reader's, None if it lacks it; without a
            type, the writer's symbols.
        scale: (multiply by, then divide by) for a timestamp in microseconds.
    """

    kind: str
    type: pa.DataType | None = None
    size: int = 0
    symbols: tuple[str | None, ...] = ()
    scale: tuple[int, int] = (1, 1)

    @property
    def is_text(self) -> bool:
        """True if the bytes must be UTF-8, or the payload is broken."""
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
            return _scale(wire, *self.scale, target)
        if pa.types.is_date32(target):
            return keep(pa.array(wire.astype(np.int32)).view(target))
        numbers = target.to_pandas_dtype()
        if wire.dtype != numbers:
            with np.errstate(invalid="ignore"):  # A signalling NaN is a NaN like any other.
                wire = wire.astype(numbers)
        return keep(pa.array(wire, target))


class RecordField(NamedTuple):
    """A field of the writer's record: its step, and its place in the struct that is read."""

    step: "Step"
    place: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Reads the fields of a record.

    Attributes:
        fields: the writer's fields.
        type: the struct to read them as.
        defaults: the defaults of fields that the writer lacks, by place.
        missing: the places of fields that the writer lacks and that have no default.
    """

    fields: tuple[RecordField, ...]
    type: pa.DataType | None = None
    defaults: Mapping[int, pa.Array] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    def build(self, rows: int, read: Mapping[int, Converted]) -> Converted:
        """Build structs of the fields that were read, by their places in the struct."""
        assert self.type is not None, "a record that is read has a type"
        children = dict(read)
        for place, default in self.defaults.items():
            children[place] = keep(default.take(pa.array(np.zeros(rows, np.int64))))
        for place in self.missing:
            # A field that the writer lacks is bad if it has no default (semantics 13.9).
            children[place] = all_bad(rows, self.type.field(place).type)
        ordered = [children[place] for place in range(self.type.num_fields)]
        return build_struct(self.type, ordered, np.zeros(rows, np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """Reads the branch that the value names; `Bad` stands for one that the reader cannot hold."""

    branches: tuple["Step", ...]
    type: pa.DataType | None = None

    def join(self, chosen: Longs, branches: Mapping[int, Converted]) -> Converted:
        """Put the values of `branches` in the order of n `chosen` branches; -1 becomes null."""
        order = np.full(len(chosen), -1, np.int64)
        total = 0
        for branch, values in branches.items():
            if len(values.column) == len(chosen):
                return values
            rows = np.flatnonzero(chosen == branch)
            order[rows] = np.arange(total, total + len(rows))
            total += len(rows)
        return join_converted(list(branches.values()), order, self.type)


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """Reads the blocks of an array; of a map if `keyed`."""

    item: "Step"
    keyed: bool
    type: pa.DataType | None = None

    def build(self, lengths: Longs, items: Sequence[Converted]) -> Converted:
        """Build arrays of `lengths` from their items, or maps from their keys and values."""
        built = build_repeated(self.type, items, lengths, np.zeros(len(lengths), np.bool_))
        if not self.keyed or lengths.max(initial=0) < 2:
            return built
        return _drop_repeated_keys(built, self.type, items, lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Skips a value of a type that contains itself, given its name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Bad:
    """Skips a value that the reader's type cannot hold, and gives a null of `type`."""

    step: "Step"
    type: pa.DataType


TypedStep: TypeAlias = Scalar | Record | Union | Repeated | Bad
Step: TypeAlias = TypedStep | Again


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The first step of reading a payload, and the steps that `Again` refers to by name."""

    step: TypedStep
    recursive: Mapping[str, Step]


def all_bad(rows: int, target: pa.DataType) -> Converted:
    """Return nulls for values that `target` cannot hold."""
    return Converted(pa.nulls(rows, target), np.ones(rows, np.bool_))


def _scale(values: Longs, times: int, over: int, target: pa.DataType) -> Converted:
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
    read = [str(UUID(bytes=value.ljust(16, b"\0"))) for value in values.to_pylist()]
    return pa.array(read, pa.string())


def _drop_repeated_keys(
    built: Converted, target: pa.DataType, parts: Sequence[Converted], lengths: Longs
) -> Converted:
    """Keep the last of a map's entries with equal keys, at the place of the first (13.9)."""
    # Only broken payloads have keys that are null.
    codes = parts[0].column.dictionary_encode().indices.fill_null(-1)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    pairs = owners * (len(owners) + 1) + codes.to_numpy(zero_copy_only=False)
    if len(np.unique(pairs)) == len(pairs):
        return built
    first = np.unique(pairs, return_index=True)[1]
    last = len(pairs) - 1 - np.unique(pairs[::-1], return_index=True)[1]
    kept = last[np.argsort(first)]
    rest = [keep(part.column.take(pa.array(kept))) for part in parts]
    lengths_kept = np.bincount(owners[kept], minlength=len(lengths))
    absent = to_mask(built.column.is_null())
    return Converted(build_repeated(target, rest, lengths_kept, absent).column, built.bad)
