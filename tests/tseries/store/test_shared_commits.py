"""Threads that append at once share commits: each keeps its event, its error, its order."""

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest
from tseries.builders import stored
from tseries.limits import set_limits
from tseries.meetings import Meeting, fail

from pyspark_tseries import StorageFailed, TimeSeries, UpdateFailed
from pyspark_tseries.store.store import Store
from pyspark_tseries.write import batch as attempts

VALUES = {"value": pa.int64()}


def at(us):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


@pytest.fixture
def series(tmp_path):
    return TimeSeries.create(tmp_path / "s", VALUES, "unlimited", "me", auto_compact=False)


class Callers:
    """Threads that append while nobody may commit, so that all wait; then they are let go."""

    def __init__(self, series):
        self.series, self.outcomes, self.threads = series, {}, []
        self.shared = series._store._shared

    def append(self, name, value, us=None, series=None):
        def call():
            try:
                stamp = None if us is None else at(us)
                self.outcomes[value] = (series or self.series).append(name, value, stamp)
            except BaseException as error:
                self.outcomes[value] = error

        before = len(self.shared._waiting)
        self.threads.append(threading.Thread(target=call))
        self.threads[-1].start()
        end = time.monotonic() + 60
        while len(self.shared._waiting) == before and time.monotonic() < end:
            time.sleep(0.001)

    def __enter__(self):
        self.series._store._lock.acquire()
        return self

    def __exit__(self, *error):
        self.series._store._lock.release()
        for thread in self.threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "a caller hangs"


def test_waiting_threads_share_a_commit_and_get_their_own_events(series, tmp_path):
    with Callers(series) as callers:
        for n in range(8):
            callers.append("ab"[n % 2], n)
    assert series.describe()["last_commit"] == 0
    found = {n: callers.outcomes[n].sequence for n in range(8)}
    rows = stored(tmp_path / "s", "series", "sequence", "value", "timestamp")
    assert sorted(rows) == sorted(
        ("ab"[n % 2], found[n], n, round(callers.outcomes[n].timestamp.timestamp() * 1_000_000))
        for n in range(8)
    )
    assert series.verify() == []


def test_threads_appending_at_once_keep_each_threads_order(series, tmp_path):
    made = {n: [] for n in range(12)}

    def write(thread):
        for n in range(15):
            event = series.append("a", 100 * thread + n)
            made[thread].append(event.sequence)
            assert series.append(f"own {thread}", n).sequence == n

    threads = [threading.Thread(target=write, args=[n]) for n in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = stored(tmp_path / "s", "series", "sequence", "value", "commit")
    shared = {value: (sequence, commit) for name, sequence, value, commit in rows if name == "a"}
    assert sorted(sequence for sequence, _ in shared.values()) == list(range(12 * 15))
    for thread, sequences in made.items():
        mine = [shared[100 * thread + n] for n in range(15)]
        assert [sequence for sequence, _ in mine] == sequences == sorted(sequences)
        assert len({commit for _, commit in mine}) == 15
    assert series.describe()["last_commit"] + 1 < 12 * 15 * 2, "some are shared"
    assert series.verify() == []


def test_a_late_event_in_a_shared_commit_fails_alone(series, tmp_path):
    series.append("a", 0, at(100))
    with Callers(series) as callers:
        callers.append("a", 1, 200)
        callers.append("a", 2, 50)
        callers.append("b", 3, 50)
    assert isinstance(callers.outcomes[2], UpdateFailed)
    assert "(1 such row in" in str(callers.outcomes[2])
    assert [callers.outcomes[n].sequence for n in (1, 3)] == [1, 0]
    assert series.describe()["last_commit"] == 1
    assert len(stored(tmp_path / "s")) == 3


def test_authors_and_durabilities_do_not_share_and_all_are_stored(series, tmp_path):
    others = [
        TimeSeries.open(tmp_path / "s", "you", auto_compact=False),
        TimeSeries.open(tmp_path / "s", "me", auto_compact=False, durability="os"),
    ]
    with Callers(series) as callers:
        for n, each in enumerate([series, *others, series, *others]):
            callers.append("a", n, series=each)
    assert series.describe()["last_commit"] == 2
    rows = stored(tmp_path / "s", "value", "author")
    assert sorted(rows) == [(n, "you" if n % 3 == 1 else "me") for n in range(6)]


@pytest.mark.usefixtures("without_pauses")
def test_failed_storage_fails_each_caller_and_leaves_no_files(series, tmp_path, monkeypatch):
    def denied(*args):
        raise PermissionError(13, "Permission denied")

    series.append("a", 0)
    before = sorted(path for path in (tmp_path / "s").rglob("*") if path.is_file())
    monkeypatch.setattr(attempts, "write_head", denied)
    with Callers(series) as callers:
        for n in (1, 2, 3):
            callers.append("a", n)
    assert [type(callers.outcomes[n]) for n in (1, 2, 3)] == [StorageFailed] * 3
    assert len({id(each) for each in callers.outcomes.values()}) == 3, "an error for each"
    assert sorted(path for path in (tmp_path / "s").rglob("*") if path.is_file()) == before
    monkeypatch.undo()
    assert series.append("a", 4).sequence == 1
    assert series.verify() == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupted_leader_leaves_its_commit_to_another(series, tmp_path, moment):
    interrupts = {moment: [partial(fail, KeyboardInterrupt())]}
    store = Meeting(Store.open(tmp_path / "s"), **interrupts)
    with Callers(TimeSeries(store, "me", auto_compact=False)) as callers:
        for n in range(4):
            callers.append("a", n)
    kinds = [type(callers.outcomes[n]).__name__ for n in range(4)]
    assert sorted(kinds) == ["EventMetadata"] * 3 + ["KeyboardInterrupt"]
    assert sorted(row[1] for row in stored(tmp_path / "s")) == [0, 1, 2, 3], "once each"
    assert series.append("a", 9).sequence == 4
    assert series.verify() == []


def test_caller_interrupted_while_it_waits_stores_nothing(series, tmp_path):
    shared = series._store._shared

    class Interrupted(threading.Semaphore):
        def acquire(self, *given, **named):
            raise KeyboardInterrupt

    with Callers(series) as callers:
        callers.append("a", 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyspark_tseries.store.shared_commits.threading.Semaphore", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                series.append("a", 1)
        callers.append("a", 2)
    assert shared._leader is None
    assert shared._waiting == []
    assert [row[0] for row in stored(tmp_path / "s", "value")] == [0, 2]


@pytest.mark.usefixtures("without_pauses")
def test_append_by_a_signal_handler_during_an_append_does_not_hang(series, tmp_path, monkeypatch):
    real, made = attempts.Batch.prepare, []

    def prepare(self, context):
        monkeypatch.setattr(attempts.Batch, "prepare", real)
        made.append(series.append("b", 2))  # As the handler of a signal does, in the same thread.
        with pytest.raises(UpdateFailed):
            series.append("b", 3, at(1))
        return real(self, context)

    monkeypatch.setattr(attempts.Batch, "prepare", prepare)
    set_limits(monkeypatch, silence_s=0.01)
    assert series.append("a", 1).sequence == 0
    assert made[0].sequence == 0
    assert sorted(row[0] for row in stored(tmp_path / "s", "value")) == [1, 2]
    assert series.verify() == []


def test_fork_of_a_process_whose_threads_append_can_append(series, tmp_path):
    series._store._shared._leader = object()  # As the fork of a process with a thread that leads.
    child = os.fork()
    if not child:
        os._exit(0 if fresh(series) else 1)
    assert os.waitpid(child, 0)[1] == 0
    series._store._shared._leader = None
    assert series.append("a", 1).sequence == 0


def fresh(series):
    """True if a caller leads in this process, whoever led in its parent."""
    made = []
    series._store._shared._append = lambda *given, **named: made.append(given) or 1 / 0
    with pytest.raises(ZeroDivisionError):
        series.append("a", 0)
    return len(made) == 1
