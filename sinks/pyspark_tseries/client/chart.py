"""`Chart`: a picture of a result, for notebooks and as a file.

    chart = store.range_query().select_from(["kitchen", "hall"]).chart("celsius")
    chart.save("rooms.svg")

What it shows is decided in `chart/figure.py`, and drawn in `chart/svg.py`.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import available_timezones

import pyarrow as pa

from pyspark_timestream.core.instants import parse_duration, timedelta_to_us
from pyspark_timestream.core.picture import PAGES
from pyspark_timestream.errors import compose_message, show_value
from pyspark_tseries.chart.figure import USUAL, Figure, Shape, Wanted, build_figure
from pyspark_tseries.chart.svg import draw_svg
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.buckets import parse_zone
from pyspark_tseries.model.ranges import to_whole

MAX_SERIES: Final = 8
"""As many lines still have colours of their own."""

_WIDTHS: Final = 240, 4000
_HEIGHTS: Final = 40, 2000
_THEMES: Final = ("auto", *PAGES)


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
            InvalidQuery: `scale` is not from 0.1 to 10, or this machine has no font.
        """
        if not isinstance(scale, int | float) or not 0.1 <= scale <= 10:
            raise InvalidQuery(f"scale {scale!r} is no scale", "from 0.1 to 10", "correct it")
        return _render_png(self.to_svg(), scale)

    def save(self, path: str | os.PathLike[str], scale: float = 2.0) -> None:
        """Write the chart to a file, whose name ends with `.svg` or `.png`; `scale` is of PNG.

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
        # An SVG inside the page takes on its colours, which are those of a notebook's theme.
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
    """Return a chart of a result; the arguments are those of `QueryResult.chart`."""
    if theme not in _THEMES:
        raise InvalidQuery(f"{theme!r} is not a theme", ", ".join(_THEMES), "name one of these")
    most = to_whole(max_series)
    if most < 1:
        raise InvalidQuery(f"max_series {most} is below 1", "1 or more", "correct it")
    wanted = Wanted(
        columns=_parse_columns(columns),
        most_series=most,
        zone=shape.zone if timezone is None else find_zone(timezone),
        units=_check_units(units or {}, shape),
        longest_gap=_parse_gap(longest_gap),
        title=title,
        pixels=_check_size("width", width, _WIDTHS),
    )
    high = _check_size("height", height, _HEIGHTS)
    return Chart(build_figure(table, shape, wanted), wanted.pixels, high, theme)


def _parse_columns(given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    named = (given,) if isinstance(given, str) else tuple(given)
    if not named or not all(isinstance(name, str) for name in named):
        raise InvalidQuery(
            f"columns {show_value(given)} are no names of columns",
            "a name, several, or None for those that can be drawn",
            "correct it",
        )
    return tuple(dict.fromkeys(named))


def _check_units(units: Mapping[str, str], shape: Shape) -> dict[str, str]:
    for name, unit in units.items():
        if name not in shape.values or not isinstance(unit, str):
            raise InvalidQuery(
                f"units: {show_value(name)} has no unit {show_value(unit)} in this result",
                f"texts for the columns {', '.join(shape.values) or '(none)'}",
                "correct it",
            )
    return dict(units)


def _check_size(name: str, given: int, ends: tuple[int, int]) -> int:
    pixels = to_whole(given)
    if not ends[0] <= pixels <= ends[1]:
        raise InvalidQuery(
            f"{name} {pixels} is no {name} of a chart",
            f"{ends[0]} to {ends[1]} pixels",
            "correct it",
        )
    return pixels


def _parse_gap(given: str | timedelta | None) -> int | str | None:
    if given is None or given == USUAL:
        return given  # type: ignore[return-value]
    try:
        us = (
            timedelta_to_us(given, InvalidQuery)
            if isinstance(given, timedelta)
            else parse_duration(given)
        )
    except (ValueError, AttributeError):
        us = -1
    if us < 0:
        raise InvalidQuery(
            f"longest_gap {show_value(given)} is not the length of a gap",
            f"a duration such as '5 minutes', a timedelta, '{USUAL}', or None for lines without "
            "gaps",
            "correct it",
        )
    return us


# -- time zones ------------------------------------------------------------------------------------

LOCAL: Final = "local"
"""Names the time zone of this machine."""


def find_zone(name: str | None) -> str | None:
    """Return what `parse_zone` does; the name may also stand for this machine's zone."""
    if name == LOCAL:
        return _find_local_zone()
    return parse_zone(
        name, f"an IANA name such as 'Europe/Berlin', or '{LOCAL}' for this machine's"
    )


def _find_local_zone() -> str | None:
    """Return the IANA name of this machine's zone, None if it is UTC or cannot be told."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        name = os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    is_utc = name in ("UTC", "Etc/UTC", "Etc/UCT", "Zulu")
    return name if name in available_timezones() and not is_utc else None


# -- PNG -------------------------------------------------------------------------------------------

_PROBE: Final = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'


def _render_png(picture: str, scale: float) -> bytes:
    try:
        import resvg_py
    except ModuleNotFoundError as error:
        if error.name != "resvg_py":
            raise
        raise ModuleNotFoundError(
            compose_message(
                "a chart as PNG needs resvg, which is not installed",
                next_step="pip install 'pyspark-timestream[png]', or save it as .svg",
            ),
            name="resvg_py",
        ) from None

    def render(text: str, zoom: float) -> bytes:
        found: Any = resvg_py.svg_to_bytes(svg_string=text, zoom=zoom)
        return bytes(found)

    # Without a font resvg leaves out all text, and says nothing.
    if render(_PROBE.format('<text y="15">M</text>'), 1) == render(_PROBE.format(""), 1):
        raise InvalidQuery(
            "this machine has no font, so a PNG would have no text",
            "a machine with a font",
            "install one, such as Debian's package fonts-liberation, or save it as .svg",
        )
    return render(picture, scale)
