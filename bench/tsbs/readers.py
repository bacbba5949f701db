"""Five that answer queries: over the files of a store of `tseries`, and over storage of their own.

On the same files, those of the store: DuckDB over its live Parquet files, deltalake's own SQL
(DataFusion) over the table, and `tseries`. SQLite and DuckDB also answer from what they have stored
themselves (`stores`). DuckDB and deltalake merge no edits, which is right here, where there are
none, and is their best case.

`tseries` reads by range queries: of each host asked for by the client, of all hosts as a task of
Spark's does, which the client cannot yet; the newest reading is a range query as well, `from_last`.
It aggregates nothing, so DuckDB groups what it has read, by the SQL that it has for its own files.

Each is opened once and kept open, as services have it.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from pyspark_tseries import TimeSeries
from pyspark_tseries.client.range_query import RangeQuery
from pyspark_tseries.read.scan import run_query
from pyspark_tseries.store.store import Store
from tsbs.load import FIELDS, TAGS
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
    client, store, engine = TimeSeries.open(place), Store.open(str(place)), duckdb.connect()

    def of_each(query: Query, asked: RangeQuery) -> pa.Table:
        asked = asked.columns("series", "timestamp", *query.kind.fields)
        return pa.concat_tables(asked.select_from(name).to_arrow() for name in query.hosts)

    def of_all(asked: RangeQuery, *columns: str) -> pa.Table:
        snapshot = store.snapshot()
        wanted = "series", "timestamp", *columns
        return run_query(snapshot, snapshot.index(), asked.asked, columns=wanted).table

    def ask(query: Query) -> pa.Table:
        if query.kind.name == "lastpoint":
            return of_all(RangeQuery().from_last(1), *TAGS, *FIELDS)
        # The end of a range query is inclusive.
        ends = instant_of(query.start_us), instant_of(query.end_us - 1)
        asked = (client.range_query() if query.hosts else RangeQuery()).from_(ends[0]).to(ends[1])
        is_of_each = bool(query.hosts)
        found = of_each(query, asked) if is_of_each else of_all(asked, *query.kind.fields)
        engine.register("readings", found)
        return engine.sql(sql_of(query, DUCKDB)).to_arrow_table()

    return ask


READERS: Final[dict[str, tuple[str, Callable[[Path], Ask]]]] = {
    "SQLite": ("SQLite", from_sqlite),
    "DuckDB": ("DuckDB", from_duckdb),
    "DuckDB, same files": ("tseries", from_duckdb_on_files),
    "deltalake, same files": ("tseries", from_delta_on_files),
    "tseries": ("tseries", from_tseries),
}
"""Reader -> the store of `stores.STORES` that it reads, and what opens it; ours is the last."""
