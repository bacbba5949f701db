"""Our own schema registry: the REST calls of Confluent's that a reader and a producer make.

It keeps schemas in memory, gives the same schema the same id, each context ids of its own, and does
not check compatibility. A
`Mode` makes it misbehave: refuse, answer late or never, close the connection, or send what is no
answer. It counts requests by path.

    with serve_schema_registry() as registry:
        number = registry.register("trips-value", '{"type": "long"}')
        ... option("schemaRegistry.url", registry.url)
"""

from __future__ import annotations

import base64
import json
import re
import socket
import ssl
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Mode", "Reference", "SchemaRegistryStub", "serve_schema_registry"]

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
TYPES = ("AVRO", "JSON", "PROTOBUF")


class Mode(Enum):
    """How the registry answers."""

    FINE = "fine"
    FAILING = "each request fails with 500"
    FORBIDDEN = "each request is refused with 403"
    ELSEWHERE = "no path is known: another kind of server"
    SLOW = "each answer takes `delay_s`"
    HANGING = "no request is answered"
    DRIPPING = "each byte of an answer takes `delay_s`"
    GONE = "each connection is closed without an answer"
    BROKEN = "answers are not JSON"
    FOREIGN = "answers are JSON of another form"
    BUSY = "the first request is refused with 429, which asks to wait `delay_s`"
    MOVED = "each request is answered with 307 and another address"
    REFLECTING = "each request is refused with 401, and the answer quotes its login"


@dataclass(frozen=True)
class Reference:
    """A schema that another one refers to, by the name that its text uses."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """A schema as it was registered; `serialized` answers `format=serialized`."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    serialized: str | None = None

    def entry(self, form: str | None) -> dict[str, Any]:
        is_serialized = form == "serialized" and self.serialized is not None
        found: dict[str, Any] = {"schema": self.serialized if is_serialized else self.text}
        if self.type != "AVRO":
            found["schemaType"] = self.type
        if self.references:
            found["references"] = [vars(each) for each in self.references]
        return found


class Refusal(Exception):
    """An HTTP status with the registry's error code."""

    def __init__(self, status: int, code: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class SchemaRegistryStub:
    """The registry's content and behaviour; a test may change all of it while it runs.

    Attributes:
        url: where it listens.
        mode: how it answers.
        delay_s: of the modes that are late.
        user_info: `user:password` that it asks for; None: nobody logs in.
        token: a bearer token that it asks for.
        requests: how often each path was asked for, its query included.
        schemas: those of the default context by id.
        contexts: those of other contexts, such as `:.staging:`, by id.
    """

    url: str = ""
    mode: Mode = Mode.FINE
    delay_s: float = 0.2
    user_info: str | None = None
    token: str | None = None
    requests: Counter[str] = field(default_factory=Counter)
    schemas: dict[int, Schema] = field(default_factory=dict)
    contexts: dict[str, dict[int, Schema]] = field(default_factory=dict)
    subjects: dict[str, dict[int, int]] = field(default_factory=dict)
    deleted: set[tuple[str, int]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    def register(
        self,
        subject: str,
        text: str,
        type: str = "AVRO",
        references: Sequence[Reference] = (),
        serialized: bytes | None = None,
    ) -> int:
        """Register a schema as the next version of a subject, and return its id.

        Args:
            subject: the subject.
            text: Avro's or JSON Schema's JSON, or a `.proto` text.
            type: `AVRO`, `JSON` or `PROTOBUF`.
            references: what it refers to.
            serialized: the `FileDescriptorProto` of a `.proto` text.
        """
        form = None if serialized is None else base64.b64encode(serialized).decode()
        return self._register(subject, Schema(text, type, tuple(references), form))

    def delete(self, subject: str, version: int) -> None:
        """Delete a version; its schema is still known under its id."""
        self.deleted.add((subject, version))

    def count(self, path: str) -> int:
        """How often `path` was asked for, with any query."""
        return sum(many for asked, many in self.requests.items() if urlsplit(asked).path == path)

    def guid(self, number: int) -> str:
        """The GUID of the schema with an id."""
        return guid_of(self.schemas[number])

    def _register(self, subject: str, schema: Schema) -> int:
        with self.lock:
            schemas = self._find_schemas(subject)
            known = (number for number, each in schemas.items() if each == schema)
            number = next(known, len(schemas) + 1)
            schemas[number] = schema
            versions = self.subjects.setdefault(subject, {})
            live = {v: n for v, n in versions.items() if (subject, v) not in self.deleted}
            if number not in live.values():
                versions[len(versions) + 1] = number
            return number

    def answer(self, method: str, path: str, body: bytes) -> Any:
        """The registry's answer; raises `Refusal`."""
        parts = urlsplit(path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        place = [unquote(each) for each in parts.path.strip("/").split("/")]
        form, deleted = query.get("format"), query.get("deleted", "").lower() == "true"
        match method, place:
            case "GET", ["schemas", "types"]:
                return list(TYPES)
            case "GET", ["schemas", "ids", number]:
                return self._by_id(number, query.get("subject", "")).entry(form)
            case "GET", ["schemas", "guids", guid]:
                found = [each for each in self.schemas if self.guid(each) == guid]
                if not found:
                    raise Refusal(404, 40403, f"Schema with guid {guid} not found")
                return {**self.schemas[found[0]].entry(form), "guid": guid}
            case "GET", ["subjects"]:
                return [s for s in self.subjects if deleted or self._versions(s, False)]
            case "GET", ["subjects", subject, "versions"]:
                return list(self._versions(subject, deleted, must=True))
            case "GET", ["subjects", subject, "versions", version]:
                return self._by_version(subject, version, form, deleted)
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self._register(subject, read_schema(body))}
            case "POST", ["subjects", subject]:
                return self._look_up(subject, read_schema(body))
        raise Refusal(404, 404, "HTTP 404 Not Found")

    def _find_schemas(self, subject: str) -> dict[int, Schema]:
        context = re.match(":[.][^:]+:", subject)
        return self.contexts.setdefault(context[0], {}) if context else self.schemas

    def _by_id(self, number: str, subject: str = "") -> Schema:
        schemas = self._find_schemas(subject)
        schema = schemas.get(int(number)) if number.isdecimal() else None
        if schema is None:
            raise Refusal(404, 40403, f"Schema {number} not found")
        return schema

    def _versions(self, subject: str, deleted: bool, must: bool = False) -> dict[int, int]:
        versions = {
            version: number
            for version, number in self.subjects.get(subject, {}).items()
            if deleted or (subject, version) not in self.deleted
        }
        if must and not versions:
            raise Refusal(404, 40401, f"Subject '{subject}' not found.")
        return versions

    def _by_version(
        self, subject: str, version: str, form: str | None, deleted: bool
    ) -> dict[str, Any]:
        versions = self._versions(subject, deleted, must=True)
        asked = max(versions) if version == "latest" else int(version)
        if asked not in versions:
            raise Refusal(404, 40402, f"Version {version} not found.")
        number = versions[asked]
        schema = self._find_schemas(subject)[number]
        found = {"subject": subject, "version": asked, "id": number, "guid": guid_of(schema)}
        return found | schema.entry(form)

    def _look_up(self, subject: str, schema: Schema) -> dict[str, Any]:
        for version, number in self._versions(subject, False, must=True).items():
            if self._find_schemas(subject)[number] == schema:
                return {"subject": subject, "version": version, "id": number, **schema.entry(None)}
        raise Refusal(404, 40403, "Schema not found")


def guid_of(schema: Schema) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, repr(schema)))


def read_schema(body: bytes) -> Schema:
    """The schema that a producer registers, or looks up."""
    try:
        given = json.loads(body)
        references = tuple(Reference(**each) for each in given.get("references") or ())
        return Schema(given["schema"], given.get("schemaType") or "AVRO", references)
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(422, 42201, f"Invalid schema: {error!r}") from error


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    registry: SchemaRegistryStub

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def log_message(self, format: str, *values: object) -> None:
        pass

    def _handle(self, method: str) -> None:
        registry = self.registry
        with registry.lock:
            registry.requests[self.path] += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match registry.mode:
            case Mode.GONE:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            case Mode.HANGING:
                registry.ended.wait()
                self.close_connection = True
                return
            case Mode.SLOW:
                registry.ended.wait(registry.delay_s)
        try:
            self._check_login(registry)
            extra: dict[str, str] = {}
            status, answer = 200, self._answer(registry, method, body)
        except Refusal as refusal:
            status = refusal.status
            extra = refusal.headers
            answer = json.dumps({"error_code": refusal.code, "message": refusal.message}).encode()
        self._send(status, answer, extra)

    def _answer(self, registry: SchemaRegistryStub, method: str, body: bytes) -> bytes:
        match registry.mode:
            case Mode.FAILING:
                raise Refusal(500, 50001, "Error in the backend data store")
            case Mode.FORBIDDEN:
                raise Refusal(403, 40301, "User is denied operation Read on Subject")
            case Mode.ELSEWHERE:
                raise Refusal(404, 404, "HTTP 404 Not Found")
            case Mode.REFLECTING:
                raise Refusal(401, 401, f"Refused: {self.headers.get('Authorization')}")
            case Mode.BUSY if sum(registry.requests.values()) == 1:
                raise Refusal(429, 429, "Too many", Retry_After=f"{registry.delay_s:.0f}")
            case Mode.MOVED:
                raise Refusal(307, 307, "Moved", Location="https://ada:pass-word@new.example:8081")
            case Mode.BROKEN:
                return b'{"schema": "{\\"type'
            case Mode.FOREIGN:
                return b'[{"status": "UP"}]'
        return json.dumps(registry.answer(method, self.path, body)).encode()

    def _check_login(self, registry: SchemaRegistryStub) -> None:
        given = self.headers.get("Authorization")
        if registry.user_info is not None:
            wanted = f"Basic {base64.b64encode(registry.user_info.encode()).decode()}"
        elif registry.token is not None:
            wanted = f"Bearer {registry.token}"
        else:
            return
        if given != wanted:
            raise Refusal(401, 401, "Unauthorized")

    def _send(self, status: int, answer: bytes, extra: dict[str, str]) -> None:
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(answer)))
            for name, value in extra.items():
                self.send_header(name, value)
            self.end_headers()
            if self.registry.mode is not Mode.DRIPPING:
                self.wfile.write(answer)
                return
            for byte in answer:
                if self.registry.ended.wait(self.registry.delay_s):
                    return
                self.wfile.write(bytes([byte]))
                self.wfile.flush()


class Server(ThreadingHTTPServer):
    """Handles each connection in a thread, and says nothing of clients that hang up."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def serve_schema_registry(
    tls: Mapping[str, str | Path] | None = None, port: int = 0, host: str = "127.0.0.1"
) -> Iterator[SchemaRegistryStub]:
    """A registry that listens until the block ends.

    Args:
        tls: `certfile` and `keyfile` (PEM) of the server; with `cafile` it asks each client for a
            certificate. None: no TLS.
        port: where to listen; 0: any free port.
        host: the address.
    """
    registry = SchemaRegistryStub()
    server = Server((host, port), type("OwnHandler", (Handler,), {"registry": registry}))
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls["certfile"], tls["keyfile"])
        if "cafile" in tls:
            context.load_verify_locations(tls["cafile"])
            context.verify_mode = ssl.CERT_REQUIRED
        # Each connection's thread does the handshake, not the one that accepts.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    registry.url = f"http{'s' if tls else ''}://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.ended.set()
        server.shutdown()
        server.server_close()
