"""Choose the Parquet layout of events, and keep checksums in the footer.

Parquet's own checksums cover the contents of pages, but not page headers and the footer: one wrong
bit there can shift values without an error. So we add a key to the footer of a file on a local
path, and fill it in last. It has eight hexadecimal digits for the footer (with zeros in their
place), then eight for each column chunk, row group by row group. Other readers ignore it. An object
store checks its contents itself.
"""

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS_PER_GROUP: Final = 10_000
"""With small row groups, a reader of one series can skip most of a file that has all series."""

ENCODING_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Encode about this many bytes at once; after each batch Arrow checks the dictionary's size."""

_OFTEN_CONSTANT: Final = (
    *("author", "original_sequence", "original_timestamp", "original_author"),
    *("commit", "commit_time"),
)
"""These columns are usually constant in the file of a commit."""


def choose_compression(events: pa.Table) -> str | dict[str, str]:
    """Choose each column's compression: none for constant ones, where it costs more than it saves.

    Nested columns would need the names of their leaves, so a table with any has all compressed.
    """
    if any(pa.types.is_nested(field.type) for field in events.schema):
        return "zstd"
    alike = {name for name in _OFTEN_CONSTANT if _has_one_value(events[name])}
    return {name: "none" if name in alike else "zstd" for name in events.column_names}


def _has_one_value(column: pa.ChunkedArray) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    if pa.types.is_dictionary(column.type):
        return all(len(chunk.dictionary) == 1 for chunk in column.chunks)
    ends = pc.min_max(column)
    return bool(ends["min"] == ends["max"])


def split_dictionaries(events: pa.Table, group_rows: int) -> pa.Table:
    """Give the names of each row group of `events`, sorted by series, their own dictionary.

    Parquet writes the whole dictionary into every group, so a shared one would be repeated. If
    `series` is not a dictionary, the table stays as it is.
    """
    if not pa.types.is_dictionary(events.schema.field("series").type):
        return events
    series = events["series"].unify_dictionaries().combine_chunks()
    names, codes = series.dictionary, series.indices.to_numpy()
    groups = []
    for start in range(0, len(codes), group_rows):
        mine = codes[start : start + group_rows]
        own = names.slice(mine[0], mine[-1] - mine[0] + 1)
        groups.append(pa.DictionaryArray.from_arrays(pa.array(mine - mine[0]), own))
    return events.set_column(0, "series", pa.chunked_array(groups))


def has_raw_bounds(column: Any) -> bool:
    """Return whether the bounds of integers or times are integers, for times in microseconds.

    Spark's Delta usually writes times as INT96, which has no meaningful bounds; other tools may use
    milliseconds.
    """
    if column.physical_type != "INT64":
        return False
    return column.logical_type.type != "TIMESTAMP" or (
        '"timeUnit":"microseconds"' in column.logical_type.to_json().replace(" ", "")
    )


def rows_for_bytes(rows: pa.Table, size: int, most: int) -> int:
    """Return how many rows like these have about `size` bytes, from 1 to `most`."""
    return max(1, min(most, int(size * rows.num_rows // max(rows.nbytes, 1))))


def choose_bounds(events: pa.Table, is_whole: bool) -> bool | list[str]:
    """Return the leaves that get bounds, or True for all; floats that may have a NaN get none.

    Arrow leaves NaN out of bounds, but Spark, DuckDB and Polars sort it above all numbers, so they
    would skip a group with a NaN that passes their filter. `events` are the first rows of a file,
    or all of them if `is_whole`.
    """
    leaves = [leaf for field in events.schema for leaf in _leaves(field.name, field.type)]
    chosen = [
        path
        for path, kind in leaves
        if not pa.types.is_floating(kind)
        or (is_whole and path in events.column_names and not _has_nan(events[path]))
    ]
    return len(chosen) == len(leaves) or chosen


def _leaves(path: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the paths and types of a column's leaves in a Parquet file."""
    if pa.types.is_struct(kind):
        return [leaf for part in kind for leaf in _leaves(f"{path}.{part.name}", part.type)]
    if pa.types.is_map(kind):
        return [
            *_leaves(f"{path}.key_value.key", kind.key_type),
            *_leaves(f"{path}.key_value.value", kind.item_type),
        ]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    return [(path, kind)]


def _has_nan(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.is_nan(column)).as_py())


def writer_options(events: pa.Table, *, is_whole: bool) -> dict[str, Any]:
    """Return the options to write events like these, the first of a file, or all if `is_whole`."""
    schema = events.schema
    deltas = dict.fromkeys(("sequence", "timestamp"), "DELTA_BINARY_PACKED")
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    encoding = deltas | dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
    if not pa.types.is_dictionary(schema.field("series").type):
        encoding["series"] = "PLAIN"
    return {
        "compression": "zstd",
        "write_batch_size": rows_for_bytes(events, ENCODING_BATCH_BYTES, ROWS_PER_GROUP),
        "use_dictionary": [name for name in schema.names if name not in encoding],
        "column_encoding": encoding,
        "write_statistics": choose_bounds(events, is_whole),
        # Readers must see Delta's types; a stored Arrow schema would make `series` a dictionary.
        "store_schema": False,
        "write_page_checksum": True,
    }


Checksums = npt.NDArray[np.uint32]

_KEY: Final = "tseries.crc32"
_CHECKSUM_DIGITS: Final = 8
_TRAILER_BYTES: Final = 8
"""A file ends with the length of the footer and a magic number, four bytes each."""

_MARK: Final = b"PAR1"
_THRIFT_VALUE_FIELD: Final = b"\x18"
"""The Thrift header of the value after the key."""

_TAIL_BYTES: Final = 64 * 1024
"""Read this many bytes at a file's end first; a footer is rarely longer."""


def count_leaves(kind: pa.DataType) -> int:
    """Return how many chunks a column of the type `kind` has in each row group."""
    if pa.types.is_map(kind):
        return count_leaves(kind.key_type) + count_leaves(kind.item_type)
    if pa.types.is_list(kind):
        return count_leaves(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(count_leaves(field.type) for field in kind)
    return 1


def checksum_placeholder(schema: pa.Schema, groups: int) -> dict[str, str]:
    """Return the key for a file of `groups` row groups, with zeros instead of checksums."""
    chunks = groups * sum(count_leaves(field.type) for field in schema)
    return {_KEY: "0" * _CHECKSUM_DIGITS * (1 + chunks)}


def chunk_span(chunk: Any) -> tuple[int, int]:
    """Return the offset and size of a column chunk in its file, from Arrow's metadata."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, chunk.total_compressed_size


def fill_in_checksums(path: str, metadata: Any) -> None:
    """Fill in the placeholder of a file that no commit names yet; `metadata` is Arrow's."""
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
    """Do the same as `fill_in_checksums` for a whole file in memory."""
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
    """Return the offset of the checksums in the footer, and the checksums."""
    found = _find_value(footer)
    assert found is not None, "the file was written without room for checksums"
    at, size = found
    chunks = b"".join(b"%08x" % one for one in sums)
    assert len(chunks) == size - _CHECKSUM_DIGITS, "there is not as much room as there are chunks"
    filled = footer[: at + _CHECKSUM_DIGITS] + chunks + footer[at + size :]
    return at, b"%08x" % zlib.crc32(filled) + chunks


def _find_value(footer: bytes) -> tuple[int, int] | None:
    """Return offset and size of the key's value; None if the key is missing."""
    at = footer.rfind(_KEY.encode())
    if at < 0:
        return None
    at += len(_KEY)
    if footer[at : at + 1] != _THRIFT_VALUE_FIELD:
        return at, 0
    size = shift = 0  # The size is a varint: seven bits a byte, the low ones first.
    for byte in footer[at + 1 : at + 6]:
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return at + 1, size


def read_footer(source: Any, size: int) -> tuple[Any, Checksums | None]:
    """Return Arrow's metadata of a file, and its column chunks' checksums; None if it has none.

    Raises:
        OSError, pa.ArrowException: the footer cannot be read, or is broken.
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
