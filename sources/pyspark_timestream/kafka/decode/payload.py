"""What a block of records says: its events for the clock, and the columns that need parsing."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.event_time import Times, record_times, text_times, value_times
from pyspark_timestream.cti.marks import NEVER
from pyspark_timestream.cti.step import NO_MARKS, Events, Marks
from pyspark_timestream.kafka.decode.columns import Projection
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.json.types import JsonBlock, JsonFields
from pyspark_timestream.kafka.decode.records import (
    Needs,
    RecordBlock,
    as_texts,
    header_places,
    header_texts,
    header_values,
)
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.parsers import TimeFrom

__all__ = ["Payload", "needs_of", "read_payload"]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Payload:
    """What n records say.

    Attributes:
        events: the n events, for the state machine.
        start_known: n booleans: the start time could be read.
        end_known: n booleans: the end time could be read; None for points.
        edges: n strings, as received; None unless edges.
        json: the parsed values; None where nothing of them is wanted.
        marks: the punctuations among them.
    """

    events: Events
    start_known: Mask
    end_known: Mask | None
    edges: pa.Array | None
    json: JsonBlock | None
    marks: Marks = NO_MARKS


def needs_of(options: KafkaOptions, projection: Projection | None) -> Needs:
    """Which columns must be read for `projection`; None: for the clock alone."""
    sources = _sources(options)
    wants = projection.wants if projection else lambda name: False
    return Needs(
        timestamps=wants("timestamp")
        or wants("timestampType")
        or _needs_record_times(options)
        or any(source.kind == "timestamp" for source in sources),
        keys=wants("key"),
        values=wants("value")
        or _json_fields(options, projection) is not None
        or options.cti_header is not None,
        headers=wants("headers")
        or any(source.kind == "header" for source in sources)
        or options.cti_header is not None,
    )


def read_payload(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> Payload:
    """Read event times, edges, punctuations and the wanted JSON fields of `block`."""
    payload = _read_events(options, projection, block)
    if options.cti_header is None and not _needs_record_times(options):
        return payload
    marks = _read_marks(options, options.cti_header, block) if options.cti_header else NO_MARKS
    present = None
    if len(marks.places) and block.values is not None:
        # A punctuation without a value is no event (semantics 1.8).
        present = np.ones(len(block.offsets), dtype=np.bool_)
        present[marks.places] = block.values.take(pa.array(marks.places)).is_valid()
    events = replace(payload.events, present=present, record_us=_record_us(options, block))
    return replace(payload, events=events, marks=marks)


def _read_events(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> Payload:
    fields = _json_fields(options, projection)
    parsed = parse_json(fields, block.values) if fields is not None else None
    start_us, start_known = _times(options.start_time, options, block, parsed)
    if options.end_time is None:
        return Payload(Events(start_us, start_known), start_known, None, None, parsed)
    end_us, end_known = _times(options.end_time, options, block, parsed)
    if options.edge is None:
        events = Events(start_us, start_known & end_known, end_us)
        return Payload(events, start_known, end_known, None, parsed)
    edges = _texts(options.edge, block, parsed)
    is_start, is_end = _equals(edges, "start"), _equals(edges, "end")
    readable = start_known & (is_start | (is_end & end_known))
    events = Events(start_us, readable, end_us, is_end)
    return Payload(events, start_known, end_known, edges, parsed)


def _needs_record_times(options: KafkaOptions) -> bool:
    return options.max_future_us is not None or options.writer_timeout_us is not None


def _record_us(options: KafkaOptions, block: RecordBlock) -> npt.NDArray[np.int64] | None:
    if not _needs_record_times(options):
        return None
    us, known = record_times(block.timestamps_ms)
    return np.where(known, us, NEVER)


def _read_marks(options: KafkaOptions, name: str, block: RecordBlock) -> Marks:
    """The punctuations of `block`: the records with a mark or a close."""
    headers: pa.Array = block.headers
    marked, closed = header_places(headers, name), header_places(headers, f"{name}-close")
    places = np.flatnonzero((marked >= 0) | (closed >= 0))
    if not len(places):
        return NO_MARKS
    times = as_texts(header_values(headers, marked[places]))
    us, readable = text_times(times, options.time_unit)
    named = header_values(headers, header_places(headers, f"{name}-writer")[places])
    writers = as_texts(named)
    # A name that is no UTF-8 is not the same as none.
    garbled = np.array(
        pc.and_not(pc.is_null(writers), pc.is_null(named)).to_numpy(zero_copy_only=False)
    )
    names = pc.fill_null(writers, "")
    is_close = closed[places] >= 0
    return Marks(places, us, marked[places] >= 0, readable & ~garbled, names, is_close)


def _sources(options: KafkaOptions) -> list[TimeFrom]:
    return [s for s in (options.start_time, options.end_time, options.edge) if s is not None]


def _json_fields(options: KafkaOptions, projection: Projection | None) -> JsonFields | None:
    """What to parse of the values; None: nothing."""
    raw = tuple(dict.fromkeys(s.name for s in _sources(options) if s.kind == "field"))
    columns = projection.fields if projection else pa.schema([])
    corrupt = projection is not None and projection.corrupt is not None
    return JsonFields(columns, raw) if raw or len(columns) or corrupt else None


def _times(
    source: TimeFrom, options: KafkaOptions, block: RecordBlock, parsed: JsonBlock | None
) -> Times:
    if source.kind == "timestamp":
        return record_times(block.timestamps_ms)
    if source.kind == "header":
        return text_times(header_texts(block.headers, source.name), options.time_unit)
    pieces = parsed.raw[source.name] if parsed else []
    read = [value_times(piece, options.time_unit) for piece in pieces]
    if not read:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
    return np.concatenate([us for us, _ in read]), np.concatenate([known for _, known in read])


def _texts(source: TimeFrom, block: RecordBlock, parsed: JsonBlock | None) -> pa.Array:
    if source.kind == "header":
        return header_texts(block.headers, source.name)
    pieces = parsed.raw[source.name] if parsed else []
    texts = [
        piece if pa.types.is_string(piece.type) else pa.nulls(len(piece), pa.string())
        for piece in pieces
    ]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.string())


def _equals(texts: pa.Array, word: str) -> Mask:
    return np.array(pc.fill_null(pc.equal(texts, word), False).to_numpy(zero_copy_only=False))
