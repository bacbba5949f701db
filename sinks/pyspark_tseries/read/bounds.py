"""Bounds of the originals that a query can need; what lies outside them cannot change its result.

A query asks for ranges, and a store has a retained range and minimums from earlier, narrower ones.
Each of these bounds the originals by sequence, by timestamp, or not at all, depending on how its
ends are given (semantics 20 and 21.3). The bounds are the intersection of all of them, per series,
and they may be too wide but never too narrow: a range by count, for example, counts edits as well,
so its bound by sequence is widened by the number of edits.

Files, row groups and rows of originals outside the bounds are not read. Edits are always read:
they are few, and counts may include them.
"""

from dataclasses import dataclass

import numpy as np

from pyspark_tseries.model.arrays import MAX_NUMBER, MIN_NUMBER, NEVER_US, Int64Array
from pyspark_tseries.model.query import FULL_RANGE, Point, Query, Range
from pyspark_tseries.model.retention import RetainedRange, min_retained

__all__ = ["Bounds", "compute_bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The originals that may be needed, one row per series or one for all; all ends inclusive.

    Attributes:
        min_sequence: their lowest sequence.
        max_sequence: their highest.
        min_us: their earliest timestamp.
        max_us: their latest.
    """

    min_sequence: Int64Array
    max_sequence: Int64Array
    min_us: Int64Array
    max_us: Int64Array

    def over(self, first: int, end: int) -> tuple[int, int, int, int] | None:
        """The bounds of the series from `first` to `end` (exclusive) together; None for none."""
        if first >= end:
            return None
        cut = slice(first, end)
        min_sequence, min_us = int(self.min_sequence[cut].min()), int(self.min_us[cut].min())
        return min_sequence, int(self.max_sequence[cut].max()), min_us, int(self.max_us[cut].max())


def compute_bounds(
    query: Query,
    retained: RetainedRange,
    states: dict[str, Int64Array],
    floors: dict[str, Int64Array],
    edits: int,
) -> Bounds:
    """The bounds of the originals that `query` may need.

    Args:
        query: the query.
        retained: the store's range.
        states: of each series, from `SeriesIndex.lookup`.
        floors: of each series, from `SeriesIndex.min_retained`.
        edits: no series has more edits than this.
    """
    size = len(states["last_sequence"])
    min_sequence, max_sequence = _sequence_bounds(
        query, states, edits, _first_visible(retained, states, floors)
    )
    min_us, max_us = _time_bounds(query, states)
    newest = states["last_sequence"], states["original_us"]
    oldest, oldest_us = min_retained(retained, *newest, floors)
    return Bounds(
        np.broadcast_to(_raise_bound(min_sequence, oldest), size),
        np.broadcast_to(np.int64(MAX_NUMBER) if max_sequence is None else max_sequence, size),
        np.broadcast_to(_raise_bound(min_us, oldest_us), size),
        np.broadcast_to(np.int64(MAX_NUMBER) if max_us is None else max_us, size),
    )


def _raise_bound(bound: Int64Array | None, other: Int64Array) -> Int64Array:
    return other if bound is None else np.maximum(bound, other)


LowHigh = tuple[Int64Array | None, Int64Array | None]


def _is_absolute(edits: Range) -> bool:
    """Return whether membership in an edit range depends on each event alone."""
    ends = edits.anchor.kind, edits.span.kind
    return edits == FULL_RANGE or ends in (("sequence", "sequence"), ("time", "time"))


def _first_visible(
    retained: RetainedRange, states: dict[str, Int64Array], floors: dict[str, Int64Array]
) -> Int64Array | None:
    """The lowest sequence that a query may see; None if that depends on times, too."""
    if retained.last_us is not None or (floors["floor_us"] > NEVER_US).any():
        return None
    newest = states["last_sequence"], states["original_us"]
    return min_retained(retained, *newest, floors)[0]


def _sequence_bounds(
    query: Query, states: dict[str, Int64Array], edits: int, first: Int64Array | None
) -> LowHigh:
    """The bounds by sequence; None for an open end."""
    if not _is_absolute(query.edits):
        return None, None
    last = states["last_sequence"]
    anchor = _point_sequences(query.view.anchor, last, edits)
    word, _, unit = query.view.span.kind.partition("_")
    if word not in ("next", "previous"):
        return _join(anchor, _point_sequences(query.view.span, last, edits))
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


def _point_sequences(point: Point, last: Int64Array, edits: int) -> LowHigh:
    if point.kind == "sequence":
        return np.full_like(last, point.value), np.full_like(last, point.value)
    if point.kind == "last_count":
        return last - point.value - edits, None
    if point.kind == "start":
        return None, np.full_like(last, MIN_NUMBER)
    return None, None


def _time_bounds(query: Query, states: dict[str, Int64Array]) -> LowHigh:
    """The bounds by time; None for an open end."""
    if not _is_absolute(query.edits):
        return None, None
    # The last event is the newest original or an edit, and no edit is older than the originals
    # before it.
    newest_us = states["original_us"]
    anchor = _point_times(query.view.anchor, newest_us)
    word, _, unit = query.view.span.kind.partition("_")
    if word not in ("next", "previous"):
        return _join(anchor, _point_times(query.view.span, newest_us))
    if query.view.anchor.kind not in ("time", "last_us"):
        return None, None
    low, high = anchor
    if unit == "count":
        # In edit queries an edit may stand among originals of other times.
        return (low if word == "next" and query.kind == "values" else None), None
    if word == "next":
        return low, None if high is None else high + query.view.span.value
    return None if low is None else low - query.view.span.value, high


def _point_times(point: Point, newest_us: Int64Array) -> LowHigh:
    if point.kind == "time":
        return np.full_like(newest_us, point.value), np.full_like(newest_us, point.value)
    if point.kind == "last_us":
        return np.maximum(newest_us, MIN_NUMBER + point.value) - point.value, None
    if point == Point("last_count", 0):
        return newest_us, None
    if point.kind == "start":
        return None, np.full_like(newest_us, MIN_NUMBER)
    return None, None


def _join(one: LowHigh, other: LowHigh) -> LowHigh:
    low = None if one[0] is None or other[0] is None else np.minimum(one[0], other[0])
    high = None if one[1] is None or other[1] is None else np.maximum(one[1], other[1])
    return low, high
