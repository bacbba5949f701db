"""Sort a batch, check it against the series index, number its events (semantics 16 and 17).

`number_rows` is a pure function of the rows and the index. It decides which rows are stored, in
which order, and with which sequence and timestamp, and returns the new state of their series as an
index change. After a lost race it is called again with the winner's index.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    MIN_US,
    format_duration,
    format_instant,
)
from pyspark_tseries.errors import FutureEvent, OutOfOrder, UpdateFailed
from pyspark_tseries.model.arrays import (
    NEVER_US,
    UNTIMED,
    BoolArray,
    Int64Array,
    encode_names,
    sort_by_code,
)
from pyspark_tseries.model.commits import name_writer
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import CommitMetadata, make_change

MIN_DEFAULT_FUTURE_US: Final = DAY_US
"""The default limit is at least a day, even if the `last` of the retained range is shorter."""


class SeriesLookup(Protocol):
    """Look-up of series, as in a `SeriesIndex`."""

    @property
    def cti_us(self) -> int:
        """The same as `SeriesIndex.cti_us`."""

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """Do the same as `SeriesIndex.lookup`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a batch's rows that were not stored as they were given.

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
        counts: the counts of rows that were not stored as they were given.
    """

    order: Int64Array
    names: pa.Array
    codes: Int64Array
    sequence: Int64Array
    timestamp_us: Int64Array
    change: pa.Table
    counts: Counts


@dataclass(frozen=True, slots=True)
class FutureLimit:
    """How far a given timestamp may lie after the time of its commit (semantics 17.6).

    Attributes:
        max_us: the limit in microseconds; None: the default of the store's retained range.
        policy: the policy for rows further ahead: `fail` or `drop`.
    """

    max_us: int | None = None
    policy: str = "fail"

    def rule(self, retained: RetainedRange, commit_us: int) -> "FutureRule | None":
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


def number_rows(
    series: pa.Array,
    given: pa.Array,
    index: SeriesLookup,
    out_of_order: str,
    now_us: int,
    *,
    future: FutureRule | None = None,
) -> NumberedRows:
    """Number a batch.

    Events of a series are in the order of (timestamp, row). Rows without a timestamp follow, in the
    order of rows, at `now_us` or their series' newest timestamp if that is later. A row is late if
    its timestamp is before that of its series' newest original in `index`, or before the store's
    CTI; then `out_of_order` applies. Adjusted rows keep their order among themselves. `future`
    applies to rows that are too far ahead, but not late.
    """
    rows = sort_rows(series, given)
    _check_legal(rows)
    before = index.lookup(rows.names.to_pylist())
    least_us = np.maximum(before["original_us"], index.cti_us)
    is_late = rows.us < least_us[rows.codes]
    ahead = _find_ahead(rows.us, is_late, future)
    counts = _apply_late_policy(is_late, rows, before, out_of_order, index.cti_us)
    counts += _apply_future_policy(ahead, rows, future)
    kept = ~(is_late | ahead) if counts.dropped else ~ahead
    if not kept.all():
        rows = SortedRows(rows.order[kept], rows.names, rows.codes[kept], rows.us[kept])
    us = np.maximum(rows.us, least_us[rows.codes]) if counts.adjusted else rows.us
    timed_us = us if given.null_count == 0 else np.where(us == UNTIMED, NEVER_US, us)
    return _assign_sequences(rows._replace(us=timed_us), before, now_us, index.cti_us, counts)


def _find_ahead(us: Int64Array, is_late: BoolArray, future: FutureRule | None) -> BoolArray:
    if future is None:
        return np.zeros(len(us), bool)
    ahead: BoolArray = (us > future.commit_us + future.allowed_us) & (us != UNTIMED) & ~is_late
    return ahead


def _apply_future_policy(ahead: BoolArray, rows: "SortedRows", future: FutureRule | None) -> Counts:
    """Count the rows to leave out; raise FutureEvent if there are any under `fail`."""
    found = np.flatnonzero(ahead)
    if future is None or not len(found):
        return Counts()
    row = int(found[0])
    example = {
        "series": rows.names[int(rows.codes[row])].as_py(),
        "timestamp": format_instant(int(rows.us[row])),
        "commit_time": format_instant(future.commit_us),
    }
    if future.policy == "drop":
        return Counts(future=len(found), future_example=example)
    why = ", as in every store whose retained range has 'last'" if future.is_default else ""
    raise FutureEvent(
        f"series '{example['series']}': timestamp {example['timestamp']} is too far after the time "
        f"of the commit, {example['commit_time']}: it would hide and hold up what follows in its "
        f"series ({len(found)} such rows in the batch)",
        f"at most {format_duration(future.allowed_us)} after it{why}",
        "correct the clock that the timestamp is of; if it is right, set maxFuture to a longer "
        "duration or to 'none', or futurePolicy to 'drop'. Nothing of the batch is stored",
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


def sort_rows(series: pa.Array, given: pa.Array) -> SortedRows:
    """Sort rows; raise UpdateFailed if a given timestamp is UNTIMED."""
    names, codes = encode_names(series)
    given = given.cast(pa.int64())
    if (row := pc.index(given, UNTIMED).as_py()) >= 0:
        raise _illegal_timestamp_error(series[row], UNTIMED)
    us = given.fill_null(UNTIMED).to_numpy(zero_copy_only=False)
    order = sort_by_code(codes, us)
    rows_of_each = np.bincount(codes, minlength=len(names))
    return SortedRows(order, names, np.repeat(np.arange(len(names)), rows_of_each), us[order])


def series_column(names: pa.Array, codes: Int64Array) -> pa.Array:
    """Return the column of series from positions in distinct `names`, in the cheaper encoding."""
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
    return UpdateFailed(
        f"series '{series}': timestamp {us} us since 1970 is out of range",
        f"{format_instant(MIN_US)} to {format_instant(FINAL_US)}",
        "correct it, or give null to have one assigned. Nothing of the batch is stored",
    )


def _assign_sequences(
    rows: SortedRows, before: dict[str, Int64Array], now_us: int, cti_us: int, counts: Counts
) -> NumberedRows:
    """Assign sequences, and timestamps to the rows that have none (NEVER_US)."""
    order, names, codes, timed_us = rows
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    sizes = np.diff(starts, append=len(codes))
    present = codes[starts]
    before = {name: column[present] for name, column in before.items()}
    codes = np.repeat(np.arange(len(present)), sizes)
    first = before["last_sequence"] + 1
    sequence = np.arange(len(codes)) - np.repeat(starts - first, sizes)
    untimed, us = timed_us == NEVER_US, timed_us
    if untimed.any():
        newest_us = np.maximum(np.maximum.reduceat(timed_us, starts), before["newest_us"])
        us = np.where(untimed, np.maximum(newest_us, now_us)[codes], timed_us)
        if (us == NEVER_US).any():
            raise _missing_timestamp_error(names[int(present[codes[np.argmin(us)]])].as_py())
        if (us < cti_us).any():
            series = names[int(present[codes[np.argmin(us)]])].as_py()
            raise _before_cti_error(series, int(us.min()), cti_us)
    last = starts + sizes - 1
    names = names.take(pa.array(present))
    after = {
        "last_sequence": sequence[last],
        "newest_us": np.maximum(before["newest_us"], us[last]),
        "original_sequence": sequence[last],
        "original_us": us[last],
    }
    change = make_change(names, after)
    return NumberedRows(order, names, codes, sequence, us, change, counts)


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
    late = np.flatnonzero(is_late)
    if not len(late):
        return Counts()
    row, code = int(late[0]), int(rows.codes[late[0]])
    newest_us = int(before["original_us"][code])
    example: dict[str, Any] = {
        "series": rows.names[code].as_py(),
        "timestamp": format_instant(int(rows.us[row])),
        "newest_sequence": int(before["original_sequence"][code]),
        "newest_timestamp": None if newest_us == NEVER_US else format_instant(newest_us),
    }
    is_before_cti = int(rows.us[row]) >= before["original_us"][code]
    if is_before_cti:
        example["store_cti"] = format_instant(cti_us)
    if out_of_order == "fail":
        if is_before_cti:
            raise _before_cti_error(example["series"], int(rows.us[row]), cti_us)
        raise _out_of_order_error(example, len(late))
    dropped = len(late) if out_of_order == "drop" else 0
    return Counts(dropped, len(late) - dropped, example)


BEFORE_NEWEST: Final = "before newest"
"""The kind of an `OutOfOrder` error that does not concern the store's CTI."""


def _out_of_order_error(example: dict[str, Any], count: int) -> OutOfOrder:
    return OutOfOrder(
        f"series '{example['series']}': timestamp {example['timestamp']} is before the newest "
        f"event, sequence {example['newest_sequence']} at {example['newest_timestamp']} ({count} "
        "such rows in the batch)",
        "that timestamp or a later one",
        "order the input by time, or set outOfOrder to 'drop' or 'adjust'. Nothing of the batch is "
        "stored",
        kind=BEFORE_NEWEST,
    )


def _before_cti_error(series: str, us: int, cti_us: int) -> OutOfOrder:
    return OutOfOrder(
        f"series '{series}': timestamp {format_instant(us)} is before the store's CTI, "
        f"{format_instant(cti_us)}: its writers have promised subscribers that nothing before it "
        "is appended any more",
        "that CTI or a later timestamp, or an edit",
        "leave out rows with a 'violation', give this query's 'ctiDelay' the whole distance from "
        "its watermark to the timestamps it writes, or set outOfOrder to 'drop' or 'adjust'; "
        "TimeSeries.describe() names the writers. Nothing of the batch is stored",
    )


def record_cti(
    metadata: CommitMetadata, token: tuple[str, int] | None, cti_us: int | None, *, appends: bool
) -> CommitMetadata:
    """Return `metadata` with the CTI that a batch commits."""
    if cti_us is None and not appends:
        return metadata
    ctis = metadata.ctis.advance(name_writer(token), cti_us, metadata.commit)
    return dataclasses.replace(metadata, ctis=ctis)


def add_counts(metadata: CommitMetadata, counts: Counts) -> CommitMetadata:
    """Return `metadata` with the counts of a batch added to its own."""
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
