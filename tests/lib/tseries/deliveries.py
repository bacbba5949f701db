"""Random stores beside all deliveries to them, and the right answers of queries by buckets.

DuckDB answers from the deliveries themselves: the rows that the receipts named, their edits, the
erased ones, and those that a change of the retained range has put out of range.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tseries.limits import set_limits

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.compactor import merge_file_groups
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.store.store import Store

VALUES = {"celsius": pa.float64(), "n": pa.int64(), "room": pa.string()}
AGGREGATES = {
    "mean": ("celsius", "mean"),
    "low": ("celsius", "min"),
    "high": ("celsius", "max"),
    "total": ("n", "sum"),
    "median": ("celsius", "median"),
    "p9": ("n", 0.9),
    "opened": ("celsius", "first"),
    "closed": ("n", "last"),
    "there": ("celsius", "count"),
    "events": ("*", "count"),
}
"""Columns of buckets -> a value column and a function."""

BEGIN = datetime(2026, 3, 28, 22, tzinfo=UTC)
"""Hours before the clocks of Berlin are put forward; `AUTUMN`: before they are put back."""
AUTUMN = datetime(2026, 10, 24, 20, tzinfo=UTC)
SERIES = st.sampled_from(["a", "b", "c/ä"])
CELLS = st.fixed_dictionaries(
    {
        "celsius": st.none() | st.integers(-80, 80).map(lambda eighths: eighths / 8),
        "n": st.none() | st.integers(-5, 5),
        "room": st.none() | st.sampled_from("xy"),
    }
)
MINUTES = st.sampled_from([0, 0, 1, 20, 40, 59, 60, 61, 200, 1500])
ROWS = st.lists(st.tuples(SERIES, MINUTES, CELLS), min_size=1, max_size=8)
RETAINED = st.sampled_from(["unlimited", "limit 5", "limit 3 last 4H", "last 90M", "last 1D"])


def programs(*, erases: bool) -> st.SearchStrategy:
    """Steps of a store; with `erases` nothing goes out of the retained range."""
    odd = (
        [st.tuples(st.just("erase"), SERIES, st.integers(0, 9))]
        if erases
        else [st.tuples(st.just("retain"), RETAINED)]
    )
    edits = st.tuples(st.just("edit"), SERIES, st.integers(0, 12), CELLS)
    care = st.tuples(st.sampled_from(["compact", "merge"]))
    steps = st.one_of(*[st.tuples(st.just("append"), ROWS)] * 4, *[edits] * 2, care, *odd)
    return st.lists(steps, min_size=2, max_size=10)


@dataclass
class Deliveries:
    """A store, and what it was given."""

    path: str
    retained: str = "unlimited"
    begin: datetime = BEGIN
    rows: list = field(default_factory=list)
    gone: set = field(default_factory=set)

    def __post_init__(self):
        self.series = TimeSeries.create(
            self.path,
            VALUES,
            self.retained,
            "me",
            min_retention_age=timedelta(0),
            auto_compact=False,
            durability="os",
        )
        self.at = self.begin

    def run(self, steps):
        for kind, *given in steps:
            getattr(self, kind)(*given)
        return self

    def append(self, rows):
        """Rows go on from the last one, or come late and are adjusted."""
        given = []
        for number, (name, minutes, cells) in enumerate(rows):
            late = number % 3 == 2
            self.at += timedelta(0) if late else timedelta(minutes=minutes)
            at = self.at - timedelta(minutes=minutes) if late else self.at
            given.append({"series": name, "timestamp": at, **cells})
        told = self.series.append_many(given, out_of_order="adjust", max_future=timedelta.max)
        for row, (cells, receipt) in enumerate(zip(given, told.to_pylist(), strict=True)):
            self.rows.append({**given[row], **cells, **receipt, "of": None, "erased": False})

    def find(self, name, sequence):
        return [r for r in self.rows if (r["series"], r["sequence"]) == (name, sequence)]

    def seen(self):
        names, sequences = (self.visible()[name].to_pylist() for name in ("series", "sequence"))
        return set(zip(names, sequences, strict=True))

    def edit(self, name, sequence, cells):
        visible = self.seen()
        for row in self.find(name, sequence):
            if row["of"] is None and not row["erased"] and (name, sequence) in visible:
                receipt = self.series.edit(name, sequence, cells)
                told = {"sequence": receipt.sequence, "timestamp": receipt.timestamp}
                self.rows.append({"series": name, **cells, **told, "of": sequence, "erased": False})

    def erase(self, name, sequence):
        if self.find(name, sequence):
            self.series.erase(name, sequence, "a test")
            for row in self.rows:
                if row["series"] == name and sequence in (row["sequence"], row["of"]):
                    row.update(erased=True, celsius=None, n=None, room=None)

    def retain(self, retained):
        seen = self.seen()
        self.gone |= {(r["series"], r["sequence"]) for r in self.rows} - seen
        self.series.set_retained_range(retained)
        self.retained = retained

    def compact(self):
        self.series.compact()

    def merge(self):
        with pytest.MonkeyPatch.context() as few:
            set_limits(few, groups_to_merge=2)
            merge_file_groups(Store.open(self.path), read_wall_clock(), everything=False)

    def table(self):
        kinds = {"series": pa.string(), "sequence": pa.int64(), "timestamp": INSTANT}
        schema = pa.schema({**kinds, **VALUES, "of": pa.int64(), "erased": pa.bool_()})
        return pa.Table.from_pylist(
            [{n: row.get(n) for n in schema.names} for row in self.rows], schema
        )

    def visible(self):
        """The originals inside the retained range, each with the values of its latest edit."""
        words = self.retained.split()
        limit = words[words.index("limit") + 1] if "limit" in words else 10**9
        last = words[words.index("last") + 1] if "last" in words else "99999D"
        unit = {"H": "HOUR", "M": "MINUTE", "D": "DAY"}[last[-1]]
        deliveries = self.table()
        gone = pa.table(
            {
                "series": pa.array([name for name, _ in self.gone], pa.string()),
                "sequence": pa.array([sequence for _, sequence in self.gone], pa.int64()),
            }
        )
        con = duckdb.connect()
        con.register("deliveries", deliveries)
        con.register("gone", gone)
        return con.sql(f"""
            WITH ends AS (
                SELECT series, max(sequence) AS last_sequence,
                    max(timestamp) FILTER (of IS NULL AND NOT erased) AS newest
                FROM deliveries GROUP BY series),
            latest AS (
                SELECT DISTINCT ON (series, original) *
                FROM (SELECT *, coalesce(of, sequence) AS original FROM deliveries)
                ORDER BY series, original, sequence DESC)
            SELECT o.series, o.sequence, o.timestamp, o.erased, l.celsius, l.n, l.room
            FROM deliveries o JOIN ends USING (series)
            JOIN latest l ON l.series = o.series AND l.original = o.sequence
            ANTI JOIN gone g ON g.series = o.series AND g.sequence = o.sequence
            WHERE o.of IS NULL AND o.sequence > last_sequence - {limit}
                AND (newest IS NULL OR o.timestamp >= newest - INTERVAL {last[:-1]} {unit})
            ORDER BY ALL""").to_arrow_table()


def start_of(us: datetime, width: str, zone: str | None) -> datetime:
    """The start of a bucket, by the calendar of Python; zones have offsets of whole hours."""
    clock = us.astimezone(ZoneInfo(zone or "UTC"))
    if width == "15 minutes":
        return us.replace(minute=us.minute // 15 * 15, second=0, microsecond=0)
    if width == "1 hour":
        return us.replace(minute=0, second=0, microsecond=0)
    day = clock.day if width == "1 day" else 1
    midnight = datetime(clock.year, clock.month, day, tzinfo=ZoneInfo(zone or "UTC"))
    return midnight.astimezone(UTC)
