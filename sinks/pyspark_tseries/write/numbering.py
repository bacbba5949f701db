"""Sort a batch, check it against the series index, number its events, and write them to one file.

See semantics 16 and 17. A task numbers its rows after the index that the driver expects at the
commit; the commit itself uses the current index.

`number_rows` is a pure function of the rows and the index. It decides which rows are stored, in
which order, and with which sequence and timestamp, and returns the new state of their series as an
index change. After a lost race it is called again with the winner's index.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    MIN_US,
    SECOND_US,
    format_duration,
    format_instant,
)
from pyspark_timestream.core.policies import Action
from pyspark_tseries.errors import FutureEvent, OutOfOrder, UpdateFailed
from pyspark_tseries.model.arrays import (
    NEVER_US,
    NO_SEQUENCE,
    UNTIMED,
    BoolArray,
    Int64Array,
    encode_values,
    expand_ranges,
    find_number_runs,
    sort_by_code,
)
from pyspark_tseries.model.columns import (
    COMMIT_FIELDS,
    EVENT_FIELDS,
    INSTANT,
    ORIGINAL_FIELDS,
    event_schema,
)
from pyspark_tseries.model.commits import CommitMetadata, name_writer
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import OneSeries, SeriesIndex, make_change
from pyspark_tseries.options import LEAVE_OUT_POLICIES, STORE_POLICIES, name_lenient
from pyspark_tseries.storage.data_files import (
    MAX_ROW_GROUP_BYTES,
    ROWS_PER_GROUP,
    FileStats,
    WrittenFile,
    checksum_placeholder,
    compute_stats,
    cut_groups,
    seal_file,
    write_events,
    writer_options,
)
from pyspark_tseries.storage.location import Location
from pyspark_tseries.write.rows import EDIT_OF, STAGED_NAMES

MIN_DEFAULT_FUTURE_US: Final = DAY_US
"""The default limit is at least a day, even if the retained range is a shorter time."""


class SeriesLookup(Protocol):
    """Look-up of series, as in a `SeriesIndex`."""

    @property
    def cti_us(self) -> int:
        """The same as `SeriesIndex.cti_us`."""

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """Do the same as `SeriesIndex.lookup`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a batch's rows that were not stored unchanged.

    Attributes:
        dropped: late rows that were left out, or edits without an original.
        adjusted: events with a raised timestamp.
        example: one of these rows, or None.
        future: rows that were left out because they were too far ahead.
        future_example: one of these, or None.
    """

    dropped: int = 0
    adjusted: int = 0
    example: dict[str, Any] | None = None
    future: int = 0
    future_example: dict[str, Any] | None = None

    def __add__(self, later: "Counts") -> "Counts":
        return Counts(
            self.dropped + later.dropped,
            self.adjusted + later.adjusted,
            self.example or later.example,
            self.future + later.future,
            self.future_example or later.future_example,
        )

    def first_series(self) -> str:
        """Return the series of the example; empty without one."""
        return "" if self.example is None else str(self.example["series"])


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """A batch's events, sorted by (series, sequence), and the counts of other rows.

    Attributes:
        order: each event's row in the batch.
        names: the distinct series of the events, sorted.
        codes: the position in `names` of each event's series.
        sequence: each event's sequence.
        timestamp_us: each event's timestamp.
        change: the index change: the state of the series `names` afterwards, without metadata.
        counts: the counts of rows that were not stored unchanged.
        row: the same as `change` for an event that `number_event` has numbered.
    """

    order: Int64Array
    names: pa.Array
    codes: Int64Array
    sequence: Int64Array
    timestamp_us: Int64Array
    change: pa.Table
    counts: Counts
    row: OneSeries | None = None

    def stats(self) -> FileStats | None:
        """Return the bounds of a single event, without a look-up in the table."""
        if self.row is None:
            return None
        name, sequence, us = self.row.series, int(self.sequence[0]), int(self.timestamp_us[0])
        return FileStats(1, (name, name), (sequence, sequence), (us, us))


@dataclass(frozen=True, slots=True)
class FutureLimit:
    """How far a given timestamp may lie after the time of its commit (semantics 17.6).

    Attributes:
        max_us: the limit in microseconds; None: the default of the store's retained range.
        policy: the policy for rows further ahead, of `LEAVE_OUT_POLICIES`.
    """

    max_us: int | None = None
    policy: str = "fail"

    def make_rule(self, retained: RetainedRange, commit_us: int) -> "FutureRule | None":
        """Return the rule for a commit at `commit_us`; None allows every timestamp."""
        allowed_us = self.max_us
        if allowed_us is None and retained.last_us is not None:
            allowed_us = max(retained.last_us, MIN_DEFAULT_FUTURE_US)
        if allowed_us is None or allowed_us > FINAL_US - commit_us:
            return None
        return FutureRule(commit_us, allowed_us, self.policy, self.max_us is None)


DEFAULT_LIMIT: Final = FutureLimit()


@dataclass(frozen=True, slots=True)
class FutureRule:
    """The rule for one commit: no given timestamp is more than `allowed_us` after `commit_us`."""

    commit_us: int
    allowed_us: int
    policy: str
    is_default: bool

    @property
    def last_us(self) -> int:
        """The last timestamp that is not too far ahead."""
        return self.commit_us + self.allowed_us


def number_rows(
    series: pa.Array,
    timestamps: pa.Array,
    index: SeriesLookup,
    out_of_order: str,
    now_us: int,
    *,
    future: FutureRule | None = None,
) -> NumberedRows:
    """Number a batch.

    Events of a series are in the order of (timestamp, row). Rows without a timestamp follow in
    their own order, at `now_us` or their series' newest timestamp if that is later. A row is late
    if it is before its series' newest original in `index` or before the store's CTI; then
    `out_of_order` applies. Adjusted rows keep their order. `future` applies to rows that are too
    far ahead, but not late.
    """
    rows = sort_rows(series, timestamps)
    _check_legal(rows)
    before = index.lookup(rows.names.to_pylist())
    min_us = np.maximum(before["original_us"], index.cti_us)
    is_late = rows.us < min_us[rows.codes]
    ahead = _flag_ahead(rows.us, is_late, future)
    counts = _apply_late_policy(is_late, rows, before, out_of_order, index.cti_us)
    counts += _apply_future_policy(ahead, rows, future)
    drops_late = STORE_POLICIES[out_of_order] is Action.DROP
    is_kept = ~(is_late | ahead) if drops_late else ~ahead
    if not is_kept.all():
        rows = SortedRows(rows.order[is_kept], rows.names, rows.codes[is_kept], rows.us[is_kept])
    us = np.maximum(rows.us, min_us[rows.codes]) if counts.adjusted else rows.us
    # Untimed rows were above all times, to be sorted last; from here on they are below, so that
    # they count for no newest time.
    timed_us = us if timestamps.null_count == 0 else np.where(us == UNTIMED, NEVER_US, us)
    return _assign_sequences(rows._replace(us=timed_us), before, now_us, index.cti_us, counts)


def number_event(
    series: str,
    us: int | None,
    before: Mapping[str, int],
    cti_us: int,
    now_us: int,
    future: FutureRule | None = None,
) -> NumberedRows | None:
    """Return what `number_rows` returns for one event that is stored unchanged.

    For a single append this takes a tenth of the time. Return None for an event that is late, too
    far ahead, illegal, or has no timestamp and can get none; `number_rows` decides about those.

    Args:
        series: the name of the series.
        us: the timestamp; None to have one assigned.
        before: the state of the series, from `SeriesIndex.lookup_one`.
        cti_us: the store's CTI.
        now_us: as for `number_rows`.
        future: as for `number_rows`.
    """
    min_us = max(before["original_us"], cti_us)
    if us is None:
        us = max(before["newest_us"], now_us)
        if us == NEVER_US or us < cti_us:
            return None
    else:
        max_us = FINAL_US if future is None else min(FINAL_US, future.last_us)
        if not max(min_us, MIN_US) <= us <= max_us:
            return None
    sequence = before["last_sequence"] + 1
    after = {
        "last_sequence": sequence,
        "newest_us": max(before["newest_us"], us),
        "original_sequence": sequence,
        "original_us": us,
        "first_us": min(before["first_us"], us) if sequence else us,
        "edits": before["edits"],
    }
    row = OneSeries(series, after)
    row_zero = np.zeros(1, np.int64)
    change = row.to_table()
    names = change["series"].chunk(0)
    numbers = np.array([sequence]), np.array([us])
    return NumberedRows(row_zero, names, row_zero, *numbers, change, Counts(), row)


def _flag_ahead(us: Int64Array, is_late: BoolArray, future: FutureRule | None) -> BoolArray:
    if future is None:
        return np.zeros(len(us), bool)
    ahead: BoolArray = (us > future.last_us) & (us != UNTIMED) & ~is_late
    return ahead


def _apply_future_policy(ahead: BoolArray, rows: "SortedRows", future: FutureRule | None) -> Counts:
    """Count the rows to leave out; raise FutureEvent if there are any under `fail`."""
    positions = np.flatnonzero(ahead)
    if future is None or not len(positions):
        return Counts()
    row = int(positions[0])
    example = {
        "series": rows.names[int(rows.codes[row])].as_py(),
        "timestamp": format_instant(int(rows.us[row])),
        "commit_time": format_instant(future.commit_us),
    }
    if STORE_POLICIES[future.policy] is Action.DROP:
        return Counts(future=len(positions), future_example=example)
    reason = ", as in every store whose retained range has 'last'" if future.is_default else ""
    raise FutureEvent(
        f"series '{example['series']}': timestamp {example['timestamp']} is too far after the time "
        f"of the commit, {example['commit_time']}: it would hide and hold up what follows in its "
        f"series ({count_such(len(positions), 'row')})",
        f"at most {format_duration(future.allowed_us)} after it{reason}",
        "correct the clock that the timestamp is of; if it is right, set maxFuture to a longer "
        f"duration or to 'none', or futurePolicy to {name_lenient(LEAVE_OUT_POLICIES)}. Nothing of "
        "the batch is stored",
    )


class SortedRows(NamedTuple):
    """Rows in the order of (series, timestamp, row), untimed ones last in their series.

    Attributes:
        order: the rows.
        names: the distinct series, sorted.
        codes: the position in `names` of each row's series.
        us: each row's timestamp, UNTIMED if it has none.
    """

    order: Int64Array
    names: pa.Array
    codes: Int64Array
    us: Int64Array


def sort_rows(series: pa.Array, timestamps: pa.Array) -> SortedRows:
    """Sort rows; raise UpdateFailed if a given timestamp is UNTIMED."""
    names, codes = encode_values(series)
    timestamps = timestamps.cast(pa.int64())
    if (row := pc.index(timestamps, UNTIMED).as_py()) >= 0:
        raise _illegal_timestamp_error(series[row], UNTIMED)
    us = timestamps.fill_null(UNTIMED).to_numpy(zero_copy_only=False)
    order = sort_by_code(codes, us)
    counts = np.bincount(codes, minlength=len(names))
    return SortedRows(order, names, np.repeat(np.arange(len(names)), counts), us[order])


def series_column(names: pa.Array, codes: Int64Array) -> pa.Array:
    """Return the column of series from positions in distinct `names`, in the cheaper encoding."""
    if len(names) == len(codes) == 1:
        return names
    # A dictionary pays only if names repeat often.
    if len(names) > len(codes) * 0.2:
        return names.take(pa.array(codes))
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names)


def _check_legal(rows: SortedRows) -> None:
    us = rows.us
    if us.min(initial=0) >= MIN_US and us.max(initial=0) <= FINAL_US:
        return
    illegal = np.flatnonzero(((us < MIN_US) | (us > FINAL_US)) & (us != UNTIMED))
    if len(illegal):
        row = int(illegal[0])
        raise _illegal_timestamp_error(rows.names[int(rows.codes[row])], int(us[row]))


def _illegal_timestamp_error(series: pa.Scalar, us: int) -> UpdateFailed:
    # A number tells more of a wrong unit than a year beyond 9999 does.
    has_datetime = MIN_US <= us < FINAL_US + SECOND_US
    written = format_instant(us) if has_datetime else f"{us} us since 1970"
    return UpdateFailed(
        f"series '{series}': timestamp {written} is out of range",
        f"{format_instant(MIN_US)} to {format_instant(FINAL_US)}",
        "correct it, or give null to have one assigned. Nothing of the batch is stored",
    )


def _assign_sequences(
    rows: SortedRows, before: dict[str, Int64Array], now_us: int, cti_us: int, counts: Counts
) -> NumberedRows:
    """Assign sequences, and timestamps to the rows that have none (NEVER_US).

    `rows` are sorted by series, and in a series by time with untimed rows last; so its rows are
    neighbours, and the last one has its newest time. Example: the batch (b, 12:00), (a, none),
    (b, 11:00) where series a has the last sequence 4 and b is new:

        by row: order [1, 2, 0], codes [0, 1, 1], us [none, 11:00, 12:00], sequence [5, 0, 1]
        by series: names [a, b], first_rows [0, 1], sizes [1, 2], after: last_sequence [5, 1]

    The untimed row gets the time `now_us`, or the newest time of a if that is later.
    """
    first_rows, sizes = find_number_runs(rows.codes)
    # `rows.names` and `before` may have series without rows left; renumber the others.
    present = rows.codes[first_rows]
    names = rows.names.take(pa.array(present))
    before = {name: column[present] for name, column in before.items()}
    codes = np.repeat(np.arange(len(present)), sizes)
    us = rows.us
    if (us == NEVER_US).any():
        floors_us = np.maximum(before["newest_us"], now_us)
        newest_us = np.maximum(np.maximum.reduceat(us, first_rows), floors_us)
        us = np.where(us == NEVER_US, newest_us[codes], us)
        _check_assigned(us, names, codes, cti_us)
    sequence = expand_ranges(before["last_sequence"] + 1, sizes)
    last_rows = first_rows + sizes - 1
    after = {
        "last_sequence": sequence[last_rows],
        "newest_us": np.maximum(before["newest_us"], us[last_rows]),
        "original_sequence": sequence[last_rows],
        "original_us": us[last_rows],
        "first_us": _compute_first_us(before, us[first_rows]),
        "edits": before["edits"],
    }
    return NumberedRows(
        order=rows.order,
        names=names,
        codes=codes,
        sequence=sequence,
        timestamp_us=us,
        change=make_change(names, after),
        counts=counts,
    )


def _check_assigned(us: Int64Array, names: pa.Array, codes: Int64Array, cti_us: int) -> None:
    """Raise an error if a row got no timestamp, or one before the store's CTI."""
    row = int(np.argmin(us))
    series = names[int(codes[row])].as_py()
    earliest_us = int(us[row])
    if earliest_us == NEVER_US:
        raise _missing_timestamp_error(series)
    if earliest_us < cti_us:
        raise _before_cti_error(series, earliest_us, cti_us)


def _compute_first_us(before: dict[str, Int64Array], added_us: Int64Array) -> Int64Array:
    """Return the earliest timestamp of each series; one that an old head lacks stays unknown.

    `added_us` has the earliest of the batch. It may come before an event that was erased.
    """
    is_new = before["last_sequence"] == NO_SEQUENCE
    return np.where(is_new, added_us, np.minimum(before["first_us"], added_us))


def _missing_timestamp_error(series: str) -> UpdateFailed:
    return UpdateFailed(
        f"series '{series}': its first event has no timestamp, and under clock 'event' there is "
        "none to take over",
        "a timestamp in the first event of a series",
        "give one, or set clock to 'wall'. Nothing of the batch is stored",
    )


def _apply_late_policy(
    is_late: BoolArray,
    rows: SortedRows,
    before: dict[str, Int64Array],
    out_of_order: str,
    cti_us: int,
) -> Counts:
    """Count the rows to leave out or to adjust; raise OutOfOrder if there are any under `fail`."""
    late = np.flatnonzero(is_late)
    if not len(late):
        return Counts()
    row = int(late[0])
    code = int(rows.codes[row])
    newest_us = int(before["original_us"][code])
    example: dict[str, Any] = {
        "series": rows.names[code].as_py(),
        "timestamp": format_instant(int(rows.us[row])),
        "newest_sequence": int(before["original_sequence"][code]),
        "newest_timestamp": None if newest_us == NEVER_US else format_instant(newest_us),
    }
    # It is late, yet not before the newest original of its series: so it is before the store's CTI.
    is_before_cti = int(rows.us[row]) >= before["original_us"][code]
    if is_before_cti:
        example["store_cti"] = format_instant(cti_us)
    action = STORE_POLICIES[out_of_order]
    if action is Action.FAIL:
        if is_before_cti:
            raise _before_cti_error(example["series"], int(rows.us[row]), cti_us)
        raise _out_of_order_error(example, len(late))
    dropped = len(late) if action is Action.DROP else 0
    return Counts(dropped, len(late) - dropped, example)


BEFORE_NEWEST: Final = "before newest"
"""The kind of an `OutOfOrder` error that does not concern the store's CTI."""


def count_such(count: int, noun: str) -> str:
    """Return how many rows or edits of a batch are like the one that an error names."""
    return f"{count} such {noun if count == 1 else f'{noun}s'} in the batch"


def _out_of_order_error(example: dict[str, Any], count: int) -> OutOfOrder:
    return OutOfOrder(
        f"series '{example['series']}': timestamp {example['timestamp']} is before the newest "
        f"event, sequence {example['newest_sequence']} at {example['newest_timestamp']} "
        f"({count_such(count, 'row')})",
        "that timestamp or a later one",
        f"order the input by time, or set outOfOrder to {name_lenient(STORE_POLICIES)}. Nothing of "
        "the batch is stored",
        kind=BEFORE_NEWEST,
    )


def _before_cti_error(series: str, us: int, cti_us: int) -> OutOfOrder:
    return OutOfOrder(
        f"series '{series}': timestamp {format_instant(us)} is before the store's CTI, "
        f"{format_instant(cti_us)}: its writers have promised subscribers that nothing before it "
        "is appended any more",
        "that CTI or a later timestamp, or an edit",
        "leave out rows with a 'violation', give this query's 'ctiDelay' the whole distance from "
        "its watermark to the timestamps it writes, or set outOfOrder to "
        f"{name_lenient(STORE_POLICIES)}; TimeSeries.describe() names the writers. Nothing of the "
        "batch is stored",
    )


def record_cti(
    metadata: CommitMetadata, token: tuple[str, int] | None, cti_us: int | None, *, appends: bool
) -> CommitMetadata:
    """Return `metadata` with the CTI that a batch commits."""
    if cti_us is None and not appends:
        return metadata
    ctis = metadata.ctis.advance(name_writer(token), cti_us, metadata.commit)
    if ctis is metadata.ctis:
        return metadata
    return dataclasses.replace(metadata, ctis=ctis)


def add_counts(metadata: CommitMetadata, counts: Counts) -> CommitMetadata:
    """Return `metadata` with the counts of a batch added to its own."""
    if counts == Counts():
        return metadata
    example = counts.example and {**counts.example, "commit": metadata.commit}
    future = counts.future_example and {**counts.future_example, "commit": metadata.commit}
    return dataclasses.replace(
        metadata,
        future=metadata.future + counts.future,
        last_future=future or metadata.last_future,
        dropped=metadata.dropped + counts.dropped,
        adjusted=metadata.adjusted + counts.adjusted,
        last_dropped=example if counts.dropped else metadata.last_dropped,
        last_adjusted=example if counts.adjusted else metadata.last_adjusted,
    )


def lookup_after(names: pa.Array, index: SeriesIndex, change: pa.Table) -> dict[str, Int64Array]:
    """Do the same as `SeriesIndex.lookup`, with the values of `change` for the series it has."""
    columns = index.lookup(names.to_pylist())
    position = pc.index_in(names, change["series"].combine_chunks()).fill_null(-1).to_numpy()
    is_changed = position >= 0
    for name, column in columns.items():
        changed = change[name].cast(pa.int64()).to_numpy()
        column[is_changed] = changed[position[is_changed]]
    return columns


MAX_REPEATED_ROWS: Final = 10_000
"""A constant column keeps at most this many rows in memory; a longer one repeats them."""


@dataclass(frozen=True, slots=True)
class WriteRules:
    """The commit's metadata and a batch's options; for the last two see `number_rows`."""

    metadata: CommitMetadata
    author: str
    out_of_order: str
    assigned_us: int
    future: FutureRule | None = None

    def number(self, series: pa.Array, timestamps: pa.Array, index: SeriesLookup) -> NumberedRows:
        """Call `number_rows` with these rules."""
        return number_rows(
            series, timestamps, index, self.out_of_order, self.assigned_us, future=self.future
        )

    def number_event(
        self, series: str, us: int | None, before: Mapping[str, int], cti_us: int
    ) -> NumberedRows | None:
        """Call `number_event` with these rules."""
        return number_event(series, us, before, cti_us, self.assigned_us, self.future)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A file of events, None if all rows were dropped, with `change` and `counts` of its rows."""

    file: WrittenFile | None
    change: pa.Table
    counts: Counts


def write_sorted(
    location: Location, path: str, tables: Iterable[pa.Table], index: SeriesIndex, rules: WriteRules
) -> WriteResult:
    """Number rows on top of `index` and write them to `path`, relative to the store.

    `tables` come from `merge_sorted`. If all rows are dropped, write no file.
    """
    file = EventFile(location, path)
    moving_index = _MovingIndex(index)
    counts = Counts()
    try:
        for rows in tables:
            series, timestamps = (rows[name].combine_chunks() for name in ("series", "timestamp"))
            events = rules.number(series, timestamps, moving_index)
            if len(events.order):
                file.add(build_events(rows, events, rules.metadata, rules.author))
            moving_index.advance(events.change)
            counts += events.counts
        return WriteResult(file.close(), moving_index.change(), counts)
    except BaseException:
        file.abandon()
        raise


def write_numbered(
    location: Location, path: str, rows: pa.Table, events: NumberedRows, rules: WriteRules
) -> WriteResult:
    """Like `write_sorted`, for rows in memory that `number_rows` has numbered."""
    file = None
    if len(events.order):
        table = build_events(rows, events, rules.metadata, rules.author)
        file = write_events(location, path, table, ROWS_PER_GROUP, stats=events.stats())
    return WriteResult(file, events.change, events.counts)


def sum_results(results: Sequence[WriteResult]) -> WriteResult:
    """Combine results without their files; no two have a series in common."""
    if len(results) == 1:
        return replace(results[0], file=None)
    empty = make_change(pa.array([], pa.string()), SeriesIndex().lookup([]))
    change = pa.concat_tables([empty, *(result.change for result in results)]).combine_chunks()
    # Use the first series' example, as if the rows had been numbered in one go.
    counts = sorted((result.counts for result in results), key=Counts.first_series)
    return WriteResult(None, change, sum(counts, Counts()))


class _MovingIndex:
    """An index that follows tables in ascending order; only a table's last series may continue."""

    def __init__(self, index: SeriesIndex) -> None:
        self._index = index
        self._last: pa.Table | None = None
        self._changes: list[pa.Table] = []

    @property
    def cti_us(self) -> int:
        return self._index.cti_us

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        if self._last is None:
            return self._index.lookup(names)
        return lookup_after(pa.array(names, pa.string()), self._index, self._last)

    def advance(self, change: pa.Table) -> None:
        if change.num_rows:
            self._changes.append(change)
            self._last = change.slice(change.num_rows - 1).combine_chunks()

    def change(self) -> pa.Table:
        """Return the index change of all tables; if a series is in two, the later one counts."""
        if not self._changes:
            return make_change(pa.array([], pa.string()), self._index.lookup([]))
        changes = pa.concat_tables(self._changes).combine_chunks()
        series = changes["series"].combine_chunks()
        continues = pc.equal(series.slice(0, len(series) - 1), series.slice(1)).to_pylist()
        return changes.filter(pa.array([not continued for continued in continues] + [True]))


@dataclass
class EventFile:
    """A file of events; it writes row groups while rows come."""

    location: Location
    path: str
    _held: list[pa.Table] = field(default_factory=list)
    _stats: FileStats | None = None
    _sink: pa.NativeFile | None = None
    _writer: pq.ParquetWriter | None = None
    _options: dict[str, Any] = field(default_factory=dict)
    _footer: list[Any] = field(default_factory=list)
    _groups: int = 0

    def add(self, events: pa.Table) -> None:
        """Add the next events, at least one."""
        if self._stats is None:
            self._options = writer_options(events, is_whole=False)
        stats = compute_stats(events)
        self._stats = self._stats.extended_with(stats) if self._stats else stats
        own_names = {*_EVENT_NAMES, *_LAST_NAMES}
        schema = event_schema([field for field in events.schema if field.name not in own_names])
        self._held.append(events.cast(pa.schema([f.with_nullable(True) for f in schema])))
        # The last row group may still grow.
        *groups, last_group = self._cut_held()
        self._held = [last_group]
        self._write(groups)

    def _cut_held(self) -> list[pa.Table]:
        return cut_groups(pa.concat_tables(self._held), ROWS_PER_GROUP, MAX_ROW_GROUP_BYTES)

    def _write(self, groups: Sequence[pa.Table]) -> None:
        for group in groups:
            if self._writer is None:
                self._sink = self.location.write(self.location.file(self.path))
                self._writer = pq.ParquetWriter(
                    self._sink, group.schema, metadata_collector=self._footer, **self._options
                )
            self._writer.write_table(group, row_group_size=ROWS_PER_GROUP)
            self._groups += 1

    def close(self) -> WrittenFile | None:
        """Complete the file; return None, and write no file, if there were no events."""
        if self._held:
            self._write(self._cut_held())
        if self._sink is None or self._writer is None or self._stats is None:
            return None
        if self.location.is_local:
            self._writer.add_key_value_metadata(
                checksum_placeholder(self._writer.schema, self._groups)
            )
        self._writer.close()
        self._sink.close()
        size = seal_file(self.location, self.location.file(self.path), self._footer[0])
        return WrittenFile(self.path, size, self._stats)

    def abandon(self) -> None:
        """Close the file as it is and remove it, because an error is being raised."""
        for opened in (self._writer, self._sink):
            if opened is not None:
                with contextlib.suppress(Exception):
                    opened.close()
        if self._sink is not None:
            self.location.discard([self.location.file(self.path)])


def split_edits(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Return the appends, and the edits or None if there are no edits."""
    column = rows[EDIT_OF.name]
    if column.null_count == len(column):
        return rows, None
    is_edit = column.is_valid()
    return rows.filter(pc.invert(is_edit)), rows.filter(is_edit)


def build_events(
    rows: pa.Table,
    events: NumberedRows,
    metadata: CommitMetadata,
    author: str,
    originals: list[pa.Array] | None = None,
) -> pa.Table:
    """Return the rows of a commit's file, with the columns of `event_schema`.

    They are sorted by (series, sequence).
    """
    values = [name for name in rows.schema.names if name not in STAGED_NAMES]
    size = len(events.order)
    value_columns = [rows[name] for name in values]
    if rows.num_rows > 1:
        value_columns = [column.take(pa.array(events.order)) for column in value_columns]
    event_columns = [
        series_column(events.names, events.codes),
        pa.array(events.sequence),
        pa.array(events.timestamp_us).view(INSTANT),
        author_column(rows["author"], events, author),
    ]
    names = [*_EVENT_NAMES, *values, *_LAST_NAMES]
    commit = pa.array([metadata.commit], pa.int64()), pa.array([metadata.commit_us], INSTANT)
    if size == 1:
        last_columns = [*(originals or _NO_ORIGINAL), *commit]
    else:
        nulls = (_constant_column(null[0], size) for null in _NO_ORIGINAL)
        last_columns = [
            *(originals or nulls),
            *(_constant_column(scalars[0], size) for scalars in commit),
        ]
    return pa.Table.from_arrays([*event_columns, *value_columns, *last_columns], names=names)


_EVENT_NAMES: Final = [field.name for field in EVENT_FIELDS]
_LAST_NAMES: Final = [field.name for field in (*ORIGINAL_FIELDS, *COMMIT_FIELDS)]
_NO_ORIGINAL: Final = [pa.nulls(1, field.type) for field in ORIGINAL_FIELDS]
"""The columns of one event that overrides none, which name the original of an edit."""


def author_column(
    authors: pa.ChunkedArray, events: NumberedRows, author: str
) -> pa.Array | pa.ChunkedArray:
    """Return the author of each event: the one in `authors` for its row, else `author`."""
    if authors.null_count < len(authors):
        return authors.take(pa.array(events.order)).combine_chunks().fill_null(author)
    if len(events.order) == 1:
        return pa.array([author])
    name = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([author]))
    return _constant_column(name[0], len(events.order))


def _constant_column(value: pa.Scalar, size: int) -> pa.Array | pa.ChunkedArray:
    """Return a column of `size` times `value`; a long one needs no more memory than a short one."""
    block = pa.repeat(value, min(size, MAX_REPEATED_ROWS))
    if size <= MAX_REPEATED_ROWS:
        return block
    blocks = [block] * (size // MAX_REPEATED_ROWS)
    return pa.chunked_array([*blocks, block.slice(0, size % MAX_REPEATED_ROWS)])
