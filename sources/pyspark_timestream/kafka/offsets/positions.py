"""Positions: where reading starts and ends (semantics 9.2), and which records are gone (5.6, 9.1).

Here an *end* is the end of a log, and a *stop* is where a read ends.

As in Spark's own source, `startingTimestamp` overrides `startingOffsetsByTimestamp`, which
overrides `startingOffsets`; the same holds for the ending options. A partition without a record at
or after its starting timestamp fails the query or starts at the latest offset
(`startingOffsetsByTimestampStrategy`). One without a record at or after its ending timestamp ends
at the latest offset.

The ending options end a stream before its logs end (7.6): its ends are fixed when the query first
starts, and the offset keeps them as `fixed_ends`. With `endingCti`, a partition ends once its clock
reaches that (7.7). A partition that has ended needs nothing more from its log, so it can neither be
lost nor lag behind.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from pyspark_timestream.core.instants import DAY_US, format_instant, guess_unit
from pyspark_timestream.errors import LOSS_ADVICE, DataLost, OptionError
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.offsets.stream_state import StreamState
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import PartitionClock, compute_stream_cti, has_reached

_LOG: Final = logging.getLogger(__name__)

LEADER_CHANGE_GRACE_S: Final = 5.0
"""How long a partition must be missing, or its log too short, before the driver believes it."""

_MAX_MISSING_US: Final = 7 * DAY_US
"""How long a missing partition is kept: Kafka's default time for a group's offsets."""


def find_recreated_topics(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics with a new id: they have the same name but other records."""
    # A topic without a known id counts neither as recreated nor as unchanged.
    return frozenset(
        topic for topic, topic_id in now.items() if before.get(topic, topic_id) != topic_id
    )


def find_unchanged_topics(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics that certainly have the same id as before."""
    return frozenset(topic for topic, topic_id in now.items() if before.get(topic) == topic_id)


def reconcile(
    last_positions: Mapping[Partition, int],
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    *,
    recreated: Set[str] = frozenset(),
    unchanged: Set[str] = frozenset(),
) -> tuple[dict[Partition, int], list[str]]:
    """Return the positions to continue at in existing partitions, and a text for each loss.

    Topics in `unchanged` are certainly the topics read before: a log of theirs that is too short
    has lost its end.
    """
    positions = dict(last_positions)
    losses = []
    for partition, position in sorted(last_positions.items()):
        if partition not in ends:
            losses.append(f"{partition} is gone; it was read up to offset {position}")
            del positions[partition]
            continue
        positions[partition], loss = _find_loss(
            position,
            earliest.get(partition, 0),
            ends[partition],
            is_recreated=partition.topic in recreated,
            is_unchanged=partition.topic in unchanged,
        )
        if loss is not None:
            losses.append(f"{partition} {loss}")
    return positions, losses


def report_losses(
    options: KafkaOptions,
    *losses: str,
    next_step: str = "going on, as option 'failOnDataLoss' is 'false'",
) -> None:
    """Fail the query over lost records, or warn that it goes on without them.

    Raises:
        DataLost: there are losses, and option `failOnDataLoss` is true.
    """
    if losses and options.fail_on_data_loss:
        raise DataLost(f"{'; '.join(losses)}. {LOSS_ADVICE}")
    for loss in losses:
        _LOG.warning("%s; %s", loss, next_step)


def _find_loss(
    position: int, first: int, end: int, *, is_recreated: bool, is_unchanged: bool
) -> tuple[int, str | None]:
    """Return where to continue in a partition, and what it has lost, if anything."""
    # First of all: offsets of the earlier topic say nothing of this one.
    if is_recreated:
        return first, (
            f"was read up to offset {position}, but its topic has been deleted and created again "
            "since"
        )
    if end < position and is_unchanged:
        return end, (
            f"ends at offset {end}, but was read up to {position}: the end of its log is lost, as "
            "after an unclean leader election; what was written since then below offset "
            f"{end} is not read"
        )
    if end < position:
        return first, (
            f"ends at offset {end}, but was read up to {position}: the topic was truncated or "
            "created again"
        )
    if first > position:
        return first, (
            f"begins at offset {first}: offsets {position} to {first - 1} were deleted before "
            "they were read"
        )
    return position, None


def keep_missing(
    state: StreamState, topic_ids: Mapping[str, str]
) -> dict[Partition, PartitionOffset]:
    """Return the missing partitions to keep: topic ids can prove that they are the same later.

    `topic_ids` are the known ids that the topics have now.
    """
    previous = state.previous
    existing = state.snapshot.positions
    now_us = state.snapshot.now_us
    newly_missing = {
        partition: replace(
            last_offset,
            start_inclusive=last_offset.end_exclusive,
            clock=state.clocks[partition],
            malformed_payloads=state.find_malformed(partition),
            idle=False,
            caught_up_since_us=now_us,
        )
        for partition, last_offset in previous.partitions.items()
        if partition not in existing and partition in state.clocks
    }
    return {
        partition: last_offset
        for partition, last_offset in {**previous.missing, **newly_missing}.items()
        if partition not in existing
        and previous.topic_ids.get(partition.topic, "") == topic_ids.get(partition.topic)
        and now_us - (last_offset.caught_up_since_us or 0) < _MAX_MISSING_US
    }


_WORDS: Final = {EARLIEST: "-2 is earliest", LATEST: "-1 is latest"}
_ByPartition = Mapping[Partition, int]


FindOffsets = Callable[[Mapping[Partition, int]], Mapping[Partition, int | None]]
"""Returns the first offset at or after each timestamp, in ms; None if there is none."""


@dataclass(frozen=True, slots=True)
class ReadBound:
    """The options for one bound of a read, its start or its end; a timestamp overrides offsets.

    Attributes:
        options: the options.
        verb: `start` or `end`, for names and messages.
        timestamp_ms: the timestamp for all partitions; it overrides `timestamps_ms`.
        timestamps_ms: the timestamp of each partition.
        offsets: the offset of each partition, or `EARLIEST` or `LATEST` for all.
        words: which of `EARLIEST` and `LATEST` may stand for an offset.
        has_strategy: a partition without a record at or after its timestamp fails the query, unless
            `startingOffsetsByTimestampStrategy` is `latest`.
    """

    options: KafkaOptions
    verb: str
    timestamp_ms: int | None
    timestamps_ms: _ByPartition | None
    offsets: int | _ByPartition
    words: tuple[int, ...]
    has_strategy: bool

    @property
    def name(self) -> str:
        """The name of the option that decides."""
        if self.timestamp_ms is not None:
            return f"{self.verb}ingTimestamp"
        return f"{self.verb}ingOffsets{'' if self.timestamps_ms is None else 'ByTimestamp'}"

    def resolve(
        self,
        earliest: _ByPartition,
        ends: _ByPartition,
        find_offsets: FindOffsets,
        partitions: Collection[Partition] | None = None,
    ) -> dict[Partition, int]:
        """Return the first offset to read in each partition of `ends`, or the one after the last.

        Args:
            earliest: the first offset that each partition still has.
            ends: the offset after each partition's last readable record.
            find_offsets: is asked if timestamps decide.
            partitions: all partitions of the read; None: the partitions in `ends`.

        Raises:
            OptionError: a topic or assigned partition does not exist, an option does not name
                exactly the existing partitions, or no record is at or after a timestamp (with
                strategy `error`).
            DataLost: a named offset does not exist, and option `failOnDataLoss` is true.
        """
        partitions = ends if partitions is None else partitions
        _check_exist(self.options, partitions)
        if self.timestamp_ms is not None:
            instants_ms = dict.fromkeys(ends, self.timestamp_ms)
        elif self.timestamps_ms is not None:
            self._check_names(self.timestamps_ms, partitions)
            instants_ms = {partition: self.timestamps_ms[partition] for partition in ends}
        else:
            return self._find_named_offsets(earliest, ends, partitions)
        at_times = find_offsets(instants_ms)
        offsets = {}
        for partition, end in ends.items():
            offset = at_times.get(partition)
            if offset is None and self.has_strategy and self.options.starting_strategy != "latest":
                raise OptionError(
                    self.name,
                    f"{partition} has no record at or after timestamp {instants_ms[partition]}",
                    "a timestamp that each partition has a record at or after, in milliseconds",
                    f"{_correct_unit(instants_ms[partition])}choose an earlier one, or set option "
                    "'startingOffsetsByTimestampStrategy' to 'latest' to start such partitions at "
                    "their end",
                )
            offsets[partition] = end if offset is None else offset
        return offsets

    def _find_named_offsets(
        self,
        earliest: _ByPartition,
        ends: _ByPartition,
        partitions: Collection[Partition],
    ) -> dict[Partition, int]:
        """Return each partition's named offset, or the nearest that exists."""
        words = {EARLIEST: earliest, LATEST: ends}
        if isinstance(self.offsets, int):
            return {partition: words[self.offsets][partition] for partition in ends}
        self._check_names(self.offsets, partitions)
        spelt = ", -2 or -1" if EARLIEST in self.words else " or -1"
        offsets = {}
        for partition, end in ends.items():
            named_offset = self.offsets[partition]
            offset = words[named_offset][partition] if named_offset in self.words else named_offset
            if not earliest[partition] <= offset <= end and self.options.fail_on_data_loss:
                raise DataLost(
                    f"option '{self.name}': {partition} has offsets {earliest[partition]} to "
                    f"{end}, not {offset}; name one of them{spelt}, or set option "
                    f"'failOnDataLoss' to 'false' to {self.verb} at the nearest"
                )
            offsets[partition] = min(max(offset, earliest[partition]), end)
        return offsets

    def _check_names(self, user_offsets: _ByPartition, partitions: Collection[Partition]) -> None:
        """Check that the option names exactly the partitions that are read."""
        if set(user_offsets) == set(partitions):
            return
        words = [_WORDS[word] for word in self.words] if user_offsets is self.offsets else []
        raise OptionError(
            self.name,
            f"it names {_list_partitions(user_offsets)}, but the partitions are "
            f"{_list_partitions(partitions)}",
            f"exactly the partitions that are read{'; ' if words else ''}{', '.join(words)}",
            "name each of them once",
        )


def make_start_bound(options: KafkaOptions) -> ReadBound:
    """Make the bound that the starting options give a read."""
    return ReadBound(
        options,
        verb="start",
        timestamp_ms=options.starting_timestamp_ms,
        timestamps_ms=options.starting_timestamps_ms,
        offsets=options.starting_offsets,
        words=(EARLIEST, LATEST),
        has_strategy=True,
    )


def make_end_bound(options: KafkaOptions) -> ReadBound:
    """Make the bound that the ending options give a read."""
    return ReadBound(
        options,
        verb="end",
        timestamp_ms=options.ending_timestamp_ms,
        timestamps_ms=options.ending_timestamps_ms,
        offsets=options.ending_offsets,
        words=(LATEST,),
        has_strategy=False,
    )


def check_order(
    options: KafkaOptions, starts: Mapping[Partition, int], stops: Mapping[Partition, int]
) -> None:
    """Check that no partition starts after its end.

    Raises:
        OptionError: one does; the error names the option that decides where it starts.
    """
    starting = make_start_bound(options).name
    ending = make_end_bound(options).name
    for partition, start in sorted(starts.items()):
        if start > stops[partition]:
            raise OptionError(
                starting,
                f"{partition} starts at offset {start}, and option '{ending}' ends it at "
                f"{stops[partition]}",
                "a start at or before the end",
                f"choose an earlier one, or a later '{ending}'",
            )


def pin_ends(
    options: KafkaOptions,
    earliest: Mapping[Partition, int],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    find_offsets: FindOffsets,
) -> dict[Partition, int] | None:
    """Return where the ending options end a stream; None without such an option.

    Raises:
        OptionError: as `ReadBound.resolve`, or a partition starts after its end.
        DataLost: a named offset does not exist, and option `failOnDataLoss` is true.
    """
    if options.ends_by_default:
        return None
    stops = make_end_bound(options).resolve(earliest, ends, find_offsets)
    check_order(options, starts, stops)
    return stops


def has_stream_ended(offset: StreamOffset, until_us: int | None) -> bool:
    """Return whether the stream has reached `until_us` (`endingCti`) at the start of `offset`.

    A final CTI that a bounded run emitted before that does not count.
    """
    if until_us is None:
        return False
    active_us: list[int | None] = []
    idle_us: list[int | None] = []
    for partition_offset in offset.partitions.values():
        group = idle_us if partition_offset.idle else active_us
        group.append(partition_offset.clock.cti_us)
    floor_us = None if offset.final else offset.cti_us
    return has_reached(compute_stream_cti(active_us, (), idle_us, floor_us), until_us)


def find_ended(
    offset: StreamOffset, clocks: Mapping[Partition, PartitionClock], until_us: int | None
) -> dict[Partition, int]:
    """Return the partitions that the stream has read to their own ends, with their positions.

    Once the stream has reached `endingCti`, its idle partitions have ended too, at any clock.
    `clocks` hold after the batch; for a partition without one, the clock at the batch's start
    counts.
    """
    fixed = offset.fixed_ends or {}
    is_over = has_stream_ended(offset, until_us)
    return {
        partition: partition_offset.end_exclusive
        for partition, partition_offset in offset.partitions.items()
        if is_over
        or (partition in fixed and partition_offset.end_exclusive >= fixed[partition])
        or has_reached(clocks.get(partition, partition_offset.clock).cti_us, until_us)
    }


def raise_to_positions(
    ends: Mapping[Partition, int], positions: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return `ends` with none below its partition's position; a missing end is the position."""
    return {
        **positions,
        **{partition: max(end, positions.get(partition, 0)) for partition, end in ends.items()},
    }


def limit_ends(
    readable_ends: Mapping[Partition, int],
    fixed_ends: Mapping[Partition, int] | None,
    ended: Mapping[Partition, int],
) -> dict[Partition, int]:
    """Return how far the stream reads each partition; with `fixed_ends`, it reads no other ones."""
    if fixed_ends is None:
        return {**readable_ends, **ended}
    limited = {
        partition: min(end, fixed_ends[partition])
        for partition, end in readable_ends.items()
        if partition in fixed_ends
    }
    return {**limited, **ended}


_UNIT_NAMES: Final = {"s": "seconds", "us": "microseconds", "ns": "nanoseconds"}


def name_other_unit(ms: int) -> str:
    """Name the unit in which `ms` is a plausible present-day time; empty for none or milliseconds.

    >>> name_other_unit(1_700_000_000), name_other_unit(1_700_000_000_000), name_other_unit(0)
    ('seconds, of 2023-11-14', '', '')
    """
    unit, us = guess_unit(ms) or ("ms", 0)
    return "" if unit == "ms" else f"{_UNIT_NAMES[unit]}, of {format_instant(us)[:10]}"


def _correct_unit(ms: int) -> str:
    unit = name_other_unit(ms)
    return f"if that value is in {unit}, convert it to milliseconds; otherwise " if unit else ""


def _check_exist(options: KafkaOptions, partitions: Collection[Partition]) -> None:
    if options.assign is not None and set(options.assign) != set(partitions):
        missing = _list_partitions(
            [partition for partition in options.assign if partition not in partitions]
        )
        raise OptionError(
            "assign", f"there is no {missing}", "existing partitions", "create or leave them out"
        )
    topics = {partition.topic for partition in partitions}
    for topic in options.subscribe or ():
        if topic not in topics:
            raise OptionError(
                "subscribe",
                f"topic '{topic}' does not exist",
                "existing topics",
                "correct its name, or create it",
            )


def _list_partitions(partitions: Collection[Partition]) -> str:
    return (
        ", ".join(f"{partition.topic}-{partition.number}" for partition in sorted(partitions))
        or "none"
    )
