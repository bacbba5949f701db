"""A store as it was: the snapshot and the head of an earlier moment, while its rows exist.

Every row keeps its commit, and compaction removes only what was out of range at its horizon; so
from the horizon on the rows of any moment are there, and the head is found from them. Tasks find it
themselves, each for its series: nothing is written for them.

The rules are semantics 22.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.series_index import EMPTY_NOTE, Head, floors_of, merge, with_note
from pyspark_tseries.model.series_state import longs, standing_columns
from pyspark_tseries.model.slices import EVERYTHING, Slice
from pyspark_tseries.read.bounds import LOWEST
from pyspark_tseries.storage.data_files import Snapshot
from pyspark_tseries.storage.row_filter import Sieve
from pyspark_tseries.storage.table_scan import SCANNED, scan, scan_standing

if TYPE_CHECKING:
    from pyspark_tseries.store.store import Store

__all__ = ["head_as_of", "snapshot_as_of"]


def snapshot_as_of(store: "Store", us: int) -> Snapshot:
    """The store as it was at the commit time `us`, its retained range included.

    Its head id stays that of the present head; see `head_as_of`.

    Raises:
        InvalidQuery: some of what was visible then may be gone; names the oldest possible time.
    """
    snapshot = store.snapshot()
    if us >= snapshot.note.commit_us:
        return snapshot
    since = snapshot.note.retained_since
    oldest = max(store.horizon(), -1 if since is None else since)
    commit, oldest_us = _commits(snapshot, us, oldest)
    if commit < oldest:
        raise InvalidQuery(
            f"asOf {format_instant(us)}: of the store as it was then some may be gone; accepted: "
            f"{format_instant(oldest_us)} or later; next step: ask for a later time, and keep "
            "more with tseries.minRetentionAge"
        )
    data = [file for file in snapshot.files if file.first_commit <= commit]
    note = dataclasses.replace(snapshot.note, parent=None, commit=commit, commit_us=us)
    note = EMPTY_NOTE if commit < 0 else note
    return dataclasses.replace(snapshot, files=data, note=note, as_of=commit)


def _commits(snapshot: Snapshot, us: int, oldest: int) -> tuple[int, int]:
    """The last commit with rows not after `us`, and the time of the first from `oldest` on."""
    commit, oldest_us = -1, 2**62
    for file in snapshot.files:
        for rows in scan(snapshot.place, file, SCANNED, ("commit", "commit_time")):
            numbers, times = longs(rows["commit"]), longs(rows["commit_time"])
            commit = max(commit, int(numbers[times <= us].max(initial=-1)))
            oldest_us = min(oldest_us, int(times[numbers >= oldest].min(initial=2**62)))
    return commit, min(oldest_us, snapshot.note.commit_us)


def head_as_of(
    past: Snapshot, now: Head, series: Sequence[str] | None = None, part: Slice = EVERYTHING
) -> Head:
    """The head at the moment of `past`, of some series at least.

    Args:
        past: as `snapshot_as_of` gives it.
        now: the head of the store now, which has the floors.
        series: the wanted ones; None for all.
        part: only the series in it; it divides no series.
    """
    assert past.as_of is not None
    names = None if series is None else sorted(set(series))
    sieve = Sieve(names, part, commits=(LOWEST, past.as_of))
    data = [file for file in past.files if part.touches(file.first, file.last)]
    found, _ = scan_standing(past.place, data, -1, sieve)
    head = merge(Head(), with_note(standing_columns(found), past.note))
    floors = floors_of(now)
    if floors is None:
        return head
    there = pc.is_in(floors["series"], found["series"].combine_chunks())
    return merge(head, with_note(floors.filter(there), past.note))
