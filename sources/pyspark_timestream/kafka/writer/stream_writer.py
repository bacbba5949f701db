"""Writes batches to a topic: rows in the tasks, then marks from the driver (semantics 29).

A task writes its rows in one transaction; after all tasks the driver writes the mark into every
partition, in a transaction too. `ledger.py` has how an attempt knows what earlier ones have
written, and `producer/batch_transaction.py` how it keeps them from writing any more.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_timestream.connector.driver_log import log_like_spark
from pyspark_timestream.connector.instants import FINAL_US, format_instant
from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.connector.spark_errors import hide_tracebacks
from pyspark_timestream.connector.worker_memory import freeze_objects
from pyspark_timestream.errors import SettingRefused
from pyspark_timestream.kafka.writer.ledger import (
    MARKS,
    Entry,
    Place,
    check_rows,
    check_tasks,
    is_written,
)
from pyspark_timestream.kafka.writer.options import KafkaWriteOptions, read_write_options
from pyspark_timestream.kafka.writer.rows import (
    build_messages,
    check_columns,
    find_cti_source,
    split_ctis,
)
from pyspark_timestream.kafka.writer.watermark import find_checkpoint, read_watermark
from pyspark_timestream.producer.batch_transaction import BatchTransaction
from pyspark_timestream.producer.marks import Writer

__all__ = ["KafkaStreamWriter", "open_stream_writer"]

_LOG: Final = logging.getLogger(__name__)

_DRIVER_TRANSACTIONS: Final[dict[tuple[Any, ...], BatchTransaction]] = {}
"""The driver's transactions of this process by settings and place; one client for all batches."""


@dataclass(frozen=True, slots=True)
class WrittenTask(WriterCommitMessage):
    """What a task has written, or found written.

    Attributes:
        query_id: the streaming query.
        rows: how many rows of data it had.
        cti_us: its greatest CTI; None without one.
    """

    query_id: str
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
        query_id, batch, task = _identify_task()
        rows = _TaskRows(self._options, iterator)
        first = rows.next_messages()
        if first:
            place = Place.of(self._options, query_id, task)
            transaction = _open(self._options, place)
            try:
                _write_once(transaction, place, batch, first, rows)
            finally:
                transaction.close()
        freeze_objects()
        return WrittenTask(query_id, rows.count, rows.cti_us)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write the mark of the batch, behind its rows, unless it is written."""
        tasks = [message for message in messages if isinstance(message, WrittenTask)]
        if not tasks:
            return
        mark_us = self._options.find_mark(self._find_cti(tasks, batchId))
        if mark_us is None:
            return
        query_id = tasks[0].query_id
        place = Place.of(self._options, query_id, MARKS)
        key = (*sorted(self._options.client.items()), place)
        try:
            transaction = _DRIVER_TRANSACTIONS.get(key)
            if transaction is None:
                transaction = _DRIVER_TRANSACTIONS[key] = _open(self._options, place)
                # The first batch of a run may be one that comes again.
                beyond = Place.of(self._options, query_id, len(tasks))
                entry = Entry.decode(*transaction.read_entry_of(beyond.group))
                check_tasks(entry, batchId, len(tasks))
            self._write_mark(transaction, place, batchId, mark_us)
        except BaseException:
            _DRIVER_TRANSACTIONS.pop(key, None)
            raise

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what tasks have committed stays, and the next attempt finds it."""

    def _find_cti(self, tasks: Sequence[WrittenTask], batch: int) -> int | None:
        if self._checkpoint is not None:
            return read_watermark(self._checkpoint, batch)
        return max((each.cti_us for each in tasks if each.cti_us is not None), default=None)

    def _write_mark(
        self, transaction: BatchTransaction, place: Place, batch: int, mark_us: int
    ) -> None:
        last = Entry.decode(*transaction.read_entry())
        if is_written(last, batch, place) or _is_old(mark_us, last):
            return
        writer = Writer(self._options.writer, self._options.header)
        headers = writer.close_mark(mark_us) if mark_us == FINAL_US else writer.mark(mark_us)
        transaction.begin()
        try:
            transaction.send_marks(headers)
            transaction.commit(*Entry(batch, mark_us=mark_us).encode())
        except BaseException:
            transaction.abort()
            raise
        _LOG.debug("batch %d: mark %s", batch, format_instant(mark_us))


def _is_old(mark_us: int, last: Entry | None) -> bool:
    return last is not None and last.mark_us is not None and mark_us <= last.mark_us


class _TaskRows:
    """The rows of a task as messages, block after block.

    Attributes:
        count: rows of data so far.
        cti_us: the greatest CTI so far.
    """

    def __init__(self, options: KafkaWriteOptions, blocks: Iterator[pa.RecordBatch]) -> None:
        self._options, self._blocks = options, blocks
        self.count = 0
        self.cti_us: int | None = None

    def next_messages(self) -> list[dict[str, Any]]:
        """The messages of the next block that has rows of data; none at the end."""
        for block in self._blocks:
            rows, cti_us = split_ctis(block)
            if cti_us is not None:
                self.cti_us = cti_us if self.cti_us is None else max(self.cti_us, cti_us)
            if rows.num_rows:
                self.count += rows.num_rows
                return build_messages(rows, self._options.header)
        return []


def _write_once(
    transaction: BatchTransaction,
    place: Place,
    batch: int,
    first: list[dict[str, Any]],
    rows: _TaskRows,
) -> None:
    last = Entry.decode(*transaction.read_entry())
    if last is not None and is_written(last, batch, place):
        while rows.next_messages():
            pass
        check_rows(last, rows.count, place)
        return
    transaction.begin()
    try:
        messages = first
        while messages:
            transaction.send(messages)
            messages = rows.next_messages()
        transaction.commit(*Entry(batch, rows=rows.count).encode())
    except BaseException:
        transaction.abort()
        raise


def _open(options: KafkaWriteOptions, place: Place) -> BatchTransaction:
    return BatchTransaction(options.client, options.topic, place.transactional_id, place.group)


def _identify_task() -> tuple[str, int, int]:
    """The query, the batch and the number of the task that runs here."""
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
    return query_id, int(batch), task.partitionId()
