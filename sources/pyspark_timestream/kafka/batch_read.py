"""Divides a batch read into tasks that stay valid for later evaluations (semantics 7.4).

Spark plans a batch read once, and reuses the tasks for all later evaluations of the DataFrame or
view. So a task's slice does not hold the start and end of its partitions. It holds only the offsets
at which a partition is cut, and which task reads partitions that were empty or missing at planning
time. Each task resolves the starting and ending options when it runs. Together the slices cover
every record that exists by then exactly once.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_timestream.connector.instants import FINAL_US
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.plan.positions import check_order
from pyspark_timestream.kafka.plan.tasks import TaskPlan, TaskRange
from pyspark_timestream.kafka.ranges import Partition, Range, cut_ranges

__all__ = ["OffsetSpan", "ReadSlice", "plan_slice", "select_partitions", "slice_read"]

MAX_SPARE_TASKS: Final = 4
"""Maximum number of tasks for partitions that were empty at planning time."""


class OffsetSpan(NamedTuple):
    """The offsets of a partition that one task reads; None for its start or end."""

    partition: Partition
    start_inclusive: int | None
    end_exclusive: int | None


@dataclass(frozen=True, slots=True)
class ReadSlice:
    """The work of one task of a batch read, in every evaluation.

    Attributes:
        number: the task's number, from 0.
        tasks: the number of tasks.
        parts: the offsets to read of partitions that had records.
        spare: the task's number, from 0, among those that read all other partitions; None if it
            reads none of them.
        named: the partitions in the parts of all tasks; empty if `spare` is None.
    """

    number: int
    tasks: int
    parts: tuple[OffsetSpan, ...]
    spare: int | None
    named: frozenset[Partition] = frozenset()


def slice_read(
    options: KafkaOptions, starts: Mapping[Partition, int], stops: Mapping[Partition, int]
) -> list[ReadSlice]:
    """Divide a batch read that now goes from `starts` to `stops`; return at least one slice.

    Raises:
        OptionError: a partition starts after its end.
    """
    check_order(options, starts, stops)
    spans = [Range(part, start, stops[part]) for part, start in sorted(starts.items())]
    parts = _open_outer_ends(cut_ranges(spans, options.min_partitions, options.max_records))
    count = max(len(parts), min(len(spans), MAX_SPARE_TASKS), 1)
    named = frozenset(part.partition for part in parts)
    first_spare = max(count - MAX_SPARE_TASKS, 0)
    return [
        ReadSlice(
            number,
            count,
            tuple(parts[number : number + 1]),
            number - first_spare if number >= first_spare else None,
            named if number >= first_spare else frozenset(),
        )
        for number in range(count)
    ]


def select_partitions(own_slice: ReadSlice, listed: Collection[Partition]) -> list[Partition]:
    """Select the existing partitions of which the task reads something."""
    own = {part.partition for part in own_slice.parts}
    return [part for part in listed if part in own or _is_spare(own_slice, part)]


def plan_slice(
    options: KafkaOptions,
    own_slice: ReadSlice,
    listed: Collection[Partition],
    starts: Mapping[Partition, int],
    stops: Mapping[Partition, int],
) -> TaskPlan:
    """Plan the task, given where its partitions start and end now.

    A single task for all partitions emits every CTI that they prove together. Several tasks emit
    only the final CTI, if any, since none knows the progress of the others. If the rules depend on
    earlier records, a part first reads those for the clock alone, so that cutting a partition
    changes no row.

    Args:
        options: the options of the read.
        own_slice: the task's slice.
        listed: the partitions that exist now.
        starts: the current start of each partition from `select_partitions`.
        stops: the current end of each of them.

    Raises:
        OptionError: a partition starts after its end.
    """
    check_order(options, starts, stops)
    own = {part.partition: part for part in own_slice.parts}
    shares = []
    for partition, start in sorted(starts.items()):
        stop = stops[partition]
        _, first, last = own.get(partition, OffsetSpan(partition, None, None))
        begin = start if first is None else max(first, start)
        span = Range(partition, begin, stop if last is None else min(last, stop))
        lead = Range(partition, start, begin)
        has_lead = lead.size > 0 and options.is_ordered
        if span.size > 0:
            shares.append(TaskRange(span, PartitionState(), lead if has_lead else None))
    is_whole = own_slice.tasks == 1 and len(shares) == len(listed)
    is_last = own_slice.number == own_slice.tasks - 1
    return TaskPlan(
        tuple(shares),
        () if is_whole else (None,),
        closing_us=FINAL_US if options.final_cti and is_last else None,
    )


def _open_outer_ends(ranges: list[Range]) -> list[OffsetSpan]:
    """Turn ranges into parts, leaving the outer ends of each partition open."""
    begins = {span.partition: span for span in reversed(ranges)}
    ends = {span.partition: span for span in ranges}
    return [
        OffsetSpan(
            span.partition,
            None if begins[span.partition] is span else span.start_inclusive,
            None if ends[span.partition] is span else span.end_exclusive,
        )
        for span in ranges
    ]


def _is_spare(own_slice: ReadSlice, part: Partition) -> bool:
    """Check whether the task reads `part`, of which no task was given offsets."""
    if own_slice.spare is None or part in own_slice.named:
        return False
    # The same in every process, which `hash` of a text is not.
    place = zlib.crc32(part.topic.encode()) + part.number
    return place % min(own_slice.tasks, MAX_SPARE_TASKS) == own_slice.spare
