"""A schema registry for the pages: it answers what a reader asks, and takes no new schemas."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from pyspark_timestream.demo.page_topics import SUBJECTS, Subject

__all__ = ["answer", "serve_registry"]

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


def answer(path: str, subjects: Sequence[Subject] = SUBJECTS) -> Any:
    """The answer to a GET of `path`; None where there is nothing."""
    parts = urlsplit(path)
    is_serialized = parse_qs(parts.query).get("format") == ["serialized"]
    ids = dict(enumerate(subjects, 1))
    match [unquote(each) for each in parts.path.strip("/").split("/")]:
        case ["subjects"]:
            return sorted({each.name for each in subjects})
        case ["subjects", name, "versions"]:
            return [*range(1, len(_versions(ids, name)) + 1)] or None
        case ["subjects", name, "versions", version]:
            numbers = _versions(ids, name)
            place = len(numbers) if version == "latest" else int(version)
            if not 0 < place <= len(numbers):
                return None
            number = numbers[place - 1]
            found = {"subject": name, "version": place, "id": number}
            return found | _entry(ids[number], is_serialized)
        case ["schemas", "ids", number] if number.isdecimal() and int(number) in ids:
            return _entry(ids[int(number)], is_serialized)
        case ["schemas", "types"]:
            return sorted({each.type for each in subjects})
    return None


def _versions(ids: dict[int, Subject], name: str) -> list[int]:
    return [number for number, each in ids.items() if each.name == name]


def _entry(subject: Subject, is_serialized: bool) -> dict[str, Any]:
    text = subject.serialized if is_serialized and subject.serialized else subject.text
    kind = {} if subject.type == "AVRO" else {"schemaType": subject.type}
    return {"schema": text, **kind}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            found = answer(self.path)
        except ValueError:
            found = None
        status, content = 200, found
        if found is None:
            status, content = 404, {"error_code": 40403, "message": "Schema not found"}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", _MEDIA_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing."""


@contextmanager
def serve_registry(port: int) -> Iterator[None]:
    """Serve it on a port of this machine until the block ends.

    Raises:
        OSError: the port cannot be used.
    """
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
