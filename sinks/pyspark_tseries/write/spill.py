"""External sorting: a batch of any size in the order of its events, in bounded memory.

Rows are gathered up to a budget, sorted, and written as a *sorted chunk*; `merge_sorted` merges
chunks. The order is that of `numbering`: series, timestamp, untimed rows last; equal rows keep the
order of the chunks, and within a chunk that of its rows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.model.arrays import UNTIMED, Int64Array
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.parquet import rows_for_bytes
from pyspark_tseries.write.numbering import SeriesLookup, sort_rows
from pyspark_tseries.write.rows import EDIT_OF

MAX_PART_ROWS: Final = 10_000
"""The rows of a chunk that are read at once; fewer if they are large."""

MAX_MERGED_CHUNKS: Final = 64
"""The chunks merged at once; each has this fraction of the memory budget for its current part."""

Key = tuple[str, int]


class TempPaths:
    """Unique paths in the staging directory."""

    def __init__(self, location: Location, unique_name: str) -> None:
        self._location, self._unique_name, self._number = location, unique_name, count()
        self._paths: list[str] = []

    def new_path(self, kind: str = "arrow") -> str:
        """The next path, relative to the store."""
        path = f"_tseries/staging/{self._unique_name}-{next(self._number)}.{kind}"
        self._paths.append(path)
        return path

    def discard(self, but: Iterable[str] = ()) -> None:
        """Remove the files of all paths, as far as there are any, `but` for some full paths."""
        full = {self._location.file(path) for path in self._paths}
        self._location.remove(full.difference(but))


@dataclass(frozen=True, slots=True)
class _ChunkStats:
    """A chunk's series, the earliest timestamp of each, and whether a row lacks a timestamp."""

    names: pa.Array
    min_us: Int64Array
    untimed: bool


class SpillSorter:
    """Sorts rows, which are columns of `RowPlan.staged` without edits, into chunks."""

    def __init__(self, location: Location, temp_paths: TempPaths, budget: int) -> None:
        self._location, self._temp_paths, self._budget = location, temp_paths, budget
        self._buffered: list[pa.RecordBatch] = []
        self._size = 0
        self._chunk_stats: list[_ChunkStats] = []
        self.chunks: list[str] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows."""
        if rows.num_rows and self._size + rows.nbytes > self._budget:
            self.spill()
        self._buffered.append(rows)
        self._size += rows.nbytes

    def buffered(self) -> pa.Table:
        """The rows that are not written yet, at least one, unsorted, a chunk of Arrow a column."""
        return pa.Table.from_batches(self._buffered).combine_chunks()

    def spill(self) -> list[str]:
        """Write the buffered rows as a chunk; return all chunks, in the order of the input."""
        if not any(batch.num_rows for batch in self._buffered):
            return self.chunks
        rows = self.buffered()
        self._buffered, self._size = [], 0
        order, names, codes, us = sort_rows(*_sort_columns(rows))
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        self._chunk_stats.append(_ChunkStats(names, us[first], bool((us == UNTIMED).any())))
        parts = _split_parts(rows, order, self._budget)
        self.chunks.append(
            _write_chunk(self._location, self._temp_paths.new_path(), rows.schema, parts)
        )
        return self.chunks

    def is_on_time(self, index: SeriesLookup) -> bool:
        """True if every row of the chunks has a timestamp and none is late (semantics 17.1)."""
        return all(
            not chunk.untimed
            and not (chunk.min_us < index.lookup(chunk.names.to_pylist())["original_us"]).any()
            and chunk.min_us.min(initial=UNTIMED) >= index.cti_us
            for chunk in self._chunk_stats
        )

    def series(self) -> pa.Array:
        """The distinct series of the chunks."""
        return pa.chunked_array([chunk.names for chunk in self._chunk_stats], pa.string()).unique()


def _sort_columns(rows: pa.Table | pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Series and timestamps of rows that are one chunk a column."""
    series, given = rows["series"], rows["timestamp"]
    return (series.chunk(0), given.chunk(0)) if isinstance(rows, pa.Table) else (series, given)


def _split_parts(rows: pa.Table, order: Int64Array, budget: int) -> Iterator[pa.Table]:
    step = rows_for_bytes(rows, budget // MAX_MERGED_CHUNKS, MAX_PART_ROWS)
    return (rows.take(pa.array(order[at : at + step])) for at in range(0, len(order), step))


def _write_chunk(
    location: Location, path: str, schema: pa.Schema, parts: Iterable[pa.Table]
) -> str:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        location.write(location.file(path)) as file,
        pa.ipc.new_stream(file, schema, options=options) as writer,
    ):
        for part in parts:
            writer.write_table(part)
    return path


def read_chunk(location: Location, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A chunk a part at a time; a file of events is one as well."""
    if not path.endswith(".parquet"):
        with location.read(location.file(path)) as file:
            yield from pa.ipc.open_stream(file)
        return
    stored = [field.name for field in schema if field.name != EDIT_OF.name]
    with (
        location.read(location.file(path)) as file,
        pq.ParquetFile(file, page_checksum_verification=True) as events,
    ):
        for part in events.iter_batches(MAX_PART_ROWS, columns=stored, use_threads=False):
            columns = [
                part[field.name].cast(field.type)
                if field.name in stored
                else pa.nulls(part.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _ChunkCursor:
    """A chunk being merged; `part` has the next rows, None at the chunk's end."""

    def __init__(self, chunk: Iterator[pa.RecordBatch]) -> None:
        self._chunk = chunk
        self._next()

    def _next(self) -> None:
        self.part = next((part for part in self._chunk if part.num_rows), None)
        if self.part is not None:
            self._series, given = _sort_columns(self.part)
            us = given.cast(pa.int64()).fill_null(UNTIMED)
            self._us = us.to_numpy(zero_copy_only=False)

    def _key(self, row: int) -> Key:
        return self._series[row].as_py(), int(self._us[row])

    def last(self) -> Key:
        """The key of the last row of the part."""
        assert self.part is not None
        return self._key(self.part.num_rows - 1)

    def take_until(self, bound: Key, *, inclusive: bool) -> pa.RecordBatch:
        """Take the part's rows before `bound`, or up to it."""
        assert self.part is not None
        bisect = bisect_right if inclusive else bisect_left
        end = bisect(range(self.part.num_rows), bound, key=self._key)
        taken = self.part.slice(0, end)
        if end == self.part.num_rows:
            self._next()
        elif end:
            self.part = self.part.slice(end)
            self._series, self._us = self._series.slice(end), self._us[end:]
        return taken


def merge_sorted(chunks: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.Table]:
    """The rows of all chunks, as tables in rising order: no row belongs before an earlier table.

    Within a table the rows are chunk after chunk; `sort_rows` sorts them and keeps the order of
    equal ones. Memory: one part of each chunk.
    """
    reading = [_ChunkCursor(chunk) for chunk in chunks]
    while True:
        there = [(chunk.last(), at) for at, chunk in enumerate(reading) if chunk.part is not None]
        if not there:
            return
        # No row before this key is still to come. Equal keys of later chunks wait until this one is
        # past the key, so that equal rows keep the order of the chunks.
        bound, whose = min(there)
        parts = [reading[at].take_until(bound, inclusive=at <= whose) for _, at in there]
        yield pa.Table.from_batches([part for part in parts if part.num_rows]).combine_chunks()


def reduce_chunks(
    location: Location, temp_paths: TempPaths, chunks: list[str], schema: pa.Schema, budget: int
) -> list[str]:
    """Merge chunks until at most MAX_MERGED_CHUNKS remain; remove none."""
    while len(chunks) > MAX_MERGED_CHUNKS:
        groups = [
            chunks[at : at + MAX_MERGED_CHUNKS] for at in range(0, len(chunks), MAX_MERGED_CHUNKS)
        ]
        chunks = [_merge_chunks(location, temp_paths, group, schema, budget) for group in groups]
    return chunks


def _merge_chunks(
    location: Location, temp_paths: TempPaths, chunks: list[str], schema: pa.Schema, budget: int
) -> str:
    if len(chunks) == 1:
        return chunks[0]
    tables = merge_sorted([read_chunk(location, chunk, schema) for chunk in chunks])
    parts = (
        part
        for rows in tables
        for part in _split_parts(rows, sort_rows(*_sort_columns(rows))[0], budget)
    )
    return _write_chunk(location, temp_paths.new_path(), schema, parts)
