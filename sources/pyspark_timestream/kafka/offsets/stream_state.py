"""A stream between two batches: the inputs of its next offset, and what holds partitions back.

The driver fills a `StreamState` for each batch: the `BrokerSnapshot` holds the answers of brokers
and clocks, the `RunContext` the options and the run. The rules below it say which partitions are
idle; `next_offset` applies them.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from pyspark_timestream.core.instants import MIN_US
from pyspark_timestream.kafka.offsets.changes import NewRules
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_PAYLOADS,
    ImportedTopic,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import PartitionClock, find_max_proven, max_known


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

    def find_time(self, clock: PartitionClock) -> int | None:
        """Return the time of a partition with this clock; None if it has had no event."""
        last_us, cti_us = clock.last_us, clock.cti_us
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
        malformed_payloads: the malformed values and keys so far, per partition.
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
    malformed_payloads: Mapping[Partition, MalformedPayloads] = field(default_factory=dict)


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
    clocks: Mapping[Partition, PartitionClock]
    snapshot: BrokerSnapshot
    run: RunContext = RunContext()

    def find_last(self, partition: Partition) -> PartitionOffset | None:
        """Return a partition's entry in the last offset, also of a missing one; None if new."""
        return self.previous.partitions.get(partition) or self.previous.missing.get(partition)

    def find_clock(self, partition: Partition) -> PartitionClock:
        """Return a partition's clock after the last batch; a new partition has a fresh clock."""
        if partition in self.clocks:
            return self.clocks[partition]
        last_offset = self.find_last(partition)
        return PartitionClock() if last_offset is None else last_offset.clock

    def find_malformed(self, partition: Partition) -> MalformedPayloads:
        """Return a partition's malformed values and keys so far, also of a missing one."""
        if partition in self.snapshot.malformed_payloads:
            return self.snapshot.malformed_payloads[partition]
        last_offset = self.find_last(partition)
        return NO_MALFORMED_PAYLOADS if last_offset is None else last_offset.malformed_payloads

    def is_new(self, partition: Partition) -> bool:
        """Return whether the last batch did not have the partition."""
        return partition not in self.previous.partitions

    def was_idle(self, partition: Partition) -> bool:
        """Return whether the partition was idle in the last batch."""
        last_offset = self.previous.partitions.get(partition)
        return last_offset is not None and last_offset.idle

    @property
    def has_run_ended(self) -> bool:
        """Whether the last batch was the end-of-run batch of this run."""
        return self.run.bounded and self.previous.end_of_run and not self.run.new_start

    @property
    def has_new_import(self) -> bool:
        """Whether the imported topic has a CTI that the last batch does not know."""
        return has_new_import(self.previous, self.snapshot.imported)


def has_new_import(previous: StreamOffset, imported: ImportedTopic | None) -> bool:
    """Return whether the imported topic has a CTI that `previous` does not know."""
    before_us = None if previous.imported is None else previous.imported.cti_us
    now_us = None if imported is None else imported.cti_us
    return now_us is not None and now_us != before_us and not previous.final


def find_emitted_cti(
    previous: StreamOffset, clocks: Mapping[Partition, PartitionClock]
) -> int | None:
    """Return the greatest CTI row emitted up to the end of the batch `previous`.

    Every batch begins with its stream CTI unless that was emitted before, so only a CTI that one of
    its tasks has proven can be greater.
    """
    active = [
        partition
        for partition, last_offset in sorted(previous.partitions.items())
        if not last_offset.idle
    ]
    indexes = {partition: index for index, partition in enumerate(active)}
    start_us = [previous.partitions[partition].clock.cti_us for partition in active]
    # A partition that is missing now has no end state: its clock at the start counts.
    end_us = [
        max_known(
            clocks[partition].cti_us if partition in clocks else start,
            previous.partitions[partition].end_cti_us,
        )
        for partition, start in zip(active, start_us, strict=True)
    ]
    groups = [
        [indexes[offset_range.partition] for offset_range in group] for group in previous.groups()
    ]
    return max_known(find_max_proven(start_us, end_us, groups), previous.cti_us)


# -- idle partitions (semantics 5.2 and 5.9) -------------------------------------------------------

_MIN_STEP_US: Final = 1_000_000
_STEPS: Final = 10
"""Maximum number of batches without records that an idle stream makes per `idleAdvance`."""

CaughtUpSince = Mapping[Partition, int]
"""Partition that has caught up -> the wall clock, in us, when the driver first saw that."""


def find_caught_up(
    since_us: CaughtUpSince, caught_up: Collection[Partition], now_us: int, troubled: bool
) -> dict[Partition, int]:
    """Return since when each partition of `caught_up` has been so.

    After trouble (a request failed or was slow) nothing is known of the time before, so all times
    start again. They also do if the clock was set back.
    """
    before = {} if troubled else since_us
    return {partition: min(before.get(partition, now_us), now_us) for partition in caught_up}


def find_newly_idle(
    since_us: CaughtUpSince, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """Return the partitions that have been caught up for the timeout but are not idle yet."""
    if timeout_us is None:
        return frozenset()
    ripe = (partition for partition, since in since_us.items() if now_us - since >= timeout_us)
    return frozenset(ripe) - idle


def find_idle(
    since_us: CaughtUpSince, idle: Set[Partition], timeout_us: int | None, now_us: int
) -> frozenset[Partition]:
    """Return the partitions that are idle now.

    An idle partition stays idle while it is caught up; after a restart and in a bounded run it need
    not wait for the timeout again. Others become idle after the timeout.
    """
    return (frozenset(since_us) & idle) | find_newly_idle(since_us, idle, timeout_us, now_us)


def advance_by_clock(cti_us: int | None, advance_us: int | None, now_us: int) -> int | None:
    """Return the CTI of a stream with idle partitions only; None if it does not move now.

    `cti_us` is the CTI that its partitions give, `advance_us` is option `idleAdvance`. The CTI
    moves in steps of a tenth of that, at least a second, because each step is a batch.
    """
    if advance_us is None:
        return None
    step_us = max(_MIN_STEP_US, advance_us // _STEPS)
    moved_us = now_us - advance_us
    is_far_enough = cti_us is None or moved_us >= cti_us + step_us
    return moved_us if is_far_enough and moved_us >= MIN_US else None
