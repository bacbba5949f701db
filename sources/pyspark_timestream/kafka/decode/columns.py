"""The columns of the Kafka transport: names, types, and which of them a query wants.

The rules are semantics 13.1, 13.2, 13.11 and 13.12.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.field_names import check_field_names, check_paths
from pyspark_timestream.kafka.decode.json.types import find_unsupported_type
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.payloads import SCHEMA_FORMATS

__all__ = ["DEAD_LETTER", "Projection", "default_schema", "project", "strip_key_prefix"]

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

METADATA: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _INSTANT,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
    "start_time": _INSTANT,
    "end_time": _INSTANT,
    "edge": pa.string(),
    "violation": pa.string(),
    "original_start_time": _INSTANT,
    "original_end_time": _INSTANT,
    "time_lower": _INSTANT,
    "time_upper": _INSTANT,
    "value_schema_id": pa.int32(),
    "value_schema_name": pa.string(),
    "cti": _INSTANT,
}
"""Every metadata column with its type, in the order of the default schema."""

DEAD_LETTER: Final = {"payload": "", "reason": "_reason", "schema_id": "_schema_id"}
"""A column's content about malformed payloads -> its name after `columnNameOfCorruptRecord`."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a query wants.

    Attributes:
        schema: the output columns in order.
        metadata: output column -> the metadata that it contains.
        fields: the output columns that are fields of the value; each name is a path.
        key_fields: the output columns that are fields of the key; each name is a path after
            `keyPrefix`.
        dead_letter: output column -> what it says of malformed payloads, one of `DEAD_LETTER`.
    """

    schema: pa.Schema
    metadata: Mapping[str, str]
    fields: pa.Schema
    key_fields: pa.Schema = field(default_factory=lambda: pa.schema([]))
    dead_letter: Mapping[str, str] = field(default_factory=dict)

    def wants(self, name: str) -> bool:
        """Check whether an output column contains the metadata `name`."""
        return name in self.metadata.values()


def default_schema(options: KafkaOptions) -> pa.Schema:
    """Build the schema used without a user schema: Spark's Kafka columns, then event time.

    Raises:
        SchemaRefused: values or keys have fields, which a schema must name.
    """
    for part, form in (("value", options.value_format), ("key", options.key_format)):
        if form != "binary":
            raise SchemaRefused(
                f"option '{part}Format' is '{form}', and no schema was given: the schema names the "
                f"fields that are read from the {part}s",
                ".schema(...) with fields and metadata columns, such as .schema('name string, "
                "start_time timestamp, cti timestamp')",
                f"add it, or leave '{part}Format' out to get the {part}s as they are",
            )
    unfilled = _list_unfilled(options)
    if not options.include_headers:
        unfilled["headers"] = "option 'includeHeaders'"
    return pa.schema(
        [
            (options.metadata_prefix + name, kind)
            for name, kind in METADATA.items()
            if name not in unfilled
        ]
    )


def project(options: KafkaOptions, schema: pa.Schema) -> Projection:
    """Resolve `schema`, which is the user's or from `default_schema`.

    Raises:
        SchemaRefused: a column would always be empty, has another type, is not nullable, or its
            name leads nowhere.
        OptionError: an option for times is ambiguous in this schema, or leads nowhere.
    """
    by_name = {options.metadata_prefix + name: name for name in METADATA}
    metadata: dict[str, str] = {}
    fields: list[pa.Field] = []
    key_fields: list[pa.Field] = []
    dead_letter: dict[str, str] = {}
    for column in schema:
        if not column.nullable:
            raise _column_refused(
                column, "is not nullable", "nullable columns", "drop its NOT NULL"
            )
        if column.name in by_name:
            metadata[column.name] = _check_metadata(options, column, by_name[column.name])
        elif about := _find_dead_letter(options, column):
            dead_letter[column.name] = about
        elif options.key_format != "binary" and column.name.startswith(options.key_prefix):
            key_fields.append(_check_field(options.key_format, column))
        elif options.value_format == "binary":
            raise _unknown_column(options, column, by_name)
        else:
            fields.append(_check_field(options.value_format, column))
    if options.policy == "flag" and "cti" in metadata.values():
        _check_flags(options, metadata)
    check_field_names(options, pa.schema(fields))
    check_paths(strip_key_prefix(options, pa.schema(key_fields)))
    return Projection(schema, metadata, pa.schema(fields), pa.schema(key_fields), dead_letter)


def strip_key_prefix(options: KafkaOptions, fields: pa.Schema) -> pa.Schema:
    """Name the columns `fields` of the key by their paths in it."""
    skipped = len(options.key_prefix)
    return pa.schema([each.with_name(each.name[skipped:]) for each in fields])


def _find_dead_letter(options: KafkaOptions, column: pa.Field) -> str | None:
    """Return what `column` says of malformed payloads; None if it is another column."""
    if (options.value_format, options.key_format) == ("binary", "binary"):
        return None
    payload = pa.string() if options.value_format == "json" else pa.binary()
    types = {"payload": payload, "reason": pa.string(), "schema_id": pa.int32()}
    for about, suffix in DEAD_LETTER.items():
        if column.name != options.corrupt_column + suffix:
            continue
        if column.type == types[about]:
            return about
        # A JSON object may have a field of this name; a schema that has one is rare.
        if options.value_format != "json":
            raise _column_refused(
                column,
                f"is {column.type}, but carries the {about.replace('_', ' ')} of malformed values",
                str(types[about]),
                "use that type, or rename these columns with option 'columnNameOfCorruptRecord'",
            )
    return None


def _check_flags(options: KafkaOptions, metadata: Mapping[str, str]) -> None:
    """Require the flag: without it, flagged rows look like rows that the CTIs cover."""
    if "violation" not in metadata.values():
        name = f"{options.metadata_prefix}violation"
        raise SchemaRefused(
            f"column '{name}' is missing, and option 'violationPolicy' is 'flag': nobody could "
            "tell late rows from others",
            "a schema with it",
            f"add '{name} string' to .schema(...), or use another policy",
        )


def _list_unfilled(options: KafkaOptions) -> dict[str, str]:
    """List the metadata that these options leave empty, each with the option that fills it."""
    rules = options.value_rules
    is_named = rules.format in SCHEMA_FORMATS or (rules.format == "json" and rules.has_registry)
    filled = {
        "end_time": options.shape != "point" or "option 'eventShape' = 'interval' or 'edge'",
        "edge": options.shape == "edge" or "option 'eventShape' = 'edge'",
        "violation": options.policy in ("flag", "adjust")
        or "option 'violationPolicy' = 'flag' or 'adjust'",
        "original_start_time": options.policy == "adjust" or "option 'violationPolicy' = 'adjust'",
        "original_end_time": (options.policy == "adjust" and options.shape != "point")
        or "options 'violationPolicy' = 'adjust' and 'eventShape' = 'interval' or 'edge'",
        "time_lower": options.time_window or "option 'timeWindow' = 'true'",
        "time_upper": options.time_window or "option 'timeWindow' = 'true'",
        "value_schema_id": (rules.format != "binary" and rules.framing != "none")
        or "option 'valueFraming' = 'confluent' or 'header'",
        "value_schema_name": is_named or "option 'valueFormat' = 'avro' or 'protobuf'",
        "cti": options.has_ctis
        or "option 'ctiFrequency', 'advanceTime', 'ctiHeader' or 'finalCti'",
    }
    return {name: what for name, what in filled.items() if isinstance(what, str)}


def _check_metadata(options: KafkaOptions, column: pa.Field, name: str) -> str:
    filled_by = _list_unfilled(options).get(name)
    if filled_by:
        raise _column_refused(
            column,
            "would be empty",
            f"it together with {filled_by}",
            "set that, leave the column out, or rename all metadata with option 'metadataPrefix'",
        )
    if column.type != METADATA[name]:
        raise _column_refused(
            column,
            f"is {column.type}, but carries the metadata '{name}'",
            str(METADATA[name]),
            "use that type, or rename all metadata with option 'metadataPrefix'",
        )
    return name


def _check_field(form: str, column: pa.Field) -> pa.Field:
    """Check a field's type; those of other formats than JSON are checked against the schema."""
    bad = find_unsupported_type(column.type) if form == "json" else None
    if bad is not None:
        raise _column_refused(
            column,
            f"contains {bad}, which is not read from JSON",
            "strings, numbers, booleans, binary, decimals, dates, timestamps, arrays, structs and "
            "maps with string keys of them",
            "declare it a string and use from_json on it",
        )
    return column


def _unknown_column(
    options: KafkaOptions, column: pa.Field, by_name: Mapping[str, str]
) -> SchemaRefused:
    return _column_refused(
        column,
        f"is not a metadata column, and option 'valueFormat' is '{options.value_format}'",
        ", ".join(by_name),
        "set 'valueFormat' to what the values are, to read it from them, or leave it out",
    )


def _column_refused(column: pa.Field, problem: str, accepts: str, next_step: str) -> SchemaRefused:
    return SchemaRefused(f"column '{column.name}' {problem}", accepts, next_step)
