"""Parses JSON values one by one, and converts them as Spark's `from_json` does.

Python's parser reads the values; then each requested field becomes a column.
"""

import base64
import itertools
import json
import re
from collections.abc import Callable, Sequence, Sized
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import Integers, Mask, to_mask
from pyspark_timestream.core.instants import DAY_US, Times, read_number_times, read_text_times
from pyspark_timestream.kafka.decode.convert import (
    Converted,
    build_decoded_block,
    build_repeated,
    build_struct,
    find_bad,
    keep,
)
from pyspark_timestream.kafka.decode.records import FINE, SYNTAX, DecodedBlock, RequestedFields
from pyspark_timestream.kafka.options.parsers import Path, descend

_CONVERSION_ERRORS: Final = (ValueError, OverflowError, RecursionError, pa.ArrowException)

_ZONED_TIME: Final = r"[T t][0-9:.,]+\s*([Zz]|[+-][0-9:]+)\s*$"
"""Matches the end of a text with a time of day and a zone."""

_BLANKS: Final = "".join(map(chr, range(33)))
"""Characters that may surround base64."""

_DECIMAL_PATTERN: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_DECIMAL_CONTEXT: Final = Context(prec=40)
"""Decimal columns have at most 38 digits."""

_INFINITY: Final = float("inf")
_NOT_FINITE: Final = {
    "NaN": float("nan"),
    "Infinity": _INFINITY,
    "+Infinity": _INFINITY,
    "+INF": _INFINITY,
    "-Infinity": -_INFINITY,
    "-INF": -_INFINITY,
}
"""The texts that a floating-point column accepts."""


class _ExactFloat(float):
    """A float that keeps its digits for decimal columns."""

    __slots__ = ("digits",)

    def __init__(self, digits: str) -> None:
        self.digits = digits


class _MinusZero(int):
    """The integer -0, which becomes -0.0 in a floating-point column, as in Arrow."""


_MINUS_ZERO: Final = _MinusZero()


_DECODER: Final = json.JSONDecoder(
    parse_float=_ExactFloat,
    # Raises a ValueError if there are too many digits.
    parse_int=lambda digits: _MINUS_ZERO if digits == "-0" else int(digits),
)


def parse_rows(fields: RequestedFields, values: list[bytes | None]) -> DecodedBlock:
    """Parse n values one by one."""
    loaded = [_load_object(value) for value in values]
    objects = [value for value, _ in loaded]
    reasons = np.array([reason for _, reason in loaded], np.uint8)
    columns = []
    for path, field in zip(fields.column_paths(), fields.columns, strict=True):
        field_values, blocked = _take_field(objects, path)
        column, bad = _convert_values(field_values, field.type)
        columns.append(Converted(column, bad | blocked))
    raw = {
        text: _group_by_type([_to_raw(value) for value in _take_field(objects, path)[0]])
        for text, path in fields.raw_paths().items()
    }
    return build_decoded_block(columns, raw, reasons)


def _take_field(objects: list[dict[str, Any]], path: Path) -> tuple[list[Any], Mask]:
    """Take the field at `path` of n objects; return also where a non-object is in its way."""
    if len(path) == 1:
        (name,) = path
        return [item.get(name) for item in objects], np.zeros(len(objects), np.bool_)
    lookups = [descend(item, path) for item in objects]
    return [item.value for item in lookups], np.array([item.blocked for item in lookups], np.bool_)


def _load_object(text: bytes | None) -> tuple[dict[str, Any], int]:
    """Parse `text` as an object; return also why it is malformed. A null is an empty object."""
    try:
        value = {} if text is None else _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return {}, SYNTAX
    return (value, FINE) if isinstance(value, dict) else ({}, SYNTAX)


def _to_raw(value: Any) -> str | int | float | None:
    """Return a value that Arrow can hold as text or number, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value if value.isascii() or _is_encodable(value) else None
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else None
    return float(value) if isinstance(value, float) else None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _group_by_type(values: list[Any]) -> list[pa.Array]:
    return [pa.array(list(run)) for _, run in itertools.groupby(values, type)]


def _convert_values(values: list[Any], target: pa.DataType) -> Converted:
    """Convert n parsed values to `target`; a value is bad if the conversion makes it null."""
    if pa.types.is_struct(target):
        converted = _convert_objects(values, target)
    elif pa.types.is_list(target):
        converted = _convert_lists(values, target)
    elif pa.types.is_map(target):
        converted = _convert_maps(values, target)
    elif pa.types.is_timestamp(target) or pa.types.is_date32(target):
        converted = keep(_convert_times(values, target))
    else:
        read_scalar = _choose_scalar(target)
        converted = keep(pa.array([null_on_error(read_scalar, value) for value in values], target))
    if not converted.column.null_count:
        return converted
    was_given = np.array([value is not None for value in values], np.bool_)
    lost = to_mask(converted.column.is_null()) & was_given
    return Converted(converted.column, converted.bad | lost)


def _convert_objects(values: list[Any], target: pa.DataType) -> Converted:
    objects = [value if isinstance(value, dict) else None for value in values]
    fields = [
        _convert_values(
            [None if object_ is None else object_.get(field.name) for object_ in objects],
            field.type,
        )
        for field in target
    ]
    return build_struct(
        target, fields, np.array([object_ is None for object_ in objects], np.bool_)
    )


def _convert_lists(values: list[Any], target: pa.DataType) -> Converted:
    lists: list[list[Any] | None] = [value if isinstance(value, list) else None for value in values]
    items = _convert_values([item for list_ in lists for item in list_ or ()], target.value_type)
    return build_repeated(target, [items], *_measure_items(lists))


def _convert_maps(values: list[Any], target: pa.DataType) -> Converted:
    maps: list[dict[str, Any] | None] = [
        value if isinstance(value, dict) else None for value in values
    ]
    keys = _convert_values([key for map_ in maps for key in map_ or ()], target.key_type)
    items = _convert_values([v for map_ in maps for v in (map_ or {}).values()], target.item_type)
    return build_repeated(target, [keys, items], *_measure_items(maps))


def _measure_items(values: Sequence[Sized | None]) -> tuple[Integers, Mask]:
    """Return each value's number of items, and a mask of the null values."""
    lengths = np.array([len(value or ()) for value in values], np.int64)
    return lengths, np.array([item is None for item in values], np.bool_)


def _convert_times(values: list[Any], target: pa.DataType) -> pa.Array:
    raw = list(map(_to_raw, values))
    texts = pa.array([value if isinstance(value, str) else None for value in raw], pa.string())
    column = read_times(texts, target).column
    if pa.types.is_date32(target):
        return column
    numbers = pa.array([value if isinstance(value, int) else None for value in raw], pa.int64())
    return pc.coalesce(column, read_times(numbers, target).column)


def read_times(wire: pa.Array, target: pa.DataType) -> Converted:
    """Read texts as timestamps or dates, or seconds as timestamps."""
    if pa.types.is_date32(target):
        # As in Spark, anything after the day is ignored.
        trimmed = pc.utf8_trim_whitespace(wire)
        dated = pc.match_substring_regex(trimmed, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]|$)")
        suffix = pc.if_else(dated, "T00:00:00Z", None)
        texts_of_day = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(trimmed, 0, 10), suffix, ""
        )
        instants, readable = read_text_times(texts_of_day, None)
        column = pa.array(instants // DAY_US, pa.int32(), mask=~readable).cast(target)
    else:
        instants, readable = _read_timestamps(wire, zoned=target.tz is not None)
        column = pa.array(instants, pa.int64(), mask=~readable).cast(target)
    return find_bad(column, wire)


def _read_timestamps(wire: pa.Array, *, zoned: bool) -> Times:
    """Read times as Spark does: without `zoned`, numbers and texts with a zone are unreadable."""
    if pa.types.is_integer(wire.type):
        instants, readable = read_number_times(wire, "s")
        return instants, readable & zoned
    instants, readable = read_text_times(wire, None)
    if not zoned:
        readable &= ~to_mask(pc.match_substring_regex(wire, _ZONED_TIME))
    return instants, readable


ScalarConverter: TypeAlias = Callable[[Any], Any]
"""Converts a parsed value that is not null; raises ValueError if it does not fit the type."""


def null_on_error(read_value: ScalarConverter, value: Any) -> Any:
    """Convert `value`; return None if that fails."""
    if value is None:
        return None
    try:
        return read_value(value)
    except _CONVERSION_ERRORS:
        return None


def _choose_scalar(target: pa.DataType) -> ScalarConverter:
    if pa.types.is_string(target):
        return _to_text
    if pa.types.is_binary(target):
        return to_bytes
    if pa.types.is_boolean(target):
        return lambda value: _check_type(value, bool)
    if pa.types.is_decimal(target):
        return lambda value: _to_decimal(value, target)
    if pa.types.is_integer(target):
        return _integer_reader(target)
    return lambda value: _to_float(value, target)


def _check_type(value: Any, kind: type | tuple[type, ...]) -> Any:
    """Return `value` if its Python type is `kind`, where a bool is not a number."""
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ValueError(f"{value!r} is not of type {kind}")
    return value


def _to_text(value: Any) -> str:
    """Return a text unchanged, anything else as compact JSON with doubles as Java prints them."""
    text = value if isinstance(value, str) else _to_compact_json(value)
    text.encode()
    return text


def _integer_reader(target: pa.DataType) -> ScalarConverter:
    bound = 1 << (target.bit_width - 1)

    def read(value: Any) -> int:
        number = int(_check_type(value, int))
        if not -bound <= number < bound:
            raise ValueError(f"{number} does not fit {target}")
        return number

    return read


def _to_float(value: Any, target: pa.DataType) -> float:
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError(f"{value!r} is not a number")
        return _NOT_FINITE[value]
    number = -0.0 if value is _MINUS_ZERO else _check_type(value, (int, float))
    if pa.types.is_float32(target):
        # Round once, from the digits: via a double it would be rounded twice.
        text = getattr(number, "digits", None) or str(number)
        return float(pa.scalar(text).cast(target).as_py())
    try:
        return float(number)
    except OverflowError:
        return _INFINITY if number > 0 else -_INFINITY  # As Arrow and Spark read it.


def _to_decimal(value: Any, target: pa.DataType) -> Decimal:
    """Convert a number or the text of one; round half up."""
    digits = str(_check_type(getattr(value, "digits", value), (str, int))).replace(",", "")
    if _DECIMAL_PATTERN.fullmatch(digits) is None:
        raise ValueError(f"{value!r} is not a decimal")
    number = Decimal(digits)
    before_point = target.precision - target.scale
    if number and number.adjusted() >= before_point:
        raise ValueError(f"{value!r} has too many digits for {target}")
    rounded = number.quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP, _DECIMAL_CONTEXT)
    if rounded and rounded.adjusted() >= before_point:
        raise ValueError(f"{value!r} has too many digits for {target}")
    return rounded


def to_bytes(value: Any) -> bytes:
    """Decode a base64 text; raise ValueError if it is none."""
    return base64.b64decode(_check_type(value, str).strip(_BLANKS), validate=True)


def _to_compact_json(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_format_json(name)}:{_to_compact_json(inner)}" for name, inner in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_to_compact_json, value)) + "]"
    if isinstance(value, float):
        return _format_double(float(value))
    return _format_json(value)


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _format_double(value: float) -> str:
    """Format like Java's `Double.toString`: plain from 0.001 to 10,000,000, else like 1.0E40."""
    if not np.isfinite(value):
        return {"inf": '"Infinity"', "-inf": '"-Infinity"'}.get(str(value), '"NaN"')
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(np.format_float_positional(value, trim="0"))
    digits, _, exponent = np.format_float_scientific(value, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"
