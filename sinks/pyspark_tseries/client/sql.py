"""Show one commit of a store to DuckDB as the views `events`, `all_events` and `series`.

DuckDB reads the data files itself, so it prunes columns, files and row groups by what a statement
asks for. A file in which nothing is hidden and nothing is edited is read as it is; the rows of the
others are compared with what each series retains, and with the keys of edited originals. The edits
in force are few, and are a table in memory (semantics 33.1).
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from pyspark_timestream.core.instants import MIN_US
from pyspark_timestream.errors import compose_message
from pyspark_tseries.model.arrays import encode_runs, to_int64
from pyspark_tseries.model.columns import (
    INSTANT,
    file_schema,
    query_schema,
    result_schema,
    show_columns,
    table_schema,
)
from pyspark_tseries.model.ranges import min_retained
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.read.scan import may_hide, select_visible
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.row_reader import ANY_VALUE, FOOTER_CACHE, RowFilter, read_rows
from pyspark_tseries.storage.snapshot import Snapshot

if TYPE_CHECKING:
    import duckdb

_EDITS: Final = "__tseries_edits"
_FLOORS: Final = "__tseries_floors"
_SERIES: Final = "__tseries_series"


def open_connection() -> "duckdb.DuckDBPyConnection":
    """Return a new connection of DuckDB that shows times in UTC and keeps footers of files.

    Raises:
        ModuleNotFoundError: DuckDB is not installed; the message says how to install it.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        if error.name != "duckdb":
            raise
        raise ModuleNotFoundError(
            compose_message(
                "sql() and connect() need DuckDB, which is not installed",
                next_step="pip install 'pyspark-timestream[sql]'",
            ),
            name="duckdb",
        ) from None
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    # Data files never change, so a footer that was read stays right.
    connection.execute("SET parquet_metadata_cache = true")
    return connection


def show_store(
    connection: "duckdb.DuckDBPyConnection",
    snapshot: Snapshot,
    index: SeriesIndex,
    series: pa.Table,
) -> None:
    """Create or replace the three views of `connection` by those of a commit.

    Args:
        connection: of DuckDB.
        snapshot: the commit.
        index: its series index.
        series: the rows of the view `series`.
    """
    edits = _read_edits_in_force(snapshot, index)
    floors = _Floors(snapshot, index)
    originals = [file for file in snapshot.files if file.kind != "edit"]
    edited = _Keys(edits)
    parts: list[str] = []
    whole: list[DataFile] = []
    compared: list[DataFile] = []
    for file in originals:
        is_whole = not floors.may_hide(file) and not edited.may_touch(file)
        (whole if is_whole else compared).append(file)
    files = _Files(connection, snapshot)
    shown = result_schema(snapshot.values)
    if whole:
        parts.append(files.select(whole, shown))
    if compared:
        parts.append(
            f"""FROM ({files.select(compared, shown)}) AS stored
            SEMI JOIN {_FLOORS} AS floor ON stored.series = floor.series
                AND stored.sequence >= floor.sequence AND stored.timestamp >= floor.timestamp
            ANTI JOIN {_EDITS} AS edit ON stored.series = edit.series
                AND stored.sequence = edit.place"""
        )
    connection.register(_FLOORS, floors.table)
    connection.register(_EDITS, edits)
    if edits.num_rows or not parts:
        parts.append(f"SELECT {_names(shown)} FROM {_EDITS}")
    connection.execute(f"CREATE OR REPLACE VIEW events AS {' UNION ALL '.join(parts)}")
    stored = table_schema(snapshot.values)
    every = files.select(snapshot.files, stored)
    connection.execute(f"CREATE OR REPLACE VIEW all_events AS {every}")
    connection.register(_SERIES, series)
    connection.execute(f"CREATE OR REPLACE VIEW series AS FROM {_SERIES}")


class _Files:
    """Writes statements that read data files of a snapshot."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", snapshot: Snapshot) -> None:
        self._connection, self._snapshot = connection, snapshot
        self._tables = 0

    def select(self, files: Sequence[DataFile], schema: pa.Schema) -> str:
        """Return a SELECT of the columns of `schema` from `files`, of any order."""
        as_of = self._snapshot.as_of
        early = [file for file in files if as_of is None or file.last_commit <= as_of]
        late = [file for file in files if as_of is not None and file.last_commit > as_of]
        parts = [self._select(early, schema)] if early or not late else []
        if late:
            parts.append(f"{self._select(late, schema)} WHERE commit <= {as_of}")
        return " UNION ALL ".join(parts)

    def _select(self, files: Sequence[DataFile], schema: pa.Schema) -> str:
        location = self._snapshot.location
        if not files:
            return f"SELECT {self._columns(schema, frozenset())} WHERE false"
        known = [FOOTER_CACHE.get(location, file).names for file in files]
        anywhere, everywhere = frozenset().union(*known), frozenset.intersection(*known)
        columns = self._columns(schema, anywhere)
        merged = ", union_by_name = true" if anywhere != everywhere else ""
        if location.is_local:
            paths = ", ".join(_text(_escape_glob(location.file(file.path))) for file in files)
            source = f"read_parquet([{paths}], hive_partitioning = false{merged})"
        else:
            source = self._register(files)
        return f"SELECT {columns} FROM {source}"

    def _register(self, files: Sequence[DataFile]) -> str:
        """Let Arrow read from an object store, as everything else here does."""
        location = self._snapshot.location
        schema = file_schema(self._snapshot.values)
        paths = [location.file(file.path) for file in files]
        self._tables += 1
        name = f"__tseries_files_{self._tables}"
        dataset = pa.dataset.dataset(
            paths, schema, format="parquet", filesystem=location.filesystem, partitioning=None
        )
        self._connection.register(name, dataset)
        return name

    def _columns(self, schema: pa.Schema, stored: Set[str]) -> str:
        """Return the columns of `schema`, with nulls for those that no file has `stored`."""
        # DuckDB leaves out a cast to the type that a file has; other tools may write other ones.
        return ", ".join(
            f"CAST({_quote(name) if name in stored else 'NULL'} AS {kind}) AS {_quote(name)}"
            for name, kind in self._types(schema).items()
        )

    def _types(self, schema: pa.Schema) -> dict[str, str]:
        """Return DuckDB's names of the types of the columns."""
        self._connection.register("__tseries_types", schema.empty_table())
        rows = self._connection.execute("DESCRIBE __tseries_types").fetchall()
        self._connection.unregister("__tseries_types")
        return {str(row[0]): str(row[1]) for row in rows}


class _Floors:
    """The lowest sequence and timestamp that each series retains."""

    def __init__(self, snapshot: Snapshot, index: SeriesIndex) -> None:
        names = index.ids.names()[: index.columns.rows]
        floors = index.min_retained(names)
        known = index.lookup(names)
        self.sequence, self.us = min_retained(
            snapshot.settings.retained, known["last_sequence"], known["original_us"], floors
        )
        self._hides = may_hide(snapshot.settings.retained, index)
        columns = [
            pa.array(names, pa.string()),
            pa.array(self.sequence),
            pa.array(np.maximum(self.us, MIN_US)).cast(INSTANT),
        ]
        self.table = pa.table(columns, ["series", "sequence", "timestamp"])
        if self._hides:
            order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
            self._names = [names[i] for i in order.tolist()]
            self.sequence, self.us = self.sequence[order], self.us[order]

    def may_hide(self, file: DataFile) -> bool:
        """Return whether an event of `file` may be outside of what its series retains."""
        if not self._hides:
            return False
        here = slice(bisect_left(self._names, file.first), bisect_right(self._names, file.last))
        lowest, earliest = self.sequence[here], self.us[here]
        return bool((lowest > file.min_sequence).any() or (earliest > file.min_us).any())


class _Keys:
    """The keys of edited originals."""

    def __init__(self, edits: pa.Table) -> None:
        self._series, codes = encode_runs(edits["series"])
        self._names = self._series.to_pylist()
        self._sequence = to_int64(edits["place"])
        self._first = np.searchsorted(codes, np.arange(len(self._names)))
        self._end = np.searchsorted(codes, np.arange(len(self._names)), "right")

    def may_touch(self, file: DataFile) -> bool:
        """Return whether `file` may have an edited original."""
        first, end = bisect_left(self._names, file.first), bisect_right(self._names, file.last)
        if first >= end:
            return False
        some = self._sequence[self._first[first] : self._end[end - 1]]
        return bool(((some >= file.min_sequence) & (some <= file.max_sequence)).any())


def _read_edits_in_force(snapshot: Snapshot, index: SeriesIndex) -> pa.Table:
    """Return the latest edit of each original that is shown, as a `values` query shows it.

    The column `place` is the sequence of the original; rows are sorted by series and place.
    """
    files = [file for file in snapshot.files if file.kind == "edit"]
    schema = query_schema(snapshot.values)
    row_filter = RowFilter(commits=ANY_VALUE if snapshot.as_of is None else (0, snapshot.as_of))
    rows = read_rows(snapshot.location, files, schema, schema.names, row_filter)
    rows = rows.filter(pa.array(select_visible(rows, index, snapshot.settings.retained)))
    _, codes = encode_runs(rows["series"])
    place, sequence = to_int64(rows["original_sequence"]), to_int64(rows["sequence"])
    order = np.lexsort((sequence, place, codes))
    last = np.ones(len(order), bool)
    last[:-1] = (np.diff(codes[order]) != 0) | (np.diff(place[order]) != 0)
    rows = rows.take(pa.array(order[last]))
    shown = show_columns(rows, result_schema(snapshot.values).names, at_originals=True)
    return shown.append_column("place", rows["original_sequence"])


def _names(schema: pa.Schema) -> str:
    return ", ".join(map(_quote, schema.names))


def _quote(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _text(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _escape_glob(path: str) -> str:
    """Return a pattern that matches `path` alone."""
    return re.sub(r"[*?[]", r"[\g<0>]", path)
