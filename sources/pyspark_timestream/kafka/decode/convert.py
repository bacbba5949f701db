"""Converts the fields of payloads to the requested columns, by one rule for all formats.

The rule is semantics 13.13: a value that does not fit its type becomes null and *bad*. A struct
with a bad field keeps its other fields. A list with a bad item that is null, or a map with a bad
key or value that is null, becomes null as a whole; an item that is a struct with a bad field stays.
Nulls stay nulls and are not bad.

Each format converts its own scalars; typed formats use `cast_scalars`. A cast changes the type of a
value and never its meaning: whole numbers become wider or narrower ones, decimals, floating point
or digits; decimals become other decimals, and texts their bytes.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import (
    MAX_WIDE_DIGITS,
    Integers,
    Mask,
    build_nested,
    find_long_decimals,
    list_lengths,
    to_mask,
)
from pyspark_timestream.core.instants import DAY_US, FINAL_US, MIN_US, SECOND_US
from pyspark_timestream.kafka.decode.records import FINE, TYPE, DecodedBlock, Reasons, to_texts

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}


class Converted(NamedTuple):
    """A column of n values in its requested type.

    A value is `bad` if it, or something inside it, did not fit its type and is null.
    """

    column: pa.Array
    bad: Mask


Convert: TypeAlias = Callable[[pa.Array], Converted]
"""Converts n values to one type."""

ConvertScalar: TypeAlias = Callable[[pa.Array, pa.DataType], Converted]
"""Converts n scalars to a type."""


def convert(array: pa.Array, target: pa.DataType, scalar: ConvertScalar) -> Converted:
    """Convert n values to `target`; `scalar` converts scalars."""
    if pa.types.is_null(array.type):
        return keep(pa.nulls(len(array), target))
    if pa.types.is_struct(target):
        if array.type.names == target.names:
            children = array.flatten()
        else:
            children = [pc.struct_field(array, name) for name in target.names]
        fields = [
            convert(child, field.type, scalar)
            for child, field in zip(children, target, strict=True)
        ]
        return build_struct(target, fields, to_mask(array.is_null()))
    if pa.types.is_list(target):
        return convert_list(array, target, lambda items: convert(items, target.value_type, scalar))
    return _convert_map(array, target, scalar) if pa.types.is_map(target) else scalar(array, target)


def convert_list(array: pa.Array, target: pa.DataType, convert_item: Convert) -> Converted:
    """Convert lists item by item."""
    items = convert_item(array.flatten())
    return build_repeated(target, [items], list_lengths(array), to_mask(array.is_null()))


def _convert_map(array: pa.Array, target: pa.DataType, scalar: ConvertScalar) -> Converted:
    # The entries of a null map may remain in the buffers.
    valid = array.filter(array.is_valid()) if array.null_count else array
    begin, end = valid.offsets[0].as_py(), valid.offsets[-1].as_py()
    keys = convert(valid.keys.slice(begin, end - begin), target.key_type, scalar)
    items = convert(valid.items.slice(begin, end - begin), target.item_type, scalar)
    absent = to_mask(array.is_null())
    lengths = np.where(absent, 0, np.diff(array.offsets.to_numpy()))
    return build_repeated(target, [keys, items], lengths, absent)


def build_struct(target: pa.DataType, fields: Sequence[Converted], absent: Mask) -> Converted:
    """Build n structs, null where `absent`; a bad field leaves the other fields as they are."""
    bad = np.zeros(len(absent), np.bool_)
    for field in fields:
        bad |= field.bad
    if not fields:
        return Converted(pa.array([None if is_absent else {} for is_absent in absent], target), bad)
    nulls = pa.array(absent) if absent.any() else None
    return Converted(build_nested(target, [field.column for field in fields], None, nulls), bad)


def build_repeated(
    target: pa.DataType, children: Sequence[Converted], lengths: Integers, absent: Mask
) -> Converted:
    """Build n lists or maps; one with a bad item, key or value that is null becomes null itself.

    `children` has the items of all lists, in order; for maps it has the keys, and the values.
    """
    bad = np.zeros(len(absent), np.bool_)
    for child in children:
        if child.bad.any():
            owners = np.repeat(np.arange(len(absent)), lengths)
            bad[owners[child.bad]] = True
            absent = absent.copy()
            absent[owners[child.bad & to_mask(child.column.is_null())]] = True
    nulls = pa.array(absent) if absent.any() else None
    columns = [child.column for child in children]
    if pa.types.is_map(target) and columns[0].null_count:
        # Arrow refuses null keys even in a map that is null.
        key_type = columns[0].type
        filler = pa.scalar("" if pa.types.is_string(key_type) else 0, key_type)
        columns[0] = pc.fill_null(columns[0], filler)
    return Converted(build_nested(target, columns, lengths, nulls), bad)


def keep(column: pa.Array, bad: Mask | None = None) -> Converted:
    """Return the column with its `bad` values set to null; None: no value is bad."""
    if bad is None:
        return Converted(column, np.zeros(len(column), np.bool_))
    if bad.any():
        column = pc.if_else(pa.array(bad), pa.scalar(None, column.type), column)
    return Converted(column, bad)


def build_decoded_block(
    columns: Sequence[Converted], raw: dict[str, list[pa.Array]], reasons: Reasons
) -> DecodedBlock:
    """Build a block of converted columns; `reasons` say why payloads are malformed already."""
    for converted in columns:
        reasons[converted.bad & (reasons == FINE)] = TYPE
    return DecodedBlock([converted.column for converted in columns], raw, reasons)


def join_converted(
    pieces: Sequence[Converted], order: Integers, data_type: pa.DataType
) -> Converted:
    """Take the values of `pieces` in `order`; -1 becomes null, and is not bad."""
    absent = order < 0
    rows = pa.array(order, mask=absent if absent.any() else None)
    column = pa.concat_arrays([*(piece.column for piece in pieces), pa.nulls(0, data_type)]).take(
        rows
    )
    bad = np.concatenate([*(piece.bad for piece in pieces), np.zeros(1, np.bool_)])[order]
    return Converted(column, bad)


def find_bad(column: pa.Array, source: pa.Array) -> Converted:
    """Return the column; a value is bad if it is null here but not in `source`."""
    if column.null_count == source.null_count:
        return keep(column)
    return Converted(column, to_mask(column.is_null()) & to_mask(source.is_valid()))


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of `source` can be cast to `target` if they fit."""
    if pa.types.is_null(source):
        return True
    if pa.types.is_struct(source):
        if not pa.types.is_struct(target):
            return False
        fields = [(source.get_field_index(child.name), child) for child in target]
        return all(
            index >= 0 and can_cast(source.field(index).type, to.type) for index, to in fields
        )
    if pa.types.is_list(source):
        return pa.types.is_list(target) and can_cast(source.value_type, target.value_type)
    if pa.types.is_map(source):
        if not pa.types.is_map(target):
            return False
        # A key may not be null, so the cast must never fail.
        texts = _is_text(source.key_type) and pa.types.is_string(target.key_type)
        same = texts or source.key_type == target.key_type
        return same and can_cast(source.item_type, target.item_type)
    return source == target or any(is_target(target) for is_target in _list_targets(source))


def _list_targets(source: pa.DataType) -> Iterable[Callable[[pa.DataType], bool]]:
    """List the kinds of types that scalars of `source` can be cast to."""
    types = pa.types
    if types.is_timestamp(source):
        return [
            lambda target: types.is_timestamp(target) and (source.tz is None) == (target.tz is None)
        ]
    if types.is_integer(source):
        return [types.is_integer, types.is_floating, types.is_decimal]
    if types.is_floating(source):
        return [lambda target: types.is_floating(target) and target.bit_width >= source.bit_width]
    if types.is_decimal(source):
        return [types.is_decimal]
    if _is_text(source):
        return [types.is_string, types.is_binary]
    return [types.is_binary] if types.is_binary(source) or types.is_large_binary(source) else []


def cast(array: pa.Array, target: pa.DataType) -> Converted:
    """Cast n values to `target`, including nested ones; see `can_cast`.

    Numbers may be wider than `can_cast` allows, since a producer may have widened them. A fraction
    does not fit a whole number, and a number beyond a float's range does not fit the float.
    """
    is_cast = pa.types.is_nested(target) and array.type == target
    # Times may lie outside of the calendar.
    if is_cast and not contains(target, pa.types.is_temporal):
        return keep(array)
    return convert(array, target, cast_scalars)


@functools.lru_cache(maxsize=1_000)
def contains(data_type: pa.DataType, is_type: Callable[[pa.DataType], object]) -> bool:
    """Return whether a type, or one inside it, is of a kind."""
    return any(map(is_type, list_types(data_type)))


def list_types(data_type: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and those inside it, outer ones first."""
    yield data_type
    for index in range(data_type.num_fields):
        yield from list_types(data_type.field(index).type)


def cast_scalars(array: pa.Array, target: pa.DataType) -> Converted:
    """Cast n scalars to `target`."""
    source = array.type
    if pa.types.is_timestamp(source) or pa.types.is_date32(source):
        return _cast_times(array, target)
    if source == target:
        return keep(array)
    if pa.types.is_floating(source) and not pa.types.is_floating(target):
        integers = _cast_whole(array)
        converted = cast_scalars(integers.column, target)
        return Converted(converted.column, converted.bad | integers.bad)
    if pa.types.is_decimal(target):
        return _cast_decimals(array, target)
    if pa.types.is_integer(target):
        fitting, bad = _limit(array, *_get_range(target))
        return Converted(fitting.cast(target), bad)
    if pa.types.is_binary(source) and pa.types.is_string(target):
        return find_bad(to_texts(array), array)
    cast = array.cast(target, safe=False)
    if pa.types.is_floating(source) and target.bit_width < source.bit_width:
        return keep(cast, to_mask(pc.and_(pc.is_inf(cast), pc.is_finite(array))))
    return keep(cast)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _cast_whole(array: pa.Array) -> Converted:
    """Cast floats to 64-bit integers; a float with a fraction, or out of range, does not fit."""
    wide = array.cast(pa.float64())
    bound = 2.0**63
    inside = pc.and_(pc.greater_equal(wide, -bound), pc.less(wide, bound))
    fitting, bad = keep(wide, to_mask(pc.invert(pc.and_(inside, pc.equal(wide, pc.floor(wide))))))
    return Converted(fitting.cast(pa.int64()), bad)


def _cast_times(array: pa.Array, target: pa.DataType) -> Converted:
    """Cast times and dates; those outside of the calendar, 0001 to 9999, do not fit."""
    if pa.types.is_date32(array.type):
        return _limit(array, MIN_US // DAY_US, FINAL_US // DAY_US, pa.int32())
    ticks, unit = array.view(pa.int64()), array.type.unit
    if unit == "ns":
        values = pc.fill_null(ticks, 0).to_numpy(zero_copy_only=False) // 1_000
        return keep(pa.array(values, pa.int64(), mask=to_mask(ticks.is_null())).view(target))
    per_second = _PER_SECOND[unit]
    low, high = MIN_US // SECOND_US * per_second, (FINAL_US // SECOND_US + 1) * per_second - 1
    fitting, bad = _limit(ticks, low, high)
    return Converted(pc.multiply(fitting, SECOND_US // per_second).view(target), bad)


def _limit(array: pa.Array, low: int, high: int, numbers: pa.DataType | None = None) -> Converted:
    """Mark values outside of `low` to `high` as bad; the range may exceed that of the type."""
    values = array if numbers is None else array.view(numbers)
    least, largest = (bound.as_py() for bound in pc.min_max(values).values())
    if least is None or (least >= low and largest <= high):
        return keep(array)
    bad = np.zeros(len(array), np.bool_)
    if low > least:
        bad |= to_mask(pc.less(values, pa.scalar(low, values.type)))
    if high < largest:
        bad |= to_mask(pc.greater(values, pa.scalar(high, values.type)))
    return keep(array, bad)


@functools.cache
def _get_range(integers: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(integers.to_pandas_dtype())
    return int(info.min), int(info.max)


def _cast_decimals(array: pa.Array, target: pa.DataType) -> Converted:
    """Rescale to `target`; round digits beyond its scale half up, as Spark does."""
    any_integer = pa.decimal128(20, 0)  # Holds every 64-bit integer.
    narrow = array if pa.types.is_decimal(array.type) else array.cast(any_integer)
    scale = narrow.type.scale
    wide = narrow.cast(pa.decimal256(MAX_WIDE_DIGITS, scale))
    if scale > target.scale:
        wide = pc.round(wide, target.scale, round_mode="half_towards_infinity")
    return limit_decimals(wide, target)


def limit_decimals(wide: pa.Array, target: pa.DataType) -> Converted:
    """Cast decimals that fit the scale of `target`; those with too many digits for it are bad."""
    fitting, bad = keep(wide, to_mask(find_long_decimals(wide, target)))
    return Converted(fitting.cast(target), bad)
