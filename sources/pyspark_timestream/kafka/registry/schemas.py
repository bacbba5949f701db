"""Loads schemas, and fixes those that a query reads by at its first start (semantics 13.7)."""

import base64
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from pyspark_timestream.core.options import option_specs
from pyspark_timestream.errors import (
    CheckpointMismatch,
    OptionError,
    SchemaRefused,
    SchemaRegistryError,
)
from pyspark_timestream.kafka.decode.avro.schemas import parse_schema
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    build_descriptor_set,
    find_message_name,
    normalize,
)
from pyspark_timestream.kafka.options.reading import (
    LATEST_SCHEMA,
    SCHEMA_FORMATS,
    PayloadOptions,
    PayloadRules,
    Side,
    is_schema_text,
)
from pyspark_timestream.kafka.options.schemas import (
    ReaderSchema,
    RegisteredSchema,
    SchemaSource,
    fingerprint_schema,
    inline_references,
)
from pyspark_timestream.kafka.registry.client import SchemaRegistry, find_context

T = TypeVar("T", bound=PayloadOptions)


def load_schemas(options: T) -> T:
    """Return `options` with the texts of their schemas, for tasks and checkpoints."""
    texts = dict(options.schema_texts)
    for rules in (options.value_rules, options.key_rules):
        for attribute in ("schema", "reader_schema"):
            given, name = getattr(rules, attribute), rules.option_name(attribute)
            if given is not None and given.strip().lower() != LATEST_SCHEMA and name not in texts:
                texts[name] = _load_schema(rules, name, given)
    return replace(options, schema_texts=texts)


def _load_schema(rules: PayloadRules, name: str, given: str) -> str:
    """Return JSON for Avro, or a descriptor set in base64 for Protobuf."""
    if rules.format == "protobuf":
        content = _read_file(name, given)
        try:
            # Normalize, so that another compilation of the same schema gives the same text.
            return base64.b64encode(normalize(content, rules.message or "")).decode()
        except SchemaRefused as error:
            raise _error(name, f"'{given}': {error}") from None
    if is_schema_text(given):
        what, text = "its text", given
    else:
        what = f"'{given}'"
        try:
            text = _read_file(name, given).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _error(name, f"{what} is not UTF-8") from None
    try:
        json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _error(name, f"{what} is not JSON ({error})") from None
    try:
        parse_schema(text)
    except ValueError as error:
        raise _error(name, f"{what}: {error}") from None
    return text


def _read_file(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _error(name, f"cannot read '{path}' on the driver ({reason})") from None


def _error(name: str, problem: str) -> OptionError:
    (spec,) = (each for each in option_specs(PayloadOptions).values() if each.name == name)
    return OptionError(name, problem, spec.parser.accepts, "correct it")


_LOG: Final = logging.getLogger(__name__)
_FIRST_MESSAGE: Final = (0,)


def fix_readers(options: T, recorded: Mapping[str, ReaderSchema]) -> T:
    """Return `options` with the schemas that values and keys are read by.

    `recorded` has the schemas that an earlier start recorded; the first start takes a subject's
    latest schema.

    Raises:
        CheckpointMismatch: a schema is no longer the one that was recorded.
    """
    source = SchemaRegistry(options.registry) if options.registry else None
    readers: dict[str, ReaderSchema] = {}
    for rules in (options.value_rules, options.key_rules):
        if rules.format in SCHEMA_FORMATS:
            reader = _find_reader(rules, source, recorded.get(rules.side))
            readers[rules.side] = reader
            check_recorded(rules, reader, recorded.get(rules.side))
    return with_readers(options, readers)


def with_readers(options: T, readers: Mapping[str, ReaderSchema]) -> T:
    """Return `options` with the readers' schemas, and with the registry for writers' schemas."""
    registered = {}
    for rules in (options.value_rules, options.key_rules):
        reader = readers.get(rules.side)
        for each in () if reader is None else reader.versions():
            if each.registered is not None:
                place = rules.format, find_context(each.subject), each.registered.key
                registered[place] = each.registered
    source = SchemaRegistry(options.registry, registered) if options.registry else None
    return replace(options, readers=readers, source=source)


def _find_reader(
    rules: PayloadRules, source: SchemaSource | None, recorded: ReaderSchema | None
) -> ReaderSchema:
    if not rules.needs_latest:
        text = rules.reader_schema or rules.schema or ""
        return _create_reader(text, rules.message or "")
    assert isinstance(source, SchemaRegistry), "the latest schema is a registry's"
    assert rules.subject is not None, "the options name the subject of the latest schema"
    if recorded is None or recorded.schema_id is None:
        registered = source.fetch_latest(rules.subject, rules.format)
        place = registered.subject, registered.version
    else:
        registered = source.fetch_schema(recorded.schema_id, rules.format, recorded.subject)
        place = recorded.subject, recorded.version
    reader = _place_reader(rules, registered, *place)
    if recorded is None or recorded.newer is None:
        return reader
    newer = _find_reader(rules, source, recorded.newer)
    check_recorded(rules, newer, recorded.newer)
    return replace(reader, newer=newer)


def _place_reader(
    rules: PayloadRules, schema: RegisteredSchema, subject: str | None, version: int | None
) -> ReaderSchema:
    reader = read_registered(rules, schema)
    assert isinstance(schema.key, int), "a subject's schema has an id"
    return replace(
        reader, schema_id=schema.key, subject=subject, version=version, registered=schema
    )


def add_newer_readers(
    options: T, can_read: Callable[[T, Side, str], bool], fits: Callable[[T], bool]
) -> T:
    """Return the options of a restart, with latest schemas added to the recorded ones.

    A subject's latest schema is added only if the recorded ones cannot read records written with
    it, and if it fits: records that could be read before are still read in the same way. If the
    registry does not give the latest schema, or it is invalid, the query goes on with a warning.

    `can_read` returns whether options can read records written with a schema, `fits` whether the
    options' schemas have all requested fields.
    """
    source = SchemaRegistry(options.registry) if options.registry else None
    for rules in (options.value_rules, options.key_rules):
        reader = options.readers.get(rules.side)
        if source is None or reader is None or rules.format != "avro":
            continue
        *_, last = reader.versions()
        if last.schema_id is None or last.subject is None:
            continue
        try:
            options = _add_newer_reader(options, rules, source, can_read, fits)
        except (SchemaRefused, SchemaRegistryError, ValueError) as error:
            if isinstance(error, SchemaRegistryError) and error.is_missing:
                continue
            _LOG.warning(
                "the latest schema of subject '%s' cannot be used, so %ss are read by schema %s "
                "alone, as before (%s)",
                last.subject, rules.side, last.schema_id, error,
            )  # fmt: skip
    return options


def _add_newer_reader(
    options: T,
    rules: PayloadRules,
    source: SchemaRegistry,
    can_read: Callable[[T, Side, str], bool],
    fits: Callable[[T], bool],
) -> T:
    reader = options.readers[rules.side]
    *_, last = reader.versions()
    assert last.subject is not None, "the caller leaves out what is of no subject"
    newest = source.fetch_latest(last.subject, rules.format)
    if newest.key == last.schema_id or newest.type.lower() != rules.format:
        return options
    if can_read(options, rules.side, inline_references(newest)):
        return options
    newer = _place_reader(rules, newest, newest.subject, newest.version)
    parse_schema(newer.text)  # What is no schema is told; one that does not fit changes nothing.
    if not fits(with_readers(options, {**options.readers, rules.side: newer})):
        return options
    _LOG.warning(
        "%ss that schema %s cannot read are read by schema %s from now on, version %s of '%s'",
        rules.side, last.schema_id, newer.schema_id, newer.version, newer.subject,
    )  # fmt: skip
    return with_readers(options, {**options.readers, rules.side: _append(reader, newer)})


def _append(reader: ReaderSchema, newest: ReaderSchema) -> ReaderSchema:
    newer = newest if reader.newer is None else _append(reader.newer, newest)
    return replace(reader, newer=newer)


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
        return _create_reader(inline_references(schema), rules.message or "")
    main = schema.text.encode()
    references = {reference.name: reference.text.encode() for reference in schema.references}
    message = rules.message or find_message_name(main, _FIRST_MESSAGE) or ""
    descriptor_set = normalize(build_descriptor_set(main, references), message)
    return _create_reader(base64.b64encode(descriptor_set).decode(), message)


def _create_reader(text: str, message: str) -> ReaderSchema:
    return ReaderSchema(text, fingerprint_schema(text), message)


def check_recorded(rules: PayloadRules, now: ReaderSchema, recorded: ReaderSchema | None) -> None:
    """Check that a schema is the recorded one: another would change rows in mid-stream."""
    if recorded is None or recorded.fingerprint == now.fingerprint:
        return
    name = rules.option_name("subject")
    was = f"schema {recorded.schema_id} (version {recorded.version} of '{recorded.subject}')"
    raise CheckpointMismatch(
        f"{was}, by which this checkpoint reads {rules.side}s, had fingerprint "
        f"{recorded.fingerprint} and has {now.fingerprint} in the registry of today: an id never "
        "changes its schema, so this is another registry; set 'schemaRegistry.url' back, or start "
        f"with a new checkpoint, which takes the latest schema of '{name}'"
    )
