"""Answer a query by buckets: each series, or tag, has a row for each bucket (semantics 32).

The events are those of a `values` query. Where each original decides for itself whether it is in
the result, files are read in pieces, and each piece is folded to states of buckets as it is read,
so memory holds the states. Other queries count events, and hold whole series. Series are asked in
groups of limited size, one after the other; values of a tag may be in all series, so their states
are held together. `read.states` makes the states; `finish` makes aggregates of them and fills
buckets without events. The gaps of a query are found here, too.
"""

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
    Int64Array,
    KeyRange,
    encode_runs,
    find_runs_of,
    sort_by_code,
    split_keys,
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
from pyspark_tseries.model.ranges import Query, Range
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.read.scan import (
    Ranges,
    Scan,
    run_query,
    sample_series,
    sort_rows,
    take_latest_edits,
)
from pyspark_tseries.read.select import make_plain
from pyspark_tseries.read.states import (
    FloatArray,
    Folding,
    Merger,
    States,
    encode_groups,
    parts_of,
    round_sums,
    unify,
)
from pyspark_tseries.storage.snapshot import Snapshot

_WEIGHT: Final = 2.0**-60
"""A microsecond in the unit of weights."""

MAX_GROUP_BYTES: Final = 64 * 1024 * 1024
"""The stored size of the files of about as many series as are asked at once."""


def check_values(query: Query, what: str) -> None:
    """Refuse a query of edits, which has no buckets and gaps.

    Raises:
        InvalidQuery: the query is none of `values`.
    """
    if query.kind != "values":
        raise InvalidQuery(
            f"a query of {query.kind} has no {what}",
            "queries of 'values': originals, each replaced by its latest edit",
            "begin with for_values(), which is the default",
        )


def downsample(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    wanted: Downsampling,
    names: Sequence[str] | None = None,
    key_range: KeyRange = ALL_KEYS,
) -> Iterator[pa.Table]:
    """Yield the rows of the result, sorted by group and time, some series at a time.

    Args:
        snapshot: the store.
        head: the snapshot's index, at least of `names`.
        query: the query, of `values`.
        wanted: what to aggregate.
        names: the requested series; None for all. Unknown ones have no rows.
        key_range: what to answer for; it splits no series.

    Raises:
        InvalidQuery: as `run_query` and `aggregate`.
    """
    schema = pa.schema(snapshot.values)
    folding = Folding(schema, wanted)
    ends = find_fill_ends(query.view)
    groups = [key_range]
    if wanted.tag is None:
        groups = _divide_series(snapshot, head, query, names, key_range)
    plain = make_plain(query, has_erasures=snapshot.has_erasures)
    for group in groups:
        merger = Merger(folding)
        if plain is None:
            merger.add(folding.fold(_run_query(snapshot, head, query, names, group, folding)))
        else:
            _fold_plain(Scan(snapshot, head, plain, names, group), snapshot, head, folding, merger)
        if (states := merger.merged()) is not None:
            yield finish(states, schema, wanted, ends)


def _run_query(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    names: Sequence[str] | None,
    key_range: KeyRange,
    folding: Folding,
) -> pa.Table:
    """Return the events of a query, each at the sequence of its original."""
    columns = dict.fromkeys([*folding.columns, "sequence", "original_sequence"])
    rows = run_query(snapshot, head, query, names, key_range, columns=list(columns)).table
    return _place_at_originals(rows)


def _place_at_originals(rows: pa.Table) -> pa.Table:
    sequence = pc.coalesce(rows["original_sequence"], rows["sequence"])
    return rows.set_column(rows.column_names.index("sequence"), "sequence", sequence)


def _fold_plain(
    scan: Scan, snapshot: Snapshot, head: SeriesIndex, folding: Folding, merger: Merger
) -> None:
    """Fold the originals of a plain query as they are read, and the edits in force."""
    ranges = Ranges(scan, snapshot.settings.retained, head)
    edited = _LatestEdits(_find_edits(scan, ranges, folding.columns))
    is_sorted = not any(file.is_foreign for file in scan.originals)
    more = [] if is_sorted and not ranges.has_sequences and not edited else ["sequence"]

    def fold(rows: pa.Table) -> None:
        if more:
            needed = ranges.flag_sequences(rows) & ~edited.flag(rows)
            rows = rows if needed.all() else rows.filter(pa.array(needed))
        merger.add(folding.fold(rows if is_sorted else sort_rows(rows), ranges.times))

    columns = list(dict.fromkeys([*folding.columns, *more]))
    scan.fold(columns, fold, by_runs=not more and not folding.needs_series)
    if edited:
        merger.add(folding.fold(edited.rows()))


class _LatestEdits:
    """The latest edits, sorted by their originals, and which of these are there."""

    def __init__(self, edits: pa.Table) -> None:
        self._edits = edits
        self._sequence = to_int64(edits["original_sequence"])
        self._is_there = np.zeros(len(self._sequence), bool)
        names, begins = find_runs_of(edits["series"])
        ends = np.append(begins[1:], len(self._sequence)).tolist()
        places = zip(begins.tolist(), ends, strict=False)
        self._places = dict(zip(names.to_pylist(), places, strict=False))

    def __bool__(self) -> bool:
        return len(self._sequence) > 0

    def flag(self, rows: pa.Table) -> BoolArray:
        """Flag the originals that have an edit, and remember that they are there."""
        flags = np.zeros(rows.num_rows, bool)
        names, begins = find_runs_of(rows["series"])
        sequence, ends = to_int64(rows["sequence"]), np.append(begins[1:], rows.num_rows)
        for name, begin, end in zip(names.to_pylist(), begins.tolist(), ends.tolist(), strict=True):
            if name in self._places:
                first, last = self._places[name]
                mine = self._sequence[first:last]
                at = np.minimum(np.searchsorted(mine, sequence[begin:end]), len(mine) - 1)
                flags[begin:end] = is_edited = mine[at] == sequence[begin:end]
                # Threads set different originals, or the same to the same.
                self._is_there[first + at[is_edited]] = True
        return flags

    def rows(self) -> pa.Table:
        """Return the edits whose originals are there: compaction may have removed some."""
        return self._edits.filter(pa.array(self._is_there))


def _find_edits(scan: Scan, ranges: Ranges, columns: Sequence[str]) -> pa.Table:
    """Return the latest edit of each original that is shown, at its place; sorted by it."""
    of_original = ["original_sequence", "original_timestamp"]
    edits = scan.read_edits(list(dict.fromkeys([*columns, "sequence", *of_original])))
    names, codes = encode_runs(edits["series"])
    bounds = ranges.of(names.to_pylist())
    sequence, us = (to_int64(edits[name]) for name in of_original)
    shown = (sequence >= bounds.min_sequence[codes]) & (sequence <= bounds.max_sequence[codes])
    shown &= (us >= bounds.min_us[codes]) & (us <= bounds.max_us[codes])
    latest = take_latest_edits(edits.filter(pa.array(shown)))
    place = latest.column_names.index("timestamp")
    latest = latest.set_column(place, "timestamp", latest["original_timestamp"])
    return _place_at_originals(latest)


def gaps(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    longer_than_us: int,
    names: Sequence[str] | None = None,
) -> pa.Table:
    """Return the gaps of each series in the result of a `values` query."""
    tables = []
    for group in _divide_series(snapshot, head, query, names, ALL_KEYS):
        found = run_query(snapshot, head, query, names, group, columns=("series", "timestamp"))
        tables.append(find_gaps(found.table, longer_than_us))
    return pa.concat_tables([GAP_FIELDS.empty_table(), *tables])


def find_fill_ends(view: Range) -> tuple[int | None, int | None]:
    """Return the first and last time that a view range names, both inclusive; None for none.

    A single time is both: all events lie on one side of it, which may be another one in each
    series, because the span of a range may lie before its anchor.
    """
    ends = [point.value for point in (view.anchor, view.span) if point.kind == "time"]
    return (min(ends), max(ends)) if ends else (None, None)


def _divide_series(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    names: Sequence[str] | None,
    key_range: KeyRange,
) -> list[KeyRange]:
    """Divide the series of a key range into groups whose files have a limited size."""
    scan = Scan(snapshot, head, query, names, key_range)
    size = sum(file.size for file in (*scan.originals, *scan.edits))
    if size <= MAX_GROUP_BYTES or key_range != ALL_KEYS or (names is not None and len(names) < 2):
        return [key_range]
    samples = sample_series(head, size, names)
    return list(split_keys(samples, MAX_GROUP_BYTES, whole_series=True))


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
    kept = _KeptValues(states.kept, codes, starts, wanted.buckets)
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


def _aggregate(
    table: pa.Table, kept: "_KeptValues", wanted: Aggregate, kind: pa.DataType
) -> pa.Array:
    column = _aggregate_column(table, kept, wanted, kind)
    return column if wanted.function in _IN_PLACE else unify(column)


def _aggregate_column(
    table: pa.Table, kept: "_KeptValues", wanted: Aggregate, kind: pa.DataType
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


class _KeptValues:
    """The values that were kept of all buckets, sorted by bucket and time."""

    def __init__(
        self, rows: pa.Table, codes: Int64Array, starts: Int64Array, buckets: Buckets
    ) -> None:
        self._codes, self._starts, self._buckets = codes, starts, buckets
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
    return _on_line(ordered[first + low], ordered[first + high], place - low)


def _on_line(low: FloatArray, high: FloatArray, part: FloatArray) -> FloatArray:
    """Return the values at a part of the way, from 0 to below 1, between two values."""
    with np.errstate(invalid="ignore", over="ignore"):
        step = high - low
        # A difference that is no number anymore would make an infinity, or a NaN, of the rest.
        between = np.where(np.isfinite(step), low + step * part, low * (1 - part) + high * part)
    result: FloatArray = np.where((part == 0) | (low == high), low, between)
    return result


def _on_line_of_integers(low: Int64Array, high: Int64Array, part: FloatArray) -> Int64Array:
    """Return the same, rounded to the nearest, of integers that a double may not hold."""
    falls = high < low
    least, most = (np.where(falls, high, low), np.where(falls, low, high))
    # Unsigned, because two integers may be more than 2^63 apart.
    apart = most.view(np.uint64) - least.view(np.uint64)
    step = np.rint(apart * part).astype(np.uint64)
    start = low.view(np.uint64)
    result: Int64Array = np.where(falls, start - step, start + step).view(np.int64)
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
    low, high = before[mine], after[mine]
    part = (starts[mine] - starts[low]) / (starts[high] - starts[low])
    if pa.types.is_integer(column.type):
        whole = to_int64(spread.cast(pa.int64()).fill_null(0))
        drawn: npt.NDArray[Any] = _on_line_of_integers(whole[low], whole[high], part)
    else:
        values = spread.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        drawn = _on_line(values[low], values[high], part)
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
