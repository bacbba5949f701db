"""Acknowledged events survive a power loss; torn files are named, and mended."""

import errno
import os
import re
from concurrent.futures import Future
from fnmatch import fnmatch

import pyarrow as pa
import pytest
from documents import table
from lengths import in_ci, outside_ci
from tseries.builders import forget_stores, new_store
from tseries.large_batches import NOW, as_tasks, at, large
from tseries.power_loss import Disk
from tseries.torn_files import newest, tear

from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.errors import StorageFailed, UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.storage import location
from pyspark_tseries.store import checkpoints
from pyspark_tseries.store.admin_commits import add_columns

VALUES = {"value": pa.int64()}


@pytest.fixture
def path(tmp_path):
    """A store of unsynced commits; the last but one has a checkpoint."""
    series = TimeSeries.create(
        tmp_path / "s", VALUES, "unlimited", "me", durability="os", auto_compact=False
    )
    for number in range(10):
        series.append("ab"[number % 2], number)
    checkpoints.wait_for_checkpoints()
    forget_stores()
    return tmp_path / "s"


NEVER = 2**60
LEAST_LOSSES = 150
"""The power is lost more often than that in the first test, but for `make test` on its own."""


class Machine:
    """A store on a disk, and what its user was told is stored."""

    def __init__(self, tmp_path, monkeypatch):
        self.path, self.left = tmp_path / "home" / "s", tmp_path / "left"
        self.path.parent.mkdir()
        self.disk = Disk(self.path, monkeypatch, self.lose_power)
        # Checkpoints that are due, and how many moments of later commits they wait for.
        self.due, self.wait = [], 0
        monkeypatch.setattr(checkpoints._checkpointer(os.getpid()), "_pool", self)
        self.told = self.facts = None
        self.losses = self.moments = 0

    def lose_power(self):
        """Everything acknowledged is there, in the worst cases and in some others."""
        by_chance = {"names": False, "seed": self.losses}
        cases = [{"names": False}, {"names": True}, *([by_chance] if self.facts else [])]
        self.moments += 1
        # `make test` tries another case at each moment, and CI all of them.
        for case in in_ci([cases[self.moments % len(cases)]], cases):
            self.disk.leave(self.left, **case)
            forget_stores()
            self.losses += 1
            if self.told is None:
                continue
            there = set(contents(self.left))
            assert there >= self.told, (case, self.told - there)
            if self.facts is not None:
                assert facts(self.left) == self.facts, case
            assert verify(str(self.left)) == []
        self.write_due()

    def submit(self, write, *given):
        """Takes the place of the thread that writes checkpoints."""
        if write is not int:  # This call waits for all others.
            self.due.append((self.moments + self.wait, write, given))
            self.write_due()
        done = Future()
        done.set_result(None)
        return done

    def write_due(self):
        while self.due and self.due[0][0] <= self.moments:
            _, write, given = self.due.pop(0)
            write(*given)

    def acknowledge(self):
        self.told, self.facts = set(contents(self.path)), facts(self.path)
        self.lose_power()
        self.facts = None


def facts(path):
    said = describe(path)
    names = ("retained_range", "policy", "value_columns", "files", "last_commit")
    return [said[name] for name in names]


def contents(path):
    series = TimeSeries.open(path, author="me", auto_compact=False)
    edits = series.range_query().for_edits()
    return [
        (name, event.sequence, event.value if series._only_column else event.value["value"])
        for name in ("a", "b")
        for event in edits.select_from(name).events
    ]


def test_a_store_whose_first_creator_died_before_it_synced_survives_a_power_loss(
    tmp_path, monkeypatch
):
    """The simulation found it: the second creator saw the directory, and synced what is in it."""
    path = tmp_path / "home" / "s"
    disk = Disk(path, monkeypatch)

    def fail(paths):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as dying:
        dying.setattr(location, "sync", fail)
        with pytest.raises(StorageFailed, match="Input/output"):
            TimeSeries.create(path, VALUES, "unlimited", "me")
    assert path.is_dir()
    TimeSeries.create(path, VALUES, "unlimited", "me", auto_compact=False).append("a", 7)
    forget_stores()
    disk.leave(tmp_path / "left", names=False)
    assert contents(tmp_path / "left") == [("a", 0, 7)]


@pytest.mark.thorough
@pytest.mark.parametrize("wait", [0, *outside_ci(3)])
def test_acknowledged_commit_survives_a_power_loss(tmp_path, monkeypatch, wait):
    machine = Machine(tmp_path, monkeypatch)
    machine.wait = wait  # With 3, checkpoints are written in the middle of later commits.
    series = TimeSeries.create(machine.path, VALUES, "limit 50", "me", auto_compact=False)
    machine.acknowledge()
    for number in range(9):  # A checkpoint is among what these write.
        series.append("ab"[number % 2], number)
        machine.acknowledge()
    series.edit("a", 0, 100)
    machine.acknowledge()
    series.append_many(pa.table({"series": ["a", "b"], "value": [7, 8]}))
    machine.acknowledge()
    compact(machine.path)
    machine.acknowledge()
    series.set_policy({"me": ["read", "update", "edit", "query_obsolete"]})
    machine.acknowledge()
    series.set_retained_range("limit 40")
    machine.acknowledge()
    compact(machine.path, NEVER, principal="me")
    machine.acknowledge()
    rebuild(machine.path, principal="me")
    machine.acknowledge()
    add_columns(series._store, [pa.field("more", pa.string())])
    for number in range(4):
        series.append("a", {"value": number, "more": "x"})
        machine.acknowledge()
    assert machine.losses > in_ci(LEAST_LOSSES // 3, LEAST_LOSSES)


def test_committed_task_files_survive_a_power_loss(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)
    store = new_store(machine.path)
    rows = [at(name, us) for us in range(5) for name in "ab"]
    machine.told = set()
    store.append(large(as_tasks(store, 2, rows)), clock=lambda: NOW)
    assert len(store.snapshot().files) == 2, "published as they are"
    machine.acknowledge()
    assert len(machine.told) == 10


def test_a_commit_syncs_and_links_in_the_order_of_the_page(tmp_path, monkeypatch):
    calls = []

    def watch(name, path_of):
        real = getattr(os, name)

        def watched(*given):
            calls.append((name, os.path.relpath(path_of(*given), tmp_path / "s")))
            return real(*given)

        monkeypatch.setattr(os, name, watched)

    series = TimeSeries.create(tmp_path / "s", VALUES, auto_compact=False)
    series.append("a", 1)  # The first commit of a process syncs the directories above as well.
    watch("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    watch("link", lambda path, to: to)
    series.append("a", 2)
    for _, call, told in table("docs/explanation/atomic-commit.md", "order of a local commit"):
        patterns = sorted(re.findall("`([^`]+)`", told))
        step, calls[: len(patterns)] = calls[: len(patterns)], []
        assert {name for name, _ in step} == {call}
        # In one round, so in any order.
        assert all(map(fnmatch, sorted(path for _, path in step), patterns)), (step, told)
    assert not calls


# -- what is left to the operating system --------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["empty", "half", "zeros"])
@pytest.mark.parametrize("kind", ["entry", "data", "head"])
def test_a_torn_newest_file_is_named_on_open_with_what_to_do(path, kind, how):
    file = newest(path, kind)
    tear(file, how)
    with pytest.raises(UnusableStore) as error:
        TimeSeries.open(path)
    assert file.name in str(error.value)
    assert "python -m pyspark_tseries repair" in str(error.value)
    assert any(file.name in line for line in map(str, verify(str(path))))


def test_an_entry_that_lacks_a_line_is_named_on_open(path):
    tear(newest(path, "entry"), "a line")
    with pytest.raises(UnusableStore, match="it has 2 of 3 lines"):
        TimeSeries.open(path)


def test_nothing_is_acknowledged_any_more_on_top_of_a_torn_commit(path):
    first, *_ = sorted((path / "kind=event").iterdir())
    tear(first, "empty")
    with pytest.raises(UnusableStore, match=first.name):
        TimeSeries.open(path).append("a", 1)
    with pytest.raises(UnusableStore, match=first.name):
        DefaultSource({"path": str(path)}).schema()


def test_a_synced_commit_brings_everything_before_it_to_the_disk(path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )
    kinds = (".json", ".parquet", ".arrow")
    before = [str(file) for file in path.rglob("*") if file.suffix in kinds]
    TimeSeries.open(path, auto_compact=False).append("a", 1)
    done = {name for name in before if "checkpoint" in name or name.endswith(f"{0:020d}.json")}
    assert set(before) - done <= set(synced)
    synced.clear()
    TimeSeries.open(path, auto_compact=False).append("a", 2)
    assert len(synced) < 10, "but once"


def test_durability_is_a_choice_of_two(tmp_path):
    for durability in ("fsync", "os"):
        TimeSeries.create(tmp_path / durability, VALUES, durability=durability)
        TimeSeries.open(tmp_path / durability, durability=durability).append("a", 1)
    with pytest.raises(ValueError, match=r"'always' \(.*\); accepted: 'fsync', 'os'; next step"):
        TimeSeries.open(tmp_path / "os", durability="always")
