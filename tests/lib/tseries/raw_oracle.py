"""The right answers of a store (semantics 20, 21, 22, 31, 32): SQL over all its deliveries.

Nothing here is taken from the code of the package. The views of DuckDB build on each other:

    told      the deliveries up to the asked commit
    ends      the last sequence and the newest time of each series
    retained  the originals inside the retained range, and their edits
    shown     the current values: each of these originals as its latest edit has it
"""

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
from tseries.raw_store import VALUES

from pyspark_tseries.model.columns import INSTANT

_KEY = {"series": pa.string(), "sequence": pa.int64()}
_EVENT = {**_KEY, "timestamp": INSTANT, "author": pa.string()}
_ABOUT = {
    "of": pa.int64(),
    "commit": pa.int64(),
    "commit_time": INSTANT,
    "erased_by": pa.string(),
    "erased_at": INSTANT,
    "erased_because": pa.string(),
}
DELIVERIES = pa.schema({**_EVENT, **VALUES, **_ABOUT})
KEYS = pa.schema(_KEY)
_UNITS = {"H": "HOUR", "M": "MINUTE", "D": "DAY"}

# Columns of an edit that shows in the place of its original, like any event's.
_SHOWN = """
    series, sequence, timestamp, author, celsius, n, room, of AS original_sequence,
    CASE WHEN of IS NOT NULL THEN original_time END AS original_timestamp,
    CASE WHEN of IS NOT NULL THEN original_by END AS original_author, edit_timestamp"""


class Oracle:
    """DuckDB over the deliveries of a `RawStore`, as of a commit; None: of all of them."""

    def __init__(self, store, commit=None):
        self.con = duckdb.connect(config={"threads": 1})
        self.con.execute("SET TimeZone = 'UTC'")
        rows = [r for r in store.rows if commit is None or r["commit"] <= commit]
        self.con.register("told", pa.Table.from_pylist(rows, DELIVERIES))
        self.con.register("hidden", _keys(store.hidden))
        self.con.register("disk", _keys(store.disk()))
        words = store.retained.split()
        limit = words[words.index("limit") + 1] if "limit" in words else 10**9
        last = words[words.index("last") + 1] if "last" in words else "99999D"
        age = f"INTERVAL {last[:-1]} {_UNITS[last[-1]]}"
        self.con.execute(f"""
            CREATE TABLE ends AS SELECT series, max(sequence) AS last_sequence,
                max(timestamp) FILTER (of IS NULL AND erased_by IS NULL) AS newest
            FROM told GROUP BY series;
            CREATE TABLE originals AS SELECT o.* FROM told o JOIN ends USING (series)
            ANTI JOIN hidden h ON h.series = o.series AND h.sequence = o.sequence
            WHERE of IS NULL AND o.sequence > last_sequence - {limit}
                AND (newest IS NULL OR o.timestamp >= newest - {age});
            CREATE TABLE retained AS SELECT t.*, o.sequence AS place, o.timestamp AS original_time,
                o.author AS original_by,
                CASE WHEN t.of IS NOT NULL THEN t.timestamp END AS edit_timestamp
            FROM told t JOIN originals o
                ON o.series = t.series AND o.sequence = coalesce(t.of, t.sequence);
            CREATE TABLE shown AS SELECT * REPLACE (original_time AS timestamp) FROM retained
            QUALIFY row_number() OVER (PARTITION BY series, place ORDER BY sequence DESC) = 1;
            CREATE VIEW events AS SELECT {_SHOWN} FROM shown;
            CREATE VIEW all_events AS SELECT t.series, t.sequence, t.timestamp, t.author, t.celsius,
                t.n, t.room, t.of AS original_sequence, o.timestamp AS original_timestamp,
                o.author AS original_author, t.commit, t.commit_time,
                t.erased_by, t.erased_at, t.erased_because
            FROM told t SEMI JOIN disk d ON d.series = t.series AND d.sequence = t.sequence
            LEFT JOIN told o ON o.series = t.series AND o.sequence = t.of;
            CREATE VIEW series AS SELECT series, count(*) FILTER (of IS NULL) AS events,
                count(of) AS edits, min(timestamp) FILTER (of IS NULL) AS first, newest
            FROM told JOIN ends USING (series) GROUP BY series, newest""")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.con.close()

    def ask(self, sql):
        return self.con.sql(sql).to_arrow_table()

    def retained_keys(self):
        keys = self.ask("SELECT series, sequence FROM retained")
        return keys["series"].to_pylist(), keys["sequence"].to_pylist()

    # -- questions ---------------------------------------------------------------------------------

    def values(self, chosen="true", view="true", edits="true", limit=None):
        """A `values` query: conditions on `timestamp`, `place` and `rank`, `sequence` in `edits`.

        `rank` counts the originals of a series from its end, from 1 on.
        """
        return self.ask(f"""
            SELECT {_SHOWN} FROM (SELECT * FROM ({self._ranked(view)})
                WHERE {edits} QUALIFY row_number() OVER
                (PARTITION BY series, place ORDER BY sequence DESC) = 1) WHERE {chosen}
            {_last(limit, "place")} ORDER BY series, place""")

    def edits(self, kind, chosen="true", view="true", limit=None):
        """An `allEdits` or `latestEdits` query."""
        latest = (
            ""
            if kind == "allEdits"
            else """QUALIFY of IS NULL OR row_number() OVER
            (PARTITION BY series, place, of IS NULL ORDER BY sequence DESC) = 1"""
        )
        return self.ask(f"""
            SELECT {_SHOWN} FROM (SELECT * REPLACE (own_time AS timestamp)
                FROM ({self._ranked(view)}) {latest}) WHERE {chosen}
            {_last(limit, "sequence")} ORDER BY series, sequence""")

    def _ranked(self, view):
        """The retained events with originals in a view range."""
        return f"""SELECT * FROM (
            SELECT r.* REPLACE (original_time AS timestamp), r.timestamp AS own_time, rank
            FROM retained r JOIN (SELECT series, sequence AS place, row_number() OVER
                (PARTITION BY series ORDER BY sequence DESC) AS rank FROM originals) k
            ON k.series = r.series AND k.place = r.place) WHERE {view}"""

    def latest(self, chosen, count, at=None):
        view = "true" if at is None else f"timestamp <= {_time(at)}"
        return self.values(chosen, view, limit=count)

    def history(self, name, sequence):
        """The stored versions of an event; empty if it is not stored itself."""
        return self.ask(f"""
            WITH mine AS (FROM all_events WHERE series = {_text(name)}),
            asked AS (SELECT coalesce(original_sequence, sequence) AS place FROM mine
                WHERE sequence = {sequence})
            SELECT mine.* FROM mine, asked WHERE coalesce(original_sequence, sequence) = place
            ORDER BY sequence""")

    def gaps(self, chosen, view, longer_than):
        """Neighbours in time; an erasure may have let a later event come before."""
        return self.ask(f"""
            SELECT series, earlier AS start, timestamp AS "end" FROM (
                SELECT series, timestamp, lag(timestamp) OVER
                    (PARTITION BY series ORDER BY timestamp, place) AS earlier
                FROM ({self._ranked(view)}) WHERE of IS NULL AND {chosen})
            WHERE timestamp - earlier > {longer_than} ORDER BY ALL""")

    def buckets(self, group, starts, view="true", chosen="true", fill=None, ends=(None, None)):
        """Aggregates by `group` and bucket.

        Args:
            group: `series` or a tag column; None: all rows are one group, with the name null.
            starts: the start of each bucket, and one behind the last.
            view: a condition on `timestamp`.
            chosen: a condition on `series`.
            fill: None, "null", "previous", "linear" or a number.
            ends: the times that the view range names.
        """
        stops = pa.table(
            {"start": pa.array(starts[:-1], INSTANT), "stop": pa.array(starts[1:], INSTANT)}
        )
        self.con.register("starts", stops)
        made = ", ".join(f"{sql} AS {name}" for name, sql in AGGREGATES.items())
        group = "NULL" if group is None else group
        self.con.execute(f"""
            CREATE OR REPLACE TEMP TABLE inside AS
            SELECT coalesce({group}, chr(1)) AS grp, shown.*, start, stop
            FROM shown ASOF JOIN starts ON shown.timestamp >= starts.start
            WHERE {view} AND {chosen};
            CREATE OR REPLACE TEMP TABLE held AS
            SELECT grp, celsius, timestamp AS since, coalesce(lead(timestamp) OVER
                (PARTITION BY grp ORDER BY timestamp, series, place), 'infinity') AS until
            FROM inside WHERE celsius IS NOT NULL;
            CREATE OR REPLACE TEMP TABLE weights AS
            SELECT grp, start, sum(celsius * us) / sum(us) AS weighted FROM (
                SELECT b.grp, b.start, celsius, epoch_us(least(until, stop))
                    - epoch_us(greatest(since, start)) AS us
                FROM (SELECT DISTINCT grp, start, stop FROM inside) b JOIN held USING (grp))
            WHERE us > 0 GROUP BY grp, start;
            CREATE OR REPLACE TEMP TABLE found AS
            SELECT * FROM (SELECT grp, start, {made} FROM inside GROUP BY grp, start)
            LEFT JOIN weights USING (grp, start)""")
        return self._filled(fill, ends, [*AGGREGATES, "weighted"])

    def _filled(self, fill, ends, names):
        grid = "SELECT grp, start FROM found"
        if fill is not None:
            low, high = (
                "NULL"
                if at is None
                else f"(SELECT max(start) FROM starts WHERE start <= {_time(at)})"
                for at in ends
            )
            grid = f"""SELECT grp, starts.start FROM starts JOIN (
                SELECT grp, least(min(start), {low}) AS low, greatest(max(start), {high}) AS high
                FROM found GROUP BY grp) ON starts.start BETWEEN low AND high"""
        columns = ", ".join(
            f"CASE WHEN @start IS NOT NULL THEN @{name} ELSE {_new_cell(name, fill)} END AS {name}"
            for name in names
        ).replace("@", "placed.")
        return self.ask(f"""
            WITH grid AS (SELECT grp, g.start AS slot, f.* EXCLUDE grp
                FROM ({grid}) g LEFT JOIN found f USING (grp, start)),
            placed AS (SELECT *, last_value(start IGNORE NULLS) OVER so_far AS row_before FROM grid
                WINDOW so_far AS (PARTITION BY grp ORDER BY slot))
            SELECT nullif(placed.grp, chr(1)) AS grp, slot AS timestamp, {columns}
            FROM placed LEFT JOIN found p ON p.grp = placed.grp AND p.start = row_before
            WINDOW so_far AS (PARTITION BY placed.grp ORDER BY slot),
                to_come AS (PARTITION BY placed.grp ORDER BY slot
                    ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
            ORDER BY grp NULLS LAST, timestamp""")


_FIRST = "(timestamp, series, place)"
AGGREGATES = {
    "mean": "avg(celsius)",
    "low": "min(celsius)",
    "high": "max(celsius)",
    "total": "sum(n)::BIGINT",
    "heat": "sum(celsius)",
    "average": "avg(n)",
    "median": "quantile_cont(celsius, 0.5)",
    "p9": "quantile_cont(n::DOUBLE, 0.9)",
    "opened": f"arg_min(celsius, {_FIRST}) FILTER (celsius IS NOT NULL)",
    "closed": f"arg_max(n, {_FIRST}) FILTER (n IS NOT NULL)",
    "there": "count(celsius)",
    "events": "count(*)",
}
COUNTS = ("there", "events")


def _new_cell(name, fill):
    """The SQL of an aggregate in a row that `fill` makes."""
    if name in COUNTS:
        return "0"
    if fill in (None, "null"):
        return "NULL"
    if fill == "previous":
        return f"p.{name}"
    if fill != "linear":
        return f"{fill}"
    time = f"CASE WHEN @{name} IS NOT NULL THEN epoch_us(slot) END"
    y0, t0 = (f"last_value({what} IGNORE NULLS) OVER so_far" for what in (f"@{name}", time))
    y1, t1 = (f"first_value({what} IGNORE NULLS) OVER to_come" for what in (f"@{name}", time))
    part = f"(epoch_us(slot) - {t0})::DOUBLE / ({t1} - {t0})"
    line = f"{y0} * (1 - {part}) + {y1} * {part}"
    return f"round_even({line}, 0)" if name in ("total", "closed") else line


def _last(limit, order):
    if limit is None:
        return ""
    return f"""QUALIFY row_number() OVER (PARTITION BY series ORDER BY {order} DESC) <= {limit}"""


def _keys(pairs):
    names, numbers = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.table([pa.array(names, pa.string()), pa.array(numbers, pa.int64())], schema=KEYS)


def _time(at):
    return f"TIMESTAMPTZ '{at.isoformat()}'"


def _text(text):
    return "'" + text.replace("'", "''") + "'"


# -- buckets -------------------------------------------------------------------------------------

STEP = timedelta(minutes=15)
"""All clocks that are asked here are changed, and show full hours, at multiples of this."""
MONDAY = datetime(2000, 1, 3)  # noqa: DTZ001 the clock of any zone


@lru_cache(maxsize=256)
def bucket_starts(width, zone, origin, low, high):
    """The starts of all buckets from the one that `low` is in to one after `high` (semantics 32.1).

    Walks the clock of the zone: a bucket begins where the clock shows a multiple of the width, or
    skips it. Widths are (number, unit).
    """
    number, unit = width
    days = {"day": 1, "week": 7}.get(unit, 0) * number
    months = {"month": 1, "quarter": 3, "year": 12}.get(unit, 0) * number
    place = ZoneInfo(zone or "UTC")
    wall = datetime(2000, 1, 1) if months else MONDAY  # noqa: DTZ001
    if origin is not None:
        wall = origin.astimezone(place).replace(tzinfo=None)
    length = timedelta(**{f"{unit}s": number}) if unit in ("minute", "hour") else None

    def is_multiple(clock):
        if length is not None:
            return (clock - wall) % length == timedelta(0)
        if clock.time() != wall.time():
            return False
        if days:
            return (clock.date() - wall.date()).days % days == 0
        gone = (clock.year - wall.year) * 12 + clock.month - wall.month
        return clock.day == wall.day and gone % months == 0

    back = timedelta(days=2 + (days or months * 31)) + (length or timedelta(0))
    at = (low - back).replace(minute=0, second=0, microsecond=0)
    end = high + 2 * back
    starts, before = [], None
    while at <= end:
        local = at.astimezone(place)
        clock = local.replace(tzinfo=None, fold=0)
        skipped = []
        if before is not None and clock - before > STEP:
            ahead = before + STEP
            while ahead < clock:
                skipped.append(ahead)
                ahead += STEP
        again = local.fold == 1 and length is None
        if any(map(is_multiple, skipped)) or (is_multiple(clock) and not again):
            starts.append(at)
        before, at = clock, at + STEP
    first = max(i for i, start in enumerate(starts) if start <= low)
    return starts[first:]
