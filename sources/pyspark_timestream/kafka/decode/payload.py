"""Decodes blocks of records, and turns processed ones and CTIs into rows (semantics 1 and 2.9)."""

import itertools
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import INSTANT, Integers, Mask, to_mask
from pyspark_timestream.core.instants import (
    NEVER,
    Instants,
    Times,
    read_record_times,
    read_record_timestamps,
    read_text_times,
    read_value_times,
)
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.columns import strip_key_prefix
from pyspark_timestream.kafka.decode.formats import (
    can_read,
    check_fields,
    decode_side,
    have_own_unit,
)
from pyspark_timestream.kafka.decode.records import (
    METADATA,
    REASONS,
    RECORD_REASONS,
    ColumnSet,
    DecodedBlock,
    Projection,
    Reasons,
    RecordBlock,
    RequestedFields,
    find_header,
    list_time_sources,
    read_header,
    take_header_values,
    to_texts,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import TimeFrom
from pyspark_timestream.kafka.options.reading import PayloadRules, Side
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import Events
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import ADJUSTED, NO_MARKS, VIOLATIONS, BlockResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Payload:
    """The decoded content of n records.

    Attributes:
        events: the n events, for the state machine.
        start_known: n booleans: the start time is readable.
        end_known: n booleans: the end time is readable; None for points.
        edges: n strings, as received; None unless events are edges.
        values: the decoded values; None if no field of the value is requested.
        keys: the decoded keys; None if no field of the key is requested.
        marks: the punctuations among the records.
    """

    events: Events
    start_known: Mask
    end_known: Mask | None
    edges: pa.Array | None
    values: DecodedBlock | None
    keys: DecodedBlock | None = None
    marks: Marks = NO_MARKS

    def find_reasons(self) -> Reasons | None:
        """Find why each record is malformed, as an index into `RECORD_REASONS`.

        None if neither values nor keys were decoded.
        """
        values, keys = self.values, self.keys
        if keys is None:
            return None if values is None else values.reasons
        # In RECORD_REASONS the reasons of keys follow those of values.
        shift = np.uint8(len(REASONS) - 1)
        key_reasons = keys.reasons + np.where(keys.malformed, shift, np.uint8(0))
        if values is None:
            return key_reasons
        return np.where(values.malformed, values.reasons, key_reasons)

    def count_malformed(self, inside: Mask | None = None) -> dict[str, int]:
        """Count the records with a malformed value or key, by reason, without zeros.

        `inside` selects the records that count; None for all.
        """
        reasons = self.find_reasons()
        if reasons is not None and inside is not None:
            reasons = reasons[inside]
        if reasons is None or not reasons.any():
            return {}
        counts = np.bincount(reasons, minlength=len(RECORD_REASONS)).tolist()
        by_reason = zip(RECORD_REASONS, counts, strict=True)
        return {reason: count for reason, count in by_reason if reason and count}


def list_required_columns(options: KafkaOptions, projection: Projection | None) -> ColumnSet:
    """Return the columns to read for `projection`, or only for the clock if it is None."""
    sources = list_time_sources(options).values()
    sides = {rules.side: rules for rules, _ in _list_sides(options, projection)}
    requests = projection.requests if projection else lambda name: False
    return ColumnSet(
        timestamps=requests("timestamp")
        or requests("timestampType")
        or _needs_record_times(options)
        or any(source.kind == "timestamp" for source in sources),
        keys=requests("key") or "key" in sides,
        values=requests("value") or "value" in sides or options.cti_header is not None,
        headers=requests("headers")
        or any(source.kind == "header" for source in sources)
        or options.cti_header is not None
        or any(rules.framing == "header" for rules in sides.values()),
    )


def check_schemas(options: KafkaOptions, projection: Projection | None) -> None:
    """Check the requested fields against the schemas that read values and keys.

    Raises:
        SchemaRefused: a schema lacks a field, or has it with another type.
    """
    for rules, fields in _list_sides(options, projection):
        try:
            check_fields(options, rules, fields)
        except SchemaRefused as error:
            if rules.side == "value":
                raise
            raise SchemaRefused(
                f"of the key, whose columns have the prefix '{options.key_prefix}': {error}"
            ) from error


def can_read_writer(
    options: KafkaOptions, projection: Projection | None, side: Side, text: str
) -> bool:
    """Return whether the requested fields can be read from payloads of a writer's schema."""
    return all(
        can_read(options, rules, fields, text)
        for rules, fields in _list_sides(options, projection)
        if rules.side == side
    )


def find_unused_unit(options: KafkaOptions) -> tuple[str, ...]:
    """Return the fields of event times if `timeUnit` affects no time; empty if it affects one."""
    sources = [source for source in (options.start_time, options.end_time) if source is not None]
    names = tuple(
        dict.fromkeys(time_from.name for time_from in sources if time_from.kind == "field")
    )
    has_texts = any(time_from.kind == "header" for time_from in sources)
    has_marks = options.cti_header is not None or options.cti_import is not None
    if options.time_unit == "ms" or not names or has_texts or has_marks:
        return ()
    return names if have_own_unit(options, names) else ()


def read_payload(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> Payload:
    """Read event times, edges, punctuations and requested fields of `block`."""
    payload = _read_events(options, projection, block)
    if not (options.cti_header or options.writer_from or _needs_record_times(options)):
        return payload
    marks = _read_marks(options, options.cti_header, block) if options.cti_header else NO_MARKS
    present = None
    if len(marks.rows) and block.values is not None:
        # A punctuation without a value is not an event (semantics 1.8).
        present = np.ones(len(block.offsets), dtype=np.bool_)
        present[marks.rows] = block.values.take(pa.array(marks.rows)).is_valid()
    events = replace(
        payload.events,
        present=present,
        record_us=_read_record_times(options, block),
        writers=_read_writers(options.writer_from, block, payload.values),
    )
    return replace(payload, events=events, marks=marks)


def _read_events(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> Payload:
    sides = {}
    for rules, fields in _list_sides(options, projection):
        payloads = block.values if rules.side == "value" else block.keys
        sides[rules.side] = decode_side(options, rules, fields, payloads, block.headers)
    values, keys = sides.get("value"), sides.get("key")
    start_us, start_known = _read_times(options.start_time, options, block, values)
    valueless = _find_valueless(options, block)
    end_us, end_known, edges, is_end, readable = None, None, None, None, start_known
    if options.end_time is not None:
        end_us, end_known = _read_times(options.end_time, options, block, values)
        readable = start_known & end_known
        if options.edge is not None:
            edges = _join_texts(_read_pieces(options.edge, block, values))
            is_start, is_end = (to_mask(pc.equal(edges, word)) for word in ("start", "end"))
            readable = start_known & (is_start | (is_end & end_known))
    events = Events(start_us, readable, end_us, is_end, valueless=valueless)
    return Payload(
        events=events,
        start_known=start_known,
        end_known=end_known,
        edges=edges,
        values=values,
        keys=keys,
    )


def _find_valueless(options: KafkaOptions, block: RecordBlock) -> Mask | None:
    """Find the records without a value although a time, or the edge, is a field of the value."""
    sources = (options.start_time, options.end_time, options.edge)
    is_read = any(source is not None and source.kind == "field" for source in sources)
    if not is_read or block.values is None or not block.values.null_count:
        return None
    return to_mask(block.values.is_null())


def _needs_record_times(options: KafkaOptions) -> bool:
    limits = (options.max_future_us, options.writer_timeout_us, options.writer_grace_us)
    # Also for diagnosis: `Clues` note generated CTIs that run ahead of their records.
    generates = options.frequency is not None and options.start_time.kind != "timestamp"
    return generates or any(limit is not None for limit in limits)


def _read_record_times(options: KafkaOptions, block: RecordBlock) -> Instants | None:
    if not _needs_record_times(options):
        return None
    us, has_time = read_record_times(block.timestamps_ms)
    return np.where(has_time, us, NEVER)


def _read_writers(
    source: TimeFrom | None, block: RecordBlock, values: DecodedBlock | None
) -> pa.Array | None:
    """Read the names of n records' writers; "" where none can be read."""
    if source is None:
        return None
    names = [_name_writers(piece) for piece in _read_pieces(source, block, values)]
    return pc.fill_null(_join_texts(names), "")


def _read_pieces(
    source: TimeFrom, block: RecordBlock, values: DecodedBlock | None
) -> list[pa.Array]:
    """Read a header of the records, or a field of their values, in consecutive pieces."""
    if source.kind == "header":
        return [read_header(block.headers, source.name)]
    return values.raw[source.name] if values else []


def _join_texts(pieces: list[pa.Array]) -> pa.Array:
    """Join pieces; those that are not texts become nulls."""
    texts = [piece if pa.types.is_string(piece.type) else pa.nulls(len(piece)) for piece in pieces]
    return pa.concat_arrays([*(text.cast(pa.string()) for text in texts), pa.nulls(0, pa.string())])


def _name_writers(piece: pa.Array) -> pa.Array:
    """Convert texts and whole numbers to names; other values become null.

    If a block of JSON has fractions, its whole numbers are doubles, so those are names too.
    """
    if pa.types.is_floating(piece.type):
        is_whole = pc.and_(pc.equal(piece, pc.floor(piece)), pc.less(pc.abs(piece), 2.0**53))
        piece = pc.if_else(is_whole, piece, None).cast(pa.int64())
    return piece.cast(pa.string()) if pa.types.is_integer(piece.type) else piece


def _read_marks(options: KafkaOptions, name: str, block: RecordBlock) -> Marks:
    """Read the punctuations of `block`: the records with a mark or a close."""
    headers: pa.Array = block.headers
    marked, closed = find_header(headers, name), find_header(headers, f"{name}-close")
    rows = np.flatnonzero((marked >= 0) | (closed >= 0))
    if not len(rows):
        return NO_MARKS
    times = to_texts(take_header_values(headers, marked[rows]))
    us, readable = read_text_times(times, options.time_unit)
    writer_names = take_header_values(headers, find_header(headers, f"{name}-writer")[rows])
    writers = to_texts(writer_names)
    # A name that is not UTF-8 is there, unlike an absent one.
    garbled = to_mask(writers.is_null()) & to_mask(writer_names.is_valid())
    is_close = closed[rows] >= 0
    names = pc.fill_null(writers, "")
    return Marks(rows, us, marked[rows] >= 0, readable & ~garbled, names, is_close)


def _choose_fields(options: KafkaOptions, projection: Projection | None) -> RequestedFields | None:
    """Return the fields of the values to parse; None if none is needed."""
    sources = list_time_sources(options).values()
    raw = tuple(dict.fromkeys(source.name for source in sources if source.kind == "field"))
    columns = pa.schema([])
    needs_names = False
    needs_reasons = False
    if projection is not None:
        columns = projection.fields
        is_parsed = options.value_format != "binary"
        needs_names = is_parsed and projection.requests("value_schema_name")
        has_ids = is_parsed and projection.requests("value_schema_id")
        needs_reasons = needs_names or has_ids or (is_parsed and bool(projection.dead_letter))
    if not (raw or len(columns) or needs_reasons):
        return None
    return RequestedFields(columns, raw, needs_names=needs_names)


def _list_sides(
    options: KafkaOptions, projection: Projection | None
) -> list[tuple[PayloadRules, RequestedFields]]:
    """List the sides of a record, value and key, that have fields to read."""
    fields = _choose_fields(options, projection)
    sides = [] if fields is None else [(options.value_rules, fields)]
    if projection is not None and len(projection.key_fields):
        keyed = RequestedFields(strip_key_prefix(options, projection.key_fields))
        sides.append((options.key_rules, keyed))
    return sides


def _read_times(
    source: TimeFrom, options: KafkaOptions, block: RecordBlock, values: DecodedBlock | None
) -> Times:
    if source.kind == "timestamp":
        return read_record_times(block.timestamps_ms)
    pieces = _read_pieces(source, block, values) or [pa.array([], pa.string())]
    times, valid = zip(
        *(read_value_times(piece, options.time_unit) for piece in pieces), strict=True
    )
    return np.concatenate(times), np.concatenate(valid)


_ROWS_A_CUT: Final = 400
"""With more rows than this per CTI, cutting a block is cheaper than taking each row."""


@dataclass(frozen=True, slots=True)
class ProcessedBlock:
    """n consecutive records of one partition, decoded and processed.

    Attributes:
        partition: the partition of the records.
        block: the n records.
        payload: their decoded content.
        result: the result of the state machine.
    """

    partition: Partition
    block: RecordBlock
    payload: Payload
    result: BlockResult

    def locate(self, index: int) -> str:
        """Name the record at `index`, for messages."""
        return f"{self.partition} offset {self.block.offsets[index].as_py()}"


def build_cti_rows(projection: Projection, ctis_us: Instants) -> pa.RecordBatch:
    """Build one row per CTI, in order."""
    columns = [
        pa.array(ctis_us, pa.int64()).cast(INSTANT)
        if projection.metadata.get(field.name) == "cti"
        else pa.nulls(len(ctis_us), field.type)
        for field in projection.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=projection.schema)


def find_true_rows(projection: Projection, processed: ProcessedBlock) -> Mask | None:
    """Find the records that meet option `where`; None without that option."""
    if projection.condition is None:
        return None
    return projection.condition.find(
        lambda name: _build_column(name, projection, processed), len(processed.block.offsets)
    )


def interleave_ctis(
    projection: Projection,
    processed: ProcessedBlock,
    keep: Mask,
    cti_after: Integers,
    ctis_us: Instants,
) -> pa.RecordBatch:
    """Build the rows of the records that `keep` selects, with CTI rows between them.

    For each of `ctis_us`, `cti_after` is the index of the record that the CTI row directly follows.
    """
    data_rows = np.flatnonzero(keep)
    positions = np.searchsorted(data_rows, cti_after, side="right")
    if 0 < len(ctis_us) * _ROWS_A_CUT < len(keep):
        rows = _take_rows(projection, processed, data_rows, ctis_us[:0])
        return _insert_rows(rows, positions, build_cti_rows(projection, ctis_us))
    return _take_rows(projection, processed, np.insert(data_rows, positions, -1), ctis_us)


def _take_rows(
    projection: Projection, processed: ProcessedBlock, source: Integers, ctis_us: Instants
) -> pa.RecordBatch:
    """Build the rows of the records `source`; -1 there stands for a CTI row."""
    is_whole = not len(ctis_us) and len(source) == len(processed.block.offsets)
    indices = pa.array(source, mask=source < 0) if len(ctis_us) else pa.array(source)
    columns = []
    for field in projection.schema:
        if projection.metadata.get(field.name) == "cti":
            columns.append(_build_cti_column(source, ctis_us))
        else:
            column = _build_column(field.name, projection, processed)
            columns.append(column if is_whole else column.take(indices))
    return pa.RecordBatch.from_arrays(columns, schema=projection.schema)


def _insert_rows(rows: pa.RecordBatch, cuts: Integers, inserted: pa.RecordBatch) -> pa.RecordBatch:
    """Insert a row before each of the rows `cuts`, which must not decrease."""
    starts, pieces = [0, *cuts.tolist()], []
    for number, (start, cut) in enumerate(itertools.pairwise(starts)):
        pieces += [rows.slice(start, cut - start), inserted.slice(number, 1)]
    table = pa.Table.from_batches([*pieces, rows.slice(starts[-1])])
    return table.combine_chunks().to_batches()[0]


def _build_cti_column(source: Integers, ctis_us: Instants) -> pa.Array:
    if not len(ctis_us):
        return pa.nulls(len(source), INSTANT)
    values = np.zeros(len(source), dtype=np.int64)
    values[source < 0] = ctis_us
    return pa.array(values, pa.int64(), mask=source >= 0).cast(INSTANT)


def _build_column(name: str, projection: Projection, processed: ProcessedBlock) -> pa.Array:
    if name in projection.metadata:
        return _build_metadata(projection.metadata[name], processed)
    if name in projection.dead_letter:
        return _build_dead_letter(projection, name, processed)
    index = projection.fields.get_field_index(name)
    if index >= 0:
        return _require(processed.payload.values).columns[index]
    return _require(processed.payload.keys).columns[projection.key_fields.get_field_index(name)]


def _build_dead_letter(projection: Projection, name: str, processed: ProcessedBlock) -> pa.Array:
    """Build what column `name` says about malformed payloads; null elsewhere."""
    values = processed.payload.values
    if projection.dead_letter[name] == "reason":
        return _name_reasons(processed.payload.find_reasons(), len(processed.block.offsets))
    data_type = projection.schema.field(name).type
    if values is None:
        return pa.nulls(len(processed.block.offsets), data_type)
    malformed = pa.array(values.malformed)
    if projection.dead_letter[name] == "schema_id":
        ids = (
            pa.nulls(len(malformed), data_type) if values.schema_ids is None else values.schema_ids
        )
        return pc.if_else(malformed, ids, None)
    column = pc.if_else(malformed, _require(processed.block.values), None)
    if not pa.types.is_string(data_type):
        return column
    # Invalid UTF-8 becomes U+FFFD, since readers refuse a column that holds it.
    contents = column.to_pylist()
    texts = [None if value is None else value.decode(errors="replace") for value in contents]
    return pa.array(texts, pa.string())


def _name_reasons(reasons: Reasons | None, rows: int) -> pa.Array:
    """Name why each record is malformed, such as `type` for its value or `key type` for its key."""
    if reasons is None:
        return pa.nulls(rows, pa.string())
    # Not a module constant: Arrow would load pandas for it, even in the driver.
    return pa.array([None, *RECORD_REASONS[1:]], pa.string()).take(pa.array(reasons))


def _build_metadata(name: str, processed: ProcessedBlock) -> pa.Array:
    partition = processed.partition
    block = processed.block
    payload = processed.payload
    result = processed.result
    rows = len(block.offsets)
    adjusted = result.violation == ADJUSTED
    match name:
        case "key":
            return _require(block.keys)
        case "value":
            return _require(block.values)
        case "headers":
            return _require(block.headers)
        case "topic":
            return pa.repeat(pa.scalar(partition.topic, pa.string()), rows)
        case "partition":
            return pa.repeat(pa.scalar(partition.number, pa.int32()), rows)
        case "offset":
            return block.offsets
        case "timestamp":
            return _build_instants(*read_record_timestamps(_require(block.timestamps_ms)))
        case "timestampType":
            return _require(block.timestamp_types)
        case "start_time":
            return _build_instants(result.start_us, payload.start_known)
        case "end_time":
            return _build_instants(_require(result.end_us), _require(payload.end_known))
        case "edge":
            return _require(payload.edges)
        case "violation":
            # Not a module constant: Arrow would load pandas for it, even in the driver.
            return pa.array(list(VIOLATIONS), pa.string()).take(pa.array(result.violation))
        case "original_start_time":
            return _build_instants(payload.events.start_us, adjusted)
        case "original_end_time":
            return _build_instants(
                _require(payload.events.end_us), adjusted & _require(payload.end_known)
            )
        case "value_schema_id":
            ids = payload.values.schema_ids if payload.values else None
            return pa.nulls(rows, METADATA[name]) if ids is None else ids
        case "value_schema_name":
            names = payload.values.names if payload.values else None
            return pa.nulls(rows, METADATA[name]) if names is None else names
        case "time_lower":
            return _build_bounds(_require(result.time_windows).lower_us)
        case "time_upper":
            return _build_bounds(_require(result.time_windows).upper_us)
        case _:
            raise AssertionError(f"no metadata {name}")


def _require(value: T | None) -> T:
    """Return `value`, which the projection guarantees to be present."""
    if value is None:
        raise AssertionError("a column was projected that was not read")
    return value


def _build_bounds(us: Instants) -> pa.Array:
    return _build_instants(us, us != NEVER)


def _build_instants(us: Instants, is_set: Mask) -> pa.Array:
    mask = None if is_set.all() else ~is_set
    return pa.array(us, pa.int64(), mask=mask).cast(INSTANT)
