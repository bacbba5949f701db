"""The tasks of a subscription find their rows in data files, without the log or Spark.

A task has whole series, so one task delivers all events of a series, in the order of sequences.
"""

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import (
    MIN_NUMBER,
    NEVER_US,
    NO_ORIGINAL,
    BoolArray,
    Int64Array,
    KeyRange,
    encode_runs,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.columns import query_schema, result_schema, show_columns, table_schema
from pyspark_tseries.model.retention import RetainedRange, retained_mask
from pyspark_tseries.model.series_index import STATE_COLUMNS, SeriesIndex
from pyspark_tseries.read.position import InitialEvents, Position
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.head_files import load_partial_index
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, read_rows

MAX_ROWS_PER_BATCH = 64 * 1024


@dataclass(frozen=True, slots=True)
class Delivery:
    """One task: deliver the events of `part` between two positions.

    Attributes:
        files: the files that may contain these events.
        values: the value columns.
        part: the series.
        start: the position before; its `initial` says whether to deliver initial or later events.
        end: the position after.
        initial: the initial events that the subscriber asked for.
        head_id: the head when the task was planned, for the minimum retained sequences and times.
    """

    location: Location
    files: tuple[DataFile, ...]
    values: tuple[pa.Field, ...]
    part: KeyRange
    start: Position
    end: Position
    initial: InitialEvents
    head_id: int | None
    retained: RetainedRange


def filter_up_to(position: Position) -> pc.Expression:
    """Return a filter for the events delivered up to `position`."""
    commit = pc.field("commit")
    whole = commit <= position.commit
    if position.after is None:
        return whole
    return whole | (
        (commit == position.commit + 1) & KeyRange(None, _next_key(position.after)).expression()
    )


def filter_after(position: Position) -> pc.Expression:
    """Return a filter for the events to deliver after `position`."""
    commit = pc.field("commit")
    if position.after is None:
        return commit > position.commit
    rest = (commit == position.commit + 1) & KeyRange(_next_key(position.after)).expression()
    return (commit > position.commit + 1) | rest


def _next_key(key: tuple[str, int]) -> tuple[str, int]:
    return key[0], key[1] + 1


def read_delivery(task: Delivery) -> Iterator[pa.RecordBatch]:
    """Yield the task's events, sorted by (series, sequence), with the columns of a query."""
    chosen = _read_initial(task) if task.start.initial else _read_live(task)
    if not chosen.num_rows:
        return
    _, codes = encode_runs(chosen["series"])
    rows = chosen.take(pa.array(sort_keys(codes, to_int64(chosen["sequence"]))))
    wanted = result_schema(task.values)
    shown = show_columns(rows, wanted.names, at_originals=False)
    yield from shown.cast(wanted).combine_chunks().to_batches(MAX_ROWS_PER_BATCH)


def _read_live(task: Delivery) -> pa.Table:
    # The range may end within the next commit.
    commits = task.start.commit + 1, task.end.commit + 1
    wanted = filter_after(task.start) & filter_up_to(task.end)
    return _read_rows(task, task.files, RowFilter(keys=task.part, commits=commits), wanted)


def _read_initial(task: Delivery) -> pa.Table:
    row_filter = RowFilter(keys=task.part, commits=(MIN_NUMBER, task.start.began))
    wanted = _filter_series(task.start, task.end)
    keys = [
        read_rows(task.location, [file], BASE_SCHEMA, STATE_COLUMNS, row_filter, wanted)
        for file in task.files
    ]
    if not sum(table.num_rows for table in keys):
        return _read_rows(task, [], row_filter)
    found = pa.concat_tables(keys)
    head, _ = load_partial_index(task.location, task.head_id, found["series"].unique().to_pylist())
    chosen = select_initial_events(found, task.retained, head, task.initial)
    rows, first = [], 0
    for file, table in zip(task.files, keys, strict=True):
        mine, first = chosen[first : first + table.num_rows], first + table.num_rows
        if mine.any():
            # The same conditions on the same file give the same rows in the same order.
            rows.append(_read_rows(task, [file], row_filter, wanted).filter(pa.array(mine)))
    return pa.concat_tables(rows) if rows else _read_rows(task, [], row_filter)


def _filter_series(start: Position, end: Position) -> pc.Expression | None:
    """Return a filter for the series of initial events between two positions; None for all."""
    series, bounds = pc.field("series"), []
    if start.upto is not None:
        bounds.append(series > start.upto)
    if end.initial:
        bounds.append(series <= end.upto)
    return functools.reduce(operator.and_, bounds) if bounds else None


def _read_rows(
    task: Delivery,
    data: Sequence[DataFile],
    row_filter: RowFilter,
    wanted: pc.Expression | None = None,
) -> pa.Table:
    """Read the columns of a query, and the commit."""
    schema = pa.schema(list(table_schema(task.values))[:-1])
    columns = [*query_schema(task.values).names, "commit"]
    return read_rows(task.location, data, schema, columns, row_filter, wanted)


def count_initial_events(keys: pa.Table, chosen: BoolArray) -> tuple[list[str], Int64Array]:
    """Return the series with chosen events, in order, and the number of events of each."""
    names, codes = encode_runs(keys["series"].filter(pa.array(chosen)))
    return names.to_pylist(), np.bincount(codes, minlength=len(names)).astype(np.int64)


def select_initial_events(
    keys: pa.Table, retained: RetainedRange, head: SeriesIndex, initial: InitialEvents
) -> BoolArray:
    """Flag the events that a new subscriber gets first (semantics 23.2 and 23.3).

    These are the last entries of each series in a `latestEdits` query: originals inside the
    retained range and the latest edit of each. A series in `initial.starts` instead gives all
    stored events from its sequence on.
    """
    names, codes = encode_runs(keys["series"])
    sequence, us = to_int64(keys["sequence"]), to_int64(keys["timestamp"])
    edited = to_int64(keys["original_sequence"].fill_null(NO_ORIGINAL))
    original = edited == NO_ORIGINAL
    counts = original & keys["erasure"].is_null().to_numpy()
    known = names.to_pylist()
    first = np.array([initial.starts.get(name, -1) for name in known], np.int64)[codes]
    chosen: BoolArray = (first >= 0) & (sequence >= first)
    last = np.full(len(known), -1, np.int64)
    newest_us = np.full(len(known), NEVER_US, np.int64)
    np.maximum.at(last, codes, sequence)
    np.maximum.at(newest_us, codes[counts], us[counts])
    floors = head.min_retained(known)
    low, low_us = (floors[name][codes] for name in ("floor_sequence", "floor_us"))
    entry = original & retained_mask(
        retained, sequence, us, last[codes], newest_us[codes], low, low_us
    )
    entry |= _select_latest_edits(codes, sequence, edited, entry)
    if initial.retained.last_us is not None:
        entry &= us >= (newest_us[codes] - initial.retained.last_us)
    if initial.retained.limit is not None:
        entry &= _rank_from_end(codes, sequence, entry) < initial.retained.limit
    chosen |= entry & (first < 0)
    return chosen


def _select_latest_edits(
    codes: Int64Array, sequence: Int64Array, edited: Int64Array, originals: BoolArray
) -> BoolArray:
    edits = np.flatnonzero(edited != NO_ORIGINAL)
    found = np.zeros(len(codes), bool)
    if not len(edits):
        return found
    order = edits[np.lexsort((sequence[edits], edited[edits], codes[edits]))]
    same = (np.diff(codes[order]) == 0) & (np.diff(edited[order]) == 0)
    latest = order[np.append(~same, True)]
    rows = np.flatnonzero(originals)
    there = pa.table({"series": codes[rows], "edited": sequence[rows]})
    wanted = pa.table({"series": codes[latest], "edited": edited[latest], "row": latest})
    joined = wanted.join(there, ["series", "edited"], join_type="left semi")
    found[joined["row"].to_numpy()] = True
    return found


def _rank_from_end(codes: Int64Array, sequence: Int64Array, entry: BoolArray) -> Int64Array:
    """Count the entries that follow each entry in its series."""
    rows = np.flatnonzero(entry)
    order = rows[np.lexsort((-sequence[rows], codes[rows]))]
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    behind = np.full(len(codes), np.iinfo(np.int64).max, np.int64)
    behind[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    return behind
