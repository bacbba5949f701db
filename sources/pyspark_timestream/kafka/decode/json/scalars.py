"""Converts JSON scalars to column values as Spark's `from_json` does.

Every conversion raises ValueError if the value does not match the type.
"""

import base64
import json
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa


def decode_or_none(value: bytes | None) -> str | None:
    """Decode `value`; None if it is null or not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


_BLANKS: Final = "".join(map(chr, range(33)))
"""Characters that may surround base64."""

_DECIMAL_PATTERN: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_DECIMAL_CONTEXT: Final = Context(prec=40)
"""A decimal column has 38 digits at most."""

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


class ExactFloat(float):
    """A float that keeps its digits for decimal columns."""

    __slots__ = ("digits",)

    def __init__(self, digits: str) -> None:
        self.digits = digits


class _MinusZero(int):
    """The integer -0, which becomes -0.0 in a floating-point column, as in Arrow."""


_MINUS_ZERO: Final = _MinusZero()


def parse_integer(digits: str) -> int:
    """Parse an integer; ValueError if it has too many digits."""
    return _MINUS_ZERO if digits == "-0" else int(digits)


def check_type(value: Any, kind: type | tuple[type, ...]) -> Any:
    """Return `value` if it has the Python type `kind`; a bool is not a number."""
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ValueError(f"{value!r} is not of type {kind}")
    return value


def to_text(value: Any) -> str:
    """Return a text unchanged, anything else as compact JSON with doubles as Java prints them."""
    text = value if isinstance(value, str) else _to_compact_json(value)
    text.encode()
    return text


def integer_reader(target: pa.DataType) -> Callable[[Any], int]:
    """Build a reader of JSON numbers for the signed integer type `target`."""
    bound = 1 << (target.bit_width - 1)

    def read(value: Any) -> int:
        number = int(check_type(value, int))
        if not -bound <= number < bound:
            raise ValueError(f"{number} does not fit {target}")
        return number

    return read


def to_float(value: Any, target: pa.DataType) -> float:
    """Convert a JSON number to the floating-point type `target`."""
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError(f"{value!r} is not a number")
        return _NOT_FINITE[value]
    number = -0.0 if value is _MINUS_ZERO else check_type(value, (int, float))
    if pa.types.is_float32(target):
        # A double in between would round twice.
        text = getattr(number, "digits", None) or str(number)
        return float(pa.scalar(text).cast(target).as_py())
    try:
        return float(number)
    except OverflowError:
        return _INFINITY if number > 0 else -_INFINITY  # As Arrow and Spark read it.


def to_decimal(value: Any, target: pa.DataType) -> Decimal:
    """Convert a number or its text to the decimal type `target`, rounding half up."""
    digits = str(check_type(getattr(value, "digits", value), (str, int))).replace(",", "")
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
    """Decode a base64 text."""
    return base64.b64decode(check_type(value, str).strip(_BLANKS), validate=True)


def _to_compact_json(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_quote(name)}:{_to_compact_json(inner)}" for name, inner in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_to_compact_json, value)) + "]"
    if isinstance(value, float):
        return _format_double(float(value))
    return _quote(value)


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _format_double(value: float) -> str:
    """Format like Java's `Double.toString`: plain from 0.001 to 10,000,000, else like 1.0E40."""
    if not np.isfinite(value):
        return {"inf": '"Infinity"', "-inf": '"-Infinity"'}.get(str(value), '"NaN"')
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(np.format_float_positional(value, trim="0"))
    digits, _, exponent = np.format_float_scientific(value, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"
