"""JSON values to columns: whole blocks by Arrow's parser, malformed rows isolated.

What a value becomes never depends on its neighbours: a block that Arrow reads whole and the same
values read one by one give the same columns. Two things make that sound. Values are joined by
newlines, which a JSON string cannot contain raw; and only values that begin with ``{`` and end
with ``}`` are joined, so that an object can neither end in nor swallow the next value. What Arrow
would read and Python would not (extreme nesting, endless digits) is kept out of the block.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pyspark_timestream.kafka.decode.json.by_row import parse_rows
from pyspark_timestream.kafka.decode.json.types import (
    JsonBlock,
    JsonFields,
    finish,
    has_map,
    wire_type,
)
from pyspark_timestream.kafka.decode.records import utf8_or_none

__all__ = ["parse_json"]

Mask = npt.NDArray[np.bool_]

_FEW: Final = 32
"""So many values are read one by one: a call of Arrow's parser costs as much as about 20."""

_WHITESPACE: Final = " \t\n\r"
"""What JSON calls whitespace."""

_LONG: Final = 250
"""No shorter text can hold more brackets or digits than Python's parser takes."""

_ROW: Final = re.compile(r"in row ([0-9]+)")
"""Where Arrow's message says which row it could not parse."""

_KINDS: Final = {str: pa.string(), int: pa.int64(), float: pa.float64()}
"""What a raw field is read as, by its Python type in the block's first value."""

_EXACT_IN_DOUBLE: Final = float(2**53)


class _Stumbled(NamedTuple):
    """Arrow does not read a piece: because of that row, the first that it cannot; None: unsaid."""

    row: int | None


def parse_json(fields: JsonFields, values: pa.Array) -> JsonBlock:
    """Read n JSON texts (binary, null allowed; null is a row of nulls, not malformed)."""
    texts, joinable = _joinable(values)
    if any(has_map(field.type) for field in fields.columns):
        joinable[:] = False
    pieces = [
        piece
        for start, stop, good in _runs(joinable)
        for piece in _parse_run(fields, values, texts, start, stop, good)
    ]
    if not pieces:
        empty = [pa.array([], field.type) for field in fields.columns]
        return JsonBlock(empty, {name: [] for name in fields.raw}, np.empty(0, dtype=np.bool_))
    return JsonBlock(
        [pa.concat_arrays(column) for column in zip(*(p.columns for p in pieces), strict=True)]
        if len(fields.columns)
        else [],
        {name: [part for p in pieces for part in p.raw[name]] for name in fields.raw},
        np.concatenate([p.malformed for p in pieces]),
    )


def _joinable(values: pa.Array) -> tuple[pa.Array, Mask]:
    """The values as trimmed texts, and which of them may be joined."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        # Some value is no UTF-8; Arrow's JSON parser would let it through, so it is kept out.
        texts = pa.array([utf8_or_none(value.as_py()) for value in values], pa.string())
    joinable = _object_like(texts)
    if not joinable.all():
        texts = pc.ascii_trim(texts, characters=_WHITESPACE)
        joinable = _object_like(texts)
    return texts, joinable


def _object_like(texts: pa.Array) -> Mask:
    shaped = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    joinable = np.array(pc.fill_null(shaped, False).to_numpy(zero_copy_only=False))
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(joinable & (lengths > _LONG))
    joinable[long] = ~_extreme(texts.take(pa.array(long)))
    return joinable


def _extreme(texts: pa.Array) -> Mask:
    """Which texts may nest deeper, or hold longer numbers, than Python's parser takes."""
    brackets = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
    endless = pc.match_substring_regex(texts, "[0-9]{1000}")
    return np.array(pc.or_(pc.greater(brackets, _LONG), endless).to_numpy(zero_copy_only=False))


def _runs(joinable: Mask) -> Iterator[tuple[int, int, bool]]:
    """Consecutive (start, stop, worth joining); short good runs go with the bad around them."""
    bounds = _bounds(joinable)
    lengths = np.diff(bounds)
    worth = np.repeat(joinable[bounds[:-1]] & (lengths > _FEW), lengths)
    for start, stop in itertools.pairwise(_bounds(worth).tolist()):
        yield start, stop, bool(worth[start])


def _bounds(mask: Mask) -> npt.NDArray[np.int64]:
    """Where runs of equal values begin, and the end."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return np.concatenate(([0], edges, [len(mask)])) if len(mask) else np.array([0])


def _parse_run(
    fields: JsonFields, values: pa.Array, texts: pa.Array, start: int, stop: int, good: bool
) -> Iterator[JsonBlock]:
    """Read `values[start:stop]`, in pieces, in order.

    Arrow mostly says which row it stumbled over; where it does not, the piece is halved. The closer
    together it stumbles, the more values are read one by one before it is asked again: so a block
    costs at most what its values cost one by one, and a little.
    """
    at, size, singly, stumbled = start, stop - start, _FEW, -1
    while at < stop:
        end = min(at + (1 if at == stumbled else size), stop)
        alone = not good or end - at <= _FEW
        block = None if alone else _parse_joined(fields, texts.slice(at, end - at))
        if isinstance(block, JsonBlock):
            yield block
            at, size, singly = end, 4 * size, _FEW
            continue
        row = None if block is None else block.row
        if block is None:
            size = 4 * max(size, _FEW)
        elif row is None and end - at > 2 * _FEW:
            size = (end - at) // 2
            continue
        elif row is not None and row > _FEW:
            size, stumbled = row, at + row
            continue
        else:
            end = min(at + max(singly, (row or 0) + 1), stop)
            size, singly = max(2 * _FEW, size // 2), 2 * singly
        yield parse_rows(fields, values.slice(at, end - at).to_pylist())
        at = end


def _parse_joined(fields: JsonFields, texts: pa.Array) -> JsonBlock | _Stumbled:
    """All of `texts` by Arrow, unless one of them is not what the fields say."""
    first = _object(texts[0].as_py())
    wires = {field.name: _wire(field.type, first.get(field.name)) for field in fields.columns}
    shared = [name for name in fields.raw if wires.get(name) in (pa.string(), pa.int64())]
    guessed = {
        name: _KINDS.get(type(first.get(name)), pa.string())
        for name in fields.raw
        if name not in shared
    }
    together = {name: kind for name, kind in guessed.items() if name not in wires}
    again = {name: kind for name, kind in guessed.items() if name in wires}
    buffer = pc.binary_join(_one_list(texts), "\n")[0].as_buffer()
    table = _read(buffer, len(texts), pa.schema(wires | together))
    if isinstance(table, _Stumbled):
        return table
    second = _read(buffer, len(texts), pa.schema(again)) if again else table
    if isinstance(second, _Stumbled):
        return second
    raw = {name: table.column(name) for name in (*shared, *together)}
    raw |= {name: second.column(name) for name in again}
    if any(map(_loses_digits, raw.values())):
        return _Stumbled(None)
    finished = [finish(table.column(f.name).combine_chunks(), f.type) for f in fields.columns]
    malformed = np.zeros(len(texts), dtype=np.bool_)
    for part in finished:
        malformed |= part.partial
    parts = {name: [column.combine_chunks()] for name, column in raw.items()}
    return JsonBlock([part.column for part in finished], parts, malformed)


def _one_list(texts: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)


def _read(buffer: pa.Buffer, rows: int, schema: pa.Schema) -> pa.Table | _Stumbled:
    if not len(schema):
        # Arrow needs a field to count rows by; one that no object has does.
        schema = pa.schema([("\0", pa.string())])
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(buffer),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        said = _ROW.search(str(error))
        row = int(said[1]) if said else rows
        return _Stumbled(row if row < rows else None)
    return table if table.num_rows == rows else _Stumbled(None)


def _object(text: str) -> dict[str, Any]:
    """A block's first value: usually all have fields of the same types."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _wire(target: pa.DataType, first: Any) -> pa.DataType:
    """What Arrow reads a column as; only the block's first value tells texts from seconds."""
    if pa.types.is_timestamp(target) and type(first) is int:
        return pa.int64()
    return wire_type(target)


def _loses_digits(column: pa.ChunkedArray) -> bool:
    """Whether doubles stand for whole numbers that only an int64 holds exactly."""
    if not pa.types.is_float64(column.type):
        return False
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and largest >= _EXACT_IN_DOUBLE
