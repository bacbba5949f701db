"""Which partitions are idle (semantics 5.2): at rest for `idleTimeout`, and nothing unsure.

A partition is at rest while everything up to the end of its log (the last stable offset) has been
read and no transaction is open on it. The driver looks again and again; each look is folded with
the wall clock that it was made at, and what follows is part of the offset. A replay of the offset
reads no clock.
"""

from collections.abc import Collection, Mapping, Set

from pyspark_timestream.kafka.ranges import Partition

__all__ = ["due", "idle_partitions", "looked"]

Since = Mapping[Partition, int]
"""Partitions at rest -> the wall clock, in us, at which they were first seen so."""


def looked(
    since_us: Since, resting: Collection[Partition], now_us: int, troubled: bool
) -> dict[Partition, int]:
    """Since when each partition is at rest, after another look.

    Args:
        since_us: after the look before.
        resting: the partitions that this look found at rest.
        now_us: the wall clock after this look.
        troubled: a request failed or took long: nothing is known of the time before, so that
            all waiting begins anew. So it does where the clock was set back.
    """
    before = {} if troubled else since_us
    return {part: min(before.get(part, now_us), now_us) for part in resting}


def due(
    since_us: Since, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """The partitions that have been at rest for the timeout and are not in `idle` yet."""
    if timeout_us is None:
        return frozenset()
    ripe = (part for part, since in since_us.items() if now_us - since >= timeout_us)
    return frozenset(ripe) - idle


def idle_partitions(
    since_us: Since, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """The partitions that are idle now.

    One that was idle stays so while it is at rest, also in a bounded run and after a restart,
    which wait for no timeout; others become idle when they are due.
    """
    return (frozenset(since_us) & idle) | due(since_us, idle, timeout_us, now_us)
