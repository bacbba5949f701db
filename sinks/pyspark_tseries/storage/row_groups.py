"""Reads the needed rows of data files, from the row groups that may contain them.

The columns with conditions are read first. The others are read only if a row is needed.
"""

import functools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.model.arrays import BoolArray, Int64Array
from pyspark_tseries.storage.data_files import DataFile, explain_read_errors
from pyspark_tseries.storage.footer_cache import FOOTER_CACHE, Footer
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_filter import RowFilter

__all__ = ["FilePiece", "OpenFile", "plan_pieces", "read_files", "stream_file"]

ROWS_PER_PIECE: Final = 100_000
"""The rows that are read at once, about, before unneeded ones are dropped."""

JOBS_PER_THREAD: Final = 4
"""The parts of a long read that a thread takes, so that no thread waits long for the last one."""

CPU_COUNT: Final = os.cpu_count() or 1
MAX_REMOTE_READS: Final = 16
"""Files of an object store that are read at once."""

_From = TypeVar("_From")
_To = TypeVar("_To")


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Row groups of one file."""

    file: DataFile
    footer: Footer
    groups: list[int]


def read_files(
    location: Location, files: Sequence[DataFile], schema: pa.Schema, row_filter: RowFilter
) -> pa.Table:
    """The rows of `files` that pass `row_filter`, in the order of files.

    Args:
        location: of the store.
        files: which of its files.
        schema: the columns wanted; one that a file does not have is null.
        row_filter: the conditions on rows.

    Raises:
        UnusableStore: a file is missing or damaged; names it and its contents.
        OSError: an object store cannot be reached.
    """
    width = CPU_COUNT if location.is_local else MAX_REMOTE_READS
    cold = any((location, file) not in FOOTER_CACHE for file in files)
    known = _map_parallel(lambda file: _footer(location, file), files, width if cold else 1)
    pieces = [
        piece
        for file, footer in zip(files, known, strict=True)
        for piece in plan_pieces(file, footer, row_filter)
    ]
    alone = len(pieces) == 1
    found = _map_parallel(
        lambda job: _read_pieces(location, job, schema, row_filter, alone),
        _divide_pieces(pieces, width),
        width,
    )
    alike = groupby(chain.from_iterable(found), key=lambda part: part.fixed)
    tables = [_assemble(fixed, list(parts), schema) for fixed, parts in alike]
    return pa.concat_tables([schema.empty_table(), *tables])


def stream_file(
    location: Location, file: DataFile, schema: pa.Schema, row_filter: RowFilter
) -> Iterator[pa.Table]:
    """As `read_files`, for one file, piece by piece."""
    for piece in plan_pieces(file, _footer(location, file), row_filter):
        for found in _read_pieces(location, [piece], schema, row_filter, alone=True):
            yield _assemble(found.fixed, [found], schema)


def _footer(location: Location, file: DataFile) -> Footer:
    with explain_read_errors(location, file):
        return FOOTER_CACHE.get(location, file)


def plan_pieces(file: DataFile, footer: Footer, row_filter: RowFilter) -> list[FilePiece]:
    """The row groups of `file` to read, in pieces of limited size."""
    pieces: list[FilePiece] = []
    room = 0
    for group in row_filter.match_groups(footer.groups, footer.bounds):
        rows = footer.rows(group)
        if rows > room:
            pieces.append(FilePiece(file, footer, []))
            room = ROWS_PER_PIECE
        pieces[-1].groups.append(group)
        room -= rows
    return pieces


def _divide_pieces(pieces: Iterable[FilePiece], width: int) -> list[list[FilePiece]]:
    """`pieces`, in their order, as jobs for `width` threads; a job is about one file."""
    pieces = list(pieces)
    most = max(1, len(pieces) // (JOBS_PER_THREAD * width))
    jobs: list[list[FilePiece]] = []
    for _, of_file in groupby(pieces, key=lambda piece: piece.file.path):
        group = list(of_file)
        jobs += [group[at : at + most] for at in range(0, len(group), most)]
    return jobs


def _map_parallel(
    function: Callable[[_From], _To], items: Sequence[_From], width: int
) -> list[_To]:
    """Apply `function` to each of `items`, several at once."""
    width = min(width, len(items))
    if width < 2:
        return [function(item) for item in items]
    # Not a shared pool: after a fork it would have no threads.
    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(function, items))


class _PieceRows(NamedTuple):
    """The needed rows of a piece: constant columns by value, and the others."""

    fixed: dict[str, Any]
    columns: pa.Table
    rows: int


def _read_pieces(
    location: Location,
    pieces: Sequence[FilePiece],
    schema: pa.Schema,
    row_filter: RowFilter,
    alone: bool,
) -> list[_PieceRows]:
    """The needed rows of some pieces of one file, which is opened once for all of them."""
    first = pieces[0]
    with (
        explain_read_errors(location, first.file),
        location.read(location.file(first.file.path)) as file,
    ):
        source = OpenFile(location, file, first.footer)
        found = [_read_piece(source, piece, schema, row_filter, alone) for piece in pieces]
    return [rows for rows in found if rows is not None]


def _read_piece(
    source: "OpenFile", piece: FilePiece, schema: pa.Schema, row_filter: RowFilter, alone: bool
) -> _PieceRows | None:
    judged = source.columns(piece.groups, row_filter.columns, alone)
    sizes = np.array([piece.footer.rows(group) for group in piece.groups])
    needed = np.ones(int(sizes.sum()), bool)
    if judged:
        needed = _match_rows(judged, row_filter, is_sorted=not piece.file.is_foreign)
    count = int(np.count_nonzero(needed))
    if not count:
        return None
    groups, needed_there = piece.groups, needed
    if count < len(needed):
        groups, needed_there = _select_groups(piece.groups, sizes, needed)
    fixed = _constant_columns(piece.footer, groups, schema.names)
    rest = [name for name in schema.names if name not in judged and name not in fixed]
    columns = {
        **_filter_columns({name: judged[name] for name in judged if name in schema.names}, needed),
        **_filter_columns(source.columns(groups, rest, alone, encoded=True), needed_there),
    }
    return _PieceRows(fixed, _cast_columns(pa.table(columns), schema), count)


def _match_rows(judged: Mapping[str, Any], row_filter: RowFilter, *, is_sorted: bool) -> BoolArray:
    """A flag for each row: whether it is needed."""
    table = pa.table(judged)
    start, flags = row_filter.match_rows(table, is_sorted=is_sorted)
    if len(flags) == table.num_rows:
        return flags
    needed = np.zeros(table.num_rows, bool)
    needed[start : start + len(flags)] = flags
    return needed


def _select_groups(
    groups: Sequence[int], sizes: Int64Array, needed: BoolArray
) -> tuple[list[int], BoolArray]:
    """Those of `groups`, of `sizes` rows, that have a needed row, and the flags of their rows."""
    ends = np.cumsum(sizes)
    there = [bool(needed[end - size : end].any()) for size, end in zip(sizes, ends, strict=True)]
    kept = [group for group, is_there in zip(groups, there, strict=True) if is_there]
    return kept, needed if len(kept) == len(groups) else needed[np.repeat(there, sizes)]


def _filter_columns(columns: dict[str, Any], needed: BoolArray) -> dict[str, Any]:
    if not columns or needed.all():
        return columns
    flags = pa.array(needed)
    return {name: column.filter(flags) for name, column in columns.items()}


def _constant_columns(
    footer: Footer, groups: Sequence[int], names: Iterable[str]
) -> dict[str, Any]:
    """The columns that are constant in some row groups."""
    fixed: dict[str, Any] = {}
    for name in names:
        if name not in footer.names:
            fixed[name] = None
        elif (value := footer.constant(groups, name)) is not None:
            (fixed[name],) = value
    return fixed


class OpenFile:
    """A file that is open: columns of its row groups, as they were written.

    Args:
        location: of the store.
        file: the open file.
        footer: the file's.
    """

    def __init__(self, location: Location, file: Any, footer: Footer) -> None:
        self._file, self.footer = file, footer
        self._open = functools.partial(
            pq.ParquetFile,
            file,
            metadata=footer.metadata,
            pre_buffer=not location.is_local,
            page_checksum_verification=footer.sums is None,
            coerce_int96_timestamp_unit="us",  # As nanoseconds they would end in the year 2262.
        )
        self._parquet = self._open()

    @functools.cached_property
    def _encoded(self) -> Any:
        """The file with the names of series as they are stored, each once in a row group."""
        return self._open(read_dictionary=["series"])

    def columns(
        self, groups: Sequence[int], names: Sequence[str], alone: bool, encoded: bool = False
    ) -> dict[str, Any]:
        """Some columns of some row groups by name.

        Args:
            groups: the row groups.
            names: of the columns.
            alone: with all cores.
            encoded: `series` may be a dictionary, which pays where many rows are dropped.

        Raises:
            OSError, pa.ArrowException: they cannot be read, or are not as they were written.
        """
        if not names:
            return {}
        for at, size, wanted in self.footer.chunks(groups, names):
            if zlib.crc32(self._file.read_at(size, at)) != wanted:
                raise pa.ArrowInvalid(
                    f"its {size} bytes from {at} on are not what was written: the checksum is "
                    "another one"
                )
        encoded = encoded and "series" in names and self.footer.has_dictionary(groups[0], "series")
        source = self._encoded if encoded else self._parquet
        found = source.read_row_groups(groups, columns=names, use_threads=alone)
        return {name: _in_microseconds(found[name]) for name in names}


def _in_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as a store has them; those of another tool's file may count otherwise."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return column.cast(pa.timestamp("us", kind.tz))
    return column


def _cast_columns(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns that are in `schema`, as it has them; a file has them so as a rule."""
    names = [name for name in found.column_names if name in schema.names]
    kinds = [schema.field(name).type for name in names]
    columns = [
        found[name] if found[name].type == kind else found[name].cast(kind)
        for name, kind in zip(names, kinds, strict=True)
    ]
    return pa.table(columns, names)


def _assemble(fixed: Mapping[str, Any], parts: Sequence[_PieceRows], schema: pa.Schema) -> pa.Table:
    found = pa.concat_tables([part.columns for part in parts])
    rows = sum(part.rows for part in parts)
    columns = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), rows)
        if field.name in fixed
        else found[field.name]
        for field in schema
    ]
    return pa.table(columns, schema)
