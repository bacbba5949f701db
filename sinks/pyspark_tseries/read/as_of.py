"""The snapshot and the head of a store at an earlier moment, as long as its rows exist.

Every row keeps its commit, and compaction removes only rows that were out of range at its horizon.
From the horizon on, the rows of any moment are therefore still stored, and the head is computed
from them. Each task computes it for its own series; nothing is written for them.

The rules are semantics 22.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import MIN_NUMBER, to_int64
from pyspark_tseries.model.series_index import (
    NO_COMMIT,
    SeriesIndex,
    apply_delta,
    attach_metadata,
    min_retained_table,
)
from pyspark_tseries.model.series_state import state_to_delta
from pyspark_tseries.model.slices import FULL_SLICE, Slice
from pyspark_tseries.storage.data_files import Snapshot
from pyspark_tseries.storage.row_filter import RowFilter
from pyspark_tseries.storage.table_scan import BASE_SCHEMA, scan_file, scan_state

if TYPE_CHECKING:
    from pyspark_tseries.store.store import Store

__all__ = ["find_head_as_of", "find_snapshot_as_of"]


def find_snapshot_as_of(store: "Store", us: int) -> Snapshot:
    """The store as it was at the commit time `us`, its retained range included.

    Its head id remains that of the current head; see `find_head_as_of`.

    Raises:
        InvalidQuery: rows visible then may be gone; names the oldest possible time.
    """
    snapshot = store.snapshot()
    if us >= snapshot.metadata.commit_us:
        return snapshot
    since = snapshot.metadata.retained_since
    oldest = max(store.horizon(), -1 if since is None else since)
    commit, oldest_us = _find_commits(snapshot, us, oldest)
    if commit < oldest:
        raise InvalidQuery(
            f"asOf {format_instant(us)}: some events that were visible then may be gone",
            f"{format_instant(oldest_us)} or later",
            "ask for a later time, and keep more with tseries.minRetentionAge",
        )
    data = [file for file in snapshot.files if file.first_commit <= commit]
    metadata = dataclasses.replace(snapshot.metadata, parent=None, commit=commit, commit_us=us)
    metadata = NO_COMMIT if commit < 0 else metadata
    return dataclasses.replace(snapshot, files=data, metadata=metadata, as_of=commit)


def _find_commits(snapshot: Snapshot, us: int, oldest: int) -> tuple[int, int]:
    """The last commit with rows not after `us`, and the time of the first from `oldest` on."""
    commit, oldest_us = -1, 2**62
    for file in snapshot.files:
        for rows in scan_file(snapshot.location, file, BASE_SCHEMA, ("commit", "commit_time")):
            numbers, times = to_int64(rows["commit"]), to_int64(rows["commit_time"])
            commit = max(commit, int(numbers[times <= us].max(initial=-1)))
            oldest_us = min(oldest_us, int(times[numbers >= oldest].min(initial=2**62)))
    return commit, min(oldest_us, snapshot.metadata.commit_us)


def find_head_as_of(
    past: Snapshot, now: SeriesIndex, series: Sequence[str] | None = None, part: Slice = FULL_SLICE
) -> SeriesIndex:
    """The head at the moment of `past`, covering at least the wanted series.

    Args:
        past: as `find_snapshot_as_of` gives it.
        now: the head of the store now, which has the floors.
        series: the wanted ones; None for all.
        part: only the series in it; it divides no series.
    """
    assert past.as_of is not None
    names = None if series is None else sorted(set(series))
    row_filter = RowFilter(names, part, commits=(MIN_NUMBER, past.as_of))
    data = [file for file in past.files if part.overlaps(file.first, file.last)]
    found, _ = scan_state(past.location, data, -1, row_filter)
    head = apply_delta(SeriesIndex(), attach_metadata(state_to_delta(found), past.metadata))
    floors = min_retained_table(now)
    if floors is None:
        return head
    there = pc.is_in(floors["series"], found["series"].combine_chunks())
    return apply_delta(head, attach_metadata(floors.filter(there), past.metadata))
