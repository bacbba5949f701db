"""How pictures of time are drawn, of streams and stores: colours, ticks, the axis, lanes of clocks.

A picture is SVG without scripts, style sheets of others, or references to anything outside. What it
shows has the colour of the page around it, or one of `COLOURS`, which read on light and dark pages.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    HOUR_US,
    MIN_US,
    MINUTE_US,
    SECOND_US,
    from_datetime,
    to_datetime,
)
from pyspark_timestream.core.report import cell_width, format_time, svg

COLOURS: Final = (
    *("#2478d8", "#ec6a00", "#0f7d6e", "#c0399f", "#9084fc", "#29a06a", "#cc3018", "#c77f9a"),
)
"""Each has a contrast of 3 and more to both pages, and differs from the others to people who see
two primary colours."""

PAGES: Final = {"light": ("#ffffff", "#1f2328"), "dark": ("#14171c", "#e6e8eb")}
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
"""What a clock calls round, up to a week."""

STEPS_IN_MONTHS: Final = (1, 3, 6, *(12 * n * 10**power for power in range(4) for n in (1, 2, 5)))
"""What a calendar calls round above that."""


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A tick of an axis of time: `label`, such as `06:00`, and the `context` that it lacks.

    The context, such as `5 Jan 2026`, is empty where that of the tick before goes on.
    """

    us: int
    label: str
    context: str


def choose_step(low: int, high: int, most: int) -> tuple[int, int]:
    """Return the step of at most `most` ticks from low to high, in microseconds or in months.

    >>> choose_step(0, 10 * SECOND_US, 5), choose_step(0, 400 * DAY_US, 5)
    ((5000000, 0), (0, 3))
    """
    for step in STEPS_US:
        if (high - low) // step < most:
            return step, 0
    for months in STEPS_IN_MONTHS:
        if (high - low) // (months * 30 * DAY_US) < most:
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
    most = max(1, int(room // text_width("00:00:00   ")))
    step, months = choose_step(low, high, most)
    starts = _step_months(low, high, months) if months else _step_clock(low, high, step)
    return tuple(label_ticks(starts, step, months))


def _step_clock(low: int, high: int, step: int) -> list[int]:
    origin = _WEEK_US if step > DAY_US else 0
    first = low + (origin - low) % step
    return list(range(first, high + 1, step))


def _step_months(low: int, high: int, months: int) -> list[int]:
    starts = []
    first = to_datetime(low)
    at = (first.year * 12 + first.month - 1) // months * months
    while 12 <= at < 12 * 10_000:
        moment = first.replace(
            year=at // 12, month=at % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0
        )
        us = from_datetime(moment)
        if us > high:
            break
        starts += [us] if us >= low else []
        at += months
    return starts


# -- the axis of time ------------------------------------------------------------------------------


class TimeScale:
    """Maps application time to pixels: the earliest instant a bit inside, the latest at the end.

    One instant alone has a second before and after it. The final CTI is no time of the scale: it is
    at its end.
    """

    def __init__(self, times_us: Sequence[int], left: float, width: float) -> None:
        known = [us for us in times_us if us < FINAL_US] or [MIN_US + _MIN_SPAN_US]
        self.low, self.high = min(known), max(known)
        if self.high - self.low < _MIN_SPAN_US and self.low == self.high:
            self.low -= SECOND_US
        self.left, self.width = left, width

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
    end = -1.0
    line = f"M{format_pixel(ends[0])},{format_pixel(bottom)}H{format_pixel(ends[1])}"
    yield svg("path", d=line, stroke="currentColor", stroke_opacity=0.5)
    places = [to_x(tick.us) for tick in ticks]
    contexts = [x for x, tick in zip(places, ticks, strict=True) if tick.context]
    for x, tick in zip(places, ticks, strict=True):
        mark = f"M{format_pixel(x)},{format_pixel(bottom)}v4"
        yield svg("path", d=mark, stroke="currentColor", stroke_opacity=0.5)
        half = text_width(tick.label) / 2
        x_label = min(max(x, half), width - half)
        yield svg(
            "text",
            tick.label,
            x=format_pixel(x_label),
            y=format_pixel(bottom + 17),
            text_anchor="middle",
        )
        if not tick.context:
            continue
        half = text_width(tick.context) / 2
        after = [other for other in contexts if other > x]
        # The first context yields to the next one, where a day or a year begins.
        if x == contexts[0] and after and after[0] - x < 2 * half + 8:
            continue
        at = min(max(x, half), width - half)
        if at - half > end:
            yield svg(
                "text",
                tick.context,
                x=format_pixel(at),
                y=format_pixel(bottom + 32),
                text_anchor="middle",
                fill_opacity=FAINT,
            )
            end = at + half + 8


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

    A dashed line is the stream's CTI. A page may give the classes of these other colours.

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
    parts = [
        svg(
            "rect",
            class_="rail",
            x=left,
            y=top + 6,
            width=width,
            height=4,
            rx=2,
            fill="currentColor",
            fill_opacity=0.15,
        )
    ]
    if cti_us is not None:
        unit = "%" if width.endswith("%") else ""
        size = float(to_x(cti_us).removesuffix("%")) - float(left.removesuffix("%"))
        title = svg("title", f"CTI {format_time(cti_us)}")
        parts.append(
            svg(
                "rect",
                "",
                title,
                class_="bar",
                x=left,
                y=top + 4,
                width=f"{format_pixel(size)}{unit}",
                height=8,
                rx=2,
                fill=COLOURS[is_cause],
            )
        )
    if last_us is not None:
        title = svg("title", f"newest event {format_time(last_us)}")
        parts.append(
            svg(
                "circle",
                "",
                title,
                class_="event",
                cx=to_x(last_us),
                cy=top + 8,
                r=4,
                fill="none",
                stroke="currentColor",
                stroke_width=2,
            )
        )
    if stream_us is not None and stream_us < FINAL_US:
        at = to_x(stream_us)
        parts.append(
            svg(
                "line",
                class_="stream-cti",
                x1=at,
                x2=at,
                y1=top - 3,
                y2=top + 19,
                stroke="currentColor",
                stroke_dasharray="3 2",
            )
        )
    return "".join(parts)
