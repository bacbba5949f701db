"""How reports are written: units, cuts, tables, HTML and SVG, for every command and page.

Reports are for people. Names and values come from brokers and records, so text for a terminal has
its control characters escaped, and HTML and SVG are escaped completely, without scripts or
references to anything outside.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    format_instant,
)

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


def format_count(number: int, what: str) -> str:
    """Format a number of things.

    >>> format_count(1, "offset"), format_count(2_000, "offset")
    ('1 offset', '2,000 offsets')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def begin_sentence(text: str) -> str:
    """Return a text that begins with a capital letter, to stand behind a full stop.

    >>> begin_sentence("no records are left"), begin_sentence("'ctiDelay' is too short")
    ('No records are left', "'ctiDelay' is too short")
    """
    return text[:1].upper() + text[1:]


# -- text ------------------------------------------------------------------------------------------

_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""What moves a cursor, ends a line, turns the direction of writing, or is no text at all."""


def escape_controls(text: str) -> str:
    r"""Escape control characters; the spaces and joiners of any language stay.

    >>> print(escape_controls("\x1b[31mred \u202egreen"))
    \x1b[31mred \u202egreen
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def join_sections(sections: Sequence[Sequence[str]]) -> str:
    """Join sections of lines with a blank line between them; leave out empty ones."""
    return "\n\n".join("\n".join(map(escape_controls, lines)) for lines in sections if lines)


_WITHOUT_WIDTH: Final = "Mn", "Me", "Cf"
_JOINER: Final = "\u200d"
_AS_PICTURE: Final = "\ufe0f"
_KEYS: Final = "#*0123456789"


def _find_ends(text: str) -> Iterator[int]:
    """Yield in which column of a terminal each character ends."""
    column, last, last_width = 0, " ", 1
    for char in text:
        kind, last_kind = unicodedata.category(char), unicodedata.category(last)
        is_tone = "\U0001f3fb" <= char <= "\U0001f3ff" and last_kind == "So"
        changes_last = last_width == 2 and (is_tone or (last == _JOINER and kind == "So"))
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if char == _AS_PICTURE and (last in _KEYS or last_kind in ("So", "Sm", "Po")):
            width, last_width = 2 - last_width, 2
        elif kind in _WITHOUT_WIDTH or "\u1160" <= char <= "\u11ff" or changes_last:
            width = 0
        else:
            last_width = width
        column, last = column + width, char
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


def pad(text: str, size: int, to_right: bool = False) -> str:
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
            pad(cell, size, to_right=to_right and place > 0)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip(" ")
        for row in rows
    ]


def align_within(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lay out cells in columns within `width`; cut some, or leave columns out and name them."""
    cells = [[escape_controls(cell) for cell in row] for row in rows]
    most = min(_MAX_CELL, width * 2 // 5)
    widths: list[int] = []
    for column in zip(*cells, strict=True):
        room = width - sum(widths) - len(GAP) * len(widths)
        size = min(most, max(map(cell_width, column)))
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


def svg(tag: str, text: str = "", *children: str, **attributes: object) -> str:
    """Format an element of a picture.

    `_` in the name of an attribute stands for `-`, and one at its end for nothing.

    >>> svg("text", "a & b", class_="name", text_anchor="end", x=4)
    '<text class="name" text-anchor="end" x="4">a &amp; b</text>'
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{to_html(str(value))}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{named}>{to_html(text)}{''.join(children)}</{tag}>"
