"""Read what the page of a store shows: its facts, a list of series, one series, or one event.

Every answer is from one commit, the last, and nothing is ever written.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import DAY_US, MINUTE_US, SECOND_US
from pyspark_timestream.report import STEPS_US
from pyspark_tseries.chart.figure import is_drawn, is_line
from pyspark_tseries.client.questions import BucketResult, RangeQuery
from pyspark_tseries.client.results import Chart, QueryResult
from pyspark_tseries.errors import InvalidQuery, TseriesError
from pyspark_tseries.maintain.background import MaintenancePlan, plan_maintenance
from pyspark_tseries.maintain.verify import describe
from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.columns import originals_of, result_schema
from pyspark_tseries.model.ranges import SeriesChoice, parse_choice
from pyspark_tseries.read.newest import find_series
from pyspark_tseries.read.view import View
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.log_check import read_commit_us
from pyspark_tseries.store.store import Store

PAGE_ROWS: Final = 25
"""A page of the list has this many series."""

COUNTS: Final = (100, 1_000, 10_000)
"""The page can draw this many last events of a series; it begins with the second number."""

ALL: Final = "all"
"""Draws all events of a series: in buckets, if there are more than the highest of `COUNTS`."""

MAX_LISTED_EDITS: Final = 50
MAX_LISTED_EVENTS: Final = 20
MINUTES: Final = 60
"""Count commits for each of this many last minutes."""

MAX_ENTRIES: Final = 5_000
MAX_REMOTE_ENTRIES: Final = 100
"""Count commits in at most this many entries of the log, because each takes a read."""

MAX_NAME: Final = 4_000
"""A longer name of a series does not fit into an address."""

_BUCKETS: Final = 300
_WIDTHS: Final = 280, 1_160
_PLAN_S: Final = 60.0
_PLAN_PAUSES: Final = 50
"""Plan maintenance only so often that it takes at most two per cent of a core."""

_STEPS_US: Final[tuple[int, ...]] = (
    *(step for step in STEPS_US if step >= SECOND_US),
    *(number * DAY_US for number in (14, 28, 91, 182)),
)
_WILDCARDS: Final = frozenset("*?[")


Cells = dict[str, pa.Scalar]
"""A row of a table."""


class PageRequest(NamedTuple):
    """The request in the address of a page.

    Attributes:
        search: a part of the names of series, or a pattern with `*`, `?` or `[`.
        start: the position of the first listed series among those that match.
        series: the series to draw; None for none.
        last: one of `COUNTS` as text, or `ALL`.
        column: the only column to draw; empty for the first four.
        event: the sequence of the event to list with all versions; None for none.
    """

    search: str = ""
    start: int = 0
    series: str | None = None
    last: str = str(COUNTS[1])
    column: str = ""
    event: int | None = None

    @staticmethod
    def parse(query: str) -> "PageRequest":
        """Parse the query of an address; ignore fields that make no sense."""
        fields = {name: texts[-1] for name, texts in _parse_query(query).items()}
        last_count = fields.get("last", "")
        return PageRequest(
            search=fields.get("q", "")[:MAX_NAME],
            start=_parse_number(fields.get("from")) or 0,
            series=fields.get("series"),
            last=last_count
            if last_count == ALL or last_count in map(str, COUNTS)
            else str(COUNTS[1]),
            column=fields.get("column", ""),
            event=_parse_number(fields.get("event")),
        )

    def link(self, **changes: Any) -> str:
        """Return the address of the same page with some changes."""
        request = self._replace(**changes)
        default = PageRequest()
        names = {"search": "q", "start": "from"}
        fields = {
            names.get(name, name): value
            for name, value in request._asdict().items()
            if value != getattr(default, name)
        }
        return "?" + urlencode(fields)


def parse_width(query: str) -> int:
    """Return the width of a picture for the room that a client has."""
    width = _parse_number(_parse_query(query).get("width", [""])[-1]) or 700
    return min(max(width, _WIDTHS[0]), _WIDTHS[1])


def _parse_query(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(query, keep_blank_values=True, errors="replace", max_num_fields=50)
    except ValueError:
        return {}


def _parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The store as a whole.

    Attributes:
        described: what `describe` returns.
        commits: minutes up to now, ascending, each with the number of entries that the log got, by
            the clocks of the writers. They begin `MINUTES` ago, or later if the log begins later or
            has more entries than are read.
        plan: the plan of maintenance; None if there cannot be one.
    """

    described: dict[str, Any]
    commits: tuple[tuple[int, int], ...]
    plan: MaintenancePlan | None


@dataclass(frozen=True, slots=True)
class SeriesList:
    """The series on a page, from `start` on, as rows of `SERIES_SCHEMA`.

    `found` series match, of `known` series in all.
    """

    rows: pa.Table
    start: int
    found: int
    known: int


@dataclass(frozen=True, slots=True)
class SeriesView:
    """A series.

    Attributes:
        known: its row of `SERIES_SCHEMA`; None if it has no event.
        chart: its picture; None if nothing can be drawn.
        why: the reason if nothing can be drawn.
        columns: the columns that can be drawn.
        edits: the newest edits in the picture, newest first, each with the version that it
            replaced.
        more_edits: the number of further edits.
        events: the newest events.
        bucket_us: the width of the drawn buckets; None if events are drawn.
    """

    known: Cells | None
    chart: Chart | None
    why: str
    columns: tuple[str, ...]
    edits: tuple[tuple[Cells, Cells | None], ...]
    more_edits: int
    events: pa.Table
    bucket_us: int | None


@dataclass(slots=True)
class _CommitCounts:
    """The commits of a log by minute, up to a version; `begins` is the first whole minute."""

    log: object
    upto: int = -1
    minutes: Counter[int] = field(default_factory=Counter)
    begins: int | None = None


class StoreViewer:
    """Reads a store for its page; not safe for threads.

    Args:
        location: the store.
        principal: whose rights count if the store has a policy.
        zone: the time zone of pictures; None for UTC.
    """

    def __init__(self, location: Location, principal: str, zone: str | None) -> None:
        self.location = location
        self.zone = zone
        self._principal = principal
        self._plan: tuple[Any, float, MaintenancePlan | None] | None = None
        self._counted = _CommitCounts(None)

    def open(self) -> tuple[Store, View]:
        """Return the store and its last commit.

        Raises:
            NoSuchStore: there is none.
            UnusableStore: it is damaged.
        """
        store = Store.open(self.location)
        return store, View(store.snapshot(), self._principal)

    def facts(self, store: Store, now_us: int) -> StoreFacts:
        """Return the facts of the store."""
        commits = self._count_commits(store, now_us)
        return StoreFacts(describe(self.location), commits, self._look_ahead(store))

    def _count_commits(self, store: Store, now_us: int) -> tuple[tuple[int, int], ...]:
        """Count by the times in entries, because files of a copied or restored store are younger.

        Read each entry once, from the last back to one that is two hours old. If the clock of its
        writer is ahead, an entry counts as of now.
        """
        now = now_us // MINUTE_US
        newest = store.log.version()
        counted = self._counted
        # The dictionary is a new one if the log was replaced, as by an older state of the store.
        if counted.log is not store.log.proven:
            counted = self._counted = _CommitCounts(store.log.proven)
        max_entries = MAX_ENTRIES if self.location.is_local else MAX_REMOTE_ENTRIES
        new: Counter[int] = Counter()  # If reading fails, no entry is counted twice.
        begins = counted.begins
        for version in range(newest, counted.upto, -1):
            try:
                made_us = read_commit_us(self.location, version)
            except FileNotFoundError:
                break
            if made_us is None:
                continue
            minute = min(made_us // MINUTE_US, now)
            if newest - version >= max_entries:
                begins = minute + 1
                break
            new[minute] += 1
            begins = minute if begins is None else min(begins, minute)
            if minute < now - 2 * MINUTES:  # The clocks of writers may differ.
                break
        counted.minutes.update(new)
        counted.begins = begins
        counted.upto = newest
        for minute in [minute for minute in counted.minutes if minute < now - 2 * MINUTES]:
            del counted.minutes[minute]
        if counted.begins is None:
            return ()
        first_minute = max(now - MINUTES + 1, counted.begins)
        return tuple((minute, counted.minutes[minute]) for minute in range(first_minute, now + 1))

    def _look_ahead(self, store: Store) -> MaintenancePlan | None:
        began_s = time.monotonic()
        if self._plan is not None and self._plan[0] == store.id and began_s < self._plan[1]:
            return self._plan[2]
        try:
            plan = plan_maintenance(store, store.read_clock())
        except (TseriesError, OSError):
            plan = None
        ended_s = time.monotonic()
        again_s = ended_s + max(_PLAN_S, _PLAN_PAUSES * (ended_s - began_s))
        self._plan = store.id, again_s, plan
        return plan

    def list_series(self, view: View, search: str, start: int) -> SeriesList:
        """Return a page of the series with `search` in their names, or that fit its pattern."""
        view.list_series(SeriesChoice(()))  # Refuse callers who may not read.
        names = pa.array(find_series(view.snapshot.index(), None).names, pa.string())
        matching = _search_names(names, search)
        start = min(start, max(len(matching) - 1, 0)) // PAGE_ROWS * PAGE_ROWS
        page = matching.slice(start, PAGE_ROWS).to_pylist()
        return SeriesList(
            view.list_series(SeriesChoice(tuple(page))), start, len(matching), len(names)
        )

    def draw(self, view: View, request: PageRequest, width: int) -> SeriesView:
        """Return the series of a request, and its picture."""
        assert request.series is not None
        listed = view.list_series(parse_choice(request.series))
        values = view.snapshot.values
        columns = tuple(field.name for field in values if is_drawn(field.type))
        row = read_row(listed, 0) if len(listed) else None
        query = RangeQuery(open_view=lambda: view)
        events = query.from_last(MAX_LISTED_EVENTS).select_from(request.series).table
        result: QueryResult | BucketResult | None = None
        edits: Sequence[tuple[Cells, Cells | None]] = ()
        more = 0
        bucket_us = _choose_buckets(row) if request.last == ALL else None
        if bucket_us is None:
            count = COUNTS[-1] if request.last == ALL else int(request.last)
            result = _ask_events(view, query.from_last(count), request.series, row)
            edits, more = _list_edits(result.table)
        elif columns:
            drawn = [request.column] if request.column else columns[:4]
            types = {field.name: field.type for field in values}
            # A clock shows no multiples of a width that does not divide its day.
            zone = self.zone if bucket_us in _STEPS_US else None
            buckets = query.every(timedelta(microseconds=bucket_us), timezone=zone)
            aggregates = _choose_aggregates(types, drawn)
            result = buckets.aggregate(**aggregates).select_from(request.series)
        chart, why = None, "none of its columns has numbers, Booleans or texts to draw"
        if result is not None and columns:
            try:
                chosen = request.column if request.column in columns else None
                chart = result.chart(chosen, timezone=self.zone or "UTC", width=width, title="")
            except InvalidQuery as error:
                why = str(error)
        return SeriesView(
            known=row,
            chart=chart,
            why=why,
            columns=columns,
            edits=tuple(edits),
            more_edits=more,
            events=events,
            bucket_us=bucket_us,
        )


def _search_names(names: pa.Array, search: str) -> pa.Array:
    if not search:
        return names
    if not _WILDCARDS.isdisjoint(search):
        return pa.array(SeriesChoice(pattern=search).pick(names.to_pylist()), pa.string())
    return names.filter(pc.match_substring(names, search, ignore_case=True))


def _ask_events(view: View, query: RangeQuery, series: str, row: Cells | None) -> QueryResult:
    """Ask for values, and for all their edits if there are any that the principal may see."""
    columns = result_schema(view.snapshot.values).names[1:]  # Without `series`.
    values = query.columns(*columns).select_from(series)
    has_edits = row is not None and row["edits"].as_py() != 0
    if not (has_edits and len(values) and view.access.may("query_obsolete")):
        return values
    first_sequence = originals_of(values.table)[0].as_py()
    all_edits = RangeQuery(open_view=query.open_view).for_edits().from_(first_sequence)
    return all_edits.columns(*columns).select_from(series)


def _list_edits(table: pa.Table) -> tuple[list[tuple[Cells, Cells | None]], int]:
    """Return the newest edits of a result, the values they replaced, and the number of others."""
    if table["original_sequence"].null_count == len(table):
        return [], 0
    sequence = to_int64(table["sequence"]).tolist()
    original = to_int64(originals_of(table)).tolist()
    before: dict[int, int] = {}
    edit_rows: list[tuple[int, int | None]] = []
    for row in sorted(range(len(sequence)), key=sequence.__getitem__):
        if original[row] != sequence[row]:
            edit_rows.append((row, before.get(original[row])))
        before[original[row]] = row
    newest = [
        (read_row(table, row), None if old is None else read_row(table, old))
        for row, old in edit_rows[: -MAX_LISTED_EDITS - 1 : -1]
    ]
    return newest, len(edit_rows) - len(newest)


def read_row(table: pa.Table, row: int) -> Cells:
    """Return a row of a table."""
    return {name: table[name][row] for name in table.column_names}


def _choose_buckets(row: Cells | None) -> int | None:
    """Return the width of buckets for all events of a series; None if it has few enough."""
    if row is None or not (row["newest"].is_valid and row["first"].is_valid):
        return None
    if row["events"].as_py() <= COUNTS[-1]:
        return None
    wide = max((row["newest"].value - row["first"].value) // _BUCKETS, 1)
    return next((step for step in _STEPS_US if step >= wide > SECOND_US), wide)


def _choose_aggregates(types: dict[str, pa.DataType], columns: Sequence[str]) -> dict[str, Any]:
    aggregates: dict[str, Any] = {}
    for name in columns:
        if name in types and is_line(types[name]):
            aggregates[name] = "mean"
            aggregates |= {f"{name} min": (name, "min"), f"{name} max": (name, "max")}
        else:
            aggregates[name] = "last"
    return aggregates
