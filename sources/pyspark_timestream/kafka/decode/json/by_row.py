"""JSON values one by one: what is broken becomes null, what is readable stays."""

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.kafka.decode.json.scalars import (
    Literal,
    as_bytes,
    as_decimal,
    as_floating,
    as_integer,
    as_text,
    typed,
    whole,
)
from pyspark_timestream.kafka.decode.json.types import JsonBlock, JsonFields, finish_times

__all__ = ["parse_rows"]


Reader = Callable[[Any], tuple[Any, bool]]
"""What is readable of a value that is not null, and whether that is all; it may raise."""

_BAD: Final = (ValueError, OverflowError, RecursionError, pa.ArrowException)

_DECODER: Final = json.JSONDecoder(parse_float=Literal, parse_int=whole)


def parse_rows(fields: JsonFields, values: list[bytes | None]) -> JsonBlock:
    """The values one by one: what is broken becomes null, what is readable stays."""
    columns: list[list[Any]] = [[] for _ in fields.columns]
    raw: dict[str, list[Any]] = {name: [] for name in fields.raw}
    malformed = np.zeros(len(values), dtype=np.bool_)
    readers = [
        (column, field.name, _tolerant(_reader(field.type)))
        for column, field in zip(columns, fields.columns, strict=True)
    ]
    for row, text in enumerate(values):
        parsed, is_bad = _load(text)
        for column, name, read in readers:
            converted, fits = read(parsed.get(name))
            column.append(converted)
            is_bad |= not fits
        for name, found in raw.items():
            found.append(_raw(parsed.get(name)))
        if is_bad:
            malformed[row] = True
    typed_columns = zip(columns, fields.columns, strict=True)
    pieces = {name: _by_type(found) for name, found in raw.items()}
    return JsonBlock(
        [pa.array(column, field.type) for column, field in typed_columns], pieces, malformed
    )


def _load(text: bytes | None) -> tuple[dict[str, Any], bool]:
    """The object that `text` is, and whether it is malformed; a null is an object of nulls."""
    try:
        value = {} if text is None else _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return {}, True
    return (value, False) if isinstance(value, dict) else ({}, True)


def _raw(value: Any) -> str | int | float | None:
    """A raw field of one row; what is neither text nor number that Arrow holds is no time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value if value.isascii() or _encodes(value) else None
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else None
    return float(value) if isinstance(value, float) else None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _by_type(values: list[Any]) -> list[pa.Array]:
    return [pa.array(list(run)) for _, run in itertools.groupby(values, type)]


def _tolerant(read: Reader) -> Reader:
    """`read`, for nulls too, with nothing where it would raise."""

    def field(value: Any) -> tuple[Any, bool]:
        if value is None:
            return None, True
        try:
            return read(value)
        except _BAD:
            return None, False

    return field


def _nullable(read: Reader) -> Reader:
    return lambda value: (None, True) if value is None else read(value)


def _reader(target: pa.DataType) -> Reader:
    """Reads a value as `target`.

    A struct keeps its other fields, a list or map with an item that is nothing is nothing.
    """
    if pa.types.is_struct(target):
        inner = [target.field(i) for i in range(target.num_fields)]
        return _struct_reader({field.name: _tolerant(_reader(field.type)) for field in inner})
    if pa.types.is_list(target):
        return _list_reader(_nullable(_reader(target.value_type)))
    if pa.types.is_map(target):
        return _map_reader(_nullable(_reader(target.item_type)))
    scalar = _scalar_reader(target)
    return lambda value: (scalar(value), True)


def _struct_reader(readers: dict[str, Reader]) -> Reader:
    def read(value: Any) -> tuple[Any, bool]:
        given = typed(value, dict)
        parts = {name: field(given.get(name)) for name, field in readers.items()}
        return {name: part for name, (part, _) in parts.items()}, _all_fit(parts.values())

    return read


def _list_reader(item: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, bool]:
        items = [item(each) for each in typed(value, list)]
        return [each for each, _ in items], _all_fit(items)

    return read


def _map_reader(item: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, bool]:
        entries = [(as_text(key), *item(each)) for key, each in typed(value, dict).items()]
        return [(key, each) for key, each, _ in entries], all(fits for _, _, fits in entries)

    return read


def _all_fit(parts: Any) -> bool:
    return all(fits for _, fits in parts)


def _scalar_reader(target: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_string(target):
        return as_text
    if pa.types.is_binary(target):
        return as_bytes
    if pa.types.is_boolean(target):
        return lambda value: typed(value, bool)
    if pa.types.is_decimal(target):
        return lambda value: as_decimal(value, target)
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        return lambda value: _time(value, target)
    if pa.types.is_integer(target):
        return as_integer(target)
    return lambda value: as_floating(value, target)


def _time(value: Any, target: pa.DataType) -> Any:
    column, bad = finish_times(pa.array([typed(value, (str, int))]), target)
    if bad[0]:
        raise ValueError(f"{value!r} is no {target}")
    return column[0].as_py()
