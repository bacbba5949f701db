"""Correct the times that a clock in the future gave to commits (semantics 26.4).

A commit in the future gets the time at which its file was written, or else the latest time that it
can have. An event with exactly the timestamp of such a commit got it from that clock: it gets the
corrected time of its commit, or the newest of its series if that is later. Timestamps that a client
gave stay as they are, even in the future. One commit replaces the files with corrected ones.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import (
    NEVER_US,
    NO_SEQUENCE,
    Int64Array,
    encode_runs,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.columns import INSTANT, file_schema
from pyspark_tseries.model.series_index import (
    MIN_RETAINED_DEFAULTS,
    CommitMetadata,
    SeriesIndex,
    build_index,
    make_full_table,
    min_retained_table,
)
from pyspark_tseries.storage.data_files import (
    DataFile,
    WrittenFile,
    compacted_path,
    to_data_file,
    write_events,
)
from pyspark_tseries.storage.head_files import head_path, write_head
from pyspark_tseries.storage.row_reader import (
    ALL_ROWS,
    BASE_SCHEMA,
    read_rows,
    scan_file,
    scan_state,
)
from pyspark_tseries.store.log_check import HEAD_TRANSACTION
from pyspark_tseries.store.log_entries import Change, add_files, remove_files
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.numbering import series_column

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
    latest = now_us
    for number in reversed(commits.tolist()):
        us = written_us.get(number, latest)
        latest = min(latest, us if last_good_us <= us <= now_us else latest)
        corrected[number] = latest
    return {number: corrected[number] for number in commits.tolist()}


@dataclass(frozen=True, slots=True)
class TimeCorrection:
    """The events that get another time.

    Attributes:
        commit_us: the corrected time of each commit, by its number.
        events: series, sequence and new timestamp of these events.
    """

    commit_us: Mapping[int, int]
    events: pa.Table


def plan_correction(
    keys: pa.Table, newest_us: pa.Table, commit_us: Mapping[int, int]
) -> TimeCorrection:
    """Find the events that get another time."""
    names, codes = encode_runs(keys["series"])
    sequence = to_int64(keys["sequence"])
    order = sort_keys(codes, sequence)
    codes, sequence = codes[order], sequence[order]
    times = ("timestamp", "commit", "commit_time")
    us, commit, old_us = (to_int64(keys[name])[order] for name in times)
    assigned = np.isin(us, np.unique(old_us))
    corrected = np.where(assigned, _look_up(commit, commit_us), us)
    newest = _newest_before(names, newest_us)
    ends = [*np.flatnonzero(np.diff(codes, prepend=-1)).tolist(), len(codes)]
    for start, end in pairwise(ends if len(codes) else []):
        series = slice(start, end)
        highest = np.maximum.accumulate(np.maximum(corrected[series], newest[codes[start]]))
        corrected[series] = np.where(assigned[series], highest, corrected[series])
    changed = np.flatnonzero(corrected != us)
    return TimeCorrection(
        commit_us,
        pa.table(
            {
                "series": names.take(pa.array(codes[changed])),
                "sequence": sequence[changed],
                "timestamp": pa.array(corrected[changed]).cast(INSTANT),
            }
        ),
    )


def _look_up(numbers: Int64Array, values: Mapping[int, int]) -> Int64Array:
    known = np.array(sorted(values), np.int64)
    results = np.array([values[number] for number in known.tolist()], np.int64)
    return results[np.searchsorted(known, numbers)]


def _newest_before(names: pa.Array, newest_us: pa.Table) -> Int64Array:
    rows = pc.index_in(names, newest_us["series"].combine_chunks().cast(pa.string()))
    us = newest_us["newest_us"].combine_chunks().cast(pa.int64()).take(rows)
    newest: Int64Array = us.fill_null(NEVER_US).to_numpy(zero_copy_only=False)
    return newest


def apply_correction(rows: pa.Table, change: TimeCorrection) -> pa.Table:
    """Return whole events, in any order, with their new times and those of edits' originals."""
    stamps = _corrected_column(rows["series"], rows["sequence"], rows["timestamp"], change)
    originals = _corrected_column(
        rows["series"], rows["original_sequence"], rows["original_timestamp"], change
    )
    commit, commit_us = to_int64(rows["commit"]), to_int64(rows["commit_time"])
    moved = np.isin(commit, list(change.commit_us))
    commit_us = commit_us.copy()
    commit_us[moved] = _look_up(commit[moved], change.commit_us)
    new = {
        "timestamp": stamps,
        "original_timestamp": originals,
        "commit_time": pa.array(commit_us).cast(INSTANT),
    }
    for name, column in new.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), column)
    return rows


def _corrected_column(
    series: pa.ChunkedArray, sequence: pa.ChunkedArray, us: pa.ChunkedArray, change: TimeCorrection
) -> pa.Array:
    """Return the new times of the events (`series`, `sequence`); `us` where there is none."""
    wanted = pa.table(
        {
            "series": series.cast(pa.string()),
            "sequence": sequence.fill_null(NO_SEQUENCE),
            "row": np.arange(len(series)),
        }
    )
    joined = wanted.join(change.events, ["series", "sequence"], join_type="left outer")
    new = joined.sort_by("row")["timestamp"].combine_chunks()
    return pc.coalesce(new, us.combine_chunks())


@dataclass(frozen=True, slots=True)
class FutureCommits:
    """Commits in the future.

    Attributes:
        files: the files with their events.
        change: their corrected times, and the events that get another time.
        now_us: the time of the correction; no commit is later.
    """

    files: tuple[DataFile, ...]
    change: TimeCorrection
    now_us: int


def find_future_commits(store: Store, limit_us: int, now_us: int) -> FutureCommits:
    """Find the commits of `store` that are later than `limit_us`, and their corrected times."""
    late = pc.field("commit_time") > pa.scalar(limit_us).cast(BASE_SCHEMA.field("commit_time").type)
    files, parts, last_good_us = [], [BASE_SCHEMA.empty_table().select(TIME_COLUMNS)], NEVER_US
    for file in store.data_files():
        late_rows = list(scan_file(store.location, file, BASE_SCHEMA, TIME_COLUMNS, wanted=late))
        if late_rows:
            files.append(file)
            parts += [rows.select(TIME_COLUMNS) for rows in late_rows]
        for rows in scan_file(store.location, file, BASE_SCHEMA, ("commit_time",), wanted=~late):
            last_good_us = max(last_good_us, int(to_int64(rows["commit_time"]).max()))
    keys = pa.concat_tables(parts)
    now_us = max(now_us, last_good_us)
    numbers = np.unique(to_int64(keys["commit"]))
    times = correct_times(numbers, _read_file_times(store, files), last_good_us, now_us)
    states, _ = scan_state(store.location, store.data_files(), -1, wanted=~late)
    change = plan_correction(keys, states.select(["series", "newest_us"]), times)
    return FutureCommits(tuple(files), change, now_us)


def _read_file_times(store: Store, files: Sequence[DataFile]) -> dict[int, int]:
    times: dict[int, int] = {}
    for file in files:
        born = store.location.identity(store.location.file(file.path))
        if born is not None and not file.is_compacted:
            times[file.first_commit] = born[1] // 1000
    return times


def correct_future_commits(store: Store, future: FutureCommits) -> None:
    """Commit the corrected times."""
    location, new_id = store.location, store.new_id()
    written = [
        _rewrite_file(store, file, future.change, new_id, number)
        for number, file in enumerate(future.files)
    ]
    with store.commit_lock() as log:
        kept = [file for file in store.data_files() if file not in future.files]
        stored = [
            dataclasses.replace(to_data_file(new, old.first_commit), last_commit=old.last_commit)
            for new, old in zip(written, future.files, strict=True)
        ]
        head = _rebuild_head(store, [*kept, *stored], future.now_us)
        write_head(location, new_id, make_full_table(head))
        now_ms = future.now_us // 1000
        change = Change(
            [*remove_files(future.files, now_ms), *add_files(written, now_ms)],
            {HEAD_TRANSACTION: new_id},
            head.metadata.commit,
        )
        files = [location.file(file.path) for file in written]
        log.mark_checked()
        log.add(change, [head_path(location, new_id), *files])


def _rewrite_file(
    store: Store, file: DataFile, change: TimeCorrection, new_id: int, number: int
) -> WrittenFile:
    schema = file_schema(store.values)
    rows = apply_correction(
        read_rows(store.location, [file], schema, schema.names, ALL_ROWS), change
    )
    names, codes = encode_runs(rows["series"])
    order = sort_keys(codes, to_int64(rows["sequence"]))
    rows = rows.take(pa.array(order)).combine_chunks()
    rows = rows.set_column(0, "series", series_column(names, codes[order]))
    commits = file.first_commit, file.last_commit
    path = f"kind={file.kind}/{commits[0]:010d}-{new_id:016x}.{number:04d}.parquet"
    if file.is_compacted:
        path = compacted_path(file.kind, commits, new_id, number)
    return write_events(store.location, path, rows)


def _rebuild_head(store: Store, files: Sequence[DataFile], now_us: int) -> SeriesIndex:
    """Build the head from the events, without floors that the times in the future have raised."""
    before = store.index()
    states, _ = scan_state(store.location, files, -1)
    metadata, floors = _next_metadata(before.metadata, now_us), min_retained_table(before)
    if floors is not None:
        low_us = to_int64(floors["floor_us"])
        original_us = build_index(states, metadata).lookup(floors["series"].to_pylist())
        has_floor = low_us > original_us["original_us"]
        place = floors.schema.get_field_index("floor_us")
        kept_us = np.where(has_floor, MIN_RETAINED_DEFAULTS["floor_us"], low_us)
        floors = floors.set_column(place, "floor_us", pa.array(kept_us))
    return build_index(_keep_counts(states, before), metadata, floors)


def _keep_counts(states: pa.Table, before: SeriesIndex) -> pa.Table:
    """Return states with what `before` has counted, of events that compaction removed too."""
    known = before.lookup(states["series"].to_pylist())
    first_us = np.minimum(known["first_us"], to_int64(states["first_us"]))
    for name, column in (("first_us", first_us), ("edits", known["edits"])):
        states = states.set_column(states.schema.get_field_index(name), name, pa.array(column))
    return states


def _next_metadata(metadata: CommitMetadata, now_us: int) -> CommitMetadata:
    since_us = metadata.retained_since_us
    return dataclasses.replace(
        metadata,
        parent=None,
        # The true time is not known; without it the commit's number decides.
        retained_since_us=None if since_us is None or since_us > now_us else since_us,
        commit=metadata.commit + 1,
        commit_us=now_us,
        depth=0,
        rows=0,
        marks=None,
    )
