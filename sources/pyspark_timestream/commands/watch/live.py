"""Serves the page: the shell, its script and style, and the sections that have changed."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

_PAUSE_MS: Final = 250
_WAIT_S: Final = 10.0
"""A request for sections waits this long for one that has changed."""

_PAUSES: Final = 333
"""Pause this many times as long as drawing takes: drawing takes at most 0.3 % of a core."""

_STALE_S: Final = 5.0
"""Draw again after this long without news: meanwhile a query may become quiet, or be forgotten."""

_LEAST_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The last drawing.

    Attributes:
        news: the number of the news that it shows; -1 before the first drawing.
        views: the queries in it.
        stores: the stores in it.
        sections: the page's sections, name -> HTML.
        digests: name of a section -> the digest of its HTML.
        drawn_s: when it was drawn.
    """

    news: int = -1
    views: tuple[QueryView, ...] = ()
    stores: tuple[ChainStore, ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    drawn_s: float = -inf


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
        self._title = title
        self._read_clock = read_clock
        self._take_views = take_views
        self._read_case = read_case
        self._sampling = Lock()
        self._take_stores = take_stores
        self._root = root
        self._wait_s = wait_s
        self._changed = Condition()
        self._drawing = Lock()
        self._news = 0
        self._drawn = _Drawing()
        self._next_s = -inf

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
        parameters, views = parse_qs(query), self._drawn.views
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
            drawn = self._draw()
            left_s = end_s - time.monotonic()
            if drawn.digests != old_digests or left_s <= 0:
                break
            with self._changed:
                shows_all_news = self._news == drawn.news
                if shows_all_news:
                    self._changed.wait(min(left_s, _STALE_S))
            if not shows_all_news:
                pause_s = max(self._next_s - time.monotonic(), _LEAST_S)
                time.sleep(min(left_s, pause_s))
        return answer_sections(
            drawn.sections, drawn.digests, old_digests, self._read_clock(), _PAUSE_MS
        )

    def _draw(self) -> _Drawing:
        """Return the present drawing: all requests share it, and news may have to wait."""
        with self._drawing:
            last, now_s, news = self._drawn, time.monotonic(), self._news
            is_fresh = last.news == news and now_s < last.drawn_s + _STALE_S
            if is_fresh or now_s < self._next_s:
                return last
            began_s = time.thread_time()
            views, stores = tuple(self._take_views()), tuple(self._take_stores())
            sections, digests = last.sections, last.digests
            if last.news < 0 or (views, stores) != (last.views, last.stores):
                sections = render_sections(views, self._read_case is not None, stores)
                digests = {name: digest(html) for name, html in sections.items()}
            self._drawn = _Drawing(news, views, stores, sections, digests, now_s)
            pause_s = _PAUSES * (time.thread_time() - began_s)
            self._next_s = now_s + min(pause_s, _STALE_S)
            return self._drawn


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
        self._read_clock = read_clock
        self._keep_ended_us = keep_ended_us
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
