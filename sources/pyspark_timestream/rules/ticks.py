"""The simulated clock: which ticks are due, and each tick's time (semantics 12).

Tick k (k = 0, 1, ...) carries `zero + delay + k * period`, rounded down to the millisecond, and is
due at the real instant `started + (delay + k * period) / rate`. Both are computed in rationals, so
nothing drifts. Nothing here reads a clock: `now_us` is an argument.

A stream is a fold: `advance_ticks(clock, ticks, now_us) -> ticks`. `Ticks` is the moving part of a
Spark offset, `Clock` the fixed part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np

from pyspark_timestream.core.checkpoint import damaged_offset
from pyspark_timestream.core.instants import (
    FINAL_US,
    MILLISECOND_US,
    SECOND_US,
    Instants,
    clamp_instant,
)

BLOCK_TICKS: Final = 1 << 16
"""Compute this many ticks at a time, and pass them to Spark as one block."""

MAX_PERIOD_DENOMINATOR: Final = 10**12
"""A block's int64 arithmetic stays below denominator * (block + 1) = 6.6e16 < 2**63."""

_MAX_TICKS: Final = 2**63 - 1  # Rows carry a tick's number as a long.


@dataclass(frozen=True, slots=True)
class Clock:
    """The decisions of a stream's first start; they never change.

    Attributes:
        zero_us: simulated instant that delay and period count from.
        started_us: the real instant at `zero_us`.
        delay: seconds from zero to tick 0, at least 0.
        period: seconds between ticks, above 0, denominator at most MAX_PERIOD_DENOMINATOR.
        rate: simulated seconds per real second, above 0; None: unpaced, every tick is due.
        max_count: only ticks below it exist; None: all that fit before the year 10000.
        skips: deliver only the newest of several overdue ticks.
    """

    zero_us: int
    started_us: int
    delay: Fraction = Fraction(0)
    period: Fraction = Fraction(1)
    rate: Fraction | None = Fraction(1)
    max_count: int | None = None
    skips: bool = False


@dataclass(frozen=True, slots=True)
class Ticks:
    """The ticks of one batch, and the count of skipped ones.

    Attributes:
        start_inclusive: first tick delivered.
        end_exclusive: first tick of the next batch, unless that batch skips.
        skipped: ticks skipped since the stream began, this batch included.
    """

    start_inclusive: int
    end_exclusive: int
    skipped: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the moving keys of an offset; from_json reads them back."""
        return {"from": self.start_inclusive, "skipped": self.skipped, "to": self.end_exclusive}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> "Ticks":
        """Return the ticks of the batch that ends at `offset`; ignore its other keys.

        Raises:
            CheckpointUnreadable: it lacks one of its own, or one is not a number of ticks.
        """
        numbers: list[Any] = [offset.get(name) for name in ("from", "to", "skipped")]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise damaged_offset(f"its ticks are {numbers}")
        return cls(*numbers)


NO_TICKS: Final = Ticks(0, 0)
"""Before the first batch."""


def advance_ticks(clock: Clock, before: Ticks, now_us: int, cap: int | None = None) -> Ticks:
    """Return the batch after `before`, or `before` itself if no further tick is due.

    Args:
        clock: the stream's clock.
        before: the previous batch.
        now_us: real instant, inclusive: the batch contains a tick that is due exactly now.
        cap: most ticks to deliver, at least 1; None: all. A skipping clock delivers only one.

    >>> advance_ticks(Clock(0, 0, skips=True), Ticks(0, 1), 4_000_000)
    Ticks(start_inclusive=4, end_exclusive=5, skipped=3)
    """
    due = count_due_ticks(clock, now_us)
    begin = before.end_exclusive
    if due <= begin:
        return before
    if clock.skips:
        return Ticks(due - 1, due, before.skipped + due - 1 - begin)
    return Ticks(begin, due if cap is None else min(due, begin + cap), before.skipped)


def compute_delivered_range(clock: Clock, before: Ticks, ticks: Ticks) -> tuple[int, int]:
    """Return the ticks [start, end) of all batches after `before` up to and including `ticks`.

    This is one batch, unless Spark tracks progress asynchronously and replays several as one;
    between two batches of a skipping clock everything else was skipped.
    """
    start = ticks.start_inclusive if clock.skips else before.end_exclusive
    return start, ticks.end_exclusive


def count_due_ticks(clock: Clock, now_us: int) -> int:
    """Count the ticks that are due at the real instant `now_us`, inclusive.

    >>> count_due_ticks(Clock(zero_us=0, started_us=0), 2_000_000)
    3
    """
    if clock.rate is None:
        return count_ticks(clock)
    elapsed = Fraction(now_us - clock.started_us, SECOND_US) * clock.rate
    return min(_count_ticks_within(clock, elapsed), count_ticks(clock))


def count_ticks(clock: Clock) -> int:
    """Count all ticks: max_count, or as many as Spark's calendar and a long can hold."""
    fitting = _count_ticks_within(clock, Fraction(FINAL_US - clock.zero_us, SECOND_US))
    return min(fitting, _MAX_TICKS if clock.max_count is None else clock.max_count)


def fits_calendar(clock: Clock) -> bool:
    """Return whether every tick up to max_count, and at least the first, is a legal instant."""
    total = max(1, clock.max_count or 0)
    return _compute_exact_ms(clock, total - 1) * MILLISECOND_US <= FINAL_US


def are_last(clock: Clock, ticks: Ticks) -> bool:
    """Return whether no tick can follow."""
    return ticks.end_exclusive >= count_ticks(clock)


def _count_ticks_within(clock: Clock, elapsed: Fraction) -> int:
    """Count the ticks of the first `elapsed` simulated seconds, inclusive."""
    return max(0, (elapsed - clock.delay) // clock.period + 1)


def compute_cti(clock: Clock, ticks: Ticks) -> int:
    """Return the clock's CTI: the next tick's time, or the final CTI if no tick can follow."""
    return FINAL_US if are_last(clock, ticks) else _compute_tick_time(clock, ticks.end_exclusive)


def compute_simulated_time(clock: Clock, ticks: Ticks, now_us: int) -> int:
    """Return the simulated time at the real instant `now_us`; if unpaced, the last tick's time."""
    if clock.rate is None:
        return (
            _compute_tick_time(clock, ticks.end_exclusive - 1)
            if ticks.end_exclusive
            else clock.zero_us
        )
    return clamp_instant(clock.zero_us + int((now_us - clock.started_us) * clock.rate))


def _compute_tick_time(clock: Clock, k: int) -> int:
    return int(_compute_exact_ms(clock, k) // 1) * MILLISECOND_US


def _compute_exact_ms(clock: Clock, k: int) -> Fraction:
    return Fraction(clock.zero_us, MILLISECOND_US) + (clock.delay + k * clock.period) * 1000


def compute_tick_times(clock: Clock, begin: int, end: int) -> Instants:
    """Compute the times of ticks [begin, end), at most BLOCK_TICKS that exist, in microseconds.

    Round them down to milliseconds. A block has one exact base; within it int64 suffices, because
    floor(base + i * p/q) = (floor(base * q) + i * p) // q for whole i, p, q.
    """
    step_ms = clock.period * 1000
    over = step_ms.denominator
    whole_step, rest_step = divmod(step_ms.numerator, over)
    base_ms, base_rest = divmod(_compute_exact_ms(clock, begin) * over // 1, over)
    count = end - begin
    if count == 1:
        # A single tick takes no step, and the step could overflow int64.
        return np.array([base_ms * MILLISECOND_US], dtype=np.int64)
    if not rest_step:
        first_us, step_us = base_ms * MILLISECOND_US, whole_step * MILLISECOND_US
        return np.arange(first_us, first_us + count * step_us, step_us, dtype=np.int64)
    # In place, because allocating a new array would cost more than the arithmetic.
    times = np.arange(base_rest, base_rest + count * rest_step, rest_step, dtype=np.int64)
    times //= over
    times += np.arange(base_ms, base_ms + count * whole_step, whole_step) if whole_step else base_ms
    times *= MILLISECOND_US
    return times


def cut_blocks(start_inclusive: int, end_exclusive: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) into ranges of at most BLOCK_TICKS."""
    for begin in range(start_inclusive, end_exclusive, BLOCK_TICKS):
        yield begin, min(begin + BLOCK_TICKS, end_exclusive)


def cut_evenly(start_inclusive: int, end_exclusive: int, count: int) -> list[tuple[int, int]]:
    """Cut [start, end) into at most `count` contiguous ranges of nearly equal size, none empty.

    >>> cut_evenly(0, 5, 2)
    [(0, 2), (2, 5)]
    """
    length = end_exclusive - start_inclusive
    count = min(count, length)
    edges = (start_inclusive + length * i // count for i in range(count + 1))
    return list(pairwise(edges)) if count else []
