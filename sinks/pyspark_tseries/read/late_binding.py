"""The snapshot that a batch read sees when Spark evaluates it again, later than it was planned.

All tasks of an evaluation must see the same commits, or a commit would be seen in part. They know
when the evaluation began by the driver's clock, and every log entry has a time. The snapshot is
that of the last entry not later than the start of the evaluation, whichever task asks and
whenever. An entry can become visible shortly after its time, so an early task waits that long.

The rules are semantics 21.10.
"""

import os
import time
from typing import Final

from pyspark_tseries.errors import NoSuchStore
from pyspark_tseries.storage.data_files import Snapshot
from pyspark_tseries.storage.location import Location

__all__ = ["find_snapshot_at"]

LOCAL_VISIBILITY_DELAY_US: Final = 50_000
"""The longest time after which an entry of a local log appears: file systems have coarse clocks."""

EVALUATION_RESOLUTION_US: Final = 999
"""Spark reports the start of an evaluation in whole milliseconds."""

MAX_PUBLISH_US: Final = 1_000_000
"""The longest time that an entry of a local log has two names; a killed writer leaves both."""

MAX_REMOTE_CLOCK_SKEW_US: Final = 1_000_000
"""The largest difference between the clocks of an object store, in seconds, and of the driver."""

REMOTE_VISIBILITY_DELAY_US: Final = 1_000_000
"""The longest time after which an entry of an object store appears; its time is in seconds."""

_last_snapshots: dict[Location, tuple[int, Snapshot]] = {}
"""The last snapshot that this worker found of each store, with the time of the evaluation."""


def find_snapshot_at(planned: Snapshot, began_us: int) -> Snapshot:
    """The store of `planned` as it was at `began_us`, the same in every task.

    Args:
        planned: an earlier snapshot, returned if the log does not reach back to `began_us`.
        began_us: as `find_later_start` gives it.

    Raises:
        NoSuchStore: the store is gone.
        UnusableStore: it cannot be opened.
    """
    from pyspark_tseries.store.store import Store  # A read as planned needs no Delta.

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
    """The last log entry up to `newest` that is not later than `latest_us`; None: none."""
    if _is_visible(location, newest, latest_us):
        return newest
    there, later = -1, newest
    while later - there > 1:
        middle = (there + later) // 2
        if _is_visible(location, middle, latest_us):
            there = middle
        else:
            later = middle
    return None if there < 0 else there


def _is_visible(location: Location, version: int, latest_us: int) -> bool:
    since_ns = _entry_time_ns(location, version)
    return since_ns is None or since_ns <= latest_us * 1000  # Only old entries are removed.


def _entry_time_ns(location: Location, version: int) -> int | None:
    """The time since which a log entry is visible; None if it does not exist."""
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
