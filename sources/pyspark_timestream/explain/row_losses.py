"""Finds why rows, or what is in them, are missing.

A wrong event drove the clock, the clock is too strict, or values and keys are malformed.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.connector.instants import format_duration, format_instant
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.explain.history import BatchRecord, History, find_unchanged_since
from pyspark_timestream.kafka.plan.findings import FIXES, Finding, Kind, name_partitions
from pyspark_timestream.kafka.plan.malformed_values import NEXT_STEPS
from pyspark_timestream.kafka.ranges import Partition

__all__ = [
    "MalformedReason",
    "count_malformed_reasons",
    "find_lossy_partitions",
    "is_far",
    "report_far_future",
]

_MAX_SKEW_US: Final = 60_000_000
"""A CTI further ahead of the wall clock, with late rows behind it, is more than clock skew."""

_MAX_AHEAD_US: Final = 86_400_000_000
"""A CTI further ahead of the wall clock, or of the late events after it, is wrong."""

_UNITS_US: Final = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class MalformedReason:
    """Records of a stream whose value or key is malformed for one reason.

    Attributes:
        reason: the reason, as in `malformedValues` of the progress; None: it was counted by a
            version that did not note reasons.
        total: their number.
        partitions: partition -> their number, without zeros.
        next_step: what to do about them.
    """

    reason: str | None
    total: int
    partitions: Mapping[Partition, int]
    next_step: str


def count_malformed_reasons(last: BatchRecord) -> tuple[MalformedReason, ...]:
    """Count the malformed values and keys by reason, the most frequent first."""
    counts: dict[str | None, dict[Partition, int]] = {}
    for part, share in sorted(last.offset.partitions.items()):
        malformed = share.malformed_values
        for reason, count in (*malformed.by_reason, (None, malformed.unexplained)):
            if count:
                counts.setdefault(reason, {})[part] = count
    advice = FIXES[Kind.MALFORMED_VALUES]
    found = [
        MalformedReason(reason, sum(parts.values()), parts, NEXT_STEPS.get(reason or "", advice))
        for reason, parts in counts.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.total, each.reason or "")))


def is_far(moment: BatchRecord, part: Partition) -> bool:
    """True if an event far in the future has driven the clock of `part`."""
    state = moment.offset.partitions[part].state
    if state.cti_us is None:
        return False
    ahead_us = state.cti_us - moment.planned_us
    late = state.dropped + state.adjusted + state.flagged
    gap_us = 0 if state.last_us is None else state.cti_us - state.last_us
    return ahead_us > _MAX_AHEAD_US or (
        late > 0 and (ahead_us > _MAX_SKEW_US or gap_us > _MAX_AHEAD_US)
    )


def report_far_future(history: History, far: frozenset[Partition]) -> Iterator[Finding]:
    """A finding for each partition in `far`, those for which `is_far` is true."""
    last = history[-1]
    for part in sorted(far):
        state = last.offset.partitions[part].state
        assert state.cti_us is not None
        text = f"its CTI is {format_instant(state.cti_us)}, "
        if state.cti_us > last.planned_us:
            text += f"{_round_duration(state.cti_us - last.planned_us)} ahead of the wall clock"
        elif state.last_us is not None:
            text += (
                f"{_round_duration(state.cti_us - state.last_us)} ahead of the events that follow"
            )
        late = state.dropped + state.adjusted + state.flagged
        text += f"; {late} of its {state.events} events came late"
        began_us = find_unchanged_since(history, _has_clock(part, state.cti_us))
        yield Finding(Kind.FAR_FUTURE, str(part), text, began_us, frozenset([part]))


def find_lossy_partitions(history: History, known: Set[Partition]) -> Iterator[Finding]:
    """A finding for partitions at least half of whose events are late or malformed, lately or ever.

    Those in `known` are left out: the reason for their losses is known.
    """
    shares = history[-1].offset.partitions
    parts = sorted(part for part in shares if part not in known and _loses_rows(history, part))
    if not parts:
        return
    states = [shares[part].state for part in parts]
    events, malformed = sum(s.events for s in states), sum(s.malformed for s in states)
    dropped, flagged = sum(s.dropped for s in states), sum(s.flagged for s in states)
    counts = f"of {events} events {dropped} were dropped as late, {flagged} flagged, {malformed} "
    worst = max(states, key=_count_lost)
    yield Finding(
        Kind.EVERYTHING_DROPPED,
        name_partitions(parts),
        counts + "malformed" + _describe_delay(worst),
        find_unchanged_since(
            history, lambda moment: any(_count_lost_then(moment, part) for part in parts)
        ),
        frozenset(parts),
    )


def _loses_rows(history: History, part: Partition) -> bool:
    """True if half of all events, or of those in the history, are lost."""
    now = history[-1].offset.partitions[part].state
    first = history[0].offset.partitions.get(part)
    before = first.state if first else PartitionState()
    recent = now.events - before.events
    return (now.events > 0 and 2 * _count_lost(now) >= now.events) or (
        recent > 0 and 2 * (_count_lost(now) - _count_lost(before)) >= recent
    )


def _count_lost(state: PartitionState) -> int:
    return state.dropped + state.flagged + state.malformed


def _count_lost_then(moment: BatchRecord, part: Partition) -> int:
    share = moment.offset.partitions.get(part)
    return _count_lost(share.state) if share else 0


def _has_clock(part: Partition, cti_us: int) -> Callable[[BatchRecord], bool]:
    def same(moment: BatchRecord) -> bool:
        share = moment.offset.partitions.get(part)
        return share is not None and share.state.cti_us == cti_us

    return same


def _describe_delay(state: PartitionState) -> str:
    if state.cti_us is None or state.last_us is None or state.last_us >= state.cti_us:
        return ""
    return f"; the last event is {_round_duration(state.cti_us - state.last_us)} before the CTI"


def _round_duration(us: int) -> str:
    """A duration, rounded down to a unit that is easy to read."""
    unit_us = next((unit for unit in _UNITS_US if us >= unit), 1)
    return format_duration(us // unit_us * unit_us)
