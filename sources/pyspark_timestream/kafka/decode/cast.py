"""Casts typed columns of payloads to the columns that are wanted.

A cast changes the type of a value and never its meaning: whole numbers to wider or narrower ones,
to decimals and to floating point, decimals to other decimals, texts to their bytes. A value that
does not fit the wanted type becomes null, and the payload is malformed for its type. The other
fields of its struct stay; a list or map with such an item is null as a whole (semantics 13.13).
"""

from decimal import ROUND_FLOOR, Context, Decimal
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.connector.instants import FINAL_US, MIN_US

__all__ = ["CastColumn", "can_cast", "cast_column"]

_DAY_US: Final = 86_400_000_000
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}


class CastColumn(NamedTuple):
    """A column of n values in its wanted type.

    Attributes:
        column: the column.
        unfit: n booleans: a part of the value, or all of it, did not fit its type and is null.
    """

    column: pa.Array
    unfit: Mask


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Check that values of `source` can be cast to `target`, as far as they fit."""
    if pa.types.is_null(source):
        return True
    if pa.types.is_struct(source):
        if not pa.types.is_struct(target):
            return False
        places = [(source.get_field_index(child.name), child) for child in target]
        return all(at >= 0 and can_cast(source.field(at).type, to.type) for at, to in places)
    if pa.types.is_list(source):
        return pa.types.is_list(target) and can_cast(source.value_type, target.value_type)
    if pa.types.is_map(source):
        if not pa.types.is_map(target):
            return False
        # A key may not be null, so it has to fit.
        texts = _is_text(source.key_type) and pa.types.is_string(target.key_type)
        same = texts or source.key_type == target.key_type
        return same and can_cast(source.item_type, target.item_type)
    return _can_cast_scalar(source, target)


def _can_cast_scalar(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_timestamp(source):
        return pa.types.is_timestamp(target) and (source.tz is None) == (target.tz is None)
    if pa.types.is_integer(source):
        return bool(
            pa.types.is_integer(target)
            or pa.types.is_floating(target)
            or pa.types.is_decimal(target)
        )
    if pa.types.is_floating(source):
        return bool(pa.types.is_floating(target) and target.bit_width >= source.bit_width)
    if pa.types.is_decimal(source):
        return bool(pa.types.is_decimal(target))
    if _is_text(source):
        return bool(pa.types.is_string(target) or pa.types.is_binary(target))
    if pa.types.is_binary(source) or pa.types.is_large_binary(source):
        return bool(pa.types.is_binary(target))
    return bool(source == target)


def cast_column(column: pa.Array, target: pa.DataType) -> CastColumn:
    """Cast n values to `target`, which `can_cast` has allowed.

    Numbers may also be wider than those that it allows: a producer may have widened them. Fractions
    are not whole numbers, and what is beyond a float's range is no float.
    """
    source = column.type
    if pa.types.is_null(source):
        return CastColumn(pa.nulls(len(column), target), _none(column))
    if pa.types.is_struct(source):
        return _cast_struct(column, target)
    if pa.types.is_list(source):
        return _cast_list(column, target)
    if pa.types.is_map(source):
        return _cast_map(column, target)
    if pa.types.is_timestamp(source) or pa.types.is_date32(source):
        return _cast_times(column, target)
    if source == target:
        return CastColumn(column, _none(column))
    if pa.types.is_floating(source) and not pa.types.is_floating(target):
        whole, unfit = _cast_whole(column)
        found = cast_column(whole, target)
        return CastColumn(found.column, found.unfit | unfit)
    if pa.types.is_decimal(target):
        return _cast_decimals(column, target)
    if pa.types.is_integer(target):
        return _cast_integers(column, target)
    cast = column.cast(target, safe=False)
    if pa.types.is_floating(source) and target.bit_width < source.bit_width:
        return _keep(cast, pc.and_(pc.is_inf(cast), pc.is_finite(column)))
    return CastColumn(cast, _none(column))


def _cast_whole(column: pa.Array) -> CastColumn:
    """Cast floats to 64-bit integers; those with a fraction or beyond do not fit."""
    wide = column.cast(pa.float64())
    bound = 2.0**63
    inside = pc.and_(pc.greater_equal(wide, -bound), pc.less(wide, bound))
    kept, unfit = _keep(wide, pc.invert(pc.and_(inside, pc.equal(wide, pc.floor(wide)))))
    return CastColumn(kept.cast(pa.int64()), unfit)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _none(column: pa.Array) -> Mask:
    return np.zeros(len(column), dtype=np.bool_)


def _to_mask(booleans: pa.Array) -> Mask:
    return np.array(pc.fill_null(booleans, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _keep(column: pa.Array, outside: pa.Array) -> CastColumn:
    """Make the values null that are outside of the type's range."""
    unfit = _to_mask(outside)
    if unfit.any():
        column = pc.if_else(pa.array(unfit), pa.scalar(None, column.type), column)
    return CastColumn(column, unfit)


def _cast_struct(column: pa.Array, target: pa.DataType) -> CastColumn:
    inner, unfit = [], _none(column)
    for child in target:
        part = cast_column(pc.struct_field(column, child.name), child.type)
        inner.append(part.column)
        unfit |= part.unfit
    mask = column.is_null() if column.null_count else None
    if not inner:
        return CastColumn(column.cast(target), unfit)
    return CastColumn(pa.StructArray.from_arrays(inner, fields=list(target), mask=mask), unfit)


def _cast_list(column: pa.Array, target: pa.DataType) -> CastColumn:
    items = cast_column(column.flatten(), target.value_type)
    offsets, owners = _lay_out(column)
    unfit = _none(column)
    unfit[owners[items.unfit]] = True
    mask = column.is_null() if column.null_count else None
    made = pa.ListArray.from_arrays(offsets, items.column, type=target, mask=mask)
    return _void(made, items, owners, unfit)


def _void(
    lists: pa.Array, items: CastColumn, owners: npt.NDArray[np.int64], unfit: Mask
) -> CastColumn:
    """Make null those lists or maps of which an item is null that did not fit."""
    if not unfit.any():
        return CastColumn(lists, unfit)
    void = _none(lists)
    void[owners[items.unfit & _to_mask(items.column.is_null())]] = True
    return CastColumn(pc.if_else(pa.array(void), pa.scalar(None, lists.type), lists), unfit)


def _cast_map(column: pa.Array, target: pa.DataType) -> CastColumn:
    # A null map may have entries that nobody sees.
    shown = column.filter(column.is_valid()) if column.null_count else column
    begin, end = shown.offsets[0].as_py(), shown.offsets[-1].as_py()
    keys = cast_column(shown.keys.slice(begin, end - begin), target.key_type)
    items = cast_column(shown.items.slice(begin, end - begin), target.item_type)
    offsets, owners = _lay_out(column)
    unfit = _none(column)
    unfit[owners[items.unfit]] = True
    mask = column.is_null() if column.null_count else None
    made = pa.MapArray.from_arrays(offsets, keys.column, items.column, type=target, mask=mask)
    return _void(made, items, owners, unfit)


def _lay_out(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the offsets of lists or maps without gaps, and the list that owns each item."""
    if pa.types.is_map(column.type):
        lengths = np.diff(column.offsets.to_numpy())
        lengths = np.where(_to_mask(column.is_valid()), lengths, 0)
    else:
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return offsets, np.repeat(np.arange(len(column)), lengths)


def _cast_times(column: pa.Array, target: pa.DataType) -> CastColumn:
    """Times and dates outside of the calendar, 0001 to 9999, do not fit."""
    if pa.types.is_date32(column.type):
        days = column.view(pa.int32())
        outside = pc.or_(pc.less(days, MIN_US // _DAY_US), pc.greater(days, FINAL_US // _DAY_US))
        return _keep(column, outside)
    ticks, unit = column.view(pa.int64()), column.type.unit
    if unit == "ns":
        values = pc.fill_null(ticks, 0).to_numpy(zero_copy_only=False) // 1_000
        unknown = ~_to_mask(ticks.is_valid())
        return CastColumn(pa.array(values, pa.int64(), mask=unknown).view(target), _none(column))
    per_second = _PER_SECOND[unit]
    first, last = MIN_US // 1_000_000 * per_second, (FINAL_US // 1_000_000 + 1) * per_second - 1
    kept, unfit = _keep(ticks, pc.or_(pc.less(ticks, first), pc.greater(ticks, last)))
    return CastColumn(pc.multiply(kept, 1_000_000 // per_second).view(target), unfit)


def _cast_integers(column: pa.Array, target: pa.DataType) -> CastColumn:
    low, high = _bounds(target)
    source_low, source_high = _bounds(column.type)
    outside = [
        relation(column, pa.scalar(bound, column.type))
        for relation, bound in ((pc.less, low), (pc.greater, high))
        if source_low <= bound <= source_high
    ]
    if not outside:
        return CastColumn(column.cast(target), _none(column))
    beyond = outside[0] if len(outside) == 1 else pc.or_(*outside)
    kept, unfit = _keep(column, beyond)
    return CastColumn(kept.cast(target), unfit)


def _bounds(integers: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(integers.to_pandas_dtype())
    return int(info.min), int(info.max)


def _cast_decimals(column: pa.Array, target: pa.DataType) -> CastColumn:
    """Rescale to `target`; digits beyond its scale are rounded half up, as Spark does."""
    whole = pa.decimal128(20, 0)  # Holds every 64-bit integer.
    narrow = column if pa.types.is_decimal(column.type) else column.cast(whole)
    scale = narrow.type.scale
    wide = narrow.cast(pa.decimal256(76, scale))
    if scale > target.scale:
        wide = pc.round(wide, target.scale, round_mode="half_towards_infinity")
    largest = Decimal((0, (9,) * target.precision, -target.scale))
    bound = largest.quantize(Decimal(1).scaleb(-scale), ROUND_FLOOR, Context(prec=76))
    kept, unfit = _keep(wide, pc.greater(pc.abs(wide), pa.scalar(bound, wide.type)))
    return CastColumn(kept.cast(target), unfit)
