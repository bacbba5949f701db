"""Filters of the rows that a query may need: by the bounds of row groups, then row by row.

A filter may pass too many rows, never too few: the query decides again on whole series.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import MAX_NUMBER, MIN_NUMBER, BoolArray, to_int64
from pyspark_tseries.model.slices import FULL_SLICE, Slice

__all__ = ["ALL_ROWS", "ANY_VALUE", "GroupBounds", "RowFilter"]


GroupBounds = Callable[[str], list[tuple[Any, Any] | None]]
"""The lowest and highest value of a column in each row group of a file; None if unknown."""

ANY_VALUE: Final = (MIN_NUMBER, MAX_NUMBER)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Conditions on the rows that are needed; all must hold, and bounds are inclusive.

    Attributes:
        names: series, sorted and distinct; None allows all.
        part: the slice that the row is in.
        sequences: bounds of the sequence.
        times: bounds of the timestamp, in microseconds.
        commits: bounds of the commit number.
    """

    names: Sequence[str] | None = None
    part: Slice = FULL_SLICE
    sequences: tuple[int, int] = ANY_VALUE
    times: tuple[int, int] = ANY_VALUE
    commits: tuple[int, int] = ANY_VALUE

    @property
    def columns(self) -> list[str]:
        """The columns that conditions are on."""
        wanted = {
            "series": self.names is not None or self.part != FULL_SLICE,
            "sequence": self.part != FULL_SLICE or self.sequences != ANY_VALUE,
            "timestamp": self.times != ANY_VALUE,
            "commit": self.commits != ANY_VALUE,
        }
        return [name for name, needed in wanted.items() if needed]

    def match_groups(self, count: int, ends: GroupBounds) -> list[int]:
        """The numbers of a file's `count` row groups that may contain a needed row."""
        tests: dict[str, Callable[[Any, Any], bool]] = {
            "series": self._may_match_series,
            "sequence": lambda low, high: _overlaps(self.sequences, low, high),
            "timestamp": lambda low, high: _overlaps(self.times, low, high),
            "commit": lambda low, high: _overlaps(self.commits, low, high),
        }
        groups = list(range(count))
        for name in self.columns:
            if not groups:
                break
            known, may_match = ends(name), tests[name]
            groups = [i for i in groups if (bounds := known[i]) is None or may_match(*bounds)]
        return groups

    def _may_match_series(self, first: str, last: str) -> bool:
        if not self.part.overlaps(first, last):
            return False
        if self.names is None:
            return True
        if not self.names or last < self.names[0] or first > self.names[-1]:
            return False
        return bisect_left(self.names, first) < bisect_right(self.names, last)

    def match_rows(self, table: pa.Table, *, is_sorted: bool = True) -> tuple[int, BoolArray]:
        """The needed rows of `table`: the offset of the first flag, and a flag for each row.

        Args:
            table: has `columns`.
            is_sorted: True if it is sorted by series.
        """
        start, end = self._names_span(table) if is_sorted else (0, table.num_rows)
        within = table.slice(start, end - start)
        needed = np.ones(end - start, bool)
        if self.names is not None and (len(self.names) > 1 or not is_sorted):
            needed &= _to_flags(pc.is_in(within["series"], pa.array(self.names, pa.string())))
        if self.part != FULL_SLICE:
            needed &= self.part.contains(within["series"], to_int64(within["sequence"]))
        for name, (low, high) in (
            ("sequence", self.sequences),
            ("timestamp", self.times),
            ("commit", self.commits),
        ):
            if (low, high) != ANY_VALUE:
                values = to_int64(within[name])
                needed &= values >= low
                needed &= values <= high
        return start, needed

    def _names_span(self, table: pa.Table) -> tuple[int, int]:
        """The range of rows from the first to the last of `names`."""
        if self.names is None:
            return 0, table.num_rows
        if not self.names:
            return 0, 0
        series = table["series"]
        start = bisect_left(series, self.names[0], key=_to_text)
        return start, bisect_right(series, self.names[-1], start, key=_to_text)


ALL_ROWS: Final = RowFilter()


def _to_text(scalar: pa.Scalar) -> str:
    return str(scalar.as_py())


def _to_flags(found: pa.ChunkedArray) -> BoolArray:
    flags: BoolArray = found.to_numpy()
    return flags


def _overlaps(wanted: tuple[int, int], low: int, high: int) -> bool:
    return high >= wanted[0] and low <= wanted[1]
