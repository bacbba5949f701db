"""Range queries as values: points, ranges of a series, and what is asked of them (semantics 21.3).

A range has an *anchor* and a *span*, both inclusive. A sequence or a time stands *on* an event,
`start` and `last` stand *between* events: `start .. next 4` is 0 to 3, `sequence 5 .. next 3` is
5 to 8. The span may lie before the anchor. After Diffusion's time series.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark_timestream.connector.instants import parse_duration, parse_instant
from pyspark_tseries.errors import InvalidQuery

__all__ = [
    "EVERYTHING",
    "MAX",
    "QUERIES",
    "Point",
    "Query",
    "Range",
    "instant_us",
    "parse_anchor",
    "parse_span",
    "span_us",
]

MAX: Final = 2**63 - 1
"""The limit of a query that has none."""

ANCHORS: Final = ("start", "sequence", "time", "last_count", "last_us")
SPANS: Final = (*ANCHORS, "next_count", "next_us", "previous_count", "previous_us")
QUERIES: Final = ("values", "allEdits", "latestEdits")

_MOST: Final = 2**61
"""No sequence, count or duration reaches this far (exclusive): arithmetic stays in 64 bits."""

_RELATIVE: Final = re.compile(r"(last|next|previous)\s+(.+)", re.IGNORECASE | re.DOTALL | re.ASCII)
_SEQUENCE: Final = re.compile(r"sequence\s+(-?[0-9]+)", re.IGNORECASE | re.ASCII)
_COUNT: Final = re.compile(r"-?[0-9]+")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Point:
    """An end of a range.

    Attributes:
        kind: one of `SPANS`: `start`; `sequence`; `time`, in us; `last_count` and `last_us`, so
            many events before the end, or so long before the last event; `next_*`, `previous_*`,
            from the anchor.
        value: the number; 0 for `start`. Only a time may be negative.
    """

    kind: str
    value: int = 0

    def __post_init__(self) -> None:
        if self.kind != "time" and self.value < 0:
            raise InvalidQuery(
                f"{self.value} is negative; accepted: sequences, counts and durations of 0 or "
                "more; next step: correct it, or use another direction"
            )
        if self.value >= _MOST:
            raise InvalidQuery(
                f"{self.value} is too large; accepted: less than 2^61; next step: correct it"
            )


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a series; as it stands everything."""

    anchor: Point = Point("start")
    span: Point = Point("last_count")


EVERYTHING: Final = Range()


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked of a series.

    Attributes:
        kind: `values`: originals, each replaced by its latest edit, in the order of the
            originals; `allEdits`: originals and all their edits, in the order of sequences;
            `latestEdits`: originals and the latest edit of each.
        view: which originals.
        edits: only events inside it are in the result.
        limit: at most so many events a series, those with the highest sequences.
    """

    kind: str = "values"
    view: Range = field(default=EVERYTHING)
    edits: Range = field(default=EVERYTHING)
    limit: int = MAX


def parse_anchor(text: str) -> Point:
    """The point that `text` says.

    Raises:
        ValueError: none of `start`, `sequence N`, an ISO-8601 time, `last N`, `last DURATION`.

    >>> parse_anchor("last 5"), parse_anchor("LAST 1 minute")
    (Point(kind='last_count', value=5), Point(kind='last_us', value=60000000))
    """
    point = parse_span(text)
    if point.kind not in ANCHORS:
        raise ValueError(f"'{text}' counts from an anchor and cannot be one")
    return point


def parse_span(text: str) -> Point:
    """As parse_anchor, and `next N`, `next DURATION`, `previous N`, `previous DURATION` too."""
    text = text.strip()
    if text.lower() == "start":
        return Point("start")
    if sequence := _SEQUENCE.fullmatch(text):
        return Point("sequence", int(sequence[1]))
    if relative := _RELATIVE.fullmatch(text):
        return _relative(relative[1].lower(), relative[2].strip())
    return Point("time", parse_instant(text))


def _relative(word: str, amount: str) -> Point:
    if _COUNT.fullmatch(amount):
        return Point(f"{word}_count", int(amount))
    return Point(f"{word}_us", parse_duration(amount))


def instant_us(moment: datetime) -> int:
    """Microseconds since the epoch; raises InvalidQuery where `moment` has no time zone."""
    if moment.tzinfo is None:
        raise InvalidQuery(
            f"{moment!r} has no time zone; accepted: an aware datetime; next step: give it one, "
            "such as tzinfo=UTC"
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)


def span_us(span: timedelta) -> int:
    """Whole microseconds of `span`."""
    return span // timedelta(microseconds=1)
