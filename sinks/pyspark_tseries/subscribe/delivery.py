"""A subscriber's tasks: which rows of which files, found without the log and without Spark.

A task has whole series, so each series comes from one task, in the order of sequences.
"""

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.columns import layout, query_schema
from pyspark_tseries.model.retention import RetainedRange, kept
from pyspark_tseries.model.series_index import NEVER_US, Head, Longs
from pyspark_tseries.model.series_state import KEYS, longs
from pyspark_tseries.model.slices import Slice, by_name, key_order
from pyspark_tseries.read.bounds import LOWEST
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.head_files import load_series
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.row_filter import Sieve
from pyspark_tseries.storage.table_scan import SCANNED, rows_of
from pyspark_tseries.subscribe.position import Initial, Position

__all__ = ["Delivery", "after", "deliver", "initial_counts", "initial_rows", "up_to"]

ROWS_PER_BATCH = 64 * 1024
_NONE = -(2**63)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one task delivers: the events of `part` between two positions.

    Attributes:
        place: where the store lies.
        files: the store's that may hold them.
        values: the value columns.
        part: the series.
        start: the position before; `initial` decides which kind of events it is.
        end: the position after.
        initial: which initial events.
        head_id: the head at the time of planning, which has the floors.
        retained: the store's range.
    """

    place: Place
    files: tuple[DataFile, ...]
    values: tuple[pa.Field, ...]
    part: Slice
    start: Position
    end: Position
    initial: Initial
    head_id: int | None
    retained: RetainedRange


def up_to(position: Position) -> pc.Expression:
    """The events that are delivered at `position`, as a filter."""
    commit = pc.field("commit")
    whole = commit <= position.commit
    if position.after is None:
        return whole
    return whole | (
        (commit == position.commit + 1) & Slice(None, _next(position.after)).expression()
    )


def after(position: Position) -> pc.Expression:
    """The events that are due after `position`, as a filter."""
    commit = pc.field("commit")
    if position.after is None:
        return commit > position.commit
    rest = (commit == position.commit + 1) & Slice(_next(position.after)).expression()
    return (commit > position.commit + 1) | rest


def _next(key: tuple[str, int]) -> tuple[str, int]:
    return key[0], key[1] + 1


def deliver(task: Delivery) -> Iterator[pa.RecordBatch]:
    """The task's events by (series, sequence), as the columns of a query."""
    chosen = _initial(task) if task.start.initial else _live(task)
    if not chosen.num_rows:
        return
    _, codes = by_name(chosen["series"])
    rows = chosen.take(pa.array(key_order(codes, longs(chosen["sequence"]))))
    wanted = query_schema(task.values)
    yield from rows.select(wanted.names).cast(wanted).combine_chunks().to_batches(ROWS_PER_BATCH)


def _live(task: Delivery) -> pa.Table:
    # Of the next commit there may be a part.
    commits = task.start.commit + 1, task.end.commit + 1
    wanted = after(task.start) & up_to(task.end)
    return _read(task, task.files, Sieve(part=task.part, commits=commits), wanted)


def _initial(task: Delivery) -> pa.Table:
    sieve = Sieve(part=task.part, commits=(LOWEST, task.start.began))
    wanted = _between(task.start, task.end)
    keys = [rows_of(task.place, [file], SCANNED, KEYS, sieve, wanted) for file in task.files]
    if not sum(table.num_rows for table in keys):
        return _read(task, [], sieve)
    found = pa.concat_tables(keys)
    head, _ = load_series(task.place, task.head_id, found["series"].unique().to_pylist())
    chosen = initial_rows(found, task.retained, head, task.initial)
    rows, first = [], 0
    for file, table in zip(task.files, keys, strict=True):
        mine, first = chosen[first : first + table.num_rows], first + table.num_rows
        if mine.any():
            # The same conditions on the same file give the same rows in the same order.
            rows.append(_read(task, [file], sieve, wanted).filter(pa.array(mine)))
    return pa.concat_tables(rows) if rows else _read(task, [], sieve)


def _between(start: Position, end: Position) -> pc.Expression | None:
    """The initial events' series between two positions, as a filter; None: all of them."""
    series, bounds = pc.field("series"), []
    if start.upto is not None:
        bounds.append(series > start.upto)
    if end.initial:
        bounds.append(series <= end.upto)
    return functools.reduce(operator.and_, bounds) if bounds else None


def _read(
    task: Delivery,
    data: Sequence[DataFile],
    sieve: Sieve,
    wanted: pc.Expression | None = None,
) -> pa.Table:
    """The columns of a query, and the commit."""
    schema = pa.schema(list(layout(task.values))[:-1])
    columns = [*query_schema(task.values).names, "commit"]
    return rows_of(task.place, data, schema, columns, sieve, wanted)


def initial_counts(keys: pa.Table, chosen: npt.NDArray[np.bool_]) -> tuple[list[str], Longs]:
    """The series with chosen events, in order, and how many each has."""
    names, codes = by_name(keys["series"].filter(pa.array(chosen)))
    return names.to_pylist(), np.bincount(codes, minlength=len(names)).astype(np.int64)


def initial_rows(
    keys: pa.Table, retained: RetainedRange, head: Head, initial: Initial
) -> npt.NDArray[np.bool_]:
    """Which events a new subscriber gets first: the last entries of `latestEdits` of each series.

    These are the originals inside the retained range and the latest edit of each, in the order of
    sequences; of a series with a known position every event from there on, as far as it is there.

    Args:
        keys: the columns `KEYS` of whole series, up to the commit that the subscriber starts at.
        retained: the store's range.
        head: has the floors.
        initial: what is asked for.
    """
    names, codes = by_name(keys["series"])
    sequence, us = longs(keys["sequence"]), longs(keys["timestamp"])
    edited = longs(keys["original_sequence"].fill_null(_NONE))
    original = edited == _NONE
    known = names.to_pylist()
    first = np.array([initial.starts.get(name, -1) for name in known], np.int64)[codes]
    chosen: npt.NDArray[np.bool_] = (first >= 0) & (sequence >= first)
    last = np.full(len(known), -1, np.int64)
    newest_us = np.full(len(known), NEVER_US, np.int64)
    np.maximum.at(last, codes, sequence)
    np.maximum.at(newest_us, codes[original], us[original])
    floors = head.floors(known)
    low, low_us = (floors[name][codes] for name in ("floor_sequence", "floor_us"))
    entry = original & kept(retained, sequence, us, last[codes], newest_us[codes], low, low_us)
    entry |= _latest_edits(codes, sequence, edited, entry)
    if initial.retained.last_us is not None:
        entry &= us >= (newest_us[codes] - initial.retained.last_us)
    if initial.retained.limit is not None:
        entry &= _from_behind(codes, sequence, entry) < initial.retained.limit
    chosen |= entry & (first < 0)
    return chosen


def _latest_edits(
    codes: Longs, sequence: Longs, edited: Longs, originals: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """The latest edit of each of `originals`."""
    edits = np.flatnonzero(edited != _NONE)
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


def _from_behind(codes: Longs, sequence: Longs, entry: npt.NDArray[np.bool_]) -> Longs:
    """How many entries of its series come after each entry."""
    rows = np.flatnonzero(entry)
    order = rows[np.lexsort((-sequence[rows], codes[rows]))]
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    behind = np.full(len(codes), np.iinfo(np.int64).max, np.int64)
    behind[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    return behind
