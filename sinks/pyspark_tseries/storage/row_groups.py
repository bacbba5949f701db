"""Reading the row groups of data files that a query may need, and of these only its rows.

The columns that tell whether a row is needed are read first; where none is, the others never are.
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

from pyspark_tseries.storage.data_files import DataFile, reading
from pyspark_tseries.storage.footer_cache import Footer, footers
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.row_filter import Sieve

__all__ = ["OpenFile", "Piece", "pieces_of", "read", "stream"]

ROWS_PER_PIECE: Final = 100_000
"""About how many rows are read at once, before what is not needed of them goes."""

CORES: Final = os.cpu_count() or 1
WAITING: Final = 16
"""How many files of an object store are read at once."""

_From = TypeVar("_From")
_To = TypeVar("_To")


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of one file."""

    file: DataFile
    footer: Footer
    groups: list[int]


def read(place: Place, files: Sequence[DataFile], schema: pa.Schema, sieve: Sieve) -> pa.Table:
    """The rows of `files` that pass `sieve`, in the order of files.

    Args:
        place: where the store lies.
        files: which of its files.
        schema: the columns wanted; one that a file does not have is null.
        sieve: tells what is needed.

    Raises:
        UnusableStore: a file is gone, or is not as it was written; says which, and what is in it.
        OSError: an object store cannot be reached.
    """
    width = CORES if place.local else WAITING
    cold = any((place, file) not in footers for file in files)
    known = _each(lambda file: _footer(place, file), files, width if cold else 1)
    pieces = [
        piece
        for file, footer in zip(files, known, strict=True)
        for piece in pieces_of(file, footer, sieve)
    ]
    alone = len(pieces) == 1
    found = _each(lambda piece: _read(place, piece, schema, sieve, alone), pieces, width)
    alike = groupby(filter(None, found), key=lambda part: part.fixed)
    tables = [_whole(fixed, list(parts), schema) for fixed, parts in alike]
    return pa.concat_tables([schema.empty_table(), *tables])


def stream(place: Place, file: DataFile, schema: pa.Schema, sieve: Sieve) -> Iterator[pa.Table]:
    """The same of one file, one piece after the other."""
    for piece in pieces_of(file, _footer(place, file), sieve):
        found = _read(place, piece, schema, sieve, alone=True)
        if found:
            yield _whole(found.fixed, [found], schema)


def _footer(place: Place, file: DataFile) -> Footer:
    with reading(place, file):
        return footers.of(place, file)


def pieces_of(file: DataFile, footer: Footer, sieve: Sieve) -> list[Piece]:
    """What is to be read of `file`, cut so that a piece is not large."""
    pieces: list[Piece] = []
    room = 0
    for group in sieve.groups(footer.groups, footer.ends):
        rows = footer.rows(group)
        if rows > room:
            pieces.append(Piece(file, footer, []))
            room = ROWS_PER_PIECE
        pieces[-1].groups.append(group)
        room -= rows
    return pieces


def _each(function: Callable[[_From], _To], items: Sequence[_From], width: int) -> list[_To]:
    """`function` of each of `items`, several at once."""
    width = min(width, len(items))
    if width < 2:
        return [function(item) for item in items]
    # A pool of its own: one that is kept would be without its threads after a fork.
    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(function, items))


class _Found(NamedTuple):
    """What is needed of a piece: some columns, and the others, which have one value throughout."""

    fixed: dict[str, Any]
    columns: pa.Table
    rows: int


def _read(
    place: Place, piece: Piece, schema: pa.Schema, sieve: Sieve, alone: bool
) -> _Found | None:
    groups = piece.groups
    with reading(place, piece.file), place.read(place.file(piece.file.path)) as file:
        source = OpenFile(place, file, piece.footer)
        judged = source.columns(groups, sieve.columns, alone)
        rows = sum(map(piece.footer.rows, groups))
        start, needed = 0, np.ones(rows, bool)
        if judged:
            start, needed = sieve.rows(pa.table(judged), is_sorted=not piece.file.is_foreign)
        if not needed.any():
            return None
        fixed = _fixed(piece, schema.names)
        rest = [name for name in schema.names if name not in judged and name not in fixed]
        found = pa.table(judged | source.columns(groups, rest, alone))
    if found.num_columns and (len(needed) < rows or not needed.all()):
        found = found.slice(start, len(needed)).filter(pa.array(needed))
    return _Found(fixed, _cast(found, schema), int(needed.sum()))


def _fixed(piece: Piece, names: Iterable[str]) -> dict[str, Any]:
    """The columns that have one value throughout the piece."""
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
        place: where the store lies.
        file: as the place opens it.
        footer: the file's.
    """

    def __init__(self, place: Place, file: Any, footer: Footer) -> None:
        self._file, self.footer = file, footer
        self._parquet = pq.ParquetFile(
            file,
            metadata=footer.metadata,
            pre_buffer=not place.local,
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


def _cast(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns that are in `schema`, as it has them; a file has them so as a rule."""
    names = [name for name in found.column_names if name in schema.names]
    kinds = [schema.field(name).type for name in names]
    columns = [
        found[name] if found[name].type == kind else found[name].cast(kind)
        for name, kind in zip(names, kinds, strict=True)
    ]
    return pa.table(columns, names)


def _whole(fixed: Mapping[str, Any], parts: Sequence[_Found], schema: pa.Schema) -> pa.Table:
    found = pa.concat_tables([part.columns for part in parts])
    rows = sum(part.rows for part in parts)
    columns = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), rows)
        if field.name in fixed
        else found[field.name]
        for field in schema
    ]
    return pa.table(columns, schema)
