"""Reads Avro payloads into columns: groups by writer's schema, decodes, casts, restores the order.

A row is a function of the payload's bytes, the reader's schema and the writer's schema (semantics
13.6 and 13.9). Payloads of one writer are read together in columns (`by_block`), and one by one
where that is not possible or does not pay (`by_row`); the results are the same, so they do not
depend on a payload's neighbours.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.avro.by_block import Places, can_read_block, read_block
from pyspark_timestream.kafka.decode.avro.by_row import RowReader
from pyspark_timestream.kafka.decode.avro.resolution import Plan, resolve
from pyspark_timestream.kafka.decode.avro.schemas import (
    AvroReader,
    ParsedSchema,
    build_wanted,
    find_name,
    parse_schema,
)
from pyspark_timestream.kafka.decode.convert import cast
from pyspark_timestream.kafka.decode.records import (
    FINE,
    NAME,
    SYNTAX,
    TYPE,
    DecodedBlock,
    Reasons,
    RequestedFields,
)
from pyspark_timestream.kafka.options.parsers import parse_path

Longs = npt.NDArray[np.int64]

_FEW_BODIES: Final = 40
"""Up to this many payloads are read one by one, which costs less than calling numpy for them."""

_PIECE_BODIES: Final = 8_192
"""The payloads that are read at a time: their columns fit into a processor's cache."""

_PIECE_BYTES: Final = 1 << 20
"""The bytes that are read at a time, unless a single payload has more: they bound the memory."""

_INSTANT: Final = pa.timestamp("us", tz="UTC")


class _Fields(NamedTuple):
    """The wanted fields of some payloads, and which of them do not fit."""

    columns: list[pa.Array]
    raw: dict[str, pa.Array]
    unfit: npt.NDArray[np.bool_]


class _Codec(NamedTuple):
    """The plan for one writer's schema, with its reader of single payloads."""

    plan: Plan
    rows: RowReader


def read_avro(
    reader: AvroReader,
    wanted: RequestedFields,
    bodies: pa.Array,
    writers: Mapping[int, str],
    schema_ids: pa.Array | None = None,
    newer: tuple[AvroReader, ...] = (),
) -> DecodedBlock:
    """Read n Avro payloads.

    Args:
        reader: the reader's schema; `check_avro_columns` has accepted the wanted fields.
        wanted: the fields, by paths into its records.
        bodies: n binary values, without framing. A null is a row of nulls, and is not malformed.
        writers: the writers' schemas as JSON, by id: at least those of `schema_ids`.
        schema_ids: n int32: the id of the schema that wrote the payload; null where the body is
            null or its framing is bad, which makes a row of nulls. None: `reader` wrote them all.
        newer: later schemas of the reader, for writers' schemas that the earlier ones cannot read.

    Raises:
        SchemaRefused: a writer's schema cannot be read with the reader's, or is no Avro schema;
            `row` is the first payload that it wrote.
    """
    if not pa.types.is_binary(bodies.type):
        bodies = bodies.cast(pa.binary())
    reasons = np.full(len(bodies), FINE, np.uint8)
    order = np.full(len(bodies), -1, np.int64)
    pieces: list[_Fields] = []
    total = 0
    codes = np.full(len(bodies), -1, np.int64)
    names: list[str | None] = []
    for text, rows in _group(reader, bodies, writers, schema_ids):
        group = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
        try:
            found, of_rows = _find_names(reader, wanted, text, group)
            codes[rows] = np.where(of_rows < 0, -1, of_rows + len(names))
            names += found
            wanted_ones = np.array([*map(reader.accepts, found), True])[of_rows]
            if not wanted_ones.all():
                reasons[rows[~wanted_ones]] = NAME
                rows, group = rows[wanted_ones], group.filter(pa.array(wanted_ones))
            codec = _build_codec((reader, *newer), wanted, text) if len(rows) else None
        except SchemaRefused as error:
            error.row = int(rows[0])
            raise
        if codec is None:
            continue
        for start, stop in _split(group):
            values, why = _read_piece(codec, group[start:stop])
            fields = _take_fields(wanted, values)
            why[fields.unfit & (why == FINE)] = TYPE
            reasons[rows[start:stop]] = why
            pieces.append(fields)
        order[rows] = np.arange(total, total + len(rows))
        total += len(rows)
    in_order = total == len(bodies) and not (order[1:] < order[:-1]).any()
    places = None if in_order else pa.array(order, mask=order < 0)
    columns = [
        _join([piece.columns[at] for piece in pieces], field.type, places)
        for at, field in enumerate(wanted.columns)
    ]
    raw = {name: _join_raw([piece.raw[name] for piece in pieces], order) for name in wanted.raw}
    named = None
    if wanted.names:
        named = pa.array([*names, None], pa.string()).take(pa.array(codes % (len(names) + 1)))
    return DecodedBlock(columns, raw, reasons, schema_ids, named)


def can_read_avro(readers: tuple[AvroReader, ...], wanted: RequestedFields, writer: str) -> bool:
    """Check that payloads of a writer's schema can be read."""
    try:
        _build_codec(readers, wanted, writer)
    except SchemaRefused:
        return False
    return True


def _find_names(
    reader: AvroReader, wanted: RequestedFields, text: str, bodies: pa.Array
) -> tuple[list[str | None], Longs]:
    """Return the names of the records that a schema writes, and for n payloads which it is.

    -1 where a union has no such branch, which makes the payload malformed anyway.
    """
    if not (wanted.names or reader.record):
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


def _split(bodies: pa.Array) -> Iterator[tuple[int, int]]:
    """Split into pieces that are read at a time.

    An item of an array takes a byte at least, and many bytes of memory while it is read.
    """
    narrow = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset :][: len(bodies) + 1]
    ends, start = narrow.astype(np.int64), 0
    while start < len(bodies):
        fitting = int(np.searchsorted(ends, ends[start] + _PIECE_BYTES, side="right")) - 1
        stop = min(max(fitting, start + 1), start + _PIECE_BODIES, len(bodies))
        yield start, stop
        start = stop


def _join(pieces: list[pa.Array], kind: pa.DataType, places: pa.Array | None) -> pa.Array:
    joined = pa.concat_arrays(pieces) if pieces else pa.array([], kind)
    return joined if places is None else joined.take(places)


def _join_raw(pieces: list[pa.Array], order: Longs) -> list[pa.Array]:
    """Join a field that may be of another type in each piece, in the order of the payloads."""
    kinds = {piece.type for piece in pieces}
    if len(kinds) > 1 and all(map(pa.types.is_integer, kinds)):
        pieces, kinds = [piece.cast(pa.int64()) for piece in pieces], {pa.int64()}
    if len(kinds) <= 1:
        kind = kinds.pop() if kinds else pa.null()
        return [_join(pieces, kind, pa.array(order, mask=order < 0))]
    # A writer changed whole numbers to fractions, say: each stays what it was.
    starts = np.concatenate(([0], np.cumsum([len(piece) for piece in pieces])))
    owners = np.where(order < 0, -1, np.searchsorted(starts, order, side="right") - 1)
    found = []
    for run in np.split(np.arange(len(order)), np.flatnonzero(np.diff(owners)) + 1):
        owner = int(owners[run[0]])
        if owner < 0:
            found.append(pa.nulls(len(run)))
        else:
            found.append(pieces[owner].take(pa.array(order[run] - starts[owner])))
    return found


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
def _build_codec(readers: tuple[AvroReader, ...], wanted: RequestedFields, writer: str) -> _Codec:
    """Plan the reading of a writer's schema by the first of `readers` that can."""
    first, *newer = readers
    try:
        plan = resolve(_parse_writer(writer), build_wanted(first, wanted))
    except SchemaRefused:
        if not newer:
            raise
        return _build_codec(tuple(newer), wanted, writer)
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


def _take_fields(wanted: RequestedFields, values: pa.Array) -> _Fields:
    """Take the wanted fields out of n structs of one writer."""
    unfit = np.zeros(len(values), np.bool_)
    columns = []
    for column in wanted.columns:
        converted = cast(_take_path(values, column.name), column.type)
        columns.append(converted.column)
        unfit |= converted.bad
    return _Fields(columns, {name: _take_raw(values, name) for name in wanted.raw}, unfit)


def _take_path(values: pa.Array, path: str) -> pa.Array:
    for name in parse_path(path):
        values = pc.struct_field(values, name)
    return values


def _take_raw(values: pa.Array, path: str) -> Any:
    """Take a field for event times: dates and timestamps as instants."""
    found = _take_path(values, path)
    if pa.types.is_date32(found.type):
        return cast(found, pa.date32()).column.cast(pa.timestamp("us")).view(_INSTANT)
    if pa.types.is_timestamp(found.type):
        local = pa.timestamp("us", tz=found.type.tz)
        return cast(found, local).column.view(_INSTANT)
    return found
