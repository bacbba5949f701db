"""The command `browse`: a page of a store on this machine, or its facts as JSON."""

import argparse
import dataclasses
import json
import logging
from collections.abc import Callable
from threading import Event, Lock
from typing import Any, Final

from pyspark_timestream.core.instants import MINUTE_US, format_instant
from pyspark_timestream.core.serving import (
    Answer,
    PageServer,
    address_arguments,
    announce,
    answer_file,
    answer_sections,
    digest,
    read_seen,
    render_shell,
)
from pyspark_tseries.browse.look import Asked, StoreLook, parse_width
from pyspark_tseries.browse.page import (
    render_drawn,
    render_event,
    render_facts,
    render_list,
    render_refusal,
    render_search,
    render_trouble,
)
from pyspark_tseries.client.chart import LOCAL, find_zone
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.options import author_or_user
from pyspark_tseries.read.view import View
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.store import Store, now_us

_LOG: Final = logging.getLogger(__name__)

PAGES: Final = "the page is at /"
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    **address_arguments(4051),
    "--timezone": {
        "default": LOCAL,
        "metavar": "ZONE",
        "help": "an IANA name, or UTC; default: that of this machine",
    },
    "--json": {"action": "store_true", "help": "print what the store has once, as JSON"},
    "--principal": {"help": "who asks, if the store has a policy; default: the OS user"},
}
"""The arguments of the command."""

_PAUSE_MS: Final = 2_000
_KEPT: Final = 16
"""So many pages that were asked for last are kept, until the store has another commit."""


def browse(location: Location, asked: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or print JSON.

    Raises:
        NoSuchStore, UnusableStore, PermissionDenied: as `TimeSeries.open` and its queries.
        InvalidQuery: an unknown time zone.
        OSError: the port is not free.
    """
    look = StoreLook(location, author_or_user(asked.principal), find_zone(asked.timezone))
    store, view = look.open()
    listed = look.list_series(view, "", 0)
    if asked.json:
        facts = look.facts(store, now_us())
        told = {
            "store": facts.described,
            "commits": [
                [format_instant(minute * MINUTE_US), count] for minute, count in facts.commits
            ],
            "maintenance": facts.plan and dataclasses.asdict(facts.plan),
            "series": listed.rows.to_pylist(),
        }
        print(json.dumps(told, indent=2, default=lambda moment: moment.isoformat()))
        return 0
    server = PageServer(asked.host, asked.port, StorePage(look, now_us).answer, PAGES, "--port")
    print(announce(asked.host, server.port), flush=True)
    try:
        Event().wait()
    finally:
        server.close()
    return 0


class StorePage:
    """Answers requests for the page of a store, from any thread, and writes nothing.

    Args:
        look: what looks at the store.
        read_clock: returns the wall clock in microseconds.
    """

    def __init__(self, look: StoreLook, read_clock: Callable[[], int]) -> None:
        self._look, self._read_clock = look, read_clock
        self._lock = Lock()
        self._facts: tuple[Any, str] = (None, "")
        self._kept: dict[Any, dict[str, str]] = {}

    def answer(self, path: str, query: str) -> Answer | None:
        """Answer a request; None: there is no such page."""
        if path == "/":
            asked, (_, sections) = Asked.parse(query), self._render(query)
            within = "".join(
                f'<article id="{name}">{html}</article>' for name, html in sections.items()
            )
            shell = render_shell(
                f"Store {self._look.location.root}", "/", "browse.css", render_search(asked), within
            )
            return Answer("text/html; charset=utf-8", shell)
        if path == "/sections":
            return self._answer_sections(query)
        return answer_file(__package__, path.removeprefix("/"))

    def _answer_sections(self, query: str) -> Answer:
        seen, (is_whole, sections) = read_seen(query), self._render(query)
        digests = {name: digest(html) for name, html in sections.items()}
        if not is_whole:
            # What a client has stays, as long as the store cannot be read.
            digests = {name: seen[name] for name in _SECTIONS if name in seen} | digests
        return answer_sections(sections, digests, seen, self._read_clock(), _PAUSE_MS)

    def _render(self, query: str) -> tuple[bool, dict[str, str]]:
        """Return the sections, and whether these are all."""
        asked, width = Asked.parse(query), parse_width(query)
        with self._lock:
            try:
                store, view = self._look.open()
                now = self._read_clock()
                moment = store.id, store.version(), now // MINUTE_US
                if self._facts[0] != moment:
                    self._facts = moment, render_facts(self._look.facts(store, now))
                    self._kept.clear()
            except Exception as error:
                return False, {"store": render_trouble(self._tell(error))}
            sections = self._kept.get((asked, width))
            if sections is None:
                while len(self._kept) >= _KEPT:
                    del self._kept[next(iter(self._kept))]
                sections = self._kept[asked, width] = self._render_asked(store, view, asked, width)
            return True, {"store": self._facts[1], **sections}

    def _render_asked(self, store: Store, view: View, asked: Asked, width: int) -> dict[str, str]:
        look, values = self._look, view.snapshot.values

        def list_series() -> str:
            return render_list(look.list_series(view, asked.search, asked.start), asked, look.zone)

        def draw() -> str:
            return render_drawn(look.draw(view, asked, width), asked, values, look.zone)

        def tell_event() -> str:
            return render_event(look.versions(view, asked), asked, values, look.zone)

        sections = {"series": self._try("Series", list_series)}
        if asked.series is not None:
            sections["drawn"] = self._try(asked.series, draw)
            if asked.event is not None:
                sections["event"] = self._try(f"Event {asked.event:,}", tell_event)
        return sections

    def _try(self, heading: str, render: Callable[[], str]) -> str:
        try:
            return render()
        except Exception as error:
            return render_refusal(heading, self._tell(error))

    def _tell(self, error: Exception) -> str:
        if not isinstance(error, TseriesError):
            _LOG.debug("the page cannot show this", exc_info=error)
            return self._look.location.redact(f"{type(error).__name__}: {error}")
        return self._look.location.redact(str(error))


_SECTIONS: Final = ("store", "series", "drawn", "event")
"""The sections of the page, by their ids."""
