"""What the page of a store shows, as values: its facts, some of its series, one of them, an event.

Each question of a page is answered from one commit, the last one, and nothing is ever written.
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

from pyspark_timestream.core.instants import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from pyspark_tseries.chart.figure import is_drawn, is_line
from pyspark_tseries.client.questions import BucketResult, RangeQuery
from pyspark_tseries.client.results import Chart, QueryResult
from pyspark_tseries.errors import InvalidQuery, TseriesError
from pyspark_tseries.maintain.background import MaintenancePlan, plan_maintenance
from pyspark_tseries.maintain.verify import describe
from pyspark_tseries.model.arrays import NO_SEQUENCE, to_int64
from pyspark_tseries.model.ranges import SeriesChoice, parse_choice
from pyspark_tseries.model.series_index import SeriesIds
from pyspark_tseries.read.view import View, known_series
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.log_check import read_commit_us
from pyspark_tseries.store.store import Store

PAGE_ROWS: Final = 25
"""This many series are on a page of the list."""

COUNTS: Final = (100, 1_000, 10_000)
"""The last this many events of a series can be drawn; the second is what is drawn first."""

ALL: Final = "all"
"""Draws all events of a series: in buckets, if there are more than the highest of `COUNTS`."""

MAX_EDITS: Final = 50
MAX_EVENTS: Final = 20
MINUTES: Final = 60
"""Commits are counted for each of the last this many minutes."""

MAX_ENTRIES: Final = 5_000
MAX_REMOTE_ENTRIES: Final = 100
"""Commits are counted of this many entries of the log at most, which are read one by one."""

MAX_NAME: Final = 4_000
"""A longer name of a series does not fit into an address."""

_BUCKETS: Final = 300
_WIDTHS: Final = 280, 1_160
_PLAN_S: Final = 60.0
_PLAN_PAUSES: Final = 50
"""What maintenance would do is looked up so rarely that it takes two per cent of a core at most."""

_STEPS_US: Final = (
    *(number * SECOND_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * MINUTE_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * HOUR_US for number in (1, 2, 3, 6, 12)),
    *(number * DAY_US for number in (1, 2, 7, 14, 28, 91, 182)),
)
_WILDCARDS: Final = frozenset("*?[")


Cells = dict[str, pa.Scalar]
"""A row of a table."""


class PageRequest(NamedTuple):
    """What the address of a page asks for.

    Attributes:
        search: a part of the names of series, or a pattern with `*`, `?` or `[`.
        start: how many of the series that were found come before the first one listed.
        series: the series that is drawn; None for none.
        last: one of `COUNTS` as text, or `ALL`.
        column: the only column that is drawn; empty for the first four.
        event: the sequence of the event whose versions are listed; None for none.
    """

    search: str = ""
    start: int = 0
    series: str | None = None
    last: str = str(COUNTS[1])
    column: str = ""
    event: int | None = None

    @staticmethod
    def parse(query: str) -> "PageRequest":
        """Return what a query asks for; what makes no sense is as if it were not there."""
        given = {name: texts[-1] for name, texts in _parse(query).items()}
        last = given.get("last", "")
        return PageRequest(
            given.get("q", "")[:MAX_NAME],
            _parse_number(given.get("from")) or 0,
            given.get("series"),
            last if last == ALL or last in map(str, COUNTS) else str(COUNTS[1]),
            given.get("column", ""),
            _parse_number(given.get("event")),
        )

    def link(self, **changes: Any) -> str:
        """Return the address of a page that asks for the same but some changes."""
        asked, usual = self._replace(**changes), PageRequest()
        names = {"search": "q", "start": "from"}
        given = {
            names.get(name, name): value
            for name, value in asked._asdict().items()
            if value != getattr(usual, name)
        }
        return "?" + urlencode(given)


def parse_width(query: str) -> int:
    """Return how wide a picture shall be, by what a client says of its room."""
    asked = _parse_number(_parse(query).get("width", [""])[-1]) or 700
    return min(max(asked, _WIDTHS[0]), _WIDTHS[1])


def _parse(query: str) -> dict[str, list[str]]:
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
        commits: how many entries its log got in each minute, rising, up to now, by the clocks of
            those who committed; it begins later than `MINUTES` ago where the log does, or where it
            has more entries than are read.
        plan: what maintenance would do; None if that cannot be told.
    """

    described: dict[str, Any]
    commits: tuple[tuple[int, int], ...]
    plan: MaintenancePlan | None


@dataclass(frozen=True, slots=True)
class SeriesList:
    """Some of the series that were found: those from `start` on, as `SERIES_SCHEMA` has them."""

    rows: pa.Table
    start: int
    found: int
    known: int


@dataclass(frozen=True, slots=True)
class SeriesView:
    """A series.

    Attributes:
        known: its row of `SERIES_SCHEMA`; None if it has no event.
        chart: its picture; None if nothing can be drawn, and `why` says it.
        columns: those that can be drawn.
        edits: the newest edits in the picture, newest first, each with the version that it
            replaced.
        more_edits: how many more there are.
        events: the newest events.
        bucket_us: the width of the buckets that are drawn; None if events are.
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
    """The commits of a store by minute, up to a version; `begins` is the first whole minute."""

    store: str
    upto: int = -1
    minutes: Counter[int] = field(default_factory=Counter)
    begins: int | None = None


class StoreViewer:
    """Looks at a store for a page; not safe for threads.

    Args:
        location: the store.
        principal: whose rights count where the store has a policy.
        zone: the time zone of pictures; None for UTC.
    """

    def __init__(self, location: Location, principal: str, zone: str | None) -> None:
        self.location, self.zone = location, zone
        self._principal = principal
        self._names: tuple[SeriesIds, int, pa.Array] | None = None
        self._plan: tuple[Any, float, MaintenancePlan | None] | None = None
        self._counted = _CommitCounts("")

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
        """Count by what the entries say: files of a copied or restored store are younger.

        Each entry is read once, from the last one back to one that is two hours old. One whose
        writer's clock is ahead counts as of now.
        """
        now, newest, counted = now_us // MINUTE_US, store.version(), self._counted
        if counted.store != store.id or counted.upto > newest:
            counted = self._counted = _CommitCounts(store.id)
        most = MAX_ENTRIES if self.location.is_local else MAX_REMOTE_ENTRIES
        new: Counter[int] = Counter()  # An entry that cannot be read leaves none counted twice.
        begins = counted.begins
        for version in range(newest, counted.upto, -1):
            try:
                made_us = read_commit_us(self.location, version)
            except FileNotFoundError:
                break
            if made_us is None:
                continue
            minute = min(made_us // MINUTE_US, now)
            if newest - version >= most:
                begins = minute + 1
                break
            new[minute] += 1
            begins = minute if begins is None else min(begins, minute)
            if minute < now - 2 * MINUTES:  # The clocks of writers may differ.
                break
        counted.minutes.update(new)
        counted.begins = begins
        counted.upto = newest
        for minute in [each for each in counted.minutes if each < now - 2 * MINUTES]:
            del counted.minutes[minute]
        if counted.begins is None:
            return ()
        first = max(now - MINUTES + 1, counted.begins)
        return tuple((minute, counted.minutes[minute]) for minute in range(first, now + 1))

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
        """Return some of the series whose names have a part, or fit a pattern."""
        view.list_series(SeriesChoice(()))  # Refuse it to those who may not read.
        names = self._sorted_names(view)
        found = _search(names, search)
        start = min(start, max(len(found) - 1, 0)) // PAGE_ROWS * PAGE_ROWS
        page = found.slice(start, PAGE_ROWS).to_pylist()
        return SeriesList(
            view.list_series(SeriesChoice(tuple(page))), start, len(found), len(names)
        )

    def _sorted_names(self, view: View) -> pa.Array:
        index = view.snapshot.index()
        count = int((index.columns["last_sequence"] != NO_SEQUENCE).sum())
        kept = self._names
        if kept is None or kept[0] is not index.ids or kept[1] != count:
            names = pa.array(known_series(index), pa.string())
            kept = index.ids, count, names.take(pc.sort_indices(names))
            self._names = kept
        return kept[2]

    def draw(self, view: View, asked: PageRequest, width: int) -> SeriesView:
        """Return a series as it is asked for."""
        assert asked.series is not None
        known = view.list_series(parse_choice(asked.series))
        values = view.snapshot.values
        columns = tuple(field.name for field in values if is_drawn(field.type))
        row = _read_row(known, 0) if len(known) else None
        query, bucket_us = RangeQuery(open_view=lambda: view), None
        events = query.from_last(MAX_EVENTS).select_from(asked.series).table
        shown: QueryResult | BucketResult | None = None
        edits: Sequence[tuple[Cells, Cells | None]] = ()
        more = 0
        if asked.last == ALL:
            bucket_us = _choose_buckets(row)
        if bucket_us is None:
            most = COUNTS[-1] if asked.last == ALL else int(asked.last)
            shown = _ask_events(view, query.from_last(most), asked.series, row)
            edits, more = _list_edits(shown.table)
        elif columns:
            kinds = {field.name: field.type for field in values}
            named = _choose_aggregates(kinds, [asked.column] if asked.column else columns[:4])
            buckets = query.every(timedelta(microseconds=bucket_us), timezone=self.zone)
            shown = buckets.aggregate(**named).select_from(asked.series)
        chart, why = None, "none of its columns has numbers, Booleans or texts to draw"
        if shown is not None and columns:
            try:
                chosen = asked.column if asked.column in columns else None
                chart = shown.chart(chosen, timezone=self.zone or "UTC", width=width, title="")
            except InvalidQuery as error:
                why = str(error)
        return SeriesView(
            row,
            chart,
            why,
            columns,
            tuple(edits),
            more,
            events,
            bucket_us,
        )

    def versions(self, view: View, asked: PageRequest) -> pa.Table:
        """Return the versions of the event that is asked for."""
        assert asked.series is not None
        assert asked.event is not None
        return view.versions(asked.series, asked.event)


def _search(names: pa.Array, search: str) -> pa.Array:
    if not search:
        return names
    if not _WILDCARDS.isdisjoint(search):
        return pa.array(SeriesChoice(pattern=search).pick(names.to_pylist()), pa.string())
    return names.filter(pc.match_substring(names, search, ignore_case=True))


def _ask_events(view: View, query: RangeQuery, series: str, row: Cells | None) -> QueryResult:
    """Ask for values; and, where there are any and they may be seen, for all edits of these."""
    values = query.columns(*_without_series(view)).select_from(series)
    has_edits = row is not None and row["edits"].as_py() != 0
    if not (has_edits and len(values) and view.access.may("query_obsolete")):
        return values
    first = pc.coalesce(values.table["original_sequence"], values.table["sequence"])[0].as_py()
    whole = RangeQuery(open_view=query.open_view).for_edits().from_(first)
    return whole.columns(*_without_series(view)).select_from(series)


def _without_series(view: View) -> list[str]:
    metadata = ("sequence", "timestamp", "author")
    originals = ("original_sequence", "original_timestamp", "original_author", "edit_timestamp")
    return [*metadata, *(field.name for field in view.snapshot.values), *originals]


def _list_edits(table: pa.Table) -> tuple[list[tuple[Cells, Cells | None]], int]:
    """Return the newest edits of a result, with what they replaced, and how many more there are."""
    if table["original_sequence"].null_count == len(table):
        return [], 0
    sequence = to_int64(table["sequence"]).tolist()
    original = to_int64(pc.coalesce(table["original_sequence"], table["sequence"])).tolist()
    before: dict[int, int] = {}
    found: list[tuple[int, int | None]] = []
    for row in sorted(range(len(sequence)), key=sequence.__getitem__):
        if original[row] != sequence[row]:
            found.append((row, before.get(original[row])))
        before[original[row]] = row
    newest = [
        (_read_row(table, row), None if old is None else _read_row(table, old))
        for row, old in found[: -MAX_EDITS - 1 : -1]
    ]
    return newest, len(found) - len(newest)


def _read_row(table: pa.Table, row: int) -> Cells:
    return {name: table[name][row] for name in table.column_names}


def _choose_buckets(row: Cells | None) -> int | None:
    """Return the width of buckets for all events of a series; None if it has few enough."""
    if row is None or not (row["newest"].is_valid and row["first"].is_valid):
        return None
    if row["events"].as_py() <= COUNTS[-1]:
        return None
    wide = max((row["newest"].value - row["first"].value) // _BUCKETS, 1)
    return next((step for step in _STEPS_US if step >= wide > SECOND_US), wide)


def _choose_aggregates(kinds: dict[str, pa.DataType], columns: Sequence[str]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name in columns:
        if name in kinds and is_line(kinds[name]):
            named[name] = "mean"
            named |= {f"{name} min": (name, "min"), f"{name} max": (name, "max")}
        else:
            named[name] = "last"
    return named
