"""Ask a store questions, about its last commit or an earlier one, and build queries step by step.

Queries are built as in the time series of Diffusion, a server by DiffusionData. Each method checks
its arguments.

    series.range_query().from_last(timedelta(hours=1)).select_from("a")
    series.range_query().from_last(1).select_from(prefix="room/")
    series.range_query().for_edits().from_(3).to(5).latest_edits().from_last(10)

A method that names an end acts on the view range, or on the edit range after `edit_range()`,
`all_edits()` or `latest_edits()`. A query may ask for buckets and gaps instead of events (semantics
32).

    query = series.range_query().from_last(timedelta(days=1)).every("1 hour")
    query.aggregate(celsius="mean", hottest=("celsius", "max")).fill("previous").select_from("a")
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from pyspark_timestream.core.instants import datetime_to_us
from pyspark_timestream.errors import show_value
from pyspark_timestream.report import format_count
from pyspark_tseries.chart.figure import Shape
from pyspark_tseries.client import sql
from pyspark_tseries.client.results import (
    MAX_SERIES,
    Chart,
    QueryResult,
    TableResult,
    format_span,
    is_same_column,
    make_chart,
    render_html,
)
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.buckets import Buckets, parse_buckets, parse_length
from pyspark_tseries.model.downsampling import Downsampling, find_bands, plan_downsampling
from pyspark_tseries.model.ranges import (
    FULL_RANGE,
    NO_LIMIT,
    Point,
    Query,
    Range,
    parse_choice,
    parse_name,
    point_at,
    point_off,
    to_whole,
)
from pyspark_tseries.read.view import View

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class BucketQuery:
    """An immutable query by buckets; queries that ask the same are equal.

    Attributes:
        query: the query of the events.
        buckets: the buckets.
        aggregates: the aggregates, by the names of the result's columns.
        group: the column to group by, `series` or a value column; None: all events are one group.
        fill_value: what new rows hold.
        is_filled: True if missing buckets get rows.
        open_view: the function that gives the commit to be asked.
    """

    query: Query
    buckets: Buckets
    aggregates: Mapping[str, Any] = field(default_factory=dict, hash=False)
    group: str | None = "series"
    fill_value: Any = field(default=None, hash=False)
    is_filled: bool = False
    open_view: Callable[[], View] = field(kw_only=True, compare=False, repr=False)

    def aggregate(self, /, **aggregates: Any) -> "BucketQuery":
        """Name the columns of the result and their aggregates.

        Later calls add columns. Nulls are not counted, and an aggregate of no values is null.

        Args:
            aggregates: `celsius="mean"` is the mean of the column so named; `hottest=("celsius",
                "max")` has another name; `p95=("celsius", 0.95)` is a quantile; `n=("*", "count")`
                is the number of events. The functions are `mean`, `min`, `max`, `sum`, `count`,
                `first`, `last`, `median` and `time_weighted_mean`.
        """
        return dataclasses.replace(self, aggregates={**self.aggregates, **aggregates})

    def by(self, tag: str | None = None) -> "BucketQuery":
        """Group by the values of a column instead of the series; a null is also a value.

        Memory holds the buckets of all values at once.

        Args:
            tag: the value column, or `series`, as without this call; None: a bucket has one row,
                for all series together, and the result no column of a group.
        """
        return dataclasses.replace(self, group=tag)

    def fill(self, value: Any = "null") -> "BucketQuery":
        """Add a row for each bucket without an event, from the first to the last with one.

        If the range begins or ends at a time, so do the rows. A series without an event in the
        range has no row. The count of a new row is 0.

        Args:
            value: the aggregates of a new row: `null`; `previous`, those of the row before;
                `linear`, on the line between the nearest rows with a value; or a value.
        """
        return dataclasses.replace(self, fill_value=value, is_filled=True)

    def select_from(
        self,
        series: str | Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
    ) -> "BucketResult":
        """Run the query on one series, on several, or on all; see `RangeQuery.select_from`.

        Raises:
            InvalidQuery: no aggregate is named; a column is unknown, or does not have such an
                aggregate or fill; a sum does not fit 64 bits; a filled series would have more than
                ten million buckets; or the query is not one of values.
            PermissionDenied: the author may not ask this.
        """
        fields, rows = self._ask(series, prefix, pattern)
        return BucketResult(pa.concat_tables([fields.empty_table(), *rows]), self)

    def stream_from(
        self,
        series: str | Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows of `select_from` in batches, the buckets of some series at a time.

        The arguments are as for `select_from`. Memory holds these buckets and a few pieces of
        files, however long a series is. Medians, quantiles and time-weighted means also keep their
        values in memory; a query that counts events, or has a `limit` or an edit range, keeps whole
        series. All batches are of the commit that was the last one when this was called.

        Raises:
            InvalidQuery, PermissionDenied: as `select_from`; those about values come with a batch.
        """
        fields, rows = self._ask(series, prefix, pattern)
        batches = (batch for table in rows for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(fields, batches)

    def _ask(
        self, series: Any, prefix: str | None, pattern: str | None
    ) -> tuple[pa.Schema, Iterator[pa.Table]]:
        choice = parse_choice(series, prefix, pattern)
        return self.open_view().downsample(self.query, choice, self._plan)

    def _plan(self, schema: pa.Schema) -> Downsampling:
        return plan_downsampling(
            schema,
            self.buckets,
            self.aggregates,
            self.group,
            fill=self.fill_value,
            is_filled=self.is_filled,
        )


@dataclass(frozen=True, slots=True)
class GapQuery:
    """An immutable query for gaps.

    Attributes:
        query: the query of the events.
        longer_than_us: the longest distance that is not a gap, in microseconds.
        open_view: the function that gives the commit to be asked.
    """

    query: Query
    longer_than_us: int
    open_view: Callable[[], View] = field(compare=False, repr=False)

    def select_from(
        self,
        series: str | Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
    ) -> pa.Table:
        """Return `series`, `start`, `end` and `length` of each gap, by series and time.

        `start` and `end` are the timestamps of the events before and after it, in UTC. Series are
        chosen as in `RangeQuery.select_from`; the arguments are as for that.

        Raises:
            InvalidQuery: the query is not one of values, or series are chosen in two ways.
            PermissionDenied: the author may not ask this.
        """
        choice = parse_choice(series, prefix, pattern)
        return self.open_view().gaps(self.query, choice, self.longer_than_us)


@dataclass(frozen=True, eq=False)
class BucketResult(TableResult):
    """The result of a query by buckets.

    Attributes:
        table: `series`, the tag's column, or neither if all series are together; `timestamp`, the
            start of the bucket; and the aggregates. It is sorted by group and time.
        query: the query that was asked.
    """

    query: BucketQuery

    def __eq__(self, other: object) -> bool:
        """Return whether columns and rows are equal; a NaN equals a NaN."""
        if not isinstance(other, BucketResult):
            return NotImplemented
        same = self.table.schema == other.table.schema
        return same and all(map(is_same_column, self.table.columns, other.table.columns))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        facts = [format_count(len(self), "bucket")]
        if len(self):
            if self.query.group is not None:
                groups = len(self.table[self.query.group].unique())
                facts.append(f"{groups:,} of '{self.query.group}'")
            us = to_int64(self.table["timestamp"])
            facts.append(format_span(int(us.min()), int(us.max())))
        return f"BucketResult({', '.join(facts)})"

    def chart(
        self,
        columns: str | Iterable[str] | None = None,
        *,
        max_series: int = MAX_SERIES,
        timezone: str | None = None,
        units: Mapping[str, str] | None = None,
        title: str | None = None,
        width: int = 720,
        height: int = 160,
        theme: str = "auto",
    ) -> Chart:
        """Return a chart; a value lasts until its bucket ends, and a missing bucket is a gap.

        If the query has both `min` and `max` of a column, they are drawn as an area around its
        `mean`, or another aggregate of the column.

        Args:
            columns: the aggregates; None: the first four that can be drawn.
            max_series: how many series are drawn, by the order of the result.
            timezone: an IANA name such as `Europe/Berlin`, or `local`; None: that of the buckets.
            units: the units of columns; by default those of the store, see `TimeSeries.create`.
            title: the title; None: the name of the series, if there is one.
            width: the width in pixels.
            height: the height of each panel of numbers in pixels.
            theme: `light`, `dark`, or `auto`, which follows the page, or the reader's settings.

        Raises:
            InvalidQuery: the result lacks a column, a column has a type that cannot be drawn, or an
                argument is not valid.
        """
        return make_chart(
            self.table,
            self._shape,
            columns=columns,
            max_series=max_series,
            timezone=timezone,
            units=units,
            title=title,
            width=width,
            height=height,
            theme=theme,
        )

    @property
    def _shape(self) -> Shape:
        group, buckets = self.query.group, self.query.buckets
        names = [name for name in self.table.column_names if name not in (group, "timestamp")]
        bands = find_bands(self.query.aggregates)
        return Shape(group, tuple(names), buckets.ends, bands, zone=buckets.zone)

    def _repr_html_(self) -> str:
        return render_html(self.table, len(self), self._shape, "bucket")


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
        query: the query itself.
        on_edits: True if the next end belongs to the edit range.
        column_names: the columns of the result, in their order; None for all.
        open_view: the function that gives the commit to be asked.
    """

    query: Query = field(default_factory=Query)
    on_edits: bool = field(default=False, compare=False)
    column_names: tuple[str, ...] | None = None
    open_view: Callable[[], View] = field(default=_refuse_unbound, compare=False, repr=False)

    def __enter__(self) -> Self:
        """Return the query itself: it holds nothing open, so there is nothing to close."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the query as it is."""

    def for_values(self) -> "RangeQuery":
        """Ask for originals, each replaced by its latest edit; reset the ranges."""
        return self._with_query(Query("values", limit=self.query.limit))

    def for_edits(self) -> "RangeQuery":
        """Ask for originals and all their edits; reset the ranges."""
        return self._with_query(Query("allEdits", limit=self.query.limit))

    def all_edits(self) -> "RangeQuery":
        """Ask for all edits; reset the edit range, which the next ends belong to."""
        return self._begin_edit_range("all_edits", "allEdits")

    def latest_edits(self) -> "RangeQuery":
        """Ask for the latest edit of each original; reset the edit range."""
        return self._begin_edit_range("latest_edits", "latestEdits")

    def edit_range(self) -> "RangeQuery":
        """Begin the edit range of a value query: only events inside it are in the result."""
        if self.query.kind != "values":
            raise _misplaced_error("edit_range", "for_values", "all_edits() or latest_edits()")
        return self._with_query(dataclasses.replace(self.query, edits=FULL_RANGE), on_edits=True)

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
        query = dataclasses.replace(self.query, limit=min(to_whole(count), NO_LIMIT))
        return dataclasses.replace(self, query=query)

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
        return dataclasses.replace(self, column_names=names or None)

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
        answer = self.open_view().select(self.query, choice, self.column_names)
        return QueryResult(answer.table, answer.selected, self.query.kind)

    def stream_from(
        self,
        series: str | Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
    ) -> pa.RecordBatchReader:
        """Run the query as `select_from` does, and return the rows as a stream of record batches.

        Memory does not grow with the number of series or their length: it takes a few hundred
        megabytes, and the edits of the rows read at a time. A series is held as a whole if the
        query counts events, has a `limit`, or asks for overridden values. The whole stream is of
        one commit; read it before maintenance removes replaced files, an hour later. The arguments
        are as for `select_from`.

        Raises:
            InvalidQuery, PermissionDenied: as `select_from` does, some of them with the rows.
        """
        choice = parse_choice(series, prefix, pattern)
        schema, batches = self.open_view().stream(self.query, choice, self.column_names)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def every(
        self, width: str | timedelta, timezone: str | None = None, origin: datetime | None = None
    ) -> BucketQuery:
        """Ask for buckets of time instead of events; `aggregate` names the columns.

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
        _check_values(self.query, "buckets")
        if self.column_names is not None:
            raise InvalidQuery(
                f"columns{self.column_names!r} belongs to queries of events",
                "aggregate(), which names the columns of buckets",
                "leave columns() out",
            )
        buckets = parse_buckets(width, timezone, origin)
        return BucketQuery(self.query, buckets, open_view=self.open_view)

    def gaps(self, longer_than: str | timedelta) -> GapQuery:
        """Ask where neighbouring originals of a series are further apart than a duration.

        Raises:
            InvalidQuery: no duration, a negative one, or a query that is not one of values.
        """
        _check_values(self.query, "gaps")
        us = parse_length(longer_than)
        if us is None:
            raise InvalidQuery(
                f"longer_than {show_value(longer_than)} is not the length of a gap",
                "a duration of 0 or more, such as '5 minutes' or a timedelta",
                "correct it",
            )
        return GapQuery(self.query, us, self.open_view)

    def _begin_edit_range(self, name: str, kind: str) -> "RangeQuery":
        if self.query.kind == "values":
            raise _misplaced_error(name, "for_edits", "edit_range()")
        query = dataclasses.replace(self.query, kind=kind, edits=FULL_RANGE)
        return self._with_query(query, on_edits=True)

    def _with_query(self, query: Query, *, on_edits: bool = False) -> "RangeQuery":
        return dataclasses.replace(self, query=query, on_edits=on_edits)

    def _with_anchor(self, anchor: Point) -> "RangeQuery":
        return self._with_range(dataclasses.replace(self._range, anchor=anchor))

    def _with_span(self, span: Point) -> "RangeQuery":
        return self._with_range(dataclasses.replace(self._range, span=span))

    @property
    def _range(self) -> Range:
        return self.query.edits if self.on_edits else self.query.view

    def _with_range(self, range_: Range) -> "RangeQuery":
        if self.on_edits:
            return dataclasses.replace(self, query=dataclasses.replace(self.query, edits=range_))
        return dataclasses.replace(self, query=dataclasses.replace(self.query, view=range_))


def _check_values(query: Query, what: str) -> None:
    """Refuse a query of edits, which has no buckets and gaps.

    Raises:
        InvalidQuery: the query is not one of `values`.
    """
    if query.kind != "values":
        raise InvalidQuery(
            f"a query of {query.kind} has no {what}",
            "queries of 'values': originals, each replaced by its latest edit",
            "begin with for_values(), which is the default",
        )


def _misplaced_error(step: str, after: str, instead: str) -> InvalidQuery:
    return InvalidQuery(
        f"{step}() belongs to queries that begin with {after}(); accepted here: {instead}",
        next_step=f"call {after}() first",
    )


class Questions(ABC):
    """The queries of an open store; each is answered from one commit."""

    @abstractmethod
    def _view(self) -> View:
        """Return the commit that answers a question asked now."""

    def range_query(self) -> RangeQuery:
        """Begin a query for all values; its methods narrow it step by step."""
        return RangeQuery(open_view=self._view)

    def latest(
        self,
        series: str | Iterable[str] | None = None,
        count: int = 1,
        at: datetime | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
        columns: Iterable[str] | None = None,
    ) -> QueryResult:
        """Return the newest events of series: originals in the retained range, edits merged in.

        A series without such an event has no row. An erased event has null values. The process
        keeps the events in memory (512 MB at most, of all stores), and the next question for these
        series reads only later commits.

        Args:
            series: the name of a series, or of several; None: all that `prefix` or `pattern` picks.
            count: how many events of each series, at least 1.
            at: an aware datetime; only events at or before it count. None: all.
            prefix: how the names of the series begin.
            pattern: what they look like: `*` is any text, `?` one letter, `[...]` one of some.
            columns: the columns of the result, in their order; None: all.

        Raises:
            InvalidQuery: the store lacks one of `columns`, `count` is below 1, `at` has no zone, or
                series are chosen in two ways.
            PermissionDenied: the author may not read.
        """
        choice = parse_choice(series, prefix, pattern)
        number = to_whole(count)
        if number < 1:
            raise InvalidQuery(f"count {number} is below 1", "1 or more", "correct it")
        at_us = None if at is None else datetime_to_us(at, InvalidQuery, "at")
        names = () if columns is None else columns
        is_one = isinstance(names, str) or not isinstance(names, Iterable)
        result_columns = RangeQuery().columns(*([names] if is_one else names)).column_names
        answer = self._view().latest(choice, number, at_us, result_columns)
        return QueryResult(answer.table, answer.selected)

    def series(self, *, prefix: str | None = None, pattern: str | None = None) -> pa.Table:
        """List the series that have events, sorted by name, without reading a file of events.

        Args:
            prefix: how the names of the series begin.
            pattern: what they look like: `*` is any text, `?` one letter, `[...]` one of some.

        Returns:
            A row for each series: `series`, its name; `events` and `edits`, how many originals and
            edits it ever got; `first`, the earliest timestamp of these originals; `newest`, that of
            the newest one that is not erased, null if all are. Times are in UTC. Counts and `first`
            are null where they are unknown: a rebuilt head does not know them if compaction has
            removed events of the series.

        Raises:
            InvalidQuery: both `prefix` and `pattern` are given, or one is not a text.
            PermissionDenied: the author may not read.
        """
        return self._view().list_series(parse_choice(None, prefix, pattern))

    def as_of(self, moment: datetime | int) -> "StoreAsOf":
        """Return the store as it was, to be asked the same questions.

        Args:
            moment: an aware datetime: the store at that time; or the number of a commit: the store
                right after it.

        Raises:
            InvalidQuery: events that were visible then may be gone, the commit was never made, or
                the datetime has no time zone.
            PermissionDenied: the author may not ask for the past (`query_obsolete`).
        """
        if isinstance(moment, datetime):
            return StoreAsOf(self._view().at_time(datetime_to_us(moment, InvalidQuery)))
        try:
            number = to_whole(moment)
        except InvalidQuery:
            raise InvalidQuery(
                f"{show_value(moment)} is neither a time nor the number of a commit",
                "an aware datetime, or an int",
                "convert it",
            ) from None
        return StoreAsOf(self._view().at_commit(number))

    def history(self, series: str, sequence: int) -> pa.Table:
        """Return an original and all its edits that are still stored, in the order of sequences.

        Args:
            series: the name of the series.
            sequence: the sequence of the original, or of one of its edits.

        Returns:
            A row for each: `series`, `sequence`, `timestamp`, `author`, the values,
            `original_sequence`, `original_timestamp` and `original_author`, `commit` and
            `commit_time`; and of an erased one, with null values, `erased_by`, `erased_at` and
            `erased_because`. Times are in UTC.

        Raises:
            NoSuchEvent: the event is not stored: it never was, or compaction has removed it.
            InvalidQuery: the series is not a text, or the sequence no whole number.
            PermissionDenied: the author may not ask for the past (`query_obsolete`).
        """
        return self._view().versions(parse_name(series), to_whole(sequence))

    def sql(self, statement: str, parameters: Any = None) -> "duckdb.DuckDBPyRelation":
        """Query in SQL through DuckDB, which reads the store's files; the views are of one commit.

        `events` has the current values of all series, as a query for values shows them;
        `all_events` every stored event as it was written, also outside the retained range; `series`
        a row for each series, as `series()`. `events` and `all_events` have no order. Columns,
        files and row groups that the statement does not need are not read.

        Args:
            statement: one read-only statement, such as SELECT, FROM, SUMMARIZE, EXPLAIN or,
                with DuckDB 2, PIVOT. Times are shown in UTC. It may name frames and tables of
                Arrow in variables of the caller.
            parameters: a sequence for `?` or `$1`, or a mapping for `$name`.

        Returns:
            A relation of DuckDB, with `to_arrow_table()`, `df()`, `pl()` and `fetchall()`. DuckDB
            runs it when its rows are asked for; it keeps showing its commit. The relations of a
            thread share a connection, so read one stream of rows to its end before the next.

        Raises:
            ModuleNotFoundError: DuckDB is not installed.
            InvalidQuery: the statement does more than read, or the parameters are not a sequence.
            PermissionDenied: the author may not ask this.
            duckdb.Error: DuckDB refuses the statement, or cannot run it.
        """
        return sql.ask(self._view(), statement, parameters)

    def connect(self) -> "duckdb.DuckDBPyConnection":
        """Return a DuckDB in memory with the views of `sql`, for a person's own work.

        It shows the commit of its opening until `refresh`. The views can only be read; own tables,
        views, settings and files are the caller's. Threads take a `cursor()` each; of a store in an
        object store, `refresh` gives the cursor the views.

        Raises:
            ModuleNotFoundError: DuckDB is not installed.
            PermissionDenied: the author may not read the store.
        """
        return sql.connect(self._view())

    def refresh(self, connection: "duckdb.DuckDBPyConnection") -> None:
        """Let the views of a connection of `connect`, or of any other DuckDB, show the last commit.

        Relations of the connection that have not run yet also show it.

        Raises:
            InvalidQuery: `connection` is not a connection.
            PermissionDenied: the author may not read the store.
            duckdb.Error: the connection is closed, is in a transaction, or has tables with the
                names of the views.
        """
        sql.create_views(connection, self._view())


@dataclasses.dataclass(frozen=True)
class StoreAsOf(Questions):
    """A store as it was at a time or after a commit; it never changes."""

    _past: View

    @property
    def commit(self) -> int:
        """The number of the last commit that counts; -1 if there was none yet."""
        return self._past.snapshot.metadata.commit

    def _view(self) -> View:
        return self._past

    def __repr__(self) -> str:
        return f"StoreAsOf('{self._past.snapshot.root}', commit {self.commit})"
