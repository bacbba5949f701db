"""Reading the row groups of data files that a query may need, and of these only its rows.

The columns that tell whether a row is needed are read first; where none is, the others never are.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.files import DataFile
from pyspark_tseries.footers import Footer, footers
from pyspark_tseries.places import Place
from pyspark_tseries.sieve import Sieve

__all__ = ["Piece", "pieces_of", "read", "stream"]

ROWS_PER_PIECE: Final = 100_000
"""About how many rows are read at once, before what is not needed of them goes."""

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
        OSError: a file cannot be read; FileNotFoundError: it is gone.
    """
    width = os.cpu_count() or 1 if place.local else WAITING
    cold = any((place, file) not in footers for file in files)
    known = _each(lambda file: footers.of(place, file), files, width if cold else 1)
    pieces = [
        piece
        for file, footer in zip(files, known, strict=True)
        for piece in pieces_of(file, footer, sieve)
    ]
    alone = len(pieces) == 1
    tables = _each(lambda piece: _read(place, piece, schema, sieve, alone), pieces, width)
    return pa.concat_tables([schema.empty_table(), *tables])


def stream(place: Place, file: DataFile, schema: pa.Schema, sieve: Sieve) -> Iterator[pa.Table]:
    """The same of one file, one piece after the other."""
    for piece in pieces_of(file, footers.of(place, file), sieve):
        yield _read(place, piece, schema, sieve, alone=True)


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


def _read(place: Place, piece: Piece, schema: pa.Schema, sieve: Sieve, alone: bool) -> pa.Table:
    metadata, rows = piece.footer.metadata, sum(map(piece.footer.rows, piece.groups))
    with place.read(place.file(piece.file.path)) as file:
        source = pq.ParquetFile(file, metadata=metadata, pre_buffer=not place.local)
        judged = _columns(source, piece, sieve.columns, alone)
        start, needed = sieve.rows(pa.table(judged)) if judged else (0, np.ones(rows, bool))
        if not needed.any():
            return schema.empty_table()
        fixed = {
            field.name: value[0]
            for field in schema
            if (value := _constant(piece, field.name)) is not None
        }
        rest = [name for name in schema.names if name not in judged and name not in fixed]
        found = pa.table(judged | _columns(source, piece, rest, alone))
    if not (len(needed) == rows and needed.all()):
        found = found.slice(start, len(needed)).filter(pa.array(needed))
        rows = found.num_rows
    columns = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), rows)
        if field.name in fixed
        else _as(found[field.name], field)
        for field in schema
    ]
    return pa.table(columns, schema)


def _constant(piece: Piece, name: str) -> tuple[Any] | None:
    if name not in piece.footer.names:
        return (None,)
    return piece.footer.constant(piece.groups, name)


def _columns(source: Any, piece: Piece, names: Sequence[str], alone: bool) -> dict[str, Any]:
    if not names:
        return {}
    found = source.read_row_groups(piece.groups, columns=names, use_threads=alone)
    return {name: found[name] for name in names}


def _as(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    return column if column.type == field.type else column.cast(field.type)
