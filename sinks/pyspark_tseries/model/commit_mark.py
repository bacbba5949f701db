"""A commit by its number and its id, and the ids of many commits as one file (semantics 19.5).

The id of a commit is that of its head: a random number that its writer draws. Two copies of a store
that both go on make commits of the same numbers, but with different ids.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pyspark_tseries.model.arrays import Int64Array

COMMITS_PER_FILE: Final = 1024
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class CommitMark:
    """A commit."""

    number: int
    id: int

    def __str__(self) -> str:
        """As a message names it."""
        return f"commit {self.number} (id {self.id:016x})"

    def to_json(self) -> list[int]:
        """As a checkpoint has it."""
        return [self.number, self.id]

    @staticmethod
    def from_json(read: Any) -> "CommitMark | None":
        """What `to_json` made; None for None."""
        return None if read is None else CommitMark(int(read[0]), int(read[1]))


def pack_ids(ids: Mapping[int, int], first: int) -> bytes:
    """A file with the ids of the commits from `first` on, by number."""
    numbers = range(first, first + COMMITS_PER_FILE)
    content = np.array([ids.get(number, _UNKNOWN) for number in numbers], "<i8").tobytes()
    return zlib.crc32(content).to_bytes(4, "little") + content


def unpack_ids(content: bytes, first: int) -> dict[int, int]:
    """The ids in a file that `pack_ids` made; none if it is damaged."""
    if content[:4] != zlib.crc32(content[4:]).to_bytes(4, "little"):
        return {}
    if len(content) != 4 + 8 * COMMITS_PER_FILE:
        return {}
    ids: Int64Array = np.frombuffer(content, "<i8", offset=4)
    return {first + int(at): int(ids[at]) for at in np.flatnonzero(ids != _UNKNOWN)}
