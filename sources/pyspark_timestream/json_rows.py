"""JSON values one by one: what is broken becomes null, what is readable stays."""

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_timestream.json_scalars import (
    Literal,
    as_bytes,
    as_decimal,
    as_number,
    as_text,
    typed,
    whole,
)
from pyspark_timestream.json_types import JsonBlock, JsonFields, finish_times

__all__ = ["parse_rows"]


def parse_rows(fields: JsonFields, values: list[bytes | None]) -> JsonBlock:
    """The values one by one: what is broken becomes null, what is readable stays."""
    columns: list[list[Any]] = [[] for _ in fields.columns]
    raw: dict[str, list[Any]] = {name: [] for name in fields.raw}
    malformed = np.zeros(len(values), dtype=np.bool_)
    for row, text in enumerate(values):
        parsed, malformed[row] = _load(text)
        for column, field in zip(columns, fields.columns, strict=True):
            converted, fits = _field(parsed.get(field.name), field.type)
            column.append(converted)
            malformed[row] |= not fits
        for name, found in raw.items():
            found.append(_raw(parsed.get(name)))
    typed_columns = zip(columns, fields.columns, strict=True)
    pieces = {name: _by_type(found) for name, found in raw.items()}
    return JsonBlock(
        [pa.array(column, field.type) for column, field in typed_columns], pieces, malformed
    )


def _load(text: bytes | None) -> tuple[dict[str, Any], bool]:
    """The object that `text` is, and whether it is malformed; a null is an object of nulls."""
    try:
        value = (
            {} if text is None else json.loads(text.decode(), parse_float=Literal, parse_int=whole)
        )
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


def _field(value: Any, target: pa.DataType) -> tuple[Any, bool]:
    """What is readable of `value` as `target`, and whether that is all of it."""
    try:
        return _convert(value, target)
    except (ValueError, OverflowError, RecursionError, pa.ArrowException):
        return None, False


def _convert(value: Any, target: pa.DataType) -> tuple[Any, bool]:
    """As `_field`; raises where nothing of `value` is readable.

    A struct keeps its other fields, a list or map with an item that is nothing is nothing.
    """
    if value is None:
        return None, True
    if pa.types.is_struct(target):
        given, inner = typed(value, dict), [target.field(i) for i in range(target.num_fields)]
        parts = {field.name: _field(given.get(field.name), field.type) for field in inner}
        return {name: part for name, (part, _) in parts.items()}, _all_fit(parts.values())
    if pa.types.is_list(target):
        items = [_convert(item, target.value_type) for item in typed(value, list)]
        return [item for item, _ in items], _all_fit(items)
    if pa.types.is_map(target):
        pairs = typed(value, dict).items()
        entries = [(as_text(key), *_convert(item, target.item_type)) for key, item in pairs]
        return [(key, item) for key, item, _ in entries], all(fits for _, _, fits in entries)
    return _scalar(value, target), True


def _all_fit(parts: Any) -> bool:
    return all(fits for _, fits in parts)


def _scalar(value: Any, target: pa.DataType) -> Any:
    if pa.types.is_string(target):
        return as_text(value)
    if pa.types.is_binary(target):
        return as_bytes(value)
    if pa.types.is_boolean(target):
        return typed(value, bool)
    if pa.types.is_decimal(target):
        return as_decimal(value, target)
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        column, bad = finish_times(pa.array([typed(value, (str, int))]), target)
        if bad[0]:
            raise ValueError(f"{value!r} is no {target}")
        return column[0].as_py()
    return as_number(value, target)
