"""A store by semantics 15 to 28: a dictionary of lists of events.

Nothing here is taken from the code of the package. Where the law leaves a choice open, the model
raises `Unclear`, and a comparison skips that question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Amount = tuple[str, int]
"""An end of a range: a word, such as `sequence`, `next_us`, `last`, and its number."""


class Refused(Exception):
    """The store must not do this; it may raise errors of these names."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.names = names


class Unclear(Exception):
    """The manual does not say."""


@dataclass(frozen=True)
class Event:
    """An event; `original` is the sequence of the event that it edits, `commit` counts commits."""

    sequence: int
    us: int
    value: Any
    author: str
    original: int | None = None
    commit: int = 0
    erased: bool = False

    @property
    def place(self) -> int:
        """The sequence of the original that this is, or edits."""
        return self.sequence if self.original is None else self.original


@dataclass(frozen=True)
class Row:
    """A row to append: `us` None where it has no time, `edit_of` None where it is not an edit."""

    series: str
    us: int | None
    value: Any
    edit_of: int | None = None


@dataclass(frozen=True)
class Range:
    """A range: an anchor and a span, as `Amount`s."""

    anchor: Amount = ("start", 0)
    span: Amount = ("last", 0)


@dataclass(frozen=True)
class Asked:
    """A query: `values`, `allEdits` or `latestEdits`, its two ranges, and its limit."""

    kind: str = "values"
    view: Range = Range()
    edits: Range | None = None
    limit: int | None = None


@dataclass
class Model:
    """A store.

    Attributes:
        limit: of the retained range; None: none.
        last_us: of the retained range; None: none.
        series: every event that was ever appended, by series.
        hidden: events out of range when the range was changed, by series and sequence.
        dropped: how many rows were.
        adjusted: how many rows were.
        commits: how many commits there were.
        commit_us: their times, if they matter.
    """

    limit: int | None = None
    last_us: int | None = None
    series: dict[str, list[Event]] = field(default_factory=dict)
    hidden: set[tuple[str, int]] = field(default_factory=set)
    dropped: int = 0
    adjusted: int = 0
    commits: int = 0
    commit_us: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Model:
        """The same, to be changed on its own."""
        series = {name: list(events) for name, events in self.series.items()}
        return dataclasses.replace(self, series=series, hidden=set(self.hidden))

    # -- what is there ---------------------------------------------------------------------------

    def newest_us(self, name: str) -> int | None:
        """The newest timestamp of a series; an edit counts with at most its commit's time."""
        there = [e for e in self.series.get(name, []) if not e.erased]
        edits = [
            min(e.us, self.commit_us.get(e.commit, e.us)) for e in there if e.original is not None
        ]
        return max([*edits, *(e.us for e in there if e.original is None)], default=None)

    def newest_original_us(self, name: str) -> int | None:
        """The newest timestamp of an original that is not erased."""
        there = [e for e in self.series.get(name, []) if not e.erased]
        return max((e.us for e in there if e.original is None), default=None)

    def retained(self, name: str) -> list[Event]:
        """The originals inside the retained range and the edits of these, by sequence."""
        events = self.series.get(name, [])
        newest_us = self.newest_original_us(name)
        inside = set()
        for event in events:
            if event.original is not None or (name, event.sequence) in self.hidden:
                continue
            if self.limit is not None and event.sequence < len(events) - self.limit:
                continue
            if self.last_us is not None and event.us < (newest_us or 0) - self.last_us:
                continue
            inside.add(event.sequence)
        return [event for event in events if event.place in inside]

    def set_retained_range(self, limit: int | None, last_us: int | None) -> None:
        """Changes the range; what is out of range stays so."""
        if (limit, last_us) == (self.limit, self.last_us):
            return
        for name, events in self.series.items():
            kept = {event.sequence for event in self.retained(name)}
            self.hidden |= {(name, e.sequence) for e in events if e.sequence not in kept}
        self.limit, self.last_us = limit, last_us
        self.commits += 1

    # -- what is added ---------------------------------------------------------------------------

    def append(
        self,
        rows: list[Row],
        author: str,
        assigned: Callable[[int, int | None], int],
        late: str = "fail",
        missing: str = "fail",
        clock: str = "wall",
    ) -> list[tuple[str, Event] | None]:
        """The event of each row, None where it is dropped; all or nothing.

        Args:
            rows: the batch.
            author: of all rows.
            assigned: the time that the store gave to the event of a row, with the newest time
                of its series, None where it has none; asked under clock `wall` only.
            late: what becomes of late rows: `fail`, `drop`, `adjust`.
            missing: what becomes of edits without an original: `fail`, `drop`.
            clock: of times that are assigned: `wall` or `event`.

        Raises:
            Refused: nothing of the batch is stored.
        """
        before, after = self, self.copy()
        found: list[tuple[str, Event] | None] = [None] * len(rows)
        troubles: list[str] = []
        taken: list[tuple[int, Row, int | None]] = []
        for at, row in enumerate(rows):
            if row.edit_of is not None:
                continue
            newest_us = before.newest_original_us(row.series)
            us = row.us
            if us is not None and newest_us is not None and us < newest_us:
                if late == "fail":
                    troubles.append("UpdateFailed")
                if late == "drop":
                    after.dropped += 1
                    continue
                if late == "adjust":
                    after.adjusted += 1
                    us = newest_us
            taken.append((at, row, us))
        timed = sorted((t for t in taken if t[1].us is not None), key=lambda t: (t[1].us, t[0]))
        for at, row, us in [*timed, *(t for t in taken if t[2] is None)]:
            if us is None:
                us = after._time(row.series, at, assigned, clock, troubles)
            found[at] = row.series, after.add(row.series, us, row.value, author)
        for at, row in enumerate(rows):
            if row.edit_of is None:
                continue
            if not self._may_edit(row, after):
                if missing == "fail":
                    troubles.append("NoSuchEvent")
                after.dropped += 1
                continue
            us = after._time(row.series, at, assigned, clock, troubles)
            found[at] = row.series, after.add(row.series, us, row.value, author, row.edit_of)
        if troubles:
            raise Refused(*troubles)
        after.commits += 1
        self.__dict__.update(after.__dict__)
        return found

    def _may_edit(self, row: Row, after: Model) -> bool:
        """Whether an original is there: inside the range before the batch, or of the batch."""
        first = len(self.series.get(row.series, []))
        there = [*self.retained(row.series), *after.series.get(row.series, [])[first:]]
        originals = [e for e in there if e.original is None and not e.erased]
        return any(e.sequence == row.edit_of for e in originals)

    def _time(
        self,
        name: str,
        at: int,
        assigned: Callable[[int, int | None], int],
        clock: str,
        troubles: list[str],
    ) -> int:
        newest_us = self.newest_us(name)
        if clock == "wall":
            return assigned(at, newest_us)
        if newest_us is None:
            troubles.append("UpdateFailed")
            return 0
        return newest_us

    def add(
        self, name: str, us: int, value: Any, author: str, original: int | None = None
    ) -> Event:
        """The next event of a series."""
        events = self.series.setdefault(name, [])
        event = Event(len(events), us, value, author, original, self.commits)
        events.append(event)
        return event

    # -- what is erased --------------------------------------------------------------------------

    def erase(
        self, name: str, asked: set[int], stored: set[int]
    ) -> tuple[list[int], list[int]] | None:
        """Erases events and all edits of them, `stored` are those on the disk.

        Returns:
            The events that the act erases and those that it finds removed; None if there is nothing
            left to do.

        Raises:
            Refused: there never was such an event.
        """
        events = self.series.get(name, [])
        if any(not 0 <= sequence < len(events) for sequence in asked):
            raise Refused("NoSuchEvent")
        meant = [e for e in events if {e.sequence, e.original} & asked and not e.erased]
        new = [e.sequence for e in meant if e.sequence in stored]
        removed = sorted(asked - stored)
        if not new and not removed:
            return None
        gone = {e.sequence for e in events} - stored
        self.forget({(name, e.sequence) for e in meant})
        left = [e.sequence for e in self.series[name] if e.original is None and not e.erased]
        gone |= {sequence for sequence in left[-1:] if (name, sequence) in self.hidden}
        self.hidden |= {(name, sequence) for sequence in range(max(gone, default=-1) + 1)}
        self.commits += 1
        return new, removed

    def forget(self, keys: set[tuple[str, int]]) -> None:
        """Takes the values of events, by series and sequence."""
        for name, events in self.series.items():
            self.series[name] = [
                dataclasses.replace(e, value=None, erased=True) if (name, e.sequence) in keys else e
                for e in events
            ]

    # -- what is asked ---------------------------------------------------------------------------

    def query(self, name: str, asked: Asked) -> tuple[list[Event], int]:
        """The events of a query in its order, and how many there were before its limit.

        Raises:
            Refused: the query is invalid.
            Unclear: the manual does not say what it gives.
        """
        there = self.retained(name)
        if name not in self.series:
            return [], 0
        if _last_timed(self.series[name]) not in there:
            raise Unclear("the series' last event is not retained")
        counted = [e for e in there if e.original is None] if asked.kind == "values" else there
        # The view range is about originals, so `last` is the last original.
        last = _last_timed([e for e in there if e.original is None])
        viewed = _inside(asked.view, counted, there, last)
        originals = [e for e in there if e.original is None and e.sequence in viewed]
        allowed = {e.sequence for e in there}
        if asked.edits is not None:
            if asked.kind == "values" and _counts(asked.edits):
                raise Unclear("what an edit range counts in a value query")
            allowed = _inside(asked.edits, there, there, _last_timed(there))
        chosen = []
        for original in originals:
            edits = [e for e in there if e.original == original.sequence and e.sequence in allowed]
            mine = [original] if original.sequence in allowed else []
            if asked.kind == "values":
                chosen += (mine + edits)[-1:]
            elif asked.kind == "latestEdits":
                chosen += mine + edits[-1:]
            else:
                chosen += mine + edits
        order = (lambda e: e.place) if asked.kind == "values" else (lambda e: e.sequence)
        chosen.sort(key=order)
        if asked.limit is None:
            return chosen, len(chosen)
        return chosen[max(len(chosen) - asked.limit, 0) :], len(chosen)

    def shown_us(self, name: str, event: Event, kind: str) -> int:
        """The time of an event in a result: in a query of values the original's."""
        if kind != "values" or event.original is None:
            return event.us
        return self.series[name][event.original].us

    def initial(self, name: str, limit: int | None, last_us: int | None) -> list[Event]:
        """The first events of a new subscriber: the last entries of `latestEdits`."""
        entries, _ = self.query(name, Asked("latestEdits"))
        newest_us = self.newest_original_us(name)
        if last_us is not None and newest_us is not None:
            entries = [e for e in entries if e.us >= newest_us - last_us]
        return entries if limit is None else entries[len(entries) - min(limit, len(entries)) :]


def _counts(range_: Range) -> bool:
    return any(word in ("last", "next", "previous") for word, _ in (range_.anchor, range_.span))


def _inside(range_: Range, counted: list[Event], there: list[Event], last: list[Event]) -> set[int]:
    """The sequences of the events of `counted` in a range, both ends inclusive.

    Args:
        range_: the range.
        counted: the events that stand in its slots, by sequence.
        there: all events.
        last: the event that durations before the end count from.
    """
    rising = all(a.us <= b.us for a, b in pairwise(counted))
    # An edit between two ends may say which of them comes first, though it is not counted.
    if _mixes(range_) and any(a.us > b.us for a, b in pairwise(there)):
        raise Unclear("a place and a time, where times do not rise with places")
    end_us = None if last is None else last.us
    word, number = range_.span
    if word in ("next", "previous"):
        return _counted_from(range_, counted, end_us)
    if word in ("next_us", "previous_us"):
        base = _time_of_anchor(range_.anchor, counted, end_us, forward=word == "next_us")
        way = number if word == "next_us" else -number
        range_ = Range(range_.anchor, ("time", base + way))
        if not rising and range_.anchor[0] in ("start", "last", "last_us"):
            raise Unclear("a duration from a place, where times do not rise with places")
    forward = _bounded(counted, end_us, range_.anchor, range_.span)
    return forward or _bounded(counted, end_us, range_.span, range_.anchor)


def _last_timed(events: list[Event]) -> Event | None:
    """The last event that is not erased, else the last one; None of none."""
    return next(iter([*[e for e in events if not e.erased][-1:], *events[-1:]]), None)


def _mixes(range_: Range) -> bool:
    timed = {"time": True, "last_us": True, "next_us": True, "previous_us": True}
    kinds = {timed.get(word, False) for word, _ in (range_.anchor, range_.span)}
    return len(kinds) > 1


def _bounded(counted: list[Event], end_us: int | None, low: Amount, high: Amount) -> set[int]:
    """The events between two independent ends; the first one is the lower."""
    above = _test(counted, end_us, low, lower=True)
    below = _test(counted, end_us, high, lower=False)
    return {e.sequence for at, e in enumerate(counted) if above(at, e) and below(at, e)}


def _test(
    counted: list[Event], end_us: int | None, end: Amount, *, lower: bool
) -> Callable[[int, Event], bool]:
    word, number = end
    if word == "start":
        return lambda at, e: lower
    if word == "last":
        gap = len(counted) - number
        return (lambda at, e: at >= gap) if lower else (lambda at, e: at < gap)
    if word == "sequence":
        return (
            (lambda at, e: e.sequence >= number) if lower else (lambda at, e: e.sequence <= number)
        )
    us = number if word == "time" else (end_us or 0) - number
    return (lambda at, e: e.us >= us) if lower else (lambda at, e: e.us <= us)


def _counted_from(range_: Range, counted: list[Event], end_us: int | None) -> set[int]:
    """`next` and `previous` this many events: after the anchor's own, if it stands on one."""
    word, number = range_.span
    name, at = range_.anchor
    before, own, after = [], [], []
    if name == "start":
        after = counted
    elif name == "last":
        gap = len(counted) - at  # It may lie before the start.
        ends = (gap, gap + number) if word == "next" else (gap - number, gap)
        return {e.sequence for place, e in enumerate(counted) if ends[0] <= place < ends[1]}
    elif name == "sequence":
        before = [e for e in counted if e.sequence < at]
        own = [e for e in counted if e.sequence == at]
        after = [e for e in counted if e.sequence > at]
    else:
        us = at if name == "time" else (end_us or 0) - at
        if any(a.us > b.us for a, b in pairwise(counted)) or any(e.erased for e in counted):
            raise Unclear("events counted from a time, where times do not rise with places")
        if name == "last_us":
            raise Unclear("whether the time before the last event stands on an event")
        before = [e for e in counted if e.us < us]
        own = [e for e in counted if e.us == us]
        after = [e for e in counted if e.us > us]
    chosen = after[:number] if word == "next" else before[max(len(before) - number, 0) :]
    return {e.sequence for e in [*own, *chosen]}


def _time_of_anchor(
    anchor: Amount, counted: list[Event], end_us: int | None, *, forward: bool
) -> int:
    """The timestamp that a duration counts from."""
    name, at = anchor
    if name == "time":
        return at
    if name == "last_us":
        if end_us is None:
            raise Refused("InvalidQuery")
        return end_us - at
    if name == "start":
        near: Iterable[Event] = counted[:1] if forward else []
    elif name == "last":
        gap = len(counted) - at
        if gap < 0:
            raise Unclear("the time of an anchor before the start")
        near = counted[gap : gap + 1] if forward else counted[:gap][-1:]
    elif forward:
        near = [e for e in counted if e.sequence >= at][:1]
    else:
        near = [e for e in counted if e.sequence <= at][-1:]
    for event in near:
        return event.us
    raise Refused("InvalidQuery")
