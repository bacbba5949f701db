"""What Spark's Python workers keep in memory for good, and need not look through after every task.

A worker collects garbage after each task, and walks through every object of every module for it:
12 to 38 ms of a core with Arrow and pandas. What is there after a first task stays anyway.
"""

import functools
import gc

__all__ = ["settle"]


@functools.cache
def settle() -> None:
    """Once per process: what exists now is not looked through by later collections."""
    gc.collect()
    gc.freeze()
