"""The memory of an open store is never older than the commits of other processes."""

import json
import shutil
import subprocess
import sys
import threading

import pyarrow as pa
import pytest
from tseries.builders import forget_stores, sight_now

from pyspark_tseries import NoSuchStore, PermissionDenied, TimeSeries
from pyspark_tseries.store.store import Store

VALUE = {"value": pa.int64()}


def elsewhere(path, *lines):
    """Runs code in another process, with the store open as `store`."""
    code = [
        "import pyarrow as pa",
        "from pyspark_tseries import TimeSeries",
        f"store = TimeSeries.open({path!r}, author='me', auto_compact=False)",
        *lines,
    ]
    subprocess.run([sys.executable, "-c", "\n".join(code)], check=True, timeout=120)


def values(store, name="a"):
    return [event.value for event in store.range_query().select_from(name).events]


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_a_query_sees_what_other_processes_have_done(tmp_path):
    path = str(tmp_path / "s")
    store = TimeSeries.create(path, VALUE, "unlimited", "me", auto_compact=False)
    for value in range(3):
        store.append("a", value)
    assert values(store) == values(store) == [0, 1, 2]
    elsewhere(path, "store.append('a', 3)", "store.edit('a', 1, 10)")
    assert values(store) == [0, 10, 2, 3]
    elsewhere(path, "store.compact()")
    assert len(Store.open(path).snapshot().files) == 2, "originals and edits"
    assert values(store) == [0, 10, 2, 3]
    elsewhere(path, "store.set_retained_range('limit 3')", "store.set_policy({'you': ['read']})")
    with pytest.raises(PermissionDenied):
        store.range_query().for_edits().select_from("a")
    assert values(TimeSeries.open(path, author="you")) == [2, 3]


def test_replaced_store_is_not_mistaken_for_the_old_one(tmp_path):
    path = str(tmp_path / "s")
    store = TimeSeries.create(path, VALUE, "unlimited", auto_compact=False)
    store.append("a", 1)
    assert values(store) == [1]
    shutil.rmtree(path)
    other = TimeSeries.create(path, VALUE, "unlimited", auto_compact=False)
    other.append("a", 2)
    with pytest.raises(NoSuchStore):
        values(store)
    assert values(TimeSeries.open(path)) == values(other) == [2]


def test_snapshot_is_kept_until_the_log_grows(tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    client = TimeSeries.create(path, VALUE, "unlimited", auto_compact=False)
    client.append("a", 1)
    store = Store.open(path)
    looked = []
    data_files = Store.data_files
    monkeypatch.setattr(Store, "data_files", lambda self: looked.append(1) or data_files(self))
    first, index = sight_now(store)
    assert store.snapshot() is first
    assert store.snapshot().index() is index
    assert len(looked) == 1
    client.append("b", 2)
    assert len(store.snapshot().files) == 2
    assert store.snapshot().index().metadata.commit == 1
    assert len(looked) == 2


def in_new_process(path, lines):
    """The last output, as JSON, of code in a process that knows nothing of the store."""
    code = [
        "import json, sys",
        "from pyspark_tseries import TimeSeries",
        "from pyspark_tseries.storage import snapshot as heads",
        "heads.SMALL_INDEX_ROWS = 1",
        f"store = TimeSeries.open({path!r}, author='me', auto_compact=False)",
        "held = lambda: len(store._store._last.index.ids)",
        "read = lambda name: [e.value for e in store.range_query().select_from(name).events]",
        *lines,
        "print(json.dumps(said))",
    ]
    command = [sys.executable, "-c", "\n".join(code)]
    done = subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_first_queries_load_partial_indexes_and_answer_alike(tmp_path):
    path = str(tmp_path / "s")
    store = TimeSeries.create(path, VALUE, "limit 3", "me", auto_compact=False)
    for value in range(5):
        for name in "abc":
            store.append(name, value)
    store.edit("b", 3, 30)
    store.set_retained_range("limit 2")
    store.append("c", 5)
    names = ["b", "nobody", "a", "c", "b", "a", "b"]
    said = in_new_process(path, [f"said = [[read(name), held()] for name in {names}]"])
    answers = {"a": [3, 4], "b": [4], "c": [4, 5], "nobody": []}
    assert [rows for rows, _ in said] == [answers[name] for name in names]
    assert [held for _, held in said] == [0, 0, 0, 0, 3, 3, 3]


@pytest.mark.thorough
def test_writer_with_a_partial_index_writes_on_top_of_all_series(tmp_path):
    path = str(tmp_path / "s")
    store = TimeSeries.create(path, VALUE, "unlimited", "me", auto_compact=False)
    for value in range(3):
        store.append("a", value)
        store.append("b", value)
    lines = ["first = read('a')", "at = store.append('b', 9).sequence", "store.edit('a', 0, 7)"]
    lines += ["said = [first, at, read('a'), read('b'), store.verify()]"]
    assert in_new_process(path, lines) == [[0, 1, 2], 3, [7, 1, 2], [0, 1, 2, 9], []]


def test_a_snapshot_needs_of_the_head_its_note_only(tmp_path):
    path = str(tmp_path / "s")
    store = TimeSeries.create(path, VALUE, "limit 3", "me", auto_compact=False)
    store.append("a", 1)
    store.set_retained_range("limit 2")
    store.set_policy({"me": ["read", "update"]})
    store.append("b", 2)
    lines = [
        "first = store._store.snapshot()",
        "before = held()",
        "whole = store._store.snapshot(), store._store.snapshot().index()",
    ]
    lines += ["same = first is whole[0] is store._store.snapshot()"]
    lines += ["said = [before, held(), same, first.settings.retained.limit, len(first.files)]"]
    lines += ["said += [first.metadata.commit == whole[1].metadata.commit == 3]"]
    lines += ["said += [sorted(first.settings.policy)]"]
    assert in_new_process(path, lines) == [0, 2, True, 2, 2, True, ["me"]]


def test_a_query_that_waits_for_a_commit_does_not_stop_it(tmp_path):
    """A snapshot's index is read under the store's lock, which a commit holds."""
    path = str(tmp_path / "s")
    TimeSeries.create(path, VALUE, "unlimited", "me", auto_compact=False).append("a", 1)
    forget_stores()
    store = Store.open(path)
    before = store.snapshot()  # Its index is not in memory.
    TimeSeries(store, "me", auto_compact=False).append("a", 2)
    query = threading.Thread(target=before.index, daemon=True)
    committed = threading.Event()

    def commit():
        with store.commit_lock():
            query.start()
            query.join(0.2)
            assert query.is_alive()
            store.last_snapshot().index()
        committed.set()

    threading.Thread(target=commit, daemon=True).start()
    assert committed.wait(10)
    query.join(10)
    assert not query.is_alive()
