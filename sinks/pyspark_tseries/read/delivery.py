"""A subscriber's position, and the events to deliver next (semantics 23).

A new subscription begins at the store's last commit. It first delivers the initial events of the
commits up to it, series by series, then every event of later commits in the order (commit, series,
sequence). A position is a point in this order; it is the Spark offset, as JSON.

Rows keep the number of their commit for ever, so a position stays valid across compaction and
needs no log. A position also records how many events had ever been committed up to it, so events
that compaction removed before their delivery can be counted: they were missed.

Tasks find the rows between two positions in data files, without the log, Delta or Spark. A task has
whole series, so one task delivers all events of a series, in the order of sequences.
"""

import bisect
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.checkpoint import find_mistake, find_other_source
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import (
    MIN_NUMBER,
    NEVER_US,
    NO_ORIGINAL,
    BoolArray,
    Int64Array,
    Key,
    KeyRange,
    encode_runs,
    find_number_runs,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.columns import (
    event_schema,
    query_schema,
    result_schema,
    select_fields,
    show_columns,
)
from pyspark_tseries.model.commits import CommitId, CtiRecord
from pyspark_tseries.model.ranges import ALL_SERIES, RetainedRange, SeriesChoice, min_retained
from pyspark_tseries.model.series_index import STATE_COLUMNS, SeriesIndex
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import RowFilter, base_fields, read_rows
from pyspark_tseries.storage.snapshot import load_partial_index

POSITION_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class InitialEvents:
    """The events that a new subscriber gets first.

    Attributes:
        retained: the last entries of each series; `limit 0` for none.
        starts: by series, the sequence from which the subscriber gets every event instead.
    """

    retained: RetainedRange
    starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Position:
    """How far a subscriber has received everything.

    Attributes:
        store: the Delta table's id; a position is only valid for its own store.
        began: the commit at which the subscription began.
        upto: while `initial`, the last series with its initial events delivered; None before the
            first.
        initial: True while initial events are still due.
        commit: all events up to this commit were delivered.
        after: the last delivered (series, sequence) of the commit after `commit`; while `initial`,
            of the series after `upto`. None if nothing of that commit or series is delivered.
        seen: the number of events ever committed up to here, delivered or not.
        missed: the number of these that were removed before their delivery, or were gone when
            `startingSequence` asked for them.
        retained: the retained range at `began`, which selects the initial events.
        retained_since: the commit that had last changed that range by then; None if none had.
        due: the number of initial events still due; None if not counted yet.
        cti: the last CTI delivered, in microseconds; None if there was none.
        commit_id: the newest commit with a delivered event, or one before it; None if unknown.
    """

    store: str
    began: int
    initial: bool
    commit: int
    seen: int
    missed: int
    retained: str
    retained_since: int | None = None
    upto: str | None = None
    after: Key | None = None
    due: int | None = None
    cti: int | None = None
    commit_id: CommitId | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the offset, with sorted keys because Spark compares offsets as JSON text."""
        fields = {known.name: getattr(self, known.name) for known in dataclasses.fields(self)}
        fields["after"] = None if self.after is None else list(self.after)
        fields["commit_id"] = None if self.commit_id is None else self.commit_id.to_json()
        return dict(sorted({**fields, "version": POSITION_VERSION}.items()))

    def with_cti(self, ctis: CtiRecord) -> "Position":
        """Return the position with the store's CTI as of its commit; a CTI never goes back.

        A position gets no CTI while initial events are due.
        """
        cti_us = None if self.initial else ctis.cti_at(self.commit)
        if cti_us is None or (self.cti is not None and cti_us <= self.cti):
            return self
        return replace(self, cti=cti_us)

    def beginning(self) -> "Position":
        """Return the position of the same subscription before its first batch."""
        # The end of the batch has a later `commit_id`. A store without commits had no initial
        # events, and had never seen any.
        initial = self.began >= 0
        return Position(
            store=self.store,
            began=self.began,
            initial=initial,
            commit=self.began,
            seen=self.seen if initial else 0,
            missed=self.missed,
            retained=self.retained,
            retained_since=self.retained_since,
        )

    @staticmethod
    def from_json(offset: Mapping[str, Any]) -> "Position":
        """Return the position that a checkpoint's offset holds.

        Raises:
            UnusableStore: another source wrote the offset, it has another format version, or is
                damaged.
        """
        if other_source := find_other_source(offset, "store"):
            raise UnusableStore(*other_source)
        version = offset.get("version")
        if version != POSITION_VERSION:
            raise UnusableStore(
                f"the checkpoint's offsets have format version {version}",
                str(POSITION_VERSION),
                "go on with the version of this package that wrote them",
            )
        fields = {name: value for name, value in offset.items() if name != "version"}
        try:
            after, newest = fields.pop("after"), CommitId.from_json(fields.pop("commit_id"))
            key = None if after is None else (after[0], after[1])
            position = Position(after=key, commit_id=newest, **fields)
            mistake = find_mistake(position)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            mistake = f"{type(error).__name__} {error}"
        if mistake is not None:
            raise UnusableStore(
                f"the checkpoint's offset is damaged: {mistake}",
                "offsets as this package wrote them",
                "copy the checkpoint again, restore a backup of it, or start with a new one",
            )
        return position


def find_initial_end(
    start: Position,
    series: list[str],
    counts: Int64Array,
    max_events: int | None,
    delivered: int = 0,
) -> Position:
    """Return the end of a batch of whole series: at most `max_events` events, or one series.

    Events that were due at `start` and are gone count as missed. `delivered` is the number of
    events in the series of `start.after` that are still stored and were delivered.
    """
    begin = 0 if start.upto is None else bisect.bisect_right(series, start.upto)
    remaining = counts[begin:].copy()
    remaining[:1] -= delivered
    within = np.cumsum(remaining)
    stored = int(within[-1]) if len(within) else 0
    missed = start.missed + max(0, (stored if start.due is None else start.due) - stored)
    size = len(within)
    if max_events is not None:
        size = max(int(np.searchsorted(within, max_events, "right")), 1)
    if size >= len(within):
        return replace(start, initial=False, upto=None, after=None, missed=missed, due=None)
    due = stored - int(within[size - 1])
    return replace(start, upto=series[begin + size - 1], after=None, missed=missed, due=due)


def find_positions(start: Position, end: Position, events: pa.Table) -> Callable[[int], Position]:
    """Return a function that returns the position after a number of events of a batch.

    Args:
        start: the position before the batch.
        end: the position after it.
        events: the batch in the order of positions, with `series`, `sequence` and `commit`.
    """
    total = events.num_rows
    series, sequence, commit = (events[name] for name in ("series", "sequence", "commit"))

    def position_after(number: int) -> Position:
        if number == total:
            return end
        if not number:
            return start
        remaining = total - number
        key = series[number - 1].as_py(), sequence[number - 1].as_py()
        if start.initial:
            due = remaining + (end.due or 0)
            position = replace(start, missed=end.missed, due=due)
            if series[number].as_py() != key[0]:
                return replace(position, upto=key[0], after=None)
            # All series before this one are delivered.
            begin = pc.index(series, key[0]).as_py()
            upto = series[begin - 1].as_py() if begin else start.upto
            return replace(position, upto=upto, after=key)
        position = replace(start, seen=end.seen - remaining, missed=end.missed)
        last_commit = commit[number - 1].as_py()
        if commit[number].as_py() != last_commit:
            return replace(position, commit=last_commit, after=None)
        return replace(position, commit=last_commit - 1, after=key)

    return position_after


MAX_ROWS_PER_BATCH = 64 * 1024


@dataclass(frozen=True, slots=True)
class Delivery:
    """One task: deliver the events of `key_range` between two positions.

    Attributes:
        files: the files that may contain these events.
        values: the value columns.
        key_range: the series.
        start: the position before; its `initial` decides between initial and later events.
        end: the position after.
        initial: the initial events that the subscriber asked for.
        head_id: the head when the task was planned, for the minimum retained sequences and times.
        retained: the retained range, which selects the initial events.
        choice: the series to deliver; other series in `files` are left out.
    """

    location: Location
    files: tuple[DataFile, ...]
    values: tuple[pa.Field, ...]
    key_range: KeyRange
    start: Position
    end: Position
    initial: InitialEvents
    head_id: int | None
    retained: RetainedRange
    choice: SeriesChoice = ALL_SERIES


def filter_up_to(position: Position) -> pc.Expression:
    """Return a filter for the events delivered up to `position`."""
    commit = pc.field("commit")
    in_commits = commit <= position.commit
    if position.after is None:
        return in_commits
    return in_commits | (
        (commit == position.commit + 1) & KeyRange(None, _next_key(position.after)).expression()
    )


def filter_after(position: Position) -> pc.Expression:
    """Return a filter for the events to deliver after `position`."""
    commit = pc.field("commit")
    if position.after is None:
        return commit > position.commit
    in_next_commit = (commit == position.commit + 1) & KeyRange(
        _next_key(position.after)
    ).expression()
    return (commit > position.commit + 1) | in_next_commit


def _next_key(key: tuple[str, int]) -> tuple[str, int]:
    return key[0], key[1] + 1


def read_delivery(task: Delivery) -> Iterator[pa.RecordBatch]:
    """Yield the task's events, sorted by (series, sequence), with the columns of a query."""
    rows = _read_events(task)
    if not rows.num_rows:
        return
    _, codes = encode_runs(rows["series"])
    rows = rows.take(pa.array(sort_keys(codes, to_int64(rows["sequence"]))))
    schema = result_schema(task.values)
    result = show_columns(rows, schema.names, at_originals=False)
    yield from result.cast(schema).combine_chunks().to_batches(MAX_ROWS_PER_BATCH)


def read_in_order(tasks: Sequence[Delivery], values: Sequence[pa.Field]) -> pa.Table:
    """Return the events of all tasks of a batch in the order of positions.

    The columns are a query's columns, and `commit`.
    """
    schema = result_schema(values).append(pa.field("commit", pa.int64()))
    tables = []
    for task in tasks:
        rows = _read_events(task)
        if rows.num_rows:
            tables.append(show_columns(rows, schema.names, at_originals=False).cast(schema))
    if not tables:
        return schema.empty_table()
    rows = pa.concat_tables(tables)
    _, codes = encode_runs(rows["series"])
    keys = [to_int64(rows["sequence"]), codes]
    if not tasks[0].start.initial:
        keys.append(to_int64(rows["commit"]))
    return rows.take(pa.array(np.lexsort(keys))).combine_chunks()


def _read_events(task: Delivery) -> pa.Table:
    return _read_initial(task) if task.start.initial else _read_live(task)


def _read_live(task: Delivery) -> pa.Table:
    # The range may end within the next commit.
    commits = task.start.commit + 1, task.end.commit + 1
    expression = filter_after(task.start) & filter_up_to(task.end)
    row_filter = RowFilter(task.choice.names, _compute_live_keys(task), commits=commits)
    return keep_chosen(_read_rows(task, task.files, row_filter, expression), task.choice)


def _compute_live_keys(task: Delivery) -> KeyRange:
    """Return the keys that a task may have; between two keys of one commit, only those."""
    start, end, keys = task.start, task.end, task.key_range
    if end.after is None or start.commit != end.commit:
        return keys
    end_key = _next_key(end.after)
    end_key = end_key if keys.end is None else min(end_key, keys.end)
    if start.after is None:
        return KeyRange(keys.first, end_key)
    start_key = _next_key(start.after)
    return KeyRange(start_key if keys.first is None else max(start_key, keys.first), end_key)


def keep_chosen(rows: pa.Table, choice: SeriesChoice) -> pa.Table:
    """Return the rows of the chosen series; if chosen by name, no others were read."""
    if choice.is_all or choice.names is not None:
        return rows
    names = rows["series"].unique().to_pylist()
    picked = choice.pick(names)
    if len(picked) == len(names):
        return rows
    return rows.filter(pc.is_in(rows["series"], pa.array(picked, pa.string())))


def _read_initial(task: Delivery) -> pa.Table:
    commits = MIN_NUMBER, task.start.began
    row_filter = RowFilter(task.choice.names, task.key_range, commits=commits)
    expression = _filter_series(task.start, task.end)
    # Keys first: which events are initial depends on all of a series, and values may be large.
    keys = [
        read_rows(task.location, [file], base_fields(STATE_COLUMNS), row_filter, expression)
        for file in task.files
    ]
    if not sum(table.num_rows for table in keys):
        return _read_rows(task, [], row_filter)
    events = pa.concat_tables(keys)
    index, _ = load_partial_index(
        task.location, task.head_id, events["series"].unique().to_pylist()
    )
    chosen = select_initial_events(events, task.retained, index, task.initial)
    if task.start.after is not None:
        chosen &= ~flag_delivered(events, task.start.after)
    rows = []
    begin = 0
    for file, table in zip(task.files, keys, strict=True):
        is_chosen = chosen[begin : begin + table.num_rows]
        begin += table.num_rows
        if is_chosen.any():
            # The same conditions on the same file give the same rows in the same order.
            rows.append(
                _read_rows(task, [file], row_filter, expression).filter(pa.array(is_chosen))
            )
    return pa.concat_tables(rows) if rows else _read_rows(task, [], row_filter)


def flag_delivered(events: pa.Table, after: Key) -> BoolArray:
    """Flag the events of the series of `after` up to that key."""
    up_to = pc.less_equal(events["sequence"], after[1])
    flags: BoolArray = pc.and_(pc.equal(events["series"], after[0]), up_to).to_numpy()
    return flags


def _filter_series(start: Position, end: Position) -> pc.Expression | None:
    """Return a filter for the series of initial events between two positions; None for all."""
    series = pc.field("series")
    bounds = []
    if start.upto is not None:
        bounds.append(series > start.upto)
    if end.initial:
        bounds.append(series <= end.upto)
    return functools.reduce(operator.and_, bounds) if bounds else None


def _read_rows(
    task: Delivery,
    data: Sequence[DataFile],
    row_filter: RowFilter,
    expression: pc.Expression | None = None,
) -> pa.Table:
    """Read the columns of a query, and the commit."""
    columns = [*query_schema(task.values).names, "commit"]
    schema = select_fields(event_schema(task.values), columns)
    return read_rows(task.location, data, schema, row_filter, expression)


def count_initial_events(keys: pa.Table, chosen: BoolArray) -> tuple[list[str], Int64Array]:
    """Return the series with chosen events, in order, and the number of events of each."""
    names, codes = encode_runs(keys["series"].filter(pa.array(chosen)))
    return names.to_pylist(), np.bincount(codes, minlength=len(names)).astype(np.int64)


def select_initial_events(
    keys: pa.Table, retained: RetainedRange, index: SeriesIndex, initial: InitialEvents
) -> BoolArray:
    """Flag the events that a new subscriber gets first (semantics 23.2 and 23.3).

    These are the last entries of each series in a `latestEdits` query: originals inside the
    retained range and the latest edit of each. A series in `initial.starts` instead gives all
    stored events from its sequence on.
    """
    names, codes = encode_runs(keys["series"])
    sequence, us = to_int64(keys["sequence"]), to_int64(keys["timestamp"])
    edited = to_int64(keys["original_sequence"].fill_null(NO_ORIGINAL))
    is_original = edited == NO_ORIGINAL
    # An erased original may be an entry, but its time does not count as the newest.
    has_value = is_original & keys["erasure"].is_null().to_numpy()
    series = names.to_pylist()
    first_sequence = np.array([initial.starts.get(name, -1) for name in series], np.int64)[codes]
    chosen: BoolArray = (first_sequence >= 0) & (sequence >= first_sequence)
    last_sequence = np.full(len(series), -1, np.int64)
    newest_us = np.full(len(series), NEVER_US, np.int64)
    np.maximum.at(last_sequence, codes, sequence)
    np.maximum.at(newest_us, codes[has_value], us[has_value])
    low, low_us = min_retained(retained, last_sequence, newest_us, index.floors(series))
    is_entry = is_original & (sequence >= low[codes]) & (us >= low_us[codes])
    is_entry |= _select_latest_edits(codes, sequence, edited, is_entry)
    if initial.retained.last_us is not None:
        is_entry &= us >= (newest_us[codes] - initial.retained.last_us)
    if initial.retained.limit is not None:
        is_entry &= _rank_from_end(codes, sequence, is_entry) < initial.retained.limit
    chosen |= is_entry & (first_sequence < 0)
    return chosen


def _select_latest_edits(
    codes: Int64Array, sequence: Int64Array, edited: Int64Array, originals: BoolArray
) -> BoolArray:
    edits = np.flatnonzero(edited != NO_ORIGINAL)
    flags = np.zeros(len(codes), bool)
    if not len(edits):
        return flags
    order = edits[np.lexsort((sequence[edits], edited[edits], codes[edits]))]
    same = (np.diff(codes[order]) == 0) & (np.diff(edited[order]) == 0)
    latest = order[np.append(~same, True)]
    rows = np.flatnonzero(originals)
    original_keys = pa.table({"series": codes[rows], "edited": sequence[rows]})
    latest_keys = pa.table({"series": codes[latest], "edited": edited[latest], "row": latest})
    joined = latest_keys.join(original_keys, ["series", "edited"], join_type="left semi")
    flags[joined["row"].to_numpy()] = True
    return flags


def _rank_from_end(codes: Int64Array, sequence: Int64Array, entry: BoolArray) -> Int64Array:
    """Count the entries that follow each entry in its series."""
    rows = np.flatnonzero(entry)
    order = rows[np.lexsort((-sequence[rows], codes[rows]))]
    starts, sizes = find_number_runs(codes[order])
    behind = np.full(len(codes), np.iinfo(np.int64).max, np.int64)
    behind[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    return behind
