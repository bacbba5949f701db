"""The files of a store besides Delta's log: staged batches, heads, events.

Everything is written under a new name and is part of the store only when a commit names it, so a
crash leaves at most files that nobody reads.
"""

import contextlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_timestream.instants import format_instant
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.heads import Head, Note, merge, read_note
from pyspark_tseries.permissions import Policy
from pyspark_tseries.places import Place
from pyspark_tseries.retention import RetainedRange

__all__ = [
    "DataFile",
    "Snapshot",
    "Staged",
    "WrittenFile",
    "data_files",
    "head_chain",
    "head_path",
    "load_head",
    "read_head_note",
    "read_staged",
    "readable_notes",
    "rewrite_head",
    "run_path",
    "stage",
    "write_events",
    "write_head",
]

INLINE_BYTES: Final = 64 * 1024
"""Spark carries messages of up to this size faster than a file is written and read."""

ROWS_PER_GROUP: Final = 10_000
"""Small row groups let a reader of one series skip most of a file that holds them all."""

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
    return pa.concat_tables([_read_stream(place, one) for one in staged]).combine_chunks()


def _read_stream(place: Place, staged: Staged) -> pa.Table:
    if staged.path is None:
        return pa.ipc.open_stream(staged.inline).read_all()
    with place.read(staged.path) as file:
        return pa.ipc.open_stream(file).read_all()


def head_path(place: Place, head_id: int) -> str:
    """Where the head `head_id` lies."""
    return place.file("_tseries", "head", f"{head_id:016x}.arrow")


def write_head(place: Place, head_id: int, table: pa.Table) -> str:
    """Writes a head file; returns its path."""
    path = head_path(place, head_id)
    with place.write(path) as file, pa.ipc.new_file(file, table.schema, options=_LZ4) as writer:
        writer.write_table(table)
    return path


def rewrite_head(place: Place, head_id: int, table: pa.Table, own_id: int) -> None:
    """Writes a head file that others may be reading, or writing likewise; `own_id` is a name."""
    if place.local:
        os.replace(write_head(place, own_id, table), head_path(place, head_id))
    else:
        write_head(place, head_id, table)  # An object is replaced as a whole.


def read_head_note(place: Place, head_id: int) -> Note:
    """What the head file says besides its rows, without reading these."""
    return read_note(_read_head_schema(place, head_path(place, head_id)))


def head_chain(place: Place, head_id: int | None, since_us: int) -> Iterator[str]:
    """The paths of the head files of `head_id` and of all that were current since `since_us`.

    Raises:
        OSError: one cannot be read now, though it may be there.
    """
    while head_id is not None:
        path = head_path(place, head_id)
        try:
            note = read_note(_read_head_schema(place, path))
        except (FileNotFoundError, pa.ArrowInvalid):
            return  # Removed before: nothing older is there either.
        yield path
        head_id = note.parent if note.depth or note.commit_us >= since_us else None


def readable_notes(place: Place) -> list[Note]:
    """The notes of all head files that can be read, in no order."""
    notes = []
    heads = (path for path, _ in place.listed(place.file("_tseries", "head")))
    for path in heads:
        with contextlib.suppress(OSError, pa.ArrowInvalid, KeyError, ValueError, TypeError):
            notes.append(read_note(_read_head_schema(place, path)))
    return notes


def _read_head_schema(place: Place, path: str) -> pa.Schema:
    with place.read(path) as file:
        return pa.ipc.open_file(file).schema


def _read_head(place: Place, path: str) -> pa.Table:
    try:
        with place.read(path) as file:
            return pa.ipc.open_file(file).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise UnusableStore(
            f"the store's head file '{path}' cannot be read: {error}; accepted: a store copied "
            "whole, '_tseries' included; next step: copy it again, or restore that file"
        ) from error


def load_head(place: Place, head_id: int | None, known_id: int | None, known: Head) -> Head:
    """The head `head_id`, from files, or on top of `known` where that is in its chain.

    Args:
        place: where the store lies.
        head_id: None before the first commit.
        known_id: the id of `known`; None where `known` is the empty head.
        known: a head read before.
    """
    deltas: list[pa.Table] = []
    while head_id is not None and head_id != known_id:
        deltas.append(_read_head(place, head_path(place, head_id)))
        note = read_note(deltas[-1].schema)
        head_id = note.parent if note.depth else None
        known_id = known_id if note.depth else None
        known = known if note.depth else Head()
    head = known if head_id == known_id else Head()
    for delta in reversed(deltas):
        head = merge(head, delta)
    return head


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of events, sorted by (series, sequence).

    Attributes:
        path: relative to the store.
        size: in bytes.
        first: the first series in it.
        last: the last series in it, inclusive.
        kind: `event` or `edit`.
        rows: how many.
        least_sequence: the lowest sequence in it, of any series.
        most_sequence: the highest one.
        least_us: the earliest timestamp in it.
        most_us: the latest one.
        first_commit: its rows are of this commit or a later one.
        last_commit: its rows are of this commit or an earlier one.
    """

    path: str
    size: int
    first: str
    last: str
    kind: str
    rows: int
    least_sequence: int
    most_sequence: int
    least_us: int
    most_us: int
    first_commit: int
    last_commit: int

    @property
    def run(self) -> str:
        """The files that were written together have this in common."""
        return os.path.basename(self.path).split(".")[0].partition("_")[0]

    @property
    def merged(self) -> bool:
        """Whether compaction wrote it."""
        return "_" in os.path.basename(self.path)


def _commits(path: str) -> tuple[int, int]:
    first, _, rest = os.path.basename(path).partition("-")
    return int(first), int(rest.split("-")[0]) if "_" in rest else int(first)


def run_path(kind: str, commits: tuple[int, int], run: int, number: int) -> str:
    """The path of a file that compaction writes; its name sorts by the first commit.

    >>> run_path("event", (3, 70), 10, 0)
    'kind=event/0000000003-0000000070-000000000000000a_0000.parquet'
    """
    return f"kind={kind}/{commits[0]:010d}-{commits[1]:010d}-{run:016x}_{number:04d}.parquet"


def data_files(actions: pa.Table) -> list[DataFile]:
    """The files that Delta's flat add actions name, in the order of their commits."""
    ends = [actions[f"{end}.timestamp"].cast(pa.int64()) for end in ("min", "max")]
    names = (
        *("path", "size_bytes", "min.series", "max.series", "partition.kind", "num_records"),
        *("min.sequence", "max.sequence"),
    )
    columns = [*(actions[name] for name in names), *ends]
    rows: list[list[Any]] = [
        [*row, *_commits(row[0])]
        for row in zip(*(column.to_pylist() for column in columns), strict=True)
    ]
    return sorted(
        (DataFile(*row) for row in rows), key=lambda file: (file.path.split("/")[-1], file.path)
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store as it is after one commit.

    Attributes:
        place: where the store lies.
        files: the files of its events, in the order of their commits.
        head_id: names the head file; None before the first commit.
        note: the last commit, and the counts.
        retained: the retained range.
        values: the value columns.
        as_of: the last commit that counts, where files have later ones too; None: all count.
        policy: who may do what; None where everything is allowed.
    """

    place: Place
    files: list[DataFile]
    head_id: int | None
    note: Note
    retained: RetainedRange
    values: list[pa.Field]
    as_of: int | None = None
    policy: Policy | None = None

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.place.location


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A new file: its path relative to the store, its size in bytes, its Delta statistics."""

    path: str
    size: int
    statistics: str

    @property
    def kind(self) -> str:
        """`event` or `edit`, as its directory says."""
        return self.path.split("/")[0].removeprefix("kind=")


def write_events(
    place: Place, path: str, table: pa.Table, group_rows: int = ROWS_PER_GROUP
) -> WrittenFile:
    """Writes events to `path`, relative to the store, in row groups of `group_rows`.

    `table` is sorted by (series, sequence) and not empty.
    """
    full = place.file(path)
    if place.local:
        os.makedirs(os.path.dirname(full), exist_ok=True)
    deltas = dict.fromkeys(("sequence", "timestamp"), "DELTA_BINARY_PACKED")
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    encoding = deltas | dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
    pq.write_table(
        table,
        full,
        row_group_size=group_rows,
        compression="zstd",
        use_dictionary=[name for name in table.column_names if name not in encoding],
        column_encoding=encoding,
        # The types are Delta's; Arrow's own would bring the dictionary of `series` back.
        store_schema=False,
        filesystem=place.filesystem,
    )
    return WrittenFile(path, place.size(full), _statistics(table))


def _statistics(table: pa.Table) -> str:
    series, size = table["series"], table.num_rows
    sequence, stamp = (_bounds(table[name]) for name in ("sequence", "timestamp"))
    least, most = (
        {
            "series": series[row].as_py(),
            "sequence": sequence[end],
            "timestamp": format_instant(stamp[end]),
        }
        for end, row in ((0, 0), (1, size - 1))
    )
    nulls = dict.fromkeys(least, 0)
    return json.dumps(
        {"numRecords": size, "minValues": least, "maxValues": most, "nullCount": nulls}
    )


def _bounds(column: pa.ChunkedArray) -> tuple[int, int]:
    values = column.cast(pa.int64()).to_numpy()
    return int(values.min()), int(values.max())
