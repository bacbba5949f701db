"""Watching partitions at rest: what a running query knows between two offsets (semantics 5.3).

The rules are in `idleness`; this keeps what the last look saw, and asks the broker for open
transactions only where it matters: before a partition becomes idle, and once a second after.
"""

from collections.abc import Mapping, Set
from typing import Final, Protocol

from pyspark_timestream.kafka.plan.idleness import due, looked
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["Recorded", "Watch", "Watched"]

_AGAIN_US: Final = 1_000_000
_SETTLED_US: Final = 1_000_000
"""After so long without anything to do, one more offset tells where everything stands."""


class Recorded(Protocol):
    """What an offset says of a partition."""

    @property
    def quiet_since_us(self) -> int | None:
        """The wall clock at which it was first seen at rest; None: it was not at rest."""


class Watched(Protocol):
    """The part of the broker that is looked at."""

    troubles: int
    """How many requests failed or took long so far."""

    def in_transaction(self, ends: Mapping[Partition, int]) -> set[Partition]:
        """Those with an open transaction, or whose logs have gone on after `ends`."""


class Watch:
    """Looks at a query's partitions, for one run.

    Args:
        timeout_us: option `idleTimeout`; None: nothing becomes idle, and nothing is asked.
        across_runs: this run waits for nobody: it goes on counting from what the runs before it
            recorded, whatever the broker's troubles were meanwhile.
    """

    def __init__(self, timeout_us: int | None, across_runs: bool = False) -> None:
        self._timeout_us = timeout_us
        self._across_runs = across_runs
        self._since_us: dict[Partition, int] = {}
        self._asked_us = -_AGAIN_US
        self._troubles = 0
        self._still_since_us: int | None = None

    def resume(self, recorded: Mapping[Partition, Recorded]) -> None:
        """Go on from what the run's first offset says; only where time is counted across runs."""
        if self._across_runs:
            self._since_us = {
                part: each.quiet_since_us
                for part, each in recorded.items()
                if each.quiet_since_us is not None
            }

    def look(
        self,
        broker: Watched,
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        idle: Set[Partition],
        now_us: int,
    ) -> Mapping[Partition, int]:
        """The partitions at rest, and since when.

        Args:
            broker: what to ask for open transactions.
            positions: the next offset to read.
            ends: the ends of the logs, as they were just asked for, whatever bounds the run.
            idle: the partitions that the last offset says are idle.
            now_us: the wall clock after that.
        """
        resting = [part for part, position in positions.items() if ends.get(part) == position]
        since_us = looked(self._since_us, resting, now_us, self._troubled(broker))
        self._troubles = broker.troubles
        asked = set(due(since_us, idle, self._timeout_us, now_us))
        if self._timeout_us is not None and now_us - self._asked_us >= _AGAIN_US:
            asked |= idle & since_us.keys()
            self._asked_us = now_us
        busy = broker.in_transaction({part: ends[part] for part in asked}) if asked else set()
        if self._troubled(broker):
            since_us = looked({}, resting, now_us, troubled=True)
        self._since_us = {part: us for part, us in since_us.items() if part not in busy}
        return self._since_us

    def _troubled(self, broker: Watched) -> bool:
        return not self._across_runs and broker.troubles != self._troubles

    def settled(self, now_us: int) -> bool:
        """Whether there has been nothing to do for about a second."""
        return self._still_since_us is not None and now_us - self._still_since_us >= _SETTLED_US

    def planned(self, something: bool, now_us: int) -> None:
        """Note whether there was something to do."""
        if something:
            self._still_since_us = None
        elif self._still_since_us is None:
            self._still_since_us = now_us
