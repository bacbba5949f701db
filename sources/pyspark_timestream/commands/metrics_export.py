"""`TimeMetrics` connects Spark's query events, the wall clock and the exporters.

OpenTelemetry asks one instrument after the other. They all answer from one snapshot until one of
them is asked again, so that a collection shows the numbers of one moment.
"""

import json
import logging
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_timestream.commands.metrics import (
    METRICS,
    Instrument,
    Metric,
    MetricsState,
    Sample,
    list_samples,
    record_end,
    record_failure,
    record_progress,
    record_start,
)
from pyspark_timestream.commands.watch.live import LiveQueries
from pyspark_timestream.core.instants import read_duration, read_whole_number
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import MissingExtra
from pyspark_timestream.kafka.diagnosis.history import read_progress
from pyspark_timestream.serving import PageServer, Response

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render_page(samples: Iterable[Sample]) -> str:
    """Render the page with `samples`, grouped by metric; leave out metrics without samples."""
    groups: dict[Metric, list[Sample]] = {metric: [] for metric in METRICS}
    for sample in samples:
        groups[sample.metric].append(sample)
    lines = []
    for metric, group in groups.items():
        if not group:
            continue
        name = metric.prometheus_name
        lines += [
            f"# HELP {name} {_escape(metric.description)}",
            f"# TYPE {name} {metric.instrument}",
            *(f"{name}{_render_labels(sample)} {sample.value!r}" for sample in group),
        ]
    return "".join(f"{line}\n" for line in lines)


def _render_labels(sample: Sample) -> str:
    escaped = ((name, _escape(str(text)).replace('"', r"\"")) for name, text in sample.attributes)
    labels = ",".join(f'{name.replace(".", "_")}="{text}"' for name, text in escaped)
    return f"{{{labels}}}" if labels else ""


def _escape(text: str) -> str:
    """Escape `text` for the format; `?` replaces half a surrogate pair, which UTF-8 lacks."""
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return encodable.replace("\\", r"\\").replace("\n", r"\n")


_LOG: Final = logging.getLogger(__name__)

_PATHS: Final = ("/", "/metrics")
_OPTION: Final = "TimeMetrics(port=...)"

_SCOPE = "pyspark_timestream"


def register_instruments(
    take_samples: Callable[[], Iterable[Sample]], meter_provider: Any = None
) -> None:
    """Create an observable instrument of OpenTelemetry for each metric; None: its global one."""
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise MissingExtra.create(
            "exporting OpenTelemetry metrics", "opentelemetry-api", "metrics", "the driver"
        ) from error
    meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
    snapshot = _Snapshot(take_samples)
    for metric in METRICS:
        create = (
            meter.create_observable_counter
            if metric.instrument is Instrument.COUNTER
            else meter.create_observable_gauge
        )
        create(
            metric.name,
            [_create_callback(metric, snapshot, metrics.Observation)],
            unit=metric.unit,
            description=metric.description,
        )


def _create_callback(metric: Metric, snapshot: "_Snapshot", observe: Any) -> Callable[[Any], Any]:
    def answer(options: object) -> list[Any]:
        return [
            observe(sample.value, dict(sample.attributes)) for sample in snapshot.answer(metric)
        ]

    return answer


class _Snapshot:
    """The samples of one collection."""

    def __init__(self, take_samples: Callable[[], Iterable[Sample]]) -> None:
        self._take_samples = take_samples
        self._lock = Lock()
        self._samples: dict[Metric, list[Sample]] = {}
        self._unasked: set[Metric] = set()

    def answer(self, metric: Metric) -> list[Sample]:
        """Return the samples of `metric`; asking again for a metric begins a new collection."""
        with self._lock:
            if metric not in self._unasked:
                self._samples = {}
                self._unasked = set(METRICS)
                for sample in self._take_samples():
                    self._samples.setdefault(sample.metric, []).append(sample)
            self._unasked.discard(metric)
            return self._samples.get(metric, [])


class TimeMetrics(StreamingQueryListener):
    """Exports CTIs, lag and counters of running queries, to Prometheus and OpenTelemetry.

    `spark.streams.addListener(TimeMetrics(port=9464))` covers all queries of the session. It never
    fails a query: it counts what it cannot read, and logs that once.

    Args:
        port: serve the Prometheus page at `http://HOST:PORT/metrics`; 0: any free port; None: serve
            none, and take it from `text()`.
        host: the address to listen on. The default is this machine only; the page has the names of
            topics, queries and writers.
        opentelemetry: True: export to OpenTelemetry's global meter provider (extra `metrics`); or
            the meter provider to export to.
        max_partitions: how many partitions of each stream are exported one by one (at least 1); all
            others are combined as `(others)`.
        keep_ended: how long the last numbers of an ended query are shown, such as `1 minute`, so
            that the next scrape still sees them.
        page: True: also serve the live page of the command `watch` at `http://HOST:PORT/watch`.

    Attributes:
        port: the port that serves the page; None: none does.

    Raises:
        MissingExtra: `opentelemetry`, and opentelemetry-api is not installed.
        OSError: the port is not free.
        ValueError: `max_partitions` or `keep_ended` is not as above; `page` without a `port`.
    """

    def __init__(
        self,
        port: int | None = None,
        *,
        host: str = "127.0.0.1",
        opentelemetry: Any = False,
        max_partitions: int = 200,
        keep_ended: str = "1 minute",
        page: bool = False,
    ) -> None:
        max_partitions = read_whole_number("max_partitions", max_partitions, at_least=1)
        keep_us = read_duration("keep_ended", keep_ended, "0 or a duration such as '1 minute'")
        if page and port is None:
            raise ValueError("page=True needs a port: pass port=0 for any free one")
        self._lock = Lock()
        self._page = LiveQueries(read_wall_clock, keep_us) if page else None
        self._state = MetricsState(max_partitions, keep_us)
        self._warned = set[str]()
        pages = "the pages are /metrics and /watch/" if page else "the page is /metrics"
        self._server = (
            None if port is None else PageServer(host, port, self._answer, pages, _OPTION)
        )
        self.port = None if self._server is None else self._server.port
        # Compare by identity, because a provider may be false by its own rules.
        if opentelemetry is not False and opentelemetry is not None:
            provider = None if opentelemetry is True else opentelemetry
            # After the port, which may be taken: nothing takes instruments back.
            try:
                register_instruments(self._take_samples, provider)
            except BaseException:
                self.close()
                raise

    def text(self) -> str:
        """Return the Prometheus page of this moment, in text exposition format 0.0.4."""
        return render_page(self._take_samples())

    def _answer(self, path: str, query: str) -> Response | None:
        if path in _PATHS:
            return Response(CONTENT_TYPE, self.text())
        return None if self._page is None else self._page.answer(path, query)

    def close(self) -> None:
        """Stop serving the page; remove the listener from the session first."""
        server, self._server, self.port = self._server, None, None
        if server is not None:
            server.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Follow a query from its start."""
        self._record_start(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the numbers of a batch."""

        def record(state: MetricsState) -> MetricsState:
            progress, now_us = json.loads(event.progress.json), read_wall_clock()
            batch = read_progress(progress)
            try:
                state = record_progress(state, progress, now_us, batch=batch)
            except Exception as error:
                # Try again without the diagnoses: the numbers themselves may be readable.
                self._warn("the diagnoses of a batch", error)
                state = record_failure(state)
                state = record_progress(state, progress, now_us, batch=batch, explains=False)
            self._warn_of_limit(state)
            return self._change_page(state, lambda page: page.add(progress, batch))

        self._update(record)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that a query runs but has nothing to do."""
        self._record_start(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Note that a query has ended; forget it a while later."""

        def record(state: MetricsState) -> MetricsState:
            query, run = _identify(event)
            state = record_end(state, query, run, read_wall_clock())
            return self._change_page(state, lambda page: page.end(query))

        self._update(record)

    def _record_start(self, event: QueryStartedEvent | QueryIdleEvent) -> None:
        name = getattr(event, "name", None)
        self._update(lambda state: record_start(state, *_identify(event), name, read_wall_clock()))

    def _change_page(
        self, state: MetricsState, change: Callable[[LiveQueries], None]
    ) -> MetricsState:
        """Change the live page; return the state, in which a failure of the page counts."""
        try:
            if self._page is not None:
                change(self._page)
        except Exception as error:
            self._warn("an event for the live page", error)
            return record_failure(state)
        return state

    def _take_samples(self) -> list[Sample]:
        return list(list_samples(self._state, read_wall_clock()))

    def _update(self, change: Callable[[MetricsState], MetricsState]) -> None:
        """Replace the state, and log exceptions, which nobody sees in Spark's listener bus."""
        with self._lock:
            try:
                self._state = change(self._state)
            except Exception as error:
                self._state = record_failure(self._state)
                self._warn("an event", error)

    def _warn(self, subject: str, error: Exception) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            _LOG.warning(
                "TimeMetrics could not read %s, and goes on without it; further ones are counted "
                "in timestream_listener_failures_total: %s: %s",
                subject, type(error).__name__, error, exc_info=error,
            )  # fmt: skip

    def _warn_of_limit(self, state: MetricsState) -> None:
        is_aggregated = any(query.is_aggregated for query in state.queries.values())
        if is_aggregated and "limit" not in self._warned:
            self._warned.add("limit")
            _LOG.warning(
                "TimeMetrics exports the first %d partitions of a stream one by one, and all "
                "others as one, '(others)'; next step: pass a larger max_partitions",
                state.max_partitions,
            )


def _identify(event: Any) -> tuple[str, str]:
    return str(event.id), str(event.runId)
