"""Rows on their way from a task to the commit: inline if they are few, otherwise in a file.

Staged files have new names and are not part of the store. The commit removes them; a crash leaves
unused files at worst.
"""

import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pyspark_tseries.storage.location import Location

__all__ = ["StagedRows", "read_staged", "read_staged_task", "stage"]

INLINE_BYTES: Final = 64 * 1024
"""Spark carries messages of up to this size faster than a file is written and read."""

_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A task's rows on their way to the commit: a file, or inline as an Arrow stream."""

    rows: int
    inline: bytes = b""
    path: str | None = None


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
    if staged.path is None:
        return pa.ipc.open_stream(staged.inline).read_all()
    with location.read(staged.path) as file:
        return pa.ipc.open_stream(file).read_all()
