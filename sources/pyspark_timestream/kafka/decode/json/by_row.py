"""Types of JSON fields, and JSON values parsed one by one."""

import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.event_time import Times, read_number_times, read_text_times
from pyspark_timestream.core.instants import Mask
from pyspark_timestream.kafka.decode.json.scalars import (
    ExactFloat,
    check_type,
    integer_reader,
    parse_integer,
    to_bytes,
    to_decimal,
    to_float,
    to_text,
)
from pyspark_timestream.kafka.decode.records import (
    FINE,
    SYNTAX,
    TYPE,
    ConvertedColumn,
    DecodedBlock,
    WantedFields,
)
from pyspark_timestream.kafka.options.parsers import descend

_ZONED_TIME: Final = r"[T t][0-9:.,]+\s*([Zz]|[+-][0-9:]+)\s*$"
"""The end of a text with a time of day and a zone."""


def find_unsupported_type(data_type: pa.DataType) -> pa.DataType | None:
    """Find a type inside `data_type` that JSON cannot be read as; None if there is none."""
    if pa.types.is_struct(data_type):
        inner = [data_type.field(i).type for i in range(data_type.num_fields)]
        return next((bad for bad in map(find_unsupported_type, inner) if bad), None)
    if pa.types.is_list(data_type):
        return find_unsupported_type(data_type.value_type)
    if pa.types.is_map(data_type):
        keyed = pa.types.is_string(data_type.key_type)
        return find_unsupported_type(data_type.item_type) if keyed else data_type
    fits = (
        pa.types.is_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_float32(data_type)
        or pa.types.is_float64(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_decimal128(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
    )
    return None if fits else data_type


def has_map(data_type: pa.DataType) -> bool:
    """Check for a map inside `data_type`, which Arrow's parser cannot read."""
    if pa.types.is_struct(data_type):
        return any(has_map(data_type.field(i).type) for i in range(data_type.num_fields))
    if pa.types.is_list(data_type):
        return has_map(data_type.value_type)
    return bool(pa.types.is_map(data_type))


def wire_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that Arrow parses: times and bytes are strings, and converted later."""
    if (
        pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
        or pa.types.is_binary(data_type)
    ):
        return pa.string()
    if pa.types.is_struct(data_type):
        inner = [data_type.field(i) for i in range(data_type.num_fields)]
        return pa.struct([(field.name, wire_type(field.type)) for field in inner])
    if pa.types.is_list(data_type):
        return pa.list_(wire_type(data_type.value_type))
    return data_type


def convert_column(wire: pa.Array, target: pa.DataType) -> ConvertedColumn:
    """Convert the parsed column `wire` to type `target`."""
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        column, bad = convert_times(wire, target)
        return ConvertedColumn(column, bad, bad)
    if pa.types.is_struct(target):
        return _convert_struct(wire, target)
    if pa.types.is_list(target):
        return _convert_list(wire, target)
    if pa.types.is_decimal(target):
        return _convert_decimal(wire, target)
    if pa.types.is_binary(target):
        return _convert_bytes(wire)
    fine = np.zeros(len(wire), dtype=np.bool_)
    return ConvertedColumn(wire if wire.type == target else wire.cast(target), fine, fine)


def _convert_struct(wire: pa.Array, target: pa.DataType) -> ConvertedColumn:
    inner = [target.field(i) for i in range(target.num_fields)]
    parts = [
        convert_column(child, field.type)
        for child, field in zip(wire.flatten(), inner, strict=True)
    ]
    partial = np.zeros(len(wire), dtype=np.bool_)
    for part in parts:
        partial |= part.partial
    children = [part.column for part in parts]
    column = pa.StructArray.from_arrays(children, fields=inner, mask=wire.is_null())
    return ConvertedColumn(column, partial, np.zeros(len(wire), dtype=np.bool_))


def _convert_list(wire: pa.Array, target: pa.DataType) -> ConvertedColumn:
    items = convert_column(wire.flatten(), target.value_type)
    lengths = pc.fill_null(pc.list_value_length(wire), 0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(wire)), lengths)
    partial, void = (np.zeros(len(wire), dtype=np.bool_) for _ in range(2))
    partial[rows[items.partial]] = True
    void[rows[items.void]] = True
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    absent = pc.or_(wire.is_null(), pa.array(void))
    column = pa.ListArray.from_arrays(offsets, items.column, type=target, mask=absent)
    return ConvertedColumn(column, partial, void)


def _convert_decimal(wire: pa.Array, target: pa.DataType) -> ConvertedColumn:
    """Check the digits before the point: Arrow's parser checks only those after it."""
    nines = (9,) * target.precision
    smallest, largest = (
        pa.scalar(Decimal((sign, nines, -target.scale)), target) for sign in (1, 0)
    )
    fits = pc.and_(pc.less_equal(wire, largest), pc.greater_equal(wire, smallest))
    fits = pc.fill_null(fits, True)
    bad = ~np.array(fits.to_numpy(zero_copy_only=False))
    return ConvertedColumn(pc.if_else(fits, wire, None), bad, bad)


def _convert_bytes(wire: pa.Array) -> ConvertedColumn:
    bad = np.zeros(len(wire), dtype=np.bool_)
    read: list[bytes | None] = []
    for row, text in enumerate(wire.to_pylist()):
        try:
            read.append(None if text is None else to_bytes(text))
        except ValueError:
            read.append(None)
            bad[row] = True
    return ConvertedColumn(pa.array(read, pa.binary()), bad, bad)


def convert_times(wire: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Convert texts to timestamps or dates, or seconds to timestamps; return also the failures."""
    if pa.types.is_date32(target):
        # As in Spark, anything after the day is ignored.
        trimmed = pc.utf8_trim_whitespace(wire)
        dated = pc.match_substring_regex(trimmed, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]|$)")
        suffix = pc.if_else(dated, "T00:00:00Z", None)
        texts_of_day = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(trimmed, 0, 10), suffix, ""
        )
        instants, readable = read_text_times(texts_of_day, None)
        column = pa.array(instants // 86_400_000_000, pa.int32(), mask=~readable).cast(target)
    else:
        instants, readable = _read_timestamps(wire, zoned=target.tz is not None)
        column = pa.array(instants, pa.int64(), mask=~readable).cast(target)
    present = np.array(wire.is_valid().to_numpy(zero_copy_only=False))
    return column, present & ~readable


def _read_timestamps(wire: pa.Array, *, zoned: bool) -> Times:
    """Read times as Spark does: without `zoned`, numbers and texts with a zone are unreadable."""
    if pa.types.is_integer(wire.type):
        instants, readable = read_number_times(wire, "s")
        return instants, readable & zoned
    instants, readable = read_text_times(wire, None)
    if not zoned:
        with_zone = pc.fill_null(pc.match_substring_regex(wire, _ZONED_TIME), False)
        readable &= ~np.array(with_zone.to_numpy(zero_copy_only=False))
    return instants, readable


Reader = Callable[[Any], tuple[Any, bool]]
"""Converts a non-null value; returns the readable part and whether that is all. May raise."""

_CONVERSION_ERRORS: Final = (ValueError, OverflowError, RecursionError, pa.ArrowException)

_DECODER: Final = json.JSONDecoder(parse_float=ExactFloat, parse_int=parse_integer)


def parse_rows(fields: WantedFields, values: list[bytes | None]) -> DecodedBlock:
    """Parse values one by one: unreadable parts become null, readable parts stay."""
    columns: list[list[Any]] = [[] for _ in fields.columns]
    raw: dict[str, list[Any]] = {name: [] for name in fields.raw}
    reasons = np.zeros(len(values), dtype=np.uint8)
    readers = [
        (column, path[0], path[1:], _null_on_error(_reader(field.type)))
        for column, path, field in zip(columns, fields.column_paths(), fields.columns, strict=True)
    ]
    raw_readers = [(raw[text], path[0], path[1:]) for text, path in fields.raw_paths().items()]
    for row, text in enumerate(values):
        parsed, reason = _load(text)
        for column, name, below, read in readers:
            value, blocked = parsed.get(name), False
            if below:
                value, _, blocked = descend(value, below)
            converted, fits = read(value)
            column.append(converted)
            reason = reason or (FINE if fits and not blocked else TYPE)
        for found, name, below in raw_readers:
            value = parsed.get(name)
            found.append(_to_raw(descend(value, below).value if below else value))
        if reason:
            reasons[row] = reason
    typed_columns = zip(columns, fields.columns, strict=True)
    pieces = {name: _group_by_type(found) for name, found in raw.items()}
    return DecodedBlock(
        [pa.array(column, field.type) for column, field in typed_columns], pieces, reasons
    )


def _load(text: bytes | None) -> tuple[dict[str, Any], int]:
    """Parse `text` as an object, and return why it is malformed; a null is an empty object."""
    try:
        value = {} if text is None else _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return {}, SYNTAX
    return (value, FINE) if isinstance(value, dict) else ({}, SYNTAX)


def _to_raw(value: Any) -> str | int | float | None:
    """Return a raw field if Arrow can hold it as text or number, else None."""
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


def _null_on_error(read: Reader) -> Reader:
    """Wrap `read`: a null stays null, and a value for which it raises becomes null."""

    def field(value: Any) -> tuple[Any, bool]:
        if value is None:
            return None, True
        try:
            return read(value)
        except _CONVERSION_ERRORS:
            return None, False

    return field


def _pass_null(read: Reader) -> Reader:
    return lambda value: (None, True) if value is None else read(value)


def _reader(target: pa.DataType) -> Reader:
    """Choose the reader of `target`.

    A struct keeps its readable fields. A list or map with an unreadable item is unreadable.
    """
    if pa.types.is_struct(target):
        inner = [target.field(i) for i in range(target.num_fields)]
        return _struct_reader({field.name: _null_on_error(_reader(field.type)) for field in inner})
    if pa.types.is_list(target):
        return _list_reader(_pass_null(_reader(target.value_type)))
    if pa.types.is_map(target):
        return _map_reader(_pass_null(_reader(target.item_type)))
    scalar = _scalar_reader(target)
    return lambda value: (scalar(value), True)


def _struct_reader(readers: dict[str, Reader]) -> Reader:
    def read(value: Any) -> tuple[Any, bool]:
        given = check_type(value, dict)
        parts = {name: field(given.get(name)) for name, field in readers.items()}
        return {name: part for name, (part, _) in parts.items()}, _all_fit(parts.values())

    return read


def _list_reader(item: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, bool]:
        items = [item(each) for each in check_type(value, list)]
        return [each for each, _ in items], _all_fit(items)

    return read


def _map_reader(item: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, bool]:
        entries = [(to_text(key), *item(each)) for key, each in check_type(value, dict).items()]
        return [(key, each) for key, each, _ in entries], all(fits for _, _, fits in entries)

    return read


def _all_fit(parts: Any) -> bool:
    return all(fits for _, fits in parts)


def _scalar_reader(target: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_string(target):
        return to_text
    if pa.types.is_binary(target):
        return to_bytes
    if pa.types.is_boolean(target):
        return lambda value: check_type(value, bool)
    if pa.types.is_decimal(target):
        return lambda value: to_decimal(value, target)
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        return lambda value: _to_time(value, target)
    if pa.types.is_integer(target):
        return integer_reader(target)
    return lambda value: to_float(value, target)


def _to_time(value: Any, target: pa.DataType) -> Any:
    column, bad = convert_times(pa.array([check_type(value, (str, int))]), target)
    if bad[0]:
        raise ValueError(f"{value!r} is not of type {target}")
    return column[0].as_py()
