"""The pause after a lost commit race, and the error after too many.

The rules are semantics 19.2.
"""

import random
import time

from pyspark_tseries.errors import StoreBusy

__all__ = ["backoff", "contention_error"]


def backoff(attempt: int) -> None:
    """Sleep after the attempt `attempt` for a random time, on average longer after each."""
    time.sleep(random.uniform(0.005, min(0.2, 0.01 * 2 ** min(attempt, 8))))


def contention_error(root: str, attempts: int, consequence: str, next_step: str) -> StoreBusy:
    """The error after losing all `attempts`; `consequence` ends the description of the problem."""
    return StoreBusy(
        f"store '{root}': other writers won all of {attempts} attempts to commit; {consequence}",
        next_step=next_step,
    )
