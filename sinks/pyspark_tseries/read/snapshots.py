"""Find the snapshot of a store when Spark began to evaluate a query (semantics 21.10).

All tasks of an evaluation must see the same commits. They know when it began by the driver's clock,
and every log entry has a time, so each task takes the last entry up to then and finds the same one
whenever it asks. An entry can become visible shortly after its time, so an early task waits.
"""

import os
import time
from typing import Final

from pyspark_tseries.errors import NoSuchStore
from pyspark_tseries.model.arrays import find_first
from pyspark_tseries.storage.head_files import Snapshot
from pyspark_tseries.storage.location import Location

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
        while (status := os.stat(path)).st_nlink > 1:
            # Its writer is about to unlink the draft's name, which changes the time.
            now_us = time.time_ns() // 1000
            if now_us >= min(until_us, status.st_ctime_ns // 1000 + MAX_PUBLISH_US):
                break
            time.sleep(0.001)
    except FileNotFoundError:
        return None
    return status.st_ctime_ns  # Changed by linking the name, the last step.
