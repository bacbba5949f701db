"""The store looks after itself off the commit path, and removes nothing that is still needed."""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tseries.builders import VALUE, batch, forget_stores, stored
from tseries.limits import set_limits

from pyspark_timestream.errors import OptionError
from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.errors import NoSuchStore, UnusableStore
from pyspark_tseries.maintain import background as maintenance
from pyspark_tseries.maintain.background import (
    COMMITS_PER_MAINTENANCE,
    maintain,
    maintain_after_commit,
    remove_obsolete_files,
)
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.properties import check_unchanged
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage import location as host_locks
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.storage.snapshot import head_path, load_index
from pyspark_tseries.store.checkpoints import wait_for_checkpoints
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.store import Store

pytestmark = pytest.mark.thorough

HOUR_US = 3_600_000_000


@pytest.fixture
def store(tmp_path):
    return Store.create(str(tmp_path / "s"), [VALUE], RetainedRange(limit=1000), min_retention_us=0)


def now_us():
    return time.time_ns() // 1000


def fill(store, commits, first=0):
    for n in range(first, first + commits):
        store.append(batch(("a", n), (f"b{n}", n)))


def aged(root, hours):
    """Makes every file look `hours` older."""
    for where, _, names in os.walk(root):
        for name in names:
            path = os.path.join(where, name)
            then = os.stat(path).st_mtime - hours * 3600
            os.utime(path, (then, then))


def heads(store):
    return sorted(os.listdir(os.path.join(store.root, "_tseries", "head")))


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.05)


def test_writer_starts_maintenance_in_a_process_of_its_own(store):
    for n in range(3 * COMMITS_PER_MAINTENANCE - 1):
        store.append(batch(("a", n), (f"b{n}", n)))
        maintain_after_commit(store)
    store.append(batch(("a", 10**6)))
    before = stored(store.root)
    maintain_after_commit(store)
    wait_for(lambda: describe(store.root)["files"] < 2 * COMMITS_PER_MAINTENANCE)
    assert stored(store.root) == before
    wait_for(lambda: maintain(store.root))
    assert verify(store.root) == []


def test_maintenance_runs_once_per_host_and_frees_its_lock_when_killed(store):
    fill(store, 1)
    code = (
        "import sys, time; from pyspark_tseries.storage.location import exclusive; "
        "from pyspark_tseries.storage.location import parse_location; "
        "guard = exclusive(parse_location(sys.argv[1]), 'maintenance.lock'); guard.__enter__(); "
        "print('at it', flush=True); "
        "time.sleep(600)"
    )
    line = [sys.executable, "-c", code, store.root]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "at it\n"
            assert maintain(store.root) is None
        finally:
            other.kill()
    assert maintain(store.root) is not None


@pytest.fixture
def patient(monkeypatch):
    """The started processes; each only holds what it inherits until it is killed."""
    started, real = [], subprocess.Popen

    def start(line, **how):
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        started.append(real(sleep, **how))
        return started[-1]

    monkeypatch.setattr(maintenance.subprocess, "Popen", start)
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_concurrent_writers_start_one_maintenance_at_a_time(store, patient):
    fill(store, 1)

    def start(count):
        threads = [
            threading.Thread(
                target=maintenance._run_in_subprocess, args=[store.location]
            )  # As of processes.
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        return threads

    def at_work(threads):
        return sum(thread.is_alive() for thread in threads)

    first = start(5)
    wait_for(lambda: len(patient) == 1 and at_work(first) == 1)
    for thread in start(5):
        thread.join()
    assert len(patient) == 1
    assert maintain(store.root) is None
    patient[0].kill()
    wait_for(lambda: not at_work(first))
    second = start(5)
    wait_for(lambda: len(patient) == 2 and at_work(second) == 1)
    patient[1].kill()
    wait_for(lambda: not at_work(second))
    assert maintain(store.root) is not None


def test_maintenance_without_file_locks_runs_once_per_process(store, patient, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(host_locks.fcntl, "flock", no_locks)
    fill(store, 1)
    first = threading.Thread(target=maintenance._run_once_per_process, args=[store.location])
    first.start()
    wait_for(lambda: len(patient) == 1)
    maintenance._run_once_per_process(store.location)
    assert len(patient) == 1
    patient[0].kill()
    first.join()
    again = threading.Thread(target=maintenance._run_once_per_process, args=[store.location])
    again.start()
    wait_for(lambda: len(patient) == 2)
    patient[1].kill()
    again.join()


@pytest.mark.outside_ci
def test_maintenance_continues_while_commits_go_on(store, monkeypatch):
    fill(store, COMMITS_PER_MAINTENANCE)
    files, rounds = [], [2 * COMMITS_PER_MAINTENANCE, COMMITS_PER_MAINTENANCE - 3]

    def pause(_):
        files.append(describe(store.root)["files"])
        if rounds:
            fill(store, rounds.pop(0), first=1000 * len(files))

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
    monkeypatch.setattr(maintenance, "time", clock)
    maintenance.maintain_while_busy(store.location)
    assert files == [COMMITS_PER_MAINTENANCE, 1]


@pytest.mark.parametrize(("pause_s", "sweeps"), [(60.0, 1), (0.0, 3)])
def test_a_busy_store_loses_old_log_entries_each_round_and_is_listed_once_a_minute(
    store, monkeypatch, pause_s, sweeps
):
    steps = []
    for step in ("_sweep", "_list_obsolete_log"):
        whole = getattr(maintenance, step)
        monkeypatch.setattr(
            maintenance,
            step,
            lambda *args, step=step, whole=whole: steps.append(step) or whole(*args),
        )
    monkeypatch.setattr(maintenance, "PAUSE_BETWEEN_SWEEPS_S", pause_s)

    def pause(_):
        if (rounds := steps.count("_list_obsolete_log")) < 3:
            fill(store, COMMITS_PER_MAINTENANCE, first=1000 * rounds)

    fill(store, COMMITS_PER_MAINTENANCE)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
    monkeypatch.setattr(maintenance, "time", clock)
    maintenance.maintain_while_busy(store.location)
    assert (steps.count("_list_obsolete_log"), steps.count("_sweep")) == (3, sweeps)


def test_maintenance_error_is_described_until_a_round_succeeds(store, monkeypatch):
    fill(store, 1)

    def full(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(maintenance, "merge_file_groups", full)
    with pytest.raises(OSError, match="disk full"):
        maintain(store.root)
    assert describe(store.root)["maintenance_error"] == "OSError: disk full"
    monkeypatch.undo()
    maintain(store.root)
    assert describe(store.root)["maintenance_error"] is None
    with pytest.raises(NoSuchStore):
        maintain(store.root + "x")


def test_cleaning_keeps_what_the_store_needs_however_old_it_is(store):
    fill(store, 30)
    compact(store.root)
    fill(store, 5, 30)
    before = stored(store.root)
    aged(store.root, 100)
    remove_obsolete_files(store, now_us())
    forget_stores()
    assert stored(store.root) == before
    assert verify(store.root) == []
    fill(Store.open(store.root), 1, 100)
    assert verify(store.root) == []


def test_removed_files_are_kept_an_hour_and_orphans_a_day(store):
    fill(store, 3)
    old = [file.path for file in store.snapshot().files]
    compact(store.root)
    orphan = os.path.join(store.root, "kind=event", f"0000000009-{store.new_id():016x}.parquet")
    with open(orphan, "w") as file:
        file.write("of a writer that was killed")
    staged = os.path.join(store.root, "_tseries", "staging", "x.arrow")
    os.makedirs(os.path.dirname(staged), exist_ok=True)
    with open(staged, "w") as file:
        file.write("of a task that was killed")
    remove_obsolete_files(store, now_us())
    assert all(os.path.exists(os.path.join(store.root, path)) for path in old)
    aged(store.root, 23)
    remove_obsolete_files(store, now_us())
    assert os.path.exists(orphan)
    assert os.path.exists(staged)
    aged(store.root, 2)
    remove_obsolete_files(store, now_us())
    assert not os.path.exists(orphan)
    assert not os.path.exists(staged)
    assert verify(store.root) == []


def test_removed_files_go_an_hour_after_their_removal(store):
    fill(store, 3)
    old = [file.path for file in store.snapshot().files]
    compact(store.root, now_us() - 2 * HOUR_US)
    remove_obsolete_files(store, now_us())
    assert not any(os.path.exists(os.path.join(store.root, path)) for path in old)
    assert verify(store.root) == []


def test_small_removed_files_beyond_a_number_go_after_ten_minutes(store, monkeypatch):
    fill(store, 6)
    first = [file.path for file in store.snapshot().files]
    compact(store.root, now_us() - 20 * 60_000_000)
    fill(store, 3, 6)
    second = [file.path for file in store.snapshot().files if not file.is_compacted]
    compact(store.root, now_us() - 15 * 60_000_000)
    fill(store, 3, 9)
    third = [file.path for file in store.snapshot().files if not file.is_compacted]
    compact(store.root, now_us() - 5 * 60_000_000)
    load_table(store.location).create_checkpoint()
    merged = [file.path for file in store.snapshot().files]
    set_limits(monkeypatch, kept_small_files=4)
    remove_obsolete_files(store, now_us())

    def there(paths):
        return [os.path.exists(os.path.join(store.root, path)) for path in paths]

    assert there(third) == [True] * 3, "five minutes ago"
    assert sum(there(second)) == 1, "one of the newest four"
    assert there(first) == [False] * 6
    assert there(merged) == [True]
    set_limits(monkeypatch, kept_small_files=4)
    remove_obsolete_files(store, now_us() + 6 * 60_000_000)
    assert sum(there(second)) == 1
    set_limits(monkeypatch, kept_small_files=3)
    remove_obsolete_files(store, now_us() + 6 * 60_000_000)
    assert there(second + third) == [False] * 3 + [True] * 3
    forget_stores()
    assert verify(store.root) == []
    assert len(stored(store.root)) == 24


def test_heads_go_with_their_files_and_others_stay_an_hour(store, monkeypatch):
    set_limits(monkeypatch, head_changes=2)
    then = now_us() - 30 * 60_000_000
    for n in range(12):
        store.append(batch(("a", n)), clock=lambda: then)
    compact(store.root, then + 60_000_000)
    store.append(batch(("a", 99)))
    load_table(store.location).create_checkpoint()
    stray = head_path(store.location, 255)
    with open(stray, "w") as file:
        file.write("of a commit that is to come")
    before = heads(store)
    set_limits(monkeypatch, kept_small_files=2)
    remove_obsolete_files(store, now_us())
    assert os.path.exists(stray)
    assert len(heads(store)) < len(before) - 5
    forget_stores()
    assert Store.open(store.root).index().lookup(["a"])["last_sequence"] == [12]
    os.remove(stray)
    assert verify(store.root) == []


@pytest.mark.parametrize(
    ("versions", "last", "dense"),
    [
        ([], 9, []),
        ([9, 19, 29], 29, [9, 19]),
        ([9, 99, 189, 199, 209, 299], 299, [9, 189, 209]),
        ([5, 300, 310], 300, []),
    ],
)
def test_checkpoints_close_to_a_later_one_are_dense(versions, last, dense):
    assert sorted(maintenance._choose_dense(versions, last)) == dense


def test_a_head_that_was_current_within_the_hour_can_still_be_read(store, monkeypatch):
    then = now_us()
    for n in range(70):
        minutes = 69 - n
        store.append(batch(("a", n)), clock=lambda m=minutes: then - m * 60_000_000)
        if minutes == 50:
            known = store.snapshot().head_id
    all_heads = heads(store)
    aged(store.root, 30)
    remove_obsolete_files(store, then)
    assert load_index(store.location, known, None, SeriesIndex()).lookup(["a"])[
        "last_sequence"
    ] == [19]
    later = then + 3 * HOUR_US
    monkeypatch.setattr(Location, "clock_us", lambda _: later)
    store.append(batch(("a", 10**6)), clock=lambda: later)
    remove_obsolete_files(store, later)
    assert len(heads(store)) < len(all_heads)
    forget_stores()
    assert verify(store.root) == []


def test_cleaning_keeps_every_head_where_one_is_broken_and_names_it(store):
    fill(store, 5)
    everything = heads(store)
    store.refresh()
    parent = store.metadata().parent
    path = head_path(store.location, parent)
    with open(path, "r+b") as file:
        file.seek(700)
        file.write(b"\xff")
    aged(store.root, 100)
    with pytest.raises(UnusableStore, match=f"{parent:016x}"):
        remove_obsolete_files(store, now_us())
    assert heads(store) == everything


def log_entries(store):
    wait_for_checkpoints()
    return sorted(os.listdir(os.path.join(store.root, "_delta_log")))


@pytest.mark.outside_ci
def test_log_cleanup_lets_readers_of_old_versions_continue(store, monkeypatch):
    fill(store, 30)
    old = Store(store.root, load_table(store.location))
    fill(store, 30, 30)
    before = log_entries(store)
    set_limits(monkeypatch, log_versions=10)
    remove_obsolete_files(store, now_us())
    assert log_entries(store) == before  # All of it is younger than 20 seconds.
    aged(store.root, 0.01)
    set_limits(monkeypatch, log_versions=10)
    remove_obsolete_files(store, now_us())
    assert len(log_entries(store)) < 30
    assert old.refresh()
    old.append(batch(("a", 10**6)))
    assert len([row for row in stored(store.root) if row[0] == "a"]) == 61
    forget_stores()
    assert verify(store.root) == []


def test_the_python_client_compacts_verifies_and_sets_a_stores_properties(tmp_path):
    made = TimeSeries.create(
        str(tmp_path / "c"),
        {"value": pa.float64()},
        "limit 2",
        subscription_range="last 5S",
        min_retention_age=timedelta(0),
        auto_compact=False,
    )
    for n in range(5):
        made.append("a", n)
    assert made.compact().removed_events == 3
    assert made.verify() == []
    store = Store.open(str(tmp_path / "c"))
    assert store.settings.subscription == RetainedRange(last_us=5_000_000)
    with pytest.raises(OptionError, match=r"'none' is not the range 'last 5S'"):
        check_unchanged(
            "subscriptionRange", RetainedRange(limit=0), store.settings.subscription, store.root
        )


def test_client_appends_start_maintenance_unless_auto_compact_is_off(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(maintenance, "_run_once_per_process", started.append)
    made = TimeSeries.create(str(tmp_path / "c"), {"value": pa.float64()})
    for n in range(COMMITS_PER_MAINTENANCE - 1):
        made.append("a", n)
    assert not started
    made.append("a", 0)
    wait_for(lambda: started == [parse_location(str(tmp_path / "c"))])
    quiet = TimeSeries.open(str(tmp_path / "c"), auto_compact=False)
    for n in range(COMMITS_PER_MAINTENANCE):
        quiet.append("a", n)
    assert len(started) == 1
