"""A partition's clock by each of several delays: which events are late, how long others wait.

`advance` is a fold over blocks of consecutive records that runs the rules of a query unchanged. So
an event is late here exactly if it is late in a query with this delay that begins at the same
records, however these are divided into blocks. Each block is decoded once for all delays.

An event that is not late *waits* from its own record to the one right after which a CTI of its
partition exceeds its time: from then on no event at or before its time can come. Its wait is the
difference of the two records' timestamps, or 0 if that is negative. Every waiting event takes
memory, so waits may be measured only on each N-th record; late events are counted on all.

Waits are counted in classes, so any number takes the same memory. Waits below 128 ms have a class
each; above, each doubling has 128 classes, so a quantile is at most 0.8 % too high. The greatest
wait is exact.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from pyspark_timestream.core.event_time import read_record_times
from pyspark_timestream.core.instants import (
    MILLISECOND_US,
    NEVER,
    Instants,
    Mask,
    instant_or_none,
    instant_or_sentinel,
)
from pyspark_timestream.core.policies import KEEP_ALL
from pyspark_timestream.kafka.decode.payload import read_payload, required_columns
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.state import Events, PartitionState, TimeRules
from pyspark_timestream.rules.step import LATE, check_times, step

_BITS: Final = 7
_FIRST: Final = 1 << _BITS
"""The number of one-millisecond classes, and of the classes in each doubling above them."""

_CLASSES: Final = (64 - _BITS) * _FIRST


@dataclass(frozen=True, slots=True)
class Waits:
    """The number of waits in each class, and the greatest wait."""

    counts: Instants = field(default_factory=lambda: np.zeros(_CLASSES, dtype=np.int64))
    greatest_ms: int | None = None

    def add(self, ms: Instants) -> "Waits":
        """Count n more waits, none of them negative."""
        if not len(ms):
            return self
        more = np.bincount(_find_classes(ms), minlength=_CLASSES)
        return Waits(self.counts + more, max(int(ms.max()), self.greatest_ms or 0))

    def merge(self, other: "Waits") -> "Waits":
        """Return the waits of both."""
        both = [each for each in (self.greatest_ms, other.greatest_ms) if each is not None]
        return Waits(self.counts + other.counts, max(both, default=None))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def summarize_us(self) -> tuple[int | None, int | None, int | None]:
        """Return the waits that 50 %, 95 % and 100 % do not exceed; None without any."""
        values_ms = self.find_quantile(0.5), self.find_quantile(0.95), self.greatest_ms
        median_us, most_us, all_us = (
            None if ms is None else ms * MILLISECOND_US for ms in values_ms
        )
        return median_us, most_us, all_us

    def find_quantile(self, share: float) -> int | None:
        """Return the least wait, in ms and rounded up, that this share of all does not exceed."""
        if self.greatest_ms is None:
            return None
        reached = np.cumsum(self.counts)
        place = int(np.searchsorted(reached, max(share * reached[-1], 1)))
        return min(_find_last_of_class(place), self.greatest_ms)


def _find_classes(ms: Instants) -> Instants:
    doublings = np.maximum(np.frexp(ms.astype(np.float64))[1] - 1 - _BITS, 0).astype(np.int64)
    # The logarithm of a number just below a power of two may be rounded up to the next.
    doublings -= (ms >> doublings) < np.where(doublings > 0, _FIRST, 0)
    classes: Instants = doublings * _FIRST + (ms >> doublings)
    return classes


def _find_last_of_class(number: int) -> int:
    """Return the greatest wait of a class.

    >>> [_find_last_of_class(each) for each in (3, 127, 128, 255, 256, 257)]
    [3, 127, 128, 255, 257, 259]
    """
    doublings = max(number // _FIRST - 1, 0)
    return ((number - doublings * _FIRST + 1) << doublings) - 1


_NOTHING: Final = np.empty(0, dtype=np.int64)


class Block(NamedTuple):
    """n consecutive records of a partition, decoded; the same for all delays.

    `times` decide whether they are late. `record_us` are the records' timestamps, NEVER where there
    is none, and `sampled` is true where an event is well-formed and its wait is measured.
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
    """A partition's clock by one delay, and its measurements; late events are flagged.

    `record_us` is the last record's timestamp, `most_late_us` the most that the CTI was past the
    time of a late event.
    """

    state: PartitionState = field(default_factory=PartitionState)
    most_late_us: int | None = None
    waits: Waits = field(default_factory=Waits)
    waiting: tuple[_Waiting, ...] = ()
    record_us: int | None = None

    def count_waiting(self) -> int:
        """Count the measured events that no CTI has passed yet."""
        return sum(len(each.times) for each in self.waiting)


def make_block(
    events: Events, marks: Marks, record_us: Instants, first: int, sampled_every: int
) -> Block:
    """Prepare a block that `first` records precede; measure waits on each N-th record."""
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
    state, result = step(rules, clock.state, block.events, block.marks)
    late = result.violation == LATE
    fresh = np.flatnonzero(block.sampled & ~late)
    waiting = clock.waiting
    if len(fresh):
        times = block.times[fresh]
        waiting = (*waiting, _Waiting(times, block.record_us[fresh], int(times.min())))
    # The timestamp of the record that each CTI directly follows.
    before_us = instant_or_sentinel(clock.record_us)
    stamps_us = np.concatenate(([before_us], block.record_us))[result.cti_index + 1]
    still_waiting, waits = _release(waiting, result.cti_us, stamps_us)
    places = np.flatnonzero(late)
    most_late_us = clock.most_late_us
    if len(places):
        late_by_us = result.in_force_us[places] - block.times[places]
        most_late_us = max(int(late_by_us.max()), most_late_us or 0)
    return replace(
        clock,
        state=state,
        most_late_us=most_late_us,
        waits=clock.waits.add(waits),
        waiting=still_waiting,
        record_us=instant_or_none(block.record_us[-1]),
    )


def _release(
    waiting: tuple[_Waiting, ...], ctis_us: Instants, stamps_us: Instants
) -> tuple[tuple[_Waiting, ...], Instants]:
    """Return the events that still wait after these CTIs, and the waits of the others in ms.

    Only events that are not late wait, so every CTI above an event's time came after the event.
    """
    if not len(ctis_us):
        return waiting, _NOTHING
    still_waiting: list[_Waiting] = []
    waits: list[Instants] = []
    for each in waiting:
        if each.first_us >= ctis_us[-1]:
            still_waiting.append(each)
            continue
        passed_by = np.searchsorted(ctis_us, each.times, side="right")
        still = passed_by == len(ctis_us)
        own_us, then_us = each.record_us[~still], stamps_us[passed_by[~still]]
        has_both = (own_us != NEVER) & (then_us != NEVER)
        waits.append(np.maximum(then_us[has_both] - own_us[has_both], 0) // MILLISECOND_US)
        if still.any():
            times = each.times[still]
            still_waiting.append(_Waiting(times, each.record_us[still], int(times.min())))
    return tuple(still_waiting), np.concatenate(waits) if waits else _NOTHING


_MAX_SAMPLED: Final = 500_000
"""Measure the waits of about this many events: each delay keeps some of them in memory."""


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """One partition at its end: its clock by each delay, and the bounds of timestamps."""

    clocks: tuple[DelayClock, ...]
    first_us: int | None
    last_us: int | None


def choose_sampling(offsets: int) -> int:
    """Return N such that the waits of each N-th record are measured.

    N is odd, so that the sample includes all phases of an alternation, such as of two producers.

    >>> choose_sampling(999_999), choose_sampling(1_000_000), choose_sampling(100_000_000)
    (1, 3, 201)
    """
    return offsets // _MAX_SAMPLED | 1


def list_columns(options: KafkaOptions) -> ColumnSet:
    """Return the columns to read of each record: those of the clock, and the timestamps."""
    return required_columns(options, None)._replace(timestamps=True)


def follow_partition(
    options: KafkaOptions,
    delays_us: Sequence[int],
    sampled_every: int,
    blocks: Iterable[RecordBlock],
) -> FollowedPartition:
    """Follow a partition through all its blocks; the delay and policy of options do not matter."""
    # Only late events are flagged, so they can be counted; no policy moves a clock (semantics 2.5).
    rules = [
        replace(options.rules, delay_us=each, policy=KEEP_ALL, time_window=False)
        for each in delays_us
    ]
    clocks = tuple(DelayClock() for _ in delays_us)
    records, stamps_us = 0, list[int]()
    for block in blocks:
        payload = read_payload(options, None, block)
        us, has_time = read_record_times(block.timestamps_ms)
        record_us = np.where(has_time, us, NEVER)
        shared = make_block(payload.events, payload.marks, record_us, records, sampled_every)
        clocks = tuple(map(advance, rules, clocks, repeat(shared)))
        records += len(block.offsets)
        if has_time.any():
            stamps_us += [int(us[has_time].min()), int(us[has_time].max())]
    return FollowedPartition(clocks, min(stamps_us, default=None), max(stamps_us, default=None))
