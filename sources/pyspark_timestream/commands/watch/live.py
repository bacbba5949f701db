"""The page as it is served: the shell, its script and style, and the sections that have changed."""

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Any, Final

from pyspark_timestream.commands.waiting_state import read_operators
from pyspark_timestream.commands.watch.follow import QueryLog, QueryView
from pyspark_timestream.commands.watch.page import NEEDS_SCRIPT, render_sections
from pyspark_timestream.core.serving import (
    Answer,
    answer_file,
    answer_sections,
    digest,
    read_seen,
    render_shell,
)
from pyspark_timestream.kafka.diagnosis.history import read_progress

PAGES: Final = "the page is at /"
_PAUSE_MS: Final = 250
_WAIT_S: Final = 10.0
"""A request for sections waits this long for one that has changed."""


class LivePage:
    """Holds what was last seen of queries, and answers requests for it from any thread.

    Args:
        title: the heading of the page.
        read_clock: returns the wall clock in microseconds.
        root: the path below which everything is; it ends in a slash.
        wait_s: how long a request may wait for a change.
    """

    def __init__(
        self,
        title: str,
        read_clock: Callable[[], int],
        root: str = "/",
        wait_s: float = _WAIT_S,
    ) -> None:
        self._title, self._read_clock = title, read_clock
        self._root, self._wait_s = root, wait_s
        self._changed = Condition()
        self._views: tuple[QueryView, ...] = ()
        self._rendered: tuple[tuple[QueryView, ...], dict[str, str], dict[str, str]] | None = None

    def publish(self, views: Sequence[QueryView]) -> None:
        """Show these queries from now on."""
        with self._changed:
            self._views = tuple(views)
            self._changed.notify_all()

    def answer(self, path: str, query: str) -> Answer | None:
        """Answer a request; None: there is no such page."""
        if path in (self._root, self._root.rstrip("/")):
            shell = render_shell(self._title, self._root, "watch.css", within=NEEDS_SCRIPT)
            return Answer("text/html; charset=utf-8", shell)
        if not path.startswith(self._root):
            return None
        name = path.removeprefix(self._root)
        return (
            self._answer_sections(query) if name == "sections" else answer_file(__package__, name)
        )

    def _answer_sections(self, query: str) -> Answer:
        seen, end_s = read_seen(query), time.monotonic() + self._wait_s
        with self._changed:
            while True:
                sections, digests = self._render()
                left_s = end_s - time.monotonic()
                if digests != seen or left_s <= 0:
                    break
                self._changed.wait(left_s)
        return answer_sections(sections, digests, seen, self._read_clock(), _PAUSE_MS)

    def _render(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the sections and their digests, which are made once for each of the views."""
        if self._rendered is None or self._rendered[0] != self._views:
            sections = render_sections(self._views)
            digests = {name: digest(html) for name, html in sections.items()}
            self._rendered = self._views, sections, digests
        return self._rendered[1:]


class LiveQueries:
    """The live page of the queries of a session, from their progress.

    Args:
        read_clock: returns the wall clock in microseconds.
        keep_ended_us: how long an ended query is shown.
    """

    def __init__(self, read_clock: Callable[[], int], keep_ended_us: int) -> None:
        self._page = LivePage("Time of this session's queries", read_clock, "/watch/")
        self._read_clock, self._keep_ended_us = read_clock, keep_ended_us
        self._logs: dict[str, QueryLog] = {}
        self._ended_us: dict[str, int] = {}

    def add(self, progress: Mapping[str, Any]) -> None:
        """Take what a query reports of a batch, or that it has nothing to do."""
        query = str(progress["id"])
        log = self._logs.get(query)
        if log is None:
            log = self._logs[query] = QueryLog(str(progress.get("name") or query))
        self._ended_us.pop(query, None)
        batch = read_progress(progress)
        took_ms = (progress.get("durationMs") or {}).get("triggerExecution") or 0
        log.add(int(progress["batchId"]), batch, batch.planned_us + int(took_ms) * 1_000)
        log.state = read_operators(progress)
        self._publish()

    def end(self, query: str) -> None:
        """Note that a query has ended."""
        self._ended_us[query] = self._read_clock()
        self._publish()

    def answer(self, path: str, query: str) -> Answer | None:
        """Answer a request; None: there is no such page."""
        return self._page.answer(path, query)

    def _publish(self) -> None:
        now_us = self._read_clock()
        for query, ended_us in list(self._ended_us.items()):
            if now_us - ended_us > self._keep_ended_us:
                self._logs.pop(query, None)
                del self._ended_us[query]
        self._page.publish(
            [
                log.view(now_us, runs=query not in self._ended_us)
                for query, log in self._logs.items()
            ]
        )
