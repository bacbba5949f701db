"""Aggregate the events of each bucket, fill missing buckets, and find gaps (semantics 32).

The rows of a group, a series or the value of a tag, are sorted by time, so the events of a bucket
are neighbours. Each aggregate is one NumPy call on these runs; values that are no numbers, and
decimals, are aggregated by Arrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import Int64Array, encode_runs, sort_by_code, to_int64
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.columns import INSTANT

FUNCTIONS: Final = (
    *("mean", "min", "max", "sum", "count", "first", "last", "median", "time_weighted_mean"),
)
"""The aggregates by name; a number from 0 to 1 is a quantile."""

ALL_EVENTS: Final = "*"
"""The column of a `count` of events."""

FILLS: Final = ("null", "previous", "linear")

_ANY_TYPE: Final = ("count", "first", "last")
_ORDERED: Final = (*_ANY_TYPE, "min", "max")

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A column of the result.

    Attributes:
        name: its name.
        column: the value column that it is of; `*` for `count` of all events.
        function: one of `FUNCTIONS`, or `quantile`.
        quantile: from 0 to 1, both inclusive; None for other functions.
    """

    name: str
    column: str
    function: str
    quantile: float | None = None


@dataclass(frozen=True, slots=True)
class Downsampling:
    """What a query by buckets asks for.

    Attributes:
        buckets: the buckets.
        aggregates: the result's columns after group and `timestamp`.
        tag: the value column to group by; None for the series.
        fill: one of `FILLS`, or a value; None for buckets with events alone.
        is_filled: True if missing buckets get rows.
    """

    buckets: Buckets
    aggregates: tuple[Aggregate, ...]
    tag: str | None = None
    fill: Any = None
    is_filled: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns of events that the aggregation reads."""
        values = [a.column for a in self.aggregates if a.column != ALL_EVENTS]
        tags = [] if self.tag is None else [self.tag]
        return list(dict.fromkeys(["series", "sequence", "timestamp", *tags, *values]))


def parse_aggregates(schema: pa.Schema, given: dict[str, Any]) -> tuple[Aggregate, ...]:
    """Return the aggregates `name=function` and `name=(column, function)` of a store's columns.

    Raises:
        InvalidQuery: an unknown column or function, or one that the column's type does not have.
    """
    if not given:
        raise InvalidQuery(
            "no aggregate is named", "such as celsius='mean'", "name the columns of the result"
        )
    return tuple(_parse_aggregate(schema, name, what) for name, what in given.items())


def _parse_aggregate(schema: pa.Schema, name: str, given: Any) -> Aggregate:
    column, function = given if isinstance(given, tuple) and len(given) == 2 else (name, given)
    quantile = None
    if isinstance(function, float | int) and not isinstance(function, bool):
        if not 0 <= function <= 1:
            raise InvalidQuery(
                f"{name}: {function!r} is not a quantile", "from 0 to 1", "correct it"
            )
        function, quantile = "quantile", float(function)
    elif function not in FUNCTIONS:
        raise InvalidQuery(
            f"{name}: {function!r} is not an aggregate",
            f"{', '.join(map(repr, FUNCTIONS))}, or a quantile from 0 to 1",
            "name one of these",
        )
    if name in ("series", "timestamp"):
        raise InvalidQuery(f"the result has a column '{name}' anyway", "another name", "rename it")
    if column == ALL_EVENTS and function == "count":
        return Aggregate(name, column, function)
    if column not in schema.names:
        raise InvalidQuery(
            f"{name}: the store has no value column {column!r}",
            ", ".join(schema.names) or "events without values",
            f"write {name}=('COLUMN', {function!r}), or ('*', 'count') for the number of events",
        )
    kind = schema.field(column).type
    if not _has_function(kind, function):
        raise InvalidQuery(
            f"{name}: column '{column}' ({kind}) has no {function}",
            ", ".join(f for f in FUNCTIONS if _has_function(kind, f)),
            "take one of these, or another column",
        )
    return Aggregate(name, column, function, quantile)


def _has_function(kind: pa.DataType, function: str) -> bool:
    if function in _ANY_TYPE:
        return True
    if function in ("min", "max"):
        return not pa.types.is_nested(kind)
    return _is_number(kind) or pa.types.is_decimal(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def parse_fill(wanted: Any, schema: pa.Schema, aggregates: Sequence[Aggregate]) -> None:
    """Check a fill against the result's columns.

    Raises:
        InvalidQuery: a column has no values on a line, or cannot hold the value.
    """
    for aggregate in aggregates:
        if aggregate.function == "count":
            continue
        kind = result_type(schema, aggregate)
        if wanted == "linear" and not _is_number(kind):
            raise InvalidQuery(
                f"column '{aggregate.name}' ({kind}) has no values on a line",
                "'null', 'previous', or a value",
                "take another fill, or aggregate numbers alone",
            )
        if not (isinstance(wanted, str) and wanted in FILLS):
            try:
                pa.array([wanted], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise InvalidQuery(
                    f"column '{aggregate.name}' ({kind}) cannot hold the fill {wanted!r}",
                    f"{', '.join(map(repr, FILLS))}, or a value of its type",
                    "correct it",
                ) from None


def result_type(schema: pa.Schema, aggregate: Aggregate) -> pa.DataType:
    """Return the type of an aggregate's column."""
    if aggregate.function == "count":
        return pa.int64()
    kind = schema.field(aggregate.column).type
    if aggregate.function in ("first", "last", "min", "max"):
        return kind
    if aggregate.function == "sum":
        if pa.types.is_decimal(kind):
            return pa.decimal128(38, kind.scale)
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()
    return pa.float64()


def result_fields(schema: pa.Schema, wanted: Downsampling) -> pa.Schema:
    """Return the columns of the result: the group, `timestamp`, and the aggregates."""
    group = pa.field("series", pa.string()) if wanted.tag is None else schema.field(wanted.tag)
    fields = [pa.field(a.name, result_type(schema, a)) for a in wanted.aggregates]
    return pa.schema([group, pa.field("timestamp", INSTANT), *fields])


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
    runs = _Runs(events, wanted)
    columns = [_aggregate_column(runs, a, schema) for a in wanted.aggregates]
    codes, starts = runs.codes, runs.starts
    if wanted.is_filled and len(starts):
        codes, starts, columns = _fill(runs, wanted, columns, ends_us)
    fields = result_fields(schema, wanted)
    groups = runs.groups.take(pa.array(codes)).cast(fields.field(0).type)
    table = [groups, pa.array(starts).cast(INSTANT), *columns]
    return pa.Table.from_arrays(table, schema=fields)


class _Runs:
    """The events sorted by group and time; `first` is the row at which each bucket begins."""

    def __init__(self, events: pa.Table, wanted: Downsampling) -> None:
        self.wanted = wanted
        us = to_int64(events["timestamp"])
        if wanted.tag is None:
            self.groups, codes = encode_runs(events["series"])
        else:
            self.groups, codes, order = _sort_by_tag(events, wanted.tag, us)
            events, us, codes = events.take(pa.array(order)), us[order], codes[order]
        self.events, self.us, self._row_codes = events, us, codes
        begins = wanted.buckets.starts(us)
        changes = np.ones(len(us), bool)
        changes[1:] = (begins[1:] != begins[:-1]) | (codes[1:] != codes[:-1])
        self.first = np.flatnonzero(changes)
        self.sizes = np.diff(self.first, append=len(us))
        self.codes, self.starts = codes[self.first], begins[self.first]
        self._numbers: dict[str, tuple[Any, Int64Array, Int64Array]] = {}

    def __len__(self) -> int:
        return len(self.first)

    def bucket_of_rows(self) -> Int64Array:
        """Return the position of each row's bucket."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def valid(self, column: str) -> tuple[pa.Array, Int64Array, Int64Array]:
        """Return the values that are not null, where each bucket's begin, and those buckets."""
        if column not in self._numbers:
            values = self.events[column].combine_chunks()
            if not values.null_count:
                self._numbers[column] = values, self.first, np.arange(len(self))
            else:
                there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
                buckets = self.bucket_of_rows()[there]
                first = np.flatnonzero(np.diff(buckets, prepend=-1))
                self._numbers[column] = values.take(pa.array(there)), first, buckets[first]
        return self._numbers[column]


def _sort_by_tag(
    events: pa.Table, tag: str, us: Int64Array
) -> tuple[pa.Array, Int64Array, Int64Array]:
    column = events[tag].combine_chunks()
    encoded = column.dictionary_encode(null_encoding="encode")
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy(zero_copy_only=False)]
    groups = encoded.dictionary.take(pa.array(order))
    # By time, then series: the rows of a series are in the order of their sequences.
    by_time = sort_by_code(codes, us)
    return groups, codes, by_time


def _aggregate_column(runs: _Runs, wanted: Aggregate, schema: pa.Schema) -> pa.Array:
    if wanted.column == ALL_EVENTS:
        return pa.array(runs.sizes.astype(np.int64))
    values, first, buckets = runs.valid(wanted.column)
    kind = result_type(schema, wanted)
    sizes = np.diff(first, append=len(values))
    if wanted.function == "count":
        counts = np.zeros(len(runs), np.int64)
        counts[buckets] = sizes
        return pa.array(counts)
    if wanted.function in ("first", "last"):
        at = first if wanted.function == "first" else first + sizes - 1
        return _spread(values.take(pa.array(at)), buckets, len(runs))
    if wanted.function == "time_weighted_mean":
        return _time_weighted(runs, wanted.column)
    if not _is_number(values.type):
        found = _aggregate_by_arrow(values, sizes, wanted, kind)
    elif not len(first):
        found = pa.nulls(0, kind)
    else:
        found = pa.array(_reduce(values, first, sizes, wanted)).cast(kind)
    return _spread(found, buckets, len(runs))


def _spread(found: pa.Array, buckets: Int64Array, count: int) -> pa.Array:
    """Return `found` at the positions `buckets`, nulls elsewhere."""
    if len(buckets) == count:
        return found
    at = np.full(count, -1)
    at[buckets] = np.arange(len(buckets))
    return found.take(pa.array(at, mask=at < 0))


def _reduce(
    column: pa.Array, first: Int64Array, sizes: Int64Array, wanted: Aggregate
) -> npt.NDArray[Any]:
    values = column.to_numpy(zero_copy_only=False)
    if wanted.function == "min":
        # NaN is above all numbers, so a minimum passes over it.
        reduce = np.fmin if values.dtype.kind == "f" else np.minimum
        return np.asarray(reduce.reduceat(values, first))
    if wanted.function == "max":
        return np.asarray(np.maximum.reduceat(values, first))
    if wanted.function == "sum":
        return _sum(values, first, wanted) if values.dtype.kind == "i" else _add(values, first)
    if wanted.function == "mean":
        return _add(values, first) / sizes
    return _quantile(values, first, sizes, 0.5 if wanted.quantile is None else wanted.quantile)


def _add(values: npt.NDArray[Any], first: Int64Array) -> FloatArray:
    if values.dtype.kind == "i":
        exact = _add_exactly(values, first)
        if exact is not None:
            return exact.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.add.reduceat(values.astype(np.float64, copy=False), first))


def _add_exactly(values: npt.NDArray[Any], first: Int64Array) -> Int64Array | None:
    """Return the sums of integers; None if one may not fit 64 bits."""
    most = max(abs(int(values.min())), abs(int(values.max())))
    if most * int(np.diff(first, append=len(values)).max()) < 2**63:
        return np.asarray(np.add.reduceat(values.astype(np.int64, copy=False), first))
    return None


def _sum(values: npt.NDArray[Any], first: Int64Array, wanted: Aggregate) -> Int64Array:
    exact = _add_exactly(values, first)
    if exact is not None:
        return exact
    ends = np.append(first[1:], len(values))
    sums = [sum(values[a:b].tolist()) for a, b in zip(first.tolist(), ends.tolist(), strict=True)]
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


def _time_weighted(runs: _Runs, column: str) -> pa.Array:
    """Return the mean of each bucket in which each value holds until the next one."""
    whole = runs.events[column].combine_chunks()
    there = np.flatnonzero(whole.is_valid().to_numpy(zero_copy_only=False))
    values = whole.take(pa.array(there)).cast(pa.float64()).to_numpy(zero_copy_only=False)
    bucket, us = runs.bucket_of_rows()[there], runs.us[there]
    ends = runs.wanted.buckets.ends(runs.starts)
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
    runs: _Runs,
    wanted: Downsampling,
    columns: list[pa.Array],
    ends_us: tuple[int | None, int | None],
) -> tuple[Int64Array, Int64Array, list[pa.Array]]:
    """Return groups, starts and columns with a row for every bucket."""
    counts = np.bincount(runs.codes)
    first = np.cumsum(counts) - counts
    lows, highs = runs.starts[first], runs.starts[first + counts - 1]
    low, high = ends_us
    lows = lows if low is None else np.full_like(lows, low)
    highs = highs if high is None else np.full_like(highs, high)
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
    rows = np.flatnonzero((codes[1:] == codes[:-1]) & (np.diff(us) > longer_than_us))
    start, end = us[rows], us[rows + 1]
    columns = [
        names.take(pa.array(codes[rows])),
        pa.array(start).cast(INSTANT),
        pa.array(end).cast(INSTANT),
        pa.array(end - start).cast(pa.duration("us")),
    ]
    return pa.Table.from_arrays(columns, schema=GAP_FIELDS)
