"""Decide what a chart of a result shows; drawing it is left to `svg` and `terminal`.

A figure has a panel for each column, because columns differ in units. A panel of numbers has a line
for each series; a panel of Booleans or texts has a row for each, where a state lasts until the next
event. If a figure leaves something out, a note says so. Its texts have no control characters.

Ticks of numbers are multiples of 1, 2 or 5 times a power of ten. Ticks of times are round times by
the clock or calendar of a time zone: they are the starts of buckets (semantics 32.1), so they are
right also on the two days of a year when clocks change (31.6).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import DAY_US, FINAL_US, MIN_US, MINUTE_US, to_datetime
from pyspark_timestream.errors import escape_controls
from pyspark_timestream.report import TimeTick, choose_step, format_count, label_ticks, name_date
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    BoolArray,
    FloatArray,
    Int64Array,
    find_number_runs,
    list_texts,
    sort_by_code,
    to_int64,
)
from pyspark_tseries.model.buckets import DEFAULT_ORIGIN_US, Buckets
from pyspark_tseries.model.columns import find_unit, originals_of
from pyspark_tseries.model.downsampling import is_number

# -- numbers ---------------------------------------------------------------------------------------

_PLAIN: Final = -3, 6
"""Write numbers from 10^-3 up to 10^6 in full, others with a power of ten beside the axis."""

_MAX_DIGITS: Final = 7
"""If labels need more digits, they count from a number beside the axis."""


@dataclass(frozen=True, slots=True)
class NumberAxis:
    """The axis of a column's values. A value is at `(value - base) / 10 ** exponent`.

    Attributes:
        low: the position of the lower end of the axis.
        high: the position of its upper end; it is above `low`.
        ticks: the positions of the ticks, ascending.
        labels: their labels.
        exponent: the power of ten that the labels leave out, a multiple of 3.
        base: the number that the labels count from.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    exponent: int = 0
    base: float = 0.0

    def fraction(self, values: np.ndarray) -> np.ndarray:
        """Return where values are between the ends of the axis: from 0 to 1."""
        positions = _scale(values - self.base, self.exponent)
        fractions: np.ndarray = (positions - self.low) / (self.high - self.low)
        return fractions

    @property
    def tick_fractions(self) -> list[float]:
        """The places of the ticks, as `fraction` of values."""
        return [(tick - self.low) / (self.high - self.low) for tick in self.ticks]


def number_axis(low: float, high: float, max_ticks: int, *, is_whole: bool = False) -> NumberAxis:
    """Return an axis for finite values from `low` to `high`, with at most about `max_ticks` ticks.

    With `is_whole` the ticks are whole numbers.
    """
    base = _choose_base(low, high, max_ticks)
    low, high = low - base, high - base
    size = max(abs(low), abs(high))
    exponent = 0
    if size and not 10.0 ** _PLAIN[0] <= size < 10.0 ** _PLAIN[1]:
        exponent = 3 * math.floor(math.log10(size) / 3)
    low, high = _scale(np.array([low, high], np.float64), exponent).tolist()
    if high - low <= 8 * math.ulp(max(abs(low), abs(high))):
        room = abs(low) / 20 or 1.0
        low, high = low - room, high + room
    else:
        room = (high - low) / 20
        # An axis without negative values does not reach below zero.
        low = max(low - room, 0.0) if low >= 0 and not base else low - room
        high = min(high + room, 0.0) if high <= 0 and not base else high + room
    step = _round_step((high - low) / max(max_ticks, 1))
    if is_whole and exponent >= 0:
        step = max(step, 10.0**-exponent)
    lowest, highest = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = tuple(round(number * step, decimals) for number in range(lowest, highest + 1))
    labels = tuple(f"{tick + 0.0:,.{decimals}f}" for tick in ticks)
    return NumberAxis(low=low, high=high, ticks=ticks, labels=labels, exponent=exponent, base=base)


def _choose_base(low: float, high: float, max_ticks: int) -> float:
    """Return the number that labels count from: 0 unless they would have many equal digits."""
    size = max(abs(low), abs(high))
    spread = high / 2 - low / 2
    if spread <= 4 * math.ulp(size):
        return 0.0  # As doubles, all values are equal.
    digits = math.log10(size) - math.log10(2 * spread / max(max_ticks, 1))
    if digits < _MAX_DIGITS:
        return 0.0
    power = 10.0 ** math.ceil(math.log10(2 * spread))
    return math.floor(low / power) * power


def _scale(values: np.ndarray, exponent: int) -> np.ndarray:
    """Return `values / 10 ** exponent`, even if the power does not fit a double."""
    if not exponent:
        return values
    half_exponent = -exponent // 2
    scaled: np.ndarray = values * 10.0**half_exponent * 10.0 ** (-exponent - half_exponent)
    return scaled


def _round_step(step: float) -> float:
    """Round `step` up to 1, 2 or 5 times a power of ten."""
    power = math.floor(math.log10(step))
    for number in (1, 2, 5, 10):
        if number * 10.0**power >= step * (1 - 1e-9):
            return number * 10.0**power
    raise AssertionError(step)


# -- times -----------------------------------------------------------------------------------------

_YEARS_FROM: Final = DEFAULT_ORIGIN_US - 2 * DAY_US
_LONG_US: Final = 50 * 366 * DAY_US
"""An axis of this length has the same ticks in every zone: an offset is less than a pixel."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The axis of times from `low` to `high`, in microseconds; `high` is above `low`."""

    low: int
    high: int
    ticks: tuple[TimeTick, ...]

    def fraction(self, us: np.ndarray) -> np.ndarray:
        """Return where times are between the ends of the axis: from 0 to 1."""
        fractions: np.ndarray = (us - self.low) / (self.high - self.low)
        return fractions


def time_axis(low: int, high: int, zone: str | None, max_ticks: int) -> TimeAxis:
    """Return an axis from `low` to `high` with at most `max_ticks` ticks, by a zone's clock."""
    low, high = max(low, MIN_US), min(high, FINAL_US)
    zone = None if high - low > _LONG_US else choose_zone(low, high, zone)
    if low == high:
        low, high = max(low - MINUTE_US, MIN_US), min(high + MINUTE_US, FINAL_US)
    clock = None if zone is None else ZoneInfo(zone)
    buckets = _choose_buckets(low, high, zone, max_ticks)
    starts = [us for us in buckets.between(low, high).tolist() if low <= us <= high]
    ticks = tuple(label_ticks(starts, buckets.us, buckets.months, clock))
    return TimeAxis(low, high, ticks)


def choose_zone(low: int, high: int, zone: str | None) -> str | None:
    """Return the zone, or None for UTC where its clock may leave the years 1 to 9999."""
    return None if low < MIN_US + 3 * DAY_US or high > FINAL_US - 3 * DAY_US else zone


def fit_time_axis(
    low: int, high: int, zone: str | None, room: float, width_of: Callable[[str], float]
) -> TimeAxis:
    """Return the axis with as many ticks as there is room for their labels beside each other."""
    max_ticks = max(1, int(room // width_of("00:00   ")))
    while True:
        axis = time_axis(low, high, zone, max_ticks)
        widest = max((width_of(f"{tick.label}  ") for tick in axis.ticks), default=0)
        if max_ticks == 1 or widest * max_ticks <= room:
            return axis
        max_ticks -= 1


def _choose_buckets(low: int, high: int, zone: str | None, max_ticks: int) -> Buckets:
    step, months = choose_step(low, high, max_ticks)
    if months:
        return Buckets(0, months, zone, _YEARS_FROM)
    return Buckets(step, 0, zone, 0 if zone is not None and step < DAY_US else DEFAULT_ORIGIN_US)


def format_moment(us: int, zone: str | None) -> str:
    """Format an instant for people, by the clock of a zone, to the microsecond.

    Where the clock is ambiguous, a name follows: `CET` or `CEST` when a clock shows a time twice,
    `UTC` when the zone's clock would leave the years 1 to 9999.
    """
    us = min(max(us, MIN_US), FINAL_US)  # A bucket may begin, or end, outside these years.
    local = to_datetime(us)
    name = ""
    if zone is not None and choose_zone(us, us, zone) is None:
        name = " UTC"
    elif zone is not None:
        local = local.astimezone(ZoneInfo(zone))
        is_twice = local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()
        name = f" {local:%Z}" if is_twice else ""
    text = f"{name_date(local)} {local:%H:%M}"
    if local.second or local.microsecond:
        text += f":{local:%S}"
    if local.microsecond:
        text += f".{local.microsecond:06d}".rstrip("0")
    return text + name


MAX_PANELS: Final = 4
"""Draw at most this many columns if the caller names none."""

USUAL: Final = "usual"
"""The default of `longest_gap`: three times the distance that 95 % in a series do not exceed."""

_MIN_DISTANCES: Final = 10
"""With fewer distances there is no usual one."""

SEVERAL: Final = "\0"
"""The state of a pixel with several states; no state of a store contains this character."""

EDITED: Final = "\N{BLACK DIAMOND} "
OVERRIDDEN: Final = "\N{WHITE CIRCLE} "
"""A note on marks begins with their shape."""

_POINTS_A_PIXEL: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class PlotMarks:
    """Points beside a line; `now` has the values of the line at their times.

    `sequences` has the sequences of their originals; None if the result lacks them.
    """

    us: Int64Array
    values: FloatArray
    now: FloatArray
    sequences: Int64Array | None

    def __len__(self) -> int:
        return len(self.us)


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The area between two columns; `is_first` is true where a new piece begins."""

    us: Int64Array
    ends: Int64Array
    lower: FloatArray
    upper: FloatArray
    is_first: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A series in a panel of numbers.

    Attributes:
        name: the name of the series; empty if there is one without a name.
        position: its position among the series of the figure; it decides the colour.
        us: the times of the points, ascending.
        values: their values, finite.
        ends: where each bucket ends; None for events.
        is_first: True where a new piece of the line begins.
        edited: the points that an edit has overridden.
        overridden: values that are no longer current.
        band: the area from minimum to maximum, if both are there.
        last: the last value; None if there is none.
    """

    name: str
    position: int
    us: Int64Array
    values: FloatArray
    ends: Int64Array | None
    is_first: BoolArray
    edited: PlotMarks
    overridden: PlotMarks
    band: Band | None
    last: float | None


@dataclass(frozen=True, slots=True)
class Span:
    """A state from `start` to `end`, in microseconds."""

    start: int
    end: int
    state: str


@dataclass(frozen=True, slots=True)
class StateTrack:
    """A series in a panel of states."""

    name: str
    position: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """A column, with its unit, and `low` to `high`, its lowest and highest value of all series.

    `is_whole` is true for integers. A panel has either lines or tracks.
    """

    title: str
    unit: str
    lines: tuple[Line, ...] = ()
    tracks: tuple[StateTrack, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False
    is_boolean: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no series has a value."""
        return not (any(len(line.us) for line in self.lines) or any(t.spans for t in self.tracks))


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """The contents of a chart: panels above one axis of time, from `low` to `high` microseconds.

    Attributes:
        title: the caller's title, or the name of the only series; else empty.
        series: the names of the series that are drawn.
        panels: a panel for each column.
        low: the first time.
        high: the last time; of a bucket, its end.
        zone: the IANA name of the time zone; None for UTC.
        notes: what the figure leaves out, or draws differently from the data.
    """

    title: str
    series: tuple[str, ...]
    panels: tuple[Panel, ...]
    low: int
    high: int
    zone: str | None
    notes: tuple[str, ...]

    def describe(self) -> str:
        """Describe the chart in sentences, for readers who cannot see it."""
        if not self.panels:
            return "No events."
        times = " to ".join(format_moment(us, self.zone) for us in (self.low, self.high))
        sentences = [f"{times}, {self.zone or 'UTC'}."]
        for panel in self.panels:
            unit = f" {panel.unit}" if panel.unit else ""
            lines = [
                f"{line.name or 'values'}{_describe_line(line, unit)}" for line in panel.lines[:8]
            ]
            tracks = [f"{t.name or 'states'} {_describe_track(t)}" for t in panel.tracks[:8]]
            sentences.append(f"{panel.title}: {'; '.join(lines + tracks)}.")
        return " ".join(sentences)


def _describe_line(line: Line, unit: str) -> str:
    if line.last is None:
        return " without values"
    low, high = float(line.values.min()), float(line.values.max())
    return f" from {show_number(low)} to {show_number(high)}{unit}, last {show_number(line.last)}"


def _describe_track(track: StateTrack) -> str:
    return f"last {track.spans[-1].state.lstrip(SEVERAL)}" if track.spans else "without values"


def show_number(value: float) -> str:
    """Format a value for people.

    >>> show_number(21.5), show_number(1234567.0), show_number(-0.0)
    ('21.5', '1.23457e+06', '0')
    """
    return f"{value + 0.0:,.6g}"


@dataclass(frozen=True, slots=True)
class Shape:
    """How to read a result's table.

    Attributes:
        group: the column with the names of the series or with a tag; None if it is left out.
        values: the columns that may be drawn.
        ends: returns the ends of buckets from their starts; None for events.
        bands: for a column with a band around its line, the columns of minimum and maximum.
        left_out: the number of events beyond the query's limit.
        zone: the time zone if the caller of the chart names none; None for UTC.
    """

    group: str | None
    values: tuple[str, ...]
    ends: Callable[[Int64Array], Int64Array] | None = None
    bands: Mapping[str, tuple[str, str]] | None = None
    left_out: int = 0
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class ChartRequest:
    """The request of the caller of a chart.

    Attributes:
        columns: the columns; None for the first that can be drawn.
        max_series: how many series are drawn.
        zone: the time zone; None for UTC.
        units: the units of columns; they override the schema's.
        longest_gap: the longest time in microseconds that a line bridges; `USUAL`, or None for any.
        title: the title; None for the name of the only series.
        pixels: the width in pixels.
    """

    columns: tuple[str, ...] | None
    max_series: int
    zone: str | None
    units: Mapping[str, str]
    longest_gap: int | str | None
    title: str | None
    pixels: int


def build_figure(table: pa.Table, shape: Shape, request: ChartRequest) -> Figure:
    """Return what a chart of the result `table` shows.

    Raises:
        InvalidQuery: the result lacks `timestamp` or one of the columns, or one cannot be drawn.
    """
    if "timestamp" not in table.column_names:
        raise InvalidQuery(
            "a chart needs the column timestamp, which the query left out",
            "a result with it",
            "name it in columns()",
        )
    columns, not_drawn = _choose_columns(table.schema, shape, request)
    notes = []
    if not_drawn and len(table):
        more = f" and {len(not_drawn) - 5:,} more" if len(not_drawn) > 5 else ""
        names = ", ".join(not_drawn[:5]) + more
        notes.append(f"{format_count(len(not_drawn), 'more column')}, not drawn: {names}")
    rows = _Rows.of(table, shape, request, notes)
    if shape.left_out:
        notes.append(f"{format_count(shape.left_out, 'more event')} beyond the query's limit")
    title = request.title
    if title is None:
        title = rows.names[0] if len(rows.names) == 1 else ""
    panels: tuple[Panel, ...] = ()
    if len(rows.us):
        panels = tuple(_build_panel(rows, column, shape, request, notes) for column in columns)
    return Figure(
        title=escape_controls(title),
        series=rows.names,
        panels=panels,
        low=rows.low,
        high=rows.high,
        zone=choose_zone(rows.low, rows.high, request.zone),
        notes=tuple(map(escape_controls, notes)),
    )


# -- columns ---------------------------------------------------------------------------------------


def is_drawn(data_type: pa.DataType) -> bool:
    """Return whether a chart can draw values of a type."""
    return is_line(data_type) or pa.types.is_boolean(data_type) or pa.types.is_string(data_type)


def is_line(data_type: pa.DataType) -> bool:
    """Return whether a type is drawn as a line."""
    return is_number(data_type) or bool(pa.types.is_decimal(data_type))


def _choose_columns(
    schema: pa.Schema, shape: Shape, request: ChartRequest
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the columns to draw, and those that could be drawn but are not."""
    drawn = [name for name in shape.values if is_drawn(schema.field(name).type)]
    if request.columns is not None:
        for name in request.columns:
            _check_column(schema, shape, name, drawn)
        return request.columns, ()
    edges = {edge for ends in (shape.bands or {}).values() for edge in ends}
    default = [n for n in drawn if n not in edges and not pa.types.is_string(schema.field(n).type)]
    default = default or [name for name in drawn if name not in edges]
    if not default:
        raise InvalidQuery(
            "the result has no column that a chart can draw",
            "a value column with numbers, Booleans or texts",
            "ask for such a column, or draw numbers made of others in SQL",
        )
    return default[:MAX_PANELS], [n for n in drawn if n not in (*default[:MAX_PANELS], *edges)]


def _check_column(schema: pa.Schema, shape: Shape, name: str, drawn: Sequence[str]) -> None:
    accepted = ", ".join(drawn) or "none: no column has numbers, Booleans or texts"
    if name not in shape.values:
        raise InvalidQuery(
            f"the result has no value column '{name}' to draw", accepted, "name one of these"
        )
    if name not in drawn:
        raise InvalidQuery(
            f"column '{name}' is of type {schema.field(name).type}, which a chart cannot draw",
            accepted,
            "name one of these, or draw numbers made of it in SQL",
        )


# -- rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows to draw, sorted by series and time; each series begins at one of `bounds`."""

    table: pa.Table
    names: tuple[str, ...]
    bounds: Int64Array
    us: Int64Array
    ends: Int64Array | None
    is_edited: BoolArray
    current: Int64Array
    """For each row, the row with the current value of its event; usually the same row."""

    originals: Int64Array | None
    """The sequences of the originals, if the result has both columns with sequences."""

    low: int
    high: int

    @staticmethod
    def of(table: pa.Table, shape: Shape, request: ChartRequest, notes: list[str]) -> "_Rows":
        names, codes = _encode_groups(table, shape.group)
        if len(names) > request.max_series:
            notes.append(
                f"the first {request.max_series:,} of {len(names):,} series; max_series draws more"
            )
            names = names[: request.max_series]
        us = to_int64(shown_times(table))
        is_drawable = (us >= MIN_US) & (us <= FINAL_US)
        outside = len(us) - int(is_drawable.sum())
        if outside:
            notes.append(f"{format_count(outside, 'event')} outside the years 1 to 9999, not drawn")
        is_kept = is_drawable & (codes < len(names))
        rows = np.flatnonzero(is_kept)
        rows = rows[sort_by_code(codes[rows], us[rows])]
        if not np.array_equal(rows, np.arange(len(us))):
            table, codes, us = table.take(pa.array(rows)), codes[rows], us[rows]
        ends = None if shape.ends is None or not len(us) else shape.ends(us)
        bounds = np.searchsorted(codes, np.arange(len(names) + 1))
        has_originals = {"sequence", "original_sequence"} <= set(table.column_names)
        originals = to_int64(originals_of(table)) if has_originals else None
        current = _compute_current(table, codes, originals)
        low, high = 0, 0
        if len(us):
            low, high = int(us.min()), int((us if ends is None else ends).max())
        return _Rows(
            table=table,
            names=names,
            bounds=bounds,
            us=us,
            ends=ends,
            is_edited=_flag_edited(table),
            current=current,
            originals=originals,
            low=low,
            high=high,
        )

    def by_series(self) -> Iterator[tuple[int, str, slice]]:
        """Yield the position, the name and the rows of each series."""
        for position, name in enumerate(self.names):
            yield position, name, slice(int(self.bounds[position]), int(self.bounds[position + 1]))


def shown_times(table: pa.Table) -> pa.ChunkedArray:
    """Return the times of the events in a result; an edit has the time of its original."""
    if "original_timestamp" in table.column_names:
        return pc.coalesce(table["original_timestamp"], table["timestamp"])
    return table["timestamp"]


def _encode_groups(table: pa.Table, group: str | None) -> tuple[tuple[str, ...], Int64Array]:
    """Return the names of the series in the order of their first rows, and each row's number."""
    if group is None:
        return ("",), np.zeros(len(table), np.int64)
    column = table[group]
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    names = tuple(map(escape_controls, list_texts(encoded.dictionary)))
    codes: Int64Array = encoded.indices.to_numpy().astype(np.int64)
    return names, codes


def _flag_edited(table: pa.Table) -> BoolArray:
    for name in ("original_sequence", "edit_timestamp", "original_timestamp"):
        if name in table.column_names:
            edited: BoolArray = table[name].is_valid().to_numpy()
            return edited
    return np.zeros(len(table), bool)


def _compute_current(table: pa.Table, codes: Int64Array, original: Int64Array | None) -> Int64Array:
    """Return for each row the row with the highest sequence among its original and its edits."""
    rows = np.arange(len(table))
    if original is None or table["original_sequence"].null_count == len(table):
        return rows
    sequence = to_int64(table["sequence"])
    order = np.lexsort((sequence, original, codes))
    begins, sizes = find_number_runs(codes[order], original[order])
    current = np.empty(len(order), np.int64)
    current[order] = np.repeat(order[begins + sizes - 1], sizes)
    return current


# -- panels ----------------------------------------------------------------------------------------


def _build_panel(
    rows: _Rows, column: str, shape: Shape, request: ChartRequest, notes: list[str]
) -> Panel:
    field = rows.table.schema.field(column)
    unit = escape_controls(request.units.get(column) or find_unit(field) or "")
    title = escape_controls(column)
    if not is_line(field.type):
        tracks = tuple(_make_tracks(rows, column, request.pixels, notes))
        return Panel(title, unit, tracks=tracks, is_boolean=pa.types.is_boolean(field.type))
    edges = (shape.bands or {}).get(column)
    values = _to_floats(rows.table[column])
    odd = int((~np.isfinite(values)).sum()) - rows.table[column].null_count
    if odd:
        notes.append(f"{column}: {format_count(odd, 'NaN or infinite value')}, not drawn")
    band = None
    if edges is not None:
        band = _to_floats(rows.table[edges[0]]), _to_floats(rows.table[edges[1]])
    lines = tuple(_make_lines(rows, values, band, request))
    _note_points(column, lines, values, rows, notes)
    numbers = [extreme for line in lines for extreme in _list_extremes(line)]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 0.0)
    title += "" if edges is None else ", min to max"
    is_whole = pa.types.is_integer(field.type)
    return Panel(title, unit, lines=lines, low=low, high=high, is_whole=is_whole)


def _list_extremes(line: Line) -> Iterator[float]:
    value_arrays = [line.values, line.overridden.values]
    if line.band is not None:
        value_arrays += [line.band.lower, line.band.upper]
    for array in value_arrays:
        if len(array):
            yield float(array.min())
            yield float(array.max())


def _to_floats(column: pa.ChunkedArray) -> FloatArray:
    """Return values as doubles, NaN for null."""
    floats: FloatArray = column.cast(pa.float64(), safe=False).to_numpy()
    return floats


def _note_points(
    column: str, lines: Sequence[Line], values: FloatArray, rows: _Rows, notes: list[str]
) -> None:
    drawn = sum(len(line.us) for line in lines)
    point_count = int((np.isfinite(values) & (rows.current == np.arange(len(values)))).sum())
    if drawn < point_count:
        notes.append(
            f"{column}: {format_count(point_count, 'point')}; each pixel shows the first, "
            "the lowest, the highest and the last"
        )
    edited = int((rows.is_edited & (rows.current == np.arange(len(values)))).sum())
    if edited:
        notes.append(f"{EDITED}{column}: {format_count(edited, 'edited value')}")
    old = int((rows.current != np.arange(len(values))).sum())
    if old:
        notes.append(f"{OVERRIDDEN}{column}: {format_count(old, 'overridden value')}")


def _make_lines(
    rows: _Rows,
    values: FloatArray,
    edges: tuple[FloatArray, FloatArray] | None,
    request: ChartRequest,
) -> Iterator[Line]:
    for position, name, series_rows in rows.by_series():
        all_rows = np.arange(series_rows.start, series_rows.stop)
        is_now = rows.current[series_rows] == all_rows
        current_rows = all_rows[is_now]
        is_first = _flag_breaks(rows, current_rows, values[current_rows], request.longest_gap)
        good = np.isfinite(values[current_rows])
        points = current_rows[good]
        keep = _thin_line(
            rows.us[points], values[points], is_first, rows.low, rows.high, request.pixels
        )
        drawn_rows = points[keep]
        old = all_rows[~is_now]
        old = old[np.isfinite(values[old]) & np.isfinite(values[rows.current[old]])]
        yield Line(
            name=name,
            position=position,
            us=rows.us[drawn_rows],
            values=values[drawn_rows],
            ends=None if rows.ends is None else rows.ends[drawn_rows],
            is_first=is_first[keep],
            edited=_pick_marks(rows, values, points[rows.is_edited[points]], request.pixels),
            overridden=_pick_marks(rows, values, old, request.pixels),
            band=None if edges is None else _make_band(rows, current_rows, *edges, request.pixels),
            last=float(values[points[-1]]) if len(points) else None,
        )


def _flag_breaks(
    rows: _Rows, row_numbers: Int64Array, values: FloatArray, longest: int | str | None
) -> BoolArray:
    """Return for each finite value whether a new piece of the line begins at it."""
    good = np.flatnonzero(np.isfinite(values))
    is_first = np.ones(len(good), bool)
    if len(good) < 2:
        return is_first
    is_first[1:] = np.diff(good) > 1
    us = rows.us[row_numbers]
    if rows.ends is not None:
        # A missing bucket is a gap. Buckets may differ in length: a day may have 25 hours.
        is_first[1:] |= us[good][1:] > rows.ends[row_numbers][good][:-1]
    elif longest is not None:
        limit = _find_usual_gap(us) if isinstance(longest, str) else longest
        if limit is not None:
            is_first[1:] |= np.diff(us[good]) > limit
    return is_first


def _find_usual_gap(us: Int64Array) -> int | None:
    if len(us) <= _MIN_DISTANCES:
        return None
    distance_us = float(np.quantile(np.diff(us), 0.95, method="lower"))
    return int(3 * distance_us) if distance_us else None


def _thin_line(
    us: Int64Array, values: FloatArray, is_first: BoolArray, low: int, high: int, pixels: int
) -> Int64Array:
    """Return rows that draw the same line: of each pixel first, lowest, highest and last point."""
    if len(us) <= _POINTS_A_PIXEL * pixels:
        return np.arange(len(us))
    starts = _list_pixel_starts(us, is_first, low, high, pixels)
    ends = np.append(starts[1:], len(us))
    sizes = ends - starts
    candidates = [starts, ends - 1]
    for reduce in (np.minimum, np.maximum):
        best = np.repeat(reduce.reduceat(values, starts), sizes)
        hits = np.flatnonzero(values == best)
        _, once = np.unique(np.repeat(np.arange(len(starts)), sizes)[hits], return_index=True)
        candidates.append(hits[once])
    return np.unique(np.concatenate(candidates))


def _list_pixel_starts(
    us: Int64Array, is_first: BoolArray, low: int, high: int, pixels: int
) -> Int64Array:
    """Return the first row of each pixel; a row where a line begins also begins a pixel."""
    pixel = ((us - low) / max(high - low, 1) * (pixels - 1)).astype(np.int64)
    is_start = is_first.copy()
    is_start[1:] |= np.diff(pixel) > 0
    return np.flatnonzero(is_start)


def _pick_marks(rows: _Rows, values: FloatArray, marked: Int64Array, pixels: int) -> PlotMarks:
    """Return marks at rows, at most one for four pixels of the width and a 50th of the height."""
    if len(marked) > pixels:
        pixel = ((rows.us[marked] - rows.low) / max(rows.high - rows.low, 1) * pixels).astype(
            np.int64
        )
        size = float(np.ptp(values[marked])) or 1.0
        height = ((values[marked] - values[marked].min()) / size * 50).astype(np.int64)
        _, once = np.unique(pixel // 4 * 51 + height, return_index=True)
        marked = marked[np.sort(once)]
    sequences = rows.originals
    return PlotMarks(
        rows.us[marked],
        values[marked],
        values[rows.current[marked]],
        None if sequences is None else sequences[marked],
    )


def _make_band(
    rows: _Rows, row_numbers: Int64Array, lower: FloatArray, upper: FloatArray, pixels: int
) -> Band | None:
    good = np.isfinite(lower[row_numbers]) & np.isfinite(upper[row_numbers])
    is_first = _flag_breaks(rows, row_numbers, np.where(good, 0.0, np.nan), None)
    row_numbers = row_numbers[good]
    us, low, high = rows.us[row_numbers], lower[row_numbers], upper[row_numbers]
    ends = us if rows.ends is None else rows.ends[row_numbers]
    if len(us) > _POINTS_A_PIXEL * pixels:
        starts = _list_pixel_starts(us, is_first, rows.low, rows.high, pixels)
        low, high = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
        ends = ends[np.append(starts[1:], len(us)) - 1]
        us, is_first = us[starts], is_first[starts]
    return Band(us, ends, low, high, is_first)


# -- states ----------------------------------------------------------------------------------------


def _make_tracks(rows: _Rows, column: str, pixels: int, notes: list[str]) -> Iterator[StateTrack]:
    is_thinned = False
    states = rows.table[column].combine_chunks().dictionary_encode(null_encoding="encode")
    names = [
        None if value is None else _show_state(value) for value in states.dictionary.to_pylist()
    ]
    codes = states.indices.to_numpy().astype(np.int64)
    for position, name, series_rows in rows.by_series():
        current_rows = np.arange(series_rows.start, series_rows.stop)
        current_rows = current_rows[rows.current[series_rows] == current_rows]
        spans = _make_spans(
            rows, codes[current_rows], names, current_rows, (rows.high - rows.low) / pixels
        )
        is_thinned = is_thinned or any(span.state == SEVERAL for span in spans)
        yield StateTrack(name, position, spans)
    if is_thinned:
        notes.append(f"{column}: grey where a pixel has several states")


def _show_state(state: Any) -> str:
    return str(state).lower() if isinstance(state, bool) else escape_controls(str(state))


def _make_spans(
    rows: _Rows,
    codes: Int64Array,
    names: Sequence[str | None],
    row_numbers: Int64Array,
    pixel_us: float,
) -> tuple[Span, ...]:
    """Return how long each state lasts: until the next event, or the end of its bucket.

    Neighbours that are all narrower than a pixel become one span of several states.
    """
    if not len(row_numbers):
        return ()
    us = rows.us[row_numbers]
    until = np.append(us[1:], rows.high) if rows.ends is None else rows.ends[row_numbers]
    # A span begins where the state changes, or after a time without one.
    is_new = np.ones(len(row_numbers), bool)
    is_new[1:] = (np.diff(codes) != 0) | (us[1:] > until[:-1])
    starts = np.flatnonzero(is_new)
    lasts = np.append(starts[1:], len(row_numbers)) - 1
    has_state = np.array([names[code] is not None for code in codes[starts].tolist()], bool)
    starts, lasts = starts[has_state], lasts[has_state]
    if not len(starts):
        return ()
    begin, end, state = us[starts], until[lasts], codes[starts]
    # Join neighbours that are narrower than a pixel, and less than a pixel apart.
    is_short = end - begin < pixel_us
    is_joined = np.zeros(len(starts), bool)
    is_joined[1:] = is_short[1:] & is_short[:-1] & (begin[1:] - end[:-1] < pixel_us)
    heads = np.flatnonzero(~is_joined)
    tails = np.append(heads[1:], len(starts)) - 1
    return tuple(
        Span(int(begin[head]), int(end[tail]), SEVERAL if tail > head else str(names[state[head]]))
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True)
    )
