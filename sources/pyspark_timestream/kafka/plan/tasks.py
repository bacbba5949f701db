"""The tasks of a batch: a function of its offset alone, so that a replay is the same batch."""

import dataclasses

from pyspark_timestream.cti.stream_cti import least_of_others
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.task import Share, TaskPlan

__all__ = ["plan_tasks"]


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
