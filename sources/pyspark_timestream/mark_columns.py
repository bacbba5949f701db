"""Runs of marks as columns: what the in-band CTI is after each, with a loop over writers alone.

In a *run* writers only mark: none is closed or forgotten. `unbroken` says how long a run is before
a writer falls silent, `heard` what the minimum of the writers' greatest marks is along it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_timestream.partition_state import Writer

__all__ = ["NEVER", "Heard", "Run", "heard", "unbroken"]

Instants = npt.NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).min
"""Stands for no instant where a column needs one."""

_ABSENT: Final = np.iinfo(np.int64).max
"""Stands for a writer that holds nothing back."""


class Run(NamedTuple):
    """k marks in offset order.

    Attributes:
        us: k instants: the marks.
        codes: k indices into `names`: the writers.
        names: the writers of the block; "" is the partition itself.
        now_us: k instants: the clock of record timestamps; None: writers are not clocked.
    """

    us: Instants
    codes: Instants
    names: list[str]
    now_us: Instants | None

    def first(self, count: int) -> "Run":
        """The run of the first `count` marks."""
        now_us = None if self.now_us is None else self.now_us[:count]
        return Run(self.us[:count], self.codes[:count], self.names, now_us)


class Heard(NamedTuple):
    """What a run of k marks says.

    Attributes:
        live: the writers after it.
        least_us: k instants: the minimum over the writers after each mark, NEVER while one of
            them has not marked.
        lower_us: the same over the named writers that have marked; NEVER where there is none.
        upper_us: k instants: the greatest mark that a named writer ever noted, NEVER before.
    """

    live: dict[str, Writer]
    least_us: Instants
    lower_us: Instants
    upper_us: Instants


def heard(run: Run, live: Mapping[str, Writer], noted_us: int | None) -> Heard:
    """Fold a run of at least one mark, before which `live` writers had noted `noted_us`."""
    count, after = len(run.us), dict(live)
    least, lower = np.full(count, _ABSENT), np.full(count, _ABSENT)
    own = {run.names[code]: code for code in np.unique(run.codes).tolist()}
    for name in {**live, **own}:
        mine = np.flatnonzero(run.codes == own[name]) if name in own else run.codes[:0]
        greatest = _greatest(run.us, mine, live.get(name, Writer()).mark_us)
        if name not in live:
            greatest[: mine[0]] = _ABSENT
        least = np.minimum(least, greatest)
        if name:
            lower = np.minimum(lower, np.where(greatest == NEVER, _ABSENT, greatest))
        if len(mine):
            heard_us = None if run.now_us is None else int(run.now_us[mine[-1]])
            after[name] = Writer(int(greatest[-1]), heard_us)
    named = np.array([bool(name) for name in run.names])[run.codes]
    noted = np.where(named, run.us, NEVER)
    noted[0] = max(noted[0], NEVER if noted_us is None else noted_us)
    lower[lower == _ABSENT] = NEVER
    return Heard(after, least, lower, np.maximum.accumulate(noted))


def _greatest(us: Instants, mine: Instants, before_us: int | None) -> Instants:
    """The writer's greatest mark after each of the run's, NEVER before its first."""
    column = np.full(len(us), NEVER)
    column[mine] = us[mine]
    if before_us is not None:
        column[0] = max(column[0], before_us)
    return np.maximum.accumulate(column)


def unbroken(
    run: Run, places: Instants, live: Mapping[str, Writer], clock: Instants, timeout_us: int
) -> int | None:
    """The first record at which a writer falls silent, in or after the run; None: at none.

    Args:
        run: the k marks, with `now_us`.
        places: the k records that carry them.
        live: the writers before the run.
        clock: the greatest record timestamp so far, at each record of the block.
        timeout_us: how long a writer may be silent.
    """
    assert run.now_us is not None
    order = np.argsort(run.codes, kind="stable")
    same = run.codes[order][1:] == run.codes[order][:-1]
    until = np.full(len(places), len(clock))
    # A record is looked at before its own mark, so the mark comes too late for that record.
    until[order[:-1][same]] = places[order[1:][same]]
    silent = np.searchsorted(clock, run.now_us + timeout_us, side="right")
    found = silent[silent <= np.minimum(until, len(clock) - 1)].tolist()
    first = np.full(len(run.names) + 1, len(clock) - 1)
    first[run.codes[::-1]] = places[::-1]
    codes = {name: code for code, name in enumerate(run.names)}
    # The last place is for the writers that do not mark in this block.
    alive = [
        (codes.get(name, -1), w.heard_us) for name, w in live.items() if w.heard_us is not None
    ]
    if alive:
        whose, heard_us = np.array(alive).T
        silent = np.searchsorted(clock, heard_us + timeout_us, side="right")
        found += silent[silent <= first[whose]].tolist()
    return min(found, default=None)
