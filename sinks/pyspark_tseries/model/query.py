"""Describe range queries: points and ranges of a series, kinds of queries (semantics 21.3).

A range has an *anchor* and a *span*, both inclusive. A sequence or a time stands *on* an event,
`start` and `last` stand *between* events: `start .. next 4` is 0 to 3, `sequence 5 .. next 3` is
5 to 8. The span may lie before the anchor. The model is that of Diffusion's time series.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pyspark_timestream.core.instants import from_datetime, parse_duration, parse_instant
from pyspark_tseries.errors import InvalidQuery

NO_LIMIT: Final = 2**63 - 1
"""The limit of a query without one."""

ANCHOR_KINDS: Final = ("start", "sequence", "time", "last_count", "last_us")
SPAN_KINDS: Final = (*ANCHOR_KINDS, "next_count", "next_us", "previous_count", "previous_us")
QUERY_KINDS: Final = ("values", "allEdits", "latestEdits")

_MAX_VALUE: Final = 2**61
"""Every sequence, count and duration is below this, so arithmetic stays in 64 bits."""

_RELATIVE: Final = re.compile(r"(last|next|previous)\s+(.+)", re.IGNORECASE | re.DOTALL | re.ASCII)
_SEQUENCE: Final = re.compile(r"sequence\s+(-?[0-9]+)", re.IGNORECASE | re.ASCII)
_COUNT: Final = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class Point:
    """An end of a range.

    Attributes:
        kind: one of `SPAN_KINDS`: `start`; `sequence`; `time`, in us; `last_count` and `last_us`,
            that many events before the end, or that long before the last event; `next_*` and
            `previous_*` count from the anchor.
        value: the number; 0 for `start`. Only a time may be negative.
    """

    kind: str
    value: int = 0

    def __post_init__(self) -> None:
        if self.kind != "time" and self.value < 0:
            raise InvalidQuery(
                f"{self.value} is negative",
                "sequences, counts and durations of 0 or more",
                "correct it, or use another direction",
            )
        if self.value >= _MAX_VALUE:
            raise InvalidQuery(f"{self.value} is too large", "less than 2^61", "correct it")


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a series; by default all of it."""

    anchor: Point = Point("start")
    span: Point = Point("last_count")


FULL_RANGE: Final = Range()


@dataclass(frozen=True, slots=True)
class Query:
    """A query of one or more series.

    Attributes:
        kind: `values`: originals, each replaced by its latest edit, in the order of the
            originals; `allEdits`: originals and all their edits, in the order of sequences;
            `latestEdits`: originals and the latest edit of each.
        view: the range of originals.
        edits: the range of events that the result may contain.
        limit: the most events of each series; the last ones in the query's order count.
    """

    kind: str = "values"
    view: Range = field(default=FULL_RANGE)
    edits: Range = field(default=FULL_RANGE)
    limit: int = NO_LIMIT


def parse_anchor(text: str) -> Point:
    """Return the point that `text` describes; raise ValueError if `ANCHOR_KINDS` lacks its kind.

    >>> parse_anchor("last 5"), parse_anchor("LAST 1 minute")
    (Point(kind='last_count', value=5), Point(kind='last_us', value=60000000))
    """
    point = parse_span(text)
    if point.kind not in ANCHOR_KINDS:
        raise ValueError(f"'{text}' counts from an anchor and cannot be one")
    return point


def parse_span(text: str) -> Point:
    """Like `parse_anchor`; also accept `next` or `previous` with a number or a duration."""
    text = text.strip()
    if text.lower() == "start":
        return Point("start")
    if sequence := _SEQUENCE.fullmatch(text):
        return Point("sequence", int(sequence[1]))
    if relative := _RELATIVE.fullmatch(text):
        return _parse_relative(relative[1].lower(), relative[2].strip())
    return Point("time", parse_instant(text))


def _parse_relative(word: str, amount: str) -> Point:
    if _COUNT.fullmatch(amount):
        return Point(f"{word}_count", int(amount))
    return Point(f"{word}_us", parse_duration(amount))


def datetime_to_us(moment: datetime) -> int:
    """Return microseconds since the epoch; raise InvalidQuery for no zone or pandas nanoseconds."""
    if moment.tzinfo is None:
        raise InvalidQuery(
            f"{moment!r} has no time zone", "an aware datetime", "give it one, such as tzinfo=UTC"
        )
    _refuse_nanoseconds(moment, getattr(moment, "nanosecond", 0))
    return from_datetime(moment)


def timedelta_to_us(span: timedelta) -> int:
    """Return the microseconds of `span`; raise InvalidQuery for nanoseconds, as pandas may have."""
    _refuse_nanoseconds(span, getattr(span, "nanoseconds", 0))
    return span // timedelta(microseconds=1)


def _refuse_nanoseconds(given: object, nanoseconds: int) -> None:
    if nanoseconds:
        raise InvalidQuery(
            f"{given!r} is finer than a microsecond", "whole microseconds", "round it to 'us'"
        )
