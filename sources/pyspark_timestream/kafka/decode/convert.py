"""Converts typed columns of payloads to the columns that are wanted.

A cast changes the type of a value and never its meaning: whole numbers to wider or narrower ones,
to decimals and to floating point, decimals to other decimals, texts to their bytes. A value that
does not fit the wanted type becomes null, and the payload is malformed for its type. The other
fields of its struct stay; a list or map with such an item is null as a whole (semantics 13.13).

A value that its column cannot hold is null and marked as failed; nulls stay nulls.

As in JSON, a struct keeps its readable fields, and a list or map with an unreadable item is
unreadable.
"""

from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import FINAL_US, MIN_US, Mask
from pyspark_timestream.kafka.decode.records import ConvertedColumn, to_texts

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


INSTANT: Final = pa.timestamp("us", tz="UTC")

_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799
"""The seconds of 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z, Protobuf's first and last."""

_MAX_DURATION_S: Final = 315_576_000_000
_NANOS: Final = 1_000_000_000
_MAX_SCALE: Final = 18
_INTEGER_DIGITS: Final = 20
"""Digits of the largest integer of 64 bits."""


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Check whether values of `source` can be cast to `target`, if they are in its range."""
    if source == target:
        return True
    if pa.types.is_integer(source):
        return bool(
            pa.types.is_integer(target)
            or pa.types.is_float32(target)
            or pa.types.is_float64(target)
            or pa.types.is_string(target)
            or (pa.types.is_decimal128(target) and 0 <= target.scale <= _MAX_SCALE)
        )
    if pa.types.is_floating(source):
        return bool(pa.types.is_float32(target) or pa.types.is_float64(target))
    return bool(pa.types.is_binary(source) and pa.types.is_string(target))


def cast_protobuf_column(column: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast `column` to `target`, for which `fits` holds; return also the failures."""
    if column.type == target:
        return column, np.zeros(len(column), dtype=np.bool_)
    if pa.types.is_string(target) and pa.types.is_binary(column.type):
        cast = to_texts(column)
    elif pa.types.is_string(target):
        cast = column.cast(target)
    elif pa.types.is_decimal(target):
        bound = 10 ** (target.precision - target.scale)
        exact = _limit(column, -bound + 1, bound - 1)
        wide = pa.decimal128(_INTEGER_DIGITS + target.scale, target.scale)
        cast = exact.cast(wide).cast(target)
    elif pa.types.is_integer(target):
        bounds = np.iinfo(target.to_pandas_dtype())
        cast = _limit(column, int(bounds.min), int(bounds.max)).cast(target)
    else:
        cast = column.cast(target, safe=False)
        if pa.types.is_floating(column.type):
            lost = pc.and_(pc.is_inf(cast), pc.is_finite(column))
            cast = pc.if_else(lost, None, cast)
    return cast, to_mask(column.is_valid()) & to_mask(cast.is_null())


def _limit(column: pa.Array, least: int, most: int) -> pa.Array:
    """Make integers outside of `least` to `most` null."""
    bounds = np.iinfo(column.type.to_pandas_dtype())
    for outside, bound, inside in (
        (pc.less, least, int(bounds.min) >= least),
        (pc.greater, most, int(bounds.max) <= most),
    ):
        if not inside:
            column = pc.if_else(outside(column, pa.scalar(bound, column.type)), None, column)
    return column


def cast_timestamps(messages: pa.Array) -> tuple[pa.Array, Mask]:
    """Read messages of seconds and nanos as timestamps, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, "seconds", "nanos")
    legal = (seconds >= _MIN_SECONDS) & (seconds <= _MAX_SECONDS) & (nanos >= 0) & (nanos < _NANOS)
    us = np.where(legal, seconds, 0) * 1_000_000 + nanos // 1_000
    return _finish(us, INSTANT, messages, legal)


def cast_durations(messages: pa.Array) -> tuple[pa.Array, Mask]:
    """Read messages of seconds and nanos as durations, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, "seconds", "nanos")
    legal = (np.abs(nanos) < _NANOS) & (seconds >= -_MAX_DURATION_S) & (seconds <= _MAX_DURATION_S)
    legal &= np.sign(seconds) * np.sign(nanos) >= 0
    us = np.where(legal, seconds, 0) * 1_000_000 + nanos // 1_000
    return _finish(us, pa.duration("us"), messages, legal)


def cast_dates(messages: pa.Array) -> tuple[pa.Array, Mask]:
    """Read messages of year, month and day as dates."""
    year, month, day = _read_integers(messages, "year", "month", "day")
    legal = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = np.where(legal, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first, after = (each.astype("datetime64[D]").astype(np.int64) for each in (months, months + 1))
    days = first + np.where(legal, day, 1) - 1
    return _finish(days.astype(np.int32), pa.date32(), messages, legal & (days < after))


def cast_enums(numbers: pa.Array, names: dict[int, str]) -> pa.Array:
    """Name the numbers of an enum; one without a name stays as digits, as in Protobuf's JSON."""
    encoded = numbers.dictionary_encode()
    texts = [names.get(number, str(number)) for number in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _read_integers(messages: pa.Array, *names: str) -> list[npt.NDArray[np.int64]]:
    """Read the integer fields `names`; 0 where the message is absent."""
    arrays = [pc.fill_null(pc.struct_field(messages, name), 0) for name in names]
    return [array.to_numpy(zero_copy_only=False).astype(np.int64) for array in arrays]


def _finish(
    values: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    target: pa.DataType,
    messages: pa.Array,
    legal: Mask,
) -> tuple[pa.Array, Mask]:
    present = to_mask(messages.is_valid())
    storage = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.array(values, storage, mask=~(present & legal)).cast(target), present & ~legal


def to_mask(booleans: pa.Array) -> Mask:
    """Convert booleans without nulls."""
    return np.array(booleans.to_numpy(zero_copy_only=False), dtype=np.bool_)


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
