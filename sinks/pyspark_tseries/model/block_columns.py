"""Columns of numbers, kept in blocks: whoever changes a few rows of a million copies a few blocks.

Immutable, so a reader in another thread goes on with the columns that it has.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_ROWS", "BlockColumns"]

Longs = npt.NDArray[np.int64]

BLOCK_ROWS: Final = 1 << 14
FEW_BLOCKS: Final = 8
"""More than so many blocks are gathered or changed as one array, which is one call of NumPy."""


class BlockColumns(Mapping[str, Longs]):
    """Columns of equal length by name; `columns[name]` is a copy in one piece."""

    def __init__(self, columns: Mapping[str, Longs]) -> None:
        self._blocks = {name: _cut(column) for name, column in columns.items()}
        self.rows = max(map(len, columns.values()), default=0)

    def __getitem__(self, name: str) -> Longs:
        return _whole(self._blocks[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, name: object) -> bool:
        return name in self._blocks

    def ends(self, name: str) -> Longs:
        """The lowest and the highest number of a column that has some."""
        blocks = self._blocks[name]
        return np.array([min(map(np.min, blocks)), max(map(np.max, blocks))])

    def take(self, rows: Longs, absent: Mapping[str, int]) -> dict[str, Longs]:
        """The columns of `absent` at `rows`: its number where there is no such row or column."""
        known = (rows >= 0) & (rows < self.rows)
        there = rows[known]
        found = {}
        for name, missing in absent.items():
            found[name] = np.full(len(rows), missing, np.int64)
            if name in self._blocks:
                found[name][known] = _gathered(self._blocks[name], there)
        return found

    def put(
        self, rows: Longs, changes: Mapping[str, Longs], absent: Mapping[str, int]
    ) -> "BlockColumns":
        """With `changes` at the distinct `rows`, which may be beyond the end.

        The result has the columns of `absent`, whose numbers stand where nothing else is said.
        """
        result = BlockColumns({})
        result.rows = max(self.rows, int(rows.max(initial=-1)) + 1)
        for name, missing in absent.items():
            blocks = _grown(self._blocks.get(name, []), result.rows, missing)
            if name in changes:
                blocks = _changed(blocks, rows, changes[name])
            result._blocks[name] = blocks
        return result


def _cut(column: Longs) -> list[Longs]:
    return [column[first : first + BLOCK_ROWS] for first in range(0, len(column), BLOCK_ROWS)]


def _whole(blocks: list[Longs]) -> Longs:
    return np.concatenate(blocks) if blocks else np.empty(0, np.int64)


def _gathered(blocks: list[Longs], rows: Longs) -> Longs:
    touched = _touched(rows)
    if len(touched) > FEW_BLOCKS:
        return _whole(blocks)[rows]
    found = np.empty(len(rows), np.int64)
    for block in touched.tolist():
        mine = rows // BLOCK_ROWS == block
        found[mine] = blocks[block][rows[mine] - block * BLOCK_ROWS]
    return found


def _touched(rows: Longs) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.bincount(rows // BLOCK_ROWS))


def _grown(blocks: list[Longs], rows: int, absent: int) -> list[Longs]:
    """`blocks` with as many rows; those at the end hold `absent`."""
    have = sum(map(len, blocks[-1:])) + BLOCK_ROWS * max(len(blocks) - 1, 0)
    if have == rows:
        return list(blocks)
    kept = have // BLOCK_ROWS
    new = np.full(rows - kept * BLOCK_ROWS, absent, np.int64)
    new[: have - kept * BLOCK_ROWS] = _whole(blocks[kept:])
    return blocks[:kept] + _cut(new)


def _changed(blocks: list[Longs], rows: Longs, values: Longs) -> list[Longs]:
    touched = _touched(rows)
    if len(touched) > FEW_BLOCKS:
        whole = _whole(blocks)
        whole[rows] = values
        return _cut(whole)
    blocks = list(blocks)
    for block in touched.tolist():
        mine = rows // BLOCK_ROWS == block
        blocks[block] = blocks[block].copy()
        blocks[block][rows[mine] - block * BLOCK_ROWS] = values[mine]
    return blocks
