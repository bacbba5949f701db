"""Read the needed rows of data files: select row groups by their bounds, then rows.

The reader reads the columns with conditions first, and the others only if a row is needed. A filter
may pass too many rows, never too few: the query decides again on whole series. A data file never
changes and its name is unique, so a cached footer stays valid.
"""

import functools
import os
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_timestream.core.processes import begin_in_forks, lazy
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    MAX_NUMBER,
    MIN_NUMBER,
    BoolArray,
    Int64Array,
    KeyRange,
    flag_names,
    to_int64,
)
from pyspark_tseries.model.columns import file_schema, select_fields
from pyspark_tseries.storage.data_files import (
    Checksums,
    DataFile,
    chunk_span,
    count_leaves,
    explain_read_errors,
    has_raw_bounds,
    read_footer,
)
from pyspark_tseries.storage.location import Location

REPETITIVE_BYTES: Final = 4
"""A text that repeats takes at most this many bytes of a file, on average."""

MAX_CACHED_BYTES: Final = 4 * 1024 * 1024
"""The stored size of cached footers; parsed, in memory, they take about ten times as much."""

_EXACT_BOUNDS: Final = frozenset(["author", "commit"])
"""The bounds of these columns are exact: they are never truncated."""

_INTEGER_COLUMNS: Final = frozenset(["sequence", "timestamp", "commit"])
"""Read the bounds of these columns as integers."""


class Footer:
    """The footer of a data file.

    Attributes:
        metadata: Arrow's metadata; a reader that gets it does not read the footer again.
        sums: the checksums of the column chunks; None if the file has none.
        group_count: the number of row groups.
        names: the names of the file's columns.
    """

    def __init__(self, metadata: Any, sums: Checksums | None = None) -> None:
        self.metadata = metadata
        self.sums = sums
        self.group_count = int(metadata.num_row_groups)
        schema = metadata.schema
        columns = schema.to_arrow_schema()
        self.names = frozenset(columns.names)
        self._leaves: dict[str, range] = {}
        leaf = 0
        for column in columns:
            self._leaves[column.name] = range(leaf, leaf := leaf + count_leaves(column.type))
        self._at = {schema.column(i).path: i for i in range(metadata.num_columns)}
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}
        self._constants: dict[str, list[tuple[Any] | None]] = {}
        self._ends: dict[str, list[tuple[Any, Any] | None]] = {}

    @lazy
    def group_rows(self) -> list[int]:
        """The number of rows of each row group."""
        return [int(self.metadata.row_group(group).num_rows) for group in range(self.group_count)]

    def is_repetitive(self, column: str) -> bool:
        """Return whether a column of texts is missing, or stored as a dictionary of few texts."""
        if column not in self.names or not self.group_count:
            return True
        if column not in self._at or "." in column:  # A dotted name may be a nested field.
            return False
        chunk = self.metadata.row_group(0).column(self._at[column])
        size = chunk.total_uncompressed_size
        return bool(chunk.has_dictionary_page and size <= REPETITIVE_BYTES * chunk.num_values)

    def has_dictionary(self, group: int, column: str) -> bool:
        """Return whether a row group stores a column, not nested, as a dictionary."""
        return bool(self.metadata.row_group(group).column(self._at[column]).has_dictionary_page)

    def chunks(
        self, groups: Iterable[int], columns: Iterable[str]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield offset, size and checksum of each chunk of `columns`, if the file has checksums."""
        if self.sums is None:
            return
        leaves = [leaf for name in columns for leaf in self._leaves[name]]
        width = self.metadata.num_columns
        for group in groups:
            for leaf in leaves:
                span = self._spans.get((group, leaf))
                if span is None:
                    span = chunk_span(self.metadata.row_group(group).column(leaf))
                    self._spans[group, leaf] = span
                yield *span, int(self.sums[group * width + leaf])

    def bounds(self, column: str) -> list[tuple[Any, Any] | None]:
        """Return the lowest and highest value of `column` in each row group; None if unknown."""
        if column not in self._ends:
            self._ends[column] = [self._bounds(group, column) for group in range(self.group_count)]
        return self._ends[column]

    def constant(self, groups: Sequence[int], column: str) -> tuple[Any] | None:
        """Return the one value of `column` in all rows of `groups`; None if unknown.

        The value is known for columns of nulls and for those of `_EXACT_BOUNDS`.
        """
        if column not in self._at or "." in column:  # A dotted name may be a nested field.
            return None
        if column not in self._constants:
            every = range(self.group_count)
            self._constants[column] = [self._constant(group, column) for group in every]
        constants = self._constants[column]
        value = constants[groups[0]]
        return value if all(constants[group] == value for group in groups) else None

    def _constant(self, group: int, column: str) -> tuple[Any] | None:
        chunk = self.metadata.row_group(group).column(self._at[column])
        stats = chunk.statistics
        if stats is None or not stats.has_null_count:
            return None
        if stats.null_count:
            return (None,) if stats.null_count == chunk.num_values else None
        if column not in _EXACT_BOUNDS or not stats.has_min_max or stats.min_raw != stats.max_raw:
            return None
        return (stats.min,)

    def _bounds(self, group: int, column: str) -> tuple[Any, Any] | None:
        # Arrow leaves out the bounds of texts of more than 4 KiB.
        leaf = self._at[column]
        stats = self.metadata.row_group(group).column(leaf).statistics
        if stats is None or not stats.has_min_max:
            return None
        if column in _INTEGER_COLUMNS:
            is_raw = has_raw_bounds(self.metadata.schema.column(leaf))
            return (stats.min_raw, stats.max_raw) if is_raw else None
        return stats.min, stats.max


class FooterCache:
    """The most recently used footers; safe for threads.

    Args:
        max_bytes: the stored size of the footers to keep; the newest is always kept.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._most_bytes = max_bytes
        self.begin_child()
        begin_in_forks(self)

    def begin_child(self) -> None:
        """Start afresh in a forked process."""
        self._kept: OrderedDict[tuple[Location, str, int], Footer] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, key: tuple[Location, DataFile]) -> bool:
        location, file = key
        return (location, file.path, file.size) in self._kept

    def get(self, location: Location, file: DataFile) -> Footer:
        """Return the footer of `file`.

        Raises:
            OSError, pa.ArrowException: it is not cached, and cannot be read or is broken.
        """
        key = location, file.path, file.size
        with self._lock:
            footer = self._kept.get(key)
            if footer is not None:
                self._kept.move_to_end(key)
                return footer
        with location.read(location.file(file.path)) as source:
            return self._keep(key, Footer(*read_footer(source, file.size)))

    def clear(self) -> None:
        """Forget all footers."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _keep(self, key: tuple[Location, str, int], footer: Footer) -> Footer:
        with self._lock:
            if key in self._kept:
                return self._kept[key]  # Another thread read it first.
            self._kept[key] = footer
            self._bytes += _footer_bytes(footer)
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= _footer_bytes(self._kept.popitem(last=False)[1])
            return footer


def _footer_bytes(footer: Footer) -> int:
    return int(footer.metadata.serialized_size)


FOOTER_CACHE: Final = FooterCache()
"""The cache of this process."""


GroupBounds = Callable[[str], list[tuple[Any, Any] | None]]
"""The lowest and highest value of a column in each row group of a file; None if unknown."""

ANY_VALUE: Final = (MIN_NUMBER, MAX_NUMBER)

NAMES_PER_PROBE: Final = 16
"""A binary search for a name takes about as long as adding this many names to a hash table."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Conditions on the needed rows; all must hold, and bounds are inclusive.

    `names` are series, sorted and distinct; None allows all. `lows` has the lowest needed sequence
    of each series of `names`; None allows any.
    """

    names: Sequence[str] | None = None
    keys: KeyRange = ALL_KEYS
    sequences: tuple[int, int] = ANY_VALUE
    times: tuple[int, int] = ANY_VALUE
    commits: tuple[int, int] = ANY_VALUE
    lows: Int64Array | None = field(default=None, compare=False)

    @property
    def columns(self) -> list[str]:
        """The columns with conditions."""
        conditions = {
            "series": self.names is not None or self.keys != ALL_KEYS,
            "sequence": (self.keys, self.sequences) != (ALL_KEYS, ANY_VALUE)
            or self.lows is not None,
            "timestamp": self.times != ANY_VALUE,
            "commit": self.commits != ANY_VALUE,
        }
        return [name for name, needed in conditions.items() if needed]

    @property
    def _bounds(self) -> dict[str, tuple[int, int]]:
        return {"sequence": self.sequences, "timestamp": self.times, "commit": self.commits}

    def may_match_file(self, file: DataFile) -> bool:
        """Return whether `file` may contain a needed row."""
        # A store may have thousands of files, and calls of functions would take longer.
        return (
            file.max_sequence >= self.sequences[0]
            and file.min_sequence <= self.sequences[1]
            and file.max_us >= self.times[0]
            and file.min_us <= self.times[1]
            and file.last_commit >= self.commits[0]
            and file.first_commit <= self.commits[1]
            and self._may_match_series(file.first, file.last)
            and (self.lows is None or self._reaches(file.first, file.last, file.max_sequence))
        )

    def match_groups(self, count: int, ends: GroupBounds) -> list[int]:
        """Return which of a file's `count` row groups may contain a needed row."""
        tests: dict[str, Callable[[Any, Any], bool]] = {
            "series": self._may_match_series,
            **{name: functools.partial(_overlaps, bounds) for name, bounds in self._bounds.items()},
        }
        groups = list(range(count))
        for name in self.columns:
            if not groups:
                break
            group_bounds = ends(name)
            may_match = tests[name]
            groups = [
                i for i in groups if (bounds := group_bounds[i]) is None or may_match(*bounds)
            ]
        if self.lows is not None and groups:
            series, sequence = ends("series"), ends("sequence")
            groups = [i for i in groups if self._may_reach(series[i], sequence[i])]
        return groups

    def _may_reach(self, series: tuple[str, str] | None, sequence: tuple[int, int] | None) -> bool:
        """Return whether a row group may have a needed event of any of its series."""
        if series is None or sequence is None:
            return True
        return self._reaches(*series, sequence[1])

    def _reaches(self, first: str, last: str, sequence: int) -> bool:
        """Return whether any series from `first` to `last` needs events up to `sequence`."""
        assert self.names is not None
        assert self.lows is not None
        start, end = bisect_left(self.names, first), bisect_right(self.names, last)
        return bool((self.lows[start:end] <= sequence).any())

    def _may_match_series(self, first: str, last: str) -> bool:
        if not self.keys.overlaps(first, last):
            return False
        if self.names is None:
            return True
        if not self.names or last < self.names[0] or first > self.names[-1]:
            return False
        return bisect_left(self.names, first) < bisect_right(self.names, last)

    def match_rows(self, table: pa.Table, *, is_sorted: bool = True) -> tuple[int, BoolArray]:
        """Return a row's number, and flags from it on: True if needed. Other rows are not."""
        start, end = self._find_names_range(table) if is_sorted else (0, table.num_rows)
        within = table.slice(start, end - start)
        needed = np.ones(end - start, bool)
        if self.lows is not None:
            needed &= to_int64(within["sequence"]) >= self._compute_lows(within["series"])
        elif self.names is not None and (len(self.names) > 1 or not is_sorted):
            requested = pa.array(self.names, pa.string())
            needed &= flag_names(within["series"], lambda names: pc.is_in(names, requested))
        if self.keys != ALL_KEYS:
            needed &= self.keys.contains(within["series"], to_int64(within["sequence"]))
        for name, (low, high) in self._bounds.items():
            if (low, high) != ANY_VALUE:
                values = to_int64(within[name])
                needed &= values >= low
                needed &= values <= high
        return start, needed

    def _compute_lows(self, series: pa.ChunkedArray) -> Int64Array:
        """Return the lowest needed sequence of the series of each row."""
        lows_of_chunks = [np.empty(0, np.int64)]
        for chunk in series.chunks:
            if not pa.types.is_dictionary(chunk.type):
                chunk = chunk.dictionary_encode()
            lows = self._lows_of(chunk.dictionary.cast(pa.string()))
            lows_of_chunks.append(lows[chunk.indices.to_numpy()])
        return np.concatenate(lows_of_chunks)

    def _lows_of(self, names: pa.Array) -> Int64Array:
        """Return the lowest needed sequence of each of the distinct `names`."""
        assert self.lows is not None
        lows = np.full(len(names), MAX_NUMBER, np.int64)
        positions = self._find_positions(names)
        is_needed = positions >= 0
        lows[is_needed] = self.lows[positions[is_needed]]
        return lows

    def _find_positions(self, names: pa.Array) -> Int64Array:
        """Return the position of each of the distinct `names` in `self.names`; -1 without one."""
        assert self.names is not None
        ends = pc.min_max(names).as_py()
        if ends["min"] is None:
            return np.full(len(names), -1)
        start, end = bisect_left(self.names, ends["min"]), bisect_right(self.names, ends["max"])
        if end - start <= NAMES_PER_PROBE * len(names):
            requested = pa.array(self.names[start:end], pa.string())
            return to_int64(pc.add(pc.index_in(names, requested), start).fill_null(-1))
        positions = []
        for name in names.to_pylist():
            position = bisect_left(self.names, name, start, end)
            is_requested = position < end and self.names[position] == name
            positions.append(position if is_requested else -1)
        return np.array(positions, np.int64)

    def _find_names_range(self, table: pa.Table) -> tuple[int, int]:
        """Return the range of rows from the first to the last of `names`."""
        if self.names is None:
            return 0, table.num_rows
        if not self.names:
            return 0, 0
        series = table["series"]
        start = bisect_left(series, self.names[0], key=str)
        return start, bisect_right(series, self.names[-1], start, key=str)


ALL_ROWS: Final = RowFilter()


def _overlaps(needed: tuple[int, int], low: int, high: int) -> bool:
    return high >= needed[0] and low <= needed[1]


ROWS_PER_FOLD: Final = 4096
"""Fold the rows of small files together, at least this many at once."""

SMALL_PIECE_ROWS: Final = 256
"""Read all columns of up to this many rows at once, in this thread."""

ROWS_PER_PIECE: Final = 100_000
"""Read about this many rows at once, before unneeded ones are dropped."""

MAX_RUNS_PER_GROUP: Final = 64
"""Find the series of a row group by its times if it has at most this many series."""

NARROW_PIECES: Final = 4
"""A piece with columns of numbers and times only has this many times the rows of others."""

JOBS_PER_THREAD: Final = 4
"""A long read has this many jobs for each thread, so that threads finish at about the same time."""

FEW_ROWS: Final = 4
"""If at most one of this many rows is needed, read texts as dictionaries, and only decode those."""

FEW_TEXTS: Final = 2_000
"""Up to this many texts are decoded sooner than the file is opened again for its dictionaries."""

CPU_COUNT: Final = os.cpu_count() or 1
MAX_REMOTE_READS: Final = 16
"""Read this many files of an object store at once."""

_From = TypeVar("_From")
_To = TypeVar("_To")


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read from files.

    Attributes:
        schema: the columns.
        row_filter: the conditions on the rows.
        series: all series of the store, sorted, if times never fall in any of them. Where times
            fall a new series begins, so most pieces get the column `series` without reading it.
            Empty: read it.
        piece_rows: read about this many rows at once; None: `ROWS_PER_PIECE`.
    """

    schema: pa.Schema
    row_filter: RowFilter = ALL_ROWS
    series: Sequence[str] = ()
    piece_rows: int | None = None


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Row groups of one file."""

    file: DataFile
    footer: Footer
    groups: list[int]


BASE_SCHEMA: Final = file_schema([])
"""The columns of every store; files without erased events lack `erasure`."""


def base_fields(names: Sequence[str]) -> pa.Schema:
    """Return the columns `names` of every store."""
    return select_fields(BASE_SCHEMA, names)


def read_rows(
    location: Location,
    files: Iterable[DataFile],
    schema: pa.Schema,
    row_filter: RowFilter,
    expression: pc.Expression | None = None,
) -> pa.Table:
    """Return the rows of `files` that pass `row_filter` and `expression`, in the order of files.

    `schema` has the columns of `expression`. Files with bounds outside the filter are not opened.

    Raises:
        UnusableStore: a file is missing or damaged; the error names it and its contents.
        OSError: an object store cannot be reached.
    """
    matching = [file for file in files if row_filter.may_match_file(file)]
    jobs = _map_jobs(location, matching, row_filter, ReadRequest(schema, row_filter), list)
    rows = assemble_pieces(chain.from_iterable(jobs), schema)
    return rows if expression is None else rows.filter(expression)


def scan_file(
    location: Location,
    file: DataFile,
    schema: pa.Schema,
    row_filter: RowFilter = ALL_ROWS,
    expression: pc.Expression | None = None,
) -> Iterator[pa.Table]:
    """Yield what `read_rows` returns for one file, piece by piece, in tables that are not empty."""
    if not row_filter.may_match_file(file):
        return
    request = ReadRequest(schema, row_filter)
    for piece in plan_pieces(file, load_footer(location, file), row_filter):
        for piece_rows in read_pieces(location, [piece], request, threads=True):
            rows = _assemble_table(piece_rows.fixed, [piece_rows], schema)
            matching = rows if expression is None else rows.filter(expression)
            if matching.num_rows:
                yield matching


def assemble_pieces(pieces_rows: Iterable["PieceRows"], schema: pa.Schema) -> pa.Table:
    """Return the rows of pieces, in their order, in the columns of `schema`."""
    alike = groupby(pieces_rows, key=lambda rows: rows.fixed)
    tables = [_assemble_table(fixed, list(pieces), schema) for fixed, pieces in alike]
    return pa.concat_tables(tables or [schema.empty_table()])


def fold_files(
    location: Location,
    files: Sequence[DataFile],
    request: ReadRequest,
    fold: Callable[[pa.Table], None],
) -> None:
    """Call `fold` with the rows of each piece that has any, and with those of small files together.

    The threads that read also fold, so memory holds a piece for each of them. Row groups are chosen
    by all of the filter, but rows may be outside its `times`.

    Args:
        location: the location of the store.
        files: the files.
        request: what to read; this function chooses the size of pieces. `series` is a dictionary.
        fold: gets rows; those of one file are in its order.

    Raises:
        UnusableStore, OSError: as `read_rows`.
    """
    schema = request.schema
    row_filter = replace(request.row_filter, times=ANY_VALUE)

    def fold_job(pieces_rows: Iterable[PieceRows]) -> None:
        small: list[PieceRows] = []
        count = 0
        for rows in pieces_rows:
            if rows.series is not None:
                other_columns = schema.remove(schema.get_field_index("series"))
                table = _assemble_table(rows.fixed, [rows], other_columns)
                fold(table.append_column("series", rows.series))
                continue
            small.append(rows)
            count += rows.rows
            if count >= ROWS_PER_FOLD:
                fold(assemble_pieces(small, schema))
                small = []
                count = 0
        if small:
            fold(assemble_pieces(small, schema))

    wide = any(not pa.types.is_primitive(field.type) for field in schema if field.name != "series")
    piece_request = replace(
        request,
        row_filter=row_filter,
        # By runs, all rows of a piece are read, so no condition may choose among them.
        series=() if row_filter.columns else request.series,
        piece_rows=ROWS_PER_PIECE * (1 if wide else NARROW_PIECES),
    )
    _map_jobs(location, files, request.row_filter, piece_request, fold_job)


def _map_jobs(
    location: Location,
    files: Sequence[DataFile],
    group_filter: RowFilter,
    request: ReadRequest,
    function: "Callable[[Iterable[PieceRows]], _To]",
) -> list[_To]:
    """Return `function` of the needed rows of the pieces of each job; several threads call it.

    `group_filter` chooses row groups, and the filter of `request` their rows.
    """
    width = CPU_COUNT if location.is_local else MAX_REMOTE_READS
    cold = any((location, file) not in FOOTER_CACHE for file in files)
    footers = map_parallel(lambda file: load_footer(location, file), files, width if cold else 1)
    pieces = [
        piece
        for file, footer in zip(files, footers, strict=True)
        for piece in plan_pieces(file, footer, group_filter, request.piece_rows)
    ]
    job_size = max(1, len(pieces) // (JOBS_PER_THREAD * width))
    # With several pieces the threads of `map_parallel` are busy, and Arrow's would only compete.
    threads = len(pieces) == 1
    return map_parallel(
        lambda job: function(read_pieces(location, job, request, threads=threads)),
        [pieces[start : start + job_size] for start in range(0, len(pieces), job_size)],
        width,
    )


def load_footer(location: Location, file: DataFile) -> Footer:
    """Return the footer of a file, from the cache if it is there; raise what `read_rows` does."""
    with explain_read_errors(location, file):
        return FOOTER_CACHE.get(location, file)


def plan_pieces(
    file: DataFile, footer: Footer, row_filter: RowFilter, piece_rows: int | None = None
) -> list[FilePiece]:
    """Return the row groups of `file` to read, in pieces of about `piece_rows` rows."""
    piece_rows = ROWS_PER_PIECE if piece_rows is None else piece_rows
    pieces: list[FilePiece] = []
    room = 0
    for group in row_filter.match_groups(footer.group_count, footer.bounds):
        rows = footer.group_rows[group]
        if rows > room:
            pieces.append(FilePiece(file, footer, []))
            room = piece_rows
        pieces[-1].groups.append(group)
        room -= rows
    return pieces


def map_parallel(function: Callable[[_From], _To], items: Sequence[_From], width: int) -> list[_To]:
    """Apply `function` to each of `items`, `width` at once."""
    width = min(width, len(items))
    if width < 2:
        return [function(item) for item in items]
    # Each call has its own pool, because a shared one would have no threads after a fork.
    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(function, items))


class PieceRows(NamedTuple):
    """The needed rows of a piece: `fixed` has the values of constant columns, `columns` the others.

    `series`, encoded by runs, is set if the column was not read.
    """

    fixed: dict[str, Any]
    columns: pa.Table
    rows: int
    series: pa.Array | None = None

    def slice(self, first: int, end: int) -> "PieceRows":
        """Return the rows from `first` to `end`, exclusive; `series` was read."""
        return PieceRows(self.fixed, self.columns.slice(first, end - first), end - first)


def read_pieces(
    location: Location, pieces: Sequence[FilePiece], request: ReadRequest, *, threads: bool = False
) -> Iterator[PieceRows]:
    """Yield the needed rows of some pieces; open a file once."""
    for _, pieces_of_file in groupby(pieces, key=lambda piece: piece.file.path):
        file_pieces = list(pieces_of_file)
        data, footer = file_pieces[0].file, file_pieces[0].footer
        with explain_read_errors(location, data), location.read(location.file(data.path)) as file:
            source = OpenFile(location, file, footer)
            for piece in file_pieces:
                by_runs = request.series and data.rows > ROWS_PER_FOLD
                rows = _read_by_runs(source, piece, request, threads=threads) if by_runs else None
                rows = rows or _read_piece(source, piece, request, threads=threads)
                if rows is not None:
                    yield rows


def _read_by_runs(
    source: "OpenFile", piece: FilePiece, request: ReadRequest, *, threads: bool
) -> PieceRows | None:
    """Return all rows of a piece without reading the column `series`; None if it must be read.

    The invariant: a row group is sorted by series, and inside a series times never fall, so at a
    fall a new series begins. The group's bounds and `series` name all series that it may have. If
    it has one fall fewer than names, each name begins at a fall. For names a, b, c, times 1 5 3 2
    give a a b c. Times 1 3 5 2 may be a b b c or a a b c: then read the column.
    """
    names_of_groups = _find_names_of_groups(piece, request.series)
    if names_of_groups is None:
        return None
    others = request.schema.remove(request.schema.get_field_index("series"))
    rows = _read_piece(source, piece, ReadRequest(others), threads=threads)
    if rows is None or "timestamp" not in rows.columns.column_names:
        return None
    us = to_int64(rows.columns["timestamp"])
    falls = np.flatnonzero(us[1:] < us[:-1]) + 1  # The rows that are earlier than the one before.
    run_starts: list[int] = []
    run_names: list[str] = []
    begin = 0
    for group, names in zip(piece.groups, names_of_groups, strict=True):
        end = begin + piece.footer.group_rows[group]
        # A fall from one row group to the next is not counted: `begin` starts a run anyway.
        first_fall, after_falls = np.searchsorted(falls, (begin + 1, end))
        starts = [begin, *falls[first_fall:after_falls].tolist()]
        if len(starts) != len(names):
            return None
        # A series may go on from the row group before.
        is_continued = int(run_names[-1:] == names[:1])
        run_starts += starts[is_continued:]
        run_names += names[is_continued:]
        begin = end
    run_ends = pa.array([*run_starts[1:], rows.rows], pa.int32())
    series = pa.RunEndEncodedArray.from_arrays(run_ends, pa.array(run_names))
    return rows._replace(series=series)


def _find_names_of_groups(piece: FilePiece, series: Sequence[str]) -> list[list[str]] | None:
    """Return the series that each row group may have; None if they are too many, or unknown."""
    if piece.file.is_foreign:
        return None
    bounds = piece.footer.bounds("series")
    names_of_groups = []
    for group in piece.groups:
        ends = bounds[group]
        if ends is None:
            return None
        names = list(series[bisect_left(series, ends[0]) : bisect_right(series, ends[1])])
        if not 0 < len(names) <= MAX_RUNS_PER_GROUP or (names[0], names[-1]) != ends:
            return None
        names_of_groups.append(names)
    return names_of_groups


def _read_piece(
    source: "OpenFile", piece: FilePiece, request: ReadRequest, *, threads: bool
) -> PieceRows | None:
    """Return the needed rows of a piece; None if it has none.

    First read the columns with conditions, in all row groups; `needed` flags each of their rows.
    Then read the others, in the `groups` with a needed row; `needed_of_groups` is `needed` without
    the rest. Both leave the same `count` rows, so the columns fit together.
    """
    schema = request.schema
    tested = request.row_filter.columns
    sizes = np.array([piece.footer.group_rows[group] for group in piece.groups])
    total = int(sizes.sum())
    # A second read, or another thread, takes longer than all columns of a few rows.
    is_small = total <= SMALL_PIECE_ROWS
    threads = threads and not is_small
    read_first = tested
    if is_small:
        fixed = _constant_columns(piece.footer, piece.groups, schema.names)
        read_first = [*tested, *(name for name in schema.names if name not in {*fixed, *tested})]
    encoded = {"series", *(field.name for field in schema if pa.types.is_dictionary(field.type))}
    columns = source.columns(piece.groups, read_first, encoded, threads=threads)
    needed = _flag_needed(columns, piece, request.row_filter) if tested else np.ones(total, bool)
    count = int(np.count_nonzero(needed))
    if not count:
        return None
    groups = piece.groups
    needed_of_groups = needed
    if count < total:
        groups, needed_of_groups = _select_groups(piece.groups, sizes, needed)
    fixed = _constant_columns(piece.footer, groups, schema.names)
    read_now = [name for name in schema.names if name not in {*columns, *fixed}]
    if count * FEW_ROWS < total and total > FEW_TEXTS:
        types = pa.string(), pa.binary()
        encoded.update(field.name for field in schema if field.type in types)
    kept = [name for name in columns if name in schema.names and name not in fixed]
    varying = {
        **_filter_columns({name: columns[name] for name in kept}, needed),
        **_filter_columns(
            source.columns(groups, read_now, encoded, threads=threads), needed_of_groups
        ),
    }
    return PieceRows(fixed, cast_columns(pa.table(varying), schema), count)


def _flag_needed(columns: dict[str, Any], piece: FilePiece, row_filter: RowFilter) -> BoolArray:
    """Return a flag for each row of a piece: True if it meets the conditions on `columns`."""
    table = pa.table(columns)
    start, flags = row_filter.match_rows(table, is_sorted=not piece.file.is_foreign)
    needed = np.zeros(table.num_rows, bool)
    needed[start : start + len(flags)] = flags
    return needed


def _select_groups(
    groups: Sequence[int], sizes: Int64Array, needed: BoolArray
) -> tuple[list[int], BoolArray]:
    """Return the `groups` with a needed row, and the flags of their rows; `sizes` are in rows."""
    ends = np.cumsum(sizes)
    is_needed = [
        bool(needed[end - size : end].any()) for size, end in zip(sizes, ends, strict=True)
    ]
    chosen = [group for group, is_there in zip(groups, is_needed, strict=True) if is_there]
    return chosen, needed if len(chosen) == len(groups) else needed[np.repeat(is_needed, sizes)]


def _filter_columns(columns: dict[str, Any], needed: BoolArray) -> dict[str, Any]:
    if not columns or needed.all():
        return columns
    flags = pa.array(needed)
    return {name: column.filter(flags) for name, column in columns.items()}


def _constant_columns(
    footer: Footer, groups: Sequence[int], names: Iterable[str]
) -> dict[str, Any]:
    """Return the values of the columns that are constant in all of `groups`."""
    fixed: dict[str, Any] = {}
    for name in names:
        if name not in footer.names:
            fixed[name] = None
        elif (value := footer.constant(groups, name)) is not None:
            (fixed[name],) = value
    return fixed


class OpenFile:
    """An open file, which reads columns of its row groups and verifies their checksums."""

    def __init__(self, location: Location, file: Any, footer: Footer) -> None:
        self._location = location
        self._file = file
        self.footer = footer
        self._readers: dict[tuple[str, ...], Any] = {}

    def _open_reader(self, encoded: tuple[str, ...]) -> Any:
        """Return the file, opened to read the columns `encoded` as dictionaries."""
        if encoded not in self._readers:
            self._readers[encoded] = pq.ParquetFile(
                self._file,
                metadata=self.footer.metadata,
                read_dictionary=list(encoded) or None,
                pre_buffer=not self._location.is_local,
                page_checksum_verification=self.footer.sums is None,
                coerce_int96_timestamp_unit="us",  # Nanoseconds would end in the year 2262.
            )
        return self._readers[encoded]

    def verify(self, groups: Iterable[int], names: Iterable[str]) -> None:
        """Compare columns of row groups with their checksums; raise as `columns` does."""
        for offset, size, checksum in self.footer.chunks(groups, names):
            if zlib.crc32(self._file.read_at(size, offset)) != checksum:
                raise pa.ArrowInvalid(
                    f"its {size} bytes from {offset} on are not what was written: the checksum is "
                    "another one"
                )

    def columns(
        self,
        groups: Sequence[int],
        names: Sequence[str],
        encoded: Collection[str] = (),
        *,
        threads: bool,
    ) -> dict[str, Any]:
        """Read columns of row groups, by name; `threads` lets Arrow use all cores.

        Text columns of `encoded` stay dictionaries where they are stored so.

        Raises:
            OSError, pa.ArrowException: they cannot be read, or are not as they were written.
        """
        if not names:
            return {}
        self.verify(groups, names)
        dictionaries = tuple(
            name
            for name in names
            if name in encoded and self.footer.has_dictionary(groups[0], name)
        )
        source = self._open_reader(dictionaries)
        table = source.read_row_groups(groups, columns=names, use_threads=threads)
        return {name: _in_microseconds(table[name]) for name in names}


def _in_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert times to microseconds; files of other tools may have another unit."""
    data_type = column.type
    if pa.types.is_timestamp(data_type) and data_type.unit != "us":
        return column.cast(pa.timestamp("us", data_type.tz))
    return column


def cast_columns(columns_read: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the columns that are in `schema` to its types; usually the file already has these."""
    names = [name for name in columns_read.column_names if name in schema.names]
    return pa.table(
        [_cast_column(columns_read[name], schema.field(name).type) for name in names], names
    )


def _cast_column(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    if column.type == data_type:
        return column
    if pa.types.is_dictionary(data_type):
        return column.dictionary_encode()
    return column.cast(data_type)


def _assemble_table(
    fixed: Mapping[str, Any], pieces: Sequence[PieceRows], schema: pa.Schema
) -> pa.Table:
    columns_read = pa.concat_tables([piece.columns for piece in pieces])
    rows = sum(piece.rows for piece in pieces)
    columns = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), rows)
        if field.name in fixed
        else columns_read[field.name]
        for field in schema
    ]
    return pa.table(columns, schema)
