"""JSON values one by one: what is broken becomes null, what is readable stays."""

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa

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
    typed = zip(columns, fields.columns, strict=True)
    pieces = {name: _by_type(found) for name, found in raw.items()}
    return JsonBlock([pa.array(column, field.type) for column, field in typed], pieces, malformed)


def _load(text: bytes | None) -> tuple[dict[str, Any], bool]:
    """The object that `text` is, and whether it is malformed; a null is an object of nulls."""
    try:
        value = {} if text is None else json.loads(text.decode(), parse_float=_Literal)
    except (ValueError, RecursionError):
        return {}, True
    return (value, False) if isinstance(value, dict) else ({}, True)


class _Literal(float):
    """A float that remembers its digits, which a decimal column wants all of."""

    __slots__ = ("digits",)

    def __init__(self, digits: str) -> None:
        self.digits = digits


def _raw(value: Any) -> str | int | float | None:
    """A raw field of one row; what is neither text nor number that Arrow holds is no time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value if value.isascii() or _encodes(value) else None
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
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
    """`value` as `target` and True, or None and whether None is what it says."""
    try:
        return _convert(value, target), True
    except (ValueError, OverflowError, pa.ArrowException):
        return None, False


def _convert(value: Any, target: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(target):
        text = (
            value
            if isinstance(value, str)
            else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        )
        text.encode()
        return text
    if pa.types.is_boolean(target):
        return _typed(value, bool)
    if pa.types.is_struct(target):
        inner = [target.field(i) for i in range(target.num_fields)]
        return {f.name: _convert(_typed(value, dict).get(f.name), f.type) for f in inner}
    if pa.types.is_list(target):
        return [_convert(item, target.value_type) for item in _typed(value, list)]
    if pa.types.is_decimal(target):
        digits = getattr(value, "digits", value)
        return pa.scalar(str(_typed(digits, (str, int)))).cast(target).as_py()
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        column, bad = finish_times(pa.array([_typed(value, str)]), target)
        if bad[0]:
            raise ValueError(f"{value!r} is no {target}")
        return column[0].as_py()
    return _number(value, target)


def _typed(value: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ValueError(f"{value!r} is no {kind}")
    return value


def _number(value: Any, target: pa.DataType) -> Any:
    """A JSON number as `target`; raises where it does not fit."""
    number = _typed(value, (int, float))
    if pa.types.is_integer(target):
        return pa.scalar(_typed(number, int), target).as_py()
    if pa.types.is_float32(target):
        # By way of a double it would be rounded twice.
        return pa.scalar(getattr(number, "digits", None) or str(number)).cast(target).as_py()
    return float(number)
