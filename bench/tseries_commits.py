"""Milliseconds a commit of `TimeSeries.append`: the last 1,000 of many commits against the first.

The store looks after itself meanwhile (`autoCompact`), in a process beside the writer. The ratio's
spread is over five parts of the thousand, each by its median. Then one event at a time against a
row at a time of deltalake's `write_deltalake`, in turns, on a fresh table each.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from side_by_side import ROUNDS, Comparison, Contender, Done, compare, report

from pyspark_tseries import TimeSeries, describe

SERIES = 100
COMPARED = 1000
PARTS = 5
SMALL = 50
"""Commits a round of the comparison with deltalake."""


def arguments() -> argparse.Namespace:
    """How many; the goal of the project is stated for 10,000 commits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def each_ms(commit: Callable[[int], object], commits: int) -> np.ndarray:
    """What each commit took."""
    took = np.empty(commits)
    for number in range(commits):
        began = time.perf_counter()
        commit(number)
        took[number] = (time.perf_counter() - began) * 1000
    return took


def last_against_first(commits: int) -> list[Comparison]:
    """The medians of the parts of the first commits and of the last, and the same of their tails.

    Raises:
        SystemExit: an event is missing.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        store = TimeSeries.create(f"{place}/store", {"value": pa.int64()}, "limit 1000")
        took = each_ms(lambda n: store.append(f"series {n % SERIES}", n), commits)
        facts = describe(f"{place}/store")
    if facts["events"] != commits:
        raise SystemExit(f"{facts['events']} events in the store, not {commits}")
    compared = min(COMPARED, commits // 2)
    ends = {f"first {compared}": took[:compared], f"last {compared}": took[-compared:]}

    def at(share: int) -> Comparison:
        parts = {
            name: [float(np.percentile(part, share)) for part in np.array_split(each, PARTS)]
            for name, each in ends.items()
        }
        job = f"a commit, last {compared:,} of {commits:,}, p{share}"
        return Comparison(job, parts, unit="ms", work={"files": facts["files"]})

    return [at(50), at(95)]


def of_one_event(write: Callable[[int], object], count: Callable[[], int]) -> Contender:
    """The median of some commits more, and how many events they have added."""
    made = 0

    def run() -> Done:
        nonlocal made
        before, first = count(), made
        took = each_ms(lambda n: write(first + n), SMALL)
        made += SMALL
        return Done(statistics.median(took), {"events": count() - before})

    return run


def against_deltalake(rounds: int) -> Comparison:
    """One event a commit, in turns with one row a commit."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        store = TimeSeries.create(f"{place}/ours", {"value": pa.int64()}, "limit 1000")

        def plain(number: int) -> None:
            row = {"series": [f"series {number % SERIES}"], "value": [number]}
            write_deltalake(f"{place}/theirs", pa.table(row), mode="append")

        def rows() -> int:
            if not DeltaTable.is_deltatable(f"{place}/theirs"):
                return 0
            return int(DeltaTable(f"{place}/theirs").count())

        contenders = {
            "write_deltalake": of_one_event(plain, rows),
            "tseries": of_one_event(
                lambda n: store.append(f"series {n % SERIES}", n),
                lambda: int(describe(f"{place}/ours")["events"]),
            ),
        }
        return compare("one event, against deltalake", contenders, unit="ms", rounds=rounds)


def main() -> None:
    """Print the rows."""
    given = arguments()
    report(__file__, [*last_against_first(given.commits), against_deltalake(given.rounds)])


if __name__ == "__main__":
    main()
