"""Give the buckets of a query from their states: aggregates, filled buckets; and gaps.

The law is semantics 32.2 to 32.4; `read.states` makes the states from events.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    Int64Array,
    encode_runs,
    sort_by_code,
    to_int64,
)
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.downsampling import (
    ALL_EVENTS,
    Aggregate,
    Downsampling,
    result_fields,
    result_type,
)
from pyspark_tseries.model.exact_sums import round_sums
from pyspark_tseries.read.states import Folding, States, encode_groups, parts_of

FloatArray = npt.NDArray[np.float64]

_WEIGHT: Final = 2.0**-60
"""A microsecond in the unit of weights."""


def aggregate(
    events: pa.Table,
    schema: pa.Schema,
    wanted: Downsampling,
    ends_us: tuple[int | None, int | None] = (None, None),
) -> pa.Table:
    """Return what `finish` does for the events of a `values` query, sorted by series."""
    folding = Folding(schema, wanted)
    return finish(folding.merge([folding.fold(events)]), schema, wanted, ends_us)


def finish(
    states: States,
    schema: pa.Schema,
    wanted: Downsampling,
    ends_us: tuple[int | None, int | None] = (None, None),
) -> pa.Table:
    """Return a row for each bucket, sorted by group and time.

    Args:
        states: a state of each bucket, sorted by group and start.
        schema: the store's value columns.
        wanted: what to aggregate.
        ends_us: the first and last time of the view range where these are times, both inclusive;
            filling begins and ends there.

    Raises:
        InvalidQuery: a sum does not fit 64 bits, or a filled range has too many buckets.
    """
    groups, codes = encode_groups(states.table["group"].combine_chunks())
    starts = to_int64(states.table["start"])
    kept = _Kept(states.kept, codes, starts, wanted.buckets)
    columns = [
        _aggregate(states.table, kept, one, result_type(schema, one)) for one in wanted.aggregates
    ]
    if wanted.is_filled and len(starts):
        codes, starts, columns = _fill(codes, starts, wanted, columns, ends_us)
    fields = result_fields(schema, wanted)
    names = groups.take(pa.array(codes)).cast(fields.field(0).type)
    table = [names, pa.array(starts).cast(INSTANT), *columns]
    return pa.Table.from_arrays(table, schema=fields)


_IN_PLACE: Final = ("first", "last")
"""The values of these functions are those of one event."""


def _aggregate(table: pa.Table, kept: "_Kept", wanted: Aggregate, kind: pa.DataType) -> pa.Array:
    column = _aggregate_column(table, kept, wanted, kind)
    if wanted.function in _IN_PLACE or not pa.types.is_floating(column.type):
        return column
    # Of equal values, such as 0.0 and -0.0, those that are read first would count: one zero, one
    # NaN, and so one answer.
    zero, nan = (pa.scalar(value, column.type) for value in (0.0, math.nan))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def _aggregate_column(
    table: pa.Table, kept: "_Kept", wanted: Aggregate, kind: pa.DataType
) -> pa.Array:
    if wanted.column == ALL_EVENTS:
        return table["count"].combine_chunks()
    state = {
        name.removeprefix(f"{wanted.column} "): table[name].combine_chunks()
        for name in table.column_names
        if name.startswith(f"{wanted.column} ")
    }
    if wanted.function in ("sum", "mean"):
        return _finish_sum(state, wanted, kind)
    if wanted.function == "time_weighted_mean":
        return kept.time_weighted(wanted.column)
    if wanted.function in ("median", "quantile"):
        return kept.quantile(wanted.column, 0.5 if wanted.quantile is None else wanted.quantile)
    return state[wanted.function]


def _finish_sum(state: Mapping[str, pa.Array], wanted: Aggregate, kind: pa.DataType) -> pa.Array:
    counts = to_int64(state["count"])
    none = counts == 0
    if none.all():
        return pa.nulls(len(counts), kind)
    if "decimal" in state:
        return _finish_decimals(state["decimal"], counts, wanted, kind)
    if "high" not in state:
        sums = round_sums(parts_of(state))
        sums = sums / np.maximum(counts, 1) if wanted.function == "mean" else sums
        return pa.array(sums, mask=none)
    high, low = (to_int64(state[half].fill_null(0)) for half in ("high", "low"))
    high, low = high + (low >> 32), low & 0xFFFF_FFFF
    beyond = np.flatnonzero((high < -(2**31)) | (high >= 2**31))
    if wanted.function == "sum":
        if len(beyond):
            raise InvalidQuery(
                f"{wanted.name}: a sum of column '{wanted.column}' does not fit 64 bits",
                "sums from -2^63 to 2^63 - 1",
                "take 'mean', or smaller buckets",
            )
        return pa.array((high << 32) + low, mask=none)
    sums = ((high << 32) + low).astype(np.float64)
    sums[beyond] = [float((int(high[row]) << 32) + int(low[row])) for row in beyond]
    return pa.array(sums / np.maximum(counts, 1), mask=none)


def _finish_decimals(
    sums: pa.Array, counts: Int64Array, wanted: Aggregate, kind: pa.DataType
) -> pa.Array:
    if wanted.function == "mean":
        # Arrow would cut a mean to the column's own digits.
        return pc.divide(sums.cast(pa.float64()), pa.array(counts.astype(np.float64)))
    try:
        return sums.cast(kind)
    except pa.ArrowInvalid:
        raise InvalidQuery(
            f"{wanted.name}: a sum of column '{wanted.column}' does not fit {kind}",
            "sums of at most 38 digits",
            "take 'mean', or smaller buckets",
        ) from None


class _Kept:
    """The values that were kept of all buckets, sorted by bucket and time."""

    def __init__(
        self, rows: pa.Table, codes: Int64Array, starts: Int64Array, buckets: Buckets
    ) -> None:
        self._codes, self._starts, self._buckets = codes, starts, buckets
        if not rows.num_columns:
            return
        us, bucket = to_int64(rows["us"]), to_int64(rows["state"])
        ties = [to_int64(rows["sequence"])]
        if "series" in rows.column_names:
            ties.append(encode_runs(rows["series"])[1])
        order = np.lexsort((*ties, us, bucket))
        self._us, self._bucket = us[order], bucket[order]
        self._rows = rows.take(pa.array(order))

    def _values(self, column: str) -> tuple[FloatArray, Int64Array, Int64Array]:
        """Return the values that are not null as doubles, and the bucket and time of each."""
        whole = self._rows[column].combine_chunks()
        rows = np.flatnonzero(whole.is_valid().to_numpy(zero_copy_only=False))
        values = whole.take(pa.array(rows)).cast(pa.float64(), safe=False).to_numpy()
        return values, self._bucket[rows], self._us[rows]

    def quantile(self, column: str, quantile: float) -> pa.Array:
        """Return a quantile of each bucket."""
        values, bucket, _ = self._values(column)
        mine, first = np.unique(bucket, return_index=True)
        found = np.zeros(len(self._starts))
        sizes = np.diff(first, append=len(bucket))
        found[mine] = _quantile(values, first, sizes, quantile)
        none = np.ones(len(found), bool)
        none[mine] = False
        return pa.array(found, mask=none)

    def time_weighted(self, column: str) -> pa.Array:
        """Return the mean of each bucket in which each value holds until the next one."""
        values, bucket, us = self._values(column)
        starts = self._starts
        ends = self._buckets.ends(starts)
        group = self._codes[bucket]
        # Each value holds to the next one of its group, at most to the end of its bucket.
        until = np.append(us[1:], 0)
        last = np.ones(len(us), bool)
        last[:-1] = bucket[1:] != bucket[:-1]
        until[last] = ends[bucket[last]]
        size, held = len(starts), until - us
        # What holds for no time has no weight, not even a NaN.
        # In a unit so long that no product overflows.
        weights = np.where(held > 0, values, 0.0) * (held * _WEIGHT)
        weighted = np.bincount(bucket, weights, minlength=size)
        covered = np.bincount(bucket, held, minlength=size)
        # At the start of a bucket the last value before it holds, if the group has one.
        before = np.searchsorted(bucket, np.arange(size)) - 1
        holds = (before >= 0) & (group[before] == self._codes) if len(us) else np.zeros(size, bool)
        if len(us):
            following = np.minimum(before + 1, len(us) - 1)
            mine = (before + 1 < len(us)) & (bucket[following] == np.arange(size))
            first_us = np.where(mine, us[following], ends)
            head = np.where(holds, first_us - starts, 0)
            with np.errstate(invalid="ignore"):
                weighted += np.where(head > 0, values[before] * (head * _WEIGHT), 0.0)
            covered += head
        with np.errstate(invalid="ignore", divide="ignore"):
            means = weighted / (covered * _WEIGHT)
        return pa.array(means, mask=covered == 0)


def _quantile(
    values: npt.NDArray[Any], first: Int64Array, sizes: Int64Array, quantile: float
) -> FloatArray:
    groups = np.repeat(np.arange(len(first)), sizes)
    ordered = values[np.lexsort((values, groups))].astype(np.float64)
    place = quantile * (sizes - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, sizes - 1)
    below, above = ordered[first + low], ordered[first + high]
    part = place - low
    with np.errstate(invalid="ignore", over="ignore"):
        between = below + (above - below) * part
    # Without this an infinity minus itself would make a NaN.
    result: FloatArray = np.where((part == 0) | (below == above), below, between)
    return result


def _fill(
    codes: Int64Array,
    starts: Int64Array,
    wanted: Downsampling,
    columns: list[pa.Array],
    ends_us: tuple[int | None, int | None],
) -> tuple[Int64Array, Int64Array, list[pa.Array]]:
    """Return groups, starts and columns with a row for every bucket."""
    counts = np.bincount(codes)
    first = np.cumsum(counts) - counts
    lows, highs = starts[first], starts[first + counts - 1]
    low, high = ends_us
    # If the span of a range lies before its anchor, its end comes first.
    lows = lows if low is None else np.minimum(lows, low)
    highs = highs if high is None else np.maximum(highs, high)
    every = wanted.buckets.between(int(lows.min()), int(highs.max()))
    begin = np.searchsorted(every, lows, "right") - 1
    end = np.searchsorted(every, highs, "right")
    sizes = np.maximum(end - begin, 0)
    all_codes = np.repeat(np.arange(len(counts)), sizes)
    offsets = np.cumsum(sizes) - sizes
    all_starts = every[np.arange(len(all_codes)) - np.repeat(offsets - begin, sizes)]
    at = np.full(len(all_codes), -1)
    rows = offsets[codes] + np.searchsorted(every, starts) - begin[codes]
    at[rows] = np.arange(len(starts))
    filled = [
        _fill_column(column, at, all_codes, all_starts, aggregate.function, fill=wanted.fill)
        for column, aggregate in zip(columns, wanted.aggregates, strict=True)
    ]
    return all_codes, all_starts, filled


def _fill_column(
    column: pa.Array,
    at: Int64Array,
    codes: Int64Array,
    starts: Int64Array,
    function: str,
    fill: Any,
) -> pa.Array:
    new = at < 0
    if function == "count":
        fill = 0
    elif isinstance(fill, str) and fill == "previous":
        return column.take(_previous(at, codes))
    elif isinstance(fill, str) and fill == "linear":
        return _fill_on_line(column, at, codes, starts)
    spread = column.take(pa.array(at, mask=new))
    if fill is None or (isinstance(fill, str) and fill == "null"):
        return spread
    value = pa.scalar(fill, column.type)
    return pc.if_else(pa.array(new), value, spread)


def _previous(at: Int64Array, codes: Int64Array) -> pa.Array:
    """Return for each row the last row with an event up to it, of its group."""
    rows = np.arange(len(at))
    nearest = np.maximum.accumulate(np.where(at >= 0, rows, -1))
    known = (nearest >= 0) & (codes[np.maximum(nearest, 0)] == codes)
    return pa.array(at[np.maximum(nearest, 0)], mask=~known)


def _fill_on_line(
    column: pa.Array, at: Int64Array, codes: Int64Array, starts: Int64Array
) -> pa.Array:
    rows = np.arange(len(at))
    spread = column.take(pa.array(at, mask=at < 0))
    known = spread.is_valid().to_numpy(zero_copy_only=False)
    before = np.maximum.accumulate(np.where(known, rows, -1))
    after = np.minimum.accumulate(np.where(known, rows, len(at))[::-1])[::-1]
    inside = (at < 0) & (before >= 0) & (after < len(at))
    mine = np.flatnonzero(inside)
    mine = mine[(codes[before[mine]] == codes[mine]) & (codes[after[mine]] == codes[mine])]
    values = spread.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    low, high = before[mine], after[mine]
    part = (starts[mine] - starts[low]) / (starts[high] - starts[low])
    drawn = values[low] * (1 - part) + values[high] * part
    if pa.types.is_integer(column.type):
        drawn = np.rint(drawn)
    found = np.full(len(at), -1)
    found[mine] = np.arange(len(mine))
    line = pa.array(drawn).cast(column.type, safe=False).take(pa.array(found, mask=found < 0))
    return pc.coalesce(spread, line)


GAP_FIELDS: Final = pa.schema(
    [
        pa.field("series", pa.string()),
        pa.field("start", INSTANT),
        pa.field("end", INSTANT),
        pa.field("length", pa.duration("us")),
    ]
)
"""A gap: the timestamps of the events before and after it, and their distance."""


def find_gaps(events: pa.Table, longer_than_us: int) -> pa.Table:
    """Return the gaps between neighbouring events of a `values` query that are sorted by series."""
    names, codes = encode_runs(events["series"])
    us = to_int64(events["timestamp"])
    order = _sort_by_time(codes, us)
    if order is not None:
        us, codes = us[order], codes[order]
    rows = np.flatnonzero((codes[1:] == codes[:-1]) & (np.diff(us) > longer_than_us))
    start, end = us[rows], us[rows + 1]
    columns = [
        names.take(pa.array(codes[rows])),
        pa.array(start).cast(INSTANT),
        pa.array(end).cast(INSTANT),
        pa.array(end - start).cast(pa.duration("us")),
    ]
    return pa.Table.from_arrays(columns, schema=GAP_FIELDS)


def _sort_by_time(codes: Int64Array, us: Int64Array) -> Int64Array | None:
    """Return the order by (code, time) of rows sorted by code; None if they are in it.

    The times of a series decrease only after an erasure (semantics 18.8).
    """
    falls = (us[1:] < us[:-1]) & (codes[1:] == codes[:-1])
    return sort_by_code(codes, us) if falls.any() else None
