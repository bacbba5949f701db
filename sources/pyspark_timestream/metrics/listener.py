"""`TimeMetrics`: the adapter between Spark's query events, the wall clock and the exporters."""

import json
import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_timestream.connector.instants import parse_duration
from pyspark_timestream.metrics.fold import (
    Limits,
    MetricsState,
    record_end,
    record_failure,
    record_idle,
    record_progress,
    record_start,
)
from pyspark_timestream.metrics.page_server import PageServer
from pyspark_timestream.metrics.prometheus import render_page
from pyspark_timestream.metrics.samples import Sample, list_samples
from pyspark_timestream.metrics.telemetry import register_instruments

__all__ = ["TimeMetrics"]

_LOG: Final = logging.getLogger(__name__)


class TimeMetrics(StreamingQueryListener):
    """Exports CTIs, lag and counters of running queries, to Prometheus and OpenTelemetry.

    `spark.streams.addListener(TimeMetrics(port=9464))` covers all queries of the session. It never
    fails a query: what it cannot read it counts, and logs once.

    Args:
        port: serve the Prometheus page at `http://HOST:PORT/metrics`; 0: any free port; None: serve
            none, and take it from `text()`.
        host: the address to listen on. The default is this machine only; the page has the names of
            topics, queries and writers.
        opentelemetry: True: export to OpenTelemetry's global meter provider (extra `metrics`); or
            the meter provider to export to.
        max_partitions: of each stream the partitions that are exported one by one (at least 1);
            all others are one, `(others)`.
        keep_ended: how long the last numbers of an ended query are shown, such as `1 minute`, so
            that the next scrape still sees them.

    Attributes:
        port: the port that serves the page; None: none does.

    Raises:
        MissingExtra: `opentelemetry`, and opentelemetry-api is not installed.
        OSError: the port is not free.
        ValueError: `max_partitions` or `keep_ended` is not as above.
    """

    def __init__(
        self,
        port: int | None = None,
        *,
        host: str = "127.0.0.1",
        opentelemetry: Any = False,
        max_partitions: int = 200,
        keep_ended: str = "1 minute",
    ) -> None:
        if max_partitions < 1:
            raise ValueError(f"max_partitions={max_partitions!r}: accepted is 1 or more")
        keep_us = parse_duration(keep_ended)
        if keep_us < 0:
            raise ValueError(f"keep_ended={keep_ended!r}: accepted is 0 or a positive duration")
        self._limits = Limits(max_partitions, keep_us)
        self._lock = Lock()
        self._state = MetricsState()
        self._told = set[str]()
        # A provider may be false by its own rules.
        if opentelemetry is not False and opentelemetry is not None:
            provider = None if opentelemetry is True else opentelemetry
            register_instruments(self._take_samples, provider)
        self._server = None if port is None else PageServer(host, port, self.text)
        self.port = None if self._server is None else self._server.port

    def text(self) -> str:
        """The Prometheus page of this moment, in text exposition format 0.0.4."""
        return render_page(self._take_samples())

    def close(self) -> None:
        """Stop serving the page; remove the listener from the session first."""
        server, self._server, self.port = self._server, None, None
        if server is not None:
            server.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Follow a query from its start."""
        self._update(
            lambda state: record_start(
                state, str(event.id), str(event.runId), event.name, _read_clock(), self._limits
            )
        )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the numbers of a batch."""

        def record(state: MetricsState) -> MetricsState:
            progress, now_us = json.loads(event.progress.json), _read_clock()
            try:
                state = record_progress(state, progress, now_us, self._limits)
            except Exception as error:
                # Without the findings, the numbers may still be readable.
                self._tell("the findings of a batch", error)
                state = record_failure(state)
                state = record_progress(state, progress, now_us, self._limits, explains=False)
            self._tell_limit(state)
            return state

        self._update(record)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that a query lives, and has nothing to do."""
        self._update(
            lambda state: record_idle(
                state, str(event.id), str(event.runId), _read_clock(), self._limits
            )
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget a query, a while after its end."""
        self._update(
            lambda state: record_end(
                state, str(event.id), str(event.runId), _read_clock(), self._limits
            )
        )

    def _take_samples(self) -> list[Sample]:
        return list(list_samples(self._state, _read_clock(), self._limits))

    def _update(self, change: Callable[[MetricsState], MetricsState]) -> None:
        """Replace the state; an exception in Spark's listener bus would help no one."""
        with self._lock:
            try:
                self._state = change(self._state)
            except Exception as error:
                self._state = record_failure(self._state)
                self._tell("an event", error)

    def _tell(self, what: str, error: Exception) -> None:
        if what not in self._told:
            self._told.add(what)
            _LOG.warning(
                "TimeMetrics could not read %s, and goes on without it; further ones are counted "
                "in timestream_listener_failures_total: %s: %s",
                what, type(error).__name__, error, exc_info=error,
            )  # fmt: skip

    def _tell_limit(self, state: MetricsState) -> None:
        cut = any(
            len(shown) >= self._limits.partitions
            and len(getattr(query.sources.get(place), "partitions", ())) > len(shown)
            for query in state.queries.values()
            for place, shown in query.shown.items()
        )
        if cut and "limit" not in self._told:
            self._told.add("limit")
            _LOG.warning(
                "TimeMetrics exports the first %d partitions of a stream one by one, and all "
                "others as one, '(others)'; next step: pass a larger max_partitions",
                self._limits.partitions,
            )


def _read_clock() -> int:
    return time.time_ns() // 1000
