"""Range queries over columns: which rows of many series are in the result, in which order.

Pure and without a loop over rows or series. Bounds are per series: a doubled sequence, so that an
odd number stands between two events, or a timestamp.

The rules are semantics 21.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.query import EVERYTHING, Point, Query, Range
from pyspark_tseries.model.series_index import ABSENT, Longs

__all__ = ["Events", "Selection", "select"]

Flags = npt.NDArray[np.bool_]

_BEFORE_ALL: Final = -(2**62)
_AFTER_ALL: Final = 2**62


@dataclass(frozen=True, slots=True)
class Events:
    """The events of some series that a query sees, sorted by (series, sequence).

    Attributes:
        names: the series, in the order of the rows; each has at least one row.
        codes: each row's position in `names`.
        sequence: each row's.
        us: each row's timestamp.
        original: the sequence that each row overrides, ABSENT where it is no edit.
    """

    names: pa.Array
    codes: Longs
    sequence: Longs
    us: Longs
    original: Longs


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a result, in its order, and how many there were before the limit."""

    rows: Longs
    selected: int


def select(events: Events, query: Query) -> Selection:
    """Evaluates `query` on each series.

    An edit whose original is not among `events` is in no result. Series stay in the order of
    `events`.

    Raises:
        InvalidQuery: a relative time, and the anchor has no timestamp in some series.
    """
    original = _original_rows(events)
    of_interest = np.flatnonzero(original >= 0)
    slots = _Slots(events, events.original == ABSENT if query.kind == "values" else None)
    view, inside = _inside(query.view, slots), _inside(query.edits, slots)
    rows = of_interest[view[original[of_interest]] & inside[of_interest]]
    if query.kind == "values":
        rows = rows[_last_of_each(original[rows])]
    elif query.kind == "latestEdits":
        edits = rows[events.original[rows] != ABSENT]
        latest = edits[_last_of_each(original[edits])]
        rows = np.sort(np.concatenate([rows[events.original[rows] == ABSENT], latest]))
    return Selection(rows[_limited(events, rows, query.limit)], len(rows))


def _last_of_each(group: Longs) -> Longs:
    """Where each distinct number of `group` occurs last, in the order of the numbers."""
    _, from_end = np.unique(group[::-1], return_index=True)
    last: Longs = len(group) - 1 - from_end
    return last


def _limited(events: Events, rows: Longs, limit: int) -> Flags:
    """Which of `rows` are among the `limit` highest sequences of their series."""
    if limit >= len(rows):
        return np.ones(len(rows), bool)
    codes = events.codes[rows]
    newest_first = np.lexsort((-events.sequence[rows], codes))
    starts = np.searchsorted(codes, codes)
    kept = np.empty(len(rows), bool)
    kept[newest_first] = np.arange(len(rows)) - starts < limit
    return kept


def _original_rows(events: Events) -> Longs:
    """The row of each event's original, its own where it is one; ABSENT where there is none."""
    rows = np.arange(len(events.codes))
    edits = np.flatnonzero(events.original != ABSENT)
    if not len(edits):
        return rows
    codes = np.concatenate([events.codes, events.codes[edits]])
    sequence = np.concatenate([events.sequence, events.original[edits]])
    order = np.lexsort((np.arange(len(codes)), sequence, codes))
    # The rows are sorted already, so the last row up to a probe is the highest one.
    nearest = np.maximum.accumulate(np.where(order < len(rows), order, -1))
    probe = np.flatnonzero(order >= len(rows))
    row, edit = nearest[probe], edits[order[probe] - len(rows)]
    found = (row >= 0) & (events.codes[row] == events.codes[edit])
    found &= (events.sequence[row] == events.original[edit]) & (events.original[row] == ABSENT)
    result = rows.copy()
    result[edit] = np.where(found, row, ABSENT)
    return result


@dataclass(frozen=True, slots=True)
class _Bound:
    """Per series a doubled sequence, or a time."""

    by_time: bool
    at: Longs


@dataclass(frozen=True, slots=True)
class _Place:
    """Per series a place among the slots: `on` the slot `index`, or right before it."""

    index: Longs
    on: Flags


class _Slots:
    """The events that counts count, per series.

    Attributes:
        events: all events.
        size: the number of slots of each series.
        last_us: the timestamp of the last event, of any kind, of each series.
    """

    def __init__(self, events: Events, counted: Flags | None) -> None:
        self.events = events
        rows = np.arange(len(events.codes)) if counted is None else np.flatnonzero(counted)
        self._codes, self._sequence = events.codes[rows], events.sequence[rows]
        self._us = events.us[rows]
        series = np.arange(len(events.names))
        self._starts = np.searchsorted(self._codes, series)
        self.size = np.bincount(self._codes, minlength=len(series))
        self._index = np.arange(len(rows)) - self._starts[self._codes]
        self.last_us = events.us[np.searchsorted(events.codes, series, "right") - 1]

    def row(self, index: Longs) -> tuple[Longs, Longs]:
        """Sequence and timestamp of slot `index` of each series, cut to those there are."""
        if not len(self._sequence):
            return np.zeros_like(index), np.zeros_like(index)
        at = self._starts + np.clip(index, 0, np.maximum(self.size - 1, 0))
        at = np.minimum(at, len(self._sequence) - 1)
        return self._sequence[at], self._us[at]

    def below(self, sequence: int) -> _Place:
        """The place of a sequence."""
        under = np.bincount(self._codes[self._sequence < sequence], minlength=len(self.size))
        on = np.bincount(self._codes[self._sequence == sequence], minlength=len(self.size)) > 0
        return _Place(under, on)

    def at_time(self, us: Longs, *, forward: bool) -> _Place:
        """The place of a time: the first slot at or after it, or the last one at or before."""
        if forward:
            index = self.size.copy()
            at = self._us >= us[self._codes]
            np.minimum.at(index, self._codes[at], self._index[at])
            return _Place(index, (index < self.size) & (self.row(index)[1] == us))
        last = np.full(len(self.size), -1)
        at = self._us <= us[self._codes]
        np.maximum.at(last, self._codes[at], self._index[at])
        on = (last >= 0) & (self.row(last)[1] == us)
        return _Place(np.where(on, last, last + 1), on)

    def bound(self, place: _Place) -> _Bound:
        """A place as a doubled sequence."""
        doubled = 2 * self.row(place.index)[0] - ~place.on
        doubled = np.where(place.index >= self.size, _AFTER_ALL, doubled)
        before = place.index < np.where(place.on, 0, 1)
        return _Bound(False, np.where(before, _BEFORE_ALL, doubled))


def _inside(wanted: Range, slots: _Slots) -> Flags:
    """Which events are inside `wanted`."""
    codes = slots.events.codes
    if wanted == EVERYTHING:
        return np.ones(len(codes), bool)
    anchor = _fixed(wanted.anchor, slots)
    if wanted.span.kind.startswith(("next", "previous")):
        forward = wanted.span.kind.startswith("next")
        end = _relative(wanted, slots, forward=forward)
        return _between(anchor, end, slots) if forward else _between(end, anchor, slots)
    end = _fixed(wanted.span, slots)
    there, back = _between(anchor, end, slots), _between(end, anchor, slots)
    ahead = np.bincount(codes[there], minlength=len(slots.size)) > 0
    return np.where(ahead[codes], there, back)


def _between(low: _Bound, high: _Bound, slots: _Slots) -> Flags:
    events = slots.events

    def of(bound: _Bound) -> tuple[Longs, Longs]:
        return (events.us if bound.by_time else 2 * events.sequence), bound.at[events.codes]

    (value, least), (other, most) = of(low), of(high)
    inside: Flags = (value >= least) & (other <= most)
    return inside


def _fixed(point: Point, slots: _Slots) -> _Bound:
    """A point that does not depend on an anchor."""
    if point.kind == "sequence":
        return _Bound(False, np.full(len(slots.size), 2 * point.value))
    if point.kind == "time":
        return _Bound(True, np.full(len(slots.size), point.value))
    if point.kind == "last_us":
        return _Bound(True, slots.last_us - point.value)
    return slots.bound(_place(point, slots, forward=True))


def _place(point: Point, slots: _Slots, *, forward: bool) -> _Place:
    nowhere = np.zeros(len(slots.size), bool)
    if point.kind == "start":
        return _Place(np.zeros_like(slots.size), nowhere)
    if point.kind == "last_count":
        return _Place(slots.size - point.value, nowhere)
    if point.kind == "sequence":
        return slots.below(point.value)
    return slots.at_time(_fixed(point, slots).at, forward=forward)


def _relative(wanted: Range, slots: _Slots, *, forward: bool) -> _Bound:
    """The span of `wanted`, which counts from its anchor."""
    amount = wanted.span.value if forward else -wanted.span.value
    by_time = wanted.anchor.kind in ("time", "last_us")
    if wanted.span.kind.endswith("_us") and by_time:
        return _Bound(True, _fixed(wanted.anchor, slots).at + amount)
    place = _place(wanted.anchor, slots, forward=forward)
    if wanted.span.kind.endswith("_us"):
        return _Bound(True, _time_of(place, slots, wanted, forward=forward) + amount)
    return slots.bound(_Place(place.index + amount, place.on))


def _time_of(place: _Place, slots: _Slots, wanted: Range, *, forward: bool) -> Longs:
    """The timestamp of an anchor: that of its event, or of the next one in the span's direction."""
    index = place.index if forward else np.where(place.on, place.index, place.index - 1)
    nowhere = np.flatnonzero((index < 0) | (index >= slots.size))
    if len(nowhere):
        series = slots.events.names[int(nowhere[0])].as_py()
        raise InvalidQuery(
            f"series '{series}': the anchor '{wanted.anchor.kind} {wanted.anchor.value}' has no "
            "timestamp that a duration could count from; accepted: an anchor on an event, or a "
            "time; next step: use a count, a time, or an anchor inside the series"
        )
    return slots.row(index)[1]
