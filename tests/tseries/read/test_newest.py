"""The newest events from memory equal those in the files (semantics 31.2).

A process keeps what it has read (`read/newest_table.py`). After any operation its answer is the
same as that of one that has read nothing, and as all current values, cut to the newest.
"""

import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import outside_ci
from tseries.builders import forget_stores
from tseries.deliveries import Deliveries, programs
from tseries.limits import set_limits

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries import NoSuchEvent, TimeSeries, UpdateFailed
from pyspark_tseries.maintain.compactor import merge_file_groups
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.ranges import ALL_SERIES, Point, Query, Range
from pyspark_tseries.read import newest, newest_table
from pyspark_tseries.read.newest import find_newest_count
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.storage import row_reader
from pyspark_tseries.storage import snapshot as heads
from pyspark_tseries.store.store import Store

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["a", "b", "c/ä"]
SERIES = st.sampled_from(NAMES)
MINUTES = st.none() | st.integers(0, 40)
ROWS = st.lists(st.tuples(SERIES, MINUTES), min_size=1, max_size=5)
STEPS = st.one_of(
    *[st.tuples(st.just("append"), ROWS)] * 3,
    *[st.tuples(st.just("append_elsewhere"), ROWS)] * 2,
    *[st.tuples(st.just("edit"), SERIES, st.integers(0, 6))] * 3,
    *[st.tuples(st.just("erase"), SERIES, st.integers(0, 6))] * 3,
    st.tuples(st.just("retain"), st.sampled_from(["unlimited", "limit 2", "limit 5", "last 9M"])),
    *[st.tuples(st.just(care)) for care in ("compact", "merge", "rebuild", "reopen")],
    *[st.tuples(st.just(care)) for care in ("copy", "put_back", "add_column")],
)
CHOICES = st.sampled_from(
    [{}, {}, {"series": "a"}, {"series": ["b", "nobody"]}, {"prefix": "c"}, {"pattern": "[ab]"}]
)
COLUMNS = st.sampled_from([None, None, ["value"], ["series", "edit_timestamp"]])
TIMES = st.sampled_from([None, None, -1, 2, 6, 15, 39])
QUESTIONS = st.tuples(CHOICES, st.sampled_from([1, 1, 2, 3, 5]), TIMES, COLUMNS)


def minute(number):
    return None if number is None else BEGIN + timedelta(minutes=number)


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Series lie in several row groups and pieces, and chains of heads are short."""
    set_limits(monkeypatch, group_rows=3, piece_rows=2, head_changes=4)
    monkeypatch.setattr(newest_table, "MAX_PATCHED_ROWS", 4)
    monkeypatch.setattr(newest_table, "MAX_SEPARATE_PROBES", 1)
    newest_table._KEPT.stores.clear()


class Program:
    """A store under random steps."""

    def __init__(self, path, retained):
        self.path, self.number = path, 0
        self.series = TimeSeries.create(
            path,
            {"value": pa.float64()},
            retained,
            "me",
            min_retention_age=timedelta(0),
            auto_compact=False,
            durability="os",
        )

    def run(self, kind, *given):
        with suppress(NoSuchEvent, UpdateFailed):
            getattr(self, kind)(*given)

    def rows(self, rows):
        self.number += 1
        return [
            {"series": name, "timestamp": minute(at), "value": self.number + place / 10}
            for place, (name, at) in enumerate(rows)
        ]

    def append(self, rows):
        self.series.append_many(
            self.rows(rows), out_of_order="adjust", clock="event", max_future=timedelta.max
        )

    def append_elsewhere(self, rows):
        """As another process does, without this one's knowledge."""
        other = TimeSeries(Store.open_damaged(str(self.path)), "you", False, synced=False)
        other.append_many(
            self.rows(rows), out_of_order="adjust", clock="event", max_future=timedelta.max
        )

    def edit(self, name, sequence):
        self.number += 1
        self.series.edit(name, sequence, {"value": float(self.number)})

    def erase(self, name, sequence):
        self.series.erase(name, sequence, "a test")

    def retain(self, retained):
        self.series.set_retained_range(retained)

    def compact(self):
        self.series.compact()

    def merge(self):
        with pytest.MonkeyPatch.context() as few:
            set_limits(few, groups_to_merge=2)
            merge_file_groups(Store.open(str(self.path)), read_wall_clock(), everything=False)

    def rebuild(self):
        rebuild(str(self.path))

    def reopen(self):
        forget_stores()
        self.series = TimeSeries.open(self.path, "me", auto_compact=False, durability="os")

    def copy_path(self):
        return self.path.with_name("copy")

    def copy(self):
        shutil.rmtree(self.copy_path(), ignore_errors=True)
        shutil.copytree(self.path, self.copy_path())

    def put_back(self):
        if self.copy_path().exists():
            shutil.rmtree(self.path)
            shutil.copytree(self.copy_path(), self.path)
            self.reopen()

    def add_column(self):
        self.number += 1
        self.series.add_columns({f"more{self.number}": pa.string()})


def wanted(snapshot, chosen, count, at, columns):
    """The newest rows of all current values, one series after the other."""
    every = run_query(Scope(snapshot, snapshot.index()), Query()).table
    names = sorted(set(every["series"].to_pylist()))
    if "series" in chosen:
        asked = chosen["series"]
        names = [name for name in names if name in ([asked] if isinstance(asked, str) else asked)]
    elif "prefix" in chosen:
        names = [name for name in names if name.startswith(chosen["prefix"])]
    elif "pattern" in chosen:
        names = [name for name in names if name in "ab"]
    parts = [every.slice(0, 0)]
    for name in names:
        rows = every.filter(pc.equal(every["series"], name))
        if at is not None:
            rows = rows.filter(pc.less_equal(rows["timestamp"], pa.scalar(minute(at))))
        parts.append(rows.slice(max(0, rows.num_rows - count)))
    rows = pa.concat_tables(parts)
    return rows if columns is None else rows.select(columns)


def check(program, question):
    chosen, count, at, columns = question
    snapshot = Store.open_damaged(str(program.path)).snapshot()
    expected = wanted(snapshot, chosen, count, at, columns)
    found = program.series.latest(count=count, at=minute(at), columns=columns, **chosen).to_arrow()
    assert found.equals(expected), (question, found.to_pylist(), expected.to_pylist())
    check_followed(program, snapshot)
    if at is None:
        last = program.series.range_query().from_last(count)
        if columns is not None:
            last = last.columns(*columns)
        assert last.select_from(**chosen).to_arrow().equals(expected)
    return expected


def check_followed(program, snapshot):
    """The store that is open sees the files that Delta lists, and the newest event of a series."""
    view = program.series._view()
    assert view.snapshot.files == snapshot.files
    assert view.snapshot.values == snapshot.values
    for name in [*NAMES, "nobody"]:
        expected = wanted(snapshot, {"series": name}, 1, None, None)
        assert view.newest(name)[0].equals(expected), name


@pytest.mark.outside_ci
@pytest.mark.thorough
@settings(max_examples=60)
@given(
    st.sampled_from(["unlimited", "limit 3", "last 9M", "limit 6 last 20M"]),
    st.lists(st.tuples(STEPS, QUESTIONS), min_size=3, max_size=12),
)
def test_after_any_operation_the_kept_events_are_those_of_the_files(
    tmp_path_factory, retained, steps
):
    program = Program(tmp_path_factory.mktemp("newest") / "s", retained)
    # The first ones of `a` and `b` are from the future, and may be erased.
    program.append([("a", 39), ("b", 38), *((name, at) for at in (0, 5) for name in NAMES)])
    program.run("erase", "a", 2)
    program.append([(name, at) for at in (6, 14) for name in NAMES])
    check(program, ({}, 2, None, None))
    for step, question in steps:
        program.run(*step)
        check(program, ({}, 2, None, None))
        check(program, question)
    for _, question in steps[-2:]:
        warm = check(program, question)
        newest_table._KEPT.stores.clear()
        assert check(program, question).equals(warm)


@pytest.mark.thorough
@pytest.mark.parametrize("erases", [True, *outside_ci(False)])
@settings(max_examples=15)
@given(st.data())
def test_newest_events_are_those_of_duckdb_over_the_deliveries(tmp_path_factory, erases, data):
    store = Deliveries(str(tmp_path_factory.mktemp("newest") / "s"))
    for step in data.draw(programs(erases=erases)):
        store.run([step])
        if not store.rows:
            continue
        count = data.draw(st.integers(1, 3))
        visible = store.visible()

        rows = sorted(visible.to_pylist(), key=lambda row: (row["series"], row["sequence"]))
        by_series = {}
        for row in rows:
            by_series.setdefault(row["series"], []).append(row)
        expected = [row for name in sorted(by_series) for row in by_series[name][-count:]]
        found = store.series.latest(count=count).to_arrow().to_pylist()
        names = ("series", "timestamp", "celsius", "n", "room")
        assert [[row[n] for n in names] for row in found] == [
            [row[n] for n in names] for row in expected
        ]


@pytest.fixture
def store(tmp_path):
    """Three series of two events each, the last one of `b` edited."""
    program = Program(tmp_path / "s", "unlimited")
    program.append([(name, at) for at in (0, 1) for name in NAMES])
    program.edit("b", 1)
    return program


@pytest.fixture
def files(monkeypatch):
    """The files that are read for newest events."""
    read = []

    def record(location, files, schema, row_filter):
        files = [file for file in files if row_filter.may_match_file(file)]
        read.extend(file.path for file in files)
        return row_reader.read_rows(location, files, schema, row_filter)

    monkeypatch.setattr(newest, "read_rows", record)
    return read


def test_a_condition_reads_only_the_file_with_the_newest_event(store, files):
    for number in range(20):
        store.append([("a", number + 2)])
        store.append([("c/ä", number + 2)])
    for _ in range(2):
        store.series.append("a", 1.0, if_newest=lambda event: event is not None)
        assert len(files) == 1
        files.clear()


def test_only_the_files_of_later_commits_are_read_again(store, files):
    store.series.latest()
    assert len(files) == 2
    files.clear()
    store.series.latest(columns=["value"])
    store.series.latest("b", at=minute(1))
    assert not files
    before = {file.path for file in Store.open(str(store.path)).snapshot().files}
    store.append_elsewhere([("a", 2), ("c/ä", 3)])
    store.edit("a", 1)
    store.series.compact()
    store.append([("b", 4)])
    check(store, ({}, 1, None, None))
    assert not before & set(files)


def test_a_question_for_one_series_of_many_does_not_rewrite_them_all(store, monkeypatch):
    monkeypatch.setattr(newest_table, "MAX_PATCHED_ROWS", 2)
    monkeypatch.setattr(newest_table, "SERIES_PER_PATCH", 1)
    store.series.latest()
    store.append([("a", 5)])
    kept = newest_table._KEPT.stores[store.series._store.location].tables[0]
    check(store, ({"series": "a"}, 1, None, None))
    assert newest_table._KEPT.stores[store.series._store.location].tables[0] is kept
    check(store, ({}, 1, None, None))
    assert newest_table._KEPT.stores[store.series._store.location].tables[0] is not kept


def test_tables_of_a_process_have_a_bound(store, tmp_path, monkeypatch):
    other = Program(tmp_path / "other", "unlimited")
    other.append([("a", 1)])
    store.series.latest()
    size = newest_table._KEPT.stores[store.series._store.location].tables[0].nbytes
    monkeypatch.setattr(newest_table, "MAX_KEPT_BYTES", size)
    other.series.latest()
    held = [table for known in newest_table._KEPT.stores.values() for table in known.tables]
    assert sum(table.nbytes for table in held) <= size
    monkeypatch.setattr(newest_table, "MAX_KEPT_BYTES", 1)
    for program in (store, other):
        check(program, ({}, 1, None, None))
    assert not any(known.tables for known in newest_table._KEPT.stores.values())


def test_a_table_that_is_too_large_to_keep_takes_no_room_of_others(store, tmp_path, monkeypatch):
    other = Program(tmp_path / "other", "unlimited")
    other.append([(name, 1) for name in "abcdefgh"])
    store.series.latest()
    (kept,) = newest_table._KEPT.stores[store.series._store.location].tables
    monkeypatch.setattr(newest_table, "MAX_KEPT_BYTES", kept.nbytes)
    other.series.latest()
    assert newest_table._KEPT.stores[store.series._store.location].tables == [kept]
    assert not newest_table._KEPT.stores[other.series._store.location].tables


def test_another_store_at_the_path_is_read_anew(store, tmp_path):
    other = Program(tmp_path / "other", "unlimited")
    other.append([("a", 7), ("z", 8)])
    store.series.latest()
    store.path.rename(tmp_path / "away")
    other.path.rename(store.path)
    forget_stores()
    moved = TimeSeries.open(tmp_path / "away")
    assert moved.latest().to_arrow()["series"].to_pylist() == NAMES
    assert TimeSeries.open(store.path).latest().to_arrow()["series"].to_pylist() == ["a", "z"]


def test_a_chain_of_heads_that_is_too_long_or_gone_is_not_trusted(store):
    store.series.latest()
    for at in range(2, 9):
        store.append_elsewhere([("a", at)])
    with pytest.MonkeyPatch.context() as short:
        short.setattr(heads, "MAX_ANCESTORS", 2)
        check(store, ({}, 2, None, None))
    snapshot = Store.open(str(store.path)).snapshot()
    for at in range(9, 16):
        store.append_elsewhere([("b", at)])
    for path in list(heads.head_chain(snapshot.location, snapshot.head_id, 0))[:1]:
        Path(path).unlink()
    check(store, ({}, 2, None, None))


def test_a_view_of_an_earlier_commit_answers_from_that_commit(store):
    view = store.series._view()
    early = view.latest(ALL_SERIES).table
    store.append([("a", 30), ("new", 31)])
    store.series.latest()
    assert view.latest(ALL_SERIES).table.equals(early)
    assert store.series.as_of(0).latest("b").events[0].value == 1.4
    assert pickle.loads(pickle.dumps(store.series)).latest().to_arrow().num_rows == 4
    past = pickle.loads(pickle.dumps(store.series.as_of(0)))
    assert past.latest().to_arrow().num_rows == 3


FORKS = """
import os, sys
from pyspark_tseries import TimeSeries
from pyspark_tseries.read import newest_table
client = TimeSeries.open(sys.argv[1])
print(client.latest().to_arrow().num_rows, flush=True)
(known,) = newest_table._KEPT.stores.values()
with known.lock, newest_table._KEPT.lock:
    child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
else:
    print(client.latest(count=2).to_arrow().num_rows, flush=True)
    os._exit(0)
"""


@pytest.mark.thorough
def test_a_process_that_is_forked_while_a_thread_reads_answers_as_well(store):
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(store.path)]
    said = subprocess.check_output(command, text=True, timeout=60).split()
    assert said == ["3", "6", "0"]


def test_each_thread_sees_at_least_what_it_has_appended(store):
    def work(number):
        name, seen = f"thread {number}", []
        for _ in range(6):
            sequence = store.series.append(name, float(number)).sequence
            rows = store.series.latest(prefix="thread").to_arrow()
            mine = rows.filter(pc.equal(rows["series"], name))
            assert mine["sequence"].to_pylist() == [sequence]
            seen.append(store.series.latest().to_arrow().num_rows)
        assert seen == sorted(seen)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    check(store, ({}, 3, None, None))


@pytest.mark.parametrize(
    ("query", "count"),
    [
        (Query(view=Range(Point("last_count", 2))), 2),
        (Query(view=Range(Point("last_count", 2)), limit=2), 2),
        (Query(view=Range(Point("last_count", 2)), limit=1), None),
        (Query(view=Range(Point("last_count", 0))), None),
        (Query("allEdits", view=Range(Point("last_count", 2))), None),
        (Query(edits=Range(Point("last_count", 2))), None),
        (Query(), None),
    ],
)
def test_queries_for_newest_originals_are_told_from_others(query, count):
    assert find_newest_count(query) == count


def test_an_erased_event_from_the_future_is_in_the_range_though_later_ones_are_not(tmp_path):
    program = Program(tmp_path / "s", "last 9M")
    program.append([("a", 39), ("a", 0), ("a", 5)])
    program.erase("a", 2)
    program.append([("a", 6), ("a", 14)])
    check(program, ({}, 2, None, None))
    program.append([("a", 30)])
    assert check(program, ({}, 2, None, None))["sequence"].to_pylist() == [2, 5]
