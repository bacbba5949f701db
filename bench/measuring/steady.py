"""Whether a quantity sampled over a long run stays as it is, or grows.

Two figures judge it, and neither is moved by a few samples that are high, such as the files just
before a compaction: the median of the run's last quarter beside the second quarter's, and the rise
of the line through the second half. Its slope is the median of the slopes between all pairs of
samples (Theil and Sen). The first quarter warms up, and does not count.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

MIN_SAMPLES: Final = 8
"""Fewer have no quarters."""

_MOST_PAIRS: Final = 200
"""If a half has more samples, this many evenly chosen ones give the slope."""


class Allowed(NamedTuple):
    """How far a quantity may rise and still count as steady.

    Attributes:
        share: as a part of the median of the second quarter.
        least: in the quantity's unit, for one that is small or 0.
    """

    share: float = 0.1
    least: float = 0.0


class Course(NamedTuple):
    """How a quantity went.

    Attributes:
        second: the median of the run's second quarter.
        last: the median of its last quarter.
        rise: the rise of the line through the second half; negative if it falls.
        most: the greatest sample.
        room: how far `last` may be above `second`, and the line rise.
    """

    second: float
    last: float
    rise: float
    most: float
    room: float

    @property
    def is_flat(self) -> bool:
        """True if it has not grown; what falls is flat."""
        return max(self.last - self.second, self.rise) <= self.room


def judge_course(times: Sequence[float], values: Sequence[float], allowed: Allowed) -> Course:
    """Judge the samples `values`, taken at the rising `times`.

    Raises:
        ValueError: there are fewer than `MIN_SAMPLES`, or not as many values as times.
    """
    if len(times) != len(values) or len(times) < MIN_SAMPLES:
        raise ValueError(f"{len(values)} samples at {len(times)} times, not {MIN_SAMPLES} or more")
    begin, end = times[0], times[-1]

    # Rounded, so that a sample on the border of a quarter stays there in every unit of time.
    shares = [round((at - begin) / (end - begin), 9) for at in times]

    def part(first: float, until: float) -> list[tuple[float, float]]:
        samples = zip(shares, times, values, strict=True)
        return [(at, value) for share, at, value in samples if first <= share <= until]

    second, last = (
        statistics.median(value for _, value in part(first, first + 0.25)) for first in (0.25, 0.75)
    )
    rise = _slope(part(0.5, 1)) * (end - begin) / 2
    return Course(second, last, rise, max(values), max(allowed.share * second, allowed.least))


def _slope(points: Sequence[tuple[float, float]]) -> float:
    step = -(-len(points) // _MOST_PAIRS)
    some = points[::step]
    slopes = [
        (value - earlier) / (at - before)
        for number, (before, earlier) in enumerate(some)
        for at, value in some[number + 1 :]
        if at > before
    ]
    return statistics.median(slopes) if slopes else 0.0


def judge_all(
    samples: Sequence[Mapping[str, float]], allowed: Mapping[str, Allowed], at: str = "seconds"
) -> dict[str, Course]:
    """Judge each quantity of `allowed` over all samples; one that a sample lacks is 0 there."""
    times = [sample[at] for sample in samples]
    return {
        name: judge_course(times, [sample.get(name, 0.0) for sample in samples], room)
        for name, room in allowed.items()
    }


def as_row(name: str, course: Course) -> dict[str, Any]:
    """A quantity as a row of a table."""
    return {
        "what": name,
        "second quarter": _rounded(course.second),
        "last quarter": _rounded(course.last),
        "rise in the second half": _rounded(course.rise),
        "most": _rounded(course.most),
        "may rise by": _rounded(course.room),
        "flat": "yes" if course.is_flat else "no",
    }


def _rounded(value: float) -> float:
    """Three digits, or the whole number."""
    return round(value) if abs(value) >= 100 else float(f"{value:.3g}")
