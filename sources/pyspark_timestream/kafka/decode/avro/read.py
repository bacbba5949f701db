"""Reads Avro payloads into columns: groups by writer's schema, decodes, casts, restores the order.

A row is a function of the payload's bytes, the reader's schema and the writer's schema (semantics
13.6 and 13.9). Payloads of one writer are read together in columns (`by_block`), and one by one
where that is not possible or does not pay (`by_row`); the results are the same, so they do not
depend on a payload's neighbours.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.kafka.decode.avro.by_block import can_read_block, read_block
from pyspark_timestream.kafka.decode.avro.by_row import RowReader
from pyspark_timestream.kafka.decode.avro.places import Places
from pyspark_timestream.kafka.decode.avro.resolution import Plan, resolve
from pyspark_timestream.kafka.decode.avro.schemas import AvroReader, parse_schema
from pyspark_timestream.kafka.decode.avro.wanted import build_wanted
from pyspark_timestream.kafka.decode.cast import cast_column
from pyspark_timestream.kafka.decode.fields import (
    FINE,
    SYNTAX,
    TYPE,
    DecodedBlock,
    Reasons,
    WantedFields,
)
from pyspark_timestream.kafka.options.paths import parse_path

__all__ = ["read_avro"]

Longs = npt.NDArray[np.int64]

_FEW_BODIES: Final = 40
"""Up to this many payloads are read one by one, which costs less than calling numpy for them."""

_PIECE_BODIES: Final = 8_192
"""The payloads that are read at a time: their columns fit into a processor's cache."""

_INSTANT: Final = pa.timestamp("us", tz="UTC")


class _Codec(NamedTuple):
    """The plan for one writer's schema, with its reader of single payloads."""

    plan: Plan
    rows: RowReader


def read_avro(
    reader: AvroReader,
    wanted: WantedFields,
    bodies: pa.Array,
    writers: Mapping[int, str],
    schema_ids: pa.Array | None = None,
) -> DecodedBlock:
    """Read n Avro payloads.

    Args:
        reader: the reader's schema; `check_avro_columns` has accepted the wanted fields.
        wanted: the fields, by paths into its records.
        bodies: n binary values, without framing. A null is a row of nulls, and is not malformed.
        writers: the writers' schemas as JSON, by id: at least those of `schema_ids`.
        schema_ids: n int32: the id of the schema that wrote the payload; null where the body is
            null or its framing is bad, which makes a row of nulls. None: `reader` wrote them all.

    Raises:
        SchemaRefused: a writer's schema cannot be read with the reader's.
        ValueError: a writer's schema is not an Avro schema.
    """
    if not pa.types.is_binary(bodies.type):
        bodies = bodies.cast(pa.binary())
    reasons = np.full(len(bodies), FINE, np.uint8)
    pieces: list[pa.Array] = []
    order = np.full(len(bodies), -1, np.int64)
    total = 0
    for text, rows in _group(reader, bodies, writers, schema_ids):
        codec = _build_codec(reader, wanted, text)
        group = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
        for start in range(0, len(rows), _PIECE_BODIES):
            piece = slice(start, start + _PIECE_BODIES)
            values, reasons[rows[piece]] = _read_piece(codec, group[piece])
            pieces.append(values)
        order[rows] = np.arange(total, total + len(rows))
        total += len(rows)
    columns, raw, unfit = _take_fields(reader, wanted, pieces, order)
    reasons[unfit & (reasons == FINE)] = TYPE
    return DecodedBlock(columns, raw, reasons, schema_ids)


def _group(
    reader: AvroReader, bodies: pa.Array, writers: Mapping[int, str], schema_ids: pa.Array | None
) -> list[tuple[str, Longs]]:
    """Return the writers' schemas with the rows that they wrote, in order."""
    present = np.ones(len(bodies), np.bool_)
    if bodies.null_count:
        present &= np.array(bodies.is_valid().to_numpy(zero_copy_only=False))
    if schema_ids is None:
        rows = np.flatnonzero(present)
        return [(reader.text, rows)] if len(rows) else []
    if schema_ids.null_count:
        present &= np.array(schema_ids.is_valid().to_numpy(zero_copy_only=False))
    ids = pc.fill_null(schema_ids, 0).to_numpy(zero_copy_only=False)
    return [
        (writers[int(each)], np.flatnonzero(present & (ids == each)))
        for each in np.unique(ids[present])
    ]


@functools.lru_cache(maxsize=100)
def _build_codec(reader: AvroReader, wanted: WantedFields, writer: str) -> _Codec:
    plan = resolve(parse_schema(writer), build_wanted(reader, wanted))
    return _Codec(plan, RowReader(plan))


def _read_piece(codec: _Codec, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
    """Read the payloads of one writer, without nulls, as structs; malformed ones are null."""
    if len(bodies) <= _FEW_BODIES or not can_read_block(codec.plan):
        return codec.rows.read(bodies.to_pylist())
    places = Places.of(bodies)
    values = read_block(codec.plan.step, places)
    places.finish()
    reasons = np.where(places.unfit, TYPE, FINE).astype(np.uint8)
    reasons[places.broken] = SYNTAX
    late = np.flatnonzero(places.late)
    if not len(late):
        if not places.broken.any():
            return values, reasons
        kept = np.arange(len(bodies))
        return values.take(pa.array(kept, mask=places.broken)), reasons
    singles, reasons[late] = codec.rows.read(bodies.take(pa.array(late)).to_pylist())
    order = np.arange(len(bodies))
    order[late] = np.arange(len(bodies), len(bodies) + len(late))
    absent = reasons == SYNTAX
    return pa.concat_arrays([values, singles]).take(pa.array(order, mask=absent)), reasons


def _take_fields(
    reader: AvroReader, wanted: WantedFields, pieces: list[pa.Array], order: Longs
) -> tuple[list[pa.Array], dict[str, list[pa.Array]], npt.NDArray[np.bool_]]:
    """Take the wanted fields out of the structs of all groups, in the order of the payloads."""
    unfit = np.zeros(len(order), np.bool_)
    struct = build_wanted(reader, wanted).type
    values = pa.concat_arrays(pieces) if pieces else pa.array([], struct)
    if len(values) < len(order) or (order[1:] < order[:-1]).any():
        values = values.take(pa.array(order, mask=order < 0))
    columns = []
    for column in wanted.columns:
        cast = cast_column(_take_path(values, column.name), column.type)
        columns.append(cast.column)
        unfit |= cast.unfit
    return columns, {name: [_take_raw(values, name)] for name in wanted.raw}, unfit


def _take_path(values: pa.Array, path: str) -> pa.Array:
    for name in parse_path(path):
        values = pc.struct_field(values, name)
    return values


def _take_raw(values: pa.Array, path: str) -> Any:
    """Take a field for event times: dates and timestamps as instants."""
    found = _take_path(values, path)
    if pa.types.is_date32(found.type):
        return cast_column(found, pa.date32()).column.cast(pa.timestamp("us")).view(_INSTANT)
    if pa.types.is_timestamp(found.type):
        local = pa.timestamp("us", tz=found.type.tz)
        return cast_column(found, local).column.view(_INSTANT)
    return found
