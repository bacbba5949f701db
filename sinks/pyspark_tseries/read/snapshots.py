"""Find snapshots of a store: at an earlier moment, or when Spark began to evaluate a query.

Every row keeps its commit, and compaction removes only rows that were out of range at its horizon.
All rows visible at the horizon or later are therefore still stored, and each task computes the head
of its own series from them (semantics 22).

All tasks of an evaluation must see the same commits. They know when it began by the driver's clock,
and every log entry has a time, so each task takes the last entry up to then and finds the same one
whenever it asks. An entry can become visible shortly after its time, so an early task waits
(semantics 21.10).
"""

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from pyspark_timestream.core.instants import format_instant
from pyspark_tseries.errors import InvalidQuery, NoSuchStore
from pyspark_tseries.model.arrays import ALL_KEYS, MIN_NUMBER, KeyRange, find_first, to_int64
from pyspark_tseries.model.series_index import (
    NO_COMMIT,
    SeriesIndex,
    build_index,
    min_retained_table,
)
from pyspark_tseries.storage.data_files import Snapshot
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, scan_file, scan_state

if TYPE_CHECKING:
    from pyspark_tseries.store.store import Store


def find_snapshot_as_of(store: "Store", us: int) -> Snapshot:
    """Return the store as it was at the commit time `us`, including its retained range.

    The head id stays that of the current head; see `find_head_as_of`.

    Raises:
        InvalidQuery: rows visible then may be gone; the message names the oldest possible time.
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
    """Return the last commit with rows up to `us`, and the time of the first from `oldest` on."""
    commit, oldest_us = -1, 2**62
    for file in snapshot.files:
        for rows in scan_file(snapshot.location, file, BASE_SCHEMA, ("commit", "commit_time")):
            numbers, times = to_int64(rows["commit"]), to_int64(rows["commit_time"])
            commit = max(commit, int(numbers[times <= us].max(initial=-1)))
            oldest_us = min(oldest_us, int(times[numbers >= oldest].min(initial=2**62)))
    return commit, min(oldest_us, snapshot.metadata.commit_us)


def find_head_as_of(
    past: Snapshot, now: SeriesIndex, series: Sequence[str] | None = None, part: KeyRange = ALL_KEYS
) -> SeriesIndex:
    """Return the head at the moment of `past`, covering at least the requested series.

    Args:
        past: a snapshot from `find_snapshot_as_of`.
        now: the store's current head, which has the floors.
        series: the requested series; None for all.
        part: the key range to cover; it splits no series.
    """
    assert past.as_of is not None
    names = None if series is None else sorted(set(series))
    row_filter = RowFilter(names, part, commits=(MIN_NUMBER, past.as_of))
    data = [file for file in past.files if part.overlaps(file.first, file.last)]
    found, _ = scan_state(past.location, data, -1, row_filter)
    floors = min_retained_table(now)
    if floors is not None:
        floors = floors.filter(pc.is_in(floors["series"], found["series"].combine_chunks()))
    return build_index(found, past.metadata, floors)


LOCAL_VISIBILITY_DELAY_US: Final = 50_000
"""A local log entry becomes visible within this time: file systems have coarse clocks."""

EVALUATION_RESOLUTION_US: Final = 999
"""Spark reports the start of an evaluation in whole milliseconds."""

MAX_PUBLISH_US: Final = 1_000_000
"""A writer removes a local log entry's second name within this time; a killed one leaves both."""

MAX_REMOTE_CLOCK_SKEW_US: Final = 1_000_000
"""An object store's clock, in whole seconds, differs from the driver's by at most this."""

REMOTE_VISIBILITY_DELAY_US: Final = 1_000_000
"""An object store's log entry becomes visible within this time; its time is in whole seconds."""

_last_snapshots: dict[Location, tuple[int, Snapshot]] = {}
"""By store, the start of the last evaluation and the snapshot that this worker found for it."""


def find_snapshot_at(planned: Snapshot, began_us: int) -> Snapshot:
    """Return the store of `planned` as it was at `began_us`, the same in every task.

    Args:
        planned: an earlier snapshot, returned if the log does not reach back to `began_us`.
        began_us: the start of the evaluation, from `find_later_start`.

    Raises:
        NoSuchStore: the store is gone.
        UnusableStore: it cannot be opened.
    """
    from pyspark_tseries.store.store import Store

    location = planned.location
    known = _last_snapshots.get(location)
    if known is not None and known[0] == began_us:
        return known[1]
    latest_us = began_us + (
        EVALUATION_RESOLUTION_US if location.is_local else MAX_REMOTE_CLOCK_SKEW_US
    )
    _wait_until(
        latest_us + (LOCAL_VISIBILITY_DELAY_US if location.is_local else REMOTE_VISIBILITY_DELAY_US)
    )
    store = Store.find(location)
    if store is None:
        raise NoSuchStore(
            f"the store '{location.root}' was removed while a query over it was in use",
            next_step="load it again once it is there",
        )
    version = _find_version(location, store.version(), latest_us)
    snapshot = planned if version is None else store.at(version)
    _last_snapshots[location] = began_us, snapshot
    return snapshot


def _wait_until(us: int) -> None:
    ahead_us = us - time.time_ns() // 1000
    if (
        0 < ahead_us < MAX_REMOTE_CLOCK_SKEW_US + REMOTE_VISIBILITY_DELAY_US
    ):  # A longer wait means another clock, not an early task.
        time.sleep(ahead_us / 1_000_000)


def _find_version(location: Location, newest: int, latest_us: int) -> int | None:
    """Return the last log entry up to `newest` not later than `latest_us`; None for none."""
    if _is_visible(location, newest, latest_us):
        return newest
    later = find_first(newest + 1, lambda _, end: not _is_visible(location, end - 1, latest_us))
    return later - 1 if later else None


def _is_visible(location: Location, version: int, latest_us: int) -> bool:
    since_ns = _entry_time_ns(location, version)
    return since_ns is None or since_ns <= latest_us * 1000  # Only old entries are removed.


def _entry_time_ns(location: Location, version: int) -> int | None:
    """Return the time at which a log entry became visible; None if it does not exist."""
    path = location.file("_delta_log", f"{version:020d}.json")
    if not location.is_local:
        entry = location.identity(path)
        return None if entry is None else entry[1]
    until_us = time.time_ns() // 1000 + MAX_PUBLISH_US
    try:
        while (found := os.stat(path)).st_nlink > 1:
            # Its writer is about to unlink the draft's name, which changes the time.
            now_us = time.time_ns() // 1000
            if now_us >= min(until_us, found.st_ctime_ns // 1000 + MAX_PUBLISH_US):
                break
            time.sleep(0.001)
    except FileNotFoundError:
        return None
    return found.st_ctime_ns  # Changed by linking the name, the last step.
