"""Build range queries step by step, as in Diffusion, and check the client's arguments.

    series.range_query().from_last(timedelta(hours=1)).select_from("a")
    series.range_query().from_last(1).select_from(prefix="room/")
    series.range_query().for_edits().from_(3).to(5).latest_edits().from_last(10)

A method that names an end acts on the view range, or on the edit range after `edit_range()`,
`all_edits()` or `latest_edits()`.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

import pyarrow as pa

from pyspark_tseries.client.bucket_query import (
    BucketQuery,
    GapQuery,
    begin_buckets,
    begin_gaps,
)
from pyspark_tseries.client.results import QueryResult
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery
from pyspark_tseries.model.columns import RESERVED_NAMES, new_value_field
from pyspark_tseries.model.ranges import (
    FULL_RANGE,
    NO_LIMIT,
    Point,
    Query,
    Range,
    point_at,
    point_off,
    to_whole,
)
from pyspark_tseries.model.series_choice import parse_choice
from pyspark_tseries.read.view import View


def parse_schema(schema: Any) -> pa.Schema:
    """Return the given value columns as a schema; raise IncompatibleValue for None."""
    if schema is None:
        raise IncompatibleValue(
            "None does not name value columns",
            "a pyarrow.Schema, or a mapping of names to types, {} for events without a value",
            "name the columns",
        )
    return pa.schema(schema)


def new_value_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the value columns of a new store; raise IncompatibleValue for a wrong name."""
    names = [column.name.lower() for column in schema]
    for column in schema:
        name = column.name.lower()
        is_cti = name == "cti" and pa.types.is_timestamp(column.type)
        if name in (*RESERVED_NAMES, "edit_of") or is_cti:
            raise IncompatibleValue(
                f"value column '{column.name}' is named like what an event has anyway",
                "any other name",
                "rename it, or leave it out",
            )
        if names.count(name) > 1:
            raise IncompatibleValue(
                f"two value columns have the name '{column.name}'",
                "names that differ in more than case",
                "rename one of them",
            )
    return [new_value_field(column) for column in schema]


def _refuse_unbound() -> View:
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
        on_edits: True if the next end belongs to the edit range.
        wanted: the columns of the result, in their order; None for all.
        open_view: the function that gives the commit to be asked.
    """

    asked: Query = field(default_factory=Query)
    on_edits: bool = field(default=False, compare=False)
    wanted: tuple[str, ...] | None = None
    open_view: Callable[[], View] = field(default=_refuse_unbound, compare=False, repr=False)

    def __enter__(self) -> Self:
        """Return the query itself: it holds nothing open, so there is nothing to close."""
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
        """Ask for all edits; reset the edit range, which the next ends belong to."""
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
        """Begin the range before the first event."""
        return self._with_anchor(Point("start"))

    def from_(self, anchor: int | datetime) -> "RangeQuery":
        """Begin the range at a sequence or a time, inclusive."""
        return self._with_anchor(point_at(anchor))

    def from_last(self, amount: int | timedelta) -> "RangeQuery":
        """Begin the range `amount` events before the end, or that time before the last event.

        A time counts from the last original in the view range, from any event in the edit range.
        """
        return self._with_anchor(point_off("last", amount))

    def to(self, end: int | datetime) -> "RangeQuery":
        """End the range at a sequence or a time, inclusive."""
        return self._with_span(point_at(end))

    def to_start(self) -> "RangeQuery":
        """End the range before the first event."""
        return self._with_span(Point("start"))

    def until_last(self, amount: int | timedelta) -> "RangeQuery":
        """Leave out the last `amount` events, or that time before the last event."""
        return self._with_span(point_off("last", amount))

    def next(self, amount: int | timedelta) -> "RangeQuery":
        """End the range `amount` events, or that time, after its anchor."""
        return self._with_span(point_off("next", amount))

    def previous(self, amount: int | timedelta) -> "RangeQuery":
        """End the range `amount` events, or that time, before its anchor."""
        return self._with_span(point_off("previous", amount))

    def limit(self, count: int) -> "RangeQuery":
        """Keep at most `count` events: the last ones of the query's order."""
        asked = dataclasses.replace(self.asked, limit=min(to_whole(count), NO_LIMIT))
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

    def select_from(
        self,
        series: str | Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
    ) -> QueryResult:
        """Run the query on one series, on several, or on all; an unknown series is empty.

        The whole result is of one commit. Series come in the order of their names; `limit` counts
        in each of them.

        Args:
            series: the name of a series, or of several; None: all that `prefix` or `pattern` picks.
            prefix: how the names of the series begin.
            pattern: what they look like: `*` is any text, `?` one letter, `[...]` one of some.

        Raises:
            InvalidQuery: the store lacks one of `columns`, the query asks for a duration from an
                anchor that has no timestamp, or series are chosen in two ways.
            PermissionDenied: the author may not ask this.
        """
        choice = parse_choice(series, prefix, pattern)
        found = self.open_view().select(self.asked, choice, self.wanted)
        return QueryResult(found.table, found.selected, self.asked.kind)

    def stream_from(
        self,
        series: str | Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
    ) -> pa.RecordBatchReader:
        """Run the query as `select_from` does, and return the rows as a stream of record batches.

        Memory stays bounded, however many series there are, and whatever the length of a series:
        a few hundred megabytes, and the edits of what is read at a time. A series is held as a
        whole where the query counts events, has a `limit`, or asks for overridden values. The whole
        stream is of one commit; read it before maintenance removes replaced files, an hour later.

        Args:
            series: the name of a series, or of several; None: all that `prefix` or `pattern` picks.
            prefix: how the names of the series begin.
            pattern: what they look like: `*` is any text, `?` one letter, `[...]` one of some.

        Raises:
            InvalidQuery, PermissionDenied: as `select_from` does, some of them with the rows.
        """
        choice = parse_choice(series, prefix, pattern)
        schema, batches = self.open_view().stream(self.asked, choice, self.wanted)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def every(
        self,
        width: str | timedelta,
        timezone: str | None = None,
        origin: datetime | None = None,
    ) -> BucketQuery:
        """Ask for buckets of time instead of events; `aggregate` says what of each.

        Args:
            width: a duration such as `15 minutes` or `1 day`, whole months, quarters or years such
                as `1 month`, or a timedelta.
            timezone: an IANA name such as `Europe/Berlin`: buckets begin by the clock there, also
                on the two odd days of a year; None: by UTC.
            origin: an aware datetime at which a bucket begins; None: weeks begin on Mondays, and
                all others where a clock, or a calendar, would.

        Raises:
            InvalidQuery: a width, zone or origin that buckets cannot have, or a query that is not
                one of values.
        """
        return begin_buckets(self.asked, self.wanted, self.open_view, width, timezone, origin)

    def gaps(self, longer_than: str | timedelta) -> GapQuery:
        """Ask where neighbouring originals of a series are further apart than a duration.

        Raises:
            InvalidQuery: no duration, or a query that is not one of values.
        """
        return begin_gaps(self.asked, self.open_view, longer_than)

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
