"""Fold events to *states* of buckets, and merge states (semantics 32.2).

A state is what an aggregate needs to know of some events of a bucket: their number, the exact sum,
the lowest value. Events are read in pieces by several threads, each piece is folded to states, and
states of the same bucket are merged. So memory holds a few pieces in place of all events. States
merge in any order: sums are rounded once, in the end, and a first or last value goes with its
place. So no result depends on how events lie in files and pieces.

Doubles are added exactly. A sum is held as a few doubles, its *parts*, whose exact sum it is. To
add the values of many runs at once, each value is rounded to a multiple of a power of two that is
so large that no sum of these multiples needs more than 53 bits; then NumPy's additions are exact.
What rounding has left is treated in the same way, until nothing is left: two or three rounds.

The median, quantiles and the time-weighted mean need the values themselves, which are kept.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import DAY_US
from pyspark_tseries.model.arrays import (
    UNTIMED,
    Int64Array,
    encode_names,
    find_runs_of,
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
"""The states that a function needs; any other one needs that of its own name."""

_IN_ORDER: Final = ("first", "last", "time_weighted_mean")
"""These functions depend on the order of events with equal timestamps."""

_HALF: Final = 32
_LOW_HALF: Final = (1 << _HALF) - 1
"""A sum of integers is held in two halves, neither of which overflows."""

_NO_NUMBER: Final = "none"
_HUGE: Final = "huge "
_LEAST_HUGE: Final = 2.0**900
_HUGE_SCALE: Final = 256
"""Huge values are held divided by two to this power, so that no sum of them overflows."""

_MANTISSA_BITS: Final = 53

_ROWS_PER_SEARCH: Final = 250
_BUCKETS_PER_SEARCH: Final = 0.25
"""Find buckets by searching times if a series has at least so many neighbouring rows, and there are
at most so many buckets a row."""

FloatArray = npt.NDArray[np.float64]

Parts = Mapping[str, FloatArray]
"""The parts of sums, by name: numbered ones, `huge` ones, and what is no number."""

Limits = Callable[[pa.Array], tuple[Int64Array, Int64Array]]
"""Series -> the first and last time, both inclusive, that is asked of each."""


@dataclass(frozen=True, slots=True)
class States:
    """States in rows, each of some events of a bucket; a bucket may have several.

    Attributes:
        table: `group`, `start`, `count`, and for each column of values some whose names begin with
            its own.
        kept: the values that are kept: `state row`, that of `table`; `time us`, `sequence`, and
            columns. No value column has a name with a space.
    """

    table: pa.Table
    kept: pa.Table


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of neighbouring rows, each of one series, group and bucket; others may lie between."""

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
        offsets = np.repeat(self.first - (np.cumsum(self.sizes) - self.sizes), self.sizes)
        rows: Int64Array = np.arange(len(offsets)) + offsets
        return rows


@dataclass(frozen=True, slots=True)
class _PresentValues:
    """The values of a column that are not null, by run; `mine` are the runs that have one.

    `rows` has the row of each value; None if no value is null, so that value i is that of row i.
    """

    values: pa.Array
    runs: Runs
    mine: Int64Array
    rows: Int64Array | None = None

    def spread(self, found: pa.Array, size: int) -> pa.Array:
        """Return `found`, of the runs with a value, for all `size` runs; others are null."""
        if len(self.mine) == size:
            return found
        places = np.full(size, -1)
        places[self.mine] = np.arange(len(self.mine))
        return found.take(pa.array(places, mask=places < 0))


def _drop_nulls(values: pa.Array, runs: Runs) -> _PresentValues:
    if not values.null_count:
        return _PresentValues(values, runs, np.arange(len(runs)))
    rows = runs.rows()
    rows = rows[values.is_valid().to_numpy(zero_copy_only=False)[rows]]
    run = np.searchsorted(runs.first, rows, "right") - 1
    mine, first = np.unique(run, return_index=True)
    sizes = np.diff(first, append=len(rows))
    return _PresentValues(values.take(pa.array(rows)), Runs(first, sizes), mine, rows)


class Folding:
    """What the aggregates of a downsampling need of events, and how that is folded and merged."""

    def __init__(self, schema: pa.Schema, wanted: Downsampling) -> None:
        self._schema, self._wanted = schema, wanted
        self._states: dict[str, set[str]] = {}
        for one in wanted.aggregates:
            if one.column != ALL_EVENTS:
                needs = _NEEDS.get(one.function, (one.function,))
                self._states.setdefault(one.column, set()).update(needs)
        functions = {one.function for one in wanted.aggregates}
        self._in_order = not functions.isdisjoint(_IN_ORDER)
        self._kept = [name for name, states in self._states.items() if "values" in states]

    @property
    def columns(self) -> list[str]:
        """The stored columns of events that `fold` needs."""
        return [*self._wanted.columns, *(["sequence"] if self._in_order else [])]

    @property
    def needs_series(self) -> bool:
        """True if `fold` needs the series of each event, and not only of each run."""
        return self._wanted.tag is not None

    def fold(self, events: pa.Table, limits: Limits | None = None) -> States:
        """Return the states of some events.

        The rows of a series that are neighbours are in the order of their sequences.

        Args:
            events: the originals, with current values and `columns`.
            limits: leave out events at other times; None: none.
        """
        names, begins = find_runs_of(events["series"])
        tag = None if self._wanted.tag is None else unify(to_array(events[self._wanted.tag]))
        if tag is not None:
            changes = np.union1d(begins, _find_changes(tag))
            names = names.take(pa.array(np.searchsorted(begins, changes, "right") - 1))
            begins = changes
        us = to_int64(to_array(events["timestamp"]))
        low, high = None, None
        if limits is not None:
            low, high = limits(names)
        segment, starts, runs = find_runs(us, begins, self._wanted.buckets, low, high)
        series = names.take(pa.array(segment))
        columns = {
            "group": series if tag is None else tag.take(pa.array(runs.first)),
            "start": pa.array(starts),
            "count": pa.array(runs.sizes),
        }
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
        # A bucket of a tag may have several series.
        ties = ["series"] if self._wanted.tag is not None else []
        columns = events.select([*ties, *self._kept]).take(pa.array(rows))
        state = np.repeat(np.arange(len(runs)), runs.sizes)
        kept: dict[str, Any] = {"state row": state, "time us": us[rows], "sequence": sequence[rows]}
        for name in columns.column_names:
            is_text = name == "series" and not pa.types.is_dictionary(columns[name].type)
            kept[name] = columns[name].dictionary_encode() if is_text else columns[name]
        return pa.table(kept)

    def merge(self, some: Sequence[States]) -> States:
        """Return one state for each bucket, sorted by group and start."""
        table = pa.concat_tables([one.table for one in some], promote_options="default")
        kept = self._renumber(some)
        _, codes = encode_groups(to_array(table["group"]))
        starts = to_int64(table["start"])
        order = sort_by_code(codes, starts)
        codes, starts = codes[order], starts[order]
        first = np.flatnonzero(
            np.concatenate(
                [[True] * min(len(order), 1), (np.diff(codes) != 0) | (np.diff(starts) != 0)]
            )
        )
        table = table.take(pa.array(order)).combine_chunks()
        if len(first) < len(order):
            table = self._merge_rows(table, Runs(first, np.diff(first, append=len(order))))
        if self._kept:
            place = np.empty(len(order), np.int64)
            place[order] = np.searchsorted(first, np.arange(len(order)), "right") - 1
            state = pa.array(place[to_int64(kept["state row"])])
            kept = kept.set_column(0, "state row", state)
        return States(table, kept)

    def _renumber(self, some: Sequence[States]) -> pa.Table:
        before, kept = 0, []
        for one in some:
            if self._kept:
                state = pa.array(to_int64(one.kept["state row"]) + before)
                kept.append(one.kept.set_column(0, "state row", state))
            before += one.table.num_rows
        return pa.concat_tables(kept) if kept else pa.table({})

    def _merge_rows(self, table: pa.Table, runs: Runs) -> pa.Table:
        at_first = pa.array(runs.first)
        columns = {name: table[name].take(at_first) for name in ("group", "start")}
        columns["count"] = pa.array(_add(table["count"], runs))
        for name, states in self._states.items():
            mine = {
                column.removeprefix(f"{name} "): to_array(table[column])
                for column in table.column_names
                if column.startswith(f"{name} ")
            }
            merged = _merge_values(mine, states, runs)
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
                # Merge again when there are twice as many, or each piece would merge all.
                self._rows = min(self._pending[0].table.num_rows, MAX_PENDING_STATES // 2)

    def merged(self) -> States | None:
        """Return one state for each bucket, sorted by group and start; None if there is none."""
        return self._folding.merge(self._pending) if self._pending else None


def find_runs(
    us: Int64Array,
    begins: Int64Array,
    buckets: Buckets,
    low: Int64Array | None = None,
    high: Int64Array | None = None,
) -> tuple[Int64Array, Int64Array, Runs]:
    """Return the segment, the bucket's start and the rows of each run.

    Args:
        us: the time of each row.
        begins: the row at which each segment begins, such as a series.
        buckets: the buckets.
        low: the first time that is asked of each segment; None: all times are.
        high: the last time, inclusive.
    """
    found = _search_runs(us, begins, buckets, low, high)
    return _walk_runs(us, begins, buckets, low, high) if found is None else found


def _search_runs(
    us: Int64Array,
    begins: Int64Array,
    buckets: Buckets,
    low: Int64Array | None,
    high: Int64Array | None,
) -> tuple[Int64Array, Int64Array, Runs] | None:
    """Return the runs of few long segments, found without a look at each row; None if they are not.

    Times may fall in a segment where an event is erased (semantics 18.8); then they are not found.
    """
    if not len(us) or len(us) < _ROWS_PER_SEARCH * len(begins):
        return None
    falls = us[1:] < us[:-1]
    falls[begins[1:] - 1] = False
    if falls.any():
        return None
    ends = np.append(begins[1:], len(us))
    lows, highs = us[begins], us[ends - 1]
    if low is not None and high is not None:
        lows, highs = np.maximum(lows, low), np.minimum(highs, high)
    asked = lows <= highs
    if not asked.any():
        none = np.empty(0, np.int64)
        return none, none, Runs(none, none)
    first, last = int(lows[asked].min()), int(highs[asked].max())
    width = buckets.us or buckets.months * 28 * DAY_US
    if (last - first) // width * len(begins) > _BUCKETS_PER_SEARCH * len(us):
        return None
    starts = buckets.between(first, last)
    cuts = np.append(starts, last + 1)
    columns = [column.tolist() for column in (begins, ends, lows, highs)]
    rows = np.stack(
        [
            begin + us[begin:end].searchsorted(np.minimum(np.maximum(cuts, start), until + 1))
            for begin, end, start, until in zip(*columns, strict=True)
        ]
    )
    sizes = np.diff(rows, axis=1)
    segment, bucket = np.nonzero(sizes > 0)
    return segment, starts[bucket], Runs(rows[segment, bucket], sizes[segment, bucket])


def _walk_runs(
    us: Int64Array,
    begins: Int64Array,
    buckets: Buckets,
    low: Int64Array | None,
    high: Int64Array | None,
) -> tuple[Int64Array, Int64Array, Runs]:
    starts = buckets.starts(us)
    segment = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(us)))
    changes = np.ones(len(us), bool)
    changes[1:] = (starts[1:] != starts[:-1]) | (segment[1:] != segment[:-1])
    asked = None
    if low is not None and high is not None:
        asked = (us >= low[segment]) & (us <= high[segment])
        changes[1:] |= asked[1:] != asked[:-1]
    first = np.flatnonzero(changes)
    sizes = np.diff(first, append=len(us))
    if asked is not None:
        first, sizes = first[asked[first]], sizes[asked[first]]
    return segment[first], starts[first], Runs(first, sizes)


def unify(column: pa.Array) -> pa.Array:
    """Return a column with one zero and one NaN: others depend on which value is read first."""
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = (pa.scalar(value, column.type) for value in (0.0, math.nan))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def encode_groups(column: pa.Array) -> tuple[pa.Array, Int64Array]:
    """Return the distinct values, sorted, a null last, and each row's position among them."""
    encoded = column.dictionary_encode(null_encoding="encode")
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy(zero_copy_only=False)]
    return encoded.dictionary.take(pa.array(order)), codes


def _find_changes(column: pa.Array) -> Int64Array:
    """Return the first row of each run of equal values."""
    codes = column.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.diff(codes, prepend=-1))


def _fold_values(
    present: _PresentValues,
    states: set[str],
    series: pa.Array,
    us: Int64Array,
    sequence: Int64Array,
) -> dict[str, Any]:
    """Return the columns of the states of one column of values, a row for each run.

    `series` is that of each run; `us` and `sequence` are those of each row.
    """
    runs, values, size = present.runs, present.values, len(series)
    folded: dict[str, Any] = {}
    if "count" in states:
        folded["count"] = np.zeros(size, np.int64)
        folded["count"][present.mine] = runs.sizes
    if "sum" in states:
        folded |= {
            name: present.spread(pa.array(part), size)
            for name, part in _fold_sum(values, runs).items()
        }
    for state in ("min", "max"):
        if state in states:
            folded[state] = present.spread(_reduce(values, runs, state), size)
    for state, rows_of_runs in (("first", runs.first), ("last", runs.ends - 1)):
        if state in states:
            rows = rows_of_runs if present.rows is None else present.rows[rows_of_runs]
            folded[state] = present.spread(values.take(pa.array(rows_of_runs)), size)
            folded[f"{state} us"] = present.spread(pa.array(us[rows]), size)
            folded[f"{state} series"] = series
            folded[f"{state} sequence"] = present.spread(pa.array(sequence[rows]), size)
    return folded


def _merge_values(mine: dict[str, pa.Array], states: set[str], runs: Runs) -> dict[str, Any]:
    """Return the merged columns of the states of one column of values."""
    merged: dict[str, Any] = {}
    if "count" in states:
        merged["count"] = _add(mine["count"], runs)
    if "sum" in states:
        merged |= _merge_sum(mine, runs)
    for state in ("min", "max"):
        if state in states:
            merged[state] = _merge_present(mine[state], runs, state)
    for state in ("first", "last"):
        if state in states:
            outermost = pa.array(_find_outermost(mine, state, runs))
            columns = (state, f"{state} us", f"{state} series", f"{state} sequence")
            merged |= {name: mine[name].take(outermost) for name in columns}
    return merged


def _find_outermost(mine: dict[str, pa.Array], state: str, runs: Runs) -> Int64Array:
    """Return the row of each run with the first, or last, time, series and sequence."""
    absent = UNTIMED if state == "first" else -UNTIMED
    us = to_int64(mine[f"{state} us"].fill_null(absent))
    _, series = encode_names(mine[f"{state} series"])
    sequence = to_int64(mine[f"{state} sequence"].fill_null(0))
    run = np.repeat(np.arange(len(runs)), runs.sizes)
    order = np.lexsort((sequence, series, us, run))
    chosen: Int64Array = order[runs.first if state == "first" else runs.ends - 1]
    return chosen


def _fold_sum(values: pa.Array, runs: Runs) -> dict[str, Any]:
    """Return the exact sum of each run, in columns that add up without a loss."""
    if not len(runs):
        return {}
    if pa.types.is_decimal(values.type):
        wide = values.cast(pa.decimal256(76, values.type.scale))
        return {"decimal": _reduce_by_arrow(wide, runs, "sum")}
    numbers = values.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        parts = add_exactly(numbers.astype(np.float64, copy=False), runs.first, runs.sizes)
        return {f"part {name}": part for name, part in parts.items()}
    whole = numbers.astype(np.int64, copy=False)
    if max(-int(whole.min()), int(whole.max())) * int(runs.sizes.max()) < 2**63:
        sums = reduce_runs(np.add, whole, runs.first, runs.sizes)
        return {"high": sums >> _HALF, "low": sums & _LOW_HALF}
    halves = {"high": whole >> _HALF, "low": whole & _LOW_HALF}
    return {
        name: reduce_runs(np.add, half, runs.first, runs.sizes) for name, half in halves.items()
    }


def _merge_sum(mine: dict[str, pa.Array], runs: Runs) -> dict[str, Any]:
    if "decimal" in mine:
        return {"decimal": _merge_present(mine["decimal"], runs, "sum")}
    if "high" in mine:
        high, low = (_add(mine[half].fill_null(0), runs) for half in ("high", "low"))
        return {"high": high + (low >> _HALF), "low": low & _LOW_HALF}
    parts = add_parts(parts_of(mine), runs.first, runs.sizes)
    return {f"part {name}": part for name, part in parts.items()}


def parts_of(mine: Mapping[str, pa.Array]) -> Parts:
    """Return the parts of exact sums among the columns of a state."""
    return {
        name.removeprefix("part "): column.fill_null(0.0).to_numpy(zero_copy_only=False)
        for name, column in mine.items()
        if name.startswith("part ")
    }


def _merge_present(column: pa.Array, runs: Runs, function: str) -> pa.Array:
    present = _drop_nulls(column, runs)
    return present.spread(_reduce(present.values, present.runs, function), len(runs))


def _reduce(values: pa.Array, runs: Runs, function: str) -> pa.Array:
    """Return the `min`, `max` or `sum` of each run; sums are of decimals."""
    if not len(runs) or not is_number(values.type):
        return _reduce_by_arrow(values, runs, function)
    numbers = values.to_numpy(zero_copy_only=False)
    # NaN is above all numbers, so a minimum passes over it.
    low = np.fmin if numbers.dtype.kind == "f" else np.minimum
    reduce_by = low if function == "min" else np.maximum
    return pa.array(reduce_runs(reduce_by, numbers, runs.first, runs.sizes)).cast(values.type)


def _reduce_by_arrow(values: pa.Array, runs: Runs, function: str) -> pa.Array:
    mine = values.take(pa.array(runs.rows()))
    run = pa.array(np.repeat(np.arange(len(runs)), runs.sizes))
    grouped = pa.table({"run": run, "value": mine}).group_by("run", use_threads=False)
    return grouped.aggregate([("value", function)])[f"value_{function}"].combine_chunks()


def _add(column: pa.Array | pa.ChunkedArray, runs: Runs) -> Int64Array:
    sums: Int64Array = reduce_runs(np.add, to_int64(column), runs.first, runs.sizes)
    return sums


def add_exactly(values: FloatArray, first: Int64Array, sizes: Int64Array) -> Parts:
    """Return the parts of the sum of each run, at least one value from `first` on."""
    most = _find_largest(values)
    if most < _LEAST_HUGE:
        return _split_values(values, most, first, sizes)
    finite, is_huge = np.isfinite(values), np.abs(values) >= _LEAST_HUGE
    none = np.where(finite, 0.0, values)
    huge = np.where(finite & is_huge, values, 0.0) * 2.0**-_HUGE_SCALE
    usual = np.where(is_huge | ~finite, 0.0, values)
    return {
        **_split_values(usual, _find_largest(usual), first, sizes),
        **_split_values(huge, _find_largest(huge), first, sizes, _HUGE),
        _NO_NUMBER: _add_runs(none, first, sizes),
    }


def add_parts(parts: Parts, first: Int64Array, sizes: Int64Array) -> Parts:
    """Return the parts of the sum of the sums of each run."""
    merged: dict[str, FloatArray] = {}
    for prefix in ("", _HUGE):
        if mine := [part for name, part in parts.items() if name.rstrip("0123456789") == prefix]:
            width, together = len(mine), np.stack(mine, axis=1).ravel()
            most = _find_largest(together)
            merged |= _split_values(together, most, first * width, sizes * width, prefix)
    if _NO_NUMBER in parts:
        merged[_NO_NUMBER] = _add_runs(parts[_NO_NUMBER], first, sizes)
    return merged


def round_sums(parts: Parts) -> FloatArray:
    """Return each sum as the nearest double."""
    usual = [part for name, part in parts.items() if name.isdigit()]
    # One addition rounds once.
    sums = usual[0] + usual[1] if len(usual) > 1 else usual[0].copy()
    if len(usual) > 2:
        rows = np.flatnonzero(np.any(usual[2:], axis=0))
        sums[rows] = [math.fsum(cells) for cells in np.stack(usual, axis=1)[rows].tolist()]
    huge = [part for name, part in parts.items() if name.startswith(_HUGE)]
    for row in np.flatnonzero(np.any(huge, axis=0)).tolist() if huge else []:
        above = sum(Fraction(float(part[row])) for part in huge) * 2**_HUGE_SCALE
        sums[row] = _to_double(above + sum(Fraction(float(part[row])) for part in usual))
    if _NO_NUMBER in parts:
        none = parts[_NO_NUMBER]
        sums = np.where(none != 0, none, sums)
    return sums


def _to_double(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _split_values(
    values: FloatArray, most: float, first: Int64Array, sizes: Int64Array, prefix: str = ""
) -> dict[str, FloatArray]:
    exponent = math.frexp(most)[1]
    headroom = int(sizes.max()).bit_length() + 1
    parts: dict[str, FloatArray] = {}
    rest, multiples = values.copy(), np.empty_like(values)
    while True:
        unit = math.ldexp(1.0, exponent + headroom)
        np.add(rest, unit, out=multiples)
        np.subtract(multiples, unit, out=multiples)
        parts[f"{prefix}{len(parts)}"] = _add_runs(multiples, first, sizes)
        np.subtract(rest, multiples, out=rest)
        if not rest.any():
            return parts
        exponent += headroom - _MANTISSA_BITS


def _add_runs(values: FloatArray, first: Int64Array, sizes: Int64Array) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return reduce_runs(np.add, values, first, sizes)


def _find_largest(values: FloatArray) -> float:
    """Return the largest magnitude; infinity if a value is NaN."""
    low, high = float(values.min()), float(values.max())
    return max(-low, high) if low == low else math.inf
