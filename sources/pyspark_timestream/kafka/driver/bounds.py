"""How far each partition may be read, and the driver's cache of partitions.

A bounded run (semantics 7.1) reads up to bounds, the ends of one moment. Bounds that are too low do
little harm if another run follows, but a final CTI (7.3, 11.12) would cut off the records above
them for good. Metadata may lack a partition for a moment, and a broker that no longer leads a
partition may return an old end of its log. A running stream therefore takes its bounds only when
the logs have everything that it has read, and never below the ends that it has seen.
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
    """Return a clock, in us, that starts at the wall clock and does not follow its jumps."""
    ahead_us = (time.time_ns() - time.monotonic_ns()) // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000


_REFRESH_AGE_S: Final = 1.0
"""Age after which the partitions are listed again in the background."""

_MAX_AGE_S: Final = 2.0
"""Age after which the cache is not used: infrequent batches must not miss new partitions."""


class PartitionCache:
    """Caches the partitions of a running query; `ask` lists them, and may run in any thread."""

    def __init__(
        self, ask: Callable[[], list[Partition]], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock_s = ask, clock_s
        self._coming: tuple[float, Future[list[Partition]]] | None = None
        self._partitions: list[Partition] = []
        self.asked_at_s = float("-inf")
        """Time of the request that returned the cached partitions."""

    def get(self, fresh: bool = False) -> list[Partition]:
        """Return the partitions of a moment ago, or those of now if `fresh`.

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
    """Knows the ends of the partitions in one run, and its bounds."""

    def __init__(self, get_broker: Callable[[], Broker], partition_cache: PartitionCache) -> None:
        self._get_broker = get_broker
        self._partition_cache = partition_cache
        self._bounds: Ends | None = None
        self._bound_high_watermarks: Ends = {}
        self.readable_ends: Ends = {}
        """The ends of the logs by the last request."""

    @property
    def is_bounded(self) -> bool:
        """Return whether this is a bounded run."""
        return self._bounds is not None

    def limit(self, bounds: Mapping[Partition, int]) -> None:
        """Read no further than `bounds`."""
        self._bounds = dict(bounds)

    def limit_to_current_ends(self, seen: Mapping[Partition, int], has_import: bool) -> None:
        """Read no further than the current ends, or those `seen` in this run if they are higher.

        With an import, note the ends including open transactions as well: imported CTIs wait for
        those.
        """
        if has_import:
            partitions = self._partition_cache.get(fresh=True)
            self._bound_high_watermarks = self._get_broker().high_watermarks(partitions)
        ends = self.get(fresh=True)
        self._bounds = {
            **seen,
            **{partition: max(end, seen.get(partition, 0)) for partition, end in ends.items()},
        }

    def get(self, fresh: bool = False) -> Ends:
        """Return how far each partition may be read now."""
        self.readable_ends = self._get_broker().ends(self._partition_cache.get(fresh))
        if self._bounds is None:
            return self.readable_ends
        # A topic that was truncated after the run began ends before its bound.
        return {
            partition: min(bound, self.readable_ends.get(partition, bound))
            for partition, bound in self._bounds.items()
        }

    def wait_for(self, places: Mapping[Partition, int]) -> Ends:
        """Return the ends once each log reaches its place, or has not for `LEADER_CHANGE_GRACE_S`.

        The wait matters: a partition that is taken for lost by mistake is read from its beginning
        when it is found again.
        """
        asked_s, ends = time.monotonic(), self.get()
        since_s: dict[Partition, float] = {}
        while True:
            # It counts from the first answer that shows it to the question of the last one: a slow
            # answer tells what was so before. Another partition's trouble does not count.
            now_s, readable = time.monotonic(), self.readable_ends
            short = [each for each, offset in places.items() if readable.get(each, -1) < offset]
            since_s = {each: since_s.get(each, now_s) for each in short}
            if all(asked_s - since_s[each] >= LEADER_CHANGE_GRACE_S for each in short):
                return ends
            time.sleep(LEADER_CHANGE_GRACE_S / 10)
            asked_s = time.monotonic()
            ends = self.get(fresh=True)

    def find_first(self) -> tuple[Ends, Ends]:
        """Return, for a first batch, each partition's first offset and how far it may be read.

        A partition that is left out would be found later, and then be read from its beginning. So
        one that lacks an answer, because its leader changes just now, is waited for.
        """
        asked_s = time.monotonic()
        deadline_s = asked_s + LEADER_CHANGE_GRACE_S
        while True:
            ends = self.get(fresh=not self.is_bounded)
            earliest = self._get_broker().earliest(ends)
            listed = ends.keys() if self.is_bounded else {*self._partition_cache.get()}
            if not listed - (ends.keys() & earliest.keys()) or asked_s >= deadline_s:
                return earliest, {each: end for each, end in ends.items() if each in earliest}
            time.sleep(LEADER_CHANGE_GRACE_S / 10)
            asked_s = time.monotonic()

    def reaches(self, places: Mapping[Partition, int]) -> bool:
        """Return whether the log of every partition of `places` reaches its offset."""
        return all(
            self.readable_ends.get(partition, -1) >= offset for partition, offset in places.items()
        )

    def get_high_watermarks(self) -> Ends:
        """Return the ends of the logs, including the records of open transactions.

        Call this after reading the imported topic and before asking for the stable ends. Reading
        up to a stable end at or above one of these ends then covers every record below it.
        """
        if self._bounds is not None:
            return dict(self._bound_high_watermarks)
        return self._get_broker().high_watermarks(self._partition_cache.get())
