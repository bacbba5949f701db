"""How long events wait for a CTI, counted by whole milliseconds in classes of 1 %.

A count of waits has the same size however many waits are in it. Waits below 128 ms have a class
each; above, each doubling is divided into 128 classes, so a quantile is at most 0.8 % too high. The
greatest wait is exact.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pyspark_timestream.connector.columns import Instants

__all__ = ["Waits"]

_BITS: Final = 7
_FIRST: Final = 1 << _BITS
"""The number of classes that hold one millisecond each, and of those in each doubling above."""

_CLASSES: Final = (64 - _BITS) * _FIRST


def _no_counts() -> Instants:
    return np.zeros(_CLASSES, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Waits:
    """A number of waits.

    Attributes:
        counts: how many are in each class.
        greatest_ms: the greatest of them; None without any.
    """

    counts: Instants = field(default_factory=_no_counts)
    greatest_ms: int | None = None

    def add(self, ms: Instants) -> "Waits":
        """Count n more waits, none of them negative."""
        if not len(ms):
            return self
        more = np.bincount(_find_classes(ms), minlength=_CLASSES)
        return Waits(self.counts + more, max(int(ms.max()), self.greatest_ms or 0))

    def merge(self, other: "Waits") -> "Waits":
        """Return the waits of both."""
        both = [each for each in (self.greatest_ms, other.greatest_ms) if each is not None]
        return Waits(self.counts + other.counts, max(both, default=None))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def find_quantile(self, share: float) -> int | None:
        """Return the least wait, in ms, that at least this share of all waits does not pass.

        It is rounded up within its class. None without any wait.
        """
        if self.greatest_ms is None:
            return None
        reached = np.cumsum(self.counts)
        found = int(np.searchsorted(reached, max(share * reached[-1], 1)))
        return min(_find_last_of_class(found), self.greatest_ms)


def _find_classes(ms: Instants) -> Instants:
    doublings = np.maximum(np.frexp(ms.astype(np.float64))[1] - 1 - _BITS, 0).astype(np.int64)
    # A number just below a power of two may be rounded up to it.
    doublings -= (ms >> doublings) < np.where(doublings > 0, _FIRST, 0)
    classes: Instants = doublings * _FIRST + (ms >> doublings)
    return classes


def _find_last_of_class(number: int) -> int:
    """Return the greatest wait of a class.

    >>> [_find_last_of_class(each) for each in (3, 127, 128, 255, 256, 257)]
    [3, 127, 128, 255, 257, 259]
    """
    doublings = max(number // _FIRST - 1, 0)
    return ((number - doublings * _FIRST + 1) << doublings) - 1
