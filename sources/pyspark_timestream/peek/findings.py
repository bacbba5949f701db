"""Works out how the source would read a sample: the options, the columns, the times, the rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.cti.step import PartitionState, step
from pyspark_timestream.errors import SchemaRefused, SchemaRegistryError
from pyspark_timestream.kafka.decode.columns import METADATA, default_schema, project
from pyspark_timestream.kafka.decode.fields import REASONS, WantedFields
from pyspark_timestream.kafka.decode.formats import decode_part
from pyspark_timestream.kafka.decode.payload import read_payload
from pyspark_timestream.kafka.decode.rows import JudgedBlock, interleave_ctis
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.readers import ReaderSchema
from pyspark_timestream.kafka.options.registry_keys import read_registry_settings
from pyspark_timestream.kafka.registry.registry import SchemaRegistry
from pyspark_timestream.peek.columns import UINT64, format_columns
from pyspark_timestream.peek.detect import (
    ASK_FOR_REGISTRY,
    Detection,
    Payloads,
    detect_part,
    list_keys,
)
from pyspark_timestream.peek.plan import PARTS, ReadingPlan, drop_registry, plan_reading
from pyspark_timestream.peek.records import Sample
from pyspark_timestream.peek.registry import ask_registry
from pyspark_timestream.peek.times import Candidate, can_be_time, find_candidates

__all__ = ["Findings", "examine"]


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of a look at a topic.

    Attributes:
        sample: the records.
        detections: the framing and format of values and of keys.
        readers: the schemas from a registry or a file that they are read by, by part.
        options: the options to read them with; may hold secrets.
        columns: the schema to read them with, in Spark's DDL; empty for the source's own.
        candidates: what the event time may be, the best one first.
        rows: the records as rows.
        malformed: why a value or key is malformed -> in how many records.
        secrets: how many fields are left out since their names suggest secrets.
        notes: sentences about what is wrong or unknown.
    """

    sample: Sample
    detections: tuple[Detection, ...]
    readers: Mapping[str, ReaderSchema]
    options: Mapping[str, str]
    columns: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    rows: pa.Table
    malformed: Mapping[str, int]
    secrets: int
    notes: tuple[str, ...]


def examine(sample: Sample, given: Mapping[str, str]) -> Findings:
    """Examine a sample.

    Args:
        sample: the records.
        given: the options that the user gave, by the names that they are declared with; all of
            them are kept.

    Raises:
        OptionError: one of them is wrong, or conflicts with another.
        SchemaRefused: a schema that they name does not fit.
        SchemaRegistryError: the registry does not give it.
        MissingExtra: a library for the format is not installed.
    """
    payloads = [Payloads(part, sample.payloads(part), sample.headers()) for part in PARTS]
    registry = _find_registry(given)
    asked = {
        each.part: ask_registry(registry, list_keys(each), given.get(f"{each.part}Subject"))
        for each in payloads
    }
    problems = dict.fromkeys(each.problem for each in asked.values() if each.problem)
    notes = list(problems)
    if problems:
        given, registry = drop_registry(given), None
    answers = {part: None if problems else each.answers for part, each in asked.items()}
    detections = {each.part: detect_part(each, answers[each.part]) for each in payloads}
    notes += [
        note
        for each in detections.values()
        for note in each.notes
        if not (problems and ASK_FOR_REGISTRY in note)
    ]
    usable = _blank_unusable(sample, detections.values())
    plan = plan_reading(usable, given, detections, registry)
    notes += plan.notes
    try:
        look = _look(usable, plan)
    except (SchemaRegistryError, SchemaRefused) as error:
        # A schema that wrote some of the records does not fit the latest one.
        if plan.is_given:
            raise
        notes.append(str(error))
        plan = plan_reading(usable, given, {}, None)
        look = _look(usable, plan)
    return Findings(
        sample,
        tuple(detections.values()),
        look.plan.options.readers,
        look.plan.raw,
        tuple(format_columns(look.schema)) if look.plan.has_fields else (),
        look.candidates,
        look.rows,
        look.malformed,
        sum(each.secrets for each in plan.columns.values()),
        tuple(notes),
    )


def _find_registry(given: Mapping[str, str]) -> SchemaRegistry | None:
    settings = read_registry_settings({name.lower(): text for name, text in given.items()})
    return SchemaRegistry(settings) if settings else None


def _blank_unusable(sample: Sample, detections: Iterable[Detection]) -> Sample:
    """Return a sample without the values and keys whose schemas cannot be had."""
    blocks, first = [], 0
    for partition, block in sample.blocks:
        rows = slice(first, first + len(block.offsets))
        first = rows.stop
        for each in detections:
            if any(each.unusable[rows]):
                mask, name = np.array(each.unusable[rows]), f"{each.part}s"
                kept = pa.array(np.arange(len(mask)), mask=mask)
                block = block._replace(**{name: getattr(block, name).take(kept)})
        blocks.append((partition, block))
    return replace(sample, blocks=tuple(blocks))


class _Look(NamedTuple):
    plan: ReadingPlan
    schema: pa.Schema
    candidates: tuple[Candidate, ...]
    rows: pa.Table
    malformed: Mapping[str, int]


def _look(sample: Sample, plan: ReadingPlan) -> _Look:
    """Choose the event time, and read the rows."""
    candidates = _find_times(sample, plan)
    plan = _choose_time(plan, candidates)
    schema = _build_schema(sample, plan)
    rows, malformed = _read_rows(sample, plan.options, schema)
    return _Look(plan, schema, candidates, rows, malformed)


def _find_times(sample: Sample, plan: ReadingPlan) -> tuple[Candidate, ...]:
    columns = plan.columns["value"].fields
    rules = plan.options.value_rules
    # Unsigned numbers of 64 bits are decimals as columns, and numbers as times.
    unsigned = UINT64 if rules.format == "protobuf" else None
    types = {
        field.name: field.type
        for field in columns
        if can_be_time(field.type) or field.type == unsigned
    }
    fields: Mapping[str, Sequence[pa.Array]] = {}
    if types:
        wanted = WantedFields(pa.schema([]), tuple(types))
        values, headers = sample.payloads("value"), sample.headers()
        fields = decode_part(plan.options, rules, wanted, values, headers).raw
    return find_candidates(fields, types, sample.headers(), sample.timestamps_ms())


def _choose_time(plan: ReadingPlan, candidates: Sequence[Candidate]) -> ReadingPlan:
    if not candidates or "startTime" in plan.raw:
        return plan
    best, raw = candidates[0], dict(plan.raw)
    raw["startTime"] = best.source
    if best.unit not in ("", "ms"):
        raw.setdefault("timeUnit", best.unit)
    return plan.with_options(raw)


def _build_schema(sample: Sample, plan: ReadingPlan) -> pa.Schema:
    """Build the schema to read with: fields, then the metadata that is worth a column."""
    options = plan.options
    if not plan.has_fields:
        return default_schema(options)
    prefix = options.metadata_prefix
    fields = [*plan.columns["value"].fields]
    if options.value_format == "binary":
        fields.append(pa.field(f"{prefix}value", METADATA["value"]))
    of_keys = plan.columns["key"].fields
    fields += [field.with_name(options.key_prefix + field.name) for field in of_keys]
    keys = sample.payloads("key")
    if options.key_format == "binary" and keys.null_count < len(keys):
        fields.append(pa.field(f"{prefix}key", METADATA["key"]))
    return pa.schema([*fields, pa.field(f"{prefix}start_time", METADATA["start_time"])])


def _read_rows(
    sample: Sample, options: KafkaOptions, schema: pa.Schema
) -> tuple[pa.Table, Mapping[str, int]]:
    """Read the rows, each behind its partition and offset; count why payloads are malformed."""
    projection = project(options, schema)
    reasons: Counter[str] = Counter()
    tables = []
    for partition, block in sample.blocks:
        payload = read_payload(options, projection, block)
        for part, decoded in (("value", payload.values), ("key", payload.keys)):
            if decoded is not None:
                reasons.update(f"{part}: {REASONS[each]}" for each in decoded.reasons if each)
        _, verdicts = step(replace(options.rules, policy="flag"), PartitionState(), payload.events)
        every = np.ones(len(block.offsets), dtype=np.bool_)
        none = np.empty(0, dtype=np.int64)
        judged = JudgedBlock(partition, block, payload, verdicts)
        batch = interleave_ctis(projection, judged, every, none, none)
        number = pa.repeat(pa.scalar(partition.number, pa.int32()), len(every))
        columns = {name: batch[name] for name in _list_shown(options, schema)}
        # A field may have the name of a place: the place stands in front under a name of its own.
        places = {"(partition)": number, "(offset)": block.offsets}
        tables.append(pa.table({**places, **columns}))
    return (pa.concat_tables(tables) if tables else pa.table({})), dict(reasons)


def _list_shown(options: KafkaOptions, schema: pa.Schema) -> list[str]:
    """List the columns to show: the time first, and of the default columns those that differ."""
    time = f"{options.metadata_prefix}start_time"
    if options.value_format == options.key_format == "binary":
        names = [f"{options.metadata_prefix}{name}" for name in ("key", "value", "timestamp")]
    else:
        names = [name for name in schema.names if name != time]
    return [time, *names]
