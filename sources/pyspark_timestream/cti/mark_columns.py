"""Maxima within segments and minima over intervals, for all writers at once."""

from typing import Final

import numpy as np

from pyspark_timestream.connector.columns import NEVER, Instants, Mask

__all__ = ["max_in_segments", "min_over_intervals", "sort_by_writer"]


_NO_INTERVAL: Final = np.iinfo(np.int64).max
_MAX_SHIFTED: Final = 2**62


def sort_by_writer(keys: Instants, codes: Instants) -> Instants:
    """The order of n changes by the number of their writer, and for each writer by key."""
    # Numbers of two bytes are sorted in linear time, and so are keys of a few runs in order.
    narrow = codes.astype(np.uint16) if codes.max(initial=0) < 2**16 else codes
    return np.lexsort((keys, narrow))


def max_in_segments(us: Instants, is_first: Mask) -> Instants:
    """The running maximum of n instants, restarted wherever `is_first`; NEVER is below all.

    Each segment is shifted above the one before, so that one running maximum serves all of them.
    If the instants are too far apart for that, their ranks are shifted instead.
    """
    segments = np.cumsum(is_first)
    known = us[us != NEVER]
    if not len(known):
        return us
    least_us, values = int(known.min()), None
    height = int(known.max()) - least_us + 2
    if height > _MAX_SHIFTED // (len(us) + 1):
        values, ranks = np.unique(us, return_inverse=True)
        shifted, height = ranks.astype(np.int64), len(values)
    else:
        # NEVER becomes 0, one below the least instant.
        shifted = np.where(us == NEVER, 0, us - least_us + 1)
    ground = segments * height
    greatest: Instants = np.maximum.accumulate(shifted + ground) - ground
    if values is not None:
        return values[greatest]
    return np.where(greatest == 0, NEVER, greatest + least_us - 1)


def min_over_intervals(begins: Instants, ends: Instants, us: Instants, steps: int) -> Instants:
    """At each step the least of the `us` whose intervals [begin, end) cover it; NEVER if none does.

    No interval is empty. Each is the union of two whose length is a power of two, so that all
    intervals of a length are entered at once, and then passed down to their halves.
    """
    levels = np.frexp(ends - begins)[1] - 1
    least = np.full(steps, _NO_INTERVAL)
    for level in range(int(levels.max(initial=0)), -1, -1):
        length = 1 << level
        if len(chosen := np.flatnonzero(levels == level)):
            np.minimum.at(least, begins[chosen], us[chosen])
            np.minimum.at(least, ends[chosen] - length, us[chosen])
        if half := length // 2:
            passed = least.copy()
            np.minimum(passed[half:], least[:-half], out=passed[half:])
            least = passed
    least[least == _NO_INTERVAL] = NEVER
    return least
