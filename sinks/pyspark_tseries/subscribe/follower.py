"""The driver's side of a subscription: what a store has for a position, and tasks for it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.retention import RetainedRange, parse_range
from pyspark_tseries.model.series_index import Head, Longs
from pyspark_tseries.model.series_state import KEYS, longs
from pyspark_tseries.model.slices import Key, Sample, Slice, by_name, cut, key_order
from pyspark_tseries.read.bounds import HIGHEST, LOWEST
from pyspark_tseries.storage.data_files import Snapshot
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.row_filter import Sieve
from pyspark_tseries.storage.table_scan import SCANNED, rows_of
from pyspark_tseries.store.store import Store
from pyspark_tseries.subscribe.delivery import Delivery, after, initial_counts, initial_rows
from pyspark_tseries.subscribe.position import (
    Initial,
    Position,
    Supply,
    initial_end,
    live_end,
    subscribe,
)

__all__ = ["Follower"]

ROWS_PER_TASK: Final = 250_000
MOST_SAMPLES: Final = 10_000


class Follower:
    """Follows one store for one subscriber; positions come and go as JSON.

    Args:
        place: where the store lies.
        initial: the initial events.
    """

    def __init__(self, place: str | Place, initial: Initial) -> None:
        self._store = Store.open(place)
        self._initial = initial
        self._known: tuple[int | None, Snapshot] | None = None
        self._first: tuple[Any, list[str], Longs] | None = None

    def begin(self) -> Position:
        """The position of a new subscriber."""
        snapshot, head = self._now()
        missed = self._missed_starts(snapshot, head)
        return subscribe(self._store.id, head.note, snapshot.retained, _events(head), missed)

    def commit_now(self) -> int:
        """The store's last commit."""
        return self._now()[1].note.commit

    def end(self, start: Position, most: int | None, upto: int | None = None) -> Position:
        """The end of the batch that starts at `start`; `start` itself where nothing is there.

        Args:
            start: a position of this store.
            most: the most events of the batch; None for all. At least a series of initial events.
            upto: a commit that it does not go beyond, not before `start`; None for the last one.
        """
        self._check(start)
        snapshot, head = self._now()
        if start.initial:
            if most is None and start.due is None:
                return replace(start, initial=False, upto=None)
            return initial_end(start, *self._initial_series(start, snapshot, head), most)
        supply = self._supply(start, snapshot, head, upto)
        end = live_end(
            start,
            supply,
            most,
            lambda: self._counts(snapshot, start, supply.commit),
            lambda commit, key, number: self._key_at(snapshot, commit, key, number),
        )
        return end

    def tasks(self, start: Position, end: Position) -> list[Delivery]:
        """What is between two positions, divided among tasks by series."""
        self._check(end)
        snapshot, head = self._now()
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
        samples = _samples(head, rows if start.initial else min(rows, end.seen - start.seen))
        return [
            Delivery(
                snapshot.place,
                tuple(file for file in data if part.touches(file.first, file.last)),
                tuple(snapshot.values),
                part,
                start,
                end,
                self._initial,
                None if _has_no_floors(start, snapshot) else snapshot.head_id,
                _retained_at(start, snapshot),
            )
            for part in cut(samples, ROWS_PER_TASK, whole_series=True)
        ]

    def _now(self) -> tuple[Snapshot, Head]:
        """The store as it is; the log is only listed while nothing happens."""
        if not self._store.refresh():
            self._store = Store.open(self._store.place)
        version = self._store.version()
        if self._known is None or self._known[0] != version:
            self._known = version, self._store.snapshot()
        return self._known[1], self._store.head()[1]

    def _check(self, position: Position) -> None:
        if position.store != self._store.id:
            raise UnusableStore(
                f"the checkpoint is of another store than the one now at '{self._store.root}'; "
                "accepted: the store that the query subscribed to; next step: correct the path, "
                "or start with a new checkpoint"
            )

    def _supply(self, start: Position, snapshot: Snapshot, head: Head, upto: int | None) -> Supply:
        commit, seen = head.note.commit, _events(head)
        if upto is not None and upto < commit:
            later = self._rows(snapshot, ("commit",), (upto + 1, commit)).num_rows
            commit, seen = upto, seen - later
        if self._store.horizon() <= start.commit:
            return Supply(commit, seen, None)
        columns = ("commit",) if start.after is None else ("commit", "series", "sequence")
        found = self._rows(snapshot, columns, (start.commit + 1, commit), after(start))
        return Supply(commit, seen, found.num_rows)

    def _rows(
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
        sieve = Sieve(commits=commits)
        return rows_of(self._store.place, data, SCANNED, columns, sieve, wanted)

    def _counts(self, snapshot: Snapshot, start: Position, commit: int) -> tuple[Longs, Longs]:
        columns = ("commit",) if start.after is None else ("commit", "series", "sequence")
        found = self._rows(snapshot, columns, (start.commit + 1, commit), after(start))
        return np.unique(longs(found["commit"]), return_counts=True)

    def _key_at(self, snapshot: Snapshot, commit: int, key: Key | None, number: int) -> Key:
        wanted = None if key is None else Slice((key[0], key[1] + 1)).expression()
        rows = self._rows(snapshot, ("series", "sequence"), (commit, commit), wanted)
        names, codes = by_name(rows["series"])
        sequence = longs(rows["sequence"])
        row = int(key_order(codes, sequence)[number - 1])
        return names[int(codes[row])].as_py(), int(sequence[row])

    def _initial_series(
        self, start: Position, snapshot: Snapshot, head: Head
    ) -> tuple[list[str], Longs]:
        """How many initial events there are of each series; looked up again where some may go."""
        now = start.began, self._store.horizon(), snapshot.note.retained_since
        if self._first is None or self._first[0] != now:
            retained = _retained_at(start, snapshot)
            before = Head() if _has_no_floors(start, snapshot) else head
            names: list[str] = []
            counts: list[Longs] = []
            data = [file for file in snapshot.files if file.first_commit <= start.began]
            samples = _samples(head, sum(file.rows for file in data))
            for part in cut(samples, 4 * ROWS_PER_TASK, whole_series=True):
                sieve = Sieve(part=part, commits=(LOWEST, start.began))
                keys = rows_of(snapshot.place, data, SCANNED, KEYS, sieve)
                chosen = initial_rows(keys, retained, before, self._initial)
                some = initial_counts(keys, chosen)
                names += some[0]
                counts.append(some[1])
            self._first = now, names, np.concatenate(counts)
        return self._first[1], self._first[2]

    def _missed_starts(self, snapshot: Snapshot, head: Head) -> int:
        """How many events that `startingSequence` asks for are gone."""
        starts = self._initial.starts
        if not starts:
            return 0
        names = list(starts)
        last = head.of(names)["last_sequence"]
        asked = np.maximum(last + 1 - np.array([starts[name] for name in names]), 0).sum()
        there = 0
        for name in names:
            data = [file for file in snapshot.files if file.first <= name <= file.last]
            sieve = Sieve([name], sequences=(starts[name], HIGHEST))
            there += rows_of(snapshot.place, data, SCANNED, ("sequence",), sieve).num_rows
        return int(asked - there)


def _retained_at(start: Position, snapshot: Snapshot) -> RetainedRange:
    """The retained range that the initial events of a subscription are of."""
    return snapshot.retained if start.retained is None else parse_range(start.retained)


def _has_no_floors(start: Position, snapshot: Snapshot) -> bool:
    """Whether the present floors are all younger than a subscription, and it began without any.

    Otherwise the present ones count: where some are younger, what they hide is missed.
    """
    changed = snapshot.note.retained_since != start.retained_since
    return start.retained is not None and start.retained_since is None and changed


def _events(head: Head) -> int:
    return int((head.columns["last_sequence"] + 1).sum())


def _samples(head: Head, rows: int) -> list[Sample]:
    """Series spread evenly over all, each standing for a part of `rows`."""
    names = head.ids.names()
    some = names[:: max(1, len(names) // MOST_SAMPLES)]
    return [(name, 0, max(1, rows // len(some))) for name in some]
