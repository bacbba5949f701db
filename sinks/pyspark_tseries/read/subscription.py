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
from pyspark_tseries.storage.row_reader import RowFilter, base_fields, read_rows
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.commit_history import describe_change, find_commit_id, is_given_up
from pyspark_tseries.store.store import Store

MAX_ROWS_PER_TASK: Final = 250_000


@dataclass(frozen=True, slots=True)
class Wording:
    """How errors name a position and what keeps it, and their ways to go on.

    Attributes:
        position: the position itself.
        start_over: how to go on without it.
        keeper: what keeps it.
        restore: how to get the position that fits an older state of the store.
        start_over_in_full: as `start_over`, with what the subscriber then gets.
    """

    position: str
    start_over: str
    keeper: str
    restore: str
    start_over_in_full: str


_QUERY: Final = Wording(
    "the checkpoint",
    "start with a new checkpoint",
    "this query's checkpoint",
    "put back the query's checkpoint of the same backup",
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
        self._last_snapshot: tuple[Any, Snapshot] | None = None
        self._initial_counts: tuple[Any, list[str], Int64Array] | None = None

    def ctis(self) -> CtiRecord:
        """Return the store's record of CTIs."""
        return self._read_store().metadata.ctis

    def find_start(self) -> Position:
        """Return the position of a new subscriber."""
        snapshot = self._read_store()
        commit = snapshot.metadata.commit
        return Position(
            store=self._store.id,
            began=commit,
            initial=commit >= 0,
            commit=commit,
            seen=self._count_events(snapshot),
            missed=self._count_missed_starts(snapshot),
            retained=format_range(snapshot.settings.retained),
            retained_since=snapshot.metadata.retained_since,
            commit_id=find_commit_id(self._store, commit),
        )

    def count_due(self, start: Position) -> Position:
        """Return the position of a new subscriber with the number of its initial events.

        With it, initial events that are removed before the first batch count as missed.
        """
        _, counts = self._count_initial(start, self._read_store(start))
        return replace(start, due=int(counts.sum()))

    def is_current(self) -> bool:
        """Return whether the store has nothing new since the last snapshot; this is cheap."""
        return (
            self._last_snapshot is not None
            and self._store.refresh()
            and self._last_snapshot[0] == self._store.log.state
        )

    def with_commit_id(self, position: Position, later: Position) -> Position:
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
        return self._read_store().metadata.commit

    def find_end(
        self, start: Position, max_events: int | None, last_commit: int | None = None
    ) -> Position:
        """Return the end of the batch that starts at `start`; `start` itself if nothing is new.

        Args:
            start: a position of this store.
            max_events: the most events; None for all. Initial events come in whole series.
            last_commit: the last commit to read, not before `start`; None for the store's last.
        """
        snapshot = self._read_store(start)
        if start.initial:
            if max_events is None and start.due is None:
                # One batch delivers all initial events, so there is no need to count them.
                return replace(start, initial=False, upto=None)
            counts = self._count_initial(start, snapshot)
            delivered = 0
            if start.after is not None:
                delivered = self._count_delivered(start, start.after, snapshot)
            return find_initial_end(start, *counts, max_events, delivered)
        end = self._find_live_end(start, max_events, snapshot, last_commit)
        if end == start:
            return end
        newest = end.commit + (end.after is not None)
        return replace(end, commit_id=find_commit_id(self._store, newest))

    def _count_up_to(self, snapshot: Snapshot, commit: int) -> int:
        """Return the number of events of the chosen series up to `commit`."""
        count = self._count_events(snapshot)
        newest = snapshot.metadata.commit
        if commit >= newest:
            return count
        later_events = self._read_commits(snapshot, ("commit",), (commit + 1, newest))
        return count - int(later_events.num_rows)

    def _count_events(self, snapshot: Snapshot) -> int:
        """Return the number of events of the chosen series that were ever committed."""
        index = snapshot.index()
        names = self._choice.names or self._name_chosen(snapshot)
        columns = index.columns if names is None else index.lookup(list(names))
        return int((columns["last_sequence"] + 1).sum())

    def _name_chosen(self, snapshot: Snapshot) -> list[str] | None:
        """Return the names of the chosen series; None for all."""
        return None if self._choice.is_all else self._choice.pick(known_series(snapshot.index()))

    def _find_live_end(
        self, start: Position, max_events: int | None, snapshot: Snapshot, last_commit: int | None
    ) -> Position:
        """Return the end of a batch after the initial events."""
        newest = snapshot.metadata.commit
        commit = newest if last_commit is None else min(last_commit, newest)
        if commit == start.commit:
            return start
        start = self._count_again(start, snapshot)
        committed, events = self._count_new(start, commit, max_events, snapshot)
        stored = committed if events is None else events.num_rows
        seen, missed = start.seen + committed, start.missed + committed - stored
        end = replace(start, commit=commit, after=None, seen=seen, missed=missed)
        if max_events is None or events is None or stored <= max_events:
            return end
        return self._cut_batch(start, end, max_events, events, snapshot)

    def _count_again(self, start: Position, snapshot: Snapshot) -> Position:
        """Return `start` without the events seen in commits that a repair has given up since."""
        seen_last = start.commit_id
        if seen_last is None or describe_change(self._store, seen_last) is None:
            return start
        # No commit has the number of one that was given up, so `start` lies between two commits.
        return replace(start, seen=self._count_up_to(snapshot, start.commit))

    def _count_new(
        self, start: Position, commit: int, max_events: int | None, snapshot: Snapshot
    ) -> tuple[int, pa.Table | None]:
        """Count the events committed after `start` up to `commit`.

        Also return those still stored, or None if all are and one batch may have all of them.
        """
        is_whole = self._store.horizon() <= start.commit  # Compaction has removed none of them.
        if is_whole and not self._choice.is_all and self._choice.names is None:
            # Counting the chosen series among many takes longer than reading the new events.
            events = self._read_new(snapshot, start, commit)
            return events.num_rows, events
        committed = self._count_up_to(snapshot, commit) - start.seen
        if is_whole and (not max_events or committed <= max_events):
            return committed, None
        return committed, self._read_new(snapshot, start, commit)

    def _cut_batch(
        self, start: Position, end: Position, max_events: int, events: pa.Table, snapshot: Snapshot
    ) -> Position:
        """Return the last position before `end` with at most `max_events` of the new `events`."""
        seen = end.seen - events.num_rows
        commits, counts = np.unique(to_int64(events["commit"]), return_counts=True)
        events_up_to = np.cumsum(counts)
        whole_commits = int(np.searchsorted(events_up_to, max_events, "right"))
        if whole_commits:
            last = whole_commits - 1
            return replace(end, commit=int(commits[last]), seen=seen + int(events_up_to[last]))
        # Not even one commit fits, so the batch ends within it.
        commit = int(commits[0])
        key = self._find_key(snapshot, start, commit, max_events)
        return replace(end, commit=commit - 1, after=key, seen=seen + max_events)

    def plan_tasks(self, start: Position, end: Position) -> list[Delivery]:
        """Divide the events between two positions among tasks, by series."""
        snapshot = self._read_store(end)
        if start.initial:
            commits = MIN_NUMBER, start.began
        else:
            # The batch may end within the commit after `end.commit`.
            commits = start.commit + 1, end.commit + (end.after is not None)
        row_filter = RowFilter(commits=commits)
        data = [file for file in snapshot.files if row_filter.may_match_file(file)]
        if not data or (start == end):
            return []
        choice = self._choice
        rows = sum(file.rows for file in data)
        if start.initial:
            names = self._name_initial(start, end, snapshot)
            choice = choice if names is None else SeriesChoice(tuple(names))
        else:
            rows = min(rows, end.seen - start.seen)
        if choice.names == ():
            return []
        samples = sample_series(snapshot.index(), rows, choice.names)
        return [
            Delivery(
                location=snapshot.location,
                files=tuple(file for file in data if key_range.overlaps(file.first, file.last)),
                values=tuple(snapshot.values),
                key_range=key_range,
                start=start,
                end=end,
                initial=self._initial,
                head_id=None if _began_without_floors(start, snapshot) else snapshot.head_id,
                retained=parse_range(start.retained),
                choice=choice,
            )
            for key_range in split_keys(samples, MAX_ROWS_PER_TASK, whole_series=True)
        ]

    def _read_store(self, position: Position | None = None) -> Snapshot:
        """Return the store as it is now; check that it has everything up to `position`.

        Without new commits this only lists the log.
        """
        if not self._store.refresh():
            self._store = Store.open(self._store.location)
        if position is not None:
            self._check_store(position)
        state = self._store.log.state
        if self._last_snapshot is None or self._last_snapshot[0] != state:
            snapshot = self._store.snapshot()
            self._check(snapshot)
            self._last_snapshot = state, snapshot
        return self._last_snapshot[1]

    def _check_store(self, position: Position) -> None:
        words = self._wording
        if position.store != self._store.id:
            raise UnusableStore(
                f"{words.position} belongs to another store than the one now at "
                f"'{self._store.root}'",
                "the store that was subscribed to",
                f"correct the path, or {words.start_over}",
            )
        if position.commit_id is None:
            return
        change = describe_change(self._store, position.commit_id)
        if change is not None and not is_given_up(self._store.location, position.commit_id):
            raise HistoryChanged(
                f"the store '{self._store.root}' {change}, and {words.keeper} has seen "
                f"{position.commit_id} there: an older state of the store was put back, or another "
                "copy of it",
                "the store as it was read, or a later state of that",
                f"put that state of the store back; or {words.restore}; or "
                f"{words.start_over_in_full}. Nothing was delivered since",
            )

    def _read_commits(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        commits: tuple[int, int],
        expression: pc.Expression | None = None,
    ) -> pa.Table:
        """Read `columns` of the events of `commits`, first and last inclusive."""
        choice = self._choice
        if not choice.is_all and choice.names is None:
            columns = list(dict.fromkeys([*columns, "series"]))
        row_filter = RowFilter(choice.names, commits=commits)
        location = self._store.location
        schema = base_fields(columns)
        rows = read_rows(location, snapshot.files, schema, row_filter, expression)
        return keep_chosen(rows, choice)

    def _read_new(self, snapshot: Snapshot, start: Position, commit: int) -> pa.Table:
        """Read the events after `start` up to `commit`, for counting."""
        columns = ("commit",) if start.after is None else ("commit", "series", "sequence")
        commits = start.commit + 1, commit
        return self._read_commits(snapshot, columns, commits, filter_after(start))

    def _find_key(self, snapshot: Snapshot, start: Position, commit: int, number: int) -> Key:
        """Return the key of the event `number`, from 1, of `commit` after `start`."""
        columns = ("commit", "series", "sequence")
        rows = self._read_commits(snapshot, columns, (commit, commit), filter_after(start))
        names, codes = encode_runs(rows["series"])
        sequence = to_int64(rows["sequence"])
        row = int(sort_keys(codes, sequence)[number - 1])
        return names[int(codes[row])].as_py(), int(sequence[row])

    def _count_initial(self, start: Position, snapshot: Snapshot) -> tuple[list[str], Int64Array]:
        """Count the initial events of each series; count again when some may have been removed."""
        removals = snapshot.metadata.retained_since, snapshot.metadata.erasure
        state = start.began, self._store.horizon(), *removals
        if self._initial_counts is not None and self._initial_counts[0] == state:
            return self._initial_counts[1], self._initial_counts[2]
        retained = parse_range(start.retained)
        floors = SeriesIndex() if _began_without_floors(start, snapshot) else snapshot.index()
        names: list[str] = []
        counts: list[Int64Array] = []
        data = [file for file in snapshot.files if file.first_commit <= start.began]
        chosen_names = self._name_chosen(snapshot)
        if chosen_names == []:
            data = []
            chosen_names = None
        samples = sample_series(snapshot.index(), sum(file.rows for file in data), chosen_names)
        for key_range in split_keys(samples, 4 * MAX_ROWS_PER_TASK, whole_series=True):
            row_filter = RowFilter(chosen_names, key_range, commits=(MIN_NUMBER, start.began))
            keys = read_rows(snapshot.location, data, base_fields(STATE_COLUMNS), row_filter)
            is_initial = select_initial_events(keys, retained, floors, self._initial)
            range_names, range_counts = count_initial_events(keys, is_initial)
            names += range_names
            counts.append(range_counts)
        self._initial_counts = state, names, np.concatenate(counts)
        return names, self._initial_counts[2]

    def _count_delivered(self, start: Position, after: Key, snapshot: Snapshot) -> int:
        """Count the initial events up to `after` in its series that are still stored."""
        row_filter = RowFilter([after[0]], commits=(MIN_NUMBER, start.began))
        keys = read_rows(snapshot.location, snapshot.files, base_fields(STATE_COLUMNS), row_filter)
        floors = SeriesIndex() if _began_without_floors(start, snapshot) else snapshot.index()
        is_initial = select_initial_events(keys, parse_range(start.retained), floors, self._initial)
        return int((is_initial & flag_delivered(keys, after)).sum())

    def _name_initial(self, start: Position, end: Position, snapshot: Snapshot) -> list[str] | None:
        """Return the series with initial events between two positions; None if all are chosen."""
        if self._choice.is_all:
            return None
        names, _ = self._count_initial(start, snapshot)
        first = 0 if start.upto is None else bisect.bisect_right(names, start.upto)
        stop = len(names) if end.upto is None else bisect.bisect_right(names, end.upto)
        return names[first:stop]

    def _count_missed_starts(self, snapshot: Snapshot) -> int:
        """Count the events that `startingSequence` asks for but that are gone."""
        starts = self._initial.starts
        if not starts:
            return 0
        last_sequences = snapshot.index().lookup(list(starts))["last_sequence"]
        requested = np.maximum(last_sequences + 1 - np.array(list(starts.values())), 0).sum()
        stored = 0
        for name, first in starts.items():
            row_filter = RowFilter([name], sequences=(first, MAX_NUMBER))
            schema = base_fields(("sequence",))
            stored += read_rows(snapshot.location, snapshot.files, schema, row_filter).num_rows
        return int(requested - stored)


def _began_without_floors(start: Position, snapshot: Snapshot) -> bool:
    """Return whether a subscription is older than all minimums of the head.

    Otherwise the current minimums apply, and events that a newer one hides are missed.
    """
    changed = snapshot.metadata.retained_since != start.retained_since
    return start.retained_since is None and changed
