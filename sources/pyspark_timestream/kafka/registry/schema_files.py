"""Schemas given as options: text, or the path of a file that the driver reads once."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pyspark_timestream.connector.options import OptionError, option_specs
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.protobuf.descriptors import normalize
from pyspark_timestream.kafka.options.payloads import (
    LATEST_SCHEMA,
    PayloadOptions,
    PayloadRules,
    is_schema_text,
)

__all__ = ["load_schemas"]

T = TypeVar("T", bound=PayloadOptions)


def load_schemas(options: T) -> T:
    """Return `options` with the texts of their schemas, which tasks and checkpoints use.

    Raises:
        OptionError: a file cannot be read, or holds something else.
    """
    texts = dict(options.schema_texts)
    for rules in (options.value_rules, options.key_rules):
        for attribute in ("schema", "reader_schema"):
            given, name = getattr(rules, attribute), rules.option_name(attribute)
            if given is not None and given.strip().lower() != LATEST_SCHEMA and name not in texts:
                texts[name] = _load_schema(rules, name, given)
    return replace(options, schema_texts=texts)


def _load_schema(rules: PayloadRules, name: str, given: str) -> str:
    """Return Avro's JSON, or Protobuf's descriptor set in base64."""
    if rules.format == "protobuf":
        content = _read_file(name, given)
        try:
            # Compiled again, or by another compiler, the same schema is the same text.
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
    except ValueError as error:
        raise _error(name, f"{what} is not JSON ({error})") from None
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
