"""The length of repetitions: short in `make test` and `make integration`, long in `make soak`.

A short run holds every promise; a long one looks for what only many tries find.
"""

from __future__ import annotations

import os
from typing import Final

FULL_LENGTH: Final = os.environ.get("FULL_LENGTH") == "1"


def repetitions(short: int, long: int) -> int:
    """The number of kills, seconds or commits that this run is for."""
    return long if FULL_LENGTH else short
