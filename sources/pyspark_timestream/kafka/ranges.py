"""Which records a batch reads, and which task reads them: pure planning over offsets.

A partition is (topic, number); a range is `[from, to)` in offsets.
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["Partition", "Range", "assign_tasks", "cut_ranges", "limit_ranges", "task_count"]

ROWS_WORTH_A_TASK: Final = 20_000
"""Below this many records another Python task costs more than it saves (about 50 ms each)."""


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        """As messages name it."""
        return f"topic '{self.topic}' partition {self.number}"


class Range(NamedTuple):
    """The offsets of one partition that a batch reads."""

    partition: Partition
    start_inclusive: int
    end_exclusive: int

    @property
    def size(self) -> int:
        """How many offsets it spans; an upper bound of its records."""
        return self.end_exclusive - self.start_inclusive


def limit_ranges(
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    max_offsets: int | None,
    min_offsets: int | None = None,
) -> dict[Partition, int]:
    """The end of each partition's range when a batch reads at most about `max_offsets` in all.

    Where there are fewer than `min_offsets` in all, none is read: the batch waits for more.

    The limit is split in proportion to the backlog, as Spark's Kafka source does; a partition
    with any backlog gets at least one offset, so that none starves.
    """
    backlog = {part: max(ends[part] - start, 0) for part, start in starts.items()}
    total = sum(backlog.values())
    if min_offsets is not None and total < min_offsets:
        return dict(starts)
    if max_offsets is None or total <= max_offsets:
        return {part: start + backlog[part] for part, start in starts.items()}
    return {
        part: start + min(backlog[part], max(1, max_offsets * backlog[part] // total))
        for part, start in starts.items()
    }


def cut_ranges(ranges: Sequence[Range], min_parts: int | None, max_size: int | None) -> list[Range]:
    """`ranges` without empty ones, in their order, the long ones cut into parts.

    First no part is longer than `max_size` offsets; if there are fewer than `min_parts` then, the
    largest are cut again in proportion to their size, as Spark's Kafka source does. A part is never
    empty, so there may be fewer than `min_parts`; after rounding there may be somewhat more.
    """
    parts = [span for span in ranges if span.size]
    if max_size is not None:
        parts = [part for span in parts for part in _cut(span, -(-span.size // max_size))]
    if min_parts is None or len(parts) >= min_parts:
        return parts
    total = sum(span.size for span in parts)
    small = {span for span in parts if _share(span.size, total, min_parts) == 1}
    left = total - sum(span.size for span in small)
    wanted = max(min_parts - len(small), 1)
    return [
        part
        for span in parts
        for part in ([span] if span in small else _cut(span, _share(span.size, left, wanted)))
    ]


def _share(size: int, total: int, parts: int) -> int:
    """How many of `parts` fall to `size` of `total`, rounded half up, at least one."""
    return max((2 * size * parts + total) // (2 * total), 1)


def _cut(span: Range, parts: int) -> list[Range]:
    """`span` as consecutive ranges whose sizes differ by one at most."""
    parts = min(parts, span.size)
    edges = [span.start_inclusive + span.size * part // parts for part in range(parts + 1)]
    return [Range(span.partition, *pair) for pair in itertools.pairwise(edges)]


def task_count(ranges: Sequence[Range], max_tasks: int | None) -> int:
    """How many tasks read `ranges`: no more than partitions with records, `max_tasks`, or use."""
    filled = [span for span in ranges if span.size]
    worthwhile = -(-sum(span.size for span in filled) // ROWS_WORTH_A_TASK)
    return min(len(filled), worthwhile, max_tasks or len(filled))


def assign_tasks(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """`ranges` with records over `tasks` tasks, the largest first to the least loaded.

    The same arguments give the same assignment; no task is empty.
    """
    loads: list[tuple[int, int]] = [(0, task) for task in range(tasks)]
    groups: list[list[Range]] = [[] for _ in range(tasks)]
    for span in sorted(ranges, key=lambda span: (-span.size, span.partition)):
        if span.size:
            load, task = loads[0]
            heapq.heapreplace(loads, (load + span.size, task))
            groups[task].append(span)
    return [sorted(group) for group in groups if group]
