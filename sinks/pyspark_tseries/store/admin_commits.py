"""Commit changes without new events, and find which commits a store has.

The changes are of head, retained range, policy, columns, or files. A new head competes with appends
for the head of the store, so it is as atomic as they are.

Commits are found by number and id (semantics 19.5): those in the log and older ones. The log has
the ids of its entries' commits until maintenance removes the entries. So maintenance first keeps
the ids in files of 1024 commits, `_tseries/history/N`. The log takes precedence: after an older log
was put back, such a file may still have ids of commits that no longer exist.
"""

import contextlib
import dataclasses
import glob
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import BlockColumns, Int64Array
from pyspark_tseries.model.columns import find_unit
from pyspark_tseries.model.commits import (
    COMMITS_PER_FILE,
    NO_COMMIT,
    CommitId,
    CommitMetadata,
    pack_ids,
    read_metadata,
    unpack_ids,
)
from pyspark_tseries.model.properties import AccessCheck, Policy, format_policy, read_settings
from pyspark_tseries.model.ranges import RetainedRange, format_range, min_retained
from pyspark_tseries.model.series_index import SeriesIndex, make_full_table, next_metadata
from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.head_files import readable_metadata, write_head
from pyspark_tseries.storage.location import Location, parse_location, sync
from pyspark_tseries.store.log_check import HEAD_TRANSACTION, read_whole_entry
from pyspark_tseries.store.log_writer import NewEntry, add_files, remove_files
from pyspark_tseries.store.store import HORIZON_TRANSACTION, Store
from pyspark_tseries.write.batch import PreparedCommit


def open_as_owner(
    path: str | Location, storage_options: Mapping[str, str] | None, principal: str, to_do: str
) -> Store:
    """Return the store at `path` if the principal may administer it; raise what both checks do."""
    store = Store.open(parse_location(path, storage_options))
    require_owner(store, principal, to_do)
    return store


def require_owner(store: Store | Location, principal: str, to_do: str) -> None:
    """Raise PermissionDenied if the store has a policy and the principal is not an owner.

    If the head cannot be read, the newest readable one counts, as in a rebuild. At the location of
    a damaged store it also decides if even the log cannot be read.
    """
    policy = _read_policy(store)
    AccessCheck(policy, principal).require("own", to_do)


def _read_policy(store: Store | Location) -> Policy | None:
    location = store if isinstance(store, Location) else store.location
    properties: dict[str, str] = {}
    try:
        opened = Store.open_damaged(store) if isinstance(store, Location) else store
        properties = opened.properties()
        return opened.settings.policy
    except UnusableStore:
        known = readable_metadata(location).values()
        newest = max(known, key=lambda metadata: metadata.commit, default=NO_COMMIT)
        return read_settings(properties, newest).policy


def replace_index(
    store: Store, make: Callable[[int | None, int], SeriesIndex], *, timed: bool = True
) -> SeriesIndex:
    """Commit the index that `make` returns for the current head's id and the log's version.

    After a lost race, call `make` again; it may read the store, which is up to date.

    Args:
        store: the store.
        make: returns the new index.
        timed: True if the index has the time of a commit, which must not be far ahead.

    Raises:
        WrongClock: the clock is far ahead, or was when the last commit was made.
        StoreBusy: other clients won all attempts.
        NoSuchStore: the store was removed.
        OSError: the storage failed.
    """

    def attempt() -> SeriesIndex:
        with store.commit_lock():
            if timed:
                store.read_clock()
            index = make(store.head_id(), store.version())
            if timed:
                store.check_time(index.metadata.commit_us)
            new_id = store.new_id()
            written = make_full_table(index)
            index = dataclasses.replace(index, metadata=read_metadata(written.schema))
            write_head(store.location, new_id, written)
            try:
                # If it fails, it may have succeeded nevertheless: leave its file to maintenance.
                store.commit_prepared(PreparedCommit(new_id, index, [], []), {}, synced=True)
            except OSError:
                # The commit has succeeded if only the checkpoint after it failed.
                if not (store.refresh() and store.head_id() == new_id):
                    raise
            return index

    return store.retry(attempt, store.retrying.commits)


def replace_files(
    store: Store,
    removed: Sequence[DataFile],
    written: Sequence[WrittenFile],
    horizon: int | None,
    now_us: int,
) -> bool:
    """Replace `removed` with `written` in a commit; return False if one was already removed.

    `horizon` is the last commit that lost events to this compaction, None if none did.

    Raises:
        DeltaError: a competing commit was first, or the storage failed.
    """
    changes, now_ms = horizon is not None, now_us // 1000
    actions = [*remove_files(removed, now_ms, changes), *add_files(written, now_ms, changes)]
    files = [store.location.file(file.path) for file in written]
    with store.commit_lock() as log:
        live = {file.path for file in store.data_files()}
        if not live.issuperset(file.path for file in removed):
            return False
        transactions = (
            {} if horizon is None else {HORIZON_TRANSACTION: max(horizon, store.horizon()) + 1}
        )
        log.add(NewEntry(actions, transactions), files)
    return True


def add_columns(store: Store, requested: Sequence[pa.Field]) -> None:
    """Add those `requested` columns that the store lacks; existing events have nulls there.

    Raises:
        StoreBusy: other clients won all attempts.
    """

    def attempt() -> bool:
        with store.commit_lock() as log:
            known = {name.lower() for name in pa.schema(log.table.schema()).names}
            new = [field for field in requested if field.name.lower() not in known]
            if new:
                log.add_columns(pa.schema(new))
                store.refresh()
        return True

    store.retry(attempt, store.retrying.commits)


def set_units(store: Store, units: Mapping[str, str]) -> None:
    """Set the units of value columns that the store has; an empty text removes one.

    Raises:
        StoreBusy: other clients won all attempts.
    """

    def attempt() -> bool:
        with store.commit_lock() as log:
            for field in store.values:
                unit = units.get(field.name)
                if unit is not None and unit != (find_unit(field) or ""):
                    log.set_unit(field.name, unit)
                    store.refresh()
        return True

    store.retry(attempt, store.retrying.commits)


def allow_local_times(store: Store) -> None:
    """Let the table have columns of the type timestamp_ntz; raise as `add_columns` does."""

    def attempt() -> bool:
        with store.commit_lock() as log:
            log.allow_local_times()
            store.refresh()
        return True

    store.retry(attempt, store.retrying.commits)


def set_retained_range(store: Store, retained: RetainedRange, now_us: int, principal: str) -> None:
    """Set the store's retained range; events out of the old range do not come back.

    Args:
        store: the store.
        retained: the new range, in whole milliseconds, as from `parse_range`.
        now_us: the wall clock.
        principal: who sets it.

    Raises:
        PermissionDenied: the store has a policy, and the principal is not an owner.
        StoreBusy: other clients won all attempts.
    """
    text, to_do = format_range(retained), "change the retained range"

    def change(index: SeriesIndex, metadata: CommitMetadata) -> SeriesIndex:
        columns = BlockColumns(
            {**index.columns, **raise_min_retained(index, store.settings.retained)}
        )
        changed = dataclasses.replace(
            metadata,
            retained=text,
            retained_since=metadata.commit,
            retained_since_us=metadata.commit_us,
        )
        return SeriesIndex(index.ids, columns, changed)

    require_owner(store, principal, to_do)
    if store.settings.retained != retained:
        _change_head(store, now_us, principal, to_do, change)


def set_policy(store: Store, policy: Policy, now_us: int, principal: str) -> None:
    """Set the store's policy, which names an owner; the rest is as in `set_retained_range`."""
    text = format_policy(policy)

    def change(index: SeriesIndex, metadata: CommitMetadata) -> SeriesIndex:
        return dataclasses.replace(index, metadata=dataclasses.replace(metadata, policy=text))

    _change_head(store, now_us, principal, "set the policy", change)


def forget_writer(store: Store, writer: str, now_us: int, principal: str) -> None:
    """Remove a writer, so that it no longer holds back the store's CTI, until it appends again.

    Raises:
        ValueError: `describe` names no such writer.
        Exception: as in `set_retained_range`.
    """

    def change(index: SeriesIndex, metadata: CommitMetadata) -> SeriesIndex:
        known = metadata.ctis.writers
        if writer not in known:
            names = ", ".join(map(repr, sorted(known))) or "none"
            raise ValueError(f"writer {writer!r} is not known; accepted: {names}")
        ctis = metadata.ctis.forget(writer, metadata.commit)
        return dataclasses.replace(index, metadata=dataclasses.replace(metadata, ctis=ctis))

    _change_head(store, now_us, principal, "forget a writer", change)


def _change_head(
    store: Store,
    now_us: int,
    principal: str,
    to_do: str,
    change: Callable[[SeriesIndex, CommitMetadata], SeriesIndex],
) -> None:
    """Commit the index that `change` returns for the current one and the next metadata."""

    def make(head_id: int | None, version: int) -> SeriesIndex:
        require_owner(store, principal, to_do)
        index = store.index()
        return change(index, next_metadata(index, head_id, now_us=now_us, rows=0))

    replace_index(store, make)


def raise_min_retained(index: SeriesIndex, retained: RetainedRange) -> dict[str, Int64Array]:
    """Return the floors of all series of `index` for a change from the range `retained`."""
    floors = index.min_retained(index.ids.names()[: index.columns.rows])
    newest = index.columns["last_sequence"], index.columns["original_us"]
    return dict(zip(floors, min_retained(retained, *newest, floors), strict=True))


LOST_FILE: Final = "lost.json"
"""This file in a folder of `_tseries/lost` lists the commits that a repair has given up."""

MAX_PROVEN: Final = 1000
"""An open store remembers up to this many commits that it has found in its log."""

_ENTRY: Final = re.compile(r"(\d{20})[.]json")


def last_commit_id(store: Store) -> CommitId | None:
    """Return the last commit of the log as last refreshed; None before the first."""
    with store.reading():
        head_id = store.head_id()
        return None if head_id is None else CommitId(store.metadata().commit, head_id)


def find_commit_id(store: Store, number: int) -> CommitId | None:
    """Return the commit `number`, or the last one before it; None if that is not known."""
    with store.reading() as log:
        last, version = last_commit_id(store), log.version()
    if last is None or number >= last.number:
        return last
    return _find_in_log(store.location, number, version) or _find_kept(store.location, number)


def describe_change(store: Store, commit: CommitId) -> str | None:
    """Describe what the store has in place of an earlier commit; None if it still has that commit.

    If nobody kept a commit's id, because another tool removed its log entry, it counts as there.
    """
    with store.reading() as log:
        proven, last = log.proven, last_commit_id(store)
    if proven.get(commit.number) == commit.id:
        return None
    if last is None:
        return "has no commit"
    if commit.number > last.number:
        return f"ends with {last}"
    present = find_commit_id(store, commit.number)
    if present is not None and present.number == commit.number and present != commit:
        return f"has {present} in its place"
    if present is not None and present.number < commit.number:
        return f"has no commit of that number after {present}"
    # If the log is replaced meanwhile, this is no longer what is known of it.
    _note(proven, commit)
    return None


def note_commit(store: Store, commit: CommitId) -> None:
    """Take note that the store's log has a commit, so that nobody need search for it."""
    with store.reading() as log:
        _note(log.proven, commit)


def _note(proven: dict[int, int], commit: CommitId) -> None:
    if len(proven) >= MAX_PROVEN:
        proven.clear()
    proven[commit.number] = commit.id


def is_given_up(location: Location, lost: CommitId) -> bool:
    """Return whether a repair has given up this commit after damage, and skipped its number."""
    if not location.is_local:
        return False
    pattern = os.path.join(glob.escape(location.file("_tseries", "lost")), "*", LOST_FILE)
    for path in glob.iglob(pattern):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            ids = {commit["head"] for commit in record["commits"]}
            # The id of a commit may be unknown if its entry is torn.
            if lost.id in ids or (None in ids and lost.number <= record["highest_commit"]):
                return True
    return False


def keep_history(store: Store) -> None:
    """Keep the ids of the log's commits, before maintenance removes entries."""
    last = last_commit_id(store)
    if last is None:
        return
    location, kept, changed = store.location, dict[int, dict[int, int]](), set[int]()
    above = last.number + COMMITS_PER_FILE
    for commit in _ids_from_end(location, store.version()):
        first = _first_of(commit.number)
        if first not in kept:
            kept[first] = _read_kept(location, first)
        # Kept ids of numbers between two commits of the log come from a log that was replaced.
        gone = range(commit.number + 1, above)
        for number in gone:
            if kept.get(_first_of(number), {}).pop(number, None) is not None:
                changed.add(_first_of(number))
        if kept[first].get(commit.number) == commit.id:
            break
        kept[first][commit.number], above = commit.id, commit.number
        changed.add(first)
    # Write the oldest first: the next run goes back only to the first commit that is already kept,
    # so after a crash no older one may be missing.
    for first in sorted(changed):
        _write_kept(location, first, kept[first])


def _find_in_log(location: Location, number: int, newest: int) -> CommitId | None:
    """Search the log up to entry `newest` for the commit `number`, or the last one before it."""
    versions = _list_versions(location, newest)
    low, high, best = 0, len(versions), None
    while low < high:
        middle = at = (low + high) // 2
        commit = None
        while at >= low and (commit := _read_commit_id(location, versions[at])) is None:
            at -= 1  # The entry is of a compaction or of another tool.
        if commit is None:
            low = middle + 1
        elif commit.number <= number:
            best, low = commit, middle + 1
        else:
            high = at
    return best


def _list_versions(location: Location, newest: int) -> list[int]:
    """Return the versions of the log's entries up to `newest`, rising."""
    log = location.file("_delta_log")
    if location.is_local:
        names = os.listdir(log)
    else:
        names = [os.path.basename(path) for path, _ in location.list_files(log)]
    versions = (int(entry[1]) for name in names if (entry := _ENTRY.fullmatch(name)))
    return sorted(version for version in versions if version <= newest)


def _ids_from_end(location: Location, newest: int) -> Iterator[CommitId]:
    for version in reversed(_list_versions(location, newest)):
        commit = _read_commit_id(location, version)
        if commit is not None:
            yield commit


def _read_commit_id(location: Location, version: int) -> CommitId | None:
    """Return the commit of a log entry; None if the entry has none, was removed, or is damaged."""
    entry = read_whole_entry(location, version)
    if entry is None or entry.own is None:
        return None
    number, head_id = entry.own.get("commit"), entry.transactions.get(HEAD_TRANSACTION)
    return None if number is None or head_id is None else CommitId(number, head_id)


def _first_of(number: int) -> int:
    """Return the first commit in the file that keeps the id of commit `number`."""
    return number // COMMITS_PER_FILE * COMMITS_PER_FILE


def _kept_path(location: Location, first: int) -> str:
    return location.file("_tseries", "history", f"{first // COMMITS_PER_FILE:010d}")


def _find_kept(location: Location, number: int) -> CommitId | None:
    ids = _read_kept(location, _first_of(number))
    head_id = ids.get(number)
    return None if head_id is None else CommitId(number, head_id)


def _read_kept(location: Location, first: int) -> dict[int, int]:
    try:
        with location.read(_kept_path(location, first)) as file:
            return unpack_ids(file.read(), first)
    except FileNotFoundError:
        return {}


def _write_kept(location: Location, first: int, ids: dict[int, int]) -> None:
    path, content = _kept_path(location, first), pack_ids(ids, first)
    if not location.is_local:
        with location.write(path) as file:
            file.write(content)
        return
    location.make_directories(os.path.dirname(path))
    draft = location.file("_tseries", "staging", f"{secrets.token_hex(8)}.history")
    with location.write(draft) as file:
        file.write(content)
    sync([draft])
    os.replace(draft, path)
    sync([os.path.dirname(path)])
