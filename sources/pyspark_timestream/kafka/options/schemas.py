"""Schemas as values: those from a registry or a file, and those that a query reads by.

A registry answers with a text and the names of the texts that it refers to. Avro's decoder needs
one complete text, so `inline_references` merges them.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"

_NAMED: Final = ("record", "error", "enum", "fixed")
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


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


def inline_references(schema: RegisteredSchema) -> str:
    """Return an Avro schema's text with each referenced type defined where it is first used.

    The text may name a type by its full name, at whatever depth a reference defines it, or by the
    name that the registry has for the reference, which may differ from its type's name.

    Raises:
        ValueError: a text is not JSON.
    """
    if not schema.references:
        return schema.text
    definitions: dict[str, _Definition] = {}
    texts = [(other.name, json.loads(other.text)) for other in schema.references]
    for _, text in texts:
        _collect(text, "", definitions)
    for name, text in texts:
        definitions.setdefault(name, _Definition(text, ""))
    return json.dumps(_inline(json.loads(schema.text), "", definitions, set()))


class _Definition(NamedTuple):
    """The definition of a type, and its enclosing namespace."""

    schema: Any
    space: str


def _collect(schema: Any, space: str, definitions: dict[str, _Definition]) -> None:
    """Add all types that `schema` defines, at any depth, to `definitions` by their full names."""
    if isinstance(schema, list):
        for member in schema:
            _collect(member, space, definitions)
    if not isinstance(schema, dict):
        return
    inner = space
    if schema.get("type") in _NAMED:
        name = _name_fully(schema, space)
        definitions.setdefault(name, _Definition(schema, space))
        inner = name.rpartition(".")[0]
    fields = schema.get("fields")
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict):
            _collect(field.get("type"), inner, definitions)
    for key in ("type", "items", "values"):
        _collect(schema.get(key), inner, definitions)


def _inline(
    schema: Any, space: str, definitions: Mapping[str, _Definition], defined: set[str]
) -> Any:
    """Copy `schema` with definitions in the place of names that are not defined yet.

    `space` is the enclosing namespace, empty for none; `defined` are the full names defined so far,
    to which the function adds.
    """
    if isinstance(schema, str):
        # As in Java, a name that the enclosing namespace lacks is looked up without one.
        names = [_full_name(schema, space), schema]
        known_name = next((name for name in names if name in defined), None)
        if schema in _PRIMITIVES or known_name is not None:
            return known_name or schema
        place = next((name for name in names if name in definitions), None)
        return schema if place is None else _inline(*definitions[place], definitions, defined)
    if isinstance(schema, list):
        return [_inline(member, space, definitions, defined) for member in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _NAMED:
        return _inline_named(schema, space, definitions, defined)
    inner = {
        key: _inline(schema[key], space, definitions, defined)
        for key in ("type", "items", "values")
        if key in schema
    }
    return {**schema, **inner}


def _inline_named(
    schema: dict[str, Any],
    space: str,
    definitions: Mapping[str, _Definition],
    defined: set[str],
) -> Any:
    name = _name_fully(schema, space)
    if name in defined:
        return name
    defined.add(name)
    own_space, _, simple = name.rpartition(".")
    copied = {**schema, "name": simple, "namespace": own_space}
    if "fields" in schema:
        copied["fields"] = [
            {**field, "type": _inline(field.get("type"), own_space, definitions, defined)}
            for field in schema["fields"]
        ]
    return copied


def _name_fully(schema: Mapping[str, Any], space: str) -> str:
    namespace = schema.get("namespace")
    return _full_name(str(schema.get("name", "")), space if namespace is None else str(namespace))


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


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
            "",
            value["fingerprint"],
            value.get("message", ""),
            value.get("id"),
            value.get("subject"),
            value.get("version"),
            newer=cls.from_json(value["newer"]) if "newer" in value else None,
        )

    def versions(self) -> "Iterator[ReaderSchema]":
        """Return this schema and the newer ones, oldest first."""
        schema: ReaderSchema | None = self
        while schema is not None:
            yield schema
            schema = schema.newer
