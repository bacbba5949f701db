"""Commits that add no events: a new head, another retained range.

They compete for the head like every append, so they are seen whole or not at all.
"""

import dataclasses
import random
import secrets
import time
from collections.abc import Callable

import numpy as np
from deltalake.exceptions import DeltaError

from pyspark_tseries import files
from pyspark_tseries.errors import StoreBusy
from pyspark_tseries.heads import NEVER_US, Head, next_note, read_note, snapshot_of
from pyspark_tseries.retention import RetainedRange, format_range
from pyspark_tseries.store import Store

__all__ = ["replace_head", "set_retained_range"]

ATTEMPTS = 50


def replace_head(store: Store, make: Callable[[int | None, int], Head]) -> Head:
    """Commits the head that `make` returns for the present head's id and the log's version.

    `make` is called again where a rival was first; it may read the store, which is up to date.

    Raises:
        StoreBusy: rivals won every attempt.
        NoSuchStore: the store is gone.
    """
    lost: DeltaError | None = None
    for turn in range(ATTEMPTS):
        with store.turn() as table:
            head = make(store.head_id(), table.version())
            new_id = secrets.randbits(62)
            written = snapshot_of(head)
            head = dataclasses.replace(head, note=read_note(written.schema))
            files.write_head(store.root, new_id, written)
            try:
                store.publish_head(new_id, head)
            except DeltaError as error:
                # Its file stays: the commit may have been made all the same. Cleaning finds it.
                lost = error
            else:
                return head
        time.sleep(random.uniform(0.005, min(0.2, 0.01 * 2 ** min(turn, 8))))
    raise StoreBusy(
        f"store '{store.root}': other writers won all of {ATTEMPTS} attempts to commit; "
        "nothing was changed; next step: try again"
    ) from lost


def set_retained_range(store: Store, retained: RetainedRange, now_us: int) -> None:
    """Makes `retained` the store's range from now on; what is out of range stays so.

    Args:
        store: the store.
        retained: whole milliseconds, as `parse_range` makes it.
        now_us: the wall clock.

    Raises:
        StoreBusy: rivals won every attempt.
    """
    text = format_range(retained)

    def changed(head_id: int | None, version: int) -> Head:
        _, head = store.head()
        before = store.retained
        note = next_note(head, head_id, now_us=now_us, rows=0)
        note = dataclasses.replace(note, retained=text, retained_since=note.commit)
        return Head(head.ids, {**head.columns, **floors_under(head, before)}, note)

    if store.retained != retained:
        replace_head(store, changed)


def floors_under(head: Head, retained: RetainedRange) -> dict[str, np.ndarray]:
    """The floors of all series of `head` where `retained` was their range until now."""
    floors = head.floors(head.ids.names()[: len(head.columns["last_sequence"])])
    if retained.limit is not None:
        low = head.columns["last_sequence"] - retained.limit + 1
        floors["floor_sequence"] = np.maximum(floors["floor_sequence"], low)
    if retained.last_us is not None:
        low_us = np.maximum(head.columns["original_us"], NEVER_US + retained.last_us)
        floors["floor_us"] = np.maximum(floors["floor_us"], low_us - retained.last_us)
    return floors
