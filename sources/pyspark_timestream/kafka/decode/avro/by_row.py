"""Reads Avro payloads one by one: types that contain themselves, long arrays, and small blocks.

Each plan's steps are turned into functions once. The results are the same as those of `by_block`.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.kafka.decode.avro.resolution import (
    Again,
    Bad,
    Plan,
    Record,
    Repeated,
    Scalar,
    Step,
    Union,
    convert_bytes,
    format_uuid,
)
from pyspark_timestream.kafka.decode.records import FINE, SYNTAX, TYPE, Reasons

_MAX_DEPTH: Final = 100
"""The maximum nesting of records where the writer's schema has a type that contains itself."""

_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_INT_BOUND: Final = 2**31
_LONG_BOUND: Final = 2**63
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")

_BROKEN: Final = (ValueError, IndexError, struct.error, RecursionError)
"""Raised where bytes contradict their schema, or end too early."""


class _Row:
    """A payload that is being read: its bytes, and the place to read next."""

    __slots__ = ("at", "bad", "budget", "data", "depth")

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.depth, self.bad = data, 0, 0, False
        self.budget = len(data)  # As in `by_block`: only items without bytes could be more.

    def read_varint(self, most: int) -> int:
        """Read a whole number that takes up to `most` bytes."""
        data, at = self.data, self.at
        byte = data[at]
        number, shift = byte & 127, 7
        while byte > 127:
            at += 1
            byte = data[at]
            number |= (byte & 127) << shift
            shift += 7
            if shift > 7 * most:
                raise ValueError("a number has too many bytes")
        self.at = at + 1
        return (number >> 1) ^ -(number & 1)

    def read_long(self) -> int:
        """Read a long."""
        number = self.read_varint(_LONG_BYTES)
        if not -_LONG_BOUND <= number < _LONG_BOUND:
            raise ValueError("a long has more than 64 bits")
        return number

    def read_int(self) -> int:
        """Read an int."""
        number = self.read_varint(_INT_BYTES)
        if not -_INT_BOUND <= number < _INT_BOUND:
            raise ValueError("an int has more than 32 bits")
        return number

    def read_index(self, size: int) -> int:
        """Read an index below `size`."""
        chosen = self.read_int()
        if not 0 <= chosen < size:
            raise ValueError("an index is out of range")
        return chosen

    def take(self, length: int) -> bytes:
        """Take the next `length` bytes."""
        if not 0 <= length <= len(self.data) - self.at:
            raise ValueError("a length exceeds the payload")
        begin = self.at
        self.at += length
        return self.data[begin : self.at]


Reader = Callable[[_Row], Any]


class RowReader:
    """Reads payloads by one plan."""

    def __init__(self, plan: Plan) -> None:
        self._type = plan.step.type if not isinstance(plan.step, Again) else None
        self._recursive: dict[str, Reader] = dict.fromkeys(plan.recursive, _read_nothing)
        for name, step in plan.recursive.items():
            self._recursive[name] = self._build(step)
        self._read = self._build(plan.step)

    def read(self, bodies: list[bytes]) -> tuple[pa.Array, Reasons]:
        """Read payloads; return also why each is malformed."""
        values: list[Any] = []
        reasons = np.full(len(bodies), FINE, np.uint8)
        for number, body in enumerate(bodies):
            row = _Row(body)
            try:
                value = self._read(row)
                if row.at != len(body):
                    raise ValueError("bytes are left over")
            except _BROKEN:
                values.append(None)
                reasons[number] = SYNTAX
                continue
            values.append(value)
            if row.bad:
                reasons[number] = TYPE
        return pa.array(values, self._type), reasons

    def _build(self, step: Step) -> Reader:
        match step:
            case Scalar():
                return _build_scalar(step)
            case Record():
                read = self._build_record(step)
                return _limit_depth(read) if self._recursive else read
            case Union():
                return self._build_union(step)
            case Repeated():
                return self._build_repeated(step)
            case Again(name):
                return lambda row: self._recursive[name](row)
            case Bad():
                return _pass_bad(self._build(step.step))

    def _build_record(self, step: Record) -> Reader:
        readers = [self._build(field) for field, _ in step.fields]
        if step.type is None:

            def skip(row: _Row) -> None:
                for each in readers:
                    each(row)

            return skip
        names = [None if at is None else step.type.field(at).name for _, at in step.fields]
        pairs = list(zip(names, readers, strict=True))
        defaults = {
            step.type.field(at).name: value[0].as_py() for at, value in step.defaults.items()
        }
        lacks = bool(step.missing)

        def read(row: _Row) -> dict[str, Any]:
            value = dict(defaults)
            # A field that the writer lacks is bad if it has no default (semantics 13.9).
            row.bad |= lacks
            for name, each in pairs:
                part = each(row)
                if name is not None:
                    value[name] = part
            return value

        return read

    def _build_union(self, step: Union) -> Reader:
        readers = [self._build(branch) for branch in step.branches]
        return lambda row: readers[row.read_index(len(readers))](row)

    def _build_repeated(self, step: Repeated) -> Reader:
        read_item, keyed, requested = self._build(step.item), step.keyed, step.type is not None

        def read(row: _Row) -> Any:
            items: list[Any] = []
            entries: dict[str, Any] = {}
            # Clear the mark, to see which item sets it.
            bad, is_lost, row.bad = row.bad, False, False
            while True:
                count = row.read_long()
                if count == 0:
                    row.bad = bad
                    # A list with a bad item that is null becomes null (semantics 13.13).
                    return None if is_lost else list(entries.items()) if keyed else items
                end = -1
                if count < 0:
                    count, size = -count, row.read_long()
                    end = row.at + size
                    if not row.at <= end <= len(row.data):
                        raise ValueError("a block exceeds the payload")
                row.budget -= count
                if row.budget < 0:
                    raise ValueError("there are more items than the payload has bytes")
                for _ in range(count):
                    key = row.take(row.read_long()) if keyed else b""
                    value = read_item(row)
                    if row.bad:
                        bad, row.bad = True, False
                        is_lost |= value is None
                    if requested and keyed:
                        entries[key.decode()] = value
                    elif requested:
                        items.append(value)
                if end not in (-1, row.at):
                    raise ValueError("a block is not as long as it says")

        return read


def _read_nothing(row: _Row) -> None:
    """Stand in for a reader that has not been built yet."""


def _pass_bad(read: Reader) -> Reader:
    def read_bad(row: _Row) -> None:
        read(row)
        row.bad = True

    return read_bad


def _limit_depth(read: Reader) -> Reader:
    def read_deeper(row: _Row) -> Any:
        row.depth += 1
        if row.depth > _MAX_DEPTH:
            raise ValueError("records are nested too deep")
        value = read(row)
        row.depth -= 1
        return value

    return read_deeper


def _build_scalar(step: Scalar) -> Reader:
    read = _build_primitive(step)
    if step.type is None or step.kind in ("null", "boolean"):
        return read
    if step.kind == "enum":
        return lambda row: _fit(row, step.symbols[read(row)])
    if step.kind == "string":
        return read if pa.types.is_binary(step.type) else lambda row: read(row).decode()
    if step.kind == "fixed" and pa.types.is_string(step.type):
        return lambda row: format_uuid(read(row))
    if step.kind in ("bytes", "fixed"):
        return lambda row: _convert(row, read(row), step.type)
    if pa.types.is_timestamp(step.type):
        return lambda row: _scale(row, read(row), step.scale)
    if pa.types.is_float32(step.type) and step.kind != "float":
        # Via int64, as for a column of whole numbers: via a double it would be rounded twice.
        return lambda row: float(np.int64(read(row)).astype(np.float32))
    return (lambda row: float(read(row))) if pa.types.is_floating(step.type) else read


def _build_primitive(step: Scalar) -> Reader:
    match step.kind:
        case "null":
            return lambda row: None
        case "boolean":
            return _read_boolean
        case "int":
            return _Row.read_int
        case "long":
            return _Row.read_long
        case "float":
            return lambda row: _FLOAT.unpack(row.take(4))[0]
        case "double":
            return lambda row: _DOUBLE.unpack(row.take(8))[0]
        case "enum":
            return lambda row: row.read_index(len(step.symbols))
        case "fixed":
            return lambda row: row.take(step.size)
    return lambda row: row.take(row.read_long())


def _read_boolean(row: _Row) -> bool:
    byte = row.take(1)
    if byte > b"\1":
        raise ValueError("a boolean is neither 0 nor 1")
    return byte == b"\1"


def _fit(row: _Row, value: Any) -> Any:
    if value is None:
        row.bad = True
    return value


def _convert(row: _Row, data: bytes, target: pa.DataType) -> Any:
    try:
        return convert_bytes(data, target)
    except ValueError:
        row.bad = True
        return None


def _scale(row: _Row, number: int, scale: tuple[int, int]) -> int | None:
    times, over = scale
    scaled = number * times // over
    if -_LONG_BOUND < scaled < _LONG_BOUND:
        return scaled
    row.bad = True
    return None
