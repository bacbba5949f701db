"""Rows on their way from a task to the commit: inline where they are few, else in a file.

Staged files lie under new names and are no part of the store; the commit removes them, and a crash
leaves at most files that nobody reads.
"""

import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pyspark_tseries.storage.location import Place

__all__ = ["Staged", "read_staged", "read_stream", "stage"]

INLINE_BYTES: Final = 64 * 1024
"""Spark carries messages of up to this size faster than a file is written and read."""

_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Staged:
    """A task's rows on their way to the commit: a file, or inline as an Arrow stream."""

    rows: int
    inline: bytes = b""
    path: str | None = None


def stage(place: Place, batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: str) -> Staged:
    """Writes a task's rows inline where they are few, else to `path`, holding few in memory."""
    rest = iter(batches)
    held: list[pa.RecordBatch] = []
    while sum(batch.nbytes for batch in held) <= INLINE_BYTES:
        batch = next(rest, None)
        if batch is None:
            buffer = io.BytesIO()
            return Staged(_write_stream(buffer, schema, held), buffer.getvalue())
        held.append(batch)
    try:
        with place.write(path) as file:
            return Staged(_write_stream(file, schema, itertools.chain(held, rest)), path=path)
    except BaseException:
        place.remove([path])
        raise


def _write_stream(sink: io.IOBase, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with pa.ipc.new_stream(sink, schema, options=_LZ4) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def read_staged(place: Place, staged: Iterable[Staged]) -> pa.Table:
    """The rows of all tasks, in the order given, as one chunk a column."""
    return pa.concat_tables([read_stream(place, one) for one in staged]).combine_chunks()


def read_stream(place: Place, staged: Staged) -> pa.Table:
    """The rows of one task."""
    if staged.path is None:
        return pa.ipc.open_stream(staged.inline).read_all()
    with place.read(staged.path) as file:
        return pa.ipc.open_stream(file).read_all()
