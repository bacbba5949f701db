"""Shared by all adapters that Spark calls: tracebacks, logs, tables, and handing over rows.

A table (`CREATE TABLE name USING format OPTIONS (...)` without columns) needs a detour. Spark then
asks the Python source for columns, and passes the options as `option.NAME` among entries of its
own. But when the table is read, Spark passes these columns and no options. So the source keeps the
options in the metadata of the first column, which the catalog stores.

Only reads without options use that metadata. Options given at a read (`WITH (...)`, `.option(...)`)
replace all of the table's. Writes ignore the metadata, because rows read from the table carry it to
every other sink.

The rows of a small batch are handed to Spark together with the batch's partitions (semantics 8.9).
Right after `partitions`, Spark's process of a source asks whether the reader is the wrapper of a
simple reader. A simple reader gives the batch's rows at once: Spark keeps them as a block, which
the batch's only task reads without a Python process. If the block is lost, the task calls `read` as
usual. Spark has no public way to do this, and the wrapper itself gives up reported offsets and
limits. So `HandingReader` passes for the wrapper only while it has rows to hand over.
"""

import functools
import gc
import logging
import os
import sys
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructField, StructType

from pyspark_timestream.core.declarations import is_secret
from pyspark_timestream.core.processes import leave_out_pandas
from pyspark_timestream.core.why import is_own_error
from pyspark_timestream.errors import OptionError, wrap_methods

_LOG: Final = logging.getLogger(__name__)

C = TypeVar("C", bound=type)
E = TypeVar("E")

_HIDE_VARIABLE: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's workers read this variable when they format an exception; any text means yes."""


def hide_tracebacks(adapter: C) -> C:
    """Decorate a class that Spark's workers call, so that its own errors have no traceback.

    Spark's workers send an exception to the driver as the text of its traceback, and the driver
    often prints it twice. Our own errors are about the user's input, so their frames help no one.
    This covers public methods, `__init__` and the iterators that they return. Any other exception
    is a bug here, and keeps its traceback.
    """
    return wrap_methods(lambda _, error: _mark_own_error(error), _prepare_process)(adapter)


_SOURCE_PROCESS: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that runs in the process of a source; each start of a query starts one."""


@functools.cache
def _prepare_process() -> None:
    """Let a process of Spark end quietly, and a source's process start quickly.

    Spark closes the connection to the process of a source or sink when a query stops; its daemon
    then fails to flush an answer that nobody awaits, and prints a traceback.
    """
    module = _find_spark_module()
    if module == "pyspark.daemon":
        sys.modules["__main__"].traceback = _TracebacksOfFailures()  # type: ignore[attr-defined]
    elif module == _SOURCE_PROCESS:
        leave_out_pandas()


class _TracebacksOfFailures:
    """The module `traceback`, but silent about a connection that the other side closed."""

    def __getattr__(self, name: str) -> object:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


def _mark_own_error(error: Exception) -> None:
    # A worker ends with its first exception, so this hides no other one.
    if is_own_error(error) and _find_spark_module():
        os.environ[_HIDE_VARIABLE] = "1"


def _find_spark_module() -> str | None:
    """Return the module of PySpark that this process runs, as all workers and no drivers do."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None and spec.name.startswith("pyspark.") else None


@hide_tracebacks
class RefusedReader(DataSourceStreamReader):
    """A reader that raises, at the first call, the error that prevented the real one.

    If `streamReader` itself raised, Spark would hide the error behind its own: it would try to stop
    a reader that it does not have yet. The first call still comes before any task.
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
    """Formats lines such as `26/11/22 20:02:35 WARN pyspark_timestream: what is wrong`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        record.level = _LEVELS.get(record.levelname, record.levelname)
        return super().format(record)


def log_like_spark(package: str) -> None:
    """Format the log of `package` as Spark does, unless logging is already configured.

    Python's default has no level or time, so a search for WARN in the driver's log would miss it.
    """
    logger = logging.getLogger(package)
    if logging.root.handlers or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(SparkFormatter())
    logger.addHandler(handler)


@functools.cache
def freeze_objects() -> None:
    """Exempt all objects that exist now from later garbage collections; once per process.

    Workers collect after each task, which costs 12 to 38 ms of a core with Arrow and pandas loaded.
    """
    gc.collect()
    gc.freeze()


_QUERY_ID: Final = "spark.sql.execution.query.id"


def read_start_time(query_id: str | None) -> int | None:
    """Return the time in a UUID of version 7, in microseconds since 1970; None for other texts.

    >>> read_start_time("01a204d9-da52-7988-815e-c4603c9b746c")
    1795377715794000
    """
    try:
        number = uuid.UUID(query_id or "")
    except ValueError:
        return None
    return (number.int >> 80) * 1000 if number.version == 7 else None


def find_later_start(planned_us: int) -> int | None:
    """Return the start of the evaluation that this task belongs to, if it began after planning.

    Spark plans a batch read once per `load()` and reuses the pickled reader in later evaluations of
    the DataFrame, so the reader's knowledge may be older than the evaluation. All tasks of an
    evaluation share the local property `spark.sql.execution.query.id`, a UUID of version 7 that
    contains the driver's clock when the evaluation began, in milliseconds. `df.rdd` has no such
    property. `planned_us` is the driver's clock, read before anything else when planning.
    """
    task = TaskContext.get()
    us = None if task is None else read_start_time(task.getLocalProperty(_QUERY_ID))
    return None if us is None or us <= planned_us else us


_ASKS_FOR_COLUMNS: Final = "provider"
"""Spark passes this property of a table along only when `CREATE TABLE` asks for the columns."""

_OPTION: Final = "option."
_PATH: Final = "path"
_TABLE_KEY: Final = "timestream.tableOptions"


def read_definition(raw: Mapping[str, str], view: str) -> dict[str, str] | None:
    """Return the user's options if `CREATE TABLE` asks for columns; None if something else does.

    Args:
        raw: option name in any case -> text.
        view: the statement that the error suggests instead of a table.

    Raises:
        OptionError: an option is a secret, which a table would show to everyone who may read it.
    """
    by_lower_name = {key.lower(): value for key, value in raw.items()}
    if _ASKS_FOR_COLUMNS not in by_lower_name:
        return None
    options = {
        key[len(_OPTION) :]: value
        for key, value in by_lower_name.items()
        if key.startswith(_OPTION)
    }
    locations = [by_lower_name[name] for name in (_PATH, "location") if name in by_lower_name]
    for name, value in [*options.items(), *((_PATH, location) for location in locations)]:
        if is_secret(name, value):
            raise OptionError(
                name,
                "it is a secret, and everyone who may read a table of Spark's catalog (CREATE "
                "TABLE) sees its options",
                "tables without secrets",
                f"a temporary view, which only this session sees: {view}",
            )
    return options | ({_PATH: locations[0]} if locations else {})


def keep_options(schema: StructType, options: Mapping[str, str], source: str) -> StructType:
    """Add the options of a table of format `source` to its columns `schema`."""
    first_field, *others = schema.fields
    metadata = {**first_field.metadata, _TABLE_KEY: {"format": source, "options": dict(options)}}
    field = StructField(first_field.name, first_field.dataType, first_field.nullable, metadata)
    return StructType([field, *others])


def restore_options(
    raw: Mapping[str, str], schema: StructType, source: str
) -> dict[str, str] | None:
    """Return a table's options from its columns; None if `raw` has options or it is not a table."""
    if raw:
        return None
    tables = [field.metadata[_TABLE_KEY] for field in schema.fields if _TABLE_KEY in field.metadata]
    if not tables or tables[0].get("format") != source:
        return None
    return dict(tables[0]["options"])


def drop_options(schema: StructType) -> StructType:
    """Remove a table's options from the columns `schema`."""
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


_WRAPPER: Final[type | None] = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)

CAN_HAND_OVER: Final = hasattr(_WRAPPER, "getCache")
"""Whether this version of Spark takes rows along with partitions."""

MAX_HANDED_BYTES: Final = 32 * 1024 * 1024
"""Spark's process of the source holds at most about this much of a batch, twice while it sends."""


def collect_rows(
    batches: Iterable[pa.RecordBatch], max_bytes: int = MAX_HANDED_BYTES
) -> list[pa.RecordBatch] | None:
    """Return all `batches`; None once they take more than `max_bytes`."""
    rows, bytes_left = [], max_bytes
    for batch in batches:
        bytes_left -= batch.nbytes
        if bytes_left < 0:
            return None
        rows.append(batch)
    return rows


def can_be_taken(rows: Iterable[pa.RecordBatch]) -> bool:
    """Return whether Spark can take these rows along: it copies them, and fails at some nulls.

    A null among the numbers, times or truth values of a list or map ends its copy with
    `Value at index is null` (`ColumnarArray.copy`, Spark 4.3). A task's rows are not copied so.
    """
    return not any(_has_null_item(column) for batch in rows for column in batch.columns)


def _has_null_item(column: pa.Array) -> bool:
    data_type = column.type
    if pa.types.is_struct(data_type):
        return any(_has_null_item(column.field(number)) for number in range(data_type.num_fields))
    if pa.types.is_map(data_type):
        items = [column.keys, column.items]
    elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        items = [column.values]
    else:
        return False
    return any(
        (array.null_count > 0 and pa.types.is_primitive(array.type)) or _has_null_item(array)
        for array in items
    )


@hide_tracebacks
class HandingReader(DataSourceStreamReader):
    """A stream reader that may hand over a batch's rows along with a single partition."""

    _rows: list[pa.RecordBatch] | None = None
    _handed_schema: pa.Schema | None = None
    _fits = True

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Spark takes rows only if `isinstance` finds its wrapper.
        return type(self) if self._rows is None else _WRAPPER

    def __reduce__(self) -> tuple[Any, ...]:
        # Only Spark takes rows: a copy has none. Pickle would compare `__class__` with the type.
        state = {**(self.__getstate__() or {}), "_rows": None}  # type: ignore[dict-item]
        return _create, (type(self),), state

    @property
    def can_hand_over(self) -> bool:
        """Whether this version of Spark takes rows of this schema along with partitions."""
        return CAN_HAND_OVER and self._fits

    def set_handed_schema(self, schema: StructType) -> None:
        """Set the schema that Spark reads the rows with; without a call they go as they are.

        Unlike rows that a task returns, Spark refuses these if a column's metadata is missing
        (columns of a catalog's table have some), or if Arrow cannot express its type, such as a
        collation.
        """
        self._handed_schema = to_arrow_schema(schema, timezone="UTC")
        self._fits = from_arrow_schema(self._handed_schema, prefer_timestamp_ntz=True) == schema

    def hand_over(self, rows: list[pa.RecordBatch]) -> None:
        """Let Spark take `rows` after this call of `partitions`, which returns one partition.

        From here until `getCache` this object passes for Spark's wrapper.
        """
        self._rows = rows

    def getCache(self, _start: dict[str, Any], _end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Give Spark the rows; it asks right after `partitions`, and once."""
        rows, self._rows = self._rows or (), None
        if self._handed_schema is None:
            return iter(rows)
        return iter(
            [
                pa.RecordBatch.from_arrays(batch.columns, schema=self._handed_schema)
                for batch in rows
            ]
        )


def _create(kind: type[HandingReader]) -> HandingReader:
    return kind.__new__(kind)


PendingRows = Future[tuple[list[pa.RecordBatch] | None, E]]
"""The rows of a batch, None if they are too large to be handed over, and where it ended."""


class HandOver(Generic[E]):
    """Reads a stream's small batches in this process, so that their rows are handed over.

    A thread reads a batch while Spark writes its offset to the checkpoint. A batch that cannot be
    read here, or is too large, is left to a task. `E` tells where a task ended.

    Args:
        max_records: leave batches with more records to tasks.
        needs_task: whether a task reads a run's first records, because only a task sees the
            settings of the session.
    """

    def __init__(self, max_records: int, *, needs_task: bool) -> None:
        self.max_records = max_records
        self.needs_task = needs_task
        self._thread: ThreadPoolExecutor | None = None

    def begin(
        self, records: int, read: Callable[[], tuple[Iterable[pa.RecordBatch], E]]
    ) -> PendingRows[E] | None:
        """Begin to read a batch of `records` records; return None to leave it to its task."""
        if records > self.max_records or (records and self.needs_task):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "timestream-read-ahead")

        def collect() -> tuple[list[pa.RecordBatch] | None, E]:
            rows, end = read()
            return collect_rows(rows), end

        return self._thread.submit(collect)

    def finish(
        self, records: int, pending: PendingRows[E] | None
    ) -> tuple[list[pa.RecordBatch], E] | None:
        """Return the rows of a batch, and where it ended; None leaves it to its tasks."""
        taken = None if pending is None else self.take(records, pending.result)
        if taken is None and records:
            self.needs_task = False
        return taken

    def take(
        self, records: int, get_rows: Callable[[], tuple[list[pa.RecordBatch] | None, E]]
    ) -> tuple[list[pa.RecordBatch], E] | None:
        """Return the rows and end from `get_rows` for a batch; None leaves the batch to its task.

        `get_rows` returns None for rows that are too large to be handed over.
        """
        try:
            rows, end = get_rows()
        except Exception as error:
            # Do not raise here: the task reads the batch again and reports the error itself, unless
            # one of the attempts that Spark gives it succeeds.
            _LOG.info("a task reads the batch, since reading it here failed: %s", error)
            return None
        if rows is None:
            # Its records are large, so reading such batches twice would be the rule.
            self.max_records = records // 2
            return None
        return (rows, end) if can_be_taken(rows) else None
