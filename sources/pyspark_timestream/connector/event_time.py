"""Event times out of columns: text, numbers and record timestamps become instants, all at once.

Every function returns `(instants, readable)`: n int64 microseconds and n booleans; instants at
unreadable places are 0. The rules are semantics 1.3 to 1.5: strings are ISO-8601, text of digits
only is a number, numbers are in the time unit, no zone means UTC; digits past the microsecond are
cut off.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.instants import FINAL_US, MIN_US, parse_instant
from pyspark_timestream.connector.iso_columns import read_iso_column

__all__ = [
    "TIME_UNITS",
    "number_times",
    "record_times",
    "record_timestamps",
    "text_times",
    "value_times",
]

Times = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]

TIME_UNITS: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
"""Unit -> (multiply by, then divide by) to get microseconds."""

_MIN_MS: Final = -(2**63) // 1_000 + 1
_MAX_MS: Final = (2**63 - 1) // 1_000
"""The milliseconds that 64 bits hold in microseconds, both inclusive."""

_NUMBER: Final = r"^\s*[+-]?[0-9]+\s*$"


def record_times(timestamps_ms: pa.Int64Array) -> Times:
    """Record timestamps in milliseconds; a null or negative one is none at all."""
    values, valid = _filled(timestamps_ms)
    valid &= (values >= 0) & (values <= FINAL_US // 1_000)
    return _checked(np.where(valid, values, 0) * 1_000, valid)


def record_timestamps(timestamps_ms: pa.Int64Array) -> Times:
    """Record timestamps as Spark's own Kafka source shows them: legal event times or not.

    Not readable is only what 64 bits do not hold in microseconds, where that source fails.
    """
    values, valid = _filled(timestamps_ms)
    valid &= (values >= _MIN_MS) & (values <= _MAX_MS)
    return np.where(valid, values, 0) * 1_000, valid


def number_times(numbers: pa.Array, unit: str) -> Times:
    """Numbers in `unit` since the epoch; whole ones are rounded down to the microsecond.

    Fractions are rounded to the nearest: 1357017420.123 s means .123000, although the nearest
    double is a little less. A whole double is what the same whole number is, because one fraction
    in a block makes doubles of all.
    """
    values, valid = _filled(numbers)
    times, over = TIME_UNITS[unit]
    if values.dtype.kind == "f":
        valid &= np.isfinite(values) & (np.abs(values) < 2.0**62 * over / times)
        values = np.where(valid, values, 0.0)
        whole = (values == np.trunc(values)) & (np.abs(values) <= 2.0**53)
        scaled = np.rint(values * times / over).astype(np.int64)
        scaled[whole] = values[whole].astype(np.int64) * times // over
        return _checked(scaled, valid)
    valid &= (values >= MIN_US * over // times) & (values <= FINAL_US * over // times)
    return _checked(np.where(valid, values, 0) * times // over, valid)


def text_times(texts: pa.Array, unit: str | None) -> Times:
    """Texts: ISO-8601, or digits only as a number in `unit`; None: such a text is no time."""
    iso = read_iso_column(texts)
    instants, readable = _checked(iso.instants, iso.readable)
    rest = np.flatnonzero(~iso.readable & _mask(texts.is_valid()))
    if not len(rest):
        return instants, readable
    others = texts.take(pa.array(rest))
    numeric = _mask(pc.match_substring_regex(others, _NUMBER))
    if unit is not None and numeric.any():
        found, valid = _number_texts(others.filter(pa.array(numeric)), unit)
        instants[rest[numeric]], readable[rest[numeric]] = found, valid
    for place in rest[iso.odd[rest] & ~numeric]:
        instants[place], readable[place] = _one_text(texts[int(place)].as_py())
    return instants, readable


def value_times(values: pa.Array, unit: str) -> Times:
    """Times of a column of whatever type a payload's field has; another type is unreadable."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return text_times(values, unit)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return number_times(values, unit)
    return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.bool_)


def _number_texts(texts: pa.Array, unit: str) -> Times:
    trimmed = pc.utf8_ltrim(pc.utf8_trim_whitespace(texts), characters="+")
    try:
        return number_times(trimmed.cast(pa.int64()), unit)
    except pa.ArrowInvalid:
        # More digits than 64 bits hold are no time; the others are still read.
        read = [_int64_or_none(text) for text in trimmed]
        return number_times(pa.array(read, pa.int64()), unit)


def _int64_or_none(text: pa.Scalar) -> int | None:
    try:
        return int(text.cast(pa.int64()).as_py())
    except pa.ArrowInvalid:
        return None


def _one_text(value: str) -> tuple[int, bool]:
    try:
        return parse_instant(value), True
    except ValueError:
        return 0, False


def _filled(values: pa.Array) -> Times:
    valid = _mask(pc.is_valid(values))
    if values.null_count:
        values = pc.fill_null(values, 0)
    return values.to_numpy(zero_copy_only=False), valid


def _mask(booleans: pa.Array) -> npt.NDArray[np.bool_]:
    filled = pc.fill_null(booleans, False) if booleans.null_count else booleans
    return np.array(filled.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _checked(instants: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> Times:
    readable = valid & (instants >= MIN_US) & (instants <= FINAL_US)
    return np.where(readable, instants, 0), readable
