"""How far each partition may be read: to the end of its log, or to the bounds of the run.

A bounded run (semantics 7.1) reads to the ends of one moment. Bounds that are too low are only late
where another run follows, but a final CTI (7.3, 11.12) would cut off what lies above them for good.
Metadata may lack a partition for a moment, and a broker that no longer leads a partition may return
an old end of its log: so a running stream takes its bounds once nothing that it has read is
missing, and none of them is below what it has seen.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pyspark_timestream.kafka.driver.partition_cache import PartitionCache
from pyspark_timestream.kafka.plan.losses import LEADER_CHANGE_GRACE_S
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["RunEnds"]

Ends = dict[Partition, int]


class EndsBroker(Protocol):
    """The queries that `RunEnds` sends to the broker."""

    def ends(self, partitions: Iterable[Partition]) -> Ends:
        """Return the offset after the last readable record of each."""

    def written_ends(self, partitions: Iterable[Partition]) -> Ends:
        """Return the offset after the last record of each, those of open transactions too."""


class RunEnds:
    """The ends of the partitions in one run.

    Args:
        get_broker: returns the connected broker.
        partition_cache: lists the partitions.
    """

    def __init__(
        self, get_broker: Callable[[], EndsBroker], partition_cache: PartitionCache
    ) -> None:
        self._get_broker = get_broker
        self._partition_cache = partition_cache
        self._bounds: Ends | None = None
        self._bound_written: Ends = {}
        self.log_ends: Ends = {}
        """The ends of the logs when they were last asked for."""

    @property
    def is_bounded(self) -> bool:
        """True if this is a bounded run."""
        return self._bounds is not None

    def limit(self, bounds: Mapping[Partition, int]) -> None:
        """Read no further than `bounds`."""
        self._bounds = dict(bounds)

    def limit_to_current_ends(self, seen: Mapping[Partition, int], has_import: bool) -> None:
        """Read no further than the current ends.

        Args:
            seen: ends that the logs have had in this run: no bound is below them.
            has_import: imported CTIs wait for the ends of open transactions too.
        """
        if has_import:
            partitions = self._partition_cache.get(fresh=True)
            self._bound_written = self._get_broker().written_ends(partitions)
        ends = self.get(fresh=True)
        self._bounds = {**seen, **{part: max(end, seen.get(part, 0)) for part, end in ends.items()}}

    def get(self, fresh: bool = False) -> Ends:
        """Return how far each partition may be read now."""
        self.log_ends = self._get_broker().ends(self._partition_cache.get(fresh))
        if self._bounds is None:
            return self.log_ends
        # A topic truncated since the run began ends before its bound.
        return {
            part: min(bound, self.log_ends.get(part, bound)) for part, bound in self._bounds.items()
        }

    def wait_for(self, wanted: Mapping[Partition, int]) -> Ends:
        """Return the ends, once the logs reach `wanted` or have failed to for long enough.

        A partition taken for lost would be read from its beginning when it is found again.
        """
        ends = self.get()
        deadline = time.monotonic() + LEADER_CHANGE_GRACE_S
        while not self.reaches(wanted) and time.monotonic() < deadline:
            time.sleep(LEADER_CHANGE_GRACE_S / 10)
            ends = self.get(fresh=True)
        return ends

    def reaches(self, wanted: Mapping[Partition, int]) -> bool:
        """Check that the log of every partition of `wanted` reaches its offset."""
        return all(self.log_ends.get(part, -1) >= offset for part, offset in wanted.items())

    def get_written(self) -> Ends:
        """Return the ends of the logs, including the records of open transactions.

        Call this after reading the imported topic and before asking for the stable ends: a batch
        that reads up to those has then read everything below these ends.
        """
        if self._bounds is not None:
            return dict(self._bound_written)
        return self._get_broker().written_ends(self._partition_cache.get())
