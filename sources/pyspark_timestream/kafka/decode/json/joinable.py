"""Finds the values that may be parsed together: objects that Arrow and Python parse alike.

Arrow reads values that Python's parser refuses, since these exceed its limits of nesting and of the
digits of a number. Finding them costs next to nothing for most values: what is short exceeds no
limit. The bytes of the others are looked at in NumPy, a piece at a time, which costs a small part
of parsing them.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.kafka.decode.json.scalars import decode_or_none

__all__ = ["find_joinable"]

Bytes = npt.NDArray[np.uint8]

_WHITESPACE: Final = " \t\n\r"
"""JSON's whitespace."""

_MAX_SAFE_DEPTH: Final = 250
"""Python's parser reads values that are nested this deep."""

_MAX_SAFE_LENGTH: Final = 2 * _MAX_SAFE_DEPTH
"""A text up to this length exceeds no limit: each level takes two brackets.

A text that does not close its brackets may nest deeper, but is malformed to both parsers.
"""

_MAX_SAFE_DIGITS: Final = 999
_TOO_MANY_DIGITS: Final = f"[0-9]{{{_MAX_SAFE_DIGITS + 1}}}"

_SAMPLED_DIGITS: Final = 10
"""Too many digits in a row contain as many bytes of those that are looked at."""

_SAMPLE_STEP: Final = (_MAX_SAFE_DIGITS + 1) // _SAMPLED_DIGITS

_PIECE_BYTES: Final = 1 << 18
"""Temporary arrays of this size stay in the processor's cache."""

_OPENING: Final = np.uint8(ord("{"))
_LOWER_CASE: Final = np.uint8(ord("{") - ord("["))
"""The bit by which the brackets differ."""


def find_joinable(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the values as trimmed texts, and a mask of those that may be joined."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        # Some value is not UTF-8. Arrow's JSON parser would accept it, so it is excluded.
        texts = pa.array([decode_or_none(value.as_py()) for value in values], pa.string())
    joinable = _find_objects(texts)
    if not joinable.all():
        texts = pc.ascii_trim(texts, characters=_WHITESPACE)
        joinable = _find_objects(texts)
    return texts, joinable


def _find_objects(texts: pa.Array) -> Mask:
    shaped = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    joinable = np.array(pc.fill_null(shaped, False).to_numpy(zero_copy_only=False))
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(joinable & (lengths > _MAX_SAFE_LENGTH))
    if len(long):
        joinable[long] = ~_find_extreme(texts.take(pa.array(long)))
    return joinable


def _find_extreme(texts: pa.Array) -> Mask:
    """Find texts that may nest deeper, or hold longer numbers, than Python's parser allows.

    Args:
        texts: one or more, and no nulls.
    """
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data, np.uint8)[: bounds[-1]]
    brackets = np.diff(np.searchsorted(_find_brackets(content), bounds))
    extreme: Mask = brackets > _MAX_SAFE_DEPTH
    if _may_hold_long_number(content):
        # Slow, but exact: the sample does not know where a text ends.
        matching = pc.match_substring_regex(texts, _TOO_MANY_DIGITS)
        extreme |= np.array(matching.to_numpy(zero_copy_only=False))
    return extreme


def _find_brackets(content: Bytes) -> npt.NDArray[np.int64]:
    """Return the places of opening brackets, increasing."""
    found = []
    for start in range(0, len(content), _PIECE_BYTES):
        piece = content[start : start + _PIECE_BYTES]
        found.append(start + np.flatnonzero((piece | _LOWER_CASE) == _OPENING))
    return np.concatenate(found)


def _may_hold_long_number(content: Bytes) -> bool:
    """Look at one byte in a hundred: too many digits in a row contain ten of them."""
    # Below "0" the difference wraps around to a large number.
    sample = content[::_SAMPLE_STEP] - np.uint8(ord("0"))
    others = np.flatnonzero(sample > 9)
    return bool(np.diff(others, prepend=-1, append=len(sample)).max() > _SAMPLED_DIGITS)
