"""The store as it was when Spark began to evaluate a batch read whose plan is older.

All tasks of an evaluation must see the same commits, or one would be seen in part. They know when
the evaluation began by the driver's clock, and the log's entries have times of their own: the
snapshot is that of the last entry not later than the evaluation, which is the same whenever a task
looks. An entry may be found a moment after its time, so a task that is quick waits that long.

The rules are semantics 21.10.
"""

import os
import time
from typing import Final

from pyspark_tseries.errors import NoSuchStore
from pyspark_tseries.storage.data_files import Snapshot
from pyspark_tseries.storage.location import Place

__all__ = ["snapshot_at"]

SETTLED_US: Final = 50_000
"""So long after its time an entry of a local log may appear: file systems have coarse clocks."""

MILLISECOND_US: Final = 999
"""An evaluation begins within the millisecond that is told."""

PUBLISHED_US: Final = 1_000_000
"""So long an entry of a local log may have two names; a writer that was killed leaves it both."""

SLACK_US_AFAR: Final = 1_000_000
"""So far an object store's clock, which tells seconds only, may differ from the driver's."""

SETTLED_US_AFAR: Final = 1_000_000
"""So long after its time, which is cut to the second, an entry of an object store may appear."""

_known: dict[Place, tuple[int, Snapshot]] = {}
"""The last one of each store that this worker has found, by the time of the evaluation."""


def snapshot_at(planned: Snapshot, began_us: int) -> Snapshot:
    """The store of `planned` as it was at `began_us`, the same in every task that asks.

    Args:
        planned: an earlier snapshot, given back where the log does not reach back to `began_us`.
        began_us: as `later_evaluation_us` gives it.

    Raises:
        NoSuchStore: the store is gone.
        UnusableStore: it cannot be opened.
    """
    from pyspark_tseries.store.store import Store  # Who only reads what was planned needs no Delta.

    place = planned.place
    known = _known.get(place)
    if known is not None and known[0] == began_us:
        return known[1]
    latest_us = began_us + (MILLISECOND_US if place.local else SLACK_US_AFAR)
    _wait_until(latest_us + (SETTLED_US if place.local else SETTLED_US_AFAR))
    store = Store.find(place)
    if store is None:
        raise NoSuchStore(
            f"the store '{place.location}' was removed while a query over it was in use; "
            "next step: load it again once it is there"
        )
    version = _last_version(place, store.version(), latest_us)
    snapshot = planned if version is None else store.at(version)
    _known[place] = began_us, snapshot
    return snapshot


def _wait_until(us: int) -> None:
    ahead_us = us - time.time_ns() // 1000
    if 0 < ahead_us < SLACK_US_AFAR + SETTLED_US_AFAR:  # More is another clock, not an early task.
        time.sleep(ahead_us / 1_000_000)


def _last_version(place: Place, newest: int, latest_us: int) -> int | None:
    """The last entry of the log, up to `newest`, of a time not after `latest_us`; None: none."""
    if _is_there(place, newest, latest_us):
        return newest
    there, later = -1, newest
    while later - there > 1:
        middle = (there + later) // 2
        if _is_there(place, middle, latest_us):
            there = middle
        else:
            later = middle
    return None if there < 0 else there


def _is_there(place: Place, version: int, latest_us: int) -> bool:
    since_ns = _time_ns(place, version)
    return since_ns is None or since_ns <= latest_us * 1000  # Only old entries are cleaned away.


def _time_ns(place: Place, version: int) -> int | None:
    """Since when an entry of the log is seen; None where it is not there."""
    path = place.file("_delta_log", f"{version:020d}.json")
    if not place.local:
        entry = place.identity(path)
        return None if entry is None else entry[1]
    until_us = time.time_ns() // 1000 + PUBLISHED_US
    try:
        while (found := os.stat(path)).st_nlink > 1:
            # Its writer is about to take its draft's name away, which changes the time.
            now_us = time.time_ns() // 1000
            if now_us >= min(until_us, found.st_ctime_ns // 1000 + PUBLISHED_US):
                break
            time.sleep(0.001)
    except FileNotFoundError:
        return None
    return found.st_ctime_ns  # Of its name, which it gets last.
