"""Slices of a store: events from one key to another, so that no more than a slice is in memory.

A key is (series, sequence). Names compare by their UTF-8 bytes, which is how Python and Arrow
compare texts alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["EVERYTHING", "Key", "Sample", "Slice", "by_name", "cut", "key_order"]

Key = tuple[str, int]
Sample = tuple[str, int, int]
"""A series, a sequence, and the bytes that this event stands for."""


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

    def holds(
        self, series: pa.Array | pa.ChunkedArray, sequence: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which events are in it."""
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

    def touches(self, first: str, last: str) -> bool:
        """Whether it may hold events of the series from `first` to `last`, both inclusive."""
        above = self.first is None or last >= self.first[0]
        return above and (self.end is None or first <= self.end[0])


EVERYTHING: Final = Slice()


def _flags(compare: Any, series: pa.Array | pa.ChunkedArray, name: str) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = np.asarray(compare(series, pa.scalar(name, pa.string())), bool)
    return flags


def cut(samples: Iterable[Sample], budget: int, *, whole_series: bool) -> Iterator[Slice]:
    """Slices that together are everything, each of about `budget` bytes.

    Args:
        samples: events spread evenly over the rows, with the bytes each stands for.
        budget: a slice ends where the next sample would exceed it.
        whole_series: no series is divided, however large it is.
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


def by_name(series: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The distinct names in order, and each row's position among them.

    Rows that are in order already, or that repeat a name one after the other, take less.
    """
    whole = series.combine_chunks() if isinstance(series, pa.ChunkedArray) else series
    whole = whole.cast(pa.string())
    starts = np.flatnonzero(_new(whole))
    names = whole.take(pa.array(starts))
    run = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(whole)))
    if len(names) < 2 or pc.all(pc.less(names[:-1], names[1:])).as_py():
        return names, run
    encoded = names.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return encoded.dictionary.take(pa.array(order)), rank[encoded.indices.to_numpy()][run]


def _new(series: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows have another name than the row before."""
    new = np.ones(len(series), bool)
    if len(series) > 1:
        new[1:] = np.asarray(pc.not_equal(series[1:], series[:-1]), bool)
    return new


def key_order(
    codes: npt.NDArray[np.int64], sequence: Sequence[int] | npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The rows in the order of their keys."""
    numbers = np.asarray(sequence)
    step, ahead = np.diff(codes), np.diff(numbers)
    if np.all((step > 0) | ((step == 0) & (ahead > 0))):
        return np.arange(len(codes))
    return np.lexsort((numbers, codes))
