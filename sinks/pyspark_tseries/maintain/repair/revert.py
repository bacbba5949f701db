"""Changes of rows by other tools undone: the files that they took are named again, theirs removed.

Commits of this package that came in between stay as they are. Copies of the files that another tool
has added are kept in `_tseries/lost`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.storage.data_files import DataFile, Extent, data_files
from pyspark_tseries.storage.location import Place, lies_inside
from pyspark_tseries.store.foreign_changes import ForeignChange, find_foreign_change
from pyspark_tseries.store.log import table_at
from pyspark_tseries.store.log_check import unchecked_entries
from pyspark_tseries.store.log_entries import Added, Removed
from pyspark_tseries.store.store import Store

__all__ = ["Undoing", "carry_out_undoing", "find_undoing"]


@dataclass(frozen=True, slots=True)
class Undoing:
    """What undoes the changes of other tools.

    Attributes:
        change: what they changed; None where a file outside of the store is all there is.
        again: files that are named again.
        removed: paths and sizes of files that are removed from the log.
        gone: paths of files that would have to be named again, and are not there any more.
    """

    change: ForeignChange | None
    again: tuple[DataFile, ...]
    removed: tuple[tuple[str, int], ...]
    gone: tuple[str, ...]


def find_undoing(store: Store) -> tuple[Undoing | None, int | None]:
    """What undoes the changes of other tools in `store`, None where there are none.

    Returns:
        It; and the version of the log that would say more but is gone, None as a rule.

    Raises:
        UnusableStore: an entry of the log is torn.
        OSError: the log cannot be read.
    """
    entries, missing = unchecked_entries(store.place, store.version(), -1)
    change = find_foreign_change(entries)
    sizes = dict(store.log.sizes())
    outside = [path for path in sizes if not lies_inside(path)]
    if change is None and not outside:
        return None, missing
    again: list[DataFile] = []
    gone: list[str] = []
    if change is not None:
        sound = _files_at(store.place, change.sound)
        there = {path for path in change.missing if path in sound and _is_there(sound[path], store)}
        again = [sound[path] for path in change.missing if path in there]
        gone = [path for path in change.missing if path not in there]
    extra = dict.fromkeys([*(change.extra if change else ()), *outside])
    removed = tuple((path, sizes.get(path, 0)) for path in extra)
    return Undoing(change, tuple(again), removed, tuple(gone)), missing


def _files_at(place: Place, version: int) -> dict[str, DataFile]:
    """The store's files at `version` by path; none where the log does not reach back to there."""
    try:
        table = table_at(place, version)
    except UnusableStore:
        return {}
    files = data_files(place, pa.table(table.get_add_actions(flatten=True)))
    return {file.path: file for file in files}


def _is_there(file: DataFile, store: Store) -> bool:
    try:
        return store.place.size(store.place.file(file.path)) == file.size
    except FileNotFoundError:
        return False


def carry_out_undoing(store: Store, undoing: Undoing, kept: Sequence[tuple[str, str]]) -> None:
    """Commits it.

    Args:
        store: opened as damaged, and nobody writes to it.
        undoing: as `find_undoing` gives it, with nothing gone.
        kept: paths of files to keep copies of, relative to the store, and of the copies.

    Raises:
        DeltaError: a commit was made meanwhile.
        OSError: the storage failed.
    """
    place, now_ms = store.place, time.time_ns() // 1_000_000
    for path, copy in kept:
        place.copy(place.file(path), place.file(copy))
    actions: list[Added | Removed] = [
        Removed(path, size, "edit" if path.startswith("kind=edit/") else "event", now_ms, True)
        for path, size in undoing.removed
    ]
    actions += [
        Added(file.path, file.size, file.kind, now_ms, True, _statistics(file))
        for file in undoing.again
    ]
    with store.turn() as log:
        log.accept()
        log.commit(actions, {}, files=[place.file(file.path) for file in undoing.again])


def _statistics(file: DataFile) -> str:
    series, sequence = (file.first, file.last), (file.least_sequence, file.most_sequence)
    return Extent(file.rows, series, sequence, (file.least_us, file.most_us)).statistics()
