"""Instants and durations as whole microseconds, one at a time and in columns (semantics 1.1).

An *instant* is an ``int``: microseconds since 1970-01-01T00:00:00Z. A *duration* is an ``int`` of
microseconds too, and may be negative. One *tick* is one microsecond, Spark's resolution.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.errors import show_value

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

INSTANT: Final = pa.timestamp("us", tz="UTC")
"""The type of columns of instants."""

MILLISECOND_US: Final = 1_000
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
WEEK_US: Final = 7 * DAY_US
UNITS_US: Final = (DAY_US, HOUR_US, MINUTE_US, SECOND_US)
"""The units that texts are rounded to, the largest first."""

MAX_DURATION: Final = "500000 weeks"
MAX_DURATION_US: Final = 500_000 * WEEK_US
"""Nearly 10,000 years: instants plus or minus this still fit 64 bits."""

NEVER: Final = np.iinfo(np.int64).min
"""The sentinel for "no instant"; below every instant."""


def instant_or_sentinel(us: int | None) -> int:
    """Return `us`, or NEVER for None, to store in a column."""
    return NEVER if us is None else us


def instant_or_none(us: int) -> int | None:
    """Return `us` as read from a column, with None for NEVER."""
    return None if us == NEVER else int(us)


class CtiRows(NamedTuple):
    """A block's data rows, separated from its CTI rows (semantics 2.9).

    Attributes:
        rows: the rows of data, with all columns.
        cti_us: the greatest CTI of the block; None if it has none.
        misfit: another column that is not null in a CTI row, and the CTI of the first such row;
            None if CTI rows set nothing else.
    """

    rows: pa.RecordBatch
    cti_us: int | None
    misfit: tuple[str, int] | None


def split_cti_rows(block: pa.RecordBatch, name: str) -> CtiRows:
    """Separate rows of data from those in which column `name`, a timestamp, is set."""
    if block[name].null_count == block.num_rows:
        return CtiRows(block, None, None)
    ctis = block[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    is_cti = ctis.is_valid()
    misfit = None
    for each in block.schema.names:
        row = pc.index(pc.and_(is_cti, block[each].is_valid()), True).as_py()
        if row >= 0 and each != name:
            misfit = each, ctis[row].as_py()
            break
    return CtiRows(block.filter(pc.invert(is_cti)), pc.max(ctis).as_py(), misfit)


TICK_US: Final = 1
_TICK: Final = timedelta(microseconds=TICK_US)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MIN_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, the earliest instant that Spark and Python both hold (inclusive)."""

FINAL_US: Final = 253_402_300_799_000_000
"""9999-12-31T23:59:59Z: the latest application time (inclusive), and the final CTI: +infinity."""

_UNITS_US: Final = {
    "tick": 1,
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": SECOND_US,
    "sec": SECOND_US,
    "second": SECOND_US,
    "m": MINUTE_US,
    "min": MINUTE_US,
    "minute": MINUTE_US,
    "h": HOUR_US,
    "hour": HOUR_US,
    "d": DAY_US,
    "day": DAY_US,
    "week": WEEK_US,
}
_DURATION_PART: Final = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")

_ISO_FORM: Final = re.compile(
    r"(?P<year>[0-9]{4})(?P<dash>-)?(?P<month>[0-9]{2})(?(dash)-)(?P<day>[0-9]{2})"
    r"(?:(?:T|t|(?(dash)[ ]))(?P<hour>[0-9]{2})(?(dash):)(?P<minute>[0-9]{2})"
    r"(?:(?(dash):)(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]+))?)?"
    r"\s*(?:[Zz]|(?P<sign>[+-])(?P<zone_hour>[0-9]{2})(?::?(?P<zone_minute>[0-9]{2}))?)?)?"
)


def match_iso_form(text: str) -> re.Match[str] | None:
    """Return the fields of an ISO-8601 text by name, unchecked; None if it has another form.

    The form is extended (`2013-01-01T05:00:00Z`) or basic (`20130101T050000Z`); only the zone may
    mix them. A date without a time must be extended, because digits only are a number.
    """
    match = _ISO_FORM.fullmatch(text)
    return match if match is None or match["dash"] or match["hour"] else None


def parse_instant(text: str) -> int:
    """Return the microseconds since the epoch of an ISO-8601 text; without a zone it is UTC.

    Digits past the microsecond are cut off (rounded down).

    Raises:
        ValueError: the text is not an ISO-8601 instant, or lies outside [MIN_US, FINAL_US].

    >>> parse_instant("1970-01-01T00:00:01.5Z"), parse_instant("19700101T000001,5Z")
    (1500000, 1500000)
    >>> parse_instant("1970-01-01 01:00:00+01:00")
    0
    """
    match = match_iso_form(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not an ISO-8601 instant such as 2013-01-01T05:00:00Z or 20130101T050000Z"
        )
    fields = match.groupdict(default="0")
    year, month, day = int(fields["year"]), int(fields["month"]), int(fields["day"])
    hour, minute, second = int(fields["hour"]), int(fields["minute"]), int(fields["second"])
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    zone_hour, zone_minute = int(fields["zone_hour"]), int(fields["zone_minute"])
    if zone_hour > 23 or zone_minute > 59:
        raise ValueError(f"{text!r} has no zone such as Z, +01:00 or -0530")
    ahead = timedelta(hours=zone_hour, minutes=zone_minute)
    whole = (moment - _EPOCH + (ahead if fields["sign"] == "-" else -ahead)) // _TICK
    return check_instant(whole + int(fields["fraction"][:6].ljust(6, "0")))


def check_instant(us: int) -> int:
    """Return `us` if it is a legal application time.

    Raises:
        ValueError: it lies outside [MIN_US, FINAL_US].
    """
    if not MIN_US <= us <= FINAL_US:
        raise ValueError(f"{us} us is outside 0001-01-01T00:00:00Z .. 9999-12-31T23:59:59Z")
    return us


PROBABLE_US: Final = parse_instant("1990-01-01T00:00:00Z"), parse_instant("2100-01-01T00:00:00Z")
"""An event time outside this range, which excludes its end, hints at a wrong unit or clock."""


def clamp_instant(us: int) -> int:
    """Return the legal application time nearest to `us`."""
    return min(max(us, MIN_US), FINAL_US)


def from_datetime(moment: datetime) -> int:
    """Return the microseconds since the epoch of an aware datetime."""
    return (moment - _EPOCH) // _TICK


def to_datetime(us: int) -> datetime:
    """Return the instant as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=us)


Refuse = Callable[[str, str, str], Exception]
"""Makes an error of the problem, what is accepted, and the next step."""


def datetime_to_us(time: object, refuse: Refuse, name: str = "time") -> int:
    """Convert an aware datetime to microseconds; raise what `refuse` makes for all other values."""
    if not isinstance(time, datetime):
        raise refuse(
            f"{name} {show_value(time)} is not a datetime", "an aware datetime", "convert it"
        )
    if time.tzinfo is None:
        raise refuse(
            f"{name} {time!r} has no time zone, so it could be any instant",
            "an aware datetime",
            f"give it one, such as {name}.replace(tzinfo=UTC)",
        )
    _refuse_nanoseconds(time, getattr(time, "nanosecond", 0), name, refuse)
    return from_datetime(time)


def timedelta_to_us(duration: timedelta, refuse: Refuse) -> int:
    """Return the microseconds of `duration`; raise what `refuse` makes for pandas' nanoseconds."""
    _refuse_nanoseconds(duration, getattr(duration, "nanoseconds", 0), "duration", refuse)
    return duration // _TICK


def _refuse_nanoseconds(value: object, nanoseconds: int, name: str, refuse: Refuse) -> None:
    if nanoseconds:
        raise refuse(
            f"{name} {value!r} is finer than a microsecond",
            "whole microseconds",
            f"round it, such as with {name}.floor('us')",
        )


def format_instant(us: int) -> str:
    """Write ISO-8601 with a Z; parse_instant reads it back.

    >>> format_instant(1_500_000)
    '1970-01-01T00:00:01.500000Z'
    """
    return to_datetime(us).isoformat().replace("+00:00", "Z")


def parse_duration(text: str) -> int:
    """Return the microseconds of one or more `NUMBER UNIT`, units from ticks to weeks, any case.

    Raises:
        ValueError: the text has another form, or is not a whole number of microseconds.

    >>> parse_duration("1 minute 30 seconds"), parse_duration("-1 tick"), parse_duration("10S")
    (90000000, -1, 10000000)
    """
    rest, total = text.strip().lower(), Fraction(0)
    if not rest:
        raise ValueError("an empty text is not a duration")
    while rest:
        part = _DURATION_PART.match(rest)
        unit = part and (_UNITS_US.get(part[2]) or _UNITS_US.get(part[2].removesuffix("s")))
        if not part or not unit:
            raise ValueError(f"{text!r} is not a duration such as '5 seconds' or '-1 tick'")
        total += Fraction(part[1]) * unit
        rest = rest[part.end() :]
    if total.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of microseconds")
    return int(total)


def format_duration(us: int) -> str:
    """Write the duration in its largest whole unit; parse_duration reads it back.

    >>> format_duration(90_000_000), format_duration(-1)
    ('90 seconds', '-1 tick')
    """
    for name in ("day", "hour", "minute", "second", "millisecond"):
        count, rest = divmod(us, _UNITS_US[name])
        if us and rest == 0:
            return f"{count} {name}" if abs(count) == 1 else f"{count} {name}s"
    return f"{us} tick" if abs(us) == 1 else f"{us} ticks"


def round_duration(us: int) -> str:
    """Round a duration down to a unit that is easy to read.

    >>> round_duration(93_600_000_001)
    '1 day'
    """
    unit_us = next((unit for unit in UNITS_US if us >= unit), 1)
    return format_duration(us // unit_us * unit_us)


def parse_fraction(text: str) -> Fraction:
    """Return the exact value of a decimal (`0.001`) or a fraction (`1/3`).

    Raises:
        ValueError: the text is neither, or its denominator is zero.
    """
    numerator, slash, denominator = text.strip().partition("/")
    try:
        if not text.isascii() or "_" in text:
            raise ValueError("digits are 0 to 9")
        over = int(denominator) if slash else 1
        top = Fraction(int(numerator)) if slash else Fraction(Decimal(numerator))
        return top / over
    except (InvalidOperation, ValueError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{text!r} is neither an exact decimal nor a fraction") from error
