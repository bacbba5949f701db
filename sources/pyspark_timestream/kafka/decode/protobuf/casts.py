"""Casts of columns as Protobuf's types are in Arrow to the types of wanted columns.

A value that its column cannot hold is null and marked as failed; nulls stay nulls.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.kafka.decode.records import to_texts

__all__ = [
    "cast_column",
    "cast_dates",
    "cast_durations",
    "cast_enums",
    "cast_timestamps",
    "fits",
    "to_mask",
]

INSTANT: Final = pa.timestamp("us", tz="UTC")

_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799
"""The seconds of 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z, Protobuf's first and last."""

_MAX_DURATION_S: Final = 315_576_000_000
_NANOS: Final = 1_000_000_000
_MAX_SCALE: Final = 18
_INTEGER_DIGITS: Final = 20
"""Digits of the largest integer of 64 bits."""


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Check whether values of `source` can be cast to `target`, if they are in its range."""
    if source == target:
        return True
    if pa.types.is_integer(source):
        return bool(
            pa.types.is_integer(target)
            or pa.types.is_float32(target)
            or pa.types.is_float64(target)
            or pa.types.is_string(target)
            or (pa.types.is_decimal128(target) and 0 <= target.scale <= _MAX_SCALE)
        )
    if pa.types.is_floating(source):
        return bool(pa.types.is_float32(target) or pa.types.is_float64(target))
    return bool(pa.types.is_binary(source) and pa.types.is_string(target))


def cast_column(column: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast `column` to `target`, for which `fits` holds; return also the failures."""
    if column.type == target:
        return column, np.zeros(len(column), dtype=np.bool_)
    if pa.types.is_string(target) and pa.types.is_binary(column.type):
        cast = to_texts(column)
    elif pa.types.is_string(target):
        cast = column.cast(target)
    elif pa.types.is_decimal(target):
        bound = 10 ** (target.precision - target.scale)
        exact = _limit(column, -bound + 1, bound - 1)
        wide = pa.decimal128(_INTEGER_DIGITS + target.scale, target.scale)
        cast = exact.cast(wide).cast(target)
    elif pa.types.is_integer(target):
        bounds = np.iinfo(target.to_pandas_dtype())
        cast = _limit(column, int(bounds.min), int(bounds.max)).cast(target)
    else:
        cast = column.cast(target, safe=False)
        if pa.types.is_floating(column.type):
            lost = pc.and_(pc.is_inf(cast), pc.is_finite(column))
            cast = pc.if_else(lost, None, cast)
    return cast, to_mask(column.is_valid()) & to_mask(cast.is_null())


def _limit(column: pa.Array, least: int, most: int) -> pa.Array:
    """Make integers outside of `least` to `most` null."""
    bounds = np.iinfo(column.type.to_pandas_dtype())
    for outside, bound, inside in (
        (pc.less, least, int(bounds.min) >= least),
        (pc.greater, most, int(bounds.max) <= most),
    ):
        if not inside:
            column = pc.if_else(outside(column, pa.scalar(bound, column.type)), None, column)
    return column


def cast_timestamps(messages: pa.Array) -> tuple[pa.Array, Mask]:
    """Read messages of seconds and nanos as timestamps, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, "seconds", "nanos")
    legal = (seconds >= _MIN_SECONDS) & (seconds <= _MAX_SECONDS) & (nanos >= 0) & (nanos < _NANOS)
    us = np.where(legal, seconds, 0) * 1_000_000 + nanos // 1_000
    return _finish(us, INSTANT, messages, legal)


def cast_durations(messages: pa.Array) -> tuple[pa.Array, Mask]:
    """Read messages of seconds and nanos as durations, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, "seconds", "nanos")
    legal = (np.abs(nanos) < _NANOS) & (seconds >= -_MAX_DURATION_S) & (seconds <= _MAX_DURATION_S)
    legal &= np.sign(seconds) * np.sign(nanos) >= 0
    us = np.where(legal, seconds, 0) * 1_000_000 + nanos // 1_000
    return _finish(us, pa.duration("us"), messages, legal)


def cast_dates(messages: pa.Array) -> tuple[pa.Array, Mask]:
    """Read messages of year, month and day as dates."""
    year, month, day = _read_integers(messages, "year", "month", "day")
    legal = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = np.where(legal, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first, after = (each.astype("datetime64[D]").astype(np.int64) for each in (months, months + 1))
    days = first + np.where(legal, day, 1) - 1
    return _finish(days.astype(np.int32), pa.date32(), messages, legal & (days < after))


def cast_enums(numbers: pa.Array, names: dict[int, str]) -> pa.Array:
    """Name the numbers of an enum; one without a name stays as digits, as in Protobuf's JSON."""
    encoded = numbers.dictionary_encode()
    texts = [names.get(number, str(number)) for number in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _read_integers(messages: pa.Array, *names: str) -> list[npt.NDArray[np.int64]]:
    """Read the integer fields `names`; 0 where the message is absent."""
    arrays = [pc.fill_null(pc.struct_field(messages, name), 0) for name in names]
    return [array.to_numpy(zero_copy_only=False).astype(np.int64) for array in arrays]


def _finish(
    values: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    target: pa.DataType,
    messages: pa.Array,
    legal: Mask,
) -> tuple[pa.Array, Mask]:
    present = to_mask(messages.is_valid())
    storage = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.array(values, storage, mask=~(present & legal)).cast(target), present & ~legal


def to_mask(booleans: pa.Array) -> Mask:
    """Convert booleans without nulls."""
    return np.array(booleans.to_numpy(zero_copy_only=False), dtype=np.bool_)
