"""Scans of data files by columns and conditions: a slice, a file, the state of series.

Needs no Delta: the files are those of a snapshot.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.columns import file_schema
from pyspark_tseries.model.series_state import STATE_COLUMNS, combine_states, compute_state
from pyspark_tseries.model.slices import Sample, Slice
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_filter import ALL_ROWS, RowFilter
from pyspark_tseries.storage.row_groups import read_files, stream_file

__all__ = ["BASE_SCHEMA", "read_rows", "read_slice", "sample_sizes", "scan_file", "scan_state"]

ROWS_PER_SAMPLE: Final = 1000

BASE_SCHEMA: Final = file_schema([])
"""The columns that every store has; files without erased events lack `erasure`."""


def sample_sizes(keys: pa.Table, row_bytes: int) -> list[Sample]:
    """One of every ROWS_PER_SAMPLE rows, with the bytes that it represents."""
    some = keys.take(np.arange(0, keys.num_rows, ROWS_PER_SAMPLE))
    sizes = np.full(some.num_rows, ROWS_PER_SAMPLE * row_bytes)
    if some.num_rows:
        sizes[-1] = (keys.num_rows - (some.num_rows - 1) * ROWS_PER_SAMPLE) * row_bytes
    columns = some["series"].to_pylist(), some["sequence"].to_pylist(), sizes.tolist()
    return list(zip(*columns, strict=True))


def read_slice(
    location: Location,
    data: Iterable[DataFile],
    part: Slice,
    schema: pa.Schema,
    columns: Sequence[str],
) -> pa.Table:
    """The rows of a slice, in the order of files; columns that a file lacks are null."""
    return read_rows(location, data, schema, columns, RowFilter(part=part))


def read_rows(
    location: Location,
    data: Iterable[DataFile],
    schema: pa.Schema,
    columns: Sequence[str],
    row_filter: RowFilter,
    wanted: pc.Expression | None = None,
) -> pa.Table:
    """Some columns of the rows that pass, in the order of files; missing columns are null.

    Args:
        location: of the store.
        data: files of it.
        schema: has `columns`, those of `row_filter`, and those of `wanted`.
        columns: the names of the result's columns.
        row_filter: the conditions on rows.
        wanted: a further condition, on columns of the result.

    Raises:
        UnusableStore: a file is missing or broken.
    """
    touched = [file for file in data if row_filter.part.overlaps(file.first, file.last)]
    found = read_files(location, touched, _select_fields(schema, columns), row_filter)
    return found if wanted is None else found.filter(wanted)


def scan_file(
    location: Location,
    file: DataFile,
    schema: pa.Schema,
    columns: Sequence[str],
    row_filter: RowFilter = ALL_ROWS,
    wanted: pc.Expression | None = None,
) -> Iterator[pa.Table]:
    """As `read_rows`, of one file, a part at a time; none is empty."""
    for rows in stream_file(location, file, _select_fields(schema, columns), row_filter):
        left = rows if wanted is None else rows.filter(wanted)
        if left.num_rows:
            yield left


def _select_fields(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns])


def scan_state(
    location: Location,
    data: Iterable[DataFile],
    horizon: int,
    row_filter: RowFilter = ALL_ROWS,
    wanted: pc.Expression | None = None,
) -> tuple[pa.Table, int]:
    """The state of series from the events that pass, and the time of the newest commit."""
    whole, newest_us = [], 0
    for file in data:
        parts = []
        for table in scan_file(location, file, BASE_SCHEMA, STATE_COLUMNS, row_filter, wanted):
            parts.append(compute_state(table, horizon))
            newest_us = max(newest_us, int(to_int64(table["commit_time"]).max(initial=0)))
        whole.append(combine_states(parts))
    return combine_states(whole), newest_us
