"""The store looks after itself: merging, and removing what nobody can need any more.

It happens in a process of its own, started by a writer after its commit, so a commit neither waits
for it nor fails with it. A lock of the operating system, which a killed process gives back, keeps
it single on a host: the writer takes it before it starts the process, which inherits it. While
commits go on it goes on too. On several hosts the log settles who was first.

The rules are semantics 24.4.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.compactor import merge_runs
from pyspark_tseries.storage.head_files import head_chain
from pyspark_tseries.storage.location import Place, lies_inside, place_of
from pyspark_tseries.storage.locks import alone
from pyspark_tseries.store.log import table_of
from pyspark_tseries.store.log_writer import remove_shadows, sync_checkpoint
from pyspark_tseries.store.ownership import need_owner
from pyspark_tseries.store.store import Store

__all__ = [
    "COMMITS_PER_UPKEEP",
    "LOCK_VARIABLE",
    "OPTIONS_VARIABLE",
    "after_commit",
    "clean",
    "keep_up",
    "maintain",
]

COMMITS_PER_UPKEEP: Final = 32
GRACE_HOURS: Final = 1
"""Files that left the store stay so long: queries that were planned before still read them."""

ORPHAN_HOURS: Final = 24
"""Files that no commit names stay so long: their writers may be about to commit them."""

LOG_VERSIONS: Final = 1000
"""So many of the newest log entries stay; every commit lists the log, so its length is its time."""

LOG_US: Final = 20_000_000
"""And every entry stays so long: who has just listed the log still reads it."""

LOG_US_AFAR: Final = 600_000_000
"""So long in an object store, whose clock is another one and where reading takes longer."""

PAUSE_S: Final = 1.0
"""Between two upkeeps of one process, so that it leaves the machine to the writers."""

UPKEEP_LOCK: Final = "upkeep.lock"
LOCK_VARIABLE: Final = "TSERIES_UPKEEP_LOCK"
"""The environment variable that tells the process apart that it has inherited the lock."""

OPTIONS_VARIABLE: Final = "TSERIES_STORAGE_OPTIONS"
"""The environment variable that tells the process apart how to reach the store, as JSON."""

_EVENTS: Final = re.compile(r"kind=[^/]+/.+[.]parquet")
_HOUR_US: Final = 3_600_000_000
_ENTRY: Final = re.compile(r"(\d{20})\.(?:json|checkpoint\.parquet)")


def after_commit(store: Store) -> None:
    """Starts the upkeep of `store` in the background where its last commit makes it due."""
    if (store.last_commit() + 1) % COMMITS_PER_UPKEEP == 0:
        with contextlib.suppress(RuntimeError):  # No more threads, or the interpreter is ending.
            threading.Thread(target=_run_apart, args=(store.place,), daemon=True).start()


_started: Final[dict[tuple[int, Place], object]] = {}
"""Where an upkeep that this process started is at work: a file system may have no locks.

By process, because a fork has what its parent had, but none of its threads.
"""


def _run_apart(place: Place) -> None:
    mine, key = object(), (os.getpid(), place)
    if _started.setdefault(key, mine) is not mine:
        return
    try:
        _run(place)
    finally:
        del _started[key]


def _run(place: Place) -> None:
    # Spark's workers have the package from wherever the driver has it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # A command line can be read by everybody on the machine, an environment cannot.
    environment[OPTIONS_VARIABLE] = json.dumps(place.storage_options or {})
    with contextlib.suppress(OSError):
        with alone(place, UPKEEP_LOCK) as lock:
            if lock is None:
                return
            environment[LOCK_VARIABLE] = str(lock)
            process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_tseries", "maintain", place.location],
                env=environment,
                pass_fds=[lock],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        process.wait()


def maintain(
    path: str | Place,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
) -> bool:
    """Merges what is due and cleans the store at `path`; False where somebody else is at it.

    What went wrong is noted for `describe`; the next upkeep tries again.

    Args:
        path: a local path, a `file:` URI or an `s3:` URI.
        storage_options: how an object store is reached; see `STORAGE_OPTIONS`.
        principal: who does it; None: the OS user.

    Raises:
        PermissionDenied: the store has a policy, and the principal is no owner.
        TseriesError: there is no such store, or it cannot be opened.
        OSError: a file could not be read or removed.
    """
    store = Store.open(place_of(path, storage_options))
    need_owner(store, principal, "maintain the store")
    with alone(store.place, UPKEEP_LOCK) as lock:
        if lock is None:
            return False
        _upkeep(store)
    return True


def keep_up(place: Place, pause: Callable[[float], None] = time.sleep) -> None:
    """The upkeep by a process that holds the lock already: again while many commits are made.

    Args:
        place: where the store lies.
        pause: waits so many seconds between two rounds.

    Raises:
        TseriesError: there is no such store, or it cannot be opened.
        OSError: a file could not be read or removed.
    """
    store = Store.open(place)
    again = True
    while again:
        begun = store.version()
        _upkeep(store)
        pause(PAUSE_S)
        again = store.refresh() and store.version() - begun >= COMMITS_PER_UPKEEP


def _upkeep(store: Store) -> None:
    note = store.place.file("_tseries", "upkeep.error")
    try:
        merge_runs(store, store.wall_us(), everything=False)
        clean(store, store.wall_us())
    except (TseriesError, OSError) as error:
        with store.place.write(note) as file:
            file.write(store.place.hides(f"{type(error).__name__}: {error}").encode())
        raise
    store.place.remove([note])


def clean(store: Store, now_us: int) -> None:
    """Removes the log before its last checkpoint, and files that nothing can refer to any more.

    Args:
        store: the store.
        now_us: the wall clock.
    """
    table = table_of(store.place)
    place = store.place
    sync_checkpoint(place)  # Another tool may have written it.
    table.cleanup_metadata()
    place.remove(_old_log(place, now_us))
    gone = table.vacuum(GRACE_HOURS, dry_run=True, enforce_retention_duration=False)
    gone += table.vacuum(ORPHAN_HOURS, dry_run=True, enforce_retention_duration=False, full=True)
    live = {file.path for file in store.snapshot().files}
    events = (path for path in gone if _is_events(path) and path not in live)
    place.remove(place.file(path) for path in events)
    since_us = now_us - GRACE_HOURS * _HOUR_US
    old = _older(place, place.file("_tseries", "head"), since_us)
    if old:  # Following the chain reads a file for each commit.
        needed = set(head_chain(place, store.head_id(), since_us))
        place.remove(path for path in old if path not in needed)
    staging = place.file("_tseries", "staging")
    place.remove(_older(place, staging, now_us - ORPHAN_HOURS * _HOUR_US))
    remove_shadows(place, now_us - ORPHAN_HOURS * _HOUR_US)


def _is_events(path: str) -> bool:
    """Whether a path that the log names is that of a file of events of the store."""
    return _EVENTS.fullmatch(path) is not None and lies_inside(path)


def _old_log(place: Place, now_us: int) -> list[str]:
    """Log entries far before the last checkpoint, which nobody needs to open the store."""
    log = place.file("_delta_log")
    try:
        with place.read(place.file("_delta_log", "_last_checkpoint")) as file:
            first = json.loads(file.read())["version"] - LOG_VERSIONS
    except FileNotFoundError:
        return []
    old = _older(place, log, now_us - (LOG_US if place.local else LOG_US_AFAR))
    entries = ((path, _ENTRY.fullmatch(os.path.basename(path))) for path in old)
    # Oldest first, so that whoever finds the entry it knows finds those after it.
    return sorted(path for path, entry in entries if entry and int(entry[1]) < first)


def _older(place: Place, directory: str, than_us: int) -> list[str]:
    """The files of `directory` that were last changed before `than_us`."""
    return [path for path, ns in place.listed(directory) if ns < than_us * 1000]
