"""Writes to topics: rows in the tasks, then marks from the driver, if there are any (semantics 29).

A task writes its rows in one transaction; after all tasks the driver writes the mark into every
partition, in a transaction too. `commits.py` has the driver's part, `ledger.py` how an attempt
knows what earlier ones have written, and `producer/batch_transaction.py` how it keeps them from
writing any more.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
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
    CTI,
    TOPIC,
    TaskRows,
    check_columns,
    find_cti_source,
)
from pyspark_timestream.kafka.writer.watermark import find_checkpoint, read_watermark
from pyspark_timestream.producer.batch_transaction import BatchTransaction

__all__ = ["KafkaBatchWriter", "KafkaStreamWriter", "open_batch_writer", "open_stream_writer"]

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
    options, columns = _read(raw, schema)
    source = find_cti_source(options.cti_from, columns.names, wants_marks=options.wants_marks)
    if overwrite and source is not None:
        raise OptionError(
            "outputMode",
            "'complete' would write every result again in each batch, below its marks",
            "'append'",
            "use outputMode('append'): a result is written once, when it is final",
        )
    if source is not None and options.writer is None:
        raise OptionError(
            "writer",
            "it is missing, and there are CTIs, which become marks of a writer",
            "a name without commas and without blanks at its ends",
            "give each query a name of its own, which stays the same; or drop the column 'cti', to "
            "write rows without marks",
        )
    check_columns(columns, has_marks=source is not None)
    _check_topic(options, columns, has_marks=source is not None)
    checkpoint = find_checkpoint(raw) if source == "watermark" else None
    return KafkaStreamWriter(options, checkpoint, has_marks=source is not None)


def open_batch_writer(
    raw: Mapping[str, Any], schema: StructType, overwrite: bool
) -> "KafkaBatchWriter":
    """The writer of a batch write, with everything checked that can be without a broker.

    Raises:
        OptionError: an option is wrong, or does not fit the columns.
        SchemaRefused: the columns cannot be records.
    """
    options, columns = _read(raw, schema)
    if overwrite:
        raise OptionError(
            "mode",
            "'overwrite', and the records of a topic stay",
            "'append'",
            "use mode('append')",
        )
    if options.wants_marks or CTI in columns.names:
        raise OptionError(
            "writer",
            "marks were asked for (by 'writer', an option on CTIs, or a column 'cti'), and a "
            "batch write writes rows alone",
            "a streaming write for rows with marks",
            "use writeStream with trigger(availableNow=True); or leave the options on marks out, "
            "and drop CTI rows: where('cti IS NULL').drop('cti')",
        )
    check_columns(columns, has_marks=False)
    _check_topic(options, columns, has_marks=False)
    return KafkaBatchWriter(options, uuid.uuid4().hex)


def _read(raw: Mapping[str, Any], schema: StructType) -> tuple[KafkaWriteOptions, pa.Schema]:
    log_like_spark("pyspark_timestream")
    return read_write_options(raw), to_arrow_schema(schema, timezone="UTC")


def _check_topic(options: KafkaWriteOptions, columns: pa.Schema, *, has_marks: bool) -> None:
    if options.topic is None and (has_marks or TOPIC not in columns.names):
        raise OptionError(
            "topic",
            "it is missing",
            "the name of one topic" + ("" if has_marks else "; or a column 'topic'"),
            "set it" if has_marks else "set it, or select a column 'topic' as well",
        )


@hide_tracebacks
class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one DataFrame, without marks; can be pickled.

    Args:
        options: the options.
        write_id: names this write, so that each attempt at a task finds what others have written.
    """

    def __init__(self, options: KafkaWriteOptions, write_id: str) -> None:
        self._options, self._id = options, write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows in one transaction, unless another attempt has."""
        task = TaskContext.get()
        assert task is not None
        rows = TaskRows(None, iterator, by_topic=self._options.topic is None)
        if rows.has_rows():
            place = Place.of(self._options, self._id, task.partitionId())
            repeat(lambda: _write(self._options, place, 0, rows), rows.rewind)
        freeze_objects()
        return WriterCommitMessage()


@hide_tracebacks
class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch; can be pickled.

    Args:
        options: the options.
        checkpoint: where to read the batch's watermark; None: CTIs come with the rows.
        has_marks: there are CTIs.
    """

    def __init__(
        self, options: KafkaWriteOptions, checkpoint: Path | None, *, has_marks: bool
    ) -> None:
        self._options, self._checkpoint, self._has_marks = options, checkpoint, has_marks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenTask:
        """Write a task's rows in one transaction, unless an earlier attempt has."""
        query_id, run_id, batch, task = _identify_task()
        header = self._options.header if self._has_marks else None
        rows = TaskRows(header, iterator, by_topic=self._options.topic is None)
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
        if not self._has_marks:
            return
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
