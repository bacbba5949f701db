"""How an error of ours leaves a Spark worker: as one line, which says what to do.

Spark's workers send an exception to the driver as the text of its traceback, and the driver prints
that text inside a message of its own, often twice. Of our own errors the frames help nobody: they
are about what the user wrote, and say so. So their traceback is left out, as Spark itself can do.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from pyspark_timestream.connector.error_text import is_own_error

__all__ = ["RefusedReader", "brief_errors"]

C = TypeVar("C", bound=type)

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""What Spark's workers look at when they format an exception; any text means yes."""


def brief_errors(adapter: C) -> C:
    """The class decorator of everything that Spark's workers call.

    An error of ours that a public method raises, or an iterator that it returns, reaches the
    driver without its traceback. Every other exception, a fault of ours, keeps it.
    """
    for name, method in list(vars(adapter).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(adapter, name, _brief(method))
    return adapter


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def entry(*arguments: Any, **named: Any) -> Any:
        with _hiding_tracebacks():
            result = method(*arguments, **named)
        return _brief_items(result) if isinstance(result, Iterator) else result

    return entry


def _brief_items(items: Iterator[Any]) -> Iterator[Any]:
    with _hiding_tracebacks():
        yield from items


@contextmanager
def _hiding_tracebacks() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # A worker ends with the first exception, so nothing else is hidden by this.
        if is_own_error(error) and _is_spark_worker():
            os.environ[_HIDE] = "1"
        raise


def _is_spark_worker() -> bool:
    """Whether this process runs one of PySpark's own modules, as all workers and no drivers do."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


@brief_errors
class RefusedReader(DataSourceStreamReader):
    """A reader that says why there is none.

    An error in `streamReader` itself is hidden by one of Spark's own (it stops a reader that it
    does not have yet), so it is raised at the first call instead, before any task.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the reason."""
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the reason."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the reason."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Raise the reason."""
        raise self._error
