"""Asks the schema registry for what frames name, and for the subject that a query would read by."""

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pyspark_timestream.errors import SchemaRegistryError
from pyspark_timestream.kafka.decode.protobuf.descriptors import find_message_name
from pyspark_timestream.kafka.registry.registry import SchemaRegistry
from pyspark_timestream.kafka.schemas import AVRO, PROTOBUF, inline_references
from pyspark_timestream.peek.detect import Answers, Detection, Key

__all__ = ["Asked", "ask_registry", "find_reader_options"]

_MAX_KEYS: Final = 40
_FIRST_MESSAGE: Final = (0,)


class Asked(NamedTuple):
    """The answer of the registry.

    Attributes:
        answers: the schemas that it has; None if it did not answer.
        problem: why it did not; empty if it did.
    """

    answers: Answers | None
    problem: str = ""


def ask_registry(
    registry: SchemaRegistry | None, keys: Sequence[Key], subject: str | None = None
) -> Asked:
    """Ask for the schemas with these ids; after a failure it is not asked again.

    `subject` is the one that the user gave, which may be in a context with ids of its own.
    """
    if registry is None:
        return Asked(None)
    found = {}
    try:
        for key in keys[:_MAX_KEYS]:
            try:
                schema = registry.fetch_schema(key, "json", subject)
            except SchemaRegistryError as error:
                if not error.is_missing:
                    raise
                continue
            if schema.type == PROTOBUF:
                # The text that was asked for without knowing so is .proto, which is not read.
                schema = registry.fetch_schema(key, "protobuf", subject)
            found[key] = schema
    except SchemaRegistryError as error:
        return Asked(None, str(error))
    return Asked(found)


def find_reader_options(
    registry: SchemaRegistry, topic: str, detection: Detection, given: str | None = None
) -> dict[str, str] | None:
    """Find the options that name the reader's schema; None if the registry lacks a subject.

    By default it is the latest of the subject that the user gave, or of the topic's. Producers may
    name subjects by the record's type instead, or by both.
    """
    part = detection.part
    for subject in [given] if given is not None else _list_subjects(topic, detection):
        try:
            found = registry.fetch_latest(subject, detection.format)
        except SchemaRegistryError as error:
            if not error.is_missing:
                raise
            continue
        if found.type.lower() == detection.format:
            is_default = subject == f"{topic}-{part}"
            options = {} if is_default else {f"{part}Subject": subject}
            message = _find_message(detection)
            if message and message != find_message_name(found.text.encode(), _FIRST_MESSAGE):
                options[f"{part}Message"] = message
            return options
    if given is None and detection.format == "avro" and detection.writer is not None:
        name = "readerSchema" if part == "value" else "keyReaderSchema"
        return {name: inline_references(detection.writer)}
    return None


def _list_subjects(topic: str, detection: Detection) -> Iterator[str]:
    yield f"{topic}-{detection.part}"
    writer, name = detection.writer, None
    if writer is not None and writer.type == AVRO:
        schema = json.loads(writer.text)
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            space, simple = schema.get("namespace"), schema["name"]
            name = f"{space}.{simple}" if space and "." not in simple else simple
    name = name or _find_message(detection)
    if name:
        yield name
        yield f"{topic}-{name}"


def _find_message(detection: Detection) -> str | None:
    """Find the Protobuf message that the frames name; None if there is none."""
    writer = detection.writer
    if writer is None or writer.type != PROTOBUF:
        return None
    return find_message_name(writer.text.encode(), detection.message)
