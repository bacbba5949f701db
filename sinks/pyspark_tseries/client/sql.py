"""Ask a store in SQL: DuckDB sees one commit as the views `events`, `all_events` and `series`.

DuckDB reads the data files itself, so it skips the columns, files and row groups that a statement
does not need. It reads a file without hidden and edited events unchanged. It compares the rows of
other files with the retained ranges of their series, and with the keys of edited originals. The
edits in force are few, and are a table in memory (semantics 33.1).

A process has one DuckDB for all its stores. Each thread has its own cursor, which keeps the views
of a commit until the thread has asked later commits.
"""

import contextlib
import functools
import inspect
import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import MIN_US
from pyspark_timestream.core.processes import begin_in_forks
from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import InvalidQuery, PermissionDenied, import_library
from pyspark_tseries.model.arrays import NEVER_US, BoolArray, Int64Array, encode_runs, to_int64
from pyspark_tseries.model.columns import (
    INSTANT,
    file_schema,
    is_valid_text,
    query_schema,
    result_schema,
    show_columns,
)
from pyspark_tseries.model.ranges import Query, min_retained
from pyspark_tseries.model.series_index import FLOOR_DEFAULTS, SeriesIndex
from pyspark_tseries.read.scan import Scope, may_hide, select_visible, take_latest_edits
from pyspark_tseries.read.view import View, list_series
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.failures import explained_failures
from pyspark_tseries.storage.location import KeptByStore, Location
from pyspark_tseries.storage.row_reader import RowFilter, load_footer, read_rows
from pyspark_tseries.storage.snapshot import Snapshot

if TYPE_CHECKING:
    import duckdb

VIEWS: Final = ("events", "all_events", "series")
"""The views that a statement can name."""

_AUDIT: Final = Query("allEdits")
"""Whoever may ask this query may read the view `all_events`."""

_EDITS: Final = "__tseries_edits"
_FLOORS: Final = "__tseries_floors"
_SERIES: Final = "__tseries_series"

_ANSWERING: Final = frozenset(["SELECT", "EXPLAIN", "MULTI"])
"""DuckDB's types of statements that only read; PIVOT is a MULTI."""

_LISTING: Final = re.compile(
    r"\s*(show(\s+all)?\s+tables\b|(show|describe|desc)\s*;?\s*$)", re.IGNORECASE
)
"""Statements that list all tables; DuckDB's type of them is SELECT."""

_MAX_STORES: Final = 16
"""Keep cached facts about this many stores."""

_MAX_COMMITS: Final = 4
"""A thread keeps the views of this many commits."""

_MAX_FILES: Final = 20_000
"""Begin a new DuckDB after this many files, because it may keep all their footers."""

_NAMES_PER_BLOCK: Final = 1024
"""Keep bounds of retained ranges for blocks of this many series."""


def ask(view: View, statement: str, parameters: Any = None) -> "duckdb.DuckDBPyRelation":
    """Return the relation of `statement` over the views of a commit; DuckDB runs it when needed.

    Args:
        view: the commit, and who asks.
        statement: one statement that only asks.
        parameters: a sequence for `?` and `$1`, or a mapping for `$name`.

    Raises:
        ModuleNotFoundError: DuckDB is not installed.
        InvalidQuery: `statement` or `parameters` is something else.
        PermissionDenied: the principal may not ask this.
        duckdb.Error: DuckDB refuses the statement.
    """
    view.access.require_query(Query())
    view_names = _find_names(_ENGINE.start(), statement)
    if "all_events" in view_names:
        view.access.require_query(_AUDIT)
    with explained_failures(view.snapshot.location):
        cursor = _ENGINE.cursor(view, view_names)
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Iterable | None):
        raise InvalidQuery(
            f"parameters {show_value(parameters)} are not those of a statement",
            "a sequence for ? and $1, or a mapping for $name",
            f"write [{show_value(parameters)}]",
        )
    # Without parameters the relation is lazy, so a later filter on it prunes as well.
    named_values: dict[str, Any] = {} if parameters is None else {"params": parameters}
    run = functools.partial(cursor.sql, statement, **named_values)
    # DuckDB looks for tables in the variables of the frame that calls it: give it a frame that has
    # the caller's variables only, because one of ours, such as `view`, may have the same name.
    relation: duckdb.DuckDBPyRelation = eval(
        "__tseries_run()", {"__tseries_run": run}, _find_variables(statement)
    )
    return relation


def connect(view: View) -> "duckdb.DuckDBPyConnection":
    """Return a new DuckDB in memory with the views of a commit, for a person's own work.

    Raises:
        ModuleNotFoundError: DuckDB is not installed.
        PermissionDenied: the principal may not read the store.
    """
    view.access.require_query(Query())
    connection = _open_duckdb()
    create_views(connection, view)
    return connection


def create_views(connection: "duckdb.DuckDBPyConnection", view: View) -> None:
    """Create the views of a commit in `connection`, or replace earlier ones.

    Raises:
        InvalidQuery: `connection` is something else, or has a transaction that its owner began.
        PermissionDenied: the principal may not read the store.
        duckdb.Error: the connection is closed, or has tables with the names of the views.
    """
    view.access.require_query(Query())
    if not hasattr(connection, "execute"):
        raise InvalidQuery(
            f"{show_value(connection)} is not a connection",
            "one of connect(), or of duckdb.connect()",
            "give that",
        )
    with explained_failures(view.snapshot.location):
        commit = _show_commit(view.snapshot)
        definitions = {name: commit.define(name) for name in VIEWS}
    try:
        view.access.require_query(_AUDIT)
    except PermissionDenied as denied:
        definitions["all_events"] = {}, commit.refuse(denied)
    # Cursors of a connection see its views and tables, but nothing registered in it.
    is_shared = view.snapshot.location.is_local
    if _has_transaction(connection):
        raise InvalidQuery(
            "the connection has an open transaction",
            "one without",
            "call commit() or rollback() of the connection first",
        )
    try:
        connection.execute("BEGIN")
        for name, (tables, text) in definitions.items():
            for key, table in tables.items():
                if is_shared:
                    connection.register(f"{key}_new", table)
                    connection.execute(f"CREATE OR REPLACE TABLE {key} AS FROM {key}_new")
                    connection.unregister(f"{key}_new")
                else:
                    connection.register(key, table)
            kind = "VIEW" if is_shared else "TEMP VIEW"
            connection.execute(f"CREATE OR REPLACE {kind} {name} AS {text}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(Exception):  # An interrupted transaction may be gone.
            connection.execute("ROLLBACK")
        raise


def _has_transaction(connection: "duckdb.DuckDBPyConnection") -> bool:
    """Return whether the caller has begun a transaction; a second BEGIN would undo it.

    Statements outside of one have a transaction each.
    """
    import duckdb

    try:
        first, second = (connection.execute("SELECT txid_current()").fetchone() for _ in range(2))
    except duckdb.TransactionException:  # It has failed, and waits for its end.
        return True
    return first == second


def _open_duckdb() -> "duckdb.DuckDBPyConnection":
    """Return a new DuckDB that shows times in UTC and keeps footers of files."""
    library = import_library(
        "duckdb",
        "sql() and connect() need DuckDB, which is not installed",
        "pip install 'pyspark-timestream[sql]'",
    )
    connection: duckdb.DuckDBPyConnection = library.connect()
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    # Data files never change, so a footer that was read stays valid.
    connection.execute("SET GLOBAL parquet_metadata_cache = true")
    return connection


def _find_names(engine: "duckdb.DuckDBPyConnection", statement: str) -> Sequence[str]:
    """Return the views that `statement` may name; raise InvalidQuery if it does more than read."""
    import duckdb

    if not is_valid_text(statement):
        raise InvalidQuery(f"{show_value(statement)} is not a statement", "a text", "write SQL")
    cursor = engine.cursor()
    types = [parsed.type.name for parsed in cursor.extract_statements(statement)]
    if len(types) != 1 or types[0] not in _ANSWERING:
        problem = (
            f"a statement of type {types[0]}" if len(types) == 1 else f"{len(types)} statements"
        )
        raise InvalidQuery(
            f"sql() got {problem}: {show_value(statement)}",
            "one statement that asks, such as SELECT, FROM, PIVOT, SUMMARIZE or EXPLAIN",
            "ask one question at a time; connect() gives a connection for anything else",
        )
    if _LISTING.match(statement):
        # A relation has the views that it names, and this names none.
        raise InvalidQuery(
            f"sql() does not list tables: {show_value(statement)}",
            f"a statement about {', '.join(VIEWS)}, the views that there are",
            "describe one, such as with DESCRIBE events",
        )
    text = statement.lower()
    likely = [name for name in VIEWS if name in text]
    if types[0] == "SELECT":
        try:
            # The engine itself has no views, so it returns the names of all tables.
            tables = {name.lower() for name in cursor.get_table_names(statement)}
        except duckdb.Error:  # It has parameters, or is refused later.
            return likely
        return [name for name in likely if name in tables] or likely
    return likely


def _find_variables(statement: str) -> dict[str, Any]:
    """Return the callers' variables that `statement` has as words; of each name, the nearest.

    Frames of this package have no variables of a caller.
    """
    words = set(re.findall(r"\w+", statement))
    found_variables: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "pyspark_tseries":
            for variables in (frame.f_locals, frame.f_globals):
                for word in words:
                    if word in variables:
                        found_variables.setdefault(word, variables[word])
        frame = frame.f_back
    return found_variables


class _Engine:
    """The DuckDB of this process, and the cursors of its threads; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._files = 0
        self._local = threading.local()
        self._inherited: list[Any] = []
        begin_in_forks(self)

    def start(self) -> "duckdb.DuckDBPyConnection":
        """Return the connection that has no views."""
        with self._lock:
            if self._connection is None or self._files > _MAX_FILES:
                self._connection = _open_duckdb()
                self._files = 0
            return self._connection

    def count_file(self) -> None:
        """Count a new file, because DuckDB may keep its footer."""
        self._files += 1

    def cursor(self, view: View, names: Iterable[str]) -> "duckdb.DuckDBPyConnection":
        """Return this thread's cursor of a commit, with at least the views `names`."""
        cursors: OrderedDict[int, _Cursor] = self._local.__dict__.setdefault("kept", OrderedDict())
        key = id(view.snapshot)
        connection = self.start()
        of_commit = cursors.get(key)
        if of_commit is None:
            of_commit = _Cursor(view.snapshot, connection.cursor())
            cursors[key] = of_commit
            while len(cursors) > _MAX_COMMITS:
                cursors.popitem(last=False)
        cursors.move_to_end(key)
        for name in names:
            if name not in of_commit.shown:
                of_commit.show(name)
        return of_commit.cursor

    def begin_child(self) -> None:
        """Drop the connection in a forked process, which has none of DuckDB's threads."""
        # Closing the inherited connection would wait for these threads.
        self._inherited.append((self._connection, self._local))
        self._lock = threading.Lock()
        self._connection = None
        self._local = threading.local()


@dataclass
class _Cursor:
    """A cursor with the views of a commit; it holds the snapshot, so its `id` is not reused."""

    snapshot: Snapshot
    cursor: "duckdb.DuckDBPyConnection"
    shown: set[str] = field(default_factory=set)

    def show(self, name: str) -> None:
        """Create a view, which lives with the cursor and its relations."""
        tables, text = _show_commit(self.snapshot).define(name)
        for key, table in tables.items():
            self.cursor.register(key, table)
        self.cursor.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {text}")
        self.shown.add(name)


_ENGINE: Final = _Engine()


class _StoreCache:
    """Facts about a store that stay valid from commit to commit; safe for threads."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self.lock = threading.RLock()
        self.commits: list[_CommitViews] = []
        self._values: list[pa.Field] | None = None
        self._types: dict[str, str] = {}
        self._layouts: list[tuple[Any, dict[str, str]]] = []
        self._layout_of: dict[str, int] = {}
        self._edits: dict[str, pa.Table] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Forget files that are gone, and edits without a new column."""
        paths = {file.path for file in snapshot.files}
        if snapshot.as_of is None:
            self._layout_of = {p: layout for p, layout in self._layout_of.items() if p in paths}
            self._edits = {path: rows for path, rows in self._edits.items() if path in paths}
        if snapshot.values != self._values:
            self._values = snapshot.values
            self._edits = {}
            schema = file_schema(snapshot.values).append(pa.field("edit_timestamp", INSTANT))
            with _open_cursor() as cursor:
                cursor.register("__tseries_types", schema.empty_table())
                rows = cursor.execute("DESCRIBE __tseries_types").fetchall()
            self._types = {str(row[0]): str(row[1]) for row in rows}

    @property
    def types(self) -> dict[str, str]:
        """The types of a store's columns in DuckDB."""
        return self._types

    def layout(self, file: DataFile) -> int:
        """Return the number of the file's layout: files with equal columns and types share one."""
        number = self._layout_of.get(file.path)
        if number is None:
            schema = load_footer(self._location, file).metadata.schema
            numbers = [
                n
                for n, (known_schema, _) in enumerate(self._layouts)
                if schema.equals(known_schema)
            ]
            number = numbers[0] if numbers else len(self._layouts)
            if not numbers:
                self._layouts.append((schema, self._read_types(file)))
            self._layout_of[file.path] = number
            _ENGINE.count_file()
        return number

    def stored_types(self, layout: int) -> dict[str, str]:
        """Return DuckDB's types of the columns of files with this layout, by lower-case names."""
        return self._layouts[layout][1]

    def _read_types(self, file: DataFile) -> dict[str, str]:
        if not self._location.is_local:
            return {}
        with _open_cursor() as cursor:
            source = _scan_parquet([self._location.file(file.path)])
            rows = cursor.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
        return {str(row[0]).lower(): str(row[1]) for row in rows}

    def read_edits(self, snapshot: Snapshot) -> pa.Table:
        """Return all edits up to the commit of `snapshot`; read only files not read before."""
        schema = query_schema(snapshot.values)
        files = snapshot.edit_files
        if snapshot.as_of is not None:
            return read_rows(self._location, files, schema, RowFilter(commits=snapshot.commits))
        for file in files:
            if file.path not in self._edits:
                rows = read_rows(self._location, [file], schema, RowFilter())
                self._edits[file.path] = rows
        return pa.concat_tables([schema.empty_table(), *(self._edits[f.path] for f in files)])


_KEPT: Final = KeptByStore(_StoreCache, _MAX_STORES)


def _show_commit(snapshot: Snapshot) -> "_CommitViews":
    """Return the views of a commit, which threads share."""
    store = _KEPT.use(snapshot.location)
    with store.lock:
        for commit in store.commits:
            if commit.snapshot is snapshot:
                return commit
        store.update(snapshot)
        store.commits = [*store.commits[1 - _MAX_COMMITS :], _CommitViews(snapshot, store)]
        return store.commits[-1]


Definition = tuple[Mapping[str, Any], str]
"""The text of a view, after its Arrow tables by their names in the text."""


class _CommitViews:
    """The views of one commit, each made at its first use."""

    def __init__(self, snapshot: Snapshot, store: _StoreCache) -> None:
        self.snapshot = snapshot
        self._store = store
        self._values = list(snapshot.values)
        self._types = dict(store.types)
        self._definitions: dict[str, Definition] = {}

    def define(self, name: str) -> Definition:
        """Return the definition of the view `name`."""
        with self._store.lock:
            if name not in self._definitions:
                make = {
                    "events": self._make_events,
                    "all_events": self._make_all_events,
                    "series": self._make_series,
                }
                self._definitions[name] = make[name]()
            return self._definitions[name]

    def refuse(self, denied: PermissionDenied) -> str:
        """Return the text of a view `all_events` that refuses to be read."""
        columns = self._select_columns(file_schema(self._values), {})
        return f"SELECT {columns} WHERE error({_quote_text(str(denied))}) IS NULL"

    def _make_all_events(self) -> Definition:
        tables: dict[str, Any] = {}
        return tables, self._select(self.snapshot.files, file_schema(self._values), tables, "every")

    def _make_series(self) -> Definition:
        rows = list_series(Scope(self.snapshot, self.snapshot.index()))
        return {_SERIES: rows}, f"FROM {_SERIES}"

    def _make_events(self) -> Definition:
        snapshot, index = self.snapshot, self.snapshot.index()
        edits = _pick_edits_in_force(self._store.read_edits(snapshot), snapshot, index)
        retained, edited = _Retained(snapshot, index), _EditedKeys(edits)
        whole_files: list[DataFile] = []
        compared_files: list[DataFile] = []
        for file in snapshot.original_files:
            is_whole = not retained.may_hide(file) and not edited.may_touch(file)
            (whole_files if is_whole else compared_files).append(file)
        tables: dict[str, Any] = {}
        schema = result_schema(self._values)
        texts = []
        if whole_files or not compared_files:
            texts.append(self._select(whole_files, schema, tables, "whole"))
        if compared_files:
            stored = self._select(compared_files, schema, tables, "compared")
            text = f"SELECT * FROM ({stored}) AS stored"
            if retained.hides:
                tables[_FLOORS] = retained.floors()
                text += (
                    f" SEMI JOIN {_FLOORS} AS floors ON stored.series = floors.series"
                    " AND stored.sequence >= floors.sequence"
                    " AND stored.timestamp >= floors.timestamp"
                )
            if edits.num_rows:
                text += (
                    f" ANTI JOIN {_EDITS} AS edits ON stored.series = edits.series"
                    " AND stored.sequence = edits.original_sequence"
                )
            texts.append(text)
        if edits.num_rows:
            tables[_EDITS] = edits
            touched = [file for file in compared_files if edited.may_touch(file)]
            texts.append(self._select_edits(index, touched, tables))
        return tables, " UNION ALL ".join(texts)

    def _select_edits(
        self, index: SeriesIndex, touched: list[DataFile], tables: dict[str, Any]
    ) -> str:
        """Select the edits in force; `touched` are the files that may have their originals."""
        schema = result_schema(self._values)
        columns = self._select_columns(schema, {name.lower(): "" for name in schema.names})
        text = f"SELECT {columns} FROM {_EDITS} AS edits"
        if not self._may_lack_originals(index):
            return text
        keys = pa.schema([schema.field("series"), schema.field("sequence")])
        originals = self._select(touched, keys, tables, "originals")
        return (
            f"{text} SEMI JOIN ({originals}) AS originals"
            " ON originals.series = edits.series"
            " AND originals.sequence = edits.original_sequence"
        )

    def _may_lack_originals(self, index: SeriesIndex) -> bool:
        """Return whether an original may be gone; then its edits must be hidden too."""
        if self.snapshot.as_of is not None or (index.columns["first_us"] == NEVER_US).any():
            return True
        last_sequence, edits = index.columns["last_sequence"], index.columns["edits"]
        stored = sum(file.rows for file in self.snapshot.original_files)
        return stored != int((last_sequence + 1 - edits).sum())

    def _select(
        self, files: Sequence[DataFile], schema: pa.Schema, tables: dict[str, Any], name: str
    ) -> str:
        """Return a SELECT of the columns of `schema` from `files`, in any order."""
        as_of = self.snapshot.as_of
        groups: dict[tuple[bool, int], list[DataFile]] = {}
        for file in files:
            is_late = as_of is not None and file.last_commit > as_of
            groups.setdefault((is_late, self._store.layout(file)), []).append(file)
        texts: list[str] = []
        for (is_late, layout), group in groups.items():
            if self.snapshot.location.is_local:
                paths = [self.snapshot.location.file(file.path) for file in group]
                columns = self._select_columns(schema, self._store.stored_types(layout))
                source = _scan_parquet(paths)
            else:
                source = f"__tseries_{name}_{len(texts)}"
                tables[source] = _open_dataset(self.snapshot, group)
                columns_of_files = {field.name.lower(): "" for field in file_schema(self._values)}
                columns = self._select_columns(schema, columns_of_files)
            where = f" WHERE commit <= {as_of}" if is_late else ""
            texts.append(f"SELECT {columns} FROM {source}{where}")
        return " UNION ALL ".join(texts) or f"SELECT {self._select_columns(schema, {})} WHERE false"

    def _select_columns(self, schema: pa.Schema, stored: Mapping[str, str]) -> str:
        """Return the columns of `schema`, converted from the `stored` types to the store's."""
        return ", ".join(
            f"{_convert_column(name, stored.get(name.lower()), self._types[name])}"
            f" AS {_quote_name(name)}"
            for name in schema.names
        )


def _convert_column(name: str, stored: str | None, needed: str) -> str:
    """Return a column converted to the type `needed`.

    `stored` is its type in the file; "" if that is the same, None if the file lacks the column.
    """
    if stored is None:
        return f"CAST(NULL AS {needed})"
    if stored in ("", needed):
        return _quote_name(name)
    sql_types = stored, needed
    if all(sql_type.startswith("TIMESTAMP") for sql_type in sql_types):
        zoned = [sql_type == "TIMESTAMP WITH TIME ZONE" for sql_type in sql_types]
        if zoned == [False, True]:
            return f"(CAST({_quote_name(name)} AS TIMESTAMP) AT TIME ZONE 'UTC')"
        if zoned == [True, False]:
            return f"({_quote_name(name)} AT TIME ZONE 'UTC')"
    return f"CAST({_quote_name(name)} AS {needed})"


def _open_dataset(snapshot: Snapshot, files: Sequence[DataFile]) -> Any:
    """Return files of an object store as a dataset that Arrow prunes by their bounds in the log.

    Arrow reads from object stores, as everywhere in this package: DuckDB would need an extension.
    """
    import pyarrow.dataset as ds

    location = snapshot.location
    schema = file_schema(snapshot.values)
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    fragments = [
        parquet.make_fragment(
            location.file(file.path), location.filesystem, partition_expression=_state_bounds(file)
        )
        for file in files
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, location.filesystem)


def _state_bounds(file: DataFile) -> pc.Expression:
    ends = pa.array([file.min_us, file.max_us]).cast(INSTANT)
    return (
        (pc.field("series") >= file.first)
        & (pc.field("series") <= file.last)
        & (pc.field("sequence") >= file.min_sequence)
        & (pc.field("sequence") <= file.max_sequence)
        & (pc.field("timestamp") >= ends[0])
        & (pc.field("timestamp") <= ends[1])
    )


class _Retained:
    """The lowest sequence and timestamp that each series retains."""

    def __init__(self, snapshot: Snapshot, index: SeriesIndex) -> None:
        self.hides = may_hide(snapshot.settings.retained, index)
        if not self.hides:
            return
        order, self._names = index.by_name()
        floors = index.columns.take(order, FLOOR_DEFAULTS)
        last_sequence, newest_us = index.columns["last_sequence"], index.columns["original_us"]
        self._sequence, self._us = min_retained(
            snapshot.settings.retained, last_sequence[order], newest_us[order], floors
        )
        # A series that began after this commit has no events to hide.
        has_edit = last_sequence[order] >= 0
        self._blocks = [
            _block_maxima(values, has_edit) for values in (self._sequence, self._us) if len(order)
        ]

    def may_hide(self, file: DataFile) -> bool:
        """Return whether an event of `file` may be outside its series' retained range."""
        if not self.hides or not self._blocks:
            return False
        start, end = bisect_left(self._names, file.first), bisect_right(self._names, file.last)
        blocks = slice(start // _NAMES_PER_BLOCK, -(-end // _NAMES_PER_BLOCK))
        lowest, earliest = (block[blocks] for block in self._blocks)
        return bool((lowest > file.min_sequence).any() or (earliest > file.min_us).any())

    def floors(self) -> pa.Table:
        """Return the lowest sequences and timestamps as a table."""
        columns = [
            pa.array(self._names, pa.string()),
            pa.array(self._sequence),
            pa.array(np.maximum(self._us, MIN_US)).cast(INSTANT),
        ]
        return pa.table(columns, ["series", "sequence", "timestamp"])


def _block_maxima(values: Int64Array, counted: BoolArray) -> Int64Array:
    lowest = np.where(counted, values, np.iinfo(np.int64).min)
    maxima: Int64Array = np.maximum.reduceat(lowest, np.arange(0, len(values), _NAMES_PER_BLOCK))
    return maxima


class _EditedKeys:
    """The keys of edited originals."""

    def __init__(self, edits: pa.Table) -> None:
        names, codes = encode_runs(edits["series"])
        self._names = names.to_pylist()
        self._sequence = to_int64(edits["original_sequence"])
        self._ends = np.searchsorted(codes, np.arange(len(self._names) + 1))

    def may_touch(self, file: DataFile) -> bool:
        """Return whether `file` may have an edited original."""
        begin, end = bisect_left(self._names, file.first), bisect_right(self._names, file.last)
        if begin >= end:
            return False
        originals = self._sequence[self._ends[begin] : self._ends[end]]
        return bool(((originals >= file.min_sequence) & (originals <= file.max_sequence)).any())


def _pick_edits_in_force(rows: pa.Table, snapshot: Snapshot, index: SeriesIndex) -> pa.Table:
    """Return the latest edit of each visible original, as a `values` query shows it.

    Rows are sorted by series and by the sequence of the original.
    """
    if may_hide(snapshot.settings.retained, index):
        rows = rows.filter(pa.array(select_visible(rows, index, snapshot.settings.retained)))
    rows = take_latest_edits(rows)
    return show_columns(rows, result_schema(snapshot.values).names, at_originals=True)


def _open_cursor() -> "duckdb.DuckDBPyConnection":
    return _ENGINE.start().cursor()


def _scan_parquet(paths: Iterable[str]) -> str:
    names = ", ".join(_quote_text(_escape_glob(path)) for path in paths)
    return f"read_parquet([{names}], hive_partitioning = false)"


def _quote_name(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _quote_text(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


@functools.lru_cache(maxsize=4096)
def _escape_glob(path: str) -> str:
    """Return a pattern that matches only `path`."""
    return re.sub(r"[*?[]", r"[\g<0>]", path)
