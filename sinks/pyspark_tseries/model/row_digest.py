"""Compute the digest of a set of rows, which does not depend on their order or partitioning.

The store keeps the digest of each query's last batch, and so recognizes whether a repeated batch
has the same rows (semantics 16.5). A row's digest combines those of its columns. The digest of a
set is the sum over its rows, so the driver adds up the digests of tasks. Nulls add nothing: a
column that was added in the meantime changes no digest.

Floats count to about six digits, and as 0 below 1e-9: Spark adds up floats in the order in which
its tasks end, so a sum that it computes again may differ in its last digits.
"""

import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tseries.model.arrays import Int64Array

Hashes = npt.NDArray[np.uint64]

DIGEST_BITS: Final = 62
_MASK: Final = (1 << DIGEST_BITS) - 1
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD: Final = np.uint64(0xBF58476D1CE4E5B9)
_HALF: Final = np.uint64(32)
_FLOAT_NOISE: Final = 1e-9
_FLOAT_BITS_DROPPED: Final = np.uint64(32)
"""Drop these of the 52 bits of a double's fraction; 20 stay."""

_FLOAT_ROUNDING: Final = np.uint64(0x6A09E667)
"""Add this before bits are dropped. With a half, sums of cents such as 600,000.25 would lie on the
border between two numbers, and the smallest difference would change the digest."""

ROWS_AT_ONCE: Final = 16 * 1024
"""This many rows of a column fit in the processor's cache."""


def digest_rows(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the digest of `rows`; 0 for none."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    total = 0
    for batch in batches:
        for first in range(0, batch.num_rows, ROWS_AT_ONCE):
            total = add_digests(total, _digest(batch.slice(first, ROWS_AT_ONCE)))
    return total


def add_digests(*digests: int) -> int:
    """Return the digest of the union of several sets."""
    return sum(digests) & _MASK


def _digest(batch: pa.RecordBatch) -> int:
    rows = np.full(batch.num_rows, _ODD)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count < len(column):
            rows += _named(field.name, _hash(column))
    return int(_scramble(rows).sum(dtype=np.uint64)) & _MASK


def _named(name: str, hashes: Hashes) -> Hashes:
    """Return what a column of this name adds to the hash of each row; 0 for null."""
    seed = np.uint64(zlib.crc32(name.lower().encode(errors="replace")) * 2 + 1)
    return _scramble(hashes * seed)


def _scramble(hashes: Hashes) -> Hashes:
    """Mix the bits of each number, in place; 0 stays 0."""
    hashes *= _ODD
    hashes ^= hashes >> _HALF
    hashes *= _OTHER_ODD
    hashes ^= hashes >> _HALF
    return hashes


def _hash(column: pa.Array) -> Hashes:
    """Return a number for each value, 0 for null; equal values have equal numbers."""
    hashes = _hash_values(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _hash_values(column: pa.Array) -> Hashes:
    """Do the same as `_hash`, with any number for null."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_dictionary(kind):
        hashed: Hashes = _hash(column.dictionary)[
            column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        ]
        return hashed
    if pa.types.is_floating(kind):
        return _not_zero(_float_bits(column))
    if pa.types.is_decimal(kind):
        return _hash_text(column.cast(pa.string()))
    if pa.types.is_struct(kind):
        hashes = np.full(len(column), _ODD)
        for field, child in zip(kind, column.flatten(), strict=True):
            hashes += _named(field.name, _hash(child))
        return hashes
    if pa.types.is_map(kind):
        entries = _named("key", _hash(column.keys)) * _ODD + _named("value", _hash(column.items))
        # The entries of a map have no order.
        return _sum_parts(_scramble(entries + _ODD), _offsets(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values, offsets = _hash(column.values) + _ODD, _offsets(column)
        places = _places(offsets, len(values))
        return _sum_parts(_scramble(values * (places * np.uint64(2) + np.uint64(1))), offsets)
    if pa.types.is_fixed_size_list(kind):
        return _hash_values(column.cast(pa.list_(kind.value_type)))
    if _is_text(kind):
        return _hash_text(column)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not pa.types.is_integer(kind):
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    return _not_zero(numbers.astype(np.int64).view(np.uint64))


def _is_text(kind: pa.DataType) -> bool:
    checks: list[Any] = [pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view]
    checks += [pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view]
    return any(check(kind) for check in checks) or pa.types.is_fixed_size_binary(kind)


def _not_zero(numbers: Hashes) -> Hashes:
    """Hash numbers so that the number 0 differs from null."""
    return _scramble(numbers ^ _OTHER_ODD)


def _float_bits(column: pa.Array) -> Hashes:
    floats = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    floats = np.where(np.abs(floats) < _FLOAT_NOISE, 0.0, floats)
    bits = floats.view(np.uint64)
    rounded = (bits + _FLOAT_ROUNDING) >> _FLOAT_BITS_DROPPED
    return np.where(np.isnan(floats), _ODD, rounded)


def _hash_text(column: pa.Array) -> Hashes:
    """Return a number for each text or binary, from eight bytes at a time; any number for null."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_string()).view(pa.large_binary())
    else:
        column = column.cast(pa.large_binary())
    _, offsets_buffer, content = column.buffers()
    if not len(column) or offsets_buffer is None or content is None:
        return np.full(len(column), _ODD)
    ends = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(ends)
    words = (sizes + 7) >> 3
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(words)])
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], words)
    # Eight more bytes, so that a word of eight bytes may begin at any byte.
    letters = np.zeros(ends[-1] - ends[0] + 8, np.uint8)
    letters[:-8] = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
    overlapping = np.ndarray(len(letters) - 7, np.uint64, letters, strides=(1,))
    pieces = overlapping[np.repeat(ends[:-1] - ends[0], words) + 8 * places]
    beyond = 8 * (words - 1) - sizes + 8  # Bytes of the last word that belong to the next text.
    last = offsets[1:][words > 0] - 1
    shift = (8 * beyond[words > 0]).astype(np.uint64)
    pieces[last] = (pieces[last] << shift) >> shift
    pieces = _scramble(
        (pieces ^ _OTHER_ODD) * (places.view(np.uint64) * np.uint64(2) + np.uint64(1))
    )
    return _sum_parts(pieces, offsets) + sizes.view(np.uint64) * _ODD


def _offsets(lists: pa.Array) -> Int64Array:
    """Return the offset of each list among the values, and the end of the last one."""
    offsets: Int64Array = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return offsets


def _places(offsets: Int64Array, size: int) -> Hashes:
    """Return the position of each of `size` values in its list, from 0."""
    places = np.arange(size)
    places[offsets[0] : offsets[-1]] -= np.repeat(offsets[:-1], np.diff(offsets))
    return places.view(np.uint64)


def _sum_parts(pieces: Hashes, offsets: Int64Array) -> Hashes:
    """Return a number for each list, from the sum and the count of its `pieces`."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(pieces, dtype=np.uint64)])
    sizes = np.diff(offsets).view(np.uint64)
    return _scramble(sums[offsets[1:]] - sums[offsets[:-1]] + (sizes + np.uint64(1)) * _ODD)
