"""Finds the clocks after a batch in the consumer group, or restores them (semantics 8.3).

Tasks commit the clocks at the ends of their ranges to the group. If a clock is missing there, the
driver reads the records again for the clock only. A stream without CTIs and event rules has no
clock: then only the counts of those records are missing. Diagnoses tell the user about lost time
and missing counts.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.core.session import REQUIRED_SETTINGS, suggest_fix
from pyspark_timestream.errors import DataLost
from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.diagnosis.diagnoses import (
    Diagnosis,
    Kind,
    name_partitions,
    recall_warnings,
)
from pyspark_timestream.kafka.offsets.group_metadata import (
    GroupMetadata,
    decode_group_metadata,
    describe_missing_clocks,
    group_name,
)
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads, StreamOffset
from pyspark_timestream.kafka.offsets.positions import find_recreated_topics, report_losses
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskRange
from pyspark_timestream.kafka.task import RangeEnd, compute_end_clock
from pyspark_timestream.rules.clocks import PartitionClock

_LOG: Final = logging.getLogger(__name__)
_REPEATED_KINDS: Final = (Kind.SESSION_SETTING, Kind.LARGE_CLOCK, Kind.SHARED_GROUP, Kind.UNCOUNTED)


@dataclass(frozen=True, slots=True)
class EndStates:
    """The end of a batch.

    Attributes:
        clocks: every partition's clock.
        malformed_payloads: per partition, the malformed values and keys that tasks counted.
        diagnoses: the problems found while looking for these, for the user.
    """

    clocks: Mapping[Partition, PartitionClock]
    malformed_payloads: Mapping[Partition, MalformedPayloads]
    diagnoses: tuple[Diagnosis, ...] = ()


def take_end_states(offset: StreamOffset, range_ends: Mapping[Partition, RangeEnd]) -> EndStates:
    """Return the end states of the batch `offset` from those of its ranges."""
    # Both properties make new dictionaries: the offset does not change.
    clocks, malformed = offset.clocks, offset.malformed_payloads
    for partition, end in range_ends.items():
        clocks[partition] = end.clock
        malformed[partition] += end.malformed_payloads
    return EndStates(clocks, malformed, _repeat_diagnoses(offset))


def find_end_states(
    offset: StreamOffset,
    metadata: Mapping[Partition, str],
    restore: Callable[[OffsetRange], PartitionClock] | None,
    group: str,
) -> EndStates:
    """Find the end states of the batch `offset` in the group's metadata.

    `restore` computes the clock after a range from its records; None if the clocks hold only
    counts, which are not worth reading the records again.
    """
    clocks, malformed = offset.clocks, offset.malformed_payloads
    decoded: dict[Partition, GroupMetadata] = {}
    for offset_range in offset.ranges():
        if not offset_range.size:
            continue
        partition = offset_range.partition
        committed = decode_group_metadata(offset, partition, metadata.get(partition))
        decoded[partition] = committed
        malformed[partition] += committed.malformed_payloads
        clock = committed.clock
        if clock is None and restore is not None:
            clock = restore(offset_range)
        clocks[partition] = clock or clocks[partition]
    if not decoded:
        return EndStates(clocks, malformed, _repeat_diagnoses(offset))
    diagnoses = [*_find_broken_settings(decoded), *_find_refused_clocks(decoded, clocks)]
    if any(committed.clock is None for committed in decoded.values()):
        diagnoses += _find_missing_clocks(decoded, group, is_read_again=restore is not None)
    return EndStates(clocks, malformed, tuple(diagnoses))


def _repeat_diagnoses(offset: StreamOffset) -> tuple[Diagnosis, ...]:
    """Return the earlier diagnoses again, because a batch without records shows nothing new."""
    return tuple(
        diagnosis
        for diagnosis in recall_warnings(offset.warnings)
        if diagnosis.kind in _REPEATED_KINDS
    )


def _find_broken_settings(decoded: Mapping[Partition, GroupMetadata]) -> Iterator[Diagnosis]:
    settings = {name: value for committed in decoded.values() for name, value in committed.settings}
    for name, value in sorted(settings.items()):
        text = f"the query runs with '{value}', by which {REQUIRED_SETTINGS[name].reason}"
        yield Diagnosis(Kind.SESSION_SETTING, f"setting '{name}'", text, advice=suggest_fix(name))


def _find_refused_clocks(
    decoded: Mapping[Partition, GroupMetadata], clocks: Mapping[Partition, PartitionClock]
) -> Iterator[Diagnosis]:
    lengths = {
        partition: committed.refused_length
        for partition, committed in decoded.items()
        if committed.refused_length
    }
    if not lengths:
        return
    longest = max(lengths, key=lambda partition: (lengths[partition], partition))
    # The native reader commits a text with a final zero byte, which the broker counts.
    length = lengths[longest] + 1
    writer_count = len(clocks[longest].writers)
    yield Diagnosis(
        Kind.LARGE_CLOCK,
        name_partitions(sorted(lengths)),
        f"a batch's changes to the clock of {longest}, with {writer_count} writers, take "
        f"{length} characters of the group's metadata, more than the broker allows: such a batch "
        "is read a second time to restore the clock",
        partitions=frozenset(lengths),
        advice=f"raise the broker's setting 'offset.metadata.max.bytes' to {length} at least, or "
        "let fewer writers mark a partition in a batch: fewer writers, more partitions or a "
        "smaller 'maxOffsetsPerTrigger'",
    )


def _find_missing_clocks(
    decoded: Mapping[Partition, GroupMetadata], group: str, *, is_read_again: bool
) -> Iterator[Diagnosis]:
    other_streams = sorted(
        {committed.other_stream for committed in decoded.values() if committed.other_stream}
    )
    if other_streams:
        text = (
            f"stream {', '.join(other_streams)} overwrites what the tasks of this one write there: "
        )
        text += describe_missing_clocks(is_read_again)
        yield Diagnosis(Kind.SHARED_GROUP, f"group '{group}'", text)
    elif not is_read_again:
        text = (
            f"the counts of the tasks are missing there: {describe_missing_clocks(is_read_again)}"
        )
        yield Diagnosis(Kind.UNCOUNTED, f"group '{group}'", text)


def load_end_states(
    options: KafkaOptions,
    offset: StreamOffset,
    broker: Broker,
    restore: Callable[[OffsetRange], PartitionClock],
) -> EndStates:
    """Load the clocks after the batch `offset`; `restore` reads a missing one from its records.

    Raises:
        DataLost: no task committed a clock, and its records are gone.
    """
    if options.cuts_partitions:
        # No task sees a whole partition, so none has its clock. Cutting is only allowed without
        # CTIs, so the clock would hold nothing but counts.
        return EndStates(offset.clocks, offset.malformed_payloads)
    metadata = broker.committed_metadata(
        [offset_range.partition for offset_range in offset.ranges() if offset_range.size]
    )
    group = options.client.get("group.id", group_name(options.group_prefix, offset.stream))
    return find_end_states(offset, metadata, restore if options.is_ordered else None, group)


def lose_clock(
    options: KafkaOptions, offset: StreamOffset, offset_range: OffsetRange
) -> PartitionClock:
    """Return the clock at the start of a range, because the topic of its records is gone (8.3).

    Raises:
        DataLost: option `failOnDataLoss` is true.
    """
    report_losses(
        options,
        f"no task committed the clock of {offset_range.partition} after offset "
        f"{offset_range.end_exclusive - 1}, and its topic was deleted and created again",
        next_step=f"it goes on as it was at offset {offset_range.start_inclusive}",
    )
    return offset.partitions[offset_range.partition].clock


def read_again(
    options: KafkaOptions,
    offset: StreamOffset,
    offset_range: OffsetRange,
    create_reader: Callable[[KafkaOptions, str], RangeReader],
) -> PartitionClock:
    """Read `offset_range` again to restore a clock that no task committed.

    Raises:
        DataLost: the records are gone.
    """
    clock = offset.partitions[offset_range.partition].clock
    _LOG.info("reading %s again: no task committed its state to the group", offset_range)
    reader = create_reader(options, group_name(options.group_prefix, offset.stream))
    try:
        return compute_end_clock(options, TaskRange(offset_range, clock), reader.read)
    except DataLost as error:
        raise DataLost(
            f"no task committed the clock of {offset_range.partition} after offset "
            f"{offset_range.end_exclusive - 1}, and reading its records again failed: {error}"
        ) from error
    finally:
        reader.close()


class LastEndStates:
    """Keeps the end states of the last batch, so that the group is asked for them once."""

    def __init__(
        self,
        get_broker: Callable[[], Broker],
        create_reader: Callable[[KafkaOptions, str], RangeReader],
        require_topic_ids: Callable[[Set[str], str], Mapping[str, str]],
    ) -> None:
        self._get_broker = get_broker
        self._create_reader = create_reader
        self._require_topic_ids = require_topic_ids
        self._known: tuple[StreamOffset, EndStates] | None = None

    def note(self, offset: StreamOffset, range_ends: Mapping[Partition, RangeEnd]) -> None:
        """Note the ends of the batch `offset`, because this process has read its rows."""
        self._known = offset, take_end_states(offset, range_ends)

    def find(self, options: KafkaOptions, offset: StreamOffset) -> EndStates:
        """Return the end states of the batch `offset`; `options` may be today's."""
        if self._known is None or self._known[0] != offset:
            options = options.as_of(offset.settings)
            end_states = load_end_states(
                options,
                offset,
                self._get_broker(),
                lambda offset_range: self.restore(options, offset, offset_range),
            )
            self._known = offset, end_states
        return self._known[1]

    def restore(
        self, options: KafkaOptions, offset: StreamOffset, offset_range: OffsetRange
    ) -> PartitionClock:
        """Return the clock after a range, from its records if the topic still has them.

        Raises:
            BrokerUnreachable: the brokers do not tell the topic's id.
        """
        topic = offset_range.partition.topic
        if topic in offset.topic_ids:
            why = f"the clock of {offset_range.partition} is to be restored from its records"
            if find_recreated_topics(offset.topic_ids, self._require_topic_ids({topic}, why)):
                # Other records have these offsets now.
                return lose_clock(options, offset, offset_range)
        return read_again(options, offset, offset_range, self._create_reader)
