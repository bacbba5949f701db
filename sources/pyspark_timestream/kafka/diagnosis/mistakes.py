"""Diagnoses from a stream's counters: unreadable times, bad values, late rows, clocks ahead.

Each rule examines the clocks before the last batch of a history, and earlier batches only to find
when a state began. So a driver that has just planned finds the same as a reader of a checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from pyspark_timestream.core.checkpoint import CTI_SETTINGS
from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    HOUR_US,
    MINUTE_US,
    ROUNDING_UNITS_US,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
    round_duration,
)
from pyspark_timestream.core.policies import (
    KEEP_ALL,
    LATE_COUNTERS,
    MOVED_COUNTERS,
    find_future_policy,
    find_policy,
)
from pyspark_timestream.kafka.diagnosis.diagnoses import (
    NEXT_STEPS,
    Diagnosis,
    Kind,
    list_counts,
    name_partitions,
    sort_by_count,
)
from pyspark_timestream.kafka.diagnosis.history import (
    BatchRecord,
    History,
    count_remaining,
    find_since,
)
from pyspark_timestream.kafka.offsets.offset import NO_MALFORMED_PAYLOADS, PartitionOffset
from pyspark_timestream.kafka.offsets.positions import has_stream_ended
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import (
    EARLY_US,
    FAR_US,
    MAX_LEAD_US,
    PartitionClock,
    has_reached,
    min_cti,
)

_HEALTHY_FRACTION: Final = 0.01
"""A partition with a smaller fraction of late or malformed events counts as healthy."""

_MAX_AHEAD_US: Final = DAY_US
"""A CTI further ahead of the wall clock, or of the late events after it, is wrong."""

_MIN_AGREED_US: Final = HOUR_US
"""If most events are late by more than this, but in order, a clock is ahead."""

_MIN_FUTURE_US: Final = MINUTE_US
"""The least `maxFuture` that is proposed; correct clocks differ by less."""

_START: Final = PartitionClock()

_MIN_LATE: Final = 10
"""Fewer late events do not show an order."""

_READ_LATE: Final = attrgetter(*LATE_COUNTERS)

PartitionCounter = Callable[[PartitionOffset], int]
"""Reads one counter of a partition from its entry in an offset."""


def find_mistakes(history: History) -> list[Diagnosis]:
    """Find mistakes in the options or the data, in any state of the stream."""
    return [
        *find_malformed_events(history),
        *_find_tombstones(history),
        *_find_improbable_times(history),
        *find_malformed_values(history),
        *_find_future_events(history),
    ]


def makes_ctis(batch: BatchRecord) -> bool:
    """Return whether some option makes CTIs while the stream runs."""
    return not batch.settings.keys().isdisjoint(CTI_SETTINGS)


def _needs_times(batch: BatchRecord) -> bool:
    """Return whether the options use event times, unlike a plain Kafka source's."""
    return makes_ctis(batch) or batch.settings.get("startTime", "timestamp") != "timestamp"


def _count_by_partition(batch: BatchRecord, counter: PartitionCounter) -> dict[Partition, int]:
    """Return the counts of the partitions, without zeros."""
    partition_offsets = batch.offset.partitions.items()
    return {partition: count for partition, entry in partition_offsets if (count := counter(entry))}


def _report_counts(
    kind: Kind,
    history: History,
    counts: Mapping[Partition, int],
    text: str,
    *,
    counter: PartitionCounter | None = None,
    advice: str,
    holds_back: bool = False,
) -> Diagnosis:
    """Report the counted events; the level rises each time that their number doubles.

    With `holds_back` they count as most of the stream's events, even if they are few.
    """
    partitions = sort_by_count(counts)
    clocks = history[-1].clocks
    total = sum(counts.values())
    events = sum(clocks[partition].events for partition in partitions)
    return Diagnosis(
        kind,
        name_partitions(partitions),
        text,
        since_us=counter and find_since(history, partitions, lambda entry: counter(entry) > 0),
        partitions=frozenset(partitions),
        level=total.bit_length(),
        advice=advice,
        share=1.0 if holds_back else min(total / max(events, 1), 1.0),
        healthy=frozenset(
            partition
            for partition in partitions
            if counts[partition] < _HEALTHY_FRACTION * clocks[partition].events
        ),
    )


def find_malformed_events(history: History, least: float = 0.0) -> Iterator[Diagnosis]:
    """Yield a diagnosis of partitions with at least the fraction `least` of malformed events."""
    last_batch, clocks = history[-1], history[-1].clocks
    counts = {
        partition: clock.malformed
        for partition, clock in clocks.items()
        if has_malformed(clock, least)
    }
    if not counts or not _needs_times(last_batch):
        return
    malformed, events = sum(counts.values()), sum(clocks[partition].events for partition in counts)
    advice = "correct the producers that write such events"
    if not find_policy(last_batch.settings).flags:
        advice += (
            f"; 'violationPolicy' = '{KEEP_ALL}', beside 'changeFrom' or with a new checkpoint, "
            "keeps them as rows"
        )
    yield _report_counts(
        Kind.MALFORMED,
        history,
        counts,
        f"{malformed} of {events} events have no time that can be read "
        f"({describe_time_options(last_batch.settings)})",
        counter=lambda entry: entry.clock.malformed,
        # If most events are malformed, the options are wrong, which the kind's own fix is about.
        advice="" if 2 * malformed >= events else advice,
    )


def has_malformed(clock: PartitionClock, least: float) -> bool:
    """Return whether at least the fraction `least` of the events with a value is malformed."""
    return clock.malformed > 0 and clock.malformed >= least * (clock.events - clock.tombstones)


def _report_unusable(
    kind: Kind,
    history: History,
    counter: PartitionCounter,
    subject: str,
    advise: Callable[[bool], str],
) -> Iterator[Diagnosis]:
    """Yield a diagnosis of events that drive no clock.

    `subject` names them; `advise` gets True if they are most events, or all of a partition.
    """
    counts = _count_by_partition(history[-1], counter)
    clocks = history[-1].clocks
    if not counts:
        return
    total, events = sum(counts.values()), sum(clock.events for clock in clocks.values())
    text = f"{total} of {events} {subject}: {list_counts(counts)}"
    mute = [partition for partition in sort_by_count(counts) if _has_no_time(clocks[partition])]
    if mute:
        text += f"; without any other event there is no CTI in {name_partitions(mute)}"
    advice = advise(bool(mute) or 2 * total >= events)
    yield _report_counts(
        kind, history, counts, text, counter=counter, advice=advice, holds_back=bool(mute)
    )


def _find_tombstones(history: History) -> Iterator[Diagnosis]:
    last_batch = history[-1]
    is_kept = find_policy(last_batch.settings).flags or not makes_ctis(last_batch)
    fate = "are passed on" if is_kept else "become no rows"
    advice = "nothing to fix: they are rows without a time, which no window or join has"
    return _report_unusable(
        Kind.TOMBSTONES,
        history,
        lambda entry: entry.clock.tombstones,
        f"records have no value, where {describe_time_options(last_batch.settings)}, and {fate}",
        lambda _: advice if is_kept else "",
    )


def _has_no_time(clock: PartitionClock) -> bool:
    """Return whether no event of the partition can drive its clock."""
    return clock.cti_us is None and clock.unusable == clock.events


def _find_improbable_times(history: History) -> Iterator[Diagnosis]:
    """Yield a diagnosis of partitions with events of early 1970, or a last one of 2100 or later."""
    last_batch, clocks = history[-1], history[-1].clocks
    if not _needs_times(last_batch):
        return
    source = (
        f"option 'timeUnit' is '{last_batch.settings.get('timeUnit', 'ms')}', and the time comes "
        f"from {describe_time_options(last_batch.settings)}"
    )
    early = {
        partition: clock.clues.early
        for partition, clock in clocks.items()
        if clock.clues.has_other_unit
    }
    partitions = sorted(
        partition for partition, clock in clocks.items() if _is_improbable(clock.last_us)
    )
    total, events = sum(early.values()), sum(clocks[partition].events for partition in early)
    if early and total < events:
        yield _report_counts(
            Kind.IMPROBABLE_TIMES,
            history,
            early,
            f"{total} of {events} events are of early 1970, as numbers in another unit than the "
            f"others are, and times of clocks that were never set: {list_counts(early)}; {source}",
            advice="correct the producers of such events: a query reads all of them in one unit",
        )
    elif partitions:
        yield Diagnosis(
            Kind.IMPROBABLE_TIMES,
            name_partitions(partitions),
            f"the last event there is of {format_instant(clocks[partitions[0]].last_us or 0)}; "
            f"{source}",
            partitions=frozenset(partitions),
        )


def _is_improbable(us: int | None) -> bool:
    early_us, end_us = EARLY_US
    return us is not None and (early_us <= us < end_us or FAR_US <= us < FINAL_US)


def describe_time_options(settings: Mapping[str, str]) -> str:
    """Name the options that say where an event's time is, with their texts."""
    names = (name for name in ("startTime", "endTime", "edge") if name in settings)
    return ", ".join(f"option '{name}' is '{settings[name]}'" for name in names)


def find_malformed_values(history: History, least: float = 0.0) -> Iterator[Diagnosis]:
    """Yield a diagnosis of partitions with at least the fraction `least` of bad values or keys."""
    partition_offsets = history[-1].offset.partitions
    counts = {
        partition: count
        for partition, count in _count_by_partition(history[-1], _count_malformed_values).items()
        if count >= least * partition_offsets[partition].clock.events
    }
    if not counts:
        return
    malformed = sum(
        (partition_offsets[partition].malformed_payloads for partition in counts),
        NO_MALFORMED_PAYLOADS,
    )
    events = sum(partition_offsets[partition].clock.events for partition in counts)
    reasons = ", ".join(f"{count} {reason}" for reason, count in malformed.by_reason)
    top_reason, _ = max(malformed.by_reason, key=lambda pair: pair[1], default=("", 0))
    yield _report_counts(
        Kind.MALFORMED_VALUES,
        history,
        counts,
        f"{malformed.total} of {events} records have a malformed value or key"
        + (f" (reasons: {reasons})" if reasons else ""),
        counter=_count_malformed_values,
        advice=NEXT_STEPS.get(top_reason, ""),
    )


def _count_malformed_values(partition_offset: PartitionOffset) -> int:
    return partition_offset.malformed_payloads.total


@dataclass(frozen=True, slots=True)
class MalformedReason:
    """The records of a stream with a value or key that is malformed for one reason.

    Attributes:
        reason: the reason, as in `malformedValues` of the progress.
        partitions: partition -> the number of its records, without zeros.
        next_step: what to do about them.
    """

    reason: str
    partitions: Mapping[Partition, int]
    next_step: str

    @property
    def total(self) -> int:
        """The number of records in all partitions."""
        return sum(self.partitions.values())


def count_malformed_reasons(last_batch: BatchRecord) -> tuple[MalformedReason, ...]:
    """Count the malformed values and keys by reason, the most frequent first."""
    counts: dict[str, dict[Partition, int]] = {}
    for partition, partition_offset in sorted(last_batch.offset.partitions.items()):
        for reason, count in partition_offset.malformed_payloads.by_reason:
            counts.setdefault(reason, {})[partition] = count
    reasons = [
        MalformedReason(reason, partitions, NEXT_STEPS.get(reason, Kind.MALFORMED_VALUES.fix))
        for reason, partitions in counts.items()
    ]
    return tuple(sorted(reasons, key=lambda malformed: (-malformed.total, malformed.reason)))


def _find_future_events(history: History) -> Iterator[Diagnosis]:
    settings = history[-1].settings
    fate = find_future_policy(settings).fate
    return _report_unusable(
        Kind.FUTURE_EVENTS,
        history,
        lambda entry: entry.clock.future,
        "events lie further after their record's timestamp than option 'maxFuture' "
        f"('{settings.get('maxFuture', '')}') and {fate}",
        partial(_advise_future, settings),
    )


def _advise_future(settings: Mapping[str, str], are_most: bool) -> str:
    """Advise what to do about events in the future; leave out an option that is already set so."""
    if are_most:
        return (
            "this affects most events of a partition: correct 'timeUnit' or 'startTime', or raise "
            "'maxFuture', with a new checkpoint; or correct the clocks of the devices"
        )
    ways = [Kind.FUTURE_EVENTS.fix]
    if find_future_policy(settings).action is None:
        ways.append(
            "'futurePolicy' = 'drop', beside 'changeFrom' or with a new checkpoint, leaves them out"
        )
        if not find_policy(settings).flags:
            ways.append(f"'violationPolicy' = '{KEEP_ALL}' marks them instead")
    return "; ".join(ways)


# -- a clock ahead ---------------------------------------------------------------------------------


def is_clock_ahead(batch: BatchRecord, partition: Partition) -> bool:
    """Return whether a clock ahead has driven the CTI of `partition`."""
    clock = batch.clocks[partition]
    if clock.cti_us is None:
        return False
    ahead_us = _measure_ahead(batch, clock)
    late = _count_late(clock)
    if ahead_us > _MAX_AHEAD_US or not late:
        return ahead_us > _MAX_AHEAD_US
    return (
        2 * clock.clues.ahead >= late
        or ahead_us > MAX_LEAD_US
        or _measure_gap(clock) > _MAX_AHEAD_US
        or _is_majority_late(clock)
    )


def _count_late(clock: PartitionClock) -> int:
    """Count the late events, except those with times that seem to be in another unit."""
    late: int = sum(_READ_LATE(clock))
    return max(late - clock.clues.early, 0) if clock.clues.has_other_unit else late


def _measure_ahead(batch: BatchRecord, clock: PartitionClock) -> int:
    """Return how far the CTI is ahead of the wall clock; 0 for a batch read, which has none."""
    if clock.cti_us is None or not batch.planned_us:
        return 0
    return max(clock.cti_us - batch.planned_us, 0)


def _measure_gap(clock: PartitionClock) -> int:
    """Return how far the CTI is ahead of the last late event."""
    behind_us = clock.last_us if clock.clues.behind_us is None else clock.clues.behind_us
    if clock.cti_us is None or clock.last_us is None or behind_us is None:
        return 0
    return clock.cti_us - behind_us if clock.last_us < clock.cti_us else 0


def _is_majority_late(clock: PartitionClock) -> bool:
    """Return whether most events are far too late but in order, so that the others are wrong."""
    late, clues = _count_late(clock), clock.clues
    are_far = clues.most_late_us > _MIN_AGREED_US
    in_order = 10 * clues.misplaced < late
    return are_far and in_order and late >= _MIN_LATE and 2 * late >= clock.events


def report_clocks_ahead(history: History, ahead: Set[Partition]) -> Iterator[Diagnosis]:
    """Yield a diagnosis of the partitions in `ahead`: `is_clock_ahead` is true for them."""
    last_batch = history[-1]
    # A last event of 2100 or later that made no event late is reported as an improbable time.
    clocks = {
        partition: clock
        for partition, clock in last_batch.clocks.items()
        if partition in ahead and (_count_late(clock) or (clock.last_us or 0) < FAR_US)
    }
    if not clocks:
        return
    counts = {partition: _count_late(clock) for partition, clock in clocks.items()}
    partitions = sort_by_count(counts)
    worst = clocks[partitions[0]]
    late, events = sum(counts.values()), sum(clock.events for clock in clocks.values())
    text = f"{_describe_ahead(last_batch, worst)}; {late} of {events} events came late"
    if len(partitions) > 1 and late:
        text += (
            f": {list_counts({partition: count for partition, count in counts.items() if count})}"
        )
    by_record = any(clock.clues.ahead or clock.clues.lead_us for clock in clocks.values())
    yield Diagnosis(
        Kind.FAR_FUTURE,
        name_partitions(partitions),
        text,
        since_us=find_since(
            history, partitions[:1], lambda entry: entry.clock.cti_us == worst.cti_us
        ),
        partitions=frozenset(partitions),
        level=late.bit_length(),
        advice=_advise_right_clock(last_batch.settings, by_record=by_record),
    )


def _describe_ahead(batch: BatchRecord, clock: PartitionClock) -> str:
    assert clock.cti_us is not None
    cti = format_instant(clock.cti_us)
    ahead_us = clock.clues.lead_us
    if ahead_us is not None:
        return (
            f"an event {round_duration(ahead_us)} after its record's timestamp made the CTI {cti}"
        )
    if _measure_ahead(batch, clock):
        # Give no duration: a text that changes with time makes a new offset, and so a batch.
        return f"its CTI is {cti}, ahead of the wall clock"
    gap_us = max(_measure_gap(clock), clock.clues.most_late_us)
    if gap_us > 0:
        return f"its CTI is {cti}, {round_duration(gap_us)} ahead of the events that follow"
    return f"events far after their records' timestamps made the CTI, which is {cti} by now"


def _advise_right_clock(settings: Mapping[str, str], *, by_record: bool) -> str:
    """Advise what to do about a clock ahead; `by_record`: the records' timestamps show it."""
    if "ctiFrequency" not in settings:
        return (
            "correct the clock of the writer whose mark is ahead, and start with a new checkpoint, "
            "since a CTI never goes back"
        )
    # With this limit no CTI is ahead of its record, unless the delay is too short.
    delay_us = parse_duration(settings.get("ctiDelay", "0 seconds"))
    limit = f"'maxFuture' = '{format_duration(max(delay_us, _MIN_FUTURE_US))}'"
    start = "correct that clock; a CTI never goes back, so start with a new checkpoint and with "
    if by_record:
        before = settings.get("maxFuture")
        instead = "" if before is None else f" in place of '{before}'"
        return f"{start}{limit}{instead}: events further ahead drive no clock"
    ways = []
    if "writerFrom" not in settings:
        ways.append(
            "'writerFrom', the field or header that names the device, so that each has a clock of "
            "its own"
        )
    if settings.get("startTime") != "timestamp":
        ways.append(
            f"{limit}, once the broker sets the records' timestamps (the topic's "
            "'message.timestamp.type' is 'LogAppendTime'): those of the producer may come from "
            "the same clock"
        )
    return start + (", or with ".join(ways) or "that device's records in another topic")


# -- late rows -------------------------------------------------------------------------------------


def find_late_rows(history: History, explained: Set[Partition]) -> Iterator[Diagnosis]:
    """Yield a diagnosis of partitions that dropped late events and are not `explained`."""
    last_batch, clocks = history[-1], history[-1].clocks
    dropped = _count_by_partition(
        last_batch, lambda entry: min(entry.clock.dropped, _count_late(entry.clock))
    )
    dropped = {
        partition: count for partition, count in dropped.items() if partition not in explained
    }
    if not dropped:
        return
    total, events = sum(dropped.values()), sum(clock.events for clock in clocks.values())
    yield _report_counts(
        Kind.LATE_ROWS,
        history,
        dropped,
        f"{total} of {events} events arrived after a CTI later than their own time and were "
        "dropped: " + list_counts(dropped),
        counter=lambda entry: entry.clock.dropped,
        advice=_advise_delay(
            last_batch.settings,
            [clocks[partition] for partition in dropped],
            "if too many are late",
        ),
    )


def _advise_delay(
    settings: Mapping[str, str], clocks: Sequence[PartitionClock], condition: str
) -> str:
    """Propose the delay that makes none of the events late; empty if that is unknown."""
    most_late_us = max(clock.clues.most_late_us for clock in clocks)
    if "ctiFrequency" not in settings:
        return (
            f"{condition}, have writers send a mark only after all earlier events, or set "
            f"'violationPolicy' = '{KEEP_ALL}' to keep them as rows, beside 'changeFrom' or with a "
            "new checkpoint"
        )
    if not most_late_us or settings.keys() & set(CTI_SETTINGS) != {"ctiFrequency"}:
        return ""
    delay_us = parse_duration(settings.get("ctiDelay", "0 seconds")) + most_late_us
    unit_us = next((unit for unit in ROUNDING_UNITS_US[1:] if delay_us >= 10 * unit), 1_000)
    keep = ""
    if not find_policy(settings).flags:
        keep = f", or with 'violationPolicy' = '{KEEP_ALL}' to keep them as rows"
    return (
        f"{condition}, set 'ctiDelay' = '{format_duration(-(-delay_us // unit_us) * unit_us)}', "
        "so that none of them would have been: beside option 'changeFrom' for the events to come, "
        f"or with a new checkpoint to have these too{keep}"
    )


def find_lossy_partitions(history: History, explained: Set[Partition]) -> Iterator[Diagnosis]:
    """Yield a diagnosis of partitions, not `explained`, that lose half of their events or more."""
    last_batch, before = history[-1], history[0].clocks
    partitions = sorted(
        partition
        for partition, clock in last_batch.clocks.items()
        if partition not in explained and _loses_rows(clock, before.get(partition, _START))
    )
    if not partitions:
        return
    clocks = [last_batch.clocks[partition] for partition in partitions]
    events = sum(clock.events for clock in clocks)
    malformed = sum(clock.malformed for clock in clocks)
    late = {
        name: sum(getattr(clock, name) for clock in clocks)
        for name in LATE_COUNTERS
        if name not in MOVED_COUNTERS
    }
    has_late = malformed < sum(late.values())
    text = f"of {events} events {late.pop('dropped')} were dropped as late, " + ", ".join(
        f"{count} {name}" for name, count in {**late, "malformed": malformed}.items()
    )
    worst = max(clocks, key=count_lost)
    if worst.cti_us is not None and worst.last_us is not None and worst.last_us < worst.cti_us:
        behind_us = worst.cti_us - worst.last_us
        text += f"; the last event is {round_duration(behind_us)} before the CTI"
    advice = _advise_delay(last_batch.settings, clocks, "if they are not meant to be late")
    yield Diagnosis(
        Kind.EVERYTHING_DROPPED,
        name_partitions(partitions),
        text,
        since_us=find_since(history, partitions, lambda entry: count_lost(entry.clock) > 0),
        partitions=frozenset(partitions),
        advice=advice if has_late else "",
    )


def _loses_rows(now: PartitionClock, before: PartitionClock) -> bool:
    """Return whether half or more of all events, or of those since `before`, are lost."""
    lost, recent = count_lost(now), now.events - before.events
    return (now.events > 0 and 2 * lost >= now.events) or (
        recent > 0 and 2 * (lost - count_lost(before)) >= recent
    )


def count_lost(clock: PartitionClock) -> int:
    """Count the events that no result has: late ones that keep their time, and malformed ones."""
    moved: int = sum(getattr(clock, name) for name in MOVED_COUNTERS)
    return max(_count_late(clock) - moved, 0) + clock.malformed


# -- replays ---------------------------------------------------------------------------------------


def find_short_replays(history: History) -> Iterator[Diagnosis]:
    """Yield a diagnosis if a bounded run's log ends below `startingCti` or `endingCti`.

    If the stream has reached `endingCti` without its idle partitions, nothing is missing
    (semantics 7.7).
    """
    offset = history[-1].offset
    begin, end = (offset.settings.get(name) for name in ("startingCti", "endingCti"))
    if not offset.bounded or any(count_remaining(history).values()):
        return
    ctis_us = {partition: clock.cti_us for partition, clock in history[-1].clocks.items()}
    ours_us = [cti_us for cti_us in ctis_us.values() if cti_us is not None]
    if begin is not None and max(ours_us, default=parse_instant(begin) - 1) < parse_instant(begin):
        text = f"no partition's CTI reaches {begin}: {_name_cti(max(ours_us, default=None))}"
        yield Diagnosis(Kind.SHORT_REPLAY, "option 'startingCti'", text)
        return
    if end is None or has_stream_ended(offset, parse_instant(end)):
        return
    short = sorted(
        partition
        for partition, cti_us in ctis_us.items()
        if not has_reached(cti_us, parse_instant(end))
    )
    if short:
        least = min_cti(ctis_us[partition] for partition in short)
        text = f"everything is read, and its CTI has not reached option 'endingCti' ({end}): "
        yield Diagnosis(
            Kind.SHORT_REPLAY,
            name_partitions(short),
            text + _name_cti(least),
            partitions=frozenset(short),
        )


def _name_cti(cti_us: int | None) -> str:
    return "there is none yet" if cti_us is None else f"it is {format_instant(cti_us)}"
