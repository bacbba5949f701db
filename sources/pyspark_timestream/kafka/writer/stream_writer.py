"""Writes batches to a topic: rows in the tasks, then marks from the driver (semantics 29).

A task writes its rows in one transaction; after all tasks the driver writes the mark into every
partition, in a transaction too. `commits.py` has the driver's part, `ledger.py` how an attempt
knows what earlier ones have written, and `producer/batch_transaction.py` how it keeps them from
writing any more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.connector.spark_errors import hide_tracebacks
from pyspark_timestream.connector.worker import freeze_objects, log_like_spark
from pyspark_timestream.errors import SettingRefused
from pyspark_timestream.kafka.writer.commits import BatchCommits, QueryRun, repeat
from pyspark_timestream.kafka.writer.ledger import (
    Entry,
    Place,
    check_rows,
    is_written,
)
from pyspark_timestream.kafka.writer.options import KafkaWriteOptions, read_write_options
from pyspark_timestream.kafka.writer.rows import (
    TaskRows,
    check_columns,
    find_cti_source,
)
from pyspark_timestream.kafka.writer.watermark import find_checkpoint, read_watermark
from pyspark_timestream.producer.batch_transaction import BatchTransaction

__all__ = ["KafkaStreamWriter", "open_stream_writer"]

_COMMITS: Final = BatchCommits()
"""This process's, for all batches of all queries."""


@dataclass(frozen=True, slots=True)
class WrittenTask(WriterCommitMessage):
    """The share of a batch that a task has written, or found written.

    Attributes:
        query_id: the streaming query.
        run_id: its run.
        task: its number in the batch.
        rows: how many rows of data it had.
        cti_us: its greatest CTI; None without one.
    """

    query_id: str
    run_id: str
    task: int
    rows: int
    cti_us: int | None


def open_stream_writer(
    raw: Mapping[str, Any], schema: StructType, overwrite: bool
) -> "KafkaStreamWriter":
    """The writer of one batch, with everything checked that can be without a broker.

    Raises:
        OptionError: an option is wrong, or does not fit the columns.
        SchemaRefused: the columns cannot be records.
    """
    log_like_spark("pyspark_timestream")
    options = read_write_options(raw)
    if overwrite:
        raise OptionError(
            "outputMode",
            "'complete' would write every result again in each batch, below its marks",
            "'append'",
            "use outputMode('append'): a result is written once, when it is final",
        )
    columns = to_arrow_schema(schema, timezone="UTC")
    check_columns(columns)
    source = find_cti_source(options.cti_from, columns.names)
    checkpoint = find_checkpoint(raw) if source == "watermark" else None
    return KafkaStreamWriter(options, checkpoint)


@hide_tracebacks
class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch; can be pickled.

    Args:
        options: the options.
        checkpoint: where to read the batch's watermark; None: CTIs come with the rows.
    """

    def __init__(self, options: KafkaWriteOptions, checkpoint: Path | None) -> None:
        self._options, self._checkpoint = options, checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenTask:
        """Write a task's rows in one transaction, unless an earlier attempt has."""
        query_id, run_id, batch, task = _identify_task()
        rows = TaskRows(self._options.header, iterator)
        if rows.has_rows():
            place = Place.of(self._options, query_id, task)
            repeat(lambda: _write(self._options, place, batch, rows), rows.rewind)
        freeze_objects()
        return WrittenTask(query_id, run_id, task, rows.count, rows.cti_us)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write the mark of the batch, behind its rows, unless it is written."""
        tasks = [message for message in messages if isinstance(message, WrittenTask)]
        if not tasks:
            return
        run = QueryRun(tasks[0].query_id, tasks[0].run_id)
        with_rows = {each.task for each in tasks if each.rows}
        _COMMITS.check_tasks(self._options, run, batchId, with_rows)
        mark_us = self._options.find_mark(self._find_cti(tasks, batchId))
        if mark_us is not None:
            _COMMITS.write_mark(self._options, run, batchId, mark_us)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what tasks have committed stays, and the next attempt finds it."""

    def _find_cti(self, tasks: Sequence[WrittenTask], batch: int) -> int | None:
        if self._checkpoint is not None:
            return read_watermark(self._checkpoint, batch)
        return max((each.cti_us for each in tasks if each.cti_us is not None), default=None)


def _write(options: KafkaWriteOptions, place: Place, batch: int, rows: TaskRows) -> None:
    """Write the rows in a transaction of its own, unless the batch is written already."""
    transaction = BatchTransaction(
        options.client, options.topic, place.transactional_id, place.group
    )
    try:
        last = Entry.decode(*transaction.read_entry())
        if last is not None and is_written(last, batch, place):
            while rows.next_block():
                pass
            check_rows(last, rows.count, place)
            return
        transaction.begin()
        try:
            while block := rows.next_block():
                transaction.send(*block)
            transaction.commit(*Entry(batch, rows=rows.count).encode())
        except BaseException:
            transaction.abort()
            raise
    finally:
        transaction.close()


def _identify_task() -> tuple[str, str, int, int]:
    """The query, its run, the batch and the number of the task that runs here."""
    task = TaskContext.get()
    assert task is not None
    query_id = task.getLocalProperty("sql.streaming.queryId")
    batch = task.getLocalProperty("streaming.sql.batchId")
    if not query_id or batch is None:
        # Without them, batches could be mistaken for each other.
        raise SettingRefused(
            "Spark did not tell the task which query and batch it works for "
            "(sql.streaming.queryId, streaming.sql.batchId)",
            "a streaming query",
            "write with writeStream. Nothing of the batch is written",
        )
    # Spark makes the run the job group of the query's thread.
    run_id = task.getLocalProperty("spark.jobGroup.id") or f"{query_id}/{batch}"
    return query_id, run_id, int(batch), task.partitionId()
