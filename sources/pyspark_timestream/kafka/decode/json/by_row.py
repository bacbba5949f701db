"""Parses JSON values one by one: unreadable parts become null, readable parts stay."""

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.kafka.decode.fields import (
    FINE,
    SYNTAX,
    TYPE,
    DecodedBlock,
    WantedFields,
)
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
from pyspark_timestream.kafka.decode.json.types import convert_times
from pyspark_timestream.kafka.options.paths import descend

__all__ = ["parse_rows"]


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
