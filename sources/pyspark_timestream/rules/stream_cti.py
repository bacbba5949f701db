"""The stream's CTI: the minimum over its partitions, and how much of it a task can prove.

A stream can promise no more than each of its partitions, so its CTI is the minimum of theirs
(semantics 5.1). A partition without a CTI holds it back; an idle one (5.2) does not count, unless
all are idle. The stream's CTI never goes back.

Within a batch, tasks read different partitions at the same time and cannot see each other's
progress. Each task knows its own partitions up to the last record read, and the others only as they
were at the start of the batch. CTIs never go back, so the minimum of both already holds: the task
emits its increases as CTI rows (5.7). Perhaps no task can prove the stream's CTI at the end of a
batch; one more batch then carries it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pyspark_timestream.core.instants import Instants


def min_cti(ctis_us: Iterable[int | None]) -> int | None:
    """Return the minimum of the partitions' CTIs; None if one of them is None, or there are none.

    >>> min_cti([7, 5]), min_cti([7, None]), min_cti([])
    (5, None, None)
    """
    known = list(ctis_us)
    present = [cti_us for cti_us in known if cti_us is not None]
    return min(present) if present and len(present) == len(known) else None


def find_min_of_others(
    ctis_us: Sequence[int | None], groups: Iterable[Collection[int]]
) -> list[tuple[int | None, ...]]:
    """Return for each group of indices the minimum of all other CTIs, as a tuple of at most one.

    The tuple is `(None,)` if one of the others is None, `()` if there are no others. Sorts once for
    all groups, since a batch may have thousands of partitions and as many tasks.

    >>> find_min_of_others([5, 3, 4], [[1], [0, 2], [0, 1, 2]])
    [(4,), (3,), ()]
    """
    ascending = sorted(range(len(ctis_us)), key=lambda i: (ctis_us[i] is not None, ctis_us[i] or 0))
    minima: list[tuple[int | None, ...]] = []
    for group in groups:
        own = set(group)
        first = next((i for i in ascending if i not in own), None)
        minima.append(() if first is None else (ctis_us[first],))
    return minima


def max_known(*ctis_us: int | None) -> int | None:
    """Return the greatest CTI that is not None; None if all are."""
    return max((cti_us for cti_us in ctis_us if cti_us is not None), default=None)


def compute_stream_cti(
    active_us: Sequence[int | None],
    new_us: Sequence[int | None],
    idle_us: Sequence[int | None],
    floor_us: int | None,
) -> int | None:
    """Return the stream's CTI between two batches.

    Args:
        active_us: the CTIs of the partitions that are active and were active before.
        new_us: the CTIs of partitions that come back from idleness or are new. The driver
            raises them to the result (5.4, 5.5), so they count only if no other one is active.
        idle_us: the CTIs of the idle partitions. If all are idle, the greatest counts.
        floor_us: the stream's CTI so far: it never goes back.
    """
    counted_us = active_us or new_us
    return max_known(min_cti(counted_us) if counted_us else max_known(*idle_us), floor_us)


@dataclass(frozen=True, slots=True)
class TaskWatermark:
    """The CTI that one task has proven so far: a fold over its partitions in reading order.

    Attributes:
        own_us: the current CTIs of the task's partitions, in reading order.
        others_us: the CTIs of all other partitions at the start of the batch, or their minimum.
        emitted_us: the greatest CTI row of the stream before this point; None: none.
    """

    own_us: tuple[int | None, ...]
    others_us: tuple[int | None, ...]
    emitted_us: int | None

    def advance(
        self, position: int, ctis_us: Instants
    ) -> tuple["TaskWatermark", Instants, Instants]:
        """Add the increasing `ctis_us` of the partition at `position`.

        Returns:
            The watermark after them; the places in `ctis_us` after which a CTI row is due; the
            values of these rows, increasing and above all emitted before.
        """
        none = np.empty(0, dtype=np.int64)
        if not len(ctis_us):
            return self, none, none
        own = (*self.own_us[:position], int(ctis_us[-1]), *self.own_us[position + 1 :])
        rest = (*self.own_us[:position], *self.own_us[position + 1 :], *self.others_us)
        floor_us = min_cti(rest)
        if rest and floor_us is None:
            return TaskWatermark(own, self.others_us, self.emitted_us), none, none
        proven = ctis_us if floor_us is None else np.minimum(ctis_us, floor_us)
        before = np.concatenate(([np.iinfo(np.int64).min], proven[:-1]))
        news = proven > before
        if self.emitted_us is not None:
            news &= proven > self.emitted_us
        places = np.flatnonzero(news)
        emitted_us = int(proven[places[-1]]) if len(places) else self.emitted_us
        return TaskWatermark(own, self.others_us, emitted_us), places, proven[places]


def find_max_proven(
    start_us: Sequence[int | None],
    end_us: Sequence[int | None],
    tasks: Iterable[Sequence[int]],
) -> int | None:
    """Return the greatest CTI that any task of a batch can have proven; None: none.

    Args:
        start_us: the CTI of each of the p partitions at the start of the batch.
        end_us: the same at the end of the batch.
        tasks: for each task the indices of its partitions.
    """
    groups = list(tasks)
    proven = (
        min_cti([*(end_us[i] for i in mine), *others])
        for mine, others in zip(groups, find_min_of_others(start_us, groups), strict=True)
    )
    return max_known(*proven)
