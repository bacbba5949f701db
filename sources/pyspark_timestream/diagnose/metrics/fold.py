"""The state of `TimeMetrics`: a fold over what Spark reports of its queries, and its samples.

A source of this package is recognized by the keys of its report; other sources have no numbers.

Each event gives a new frozen state, so whoever renders one sees numbers of one moment. Of each
query the newest batch counts, whatever the order in which reports arrive; two batches are kept,
because some diagnoses compare them. Queries are known by their id, which a restart keeps.

The state is bounded. A query is forgotten a while after its end. The first partitions that a query
reports are exported one by one, up to a limit, and stay the same ones, so that no counter goes
back; all others are one.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pyspark_timestream.core.instants import FINAL_US, parse_instant
from pyspark_timestream.diagnose.causes import diagnose
from pyspark_timestream.diagnose.diagnosis import NEXT_STEPS, Diagnosis, Kind
from pyspark_timestream.diagnose.history import (
    Batch,
    BatchRecord,
    History,
    OperatorState,
    build_histories,
    read_operators,
    read_progress,
    read_watermark,
)
from pyspark_timestream.diagnose.metrics.catalogue import (
    CLOCK,
    COUNTER_METRICS,
    LISTENER,
    PARTITION,
    QUERY,
    STREAM,
    SUBSCRIPTION,
    Metric,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.stream_cti import max_known, min_cti

MAX_CULPRITS: Final = 20
"""The partitions and writers that are named of each diagnosis; the rest is one, `(others)`."""

OTHERS: Final = "(others)"
"""The topic, partition and writer that stand for several."""

_NOT_REPORTED: Final = (Kind.ENDED, Kind.CAUGHT_UP)
"""Diagnoses that say that nothing is wrong."""

_KAFKA_KEYS: Final = {"cti", "endOfStream", "partitions"}
_CLOCK_KEYS: Final = {"cti", "endOfStream", "nextTick", "skipped", "ticksBehind"}
_SUBSCRIPTION_KEYS: Final = {"commit", "initial", "missed"}


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """One partition at the start of the last batch.

    Attributes:
        cti_us: its CTI; None: none yet.
        lag: offsets from there to the end of the log.
        idle: it holds nothing back.
        blocking: the stream waits for it.
        counts: its counters, by their names in the progress.
        malformed_values: records with a malformed value or key, by reason.
    """

    cti_us: int | None
    lag: int
    idle: bool
    blocking: bool
    counts: Mapping[str, int]
    malformed_values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Culprit:
    """A reason that `explain_time` gives, with a partition and a writer that it names.

    Attributes:
        reason: the kind of the diagnosis.
        topic: empty: the diagnosis names no partition.
        partition: as text; or `OTHERS`.
        writer: None: the diagnosis names no writer.
    """

    reason: str
    topic: str = ""
    partition: str = ""
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class StreamNumbers:
    """A stream of a Kafka topic.

    Attributes:
        cti_us: its CTI; None: none yet.
        ended: it has delivered its end.
        warnings: the number of active warnings.
        partitions: the numbers of each.
        event_times_us: of each partition the time of the last well-formed event, where known.
        causes: the diagnoses about it.
    """

    cti_us: int | None
    ended: bool
    warnings: int
    partitions: Mapping[Partition, PartitionNumbers]
    event_times_us: Mapping[Partition, int] = field(default_factory=dict)
    causes: tuple[Culprit, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockNumbers:
    """A simulated clock; see docs/reference/progress.md."""

    cti_us: int | None
    ended: bool
    behind: int
    skipped: int


@dataclass(frozen=True, slots=True)
class SubscriptionNumbers:
    """A subscription to a store; see docs/reference/progress.md."""

    commit: int | None
    missed: int


SourceNumbers = StreamNumbers | ClockNumbers | SubscriptionNumbers


def read_source(report: Any) -> SourceNumbers | None:
    """The numbers in `report`, a source's `latestOffset` as parsed JSON; None: it has none."""
    if not isinstance(report, Mapping):
        return None
    if report.keys() >= _CLOCK_KEYS:
        return ClockNumbers(
            _read_instant(report["cti"]),
            bool(report["endOfStream"]),
            int(report["ticksBehind"]),
            int(report["skipped"]),
        )
    if report.keys() >= _SUBSCRIPTION_KEYS:
        commit = report["commit"]
        return SubscriptionNumbers(
            None if commit is None else int(commit), int(report["missed"] or 0)
        )
    return _read_stream(report) if report.keys() >= _KAFKA_KEYS else None


def _read_stream(report: Mapping[str, Any]) -> StreamNumbers:
    entries = {
        Partition(topic, int(number)): entry
        for topic, numbers in report["partitions"].items()
        for number, entry in numbers.items()
    }
    ctis = {part: _read_instant(entry["cti"]) for part, entry in entries.items()}
    cti_us = _read_instant(report["cti"])
    holding = {part: ctis[part] for part, entry in entries.items() if not entry["idle"]}
    least, greatest = min_cti(holding.values()), max_known(*ctis.values())
    is_final = cti_us is not None and cti_us >= FINAL_US
    is_held = not is_final and (least is None or greatest is None or least < greatest)
    return StreamNumbers(
        cti_us,
        bool(report["endOfStream"]),
        len(report.get("warnings") or ()),
        {
            part: PartitionNumbers(
                ctis[part],
                int(entry["lag"]),
                bool(entry["idle"]),
                is_held and part in holding and holding[part] == least,
                {name: int(entry.get(name, 0)) for name in COUNTER_METRICS},
                _read_reasons(entry["malformedValues"]),
            )
            for part, entry in sorted(entries.items())
        },
    )


def _read_reasons(found: Mapping[str, int]) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items() if name != "total"}


def _read_instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)


def find_culprits(history: History) -> tuple[Culprit, ...]:
    """The diagnoses of `explain_time`, each with the partitions and writers that it names."""
    return tuple(
        cause
        for diagnosis in diagnose(history)
        if diagnosis.kind not in _NOT_REPORTED
        for cause in _limit_culprits(diagnosis)
    )


def _limit_culprits(diagnosis: Diagnosis) -> Iterator[Culprit]:
    found = list(_list_culprits(diagnosis))
    yield from found[:MAX_CULPRITS]
    if len(found) > MAX_CULPRITS:
        yield Culprit(str(diagnosis.kind), OTHERS, OTHERS)


def _list_culprits(diagnosis: Diagnosis) -> Iterator[Culprit]:
    kind = str(diagnosis.kind)
    writers = {part for part, _ in diagnosis.writers}
    for part, writer in sorted(diagnosis.writers):
        yield Culprit(kind, part.topic, str(part.number), writer)
    for part in sorted(diagnosis.partitions - writers):
        yield Culprit(kind, part.topic, str(part.number))
    if not diagnosis.partitions and not diagnosis.writers:
        yield Culprit(kind)


def read_event_times(record: BatchRecord) -> dict[Partition, int]:
    """Of each partition the time of the last well-formed event before the batch, where known."""
    return {
        part: share.state.last_us
        for part, share in record.offset.partitions.items()
        if share.state.last_us is not None
    }


_MAX_ENDED_RUNS: Final = 100
"""Ended runs that are remembered, so that a report that comes after its run's end is ignored."""

_KEPT_BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of the state.

    Attributes:
        partitions: of one stream those that are exported one by one.
        keep_ended_us: how long an ended query is shown.
    """

    partitions: int = 200
    keep_ended_us: int = 60_000_000


@dataclass(frozen=True, slots=True)
class QueryNumbers:
    """One query.

    Attributes:
        query: its id, which a restart keeps.
        run: the id of its run.
        name: None: it has none.
        reported_us: the wall clock when it last reported anything.
        ended_us: the wall clock when it ended; None: it runs.
        newest: batch and time of the newest progress, which orders progress events.
        batches: the last ones, as (newest, batch).
        watermark_us: Spark's watermark; None: none yet.
        operators: the state of each.
        sources: the numbers of each source by its place; others than this package's have none.
        shown: the partitions of each source that are exported one by one.
    """

    query: str
    run: str
    name: str | None
    reported_us: int
    ended_us: int | None = None
    newest: tuple[int, str] | None = None
    batches: tuple[tuple[tuple[int, str], Batch], ...] = ()
    watermark_us: int | None = None
    operators: tuple[OperatorState, ...] = ()
    sources: Mapping[int, SourceNumbers] = field(default_factory=dict)
    shown: Mapping[int, frozenset[Partition]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricsState:
    """All queries of a session.

    Attributes:
        queries: each by its id, in the order of their starts.
        ended_runs: the last runs that have ended.
        failures: the events that could not be read.
    """

    queries: Mapping[str, QueryNumbers] = field(default_factory=dict)
    ended_runs: tuple[str, ...] = ()
    failures: int = 0


def record_start(
    state: MetricsState, query: str, run: str, name: str | None, now_us: int, limits: Limits
) -> MetricsState:
    """`state` after the run `run` of a query has started."""
    return _replace_query(_forget_ended(state, now_us, limits), query, run, name, now_us)


def record_idle(
    state: MetricsState, query: str, run: str, now_us: int, limits: Limits
) -> MetricsState:
    """`state` after a query has reported that it has nothing to do."""
    return _replace_query(_forget_ended(state, now_us, limits), query, run, None, now_us)


def record_end(
    state: MetricsState, query: str, run: str, now_us: int, limits: Limits
) -> MetricsState:
    """`state` after the run `run` of a query has ended; a later run of it goes on."""
    state = _note_ended(_forget_ended(state, now_us, limits), run)
    found = state.queries.get(query)
    if found is None or found.run != run:
        return state
    ended = dataclasses.replace(found, reported_us=now_us, ended_us=now_us)
    return dataclasses.replace(state, queries={**state.queries, query: ended})


def record_failure(state: MetricsState) -> MetricsState:
    """`state` after an event that could not be read."""
    return dataclasses.replace(state, failures=state.failures + 1)


def record_progress(
    state: MetricsState,
    progress: Mapping[str, Any],
    now_us: int,
    limits: Limits,
    explains: bool = True,
) -> MetricsState:
    """`state` after a progress event.

    Args:
        state: before it.
        progress: the event as parsed JSON.
        now_us: the wall clock.
        limits: the bounds of the state.
        explains: also find who holds the CTI back, from the offsets.

    Raises:
        ValueError, KeyError, TypeError, TimestreamError: the progress, or one of its offsets, is
            not as this version knows it.
    """
    query, run = str(progress["id"]), str(progress["runId"])
    state = _forget_ended(state, now_us, limits)
    state = _replace_query(state, query, run, progress.get("name"), now_us)
    found = state.queries.get(query)
    if found is None or found.run != run:
        return state
    newest, batch = (int(progress["batchId"]), str(progress["timestamp"])), read_progress(progress)
    kept = sorted({**dict(found.batches), newest: batch}.items(), key=lambda pair: pair[0])
    found = dataclasses.replace(found, batches=tuple(kept[-_KEPT_BATCHES:]))
    if found.newest is None or newest >= found.newest:
        found = _read_numbers(found, progress, newest, batch, limits)
    if explains:
        found = _explain_streams(found)
    return dataclasses.replace(state, queries={**state.queries, query: found})


def _read_numbers(
    found: QueryNumbers,
    progress: Mapping[str, Any],
    newest: tuple[int, str],
    batch: Batch,
    limits: Limits,
) -> QueryNumbers:
    """`found` with the numbers of its newest batch; a source that reports none keeps its last."""
    sources, shown = dict(found.sources), dict(found.shown)
    for place, report in enumerate(batch.reports):
        numbers = read_source(report)
        if numbers is None:
            continue
        sources[place] = numbers
        if isinstance(numbers, StreamNumbers):
            shown[place] = _choose_shown(shown.get(place, frozenset()), numbers, limits)
    return dataclasses.replace(
        found,
        newest=newest,
        watermark_us=read_watermark(progress),
        operators=read_operators(progress),
        sources=sources,
        shown=shown,
    )


def _choose_shown(
    before: frozenset[Partition], numbers: StreamNumbers, limits: Limits
) -> frozenset[Partition]:
    """The partitions that are exported one by one: those that were, and new ones up to the limit.

    There are others only when the limit is reached, and one of them stays there: its counts would
    otherwise leave their sum.
    """
    free = max(limits.partitions - len(before), 0)
    fresh = sorted(numbers.partitions.keys() - before)
    return before | frozenset(fresh[:free])


def _explain_streams(found: QueryNumbers) -> QueryNumbers:
    """`found` with the diagnoses on its streams, and their event times, from the kept offsets."""
    if not found.batches:
        return found
    histories = build_histories(batch for _, batch in found.batches)
    sources = dict(found.sources)
    for place, offset in enumerate(found.batches[-1][1].offsets):
        numbers = sources.get(place)
        stream = offset.get("stream") if isinstance(offset, Mapping) else None
        if isinstance(numbers, StreamNumbers) and stream in histories:
            history = histories[stream]
            sources[place] = dataclasses.replace(
                numbers,
                causes=find_culprits(history),
                event_times_us=read_event_times(history[-1]),
            )
    return dataclasses.replace(found, sources=sources)


def _replace_query(
    state: MetricsState, query: str, run: str, name: str | None, now_us: int
) -> MetricsState:
    """`state` with a query that reported; a run that has ended, or an earlier one, changes nothing.

    A new run of a query keeps its numbers: they are as of its checkpoint. It may start before the
    end of the earlier one is reported.
    """
    if run in state.ended_runs:
        return state
    found = state.queries.get(query)
    if found is not None and found.run != run:
        state = _note_ended(state, found.run)
    if found is None:
        found = QueryNumbers(query, run, name, now_us)
    else:
        found = dataclasses.replace(
            found, run=run, name=name or found.name, reported_us=now_us, ended_us=None
        )
    return dataclasses.replace(state, queries={**state.queries, query: found})


def _note_ended(state: MetricsState, run: str) -> MetricsState:
    runs = (*(each for each in state.ended_runs if each != run), run)
    return dataclasses.replace(state, ended_runs=runs[-_MAX_ENDED_RUNS:])


def _forget_ended(state: MetricsState, now_us: int, limits: Limits) -> MetricsState:
    left = {
        query: found
        for query, found in state.queries.items()
        if found.ended_us is None or now_us - found.ended_us < limits.keep_ended_us
    }
    return state if len(left) == len(state.queries) else dataclasses.replace(state, queries=left)


Attributes = tuple[tuple[str, str], ...]

_US: Final = 1_000_000


class Sample(NamedTuple):
    """One number at one moment.

    Attributes:
        metric: the metric.
        attributes: names and texts, in the order of the metric's declaration.
        value: in the metric's unit.
    """

    metric: Metric
    attributes: Attributes
    value: int | float


def list_samples(state: MetricsState, now_us: int, limits: Limits) -> Iterator[Sample]:
    """The samples of `state` at the wall clock `now_us`, each metric and attributes once."""
    yield Sample(LISTENER.FAILURES, (), state.failures)
    for query in state.queries.values():
        if query.ended_us is None or now_us - query.ended_us < limits.keep_ended_us:
            yield from _list_query(query, now_us)


def _list_query(query: QueryNumbers, now_us: int) -> Iterator[Sample]:
    of: Attributes = (
        *((("query.name", query.name),) if query.name else ()),
        ("query.id", query.query),
    )
    runs = query.ended_us is None
    yield Sample(QUERY.ACTIVE, of, int(runs))
    if runs:
        yield Sample(QUERY.REPORT_AGE, of, (now_us - query.reported_us) / _US)
    yield from _list_instant(QUERY.WATERMARK, of, query.watermark_us)
    for operator in query.operators:
        place: Attributes = (*of, ("operator", operator.operator))
        yield Sample(QUERY.STATE_ROWS, place, operator.rows)
        yield Sample(QUERY.STATE_MEMORY, place, operator.memory or 0)
    for number, numbers in sorted(query.sources.items()):
        source: Attributes = (*of, ("source", str(number)))
        # An ended query's CTI does not fall behind any more.
        clock_us = now_us if runs else None
        match numbers:
            case StreamNumbers():
                shown = query.shown.get(number, frozenset())
                yield from _list_stream(source, numbers, shown, clock_us)
            case ClockNumbers():
                yield from _list_cti(source, numbers.cti_us, clock_us)
                yield Sample(STREAM.ENDED, source, int(numbers.ended))
                yield Sample(CLOCK.BEHIND, source, numbers.behind)
                yield Sample(CLOCK.SKIPPED, source, numbers.skipped)
            case SubscriptionNumbers():
                if numbers.commit is not None:
                    yield Sample(SUBSCRIPTION.COMMIT, source, numbers.commit)
                yield Sample(SUBSCRIPTION.MISSED, source, numbers.missed)


def _list_stream(
    of: Attributes, stream: StreamNumbers, shown: frozenset[Partition], now_us: int | None
) -> Iterator[Sample]:
    yield from _list_cti(of, stream.cti_us, now_us)
    greatest = max_known(*(each.cti_us for each in stream.partitions.values()))
    if stream.cti_us is not None and greatest is not None and greatest < FINAL_US:
        yield Sample(STREAM.CTI_SPREAD, of, max(greatest - stream.cti_us, 0) / _US)
    yield Sample(STREAM.ENDED, of, int(stream.ended))
    yield Sample(STREAM.WARNINGS, of, stream.warnings)
    for each in stream.causes:
        place = (("topic", each.topic), ("partition", each.partition)) if each.topic else ()
        writer = () if each.writer is None else (("writer", each.writer),)
        yield Sample(STREAM.FINDING, (*of, ("reason", each.reason), *place, *writer), 1)
    yield from _list_malformed_values(of, stream)
    others = [part for part in stream.partitions if part not in shown]
    yield Sample(STREAM.AGGREGATED, of, len(others))
    for part, numbers in stream.partitions.items():
        if part in shown:
            named = (*of, ("topic", part.topic), ("partition", str(part.number)))
            yield from _list_partition(named, numbers, stream.event_times_us.get(part), now_us)
    if others:
        named = (*of, ("topic", OTHERS), ("partition", OTHERS))
        times = [stream.event_times_us.get(part) for part in others]
        merged = _merge_partitions([stream.partitions[part] for part in others])
        yield from _list_partition(named, merged, min_cti(times), now_us)


def _list_malformed_values(of: Attributes, stream: StreamNumbers) -> Iterator[Sample]:
    """The malformed values by reason; with zeros, since an alert watches how a counter grows."""
    counts = Counter(dict.fromkeys(NEXT_STEPS, 0))
    for part in stream.partitions.values():
        counts.update(part.malformed_values)
    for reason, count in counts.items():
        yield Sample(STREAM.MALFORMED_VALUES, (*of, ("reason", reason)), count)


def _merge_partitions(parts: list[PartitionNumbers]) -> PartitionNumbers:
    """Several partitions as one: sums, and the least CTI of those that are not idle."""
    holding = [part for part in parts if not part.idle] or parts
    counts, malformed = Counter[str](), Counter[str]()
    for part in parts:
        counts.update(part.counts)
        malformed.update(part.malformed_values)
    return PartitionNumbers(
        min_cti(part.cti_us for part in holding),
        sum(part.lag for part in parts),
        all(part.idle for part in parts),
        any(part.blocking for part in parts),
        {name: counts[name] for name in COUNTER_METRICS},
        malformed,
    )


def _list_partition(
    of: Attributes, part: PartitionNumbers, event_us: int | None, now_us: int | None
) -> Iterator[Sample]:
    yield from _list_instant(PARTITION.CTI, of, part.cti_us)
    yield from _list_age(PARTITION.CTI_AGE, of, part.cti_us, now_us)
    yield from _list_age(PARTITION.EVENT_AGE, of, event_us, now_us)
    yield Sample(PARTITION.LAG, of, part.lag)
    yield Sample(PARTITION.IDLE, of, int(part.idle))
    yield Sample(PARTITION.BLOCKING, of, int(part.blocking))
    for name, (metric, further) in COUNTER_METRICS.items():
        yield Sample(metric, (*of, *further), part.counts[name])
    yield Sample(PARTITION.MALFORMED_VALUES, of, sum(part.malformed_values.values()))


def _list_cti(of: Attributes, cti_us: int | None, now_us: int | None) -> Iterator[Sample]:
    yield from _list_instant(STREAM.CTI, of, cti_us)
    yield from _list_age(STREAM.CTI_AGE, of, cti_us, now_us)


def _list_instant(metric: Metric, of: Attributes, instant_us: int | None) -> Iterator[Sample]:
    """The sample of an instant; a final CTI is no time of a clock."""
    if instant_us is not None and instant_us < FINAL_US:
        yield Sample(metric, of, instant_us / _US)


def _list_age(
    metric: Metric, of: Attributes, instant_us: int | None, now_us: int | None
) -> Iterator[Sample]:
    if instant_us is not None and instant_us < FINAL_US and now_us is not None:
        yield Sample(metric, of, (now_us - instant_us) / _US)
