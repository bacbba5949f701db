"""Commit changes without new events.

The changes are of head, retained range, policy, columns, or files. A new head competes with appends
for the head of the store, so it is as atomic as they are.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import BlockColumns, Int64Array
from pyspark_tseries.model.columns import find_unit
from pyspark_tseries.model.commits import NO_COMMIT, CommitMetadata
from pyspark_tseries.model.properties import AccessCheck, AccessPolicy, format_policy, read_settings
from pyspark_tseries.model.ranges import RetainedRange, format_range, min_retained
from pyspark_tseries.model.series_index import SeriesIndex, next_metadata
from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.location import Location, sync
from pyspark_tseries.storage.snapshot import readable_metadata, write_full_head
from pyspark_tseries.store.log import Log
from pyspark_tseries.store.log_entries import NewEntry, add_files, remove_files
from pyspark_tseries.store.store import HORIZON_TRANSACTION, Store
from pyspark_tseries.write.batch import PreparedCommit


def open_as_owner(path: str | Location, principal: str, to_do: str) -> Store:
    """Return the store at `path` if the principal may administer it; raise what both checks do."""
    store = Store.open(path)
    require_owner(store, principal, to_do)
    return store


def require_owner(store: Store | Location, principal: str, to_do: str) -> None:
    """Raise PermissionDenied if the store has a policy and the principal is not an owner.

    If the head cannot be read, the newest readable one counts, as in a rebuild. At the location of
    a damaged store it also decides if even the log cannot be read.
    """
    AccessCheck(_read_policy(store), principal).require("own", to_do)


def _read_policy(store: Store | Location) -> AccessPolicy | None:
    location = store if isinstance(store, Location) else store.location
    properties: dict[str, str] = {}
    try:
        opened = Store.open_damaged(store) if isinstance(store, Location) else store
        properties = opened.properties()
        return opened.settings.policy
    except UnusableStore as error:
        readable = readable_metadata(location).values()
        if error.kind is None and not readable:
            # It is no damage: another Delta table is there, which nothing of ours may repair.
            raise
        newest = max(readable, key=lambda metadata: metadata.commit, default=NO_COMMIT)
        return read_settings(properties, newest).policy


def replace_index(
    store: Store, make: Callable[[int | None, int], SeriesIndex], *, timed: bool = True
) -> SeriesIndex:
    """Commit the index that `make` returns for the current head's id and the log's version.

    After a lost race, call `make` again; it may read the store, which is up to date. An untimed
    index is also made again if it is stored and the answer was lost: the head may be unreadable.

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
    attempts: list[PreparedCommit] = []

    def attempt() -> SeriesIndex:
        with store.commit_lock():
            if timed:
                # An attempt that failed may be stored: a storage can lose its answer.
                earlier = next(filter(store.is_committed, attempts), None)
                if earlier is not None:
                    return earlier.index
                store.read_clock()
            index = make(store.head_id(), store.log.version())
            if timed:
                store.check_time(index.metadata.commit_us)
            new_id = store.new_id()
            index, path = write_full_head(store.location, new_id, index)
            # If it fails, it may have succeeded nevertheless: leave its file to maintenance.
            attempts.append(PreparedCommit(new_id, index, [], [path]))
            try:
                store.commit_prepared(attempts[-1], {}, synced=True)
            except OSError:
                # The commit has succeeded if only the checkpoint after it failed.
                if not (store.refresh() and store.head_id() == new_id):
                    raise
            return index

    return store.retry(attempt, store.retrying.commit_attempts)


def replace_files(
    store: Store,
    removed: Sequence[DataFile],
    new_files: Sequence[WrittenFile],
    horizon: int | None,
    now_us: int,
) -> bool:
    """Replace `removed` with `new_files` in a commit; return False if one was already removed.

    `horizon` is the last commit that lost events to this compaction, None if none did.

    Raises:
        DeltaError: a competing commit was first, a new file is gone, or the storage failed.
    """
    changes = horizon is not None
    now_ms = now_us // 1000
    actions = [
        *remove_files(removed, now_ms, changes_rows=changes),
        *add_files(new_files, now_ms, changes_rows=changes),
    ]
    files = [store.location.file(file.path) for file in new_files]
    # Writers wait while the lock is held: do most of the long work before.
    store.refresh()
    if store.location.is_local:
        try:
            sync(files)
        except FileNotFoundError as error:
            # This process stood still so long that maintenance took it for killed.
            raise CommitFailedError(str(error)) from error
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

    def change(log: Log) -> None:
        existing_names = {name.lower() for name in pa.schema(log.table.schema()).names}
        new = [field for field in requested if field.name.lower() not in existing_names]
        if new:
            log.add_columns(pa.schema(new))

    _change_table(store, change)


def set_units(store: Store, units: Mapping[str, str]) -> None:
    """Set the units of value columns that the store has; an empty text removes one.

    Raises:
        StoreBusy: other clients won all attempts.
    """

    def change(log: Log) -> None:
        for field in store.values:
            unit = units.get(field.name)
            if unit is not None and unit != (find_unit(field) or ""):
                log.set_unit(field.name, unit)
                store.refresh()

    _change_table(store, change)


def allow_local_times(store: Store) -> None:
    """Let the table have columns of the type timestamp_ntz; raise as `add_columns` does."""
    _change_table(store, Log.allow_local_times)


def _change_table(store: Store, change: Callable[[Log], None]) -> None:
    """Change the columns of the table, again after a lost race; `change` gets the current log."""

    def attempt() -> bool:
        with store.commit_lock() as log:
            change(log)
            store.refresh()
        return True

    store.retry(attempt, store.retrying.commit_attempts)


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
    text = format_range(retained)
    to_do = "change the retained range"

    def change(index: SeriesIndex, metadata: CommitMetadata) -> SeriesIndex:
        columns = BlockColumns({**index.columns, **raise_floors(index, store.settings.retained)})
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


def set_policy(store: Store, policy: AccessPolicy, now_us: int, principal: str) -> None:
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
        writers = metadata.ctis.writers
        if not isinstance(writer, str) or writer not in writers:
            names = ", ".join(map(repr, sorted(writers))) or "none"
            raise ValueError(
                f"writer {writer!r} is not known; accepted: {names}; next step: name one of these"
            )
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


def raise_floors(index: SeriesIndex, retained: RetainedRange) -> dict[str, Int64Array]:
    """Return the floors of all series of `index` for a change from the range `retained`."""
    floors = index.floors(index.names())
    newest = index.columns["last_sequence"], index.columns["original_us"]
    return dict(zip(floors, min_retained(retained, *newest, floors), strict=True))
