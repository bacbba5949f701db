"""A query goes on with the store that its checkpoint has written to, or not at all."""

import errno
import json
import os
import pathlib
import shutil

import pytest
from tseries.builders import VALUE, batch

from pyspark_tseries.errors import ReplayDiffers, StorageFailed, StoreMismatch
from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.model.ranges import UNLIMITED
from pyspark_tseries.spark.query_checks import (
    check_before_batch,
    check_in_commit,
    find_checkpoint,
    remember_commit,
)
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.store import Store

QUERY = "tseries:q:5fd2"


def go(checkpoint, store, batch, **more):
    """The steps of a commit: check, store the batch (which does not matter here), remember."""
    check_in_commit(checkpoint, store, (QUERY, batch), **more)
    remember_commit(checkpoint, store, batch)


def make(path):
    return Store.create(str(path), [VALUE], UNLIMITED)


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    return tmp_path / "checkpoint"


def test_moved_store_of_the_checkpoint_is_accepted(tmp_path, checkpoint):
    store = make(tmp_path / "a")
    check_before_batch(checkpoint, store.location)
    go(checkpoint, store, 0, is_empty=True)
    for number in (0, 1, 7):
        check_before_batch(checkpoint, store.location)
        go(checkpoint, Store.open(store.location), number)
    (tmp_path / "a").rename(tmp_path / "b")
    check_before_batch(checkpoint, parse_location(tmp_path / "b"))
    go(checkpoint, Store.open(tmp_path / "b"), 8)


def test_missing_store_of_the_checkpoint_is_named_and_not_created(tmp_path, checkpoint):
    store = make(tmp_path / "a")
    go(checkpoint, store, 0, is_empty=True)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(StoreMismatch) as refused:
        check_before_batch(checkpoint, parse_location(tmp_path / "a"))
    assert f"'{store.root}' (id {store.id})" in str(refused.value)
    assert f"there is no store at '{store.root}'" in str(refused.value)
    assert not (tmp_path / "a").exists()


def test_another_store_is_refused_and_both_are_named(tmp_path, checkpoint):
    first, other = make(tmp_path / "a"), make(tmp_path / "b")
    go(checkpoint, first, 0, is_empty=True)
    with pytest.raises(StoreMismatch) as refused:
        check_before_batch(checkpoint, other.location)
    for store in (first, other):
        assert f"'{store.root}' (id {store.id})" in str(refused.value)
    assert "next step: " in str(refused.value)


def test_store_created_again_at_the_same_path_is_refused(tmp_path, checkpoint):
    first = make(tmp_path / "a")
    go(checkpoint, first, 0, is_empty=True)
    shutil.rmtree(tmp_path / "a")
    again = make(tmp_path / "a")
    with pytest.raises(StoreMismatch, match="is another one"):
        check_before_batch(checkpoint, again.location)


def test_another_store_is_accepted_after_a_first_batch_that_failed(tmp_path, checkpoint):
    check_in_commit(checkpoint, make(tmp_path / "a"), (QUERY, 0))
    other = make(tmp_path / "b")
    check_before_batch(checkpoint, other.location)
    go(checkpoint, other, 0)


def test_store_without_a_visible_checkpoint_knows_its_queries(tmp_path):
    store, other = make(tmp_path / "a"), make(tmp_path / "b")
    check_before_batch(None, store.location)
    check_in_commit(None, store, (QUERY, 0), is_empty=True)
    assert Store.open(store.location).log.transaction(QUERY) == -1
    check_in_commit(None, Store.open(store.location), (QUERY, 3))
    with pytest.raises(StoreMismatch, match="has written 3 batches elsewhere") as refused:
        check_in_commit(None, other, (QUERY, 3))
    assert f"'{other.root}' (id {other.id}) has nothing of it" in str(refused.value)


def test_mark_of_an_empty_first_batch_does_not_count_as_the_batch(tmp_path):
    store = make(tmp_path / "a")
    check_in_commit(None, store, (QUERY, 0), is_empty=True)
    store = Store.open(store.location)
    assert not store.has_token((QUERY, 0))
    assert store.log.version() == 1
    check_in_commit(None, store, (QUERY, 0), is_empty=True)
    assert Store.open(store.location).log.version() == 1


def test_mark_of_an_empty_first_batch_leaves_what_another_driver_has_stored(tmp_path, monkeypatch):
    store, lock = make(tmp_path / "a"), Store.commit_lock
    row = batch(("a", 1, 5), token=(QUERY, 1))

    def late_lock(self, **more):
        monkeypatch.setattr(Store, "commit_lock", lock)
        store.append(row)
        return lock(self, **more)

    monkeypatch.setattr(Store, "commit_lock", late_lock)
    check_in_commit(None, store, (QUERY, 0), is_empty=True)
    assert store.append(row) is None, "the batch is there already"
    with pytest.raises(ReplayDiffers):
        store.has_batch((QUERY, 0), None)


def test_a_first_batch_with_rows_costs_no_commit_of_its_own(tmp_path, checkpoint):
    store = make(tmp_path / "a")
    go(checkpoint, store, 0)
    assert Store.open(store.location).log.version() == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "x"}', "\udcff"])
def test_unreadable_record_of_a_checkpoint_counts_as_none(tmp_path, checkpoint, text):
    store = make(tmp_path / "a")
    note = tmp_path / "checkpoint" / "sinks" / "tseries.json"
    note.parent.mkdir()
    note.write_bytes(text.encode(errors="surrogateescape"))
    check_before_batch(checkpoint, store.location)
    go(checkpoint, store, 0)
    assert json.loads(note.read_text())["id"] == store.id
    assert [file.name for file in note.parent.iterdir()] == ["tseries.json"]


def test_a_checkpoint_is_known_where_it_is_a_directory_of_this_machine(tmp_path, checkpoint):
    for location in (str(checkpoint), f"file://{checkpoint}", f"file:{checkpoint}"):
        assert find_checkpoint({"checkpointLocation": location}) == checkpoint
    for location in ("hdfs://host/checkpoint", "s3a://bucket/c", str(tmp_path / "none")):
        assert find_checkpoint({"checkpointlocation": location}) is None
    assert find_checkpoint({}) is None


def test_a_checkpoint_that_cannot_be_written_is_accepted(tmp_path, checkpoint):
    (tmp_path / "checkpoint" / "sinks").write_text("a file where the directory should be")
    go(checkpoint, make(tmp_path / "a"), 0)


def test_a_record_that_is_a_directory_ends_the_query_by_its_name(tmp_path, checkpoint):
    record = checkpoint / "sinks" / "tseries.json"
    record.mkdir(parents=True)
    with pytest.raises(StorageFailed) as refused:
        go(checkpoint, make(tmp_path / "a"), 0)
    assert refused.value.code == errno.EISDIR
    assert refused.value.problem.startswith(f"'{record}' cannot be read or written")
    assert refused.value.next_step == "remove that directory, then do it again"
    assert [file.name for file in record.parent.iterdir()] == ["tseries.json"]


def test_drafts_of_a_record_that_kills_left_are_removed_and_those_of_others_stay(
    tmp_path, checkpoint
):
    store = make(tmp_path / "a")
    go(checkpoint, store, 0)
    folder = checkpoint / "sinks"
    left, young = folder / "tseries.json.0badcafe", folder / "tseries.json.12345678"
    for name in (left.name, young.name, "tseries.json.mine", "other.json.0badcafe"):
        (folder / name).write_text("{")
    long_ago = (folder / "tseries.json").stat().st_mtime - 3600
    for name in (left.name, "tseries.json.mine", "other.json.0badcafe"):
        os.utime(folder / name, (long_ago, long_ago))
    go(checkpoint, store, 1)
    assert sorted(file.name for file in folder.iterdir()) == [
        "other.json.0badcafe", "tseries.json", young.name, "tseries.json.mine",
    ]  # fmt: skip


def test_a_record_is_synced_before_it_takes_the_place_of_the_last_one(
    tmp_path, checkpoint, monkeypatch
):
    """Else a power loss may leave an empty one."""
    store, synced = make(tmp_path / "a"), []
    go(checkpoint, store, 0)

    def sync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def replace(draft, target):
        assert str(draft) in synced
        return os.replace(draft, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(pathlib.Path, "replace", replace)
    go(checkpoint, store, 1)
    assert any(path.startswith(f"{checkpoint / 'sinks'}/tseries.json.") for path in synced)


@pytest.mark.parametrize("fails", ["write_text", "replace"])
def test_a_record_that_a_full_disk_refuses_ends_the_query_after_the_batch(
    tmp_path, checkpoint, monkeypatch, fails
):
    """Else a store that is put back would go unnoticed."""
    path, store = tmp_path / "a", make(tmp_path / "a")
    go(checkpoint, store, 0)

    def refuse(file, *given, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, fails, refuse)
    with pytest.raises(StorageFailed) as refused:
        go(checkpoint, store, 1)
    monkeypatch.undo()
    assert str(refused.value).startswith(f"'{checkpoint / 'sinks' / 'tseries.json'}' cannot be")
    assert f"of the store '{path}'" not in str(refused.value)
    assert refused.value.code == errno.ENOSPC
    assert [file.name for file in (checkpoint / "sinks").iterdir()] == ["tseries.json"]


def test_a_batch_that_is_written_again_forgets_its_earlier_commit(tmp_path, checkpoint):
    """The record of the new commit may fail to be written: the old one must not be left."""
    store = make(tmp_path / "a")
    for number in (0, 1, 2):
        remember_commit(checkpoint, store, number, CommitId(number, 7))
    # The store was put back to before its first commit.
    check_in_commit(checkpoint, store, (QUERY, 0))
    assert json.loads((checkpoint / "sinks" / "tseries.json").read_text())["batches"] == []
