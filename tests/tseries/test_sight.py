"""What an open store remembers is never older than what other processes have committed."""

import shutil
import subprocess
import sys

import pyarrow as pa
import pytest

from pyspark_tseries import NoSuchStore, PermissionDenied, TimeSeries
from pyspark_tseries.store import Store

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


def test_a_store_that_was_replaced_is_not_taken_for_the_one_before(tmp_path):
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


def test_a_sight_is_kept_until_the_log_says_more(tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    client = TimeSeries.create(path, VALUE, "unlimited", auto_compact=False)
    client.append("a", 1)
    store = Store.open(path)
    looked = []
    data_files = Store.data_files
    monkeypatch.setattr(Store, "data_files", lambda self: looked.append(1) or data_files(self))
    first, head = store.sight()
    assert store.sight() == (first, head) == (store.snapshot(), head)
    assert len(looked) == 1
    client.append("b", 2)
    assert len(store.snapshot().files) == 2
    assert store.sight()[1].note.commit == 1
    assert len(looked) == 2
