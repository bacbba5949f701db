"""The driver's side of a subscription: find the end of each batch, and divide it among tasks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import HistoryChanged, UnusableStore
from pyspark_tseries.model.arrays import (
    MAX_NUMBER,
    MIN_NUMBER,
    Int64Array,
    Key,
    KeyRange,
    encode_runs,
    sort_keys,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.commits import CtiRecord
from pyspark_tseries.model.ranges import format_range, parse_range
from pyspark_tseries.model.series_index import STATE_COLUMNS, SeriesIndex
from pyspark_tseries.read.delivery import (
    Delivery,
    InitialEvents,
    Position,
    count_initial_events,
    filter_after,
    find_initial_end,
    select_initial_events,
)
from pyspark_tseries.read.scan import sample_series
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, read_rows
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.history import describe_change, find_commit_id, is_given_up
from pyspark_tseries.store.store import Store

MAX_ROWS_PER_TASK: Final = 250_000


class Subscription:
    """What one subscriber gets of one store.

    Args:
        location: the store.
        initial: the events that a new subscriber gets first.
        check: called with each new snapshot; an error that it raises ends the subscription.
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
        """Return the store's record of CTIs."""
        return self._read_store()[1].metadata.ctis

    def find_start(self) -> Position:
        """Return the position of a new subscriber."""
        snapshot, head = self._read_store()
        commit = head.metadata.commit
        return Position(
            store=self._store.id,
            began=commit,
            initial=commit >= 0,
            commit=commit,
            seen=_count_events(head),
            missed=self._count_missed_starts(snapshot, head),
            retained=format_range(snapshot.settings.retained),
            retained_since=head.metadata.retained_since,
            commit_id=find_commit_id(self._store, commit),
        )

    def last_commit(self) -> int:
        """Return the store's last commit."""
        return self._read_store()[1].metadata.commit

    def find_end(
        self, start: Position, max_events: int | None, upto: int | None = None
    ) -> Position:
        """Return the end of the batch that starts at `start`; `start` itself if nothing is new.

        Args:
            start: a position of this store.
            max_events: at most this many events; None for all. Initial events come in whole series.
            upto: the last commit of the batch, not before `start`; None for the store's last one.
        """
        snapshot, head = self._read_store(start)
        if start.initial:
            if max_events is None and start.due is None:
                # One batch delivers all initial events, so there is no need to count them.
                return replace(start, initial=False, upto=None)
            return find_initial_end(start, *self._count_initial(start, snapshot, head), max_events)
        last = self._find_last(snapshot, head, upto)
        end = self._find_live_end(start, max_events, snapshot, last)
        if end == start:
            return end
        newest = end.commit + (end.after is not None)
        return replace(end, commit_id=find_commit_id(self._store, newest))

    def _find_last(
        self, snapshot: Snapshot, head: SeriesIndex, upto: int | None
    ) -> tuple[int, int]:
        """Return the last commit, at most `upto`, and how many events there were by then."""
        commit, seen = head.metadata.commit, _count_events(head)
        if upto is None or upto >= commit:
            return commit, seen
        later = self._read_commits(snapshot, ("commit",), (upto + 1, commit))
        return upto, seen - later.num_rows

    def _find_live_end(
        self, start: Position, max_events: int | None, snapshot: Snapshot, last: tuple[int, int]
    ) -> Position:
        """Return the end of a batch after the initial events; the commits up to `last` are due."""
        commit, seen = last
        if commit == start.commit:
            return start
        committed = seen - start.seen
        there, later = committed, None
        if self._store.horizon() > start.commit or committed > (max_events or committed):
            # Compaction may have removed some of the events, or not all fit into one batch.
            columns = ("commit",) if start.after is None else ("commit", "series", "sequence")
            due = start.commit + 1, commit
            later = self._read_commits(snapshot, columns, due, filter_after(start))
            there = later.num_rows
        missed = start.missed + committed - there
        end = replace(start, commit=commit, after=None, seen=seen, missed=missed)
        if max_events is None or later is None or there <= max_events:
            return end
        commits, rows = np.unique(to_int64(later["commit"]), return_counts=True)
        within = np.cumsum(rows)
        whole = int(np.searchsorted(within, max_events, "right"))
        if whole:
            end = replace(end, seen=seen - there + int(within[whole - 1]))
            return replace(end, commit=int(commits[whole - 1]))
        # Not even one commit fits, so the batch ends within it.
        commit = int(commits[0])
        after = start.after if commit == start.commit + 1 else None
        key = self._find_key(snapshot, commit, after, max_events)
        return replace(end, commit=commit - 1, after=key, seen=seen - there + max_events)

    def plan_tasks(self, start: Position, end: Position) -> list[Delivery]:
        """Divide the events between two positions among tasks, by series."""
        snapshot, head = self._read_store(end)
        # The batch may end within the commit after `end.commit`.
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
        samples = sample_series(head, rows if start.initial else min(rows, end.seen - start.seen))
        return [
            Delivery(
                snapshot.location,
                tuple(file for file in data if key_range.overlaps(file.first, file.last)),
                tuple(snapshot.values),
                key_range,
                start,
                end,
                self._initial,
                None if _began_without_floors(start, snapshot) else snapshot.head_id,
                parse_range(start.retained),
            )
            for key_range in split_keys(samples, MAX_ROWS_PER_TASK, whole_series=True)
        ]

    def _read_store(self, position: Position | None = None) -> tuple[Snapshot, SeriesIndex]:
        """Return the store as it is now, after checking that it has all before `position`.

        Without new commits this only lists the log.
        """
        if not self._store.refresh():
            self._store = Store.open(self._store.location)
        if position is not None:
            self._check_store(position)
        # Compare the head, too: an older log that was put back may have grown to the same version.
        state = self._store.version(), self._store.head_id()
        if self._known is None or self._known[0] != state:
            snapshot = self._store.snapshot()
            self._check(snapshot)
            self._known = state, snapshot
        return self._known[1], self._known[1].index()

    def _check_store(self, position: Position) -> None:
        if position.store != self._store.id:
            raise UnusableStore(
                f"the checkpoint is of another store than the one now at '{self._store.root}'",
                "the store that the query subscribed to",
                "correct the path, or start with a new checkpoint",
            )
        if position.commit_id is None:
            return
        change = describe_change(self._store, position.commit_id)
        if change is not None and not is_given_up(self._store.location, position.commit_id):
            raise HistoryChanged(
                f"the store '{self._store.root}' {change}, and this query's checkpoint has seen "
                f"{position.commit_id} there: an older state of the store was put back, or another "
                "copy of it",
                "the store that the query has read, or a later state of that",
                "put that state of the store back; or put the checkpoint of the same backup back, "
                "from which the query goes on; or start with a new checkpointLocation, which gives "
                "the initial events (subscriptionRange, startingSequence) and all that follows. "
                "Nothing was delivered since",
            )

    def _read_commits(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        commits: tuple[int, int],
        wanted: pc.Expression | None = None,
    ) -> pa.Table:
        """Read `columns` of the events of `commits`, first and last inclusive."""
        data = [
            file
            for file in snapshot.files
            if file.last_commit >= commits[0] and file.first_commit <= commits[1]
        ]
        row_filter = RowFilter(commits=commits)
        return read_rows(self._store.location, data, BASE_SCHEMA, columns, row_filter, wanted)

    def _find_key(self, snapshot: Snapshot, commit: int, key: Key | None, number: int) -> Key:
        wanted = None if key is None else KeyRange((key[0], key[1] + 1)).expression()
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
            retained = parse_range(start.retained)
            before = SeriesIndex() if _began_without_floors(start, snapshot) else head
            names: list[str] = []
            counts: list[Int64Array] = []
            data = [file for file in snapshot.files if file.first_commit <= start.began]
            samples = sample_series(head, sum(file.rows for file in data))
            for key_range in split_keys(samples, 4 * MAX_ROWS_PER_TASK, whole_series=True):
                row_filter = RowFilter(keys=key_range, commits=(MIN_NUMBER, start.began))
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


def _began_without_floors(start: Position, snapshot: Snapshot) -> bool:
    """Return whether all minimums of the head are younger than a subscription.

    Otherwise the current minimums apply, and events that a younger one hides are missed.
    """
    changed = snapshot.metadata.retained_since != start.retained_since
    return start.retained_since is None and changed


def _count_events(head: SeriesIndex) -> int:
    return int((head.columns["last_sequence"] + 1).sum())
