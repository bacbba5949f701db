"""Scans of data files by columns and filters: a slice, a file, where series stand.

Needs no Delta: the files are those of a snapshot.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.columns import EVENT, ORIGINAL, layout
from pyspark_tseries.files import DataFile
from pyspark_tseries.places import Place
from pyspark_tseries.slices import Sample, Slice
from pyspark_tseries.standing import KEYS, longs, standing, together

__all__ = ["SCANNED", "sample", "scan", "scan_standing", "slice_rows"]

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
    paths = [file.path for file in data if part.touches(file.first, file.last)]
    if not paths:
        return schema.empty_table().select(list(columns))
    source = place.dataset(paths, schema)
    return source.to_table(columns=list(columns), filter=part.expression())


def scan(
    place: Place,
    file: DataFile,
    schema: pa.Schema,
    columns: Sequence[str],
    wanted: pc.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Some columns of a file's wanted rows, a part at a time."""
    source = place.dataset([file.path], schema)
    rows = source.to_batches(columns=list(columns), filter=wanted)
    return (batch for batch in rows if batch.num_rows)


def scan_standing(
    place: Place, data: Iterable[DataFile], horizon: int, wanted: pc.Expression | None = None
) -> tuple[pa.Table, int]:
    """Where series stand by their (wanted) events, and the newest commit's time, file by file."""
    whole, newest_us = [], 0
    for file in data:
        parts = []
        for batch in scan(place, file, SCANNED, (*KEYS, "commit_time"), wanted):
            parts.append(standing(pa.Table.from_batches([batch]), horizon))
            newest_us = max(newest_us, int(longs(batch["commit_time"]).max(initial=0)))
        whole.append(together(parts))
    return together(whole), newest_us
