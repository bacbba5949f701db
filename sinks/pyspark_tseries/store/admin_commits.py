"""Commit changes without new events: of head, retained range, policy, columns, or files.

A new head competes with appends for the head of the store, so it is as atomic as they are.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import BlockColumns, Int64Array
from pyspark_tseries.model.policy import AccessCheck, Policy, format_policy
from pyspark_tseries.model.properties import current_policy
from pyspark_tseries.model.ranges import RetainedRange, format_range, min_retained
from pyspark_tseries.model.series_index import (
    NO_COMMIT,
    CommitMetadata,
    SeriesIndex,
    make_full_table,
    next_metadata,
    read_metadata,
)
from pyspark_tseries.options import os_user
from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.head_files import readable_metadata, write_head
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.log import Log
from pyspark_tseries.store.log_entries import Change, add_files, remove_files
from pyspark_tseries.store.store import HORIZON_TRANSACTION, Store, backoff, contention_error
from pyspark_tseries.write.batch import PreparedCommit


def require_owner(store: Store, principal: str | None, to_do: str) -> None:
    """Raise if the store has a policy and the principal (None: the OS user) is not an owner.

    If the head cannot be read, the newest readable one counts, as in a rebuild.

    Raises:
        PermissionDenied: the principal is not an owner.
    """
    try:
        policy = store.policy
    except UnusableStore:
        policy = current_policy(store.log.properties(), _newest_metadata(store.location))
    _require_ownership(policy, principal, to_do)


def require_owner_of_damaged(location: Location, principal: str | None, to_do: str) -> None:
    """Like `require_owner`; if even the log cannot be read, the newest readable head decides."""
    try:
        store = Store.open_damaged(location)
    except UnusableStore:
        _require_ownership(current_policy({}, _newest_metadata(location)), principal, to_do)
    else:
        require_owner(store, principal, to_do)


def _require_ownership(policy: Policy | None, principal: str | None, to_do: str) -> None:
    AccessCheck(policy, os_user() if principal is None else principal).require("own", to_do)


def _newest_metadata(location: Location) -> CommitMetadata:
    found = readable_metadata(location).values()
    return max(found, key=lambda metadata: metadata.commit, default=NO_COMMIT)


MAX_ATTEMPTS: Final = 50
_CONTENTION_TEXTS: Final = ("nothing was changed", "try again")


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
    lost: DeltaError | None = None
    for attempt in range(MAX_ATTEMPTS):
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
                store.publish(PreparedCommit(new_id, index, [], []), {}, synced=True)
            except DeltaError as error:
                # The commit may have succeeded nevertheless, so leave its file to maintenance.
                lost = error
            except OSError:
                # The commit has succeeded if only the checkpoint after it failed.
                if not (store.refresh() and store.head_id() == new_id):
                    raise
                return index
            else:
                return index
        backoff(attempt)
    raise contention_error(store.root, MAX_ATTEMPTS, *_CONTENTION_TEXTS) from lost


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
        log.commit(Change(actions, transactions), files)
    return True


def add_columns(store: Store, wanted: Sequence[pa.Field]) -> None:
    """Add those columns of `wanted` that the store lacks; existing events have nulls there.

    Raises:
        StoreBusy: other clients won all attempts.
    """

    def add(log: Log) -> bool:
        known = {name.lower() for name in pa.schema(log.table.schema()).names}
        new = [field for field in wanted if field.name.lower() not in known]
        if new:
            log.add_columns(pa.schema(new))
        return bool(new)

    _change_table(store, add)


def _change_table(store: Store, change: Callable[[Log], bool]) -> None:
    """Call `change`, again after a lost race; it returns True if it has committed."""
    lost: DeltaError | None = None
    for attempt in range(MAX_ATTEMPTS):
        with store.commit_lock() as log:
            try:
                if change(log):
                    store.refresh()
            except DeltaError as error:
                lost = error
            else:
                return
        backoff(attempt)
    raise contention_error(store.root, MAX_ATTEMPTS, *_CONTENTION_TEXTS) from lost


def set_retained_range(
    store: Store, retained: RetainedRange, now_us: int, principal: str | None = None
) -> None:
    """Set the store's retained range; events out of the old range do not come back.

    Args:
        store: the store.
        retained: the new range, in whole milliseconds, as from `parse_range`.
        now_us: the wall clock.
        principal: who sets it; None skips the check of the policy.

    Raises:
        PermissionDenied: the principal is not an owner.
        StoreBusy: other clients won all attempts.
    """
    text, to_do = format_range(retained), "change the retained range"

    def change(index: SeriesIndex, metadata: CommitMetadata) -> SeriesIndex:
        columns = BlockColumns({**index.columns, **raise_min_retained(index, store.retained)})
        changed = dataclasses.replace(metadata, retained=text, retained_since=metadata.commit)
        return SeriesIndex(index.ids, columns, changed)

    _require_owner(store, principal, to_do)
    if store.retained != retained:
        _change_head(store, now_us, principal, to_do, change)


def set_policy(store: Store, policy: Policy, now_us: int, principal: str | None = None) -> None:
    """Set the store's policy, which names an owner; the rest is as in `set_retained_range`."""
    text = format_policy(policy)

    def change(index: SeriesIndex, metadata: CommitMetadata) -> SeriesIndex:
        return dataclasses.replace(index, metadata=dataclasses.replace(metadata, policy=text))

    _change_head(store, now_us, principal, "set the policy", change)


def forget_writer(store: Store, writer: str, now_us: int, principal: str | None = None) -> None:
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
    principal: str | None,
    to_do: str,
    change: Callable[[SeriesIndex, CommitMetadata], SeriesIndex],
) -> None:
    """Commit the index that `change` returns for the current one and the next metadata."""

    def changed(head_id: int | None, version: int) -> SeriesIndex:
        _require_owner(store, principal, to_do)
        _, index = store.index()
        return change(index, next_metadata(index, head_id, now_us=now_us, rows=0))

    replace_index(store, changed)


def _require_owner(store: Store, principal: str | None, to_do: str) -> None:
    if principal is not None:
        AccessCheck(store.policy, principal).require("own", to_do)


def raise_min_retained(index: SeriesIndex, retained: RetainedRange) -> dict[str, Int64Array]:
    """Return the floors of all series of `index` for a change from the range `retained`."""
    floors = index.min_retained(index.ids.names()[: index.columns.rows])
    newest = index.columns["last_sequence"], index.columns["original_us"]
    return dict(zip(floors, min_retained(retained, *newest, floors), strict=True))
