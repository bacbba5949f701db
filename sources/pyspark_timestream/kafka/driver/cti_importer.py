"""Reads the topic of `ctiImport` as the stream reads its own topics (semantics 6.1).

`rules.step` per partition, then the minimum. Each update continues at the end of the last one, or
of the last offset.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Final

from pyspark_timestream.core.instants import SECOND_US
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.client.broker import Broker, find_every_range
from pyspark_timestream.kafka.decode.records import ReadRange
from pyspark_timestream.kafka.driver.trackers import IdleTracker
from pyspark_timestream.kafka.offsets.changes import change_clock
from pyspark_timestream.kafka.offsets.offset import (
    ImportedPartition,
    ImportedTopic,
    advance_partition,
    merge_topic_cti,
)
from pyspark_timestream.kafka.offsets.positions import (
    LEADER_CHANGE_GRACE_S,
    find_recreated_topics,
    find_unchanged_topics,
    limit_ends,
    raise_to_positions,
    reconcile,
    report_losses,
)
from pyspark_timestream.kafka.offsets.stream_state import find_idle
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskRange
from pyspark_timestream.kafka.task import follow_clock
from pyspark_timestream.rules.clocks import max_known, raise_cti

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
    return imported.change_partitions(
        lambda _, progress: replace(progress, clock=change_clock(progress.clock, before, after))
    )


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
        self.topic_ids: Mapping[str, str] = {}
        self._unchanged: frozenset[str] = frozenset()

    def change(self, options: KafkaOptions) -> None:
        """Continue with new options from the current position."""
        if self._topic is not None:
            self._topic = change_import(self._topic, self._options, options)
        self._options = options

    def limit_to_current_ends(self) -> None:
        """Read no further than the topic's current ends."""
        _, ends = find_every_range(self._broker, self._broker.partitions)
        if self._topic is None:
            self._bounds = ends
            self._idle_tracker = IdleTracker(self._options.idle_timeout_us, across_runs=True)
        else:
            # A run that goes on keeps its positions, even of a partition that is missing for a
            # moment, and the times of its idle partitions.
            self._bounds = raise_to_positions(ends, self._topic.positions)

    def update(
        self, recorded: ImportedTopic | None, topic_ids: Mapping[str, str], now_us: int
    ) -> ImportedTopic:
        """Read the new records, and return the state of the topic.

        `recorded` and `topic_ids` are the state and the ids in the last offset.

        Raises:
            OptionError: the topic does not exist.
            BrokerUnreachable: at first, as `find_every_range`.
            DataLost: records of the topic are gone, and option `failOnDataLoss` is true.
        """
        if self._topic is None:
            self._topic = recorded or ImportedTopic()
            # Those of the stream's own topics are not for us to tell.
            own = self._options.subscribe or ()
            self.topic_ids = {topic: topic_ids[topic] for topic in own if topic in topic_ids}
            self._idle_tracker.resume(self._topic.partitions)
        topic = self._topic
        recreated = self._refresh_partitions(now_us)
        if topic.partitions:
            readable_ends = self._broker.ends(self._partitions)
        else:
            # A partition that is left out now is found later, when the topic's CTI may be above
            # its records.
            _, readable_ends = find_every_range(self._broker, self._broker.partitions)
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
        was_idle = topic.idle
        since_us = self._idle_tracker.update(
            self._broker, topic.positions, readable_ends, was_idle, now_us
        )
        idle = find_idle(since_us, was_idle, self._options.idle_timeout_us, now_us)

        def set_idle(partition: Partition, progress: ImportedPartition) -> ImportedPartition:
            if partition in was_idle - idle:
                progress = _raise_partition(progress, topic.cti_us)
            return replace(
                progress, idle=partition in idle, caught_up_since_us=since_us.get(partition)
            )

        return topic.change_partitions(set_idle)

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
            unchanged=self._unchanged,
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
        self._unchanged = find_unchanged_topics(self.topic_ids, topic_ids)
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
        bounds = raise_to_positions(self._bounds, positions)
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
