"""Building a range query step by step, as Diffusion does; every step is a new query.

    series.range_query().from_last(timedelta(hours=1)).select_from("a")
    series.range_query().for_edits().from_(3).to(5).latest_edits().from_last(10)

The methods that name ends act on the view range; after `edit_range()`, `all_edits()` or
`latest_edits()` on the edit range.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from numbers import Integral
from typing import TYPE_CHECKING

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.query import EVERYTHING, MAX, Point, Query, Range, instant_us, span_us

if TYPE_CHECKING:
    from pyspark_tseries.client.results import QueryResult

__all__ = ["RangeQuery"]


def _unbound(query: Query, series: str) -> "QueryResult":
    raise InvalidQuery(
        "this query belongs to no store; accepted: TimeSeries.range_query(); next step: begin "
        "with the range_query() of an open store"
    )


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """An immutable query; equal to another one that asks the same.

    Attributes:
        asked: the query as a value.
        on_edits: whether the next end belongs to the edit range.
        answer: carries the query out.
    """

    asked: Query = field(default_factory=Query)
    on_edits: bool = False
    answer: Callable[[Query, str], "QueryResult"] = field(
        default=_unbound, compare=False, repr=False
    )

    def for_values(self) -> "RangeQuery":
        """Asks for originals, each replaced by its latest edit; ranges begin anew."""
        return self._asking(Query("values", limit=self.asked.limit))

    def for_edits(self) -> "RangeQuery":
        """Asks for originals and all their edits; ranges begin anew."""
        return self._asking(Query("allEdits", limit=self.asked.limit))

    def all_edits(self) -> "RangeQuery":
        """Asks for all edits; the edit range begins anew, and the next ends are its."""
        return self._edit_operator("all_edits", "allEdits")

    def latest_edits(self) -> "RangeQuery":
        """Asks for the latest edit of each original; the edit range begins anew."""
        return self._edit_operator("latest_edits", "latestEdits")

    def edit_range(self) -> "RangeQuery":
        """Begins the edit range of a value query: only events inside it are in the result."""
        if self.asked.kind != "values":
            raise _misplaced("edit_range", "for_values", "all_edits() or latest_edits()")
        return self._asking(dataclasses.replace(self.asked, edits=EVERYTHING), on_edits=True)

    def from_start(self) -> "RangeQuery":
        """The range begins before the first event."""
        return self._anchored(Point("start"))

    def from_(self, anchor: int | datetime) -> "RangeQuery":
        """The range begins at a sequence or a time, inclusive."""
        return self._anchored(_absolute(anchor))

    def from_last(self, amount: int | timedelta) -> "RangeQuery":
        """The range begins so many events before the end, or so long before the last event."""
        return self._anchored(_amount("last", amount))

    def to(self, end: int | datetime) -> "RangeQuery":
        """The range ends at a sequence or a time, inclusive."""
        return self._spanning(_absolute(end))

    def to_start(self) -> "RangeQuery":
        """The range ends before the first event."""
        return self._spanning(Point("start"))

    def until_last(self, amount: int | timedelta) -> "RangeQuery":
        """The range leaves off the last events, or the time before the last event."""
        return self._spanning(_amount("last", amount))

    def next(self, amount: int | timedelta) -> "RangeQuery":
        """The range ends so many events, or so long, after its anchor."""
        return self._spanning(_amount("next", amount))

    def previous(self, amount: int | timedelta) -> "RangeQuery":
        """The range ends so many events, or so long, before its anchor."""
        return self._spanning(_amount("previous", amount))

    def limit(self, count: int) -> "RangeQuery":
        """At most `count` events: those with the highest sequences."""
        count = _whole(count)
        if count < 0:
            raise InvalidQuery(
                f"limit {count} is negative; accepted: 0 or more; next step: correct it"
            )
        asked = dataclasses.replace(self.asked, limit=min(count, MAX))
        return dataclasses.replace(self, asked=asked)

    def select_from(self, series: str) -> "QueryResult":
        """Carries the query out on one series; an unknown one is empty.

        Raises:
            InvalidQuery: a relative time, and the anchor has no timestamp.
        """
        return self.answer(self.asked, series)

    def _edit_operator(self, name: str, kind: str) -> "RangeQuery":
        if self.asked.kind == "values":
            raise _misplaced(name, "for_edits", "edit_range()")
        asked = dataclasses.replace(self.asked, kind=kind, edits=EVERYTHING)
        return self._asking(asked, on_edits=True)

    def _asking(self, asked: Query, *, on_edits: bool = False) -> "RangeQuery":
        return dataclasses.replace(self, asked=asked, on_edits=on_edits)

    def _anchored(self, anchor: Point) -> "RangeQuery":
        return self._ranging(dataclasses.replace(self._range, anchor=anchor))

    def _spanning(self, span: Point) -> "RangeQuery":
        return self._ranging(dataclasses.replace(self._range, span=span))

    @property
    def _range(self) -> Range:
        return self.asked.edits if self.on_edits else self.asked.view

    def _ranging(self, wanted: Range) -> "RangeQuery":
        if self.on_edits:
            return dataclasses.replace(self, asked=dataclasses.replace(self.asked, edits=wanted))
        return dataclasses.replace(self, asked=dataclasses.replace(self.asked, view=wanted))


def _misplaced(step: str, after: str, instead: str) -> InvalidQuery:
    return InvalidQuery(
        f"{step}() belongs to queries that begin with {after}(); accepted here: {instead}; "
        f"next step: call {after}() first"
    )


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidQuery(f"{value!r} is no whole number; accepted: an int; next step: correct it")
    return int(value)


def _absolute(end: int | datetime) -> Point:
    if isinstance(end, datetime):
        return Point("time", instant_us(end))
    return Point("sequence", _whole(end))


def _amount(word: str, amount: int | timedelta) -> Point:
    if isinstance(amount, timedelta):
        return Point(f"{word}_us", span_us(amount))
    return Point(f"{word}_count", _whole(amount))
