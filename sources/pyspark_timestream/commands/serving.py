"""Serves small pages of this machine over HTTP: to `GET` and `HEAD` alone, and nothing is written.

A page that listens on loopback answers only requests that name loopback as their host. Otherwise
any site could let its name stand for 127.0.0.1, and read the page through the user's browser.
"""

import ipaddress
import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pyspark_timestream.errors import compose_message

_LOG: Final = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
"""How long a client may take for its request."""

_POLL_S: Final = 0.2
"""How often the server checks whether to close."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""A page shows names from topics: nothing in them may load or run anything."""


class Answer(NamedTuple):
    """What a page answers: its type, and its text."""

    content_type: str
    text: str


class PageServer:
    """Answers requests in threads of its own, which end with the process.

    Args:
        host: the address to listen on.
        port: the port; 0: any free one.
        answer: returns the answer to a path and its query; None: there is no such page.
        pages: the paths that there are, for the message to a client that asks for another.
        option: how the user gives a port, for the message that this one is not free.

    Attributes:
        port: the port that it listens on.

    Raises:
        OSError: the port is not free.
    """

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[str, str], Answer | None],
        pages: str,
        option: str,
    ) -> None:
        try:
            self._server = _create_server(host, port, answer, pages)
        except (OSError, OverflowError) as error:
            raise OSError(
                compose_message(
                    f"port {port} of '{host}' cannot be listened on: {error}",
                    "a free port of this machine, or 0 for any",
                    f"pass another one as {option}, or close the listener that has it",
                )
            ) from error
        self.port = int(self._server.server_address[1])
        serve = self._server.serve_forever
        Thread(target=serve, args=(_POLL_S,), name="timestream-page", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def is_loopback(host: str) -> bool:
    """Return whether a name or address of a host is that of this machine alone.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names_loopback(header: str) -> bool:
    """Return whether the header `Host` of a request names this machine."""
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False


def _create_server(
    host: str, port: int, answer: Callable[[str, str], Answer | None], pages: str
) -> ThreadingHTTPServer:
    only_here = is_loopback(host)

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            if only_here and not _names_loopback(self.headers.get("Host", "localhost")):
                self.send_error(403, "this page is for this machine only")
                return
            path, _, query = self.path.partition("?")
            try:
                found = answer(path, query)
                page = b"" if found is None else found.text.encode("utf-8", "replace")
            except Exception:
                _LOG.exception("the page %s could not be rendered", path)
                self.send_error(500, "the log says why")
                return
            if found is None:
                self.send_error(404, pages)
                return
            self.send_response(200)
            self.send_header("Content-Type", found.content_type)
            self.send_header("Content-Length", str(len(page)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page)

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            """Log nothing, because requests come every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Log nothing: the client has gone."""

    return Server((host, port), Handler)
