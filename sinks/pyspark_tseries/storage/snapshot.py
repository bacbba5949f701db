"""Keep a store's state as of a commit: its head files, its series index and its snapshots.

A commit writes a head file with its change of the series index (`model.series_index`). A head
counts once a commit names it, so a crash leaves unused files at worst. Each head names its parent.
`LastIndex` keeps the last loaded index, so loading a later one reads only newer files.

A *snapshot* is a store as of one commit: its settings, files and series index (semantics 21.10 and
22). Queries, subscriptions, maintenance and the client all read snapshots. A snapshot of an earlier
moment has only the files of the commits up to then. Every row keeps its commit, and compaction
removes only rows that were out of range at its horizon. So all rows visible at the horizon or later
are still stored, and the index of any series can be computed from them.
"""

import contextlib
import dataclasses
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.core.processes import begin_in_forks, lazy
from pyspark_tseries.errors import InvalidQuery, UnusableStore, damage_error
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    MAX_NUMBER,
    MIN_NUMBER,
    NEVER_US,
    BoolArray,
    Int64Array,
    KeyRange,
    to_int64,
)
from pyspark_tseries.model.commits import (
    CHECKSUM_DIGITS,
    NO_COMMIT,
    CommitMetadata,
    read_metadata,
    with_checksum,
    without_checksum,
)
from pyspark_tseries.model.properties import StoreSettings
from pyspark_tseries.model.series_index import (
    STATE_COLUMNS,
    SeriesIndex,
    apply_change,
    build_index,
    combine_states,
    compute_state,
    filter_series,
    floors_table,
    make_full_table,
    merge_changes,
)
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import ALL_ROWS, RowFilter, base_fields, scan_file

LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
"""The options of the Arrow streams in heads and staged rows."""

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
SMALL_HEAD_ROWS: Final = 64
"""The tables of heads with fewer rows are not worth compressing."""

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


def write_full_head(
    location: Location, head_id: int, index: SeriesIndex
) -> tuple[SeriesIndex, str]:
    """Write a head file of all series; return the index as that head has it, and the path."""
    table = make_full_table(index)
    path = write_head(location, head_id, table)
    return dataclasses.replace(index, metadata=read_metadata(table.schema)), path


def _format_head(table: pa.Table) -> bytes:
    """Return a table as Arrow's stream."""
    batches = table.to_batches() if table.num_rows < SMALL_HEAD_ROWS else []
    if len(batches) == 1:
        # The same bytes as from the writer below without compression, in a seventh of the time.
        messages = (table.schema.serialize(), batches[0].serialize(), _END_OF_STREAM)
        return b"".join(map(memoryview, messages))
    content = io.BytesIO()
    options = LZ4 if table.num_rows >= SMALL_HEAD_ROWS else None
    with pa.ipc.new_stream(content, table.schema, options=options) as writer:
        writer.write_table(table)
    return content.getvalue()


def read_head_metadata(location: Location, head_id: int) -> CommitMetadata:
    """Return the commit metadata of a head file, without its rows; raise as `load_index` does."""
    path = head_path(location, head_id)
    try:
        return _read_metadata_at(location, path)
    except _DAMAGE_ERRORS as error:
        raise unreadable_head_error(location, path, str(error)) from error


def head_chain(location: Location, head_id: int | None, since_us: int) -> Iterator[str]:
    """Yield the paths of `head_id`'s head files and of all that were current since `since_us`."""
    while head_id is not None:
        path = head_path(location, head_id)
        try:
            metadata = _read_metadata_at(location, path)
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
            metadata = _read_metadata_at(location, head_path(location, metadata.parent))
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
            readable[head_id] = _read_metadata_at(location, path)
    return readable


def _read_metadata_at(location: Location, path: str) -> CommitMetadata:
    """Return the commit metadata of a file; do not read all of a large one."""
    with location.read(path) as file:
        if file.size() > MAX_WHOLE_READ_BYTES:
            file.seek(CHECKSUM_DIGITS)
            return read_metadata(pa.ipc.open_stream(file).schema)
        content = file.read()
    return read_metadata(_parse_table(content).schema)


def _read_head(location: Location, path: str) -> pa.Table:
    try:
        table = _parse_table(location.read_whole(path))
        read_metadata(table.schema)
    except (OSError, *_DAMAGE_ERRORS) as error:
        raise unreadable_head_error(location, path, str(error)) from error
    return table


def _parse_table(content: bytes) -> pa.Table:
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
    """Return an index in memory, and the changes that lead from it, in order, to `head_id`."""
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
        """Start afresh in a forked process; a store that shares its lock passes the new one."""
        self._lock = threading.RLock() if lock is None else lock
        self._last: tuple[int | None, SeriesIndex] = (None, SeriesIndex())
        self._partial_loads = 0

    @property
    def last(self) -> tuple[int | None, SeriesIndex]:
        """The id and the index of one head; two separate reads may see two heads."""
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
        """Keep `index` as the index of the head `head_id`."""
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


@dataclass(frozen=True)
class Snapshot:
    """A store as of a commit; pickle leaves out the index, because a task loads it itself.

    Attributes:
        location: the location of the store.
        files: the files of its events, in the order of their commits.
        head_id: the id of the current head file; None before the first commit.
        metadata: the metadata of the last commit, with the counts.
        settings: the settings after that commit.
        values: the value columns.
        horizon: the last commit that may have lost events to compaction; -1 if none has.
        as_of: the last commit that counts, if the files have later ones; None if all count.
        heads: where the store keeps the index it loaded last; None in a task.
        later_files: the files that only have events of later commits than `as_of`; [] in a task.
    """

    location: Location
    files: list[DataFile]
    head_id: int | None
    metadata: CommitMetadata
    settings: StoreSettings
    values: list[pa.Field]
    horizon: int = -1
    as_of: int | None = None
    heads: LastIndex | None = dataclasses.field(default=None, repr=False, compare=False)
    later_files: list[DataFile] = dataclasses.field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task needs."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "heads": None,
            "later_files": [],
        }

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.location.root

    @property
    def paths(self) -> set[str]:
        """The paths of its files, relative to the store."""
        return {file.path for file in self.files}

    @property
    def commits(self) -> tuple[int, int]:
        """The bounds of the commits that count, for a `RowFilter`."""
        return MIN_NUMBER, MAX_NUMBER if self.as_of is None else self.as_of

    @property
    def original_files(self) -> list[DataFile]:
        """The files of originals."""
        return [file for file in self.files if file.kind != "edit"]

    @property
    def edit_files(self) -> list[DataFile]:
        """The files of edits."""
        return [file for file in self.files if file.kind == "edit"]

    @property
    def has_erasures(self) -> bool:
        """Whether the store may have erased events."""
        return self.metadata.erasure is not None

    def index(self, series: Sequence[str] | None = None, keys: KeyRange = ALL_KEYS) -> SeriesIndex:
        """Return the series index, at least for `series` (None: all) in the key range `keys`.

        `keys` splits no series. With few series, a process need not load the index of all.
        """
        now = self.newest_index(series)
        return now if self.as_of is None else self._load_past_index(now, series, keys)

    def newest_index(self, series: Sequence[str] | None = None) -> SeriesIndex:
        """Return the index of the current head, even with `as_of`, at least for `series`."""
        if series is None or "_whole_index" in vars(self):
            return self._whole_index
        return self._heads.load_series(self.head_id, series)

    @lazy
    def _whole_index(self) -> SeriesIndex:
        return self._heads.load(self.head_id)

    @property
    def _heads(self) -> LastIndex:
        return last_index(self.location) if self.heads is None else self.heads

    def _load_past_index(
        self, now: SeriesIndex, series: Sequence[str] | None, keys: KeyRange
    ) -> SeriesIndex:
        """Compute the index from the rows up to then, and the floors of the index `now`."""
        names = None if series is None else sorted(set(series))
        row_filter = RowFilter(names, keys, commits=self.commits)
        states, _ = scan_state(self.location, self.files, row_filter)
        floors = floors_table(now)
        if floors is not None:
            floors = floors.filter(pc.is_in(floors["series"], states["series"].combine_chunks()))
        return build_index(states, self.metadata, floors)

    def at_time(self, us: int) -> "Snapshot":
        """Return the store as it was at the commit time `us`, including its retained range.

        Raises:
            InvalidQuery: rows visible then may be gone; the message names the oldest possible time.
        """
        if us >= self.metadata.commit_us:
            return self
        commit, _ = self._last_commit(lambda _, times: times <= us)
        since_us = self.metadata.retained_since_us
        # The commit that changed the retained range has no rows that tell its time.
        oldest = self._oldest if since_us is None else self.horizon
        if commit < oldest or (since_us is not None and us < since_us):
            oldest_us = NEVER_US if oldest < 0 else self._commit_time(oldest)
            possible_us = oldest_us if since_us is None else max(oldest_us, since_us)
            raise _gone_error(
                f"asOf {format_instant(us)}", f"{format_instant(possible_us)} or later"
            )
        return self._before(commit, us)

    def at_commit(self, number: int) -> "Snapshot":
        """Return the store as it was after the commit `number`; raise as `at_time` does."""
        if number >= self.metadata.commit:
            return self
        if number < self._oldest:
            raise _gone_error(f"commit {number}", f"commit {self._oldest} or later")
        return self._before(*self._last_commit(lambda numbers, _: numbers <= number))

    @property
    def _oldest(self) -> int:
        """The first commit that still has all rows that were visible then."""
        since = self.metadata.retained_since
        return max(self.horizon, -1 if since is None else since)

    def _before(self, commit: int, us: int) -> "Snapshot":
        data = [file for file in self.files if file.first_commit <= commit]
        later_files = [file for file in self.files if file.first_commit > commit]
        metadata = dataclasses.replace(self.metadata, parent=None, commit=commit, commit_us=us)
        metadata = NO_COMMIT if commit < 0 else metadata
        return dataclasses.replace(
            self,
            files=data,
            metadata=metadata,
            as_of=commit,
            later_files=[*later_files, *self.later_files],
        )

    def _last_commit(
        self, counts: Callable[[Int64Array, Int64Array], BoolArray]
    ) -> tuple[int, int]:
        """Return the last commit with rows that passes `counts`, and its time.

        `counts` flags commits by their numbers and times.
        """
        commit = -1
        us = NEVER_US
        for numbers, times in self._scan_commits():
            counted = counts(numbers, times)
            commit = max(commit, int(numbers[counted].max(initial=-1)))
            us = max(us, int(times[counted].max(initial=NEVER_US)))
        return commit, us

    def _commit_time(self, first_number: int) -> int:
        """Return the earliest time of the commits from `first_number` on."""
        times_from = (times[numbers >= first_number] for numbers, times in self._scan_commits())
        newest_us = self.metadata.commit_us
        return min((int(us.min(initial=newest_us)) for us in times_from), default=newest_us)

    def _scan_commits(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        for file in self.files:
            for rows in scan_file(self.location, file, base_fields(("commit", "commit_time"))):
                yield to_int64(rows["commit"]), to_int64(rows["commit_time"])


def _gone_error(which: str, accepts: str) -> InvalidQuery:
    return InvalidQuery(
        f"{which}: some events that were visible then may be gone",
        accepts,
        "ask for a later time, and keep more with tseries.minRetentionAge",
    )


def scan_state(
    location: Location,
    data: Iterable[DataFile],
    row_filter: RowFilter = ALL_ROWS,
    expression: pc.Expression | None = None,
) -> tuple[pa.Table, int]:
    """Return the state of series from the events that pass, and the time of their newest commit.

    The state is without a horizon.
    """
    schema = base_fields(STATE_COLUMNS)
    states = []
    newest_us = 0
    for file in data:
        file_states = []
        for table in scan_file(location, file, schema, row_filter, expression):
            file_states.append(compute_state(table, -1))
            newest_us = max(newest_us, int(to_int64(table["commit_time"]).max(initial=0)))
        states.append(combine_states(file_states))
    return combine_states(states), newest_us
