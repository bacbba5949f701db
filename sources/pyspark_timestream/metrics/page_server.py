"""A small HTTP server for the Prometheus page, from the standard library."""

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final

from pyspark_timestream.errors import compose_message
from pyspark_timestream.metrics.prometheus import CONTENT_TYPE

__all__ = ["PageServer"]

_LOG: Final = logging.getLogger(__name__)

_PATHS: Final = ("/", "/metrics")
_TIMEOUT_S: Final = 10.0
"""The time that a client may take for its request."""

_POLL_S: Final = 0.2
"""The time between two looks at whether the server is to close."""


class PageServer:
    """Serves one page at `/metrics`, from a thread that ends with the process.

    Args:
        host: the address to listen on.
        port: the port; 0: any free one.
        render: makes the page.

    Raises:
        OSError: the address cannot be listened on.

    Attributes:
        port: the port that it listens on.
    """

    def __init__(self, host: str, port: int, render: Callable[[], str]) -> None:
        try:
            self._server = _create_server(host, port, render)
        except (OSError, OverflowError) as error:
            raise OSError(
                compose_message(
                    f"port {port} of '{host}' cannot be listened on: {error}",
                    "a free port of this machine, or 0 for any",
                    "pass another one as TimeMetrics(port=...), or close the listener that has it",
                )
            ) from error
        self.port = int(self._server.server_address[1])
        serve = self._server.serve_forever
        Thread(target=serve, args=(_POLL_S,), name="timestream-metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _create_server(host: str, port: int, render: Callable[[], str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in _PATHS:
                self.send_error(404, "the page is /metrics")
                return
            try:
                page = render().encode("utf-8")
            except Exception:
                _LOG.exception("the page of TimeMetrics could not be rendered")
                self.send_error(500, "the log of the driver says why")
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page)

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            """Log nothing: a scrape every few seconds is no news."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Log nothing: the client has gone."""

    return Server((host, port), Handler)
