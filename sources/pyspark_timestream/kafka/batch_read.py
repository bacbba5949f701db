"""The tasks of a batch read, and what each of them reads by the time it runs (semantics 7.4).

Spark plans a batch read once, and keeps the tasks for all later evaluations of the DataFrame or
view. So a task's share does not say where its partitions begin and end: only where one is cut, and
which task reads what was empty, or not there, when the shares were made. What the starting and
ending options mean is found by each task when it runs, as no task can tell whether the plan is of
its own evaluation; together the shares cover exactly once what is there by then.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_timestream.connector.instants import FINAL_US
from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition, Range, cut_ranges
from pyspark_timestream.kafka.task import Share, TaskPlan

__all__ = ["BatchShare", "Part", "bind", "share_out", "wanted"]

SPARE_TASKS: Final = 4
"""How many tasks read what was empty when the shares were made: it may be much by then."""


class Part(NamedTuple):
    """The offsets of a partition that one task reads; None: from its start, to its end."""

    partition: Partition
    start_inclusive: int | None
    end_exclusive: int | None


@dataclass(frozen=True, slots=True)
class BatchShare:
    """What one task of a batch read reads in every evaluation.

    Attributes:
        number: which task it is, from 0.
        tasks: how many tasks there are.
        parts: what it reads of partitions that had records.
        spare: which task of those that read all other partitions it is, from 0; None: none.
        named: the partitions in the parts of all tasks; empty where `spare` is None.
    """

    number: int
    tasks: int
    parts: tuple[Part, ...]
    spare: int | None
    named: frozenset[Partition] = frozenset()


def share_out(
    options: KafkaOptions, starts: Mapping[Partition, int], stops: Mapping[Partition, int]
) -> list[BatchShare]:
    """The shares of a batch read that goes from `starts` to `stops` now: at least one.

    Raises:
        OptionError: a partition starts behind its end.
    """
    _check_order(options, starts, stops)
    spans = [Range(part, start, stops[part]) for part, start in sorted(starts.items())]
    parts = _open_ended(cut_ranges(spans, options.min_partitions, options.max_records))
    count = max(len(parts), min(len(spans), SPARE_TASKS), 1)
    named = frozenset(part.partition for part in parts)
    first_spare = max(count - SPARE_TASKS, 0)
    return [
        BatchShare(
            number,
            count,
            tuple(parts[number : number + 1]),
            number - first_spare if number >= first_spare else None,
            named if number >= first_spare else frozenset(),
        )
        for number in range(count)
    ]


def wanted(share: BatchShare, listed: Collection[Partition]) -> list[Partition]:
    """Those of the partitions that there are now of which the task reads something."""
    own = {part.partition for part in share.parts}
    return [part for part in listed if part in own or _is_spare(share, part)]


def bind(
    options: KafkaOptions,
    share: BatchShare,
    listed: Collection[Partition],
    starts: Mapping[Partition, int],
    stops: Mapping[Partition, int],
) -> TaskPlan:
    """What the task does, given where its partitions start and end now.

    A task that reads all of the partitions carries every CTI that all of them prove; several carry
    only the final one, if any, since none can tell how far the others are. Where a record's fate
    depends on those before it, a part reads those first for the clock alone, so that cutting
    changes no row.

    Args:
        options: the options of the read.
        share: the task's share.
        listed: the partitions that there are now.
        starts: where the read starts now, of those `wanted` partitions that exist.
        stops: where it ends, of the same.

    Raises:
        OptionError: a partition starts behind its end.
    """
    _check_order(options, starts, stops)
    own = {part.partition: part for part in share.parts}
    shares = []
    for partition, start in sorted(starts.items()):
        stop = stops[partition]
        _, first, last = own.get(partition, Part(partition, None, None))
        begin = start if first is None else max(first, start)
        span = Range(partition, begin, stop if last is None else min(last, stop))
        lead = Range(partition, start, begin)
        has_lead = lead.size > 0 and options.is_ordered
        if span.size > 0:
            shares.append(Share(span, PartitionState(), lead if has_lead else None))
    is_whole = share.tasks == 1 and len(shares) == len(listed)
    is_last = share.number == share.tasks - 1
    return TaskPlan(
        tuple(shares),
        () if is_whole else (None,),
        closing_us=FINAL_US if options.final_cti and is_last else None,
    )


def _open_ended(ranges: list[Range]) -> list[Part]:
    """Parts of the same extent, of which the first and the last of a partition have no bound."""
    begins = {span.partition: span for span in reversed(ranges)}
    ends = {span.partition: span for span in ranges}
    return [
        Part(
            span.partition,
            None if begins[span.partition] is span else span.start_inclusive,
            None if ends[span.partition] is span else span.end_exclusive,
        )
        for span in ranges
    ]


def _is_spare(share: BatchShare, part: Partition) -> bool:
    """Whether the task reads `part`, which no task had a part of."""
    if share.spare is None or part in share.named:
        return False
    # The same in every process, which `hash` of a text is not.
    place = zlib.crc32(part.topic.encode()) + part.number
    return place % min(share.tasks, SPARE_TASKS) == share.spare


def _check_order(
    options: KafkaOptions, starts: Mapping[Partition, int], stops: Mapping[Partition, int]
) -> None:
    """Refuse a read that starts behind its end, by the name of the option that decides it."""
    starting = _first_set(
        startingTimestamp=options.starting_timestamp_ms,
        startingOffsetsByTimestamp=options.starting_timestamps_ms,
        startingOffsets=options.starting_offsets,
    )
    ending = _first_set(
        endingTimestamp=options.ending_timestamp_ms,
        endingOffsetsByTimestamp=options.ending_timestamps_ms,
        endingOffsets=options.ending_offsets,
    )
    for part, start in sorted(starts.items()):
        if start > stops[part]:
            raise OptionError(
                starting,
                f"{part} starts at offset {start} by it, and ends at {stops[part]} by option "
                f"'{ending}'",
                "a start that is not behind the end",
                f"choose an earlier one, or a later '{ending}'",
            )


def _first_set(**options: object) -> str:
    return next(name for name, value in options.items() if value is not None)
