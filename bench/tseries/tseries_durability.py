"""Commits that survive a power loss, and commits left to the system, beside SQLite's.

One event, and a thousand, a commit: beside SQLite with a write-ahead log (WAL) that is synced at
every commit (`synchronous=FULL`), or only at checkpoints (`NORMAL`). Then events a second of 1, 4
and 16 threads; each waits until its event is on the disk. All this measures the disk below the
temporary directory; on a `tmpfs` it measures nothing.

For single events also the slowest percent: the 99th percentile of their commits beside the median.

Beside it we measure what the disk allows: one write with its sync, and the fewest writes and syncs
that make a Delta commit: a file of events and then an entry, each file synced, and its directory.
"""

import functools
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median, quantiles

import pyarrow as pa
from side_by_side import ROUNDS, Comparison, Contender, Done, against_each, compare, report
from sizes import size

from pyspark_tseries import TimeSeries

COMMITS = size(100, 20)
"""A round."""

STEADY_COMMITS = size(1_000, 100)
"""Commits a round if the slowest percent is measured: several checkpoints are due in it."""

THREADS = (1, 4, 16)
THREAD_EVENTS = size(400, 64)
"""A round, of all threads together."""

SERIES = 100
VALUES = {"value": pa.int64()}
SQL = "INSERT INTO events VALUES (?, ?, ?)"


def in_turn(write: Callable[[int], object]) -> Contender:
    """The median of some more commits, in ms."""
    made = 0

    def run() -> Done:
        nonlocal made
        took = time_commits(write, range(made, made + COMMITS))
        made += COMMITS
        return Done(median(took), {"commits": COMMITS})

    return run


def time_commits(write: Callable[[int], object], numbers: range) -> list[float]:
    """The time of each commit, in ms."""
    took = []
    for number in numbers:
        began = time.perf_counter()
        write(number)
        took.append((time.perf_counter() - began) * 1000)
    return took


def open_database(path: str, synchronous: str) -> sqlite3.Connection:
    """A database with its log written ahead, and a table of events."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute(
        "CREATE TABLE IF NOT EXISTS events (series TEXT, number INTEGER, value INTEGER)"
    )
    return database


@contextmanager
def sqlite(location: str, synchronous: str, rows: int) -> Iterator[Contender]:
    """Commits to a database."""
    database = open_database(f"{location}/{synchronous}{rows}.db", synchronous)

    def write(number: int) -> None:
        database.execute("BEGIN")
        events = ((f"series {(number + i) % SERIES}", number, i) for i in range(rows))
        database.executemany(SQL, events)
        database.execute("COMMIT")

    yield in_turn(write)
    database.close()


def append_to(store: TimeSeries) -> Callable[[int], object]:
    """A function that appends one event."""
    return lambda number: store.append(f"series {number % SERIES}", number)


def tseries(location: str, durability: str, rows: int) -> Contender:
    """Commits to a store."""
    path = f"{location}/{durability}{rows}"
    store = TimeSeries.create(path, VALUES, "limit 1000", durability=durability)
    if rows == 1:
        return in_turn(append_to(store))

    def write(number: int) -> None:
        names = [f"series {(number + i) % SERIES}" for i in range(rows)]
        store.append_many(pa.table({"series": names, "value": range(rows)}))

    return in_turn(write)


def slowest_percent(location: str) -> Comparison:
    """The 99th percentile of the commits of single events beside their median."""
    write = append_to(TimeSeries.create(f"{location}/slowest", VALUES, "limit 1000"))
    took: dict[str, list[float]] = {"median": [], "99th percentile": []}
    for turn in range(1 + ROUNDS):
        ms = time_commits(write, range(STEADY_COMMITS))
        if turn:  # The first is the warm-up, as in the other jobs.
            took["median"].append(median(ms))
            took["99th percentile"].append(quantiles(ms, n=100)[-1])
    work = {"commits": STEADY_COMMITS}
    return Comparison("a commit of one event, synced: its slowest percent", took, 0, "ms", work)


def one_sync(location: str) -> Contender:
    """A page at the end of a file, synced: the disk's time for one."""
    file = os.open(f"{location}/pages", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(number: int) -> None:
        os.write(file, bytes(4096))
        os.fdatasync(file)

    return in_turn(write)


def fewest_syncs(location: str) -> Contender:
    """Only the files of a Delta commit, as large as ours, synced one after the other."""
    directories = [f"{location}/least", f"{location}/least/log", f"{location}/least/data"]
    for each in directories:
        os.mkdir(each)
    _, log, data = (os.open(each, os.O_RDONLY) for each in directories)

    def write(number: int) -> None:
        for path, length in ((f"data/{number}", 4096), (f"log/{number}.draft", 700)):
            file = os.open(f"{location}/least/{path}", os.O_CREAT | os.O_WRONLY)
            os.write(file, bytes(length))
            os.fsync(file)
            os.close(file)
        os.fsync(data)
        os.rename(f"{location}/least/log/{number}.draft", f"{location}/least/log/{number}")
        os.fsync(log)

    return in_turn(write)


def by_threads(threads: int, connect: Callable[[], Callable[[int], object]]) -> Contender:
    """Events of some threads, each with a connection of its own, until the last one is done."""
    each = THREAD_EVENTS // threads

    def run() -> Done:
        ready = threading.Barrier(threads + 1)

        def append(number: int, write: Callable[[int], object]) -> None:
            ready.wait()
            for event in range(number * each, (number + 1) * each):
                write(event)

        # One after the other: SQLite refuses, without waiting, a log that another begins.
        writes = [connect() for _ in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            appending = [pool.submit(append, n, write) for n, write in enumerate(writes)]
            ready.wait()
            began = time.perf_counter()
            for thread in appending:
                thread.result()
            return Done(time.perf_counter() - began, {"events": threads * each})

    return run


def shared_by(location: str, threads: int) -> Comparison:
    """Events of some threads, durable in both."""
    path = f"{location}/threads{threads}"
    store = TimeSeries.create(path, VALUES, "limit 1000")

    def to_sqlite() -> Callable[[int], object]:
        database = open_database(f"{path}.db", "FULL")
        return lambda n: database.execute(SQL, (f"series {n % SERIES}", n, n))

    def to_store() -> Callable[[int], object]:
        return append_to(store)

    contenders = {
        "SQLite, FULL": by_threads(threads, to_sqlite),
        "tseries, fsync": by_threads(threads, to_store),
    }
    job = f"events of {threads} thread{'s' if threads > 1 else ''}, synced"
    return compare(job, contenders, rows=THREAD_EVENTS // threads * threads, rounds=ROUNDS)


def alone(location: str) -> list[Comparison]:
    """Commits of one caller."""
    jobs: list[Comparison] = []
    for rows, named in ((1, "one event"), (1000, "1,000 events")):
        ours = functools.partial(tseries, location, rows=rows)
        with sqlite(location, "FULL", rows) as full, sqlite(location, "NORMAL", rows) as normal:
            pairs = {
                "synced": {"SQLite, FULL": full, "tseries, fsync": ours("fsync")},
                "left to the system": {"SQLite, NORMAL": normal, "tseries, os": ours("os")},
            }
            for how, contenders in pairs.items():
                job = f"a commit of {named}, {how}"
                jobs.append(compare(job, contenders, unit="ms", rounds=ROUNDS))
    return jobs


def against_the_disk(location: str) -> list[Comparison]:
    """A synced commit of one event beside the disk's least time for one."""
    contenders = {
        "one write and its sync": one_sync(location),
        "the files of a Delta commit alone": fewest_syncs(location),
        "tseries, fsync": tseries(location, "fsync", 1),
    }
    found = compare("a synced commit beside", contenders, unit="ms", rounds=ROUNDS)
    return against_each(found, by=" ")


def main() -> None:
    """Print the rows."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
        jobs = alone(f"{location}")
        jobs.append(slowest_percent(location))
        os.mkdir(f"{location}/disk")
        jobs += against_the_disk(f"{location}/disk")
        jobs += [shared_by(location, threads) for threads in THREADS]
        report(__file__, jobs)


if __name__ == "__main__":
    main()
