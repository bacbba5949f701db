"""A task's output for a batch: few rows are only staged; many are sorted and written as events.

Staged files have new names and are not part of the store. The commit removes them; a crash leaves
unused files at worst.

The number and the time of a commit, and the last sequence of each series, are known only when the
commit is made. A task with many rows takes the *optimistic number*, from what the driver saw when
the batch began: it numbers its rows by that and writes them as a file of the store. If no other
commit came between, and no other task has rows of the same series, the commit publishes the file
unchanged; otherwise it rewrites the rows.
"""

import io
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.series_index import CommitMetadata, SeriesIndex
from pyspark_tseries.storage.data_files import WrittenFile
from pyspark_tseries.storage.head_files import last_index
from pyspark_tseries.storage.location import Location
from pyspark_tseries.write.event_writer import WriteResult, WriteRules, write_numbered, write_sorted
from pyspark_tseries.write.rows import EDIT_OF
from pyspark_tseries.write.spill import (
    SpillSorter,
    TempPaths,
    merge_sorted,
    read_chunk,
    reduce_chunks,
)

INLINE_BYTES: Final = 64 * 1024
"""Spark carries messages of up to this size faster than a file is written and read."""

_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows on their way to the commit: a file, inline as an Arrow stream, or in memory."""

    rows: int
    inline: bytes = b""
    path: str | None = None
    table: pa.Table | None = None


def stage(
    location: Location, batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: str
) -> StagedRows:
    """Stage a task's rows inline if they are few, otherwise in the file `path`, batch by batch."""
    rest = iter(batches)
    held: list[pa.RecordBatch] = []
    while sum(batch.nbytes for batch in held) <= INLINE_BYTES:
        batch = next(rest, None)
        if batch is None:
            buffer = io.BytesIO()
            return StagedRows(_write_stream(buffer, schema, held), buffer.getvalue())
        held.append(batch)
    try:
        with location.write(path) as file:
            return StagedRows(_write_stream(file, schema, itertools.chain(held, rest)), path=path)
    except BaseException:
        location.remove([path])
        raise


def _write_stream(sink: io.IOBase, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with pa.ipc.new_stream(sink, schema, options=_LZ4) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def read_staged(location: Location, staged: Iterable[StagedRows]) -> pa.Table:
    """The rows of all tasks, in the order given, as one chunk a column."""
    return pa.concat_tables([read_staged_task(location, one) for one in staged]).combine_chunks()


def read_staged_task(location: Location, staged: StagedRows) -> pa.Table:
    """The rows of one task."""
    if staged.table is not None:
        return staged.table
    if staged.path is None:
        return pa.ipc.open_stream(staged.inline).read_all()
    with location.read(staged.path) as file:
        return pa.ipc.open_stream(file).read_all()


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """The limits of memory of a task, in rows and bytes.

    Attributes:
        rows: a task with more rows writes events.
        size: a task with more bytes of rows writes events.
        memory: the bytes of rows that are sorted in memory at once.
    """

    rows: int = 50_000
    size: int = 16 * 1024 * 1024
    memory: int = 64 * 1024 * 1024


DEFAULT_LIMITS: Final = SpillLimits()


@dataclass(frozen=True, slots=True)
class OptimisticNumber:
    """The commit that a batch gets if no other writer commits before it.

    Attributes:
        head_id: the head before it; None before the first commit.
        commit: its number.
        commit_us: its time, not before the last commit's.
    """

    head_id: int | None
    commit: int
    commit_us: int

    @property
    def metadata(self) -> CommitMetadata:
        """The metadata that its events show."""
        return CommitMetadata(self.head_id, self.commit, self.commit_us)


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The result of a task, for the commit.

    Attributes:
        rows: the number of rows.
        size: their bytes.
        inline: all rows in the order of the input, if they are few.
        chunks: the appends, sorted; paths relative to the store.
        file: the only chunk, if it holds events numbered optimistically.
        edits: in the order of the input; None if there are none.
        series: the delta of the series in `file`; without a file their names.
        optimistic: the number that `file` relies on.
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
        """The full paths of its files, to remove once the batch is committed or given up."""
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
        location: of the store.
        batches: the rows, in the order of the input.
        schema: the columns of `RowPlan.staged`.
        optimistic: the number that the driver expects.
        author: of rows without one.
        unique_name: a unique name.
        limits: of memory.

    Raises:
        UpdateFailed: a timestamp is out of range.
    """
    rest = iter(batches)
    held: list[pa.RecordBatch] = []
    rows = size = 0
    names = TempPaths(location, unique_name)
    for batch in rest:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > limits.rows or size > limits.size:
            break
    else:
        inline = stage(location, held, schema, location.file(names.new_path()))
        return TaskOutput(
            rows, size, inline=inline, has_edits=any(split_edits(b)[1] is not None for b in held)
        )
    task = _LargeTask(location, names, schema, limits.memory)
    try:
        output = task.write(chain(held, rest), optimistic, author)
    except BaseException:
        names.discard()
        raise
    names.discard(but=output.paths(location))
    return output


def split_edits(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The appends and the edits; None if there are no edits."""
    column = rows[EDIT_OF.name]
    if column.null_count == len(column):
        return rows, None
    edit = column.is_valid()
    return rows.filter(pc.invert(edit)), rows.filter(edit)


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
            self.rows, self.size = self.rows + batch.num_rows, self.size + batch.nbytes
            appends, edits = split_edits(batch)
            sorter.add(appends)
            if edits is not None:
                self.edits.append(edits)
        index = _load_index(self.location, optimistic.head_id)
        rules = WriteRules(optimistic.metadata, author, "drop", NEVER_US)
        merged = None
        if index is not None:
            merged = self._write_from_memory(sorter, index, rules) or self._write_from_chunks(
                sorter, index, rules
            )
        if merged is not None and merged.file is not None:
            return self._make_output((merged.file.path,), merged.delta, merged.file, optimistic)
        chunks = sorter.spill()
        return self._make_output(tuple(chunks), pa.table({"series": sorter.series()}), None, None)

    def _write_from_memory(
        self, sorter: SpillSorter, index: SeriesIndex, rules: WriteRules
    ) -> WriteResult | None:
        """Write all rows from memory; None if they are too many, or some are late or untimed."""
        if sorter.chunks:
            return None
        rows = sorter.buffered()
        series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        if given.null_count or not rows.num_rows:
            return None
        events = rules.number(series, given, index)
        if events.counts.dropped:
            return None
        return write_numbered(self.location, self.names.new_path("parquet"), rows, events, rules)

    def _write_from_chunks(
        self, sorter: SpillSorter, index: SeriesIndex, rules: WriteRules
    ) -> WriteResult | None:
        """Write all rows from chunks; None if some are late or untimed."""
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
            self.rows, self.size, None, chunks, file, edits, staged, optimistic, edits is not None
        )

    def _stage(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> StagedRows:
        return stage(self.location, batches, schema, self.location.file(self.names.new_path()))


def _load_index(location: Location, head_id: int | None) -> SeriesIndex | None:
    """The index of the head `head_id`; None where its files were removed."""
    try:
        return last_index(location).load(head_id)
    except UnusableStore:
        return None
