"""Types of columns, and the sentinel that stands for None in columns of instants."""

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["NEVER", "Instants", "Mask", "instant_or_none", "instant_or_sentinel"]

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEVER: Final = np.iinfo(np.int64).min
"""The sentinel for "no instant"; below every instant."""


def instant_or_sentinel(us: int | None) -> int:
    """`us` for a column: NEVER for None."""
    return NEVER if us is None else us


def instant_or_none(us: int) -> int | None:
    """`us` from a column: None for NEVER."""
    return None if us == NEVER else int(us)
