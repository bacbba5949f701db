"""The tasks of a batch: a function of its offset alone, so that a replay is the same batch."""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_timestream.cti.state import PartitionState
from pyspark_timestream.cti.stream_cti import find_min_of_others
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.ranges import Range

__all__ = ["TaskPlan", "TaskRange", "plan_tasks"]


@dataclass(frozen=True, slots=True)
class TaskRange:
    """One range of a task, and its partition's clock before it.

    Attributes:
        span: the records to deliver.
        state: the clock before `span`, or before `lead` if there is one.
        lead: records before `span` to read for the clock alone; None if not needed.
        raises: pairs of an offset in `span` (or its end), increasing, and the CTI to which the
            clock is raised before the record there.
    """

    span: Range
    state: PartitionState
    lead: Range | None = None
    raises: tuple[tuple[int, int], ...] = ()

    def split_at_raises(self) -> Iterator[tuple[int | None, Range]]:
        """Split `span` at its raises; return each part with the CTI to raise the clock to first."""
        part, begin, end = self.span
        ctis_us = (None, *(cti_us for _, cti_us in self.raises))
        places = itertools.pairwise((begin, *(at for at, _ in self.raises), end))
        for cti_us, (first, stop) in zip(ctis_us, places, strict=True):
            yield cti_us, Range(part, first, stop)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The work of one task.

    Attributes:
        ranges: the ranges to read, in this order.
        others_us: the CTIs of all partitions that are not in `ranges`, at the batch's start, or
            only the one that decides their minimum.
        emitted_us: the stream's CTI at the batch's start: only CTI rows above it are emitted.
        opening_us: a CTI row to emit first; None for none.
        closing_us: a CTI row to emit last; None for none.
    """

    ranges: tuple[TaskRange, ...] = ()
    others_us: tuple[int | None, ...] = ()
    emitted_us: int | None = None
    opening_us: int | None = None
    closing_us: int | None = None


def plan_tasks(offset: StreamOffset) -> list[TaskPlan]:
    """Plan the tasks of the batch `offset`; the first one emits the opening CTI."""
    states = {part: share.state for part, share in offset.partitions.items()}
    groups = offset.groups()
    awake = [part for part, share in offset.partitions.items() if not share.idle]
    place = {part: index for index, part in enumerate(awake)}
    mine = [
        [place[span.partition] for span in group if span.partition in place] for group in groups
    ]
    others = find_min_of_others([states[part].cti_us for part in awake], mine)
    plans = [
        TaskPlan(
            tuple(TaskRange(span, states[span.partition]) for span in group), least, offset.cti_us
        )
        for group, least in zip(groups, others, strict=True)
    ]
    if offset.opening_us is not None:
        opened = plans[0] if plans else TaskPlan(emitted_us=offset.cti_us)
        plans[:1] = [dataclasses.replace(opened, opening_us=offset.opening_us)]
    return plans
