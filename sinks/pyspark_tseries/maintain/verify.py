"""Looking at a whole store: is it sound, and where do its series stand.

Every scan holds one slice of whole series in memory, besides one row a series.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_tseries.errors import UnusableStore, WrongClock
from pyspark_tseries.maintain.file_check import examine
from pyspark_tseries.maintain.head_recovery import find_remnant
from pyspark_tseries.maintain.invariants import CHECKED, Trimming, broken
from pyspark_tseries.maintain.log_statistics import contradiction, logged_bounds
from pyspark_tseries.model.commit_time import MOST_SKEW_US
from pyspark_tseries.model.series_index import Head, floors_of, merge, with_note
from pyspark_tseries.model.series_state import standing_columns
from pyspark_tseries.model.slices import Sample, Slice, cut
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Place, place_of
from pyspark_tseries.storage.table_scan import SCANNED, scan_standing, slice_rows
from pyspark_tseries.store.admin_commits import replace_head
from pyspark_tseries.store.log_check import damaged_log, find_log_damage
from pyspark_tseries.store.ownership import need_owner
from pyspark_tseries.store.store import Store, now_us

__all__ = ["rebuild", "verify"]

SLICE_BYTES = 64 * 1024 * 1024
"""Uncompressed, of the columns that are checked."""

MOST_FINDINGS = 100


def verify(path: str | Place, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """What is broken in the store at `path`, as sentences; empty where it is sound.

    Raises:
        NoSuchStore: there is none.
        UnusableStore: what is there cannot be opened at all.
        ValueError: `path` is empty or a URI of another kind.
    """
    place = place_of(path, storage_options)
    damage = find_log_damage(place) if place.local else None
    if damage is not None:
        return [str(damaged_log(place, damage))]
    found = list(dict.fromkeys(_findings(Store.open_damaged(place))))
    more = len(found) - MOST_FINDINGS
    return found[:MOST_FINDINGS] + ([f"and {more} more"] if more > 0 else [])


def _findings(store: Store) -> Iterator[str]:
    try:
        store.log.check()
    except UnusableStore as error:
        yield str(error)
    try:
        if store.note().commit_us > now_us() + MOST_SKEW_US:
            store.wall_us()
    except (UnusableStore, WrongClock) as error:
        yield str(error)
    try:
        data = store.data_files()
    except UnusableStore as error:
        yield str(error)
        return
    try:
        head = store.head()[1]
    except UnusableStore as error:
        head = None
        yield str(error)
    readable: list[DataFile] = []
    samples: list[Sample] = []
    values, logged = store.values, logged_bounds(store)
    for file in data:
        found = examine(store.place, file, values)
        if found.problem is not None:
            yield found.problem
            continue
        readable.append(file)
        samples += found.samples
        if found.extent is not None and not file.is_foreign:
            wrong = contradiction(file, logged[file.path], found.extent)
            if wrong is not None:
                yield f"{wrong}; next step: python -m pyspark_tseries repair {store.root}"
    if head is not None:
        yield from _rows(store, head, readable, samples)


def _rows(store: Store, head: Head, data: list[DataFile], samples: list[Sample]) -> Iterator[str]:
    retained = store.retained
    trimming = Trimming(store.horizon(), retained)
    seen = np.zeros(len(head.columns["last_sequence"]), bool)
    for part in cut(samples, SLICE_BYTES, whole_series=True):
        events = _read(store.place, data, part, CHECKED)
        ids = head.ids.find(events["series"].unique().to_pylist())
        seen[ids[(ids >= 0) & (ids < len(seen))]] = True
        yield from broken(events, head, trimming)
    names = head.ids.names()
    lost = np.flatnonzero(~seen & (head.columns["last_sequence"] >= 0))
    for row in lost[:MOST_FINDINGS]:
        last = head.columns["last_sequence"][row]
        yield f"series '{names[int(row)]}': the head says last_sequence {last}, it has no events"


def _read(place: Place, data: Iterable[DataFile], part: Slice, columns: Sequence[str]) -> pa.Table:
    return slice_rows(place, data, part, SCANNED, columns)


def rebuild(
    path: str | Place,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
) -> int:
    """Makes the head of the store at `path` anew from its events; returns the number of series.

    The counts of dropped and adjusted rows, the policy and a changed retained range are those of
    the newest head that can still be read.

    Args:
        path: a local path, a `file:` URI or an `s3:` URI.
        storage_options: how an object store is reached; see `STORAGE_OPTIONS`.
        principal: who does it; None: the OS user.

    Raises:
        PermissionDenied: the store has a policy, and the principal is no owner.
        NoSuchStore: there is none.
        OSError: a file of events cannot be read; see `verify`.
    """
    store = Store.open_damaged(place_of(path, storage_options))
    store.log.check()
    need_owner(store, principal, "make the head again")

    def anew(head_id: int | None, version: int) -> Head:
        found, newest_us = scan_standing(store.place, store.data_files(), -1)
        remnant = find_remnant(store)
        note, floors = remnant.note, floors_of(remnant.head)
        commit_us = max(newest_us, note.commit_us)
        # A commit's number is below that of its log entry, unless a repair has raised it; so this
        # one is higher than all before.
        last = max((file.last_commit for file in store.data_files()), default=-1)
        number = max(version, last + 1, note.commit + 1)
        note = dataclasses.replace(
            note, parent=None, commit=number, commit_us=commit_us, depth=0, rows=0
        )
        head = merge(Head(), with_note(standing_columns(found), note))
        return head if floors is None else merge(head, with_note(floors, note))

    return len(replace_head(store, anew, timed=False).ids)
