"""Ask for buckets and gaps instead of events (semantics 32).

query = series.range_query().from_last(timedelta(days=1)).every("1 hour")
query.aggregate(celsius="mean", hottest=("celsius", "max")).fill("previous").select_from("a")
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from pyspark_timestream.core.instants import parse_duration, timedelta_to_us
from pyspark_timestream.errors import show_value
from pyspark_tseries.chart.figure import Shape
from pyspark_tseries.client.chart import MAX_SERIES, Chart, make_chart
from pyspark_tseries.client.results import (
    TableResult,
    format_span,
    is_same_column,
    render_html,
)
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.buckets import Buckets, parse_buckets
from pyspark_tseries.model.downsampling import Downsampling, find_bands, plan_downsampling
from pyspark_tseries.model.ranges import Query
from pyspark_tseries.model.series_choice import parse_choice
from pyspark_tseries.read.downsample import check_values
from pyspark_tseries.read.view import View


@dataclass(frozen=True, slots=True)
class BucketQuery:
    """An immutable query by buckets; queries that ask the same are equal.

    Attributes:
        asked: the query of the events.
        buckets: the buckets.
        named: the aggregates, by the names of the result's columns.
        tag: the value column to group by; None for the series.
        filling: what new rows hold.
        is_filled: True if missing buckets get rows.
        open_view: the function that gives the commit to be asked.
    """

    asked: Query
    buckets: Buckets
    named: Mapping[str, Any] = field(default_factory=dict)
    tag: str | None = None
    filling: Any = None
    is_filled: bool = False
    open_view: Callable[[], View] = field(kw_only=True, compare=False, repr=False)

    def aggregate(self, **named: Any) -> "BucketQuery":
        """Name the columns of the result and what each of them is.

        Later calls add columns. Nulls are not counted, and an aggregate of no values is null.

        Args:
            named: `celsius="mean"` is the mean of column `celsius`; `hottest=("celsius", "max")`
                has another name; `p95=("celsius", 0.95)` is a quantile; `n=("*", "count")` is the
                number of events. The aggregates are `mean`, `min`, `max`, `sum`, `count`, `first`,
                `last`, `median` and `time_weighted_mean`.
        """
        return dataclasses.replace(self, named={**self.named, **named})

    def by(self, tag: str) -> "BucketQuery":
        """Group by the values of a column in place of the series; a null is a value, too.

        Memory holds the buckets of all values at once.
        """
        return dataclasses.replace(self, tag=tag)

    def fill(self, value: Any = "null") -> "BucketQuery":
        """Add a row for each bucket without an event, from the first to the last with one.

        Where the range begins or ends at a time, the rows do, too. A series without an event in
        the range has no row. The count of a new row is 0.

        Args:
            value: what the aggregates of a new row are: `null`; `previous`, those of the row
                before; `linear`, on the line between the nearest rows with a value; or a value.
        """
        return dataclasses.replace(self, filling=value, is_filled=True)

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
        files, however long a series is. A median, a quantile and a time-weighted mean also hold the
        values that they are of, and a query that counts events, or has a `limit` or an edit range,
        whole series. All batches are of the commit at which this was called.

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
        return self.open_view().downsample(self.asked, choice, self._plan)

    def _plan(self, schema: pa.Schema) -> Downsampling:
        return plan_downsampling(
            schema,
            self.buckets,
            self.named,
            self.tag,
            fill=self.filling,
            is_filled=self.is_filled,
        )


def begin_buckets(
    asked: Query,
    columns: tuple[str, ...] | None,
    open_view: Callable[[], View],
    width: str | timedelta,
    timezone: str | None,
    origin: datetime | None,
) -> BucketQuery:
    """Return a query by buckets of the events of `asked`.

    Raises:
        InvalidQuery: as `parse_buckets`; the query is not one of values, or has chosen columns.
    """
    check_values(asked, "buckets")
    if columns is not None:
        raise InvalidQuery(
            f"columns{columns!r} belongs to queries of events",
            "aggregate(), which names the columns of buckets",
            "leave columns() out",
        )
    return BucketQuery(asked, parse_buckets(width, timezone, origin), open_view=open_view)


@dataclass(frozen=True, slots=True)
class GapQuery:
    """An immutable query for gaps.

    Attributes:
        asked: the query of the events.
        longer_than_us: the longest distance that is no gap, in microseconds.
        open_view: the function that gives the commit to be asked.
    """

    asked: Query
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
        return self.open_view().gaps(self.asked, choice, self.longer_than_us)


def begin_gaps(
    asked: Query, open_view: Callable[[], View], longer_than: str | timedelta
) -> GapQuery:
    """Return a query for the gaps between the events of `asked`.

    Raises:
        InvalidQuery: `longer_than` is no duration, or is negative; the query is not one of values.
    """
    check_values(asked, "gaps")
    try:
        if isinstance(longer_than, timedelta):
            us = timedelta_to_us(longer_than, InvalidQuery)
        else:
            us = parse_duration(longer_than)
    except (ValueError, AttributeError):  # What has no `strip` is not a text.
        us = -1
    if us < 0:
        raise InvalidQuery(
            f"longer_than {show_value(longer_than)} is not the length of a gap",
            "a duration of 0 or more, such as '5 minutes' or a timedelta",
            "correct it",
        )
    return GapQuery(asked, us, open_view)


@dataclass(frozen=True, eq=False)
class BucketResult(TableResult):
    """The result of a query by buckets.

    Attributes:
        table: `series`, or the tag's column; `timestamp`, the start of the bucket; and the
            aggregates. It is sorted by the first two.
        query: the query that was asked.
    """

    query: BucketQuery

    def __eq__(self, other: object) -> bool:
        """Return True if columns and rows are equal; a NaN equals a NaN."""
        if not isinstance(other, BucketResult):
            return NotImplemented
        same = self.table.schema == other.table.schema
        return same and all(map(is_same_column, self.table.columns, other.table.columns))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        facts = [f"{len(self):,} bucket{'' if len(self) == 1 else 's'}"]
        if len(self):
            groups = len(self.table.column(0).unique())
            facts.append(f"{groups:,} of '{self.table.column_names[0]}'")
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
        """Return a chart, in which a value lasts as long as its bucket; a missing bucket is a gap.

        Where both `min` and `max` of a column are there, they are an area around its `mean`, or
        another aggregate of the column.

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
        names = self.table.column_names
        bands = find_bands(self.query.named)
        buckets = self.query.buckets
        return Shape(names[0], tuple(names[2:]), buckets.ends, bands, zone=buckets.zone)

    def _repr_html_(self) -> str:
        return render_html(self.table, len(self), self._shape, "bucket")
