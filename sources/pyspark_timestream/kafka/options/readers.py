"""Schemas that a query reads values and keys by, fixed when it first starts (semantics 13.7)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark_timestream.kafka.schemas import RegisteredSchema

__all__ = ["ReaderSchema", "SchemaSource"]


class SchemaSource(Protocol):
    """Returns the schemas that payloads were written with; a schema never changes under its id."""

    def fetch_schema(
        self, key: int | bytes, format: str, subject: str | None = None
    ) -> RegisteredSchema:
        """Return the schema with an id, or with a GUID of 16 bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """The schema that the values of a query are read by, or its keys.

    Attributes:
        text: Avro's JSON, or Protobuf's descriptor set in base64.
        fingerprint: equal for equal schemas.
        message: the full name of Protobuf's message, or of the one Avro record that is wanted;
            empty for any.
        schema_id: its id in the registry; None if an option gave it.
        subject: the registry's subject that it was the latest of; None if an option gave it.
        version: its version in that subject.
        registered: the schema as the registry has it, so that tasks need not fetch it again.
        newer: a later version, which reads the records that this one cannot; None without.
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
        """Return what an offset keeps: where the text is, and how to know it again."""
        found = {
            "fingerprint": self.fingerprint,
            "id": self.schema_id,
            "message": self.message or None,
            "newer": None if self.newer is None else self.newer.to_json(),
            "subject": self.subject,
            "version": self.version,
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ReaderSchema":
        """Read what `to_json` wrote; the text is still to be found."""
        return cls(
            "",
            value["fingerprint"],
            value.get("message", ""),
            value.get("id"),
            value.get("subject"),
            value.get("version"),
            newer=cls.from_json(value["newer"]) if "newer" in value else None,
        )

    def versions(self) -> "Iterator[ReaderSchema]":
        """Return this schema and the newer ones, in order."""
        found: ReaderSchema | None = self
        while found is not None:
            yield found
            found = found.newer
