"""Changes of rows by other tools undone: the files that they took are named again, theirs removed.

Commits of this package that came in between stay as they are. Copies of the files that another tool
has added are kept in `_tseries/lost`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.storage.data_files import DataFile, FileStats, data_files
from pyspark_tseries.storage.location import Location, is_inside_store
from pyspark_tseries.store.foreign_changes import ForeignChange, find_foreign_change
from pyspark_tseries.store.log_check import unchecked_entries
from pyspark_tseries.store.log_entries import AddedFile, RemovedFile
from pyspark_tseries.store.store import Store
from pyspark_tseries.store.table import load_table_at

__all__ = ["Revert", "plan_revert", "revert_changes"]


@dataclass(frozen=True, slots=True)
class Revert:
    """The actions that undo the changes of other tools.

    Attributes:
        change: the changes; None if the log only names files outside the store.
        again: files to add to the log again.
        removed: paths and sizes of files to remove from the log.
        gone: paths of files that should be added again but no longer exist.
    """

    change: ForeignChange | None
    again: tuple[DataFile, ...]
    removed: tuple[tuple[str, int], ...]
    gone: tuple[str, ...]


def plan_revert(store: Store) -> tuple[Revert | None, int | None]:
    """Plan how to undo the changes of other tools in `store`.

    Returns:
        The plan, None if there are no such changes; and the version of a log entry that is needed
        for certainty but no longer exists, normally None.

    Raises:
        UnusableStore: an entry of the log is torn.
        OSError: the log cannot be read.
    """
    entries, missing = unchecked_entries(store.location, store.version(), -1)
    change = find_foreign_change(entries)
    sizes = dict(store.log.sizes())
    outside = [path for path in sizes if not is_inside_store(path)]
    if change is None and not outside:
        return None, missing
    again: list[DataFile] = []
    gone: list[str] = []
    if change is not None:
        sound = _list_files_at(store.location, change.sound)
        there = {path for path in change.missing if path in sound and _is_there(sound[path], store)}
        again = [sound[path] for path in change.missing if path in there]
        gone = [path for path in change.missing if path not in there]
    extra = dict.fromkeys([*(change.extra if change else ()), *outside])
    removed = tuple((path, sizes.get(path, 0)) for path in extra)
    return Revert(change, tuple(again), removed, tuple(gone)), missing


def _list_files_at(location: Location, version: int) -> dict[str, DataFile]:
    """The store's files at `version` by path; empty if the log does not reach back that far."""
    try:
        table = load_table_at(location, version)
    except UnusableStore:
        return {}
    files = data_files(location, pa.table(table.get_add_actions(flatten=True)))
    return {file.path: file for file in files}


def _is_there(file: DataFile, store: Store) -> bool:
    try:
        return store.location.size(store.location.file(file.path)) == file.size
    except FileNotFoundError:
        return False


def revert_changes(store: Store, revert: Revert, kept: Sequence[tuple[str, str]]) -> None:
    """Commit the actions of `revert`.

    Args:
        store: opened as damaged, without other writers.
        revert: as `plan_revert` gives it, with nothing gone.
        kept: paths of files to keep copies of, relative to the store, and of the copies.

    Raises:
        DeltaError: a commit was made meanwhile.
        OSError: the storage failed.
    """
    location, now_ms = store.location, time.time_ns() // 1_000_000
    for path, copy in kept:
        location.copy(location.file(path), location.file(copy))
    actions: list[AddedFile | RemovedFile] = [
        RemovedFile(path, size, "edit" if path.startswith("kind=edit/") else "event", now_ms, True)
        for path, size in revert.removed
    ]
    actions += [
        AddedFile(file.path, file.size, file.kind, now_ms, True, _format_statistics(file))
        for file in revert.again
    ]
    with store.commit_lock() as log:
        log.mark_checked()
        log.commit(actions, {}, files=[location.file(file.path) for file in revert.again])


def _format_statistics(file: DataFile) -> str:
    series, sequence = (file.first, file.last), (file.min_sequence, file.max_sequence)
    return FileStats(file.rows, series, sequence, (file.min_us, file.max_us)).to_json()
