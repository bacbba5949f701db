"""Finds out how the source would read a sample: options, columns, times, rows.

Payloads that no schema can read stay binary, and a note says why.

A candidate for the event time is readable as a time between 1990 and 2100 in most of the records
that have it. Its unit follows from its type, its text, or the range of its numbers. Candidates are
ordered by name, then by nearness to the record's timestamp. A number with a name that does not
suggest a time, far from the record's timestamp, may be anything, so it comes after that timestamp.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.commands.peek.detect import (
    UINT64,
    Columns,
    Detection,
    Payloads,
    ask_registry,
    detect_side,
    find_reader_options,
    format_columns,
    infer_json,
    list_columns,
    list_schema_ids,
    read_struct,
)
from pyspark_timestream.core.declarations import split_name, suggests_secret
from pyspark_timestream.core.instants import (
    DAY_US,
    PROBABLE_US,
    TIME_UNITS,
    Times,
    read_record_times,
    read_value_times,
)
from pyspark_timestream.core.policies import KEEP_ALL
from pyspark_timestream.errors import SchemaRefused, SchemaRegistryError
from pyspark_timestream.kafka.decode.columns import DEAD_LETTER, build_default_schema, project
from pyspark_timestream.kafka.decode.formats import (
    HEADERS,
    check_fields,
    decode_side,
    split_value_frames,
)
from pyspark_timestream.kafka.decode.payload import ProcessedBlock, interleave_ctis, read_payload
from pyspark_timestream.kafka.decode.records import (
    METADATA,
    REASONS,
    RecordBlock,
    RequestedFields,
    read_header,
)
from pyspark_timestream.kafka.diagnosis.samples import parse_object
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.keys import read_registry_settings
from pyspark_timestream.kafka.options.reading import SCHEMA_FORMATS, PayloadRules, Side
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.kafka.reader_schemas import (
    load_schemas,
    pin_reader_schemas,
    with_reader_schemas,
)
from pyspark_timestream.kafka.registry import SchemaRegistry
from pyspark_timestream.kafka.schemas import ReaderSchema, is_accepted
from pyspark_timestream.rules.clocks import PartitionClock
from pyspark_timestream.rules.step import step

SIDES: Final[tuple[Side, Side]] = ("value", "key")

_REGISTRY: Final = "schemaRegistry."
_MAX_COLUMNS: Final = 60
_METADATA_PREFIX: Final = "kafka_"
_CORRUPT_COLUMN: Final = "_malformed"
_KEY_PREFIX: Final = "record_key."


class CommandError(Exception):
    """A command cannot do what its arguments ask for; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class TopicSample:
    """The newest records of a topic, by partition and in offset order, with all columns.

    The topic holds `offsets` offsets, but not each of them has a record.
    """

    topic: str
    partitions: int
    offsets: int
    blocks: tuple[tuple[Partition, RecordBlock], ...]

    def __len__(self) -> int:
        return sum(len(block.offsets) for _, block in self.blocks)

    def payloads(self, side: Side) -> pa.Array:
        """Return all values, or all keys."""
        return self._concat(f"{side}s", pa.binary())

    def headers(self) -> pa.Array:
        """Return the headers of all records."""
        return self._concat("headers", METADATA["headers"])

    def timestamps_ms(self) -> pa.Array:
        """Return the timestamps of all records."""
        return self._concat("timestamps_ms", pa.int64())

    def _concat(self, name: str, data_type: pa.DataType) -> pa.Array:
        pieces = [getattr(block, name) for _, block in self.blocks]
        return pa.concat_arrays(pieces) if pieces else pa.array([], data_type)


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
"""Words in the names of times that are not the time of the event."""

_EVENT_NAME, _RELATED_NAME, _RECORD, _PLAIN_FIELD, _OTHER_NAME = range(5)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible `startTime`, with the bounds of its times and of their lags behind their records.

    `kind` is `timestamp`, `date`, `text` or `number`, or `record` for the record's own timestamp;
    `unit` is the unit of numbers; `readable` the number of records with a plausible time. A time
    after its record's timestamp has a negative lag.
    """

    source: str
    kind: str
    unit: str
    readable: int
    first_us: int
    last_us: int
    least_lag_us: int | None = None
    most_lag_us: int | None = None


def _can_be_time(data_type: pa.DataType) -> bool:
    """Return whether a field of this type may hold a time."""
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
    )


def find_candidates(
    fields: Mapping[str, Sequence[pa.Array]],
    types: Mapping[str, pa.DataType],
    headers: pa.Array,
    timestamps_ms: pa.Array,
) -> tuple[Candidate, ...]:
    """Find the candidates for the event time of n records, the best one first.

    `fields` has each field's contents by its path, in arrays of n values in all; `types` has the
    types of their columns.
    """
    record_times = read_record_times(timestamps_ms)
    ranked: list[tuple[tuple[int, int, int], Candidate]] = []
    contents = [(f"field:{path}", pieces, types.get(path)) for path, pieces in fields.items()]
    contents += [
        (f"header:{name}", [read_header(headers, name)], None) for name in _list_headers(headers)
    ]
    for index, (source, pieces, data_type) in enumerate(contents):
        candidate = _examine(source, pieces, data_type, record_times)
        if candidate is not None:
            nearness = _rank_lag(candidate.least_lag_us, candidate.most_lag_us)
            rank = _rank_name(source)
            if rank == _PLAIN_FIELD and (candidate.kind != "number" or nearness == 0):
                # A value of this form is almost certainly a time.
                rank = _RELATED_NAME
            ranked.append(((rank, nearness, index), candidate))
    timestamp = _make_candidate("record:timestamp", "record", "", record_times, record_times)
    if timestamp is not None:
        ranked.append(((_RECORD, 0, 0), timestamp))
    return tuple(candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0]))


def _list_headers(headers: pa.Array) -> list[str]:
    names = [header["key"] for record in headers.to_pylist() for header in record or ()]
    return [
        name
        for name in dict.fromkeys(names)
        if name.strip()
        and name.isprintable()
        and not suggests_secret(name)
        and name not in HEADERS.values()
    ]


def _examine(
    source: str, pieces: Sequence[pa.Array], data_type: pa.DataType | None, record_times: Times
) -> Candidate | None:
    present = sum(len(piece) - piece.null_count for piece in pieces)
    times = {unit: _read_times(pieces, unit) for unit in TIME_UNITS}
    counts = {unit: int(np.count_nonzero(is_read)) for unit, (_, is_read) in times.items()}
    unit = max(counts, key=counts.__getitem__)
    if not present or 2 * counts[unit] <= present:
        return None
    # A time that brings its own unit is the same in all of them.
    is_number = len(set(counts.values())) > 1
    kind = "number" if is_number else "text"
    if data_type is not None and pa.types.is_timestamp(data_type):
        kind = "timestamp"
    if data_type is not None and pa.types.is_date32(data_type):
        kind = "date"
    return _make_candidate(source, kind, unit if is_number else "", times[unit], record_times)


def _read_times(pieces: Sequence[pa.Array], unit: str) -> Times:
    """Read the plausible times in a field's pieces."""
    times = [read_value_times(piece, unit) for piece in pieces]
    us = np.concatenate([us for us, _ in times])
    is_read = np.concatenate([is_read for _, is_read in times])
    start, end = PROBABLE_US
    return us, is_read & (us >= start) & (us < end)


def _make_candidate(
    source: str, kind: str, unit: str, times: Times, record_times: Times
) -> Candidate | None:
    us, is_read = times
    if not is_read.any():
        return None
    has_both = is_read & record_times[1]
    lags = (record_times[0] - us)[has_both].tolist()
    return Candidate(
        source=source,
        kind=kind,
        unit=unit,
        readable=int(np.count_nonzero(is_read)),
        first_us=int(us[is_read].min()),
        last_us=int(us[is_read].max()),
        least_lag_us=min(lags, default=None),
        most_lag_us=max(lags, default=None),
    )


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
    if middle <= DAY_US:
        return 0
    return 1 if middle <= _YEAR_US else 2


class ReadingPlan(NamedTuple):
    """The options and columns to read a sample with.

    `options` are `raw` parsed, with the readers' schemas; `is_given` is true if the user chose the
    format of values or keys.
    """

    raw: Mapping[str, str]
    options: KafkaOptions
    columns: Mapping[Side, Columns]
    is_given: bool
    notes: tuple[str, ...] = ()

    @property
    def has_fields(self) -> bool:
        """Whether values or keys are read as fields."""
        return (self.options.value_format, self.options.key_format) != ("binary", "binary")

    def with_options(self, raw: Mapping[str, str]) -> "ReadingPlan":
        """Return the plan with other options that read the same payloads."""
        options = load_schemas(read_kafka_options(raw))
        return self._replace(
            raw=raw, options=with_reader_schemas(options, self.options.reader_schemas)
        )


def _drop_registry(raw: Mapping[str, str]) -> dict[str, str]:
    """Return options without the registry's, and without subjects, which need it."""
    subjects = [f"{side}Subject" for side in SIDES]
    return {
        name: text
        for name, text in raw.items()
        if not name.startswith(_REGISTRY) and name not in subjects
    }


def _plan_reading(
    sample: TopicSample,
    user_options: Mapping[str, str],
    detections: Mapping[Side, Detection],
    registry: SchemaRegistry | None,
) -> ReadingPlan:
    """Plan how to read a sample; values or keys without a detection stay binary.

    Keep all options that the user gave, except those of a registry that has no use.
    """
    format_options, notes = _choose_formats(sample.topic, user_options, detections, registry)
    # A round that fails leaves out what cannot be read.
    while True:
        raw = _compose(user_options, detections, format_options)
        try:
            options = pin_reader_schemas(load_schemas(read_kafka_options(raw)), {})
            columns = {side: _list_columns(sample, options, side) for side in SIDES}
        except (SchemaRegistryError, SchemaRefused) as error:
            # JSON needs no schema.
            json_only = {
                side: texts
                for side, texts in format_options.items()
                if detections[side].format == "json"
            }
            if len(json_only) == len(format_options):
                raise
            notes.append(str(error))
            format_options = json_only
            continue
        empty = [side for side in format_options if not columns[side].fields.names]
        if not empty:
            notes += [
                f"the {side}s have {side_columns.omitted} more fields, which are not in the schema"
                for side, side_columns in columns.items()
                if side_columns.omitted
            ]
            is_given = any(f"{side}Format" in user_options for side in SIDES)
            plan = ReadingPlan(raw, options, columns, is_given, tuple(notes))
            return _avoid_clashes(plan)
        notes += [f"the {side}s have no fields that can be columns" for side in empty]
        format_options = {
            side: texts for side, texts in format_options.items() if side not in empty
        }


def _choose_formats(
    topic: str,
    user_options: Mapping[str, str],
    detections: Mapping[Side, Detection],
    registry: SchemaRegistry | None,
) -> tuple[dict[Side, dict[str, str]], list[str]]:
    """Choose the format options of values and keys; return also why some stay binary."""
    format_options: dict[Side, dict[str, str]] = {}
    problems: list[str] = []
    for side, detection in detections.items():
        if detection.format == "binary" or f"{side}Format" in user_options:
            continue
        schema: dict[str, str] | str = {}
        if detection.format in SCHEMA_FORMATS:
            assert registry is not None, "only a registry tells that payloads have schemas"
            subject = user_options.get(f"{side}Subject")
            schema = _find_schema(registry, topic, side, detection, subject)
        if isinstance(schema, str):
            problems.append(schema)
        else:
            format_options[side] = {f"{side}Format": detection.format, **schema}
    return format_options, problems


def _find_schema(
    registry: SchemaRegistry, topic: str, side: Side, detection: Detection, subject: str | None
) -> dict[str, str] | str:
    """Return the options that name the schema of values or keys, or why there are none."""
    try:
        reader_options = find_reader_options(registry, topic, detection, subject)
    except SchemaRegistryError as error:
        return str(error)
    if reader_options is not None:
        return reader_options
    if subject is not None:
        return (
            f"the registry lacks subject '{subject}', or has no {detection.format} there: "
            f"correct '{side}Subject'"
        )
    return (
        "no subject of the registry that is named by the topic or the message has the schema of "
        f"the {side}s: set '{side}Subject'"
    )


def _compose(
    user_options: Mapping[str, str],
    detections: Mapping[Side, Detection],
    format_options: Mapping[Side, Mapping[str, str]],
) -> dict[str, str]:
    """Combine options; add options of framings that are not the default."""
    raw = {name: text for formats in format_options.values() for name, text in formats.items()}
    raw = {**user_options, **raw, **user_options}
    for side in SIDES:
        if f"{side}Format" not in raw:
            # Without a format a subject has no effect, and a note says why fields are not read.
            raw.pop(f"{side}Subject", None)
    framings = {
        side: detections[side].framing if side in detections else "none"
        for side in SIDES
        if f"{side}Format" in raw and f"{side}Framing" not in raw
    }
    is_given = any(
        f"{side}{name}" in user_options for side in SIDES for name in ("Format", "Framing")
    )
    if not is_given and set(framings.values()) <= {"none"}:
        # The registry would have no effect.
        raw = _drop_registry(raw)
    has_registry = any(name.startswith(_REGISTRY) for name in raw)
    for side, framing in framings.items():
        if has_registry and side in format_options and framing != "confluent":
            raw[f"{side}Framing"] = framing
        if not has_registry and framing == "confluent":
            raw[f"{side}Framing"] = framing
    return raw


def _list_columns(sample: TopicSample, options: KafkaOptions, side: Side) -> Columns:
    """List the fields of the values or keys that can be columns."""
    rules = options.value_rules if side == "value" else options.key_rules
    if rules.format == "binary":
        return Columns(pa.schema([]))
    if rules.format == "json":
        objects = map(parse_object, _list_bodies(sample, rules))
        columns = list_columns(infer_json([object_ for object_ in objects if object_ is not None]))
    else:
        columns = list_columns(read_struct(rules.format, options.reader_schemas[side]))
    fields = [
        field
        for field in columns.fields
        if is_accepted(check_fields, options, rules, RequestedFields(pa.schema([field])))
    ]
    left_out = max(len(fields) - _MAX_COLUMNS, 0)
    return columns._replace(fields=pa.schema(fields[:_MAX_COLUMNS]), omitted=left_out)


def _list_bodies(sample: TopicSample, rules: PayloadRules) -> list[bytes | None]:
    payloads = sample.payloads(rules.side)
    if rules.framing == "confluent":
        payloads = split_value_frames(payloads).bodies
    bodies: list[bytes | None] = payloads.to_pylist()
    return bodies


def _avoid_clashes(plan: ReadingPlan) -> ReadingPlan:
    """Add a prefix to metadata if fields of values have the same names."""
    raw = dict(plan.raw)
    columns = plan.columns["value"].fields.names
    names = {name.casefold() for name in columns}
    if names & {name.casefold() for name in METADATA}:
        raw.setdefault("metadataPrefix", _find_free(_METADATA_PREFIX, names))
    if names & {plan.options.corrupt_column.casefold() + suffix for suffix in DEAD_LETTER.values()}:
        # A sink of malformed values may have written this field under Spark's own name for them.
        raw.setdefault("columnNameOfCorruptRecord", _find_free(_CORRUPT_COLUMN, names))
    prefix = plan.options.key_prefix
    if plan.columns["key"].fields.names and any(name.startswith(prefix) for name in columns):
        raw.setdefault("keyPrefix", _find_free(_KEY_PREFIX, names))
    return plan if raw == plan.raw else plan.with_options(raw)


def _find_free(name: str, names: Iterable[str]) -> str:
    """Put underscores before a name until no other name begins with it."""
    while any(other_name.startswith(name) for other_name in names):
        name = f"_{name}"
    return name


@dataclass(frozen=True, slots=True)
class TopicReport:
    """The results of examining a topic: the records, how to read them, and the rows.

    `options` may hold secrets; `columns` are in Spark's DDL, and empty for the source's own schema;
    `malformed` counts records by reason, and `secrets` the fields that are left out.
    """

    sample: TopicSample
    reader_schemas: Mapping[str, ReaderSchema]
    options: Mapping[str, str]
    columns: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    rows: pa.Table
    malformed: Mapping[str, int]
    secrets: int
    detections: tuple[Detection, ...] = ()
    notes: tuple[str, ...] = ()


def examine(sample: TopicSample, user_options: Mapping[str, str]) -> TopicReport:
    """Examine a sample; all options that the user gave, by their declared names, are kept."""
    payloads = [Payloads(side, sample.payloads(side), sample.headers()) for side in SIDES]
    settings = read_registry_settings({name.lower(): text for name, text in user_options.items()})
    registry = SchemaRegistry(settings) if settings else None
    answers_of = {
        payload.side: ask_registry(
            registry, list_schema_ids(payload), user_options.get(f"{payload.side}Subject")
        )
        for payload in payloads
    }
    problems = dict.fromkeys(answer.problem for answer in answers_of.values() if answer.problem)
    notes = list(problems)
    if problems:
        user_options, registry = _drop_registry(user_options), None
    answers = {side: None if problems else answer.answers for side, answer in answers_of.items()}
    detections = {payload.side: detect_side(payload, answers[payload.side]) for payload in payloads}
    for side, detection in detections.items():
        notes += detection.notes
        if detection.needs_registry and not problems:
            notes.append(
                f"the {side}s carry ids of a schema registry, which knows whether they are Avro or "
                "Protobuf: name it with --schema-registry URL"
            )
    usable = _blank_unusable(sample, detections.values())
    plan = _plan_reading(usable, user_options, detections, registry)
    notes += plan.notes
    try:
        report = _read_sample(usable, plan)
    except (SchemaRegistryError, SchemaRefused) as error:
        # The latest schema does not fit one that wrote some of the records.
        if plan.is_given:
            raise
        notes.append(str(error))
        report = _read_sample(usable, _plan_reading(usable, user_options, {}, None))
    return replace(report, sample=sample, detections=tuple(detections.values()), notes=tuple(notes))


def _blank_unusable(sample: TopicSample, detections: Iterable[Detection]) -> TopicSample:
    """Return a sample without the values and keys with schemas that are not available."""
    blocks, start = [], 0
    for partition, block in sample.blocks:
        rows = slice(start, start + len(block.offsets))
        start = rows.stop
        for detection in detections:
            if any(detection.unusable[rows]):
                mask, name = np.array(detection.unusable[rows]), f"{detection.side}s"
                usable_rows = pa.array(np.arange(len(mask)), mask=mask)
                block = block._replace(**{name: getattr(block, name).take(usable_rows)})
        blocks.append((partition, block))
    return replace(sample, blocks=tuple(blocks))


def _read_sample(sample: TopicSample, plan: ReadingPlan) -> TopicReport:
    """Choose the event time, and read the rows."""
    secrets = sum(columns.secrets for columns in plan.columns.values())
    candidates = _find_times(sample, plan)
    plan = _choose_time(plan, candidates)
    schema = _build_schema(sample, plan)
    rows, malformed = _read_rows(sample, plan.options, schema)
    return TopicReport(
        sample=sample,
        reader_schemas=plan.options.reader_schemas,
        options=plan.raw,
        columns=tuple(format_columns(schema)) if plan.has_fields else (),
        candidates=candidates,
        rows=rows,
        malformed=malformed,
        secrets=secrets,
    )


def _find_times(sample: TopicSample, plan: ReadingPlan) -> tuple[Candidate, ...]:
    columns = plan.columns["value"].fields
    rules = plan.options.value_rules
    # A column holds unsigned 64-bit numbers as decimals; as times they are numbers.
    unsigned = UINT64 if rules.format == "protobuf" else None
    types = {
        field.name: field.type
        for field in columns
        if _can_be_time(field.type) or field.type == unsigned
    }
    fields: Mapping[str, Sequence[pa.Array]] = {}
    if types:
        requested = RequestedFields(pa.schema([]), tuple(types))
        values, headers = sample.payloads("value"), sample.headers()
        fields = decode_side(plan.options, rules, requested, values, headers).raw
    return find_candidates(fields, types, sample.headers(), sample.timestamps_ms())


def _choose_time(plan: ReadingPlan, candidates: Sequence[Candidate]) -> ReadingPlan:
    if not candidates or "startTime" in plan.raw:
        return plan
    best, raw = candidates[0], dict(plan.raw)
    raw["startTime"] = best.source
    if best.unit not in ("", "ms"):
        raw.setdefault("timeUnit", best.unit)
    return plan.with_options(raw)


def _build_schema(sample: TopicSample, plan: ReadingPlan) -> pa.Schema:
    """Build the schema to read with: fields, then the metadata that is worth a column."""
    options = plan.options
    if not plan.has_fields:
        return build_default_schema(options)
    prefix = options.metadata_prefix
    fields = [*plan.columns["value"].fields]
    if options.value_format == "binary":
        fields.append(pa.field(f"{prefix}value", METADATA["value"]))
    key_fields = plan.columns["key"].fields
    fields += [field.with_name(options.key_prefix + field.name) for field in key_fields]
    keys = sample.payloads("key")
    if options.key_format == "binary" and keys.null_count < len(keys):
        fields.append(pa.field(f"{prefix}key", METADATA["key"]))
    return pa.schema([*fields, pa.field(f"{prefix}start_time", METADATA["start_time"])])


def _read_rows(
    sample: TopicSample, options: KafkaOptions, schema: pa.Schema
) -> tuple[pa.Table, Mapping[str, int]]:
    """Read the rows with partition and offset in front; count why payloads are malformed."""
    projection = project(options, schema)
    reasons: Counter[str] = Counter()
    tables = []
    for partition, block in sample.blocks:
        payload = read_payload(options, projection, block)
        for side, decoded in (("value", payload.values), ("key", payload.keys)):
            if decoded is not None:
                reasons.update(f"{side}: {REASONS[reason]}" for reason in decoded.reasons if reason)
        # Rows are shown as they are: none is dropped, and no CTI stands between them.
        _, result = step(replace(options.rules, policy=KEEP_ALL), PartitionClock(), payload.events)
        all_rows = np.ones(len(block.offsets), dtype=np.bool_)
        no_ctis = np.empty(0, dtype=np.int64)
        processed = ProcessedBlock(partition, block, payload, result)
        rows = interleave_ctis(projection, processed, all_rows, no_ctis, no_ctis)
        # Parentheses keep the names of these two columns apart from those of fields.
        positions = {
            "(partition)": pa.repeat(pa.scalar(partition.number, pa.int32()), len(all_rows)),
            "(offset)": block.offsets,
        }
        columns = {name: rows[name] for name in _list_shown(options, schema)}
        tables.append(pa.table({**positions, **columns}))
    return (pa.concat_tables(tables) if tables else pa.table({})), dict(reasons)


def _list_shown(options: KafkaOptions, schema: pa.Schema) -> list[str]:
    """List the columns to show: the time first; of the default columns only those that vary."""
    time = f"{options.metadata_prefix}start_time"
    if options.value_format == options.key_format == "binary":
        names = [f"{options.metadata_prefix}{name}" for name in ("key", "value", "timestamp")]
    else:
        names = [name for name in schema.names if name != time]
    return [time, *names]
