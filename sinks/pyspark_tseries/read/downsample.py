"""Answer a query by buckets: each group has a row for each bucket (semantics 32).

A `values` query selects the events. If no original of the result depends on another, files are read
in pieces, and each piece is folded into states of buckets at once, so memory holds only the states.
Other queries count events, and hold whole series in memory. Series are read in groups of limited
size, one after the other; if a group has several series, the states of all are held together.
`read.states` makes the states; `finish` makes aggregates of them and fills buckets without events.
This module also finds the gaps of a query.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    BoolArray,
    FloatArray,
    Int64Array,
    encode_runs,
    encode_values,
    expand_ranges,
    find_number_runs,
    find_runs_of,
    place_values,
    sort_by_code,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.columns import INSTANT, originals_of
from pyspark_tseries.model.downsampling import (
    ALL_EVENTS,
    Aggregate,
    Downsampling,
    result_fields,
    result_type,
)
from pyspark_tseries.model.ranges import Query, Range
from pyspark_tseries.read.scan import (
    Scan,
    Scope,
    ShownRanges,
    run_query,
    sample_series,
    sort_by_sequence,
    take_latest_edits,
)
from pyspark_tseries.read.select import make_plain
from pyspark_tseries.read.states import (
    HALF_BITS,
    LOW_HALF,
    Folding,
    Merger,
    States,
    parts_of,
    round_sums,
    states_of,
    unify,
)

_WEIGHT: Final = 2.0**-60
"""A microsecond in the unit of weights."""

MAX_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
"""Read as many series at once as have files of about this stored size."""


def downsample(scope: Scope, query: Query, downsampling: Downsampling) -> Iterator[pa.Table]:
    """Yield the rows of the result, sorted by group and time, some series at a time.

    Args:
        scope: the requested series.
        query: the query, of `values`.
        downsampling: what to aggregate.

    Raises:
        InvalidQuery: as `run_query` and `aggregate`.
    """
    schema = pa.schema(scope.snapshot.values)
    folding = Folding(schema, downsampling)
    ends = compute_fill_ends(query.view)
    scopes = _divide_series(scope, query) if downsampling.group == "series" else [scope]
    plain = make_plain(query, has_erasures=scope.snapshot.has_erasures)
    for some_series in scopes:
        merger = Merger(folding)
        if plain is None:
            columns = dict.fromkeys([*folding.columns, "sequence", "original_sequence"])
            rows = run_query(some_series, query, columns=list(columns)).table
            merger.add(folding.fold(_number_as_originals(rows)))
        else:
            _fold_plain(Scan(some_series, plain), folding, merger)
        if (states := merger.merged()) is not None:
            yield finish(states, schema, downsampling, ends)


def _number_as_originals(rows: pa.Table) -> pa.Table:
    """Return rows in which an edit has the sequence of its original."""
    sequence = originals_of(rows)
    return rows.set_column(rows.column_names.index("sequence"), "sequence", sequence)


def _fold_plain(scan: Scan, folding: Folding, merger: Merger) -> None:
    """Fold the originals of a plain query as they are read, then the edits in force."""
    ranges = ShownRanges(scan)
    edited = _LatestEdits(_read_edits(scan, ranges, folding.columns))
    is_sorted = not any(file.is_foreign for file in scan.originals)
    # The rows of small files come together, each file's in its order.
    must_sort = not is_sorted or "sequence" in folding.columns
    more = [] if is_sorted and not ranges.has_sequences and not edited else ["sequence"]

    def fold(rows: pa.Table) -> None:
        if more:
            needed = ranges.flag_sequences(rows) & ~edited.flag(rows)
            rows = rows if needed.all() else rows.filter(pa.array(needed))
        merger.add(folding.fold(sort_by_sequence(rows) if must_sort else rows, ranges.times))

    columns = list(dict.fromkeys([*folding.columns, *more]))
    scan.fold(columns, fold, by_runs=not more and not folding.needs_series)
    if edited:
        merger.add(folding.fold(edited.rows()))


class _LatestEdits:
    """The latest edits, sorted by their originals, and which originals were read."""

    def __init__(self, edits: pa.Table) -> None:
        self._edits = edits
        self._sequence = to_int64(edits["original_sequence"])
        self._is_there = np.zeros(len(self._sequence), bool)
        names, begins = find_runs_of(edits["series"])
        ends = np.append(begins[1:], len(self._sequence)).tolist()
        ranges = zip(begins.tolist(), ends, strict=False)
        self._ranges = dict(zip(names.to_pylist(), ranges, strict=False))

    def __bool__(self) -> bool:
        return len(self._sequence) > 0

    def flag(self, rows: pa.Table) -> BoolArray:
        """Flag the originals that have an edit, and remember that they were read."""
        flags = np.zeros(rows.num_rows, bool)
        names, begins = find_runs_of(rows["series"])
        sequence = to_int64(rows["sequence"])
        ends = np.append(begins[1:], rows.num_rows)
        for name, begin, end in zip(names.to_pylist(), begins.tolist(), ends.tolist(), strict=True):
            if name in self._ranges:
                first, last = self._ranges[name]
                originals = self._sequence[first:last]
                nearest = np.minimum(
                    np.searchsorted(originals, sequence[begin:end]), len(originals) - 1
                )
                flags[begin:end] = is_edited = originals[nearest] == sequence[begin:end]
                # Threads set different originals, or the same to the same.
                self._is_there[first + nearest[is_edited]] = True
        return flags

    def rows(self) -> pa.Table:
        """Return the edits of originals that were read: compaction may have removed some."""
        return self._edits.filter(pa.array(self._is_there))


def _read_edits(scan: Scan, ranges: ShownRanges, columns: Sequence[str]) -> pa.Table:
    """Return the latest edit of each original in the ranges, numbered as it and sorted by it."""
    of_original = ["original_sequence", "original_timestamp"]
    edits = scan.read_edits(list(dict.fromkeys([*columns, "sequence", *of_original])))
    names, codes = encode_runs(edits["series"])
    bounds = ranges.of(names.to_pylist())
    sequence, us = (to_int64(edits[name]) for name in of_original)
    is_shown = bounds.flag_sequences(codes, sequence) & bounds.flag_times(codes, us)
    latest = take_latest_edits(edits.filter(pa.array(is_shown)))
    time_column = latest.column_names.index("timestamp")
    latest = latest.set_column(time_column, "timestamp", latest["original_timestamp"])
    return _number_as_originals(latest)


def gaps(scope: Scope, query: Query, longer_than_us: int) -> pa.Table:
    """Return the gaps of each series in the result of a `values` query."""
    tables = []
    for some_series in _divide_series(scope, query):
        result = run_query(some_series, query, columns=("series", "timestamp"))
        tables.append(find_gaps(result.table, longer_than_us))
    return pa.concat_tables([GAP_FIELDS.empty_table(), *tables])


def compute_fill_ends(view: Range) -> tuple[int | None, int | None]:
    """Return the first and last time that a view range names, both inclusive; None for none.

    A span such as `next 1 hour` from a time ends at a time, too. A single time is both: all events
    of a series are on one side of it. The side may differ between series, because the span of a
    range may lie before its anchor.
    """
    ends = [point.value for point in (view.anchor, view.span) if point.kind == "time"]
    if view.anchor.kind == "time" and view.span.kind in ("next_us", "previous_us"):
        sign = 1 if view.span.kind == "next_us" else -1
        ends.append(view.anchor.value + sign * view.span.value)
    return (min(ends), max(ends)) if ends else (None, None)


def _divide_series(scope: Scope, query: Query) -> list[Scope]:
    """Divide the series of a scope into groups with files of a limited size."""
    scan = Scan(scope, query)
    names = scope.names
    size = sum(file.size for file in (*scan.originals, *scan.edits))
    if (
        size <= MAX_BYTES_AT_ONCE
        or scope.keys != ALL_KEYS
        or (names is not None and len(names) < 2)
    ):
        return [scope]
    samples = sample_series(scope.index, size, names)
    groups = split_keys(samples, MAX_BYTES_AT_ONCE, whole_series=True)
    return [dataclasses.replace(scope, keys=group) for group in groups]


def finish(
    states: States,
    schema: pa.Schema,
    downsampling: Downsampling,
    ends_us: tuple[int | None, int | None] = (None, None),
) -> pa.Table:
    """Return a row for each bucket, sorted by group and time.

    Args:
        states: a state of each bucket, sorted by group and start.
        schema: the store's value columns.
        downsampling: what to aggregate.
        ends_us: the first and last time of the view range if these are times, both inclusive;
            filling begins and ends there.

    Raises:
        InvalidQuery: a sum does not fit 64 bits, or a filled range has too many buckets.
    """
    groups, codes = encode_values(states.table["group"].combine_chunks())
    starts = to_int64(states.table["start"])
    kept_values = _KeptValues(states.kept, codes, starts, downsampling.buckets)
    columns = [
        _compute_aggregate(states.table, kept_values, aggregate, result_type(schema, aggregate))
        for aggregate in downsampling.aggregates
    ]
    if downsampling.is_filled and len(starts):
        codes, starts, columns = _fill_buckets(codes, starts, downsampling, columns, ends_us)
    fields = result_fields(schema, downsampling)
    table = [pa.array(starts).cast(INSTANT), *columns]
    if downsampling.group is not None:
        table = [groups.take(pa.array(codes)).cast(fields.field(0).type), *table]
    return pa.Table.from_arrays(table, schema=fields)


_IN_PLACE: Final = ("first", "last")
"""These functions return the value of one event."""


def _compute_aggregate(
    table: pa.Table, kept_values: "_KeptValues", aggregate: Aggregate, data_type: pa.DataType
) -> pa.Array:
    column = _aggregate_column(table, kept_values, aggregate, data_type)
    return column if aggregate.function in _IN_PLACE else unify(column)


def _aggregate_column(
    table: pa.Table, kept_values: "_KeptValues", aggregate: Aggregate, data_type: pa.DataType
) -> pa.Array:
    if aggregate.column == ALL_EVENTS:
        return table["count"].combine_chunks()
    state = states_of(table, aggregate.column)
    if aggregate.function in ("sum", "mean"):
        return _finish_sum(state, aggregate, data_type)
    if aggregate.function == "time_weighted_mean":
        return kept_values.time_weighted(aggregate.column)
    if aggregate.function in ("median", "quantile"):
        return kept_values.quantile(
            aggregate.column, 0.5 if aggregate.quantile is None else aggregate.quantile
        )
    return state[aggregate.function]


def _finish_sum(
    state: Mapping[str, pa.Array], aggregate: Aggregate, data_type: pa.DataType
) -> pa.Array:
    counts = to_int64(state["count"])
    is_empty = counts == 0
    if is_empty.all():
        return pa.nulls(len(counts), data_type)
    if "decimal" in state:
        return _finish_decimals(state["decimal"], counts, aggregate, data_type)
    sums = _finish_integers(state, aggregate) if "high" in state else round_sums(parts_of(state))
    if aggregate.function == "mean":
        sums = sums / np.maximum(counts, 1)
    return pa.array(sums, mask=is_empty)


def _finish_integers(state: Mapping[str, pa.Array], aggregate: Aggregate) -> npt.NDArray[Any]:
    """Return the sums of integers, for a mean as the nearest doubles."""
    high, low = (to_int64(state[half].fill_null(0)) for half in ("high", "low"))
    high, low = high + (low >> HALF_BITS), low & LOW_HALF
    sums = (high << HALF_BITS) + low
    beyond = np.flatnonzero((high < -(2**31)) | (high >= 2**31))
    if aggregate.function == "sum":
        if len(beyond):
            raise InvalidQuery(
                f"{aggregate.name}: a sum of column '{aggregate.column}' does not fit 64 bits",
                "sums from -2^63 to 2^63 - 1",
                "take 'mean', or smaller buckets",
            )
        return sums
    doubles = sums.astype(np.float64)
    doubles[beyond] = [float((int(high[row]) << HALF_BITS) + int(low[row])) for row in beyond]
    return doubles


def _finish_decimals(
    sums: pa.Array, counts: Int64Array, aggregate: Aggregate, data_type: pa.DataType
) -> pa.Array:
    if aggregate.function == "mean":
        # Arrow would cut a mean to the column's own digits.
        return pc.divide(sums.cast(pa.float64()), pa.array(counts.astype(np.float64)))
    try:
        return sums.cast(data_type)
    except pa.ArrowInvalid:
        raise InvalidQuery(
            f"{aggregate.name}: a sum of column '{aggregate.column}' does not fit {data_type}",
            "sums of at most 38 digits",
            "take 'mean', or smaller buckets",
        ) from None


class _KeptValues:
    """The kept values of all buckets, sorted by bucket and time."""

    def __init__(
        self, rows: pa.Table, codes: Int64Array, starts: Int64Array, buckets: Buckets
    ) -> None:
        self._codes = codes
        self._starts = starts
        self._buckets = buckets
        if not rows.num_columns:
            return
        us, bucket = to_int64(rows["time us"]), to_int64(rows["state row"])
        ties = [to_int64(rows["sequence"])]
        if "series" in rows.column_names:
            ties.append(encode_runs(rows["series"])[1])
        order = np.lexsort((*ties, us, bucket))
        self._us, self._bucket = us[order], bucket[order]
        self._rows = rows.take(pa.array(order))

    def _values(self, column: str) -> tuple[FloatArray, Int64Array, Int64Array]:
        """Return the non-null values as doubles, and the bucket and time of each."""
        column_values = self._rows[column].combine_chunks()
        rows = np.flatnonzero(column_values.is_valid().to_numpy(zero_copy_only=False))
        values = column_values.take(pa.array(rows)).cast(pa.float64(), safe=False).to_numpy()
        return values, self._bucket[rows], self._us[rows]

    def quantile(self, column: str, quantile: float) -> pa.Array:
        """Return a quantile of each bucket."""
        values, bucket, _ = self._values(column)
        begins, sizes = find_number_runs(bucket)
        filled = bucket[begins]
        quantiles = np.zeros(len(self._starts))
        quantiles[filled] = _quantile(values, begins, sizes, quantile)
        none = np.ones(len(quantiles), bool)
        none[filled] = False
        return pa.array(quantiles, mask=none)

    def time_weighted(self, column: str) -> pa.Array:
        """Return the mean of each bucket in which each value holds until the next one.

        With buckets of an hour, 10 at 0:15, 20 at 0:45 and 30 at 1:30: in the first bucket 10 holds
        for 30 minutes and 20 for 15, so 45 are `covered`; nothing holds before 0:15. The second one
        has a `head` of 30 minutes in which 20 still holds, then 30 holds for 30: its mean is 25.
        """
        values, bucket, us = self._values(column)
        size = len(self._starts)
        if not len(us):
            return pa.nulls(size, pa.float64())
        ends = self._buckets.ends(self._starts)
        first_values, sizes = find_number_runs(bucket)
        filled = bucket[first_values]
        # Each value holds to the next one of its bucket, and the last one to the bucket's end.
        until = np.append(us[1:], 0)
        until[first_values + sizes - 1] = ends[filled]
        duration = until - us
        weighted: Any = np.bincount(bucket, _weigh_by_duration(values, duration), minlength=size)
        covered = np.bincount(bucket, duration, minlength=size)
        # From a bucket's start to its first value, or to its end if it has none, the last value of
        # an earlier bucket holds, if its group has one. Buckets are sorted by group and start.
        before = np.searchsorted(bucket, np.arange(size)) - 1
        holds = (before >= 0) & (self._codes[bucket[before]] == self._codes)
        first_us = ends.copy()
        first_us[filled] = us[first_values]
        head = np.where(holds, first_us - self._starts, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            weighted += _weigh_by_duration(values[before], head)
            covered += head
            means = weighted / (covered * _WEIGHT)
        return pa.array(means, mask=covered == 0)


def _weigh_by_duration(values: FloatArray, duration_us: Int64Array) -> FloatArray:
    """Return each value times the time that it holds; without time not even a NaN has a weight."""
    # The unit of weights is so long that no product overflows.
    weighed: FloatArray = np.where(duration_us > 0, values, 0.0) * (duration_us * _WEIGHT)
    return weighed


def _quantile(
    values: npt.NDArray[Any], begins: Int64Array, sizes: Int64Array, quantile: float
) -> FloatArray:
    groups = np.repeat(np.arange(len(begins)), sizes)
    ordered = values[np.lexsort((values, groups))].astype(np.float64)
    position = quantile * (sizes - 1)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, sizes - 1)
    return _on_line(ordered[begins + low], ordered[begins + high], position - low)


def _on_line(low: FloatArray, high: FloatArray, fraction: FloatArray) -> FloatArray:
    """Return the values at a fraction, from 0 to below 1, of the way between two values."""
    with np.errstate(invalid="ignore", over="ignore"):
        step = high - low
        # A difference beyond all doubles would make the result an infinity or a NaN.
        between = np.where(
            np.isfinite(step), low + step * fraction, low * (1 - fraction) + high * fraction
        )
    result: FloatArray = np.where((fraction == 0) | (low == high), low, between)
    return result


def _on_line_of_integers(
    low: Int64Array, high: Int64Array, part: Int64Array, whole: Int64Array
) -> Int64Array:
    """Return the same for integers at `part` of `whole`, rounded to the nearest, half to even.

    A double may hold neither the values nor their distance: only what is left of it, behind a
    multiple of twice the whole, is divided as a double.
    """
    falls = high < low
    lower, upper = (np.where(falls, high, low), np.where(falls, low, high))
    # Unsigned, because two integers may be more than 2^63 apart.
    apart = upper.view(np.uint64) - lower.view(np.uint64)
    common = np.gcd(part, whole)
    part_units, units = (part // common).view(np.uint64), (whole // common).view(np.uint64)
    pairs = apart // (2 * units)
    rest = (apart - pairs * 2 * units).astype(np.float64)
    step = pairs * 2 * part_units + np.rint(rest * part_units / units).astype(np.uint64)
    start = low.view(np.uint64)
    result: Int64Array = np.where(falls, start - step, start + step).view(np.int64)
    return result


def _fill_buckets(
    codes: Int64Array,
    starts: Int64Array,
    downsampling: Downsampling,
    columns: list[pa.Array],
    ends_us: tuple[int | None, int | None],
) -> tuple[Int64Array, Int64Array, list[pa.Array]]:
    """Return groups, starts and columns with a row for every bucket.

    Example: group 0 has buckets at 0 and 2, group 1 at 1, so `every` is [0, 1, 2]. In it, groups
    begin at [0, 1] and end before [3, 2]: group 0 gets a new row. The result has the codes
    [0, 0, 0, 1] and starts [0, 1, 2, 1], and `sources`, the rows of the input, are [0, -1, 1, 2].
    """
    counts = np.bincount(codes)
    first_rows = np.cumsum(counts) - counts
    lows, highs = starts[first_rows], starts[first_rows + counts - 1]
    low, high = ends_us
    # If the span of a range lies before its anchor, its end comes first.
    lows = lows if low is None else np.minimum(lows, low)
    highs = highs if high is None else np.maximum(highs, high)
    every = downsampling.buckets.between(int(lows.min()), int(highs.max()))
    # The positions in `every` of each group's first bucket, and after its last one.
    begin = np.searchsorted(every, lows, "right") - 1
    end = np.searchsorted(every, highs, "right")
    sizes = np.maximum(end - begin, 0)
    all_codes = np.repeat(np.arange(len(counts)), sizes)
    all_starts = every[expand_ranges(begin, sizes)]
    # For each row of the result the row that it had before, or -1.
    sources = np.full(len(all_codes), -1)
    first_results = np.cumsum(sizes) - sizes
    rows = first_results[codes] + np.searchsorted(every, starts) - begin[codes]
    sources[rows] = np.arange(len(starts))
    filled = [
        _fill_column(
            column, sources, all_codes, all_starts, aggregate.function, fill=downsampling.fill
        )
        for column, aggregate in zip(columns, downsampling.aggregates, strict=True)
    ]
    return all_codes, all_starts, filled


def _fill_column(
    column: pa.Array,
    sources: Int64Array,
    codes: Int64Array,
    starts: Int64Array,
    function: str,
    fill: Any,
) -> pa.Array:
    is_new = sources < 0
    if function == "count":
        fill = 0
    elif isinstance(fill, str) and fill == "previous":
        return column.take(_previous(sources, codes))
    elif isinstance(fill, str) and fill == "linear":
        return _fill_on_line(column, sources, codes, starts)
    spread = column.take(pa.array(sources, mask=is_new))
    if fill is None or (isinstance(fill, str) and fill == "null"):
        return spread
    value = pa.scalar(fill, column.type)
    return pc.if_else(pa.array(is_new), value, spread)


def _previous(sources: Int64Array, codes: Int64Array) -> pa.Array:
    """Return for each row the last row with an event up to it, of its group.

    Example: sources [-1, 0, -1, -1, 1] and codes [0, 0, 0, 1, 1] give [null, 0, 0, null, 1]: rows
    of the input, and null where the row before is another group's, or there is none.
    """
    rows = np.arange(len(sources))
    nearest = np.maximum.accumulate(np.where(sources >= 0, rows, -1))
    is_known = (nearest >= 0) & (codes[np.maximum(nearest, 0)] == codes)
    return pa.array(sources[np.maximum(nearest, 0)], mask=~is_known)


def _fill_on_line(
    column: pa.Array, sources: Int64Array, codes: Int64Array, starts: Int64Array
) -> pa.Array:
    """Fill new rows on the line between the known values before and after them in their group."""
    rows = np.arange(len(sources))
    spread = column.take(pa.array(sources, mask=sources < 0))
    is_known = spread.is_valid().to_numpy(zero_copy_only=False)
    # The nearest known rows around each row: -1, or the number of rows, if there is none.
    before = np.maximum.accumulate(np.where(is_known, rows, -1))
    after = np.minimum.accumulate(np.where(is_known, rows, len(sources))[::-1])[::-1]
    gap_rows = np.flatnonzero((sources < 0) & (before >= 0) & (after < len(sources)))
    # Rows are sorted by group, so the rows between two of one group are of it as well.
    gap_rows = gap_rows[codes[before[gap_rows]] == codes[after[gap_rows]]]
    low, high = before[gap_rows], after[gap_rows]
    part, whole = starts[gap_rows] - starts[low], starts[high] - starts[low]
    if pa.types.is_integer(column.type):
        numbers = to_int64(spread.cast(pa.int64()).fill_null(0))
        on_line: npt.NDArray[Any] = _on_line_of_integers(numbers[low], numbers[high], part, whole)
    else:
        values = spread.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        on_line = _on_line(values[low], values[high], part / whole)
    filling = pa.array(on_line).cast(column.type, safe=False)
    return pc.coalesce(spread, place_values(filling, gap_rows, len(sources)))


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
    # The times of a series decrease only after an erasure (semantics 18.8).
    falls = (us[1:] < us[:-1]) & (codes[1:] == codes[:-1])
    if falls.any():
        order = sort_by_code(codes, us)
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
