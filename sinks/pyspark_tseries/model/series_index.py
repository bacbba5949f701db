"""Keep the series index, each series' last sequence, newest timestamps and counts; and commits.

Each commit writes a *head file* with an *index change*: the series that the commit touched. The
file's metadata names its parent, the head file of the previous commit. Now and then a commit writes
a *full table* of all series, and the chain ends there. The Delta commit names the current head
file, so an index and the events it counts become visible together.

The events do not show the counts of dropped and adjusted rows, a changed retained range or a
changed policy; `CommitMetadata` in every head file keeps these. `compute_state` recomputes all else
from the events, because compaction keeps a series' last event, and its newest original and newest
edit that are not erased.

A commit has an id, a time and CTIs beside (semantics 19.4, 19.5 and 30). Its id is that of its
head, a random number: if two copies of a store both go on, they make commits of the same numbers,
but with different ids. The time of commits never decreases, so one commit from the far future would
set the time of all later ones, and of every event without a timestamp. Therefore a client compares
its clock with the time of the last commit and with the storage's clock, which may be another
machine's.

A streaming query may commit a CTI with a batch: it will append no further original before that
time. The store's CTI is the lowest of its writers' CTIs, once each has given one; it never goes
back, even if writers join or leave.
"""

import bisect
import dataclasses
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import (
    DAY_US,
    HOUR_US,
    clamp_instant,
    format_duration,
    format_instant,
)
from pyspark_tseries.errors import WrongClock
from pyspark_tseries.model.arrays import NEVER_US, NO_SEQUENCE, BlockColumns, Int64Array, to_int64
from pyspark_tseries.model.columns import INSTANT

CHECKSUM_DIGITS: Final = 8


def seal(content: bytes) -> bytes:
    """Return `content` after its checksum, the CRC-32 in hexadecimal digits."""
    return b"%08x" % zlib.crc32(content) + content


def unseal(sealed: bytes | memoryview) -> memoryview:
    """Return the content that `seal` was given; raise ValueError if it has changed."""
    content = memoryview(sealed)[CHECKSUM_DIGITS:]
    if sealed[:CHECKSUM_DIGITS] != b"%08x" % zlib.crc32(content):
        raise ValueError("its checksum is another one")
    return content


COMMITS_PER_FILE: Final = 1024
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class CommitId:
    """The number and the id of a commit."""

    number: int
    id: int

    def __str__(self) -> str:
        """Return the name of the commit in messages."""
        return f"commit {self.number} (id {self.id:016x})"

    def to_json(self) -> list[int]:
        """Return the form in which a checkpoint has it."""
        return [self.number, self.id]

    @staticmethod
    def from_json(read: Any) -> "CommitId | None":
        """Return the id from which `to_json` made `read`; None for None."""
        return None if read is None else CommitId(int(read[0]), int(read[1]))


def pack_ids(ids: Mapping[int, int], first: int) -> bytes:
    """Return the contents of a file with the ids of the commits from `first` on."""
    numbers = range(first, first + COMMITS_PER_FILE)
    content = np.array([ids.get(number, _UNKNOWN) for number in numbers], "<i8").tobytes()
    return seal(content)


def unpack_ids(content: bytes, first: int) -> dict[int, int]:
    """Return the ids, by number, in a file from `pack_ids`; none if it is damaged."""
    try:
        ids: Int64Array = np.frombuffer(unseal(content), "<i8")
    except ValueError:
        return {}
    if len(ids) != COMMITS_PER_FILE:
        return {}
    return {first + int(row): int(ids[row]) for row in np.flatnonzero(ids != _UNKNOWN)}


MAX_CLOCK_SKEW_US: Final = HOUR_US
"""Clocks of working machines differ by less than an hour."""

MAX_IDLE_US: Final = 2 * 365 * DAY_US
"""After two idle years the user must confirm that the clock has not jumped."""

_MIN_CREDIBLE_US: Final = 1_767_225_600_000_000
"""2026-01-01: a commit with an earlier time comes from an unset clock and proves nothing."""


def is_clock_suspicious(last_us: int, now_us: int, written_us: int | None = None) -> bool:
    """Return whether to ask the storage's clock, because the client's is far from the last commit.

    `written_us` is the time, by the storage's clock, at which it got the last entry of the log. It
    reveals a series of commits that are each a little ahead of the last.
    """
    ahead = written_us is not None and now_us - written_us > MAX_CLOCK_SKEW_US
    return ahead or abs(now_us - last_us) > MAX_CLOCK_SKEW_US


def check_commit_time(
    store: str, last_us: int, now_us: int, storage_us: int | None, *, same_machine: bool
) -> None:
    """Refuse a commit if the client's clock is ahead, or was at the last commit.

    A clock that is behind does no harm: the next commit then has the time of the last one. If a
    store was idle longer than `MAX_IDLE_US`, the storage clock of another machine must agree.

    Args:
        store: its location, for the message.
        last_us: the time of the last commit; far in the past if there is none.
        now_us: the client's clock.
        storage_us: the storage's clock; None if unknown.
        same_machine: True if that may be the client's own clock.

    Raises:
        WrongClock: the error names the clocks, their times, and the next step.
    """
    known_us = now_us if storage_us is None else storage_us
    said = f"this machine's clock says {_format_clamped(now_us)}"
    if storage_us is not None:
        said += f", the storage's {_format_clamped(storage_us)}"
    if now_us > known_us + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': {said}",
            f"clocks less than {format_duration(MAX_CLOCK_SKEW_US)} apart, or every later commit "
            "would have that time",
            "set this machine's clock. Nothing is stored",
            kind="clock",
        )
    if last_us > max(now_us, known_us) + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, but {said}",
            "a last commit of the past",
            f"if the clock that made it was wrong, python -m pyspark_tseries repair {store} "
            "corrects the times of such commits; if this machine's is, set that. Nothing is stored",
            kind="clock",
        )
    idle_us = now_us - last_us
    if (
        (storage_us is None or same_machine)
        and last_us >= _MIN_CREDIBLE_US
        and idle_us > MAX_IDLE_US
    ):
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, and {said}",
            f"a commit within {format_duration(MAX_IDLE_US)} of the last one",
            "if this machine's clock is right, say so with: python -m pyspark_tseries repair "
            f"{store}; else set it. Nothing is stored",
            kind="clock",
        )


def _format_clamped(us: int) -> str:
    return format_instant(clamp_instant(us))


BATCH_WRITES: Final = "batch"
"""The writer of everything that no streaming query appends; it never gives CTIs."""

UNKNOWN_WRITERS: Final = "unknown"
"""Stands for the writers that a rebuilt head does not know."""

MAX_HISTORY: Final = 64
"""The most entries of the history; a longer one loses every second entry of its older half."""

QUERY_PREFIX: Final = "tseries:q:"
"""A streaming query's transaction is this prefix and the query's id."""

APPLICATION_PREFIX: Final = "tseries:app:"
"""The transaction of a batch write with `txnAppId` is this prefix and the id."""


@dataclass(frozen=True, slots=True)
class CtiRecord:
    """CTIs after a commit, in microseconds.

    A subscriber needs the store's CTI as of an earlier commit, so the record keeps a bounded
    history. Between two entries the earlier one counts: it is lower, and still true.

    Attributes:
        writers: the CTI of each writer, None if it has given none.
        history: pairs of a commit and the store's CTI from that commit on; both rise.
    """

    writers: Mapping[str, int | None] = field(default_factory=dict)
    history: tuple[tuple[int, int], ...] = ()

    @property
    def store_us(self) -> int | None:
        """The store's CTI, before which no further original is appended; None if there is none."""
        return self.history[-1][1] if self.history else None

    def cti_at(self, commit: int) -> int | None:
        """Return the store's CTI as of `commit`, or an earlier one; None if there was none."""
        after = bisect.bisect_right(self.history, commit, key=lambda entry: entry[0])
        return self.history[after - 1][1] if after else None

    def without_cti(self) -> list[str]:
        """Return the writers that have given no CTI; while there are any, the store's stays."""
        return sorted(name for name, us in self.writers.items() if us is None)

    def blocking(self) -> list[str]:
        """Return the writers that hold back the store's CTI: those without one, else the lowest."""
        least = min((us for us in self.writers.values() if us is not None), default=None)
        return self.without_cti() or sorted(n for n, us in self.writers.items() if us == least)

    def advance(self, writer: str, cti_us: int | None, commit: int) -> "CtiRecord":
        """Return the record after `writer` appended with `commit`; ignore a CTI below its last."""
        known = self.writers.get(writer)
        known_us = [us for us in (known, cti_us) if us is not None]
        writers = {**self.writers, writer: max(known_us, default=None)}
        return (
            self
            if writers == self.writers
            else replace(self, writers=writers)._with_store_cti(commit)
        )

    def forget(self, writer: str, commit: int) -> "CtiRecord":
        """Return the record without `writer`, which holds nothing back from `commit` on."""
        writers = {name: us for name, us in self.writers.items() if name != writer}
        return replace(self, writers=writers)._with_store_cti(commit)

    def _with_store_cti(self, commit: int) -> "CtiRecord":
        known = [us for us in self.writers.values() if us is not None]
        if not known or len(known) < len(self.writers):
            return self
        if self.store_us is not None and min(known) <= self.store_us:
            return self
        return replace(self, history=_thin((*self.history, (commit, min(known)))))

    def to_json(self) -> dict[str, Any]:
        """Return the record as a head file has it."""
        return {"history": self.history, "writers": dict(self.writers)}

    @staticmethod
    def from_json(read: Mapping[str, Any]) -> "CtiRecord":
        """Return the record in a head file; raise KeyError or TypeError if it is not one."""
        history = tuple((int(commit), int(us)) for commit, us in read["history"])
        return CtiRecord(dict(read["writers"]), history)


def name_writer(token: tuple[str, int] | None) -> str:
    """Return the writer that commits a batch with `token`: a query, or all batch writes."""
    if token is None or not token[0].startswith(QUERY_PREFIX):
        return BATCH_WRITES
    return f"query {token[0][len(QUERY_PREFIX) :]}"


def _thin(history: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    if len(history) <= MAX_HISTORY:
        return history
    recent = MAX_HISTORY // 2
    return (*history[:-recent:2], *history[-recent:])


COMMITS_PER_MAINTENANCE: Final = 32


def is_maintenance_due(commit: int) -> bool:
    """Return whether the writer of `commit` starts the maintenance of the store."""
    return (commit + 1) % COMMITS_PER_MAINTENANCE == 0


MAX_CHANGES: Final = 64
"""In a store of few series, a full table ends a longer chain of changes."""

SERIES_PER_CHANGE: Final = 2000
"""In a large store, the chain may have one change for this many series: reading a change takes as
long as reading that many series, and writing a full table as long as a hundred commits or more."""

MAX_MERGED_ROWS: Final = 1000
"""Merge changes of up to this many rows before they are applied to an index."""

MIN_FULL_TABLE_ROWS: Final = 10_000
"""If its changes have fewer rows, only the length of the chain requires a full table."""

_METADATA_KEY: Final = b"tseries"

_INDEX_COLUMNS: Final = {
    "last_sequence": (pa.int64(), NO_SEQUENCE),
    "newest_us": (INSTANT, NEVER_US),
    "original_sequence": (pa.int64(), NO_SEQUENCE),
    "original_us": (INSTANT, NEVER_US),
    "first_us": (INSTANT, NEVER_US),
    "edits": (pa.int64(), 0),
}
MIN_RETAINED_DEFAULTS: Final = {"floor_sequence": 0, "floor_us": NEVER_US}
"""The optional columns of `min_retained` (`floor_*` in files).

Events below either floor left the retained range before it changed.
"""

_SCHEMA: Final = pa.schema(
    [("series", pa.string()), *((name, kind) for name, (kind, _) in _INDEX_COLUMNS.items())]
)


class SeriesIds:
    """A number for the name of each series, in the order of appearance.

    It only grows, so all indexes of a store share it. An id beyond the columns of an older index
    belongs to a series that had no events then.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def names(self) -> list[str]:
        """Return all names; a name's position is its id."""
        return list(self._ids)

    def add(self, names: Sequence[str]) -> Int64Array:
        """Return the ids of the distinct `names`; unknown names get the next ones."""
        if len(names) == 1:
            return np.array([self.add_one(names[0])])
        if not self._ids:
            self._ids.update(zip(names, range(len(names)), strict=True))
            return np.arange(len(names))
        ids = self.find(names)
        new = np.flatnonzero(ids < 0)
        ids[new] = np.arange(len(self._ids), len(self._ids) + len(new))
        self._ids.update((names[row], int(ids[row])) for row in new.tolist())
        return ids

    def add_one(self, name: str) -> int:
        """Return the id of `name`; an unknown name gets the next one."""
        return self._ids.setdefault(name, len(self._ids))

    def find(self, names: Sequence[str]) -> Int64Array:
        """Return the ids of `names`, -1 for unknown ones."""
        return np.fromiter(map(self._ids.get, names, repeat(-1)), np.int64, len(names))

    def find_one(self, name: str) -> int:
        """Return the id of `name`, -1 if it is unknown."""
        return self._ids.get(name, -1)


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata of a head file.

    Attributes:
        parent: the id of the previous head; None for the first commit.
        commit: the number of the commit, 0, 1, 2, ... per store.
        commit_us: the time of the commit; never decreases.
        depth: changes since the last full table; 0 for a full table.
        rows: rows in these changes.
        dropped: rows that `outOfOrder=drop` left out, since the store's creation.
        adjusted: rows that `outOfOrder=adjust` raised, since the store's creation.
        last_dropped: the latest example: series, timestamps, commit; None if there is none.
        last_adjusted: the same for adjusted rows.
        retained: the retained range, if it was changed after the creation.
        retained_since: the commit that changed it.
        retained_since_us: the time of that commit; None in heads of earlier versions.
        policy: the policy as JSON, if it was set after the creation.
        future: rows that were left out because they were too far in the future, since the store's
            creation.
        last_future: the latest example of these.
        erasure: the id of the last act that erased events; None if there was none.
        marks: the transactions of the stored batch (`write/batch.py`); None if it has none. The log
            entry has them too, but `repair` may have to write that again.
        ctis: the CTIs of the store and of its writers.
    """

    parent: int | None
    commit: int
    commit_us: int
    depth: int = 0
    rows: int = 0
    dropped: int = 0
    adjusted: int = 0
    last_dropped: dict[str, Any] | None = None
    last_adjusted: dict[str, Any] | None = None
    retained: str | None = None
    retained_since: int | None = None
    retained_since_us: int | None = None
    policy: str | None = None
    future: int = 0
    last_future: dict[str, Any] | None = None
    erasure: str | None = None
    marks: dict[str, int] | None = None
    ctis: CtiRecord = field(default_factory=CtiRecord)


NO_COMMIT: Final = CommitMetadata(parent=None, commit=-1, commit_us=NEVER_US)
"""The metadata of a store without commits."""


_ABSENT: Final = {name: number for name, (_, number) in _INDEX_COLUMNS.items()}
"""The values of an unknown series."""

_NO_COLUMNS: Final = BlockColumns({name: np.empty(0, np.int64) for name in _INDEX_COLUMNS})


@dataclass(frozen=True, slots=True)
class SeriesIndex:
    """The state of each series after the commit of `metadata`.

    `ids` has the position of each series in the columns. These are `last_sequence`; `newest_us`,
    the newest timestamp of any event; `original_sequence` and `original_us`, those of the newest
    original; `first_us`, the earliest timestamp of any original, NEVER_US where an old head does
    not say it; `edits`, how many there ever were; and, if the retained range was changed,
    `floor_sequence` and `floor_us`.
    """

    ids: SeriesIds = field(default_factory=SeriesIds)
    columns: BlockColumns = field(default_factory=lambda: _NO_COLUMNS)
    metadata: CommitMetadata = NO_COMMIT

    @property
    def cti_us(self) -> int:
        """The store's CTI; NEVER_US if it has none."""
        store_us = self.metadata.ctis.store_us
        return NEVER_US if store_us is None else store_us

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """Return the columns of the series `names`; NO_SEQUENCE and NEVER_US for unknown ones."""
        return self.columns.take(self.ids.find(names), _ABSENT)

    def lookup_one(self, name: str) -> dict[str, int]:
        """Return what `lookup` returns for one series, as numbers."""
        return self.columns.row(self.ids.find_one(name), _ABSENT)

    def min_retained(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """Return `floor_sequence` and `floor_us` of `names`: events below one are out of range."""
        return self.columns.take(self.ids.find(names), MIN_RETAINED_DEFAULTS)


@dataclass(frozen=True, slots=True)
class OneSeries:
    """An index change of one series, as numbers: a single append is spared the columns.

    Attributes:
        series: the name of the series.
        state: its numbers by column, without floors.
    """

    series: str
    state: Mapping[str, int]

    def to_table(self) -> pa.Table:
        """Return the table that `make_change` returns."""
        numbers = (pa.array([self.state[name]], kind) for name, (kind, _) in _INDEX_COLUMNS.items())
        names = pa.array([self.series], pa.string())
        return pa.Table.from_arrays([names, *numbers], schema=_SCHEMA)


def apply_change(index: SeriesIndex, change: pa.Table) -> SeriesIndex:
    """Return `index` after the commit of `change`; `index` itself does not change."""
    return _put_rows(index, change, read_metadata(change.schema))


def _put_rows(index: SeriesIndex, change: pa.Table, metadata: CommitMetadata) -> SeriesIndex:
    # NumPy converts a million names to str in a quarter of the time.
    names = change["series"].to_numpy().tolist()
    rows = index.ids.add(names)
    changed = set(change.column_names)
    absent = _default_values(index.columns, changed)
    changes = {name: to_int64(change[name]) for name in absent if name in changed}
    return SeriesIndex(index.ids, index.columns.put(rows, changes, absent), metadata)


def _put_row(index: SeriesIndex, row: OneSeries, metadata: CommitMetadata) -> SeriesIndex:
    absent = _default_values(index.columns)
    columns = index.columns.put_one(index.ids.add_one(row.series), row.state, absent)
    return SeriesIndex(index.ids, columns, metadata)


def merge_changes(changes: Sequence[pa.Table]) -> list[pa.Table]:
    """Merge neighbouring changes of few rows; the result, in order, makes the same index."""
    merged: list[pa.Table] = []
    for is_small, run in groupby(changes, _is_small_change):
        tables = list(run)
        if not is_small or len(tables) == 1:
            merged += tables
            continue
        rows = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
        # A series keeps the place where it first appears, and gets the values of its last row.
        last = {name: row for row, name in enumerate(rows["series"].to_pylist())}
        chosen = rows.take(pa.array(list(last.values()), pa.int64())).combine_chunks()
        merged.append(chosen.replace_schema_metadata(tables[-1].schema.metadata))
    return merged


def _is_small_change(change: pa.Table) -> bool:
    return bool(change.num_rows <= MAX_MERGED_ROWS and change.column_names == _SCHEMA.names)


def filter_series(change: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of the series `names`; an index of such changes is complete for these."""
    # A name with an unpaired surrogate cannot exist, but may be looked up.
    texts = pa.array([name.encode(errors="replace") for name in names], pa.string())
    return change.filter(pc.is_in(change["series"], texts))


def _default_values(*named: Collection[str]) -> dict[str, int]:
    """Return an unknown series' value in each column, including floors if `named` has them."""
    floors = {
        key: low
        for key, low in MIN_RETAINED_DEFAULTS.items()
        if any(key in names for names in named)
    }
    return _ABSENT | floors


def make_change(names: pa.Array, columns: Mapping[str, Int64Array]) -> pa.Table:
    """Return a change of the series `names` with their values in `columns`, floors included."""
    # A view takes a tenth of the time of a cast, which a small commit feels.
    arrays = [pa.array(columns[name]).view(kind) for name, (kind, _) in _INDEX_COLUMNS.items()]
    texts = names if names.type == pa.string() else names.cast(pa.string())
    table = pa.Table.from_arrays([texts, *arrays], schema=_SCHEMA)
    for name in MIN_RETAINED_DEFAULTS:
        if name in columns:
            table = table.append_column(name, pa.array(columns[name]))
    return table


def make_full_table(index: SeriesIndex) -> pa.Table:
    """Return a table of all series that have events, with the metadata of `index` at depth 0."""
    size = index.columns.rows
    table = make_change(pa.array(index.ids.names()[:size], pa.string()), index.columns)
    rows = table.filter(pa.array(index.columns["last_sequence"] != NO_SEQUENCE))
    return attach_metadata(rows, dataclasses.replace(index.metadata, depth=0, rows=0))


def min_retained_table(index: SeriesIndex) -> pa.Table | None:
    """Return the floors of all series as a change of nothing else; None if there are none."""
    if "floor_sequence" not in index.columns:
        return None
    size = index.columns.rows
    columns = {name: pa.array(index.columns[name]) for name in MIN_RETAINED_DEFAULTS}
    return pa.table({"series": pa.array(index.ids.names()[:size], pa.string()), **columns})


def needs_full_table(metadata: CommitMetadata, series: int) -> bool:
    """Return whether the chain of changes is long, or has more rows than the store has series."""
    most = max(MAX_CHANGES, series // SERIES_PER_CHANGE)
    return metadata.depth > most or metadata.rows > max(series, MIN_FULL_TABLE_ROWS)


def next_metadata(
    index: SeriesIndex,
    head_id: int | None,
    *,
    now_us: int,
    rows: int,
    marks: dict[str, int] | None = None,
) -> CommitMetadata:
    """Return the metadata of the commit after `index`, the index of the head `head_id`."""
    metadata = index.metadata
    return dataclasses.replace(
        metadata,
        parent=head_id,
        commit=metadata.commit + 1,
        commit_us=max(metadata.commit_us, now_us),
        depth=metadata.depth + 1,
        rows=metadata.rows + rows,
        marks=marks or None,
    )


def advance_index(
    index: SeriesIndex, change: pa.Table, metadata: CommitMetadata, row: OneSeries | None = None
) -> tuple[SeriesIndex, pa.Table]:
    """Return the index after a commit, and its table: `change`, or all series if that is due.

    If the caller has what `change` says as numbers, too, it gives them as `row`.
    """
    change = attach_metadata(change, metadata)
    if row is not None:
        after = _put_row(index, row, metadata)
    else:
        after = _put_rows(index, change, metadata)
    if not needs_full_table(metadata, len(index.ids)):
        return after, change
    table = make_full_table(after)
    return dataclasses.replace(after, metadata=read_metadata(table.schema)), table


_METADATA_FIELDS: Final = tuple(known.name for known in dataclasses.fields(CommitMetadata))


def attach_metadata(change: pa.Table, metadata: CommitMetadata) -> pa.Table:
    """Return `change` with `metadata` in its schema's metadata."""
    fields = {name: getattr(metadata, name) for name in _METADATA_FIELDS}
    text = json.dumps({**fields, "ctis": metadata.ctis.to_json()})
    return change.replace_schema_metadata({_METADATA_KEY: seal(text.encode())})


def read_metadata(schema: pa.Schema) -> CommitMetadata:
    """Return the commit metadata in a head file's schema; raise ValueError if absent or damaged."""
    sealed = (schema.metadata or {}).get(_METADATA_KEY)
    if sealed is None:
        raise ValueError("it has no commit metadata")
    try:
        fields = json.loads(bytes(unseal(sealed)))
        return CommitMetadata(**{**fields, "ctis": CtiRecord.from_json(fields["ctis"])})
    except (TypeError, KeyError) as error:
        raise ValueError("its commit metadata has an unknown form") from error


STATE_COLUMNS: Final = (
    *("series", "sequence", "timestamp", "original_sequence", "commit", "commit_time", "erasure"),
)
"""`compute_state` computes the state of a series from these columns of events."""

_COMBINED_BY: Final = {"first_us": "min", "edits": "sum"}
"""How values of one series become one; all others by their maximum."""

_EMPTY: Final = {
    "last_sequence": NO_SEQUENCE,
    "newest_us": NEVER_US,
    "original_sequence": NO_SEQUENCE,
    "original_us": NEVER_US,
    "first_us": NEVER_US,
    "edits": 0,
    "edit_sequence": NO_SEQUENCE,
    "horizon_sequence": NO_SEQUENCE,
    "horizon_us": NEVER_US,
}


def compute_state(events: pa.Table, horizon: int) -> pa.Table:
    """Return the state of each series, one row each; NO_SEQUENCE or NEVER_US if no event counts.

    `last_sequence`: of any event; `newest_us`: of any event that is not erased, an edit's time at
    most that of its commit; `original_sequence`, `original_us`: of originals that are not erased;
    `first_us`: the earliest timestamp of any original; `edits`: their number; `edit_sequence`: of
    edits that are not erased; `horizon_sequence`, `horizon_us`: the last sequence, and the newest
    timestamp of an original that is not erased, in the commits up to `horizon`, inclusive.
    """
    sequence = events["sequence"]
    us = events["timestamp"].cast(pa.int64())
    has_values = pc.is_null(events["erasure"])
    is_edit = pc.is_valid(events["original_sequence"])
    original, edit = pc.and_not(has_values, is_edit), pc.and_(has_values, is_edit)
    # An edit may have taken its time from an original in the future that is now erased (18.8).
    counted_us = pc.if_else(
        edit, pc.min_element_wise(us, events["commit_time"].cast(pa.int64())), us
    )
    early = pc.less_equal(events["commit"], horizon)
    none = pa.scalar(None, pa.int64())
    columns = {
        "last_sequence": sequence,
        "newest_us": pc.if_else(has_values, counted_us, none),
        "original_sequence": pc.if_else(original, sequence, none),
        "original_us": pc.if_else(original, us, none),
        "first_us": pc.if_else(is_edit, none, us),
        "edits": is_edit.cast(pa.int64()),
        "edit_sequence": pc.if_else(edit, sequence, none),
        "horizon_sequence": pc.if_else(early, sequence, none),
        "horizon_us": pc.if_else(pc.and_(early, original), us, none),
    }
    return _combine_rows(pa.table({"series": events["series"].cast(pa.string()), **columns}))


def combine_states(states: Iterable[pa.Table]) -> pa.Table:
    """Return the state of all events from the states of their parts."""
    held = list(states)
    if not held:
        columns = {name: pa.array([], pa.int64()) for name in _EMPTY}
        return pa.table({"series": pa.array([], pa.string()), **columns})
    known = [
        pc.if_else(
            pc.equal(part["first_us"], NEVER_US), pa.scalar(None, pa.int64()), part["first_us"]
        )
        for part in held
    ]
    place = held[0].schema.get_field_index("first_us")
    parts = [part.set_column(place, "first_us", us) for part, us in zip(held, known, strict=True)]
    return _combine_rows(pa.concat_tables(parts))


def _combine_rows(table: pa.Table) -> pa.Table:
    ways = [(name, _COMBINED_BY.get(name, "max")) for name in _EMPTY]
    grouped = table.group_by("series").aggregate(ways)
    columns = {
        name: grouped[f"{name}_{way}"].fill_null(_EMPTY[name]).combine_chunks()
        for name, way in ways
    }
    return pa.table({"series": grouped["series"], **columns})


def state_to_change(table: pa.Table) -> pa.Table:
    """Return states as the rows of a change, without commit metadata."""
    names = table["series"].combine_chunks()
    return make_change(names, {name: to_int64(table[name]) for name in _EMPTY})


def build_index(
    states: pa.Table, metadata: CommitMetadata, floors: pa.Table | None = None
) -> SeriesIndex:
    """Return the index of series in these states, with the `floors` from `min_retained_table`."""
    head = apply_change(SeriesIndex(), attach_metadata(state_to_change(states), metadata))
    return head if floors is None else apply_change(head, attach_metadata(floors, metadata))
