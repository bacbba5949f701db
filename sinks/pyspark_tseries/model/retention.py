"""The retained range: which of a series' most recent events a query sees (semantics 20).

It needs no clock: `last` counts from the series' newest original, so nothing expires while
nothing is added.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["DEFAULT", "UNLIMITED", "RetainedRange", "format_range", "kept", "parse_range"]

_UNITS_US: Final = {
    "D": 86_400_000_000,
    "H": 3_600_000_000,
    "M": 60_000_000,
    "S": 1_000_000,
    "MS": 1_000,
}
_CLAUSE: Final = re.compile(
    r"(limit)\s+([0-9]+)(?:\s+|$)|(last)\s+([0-9]+)\s*(ms|[smhd])(?:\s+|$)",
    re.IGNORECASE | re.ASCII,
)
_MOST: Final = 2**62
"""No clause reaches this far (exclusive), so that subtracting one never leaves 64 bits."""


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """The smaller of two ranges; a clause that is None does not bound.

    Attributes:
        limit: the number of most recent events, of any kind; at least 1.
        last_us: how much older than the newest original an event may be, inclusive; at least 0.
    """

    limit: int | None = None
    last_us: int | None = None


UNLIMITED: Final = RetainedRange()
DEFAULT: Final = RetainedRange(limit=10)
"""Diffusion's default."""


def parse_range(text: str) -> RetainedRange:
    """The range that `text` says: `limit N`, `last DURATION`, both in any order, or `unlimited`.

    A clause given twice counts once, with the smaller value. Any case.

    Raises:
        ValueError: not of that form, `limit 0`, or a number of 2**62 or more.

    >>> parse_range("last 10S LIMIT 5")
    RetainedRange(limit=5, last_us=10000000)
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no text such as 'limit 10' or 'last 7D'")
    rest = text.strip()
    if rest.lower() == "unlimited":
        return UNLIMITED
    limits: list[int] = []
    spans_us: list[int] = []
    while clause := _CLAUSE.match(rest):
        if clause[1]:
            limits.append(_bounded(int(clause[2]), at_least=1))
        else:
            spans_us.append(_bounded(int(clause[4]) * _UNITS_US[clause[5].upper()], at_least=0))
        rest = rest[clause.end() :]
    if rest or not (limits or spans_us):
        raise ValueError(f"'{rest or text}' is no clause of a retained range")
    return RetainedRange(min(limits, default=None), min(spans_us, default=None))


def _bounded(number: int, *, at_least: int) -> int:
    if not at_least <= number < _MOST:
        raise ValueError(f"{number} is not in [{at_least}, 2^62)")
    return number


def format_range(retained: RetainedRange) -> str:
    """The shortest text of `retained`; reads back with parse_range.

    Raises:
        ValueError: `last_us` is no whole number of milliseconds.

    >>> format_range(RetainedRange(limit=5, last_us=90_000_000))
    'limit 5 last 90S'
    """
    clauses = [] if retained.limit is None else [f"limit {retained.limit}"]
    if retained.last_us is not None:
        clauses.append(f"last {_format_span(retained.last_us)}")
    return " ".join(clauses) or "unlimited"


def _format_span(us: int) -> str:
    for unit, size_us in _UNITS_US.items():
        if us % size_us == 0 and us:
            return f"{us // size_us}{unit}"
    if us:
        raise ValueError(f"{us} us is no whole number of milliseconds")
    return "0MS"


def kept(
    retained: RetainedRange,
    sequence: npt.NDArray[np.int64],
    timestamp_us: npt.NDArray[np.int64],
    last_sequence: npt.NDArray[np.int64],
    newest_us: npt.NDArray[np.int64],
    floor_sequence: npt.NDArray[np.int64] | None = None,
    floor_us: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.bool_]:
    """Which events are inside `retained`; all arrays have one element an event.

    Args:
        retained: the range.
        sequence: the event's.
        timestamp_us: the event's.
        last_sequence: the highest sequence of the event's series.
        newest_us: the timestamp of the newest original of the event's series.
        floor_sequence: what was below it is out for good, since a change of the range.
        floor_us: the same of timestamps.
    """
    inside = np.ones(len(sequence), bool)
    if floor_sequence is not None:
        inside &= sequence >= floor_sequence
    if floor_us is not None:
        inside &= timestamp_us >= floor_us
    if retained.limit is not None:
        inside &= sequence > last_sequence - retained.limit
    if retained.last_us is not None:
        inside &= timestamp_us >= newest_us - retained.last_us
    return inside
