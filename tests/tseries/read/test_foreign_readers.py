"""DuckDB and Polars get the values that our own query gives, by the SQL of the documents."""

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import VALUE, batch
from tseries.foreign import COLUMNS, current_values

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.compactor import compact, merge_file_groups
from pyspark_tseries.model.ranges import parse_range
from pyspark_tseries.store.store import Store

SECOND_US = 1_000_000
RANGES = ["unlimited", "limit 1", "limit 4", "last 2S", "limit 3 last 1S"]
NAMES = "abc"


def ours(path):
    client = TimeSeries.open(str(path), auto_compact=False)
    tables = [client.range_query().select_from(name).to_arrow() for name in NAMES]
    return [tuple(row.values()) for table in tables for row in table.select(COLUMNS).to_pylist()]


def duckdbs(path, sql):
    with duckdb.connect() as engine:
        engine.register("events", DeltaTable(path).to_pyarrow_table())
        return engine.sql(f"SELECT {', '.join(COLUMNS)} FROM ({sql})").fetchall()


def polarss(path, sql):
    engine = polars.SQLContext(events=polars.scan_delta(str(path)))
    return engine.execute(sql, eager=True).select(COLUMNS).rows()


def fill(path, retained):
    """Two commits, edits of edited and of discarded events, a series with one event."""
    store = Store.create(str(path), [VALUE], parse_range(retained), min_retention_us=0)
    rows = [(name, n * SECOND_US // 2) for n in range(12) for name in "ab"]
    store.append(batch(*rows, ("c", 0)), clock=lambda: 6 * SECOND_US)
    edits = [("a", 10, 1.5), ("b", 9, 2.5), ("a", 10, 3.5), ("a", 11, 4.5), ("c", 0, 5.5)]
    store.append(
        batch(("a", 6 * SECOND_US), edits=edits, missing="drop"), clock=lambda: 7 * SECOND_US
    )
    store.append(batch(("b", 6 * SECOND_US), ("b", 6 * SECOND_US)), clock=lambda: 8 * SECOND_US)


@pytest.mark.parametrize("retained", RANGES)
def test_foreign_engines_get_the_same_values_before_and_after_a_compaction(tmp_path, retained):
    path, sql = tmp_path / "s", current_values(retained)
    fill(path, retained)
    expected = ours(path)
    assert expected
    for _ in range(2):
        assert duckdbs(path, sql) == expected
        assert polarss(path, sql) == expected
        assert ours(path) == expected
        compact(str(path))


def test_sql_of_the_page_gives_the_times_of_originals_as_our_query_does(tmp_path):
    fill(tmp_path / "s", "unlimited")
    client = TimeSeries.open(str(tmp_path / "s"), auto_compact=False)
    tables = [client.range_query().select_from(name).to_arrow() for name in NAMES]
    expected = [time for table in tables for time in table["timestamp"].to_pylist()]
    sql = current_values("unlimited")
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("events", DeltaTable(tmp_path / "s").to_pyarrow_table())
        found = engine.sql(f"SELECT since FROM ({sql})").to_arrow_table()["since"].to_pylist()
    assert found == expected


def test_the_sql_without_its_range_would_show_more(tmp_path):
    fill(tmp_path / "s", "limit 4")
    assert duckdbs(tmp_path / "s", current_values("unlimited")) != ours(tmp_path / "s")


STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2)), min_size=1),
    ),
    st.tuples(
        st.just("edit"),
        st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), min_size=1, max_size=4),
    ),
    st.tuples(st.just("compact"), st.booleans()),
)


@pytest.mark.thorough
@settings(max_examples=60)
@given(st.sampled_from(RANGES), st.lists(STEPS, max_size=8))
def test_after_any_program_all_engines_agree(tmp_path_factory, retained, steps):
    path, sql = tmp_path_factory.mktemp("program") / "s", current_values(retained)
    store = Store.create(str(path), [VALUE], parse_range(retained), min_retention_us=0)
    newest = dict.fromkeys(NAMES, 0)
    for number, (kind, what) in enumerate(steps):
        now = (number + 1) * SECOND_US
        if kind == "append":
            rows = []
            for name, ahead in what:
                newest[name] += ahead * SECOND_US // 2
                rows.append((name, newest[name]))
            store.append(batch(*rows), clock=lambda now=now: now)
        elif kind == "edit":
            edits = [(name, location, float(number)) for name, location in what]
            store.append(batch(edits=edits, missing="drop"), clock=lambda now=now: now)
        else:
            merge_file_groups(store, 2**60, everything=what)
    expected = ours(path)
    assert duckdbs(path, sql) == expected
    assert polarss(path, sql) == expected
