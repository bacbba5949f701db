"""The next offset: what the stream does after what it did, given what the broker has.

Pure: the broker's answers and the run's circumstances are arguments, the offset is the state.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_timestream.cti import PartitionState
from pyspark_timestream.errors import LOSS_ADVICE, CheckpointMismatch, DataLost
from pyspark_timestream.frontier import merge, proven_by_tasks
from pyspark_timestream.instants import FINAL_US
from pyspark_timestream.kafka_offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka_task import Share, TaskPlan
from pyspark_timestream.ranges import Partition, Range, limit_ranges, task_count

__all__ = ["Circumstances", "first_offset", "joined", "next_offset", "plan_tasks", "reconcile"]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a run adds to the options.

    Attributes:
        max_offsets: at most about so many offsets in this batch; None: no limit.
        max_tasks: at most so many tasks; None: no limit.
        bounded: the run ends once the ends that it was given are read.
        new_start: this is the first offset that this run makes.
        lost: the positions jump over something that is gone: the next offset must say so.
        final_cti: a bounded run ends with the final CTI.
    """

    max_offsets: int | None = None
    max_tasks: int | None = None
    bounded: bool = False
    new_start: bool = False
    lost: bool = False
    final_cti: bool = False


def first_offset(
    stream: str,
    settings: Mapping[str, str],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    run: Circumstances,
) -> StreamOffset:
    """The offset of a new query's first batch, from `starts` towards `ends`."""
    shares = _shares(starts, ends, {part: PartitionState() for part in starts}, run)
    blank = StreamOffset(stream, settings, 1, shares)
    return _finished(blank, None, run)


def next_offset(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    run: Circumstances,
) -> StreamOffset:
    """The offset after `previous`; `previous` itself where there is nothing to do.

    Args:
        previous: the last batch's offset.
        ended: the state of each partition of `previous` after it.
        positions: where to read on, of every partition that there is now.
        ends: how far there are records to read now (for a bounded run: at its start).
        run: the circumstances.

    Raises:
        CheckpointMismatch: there are new records, but the final CTI has been emitted.
    """
    emitted_us = _emitted(previous, ended)
    merged_us = merge(ended[part].cti_us for part in positions if part in ended)
    # It never goes back, not even behind what a task proved with a partition that is gone by now.
    cti_us = _greatest(merged_us, emitted_us)
    states = {part: ended.get(part, PartitionState(cti_us=cti_us)) for part in positions}
    planned = dataclasses.replace(
        previous,
        partitions=_shares(positions, ends, states, run),
        cti_us=cti_us,
        opening_us=None,
        number=previous.number + 1,
        starts=previous.starts + run.new_start,
        closing=False,
    )
    planned = _finished(planned, emitted_us, run)
    closed = run.bounded and previous.closing and not run.new_start
    has_records = any(span.size for span in planned.ranges())
    if has_records and previous.final:
        raise CheckpointMismatch(
            "this checkpoint's stream has ended: its final CTI promised that nothing changes any "
            "more, and now there are new records; start with a new checkpoint, or run with option "
            "'finalCti' = 'false' from the beginning"
        )
    if has_records or planned.opening_us is not None or run.new_start or run.lost:
        return planned
    return planned if run.bounded and not closed else previous


def plan_tasks(offset: StreamOffset) -> list[TaskPlan]:
    """The tasks of the batch that `offset` describes; the first one opens it."""
    states = {part: share.state for part, share in offset.partitions.items()}
    plans = []
    for group in offset.groups():
        mine = {span.partition for span in group}
        others = (state.cti_us for part, state in sorted(states.items()) if part not in mine)
        shares = tuple(Share(span, states[span.partition]) for span in group)
        plans.append(TaskPlan(shares, tuple(others), offset.cti_us))
    if offset.opening_us is not None:
        opened = plans[0] if plans else TaskPlan(emitted_us=offset.cti_us)
        plans[:1] = [dataclasses.replace(opened, opening_us=offset.opening_us)]
    return plans


def joined(
    start: StreamOffset, states: Mapping[Partition, PartitionState], end: StreamOffset
) -> list[TaskPlan]:
    """The tasks from the end of the batch `start` to the end of the batch `end`, as one batch.

    Spark asks for that after a crash under asynchronous progress tracking, which notes the end of
    some batches only. `states` is every partition's state after `start`.
    """
    shares = {
        part: PartitionOffset(
            start.partitions[part].end_exclusive, share.end_exclusive, states[part]
        )
        if part in start.partitions and start.partitions[part].end_exclusive < share.end_exclusive
        else share
        for part, share in end.partitions.items()
    }
    whole = dataclasses.replace(end, partitions=shares, cti_us=start.cti_us)
    plans = plan_tasks(dataclasses.replace(whole, tasks=max(end.tasks, 1))) or [TaskPlan()]
    # What the batches between have told is true once all of this has been read.
    return [*plans[:-1], dataclasses.replace(plans[-1], closing_us=end.cti_us)]


def reconcile(
    wanted: Mapping[Partition, int],
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    fail_on_data_loss: bool,
) -> tuple[dict[Partition, int], list[str]]:
    """Where to read on, given what the broker still has.

    Returns:
        The positions of the partitions that still exist; and what was lost, in words.

    Raises:
        DataLost: something was lost and `fail_on_data_loss`.
    """
    positions, losses = dict(wanted), []
    for part, position in sorted(wanted.items()):
        if part not in ends:
            losses.append(f"{part} is gone; it was read up to offset {position}")
            del positions[part]
        elif ends[part] < position:
            losses.append(
                f"{part} ends at offset {ends[part]}, but was read up to {position}: the topic "
                "was truncated or created anew"
            )
            positions[part] = earliest.get(part, 0)
        elif earliest.get(part, position) > position:
            losses.append(
                f"{part} begins at offset {earliest[part]}: offsets {position} to "
                f"{earliest[part] - 1} were deleted before they were read"
            )
            positions[part] = earliest[part]
    if losses and fail_on_data_loss:
        raise DataLost(f"{'; '.join(losses)}. {LOSS_ADVICE}")
    return positions, losses


def _shares(
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    states: Mapping[Partition, PartitionState],
    run: Circumstances,
) -> dict[Partition, PartitionOffset]:
    # A partition found after a bounded run began has no end in it yet: it waits for the next run.
    reachable = {part: max(ends.get(part, start), start) for part, start in starts.items()}
    limited = limit_ranges(starts, reachable, run.max_offsets)
    return {part: PartitionOffset(starts[part], limited[part], states[part]) for part in starts}


def _finished(planned: StreamOffset, emitted_us: int | None, run: Circumstances) -> StreamOffset:
    """`planned` with what follows from its ranges: tasks, the opening CTI, the end."""
    ranges = planned.ranges()
    closing = run.bounded and not any(span.size for span in ranges)
    final = planned.final or (closing and run.final_cti)
    cti_us = FINAL_US if final else planned.cti_us
    news = cti_us is not None and (run.new_start or emitted_us is None or cti_us > emitted_us)
    return dataclasses.replace(
        planned,
        cti_us=cti_us,
        opening_us=cti_us if news else None,
        tasks=task_count(ranges, run.max_tasks),
        closing=closing,
        final=final,
    )


def _emitted(previous: StreamOffset, ended: Mapping[Partition, PartitionState]) -> int | None:
    """The greatest CTI row that has appeared up to the end of the batch `previous`.

    Every batch opens with its own stream CTI unless that had appeared already, so only what its
    tasks have proven can be greater.
    """
    spans: list[Range] = previous.ranges()
    place = {span.partition: index for index, span in enumerate(spans)}
    start_us = [previous.partitions[span.partition].state.cti_us for span in spans]
    # A partition that is gone by now has no end state; its task may have proven less than this.
    end_us = [
        ended[span.partition].cti_us if span.partition in ended else start
        for span, start in zip(spans, start_us, strict=True)
    ]
    groups = [[place[span.partition] for span in group] for group in previous.groups()]
    proven = proven_by_tasks(start_us, end_us, groups)
    return _greatest(proven, previous.cti_us)


def _greatest(*ctis_us: int | None) -> int | None:
    return max((cti_us for cti_us in ctis_us if cti_us is not None), default=None)
