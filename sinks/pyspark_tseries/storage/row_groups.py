"""Reads the needed rows of data files, from the row groups that may contain them.

The columns with conditions are read first. The others are read only if a row is needed.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.storage.data_files import DataFile, explain_read_errors
from pyspark_tseries.storage.footer_cache import FOOTER_CACHE, Footer
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_filter import RowFilter

__all__ = ["FilePiece", "OpenFile", "plan_pieces", "read_files", "stream_file"]

ROWS_PER_PIECE: Final = 100_000
"""The rows that are read at once, about, before unneeded ones are dropped."""

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
        lambda piece: _read_piece(location, piece, schema, row_filter, alone), pieces, width
    )
    alike = groupby(filter(None, found), key=lambda part: part.fixed)
    tables = [_assemble(fixed, list(parts), schema) for fixed, parts in alike]
    return pa.concat_tables([schema.empty_table(), *tables])


def stream_file(
    location: Location, file: DataFile, schema: pa.Schema, row_filter: RowFilter
) -> Iterator[pa.Table]:
    """As `read_files`, for one file, piece by piece."""
    for piece in plan_pieces(file, _footer(location, file), row_filter):
        found = _read_piece(location, piece, schema, row_filter, alone=True)
        if found:
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


def _read_piece(
    location: Location, piece: FilePiece, schema: pa.Schema, row_filter: RowFilter, alone: bool
) -> _PieceRows | None:
    groups = piece.groups
    with (
        explain_read_errors(location, piece.file),
        location.read(location.file(piece.file.path)) as file,
    ):
        source = OpenFile(location, file, piece.footer)
        judged = source.columns(groups, row_filter.columns, alone)
        rows = sum(map(piece.footer.rows, groups))
        start, needed = 0, np.ones(rows, bool)
        if judged:
            start, needed = row_filter.match_rows(
                pa.table(judged), is_sorted=not piece.file.is_foreign
            )
        if not needed.any():
            return None
        fixed = _constant_columns(piece, schema.names)
        rest = [name for name in schema.names if name not in judged and name not in fixed]
        found = pa.table(judged | source.columns(groups, rest, alone))
    if found.num_columns and (len(needed) < rows or not needed.all()):
        found = found.slice(start, len(needed)).filter(pa.array(needed))
    return _PieceRows(fixed, _cast_columns(found, schema), int(needed.sum()))


def _constant_columns(piece: FilePiece, names: Iterable[str]) -> dict[str, Any]:
    """The columns that are constant in the piece."""
    fixed: dict[str, Any] = {}
    for name in names:
        if name not in piece.footer.names:
            fixed[name] = None
        elif (value := piece.footer.constant(piece.groups, name)) is not None:
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
        self._parquet = pq.ParquetFile(
            file,
            metadata=footer.metadata,
            pre_buffer=not location.is_local,
            page_checksum_verification=footer.sums is None,
            coerce_int96_timestamp_unit="us",  # As nanoseconds they would end in the year 2262.
        )

    def columns(self, groups: Sequence[int], names: Sequence[str], alone: bool) -> dict[str, Any]:
        """Some columns of some row groups by name; `alone`: with all cores.

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
        found = self._parquet.read_row_groups(groups, columns=names, use_threads=alone)
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
