"""Idle partitions (semantics 5.2), and aligned reading (5.10).

A partition becomes idle once it has been caught up for `idleTimeout`: it is read up to the end of
its log (the last stable offset), and no transaction is open on it. The driver observes this with
the wall clock again and again. The result is part of the offset, so that a replay reads no clock.
The same holds for the CTI that follows the wall clock while all partitions are idle.

In a backlog, partitions with fewer records an hour run ahead in event time, and their rows wait in
Spark's state for the stream's CTI, the minimum. `maxSkew` therefore gives every batch a *bound*:
the time of the slowest partition plus the skew. It only cuts ranges: rows, CTIs in force and
counters stay those of any other division into batches.

The slowest of the *aligned* partitions, those with a backlog, gives the bound. A partition at or
after the bound *waits*: the batch reads one offset of it. Others are read up to the bound, by the
broker's time index or by an estimate from their pace. Every partition with a backlog reads at least
one offset, so that a range of transaction markers or malformed events does not stop it, and a
bounded run ends.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from pyspark_timestream.core.instants import MIN_US
from pyspark_timestream.kafka.offsets.stream_state import MaxSkew, StreamState
from pyspark_timestream.kafka.ranges import Partition

_MIN_STEP_US: Final = 1_000_000
_STEPS: Final = 10
"""Maximum number of batches without records that an idle stream makes per `idleAdvance`."""

CaughtUpSince = Mapping[Partition, int]
"""Partition that has caught up -> the wall clock, in us, when the driver first saw that."""


def find_caught_up(
    since_us: CaughtUpSince, caught_up: Collection[Partition], now_us: int, troubled: bool
) -> dict[Partition, int]:
    """Return since when each partition of `caught_up` has been so.

    After trouble (a request failed or was slow) nothing is known of the time before, so all times
    start again. They also do if the clock was set back.
    """
    before = {} if troubled else since_us
    return {partition: min(before.get(partition, now_us), now_us) for partition in caught_up}


def newly_idle(
    since_us: CaughtUpSince, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """Return the partitions that have been caught up for the timeout but are not idle yet."""
    if timeout_us is None:
        return frozenset()
    ripe = (partition for partition, since in since_us.items() if now_us - since >= timeout_us)
    return frozenset(ripe) - idle


def idle_partitions(
    since_us: CaughtUpSince, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """Return the partitions that are idle now.

    An idle partition stays idle while it is caught up; after a restart and in a bounded run it need
    not wait for the timeout again. Others become idle after the timeout.
    """
    return (frozenset(since_us) & idle) | newly_idle(since_us, idle, timeout_us, now_us)


def advance_by_clock(cti_us: int | None, advance_us: int | None, now_us: int) -> int | None:
    """Return the CTI of a stream with idle partitions only; None if it does not move now.

    `cti_us` is the CTI that its partitions give, `advance_us` is option `idleAdvance`. The CTI
    moves in steps of a tenth of that, at least a second, because each step is a batch.
    """
    if advance_us is None:
        return None
    step_us = max(_MIN_STEP_US, advance_us // _STEPS)
    moved_us = now_us - advance_us
    is_far_enough = cti_us is None or moved_us >= cti_us + step_us
    return moved_us if is_far_enough and moved_us >= MIN_US else None


MIN_READ: Final = 100
"""So few offsets are not worth a batch of their own, and take hardly any state."""

_GROWTH: Final = 4
"""By an estimate, a partition reads at most so many times the offsets of its last batch."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """How far a batch may read, before the driver asks the broker's time index.

    Attributes:
        bound_us: partitions are read up to the first event at or after this time; None while no
            partition's time is known.
        estimates: aligned partition -> about how many offsets lie before the bound, at least one.
            Other partitions are read to their ends.
        waiting: aligned partitions with a time at or after the bound.
        slowest: aligned partitions that give the bound.
    """

    bound_us: int | None = None
    estimates: Mapping[Partition, int] = field(default_factory=dict)
    waiting: frozenset[Partition] = frozenset()
    slowest: frozenset[Partition] = frozenset()

    def instants_ms(self) -> dict[Partition, int]:
        """Return the partitions to look up in the time index, with the timestamp in ms."""
        if self.bound_us is None or self.bound_us < 0:
            return {}
        bound_ms = -(-self.bound_us // 1_000)
        return {
            partition: bound_ms for partition in self.estimates if partition not in self.waiting
        }


@dataclass(frozen=True, slots=True)
class _Pace:
    """A partition's last batch: its time before, its time after, and the number of offsets."""

    before_us: int | None
    last_us: int | None
    size: int

    def steady_time(self, skew_us: int) -> int | None:
        """Return the partition's time; if it jumped by more than the skew, the time before."""
        if self.before_us is None or self.last_us is None:
            return self.last_us
        return self.before_us if self.last_us - self.before_us > skew_us else self.last_us

    def estimate(self, bound_us: int | None) -> int:
        """Estimate how many offsets lie before the bound."""
        most = _GROWTH * self.size + MIN_READ
        if bound_us is None or self.before_us is None or self.last_us is None:
            return most
        gain_us = self.last_us - self.before_us
        if gain_us < 0:
            return max(self.size, MIN_READ)
        if gain_us == 0:
            return most
        return min(max(self.size * (bound_us - self.last_us) // gain_us, MIN_READ), most)


def find_alignment(state: StreamState, ends: Mapping[Partition, int]) -> Alignment:
    """Return how far the next batch may read, if logs can be read up to `ends`."""
    skew, positions, limit = state.run.max_skew, state.snapshot.positions, state.run.max_offsets
    if skew is None:
        return Alignment()
    backlog = {
        partition: ends.get(partition, position) - position
        for partition, position in positions.items()
    }
    is_met = limit is None or sum(max(size, 0) for size in backlog.values()) <= limit
    aligned = [
        partition for partition, size in backlog.items() if size > (MIN_READ if is_met else 0)
    ]
    if len(aligned) < 2:
        return Alignment()
    paces = {partition: _find_pace(state, partition, skew) for partition in aligned}
    times = {partition: pace.steady_time(skew.us) for partition, pace in paces.items()}
    least_us = min((us for us in times.values() if us is not None), default=None)
    if least_us is None:
        return Alignment(
            None, {partition: pace.estimate(None) for partition, pace in paces.items()}
        )
    bound_us = least_us + skew.us
    slowest = frozenset(partition for partition, us in times.items() if us == least_us)
    ahead = {
        partition
        for partition, pace in paces.items()
        if pace.last_us is not None
        and pace.last_us >= bound_us
        # A partition without a CTI must not wait: until it has one, the stream has none.
        and (skew.delay_us is None or state.clock_of(partition).cti_us is not None)
    }
    estimates = {partition: pace.estimate(bound_us) for partition, pace in paces.items()}
    return Alignment(bound_us, estimates, frozenset(ahead) - slowest, slowest)


def _find_pace(state: StreamState, partition: Partition, skew: MaxSkew) -> _Pace:
    last = state.last_of(partition)
    if last is None:
        return _Pace(None, None, 0)
    size = last.size
    return _Pace(skew.time_of(last.state), skew.time_of(state.clock_of(partition)), size)


def align_ends(
    alignment: Alignment,
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    time_index: Mapping[Partition, int | None],
) -> tuple[dict[Partition, int], frozenset[Partition]]:
    """Return the ends up to which the batch may read, and the partitions that wait.

    `time_index` answers `alignment.instants_ms()`, as in `plan_next_offset`.
    """
    cut, waiting = dict(ends), set(alignment.waiting)
    for partition, estimate in alignment.estimates.items():
        position = positions[partition]
        at_bound = time_index.get(partition, position - 1)
        if at_bound == position and partition not in alignment.slowest:
            waiting.add(partition)
        if partition in waiting:
            end = position + 1
        elif at_bound is None or at_bound > position:
            end = ends[partition] if at_bound is None else at_bound
        else:
            end = position + estimate
        cut[partition] = min(end, ends[partition])
    return cut, frozenset(waiting)
