"""What a writer does whose commit another writer's came before: wait a moment, at last give up.

The rules are semantics 19.2.
"""

import random
import time

from pyspark_tseries.errors import StoreBusy

__all__ = ["busy", "wait_out"]


def wait_out(turn: int) -> None:
    """Waits after the attempt `turn`, the longer the more there were, unlike its rivals."""
    time.sleep(random.uniform(0.005, min(0.2, 0.01 * 2 ** min(turn, 8))))


def busy(root: str, attempts: int, consequence: str) -> StoreBusy:
    """The error of who lost all `attempts`; `consequence` says what that means, and what to do."""
    return StoreBusy(
        f"store '{root}': other writers won all of {attempts} attempts to commit; {consequence}"
    )
