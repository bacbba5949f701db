"""A result as a small page for notebooks: a line chart of its first number, and its last rows."""

import html
import math
from typing import Final

import pyarrow as pa

from pyspark_tseries.model.columns import EVENT, ORIGINAL

__all__ = ["page"]

WIDTH: Final = 480
HEIGHT: Final = 96
MARGIN: Final = 6
MOST_POINTS: Final = 480
"""One a pixel; longer results are thinned evenly."""

ROWS_SHOWN: Final = 10


def page(table: pa.Table, selected: int) -> str:
    """An HTML fragment without scripts or outside references.

    Args:
        table: the events of one series.
        selected: how many the query found before its limit.
    """
    left_out = selected - table.num_rows
    more = f", {left_out} more beyond the limit" if left_out else ""
    noun = "event" if table.num_rows == 1 else "events"
    head = f"<p>{table.num_rows} {noun}{more}</p>"
    return f"<div>{head}{_chart(table)}{_rows(table)}</div>"


def _chart(table: pa.Table) -> str:
    fixed = {field.name for field in (*EVENT, *ORIGINAL)}
    numbers = [
        field.name
        for field in table.schema
        if field.name not in fixed
        and (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
    ]
    if not numbers or table.num_rows < 2:
        return ""
    step = -(-table.num_rows // MOST_POINTS)
    some = table.take(list(range(0, table.num_rows, step)))
    stamps = some["timestamp"].cast(pa.int64()).to_pylist()
    values = some[numbers[0]].to_pylist()
    lines = _lines(stamps, values)
    if not lines:
        return ""
    drawn = "".join(
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        for line in lines
    )
    label = html.escape(numbers[0])
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{label} over time"><title>{label}</title>{drawn}</svg>'
    )


def _lines(stamps: list[int], values: list[float | None]) -> list[str]:
    """The points of the lines; a value that is no number ends one line."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return []
    low, high, first, last = min(finite), max(finite), min(stamps), max(stamps)
    lines: list[list[str]] = [[]]
    for us, value in zip(stamps, values, strict=True):
        if value is None or not math.isfinite(value):
            lines.append([])
            continue
        x = MARGIN + (WIDTH - 2 * MARGIN) * _share(us, first, last)
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * _share(value, low, high)
        lines[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(line) for line in lines if line]


def _share(value: float, low: float, high: float) -> float:
    # Halved, so that the range of the largest doubles does not overflow.
    return 0.5 if high == low else (value / 2 - low / 2) / (high / 2 - low / 2)


def _rows(table: pa.Table) -> str:
    shown = table.slice(max(0, table.num_rows - ROWS_SHOWN))
    names = [name for name in shown.column_names if name != "series"]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    cells = [map(_text, shown[name]) for name in names]
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
        for row in zip(*cells, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(cell: pa.Scalar) -> str:
    try:
        value = cell.as_py()
    except OverflowError:
        return "(a time outside the years 1 to 9999)"
    return "" if value is None else str(value)
