"""Write and read what a commit names beside events, heads and records of erasures; and snapshots.

A head file has a change of the series index. Heads and records count once a commit names them, so a
crash leaves unused files at worst. The head names the last act of erasing (who erased which events,
when and why: semantics 18.6), and each record the previous one; a record outside of this chain does
not count. Maintenance flags an act with `log` once no entry of the log has its values any more, and
with `done` once no file has.

A snapshot is a store as of one commit: its settings, files and series index (semantics 21.10, 22).
Everything that reads a store reads one: queries, subscriptions, maintenance and the client. A
snapshot of an earlier moment has only the files of the commits up to then. Every row keeps its
commit, and compaction removes only rows that were out of range at its horizon. So all rows visible
at the horizon or later are still stored, and the index of any series is computed from them.
"""

import contextlib
import dataclasses
import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import format_instant, parse_instant
from pyspark_timestream.core.threads import begin_in_forks, lazy
from pyspark_tseries.errors import InvalidQuery, UnusableStore, damage_error
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    MIN_NUMBER,
    NEVER_US,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
    KeyRange,
    to_int64,
)
from pyspark_tseries.model.columns import ERASURE_FIELD, RESERVED_NAMES
from pyspark_tseries.model.properties import StoreSettings
from pyspark_tseries.model.series_index import (
    CHECKSUM_DIGITS,
    NO_COMMIT,
    CommitMetadata,
    SeriesIndex,
    apply_change,
    build_index,
    filter_series,
    merge_changes,
    min_retained_table,
    read_metadata,
    seal,
    unseal,
)
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, scan_file, scan_state

KEY_COLUMNS: Final = ("series", "sequence", "original_sequence", "erasure")
"""These columns show whether an act concerns an event."""


_RECORD_VERSION: Final = 1


@dataclass(frozen=True)
class Erasure:
    """An act that erased the values of some events of a series.

    Attributes:
        id: the id of the act; the erased events have it in the column `erasure`.
        commit: the number of the commit that erased them.
        time: the time of that commit, ISO-8601.
        principal: who erased them.
        reason: why.
        series: the name of the series.
        sequences: the requested sequences.
        events: the sequences of the events that the act erased, including edits of originals.
        removed: the `sequences` of events that compaction had removed before.
        files: files and log entries that still held a value, relative to the store; the next
            maintenance that begins ten minutes or more after the act removes them.
    """

    id: str
    commit: int
    time: str
    principal: str
    reason: str
    series: str
    sequences: tuple[int, ...]
    events: tuple[int, ...]
    removed: tuple[int, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def time_us(self) -> int:
        """The time of the commit, in microseconds."""
        return parse_instant(self.time)


@dataclass(frozen=True, slots=True)
class ErasureRecord:
    """A stored act.

    Attributes:
        act: the act, without `files`.
        previous: the id of the previous act; None for the first.
        log_version: the last entry of the log that may name a file with the values.
    """

    act: Erasure
    previous: str | None
    log_version: int

    def to_json(self) -> str:
        """Return the record as JSON; `parse_record` reads it back."""
        act = {name: value for name, value in asdict(self.act).items() if name != "files"}
        record = {
            "version": _RECORD_VERSION,
            "previous": self.previous,
            "log_version": self.log_version,
            **act,
        }
        return json.dumps(record, ensure_ascii=False, indent=1)


def parse_record(text: str) -> ErasureRecord:
    """Return the record in `text`; raise ValueError if it is damaged or of another version."""
    try:
        act: dict[str, Any] = json.loads(text)
        version, previous = act.pop("version"), act.pop("previous")
        log_version = int(act.pop("log_version"))
        if version != _RECORD_VERSION:
            raise ValueError(f"it has version {version}; accepted: {_RECORD_VERSION}")
        lists = {name: tuple(act[name]) for name in ("sequences", "events", "removed")}
        return ErasureRecord(Erasure(**{**act, **lists}), previous, log_version)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no record of an erasure: {error}") from error


@dataclass(slots=True)
class ErasedKeys:
    """The events of some acts: by series, the sequences of events and of originals.

    An event is included if its sequence is in `events`, or if it is an edit and the sequence of its
    original is in `originals`.
    """

    events: dict[str, set[int]] = field(default_factory=dict)
    originals: dict[str, set[int]] = field(default_factory=dict)

    def add(self, act: Erasure) -> None:
        """Add the events of an act."""
        self.events.setdefault(act.series, set()).update(act.sequences, act.events)
        self.originals.setdefault(act.series, set()).update(act.sequences)

    def find_values(self, rows: pa.Table) -> BoolArray:
        """Flag the included events that `rows` does not show as erased; it has `KEY_COLUMNS`."""
        meant = np.zeros(rows.num_rows, bool)
        for series, events in self.events.items():
            mine = pc.equal(rows["series"].cast(pa.string()), series).to_numpy()
            if mine.any():
                for name, wanted in (
                    ("sequence", events),
                    ("original_sequence", self.originals[series]),
                ):
                    numbers = to_int64(rows[name].fill_null(NO_SEQUENCE))
                    meant |= mine & np.isin(numbers, np.array(sorted(wanted), np.int64))
        meant &= rows[ERASURE_FIELD.name].is_null().to_numpy()
        return meant

    def may_be_in(self, statistics: str | None) -> bool:
        """Return whether Delta's statistics of a file may show a value of an included event."""
        said: Mapping[str, Any] = json.loads(statistics) if statistics else {}
        least, most = said.get("minValues") or {}, said.get("maxValues") or {}
        if not (set(least) | set(most)) - set(RESERVED_NAMES):
            return False
        if not all(name in ends for name in ("series", "sequence") for ends in (least, most)):
            return True
        return any(
            least["series"] <= series <= most["series"]
            and any(least["sequence"] <= sequence <= most["sequence"] for sequence in sequences)
            for series, sequences in self.events.items()
        )


_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
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
    location.write_whole(path, seal(_format_head(table)))
    return path


def _format_head(table: pa.Table) -> bytes:
    """Return a table as Arrow's stream."""
    batches = table.to_batches() if table.num_rows < SMALL_FILE_ROWS else []
    if len(batches) == 1:
        # What the writer below writes without compression, in a seventh of its time.
        parts = (table.schema.serialize(), batches[0].serialize(), _END_OF_STREAM)
        return b"".join(map(memoryview, parts))
    content = io.BytesIO()
    options = _LZ4 if table.num_rows >= SMALL_FILE_ROWS else None
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

    Return False, too, where files of the chain are gone, or it is longer than `MAX_ANCESTORS`.
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
        return pa.ipc.open_stream(pa.py_buffer(unseal(content))).read_all()
    except OSError as error:  # The content is in memory, so this means damage.
        raise ValueError(str(error)) from error


def unreadable_head_error(location: Location, path: str, reason: str) -> UnusableStore:
    """Return the error of a missing or damaged head file."""
    problem = f"the store's head file '{path}' cannot be read: {location.redact(reason)}"
    return damage_error("head", location.root, problem, path)


def load_index(
    location: Location, head_id: int | None, known_id: int | None, known: SeriesIndex
) -> SeriesIndex:
    """Return the index of the head `head_id`, which is None before the first commit.

    Build it on top of `known`, the index of the head `known_id`, if that is in its chain.

    Raises:
        UnusableStore: a file is missing or damaged.
        OSError: a file cannot be read now.
    """
    index, changes = _collect_changes(location, head_id, known_id, known)
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
    whole = sum(change.num_rows for change in changes) <= SMALL_INDEX_ROWS
    for change in merge_changes(changes):
        index = apply_change(index, change if whole else filter_series(change, names))
    return index, whole


def _collect_changes(
    location: Location, head_id: int | None, known_id: int | None, known: SeriesIndex
) -> tuple[SeriesIndex, list[pa.Table]]:
    """Return an index in memory, and the changes that turn it, in order, into that of `head_id`."""
    changes: list[pa.Table] = []
    while head_id is not None and head_id != known_id:
        changes.append(_read_head(location, head_path(location, head_id)))
        metadata = read_metadata(changes[-1].schema)
        head_id = metadata.parent if metadata.depth else None
        known_id = known_id if metadata.depth else None
        known = known if metadata.depth else SeriesIndex()
    return known if head_id == known_id else SeriesIndex(), changes[::-1]


class LastIndex:
    """The most recently loaded series index of a store; a later one adds only changes to it.

    A process that seldom looks up series, and few of them, need not load the index of all: its
    first `MAX_PARTIAL_LOADS` look-ups read the head files each time.

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
        """Begin anew in a forked process; whoever shares its lock calls this with the new one."""
        self._lock = threading.RLock() if lock is None else lock
        self._last: tuple[int | None, SeriesIndex] = (None, SeriesIndex())
        self._partial_loads = 0

    @property
    def last(self) -> tuple[int | None, SeriesIndex]:
        """The id and the index of a head; read apart, they may be of two."""
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
        known_id, known = self._last
        if head_id == known_id:
            return known
        with self._lock:
            known_id, known = self._last
            index = load_index(self._location, head_id, known_id, known)
            self.remember(head_id, index)
            return index

    def load_series(self, head_id: int | None, names: Sequence[str]) -> SeriesIndex:
        """Return the same as `load`, but the index may have only the series `names`."""
        with self._lock:
            if self.head_id is not None or self._partial_loads >= MAX_PARTIAL_LOADS:
                return self.load(head_id)
            index, whole = load_partial_index(self._location, head_id, names)
            if whole:
                self.remember(head_id, index)
            else:
                self._partial_loads += 1
            return index


LAST_INDEXES: Final[dict[Location, LastIndex]] = {}
"""The indexes that tasks of this process loaded last; its next tasks reuse them."""


def last_index(location: Location) -> LastIndex:
    """Return the index of the store that a task of this process loaded last."""
    return LAST_INDEXES.setdefault(location, LastIndex(location))


ERASURES: Final = ("_tseries", "erasures")


def record_path(location: Location, act: str) -> str:
    """Return the path of the record of `act`."""
    return location.file(*ERASURES, f"{act}.json")


def write_record(location: Location, record: ErasureRecord) -> str:
    """Write the record of an act; return its path."""
    path = record_path(location, record.act.id)
    with location.write(path) as file:
        file.write(record.to_json().encode())
    return path


def read_records(location: Location, last: str | None) -> Iterator[ErasureRecord]:
    """Yield the records of the act `last` and of all before it, newest first.

    Raises:
        UnusableStore: a record is missing or damaged.
        OSError: a record cannot be read now.
    """
    while last is not None:
        path = record_path(location, last)
        try:
            record = _read_record(location, path)
        except (FileNotFoundError, ValueError) as error:
            why = location.redact(str(error))
            problem = f"the record '{path}' of an erasure cannot be read: {why}"
            raise damage_error("erasure record", location.root, problem, path) from error
        yield record
        last = record.previous


def find_erased_series(location: Location, last: str | None, since: str | None) -> set[str] | None:
    """Return the series of the act `last` and of all before it, down to `since`, exclusive.

    Return None if `since` is not among them, or a record cannot be read.
    """
    names: set[str] = set()
    try:
        for record in read_records(location, last):
            if record.act.id == since:
                return names
            names.add(record.act.series)
    except UnusableStore:
        return None
    return names if since is None else None


def list_records(location: Location) -> list[ErasureRecord]:
    """Return all records that can be read, including those outside of the chain."""
    records = []
    for path, _ in location.list_files(location.file(*ERASURES)):
        if path.endswith(".json"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                records.append(_read_record(location, path))
    return records


def _read_record(location: Location, path: str) -> ErasureRecord:
    with location.read(path) as file:
        return parse_record(file.read().decode())


def flag_act(location: Location, act: str, flag: str) -> None:
    """Flag `act`: no log entry has a value of it any more (`log`), or no file at all (`done`)."""
    with location.write(location.file(*ERASURES, f"{act}.{flag}")) as file:
        file.write(b"")


def flagged_acts(location: Location, flag: str) -> set[str]:
    """Return the ids of the acts with the flag `log` or `done`."""
    names = (os.path.basename(path) for path, _ in location.list_files(location.file(*ERASURES)))
    return {name.removesuffix(f".{flag}") for name in names if name.endswith(f".{flag}")}


@dataclass(frozen=True)
class Snapshot:
    """A store as of a commit; pickle leaves out the index, which a task loads itself.

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

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task needs."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "heads": None
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
    def has_erasures(self) -> bool:
        """True if events of the store may be erased."""
        return self.metadata.erasure is not None

    def index(self, series: Sequence[str] | None = None, keys: KeyRange = ALL_KEYS) -> SeriesIndex:
        """Return the series index, at least for `series` (None: all) in the key range `keys`.

        `keys` splits no series. With few series, a process need not load the index of all.
        """
        now = self.newest_index(series)
        return now if self.as_of is None else self._past_index(now, series, keys)

    def newest_index(self, series: Sequence[str] | None = None) -> SeriesIndex:
        """Return the index of the current head, at least for `series`, whatever `as_of` says."""
        if series is None or "_whole_index" in vars(self):
            return self._whole_index
        return self._heads.load_series(self.head_id, series)

    @lazy
    def _whole_index(self) -> SeriesIndex:
        return self._heads.load(self.head_id)

    @property
    def _heads(self) -> LastIndex:
        return last_index(self.location) if self.heads is None else self.heads

    def _past_index(
        self, now: SeriesIndex, series: Sequence[str] | None, keys: KeyRange
    ) -> SeriesIndex:
        """Compute the index from the rows up to then, and the floors of the index `now`."""
        assert self.as_of is not None
        names = None if series is None else sorted(set(series))
        row_filter = RowFilter(names, keys, commits=(MIN_NUMBER, self.as_of))
        data = [file for file in self.files if keys.overlaps(file.first, file.last)]
        states, _ = scan_state(self.location, data, -1, row_filter)
        floors = min_retained_table(now)
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
            known = oldest_us if since_us is None else max(oldest_us, since_us)
            raise _gone_error(f"asOf {format_instant(us)}", f"{format_instant(known)} or later")
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
        """The first commit as of which all rows that were visible are stored."""
        since = self.metadata.retained_since
        return max(self.horizon, -1 if since is None else since)

    def _before(self, commit: int, us: int) -> "Snapshot":
        data = [file for file in self.files if file.first_commit <= commit]
        metadata = dataclasses.replace(self.metadata, parent=None, commit=commit, commit_us=us)
        metadata = NO_COMMIT if commit < 0 else metadata
        return dataclasses.replace(self, files=data, metadata=metadata, as_of=commit)

    def _last_commit(
        self, counts: Callable[[Int64Array, Int64Array], BoolArray]
    ) -> tuple[int, int]:
        """Return the last commit with rows whose number and time `counts` takes, and its time."""
        commit, us = -1, NEVER_US
        for numbers, times in self._scan_commits():
            taken = counts(numbers, times)
            commit = max(commit, int(numbers[taken].max(initial=-1)))
            us = max(us, int(times[taken].max(initial=NEVER_US)))
        return commit, us

    def _commit_time(self, first: int) -> int:
        """Return the earliest time of the commits from `first` on."""
        times_from = (times[numbers >= first] for numbers, times in self._scan_commits())
        newest_us = self.metadata.commit_us
        return min((int(us.min(initial=newest_us)) for us in times_from), default=newest_us)

    def _scan_commits(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        for file in self.files:
            for rows in scan_file(self.location, file, BASE_SCHEMA, ("commit", "commit_time")):
                yield to_int64(rows["commit"]), to_int64(rows["commit_time"])


def _gone_error(which: str, accepts: str) -> InvalidQuery:
    return InvalidQuery(
        f"{which}: some events that were visible then may be gone",
        accepts,
        "ask for a later time, and keep more with tseries.minRetentionAge",
    )
