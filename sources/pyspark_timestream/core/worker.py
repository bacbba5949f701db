"""What all adapters to Spark share: errors, logs, evaluations, tables.

Spark's workers send an exception to the driver as the text of its traceback, and the driver prints
that text inside a message of its own, often twice. The frames of this package's own errors help
no one: these errors are about the user's input. So the traceback is left out, as Spark itself
can do.

Logs of Spark's Python workers go to the driver's standard error, but Python writes them without
level or time, so a search for WARN would not find them.

Workers collect garbage after each task and walk through every object of every module for it: 12 to
38 ms of a core with Arrow and pandas. What survives the first task stays.

Spark plans a batch read of a Python source once for each `load()`, at the first evaluation, and
keeps the pickled reader and its partitions for all later evaluations of that DataFrame or view.
Only `reader.read` runs each time, in tasks. So a reader's knowledge may predate the evaluation.

Every task of an evaluation has the same local property `spark.sql.execution.query.id`: a UUID of
version 7, whose first 48 bits are the driver's clock in milliseconds when the evaluation began.
Tasks on any host can thus agree on a moment without talking to each other. An RDD made of a
DataFrame (`df.rdd`) has no such property: it keeps what was planned.

`CREATE TABLE name USING format OPTIONS (...)` without columns asks a Python source for them, with
the options and much of Spark's own: `provider`, `owner`, `location`, the table's properties, and
each option a second time as `option.NAME`. A read of the table gives the source these columns, and
no option at all. So the source puts the options into the metadata of the first column, which the
catalog keeps, and finds them there.

A write to the table comes with that metadata too, but so does one to any other place of rows that
were read from the table. So they count in reads alone, and only where no option is given: options
that are named at a read (`WITH (...)`, `.option(...)`) are all that it has.
"""

import functools
import gc
import logging
import os
import sys
import traceback
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructField, StructType

from pyspark_timestream.core.options import is_secret
from pyspark_timestream.core.why import is_own_error
from pyspark_timestream.errors import OptionError, wrap_methods

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


_MARK: Final = "provider"
_OPTION: Final = "option."
_PATH: Final = "path"
_TABLE_KEY: Final = "timestream.tableOptions"


def read_definition(raw: Mapping[str, str], view: str) -> dict[str, str] | None:
    """The user's options in what `CREATE TABLE` asks with; None if it does not ask.

    Args:
        raw: option name in any case -> text.
        view: the statement to go on with where a table cannot have the options.

    Raises:
        OptionError: an option is a secret, and the columns of a table are no place for one.
    """
    given = {key.lower(): value for key, value in raw.items()}
    if _MARK not in given:
        return None
    options = {
        key[len(_OPTION) :]: value for key, value in given.items() if key.startswith(_OPTION)
    }
    places = [given[name] for name in (_PATH, "location") if name in given]
    for name, value in [*options.items(), *((_PATH, place) for place in places)]:
        if is_secret(name, value):
            raise OptionError(
                name,
                "it is a secret, and everyone who may read a table of Spark's catalog (CREATE "
                "TABLE) sees its options",
                "tables without secrets",
                f"a temporary view, which is of this session alone: {view}",
            )
    return options | ({_PATH: places[0]} if places else {})


def keep_options(schema: StructType, options: Mapping[str, str], source: str) -> StructType:
    """The columns `schema` of a table of format `source`, with its options."""
    first, *others = schema.fields
    kept = {**first.metadata, _TABLE_KEY: {"format": source, "options": dict(options)}}
    field = StructField(first.name, first.dataType, first.nullable, kept)
    return StructType([field, *others])


def restore_options(
    raw: Mapping[str, str], schema: StructType, source: str
) -> dict[str, str] | None:
    """The options of the table that is read without any, by its columns; None if it is none."""
    if raw:
        return None
    kept = [field.metadata[_TABLE_KEY] for field in schema.fields if _TABLE_KEY in field.metadata]
    if not kept or kept[0].get("format") != source:
        return None
    return dict(kept[0]["options"])


def drop_options(schema: StructType) -> StructType:
    """The columns `schema` without the options of a table."""
    return StructType(
        [
            StructField(
                field.name,
                field.dataType,
                field.nullable,
                {key: value for key, value in field.metadata.items() if key != _TABLE_KEY},
            )
            for field in schema.fields
        ]
    )
