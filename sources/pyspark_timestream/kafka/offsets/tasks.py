"""Plans the tasks of a stream's batch and of a batch read.

A stream's batch depends on its offset only, so that a replay is the same batch.

After a crash, several batches may run as one (semantics 8.6). Under asynchronous progress tracking
Spark commits only some batches. After a restart it runs all batches since the last commit as one,
and knows two offsets: the commit's and the last. The last offset therefore records, for each
partition, where reading began or went back to, and where anything other than a record raised its
clock. Both are dropped once Spark has committed a later batch, since no restart goes back before
that.

Spark plans a batch read once (7.4), and reuses the tasks for all later evaluations of the DataFrame
or view. So a task's slice does not hold where its partitions start and end. It holds only the
offsets that cut a partition, and which task reads the partitions that were empty or missing at
planning time. Each task resolves the starting and ending options when it runs. Together the slices
cover every record that exists by then exactly once.
"""

import dataclasses
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import NEW_CHECKPOINT, CheckpointMismatch
from pyspark_timestream.kafka.offsets.changes import ClockChange, settings_before
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.offsets.positions import check_order
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskPlan, TaskRange, cut_ranges
from pyspark_timestream.rules.clocks import MinOfOthers, PartitionClock, compute_min_of_others

E = TypeVar("E", tuple[int, int], tuple[int, int, int])


def plan_tasks(offset: StreamOffset) -> list[TaskPlan]:
    """Plan the tasks of the batch `offset`; the first one emits the first CTI row."""
    partitions = offset.partitions
    groups = offset.groups()
    active = offset.active_clocks
    indexes = {partition: index for index, partition in enumerate(active)}
    members = [
        [
            indexes[offset_range.partition]
            for offset_range in group
            if offset_range.partition in indexes
        ]
        for group in groups
    ]
    others = compute_min_of_others([clock.cti_us for clock in active.values()], members)
    plans = [
        TaskPlan(
            tuple(
                TaskRange(
                    offset_range,
                    partitions[offset_range.partition].clock,
                    end_cti_us=partitions[offset_range.partition].end_cti_us,
                )
                for offset_range in group
            ),
            least,
            offset.cti_us,
        )
        for group, least in zip(groups, others, strict=True)
    ]
    if offset.first_cti_us is not None:
        first_plan = plans[0] if plans else TaskPlan(emitted_us=offset.cti_us)
        plans[:1] = [dataclasses.replace(first_plan, first_cti_us=offset.first_cti_us)]
    return plans


def note_restart_point(
    partition_offset: PartitionOffset | None, batch: int, position: int, committed: int
) -> tuple[tuple[int, int], ...]:
    """Return the restart points of a partition for the offset of the new batch number `batch`.

    `partition_offset` is the partition in the previous offset, None if it is new. `position` is the
    start of the new batch. `committed` is the last batch that no restart runs again; -1 if none.
    """
    entries = _keep_after(partition_offset.restart_points if partition_offset else (), committed)
    if partition_offset is not None and position >= partition_offset.end_exclusive:
        return entries
    return (*entries, (batch, position))


def note_forced_cti(
    partition_offset: PartitionOffset | None,
    batch: int,
    position: int,
    committed: int,
    cti_us: int | None,
) -> tuple[tuple[int, int, int], ...]:
    """Return the forced CTIs of a partition for the offset of a new batch.

    The arguments are as for `note_restart_point`; `cti_us` raises the clock at `position`; None:
    nothing does.
    """
    entries = _keep_after(partition_offset.forced_ctis if partition_offset else (), committed)
    # If reading goes back, CTIs that were forced further ahead now apply from `position` on.
    entries = tuple((number, min(offset, position), us) for number, offset, us in entries)
    if cti_us is None:
        return entries
    # If two CTIs are at one position, the later one is higher and replaces the other.
    return (*(entry for entry in entries if entry[1] < position), (batch, position, cti_us))


def note_change_points(
    partition_offset: PartitionOffset | None,
    changes: Sequence[ClockChange],
    batch: int,
    position: int,
    committed: int,
) -> tuple[tuple[int, int], ...]:
    """Return where the changes take effect in a partition, for the offset of a new batch.

    `changes` are all up to the new batch; other arguments are as for `note_restart_point`.
    """
    if partition_offset is None:
        # It begins with the newest options.
        return tuple((change.number, position) for change in changes if change.number > committed)
    entries = tuple(
        (number, min(offset, position))
        for number, offset in _keep_after(partition_offset.change_points, committed)
    )
    is_changed = changes and changes[-1].number == batch
    return (*entries, (batch, position)) if is_changed else entries


def join_batches(
    start: StreamOffset | None,
    clocks: Mapping[Partition, PartitionClock],
    end: StreamOffset,
    emitted_us: int | None,
) -> list[TaskPlan]:
    """Plan the tasks of all batches after `start` up to `end`, as one batch.

    `clocks` hold after `start`; `emitted_us` is the greatest CTI row emitted up to its end.

    Raises:
        CheckpointMismatch: `end` no longer says where a partition began.
    """
    after = -1 if start is None else start.number
    changes = [change for change in end.changes if change.number > after]
    first_settings = settings_before(end.settings, changes, after)
    settings_from = _follow_changes(first_settings, changes)
    missing = {} if start is None else start.missing
    known = {} if start is None else {**missing, **start.partitions}
    clocks = {**{partition: entry.clock for partition, entry in missing.items()}, **clocks}
    task_ranges: dict[Partition, TaskRange] = {}
    joined_partitions: dict[Partition, PartitionOffset] = {}
    for partition, last_offset in {**end.missing, **end.partitions}.items():
        begin = _find_begin(partition, last_offset, known.get(partition), after)
        joined_partitions[partition] = dataclasses.replace(last_offset, start_inclusive=begin)
        offset_range = OffsetRange(partition, begin, last_offset.end_exclusive)
        clock = clocks.get(partition, PartitionClock())
        task_ranges[partition] = _join_ranges(
            offset_range, clock, last_offset, after, settings_from
        )
    joined_offset = dataclasses.replace(end, partitions=joined_partitions, tasks=max(end.tasks, 1))
    # How far the other partitions were at each moment is lost, so a task proves no CTI. The CTI at
    # the start of the last batch holds once everything has been read.
    others: MinOfOthers = (None,) if len(task_ranges) > 1 else ()
    plans = [
        TaskPlan(
            tuple(task_ranges[offset_range.partition] for offset_range in group),
            others,
            emitted_us,
            settings=first_settings,
        )
        for group in joined_offset.groups()
    ] or [TaskPlan(emitted_us=emitted_us)]
    return [*plans[:-1], dataclasses.replace(plans[-1], last_cti_us=end.cti_us)]


def _follow_changes(
    settings: Mapping[str, str], changes: Sequence[ClockChange]
) -> dict[int, Mapping[str, str]]:
    """Return the pinned options after each change, by the number of its batch."""
    settings_from: dict[int, Mapping[str, str]] = {}
    for change in changes:
        settings = settings_from[change.number] = change.apply(settings)
    return settings_from


def _join_ranges(
    offset_range: OffsetRange,
    clock: PartitionClock,
    last_offset: PartitionOffset,
    after: int,
    settings_from: Mapping[int, Mapping[str, str]],
) -> TaskRange:
    """Return all ranges of a partition after the batch number `after` as one, with their cuts."""
    begin = offset_range.start_inclusive
    return TaskRange(
        offset_range,
        clock,
        forced_ctis=tuple(
            (max(offset, begin), us)
            for number, offset, us in last_offset.forced_ctis
            if number > after
        ),
        changes=tuple(
            (max(offset, begin), settings_from[number])
            for number, offset in last_offset.change_points
            if number in settings_from
        ),
        end_cti_us=last_offset.end_cti_us,
    )


def _find_begin(
    partition: Partition, last_offset: PartitionOffset, known: PartitionOffset | None, after: int
) -> int:
    """Return where the batches after number `after` begin to read a partition.

    `known` is the partition's entry in the offset of that batch; None if it was found later.
    """
    begins = [offset for number, offset in last_offset.restart_points if number > after]
    begins += [] if known is None else [known.end_exclusive]
    if not begins:
        raise CheckpointMismatch(
            f"{partition} was found by a batch that was not noted as done (asynchronous "
            "progress tracking notes some only), and a later commit has dropped where it "
            f"began: {NEW_CHECKPOINT}"
        )
    return min([*begins, last_offset.end_exclusive])


def leave_out_topics(plans: Iterable[TaskPlan], topics: Collection[str]) -> list[TaskPlan]:
    """Return the plans without the records of these topics (9.1).

    Their partitions' clocks stay in the minimum, and raise it where they did.
    """
    return [
        dataclasses.replace(
            plan,
            ranges=tuple(
                _empty(task_range) if task_range.offsets.partition.topic in topics else task_range
                for task_range in plan.ranges
            ),
        )
        for plan in plans
    ]


def _empty(task_range: TaskRange) -> TaskRange:
    partition, begin, _ = task_range.offsets
    return dataclasses.replace(
        task_range,
        offsets=OffsetRange(partition, begin, begin),
        warm_up=None,
        forced_ctis=tuple((begin, us) for _, us in task_range.forced_ctis),
        changes=tuple((begin, settings) for _, settings in task_range.changes),
    )


def _keep_after(entries: Sequence[E], committed: int) -> tuple[E, ...]:
    return tuple(entry for entry in entries if entry[0] > committed)


def plan_stream_tasks(options: KafkaOptions, offset: StreamOffset) -> list[TaskPlan]:
    """Return the tasks of the batch `offset`, with partitions cut if the options ask for it."""
    if not options.cuts_partitions:
        return plan_tasks(offset)
    pieces = cut_ranges(offset.ranges(), options.min_partitions, options.max_records)
    return [TaskPlan((TaskRange(piece, PartitionClock()),)) for piece in pieces]


MAX_SPARE_TASKS: Final = 4
"""Maximum number of tasks that share the partitions that were empty at planning time."""


class OpenRange(NamedTuple):
    """The offsets of a partition that one task reads; None stands for the partition's own end."""

    partition: Partition
    start_inclusive: int | None
    end_exclusive: int | None


@dataclass(frozen=True, slots=True)
class ReadSlice:
    """The work of one task of a batch read, in every evaluation.

    Attributes:
        number: the task's number, from 0.
        tasks: the number of tasks.
        ranges: the offsets that it reads of partitions that had records at planning time.
        spare: the task's number, from 0, among the tasks that read all other partitions; None if
            it reads none of them.
        assigned: the partitions in the ranges of all tasks; empty if `spare` is None.
    """

    number: int
    tasks: int
    ranges: tuple[OpenRange, ...]
    spare: int | None
    assigned: frozenset[Partition] = frozenset()


def slice_read(
    options: KafkaOptions, starts: Mapping[Partition, int], stops: Mapping[Partition, int]
) -> list[ReadSlice]:
    """Divide a batch read that would now go from `starts` to `stops`; return at least one slice.

    Raises:
        OptionError: a partition starts after its end.
    """
    check_order(options, starts, stops)
    offset_ranges = [
        OffsetRange(partition, start, stops[partition])
        for partition, start in sorted(starts.items())
    ]
    ranges = _open_outer_ends(
        cut_ranges(offset_ranges, options.min_partitions, options.max_records)
    )
    count = max(len(ranges), min(len(offset_ranges), MAX_SPARE_TASKS), 1)
    own_partitions = frozenset(open_range.partition for open_range in ranges)
    first_spare = max(count - MAX_SPARE_TASKS, 0)
    return [
        ReadSlice(
            number,
            count,
            tuple(ranges[number : number + 1]),
            number - first_spare if number >= first_spare else None,
            own_partitions if number >= first_spare else frozenset(),
        )
        for number in range(count)
    ]


def select_partitions(read_slice: ReadSlice, existing: Collection[Partition]) -> list[Partition]:
    """Return those existing partitions that the task reads, whole or cut."""
    own_partitions = {open_range.partition for open_range in read_slice.ranges}
    return [
        partition
        for partition in existing
        if partition in own_partitions or _is_spare(read_slice, partition)
    ]


def plan_slice(
    options: KafkaOptions,
    read_slice: ReadSlice,
    existing: Collection[Partition],
    starts: Mapping[Partition, int],
    stops: Mapping[Partition, int],
) -> TaskPlan:
    """Plan the task, given where its partitions start and end now.

    A single task for all partitions emits every CTI that they prove together. Several tasks emit
    only the final CTI, if any, because none knows the progress of the others. If the rules depend
    on earlier records, a task first reads those for the clock only, so that cutting a partition
    changes no row.

    `existing` are the partitions that exist now; `starts` and `stops` hold the bounds of those that
    `select_partitions` returned.

    Raises:
        OptionError: a partition starts after its end.
    """
    check_order(options, starts, stops)
    open_ranges = {open_range.partition: open_range for open_range in read_slice.ranges}
    task_ranges = []
    for partition, start in sorted(starts.items()):
        stop = stops[partition]
        # A log may have grown, or lost its beginning, since the slices were made.
        _, begin_at, end_at = open_ranges.get(partition, OpenRange(partition, None, None))
        begin = start if begin_at is None else max(begin_at, start)
        offset_range = OffsetRange(partition, begin, stop if end_at is None else min(end_at, stop))
        warm_up = OffsetRange(partition, start, begin)
        has_warm_up = warm_up.size > 0 and options.is_ordered
        if offset_range.size > 0:
            task_ranges.append(
                TaskRange(offset_range, PartitionClock(), warm_up if has_warm_up else None)
            )
    is_whole = read_slice.tasks == 1 and len(task_ranges) == len(existing)
    is_last = read_slice.number == read_slice.tasks - 1
    return TaskPlan(
        tuple(task_ranges),
        () if is_whole else (None,),
        last_cti_us=FINAL_US if options.final_cti and is_last else None,
    )


def _open_outer_ends(ranges: list[OffsetRange]) -> list[OpenRange]:
    """Open the first start and the last end of each partition."""
    # A later range of a partition replaces an earlier one; in reverse, the first one stays.
    first_ranges = {offset_range.partition: offset_range for offset_range in reversed(ranges)}
    last_ranges = {offset_range.partition: offset_range for offset_range in ranges}
    return [
        OpenRange(
            offset_range.partition,
            None
            if first_ranges[offset_range.partition] is offset_range
            else offset_range.start_inclusive,
            None
            if last_ranges[offset_range.partition] is offset_range
            else offset_range.end_exclusive,
        )
        for offset_range in ranges
    ]


def _is_spare(read_slice: ReadSlice, partition: Partition) -> bool:
    """Return whether this task reads a partition that is in no task's ranges."""
    if read_slice.spare is None or partition in read_slice.assigned:
        return False
    # Unlike `hash`, CRC-32 gives the same number in every process.
    number = zlib.crc32(partition.topic.encode()) + partition.number
    return number % min(read_slice.tasks, MAX_SPARE_TASKS) == read_slice.spare
