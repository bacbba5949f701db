"""Serves the page: the shell, its script and style, and the sections that have changed."""

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from threading import Condition, Lock
from typing import Any, Final
from urllib.parse import parse_qs

from pyspark_timestream.commands.explanation import read_operators
from pyspark_timestream.commands.watch.case_records import CaseRecords
from pyspark_timestream.commands.watch.follow import Case, ChainStore, QueryLog, QueryView
from pyspark_timestream.commands.watch.page import (
    NEEDS_SCRIPT,
    render_case,
    render_sections,
)
from pyspark_timestream.commands.watch.state_files import QueryState
from pyspark_timestream.errors import OptionError, TimestreamError
from pyspark_timestream.kafka.diagnosis.history import BatchReport
from pyspark_timestream.serving import (
    Response,
    answer_file,
    answer_sections,
    digest,
    read_seen,
    render_shell,
)

PAGES: Final = "the page is at /"
_PAUSE_MS: Final = 250
_WAIT_S: Final = 10.0
"""A request for sections waits this long for one that has changed."""

_PAUSES: Final = 333
"""Pause this many times as long as drawing takes: drawing takes at most 0.3 % of a core."""

_STALE_S: Final = 5.0
"""Draw again after this long without news: meanwhile a query may become quiet, or be forgotten."""

_LEAST_S: Final = 0.01

Views = tuple[QueryView, ...]


class LivePage:
    """Draws queries when somebody asks, and not too often; answers from any thread.

    Args:
        title: the heading of the page.
        read_clock: returns the wall clock in microseconds.
        take_views: returns the queries to show; it is called by one thread at a time.
        root: the path below which everything is; it ends in a slash.
        wait_s: how long a request may wait for a change.
        read_case: reads the records of a case, one case at a time; None: there are no samples.
        take_stores: returns the stores to show in a chain.
    """

    def __init__(
        self,
        title: str,
        read_clock: Callable[[], int],
        take_views: Callable[[], Sequence[QueryView]],
        *,
        root: str = "/",
        wait_s: float = _WAIT_S,
        read_case: Callable[[Case], CaseRecords] | None = None,
        take_stores: Callable[[], Sequence[ChainStore]] = tuple,
    ) -> None:
        self._title, self._read_clock, self._take_views = title, read_clock, take_views
        self._read_case, self._sampling = read_case, Lock()
        self._take_stores = take_stores
        self._root, self._wait_s = root, wait_s
        self._changed, self._drawing = Condition(), Lock()
        self._news = 0
        self._drawn: tuple[int, Views, dict[str, str], dict[str, str]] = (-1, (), {}, {})
        self._drawn_s = self._next_s = -inf
        self._stores: tuple[ChainStore, ...] = ()

    def note_news(self) -> None:
        """Wake the waiting requests: there may be something else to show."""
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    def answer(self, path: str, query: str) -> Response | None:
        """Answer a request; None: there is no such page."""
        if path in (self._root, self._root.rstrip("/")):
            shell = render_shell(self._title, self._root, "watch.css", within=NEEDS_SCRIPT)
            return Response("text/html; charset=utf-8", shell)
        if not path.startswith(self._root):
            return None
        name = path.removeprefix(self._root)
        match name:
            case "sections":
                return self._answer_sections(query)
            case "sample":
                return self._answer_case(query)
            case _:
                return answer_file(__package__, name)

    def _answer_case(self, query: str) -> Response | None:
        """Answer with the records of a case; only cases that are shown have a page."""
        parameters, (_, views, *_) = parse_qs(query), self._drawn
        try:
            (number,), (key,) = parameters["query"], parameters["case"]
            cases = [case for stream in views[int(number)].streams for case in stream.cases]
            case = next(case for case in cases if case.key == key)
        except (IndexError, KeyError, StopIteration, ValueError):
            return None
        if self._read_case is None:
            return None
        sample: CaseRecords | str
        with self._sampling:
            try:
                sample = self._read_case(case)
            except (OptionError, TimestreamError, OSError) as error:
                sample = str(error)
        return Response("text/html; charset=utf-8", render_case(case, sample, self._root))

    def _answer_sections(self, query: str) -> Response:
        old_digests, end_s = read_seen(query), time.monotonic() + self._wait_s
        while True:
            news, sections, digests = self._draw()
            left_s = end_s - time.monotonic()
            if digests != old_digests or left_s <= 0:
                break
            with self._changed:
                if self._news == news:
                    self._changed.wait(min(left_s, _STALE_S))
                else:
                    self._changed.wait_for(lambda: False, min(left_s, self._pause_s()))
        return answer_sections(sections, digests, old_digests, self._read_clock(), _PAUSE_MS)

    def _pause_s(self) -> float:
        return max(self._next_s - time.monotonic(), _LEAST_S)

    def _draw(self) -> tuple[int, dict[str, str], dict[str, str]]:
        """Return the number of the news that is drawn, the sections, and their digests.

        All requests share one drawing, and it is made only if there is something new.
        """
        with self._drawing:
            drawn, views, sections, digests = self._drawn
            now_s, news = time.monotonic(), self._news
            is_fresh = drawn == news and now_s < self._drawn_s + _STALE_S
            if is_fresh or now_s < self._next_s:
                return drawn, sections, digests
            began_s = time.thread_time()
            new_views, stores = tuple(self._take_views()), tuple(self._take_stores())
            if drawn < 0 or new_views != views or stores != self._stores:
                self._stores = stores
                sections = render_sections(new_views, self._read_case is not None, stores)
                digests = {name: digest(html) for name, html in sections.items()}
            self._drawn, self._drawn_s = (news, new_views, sections, digests), now_s
            pause_s = _PAUSES * (time.thread_time() - began_s)
            self._next_s = now_s + min(pause_s, _STALE_S)
            return news, sections, digests


class LiveQueries:
    """The live page of the queries of a session, from their progress.

    Args:
        read_clock: returns the wall clock in microseconds.
        keep_ended_us: how long an ended query is shown.
    """

    def __init__(self, read_clock: Callable[[], int], keep_ended_us: int) -> None:
        self._page = LivePage(
            "Time of this session's queries", read_clock, self._take_views, root="/watch/"
        )
        self._read_clock, self._keep_ended_us = read_clock, keep_ended_us
        self._lock = Lock()
        self._logs: dict[str, QueryLog] = {}
        self._ended_us: dict[str, int] = {}

    def add(self, progress: Mapping[str, Any], batch: BatchReport) -> None:
        """Take a query's report on a batch, or that it has nothing to do.

        `batch` is the result of `read_progress` for the progress.
        """
        query = str(progress["id"])
        took_ms = (progress.get("durationMs") or {}).get("triggerExecution") or 0
        with self._lock:
            log = self._logs.get(query)
            if log is None:
                log = self._logs[query] = QueryLog(str(progress.get("name") or query))
            self._ended_us.pop(query, None)
            log.add(int(progress["batchId"]), batch, batch.planned_us + int(took_ms) * 1_000)
            log.state = QueryState(read_operators(progress))
        self._page.note_news()

    def end(self, query: str) -> None:
        """Note that a query has ended."""
        with self._lock:
            self._ended_us[query] = self._read_clock()
        self._page.note_news()

    def answer(self, path: str, query: str) -> Response | None:
        """Answer a request; None: there is no such page."""
        return self._page.answer(path, query)

    def _take_views(self) -> list[QueryView]:
        now_us = self._read_clock()
        with self._lock:
            for query, ended_us in list(self._ended_us.items()):
                if now_us - ended_us > self._keep_ended_us:
                    self._logs.pop(query, None)
                    del self._ended_us[query]
            return [
                log.view(now_us, runs=query not in self._ended_us)
                for query, log in self._logs.items()
            ]
