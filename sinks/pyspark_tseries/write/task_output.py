"""Write a task's output for a batch: stage few rows; sort many and write them as events.

A task with many rows collects them up to a budget, sorts them and writes them as a *sorted chunk*;
`merge_sorted` merges chunks in bounded memory. Rows have the order of `numbering`: series,
timestamp, untimed rows last; equal rows keep the order of chunks, and of rows in a chunk. If no row
is late or untimed, the task writes all rows as one file of events, with the `OptimisticNumber`.

Staged files have new names and are not part of the store. They are removed after the commit; a
crash leaves unused files at worst.
"""

import io
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import NEVER_US, UNTIMED, Int64Array, Key, find_number_runs
from pyspark_tseries.model.commits import CommitMetadata
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage.data_files import WrittenFile, rows_for_bytes
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.snapshot import LZ4, last_index
from pyspark_tseries.write.numbering import (
    SeriesLookup,
    WriteResult,
    WriteRules,
    sort_rows,
    split_edits,
    write_numbered,
    write_sorted,
)
from pyspark_tseries.write.rows import EDIT_OF

MAX_BATCH_ROWS: Final = 10_000
"""Read this many rows of a chunk at once; fewer if they are large."""

MAX_MERGED_CHUNKS: Final = 64
"""Merge up to this many chunks at once; each gets this fraction of the memory for one batch."""


class TempPaths:
    """Unique paths in the staging directory."""

    def __init__(self, location: Location, unique_name: str) -> None:
        self._location = location
        self._unique_name = unique_name
        self._number = count()
        self._paths: list[str] = []

    def new_path(self, suffix: str = "arrow") -> str:
        """Return the next path, relative to the store."""
        path = f"_tseries/staging/{self._unique_name}-{next(self._number)}.{suffix}"
        self._paths.append(path)
        return path

    def discard(self, but: Iterable[str] = ()) -> None:
        """Remove existing files of all paths, except those with the full paths `but`."""
        full = {self._location.file(path) for path in self._paths}
        self._location.discard(full.difference(but))


@dataclass(frozen=True, slots=True)
class _ChunkStats:
    """A chunk's series, each one's earliest timestamp, and True if a row has no timestamp."""

    names: pa.Array
    min_us: Int64Array
    untimed: bool


class SpillSorter:
    """Sorts rows with the columns `RowPlan.staged`, without edits, into chunks."""

    def __init__(self, location: Location, temp_paths: TempPaths, budget: int) -> None:
        self._location = location
        self._temp_paths = temp_paths
        self._budget = budget
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
        """Return the rows not written yet, at least one, unsorted, in one Arrow chunk a column."""
        return pa.Table.from_batches(self._buffered).combine_chunks()

    def spill(self) -> list[str]:
        """Write the buffered rows as a chunk; return all chunks, in the order of the input."""
        if not any(batch.num_rows for batch in self._buffered):
            return self.chunks
        rows = self.buffered()
        self._buffered = []
        self._size = 0
        order, names, codes, us = sort_rows(*_sort_columns(rows))
        first_rows, _ = find_number_runs(codes)
        self._chunk_stats.append(_ChunkStats(names, us[first_rows], bool((us == UNTIMED).any())))
        tables = _split_rows(rows, order, self._budget)
        self.chunks.append(
            _write_chunk(self._location, self._temp_paths.new_path(), rows.schema, tables)
        )
        return self.chunks

    def is_on_time(self, index: SeriesLookup) -> bool:
        """Return whether all rows in chunks have a timestamp and none is late (semantics 17.1)."""
        return all(
            not chunk.untimed
            and not (chunk.min_us < index.lookup(chunk.names.to_pylist())["original_us"]).any()
            and chunk.min_us.min(initial=UNTIMED) >= index.cti_us
            for chunk in self._chunk_stats
        )

    def series(self) -> pa.Array:
        """Return the distinct series of the chunks."""
        return pa.chunked_array([chunk.names for chunk in self._chunk_stats], pa.string()).unique()


def _sort_columns(rows: pa.Table | pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Return series and timestamps of rows that have one chunk a column."""
    series, stamps = rows["series"], rows["timestamp"]
    return (series.chunk(0), stamps.chunk(0)) if isinstance(rows, pa.Table) else (series, stamps)


def _split_rows(rows: pa.Table, order: Int64Array, budget: int) -> Iterator[pa.Table]:
    step = rows_for_bytes(rows, budget // MAX_MERGED_CHUNKS, MAX_BATCH_ROWS)
    return (
        rows.take(pa.array(order[start : start + step])) for start in range(0, len(order), step)
    )


def _write_chunk(
    location: Location, path: str, schema: pa.Schema, tables: Iterable[pa.Table]
) -> str:
    with location.write(location.file(path)) as file:
        _write_stream(file, schema, chain.from_iterable(table.to_batches() for table in tables))
    return path


def read_chunk(location: Location, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a chunk, which may also be a file of events."""
    if not path.endswith(".parquet"):
        with location.read(location.file(path)) as file:
            yield from pa.ipc.open_stream(file)
        return
    stored = [field.name for field in schema if field.name != EDIT_OF.name]
    with (
        location.read(location.file(path)) as file,
        pq.ParquetFile(file, page_checksum_verification=True) as events,
    ):
        for batch in events.iter_batches(MAX_BATCH_ROWS, columns=stored, use_threads=False):
            columns = [
                batch[field.name].cast(field.type)
                if field.name in stored
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _ChunkCursor:
    """A position in a chunk; `batch` has the next rows, None at the chunk's end."""

    def __init__(self, chunk: Iterator[pa.RecordBatch]) -> None:
        self._chunk = chunk
        self._next()

    def _next(self) -> None:
        self.batch = next((batch for batch in self._chunk if batch.num_rows), None)
        if self.batch is not None:
            self._series, stamps = _sort_columns(self.batch)
            us = stamps.cast(pa.int64()).fill_null(UNTIMED)
            self._us = us.to_numpy(zero_copy_only=False)

    def _key(self, row: int) -> Key:
        return self._series[row].as_py(), int(self._us[row])

    def last(self) -> Key:
        """Return the key of the last row of the batch."""
        assert self.batch is not None
        return self._key(self.batch.num_rows - 1)

    def take_until(self, bound: Key, *, inclusive: bool) -> pa.RecordBatch:
        """Take the batch's rows before `bound`, and those equal to it if `inclusive`."""
        assert self.batch is not None
        bisect = bisect_right if inclusive else bisect_left
        end = bisect(range(self.batch.num_rows), bound, key=self._key)
        rows = self.batch.slice(0, end)
        if end == self.batch.num_rows:
            self._next()
        elif end:
            self.batch = self.batch.slice(end)
            self._series, self._us = self._series.slice(end), self._us[end:]
        return rows


def merge_sorted(chunks: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.Table]:
    """Yield the rows of all chunks as tables; no row belongs before an earlier table.

    A table is not sorted: it has the rows of each chunk in turn. `sort_rows` sorts them and keeps
    the order of equal ones. At most one batch of each chunk is in memory.
    """
    reading = [_ChunkCursor(chunk) for chunk in chunks]
    while True:
        open_chunks = [
            (chunk.last(), i) for i, chunk in enumerate(reading) if chunk.batch is not None
        ]
        if not open_chunks:
            return
        # After this batch, no row before `bound` can come. Equal keys of later chunks wait until
        # this chunk is past the key, so that equal rows keep the order of the chunks.
        bound, owner = min(open_chunks)
        batches = [reading[i].take_until(bound, inclusive=i <= owner) for _, i in open_chunks]
        yield pa.Table.from_batches([batch for batch in batches if batch.num_rows]).combine_chunks()


def reduce_chunks(
    location: Location, temp_paths: TempPaths, chunks: list[str], schema: pa.Schema, budget: int
) -> list[str]:
    """Merge chunks until at most MAX_MERGED_CHUNKS are left; keep the files of merged ones."""
    while len(chunks) > MAX_MERGED_CHUNKS:
        groups = [
            chunks[start : start + MAX_MERGED_CHUNKS]
            for start in range(0, len(chunks), MAX_MERGED_CHUNKS)
        ]
        chunks = [_merge_chunks(location, temp_paths, group, schema, budget) for group in groups]
    return chunks


def _merge_chunks(
    location: Location, temp_paths: TempPaths, chunks: list[str], schema: pa.Schema, budget: int
) -> str:
    if len(chunks) == 1:
        return chunks[0]
    tables = merge_sorted([read_chunk(location, chunk, schema) for chunk in chunks])
    sorted_tables = (
        table
        for rows in tables
        for table in _split_rows(rows, sort_rows(*_sort_columns(rows))[0], budget)
    )
    return _write_chunk(location, temp_paths.new_path(), schema, sorted_tables)


INLINE_BYTES: Final = 64 * 1024
"""Up to this size, Spark carries a message faster than a file can be written and read."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows on their way to the commit: inline as an Arrow stream, in a file, or in memory."""

    rows: int
    inline: bytes = b""
    path: str | None = None
    table: pa.Table | None = None


def stage(
    location: Location, batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: str
) -> StagedRows:
    """Stage a task's rows inline if they are few, otherwise in the file `path`, batch by batch."""
    unread = iter(batches)
    few_batches: list[pa.RecordBatch] = []
    while sum(batch.nbytes for batch in few_batches) <= INLINE_BYTES:
        batch = next(unread, None)
        if batch is None:
            buffer = io.BytesIO()
            return StagedRows(_write_stream(buffer, schema, few_batches), buffer.getvalue())
        few_batches.append(batch)
    try:
        with location.write(path) as file:
            return StagedRows(_write_stream(file, schema, chain(few_batches, unread)), path=path)
    except BaseException:
        location.discard([path])
        raise


def _write_stream(sink: io.IOBase, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with pa.ipc.new_stream(sink, schema, options=LZ4) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def read_staged(location: Location, staged: Iterable[StagedRows]) -> pa.Table:
    """Return the rows of all tasks, in the given order, in one chunk a column."""
    return pa.concat_tables([read_staged_task(location, task) for task in staged]).combine_chunks()


def read_staged_task(location: Location, staged: StagedRows) -> pa.Table:
    """Return the rows of one task."""
    if staged.table is not None:
        return staged.table
    if staged.path is None:
        return pa.ipc.open_stream(staged.inline).read_all()
    with location.read(staged.path) as file:
        return pa.ipc.open_stream(file).read_all()


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """The limits of a task's memory, in rows and bytes.

    Attributes:
        rows: a task with more rows writes events.
        size: a task with more bytes of rows writes events.
        memory: the most bytes of rows that a task sorts in memory at once.
    """

    rows: int = 50_000
    size: int = 16 * 1024 * 1024
    memory: int = 64 * 1024 * 1024


DEFAULT_LIMITS: Final = SpillLimits()


@dataclass(frozen=True, slots=True)
class OptimisticNumber:
    """The commit that a batch gets if no other client commits before it.

    The real number, time and last sequence of each series are known only when the commit is made.
    A task with many rows numbers them by this commit, from the driver's view when the batch began,
    and writes a file of events. If there was no other commit since, and no other task has rows of
    the same series, the commit publishes the file unchanged; otherwise it rewrites the rows.

    Attributes:
        head_id: the id of the head before it; None before the first commit.
        commit: the number of the commit.
        commit_us: the time of the commit, not before the last commit's.
    """

    head_id: int | None
    commit: int
    commit_us: int

    @property
    def metadata(self) -> CommitMetadata:
        """The metadata of the commit, as its events show it."""
        return CommitMetadata(self.head_id, self.commit, self.commit_us)


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The result of a task, for the commit.

    Attributes:
        rows: the number of rows.
        size: the size of the rows in bytes.
        inline: all rows in the order of the input, if they are few.
        chunks: the paths, relative to the store, of the sorted appends.
        file: the only chunk, if it has events with the optimistic number.
        edits: the edits in the order of the input; None if there are none.
        series: the index change of the series in `file`; without a file, the names of the series.
        optimistic: the optimistic number of `file`.
        has_edits: True if a row is an edit.
    """

    rows: int
    size: int
    inline: StagedRows | None = None
    chunks: tuple[str, ...] = ()
    file: WrittenFile | None = None
    edits: StagedRows | None = None
    series: StagedRows | None = None
    optimistic: OptimisticNumber | None = None
    has_edits: bool = False

    def paths(self, location: Location) -> Iterator[str]:
        """Yield the full paths of its files, to remove once the batch is committed or given up."""
        for staged in (self.inline, self.edits, self.series):
            if staged is not None and staged.path is not None:
                yield staged.path
        yield from (location.file(chunk) for chunk in self.chunks)


def write_task_output(
    location: Location,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    optimistic: OptimisticNumber,
    author: str,
    *,
    unique_name: str,
    limits: SpillLimits = DEFAULT_LIMITS,
) -> TaskOutput:
    """Write a task's rows for the commit, with at most `limits.memory` bytes of them in memory.

    Args:
        location: the location of the store.
        batches: the rows, in the order of the input.
        schema: the columns `RowPlan.staged`.
        optimistic: the number that the driver expects.
        author: the author of rows that name none.
        unique_name: a unique name for the task's files.
        limits: the limits of memory.

    Raises:
        UpdateFailed: a timestamp is out of range.
    """
    unread = iter(batches)
    few_batches: list[pa.RecordBatch] = []
    rows = size = 0
    names = TempPaths(location, unique_name)
    for batch in unread:
        few_batches.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows > limits.rows or size > limits.size:
            break
    else:
        inline = stage(location, few_batches, schema, location.file(names.new_path()))
        return TaskOutput(
            rows,
            size,
            inline=inline,
            has_edits=any(split_edits(b)[1] is not None for b in few_batches),
        )
    task = _LargeTask(location, names, schema, limits.memory)
    try:
        output = task.write(chain(few_batches, unread), optimistic, author)
    except BaseException:
        names.discard()
        raise
    names.discard(but=output.paths(location))
    return output


@dataclass
class _LargeTask:
    location: Location
    names: TempPaths
    schema: pa.Schema
    memory: int
    rows: int = 0
    size: int = 0
    edits: list[pa.RecordBatch] = field(default_factory=list)

    def write(
        self, batches: Iterable[pa.RecordBatch], optimistic: OptimisticNumber, author: str
    ) -> TaskOutput:
        sorter = SpillSorter(self.location, self.names, self.memory)
        for batch in batches:
            self.rows += batch.num_rows
            self.size += batch.nbytes
            appends, edits = split_edits(batch)
            sorter.add(appends)
            if edits is not None:
                self.edits.append(edits)
        index = _load_index(self.location, optimistic.head_id)
        # Only the commit knows what happens to late and untimed rows: with one of these, the task
        # leaves the numbering to it.
        rules = WriteRules(optimistic.metadata, author, "drop", NEVER_US)
        merged = None
        if index is not None:
            merged = self._write_from_memory(sorter, index, rules) or self._write_from_chunks(
                sorter, index, rules
            )
        if merged is not None and merged.file is not None:
            return self._make_output((merged.file.path,), merged.change, merged.file, optimistic)
        chunks = sorter.spill()
        return self._make_output(tuple(chunks), pa.table({"series": sorter.series()}), None, None)

    def _write_from_memory(
        self, sorter: SpillSorter, index: SeriesIndex, rules: WriteRules
    ) -> WriteResult | None:
        """Write all rows from memory; return None if some are in chunks, late or untimed."""
        if sorter.chunks:
            return None
        rows = sorter.buffered()
        series, stamps = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        if stamps.null_count or not rows.num_rows:
            return None
        events = rules.number(series, stamps, index)
        if events.counts.dropped:
            return None
        return write_numbered(self.location, self.names.new_path("parquet"), rows, events, rules)

    def _write_from_chunks(
        self, sorter: SpillSorter, index: SeriesIndex, rules: WriteRules
    ) -> WriteResult | None:
        """Write all rows from chunks; return None if some are late or untimed."""
        chunks = sorter.spill()
        if not chunks or not sorter.is_on_time(index):
            return None
        chunks = reduce_chunks(self.location, self.names, chunks, self.schema, self.memory)
        tables = merge_sorted([read_chunk(self.location, chunk, self.schema) for chunk in chunks])
        return write_sorted(self.location, self.names.new_path("parquet"), tables, index, rules)

    def _make_output(
        self,
        chunks: tuple[str, ...],
        series: pa.Table,
        file: WrittenFile | None,
        optimistic: OptimisticNumber | None,
    ) -> TaskOutput:
        edits = self._stage(self.edits, self.schema) if self.edits else None
        staged = self._stage(series.to_batches(), series.schema)
        return TaskOutput(
            rows=self.rows,
            size=self.size,
            inline=None,
            chunks=chunks,
            file=file,
            edits=edits,
            series=staged,
            optimistic=optimistic,
            has_edits=edits is not None,
        )

    def _stage(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> StagedRows:
        return stage(self.location, batches, schema, self.location.file(self.names.new_path()))


def _load_index(location: Location, head_id: int | None) -> SeriesIndex | None:
    """Return the index of the head `head_id`; None if its files were removed."""
    try:
        return last_index(location).load(head_id)
    except UnusableStore:
        return None
