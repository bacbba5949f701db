"""The Python processes that Spark runs a format in: their log, and their garbage collection.

Logs of Spark's Python workers go to the driver's standard error, but Python writes them without
level or time, so a search for WARN would not find them.

Workers collect garbage after each task and walk through every object of every module for it: 12 to
38 ms of a core with Arrow and pandas. What survives the first task stays.
"""

import functools
import gc
import logging
from typing import Final

__all__ = ["freeze_objects", "log_like_spark"]

_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class SparkFormatter(logging.Formatter):
    """Lines such as `26/11/22 20:02:35 WARN pyspark_timestream: what is wrong`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line of `record`."""
        record.level = _LEVELS.get(record.levelname, record.levelname)
        return super().format(record)


def log_like_spark(package: str) -> None:
    """Format the log of `package` as Spark does, unless logging is already configured."""
    logger = logging.getLogger(package)
    if logging.root.handlers or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(SparkFormatter())
    logger.addHandler(handler)


@functools.cache
def freeze_objects() -> None:
    """Exempt all objects that exist now from later collections; once per process."""
    gc.collect()
    gc.freeze()
