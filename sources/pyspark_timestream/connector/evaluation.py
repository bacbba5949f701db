"""When Spark began the evaluation of a batch read that a task belongs to.

Spark plans a batch read of a Python source once a `load()`, at the first evaluation, and keeps the
pickled reader and its partitions for all later evaluations of that DataFrame or view. Only
`reader.read` runs each time, in tasks. So what a reader knows may be older than the evaluation.

Every task of an evaluation has the same local property `spark.sql.execution.query.id`: a UUID of
version 7, whose first 48 bits are the driver's clock in milliseconds when the evaluation began.
Tasks on any host can thus agree on a moment without talking to each other. An RDD made of a
DataFrame (`df.rdd`) has no such property: it keeps what was planned.
"""

import uuid
from typing import Final

from pyspark import TaskContext

__all__ = ["began_us", "later_evaluation_us"]

_QUERY_ID: Final = "spark.sql.execution.query.id"


def began_us(query_id: str | None) -> int | None:
    """The time that a UUID of version 7 carries, in microseconds since 1970; None for other texts.

    >>> began_us("01a204d9-da52-7988-815e-c4603c9b746c")
    1795377715794000
    """
    try:
        number = uuid.UUID(query_id or "")
    except ValueError:
        return None
    return (number.int >> 80) * 1000 if number.version == 7 else None


def later_evaluation_us(planned_us: int) -> int | None:
    """When the evaluation of this task began, where that was after the read was planned.

    Args:
        planned_us: the driver's clock, read before anything else was looked at when planning.

    Returns:
        Microseconds since 1970 by the driver's clock, whole milliseconds, the same in all tasks of
        the evaluation; None where the plan is of this evaluation, or none can be told.
    """
    task = TaskContext.get()
    us = None if task is None else began_us(task.getLocalProperty(_QUERY_ID))
    return None if us is None or us <= planned_us else us
