"""The columns of the Kafka transport: names, types, and which of them a query requests.

The rules are semantics 1.2, 13.1, 13.2, 13.11 and 13.12.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from pyspark_timestream.core.arrow import name_struct_of_spark
from pyspark_timestream.core.policies import KINDS, POLICIES, name_any
from pyspark_timestream.errors import CheckpointMismatch, OptionError, SchemaRefused
from pyspark_timestream.kafka.decode.condition import Condition, resolve_condition
from pyspark_timestream.kafka.decode.convert import contains, list_types
from pyspark_timestream.kafka.decode.records import METADATA, Projection, list_time_sources
from pyspark_timestream.kafka.options.kafka_options import CTI_SOURCES, KafkaOptions
from pyspark_timestream.kafka.options.parsers import (
    PATH_FORM,
    Path,
    format_path,
    parse_path,
)
from pyspark_timestream.kafka.options.reading import SCHEMA_FORMATS

_PASSABLE: Final = "a path through objects only: columns that are structs, or strings"


def _check_field_names(options: KafkaOptions, fields: pa.Schema) -> None:
    """Check that each column of the value and each option for times leads to exactly one field."""
    declared = _check_paths(fields)
    for option, source in list_time_sources(options).items():
        text = source.ambiguous_text
        if text and (text,) in declared:
            raise OptionError(
                option,
                f"'{text}' is ambiguous: it means the record's timestamp, and .schema(...) reads a "
                "field of that name",
                f"'record:timestamp' for the record's, 'field:{text}' for the field",
                "write the one that is meant",
            )
        obstacle = _find_obstacle(source.path, declared) if source.kind == "field" else ""
        if obstacle:
            raise OptionError(
                option,
                f"'{source}' {obstacle}",
                _PASSABLE,
                "change the type of the column, or leave it out",
            )


def _check_paths(fields: pa.Schema) -> Mapping[Path, pa.Field]:
    """Map each column's path, which is its name, to the column; each leads to exactly one field."""
    declared = {_parse_column(field.name): field for field in fields}
    for path, column in declared.items():
        obstacle = _find_obstacle(path, declared)
        if obstacle:
            raise SchemaRefused(
                f"column '{column.name}' {obstacle}", _PASSABLE, "leave one of the two out"
            )
    return declared


def _parse_column(name: str) -> Path:
    try:
        return parse_path(name)
    except ValueError as error:
        raise SchemaRefused(
            f"column '{name}' is not the path of a field: {error}",
            PATH_FORM,
            f"to read a field of just this name, call the column {format_path((name,))}",
        ) from error


def _find_obstacle(path: Path, declared: Mapping[Path, pa.Field]) -> str:
    """Describe a column that blocks `path`; empty if none does."""
    for length in range(1, len(path)):
        column = declared.get(path[:length])
        if column is None:
            continue
        data_type = column.type
        for depth in range(length, len(path)):
            if pa.types.is_string(data_type):
                break
            if not pa.types.is_struct(data_type):
                return (
                    f"goes through '{format_path(path[:depth])}', which column '{column.name}' "
                    f"declares as {data_type}"
                )
            index = data_type.get_field_index(path[depth])
            if index < 0:
                break
            data_type = data_type.field(index).type
    return ""


_BY_POLICY: Final = ("violation", "original_start_time", "original_end_time")
"""The columns that the violation policy fills."""

DEAD_LETTER: Final = {"payload": "", "reason": "_reason", "schema_id": "_schema_id"}
"""A fact about a malformed payload -> its column's suffix after `columnNameOfCorruptRecord`."""


def build_default_schema(options: KafkaOptions) -> pa.Schema:
    """Build the schema used without a user schema: Spark's Kafka columns, then event time.

    Raises:
        SchemaRefused: values or keys have fields, which a schema must name.
    """
    for side, form in (("value", options.value_format), ("key", options.key_format)):
        if form != "binary":
            raise SchemaRefused(
                f"option '{side}Format' is '{form}', and no schema was given: the schema names the "
                f"fields that are read from the {side}s",
                ".schema(...) with fields and metadata columns, such as .schema('name string, "
                "start_time timestamp, cti timestamp')",
                f"add it, or leave '{side}Format' out to get the {side}s as they are",
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
    """Resolve `schema`, which is the user's or from `build_default_schema`.

    Raises:
        SchemaRefused: a column would always be empty, has the wrong type, is not nullable, or its
            name leads nowhere.
        OptionError: an option for times is ambiguous in this schema, or leads nowhere; or option
            `where` names no column or compares what cannot be compared.
    """
    name = _find_repeated(list(schema))
    if name is not None:
        raise SchemaRefused(
            f"the schema has '{name}' twice",
            "names that differ, of columns and of the fields of a struct",
            "leave one of the two out, or rename it",
        )
    by_name = {options.metadata_prefix + name: name for name in METADATA}
    _refuse_other_case(options, schema)
    # A column belongs to one of four: the record, the dead letter, the key's fields or the value's.
    metadata: dict[str, str] = {}
    dead_letter: dict[str, str] = {}
    key_fields: list[pa.Field] = []
    fields: list[pa.Field] = []
    for column in schema:
        if not column.nullable:
            raise _column_refused(
                column, "is not nullable", "nullable columns", "drop its NOT NULL"
            )
        if column.name in by_name:
            metadata[column.name] = _check_metadata(options, column, by_name[column.name])
        elif entry := _find_dead_letter(options, column):
            dead_letter[column.name] = entry
        elif options.key_format != "binary" and column.name.startswith(options.key_prefix):
            key_fields.append(_check_field(options.key_format, column))
        elif options.value_format == "binary":
            raise _unknown_column(options, column, by_name)
        else:
            fields.append(_check_field(options.value_format, column))
    if POLICIES[options.policy].flags and "cti" in metadata.values():
        _check_flags(options, metadata)
    _check_field_names(options, pa.schema(fields))
    _check_paths(strip_key_prefix(options, pa.schema(key_fields)))
    condition = _find_condition(options, schema, metadata)
    return Projection(
        schema=schema,
        metadata=metadata,
        fields=pa.schema(fields),
        key_fields=pa.schema(key_fields),
        dead_letter=dead_letter,
        condition=condition,
    )


def _find_repeated(fields: Sequence[pa.Field]) -> str | None:
    """Return a name that two of the fields have, or two fields of a struct inside of them."""
    names: set[str] = set()
    for field in fields:
        if field.name in names:
            return str(field.name)
        names.add(field.name)
        inner = _find_repeated([field.type.field(i) for i in range(field.type.num_fields)])
        if inner is not None:
            return inner
    return None


def _refuse_other_case(options: KafkaOptions, schema: pa.Schema) -> None:
    """Refuse a column that differs from one of metadata, dead letters or the key only in case.

    It would be read as a field of the value, which almost no payload has, and be null in every row;
    Spark ignores case and finds it by either name. With another type, or beside a column of that
    name, it is a field.
    """
    if options.value_format == "binary":
        return
    types = {options.metadata_prefix + name: kind for name, kind in METADATA.items()}
    renames = dict.fromkeys(types, "metadataPrefix")
    for suffix, kind in _list_dead_letter_types(options):
        types[options.corrupt_column + suffix] = kind
        renames[options.corrupt_column + suffix] = "columnNameOfCorruptRecord"
    by_case = {name.lower(): name for name in types}
    for column in schema:
        name = by_case.get(column.name.lower())
        if name is not None and name not in schema.names and column.type == types[name]:
            raise _other_case_refused(column, name, renames[name])
    prefix = options.key_prefix
    if options.key_format == "binary" or any(name.startswith(prefix) for name in schema.names):
        return
    for column in schema:
        if column.name.lower().startswith(prefix.lower()):
            raise _other_case_refused(column, prefix + column.name[len(prefix) :], "keyPrefix")


def _other_case_refused(column: pa.Field, name: str, option: str) -> SchemaRefused:
    return _column_refused(
        column,
        f"differs from '{name}' only in upper and lower case",
        f"'{name}'; or '{column.name}', a field of the value, with another '{option}'",
        f"write it so, or set option '{option}'",
    )


def _find_condition(
    options: KafkaOptions, schema: pa.Schema, metadata: dict[str, str]
) -> Condition | None:
    """Type option `where`, and add to `metadata` the columns that only it reads."""
    if options.where is None:
        return None
    columns = {
        column.name: None if metadata.get(column.name) == "cti" else column.type
        for column in schema
    }
    left_out = ("cti", *_list_unfilled(options))
    others = {
        options.metadata_prefix + name: name
        for name in METADATA
        if name not in left_out and options.metadata_prefix + name not in columns
    }
    kinds = {column: METADATA[name] for column, name in others.items()}
    condition = resolve_condition(options.where, columns, kinds)
    metadata |= {name: others[name] for name in condition.columns if name in others}
    return condition


def strip_key_prefix(options: KafkaOptions, fields: pa.Schema) -> pa.Schema:
    """Rename the columns `fields` of the key to their paths in the key."""
    skipped = len(options.key_prefix)
    return pa.schema([field.with_name(field.name[skipped:]) for field in fields])


def _find_dead_letter(options: KafkaOptions, column: pa.Field) -> str | None:
    """Return what `column` says about malformed payloads; None if it says nothing about them."""
    if (options.value_format, options.key_format) == ("binary", "binary"):
        return None
    for (suffix, kind), entry in zip(_list_dead_letter_types(options), DEAD_LETTER, strict=True):
        if column.name != options.corrupt_column + suffix:
            continue
        if column.type == kind:
            return entry
        # With another type it may be a JSON field of this name; a schema that has one is rare.
        if options.value_format != "json":
            raise _column_refused(
                column,
                f"is {column.type}, but carries the {entry.replace('_', ' ')} of malformed values",
                str(kind),
                "use that type, or rename these columns with option 'columnNameOfCorruptRecord'",
            )
    return None


def _list_dead_letter_types(options: KafkaOptions) -> list[tuple[str, pa.DataType]]:
    payload = pa.string() if options.value_format == "json" else pa.binary()
    return list(zip(DEAD_LETTER.values(), (payload, pa.string(), pa.int32()), strict=True))


def check_columns(options: KafkaOptions, projection: Projection) -> None:
    """Check that a batch planned with earlier options can still deliver the requested columns.

    Raises:
        CheckpointMismatch: its policy flags late rows, and column `violation` is not asked for.
    """
    if not POLICIES[options.policy].flags or not projection.requests("cti"):
        return
    if not projection.requests("violation"):
        raise CheckpointMismatch(
            f"a batch is still read with 'violationPolicy' = '{options.policy}', because it was "
            "planned before the change or 'changeFrom' waits for its instant, and column "
            f"'{options.metadata_prefix}violation' is no longer asked for, so nobody could tell "
            "its late rows from others: leave that column in the schema, or start once more with "
            "that policy and schema until the batch is done, then change them"
        )


def _check_flags(options: KafkaOptions, metadata: Mapping[str, str]) -> None:
    """Require column `violation`: without it, flagged rows look like rows that the CTIs cover."""
    if "violation" not in metadata.values():
        name = f"{options.metadata_prefix}violation"
        raise SchemaRefused(
            f"column '{name}' is missing, and option 'violationPolicy' is '{options.policy}': "
            "nobody could tell late rows from others",
            "a schema with it",
            f"add '{name} string' to .schema(...), or use another policy",
        )


def _list_unfilled(options: KafkaOptions) -> dict[str, str]:
    """Return each metadata column that these options leave empty, and the option that fills it."""
    rules = options.value_rules
    is_named = rules.format in SCHEMA_FORMATS or (rules.format == "json" and rules.has_registry)
    by_policy = POLICIES[options.policy].columns(options.shape)
    filled = {
        "end_time": options.shape != "point" or "option 'eventShape' = 'interval' or 'edge'",
        "edge": options.shape == "edge" or "option 'eventShape' = 'edge'",
        **{name: name in by_policy or _name_policies(name, options.shape) for name in _BY_POLICY},
        "time_lower": options.time_window or "option 'timeWindow' = 'true'",
        "time_upper": options.time_window or "option 'timeWindow' = 'true'",
        "value_schema_id": (rules.format != "binary" and rules.framing != "none")
        or "option 'valueFraming' = 'confluent' or 'header'",
        "value_schema_name": is_named or "option 'valueFormat' = 'avro' or 'protobuf'",
        "cti": options.has_ctis
        or f"option {', '.join(map(repr, CTI_SOURCES[:-1]))} or '{CTI_SOURCES[-1]}'",
    }
    return {name: condition for name, condition in filled.items() if isinstance(condition, str)}


def _name_policies(column: str, shape: str) -> str:
    """Name the policies that fill a column in events of `shape`; if none does, in other events."""
    by_shape = {
        kind: [name for name, policy in POLICIES.items() if column in policy.columns(kind)]
        for kind in KINDS
    }
    if by_shape[shape]:
        return f"option 'violationPolicy' = {name_any(by_shape[shape])}"
    shapes = [kind for kind, names in by_shape.items() if names]
    policies = dict.fromkeys(name for kind in shapes for name in by_shape[kind])
    return f"options 'violationPolicy' = {name_any(policies)} and 'eventShape' = {name_any(shapes)}"


def _check_metadata(options: KafkaOptions, column: pa.Field, name: str) -> str:
    filled_by = _list_unfilled(options).get(name)
    # A batch that is run again may have had another policy (semantics 8.10).
    may_differ = options.change_from is not None and name in _BY_POLICY
    if filled_by and not may_differ:
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
    """Check the type of a JSON field; other formats check it against their schema."""
    if contains(column.type, name_struct_of_spark):
        raise _column_refused(
            column,
            "is or contains a variant, geometry or geography, which is not read from payloads",
            "the types that the payloads have",
            "declare it a string or binary, and use a function such as parse_json on it",
        )
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


def find_unsupported_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return a type inside `data_type` that JSON cannot be read as; None if there is none."""
    return next((inner for inner in list_types(data_type) if not _is_read_from_json(inner)), None)


def _is_read_from_json(data_type: pa.DataType) -> bool:
    types = pa.types
    if types.is_map(data_type):
        return bool(types.is_string(data_type.key_type))
    readable = (
        *(types.is_string, types.is_binary, types.is_boolean, types.is_integer),
        *(types.is_float32, types.is_float64, types.is_decimal128),
        *(types.is_timestamp, types.is_date32, types.is_struct, types.is_list),
    )
    return any(is_type(data_type) for is_type in readable)


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
