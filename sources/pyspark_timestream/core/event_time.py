"""Reads event times from columns of text, numbers or record timestamps, a column at a time.

Every function returns `(instants, readable)`: n int64 microseconds and n booleans; instants at
unreadable places are 0. Semantics 1.3 to 1.5 apply: strings are ISO-8601, text of digits only is a
number, numbers are in the time unit, no zone means UTC; digits past the microsecond are cut off.

The *shape* of a text is the text with every digit replaced by a zero. It determines if the text is
ISO-8601 and where its fields are, and a column has few shapes. So the grammar runs once per shape,
and arithmetic reads the fields of all texts of that shape. A date that does not exist makes only
its own row unreadable. `instants.parse_instant` reads a single text by the same grammar, slower.
"""

import functools
import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    MIN_US,
    MINUTE_US,
    Instants,
    Mask,
    match_iso_form,
    parse_instant,
)

Bytes = npt.NDArray[np.uint8]
Times = tuple[Instants, Mask]

TIME_UNITS: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
"""Unit -> (multiply by, then divide by) to get microseconds."""

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
    if values.dtype.kind == "f":
        valid &= np.isfinite(values) & (np.abs(values) < 2.0**62 * over / times)
        values = np.where(valid, values, 0.0)
        whole = (values == np.trunc(values)) & (np.abs(values) <= 2.0**53)
        scaled = np.rint(values * times / over).astype(np.int64)
        scaled[whole] = values[whole].astype(np.int64) * times // over
        return _limit_to_calendar(scaled, valid)
    valid &= (values >= MIN_US * over // times) & (values <= FINAL_US * over // times)
    return _limit_to_calendar(np.where(valid, values, 0) * times // over, valid)


def read_text_times(texts: pa.Array, unit: str | None) -> Times:
    """Read ISO-8601 texts, and digits only as numbers in `unit` (None: they are unreadable)."""
    times, is_iso, odd = _read_iso_column(texts)
    instants, readable = _limit_to_calendar(times, is_iso)
    rest = np.flatnonzero(~is_iso & _to_mask(texts.is_valid()))
    if not len(rest):
        return instants, readable
    others = texts.take(pa.array(rest))
    numeric = _to_mask(pc.match_substring_regex(others, _NUMBER))
    if unit is not None and numeric.any():
        times, valid = _read_number_texts(others.filter(pa.array(numeric)), unit)
        instants[rest[numeric]], readable[rest[numeric]] = times, valid
    for place in rest[odd[rest] & ~numeric]:
        instants[place], readable[place] = _read_text(texts[int(place)].as_py())
    return instants, readable


def read_value_times(values: pa.Array, unit: str) -> Times:
    """Read a payload's column of texts, numbers, dates or timestamps; others are unreadable.

    `unit` applies to texts and numbers only; a date means its midnight.
    """
    if pa.types.is_timestamp(values.type):
        return read_number_times(values.view(pa.int64()), values.type.unit)
    if pa.types.is_date32(values.type):
        days = values.view(pa.int32()).cast(pa.int64())
        return read_number_times(pc.multiply(days, DAY_US // 1_000_000), "s")
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
        read = [_parse_int64(text) for text in trimmed]
        return read_number_times(pa.array(read, pa.int64()), unit)


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
    valid = _to_mask(pc.is_valid(values))
    if values.null_count:
        values = pc.fill_null(values, 0)
    return values.to_numpy(zero_copy_only=False), valid


def _to_mask(booleans: pa.Array) -> Mask:
    filled = pc.fill_null(booleans, False) if booleans.null_count else booleans
    return np.array(filled.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _limit_to_calendar(instants: Instants, valid: Mask) -> Times:
    readable = valid & (instants >= MIN_US) & (instants <= FINAL_US)
    return np.where(readable, instants, 0), readable


def _read_iso_column(texts: pa.Array) -> tuple[Instants, Mask, Mask]:
    """Read n texts, of which nulls are not readable; return also which ones were skipped here.

    A zone or the last second's fraction may push an instant outside the legal application times.
    """
    starts, lengths, data = _split_bytes(texts)
    valid = np.array(texts.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    instants, readable = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    odd = valid & (lengths > _MAX_LENGTH)
    unread = np.flatnonzero(valid & ~odd)
    for _ in range(_MAX_SHAPES):
        if not len(unread):
            return instants, readable, odd
        length = lengths[unread[0]]
        same_length = lengths[unread] == length
        rows = unread[same_length]
        matrix = _to_matrix(data, starts[rows], int(length))
        shape = _DIGIT.sub(b"0", matrix[0].tobytes())
        alike = _match_shape(matrix, shape)
        if shape.isascii():
            read = _read_shape(matrix, shape.decode(), alike)
            if read is not None:
                instants[rows], readable[rows] = read
        else:
            odd[rows] = alike
        same_length[same_length] = alike
        unread = unread[~same_length]
    odd[unread] = True
    return instants, readable, odd


def _split_bytes(texts: pa.Array) -> tuple[Instants, Instants, Bytes]:
    """Return each text's start in the buffer, its length in bytes, and the buffer."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    narrow = np.frombuffer(offsets, width)[texts.offset : texts.offset + len(texts) + 1]
    bounds: Instants = narrow.astype(np.int64)
    return bounds[:-1], np.diff(bounds), np.frombuffer(data or b"", np.uint8)


def _to_matrix(data: Bytes, starts: Instants, length: int) -> Bytes:
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
    """Read the texts that `alike` marks as having `shape`; None if `shape` is no ISO form."""
    match = match_iso_form(shape.strip())
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
    instants = (days + day - 1) * DAY_US + minutes * MINUTE_US + second * 1_000_000 + fraction
    return np.where(readable, instants, 0), readable


def _read_fields(matrix: Bytes, spans: dict[str, tuple[int, int]], margin: int) -> Instants:
    """Return the number in each field of each text; 0 where the form lacks the field."""
    weights = np.zeros((matrix.shape[1], len(_FIELDS)), np.float32)
    for column, name in enumerate(_FIELDS):
        begin, end = spans[name]
        digits = _FRACTION_DIGITS if name == "fraction" else end - begin
        for place in range(begin, min(end, begin + digits)):
            weights[margin + place, column] = 10 ** (digits - 1 - place + begin)
    # Exact: no field has more than six digits, and a single float holds seven.
    numbers = (matrix - np.uint8(ord("0"))).astype(np.float32) @ weights
    return np.ascontiguousarray(numbers.T).astype(np.int64)


@functools.cache
def _list_month_starts() -> Instants:
    """List the days from 1970-01-01 to the first of every month, from January of year 1 on."""
    months = np.arange("0001-01", "10000-02", dtype="datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64)
