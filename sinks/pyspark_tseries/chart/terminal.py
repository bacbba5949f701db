"""Draw a figure as text: in Braille dots, or in ASCII if a terminal has nothing else.

A cell of Braille has two columns and four rows of dots, a cell of ASCII one column and two rows.
Colours tell series apart; without colours each series has its own panel.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from pyspark_timestream.report import cell_width, cut_text, pad, wrap_text
from pyspark_tseries.chart.figure import (
    EDITED,
    SEVERAL,
    Figure,
    Line,
    Panel,
    StateTrack,
    TimeAxis,
    fit_time_axis,
    number_axis,
    show_number,
)
from pyspark_tseries.model.arrays import FloatArray, Int64Array

_BRAILLE: Final = 0x2800
_DOTS: Final = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)
"""The bit of each dot of a cell, by row and column."""

_COLOURS: Final = (33, 208, 36, 170, 141, 78, 203, 175)
"""Codes of the 256 colours, similar to a picture's colours."""

_ToFraction = Callable[[np.ndarray], np.ndarray]
"""Returns where values are on an axis, from 0 to 1."""

_MAX_LABEL: Final = 18
_MIN_COLUMNS: Final = 10


@dataclass(frozen=True, slots=True)
class Style:
    """How text is drawn: `width` in columns, `height` of a panel in rows."""

    width: int
    height: int
    has_colours: bool
    is_ascii: bool

    @property
    def pixels(self) -> int:
        """The width in dots."""
        return self.width * (1 if self.is_ascii else 2)

    def text(self, text: str) -> str:
        """Return a text in letters that the terminal has."""
        return text.encode("ascii", "backslashreplace").decode() if self.is_ascii else text


def draw_text(figure: Figure, style: Style) -> str:
    """Return the lines of a picture, each at most `style.width` columns wide."""
    title = [cut_text(style.text(figure.title), style.width)] if figure.title else []
    notes = [style.text(note.replace(EDITED, f"{_choose_mark(style)} ")) for note in figure.notes]
    if not figure.panels:
        return "\n".join([*title, "no events", *_wrap_notes(notes, style)])
    panels = list(figure.panels if style.has_colours else _divide_panels(figure))
    label_width = min(max(_measure_labels(panel, style) for panel in panels), style.width // 3)
    columns = max(style.width - label_width - 2, _MIN_COLUMNS)
    times = fit_time_axis(figure.low, figure.high, figure.zone, columns, len)
    lines = title
    for panel in panels:
        lines += _draw_panel(panel, times, style, label_width, columns)
    lines += _draw_times(times, style, label_width, columns)
    lines += ["", *_wrap_notes([f"times in {figure.zone or 'UTC'}", *notes], style)]
    return "\n".join(line.rstrip() for line in lines)


def _wrap_notes(notes: Sequence[str], style: Style) -> list[str]:
    return [line for note in notes for line in wrap_text(note, style.width)]


def _choose_mark(style: Style) -> str:
    """Return the mark of an edited value."""
    return "#" if style.is_ascii else EDITED.strip()


def _divide_panels(figure: Figure) -> Iterator[Panel]:
    """Yield a panel for each line of a panel, with the same axis."""
    for panel in figure.panels:
        if len(panel.lines) < 2:
            yield panel
            continue
        for line in panel.lines:
            yield replace(panel, title=f"{panel.title}, {line.name}", lines=(line,))


def _add_colour(text: str, position: int, style: Style) -> str:
    if not style.has_colours:
        return text
    return f"\x1b[38;5;{_COLOURS[position % len(_COLOURS)]}m{text}\x1b[0m"


# -- numbers ---------------------------------------------------------------------------------------


def _count_ticks(style: Style) -> int:
    return max(2, style.height // 2)


def _measure_labels(panel: Panel, style: Style) -> int:
    if panel.tracks:
        return max(min(cell_width(style.text(track.name)), _MAX_LABEL) for track in panel.tracks)
    axis = number_axis(panel.low, panel.high, _count_ticks(style), is_whole=panel.is_whole)
    return max(map(len, axis.labels), default=0)


def _draw_panel(
    panel: Panel, times: TimeAxis, style: Style, label_width: int, columns: int
) -> Iterator[str]:
    axis = number_axis(panel.low, panel.high, _count_ticks(style), is_whole=panel.is_whole)
    unit = f" ({panel.unit})" if panel.unit else ""
    hint = f" from {axis.base:,.15g}" if axis.base and not panel.tracks else ""
    hint += f" x10^{axis.exponent}" if axis.exponent and not panel.tracks else ""
    yield cut_text(style.text(f"{panel.title}{unit}{hint}"), style.width)
    if panel.tracks:
        yield from _draw_states(panel, times, style, label_width, columns)
        return
    if panel.is_empty:
        yield f"{' ' * label_width}  no values"
        return
    yield from _draw_legend(panel.lines, style)
    canvas = _Canvas(columns, style)
    for line in panel.lines:
        if len(line.us):
            canvas.draw(line, times.fraction, axis.fraction)
    labels = {}
    for fraction, label in zip(axis.tick_fractions, axis.labels, strict=True):
        labels[round((1 - fraction) * (style.height - 1))] = label
    bar, tick_bar = ("|", "+") if style.is_ascii else ("\N{BOX DRAWINGS LIGHT VERTICAL}", "┤")
    for row, text in enumerate(canvas.lines()):
        label = labels.get(row, "")
        yield f"{pad(label, label_width, to_right=True)} {tick_bar if label else bar}{text}"


def _draw_legend(lines: Sequence[Line], style: Style) -> Iterator[str]:
    """Draw the names of several series in their colours, with their last values."""
    if not style.has_colours or len(lines) < 2:
        return
    width, legend = 0, ""
    for line in lines:
        last_value = "no values" if line.last is None else show_number(line.last)
        name = cut_text(style.text(line.name), min(30, style.width - len(last_value) - 1))
        text = f"{name} {last_value}"
        if legend and width + cell_width(text) + 2 > style.width:
            yield legend
            width, legend = 0, ""
        legend += ("  " if legend else "") + _add_colour(text, line.position, style)
        width += cell_width(text) + 2
    yield legend


class _Canvas:
    """Dots, and marks over them; a cell has the colour of the last line with a dot in it."""

    def __init__(self, columns: int, style: Style) -> None:
        self._style = style
        self._across, self._down = (1, 2) if style.is_ascii else (2, 4)
        self._dots = np.zeros((style.height * self._down, columns * self._across), bool)
        self._positions = np.full((style.height, columns), -1)
        self._marks: dict[tuple[int, int], str] = {}

    def draw(self, line: Line, to_x: _ToFraction, to_y: _ToFraction) -> None:
        """Draw a line, and mark its edited values."""
        height, width = self._dots.shape

        def to_columns(us: Int64Array) -> list[int]:
            positions = np.rint(to_x(us) * (width - 1))
            return [int(x) for x in np.clip(positions, 0, width - 1)]

        def to_rows(values: FloatArray) -> list[int]:
            positions = np.rint((1 - to_y(values)) * (height - 1))
            return [int(y) for y in np.clip(positions, 0, height - 1)]

        xs, ys, is_first = to_columns(line.us), to_rows(line.values), line.is_first.tolist()
        ends = None if line.ends is None else to_columns(line.ends)
        for point, (x, y) in enumerate(zip(xs, ys, strict=True)):
            goes_on = point + 1 < len(xs) and not is_first[point + 1]
            next_x, next_y = (xs[point + 1], ys[point + 1]) if goes_on else (x, y)
            if ends is None:
                self._draw_line(x, y, next_x, next_y, line.position)
            else:  # A step: the value holds to the next one, or to the end of its bucket.
                stop = next_x if goes_on else ends[point]
                self._draw_line(x, y, stop, y, line.position)
                self._draw_line(stop, y, stop, next_y, line.position)
        mark = _choose_mark(self._style)
        for y, x in zip(to_rows(line.edited.values), to_columns(line.edited.us), strict=True):
            cell = y // self._down, x // self._across
            self._marks[cell] = mark
            self._positions[cell] = line.position

    def _draw_line(self, x: int, y: int, to_x: int, to_y: int, position: int) -> None:
        steps = max(abs(to_x - x), abs(to_y - y))
        xs = np.rint(np.linspace(x, to_x, steps + 1)).astype(int)
        ys = np.rint(np.linspace(y, to_y, steps + 1)).astype(int)
        self._dots[ys, xs] = True
        self._positions[ys // self._down, xs // self._across] = position

    def lines(self) -> Iterator[str]:
        """Yield the rows as text."""
        rows, columns = self._positions.shape
        cells = self._dots.reshape(rows, self._down, columns, self._across).transpose(0, 2, 1, 3)
        for row in range(rows):
            chars = [self._cell(row, column, cells[row, column]) for column in range(columns)]
            # Neighbours of one colour share a pair of codes.
            runs = groupby(zip(self._positions[row].tolist(), chars, strict=True), lambda c: c[0])
            runs_of_text = ((position, "".join(char for _, char in run)) for position, run in runs)
            yield "".join(
                text if position < 0 else _add_colour(text, position, self._style)
                for position, text in runs_of_text
            )

    def _cell(self, row: int, column: int, dots: np.ndarray) -> str:
        char = self._marks.get((row, column))
        if char is not None:
            return char
        if not dots.any():
            return " "
        if self._style.is_ascii:
            return " .':"[int(dots[1, 0]) + 2 * int(dots[0, 0])]
        return chr(_BRAILLE + int(_DOTS[dots].sum()))


# -- states ----------------------------------------------------------------------------------------


def _draw_states(
    panel: Panel, times: TimeAxis, style: Style, label_width: int, columns: int
) -> Iterator[str]:
    bar = "|" if style.is_ascii else "\N{BOX DRAWINGS LIGHT VERTICAL}"
    for track in panel.tracks:
        name = cut_text(style.text(track.name), min(label_width, _MAX_LABEL))
        cells = _draw_spans(track, times, style, columns, is_boolean=panel.is_boolean)
        coloured = _add_colour(cells, track.position, style)
        yield f"{pad(name, label_width, to_right=True)} {bar}{coloured}"


def _draw_spans(
    track: StateTrack, times: TimeAxis, style: Style, columns: int, *, is_boolean: bool
) -> str:
    true, false, several, dash = "#_?-" if style.is_ascii else "█▁▒─"
    cells = [" "] * columns
    for span in track.spans:
        ends = times.fraction(np.array([span.start, span.end], np.int64)) * columns
        begin = min(int(ends[0]), columns - 1)
        size = max(min(round(float(ends[1])), columns) - begin, 1)
        if span.state == SEVERAL:
            drawn = [several] * size
        elif is_boolean:
            drawn = [true if span.state == "true" else false] * size
        else:
            # Leave the last column to the next state, because it may begin there.
            text = style.text(span.state)
            name = text
            if cell_width(text) > size - 2:
                name = cut_text(text, size - 2) if size > 6 else ""
            dash_count = size - 1 - cell_width(name)
            drawn = [f"|{name}", *[""] * cell_width(name), *[dash] * dash_count]
        cells[begin : begin + size] = drawn
    return "".join(cells)


# -- times -----------------------------------------------------------------------------------------


def _draw_times(times: TimeAxis, style: Style, label_width: int, columns: int) -> Iterator[str]:
    corner, line, mark = "+-+" if style.is_ascii else "└─┬"
    fractions = times.fraction(np.array([tick.us for tick in times.ticks], np.int64))
    marked = [min(round(fraction * (columns - 1)), columns - 1) for fraction in fractions.tolist()]
    ruler = [line] * columns
    for column in marked:
        ruler[column] = mark
    yield f"{' ' * label_width} {corner}{''.join(ruler)}"
    margin = " " * (label_width + 2)
    yield margin + _place_labels([tick.label for tick in times.ticks], marked, columns)
    contexts = [
        (tick.context, x) for tick, x in zip(times.ticks, marked, strict=True) if tick.context
    ]
    # The first context yields to the next one, with the beginning of a day or a year.
    if len(contexts) > 1 and contexts[1][1] - contexts[0][1] < len(contexts[0][0]) + 2:
        contexts = contexts[1:]
    if contexts:
        yield margin + _place_labels(
            [text for text, _ in contexts], [x for _, x in contexts], columns
        )


def _place_labels(texts: Sequence[str], positions: Sequence[int], columns: int) -> str:
    """Write texts centred at their columns, from left to right; leave out those without room."""
    line = ""
    for text, column in zip(texts, positions, strict=True):
        start = max(min(column - len(text) // 2, columns - len(text)), 0)
        if start >= len(line) + (1 if line else 0):
            line = line.ljust(start) + text
    return line
