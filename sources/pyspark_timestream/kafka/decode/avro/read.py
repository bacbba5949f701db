"""Reads Avro payloads into columns: groups by writer's schema, decodes, casts, restores the order.

`by_block` reads the payloads of one writer together in columns. Where it cannot, or does not pay,
`by_row` reads them one by one; the results are the same (semantics 13.6 and 13.9).
"""

import functools
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.avro.by_block import Places, read_block
from pyspark_timestream.kafka.decode.avro.by_row import RowReader
from pyspark_timestream.kafka.decode.avro.plans import Plan, resolve
from pyspark_timestream.kafka.decode.avro.schemas import (
    AvroReader,
    ParsedSchema,
    build_requested,
    find_name,
    parse_schema,
)
from pyspark_timestream.kafka.decode.convert import Longs, build_block, cast
from pyspark_timestream.kafka.decode.records import (
    FINE,
    NAME,
    SYNTAX,
    TYPE,
    DecodedBlock,
    Reasons,
    RequestedFields,
    join_blocks,
    name_rows,
    split_pieces,
    to_mask,
)

_FEW_BODIES: Final = 40
"""Up to this many payloads are read one by one, which costs less than calling numpy for them."""

_PIECE_BODIES: Final = 8_192
"""Read this many payloads at a time: their columns fit into a processor's cache."""

_PIECE_BYTES: Final = 1 << 20
"""Read this many bytes at a time, unless a single payload has more; this bounds the memory."""


class _Codec(NamedTuple):
    """The plan for one writer's schema, with its reader for single payloads."""

    plan: Plan
    rows: RowReader


def read_avro(
    reader: AvroReader,
    requested: RequestedFields,
    bodies: pa.Array,
    writers: Mapping[int, str],
    schema_ids: pa.Array | None = None,
    *,
    newer: tuple[AvroReader, ...] = (),
) -> DecodedBlock:
    """Read n Avro payloads, of which some are null; `check_avro_columns` accepted the fields.

    `schema_ids` name the schema of each payload, given as JSON in `writers`; null where the payload
    is not to be read. None: `reader` wrote them all. Writers' schemas that `reader` cannot read are
    read by its `newer` versions.

    Raises:
        SchemaRefused: the reader's schema cannot read a writer's schema, or that is no Avro schema;
            `row` is the first payload of that writer.
    """
    if not pa.types.is_binary(bodies.type):
        bodies = bodies.cast(pa.binary())
    reasons = np.full(len(bodies), FINE, np.uint8)
    order = np.full(len(bodies), -1, np.int64)
    blocks: list[DecodedBlock] = []
    total = 0
    codes = np.full(len(bodies), -1, np.int64)
    names: list[str | None] = []
    for text, rows in _group(reader, bodies, writers, schema_ids):
        group = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
        try:
            fields, of_rows = _find_names(reader, requested, text, group)
            codes[rows] = np.where(of_rows < 0, -1, of_rows + len(names))
            names += fields
            is_accepted = np.array([*map(reader.accepts, fields), True])[of_rows]
            if not is_accepted.all():
                reasons[rows[~is_accepted]] = NAME
                rows, group = rows[is_accepted], group.filter(pa.array(is_accepted))
            codec = _build_codec((reader, *newer), requested, text) if len(rows) else None
        except SchemaRefused as error:
            error.row = int(rows[0])
            raise
        if codec is not None:
            pieces = split_pieces(group, _PIECE_BODIES, _PIECE_BYTES)
            blocks += [_read_piece(codec, requested, piece) for piece in pieces]
            order[rows] = np.arange(total, total + len(rows))
            total += len(rows)
    block = join_blocks(requested, blocks, order, reasons)
    named = name_rows(names, codes) if requested.names else None
    return block._replace(schema_ids=schema_ids, names=named)


def can_read_avro(readers: tuple[AvroReader, ...], requested: RequestedFields, writer: str) -> bool:
    """Return whether payloads of a writer's schema can be read."""
    try:
        _build_codec(readers, requested, writer)
    except SchemaRefused:
        return False
    return True


def _find_names(
    reader: AvroReader, requested: RequestedFields, text: str, bodies: pa.Array
) -> tuple[list[str | None], Longs]:
    """Return the names of the records that a schema writes, and for n payloads an index into them.

    The index is -1 if a union has no such branch, which makes the payload malformed anyway.
    """
    if not (requested.names or reader.record):
        return [None], np.zeros(len(bodies), np.int64)
    parsed = _parse_writer(text)
    root = parsed.look_up(parsed.schema)
    if not isinstance(root, list):
        return [find_name(root)], np.zeros(len(bodies), np.int64)
    places = Places.of(bodies)
    chosen = places.read_index(len(root))
    return [find_name(parsed.look_up(each)) for each in root], np.where(places.broken, -1, chosen)


def _parse_writer(text: str) -> ParsedSchema:
    try:
        return parse_schema(text)
    except ValueError as error:
        raise SchemaRefused(
            str(error),
            "an Avro schema",
            "correct it, or register the topic's schemas again",
        ) from error


def _group(
    reader: AvroReader, bodies: pa.Array, writers: Mapping[int, str], schema_ids: pa.Array | None
) -> list[tuple[str, Longs]]:
    """Return the writers' schemas, each with the rows that it wrote, in order."""
    present = to_mask(bodies.is_valid())
    if schema_ids is None:
        rows = np.flatnonzero(present)
        return [(reader.text, rows)] if len(rows) else []
    present &= to_mask(schema_ids.is_valid())
    ids = pc.fill_null(schema_ids, 0).to_numpy(zero_copy_only=False)
    return [
        (writers[int(each)], np.flatnonzero(present & (ids == each)))
        for each in np.unique(ids[present])
    ]


@functools.lru_cache(maxsize=100)
def _build_codec(
    readers: tuple[AvroReader, ...], requested: RequestedFields, writer: str
) -> _Codec:
    """Plan the reading of a writer's schema with the first of `readers` that can read it."""
    first, *newer = readers
    try:
        plan = resolve(_parse_writer(writer), build_requested(first, requested))
    except SchemaRefused:
        if not newer:
            raise
        return _build_codec(tuple(newer), requested, writer)
    return _Codec(plan, RowReader(plan))


def _read_piece(codec: _Codec, requested: RequestedFields, bodies: pa.Array) -> DecodedBlock:
    """Read payloads of one writer, none of them null."""
    values, reasons = _read_values(codec, bodies)
    columns = [
        cast(pc.struct_field(values, path), column.type)
        for column, path in zip(requested.columns, requested.column_paths(), strict=True)
    ]
    paths = requested.raw_paths().items()
    raw = {text: [pc.struct_field(values, path)] for text, path in paths}
    return build_block(columns, raw, reasons)


def _read_values(codec: _Codec, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
    """Read payloads as structs; malformed ones become null."""
    if len(bodies) <= _FEW_BODIES or codec.plan.recursive:
        return codec.rows.read(bodies.to_pylist())
    places = Places.of(bodies)
    values, bad = read_block(codec.plan.step, places)
    places.finish()
    reasons = np.where(bad, TYPE, FINE).astype(np.uint8)
    reasons[places.broken] = SYNTAX
    singles = np.flatnonzero(places.by_row)
    order = np.arange(len(bodies))
    if len(singles):
        read, reasons[singles] = codec.rows.read(bodies.take(pa.array(singles)).to_pylist())
        order[singles] = np.arange(len(bodies), len(bodies) + len(singles))
        values = pa.concat_arrays([values, read])
    absent = reasons == SYNTAX
    if not len(singles) and not absent.any():
        return values, reasons
    return values.take(pa.array(order, mask=absent)), reasons
