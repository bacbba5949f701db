"""Arrow's columns in both packages: nested columns, decimals, blocks with CTI rows.

Each package has its own rule for a value that does not fit: a source makes it null (semantics
13.13), a store refuses it (semantics 15.6).
"""

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

INSTANT: Final = pa.timestamp("us", tz="UTC")
"""The type of columns of instants."""

CTI_COLUMN: Final = "cti"
"""The column of CTI rows; null in rows of data."""


def to_mask(booleans: pa.Array) -> Mask:
    """Convert booleans to a mask; nulls become False."""
    if booleans.null_count:
        booleans = pc.fill_null(booleans, False)
    return np.array(booleans.to_numpy(zero_copy_only=False), dtype=np.bool_)


def locate(values: pa.Array) -> tuple[Integers, Bytes]:
    """Return the n + 1 bounds of binary values or texts in their buffer, and the buffer."""
    _, offsets, data = values.buffers()
    if not len(values):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    bounds = np.frombuffer(offsets, width)[values.offset :][: len(values) + 1]
    return bounds.astype(np.int64), np.frombuffer(data or b"", np.uint8)


def list_lengths(array: pa.Array) -> Integers:
    """Return how many items of each list `flatten()` returns: 0 for a null list."""
    lengths: Integers = pc.list_value_length(array).fill_null(0).to_numpy()
    return lengths


def build_nested(
    data_type: pa.DataType,
    children: Sequence[pa.Array],
    lengths: Integers | None,
    nulls: pa.Array | None,
) -> pa.Array:
    """Return lists, maps or structs of `data_type`, null where `nulls` is true.

    `children` are the items of all lists in order, the keys and values of all maps, or the fields
    of the structs. `lengths` are the numbers of items; None for structs.
    """
    if lengths is None:
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=nulls)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    make = pa.ListArray.from_arrays if pa.types.is_list(data_type) else pa.MapArray.from_arrays
    return make(offsets, *children, data_type, mask=nulls)


MAX_DIGITS: Final = 38
"""The digits of a decimal column, which has 128 bits."""

MAX_WIDE_DIGITS: Final = 76
"""The digits of a decimal of 256 bits."""


def find_long_decimals(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return where `values` have more digits before the point than the decimals of `data_type`.

    For this value Arrow's cast multiplies until the bits run over, and returns another number.
    """
    greatest = Decimal((0, (9,) * data_type.precision, -data_type.scale))
    unit = Decimal(1).scaleb(-values.type.scale)
    bound = greatest.quantize(unit, ROUND_FLOOR, Context(prec=MAX_WIDE_DIGITS))
    return pc.greater(pc.abs(values), pa.scalar(bound, values.type))


_STRUCTS_OF_SPARK: Final = (b"variant", b"geometry", b"geography")


def name_struct_of_spark(data_type: pa.DataType) -> str | None:
    """Return the name of a variant, geometry or geography, in Arrow a marked struct, or None.

    A field's comment is metadata too, and marks nothing.
    """
    if not pa.types.is_struct(data_type):
        return None
    marks = {mark for child in data_type for mark in child.metadata or ()}
    return next((mark.decode() for mark in _STRUCTS_OF_SPARK if mark in marks), None)


_SCALARS: Final = {
    "bool": "boolean",
    "date32[day]": "date",
    "duration[us]": "interval day to second",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "timestamp[us, tz=UTC]": "timestamp",
    "timestamp[us]": "timestamp_ntz",
}
"""Arrow's name -> Spark's, where they differ."""


def name_scalar(data_type: pa.DataType) -> str:
    """Name a type without others inside it as Spark does."""
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    return _SCALARS.get(str(data_type), str(data_type))


class CtiRows(NamedTuple):
    """A block's data rows, separated from its CTI rows (semantics 2.9).

    Attributes:
        rows: the rows of data, with all columns.
        cti_us: the greatest CTI of the block; None if it has none.
        misfit: another column that is not null in a CTI row, and the CTI of the first such row;
            None if CTI rows set nothing else.
    """

    rows: pa.RecordBatch
    cti_us: int | None
    misfit: tuple[str, int] | None


def split_cti_rows(block: pa.RecordBatch, name: str) -> CtiRows:
    """Separate rows of data from those in which column `name`, a timestamp, is set."""
    if block[name].null_count == block.num_rows:
        return CtiRows(block, None, None)
    ctis = block[name].cast(INSTANT).cast(pa.int64())
    is_cti = ctis.is_valid()
    misfit = None
    for column in block.schema.names:
        row = pc.index(pc.and_(is_cti, block[column].is_valid()), True).as_py()
        if row >= 0 and column != name:
            misfit = column, ctis[row].as_py()
            break
    return CtiRows(block.filter(pc.invert(is_cti)), pc.max(ctis).as_py(), misfit)
