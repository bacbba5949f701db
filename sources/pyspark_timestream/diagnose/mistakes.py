"""Mistakes that counters and plans show: unreadable times, malformed values, late rows.

Replays that end before their span does are found as well (semantics 7.7).

Each rule examines the clocks before the last batch of a history, and earlier batches only to find
the beginning. So a driver that has just planned and a reader of a checkpoint find the same.

A plan is a tree of operators. Of a stream with CTIs the first thing with state on the way from the
source must come after `advance_time`, which is a watermark on the column `cti`.

A fold over the offsets of a run. Once a partition has had ten more events, their counts stand until
the next ten.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_timestream.core.instants import FINAL_US, format_instant, parse_instant
from pyspark_timestream.diagnose.diagnosis import (
    NEXT_STEPS,
    Diagnosis,
    Kind,
    find_well,
    list_counts,
    name_partitions,
)
from pyspark_timestream.diagnose.history import (
    BatchRecord,
    History,
    count_remaining,
    find_unchanged_since,
    keeps_late,
)
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_VALUES,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.offsets.positions import has_stream_ended, name_other_unit
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.policies import FUTURE_POLICIES, KEEP_ALL
from pyspark_timestream.rules.state import EARLY_US, FAR_US, PartitionState

MOST: Final = 0.5
"""The share of a partition's events from which on the options are wrong, not the events."""


def find_mistakes(history: History) -> list[Diagnosis]:
    """Mistakes in the options or the data, in any state of the stream."""
    return [
        *find_malformed_events(history),
        *find_tombstones(history),
        *find_improbable_times(history),
        *find_malformed_values(history),
        *find_future_events(history),
    ]


def find_malformed_events(history: History, least: float = 0.0) -> Iterator[Diagnosis]:
    """A diagnosis for partitions with malformed events; its level grows as they double.

    `least` is the share of a partition's events from which on it is one.
    """
    parts = _select_partitions(history[-1], lambda state: has_malformed(state, least))
    if not parts or not _needs_times(history[-1]):
        return
    states = _list_states(history[-1])
    parts.sort(key=lambda part: (-states[part].malformed, part))
    malformed = sum(states[part].malformed for part in parts)
    events = sum(states[part].events for part in parts)
    settings = history[-1].offset.settings
    yield Diagnosis(
        Kind.MALFORMED,
        name_partitions(parts),
        f"{malformed} of {events} events have no time that can be read "
        f"({_describe_time_options(settings)})",
        find_unchanged_since(history, _has_counted(parts, "malformed")),
        frozenset(parts),
        level=malformed.bit_length(),
        advice="" if 2 * malformed >= events else _advise_malformed(settings),
        share=malformed / events,
        well=_find_well({part: states[part].malformed for part in parts}, states),
    )


def has_malformed(state: PartitionState, least: float = 0.0) -> bool:
    """True if `state` has malformed events, and they are `least` of all that have a value."""
    return state.malformed > 0 and state.malformed >= least * (state.events - state.tombstones)


def _advise_malformed(settings: Mapping[str, str]) -> str:
    """The way on if most events are well, so that the options are."""
    keep = (
        ""
        if keeps_late(settings)
        else (f"; 'violationPolicy' = '{KEEP_ALL}', with a new checkpoint, keeps them as rows")
    )
    return "correct the producers that write such events" + keep


def find_tombstones(history: History) -> Iterator[Diagnosis]:
    """A diagnosis for partitions with tombstones; its level grows as they double."""
    states = _list_states(history[-1])
    counts = {part: state.tombstones for part, state in states.items() if state.tombstones}
    if not counts:
        return
    total, events = sum(counts.values()), sum(state.events for state in states.values())
    parts = sorted(counts, key=lambda part: (-counts[part], part))
    settings = history[-1].offset.settings
    is_kept = keeps_late(settings) or not makes_ctis(history[-1])
    fate = "are passed on" if is_kept else "become no rows"
    mute = [part for part in parts if _has_no_time(states[part])]
    yield Diagnosis(
        Kind.TOMBSTONES,
        name_partitions(parts),
        f"{total} of {events} records have no value, where {_describe_time_options(settings)}, and "
        f"{fate}: {list_counts(counts)}{_describe_mute(mute)}",
        find_unchanged_since(history, _has_counted(parts, "tombstones")),
        frozenset(parts),
        level=total.bit_length(),
        advice=_KEPT_TOMBSTONES if is_kept else "",
        share=_find_share(counts, states),
        well=_find_well(counts, states),
    )


_KEPT_TOMBSTONES: Final = (
    "nothing to fix: they are rows without a time, which no window or join has"
)


def _has_no_time(state: PartitionState) -> bool:
    """True if no event of the partition can drive its clock."""
    unusable = state.future + state.malformed + state.tombstones
    return state.cti_us is None and unusable == state.events


def _describe_mute(mute: Sequence[Partition]) -> str:
    return f"; without any other event there is no CTI in {name_partitions(mute)}" if mute else ""


def find_improbable_times(history: History) -> Iterator[Diagnosis]:
    """A diagnosis for partitions with events of early 1970, or whose last is of 2100 or later."""
    if not _needs_times(history[-1]):
        return
    states, settings = _list_states(history[-1]), history[-1].offset.settings
    source = f"option 'timeUnit' is '{settings.get('timeUnit', 'ms')}', and the time comes from "
    source += _describe_time_options(settings)
    early = {
        part: state.clues.early for part, state in states.items() if state.clues.has_other_unit
    }
    parts = sorted(part for part, state in states.items() if _is_improbable(state.last_us))
    total, events = sum(early.values()), sum(states[part].events for part in early)
    if early and total < events:
        named = sorted(early, key=lambda part: (-early[part], part))
        yield Diagnosis(
            Kind.IMPROBABLE_TIMES,
            name_partitions(named),
            f"{total} of {events} events are of early 1970, as numbers in another unit than the "
            f"others are, and times of clocks that were never set: {list_counts(early)}; {source}",
            None,
            frozenset(named),
            level=total.bit_length(),
            advice="correct the producers of such events: a query reads all of them in one unit",
            share=total / events,
            well=_find_well(early, states),
        )
    elif parts:
        last_us = states[parts[0]].last_us or 0
        yield Diagnosis(
            Kind.IMPROBABLE_TIMES,
            name_partitions(parts),
            f"the last event there is of {format_instant(last_us)}; {source}",
            None,
            frozenset(parts),
        )


def find_malformed_values(history: History, least: float = 0.0) -> Iterator[Diagnosis]:
    """A diagnosis for partitions with malformed values or keys; its level grows as they double.

    `least` is the share of a partition's records from which on it is one.
    """
    shares = history[-1].offset.partitions
    counts = {
        part: count
        for part, share in shares.items()
        if (count := share.malformed_values.total) and count >= least * share.state.events
    }
    if not counts:
        return
    parts = sorted(counts, key=lambda part: (-counts[part], part))
    found = sum((shares[part].malformed_values for part in parts), NO_MALFORMED_VALUES)
    events = sum(shares[part].state.events for part in parts)
    reasons = ", ".join(f"{count} {reason}" for reason, count in found.by_reason)
    most = max(found.by_reason, key=lambda pair: pair[1], default=("", 0))

    def counted(moment: BatchRecord) -> bool:
        known = moment.offset.partitions
        return any(part in known and known[part].malformed_values.total for part in parts)

    yield Diagnosis(
        Kind.MALFORMED_VALUES,
        name_partitions(parts),
        f"{found.total} of {events} records have a malformed value or key"
        + (f" (reasons: {reasons})" if reasons else ""),
        find_unchanged_since(history, counted),
        frozenset(parts),
        level=found.total.bit_length(),
        advice=NEXT_STEPS.get(most[0], ""),
        share=min(found.total / events, 1.0) if events else 1.0,
        well=_find_well(counts, _list_states(history[-1])),
    )


def _find_well(
    counts: Mapping[Partition, int], states: Mapping[Partition, PartitionState]
) -> frozenset[Partition]:
    return frozenset(find_well(counts, {part: states[part].events for part in counts}))


def _find_share(
    counts: Mapping[Partition, int], states: Mapping[Partition, PartitionState]
) -> float:
    """The counted events among those of their partitions."""
    return sum(counts.values()) / max(sum(states[part].events for part in counts), 1)


def find_future_events(history: History) -> Iterator[Diagnosis]:
    """A diagnosis for partitions with events in the future; its level grows as they double."""
    states = _list_states(history[-1])
    future = {part: state.future for part, state in states.items() if state.future}
    if not future:
        return
    total, events = sum(future.values()), sum(state.events for state in states.values())
    parts = sorted(future, key=lambda part: (-future[part], part))
    settings = history[-1].offset.settings
    fate = FUTURE_POLICIES[settings.get("futurePolicy", "keep")]
    mute = [part for part in parts if _has_no_time(states[part])]
    yield Diagnosis(
        Kind.FUTURE_EVENTS,
        name_partitions(parts),
        f"{total} of {events} events lie further after their record's timestamp than option "
        f"'maxFuture' ('{settings.get('maxFuture', '')}') and {fate}: {list_counts(future)}"
        + _describe_mute(mute),
        find_unchanged_since(history, _has_counted(parts, "future")),
        frozenset(parts),
        level=total.bit_length(),
        advice=_advise_future(settings, bool(mute) or 2 * total >= events),
        share=1.0 if mute else _find_share(future, states),
        well=_find_well(future, states),
    )


def _has_future_alone(state: PartitionState) -> bool:
    return (
        state.cti_us is None and state.future + state.malformed + state.tombstones == state.events
    )


def _advise_future(settings: Mapping[str, str], are_most: bool) -> str:
    """The way on after events in the future, without an option that is set so already."""
    if are_most:
        return (
            "most events of a partition are so: correct 'timeUnit' or 'startTime', or raise "
            "'maxFuture', with a new checkpoint; or correct the clocks of the devices"
        )
    ways = [Kind.FUTURE_EVENTS.fix]
    if settings.get("futurePolicy", "keep") == "keep":
        ways.append("'futurePolicy' = 'drop', with a new checkpoint, leaves them out")
        if not keeps_late(settings):
            ways.append(f"'violationPolicy' = '{KEEP_ALL}' marks them instead")
    return "; ".join(ways)


def report_start_at_end(passed_over: int) -> Diagnosis:
    """A bounded run starts at its end and leaves out `passed_over` records."""
    return Diagnosis(
        Kind.START_AT_END,
        "option 'startingOffsets'",
        "it was not given, so this new query starts at the latest offsets, and a bounded run ends "
        f"there as well: {passed_over} records that are in the topics are not read",
    )


def report_unused_unit(fields: Sequence[str], unit: str) -> Diagnosis:
    """The diagnosis of a `timeUnit` beside times whose unit is in the schema."""
    listed = " and ".join(f"'{name}'" for name in fields)
    return Diagnosis(
        Kind.UNUSED_UNIT,
        f"option 'timeUnit' = '{unit}'",
        f"it has no effect: the Avro schema says the unit of {listed}",
    )


def report_two_timestamps() -> Diagnosis:
    """The diagnosis of a record's timestamp that is read beside a field of the same name."""
    return Diagnosis(
        Kind.TWO_TIMESTAMPS,
        "option 'startTime' = 'timestamp'",
        "the record's timestamp is read, and the values have a field 'timestamp', which is not",
    )


def report_improbable_bounds(options: KafkaOptions) -> list[Diagnosis]:
    """The diagnoses of starting and ending timestamps that are in another unit."""
    found = []
    for name, given in (
        ("startingTimestamp", options.starting_timestamp_ms),
        ("startingOffsetsByTimestamp", options.starting_timestamps_ms),
        ("endingTimestamp", options.ending_timestamp_ms),
        ("endingOffsetsByTimestamp", options.ending_timestamps_ms),
    ):
        instants = given.values() if isinstance(given, Mapping) else [given]
        wrong = [(ms, told) for ms in instants if ms is not None and (told := name_other_unit(ms))]
        if wrong:
            ms, told = wrong[0]
            text = f"{ms} counts milliseconds since 1970, but it looks like {told}"
            found.append(Diagnosis(Kind.IMPROBABLE_BOUND, f"option '{name}'", text))
    return found[:1]


def _is_improbable(us: int | None) -> bool:
    early_us, end_us = EARLY_US
    return us is not None and (early_us <= us < end_us or FAR_US <= us < FINAL_US)


def makes_ctis(moment: BatchRecord) -> bool:
    """True if some option makes CTIs while the stream runs."""
    settings = moment.offset.settings
    return not settings.keys().isdisjoint(("ctiFrequency", "ctiHeader", "ctiImport"))


def _needs_times(moment: BatchRecord) -> bool:
    """True if the options use event times, unlike those of a plain Kafka source."""
    return makes_ctis(moment) or moment.offset.settings.get("startTime", "timestamp") != "timestamp"


def _list_states(moment: BatchRecord) -> Mapping[Partition, PartitionState]:
    return {part: share.state for part, share in moment.offset.partitions.items()}


def _select_partitions(
    moment: BatchRecord, holds: Callable[[PartitionState], bool]
) -> list[Partition]:
    return sorted(part for part, state in _list_states(moment).items() if holds(state))


def _has_counted(parts: list[Partition], counter: str) -> Callable[[BatchRecord], bool]:
    """A predicate: `counter` was above 0 in one of `parts`."""

    def counted(moment: BatchRecord) -> bool:
        shares = (moment.offset.partitions.get(part) for part in parts)
        return any(share is not None and getattr(share.state, counter) > 0 for share in shares)

    return counted


def _describe_time_options(settings: Mapping[str, str]) -> str:
    """The options for the sources of times, in words."""
    given = [
        (name, settings[name]) for name in ("startTime", "endTime", "edge") if name in settings
    ]
    return ", ".join(f"option '{name}' is '{value}'" for name, value in given)


def describe_end(offset: StreamOffset) -> str:
    """Describe the end that a closing batch has reached."""
    end = offset.settings.get("endingCti")
    if end is not None and _has_reached(offset.cti_us, end):
        return f"the replay has reached its end, option 'endingCti' ({end})"
    if offset.fixed_ends is not None:
        return "the stream has reached its end, which the ending options fixed at its first start"
    return "the bounded run has read everything that existed when it began"


def find_short_replays(history: History) -> Iterator[Diagnosis]:
    """Find the partitions of a bounded run whose log ends below `startingCti` or `endingCti`.

    Where the stream has reached `endingCti` without its idle partitions, nothing is missing.
    """
    offset = history[-1].offset
    begin, end = (offset.settings.get(name) for name in ("startingCti", "endingCti"))
    if not offset.bounded or any(count_remaining(history).values()):
        return
    ctis_us = {part: share.state.cti_us for part, share in offset.partitions.items()}
    if begin is not None and not any(_has_reached(cti_us, begin) for cti_us in ctis_us.values()):
        reached = _name_cti(max(filter(None, ctis_us.values()), default=None))
        yield Diagnosis(
            Kind.SHORT_REPLAY,
            "option 'startingCti'",
            f"no partition's CTI reaches {begin}: {reached}",
        )
        return
    if end is None or has_stream_ended(offset, parse_instant(end)):
        return
    short = sorted(part for part, cti_us in ctis_us.items() if not _has_reached(cti_us, end))
    if short:
        known = [ctis_us[part] for part in short]
        reached = _name_cti(None if None in known else min(filter(None, known), default=None))
        text = f"everything is read, and its CTI has not reached option 'endingCti' ({end}): "
        yield Diagnosis(
            Kind.SHORT_REPLAY, name_partitions(short), text + reached, partitions=frozenset(short)
        )


def _has_reached(cti_us: int | None, instant: str) -> bool:
    return cti_us is not None and cti_us >= parse_instant(instant)


def _name_cti(cti_us: int | None) -> str:
    return "there is none yet" if cti_us is None else f"it is {format_instant(cti_us)}"


ONE_BATCH: Final = Diagnosis(
    Kind.ONE_BATCH,
    ".trigger(once=True)",
    "a run of one batch has no closing batch: the last CTI comes with the next run, a final CTI "
    "never, so the last windows are not released",
)
"""The diagnosis of a query that Spark ends after one batch, which its source cannot know."""

_CTI_COLUMN: Final = "cti"
_STATEFUL_OPERATORS: Final = (
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a query's plan.

    Attributes:
        name: Spark's name of it.
        inputs: where its rows come from; empty: it is a source.
        watermark: the column of a `withWatermark`; None: it is another operator.
        columns: the columns of a streaming source; empty for all else.
    """

    name: str
    inputs: tuple["Operator", ...] = ()
    watermark: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def is_stream(self) -> bool:
        """True if a stream is among its sources."""
        return bool(self.columns) or any(each.is_stream for each in self.inputs)

    @property
    def has_state(self) -> bool:
        """True if Spark keeps state for it."""
        both = self.name == "Join" and all(each.is_stream for each in self.inputs)
        return both or self.name in _STATEFUL_OPERATORS


def find_plan_mistakes(root: Operator) -> list[Diagnosis | None]:
    """For each streaming source, in the order of the plan, its mistake, or None."""
    return [_find_mistake(path) for path in _list_paths(root) if path[0].columns]


def find_progress_mistake(
    progress: Mapping[str, Any], report: Mapping[str, Any]
) -> Diagnosis | None:
    """The mistake that the last progress of a query shows, for clients without access to the plan.

    Args:
        progress: the query's, as parsed JSON.
        report: the report of its only source of CTIs in it.
    """
    if report.get("cti") is None or not progress.get("stateOperators"):
        return None
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark is None:
        return _no_advance_time("an operator with state")
    return (
        _own_watermark("withWatermark")
        if parse_instant(watermark) > parse_instant(report["cti"])
        else None
    )


def _list_paths(node: Operator, above: tuple[Operator, ...] = ()) -> Iterator[tuple[Operator, ...]]:
    """Each source with the operators above it, nearest first."""
    if not node.inputs:
        yield (node, *above)
    for each in node.inputs:
        yield from _list_paths(each, (node, *above))


def _find_mistake(path: tuple[Operator, ...]) -> Diagnosis | None:
    source, *way = path
    if not any(column.endswith(_CTI_COLUMN) for column in source.columns):
        return None
    for operator in way:
        if operator.watermark is not None:
            own = operator.watermark
            return (
                None
                if own.endswith(_CTI_COLUMN)
                else _own_watermark(f"withWatermark on column '{own}'")
            )
        if operator.has_state:
            return _no_advance_time(operator.name)
    return None


def _own_watermark(cause: str) -> Diagnosis:
    return Diagnosis(
        Kind.OWN_WATERMARK,
        cause,
        "Spark's watermark follows the greatest time of any partition instead of the CTIs, so that "
        "rows of a partition that lags are lost in silence",
    )


def _no_advance_time(cause: str) -> Diagnosis:
    return Diagnosis(
        Kind.NO_ADVANCE_TIME,
        cause,
        "it keeps state of a stream with CTIs, and no watermark follows them: CTI rows count as "
        "rows, and no state is ever let go",
    )


_MIN_EVENTS: Final = 10
"""Counts of fewer events are too random to report."""

Shares = Mapping[Partition, PartitionOffset]


@dataclass(frozen=True, slots=True)
class RecentCounts:
    """The recent counts of a run.

    Attributes:
        since: each partition at the start of its present count.
        counts: each partition that had enough events, with the counts of the last ones only.
    """

    since: Shares = field(default_factory=dict)
    counts: Shares = field(default_factory=dict)


def update_counts(recent: RecentCounts, before: Shares, now: Shares) -> RecentCounts:
    """`recent` after a batch.

    Args:
        recent: up to the batch.
        before: the partitions at the batch's start.
        now: the partitions after it.
    """
    since, counts = dict[Partition, PartitionOffset](), dict[Partition, PartitionOffset]()
    for part, share in now.items():
        began = (
            recent.since.get(part) or before.get(part) or PartitionOffset(0, 0, PartitionState())
        )
        more = _subtract_counts(began, share)
        is_enough = more.state.events >= _MIN_EVENTS
        # A recreated partition has counted less.
        since[part] = share if is_enough or more.state.events < 0 else began
        if is_enough or part in recent.counts:
            counts[part] = more if is_enough else recent.counts[part]
    return RecentCounts(since, counts)


def find_recent_mistakes(recent: RecentCounts, now: StreamOffset) -> list[Diagnosis]:
    """The mistakes that the last events of the stream at `now` show, whatever came before."""
    moment = BatchRecord(0, dataclasses.replace(now, partitions=recent.counts))
    whole = BatchRecord(0, now)
    found = [
        *find_malformed_events((moment,), MOST),
        *find_malformed_values((moment,), MOST),
    ]
    levels = {
        each.kind: each.level
        for each in (*find_malformed_events((whole,)), *find_malformed_values((whole,)))
    }
    return [
        dataclasses.replace(each, scope="lately", level=levels.get(each.kind, 0)) for each in found
    ]


def _subtract_counts(before: PartitionOffset, after: PartitionOffset) -> PartitionOffset:
    """`after` with only the counts since `before`."""
    state = dataclasses.replace(
        after.state,
        events=after.state.events - before.state.events,
        malformed=after.state.malformed - before.state.malformed,
    )
    return dataclasses.replace(
        after, state=state, malformed_values=after.malformed_values - before.malformed_values
    )
