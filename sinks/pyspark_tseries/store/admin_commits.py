"""Commits that add no events: a new head, another retained range, other files for the same events.

Heads compete for the head like every append, so they are seen whole or not at all.
"""

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from pyspark_tseries.model.block_columns import BlockColumns
from pyspark_tseries.model.policy import Guard, Policy, format_policy
from pyspark_tseries.model.retention import RetainedRange, format_range
from pyspark_tseries.model.series_index import NEVER_US, Head, next_note, read_note, snapshot_of
from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.head_files import write_head
from pyspark_tseries.store.log import added
from pyspark_tseries.store.log_entries import Removed
from pyspark_tseries.store.retry import busy, wait_out
from pyspark_tseries.store.store import HORIZON, Store

__all__ = ["add_columns", "replace_files", "replace_head", "set_policy", "set_retained_range"]

ATTEMPTS: Final = 50
_BUSY: Final = "nothing was changed; next step: try again"


def replace_head(
    store: Store, make: Callable[[int | None, int], Head], *, timed: bool = True
) -> Head:
    """Commits the head that `make` returns for the present head's id and the log's version.

    `make` is called again where a rival was first; it may read the store, which is up to date.

    Args:
        store: the store.
        make: makes the head.
        timed: whether the head has the time of a commit, which must not be far ahead.

    Raises:
        WrongClock: the clock is far ahead, or was when the last commit was made.
        StoreBusy: rivals won every attempt.
        NoSuchStore: the store is gone.
        OSError: the storage failed.
    """
    lost: DeltaError | None = None
    for turn in range(ATTEMPTS):
        with store.turn():
            if timed:
                store.wall_us()
            head = make(store.head_id(), store.version())
            if timed:
                store.check_time(head.note.commit_us)
            new_id = secrets.randbits(62)
            written = snapshot_of(head)
            head = dataclasses.replace(head, note=read_note(written.schema))
            write_head(store.place, new_id, written)
            try:
                store.publish_head(new_id, head)
            except DeltaError as error:
                # Its file stays: the commit may have been made all the same. Cleaning finds it.
                lost = error
            except OSError:
                # So too where only the checkpoint after it failed.
                if not (store.refresh() and store.head_id() == new_id):
                    raise
                return head
            else:
                return head
        wait_out(turn)
    raise busy(store.root, ATTEMPTS, _BUSY) from lost


def replace_files(
    store: Store,
    removed: Sequence[DataFile],
    written: Sequence[WrittenFile],
    horizon: int | None,
    now_us: int,
) -> bool:
    """Commits `written` in the place of `removed`; False where one of these is gone already.

    Args:
        store: the store.
        removed: files of the store.
        written: their events, but for those that compaction left out.
        horizon: the last commit of which events were left out; None where none was.
        now_us: the wall clock.

    Raises:
        DeltaError: a rival's commit was first, or the storage failed.
    """
    changes, now_ms = horizon is not None, now_us // 1000
    gone = [Removed(file.path, file.size, file.kind, now_ms, changes) for file in removed]
    files = [store.place.file(file.path) for file in written]
    with store.turn() as log:
        live = {file.path for file in store.data_files()}
        if not live.issuperset(file.path for file in removed):
            return False
        marks = {} if horizon is None else {HORIZON: max(horizon, store.horizon()) + 1}
        log.commit([*gone, *added(written, now_ms, changes)], marks, files=files)
    return True


def add_columns(store: Store, wanted: Sequence[pa.Field]) -> None:
    """Adds those of the value columns `wanted` that the store lacks; events so far have nulls.

    Raises:
        StoreBusy: rivals won every attempt.
    """
    lost: DeltaError | None = None
    for turn in range(ATTEMPTS):
        with store.turn() as log:
            known = {field.name.lower() for field in store.values}
            new = [field for field in wanted if field.name.lower() not in known]
            if not new:
                return
            try:
                log.add_columns(pa.schema(new))
            except DeltaError as error:
                lost = error
            else:
                store.refresh()
                return
        wait_out(turn)
    raise busy(store.root, ATTEMPTS, _BUSY) from lost


def set_retained_range(
    store: Store, retained: RetainedRange, now_us: int, principal: str | None = None
) -> None:
    """Makes `retained` the store's range from now on; what is out of range stays so.

    Args:
        store: the store.
        retained: whole milliseconds, as `parse_range` makes it.
        now_us: the wall clock.
        principal: who does it; None: the policy is not asked.

    Raises:
        PermissionDenied: the principal is no owner.
        StoreBusy: rivals won every attempt.
    """
    text = format_range(retained)

    def changed(head_id: int | None, version: int) -> Head:
        _need_owner(store, principal, "change the retained range")
        _, head = store.head()
        before = store.retained
        note = next_note(head, head_id, now_us=now_us, rows=0)
        note = dataclasses.replace(note, retained=text, retained_since=note.commit)
        columns = BlockColumns({**head.columns, **floors_under(head, before)})
        return Head(head.ids, columns, note)

    _need_owner(store, principal, "change the retained range")
    if store.retained != retained:
        replace_head(store, changed)


def _need_owner(store: Store, principal: str | None, to_do: str) -> None:
    if principal is not None:
        Guard(store.policy, principal).need("own", to_do)


def set_policy(store: Store, policy: Policy, now_us: int, principal: str | None = None) -> None:
    """Makes `policy` the store's from now on.

    Args:
        store: the store.
        policy: as `parse_policy` makes it.
        now_us: the wall clock.
        principal: who does it; None: the policy so far is not asked.

    Raises:
        PermissionDenied: the principal is no owner.
        StoreBusy: rivals won every attempt.
    """

    def changed(head_id: int | None, version: int) -> Head:
        _need_owner(store, principal, "set the policy")
        _, head = store.head()
        note = next_note(head, head_id, now_us=now_us, rows=0)
        return dataclasses.replace(
            head, note=dataclasses.replace(note, policy=format_policy(policy))
        )

    replace_head(store, changed)


def floors_under(head: Head, retained: RetainedRange) -> dict[str, np.ndarray]:
    """The floors of all series of `head` where `retained` was their range until now."""
    floors = head.floors(head.ids.names()[: head.columns.rows])
    if retained.limit is not None:
        low = head.columns["last_sequence"] - retained.limit + 1
        floors["floor_sequence"] = np.maximum(floors["floor_sequence"], low)
    if retained.last_us is not None:
        low_us = np.maximum(head.columns["original_us"], NEVER_US + retained.last_us)
        floors["floor_us"] = np.maximum(floors["floor_us"], low_us - retained.last_us)
    return floors
