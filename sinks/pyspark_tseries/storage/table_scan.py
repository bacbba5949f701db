"""Scans of data files by columns and conditions: a slice, a file, where series stand.

Needs no Delta: the files are those of a snapshot.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.columns import EVENT, ORIGINAL, layout
from pyspark_tseries.model.series_state import KEYS, longs, standing, together
from pyspark_tseries.model.slices import Sample, Slice
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.row_filter import EVERY_ROW, Sieve
from pyspark_tseries.storage.row_groups import read, stream

__all__ = ["SCANNED", "rows_of", "sample", "scan", "scan_standing", "slice_rows"]

ROWS_PER_SAMPLE: Final = 1000

SCANNED: Final = pa.schema([*EVENT, *ORIGINAL, *list(layout([]))[-3:-1]])
"""The columns that every store has."""


def sample(keys: pa.Table, row_bytes: int) -> list[Sample]:
    """Every so many rows one, with the bytes that it stands for."""
    some = keys.take(np.arange(0, keys.num_rows, ROWS_PER_SAMPLE))
    sizes = np.full(some.num_rows, ROWS_PER_SAMPLE * row_bytes)
    if some.num_rows:
        sizes[-1] = (keys.num_rows - (some.num_rows - 1) * ROWS_PER_SAMPLE) * row_bytes
    columns = some["series"].to_pylist(), some["sequence"].to_pylist(), sizes.tolist()
    return list(zip(*columns, strict=True))


def slice_rows(
    place: Place, data: Iterable[DataFile], part: Slice, schema: pa.Schema, columns: Sequence[str]
) -> pa.Table:
    """The rows of a slice, in the order of files; columns that a file lacks are null."""
    return rows_of(place, data, schema, columns, Sieve(part=part))


def rows_of(
    place: Place,
    data: Iterable[DataFile],
    schema: pa.Schema,
    columns: Sequence[str],
    sieve: Sieve,
    wanted: pc.Expression | None = None,
) -> pa.Table:
    """Some columns of the rows that pass, in the order of files; what a file lacks is null.

    Args:
        place: where the store lies.
        data: files of it.
        schema: has `columns`, those of `sieve`, and those of `wanted`.
        columns: the names of the result's columns.
        sieve: tells what is needed, and what need not be read.
        wanted: another condition, on columns of the result.

    Raises:
        UnusableStore: a file is missing or broken.
    """
    touched = [file for file in data if sieve.part.touches(file.first, file.last)]
    found = read(place, touched, _part_of(schema, columns), sieve)
    return found if wanted is None else found.filter(wanted)


def scan(
    place: Place,
    file: DataFile,
    schema: pa.Schema,
    columns: Sequence[str],
    sieve: Sieve = EVERY_ROW,
    wanted: pc.Expression | None = None,
) -> Iterator[pa.Table]:
    """As `rows_of`, of one file, a part at a time; none is empty."""
    for rows in stream(place, file, _part_of(schema, columns), sieve):
        left = rows if wanted is None else rows.filter(wanted)
        if left.num_rows:
            yield left


def _part_of(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns])


def scan_standing(
    place: Place,
    data: Iterable[DataFile],
    horizon: int,
    sieve: Sieve = EVERY_ROW,
    wanted: pc.Expression | None = None,
) -> tuple[pa.Table, int]:
    """Where series stand by their events that pass, and the newest commit's time, file by file."""
    whole, newest_us = [], 0
    for file in data:
        parts = []
        for table in scan(place, file, SCANNED, (*KEYS, "commit_time"), sieve, wanted):
            parts.append(standing(table, horizon))
            newest_us = max(newest_us, int(longs(table["commit_time"]).max(initial=0)))
        whole.append(together(parts))
    return together(whole), newest_us
