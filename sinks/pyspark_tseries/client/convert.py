"""Convert a program's columns, values and rows for a store without loss, or refuse them (15.6).

Arrow columns are converted and checked as a whole. Python values of one class become an Arrow
array, which is then converted in the same way.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pyspark_timestream.core.arrow import (
    MAX_WIDE_DIGITS,
    build_nested,
    find_long_decimals,
    list_lengths,
)
from pyspark_timestream.core.instants import from_datetime, timedelta_to_us
from pyspark_timestream.errors import compose_message, show_value
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery, UnusableStore
from pyspark_tseries.model.arrays import (
    Int64Array,
    find_first,
    is_any_binary,
    is_any_list,
    is_any_text,
)
from pyspark_tseries.model.columns import (
    INSTANT,
    RESERVED_NAMES,
    fits,
    is_valid_text,
    new_value_field,
    type_name,
)
from pyspark_tseries.model.ranges import RetainedRange, format_range
from pyspark_tseries.options import NO_MAX_US, author_or_user
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.rows import RowPlan, stage_rows, staged_schema

Column: TypeAlias = pa.ChunkedArray | pa.Array | Sequence[Any]
"""The values of a column as a program gives them: Arrow data, or Python objects."""


@dataclass
class _Misfit(Exception):
    """A value that a type cannot hold as it is.

    Attributes:
        have: its type.
        data_type: the type that it should fit.
        reason: what is wrong; empty if the two types say enough.
        next_step: what the program can do.
        value: a tuple with the value; empty if the type of the whole column is wrong.
        path: its place inside the column's values, such as `element.x`.
    """

    have: str
    data_type: pa.DataType
    reason: str = ""
    next_step: str = "convert it, or name another column"
    value: tuple[Any, ...] = ()
    path: str = ""


def convert_column(column: Column, field: pa.Field) -> pa.ChunkedArray:
    """Convert a column to the type of `field`; raise IncompatibleValue if that is impossible."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]

    def build(values: Any) -> pa.Array:
        return _convert_column(values, field.type, "")

    built = []
    rows_before = 0
    for chunk in chunks:
        try:
            built.append(build(chunk))
        except pa.ArrowException as error:  # Arrow has no kernel for such a type.
            have = type_name(chunk.type) if isinstance(chunk, pa.Array) else "object"
            raise _misfit_error(field, _Misfit(have, field.type, str(error)), None) from None
        except _Misfit as misfit:
            if not misfit.value:
                raise _misfit_error(field, misfit, None) from None
            row, misfit_in_row = _find_first_misfit(chunk, build, misfit)
            raise _misfit_error(field, misfit_in_row, rows_before + row) from None
        rows_before += len(chunk)
    return pa.chunked_array(built, field.type)


def convert_value(value: Any, field: pa.Field) -> pa.Array:
    """Convert one `value` to an array; raise IncompatibleValue if `field` cannot hold it."""
    try:
        return _convert_column([value], field.type, "")
    except pa.ArrowException as error:
        have = type(value).__name__
        raise _misfit_error(
            field, _Misfit(have, field.type, str(error), value=(value,)), None
        ) from None
    except _Misfit as misfit:
        raise _misfit_error(field, misfit, None) from None


def convert_name(series: str) -> pa.Array:
    """Return a column with the name of a series; raise IncompatibleValue if it is none."""
    with contextlib.suppress(UnicodeEncodeError):  # Half a character, as a surrogate.
        if isinstance(series, str):
            return pa.array([series], pa.string())
    raise IncompatibleValue(
        f"series {show_value(series)} is not the name of a series", "a text", "correct it"
    )


def _misfit_error(field: pa.Field, misfit: _Misfit, row: int | None) -> IncompatibleValue:
    name = f"column '{field.name}'" + (f", in '{misfit.path}'," if misfit.path else "")
    store_type = type_name(misfit.data_type)
    if misfit.value:
        row_name = "" if row is None else f"row {row}: "
        reason = misfit.reason or f"it is of type {misfit.have}"
        problem = f"{row_name}{name} cannot hold {show_value(misfit.value[0])}: {reason}"
    else:
        problem = f"{name} is of type {misfit.have}, in the store it is of type {store_type}"
        problem += f": {misfit.reason}" if misfit.reason else ""
    return IncompatibleValue(problem, store_type, f"{misfit.next_step}. Nothing is stored")


def _find_first_misfit(
    column: Any, build: Callable[[Any], object], last_misfit: _Misfit
) -> tuple[int, _Misfit]:
    """Find the first row that `build` refuses, and why; it refuses at least one."""

    def is_refused(first: int, end: int) -> bool:
        nonlocal last_misfit
        try:
            build(column[first:end])
        except _Misfit as misfit:
            last_misfit = misfit
            return True
        return False

    row = find_first(len(column), is_refused)
    is_refused(row, row + 1)
    return row, last_misfit


def _convert_column(column: Any, data_type: pa.DataType, path: str) -> pa.Array:
    """Convert an Arrow array, or a list of Python objects, to `data_type`."""
    is_arrow = isinstance(column, pa.Array)
    if is_arrow:
        column = _decode(column)
        if column.type == data_type:
            return column
        if types.is_null(column.type):
            return pa.nulls(len(column), data_type)
    else:
        natural = _convert_natural(column, data_type)
        if natural is not None:
            return natural
        column = [None if _is_missing(value) else value for value in column]
    if not types.is_nested(data_type):
        return (_convert_leaf if is_arrow else _convert_leaf_values)(column, data_type, path)
    columns, lengths = (_split_arrow if is_arrow else _split_values)(column, data_type, path)
    children = [
        _convert_column(child, field.type, f"{path}.{field.name}" if path else field.name)
        for child, field in zip(columns, _list_children(data_type), strict=True)
    ]
    if types.is_map(data_type) and children[0].null_count:
        have = type_name(children[0].type)
        raise _Misfit(have, data_type, "a key is null", "leave the entry out", (None,), path)
    nulls = column.is_null() if is_arrow else pa.array([value is None for value in column])
    return build_nested(data_type, children, lengths, nulls)


def _list_children(data_type: pa.DataType) -> list[pa.Field]:
    """List the columns inside a nested one, with the names for messages."""
    if types.is_list(data_type):
        return [pa.field("element", data_type.value_type)]
    if types.is_map(data_type):
        return [pa.field("key", data_type.key_type), pa.field("value", data_type.item_type)]
    return list(data_type)


_Split: TypeAlias = tuple[Sequence[Any], Int64Array | None]
"""The columns inside a nested one, and the lengths of its lists or maps; None for structs."""


def _match_fields(
    data_type: pa.DataType, names: Sequence[Any], have: str, path: str
) -> dict[str, int]:
    """Return the position in `names` of each field that it has; names match in any case."""
    names_by_key = {field.name.lower(): field.name for field in data_type}
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        field_name = names_by_key.get(str(name).lower())
        if field_name is None or field_name in positions:
            problem = "which it lacks" if field_name is None else "which it has once, in any case"
            field_names = ", ".join(f"'{field.name}'" for field in data_type)
            raise _Misfit(
                have,
                data_type,
                f"it has a field {name!r}, {problem}; its fields are {field_names}",
                "correct the name, or leave the field out",
                path=path,
            )
        positions[field_name] = position
    return positions


# -- Arrow's columns -----------------------------------------------------------------------------


def _split_arrow(array: pa.Array, data_type: pa.DataType, path: str) -> _Split:
    have = array.type
    if types.is_list(data_type) and is_any_list(have):
        return [array.flatten()], list_lengths(array)
    if types.is_map(data_type) and _is_map(have):
        if types.is_map(have):
            entry = [pa.field("key", have.key_type), pa.field("value", have.item_type)]
            array = array.cast(pa.list_(pa.struct(entry)))
        return array.flatten().flatten(), list_lengths(array)
    if types.is_struct(data_type) and types.is_struct(have):
        positions = _match_fields(data_type, [field.name for field in have], type_name(have), path)
        children = array.flatten()
        nulls = pa.nulls(len(array))
        return [
            children[positions[f.name]] if f.name in positions else nulls for f in data_type
        ], None
    raise _wrong_type(have, data_type, path)


_STORED_AS: Final[dict[str, Callable[[Any], pa.Array]]] = {
    "arrow.uuid": lambda array: array.storage,
    "arrow.json": lambda array: array.storage,
    "arrow.bool8": lambda array: pc.not_equal(array.storage, 0),
}
"""By Arrow extension that a store can hold: a function that returns the plain values."""


def _decode(array: pa.Array) -> pa.Array:
    """Return the plain values of an encoded array, or of one of Arrow's extensions."""
    while True:
        have = array.type
        if types.is_dictionary(have):
            # Arrow cannot take from string views, which the categories of Polars are.
            words = _decode_view(array.dictionary)
            array = pa.DictionaryArray.from_arrays(array.indices, words).dictionary_decode()
        elif types.is_run_end_encoded(have):
            array = pc.run_end_decode(array)
        elif isinstance(have, pa.BaseExtensionType) and have.extension_name in _STORED_AS:
            array = _STORED_AS[have.extension_name](array)
        else:
            return array


def _decode_view(array: pa.Array) -> pa.Array:
    if types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if types.is_binary_view(array.type) else array


def _is_map(data_type: pa.DataType) -> bool:
    """Return True for maps, and for lists of entries, as Polars exports maps."""
    if types.is_map(data_type):
        return True
    entries = is_any_list(data_type) and types.is_struct(data_type.value_type)
    return entries and [field.name for field in data_type.value_type] == ["key", "value"]


# -- single types --------------------------------------------------------------------------------


def _convert_leaf(array: pa.Array, data_type: pa.DataType, path: str) -> pa.Array:
    """Convert a column of a type that is not nested to `data_type`."""
    have = array.type
    if have == data_type:
        return array
    cast = _find_cast(have, data_type)
    if cast is None:
        raise _wrong_type(have, data_type, path)

    def build(values: pa.Array) -> pa.Array:
        try:
            return cast(values)
        except pa.ArrowException:
            raise _Misfit(
                type_name(have), data_type, *_explain_misfit(have, data_type), path=path
            ) from None

    try:
        return build(array)
    except _Misfit as misfit:
        row, misfit_in_row = _find_first_misfit(array, build, misfit)
        misfit_in_row.value = (_show_cell(array[row]),)
        raise misfit_in_row from None


_PLAIN_CASTS: Final = (
    (is_any_text, types.is_string),
    (is_any_binary, types.is_binary),
    (types.is_fixed_size_binary, types.is_binary),
    (types.is_integer, types.is_integer),
    (types.is_integer, types.is_floating),
    (types.is_floating, types.is_integer),
    (types.is_decimal, types.is_integer),
    (types.is_date, types.is_date),
)
"""Arrow's own cast from the first type to the second refuses a value that it would change."""


def _find_cast(have: pa.DataType, data_type: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """Return a cast to `data_type`; ArrowException tells of a value that is not equal."""
    if any(is_from(have) and is_to(data_type) for is_from, is_to in _PLAIN_CASTS):
        return lambda array: array.cast(data_type)
    if types.is_timestamp(have) and types.is_timestamp(data_type):
        is_same_kind = (have.tz is None) == (data_type.tz is None)
        return (lambda array: array.cast(data_type)) if is_same_kind else None
    if types.is_integer(have) and types.is_decimal(data_type):
        # 20 digits hold every integer of 64 bits.
        return lambda array: _cast_decimals(array.cast(pa.decimal128(20, 0)), data_type)
    if types.is_decimal(have) and types.is_decimal(data_type):
        return lambda array: _cast_decimals(array, data_type)
    if types.is_floating(have) and types.is_floating(data_type):
        if have.bit_width < data_type.bit_width:
            return lambda array: array.cast(data_type)
        return lambda array: _cast_there_and_back(array, data_type)
    if types.is_timestamp(have) and have.tz is None and types.is_date(data_type):
        return lambda array: _cast_there_and_back(array, data_type)
    return None


def _cast_decimals(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Cast decimals to `data_type`, of 128 bits; Arrow's own cast wraps one that is too long."""
    scale = array.type.scale
    wide = array.cast(pa.decimal256(MAX_WIDE_DIGITS, scale))
    if data_type.scale > scale and pc.any(find_long_decimals(wide, data_type), min_count=0).as_py():
        raise pa.ArrowInvalid("a value has too many digits")
    return wide.cast(data_type)


def _cast_there_and_back(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    converted = array.cast(data_type, safe=False)
    same = pc.equal(converted.cast(array.type, safe=False), array)
    if types.is_floating(data_type):
        # A NaN equals nothing, but no cast changes it.
        same = pc.or_(same, pc.is_nan(array))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid("a value would change")
    return converted


def _show_cell(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except Exception:  # Python has no such time, or needs pandas for its nanoseconds.
        return cell


def _wrong_type(have: pa.DataType, data_type: pa.DataType, path: str) -> _Misfit:
    misfit = _Misfit(type_name(have), data_type, path=path)
    if types.is_timestamp(have) and types.is_timestamp(data_type):
        naive = have.tz is None
        misfit.reason = (
            "it has no time zone, so it could be any moment"
            if naive
            else "it has a time zone, which the column cannot keep"
        )
        zone = "'UTC'" if naive else "None"
        misfit.next_step = (
            f"{'give it its zone' if naive else 'take the time of its zone'}: "
            f"frame[column].dt.tz_localize({zone}) in pandas, dt.replace_time_zone({zone}) in "
            f"Polars, moment.replace(tzinfo={'UTC' if naive else 'None'}) in Python"
        )
    return misfit


def _explain_misfit(have: pa.DataType, data_type: pa.DataType) -> tuple[str, str]:
    """Explain why a value of type `have` cannot be one of `data_type`, and what to do."""
    if types.is_date(data_type):
        return "it has a time of day, which a date would lose", "give the date alone"
    if types.is_timestamp(data_type):
        return (
            "it is finer than a microsecond, or out of the range of times",
            "round it, in pandas with dt.floor('us'), in Polars with dt.cast_time_unit('us')",
        )
    if types.is_floating(data_type):
        reason = f"no {type_name(data_type)} is equal to it"
        return (
            _explain_large(data_type) if types.is_integer(have) else reason,
            f"round it, for example with numpy.float{data_type.bit_width}(...)",
        )
    if types.is_decimal(data_type):
        return (
            f"it needs more digits than {data_type.precision}, or more than {data_type.scale} of "
            "them after the point",
            "round it",
        )
    if types.is_integer(data_type):
        if types.is_integer(have):
            return _explain_large(data_type), "correct it"
        return f"no {type_name(data_type)} is equal to it", "round it, or correct it"
    return "it does not fit", "convert it"


def _explain_large(data_type: pa.DataType) -> str:
    """Explain why a whole number cannot be a value of type `data_type`."""
    if types.is_floating(data_type):
        bits = 24 if data_type.bit_width == 32 else 53
        return f"beyond 2^{bits} not every whole number is a {type_name(data_type)}"
    return f"it is out of the range of {type_name(data_type)}"


# -- Python's values -----------------------------------------------------------------------------


_NATURAL: Final[dict[pa.DataType, type]] = {
    pa.int8(): int,
    pa.int16(): int,
    pa.int32(): int,
    pa.int64(): int,
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.bool_(): bool,
    pa.date32(): date,
}
"""By type, the Python class: Arrow takes its values unchanged, or refuses them."""


def _convert_natural(values: Sequence[Any], data_type: pa.DataType) -> pa.Array | None:
    """Convert values if Arrow takes all their classes for `data_type`; else return None."""
    classes = set(map(type, values)) - {type(None)}
    if classes <= {_NATURAL.get(data_type)} or (
        types.is_decimal(data_type) and classes <= {int, Decimal}
    ):
        # If Arrow refuses one, the slow way says which value is wrong, and why.
        with contextlib.suppress(pa.ArrowException, ValueError, OverflowError):
            return pa.array(values, data_type)
    return None


def _is_missing(value: object) -> bool:
    """Return True for None and the nulls of pandas and NumPy, without importing pandas."""
    if value is None:
        return True
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    value_class = type(value)
    return value_class.__name__ in ("NAType", "NaTType") and value_class.__module__.startswith(
        "pandas."
    )


def _split_values(values: list[Any], data_type: pa.DataType, path: str) -> _Split:
    if types.is_struct(data_type):
        return _split_mappings(values, data_type, path), None
    if types.is_list(data_type):
        lists = values
        need = "a list is needed"
        is_fit = _is_sequence
    else:
        lists = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
        need = "a mapping, or a list of pairs, is needed"
        is_fit = _is_pairs
    for value, items in zip(values, lists, strict=True):
        if items is not None and not is_fit(items):
            raise _wrong_class(value, data_type, need, path)
    flat = [item for items in lists if items is not None for item in items]
    lengths = np.array([0 if items is None else len(items) for items in lists], np.int64)
    if types.is_list(data_type):
        return [flat], lengths
    return [[pair[0] for pair in flat], [pair[1] for pair in flat]], lengths


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _is_pairs(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(pair, tuple | list) and len(pair) == 2 for pair in value
    )


def _split_mappings(values: list[Any], data_type: pa.DataType, path: str) -> list[list[Any]]:
    columns: dict[str, list[Any]] = {field.name: [None] * len(values) for field in data_type}
    for row, value in enumerate(values):
        if value is None:
            continue
        names = getattr(value, "_fields", getattr(value, "__fields__", None))
        mapping = (
            dict(zip(names, value, strict=True)) if isinstance(value, tuple) and names else value
        )
        if not isinstance(mapping, Mapping):
            raise _wrong_class(value, data_type, "a mapping of its fields is needed", path)
        keys = list(mapping)
        try:
            positions = _match_fields(data_type, keys, type(value).__name__, path)
        except _Misfit as misfit:
            misfit.value = (value,)
            raise
        for name, position in positions.items():
            columns[name][row] = mapping[keys[position]]
    return list(columns.values())


def _convert_leaf_values(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    """Convert values of any classes; values of one class become an array and convert together."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for row, value in enumerate(values):
        if value is not None:
            aware = isinstance(value, datetime) and value.tzinfo is not None
            unit = value.dtype if isinstance(value, np.datetime64) else None
            rows.setdefault((type(value), aware, unit), []).append(row)
    arrays = [pa.nulls(1, data_type)]
    positions = np.zeros(len(values), np.int64)
    for rows_of_class in rows.values():
        values_of_class = [values[row] for row in rows_of_class]
        try:
            array = _convert_leaf(
                _decode(_infer_array(values_of_class, data_type, path)), data_type, path
            )
        except _Misfit as misfit:
            misfit.value = misfit.value or (values_of_class[0],)
            misfit.have = type(values_of_class[0]).__name__
            raise
        positions[rows_of_class] = np.arange(len(rows_of_class)) + sum(map(len, arrays))
        arrays.append(array)
    return pa.concat_arrays(arrays).take(pa.array(positions))


def _infer_array(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    """Convert values of one class to the array that Arrow infers."""
    have = type(values[0]).__name__
    is_numpy_time = isinstance(values[0], np.datetime64)

    def build(some_values: list[Any]) -> pa.Array:
        try:
            return pa.array(_as_arrow_unit(some_values) if is_numpy_time else some_values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = ""
            if isinstance(error, OverflowError):
                reason = _explain_large(data_type)
            elif isinstance(error, UnicodeEncodeError):
                reason = "it is not a valid text, UTF-8 cannot encode it"
            raise _Misfit(have, data_type, reason, path=path) from None

    if isinstance(values[0], datetime):
        for value in values:
            if getattr(value, "nanosecond", 0):  # A Timestamp of pandas has them.
                raise _Misfit(have, data_type, *_explain_misfit(INSTANT, INSTANT), (value,), path)
        if values[0].tzinfo is not None:
            return pa.array([from_datetime(value) for value in values]).cast(INSTANT)
    try:
        return build(values)
    except _Misfit as misfit:
        row, misfit_in_row = _find_first_misfit(values, build, misfit)
        misfit_in_row.value = (values[row],)
        raise misfit_in_row from None


def _as_arrow_unit(values: list[Any]) -> np.ndarray[Any, Any]:
    """Convert NumPy times of one unit to one that Arrow has: hours and minutes to seconds.

    Arrow would take a unit such as 10 ms for 1 ms.

    Raises:
        OverflowError: a time does not fit 64 bits in that unit.
    """
    times = np.array(values)
    unit, count = np.datetime_data(times.dtype)
    if unit not in ("h", "m") and count == 1:
        return times
    converted = times.astype(f"datetime64[{'s' if unit in ('h', 'm') else unit}]")
    if not (converted.astype(times.dtype) == times).all():
        raise OverflowError
    return converted


def _wrong_class(value: object, data_type: pa.DataType, reason: str, path: str) -> _Misfit:
    have = type(value).__name__
    return _Misfit(
        have, data_type, f"it is of type {have}, and {reason}", value=(value,), path=path
    )


# -- value columns -------------------------------------------------------------------------------


def to_value_schema(schema: Any) -> pa.Schema:
    """Return the given value columns as a schema; raise IncompatibleValue for anything else."""
    try:
        if schema is None:
            raise TypeError
        return pa.schema(schema)
    except (TypeError, ValueError, pa.ArrowException) as error:
        reason = f": {error}" if str(error) else ""
        raise IncompatibleValue(
            f"{show_value(schema)} does not name value columns{reason}",
            "a pyarrow.Schema, or a mapping of names to types, {} for events without a value",
            "name the columns, such as {'celsius': pa.float64()}",
        ) from None


def new_value_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the value columns of a new store; raise IncompatibleValue for a wrong name."""
    names = [column.name.lower() for column in schema]
    for column in schema:
        name = column.name.lower()
        is_cti = name == "cti" and pa.types.is_timestamp(column.type)
        if name in (*RESERVED_NAMES, "edit_of") or is_cti:
            raise IncompatibleValue(
                f"value column '{column.name}' is named like what an event has anyway",
                "any other name",
                "rename it, or leave it out",
            )
        if names.count(name) > 1:
            raise IncompatibleValue(
                f"two value columns have the name '{column.name}'",
                "names that differ in more than case",
                "rename one of them",
            )
    return [new_value_field(column) for column in schema]


def check_stored_columns(store: Store, requested: list[pa.Field]) -> None:
    """Raise IncompatibleValue if a store lacks a requested column, or has it as a narrower type."""
    stored = {field.name.lower(): field for field in store.values}
    for field in requested:
        column = stored.get(field.name.lower())
        if column is None or not fits(field.type, column.type):
            accepted = ", ".join(f"{value.name} {type_name(value.type)}" for value in store.values)
            next_step = "add the column with add_columns"
            if column is not None and fits(column.type, field.type):
                next_step = "make it wider with widen_columns"
            raise IncompatibleValue(
                f"the store at '{store.root}' has no column '{field.name}' "
                f"({type_name(field.type)})",
                accepted or "no value columns",
                f"name its columns, {next_step}, or take another path",
            )


def check_retained(store: Store, requested: RetainedRange) -> None:
    """Raise UnusableStore if a store has another retained range."""
    if store.settings.retained != requested:
        raise UnusableStore(
            f"the store at '{store.root}' keeps '{format_range(store.settings.retained)}', not "
            f"'{format_range(requested)}'",
            "its retained range, or none",
            "leave retained_range out, or open the store and call set_retained_range",
        )


def parse_author(author: str | None) -> str:
    """Return `author`, or the OS user if it is None; raise ValueError if it is not a valid text."""
    if author is not None and not is_valid_text(author):
        raise ValueError(f"author {author!r} is not a valid text")
    return author_or_user(author)


# -- rows ----------------------------------------------------------------------------------------


KINDS_OF_ROWS: Final = (
    "a table or batches of Arrow, a frame of pandas or Polars, or a list of mappings of names to "
    "values"
)
"""The kinds of rows that a program may pass, as messages name them."""

_EDIT_OF: Final = "edit_of"
_METADATA: Final = {"series": 0, "timestamp": 1, "author": 2, _EDIT_OF: 3}
"""The columns of rows that are not values, and their positions among the staged columns."""


def stage_given_rows(rows: Any, values: list[pa.Field]) -> pa.Table:
    """Convert rows to a table with the schema `staged_schema(values)`."""
    staged = staged_schema(values)
    if isinstance(rows, list | tuple) and not rows:
        return staged.empty_table()
    columns = _columns_by_name(_read_columns(rows))
    fields = dict(zip(_METADATA, list(staged)[: len(_METADATA)], strict=True))
    fields |= {field.name: field for field in values}
    matched = _match_columns(columns, fields, values)
    if "series" not in matched:
        names = ", ".join(f"'{name}'" for name, _ in columns.values()) or "none"
        raise IncompatibleValue(
            f"the rows have no column 'series', which names the series of each; they have {names}",
            "rows with a text in 'series'",
            "add it, or rename the column that has the names",
        )
    given_columns = {
        name: convert_column(column, fields[name].with_name(own_name))
        for name, (own_name, column) in matched.items()
    }
    plan = RowPlan(
        series="series",
        series_name=None,
        timestamp="timestamp" if "timestamp" in given_columns else None,
        author="author" if "author" in given_columns else None,
        edit_of=_EDIT_OF if _EDIT_OF in given_columns else None,
        cti=None,
        values=tuple(
            (field.name if field.name in given_columns else None, field) for field in values
        ),
    )
    batches = [batch for batch in pa.table(given_columns).to_batches() if batch.num_rows]
    return pa.Table.from_batches([stage_rows(batch, plan) for batch in batches], staged)


def _columns_by_name(named_columns: list[tuple[Any, Column]]) -> dict[str, tuple[str, Column]]:
    columns: dict[str, tuple[str, Column]] = {}
    for name, column in named_columns:
        if not isinstance(name, str):
            raise IncompatibleValue(
                f"{show_value(name)} is not the name of a column", "texts", "rename the column"
            )
        same_name = columns.setdefault(name.lower(), (name, column))
        if same_name[1] is not column:
            raise IncompatibleValue(
                f"columns '{same_name[0]}' and '{name}' have one name in a store",
                "names that differ in more than case",
                "rename one of them, or leave it out",
            )
    return columns


def _match_columns(
    columns: dict[str, tuple[str, Column]], fields: dict[str, pa.Field], values: list[pa.Field]
) -> dict[str, tuple[str, Column]]:
    """Return, by column of the store, the rows' own name of it and its values."""
    names_by_key = {name.lower(): name for name in fields}
    for lower, (name, _) in columns.items():
        if lower in names_by_key:
            continue
        value_columns = (
            ", ".join(f"'{field.name}' {type_name(field.type)}" for field in values) or "none"
        )
        if lower == "cti":
            raise IncompatibleValue(
                f"column '{name}' is not in the store, and has CTIs, which only a streaming query "
                "can give",
                "rows without it",
                "drop the column",
            )
        if lower in RESERVED_NAMES:
            raise IncompatibleValue(
                f"column '{name}' is one that the store fills itself",
                f"{', '.join(_METADATA)}, and value columns: {value_columns}",
                f"drop the column; an edit names its original in '{_EDIT_OF}'",
            )
        raise IncompatibleValue(
            f"column '{name}' is not in the store",
            f"{', '.join(_METADATA)}, and value columns: {value_columns}",
            "correct the name, drop the column, or add it to the store with add_columns",
        )
    return {names_by_key[lower]: column for lower, column in columns.items()}


# -- frames, tables, lists -----------------------------------------------------------------------


def _read_columns(rows: Any) -> list[tuple[Any, Column]]:
    if isinstance(rows, pa.RecordBatchReader):
        rows = rows.read_all()
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return list(zip(rows.column_names, rows.columns, strict=True))
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        return _read_pandas(rows)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        try:
            return _read_columns(pa.table(rows))
        except pa.ArrowInvalid as error:  # It is one column, or its rows cannot be read.
            raise IncompatibleValue(
                f"{type(rows).__name__} has no rows: {error}",
                KINDS_OF_ROWS,
                "make a frame of it, such as with frame[['series', 'celsius']]",
            ) from error
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return [(name, [row.get(name) for row in rows]) for name in names]
    is_list = isinstance(rows, list | tuple)
    wrong = next((row for row in rows if not isinstance(row, Mapping)), None) if is_list else rows
    raise IncompatibleValue(
        f"{show_value(wrong)} is not a row" if is_list else f"{type(rows).__name__} has no rows",
        KINDS_OF_ROWS,
        "convert it, for example with pa.table(columns); collect() a lazy frame first",
    )


def _read_pandas(frame: Any) -> list[tuple[Any, Column]]:
    """Return the columns of a pandas frame, and the named levels of its index.

    A NaN among floats is a null, as everywhere in pandas.
    """
    index = frame.index
    levels = [index.get_level_values(n) for n in range(index.nlevels)]
    for level in levels:
        if level.name is None and level.dtype.kind not in "iu":
            raise IncompatibleValue(
                f"the frame's index ({level.dtype}) has no name, so that nobody knows what it is",
                "an index with the name of a column, or one of numbers, which is left out",
                "name it with frame.rename_axis('timestamp'), or drop it with "
                "frame.reset_index(drop=True)",
            )
    named_levels = [(level.name, level) for level in levels if level.name is not None]
    columns = [(name, frame.iloc[:, i]) for i, name in enumerate(frame.columns)]
    return [(name, _read_pandas_column(name, column)) for name, column in (*named_levels, *columns)]


def _read_pandas_column(name: Any, column: Any) -> Column:
    if column.dtype == object:
        nulls = column.isna().tolist() if hasattr(column, "isna") else []
        return [None if null else value for value, null in zip(column.tolist(), nulls, strict=True)]
    if hasattr(column.dtype, "subtype") and hasattr(column, "sparse"):
        column = column.sparse.to_dense()
    try:
        converted: Column = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise IncompatibleValue(
            f"column '{name}' is of type {column.dtype}, which Arrow cannot hold: "
            f"{str(error).splitlines()[0]}",
            "types of a store",
            "convert it",
        ) from None
    return converted


def parse_duration_argument(name: str, duration: timedelta | None) -> int | None:
    """Convert a duration to microseconds, None to None; raise ValueError if it is negative."""
    if duration is None:
        return None
    if not isinstance(duration, timedelta) or duration < timedelta(0):
        raise ValueError(
            compose_message(
                f"{name} {duration!r} is unknown",
                "a timedelta that is not negative, or None",
                "leave it out for the default",
            )
        )
    return timedelta_to_us(duration, InvalidQuery)


def parse_max_future(max_future: timedelta | None) -> int | None:
    """Return `max_future` in microseconds; None for the default."""
    us = parse_duration_argument("max_future", max_future)
    return NO_MAX_US if max_future == timedelta.max else us


def parse_values(names: Sequence[str], only: str | None, values: Any) -> list[Any]:
    """Return the value of each column in `names`; without names, it is the value of `only`."""
    columns = {name.lower(): name for name in names}
    values_by_name = {}
    if isinstance(values, Mapping):
        values_by_name = {columns.get(str(key).lower()): value for key, value in values.items()}
    is_named = (
        isinstance(values, Mapping)
        and None not in values_by_name
        and len(values_by_name) == len(values)
    )
    if only is not None and not (is_named and values):
        values_by_name = {only: values}
    elif not is_named:
        accepted = ", ".join(f"'{name}'" for name in names)
        has_rows = not isinstance(values, Mapping | str | bytes) and hasattr(values, "__len__")
        raise IncompatibleValue(
            f"{show_value(values)} does not fit the store's value columns",
            f"a mapping with keys among {accepted}, each once",
            "name the columns; append_many takes many rows" if has_rows else "name the columns",
        )
    return [values_by_name.get(name) for name in names]
