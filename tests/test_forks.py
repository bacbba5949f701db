"""A process that is forked while a thread of its parent holds a lock waits for it never."""

import importlib
import os
import pkgutil
import signal
import threading
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from tseries.builders import forget_stores

import pyspark_timestream
import pyspark_tseries
from pyspark_timestream.core.processes import ProcessLock
from pyspark_tseries import TimeSeries, UnusableStore

LOCKS = type(threading.Lock()), type(threading.RLock())
HELD_BY_THE_FORK = "pyspark_timestream.kafka.client.bounded"
"""Its lock is taken before a fork and released after it, so no thread holds it meanwhile."""


def in_fork(check: Any) -> None:
    """Fail if `check` fails in a fork, or takes a minute."""
    child = os.fork()
    if not child:
        # The handler of pytest-timeout would wait for a main thread that waits in a library.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            check()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def modules() -> list[ModuleType]:
    names = [
        each.name
        for package in (pyspark_timestream, pyspark_tseries)
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    # Libraries in C are not modules of Python.
    others = "main__", "native_reader", "scan_json"
    return [importlib.import_module(name) for name in names if not name.endswith(others)]


def locks() -> dict[int, tuple[str, Any]]:
    """The locks of modules, and of the objects that modules have, with a place of each."""
    found = {}
    for module in modules():
        for name, thing in vars(module).items():
            place = f"{module.__name__}.{name}"
            if isinstance(thing, LOCKS):
                found[id(thing)] = place, thing
            elif getattr(type(thing), "__module__", "").startswith("pyspark_t"):
                for inner, held in getattr(thing, "__dict__", {}).items():
                    held = held._lock if isinstance(held, ProcessLock) else held
                    if isinstance(held, LOCKS):
                        found[id(held)] = f"{place}.{inner}", held
    return {key: pair for key, pair in found.items() if HELD_BY_THE_FORK not in pair[0]}


@pytest.fixture
def elsewhere():
    """Call a function in another thread, which goes on until the end of the test."""
    over, threads = threading.Event(), []

    def hold(*held):
        holds = threading.Event()

        def work():
            for lock in held:
                lock.acquire()
            holds.set()
            over.wait(60)
            for lock in held:
                lock.release()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        assert holds.wait(60)

    yield hold
    over.set()
    for thread in threads:
        thread.join(60)


def test_a_fork_finds_every_lock_of_a_module_free(elsewhere):
    there = locks().values()
    assert len(there) >= 5
    elsewhere(*(lock for _, lock in there))

    def check():
        held = [place for place, lock in locks().values() if not lock.acquire(blocking=False)]
        assert not held, held

    in_fork(check)


@pytest.fixture
def series(tmp_path):
    made = TimeSeries.create(tmp_path / "s", {"v": pa.float64()}, "unlimited", auto_compact=False)
    made.append("a", 1.0)
    return made


def test_a_fork_of_an_idle_writer_appends(series):
    in_fork(lambda: series.append("a", 2.0))
    assert series.append("a", 3.0).sequence == 2
    assert series.verify() == []


def test_a_fork_is_refused_a_store_that_a_thread_was_using(series, elsewhere):
    elsewhere(series._store._lock)

    def check():
        for use in (
            lambda: series.append("a", 2.0),
            lambda: series.range_query().select_from("a"),
            series.cti,
        ):
            with pytest.raises(UnusableStore, match=r"forked.*'spawn'"):
                use()

    in_fork(check)


def ask_after_an_append(series):
    series.append("a", 2.0)
    series.range_query().select_from("a")


def open_anew(series):
    forget_stores()
    TimeSeries.open(series._store.root)


@pytest.mark.parametrize("use", [ask_after_an_append, open_anew])
def test_a_fork_is_refused_by_name_what_delta_refuses(series, use):
    def check():
        with pytest.raises(UnusableStore, match=r"forked.*'spawn'"):
            use(series)

    in_fork(check)


def test_a_fork_opens_stores_while_a_thread_of_its_parent_opens_one(series, tmp_path, elsewhere):
    from pyspark_tseries.store import store as stores

    series._store.refresh()
    elsewhere(stores._opening_lock._lock)
    in_fork(lambda: TimeSeries.open(tmp_path / "s").append("a", 2.0))


def test_threads_of_a_fork_share_commits(series):
    series._store._shared._leader = object()  # As where a thread of the parent leads.

    def check():
        threads = [threading.Thread(target=series.append, args=("a", 2.0)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_fork(check)
    series._store._shared._leader = None
    assert series.append("a", 3.0).sequence == 5


def test_a_fork_of_a_waiting_follower_closes_and_reads_its_position(series, elsewhere):
    follower = series.follow("a", start="unlimited")
    assert next(follower).value == 1.0
    elsewhere(follower._lock, follower._closed._cond)
    position = follower.position

    def check():
        assert follower.position == position
        follower.close()
        assert list(follower) == []

    in_fork(check)
