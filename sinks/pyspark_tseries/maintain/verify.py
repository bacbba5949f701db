"""Verification of a store, and rebuilding of its head from the events (semantics 26.3 and 26.6).

Every scan holds one slice of whole series in memory, and one row for each series.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_timestream.errors import compose_message
from pyspark_tseries.errors import UnusableStore, WrongClock
from pyspark_tseries.maintain.file_check import check_file
from pyspark_tseries.maintain.head_recovery import recover_head
from pyspark_tseries.maintain.invariants import CHECKED_COLUMNS, CompactionHorizon, find_violations
from pyspark_tseries.maintain.log_statistics import describe_contradiction, read_logged_bounds
from pyspark_tseries.model.columns import ERASURE_FIELD
from pyspark_tseries.model.commit_time import MAX_CLOCK_SKEW_US
from pyspark_tseries.model.series_index import (
    SeriesIndex,
    apply_delta,
    attach_metadata,
    min_retained_table,
)
from pyspark_tseries.model.series_state import state_to_delta
from pyspark_tseries.model.slices import Sample, Slice, split_slices
from pyspark_tseries.promise.record import EARLIER_VERSIONS
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.erasure_files import list_records, read_records
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.storage.table_scan import BASE_SCHEMA, read_slice, scan_file, scan_state
from pyspark_tseries.store.admin_commits import replace_index
from pyspark_tseries.store.log_check import damaged_log_error, find_log_damage
from pyspark_tseries.store.ownership import require_owner
from pyspark_tseries.store.store import Store, now_us

__all__ = ["check_rows", "rebuild", "verify"]

MAX_SLICE_BYTES = 64 * 1024 * 1024
"""Uncompressed size of the columns that are checked."""

MAX_VIOLATIONS = 100


def verify(path: str | Location, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Describe each violation in the store at `path` in a sentence; none if it is sound.

    Raises:
        NoSuchStore: there is none.
        UnusableStore: what is there cannot be opened at all.
        ValueError: `path` is empty or a URI of another kind.
    """
    location = parse_location(path, storage_options)
    damage = find_log_damage(location) if location.is_local else None
    if damage is not None:
        return [str(damaged_log_error(location, damage))]
    found = list(dict.fromkeys(_find_violations(Store.open_damaged(location))))
    more = len(found) - MAX_VIOLATIONS
    return found[:MAX_VIOLATIONS] + ([f"and {more} more"] if more > 0 else [])


def _find_violations(store: Store) -> Iterator[str]:
    try:
        store.log.check()
    except UnusableStore as error:
        yield str(error)
    try:
        if store.metadata().commit_us > now_us() + MAX_CLOCK_SKEW_US:
            store.read_clock()
    except (UnusableStore, WrongClock) as error:
        yield str(error)
    try:
        data = store.data_files()
    except UnusableStore as error:
        yield str(error)
        return
    try:
        head = store.index()[1]
    except UnusableStore as error:
        head = None
        yield str(error)
    try:
        for _ in read_records(store.location, None if head is None else head.metadata.erasure):
            pass
    except UnusableStore as error:
        yield str(error)
    readable: list[DataFile] = []
    samples: list[Sample] = []
    values, logged = store.values, read_logged_bounds(store)
    for file in data:
        found = check_file(store.location, file, values)
        if found.problem is not None:
            yield found.problem
            continue
        readable.append(file)
        samples += found.samples
        if found.extent is not None and not file.is_foreign:
            wrong = describe_contradiction(file, logged[file.path], found.extent)
            if wrong is not None:
                yield compose_message(
                    wrong, next_step=f"python -m pyspark_tseries repair {store.root}"
                )
    if head is not None:
        compacted = CompactionHorizon(store.horizon(), store.retained)
        yield from check_rows(store.location, compacted, head, readable, samples)


def check_rows(
    location: Location,
    compacted: CompactionHorizon,
    head: SeriesIndex,
    data: list[DataFile],
    samples: list[Sample],
) -> Iterator[str]:
    """Describe what is wrong with the events in the readable files `data`, beside the head.

    Args:
        location: of the store.
        compacted: the events that compaction may have removed.
        head: the current one.
        data: the files.
        samples: of their keys.
    """
    seen = np.zeros(len(head.columns["last_sequence"]), bool)
    for part in split_slices(samples, MAX_SLICE_BYTES, whole_series=True):
        events = _read_slice(location, data, part, CHECKED_COLUMNS)
        ids = head.ids.find(events["series"].unique().to_pylist())
        seen[ids[(ids >= 0) & (ids < len(seen))]] = True
        yield from find_violations(events, head, compacted)
    names = head.ids.names()
    lost = np.flatnonzero(~seen & (head.columns["last_sequence"] >= 0))
    for row in lost[:MAX_VIOLATIONS]:
        last = head.columns["last_sequence"][row]
        yield f"series '{names[int(row)]}': the head has last_sequence {last}, without events"


def _read_slice(
    location: Location, data: Iterable[DataFile], part: Slice, columns: Sequence[str]
) -> pa.Table:
    return read_slice(location, data, part, BASE_SCHEMA, columns)


def _find_last_act(store: Store, known: str | None) -> str | None:
    """The id of the last act that erased a stored event, or `known` where that is later."""
    ids = {known}
    for file in store.data_files():
        for rows in scan_file(store.location, file, BASE_SCHEMA, (ERASURE_FIELD.name,)):
            ids.update(rows[ERASURE_FIELD.name].unique().to_pylist())
    acts = (record.act for record in list_records(store.location) if record.act.id in ids)
    last = max(acts, key=lambda act: act.commit, default=None)
    return known if last is None else last.id


def rebuild(
    path: str | Location,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
) -> int:
    """Rebuild the head of the store at `path` from its events; return the number of series.

    The counts of dropped and adjusted rows, the policy and a changed retained range are taken from
    the newest readable head.

    Args:
        path: a local path, a `file:` URI or an `s3:` URI.
        storage_options: how an object store is reached; see `STORAGE_OPTIONS`.
        principal: who does it; None: the OS user.

    Raises:
        PermissionDenied: the store has a policy, and the principal is not an owner.
        NoSuchStore: there is none.
        OSError: a file of events cannot be read; see `verify`.
    """
    store = Store.open_damaged(parse_location(path, storage_options))
    store.log.check()
    require_owner(store, principal, "make the head again")

    def rebuild_head(head_id: int | None, version: int) -> SeriesIndex:
        found, newest_us = scan_state(store.location, store.data_files(), -1)
        recovered = recover_head(store)
        metadata, floors = recovered.metadata, min_retained_table(recovered.head)
        commit_us = max(newest_us, metadata.commit_us)
        # Normally a commit's number is below the version of its log entry, but a repair may have
        # raised it. The maximum is higher than all before.
        last = max((file.last_commit for file in store.data_files()), default=-1)
        number = max(version, last + 1, metadata.commit + 1)
        # Writers that began in a head that cannot be read are not in the record of an older one.
        ctis = metadata.ctis
        ctis = ctis if recovered.current else ctis.advance(EARLIER_VERSIONS, None, number)
        erasure = metadata.erasure if recovered.current else _find_last_act(store, metadata.erasure)
        metadata = dataclasses.replace(
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
        head = apply_delta(SeriesIndex(), attach_metadata(state_to_delta(found), metadata))
        return head if floors is None else apply_delta(head, attach_metadata(floors, metadata))

    return len(replace_index(store, rebuild_head, timed=False).ids)
