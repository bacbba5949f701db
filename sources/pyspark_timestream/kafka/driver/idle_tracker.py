"""Tracks quiet partitions between two offsets (semantics 5.3).

The rules are in `idleness`. This keeps the last observation, and asks the broker for open
transactions only when it matters: before a partition becomes idle, and once a second after that.
"""

from collections.abc import Mapping, Set
from typing import Final, Protocol

from pyspark_timestream.kafka.plan.idleness import newly_idle, quiet_since
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["IdleTracker", "QuietRecord", "WatchedBroker"]

_TRANSACTION_CHECK_INTERVAL_US: Final = 1_000_000
_SETTLED_AFTER_US: Final = 1_000_000
"""Time without new records after which one more offset records the final positions."""


class QuietRecord(Protocol):
    """The quiet time of a partition in an offset."""

    @property
    def quiet_since_us(self) -> int | None:
        """The wall clock when it was first seen quiet; None if it was not quiet."""


class WatchedBroker(Protocol):
    """The queries that the tracker sends to the broker."""

    trouble_count: int
    """Number of requests so far that failed or were slow."""

    def open_transactions(self, ends: Mapping[Partition, int]) -> set[Partition]:
        """Return partitions with an open transaction, or with a log that continues after `ends`."""


class IdleTracker:
    """Tracks the quiet partitions of one run.

    Args:
        timeout_us: option `idleTimeout`; None disables idleness, and no request is sent.
        across_runs: quiet time counts across runs: this run continues from the recorded times,
            even if requests failed since then.
    """

    def __init__(self, timeout_us: int | None, across_runs: bool = False) -> None:
        self._timeout_us = timeout_us
        self._across_runs = across_runs
        self._since_us: dict[Partition, int] = {}
        self._asked_us = -_TRANSACTION_CHECK_INTERVAL_US
        self._troubles = 0
        self._still_since_us: int | None = None

    def resume(self, recorded: Mapping[Partition, QuietRecord]) -> None:
        """Continue from the times in the last offset, if quiet time counts across runs."""
        if self._across_runs:
            self._since_us = {
                part: each.quiet_since_us
                for part, each in recorded.items()
                if each.quiet_since_us is not None
            }

    def update(
        self,
        broker: WatchedBroker,
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        idle: Set[Partition],
        now_us: int,
    ) -> Mapping[Partition, int]:
        """Return the quiet partitions, and since when they are quiet.

        Args:
            broker: knows the open transactions.
            positions: the next offset to read.
            ends: the current ends of the logs, regardless of the run's bounds.
            idle: the partitions that are idle in the last offset.
            now_us: the wall clock after the ends were read.
        """
        resting = [part for part, position in positions.items() if ends.get(part) == position]
        since_us = quiet_since(self._since_us, resting, now_us, self._troubled(broker))
        self._troubles = broker.trouble_count
        asked = set(newly_idle(since_us, idle, self._timeout_us, now_us))
        if (
            self._timeout_us is not None
            and now_us - self._asked_us >= _TRANSACTION_CHECK_INTERVAL_US
        ):
            asked |= idle & since_us.keys()
            self._asked_us = now_us
        busy = broker.open_transactions({part: ends[part] for part in asked}) if asked else set()
        if self._troubled(broker):
            since_us = quiet_since({}, resting, now_us, troubled=True)
        self._since_us = {part: us for part, us in since_us.items() if part not in busy}
        return self._since_us

    def _troubled(self, broker: WatchedBroker) -> bool:
        return not self._across_runs and broker.trouble_count != self._troubles

    def is_settled(self, now_us: int) -> bool:
        """Check whether there has been nothing to do for about a second."""
        return (
            self._still_since_us is not None and now_us - self._still_since_us >= _SETTLED_AFTER_US
        )

    def note_batch(self, has_work: bool, now_us: int) -> None:
        """Record whether the batch had something to do."""
        if has_work:
            self._still_since_us = None
        elif self._still_since_us is None:
            self._still_since_us = now_us
