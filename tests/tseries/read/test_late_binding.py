"""A read that Spark evaluates again sees the store as it is then, and every task the same of it."""

import os
import shutil
import threading
import time

import pytest
from tseries.builders import batch, forget_stores, new_store
from tseries.limits import set_limits

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries.errors import IncompatibleValue, NoSuchStore, PermissionDenied, UnusableStore
from pyspark_tseries.model.properties import parse_policy
from pyspark_tseries.model.ranges import Query
from pyspark_tseries.spark import readers
from pyspark_tseries.spark.readers import RangeQueryReader, find_snapshot_at
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.admin_commits import set_policy
from pyspark_tseries.store.checkpoints import capture_entry, wait_for_checkpoints, write_checkpoint
from pyspark_tseries.store.store import Store

pytestmark = pytest.mark.spark

SECOND_US = 1_000_000


@pytest.fixture(autouse=True)
def no_worker_has_looked_before():
    readers._last_snapshots.clear()


@pytest.fixture
def later(monkeypatch):
    """Makes every following read one of a later evaluation, and says when that began."""

    def again(us=None):
        us = read_wall_clock() if us is None else us
        monkeypatch.setattr(readers, "find_later_start", lambda planned_us: us)
        return us

    return again


@pytest.fixture
def times_of_log(monkeypatch):
    """Gives the log's entries times; those that are not there have none."""
    real = readers._read_entry_time_ns

    def given(seconds):
        def time_ns(location, version):
            there = real(location, version) is not None
            return seconds[version] * 1_000_000_000 if there else None

        monkeypatch.setattr(readers, "_read_entry_time_ns", time_ns)

    return given


def commits(path, count):
    store = Store.find(str(path)) or new_store(path)
    for n in range(count):
        store.append(batch(("a", n), (f"s{n}", n)))
    return store


def test_snapshot_is_that_of_the_last_entry_not_after_the_moment(tmp_path, times_of_log):
    store = commits(tmp_path / "s", 5)
    times_of_log([10, 20, 30, 30, 40, 50])
    planned = store.snapshot()
    for second, commit in ((10, -1), (19, -1), (20, 0), (29, 0), (30, 2), (49, 3), (50, 4)):
        found = find_snapshot_at(planned, second * SECOND_US)
        assert (second, found.metadata.commit, len(found.files)) == (second, commit, commit + 1)
    assert find_snapshot_at(planned, 9 * SECOND_US) is planned


def test_snapshot_after_log_cleanup_counts_old_entries_as_visible(tmp_path, times_of_log):
    store = commits(tmp_path / "s", 15)
    wait_for_checkpoints()  # The checkpoint of entry 10; a read of entry 12 begins there.
    times_of_log(range(16))
    planned = store.snapshot()
    for version in range(8):
        (tmp_path / "s" / "_delta_log" / f"{version:020d}.json").unlink()
    assert find_snapshot_at(planned, 12 * SECOND_US).metadata.commit == 11
    with pytest.raises(UnusableStore, match=r"entry 7 of its log.*start the query again"):
        find_snapshot_at(planned, 3 * SECOND_US)


def test_snapshot_of_the_present_waits_until_its_entries_are_visible(tmp_path):
    planned = commits(tmp_path / "s", 1).snapshot()
    began_us = read_wall_clock()
    find_snapshot_at(planned, began_us)
    assert read_wall_clock() - began_us >= readers.LOCAL_VISIBILITY_DELAY_US
    began = time.monotonic()
    assert find_snapshot_at(planned, began_us) is find_snapshot_at(planned, began_us)
    assert time.monotonic() - began < 0.04


def test_snapshot_is_the_same_after_a_checkpoint_and_after_an_entry(tmp_path):
    planned = new_store(tmp_path / "s").snapshot()
    store = commits(tmp_path / "s", 3)
    began_us = read_wall_clock()
    assert find_snapshot_at(planned, began_us).metadata.commit == 2
    write_checkpoint(store.location, 3)
    change = {"tseries.minRetentionAge": "1S"}
    capture_entry(store.location, 3, lambda table: table.alter.set_table_properties(change, False))
    readers._last_snapshots.clear()  # Another worker.
    assert find_snapshot_at(planned, began_us).metadata.commit == 2


def test_snapshot_while_an_entry_is_published_is_the_same_in_all_tasks(tmp_path):
    """The name of its draft is taken away a moment later, which changes its time."""
    planned = new_store(tmp_path / "s").snapshot()
    commits(tmp_path / "s", 1)
    draft = tmp_path / "draft"
    os.link(tmp_path / "s" / "_delta_log" / f"{1:020d}.json", draft)
    writer = threading.Timer(0.2, draft.unlink)
    writer.start()
    began_us = read_wall_clock()
    early = find_snapshot_at(planned, began_us).metadata.commit
    writer.join()
    readers._last_snapshots.clear()  # Another worker.
    assert find_snapshot_at(planned, began_us).metadata.commit == early == -1


def test_snapshot_of_an_entry_with_two_names_is_found(tmp_path, monkeypatch):
    set_limits(monkeypatch, publish_us=20_000)
    planned = new_store(tmp_path / "s").snapshot()
    commits(tmp_path / "s", 2)
    os.link(tmp_path / "s" / "_delta_log" / f"{2:020d}.json", tmp_path / "draft")
    assert find_snapshot_at(planned, read_wall_clock()).metadata.commit == 1


def test_snapshot_of_a_removed_or_replaced_store_is_refused(tmp_path):
    planned = commits(tmp_path / "s", 1).snapshot()
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(NoSuchStore, match="was removed while"):
        find_snapshot_at(planned, read_wall_clock())
    commits(tmp_path / "s", 2)
    assert find_snapshot_at(planned, read_wall_clock()).metadata.commit == 1


def plan(path, schema=None, **options):
    source = DefaultSource({"path": str(path), **options})
    planned = source.reader(schema or source.schema())
    return planned, list(planned.partitions())


def read(planned, parts):
    rows = [batch for part in parts for batch in planned.read(part)]
    columns = ("series", "sequence", "original_sequence")
    return sorted(
        (row for part in rows for row in zip(*(part[c].to_pylist() for c in columns), strict=True)),
        key=str,
    )


@pytest.mark.parametrize("size", [1, 3000, 10**9])
def test_read_of_a_grown_store_gives_all_of_it_once_however_it_was_planned(
    tmp_path, monkeypatch, later, size
):
    set_limits(monkeypatch, partition_bytes=size)
    store = commits(tmp_path / "s", 3)
    planned, parts = plan(tmp_path / "s")
    whole = read(planned, parts)
    assert len(whole) == 6
    for n in range(4):
        store.append(batch(("a", 10 + n), (f"t{n}", 0)))
        later()
        assert len(read(planned, parts)) == 8 + 2 * n
    store.append(batch(edits=[("a", 0), ("t1", 0)]))
    later()
    again = read(planned, parts)
    assert len(again) == 14
    assert again == read(*plan(tmp_path / "s"))
    assert ("t1", 1, 0) in again


def test_read_of_one_evaluation_is_the_same_after_more_was_added(tmp_path, later):
    store = commits(tmp_path / "s", 2)
    planned, parts = plan(tmp_path / "s")
    store.append(batch(("b", 0)))
    time.sleep(0.01)
    later()
    time.sleep(0.01)
    first = read(planned, parts)
    store.append(batch(("b", 1)))
    readers._last_snapshots.clear()  # Another worker.
    forget_stores()
    assert read(planned, parts) == first
    assert len(first) == 5


def test_read_of_a_store_that_was_empty_when_planned_gives_what_came(tmp_path, later):
    store = new_store(tmp_path / "s")
    planned, parts = plan(tmp_path / "s", series='["a", "b"]')
    assert read(planned, parts) == []
    store.append(batch(("a", 0), ("c", 0)))
    later()
    assert read(planned, parts) == [("a", 0, None)]


def test_read_as_of_a_time_stays_as_planned(tmp_path, later):
    store = commits(tmp_path / "s", 2)
    moments = ("9999-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
    plans = [plan(tmp_path / "s", asOf=moment) for moment in moments]
    store.append(batch(("a", 9)))
    later()
    assert [len(read(*plan)) for plan in plans] == [4, 0]


def test_read_after_the_right_to_it_was_withdrawn_is_refused(tmp_path, later):
    store = commits(tmp_path / "s", 1)
    planned, parts = plan(tmp_path / "s", principal="ann")
    later()
    assert len(read(planned, parts)) == 2
    set_policy(store, parse_policy({"bob": ["read"]}), 0, "me")
    later()
    with pytest.raises(PermissionDenied, match="'ann' may not read"):
        read(planned, parts)


def test_read_of_another_store_at_the_path_is_refused_where_its_columns_are_others(tmp_path, later):
    store = commits(tmp_path / "s", 1)
    schema = DefaultSource({"path": str(tmp_path / "s")}).schema()
    planned = RangeQueryReader(
        store.snapshot(), Query(), None, schema, principal="bob", planned_us=0
    )
    parts = planned.partitions()
    shutil.rmtree(tmp_path / "s")
    new_store(tmp_path / "s", values=())
    later()
    with pytest.raises(IncompatibleValue, match="column 'value' is not in the store"):
        read(planned, parts)
