"""The state of `TimeMetrics`: a fold over what Spark reports of its queries.

Each event gives a new frozen state, so whoever renders one sees numbers of one moment. Of each
query the newest batch counts, whatever the order in which reports arrive; two batches are kept,
because some findings compare them. Queries are known by their id, which a restart keeps.

The state is bounded. A query is forgotten a while after its end. The first partitions that a query
reports are exported one by one, up to a limit, and stay the same ones, so that no counter goes
back; all others are one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_timestream.explain.history import Batch, build_histories, read_progress
from pyspark_timestream.explain.waiting_state import (
    OperatorState,
    read_operators,
    read_watermark,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.metrics.numbers import (
    SourceNumbers,
    StreamNumbers,
    find_culprits,
    read_event_times,
    read_source,
)

__all__ = [
    "Limits",
    "MetricsState",
    "QueryNumbers",
    "record_end",
    "record_failure",
    "record_idle",
    "record_progress",
    "record_start",
]

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
    """`found` with the findings on its streams, and their event times, from the kept offsets."""
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
                culprits=find_culprits(history),
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
