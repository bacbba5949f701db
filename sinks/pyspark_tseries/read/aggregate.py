"""Aggregate the events of each bucket, fill missing buckets, and find gaps (semantics 32).

The rows of a group, a series or the value of a tag, are sorted by time, so the events of a bucket
are neighbours. Each aggregate is one NumPy call on these runs; values that are no numbers, and
decimals, are aggregated by Arrow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    BoolArray,
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
    is_number,
    result_fields,
    result_type,
)

FloatArray = npt.NDArray[np.float64]


def aggregate(
    events: pa.Table,
    schema: pa.Schema,
    wanted: Downsampling,
    ends_us: tuple[int | None, int | None] = (None, None),
) -> pa.Table:
    """Return a row for each bucket, sorted by group and time.

    Args:
        events: the result of a `values` query, sorted by series, with the columns that `wanted`
            reads.
        schema: the store's value columns.
        wanted: what to aggregate.
        ends_us: the first and last time of the view range where these are times, both inclusive;
            filling begins and ends there.

    Raises:
        InvalidQuery: a sum does not fit 64 bits, or a filled range has too many buckets.
    """
    groups, runs = _sort_events(events, wanted)
    return finish(groups, runs, aggregate_runs(runs, schema, wanted), schema, wanted, ends_us)


@dataclass(frozen=True, slots=True)
class Runs:
    """The rows of buckets: the events of a bucket are neighbours, sorted by time.

    Attributes:
        codes: the position of each bucket's group among all groups.
        starts: the start of each bucket.
        first: the row at which each bucket begins.
        sizes: how many rows it has; rows of no bucket may lie between two of them.
        us: the timestamp of each row.
        columns: the rows' values.
    """

    codes: Int64Array
    starts: Int64Array
    first: Int64Array
    sizes: Int64Array
    us: Int64Array
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.first)

    @property
    def is_whole(self) -> bool:
        """True if each row is in a bucket."""
        return int(self.sizes.sum()) == len(self.us)

    def rows(self) -> Int64Array:
        """Return the positions of the rows that are in a bucket."""
        ends = np.cumsum(self.sizes)
        offsets = np.repeat(self.first - (ends - self.sizes), self.sizes)
        rows: Int64Array = np.arange(len(offsets)) + offsets
        return rows

    def select(self, chosen: BoolArray) -> "Runs":
        """Return the chosen buckets; the rows stay."""
        return replace(
            self,
            codes=self.codes[chosen],
            starts=self.starts[chosen],
            first=self.first[chosen],
            sizes=self.sizes[chosen],
        )

    def pack(self) -> "Runs":
        """Return the same buckets without the rows outside of them."""
        if self.is_whole:
            return self
        rows = self.rows()
        places = pa.array(rows)
        columns = {name: column.take(places) for name, column in self.columns.items()}
        first = np.cumsum(self.sizes) - self.sizes
        return replace(self, first=first, us=self.us[rows], columns=columns)

    def bucket_of_rows(self) -> Int64Array:
        """Return the position of the bucket of each row that is in one."""
        return np.repeat(np.arange(len(self)), self.sizes)


def find_runs(
    codes: Int64Array, us: Int64Array, columns: Mapping[str, pa.Array], buckets: Buckets
) -> Runs:
    """Return the buckets of rows that are sorted by code and time."""
    begins = buckets.starts(us)
    changes = np.ones(len(us), bool)
    changes[1:] = (begins[1:] != begins[:-1]) | (codes[1:] != codes[:-1])
    first = np.flatnonzero(changes)
    sizes = np.diff(first, append=len(us))
    return Runs(codes[first], begins[first], first, sizes, us, columns)


def _sort_events(events: pa.Table, wanted: Downsampling) -> tuple[pa.Array, Runs]:
    us = to_int64(events["timestamp"])
    if wanted.tag is None:
        groups, codes = encode_runs(events["series"])
        order = _sort_by_time(codes, us)
    else:
        groups, codes = _encode_tag(events[wanted.tag].combine_chunks())
        # By time, then series: the rows of a series are in the order of their sequences.
        order = sort_by_code(codes, us)
    names = wanted.value_columns
    columns = {name: events[name].combine_chunks() for name in names}
    if order is not None:
        us, codes, places = us[order], codes[order], pa.array(order)
        columns = {name: column.take(places) for name, column in columns.items()}
    return groups, find_runs(codes, us, columns, wanted.buckets)


def _sort_by_time(codes: Int64Array, us: Int64Array) -> Int64Array | None:
    """Return the order by (code, time) of rows sorted by code; None if they are in it.

    The times of a series decrease only after an erasure (semantics 18.8).
    """
    falls = (us[1:] < us[:-1]) & (codes[1:] == codes[:-1])
    return sort_by_code(codes, us) if falls.any() else None


def _encode_tag(column: pa.Array) -> tuple[pa.Array, Int64Array]:
    encoded = column.dictionary_encode(null_encoding="encode")
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy(zero_copy_only=False)]
    return encoded.dictionary.take(pa.array(order)), codes


def aggregate_runs(runs: Runs, schema: pa.Schema, wanted: Downsampling) -> list[pa.Array]:
    """Return the columns of the aggregates, a value for each bucket."""
    without_nulls: dict[str, _Values] = {}
    return [
        _aggregate_column(runs, a, schema, wanted.buckets, without_nulls) for a in wanted.aggregates
    ]


def finish(
    groups: pa.Array,
    runs: Runs,
    columns: list[pa.Array],
    schema: pa.Schema,
    wanted: Downsampling,
    ends_us: tuple[int | None, int | None],
) -> pa.Table:
    """Return the result: the buckets' groups, starts and aggregates, filled if wanted."""
    codes, starts = runs.codes, runs.starts
    if wanted.is_filled and len(starts):
        codes, starts, columns = _fill(runs, wanted, columns, ends_us)
    fields = result_fields(schema, wanted)
    names = groups.take(pa.array(codes)).cast(fields.field(0).type)
    table = [names, pa.array(starts).cast(INSTANT), *columns]
    return pa.Table.from_arrays(table, schema=fields)


@dataclass(frozen=True, slots=True)
class _Values:
    """A column's values that are not null, by bucket; `buckets` are the positions of those."""

    values: pa.Array
    first: Int64Array
    sizes: Int64Array
    buckets: Int64Array

    @property
    def is_whole(self) -> bool:
        return int(self.sizes.sum()) == len(self.values)

    def pack(self) -> "_Values":
        """Return the same without values of no bucket."""
        if self.is_whole:
            return self
        first = np.cumsum(self.sizes) - self.sizes
        rows = np.arange(self.sizes.sum()) + np.repeat(self.first - first, self.sizes)
        return replace(self, values=self.values.take(pa.array(rows)), first=first)


def _drop_nulls(runs: Runs, column: str) -> _Values:
    values = runs.columns[column]
    if not values.null_count:
        return _Values(values, runs.first, runs.sizes, np.arange(len(runs)))
    rows = runs.rows()
    there = values.is_valid().to_numpy(zero_copy_only=False)[rows]
    buckets = runs.bucket_of_rows()[there]
    first = np.flatnonzero(np.diff(buckets, prepend=-1))
    sizes = np.diff(first, append=len(buckets))
    return _Values(values.take(pa.array(rows[there])), first, sizes, buckets[first])


def _aggregate_column(
    runs: Runs,
    wanted: Aggregate,
    schema: pa.Schema,
    buckets: Buckets,
    without_nulls: dict[str, _Values],
) -> pa.Array:
    if wanted.column == ALL_EVENTS:
        return pa.array(runs.sizes.astype(np.int64))
    if wanted.column not in without_nulls:
        without_nulls[wanted.column] = _drop_nulls(runs, wanted.column)
    held = without_nulls[wanted.column]
    kind = result_type(schema, wanted)
    if wanted.function == "count":
        counts = np.zeros(len(runs), np.int64)
        counts[held.buckets] = held.sizes
        return pa.array(counts)
    if wanted.function in ("first", "last"):
        at = held.first if wanted.function == "first" else held.first + held.sizes - 1
        return _spread(held.values.take(pa.array(at)), held.buckets, len(runs))
    if wanted.function == "time_weighted_mean":
        return _time_weighted(runs.pack(), wanted.column, buckets)
    if not is_number(held.values.type):
        packed = held.pack()
        found = _aggregate_by_arrow(packed.values, packed.sizes, wanted, kind)
    elif not len(held.first):
        found = pa.nulls(0, kind)
    else:
        found = pa.array(_reduce(held, wanted)).cast(kind)
    return _spread(found, held.buckets, len(runs))


def _spread(found: pa.Array, buckets: Int64Array, count: int) -> pa.Array:
    """Return `found` at the positions `buckets`, nulls elsewhere."""
    if len(buckets) == count:
        return found
    at = np.full(count, -1)
    at[buckets] = np.arange(len(buckets))
    return found.take(pa.array(at, mask=at < 0))


def _reduce(held: _Values, wanted: Aggregate) -> npt.NDArray[Any]:
    if wanted.function in ("median", "quantile"):
        packed = held.pack()
        values = packed.values.to_numpy(zero_copy_only=False)
        half = 0.5 if wanted.quantile is None else wanted.quantile
        return _quantile(values, packed.first, packed.sizes, half)
    values = held.values.to_numpy(zero_copy_only=False)
    if wanted.function == "min":
        # NaN is above all numbers, so a minimum passes over it.
        return _reduceat(np.fmin if values.dtype.kind == "f" else np.minimum, values, held)
    if wanted.function == "max":
        return _reduceat(np.maximum, values, held)
    if values.dtype.kind in "iu":
        return _mean_whole(values, held) if wanted.function == "mean" else _sum(held, wanted)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = _reduceat(np.add, values.astype(np.float64, copy=False), held)
    return sums / held.sizes if wanted.function == "mean" else sums


def _reduceat(function: np.ufunc, values: npt.NDArray[Any], held: _Values) -> npt.NDArray[Any]:
    """Apply `function` to the values of each bucket."""
    first, ends = held.first, held.first + held.sizes
    if (first[1:] == ends[:-1]).all():
        return np.asarray(function.reduceat(values[: ends[-1]], first))
    # This also reduces what lies between two buckets; [::2] leaves that out.
    places = np.stack([first, ends], axis=1).ravel()
    places = places[:-1] if places[-1] == len(values) else places
    return np.asarray(function.reduceat(values, places)[::2])


def _mean_whole(values: npt.NDArray[Any], held: _Values) -> FloatArray:
    whole = values.astype(np.int64, copy=False)
    if _fits(whole, held):
        return _reduceat(np.add, whole, held).astype(np.float64) / held.sizes
    # In two halves, neither of which overflows.
    high = _reduceat(np.add, whole >> 32, held).astype(np.float64)
    low = _reduceat(np.add, whole & 0xFFFF_FFFF, held).astype(np.float64)
    means: FloatArray = (high * 2.0**32 + low) / held.sizes
    return means


def _fits(values: npt.NDArray[Any], held: _Values) -> bool:
    """Return whether no sum of integers can overflow 64 bits."""
    most = max(abs(int(values.min())), abs(int(values.max())))
    return most * int(held.sizes.max()) < 2**63


def _sum(held: _Values, wanted: Aggregate) -> Int64Array:
    values = held.values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    if _fits(values, held):
        return _reduceat(np.add, values, held)
    ends = (held.first + held.sizes).tolist()
    sums = [sum(values[a:b].tolist()) for a, b in zip(held.first.tolist(), ends, strict=True)]
    if not all(-(2**63) <= total < 2**63 for total in sums):
        raise InvalidQuery(
            f"{wanted.name}: a sum of column '{wanted.column}' does not fit 64 bits",
            "sums from -2^63 to 2^63 - 1",
            "take 'mean', or smaller buckets",
        )
    return np.array(sums, np.int64)


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
    with np.errstate(invalid="ignore"):
        between = below + (above - below) * part
    # Without this an infinity minus itself would make a NaN.
    result: FloatArray = np.where((part == 0) | (below == above), below, between)
    return result


def _aggregate_by_arrow(
    values: pa.Array, sizes: Int64Array, wanted: Aggregate, kind: pa.DataType
) -> pa.Array:
    if wanted.function in ("median", "quantile"):
        first = np.cumsum(sizes) - sizes
        floats = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        half = 0.5 if wanted.quantile is None else wanted.quantile
        return pa.array(_quantile(floats, first, sizes, half))
    function = wanted.function
    if function in ("sum", "mean"):
        # Arrow would cut a mean to the column's own digits.
        function, values = "sum", values.cast(pa.decimal256(76, values.type.scale))
    keys = pa.array(np.repeat(np.arange(len(sizes)), sizes))
    grouped = pa.table({"bucket": keys, "value": values}).group_by("bucket", use_threads=False)
    found = grouped.aggregate([("value", function)])[f"value_{function}"].combine_chunks()
    if wanted.function == "mean":
        return pc.divide(found.cast(pa.float64()), pa.array(sizes.astype(np.float64)))
    try:
        return found.cast(kind)
    except pa.ArrowInvalid:
        raise InvalidQuery(
            f"{wanted.name}: a sum of column '{wanted.column}' does not fit {kind}",
            "sums of at most 38 digits",
            "take 'mean', or smaller buckets",
        ) from None


def _time_weighted(runs: Runs, column: str, buckets: Buckets) -> pa.Array:
    """Return the mean of each bucket in which each value holds until the next one."""
    whole = runs.columns[column]
    there = np.flatnonzero(whole.is_valid().to_numpy(zero_copy_only=False))
    values = whole.take(pa.array(there)).cast(pa.float64()).to_numpy(zero_copy_only=False)
    bucket, us = runs.bucket_of_rows()[there], runs.us[there]
    ends = buckets.ends(runs.starts)
    group = runs.codes[bucket]
    # Each value holds to the next one of its group, at most to the end of its bucket.
    until = np.append(us[1:], 0)
    last = np.ones(len(us), bool)
    last[:-1] = bucket[1:] != bucket[:-1]
    until[last] = ends[bucket[last]]
    size, held = len(runs), until - us
    # What holds for no time has no weight, not even a NaN.
    weights = np.where(held > 0, values, 0.0) * held
    weighted = np.bincount(bucket, weights, minlength=size)
    covered = np.bincount(bucket, held, minlength=size)
    # At the start of a bucket the last value before it holds, if the group has one.
    before = np.searchsorted(bucket, np.arange(size)) - 1
    holds = (before >= 0) & (group[before] == runs.codes) if len(us) else np.zeros(size, bool)
    if len(us):
        following = np.minimum(before + 1, len(us) - 1)
        mine = (before + 1 < len(us)) & (bucket[following] == np.arange(size))
        first_us = np.where(mine, us[following], ends)
        head = np.where(holds, first_us - runs.starts, 0)
        with np.errstate(invalid="ignore"):
            weighted += np.where(head > 0, values[before] * head, 0.0)
        covered += head
    with np.errstate(invalid="ignore", divide="ignore"):
        means = weighted / covered
    return pa.array(means, mask=covered == 0)


def _fill(
    runs: Runs,
    wanted: Downsampling,
    columns: list[pa.Array],
    ends_us: tuple[int | None, int | None],
) -> tuple[Int64Array, Int64Array, list[pa.Array]]:
    """Return groups, starts and columns with a row for every bucket."""
    counts = np.bincount(runs.codes)
    first = np.cumsum(counts) - counts
    lows, highs = runs.starts[first], runs.starts[first + counts - 1]
    low, high = ends_us
    # If the span of a range lies before its anchor, its end comes first.
    lows = lows if low is None else np.minimum(lows, low)
    highs = highs if high is None else np.maximum(highs, high)
    every = wanted.buckets.between(int(lows.min()), int(highs.max()))
    begin = np.searchsorted(every, lows, "right") - 1
    end = np.searchsorted(every, highs, "right")
    sizes = np.maximum(end - begin, 0)
    codes = np.repeat(np.arange(len(counts)), sizes)
    offsets = np.cumsum(sizes) - sizes
    starts = every[np.arange(len(codes)) - np.repeat(offsets - begin, sizes)]
    at = np.full(len(codes), -1)
    rows = offsets[runs.codes] + np.searchsorted(every, runs.starts) - begin[runs.codes]
    at[rows] = np.arange(len(runs))
    filled = [
        _fill_column(column, at, codes, starts, aggregate.function, fill=wanted.fill)
        for column, aggregate in zip(columns, wanted.aggregates, strict=True)
    ]
    return codes, starts, filled


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
