"""Plans batch reads whose tasks stay valid (semantics 7.4), and adapts options to each read.

Spark plans a batch read once, and reuses the tasks for all later evaluations of the DataFrame or
view. So a task's slice does not hold where its partitions start and end. It holds only the offsets
at which a partition is cut, and which task reads the partitions that were empty or missing at
planning time. Each task resolves the starting and ending options when it runs. Together the slices
cover every record that exists by then exactly once.

Batch reads, streams with an ending option, and replays start at earliest by default. A batch read
ignores the options of streams.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.core.options import option_specs
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.offsets.positions import check_order
from pyspark_timestream.kafka.offsets.tasks import TaskPlan, TaskRange, plan_tasks
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST
from pyspark_timestream.kafka.ranges import Partition, Range, cut_ranges
from pyspark_timestream.rules.state import PartitionState

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
        parts: the offsets that it reads from partitions that had records at planning time.
        spare: the task's number, from 0, among the tasks that read all other partitions; None if
            it reads none of them.
        named: the partitions in the parts of all tasks; empty if `spare` is None.
    """

    number: int
    tasks: int
    parts: tuple[OpenRange, ...]
    spare: int | None
    named: frozenset[Partition] = frozenset()


def slice_read(
    options: KafkaOptions, starts: Mapping[Partition, int], stops: Mapping[Partition, int]
) -> list[ReadSlice]:
    """Divide a batch read that would now go from `starts` to `stops`; return at least one slice.

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
    """Return those existing partitions that the task reads, whole or in part."""
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
    only the final CTI, if any, because none knows the progress of the others. If the rules depend
    on earlier records, a part first reads those for the clock only, so that cutting a partition
    changes no row.

    `listed` are the partitions that exist now; `starts` and `stops` hold the bounds of those that
    `select_partitions` returned.

    Raises:
        OptionError: a partition starts after its end.
    """
    check_order(options, starts, stops)
    own = {part.partition: part for part in own_slice.parts}
    task_ranges = []
    for partition, start in sorted(starts.items()):
        stop = stops[partition]
        _, first, last = own.get(partition, OpenRange(partition, None, None))
        begin = start if first is None else max(first, start)
        span = Range(partition, begin, stop if last is None else min(last, stop))
        warm_up = Range(partition, start, begin)
        has_warm_up = warm_up.size > 0 and options.is_ordered
        if span.size > 0:
            task_ranges.append(TaskRange(span, PartitionState(), warm_up if has_warm_up else None))
    is_whole = own_slice.tasks == 1 and len(task_ranges) == len(listed)
    is_last = own_slice.number == own_slice.tasks - 1
    return TaskPlan(
        tuple(task_ranges),
        () if is_whole else (None,),
        last_cti_us=FINAL_US if options.final_cti and is_last else None,
    )


def _open_outer_ends(ranges: list[Range]) -> list[OpenRange]:
    """Turn ranges into parts; open the first start and the last end of each partition."""
    begins = {span.partition: span for span in reversed(ranges)}
    ends = {span.partition: span for span in ranges}
    return [
        OpenRange(
            span.partition,
            None if begins[span.partition] is span else span.start_inclusive,
            None if ends[span.partition] is span else span.end_exclusive,
        )
        for span in ranges
    ]


def _is_spare(own_slice: ReadSlice, part: Partition) -> bool:
    """Return whether this task reads `part`, a partition without offsets in any task's parts."""
    if own_slice.spare is None or part in own_slice.named:
        return False
    # Unlike `hash`, CRC-32 gives the same number in every process.
    place = zlib.crc32(part.topic.encode()) + part.number
    return place % min(own_slice.tasks, MAX_SPARE_TASKS) == own_slice.spare


_CUTS: Final = ("minPartitions", "maxRecordsPerPartition")
_REPLAY_WINDOW: Final = frozenset({"startingcti", "endingcti"})


def adapt_to_stream(options: KafkaOptions, given: Collection[str]) -> KafkaOptions:
    """Return `options` as a stream uses them; `given` are the lower-cased names that were set.

    Raises:
        OptionError: the stream has an end and would start there, or an option cuts partitions
            whose order matters.
    """
    if not options.ends_by_default:
        options = _start_before_end(options, given, "stream with an end")
    elif "startingoffsets" not in given and not _REPLAY_WINDOW.isdisjoint(given):
        options = replace(options, starting_offsets=EARLIEST)
    for name in _CUTS:
        if name.lower() in given and options.has_ctis:
            raise OptionError(
                name,
                "it was given to a stream with a column 'cti'",
                "it in batch reads and in streams without a source of CTIs",
                "leave it out: a partition is one ordered stream there, which one task reads",
            )
    return options


def adapt_to_batch(options: KafkaOptions, given: Collection[str]) -> KafkaOptions:
    """Return `options` as a batch read uses them; `given` are the lower-cased names that were set.

    Raises:
        OptionError: the read would start where it ends.
    """
    return _start_before_end(options, given, "batch read")


def _start_before_end(options: KafkaOptions, given: Collection[str], kind: str) -> KafkaOptions:
    """Make `earliest` the default start of a read that ends, and refuse `latest`."""
    if "startingoffsets" not in given:
        return replace(options, starting_offsets=EARLIEST)
    starts = options.starting_offsets
    has_latest = starts == LATEST or (isinstance(starts, Mapping) and LATEST in starts.values())
    by_time = (options.starting_timestamp_ms, options.starting_timestamps_ms) != (None, None)
    if has_latest and not by_time:
        raise OptionError(
            "startingOffsets",
            f"'latest' (-1) was given to a {kind}, which would always be empty",
            "'earliest', or JSON with offsets or -2",
            "name where to start, or leave it out",
        )
    return options


def ignored_in_batch(given: Collection[str]) -> list[str]:
    """Return the options that have no effect in a batch read, among the lower-cased `given`."""
    names = (spec.name for spec in option_specs(KafkaOptions).values() if spec.effect == "stream")
    return [name for name in names if name.lower() in given]


def plan_stream_tasks(options: KafkaOptions, offset: StreamOffset) -> list[TaskPlan]:
    """Return the tasks of the batch `offset`, with partitions cut if the options ask for it."""
    if not options.is_cut:
        return plan_tasks(offset)
    parts = cut_ranges(offset.ranges(), options.min_partitions, options.max_records)
    return [TaskPlan((TaskRange(part, PartitionState()),)) for part in parts]
