"""What the driver tracks of the brokers in one run: partitions, ends, idleness, imported CTIs.

`IdleTracker` (semantics 5.3) applies the rules of `stream_state` to the brokers' answers. It asks
for open transactions only when they matter: before a partition becomes idle, and once a second
after that. `CtiImporter` (6.1) reads the topic of `ctiImport` as the stream reads its own topics:
`rules.step` per partition, then the minimum. Each update continues at the end of the last one, or
of the last offset.

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
from dataclasses import replace
from typing import Final

from pyspark_timestream.core.instants import SECOND_US
from pyspark_timestream.errors import BrokerUnreachable, OptionError, name_topics
from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.decode.records import ReadRange
from pyspark_timestream.kafka.offsets.changes import change_clock
from pyspark_timestream.kafka.offsets.offset import (
    ImportedPartition,
    ImportedTopic,
    PartitionOffset,
    advance_partition,
    merge_topic_cti,
)
from pyspark_timestream.kafka.offsets.positions import (
    LEADER_CHANGE_GRACE_S,
    find_recreated_topics,
    limit_ends,
    reconcile,
    report_losses,
)
from pyspark_timestream.kafka.offsets.stream_state import (
    find_caught_up,
    find_idle,
    find_newly_idle,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskRange
from pyspark_timestream.kafka.task import follow_clock
from pyspark_timestream.rules.clocks import max_known, raise_cti

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


_DISCOVERY_INTERVAL_US: Final = SECOND_US


def derive_import_options(options: KafkaOptions) -> KafkaOptions | None:
    """Derive the options of a stream over the imported topic; None without an import.

    `idleTimeout`, `maxFuture`, `timeUnit` and `writerTimeout` apply to that topic as well;
    `writers` applies to the stream's own partitions only.
    """
    source = options.cti_import
    if source is None:
        return None
    own_header = (options.cti_header or "cti") if source.frequency is None else None
    return KafkaOptions(
        client=options.client,
        subscribe=(source.topic,),
        starting_offsets=EARLIEST,
        fail_on_data_loss=options.fail_on_data_loss,
        group_prefix=options.group_prefix,
        poll_timeout_ms=options.poll_timeout_ms,
        connect_timeout_ms=options.connect_timeout_ms,
        retries=options.retries,
        retry_interval_ms=options.retry_interval_ms,
        start_time=source.start_time,
        time_unit=options.time_unit,
        frequency=source.frequency,
        delay_us=source.delay_us,
        cti_header=source.header or own_header,
        writer_timeout_us=options.writer_timeout_us,
        max_future_us=options.max_future_us,
        idle_timeout_us=options.idle_timeout_us,
    )


def change_import(
    imported: ImportedTopic, before: KafkaOptions | None, after: KafkaOptions | None
) -> ImportedTopic:
    """Return the imported topic's state, changed so that it continues with new options (8.10)."""
    if before is None or after is None:
        return imported
    partitions = {
        partition: replace(progress, clock=change_clock(progress.clock, before, after))
        for partition, progress in imported.partitions.items()
    }
    return replace(imported, partitions=partitions)


class CtiImporter:
    """Reads the imported topic, update by update; `derive_import_options` gives its options."""

    def __init__(self, options: KafkaOptions, broker: Broker, read_range: ReadRange) -> None:
        self._options = options
        self._broker = broker
        self._read_range = read_range
        self._bounds: dict[Partition, int] | None = None
        self._partitions: list[Partition] = []
        self._listed_us = -_DISCOVERY_INTERVAL_US
        self._missing_since_us: dict[Partition, int | None] = {}
        self._topic: ImportedTopic | None = None
        self._idle_tracker = IdleTracker(options.idle_timeout_us)
        self.topic_ids: dict[str, str] = {}

    def change(self, options: KafkaOptions) -> None:
        """Continue with new options from the current position."""
        if self._topic is not None:
            self._topic = change_import(self._topic, self._options, options)
        self._options = options

    def limit_to_current_ends(self) -> None:
        """Read no further than the topic's current ends."""
        ends = self._broker.ends(self._broker.partitions())
        if self._topic is None:
            self._bounds = ends
            self._idle_tracker = IdleTracker(self._options.idle_timeout_us, across_runs=True)
        else:
            # A run that goes on keeps its positions, even of a partition that is missing for a
            # moment, and the times of its idle partitions.
            self._bounds = _raise_to_positions(ends, self._topic.positions)

    def update(
        self, recorded: ImportedTopic | None, topic_ids: Mapping[str, str], now_us: int
    ) -> ImportedTopic:
        """Read the new records, and return the state of the topic.

        `recorded` and `topic_ids` are the state and the ids in the last offset.

        Raises:
            OptionError: the topic does not exist.
            DataLost: records of the topic are gone, and option `failOnDataLoss` is true.
        """
        if self._topic is None:
            self._topic = recorded or ImportedTopic()
            self.topic_ids = dict(topic_ids)
            self._idle_tracker.resume(self._topic.partitions)
        topic = self._topic
        recreated = self._refresh_partitions(now_us)
        readable_ends = self._broker.ends(self._partitions)
        if not readable_ends and not topic.partitions:
            raise OptionError(
                "ctiImport",
                f"topic '{(self._options.subscribe or ('',))[0]}' does not exist",
                "an existing topic",
                "create it",
            )
        topic = self._update_idle(topic, readable_ends, now_us)
        ends = self._find_ends(topic.positions, readable_ends, recreated, now_us)
        if ends != topic.positions or recreated:
            topic = self._read_all(topic, ends, recreated)
        self._topic = replace(
            topic, cti_us=merge_topic_cti(topic.partitions.values(), topic.cti_us)
        )
        return self._topic

    def _update_idle(
        self, topic: ImportedTopic, readable_ends: Mapping[Partition, int], now_us: int
    ) -> ImportedTopic:
        """Update the idle partitions; raise one that is active again to the topic's CTI."""
        was_idle = {partition for partition, progress in topic.partitions.items() if progress.idle}
        since_us = self._idle_tracker.update(
            self._broker, topic.positions, readable_ends, was_idle, now_us
        )
        idle = find_idle(since_us, was_idle, self._options.idle_timeout_us, now_us)
        partitions = {}
        for partition, progress in topic.partitions.items():
            if partition in was_idle - idle:
                progress = _raise_partition(progress, topic.cti_us)
            partitions[partition] = replace(
                progress, idle=partition in idle, caught_up_since_us=since_us.get(partition)
            )
        return replace(topic, partitions=partitions)

    def _read_all(
        self, topic: ImportedTopic, ends: Mapping[Partition, int], recreated: frozenset[str]
    ) -> ImportedTopic:
        """Read all partitions, new ones included, up to `ends`."""
        earliest = self._broker.earliest(ends)
        positions, losses = reconcile(
            topic.positions,
            earliest,
            ends,
            recreated=recreated,
            unchanged=frozenset(self.topic_ids) - recreated,
        )
        report_losses(self._options, *losses)
        starts = {
            partition: replace(topic.partitions[partition], position=position)
            for partition, position in positions.items()
        }
        starts |= {
            partition: _raise_partition(ImportedPartition(earliest[partition]), topic.cti_us)
            for partition in ends
            if partition not in topic.partitions and partition in earliest
        }
        partitions = {
            partition: self._read_partition(partition, progress, ends[partition])
            for partition, progress in starts.items()
        }
        return replace(topic, partitions=partitions)

    def _refresh_partitions(self, now_us: int) -> frozenset[str]:
        """List the partitions at most once a second; return the topic if it was recreated."""
        if now_us - self._listed_us < _DISCOVERY_INTERVAL_US:
            return frozenset()
        self._partitions = self._broker.partitions()
        self._listed_us = now_us
        topic_ids = self._broker.topic_ids(self._options.subscribe or ())
        recreated = find_recreated_topics(self.topic_ids, topic_ids)
        self.topic_ids = topic_ids or self.topic_ids
        return recreated

    def _find_ends(
        self,
        positions: Mapping[Partition, int],
        readable_ends: dict[Partition, int],
        recreated: Set[str],
        now_us: int,
    ) -> dict[Partition, int]:
        """Return the ends to read to, within the bounds of this run.

        A partition that may only be missing for a moment waits at its position.
        """
        missing = positions.keys() - readable_ends.keys()
        # A broker that no longer leads a partition may return an old end of its log.
        missing |= {
            partition
            for partition, end in readable_ends.items()
            if end < positions.get(partition, 0) and partition.topic not in recreated
        }
        # `now_us` is when we asked, and the answer may be slow: start counting at the second update
        # that finds the partition missing.
        before = self._missing_since_us
        grace_us = LEADER_CHANGE_GRACE_S * SECOND_US
        self._missing_since_us = {
            partition: (before[partition] or now_us) if partition in before else None
            for partition in missing
        }
        waiting = {
            partition: positions[partition]
            for partition, since_us in self._missing_since_us.items()
            if since_us is None or now_us - since_us < grace_us
        }
        if self._bounds is None:
            return readable_ends | waiting
        # A partition that was missing when the run began has a bound below its position.
        bounds = _raise_to_positions(self._bounds, positions)
        return limit_ends(readable_ends | waiting, bounds, {})

    def _read_partition(
        self, partition: Partition, progress: ImportedPartition, end: int
    ) -> ImportedPartition:
        offset_range = OffsetRange(partition, progress.position, end)
        if offset_range.size <= 0:
            return progress
        for clock, ctis_us in follow_clock(
            self._options, TaskRange(offset_range, progress.clock), self._read_range
        ):
            progress = advance_partition(progress, clock, ctis_us)
        return replace(progress, position=end)


def _raise_partition(partition: ImportedPartition, cti_us: int | None) -> ImportedPartition:
    """Raise a new or newly active partition, so that the topic's CTI `cti_us` does not fall."""
    if cti_us is None:
        return partition
    return replace(
        partition,
        clock=raise_cti(partition.clock, cti_us),
        cti_us=max_known(partition.cti_us, cti_us),
    )


# -- partitions and the ends of their logs ---------------------------------------------------------


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

    def __init__(self, ask: Callable[[], list[Partition]]) -> None:
        self._ask = ask
        self._refresh: tuple[float, Future[list[Partition]]] | None = None
        self._partitions: list[Partition] = []
        self.asked_at_s = float("-inf")
        """Time of the request that returned the cached partitions."""

    def get(self, fresh: bool = False) -> list[Partition]:
        """Return the partitions of a moment ago, or those of now if `fresh`.

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
    """Caches the ids of the topics for as long as the partitions are not listed again."""

    def __init__(self, get_broker: Callable[[], Broker], partition_cache: PartitionCache) -> None:
        self._get_broker = get_broker
        self._partition_cache = partition_cache
        self._ids: dict[str, str] = {}
        self._asked_at_s = float("-inf")

    def get(self, partitions: Iterable[Partition], *, fresh: bool = False) -> dict[str, str]:
        """Return the ids of the topics; those of now if `fresh`."""
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


def _raise_to_positions(ends: Mapping[Partition, int], positions: Mapping[Partition, int]) -> Ends:
    """Return `ends` with none below its partition's position; a missing end is the position."""
    return {
        **positions,
        **{partition: max(end, positions.get(partition, 0)) for partition, end in ends.items()},
    }


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
        """
        if has_import:
            partitions = self._partition_cache.get(fresh=True)
            self._bound_high_watermarks = self._get_broker().high_watermarks(partitions)
        self._bounds = _raise_to_positions(self.request_ends(fresh=True), read_ends)

    def request_ends(self, fresh: bool = False) -> Ends:
        """Return how far each partition may be read now."""
        self.readable_ends = self._get_broker().ends(self._partition_cache.get(fresh))
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
            # partition by itself: a slow answer describes an earlier moment.
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

    def find_first_ranges(self) -> tuple[Ends, Ends]:
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
