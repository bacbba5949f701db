"""The options of batch reads and of subscriptions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_timestream.connector.options import choice, option, text, whole_number
from pyspark_tseries.model.query import FULL_RANGE, NO_LIMIT, QUERY_KINDS, Point, Query, Range
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.options.values import (
    ANCHOR,
    COLUMNS,
    CTI,
    INITIAL,
    INSTANT,
    PATH,
    SERIES,
    SPAN,
    STARTS,
    location_with,
)
from pyspark_tseries.storage.location import Location, OptionPairs

__all__ = ["ReadOptions", "SubscribeOptions"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a batch read; None: all series, or the default end of a range."""

    path: str = option(
        "path",
        PATH,
        description="the store; `.load(path)`",
        effect="batch",
        help="name the store in .load(path)",
    )
    query: str = option(
        "query",
        choice(*QUERY_KINDS),
        "values",
        description=(
            "`values`: originals, each replaced by its latest edit, in the order of the originals "
            "and at their times (`edit_timestamp` is the edit's); "
            "`allEdits`: originals and all their edits, `latestEdits`: originals and the latest "
            "edit of each, both in the order of sequences"
        ),
        effect="batch",
    )
    series: tuple[str, ...] | None = option(
        "series",
        SERIES,
        None,
        description="one name, or a JSON list of names; none: all",
        effect="batch",
    )
    view_from: Point | None = option(
        "from",
        ANCHOR,
        None,
        description=(
            "where the view range, which originals, begins: `start`, `sequence N`, an ISO-8601 "
            "time, `last N`, `last DURATION`; none: `start`"
        ),
        effect="batch",
    )
    view_to: Point | None = option(
        "to",
        SPAN,
        None,
        description=(
            "where it ends, inclusive: the same, where `last` leaves off that much, or `next N`, "
            "`next DURATION`, `previous N`, `previous DURATION`; none: `last 0`"
        ),
        effect="batch",
    )
    edit_from: Point | None = option(
        "editFrom",
        ANCHOR,
        None,
        description=(
            "where the edit range begins, outside of which no event is in the result; none: `start`"
        ),
        effect="batch",
    )
    edit_to: Point | None = option(
        "editTo",
        SPAN,
        None,
        description="where it ends, inclusive; none: `last 0`",
        effect="batch",
    )
    limit: int | None = option(
        "limit",
        whole_number(),
        None,
        description=("at most this many events a series, the last of the query's order; none: all"),
        effect="batch",
    )
    columns: tuple[str, ...] | None = option(
        "columns",
        COLUMNS,
        None,
        description=(
            "names of columns, separated by commas, such as `timestamp, celsius`: only these are "
            "read, in this order; none: all"
        ),
        effect="batch",
    )
    as_of: int | None = option(
        "asOf",
        INSTANT,
        None,
        description=(
            "the store, its retained range included, as it was at that commit time (ISO-8601), "
            "while its rows exist; else an error names the oldest possible time; none: now"
        ),
        effect="batch",
    )
    principal: str | None = option(
        "principal",
        text,
        None,
        description=(
            "who reads, where the store has a policy; none: the OS user of the driver's Python "
            "worker"
        ),
        effect="batch",
    )
    storage: OptionPairs = field(default=(), repr=False)

    @property
    def location(self) -> Location:
        """The location of the store."""
        return location_with(self.path, self.storage)

    def to_query(self) -> Query:
        """The query that the options describe."""
        return Query(
            self.query,
            _range(self.view_from, self.view_to),
            _range(self.edit_from, self.edit_to),
            NO_LIMIT if self.limit is None else self.limit,
        )


def _range(anchor: Point | None, span: Point | None) -> Range:
    return Range(anchor or FULL_RANGE.anchor, span or FULL_RANGE.span)


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """How a streaming query follows a store."""

    path: str = option(
        "path",
        PATH,
        description="the store; `.load(path)`",
        effect="stream",
        help="name the store in .load(path)",
    )
    subscription_range: RetainedRange | None = option(
        "subscriptionRange",
        INITIAL,
        None,
        description=(
            "the initial events: `limit N`, `last DURATION` (before the series' newest original), "
            "both, `unlimited`, or `none`; none given: as the store was created"
        ),
        effect="stream",
    )
    starting_sequence: Mapping[str, int] | None = option(
        "startingSequence",
        STARTS,
        None,
        description=(
            'JSON `{"series": n}`: of that series every event from `n` on instead, as far as it is '
            "there"
        ),
        effect="stream",
    )
    max_events: int | None = option(
        "maxEventsPerTrigger",
        whole_number(at_least=1),
        None,
        description="the most events of a batch; initial events come by whole series",
        effect="stream",
    )
    cti: str = option(
        "cti",
        CTI,
        "",
        description=(
            "`true`, or a name: adds a column `cti`, or of that name, and rows in which it alone "
            "is set: CTIs, before which no further original comes"
        ),
        effect="stream",
    )
    principal: str | None = option(
        "principal",
        text,
        None,
        description=(
            "who subscribes, where the store has a policy; none: the OS user of the driver's "
            "Python worker"
        ),
        effect="stream",
    )
    storage: OptionPairs = field(default=(), repr=False)

    @property
    def location(self) -> Location:
        """The location of the store."""
        return location_with(self.path, self.storage)
