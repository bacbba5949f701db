"""A batch as events: sorted, checked against the series index, numbered without gaps.

`number_rows` is a pure function of the rows and the index. It decides which rows are stored, in
which order, with which sequence and timestamp, and returns the new state of their series as a
delta. After a lost race it is called again with the winner's index.

The rules are semantics 16 and 17.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.instants import FINAL_US, MIN_US, format_instant
from pyspark_tseries.errors import OutOfOrder, UpdateFailed
from pyspark_tseries.model.arrays import (
    NEVER_US,
    UNTIMED,
    BoolArray,
    Int64Array,
    encode_names,
    sort_by_code,
)
from pyspark_tseries.model.series_index import CommitMetadata, make_delta
from pyspark_tseries.promise.record import name_writer

__all__ = [
    "NumberedRows",
    "SeriesLookup",
    "add_counts",
    "number_rows",
    "record_cti",
    "series_column",
    "sort_rows",
]


class SeriesLookup(Protocol):
    """Look-up of series, as in a `SeriesIndex`."""

    @property
    def cti_us(self) -> int:
        """As `SeriesIndex.cti_us`."""

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """As `SeriesIndex.lookup`."""


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """A batch's events, sorted by (series, sequence), and the counts of the others.

    Attributes:
        order: each event's row in the batch.
        names: the distinct series of the events, sorted.
        codes: each event's position in `names`.
        sequence: each event's.
        timestamp_us: each event's.
        delta: the state of the series of `names` afterwards, without commit metadata.
        dropped: late rows that were left out.
        adjusted: events whose timestamp was raised.
        example: one of the rows counted, or None.
    """

    order: Int64Array
    names: pa.Array
    codes: Int64Array
    sequence: Int64Array
    timestamp_us: Int64Array
    delta: pa.Table
    dropped: int
    adjusted: int
    example: dict[str, Any] | None


def number_rows(
    series: pa.Array, given: pa.Array, index: SeriesLookup, out_of_order: str, now_us: int
) -> NumberedRows:
    """Number a batch.

    Events of a series are in the order of (timestamp, row); rows without a timestamp follow, in
    the order of rows, at `now_us` or their series' newest timestamp where that is later. A row is
    late where its timestamp is before that of its series' newest original in `index`, or before the
    store's CTI; then `out_of_order` applies. Late rows keep their order among themselves when they
    are adjusted.

    Args:
        series: string, without nulls.
        given: timestamps in microseconds UTC, nullable; as long as `series`.
        index: the store before the batch.
        out_of_order: `fail`, `drop` or `adjust`.
        now_us: the time of the commit, not before that of the last one; NEVER_US assigns the
            series' newest timestamp.

    Raises:
        UpdateFailed: a row is late under `fail`, its timestamp is out of range, or there is
            nothing to assign one from.
    """
    order, names, codes, us = sort_rows(series, given)
    _check_legal(names, codes, us)
    before = index.lookup(names.to_pylist())
    least_us = np.maximum(before["original_us"], index.cti_us)
    late = _apply_late_policy(us < least_us[codes], names, codes, us, before, out_of_order, index)
    if late.dropped:
        order, codes, us = order[late.on_time], codes[late.on_time], us[late.on_time]
    if late.adjusted:
        us = np.maximum(us, least_us[codes])
    timed = us if given.null_count == 0 else np.where(us == UNTIMED, NEVER_US, us)
    return _assign_sequences(names, codes, order, timed, before, now_us, late, index.cti_us)


def sort_rows(
    series: pa.Array, given: pa.Array
) -> tuple[Int64Array, pa.Array, Int64Array, Int64Array]:
    """Rows in the order of (series, timestamp, row), untimed ones last in their series.

    Returns:
        The rows; the distinct names, sorted; of each row in that order its position in the names,
        and its timestamp, UNTIMED where it has none.

    Raises:
        UpdateFailed: a given timestamp is UNTIMED.
    """
    names, codes = encode_names(series)
    given = given.cast(pa.int64())
    if (row := pc.index(given, UNTIMED).as_py()) >= 0:
        raise _illegal_timestamp_error(series[row], UNTIMED)
    us = given.fill_null(UNTIMED).to_numpy(zero_copy_only=False)
    order = sort_by_code(codes, us)
    rows_of_each = np.bincount(codes, minlength=len(names))
    return order, names, np.repeat(np.arange(len(names)), rows_of_each), us[order]


def series_column(names: pa.Array, codes: Int64Array) -> pa.Array:
    """The column of series from positions among the distinct `names`, in the cheaper encoding."""
    # A dictionary pays only while names repeat.
    if len(names) > len(codes) * 0.2:
        return names.take(pa.array(codes))
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names)


def _check_legal(names: pa.Array, codes: Int64Array, us: Int64Array) -> None:
    if us.min(initial=0) >= MIN_US and us.max(initial=0) <= FINAL_US:
        return
    illegal = np.flatnonzero(((us < MIN_US) | (us > FINAL_US)) & (us != UNTIMED))
    if len(illegal):
        raise _illegal_timestamp_error(names[int(codes[illegal[0]])], int(us[illegal[0]]))


def _illegal_timestamp_error(series: pa.Scalar, us: int) -> UpdateFailed:
    return UpdateFailed(
        f"series '{series}': timestamp {us} us since 1970 is out of range",
        f"{format_instant(MIN_US)} to {format_instant(FINAL_US)}",
        "correct it, or give null to have one assigned. Nothing of the batch is stored",
    )


def _assign_sequences(
    names: pa.Array,
    codes: Int64Array,
    order: Int64Array,
    timed_us: Int64Array,
    before: dict[str, Int64Array],
    now_us: int,
    late: "_LateRows",
    cti_us: int,
) -> NumberedRows:
    """Sequences and assigned timestamps of rows sorted by series, timed ones first."""
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
            raise _promised_error(series, int(us.min()), cti_us)
    last = starts + sizes - 1
    names = names.take(pa.array(present))
    after = {
        "last_sequence": sequence[last],
        "newest_us": np.maximum(before["newest_us"], us[last]),
        "original_sequence": sequence[last],
        "original_us": us[last],
    }
    delta = make_delta(names, after)
    counts = late.dropped, late.adjusted, late.example
    return NumberedRows(order, names, codes, sequence, us, delta, *counts)


def _missing_timestamp_error(series: str) -> UpdateFailed:
    return UpdateFailed(
        f"series '{series}': its first event has no timestamp, and under clock 'event' there is "
        "none to take over",
        "a timestamp in the first event of a series",
        "give one, or set clock to 'wall'. Nothing of the batch is stored",
    )


class _LateRows(NamedTuple):
    """The counts of a batch's late rows; `on_time` flags the others."""

    on_time: BoolArray
    dropped: int
    adjusted: int
    example: dict[str, Any] | None


def _apply_late_policy(
    late: BoolArray,
    names: pa.Array,
    codes: Int64Array,
    us: Int64Array,
    before: dict[str, Int64Array],
    out_of_order: str,
    index: SeriesLookup,
) -> _LateRows:
    rows = np.flatnonzero(late)
    if not len(rows):
        return _LateRows(~late, 0, 0, None)
    row, code = int(rows[0]), int(codes[rows[0]])
    newest_us = int(before["original_us"][code])
    example: dict[str, Any] = {
        "series": names[code].as_py(),
        "timestamp": format_instant(int(us[row])),
        "newest_sequence": int(before["original_sequence"][code]),
        "newest_timestamp": None if newest_us == NEVER_US else format_instant(newest_us),
    }
    promised = int(us[row]) >= before["original_us"][code]
    if promised:
        example["store_cti"] = format_instant(index.cti_us)
    if out_of_order == "fail":
        if promised:
            raise _promised_error(example["series"], int(us[row]), index.cti_us)
        raise _out_of_order_error(example, len(rows))
    dropped = len(rows) if out_of_order == "drop" else 0
    return _LateRows(~late, dropped, len(rows) - dropped, example)


REORDER_ADVICE: Final = "order the input by time, or set outOfOrder to 'drop' or 'adjust'"


def _out_of_order_error(example: dict[str, Any], count: int) -> OutOfOrder:
    return OutOfOrder(
        f"series '{example['series']}': timestamp {example['timestamp']} is before the newest "
        f"event, sequence {example['newest_sequence']} at {example['newest_timestamp']} ({count} "
        "such rows in the batch)",
        "that timestamp or a later one",
        f"{REORDER_ADVICE}. Nothing of the batch is stored",
    )


def _promised_error(series: str, us: int, cti_us: int) -> OutOfOrder:
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
    """`metadata` with the CTI that a batch commits with.

    Args:
        metadata: of the commit.
        token: the batch's, which names its writer.
        cti_us: the CTI of the writer; None if the batch has none.
        appends: the batch appends originals, or is its query's first; one of edits alone makes
            nobody a writer.
    """
    if cti_us is None and not appends:
        return metadata
    ctis = metadata.ctis.advance(name_writer(token), cti_us, metadata.commit)
    return dataclasses.replace(metadata, ctis=ctis)


def add_counts(metadata: CommitMetadata, events: NumberedRows) -> CommitMetadata:
    """`metadata` with the batch's dropped and adjusted rows added to its counts."""
    example = events.example and {**events.example, "commit": metadata.commit}
    return dataclasses.replace(
        metadata,
        dropped=metadata.dropped + events.dropped,
        adjusted=metadata.adjusted + events.adjusted,
        last_dropped=example if events.dropped else metadata.last_dropped,
        last_adjusted=example if events.adjusted else metadata.last_adjusted,
    )
