"""Converts the bytes of Avro values to decimals, texts and uuids, in columns and one by one."""

from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.columns import Mask

__all__ = ["convert_binary_column", "convert_bytes"]

_UUID_PARTS: Final = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
_WORD_BYTES: Final = 8
_DECIMAL_BYTES: Final = 16


def convert_bytes(data: bytes, target: pa.DataType) -> bytes | str | Decimal:
    """Convert bytes to a decimal, text or uuid (16 bytes of type fixed are one).

    Raises:
        ValueError: they are not of type `target`.
    """
    if pa.types.is_decimal(target):
        number = int.from_bytes(data, signed=True)
        if not data or abs(number) >= 10**target.precision:
            raise ValueError(f"{data!r} does not fit {target}")
        sign, digits, _ = Decimal(number).as_tuple()
        return Decimal((sign, digits, -target.scale))
    return data.decode() if pa.types.is_string(target) else data


def format_uuid(data: bytes) -> str:
    """Format 16 bytes as a uuid."""
    digits = data.hex()
    return "-".join(digits[begin:end] for begin, end in _UUID_PARTS)


def convert_binary_column(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Convert n non-null values to `target`; return also n booleans: it does not fit, and is null.

    The result is that of `convert_bytes` for each.
    """
    unfit = np.zeros(len(values), dtype=np.bool_)
    if pa.types.is_binary(target):
        return values, unfit
    if pa.types.is_string(target):
        return _decode_texts(values)
    return _read_decimals(values, target)


def _decode_texts(values: pa.Array) -> tuple[pa.Array, Mask]:
    try:
        return values.cast(pa.string()), np.zeros(len(values), dtype=np.bool_)
    except pa.ArrowInvalid:
        return _convert_singly(values, pa.string())


def _convert_singly(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    read: list[bytes | str | Decimal | None] = []
    for value in values.to_pylist():
        try:
            read.append(convert_bytes(value, target))
        except ValueError:
            read.append(None)
    column = pa.array(read, target)
    return column, np.array(column.is_null().to_numpy(zero_copy_only=False))


def _read_decimals(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Read big-endian numbers of up to eight bytes at once, longer ones one by one."""
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(values) or lengths.max() > _WORD_BYTES:
        return _convert_singly(values, target)
    _, offsets, data = values.buffers()
    if data is None:
        return _convert_singly(values, target)
    starts = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values)]
    padded = np.concatenate((np.frombuffer(data, np.uint8), np.zeros(_WORD_BYTES, np.uint8)))
    words = np.ndarray((len(padded) - _WORD_BYTES + 1,), ">i8", padded, strides=(1,))
    # Shifting to the right copies the sign into the places of the bytes that follow the number.
    numbers = words[starts].astype(np.int64) >> (8 * (_WORD_BYTES - np.maximum(lengths, 1)))
    unfit = lengths == 0
    if target.precision < 19:
        # Not by the absolute value: the least 64-bit number has none.
        bound = 10**target.precision
        unfit |= (numbers >= bound) | (numbers <= -bound)
    halves = np.empty((len(values), 2), np.int64)
    halves[:, 0], halves[:, 1] = numbers, numbers >> 63
    column = pa.Array.from_buffers(
        target, len(values), [None, pa.py_buffer(np.ascontiguousarray(halves))]
    )
    if unfit.any():
        column = pc.if_else(pa.array(unfit), pa.scalar(None, target), column)
    return column, unfit
