"""The context that Spark's worker gives the code of a task, without Spark."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext


@contextmanager
def in_task(partition: int = 0, **properties: str) -> Iterator[None]:
    """Run the block as the task of a partition, with these properties of its query.

    Dots of a property's name are written as two underscores.
    """
    TaskContext._setTaskContext(None)
    task = TaskContext._getOrCreate()
    task._partitionId = partition
    task._localProperties = {name.replace("__", "."): text for name, text in properties.items()}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)
