"""Refuses options about payloads that conflict, lack what they need, or have no effect."""

from collections.abc import Mapping

from pyspark_timestream.connector.options import OptionError, option_specs
from pyspark_timestream.kafka.options.payloads import (
    LATEST_SCHEMA,
    SCHEMA_FORMATS,
    PayloadOptions,
    PayloadRules,
)

__all__ = ["check_payloads"]

_SPECS = {spec.name: spec for spec in option_specs(PayloadOptions).values()}
_URL = "schemaRegistry.url"


def check_payloads(options: PayloadOptions, given: Mapping[str, str]) -> None:
    """Check `options`, of which `given` (lower-cased name -> text) were set.

    Raises:
        OptionError: they conflict, lack what they need, or have no effect.
    """
    parts = (options.value_rules, options.key_rules)
    if options.registry and not any(rules.has_registry for rules in parts):
        raise OptionError(
            _URL,
            "it has no effect: no option asks for the ids of schemas",
            "it with 'valueFormat' or 'keyFormat' = 'avro', 'protobuf' or 'json', and with "
            "'valueFraming' or 'keyFraming' = 'confluent' or 'header'",
            "set 'valueFormat' or 'keyFormat', or leave all 'schemaRegistry.*' out",
        )
    for rules in parts:
        _check_effect(rules, given)
        _check_framing(rules, bool(options.registry))
        if rules.format in SCHEMA_FORMATS:
            _check_schema(rules)
    if "keyprefix" in given and options.key_format == "binary":
        raise OptionError(
            "keyPrefix",
            "it has no effect: option 'keyFormat' is 'binary'",
            "it with another 'keyFormat'",
            "set 'keyFormat' too, or leave it out",
        )


def _check_effect(rules: PayloadRules, given: Mapping[str, str]) -> None:
    """Refuse options that the format does not use."""
    uses = {
        "framing": ("json", "avro", "protobuf"),
        "schema": SCHEMA_FORMATS,
        "reader_schema": ("avro",),
        "message": SCHEMA_FORMATS,
        "subject": SCHEMA_FORMATS,
    }
    format_name = rules.option_name("format")
    for attribute, formats in uses.items():
        name = rules.option_name(attribute)
        if attribute == "reader_schema" and _asks_for_latest(rules, given):
            formats = SCHEMA_FORMATS
        if name.lower() in given and rules.format not in formats:
            raise OptionError(
                name,
                f"it has no effect: option '{format_name}' is '{rules.format}'",
                f"it with '{format_name}' = " + " or ".join(f"'{each}'" for each in formats),
                f"set '{format_name}', or leave it out",
            )
    subject = rules.option_name("subject")
    if subject.lower() in given and not rules.has_registry:
        raise _needs_registry(rules, subject, "it")
    reader = rules.option_name("reader_schema")
    if _asks_for_latest(rules, given) and not rules.has_registry:
        raise _needs_registry(rules, reader, f"'{LATEST_SCHEMA}'")


def _asks_for_latest(rules: PayloadRules, given: Mapping[str, str]) -> bool:
    text = given.get(rules.option_name("reader_schema").lower(), "")
    return text.strip().lower() == LATEST_SCHEMA


def _needs_registry(rules: PayloadRules, name: str, what: str) -> OptionError:
    framing = rules.option_name("framing")
    return OptionError(
        name,
        f"{what} has no effect without a registry",
        f"it with '{_URL}' and '{framing}' = 'confluent' or 'header'",
        f"set '{_URL}', or leave it out",
    )


def _check_framing(rules: PayloadRules, has_url: bool) -> None:
    if rules.framing == "header" and not has_url:
        raise OptionError(
            rules.option_name("framing"),
            "'header' has no effect: without a registry nothing is known of the ids in headers",
            f"it with '{_URL}'",
            f"set '{_URL}', or set it to 'none'",
        )


def _check_schema(rules: PayloadRules) -> None:
    """Check that exactly one place has the writers' schemas, and which message and subject."""
    schema, framing = rules.option_name("schema"), rules.option_name("framing")
    accepts = _SPECS[schema].parser.accepts
    if rules.has_registry and rules.schema is not None:
        raise OptionError(
            schema,
            f"it conflicts with option '{_URL}': the registry has the schemas that were written "
            "with",
            f"it without a registry, or with '{framing}' = 'none'",
            f"set '{rules.option_name('reader_schema')}' to it instead"
            if rules.format == "avro"
            else "leave it out",
        )
    if rules.has_registry:
        _check_subject(rules)
    elif rules.schema is None:
        format_name = rules.option_name("format")
        raise OptionError(
            schema,
            f"it is missing: '{format_name}' = '{rules.format}' needs a schema, and no registry is "
            f"asked for it ('{framing}' is '{rules.framing}')",
            accepts,
            f"set it, or set '{_URL}' with '{framing}' = 'confluent' or 'header'",
        )
    elif rules.format == "protobuf" and rules.message is None:
        message = rules.option_name("message")
        raise OptionError(
            message,
            f"it is missing, and a descriptor set in '{schema}' may have several messages",
            "the full name of a message, such as 'shop.Order'",
            "set it",
        )


def _check_subject(rules: PayloadRules) -> None:
    if rules.needs_latest and rules.subject is None:
        name = rules.option_name("subject")
        reader = rules.option_name("reader_schema")
        raise OptionError(
            name,
            "it is missing, and its default is the name of the one topic that is read, with "
            f"'-{rules.part}': here there are, or may be, several topics",
            "a subject of the registry",
            "set it to the subject with the reader's schema"
            + (f", or set '{reader}'" if rules.format == "avro" else ""),
        )
