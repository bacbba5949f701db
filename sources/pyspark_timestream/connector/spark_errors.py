"""Hides the traceback of own errors in Spark workers, so that one line with the advice remains.

Spark's workers send an exception to the driver as the text of its traceback, and the driver prints
that text inside a message of its own, often twice. The frames of this package's own errors help
no one: these errors are about the user's input. So the traceback is left out, as Spark itself
can do.
"""

import functools
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from pyspark_timestream.connector.why import is_own_error
from pyspark_timestream.errors import wrap_methods

__all__ = ["RefusedReader", "hide_tracebacks"]

C = TypeVar("C", bound=type)

_HIDE_VARIABLE: Final = "SPARK_HIDE_TRACEBACK"
"""The variable that Spark's workers read when they format an exception; any text means yes."""


def hide_tracebacks(adapter: C) -> C:
    """The class decorator of everything that Spark's workers call.

    An own error that a public method or `__init__` raises, or an iterator that it returns, reaches
    the driver without its traceback. Every other exception is a bug here, and keeps it.
    """
    return wrap_methods(lambda _: _mark_own_errors())(adapter)


@functools.cache
def _end_quietly() -> None:
    """Let the traceback be left out that Spark's daemon prints when a query stops.

    Spark closes the connection to the process of a source or sink, and the daemon then fails to
    flush its last answer, which nobody awaits.
    """
    daemon = sys.modules.get("__main__")
    if getattr(getattr(daemon, "__spec__", None), "name", None) == "pyspark.daemon":
        daemon.traceback = _TracebacksOfFailures()  # type: ignore[union-attr]


class _TracebacksOfFailures:
    """The module `traceback`, except that a connection closed by the other side is no failure."""

    def __getattr__(self, name: str) -> object:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


@contextmanager
def _mark_own_errors() -> Iterator[None]:
    _end_quietly()
    try:
        yield
    except Exception as error:
        # A worker ends with the first exception, so nothing else is hidden by this.
        if is_own_error(error) and _is_spark_worker():
            os.environ[_HIDE_VARIABLE] = "1"
        raise


def _is_spark_worker() -> bool:
    """True if this process runs one of PySpark's own modules, as all workers and no drivers do."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


@hide_tracebacks
class RefusedReader(DataSourceStreamReader):
    """A reader that raises the reason why there is none.

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
