"""Write and read head files, each with a change of the series index (`model.series_index`).

A head counts once a commit names it, so a crash leaves unused files at worst. Each head names its
parent. `LastIndex` keeps the last loaded index, so loading a later one reads only newer files.
"""

import contextlib
import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import pyarrow as pa

from pyspark_timestream.core.threads import begin_in_forks
from pyspark_tseries.errors import UnusableStore, damage_error
from pyspark_tseries.model.commits import (
    CHECKSUM_DIGITS,
    CommitMetadata,
    read_metadata,
    with_checksum,
    without_checksum,
)
from pyspark_tseries.model.series_index import (
    SeriesIndex,
    apply_change,
    filter_series,
    merge_changes,
)
from pyspark_tseries.storage.location import Location

LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
"""The options of the Arrow streams in heads and staged rows."""

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
SMALL_FILE_ROWS: Final = 64
"""Tables of fewer rows are not worth compressing."""

SMALL_INDEX_ROWS: Final = 10_000
"""An index of up to this many rows takes only a few milliseconds to build."""

MAX_WHOLE_READ_BYTES: Final = 1024 * 1024

_DAMAGE_ERRORS: Final = (FileNotFoundError, pa.ArrowException, ValueError)
"""The errors of a missing or damaged file; other OSErrors may be temporary."""

MAX_ANCESTORS: Final = 1000
"""Follow a chain of heads this far back; each takes a tenth of a millisecond."""

MAX_PARTIAL_LOADS: Final = 4
"""After this many partial loads, a process loads and keeps the index of all series."""


def head_path(location: Location, head_id: int) -> str:
    """Return the path of the head file `head_id`."""
    return location.file("_tseries", "head", f"{head_id:016x}.arrow")


def write_head(location: Location, head_id: int, table: pa.Table) -> str:
    """Write a head file; return its path."""
    path = head_path(location, head_id)
    location.write_whole(path, with_checksum(_format_head(table)))
    return path


def _format_head(table: pa.Table) -> bytes:
    """Return a table as Arrow's stream."""
    batches = table.to_batches() if table.num_rows < SMALL_FILE_ROWS else []
    if len(batches) == 1:
        # The same bytes as from the writer below without compression, in a seventh of the time.
        messages = (table.schema.serialize(), batches[0].serialize(), _END_OF_STREAM)
        return b"".join(map(memoryview, messages))
    content = io.BytesIO()
    options = LZ4 if table.num_rows >= SMALL_FILE_ROWS else None
    with pa.ipc.new_stream(content, table.schema, options=options) as writer:
        writer.write_table(table)
    return content.getvalue()


def read_head_metadata(location: Location, head_id: int) -> CommitMetadata:
    """Return the commit metadata of a head file, without its rows; raise as `load_index` does."""
    path = head_path(location, head_id)
    try:
        return _metadata_at(location, path)
    except _DAMAGE_ERRORS as error:
        raise unreadable_head_error(location, path, str(error)) from error


def head_chain(location: Location, head_id: int | None, since_us: int) -> Iterator[str]:
    """Yield the paths of `head_id`'s head files and of all that were current since `since_us`."""
    while head_id is not None:
        path = head_path(location, head_id)
        try:
            metadata = _metadata_at(location, path)
        except FileNotFoundError:
            return  # Maintenance has removed it, and all older ones.
        except _DAMAGE_ERRORS as error:
            raise unreadable_head_error(location, path, str(error)) from error
        yield path
        head_id = metadata.parent if metadata.depth or metadata.commit_us >= since_us else None


def is_ancestor(location: Location, head_id: int, commit: int, metadata: CommitMetadata) -> bool:
    """Return whether the head `head_id`, of that commit, is in the chain before `metadata`.

    Also return False if files of the chain are gone, or it is longer than `MAX_ANCESTORS`.
    """
    for _ in range(MAX_ANCESTORS):
        if metadata.parent is None or metadata.commit <= commit:
            return False
        if metadata.parent == head_id:
            return True
        try:
            metadata = _metadata_at(location, head_path(location, metadata.parent))
        except _DAMAGE_ERRORS:
            return False
    return False


def readable_metadata(location: Location) -> dict[int, CommitMetadata]:
    """Return the commit metadata of all head files that can be read, by head id."""
    readable = {}
    heads = (path for path, _ in location.list_files(location.file("_tseries", "head")))
    for path in heads:
        with contextlib.suppress(OSError, *_DAMAGE_ERRORS):
            head_id = int(os.path.basename(path).split(".")[0], 16)
            readable[head_id] = _metadata_at(location, path)
    return readable


def _metadata_at(location: Location, path: str) -> CommitMetadata:
    """Return the commit metadata of a file; do not read all of a large one."""
    with location.read(path) as file:
        if file.size() > MAX_WHOLE_READ_BYTES:
            file.seek(CHECKSUM_DIGITS)
            return read_metadata(pa.ipc.open_stream(file).schema)
        content = file.read()
    return read_metadata(_parse(content).schema)


def _read_head(location: Location, path: str) -> pa.Table:
    try:
        with location.read(path) as file:
            content = file.read()
        table = _parse(content)
        read_metadata(table.schema)
    except (OSError, *_DAMAGE_ERRORS) as error:
        raise unreadable_head_error(location, path, str(error)) from error
    return table


def _parse(content: bytes) -> pa.Table:
    """Return the table in a whole file; raise one of _DAMAGE_ERRORS."""
    try:
        return pa.ipc.open_stream(pa.py_buffer(without_checksum(content))).read_all()
    except OSError as error:  # The content is in memory, so this means damage.
        raise ValueError(str(error)) from error


def unreadable_head_error(location: Location, path: str, reason: str) -> UnusableStore:
    """Return the error of a missing or damaged head file."""
    problem = f"the store's head file '{path}' cannot be read: {location.redact(reason)}"
    return damage_error("head", location.root, problem, path)


def load_index(
    location: Location, head_id: int | None, earlier_id: int | None, earlier: SeriesIndex
) -> SeriesIndex:
    """Return the index of the head `head_id`, which is None before the first commit.

    Build it on top of `earlier`, the index of the head `earlier_id`, if that is in its chain.

    Raises:
        UnusableStore: a file is missing or damaged.
        OSError: a file cannot be read now.
    """
    index, changes = _collect_changes(location, head_id, earlier_id, earlier)
    for change in merge_changes(changes):
        index = apply_change(index, change)
    return index


def load_partial_index(
    location: Location, head_id: int | None, names: Sequence[str]
) -> tuple[SeriesIndex, bool]:
    """Return the index of the head `head_id` for at least `names`, and True if it is complete.

    It is complete if the store has few series. Otherwise it reads all rows, but indexes only those
    of `names`, which saves most of the time and memory of a complete index.
    """
    index, changes = _collect_changes(location, head_id, None, SeriesIndex())
    is_complete = sum(change.num_rows for change in changes) <= SMALL_INDEX_ROWS
    for change in merge_changes(changes):
        index = apply_change(index, change if is_complete else filter_series(change, names))
    return index, is_complete


def _collect_changes(
    location: Location, head_id: int | None, earlier_id: int | None, earlier: SeriesIndex
) -> tuple[SeriesIndex, list[pa.Table]]:
    """Return an index in memory, and the changes that turn it, in order, into that of `head_id`."""
    changes: list[pa.Table] = []
    while head_id is not None and head_id != earlier_id:
        changes.append(_read_head(location, head_path(location, head_id)))
        metadata = read_metadata(changes[-1].schema)
        if not metadata.depth:
            # This head has the whole index.
            return SeriesIndex(), changes[::-1]
        head_id = metadata.parent
    return earlier if head_id == earlier_id else SeriesIndex(), changes[::-1]


class LastIndex:
    """The most recently loaded series index of a store; a later one adds only changes to it.

    The first `MAX_PARTIAL_LOADS` look-ups of a process read the head files each time, so that a
    process that looks up few series need not load the index of all.

    Args:
        location: the location of the store.
        lock: held while it loads an index, and while a commit advances one: they share ids.
    """

    def __init__(self, location: Location, lock: AbstractContextManager[Any] | None = None) -> None:
        self._location = location
        self.begin_child(lock)
        if lock is None:
            begin_in_forks(self)

    def begin_child(self, lock: AbstractContextManager[Any] | None = None) -> None:
        """Begin anew in a forked process; a store that shares its lock passes the new one."""
        self._lock = threading.RLock() if lock is None else lock
        self._last: tuple[int | None, SeriesIndex] = (None, SeriesIndex())
        self._partial_loads = 0

    @property
    def last(self) -> tuple[int | None, SeriesIndex]:
        """The id and the index of one head; two separate reads may return those of two heads."""
        return self._last

    @property
    def head_id(self) -> int | None:
        """The id of the head of `index`; None before the first load."""
        return self._last[0]

    @property
    def index(self) -> SeriesIndex:
        """The most recently loaded index; empty before the first load."""
        return self._last[1]

    def remember(self, head_id: int | None, index: SeriesIndex) -> None:
        """Keep `index` as that of the head `head_id`."""
        self._last = head_id, index

    def load(self, head_id: int | None) -> SeriesIndex:
        """Return the index of the head `head_id`; raise what `load_index` raises."""
        last_id, last_index = self._last
        if head_id == last_id:
            return last_index
        with self._lock:
            last_id, last_index = self._last
            index = load_index(self._location, head_id, last_id, last_index)
            self.remember(head_id, index)
            return index

    def load_series(self, head_id: int | None, names: Sequence[str]) -> SeriesIndex:
        """Return the same as `load`, but the index may have only the series `names`."""
        with self._lock:
            if self.head_id is not None or self._partial_loads >= MAX_PARTIAL_LOADS:
                return self.load(head_id)
            index, is_complete = load_partial_index(self._location, head_id, names)
            if is_complete:
                self.remember(head_id, index)
            else:
                self._partial_loads += 1
            return index


LAST_INDEXES: Final[dict[Location, LastIndex]] = {}
"""The indexes that tasks of this process loaded last; its next tasks reuse them."""


def last_index(location: Location) -> LastIndex:
    """Return the index of the store that a task of this process loaded last."""
    return LAST_INDEXES.setdefault(location, LastIndex(location))
