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


def choose_bounds(events: pa.Table, is_whole: bool) -> bool | list[str]:
    """The leaves of which Parquet gets bounds: all (True) but floats that have, or may have, a NaN.

    Arrow leaves NaN out of bounds, but to Spark, DuckDB and Polars it is above all numbers: they
    would skip a group for a filter that a NaN in it meets.

    Args:
        events: the first rows of a file.
        is_whole: they are all of them, so that a float column without a NaN is known.
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
    """The leaves of a column in a Parquet file, by their paths, with their types."""
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
    """The options to write events like these; `series` is encoded by `series_column`.

    Args:
        events: the first rows of a file.
        is_whole: they are all of them.
    """
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
        # The types are Delta's; Arrow's own would bring the dictionary of `series` back.
        "store_schema": False,
        "write_page_checksum": True,
    }
