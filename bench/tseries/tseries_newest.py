"""The newest event of every series, of a store of `tseries` and by DuckDB on the same files.

Two stores: one of few series with many events, one of many series with few; both compacted. DuckDB
answers with the join of TSBS's lastpoint, from a connection that is kept open, as ours is; it
merges no edits, which is right here. `warm`: nothing has changed since the question before.
`after an append`: a commit with an event of each series came between; DuckDB reads its file, too.
`cold`: ours has kept nothing but the log, the series index and footers. `condition`: an `append`
with `if_newest`, in a store of few series and in one of many, beside an `append` without.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from side_by_side import Contender, Done, compare, report
from sizes import size, whole_number

from pyspark_tseries import TimeSeries
from pyspark_tseries.read import newest_table

SHAPES = {
    "few series": (400, whole_number("BENCH_EVENTS", size(4_000_000, 40_000))),
    "many series": (whole_number("BENCH_SERIES", size(1_000_000, 10_000)), 0),
}
"""How many series a store has, and how many events; 0: three of each series."""

COMMITS = size(20, 4)
APPENDS = size(20, 5)
JOIN = """SELECT series, timestamp, value FROM read_parquet(?) JOIN (
    SELECT series, max(timestamp) AS timestamp FROM read_parquet(?) GROUP BY series
) AS newest USING (series, timestamp) ORDER BY series"""
COLUMNS = ["series", "timestamp", "value"]


def rows(series: int, first: int, end: int) -> pa.Table:
    """Every series in turn has an event, a millisecond after the one before it."""
    numbers = np.arange(first, end)
    names = pa.array([f"series {number:07}" for number in range(series)])
    return pa.table(
        {
            "series": names.take(pa.array(numbers % series)),
            "timestamp": pa.array(numbers * 1000).cast(pa.timestamp("us", "UTC")),
            "value": pa.array(np.sin(numbers)),
        }
    )


class Filled:
    """A store, and its files for DuckDB."""

    def __init__(self, path: Path, series: int, events: int) -> None:
        self.path, self.series = path, series
        self.store = TimeSeries.create(
            path, {"value": pa.float64()}, "unlimited", auto_compact=False, durability="os"
        )
        self.events = 0
        for part in np.array_split(np.arange(events), COMMITS):
            self.append(len(part))
        self.store.compact()
        self.engine = duckdb.connect()
        self.look()

    def append(self, events: int) -> None:
        """Append the next events, in one commit."""
        self.store.append_many(rows(self.series, self.events, self.events + events))
        self.events += events

    def look(self) -> None:
        """Let DuckDB see the live files."""
        names = DeltaTable(self.path).get_add_actions()["path"].to_pylist()
        self.files = [str(self.path / name) for name in names]

    def by_duckdb(self) -> pa.Table:
        """The newest event of each series, in the order of names."""
        return self.engine.sql(JOIN, params=[self.files, self.files]).to_arrow_table()

    def by_tseries(self) -> pa.Table:
        """The same."""
        return self.store.latest(columns=COLUMNS).to_arrow()

    def run(self, ask: Callable[[], pa.Table]) -> Contender:
        """The seconds of a question."""

        def run() -> Done:
            began = time.perf_counter()
            found = ask()
            took = time.perf_counter() - began
            times = pc.sum(found["timestamp"].cast(pa.int64())).as_py()
            return Done(took, {"rows": found.num_rows, "times": times})

        return run

    def both(self, before: Callable[[], None]) -> dict[str, Contender]:
        """Both, each after something that is not measured."""

        def after(ask: Callable[[], pa.Table]) -> Contender:
            measured = self.run(ask)

            def run() -> Done:
                before()
                return Done(measured().took, {"rows": self.series})

            return run

        return {"DuckDB": after(self.by_duckdb), "tseries": after(self.by_tseries)}

    def grow(self) -> None:
        """One more event of each series."""
        self.append(self.series)
        self.look()

    def condition(self) -> dict[str, Contender]:
        """Single appends, without and with a condition."""

        def run(conditional: bool) -> Done:
            asked = {"if_newest": lambda newest: newest is not None} if conditional else {}
            began = time.perf_counter()
            for number in range(APPENDS):
                self.store.append(f"series {number:07}", 1.0, **asked)
            return Done((time.perf_counter() - began) / APPENDS, {"appends": APPENDS})

        return {"append": lambda: run(False), "append(if_newest=)": lambda: run(True)}


def main() -> None:
    """Print the rows."""
    found = []
    with tempfile.TemporaryDirectory() as location:
        for name, (series, events) in SHAPES.items():
            filled = Filled(Path(location) / name, series, events or 3 * series)
            warm = {"DuckDB": filled.by_duckdb, "tseries": filled.by_tseries}
            runs = {who: filled.run(ask) for who, ask in warm.items()}
            found.append(compare(f"{name}, warm", runs, series))
            cold = filled.both(newest_table._KEPT.stores.clear)
            found.append(compare(f"{name}, cold", cold, series))
            grown = filled.both(filled.grow)
            found.append(compare(f"{name}, after an append", grown, series))
            found.append(compare(f"{name}, condition", filled.condition()))
    report(__file__, found)


if __name__ == "__main__":
    main()
