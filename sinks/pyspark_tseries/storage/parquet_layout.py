"""How events are laid out in Parquet: encodings, compression, row groups."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "ROWS_PER_GROUP",
    "choose_compression",
    "has_raw_bounds",
    "rows_for_bytes",
    "split_dictionaries",
    "writer_options",
]

ROWS_PER_GROUP: Final = 10_000
"""Small row groups let a reader of one series skip most of a file that holds them all."""

ENCODING_BATCH_BYTES: Final = 4 * 1024 * 1024
"""The bytes encoded at once, about; after each, Arrow checks the size of the dictionary."""

_OFTEN_CONSTANT: Final = (
    *("author", "original_sequence", "original_timestamp", "original_author"),
    *("commit", "commit_time"),
)
"""Columns that are usually constant in the file of a commit."""


def choose_compression(events: pa.Table) -> str | dict[str, str]:
    """The compression of each column: none for constant ones, where it costs more than it saves.

    Nested columns would need the names of their leaves, so with these all are compressed.
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
    """`events`, sorted by series, with the names of each row group in a dictionary of its own.

    Parquet writes the whole dictionary into every group, so a shared one would be repeated.
    A table whose `series` is not a dictionary stays as it is.
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
    """True if the bounds of a column of integers or times are integers, times in microseconds.

    Spark's Delta usually writes times as INT96, whose bounds are meaningless; other tools may use
    milliseconds.

    Args:
        column: of a Parquet file's schema.
    """
    if column.physical_type != "INT64":
        return False
    return column.logical_type.type != "TIMESTAMP" or (
        '"timeUnit":"microseconds"' in column.logical_type.to_json().replace(" ", "")
    )


def rows_for_bytes(rows: pa.Table, size: int, most: int) -> int:
    """The number of rows like these in about `size` bytes, from 1 to `most`."""
    return max(1, min(most, int(size * rows.num_rows // max(rows.nbytes, 1))))


def writer_options(events: pa.Table) -> dict[str, Any]:
    """The options to write events like these; `series` is encoded by `series_column`."""
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
        # The types are Delta's; Arrow's own would bring the dictionary of `series` back.
        "store_schema": False,
        "write_page_checksum": True,
    }
