"""Recompute heads, bounds in the log, and times of wrong clocks from undamaged files.

*Heads.* Events give the state of each series; the rest of a head, its commit metadata and floors,
exists nowhere else. A rebuild takes the newest readable metadata of committed heads, and the floors
of the newest head that is whole with all heads before it. Heads that no log entry names come last:
their commits may never have been made, so their CTIs do not count.

*Bounds.* Readers skip files by the bounds in the log, and deltalake 1.6 misreads some escaped names
in them. This package allows for such wrong bounds; tools that build on deltalake lose rows.

*Times* (semantics 26.4). A commit that a wrong clock has dated in the future gets the time when its
file was written, or else the latest time that it can have. An event with exactly that commit's
timestamp got it from that clock: it gets the corrected time of its commit, or the newest time of
its series if that is later. Timestamps from a client stay as they are, even in the future. One
commit replaces the files with corrected ones.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import Finding, StoreBusy, UnusableStore
from pyspark_tseries.model.arrays import (
    NEVER_US,
    NO_SEQUENCE,
    Int64Array,
    encode_runs,
    find_number_runs,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.columns import ERASURE_FIELD, INSTANT, file_schema
from pyspark_tseries.model.commits import NO_COMMIT, UNKNOWN_WRITERS, CommitMetadata, CtiRecord
from pyspark_tseries.model.series_index import (
    FLOOR_DEFAULTS,
    SeriesIndex,
    build_index,
    floors_table,
)
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.data_files import (
    DataFile,
    FileStats,
    WrittenFile,
    compacted_path,
    compute_stats,
    logged_series_bounds,
    to_data_file,
    write_events,
)
from pyspark_tseries.storage.erasures import list_records
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import (
    ALL_ROWS,
    BASE_SCHEMA,
    base_fields,
    read_rows,
    scan_file,
)
from pyspark_tseries.storage.snapshot import (
    load_index,
    read_head_metadata,
    readable_metadata,
    scan_state,
    write_full_head,
)
from pyspark_tseries.store.admin_commits import replace_files, replace_index, require_owner
from pyspark_tseries.store.log_check import HEAD_TRANSACTION, read_entries_back
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import PreparedCommit
from pyspark_tseries.write.numbering import series_column

MAX_LOG_ENTRIES: Final = 200
"""Search at most this many log entries for the heads that they name."""

_UNREADABLE: Final = (UnusableStore, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class RecoveredHead:
    """The readable parts of a head.

    Attributes:
        metadata: the newest readable metadata; NO_COMMIT if there is none.
        index: the index of the newest whole head, for its floors; empty without one.
        current: True if the current head has `metadata`.
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
        # Their commits may never have been made: the writers are kept without their CTIs (30.5).
        readable = {
            head_id: replace(metadata, ctis=CtiRecord(dict.fromkeys(metadata.ctis.writers)))
            for head_id, metadata in readable_metadata(store.location).items()
        }
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


def _list_committed_heads(store: Store) -> Iterator[int]:
    """Yield the ids of the heads in the log, newest first, each once."""
    newest = previous = store.head_id()
    if newest is not None:
        yield newest
    entries = read_entries_back(store.location, store.log.version())
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
    wrong = {}
    logged = read_logged_bounds(store)
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
        if not store.retry(attempt, store.retrying.commit_attempts):
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
        metadata = recovered.metadata
        floors = floors_table(recovered.index)
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
        metadata = _begin_chain(
            metadata, commit=number, commit_us=commit_us, ctis=ctis, erasure=erasure
        )
        return build_index(_forget_partial_counts(states), metadata, floors)

    return len(replace_index(store, rebuild_index, timed=False).ids)


TIME_COLUMNS: Final = (
    "series",
    "sequence",
    "timestamp",
    "original_sequence",
    "commit",
    "commit_time",
)
"""The columns that the correction reads."""


def correct_times(
    commits: Int64Array, written_us: Mapping[int, int], last_good_us: int, now_us: int
) -> dict[int, int]:
    """Return the corrected time of each commit; times do not decrease with the numbers.

    >>> correct_times(np.array([4, 5, 6]), {4: 70, 6: 2_000}, 60, 100)
    {4: 70, 5: 100, 6: 100}
    """
    corrected: dict[int, int] = {}
    # From the last commit back, so that no commit gets a later time than the one after it.
    latest = now_us
    for number in reversed(commits.tolist()):
        us = written_us.get(number, latest)
        latest = min(latest, us if last_good_us <= us <= now_us else latest)
        corrected[number] = latest
    return {number: corrected[number] for number in commits.tolist()}


@dataclass(frozen=True, slots=True)
class TimeCorrection:
    """The correction of commits in the future.

    Attributes:
        files: the files with their events.
        commit_us: the corrected time of each commit, by its number.
        events: series, sequence and new timestamp of the events that get another time.
        now_us: the time of the correction; no commit is later.
    """

    files: tuple[DataFile, ...]
    commit_us: Mapping[int, int]
    events: pa.Table
    now_us: int


def _find_moved_events(
    keys: pa.Table, newest_us: pa.Table, commit_us: Mapping[int, int]
) -> pa.Table:
    """Return series, sequence and new timestamp of the events that get another time."""
    names, codes = encode_runs(keys["series"])
    sequence = to_int64(keys["sequence"])
    order = sort_keys(codes, sequence)
    codes, sequence = codes[order], sequence[order]
    times = ("timestamp", "commit", "commit_time")
    us, commit, old_us = (to_int64(keys[name])[order] for name in times)
    # In the order of (series, sequence): `us` as stored, `corrected` as they will be. An event with
    # the time of a corrected commit got it from the clock, not from its writer.
    is_assigned = np.isin(us, np.unique(old_us))
    corrected = np.where(is_assigned, _look_up(commit, commit_us), us)
    newest = _compute_newest_before(names, newest_us)
    starts, sizes = find_number_runs(codes)
    for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
        rows = slice(start, end)
        # In its series an assigned time is not before any earlier event's.
        highest = np.maximum.accumulate(np.maximum(corrected[rows], newest[codes[start]]))
        corrected[rows] = np.where(is_assigned[rows], highest, corrected[rows])
    changed = np.flatnonzero(corrected != us)
    return pa.table(
        {
            "series": names.take(pa.array(codes[changed])),
            "sequence": sequence[changed],
            "timestamp": pa.array(corrected[changed]).cast(INSTANT),
        }
    )


def _look_up(numbers: Int64Array, values: Mapping[int, int]) -> Int64Array:
    known_numbers = np.array(sorted(values), np.int64)
    results = np.array([values[number] for number in known_numbers.tolist()], np.int64)
    return results[np.searchsorted(known_numbers, numbers)]


def _compute_newest_before(names: pa.Array, newest_us: pa.Table) -> Int64Array:
    rows = pc.index_in(names, newest_us["series"].combine_chunks().cast(pa.string()))
    us = newest_us["newest_us"].combine_chunks().cast(pa.int64()).take(rows)
    newest: Int64Array = us.fill_null(NEVER_US).to_numpy(zero_copy_only=False)
    return newest


def apply_correction(rows: pa.Table, correction: TimeCorrection) -> pa.Table:
    """Return events, in any order, with their new times and the new times of edits' originals."""
    stamps = _correct_column(rows["series"], rows["sequence"], rows["timestamp"], correction)
    originals = _correct_column(
        rows["series"], rows["original_sequence"], rows["original_timestamp"], correction
    )
    commit, commit_us = to_int64(rows["commit"]), to_int64(rows["commit_time"])
    moved = np.isin(commit, list(correction.commit_us))
    commit_us = commit_us.copy()
    commit_us[moved] = _look_up(commit[moved], correction.commit_us)
    new = {
        "timestamp": stamps,
        "original_timestamp": originals,
        "commit_time": pa.array(commit_us).cast(INSTANT),
    }
    for name, column in new.items():
        column_index = rows.schema.get_field_index(name)
        rows = rows.set_column(column_index, rows.schema.field(column_index), column)
    return rows


def _correct_column(
    series: pa.ChunkedArray,
    sequence: pa.ChunkedArray,
    us: pa.ChunkedArray,
    correction: TimeCorrection,
) -> pa.Array:
    """Return the new times of the events (`series`, `sequence`); `us` for those without one."""
    events = pa.table(
        {
            "series": series.cast(pa.string()),
            "sequence": sequence.fill_null(NO_SEQUENCE),
            "row": np.arange(len(series)),
        }
    )
    joined = events.join(correction.events, ["series", "sequence"], join_type="left outer")
    new = joined.sort_by("row")["timestamp"].combine_chunks()
    return pc.coalesce(new, us.combine_chunks())


def find_future_commits(store: Store, limit_us: int, now_us: int) -> TimeCorrection:
    """Find the commits of `store` that are later than `limit_us`, and their corrected times."""
    late = pc.field("commit_time") > pa.scalar(limit_us).cast(BASE_SCHEMA.field("commit_time").type)
    files = []
    key_tables = [BASE_SCHEMA.empty_table().select(TIME_COLUMNS)]
    last_good_us = NEVER_US
    for file in store.data_files():
        late_rows = list(
            scan_file(store.location, file, base_fields(TIME_COLUMNS), expression=late)
        )
        if late_rows:
            files.append(file)
            key_tables += [rows.select(TIME_COLUMNS) for rows in late_rows]
        for rows in scan_file(
            store.location, file, base_fields(("commit_time",)), expression=~late
        ):
            last_good_us = max(last_good_us, int(to_int64(rows["commit_time"]).max()))
    keys = pa.concat_tables(key_tables)
    now_us = max(now_us, last_good_us)
    numbers = np.unique(to_int64(keys["commit"]))
    times = correct_times(numbers, _read_file_times(store, files), last_good_us, now_us)
    states, _ = scan_state(store.location, store.data_files(), expression=~late)
    moved = _find_moved_events(keys, states.select(["series", "newest_us"]), times)
    return TimeCorrection(tuple(files), times, moved, now_us)


def _read_file_times(store: Store, files: Sequence[DataFile]) -> dict[int, int]:
    times: dict[int, int] = {}
    for file in files:
        born = store.location.identity(store.location.file(file.path))
        if born is not None and not file.is_compacted:
            times[file.first_commit] = born[1] // 1000
    return times


def correct_future_commits(store: Store, correction: TimeCorrection) -> None:
    """Commit the corrected times; raise StoreBusy if the store has changed since it was read."""
    new_id = store.new_id()
    new_files = [
        _rewrite_file(store, file, correction, new_id, number)
        for number, file in enumerate(correction.files)
    ]
    with store.planned_lock() as log:
        unchanged = [file for file in store.data_files() if file not in correction.files]
        stored = [
            replace(to_data_file(new, old.first_commit), last_commit=old.last_commit)
            for new, old in zip(new_files, correction.files, strict=True)
        ]
        index = _rebuild_index(store, [*unchanged, *stored], correction.now_us)
        index, head = write_full_head(store.location, new_id, index)
        log.mark_checked()
        commit = PreparedCommit(new_id, index, new_files, [head], replaced=correction.files)
        store.commit_prepared(commit, {}, synced=True)


def _rewrite_file(
    store: Store, file: DataFile, correction: TimeCorrection, new_id: int, number: int
) -> WrittenFile:
    schema = file_schema(store.values)
    rows = apply_correction(read_rows(store.location, [file], schema, ALL_ROWS), correction)
    names, codes = encode_runs(rows["series"])
    order = sort_keys(codes, to_int64(rows["sequence"]))
    rows = rows.take(pa.array(order)).combine_chunks()
    rows = rows.set_column(0, "series", series_column(names, codes[order]))
    commits = file.first_commit, file.last_commit
    path = f"kind={file.kind}/{commits[0]:010d}-{new_id:016x}.{number:04d}.parquet"
    if file.is_compacted:
        path = compacted_path(file.kind, commits, new_id, number)
    return write_events(store.location, path, rows)


def _rebuild_index(store: Store, files: Sequence[DataFile], now_us: int) -> SeriesIndex:
    """Build the index from the events, without floors that times in the future have raised."""
    before = store.index()
    states, _ = scan_state(store.location, files)
    since_us = before.metadata.retained_since_us
    number = before.metadata.commit + 1
    # The true time is not known; without it the commit's number decides.
    since_us = None if since_us is None or since_us > now_us else since_us
    metadata = _begin_chain(
        before.metadata, commit=number, commit_us=now_us, retained_since_us=since_us
    )
    floors = floors_table(before)
    if floors is not None:
        low_us = to_int64(floors["floor_us"])
        original_us = build_index(states, metadata).lookup(floors["series"].to_pylist())
        has_floor = low_us > original_us["original_us"]
        column_index = floors.schema.get_field_index("floor_us")
        kept_us = np.where(has_floor, FLOOR_DEFAULTS["floor_us"], low_us)
        floors = floors.set_column(column_index, "floor_us", pa.array(kept_us))
    return build_index(_keep_counts(states, before), metadata, floors)


def _keep_counts(states: pa.Table, before: SeriesIndex) -> pa.Table:
    """Return states with the counts of `before`, which include events that compaction removed."""
    counts = before.lookup(states["series"].to_pylist())
    kept_us = counts["first_us"]
    stored_us = to_int64(states["first_us"])
    # A series may have nothing left but erased edits: then no original is stored.
    first_us = np.where(stored_us == NEVER_US, kept_us, np.minimum(kept_us, stored_us))
    for name, column in (("first_us", first_us), ("edits", counts["edits"])):
        states = states.set_column(states.schema.get_field_index(name), name, pa.array(column))
    return states


def _begin_chain(metadata: CommitMetadata, **changes: Any) -> CommitMetadata:
    """Return the metadata of a head without a parent, with `changes`."""
    return replace(metadata, parent=None, depth=0, rows=0, marks=None, **changes)
