"""How reports are written: units, cuts, secrets, tables, HTML and SVG, for every command and page.

Reports are for people. Names and values come from brokers and records, so text for a terminal has
its control characters escaped, and HTML and SVG are escaped completely, without scripts or
references to anything outside.
"""

import itertools
import json
import re
from collections.abc import Sequence
from html import escape
from typing import Final

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    format_duration,
    format_instant,
)

GAP: Final = "  "
"""Separates the columns of a table."""

_MAX_CELL: Final = 40
_MIN_CELL: Final = 10
"""A column is left out if it would have to be cut below this width."""

# -- units -----------------------------------------------------------------------------------------

_UNITS: Final = ((DAY_US, "d"), (HOUR_US, "h"), (MINUTE_US, "min"), (SECOND_US, "s"))
UNITS_US: Final = tuple(unit_us for unit_us, _ in _UNITS)


def round_duration(us: int) -> str:
    """Round a duration down to a unit that is easy to read.

    >>> round_duration(93_600_000_001)
    '1 day'
    """
    unit_us = next((unit for unit in UNITS_US if us >= unit), 1)
    return format_duration(us // unit_us * unit_us)


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


# -- secrets ---------------------------------------------------------------------------------------

_SECRET_PART: Final = re.compile(
    "(?i:passw|pwd|secret|token|credential|cookie|private|key$|iban|ssn|cvv|pin$|card(?!inalit))"
    "|(?i:auth)(?!or(?!i[sz])|OR(?!I[SZ]))"
)
"""Matches parts of secrets' names, but neither `author` nor `cardinality`."""

_PLAIN_KEY: Final = re.compile(
    "(?i:key|(?:foreign|partition|record|sort)[ _-]?key|primary[ _-]key)"
)
"""Matches keys that identify a record. Cloud services call one of their secrets `primaryKey`."""

_SECRET_KEY: Final = frozenset(
    ("api", "access", "account", "encryption", "license", "master", "session", "shared", "signing",
     "ssh", "storage", "subscription", "webhook")
)  # fmt: skip
"""A word before "key" or "keys" that makes a secret of it anywhere in a name."""

_NAME_WORD: Final = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def split_name(name: str) -> list[str]:
    """Split a name into its words, in lower case.

    >>> split_name("URLOfEvent_time")
    ['url', 'of', 'event', 'time']
    """
    return [word.lower() for word in _NAME_WORD.findall(name)]


def suggests_secret(name: str) -> bool:
    """Return whether the name of a field or header suggests that it holds a secret.

    >>> [suggests_secret(each) for each in ("apiKey", "db_password", "primary_key", "author")]
    [True, True, False, False]
    """
    if _PLAIN_KEY.fullmatch(name) is not None:
        return False
    if _SECRET_PART.search(name) is not None:
        return True
    words = split_name(name)
    joined = [word.removesuffix("key") for word in words if word.endswith("key")]
    return (
        "pin" in words
        or any(each in _SECRET_KEY for each in joined)
        or any(
            last in ("key", "keys") and first in _SECRET_KEY
            for first, last in itertools.pairwise(words)
        )
    )


def hides_secret(text: str) -> bool:
    """Return whether a text has JSON with a field whose name suggests a secret."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        pending = [json.loads(text)]
    except (ValueError, RecursionError):
        return suggests_secret(text)
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if any(suggests_secret(name) for name in value):
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False


# -- text ------------------------------------------------------------------------------------------


def escape_controls(line: str) -> str:
    """Escape control characters."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)


def join_sections(sections: Sequence[Sequence[str]]) -> str:
    """Join sections of lines with a blank line between them; leave out empty ones."""
    return "\n\n".join("\n".join(map(escape_controls, lines)) for lines in sections if lines)


def cut_text(text: str, size: int) -> str:
    """Cut a text to at most `size` characters, and put dots where it is cut."""
    return text if len(text) <= size else f"{text[: max(size - 3, 0)]}..."[:size]


def align(rows: Sequence[Sequence[str]], to_right: bool = False) -> list[str]:
    """Lay out cells in columns as wide as necessary; `to_right`: align all but the first right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(
            cell.rjust(size) if to_right and place else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def align_within(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lay out cells in columns within `width`; cut some, or leave columns out and name them."""
    cells = [[escape_controls(cell) for cell in row] for row in rows]
    widths: list[int] = []
    for column in zip(*cells, strict=True):
        room = width - sum(widths) - len(GAP) * len(widths)
        size = min(_MAX_CELL, max(map(len, column)))
        if size > room and room < _MIN_CELL and widths:
            break
        widths.append(max(min(size, room), 1))
    lines = align(
        [[cut_text(cell, size) for cell, size in zip(row, widths, strict=False)] for row in cells]
    )
    left = cells[0][len(widths) :]
    if left:
        more = f"and {format_count(len(left), 'more column')}: {', '.join(left)}"
        lines.append(cut_text(more, width))
    return lines


# -- HTML and SVG ----------------------------------------------------------------------------------


def paragraph(lines: Sequence[str], title: str = "") -> str:
    """Format lines of text as a paragraph below a bold title."""
    bold = [f"<b>{escape(title)}</b>"] if title else []
    return "<p>" + "<br/>".join([*bold, *(escape(line.strip()) for line in lines)]) + "</p>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with these columns."""

    def fill(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(fill("td", row) for row in rows)
    return f"<table><thead>{fill('th', head)}</thead><tbody>{body}</tbody></table>"


def svg(tag: str, text: str = "", *children: str, **attributes: object) -> str:
    """Format an element of a picture; `_` in the name of an attribute stands for `-`.

    >>> svg("text", "a & b", text_anchor="end", x=4)
    '<text text-anchor="end" x="4">a &amp; b</text>'
    """
    named = "".join(
        f' {name.replace("_", "-")}="{escape(str(value))}"' for name, value in attributes.items()
    )
    return f"<{tag}{named}>{escape(text)}{''.join(children)}</{tag}>"


class Axis:
    """Maps application time to pixels: the earliest instant a bit inside, the latest at the end."""

    def __init__(self, first_us: int, last_us: int, left: int, width: int) -> None:
        self._first_us, self._last_us, self._left, self._width = first_us, last_us, left, width

    def at(self, us: int) -> float:
        """Return the x of an instant."""
        length_us = self._last_us - self._first_us
        fraction = (us - self._first_us) / length_us if length_us else 1.0
        return round(self._left + self._width * (0.05 + 0.95 * min(max(fraction, 0.0), 1.0)), 1)

    def draw_labels(self, y: int) -> str:
        """Draw the instants at both ends."""
        right = self._left + self._width
        return svg("text", format_time(self._first_us), x=self._left, y=y) + svg(
            "text", format_time(self._last_us), x=right, y=y, text_anchor="end"
        )
