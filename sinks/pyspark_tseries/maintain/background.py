"""Automatic maintenance: merge small files and remove unreferenced files.

A writer starts it after a commit, in a separate process, so a commit neither waits for it nor fails
with it. A lock of the operating system, released when its holder is killed, allows one such process
per host: the writer takes it before it starts the process, which inherits it. The process continues
while commits go on. Between hosts the log decides who was first (semantics 24.4).
"""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pyspark_timestream.core.instants import HOUR_US
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.compactor import (
    CompactionResult,
    choose_files,
    count_single_commits,
    merge_file_groups,
)
from pyspark_tseries.maintain.erase import remove_erased_bytes
from pyspark_tseries.model.commits import COMMITS_PER_MAINTENANCE, is_maintenance_due
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.failures import explain_failure
from pyspark_tseries.storage.location import (
    Location,
    bears_tag,
    exclusive,
    is_inside_store,
    list_event_files,
)
from pyspark_tseries.storage.snapshot import head_chain, head_path
from pyspark_tseries.store.admin_commits import open_as_owner
from pyspark_tseries.store.checkpoints import (
    MAINTENANCE_LOCK,
    read_last_checkpoint,
    remove_shadows,
    sync_checkpoint,
    write_due_checkpoint,
)
from pyspark_tseries.store.commit_history import keep_history
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.log_check import list_log_files, read_plain_entry
from pyspark_tseries.store.log_entries import checkpoint_path
from pyspark_tseries.store.store import Store

REMOVED_FILE_RETENTION_HOURS: Final = 1
"""Keep files removed from the store this long, for queries that were planned before."""

MAX_KEPT_SMALL_FILES: Final = 500
"""Keep at most this many removed files of single commits, and their heads, for the full hour; the
newest stay, because each occupies a disk block."""

SMALL_FILE_RETENTION_US: Final = 600_000_000
"""Keep each of these files at least this long, for tasks that are reading it."""

ORPHAN_RETENTION_HOURS: Final = 24
"""Keep files that no commit names this long if their names bear the store's tag: a writer may be
about to commit them. Files without the tag are not ours."""

MIN_LOG_VERSIONS_KEPT: Final = 1000
"""Remove log entries that are more than this many versions older than the last checkpoint: every
commit lists the log, so a long log is slow."""

RECENT_LOG_VERSIONS_KEPT: Final = 200
"""Remove log entries beyond this many versions as soon as SMALL_FILE_RETENTION_US has passed."""

VERSIONS_PER_KEPT_CHECKPOINT: Final = 100
"""Besides the newest, keep checkpoints this many versions apart: each names all files, even those
that left the store within a day."""

LOCAL_LOG_RETENTION_US: Final = 20_000_000
"""Keep every log entry this long: a process that has just listed the log still reads it."""

REMOTE_LOG_RETENTION_US: Final = 600_000_000
"""Keep entries this long in an object store, because it has its own clock and is slower to read."""

PAUSE_BETWEEN_ROUNDS_S: Final = 1.0
"""Wait this long between two rounds of one process, to leave the machine to the writers."""

PAUSE_BETWEEN_SWEEPS_S: Final = 60.0
"""A process lists all files of the store at most this often. A busy store has a hundred thousand,
since they stay for ten minutes."""

LOCK_VARIABLE: Final = "TSERIES_MAINTENANCE_LOCK"
"""This environment variable tells the process that it has inherited the lock."""

OPTIONS_VARIABLE: Final = "TSERIES_STORAGE_OPTIONS"
"""This environment variable passes the storage options to the process, as JSON."""

_SINGLE_COMMIT_FILE: Final = re.compile(r"kind=(?:event|edit)/\d{10,}-([0-9a-f]{16})[.]parquet")
_EVENT_FILE: Final = re.compile(r"kind=[^/]+/.+[.]parquet")


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The result of a round of maintenance.

    Attributes:
        merged: the event files before and after, and the events removed.
        removed_files: the number of event, head and log files that nothing referred to any more.
    """

    merged: CompactionResult
    removed_files: int


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """The work of a round of maintenance that began now.

    Attributes:
        merged_files: the number of event files to merge; 0 for none.
        merged_bytes: their size.
        single_commits: the number of file groups of single commits; merging begins at
            `MIN_GROUPS_TO_MERGE`.
        removed_files: the number of unreferenced event, head and log files to remove, without those
            with erased values.
        next_commit: the commit after which writers with `autoCompact` start the next round.
    """

    merged_files: int
    merged_bytes: int
    single_commits: int
    removed_files: int
    next_commit: int


def plan_maintenance(store: Store, now_us: int) -> MaintenancePlan:
    """Return what `maintain` would do now, and write nothing."""
    snapshot = store.snapshot()
    chosen = choose_files(snapshot.files, everything=False)
    following = snapshot.metadata.commit + 1
    return MaintenancePlan(
        len(chosen),
        sum(file.size for file in chosen),
        count_single_commits(snapshot.files),
        remove_obsolete_files(store, now_us, dry_run=True),
        following + -(following + 1) % COMMITS_PER_MAINTENANCE,
    )


def maintain_after_commit(store: Store, commit: int | None = None) -> None:
    """Start maintenance in the background if `commit` (None: the last one) makes it due."""
    last_commit = store.last_commit() if commit is None else commit
    if is_maintenance_due(last_commit):
        with contextlib.suppress(RuntimeError):  # No more threads, or the interpreter is ending.
            threading.Thread(
                target=_run_once_per_process, args=(store.location,), daemon=True
            ).start()


_running: Final[dict[tuple[int, Location], object]] = {}
"""Stores that this process is maintaining, for file systems without locks.

Keyed by process id, because a fork inherits this but not the threads of its parent.
"""


def _run_once_per_process(location: Location) -> None:
    mine = object()
    key = (os.getpid(), location)
    if _running.setdefault(key, mine) is not mine:
        return
    try:
        _run_in_subprocess(location)
    finally:
        del _running[key]


def _run_in_subprocess(location: Location) -> None:
    # Pass sys.path on: a Spark worker may have this package from the driver.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Everybody on the machine can read a command line, but not an environment.
    environment[OPTIONS_VARIABLE] = json.dumps(location.storage_options or {})
    with contextlib.suppress(OSError):
        with exclusive(location, MAINTENANCE_LOCK) as lock:
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


def maintain(path: str | Location, principal: str | None = None) -> MaintenanceResult | None:
    """Merge due files and remove obsolete ones; return None if another process is doing so.

    Record an error for `describe`; the next round tries again.

    Raises:
        PermissionDenied: the store has a policy, and the principal is not an owner.
        TseriesError: there is no such store, or it cannot be opened.
        OSError: a file could not be read or removed.
    """
    store = open_as_owner(path, author_or_user(principal), "maintain the store")
    with exclusive(store.location, MAINTENANCE_LOCK) as lock:
        return None if lock is None else _run_round(store)


def maintain_while_busy(location: Location) -> None:
    """Maintain a store, round after round while many commits are made; the caller has the lock.

    Raises:
        TseriesError: there is no such store, or it cannot be opened.
        OSError: a file could not be read or removed.
    """
    store = Store.open(location)
    again = True
    swept_s = -math.inf
    while again:
        begun, begun_s = store.log.version(), time.monotonic()
        sweeps = begun_s - swept_s >= PAUSE_BETWEEN_SWEEPS_S
        _run_round(store, sweeps=sweeps)
        swept_s = begun_s if sweeps else swept_s
        time.sleep(PAUSE_BETWEEN_ROUNDS_S)
        again = store.refresh() and store.log.version() - begun >= COMMITS_PER_MAINTENANCE


def _run_round(store: Store, *, sweeps: bool = True) -> MaintenanceResult:
    error_path = store.location.file("_tseries", "maintenance.error")
    try:
        merged = merge_file_groups(store, store.read_clock(), everything=False)
        if store.location.is_local:  # Elsewhere Delta writes checkpoints, with the commits.
            write_due_checkpoint(
                store.location, store.log.version(), store.log.checkpoint_interval()
            )
        removed = remove_obsolete_files(store, store.read_clock(), sweeps=sweeps)
    except (TseriesError, OSError) as error:
        # Write nothing if the store was moved away: it could not be moved back.
        if not store.location.is_away():
            named_error = explain_failure(store.location, error, behind_named=True) or error
            text = store.location.redact(f"{type(named_error).__name__}: {named_error}")
            with contextlib.suppress(OSError):
                store.location.write_whole(error_path, text.encode())
        raise
    store.location.remove([error_path])
    return MaintenanceResult(merged, removed)


def remove_obsolete_files(
    store: Store, now_us: int, *, dry_run: bool = False, sweeps: bool = True
) -> int:
    """Remove old log entries and unreferenced files; return how many.

    Args:
        store: the store to clean.
        now_us: the age of files is measured from this time.
        dry_run: change nothing, and count what a round would remove besides files with erased
            values.
        sweeps: False to leave out what needs a list of all files of the store.
    """
    location = store.location
    gone_files = set[str]()

    def remove(paths: Iterable[str]) -> None:
        chosen = list(paths)
        if not dry_run:
            location.remove(chosen)
        gone_files.update(chosen)

    if not dry_run:
        keep_history(store)
        sync_checkpoint(location)  # Another tool may have written it.
    if sweeps:
        table = load_table(location)
        if not dry_run:
            table.cleanup_metadata()
        _sweep(store, table, now_us, remove)
    erased = 0
    if not dry_run:
        remove_shadows(location, now_us - ORPHAN_RETENTION_HOURS * HOUR_US)
        erased = remove_erased_bytes(store, now_us)
    # Remove the log last, because Delta reads a checkpoint again after its first read.
    remove(_list_obsolete_log(location, now_us))
    return len(gone_files) + erased


def _sweep(
    store: Store, table: DeltaTable, now_us: int, remove: Callable[[Iterable[str]], None]
) -> None:
    """Call `remove` with the files of events, heads and drafts that nothing refers to any more."""
    location = store.location
    unused = _list_unused_events(table, store.id)
    live = store.snapshot().paths  # Later than the list: a commit may have named files meanwhile.
    remove(location.file(path) for path in unused if path not in live)
    removed_us = _list_removed_small_files(location, store.log.version())
    chosen_early = _choose_early(removed_us, now_us)
    early_us = {path: removed_us[path] for path in chosen_early if path not in live}
    present = {file.full for file in list_event_files(location)}
    remove(present.intersection(map(location.file, early_us)))
    remove(_list_old_heads(store, now_us, early_us))
    day_ago_us = now_us - ORPHAN_RETENTION_HOURS * HOUR_US
    remove(_list_files_before(location, location.file("_tseries", "staging"), day_ago_us))


def _list_unused_events(table: DeltaTable, store_id: str) -> list[str]:
    """Return event files that left the table an hour ago, or that no commit has named for a day."""
    removed = table.vacuum(
        REMOVED_FILE_RETENTION_HOURS, dry_run=True, enforce_retention_duration=False
    )
    unnamed = table.vacuum(
        ORPHAN_RETENTION_HOURS, dry_run=True, enforce_retention_duration=False, full=True
    )
    of_this_store = (path for path in unnamed if bears_tag(path, store_id))
    return [
        path
        for path in (*removed, *of_this_store)
        if _EVENT_FILE.fullmatch(path) and is_inside_store(path)
    ]


def _list_old_heads(store: Store, now_us: int, early_us: Mapping[str, int]) -> set[str]:
    """Return heads outside the current chain that are an hour old or in `early_us`.

    `early_us` has files of single commits that are removed within the hour, and the times when they
    left the store.
    """
    location = store.location
    heads = store.location.file("_tseries", "head")
    hour_ago_us = now_us - REMOVED_FILE_RETENTION_HOURS * HOUR_US
    old = set(_list_files_before(location, heads, hour_ago_us))
    # A commit's file has the id of its head; other heads may belong to future commits.
    early_heads = {head_path(location, int(_single_commit_id(path), 16)) for path in early_us}
    old |= early_heads & {path for path, _ in location.list_files(heads)}
    if not old:  # Following the chain reads a file for each commit.
        return old
    since_us = max([hour_ago_us, *early_us.values()])
    return old.difference(head_chain(location, store.head_id(), since_us))


def _choose_early(removed: Mapping[str, int], now_us: int) -> list[str]:
    """Choose from `removed`, with the times of removal, the files not to keep for an hour."""
    rising = sorted(removed, key=lambda path: (removed[path], path))
    beyond = rising[: max(len(rising) - MAX_KEPT_SMALL_FILES, 0)]
    return [path for path in beyond if removed[path] < now_us - SMALL_FILE_RETENTION_US]


def _list_removed_small_files(location: Location, newest: int) -> dict[str, int]:
    """Return the files of single commits that the log up to `newest` removed, with the times."""
    checkpoint = read_last_checkpoint(location).version
    if checkpoint < 0:
        return {}
    times_ms = _read_removed(location, checkpoint)
    for version in range(checkpoint + 1, newest + 1):
        entry = read_plain_entry(location, version)
        if entry is not None:
            times = {path: file.get("deletionTimestamp") for path, file in entry.removed.items()}
            times_ms |= times
    return {path: ms * 1000 for path, ms in times_ms.items() if ms and _single_commit_id(path)}


def _read_removed(location: Location, version: int) -> dict[str, int | None]:
    """Return the removed files in the checkpoint `version`, with their times in milliseconds."""
    try:
        with location.read(checkpoint_path(location, version)) as file:
            names = ["remove.path", "remove.deletionTimestamp"]
            table = pq.ParquetFile(file).read(columns=names)
    except (FileNotFoundError, pa.ArrowException):
        return {}  # Another tool wrote it in parts or another form: its files go after an hour.
    if "remove" not in table.column_names:
        return {}
    removed = table["remove"].combine_chunks().drop_null()
    return dict(zip(*(removed.field(name).to_pylist() for name in range(2)), strict=True))


def _single_commit_id(path: str) -> str:
    """Return the id in the path of a file that a commit of events wrote itself; else empty."""
    match = _SINGLE_COMMIT_FILE.fullmatch(path)
    return match[1] if match else ""


def _list_obsolete_log(location: Location, now_us: int) -> list[str]:
    """List log files that nothing needs to open the store.

    These are files far before the last checkpoint, and checkpoints that are close to another.
    """
    checkpoint = read_last_checkpoint(location).version
    if checkpoint < 0:
        return []
    retention_us = LOCAL_LOG_RETENTION_US if location.is_local else REMOTE_LOG_RETENTION_US
    files = [
        file
        for file in list_log_files(location)
        if file.modified_ns < (now_us - retention_us) * 1000 and file.is_plain
    ]
    older = {file for file in files if file.modified_ns < (now_us - SMALL_FILE_RETENTION_US) * 1000}
    checkpoints = {file.version: file for file in older if not file.name.endswith(".json")}
    dense = _choose_dense(sorted(checkpoints), checkpoint)
    oldest_kept = checkpoint - MIN_LOG_VERSIONS_KEPT
    oldest_recent = checkpoint - RECENT_LOG_VERSIONS_KEPT
    obsolete = {
        file
        for file in files
        if file.version < oldest_kept or (file.version < oldest_recent and file in older)
    }
    # Oldest first, so that a reader that still finds an entry finds all later ones, too.
    return sorted(file.full for file in obsolete | {checkpoints[version] for version in dense})


def _choose_dense(versions: Sequence[int], newest: int) -> list[int]:
    """Return the ascending `versions` that are too close before a kept version, or `newest`."""
    dense = []
    next_kept = newest
    for version in reversed(versions):
        if newest > version > next_kept - VERSIONS_PER_KEPT_CHECKPOINT:
            dense.append(version)
        else:
            next_kept = min(next_kept, version)
    return dense


def _list_files_before(location: Location, directory: str, before_us: int) -> list[str]:
    return [path for path, ns in location.list_files(directory) if ns < before_us * 1000]
