"""Milliseconds a commit of `TimeSeries.append`: the last 1,000 of many against a store's first.

The store looks after itself meanwhile (`autoCompact`), in a process beside the writer. The last
commits of the old store and the first of a new one are made in turns, so that both meet the same
noise. Then the disk that all these commits take: blocks of files, before and after a maintenance
ten minutes later; and what a new process takes for its first append, from opening the store on, in
a store of a million series beside one of a single series. At last one event at a time against a row
at a time of deltalake's `write_deltalake`.
"""

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from side_by_side import ROUNDS, Comparison, Contender, Done, compare, report
from sizes import size, whole_number

from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.compactor import merge_file_groups
from pyspark_tseries.store.store import Store

SERIES = 100
COMMITS = whole_number("BENCH_COMMITS", size(10_000, 300))
COMPARED = min(size(1000, 50), COMMITS // 2)
ALL_SERIES = size(1_000_000, 100_000)
SMALL = size(50, 10)
"""Commits a round of the comparison with deltalake."""


def each_ms(commit: Callable[[int], object], commits: int) -> np.ndarray:
    """The time of each commit."""
    took = np.empty(commits)
    for number in range(commits):
        began = time.perf_counter()
        commit(number)
        took[number] = (time.perf_counter() - began) * 1000
    return took


def in_turn(write: Callable[[int], object], count: Callable[[], int], commits: int) -> Contender:
    """The median of `commits` more, and how many events they have added."""
    made = 0

    def run() -> Done:
        nonlocal made
        before, first = count(), made
        took = each_ms(lambda n: write(first + n), commits)
        made += commits
        return Done(statistics.median(took), {"events": count() - before})

    return run


def events(path: str) -> int:
    """How many there are in a store."""
    return int(describe(path)["events"])


def disk_mb(path: str) -> float:
    """The disk that a directory takes, as `du` counts it."""
    found = (
        os.lstat(os.path.join(where, name)) for where, _, names in os.walk(path) for name in names
    )
    return sum(file.st_blocks for file in found) * 512 / 1e6


def last_against_first() -> list[Comparison]:
    """The last commits of a store in turns with the first of another, and the old one's disk."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
        paths = {f"first {COMPARED}": f"{location}/new", f"last {COMPARED}": f"{location}/old"}
        contenders = {}
        for name, path in paths.items():
            store = TimeSeries.create(path, {"value": pa.int64()}, "limit 1000")

            def write(number: int, store: TimeSeries = store) -> None:
                store.append(f"series {number % SERIES}", number)

            if path.endswith("old"):
                each_ms(write, COMMITS - COMPARED)
            count = functools.partial(events, path)
            contenders[name] = in_turn(write, count, COMPARED // ROUNDS)
        job = f"a commit, last {COMPARED:,} of {COMMITS:,}"
        return [
            compare(job, contenders, unit="ms", rounds=ROUNDS),
            disk_after_maintenance(f"{location}/old"),
        ]


def disk_after_maintenance(path: str) -> Comparison:
    """The disk of a store before maintenance, and after it ran at once and ten minutes later."""
    stored, before = events(path), disk_mb(path)
    store, now_us = Store.open(path), time.time_ns() // 1000
    for later_us in (now_us, now_us + 11 * 60 * 1_000_000):
        merge_file_groups(store, later_us, everything=False)
        remove_obsolete_files(store, later_us)
    took = {"before": [before], "after": [disk_mb(path)]}
    per_event = {name: round(mb[0] * 1e6 / stored) for name, mb in took.items()}
    work = {"events": stored, "bytes an event": per_event}
    job = f"disk of {stored:,} single events, after/before maintenance"
    return Comparison(job, took, unit="MB", work=work)


FIRST_APPEND = """
import sys, time
import pyspark_tseries.client.time_series as client
began = time.perf_counter()
event = client.TimeSeries.open(sys.argv[1], auto_compact=False).append("series 0", 1)
print((time.perf_counter() - began) * 1000, event.sequence)
"""


def first_append() -> Comparison:
    """The first append of a process, in a large store and in a small one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
        contenders = {}
        for series in (1, ALL_SERIES):
            path = f"{location}/{series}"
            store = TimeSeries.create(path, {"value": pa.int64()}, "unlimited", auto_compact=False)
            names = pa.array([f"series {number}" for number in range(series)])
            store.append_many(pa.table({"series": names, "value": np.arange(series)}))

            def run(path: str = path) -> Done:
                line = [sys.executable, "-c", FIRST_APPEND, path]
                done = subprocess.run(line, check=True, capture_output=True, text=True)
                return Done(float(done.stdout.split()[0]), {"appended": 1})

            contenders[f"of {series:,} series"] = run
        job = f"a process's first append to {ALL_SERIES:,} series"
        return compare(job, contenders, unit="ms", rounds=ROUNDS)


def against_deltalake() -> Comparison:
    """One event a commit, in turns with one row a commit."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
        store = TimeSeries.create(f"{location}/ours", {"value": pa.int64()}, "limit 1000")

        def plain(number: int) -> None:
            row = {"series": [f"series {number % SERIES}"], "value": [number]}
            write_deltalake(f"{location}/theirs", pa.table(row), mode="append")

        def rows() -> int:
            if not DeltaTable.is_deltatable(f"{location}/theirs"):
                return 0
            return int(DeltaTable(f"{location}/theirs").count())

        contenders = {
            "write_deltalake": in_turn(plain, rows, SMALL),
            "tseries": in_turn(
                lambda n: store.append(f"series {n % SERIES}", n),
                lambda: events(f"{location}/ours"),
                SMALL,
            ),
        }
        return compare("one event, against deltalake", contenders, unit="ms", rounds=ROUNDS)


def main() -> None:
    """Print the rows."""
    report(__file__, [*last_against_first(), first_append(), against_deltalake()])


if __name__ == "__main__":
    main()
