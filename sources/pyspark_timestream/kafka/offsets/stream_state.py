"""A stream between two batches: the inputs of its next offset, and what holds partitions back.

The driver fills a `StreamState` for each batch: the `BrokerSnapshot` holds the answers of brokers
and clocks, the `RunContext` the options and the run. The rules below it say which partitions are
idle, and how far `maxSkew` lets a batch read the others; `next_offset` applies them.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from pyspark_timestream.core.instants import MIN_US, SECOND_US
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
class RunContext:
    """The options, and what the current run adds to them.

    Attributes:
        options: the query's options, with the values that hold for this batch.
        max_offsets: approximate maximum of offsets in this batch; None for no limit.
        min_offsets: the batch waits until there are this many new offsets; None for no minimum.
        bounded: True if the run ends once it has read up to its bounds.
        new_start: True for the first offset of the run.
        final_cti: True if a bounded run ends with the final CTI.
        committed_batch: the last batch that is certainly committed, so that no restart runs it
            again; -1 if none.
        change: the options that differ from those of the last offset; None without a difference.
    """

    options: KafkaOptions
    max_offsets: int | None
    min_offsets: int | None
    bounded: bool
    new_start: bool
    final_cti: bool
    committed_batch: int
    change: NewRules | None


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """The answers of brokers and clocks at one moment.

    Attributes:
        positions: the next offset to read in every existing partition.
        ends: where the readable records end; in a bounded run, its bounds.
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
    run: RunContext

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
    active = sorted(previous.partitions.keys() - previous.idle)
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

_MIN_STEP_US: Final = SECOND_US
_STEPS: Final = 10
"""Maximum number of batches without records that an idle stream makes per `idleAdvance`."""

CaughtUpSince = Mapping[Partition, int]
"""Partition that has caught up -> the wall clock, in us, when the driver first saw that."""


def find_caught_up(
    since_us: CaughtUpSince, caught_up: Collection[Partition], now_us: int, *, troubled: bool
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


# -- aligned reading (semantics 5.10) --------------------------------------------------------------

MIN_READ: Final = 100
"""Fewer offsets than this are not worth a batch of their own, and take hardly any state."""

_GROWTH: Final = 4
"""By estimate, read at most this many times the offsets of a partition's last batch."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """How far a batch may read, before the driver asks the broker's time index.

    Attributes:
        bound_us: partitions are read up to the first event at or after this time; None while no
            partition's time is known.
        estimates: aligned partition -> about how many offsets lie before the bound, at least one.
            Other partitions are read to their ends.
        waiting: aligned partitions with a time at or after the bound.
        slowest: aligned partitions that give the bound.
    """

    bound_us: int | None = None
    estimates: Mapping[Partition, int] = field(default_factory=dict)
    waiting: frozenset[Partition] = frozenset()
    slowest: frozenset[Partition] = frozenset()

    def list_instants_ms(self) -> dict[Partition, int]:
        """Return the partitions to look up in the time index, with the timestamp in ms."""
        if self.bound_us is None or self.bound_us < 0:
            return {}
        bound_ms = -(-self.bound_us // 1_000)
        return {
            partition: bound_ms for partition in self.estimates if partition not in self.waiting
        }


@dataclass(frozen=True, slots=True)
class _Pace:
    """A partition's last batch: its time before, its time after, and the number of offsets."""

    before_us: int | None
    last_us: int | None
    size: int

    def find_steady_time(self, skew_us: int) -> int | None:
        """Return the partition's time; if it jumped by more than the skew, the time before.

        So a lone event of the far future does not move the bound.
        """
        if self.before_us is None or self.last_us is None:
            return self.last_us
        return self.before_us if self.last_us - self.before_us > skew_us else self.last_us

    def estimate(self, bound_us: int | None) -> int:
        """Estimate how many offsets lie before the bound."""
        limit = _GROWTH * self.size + MIN_READ
        if bound_us is None or self.before_us is None or self.last_us is None:
            return limit
        gain_us = self.last_us - self.before_us
        if gain_us < 0:
            return max(self.size, MIN_READ)
        if gain_us == 0:
            return limit
        return min(max(self.size * (bound_us - self.last_us) // gain_us, MIN_READ), limit)


def compute_alignment(state: StreamState, ends: Mapping[Partition, int]) -> Alignment:
    """Return how far the next batch may read, if logs can be read up to `ends`."""
    options = state.run.options
    skew_us = options.max_skew_us
    if skew_us is None:
        return Alignment()
    limit = state.run.max_offsets
    backlog = {
        partition: ends.get(partition, position) - position
        for partition, position in state.snapshot.positions.items()
    }
    # A small backlog that the batch reads anyway is not worth the waiting of others.
    fits_limit = limit is None or sum(max(size, 0) for size in backlog.values()) <= limit
    least_backlog = MIN_READ if fits_limit else 0
    aligned = [partition for partition, size in backlog.items() if size > least_backlog]
    if len(aligned) < 2:
        return Alignment()
    paces = {partition: _find_pace(state, partition) for partition in aligned}
    times = {partition: pace.find_steady_time(skew_us) for partition, pace in paces.items()}
    least_us = min((us for us in times.values() if us is not None), default=None)
    bound_us = None if least_us is None else least_us + skew_us
    estimates = {partition: pace.estimate(bound_us) for partition, pace in paces.items()}
    if bound_us is None:
        return Alignment(None, estimates)
    slowest = frozenset(partition for partition, us in times.items() if us == least_us)
    ahead = {
        partition
        for partition, pace in paces.items()
        if pace.last_us is not None
        and pace.last_us >= bound_us
        # A partition without a CTI must not wait: until it has one, the stream has none.
        and (options.frequency is None or state.find_clock(partition).cti_us is not None)
    }
    return Alignment(bound_us, estimates, frozenset(ahead) - slowest, slowest)


def _find_pace(state: StreamState, partition: Partition) -> _Pace:
    last_offset = state.find_last(partition)
    if last_offset is None:
        return _Pace(None, None, 0)
    options = state.run.options
    return _Pace(
        _find_time(options, last_offset.clock),
        _find_time(options, state.find_clock(partition)),
        last_offset.size,
    )


def _find_time(options: KafkaOptions, clock: PartitionClock) -> int | None:
    """Return the time of a partition with this clock; None if it has had no event."""
    last_us = clock.last_us
    if last_us is None or clock.cti_us is None or not options.frequency or last_us < clock.cti_us:
        return last_us
    # A generated CTI lies `ctiDelay` behind the event that triggered it.
    return max(last_us, clock.cti_us + options.delay_us)


def align_ends(
    alignment: Alignment,
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    time_index: Mapping[Partition, int | None],
) -> tuple[dict[Partition, int], frozenset[Partition]]:
    """Return where the batch must stop reading, and the partitions that wait.

    `time_index` answers `alignment.list_instants_ms()`, as in `plan_next_offset`.
    """
    cut, waiting = dict(ends), set(alignment.waiting)
    for partition, estimate in alignment.estimates.items():
        position, end = positions[partition], ends[partition]
        # The record at the position is past the bound, which only the slowest may pass.
        if time_index.get(partition) == position and partition not in alignment.slowest:
            waiting.add(partition)
        if partition in waiting:
            # One record tells when its clock moves on.
            aim = position + 1
        elif partition not in time_index:
            # The brokers were not asked, as they do not know event times: the pace decides.
            aim = position + estimate
        elif (at_bound := time_index[partition]) is None:
            # No record of the log is past the bound.
            aim = end
        else:
            # The slowest goes on by its pace if its next record is past the bound.
            aim = at_bound if at_bound > position else position + estimate
        cut[partition] = min(aim, end)
    return cut, frozenset(waiting)
