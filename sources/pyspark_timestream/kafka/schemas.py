"""Schemas as values: a registry's, and the ones that a query reads by."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from pyspark_timestream.errors import SchemaRefused

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"


class SchemaReference(NamedTuple):
    """A schema that another one refers to.

    Attributes:
        name: the name in the referring text: an Avro type's full name, or the path of a `.proto`
            file's import.
        text: as in `RegisteredSchema`.
    """

    name: str
    text: str


class RegisteredSchema(NamedTuple):
    """A schema of a registry; it never changes under its id.

    Attributes:
        key: the id that the request named, or the 16 bytes of a GUID from a frame.
        type: `AVRO`, `PROTOBUF` or `JSON`.
        text: JSON, or for Protobuf a `FileDescriptorProto` in base64.
        references: all schemas that it refers to, directly or not; each comes after its own
            references.
        subject: the subject of `version`; None if the request named an id.
        version: the version in the subject.
    """

    key: int | bytes
    type: str
    text: str
    references: tuple[SchemaReference, ...] = ()
    subject: str | None = None
    version: int | None = None


def fingerprint_schema(text: str) -> str:
    """Return a short text that is equal for equal schemas.

    White space, the order of keys and documentation do not count in JSON. Names, defaults and
    aliases do, because a reader's rows depend on them.

    >>> fingerprint_schema('{"type": "int", "doc": "a"}') == fingerprint_schema('{"type":"int"}')
    True
    """
    with contextlib.suppress(ValueError):
        text = json.dumps(_drop_docs(json.loads(text)), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _drop_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_drop_docs(member) for member in schema]
    if isinstance(schema, dict):
        # A default is data: a key 'doc' in it is not documentation.
        return {
            key: value if key == "default" else _drop_docs(value)
            for key, value in schema.items()
            if key != "doc"
        }
    return schema


class SchemaSource(Protocol):
    """Returns the schemas that payloads were written with; a schema never changes under its id."""

    def fetch_schema(
        self, key: int | bytes, format: str, subject: str | None = None
    ) -> RegisteredSchema:
        """Return the schema with an id, or with a GUID of 16 bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """The schema that a query reads values by, or keys.

    Attributes:
        text: Avro's JSON, or Protobuf's descriptor set in base64.
        fingerprint: equal for equal schemas.
        message: the full name of the Protobuf message, or of the one Avro record to read; empty
            for any.
        schema_id: its id in the registry; None if an option gave it.
        subject: the subject in which it was the latest; None if an option gave it.
        version: its version in that subject.
        registered: the registry's answer, so that tasks need not fetch it again.
        newer: a later version for the records that this one cannot read; None if there is none.
    """

    text: str
    fingerprint: str
    message: str = ""
    schema_id: int | None = None
    subject: str | None = None
    version: int | None = None
    registered: RegisteredSchema | None = None
    newer: "ReaderSchema | None" = None

    def to_json(self) -> dict[str, Any]:
        """Return what an offset keeps: how to find the text again, and its fingerprint."""
        entries = {
            "fingerprint": self.fingerprint,
            "id": self.schema_id,
            "message": self.message or None,
            "newer": None if self.newer is None else self.newer.to_json(),
            "subject": self.subject,
            "version": self.version,
        }
        return {name: value for name, value in entries.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ReaderSchema":
        """Read the result of `to_json`; the text stays empty until it is fetched."""
        return cls(
            text="",
            fingerprint=value["fingerprint"],
            message=value.get("message", ""),
            schema_id=value.get("id"),
            subject=value.get("subject"),
            version=value.get("version"),
            newer=cls.from_json(value["newer"]) if "newer" in value else None,
        )

    def versions(self) -> "Iterator[ReaderSchema]":
        """Return this schema and the newer ones, oldest first."""
        schema: ReaderSchema | None = self
        while schema is not None:
            yield schema
            schema = schema.newer


def is_accepted(check: Callable[..., object], *arguments: object) -> bool:
    """Return whether a check of schemas passes: `check(*arguments)` raises no `SchemaRefused`."""
    try:
        check(*arguments)
    except SchemaRefused:
        return False
    return True


def is_schema_text(value: str) -> bool:
    """Return whether `value` is an Avro schema itself, and not the path of a file.

    >>> is_schema_text('{"type": "long"}'), is_schema_text("schemas/trip.avsc")
    (True, False)
    """
    return value.lstrip()[:1] in ("{", "[", '"')
