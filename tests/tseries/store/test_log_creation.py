"""A store is created where no file of data lies, and maintenance removes only its own files."""

import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tseries.builders import VALUE, batch, forget_stores, new_store, stored

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.backup import backup
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.storage.location import Location, bears_tag, parse_location, tagged_id
from pyspark_tseries.store.checkpoints import wait_for_checkpoints
from pyspark_tseries.store.log import _missing_checkpoint, create_table
from pyspark_tseries.store.store import Store

DAYS_LATER = 2_000_000_000_000_000


@pytest.fixture
def path(tmp_path):
    """A store of four commits."""
    store = new_store(tmp_path / "s")
    for number in range(4):
        store.append(batch(("a", number), ("b", number)))
    forget_stores()
    return tmp_path / "s"


def age(path):
    """Let all files below `path` be old enough for maintenance to remove."""
    for directory, _, names in os.walk(path):
        for name in names:
            os.utime(os.path.join(directory, name), (1, 1))


def files(path):
    return {str(file.relative_to(path)) for file in path.glob("kind=*/*")}


@pytest.mark.parametrize("gone", [["_delta_log"], ["_delta_log", "_tseries"]])
def test_creation_over_the_events_of_a_store_without_its_log_is_refused(path, tmp_path, gone):
    """Its maintenance would have removed the only copy of them a day later."""
    for name in gone:
        shutil.move(path / name, tmp_path / name)
    events = files(path)
    for create in (
        lambda: TimeSeries.create(path, {"value": pa.float64()}, "unlimited", "me"),
        lambda: new_store(path),
    ):
        with pytest.raises(UnusableStore) as error:
            create()
        assert "has events of a store, such as 'kind=event/0" in str(error.value)
        assert "put '_delta_log' back from a copy of that store" in str(error.value)
    assert files(path) == events
    assert not (path / "_delta_log").exists()
    for name in gone:
        shutil.rmtree(path / name, ignore_errors=True)
        shutil.move(tmp_path / name, path / name)
    assert len(stored(path)) == 8
    Store.open(str(path)).append(batch(("a", 9)))


@pytest.mark.parametrize("where", ["part-0.parquet", "a/b/c/part-0.parquet", "year=2026/x.ORC"])
def test_creation_in_a_directory_with_other_data_is_refused_by_name(tmp_path, where):
    file = tmp_path / "s" / where
    file.parent.mkdir(parents=True)
    file.write_bytes(b"data")
    with pytest.raises(UnusableStore, match=f"such as '{where}'.*another path"):
        new_store(tmp_path / "s")
    assert file.read_bytes() == b"data"
    assert not (tmp_path / "s" / "_delta_log").exists()


def test_a_directory_without_files_of_data_takes_a_store(tmp_path):
    """A checkpoint of Spark, notes and what begins with `_` or `.` are not files of data."""
    for name in ("checkpoint/offsets/0", "README.md", "_old/x.parquet", ".trash/y.parquet"):
        (tmp_path / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / name).write_text("x")
    (tmp_path / "s" / "kind=event").mkdir()
    new_store(tmp_path / "s").append(batch(("a", 1)))
    assert len(stored(tmp_path / "s")) == 1


def test_creation_in_a_table_whose_vacuum_would_remove_the_store_is_refused(path, tmp_path):
    """A rollup beside the events of its source lost everything by a VACUUM of the source."""
    for create in (
        lambda inner: TimeSeries.create(inner, {"value": pa.float64()}, "unlimited", "me"),
        lambda inner: TimeSeries.open(path).rollup(inner, "1 hour", {"value": "mean"}),
        lambda inner: backup(path, inner),
        lambda inner: backup(tmp_path / "other", inner),
    ):
        if not (tmp_path / "other").exists():
            new_store(tmp_path / "other")
        with pytest.raises(UnusableStore, match=r"lies in the .*; next step: (choose|name) "):
            create(path / "a" / "inner")
        assert not (path / "a").exists()
        os.symlink(path, tmp_path / "link")
        with pytest.raises(UnusableStore, match=f"lies in the .*'{path}|itself"):
            create(tmp_path / "link" / "inner")
        os.remove(tmp_path / "link")
    hidden = new_store(path / "_rollups" / "hours")
    hidden.append(batch(("a", 1)))
    DeltaTable(path).vacuum(0, False, enforce_retention_duration=False, full=True)
    assert not verify(str(path / "_rollups" / "hours"))


def test_a_store_that_another_writer_has_just_created_and_filled_is_taken(path):
    """The loser of the race to create it finds files of data, and a log."""
    location = Store.open(str(path)).location
    create_table(location, pa.schema([VALUE]), {})
    assert len(stored(path)) == 8


def test_maintenance_removes_no_file_that_no_commit_of_the_store_has_named(path, tmp_path):
    """Events of another store, by their names, and files of any other tool."""
    other = new_store(tmp_path / "other")
    other.append(batch(("secret", 1)))
    (kept,) = (tmp_path / "other" / "kind=event").iterdir()
    shutil.copy(kept, path / "kind=event" / kept.name)
    shutil.copy(kept, path / "kind=event" / "part-0.parquet")
    shutil.copy(kept, path / "kind=event" / "0000000009-00000000000000ff.parquet")
    pq.write_table(pa.table({"a": [1]}), path / "report.parquet")
    strange = files(path)
    age(path)
    remove_obsolete_files(Store.open(str(path)), DAYS_LATER)
    assert files(path) == strange
    assert (path / "report.parquet").exists()


def test_maintenance_removes_what_killed_writers_of_the_store_left(path):
    store = Store.open(str(path))
    left = [
        f"kind=event/0000000004-{store.new_id():016x}.parquet",
        f"kind=edit/0000000004-{store.new_id():016x}.0003.parquet",
        f"kind=event/0000000000-0000000003-{store.new_id():016x}_0000.parquet",
    ]
    for name in left:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"x")
    live = files(path) - set(left)
    remove_obsolete_files(store, DAYS_LATER)
    assert files(path) == live | set(left), "their writers may be about to commit them"
    age(path)
    remove_obsolete_files(store, DAYS_LATER)
    assert files(path) == live


def test_every_file_of_a_store_bears_its_mark(path):
    store = Store.open(str(path))
    compact(str(path))
    assert len(files(path)) == 5
    assert all(bears_tag(file, store.id) for file in files(path))


def test_the_mark_of_a_store_is_in_the_names_of_its_files_alone():
    ids = [tagged_id(table, number) for table in ("one", "two") for number in (0, 2**42 - 1)]
    assert all(0 <= own < 2**62 for own in ids)
    names = [f"kind=event/0000000001-{own:016x}.parquet" for own in ids]
    assert [bears_tag(name, "one") for name in names] == [True, True, False, False]
    assert not bears_tag("kind=event/part-0.parquet", "one")


def test_folder_of_another_user_such_as_lost_and_found_does_not_hinder_creation(
    tmp_path, monkeypatch
):
    (tmp_path / "s" / "lost+found").mkdir(parents=True)
    real = Location.list_files

    def list_files(location, directory):
        if directory.endswith("lost+found"):
            raise PermissionError(13, "Permission denied", directory)
        return real(location, directory)

    monkeypatch.setattr(Location, "list_files", list_files)
    assert new_store(tmp_path / "s").append(batch(("a", 1)))


def test_checkpoint_of_a_store_with_brackets_in_its_path_is_found(tmp_path):
    store = TimeSeries.create(tmp_path / "b[1]x", {"value": pa.float64()}, "unlimited")
    for number in range(25):
        store.append("a", float(number))
    wait_for_checkpoints()
    assert list((tmp_path / "b[1]x/_delta_log").glob("*.checkpoint.parquet"))
    assert _missing_checkpoint(parse_location(tmp_path / "b[1]x")) == -1
