"""The store as it was: the same answer for ever, until compaction took what was visible then."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import VALUE, batch, forget_stores, sight_as_of, sight_now
from tseries.compaction_model import RANGES, STEPS, Model, run

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.model.arrays import KeyRange
from pyspark_tseries.model.ranges import Query, parse_range
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.store import Store

HOUR_US = 3_600_000_000


def all_edits(snapshot, index):
    columns = ["series", "sequence", "value", "author"]
    table = run_query(Scope(snapshot, index), Query("allEdits"), columns=columns).table
    return sorted(map(tuple, (row.values() for row in table.to_pylist())))


def make(path, retained, age_us=HOUR_US):
    return Store.create(str(path), [VALUE], parse_range(retained), min_retention_us=age_us)


def test_an_answer_stays_the_same_after_appends_edits_and_compactions(tmp_path):
    store = make(tmp_path / "s", "limit 3")
    seen = {}
    for n in range(6):
        store.append(batch(("a", n), (f"b{n}", n)), clock=lambda n=n: 10 * n)
        store.append(batch(edits=[("a", n + n)], missing="drop"), clock=lambda n=n: 10 * n + 5)
        seen[10 * n + 5] = all_edits(*sight_now(store))
    seen[99] = all_edits(*sight_now(store))
    for _ in range(2):
        for us, rows in seen.items():
            assert all_edits(*sight_as_of(store, us)) == rows
            assert all_edits(*sight_as_of(store, us + 4)) == rows
        compact(str(tmp_path / "s"), 60)
        forget_stores()
        store = Store.open(str(tmp_path / "s"))
    assert all_edits(*sight_as_of(store, -1)) == []


def test_as_of_a_commit_counts_all_up_to_it(tmp_path):
    store, seen = make(tmp_path / "s", "limit 3", age_us=0), {}
    for n in range(5):
        store.append(batch(("a", n), (f"b{n}", n)), clock=lambda n=n: n * 1_000_000)
        seen[store.last_commit()] = all_edits(*sight_now(store))
    for number, rows in seen.items():
        past = store.snapshot().at_commit(number)
        assert all_edits(past, past.index()) == rows
        assert past.metadata.commit == number
    assert store.snapshot().at_commit(9) is store.snapshot()
    compact(str(tmp_path / "s"), 3_500_000)
    store.refresh()
    past = store.snapshot().at_commit(3)
    assert all_edits(past, past.index()) == seen[3]
    with pytest.raises(InvalidQuery, match=r"commit 2: .*accepted: commit 3 or later"):
        store.snapshot().at_commit(2)


def test_as_of_before_the_horizon_is_refused_naming_the_oldest_time(tmp_path):
    store = make(tmp_path / "s", "limit 1", age_us=0)
    for n in range(5):
        store.append(batch(("a", n)), clock=lambda n=n: n * 1_000_000)
    compact(str(tmp_path / "s"), 3_500_000)
    with pytest.raises(InvalidQuery, match=r"00:00:02Z.*accepted: 1970-01-01T00:00:03Z or later"):
        sight_as_of(store, 2_000_000)
    assert all_edits(*sight_as_of(store, 3_000_000)) == [("a", 3, 0.0, "me")]


def test_as_of_before_a_change_of_the_retained_range_is_refused(tmp_path):
    store = make(tmp_path / "s", "limit 1")
    store.append(batch(("a", 0)), clock=lambda: 1)
    set_retained_range(store, parse_range("limit 2"), 5, "me")
    store.append(batch(("a", 1)), clock=lambda: 7)
    store.append(batch(("a", 2)), clock=lambda: 9)
    with pytest.raises(InvalidQuery, match="or later"):
        sight_as_of(store, 1)
    assert [row[1] for row in all_edits(*sight_as_of(store, 8))] == [0, 1]


def test_as_of_between_a_change_of_the_retained_range_and_the_next_event_is_answered(tmp_path):
    store = make(tmp_path / "s", "limit 2", age_us=0)
    for us in (1_000_000, 2_000_000):
        store.append(batch(("a", us)), clock=lambda us=us: us)
    set_retained_range(store, parse_range("limit 1"), 5_000_000, "me")
    store.append(batch(("a", 7_000_000)), clock=lambda: 7_000_000)
    for us in (5_000_000, 6_999_999):
        assert [row[1] for row in all_edits(*sight_as_of(store, us))] == [1]
    with pytest.raises(InvalidQuery, match="accepted: 1970-01-01T00:00:05Z or later"):
        sight_as_of(store, 4_999_999)
    compact(str(tmp_path / "s"), 10**9)
    store.refresh()
    with pytest.raises(InvalidQuery, match="accepted: 1970-01-01T00:00:07Z or later"):
        sight_as_of(store, 6_999_999)


def test_as_of_before_the_first_event_of_a_changed_range_is_empty(tmp_path):
    store = make(tmp_path / "s", "limit 2")
    set_retained_range(store, parse_range("limit 1"), 5_000_000, "me")
    store.append(batch(("a", 7_000_000)), clock=lambda: 7_000_000)
    assert all_edits(*sight_as_of(store, 6_000_000)) == []
    with pytest.raises(InvalidQuery, match="accepted: 1970-01-01T00:00:05Z or later"):
        sight_as_of(store, 4_000_000)


def test_as_of_a_head_of_an_earlier_version_goes_by_the_commit_of_the_change(tmp_path):
    store = make(tmp_path / "s", "limit 2")
    store.append(batch(("a", 1_000_000)), clock=lambda: 1_000_000)
    set_retained_range(store, parse_range("limit 1"), 5_000_000, "me")
    store.append(batch(("a", 7_000_000)), clock=lambda: 7_000_000)
    now = store.snapshot()
    old = replace(now, metadata=replace(now.metadata, retained_since_us=None))
    with pytest.raises(InvalidQuery, match="accepted: 1970-01-01T00:00:07Z or later"):
        old.at_time(6_000_000)


def test_a_task_finds_the_head_of_that_time_by_itself(tmp_path):
    store = make(tmp_path / "s", "limit 1")
    for n in range(3):
        store.append(batch(("a", n), ("b", n)), clock=lambda n=n: n * 1_000_000)
    snapshot, whole = sight_as_of(store, 1_500_000)
    mine = snapshot.index(["b"], KeyRange(("b", 0), None))
    assert mine.lookup(["b"]) == whole.lookup(["b"])
    assert mine.ids.names() == ["b"]
    options = {"path": str(tmp_path / "s"), "asOf": "1970-01-01T00:00:01.5Z"}
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    rows = [part["sequence"].to_pylist() for p in reader.partitions() for part in reader.read(p)]
    assert rows == [[1, 1]]


def test_worker_with_an_earlier_store_at_the_path_reads_the_new_one(tmp_path):
    path, rows = tmp_path / "s", []
    for names in ("aaabbbbbbbb", "aaaaaaaabbb"):
        shutil.rmtree(path, ignore_errors=True)
        store = make(path, "limit 3")
        for n, name in enumerate([*names, "c"]):
            store.append(batch((name, n)), clock=lambda n=n: n * 1_000_000)
        source = DefaultSource({"path": str(path), "asOf": "1970-01-01T00:00:10Z"})
        reader = source.reader(source.schema())
        parts = [part for p in reader.partitions() for part in reader.read(p)]
        columns = [pa.Table.from_batches(parts)[name] for name in ("series", "sequence")]
        rows.append(list(zip(*(column.to_pylist() for column in columns), strict=True)))
    a, b = ([(name, n) for n in range(3)] for name in "ab")
    assert sorted(rows[0]) == [*a, ("b", 5), ("b", 6), ("b", 7)]
    assert sorted(rows[1]) == [("a", 5), ("a", 6), ("a", 7), *b]


@settings(max_examples=30)
@given(st.sampled_from(RANGES), st.lists(STEPS, max_size=10), st.integers(0, 10))
def test_any_moment_of_any_program_is_the_same_later(tmp_path_factory, retained, steps, at):
    path = tmp_path_factory.mktemp("program") / "s"
    make(path, retained, age_us=10**15)
    model, then = Model(retained), None
    for number, (kind, what) in enumerate(steps):
        model.now += 1000
        if kind in ("range", "rebuild"):
            continue
        run(path, Store.open(str(path)), model, kind, what)
        if number == at:
            then = model.now, all_edits(*sight_now(Store.open(str(path))))
    if then is not None:
        assert all_edits(*sight_as_of(Store.open(str(path)), then[0])) == then[1]
