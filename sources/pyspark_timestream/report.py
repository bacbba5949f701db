"""Writes and draws reports, for every command and page: units, tables, HTML and SVG.

Reports are for people. Names and values come from brokers and records, so text for a terminal has
its control characters escaped, and HTML and SVG are escaped completely, without scripts or
references to anything outside.

A picture of time has the colour of the page around it, or one of `COLOURS`, which read on light and
dark pages.
"""

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from html import escape
from typing import Final

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    HOUR_US,
    MIN_US,
    MINUTE_US,
    SECOND_US,
    format_instant,
    from_datetime,
    to_datetime,
)
from pyspark_timestream.errors import escape_controls

GAP: Final = "  "
"""Separates the columns of a table."""

_MAX_CELL: Final = 40
_MIN_CELL: Final = 10
"""A column is left out if it would have to be cut below this width."""

# -- units -----------------------------------------------------------------------------------------

_UNITS: Final = ((DAY_US, "d"), (HOUR_US, "h"), (MINUTE_US, "min"), (SECOND_US, "s"))


def shorten_duration(us: int) -> str:
    """Format a duration with at most one decimal and a short unit.

    >>> [shorten_duration(us) for us in (129_600_000_000, 90_000_000, 250_000, 1_500)]
    ['1.5 d', '1.5 min', '250 ms', '1.5 ms']
    """
    for unit_us, name in _UNITS:
        if us >= unit_us:
            return f"{us / unit_us:,.1f} {name}".replace(".0 ", " ")
    return f"{us / 1_000:.4g} ms"


def format_time(us: int | None) -> str:
    """Format an instant for people."""
    if us is None:
        return "none"
    return f"{format_instant(us)} (final)" if us >= FINAL_US else format_instant(us)


def format_count(number: int, noun: str) -> str:
    """Format a number of things.

    >>> format_count(1, "offset"), format_count(2_000, "offset")
    ('1 offset', '2,000 offsets')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def begin_sentence(text: str) -> str:
    """Return a text that begins with a capital letter, to stand behind a full stop.

    >>> begin_sentence("no records are left"), begin_sentence("'ctiDelay' is too short")
    ('No records are left', "'ctiDelay' is too short")
    """
    return text[:1].upper() + text[1:]


# -- text ------------------------------------------------------------------------------------------


def join_sections(sections: Sequence[Sequence[str]]) -> str:
    """Join sections of lines with a blank line between them; leave out empty ones."""
    return "\n\n".join("\n".join(map(escape_controls, lines)) for lines in sections if lines)


_WITHOUT_WIDTH: Final = "Mn", "Me", "Cf"
_JOINER: Final = "\u200d"
_AS_PICTURE: Final = "\ufe0f"
_KEYS: Final = "#*0123456789"


def _find_ends(text: str) -> Iterator[int]:
    """Yield in which column of a terminal each character ends.

    Marks and joiners take no column, East Asian characters and pictures two. A skin tone or a
    joined picture only changes the picture before it; `_AS_PICTURE` widens a symbol to two columns.
    """
    column, previous, previous_width = 0, " ", 1
    for char in text:
        kind, previous_kind = unicodedata.category(char), unicodedata.category(previous)
        is_tone = "\U0001f3fb" <= char <= "\U0001f3ff" and previous_kind == "So"
        changes_previous = previous_width == 2 and (
            is_tone or (previous == _JOINER and kind == "So")
        )
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if char == _AS_PICTURE and (previous in _KEYS or previous_kind in ("So", "Sm", "Po")):
            width, previous_width = 2 - previous_width, 2
        elif kind in _WITHOUT_WIDTH or "\u1160" <= char <= "\u11ff" or changes_previous:
            width = 0
        else:
            previous_width = width
        column, previous = column + width, char
        yield column


def cell_width(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    >>> cell_width("abc"), cell_width("温度"), cell_width("e\u0301"), cell_width("👩\u200d🔬")
    (3, 4, 1, 2)
    """
    return len(text) if text.isascii() else max(_find_ends(text), default=0)


def cut_text(text: str, size: int) -> str:
    """Cut a text to at most `size` columns of a terminal, and put dots where it is cut."""
    if cell_width(text) <= size:
        return text
    head, _ = _split_text(text, size - 3)
    return f"{head}..." if size > 3 else "..."[:size]


def _split_text(text: str, size: int) -> tuple[str, str]:
    """Divide a text after at most `size` columns."""
    count = bisect_right(list(_find_ends(text)), size)
    return text[:count], text[count:]


def pad(text: str, size: int, to_right: bool) -> str:
    """Fill a text up to `size` columns of a terminal with spaces."""
    room = " " * (size - cell_width(text))
    return room + text if to_right else text + room


def wrap_text(text: str, size: int) -> list[str]:
    """Divide a text into lines of at most `size` columns, between words if they are no longer."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and cell_width(f"{line} {word}") > size:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while cell_width(line) > size:
            head, line = _split_text(line, max(size, 2))
            lines.append(head)
    return [*lines, line]


def align(rows: Sequence[Sequence[str]], to_right: bool = False) -> list[str]:
    """Lay out cells in columns as wide as necessary; `to_right`: align all but the first right."""
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(
            pad(cell, size, to_right=to_right and index > 0)
            for index, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip(" ")
        for row in rows
    ]


def align_within(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lay out cells in columns within `width`; cut some, or leave columns out and name them."""
    cells = [[escape_controls(cell) for cell in row] for row in rows]
    max_size = min(_MAX_CELL, width * 2 // 5)
    widths: list[int] = []
    for column in zip(*cells, strict=True):
        room = width - sum(widths) - len(GAP) * len(widths)
        size = min(max_size, max(map(cell_width, column)))
        if size > room and room < _MIN_CELL and widths:
            break
        widths.append(max(min(size, room), 1))
    lines = align(
        [[cut_text(cell, size) for cell, size in zip(row, widths, strict=False)] for row in cells]
    )
    left_out = cells[0][len(widths) :]
    if left_out:
        more = f"and {format_count(len(left_out), 'more column')}: {', '.join(left_out)}"
        lines.append(cut_text(more, width))
    return lines


# -- HTML and SVG ----------------------------------------------------------------------------------


def to_html(text: str) -> str:
    """Escape a text for HTML and SVG, as content and in attributes."""
    return escape(escape_controls(text))


def age_html(us: int) -> str:
    """Return an instant as a time that grows older; the script of a page counts it up."""
    return f'<time data-age-us="{us}" title="{to_html(format_instant(us))}"></time>'


def paragraph(lines: Sequence[str], title: str = "") -> str:
    """Format lines of text as a paragraph below a bold title."""
    bold = [f"<b>{to_html(title)}</b>"] if title else []
    return "<p>" + "<br/>".join([*bold, *(to_html(line.strip()) for line in lines)]) + "</p>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with these columns."""

    def fill(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{to_html(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(fill("td", row) for row in rows)
    return f"<table><thead>{fill('th', head)}</thead><tbody>{body}</tbody></table>"


def svg(tag: str, text: str = "", *children: str, **attributes: str | float) -> str:
    """Format an element of a picture.

    `_` in the name of an attribute stands for `-`, and one at its end for nothing.

    >>> svg("text", "a & b", class_="name", text_anchor="end", x=4)
    '<text class="name" text-anchor="end" x="4">a &amp; b</text>'
    """
    attribute_text = "".join(
        f" {name.rstrip('_').replace('_', '-')}="
        f'"{to_html(value) if isinstance(value, str) else value}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{attribute_text}>{to_html(text)}{''.join(children)}</{tag}>"


COLOURS: Final = (
    *("#2478d8", "#ec6a00", "#0f7d6e", "#c0399f", "#9084fc", "#29a06a", "#cc3018", "#c77f9a"),
)
"""Each has a contrast of 3 and more to both pages, and differs from the others to people who see
two primary colours."""

PAGE_COLOURS: Final = {"light": ("#ffffff", "#1f2328"), "dark": ("#14171c", "#e6e8eb")}
"""The colours of a page and of its text."""

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
SIZE: Final = 12
FAINT: Final = 0.7

LETTER: Final = 0.6
"""About how wide a letter is, as a part of its height."""


def text_width(text: str, size: float = SIZE) -> float:
    """Return about how wide a text is; letters of East Asia are twice as wide as others."""
    return size * LETTER * cell_width(text)


def format_pixel(value: float) -> str:
    """Return a coordinate, to a tenth of a pixel.

    >>> format_pixel(3.0), format_pixel(2.25)
    ('3', '2.2')
    """
    return f"{value:.1f}".removesuffix(".0")


# -- ticks of time ---------------------------------------------------------------------------------

_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
"""English in every locale, as the rest of a picture."""

STEPS_US: Final = (
    *(number * 10**power for power in range(6) for number in (1, 2, 5)),
    *(number * SECOND_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * MINUTE_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * HOUR_US for number in (1, 2, 3, 6, 12)),
    *(number * DAY_US for number in (1, 2, 7)),
)
"""The round steps of a clock, up to a week."""

STEPS_IN_MONTHS: Final = (1, 3, 6, *(12 * n * 10**power for power in range(4) for n in (1, 2, 5)))
"""The round steps of a calendar, above a week."""


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A tick of an axis of time: `label`, such as `06:00`, and the `context` that it lacks.

    The context, such as `5 Jan 2026`, is empty if the tick before has the same.
    """

    us: int
    label: str
    context: str


def choose_step(low: int, high: int, max_ticks: int) -> tuple[int, int]:
    """Return the step of at most `max_ticks` ticks from low to high, in microseconds or in months.

    >>> choose_step(0, 10 * SECOND_US, 5), choose_step(0, 400 * DAY_US, 5)
    ((5000000, 0), (0, 3))
    """
    for step in STEPS_US:
        if (high - low) // step < max_ticks:
            return step, 0
    for months in STEPS_IN_MONTHS:
        if (high - low) // (months * 30 * DAY_US) < max_ticks:
            break
    return 0, months


def label_ticks(
    starts: Sequence[int], step_us: int, months: int, clock: tzinfo | None = None
) -> Iterator[TimeTick]:
    """Name the ticks at these instants, which are a step apart, by a clock; None: by UTC."""
    last_label, last_context = "", ""
    for us in starts:
        local = to_datetime(us) if clock is None else to_datetime(us).astimezone(clock)
        label, context = _name(local, step_us, months)
        if label == last_label and context == last_context:
            label = f"{label} {local:%Z}"  # The clock shows this time twice.
        yield TimeTick(us, label, "" if context == last_context else context)
        last_label, last_context = label, context


def _name(local: datetime, step_us: int, months: int) -> tuple[str, str]:
    month = _MONTHS[local.month - 1]
    if months >= 12:
        return str(local.year), ""
    if months:
        return month, str(local.year)
    if step_us >= DAY_US:
        return f"{local.day}", f"{month} {local.year}"
    date = name_date(local)
    if step_us >= MINUTE_US:
        return f"{local:%H:%M}", date
    if step_us >= SECOND_US:
        return f"{local:%H:%M:%S}", date
    digits = 6 - int(math.log10(step_us))
    return f"{local:%H:%M:%S}.{local.microsecond:06d}"[: 9 + digits], date


def name_date(local: datetime) -> str:
    """Return a date for people.

    >>> name_date(datetime(2026, 1, 5))
    '5 Jan 2026'
    """
    return f"{local.day} {_MONTHS[local.month - 1]} {local.year}"


_WEEK_US: Final = 4 * DAY_US
"""A Monday: weeks begin there."""

_MIN_SPAN_US: Final = 2 * SECOND_US


def utc_ticks(low: int, high: int, room: float) -> tuple[TimeTick, ...]:
    """Return round ticks of UTC from `low` to `high`, as many as `room` pixels have labels for."""
    max_ticks = max(1, int(room // text_width("00:00:00   ")))
    step, months = choose_step(low, high, max_ticks)
    starts = _step_months(low, high, months) if months else _step_clock(low, high, step)
    return tuple(label_ticks(starts, step, months))


def _step_clock(low: int, high: int, step: int) -> list[int]:
    origin = _WEEK_US if step > DAY_US else 0
    begin = low + (origin - low) % step
    return list(range(begin, high + 1, step))


def _step_months(low: int, high: int, months: int) -> list[int]:
    starts = []
    begin = to_datetime(low)
    month = (begin.year * 12 + begin.month - 1) // months * months
    while 12 <= month < 12 * 10_000:
        moment = begin.replace(
            year=month // 12, month=month % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0
        )
        us = from_datetime(moment)
        if us > high:
            break
        starts += [us] if us >= low else []
        month += months
    return starts


# -- the axis of time ------------------------------------------------------------------------------


class TimeScale:
    """Maps application time to pixels: the earliest instant a bit inside, the latest at the end.

    If there is only one instant, the scale begins a second before it. The final CTI is not on the
    scale; it is drawn at the end.
    """

    def __init__(self, times_us: Sequence[int], left: float, width: float) -> None:
        finite = [us for us in times_us if us < FINAL_US] or [MIN_US + _MIN_SPAN_US]
        self.low = min(finite)
        self.high = max(finite)
        if self.high - self.low < _MIN_SPAN_US and self.low == self.high:
            self.low -= SECOND_US
        self.left = left
        self.width = width

    def at(self, us: int) -> float:
        """Return the x of an instant."""
        share = (us - self.low) / (self.high - self.low)
        return round(self.left + self.width * (0.04 + 0.94 * min(max(share, 0.0), 1.0)), 1)


def draw_time_axis(
    ticks: Sequence[TimeTick],
    to_x: Callable[[int], float],
    ends: tuple[float, float],
    bottom: float,
    width: float,
) -> Iterator[str]:
    """Yield the axis of time of a picture: its line, ticks, labels, and their contexts below.

    Args:
        ticks: where it has ticks.
        to_x: returns the x of an instant.
        ends: where its line begins and ends.
        bottom: the y of its line; 32 pixels below it are needed.
        width: the width of the picture, which no label leaves.
    """

    def draw_label(text: str, x: float, below: int, **attributes: float) -> str:
        return svg(
            "text",
            text,
            x=format_pixel(x),
            y=format_pixel(bottom + below),
            text_anchor="middle",
            **attributes,
        )

    line = f"M{format_pixel(ends[0])},{format_pixel(bottom)}H{format_pixel(ends[1])}"
    yield svg("path", d=line, stroke="currentColor", stroke_opacity=0.5)
    tick_xs = [to_x(tick.us) for tick in ticks]
    context_xs = [x for x, tick in zip(tick_xs, ticks, strict=True) if tick.context]
    contexts_end = -1.0
    for x, tick in zip(tick_xs, ticks, strict=True):
        mark = f"M{format_pixel(x)},{format_pixel(bottom)}v4"
        yield svg("path", d=mark, stroke="currentColor", stroke_opacity=0.5)
        half_width = text_width(tick.label) / 2
        yield draw_label(tick.label, min(max(x, half_width), width - half_width), 17)
        if not tick.context:
            continue
        half_width = text_width(tick.context) / 2
        next_x = next((later for later in context_xs if later > x), math.inf)
        # The first context yields to the next one, where a day or a year begins.
        if x == context_xs[0] and next_x - x < 2 * half_width + 8:
            continue
        middle = min(max(x, half_width), width - half_width)
        if middle - half_width > contexts_end:
            yield draw_label(tick.context, middle, 32, fill_opacity=FAINT)
            contexts_end = middle + half_width + 8


# -- lanes of clocks -------------------------------------------------------------------------------


def draw_lane(
    cti_us: int | None,
    last_us: int | None,
    stream_us: int | None,
    *,
    is_cause: bool,
    to_x: Callable[[int], str],
    ends: tuple[str, str],
    top: int = 0,
) -> str:
    """Draw a partition's clock, 16 pixels high: a bar up to its CTI, a circle at its newest event.

    A dashed line is the stream's CTI. A page may colour these differently by their classes.

    Args:
        cti_us: its CTI; None before the first.
        last_us: the time of its newest event; None before the first.
        stream_us: the stream's CTI; None before the first.
        is_cause: it holds the stream back.
        to_x: returns the x of an instant.
        ends: the x of the lane's beginning, and its width.
        top: the y of the lane.
    """
    left, width = ends
    shapes = [
        svg("rect", class_="rail", x=left, y=top + 6, width=width, height=4, rx=2,
            fill="currentColor", fill_opacity=0.15)
    ]  # fmt: skip
    if cti_us is not None:
        unit = "%" if width.endswith("%") else ""
        size = float(to_x(cti_us).removesuffix("%")) - float(left.removesuffix("%"))
        shapes.append(
            svg("rect", "", svg("title", f"CTI {format_time(cti_us)}"), class_="bar", x=left,
                y=top + 4, width=f"{format_pixel(size)}{unit}", height=8, rx=2,
                fill=COLOURS[is_cause])
        )  # fmt: skip
    if last_us is not None:
        shapes.append(
            svg("circle", "", svg("title", f"newest event {format_time(last_us)}"), class_="event",
                cx=to_x(last_us), cy=top + 8, r=4, fill="none", stroke="currentColor",
                stroke_width=2)
        )  # fmt: skip
    if stream_us is not None and stream_us < FINAL_US:
        x = to_x(stream_us)
        shapes.append(
            svg("line", class_="stream-cti", x1=x, x2=x, y1=top - 3, y2=top + 19,
                stroke="currentColor", stroke_dasharray="3 2")
        )  # fmt: skip
    return "".join(shapes)
