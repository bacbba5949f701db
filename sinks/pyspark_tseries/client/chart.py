"""A result as HTML for notebooks: a line chart of its first numeric column, and its last rows.

The chart is SVG, drawn in the colour of the page's text. Its horizontal axis is the timestamp in
UTC, its vertical one the column's values; both are labelled at their ends and in the middle. An
edit stands at the time of its original, whatever the query shows (semantics 21.12).
"""

import html
import math
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.instants import FINAL_US, MIN_US, format_instant
from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.columns import EDIT_TIME, EVENT_FIELDS, ORIGINAL_FIELDS

__all__ = ["render_html", "shown_times"]

WIDTH: Final = 640
HEIGHT: Final = 200
LEFT: Final = 96
RIGHT: Final = 24
TOP: Final = 24
BOTTOM: Final = 44
"""The margins in pixels; labels stand in them."""

MAX_POINTS: Final = WIDTH - LEFT - RIGHT
"""One a pixel; longer results are thinned evenly."""

MAX_ROWS_SHOWN: Final = 10


def render_html(table: pa.Table, selected: int) -> str:
    """An HTML fragment without scripts or outside references.

    Args:
        table: the events of one series, or some of their columns.
        selected: the number of events that the query found before its limit.
    """
    left_out = selected - table.num_rows
    more = f", {left_out} more beyond the limit" if left_out else ""
    noun = "event" if table.num_rows == 1 else "events"
    head = f"<p>{table.num_rows} {noun}{more}</p>"
    return f"<div>{head}{_render_chart(table)}{_render_rows(table)}</div>"


def _render_chart(table: pa.Table) -> str:
    column = _first_number(table)
    if column is None or "timestamp" not in table.column_names or table.num_rows < 2:
        return ""
    us = to_int64(shown_times(table))
    in_time = np.argsort(us, kind="stable")[:: -(-table.num_rows // MAX_POINTS)]
    stamps, values = us[in_time].tolist(), table[column].take(pa.array(in_time)).to_pylist()
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return ""
    times, heights = (min(stamps), max(stamps)), (min(finite), max(finite))
    label = html.escape(column)
    drawn = "".join(
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        for line in _polylines(stamps, values, times, heights)
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'fill="currentColor" font-family="sans-serif" font-size="11" '
        f'aria-label="{label} over time"><title>{label} over time</title>'
        f"{_render_axes(label, times, heights)}{drawn}</svg>"
    )


def shown_times(table: pa.Table) -> pa.ChunkedArray:
    """The times that the events of a result are of: of an edit that of its original."""
    if "original_timestamp" in table.column_names:
        return pc.coalesce(table["original_timestamp"], table["timestamp"])
    return table["timestamp"]


def _first_number(table: pa.Table) -> str | None:
    metadata = {field.name for field in (*EVENT_FIELDS, *ORIGINAL_FIELDS, EDIT_TIME)}
    for field in table.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        if number and field.name not in metadata:
            return str(field.name)
    return None


def _render_axes(label: str, times: tuple[int, int], heights: tuple[float, float]) -> str:
    """Both axes with ticks and labels, the name of the column above and of the time below."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<path d="M{LEFT},{TOP}V{bottom}H{right}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.5"/>',
        f'<text x="{LEFT}" y="{TOP - 10}" text-anchor="middle">{label}</text>',
        f'<text x="{(LEFT + right) // 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        "timestamp (UTC)</text>",
    ]
    for value in _ticks(*heights):
        y = _y(value, heights)
        parts.append(
            f'<path d="M{LEFT - 4},{y:.1f}H{LEFT}" stroke="currentColor"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>'
        )
    ticks = [int(us) for us in _ticks(*times)]
    for us, anchor in zip(ticks, ("start", "middle", "end"), strict=False):
        x = _x(us, times)
        parts.append(
            f'<path d="M{x:.1f},{bottom}v4" stroke="currentColor"/>'
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{_format_time(us)}</text>'
        )
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    if low == high:
        return [low]
    # Integers stay exact; halves, because the sum of the largest doubles overflows.
    exact = isinstance(low, int) and isinstance(high, int)
    return [low, low + (high - low) // 2 if exact else low / 2 + high / 2, high]


def _format_time(us: int) -> str:
    text = format_instant(min(max(us, MIN_US), FINAL_US))
    return text.removesuffix("Z").replace("T", " ")


def _x(us: float, times: tuple[int, int]) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * _fraction(us, *times)


def _y(value: float, heights: tuple[float, float]) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _fraction(value, *heights)


def _fraction(value: float, low: float, high: float) -> float:
    # Halved, so that the range of the largest doubles does not overflow.
    return 0.5 if high == low else (value / 2 - low / 2) / (high / 2 - low / 2)


def _polylines(
    stamps: list[int],
    values: list[float | None],
    times: tuple[int, int],
    heights: tuple[float, float],
) -> list[str]:
    """The points of the lines; a null, NaN or infinity ends one line."""
    lines: list[list[str]] = [[]]
    for us, value in zip(stamps, values, strict=True):
        if value is None or not math.isfinite(value):
            lines.append([])
            continue
        lines[-1].append(f"{_x(us, times):.1f},{_y(value, heights):.1f}")
    return [" ".join(line) for line in lines if line]


def _render_rows(table: pa.Table) -> str:
    shown = table.slice(max(0, table.num_rows - MAX_ROWS_SHOWN))
    edited = (*ORIGINAL_FIELDS, EDIT_TIME)
    hidden = {"series", *(field.name for field in edited if _is_null(table, field.name))}
    names = [name for name in shown.column_names if name not in hidden]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    cells = [map(_cell_text, shown[name]) for name in names]
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
        for row in zip(*cells, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _is_null(table: pa.Table, name: str) -> bool:
    return name in table.column_names and table[name].null_count == table.num_rows


def _cell_text(cell: pa.Scalar) -> str:
    try:
        value = cell.as_py()
    except OverflowError:
        return "(a time outside the years 1 to 9999)"
    return "" if value is None else str(value)
