"""Find round ticks of numbers and of times, and their labels (semantics 31.6).

Ticks of numbers are multiples of 1, 2 or 5 times a power of ten. Ticks of times are what a clock or
a calendar calls round in a time zone: they are the starts of buckets (semantics 32.1), so on the
two odd days of a year they are where they belong.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from pyspark_timestream.core.instants import (
    DAY_US,
    FINAL_US,
    MIN_US,
    MINUTE_US,
    to_datetime,
)
from pyspark_timestream.core.picture import TimeTick, choose_step, label_ticks, name_date
from pyspark_tseries.model.buckets import DEFAULT_ORIGIN_US, Buckets

# -- numbers ---------------------------------------------------------------------------------------

_PLAIN: Final = -3, 6
"""Write numbers from 10^-3 up to 10^6 as they are, others with a power of ten beside the axis."""

_MAX_DIGITS: Final = 7
"""Labels with more digits count from a number beside the axis."""


@dataclass(frozen=True, slots=True)
class NumberAxis:
    """The axis of a column's values. A value `v` is at `(v - base) / 10 ** exponent`.

    Attributes:
        low: the place of the lowest end of the axis.
        high: the place of its highest end; it is above `low`.
        ticks: the places of the ticks, ascending.
        labels: their labels.
        exponent: the power of ten that the labels leave out, a multiple of 3.
        base: the number that the labels count from.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    exponent: int = 0
    base: float = 0.0

    def fraction(self, values: np.ndarray) -> np.ndarray:
        """Return where values are between the ends of the axis: from 0 to 1."""
        places = _scale(values - self.base, self.exponent)
        fractions: np.ndarray = (places - self.low) / (self.high - self.low)
        return fractions

    @property
    def tick_fractions(self) -> list[float]:
        """Where the ticks are, as `fraction` of values."""
        return [(tick - self.low) / (self.high - self.low) for tick in self.ticks]


def number_axis(low: float, high: float, most: int, *, is_whole: bool = False) -> NumberAxis:
    """Return an axis for finite values from `low` to `high`, with about `most` ticks at most.

    With `is_whole` the ticks are whole numbers.
    """
    base = _find_base(low, high, most)
    low, high = low - base, high - base
    size = max(abs(low), abs(high))
    exponent = 0
    if size and not 10.0 ** _PLAIN[0] <= size < 10.0 ** _PLAIN[1]:
        exponent = 3 * math.floor(math.log10(size) / 3)
    low, high = _scale(np.array([low, high], np.float64), exponent).tolist()
    if high - low <= 8 * math.ulp(max(abs(low), abs(high))):
        room = abs(low) / 20 or 1.0
        low, high = low - room, high + room
    else:
        room = (high - low) / 20
        # An axis of values that are not negative does not show what is below zero.
        low = max(low - room, 0.0) if low >= 0 and not base else low - room
        high = min(high + room, 0.0) if high <= 0 and not base else high + room
    step = _round_step((high - low) / max(most, 1))
    if is_whole and exponent >= 0:
        step = max(step, 10.0**-exponent)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = tuple(round(number * step, decimals) for number in range(first, last + 1))
    labels = tuple(f"{tick + 0.0:,.{decimals}f}" for tick in ticks)
    return NumberAxis(low, high, ticks, labels, exponent, base)


def _find_base(low: float, high: float, most: int) -> float:
    """Return what labels count from, 0 unless they would have many equal digits."""
    size, spread = max(abs(low), abs(high)), high / 2 - low / 2
    if spread <= 4 * math.ulp(size):
        return 0.0  # All values are equal, as far as a double tells.
    digits = math.log10(size) - math.log10(2 * spread / max(most, 1))
    if digits < _MAX_DIGITS:
        return 0.0
    power = 10.0 ** math.ceil(math.log10(2 * spread))
    return math.floor(low / power) * power


def _scale(values: np.ndarray, exponent: int) -> np.ndarray:
    """Return `values / 10 ** exponent`, also where the power alone is no double."""
    if not exponent:
        return values
    half = -exponent // 2
    scaled: np.ndarray = values * 10.0**half * 10.0 ** (-exponent - half)
    return scaled


def _round_step(step: float) -> float:
    """Return the next number from `step` on that is 1, 2 or 5 times a power of ten."""
    power = math.floor(math.log10(step))
    for number in (1, 2, 5, 10):
        if number * 10.0**power >= step * (1 - 1e-9):
            return number * 10.0**power
    raise AssertionError(step)


# -- times -----------------------------------------------------------------------------------------

_YEARS_FROM: Final = DEFAULT_ORIGIN_US - 2 * DAY_US
_LONG_US: Final = 50 * 366 * DAY_US
"""An axis of this length has the same ticks in every zone: an offset is less than a pixel."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The axis of times from `low` to `high`, in microseconds; `high` is above `low`."""

    low: int
    high: int
    ticks: tuple[TimeTick, ...]

    def fraction(self, us: np.ndarray) -> np.ndarray:
        """Return where times are between the ends of the axis: from 0 to 1."""
        fractions: np.ndarray = (us - self.low) / (self.high - self.low)
        return fractions


def time_axis(low: int, high: int, zone: str | None, most: int) -> TimeAxis:
    """Return an axis from `low` to `high`, with `most` ticks at most, by the clock of a zone."""
    low, high = max(low, MIN_US), min(high, FINAL_US)
    zone = None if high - low > _LONG_US else choose_zone(low, high, zone)
    if low == high:
        low, high = max(low - MINUTE_US, MIN_US), min(high + MINUTE_US, FINAL_US)
    clock = None if zone is None else ZoneInfo(zone)
    buckets = _find_buckets(low, high, zone, most)
    starts = [us for us in buckets.between(low, high).tolist() if low <= us <= high]
    ticks = tuple(label_ticks(starts, buckets.us, buckets.months, clock))
    return TimeAxis(low, high, ticks)


def choose_zone(low: int, high: int, zone: str | None) -> str | None:
    """Return the zone, or None for UTC where its clock may leave the years 1 to 9999."""
    return None if low < MIN_US + 3 * DAY_US or high > FINAL_US - 3 * DAY_US else zone


def fit_time_axis(
    low: int, high: int, zone: str | None, room: float, width_of: Callable[[str], float]
) -> TimeAxis:
    """Return the axis with as many ticks as there is room for their labels beside each other."""
    most = max(1, int(room // width_of("00:00   ")))
    while True:
        axis = time_axis(low, high, zone, most)
        widest = max((width_of(f"{tick.label}  ") for tick in axis.ticks), default=0)
        if most == 1 or widest * most <= room:
            return axis
        most -= 1


def _find_buckets(low: int, high: int, zone: str | None, most: int) -> Buckets:
    step, months = choose_step(low, high, most)
    if months:
        return Buckets(0, months, zone, _YEARS_FROM)
    return Buckets(step, 0, zone, 0 if zone is not None and step < DAY_US else DEFAULT_ORIGIN_US)


def format_moment(us: int, zone: str | None) -> str:
    """Format an instant for people, by the clock of a zone, as exactly as it is.

    It has a name behind it where the clock alone does not tell: `CET` or `CEST` where a clock shows
    a time twice, `UTC` where that of the zone would leave the years 1 to 9999.
    """
    local, name = to_datetime(us), ""
    if zone is not None and choose_zone(us, us, zone) is None:
        name = " UTC"
    elif zone is not None:
        local = local.astimezone(ZoneInfo(zone))
        is_twice = local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()
        name = f" {local:%Z}" if is_twice else ""
    text = f"{name_date(local)} {local:%H:%M}"
    if local.second or local.microsecond:
        text += f":{local:%S}"
    if local.microsecond:
        text += f".{local.microsecond:06d}".rstrip("0")
    return text + name
