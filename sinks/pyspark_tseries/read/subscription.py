"""A subscription: batches and tasks for a position in a store, and the rows of each task.

A task has whole series, so each series is delivered by one task, in the order of sequences.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import HistoryChanged, UnusableStore
from pyspark_tseries.model.arrays import (
    MAX_NUMBER,
    MIN_NUMBER,
    NEVER_US,
    NO_ORIGINAL,
    BoolArray,
    Int64Array,
    Key,
    Sample,
    Slice,
    encode_runs,
    sort_keys,
    split_slices,
    to_int64,
)
from pyspark_tseries.model.columns import query_schema, result_schema, show_columns, table_schema
from pyspark_tseries.model.commits import CtiRecord
from pyspark_tseries.model.retention import RetainedRange, parse_range, retained_mask
from pyspark_tseries.model.series_index import STATE_COLUMNS, SeriesIndex
from pyspark_tseries.read.position import (
    Backlog,
    InitialEvents,
    Position,
    find_initial_end,
    find_live_end,
    start_position,
)
from pyspark_tseries.storage.data_files import DataFile, Snapshot
from pyspark_tseries.storage.head_files import load_partial_index
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, read_rows
from pyspark_tseries.store.history import describe_change, find_mark, is_given_up
from pyspark_tseries.store.store import Store

MAX_ROWS_PER_BATCH = 64 * 1024


@dataclass(frozen=True, slots=True)
class Delivery:
    """One task: deliver the events of `part` between two positions.

    Attributes:
        location: of the store.
        files: may contain these events.
        values: the value columns.
        part: the series.
        start: the position before; its `initial` tells initial events from later ones.
        end: the position after.
        initial: which initial events.
        head_id: the head at the time of planning, for the minimum retained sequences and times.
        retained: the store's range.
    """

    location: Location
    files: tuple[DataFile, ...]
    values: tuple[pa.Field, ...]
    part: Slice
    start: Position
    end: Position
    initial: InitialEvents
    head_id: int | None
    retained: RetainedRange


def filter_up_to(position: Position) -> pc.Expression:
    """A filter for the events delivered up to `position`."""
    commit = pc.field("commit")
    whole = commit <= position.commit
    if position.after is None:
        return whole
    return whole | (
        (commit == position.commit + 1) & Slice(None, _next_key(position.after)).expression()
    )


def filter_after(position: Position) -> pc.Expression:
    """A filter for the events to deliver after `position`."""
    commit = pc.field("commit")
    if position.after is None:
        return commit > position.commit
    rest = (commit == position.commit + 1) & Slice(_next_key(position.after)).expression()
    return (commit > position.commit + 1) | rest


def _next_key(key: tuple[str, int]) -> tuple[str, int]:
    return key[0], key[1] + 1


def read_delivery(task: Delivery) -> Iterator[pa.RecordBatch]:
    """The task's events by (series, sequence), as the columns of a query."""
    chosen = _read_initial(task) if task.start.initial else _read_live(task)
    if not chosen.num_rows:
        return
    _, codes = encode_runs(chosen["series"])
    rows = chosen.take(pa.array(sort_keys(codes, to_int64(chosen["sequence"]))))
    wanted = result_schema(task.values)
    shown = show_columns(rows, wanted.names, at_originals=False)
    yield from shown.cast(wanted).combine_chunks().to_batches(MAX_ROWS_PER_BATCH)


def _read_live(task: Delivery) -> pa.Table:
    # The range may end within the next commit.
    commits = task.start.commit + 1, task.end.commit + 1
    wanted = filter_after(task.start) & filter_up_to(task.end)
    return _read_rows(task, task.files, RowFilter(part=task.part, commits=commits), wanted)


def _read_initial(task: Delivery) -> pa.Table:
    row_filter = RowFilter(part=task.part, commits=(MIN_NUMBER, task.start.began))
    wanted = _filter_series(task.start, task.end)
    keys = [
        read_rows(task.location, [file], BASE_SCHEMA, STATE_COLUMNS, row_filter, wanted)
        for file in task.files
    ]
    if not sum(table.num_rows for table in keys):
        return _read_rows(task, [], row_filter)
    found = pa.concat_tables(keys)
    head, _ = load_partial_index(task.location, task.head_id, found["series"].unique().to_pylist())
    chosen = select_initial_events(found, task.retained, head, task.initial)
    rows, first = [], 0
    for file, table in zip(task.files, keys, strict=True):
        mine, first = chosen[first : first + table.num_rows], first + table.num_rows
        if mine.any():
            # The same conditions on the same file give the same rows in the same order.
            rows.append(_read_rows(task, [file], row_filter, wanted).filter(pa.array(mine)))
    return pa.concat_tables(rows) if rows else _read_rows(task, [], row_filter)


def _filter_series(start: Position, end: Position) -> pc.Expression | None:
    """A filter for the series of initial events between two positions; None for all."""
    series, bounds = pc.field("series"), []
    if start.upto is not None:
        bounds.append(series > start.upto)
    if end.initial:
        bounds.append(series <= end.upto)
    return functools.reduce(operator.and_, bounds) if bounds else None


def _read_rows(
    task: Delivery,
    data: Sequence[DataFile],
    row_filter: RowFilter,
    wanted: pc.Expression | None = None,
) -> pa.Table:
    """The columns of a query, and the commit."""
    schema = pa.schema(list(table_schema(task.values))[:-1])
    columns = [*query_schema(task.values).names, "commit"]
    return read_rows(task.location, data, schema, columns, row_filter, wanted)


def count_initial_events(keys: pa.Table, chosen: BoolArray) -> tuple[list[str], Int64Array]:
    """The series with chosen events, in order, and the number of events of each."""
    names, codes = encode_runs(keys["series"].filter(pa.array(chosen)))
    return names.to_pylist(), np.bincount(codes, minlength=len(names)).astype(np.int64)


def select_initial_events(
    keys: pa.Table, retained: RetainedRange, head: SeriesIndex, initial: InitialEvents
) -> BoolArray:
    """Flags of the events that a new subscriber gets first (semantics 23.2 and 23.3).

    They are the last entries of each series in a `latestEdits` query: originals inside the
    retained range and the latest edit of each. For a series with a known position they are all
    stored events from there on.

    Args:
        keys: the columns `STATE_COLUMNS` of whole series, up to the commit that the subscriber
            starts at.
        retained: the store's range.
        head: has the floors.
        initial: the events that the subscriber asks for.
    """
    names, codes = encode_runs(keys["series"])
    sequence, us = to_int64(keys["sequence"]), to_int64(keys["timestamp"])
    edited = to_int64(keys["original_sequence"].fill_null(NO_ORIGINAL))
    original = edited == NO_ORIGINAL
    counts = original & keys["erasure"].is_null().to_numpy()
    known = names.to_pylist()
    first = np.array([initial.starts.get(name, -1) for name in known], np.int64)[codes]
    chosen: BoolArray = (first >= 0) & (sequence >= first)
    last = np.full(len(known), -1, np.int64)
    newest_us = np.full(len(known), NEVER_US, np.int64)
    np.maximum.at(last, codes, sequence)
    np.maximum.at(newest_us, codes[counts], us[counts])
    floors = head.min_retained(known)
    low, low_us = (floors[name][codes] for name in ("floor_sequence", "floor_us"))
    entry = original & retained_mask(
        retained, sequence, us, last[codes], newest_us[codes], low, low_us
    )
    entry |= _select_latest_edits(codes, sequence, edited, entry)
    if initial.retained.last_us is not None:
        entry &= us >= (newest_us[codes] - initial.retained.last_us)
    if initial.retained.limit is not None:
        entry &= _rank_from_end(codes, sequence, entry) < initial.retained.limit
    chosen |= entry & (first < 0)
    return chosen


def _select_latest_edits(
    codes: Int64Array, sequence: Int64Array, edited: Int64Array, originals: BoolArray
) -> BoolArray:
    """The latest edit of each of `originals`."""
    edits = np.flatnonzero(edited != NO_ORIGINAL)
    found = np.zeros(len(codes), bool)
    if not len(edits):
        return found
    order = edits[np.lexsort((sequence[edits], edited[edits], codes[edits]))]
    same = (np.diff(codes[order]) == 0) & (np.diff(edited[order]) == 0)
    latest = order[np.append(~same, True)]
    rows = np.flatnonzero(originals)
    there = pa.table({"series": codes[rows], "edited": sequence[rows]})
    wanted = pa.table({"series": codes[latest], "edited": edited[latest], "row": latest})
    joined = wanted.join(there, ["series", "edited"], join_type="left semi")
    found[joined["row"].to_numpy()] = True
    return found


def _rank_from_end(codes: Int64Array, sequence: Int64Array, entry: BoolArray) -> Int64Array:
    """The number of entries after each entry in its series."""
    rows = np.flatnonzero(entry)
    order = rows[np.lexsort((-sequence[rows], codes[rows]))]
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    behind = np.full(len(codes), np.iinfo(np.int64).max, np.int64)
    behind[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    return behind


MAX_ROWS_PER_TASK: Final = 250_000
MAX_SAMPLES: Final = 10_000


class Follower:
    """Follows one store for one subscriber; positions come and go as JSON.

    Args:
        location: of the store.
        initial: the initial events.
        check: looks at the store whenever it has changed; what it raises ends the subscription.
    """

    def __init__(
        self,
        location: str | Location,
        initial: InitialEvents,
        check: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        self._store = Store.open(location)
        self._initial = initial
        self._check = check
        self._known: tuple[tuple[int, int | None], Snapshot] | None = None
        self._first: tuple[Any, list[str], Int64Array] | None = None

    def ctis(self) -> CtiRecord:
        """The store's record of CTIs."""
        return self._read_store()[1].metadata.ctis

    def find_start(self) -> Position:
        """The position of a new subscriber."""
        snapshot, head = self._read_store()
        missed = self._count_missed_starts(snapshot, head)
        start = start_position(
            self._store.id, head.metadata, snapshot.retained, _count_events(head), missed
        )
        return replace(start, mark=find_mark(self._store, start.commit))

    def last_commit(self) -> int:
        """The store's last commit."""
        return self._read_store()[1].metadata.commit

    def find_end(
        self, start: Position, max_events: int | None, upto: int | None = None
    ) -> Position:
        """The end of the batch that starts at `start`; `start` itself if nothing is new.

        Args:
            start: a position of this store.
            max_events: at most this many; None for all. Initial events come by whole series.
            upto: the last commit of the batch, not before `start`; None for the store's last one.
        """
        snapshot, head = self._read_store(start)
        if start.initial:
            if max_events is None and start.due is None:
                return replace(start, initial=False, upto=None)
            return find_initial_end(start, *self._count_initial(start, snapshot, head), max_events)
        backlog = self._measure_backlog(start, snapshot, head, upto)
        end = find_live_end(
            start,
            backlog,
            max_events,
            lambda: self._count_by_commit(snapshot, start, backlog.commit),
            lambda commit, key, number: self._find_key(snapshot, commit, key, number),
        )
        if end == start:
            return end
        return replace(end, mark=find_mark(self._store, end.commit + (end.after is not None)))

    def plan_tasks(self, start: Position, end: Position) -> list[Delivery]:
        """Divide the events between two positions among tasks, by series."""
        snapshot, head = self._read_store(end)
        last = end.commit + (end.after is not None)
        data = [
            file
            for file in snapshot.files
            if file.first_commit <= (start.began if start.initial else last)
            and (start.initial or file.last_commit > start.commit)
        ]
        if not data or (start == end):
            return []
        rows = sum(file.rows for file in data)
        samples = _sample_series(head, rows if start.initial else min(rows, end.seen - start.seen))
        return [
            Delivery(
                snapshot.location,
                tuple(file for file in data if part.overlaps(file.first, file.last)),
                tuple(snapshot.values),
                part,
                start,
                end,
                self._initial,
                None if _began_without_floors(start, snapshot) else snapshot.head_id,
                _initial_retained(start, snapshot),
            )
            for part in split_slices(samples, MAX_ROWS_PER_TASK, whole_series=True)
        ]

    def _read_store(self, position: Position | None = None) -> tuple[Snapshot, SeriesIndex]:
        """The store as it is now, which has all before `position`.

        Without new commits only the log is listed.
        """
        if not self._store.refresh():
            self._store = Store.open(self._store.location)
        if position is not None:
            self._check_store(position)
        # The head too: an older log that was put back may have grown to the same version.
        state = self._store.version(), self._store.head_id()
        if self._known is None or self._known[0] != state:
            snapshot = self._store.snapshot()
            self._check(snapshot)
            self._known = state, snapshot
        return self._known[1], self._store.index()[1]

    def _check_store(self, position: Position) -> None:
        if position.store != self._store.id:
            raise UnusableStore(
                f"the checkpoint is of another store than the one now at '{self._store.root}'",
                "the store that the query subscribed to",
                "correct the path, or start with a new checkpoint",
            )
        if position.mark is None:
            return
        found = describe_change(self._store, position.mark)
        if found is not None and not is_given_up(self._store.location, position.mark):
            raise HistoryChanged(
                f"the store '{self._store.root}' {found}, and this query's checkpoint has seen "
                f"{position.mark} there: an older state of the store was put back, or another copy "
                "of it",
                "the store that the query has read, or a later state of that",
                "put that state of the store back; or put the checkpoint of the same backup back, "
                "from which the query goes on; or start with a new checkpointLocation, which gives "
                "the initial events (subscriptionRange, startingSequence) and all that follows. "
                "Nothing was delivered since",
            )

    def _measure_backlog(
        self, start: Position, snapshot: Snapshot, head: SeriesIndex, upto: int | None
    ) -> Backlog:
        commit, seen = head.metadata.commit, _count_events(head)
        if upto is not None and upto < commit:
            later = self._read_commits(snapshot, ("commit",), (upto + 1, commit)).num_rows
            commit, seen = upto, seen - later
        if self._store.horizon() <= start.commit:
            return Backlog(commit, seen, None)
        columns = ("commit",) if start.after is None else ("commit", "series", "sequence")
        found = self._read_commits(
            snapshot, columns, (start.commit + 1, commit), filter_after(start)
        )
        return Backlog(commit, seen, found.num_rows)

    def _read_commits(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        commits: tuple[int, int],
        wanted: pc.Expression | None = None,
    ) -> pa.Table:
        """Some columns of the events of some commits, first and last inclusive."""
        data = [
            file
            for file in snapshot.files
            if file.last_commit >= commits[0] and file.first_commit <= commits[1]
        ]
        row_filter = RowFilter(commits=commits)
        return read_rows(self._store.location, data, BASE_SCHEMA, columns, row_filter, wanted)

    def _count_by_commit(
        self, snapshot: Snapshot, start: Position, commit: int
    ) -> tuple[Int64Array, Int64Array]:
        columns = ("commit",) if start.after is None else ("commit", "series", "sequence")
        found = self._read_commits(
            snapshot, columns, (start.commit + 1, commit), filter_after(start)
        )
        return np.unique(to_int64(found["commit"]), return_counts=True)

    def _find_key(self, snapshot: Snapshot, commit: int, key: Key | None, number: int) -> Key:
        wanted = None if key is None else Slice((key[0], key[1] + 1)).expression()
        rows = self._read_commits(snapshot, ("series", "sequence"), (commit, commit), wanted)
        names, codes = encode_runs(rows["series"])
        sequence = to_int64(rows["sequence"])
        row = int(sort_keys(codes, sequence)[number - 1])
        return names[int(codes[row])].as_py(), int(sequence[row])

    def _count_initial(
        self, start: Position, snapshot: Snapshot, head: SeriesIndex
    ) -> tuple[list[str], Int64Array]:
        """Count the initial events of each series, again whenever some may have been removed."""
        changes = snapshot.metadata.retained_since, snapshot.metadata.erasure
        now = start.began, self._store.horizon(), *changes
        if self._first is None or self._first[0] != now:
            retained = _initial_retained(start, snapshot)
            before = SeriesIndex() if _began_without_floors(start, snapshot) else head
            names: list[str] = []
            counts: list[Int64Array] = []
            data = [file for file in snapshot.files if file.first_commit <= start.began]
            samples = _sample_series(head, sum(file.rows for file in data))
            for part in split_slices(samples, 4 * MAX_ROWS_PER_TASK, whole_series=True):
                row_filter = RowFilter(part=part, commits=(MIN_NUMBER, start.began))
                keys = read_rows(snapshot.location, data, BASE_SCHEMA, STATE_COLUMNS, row_filter)
                chosen = select_initial_events(keys, retained, before, self._initial)
                some = count_initial_events(keys, chosen)
                names += some[0]
                counts.append(some[1])
            self._first = now, names, np.concatenate(counts)
        return self._first[1], self._first[2]

    def _count_missed_starts(self, snapshot: Snapshot, head: SeriesIndex) -> int:
        """Count the events that `startingSequence` asks for and that are gone."""
        starts = self._initial.starts
        if not starts:
            return 0
        names = list(starts)
        last = head.lookup(names)["last_sequence"]
        asked = np.maximum(last + 1 - np.array([starts[name] for name in names]), 0).sum()
        there = 0
        for name in names:
            data = [file for file in snapshot.files if file.first <= name <= file.last]
            row_filter = RowFilter([name], sequences=(starts[name], MAX_NUMBER))
            there += read_rows(
                snapshot.location, data, BASE_SCHEMA, ("sequence",), row_filter
            ).num_rows
        return int(asked - there)


def _initial_retained(start: Position, snapshot: Snapshot) -> RetainedRange:
    """The retained range that the initial events of a subscription are of."""
    return snapshot.retained if start.retained is None else parse_range(start.retained)


def _began_without_floors(start: Position, snapshot: Snapshot) -> bool:
    """Return whether all minimums of the head are younger than a subscription.

    Otherwise the present minimums count, and events that a younger one hides are missed.
    """
    changed = snapshot.metadata.retained_since != start.retained_since
    return start.retained is not None and start.retained_since is None and changed


def _count_events(head: SeriesIndex) -> int:
    return int((head.columns["last_sequence"] + 1).sum())


def _sample_series(head: SeriesIndex, rows: int) -> list[Sample]:
    """Evenly spaced series, each standing for a part of `rows`."""
    names = head.ids.names()
    some = names[:: max(1, len(names) // MAX_SAMPLES)]
    return [(name, 0, max(1, rows // len(some))) for name in some]
