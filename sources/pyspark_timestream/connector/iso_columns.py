"""ISO-8601 texts as instants, a whole column at once.

The texts of a column have few *shapes*: a text with every digit replaced by a zero. A shape says
by itself whether a text has ISO-8601 form and where its fields stand, so the grammar is asked once
for a shape, and its texts are then read at fixed places by arithmetic. A date that does not exist
is one wrong row among its neighbours. `instants.parse_instant` says the same of one text, slower.
"""

import functools
import re
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.connector.instants import match_iso_form

__all__ = ["IsoTimes", "read_iso_column"]

Mask = npt.NDArray[np.bool_]
Instants = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_MAX_SHAPES: Final = 64
"""Ten lengths of a fraction and three kinds of zone make thirty."""

_MAX_LENGTH: Final = 64
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
_MINUTE_US: Final = 60_000_000
_DAY_US: Final = 86_400_000_000
_DIGIT: Final = re.compile(rb"[0-9]")


class IsoTimes(NamedTuple):
    """What a column of n texts says.

    Attributes:
        instants: n microseconds; 0 where not readable. A zone or the last second's fraction may
            carry them beyond the legal application times.
        readable: n booleans: the text is an ISO-8601 instant.
        odd: n booleans: the text was not looked at, and has to be read by itself.
    """

    instants: Instants
    readable: Mask
    odd: Mask


def read_iso_column(texts: pa.Array) -> IsoTimes:
    """The instants of n texts of type string or large_string; a null is not readable."""
    starts, lengths, data = _texts_in_bytes(texts)
    valid = np.array(texts.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    instants, readable = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    odd = valid & (lengths > _MAX_LENGTH)
    left = np.flatnonzero(valid & ~odd)
    for _ in range(_MAX_SHAPES):
        if not len(left):
            return IsoTimes(instants, readable, odd)
        length = lengths[left[0]]
        same_length = lengths[left] == length
        rows = left[same_length]
        matrix = _rows_of(data, starts[rows], int(length))
        shape = _DIGIT.sub(b"0", matrix[0].tobytes())
        alike = _have_shape(matrix, shape)
        if shape.isascii():
            read = _read_shape(matrix, shape.decode(), alike)
            if read is not None:
                instants[rows], readable[rows] = read
        else:
            odd[rows] = alike
        same_length[same_length] = alike
        left = left[~same_length]
    odd[left] = True
    return IsoTimes(instants, readable, odd)


def _texts_in_bytes(texts: pa.Array) -> tuple[Instants, Instants, Bytes]:
    """Where each text begins among the bytes of all, its length in bytes, and those bytes."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    narrow = np.frombuffer(offsets, width)[texts.offset : texts.offset + len(texts) + 1]
    bounds: Instants = narrow.astype(np.int64)
    return bounds[:-1], np.diff(bounds), np.frombuffer(data or b"", np.uint8)


def _rows_of(data: Bytes, starts: Instants, length: int) -> Bytes:
    """The n texts of one length as n rows of bytes."""
    if starts[-1] - starts[0] == length * (len(starts) - 1):
        return data[starts[0] : starts[-1] + length].reshape(len(starts), length)
    return data[np.add.outer(starts, np.arange(length))]


def _have_shape(matrix: Bytes, shape: bytes) -> Mask:
    lowest = np.frombuffer(shape, np.uint8)
    span = np.where(lowest == ord("0"), np.uint8(9), np.uint8(0))
    # Below `lowest` the difference wraps around to a large number.
    differs = matrix - lowest > span
    if not differs.any():
        return np.ones(len(matrix), np.bool_)
    return np.logical_not(differs.any(axis=1))


def _read_shape(matrix: Bytes, shape: str, alike: Mask) -> tuple[Instants, Mask] | None:
    """The instants of n texts, of which those `alike` have `shape`; None: it is no ISO form."""
    match = match_iso_form(shape.strip())
    if match is None:
        return None
    margin = len(shape) - len(shape.lstrip())
    fields = _fields_at(matrix, {name: match.span(name) for name in _FIELDS}, margin)
    year, month, day, hour, minute, second, fraction, zone_hour, zone_minute = fields
    dated = alike & (year > 0) & (month > 0) & (month <= 12) & (day > 0)
    month_index = np.where(dated, (year - 1) * 12 + month - 1, 0)
    days = _month_starts()[month_index]
    readable = dated & (day <= _month_starts()[month_index + 1] - days)
    readable &= (hour < 24) & (minute < 60) & (second < 60) & (zone_hour < 24) & (zone_minute < 60)
    ahead = -1 if match["sign"] == "-" else 1
    minutes = (hour - ahead * zone_hour) * 60 + minute - ahead * zone_minute
    instants = (days + day - 1) * _DAY_US + minutes * _MINUTE_US + second * 1_000_000 + fraction
    return np.where(readable, instants, 0), readable


def _fields_at(
    matrix: Bytes, spans: dict[str, tuple[int, int]], margin: int
) -> npt.NDArray[np.int64]:
    """The number that stands in each field of each text; 0 where the form lacks the field."""
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
def _month_starts() -> Instants:
    """The days from 1970-01-01 to the first of every month, from January of year 1 on."""
    months = np.arange("0001-01", "10000-02", dtype="datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64)
