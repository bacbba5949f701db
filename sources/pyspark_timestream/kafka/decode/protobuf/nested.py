"""Conversion of nested columns: lists, maps and structs, and of which of their parts failed.

As in JSON, a struct keeps its readable fields, and a list or map with an unreadable item is
unreadable.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.kafka.decode.fields import ConvertedColumn
from pyspark_timestream.kafka.decode.protobuf.casts import to_mask

__all__ = ["Convert", "convert_list", "convert_map", "convert_struct", "mark"]


Convert: TypeAlias = Callable[[pa.Array], ConvertedColumn]
"""Converts the values of one field."""


def convert_struct(
    array: pa.Array, converters: Sequence[Convert], fields: Sequence[pa.Field]
) -> ConvertedColumn:
    """Convert structs field by field to `fields`."""
    parts = [
        convert(pc.struct_field(array, field.name))
        for convert, field in zip(converters, fields, strict=True)
    ]
    partial, void = (np.zeros(len(array), dtype=np.bool_) for _ in range(2))
    for part in parts:
        partial |= part.partial
    children = [part.column for part in parts]
    column = pa.StructArray.from_arrays(children, fields=list(fields), mask=array.is_null())
    return ConvertedColumn(column, partial, void)


def convert_list(array: pa.Array, convert: Convert, target: pa.ListType) -> ConvertedColumn:
    """Convert lists item by item."""
    starts, rows = _locate_items(array)
    items = convert(array.values.slice(starts[0], starts[-1] - starts[0]))
    partial, void = _gather(items, rows, len(array))
    offsets = pa.array(starts - starts[0], pa.int32())
    absent = pa.array(void | to_mask(array.is_null()))
    column = pa.ListArray.from_arrays(offsets, items.column, type=target, mask=absent)
    return ConvertedColumn(column, partial, void)


def convert_map(
    array: pa.Array, keys: Convert, values: Convert, target: pa.MapType
) -> ConvertedColumn:
    """Convert repeated entries to maps, in the order of their keys."""
    starts, rows = _locate_items(array)
    entries = array.values.slice(starts[0], starts[-1] - starts[0])
    entries = entries.take(_sort_keys(rows, pc.struct_field(entries, "key")))
    names = keys(pc.struct_field(entries, "key"))
    items = values(pc.struct_field(entries, "value"))
    partial, void = _gather(items, rows, len(array))
    void[rows[names.void]] = True
    partial |= void
    absent = pa.array(void | to_mask(array.is_null()))
    offsets = pa.array(starts - starts[0], pa.int32())
    if names.void.any():
        # Arrow refuses a null key, even in a map that is null.
        names = names._replace(column=_fill_keys(names.column))
    column = pa.MapArray.from_arrays(offsets, names.column, items.column, target, mask=absent)
    return ConvertedColumn(column, partial, void)


def _sort_keys(rows: Any, keys: pa.Array) -> pa.Array:
    """Sort the entries of each row: Google's library promises no order."""
    table = pa.table({"row": rows, "key": keys})
    return pc.sort_indices(table, sort_keys=[("row", "ascending"), ("key", "ascending")])


def _fill_keys(keys: pa.Array) -> pa.Array:
    zero: Any = "" if pa.types.is_string(keys.type) else 0
    return pc.fill_null(keys, pa.scalar(zero).cast(keys.type))


def _locate_items(array: pa.Array) -> tuple[npt.NDArray[np.int64], Any]:
    """Return the bounds of each list among all items, and the row of each item."""
    starts = array.offsets.to_numpy().astype(np.int64)
    return starts, np.repeat(np.arange(len(array)), np.diff(starts))


def _gather(items: ConvertedColumn, rows: Any, n: int) -> tuple[Mask, Mask]:
    partial, void = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    partial[rows[items.partial]] = True
    void[rows[items.void]] = True
    return partial, void


def mark(column: pa.Array, failed: Mask | None = None) -> ConvertedColumn:
    """Return a converted column whose values are null where they `failed`; None: nowhere."""
    if failed is None:
        failed = np.zeros(len(column), dtype=np.bool_)
    return ConvertedColumn(column, failed, failed)
