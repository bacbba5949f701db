"""Automatic maintenance: merge small files and remove files that nothing refers to any more.

It runs in a process of its own that a writer starts after a commit, so a commit neither waits for
it nor fails with it. A lock of the operating system, released when its holder is killed, allows one
such process per host: the writer takes it before it starts the process, which inherits it. The
process continues while commits go on. Between hosts the log decides who was first.

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
from pyspark_tseries.storage.location import Location, is_inside_store, parse_location
from pyspark_tseries.storage.locks import exclusive
from pyspark_tseries.store.log_writer import remove_shadows, sync_checkpoint
from pyspark_tseries.store.ownership import require_owner
from pyspark_tseries.store.store import Store
from pyspark_tseries.store.table import load_table

__all__ = [
    "COMMITS_PER_MAINTENANCE",
    "LOCK_VARIABLE",
    "OPTIONS_VARIABLE",
    "maintain",
    "maintain_after_commit",
    "maintain_while_busy",
    "remove_obsolete_files",
]

COMMITS_PER_MAINTENANCE: Final = 32
REMOVED_FILE_RETENTION_HOURS: Final = 1
"""Files removed from the store are kept this long, for queries that were planned before."""

ORPHAN_RETENTION_HOURS: Final = 24
"""Files that no commit names are kept this long: their writers may be about to commit them."""

MIN_LOG_VERSIONS_KEPT: Final = 1000
"""The newest log entries that are kept; every commit lists the log, so a long one is slow."""

LOCAL_LOG_RETENTION_US: Final = 20_000_000
"""Every log entry is kept this long: a process that has just listed the log still reads it."""

REMOTE_LOG_RETENTION_US: Final = 600_000_000
"""The same in an object store, which has its own clock and is slower to read."""

PAUSE_BETWEEN_ROUNDS_S: Final = 1.0
"""Between two rounds of one process, so that it leaves the machine to the writers."""

LOCK_FILE: Final = "upkeep.lock"
LOCK_VARIABLE: Final = "TSERIES_UPKEEP_LOCK"
"""The environment variable by which the process knows that it has inherited the lock."""

OPTIONS_VARIABLE: Final = "TSERIES_STORAGE_OPTIONS"
"""The environment variable with the storage options for the process, as JSON."""

_EVENT_FILE: Final = re.compile(r"kind=[^/]+/.+[.]parquet")
_HOUR_US: Final = 3_600_000_000
_LOG_FILE: Final = re.compile(r"(\d{20})\.(?:json|checkpoint\.parquet)")


def maintain_after_commit(store: Store) -> None:
    """Start maintenance of `store` in the background if its last commit makes it due."""
    if (store.last_commit() + 1) % COMMITS_PER_MAINTENANCE == 0:
        with contextlib.suppress(RuntimeError):  # No more threads, or the interpreter is ending.
            threading.Thread(
                target=_run_once_per_process, args=(store.location,), daemon=True
            ).start()


_running: Final[dict[tuple[int, Location], object]] = {}
"""Stores that this process is maintaining, for file systems without locks.

Keyed by process id, because a fork inherits this but not the threads of its parent.
"""


def _run_once_per_process(location: Location) -> None:
    mine, key = object(), (os.getpid(), location)
    if _running.setdefault(key, mine) is not mine:
        return
    try:
        _run_in_subprocess(location)
    finally:
        del _running[key]


def _run_in_subprocess(location: Location) -> None:
    # Spark's workers have the package from wherever the driver has it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # A command line can be read by everybody on the machine, an environment cannot.
    environment[OPTIONS_VARIABLE] = json.dumps(location.storage_options or {})
    with contextlib.suppress(OSError):
        with exclusive(location, LOCK_FILE) as lock:
            if lock is None:
                return
            environment[LOCK_VARIABLE] = str(lock)
            process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_tseries", "maintain", location.root],
                env=environment,
                pass_fds=[lock],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        process.wait()


def maintain(
    path: str | Location,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
) -> bool:
    """Merge due files and remove obsolete ones; False if another process is already doing so.

    An error is recorded for `describe`; the next round tries again.

    Args:
        path: a local path, a `file:` URI or an `s3:` URI.
        storage_options: how an object store is reached; see `STORAGE_OPTIONS`.
        principal: who does it; None: the OS user.

    Raises:
        PermissionDenied: the store has a policy, and the principal is not an owner.
        TseriesError: there is no such store, or it cannot be opened.
        OSError: a file could not be read or removed.
    """
    store = Store.open(parse_location(path, storage_options))
    require_owner(store, principal, "maintain the store")
    with exclusive(store.location, LOCK_FILE) as lock:
        if lock is None:
            return False
        _run_round(store)
    return True


def maintain_while_busy(location: Location, pause: Callable[[float], None] = time.sleep) -> None:
    """Maintain a store in a process that holds the lock, in rounds while many commits are made.

    Args:
        location: of the store.
        pause: waits the given seconds between two rounds.

    Raises:
        TseriesError: there is no such store, or it cannot be opened.
        OSError: a file could not be read or removed.
    """
    store = Store.open(location)
    again = True
    while again:
        begun = store.version()
        _run_round(store)
        pause(PAUSE_BETWEEN_ROUNDS_S)
        again = store.refresh() and store.version() - begun >= COMMITS_PER_MAINTENANCE


def _run_round(store: Store) -> None:
    metadata = store.location.file("_tseries", "upkeep.error")
    try:
        merge_runs(store, store.read_clock(), everything=False)
        remove_obsolete_files(store, store.read_clock())
    except (TseriesError, OSError) as error:
        with store.location.write(metadata) as file:
            file.write(store.location.redact(f"{type(error).__name__}: {error}").encode())
        raise
    store.location.remove([metadata])


def remove_obsolete_files(store: Store, now_us: int) -> None:
    """Remove log entries before the last checkpoint, and files that nothing can refer to any more.

    Args:
        store: the store.
        now_us: the wall clock.
    """
    table = load_table(store.location)
    location = store.location
    sync_checkpoint(location)  # Another tool may have written it.
    table.cleanup_metadata()
    location.remove(_list_obsolete_log(location, now_us))
    gone = table.vacuum(
        REMOVED_FILE_RETENTION_HOURS, dry_run=True, enforce_retention_duration=False
    )
    gone += table.vacuum(
        ORPHAN_RETENTION_HOURS, dry_run=True, enforce_retention_duration=False, full=True
    )
    live = {file.path for file in store.snapshot().files}
    events = (path for path in gone if _is_event_file(path) and path not in live)
    location.remove(location.file(path) for path in events)
    since_us = now_us - REMOVED_FILE_RETENTION_HOURS * _HOUR_US
    old = _list_files_before(location, location.file("_tseries", "head"), since_us)
    if old:  # Following the chain reads a file for each commit.
        needed = set(head_chain(location, store.head_id(), since_us))
        location.remove(path for path in old if path not in needed)
    staging = location.file("_tseries", "staging")
    location.remove(
        _list_files_before(location, staging, now_us - ORPHAN_RETENTION_HOURS * _HOUR_US)
    )
    remove_shadows(location, now_us - ORPHAN_RETENTION_HOURS * _HOUR_US)


def _is_event_file(path: str) -> bool:
    """Return whether a path in the log is that of a file of events inside the store."""
    return _EVENT_FILE.fullmatch(path) is not None and is_inside_store(path)


def _list_obsolete_log(location: Location, now_us: int) -> list[str]:
    """List log entries far before the last checkpoint, which nothing needs to open the store."""
    log = location.file("_delta_log")
    try:
        with location.read(location.file("_delta_log", "_last_checkpoint")) as file:
            first = json.loads(file.read())["version"] - MIN_LOG_VERSIONS_KEPT
    except FileNotFoundError:
        return []
    old = _list_files_before(
        location,
        log,
        now_us - (LOCAL_LOG_RETENTION_US if location.is_local else REMOTE_LOG_RETENTION_US),
    )
    entries = ((path, _LOG_FILE.fullmatch(os.path.basename(path))) for path in old)
    # Oldest first, so that a reader that still finds an entry finds all later ones, too.
    return sorted(path for path, entry in entries if entry and int(entry[1]) < first)


def _list_files_before(location: Location, directory: str, before_us: int) -> list[str]:
    """List the files of `directory` that were last changed before `before_us`."""
    return [path for path, ns in location.list_files(directory) if ns < before_us * 1000]
