"""Columns for the fields of payloads, and candidates for the time of an event.

A column is a field that is not a struct, by its path. Fields with names that suggest secrets are
left out at any depth, and so are types that Spark cannot have as a column.

A candidate is readable as a time between 1990 and 2100 in most of the records that have it. Its
unit follows from its type, its text, or the range of its numbers. Candidates are ordered by name,
then by nearness to the record's timestamp. A number with a name that does not suggest a time, far
from the record's timestamp, may be anything, so it comes after that timestamp.
"""

import base64
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.event_time import (
    TIME_UNITS,
    Times,
    read_record_times,
    read_value_times,
)
from pyspark_timestream.core.instants import DAY_US, PROBABLE_US
from pyspark_timestream.kafka.decode.avro.schemas import (
    ParsedSchema,
    kind_of,
    parse_schema,
    read_as,
)
from pyspark_timestream.kafka.decode.formats import HEADERS
from pyspark_timestream.kafka.decode.protobuf.descriptors import compile_reader, create_reader
from pyspark_timestream.kafka.decode.records import read_header
from pyspark_timestream.kafka.diagnosis.samples import split_name, suggests_secret
from pyspark_timestream.kafka.options.parsers import format_path
from pyspark_timestream.kafka.options.reading import ReaderSchema

_MAX_DEPTH: Final = 8
_PLAIN_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_LONG: Final = range(-(2**63), 2**63)

_NOTHING: Final = pa.null()
"""The type of a value that does not show its field's type."""

_TYPE_NAMES: Final = {
    "binary": "binary",
    "bool": "boolean",
    "date32[day]": "date",
    "double": "double",
    "duration[us]": "interval day to second",
    "float": "float",
    "int32": "int",
    "int64": "bigint",
    "string": "string",
    "timestamp[us, tz=UTC]": "timestamp",
    "timestamp[us]": "timestamp_ntz",
}

_PROTOBUF_TIMES: Final = {
    "google.protobuf.Timestamp": pa.timestamp("us", tz="UTC"),
    "google.protobuf.Duration": pa.duration("us"),
    "google.type.Date": pa.date32(),
}
_PROTOBUF_WRAPPER: Final = re.compile(r"google\.protobuf\.[A-Za-z0-9]+Value")
UINT64: Final = pa.decimal128(20, 0)
"""The type of a column for unsigned 64-bit numbers."""


class Columns(NamedTuple):
    """The columns of the values or the keys, by their paths as text.

    Fields with names that suggest secrets are left out, and those beyond what a schema has room
    for.
    """

    fields: pa.Schema
    secrets: int = 0
    left: int = 0


def list_columns(struct: pa.DataType) -> Columns:
    """List a struct's fields that are not structs themselves, by their paths."""
    kept, secrets = _drop_secrets(struct)
    fields = [
        pa.field(format_path(path), kind)
        for path, kind in _list_leaves(kept or pa.struct([]), ())
        if all(name.strip() and name.isprintable() for name in path)
    ]
    return Columns(pa.schema(fields), secrets)


def _list_leaves(
    kind: pa.DataType, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    if not pa.types.is_struct(kind):
        yield path, kind
        return
    for each in kind:
        yield from _list_leaves(each.type, (*path, each.name))


def _drop_secrets(kind: pa.DataType) -> tuple[pa.DataType | None, int]:
    """Return a type without fields that suggest secrets, or None, and how many those are."""
    if pa.types.is_list(kind):
        inner, secrets = _drop_secrets(kind.value_type)
        return (None if inner is None else pa.list_(inner)), secrets
    if pa.types.is_map(kind):
        inner, secrets = _drop_secrets(kind.item_type)
        return (None if inner is None else pa.map_(kind.key_type, inner)), secrets
    if not pa.types.is_struct(kind):
        return kind, 0
    named = {each.name: _drop_secrets(each.type) for each in kind if not suggests_secret(each.name)}
    secrets = kind.num_fields - len(named) + sum(hidden for _, hidden in named.values())
    kept = [(name, inner) for name, (inner, _) in named.items() if inner is not None]
    return (pa.struct(kept) if kept else None), secrets


def format_columns(schema: pa.Schema) -> list[str]:
    """Format each column as in Spark's DDL.

    >>> format_columns(pa.schema([("a.b", pa.list_(pa.int64())), ("c", pa.bool_())]))
    ['`a.b` array<bigint>', 'c boolean']
    """
    return [f"{_quote(each.name)} {_format_type(each.type)}" for each in schema]


def _quote(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _format_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{_format_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_format_type(kind.key_type)},{_format_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_quote(e.name)}:{_format_type(e.type)}' for e in kind)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _TYPE_NAMES[str(kind)]


# -- JSON ------------------------------------------------------------------------------------------


def infer_json(objects: Iterable[Mapping[str, Any]]) -> pa.DataType:
    """Infer a struct for JSON objects; a field of several types becomes a string."""
    schema = pa.struct([])
    for each in objects:
        schema = _merge(schema, _type_of(each, 0))
    return pa.struct([(each.name, _settle(each.type)) for each in schema])


def _type_of(value: Any, depth: int) -> pa.DataType:
    match value:
        case None:
            return _NOTHING
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if value in _LONG else pa.string()
        case float():
            return pa.float64()
        case dict() if depth < _MAX_DEPTH:
            return pa.struct([(name, _type_of(inner, depth + 1)) for name, inner in value.items()])
        case list() if depth < _MAX_DEPTH:
            item = _NOTHING
            for each in value:
                item = _merge(item, _type_of(each, depth + 1))
            return pa.list_(item)
        case _:
            return pa.string()


def _merge(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or other == _NOTHING:
        return one
    if one == _NOTHING:
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_merge(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        merged = {each.name: each.type for each in one}
        for each in other:
            merged[each.name] = _merge(merged.get(each.name, _NOTHING), each.type)
        return pa.struct(list(merged.items()))
    return pa.string()


def _settle(kind: pa.DataType) -> pa.DataType:
    """Return a type that a column can have; an unknown type becomes a string."""
    if kind == _NOTHING or kind == pa.struct([]):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settle(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _settle(each.type)) for each in kind])
    return kind


# -- schemas ---------------------------------------------------------------------------------------


def read_schema(format: str, reader: ReaderSchema) -> pa.DataType:
    """Return the struct that an Avro or Protobuf schema is read as; empty if it has no fields."""
    if format == "avro":
        parsed = parse_schema(reader.text)
        fields = _read_avro(parsed, parsed.schema, ())
    else:
        message = create_reader(base64.b64decode(reader.text), reader.message)
        fields = _read_message(compile_reader(message).descriptor, ())
    return fields if fields is not None and pa.types.is_struct(fields) else pa.struct([])


def _read_avro(parsed: ParsedSchema, schema: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of an Avro schema; None if it cannot be a column, or contains itself."""
    schema = parsed.look_up(schema)
    if isinstance(schema, list):
        types = [each for each in schema if each != "null"]
        return _read_avro(parsed, types[0], outer) if len(types) == 1 else None
    match kind_of(schema):
        case "record":
            name = schema["name"]
            if name in outer or len(outer) >= _MAX_DEPTH:
                return None
            fields = [
                (field["name"], _read_avro(parsed, field["type"], (*outer, name)))
                for field in schema["fields"]
            ]
            return _create_struct(fields)
        case "array":
            item = _read_avro(parsed, schema["items"], outer)
            return None if item is None else pa.list_(item)
        case "map":
            item = _read_avro(parsed, schema["values"], outer)
            return None if item is None else pa.map_(pa.string(), item)
        case "null":
            return None
        case _:
            return read_as(schema)


def _read_message(message: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    """Return the struct of a Protobuf message; None if it contains itself."""
    if message.full_name in outer or len(outer) >= _MAX_DEPTH:
        return None
    inside = (*outer, message.full_name)
    return _create_struct([(field.name, _read_field(field, inside)) for field in message.fields])


def _read_field(field: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    is_message = field.type == field.TYPE_MESSAGE
    if is_message and field.is_repeated and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        item = _read_one(value, outer)
        return None if item is None else pa.map_(_read_one(key, outer), item)
    read = _read_one(field, outer)
    return pa.list_(read) if field.is_repeated and read is not None else read


def _read_one(field: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    if field.type == field.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in _PROTOBUF_TIMES:
            return _PROTOBUF_TIMES[name]
        wrapped = field.message_type.fields_by_name.get("value")
        if _PROTOBUF_WRAPPER.fullmatch(name) and wrapped is not None and name not in outer:
            return _read_one(wrapped, (*outer, name))
        return _read_message(field.message_type, outer)
    types: dict[int, pa.DataType] = {
        field.TYPE_DOUBLE: pa.float64(),
        field.TYPE_FLOAT: pa.float32(),
        field.TYPE_BOOL: pa.bool_(),
        field.TYPE_STRING: pa.string(),
        field.TYPE_ENUM: pa.string(),
        field.TYPE_BYTES: pa.binary(),
        field.TYPE_UINT64: UINT64,
        field.TYPE_FIXED64: UINT64,
        field.TYPE_INT32: pa.int32(),
        field.TYPE_SINT32: pa.int32(),
        field.TYPE_SFIXED32: pa.int32(),
        field.TYPE_GROUP: None,
    }
    return types.get(field.type, pa.int64())


def _create_struct(fields: Iterable[tuple[str, pa.DataType | None]]) -> pa.DataType:
    return pa.struct([(name, kind) for name, kind in fields if kind is not None])


_YEAR_US: Final = 366 * DAY_US

_EVENT: Final = frozenset(
    ("ts", "time", "timestamp", "event", "occurred", "occurrence", "happened", "datetime")
)
_RELATED: Final = frozenset(
    ("created", "creation", "at", "date", "when", "start", "started", "measured", "observed")
)
_OTHER: Final = frozenset(
    (
        *("updated", "modified", "processed", "processing", "ingested", "ingest", "ingestion"),
        *("received", "loaded", "expires", "expiry", "expired", "deleted", "end", "ended"),
        *("until", "valid", "birth", "born", "due"),
    )
)
"""Words in names of times that are those of something other than the event."""

_EVENT_NAME, _RELATED_NAME, _RECORD, _PLAIN_FIELD, _OTHER_NAME = range(5)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible `startTime`, with the bounds of its times and of their lags behind their records.

    `kind` is `timestamp`, `date`, `text`, `number` or `record`, for the record's own; `unit` that
    of numbers; `readable` the number of records with a plausible time. A lag is negative if it is
    ahead.
    """

    source: str
    kind: str
    unit: str
    readable: int
    first_us: int
    last_us: int
    least_lag_us: int | None = None
    most_lag_us: int | None = None


def can_be_time(kind: pa.DataType) -> bool:
    """Return whether a field of this type may hold a time."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date32(kind)
    )


def find_candidates(
    fields: Mapping[str, Sequence[pa.Array]],
    types: Mapping[str, pa.DataType],
    headers: pa.Array,
    timestamps_ms: pa.Array,
) -> tuple[Candidate, ...]:
    """Find the candidates for the event time of n records, the best one first.

    `fields` has each field's contents by its path, in pieces that add up to n, `types` the types of
    their columns.
    """
    record = read_record_times(timestamps_ms)
    ranked: list[tuple[tuple[int, int, int], Candidate]] = []
    contents = [(f"field:{path}", pieces, types.get(path)) for path, pieces in fields.items()]
    contents += [
        (f"header:{name}", [read_header(headers, name)], None) for name in _list_headers(headers)
    ]
    for place, (source, pieces, kind) in enumerate(contents):
        candidate = _examine(source, pieces, kind, record)
        if candidate is not None:
            nearness = _rank_lag(candidate.least_lag_us, candidate.most_lag_us)
            rank = _rank_name(source)
            if rank == _PLAIN_FIELD and (candidate.kind != "number" or nearness == 0):
                # Such a value is almost certainly a time.
                rank = _RELATED_NAME
            ranked.append(((rank, nearness, place), candidate))
    timestamp = _describe("record:timestamp", "record", "", record, record)
    if timestamp is not None:
        ranked.append(((_RECORD, 0, 0), timestamp))
    return tuple(each for _, each in sorted(ranked, key=lambda pair: pair[0]))


def _list_headers(headers: pa.Array) -> list[str]:
    names = [each["key"] for record in headers.to_pylist() for each in record or ()]
    return [
        name
        for name in dict.fromkeys(names)
        if name.strip()
        and name.isprintable()
        and not suggests_secret(name)
        and name not in HEADERS.values()
    ]


def _examine(
    source: str, pieces: Sequence[pa.Array], kind: pa.DataType | None, record: Times
) -> Candidate | None:
    present = sum(len(piece) - piece.null_count for piece in pieces)
    read = {unit: _read(pieces, unit) for unit in TIME_UNITS}
    counts = {unit: int(np.count_nonzero(is_read)) for unit, (_, is_read) in read.items()}
    unit = max(counts, key=lambda each: counts[each])
    if not present or 2 * counts[unit] <= present:
        return None
    # A time that brings its own unit is the same in all of them.
    is_number = len(set(counts.values())) > 1
    name = "number" if is_number else "text"
    if kind is not None and pa.types.is_timestamp(kind):
        name = "timestamp"
    if kind is not None and pa.types.is_date32(kind):
        name = "date"
    return _describe(source, name, unit if is_number else "", read[unit], record)


def _read(pieces: Sequence[pa.Array], unit: str) -> Times:
    """Read the plausible times in a field's pieces."""
    parts = [read_value_times(piece, unit) for piece in pieces]
    us = np.concatenate([part for part, _ in parts])
    is_read = np.concatenate([part for _, part in parts])
    first, end = PROBABLE_US
    return us, is_read & (us >= first) & (us < end)


def _describe(source: str, kind: str, unit: str, times: Times, record: Times) -> Candidate | None:
    us, is_read = times
    if not is_read.any():
        return None
    both = is_read & record[1]
    lags = (record[0] - us)[both].tolist()
    return Candidate(
        source, kind, unit, int(np.count_nonzero(is_read)), int(us[is_read].min()),
        int(us[is_read].max()), min(lags, default=None), max(lags, default=None),
    )  # fmt: skip


def _rank_name(source: str) -> int:
    """Rank a field or header by the words of its last name; lower is better."""
    name = re.split("[.:]", source)[-1]
    words = set(split_name(name))
    if words & _OTHER:
        return _OTHER_NAME
    if words & _EVENT:
        return _EVENT_NAME
    return _RELATED_NAME if words & _RELATED else _PLAIN_FIELD


def _rank_lag(least_us: int | None, most_us: int | None) -> int:
    if least_us is None or most_us is None:
        return 1
    middle = abs(statistics.mean((least_us, most_us)))
    return 0 if middle <= DAY_US else 1 if middle <= _YEAR_US else 2
