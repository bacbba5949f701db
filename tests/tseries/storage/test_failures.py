"""A full, read-only, foreign or vanished disk is named once, with its path and a next step."""

import contextlib
import errno
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from pyspark_timestream.core.why import why
from pyspark_tseries import NoSuchStore, StorageFailed, TimeSeries, UnusableStore
from pyspark_tseries.__main__ import main
from pyspark_tseries.maintain.background import COMMITS_PER_MAINTENANCE, maintain
from pyspark_tseries.storage import failures, location
from pyspark_tseries.storage.failures import explain_failure, explained_failures
from pyspark_tseries.storage.location import move_exclusively, parse_location
from pyspark_tseries.store.checkpoints import wait_for_checkpoints

VALUES = {"value": pa.float64()}
NOBODY = 65534
ROW = pa.table({"series": ["a"], "value": [1.0]})
WRITES = {
    "append": lambda store: store.append("a", 1.0),
    "edit": lambda store: store.edit("a", 0, 2.0),
    "append_many": lambda store: store.append_many(ROW),
    "compact": lambda store: store.compact(),
    "set_retained_range": lambda store: store.set_retained_range("limit 7"),
    "set_policy": lambda store: store.set_policy({"me": ["own", "update", "edit"]}),
}
READS = {
    "range_query": lambda store: len(store.range_query().select_from("a")),
    "describe": lambda store: store.describe(),
    "verify": lambda store: store.verify(),
    "cti": lambda store: store.cti(),
}


def new_store(path):
    return TimeSeries.create(path, VALUES, "unlimited", author="me", auto_compact=False)


@pytest.fixture
def mount(tmp_path):
    """Mounts a small disk of its own, and remounts it."""

    def run(*options):
        done = subprocess.run(["mount", *options, str(there)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this user cannot mount: {done.stderr.strip()}")

    there = tmp_path / "disk"
    there.mkdir()
    run("-t", "tmpfs", "-o", "size=400k", "tmpfs")
    yield lambda options: run("-o", f"remount,{options}")
    subprocess.run(["umount", "-l", str(there)], check=True)


def fill(store):
    """Append until nothing fits: a checkpoint that is being written gives its space back."""
    refused = None
    for _ in range(1000):
        try:
            store.append("a", 0.0)
            refused = None
        except StorageFailed as error:
            if refused is not None:
                return error
            refused = error
            wait_for_checkpoints()
    raise AssertionError("the disk is larger than that")


def test_every_write_to_a_full_disk_names_the_disk_and_goes_on_when_there_is_space(mount, tmp_path):
    store = new_store(tmp_path / "disk" / "s")
    said = [str(fill(store))]
    before = len(store.range_query().select_from("a"))
    for write in WRITES.values():
        with pytest.raises(StorageFailed) as caught:
            write(store)
        assert (caught.value.code, caught.value.path) == (errno.ENOSPC, str(tmp_path / "disk/s"))
        said.append(str(caught.value))
    with pytest.raises(StorageFailed) as caught:
        new_store(tmp_path / "disk" / "t")
    for text in [*said, str(caught.value)]:
        assert "No space left on device (ENOSPC); next step: free space" in text
        assert f"mounted at '{tmp_path / 'disk'}'" in text
    assert len(store.range_query().select_from("a")) == before
    mount("size=40m")
    for write in WRITES.values():
        write(store)
    assert store.verify() == []


def test_read_only_store_is_read_checked_and_found_sound_and_each_write_says_read_only(
    mount, tmp_path, capsys
):
    path = tmp_path / "disk" / "s"
    new_store(path).append("a", 1.0)
    mount("ro")
    store = TimeSeries.open(path, auto_compact=False)
    for read in READS.values():
        read(store)
    for write in WRITES.values():
        with pytest.raises(StorageFailed, match=r"\(EROFS\); next step: mount the file system"):
            write(store)
    assert main(["repair", "--dry-run", str(path)]) == main(["repair", str(path)]) == 0
    assert capsys.readouterr().out == "nothing to repair\n" * 2
    assert main(["maintain", str(path)]) == 1
    assert "mount the file system writable" in capsys.readouterr().err
    mount("rw")
    assert store.append("a", 2.0).sequence == 1


# -- two users -----------------------------------------------------------------------------------


@contextlib.contextmanager
def as_nobody():
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    mask, groups = os.umask(0o022), os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(mask)


@pytest.fixture
def team():
    """A directory that gives new entries the group `NOBODY`."""
    there = Path(tempfile.mkdtemp())
    with contextlib.suppress(PermissionError):
        os.chown(there, -1, NOBODY)
    there.chmod(0o2775)
    yield there
    shutil.rmtree(there)


def test_second_user_of_a_group_is_told_what_to_do_and_it_helps_from_then_on(team):
    place = team / "the team's store"
    mask = os.umask(0o022)
    try:
        store = new_store(place)
        store.append("a", 0.0)
        with as_nobody():
            theirs = TimeSeries.open(place, auto_compact=False)
            assert len(theirs.range_query().select_from("a")) == 1
            with pytest.raises(StorageFailed) as caught:
                theirs.append("a", 1.0)
        assert f"'{place}" in str(caught.value)
        advice = re.search(r"chmod -R .*?(?= \(what)", str(caught.value))
        subprocess.run(advice[0], shell=True, check=True)
        store.edit("a", 0, 5.0)  # Makes directories and files of its own.
        with as_nobody():
            for n in range(COMMITS_PER_MAINTENANCE):
                theirs.append("a", float(n))
            theirs.edit("a", 0, 2.0)
            assert maintain(place)
        store.append("a", 1.0)
        assert maintain(place)
        assert store.verify() == []
    finally:
        os.umask(mask)


def test_lock_of_another_user_that_cannot_be_written_hinders_no_append(team):
    store = new_store(team / "s")
    store.append("a", 0.0)
    for path in [team / "s", *(team / "s").rglob("*")]:
        os.chmod(path, 0o777 if path.is_dir() else 0o644)
    with as_nobody():
        TimeSeries.open(team / "s", auto_compact=False).append("a", 1.0)
    assert store.verify() == []


# -- file systems without hard links -------------------------------------------------------------


def without_links(*_):
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_store_works_without_hard_links_and_commits_stay_exclusive(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", without_links)
    store = new_store(tmp_path / "s")
    for n in range(25):  # With checkpoints of the log.
        store.append("a", float(n))
    store.compact()
    assert len(store.range_query().select_from("a")) == 25
    assert store.verify() == []
    (tmp_path / "one").write_text("one")
    (tmp_path / "two").write_text("two")
    with pytest.raises(FileExistsError):
        move_exclusively(str(tmp_path / "two"), str(tmp_path / "one"))
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["one", "two"]


def test_file_system_that_cannot_commit_exclusively_is_refused_by_its_cause(tmp_path, monkeypatch):
    def without_renaming(path, to):
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), to)

    monkeypatch.setattr(os, "link", without_links)
    monkeypatch.setattr(location, "_rename_exclusively", without_renaming)
    with pytest.raises(StorageFailed, match="has hard links or exclusive renaming"):
        new_store(tmp_path / "s")


# -- stores that are away ------------------------------------------------------------------------


@pytest.mark.parametrize("use", [*WRITES, *READS])
@pytest.mark.parametrize("left", ["nothing", "an empty mount point"])
def test_open_store_that_is_away_is_said_to_be_away_and_goes_on_when_it_is_back(
    tmp_path, use, left
):
    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append("a", float(n))
    os.rename(tmp_path / "s", tmp_path / "away")
    if left == "an empty mount point":
        (tmp_path / "s").mkdir()
    for _ in range(2):
        with pytest.raises(NoSuchStore) as caught:
            (WRITES | READS)[use](store)
        assert not re.search(r"repair|other tool|Errno", str(caught.value))
        assert "next step: " in str(caught.value)
    assert left == "an empty mount point" or not (tmp_path / "s").exists()
    assert left == "nothing" or not os.listdir(tmp_path / "s")
    (tmp_path / "s").rmdir() if left != "nothing" else None
    os.rename(tmp_path / "away", tmp_path / "s")
    assert store.append("a", 9.0).sequence == 3
    assert store.verify() == []


def test_maintenance_of_a_store_that_goes_away_meanwhile_makes_no_directory(tmp_path, monkeypatch):
    from pyspark_tseries.maintain import background

    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append("a", float(n))

    def goes_away(*_, **__):
        os.rename(tmp_path / "s", tmp_path / "away")
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path / "s"))

    monkeypatch.setattr(background, "merge_file_groups", goes_away)
    with explained_failures(parse_location(tmp_path / "s")), pytest.raises(FileNotFoundError):
        maintain(tmp_path / "s")
    assert not (tmp_path / "s").exists()
    os.rename(tmp_path / "away", tmp_path / "s")  # Not into it.
    assert store.verify() == []


# -- other failures ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", list(failures._NEXT_STEPS), ids=errno.errorcode.get)
def test_failure_of_the_storage_has_code_path_and_next_step(tmp_path, code):
    location = new_store(tmp_path / "s")._store.location
    path = location.file("kind=event", "0.parquet")
    wrapped = UnusableStore("it cannot be opened")
    wrapped.__cause__ = OSError(code, os.strerror(code), path)
    quoted = DeltaError(f"Generic LocalFileSystem error: unable to open '{path}' (os error {code})")
    for error in (OSError(code, os.strerror(code), path), wrapped, quoted):
        named = explain_failure(location, error)
        assert isinstance(named, StorageFailed)
        assert (named.path, named.code) == (path, code)
        assert re.search(rf"'{path}'.*\({errno.errorcode[code]}\); next step: ['\w]+", str(named))


@pytest.mark.parametrize("code", list(failures._NEXT_STEPS_IN_STORES), ids=errno.errorcode.get)
def test_next_steps_about_a_store_are_not_given_for_a_disk_beside_it(tmp_path, code):
    store, beside = tmp_path / "store", tmp_path / "checkpoint" / "tseries.json"
    store.mkdir()
    location = parse_location(str(store))
    steps = {}
    for path in (str(store / "a"), str(beside)):
        named = failures.explain_failure(location, OSError(code, os.strerror(code), path))
        assert (named.path, named.code) == (path, code)
        steps[path] = named.next_step
    assert steps[str(beside)] == failures._NEXT_STEPS[code]
    added = failures._NEXT_STEPS_IN_STORES[code].format(root=store)
    assert steps[str(store / "a")] == failures._NEXT_STEPS[code] + added


def test_missing_rights_beside_a_store_advise_no_change_of_the_store(tmp_path):
    store, target = tmp_path / "store", tmp_path / "backups" / "new"
    store.mkdir()
    (tmp_path / "backups").mkdir()
    location, code = parse_location(str(store)), errno.EACCES
    beside, within = (
        explain_failure(location, OSError(code, os.strerror(code), str(path))).next_step
        for path in (target, store / "a")
    )
    assert f"'{tmp_path}/backups' is d" in beside
    assert "allow this user" in beside
    assert "chmod" not in beside
    assert str(store) not in beside
    assert f"chmod -R g+rwXs {store} " in within


def test_missing_rights_where_a_store_is_to_be_made_advise_no_change_of_what_is_not_there(tmp_path):
    (tmp_path / "data").mkdir()
    new, code = tmp_path / "data" / "new", errno.EACCES
    error = OSError(code, os.strerror(code), str(new))
    step = explain_failure(parse_location(str(new)), error, is_new=True).next_step
    assert f"'{tmp_path}/data' is d" in step
    assert "allow this user" in step
    assert "chmod" not in step


def test_error_that_is_not_of_the_storage_stays_as_it_is(tmp_path):
    location = new_store(tmp_path / "s")._store.location
    for error in (FileNotFoundError(errno.ENOENT, "gone", "x"), UnusableStore("x"), ValueError()):
        assert explain_failure(location, error) is None


def test_why_finds_a_named_failure_of_the_storage(capsys):
    why(StorageFailed("'/s' is full", next_step="free space"))
    assert capsys.readouterr().out == "'/s' is full; next step: free space\n"
