"""Milliseconds a query of `tseries` against DuckDB over the same Parquet files, side by side.

One series, and a time slice of all series, before and after compaction. DuckDB is given the live
files and the filter, and merges no edits: its best case. Both start warm and take turns.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from pyspark_tseries import TimeSeries
from pyspark_tseries.options import parse_read
from pyspark_tseries.scan import answer
from pyspark_tseries.store import Store

SLICES = 100
"""A time slice is one part in so many."""

COLUMNS = "series, sequence, timestamp, value"


def arguments() -> argparse.Namespace:
    """The size; the goals of the project are stated for 1,000,000 series and 10,000,000 events."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def fill(path: str, series: int, events: int, commits: int) -> None:
    """Every series in turn has an event, a millisecond after the one before it."""
    values = {"value": pa.float64()}
    store = TimeSeries.create(path, values, "unlimited", auto_compact=False)
    names = pa.array([f"series {i:07}" for i in range(series)])
    for part in np.array_split(np.arange(events), commits):
        columns = {
            "series": names.take(pa.array(part % series)),
            "timestamp": pa.array(part * 1000).cast(pa.timestamp("us", "UTC")),
            "value": pa.array(np.sin(part)),
        }
        store.append_many(pa.table(columns))


def one_series(path: str, name: str) -> tuple[Callable[[], pa.Table], Callable[[], pa.Table]]:
    """The values of one series: by us, by DuckDB."""
    store, engine, files = TimeSeries.open(path), duckdb.connect(), live(path)
    query = store.range_query()
    sql = f"SELECT {COLUMNS} FROM read_parquet(?) WHERE series = ? ORDER BY sequence"
    return (
        lambda: query.select_from(name).to_arrow(),
        lambda: engine.sql(sql, params=[files, name]).to_arrow_table(),
    )


def time_slice(path: str, events: int) -> tuple[Callable[[], pa.Table], Callable[[], pa.Table]]:
    """The values of all series in the middle of the time: by us, by DuckDB."""
    store, engine, files = Store.open(path), duckdb.connect(), live(path)
    ends = [datetime.fromtimestamp(events * part / 1000, UTC) for part in (0.5, 0.5 + 1 / SLICES)]
    given = {"path": path, "from": ends[0].isoformat(), "to": ends[1].isoformat()}
    query = parse_read(given).asked()
    sql = f"SELECT {COLUMNS} FROM read_parquet(?) WHERE timestamp BETWEEN ? AND ?"
    sql += " ORDER BY series, sequence"
    return (
        lambda: answer(*store.sight(), query).table,
        lambda: engine.sql(sql, params=[files, *ends]).to_arrow_table(),
    )


def live(path: str) -> list[str]:
    """The Parquet files of the table."""
    return [
        str(Path(path) / file) for file in DeltaTable(path).get_add_actions()["path"].to_pylist()
    ]


def compare(
    ours: Callable[[], pa.Table], theirs: Callable[[], pa.Table], rounds: int
) -> list[float]:
    """The median milliseconds of both, which find the same rows."""
    took: list[list[float]] = [[], []]
    sizes = [query().num_rows for query in (ours, theirs)]
    assert sizes[0] == sizes[1] > 0, sizes
    for _ in range(rounds):
        for times, query in zip(took, (ours, theirs), strict=True):
            began = time.perf_counter()
            query()
            times.append((time.perf_counter() - began) * 1000)
    return [statistics.median(times) for times in took]


def main() -> None:
    """Print the table."""
    size = arguments()
    print(f"{size.series:,} series, {size.events:,} events, {size.commits} commits")
    print(f"{'':<26} {'tseries':>10} {'DuckDB':>10} {'speed':>6}")
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/store"
        fill(path, size.series, size.events, size.commits)
        for when in ("as written", "compacted"):
            queries = {
                "one series": one_series(path, f"series {size.series // 2:07}"),
                "time slice": time_slice(path, size.events),
            }
            for what, both in queries.items():
                ours, theirs = compare(*both, size.rounds)
                label = f"{what}, {when}"
                print(f"{label:<26} {ours:>7.1f} ms {theirs:>7.1f} ms {theirs / ours:>6.2f}")
            TimeSeries.open(path).compact()


if __name__ == "__main__":
    main()
