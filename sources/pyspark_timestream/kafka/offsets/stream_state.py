"""A stream between two batches: everything that its next offset depends on.

The driver fills a `StreamState` for each batch: the `BrokerSnapshot` holds the answers of brokers
and clocks, the `RunContext` the options and the run. `alignment` and `next_offset` are pure
functions of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_timestream.kafka.offsets.changes import NewRules
from pyspark_timestream.kafka.offsets.imported_ctis import ImportedTopic
from pyspark_timestream.kafka.offsets.offset import (
    MalformedValues,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.state import PartitionState, find_max_proven, max_known


@dataclass(frozen=True, slots=True)
class MaxSkew:
    """Option `maxSkew`, and how a partition's time follows from its clock.

    Attributes:
        us: how far ahead of the slowest partition others are read; above 0.
        delay_us: option `ctiDelay` if CTIs are generated; None otherwise.
    """

    us: int
    delay_us: int | None = None

    @classmethod
    def from_options(cls, options: KafkaOptions) -> "MaxSkew | None":
        """Create from the options; None without `maxSkew`."""
        if options.max_skew_us is None:
            return None
        return cls(options.max_skew_us, options.delay_us if options.frequency else None)

    def time_of(self, state: PartitionState) -> int | None:
        """Return the time of a partition with this clock; None if it has had no event."""
        last_us, cti_us = state.last_us, state.cti_us
        if last_us is None or cti_us is None or self.delay_us is None or last_us < cti_us:
            return last_us
        return max(last_us, cti_us + self.delay_us)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The limits and state of the current run.

    Attributes:
        max_offsets: approximate maximum of offsets in this batch; None for no limit.
        min_offsets: the batch waits until there are this many new offsets; None for no minimum.
        max_tasks: maximum number of tasks; None for no limit.
        bounded: True if the run ends once it has read up to its bounds.
        new_start: True for the first offset of the run.
        final_cti: True if a bounded run ends with the final CTI.
        idle_timeout_us: how long a partition that has caught up still holds the stream's CTI back;
            None for ever.
        idle_advance_us: while all partitions are idle, the stream's CTI follows the wall clock this
            far behind; None if it stays.
        max_skew: how far ahead of the slowest partition others are read; None for no limit.
        committed_batch: the last batch that is certainly committed, so that no restart runs it
            again; -1 if none.
        until_us: the CTI at which partitions and stream end (`endingCti`); None for no such end.
        change: the options that differ from those of the last offset; None without a difference.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_tasks: int | None = None
    bounded: bool = False
    new_start: bool = False
    final_cti: bool = False
    idle_timeout_us: int | None = None
    idle_advance_us: int | None = None
    max_skew: MaxSkew | None = None
    committed_batch: int = -1
    until_us: int | None = None
    change: NewRules | None = None


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """The answers of brokers and clocks at one moment.

    Attributes:
        positions: the next offset to read in every existing partition.
        ends: the ends up to which records can be read; in a bounded run, its bounds.
        lost: True if positions skip lost records, or a lost partition is back: both need a new
            offset.
        now_us: the wall clock.
        caught_up_since_us: partition that has caught up (everything read, no open transaction) ->
            the wall clock when the driver first saw that.
        nothing_to_do: True if there has been nothing to do for about a second.
        topic_ids: the known ids of topics.
        imported: the state of the topic of `ctiImport`, read before `ends`; None without an import.
        high_watermarks: the ends of the logs after that reading, including open transactions;
            `ends` holds for partitions that are not in it.
        malformed_values: the malformed values and keys so far, per partition.
    """

    positions: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    lost: bool = False
    now_us: int = 0
    caught_up_since_us: Mapping[Partition, int] = field(default_factory=dict)
    nothing_to_do: bool = False
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    imported: ImportedTopic | None = None
    high_watermarks: Mapping[Partition, int] = field(default_factory=dict)
    malformed_values: Mapping[Partition, MalformedValues] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream after its last batch.

    Attributes:
        previous: the offset of that batch.
        clocks: the clock of each of its partitions after the batch.
        snapshot: the answers of brokers and clocks now.
        run: the limits and state of the run.
    """

    previous: StreamOffset
    clocks: Mapping[Partition, PartitionState]
    snapshot: BrokerSnapshot
    run: RunContext = RunContext()

    def last_of(self, partition: Partition) -> PartitionOffset | None:
        """Return a partition's entry in the last offset, also of a missing one; None if new."""
        return self.previous.partitions.get(partition) or self.previous.missing.get(partition)

    def clock_of(self, partition: Partition) -> PartitionState:
        """Return a partition's clock after the last batch; a new partition has a fresh clock."""
        if partition in self.clocks:
            return self.clocks[partition]
        last = self.last_of(partition)
        return PartitionState() if last is None else last.state

    def is_new(self, partition: Partition) -> bool:
        """Return whether the last batch did not have the partition."""
        return partition not in self.previous.partitions

    def was_idle(self, partition: Partition) -> bool:
        """Return whether the partition was idle in the last batch."""
        last = self.previous.partitions.get(partition)
        return last is not None and last.idle

    @property
    def has_run_ended(self) -> bool:
        """Return whether the last batch was the end-of-run batch of this run."""
        return self.run.bounded and self.previous.end_of_run and not self.run.new_start

    @property
    def has_new_import(self) -> bool:
        """Return whether the imported topic has a CTI that the last batch does not know."""
        return has_new_import(self.previous, self.snapshot.imported)


def has_new_import(previous: StreamOffset, imported: ImportedTopic | None) -> bool:
    """Return whether the imported topic has a CTI that `previous` does not know."""
    before_us = None if previous.imported is None else previous.imported.cti_us
    now_us = None if imported is None else imported.cti_us
    return now_us is not None and now_us != before_us and not previous.final


def max_emitted_cti(
    previous: StreamOffset, clocks: Mapping[Partition, PartitionState]
) -> int | None:
    """Return the greatest CTI row emitted up to the end of the batch `previous`.

    Every batch begins with its stream CTI unless that was emitted before, so only a CTI that one of
    its tasks has proven can be greater.
    """
    active = [partition for partition, last in sorted(previous.partitions.items()) if not last.idle]
    place = {partition: index for index, partition in enumerate(active)}
    start_us = [previous.partitions[partition].state.cti_us for partition in active]
    # A partition that is missing now has no end state: its clock at the start counts.
    end_us = [
        max_known(
            clocks[partition].cti_us if partition in clocks else start,
            previous.partitions[partition].end_cti_us,
        )
        for partition, start in zip(active, start_us, strict=True)
    ]
    groups = [[place[span.partition] for span in group] for group in previous.groups()]
    return max_known(find_max_proven(start_us, end_us, groups), previous.cti_us)
