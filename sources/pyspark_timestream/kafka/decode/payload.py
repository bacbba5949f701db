"""Decodes a block of records: event times, edges, marks and requested fields (semantics 1)."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.event_time import (
    Times,
    read_record_times,
    read_text_times,
    read_value_times,
)
from pyspark_timestream.core.instants import NEVER, Instants, Mask
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.columns import Projection, strip_key_prefix
from pyspark_timestream.kafka.decode.formats import (
    can_read,
    check_fields,
    decode_part,
    have_own_unit,
)
from pyspark_timestream.kafka.decode.records import (
    RECORD_REASONS,
    ColumnSet,
    DecodedBlock,
    Reasons,
    RecordBlock,
    RequestedFields,
    find_header,
    find_record_reasons,
    read_header,
    take_header_values,
    to_mask,
    to_texts,
)
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import TimeFrom
from pyspark_timestream.kafka.options.reading import Part, PayloadRules
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import NO_MARKS, Events


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
        """Find why each record is malformed; see `find_record_reasons`."""
        return find_record_reasons(self.values, self.keys)

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
        named = zip(RECORD_REASONS, counts, strict=True)
        return {reason: count for reason, count in named if reason and count}


def required_columns(options: KafkaOptions, projection: Projection | None) -> ColumnSet:
    """Return the columns to read for `projection`, or only for the clock if it is None."""
    sources = _time_sources(options)
    sides = {rules.part: rules for rules, _ in _list_sides(options, projection)}
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
            if rules.part == "value":
                raise
            raise SchemaRefused(
                f"of the key, whose columns have the prefix '{options.key_prefix}': {error}"
            ) from error


def can_read_writer(
    options: KafkaOptions, projection: Projection | None, part: Part, text: str
) -> bool:
    """Return whether the requested fields can be read from payloads of a writer's schema."""
    return all(
        can_read(options, rules, fields, text)
        for rules, fields in _list_sides(options, projection)
        if rules.part == part
    )


def find_unused_unit(options: KafkaOptions) -> tuple[str, ...]:
    """Return the fields of event times if `timeUnit` affects no time; empty if it affects one."""
    given = [source for source in (options.start_time, options.end_time) if source is not None]
    names = tuple(dict.fromkeys(each.name for each in given if each.kind == "field"))
    has_texts = any(each.kind == "header" for each in given)
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
    if len(marks.places) and block.values is not None:
        # A punctuation without a value is not an event (semantics 1.8).
        present = np.ones(len(block.offsets), dtype=np.bool_)
        present[marks.places] = block.values.take(pa.array(marks.places)).is_valid()
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
    sides = {
        rules.part: decode_part(
            options,
            rules,
            fields,
            block.values if rules.part == "value" else block.keys,
            block.headers,
        )
        for rules, fields in _list_sides(options, projection)
    }
    parsed, keys = sides.get("value"), sides.get("key")
    start_us, start_known = _read_times(options.start_time, options, block, parsed)
    valueless = _find_valueless(options, block)
    if options.end_time is None:
        events = Events(start_us, start_known, valueless=valueless)
        return Payload(events, start_known, None, None, parsed, keys)
    end_us, end_known = _read_times(options.end_time, options, block, parsed)
    if options.edge is None:
        events = Events(start_us, start_known & end_known, end_us, valueless=valueless)
        return Payload(events, start_known, end_known, None, parsed, keys)
    edges = _read_texts(options.edge, block, parsed)
    is_start, is_end = _equals(edges, "start"), _equals(edges, "end")
    readable = start_known & (is_start | (is_end & end_known))
    events = Events(start_us, readable, end_us, is_end, valueless=valueless)
    return Payload(events, start_known, end_known, edges, parsed, keys)


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
    us, known = read_record_times(block.timestamps_ms)
    return np.where(known, us, NEVER)


def _read_writers(
    source: TimeFrom | None, block: RecordBlock, parsed: DecodedBlock | None
) -> pa.Array | None:
    """Read the names of n records' writers; "" where none can be read."""
    if source is None:
        return None
    if source.kind == "header":
        return pc.fill_null(read_header(block.headers, source.name), "")
    pieces = parsed.raw[source.name] if parsed else []
    names = [_name_writers(piece) for piece in pieces]
    return pc.fill_null(pa.concat_arrays(names), "") if names else pa.array([], pa.string())


def _name_writers(piece: pa.Array) -> pa.Array:
    """Convert texts and whole numbers to names; other values become null.

    If a block of JSON has fractions, its whole numbers are doubles, so those are names too.
    """
    if pa.types.is_floating(piece.type):
        is_whole = pc.and_(pc.equal(piece, pc.floor(piece)), pc.less(pc.abs(piece), 2.0**53))
        piece = pc.if_else(is_whole, piece, None).cast(pa.int64())
    if pa.types.is_string(piece.type) or pa.types.is_integer(piece.type):
        return piece.cast(pa.string())
    return pa.nulls(len(piece), pa.string())


def _read_marks(options: KafkaOptions, name: str, block: RecordBlock) -> Marks:
    """Read the punctuations of `block`: the records with a mark or a close."""
    headers: pa.Array = block.headers
    marked, closed = find_header(headers, name), find_header(headers, f"{name}-close")
    places = np.flatnonzero((marked >= 0) | (closed >= 0))
    if not len(places):
        return NO_MARKS
    times = to_texts(take_header_values(headers, marked[places]))
    us, readable = read_text_times(times, options.time_unit)
    named = take_header_values(headers, find_header(headers, f"{name}-writer")[places])
    writers = to_texts(named)
    # A name that is not UTF-8 is there, unlike an absent one.
    garbled = to_mask(writers.is_null()) & to_mask(named.is_valid())
    is_close = closed[places] >= 0
    names = pc.fill_null(writers, "")
    return Marks(places, us, marked[places] >= 0, readable & ~garbled, names, is_close)


def _time_sources(options: KafkaOptions) -> list[TimeFrom]:
    sources = (options.start_time, options.end_time, options.edge, options.writer_from)
    return [source for source in sources if source is not None]


def _choose_fields(options: KafkaOptions, projection: Projection | None) -> RequestedFields | None:
    """Return the fields of the values to parse; None if none is needed."""
    raw = tuple(dict.fromkeys(s.name for s in _time_sources(options) if s.kind == "field"))
    columns = projection.fields if projection else pa.schema([])
    if projection is None or options.value_format == "binary":
        return RequestedFields(columns, raw) if raw or len(columns) else None
    names = projection.requests("value_schema_name")
    about = projection.dead_letter or names or projection.requests("value_schema_id")
    return RequestedFields(columns, raw, names) if raw or len(columns) or about else None


def _choose_key_fields(
    options: KafkaOptions, projection: Projection | None
) -> RequestedFields | None:
    """Return the fields of the keys to parse; None if none is needed."""
    if projection is None or not len(projection.key_fields):
        return None
    return RequestedFields(strip_key_prefix(options, projection.key_fields))


def _list_sides(
    options: KafkaOptions, projection: Projection | None
) -> list[tuple[PayloadRules, RequestedFields]]:
    """List the sides of a record, value and key, that have fields to read."""
    sides = (
        (options.value_rules, _choose_fields(options, projection)),
        (options.key_rules, _choose_key_fields(options, projection)),
    )
    return [(rules, fields) for rules, fields in sides if fields is not None]


def _read_times(
    source: TimeFrom, options: KafkaOptions, block: RecordBlock, parsed: DecodedBlock | None
) -> Times:
    if source.kind == "timestamp":
        return read_record_times(block.timestamps_ms)
    if source.kind == "header":
        return read_text_times(read_header(block.headers, source.name), options.time_unit)
    pieces = parsed.raw[source.name] if parsed else []
    read = [read_value_times(piece, options.time_unit) for piece in pieces]
    if not read:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
    return np.concatenate([us for us, _ in read]), np.concatenate([known for _, known in read])


def _read_texts(source: TimeFrom, block: RecordBlock, parsed: DecodedBlock | None) -> pa.Array:
    if source.kind == "header":
        return read_header(block.headers, source.name)
    pieces = parsed.raw[source.name] if parsed else []
    texts = [
        piece if pa.types.is_string(piece.type) else pa.nulls(len(piece), pa.string())
        for piece in pieces
    ]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.string())


def _equals(texts: pa.Array, word: str) -> Mask:
    return to_mask(pc.equal(texts, word))
