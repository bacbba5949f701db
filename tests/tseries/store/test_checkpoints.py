"""Checkpoints are written beside the commits, of what is committed, and by whoever comes next."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lengths import outside_ci
from tseries.builders import forget_stores

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.background import maintain
from pyspark_tseries.store import checkpoints
from pyspark_tseries.store.checkpoints import (
    CHECKPOINT_LOCK,
    MAINTENANCE_LOCK,
    merge_entries,
    read_last_checkpoint,
    shadow_log,
    wait_for_checkpoints,
    write_checkpoint,
)

VALUES = {"value": pa.int64()}
INTERVAL = 10
"""Commits to a checkpoint, by this folder's conftest."""


@pytest.fixture
def series(tmp_path):
    return TimeSeries.create(tmp_path / "s", VALUES, "unlimited", "me", auto_compact=False)


def last_checkpoint(series):
    wait_for_checkpoints()
    return read_last_checkpoint(series._store.location).version


def append(series, count, name="a"):
    for number in range(count):
        series.append(name, number)


class Held:
    """A thread of checkpoints that waits until it is let go."""

    def __init__(self, monkeypatch):
        self.go, self.began, self.written = threading.Event(), threading.Event(), []

        def write(location, version):
            self.began.set()
            assert self.go.wait(60)
            self.written.append(version)
            write_checkpoint(location, version)

        monkeypatch.setattr(checkpoints, "write_checkpoint", write)


def test_no_commit_waits_for_a_checkpoint_and_the_newest_that_is_due_is_written(
    series, monkeypatch
):
    held = Held(monkeypatch)
    append(series, 5 * INTERVAL)
    assert held.began.wait(60)
    held.go.set()
    assert last_checkpoint(series) == 5 * INTERVAL - 1
    assert held.written == [INTERVAL - 1, 5 * INTERVAL - 1]
    forget_stores()
    assert len(TimeSeries.open(series._store.root).range_query().select_from("a")) == 5 * INTERVAL
    assert series.verify() == []


def test_a_checkpoint_never_has_a_commit_that_came_after_it_was_due(series, monkeypatch):
    held = Held(monkeypatch)
    append(series, INTERVAL)
    assert held.began.wait(60)
    append(series, 3)
    held.go.set()
    assert last_checkpoint(series) == INTERVAL - 1
    path = Path(series._store.root)
    for version in range(INTERVAL, INTERVAL + 4):  # Only the checkpoint is left.
        (path / f"_delta_log/{version:020d}.json").unlink(missing_ok=True)
    assert DeltaTable(path).version() == INTERVAL - 1
    assert len(DeltaTable(path).file_uris()) == INTERVAL - 1


@pytest.mark.thorough
def test_processes_that_commit_once_each_write_a_checkpoint_too(series):
    program = (
        "import sys\nfrom pyspark_tseries import TimeSeries\n"
        "TimeSeries.open(sys.argv[1], 'me', auto_compact=False).append('a', 1)"
    )
    append(series, INTERVAL - 2)
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, series._store.root], check=True)
    assert last_checkpoint(series) >= INTERVAL - 1


def test_a_checkpoint_that_a_killed_process_left_out_is_made_up_for_by_the_next_commit(
    series, monkeypatch
):
    with monkeypatch.context() as killed:
        killed.setattr("pyspark_tseries.store.log.checkpoint_later", lambda *_: None)
        append(series, INTERVAL + 3)
    assert last_checkpoint(series) == -1
    forget_stores()
    TimeSeries.open(series._store.root, "me", auto_compact=False).append("a", 1)
    assert last_checkpoint(series) == INTERVAL + 4


def test_a_store_at_the_path_of_one_that_was_removed_gets_no_checkpoint_of_that(
    series, monkeypatch, tmp_path
):
    held = Held(monkeypatch)
    append(series, INTERVAL)
    assert held.began.wait(60)
    append(series, INTERVAL)
    shutil.rmtree(tmp_path / "s")
    other = TimeSeries.create(tmp_path / "s", VALUES, "unlimited", "me", auto_compact=False)
    append(other, 3)
    held.go.set()
    wait_for_checkpoints()
    assert held.written
    assert last_checkpoint(other) in (-1, 3), "of its own entries, if there is one"
    assert len(DeltaTable(tmp_path / "s").file_uris()) == 3
    assert other.verify() == []


def checkpoint_of(series, version, *, merged):
    """The log files that Delta is given, and the rows of the checkpoint that it makes of them."""
    with shadow_log(series._store.location, version, merged=merged) as copy:
        log = Path(copy) / "_delta_log"
        given = sorted(path.name for path in log.iterdir())
        DeltaTable(copy).create_checkpoint()
        rows = pq.read_table(log / f"{version:020d}.checkpoint.parquet").to_pylist()
    return given, sorted(map(str, rows))


STEPS = (
    lambda series, n: series.append(f"s{n % 3}", n),
    lambda series, n: series.append_many([{"series": f"s{n}", "value": n} for n in range(3)]),
    lambda series, n: series.edit("s0", 9, n),
    lambda series, n: series.compact(),
    lambda series, n: series.erase("s0", n % 4, "a reason"),
    lambda series, n: series.add_columns({f"more{n}": pa.float64()}),
    lambda series, n: series.set_units({"value": f"unit {n}"}),
    lambda series, n: series.set_retained_range(f"limit {100 - n}"),
    lambda series, n: DeltaTable(series._store.root).optimize.compact(),
)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *outside_ci(1, 2, 3)])
def test_a_checkpoint_of_merged_entries_is_that_of_the_entries_themselves(series, seed):
    chance = random.Random(seed)
    append(series, INTERVAL, "s0")
    assert last_checkpoint(series) >= 0
    merged = 0
    for number in range(24):
        chance.choice(STEPS)(series, number)
        series._store.refresh()
        version = series._store.log.version()
        given, rows = checkpoint_of(series, version, merged=True)
        assert rows == checkpoint_of(series, version, merged=False)[1]
        merged += given == [f"{version - 1:020d}.checkpoint.parquet", f"{version:020d}.json"]
        last_checkpoint(series)  # Otherwise the next one may be on its way.
    assert merged > 12


def entry(*actions):
    return "\n".join(map(json.dumps, actions)).encode()


@pytest.mark.parametrize(
    "later",
    [
        entry({"domainMetadata": {"domain": "d"}}),
        entry({"add": {"path": "a", "deletionVector": {"storageType": "u"}}}),
        entry({"txn": {"appId": "q", "version": 1}}, {"txn": {"appId": "q", "version": 2}}),
        entry({"remove": {"path": "b"}}, {"add": {"path": "b"}}),
        entry({"add": {"path": "b"}, "txn": {"appId": "q"}}),
        entry({"add": {}}),
        entry({"add": None}),
        entry([1]),
        b'{"add":',
        b"\n",
        b"\xff",
    ],
)
def test_an_entry_of_which_the_effect_is_not_certain_is_not_merged(later):
    assert merge_entries([entry({"add": {"path": "a"}}), later]) is None


def test_of_merged_entries_the_last_word_on_each_file_and_transaction_counts():
    one = entry({"add": {"path": "a"}}, {"txn": {"appId": "q", "version": 1}}, {"protocol": {}})
    two = entry({"remove": {"path": "a"}}, {"add": {"path": "b"}}, {"commitInfo": {"n": 2}})
    three = entry({"add": {"path": "a", "n": 3}}, {"txn": {"appId": "q", "version": 3}})
    assert set(merge_entries([one, two, three]).splitlines()) == set(
        entry(
            {"add": {"path": "a", "n": 3}},
            {"add": {"path": "b"}},
            {"txn": {"appId": "q", "version": 3}},
            {"protocol": {}},
            {"commitInfo": {"n": 2}},
        ).splitlines()
    )


def test_without_a_checkpoint_or_with_one_in_parts_the_entries_are_not_merged(series):
    append(series, 3)
    given, _ = checkpoint_of(series, 3, merged=True)
    assert given == [f"{version:020d}.json" for version in range(4)]
    log = Path(series._store.root) / "_delta_log"
    (log / f"{2:020d}.checkpoint.0000000001.0000000002.parquet").touch()
    with shadow_log(series._store.location, 3, merged=True) as copy:
        assert f"{3:020d}.json" in os.listdir(Path(copy) / "_delta_log")
        assert len(os.listdir(Path(copy) / "_delta_log")) == 3


def test_entries_that_are_removed_meanwhile_do_not_come_back(series, monkeypatch):
    log, mark = Path(series._store.root) / "_delta_log", checkpoints._mark_checkpoint

    def remove(location, made, parts):
        for version in range(INTERVAL - 1):
            (log / f"{version:020d}.json").unlink(missing_ok=True)
        mark(location, made, parts)

    append(series, INTERVAL - 1)
    monkeypatch.setattr(checkpoints, "_mark_checkpoint", remove)
    write_checkpoint(series._store.location, INTERVAL - 1)
    assert [file.name for file in log.glob("*.json")] == [f"{INTERVAL - 1:020d}.json"]
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1


@pytest.mark.parametrize("away", [shutil.rmtree, lambda path: path.rename(f"{path}.away")])
def test_an_older_copy_that_is_put_back_meanwhile_gets_no_checkpoint_of_what_it_lacks(
    series, monkeypatch, tmp_path, away
):
    path, ready, go = tmp_path / "s", threading.Event(), threading.Event()
    mark = checkpoints._mark_checkpoint

    def wait(location, made, parts):
        mark(location, made, parts)
        ready.set()
        assert go.wait(60)

    append(series, 4)
    shutil.copytree(path, tmp_path / "backup")
    monkeypatch.setattr(checkpoints, "_mark_checkpoint", wait)
    append(series, INTERVAL - 4)
    assert ready.wait(60)
    away(path)
    shutil.copytree(tmp_path / "backup", path)
    go.set()
    wait_for_checkpoints()
    assert DeltaTable(path).version() == 4
    forget_stores()
    again = TimeSeries.open(path, "me", auto_compact=False)
    assert last_checkpoint(again) == -1
    assert len(again.range_query().select_from("a")) == 4
    assert again.verify() == []


def test_a_disk_that_takes_no_checkpoint_fails_no_commit(series, monkeypatch):
    def write(location, version):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(checkpoints, "write_checkpoint", write)
        append(series, INTERVAL + 2)
        assert last_checkpoint(series) == -1
    append(series, INTERVAL)
    assert last_checkpoint(series) == 2 * INTERVAL - 1


def test_one_process_at_a_time_writes_checkpoints_of_a_store(series):
    location = series._store.location
    with checkpoints.exclusive(location, CHECKPOINT_LOCK):
        append(series, INTERVAL)
        assert last_checkpoint(series) == -1
    append(series, INTERVAL)
    assert last_checkpoint(series) == 2 * INTERVAL - 1


def test_writers_leave_checkpoints_to_the_process_that_maintains_but_not_for_long(series):
    with checkpoints.exclusive(series._store.location, MAINTENANCE_LOCK):
        append(series, 4 * INTERVAL - 2)
        assert last_checkpoint(series) == -1
        append(series, 1)
        assert last_checkpoint(series) == 4 * INTERVAL - 1
        append(series, INTERVAL)
        assert last_checkpoint(series) == 4 * INTERVAL - 1
    append(series, INTERVAL)
    assert last_checkpoint(series) == 6 * INTERVAL - 1


def test_maintenance_writes_the_checkpoint_that_is_due(series):
    with checkpoints.exclusive(series._store.location, MAINTENANCE_LOCK):
        append(series, INTERVAL - 2)
        assert last_checkpoint(series) == -1
    maintain(series._store.root)
    assert last_checkpoint(series) == -1
    with checkpoints.exclusive(series._store.location, MAINTENANCE_LOCK):
        append(series, 2)
        assert last_checkpoint(series) == -1
    maintain(series._store.root)
    assert last_checkpoint(series) == INTERVAL
    assert series.verify() == []


def test_a_fork_commits_though_it_can_write_no_checkpoint(series):
    """Delta refuses to work in a fork; another process makes up for it."""
    append(series, INTERVAL)
    assert last_checkpoint(series) == INTERVAL - 1
    child = os.fork()
    if not child:
        code = 1
        try:
            append(series, INTERVAL, "b")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    append(series, 1)
    assert last_checkpoint(series) == 2 * INTERVAL + 1
    assert series.verify() == []
