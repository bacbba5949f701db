"""Evaluate a range query on columns, and bound the originals that it can need (semantics 20, 21).

*Bounds*: the ranges of the query, the retained range and the floors each bound the originals by
sequence, by timestamp, or not at all. Their intersection may be too wide but never too narrow; a
range by count, for example, is widened by the number of edits, because edits count as well. Files,
row groups and rows of originals outside are not read. Edits are few, and always read.

*Selection*: each end of a range becomes a bound per series, a timestamp or a doubled sequence;
doubling leaves an odd number between any two events, for ends between them (21.4). An end that is a
count is first located among the *slots*, the events that counts include (21.5). With both bounds,
two comparisons decide whether an event is inside. The view range selects originals, the edit range
selects their edits, and the query's kind decides which of these stay. No step loops over rows or
series.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.processes import lazy
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    MAX_NUMBER,
    MIN_NUMBER,
    NEVER_US,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
    flag_last,
)
from pyspark_tseries.model.ranges import (
    FULL_RANGE,
    Point,
    Query,
    Range,
    RetainedRange,
    min_retained,
)


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

    def flag_sequences(self, codes: Int64Array, sequence: Int64Array) -> BoolArray:
        """Flag the events, of series by their positions `codes`, with a sequence inside."""
        flags: BoolArray = sequence >= self.min_sequence[codes]
        flags &= sequence <= self.max_sequence[codes]
        return flags

    def flag_times(self, codes: Int64Array, us: Int64Array) -> BoolArray:
        """Flag the events, of series by their positions `codes`, with a timestamp inside."""
        flags: BoolArray = (us >= self.min_us[codes]) & (us <= self.max_us[codes])
        return flags

    def over(self, begin: int, end: int) -> tuple[int, int, int, int] | None:
        """Return joint bounds of the series from `begin` to `end` (exclusive); None for none."""
        if begin >= end:
            return None
        cut = slice(begin, end)
        min_sequence, min_us = int(self.min_sequence[cut].min()), int(self.min_us[cut].min())
        return min_sequence, int(self.max_sequence[cut].max()), min_us, int(self.max_us[cut].max())


def compute_bounds(
    query: Query, retained: RetainedRange, states: dict[str, Int64Array], edits: int
) -> Bounds:
    """Return the bounds of the originals that `query` may need.

    `states` come from `SeriesIndex.lookup_all`.
    """
    last_sequence, newest_us = states["last_sequence"], states["original_us"]
    size = len(last_sequence)
    oldest, oldest_us = min_retained(retained, last_sequence, newest_us, states)
    min_sequence = max_sequence = min_us = max_us = None
    if is_absolute(query.edits):
        # If times are bounded, the first visible event depends on them as well.
        is_timed = retained.last_us is not None or (states["floor_us"] > NEVER_US).any()
        first_visible = None if is_timed else oldest
        min_sequence, max_sequence = _compute_sequence_bounds(
            query.view, last_sequence, edits, first_visible
        )
        min_us, max_us = _compute_time_bounds(query, newest_us)
    return Bounds(
        np.broadcast_to(_raise_bound(min_sequence, oldest), size),
        np.broadcast_to(np.int64(MAX_NUMBER) if max_sequence is None else max_sequence, size),
        np.broadcast_to(_raise_bound(min_us, oldest_us), size),
        np.broadcast_to(np.int64(MAX_NUMBER) if max_us is None else max_us, size),
    )


def _raise_bound(bound: Int64Array | None, minimum: Int64Array) -> Int64Array:
    return minimum if bound is None else np.maximum(bound, minimum)


_BEYOND: Final = 2**61 - 1
"""No sequence and no time, in microseconds, lies beyond this, or below its negative."""


def pin_view(view: Range) -> Range | None:
    """Return a view range with the same ends, as numbers that are the same for each series.

    Return None if there are none: then an event's place in the range depends on other events.
    """
    anchor, span = view.anchor, view.span
    if view == FULL_RANGE:
        return view
    if anchor.kind == "start" and span.kind in _FIXED:
        return Range(Point(span.kind, -_BEYOND if span.kind == "time" else 0), span)
    if anchor.kind not in _FIXED:
        return None
    if span == Point("last_count"):
        return Range(anchor, Point(anchor.kind, _BEYOND))
    if anchor.kind == "time" and span.kind in ("next_us", "previous_us"):
        amount = span.value if span.kind == "next_us" else -span.value
        return Range(anchor, Point("time", anchor.value + amount))
    return view if anchor.kind == span.kind else None


_FIXED: Final = ("time", "sequence")


def make_plain(query: Query, *, has_erasures: bool) -> Query | None:
    """Return an equal query that tests each original separately.

    Return None if the result depends on other events of a series, or is not one of values.
    """
    view = pin_view(query.view)
    if query.view.anchor.kind == "last_us" and query.view.span == Point("last_count"):
        # If all originals are erased, the time counts from one of them.
        view = None if has_erasures else query.view
    if view is None or query != Query(view=query.view):
        return None
    return Query(view=view)


LowHigh = tuple[Int64Array | None, Int64Array | None]


def is_absolute(edits: Range) -> bool:
    """Return whether an edit range tests each event by its own time or sequence."""
    ends = edits.anchor.kind, edits.span.kind
    return edits == FULL_RANGE or ends in (("sequence", "sequence"), ("time", "time"))


def _compute_sequence_bounds(
    view: Range, last_sequence: Int64Array, edits: int, first_visible: Int64Array | None
) -> LowHigh:
    """Return the bounds by sequence; None for an open end."""
    anchor = _compute_point_sequences(view.anchor, last_sequence, edits)
    word, _, unit = view.span.kind.partition("_")
    if word not in ("next", "previous"):
        return _join_ends(anchor, _compute_point_sequences(view.span, last_sequence, edits))
    if unit == "us" or view.anchor.kind not in ("sequence", "last_count"):
        return None, None  # Which sequences are inside depends on the times of events.
    reach = view.span.value + edits
    low, high = anchor
    if word == "next":
        # From an anchor before the first visible event, the span counts from that event.
        beyond = (
            None
            if high is None or first_visible is None
            else np.maximum(high, first_visible) + reach
        )
        return low, beyond
    # From an anchor beyond the end, the span counts from the last event.
    return None if low is None else np.minimum(low, last_sequence) - reach, high


def _compute_point_sequences(point: Point, last_sequence: Int64Array, edits: int) -> LowHigh:
    if point.kind == "sequence":
        return np.full_like(last_sequence, point.value), np.full_like(last_sequence, point.value)
    if point.kind == "last_count":
        return last_sequence - point.value - edits, None
    if point.kind == "start":
        return None, np.full_like(last_sequence, MIN_NUMBER)
    return None, None


def _compute_time_bounds(query: Query, newest_us: Int64Array) -> LowHigh:
    """Return the bounds by time; None for an open end.

    The last event is the newest original, at `newest_us`, or an edit, and no edit is older than the
    originals before it.
    """
    anchor = _compute_point_times(query.view.anchor, newest_us)
    word, _, unit = query.view.span.kind.partition("_")
    if word not in ("next", "previous"):
        return _join_ends(anchor, _compute_point_times(query.view.span, newest_us))
    if query.view.anchor.kind not in ("time", "last_us"):
        return None, None  # Which times are inside depends on where the anchor's event lies.
    low, high = anchor
    if unit == "count":
        # In edit queries an edit may stand among originals of other times.
        return (low if word == "next" and query.kind == "values" else None), None
    if word == "next":
        return low, None if high is None else high + query.view.span.value
    return None if low is None else low - query.view.span.value, high


def _compute_point_times(point: Point, newest_us: Int64Array) -> LowHigh:
    if point.kind == "time":
        return np.full_like(newest_us, point.value), np.full_like(newest_us, point.value)
    if point.kind == "last_us":
        return np.maximum(newest_us, MIN_NUMBER + point.value) - point.value, None
    if point == Point("last_count", 0):
        return newest_us, None
    if point.kind == "start":
        return None, np.full_like(newest_us, MIN_NUMBER)
    return None, None


def _join_ends(ends: LowHigh, other_ends: LowHigh) -> LowHigh:
    low = None if ends[0] is None or other_ends[0] is None else np.minimum(ends[0], other_ends[0])
    high = None if ends[1] is None or other_ends[1] is None else np.maximum(ends[1], other_ends[1])
    return low, high


_BEFORE_ALL: Final = -(2**62)
_AFTER_ALL: Final = 2**62


@dataclass(frozen=True, slots=True)
class SeriesEvents:
    """The events of some series that a query sees, sorted by (series, sequence).

    Attributes:
        names: the series, in the order of the rows; each has at least one row.
        codes: each row's position in `names`.
        sequence: each row's sequence.
        us: each row's timestamp.
        original: the sequence that each row overrides, NO_SEQUENCE for an original. Here -1 will
            do, as no edit of a sound store names it; see `model.arrays` for NO_ORIGINAL.
        erased: a flag for each row; None if no row is erased.
    """

    names: pa.Array
    codes: Int64Array
    sequence: Int64Array
    us: Int64Array
    original: Int64Array
    erased: BoolArray | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a result, in its order, and their number before the limit."""

    rows: Int64Array
    selected: int


def select(events: SeriesEvents, query: Query) -> Selection:
    """Evaluate `query` on each series.

    An edit is in no result if its original is not among `events`. Series stay in the order of
    `events`.
    """
    original = _find_originals(events)
    of_interest = np.flatnonzero(original >= 0)
    is_original = events.original == NO_SEQUENCE
    counted = is_original if query.kind == "values" else None
    # The view range selects originals, so "last" means the last original (21.6).
    view = _select_inside(query.view, _Slots(events, counted, is_original))
    inside = _select_inside(query.edits, _Slots(events, counted))
    rows = of_interest[view[original[of_interest]] & inside[of_interest]]
    if query.kind == "values":
        rows = rows[_find_last_of_each(original[rows])]
    elif query.kind == "latestEdits":
        edits = rows[events.original[rows] != NO_SEQUENCE]
        latest = edits[_find_last_of_each(original[edits])]
        rows = np.sort(np.concatenate([rows[events.original[rows] == NO_SEQUENCE], latest]))
    return Selection(rows[flag_last(events.codes[rows], query.limit)], len(rows))


def _find_last_of_each(group: Int64Array) -> Int64Array:
    """Return the last position of each distinct number of `group`, in the order of the numbers."""
    if (group[1:] > group[:-1]).all():
        return np.arange(len(group))  # Usually there are no edits.
    _, from_end = np.unique(group[::-1], return_index=True)
    positions: Int64Array = len(group) - 1 - from_end
    return positions


def _find_originals(events: SeriesEvents) -> Int64Array:
    """Return the row of each event's original (its own for an original); -1 if it is missing.

    Sort the rows together with a probe for each edit: its series and the sequence that it names. A
    probe comes after the row of its key, if there is one, because its position is higher.
    """
    rows = np.arange(len(events.codes))
    edits = np.flatnonzero(events.original != NO_SEQUENCE)
    if not len(edits):
        return rows
    codes = np.concatenate([events.codes, events.codes[edits]])
    sequence = np.concatenate([events.sequence, events.original[edits]])
    order = np.lexsort((np.arange(len(codes)), sequence, codes))
    # The rows are sorted already, so the last row up to a probe is the highest one. If the original
    # is missing, this is another row or -1.
    nearest = np.maximum.accumulate(np.where(order < len(rows), order, -1))
    probe = np.flatnonzero(order >= len(rows))
    row = nearest[probe]
    edit = edits[order[probe] - len(rows)]
    is_there = (row >= 0) & (events.codes[row] == events.codes[edit])
    is_there &= events.sequence[row] == events.original[edit]
    is_there &= events.original[row] == NO_SEQUENCE
    result = rows.copy()
    result[edit] = np.where(is_there, row, NO_SEQUENCE)
    return result


@dataclass(frozen=True, slots=True)
class _RangeEnd:
    """One end of a range, per series: a doubled sequence, or a time."""

    at: Int64Array
    by_time: bool = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class _SlotPosition:
    """A position among the slots of each series: `on` the slot `index`, or right before it.

    Of three slots, `|` is right before one, and the numbers below are of `index`:

        | slot 0  | slot 1  | slot 2  |
        0   0     1   1     2   2     3

    So counting moves `index` only: from slot 0, `next 2` ends on slot 2 and has three events; from
    before slot 0 it ends before slot 2 and has two. Below 0 is before all events of the series, and
    from 3 on, the number of slots, after all.
    """

    index: Int64Array
    on: BoolArray


class _Slots:
    """The events of each series that a count includes: those flagged by `counted`, or all.

    A duration before the end counts from the last event flagged by `last_among`, or of all.
    """

    def __init__(
        self, events: SeriesEvents, counted: BoolArray | None, last_among: BoolArray | None = None
    ) -> None:
        self.events = events
        self._counted = counted
        self._last_among = last_among

    # Computed on demand: a range of times or sequences needs none of these.

    @lazy
    def _rows(self) -> Int64Array:
        if self._counted is None:
            return np.arange(len(self.events.codes))
        return np.flatnonzero(self._counted)

    @lazy
    def _codes(self) -> Int64Array:
        return self.events.codes[self._rows]

    @lazy
    def _sequence(self) -> Int64Array:
        return self.events.sequence[self._rows]

    @lazy
    def _us(self) -> Int64Array:
        return self.events.us[self._rows]

    @lazy
    def _starts(self) -> Int64Array:
        return np.searchsorted(self._codes, np.arange(len(self.events.names)))

    @lazy
    def _index(self) -> Int64Array:
        return np.arange(len(self._rows)) - self._starts[self._codes]

    @lazy
    def size(self) -> Int64Array:
        """The number of slots of each series."""
        return np.bincount(self._codes, minlength=len(self.events.names))

    @lazy
    def _timed(self) -> BoolArray | None:
        """The flags of the slots that can be found by their time; None stands for all."""
        return None if self.events.erased is None else ~self.events.erased[self._rows]

    @lazy
    def last_us(self) -> Int64Array:
        """The time of each series' last event: flagged by `last_among`, not erased; else any."""
        codes = self.events.codes
        series = np.arange(len(self.events.names))
        last_rows = np.searchsorted(codes, series, "right") - 1
        among = self._last_among
        erased = self.events.erased
        # Each flags fewer events than the one before; a series without any keeps its last row.
        flags_to_try = [among] if among is not None else []
        if erased is not None:
            flags_to_try.append(~erased if among is None else among & ~erased)
        for flags in flags_to_try:
            flagged = np.flatnonzero(flags)
            if len(flagged):
                # The last flagged event of each series, or one of another if it has none.
                lasts = np.maximum(np.searchsorted(codes[flagged], series, "right") - 1, 0)
                last_rows = np.where(codes[flagged][lasts] == series, flagged[lasts], last_rows)
        return self.events.us[last_rows]

    def event_at(self, index: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return sequence and timestamp of each series' slot `index`, clipped to existing slots."""
        if not len(self._sequence):
            return np.zeros_like(index), np.zeros_like(index)
        rows = self._starts + np.clip(index, 0, np.maximum(self.size - 1, 0))
        rows = np.minimum(rows, len(self._sequence) - 1)
        return self._sequence[rows], self._us[rows]

    def locate_sequence(self, sequence: int) -> _SlotPosition:
        """Return the position of a sequence."""
        under = np.bincount(self._codes[self._sequence < sequence], minlength=len(self.size))
        on = np.bincount(self._codes[self._sequence == sequence], minlength=len(self.size)) > 0
        return _SlotPosition(under, on)

    def locate_time(self, us: Int64Array, *, forward: bool) -> _SlotPosition:
        """Return the position of a time: the first slot from it on, or the last slot up to it."""
        if forward:
            index = self.size.copy()
            selected = self._select_timed(self._us >= us[self._codes])
            np.minimum.at(index, self._codes[selected], self._index[selected])
            return _SlotPosition(index, (index < self.size) & (self.event_at(index)[1] == us))
        last_index = np.full(len(self.size), -1)
        selected = self._select_timed(self._us <= us[self._codes])
        np.maximum.at(last_index, self._codes[selected], self._index[selected])
        on = (last_index >= 0) & (self.event_at(last_index)[1] == us)
        return _SlotPosition(np.where(on, last_index, last_index + 1), on)

    def _select_timed(self, slots: BoolArray) -> BoolArray:
        return slots if self._timed is None else slots & self._timed

    def to_bound(self, position: _SlotPosition) -> _RangeEnd:
        """Convert a position to a doubled sequence.

        If the slots 0, 1, 2 have the sequences 10, 20, 30, then `sequence 15` .. `next 1` counts
        from before slot 1 and ends before slot 2, at 2 * 30 - 1 = 59: from 2 * 15 = 30 to 59 there
        is only event 20. `next 2` ends before slot 3, so after all events: at `_AFTER_ALL`.
        """
        # An even number is on an event; the odd number below it is right before that event.
        doubled = 2 * self.event_at(position.index)[0]
        doubled = np.where(position.on, doubled, doubled - 1)
        doubled = np.where(position.index >= self.size, _AFTER_ALL, doubled)
        # Before slot 0 is before every event, even one that no count includes.
        first_inside = np.where(position.on, 0, 1)
        return _RangeEnd(
            np.where(position.index < first_inside, _BEFORE_ALL, doubled), by_time=False
        )


def _select_inside(range_: Range, slots: _Slots) -> BoolArray:
    """Flag the events inside `range_`."""
    codes = slots.events.codes
    if range_ == FULL_RANGE:
        return np.ones(len(codes), bool)
    if (ends := _find_fixed_ends(range_)) is not None:
        by_time, low, high = ends
        values = slots.events.us if by_time else slots.events.sequence
        inside: BoolArray = (values >= low) & (values <= high)
        return inside
    anchor = _compute_absolute_bound(range_.anchor, slots)
    if range_.span.kind.startswith(("next", "previous")):
        forward = range_.span.kind.startswith("next")
        end = _compute_relative_bound(range_, slots, forward=forward)
        return (
            _select_between(anchor, end, slots) if forward else _select_between(end, anchor, slots)
        )
    end = _compute_absolute_bound(range_.span, slots)
    # The ends may come in either order, which may differ between series.
    upwards, back = _select_between(anchor, end, slots), _select_between(end, anchor, slots)
    ahead = np.bincount(codes[upwards], minlength=len(slots.size)) > 0
    return np.where(ahead[codes], upwards, back)


def _find_fixed_ends(range_: Range) -> tuple[bool, int, int] | None:
    """Return the ends of a range if they are the same in every series: times, or sequences."""
    anchor, span = range_.anchor, range_.span
    if anchor.kind != span.kind or anchor.kind not in ("time", "sequence"):
        return None
    return anchor.kind == "time", min(anchor.value, span.value), max(anchor.value, span.value)


def _select_between(low: _RangeEnd, high: _RangeEnd, slots: _Slots) -> BoolArray:
    events = slots.events

    def of(bound: _RangeEnd) -> tuple[Int64Array, Int64Array]:
        return (events.us if bound.by_time else 2 * events.sequence), bound.at[events.codes]

    (value_for_low, lowest), (value_for_high, highest) = of(low), of(high)
    inside: BoolArray = (value_for_low >= lowest) & (value_for_high <= highest)
    return inside


def _compute_absolute_bound(point: Point, slots: _Slots) -> _RangeEnd:
    """Return the bound of a point that does not depend on an anchor."""
    if point.kind == "sequence":
        return _RangeEnd(np.full(len(slots.size), 2 * point.value), by_time=False)
    if point.kind == "time":
        return _RangeEnd(np.full(len(slots.size), point.value), by_time=True)
    if point.kind == "last_us":
        return _RangeEnd(slots.last_us - point.value, by_time=True)
    return slots.to_bound(_locate_point(point, slots, forward=True))


def _locate_point(point: Point, slots: _Slots, *, forward: bool) -> _SlotPosition:
    nowhere = np.zeros(len(slots.size), bool)
    if point.kind == "start":
        return _SlotPosition(np.zeros_like(slots.size), nowhere)
    if point.kind == "last_count":
        return _SlotPosition(slots.size - point.value, nowhere)
    if point.kind == "sequence":
        return slots.locate_sequence(point.value)
    return slots.locate_time(_compute_absolute_bound(point, slots).at, forward=forward)


def _compute_relative_bound(range_: Range, slots: _Slots, *, forward: bool) -> _RangeEnd:
    """Return the bound of a span that counts from its anchor."""
    amount = range_.span.value if forward else -range_.span.value
    by_time = range_.anchor.kind in ("time", "last_us")
    if range_.span.kind.endswith("_us") and by_time:
        anchor = _compute_absolute_bound(range_.anchor, slots)
        return _RangeEnd(anchor.at + amount, by_time=True)
    position = _locate_point(range_.anchor, slots, forward=forward)
    if range_.span.kind.endswith("_us"):
        anchor_us = _compute_anchor_time(position, slots, range_, forward=forward)
        return _RangeEnd(anchor_us + amount, by_time=True)
    return slots.to_bound(_SlotPosition(position.index + amount, position.on))


def _compute_anchor_time(
    position: _SlotPosition, slots: _Slots, range_: Range, *, forward: bool
) -> Int64Array:
    """Return an anchor's timestamp: of its event, or of the next one in the span's direction."""
    index = position.index if forward else np.where(position.on, position.index, position.index - 1)
    nowhere = np.flatnonzero((index < 0) | (index >= slots.size))
    if len(nowhere):
        series = slots.events.names[int(nowhere[0])].as_py()
        raise InvalidQuery(
            f"series '{series}': the anchor '{range_.anchor.kind} {range_.anchor.value}' has no "
            "timestamp that a duration could count from",
            "an anchor on an event, or a time",
            "use a count, a time, or an anchor inside the series",
        )
    return slots.event_at(index)[1]
