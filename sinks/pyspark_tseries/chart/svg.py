"""Draw a figure as SVG, without scripts, external style sheets, or references to anything outside.

Text, axes and grid have the colour of the page around them, and lines have colours of medium
lightness, so an inline picture is readable on light and on dark pages. A picture that is not inline
brings its own page.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from pyspark_timestream.report import (
    COLOURS,
    FAINT,
    FONT,
    LETTER,
    PAGE_COLOURS,
    SIZE,
    cut_text,
    draw_time_axis,
    format_pixel,
    svg,
    text_width,
    wrap_text,
)
from pyspark_tseries.chart.figure import (
    EDITED,
    OVERRIDDEN,
    SEVERAL,
    Band,
    Figure,
    Line,
    NumberAxis,
    Panel,
    PlotMarks,
    Span,
    StateTrack,
    TimeAxis,
    fit_time_axis,
    format_moment,
    number_axis,
    show_number,
)
from pyspark_tseries.model.arrays import Int64Array

_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
"""Each further eight series repeat the colours, with other dashes."""

_GAP: Final = 18
_HEAD: Final = 22
_ROW: Final = 20
_EDGE: Final = 12
_SPARSE: Final = 14
"""Points further apart than this many pixels are drawn as dots."""

_MAX_TOOLTIPS: Final = 300
_DIAMOND: Final = "m0,-5l5,5l-5,5l-5,-5z"


_ToY = Callable[[np.ndarray], np.ndarray]
"""Returns the y of values."""

_Link = Callable[[int], str]
"""Returns the address of an event's mark from the sequence of its original."""


def draw_svg(
    figure: Figure, width: int, height: int, theme: str | None, link: _Link | None = None
) -> str:
    """Return the picture of a figure.

    Args:
        figure: what to draw.
        width: the width of the picture, in pixels.
        height: the height of a panel of numbers.
        theme: a key of `PAGE_COLOURS`; `auto` follows the reader's settings; None for an inline
            picture in the colours of the page around it.
        link: returns an address for the mark of an edit, from the sequence of its original. With
            it, the page around an inline picture sizes the picture by its own style.
    """
    layout = _lay_out(figure, width, height)
    body = [*_draw_title(figure, layout)]
    for panel, top, bottom in layout.places():
        if panel.tracks:
            body += _draw_states(panel, layout, top)
        else:
            body += _draw_lines(panel, layout, top, bottom, link)
    if figure.panels:
        body += _draw_times(layout)
    else:
        body.append(_draw_label("no events", layout.width // 2, layout.top + 24, anchor="middle"))
    body += _draw_notes(layout)
    return _put_in_frame(figure, layout, theme, "".join(body), is_alone=link is None)


def _put_in_frame(
    figure: Figure, layout: "_Layout", theme: str | None, body: str, *, is_alone: bool
) -> str:
    name = figure.title or "Chart"
    columns = ", ".join(panel.title for panel in figure.panels)
    label = f"{name}: {columns} over time" if columns else f"{name}: no events"
    size = f'width="{layout.width}" height="{layout.height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {layout.width} '
        f'{layout.height}" role="img" aria-label="{escape(label)}" font-family="{FONT}" '
        f'font-size="{SIZE}"'
    )
    description = f"<title>{escape(label)}</title><desc>{escape(figure.describe())}</desc>"
    if theme is None:
        # On a narrow page the whole picture shrinks.
        style = ' fill="currentColor"'
        style += ' style="max-width:100%;height:auto"' if is_alone else ""
        return f"{head}{style}>{description}{body}</svg>"
    page, ink = PAGE_COLOURS["light" if theme == "auto" else theme]
    dark_style = ""
    if theme == "auto":
        dark_page, dark_ink = PAGE_COLOURS["dark"]
        dark_style = (
            f"<style>@media (prefers-color-scheme:dark){{svg{{color:{dark_ink}}}"
            f".page{{fill:{dark_page}}}}}</style>"
        )
    ground = f'<rect class="page" width="100%" height="100%" fill="{page}"/>'
    return f'{head} color="{ink}" fill="currentColor">{description}{dark_style}{ground}{body}</svg>'


# -- layout ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    figure: Figure
    width: int
    heights: tuple[int, ...]
    axes: tuple[NumberAxis | None, ...]
    left: float
    right: float
    top: int
    times: TimeAxis
    notes: tuple[str, ...]

    def places(self) -> Iterator[tuple[Panel, float, float]]:
        """Yield each panel with the y of its upper and lower end."""
        top = float(self.top)
        for panel, height in zip(self.figure.panels, self.heights, strict=True):
            yield panel, top + _HEAD, top + _HEAD + height
            top += _HEAD + height + _GAP

    @property
    def bottom(self) -> float:
        """The y of the axis of time."""
        return self.top + sum(self.heights) + len(self.heights) * (_HEAD + _GAP) - _GAP

    @property
    def height(self) -> int:
        axis = 42 if self.figure.panels else 40
        return int(self.bottom + axis + 17 * len(self.notes) + 8)

    def axis(self, panel: Panel) -> NumberAxis:
        axis = self.axes[self.figure.panels.index(panel)]
        assert axis is not None
        return axis

    def x(self, us: Int64Array) -> np.ndarray:
        xs: np.ndarray = self.left + self.times.fraction(us) * (self.right - self.left)
        return xs


def _lay_out(figure: Figure, width: int, height: int) -> _Layout:
    labels, names = [""], [""]
    axes: list[NumberAxis | None] = []
    line_counts = [sum(line.last is not None for line in panel.lines) for panel in figure.panels]
    talls = [max(height, 15 * count) for count in line_counts]
    for panel, tall in zip(figure.panels, talls, strict=True):
        if panel.tracks:
            labels += [_cut_track_name(track, width) for track in panel.tracks]
            axes.append(None)
            continue
        max_ticks = max(2, min(tall // 22, 10))
        axis = number_axis(panel.low, panel.high, max_ticks, is_whole=panel.is_whole)
        labels += axis.labels
        names += [_cut_line_name(line, width) for line in panel.lines if _needs_label(figure)]
        axes.append(axis)
    left_edge = min(max(map(text_width, labels)) + 16, width / 3)
    right_edge = width - min(max(map(text_width, names)) + (22 if max(names) else _EDGE), width / 3)
    inner_width = right_edge - left_edge
    heights = tuple(
        # A panel of states has the lines of its legend, and a row for each track.
        (len(_lay_out_legend(panel, inner_width)) + len(panel.tracks)) * _ROW
        if panel.tracks
        else tall
        for panel, tall in zip(figure.panels, talls, strict=True)
    )
    times = fit_time_axis(figure.low, figure.high, figure.zone, inner_width, text_width)
    top = _EDGE + (24 if figure.title else 0)
    own_notes = [f"times in {figure.zone or 'UTC'}"] if figure.panels else []
    own_notes += [note for panel in figure.panels for note in _note_grey(panel)]
    notes = _wrap_notes([*own_notes, *figure.notes], width - 2 * _EDGE)
    return _Layout(
        figure=figure,
        width=width,
        heights=heights,
        axes=tuple(axes),
        left=left_edge,
        right=right_edge,
        top=top,
        times=times,
        notes=notes,
    )


def _needs_label(figure: Figure) -> bool:
    return len(figure.series) > 1 or (bool(figure.series[0]) and figure.title != figure.series[0])


def _cut_line_name(line: Line, width: int) -> str:
    return cut_text(line.name, min(24, _count_fitting_letters(width / 3 - 12)))


def _cut_track_name(track: StateTrack, width: int) -> str:
    return cut_text(track.name, min(18, _count_fitting_letters(width / 3 - 6)))


def _count_fitting_letters(width: float, size: float = SIZE) -> int:
    """Return how many letters fit into a width, with a margin at both sides."""
    return int((width - 2 * _EDGE) / (LETTER * size))


def _wrap_notes(notes: Sequence[str], width: float) -> tuple[str, ...]:
    """Put notes into lines; a note on a mark has its own line, which begins with the mark."""
    lines: list[str] = []
    for note in notes:
        joined = f"{lines[-1]} \N{MIDDLE DOT} {note}" if lines else note
        has_mark = any(line.startswith((EDITED, OVERRIDDEN)) for line in (note, *lines[-1:]))
        if lines and not has_mark and text_width(joined, 11) <= width:
            lines[-1] = joined
        else:
            lines += wrap_text(note, _count_fitting_letters(width + 2 * _EDGE, 11))
    return tuple(lines)


def choose_colour(position: int) -> str:
    """Return the colour of a series."""
    return COLOURS[position % len(COLOURS)]


def _choose_dash(position: int) -> dict[str, str]:
    dash = _DASHES[position // len(COLOURS) % len(_DASHES)]
    return {"stroke_dasharray": dash} if dash else {}


# -- frame -----------------------------------------------------------------------------------------


def _draw_title(figure: Figure, layout: _Layout) -> Iterator[str]:
    if figure.title:
        title = cut_text(figure.title, _count_fitting_letters(layout.width, 15))
        yield svg("text", title, x=_EDGE, y=_EDGE + 12, font_size=15, font_weight=600)


def _draw_head(panel: Panel, top: float, axis: NumberAxis | None = None) -> Iterator[str]:
    """Draw a panel's title: column, unit, and the base and exponent that axis labels leave out."""
    hints = [f"({cut_text(panel.unit, 20)})"] if panel.unit else []
    power = ""
    if axis is not None and axis.base:
        hints.append(f"from {axis.base:,.15g}")
    if axis is not None and axis.exponent:
        hints.append("\N{MULTIPLICATION SIGN}10")
        # Few fonts have superscripts.
        power = svg("tspan", str(axis.exponent), dy=-4, font_size=9)
    hint = ""
    if hints:
        text = " ".join(hints)
        hint = svg("tspan", text, power, dx=5, fill_opacity=FAINT, font_weight=400)
    name = cut_text(panel.title, 40)
    yield svg("text", name, hint, x=_EDGE, y=format_pixel(top - 9), font_weight=600)


def _draw_label(text: str, x: float, y: float, title: str = "", anchor: str = "end") -> str:
    place = {"x": format_pixel(x), "y": format_pixel(y)}
    return svg("text", text, title, **place, text_anchor=anchor, fill_opacity=FAINT)


def _draw_grid_line(layout: _Layout, y: float) -> str:
    path = f"M{format_pixel(layout.left)},{format_pixel(y)}H{format_pixel(layout.right)}"
    return svg("path", d=path, stroke="currentColor", stroke_opacity=0.13)


def _draw_times(layout: _Layout) -> Iterator[str]:
    def to_x(us: int) -> float:
        return float(layout.x(np.array([us], np.int64))[0])

    ends = layout.left, layout.right
    yield from draw_time_axis(layout.times.ticks, to_x, ends, layout.bottom, layout.width)


def _draw_notes(layout: _Layout) -> Iterator[str]:
    top = layout.height - 17 * len(layout.notes) - 1
    for i, note in enumerate(layout.notes):
        x, y = _EDGE, top + 17 * i
        if note.startswith(EDITED):
            yield svg("path", d=f"M{x + 5},{y - 4}{_DIAMOND}", fill_opacity=FAINT)
        elif note.startswith(OVERRIDDEN):
            ring = svg("circle", cx=x + 5, cy=y - 4, r=3, fill="none", stroke="currentColor")
            yield svg("g", "", ring, stroke_opacity=FAINT)
        text = note.removeprefix(EDITED).removeprefix(OVERRIDDEN)
        x += 14 if text != note else 0
        yield svg("text", text, x=x, y=y, font_size=11, fill_opacity=FAINT)


# -- numbers ---------------------------------------------------------------------------------------


def _draw_lines(
    panel: Panel, layout: _Layout, top: float, bottom: float, link: _Link | None
) -> Iterator[str]:
    axis = layout.axis(panel)

    def y(values: np.ndarray) -> np.ndarray:
        ys: np.ndarray = bottom - axis.fraction(values) * (bottom - top)
        return ys

    yield from _draw_head(panel, top, None if panel.is_empty else axis)
    if panel.is_empty:
        middle = (layout.left + layout.right) / 2, (top + bottom) / 2
        yield _draw_label("no values", *middle, anchor="middle")
        return
    for fraction, label in zip(axis.tick_fractions, axis.labels, strict=True):
        tick_y = bottom - fraction * (bottom - top)
        yield _draw_grid_line(layout, tick_y)
        yield _draw_label(label, layout.left - 8, tick_y + 4)
    for line in panel.lines:
        if line.band is not None and len(line.band.us):
            d = _band_path(line.band, layout, y)
            yield svg("path", d=d, fill=choose_colour(line.position), fill_opacity=0.16)
    for line in panel.lines:
        if len(line.us):
            yield from _draw_line(line, layout, y, panel.unit)
    for line in panel.lines:
        yield from _draw_marks(line, layout, y, panel.unit, link)
    if _needs_label(layout.figure):
        yield from _draw_names(panel.lines, layout, y, top, bottom)


def _draw_line(line: Line, layout: _Layout, y: _ToY, unit: str) -> Iterator[str]:
    xs, ys = layout.x(line.us), y(line.values)
    ends = None if line.ends is None else layout.x(line.ends)
    path = _line_path(xs, ys, ends, line.is_first)
    name = svg("title", line.name) if line.name else ""
    yield svg(
        "path",
        "",
        name,
        d=path,
        fill="none",
        stroke=choose_colour(line.position),
        stroke_width=1.6,
        stroke_linejoin="round",
        stroke_linecap="round",
        **_choose_dash(line.position),
    )
    if ends is not None:
        return
    is_alone = line.is_first & np.append(line.is_first[1:], True)
    is_sparse = len(xs) * _SPARSE < layout.right - layout.left
    for i in range(len(xs)) if is_sparse else np.flatnonzero(is_alone).tolist():
        tooltip = _make_tooltip(line.name, int(line.us[i]), float(line.values[i]), unit, layout)
        yield svg(
            "circle",
            "",
            tooltip,
            cx=format_pixel(xs[i]),
            cy=format_pixel(ys[i]),
            r=2.4,
            fill=choose_colour(line.position),
        )


def _line_path(
    xs: np.ndarray, ys: np.ndarray, ends: np.ndarray | None, is_first: np.ndarray
) -> str:
    """Return the path through points, or along the steps of buckets; a new piece begins with M."""
    points = [
        (format_pixel(x), format_pixel(y)) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)
    ]
    firsts = is_first.tolist()
    if ends is None:
        return "".join(
            f"{'M' if f else 'L'}{x},{y}" for f, (x, y) in zip(firsts, points, strict=True)
        )
    stops = [format_pixel(x) for x in ends.tolist()]
    pieces = []
    for i, (x, height) in enumerate(points):
        goes_on = i + 1 < len(points) and not firsts[i + 1]
        stop = points[i + 1][0] if goes_on else stops[i]
        pieces.append(f"{f'M{x},{height}' if firsts[i] else f'V{height}'}H{stop}")
    return "".join(pieces)


def _band_path(band: Band, layout: _Layout, y: _ToY) -> str:
    xs, stops = layout.x(band.us), layout.x(band.ends)
    low, high = y(band.lower), y(band.upper)
    starts = np.flatnonzero(band.is_first).tolist()
    pieces = []
    for start, end in zip(starts, [*starts[1:], len(xs)], strict=True):
        # Each step goes to the next one, and the last to the end of its bucket.
        ends = [*xs[start + 1 : end].tolist(), float(stops[end - 1])]
        steps = list(zip(range(start, end), ends, strict=True))
        upper_edge = "".join(
            f"{'M' if row == start else 'L'}{format_pixel(xs[row])},{format_pixel(high[row])}"
            f"H{format_pixel(end_x)}"
            for row, end_x in steps
        )
        lower_edge = "".join(
            f"L{format_pixel(end_x)},{format_pixel(low[row])}H{format_pixel(xs[row])}"
            for row, end_x in reversed(steps)
        )
        pieces.append(f"{upper_edge}{lower_edge}Z")
    return "".join(pieces)


def _draw_marks(
    line: Line, layout: _Layout, y: _ToY, unit: str, link: _Link | None
) -> Iterator[str]:
    old, new = line.overridden, line.edited
    for i, (x, mark_y, line_y) in enumerate(_place_marks(old, layout, y)):
        stem = f"M{x},{mark_y}V{line_y}"
        yield svg(
            "path",
            d=stem,
            stroke=choose_colour(line.position),
            stroke_opacity=0.6,
            stroke_dasharray="2 2",
        )
        tooltip = _make_tooltip(
            line.name, int(old.us[i]), float(old.values[i]), unit, layout, "overridden"
        )
        ring = svg(
            "circle",
            "",
            tooltip if i < _MAX_TOOLTIPS else "",
            cx=x,
            cy=mark_y,
            r=3,
            fill="none",
            stroke=choose_colour(line.position),
            stroke_opacity=0.8,
        )
        yield _add_link(ring, old, i, x, mark_y, link)
    for i, (x, mark_y, _) in enumerate(_place_marks(new, layout, y)):
        tooltip = _make_tooltip(
            line.name, int(new.us[i]), float(new.values[i]), unit, layout, "edited"
        )
        diamond = svg(
            "path",
            "",
            tooltip if i < _MAX_TOOLTIPS else "",
            d=f"M{x},{mark_y}{_DIAMOND}",
            fill=choose_colour(line.position),
            stroke="currentColor",
            stroke_width=0.8,
        )
        yield _add_link(diamond, new, i, x, mark_y, link)


def _add_link(mark: str, marks: PlotMarks, row: int, x: str, y: str, link: _Link | None) -> str:
    """Return a mark, as a link if it has one; for keyboards the page has these links in a table."""
    if link is None or marks.sequences is None:
        return mark
    # Larger than the mark, for fingers.
    target = svg("circle", cx=x, cy=y, r=11, fill="none", pointer_events="all")
    return svg("a", "", target, mark, href=link(int(marks.sequences[row])), tabindex=-1)


def _place_marks(marks: PlotMarks, layout: _Layout, y: _ToY) -> Iterator[tuple[str, str, str]]:
    points = zip(
        layout.x(marks.us).tolist(), y(marks.values).tolist(), y(marks.now).tolist(), strict=True
    )
    for x, mark_y, line_y in points:
        yield format_pixel(x), format_pixel(mark_y), format_pixel(line_y)


def _make_tooltip(
    name: str, us: int, value: float, unit: str, layout: _Layout, hint: str = ""
) -> str:
    time = format_moment(us, layout.figure.zone)
    texts = [name, f"{time}: {show_number(value)} {unit}".rstrip(), hint]
    return svg("title", ", ".join(filter(None, texts)))


def _draw_names(
    lines: Sequence[Line], layout: _Layout, y: _ToY, top: float, bottom: float
) -> Iterator[str]:
    """Draw the names at the ends of their lines, moved apart where they would cover each other."""
    labels = [(float(y(line.values[-1:])[0]), line) for line in lines if line.last is not None]
    labels.sort(key=lambda item: (item[0], item[1].position))
    label_ys = _move_apart([line_y for line_y, _ in labels], 14, top, bottom)
    x = layout.right
    for (line_y, line), label_y in zip(labels, label_ys, strict=True):
        line_end = float(layout.x((line.us if line.ends is None else line.ends)[-1:])[0])
        ends = f"M{format_pixel(line_end + 3)},{format_pixel(line_y)}H{format_pixel(x + 4)}"
        leader = f"{ends}L{format_pixel(x + 12)},{format_pixel(label_y)}"
        yield svg(
            "path",
            d=leader,
            fill="none",
            stroke=choose_colour(line.position),
            stroke_opacity=0.5,
            stroke_dasharray="1 2",
        )
        yield svg(
            "text",
            _cut_line_name(line, layout.width),
            svg("title", line.name),
            x=format_pixel(x + 15),
            y=format_pixel(label_y + 4),
            fill=choose_colour(line.position),
        )


def _move_apart(positions: Sequence[float], room: float, low: float, high: float) -> list[float]:
    """Move positions until they are at least `room` apart, and keep their order.

    >>> _move_apart([10, 12, 13, 90], 10, 0, 100)
    [1.666666666666666, 11.666666666666666, 21.666666666666664, 90.0]
    """
    groups: list[tuple[float, int]] = []
    for position in positions:
        middle = float(position)
        count = 1
        middle = min(max(middle, low), high)
        groups.append((middle, count))
        while len(groups) > 1:
            (upper, n), (lower, m) = groups[-2:]
            if lower - upper >= (n + m) / 2 * room:
                break
            joined = (upper * n + lower * m) / (n + m)
            half_height = (n + m - 1) / 2 * room
            joined = min(max(joined, low + half_height), max(high - half_height, low + half_height))
            groups[-2:] = [(joined, n + m)]
    return [middle + (i - (count - 1) / 2) * room for middle, count in groups for i in range(count)]


# -- states ----------------------------------------------------------------------------------------


def _draw_states(panel: Panel, layout: _Layout, top: float) -> Iterator[str]:
    yield from _draw_head(panel, top)
    colours = _choose_state_colours(panel)
    legend = _lay_out_legend(panel, layout.right - layout.left)
    for number, line in enumerate(legend):
        yield from _draw_legend_line(line, colours, layout.left, top + number * _ROW)
    for number, track in enumerate(panel.tracks):
        y = top + (len(legend) + number) * _ROW
        name = _cut_track_name(track, layout.width)
        yield _draw_label(name, layout.left - 8, y + 14, svg("title", track.name))
        yield _draw_grid_line(layout, y + 17)
        for span in track.spans:
            fill = colours.get(span.state)
            if panel.is_boolean and span.state != SEVERAL:
                fill = choose_colour(track.position)
            yield from _draw_span(span, fill, layout, y, is_boolean=panel.is_boolean)


def _draw_legend_line(
    line: Sequence[tuple[float, str]], colours: Mapping[str, str], left: float, top: float
) -> Iterator[str]:
    """Draw a square in the colour of each state, and its name."""
    for x, state in line:
        fill = colours[state]
        square_x = format_pixel(left + x)
        yield svg("rect", x=square_x, y=top + 2, width=10, height=10, fill=fill)
        name = _cut_state(state)
        name_x = format_pixel(left + x + 14)
        yield svg("text", name, x=name_x, y=top + 11, font_size=11, fill_opacity=FAINT)


def _draw_span(
    span: Span, fill: str | None, layout: _Layout, y: float, *, is_boolean: bool
) -> Iterator[str]:
    """Draw a state, in grey if it has no colour."""
    ends = layout.x(np.array([span.start, span.end], np.int64))
    x = float(ends[0])
    width = max(float(ends[1] - ends[0]), 0.8)
    name = "several states" if span.state == SEVERAL else span.state
    height = 2 if is_boolean and span.state == "false" else 14
    yield svg(
        "rect",
        "",
        svg("title", f"{name}, from {format_moment(span.start, layout.figure.zone)}"),
        x=format_pixel(x),
        y=format_pixel(y + 17 - height),
        width=format_pixel(width),
        height=height,
        fill=fill or "currentColor",
        fill_opacity=0.9 if fill else 0.3,
    )
    if not is_boolean and span.state != SEVERAL and text_width(name, 11) + 8 <= width:
        ink = "#ffffff" if fill else "currentColor"
        yield svg(
            "text", name, x=format_pixel(x + 4), y=format_pixel(y + 14), font_size=11, fill=ink
        )


def _count_states(panel: Panel) -> Counter[str]:
    counts = Counter(span.state for track in panel.tracks for span in track.spans)
    counts.pop(SEVERAL, None)
    return counts


def _choose_state_colours(panel: Panel) -> dict[str, str]:
    """Return the colours of the most frequent states, by name; the others are grey."""
    if panel.is_boolean:
        return {}
    counts = _count_states(panel)
    frequent = sorted(counts, key=lambda state: (-counts[state], state))[: len(COLOURS)]
    return {state: choose_colour(position) for position, state in enumerate(sorted(frequent))}


def _note_grey(panel: Panel) -> Iterator[str]:
    states = len(_count_states(panel))
    if states > len(COLOURS) and not panel.is_boolean:
        yield f"{panel.title}: the {len(COLOURS)} most frequent of {states:,} states have colours"


def _cut_state(state: str) -> str:
    return cut_text(state, 20)


def _lay_out_legend(panel: Panel, width: float) -> list[list[tuple[float, str]]]:
    """Return the lines of a legend: the x of each state with a colour, and the state."""
    lines: list[list[tuple[float, str]]] = []
    x = width
    for state in _choose_state_colours(panel):
        size = text_width(_cut_state(state), 11) + 26
        if x + size > width:
            lines.append([])
            x = 0.0
        lines[-1].append((x, state))
        x += size
    return lines
