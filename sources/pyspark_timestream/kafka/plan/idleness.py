"""Decides which partitions are idle (semantics 5.2): quiet for at least `idleTimeout`.

A partition is quiet while everything up to the end of its log (the last stable offset) has been
read and no transaction is open on it. The driver observes the partitions repeatedly. Each
observation is folded with its wall clock, and the result is part of the offset, so that a replay of
the offset reads no clock.
"""

from collections.abc import Collection, Mapping, Set

from pyspark_timestream.kafka.ranges import Partition

__all__ = ["idle_partitions", "newly_idle", "quiet_since"]

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
