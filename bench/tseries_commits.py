"""Milliseconds a commit of `TimeSeries.append`: the last commits of many against the first.

The store looks after itself meanwhile (`autoCompact`), in processes beside the writer.
"""

import argparse
import tempfile
import time

import numpy as np
import pyarrow as pa

from pyspark_tseries import TimeSeries, describe

SERIES = 100
COMPARED = 1000


def arguments() -> argparse.Namespace:
    """How many; the goal of the project is stated for 10,000 commits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=3000)
    return parser.parse_args()


def commit_ms(path: str, commits: int) -> np.ndarray:
    """What each commit of one event took."""
    store = TimeSeries.create(path, {"value": pa.int64()}, "limit 1000")
    took = np.empty(commits)
    for number in range(commits):
        began = time.perf_counter()
        store.append(f"series {number % SERIES}", number)
        took[number] = (time.perf_counter() - began) * 1000
    return took


def main() -> None:
    """Print the table."""
    commits = arguments().commits
    compared = min(COMPARED, commits // 2)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        took = commit_ms(f"{place}/store", commits)
        files = describe(f"{place}/store")["files"]
    first, last = took[:compared], took[-compared:]
    print(f"{commits:,} commits, {files} files at the end")
    print(f"{'':<8} {f'first {compared:,}':>12} {f'last {compared:,}':>12} {'ratio':>6}")
    for label, share in (("median", 50), ("p95", 95), ("p99", 99)):
        one, other = np.percentile(first, share), np.percentile(last, share)
        print(f"{label:<8} {one:>9.1f} ms {other:>9.1f} ms {other / one:>6.2f}")


if __name__ == "__main__":
    main()
