"""A backup is one whole commit, made while writers go on, and goes on like the store itself."""

import contextlib
import datetime
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tseries.builders import VALUE, batch, forget_stores, stored
from tseries.object_store import bucket  # noqa: F401 a fixture
from tseries.spark_calls import Query
from tseries.subscriber import Client, make

import pyspark_tseries
from pyspark_tseries import TimeSeries
from pyspark_tseries.__main__ import main
from pyspark_tseries.errors import HistoryChanged, StoreBusy, UnusableStore
from pyspark_tseries.maintain import backup as backups
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.backup import backup
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.checkpoints import wait_for_checkpoints
from pyspark_tseries.store.commit_history import describe_change, find_commit_id, last_commit_id
from pyspark_tseries.store.store import Store

EVENT = ("series", "sequence", "timestamp", "commit")


def fill(store, *numbers, series="a"):
    for number in numbers:
        store.append(batch((series, number)))
    store.refresh()
    return store


def files_under(root):
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())


@pytest.fixture
def store(tmp_path):
    filled = fill(make(tmp_path / "s"), *range(25))
    wait_for_checkpoints()
    return filled


def test_backup_is_the_store_with_its_history_and_nothing_else(tmp_path, store):
    store.append(batch(("b", 1), edits=[("a", 3, 9.5)]))
    compact(store.root)
    remove_obsolete_files(store, 2**60)
    fill(store, 30)
    done = backup(store.root, str(tmp_path / "t/backup"))
    assert done.commit == last_commit_id(store)
    assert stored(tmp_path / "t/backup", *EVENT) == stored(tmp_path / "s", *EVENT)
    assert verify(str(tmp_path / "t/backup")) == []
    copy = Store.open(str(tmp_path / "t/backup"))
    assert copy.id == store.id
    for number in range(27):
        assert find_commit_id(copy, number) == find_commit_id(store, number)
    names = files_under(tmp_path / "t/backup")
    assert [name for name in names if "lock" in name or "staging" in name] == []
    events = {file.path for file in store.data_files()}
    assert {name for name in names if name.startswith("kind=")} == events
    fill(copy, 50)
    assert verify(copy.root) == []


def test_backup_of_a_store_without_commits_is_one(tmp_path):
    make(tmp_path / "s")
    assert backup(str(tmp_path / "s"), str(tmp_path / "b")).commit is None
    assert stored(tmp_path / "b") == []
    fill(Store.open(str(tmp_path / "b")), 1)


@pytest.mark.thorough
def test_backup_while_writers_go_on_is_a_whole_commit(tmp_path, store):
    stop = threading.Event()

    def write():
        number = 100
        while not stop.is_set():
            store.append(batch(("a", number), ("b", number)))
            number += 1
            if number % 7 == 0:
                compact(store.root)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = [backup(store.root, str(tmp_path / f"b{n}")) for n in range(4)]
    finally:
        stop.set()
        writer.join()
    events = stored(tmp_path / "s", *EVENT)
    for n, each in enumerate(done):
        assert verify(str(tmp_path / f"b{n}")) == []
        found = stored(tmp_path / f"b{n}", *EVENT)
        assert found == [event for event in events if event[3] <= each.commit.number]
        assert len(found) >= 25


def test_backup_takes_a_newer_commit_where_maintenance_removes_a_file_meanwhile(
    tmp_path, store, monkeypatch
):
    real, copied = backups._copy_file, []

    def copy(source, to, name):
        if len(copied) == 3:
            compact(store.root)
            fill(store, 60)
            for file in (tmp_path / "s").glob("kind=*/*"):
                if str(file.relative_to(tmp_path / "s")) not in {
                    f.path for f in store.data_files()
                }:
                    file.unlink()
        copied.append(name)
        return real(source, to, name)

    monkeypatch.setattr(backups, "_copy_file", copy)
    done = backup(store.root, str(tmp_path / "b"))
    assert done.commit.number == 25
    assert stored(tmp_path / "b", *EVENT) == stored(tmp_path / "s", *EVENT)
    assert len(list((tmp_path / "b").glob("kind=*/*"))) == len(store.data_files())

    def never(source, to, name):
        raise FileNotFoundError(name)

    monkeypatch.setattr(backups, "_copy_file", never)
    with pytest.raises(StoreBusy, match=r"what was copied to '.*' is not a store"):
        backup(store.root, str(tmp_path / "c"))


def test_interrupted_backup_is_no_store_and_its_folder_is_refused(tmp_path, store, monkeypatch):
    real = backups._write_log

    def interrupt(to, log, files):
        raise KeyboardInterrupt

    monkeypatch.setattr(backups, "_write_log", interrupt)
    with pytest.raises(KeyboardInterrupt):
        backup(store.root, str(tmp_path / "b"))
    assert Store.find(str(tmp_path / "b")) is None
    monkeypatch.setattr(backups, "_write_log", real)
    with pytest.raises(UnusableStore, match=r"is not empty: it has '.*'; nothing was copied"):
        backup(store.root, str(tmp_path / "b"))
    shutil.rmtree(tmp_path / "b")  # The next step.
    backup(store.root, str(tmp_path / "b"))


@pytest.mark.parametrize("what", ["a file in it", "a folder in it", "a file", "a store", "within"])
def test_target_that_is_not_empty_or_lies_in_the_store_is_refused(tmp_path, store, what, capsys):
    target = tmp_path / "s/backup" if what == "within" else tmp_path / "b"
    if what == "a file":
        target.write_text("")
    elif what == "a file in it":
        target.mkdir()
        (target / "x").write_text("")
    elif what == "a folder in it":
        (target / "x").mkdir(parents=True)
    elif what == "a store":
        make(target)
    before = files_under(tmp_path)
    assert main(["backup", store.root, str(target)]) == 1
    said = capsys.readouterr().err
    expected = {"within": "lies in the store", "a file": "' is a file"}
    assert expected.get(what, "is not empty: it has '") in said
    assert "next step: name another one" in said
    assert files_under(tmp_path) == before


def test_of_two_backups_into_a_folder_at_the_same_time_one_is_refused(tmp_path, store, monkeypatch):
    """They shared their drafts of the log, and the second one ended with a bare OSError."""
    check, target, begun = backups._refuse_target, tmp_path / "backup", []

    def check_slowly(source, to):
        check(source, to)
        if not begun:
            begun.append(True)
            backup(store.root, str(target))
            fill(store, 99)

    monkeypatch.setattr(backups, "_refuse_target", check_slowly)
    with pytest.raises(UnusableStore, match="is not empty: it has '_tseries'; nothing was copied"):
        backup(store.root, str(target))
    assert verify(str(target)) == []
    assert len(stored(target)) == 25


@pytest.mark.parametrize("ended", [False, True])
def test_of_two_backups_into_a_prefix_at_the_same_time_one_is_refused(
    tmp_path,
    store,
    bucket,  # noqa: F811
    monkeypatch,
    ended,
):
    """The second one removed files of the first, after replacing its log."""
    target = parse_location(bucket.uri(f"two backups/{ended}"), bucket.options)
    name = "_refuse_target" if ended else "_copy_moment"
    step = getattr(backups, name)

    def step_slowly(*args):
        result = step(*args)
        monkeypatch.setattr(backups, name, step)
        if ended:
            backup(store.root, target)
        else:
            with pytest.raises(UnusableStore, match="is not empty: it has '"):
                backup(store.root, target)
        return result

    monkeypatch.setattr(backups, name, step_slowly)
    if ended:
        with pytest.raises(UnusableStore, match="; nothing was copied"):
            backup(store.root, target)
    else:
        backup(store.root, target)
    assert list(target.list_files(target.file("_tseries", "staging", "claim", "_delta_log"))) == []
    assert verify(target) == []
    assert len(Store.open(target).snapshot().files) == 25


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("moment", ["_copy_moment", "_claimed"])
def test_no_store_is_created_where_a_backup_is_being_made(
    tmp_path,
    store,
    bucket,  # noqa: F811
    monkeypatch,
    is_local,
    moment,
):
    """The backup put its log over that of the new store, whose commits were acknowledged."""
    path = str(tmp_path / "b") if is_local else bucket.uri(f"created meanwhile/{moment}")
    target = parse_location(path, None if is_local else bucket.options)
    step = getattr(backups, moment)

    def create(*args):
        monkeypatch.setattr(backups, moment, step)
        fill(Store.create(target, [VALUE], RetainedRange()), 1)

    def copy(*args):
        with pytest.raises(UnusableStore, match="is the target of a backup that goes on"):
            create()
        return step(*args)

    @contextlib.contextmanager
    def claim(*args):
        # A creation that saw no claim comes after the backup has looked into the target.
        with step(*args):
            with monkeypatch.context() as patch:
                patch.setattr(Location, "require_unclaimed", lambda self: None)
                create()
            yield

    monkeypatch.setattr(backups, moment, claim if moment == "_claimed" else copy)
    if moment == "_copy_moment":
        backup(store.root, target)
        assert Store.open(target).id == store.id
        fill(Store.open(target), 99)
    else:
        with pytest.raises(UnusableStore, match="not empty: it has '_delta_log'; the files that"):
            backup(store.root, target)
        assert Store.open(target).id != store.id
    assert verify(target) == []


@pytest.mark.parametrize("where", ["store", "backup"])
def test_failure_of_one_of_two_object_stores_is_not_said_of_the_other(
    bucket,  # noqa: F811
    monkeypatch,
    where,
):
    source, target = (
        parse_location(bucket.uri(f"fails/{where}/{name}"), bucket.options)
        for name in ("store", "backup")
    )
    fill(Store.create(source, [VALUE], RetainedRange()), 1)

    def refuse(method):
        def refusing(location, path, *args):
            if location.root.endswith(where) and "kind=event" in path:
                raise OSError("AWS Error ACCESS_DENIED during GetObject")
            return method(location, path, *args)

        return refusing

    for name in ("read", "write"):
        monkeypatch.setattr(Location, name, refuse(getattr(Location, name)))
    with pytest.raises(UnusableStore, match=f"'{bucket.uri(f'fails/{where}/{where}')}' cannot be"):
        backup(source, target)


def test_backup_has_the_file_of_late_rows_that_its_log_names(tmp_path, store, monkeypatch):
    """Its batch is two batches older once the log is copied, and the store has removed it."""
    late, moment = Path(store.root, "_tseries/late/q"), backups._read_moment
    late.mkdir(parents=True)
    (late / "1-1-0000000000000001.arrow").write_bytes(b"of the log")

    def go_on(*args):
        found = moment(*args)
        (late / "1-1-0000000000000001.arrow").unlink()
        (late / "3-3-0000000000000003.arrow").write_bytes(b"later")
        return found

    monkeypatch.setattr(backups, "_read_moment", go_on)
    backup(store.root, str(tmp_path / "b"))
    copied = {path.name for path in (tmp_path / "b/_tseries/late/q").iterdir()}
    assert copied == {"1-1-0000000000000001.arrow", "3-3-0000000000000003.arrow"}


def test_command_copies_into_an_empty_folder_and_says_what_it_did(tmp_path, store, capsys):
    (tmp_path / "b").mkdir()
    assert main(["backup", store.root, str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{last_commit_id(store)} of '{store.root}': ")
    sizes = [file.stat().st_size for file in (tmp_path / "b").rglob("*") if file.is_file()]
    copied = [name for name in files_under(tmp_path / "b") if not name.endswith((".lock", "clock"))]
    assert f"{len(copied)} files, " in said
    assert sum(sizes) >= int(said.rpartition(", ")[2].split()[0]) > 0
    assert main(["backup", str(tmp_path / "none"), str(tmp_path / "c")]) == 1
    assert "there is no store at" in capsys.readouterr().err
    assert not os.path.exists(tmp_path / "c")


def test_query_and_subscriber_go_on_with_the_backup_of_store_and_checkpoint(tmp_path):
    query = Query(tmp_path)
    for number in range(3):
        query.commit(number, ("a", number, number))
    client = Client(tmp_path / "s")
    client.drain()
    at, got = client.position, list(client.got)
    shutil.copytree(tmp_path / "c-q", tmp_path / "checkpoint")
    backup(query.store, str(tmp_path / "b"))
    for number in range(3, 6):
        query.commit(number, ("a", number, number))
    client.drain()
    # Everything is lost; store and checkpoints come from the backup.
    for lost, kept in (("s", "b"), ("c-q", "checkpoint")):
        shutil.rmtree(tmp_path / lost)
        shutil.move(tmp_path / kept, tmp_path / lost)
    forget_stores()
    with pytest.raises(HistoryChanged):
        client.poll()
    client.position, client.got = at, list(got)
    for number in range(3, 6):
        query.commit(number, ("a", 100 + number, number))
    assert client.drain()[len(got) :] == [("a", 3), ("a", 4), ("a", 5)]
    assert TimeSeries.open(query.store).describe()["events"] == 6


@pytest.mark.outside_ci
def test_backup_between_a_disk_and_an_object_store_keeps_all(tmp_path, store, bucket):  # noqa: F811
    there = bucket.uri("backups/one")
    done = backup(store.root, parse_location(there, bucket.options))
    remote = Store.open(parse_location(there, bucket.options))
    assert (last_commit_id(remote), remote.id) == (done.commit, store.id)
    with pytest.raises(UnusableStore, match="is not empty"):
        backup(store.root, parse_location(there, bucket.options))
    back = backup(parse_location(there, bucket.options), str(tmp_path / "b"))
    assert back.commit == done.commit
    assert stored(tmp_path / "b", *EVENT) == stored(tmp_path / "s", *EVENT)
    assert verify(str(tmp_path / "b")) == []
    assert describe_change(remote, done.commit) is None


def test_backup_of_a_store_that_another_tool_has_optimized_opens(tmp_path, store):
    from deltalake import DeltaTable

    DeltaTable(store.root).optimize.compact()
    backup(store.root, str(tmp_path / "b"))
    assert stored(tmp_path / "b", *EVENT) == stored(tmp_path / "s", *EVENT)
    fill(Store.open(str(tmp_path / "b")), 99)


def test_backup_of_a_store_with_changed_settings_keeps_them(tmp_path):
    store = Store.create(str(tmp_path / "s"), [VALUE], RetainedRange(limit=5))
    fill(store, *range(9))
    TimeSeries.open(store.root).set_retained_range("limit 3")
    backup(store.root, str(tmp_path / "b"))
    assert TimeSeries.open(str(tmp_path / "b")).describe()["retained_range"] == "limit 3"


NOT_COPIED = {"clock", "head", "staging", "maintenance.error"}
"""Only heads that the log needs are copied; the rest belongs to the running store."""


def test_backup_keeps_every_folder_that_the_package_writes_beside_the_log():
    sources = Path(pyspark_tseries.__file__).parent.rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    written = set(re.findall(r'"_tseries", "([\w.-]+)"', text))
    assert written - NOT_COPIED == set(backups._OTHER_FOLDERS)


def test_other_readers_find_the_same_version_of_a_time_in_the_backup(tmp_path, store):
    """They take the time of a log entry's file for that of its commit."""
    begin = 1_750_000_000
    log = sorted((tmp_path / "s/_delta_log").glob("*.json"))
    for hour, entry in enumerate(log):
        os.utime(entry, (begin + hour * 3600,) * 2)
    backup(store.root, str(tmp_path / "b"))
    kept = sorted((tmp_path / "b/_delta_log").glob("*.json"))
    for entry in kept:
        assert (
            entry.stat().st_mtime_ns == (tmp_path / "s/_delta_log" / entry.name).stat().st_mtime_ns
        )
    asked = datetime.datetime.fromtimestamp(begin + (len(log) - 2) * 3600 + 60, datetime.UTC)
    versions = []
    for place in ("s", "b"):
        table = DeltaTable(tmp_path / place)
        table.load_as_version(asked)
        versions.append(table.version())
    assert versions == [len(log) - 2] * 2
