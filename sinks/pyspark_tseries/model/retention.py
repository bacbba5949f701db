"""Compute the retained range: the most recent events of a series, which queries see (semantics 20).

A range has two clauses. `limit` bounds the number of events, of any kind; `last` bounds their age
before the series' newest original. An event is inside if both hold. No clock is needed: nothing
expires while nothing is added.

A range can be narrowed and widened later. Events that were ever outside stay outside: a change
raises the *floors* of each series to the lower bounds of the previous range.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from pyspark_timestream.core.instants import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from pyspark_tseries.model.arrays import BoolArray, Int64Array

_UNITS_US: Final = {
    "D": DAY_US,
    "H": HOUR_US,
    "M": MINUTE_US,
    "S": SECOND_US,
    "MS": 1_000,
}
_CLAUSE: Final = re.compile(
    r"(limit)\s+([0-9]+)(?:\s+|$)|(last)\s+([0-9]+)\s*(ms|[smhd])(?:\s+|$)",
    re.IGNORECASE | re.ASCII,
)
_MAX_CLAUSE: Final = 2**62
"""Every clause is below this, so that subtracting one never overflows 64 bits."""


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """A range of recent events; a clause that is None does not bound.

    Attributes:
        limit: the number of most recent events, of any kind; at least 1.
        last_us: how much older than the newest original an event may be, inclusive; at least 0.
    """

    limit: int | None = None
    last_us: int | None = None


UNLIMITED: Final = RetainedRange()
DEFAULT_RANGE: Final = RetainedRange(limit=10)
"""Diffusion's default."""
DEFAULT_INITIAL: Final = RetainedRange(limit=1)
NO_EVENTS: Final = RetainedRange(limit=0)


def parse_range(text: str) -> RetainedRange:
    """Return the range for `limit N`, `last DURATION`, both in any order, or `unlimited`.

    Case does not matter. If a clause is given twice, the smaller value counts. Raise ValueError for
    another form, for `limit 0`, and for a number of 2**62 or more.

    >>> parse_range("last 10S LIMIT 5")
    RetainedRange(limit=5, last_us=10000000)
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a text such as 'limit 10' or 'last 7D'")
    rest = text.strip()
    if rest.lower() == "unlimited":
        return UNLIMITED
    limits: list[int] = []
    spans_us: list[int] = []
    while clause := _CLAUSE.match(rest):
        if clause[1]:
            limits.append(_check_bounds(int(clause[2]), at_least=1))
        else:
            spans_us.append(
                _check_bounds(int(clause[4]) * _UNITS_US[clause[5].upper()], at_least=0)
            )
        rest = rest[clause.end() :]
    if rest or not (limits or spans_us):
        raise ValueError(f"'{rest or text}' is not a clause of a retained range")
    return RetainedRange(min(limits, default=None), min(spans_us, default=None))


def _check_bounds(number: int, *, at_least: int) -> int:
    if not at_least <= number < _MAX_CLAUSE:
        raise ValueError(f"{number} is not in [{at_least}, 2^62)")
    return number


def format_range(retained: RetainedRange) -> str:
    """Return the shortest text of `retained`; raise ValueError if `last_us` is not in whole ms.

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
        raise ValueError(f"{us} us is not a whole number of milliseconds")
    return "0MS"


def lower_bounds(
    retained: RetainedRange, last_sequence: Int64Array, newest_us: Int64Array
) -> tuple[Int64Array | None, Int64Array | None]:
    """Return the lowest sequence and earliest timestamp inside `retained`; None does not bound.

    `newest_us` is the timestamp of the series' newest original.
    """
    # Neither overflows: the absolute values are at most 2**62.
    sequence = None if retained.limit is None else last_sequence - (retained.limit - 1)
    return sequence, None if retained.last_us is None else newest_us - retained.last_us


def min_retained(
    retained: RetainedRange,
    last_sequence: Int64Array,
    newest_us: Int64Array,
    floors: Mapping[str, Int64Array],
) -> tuple[Int64Array, Int64Array]:
    """Return the `lower_bounds`, raised to the floors that earlier changes of the range left."""
    sequence, us = lower_bounds(retained, last_sequence, newest_us)
    floor_sequence, floor_us = floors["floor_sequence"], floors["floor_us"]
    return (
        floor_sequence if sequence is None else np.maximum(sequence, floor_sequence),
        floor_us if us is None else np.maximum(us, floor_us),
    )


def retained_mask(
    retained: RetainedRange,
    sequence: Int64Array,
    timestamp_us: Int64Array,
    last_sequence: Int64Array,
    newest_us: Int64Array,
    floor_sequence: Int64Array | None = None,
    floor_us: Int64Array | None = None,
) -> BoolArray:
    """Return a flag for each event: True if it is inside `retained`.

    All arrays have one element per event. `last_sequence` and `newest_us` (of the newest original)
    are those of the event's series; events below a floor left the range before it changed.
    """
    min_sequence, min_us = lower_bounds(retained, last_sequence, newest_us)
    inside = np.ones(len(sequence), bool)
    for values, bound in (
        (sequence, floor_sequence),
        (sequence, min_sequence),
        (timestamp_us, floor_us),
        (timestamp_us, min_us),
    ):
        if bound is not None:
            inside &= values >= bound
    return inside


def parse_initial(text: str) -> RetainedRange:
    """Parse a subscription range: `limit N`, `last DURATION`, both, `unlimited`, or `none`."""
    return NO_EVENTS if str(text).strip().lower() == "none" else parse_range(text)


def format_initial(initial: RetainedRange) -> str:
    """Return the text of a subscription range; `parse_initial` reads it back."""
    return "none" if initial == NO_EVENTS else format_range(initial)


def parse_start_sequences(text: str) -> dict[str, int]:
    """Return the sequence of each series in the JSON object `text`.

    Raise ValueError if it is not one, or if a number is not whole, is negative, or is not below
    2**62.

    >>> parse_start_sequences('{"a": 7}')
    {'a': 7}
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    for name, sequence in found.items():
        whole = isinstance(sequence, int) and not isinstance(sequence, bool)
        if not whole or not 0 <= sequence < _MAX_CLAUSE:
            raise ValueError(f"'{name}' has {sequence!r}, which is not a sequence")
    return found
