"""Five readers that answer queries: over the files of a `tseries` store, or over their own storage.

Three read the same files of the store: DuckDB over its live Parquet files, deltalake's own SQL
(DataFusion) over the table, and `tseries`. SQLite and DuckDB also answer from their own storage
(`stores`). DuckDB and deltalake merge no edits; that is their best case, and right here, because
there are none.

`tseries` answers lastpoint with `TimeSeries.latest`, single-groupby-1-1-1 and double-groupby-1 with
`every`, which makes the buckets of a series, and the others with `TimeSeries.sql` over the view of
current values: each time it asks the log for newer commits, and it would merge edits and hide what
is out of range.

Each is opened once and kept open, as services have it.
"""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from pyspark_tseries import TimeSeries
from tsbs.queries import DATAFUSION, DUCKDB, SQLITE, Query, instant_of, sql_of

__all__ = ["READERS", "Ask"]

Ask = Callable[[Query], pa.Table | list[tuple[Any, ...]]]


def from_sqlite(place: Path) -> Ask:
    """SQLite's own storage."""
    database = sqlite3.connect(place / "readings.db")
    return lambda query: database.execute(sql_of(query, SQLITE)).fetchall()


def from_duckdb(place: Path) -> Ask:
    """DuckDB's own storage."""
    engine = duckdb.connect(str(place / "readings.duckdb"), read_only=True)
    return lambda query: engine.sql(sql_of(query, DUCKDB)).to_arrow_table()


def from_duckdb_on_files(place: Path) -> Ask:
    """DuckDB over the store's live files."""
    engine = duckdb.connect()
    names = DeltaTable(place).get_add_actions()["path"].to_pylist()
    files = ", ".join(f"'{place / name}'" for name in names)
    engine.execute(f"CREATE VIEW readings AS FROM read_parquet([{files}])")
    return lambda query: engine.sql(sql_of(query, DUCKDB)).to_arrow_table()


def from_delta_on_files(place: Path) -> Ask:
    """The store as a plain Delta table."""
    builder = QueryBuilder().register("readings", DeltaTable(place))
    return lambda query: pa.table(builder.execute(sql_of(query, DATAFUSION)).read_all())


def from_tseries(place: Path) -> Ask:
    """The store."""
    store = TimeSeries.open(place)
    begin = "WITH readings AS NOT MATERIALIZED (FROM events)"

    def ask(query: Query) -> pa.Table:
        if query.kind.name in _BUCKETS:
            return _ask_buckets(store, query)
        if query.kind.name == "lastpoint":
            return store.latest(columns=["series", "timestamp", *query.kind.fields]).to_arrow()
        return store.sql(f"{begin} {sql_of(query, DUCKDB)}").to_arrow_table()

    return ask


_BUCKETS: Final = {
    "single-groupby-1-1-1": ("minute", 60_000_000, ["minute", "usage_user"]),
    "double-groupby-1": ("hour", 3_600_000_000, ["hour", "series", "mean"]),
}
"""Kinds that ask for buckets of series: the width, in us, and the columns of the answer."""


def _ask_buckets(store: TimeSeries, query: Query) -> pa.Table:
    """Ask for the greatest values each minute, or the means each hour."""
    width, width_us, columns = _BUCKETS[query.kind.name]
    first, end = instant_of(query.start_us), instant_of(query.end_us)
    fields = query.kind.fields
    named = {name: (name, "max") for name in fields}
    if width == "hour":
        named = {"mean": (fields[0], "mean")}
    asked = store.range_query().from_(first).to(end - timedelta(microseconds=1))
    buckets = asked.every(f"1 {width}").aggregate(**named).select_from(query.hosts or None)
    found = buckets.to_arrow()
    number = pc.divide(found["timestamp"].cast(pa.int64()), width_us)
    return found.append_column(width, number).select(columns)


READERS: Final[dict[str, tuple[str, Callable[[Path], Ask]]]] = {
    "SQLite": ("SQLite", from_sqlite),
    "DuckDB": ("DuckDB", from_duckdb),
    "DuckDB, same files": ("tseries", from_duckdb_on_files),
    "deltalake, same files": ("tseries", from_delta_on_files),
    "tseries": ("tseries", from_tseries),
}
"""Reader -> the store of `stores.STORES` that it reads, and what opens it; ours is the last."""
