"""The driver's side of a subscription: find the end of each batch, and divide it among tasks."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from pyspark_tseries.model.ranges import ALL_SERIES, SeriesChoice, format_range, parse_range
from pyspark_tseries.model.series_index import STATE_COLUMNS, SeriesIndex
from pyspark_tseries.read.delivery import (
    Delivery,
    InitialEvents,
    Position,
    count_initial_events,
    filter_after,
    find_initial_end,
    flag_delivered,
    keep_chosen,
    select_initial_events,
)
from pyspark_tseries.read.scan import sample_series
from pyspark_tseries.read.view import known_series
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, read_rows
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.commit_history import describe_change, find_commit_id, is_given_up
from pyspark_tseries.store.store import Store

MAX_ROWS_PER_TASK: Final = 250_000


@dataclass(frozen=True, slots=True)
class Wording:
    """How errors name a position, where it is kept, and how to start over."""

    position: str
    other: str
    reader: str
    way_back: str
    anew: str


_QUERY: Final = Wording(
    "the checkpoint",
    "start with a new checkpoint",
    "this query's checkpoint",
    "put the checkpoint of the same backup back, from which the query goes on",
    "start with a new checkpointLocation, which gives the initial events (subscriptionRange, "
    "startingSequence) and all that follows",
)


class Subscription:
    """Finds the events that one subscriber gets from one store.

    Args:
        location: the store.
        initial: the events that a new subscriber gets first.
        check: called with each new snapshot; an error that it raises ends the subscription.
        choice: the series that it gets; its positions count only these.
        wording: how errors name the subscriber's position.
    """

    def __init__(
        self,
        location: str | Location,
        initial: InitialEvents,
        check: Callable[[Snapshot], None] = lambda _: None,
        choice: SeriesChoice = ALL_SERIES,
        wording: Wording = _QUERY,
    ) -> None:
        self._store = Store.open(location)
        self._initial = initial
        self._check = check
        self._choice = choice
        self._wording = wording
        self._last_snapshot: tuple[tuple[int, int | None], Snapshot] | None = None
        self._initial_counts: tuple[Any, list[str], Int64Array] | None = None

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
            seen=self._count_events(head),
            missed=self._count_missed_starts(snapshot, head),
            retained=format_range(snapshot.settings.retained),
            retained_since=head.metadata.retained_since,
            commit_id=find_commit_id(self._store, commit),
        )

    def count_due(self, start: Position) -> Position:
        """Return the position of a new subscriber with the number of its initial events.

        So initial events that are removed before its first batch count as missed.
        """
        _, counts = self._count_initial(start, *self._read_store(start))
        return replace(start, due=int(counts.sum()))

    def is_current(self) -> bool:
        """Return whether the store has nothing new since its last snapshot; this costs little."""
        return (
            self._last_snapshot is not None
            and self._store.refresh()
            and self._last_snapshot[0] == (self._store.version(), self._store.head_id())
        )

    def find_commit_of(self, position: Position, later: Position) -> Position:
        """Return a position between batches with the id of its own commit.

        Args:
            position: a position up to `later`.
            later: the end of its batch, as `find_end` returned it.
        """
        newest = position.commit + (not position.initial and position.after is not None)
        later_id = later.commit_id
        if later_id is not None and newest < later_id.number and not position.initial:
            commit_id = find_commit_id(self._store, newest)
            # If the store was put back in the meantime, `later_id` makes the next read refuse it.
            if describe_change(self._store, later_id) is None:
                return replace(position, commit_id=commit_id)
        return replace(position, commit_id=later_id)

    def last_commit(self) -> int:
        """Return the store's last commit."""
        return self._read_store()[1].metadata.commit

    def find_end(
        self, start: Position, max_events: int | None, upto: int | None = None
    ) -> Position:
        """Return the end of the batch that starts at `start`; `start` itself if nothing is new.

        Args:
            start: a position of this store.
            max_events: the most events; None for all. Initial events come in whole series.
            upto: the last commit of the batch, not before `start`; None for the store's last one.
        """
        snapshot, head = self._read_store(start)
        if start.initial:
            if max_events is None and start.due is None:
                # One batch delivers all initial events, so there is no need to count them.
                return replace(start, initial=False, upto=None)
            counts = self._count_initial(start, snapshot, head)
            delivered = 0
            if start.after is not None:
                delivered = self._count_delivered(start, start.after, snapshot, head)
            return find_initial_end(start, *counts, max_events, delivered)
        end = self._find_live_end(start, max_events, snapshot, head, upto)
        if end == start:
            return end
        newest = end.commit + (end.after is not None)
        return replace(end, commit_id=find_commit_id(self._store, newest))

    def _count_up_to(self, snapshot: Snapshot, head: SeriesIndex, commit: int) -> int:
        """Return the number of events of the chosen series up to `commit`."""
        count, newest = self._count_events(head), head.metadata.commit
        if commit >= newest:
            return count
        later = self._read_commits(snapshot, ("commit",), (commit + 1, newest))
        return count - int(later.num_rows)

    def _count_events(self, head: SeriesIndex) -> int:
        """Return the number of events of the chosen series that were ever committed."""
        names = self._name_chosen(head) if self._choice.names is None else self._choice.names
        last_sequences = head.columns["last_sequence"]
        if names is not None:
            last_sequences = head.lookup(list(names))["last_sequence"]
        return int((last_sequences + 1).sum())

    def _name_chosen(self, head: SeriesIndex) -> list[str] | None:
        """Return the names of the chosen series; None for all."""
        return None if self._choice.is_all else self._choice.pick(known_series(head))

    def _find_live_end(
        self,
        start: Position,
        max_events: int | None,
        snapshot: Snapshot,
        head: SeriesIndex,
        upto: int | None,
    ) -> Position:
        """Return the end of a batch after the initial events; the commits up to `upto` are due."""
        newest = head.metadata.commit
        commit = newest if upto is None else min(upto, newest)
        if commit == start.commit:
            return start
        due = start.commit + 1, commit
        # Compaction may have removed some of the events.
        is_whole = self._store.horizon() <= start.commit
        later = None
        if is_whole and not self._choice.is_all and self._choice.names is None:
            # Counting the chosen series among many takes longer than reading the new events.
            later = self._read_due(snapshot, start, due)
            count = committed = later.num_rows
            seen_count = start.seen + committed
        else:
            seen_count = self._count_up_to(snapshot, head, commit)
            count = committed = seen_count - start.seen
        if later is None and (not is_whole or committed > (max_events or committed)):
            later = self._read_due(snapshot, start, due)
            count = later.num_rows
        missed = start.missed + committed - count
        end = replace(start, commit=commit, after=None, seen=seen_count, missed=missed)
        if max_events is None or later is None or count <= max_events:
            return end
        commits, rows = np.unique(to_int64(later["commit"]), return_counts=True)
        within = np.cumsum(rows)
        whole_commits = int(np.searchsorted(within, max_events, "right"))
        if whole_commits:
            end = replace(end, seen=seen_count - count + int(within[whole_commits - 1]))
            return replace(end, commit=int(commits[whole_commits - 1]))
        # Not even one commit fits, so the batch ends within it.
        commit = int(commits[0])
        after = start.after if commit == start.commit + 1 else None
        key = self._find_key(snapshot, commit, after, max_events)
        return replace(end, commit=commit - 1, after=key, seen=seen_count - count + max_events)

    def plan_tasks(self, start: Position, end: Position) -> list[Delivery]:
        """Divide the events between two positions among tasks, by series."""
        snapshot, head = self._read_store(end)
        # The batch may end within the commit after `end.commit`.
        last_commit = end.commit + (end.after is not None)
        data = [
            file
            for file in snapshot.files
            if file.first_commit <= (start.began if start.initial else last_commit)
            and (start.initial or file.last_commit > start.commit)
        ]
        if not data or (start == end):
            return []
        choice, rows = self._choice, sum(file.rows for file in data)
        if start.initial:
            names = self._name_initial(start, end, snapshot, head)
            choice = choice if names is None else SeriesChoice(tuple(names))
        else:
            rows = min(rows, end.seen - start.seen)
        if choice.names == ():
            return []
        samples = sample_series(head, rows, choice.names)
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
                choice,
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
        if self._last_snapshot is None or self._last_snapshot[0] != state:
            snapshot = self._store.snapshot()
            self._check(snapshot)
            self._last_snapshot = state, snapshot
        return self._last_snapshot[1], self._last_snapshot[1].index()

    def _check_store(self, position: Position) -> None:
        words = self._wording
        if position.store != self._store.id:
            raise UnusableStore(
                f"{words.position} is of another store than the one now at '{self._store.root}'",
                "the store that was subscribed to",
                f"correct the path, or {words.other}",
            )
        if position.commit_id is None:
            return
        change = describe_change(self._store, position.commit_id)
        if change is not None and not is_given_up(self._store.location, position.commit_id):
            raise HistoryChanged(
                f"the store '{self._store.root}' {change}, and {words.reader} has seen "
                f"{position.commit_id} there: an older state of the store was put back, or another "
                "copy of it",
                "the store as it was read, or a later state of that",
                f"put that state of the store back; or {words.way_back}; or {words.anew}. "
                "Nothing was delivered since",
            )

    def _read_commits(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        commits: tuple[int, int],
        expression: pc.Expression | None = None,
    ) -> pa.Table:
        """Read `columns` of the events of `commits`, first and last inclusive."""
        data = [
            file
            for file in snapshot.files
            if file.last_commit >= commits[0] and file.first_commit <= commits[1]
        ]
        choice = self._choice
        if not choice.is_all and choice.names is None:
            columns = list(dict.fromkeys([*columns, "series"]))
        row_filter = RowFilter(choice.names, commits=commits)
        rows = read_rows(self._store.location, data, BASE_SCHEMA, columns, row_filter, expression)
        return keep_chosen(rows, choice)

    def _read_due(self, snapshot: Snapshot, start: Position, due: tuple[int, int]) -> pa.Table:
        columns = ("commit",) if start.after is None else ("commit", "series", "sequence")
        return self._read_commits(snapshot, columns, due, filter_after(start))

    def _find_key(self, snapshot: Snapshot, commit: int, key: Key | None, number: int) -> Key:
        expression = None if key is None else KeyRange((key[0], key[1] + 1)).expression()
        rows = self._read_commits(snapshot, ("series", "sequence"), (commit, commit), expression)
        names, codes = encode_runs(rows["series"])
        sequence = to_int64(rows["sequence"])
        row = int(sort_keys(codes, sequence)[number - 1])
        return names[int(codes[row])].as_py(), int(sequence[row])

    def _count_initial(
        self, start: Position, snapshot: Snapshot, head: SeriesIndex
    ) -> tuple[list[str], Int64Array]:
        """Count the initial events of each series; count again when some may have been removed."""
        changes = snapshot.metadata.retained_since, snapshot.metadata.erasure
        now = start.began, self._store.horizon(), *changes
        if self._initial_counts is None or self._initial_counts[0] != now:
            retained = parse_range(start.retained)
            before = SeriesIndex() if _began_without_floors(start, snapshot) else head
            names: list[str] = []
            counts: list[Int64Array] = []
            data = [file for file in snapshot.files if file.first_commit <= start.began]
            requested = self._name_chosen(head)
            if requested == []:
                data, requested = [], None
            samples = sample_series(head, sum(file.rows for file in data), requested)
            for key_range in split_keys(samples, 4 * MAX_ROWS_PER_TASK, whole_series=True):
                row_filter = RowFilter(requested, key_range, commits=(MIN_NUMBER, start.began))
                keys = read_rows(snapshot.location, data, BASE_SCHEMA, STATE_COLUMNS, row_filter)
                chosen = select_initial_events(keys, retained, before, self._initial)
                counted = count_initial_events(keys, chosen)
                names += counted[0]
                counts.append(counted[1])
            self._initial_counts = now, names, np.concatenate(counts)
        return self._initial_counts[1], self._initial_counts[2]

    def _count_delivered(
        self, start: Position, after: Key, snapshot: Snapshot, head: SeriesIndex
    ) -> int:
        """Count the initial events up to `after` in its series that are still stored."""
        data = [
            file
            for file in snapshot.files
            if file.first_commit <= start.began and file.first <= after[0] <= file.last
        ]
        row_filter = RowFilter([after[0]], commits=(MIN_NUMBER, start.began))
        keys = read_rows(snapshot.location, data, BASE_SCHEMA, STATE_COLUMNS, row_filter)
        before = SeriesIndex() if _began_without_floors(start, snapshot) else head
        chosen = select_initial_events(keys, parse_range(start.retained), before, self._initial)
        return int((chosen & flag_delivered(keys, after)).sum())

    def _name_initial(
        self, start: Position, end: Position, snapshot: Snapshot, head: SeriesIndex
    ) -> list[str] | None:
        """Return the series with initial events between two positions; None if all are chosen."""
        if self._choice.is_all:
            return None
        names, _ = self._count_initial(start, snapshot, head)
        begin = 0 if start.upto is None else bisect.bisect_right(names, start.upto)
        end_position = bisect.bisect_right(names, end.upto) if end.upto is not None else len(names)
        return names[begin:end_position]

    def _count_missed_starts(self, snapshot: Snapshot, head: SeriesIndex) -> int:
        """Count the events that `startingSequence` asks for but that are gone."""
        starts = self._initial.starts
        if not starts:
            return 0
        names = list(starts)
        last_sequences = head.lookup(names)["last_sequence"]
        requested_count = np.maximum(
            last_sequences + 1 - np.array([starts[name] for name in names]), 0
        ).sum()
        stored = 0
        for name in names:
            data = [file for file in snapshot.files if file.first <= name <= file.last]
            row_filter = RowFilter([name], sequences=(starts[name], MAX_NUMBER))
            stored += read_rows(
                snapshot.location, data, BASE_SCHEMA, ("sequence",), row_filter
            ).num_rows
        return int(requested_count - stored)


def _began_without_floors(start: Position, snapshot: Snapshot) -> bool:
    """Return whether all minimums of the head are younger than a subscription.

    Otherwise the current minimums apply, and events that a younger one hides are missed.
    """
    changed = snapshot.metadata.retained_since != start.retained_since
    return start.retained_since is None and changed
