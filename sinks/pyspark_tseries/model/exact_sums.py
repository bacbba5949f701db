"""Add doubles exactly: their sum is rounded once, so it depends on no order (semantics 32.2).

A sum is held as a few doubles, its *parts*, whose exact sum it is. To add the values of many runs
at once, each value is rounded to a multiple of a power of two that is so large that no sum of these
multiples needs more than 53 bits; then NumPy's additions are exact. What rounding has left is
treated in the same way, until nothing is left, which takes two or three rounds.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from pyspark_tseries.model.arrays import Int64Array, reduce_runs

FloatArray = npt.NDArray[np.float64]

Parts = Mapping[str, FloatArray]
"""The parts of sums, by name: numbered ones, `huge` ones, and what is no number."""

_NO_NUMBER: Final = "none"
_HUGE: Final = "huge "
_LEAST_HUGE: Final = 2.0**900
_HUGE_SCALE: Final = 256
"""Huge values are held divided by two to this power, so that no sum of them overflows."""

_MANTISSA_BITS: Final = 53


def add_exactly(values: FloatArray, first: Int64Array, sizes: Int64Array) -> Parts:
    """Return the parts of the sum of each run, at least one value from `first` on."""
    most = _largest(values)
    if most < _LEAST_HUGE:
        return _split(values, most, first, sizes)
    finite, is_huge = np.isfinite(values), np.abs(values) >= _LEAST_HUGE
    none = np.where(finite, 0.0, values)
    huge = np.where(finite & is_huge, values, 0.0) * 2.0**-_HUGE_SCALE
    usual = np.where(is_huge | ~finite, 0.0, values)
    return {
        **_split(usual, _largest(usual), first, sizes),
        **_split(huge, _largest(huge), first, sizes, _HUGE),
        _NO_NUMBER: _add(none, first, sizes),
    }


def add_parts(parts: Parts, first: Int64Array, sizes: Int64Array) -> Parts:
    """Return the parts of the sum of the sums of each run."""
    merged: dict[str, FloatArray] = {}
    for prefix in ("", _HUGE):
        if mine := [part for name, part in parts.items() if name.rstrip("0123456789") == prefix]:
            width, together = len(mine), np.stack(mine, axis=1).ravel()
            most = _largest(together)
            merged |= _split(together, most, first * width, sizes * width, prefix)
    if _NO_NUMBER in parts:
        merged[_NO_NUMBER] = _add(parts[_NO_NUMBER], first, sizes)
    return merged


def round_sums(parts: Parts) -> FloatArray:
    """Return each sum as the nearest double."""
    usual = [part for name, part in parts.items() if name.isdigit()]
    # One addition rounds once.
    sums = usual[0] + usual[1] if len(usual) > 1 else usual[0].copy()
    if len(usual) > 2:
        rows = np.flatnonzero(np.any(usual[2:], axis=0))
        sums[rows] = [math.fsum(cells) for cells in np.stack(usual, axis=1)[rows].tolist()]
    huge = [part for name, part in parts.items() if name.startswith(_HUGE)]
    for row in np.flatnonzero(np.any(huge, axis=0)).tolist() if huge else []:
        above = sum(Fraction(float(part[row])) for part in huge) * 2**_HUGE_SCALE
        sums[row] = _to_double(above + sum(Fraction(float(part[row])) for part in usual))
    if _NO_NUMBER in parts:
        none = parts[_NO_NUMBER]
        sums = np.where(none != 0, none, sums)
    return sums


def _to_double(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _split(
    values: FloatArray, most: float, first: Int64Array, sizes: Int64Array, prefix: str = ""
) -> dict[str, FloatArray]:
    exponent = math.frexp(most)[1]
    headroom = int(sizes.max()).bit_length() + 1
    parts: dict[str, FloatArray] = {}
    rest, multiples = values.copy(), np.empty_like(values)
    while True:
        unit = math.ldexp(1.0, exponent + headroom)
        np.add(rest, unit, out=multiples)
        np.subtract(multiples, unit, out=multiples)
        parts[f"{prefix}{len(parts)}"] = _add(multiples, first, sizes)
        np.subtract(rest, multiples, out=rest)
        if not rest.any():
            return parts
        exponent += headroom - _MANTISSA_BITS


def _add(values: FloatArray, first: Int64Array, sizes: Int64Array) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return reduce_runs(np.add, values, first, sizes)


def _largest(values: FloatArray) -> float:
    """Return the largest magnitude; infinity if a value is NaN."""
    low, high = float(values.min()), float(values.max())
    return max(-low, high) if low == low else math.inf
