"""The driver's wall clock, which does not follow the jumps of the machine's."""

import time
from collections.abc import Callable

__all__ = ["make_steady_clock"]


def make_steady_clock() -> Callable[[], int]:
    """Create a clock, in us, that starts at the wall clock and does not follow its jumps."""
    ahead_us = (time.time_ns() - time.monotonic_ns()) // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000
