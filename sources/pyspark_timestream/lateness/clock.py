"""The clock of one partition by one delay: which events are late, and how long the others wait.

`advance` is a fold over blocks of consecutive records. It runs the rules of a query (`cti.step`) as
they are, so an event is late here exactly if it is late in a query with this delay that begins at
the same records, however the records are divided into blocks.

An event that is not late *waits* from its own record to the one right after which a CTI of the
partition is greater than its time: from then on nothing before it, and nothing at its time, can
still come. Its wait is the difference of these records' timestamps, and 0 where it is negative.
Waits need memory for every event that still waits, so they may be measured on each N-th record
alone; late events are always counted on all.
"""

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from pyspark_timestream.connector.columns import (
    NEVER,
    Instants,
    Mask,
    instant_or_none,
    instant_or_sentinel,
)
from pyspark_timestream.cti.step import Events, Marks, PartitionState, TimeRules, spread_ctis, step
from pyspark_timestream.cti.violations import LATE, check_times
from pyspark_timestream.lateness.waits import Waits

__all__ = ["Block", "DelayClock", "advance", "make_block"]

_US_PER_MS: Final = 1_000
_NOTHING: Final = np.empty(0, dtype=np.int64)


class Block(NamedTuple):
    """n consecutive records of a partition, decoded; the same for all delays.

    Attributes:
        events: the records as events.
        marks: the marks of writers among them.
        times: n instants: the times that they are judged by.
        record_us: n instants: the records' timestamps, NEVER where there is none.
        sampled: n booleans: a well-formed event whose wait is measured.
    """

    events: Events
    marks: Marks
    times: Instants
    record_us: Instants
    sampled: Mask


class _Waiting(NamedTuple):
    """Events of a block that wait for a CTI; `first_us` is the earliest of their times."""

    times: Instants
    record_us: Instants
    first_us: int


@dataclass(frozen=True, slots=True)
class DelayClock:
    """A partition's clock by one delay, and what it has seen.

    Attributes:
        state: the partition's state; its counter `flagged` is the number of late events.
        most_late_us: how far the CTI was past the time of a late event, at most; None without any.
        waits: the waits of measured events that a CTI has passed.
        waiting: the measured events that no CTI has passed yet.
        record_us: the last record's timestamp; None before the first, or if it has none.
    """

    state: PartitionState = field(default_factory=PartitionState)
    most_late_us: int | None = None
    waits: Waits = field(default_factory=Waits)
    waiting: tuple[_Waiting, ...] = ()
    record_us: int | None = None

    def count_waiting(self) -> int:
        """Count the measured events that no CTI has passed."""
        return sum(len(each.times) for each in self.waiting)


def make_block(
    events: Events, marks: Marks, record_us: Instants, first: int, sampled_every: int
) -> Block:
    """Prepare a block.

    Args:
        events: n records as events.
        marks: the marks among them.
        record_us: n instants: the records' timestamps, NEVER where there is none.
        first: how many records of the partition came before.
        sampled_every: waits are measured of the partition's records 0, N, 2 N and so on.
    """
    times, well_formed, _ = check_times(events)
    sampled = well_formed
    if sampled_every > 1:
        numbers = np.arange(first, first + len(times))
        sampled = well_formed & (numbers % sampled_every == 0)
    return Block(events, marks, times, record_us, sampled)


def advance(rules: TimeRules, clock: DelayClock, block: Block) -> DelayClock:
    """Advance the clock over the block. The policy of the rules must be `flag`."""
    if not len(block.times):
        return clock
    state, verdicts = step(rules, clock.state, block.events, block.marks)
    late = verdicts.violation == LATE
    fresh = np.flatnonzero(block.sampled & ~late)
    waiting = clock.waiting
    if len(fresh):
        times = block.times[fresh]
        waiting = (*waiting, _Waiting(times, block.record_us[fresh], int(times.min())))
    before_us = instant_or_sentinel(clock.record_us)
    left, waits = _release(
        waiting, verdicts.cti_us, _find_stamps(verdicts.cti_index, block.record_us, before_us)
    )
    places = np.flatnonzero(late)
    most_late_us = clock.most_late_us
    if len(places):
        cti_us = clock.state.cti_us
        in_force = spread_ctis(cti_us, verdicts.cti_index, verdicts.cti_us, len(late))
        most_late_us = max(int((in_force[places] - block.times[places]).max()), most_late_us or 0)
    return replace(
        clock,
        state=state,
        most_late_us=most_late_us,
        waits=clock.waits.add(waits),
        waiting=left,
        record_us=instant_or_none(block.record_us[-1]),
    )


def _find_stamps(index: Instants, record_us: Instants, before_us: int) -> Instants:
    """Find the timestamp of the record that each CTI comes right after."""
    return np.concatenate(([before_us], record_us))[index + 1]


def _release(
    waiting: tuple[_Waiting, ...], ctis_us: Instants, stamps_us: Instants
) -> tuple[tuple[_Waiting, ...], Instants]:
    """Return the events that still wait after these CTIs, and the waits, in ms, of the others.

    An event waits only if it was not late, so that every CTI above its time came after it.
    """
    if not len(ctis_us):
        return waiting, _NOTHING
    left: list[_Waiting] = []
    waits: list[Instants] = []
    for each in waiting:
        if each.first_us >= ctis_us[-1]:
            left.append(each)
            continue
        passed_by = np.searchsorted(ctis_us, each.times, side="right")
        still = passed_by == len(ctis_us)
        own_us, then_us = each.record_us[~still], stamps_us[passed_by[~still]]
        known = (own_us != NEVER) & (then_us != NEVER)
        waits.append(np.maximum(then_us[known] - own_us[known], 0) // _US_PER_MS)
        if still.any():
            times = each.times[still]
            left.append(_Waiting(times, each.record_us[still], int(times.min())))
    return tuple(left), np.concatenate(waits) if waits else _NOTHING
