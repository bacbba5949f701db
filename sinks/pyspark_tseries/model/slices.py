"""Slices of a store: events from one key to another, processed one slice at a time.

A key is (series, sequence). Names compare by their UTF-8 bytes, in Python as in Arrow.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import BoolArray, Int64Array

__all__ = [
    "FULL_SLICE",
    "Key",
    "Sample",
    "Slice",
    "split_slices",
]

Key = tuple[str, int]
Sample = tuple[str, int, int]
"""A series, a sequence, and the number of bytes that this event represents."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The events from `first`, inclusive, to `end`, exclusive; None does not bound."""

    first: Key | None = None
    end: Key | None = None

    def expression(self) -> pc.Expression | None:
        """The slice as a filter on the columns `series` and `sequence`."""
        bounds = []
        series, sequence = pc.field("series"), pc.field("sequence")
        if self.first is not None:
            name, number = self.first
            bounds.append((series > name) | ((series == name) & (sequence >= number)))
        if self.end is not None:
            name, number = self.end
            bounds.append((series < name) | ((series == name) & (sequence < number)))
        if not bounds:
            return None
        return bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]

    def contains(self, series: pa.Array | pa.ChunkedArray, sequence: Int64Array) -> BoolArray:
        """A flag for each event inside the slice."""
        inside = np.ones(len(sequence), bool)
        if self.first is not None:
            name, number = self.first
            inside &= _flags(pc.greater, series, name) | (
                _flags(pc.equal, series, name) & (sequence >= number)
            )
        if self.end is not None:
            name, number = self.end
            inside &= _flags(pc.less, series, name) | (
                _flags(pc.equal, series, name) & (sequence < number)
            )
        return inside

    def overlaps(self, first: str, last: str) -> bool:
        """True if it may contain events of the series from `first` to `last`, both inclusive."""
        above = self.first is None or last >= self.first[0]
        return above and (self.end is None or first <= self.end[0])


FULL_SLICE: Final = Slice()


def _flags(compare: Any, series: pa.Array | pa.ChunkedArray, name: str) -> BoolArray:
    flags: BoolArray = np.asarray(compare(series, pa.scalar(name, pa.string())), bool)
    return flags


def split_slices(samples: Iterable[Sample], budget: int, *, whole_series: bool) -> Iterator[Slice]:
    """Slices that cover everything, of about `budget` bytes each.

    Args:
        samples: events spread evenly over the rows, with the bytes each represents.
        budget: a slice ends where the next sample would exceed it.
        whole_series: True keeps each series in one slice, however large it is.
    """
    first: Key | None = None
    held = 0
    for name, sequence, size in sorted(samples):
        end = (name, 0 if whole_series else sequence)
        if held and held + size > budget and end != (first or ("", -1)):
            yield Slice(first, end)
            first, held = end, 0
        held += size
    yield Slice(first, None)
