"""The metrics of `TimeMetrics`: folds Spark's reports on its queries, and makes samples of them.

The keys of a source's report show if it belongs to this package; other sources have no numbers.

Each event gives a new frozen state, so one rendering shows the numbers of one moment. The newest
batch of each query counts, in any order of reports; two batches are kept, because some diagnoses
compare them. A query keeps its id, and so its numbers, over a restart.

Metrics are declared here once: names, units and meanings. Names are OpenTelemetry's. A Prometheus
page shows them as OpenTelemetry's own exporter would: dots become underscores, a unit is appended
unless it is an annotation such as `{event}`, and a counter ends in `_total`.

The state is bounded. A query is forgotten a while after its end. The first partitions that a query
reports are exported one by one, up to a limit, and stay the same ones, so that no counter goes
back; all others are combined into one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pyspark_timestream.commands.explanation import read_operators
from pyspark_timestream.core.instants import FINAL_US, SECOND_US, parse_instant
from pyspark_timestream.kafka.diagnosis.causes import diagnose
from pyspark_timestream.kafka.diagnosis.diagnoses import HEALTHY_KINDS, NEXT_STEPS, Diagnosis
from pyspark_timestream.kafka.diagnosis.history import (
    BatchReport,
    History,
    build_histories,
    read_progress,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import max_known, min_cti


class Instrument(StrEnum):
    """The kinds of metrics; the values are Prometheus' names of them."""

    COUNTER = "counter"
    GAUGE = "gauge"


_UNIT_WORDS: Final = {"s": "seconds", "By": "bytes"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name and unit (in UCUM) are OpenTelemetry's, its attributes are in order."""

    name: str
    unit: str
    instrument: Instrument
    attributes: tuple[str, ...]
    description: str

    @property
    def prometheus_name(self) -> str:
        """The name on a Prometheus page.

        >>> Metric("a.b", "s", Instrument.COUNTER, (), "").prometheus_name
        'a_b_seconds_total'
        """
        words = [self.name.replace(".", "_")]
        if self.unit in _UNIT_WORDS:
            words.append(_UNIT_WORDS[self.unit])
        if self.instrument is Instrument.COUNTER:
            words.append("total")
        return "_".join(words)


_QUERY = ("query.name", "query.id")
_STREAM = (*_QUERY, "source")
_PARTITION = (*_STREAM, "topic", "partition")


def _gauge(name: str, unit: str, attributes: tuple[str, ...], description: str) -> Metric:
    return Metric(name, unit, Instrument.GAUGE, attributes, description)


def _count(name: str, unit: str, attributes: tuple[str, ...], description: str) -> Metric:
    return Metric(name, unit, Instrument.COUNTER, attributes, description)


class ListenerMetrics:
    """Metrics of the listener itself."""

    FAILURES: Final = _count("timestream.listener.failures", "{failure}", (),
        "Events of Spark that the listener could not read; its log has the first")  # fmt: skip


class QueryMetrics:
    """Metrics of a query."""

    ACTIVE: Final = _gauge("timestream.query.active", "{query}", _QUERY,
        "1 while the query runs, 0 for a while after its end")  # fmt: skip
    REPORT_AGE: Final = _gauge("timestream.query.report.age", "s", _QUERY,
        "Time since the query last reported a batch, or that it has nothing to do")  # fmt: skip
    WATERMARK: Final = _gauge("timestream.query.watermark.time", "s", _QUERY,
        "Spark's watermark as Unix time; absent before the first")  # fmt: skip
    STATE_ROWS: Final = _gauge("timestream.query.state.rows", "{row}", (*_QUERY, "operator"),
        "Rows in the state of an operator, which wait for a later CTI")  # fmt: skip
    STATE_MEMORY: Final = _gauge("timestream.query.state.memory", "By", (*_QUERY, "operator"),
        "Memory that the state of an operator uses")  # fmt: skip


class StreamMetrics:
    """Metrics of one source of a query: a stream of a Kafka topic, or a clock."""

    CTI: Final = _gauge(
        "timestream.stream.cti.time", "s", _STREAM,
        "The CTI of the stream as Unix time; absent before the first and after a final one",
    )  # fmt: skip
    CTI_AGE: Final = _gauge("timestream.stream.cti.age", "s", _STREAM,
        "The wall clock minus the CTI of the stream; negative: the CTI is ahead")  # fmt: skip
    CTI_SPREAD: Final = _gauge("timestream.stream.cti.spread", "s", _STREAM,
        "The greatest CTI of a partition minus the CTI of the stream")  # fmt: skip
    ENDED: Final = _gauge("timestream.stream.ended", "{stream}", _STREAM,
        "1 if the stream has delivered its end, else 0")  # fmt: skip
    WARNINGS: Final = _gauge("timestream.stream.warnings", "{warning}", _STREAM,
        "Active warnings; explain_time has their texts")  # fmt: skip
    FINDING: Final = _gauge(
        "timestream.stream.finding", "{finding}",
        (*_STREAM, "reason", "topic", "partition", "writer"),
        "1 for each reason that explain_time gives, and each partition and writer that it names",
    )  # fmt: skip
    CHANGE: Final = _gauge(
        "timestream.stream.change", "{change}",
        (*_STREAM, "batch", "cti", "option", "from", "to"),
        "1 for each option of the last changes of a running clock: the first batch by the new "
        "value, the CTI of the stream there, and both values, empty where none was set",
    )  # fmt: skip
    MALFORMED_VALUES: Final = _count(
        "timestream.stream.values.malformed", "{record}", (*_STREAM, "reason"),
        "Records whose value or key cannot be read, by reason",
    )  # fmt: skip
    AGGREGATED: Final = _gauge("timestream.stream.partitions.aggregated", "{partition}", _STREAM,
        "Partitions past the limit, which are exported as one, '(others)'")  # fmt: skip


class PartitionMetrics:
    """Metrics of one partition of a stream."""

    CTI: Final = _gauge(
        "timestream.partition.cti.time", "s", _PARTITION,
        "The CTI of the partition as Unix time; absent before the first and after a final one",
    )  # fmt: skip
    CTI_AGE: Final = _gauge("timestream.partition.cti.age", "s", _PARTITION,
        "The wall clock minus the CTI of the partition")  # fmt: skip
    EVENT_AGE: Final = _gauge("timestream.partition.event.age", "s", _PARTITION,
        "The wall clock minus the time of the last well-formed event that was read")  # fmt: skip
    LAG: Final = _gauge("timestream.partition.lag", "{record}", _PARTITION,
        "Offsets from the beginning of the last batch to the end of the log")  # fmt: skip
    IDLE: Final = _gauge("timestream.partition.idle", "{partition}", _PARTITION,
        "1 if the partition is idle and holds nothing back, else 0")  # fmt: skip
    BLOCKING: Final = _gauge(
        "timestream.partition.blocking", "{partition}", _PARTITION,
        "1 if the stream waits for the partition: it has no CTI, or others are ahead; else 0",
    )  # fmt: skip
    EVENTS: Final = _count("timestream.partition.events", "{event}", _PARTITION,
        "Events that were read")  # fmt: skip
    LATE: Final = _count("timestream.partition.events.late", "{event}", (*_PARTITION, "outcome"),
        "Late events, by outcome: dropped, adjusted or flagged")  # fmt: skip
    MALFORMED: Final = _count("timestream.partition.events.malformed", "{event}", _PARTITION,
        "Events whose time cannot be read, although they have a value")  # fmt: skip
    TOMBSTONES: Final = _count("timestream.partition.events.tombstones", "{event}", _PARTITION,
        "Events without the value in which their time would be")  # fmt: skip
    FUTURE: Final = _count("timestream.partition.events.future", "{event}", _PARTITION,
        "Events in the future of their record, by `maxFuture`")  # fmt: skip
    OUTSIDE: Final = _count("timestream.partition.events.outside", "{event}", _PARTITION,
        "Events left out since they lie outside the window of a replay")  # fmt: skip
    MALFORMED_VALUES: Final = _count(
        "timestream.partition.values.malformed", "{record}", _PARTITION,
        "Records whose value or key cannot be read",
    )  # fmt: skip
    CTIS: Final = _count("timestream.partition.ctis", "{cti}", _PARTITION,
        "CTIs that took effect")  # fmt: skip
    IGNORED_CTIS: Final = _count("timestream.partition.ctis.ignored", "{cti}", _PARTITION,
        "Marks that were ignored")  # fmt: skip


class ClockMetrics:
    """Metrics of a simulated clock."""

    BEHIND: Final = _gauge("timestream.clock.ticks.behind", "{tick}", _STREAM,
        "Ticks that are due and not delivered")  # fmt: skip
    SKIPPED: Final = _count("timestream.clock.ticks.skipped", "{tick}", _STREAM,
        "Ticks that overflow = skip left out")  # fmt: skip


class SubscriptionMetrics:
    """Metrics of a subscription to a store."""

    COMMIT: Final = _gauge("tseries.subscription.commit", "{commit}", _STREAM,
        "The commit up to which everything is delivered")  # fmt: skip
    MISSED: Final = _count("tseries.subscription.events.missed", "{event}", _STREAM,
        "Events that compaction had removed before they were delivered")  # fmt: skip


_GROUPS: Final = (
    ListenerMetrics,
    QueryMetrics,
    StreamMetrics,
    PartitionMetrics,
    ClockMetrics,
    SubscriptionMetrics,
)

METRICS: Final[tuple[Metric, ...]] = tuple(
    metric for group in _GROUPS for metric in vars(group).values() if isinstance(metric, Metric)
)
"""All metrics, in the order of a page."""

COUNTER_METRICS: Final[dict[str, tuple[Metric, tuple[tuple[str, str], ...]]]] = {
    "events": (PartitionMetrics.EVENTS, ()),
    "dropped": (PartitionMetrics.LATE, (("outcome", "dropped"),)),
    "adjusted": (PartitionMetrics.LATE, (("outcome", "adjusted"),)),
    "flagged": (PartitionMetrics.LATE, (("outcome", "flagged"),)),
    "malformed": (PartitionMetrics.MALFORMED, ()),
    "tombstones": (PartitionMetrics.TOMBSTONES, ()),
    "future": (PartitionMetrics.FUTURE, ()),
    "outside": (PartitionMetrics.OUTSIDE, ()),
    "ctis": (PartitionMetrics.CTIS, ()),
    "ignoredCtis": (PartitionMetrics.IGNORED_CTIS, ()),
}
"""Each counter in a partition's progress -> its metric, and additional attributes for it."""


MAX_NAMED: Final = 20
"""Name this many partitions and writers per diagnosis; combine the others as `(others)`."""

OTHERS: Final = "(others)"
"""The topic, partition and writer of a sample that combines several."""

_KAFKA_KEYS: Final = {"cti", "endOfStream", "partitions"}
_CLOCK_KEYS: Final = {"cti", "endOfStream", "nextTick", "skipped", "ticksBehind"}
_SUBSCRIPTION_KEYS: Final = {"commit", "initial", "missed"}
_AGES: Final = (StreamMetrics.CTI_AGE, PartitionMetrics.CTI_AGE, PartitionMetrics.EVENT_AGE)

_MAX_ENDED_RUNS: Final = 100
"""Remember this many ended runs, so that a report that arrives after its run's end is ignored."""

_KEPT_BATCHES: Final = 2

Attributes = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One number of a metric at one moment.

    Samples in the state lack the attributes of the query, and have an instant instead of the age
    since it.
    """

    metric: Metric
    attributes: Attributes
    value: int | float


@dataclass(frozen=True, slots=True)
class QueryNumbers:
    """One query: its ids, which a restart keeps, its times on the wall clock, and its numbers.

    `batches` are the last batches by the number and time of their progress, and `newest` is the
    greatest of these keys. By the index of each source, `sources` has its numbers, `diagnosed` the
    samples from its offsets, and `exported` the partitions that are exported one by one.
    """

    query: str
    run: str
    name: str | None
    reported_us: int
    ended_us: int | None = None
    newest: tuple[int, str] | None = None
    batches: tuple[tuple[tuple[int, str], BatchReport], ...] = ()
    own: tuple[Sample, ...] = ()
    sources: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict)
    diagnosed: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict)
    exported: Mapping[int, frozenset[Partition]] = field(default_factory=dict)

    @property
    def is_aggregated(self) -> bool:
        """Whether a stream has more partitions than are exported one by one."""
        samples = (sample for source in self.sources.values() for sample in source)
        return any(sample.metric is StreamMetrics.AGGREGATED and sample.value for sample in samples)


@dataclass(frozen=True, slots=True)
class MetricsState:
    """All queries of a session by their ids, in the order of their starts, and the last ended runs.

    At most `max_partitions` partitions are exported one by one, and ended queries for
    `keep_ended_us`. `failures` counts the events that could not be read.
    """

    max_partitions: int = 200
    keep_ended_us: int = 60 * SECOND_US
    queries: Mapping[str, QueryNumbers] = field(default_factory=dict)
    ended_runs: tuple[str, ...] = ()
    failures: int = 0


# -- the numbers of a source -----------------------------------------------------------------------


class _Numbers(NamedTuple):
    """One partition at the start of the last batch, or several combined."""

    cti_us: int | None
    lag: int
    idle: bool
    blocking: bool
    counts: Mapping[str, int]


def _list_clock(report: Mapping[str, Any]) -> Iterator[Sample]:
    yield from _list_cti(StreamMetrics.CTI, StreamMetrics.CTI_AGE, (), _read_instant(report["cti"]))
    yield Sample(StreamMetrics.ENDED, (), int(report["endOfStream"]))
    yield Sample(ClockMetrics.BEHIND, (), int(report["ticksBehind"]))
    yield Sample(ClockMetrics.SKIPPED, (), int(report["skipped"]))


def _list_subscription(report: Mapping[str, Any]) -> Iterator[Sample]:
    if report["commit"] is not None:
        yield Sample(SubscriptionMetrics.COMMIT, (), int(report["commit"]))
    yield Sample(SubscriptionMetrics.MISSED, (), int(report["missed"] or 0))


def _list_stream(
    report: Mapping[str, Any], entries: Mapping[Partition, Any], exported: frozenset[Partition]
) -> Iterator[Sample]:
    """Yield the numbers of a stream of a Kafka topic; `entries` are its partitions' reports."""
    cti_us = _read_instant(report["cti"])
    ctis = {partition: _read_instant(entry["cti"]) for partition, entry in entries.items()}
    greatest = max_known(*ctis.values())
    yield from _list_cti(StreamMetrics.CTI, StreamMetrics.CTI_AGE, (), cti_us)
    if cti_us is not None and greatest is not None and greatest < FINAL_US:
        yield Sample(StreamMetrics.CTI_SPREAD, (), max(greatest - cti_us, 0) / SECOND_US)
    yield Sample(StreamMetrics.ENDED, (), int(report["endOfStream"]))
    yield Sample(StreamMetrics.WARNINGS, (), len(report.get("warnings") or ()))
    for change in report.get("changes") or ():
        yield from _list_change(change)
    yield from _list_malformed(entries)
    numbers = _number_partitions(cti_us, ctis, entries)
    for partition in sorted(numbers.keys() & exported):
        yield from _list_partition(_name_partition(partition), numbers[partition])
    others = [numbers[partition] for partition in numbers.keys() - exported]
    yield Sample(StreamMetrics.AGGREGATED, (), len(others))
    if others:
        yield from _list_partition(_name_partition(None), _merge_partitions(others))


def _list_malformed(entries: Mapping[Partition, Any]) -> Iterator[Sample]:
    # Include zeros, because an alert watches how a counter grows.
    reasons = Counter(dict.fromkeys(NEXT_STEPS, 0))
    for entry in entries.values():
        reasons.update(entry["malformedValues"])
    del reasons["total"]
    for reason, count in reasons.items():
        yield Sample(StreamMetrics.MALFORMED_VALUES, (("reason", reason),), count)


def _number_partitions(
    cti_us: int | None,
    ctis: Mapping[Partition, int | None],
    entries: Mapping[Partition, Any],
) -> dict[Partition, _Numbers]:
    """Return the numbers of each partition; the stream waits for the least of the active CTIs."""
    active_ctis = {
        partition: ctis[partition] for partition, entry in entries.items() if not entry["idle"]
    }
    least, greatest = min_cti(active_ctis.values()), max_known(*ctis.values())
    is_final = cti_us is not None and cti_us >= FINAL_US
    is_waiting = not is_final and (least is None or greatest is None or least < greatest)
    return {
        partition: _Numbers(
            ctis[partition],
            int(entry["lag"]),
            bool(entry["idle"]),
            is_waiting and partition in active_ctis and active_ctis[partition] == least,
            {
                "values": int(entry["malformedValues"]["total"]),
                **{name: int(entry.get(name, 0)) for name in COUNTER_METRICS},
            },
        )
        for partition, entry in entries.items()
    }


def _list_change(change: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield a sample for each option of a change of the clock (semantics 8.10)."""
    old, new = change["from"], change["to"]
    attributes = ("batch", str(change["batch"])), ("cti", change["cti"] or "")
    for name in sorted({*old, *new}):
        values = ("from", old.get(name, "")), ("to", new.get(name, ""))
        yield Sample(StreamMetrics.CHANGE, (*attributes, ("option", name), *values), 1)


def _merge_partitions(partitions: Sequence[_Numbers]) -> _Numbers:
    """Combine several partitions: add up counts, and take the least CTI of those not idle."""
    holding = [numbers for numbers in partitions if not numbers.idle] or partitions
    return _Numbers(
        min_cti(numbers.cti_us for numbers in holding),
        sum(numbers.lag for numbers in partitions),
        all(numbers.idle for numbers in partitions),
        any(numbers.blocking for numbers in partitions),
        {
            name: sum(numbers.counts[name] for numbers in partitions)
            for name in partitions[0].counts
        },
    )


def _list_partition(attributes: Attributes, numbers: _Numbers) -> Iterator[Sample]:
    yield from _list_cti(PartitionMetrics.CTI, PartitionMetrics.CTI_AGE, attributes, numbers.cti_us)
    yield Sample(PartitionMetrics.LAG, attributes, numbers.lag)
    yield Sample(PartitionMetrics.IDLE, attributes, int(numbers.idle))
    yield Sample(PartitionMetrics.BLOCKING, attributes, int(numbers.blocking))
    for name, (metric, further) in COUNTER_METRICS.items():
        yield Sample(metric, (*attributes, *further), numbers.counts[name])
    yield Sample(PartitionMetrics.MALFORMED_VALUES, attributes, numbers.counts["values"])


def _name_partition(partition: Partition | None) -> Attributes:
    topic, number = (OTHERS, OTHERS) if partition is None else partition
    return ("topic", topic), ("partition", str(number))


def _list_cti(
    metric: Metric, age: Metric, attributes: Attributes, instant_us: int | None
) -> Iterator[Sample]:
    """Yield the samples of an instant and its age; none for a final CTI, which is not a time."""
    if instant_us is not None and instant_us < FINAL_US:
        yield Sample(metric, attributes, instant_us / SECOND_US)
        yield Sample(age, attributes, instant_us)


def _read_instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)


# -- what the offsets say --------------------------------------------------------------------------


def _list_diagnosed(history: History, exported: frozenset[Partition]) -> Iterator[Sample]:
    """Yield the diagnoses of `explain_time` as samples, and the times of the last events."""
    for diagnosis in diagnose(history):
        if diagnosis.kind not in HEALTHY_KINDS:
            causes = list(_list_causes(diagnosis))
            if len(causes) > MAX_NAMED:
                causes[MAX_NAMED:] = [_name_partition(None)]
            for attributes in causes:
                yield Sample(
                    StreamMetrics.FINDING, (("reason", str(diagnosis.kind)), *attributes), 1
                )
    times_us = {partition: clock.last_us for partition, clock in history[-1].clocks.items()}
    others_us = min_cti(us for partition, us in times_us.items() if partition not in exported)
    for partition, us in (
        *((partition, times_us.get(partition)) for partition in exported),
        (None, others_us),
    ):
        if us is not None and us < FINAL_US:
            yield Sample(PartitionMetrics.EVENT_AGE, _name_partition(partition), us)


def _list_causes(diagnosis: Diagnosis) -> Iterator[Attributes]:
    """Yield attributes for each partition and writer that a diagnosis names, or else empty ones."""
    for partition, writer in sorted(diagnosis.writers):
        yield (*_name_partition(partition), ("writer", writer))
    for partition in sorted(
        diagnosis.partitions - {partition for partition, _ in diagnosis.writers}
    ):
        yield _name_partition(partition)
    if not diagnosis.partitions and not diagnosis.writers:
        yield ()


# -- events ----------------------------------------------------------------------------------------


def record_start(
    state: MetricsState, query: str, run: str, name: str | None, now_us: int
) -> MetricsState:
    """Return `state` after a run of a query has started, or has reported that it has no work.

    An ended or earlier run changes nothing; a new run keeps the query's numbers, and may start
    before the end of the earlier run is reported.
    """
    state = _forget_ended(state, now_us)
    if run in state.ended_runs:
        return state
    numbers = state.queries.get(query)
    if numbers is not None and numbers.run != run:
        state = _note_ended(state, numbers.run)
    numbers = numbers or QueryNumbers(query, run, name, now_us)
    name = name or numbers.name
    return _put(state, replace(numbers, run=run, name=name, reported_us=now_us, ended_us=None))


def record_end(state: MetricsState, query: str, run: str, now_us: int) -> MetricsState:
    """Return `state` after a run of a query has ended; a later run of the query goes on."""
    state = _note_ended(_forget_ended(state, now_us), run)
    numbers = state.queries.get(query)
    if numbers is None or numbers.run != run:
        return state
    return _put(state, replace(numbers, reported_us=now_us, ended_us=now_us))


def record_failure(state: MetricsState) -> MetricsState:
    """Return `state` after an event that could not be read."""
    return replace(state, failures=state.failures + 1)


def record_progress(
    state: MetricsState,
    progress: Mapping[str, Any],
    now_us: int,
    *,
    batch: BatchReport | None = None,
    explains: bool = True,
) -> MetricsState:
    """Return `state` after a progress event, as parsed JSON.

    `batch` is the result of `read_progress`, if the caller has it already. With `explains` also
    find out from the offsets what holds the CTI back. A progress of an unknown form raises an
    error.
    """
    query, run = str(progress["id"]), str(progress["runId"])
    state = record_start(state, query, run, progress.get("name"), now_us)
    numbers = state.queries.get(query)
    if numbers is None or numbers.run != run:
        return state
    newest = int(progress["batchId"]), str(progress["timestamp"])
    batch = read_progress(progress) if batch is None else batch
    batches = sorted({**dict(numbers.batches), newest: batch}.items(), key=lambda pair: pair[0])
    numbers = replace(numbers, batches=tuple(batches[-_KEPT_BATCHES:]))
    if numbers.newest is None or newest >= numbers.newest:
        numbers = replace(numbers, newest=newest, own=tuple(_list_own(progress)), diagnosed={})
        for index, report in enumerate(batch.reports):
            numbers = _read_source(numbers, index, report, state.max_partitions)
    return _put(state, _explain_streams(numbers) if explains else numbers)


def read_watermark(progress: Mapping[str, Any]) -> int | None:
    """Return Spark's watermark; None if there is none, or if it is still at its start, 1970."""
    text = (progress.get("eventTime") or {}).get("watermark")
    instant_us = parse_instant(text) if text else 0
    return instant_us if 0 < instant_us < FINAL_US else None


def _list_own(progress: Mapping[str, Any]) -> Iterator[Sample]:
    watermark_us = read_watermark(progress)
    if watermark_us is not None:
        yield Sample(QueryMetrics.WATERMARK, (), watermark_us / SECOND_US)
    for operator in read_operators(progress):
        attributes: Attributes = (("operator", operator.operator),)
        yield Sample(QueryMetrics.STATE_ROWS, attributes, operator.rows)
        yield Sample(QueryMetrics.STATE_MEMORY, attributes, operator.memory or 0)


def _read_source(
    all_numbers: QueryNumbers, index: int, report: Any, max_partitions: int
) -> QueryNumbers:
    """Add the numbers in a source's report to `all_numbers`; a report may have none.

    A stream goes on exporting the partitions that it exported before, and new ones up to the limit.
    Once the limit is reached, all others are combined, and a partition that was combined stays so,
    because their sum would otherwise lose its counts.
    """
    keys = report.keys() if isinstance(report, Mapping) else set()
    exported = dict(all_numbers.exported)
    samples: Iterable[Sample]
    if keys >= _CLOCK_KEYS:
        samples = _list_clock(report)
    elif keys >= _SUBSCRIPTION_KEYS:
        samples = _list_subscription(report)
    elif keys >= _KAFKA_KEYS:
        entries = {
            Partition(topic, int(number)): entry
            for topic, numbers in report["partitions"].items()
            for number, entry in numbers.items()
        }
        before = exported.get(index, frozenset())
        free = max(max_partitions - len(before), 0)
        exported[index] = before | frozenset(sorted(entries.keys() - before)[:free])
        samples = _list_stream(report, entries, exported[index])
    else:
        return all_numbers
    return replace(
        all_numbers, sources={**all_numbers.sources, index: tuple(samples)}, exported=exported
    )


def _explain_streams(numbers: QueryNumbers) -> QueryNumbers:
    """Return `numbers` with what the kept offsets say about its streams."""
    histories = build_histories(batch for _, batch in numbers.batches)
    diagnosed = dict(numbers.diagnosed)
    for index, offset in enumerate(numbers.batches[-1][1].offsets):
        stream = offset.get("stream") if isinstance(offset, Mapping) else None
        if index in numbers.exported and stream in histories:
            diagnosed[index] = tuple(_list_diagnosed(histories[stream], numbers.exported[index]))
    return replace(numbers, diagnosed=diagnosed)


def _put(state: MetricsState, query: QueryNumbers) -> MetricsState:
    return replace(state, queries={**state.queries, query.query: query})


def _note_ended(state: MetricsState, run: str) -> MetricsState:
    runs = (*(ended_run for ended_run in state.ended_runs if ended_run != run), run)
    return replace(state, ended_runs=runs[-_MAX_ENDED_RUNS:])


def _forget_ended(state: MetricsState, now_us: int) -> MetricsState:
    running = {
        name: query
        for name, query in state.queries.items()
        if query.ended_us is None or now_us - query.ended_us < state.keep_ended_us
    }
    return replace(state, queries=running)


# -- samples ---------------------------------------------------------------------------------------


def list_samples(state: MetricsState, now_us: int) -> Iterator[Sample]:
    """Yield the samples of `state` at the wall clock `now_us`; metric and attributes are unique."""
    yield Sample(ListenerMetrics.FAILURES, (), state.failures)
    for query in _forget_ended(state, now_us).queries.values():
        yield from _list_query(query, now_us)


def _list_query(query: QueryNumbers, now_us: int) -> Iterator[Sample]:
    name_attributes = (("query.name", query.name),) if query.name else ()
    query_attributes: Attributes = (*name_attributes, ("query.id", query.query))
    runs = query.ended_us is None
    yield Sample(QueryMetrics.ACTIVE, query_attributes, int(runs))
    if runs:
        yield Sample(
            QueryMetrics.REPORT_AGE, query_attributes, (now_us - query.reported_us) / SECOND_US
        )
    for sample in query.own:
        yield sample._replace(attributes=(*query_attributes, *sample.attributes))
    for index, samples in sorted(query.sources.items()):
        source: Attributes = (*query_attributes, ("source", str(index)))
        for metric, attributes, value in (*samples, *query.diagnosed.get(index, ())):
            if metric not in _AGES:
                yield Sample(metric, (*source, *attributes), value)
            elif runs:
                # After its end a query's CTI cannot fall further behind.
                yield Sample(metric, (*source, *attributes), (now_us - value) / SECOND_US)
