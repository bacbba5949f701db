"""A store of which a clock has dated commits in the future, with the times that they had.

The files of such commits are written again, and take the places of the old ones in one commit.
"""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.maintain.repair.time_correction import (
    KEYS,
    Restamping,
    corrected_times,
    find_restamping,
    restamped,
)
from pyspark_tseries.model.columns import layout
from pyspark_tseries.model.series_index import (
    FLOORS,
    NEVER_US,
    Head,
    Note,
    floors_of,
    merge,
    snapshot_of,
    with_note,
)
from pyspark_tseries.model.series_state import longs, standing_columns
from pyspark_tseries.model.slices import by_name, key_order
from pyspark_tseries.storage.data_files import (
    DataFile,
    WrittenFile,
    as_stored,
    run_path,
    write_events,
)
from pyspark_tseries.storage.head_files import head_path, write_head
from pyspark_tseries.storage.row_filter import EVERY_ROW
from pyspark_tseries.storage.table_scan import SCANNED, rows_of, scan, scan_standing
from pyspark_tseries.store.log import added
from pyspark_tseries.store.log_check import HEAD
from pyspark_tseries.store.log_entries import Removed
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.numbering import series_column

__all__ = ["FutureCommits", "correct", "find_future_commits"]


@dataclass(frozen=True, slots=True)
class FutureCommits:
    """Commits in the future.

    Attributes:
        files: those with their events.
        change: their corrected times, and the events that get another one.
        latest_us: the latest time of one so far.
        now_us: the time of the correction; no commit is later.
    """

    files: tuple[DataFile, ...]
    change: Restamping
    latest_us: int
    now_us: int


def find_future_commits(store: Store, limit_us: int, now_us: int) -> FutureCommits:
    """The commits of `store` that are later than `limit_us`, and their corrected times.

    Args:
        store: up to date.
        limit_us: a commit up to here is not in the future.
        now_us: a clock that is right.
    """
    late = pc.field("commit_time") > pa.scalar(limit_us).cast(SCANNED.field("commit_time").type)
    files, parts, last_good_us = [], [SCANNED.empty_table().select(KEYS)], NEVER_US
    for file in store.data_files():
        columns = list(dict.fromkeys([*KEYS, "commit_time"]))
        found = list(scan(store.place, file, SCANNED, columns, wanted=late))
        if found:
            files.append(file)
            parts += [rows.select(KEYS) for rows in found]
        for rows in scan(store.place, file, SCANNED, ("commit_time",), wanted=~late):
            last_good_us = max(last_good_us, int(longs(rows["commit_time"]).max()))
    keys = pa.concat_tables(parts)
    now_us = max(now_us, last_good_us)
    numbers = np.unique(longs(keys["commit"]))
    times = corrected_times(numbers, _written_us(store, files), last_good_us, now_us)
    stood, _ = scan_standing(store.place, store.data_files(), -1, wanted=~late)
    change = find_restamping(keys, stood.select(["series", "newest_us"]), times)
    return FutureCommits(tuple(files), change, store.note().commit_us, now_us)


def _written_us(store: Store, files: Sequence[DataFile]) -> dict[int, int]:
    """When the files of single commits were written."""
    found: dict[int, int] = {}
    for file in files:
        born = store.place.identity(store.place.file(file.path))
        if born is not None and not file.merged:
            found[file.first_commit] = born[1] // 1000
    return found


def correct(store: Store, found: FutureCommits) -> None:
    """Commits the corrected times.

    Raises:
        DeltaError: a commit was made meanwhile.
        OSError: the storage failed; nothing was changed.
    """
    place, new_id = store.place, secrets.randbits(62)
    written = [
        _written(store, file, found.change, new_id, number)
        for number, file in enumerate(found.files)
    ]
    with store.turn() as log:
        kept = [file for file in store.data_files() if file not in found.files]
        stored = [
            dataclasses.replace(as_stored(new, old.first_commit), last_commit=old.last_commit)
            for new, old in zip(written, found.files, strict=True)
        ]
        head = _head_of(store, [*kept, *stored], found.now_us)
        write_head(place, new_id, snapshot_of(head))
        now_ms = found.now_us // 1000
        gone = [Removed(file.path, file.size, file.kind, now_ms, True) for file in found.files]
        log.accept()
        log.commit(
            [*gone, *added(written, now_ms)],
            {HEAD: new_id},
            head.note.commit,
            [head_path(place, new_id), *(place.file(file.path) for file in written)],
        )


def _written(
    store: Store, file: DataFile, change: Restamping, new_id: int, number: int
) -> WrittenFile:
    schema = pa.schema(list(layout(store.values))[:-1])
    rows = restamped(rows_of(store.place, [file], schema, schema.names, EVERY_ROW), change)
    names, codes = by_name(rows["series"])
    order = key_order(codes, longs(rows["sequence"]))
    rows = rows.take(pa.array(order)).combine_chunks()
    rows = rows.set_column(0, "series", series_column(names, codes[order]))
    commits = file.first_commit, file.last_commit
    path = f"kind={file.kind}/{commits[0]:010d}-{new_id:016x}.{number:04d}.parquet"
    if file.merged:
        path = run_path(file.kind, commits, new_id, number)
    return write_events(store.place, path, rows)


def _head_of(store: Store, files: Sequence[DataFile], now_us: int) -> Head:
    """The head that the events say; without floors that the times in the future have made."""
    _, before = store.head()
    found, _ = scan_standing(store.place, files, -1)
    head = merge(Head(), with_note(standing_columns(found), _next(before.note, now_us)))
    floors = floors_of(before)
    if floors is None:
        return head
    names = floors["series"].to_pylist()
    low_us = longs(floors["floor_us"])
    made = low_us > head.of(names)["original_us"]
    columns: Mapping[str, pa.Array] = {
        "series": floors["series"],
        "floor_sequence": floors["floor_sequence"],
        "floor_us": pa.array(np.where(made, FLOORS["floor_us"], low_us)),
    }
    return merge(head, with_note(pa.table(dict(columns)), head.note))


def _next(note: Note, now_us: int) -> Note:
    return dataclasses.replace(
        note, parent=None, commit=note.commit + 1, commit_us=now_us, depth=0, rows=0
    )
