"""The schema registry as a query uses it: schemas by id, each fetched once a process.

A schema never changes under its id, so what was fetched stays known: a query that runs goes on
while the registry is down, until a record names an id that is new to its process. What is latest is
asked for each time.
"""

import base64
import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from pyspark_timestream.kafka.registry.answers import proto_text_error, shape_error
from pyspark_timestream.kafka.registry.client import RegistryClient, describe_key, open_client
from pyspark_timestream.kafka.schemas import AVRO, PROTOBUF, RegisteredSchema, SchemaReference

__all__ = ["SchemaRegistry", "find_context"]

_FORMS: Final = {"protobuf": "serialized"}
"""The form in which the registry is asked for a text, by format."""

_CONTEXT: Final = re.compile(r":\.[^:]+:")
"""The beginning of a subject in a context, where ids are apart from those of others."""

_MAX_REFERENCES: Final = 1_000

_Key = tuple[object, ...]

_SCHEMAS: Final[dict[_Key, RegisteredSchema]] = {}
_LOCK: Final = threading.Lock()
"""Held while a schema is fetched, so that threads of one process fetch it once."""


def find_context(subject: str | None) -> str:
    """Return the context of a subject: an id names a schema only within it; empty by default.

    >>> find_context(":.staging:trips-value"), find_context(":.:trips-value"), find_context("a:b")
    (':.staging:', '', '')
    """
    found = _CONTEXT.match(subject or "")
    return found[0] if found else ""


class SchemaRegistry:
    """Fetches schemas; a value, so that it can go to tasks.

    Args:
        settings: the client's configuration, as `read_registry_settings` returns it.
        known: schemas that need not be fetched, such as the reader's, under format, context (of
            `find_context`) and id. Spark replaces a worker that was idle for a minute, and a new
            one knows nothing else.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        known: Mapping[tuple[str, str, int | bytes], RegisteredSchema] | None = None,
    ) -> None:
        self._settings = dict(settings)
        self._known = dict(known or {})

    def __repr__(self) -> str:
        """Show the address alone."""
        return f"SchemaRegistry({self._settings['url']!r})"

    def check_settings(self) -> None:
        """Create a client, without a request.

        Raises:
            MissingExtra: the client is not installed.
            OptionError: it refuses the configuration.
        """
        with open_client(self._settings):
            pass

    def fetch_schema(
        self, key: int | bytes, format: str, subject: str | None = None
    ) -> RegisteredSchema:
        """Return the schema with an id or a GUID, and what it refers to.

        Args:
            key: the id, or the 16 bytes of a GUID.
            format: the option's word: `avro`, `protobuf` or `json`.
            subject: a subject; it matters only if it names a context (`:.context:subject`).

        Raises:
            SchemaRegistryError: the registry refuses, is not reached, does not answer, or lacks
                the schema.
        """
        context = find_context(subject)
        if (format, context, key) in self._known:
            return self._known[format, context, key]
        place = self._key(format, context, key)
        with _LOCK:
            if place not in _SCHEMAS:
                _SCHEMAS[place] = self._fetch(key, format, subject if context else None)
            return _SCHEMAS[place]

    def fetch_latest(self, subject: str, format: str) -> RegisteredSchema:
        """Return the latest schema of `subject`, its id as `key`; it is asked for each time.

        Raises:
            SchemaRegistryError: as `fetch_schema`, or the registry lacks the subject.
        """
        form = _FORMS.get(format)
        with open_client(self._settings) as client:
            found = client.get_version(subject, "latest", form)
            wanted = f"the latest version of subject '{subject}'"
            if not isinstance(found.schema_id, int):
                raise shape_error(self._settings, wanted, "its answer lacks an id")
            read = self._read(client, found.schema_id, found.schema, form, wanted)
        return read._replace(subject=subject, version=found.version)

    def _fetch(self, key: int | bytes, format: str, context: str | None) -> RegisteredSchema:
        form = _FORMS.get(format)
        with open_client(self._settings) as client:
            found = client.get_schema(key, form, context)
            return self._read(client, key, found, form, describe_key(key))

    def _read(
        self, client: RegistryClient, key: int | bytes, schema: Any, form: str | None, wanted: str
    ) -> RegisteredSchema:
        """Check an answer, and fetch what it refers to."""
        kind = schema.schema_type or AVRO
        self._check_text(schema.schema_str, kind, form, wanted)
        references: dict[str, SchemaReference] = {}
        self._collect(client, schema, kind, form, references, {})
        return RegisteredSchema(key, kind, schema.schema_str, tuple(references.values()))

    def _collect(
        self,
        client: RegistryClient,
        schema: Any,
        kind: str,
        form: str | None,
        found: dict[str, SchemaReference],
        visited: dict[tuple[str, str, int], None],
    ) -> None:
        """Add what `schema` refers to to `found`, each after what it refers to itself."""
        for reference in schema.references or ():
            place = (reference.name, reference.subject, reference.version)
            if place in visited:
                continue
            visited[place] = None
            wanted = f"version {reference.version} of subject '{reference.subject}'"
            if len(visited) > _MAX_REFERENCES:
                problem = f"it is one of more than {_MAX_REFERENCES} references of a schema"
                raise shape_error(self._settings, wanted, problem)
            inner = client.get_version(reference.subject, reference.version, form).schema
            self._check_text(inner.schema_str, kind, form, wanted)
            self._collect(client, inner, kind, form, found, visited)
            found.setdefault(reference.name, SchemaReference(reference.name, inner.schema_str))

    def _check_text(self, text: object, kind: str, form: str | None, wanted: str) -> None:
        if not isinstance(text, str):
            raise shape_error(self._settings, wanted, "its answer lacks a schema")
        if kind == PROTOBUF and form is not None:
            try:
                base64.b64decode(text, validate=True)
            except ValueError:
                raise proto_text_error(self._settings, wanted) from None

    def _key(self, *more: object) -> _Key:
        return (tuple(sorted(self._settings.items())), *more)
