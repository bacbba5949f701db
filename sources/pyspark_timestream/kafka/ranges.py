"""Divides offsets of partitions into ranges, and ranges among tasks: the work of one task."""

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from pyspark_timestream.rules.clocks import PartitionClock

T = TypeVar("T")

MIN_TASK_RECORDS: Final = 20_000
"""Records that justify one more Python task, which costs about 50 ms."""


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        """Return the name used in messages."""
        return f"topic '{self.topic}' partition {self.number}"


def group_by_topic(values: Mapping[Partition, T]) -> dict[str, dict[str, T]]:
    """Group values by topic, then by partition number as text, since JSON's keys are texts."""
    topics: dict[str, dict[str, T]] = {}
    for (topic, number), value in sorted(values.items(), key=itemgetter(0)):
        topics.setdefault(topic, {})[str(number)] = value
    return topics


def list_by_partition(topics: Mapping[str, Mapping[str, T]]) -> dict[Partition, T]:
    """Undo `group_by_topic`."""
    return {
        Partition(topic, int(number)): value
        for topic, values in topics.items()
        for number, value in values.items()
    }


class OffsetRange(NamedTuple):
    """The offsets of one partition that a batch reads."""

    partition: Partition
    start_inclusive: int
    end_exclusive: int

    @property
    def size(self) -> int:
        """The number of offsets, an upper bound of the number of records."""
        return self.end_exclusive - self.start_inclusive


@dataclass(frozen=True, slots=True)
class TaskRange:
    """One range of a task, and its partition's clock before it.

    Attributes:
        offsets: the records to deliver.
        clock: the clock before `offsets`, or before `warm_up` if there is one.
        warm_up: records before `offsets` to read for the clock only; None if not needed.
        forced_ctis: pairs (offset, CTI): the clock is raised to the CTI before the record at the
            offset. The offsets increase and lie in `offsets` or at its end.
        changes: pairs (offset, settings): from the offset on, records are read by these pinned
            options. The offsets do not decrease, and lie like those of `forced_ctis`.
        end_cti_us: a CTI that takes effect on the partition where `offsets` ends, for the CTI rows
            only; None for none.
    """

    offsets: OffsetRange
    clock: PartitionClock
    warm_up: OffsetRange | None = None
    forced_ctis: tuple[tuple[int, int], ...] = ()
    changes: tuple[tuple[int, Mapping[str, str]], ...] = ()
    end_cti_us: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all records are read at once, without a warm-up or a cut."""
        return self.warm_up is None and not self.forced_ctis and not self.changes

    def split(self) -> Iterator[tuple[Mapping[str, str] | None, int | None, OffsetRange]]:
        """Split `offsets` into pieces, each with the new options and the forced CTI before it."""
        partition, begin, end = self.offsets
        cuts: list[tuple[int, Mapping[str, str] | None, int | None]] = [(begin, None, None)]
        cuts += [(offset, settings, None) for offset, settings in self.changes]
        cuts += [(offset, None, cti_us) for offset, cti_us in self.forced_ctis]
        cuts.sort(key=itemgetter(0))
        ends = [*(offset for offset, _, _ in cuts[1:]), end]
        for (start, settings, cti_us), stop in zip(cuts, ends, strict=True):
            yield settings, cti_us, OffsetRange(partition, start, stop)


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
        settings: the pinned options for the ranges up to their first change; None: the query's.
    """

    ranges: tuple[TaskRange, ...] = ()
    others_us: tuple[int | None, ...] = ()
    emitted_us: int | None = None
    first_cti_us: int | None = None
    last_cti_us: int | None = None
    settings: Mapping[str, str] | None = None


def limit_ranges(
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    max_offsets: int | None,
    min_offsets: int | None = None,
    aligned: Mapping[Partition, int] | None = None,
) -> dict[Partition, int]:
    """Return the end of each partition's range for a batch of about `max_offsets` in all.

    With fewer than `min_offsets` unread offsets before `ends`, the batch waits and reads nothing.
    Otherwise it reads up to `aligned`, which replaces `ends` under `maxSkew`, within the limit.

    The limit is divided in proportion to each partition's backlog, as in Spark's Kafka source. A
    partition with any backlog gets at least one offset, so that none starves.
    """
    backlog = _find_backlog(starts, ends)
    if min_offsets is not None and sum(backlog.values()) < min_offsets:
        return dict(starts)
    backlog = backlog if aligned is None else _find_backlog(starts, aligned)
    total = sum(backlog.values())
    if max_offsets is None or total <= max_offsets:
        return {partition: start + backlog[partition] for partition, start in starts.items()}
    return {
        partition: start
        + min(backlog[partition], max(1, max_offsets * backlog[partition] // total))
        for partition, start in starts.items()
    }


def _find_backlog(
    starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> dict[Partition, int]:
    return {partition: max(ends[partition] - start, 0) for partition, start in starts.items()}


def cut_ranges(
    ranges: Sequence[OffsetRange], min_pieces: int | None, max_size: int | None
) -> list[OffsetRange]:
    """Cut long ranges into pieces, in order; drop empty ranges.

    First cut every range into pieces of at most `max_size` offsets. If that gives fewer than
    `min_pieces`, cut the largest again in proportion to their sizes, as Spark's Kafka source does.
    Pieces are never empty, so there may be fewer than `min_pieces`; rounding may give a few more.
    """
    pieces = [offset_range for offset_range in ranges if offset_range.size]
    if max_size is not None:
        pieces = [
            piece
            for offset_range in pieces
            for piece in _cut_range(offset_range, -(-offset_range.size // max_size))
        ]
    if min_pieces is None or len(pieces) >= min_pieces:
        return pieces
    total = sum(offset_range.size for offset_range in pieces)
    # A piece that stays whole takes no part in the proportions of the others.
    small = {
        offset_range
        for offset_range in pieces
        if _apportion(offset_range.size, total, min_pieces) == 1
    }
    remaining = total - sum(offset_range.size for offset_range in small)
    count = max(min_pieces - len(small), 1)
    return [
        piece
        for offset_range in pieces
        for piece in (
            [offset_range]
            if offset_range in small
            else _cut_range(offset_range, _apportion(offset_range.size, remaining, count))
        )
    ]


def _apportion(size: int, total: int, pieces: int) -> int:
    """Return how many of `pieces` fall to `size` out of `total`, rounded half up, at least one."""
    return max((2 * size * pieces + total) // (2 * total), 1)


def _cut_range(offset_range: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Cut `offset_range` into consecutive ranges of the same size, give or take one."""
    pieces = min(pieces, offset_range.size)
    edges = [
        offset_range.start_inclusive + offset_range.size * piece // pieces
        for piece in range(pieces + 1)
    ]
    return [OffsetRange(offset_range.partition, *pair) for pair in itertools.pairwise(edges)]


def count_tasks(ranges: Sequence[OffsetRange], max_tasks: int | None) -> int:
    """Return the number of tasks for `ranges`.

    The limits are the number of non-empty ranges, `max_tasks`, and `MIN_TASK_RECORDS` per task.
    """
    filled = [offset_range for offset_range in ranges if offset_range.size]
    worthwhile = -(-sum(offset_range.size for offset_range in filled) // MIN_TASK_RECORDS)
    return min(len(filled), worthwhile, max_tasks or len(filled))


def assign_tasks(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Assign non-empty ranges to tasks: the largest first, each to the least loaded task.

    The assignment is deterministic, and no task is empty.
    """
    # At least one and at most one for each range, even if a damaged offset says otherwise.
    tasks = min(max(tasks, 1), len(ranges))
    loads: list[tuple[int, int]] = [(0, task) for task in range(tasks)]
    groups: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for offset_range in sorted(
        ranges, key=lambda offset_range: (-offset_range.size, offset_range.partition)
    ):
        if offset_range.size:
            load, task = loads[0]
            heapq.heapreplace(loads, (load + offset_range.size, task))
            groups[task].append(offset_range)
    return [sorted(group) for group in groups if group]
