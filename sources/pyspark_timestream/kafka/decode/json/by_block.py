"""Parses blocks of JSON values with Arrow's parser, isolating malformed values.

The result for a value never depends on its neighbours: parsing a block and parsing its values one
by one give the same columns. Two rules ensure that. Values are joined by newlines, which a JSON
string cannot contain unescaped. Only values that begin with ``{`` and end with ``}`` are joined, so
that an object cannot extend into the next value. Values that Arrow reads but Python does not
(extreme nesting, very long numbers) are excluded from the block: see `joinable`.
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

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.kafka.decode.fields import FINE, TYPE, DecodedBlock, WantedFields
from pyspark_timestream.kafka.decode.json.by_row import parse_rows
from pyspark_timestream.kafka.decode.json.joinable import find_joinable
from pyspark_timestream.kafka.decode.json.types import convert_column, has_map, wire_type
from pyspark_timestream.kafka.decode.json.wire_schemas import WireSchemas, take_field
from pyspark_timestream.kafka.options.paths import descend

__all__ = ["parse_json"]

_MAX_SINGLE_VALUES: Final = 32
"""Up to this many values are parsed one by one: calling Arrow costs as much as about 20."""

_ROW_IN_MESSAGE: Final = re.compile(r"in row ([0-9]+)")
"""The row in Arrow's error message."""

_RAW_TYPES: Final = {str: pa.string(), int: pa.int64(), float: pa.float64()}
"""The Arrow type of a raw field, by its Python type in the block's first value."""

_MAX_EXACT_DOUBLE: Final = float(2**53)


class _ParseFailure(NamedTuple):
    """Arrow could not parse a piece: `row` is the first bad row, None if not known."""

    row: int | None


def parse_json(fields: WantedFields, values: pa.Array) -> DecodedBlock:
    """Parse n JSON texts (binary; a null is a row of nulls, not malformed)."""
    texts, joinable = find_joinable(values)
    if any(has_map(field.type) for field in fields.columns):
        joinable[:] = False
    pieces = [
        piece
        for start, stop, good in _split_runs(joinable)
        for piece in _parse_run(fields, values, texts, start, stop, good)
    ]
    if not pieces:
        empty = [pa.array([], field.type) for field in fields.columns]
        return DecodedBlock(empty, {name: [] for name in fields.raw}, np.empty(0, dtype=np.uint8))
    return DecodedBlock(
        [pa.concat_arrays(column) for column in zip(*(p.columns for p in pieces), strict=True)]
        if len(fields.columns)
        else [],
        {name: [part for p in pieces for part in p.raw[name]] for name in fields.raw},
        np.concatenate([p.reasons for p in pieces]),
    )


def _split_runs(joinable: Mask) -> Iterator[tuple[int, int, bool]]:
    """Split into (start, stop, join?); short joinable runs go with their neighbours."""
    bounds = _run_bounds(joinable)
    lengths = np.diff(bounds)
    worth = np.repeat(joinable[bounds[:-1]] & (lengths > _MAX_SINGLE_VALUES), lengths)
    for start, stop in itertools.pairwise(_run_bounds(worth).tolist()):
        yield start, stop, bool(worth[start])


def _run_bounds(mask: Mask) -> npt.NDArray[np.int64]:
    """Return the starts of runs of equal values, and the end."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return np.concatenate(([0], edges, [len(mask)])) if len(mask) else np.array([0])


def _parse_run(
    fields: WantedFields, values: pa.Array, texts: pa.Array, start: int, stop: int, good: bool
) -> Iterator[DecodedBlock]:
    """Parse `values[start:stop]`, in pieces, in order.

    Arrow usually names the row that it cannot parse; otherwise the piece is halved. The closer bad
    rows are, the more values are parsed one by one before Arrow is tried again. A block with one
    bad value in 1,000 costs about three times as much as one without, and at worst less than twice
    as much as parsing its values one by one (bench/time_rules/mechanisms_stream.py).
    """
    at, size, singly, failed_at = start, stop - start, _MAX_SINGLE_VALUES, -1
    while at < stop:
        end = min(at + (1 if at == failed_at else size), stop)
        alone = not good or end - at <= _MAX_SINGLE_VALUES
        block = None if alone else _parse_joined(fields, texts.slice(at, end - at))
        if isinstance(block, DecodedBlock):
            yield block
            at, size, singly = end, 4 * size, _MAX_SINGLE_VALUES
            continue
        row = None if block is None else block.row
        if block is None:
            size = 4 * max(size, _MAX_SINGLE_VALUES)
        elif row is None and end - at > 2 * _MAX_SINGLE_VALUES:
            size = (end - at) // 2
            continue
        elif row is not None and row > _MAX_SINGLE_VALUES:
            size, failed_at = row, at + row
            continue
        else:
            end = min(at + max(singly, (row or 0) + 1), stop)
            size, singly = max(2 * _MAX_SINGLE_VALUES, size // 2), 2 * singly
        yield parse_rows(fields, values.slice(at, end - at).to_pylist())
        at = end


def _parse_joined(fields: WantedFields, texts: pa.Array) -> DecodedBlock | _ParseFailure:
    """Parse all of `texts` with Arrow; fails if one of them does not match the fields."""
    first = _parse_first(texts[0].as_py())
    schemas = WireSchemas()
    column_places = [
        schemas.add(path, _choose_wire_type(field.type, descend(first, path).value))
        for path, field in zip(fields.column_paths(), fields.columns, strict=True)
    ]
    raw_places = {
        text: schemas.find(path) or schemas.add(path, _guess_raw_type(descend(first, path).value))
        for text, path in fields.raw_paths().items()
    }
    buffer = pc.binary_join(_wrap_in_list(texts), "\n")[0].as_buffer()
    tables: list[pa.Table] = []
    for schema in schemas.schemas():
        table = _read(buffer, len(texts), schema)
        if isinstance(table, _ParseFailure):
            return table
        tables.append(table)
    raw = {text: take_field(tables, place) for text, place in raw_places.items()}
    if any(map(_loses_digits, raw.values())):
        return _ParseFailure(None)
    finished = [
        convert_column(take_field(tables, place), field.type)
        for place, field in zip(column_places, fields.columns, strict=True)
    ]
    malformed = np.zeros(len(texts), dtype=np.bool_)
    for part in finished:
        malformed |= part.partial
    parts = {text: [column] for text, column in raw.items()}
    reasons = np.where(malformed, TYPE, FINE).astype(np.uint8)
    return DecodedBlock([part.column for part in finished], parts, reasons)


def _wrap_in_list(texts: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)


def _read(buffer: pa.Buffer, rows: int, schema: pa.Schema) -> pa.Table | _ParseFailure:
    if not len(schema):
        # Arrow needs a field to count rows; one that does not occur will do.
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
        named = _ROW_IN_MESSAGE.search(str(error))
        row = int(named[1]) if named else rows
        return _ParseFailure(row if row < rows else None)
    return table if table.num_rows == rows else _ParseFailure(None)


def _parse_first(text: str) -> dict[str, Any]:
    """Parse a block's first value, whose field types usually hold for all."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _choose_wire_type(target: pa.DataType, first: Any) -> pa.DataType:
    """Choose the type that Arrow parses: the first value shows whether times are seconds."""
    if pa.types.is_timestamp(target) and type(first) is int:
        return pa.int64()
    return wire_type(target)


def _guess_raw_type(first: Any) -> pa.DataType:
    """Choose the type of a raw field, by its value in the block's first value."""
    return _RAW_TYPES.get(type(first), pa.string())


def _loses_digits(column: pa.Array) -> bool:
    """Check whether doubles may stand for whole numbers that only an int64 holds exactly."""
    if not pa.types.is_float64(column.type):
        return False
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and largest >= _MAX_EXACT_DOUBLE
