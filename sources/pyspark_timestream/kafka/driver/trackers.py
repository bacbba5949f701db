"""The driver's trackers of the brokers in one run: partitions, ends and idleness.

`IdleTracker` (semantics 5.3) applies the rules of `stream_state` to the brokers' answers. It asks
for open transactions only when they matter: before a partition becomes idle, and once a second
after that.

`PartitionCache` lists the partitions, and `TopicIds` has the ids of their topics. `RunEnds` knows
the ends of their logs, and the bounds of a bounded run (7.1): the ends of one moment. Bounds that
are too low do little harm if another run follows, but a final CTI (7.3, 11.12) would cut off the
records above them for good. Metadata may lack a partition for a moment, and a broker that no longer
leads a partition may return an old end of its log. So a running stream takes its bounds only when
the logs have everything that it has read, and never below the ends that it has seen.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import Future
from typing import Final

from pyspark_timestream.core.instants import SECOND_US
from pyspark_timestream.errors import BrokerUnreachable, name_topics
from pyspark_timestream.kafka.client.broker import Broker, find_every_range
from pyspark_timestream.kafka.offsets.offset import ImportedPartition, PartitionOffset
from pyspark_timestream.kafka.offsets.positions import LEADER_CHANGE_GRACE_S, raise_to_positions
from pyspark_timestream.kafka.offsets.stream_state import find_caught_up, find_newly_idle
from pyspark_timestream.kafka.ranges import Partition

_TRANSACTION_CHECK_INTERVAL_US: Final = SECOND_US


class IdleTracker:
    """Tracks the partitions of one run that have caught up.

    Args:
        timeout_us: option `idleTimeout`; None disables idleness, and no request is sent.
        across_runs: True if the time counts across runs: this run continues from the recorded
            times, even if requests failed since then.
    """

    def __init__(self, timeout_us: int | None, *, across_runs: bool = False) -> None:
        self._timeout_us = timeout_us
        self._across_runs = across_runs
        self._since_us: dict[Partition, int] = {}
        self._transactions_checked_at_us = -_TRANSACTION_CHECK_INTERVAL_US
        self._troubles = 0

    def resume(self, recorded: Mapping[Partition, PartitionOffset | ImportedPartition]) -> None:
        """Continue from the times in the last offset if the time counts across runs."""
        if self._across_runs:
            self._since_us = {
                partition: entry.caught_up_since_us
                for partition, entry in recorded.items()
                if entry.caught_up_since_us is not None
            }

    def update(
        self,
        broker: Broker,
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        idle: Set[Partition],
        now_us: int,
    ) -> Mapping[Partition, int]:
        """Return the partitions that have caught up, and since when.

        `ends` are the ends of the logs, regardless of the run's bounds. `idle` are the partitions
        that are idle in the last offset. `now_us` is the wall clock after the ends were read.
        """
        caught_up = [
            partition
            for partition, position in positions.items()
            if ends.get(partition) == position
        ]
        since_us = find_caught_up(
            self._since_us, caught_up, now_us, troubled=self._troubled(broker)
        )
        self._troubles = broker.trouble_count
        to_check = set(find_newly_idle(since_us, idle, self._timeout_us, now_us))
        if (
            self._timeout_us is not None
            and now_us - self._transactions_checked_at_us >= _TRANSACTION_CHECK_INTERVAL_US
        ):
            to_check |= idle & since_us.keys()
            self._transactions_checked_at_us = now_us
        busy = (
            broker.open_transactions({partition: ends[partition] for partition in to_check})
            if to_check
            else set()
        )
        if self._troubled(broker):
            since_us = find_caught_up({}, caught_up, now_us, troubled=True)
        self._since_us = {
            partition: us for partition, us in since_us.items() if partition not in busy
        }
        return self._since_us

    def _troubled(self, broker: Broker) -> bool:
        return not self._across_runs and broker.trouble_count != self._troubles


# -- partitions and the ends of their logs ---------------------------------------------------------


def make_steady_clock() -> Callable[[], int]:
    """Return a clock, in us, that starts at the wall clock and does not follow its jumps."""
    ahead_us = (time.time_ns() - time.monotonic_ns()) // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000


_REFRESH_AGE_S: Final = 1.0
"""From this age on, the partitions are listed again in the background."""

_MAX_AGE_S: Final = 2.0
"""From this age on, the cache is not used: infrequent batches must not miss new partitions."""


class PartitionCache:
    """Caches the partitions of a running query; `ask` lists them, and may run in any thread."""

    def __init__(self, ask: Callable[[], list[Partition]]) -> None:
        self._ask = ask
        self._refresh: tuple[float, Future[list[Partition]]] | None = None
        self._partitions: list[Partition] = []
        self.asked_at_s = float("-inf")
        """Time of the request that returned the cached partitions."""

    def get(self, *, fresh: bool = False) -> list[Partition]:
        """Return the partitions of a moment ago, or of now if `fresh`.

        Raises:
            BrokerUnreachable: a request was needed, and the broker did not answer.
        """
        now_s = time.monotonic()
        if self._refresh is not None and self._refresh[1].done():
            asked_at, answer = self._refresh
            self._refresh = None
            if answer.exception() is None:
                self.asked_at_s, self._partitions = asked_at, answer.result()
        if fresh or now_s - self.asked_at_s > _MAX_AGE_S:
            self._refresh = None
            self.asked_at_s, self._partitions = now_s, self._ask()
        elif now_s - self.asked_at_s > _REFRESH_AGE_S and self._refresh is None:
            self._refresh = now_s, _ask_in_background(self._ask)
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


class TopicIds:
    """Caches the ids of the topics until the partitions are listed again."""

    def __init__(self, get_broker: Callable[[], Broker], partition_cache: PartitionCache) -> None:
        self._get_broker = get_broker
        self._partition_cache = partition_cache
        self._ids: dict[str, str] = {}
        self._asked_at_s = float("-inf")

    def get(self, partitions: Iterable[Partition], *, fresh: bool = False) -> dict[str, str]:
        """Return the ids of the topics; ask anyway if `fresh`."""
        if fresh or self._asked_at_s != self._partition_cache.asked_at_s:
            topics = {partition.topic for partition in partitions}
            self.note(self._get_broker().topic_ids(topics))
        return self._ids

    def note(self, topic_ids: dict[str, str]) -> None:
        """Note the ids of the topics that are listed now."""
        self._ids = topic_ids
        self._asked_at_s = self._partition_cache.asked_at_s

    def require(self, topics: Set[str], why: str) -> dict[str, str]:
        """Return the ids of the topics that exist; ask again until the brokers tell all of them.

        Raises:
            BrokerUnreachable: they do not; the message begins with `why`.
        """
        deadline_s = time.monotonic() + LEADER_CHANGE_GRACE_S
        while True:
            topic_ids = self._get_broker().topic_ids(topics)
            # The tasks report the loss of a deleted topic.
            unknown = topics - topic_ids.keys()
            if unknown:
                unknown &= {partition.topic for partition in self._partition_cache.get(fresh=True)}
            if not unknown:
                return topic_ids
            if time.monotonic() >= deadline_s:
                raise BrokerUnreachable(
                    f"{why}, and the brokers do not tell the id of "
                    f"{name_topics(unknown)}: it may have been created again, with other records "
                    "under the same offsets; restart the query once they do, with the right to "
                    "describe the topic"
                )
            time.sleep(LEADER_CHANGE_GRACE_S / 10)


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
        """Whether this is a bounded run."""
        return self._bounds is not None

    def limit(self, bounds: Mapping[Partition, int]) -> None:
        """Read no further than `bounds`."""
        self._bounds = dict(bounds)

    def limit_to_current_ends(
        self, read_ends: Mapping[Partition, int], *, has_import: bool
    ) -> None:
        """Read no further than the current ends, or than `read_ends` of this run if higher.

        With an import, also note the ends that include open transactions: imported CTIs wait for
        these.

        Raises:
            BrokerUnreachable: as `find_every_range`.
        """
        if has_import:
            partitions = self._partition_cache.get(fresh=True)
            self._bound_high_watermarks = self._get_broker().high_watermarks(partitions)
        _, self.readable_ends = find_every_range(
            self._get_broker(), lambda: self._partition_cache.get(fresh=True)
        )
        self._bounds = raise_to_positions(self.readable_ends, read_ends)

    def correct_bounds(self, positions: Mapping[Partition, int]) -> Ends:
        """Correct the bounds of a run that begins at `positions`; return the new ones.

        A partition without a bound was missing when the bounds were taken, and a bound below its
        position was an old end. The last request has a later one of both.
        """
        if self._bounds is None:
            return {}
        late = {
            partition: self.readable_ends[partition]
            for partition, position in positions.items()
            if self._bounds.get(partition, -1) < position and partition in self.readable_ends
        }
        self._bounds |= late
        return late

    def request_ends(self, *, fresh: bool = False) -> Ends:
        """Return how far each partition may be read now."""
        self.readable_ends = self._get_broker().ends(self._partition_cache.get(fresh=fresh))
        if self._bounds is None:
            return self.readable_ends
        # A topic that was truncated after the run began ends before its bound.
        return {
            partition: min(bound, self.readable_ends.get(partition, bound))
            for partition, bound in self._bounds.items()
        }

    def wait_for(self, positions: Mapping[Partition, int]) -> Ends:
        """Return the ends; wait up to `LEADER_CHANGE_GRACE_S` for each log to reach its position.

        The wait matters: a partition that is taken for lost by mistake is read from its beginning
        when it is found again.
        """
        asked_at_s, ends = time.monotonic(), self.request_ends()
        since_s: dict[Partition, float] = {}
        while True:
            # Measure from the first answer with the log too short to the last request, for each
            # partition separately: a slow answer describes an earlier moment.
            now_s, readable = time.monotonic(), self.readable_ends
            short = [
                partition
                for partition, offset in positions.items()
                if readable.get(partition, -1) < offset
            ]
            since_s = {partition: since_s.get(partition, now_s) for partition in short}
            if all(asked_at_s - since_s[partition] >= LEADER_CHANGE_GRACE_S for partition in short):
                return ends
            time.sleep(LEADER_CHANGE_GRACE_S / 10)
            asked_at_s = time.monotonic()
            ends = self.request_ends(fresh=True)

    def wait_for_first_ranges(self) -> tuple[Ends, Ends]:
        """Return, for a first batch, each partition's first offset and how far it may be read.

        A partition that is left out would be found later, and then be read from its beginning. So
        wait for a partition without an answer: its leader may be changing.
        """
        asked_at_s = time.monotonic()
        deadline_s = asked_at_s + LEADER_CHANGE_GRACE_S
        while True:
            ends = self.request_ends(fresh=not self.is_bounded)
            earliest = self._get_broker().earliest(ends)
            expected = ends.keys() if self.is_bounded else {*self._partition_cache.get()}
            if not expected - (ends.keys() & earliest.keys()) or asked_at_s >= deadline_s:
                return earliest, {
                    partition: end for partition, end in ends.items() if partition in earliest
                }
            time.sleep(LEADER_CHANGE_GRACE_S / 10)
            asked_at_s = time.monotonic()

    def reaches(self, positions: Mapping[Partition, int]) -> bool:
        """Return whether the log of each partition reaches its position."""
        return all(
            self.readable_ends.get(partition, -1) >= offset
            for partition, offset in positions.items()
        )

    def get_high_watermarks(self) -> Ends:
        """Return the ends of the logs, including the records of open transactions.

        Call this after reading the imported topic and before asking for the stable ends. Reading
        up to a stable end at or above one of these ends then covers every record below it.
        """
        if self._bounds is not None:
            return dict(self._bound_high_watermarks)
        return self._get_broker().high_watermarks(self._partition_cache.get())
