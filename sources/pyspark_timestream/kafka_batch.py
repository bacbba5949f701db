"""The tasks of a batch: a function of its offset alone, so that a replay is the same batch."""

import dataclasses
from collections.abc import Mapping

from pyspark_timestream.cti import PartitionState, raised
from pyspark_timestream.frontier import least_of_others
from pyspark_timestream.kafka_offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka_task import Share, TaskPlan
from pyspark_timestream.ranges import Partition

__all__ = ["joined", "plan_tasks"]


def plan_tasks(offset: StreamOffset) -> list[TaskPlan]:
    """The tasks of the batch that `offset` describes; the first one opens it."""
    states = {part: share.state for part, share in offset.partitions.items()}
    groups = offset.groups()
    awake = [part for part, share in offset.partitions.items() if not share.idle]
    place = {part: index for index, part in enumerate(awake)}
    mine = [
        [place[span.partition] for span in group if span.partition in place] for group in groups
    ]
    others = least_of_others([states[part].cti_us for part in awake], mine)
    plans = [
        TaskPlan(tuple(Share(span, states[span.partition]) for span in group), least, offset.cti_us)
        for group, least in zip(groups, others, strict=True)
    ]
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
            start.partitions[part].end_exclusive,
            share.end_exclusive,
            _resumed(start, part, states[part]),
        )
        if part in start.partitions and start.partitions[part].end_exclusive < share.end_exclusive
        else share
        for part, share in end.partitions.items()
    }
    whole = dataclasses.replace(end, partitions=shares, cti_us=start.cti_us)
    plans = plan_tasks(dataclasses.replace(whole, tasks=max(end.tasks, 1))) or [TaskPlan()]
    # What the batches between have told is true once all of this has been read.
    return [*plans[:-1], dataclasses.replace(plans[-1], closing_us=end.cti_us)]


def _resumed(start: StreamOffset, part: Partition, state: PartitionState) -> PartitionState:
    """The state of a partition that has records again after the batch `start`."""
    if not start.partitions[part].idle or start.cti_us is None:
        return state
    return raised(state, start.cti_us)
