"""Warnings in the driver's log, in the form of Spark's own lines.

What Spark's Python workers log goes to the driver's standard error, but Python writes a message
without its level or its time there, so that nobody who looks for WARN would find it.
"""

import logging
from typing import Final

__all__ = ["log_like_spark"]

_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class SparkForm(logging.Formatter):
    """Lines such as `26/11/22 20:02:35 WARN pyspark_timestream: what is wrong`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line of `record`."""
        record.level = _LEVELS.get(record.levelname, record.levelname)
        return super().format(record)


def log_like_spark(package: str) -> None:
    """Write what `package` logs as Spark does, unless somebody has set up logging."""
    logger = logging.getLogger(package)
    if logging.root.handlers or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(SparkForm())
    logger.addHandler(handler)
