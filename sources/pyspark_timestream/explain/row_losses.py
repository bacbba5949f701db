"""Why rows are missing: a wrong event drove the clock, or the clock is too strict for the data."""

from collections.abc import Callable, Iterator, Set
from typing import Final

from pyspark_timestream.connector.instants import format_duration, format_instant
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.explain.history import History, Moment, since
from pyspark_timestream.kafka.plan.findings import Finding, Kind, names
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["far_future", "is_far", "mostly_lost"]

_AHEAD_US: Final = 60_000_000
"""A CTI so far ahead of the wall clock, with late rows behind it, is more than a clock's skew."""

_FAR_US: Final = 86_400_000_000
"""A CTI so far ahead, of the wall clock or of the late events that follow it, is a wrong one."""

_UNITS_US: Final = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)


def is_far(moment: Moment, part: Partition) -> bool:
    """Whether an event far in the future has driven the clock of `part`."""
    state = moment.offset.partitions[part].state
    if state.cti_us is None:
        return False
    ahead_us = state.cti_us - moment.planned_us
    late = state.dropped + state.adjusted + state.flagged
    gap_us = 0 if state.last_us is None else state.cti_us - state.last_us
    return ahead_us > _FAR_US or (late > 0 and (ahead_us > _AHEAD_US or gap_us > _FAR_US))


def far_future(history: History, far: frozenset[Partition]) -> Iterator[Finding]:
    """A finding for each partition of `far`: those that `is_far` is true of."""
    last = history[-1]
    for part in sorted(far):
        state = last.offset.partitions[part].state
        assert state.cti_us is not None
        text = f"its CTI is {format_instant(state.cti_us)}, "
        if state.cti_us > last.planned_us:
            text += f"{_about(state.cti_us - last.planned_us)} ahead of the wall clock"
        elif state.last_us is not None:
            text += f"{_about(state.cti_us - state.last_us)} ahead of the events that follow"
        late = state.dropped + state.adjusted + state.flagged
        text += f"; {late} of its {state.events} events came late"
        began_us = since(history, _same_clock(part, state.cti_us))
        yield Finding(Kind.FAR_FUTURE, str(part), text, began_us, frozenset([part]))


def mostly_lost(history: History, known: Set[Partition]) -> Iterator[Finding]:
    """A finding for partitions at least half of whose events are late or malformed, lately or ever.

    Those in `known` are left out: why they lose rows is known.
    """
    shares = history[-1].offset.partitions
    parts = sorted(part for part in shares if part not in known and _loses(history, part))
    if not parts:
        return
    states = [shares[part].state for part in parts]
    events, malformed = sum(s.events for s in states), sum(s.malformed for s in states)
    dropped, flagged = sum(s.dropped for s in states), sum(s.flagged for s in states)
    counts = f"of {events} events {dropped} were dropped as late, {flagged} flagged, {malformed} "
    worst = max(states, key=_lost)
    yield Finding(
        Kind.EVERYTHING_DROPPED,
        names(parts),
        counts + "malformed" + _how_late(worst),
        since(history, lambda moment: any(_lost_then(moment, part) for part in parts)),
        frozenset(parts),
    )


def _loses(history: History, part: Partition) -> bool:
    """Counted from the stream's beginning, or from as far back as the history reaches."""
    now = history[-1].offset.partitions[part].state
    first = history[0].offset.partitions.get(part)
    before = first.state if first else PartitionState()
    recent = now.events - before.events
    return (now.events > 0 and 2 * _lost(now) >= now.events) or (
        recent > 0 and 2 * (_lost(now) - _lost(before)) >= recent
    )


def _lost(state: PartitionState) -> int:
    return state.dropped + state.flagged + state.malformed


def _lost_then(moment: Moment, part: Partition) -> int:
    share = moment.offset.partitions.get(part)
    return _lost(share.state) if share else 0


def _same_clock(part: Partition, cti_us: int) -> Callable[[Moment], bool]:
    def same(moment: Moment) -> bool:
        share = moment.offset.partitions.get(part)
        return share is not None and share.state.cti_us == cti_us

    return same


def _how_late(state: PartitionState) -> str:
    if state.cti_us is None or state.last_us is None or state.last_us >= state.cti_us:
        return ""
    return f"; the last event is {_about(state.cti_us - state.last_us)} before the CTI"


def _about(us: int) -> str:
    """A duration cut to a unit that a reader can picture."""
    unit_us = next((unit for unit in _UNITS_US if us >= unit), 1)
    return format_duration(us // unit_us * unit_us)
