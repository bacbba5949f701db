"""Divide time into buckets of a width, also by the clock of a time zone (semantics 32.1).

The clock of a zone is UTC plus an *offset*, which is constant between two *transitions*.
`_list_segments` returns the pieces between transitions, so arithmetic on whole arrays finds the
start of a bucket. Only the first times of a piece need care: their bucket may have begun before it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import compress
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    MIN_US,
    datetime_to_us,
    from_datetime,
    parse_duration,
    timedelta_to_us,
    to_datetime,
)
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import Int64Array

DEFAULT_ORIGIN_US: Final = 946_857_600_000_000
"""2000-01-03T00:00:00Z, a Monday."""

MAX_BUCKETS: Final = 10_000_000
"""Fill a series up to at most this many buckets."""

_MANY_PIECES: Final = 200
"""A century has this many."""

_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_CALENDAR: Final = re.compile(r"([0-9]+)\s*(month|quarter|year)s?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Buckets:
    """All buckets of a width.

    Attributes:
        us: the width in microseconds; 0 if it is in months.
        months: the width in months; 0 if it is in microseconds.
        zone: the IANA name of the time zone; None for UTC.
        origin_us: a bucket begins here, by the clock of the zone: microseconds of its local time.
    """

    us: int
    months: int = 0
    zone: str | None = None
    origin_us: int = DEFAULT_ORIGIN_US

    def starts(self, us: Int64Array) -> Int64Array:
        """Return the start of the bucket that each time is in."""
        if self.zone is None or not len(us):
            return self._floor(us)
        result = np.empty_like(us)
        pieces = list(self._pieces(int(us.min()), int(us.max())))
        if len(pieces) > _MANY_PIECES:
            # Most are empty, as between most times and one of a wrong clock.
            limits = [piece.start for piece in pieces] + [pieces[-1].end]
            counts = np.diff(np.searchsorted(np.sort(us), limits))
            pieces = list(compress(pieces, counts))
        for piece in pieces:
            inside = np.flatnonzero((us >= piece.start) & (us < piece.end))
            times = us[inside]
            floors = self._floor(times + piece.offset) - piece.offset
            result[inside] = np.where(times < piece.first, piece.before, floors)
        return result

    def between(self, low: int, high: int) -> Int64Array:
        """Return the starts of all buckets from that of `low` to that of `high`.

        Raises:
            InvalidQuery: there are more than `MAX_BUCKETS`.
        """
        if self.zone is None:
            return self._steps(*self._floor(np.array([low, high])).tolist())
        pieces_starts = []
        for piece in self._pieces(low, high):
            head = max(piece.start, low)
            if head < piece.first:
                pieces_starts.append(np.array([piece.before], np.int64))
            ends = max(head, piece.first), min(piece.end - 1, high)
            if ends[0] <= ends[1]:
                floors = self._floor(np.array(ends, np.int64) + piece.offset).tolist()
                pieces_starts.append(self._steps(*floors) - piece.offset)
        return np.unique(np.concatenate(pieces_starts))

    def ends(self, starts: Int64Array) -> Int64Array:
        """Return the end of each bucket, exclusive, from its start."""
        if self.zone is None or not len(starts):
            return self._next_multiples(starts)
        # An end is the start of the next bucket, which may be in a later piece. Pieces come from
        # last to first, and `next_start` is the first start of a bucket in a later one.
        high = int(starts.max()) + self._reach
        ends = np.empty_like(starts)
        next_start = high
        for piece in reversed(list(self._pieces(int(starts.min()), high))):
            inside = np.flatnonzero((starts >= piece.start) & (starts < piece.end))
            multiples = self._next_multiples(starts[inside] + piece.offset) - piece.offset
            own_ends = np.where(starts[inside] < piece.first, piece.first, multiples)
            ends[inside] = np.where(own_ends < piece.end, own_ends, next_start)
            if piece.before == piece.start:  # A bucket begins with the piece.
                next_start = piece.start
            elif piece.first < piece.end:
                next_start = piece.first
        return ends

    def _next_multiples(self, multiples: Int64Array) -> Int64Array:
        if self.us:
            return multiples + self.us
        months, into = _split_months(multiples)
        return _join_months(months + self.months, into)

    @property
    def _reach(self) -> int:
        """The length of time that surely covers a whole bucket, even a long one."""
        return max(self.us, self.months * 31 * DAY_US) + 2 * DAY_US

    def _floor(self, us: Int64Array) -> Int64Array:
        """Return the last multiple of the width up to each time of a clock."""
        if self.us:
            return (us - self.origin_us) // self.us * self.us + self.origin_us
        origin = self.origin_us
        months, into = _split_months(us)
        origin_month, origin_into = (int(value[0]) for value in _split_months(np.array([origin])))
        months = months - (into < origin_into)
        return _join_months(
            (months - origin_month) // self.months * self.months + origin_month, origin_into
        )

    def _steps(self, low: int, high: int) -> Int64Array:
        """Return the multiples of the width from `low` to `high`, which are multiples."""
        if self.us:
            count = (high - low) // self.us + 1
        else:
            ends, into = _split_months(np.array([low, high]))
            count = int(ends[1] - ends[0]) // self.months + 1
        if count > MAX_BUCKETS:
            raise InvalidQuery(
                f"the range has {count:,} buckets",
                f"{MAX_BUCKETS:,} at most",
                "give wider buckets, a smaller range, or leave fill out",
            )
        if self.us:
            return low + np.arange(count) * self.us
        return _join_months(ends[0] + np.arange(count) * self.months, int(into[0]))

    def _pieces(self, low: int, high: int) -> "Iterator[_Piece]":
        assert self.zone is not None
        # Begin early enough to include the start of the bucket of `low`.
        before = None
        for start, end, offset in _list_segments(self.zone, low - self._reach, high):
            if before is None:
                first_start = int(self._floor(np.array([start + offset]))[0]) - offset
                piece = _Piece(start, end, offset, max(first_start, start), first_start)
            else:
                piece = self._make_next_piece(before, start, end, offset)
            if end > low:
                yield piece
            before = piece

    def _make_next_piece(self, before: "_Piece", start: int, end: int, offset: int) -> "_Piece":
        """Return the piece that begins with a transition at `start`."""
        begun = self._last_start(before)
        wall = start + offset
        below = int(self._floor(np.array([wall - 1]))[0])
        if offset > before.offset and below >= start + before.offset:
            begun = start  # The clock skips the start of a bucket, so it begins with the skip.
        begin = int(self._floor(np.array([wall]))[0])
        first_start = start if begin == wall else self._next_multiple(begin) - offset
        is_calendar = self.months > 0 or self.us % DAY_US == 0
        if is_calendar and offset < before.offset:
            # The clock shows these times again, and their buckets have already begun.
            again = start + before.offset
            while first_start + offset < again:
                first_start = self._next_multiple(first_start + offset) - offset
        return _Piece(start, end, offset, first_start, begun)

    def _next_multiple(self, wall: int) -> int:
        return int(self._next_multiples(np.array([wall]))[0])

    def _last_start(self, piece: "_Piece") -> int:
        """Return the start of the bucket of the last time in `piece`."""
        last_us = piece.end - 1
        if last_us < piece.first:
            return piece.before
        return int(self._floor(np.array([last_us + piece.offset]))[0]) - piece.offset


@dataclass(frozen=True, slots=True)
class _Piece:
    """A time between two transitions: `start` inclusive, `end` exclusive, in UTC.

    `first` is the first start of a bucket in it; times before that are in the bucket that begins
    at `before`.
    """

    start: int
    end: int
    offset: int
    first: int
    before: int


def parse_buckets(
    width: str | timedelta, timezone: str | None = None, origin: datetime | None = None
) -> Buckets:
    """Return the buckets of a width: a duration, or whole months, quarters or years as a text.

    Args:
        width: such as `15 minutes`, `1 day`, `2 weeks`, `1 month`, or a timedelta.
        timezone: an IANA name; None for UTC.
        origin: an aware datetime at which a bucket begins; None for the default.

    Raises:
        InvalidQuery: a width that is not a duration, is not positive, or, with a zone, neither
            divides a day nor is whole days; an unknown zone; or, for months, an origin after the
            28th.
    """
    us, months = _parse_width(width)
    name = parse_zone(timezone)
    if name is not None and us and us % DAY_US and DAY_US % us:
        raise InvalidQuery(
            f"a width of {width!r} neither divides a day nor is whole days",
            "with timezone, widths such as 15 minutes, 6 hours or 2 days",
            "take another width, or count by UTC: timezone 'UTC'",
        )
    origin_us = DEFAULT_ORIGIN_US
    if origin is not None:
        origin_us = datetime_to_us(origin, InvalidQuery)
        origin_us += 0 if name is None else _offset(name, origin_us)
    elif months:
        origin_us -= 2 * DAY_US
    if months and (to_datetime(origin_us).day > 28):
        raise InvalidQuery(
            f"origin {origin} is on a day that some months lack",
            "a day up to the 28th for widths in months",
            "take an earlier day",
        )
    if us and name is not None and origin is None and us < DAY_US:
        origin_us = 0  # Any midnight will do.
    return Buckets(us, months, name, origin_us)


def _parse_width(width: str | timedelta) -> tuple[int, int]:
    if isinstance(width, str) and (calendar := _CALENDAR.fullmatch(width.strip())):
        us, months = 0, int(calendar[1]) * _MONTHS[calendar[2].lower()]
    else:
        us, months = parse_length(width) or 0, 0
    if not 0 < us <= FINAL_US - MIN_US and not 0 < months <= 12 * 10_000:
        raise InvalidQuery(
            f"{width!r} is not the width of buckets",
            "a positive duration such as '15 minutes', '1 day', '1 week', '1 month' or '1 year', "
            "of at most 10,000 years",
            "correct it",
        )
    return us, months


def parse_length(length: object) -> int | None:
    """Return a text or timedelta in microseconds; None if it is not a duration of 0 or more."""
    try:
        if isinstance(length, timedelta):
            us = timedelta_to_us(length, InvalidQuery)
        else:
            us = parse_duration(length) if isinstance(length, str) else -1
    except ValueError:
        return None
    return us if us >= 0 else None


def parse_zone(
    name: str | None, accepted: str = "an IANA name such as 'Europe/Berlin'"
) -> str | None:
    """Return the name of a time zone, None for UTC; `accepted` is for the error.

    Raises:
        InvalidQuery: there is no such zone.
    """
    if name is None or name == "UTC":
        return None
    try:
        ZoneInfo(name)
    except Exception:
        raise InvalidQuery(f"{name!r} is not a time zone", accepted, "correct it") from None
    return name


def _split_months(us: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the month of each time, counted from 1970-01, and the microseconds into it."""
    times = us.astype("datetime64[us]")
    months = times.astype("datetime64[M]")
    into = times - months.astype("datetime64[us]")
    return months.astype(np.int64), into.astype(np.int64)


def _join_months(months: Int64Array, into: int | Int64Array) -> Int64Array:
    starts: Int64Array = months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)
    joined: Int64Array = starts + into
    return joined


def _offset(zone: str, us: int) -> int:
    """Return how far the clock of `zone` is ahead of UTC at a time, in microseconds."""
    moment = to_datetime(min(max(us, MIN_US + DAY_US), FINAL_US - DAY_US))
    gap = moment.astimezone(ZoneInfo(zone)).utcoffset()
    assert gap is not None
    return gap // timedelta(microseconds=1)


def _list_segments(zone: str, low: int, high: int) -> list[tuple[int, int, int]]:
    """Return start, end (exclusive) and offset of the pieces that cover `low` to `high`."""
    first_year, last_year = (to_datetime(min(max(us, MIN_US), FINAL_US)).year for us in (low, high))
    changes = [
        change
        for year in range(first_year, last_year + 1)
        for change in _list_transitions(zone, year)
    ]
    inside = [change for change in changes if low < change <= high]
    starts, ends = [low, *inside], [*inside, high + 1]
    return [(start, end, _offset(zone, start)) for start, end in zip(starts, ends, strict=True)]


_FIRST_YEAR: Final = 1800
"""No zone has a transition before."""

_REPEATED_YEAR: Final = 2100
"""From here on all zones change by rules of weekdays, so every 400 years alike."""

_CYCLE_YEARS: Final = 400
_CYCLE_US: Final = 146_097 * DAY_US


@lru_cache(maxsize=4096)
def _list_transitions(zone: str, year: int) -> tuple[int, ...]:
    """Return the times of a year when the offset of `zone` changes; one a day at most."""
    if year < _FIRST_YEAR:
        return ()
    if _REPEATED_YEAR + _CYCLE_YEARS <= year < 9999:
        cycles = (year - _REPEATED_YEAR) // _CYCLE_YEARS
        same_year = _list_transitions(zone, year - cycles * _CYCLE_YEARS)
        return tuple(change + cycles * _CYCLE_US for change in same_year)
    begin = max(from_datetime(datetime(year, 1, 1, tzinfo=UTC)), MIN_US + DAY_US)
    end = FINAL_US - DAY_US
    if year < 9999:
        end = min(from_datetime(datetime(year + 1, 1, 1, tzinfo=UTC)), end)
    days = [*range(begin, end, DAY_US), end]
    offsets = [_offset(zone, day) for day in days]
    return tuple(
        _find_change(zone, days[i], days[i + 1])
        for i in range(len(days) - 1)
        if offsets[i] != offsets[i + 1]
    )


def _find_change(zone: str, low: int, high: int) -> int:
    """Return the first time after `low` with the offset of `high`; they differ in one change."""
    before = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return high
