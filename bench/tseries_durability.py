"""Milliseconds a commit that outlives a power loss costs, and one that is left to the system.

One event, and a thousand, a commit: beside SQLite with its log written ahead (WAL) and synced at
every commit (`synchronous=FULL`), and beside the same without (`NORMAL`: at checkpoints only). What
it measures is the disk below the temporary directory; on a `tmpfs` it measures nothing.
"""

import functools
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import pyarrow as pa
from side_by_side import ROUNDS, Comparison, Contender, Done, compare, report
from sizes import size

from pyspark_tseries import TimeSeries

COMMITS = size(100, 20)
"""A round."""

SERIES = 100
SQL = "INSERT INTO events VALUES (?, ?, ?)"


def in_turn(write: Callable[[int], object]) -> Contender:
    """The median of some more commits, in ms."""
    made = 0

    def run() -> Done:
        nonlocal made
        took = []
        for number in range(made, made + COMMITS):
            began = time.perf_counter()
            write(number)
            took.append((time.perf_counter() - began) * 1000)
        made += COMMITS
        return Done(median(took), {"commits": COMMITS})

    return run


@contextmanager
def sqlite(location: str, synchronous: str, rows: int) -> Iterator[Contender]:
    """Commits to a database with its log written ahead."""
    database = sqlite3.connect(f"{location}/{synchronous}{rows}.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute("CREATE TABLE events (series TEXT, number INTEGER, value INTEGER)")

    def write(number: int) -> None:
        database.execute("BEGIN")
        events = ((f"series {(number + i) % SERIES}", number, i) for i in range(rows))
        database.executemany(SQL, events)
        database.execute("COMMIT")

    yield in_turn(write)
    database.close()


def tseries(location: str, durability: str, rows: int) -> Contender:
    """Commits to a store."""
    path = f"{location}/{durability}{rows}"
    store = TimeSeries.create(path, {"value": pa.int64()}, "limit 1000", durability=durability)
    if rows == 1:
        return in_turn(lambda number: store.append(f"series {number % SERIES}", number))

    def write(number: int) -> None:
        names = [f"series {(number + i) % SERIES}" for i in range(rows)]
        store.append_many(pa.table({"series": names, "value": range(rows)}))

    return in_turn(write)


def main() -> None:
    """Print the rows."""
    jobs: list[Comparison] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
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
    report(__file__, jobs)


if __name__ == "__main__":
    main()
