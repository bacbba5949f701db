"""Checksums of a data file: of its footer and of each column chunk, kept in the footer itself.

Parquet's own checksums cover the contents of pages. Neither page headers, with the number of
values, nor the footer, with all offsets, have one: one wrong bit there can shift values without an
error. So the footer of a file on a local path has a key of ours, whose
value is written once all else is there: eight hexadecimal digits for the footer, with zeros in
their place, then eight for each column chunk, row group by row group. Other readers ignore it.
An object store checks by itself what it keeps, and lets no file be changed: there Parquet's own
checksums must do.
"""

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "checksum_placeholder",
    "chunk_span",
    "count_leaves",
    "fill_in_checksums",
    "fill_in_content",
    "read_footer",
]

Checksums = npt.NDArray[np.uint32]

_KEY: Final = "tseries.crc32"
_CHECKSUM_DIGITS: Final = 8
_TRAILER_BYTES: Final = 8
"""A file ends with the length of the footer and a magic number, four bytes each."""

_MARK: Final = b"PAR1"
_THRIFT_VALUE_FIELD: Final = b"\x18"
"""The Thrift header of the value after the key."""

_TAIL_BYTES: Final = 64 * 1024
"""The bytes at a file's end that are read first; a footer is rarely longer."""


def count_leaves(kind: pa.DataType) -> int:
    """The number of column chunks of a column of the type `kind` in each row group."""
    if pa.types.is_map(kind):
        return count_leaves(kind.key_type) + count_leaves(kind.item_type)
    if pa.types.is_list(kind):
        return count_leaves(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(count_leaves(field.type) for field in kind)
    return 1


def checksum_placeholder(schema: pa.Schema, groups: int) -> dict[str, str]:
    """The key for a file of `groups` row groups of `schema`, with zeros instead of checksums."""
    chunks = groups * sum(count_leaves(field.type) for field in schema)
    return {_KEY: "0" * _CHECKSUM_DIGITS * (1 + chunks)}


def chunk_span(chunk: Any) -> tuple[int, int]:
    """The offset and the size of a column chunk in its file, from Arrow's metadata."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, chunk.total_compressed_size


def fill_in_checksums(path: str, metadata: Any) -> None:
    """Fill the placeholder of a file that no commit names yet.

    Args:
        path: of the file, whole.
        metadata: Arrow's, of the file.

    Raises:
        OSError: the file cannot be read or written.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        end = os.fstat(descriptor).st_size - _TRAILER_BYTES
        length = int.from_bytes(os.pread(descriptor, 4, end), "little")
        sums = [zlib.crc32(os.pread(descriptor, n, at)) for at, n in _chunk_spans(metadata)]
        at, sealed = _compute_checksums(os.pread(descriptor, length, end - length), sums)
        os.pwrite(descriptor, sealed, end - length + at)
    finally:
        os.close(descriptor)


def fill_in_content(content: bytearray, metadata: Any) -> None:
    """As `fill_in_checksums`, of a whole file that is in memory."""
    end = len(content) - _TRAILER_BYTES
    length = int.from_bytes(content[end : end + 4], "little")
    whole = memoryview(content)
    sums = [zlib.crc32(whole[at : at + size]) for at, size in _chunk_spans(metadata)]
    at, sealed = _compute_checksums(bytes(whole[end - length : end]), sums)
    whole[end - length + at : end - length + at + len(sealed)] = sealed


def _chunk_spans(metadata: Any) -> Iterator[tuple[int, int]]:
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(metadata.num_columns):
            yield chunk_span(row_group.column(column))


def _compute_checksums(footer: bytes, sums: Iterable[int]) -> tuple[int, bytes]:
    """The offset of the checksums in the footer, and the checksums."""
    found = _find_value(footer)
    assert found is not None, "the file was written without room for checksums"
    at, size = found
    chunks = b"".join(b"%08x" % one for one in sums)
    assert len(chunks) == size - _CHECKSUM_DIGITS, "there is not as much room as there are chunks"
    filled = footer[: at + _CHECKSUM_DIGITS] + chunks + footer[at + size :]
    return at, b"%08x" % zlib.crc32(filled) + chunks


def _find_value(footer: bytes) -> tuple[int, int] | None:
    """Offset and size of the key's value; None if the key is missing."""
    at = footer.rfind(_KEY.encode())
    if at < 0:
        return None
    at += len(_KEY)
    if footer[at : at + 1] != _THRIFT_VALUE_FIELD:
        return at, 0
    size = shift = 0
    for byte in footer[at + 1 : at + 6]:
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return at + 1, size


def read_footer(source: Any, size: int) -> tuple[Any, Checksums | None]:
    """Arrow's metadata of a file, and the checksums of its column chunks; None if it has none.

    Args:
        source: the file, as Arrow opens it.
        size: of the file, in bytes.

    Raises:
        OSError, pa.ArrowException: it cannot be read, or is broken.
    """
    tail = _read_tail(source, size, min(size, _TAIL_BYTES))
    if tail[-4:] != _MARK:
        raise pa.ArrowInvalid("it is not a Parquet file, or is cut short")
    length = int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES
    if length > size:
        raise pa.ArrowInvalid(f"its footer of {length} bytes is longer than the file")
    if length > len(tail):
        tail = _read_tail(source, size, length)
    tail = tail[-length:]
    sums = _verify_footer(tail[:-_TRAILER_BYTES])
    return pq.read_metadata(pa.BufferReader(tail)), sums


def _read_tail(source: Any, size: int, length: int) -> bytes:
    tail: bytes = source.read_at(length, size - length)
    if len(tail) < length:
        raise pa.ArrowInvalid(f"it is shorter than {size} bytes")
    return tail


def _verify_footer(footer: bytes) -> Checksums | None:
    found = _find_value(footer)
    if found is None:
        return None
    at, size = found
    zeros = footer[:at] + b"0" * _CHECKSUM_DIGITS + footer[at + _CHECKSUM_DIGITS :]
    try:
        sums = np.frombuffer(bytes.fromhex(footer[at : at + size].decode()), ">u4")
    except ValueError:
        sums = np.empty(0, np.uint32)
    if not len(sums) or zlib.crc32(zeros) != sums[0]:
        raise pa.ArrowInvalid("its footer is not what was written: the checksum is another one")
    return sums[1:]
