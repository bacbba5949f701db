"""Queries of `tseries` against DuckDB over the same Parquet files, side by side.

One series, and a time slice of all series, as they were written and after compaction. The store and
DuckDB's connection stay open, as in a service; all have answered before. DuckDB gets the table's
live files, sorts its result like ours, and runs in three ways: `DuckDB`, with a filter on the
files, which merges no edits and is its best case; `DuckDB, footers kept`, the same with
`parquet_metadata_cache`; `DuckDB, current values`, by the SQL for other engines, as a store with
edits needs it. A run asks for SERIES_A_RUN series, spread over the store, or for SLICES_A_RUN
slices; the seconds of a query are compared.

Ours keeps what the log and the footers said, no events. `first query` is a new process's, from
opening to result, without the imports.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from side_by_side import Comparison, Contender, Done, against_each, compare, report
from sizes import size, whole_number

from pyspark_tseries import TimeSeries
from pyspark_tseries.options import ReadOptions, parse_options
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.store.store import Store

SERIES = whole_number("BENCH_SERIES", size(1_000_000, 10_000))
EVENTS = whole_number("BENCH_EVENTS", size(10_000_000, 100_000))
COMMITS = whole_number("BENCH_COMMITS", size(20, 4))
SERIES_A_RUN = 10
SLICES_A_RUN = 3
SLICES = 100
"""A time slice is one part of this many."""

COLUMNS = "series, sequence, timestamp, value"
CURRENT = f"""
    WITH versions AS (
        SELECT *, coalesce(original_sequence, sequence) AS place,
               row_number() OVER (PARTITION BY series, coalesce(original_sequence, sequence)
                                  ORDER BY sequence DESC) AS age
        FROM read_parquet(?)
    )
    SELECT {COLUMNS} FROM versions WHERE age = 1 AND series = ? ORDER BY series, place"""
"""The SQL of docs/how-to/other-engines.md, for a store with an unlimited retained range."""

FIRST = """
import json, sys, time
import duckdb, pyspark_tseries.client.time_series
who, path, name, files = json.loads(sys.argv[1])
began = time.perf_counter()
if who == "tseries":
    store = pyspark_tseries.TimeSeries.open(path)
    found = store.range_query().select_from(name).to_arrow()
else:
    found = duckdb.connect().sql(
        "SELECT * FROM read_parquet(?) WHERE series = ? ORDER BY sequence", params=[files, name]
    ).to_arrow_table()
print(json.dumps([time.perf_counter() - began, found.num_rows]))
"""

Ask = Callable[[Any], pa.Table]


def name_of(number: int) -> str:
    """The name of a series."""
    return f"series {number:07}"


def fill(path: str, series: int, events: int, commits: int) -> None:
    """Every series in turn has an event, a millisecond after the one before it."""
    values = {"value": pa.float64()}
    store = TimeSeries.create(path, values, "unlimited", auto_compact=False)
    names = pa.array([name_of(number) for number in range(series)])
    for part in np.array_split(np.arange(events), commits):
        columns = {
            "series": names.take(pa.array(part % series)),
            "timestamp": pa.array(part * 1000).cast(pa.timestamp("us", "UTC")),
            "value": pa.array(np.sin(part)),
        }
        store.append_many(pa.table(columns))


def live(path: str) -> list[str]:
    """The Parquet files of the table."""
    names = DeltaTable(path).get_add_actions()["path"].to_pylist()
    return [str(Path(path) / name) for name in names]


def one_series(path: str) -> dict[str, Ask]:
    """The values of one series, by each of the contenders."""
    store, files = TimeSeries.open(path), live(path)
    query = store.range_query()
    plain = f"SELECT {COLUMNS} FROM read_parquet(?) WHERE series = ? ORDER BY sequence"

    def duck(sql: str, keep: bool) -> Ask:
        engine = engine_of(keep)
        return lambda name: engine.sql(sql, params=[files, name]).to_arrow_table()

    return {
        "DuckDB": duck(plain, keep=False),
        "DuckDB, footers kept": duck(plain, keep=True),
        "DuckDB, current values": duck(CURRENT, keep=False),
        "tseries": lambda name: query.select_from(name).to_arrow(),
    }


def time_slice(path: str) -> dict[str, Ask]:
    """The values of all series in a slice of the time, by each of the contenders."""
    store, files = Store.open(path), live(path)
    plain = f"SELECT {COLUMNS} FROM read_parquet(?) WHERE timestamp BETWEEN ? AND ?"
    plain += " ORDER BY series, sequence"

    def duck(keep: bool) -> Ask:
        engine = engine_of(keep)
        return lambda ends: engine.sql(plain, params=[files, *ends]).to_arrow_table()

    def ours(ends: tuple[datetime, datetime]) -> pa.Table:
        first, last = (end.isoformat() for end in ends)
        query = parse_options(ReadOptions, {"path": path, "from": first, "to": last}).to_query()
        snapshot = store.snapshot()
        return run_query(Scope(snapshot, snapshot.index()), query).table

    return {"DuckDB": duck(False), "DuckDB, footers kept": duck(True), "tseries": ours}


def engine_of(keep: bool) -> duckdb.DuckDBPyConnection:
    """DuckDB as it comes, or with the footers of Parquet files kept between queries."""
    engine = duckdb.connect()
    engine.execute(f"SET parquet_metadata_cache = {keep}")
    return engine


def run_of(ask: Ask, wanted: list[Any]) -> Contender:
    """The seconds of a query, and the results of all of them together."""

    def run() -> Done:
        began = time.perf_counter()
        found = [ask(one) for one in wanted]
        took = (time.perf_counter() - began) / len(wanted)
        return Done(took, work_of(pa.concat_tables([t.select(COLUMNS.split(", ")) for t in found])))

    return run


def work_of(found: pa.Table) -> dict[str, Any]:
    """Counts and sums of a result, and whether it was in order."""
    spots = np.arange(1, found.num_rows + 1)
    return {
        "rows": found.num_rows,
        "series": pc.count_distinct(found["series"]).as_py(),
        "order": int((spots * found["sequence"].to_numpy()).sum()),
        "times": pc.sum(found["timestamp"].cast(pa.int64())).as_py(),
        "values": round(pc.sum(found["value"]).as_py(), 6),
    }


def first_query(path: str, name: str) -> dict[str, Contender]:
    """Opening and one query, in a process of its own."""

    def run(who: str) -> Done:
        given = json.dumps([who, path, name, live(path)])
        command = [sys.executable, "-c", FIRST, given]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        took, rows = json.loads(said)
        return Done(took, {"rows": rows})

    return {who: lambda who=who: run(who) for who in ("DuckDB", "tseries")}


def main() -> None:
    """Print the rows."""
    spread = np.linspace(1, SERIES - 2, SERIES_A_RUN, dtype=int).tolist()
    names = [name_of(number) for number in spread]
    part = EVENTS / SLICES / 1000
    slices = [
        tuple(datetime.fromtimestamp(part * (first + i), UTC) for i in (0, 1))
        for first in np.linspace(3, SLICES - 5, SLICES_A_RUN).tolist()
    ]
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as location:
        path = f"{location}/store"
        fill(path, SERIES, EVENTS, COMMITS)
        for when in ("as written", "compacted"):
            for what, contenders, wanted in (
                ("one series", one_series(path), names),
                ("time slice", time_slice(path), slices),
            ):
                runs = {who: run_of(ask, wanted) for who, ask in contenders.items()}
                found += against_each(compare(f"{what} {when}", runs))
            first = first_query(path, names[4])
            found.append(compare(f"first query {when}", first))
            TimeSeries.open(path).compact()
    report(__file__, found)


if __name__ == "__main__":
    main()
