"""Finds why rows, or what is in them, are missing.

A clock ahead drove the CTI, the delay is too short, or values and keys are malformed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.connector.instants import (
    format_duration,
    format_instant,
    parse_duration,
)
from pyspark_timestream.cti.clues import FAR_US, MAX_LEAD_US
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.explain.history import BatchRecord, History, find_unchanged_since
from pyspark_timestream.kafka.plan.findings import (
    FIXES,
    Finding,
    Kind,
    find_well,
    list_counts,
    name_partitions,
)
from pyspark_timestream.kafka.plan.malformed_values import NEXT_STEPS
from pyspark_timestream.kafka.ranges import Partition

__all__ = [
    "MalformedReason",
    "count_malformed_reasons",
    "find_late_rows",
    "find_lossy_partitions",
    "is_far",
    "report_far_future",
    "round_duration",
]

_MAX_AHEAD_US: Final = 86_400_000_000
"""A CTI further ahead of the wall clock, or of the late events after it, is wrong."""

_MIN_AGREED_US: Final = 3_600_000_000
"""By as much most events, in order among themselves, must be late to show that a clock is ahead."""

_MIN_FUTURE_US: Final = 60_000_000
"""The least `maxFuture` that is proposed: clocks that are right differ by less."""

_MIN_LATE: Final = 10
"""Fewer late events do not show an order."""

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
    """True if a clock ahead has driven the CTI of `part`."""
    state = moment.offset.partitions[part].state
    if state.cti_us is None:
        return False
    ahead_us, late = _measure_lead(moment, state), _count_late(state)
    if ahead_us > _MAX_AHEAD_US or not late:
        return ahead_us > _MAX_AHEAD_US
    return (
        2 * state.clues.ahead >= late
        or ahead_us > MAX_LEAD_US
        or _measure_gap(state) > _MAX_AHEAD_US
        or _is_majority_late(state)
    )


def _count_late(state: PartitionState) -> int:
    """The late events, without those whose times seem to be in another unit."""
    late = state.dropped + state.adjusted + state.flagged
    return max(late - state.clues.early, 0) if state.clues.has_other_unit else late


def _measure_lead(moment: BatchRecord, state: PartitionState) -> int:
    """How far the CTI is ahead of the wall clock; a task of a batch read has none."""
    if state.cti_us is None or not moment.planned_us:
        return 0
    return max(state.cti_us - moment.planned_us, 0)


def _measure_gap(state: PartitionState) -> int:
    """How far the CTI is ahead of the last late event."""
    behind_us = state.last_us if state.clues.behind_us is None else state.clues.behind_us
    if state.cti_us is None or state.last_us is None or behind_us is None:
        return 0
    return state.cti_us - behind_us if state.last_us < state.cti_us else 0


def _is_majority_late(state: PartitionState) -> bool:
    """True if most events are late by far, and in order among themselves: the others are wrong."""
    late, clues = _count_late(state), state.clues
    is_far = clues.most_late_us > _MIN_AGREED_US
    return is_far and late >= _MIN_LATE and 2 * late >= state.events and 10 * clues.misplaced < late


def report_far_future(history: History, far: frozenset[Partition]) -> Iterator[Finding]:
    """A finding for the partitions in `far`, those for which `is_far` is true."""
    last, settings = history[-1], history[-1].offset.settings
    states = {part: last.offset.partitions[part].state for part in far}
    # A last event of 2100 or later that made none late is told as an improbable time.
    far = frozenset(
        part
        for part, state in states.items()
        if _count_late(state) or (state.last_us or 0) < FAR_US
    )
    if not far:
        return
    states = {part: states[part] for part in far}
    parts = sorted(far, key=lambda part: (-_count_late(states[part]), part))
    worst = states[parts[0]]
    late = sum(map(_count_late, states.values()))
    events = sum(state.events for state in states.values())
    text = f"{_describe_lead(last, worst)}; {late} of {events} events came late"
    counts = {part: count for part in parts if (count := _count_late(states[part]))}
    if len(parts) > 1 and counts:
        text += f": {list_counts(counts)}"
    has_lead = any(state.clues.ahead or state.clues.lead_us for state in states.values())
    yield Finding(
        Kind.FAR_FUTURE,
        name_partitions(parts),
        text,
        find_unchanged_since(history, _has_clock(parts[0], worst.cti_us)),
        frozenset(parts),
        level=late.bit_length(),
        advice=_advise_right_clock(settings, has_lead),
    )


def _describe_lead(moment: BatchRecord, state: PartitionState) -> str:
    assert state.cti_us is not None
    cti, lead_us = format_instant(state.cti_us), state.clues.lead_us
    if lead_us is not None:
        return f"an event {round_duration(lead_us)} after its record's timestamp made the CTI {cti}"
    if _measure_lead(moment, state):
        # No duration: an offset with a text that changes by itself would make a batch of its own.
        return f"its CTI is {cti}, ahead of the wall clock"
    gap_us = max(_measure_gap(state), state.clues.most_late_us)
    if gap_us > 0:
        return f"its CTI is {cti}, {round_duration(gap_us)} ahead of the events that follow"
    return f"events far after their records' timestamps made the CTI, which is {cti} by now"


def _advise_right_clock(settings: Mapping[str, str], has_lead: bool) -> str:
    """The way on after a clock ahead; `has_lead`: the records' timestamps show it."""
    if "ctiFrequency" not in settings:
        return (
            "correct the clock of the writer whose mark is ahead, and start with a new checkpoint, "
            "since a CTI never goes back"
        )
    limit = _propose_max_future(settings)
    start = "correct that clock; a CTI never goes back, so start with a new checkpoint and with "
    if not has_lead:
        ways = [
            way
            for way, is_open in (
                (
                    "'writerFrom', the field or header that names the device, so that each has a "
                    "clock of its own",
                    "writerFrom" not in settings,
                ),
                (
                    f"'maxFuture' = '{limit}', once the broker sets the records' timestamps (the "
                    "topic's 'message.timestamp.type' is 'LogAppendTime'): those of the producer "
                    "may come from the same clock",
                    settings.get("startTime") != "timestamp",
                ),
            )
            if is_open
        ]
        return start + (", or with ".join(ways) or "that device's records in another topic")
    before = settings.get("maxFuture")
    instead = "" if before is None else f" in place of '{before}'"
    return f"{start}'maxFuture' = '{limit}'{instead}: events further ahead drive no clock"


def _propose_max_future(settings: Mapping[str, str]) -> str:
    """A `maxFuture` by which no CTI is ahead of its record, unless the delay is too short."""
    delay_us = parse_duration(settings.get("ctiDelay", "0 seconds"))
    return format_duration(max(delay_us, _MIN_FUTURE_US))


def find_late_rows(history: History, known: Set[Partition] = frozenset()) -> Iterator[Finding]:
    """A finding for partitions that dropped late events; its level grows as they double.

    Those in `known` are left out: the reason for their late rows is known.
    """
    shares = history[-1].offset.partitions
    dropped = {
        part: count
        for part, share in shares.items()
        if part not in known and (count := min(share.state.dropped, _count_late(share.state)))
    }
    if not dropped:
        return
    total, events = sum(dropped.values()), sum(each.state.events for each in shares.values())
    parts = sorted(dropped, key=lambda part: (-dropped[part], part))
    yield Finding(
        Kind.LATE_ROWS,
        name_partitions(parts),
        f"{total} of {events} events came after a CTI that they precede and were dropped: "
        + list_counts(dropped),
        find_unchanged_since(history, lambda moment: _has_dropped(moment, parts)),
        frozenset(parts),
        level=total.bit_length(),
        advice=_advise_delay(
            history[-1].offset.settings, [shares[part].state for part in parts], "if too many are"
        ),
        share=total / max(sum(shares[part].state.events for part in parts), 1),
        well=frozenset(find_well(dropped, {part: shares[part].state.events for part in parts})),
    )


def _has_dropped(moment: BatchRecord, parts: Sequence[Partition]) -> bool:
    shares = (moment.offset.partitions.get(part) for part in parts)
    return any(share is not None and share.state.dropped > 0 for share in shares)


def _advise_delay(
    settings: Mapping[str, str], states: Sequence[PartitionState], condition: str
) -> str:
    """The delay by which none of the events were late; empty if that is not known."""
    most_late_us = max(state.clues.most_late_us for state in states)
    if "ctiFrequency" not in settings:
        return (
            f"{condition} late, let the writers note a time only once all before it is sent, or "
            "start with a new checkpoint and 'violationPolicy' = 'flag' to keep them as rows"
        )
    if not most_late_us or not settings.keys().isdisjoint(("ctiHeader", "ctiImport")):
        return ""
    delay_us = parse_duration(settings.get("ctiDelay", "0 seconds")) + most_late_us
    keep = (
        ""
        if settings.get("violationPolicy") == "flag"
        else (", or with 'violationPolicy' = 'flag' to keep them as rows")
    )
    return (
        f"{condition} late, start with a new checkpoint and 'ctiDelay' = "
        f"'{_round_up(delay_us)}', by which none of them would have been{keep}"
    )


def _round_up(us: int) -> str:
    """A duration, rounded up to a unit that is easy to read."""
    unit_us = next((unit for unit in _UNITS_US[1:] if us >= 10 * unit), 1_000)
    return format_duration(-(-us // unit_us) * unit_us)


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
    has_late = 2 * malformed < dropped + flagged + malformed
    settings = history[-1].offset.settings
    yield Finding(
        Kind.EVERYTHING_DROPPED,
        name_partitions(parts),
        counts + "malformed" + _describe_delay(worst),
        find_unchanged_since(
            history, lambda moment: any(_count_lost_then(moment, part) for part in parts)
        ),
        frozenset(parts),
        advice=_advise_delay(settings, states, "if they are not meant to be") if has_late else "",
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
    return max(_count_late(state) - state.adjusted, 0) + state.malformed


def _count_lost_then(moment: BatchRecord, part: Partition) -> int:
    share = moment.offset.partitions.get(part)
    return _count_lost(share.state) if share else 0


def _has_clock(part: Partition, cti_us: int | None) -> Callable[[BatchRecord], bool]:
    def same(moment: BatchRecord) -> bool:
        share = moment.offset.partitions.get(part)
        return share is not None and share.state.cti_us == cti_us

    return same


def _describe_delay(state: PartitionState) -> str:
    if state.cti_us is None or state.last_us is None or state.last_us >= state.cti_us:
        return ""
    return f"; the last event is {round_duration(state.cti_us - state.last_us)} before the CTI"


def round_duration(us: int) -> str:
    """A duration, rounded down to a unit that is easy to read."""
    unit_us = next((unit for unit in _UNITS_US if us >= unit), 1)
    return format_duration(us // unit_us * unit_us)
