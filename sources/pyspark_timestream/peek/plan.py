"""Plans the reading of a sample: formats, framings, schemas, columns, and names that do not clash.

What cannot be read by a schema stays binary, and a note says why.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.errors import SchemaRefused, SchemaRegistryError
from pyspark_timestream.kafka.decode.columns import DEAD_LETTER, METADATA
from pyspark_timestream.kafka.decode.fields import WantedFields
from pyspark_timestream.kafka.decode.formats import check_fields
from pyspark_timestream.kafka.decode.framing import split_value_frames
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.payloads import SCHEMA_FORMATS, Part, PayloadRules
from pyspark_timestream.kafka.registry.readers import fix_readers, with_readers
from pyspark_timestream.kafka.registry.registry import SchemaRegistry
from pyspark_timestream.kafka.registry.schema_files import load_schemas
from pyspark_timestream.peek.columns import Columns, infer_json, list_columns, read_schema
from pyspark_timestream.peek.detect import Detection, parse_object
from pyspark_timestream.peek.records import Sample
from pyspark_timestream.peek.registry import find_reader_options

__all__ = ["PARTS", "ReadingPlan", "drop_registry", "plan_reading"]

PARTS: Final[tuple[Part, Part]] = ("value", "key")

_REGISTRY: Final = "schemaRegistry."
_MAX_COLUMNS: Final = 60
_METADATA_PREFIX: Final = "kafka_"
_CORRUPT_COLUMN: Final = "_malformed"
_KEY_PREFIX: Final = "record_key."


class ReadingPlan(NamedTuple):
    """The options and columns to read a sample with.

    Attributes:
        raw: the options as text.
        options: the same, with the schemas that payloads are read by.
        columns: the fields that are columns, by part.
        is_given: the user chose the format of values or keys.
        notes: sentences about what could not be had.
    """

    raw: Mapping[str, str]
    options: KafkaOptions
    columns: Mapping[Part, Columns]
    is_given: bool
    notes: tuple[str, ...] = ()

    @property
    def has_fields(self) -> bool:
        """True if values or keys are read as fields."""
        return (self.options.value_format, self.options.key_format) != ("binary", "binary")

    def with_options(self, raw: Mapping[str, str]) -> "ReadingPlan":
        """Return the plan with other options for the same payloads."""
        options = load_schemas(read_kafka_options(raw))
        return self._replace(raw=raw, options=with_readers(options, self.options.readers))


def drop_registry(raw: Mapping[str, str]) -> dict[str, str]:
    """Return options without those of the registry, and of what it has."""
    subjects = [f"{part}Subject" for part in PARTS]
    return {
        name: text
        for name, text in raw.items()
        if not name.startswith(_REGISTRY) and name not in subjects
    }


def plan_reading(
    sample: Sample,
    given: Mapping[str, str],
    detections: Mapping[Part, Detection],
    registry: SchemaRegistry | None,
) -> ReadingPlan:
    """Plan how a sample is read.

    Args:
        sample: the records.
        given: the options that the user gave; all of them are kept, but a registry without use.
        detections: what was detected, by part; parts without it stay binary.
        registry: the registry, if there is one and it answers.

    Raises:
        OptionError: an option is wrong.
        SchemaRegistryError: the registry does not give a schema that an option asks for.
        SchemaRefused: such a schema is not of the option's format.
    """
    notes: list[str] = []
    chosen = _choose_formats(sample.topic, given, detections, registry, notes)
    while True:
        raw = _compose(given, detections, chosen)
        try:
            options = fix_readers(load_schemas(read_kafka_options(raw)), {})
            columns = {part: _list_columns(sample, options, part) for part in PARTS}
        except (SchemaRegistryError, SchemaRefused) as error:
            kept = {p: each for p, each in chosen.items() if detections[p].format == "json"}
            if len(kept) == len(chosen):
                raise
            notes.append(str(error))
            chosen = kept
            continue
        empty = [part for part in chosen if not columns[part].fields.names]
        if not empty:
            notes += [
                f"the {part}s have {each.left} more fields, which are not in the schema"
                for part, each in columns.items()
                if each.left
            ]
            is_given = any(f"{part}Format" in given for part in PARTS)
            plan = ReadingPlan(raw, options, columns, is_given, tuple(notes))
            return _avoid_clashes(plan)
        notes += [f"the {part}s have no fields that can be columns" for part in empty]
        chosen = {part: each for part, each in chosen.items() if part not in empty}


def _choose_formats(
    topic: str,
    given: Mapping[str, str],
    detections: Mapping[Part, Detection],
    registry: SchemaRegistry | None,
    notes: list[str],
) -> dict[Part, dict[str, str]]:
    """Choose the options about the format of each part whose fields can be read."""
    chosen: dict[Part, dict[str, str]] = {}
    for part, each in detections.items():
        if each.format == "binary" or f"{part}Format" in given:
            continue
        chosen[part] = {f"{part}Format": each.format}
        if each.format in SCHEMA_FORMATS:
            assert registry is not None, "only a registry tells that payloads have schemas"
            try:
                found = find_reader_options(registry, topic, each, given.get(f"{part}Subject"))
            except SchemaRegistryError as error:
                found, problem = None, str(error)
            else:
                subject = given.get(f"{part}Subject")
                problem = (
                    f"the registry lacks subject '{subject}', or has no {each.format} there: "
                    f"correct '{part}Subject'"
                    if subject is not None
                    else "no subject of the registry that is named by the topic or the message has "
                    f"the schema of the {part}s: set '{part}Subject'"
                )
            if found is None:
                notes.append(problem)
                del chosen[part]
            else:
                chosen[part] |= found
    return chosen


def _compose(
    given: Mapping[str, str],
    detections: Mapping[Part, Detection],
    chosen: Mapping[Part, Mapping[str, str]],
) -> dict[str, str]:
    """Put options together: those about framings where they are not the default."""
    raw = {name: text for each in chosen.values() for name, text in each.items()}
    raw = {**given, **raw, **given}
    for part in PARTS:
        if f"{part}Format" not in raw:
            # It would have no effect, and the notes say why the part is not read by fields.
            raw.pop(f"{part}Subject", None)
    framings = {
        part: detections[part].framing if part in detections else "none"
        for part in PARTS
        if f"{part}Format" in raw and f"{part}Framing" not in raw
    }
    is_given = any(f"{part}{name}" in given for part in PARTS for name in ("Format", "Framing"))
    if not is_given and set(framings.values()) <= {"none"}:
        # The registry would have no effect.
        raw = drop_registry(raw)
    has_registry = any(name.startswith(_REGISTRY) for name in raw)
    for part, framing in framings.items():
        if has_registry and part in chosen and framing != "confluent":
            raw[f"{part}Framing"] = framing
        if not has_registry and framing == "confluent":
            raw[f"{part}Framing"] = framing
    return raw


def _list_columns(sample: Sample, options: KafkaOptions, part: Part) -> Columns:
    """List the fields of the values or keys that can be columns."""
    rules = options.value_rules if part == "value" else options.key_rules
    if rules.format == "binary":
        return Columns(pa.schema([]))
    if rules.format == "json":
        read = map(parse_object, _list_bodies(sample, rules))
        found = list_columns(infer_json([each for each in read if each is not None]))
    else:
        found = list_columns(read_schema(rules.format, options.readers[part]))
    fields = [field for field in found.fields if _is_readable(options, rules, field)]
    left = max(len(fields) - _MAX_COLUMNS, 0)
    return found._replace(fields=pa.schema(fields[:_MAX_COLUMNS]), left=left)


def _list_bodies(sample: Sample, rules: PayloadRules) -> list[bytes | None]:
    payloads = sample.payloads(rules.part)
    if rules.framing == "confluent":
        payloads = split_value_frames(payloads).bodies
    bodies: list[bytes | None] = payloads.to_pylist()
    return bodies


def _is_readable(options: KafkaOptions, rules: PayloadRules, field: pa.Field) -> bool:
    try:
        check_fields(options, rules, WantedFields(pa.schema([field])))
    except SchemaRefused:
        return False
    return True


def _avoid_clashes(plan: ReadingPlan) -> ReadingPlan:
    """Prefix the metadata where fields of values have their names."""
    raw = dict(plan.raw)
    columns = plan.columns["value"].fields.names
    names = {name.casefold() for name in columns}
    if names & {name.casefold() for name in METADATA}:
        raw.setdefault("metadataPrefix", _METADATA_PREFIX)
    if names & {plan.options.corrupt_column.casefold() + each for each in DEAD_LETTER.values()}:
        # Spark's own name for malformed values, which a sink of them may have written.
        raw.setdefault("columnNameOfCorruptRecord", _find_free(_CORRUPT_COLUMN, names))
    prefix = plan.options.key_prefix
    if plan.columns["key"].fields.names and any(name.startswith(prefix) for name in columns):
        raw.setdefault("keyPrefix", _find_free(_KEY_PREFIX, names))
    return plan if raw == plan.raw else plan.with_options(raw)


def _find_free(name: str, names: Iterable[str]) -> str:
    """Put underscores in front of a name until no other begins as it does."""
    while any(each.startswith(name) for each in names):
        name = f"_{name}"
    return name
