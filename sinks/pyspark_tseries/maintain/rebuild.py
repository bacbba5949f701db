"""Recompute heads, and the bounds in the log, from undamaged files.

Events give the state of each series; the rest of a head, its commit metadata and floors, exists
nowhere else. A rebuild takes the newest readable metadata of committed heads, and the floors of the
newest head that is whole with all heads before it. Heads that no log entry names come last: their
commits may never have been made, so their CTIs do not count.

Readers skip files by the bounds in the log, and deltalake 1.6 misreads some escaped names in them.
This package allows for such wrong bounds; tools that build on deltalake lose rows.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import Finding, StoreBusy, UnusableStore
from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.columns import ERASURE_FIELD
from pyspark_tseries.model.commits import NO_COMMIT, UNKNOWN_WRITERS, CommitMetadata, CtiRecord
from pyspark_tseries.model.series_index import SeriesIndex, build_index, min_retained_table
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.data_files import (
    DataFile,
    FileStats,
    WrittenFile,
    compute_stats,
    logged_series_bounds,
)
from pyspark_tseries.storage.erasures import list_records
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import base_fields, scan_file
from pyspark_tseries.storage.snapshot import (
    load_index,
    read_head_metadata,
    readable_metadata,
    scan_state,
)
from pyspark_tseries.store.admin_commits import replace_files, replace_index, require_owner
from pyspark_tseries.store.log_check import HEAD_TRANSACTION, read_entries_back
from pyspark_tseries.store.store import Store

MAX_LOG_ENTRIES: Final = 200
"""Search at most this many log entries for the heads that they name."""

_UNREADABLE: Final = (UnusableStore, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class RecoveredHead:
    """The readable parts of a head.

    Attributes:
        metadata: the newest readable metadata; NO_COMMIT if there is none.
        index: that of the newest whole head, for its floors; empty without one.
        current: True if `metadata` is that of the current head.
    """

    metadata: CommitMetadata
    index: SeriesIndex
    current: bool


def recover_head(store: Store) -> RecoveredHead:
    """Read the readable parts of the head of `store`, or of earlier heads."""
    ids = list(_list_committed_heads(store))
    readable = {
        head_id: metadata
        for head_id in ids
        if (metadata := _read_metadata(store, head_id)) is not None
    }
    current = store.head_id() in readable
    if not readable:
        all_readable = readable_metadata(store.location)
        readable = {head_id: _without_ctis(metadata) for head_id, metadata in all_readable.items()}
    ids += sorted(readable.keys() - set(ids), key=lambda id: -readable[id].commit)
    metadata = next((readable[head_id] for head_id in ids if head_id in readable), NO_COMMIT)
    for head_id in ids:
        with contextlib.suppress(*_UNREADABLE):
            return RecoveredHead(
                metadata, load_index(store.location, head_id, None, SeriesIndex()), current
            )
    return RecoveredHead(metadata, SeriesIndex(), current)


def _read_metadata(store: Store, head_id: int) -> CommitMetadata | None:
    with contextlib.suppress(*_UNREADABLE):
        return read_head_metadata(store.location, head_id)
    return None


def _without_ctis(metadata: CommitMetadata) -> CommitMetadata:
    """Return `metadata` with the same writers, as if they had given no CTI."""
    return replace(metadata, ctis=CtiRecord(dict.fromkeys(metadata.ctis.writers)))


def _list_committed_heads(store: Store) -> Iterator[int]:
    """Yield the ids of the heads in the log, newest first, each once."""
    newest = previous = store.head_id()
    if newest is not None:
        yield newest
    entries = read_entries_back(store.location, store.version())
    for _, entry in itertools.islice(entries, MAX_LOG_ENTRIES):
        head_id = None if entry is None else entry.transactions.get(HEAD_TRANSACTION)
        if head_id is not None and head_id not in (newest, previous):
            previous = head_id
            yield head_id


_BOUND_COLUMNS: Final = ("series", "sequence", "timestamp")


def find_wrong_bounds(store: Store) -> dict[DataFile, tuple[Finding, FileStats]]:
    """Find the readable files with rows outside their logged bounds; return the true bounds, too.

    Skip files of other tools, which write their own statistics.
    """
    wrong, logged = {}, read_logged_bounds(store)
    for file in (file for file in store.data_files() if not file.is_foreign):
        rows: FileStats | None = None
        with contextlib.suppress(OSError, UnusableStore):
            for batch in scan_file(store.location, file, base_fields(_BOUND_COLUMNS)):
                bounds = compute_stats(batch)
                rows = bounds if rows is None else rows.extended_with(bounds)
        if rows is not None:
            for finding in compare_bounds(file, logged[file.path], rows):
                wrong[file] = finding, rows
    return wrong


def read_logged_bounds(store: Store) -> dict[str, tuple[str | None, str | None]]:
    """Return the first and last series of each file, by path, as `logged_series_bounds` does."""
    return logged_series_bounds(pa.table(store.log.table.get_add_actions(flatten=True)))


def compare_bounds(
    file: DataFile, logged: tuple[str | None, str | None], rows: FileStats
) -> Iterator[Finding]:
    """Yield a finding for the first logged bounds of `file` that exclude some of its `rows`.

    `logged` are the bounds of its series; None excludes nothing.
    """
    pairs = {
        "series": (logged, rows.series),
        "sequences": ((file.min_sequence, file.max_sequence), rows.sequence),
        "microseconds": ((file.min_us, file.max_us), rows.us),
    }
    for unit, ((low, high), (lowest, highest)) in pairs.items():
        if (low is not None and low > lowest) or (high is not None and high < highest):  # type: ignore[operator]
            problem = (
                f"file '{file.path}' has {unit} {lowest!r} to {highest!r}, the log is read as "
                f"{low!r} to {high!r}: other readers may pass over its rows"
            )
            yield Finding("bounds", problem, path=file.path)
            return


def correct_bounds(store: Store, wrong: Mapping[DataFile, FileStats], now_us: int) -> None:
    """Log the files `wrong` again, with the bounds of their rows; their content stays the same.

    Each file gets a new name, so that this and a concurrent compaction cannot both succeed.
    """
    location = store.location
    ids: dict[str, str] = {}
    copies = []
    for file, rows in wrong.items():
        path = _new_path(file, ids.setdefault(file.file_group, f"{store.new_id():016x}"))
        location.copy(location.file(file.path), location.file(path))
        copies.append(WrittenFile(path, file.size, rows))

    def attempt() -> bool:
        try:
            return replace_files(store, list(wrong), copies, None, now_us)
        except DeltaError:
            # The commit may have succeeded nevertheless.
            live = store.snapshot().paths
            if not live.issuperset(file.path for file in copies):
                raise
            return True

    try:
        if not store.retry(attempt, store.retrying.commits):
            raise StoreBusy(
                f"store '{store.root}': a compaction was first; nothing was changed",
                next_step="try again",
            )
    except StoreBusy:
        location.discard(location.file(file.path) for file in copies)
        raise


def _new_path(file: DataFile, new_id: str) -> str:
    """Return the path of `file` with another id after the last dash of its name."""
    directory, name = os.path.split(file.path)
    stem, dot, suffix = name.partition(".")
    commits, dash, head = stem.rpartition("-")
    _, line, number = head.partition("_")
    return f"{directory}/{commits}{dash}{new_id}{line}{number}{dot}{suffix}"


def _find_last_erasure(store: Store, known_id: str | None) -> str | None:
    """Return the id of the last erasure with a stored event, or `known_id` if that is later."""
    ids = {known_id}
    for file in store.data_files():
        for rows in scan_file(store.location, file, base_fields((ERASURE_FIELD.name,))):
            ids.update(rows[ERASURE_FIELD.name].unique().to_pylist())
    erasures = [
        record.erasure for record in list_records(store.location) if record.erasure.id in ids
    ]
    last_erasure = max(erasures, key=lambda erasure: erasure.commit, default=None)
    return known_id if last_erasure is None else last_erasure.id


def _forget_partial_counts(states: pa.Table) -> pa.Table:
    """Return `states` with the counts and first times unknown of series that lack some events.

    Compaction has removed these, and counts without them would say that there never were any: a
    rollup would take a bucket that is cut for a whole one (31.3, 36.2).
    """
    lacks_some = pc.less(states["events"], pc.add(states["last_sequence"], 1))
    first_us = pc.if_else(lacks_some, NEVER_US, states["first_us"])
    return states.set_column(states.schema.get_field_index("first_us"), "first_us", first_us)


def rebuild(path: str | Location, principal: str | None = None) -> int:
    """Rebuild the head of the store at `path` from its events; return the number of series.

    Take the counts of dropped and adjusted rows, the policy and a changed retained range from the
    newest readable head. The counts of a series that lacks some events are unknown from then on
    (semantics 31.3).

    Raises:
        PermissionDenied: the store has a policy, and the principal is not an owner.
        NoSuchStore: there is none.
        OSError: a file of events cannot be read; see `verify`.
    """
    store = Store.open_damaged(path)
    store.log.check()
    require_owner(store, author_or_user(principal), "make the head again")

    def rebuild_index(head_id: int | None, version: int) -> SeriesIndex:
        states, newest_us = scan_state(store.location, store.data_files())
        recovered = recover_head(store)
        metadata, floors = recovered.metadata, min_retained_table(recovered.index)
        commit_us = max(newest_us, metadata.commit_us)
        # Normally a commit's number is below the version of its log entry, but a repair may have
        # raised it. The maximum is above all earlier numbers.
        last_commit = max((file.last_commit for file in store.data_files()), default=-1)
        number = max(version, last_commit + 1, metadata.commit + 1)
        # An older head's record lacks the writers that began in a head that cannot be read.
        ctis = metadata.ctis
        ctis = ctis if recovered.current else ctis.advance(UNKNOWN_WRITERS, None, number)
        erasure = (
            metadata.erasure if recovered.current else _find_last_erasure(store, metadata.erasure)
        )
        metadata = replace(
            metadata,
            parent=None,
            commit=number,
            commit_us=commit_us,
            depth=0,
            rows=0,
            marks=None,
            ctis=ctis,
            erasure=erasure,
        )
        return build_index(_forget_partial_counts(states), metadata, floors)

    return len(replace_index(store, rebuild_index, timed=False).ids)
