"""Range queries built step by step, as in Diffusion; every step returns a new query.

    series.range_query().from_last(timedelta(hours=1)).select_from("a")
    series.range_query().for_edits().from_(3).to(5).latest_edits().from_last(10)

The methods that name ends act on the view range; after `edit_range()`, `all_edits()` or
`latest_edits()` on the edit range.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

from pyspark_tseries.client.arguments import is_integer
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.query import (
    FULL_RANGE,
    NO_LIMIT,
    Point,
    Query,
    Range,
    datetime_to_us,
    timedelta_to_us,
)

if TYPE_CHECKING:
    from pyspark_tseries.client.results import QueryResult

__all__ = ["RangeQuery"]


def _refuse_unbound(query: "RangeQuery", series: str) -> "QueryResult":
    raise InvalidQuery(
        "this query belongs to no store",
        "TimeSeries.range_query()",
        "begin with the range_query() of an open store",
    )


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """An immutable query; queries that ask the same are equal.

    Attributes:
        asked: the query itself.
        on_edits: the next end belongs to the edit range.
        wanted: the columns of the result, in their order; None for all.
        answer: the function that runs the query.
    """

    asked: Query = field(default_factory=Query)
    on_edits: bool = field(default=False, compare=False)
    wanted: tuple[str, ...] | None = None
    answer: Callable[["RangeQuery", str], "QueryResult"] = field(
        default=_refuse_unbound, compare=False, repr=False
    )

    def __enter__(self) -> Self:
        """The query itself: it holds nothing open, so that there is nothing to close."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the query as it is."""

    def for_values(self) -> "RangeQuery":
        """Ask for originals, each replaced by its latest edit; reset the ranges."""
        return self._with_query(Query("values", limit=self.asked.limit))

    def for_edits(self) -> "RangeQuery":
        """Ask for originals and all their edits; reset the ranges."""
        return self._with_query(Query("allEdits", limit=self.asked.limit))

    def all_edits(self) -> "RangeQuery":
        """Ask for all edits; reset the edit range, to which the next ends belong."""
        return self._begin_edit_range("all_edits", "allEdits")

    def latest_edits(self) -> "RangeQuery":
        """Ask for the latest edit of each original; reset the edit range."""
        return self._begin_edit_range("latest_edits", "latestEdits")

    def edit_range(self) -> "RangeQuery":
        """Begin the edit range of a value query: only events inside it are in the result."""
        if self.asked.kind != "values":
            raise _misplaced_error("edit_range", "for_values", "all_edits() or latest_edits()")
        return self._with_query(dataclasses.replace(self.asked, edits=FULL_RANGE), on_edits=True)

    def from_start(self) -> "RangeQuery":
        """The range begins before the first event."""
        return self._with_anchor(Point("start"))

    def from_(self, anchor: int | datetime) -> "RangeQuery":
        """The range begins at a sequence or a time, inclusive."""
        return self._with_anchor(_absolute_point(anchor))

    def from_last(self, amount: int | timedelta) -> "RangeQuery":
        """The range begins `amount` events before the end, or that time before the last event.

        A time counts from the last original in the view range, from any event in the edit range.
        """
        return self._with_anchor(_relative_point("last", amount))

    def to(self, end: int | datetime) -> "RangeQuery":
        """The range ends at a sequence or a time, inclusive."""
        return self._with_span(_absolute_point(end))

    def to_start(self) -> "RangeQuery":
        """The range ends before the first event."""
        return self._with_span(Point("start"))

    def until_last(self, amount: int | timedelta) -> "RangeQuery":
        """The range leaves out the last `amount` events, or that time before the last event."""
        return self._with_span(_relative_point("last", amount))

    def next(self, amount: int | timedelta) -> "RangeQuery":
        """The range ends `amount` events, or that time, after its anchor."""
        return self._with_span(_relative_point("next", amount))

    def previous(self, amount: int | timedelta) -> "RangeQuery":
        """The range ends `amount` events, or that time, before its anchor."""
        return self._with_span(_relative_point("previous", amount))

    def limit(self, count: int) -> "RangeQuery":
        """At most `count` events: the last ones of the query's order."""
        count = _check_whole(count)
        if count < 0:
            raise InvalidQuery(f"limit {count} is negative", "0 or more", "correct it")
        asked = dataclasses.replace(self.asked, limit=min(count, NO_LIMIT))
        return dataclasses.replace(self, asked=asked)

    def columns(self, *names: str) -> "RangeQuery":
        """Read only these columns, in this order; without names all of them.

        `QueryResult.events` and `merge` need the metadata; the table and the frames need none.

        Raises:
            InvalidQuery: a column is named twice, or a name is not a text.
        """
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise InvalidQuery(
                f"columns{names!r} are not distinct names",
                "each column once",
                "name the columns one by one, such as columns('timestamp', 'celsius')",
            )
        return dataclasses.replace(self, wanted=names or None)

    def select_from(self, series: str) -> "QueryResult":
        """Run the query on one series; an unknown series is empty.

        Raises:
            InvalidQuery: the store lacks one of `columns`; or a relative time is asked for, and
                the anchor has no timestamp.
        """
        return self.answer(self, series)

    def _begin_edit_range(self, name: str, kind: str) -> "RangeQuery":
        if self.asked.kind == "values":
            raise _misplaced_error(name, "for_edits", "edit_range()")
        asked = dataclasses.replace(self.asked, kind=kind, edits=FULL_RANGE)
        return self._with_query(asked, on_edits=True)

    def _with_query(self, asked: Query, *, on_edits: bool = False) -> "RangeQuery":
        return dataclasses.replace(self, asked=asked, on_edits=on_edits)

    def _with_anchor(self, anchor: Point) -> "RangeQuery":
        return self._with_range(dataclasses.replace(self._range, anchor=anchor))

    def _with_span(self, span: Point) -> "RangeQuery":
        return self._with_range(dataclasses.replace(self._range, span=span))

    @property
    def _range(self) -> Range:
        return self.asked.edits if self.on_edits else self.asked.view

    def _with_range(self, wanted: Range) -> "RangeQuery":
        if self.on_edits:
            return dataclasses.replace(self, asked=dataclasses.replace(self.asked, edits=wanted))
        return dataclasses.replace(self, asked=dataclasses.replace(self.asked, view=wanted))


def _misplaced_error(step: str, after: str, instead: str) -> InvalidQuery:
    return InvalidQuery(
        f"{step}() belongs to queries that begin with {after}(); accepted here: {instead}",
        next_step=f"call {after}() first",
    )


def _check_whole(value: object) -> int:
    if not is_integer(value):
        raise InvalidQuery(f"{value!r} is not a whole number", "an int", "correct it")
    return int(value)


def _absolute_point(end: int | datetime) -> Point:
    if isinstance(end, datetime):
        return Point("time", datetime_to_us(end))
    return Point("sequence", _check_whole(end))


def _relative_point(word: str, amount: int | timedelta) -> Point:
    if isinstance(amount, timedelta):
        return Point(f"{word}_us", timedelta_to_us(amount))
    return Point(f"{word}_count", _check_whole(amount))
