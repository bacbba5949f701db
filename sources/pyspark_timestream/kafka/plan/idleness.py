"""Decides which partitions are idle (semantics 5.2), and the time of a quiet stream (5.9).

A partition is idle that has been quiet for at least `idleTimeout`. It is quiet while everything up
to the end of its log (the last stable offset) has been read and no transaction is open on it. The
driver observes the partitions repeatedly. Each observation is folded with its wall clock, and the
result is part of the offset, so that a replay of the offset reads no clock. The same holds for the
CTI that follows the wall clock while all partitions are idle.
"""

from collections.abc import Collection, Mapping, Set
from typing import Final

from pyspark_timestream.connector.instants import MIN_US
from pyspark_timestream.cti.state import PartitionState
from pyspark_timestream.cti.stream_cti import compute_stream_cti
from pyspark_timestream.kafka.ranges import Partition

__all__ = [
    "advance_by_clock",
    "idle_partitions",
    "merge_stream_cti",
    "newly_idle",
    "quiet_since",
]

_MIN_STEP_US: Final = 1_000_000
_STEPS: Final = 10
"""How many batches without records a quiet stream makes at most in a time of `idleAdvance`."""

QuietSince = Mapping[Partition, int]
"""Quiet partitions -> the wall clock, in us, when they were first seen quiet."""


def quiet_since(
    since_us: QuietSince, resting: Collection[Partition], now_us: int, troubled: bool
) -> dict[Partition, int]:
    """Return since when each partition is quiet, after another observation.

    Args:
        since_us: the result of the previous observation.
        resting: the partitions that are quiet in this one.
        now_us: the wall clock after this observation.
        troubled: a request failed or was slow: the time before is unknown, so all quiet times
            start again. They also do if the clock was set back.
    """
    before = {} if troubled else since_us
    return {part: min(before.get(part, now_us), now_us) for part in resting}


def newly_idle(
    since_us: QuietSince, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """Return the partitions that have been quiet for the timeout and are not in `idle` yet."""
    if timeout_us is None:
        return frozenset()
    ripe = (part for part, since in since_us.items() if now_us - since >= timeout_us)
    return frozenset(ripe) - idle


def idle_partitions(
    since_us: QuietSince, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """Return the partitions that are idle now.

    An idle partition stays idle while it is quiet, also after a restart and in a bounded run, which
    do not wait for the timeout. Others become idle after the timeout.
    """
    return (frozenset(since_us) & idle) | newly_idle(since_us, idle, timeout_us, now_us)


def advance_by_clock(cti_us: int | None, advance_us: int | None, now_us: int) -> int | None:
    """Return the CTI of a stream whose partitions are all idle; None if it does not move (yet).

    It moves in steps of a tenth of `idleAdvance`, at least a second, since each is a batch.

    Args:
        cti_us: the stream's CTI by its partitions; None if it has none.
        advance_us: option `idleAdvance`; None: the CTI stays.
        now_us: the wall clock.
    """
    if advance_us is None:
        return None
    step_us = max(_MIN_STEP_US, advance_us // _STEPS)
    moved_us = now_us - advance_us
    is_far_enough = cti_us is None or moved_us >= cti_us + step_us
    return moved_us if is_far_enough and moved_us >= MIN_US else None


def merge_stream_cti(
    starts: Mapping[Partition, tuple[PartitionState, object]],
    known: Collection[Partition],
    was_idle: Set[Partition],
    idle: Set[Partition],
    emitted_us: int | None,
) -> int | None:
    """Compute the stream's CTI at the batch's start, before any state is raised to it.

    It never goes below what was emitted, even if a task proved that with a partition that is
    missing now.
    """
    holding, joining, resting = [], [], []
    for part, (state, _) in starts.items():
        if part in idle:
            resting.append(state.cti_us)
        elif part in known and part not in was_idle:
            holding.append(state.cti_us)
        else:
            joining.append(state.cti_us)
    return compute_stream_cti(holding, joining, resting, emitted_us)
