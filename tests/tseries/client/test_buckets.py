"""Queries by buckets and gaps give what DuckDB finds in all that was delivered (semantics 32)."""

import math
from datetime import timedelta
from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.deliveries import AGGREGATES, AUTUMN, BEGIN, Deliveries, programs, start_of
from tseries.limits import set_limits

from pyspark_tseries import InvalidQuery, TimeSeries

SQL = """avg(celsius) AS mean, min(celsius) AS low, max(celsius) AS high,
    sum(n)::BIGINT AS total, quantile_cont(celsius, 0.5) AS median,
    quantile_cont(n::DOUBLE, 0.9) AS p9,
    arg_min(celsius, (timestamp, series, sequence)) FILTER (celsius IS NOT NULL) AS opened,
    arg_max(n, (timestamp, series, sequence)) FILTER (n IS NOT NULL) AS closed,
    count(celsius) AS there, count(*) AS events"""
HOUR = timedelta(hours=1)
# A view range, as a query's steps and as a condition of SQL.
VIEWS = {
    "all": (lambda query: query, "true"),
    "since": (lambda query: query.from_(BEGIN + HOUR), "timestamp >= begin + INTERVAL 1 HOUR"),
    "until": (lambda query: query.to(BEGIN + HOUR), "timestamp <= begin + INTERVAL 1 HOUR"),
    "between": (
        lambda query: query.from_(BEGIN + HOUR).to(BEGIN + 3 * HOUR),
        "timestamp BETWEEN begin + INTERVAL 1 HOUR AND begin + INTERVAL 3 HOUR",
    ),
    "next": (
        lambda query: query.from_(BEGIN + HOUR).next(2 * HOUR),
        "timestamp BETWEEN begin + INTERVAL 1 HOUR AND begin + INTERVAL 3 HOUR",
    ),
    "from a sequence": (lambda query: query.from_(2), "sequence >= 2"),
    "to a sequence": (lambda query: query.to(3), "sequence <= 3"),
    "sequences": (lambda query: query.from_(4).to(1), "sequence BETWEEN 1 AND 4"),
    "last": (
        lambda query: query.from_last(2 * HOUR),
        "timestamp >= (SELECT coalesce(max(e.timestamp) FILTER (NOT e.erased), max(e.timestamp)) "
        "FROM events e WHERE e.series = events.series) - INTERVAL 2 HOUR",
    ),
    "last events": (
        lambda query: query.from_last(2),
        "sequence >= (SELECT list_min(max(e.sequence, 2)) FROM events e "
        "WHERE e.series = events.series)",
    ),
}
ZONES = st.sampled_from([None, "Europe/Berlin", "America/New_York"])
WIDTHS = st.sampled_from(["15 minutes", "1 hour", "1 day", "1 month"])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """So that a bucket lies in several row groups, pieces and files."""
    set_limits(monkeypatch, group_rows=3, piece_rows=2, range_bytes=600, group_bytes=1)


def is_close(one, other):
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def buckets_by_duckdb(store, group, width, zone, condition="true"):
    events = store.visible()
    starts = [start_of(us, width, zone) for us in events["timestamp"].to_pylist()]
    events = events.append_column("bucket", pa.array(starts, pa.timestamp("us", "UTC")))
    begin = f"TIMESTAMPTZ '{BEGIN.isoformat()}'"
    names = "bucket" if group is None else f"{group}, bucket"
    return duckdb.sql(f"""SELECT {names}, {SQL} FROM events
        WHERE {condition.replace("begin", begin)}
        GROUP BY {names} ORDER BY {names.replace(",", " NULLS LAST,")}""")


def check(store, group, width, zone, view="all"):
    ask, condition = VIEWS[view]
    query = ask(store.series.range_query()).every(width, zone).aggregate(**AGGREGATES)
    found = (query if group == "series" else query.by(group)).select_from().to_arrow()
    wanted = buckets_by_duckdb(store, group, width, zone, condition).to_arrow_table()
    wanted = wanted.rename_columns({"bucket": "timestamp"})
    assert found.column_names == wanted.column_names
    for name in found.column_names:
        pairs = list(zip(found[name].to_pylist(), wanted[name].to_pylist(), strict=True))
        assert all(is_close(one, other) for one, other in pairs), (name, pairs)


@pytest.mark.thorough
@pytest.mark.parametrize("erases", [False, True])
@settings(max_examples=25)
@given(st.data())
def test_buckets_of_any_store_are_those_of_duckdb_over_its_deliveries(
    tmp_path_factory, erases, data
):
    begin = data.draw(st.sampled_from([BEGIN, AUTUMN]))
    store = Deliveries(str(tmp_path_factory.mktemp("buckets") / "s"), begin=begin)
    store.run(data.draw(programs(erases=erases)))
    for _ in range(3):
        check(
            store,
            data.draw(st.sampled_from(["series", "series", "room", None])),
            data.draw(WIDTHS),
            data.draw(ZONES),
            data.draw(st.sampled_from(list(VIEWS))),
        )
    check_gaps(store)


def check_gaps(store):
    events = store.visible()
    assert events is not None
    wanted = duckdb.sql("""SELECT series, before AS start, timestamp AS end FROM (
        SELECT *, lag(timestamp) OVER (PARTITION BY series ORDER BY timestamp, sequence) AS before
        FROM events) WHERE timestamp - before > INTERVAL 45 MINUTE ORDER BY ALL""")
    found = store.series.range_query().gaps("45 minutes").select_from()
    assert (
        found.select(["series", "start", "end"]).to_pylist() == wanted.to_arrow_table().to_pylist()
    )
    lengths = [row["end"] - row["start"] for row in found.to_pylist()]
    assert found["length"].to_pylist() == lengths


@pytest.fixture
def store(tmp_path):
    rows = [(name, 40, {"celsius": n / 2, "n": n, "room": "x"}) for n in range(6) for name in "ab"]
    return Deliveries(str(tmp_path / "s")).run([("append", rows)])


@settings(max_examples=12)
@given(st.data())
def test_buckets_are_the_same_however_events_lie_in_files(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("split")
    drawn = st.tuples(st.sampled_from("abc"), st.floats(-1e6, 1e6) | st.none())
    rows = [
        {"series": name, "timestamp": BEGIN + n * timedelta(minutes=7), "celsius": celsius}
        for n, (name, celsius) in enumerate(data.draw(st.lists(drawn, min_size=4, max_size=40)))
    ]
    rows = [{**row, "room": row["series"] < "b"} for row in rows]
    cuts = sorted({0, len(rows)} | data.draw(st.sets(st.integers(1, len(rows) - 1), max_size=4)))
    functions = ("mean", "sum", "min", "max", "first", "last", "median", "time_weighted_mean")
    named = {function: ("celsius", function) for function in functions}
    found = []
    for number, ends in enumerate([[0, len(rows)], cuts]):
        values = {"celsius": pa.float64(), "room": pa.bool_()}
        store = TimeSeries.create(
            place / str(number), values, "unlimited", "me", auto_compact=False, durability="os"
        )
        for first, end in pairwise(ends):
            store.append_many(rows[first:end])
        care = data.draw(st.sampled_from(["none", "compact", "z-order"]))
        if care == "compact":
            store.compact()
        elif care == "z-order":
            DeltaTable(place / str(number)).optimize.z_order(["celsius"])
        query = store.range_query().every("1 hour").aggregate(n=("*", "count"), **named)
        queries = [query, query.by("room"), query.by()]
        found.append([each.select_from().to_arrow().to_pylist() for each in queries])
    assert found[0] == found[1]


def test_a_stream_of_buckets_has_the_rows_of_the_whole(store):
    query = store.series.range_query().every("1 hour").aggregate(n="sum").fill("previous")
    assert query.stream_from().read_all().equals(query.select_from().to_arrow())
    assert set(query.select_from("b").to_arrow()["series"].to_pylist()) == {"b"}
    assert len(query.select_from("nobody")) == 0


@pytest.mark.parametrize(
    ("ask", "hours"),
    [
        (lambda q, at: q.from_(at).to(1), range(4)),
        (lambda q, at: q.from_(at).next(1), range(3)),
        (lambda q, at: q.from_(2).to(at), range(5)),
        (lambda q, at: q.from_(9).to(at), range(5)),
        (lambda q, at: q.from_last(1).to(at), range(4)),
        (lambda q, at: q.from_(at + 9 * HOUR).to(1), range(3, 10)),
        (lambda q, at: q.from_(at + 9 * HOUR).previous(2), range(3, 10)),
        (lambda q, at: q.from_(at).next(5 * HOUR), range(6)),
        (lambda q, at: q.from_(at + 9 * HOUR).previous(8 * HOUR), range(1, 10)),
    ],
)
def test_filled_buckets_begin_and_end_at_a_time_on_either_side_of_the_events(tmp_path, ask, hours):
    store = TimeSeries.create(tmp_path / "s", {"n": pa.int64()}, "unlimited")
    for hour in (2, 3, 4):
        store.append("a", hour, BEGIN + hour * HOUR)
    query = ask(store.range_query(), BEGIN).every("1 hour").aggregate(n="sum").fill()
    found = query.select_from("a").to_arrow()["timestamp"].to_pylist()
    assert found == [BEGIN + hour * HOUR for hour in hours]


def test_a_result_of_buckets_is_a_frame_and_a_page(store):
    found = store.series.range_query().every("1 hour").aggregate(n="sum").select_from("a")
    assert list(found.to_pandas().columns) == ["series", "timestamp", "n"]
    assert "buckets" in repr(found)
    assert "<svg" in found._repr_html_()
    assert found == store.series.range_query().every("1 hour").aggregate(n="sum").select_from("a")


def test_buckets_of_all_series_together_have_no_column_of_a_group_and_are_drawn_as_one_line(store):
    query = store.series.range_query().every("1 hour").aggregate(n="sum").by()
    found = query.select_from()
    assert found.table.column_names == ["timestamp", "n"]
    wanted = query.by("series").select_from().to_pandas().groupby("timestamp")["n"].sum()
    assert found.table["n"].to_pylist() == wanted.tolist() != []
    assert "BucketResult(6 buckets, 2026" in repr(found)
    assert "<svg" in found._repr_html_()
    assert len(query.fill(0).select_from("nobody")) == 0


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda query: query.for_edits().every("1 hour"), "a query of allEdits has no buckets"),
        (lambda query: query.for_edits().gaps("1 hour"), "a query of allEdits has no gaps"),
        (lambda query: query.columns("n").every("1 hour"), "belongs to queries of events"),
        (lambda query: query.every("often"), "is not the width of buckets"),
        (lambda query: query.gaps("-1 hour"), "is not the length of a gap"),
        (lambda query: query.gaps(7), "is not the length of a gap"),
        (lambda query: query.gaps(b"1 hour"), "is not the length of a gap"),
        (lambda query: query.every(b"1 hour"), "is not the width of buckets"),
        (lambda query: query.every("1 hour").select_from(), "no aggregate is named"),
        (
            lambda query: query.every("1 hour").aggregate(n="sum").by("m").select_from(),
            "'m' is not",
        ),
        (
            lambda query: query.every("1 hour").aggregate(room="last").by("room").select_from(),
            "the result has a column 'room' anyway",
        ),
    ],
)
def test_what_has_no_buckets_is_refused_by_name(store, ask, said):
    with pytest.raises(InvalidQuery, match=said) as refused:
        ask(store.series.range_query())
    assert refused.value.next_step
