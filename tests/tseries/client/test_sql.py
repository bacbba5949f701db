"""SQL sees what range queries see, of one commit, and can change nothing."""

import dataclasses
import re
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import VALUE, batch, forget_stores
from tseries.object_store import bucket  # noqa: F401 a fixture
from tseries.rewriting import in_milliseconds, rewritten_by_spark, with_columns_backwards

from pyspark_tseries import InvalidQuery, NoSuchEvent, PermissionDenied, TimeSeries
from pyspark_tseries.client import sql
from pyspark_tseries.maintain import compactor
from pyspark_tseries.maintain.compactor import compact, merge_file_groups
from pyspark_tseries.maintain.erase import erase
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.columns import file_schema, result_schema
from pyspark_tseries.model.ranges import ALL_SERIES, Query, RetainedRange
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.read.view import View
from pyspark_tseries.store.admin_commits import add_columns, set_retained_range
from pyspark_tseries.store.store import Store

MS = 1000
NAMES = ["a", "b", "\u00e9'\"\n%", "\U00020bb7"]
CURRENT = "FROM events ORDER BY series, coalesce(original_sequence, sequence)"
SQL_NAMES = sorted(
    {name for ask in (TimeSeries.sql, sql.ask) for name in ask.__code__.co_varnames} | {"cursor"}
)
AUDIT = "FROM all_events ORDER BY series, sequence"


def opened(path):
    return TimeSeries.open(str(path), "me", auto_compact=False)


def arrow(relation, schema):
    """The rows of a relation in the store's types; only unsigned or shorter ones would differ."""
    return relation.to_arrow_table().cast(schema)


def current(client):
    return client.range_query().select_from().to_arrow()


def shown(client, connection=None):
    relation = client.sql(CURRENT) if connection is None else connection.sql(CURRENT)
    return arrow(relation, current(client).schema)


def rows_of(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def delivered(path, values):
    """Every stored event as a Delta reader sees it."""
    names = file_schema(values).names
    rows = DeltaTable(str(path)).to_pyarrow_table()
    if "erasure" not in rows.column_names:
        rows = rows.append_column("erasure", pa.nulls(rows.num_rows, pa.string()))
    order = [("series", "ascending"), ("sequence", "ascending")]
    return rows.select(names).cast(file_schema(values)).sort_by(order)


RANGES = st.builds(
    RetainedRange,
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 9).map(lambda ms: ms * MS),
)
NAME = st.sampled_from(NAMES)
STEPS = st.one_of(
    *[st.tuples(st.just("append"), st.lists(st.tuples(NAME, st.integers(0, 3)), min_size=1))] * 3,
    *[st.tuples(st.just("edit"), st.lists(st.tuples(NAME, st.integers(0, 6)), min_size=1))] * 2,
    st.tuples(st.just("range"), RANGES),
    st.tuples(st.just("erase"), st.tuples(NAME, st.integers(0, 6))),
    st.tuples(st.sampled_from(["compact", "merge", "optimize", "rebuild", "reopen"]), st.none()),
)


class Program:
    """A store that steps change."""

    def __init__(self, path, retained):
        self.path, self.newest_us = str(path), dict.fromkeys(NAMES, 0)
        self.store = Store.create(self.path, [VALUE], retained, min_retention_us=0)

    def step(self, number, act, what):
        now = (number + 1) * 3 * MS
        if act == "append":
            rows = []
            for at, (name, ahead) in enumerate(what):
                self.newest_us[name] += ahead * MS
                rows.append((name, self.newest_us[name], number + at / 100))
            self.store.append(batch(*rows), lambda: now)
        elif act == "edit":
            edits = [(name, sequence, -float(number)) for name, sequence in what]
            self.store.append(batch(edits=edits, missing="drop"), lambda: now)
        elif act == "range":
            set_retained_range(self.store, what, now, "me")
        elif act == "erase":
            try:
                erase(Store.open(self.path), *what, "test", clock=lambda: now)
            except NoSuchEvent:
                return
        elif act == "compact":
            compact(self.path, now)
        elif act == "merge":
            with pytest.MonkeyPatch.context() as few:
                few.setattr(compactor, "MIN_GROUPS_TO_MERGE", 2)
                merge_file_groups(self.store, now, everything=False)
        elif act == "optimize":
            DeltaTable(self.path).optimize.compact()
        elif act == "rebuild":
            rebuild(self.path)
        else:
            forget_stores()
            self.store = Store.open(self.path)


@pytest.mark.thorough
@settings(max_examples=40)
@given(RANGES, st.lists(STEPS, max_size=9), st.integers(0, 9))
def test_after_any_program_sql_gives_what_queries_give(tmp_path_factory, retained, steps, seen):
    """Asked in the middle, too, so that what is kept from commit to commit is shown right."""
    program = Program(tmp_path_factory.mktemp("program") / "s", retained)
    connection = opened(program.path).connect()
    for number, (act, what) in enumerate(steps):
        program.step(number, act, what)
        if number == seen:
            client = opened(program.path)
            assert shown(client).equals(current(client))
            client.refresh(connection)
    client = opened(program.path)
    assert shown(client).equals(current(client))
    assert arrow(client.sql(AUDIT), file_schema([VALUE])).equals(delivered(program.path, [VALUE]))
    assert client.sql("FROM series").fetchall() == rows_of(client.series())
    client.refresh(connection)
    assert shown(client, connection).equals(current(client))
    assert connection.sql("FROM series").fetchall() == rows_of(client.series())
    connection.close()


@settings(max_examples=30)
@given(RANGES, st.lists(STEPS, min_size=4, max_size=9), st.integers(0, 8))
def test_an_earlier_commit_is_shown_as_it_was(tmp_path_factory, retained, steps, moment):
    program = Program(tmp_path_factory.mktemp("program") / "s", retained)
    for number, (act, what) in enumerate(steps):
        program.step(number, act, what)
    try:
        past = program.store.snapshot().at_time((moment + 1) * 3 * MS)
    except InvalidQuery:
        return
    view = View(past, "me")
    expected = run_query(Scope(past, past.index()), Query()).table
    assert arrow(sql.ask(view, CURRENT), expected.schema).equals(expected)
    last = program.store.snapshot() if past.as_of is None else past
    rows = delivered(program.path, [VALUE])
    if last.as_of is not None:
        rows = rows.filter(pc.less_equal(rows["commit"], last.as_of))
    assert arrow(sql.ask(view, AUDIT), rows.schema).equals(rows)


def filled(path, retained="unlimited", **settings):
    """Two commits with an edit in force and one that a later edit overrides."""
    client = TimeSeries.create(
        path, {"value": pa.float64()}, retained, "me", auto_compact=False, **settings
    )
    rows = [
        {"series": name, "timestamp": at(n), "value": n + 0.5} for n in range(6) for name in "ab"
    ]
    client.append_many(rows)
    client.append("a", 6.5, at(6))
    client.edit("a", 5, -1.0)
    client.edit("a", 5, -2.0)
    return client


def at(n):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n)


def test_views_have_the_columns_of_queries_of_the_table_and_of_the_list_of_series(tmp_path):
    client = filled(tmp_path / "s")
    found = client.sql("FROM events").to_arrow_table().schema
    assert [field.type for field in found] == [field.type for field in result_schema([VALUE])]
    assert client.sql("FROM events").columns == result_schema([VALUE]).names
    assert client.sql("FROM all_events").columns == file_schema([VALUE]).names
    assert client.sql(
        "SELECT * REPLACE (first::TEXT AS first, newest::TEXT AS newest) FROM series"
    ).fetchall() == [
        ("a", 7, 2, "2026-01-01 00:00:00+00", "2026-01-01 00:00:06+00"),
        ("b", 6, 0, "2026-01-01 00:00:00+00", "2026-01-01 00:00:05+00"),
    ]
    assert client.sql(
        "SELECT value FROM events WHERE series = 'a' ORDER BY timestamp"
    ).fetchall() == [(value,) for value in (0.5, 1.5, 2.5, 3.5, 4.5, -2.0, 6.5)]


@pytest.mark.parametrize("retained", ["limit 3", "last 2S", "limit 5 last 1S"])
def test_each_retained_range_hides_what_it_hides_from_queries(tmp_path, retained):
    client = filled(tmp_path / "s", retained)
    for _ in range(2):
        assert shown(client).equals(current(client))
        client.compact()


def test_an_edit_whose_original_was_lost_is_not_a_value(tmp_path):
    """As in range queries, after a repair has given up a file of originals."""
    client = filled(tmp_path / "s")
    client.append("b", 8.0, at(8))
    client.edit("b", 6, 7.0)
    whole = client._store.snapshot()
    files = [file for file in whole.files if (file.kind, file.rows) != ("event", 12)]
    assert [file.kind for file in files].count("edit") == 3
    view = View(dataclasses.replace(whole, files=files), "me")
    assert sql.ask(view, "SELECT series, value FROM events ORDER BY ALL").fetchall() == [
        ("a", 6.5),
        ("b", 7.0),
    ]
    expected = view.select(Query(), ALL_SERIES).table
    assert arrow(sql.ask(view, CURRENT), expected.schema).equals(expected)


def test_an_empty_store_has_empty_views(tmp_path):
    client = TimeSeries.create(tmp_path / "s", {"value": pa.float64()}, auto_compact=False)
    for name in sql.VIEWS:
        assert client.sql(f"FROM {name}").fetchall() == []
    connection = client.connect()
    client.append("a", 1.0)
    client.refresh(connection)
    assert connection.sql("SELECT value FROM events").fetchall() == [(1.0,)]


def test_a_relation_is_of_the_commit_of_its_statement(tmp_path):
    client = filled(tmp_path / "s")
    before = client.sql("FROM events")
    for n in range(10):
        client.append("c", float(n))
        assert client.sql("SELECT count(*) FROM events").fetchall()[0] == (14 + n,)
    client.compact()
    assert before.aggregate("count(*)").fetchall()[0] == (13,)


@pytest.mark.parametrize("step", ["BEGIN", "CREATE", "COMMIT"])
@pytest.mark.parametrize("after", [False, True])
def test_a_refresh_that_is_interrupted_leaves_the_connection_as_it_was(tmp_path, step, after):
    """Ctrl-C in a notebook may come between any two steps."""
    client = TimeSeries.create(tmp_path / "s", {"n": pa.int64()}, "unlimited", auto_compact=False)
    client.append("a", 1)
    connection = client.connect()

    class Interrupted:
        armed = True

        def __getattr__(self, name):
            return getattr(connection, name)

        def execute(self, text):
            due = self.armed and text.startswith(step)
            self.armed = self.armed and not due
            if due and not after:
                raise KeyboardInterrupt
            result = connection.execute(text)
            if due:
                raise KeyboardInterrupt
            return result

    client.append("a", 2)
    with pytest.raises(KeyboardInterrupt):
        client.refresh(Interrupted())
    counted = "SELECT count(*) FROM events"
    shown_now = (2,) if (step, after) == ("COMMIT", True) else (1,)
    assert connection.execute(counted).fetchone() == shown_now
    client.refresh(connection)
    assert connection.execute(counted).fetchone() == (2,)


@pytest.mark.parametrize("file", ["", "own.db"])
def test_a_refresh_within_a_transaction_is_refused_and_loses_nothing_of_it(tmp_path, file):
    client = filled(tmp_path / "s")
    with duckdb.connect(str(tmp_path / file) if file else ":memory:") as connection:
        connection.execute("CREATE TABLE mine (i INTEGER)")
        connection.begin()
        connection.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(InvalidQuery, match=r"open transaction.*commit\(\) or rollback\(\)"):
            client.refresh(connection)
        connection.commit()
        assert connection.execute("FROM mine").fetchall() == [(1,)]
        client.refresh(connection)
        connection.begin()
        with pytest.raises(duckdb.Error):
            connection.execute("FROM nowhere")
        with pytest.raises(InvalidQuery, match=r"open transaction"):
            client.refresh(connection)
        connection.rollback()
        client.refresh(connection)
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (13,)


def test_a_connection_shows_its_commit_until_refresh_and_so_do_its_cursors(tmp_path):
    client = filled(tmp_path / "s", "limit 100")
    connection = client.connect()
    connection.execute("CREATE TABLE mine AS SELECT max(value) AS best FROM events")
    client.append("a", 99.0)
    client.edit("b", 0, 100.0)
    cursor = connection.cursor()
    for one in (connection, cursor):
        assert one.sql("SELECT count(*), max(value) FROM events").fetchall()[0] == (13, 6.5)
    client.refresh(connection)
    for one in (connection, cursor):
        assert one.sql("SELECT count(*), max(value) FROM events").fetchall()[0] == (14, 100.0)
        assert one.sql("SELECT count(*) FROM all_events, mine WHERE best < 7").fetchall()[0] == (
            17,
        )
        assert one.sql("SELECT sum(events) FROM series").fetchall()[0] == (14,)
    own = duckdb.connect()
    client.refresh(own)
    assert own.sql("SELECT count(*) FROM events").fetchall()[0] == (14,)


def test_a_store_as_of_a_commit_is_asked_and_connected_to_as_well(tmp_path):
    client = filled(tmp_path / "s")
    past = client.as_of(1)
    connection = past.connect()
    client.append("b", 9.0)
    past.refresh(connection)
    for asked in (past.sql, connection.sql):
        assert asked("SELECT count(*), min(value) FROM events").fetchall() == [(13, 0.5)]
        assert asked("SELECT sum(events), sum(edits) FROM series").fetchall() == [(13, 0)]


def test_parameters_and_tables_of_the_caller_are_taken(tmp_path):
    client = filled(tmp_path / "s")
    names = pa.table({"series": ["b"], "room": ["bath"]})
    asked = "SELECT room, count(*) FROM events JOIN names USING (series) GROUP BY room"
    assert client.sql(asked).fetchall() == [("bath", 6)]
    assert names.num_rows == 1
    one = client.sql("SELECT value FROM events WHERE series = ? AND sequence = $2", ["b", 4])
    assert one.fetchall() == [(4.5,)]
    one = client.sql("SELECT count(*) FROM all_events WHERE series = $name", {"name": "a"})
    assert one.fetchall() == [(9,)]


IN_A_FUNCTION = """
def ask():
    {name} = table
    inner = lambda: client.sql('SELECT n FROM {name}' + where, values)
    return ({name}, inner())[1]
answer = ask()
"""
IN_A_MODULE = """
{name} = table
answer = client.sql('SELECT n FROM {name}' + where, values)
"""


@pytest.mark.parametrize("script", [IN_A_FUNCTION, IN_A_MODULE], ids=["function", "module"])
@pytest.mark.parametrize("name", [*SQL_NAMES, "Query", "sql", "TimeSeries"])
def test_a_table_of_the_caller_may_have_the_name_of_a_variable_of_the_package(
    tmp_path, script, name
):
    client = filled(tmp_path / "s")
    for table in (pa.table({"n": [7, 8]}), pd.DataFrame({"n": [7, 8]})):
        for where, values in (("", None), (" WHERE n >= ?", [7])):
            variables = {"client": client, "table": table, "where": where, "values": values}
            exec(script.format(name=name), variables)
            later = variables["answer"].filter("n > 7")
            assert (later.fetchall(), variables["answer"].fetchall()) == ([(8,)], [(7,), (8,)])


def test_the_nearest_variable_of_a_name_is_the_table_but_a_view_is_no_variable(tmp_path):
    client = filled(tmp_path / "s")
    mine = events = pa.table({"n": [1]})

    def ask(mine):
        return client.sql("SELECT n FROM mine").fetchall(), mine.num_rows

    assert ask(pa.table({"n": [2]})) == ([(2,)], 1)
    assert client.sql("SELECT n FROM mine").fetchall() == [(1,)]
    assert client.sql("SELECT count(*) FROM events").fetchall() == [(13,)]
    with pytest.raises(duckdb.CatalogException, match="nowhere"):
        client.sql("FROM nowhere")
    assert mine is events


@pytest.mark.parametrize(
    "statement",
    [
        "FROM events SELECT count(*)",
        "WITH x AS (FROM events) SELECT count(*) FROM x",
        "SELECT count(*) FROM Temp.EVENTS",
        'SELECT (SELECT count(*) FROM "events")',
        "SELECT count(*) FROM (FROM events SELECT author, timestamp, series UNION "
        "FROM events SELECT author, timestamp, series)",
    ],
)
def test_a_view_may_be_named_in_any_way(tmp_path, statement):
    assert filled(tmp_path / "s").sql(statement).fetchall() == [(13,)]


def test_pivots_summaries_and_explanations_are_questions(tmp_path):
    client = filled(tmp_path / "s")
    pivoted = client.sql("PIVOT events ON series USING count(*) GROUP BY author")
    assert pivoted.fetchall() == [("me", 7, 6)]
    assert len(client.sql("SUMMARIZE events")) == len(result_schema([VALUE]))
    assert "PARQUET" in client.sql("EXPLAIN FROM events").fetchall()[0][1].upper()


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        ("CREATE TABLE mine AS FROM events", "a statement of type CREATE"),
        ("COPY (FROM events) TO 'mine.csv'", "a statement of type COPY"),
        ("SET threads = 1", "a statement of type SET"),
        ("DROP VIEW events", "a statement of type DROP"),
        ("INSERT INTO events VALUES (1)", "a statement of type INSERT"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("", "0 statements"),
        ("SHOW TABLES", "sql.. does not list tables: .*; accepted: .* about events, all_events"),
        (" show all tables;", "does not list tables"),
        ("DESCRIBE", "does not list tables"),
        (7, "7 is not a statement"),
        ("SELECT '\ud800'", "is not a statement"),
    ],
)
def test_what_does_more_than_ask_is_refused_by_name(tmp_path, statement, given):
    client = filled(tmp_path / "s")
    with pytest.raises(InvalidQuery, match=given):
        client.sql(statement)
    assert client.sql("SELECT count(*) FROM events").fetchall() == [(13,)]


@pytest.mark.parametrize("given", [5, "b", b"b", 1.5])
def test_what_is_no_parameters_or_no_connection_is_refused_by_name(tmp_path, given):
    client = filled(tmp_path / "s")
    for ask in (lambda: client.sql("SELECT ?", given), lambda: client.refresh(given)):
        with pytest.raises(InvalidQuery, match=re.escape(repr(given))) as refused:
            ask()
        assert refused.value.next_step


def test_errors_of_duckdb_name_the_columns_and_views_that_there_are(tmp_path):
    client = filled(tmp_path / "s")
    with pytest.raises(duckdb.BinderException, match='"value"'):
        client.sql("SELECT valu FROM events")
    with pytest.raises(duckdb.CatalogException, match="event_s"):
        client.sql("FROM event_s")
    with pytest.raises(duckdb.ParserException):
        client.sql("SELECT FROM WHERE")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO events (series) VALUES ('x')",
        "UPDATE events SET value = 0",
        "DELETE FROM all_events",
        "TRUNCATE events",
        "ALTER VIEW events ADD COLUMN x INT",
        "COPY events FROM 'somewhere.csv'",
    ],
)
def test_no_statement_of_a_connection_changes_the_store(tmp_path, statement):
    client = filled(tmp_path / "s")
    files = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "s").rglob("*"))
    connection = client.connect()
    with pytest.raises(duckdb.Error):
        connection.execute(statement)
    assert connection.sql("SELECT count(*) FROM events").fetchall()[0] == (13,)
    assert files == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "s").rglob("*"))


def test_a_policy_gives_each_view_to_those_who_may_ask_the_same_of_queries(tmp_path):
    path = tmp_path / "s"
    filled(
        path, policy={"me": ["own", "read", "update", "edit", "query_obsolete"], "her": ["read"]}
    )
    reader = TimeSeries.open(path, "her")
    assert reader.sql("SELECT count(*) FROM events").fetchall()[0] == (13,)
    for statement in ("FROM all_events", 'SELECT 1 FROM "ALL_EVENTS"', "EXPLAIN FROM all_events"):
        with pytest.raises(PermissionDenied, match="query_obsolete"):
            reader.sql(statement)
    connection = reader.connect()
    assert connection.sql("SELECT count(*) FROM events").fetchall()[0] == (13,)
    with pytest.raises(duckdb.Error, match="query_obsolete"):
        connection.sql("FROM all_events").fetchall()
    stranger = TimeSeries.open(path, "him")
    for ask in (
        lambda: stranger.sql("SELECT 1"),
        stranger.connect,
        lambda: stranger.refresh(connection),
    ):
        with pytest.raises(PermissionDenied, match="'him' may not read the store"):
            ask()
    assert TimeSeries.open(path, "me").sql("SELECT count(*) FROM all_events").fetchall()[0] == (15,)


def test_without_duckdb_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    client = filled(tmp_path / "s")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setattr(sql, "_ENGINE", sql._Engine())
    for ask in (lambda: client.sql("FROM events"), client.connect):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'pyspark-timestream\[sql\]'"):
            ask()


def test_importing_the_client_does_not_import_duckdb():
    said = "import sys, pyspark_tseries; pyspark_tseries.TimeSeries; print('duckdb' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", said], text=True).strip() == "False"


STRANGE = [
    "it's",
    "all * of [this]?",
    "sp ace#&",
    "\u00fcber \U00020bb7",
    'a"b',
    "{x,y}",
]


@pytest.mark.parametrize("name", STRANGE)
def test_a_store_may_be_at_any_path(tmp_path, name):
    client = filled(tmp_path / name / "s", "limit 4")
    filled(tmp_path / name.replace("*", "x") / "other")
    assert shown(client).equals(current(client))
    assert shown(client, client.connect()).equals(current(client))


VALUES = {
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "x": pa.float32(),
    "tiny": pa.int8(),
    "amount": pa.decimal128(12, 3),
    "raw": pa.binary(),
    "day": pa.date32(),
    "a.b'\"c": pa.list_(pa.struct({"k": pa.string(), "v": pa.int16()})),
    "Named": pa.map_(pa.string(), pa.float64()),
}


def full(path):
    client = TimeSeries.create(path, VALUES, "unlimited", "me", auto_compact=False)
    for year in (1, 1969, 2026, 9999):
        moment = datetime(year, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
        client.append(
            "a",
            {"at": moment, "local": moment.replace(tzinfo=None)},
            moment,
            max_future=timedelta.max,
        )
    client.append(
        "a",
        {
            "x": float("nan"),
            "tiny": -128,
            "amount": Decimal("123456789.125"),
            "raw": b"\0\xff",
            "day": date(1, 1, 1),
            "a.b'\"c": [{"k": "x", "v": -1}, None],
            "Named": {"k": 0.5},
        },
        moment,
        max_future=timedelta.max,
    )
    client.edit("a", 1, {"at": moment, "x": -0.0})
    return client


def test_values_of_every_type_are_those_of_queries(tmp_path):
    client = full(tmp_path / "s")
    assert repr(shown(client).to_pylist()) == repr(current(client).to_pylist())
    connection = client.connect()
    assert repr(shown(client, connection).to_pylist()) == repr(current(client).to_pylist())


@pytest.mark.parametrize("tool", ["spark", "mixed", "reversed"])
def test_files_of_other_tools_are_read_whatever_their_units_and_order(tmp_path, tool):
    client = full(tmp_path / "s")
    expected = repr(current(client).to_pylist())
    if tool == "reversed":
        with_columns_backwards(DeltaTable(tmp_path / "s"))
    else:
        rewritten_by_spark(DeltaTable(tmp_path / "s"))
    if tool == "mixed":
        client = opened(tmp_path / "s")
        client.append("b", {"tiny": 1}, at(0))
        expected = repr(current(client).to_pylist())
    client = opened(tmp_path / "s")
    assert repr(shown(client).to_pylist()) == expected
    connection = client.connect()
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    found = connection.sql("SELECT epoch_us(timestamp) FROM events ORDER BY series, sequence")
    assert {row[0] for row in found.fetchall()} == set(
        current(client)["timestamp"].cast(pa.int64()).to_pylist()
    )


def test_times_in_milliseconds_are_read_as_the_same_times(tmp_path):
    client = filled(tmp_path / "s")
    expected = current(client)["timestamp"]
    in_milliseconds(DeltaTable(tmp_path / "s"))
    client = opened(tmp_path / "s")
    assert shown(client)["timestamp"].equals(expected)
    assert shown(client).equals(current(client))


def test_an_added_column_is_null_in_earlier_events_and_edits(tmp_path):
    client = filled(tmp_path / "s")
    connection = client.connect()
    assert shown(client).num_rows == 13
    add_columns(Store.open(str(tmp_path / "s")), [pa.field("note", pa.string())])
    assert shown(client).equals(current(client))
    client.append("a", {"note": "x"})
    client.edit("a", 0, {"note": "y"})
    assert shown(client).equals(current(client))
    assert client.sql("SELECT count(note) FROM all_events").fetchall()[0] == (2,)
    client.refresh(connection)
    assert shown(client, connection).equals(current(client))


def test_columns_and_row_groups_that_a_statement_does_not_need_are_not_read(tmp_path):
    client = TimeSeries.create(
        tmp_path / "s", {"x": pa.int64(), "y": pa.int64()}, "unlimited", "me", auto_compact=False
    )
    n = np.arange(40_000)
    times = pa.array(n * 1_000_000).cast(pa.timestamp("us", "UTC"))
    client.append_many(
        pa.table({"series": np.where(n < 20_000, "a", "b"), "timestamp": times, "x": n, "y": n})
    )
    (path,) = (tmp_path / "s" / "kind=event").glob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    names = metadata.schema.names
    content = bytearray(path.read_bytes())
    for group in range(metadata.num_row_groups):
        for name in ("x", "y"):
            if name == "y" or group:
                chunk = metadata.row_group(group).column(names.index(name))
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                content[start : start + chunk.total_compressed_size] = (
                    b"\xee" * chunk.total_compressed_size
                )
    path.write_bytes(content)
    assert metadata.num_row_groups == 4
    early = "series = 'a' AND timestamp < '1970-01-01 01:00:00+00'"
    asked = f"SELECT sum(x), count(*) FROM events WHERE {early}"
    assert client.sql(asked).fetchall()[0] == (3600 * 3599 // 2, 3600)
    assert client.sql("FROM events").filter("series = 'a' AND sequence < 9").aggregate(
        "sum(x)"
    ).fetchall()[0] == (36,)
    for wrong in (
        "SELECT sum(y) FROM events WHERE sequence < 9 AND series = 'a'",
        "SELECT sum(x) FROM events",
    ):
        with pytest.raises(duckdb.Error):
            client.sql(wrong).fetchall()


@pytest.mark.thorough
def test_threads_ask_at_the_same_time_while_others_append(tmp_path):
    client, wrong = filled(tmp_path / "s", "limit 20"), []

    def ask():
        for _ in range(15):
            ((count, least),) = client.sql("SELECT count(*), min(value) FROM events").fetchall()
            if count < 13 or least != -2.0:
                wrong.append((count, least))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for n in range(10):
        client.append("c", float(n))
    for thread in threads:
        thread.join()
    assert not wrong


FORKS = """
import os, sys
from pyspark_tseries import TimeSeries
client = TimeSeries.open(sys.argv[1])
print(client.sql("SELECT count(*) FROM events").fetchall()[0], flush=True)
child = os.fork()
print(client.sql("SELECT count(*) FROM events").fetchall()[0], flush=True)
if child:
    print(os.waitpid(child, 0)[1])
else:
    os._exit(0)
"""


@pytest.mark.thorough
def test_a_forked_process_asks_as_well(tmp_path):
    filled(tmp_path / "s")
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "s")]
    said = subprocess.check_output(command, text=True, timeout=60).split("\n")
    assert said == ["(13,)"] * 3 + ["0", ""]


@pytest.mark.thorough
def test_what_is_known_of_many_stores_and_files_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "_MAX_FILES", 5)
    monkeypatch.setattr(sql._KEPT, "_max_stores", 2)
    clients = [filled(tmp_path / str(n)) for n in range(4)]
    for n in range(6):
        for client in clients:
            client.append("c", float(n))
            assert client.sql("SELECT count(*) FROM events").fetchall()[0] == (14 + n,)
    assert len(sql._KEPT.stores) <= 2


@pytest.mark.outside_ci
@pytest.mark.timeout(600)
def test_a_store_in_an_object_store_is_asked_as_one_on_a_disk(bucket):  # noqa: F811 the fixture
    client = filled(bucket.uri("some stores/it's = 1"), "limit 6", storage_options=bucket.options)
    connection = client.connect()
    for _ in range(2):
        assert shown(client).equals(current(client))
        client.compact()
    client.append("b", float("nan"), at(7))
    assert client.sql("SELECT count(*) FROM events WHERE value > 1000").fetchall()[0] == (1,)
    asked = "SELECT value FROM events WHERE series = 'b' AND timestamp = '2026-01-01 00:00:05+00'"
    assert client.sql(asked).fetchall() == [(5.5,)]
    cursor = connection.cursor()
    for one in (connection, cursor):
        client.refresh(one)
        assert repr(shown(client, one).to_pylist()) == repr(current(client).to_pylist())
        assert (
            one.sql("SELECT count(*) FROM all_events").fetchall()[0]
            == client.sql("SELECT count(*) FROM all_events").fetchall()[0]
        )
