"""Fold events to *states* of buckets, and merge states (semantics 32.2).

A state holds what an aggregate needs to know of some events of a bucket: their number, the exact
sum, the lowest value. (The states of series in `model.series_index` are another thing.) Several
threads read events in pieces, fold each piece into states, and merge states of the same bucket. So
memory holds a few pieces instead of all events. States merge in any order: sums are rounded once,
at the end, and a first or last value is stored with its time, series and sequence. So no result
depends on how events lie in files and pieces.

Doubles are added exactly. A sum is held as a few doubles, its *parts*, which add up to it exactly.
To add the values of many runs at once, each value is rounded to a multiple of a power of two. The
power is so large that no sum of these multiples needs more than 53 bits, so NumPy's additions are
exact. The remainders are added in the same way, until they are all zero: two or three rounds.

The median, quantiles and the time-weighted mean need the values themselves, so states keep them.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import MAX_WIDE_DIGITS
from pyspark_timestream.core.instants import DAY_US
from pyspark_tseries.model.arrays import (
    UNTIMED,
    FloatArray,
    Int64Array,
    encode_values,
    expand_ranges,
    find_number_runs,
    find_runs_of,
    place_values,
    reduce_runs,
    sort_by_code,
    to_array,
    to_int64,
)
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.downsampling import ALL_EVENTS, Downsampling, is_number

MAX_PENDING_STATES: Final = 500_000
"""Merge states when there are more than this many."""

_NEEDS: Final = {
    "count": ("count",),
    "sum": ("count", "sum"),
    "mean": ("count", "sum"),
    "median": ("values",),
    "quantile": ("values",),
    "time_weighted_mean": ("values",),
}
"""The states that a function needs; other functions need the state of their own name."""

_IN_ORDER: Final = ("first", "last", "time_weighted_mean")
"""These functions depend on the order of events with equal timestamps."""

HALF_BITS: Final = 32
LOW_HALF: Final = (1 << HALF_BITS) - 1
"""A sum of integers is held in two halves, so that neither overflows."""

_NO_NUMBER: Final = "none"
_HUGE: Final = "huge "
_LEAST_HUGE: Final = 2.0**900
_HUGE_SCALE: Final = 256
"""Huge values are divided by two to this power, so that no sum of them overflows."""

_MANTISSA_BITS: Final = 53

_ROWS_PER_SEARCH: Final = 250
_BUCKETS_PER_SEARCH: Final = 0.25
"""Find buckets by searching times if a series has at least this many neighbouring rows, and a row
has at most this many buckets."""

Parts = Mapping[str, FloatArray]
"""The parts of sums, by name: numbered ones, `huge` ones, and `none` for NaN and infinities."""

Limits = Callable[[pa.Array], tuple[Int64Array, Int64Array]]
"""Series -> the first and last requested time of each, both inclusive."""


@dataclass(frozen=True, slots=True)
class States:
    """States in rows, each of some events of a bucket; a bucket may have several.

    Attributes:
        table: `group`, `start`, `count`, and for each value column its states, in columns named
            `<column> <state>`.
        kept: the kept values: `state row`, their row in `table`; `time us`, `sequence`, and value
            columns. The names of value columns have no spaces.
    """

    table: pa.Table
    kept: pa.Table


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of neighbouring rows of one series, group and bucket; other rows may lie between."""

    first: Int64Array
    sizes: Int64Array

    def __len__(self) -> int:
        return len(self.first)

    @property
    def ends(self) -> Int64Array:
        """The row after each run."""
        return self.first + self.sizes

    def rows(self) -> Int64Array:
        """Return the positions of all rows of the runs."""
        return expand_ranges(self.first, self.sizes)


@dataclass(frozen=True, slots=True)
class _PresentValues:
    """The values of a column that are not null, by run; `with_value` are the runs that have any.

    `rows` has the row of each value; None if no value is null, so value i is in row i.
    """

    values: pa.Array
    runs: Runs
    with_value: Int64Array
    rows: Int64Array | None = None

    def spread(self, column: pa.Array, size: int) -> pa.Array:
        """Extend `column` from the runs with a value to all `size` runs; the others get null."""
        if len(self.with_value) == size:
            return column
        return place_values(column, self.with_value, size)


def _drop_nulls(values: pa.Array, runs: Runs) -> _PresentValues:
    if not values.null_count:
        return _PresentValues(values, runs, np.arange(len(runs)))
    rows = runs.rows()
    rows = rows[values.is_valid().to_numpy(zero_copy_only=False)[rows]]
    run = np.searchsorted(runs.first, rows, "right") - 1
    present, begins = np.unique(run, return_index=True)
    sizes = np.diff(begins, append=len(rows))
    return _PresentValues(values.take(pa.array(rows)), Runs(begins, sizes), present, rows)


class Folding:
    """Folds events into the states that a downsampling needs, and merges states."""

    def __init__(self, schema: pa.Schema, downsampling: Downsampling) -> None:
        self._schema = schema
        self._downsampling = downsampling
        self._states: dict[str, set[str]] = {}
        for aggregate in downsampling.aggregates:
            if aggregate.column != ALL_EVENTS:
                needs = _NEEDS.get(aggregate.function, (aggregate.function,))
                self._states.setdefault(aggregate.column, set()).update(needs)
        functions = {aggregate.function for aggregate in downsampling.aggregates}
        self._in_order = not functions.isdisjoint(_IN_ORDER)
        self._kept = [name for name, states in self._states.items() if "values" in states]
        self._tag = None if downsampling.group == "series" else downsampling.group
        # A bucket of a tag, or of all series together, may have several series.
        self._ties = [] if downsampling.group == "series" else ["series"]

    @property
    def columns(self) -> list[str]:
        """The stored columns of events that `fold` needs."""
        return [*self._downsampling.columns, *(["sequence"] if self._in_order else [])]

    @property
    def needs_series(self) -> bool:
        """Whether `fold` needs the series of each event, not just of each run."""
        return self._tag is not None or bool(self._ties and self._kept)

    def fold(self, events: pa.Table, limits: Limits | None = None) -> States:
        """Return the states of some events.

        Neighbouring rows of a series are in the order of their sequences.

        Args:
            events: the originals, with current values and `columns`.
            limits: leave out events at other times; None: none.
        """
        names, begins = find_runs_of(events["series"])
        tag = None if self._tag is None else unify(to_array(events[self._tag]))
        if tag is not None:
            changes = np.union1d(begins, _list_run_starts(tag))
            names = names.take(pa.array(np.searchsorted(begins, changes, "right") - 1))
            begins = changes
        us = to_int64(to_array(events["timestamp"]))
        requested = None if limits is None else limits(names)
        asked = us, begins, self._downsampling.buckets, requested
        segment, starts, runs = _search_runs(*asked) or _walk_runs(*asked)
        series = names.take(pa.array(segment))
        group = series if tag is None else tag.take(pa.array(runs.first))
        if self._downsampling.group is None:
            group = pa.repeat("", len(runs))
        columns = {"group": group, "start": pa.array(starts), "count": pa.array(runs.sizes)}
        sequence = to_int64(to_array(events["sequence"])) if self._in_order else us
        for name, states in self._states.items():
            values = _drop_nulls(to_array(events[name]), runs)
            folded = _fold_values(values, states, series, us, sequence)
            columns |= {f"{name} {state}": column for state, column in folded.items()}
        return States(pa.table(columns), self._keep(events, runs, us, sequence))

    def _keep(self, events: pa.Table, runs: Runs, us: Int64Array, sequence: Int64Array) -> pa.Table:
        if not self._kept:
            return pa.table({})
        rows = runs.rows()
        columns = events.select([*self._ties, *self._kept]).take(pa.array(rows))
        state = np.repeat(np.arange(len(runs)), runs.sizes)
        columns_kept: dict[str, Any] = {
            "state row": state,
            "time us": us[rows],
            "sequence": sequence[rows],
        }
        for name in columns.column_names:
            is_text = name == "series" and not pa.types.is_dictionary(columns[name].type)
            columns_kept[name] = columns[name].dictionary_encode() if is_text else columns[name]
        return pa.table(columns_kept)

    def merge(self, states_to_merge: Sequence[States]) -> States:
        """Return one state for each bucket, sorted by group and start."""
        table = pa.concat_tables(
            [states.table for states in states_to_merge], promote_options="default"
        )
        kept_values = self._renumber(states_to_merge)
        _, codes = encode_values(to_array(table["group"]))
        starts = to_int64(table["start"])
        order = sort_by_code(codes, starts)
        codes, starts = codes[order], starts[order]
        first_rows, sizes = find_number_runs(codes, starts)
        table = table.take(pa.array(order)).combine_chunks()
        if len(first_rows) < len(order):
            table = self._merge_rows(table, Runs(first_rows, sizes))
        if self._kept:
            merged_row = np.empty(len(order), np.int64)
            merged_row[order] = np.searchsorted(first_rows, np.arange(len(order)), "right") - 1
            state = pa.array(merged_row[to_int64(kept_values["state row"])])
            kept_values = kept_values.set_column(0, "state row", state)
        return States(table, kept_values)

    def _renumber(self, states_to_merge: Sequence[States]) -> pa.Table:
        before = 0
        tables = []
        for states in states_to_merge:
            if self._kept:
                state = pa.array(to_int64(states.kept["state row"]) + before)
                tables.append(states.kept.set_column(0, "state row", state))
            before += states.table.num_rows
        return pa.concat_tables(tables) if tables else pa.table({})

    def _merge_rows(self, table: pa.Table, runs: Runs) -> pa.Table:
        at_first = pa.array(runs.first)
        columns = {name: table[name].take(at_first) for name in ("group", "start")}
        columns["count"] = pa.array(_add(table["count"], runs))
        for name, states in self._states.items():
            merged = _merge_values(states_of(table, name), states, runs)
            columns |= {f"{name} {state}": column for state, column in merged.items()}
        return pa.table(columns)


class Merger:
    """States that threads add; it merges them when they become many."""

    def __init__(self, folding: Folding) -> None:
        self._folding = folding
        self._pending: list[States] = []
        self._rows = 0
        self._lock = threading.Lock()

    def add(self, states: States) -> None:
        """Add states, in any order."""
        with self._lock:
            self._pending.append(states)
            self._rows += states.table.num_rows
            if self._rows > MAX_PENDING_STATES:
                self._pending = [self._folding.merge(self._pending)]
                # Merge again only when there are twice as many; else each piece would merge all.
                self._rows = min(self._pending[0].table.num_rows, MAX_PENDING_STATES // 2)

    def merged(self) -> States | None:
        """Return one state for each bucket, sorted by group and start; None if there is none."""
        return self._folding.merge(self._pending) if self._pending else None


def _search_runs(
    us: Int64Array,
    begins: Int64Array,
    buckets: Buckets,
    requested: tuple[Int64Array, Int64Array] | None,
) -> tuple[Int64Array, Int64Array, Runs] | None:
    """Return the segment, the bucket's start and the rows of each run, by searching their times.

    Return None if there are many short segments, or if the times of one fall, as they may where an
    event is erased (semantics 18.8).

    Args:
        us: the time of each row.
        begins: the row where each segment begins; a segment is a series, for example.
        buckets: the buckets.
        requested: the first and the last requested time of each segment; None for all times.
    """
    if not len(us) or len(us) < _ROWS_PER_SEARCH * len(begins):
        return None
    falls = us[1:] < us[:-1]
    falls[begins[1:] - 1] = False  # From one segment to the next, times may fall.
    if falls.any():
        return None
    ends = np.append(begins[1:], len(us))
    lows, highs = us[begins], us[ends - 1]
    if requested is not None:
        lows, highs = np.maximum(lows, requested[0]), np.minimum(highs, requested[1])
    is_requested = lows <= highs
    if not is_requested.any():
        none = np.empty(0, np.int64)
        return none, none, Runs(none, none)
    first_us, last_us = int(lows[is_requested].min()), int(highs[is_requested].max())
    least_width = buckets.us or buckets.months * 28 * DAY_US
    if (last_us - first_us) // least_width * len(begins) > _BUCKETS_PER_SEARCH * len(us):
        return None
    starts = buckets.between(first_us, last_us)
    cuts = np.append(starts, last_us + 1)
    segments = zip(*(column.tolist() for column in (begins, ends, lows, highs)), strict=True)
    # By segment and bucket, the bucket's first row; the last column has the end of the last one.
    # The cuts are clipped to the requested times: a bucket outside them has two equal cuts, so no
    # rows. If a segment has no requested time, low is above high, and all its cuts are equal.
    first_rows = np.stack(
        [
            begin + us[begin:end].searchsorted(np.clip(cuts, low_us, high_us + 1))
            for begin, end, low_us, high_us in segments
        ]
    )
    sizes = np.diff(first_rows, axis=1)
    segment, bucket = np.nonzero(sizes > 0)
    return segment, starts[bucket], Runs(first_rows[segment, bucket], sizes[segment, bucket])


def _walk_runs(
    us: Int64Array,
    begins: Int64Array,
    buckets: Buckets,
    requested: tuple[Int64Array, Int64Array] | None,
) -> tuple[Int64Array, Int64Array, Runs]:
    """Return the same as `_search_runs`, from the bucket of each row."""
    starts = buckets.starts(us)
    segment = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(us)))
    if requested is None:
        first_rows, sizes = find_number_runs(starts, segment)
    else:
        low, high = requested
        is_requested = (us >= low[segment]) & (us <= high[segment])
        first_rows, sizes = find_number_runs(starts, segment, is_requested)
        is_needed = is_requested[first_rows]
        first_rows, sizes = first_rows[is_needed], sizes[is_needed]
    return segment[first_rows], starts[first_rows], Runs(first_rows, sizes)


def unify(column: pa.Array) -> pa.Array:
    """Return a column with one zero and one NaN, so no result depends on which is read first."""
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = (pa.scalar(value, column.type) for value in (0.0, math.nan))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def _list_run_starts(column: pa.Array) -> Int64Array:
    """Return the first row of each run of equal values."""
    codes = column.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    return find_number_runs(codes)[0]


def _fold_values(
    present: _PresentValues,
    states: set[str],
    series: pa.Array,
    us: Int64Array,
    sequence: Int64Array,
) -> dict[str, Any]:
    """Return the columns of the states of one value column, with a row for each run.

    `series` has one entry for each run; `us` and `sequence` have one for each row.
    """
    runs = present.runs
    values = present.values
    size = len(series)
    folded: dict[str, Any] = {}
    if "count" in states:
        folded["count"] = np.zeros(size, np.int64)
        folded["count"][present.with_value] = runs.sizes
    if "sum" in states:
        folded |= {
            name: present.spread(pa.array(sums), size)
            for name, sums in _fold_sum(values, runs).items()
        }
    for state in ("min", "max"):
        if state in states:
            folded[state] = present.spread(_reduce_runs(values, runs, state), size)
    for state, rows_of_runs in (("first", runs.first), ("last", runs.ends - 1)):
        if state in states:
            rows = rows_of_runs if present.rows is None else present.rows[rows_of_runs]
            folded[state] = present.spread(values.take(pa.array(rows_of_runs)), size)
            folded[f"{state} us"] = present.spread(pa.array(us[rows]), size)
            folded[f"{state} series"] = series
            folded[f"{state} sequence"] = present.spread(pa.array(sequence[rows]), size)
    return folded


def _merge_values(
    state_columns: dict[str, pa.Array], states: set[str], runs: Runs
) -> dict[str, Any]:
    """Return the merged columns of the states of one value column."""
    merged: dict[str, Any] = {}
    if "count" in states:
        merged["count"] = _add(state_columns["count"], runs)
    if "sum" in states:
        merged |= _merge_sum(state_columns, runs)
    for state in ("min", "max"):
        if state in states:
            merged[state] = _merge_present(state_columns[state], runs, state)
    for state in ("first", "last"):
        if state in states:
            outermost = pa.array(_find_outermost(state_columns, state, runs))
            columns = (state, f"{state} us", f"{state} series", f"{state} sequence")
            merged |= {name: state_columns[name].take(outermost) for name in columns}
    return merged


def _find_outermost(state_columns: dict[str, pa.Array], state: str, runs: Runs) -> Int64Array:
    """Return the row of each run with the first, or last, time, series and sequence."""
    absent = UNTIMED if state == "first" else -UNTIMED
    us = to_int64(state_columns[f"{state} us"].fill_null(absent))
    _, series = encode_values(state_columns[f"{state} series"])
    sequence = to_int64(state_columns[f"{state} sequence"].fill_null(0))
    run = np.repeat(np.arange(len(runs)), runs.sizes)
    order = np.lexsort((sequence, series, us, run))
    chosen: Int64Array = order[runs.first if state == "first" else runs.ends - 1]
    return chosen


def _fold_sum(values: pa.Array, runs: Runs) -> dict[str, Any]:
    """Return the exact sum of each run, in columns that add up without loss."""
    if not len(runs):
        return {}
    if pa.types.is_decimal(values.type):
        wide = values.cast(pa.decimal256(MAX_WIDE_DIGITS, values.type.scale))
        return {"decimal": _reduce_by_arrow(wide, runs, "sum")}
    numbers = values.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        sum_parts = add_exactly(numbers.astype(np.float64, copy=False), runs.first, runs.sizes)
        return {f"part {name}": column for name, column in sum_parts.items()}
    integers = numbers.astype(np.int64, copy=False)
    if max(-int(integers.min()), int(integers.max())) * int(runs.sizes.max()) < 2**63:
        sums = reduce_runs(np.add, integers, runs.first, runs.sizes)
        return {"high": sums >> HALF_BITS, "low": sums & LOW_HALF}
    halves = {"high": integers >> HALF_BITS, "low": integers & LOW_HALF}
    return {
        name: reduce_runs(np.add, half_values, runs.first, runs.sizes)
        for name, half_values in halves.items()
    }


def _merge_sum(state_columns: dict[str, pa.Array], runs: Runs) -> dict[str, Any]:
    if "decimal" in state_columns:
        return {"decimal": _merge_present(state_columns["decimal"], runs, "sum")}
    if "high" in state_columns:
        high, low = (
            _add(state_columns[half_name].fill_null(0), runs) for half_name in ("high", "low")
        )
        return {"high": high + (low >> HALF_BITS), "low": low & LOW_HALF}
    sum_parts = add_parts(parts_of(state_columns), runs.first, runs.sizes)
    return {f"part {name}": sums for name, sums in sum_parts.items()}


def states_of(table: pa.Table, name: str) -> dict[str, pa.Array]:
    """Return the states of the value column `name` among the columns of `States.table`."""
    prefix = f"{name} "
    return {
        column.removeprefix(prefix): to_array(table[column])
        for column in table.column_names
        if column.startswith(prefix)
    }


def parts_of(state_columns: Mapping[str, pa.Array]) -> Parts:
    """Return the parts of exact sums among the columns of a state."""
    return {
        name.removeprefix("part "): column.fill_null(0.0).to_numpy(zero_copy_only=False)
        for name, column in state_columns.items()
        if name.startswith("part ")
    }


def _merge_present(column: pa.Array, runs: Runs, function: str) -> pa.Array:
    present = _drop_nulls(column, runs)
    return present.spread(_reduce_runs(present.values, present.runs, function), len(runs))


def _reduce_runs(values: pa.Array, runs: Runs, function: str) -> pa.Array:
    """Return the `min`, `max` or `sum` of each run; sums are of decimals."""
    if not len(runs) or not is_number(values.type):
        return _reduce_by_arrow(values, runs, function)
    numbers = values.to_numpy(zero_copy_only=False)
    # NaN is above all numbers, so a minimum ignores it.
    low = np.fmin if numbers.dtype.kind == "f" else np.minimum
    reduce_by = low if function == "min" else np.maximum
    return pa.array(reduce_runs(reduce_by, numbers, runs.first, runs.sizes)).cast(values.type)


def _reduce_by_arrow(values: pa.Array, runs: Runs, function: str) -> pa.Array:
    values_of_runs = values.take(pa.array(runs.rows()))
    run = pa.array(np.repeat(np.arange(len(runs)), runs.sizes))
    grouped = pa.table({"run": run, "value": values_of_runs}).group_by("run", use_threads=False)
    return grouped.aggregate([("value", function)])[f"value_{function}"].combine_chunks()


def _add(column: pa.Array | pa.ChunkedArray, runs: Runs) -> Int64Array:
    sums: Int64Array = reduce_runs(np.add, to_int64(column), runs.first, runs.sizes)
    return sums


def add_exactly(values: FloatArray, first_rows: Int64Array, sizes: Int64Array) -> Parts:
    """Return the parts of the sum of each run: at least one value, from `first_rows` on."""
    largest = _find_largest(values)
    if largest < _LEAST_HUGE:
        return _split_values(values, largest, first_rows, sizes)
    finite = np.isfinite(values)
    is_huge = np.abs(values) >= _LEAST_HUGE
    not_finite = np.where(finite, 0.0, values)
    huge = np.where(finite & is_huge, values, 0.0) * 2.0**-_HUGE_SCALE
    ordinary = np.where(is_huge | ~finite, 0.0, values)
    return {
        **_split_values(ordinary, _find_largest(ordinary), first_rows, sizes),
        **_split_values(huge, _find_largest(huge), first_rows, sizes, _HUGE),
        _NO_NUMBER: _add_runs(not_finite, first_rows, sizes),
    }


def add_parts(sum_parts: Parts, first_rows: Int64Array, sizes: Int64Array) -> Parts:
    """Return the parts of the total of each run of sums."""
    merged: dict[str, FloatArray] = {}
    for prefix in ("", _HUGE):
        if interleaved := [
            values for name, values in sum_parts.items() if name.rstrip("0123456789") == prefix
        ]:
            width = len(interleaved)
            together = np.stack(interleaved, axis=1).ravel()
            largest = _find_largest(together)
            merged |= _split_values(together, largest, first_rows * width, sizes * width, prefix)
    if _NO_NUMBER in sum_parts:
        merged[_NO_NUMBER] = _add_runs(sum_parts[_NO_NUMBER], first_rows, sizes)
    return merged


def round_sums(sum_parts: Parts) -> FloatArray:
    """Return each sum as the nearest double."""
    ordinary = [values for name, values in sum_parts.items() if name.isdigit()]
    # One addition rounds once.
    sums = ordinary[0] + ordinary[1] if len(ordinary) > 1 else ordinary[0].copy()
    if len(ordinary) > 2:
        rows = np.flatnonzero(np.any(ordinary[2:], axis=0))
        sums[rows] = [math.fsum(cells) for cells in np.stack(ordinary, axis=1)[rows].tolist()]
    huge = [values for name, values in sum_parts.items() if name.startswith(_HUGE)]
    for row in np.flatnonzero(np.any(huge, axis=0)).tolist() if huge else []:
        above = sum(Fraction(float(values[row])) for values in huge) * 2**_HUGE_SCALE
        sums[row] = _to_double(above + sum(Fraction(float(values[row])) for values in ordinary))
    if _NO_NUMBER in sum_parts:
        not_finite = sum_parts[_NO_NUMBER]
        sums = np.where(not_finite != 0, not_finite, sums)
    return sums


def _to_double(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _split_values(
    values: FloatArray, largest: float, first_rows: Int64Array, sizes: Int64Array, prefix: str = ""
) -> dict[str, FloatArray]:
    """Return the parts of the sum of each run, one part for each round; see the module's head.

    A round adds `unit` to each remainder and takes it away again. That rounds the remainder to a
    multiple of the last bit of `unit`; a negative one to a multiple of half that bit, because the
    sum is just below `unit`, where doubles are twice as dense. What it rounded off is left for the
    next round. The invariant: no remainder is above 2**exponent, and `unit` is `headroom` bits
    above that, so the multiples of a whole run add up to less than half of `unit`, and NumPy rounds
    nothing.
    """
    exponent = math.frexp(largest)[1]
    headroom = int(sizes.max()).bit_length() + 1
    sum_parts: dict[str, FloatArray] = {}
    remainders, multiples = values.copy(), np.empty_like(values)
    while True:
        unit = math.ldexp(1.0, exponent + headroom)
        np.add(remainders, unit, out=multiples)
        np.subtract(multiples, unit, out=multiples)
        sum_parts[f"{prefix}{len(sum_parts)}"] = _add_runs(multiples, first_rows, sizes)
        np.subtract(remainders, multiples, out=remainders)
        if not remainders.any():
            return sum_parts
        exponent += headroom - _MANTISSA_BITS


def _add_runs(values: FloatArray, first_rows: Int64Array, sizes: Int64Array) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return reduce_runs(np.add, values, first_rows, sizes)


def _find_largest(values: FloatArray) -> float:
    """Return the largest magnitude; infinity if a value is NaN."""
    low, high = float(values.min()), float(values.max())
    return max(-low, high) if low == low else math.inf
