"""Reads Avro payloads one by one: types that contain themselves, long arrays, and small blocks.

Each plan's steps are turned into functions once. A function appends the wire values of its step to
a list; the lists become columns together, as in `by_block`, so the results are the same.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.kafka.decode.avro.plans import (
    Again,
    Bad,
    Plan,
    Record,
    Repeated,
    Scalar,
    Step,
    Union,
    all_bad,
)
from pyspark_timestream.kafka.decode.convert import Converted, keep
from pyspark_timestream.kafka.decode.records import FINE, SYNTAX, TYPE, Reasons

_MAX_DEPTH: Final = 100
"""The maximum nesting of records where the writer's schema has a type that contains itself."""

_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")

_BROKEN: Final = (ValueError, IndexError, struct.error, RecursionError)
"""Raised where bytes contradict their schema, or end too early."""


class _Row:
    """A payload that is being read: its bytes, the place to read next, and the lists to fill."""

    __slots__ = ("at", "budget", "columns", "data", "depth")

    def __init__(self, data: bytes, columns: list[list[Any]]) -> None:
        self.data, self.at, self.depth, self.columns = data, 0, 0, columns
        self.budget = len(data)  # As in `by_block`: only items without bytes could be more.

    def _read_varint(self, most_bytes: int, bound: int) -> int:
        data, at = self.data, self.at
        byte = data[at]
        number, shift = byte & 127, 7
        while byte > 127:
            at += 1
            byte = data[at]
            number |= (byte & 127) << shift
            shift += 7
            if shift > 7 * most_bytes:
                raise ValueError("a number has too many bytes")
        self.at = at + 1
        number = (number >> 1) ^ -(number & 1)
        if not -bound <= number < bound:
            raise ValueError("a number has too many bits")
        return number

    def read_long(self) -> int:
        return self._read_varint(_LONG_BYTES, 2**63)

    def read_int(self) -> int:
        return self._read_varint(_INT_BYTES, 2**31)

    def read_index(self, size: int) -> int:
        chosen = self.read_int()
        if not 0 <= chosen < size:
            raise ValueError("an index is out of range")
        return chosen

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self.data) - self.at:
            raise ValueError("a length exceeds the payload")
        begin = self.at
        self.at += length
        return self.data[begin : self.at]

    def read_bytes(self) -> bytes:
        return self.take(self.read_long())

    def read_boolean(self) -> bool:
        byte = self.take(1)
        if byte > b"\1":
            raise ValueError("a boolean is neither 0 nor 1")
        return byte == b"\1"

    def read_block_header(self) -> tuple[int, int]:
        """Read the header of an array's next block: its items, and its end or -1."""
        count, end = self.read_long(), -1
        if count < 0:
            count, size = -count, self.read_long()
            end = self.at + size
            if not self.at <= end <= len(self.data):
                raise ValueError("a block exceeds the payload")
        self.budget -= count
        if self.budget < 0:
            raise ValueError("there are more items than the payload has bytes")
        return count, end


Reader = Callable[[_Row], Any]


class RowReader:
    """Reads payloads by one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._lists = plan, 0
        self._recursive: dict[str, Reader] = {}
        for name, step in plan.recursive.items():
            self._recursive[name] = self._build(step)
        self._read = self._build(plan.step)

    def read(self, bodies: list[bytes]) -> tuple[pa.Array, Reasons]:
        """Read payloads; return also why each is malformed."""
        columns: list[list[Any]] = [[] for _ in range(self._lists)]
        broken = np.zeros(len(bodies), np.bool_)
        for number, body in enumerate(bodies):
            sizes = [len(column) for column in columns]
            row = _Row(body, columns)
            try:
                self._read(row)
                if row.at != len(body):
                    raise ValueError("bytes are left over")
            except _BROKEN:
                broken[number] = True
                for column, size in zip(columns, sizes, strict=True):
                    del column[size:]
        whole = _build_column(self._plan.step, iter(columns), int((~broken).sum()))
        reasons = np.full(len(bodies), SYNTAX, np.uint8)
        reasons[~broken] = np.where(whole.bad, TYPE, FINE)
        if not broken.any():
            return whole.column, reasons
        return whole.column.take(pa.array(np.cumsum(~broken) - 1, mask=broken)), reasons

    def _add_list(self) -> int:
        self._lists += 1
        return self._lists - 1

    def _build(self, step: Step) -> Reader:
        """Build the function of a step; the order of lists is that of `_build_column`."""
        match step:
            case Scalar():
                return self._build_scalar(step)
            case Record():
                return self._build_record(step)
            case Union():
                return self._build_union(step)
            case Repeated():
                return self._build_repeated(step)
            case Again(name):
                return lambda row: self._recursive[name](row)
            case Bad():
                return self._build(step.step)

    def _build_scalar(self, step: Scalar) -> Reader:
        read = _choose_reader(step)
        if step.type is None or step.kind == "null":
            return read
        column = self._add_list()
        if step.is_text:
            return lambda row: row.columns[column].append(read(row).decode())
        return lambda row: row.columns[column].append(read(row))

    def _build_record(self, step: Record) -> Reader:
        readers = [self._build(field) for field, _ in step.fields]

        def read(row: _Row) -> None:
            for reader in readers:
                reader(row)

        def read_deeper(row: _Row) -> None:
            row.depth += 1
            if row.depth > _MAX_DEPTH:
                raise ValueError("records are nested too deep")
            read(row)
            row.depth -= 1

        return read_deeper if self._plan.recursive else read

    def _build_union(self, step: Union) -> Reader:
        column = self._add_list() if step.type is not None else None
        readers = [self._build(branch) for branch in step.branches]

        def read(row: _Row) -> None:
            chosen = row.read_index(len(readers))
            if column is not None:
                row.columns[column].append(chosen)
            readers[chosen](row)

        return read

    def _build_repeated(self, step: Repeated) -> Reader:
        column = self._add_list() if step.type is not None else None
        key = Scalar("string", None if column is None else pa.string())
        read_key = self._build_scalar(key) if step.keyed else None
        read_item = self._build(step.item)

        def read(row: _Row) -> None:
            total = 0
            while True:
                count, end = row.read_block_header()
                if count == 0:
                    break
                for _ in range(count):
                    if read_key is not None:
                        read_key(row)
                    read_item(row)
                if end not in (-1, row.at):
                    raise ValueError("a block is not as long as it says")
                total += count
            if column is not None:
                row.columns[column].append(total)

        return read


def _choose_reader(step: Scalar) -> Reader:
    match step.kind:
        case "null":
            return lambda row: None
        case "boolean":
            return _Row.read_boolean
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
    return _Row.read_bytes


def _build_column(step: Step, lists: Iterator[list[Any]], rows: int) -> Converted:
    """Build the column of a step with a type from its lists and those of the steps in it."""
    match step:
        case Scalar(kind="null"):
            return keep(pa.nulls(rows, step.type))
        case Scalar():
            return step.convert(step.to_wire(next(lists)))
        case Record():
            placed = [(field, at) for field, at in step.fields if at is not None]
            return step.build(rows, {at: _build_column(field, lists, rows) for field, at in placed})
        case Union():
            chosen = np.array(next(lists), np.int64)
            counts = np.bincount(chosen, minlength=len(step.branches)).tolist()
            branches = zip(step.branches, counts, strict=True)
            columns = [_build_column(branch, lists, count) for branch, count in branches]
            return step.join(chosen, dict(enumerate(columns)))
        case Repeated():
            lengths = np.array(next(lists), np.int64)
            keys = [keep(pa.array(next(lists), pa.string()))] if step.keyed else []
            items = _build_column(step.item, lists, int(lengths.sum()))
            return step.build(lengths, [*keys, items])
        case Bad():
            return all_bad(rows, step.type)
        case Again():
            raise AssertionError("a type that contains itself is skipped")
