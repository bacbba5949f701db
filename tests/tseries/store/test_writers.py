"""Any number of writers share a store: nothing is lost, doubled or numbered twice."""

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from lengths import in_ci, outside_ci
from tseries.builders import batch, new_store, stored
from tseries.limits import set_limits
from tseries.meetings import Meeting, rival

from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage import location as host_locks
from pyspark_tseries.store.commit_history import describe_change, last_commit_id, note_commit
from pyspark_tseries.store.store import Store

TESTS = str(Path(__file__).parents[2] / "lib")
WRITER = """
import sys; sys.path.insert(0, sys.argv[1])
from pyspark_tseries.storage import location as host_locks
from pyspark_tseries.store import store as storage
from tseries.builders import batch
if sys.argv[4] == "race": host_locks.try_lock = lambda _: True
store = storage.Store.open(sys.argv[2])
for n in range(15):
    rows = [(f"s{i}", None, int(sys.argv[3]) * 1000 + n) for i in range(20)]
    for _ in range(2):
        store.append(batch(*rows, token=(f"writer {sys.argv[3]}", n)))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["race", *outside_ci("queue")])
def test_processes_write_the_same_series_of_one_store(tmp_path, how):
    new_store(tmp_path / "s")
    command = [sys.executable, "-c", WRITER, TESTS, str(tmp_path / "s")]
    count = in_ci(3, 4)
    writers = [subprocess.Popen([*command, str(n), how]) for n in range(count)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * count
    check_whole(tmp_path / "s", writers=count, batches=15, series=20)


def test_threads_of_one_process_write_the_same_series_of_one_store(tmp_path):
    new_store(tmp_path / "s")

    def write(writer):
        store = Store.open(str(tmp_path / "s"))
        for n in range(10):
            rows = [(f"s{i}", None, writer * 1000 + n) for i in range(20)]
            store.append(batch(*rows, token=(f"writer {writer}", n)))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_whole(tmp_path / "s", writers=4, batches=10, series=20)


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.values,
        lambda store: store.transaction("q"),
        lambda store: store.has_token(("q", 0)),
        lambda store: store.has_batch(("q", 0), None),
        lambda store: store.properties(),
        lambda store: describe_change(store, CommitId(0, 1)),
        lambda store: note_commit(store, CommitId(0, 1)),
    ],
    ids=["values", "transaction", "has_token", "has_batch", "properties", "history", "note"],
)
def test_no_thread_reads_the_log_while_another_commits(tmp_path, ask):
    store = new_store(tmp_path / "s")
    reader = threading.Thread(target=ask, args=(store,))
    with store.commit_lock():
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
    reader.join(60)
    assert not reader.is_alive()


def test_the_id_of_the_last_commit_is_that_of_its_number(tmp_path, monkeypatch):
    """Another thread may commit after the head was read, and before its number."""
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    store.refresh()
    first, metadata = store.head_id(), store.metadata
    other = threading.Thread(target=lambda: (store.append(batch(("a", 2))), store.refresh()))

    def meet():
        if not other.ident and threading.current_thread() is not other:
            other.start()
            other.join(0.3)
        return metadata()

    monkeypatch.setattr(store, "metadata", meet)
    assert last_commit_id(store) == CommitId(0, first)
    other.join(60)
    assert last_commit_id(store).number == 1


@pytest.mark.parametrize("token", [None, ("q", 0)])
def test_a_commit_links_to_no_head_that_it_was_not_made_for(tmp_path, token):
    """A thread or a signal brings the log up to date after the head was compared."""
    other = rival(new_store(tmp_path / "s"))

    def meet():
        other.append(batch(("a", 1)))
        store.refresh()

    store = Meeting(other, before=[meet])
    store.append(batch(("a", 2), token=token))
    assert [row[1:] for row in stored(tmp_path / "s")] == [(0, 1), (1, 2)]
    assert verify(str(tmp_path / "s")) == []


def check_whole(path, *, writers, batches, series):
    rows = stored(path, "series", "sequence", "value", "timestamp", "commit", "commit_time")
    assert len(rows) == writers * batches * series
    for name in {row[0] for row in rows}:
        mine = [row for row in rows if row[0] == name]
        assert [row[1] for row in mine] == list(range(writers * batches))
        written = {writer * 1000 + n for writer in range(writers) for n in range(batches)}
        assert {row[2] for row in mine} == written
        assert len({row[2] for row in mine}) == len(mine)
        for column in (3, 4, 5):
            assert [row[column] for row in mine] == sorted(row[column] for row in mine)
    assert {row[4] for row in rows} == set(range(writers * batches))


def test_the_head_read_from_files_equals_the_one_folded_in_memory(tmp_path, monkeypatch):
    set_limits(monkeypatch, head_changes=3)
    store = new_store(tmp_path / "s")
    for n in range(25):
        store.append(batch((f"s{n % 7}", n), ("all", n)))
    store.refresh()
    warm = store.index()
    cold = Store(store.root, DeltaTable(store.root))
    names = [f"s{i}" for i in range(7)] + ["all"]
    assert isinstance(warm, SeriesIndex)
    for column, values in warm.lookup(names).items():
        assert cold.index().lookup(names)[column].tolist() == values.tolist()
    assert cold.index().metadata == warm.metadata


@pytest.mark.thorough
def test_creators_at_once_make_one_store(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tseries.builders import batch, new_store\n"
        "new_store(sys.argv[2]).append(batch(('a', None)))"
    )
    command = [sys.executable, "-c", code, TESTS, str(tmp_path / "s")]
    creators = [subprocess.Popen(command) for _ in range(3)]
    assert [creator.wait(timeout=60) for creator in creators] == [0] * 3
    assert [row[1] for row in stored(tmp_path / "s")] == [0, 1, 2]


def test_commit_lock_waits_for_a_heartbeat_but_not_for_a_hung_writer(tmp_path, monkeypatch):
    store = new_store(tmp_path / "s")
    path, seconds = store.location.lock_path("commit.lock"), itertools.count()

    class Clock:
        """A second goes by with every pause; for the first minute the other writer is at work."""

        now = 0

        def monotonic(self):
            return self.now

        def sleep(self, _):
            self.now = next(seconds)
            if self.now <= 60:
                os.utime(path, (self.now, self.now))

    clock = Clock()
    monkeypatch.setattr(host_locks, "time", clock)
    with open(path, "ab") as other:
        assert host_locks.try_lock(other.fileno())
        store.append(batch(("a", 1)))
    assert clock.now == 60 + host_locks.MAX_SILENCE_S
    assert len(stored(tmp_path / "s")) == 1


def test_a_writer_at_work_shows_that_it_is(tmp_path, monkeypatch):
    set_limits(monkeypatch, silence_s=0.04)
    store = new_store(tmp_path / "s")
    with host_locks.lock_commits(store.location), host_locks.heartbeat(store.location):
        path = store.location.lock_path("commit.lock")
        for _ in range(3):
            os.utime(path, ns=(0, 0))
            end = time.monotonic() + 60
            while not os.stat(path).st_mtime_ns:
                assert time.monotonic() < end
                time.sleep(0.01)


def test_a_fork_of_a_writer_does_not_keep_its_turn(tmp_path, monkeypatch):
    store, copies, try_lock = new_store(tmp_path / "s"), [], host_locks.try_lock

    def forked(descriptor):
        copies.append(os.dup(descriptor))  # As a child has it that is forked during the commit.
        return try_lock(descriptor)

    monkeypatch.setattr(host_locks, "try_lock", forked)
    store.append(batch(("a", 1)))
    assert len(copies) == 1
    with open(store.location.lock_path("commit.lock"), "ab") as other:
        assert try_lock(other.fileno())
    os.close(copies[0])


def test_hung_holder_of_the_commit_lock_blocks_nobody_for_ever(tmp_path, monkeypatch):
    set_limits(monkeypatch, silence_s=0.05)
    monkeypatch.setattr(host_locks, "try_lock", lambda _: False)
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    assert len(stored(tmp_path / "s")) == 1
