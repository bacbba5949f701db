"""The stream's CTI over partitions (semantics 5.1): what can be promised, and by whom.

A partition that has no CTI yet holds the stream's back. A task knows the clocks of its own
partitions at every moment and those of all others at the start of the batch; clocks only go
forward, so the minimum over what it knows is a promise that already holds.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Prover", "greatest", "least_of_others", "merge", "proven_by_tasks", "stream_cti"]

Instants = npt.NDArray[np.int64]


def merge(ctis_us: Iterable[int | None]) -> int | None:
    """The stream's CTI: the least of the partitions'; None where one has none, or there are none.

    >>> merge([7, 5]), merge([7, None]), merge([])
    (5, None, None)
    """
    known = list(ctis_us)
    present = [cti_us for cti_us in known if cti_us is not None]
    return min(present) if present and len(present) == len(known) else None


def least_of_others(
    ctis_us: Sequence[int | None], groups: Iterable[Collection[int]]
) -> list[tuple[int | None, ...]]:
    """For each group of indices: the one of all other CTIs that decides their merge.

    `(None,)` where one of the others has none, `()` where there are no others. It takes one sorting
    and a look at each group, since a batch may have thousands of partitions and as many tasks.

    >>> least_of_others([5, 3, 4], [[1], [0, 2], [0, 1, 2]])
    [(4,), (3,), ()]
    """
    ascending = sorted(range(len(ctis_us)), key=lambda i: (ctis_us[i] is not None, ctis_us[i] or 0))
    found: list[tuple[int | None, ...]] = []
    for group in groups:
        own = set(group)
        first = next((i for i in ascending if i not in own), None)
        found.append(() if first is None else (ctis_us[first],))
    return found


def greatest(*ctis_us: int | None) -> int | None:
    """The greatest of those that are there; None where none is."""
    return max((cti_us for cti_us in ctis_us if cti_us is not None), default=None)


def stream_cti(
    holding_us: Sequence[int | None],
    joining_us: Sequence[int | None],
    idle_us: Sequence[int | None],
    floor_us: int | None,
) -> int | None:
    """The stream's CTI between two batches.

    Args:
        holding_us: the CTIs of the partitions that are awake and were so before.
        joining_us: of those that come back from idleness or were just found; they will be raised
            to the result, so they count for themselves only where nobody else is awake.
        idle_us: of those that are idle: all idle, the greatest counts.
        floor_us: what the stream's CTI was: it never goes back.
    """
    awake_us = holding_us or joining_us
    return greatest(merge(awake_us) if awake_us else greatest(*idle_us), floor_us)


@dataclass(frozen=True, slots=True)
class Prover:
    """What one task has proven so far; a fold over its partitions in the order it reads them.

    Attributes:
        own_us: the CTIs of the task's partitions, in reading order, as far as read.
        others_us: the CTIs of all other partitions at the start of the batch, or the least of them.
        emitted_us: the greatest CTI row that the stream has had before this point; None: none.
    """

    own_us: tuple[int | None, ...]
    others_us: tuple[int | None, ...]
    emitted_us: int | None

    def advance(self, position: int, ctis_us: Instants) -> tuple["Prover", Instants, Instants]:
        """Partition `position` produced `ctis_us` (increasing).

        Returns:
            The prover after them; the places in `ctis_us` after which a CTI row is due; those
            rows' values, increasing and above all emitted before.
        """
        none = np.empty(0, dtype=np.int64)
        if not len(ctis_us):
            return self, none, none
        own = (*self.own_us[:position], int(ctis_us[-1]), *self.own_us[position + 1 :])
        rest = (*self.own_us[:position], *self.own_us[position + 1 :], *self.others_us)
        floor_us = merge(rest)
        if rest and floor_us is None:
            return Prover(own, self.others_us, self.emitted_us), none, none
        proven = ctis_us if floor_us is None else np.minimum(ctis_us, floor_us)
        before = np.concatenate(([np.iinfo(np.int64).min], proven[:-1]))
        news = proven > before
        if self.emitted_us is not None:
            news &= proven > self.emitted_us
        places = np.flatnonzero(news)
        emitted_us = int(proven[places[-1]]) if len(places) else self.emitted_us
        return Prover(own, self.others_us, emitted_us), places, proven[places]


def proven_by_tasks(
    start_us: Sequence[int | None],
    end_us: Sequence[int | None],
    tasks: Iterable[Sequence[int]],
) -> int | None:
    """The greatest CTI row that any task of a batch can have emitted.

    Args:
        start_us: the CTI of each of the p partitions at the start of the batch.
        end_us: the same at its end.
        tasks: for each task the indices of its partitions.
    """
    given = list(tasks)
    proven = (
        merge([*(end_us[i] for i in mine), *others])
        for mine, others in zip(given, least_of_others(start_us, given), strict=True)
    )
    return greatest(*proven)
