"""One JSON scalar as one value of a column, as Spark's `from_json` has it.

Every function raises ValueError where the value is not of the type.
"""

import base64
import json
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = [
    "Literal",
    "as_bytes",
    "as_decimal",
    "as_floating",
    "as_integer",
    "as_text",
    "typed",
    "whole",
]

_BLANK: Final = "".join(map(chr, range(33)))
"""What may stand around base64."""

_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_EXACT: Final = Context(prec=40)
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
"""The texts that a column of floating point takes."""


class Literal(float):
    """A float that remembers its digits, which a decimal column wants all of."""

    __slots__ = ("digits",)

    def __init__(self, digits: str) -> None:
        self.digits = digits


class _MinusZero(int):
    """The whole number -0, which is -0.0 to a column of floating point, as Arrow reads it."""


_MINUS_ZERO: Final = _MinusZero()


def whole(digits: str) -> int:
    """The whole number that `digits` are; ValueError where they are too many."""
    return _MINUS_ZERO if digits == "-0" else int(digits)


def typed(value: Any, kind: type | tuple[type, ...]) -> Any:
    """`value` itself, if it is of the Python type `kind`; a Boolean is no number."""
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ValueError(f"{value!r} is no {kind}")
    return value


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON without blanks; a fraction as Java prints a double."""
    text = value if isinstance(value, str) else _compact(value)
    text.encode()
    return text


def as_integer(target: pa.DataType) -> Callable[[Any], int]:
    """Reads a JSON number as the signed integer type `target`."""
    bound = 1 << (target.bit_width - 1)

    def read(value: Any) -> int:
        number = int(typed(value, int))
        if not -bound <= number < bound:
            raise ValueError(f"{number} does not fit {target}")
        return number

    return read


def as_floating(value: Any, target: pa.DataType) -> float:
    """A JSON number as the floating-point type `target`."""
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError(f"{value!r} is no number")
        return _NOT_FINITE[value]
    number = -0.0 if value is _MINUS_ZERO else typed(value, (int, float))
    if pa.types.is_float32(target):
        # By way of a double it would be rounded twice.
        text = getattr(number, "digits", None) or str(number)
        return float(pa.scalar(text).cast(target).as_py())
    try:
        return float(number)
    except OverflowError:
        return _INFINITY if number > 0 else -_INFINITY  # As Arrow and Spark read it.


def as_decimal(value: Any, target: pa.DataType) -> Decimal:
    """A number or its text as the decimal type `target`: half up to its scale, never too long."""
    digits = str(typed(getattr(value, "digits", value), (str, int))).replace(",", "")
    if _DECIMAL.fullmatch(digits) is None:
        raise ValueError(f"{value!r} is no decimal")
    number = Decimal(digits)
    before_point = target.precision - target.scale
    if number and number.adjusted() >= before_point:
        raise ValueError(f"{value!r} has too many digits for {target}")
    rounded = number.quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP, _EXACT)
    if rounded and rounded.adjusted() >= before_point:
        raise ValueError(f"{value!r} has too many digits for {target}")
    return rounded


def as_bytes(value: Any) -> bytes:
    """The bytes whose base64 a text is."""
    return base64.b64decode(typed(value, str).strip(_BLANK), validate=True)


def _compact(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_quoted(name)}:{_compact(inner)}" for name, inner in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if isinstance(value, float):
        return _double_text(float(value))
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _double_text(value: float) -> str:
    """As Java's `Double.toString`: plain from a thousandth to ten million, else like 1.0E40."""
    if not np.isfinite(value):
        return {"inf": '"Infinity"', "-inf": '"-Infinity"'}.get(str(value), '"NaN"')
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(np.format_float_positional(value, trim="0"))
    digits, _, exponent = np.format_float_scientific(value, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"
