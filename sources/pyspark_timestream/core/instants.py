"""Instants and durations as whole microseconds, one at a time and in columns (semantics 1.1).

An *instant* is an ``int``: microseconds since 1970-01-01T00:00:00Z. A *duration* is an ``int`` of
microseconds too, and may be negative. One *tick* is one microsecond, Spark's resolution.

Readers of columns return `(instants, readable)`: n int64 microseconds and n booleans; an unreadable
instant is 0. Semantics 1.3 to 1.5 apply: strings are ISO-8601, text of digits only is a number,
numbers are in the time unit, no zone means UTC; digits past the microsecond are cut off.

The *shape* of a text is the text with every digit replaced by a zero. It determines if the text is
ISO-8601 and where its fields are, and a column has few shapes. So the grammar runs once per shape,
and arithmetic reads the fields of all texts of that shape. A date that does not exist makes only
its own row unreadable. `parse_instant` reads a single text by the same grammar, slower.
"""

import functools
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import Bytes, Integers, Mask, locate, to_mask
from pyspark_timestream.errors import OptionError, show_value

Instants = Integers
"""Instants in microseconds; `NEVER` where there is none."""

MILLISECOND_US: Final = 1_000
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
WEEK_US: Final = 7 * DAY_US
ROUNDING_UNITS_US: Final = (DAY_US, HOUR_US, MINUTE_US, SECOND_US)
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


TICK_US: Final = 1
_TICK: Final = timedelta(microseconds=TICK_US)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MIN_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, the earliest instant that Spark and Python both hold (inclusive)."""

FINAL_US: Final = 253_402_300_799_000_000
"""9999-12-31T23:59:59Z: the latest application time (inclusive), and the final CTI: +infinity."""

_US_BY_UNIT_WORD: Final = {
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
    r"(?:(?(dash)[Tt ]|[Tt])(?P<hour>[0-9]{2})(?(dash):)(?P<minute>[0-9]{2})"
    r"(?:(?(dash):)(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]+))?)?"
    r"\s*(?:[Zz]|(?P<sign>[+-])(?P<zone_hour>[0-9]{2})(?::?(?P<zone_minute>[0-9]{2}))?)?)?"
)


def _match_iso_form(text: str) -> re.Match[str] | None:
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
    match = _match_iso_form(text.strip())
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
    us = (moment - _EPOCH + (ahead if fields["sign"] == "-" else -ahead)) // _TICK
    return check_instant(us + int(fields["fraction"][:6].ljust(6, "0")))


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
    if not isinstance(time, datetime) or type(time).__name__ == "NaTType":  # Of pandas.
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
    """Write ISO-8601 with a Z; parse_instant reads it back if it is a legal application time.

    >>> format_instant(1_500_000)
    '1970-01-01T00:00:01.500000Z'
    >>> format_instant(MIN_US - 1)
    '0000-12-31T23:59:59.999999Z'
    """
    if not MIN_US <= us < FINAL_US + SECOND_US:  # No datetime has it, but a value may.
        return f"{np.datetime64(us, 'us')}Z".replace(".000000Z", "Z")
    return to_datetime(us).isoformat().replace("+00:00", "Z")


def parse_duration(text: str) -> int:
    """Return the microseconds of one or more `NUMBER UNIT`, units from ticks to weeks, any case.

    Raises:
        ValueError: the text has another form, or is not a whole number of microseconds.

    >>> parse_duration("1 minute 30 seconds"), parse_duration("-1 tick"), parse_duration("10S")
    (90000000, -1, 10000000)
    """
    remaining, total = text.strip().lower(), Fraction(0)
    if not remaining:
        raise ValueError("an empty text is not a duration")
    while remaining:
        component = _DURATION_PART.match(remaining)
        if not component:
            raise ValueError(f"{text!r} is not made of numbers with units, such as '5 seconds'")
        word = component[2]
        unit = _US_BY_UNIT_WORD.get(word) or _US_BY_UNIT_WORD.get(word.removesuffix("s"))
        if not unit:
            raise ValueError(f"{word!r} is not a unit such as 'ms', 'seconds', 'minutes' or 'days'")
        total += Fraction(component[1]) * unit
        remaining = remaining[component.end() :]
    if total.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of microseconds")
    return int(total)


def read_duration(
    argument: str,
    value: object,
    accepts: str,
    *,
    at_least_us: int = 0,
    at_most_us: int = MAX_DURATION_US,
) -> int:
    """Return the microseconds of the text that a function was given as its `argument`.

    Raises:
        OptionError: it is not a text or not a duration, or is outside of these bounds.
    """
    try:
        if not isinstance(value, str):
            raise ValueError("it is not a text")
        us = parse_duration(value)
        if us < at_least_us:
            raise ValueError(f"shorter than {format_duration(at_least_us)}")
        if us > at_most_us:
            raise ValueError(f"longer than {at_most_us // WEEK_US} weeks")
    except ValueError as error:
        problem = f"cannot read {show_value(value)} ({error})"
        raise OptionError(argument, problem, accepts, "correct it") from None
    return us


def read_whole_number(argument: str, value: object, *, at_least: int) -> int:
    """Return the whole number that a function was given as its `argument`.

    Raises:
        OptionError: it is none, or outside of the bounds.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if at_least <= number < 2**63:
            return number
    accepts = f"a whole number, at least {at_least} and below 2^63"
    raise OptionError(argument, f"cannot read {show_value(value)}", accepts, "correct it")


def is_wait(seconds: object) -> TypeGuard[float]:
    """Return whether a thread can wait for this number of seconds, above 0."""
    if not isinstance(seconds, int | float | np.integer) or isinstance(seconds, bool):
        return False
    return bool(0 < seconds < threading.TIMEOUT_MAX)


def read_seconds(argument: str, value: object, *, is_zero_allowed: bool = False) -> float:
    """Return the time to wait that a function was given as its `argument`.

    Raises:
        OptionError: it is not a number of seconds above 0, or at least 0 if that is allowed, or is
            longer than threads can wait.
    """
    if is_wait(value):
        return float(value)
    if is_zero_allowed and not isinstance(value, bool) and value == 0:
        return 0.0
    least = "at least 0" if is_zero_allowed else "above 0"
    raise OptionError(
        argument, f"{show_value(value)} is not a time to wait", f"seconds, {least}", "correct it"
    )


def format_duration(us: int) -> str:
    """Write the duration in its largest whole unit; parse_duration reads it back.

    >>> format_duration(90_000_000), format_duration(-1)
    ('90 seconds', '-1 tick')
    """
    for name in ("day", "hour", "minute", "second", "millisecond"):
        count, remainder = divmod(us, _US_BY_UNIT_WORD[name])
        if us and remainder == 0:
            return f"{count} {name}" if abs(count) == 1 else f"{count} {name}s"
    return f"{us} tick" if abs(us) == 1 else f"{us} ticks"


def round_duration(us: int) -> str:
    """Round a duration down to a unit that is easy to read.

    >>> round_duration(93_600_000_001)
    '1 day'
    """
    unit_us = next((unit for unit in ROUNDING_UNITS_US if us >= unit), 1)
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


Times = tuple[Instants, Mask]

TIME_UNITS: Final = {"s": (SECOND_US, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
"""Unit of a column of numbers -> (multiply by, then divide by) to get microseconds."""


def guess_unit(number: float) -> tuple[str, int] | None:
    """Return the unit in which `number` is a probable event time, and that time; None without one.

    >>> guess_unit(1_700_000_000), guess_unit(0)
    (('s', 1700000000000000), None)
    """
    # A thousand times the beginning of the range lies past its end, so no two units fit.
    for unit, (times, over) in TIME_UNITS.items():
        us = number * times // over
        if PROBABLE_US[0] <= us < PROBABLE_US[1]:
            return unit, int(us)
    return None


_MIN_MS: Final = -(2**63) // 1_000 + 1
_MAX_MS: Final = (2**63 - 1) // 1_000
"""The milliseconds that fit 64 bits once converted to microseconds, both inclusive."""

_NUMBER: Final = r"^\s*[+-]?[0-9]+\s*$"


_MAX_SHAPES: Final = 64
"""Texts of further shapes are read one by one.

Ten lengths of a fraction times three kinds of zone already make thirty shapes.
"""

_MAX_LENGTH: Final = 64
"""Longer texts are read one by one."""

_FIELDS: Final = (
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "second",
    "fraction",
    "zone_hour",
    "zone_minute",
)
_FRACTION_DIGITS: Final = 6
_DIGIT: Final = re.compile(rb"[0-9]")


def read_record_times(timestamps_ms: pa.Int64Array) -> Times:
    """Read record timestamps in milliseconds; null and negative ones are unreadable."""
    values, valid = _fill_nulls(timestamps_ms)
    valid &= (values >= 0) & (values <= FINAL_US // 1_000)
    return _limit_to_calendar(np.where(valid, values, 0) * 1_000, valid)


def read_record_timestamps(timestamps_ms: pa.Int64Array) -> Times:
    """Read record timestamps as Spark's own Kafka source shows them: legal event times or not.

    Only null values and those that overflow 64 bits of microseconds are unreadable; Spark's source
    fails on the latter.
    """
    values, valid = _fill_nulls(timestamps_ms)
    valid &= (values >= _MIN_MS) & (values <= _MAX_MS)
    return np.where(valid, values, 0) * 1_000, valid


def read_number_times(numbers: pa.Array, unit: str) -> Times:
    """Read numbers in `unit` since the epoch; whole ones are rounded down to the microsecond.

    Fractions are rounded to the nearest: 1357017420.123 s means .123000, although the nearest
    double is a little less. A whole double reads as the same integer, because a single fraction
    turns a whole block into doubles.
    """
    values, valid = _fill_nulls(numbers)
    times, over = TIME_UNITS[unit]
    # NumPy multiplies in the type of the column: seconds in 32 bits would wrap around.
    values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False)
    if values.dtype.kind == "f":
        valid &= np.isfinite(values) & (np.abs(values) < 2.0**62 * over / times)
        values = np.where(valid, values, 0.0)
        is_whole = (values == np.trunc(values)) & (np.abs(values) <= 2.0**53)
        # Scale the rest apart: the product of a whole double is rounded to 53 bits, which is a
        # quarter of a microsecond in our days, and 16 of them by the end of the calendar. Both are
        # exact if `step`, as every double of that size, is a multiple of 2^15.
        step = over * 2.0**15
        rest = np.fmod(values, step)
        scaled = ((values - rest) / over).astype(np.int64) * times
        scaled += np.rint(rest * times / over).astype(np.int64)
        scaled[is_whole] = values[is_whole].astype(np.int64) * times // over
        return _limit_to_calendar(scaled, valid)
    valid &= (values >= MIN_US * over // times) & (values <= FINAL_US * over // times)
    return _limit_to_calendar(np.where(valid, values, 0) * times // over, valid)


def read_text_times(texts: pa.Array, unit: str | None) -> Times:
    """Read ISO-8601 texts, and digits only as numbers in `unit` (None: they are unreadable)."""
    times, is_iso, odd = _read_iso_column(texts)
    instants, readable = _limit_to_calendar(times, is_iso)
    other_rows = np.flatnonzero(~is_iso & to_mask(texts.is_valid()))
    if not len(other_rows):
        return instants, readable
    others = texts.take(pa.array(other_rows))
    numeric = to_mask(pc.match_substring_regex(others, _NUMBER))
    if unit is not None and numeric.any():
        times, valid = _read_number_texts(others.filter(pa.array(numeric)), unit)
        instants[other_rows[numeric]], readable[other_rows[numeric]] = times, valid
    for row in other_rows[odd[other_rows] & ~numeric]:
        instants[row], readable[row] = _read_text(texts[int(row)].as_py())
    return instants, readable


def read_value_times(values: pa.Array, unit: str) -> Times:
    """Read a payload's column of texts, numbers, dates or timestamps; others are unreadable.

    `unit` applies to texts and numbers only; a date means its midnight.
    """
    if pa.types.is_timestamp(values.type):
        return read_number_times(values.view(pa.int64()), values.type.unit)
    if pa.types.is_date32(values.type):
        days = values.view(pa.int32()).cast(pa.int64())
        return read_number_times(pc.multiply(days, DAY_US // SECOND_US), "s")
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return read_text_times(values, unit)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return read_number_times(values, unit)
    return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.bool_)


def _read_number_texts(texts: pa.Array, unit: str) -> Times:
    trimmed = pc.utf8_ltrim(pc.utf8_trim_whitespace(texts), characters="+")
    try:
        return read_number_times(trimmed.cast(pa.int64()), unit)
    except pa.ArrowInvalid:
        # A number that overflows 64 bits is unreadable; the others are still read.
        numbers = [_parse_int64(text) for text in trimmed]
        return read_number_times(pa.array(numbers, pa.int64()), unit)


def _parse_int64(text: pa.Scalar) -> int | None:
    try:
        return int(text.cast(pa.int64()).as_py())
    except pa.ArrowInvalid:
        return None


def _read_text(value: str) -> tuple[int, bool]:
    try:
        return parse_instant(value), True
    except ValueError:
        return 0, False


def _fill_nulls(values: pa.Array) -> Times:
    valid = to_mask(pc.is_valid(values))
    if values.null_count:
        values = pc.fill_null(values, 0)
    return values.to_numpy(zero_copy_only=False), valid


def _limit_to_calendar(instants: Instants, valid: Mask) -> Times:
    readable = valid & (instants >= MIN_US) & (instants <= FINAL_US)
    return np.where(readable, instants, 0), readable


def _read_iso_column(texts: pa.Array) -> tuple[Instants, Mask, Mask]:
    """Read n texts; nulls are not readable. Return also which texts were skipped here.

    Each round reads the texts of one shape, such as 0000-00-00T00:00:00Z, all at once. A zone or
    the last second's fraction may push an instant outside the legal application times.
    """
    bounds, data = locate(texts)
    starts, lengths = bounds[:-1], np.diff(bounds)
    valid = to_mask(texts.is_valid())
    instants, readable = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    skipped = valid & (lengths > _MAX_LENGTH)
    unread = np.flatnonzero(valid & ~skipped)
    for _ in range(_MAX_SHAPES):
        if not len(unread):
            return instants, readable, skipped
        length = lengths[unread[0]]
        is_done = lengths[unread] == length
        rows = unread[is_done]
        letters = _to_matrix(data, starts[rows], int(length))
        shape = _DIGIT.sub(b"0", letters[0].tobytes())
        has_shape = _match_shape(letters, shape)
        if shape.isascii():
            times = _read_shape(letters, shape.decode(), has_shape)
            if times is not None:
                instants[rows], readable[rows] = times
        else:
            skipped[rows] = has_shape
        # Texts of the same length but another shape have a round of their own.
        is_done[is_done] = has_shape
        unread = unread[~is_done]
    skipped[unread] = True
    return instants, readable, skipped


def _to_matrix(data: Bytes, starts: Integers, length: int) -> Bytes:
    """Lay n texts of one length out as n rows of bytes."""
    if starts[-1] - starts[0] == length * (len(starts) - 1):
        return data[starts[0] : starts[-1] + length].reshape(len(starts), length)
    return data[np.add.outer(starts, np.arange(length))]


def _match_shape(matrix: Bytes, shape: bytes) -> Mask:
    lowest = np.frombuffer(shape, np.uint8)
    span = np.where(lowest == ord("0"), np.uint8(9), np.uint8(0))
    # Below `lowest` the difference wraps around to a large number.
    differs = matrix - lowest > span
    if not differs.any():
        return np.ones(len(matrix), np.bool_)
    return np.logical_not(differs.any(axis=1))


def _read_shape(matrix: Bytes, shape: str, alike: Mask) -> tuple[Instants, Mask] | None:
    """Read the texts that `alike` marks as having `shape`; None if `shape` is not an ISO form."""
    match = _match_iso_form(shape.strip())
    if match is None:
        return None
    margin = len(shape) - len(shape.lstrip())
    fields = _read_fields(matrix, {name: match.span(name) for name in _FIELDS}, margin)
    year, month, day, hour, minute, second, fraction, zone_hour, zone_minute = fields
    dated = alike & (year > 0) & (month > 0) & (month <= 12) & (day > 0)
    month_index = np.where(dated, (year - 1) * 12 + month - 1, 0)
    days = _list_month_starts()[month_index]
    readable = dated & (day <= _list_month_starts()[month_index + 1] - days)
    readable &= (hour < 24) & (minute < 60) & (second < 60) & (zone_hour < 24) & (zone_minute < 60)
    ahead = -1 if match["sign"] == "-" else 1
    minutes = (hour - ahead * zone_hour) * 60 + minute - ahead * zone_minute
    instants = (days + day - 1) * DAY_US + minutes * MINUTE_US + second * SECOND_US + fraction
    return np.where(readable, instants, 0), readable


def _read_fields(matrix: Bytes, spans: dict[str, tuple[int, int]], margin: int) -> Integers:
    """Return the number in each field of each text; 0 where the form lacks the field."""
    weights = np.zeros((matrix.shape[1], len(_FIELDS)), np.float32)
    for column, name in enumerate(_FIELDS):
        begin, end = spans[name]
        digits = _FRACTION_DIGITS if name == "fraction" else end - begin
        for digit in range(begin, min(end, begin + digits)):
            weights[margin + digit, column] = 10 ** (digits - 1 - digit + begin)
    # Exact: no field has more than six digits, and a single float holds seven.
    numbers = (matrix - np.uint8(ord("0"))).astype(np.float32) @ weights
    return np.ascontiguousarray(numbers.T).astype(np.int64)


@functools.cache
def _list_month_starts() -> Integers:
    """List the days from 1970-01-01 to the first of every month, from January of year 1 on."""
    months = np.arange("0001-01", "10000-02", dtype="datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64)
