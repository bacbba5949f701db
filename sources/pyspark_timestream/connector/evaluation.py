"""The start of the evaluation of a batch read, as its tasks see it.

Spark plans a batch read of a Python source once for each `load()`, at the first evaluation, and
keeps the pickled reader and its partitions for all later evaluations of that DataFrame or view.
Only `reader.read` runs each time, in tasks. So a reader's knowledge may predate the evaluation.

Every task of an evaluation has the same local property `spark.sql.execution.query.id`: a UUID of
version 7, whose first 48 bits are the driver's clock in milliseconds when the evaluation began.
Tasks on any host can thus agree on a moment without talking to each other. An RDD made of a
DataFrame (`df.rdd`) has no such property: it keeps what was planned.
"""

import uuid
from typing import Final

from pyspark import TaskContext

__all__ = ["find_later_start", "read_start_time"]

_QUERY_ID: Final = "spark.sql.execution.query.id"


def read_start_time(query_id: str | None) -> int | None:
    """The time that a UUID of version 7 carries, in microseconds since 1970; None for other texts.

    >>> read_start_time("01a204d9-da52-7988-815e-c4603c9b746c")
    1795377715794000
    """
    try:
        number = uuid.UUID(query_id or "")
    except ValueError:
        return None
    return (number.int >> 80) * 1000 if number.version == 7 else None


def find_later_start(planned_us: int) -> int | None:
    """The start of the evaluation that this task belongs to, if it began after planning.

    Args:
        planned_us: the driver's clock, read before anything else when planning.

    Returns:
        Microseconds since 1970 by the driver's clock, whole milliseconds, the same in all tasks of
        the evaluation; None if the plan belongs to this evaluation, or its start is unknown.
    """
    task = TaskContext.get()
    us = None if task is None else read_start_time(task.getLocalProperty(_QUERY_ID))
    return None if us is None or us <= planned_us else us
