"""What writers say, in columns: maxima of lives and minima over spans, of all writers at once."""

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["NEVER", "greatest_of_lives", "least_of_spans", "order_by_writer"]

Instants = npt.NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).min
"""Stands for no instant where a column needs one."""

_ABSENT: Final = np.iinfo(np.int64).max
_ROOM: Final = 2**62


def order_by_writer(keys: Instants, codes: Instants) -> Instants:
    """The order of n deeds by the number of their writer, and of each writer by its keys."""
    # Numbers of two bytes are sorted in linear time, and so are keys of a few runs in order.
    narrow = codes.astype(np.uint16) if codes.max(initial=0) < 2**16 else codes
    return np.lexsort((keys, narrow))


def greatest_of_lives(us: Instants, fresh: npt.NDArray[np.bool_]) -> Instants:
    """The running maximum of n instants, begun anew wherever `fresh`; NEVER is below all.

    Lives are lifted above each other, so that one running maximum serves all of them. Where their
    instants are too far apart for that, the instants' ranks are lifted.
    """
    lives = np.cumsum(fresh)
    told = us[us != NEVER]
    if not len(told):
        return us
    least_us, values = int(told.min()), None
    height = int(told.max()) - least_us + 2
    if height > _ROOM // (len(us) + 1):
        values, ranks = np.unique(us, return_inverse=True)
        lifted, height = ranks.astype(np.int64), len(values)
    else:
        # NEVER is the ground, a step below the least.
        lifted = np.where(us == NEVER, 0, us - least_us + 1)
    ground = lives * height
    greatest: Instants = np.maximum.accumulate(lifted + ground) - ground
    if values is not None:
        return values[greatest]
    return np.where(greatest == 0, NEVER, greatest + least_us - 1)


def least_of_spans(begins: Instants, ends: Instants, us: Instants, steps: int) -> Instants:
    """At each step the least of the `us` whose spans [begin, end) cover it; NEVER where none does.

    No span is empty. Each is two overlapping ones of a power of two steps, so that all spans of a
    length are noted at once, and then handed down to their halves.
    """
    levels = np.frexp(ends - begins)[1] - 1
    least = np.full(steps, _ABSENT)
    for level in range(int(levels.max(initial=0)), -1, -1):
        length = 1 << level
        if len(mine := np.flatnonzero(levels == level)):
            np.minimum.at(least, begins[mine], us[mine])
            np.minimum.at(least, ends[mine] - length, us[mine])
        if half := length // 2:
            handed = least.copy()
            np.minimum(handed[half:], least[:-half], out=handed[half:])
            least = handed
    least[least == _ABSENT] = NEVER
    return least
