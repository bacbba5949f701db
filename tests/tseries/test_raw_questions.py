"""A store answers every question as DuckDB does from all that was delivered (semantics 31, 32).

QUESTIONS says how many random stores are asked (`make questions`: 3,000).
"""

import math
import os
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tseries.deliveries import AGGREGATES
from tseries.limits import set_limits
from tseries.raw_oracle import Oracle, bucket_starts
from tseries.raw_store import NAMES, ODD_DAYS, PROGRAMS, some_store

from pyspark_tseries import NoSuchEvent

STORES = int(os.environ.get("QUESTIONS", "30"))
HOUR = timedelta(hours=1)
CHOICES = [
    ({}, "true"),
    ({}, "true"),
    ({"series": "a"}, "series = 'a'"),
    ({"series": "nobody"}, "false"),
    ({"series": ["b/1", "nobody", "a", "a", ""]}, "series IN ('b/1', 'a', '')"),
    ({"prefix": "b"}, "starts_with(series, 'b')"),
    ({"pattern": "*[/a]*"}, "series GLOB '*[/a]*'"),
    ({"pattern": "?"}, "length(series) = 1"),
]


@pytest.fixture(autouse=True, scope="module")
def _small_limits():
    """So that a few events lie in several row groups, pieces, parts and files."""
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, group_rows=3, piece_rows=2, range_bytes=600, group_bytes=1)
        yield


@pytest.mark.thorough
@settings(max_examples=STORES, suppress_health_check=list(HealthCheck))
@given(PROGRAMS, st.randoms())
def test_questions_of_any_store_are_answered_from_all_that_was_delivered(
    tmp_path_factory, steps, chance
):
    store = some_store(tmp_path_factory.mktemp("store") / "s", steps, chance)
    with Oracle(store) as oracle:
        ask_all(store.client, store, oracle, chance)
    for moment in chance.sample(store.moments, min(2, len(store.moments))):
        past = store.past(moment, chance)
        if past is not None:
            with Oracle(store, moment.commit) as oracle:
                ask_all(past, store, oracle, chance)


def ask_all(asked, store, oracle, chance):
    """Asks a store, or one as of an earlier time, and its oracle."""
    for question in (
        ask_values,
        ask_edits,
        ask_latest,
        ask_list,
        ask_history,
        ask_sql,
        ask_buckets,
        ask_buckets,
        ask_gaps,
    ):
        question(asked, store, oracle, chance)


def same(found, wanted, *about):
    """Compares tables by the values of their rows; a NaN equals a NaN."""
    assert found.column_names == wanted.column_names, about
    columns = [
        list(zip(found[name].to_pylist(), wanted[name].to_pylist(), strict=False))
        for name in found.column_names
    ]
    assert found.num_rows == wanted.num_rows, (found.to_pylist(), wanted.to_pylist(), about)
    for name, pairs in zip(found.column_names, columns, strict=True):
        assert all(is_close(*pair) for pair in pairs), (name, pairs, about)


def is_close(one, other):
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def some_view(store, chance, *, counts=True):
    """A view range: steps of a query, its condition in SQL, and the times that it names."""
    early, late = (store.begin + chance.choice([-1, 0, 1, 3, 26]) * HOUR for _ in range(2))
    low, high = sorted([early, late])
    n, m = sorted(chance.choice(range(9)) for _ in range(2))
    views = [
        (lambda q: q, "true", (None, None)),
        (lambda q: q.from_start(), "true", (None, None)),
        (lambda q: q.from_(low), f"timestamp >= '{low}'", (low, None)),
        (lambda q: q.to(high), f"timestamp <= '{high}'", (None, high)),
        (lambda q: q.from_(early).to(late), f"timestamp BETWEEN '{low}' AND '{high}'", (low, high)),
        (
            lambda q: q.from_(low).next(2 * HOUR),
            f"timestamp BETWEEN '{low}' AND '{low + 2 * HOUR}'",
            (low, low + 2 * HOUR),
        ),
        (lambda q: q.from_(n), f"place >= {n}", (None, None)),
        (lambda q: q.from_(n).to(m), f"place BETWEEN {n} AND {m}", (None, None)),
    ]
    if counts:
        views += [
            (lambda q: q.from_last(n), f"rank <= {n}", (None, None)),
            (lambda q: q.until_last(n), f"rank > {n}", (None, None)),
        ]
    return chance.choice(views)


def ask_values(asked, store, oracle, chance):
    named, chosen = chance.choice(CHOICES)
    narrow, view, _ = some_view(store, chance)
    limit = chance.choice([None, None, 0, 1, 3])
    query = narrow(asked.range_query())
    edits = "true"
    if chance.random() < 0.3:
        n = chance.choice(range(9))
        query, edits = query.edit_range().from_(n), f"sequence >= {n}"
    query = query if limit is None else query.limit(limit)
    wanted = oracle.values(chosen, view, edits, limit)
    found = query.select_from(**named)
    same(found.to_arrow(), wanted, named, view, edits, limit)
    same(query.stream_from(**named).read_all(), wanted, named, view, edits, limit)
    everything = oracle.values(chosen, view, edits)
    assert found.selected_count == everything.num_rows


def ask_edits(asked, store, oracle, chance):
    named, chosen = chance.choice(CHOICES)
    narrow, view, _ = some_view(store, chance, counts=False)
    kind, limit = chance.choice(["allEdits", "latestEdits"]), chance.choice([None, 2])
    query = narrow(asked.range_query().for_edits())
    query = query.latest_edits() if kind == "latestEdits" else query
    query = query if limit is None else query.limit(limit)
    wanted = oracle.edits(kind, chosen, view, limit)
    same(query.select_from(**named).to_arrow(), wanted, kind, named, view, limit)
    same(query.stream_from(**named).read_all(), wanted, kind, named, view, limit)


def ask_latest(asked, store, oracle, chance):
    for at in (None, store.begin + chance.choice([-1, 0, 1, 3, 26]) * HOUR):
        named, chosen = chance.choice(CHOICES)
        count = chance.choice([1, 1, 2, 5])
        wanted = oracle.latest(chosen, count, at)
        same(asked.latest(count=count, at=at, **named).to_arrow(), wanted, named, count, at)
        columns = chance.choice([["series", "celsius"], ["timestamp"], ["room", "n", "sequence"]])
        some = asked.latest(count=count, at=at, columns=columns, **named).to_arrow()
        same(some, wanted.select(columns), named, count, at)


def ask_list(asked, store, oracle, chance):
    named, chosen = chance.choice([c for c in CHOICES if "series" not in c[0]])
    same(asked.series(**named), oracle.ask(f"FROM series WHERE {chosen} ORDER BY series"), named)


def ask_history(asked, store, oracle, chance):
    for _ in range(3):
        name, sequence = chance.choice(NAMES), chance.choice(range(12))
        wanted = oracle.history(name, sequence)
        try:
            found = asked.history(name, sequence)
        except NoSuchEvent:
            assert not wanted.num_rows, (name, sequence)
        else:
            same(found, wanted, name, sequence)


STATEMENTS = [
    "FROM events ORDER BY series, coalesce(original_sequence, sequence)",
    "SELECT series, count(*), avg(n), max(celsius) FROM events GROUP BY ALL ORDER BY ALL",
    "SELECT room, sum(n)::BIGINT FROM events WHERE timestamp >= '{at}' GROUP BY 1 ORDER BY ALL",
    "SELECT count(*) FROM events WHERE series IN ('a', '') AND sequence > 2",
    "SELECT * FROM events WHERE n > 1 AND timestamp <= '{at}' ORDER BY series, sequence",
    "FROM series ORDER BY series",
    "SELECT series, sequence, timestamp, author, celsius, n, room, original_sequence, "
    "original_timestamp, original_author, commit, commit_time FROM all_events ORDER BY ALL",
    "SELECT e.series, e.n, s.newest FROM events e JOIN series s USING (series) "
    "WHERE e.timestamp = s.newest ORDER BY ALL",
    "SELECT author, count(*) FROM all_events WHERE original_sequence IS NULL GROUP BY 1 ORDER BY 1",
]


def ask_sql(asked, store, oracle, chance):
    at = store.begin + chance.choice([0, 1, 26]) * HOUR
    for statement in chance.sample(STATEMENTS, 3):
        text = statement.format(at=at)
        found = asked.sql(text).to_arrow_table()
        same(found, oracle.ask(text), text)


WIDTHS = [
    *[(15, "minute"), (90, "minute"), (1, "hour"), (6, "hour")],
    *[(1, "day"), (2, "day"), (1, "week"), (1, "month"), (1, "quarter")],
]


def ask_buckets(asked, store, oracle, chance):
    named, chosen = chance.choice(CHOICES)
    narrow, view, ends = some_view(store, chance, counts=False)
    while "place" in view:
        narrow, view, ends = some_view(store, chance, counts=False)
    group = chance.choice(["series", "series", "room", None])
    number, unit = width = chance.choice(WIDTHS)
    zone = chance.choice([None, *ODD_DAYS])
    origin = chance.choice([None, None, store.begin + timedelta(minutes=45)])
    if unit in ("month", "quarter") and not 1 < store.begin.day < 27:
        origin = None  # Some months lack the day.
    fill = chance.choice([None, None, "null", "previous", "linear", 7])
    query = narrow(asked.range_query()).every(f"{number} {unit}s", zone, origin)
    query = query if fill is None else query.fill(fill)
    query = query if group == "series" else query.by(group)
    query = query.aggregate(**QUERIED)
    times = [row["timestamp"] for row in store.rows] + [at for at in ends if at is not None]
    low, high = min(times, default=store.begin), max(times, default=store.begin)
    starts = bucket_starts(width, zone, origin, low, high)
    wanted = oracle.buckets(group, starts, view, chosen, fill, ends)
    found = query.select_from(**named).to_arrow()
    wanted = wanted.rename_columns([group or "all", *wanted.column_names[1:]])
    about = group, width, zone, origin, view, named, fill, ends
    same(found, wanted.select(found.column_names), *about)
    same(query.stream_from(**named).read_all(), wanted.select(found.column_names), *about)


QUERIED = {
    **AGGREGATES,
    "heat": ("celsius", "sum"),
    "average": ("n", "mean"),
    "weighted": ("celsius", "time_weighted_mean"),
}


def ask_gaps(asked, store, oracle, chance):
    named, chosen = chance.choice(CHOICES)
    narrow, view, _ = some_view(store, chance)
    found = narrow(asked.range_query()).gaps("45 minutes").select_from(**named)
    wanted = oracle.gaps(chosen, view, "INTERVAL 45 MINUTE")
    same(found.select(["series", "start", "end"]), wanted, named, view)
    assert found["length"].to_pylist() == [r["end"] - r["start"] for r in found.to_pylist()]
