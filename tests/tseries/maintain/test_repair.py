"""`repair` brings a damaged store back to a sound state, and says what it did."""

import dataclasses
import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tseries.builders import batch, forget_stores, new_store, stored

from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.__main__ import main
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.repair import RepairResult, repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.commits import UNKNOWN_WRITERS, CtiRecord, attach_metadata
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import make_full_table
from pyspark_tseries.storage.snapshot import write_head
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.store import Store


@pytest.fixture
def path(tmp_path):
    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append(batch(("a", n), (f"b{n}", 1)))
    return tmp_path / "s"


def reopened(path):
    forget_stores()
    return Store.open(str(path))


@pytest.fixture
def run(path, capsys):
    """The command, as by a process that has never seen the store: its exit code and its words."""

    def call(*more):
        forget_stores()
        code = main(["repair", str(path), *more])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def test_a_sound_store_needs_no_repair(path):
    before = Store.open(str(path)).log.version()
    assert repair(str(path)) == RepairResult()
    assert reopened(path).log.version() == before


def test_a_lost_head_is_mended_and_no_event_is_lost(path):
    before = stored(path)
    shutil.rmtree(path / "_tseries" / "head")
    forget_stores()
    planned = repair(str(path), dry_run=True)
    assert "is rebuilt from the events" in str(planned.mended[0])
    assert any("cannot be read" in line for line in map(str, verify(str(path))))
    assert repair(str(path)) == planned
    assert verify(str(path)) == []
    assert stored(path) == before


def lose_head(path, head_id):
    (path / "_tseries" / "head" / f"{head_id:016x}.arrow").unlink()
    forget_stores()


def test_a_head_that_lacks_an_earlier_one_keeps_its_counts_range_and_policy(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 2})
    store.append(batch(("a", 5), ("a", 6), ("a", 7)))
    TimeSeries.open(tmp_path / "s", "me").set_policy({"me": ["update", "own"]})
    set_retained_range(store, RetainedRange(limit=3), 0, "me")
    store.refresh()
    changed = store.head_id()
    store.append(batch(("a", 3), policy="drop"))
    lose_head(tmp_path / "s", changed)
    done = repair(str(tmp_path / "s"), principal="me")
    said = describe(str(tmp_path / "s"))
    assert (said["dropped"], said["retained_range"]) == (1, "limit 3")
    assert "own" in str(said["policy"])
    (lost,) = done.lost
    assert "those that the range 'limit 3' lets in are back" in lost


def test_a_head_file_that_was_never_committed_does_not_stand_in_for_a_lost_one(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    store.refresh()
    stray = dataclasses.replace(store.index().metadata, commit=9, dropped=99)
    write_head(store.location, 1, attach_metadata(make_full_table(store.index()), stray))
    store.append(batch(("a", 2), ("a", 0), policy="drop"))
    store.refresh()
    lose_head(tmp_path / "s", store.head_id())
    (lost,) = repair(str(tmp_path / "s")).lost
    assert "as they were with commit 0" in lost
    assert describe(str(tmp_path / "s"))["dropped"] == 0


def test_head_file_that_was_never_committed_promises_nothing(tmp_path):
    """For example of a failed batch: its replay must not be late."""
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    store.refresh()
    lost = CtiRecord({"query q": 99, "query ended": 99}, ((5, 99),))
    stray = dataclasses.replace(store.index().metadata, commit=9, ctis=lost)
    write_head(store.location, 1, attach_metadata(make_full_table(store.index()), stray))
    lose_head(tmp_path / "s", store.head_id())
    repair(str(tmp_path / "s"))
    ctis = reopened(tmp_path / "s").metadata().ctis
    assert ctis == CtiRecord({"query q": None, "query ended": None, UNKNOWN_WRITERS: None})


def test_repair_command_reports_what_it_mended(path, run):
    assert run() == (0, "nothing to repair\n")
    shutil.rmtree(path / "_tseries" / "head")
    code, said = run("--dry-run")
    assert (code, "mended: the store's head file" in said) == (1, True)
    code, said = run()
    assert (code, "mended: the store's head file" in said) == (0, True)
    assert run() == (0, "nothing to repair\n")


def test_another_delta_table_is_told_to_be_none_of_ours_and_stays(tmp_path):
    other = str(tmp_path / "other")
    write_deltalake(other, pa.table({"a": [1, 2]}))
    for dry_run in (True, False):
        with pytest.raises(UnusableStore, match="is a Delta table but not a tseries store"):
            repair(other, dry_run=dry_run)
    assert DeltaTable(other).to_pyarrow_table()["a"].to_pylist() == [1, 2]
