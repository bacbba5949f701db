"""Ranges of a series: those that a query asks for, and the retained one (semantics 20 and 21.3).

The range of a query has an *anchor* and a *span*, both inclusive. A sequence or a time stands *on*
an event, `start` and `last` stand *between* events: `start .. next 4` is 0 to 3, `sequence 5 ..
next 3` is 5 to 8. The span may lie before the anchor. The model follows Diffusion's time series.

Queries see the retained range of a series: its most recent events. `limit` bounds their number, of
any kind; `last` bounds their age before the series' newest original. An event is inside if both
hold. No clock is needed: nothing expires while nothing is added. A range can be narrowed and
widened later, but events that were ever outside stay outside: a change raises the *floors* of each
series to the lower bounds of the previous range.

A question also chooses series: some by name, a prefix, a pattern, or all (semantics 31.1).
"""

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from numbers import Integral
from typing import Any, Final, SupportsInt, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    datetime_to_us,
    format_duration,
    parse_duration,
    parse_instant,
    timedelta_to_us,
)
from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import InvalidQuery, TseriesError
from pyspark_tseries.model.arrays import Int64Array
from pyspark_tseries.model.columns import is_valid_text

NO_LIMIT: Final = 2**63 - 1
"""The limit of a query without one."""

ANCHOR_KINDS: Final = ("start", "sequence", "time", "last_count", "last_us")
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
        kind: `start`; `sequence`; `time`, in us; `last_count` and `last_us`, that many events
            before the end, or that long before the last event; of a span also `next_*` and
            `previous_*`, which count from the anchor.
        value: the number; 0 for `start`. Only a time may be negative.
    """

    kind: str
    value: int = 0

    def __post_init__(self) -> None:
        if self.kind != "time" and self.value < 0:
            raise InvalidQuery(
                f"{self._describe()} is negative",
                "sequences, counts and durations of 0 or more",
                "correct it, or use another direction",
            )
        if self.value >= _MAX_VALUE:
            raise InvalidQuery(f"{self._describe()} is too large", "less than 2^61", "correct it")

    def _describe(self) -> str:
        """Return the point in the words of a question."""
        word, _, unit = self.kind.partition("_")
        return f"{word} {format_duration(self.value) if unit == 'us' else self.value}"


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

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise InvalidQuery(f"limit {self.limit} is negative", "0 or more", "correct it")


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
        word, amount = relative[1].lower(), relative[2].strip()
        if _COUNT.fullmatch(amount):
            return Point(f"{word}_count", int(amount))
        return Point(f"{word}_us", parse_duration(amount))
    return Point("time", parse_instant(text))


def point_at(end: object) -> Point:
    """Return the point on an event: a sequence, or an aware datetime."""
    if isinstance(end, datetime):
        return Point("time", datetime_to_us(end, InvalidQuery))
    if not is_whole_number(end):
        raise InvalidQuery(
            f"{show_value(end)} is neither a sequence nor a time",
            "an int, or an aware datetime",
            "convert it, such as with datetime.fromisoformat(...) or pandas.Timestamp(...)",
        )
    return Point("sequence", int(end))


def point_off(word: str, amount: object) -> Point:
    """Return the point `amount` events, or that time, in the direction of `word`."""
    if isinstance(amount, timedelta):
        return Point(f"{word}_us", timedelta_to_us(amount, InvalidQuery))
    if not is_whole_number(amount):
        raise InvalidQuery(
            f"{show_value(amount)} is neither a number of events nor a length of time",
            "an int, or a timedelta",
            "convert it, such as with timedelta(hours=1) or pandas.Timedelta(...)",
        )
    return Point(f"{word}_count", int(amount))


def is_whole_number(number: object) -> TypeGuard[SupportsInt]:
    """Return whether a value is an integer of Python or NumPy.

    NumPy's lengths of time are none, though it calls them integers: their unit would be lost.
    """
    return isinstance(number, Integral) and not isinstance(number, bool | np.timedelta64)


def to_whole(
    number: object, kind: str = "whole number", refuse: type[TseriesError] = InvalidQuery
) -> int:
    """Return an integer of Python or NumPy as an int; raise `refuse` for all other values."""
    if is_whole_number(number):
        return int(number)
    raise refuse(f"{show_value(number)} is not a {kind}", "an int", "correct it")


_US_BY_UNIT_LETTER: Final = {"D": DAY_US, "H": HOUR_US, "M": MINUTE_US, "S": SECOND_US, "MS": 1_000}
_CLAUSE: Final = re.compile(
    r"(limit)\s+([0-9]+)(?:\s+|$)|(last)\s+([0-9]+)\s*(ms|[smhd])(?:\s+|$)",
    re.IGNORECASE | re.ASCII,
)
_MAX_CLAUSE: Final = 2**62
"""Every number in a clause is below this, so that subtracting one never overflows 64 bits."""


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """A range of recent events; a clause that is None does not bound.

    Attributes:
        limit: the number of most recent events, of any kind; at least 1 in a store's settings.
        last_us: how much older than the newest original an event may be, inclusive; at least 0.
    """

    limit: int | None = None
    last_us: int | None = None


UNLIMITED: Final = RetainedRange()
DEFAULT_RANGE: Final = RetainedRange(limit=10)
"""Diffusion's default."""
DEFAULT_INITIAL: Final = RetainedRange(limit=1)
NO_EVENTS: Final = RetainedRange(limit=0)


def parse_range(text: str) -> RetainedRange:
    """Return the range for `limit N`, `last DURATION`, both in any order, or `unlimited`.

    Case does not matter. If a clause is given twice, the smaller value counts. Raise ValueError for
    another form, for `limit 0`, and for a number of 2**62 or more.

    >>> parse_range("last 10S LIMIT 5")
    RetainedRange(limit=5, last_us=10000000)
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a text such as 'limit 10' or 'last 7D'")
    unparsed = text.strip()
    if unparsed.lower() == "unlimited":
        return UNLIMITED
    limits: list[int] = []
    spans_us: list[int] = []
    while clause := _CLAUSE.match(unparsed):
        if clause[1]:
            limits.append(_check_bounds(int(clause[2]), at_least=1))
        else:
            spans_us.append(
                _check_bounds(int(clause[4]) * _US_BY_UNIT_LETTER[clause[5].upper()], at_least=0)
            )
        unparsed = unparsed[clause.end() :]
    if unparsed or not (limits or spans_us):
        raise ValueError(f"'{unparsed or text}' is not a clause of a retained range")
    return RetainedRange(min(limits, default=None), min(spans_us, default=None))


def _check_bounds(number: int, *, at_least: int) -> int:
    if not at_least <= number < _MAX_CLAUSE:
        raise ValueError(f"{number} is not in [{at_least}, 2^62)")
    return number


def format_range(retained: RetainedRange) -> str:
    """Return the shortest text of `retained`; raise ValueError if `last_us` is not in whole ms.

    >>> format_range(RetainedRange(limit=5, last_us=90_000_000))
    'limit 5 last 90S'
    """
    clauses = [] if retained.limit is None else [f"limit {retained.limit}"]
    if retained.last_us is not None:
        clauses.append(f"last {_format_span(retained.last_us)}")
    return " ".join(clauses) or "unlimited"


def _format_span(us: int) -> str:
    for unit, size_us in _US_BY_UNIT_LETTER.items():
        if us % size_us == 0 and us:
            return f"{us // size_us}{unit}"
    if us:
        raise ValueError(f"{us} us is not a whole number of milliseconds")
    return "0MS"


def min_retained(
    retained: RetainedRange,
    last_sequence: Int64Array,
    newest_us: Int64Array,
    floors: Mapping[str, Int64Array],
) -> tuple[Int64Array, Int64Array]:
    """Return the lowest sequence and the earliest timestamp that each series retains.

    `newest_us` is the timestamp of the series' newest original, `floors` are the bounds from
    earlier changes of the range.
    """
    sequence, us = floors["floor_sequence"], floors["floor_us"]
    # Neither overflows: the absolute values are at most 2**62.
    if retained.limit is not None:
        sequence = np.maximum(sequence, last_sequence - (retained.limit - 1))
    if retained.last_us is not None:
        us = np.maximum(us, newest_us - retained.last_us)
    return sequence, us


def parse_initial(text: str) -> RetainedRange:
    """Parse a subscription range: `limit N`, `last DURATION`, both, `unlimited`, or `none`."""
    return NO_EVENTS if str(text).strip().lower() == "none" else parse_range(text)


def format_initial(initial: RetainedRange) -> str:
    """Return the text of a subscription range; `parse_initial` reads it back."""
    return "none" if initial == NO_EVENTS else format_range(initial)


def parse_start_sequences(text: str) -> dict[str, int]:
    """Return the sequence of each series in the JSON object `text`.

    Raise ValueError if it is not one, or if a number is not whole, is negative, or is not below
    2**62.

    >>> parse_start_sequences('{"a": 7}')
    {'a': 7}
    """
    starts = json.loads(text)
    if not isinstance(starts, dict):
        raise ValueError("not a JSON object")
    for name, sequence in starts.items():
        is_whole = isinstance(sequence, int) and not isinstance(sequence, bool)
        if not is_whole or not 0 <= sequence < _MAX_CLAUSE:
            raise ValueError(f"'{name}' has {sequence!r}, which is not a sequence")
    return starts


_WILDCARD: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class SeriesChoice:
    """The series of a question; without names, those that have the prefix and fit the pattern.

    Attributes:
        names: the series by name, sorted and distinct; they may be unknown. None: not by name.
        prefix: the beginning of names.
        pattern: a pattern of names: `*` any text, `?` one letter, `[...]` one of some letters.
    """

    names: tuple[str, ...] | None = None
    prefix: str = ""
    pattern: str | None = None

    @property
    def is_all(self) -> bool:
        """Whether every series is chosen."""
        return self.names is None and not self.prefix and self.pattern is None

    def pick(self, names: Sequence[str]) -> list[str]:
        """Return the chosen ones of `names`, sorted by their code points."""
        if self.names is not None:
            chosen = set(self.names)
            return sorted(name for name in names if name in chosen)
        begins = self.prefix
        if self.pattern is not None:
            wildcard = _WILDCARD.search(self.pattern)
            begins = self.pattern[: wildcard.start()] if wildcard else self.pattern
        if begins:
            texts = pa.array(names, pa.string())
            names = texts.filter(pc.starts_with(texts, begins)).to_pylist()
        if self.pattern is not None:
            fits = re.compile(fnmatch.translate(self.pattern)).match
            names = [name for name in names if fits(name)]
        return sorted(names)


ALL_SERIES: Final = SeriesChoice()


def parse_choice(
    series: Any = None, prefix: str | None = None, pattern: str | None = None
) -> SeriesChoice:
    """Return the caller's choice; without any argument, all series.

    Args:
        series: a name, or several.
        prefix: the beginning of names.
        pattern: a pattern of names.

    Raises:
        InvalidQuery: more than one of the three is given, or one of them is not a text.
    """
    arguments = {"series": series, "prefix": prefix, "pattern": pattern}
    names_given = [name for name, value in arguments.items() if value is not None]
    if len(names_given) > 1:
        raise InvalidQuery(
            f"{' and '.join(names_given)} choose series at the same time",
            "one of series, prefix and pattern; none of them for all series",
            "leave out all but one; a pattern such as 'room/*/celsius' can begin with a prefix",
        )
    for name, text in (("prefix", prefix), ("pattern", pattern)):
        if text is not None and not is_valid_text(text):
            raise InvalidQuery(f"{name} {show_value(text)} is not a text", "a text", "correct it")
    if series is None:
        return SeriesChoice(None, str(prefix or ""), None if pattern is None else str(pattern))
    names = [series] if isinstance(series, str) else _list_names(series)
    return SeriesChoice(tuple(sorted({parse_name(name) for name in names})))


def _list_names(series: Any) -> list[Any]:
    if isinstance(series, pa.Array | pa.ChunkedArray):
        return list(series.to_pylist())
    if isinstance(series, bytes) or not isinstance(series, Iterable):
        return [series]
    return list(series)


def parse_name(name: Any) -> str:
    """Return the name of a series; raise InvalidQuery if it is not a valid text."""
    if not is_valid_text(name):
        raise InvalidQuery(
            f"{show_value(name)} is not the name of a series",
            "a text, or several",
            "name the series as they were appended; series() lists them",
        )
    return str(name)
