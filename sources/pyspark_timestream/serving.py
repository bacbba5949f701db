"""Serves small pages of this machine over HTTP: it answers only `GET` and `HEAD`, and never writes.

A page is a shell with sections. Its script, `pages/page.js`, asks for sections that changed and
inserts them; `pages/page.css` styles all pages, and each page adds its own style. Attributes
`data-say` have the text that a screen reader says when it changes; other text may change each time
that a time grows older.

A page that listens on loopback answers only requests that name loopback as their host. Otherwise
any site could let its name stand for 127.0.0.1, and read the page through the user's browser.
"""

import errno
import ipaddress
import json
import logging
import socket
from collections.abc import Callable, Mapping
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Thread
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pyspark_timestream.errors import compose_message
from pyspark_timestream.report import to_html

_LOG: Final = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
"""How long a client may take for its request."""

_POLL_S: Final = 0.2
"""How often the server checks whether to close."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""A page shows names from topics: nothing in them may load or run anything. Error
answers carry these headers as well."""


_SHARED: Final = ("page.css", "page.js")
_FILES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}

ONLY_PAGE: Final = "the page is at /"
"""The `pages` of a server that has one."""


class Response(NamedTuple):
    """The answer of a page: its type, and its text."""

    content_type: str
    text: str


def answer_file(package: str, name: str) -> Response | None:
    """Answer with a style or script, shared by all pages or of the page's own package.

    None: there is no such file. `name` comes from a client, so it is compared, not opened.
    """
    content_type, root = _FILES.get(name.rpartition(".")[2]), files(package)
    if name in _SHARED:
        root = files(__package__) / "pages"
    elif name not in {file.name for file in root.iterdir()}:
        return None
    if content_type is None:
        return None
    return Response(content_type, (root / name).read_text(encoding="utf-8"))


def render_shell(title: str, root: str, style: str, before: str = "", within: str = "") -> str:
    """Return a page, which fetches its styles, script and sections from below the path `root`.

    Args:
        title: the heading.
        root: a path that ends in a slash.
        style: the name of the page's own style sheet.
        before: HTML between the heading and the sections.
        within: HTML in the place of the sections, until the script has fetched them.
    """
    body = (
        f'<h1>{to_html(title)}</h1>{before}<p id="lost" role="alert" hidden></p>'
        f'<p id="said" class="unseen" role="status"></p><main>{within}</main>'
    )
    return render_html(title, root, style, body, f'<script src="{root}page.js" defer></script>')


def render_html(title: str, root: str, style: str, body: str, script: str = "") -> str:
    """Return a page of the same looks; `body` and `script` are HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{to_html(title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="{root}page.css"><link rel="stylesheet" href="{root}{style}">'
        f'<link rel="icon" href="data:,">{script}</head><body>{body}</body></html>'
    )


def read_seen(query: str) -> dict[str, str]:
    """Return the digests of the sections that a client has; none if it does not tell."""
    try:
        digests = json.loads(parse_qs(query)["seen"][0])
        return {str(name): str(text) for name, text in digests.items()}
    except (AttributeError, KeyError, RecursionError, ValueError):
        return {}


def answer_sections(
    sections: Mapping[str, str],
    digests: Mapping[str, str],
    old_digests: Mapping[str, str],
    now_us: int,
    pause_ms: int,
) -> Response:
    """Answer with the sections that have changed; the client asks again after a pause."""
    changed = {
        name: html for name, html in sections.items() if old_digests.get(name) != digests[name]
    }
    answer = {"now_us": now_us, "pause_ms": pause_ms, "digests": digests, "sections": changed}
    return Response("application/json", json.dumps(answer))


def digest(html: str) -> str:
    """Return a short text that differs if the HTML does."""
    return sha256(html.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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
        OSError: the port is not free or not allowed, or the host is not an address of this machine.
    """

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[str, str], Response | None],
        pages: str,
        option: str,
    ) -> None:
        try:
            self._server = _create_server(host, port, answer, pages)
        except (OSError, OverflowError, TypeError) as error:  # A port that is not a whole number.
            problem = f"port {port} of '{host}' cannot be listened on: {error}"
            raise OSError(compose_message(problem, *_advise_on_address(error, option))) from error
        self.port = int(self._server.server_address[1])
        serve = self._server.serve_forever
        Thread(target=serve, args=(_POLL_S,), name="timestream-page", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _advise_on_address(error: Exception, option: str) -> tuple[str, str]:
    """Return the accepted addresses where one cannot be listened on, and the next step."""
    if isinstance(error, socket.gaierror) or getattr(error, "errno", 0) == errno.EADDRNOTAVAIL:
        return (
            "an address of this machine",
            "correct the host, or leave it out for this machine only",
        )
    if isinstance(error, PermissionError):
        return "a port that this user may have, or 0 for any", f"pass one from 1024 on as {option}"
    return (
        "a free port of this machine, or 0 for any",
        f"pass another one as {option}, or close the listener that has it",
    )


def announce(host: str, port: int) -> str:
    """Tell where a page is, and who can read it."""
    address = f"[{host}]" if ":" in host else host
    lines = [f"http://{address}:{port}/ shows it; Ctrl-C ends this"]
    if not is_loopback(host):
        lines.append("Note: everyone who reaches this address can read the page")
    return "\n".join(lines)


def address_arguments(port: int) -> dict[str, dict[str, Any]]:
    """Return the arguments of a command that serves a page; `port` is the default."""
    here = "the address to listen on; the default is this machine only"
    return {
        "--host": {"default": "127.0.0.1", "help": here},
        "--port": {"type": int, "default": port, "help": "the port; 0: any free one"},
    }


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address can only mean this machine.

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
    host: str, port: int, answer: Callable[[str, str], Response | None], pages: str
) -> ThreadingHTTPServer:
    only_here = is_loopback(host)

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S
        server_version, sys_version = "timestream", ""

        def do_GET(self) -> None:
            hosts = self.headers.get_all("Host") or ["localhost"]
            if only_here and not all(map(_names_loopback, hosts)):
                self.send_error(403, "this page is for this machine only")
                return
            path, _, query = self.path.partition("?")
            try:
                content = answer(path, query)
                page = b"" if content is None else content.text.encode("utf-8", "replace")
            except Exception:
                _LOG.exception("the page %s could not be rendered", path)
                self.send_error(500, "the log says why")
                return
            if content is None:
                self.send_error(404, pages)
                return
            self.send_response(200)
            self.send_header("Content-Type", content.content_type)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page)

        do_HEAD = do_GET

        def end_headers(self) -> None:
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def log_message(self, *arguments: object) -> None:
            """Log nothing, because requests come every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Log nothing: the client has gone."""

    return Server((host, port), Handler)
