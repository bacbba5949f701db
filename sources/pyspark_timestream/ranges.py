"""Which records a batch reads, and which task reads them: pure planning over offsets.

A partition is (topic, number); a range is `[from, to)` in offsets.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["Partition", "Range", "assign_tasks", "limit_ranges", "task_count"]

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
    starts: Mapping[Partition, int], ends: Mapping[Partition, int], max_offsets: int | None
) -> dict[Partition, int]:
    """The end of each partition's range when a batch reads at most about `max_offsets` in all.

    The limit is split in proportion to the backlog, as Spark's Kafka source does; a partition
    with any backlog gets at least one offset, so that none starves.
    """
    backlog = {part: max(ends[part] - start, 0) for part, start in starts.items()}
    total = sum(backlog.values())
    if max_offsets is None or total <= max_offsets:
        return {part: start + backlog[part] for part, start in starts.items()}
    return {
        part: start + min(backlog[part], max(1, max_offsets * backlog[part] // total))
        for part, start in starts.items()
    }


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
            load, task = min(loads)
            loads[task] = (load + span.size, task)
            groups[task].append(span)
    return [sorted(group) for group in groups if group]
