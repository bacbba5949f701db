"""Which rows a query may need, told from the bounds of row groups, and then from rows.

A sieve may let through too much, never too little: what it lets through is judged again by whole
series.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.series_state import longs
from pyspark_tseries.model.slices import EVERYTHING, Slice
from pyspark_tseries.read.bounds import HIGHEST, LOWEST

__all__ = ["ANY", "EVERY_ROW", "Ends", "Sieve"]

Flags = npt.NDArray[np.bool_]

Ends = Callable[[str], list[tuple[Any, Any] | None]]
"""The lowest and the highest value of a column in each row group of a file; None: not known."""

ANY: Final = (LOWEST, HIGHEST)


@dataclass(frozen=True, slots=True)
class Sieve:
    """What a row must be to be needed; all conditions count, and bounds are inclusive.

    Attributes:
        names: its series is one of these, sorted and distinct; None: of any.
        part: it is in this slice.
        sequences: its sequence is between these.
        times: its timestamp is, in us.
        commits: its commit is between these.
    """

    names: Sequence[str] | None = None
    part: Slice = EVERYTHING
    sequences: tuple[int, int] = ANY
    times: tuple[int, int] = ANY
    commits: tuple[int, int] = ANY

    @property
    def columns(self) -> list[str]:
        """The columns that rows are judged by."""
        wanted = {
            "series": self.names is not None or self.part != EVERYTHING,
            "sequence": self.part != EVERYTHING or self.sequences != ANY,
            "timestamp": self.times != ANY,
            "commit": self.commits != ANY,
        }
        return [name for name, needed in wanted.items() if needed]

    def groups(self, count: int, ends: Ends) -> list[int]:
        """Which of a file's `count` row groups may hold a row that is needed."""
        tests: dict[str, Callable[[Any, Any], bool]] = {
            "series": self._series_may_do,
            "sequence": lambda low, high: _overlap(self.sequences, low, high),
            "timestamp": lambda low, high: _overlap(self.times, low, high),
            "commit": lambda low, high: _overlap(self.commits, low, high),
        }
        groups = list(range(count))
        for name in self.columns:
            if not groups:
                break
            known, may_do = ends(name), tests[name]
            groups = [i for i in groups if (bounds := known[i]) is None or may_do(*bounds)]
        return groups

    def _series_may_do(self, first: str, last: str) -> bool:
        if not self.part.touches(first, last):
            return False
        if self.names is None:
            return True
        if not self.names or last < self.names[0] or first > self.names[-1]:
            return False
        return bisect_left(self.names, first) < bisect_right(self.names, last)

    def rows(self, table: pa.Table, *, is_sorted: bool = True) -> tuple[int, Flags]:
        """The rows of `table` that are needed: the first one looked at, and a flag for each.

        Args:
            table: has `columns`.
            is_sorted: whether it is sorted by series.
        """
        start, end = self._span(table) if is_sorted else (0, table.num_rows)
        within = table.slice(start, end - start)
        needed = np.ones(end - start, bool)
        if self.names is not None and (len(self.names) > 1 or not is_sorted):
            needed &= _flags(pc.is_in(within["series"], pa.array(self.names, pa.string())))
        if self.part != EVERYTHING:
            needed &= self.part.holds(within["series"], longs(within["sequence"]))
        for name, (low, high) in (
            ("sequence", self.sequences),
            ("timestamp", self.times),
            ("commit", self.commits),
        ):
            if (low, high) != ANY:
                values = longs(within[name])
                needed &= (values >= low) & (values <= high)
        return start, needed

    def _span(self, table: pa.Table) -> tuple[int, int]:
        """The rows from the first to the last name, whatever lies between."""
        if self.names is None:
            return 0, table.num_rows
        if not self.names:
            return 0, 0
        series = table["series"]
        start = bisect_left(series, self.names[0], key=_text)
        return start, bisect_right(series, self.names[-1], start, key=_text)


EVERY_ROW: Final = Sieve()


def _text(scalar: pa.Scalar) -> str:
    return str(scalar.as_py())


def _flags(found: pa.ChunkedArray) -> Flags:
    flags: Flags = found.to_numpy()
    return flags


def _overlap(wanted: tuple[int, int], low: int, high: int) -> bool:
    return high >= wanted[0] and low <= wanted[1]
