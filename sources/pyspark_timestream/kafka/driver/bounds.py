"""How far each partition may be read, and what the driver remembers of the brokers.

A bounded run (semantics 7.1) reads to the ends of one moment. Bounds that are too low are only late
where another run follows, but a final CTI (7.3, 11.12) would cut off what lies above them for good.
Metadata may lack a partition for a moment, and a broker that no longer leads a partition may return
an old end of its log: so a running stream takes its bounds once nothing that it has read is
missing, and none of them is below what it has seen.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.offsets.positions import LEADER_CHANGE_GRACE_S
from pyspark_timestream.kafka.ranges import Partition


def make_steady_clock() -> Callable[[], int]:
    """Create a clock, in us, that starts at the wall clock and does not follow its jumps."""
    ahead_us = (time.time_ns() - time.monotonic_ns()) // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000


_REFRESH_AGE_S: Final = 1.0
"""Age after which the partitions are refreshed in the background."""

_MAX_AGE_S: Final = 2.0
"""Age after which the cache is not used: rare batches must not miss new partitions."""


class PartitionCache:
    """The partitions of a running query.

    Args:
        ask: lists the partitions, from any thread.
        clock_s: a monotonic clock.
    """

    def __init__(
        self, ask: Callable[[], list[Partition]], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock_s = ask, clock_s
        self._coming: tuple[float, Future[list[Partition]]] | None = None
        self._partitions: list[Partition] = []
        self.asked_at_s = float("-inf")
        """Time of the request that returned the cached partitions."""

    def get(self, fresh: bool = False) -> list[Partition]:
        """Return the partitions as of a moment ago, or as of now if `fresh`.

        Raises:
            BrokerUnreachable: a request was needed, and the broker did not answer.
        """
        now_s = self._clock_s()
        if self._coming is not None and self._coming[1].done():
            asked_at, answer = self._coming
            self._coming = None
            if answer.exception() is None:
                self.asked_at_s, self._partitions = asked_at, answer.result()
        if fresh or now_s - self.asked_at_s > _MAX_AGE_S:
            self._coming = None
            self.asked_at_s, self._partitions = now_s, self._ask()
        elif now_s - self.asked_at_s > _REFRESH_AGE_S and self._coming is None:
            self._coming = now_s, _ask_in_background(self._ask)
        return self._partitions


def _ask_in_background(ask: Callable[[], list[Partition]]) -> Future[list[Partition]]:
    """Call `ask` in a daemon thread, which does not keep the process alive."""
    answer: Future[list[Partition]] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    return answer


Ends = dict[Partition, int]


class RunEnds:
    """The ends of the partitions in one run.

    Args:
        get_broker: returns the connected broker.
        partition_cache: lists the partitions.
    """

    def __init__(self, get_broker: Callable[[], Broker], partition_cache: PartitionCache) -> None:
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
        """Read no further than the current ends, or those that were `seen` in this run.

        Imported CTIs wait for the ends of open transactions too.
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
