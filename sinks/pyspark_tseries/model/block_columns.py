"""Columns of numbers in blocks: changing a few rows of a million copies only a few blocks.

Immutable, so that a reader in another thread keeps the columns it has.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from pyspark_tseries.model.arrays import Int64Array

__all__ = ["BLOCK_ROWS", "BlockColumns"]


BLOCK_ROWS: Final = 1 << 14
MAX_SEPARATE_BLOCKS: Final = 8
"""Above this number of blocks, one NumPy call on the whole column is faster."""


class BlockColumns(Mapping[str, Int64Array]):
    """Columns of equal length by name; `columns[name]` is a copy in one piece."""

    def __init__(self, columns: Mapping[str, Int64Array]) -> None:
        self._blocks = {name: _split_blocks(column) for name, column in columns.items()}
        self.rows = max(map(len, columns.values()), default=0)
        self._bounds: dict[str, Int64Array] = {}

    def __getitem__(self, name: str) -> Int64Array:
        return _concatenate(self._blocks[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, name: object) -> bool:
        return name in self._blocks

    def bounds(self, name: str) -> Int64Array:
        """The lowest and the highest number of a non-empty column; found once."""
        if name not in self._bounds:
            blocks = self._blocks[name]
            self._bounds[name] = np.array([min(map(np.min, blocks)), max(map(np.max, blocks))])
        return self._bounds[name]

    def take(self, rows: Int64Array, absent: Mapping[str, int]) -> dict[str, Int64Array]:
        """The columns of `absent` at `rows`; its number stands for a missing row or column."""
        known = (rows >= 0) & (rows < self.rows)
        there = rows[known]
        found = {}
        for name, missing in absent.items():
            found[name] = np.full(len(rows), missing, np.int64)
            if name in self._blocks:
                found[name][known] = _gather(self._blocks[name], there)
        return found

    def put(
        self, rows: Int64Array, changes: Mapping[str, Int64Array], absent: Mapping[str, int]
    ) -> "BlockColumns":
        """A copy with `changes` at the distinct `rows`, which may lie beyond the end.

        The copy has the columns of `absent`, whose numbers fill what is not set.
        """
        result = BlockColumns({})
        result.rows = max(self.rows, int(rows.max(initial=-1)) + 1)
        for name, missing in absent.items():
            blocks = _extend(self._blocks.get(name, []), result.rows, missing)
            if name in changes:
                blocks = _overwrite(blocks, rows, changes[name])
            result._blocks[name] = blocks
        return result


def _split_blocks(column: Int64Array) -> list[Int64Array]:
    return [column[first : first + BLOCK_ROWS] for first in range(0, len(column), BLOCK_ROWS)]


def _concatenate(blocks: list[Int64Array]) -> Int64Array:
    return np.concatenate(blocks) if blocks else np.empty(0, np.int64)


def _gather(blocks: list[Int64Array], rows: Int64Array) -> Int64Array:
    touched = _touched_blocks(rows)
    if len(touched) > MAX_SEPARATE_BLOCKS:
        return _concatenate(blocks)[rows]
    found = np.empty(len(rows), np.int64)
    for block in touched.tolist():
        mine = rows // BLOCK_ROWS == block
        found[mine] = blocks[block][rows[mine] - block * BLOCK_ROWS]
    return found


def _touched_blocks(rows: Int64Array) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.bincount(rows // BLOCK_ROWS))


def _extend(blocks: list[Int64Array], rows: int, absent: int) -> list[Int64Array]:
    """`blocks` extended to `rows` rows with `absent`."""
    have = sum(map(len, blocks[-1:])) + BLOCK_ROWS * max(len(blocks) - 1, 0)
    if have == rows:
        return list(blocks)
    kept = have // BLOCK_ROWS
    new = np.full(rows - kept * BLOCK_ROWS, absent, np.int64)
    new[: have - kept * BLOCK_ROWS] = _concatenate(blocks[kept:])
    return blocks[:kept] + _split_blocks(new)


def _overwrite(blocks: list[Int64Array], rows: Int64Array, values: Int64Array) -> list[Int64Array]:
    touched = _touched_blocks(rows)
    if len(touched) > MAX_SEPARATE_BLOCKS:
        whole = _concatenate(blocks)
        whole[rows] = values
        return _split_blocks(whole)
    blocks = list(blocks)
    for block in touched.tolist():
        mine = rows // BLOCK_ROWS == block
        blocks[block] = blocks[block].copy()
        blocks[block][rows[mine] - block * BLOCK_ROWS] = values[mine]
    return blocks
