"""Define the client's results: events and receipts, also as data frames, HTML and charts.

    chart = store.range_query().select_from(["kitchen", "hall"]).chart("celsius")
    chart.save("rooms.svg")

`chart/figure.py` decides what a `Chart` shows, and `chart/svg.py` draws it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import available_timezones

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.instants import FINAL_US, MIN_US, format_instant
from pyspark_timestream.core.processes import lazy
from pyspark_timestream.errors import show_value
from pyspark_timestream.report import PAGE_COLOURS, format_count, html_table
from pyspark_tseries.chart.figure import (
    USUAL,
    ChartRequest,
    Figure,
    Shape,
    build_figure,
    format_moment,
    is_line,
    show_number,
    shown_times,
)
from pyspark_tseries.chart.svg import draw_svg
from pyspark_tseries.errors import InvalidQuery, import_library
from pyspark_tseries.model.arrays import is_same, list_values, to_int64
from pyspark_tseries.model.buckets import parse_length, parse_zone
from pyspark_tseries.model.columns import (
    EDIT_TIME,
    EVENT_FIELDS,
    INSTANT,
    ORIGINAL_FIELDS,
    label_column,
    list_python_values,
    originals_of,
    widen_rows,
)
from pyspark_tseries.model.ranges import to_whole
from pyspark_tseries.write.numbering import NumberedRows

MAX_SERIES: Final = 8
"""Up to this many lines have different colours."""

_WIDTHS: Final = 240, 4000
_HEIGHTS: Final = 40, 2000
_THEMES: Final = ("auto", *PAGE_COLOURS)


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart; in a notebook it shows itself.

    Attributes:
        figure: what it shows.
        width: its width in pixels.
        height: the height of each panel of numbers in pixels.
        theme: `light`, `dark`, or `auto`, which follows the reader's settings.
    """

    figure: Figure
    width: int
    height: int
    theme: str

    def to_svg(self) -> str:
        """Return the chart as the text of an SVG file, with a page in the colours of its theme."""
        return draw_svg(self.figure, self.width, self.height, self.theme)

    def to_png(self, scale: float = 2.0) -> bytes:
        """Return the chart as the bytes of a PNG file, `scale` times as wide; `auto` is light.

        Raises:
            ModuleNotFoundError: the extra `png` is not installed.
            InvalidQuery: `scale` is not from 0.1 to 10, or this machine has no known font.
        """
        if not isinstance(scale, int | float) or not 0.1 <= scale <= 10:
            raise InvalidQuery(f"scale {scale!r} is not a scale", "from 0.1 to 10", "correct it")
        return _render_png(self.to_svg(), scale)

    def save(self, path: str | os.PathLike[str], scale: float = 2.0) -> None:
        """Write the chart to a file named `*.svg` or `*.png`; `scale` applies to PNG only.

        Raises:
            InvalidQuery: the name ends otherwise; or as `to_png`.
            ModuleNotFoundError: as `to_png`.
            OSError: the file cannot be written.
        """
        target = Path(path)
        ending = target.suffix.lower()
        if ending not in (".svg", ".png"):
            raise InvalidQuery(
                f"a chart cannot be written to '{target}'",
                "a name that ends with .svg or .png",
                "rename it",
            )
        content = self.to_svg().encode() if ending == ".svg" else self.to_png(scale)
        target.write_bytes(content)

    def _repr_html_(self) -> str:
        # An inline SVG takes the colours of the page, and so of a notebook's theme.
        theme = None if self.theme == "auto" else self.theme
        return draw_svg(self.figure, self.width, self.height, theme)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"Chart({self.figure.describe()})"


def make_chart(
    table: pa.Table,
    shape: Shape,
    *,
    columns: str | Iterable[str] | None = None,
    max_series: int = MAX_SERIES,
    timezone: str | None = None,
    units: Mapping[str, str] | None = None,
    longest_gap: str | timedelta | None = USUAL,
    title: str | None = None,
    width: int = 720,
    height: int = 160,
    theme: str = "auto",
) -> Chart:
    """Return a chart of a result; the arguments are as for `QueryResult.chart`."""
    if theme not in _THEMES:
        raise InvalidQuery(f"{theme!r} is not a theme", ", ".join(_THEMES), "name one of these")
    series_count = to_whole(max_series)
    if series_count < 1:
        raise InvalidQuery(f"max_series {series_count} is below 1", "1 or more", "correct it")
    request = ChartRequest(
        columns=_parse_columns(columns),
        max_series=series_count,
        zone=shape.zone if timezone is None else find_zone(timezone),
        units=_check_units(units or {}, shape),
        longest_gap=_parse_gap(longest_gap),
        title=title,
        pixels=_check_size("width", width, _WIDTHS),
    )
    high = _check_size("height", height, _HEIGHTS)
    return Chart(build_figure(table, shape, request), request.pixels, high, theme)


def _parse_columns(columns: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidQuery(
            f"columns {show_value(columns)} are not names of columns",
            "a name, several, or None for those that can be drawn",
            "correct it",
        )
    return tuple(dict.fromkeys(names))


def _check_units(units: Mapping[str, str], shape: Shape) -> dict[str, str]:
    if not isinstance(units, Mapping):
        raise InvalidQuery(
            f"units {show_value(units)} are not units of columns",
            "a mapping of names to texts, such as {'celsius': '°C'}",
            "correct it",
        )
    for name, unit in units.items():
        if name not in shape.values or not isinstance(unit, str):
            raise InvalidQuery(
                f"units: {show_value(name)} has no unit {show_value(unit)} in this result",
                f"texts for the columns {', '.join(shape.values) or '(none)'}",
                "correct it",
            )
    return dict(units)


def _check_size(name: str, size: int, ends: tuple[int, int]) -> int:
    pixels = to_whole(size)
    if not ends[0] <= pixels <= ends[1]:
        raise InvalidQuery(
            f"{name} {pixels} is not a {name} of a chart",
            f"{ends[0]} to {ends[1]} pixels",
            "correct it",
        )
    return pixels


def _parse_gap(gap: str | timedelta | None) -> int | str | None:
    if gap is None or (isinstance(gap, str) and gap == USUAL):
        return gap
    us = parse_length(gap)
    if us is None:
        raise InvalidQuery(
            f"longest_gap {show_value(gap)} is not the length of a gap",
            f"a duration such as '5 minutes', a timedelta, '{USUAL}', or None for lines without "
            "gaps",
            "correct it",
        )
    return us


# -- time zones ------------------------------------------------------------------------------------

LOCAL: Final = "local"
"""Names the time zone of this machine."""


ZONE_ARGUMENT: Final[dict[str, dict[str, Any]]] = {
    "--timezone": {
        "default": LOCAL,
        "metavar": "ZONE",
        "help": "an IANA name, or UTC; default: this machine's zone",
    }
}
"""The argument of the commands that show times."""


def find_zone(name: str | None) -> str | None:
    """Return what `parse_zone` returns; `LOCAL` stands for this machine's zone."""
    if name == LOCAL:
        return _find_local_zone()
    return parse_zone(
        name, f"an IANA name such as 'Europe/Berlin', or '{LOCAL}' for this machine's"
    )


def _find_local_zone() -> str | None:
    """Return the IANA name of this machine's zone; None if it is UTC or unknown."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        name = os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    is_utc = name in ("UTC", "Etc/UTC", "Etc/UCT", "Zulu")
    return name if name in available_timezones() and not is_utc else None


# -- PNG -------------------------------------------------------------------------------------------

_FAMILIES: Final = (
    *("Arial", "Liberation Sans", "DejaVu Sans", "Noto Sans", "Helvetica", "Nimbus Sans"),
    *("FreeSans", "Ubuntu", "Cantarell", "Open Sans", "Roboto", "Segoe UI", "Verdana"),
)
"""Fonts of common systems, best first; resvg does not ask the system for its default."""

_LETTER: Final = '<text y="15" font-family="sans-serif">M</text>'
_PROBE: Final = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'


def _render_png(picture: str, scale: float) -> bytes:
    resvg_py = import_library(
        "resvg_py",
        "a chart as PNG needs resvg, which is not installed",
        "pip install 'pyspark-timestream[png]', or save it as .svg",
    )

    def render(text: str, zoom: float, family: str) -> bytes:
        png = resvg_py.svg_to_bytes(
            svg_string=text, zoom=zoom, font_family=family, sans_serif_family=family
        )
        return bytes(png)

    # resvg silently leaves out text in a family that is not installed.
    empty = render(_PROBE.format(""), 1, _FAMILIES[0])
    for family in _FAMILIES:
        if render(_PROBE.format(_LETTER), 1, family) != empty:
            return render(picture, scale, family)
    raise InvalidQuery(
        f"this machine has none of the fonts {', '.join(_FAMILIES)}, so a PNG would have no text",
        "a machine with one of them",
        "install one, such as Debian's package fonts-dejavu-core, or save it as .svg",
    )


MAX_ROWS_SHOWN: Final = 10

_EDITED: Final = [field.name for field in (*ORIGINAL_FIELDS, EDIT_TIME)]
_METADATA: Final = [*(field.name for field in EVENT_FIELDS), *_EDITED]
"""The columns of a result that are not values."""


def render_html(table: pa.Table, selected: int, shape: Shape, noun: str = "event") -> str:
    """Return an HTML fragment without scripts or outside references; all times are in one zone."""
    left_out = selected - table.num_rows
    more = f", {left_out} more beyond the limit" if left_out else ""
    noun = noun if table.num_rows == 1 else f"{noun}s"
    head = f"{table.num_rows} {noun}{more}"
    zone, picture = shape.zone, ""
    if _has_chart(table, shape):
        chart = make_chart(table, replace(shape, left_out=0))
        zone, picture = chart.figure.zone, chart._repr_html_()
    elif INSTANT in table.schema.types:
        head += f", times in {zone or 'UTC'}"  # A chart has this in its notes.
    return f"<div><p>{head}</p>{picture}{_render_rows(table, zone)}</div>"


def _has_chart(table: pa.Table, shape: Shape) -> bool:
    """Return whether a chart would show more than the rows do."""
    if "timestamp" not in table.column_names or table.num_rows < 2:
        return False
    types = {name: table.schema.field(name).type for name in shape.values}
    drawn = [
        n for n, data_type in types.items() if is_line(data_type) or pa.types.is_boolean(data_type)
    ]
    return any(table[name].null_count < table.num_rows for name in drawn)


def _render_rows(table: pa.Table, zone: str | None) -> str:
    newest = table.slice(max(0, table.num_rows - MAX_ROWS_SHOWN))
    shown = [name for name in _EDITED if name in table.column_names]
    hidden = {name for name in shown if table[name].null_count == table.num_rows}
    if "series" in table.column_names and len(table["series"].unique()) < 2:
        hidden.add("series")
    names = [name for name in newest.column_names if name not in hidden]
    heads = [label_column(table.schema.field(name)) for name in names]
    columns = ([format_cell(cell, zone) for cell in newest[name]] for name in names)
    return html_table(heads, list(zip(*columns, strict=True)))


def format_cell(cell: pa.Scalar, zone: str | None) -> str:
    """Return a value as a text, a time by the clock of a zone, also inside others; a null is ""."""
    if not cell.is_valid:
        return ""
    try:
        return _format_value(cell, zone)
    except OverflowError:
        return "(a time outside the years 1 to 9999)"


def format_briefly(cell: pa.Scalar, zone: str | None) -> str:
    """Return a value as `format_cell` does, a number with few digits."""
    if pa.types.is_floating(cell.type) and cell.is_valid:
        return show_number(cell.as_py())
    return format_cell(cell, zone)


def _format_value(cell: pa.Scalar, zone: str | None) -> str:
    if not pa.types.is_nested(cell.type):
        value = cell.as_py()  # Raises OverflowError for a time that no datetime has.
        return format_moment(cell.value, zone) if cell.type == INSTANT else str(value)
    if pa.types.is_struct(cell.type):
        parts = {repr(field.name): _format_inner(cell[field.name], zone) for field in cell.type}
    elif pa.types.is_map(cell.type):
        parts = {
            _format_inner(entry["key"], zone): _format_inner(entry["value"], zone)
            for entry in cell.values
        }
    else:
        return f"[{', '.join(_format_inner(item, zone) for item in cell.values)}]"
    return f"{{{', '.join(f'{name}: {text}' for name, text in parts.items())}}}"


def _format_inner(cell: pa.Scalar, zone: str | None) -> str:
    """Return a value inside another one: a text or bytes in quotes, a null as such."""
    if not cell.is_valid:
        return "null"
    is_quoted = pa.types.is_string(cell.type) or pa.types.is_binary(cell.type)
    return repr(cell.as_py()) if is_quoted else _format_value(cell, zone)


if TYPE_CHECKING:
    import pandas
    import polars


_NULLABLE: Final = {
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.bool_(): "boolean",
}
"""The pandas types of whole numbers and Booleans that can also hold a null."""


RECEIPT_SCHEMA: Final = pa.schema([field.with_nullable(True) for field in EVENT_FIELDS])
"""The columns that `append_many` returns."""


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """The metadata of an event; `timestamp` is in UTC."""

    sequence: int
    timestamp: datetime
    author: str


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event.

    Attributes:
        sequence: its number in its series.
        timestamp: its time, in UTC; a `values` query gives that of the original, edited or not.
        author: who wrote it.
        value: the value of the only value column; otherwise a mapping of names to values.
        original: the event that it overrides; None for an original.
        edit_timestamp: when the edit was made; None for an original.
        series: the name of its series; None if the query left it out.
    """

    sequence: int
    timestamp: datetime
    author: str
    value: Any
    original: EventMetadata | None = None
    edit_timestamp: datetime | None = None
    series: str | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether all is equal; a NaN equals a NaN, as the same value of the same event."""
        if not isinstance(other, Event):
            return NotImplemented
        same = self._key() == other._key() and self.edit_timestamp == other.edit_timestamp
        return same and is_same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.series, self.sequence, self.timestamp, self.author, self.original

    @property
    def is_edit(self) -> bool:
        """Whether it overrides another event."""
        return self.original is not None

    @property
    def original_sequence(self) -> int:
        """The sequence that an edit of this event names: its original's, or its own."""
        return self.sequence if self.original is None else self.original.sequence


@dataclass(frozen=True, eq=False)
class TableResult:
    """A result of the client as a table and as frames.

    Attributes:
        table: the rows.
    """

    table: pa.Table

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table.

        In a query of `values`, `timestamp` is the original's, so times are in order.
        """
        return self.table

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a pandas frame that keeps every value.

        Times are `datetime64[us, UTC]`. Integers have pandas' nullable types and Booleans
        `boolean`, with or without nulls, so a null never turns integers into floats. Lists, maps
        and structs have Arrow's types. A null float is NaN.
        """
        import pandas

        def pandas_type(data_type: pa.DataType) -> Any:
            if data_type in _NULLABLE:
                return pandas.api.types.pandas_dtype(_NULLABLE[data_type])
            # NumPy's types would turn a list with a null into floats.
            return pandas.ArrowDtype(data_type) if pa.types.is_nested(data_type) else None

        frame: pandas.DataFrame = self.table.to_pandas(types_mapper=pandas_type)
        return frame

    def to_polars(self) -> "polars.DataFrame":
        """Return the rows as a Polars frame; times are `Datetime('us', 'UTC')`, nulls stay null.

        Raises:
            ModuleNotFoundError: Polars is not installed; the message says how to install it.
        """
        library = import_library(
            "polars", "to_polars() needs Polars, which is not installed", "pip install polars"
        )
        frame: polars.DataFrame = library.from_arrow(self.table)
        return frame

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True, eq=False)
class QueryResult(TableResult):
    """The result of a range query on one series or on several, in the order of their names.

    Attributes:
        table: the events: metadata, values, original's metadata and `edit_timestamp`, as a read
            through Spark has them, or the columns asked for.
        selected_count: the number of events that the query found, before its limit.
        kind: the kind of the query: `values`, `allEdits` or `latestEdits`.
    """

    selected_count: int
    kind: str = "values"

    @property
    def is_complete(self) -> bool:
        """Whether the limit left nothing out."""
        return self.selected_count == len(self)

    @lazy
    def events(self) -> tuple[Event, ...]:
        """The events, series by series, in the order of the query.

        Raises:
            IncompatibleValue: a column has a time that no Python datetime or date can hold.
            InvalidQuery: the query left out some of their metadata.
        """
        self._need(_METADATA[1:], "events")
        names = self.table.column_names
        values = [name for name in names if name not in _METADATA]
        step = "take the result with to_arrow(), or cast the column before it is appended"
        cells = [list_python_values(self.table, name, step) for name in names]
        rows = zip(*cells, strict=True)
        return tuple(_build_event(dict(zip(names, row, strict=True)), values) for row in rows)

    def chart(
        self,
        columns: str | Iterable[str] | None = None,
        *,
        max_series: int = MAX_SERIES,
        timezone: str | None = None,
        units: Mapping[str, str] | None = None,
        longest_gap: str | timedelta | None = USUAL,
        title: str | None = None,
        width: int = 720,
        height: int = 160,
        theme: str = "auto",
    ) -> Chart:
        """Return a chart: a panel for each column, with a line or a row of states for each series.

        Notes below the chart say what it leaves out. Edited values are marked.

        Args:
            columns: numbers are drawn as lines, Booleans and texts as states that last until the
                next event. None: the first four with numbers or Booleans, else with texts.
            max_series: how many series are drawn, by the order of the result.
            timezone: an IANA name such as `Europe/Berlin`, or `local`; None: UTC.
            units: the units of columns; by default those of the store, see `TimeSeries.create`.
            longest_gap: a line ends where two events are further apart than this: a duration such
                as `5 minutes`; `usual`: three times as long as 95 % of the distances of the
                series; None: lines have gaps only at missing values.
            title: the title; None: the name of the series, if there is one.
            width: the width in pixels.
            height: the height of each panel of numbers in pixels.
            theme: `light`, `dark`, or `auto`, which follows the page, or the reader's settings.

        Raises:
            InvalidQuery: the result lacks `timestamp` or a column, a column has a type that cannot
                be drawn, or an argument is not valid.
        """
        return make_chart(
            self.table,
            self._shape,
            columns=columns,
            max_series=max_series,
            timezone=timezone,
            units=units,
            longest_gap=longest_gap,
            title=title,
            width=width,
            height=height,
            theme=theme,
        )

    @property
    def _shape(self) -> Shape:
        names = self.table.column_names
        group = "series" if "series" in names else None
        values = tuple(name for name in names if name not in _METADATA)
        return Shape(group, values, left_out=self.selected_count - len(self))

    def merge(self, other: "QueryResult") -> "QueryResult":
        """Bring this result up to date with `other`, a later one of the same series.

        An event of `other` replaces one of the same sequence. Only the highest sequence among an
        original and its edits stays, in the original's place and at its time. The result is
        complete.

        Raises:
            InvalidQuery: the results are of different series, or lack a column that this needs.
        """
        for result in (self, other):
            result._need(["series", "sequence", "original_sequence"], "merge")
        names = {
            name for result in (self, other) for name in result.table["series"].unique().to_pylist()
        }
        if len(names) > 1:
            series = ", ".join(sorted(f"'{name}'" for name in names))
            raise InvalidQuery(
                f"the results are of different series, {series}",
                "results of one series",
                "merge those of each series by themselves",
            )
        # `other` comes first, so that its events win in `np.unique`.
        tables = [_show_originals(result) for result in (other, self)]
        # A column may have got a wider type in the meantime.
        tables = [widen_rows(table, list(tables[0].schema)) for table in tables]
        events = pa.concat_tables(tables, promote_options="default")
        sequence = to_int64(events["sequence"])
        _, rows_by_sequence = np.unique(sequence, return_index=True)
        original = to_int64(originals_of(events))[rows_by_sequence]
        # The last row of each original has the highest sequence.
        _, from_end = np.unique(original[::-1], return_index=True)
        newest_rows = rows_by_sequence[len(rows_by_sequence) - 1 - from_end]
        return QueryResult(events.take(pa.array(newest_rows)), len(newest_rows))

    def __eq__(self, other: object) -> bool:
        """Return whether kind, columns, events and counts are equal; a NaN equals a NaN."""
        if not isinstance(other, QueryResult):
            return NotImplemented
        counts = (self.kind, self.selected_count) == (other.kind, other.selected_count)
        if not counts or self.table.schema != other.table.schema:
            return False
        return all(map(is_same_column, self.table.columns, other.table.columns))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        names = self.table.column_names
        facts = []
        if "series" in names and len(self):
            series = self.table["series"].unique()
            facts.append(f"'{series[0]}'" if len(series) == 1 else f"{len(series):,} series")
        more = self.selected_count - len(self)
        facts.append(
            format_count(len(self), "event") + (f", {more} more beyond the limit" if more else "")
        )
        if "timestamp" in names and len(self):
            us = to_int64(shown_times(self.table))
            facts.append(format_span(int(us.min()), int(us.max())))
        return f"QueryResult({', '.join(facts)})"

    def _repr_html_(self) -> str:
        return render_html(self.table, self.selected_count, self._shape)

    def _need(self, columns: Sequence[str], user: str) -> None:
        lacking = [name for name in columns if name not in self.table.column_names]
        if lacking:
            raise InvalidQuery(
                f"{user} needs the columns {', '.join(lacking)}, which the query left out",
                "a result with them",
                "name them in columns(), or use to_arrow(), to_pandas() or to_polars()",
            )


def is_same_column(column: pa.ChunkedArray, other_column: pa.ChunkedArray) -> bool:
    """Return whether two columns are equal; a NaN equals a NaN."""
    if column.equals(other_column):
        return True
    # In Arrow a NaN equals nothing, and these columns may have some.
    has_floats = any(name in str(column.type) for name in ("float", "double"))
    return (
        has_floats
        and len(column) == len(other_column)
        and is_same(list_values(column), list_values(other_column))
    )


def _show_originals(result: QueryResult) -> pa.Table:
    """Return the table of a result, with times as a `values` query shows them."""
    table = result.table
    if result.kind == "values" or "timestamp" not in table.column_names:
        return table
    result._need(["original_timestamp"], "merge")
    column_index = table.column_names.index("timestamp")
    return table.set_column(column_index, EVENT_FIELDS[2], shown_times(table))


def format_span(first_us: int, last_us: int) -> str:
    """Format the time from `first_us` to `last_us`, both inclusive, for people."""
    ends = (format_instant(min(max(us, MIN_US), FINAL_US)) for us in (first_us, last_us))
    return " to ".join(dict.fromkeys(ends))


def _build_event(row: Mapping[str, Any], values: list[str]) -> Event:
    original = None
    if row["original_sequence"] is not None:
        original = EventMetadata(*(row[field.name] for field in ORIGINAL_FIELDS))
    value = row[values[0]] if len(values) == 1 else {name: row[name] for name in values}
    edited = row[EDIT_TIME.name]
    fields = row["sequence"], row["timestamp"], row["author"], value, original, edited
    return Event(*fields, row.get("series"))


def build_receipt(rows: pa.Table, numbered: Sequence[NumberedRows], author: str) -> pa.Table:
    """Return the metadata of each row of a batch, in its order; nulls for a dropped row."""
    edit = rows["original_sequence"].is_valid().to_numpy()
    sequence = np.zeros(len(rows), np.int64)
    stamp, is_stored = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    # The events of each kind, appends or edits, refer to the rows of that kind.
    row_groups = (
        [np.flatnonzero(~edit), np.flatnonzero(edit)] if edit.any() else [np.arange(len(rows))]
    )
    for rows_of_group, events in zip(row_groups, numbered, strict=True):
        rows_of_batch = rows_of_group[events.order]
        sequence[rows_of_batch] = events.sequence
        stamp[rows_of_batch] = events.timestamp_us
        is_stored[rows_of_batch] = True
    columns = [
        rows["series"],
        pa.array(sequence, mask=~is_stored),
        pa.array(stamp, mask=~is_stored).cast(INSTANT),
        rows["author"].fill_null(author),
    ]
    return pa.Table.from_arrays(columns, schema=RECEIPT_SCHEMA)
