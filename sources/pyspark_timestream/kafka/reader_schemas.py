"""The schemas that a query reads values and keys by (semantics 13.7).

An option gives a schema, or names a subject of the registry. In the latter case a query takes the
latest schema at its first start, and keeps it: the offset records the schema's id and fingerprint.
A later start adds the schema that is the latest then, but only for records that the recorded ones
cannot read.
"""

import base64
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark_timestream.errors import (
    NEW_CHECKPOINT,
    CheckpointMismatch,
    OptionError,
    SchemaRefused,
    SchemaRegistryError,
)
from pyspark_timestream.kafka.decode.avro.schemas import inline_references, parse_schema
from pyspark_timestream.kafka.decode.payload import can_read_writer, check_schemas
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    build_descriptor_set,
    find_message_name,
    normalize,
)
from pyspark_timestream.kafka.decode.records import Projection
from pyspark_timestream.kafka.options.kafka_options import SPECS, KafkaOptions
from pyspark_timestream.kafka.options.reading import (
    LATEST_SCHEMA,
    SCHEMA_FORMATS,
    PayloadOptions,
    PayloadRules,
)
from pyspark_timestream.kafka.registry import SchemaRegistry, find_context
from pyspark_timestream.kafka.schemas import (
    ReaderSchema,
    RegisteredSchema,
    fingerprint_schema,
    is_accepted,
    is_schema_text,
)

_LOG: Final = logging.getLogger(__name__)


def load_schemas(options: KafkaOptions) -> KafkaOptions:
    """Return `options` with the texts of their schemas, for tasks and checkpoints."""
    texts = dict(options.schema_texts)
    for rules in options.payload_rules:
        for value, name in (
            (rules.schema, rules.option_name("schema")),
            (rules.reader_schema, rules.option_name("reader_schema")),
        ):
            if value is not None and value.strip().lower() != LATEST_SCHEMA and name not in texts:
                texts[name] = _load_schema(rules, name, value)
    return replace(options, schema_texts=texts)


def _load_schema(rules: PayloadRules, name: str, value: str) -> str:
    """Return JSON for Avro, or a descriptor set in base64 for Protobuf."""
    if rules.format == "protobuf":
        content = _read_file(name, value)
        try:
            # Normalize, so that another compilation of the same schema gives the same text.
            return base64.b64encode(normalize(content, rules.message or "")).decode()
        except SchemaRefused as error:
            raise _error(name, f"'{value}': {error}") from None
    if is_schema_text(value):
        origin, text = "its text", value
    else:
        origin = f"'{value}'"
        try:
            text = _read_file(name, value).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _error(name, f"{origin} is not UTF-8") from None
    try:
        json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _error(name, f"{origin} is not JSON ({error})") from None
    try:
        parse_schema(text)
    except ValueError as error:
        raise _error(name, f"{origin}: {error}") from None
    return text


def _read_file(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _error(name, f"cannot read '{path}' on the driver ({reason})") from None


def _error(name: str, problem: str) -> OptionError:
    return OptionError(name, problem, SPECS[name].parser.accepts, "correct it")


def pin_checked_reader_schemas(
    options: KafkaOptions, projection: Projection | None, recorded: Mapping[str, ReaderSchema]
) -> KafkaOptions:
    """Return `options` with the readers' schemas, which have all fields of `projection`.

    Raises:
        SchemaRegistryError: the registry does not give a schema.
        SchemaRefused: a schema lacks requested fields.
        CheckpointMismatch: a schema is no longer the one that was recorded.
    """
    options = pin_reader_schemas(options, recorded)
    check_schemas(options, projection)
    return _add_newer_reader_schemas(options, projection) if recorded else options


def pin_reader_schemas(options: KafkaOptions, recorded: Mapping[str, ReaderSchema]) -> KafkaOptions:
    """Return `options` with the readers' schemas of values and keys.

    `recorded` has the schemas that an earlier start recorded; the first start takes a subject's
    latest schema.

    Raises:
        CheckpointMismatch: a schema is no longer the one that was recorded.
    """
    reader_schemas: dict[str, ReaderSchema] = {}
    for rules in options.payload_rules:
        if rules.format in SCHEMA_FORMATS:
            reader_schema = _find_reader_schema(options, rules, recorded.get(rules.side))
            reader_schemas[rules.side] = reader_schema
            check_recorded(rules, reader_schema, recorded.get(rules.side))
    return with_reader_schemas(options, reader_schemas)


def with_reader_schemas(
    options: KafkaOptions, reader_schemas: Mapping[str, ReaderSchema]
) -> KafkaOptions:
    """Return `options` with the readers' schemas, and with the registry for writers' schemas."""
    registered = {}
    for rules in options.payload_rules:
        reader_schema = reader_schemas.get(rules.side)
        for version in () if reader_schema is None else reader_schema.versions():
            if version.registered is not None:
                cache_key = rules.format, find_context(version.subject), version.registered.key
                registered[cache_key] = version.registered
    source = SchemaRegistry(options.registry, registered) if options.registry else None
    return replace(options, reader_schemas=reader_schemas, source=source)


def _find_reader_schema(
    options: PayloadOptions, rules: PayloadRules, recorded: ReaderSchema | None
) -> ReaderSchema:
    if not rules.needs_latest:
        text = rules.reader_schema or rules.schema or ""
        return _create_reader_schema(text, rules.message or "")
    assert rules.subject is not None, "the options name the subject of the latest schema"
    source = SchemaRegistry(options.registry)
    if recorded is None or recorded.schema_id is None:
        registered = source.fetch_latest(rules.subject, rules.format)
        origin = registered.subject, registered.version
    else:
        registered = source.fetch_schema(recorded.schema_id, rules.format, recorded.subject)
        origin = recorded.subject, recorded.version
    reader_schema = _make_reader_schema(rules, registered, *origin)
    if recorded is None or recorded.newer is None:
        return reader_schema
    newer = _find_reader_schema(options, rules, recorded.newer)
    check_recorded(rules, newer, recorded.newer)
    return replace(reader_schema, newer=newer)


def _make_reader_schema(
    rules: PayloadRules, schema: RegisteredSchema, subject: str | None, version: int | None
) -> ReaderSchema:
    reader_schema = read_registered(rules, schema)
    assert isinstance(schema.key, int), "a subject's schema has an id"
    return replace(
        reader_schema, schema_id=schema.key, subject=subject, version=version, registered=schema
    )


def _add_newer_reader_schemas(options: KafkaOptions, projection: Projection | None) -> KafkaOptions:
    """Return the options of a restart, with latest schemas added to the recorded ones.

    A subject's latest schema is added only if the recorded ones cannot read records written with
    it, and if it has all requested fields: records that could be read before are still read in the
    same way. If the registry does not give the latest schema, or it is invalid, the query goes on
    with a warning.
    """
    if not options.registry:
        return options
    source = SchemaRegistry(options.registry)
    for rules in options.payload_rules:
        reader_schema = options.reader_schemas.get(rules.side)
        if reader_schema is None or rules.format != "avro":
            continue
        *_, last_version = reader_schema.versions()
        if last_version.schema_id is None or last_version.subject is None:
            continue
        try:
            newest = source.fetch_latest(last_version.subject, rules.format)
            options = _add_newer_reader_schema(options, projection, rules, newest)
        except (SchemaRefused, SchemaRegistryError, ValueError) as error:
            if isinstance(error, SchemaRegistryError) and error.is_missing:
                continue
            _LOG.warning(
                "the latest schema of subject '%s' cannot be used, so %ss are read only by schema "
                "%s, as before (%s)",
                last_version.subject, rules.side, last_version.schema_id, error,
            )  # fmt: skip
    return options


def _add_newer_reader_schema(
    options: KafkaOptions,
    projection: Projection | None,
    rules: PayloadRules,
    newest: RegisteredSchema,
) -> KafkaOptions:
    reader_schema = options.reader_schemas[rules.side]
    *_, last_version = reader_schema.versions()
    if newest.key == last_version.schema_id or newest.type.lower() != rules.format:
        return options
    if can_read_writer(options, projection, rules.side, inline_references(newest)):
        return options
    newer = _make_reader_schema(rules, newest, newest.subject, newest.version)
    parse_schema(newer.text)  # Raise if it is not a schema; one that does not fit changes nothing.
    only_newer = with_reader_schemas(options, {**options.reader_schemas, rules.side: newer})
    if not is_accepted(check_schemas, only_newer, projection):
        return options
    _LOG.warning(
        "%ss that schema %s cannot read are read by schema %s from now on, version %s of '%s'",
        rules.side, last_version.schema_id, newer.schema_id, newer.version, newer.subject,
    )  # fmt: skip
    return with_reader_schemas(
        options, {**options.reader_schemas, rules.side: _append_newer(reader_schema, newer)}
    )


def _append_newer(reader_schema: ReaderSchema, newest: ReaderSchema) -> ReaderSchema:
    newer = newest if reader_schema.newer is None else _append_newer(reader_schema.newer, newest)
    return replace(reader_schema, newer=newer)


def read_registered(rules: PayloadRules, schema: RegisteredSchema) -> ReaderSchema:
    """Turn a registered schema into a reader's schema."""
    if schema.type.lower() != rules.format:
        name = rules.option_name("format")
        raise SchemaRefused(
            f"the latest schema of subject '{rules.subject}' is {schema.type}, and option '{name}' "
            f"is '{rules.format}'",
            f"'{name}' = '{schema.type.lower()}', or a subject with a schema of that format",
            f"set '{name}' or '{rules.option_name('subject')}'",
        )
    if rules.format == "avro":
        return _create_reader_schema(inline_references(schema), rules.message or "")
    main = schema.text.encode()
    references = {reference.name: reference.text.encode() for reference in schema.references}
    message = rules.message or find_message_name(main) or ""
    descriptor_set = normalize(build_descriptor_set(main, references), message)
    return _create_reader_schema(base64.b64encode(descriptor_set).decode(), message)


def _create_reader_schema(text: str, message: str) -> ReaderSchema:
    return ReaderSchema(text, fingerprint_schema(text), message)


def check_recorded(rules: PayloadRules, now: ReaderSchema, recorded: ReaderSchema | None) -> None:
    """Check that a schema is the recorded one: another schema would change rows in mid-stream."""
    if recorded is None or recorded.fingerprint == now.fingerprint:
        return
    name = rules.option_name("subject")
    raise CheckpointMismatch(
        f"schema {recorded.schema_id} (version {recorded.version} of '{recorded.subject}') of "
        f"this checkpoint's {rules.side}s had fingerprint "
        f"{recorded.fingerprint} and has {now.fingerprint} in the registry of today: an id never "
        "changes its schema, so this is another registry; set 'schemaRegistry.url' back; or take "
        f"the latest schema of '{name}' and {NEW_CHECKPOINT}"
    )
