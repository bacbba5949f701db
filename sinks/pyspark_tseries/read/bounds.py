"""Which originals a query can need: bounds that leave its result as it is.

A file, a row group or a row of originals outside the bounds need not be read. Edits are never
left out: they are few, and counts may count them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pyspark_tseries.model.query import EVERYTHING, Point, Query, Range
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.model.series_index import NEVER_US, Longs

__all__ = ["HIGHEST", "LOWEST", "Bounds", "bounds_of"]

LOWEST: Final = -(2**62)
HIGHEST: Final = 2**62
"""No sequence or timestamp lies beyond these."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Per series, or once for all, the originals that may be needed; all inclusive.

    Attributes:
        least: their lowest sequence.
        most: their highest.
        least_us: their earliest timestamp.
        most_us: their latest.
    """

    least: Longs
    most: Longs
    least_us: Longs
    most_us: Longs

    def over(self, first: int, end: int) -> tuple[int, int, int, int] | None:
        """The bounds of the series from `first` to `end` (exclusive) together; None: of none."""
        if first >= end:
            return None
        cut = slice(first, end)
        least, least_us = int(self.least[cut].min()), int(self.least_us[cut].min())
        return least, int(self.most[cut].max()), least_us, int(self.most_us[cut].max())


def bounds_of(
    query: Query,
    retained: RetainedRange,
    standing: dict[str, Longs],
    floors: dict[str, Longs],
    edits: int,
) -> Bounds:
    """The bounds of the originals that `query` may need.

    Args:
        query: the query.
        retained: the store's range.
        standing: of each series, as `Head.of` gives it.
        floors: of each series, as `Head.floors` gives them.
        edits: no series has more edits than this.
    """
    size = len(standing["last_sequence"])
    least, most = _sequences(query, standing, edits, _first(retained, standing, floors))
    least_us, most_us = _times(query, standing)
    if retained.limit is not None:
        least = _higher(least, standing["last_sequence"] - retained.limit + 1)
    if retained.last_us is not None:
        newest_us = np.maximum(standing["original_us"], NEVER_US + retained.last_us)
        least_us = _higher(least_us, newest_us - retained.last_us)
    return Bounds(
        np.broadcast_to(_higher(least, floors["floor_sequence"]), size),
        np.broadcast_to(np.int64(HIGHEST) if most is None else most, size),
        np.broadcast_to(_higher(least_us, floors["floor_us"]), size),
        np.broadcast_to(np.int64(HIGHEST) if most_us is None else most_us, size),
    )


def _higher(bound: Longs | None, other: Longs) -> Longs:
    return other if bound is None else np.maximum(bound, other)


Ends = tuple[Longs | None, Longs | None]


def _plain(edits: Range) -> bool:
    """Whether which events an edit range holds depends on nothing but each event."""
    ends = edits.anchor.kind, edits.span.kind
    return edits == EVERYTHING or ends in (("sequence", "sequence"), ("time", "time"))


def _first(
    retained: RetainedRange, standing: dict[str, Longs], floors: dict[str, Longs]
) -> Longs | None:
    """The lowest sequence that a query may see; None where times decide that too."""
    if retained.last_us is not None or (floors["floor_us"] > NEVER_US).any():
        return None
    if retained.limit is None:
        return floors["floor_sequence"]
    return np.maximum(floors["floor_sequence"], standing["last_sequence"] - retained.limit + 1)


def _sequences(query: Query, standing: dict[str, Longs], edits: int, first: Longs | None) -> Ends:
    """The bounds by sequence, None where there is none."""
    if not _plain(query.edits):
        return None, None
    last = standing["last_sequence"]
    anchor = _by_sequence(query.view.anchor, last, edits)
    word, _, unit = query.view.span.kind.partition("_")
    if word not in ("next", "previous"):
        return _hull(anchor, _by_sequence(query.view.span, last, edits))
    if unit == "us" or query.view.anchor.kind not in ("sequence", "last_count"):
        return None, None
    reach = query.view.span.value + edits
    low, high = anchor
    if word == "next":
        # From before the first event that is seen it counts from that one.
        beyond = None if high is None or first is None else np.maximum(high, first) + reach
        return low, beyond
    # From beyond the end it counts from the last event.
    return None if low is None else np.minimum(low, last) - reach, high


def _by_sequence(point: Point, last: Longs, edits: int) -> Ends:
    if point.kind == "sequence":
        return np.full_like(last, point.value), np.full_like(last, point.value)
    if point.kind == "last_count":
        return last - point.value - edits, None
    if point.kind == "start":
        return None, np.full_like(last, LOWEST)
    return None, None


def _times(query: Query, standing: dict[str, Longs]) -> Ends:
    """The bounds by time, None where there is none."""
    if not _plain(query.edits):
        return None, None
    # The last event is the newest original or an edit, and no edit is older than the originals
    # before it.
    newest_us = standing["original_us"]
    anchor = _by_time(query.view.anchor, newest_us)
    word, _, unit = query.view.span.kind.partition("_")
    if word not in ("next", "previous"):
        return _hull(anchor, _by_time(query.view.span, newest_us))
    if query.view.anchor.kind not in ("time", "last_us"):
        return None, None
    low, high = anchor
    if unit == "count":
        # In edit queries an edit may stand among originals of other times.
        return (low if word == "next" and query.kind == "values" else None), None
    if word == "next":
        return low, None if high is None else high + query.view.span.value
    return None if low is None else low - query.view.span.value, high


def _by_time(point: Point, newest_us: Longs) -> Ends:
    if point.kind == "time":
        return np.full_like(newest_us, point.value), np.full_like(newest_us, point.value)
    if point.kind == "last_us":
        return np.maximum(newest_us, LOWEST + point.value) - point.value, None
    if point == Point("last_count", 0):
        return newest_us, None
    if point.kind == "start":
        return None, np.full_like(newest_us, LOWEST)
    return None, None


def _hull(one: Ends, other: Ends) -> Ends:
    low = None if one[0] is None or other[0] is None else np.minimum(one[0], other[0])
    high = None if one[1] is None or other[1] is None else np.maximum(one[1], other[1])
    return low, high
