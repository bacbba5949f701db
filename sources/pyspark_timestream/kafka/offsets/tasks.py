"""Plans the tasks of a batch from its offset only, so that a replay is the same batch.

After a crash, several batches may run as one (semantics 8.6). Under asynchronous progress tracking
Spark commits only some batches. After a restart it runs all batches since the last commit as one,
and knows two offsets: that of the commit and the last one. The last offset therefore records, for
each partition, where reading began or went back to, and where anything other than a record raised
its clock. Both are dropped once Spark has committed a later batch, since no restart goes back
before that.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.rules.state import PartitionState
from pyspark_timestream.rules.stream_cti import find_min_of_others

Entry = TypeVar("Entry", tuple[int, int], tuple[int, int, int])


@dataclass(frozen=True, slots=True)
class TaskRange:
    """One range of a task, and its partition's clock before it.

    Attributes:
        offsets: the records to deliver.
        state: the clock before `offsets`, or before `warm_up` if there is one.
        warm_up: records before `offsets` to read for the clock only; None if not needed.
        forced_ctis: pairs (offset, CTI): the clock is raised to the CTI before the record at the
            offset. The offsets increase and lie in `offsets` or at its end.
    """

    offsets: Range
    state: PartitionState
    warm_up: Range | None = None
    forced_ctis: tuple[tuple[int, int], ...] = ()

    def split_at_forced_ctis(self) -> Iterator[tuple[int | None, Range]]:
        """Split `offsets` at the forced CTIs; return each piece with the CTI before it, if any."""
        part, begin, end = self.offsets
        ctis_us = (None, *(cti_us for _, cti_us in self.forced_ctis))
        places = itertools.pairwise((begin, *(offset for offset, _ in self.forced_ctis), end))
        for cti_us, (first, stop) in zip(ctis_us, places, strict=True):
            yield cti_us, Range(part, first, stop)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The work of one task.

    Attributes:
        ranges: the ranges to read, in this order.
        others_us: the CTIs at the batch's start of all partitions that are not in `ranges`, or
            only the one that is their minimum.
        emitted_us: the stream's CTI at the batch's start; only CTI rows above it are emitted.
        first_cti_us: a CTI row to emit first; None for none.
        last_cti_us: a CTI row to emit last; None for none.
    """

    ranges: tuple[TaskRange, ...] = ()
    others_us: tuple[int | None, ...] = ()
    emitted_us: int | None = None
    first_cti_us: int | None = None
    last_cti_us: int | None = None


def plan_tasks(offset: StreamOffset) -> list[TaskPlan]:
    """Plan the tasks of the batch `offset`; the first one emits the first CTI row."""
    states = {part: partition_offset.state for part, partition_offset in offset.partitions.items()}
    groups = offset.groups()
    active = [
        part for part, partition_offset in offset.partitions.items() if not partition_offset.idle
    ]
    place = {part: index for index, part in enumerate(active)}
    mine = [
        [place[span.partition] for span in group if span.partition in place] for group in groups
    ]
    others = find_min_of_others([states[part].cti_us for part in active], mine)
    plans = [
        TaskPlan(
            tuple(TaskRange(span, states[span.partition]) for span in group), least, offset.cti_us
        )
        for group, least in zip(groups, others, strict=True)
    ]
    if offset.first_cti_us is not None:
        opened = plans[0] if plans else TaskPlan(emitted_us=offset.cti_us)
        plans[:1] = [dataclasses.replace(opened, first_cti_us=offset.first_cti_us)]
    return plans


def note_restart_point(
    partition_offset: PartitionOffset | None, batch: int, position: int, committed: int
) -> tuple[tuple[int, int], ...]:
    """Return the restart points of a partition for the offset of the new batch number `batch`.

    `partition_offset` is the partition in the previous offset, None if it is new. `position` is the
    start of the new batch. `committed` is the last batch that no restart runs again; -1 if none.
    """
    kept = _keep_after(partition_offset.restart_points if partition_offset else (), committed)
    if partition_offset is not None and position >= partition_offset.end_exclusive:
        return kept
    return (*kept, (batch, position))


def note_forced_cti(
    partition_offset: PartitionOffset | None,
    batch: int,
    position: int,
    committed: int,
    cti_us: int | None,
) -> tuple[tuple[int, int, int], ...]:
    """Return the forced CTIs of a partition for the offset of a new batch.

    The arguments are those of `note_restart_point`; `cti_us` is the CTI to which the clock is
    raised at `position`, None if it is not.
    """
    kept = _keep_after(partition_offset.forced_ctis if partition_offset else (), committed)
    # If reading goes back, CTIs that were forced further ahead now apply from `position` on.
    kept = tuple((number, min(offset, position), us) for number, offset, us in kept)
    if cti_us is None:
        return kept
    # Of two CTIs at one place, the later one is the higher and replaces the other.
    return (*(entry for entry in kept if entry[1] < position), (batch, position, cti_us))


def join_batches(
    start: StreamOffset | None,
    states: Mapping[Partition, PartitionState],
    end: StreamOffset,
    emitted_us: int | None,
) -> list[TaskPlan]:
    """Plan the tasks of all batches after `start` up to `end`, as one batch.

    `states` are the clocks after `start`; `emitted_us` is the greatest CTI row emitted up to its
    end.

    Raises:
        CheckpointMismatch: `end` no longer says where a partition began.
    """
    after = -1 if start is None else start.number
    missing = {} if start is None else start.missing
    known = {} if start is None else {**missing, **start.partitions}
    states = {
        **{part: partition_offset.state for part, partition_offset in missing.items()},
        **states,
    }
    whole: dict[Partition, PartitionOffset] = {}
    task_ranges: dict[Partition, TaskRange] = {}
    for part, partition_offset in {**end.missing, **end.partitions}.items():
        begins = [offset for number, offset in partition_offset.restart_points if number > after]
        begins += [known[part].end_exclusive] if part in known else []
        if not begins:
            raise CheckpointMismatch(
                f"{part} was found by a batch that was not noted as done (asynchronous progress "
                "tracking notes some only), and a later commit has dropped where it began: start "
                "with a new checkpoint"
            )
        begin = min([*begins, partition_offset.end_exclusive])
        forced_ctis = [
            (max(offset, begin), us)
            for number, offset, us in partition_offset.forced_ctis
            if number > after
        ]
        whole[part] = dataclasses.replace(partition_offset, start_inclusive=begin)
        task_ranges[part] = TaskRange(
            Range(part, begin, partition_offset.end_exclusive),
            states.get(part, PartitionState()),
            forced_ctis=tuple(forced_ctis),
        )
    joined = dataclasses.replace(end, partitions=whole, tasks=max(end.tasks, 1))
    # How far the other partitions were at each moment is lost, so a task proves no CTI. The CTI at
    # the start of the last batch holds once everything has been read.
    others: tuple[None, ...] = (None,) * (len(task_ranges) > 1)
    plans = [
        TaskPlan(tuple(task_ranges[span.partition] for span in group), others, emitted_us)
        for group in joined.groups()
    ] or [TaskPlan(emitted_us=emitted_us)]
    return [*plans[:-1], dataclasses.replace(plans[-1], last_cti_us=end.cti_us)]


def _keep_after(entries: Sequence[Entry], committed: int) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if entry[0] > committed)
