"""Writes to topics: rows from the tasks, then marks from the driver, if any (semantics 29).

A task writes its rows in one transaction. After all tasks, the driver writes the mark into every
partition, also in a transaction. `ledger.py` tells an attempt what earlier ones have written, and
`producer/transactions.py` stops those from writing more.

Spark commits the batches of all queries in a pool of processes, each batch in any of them. So a
process keeps a producer for each query, and opens it again after another process has committed,
because the producer there has fenced this one.
"""

import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_timestream.core.adapters import freeze_objects, hide_tracebacks, log_like_spark
from pyspark_timestream.core.arrow import CTI_COLUMN
from pyspark_timestream.core.checkpoint import (
    batch_entry_path,
    find_location,
    note_written_topic,
    read_batch_entry,
    resolve_directory,
)
from pyspark_timestream.core.instants import FINAL_US, format_instant
from pyspark_timestream.errors import (
    BrokerUnreachable,
    CheckpointUnreadable,
    DeliveryFailed,
    OptionError,
    SettingRefused,
)
from pyspark_timestream.kafka.writer.ledger import (
    MARKS,
    LedgerEntry,
    Owner,
    check_other_tasks,
    check_row_count,
    check_written,
)
from pyspark_timestream.kafka.writer.rows import (
    TOPIC_COLUMN,
    TaskRows,
    check_record_columns,
    find_cti_source,
)
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions, read_write_options
from pyspark_timestream.producer.transactions import BatchTransaction, read_entries
from pyspark_timestream.rules.marks import Headers, Writer

_LOG: Final = logging.getLogger(__name__)


def require_checkpoint(options: Mapping[str, Any]) -> Path:
    """Return the query's checkpoint, a directory of this machine, from Spark's options."""
    location = find_location(options)
    accepts = "a directory of the driver's machine"
    if location is None:
        raise OptionError(
            "checkpointLocation",
            "it is missing, and option 'ctiFrom' is 'watermark'",
            accepts,
            "set it on writeStream itself: the session's default is unknown to a sink",
        )
    try:
        return resolve_directory(location)
    except CheckpointUnreadable:
        raise OptionError(
            "checkpointLocation",
            f"'{location}' is not on this machine, so the batches' watermark cannot be read, and "
            "option 'ctiFrom' is 'watermark'",
            accepts,
            "use such a directory; or leave 'ctiFrom' out, and write rows with a column 'cti'",
        ) from None


def read_batch_watermark(checkpoint: Path, batch: int) -> int | None:
    """Return the watermark that the batch runs with, in microseconds; None before the first."""
    try:
        return read_batch_entry(checkpoint, batch).watermark_us
    except (OSError, ValueError) as error:
        file = batch_entry_path(checkpoint, batch)
        raise CheckpointUnreadable(
            f"the watermark of batch {batch} cannot be read from '{file}': {error}",
            next_step="see to it that the driver can read the checkpoint. The batch's rows are "
            "written, its mark is not, and the query goes on with it",
        ) from None


T = TypeVar("T")

_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class QueryRun:
    """One run of a streaming query: the id in the checkpoint, and the id of this start."""

    query_id: str
    run_id: str


@dataclass(slots=True)
class _OpenProducer:
    """A producer of marks, and its last entry."""

    run_id: str
    transaction: BatchTransaction
    last: LedgerEntry | None


class MarkWriter:
    """Commits batches in one of the driver's processes; for one thread."""

    def __init__(self) -> None:
        self._producers: dict[tuple[Any, ...], _OpenProducer] = {}
        self._checked: dict[tuple[Any, ...], str] = {}

    def check_tasks(
        self, options: KafkaWriteOptions, run: QueryRun, batch: int, with_rows: Collection[int]
    ) -> None:
        """Check that an earlier attempt had rows in the same tasks."""
        key = _producer_key(options, Owner.of(options, run.query_id, MARKS))
        # Only the first batch of a run can be a later attempt.
        if self._checked.get(key) == run.run_id:
            return

        def find_task(group: str) -> int | None:
            task = Owner.find_task(options, run.query_id, group)
            return None if task in with_rows else task

        offsets = retry_with_new_client(
            lambda: read_entries(options.client, options.topic, find_task)
        )
        decoded = {task: LedgerEntry.decode(*offset) for task, offset in offsets.items()}
        entries = {task: entry for task, entry in decoded.items() if entry is not None}
        check_other_tasks(entries, batch, with_rows)
        self._checked[key] = run.run_id

    def write_mark(
        self, options: KafkaWriteOptions, run: QueryRun, batch: int, mark_us: int
    ) -> None:
        """Write the mark after the batch's rows into every partition, unless it is written.

        After a fault that passes, a new producer ends the old one's transaction and then reads the
        last entry, so that a mark that the old one did write is not written twice.
        """
        retry_with_new_client(lambda: self._write_mark(options, run, batch, mark_us))

    def _write_mark(
        self, options: KafkaWriteOptions, run: QueryRun, batch: int, mark_us: int
    ) -> None:
        owner = Owner.of(options, run.query_id, MARKS)
        key = _producer_key(options, owner)
        try:
            producer, is_new = self._open(options, run, owner)
            if check_written(producer.last, batch, owner):
                return
            last_mark_us = producer.last.mark_us if producer.last else None
            if last_mark_us is None or mark_us > last_mark_us:
                assert options.writer is not None
                writer = Writer(options.writer, options.header)
                is_final = mark_us == FINAL_US
                headers = writer.close_mark(mark_us) if is_final else writer.mark(mark_us)
                _write_entry(producer, headers, LedgerEntry(batch, mark_us=mark_us))
                _LOG.debug("batch %d: mark %s", batch, format_instant(mark_us))
            elif is_new:
                # Write an entry, which shows other processes that their producers are fenced.
                assert producer.last is not None
                _write_entry(producer, None, LedgerEntry(batch, mark_us=producer.last.mark_us))
        except BaseException:
            self._close(key)
            raise

    def _open(
        self, options: KafkaWriteOptions, run: QueryRun, owner: Owner
    ) -> tuple[_OpenProducer, bool]:
        """Return the producer of the query's marks, and whether it is new."""
        key = _producer_key(options, owner)
        producer = self._producers.get(key)
        if (
            producer is not None
            and producer.run_id == run.run_id
            and LedgerEntry.decode(*producer.transaction.read_entry()) == producer.last
        ):
            return producer, False
        self._close(key)
        transaction = _open_transaction(options, owner)
        producer = self._producers[key] = _OpenProducer(run.run_id, transaction, None)
        producer.last = LedgerEntry.decode(*producer.transaction.read_entry())
        return producer, True

    def _close(self, key: tuple[Any, ...]) -> None:
        producer = self._producers.pop(key, None)
        if producer is not None:
            producer.transaction.close()


def retry_with_new_client(
    write: Callable[[], T], can_repeat: Callable[[], bool] = lambda: True
) -> T:
    """Call `write` up to 3 times, while a new client may end its faults.

    `write` makes its own client. `can_repeat` prepares another attempt; False if there can be none.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return write()
        except (BrokerUnreachable, DeliveryFailed) as error:
            if not (attempts_left and error.may_repeat and can_repeat()):
                raise
            _LOG.warning("a new client tries it again: %s", error.problem)
    raise AssertionError("every attempt returns or raises")


def _producer_key(options: KafkaWriteOptions, owner: Owner) -> tuple[Any, ...]:
    return (*sorted(options.client.items()), owner)


def _open_transaction(options: KafkaWriteOptions, owner: Owner) -> BatchTransaction:
    return BatchTransaction(options.client, options.topic, owner.transactional_id, owner.group)


def _write_entry(producer: _OpenProducer, headers: Headers | None, entry: LedgerEntry) -> None:
    with producer.transaction.open():
        if headers is not None:
            producer.transaction.send_marks(headers)
        producer.transaction.commit(*entry.encode())
    producer.last = entry


_MARK_WRITER: Final = MarkWriter()
"""This process's writer, for all batches of all queries."""


@dataclass(frozen=True, slots=True)
class WrittenTask(WriterCommitMessage):
    """A task's report that its rows are written, by this attempt or an earlier one.

    `rows` is the number of rows of data, `cti_us` the task's greatest CTI; None without one.
    """

    run: QueryRun
    task: int
    rows: int
    cti_us: int | None


def open_stream_writer(
    raw: Mapping[str, Any], schema: StructType, overwrite: bool
) -> "KafkaStreamWriter":
    """Return the writer of one batch, after all checks that need no broker.

    Raises:
        OptionError: an option is wrong, or does not fit the columns.
        SchemaRefused: the columns cannot be records.
    """
    options, columns = _read_options(raw, schema)
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
            "give each query a name of its own, which stays the same; or, to write rows without "
            "marks, "
            + ("leave 'ctiFrom' out" if source == "watermark" else "drop the column 'cti'"),
        )
    check_record_columns(columns, has_marks=source is not None)
    _check_topic(options, columns, has_marks=source is not None)
    checkpoint = require_checkpoint(raw) if source == "watermark" else None
    return KafkaStreamWriter(
        options, checkpoint, has_marks=source is not None, location=find_location(raw)
    )


def open_batch_writer(
    raw: Mapping[str, Any], schema: StructType, overwrite: bool
) -> "KafkaBatchWriter":
    """Return the writer of a batch write, after all checks that need no broker.

    Raises:
        OptionError: an option is wrong, or does not fit the columns.
        SchemaRefused: the columns cannot be records.
    """
    options, columns = _read_options(raw, schema)
    if overwrite:
        raise OptionError(
            "mode",
            "'overwrite', and the records of a topic stay",
            "'append'",
            "use mode('append')",
        )
    if options.wants_marks or CTI_COLUMN in columns.names:
        raise OptionError(
            "writer",
            "marks were asked for (by 'writer', an option on CTIs, or a column 'cti'), and a "
            "batch write writes only rows",
            "a streaming write for rows with marks",
            "use writeStream with trigger(availableNow=True); or leave the options on marks out, "
            "and drop CTI rows: where('cti IS NULL').drop('cti')",
        )
    check_record_columns(columns, has_marks=False)
    _check_topic(options, columns, has_marks=False)
    return KafkaBatchWriter(options, uuid.uuid4().hex)


def _read_options(
    raw: Mapping[str, Any], schema: StructType
) -> tuple[KafkaWriteOptions, pa.Schema]:
    log_like_spark("pyspark_timestream")
    return read_write_options(raw), to_arrow_schema(schema, timezone="UTC")


def _check_topic(options: KafkaWriteOptions, columns: pa.Schema, *, has_marks: bool) -> None:
    if options.topic is None and (has_marks or TOPIC_COLUMN not in columns.names):
        raise OptionError(
            "topic",
            "it is missing",
            "the name of one topic" + ("" if has_marks else "; or a column 'topic'"),
            "set it" if has_marks else "set it, or select a column 'topic' as well",
        )


@hide_tracebacks
class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one DataFrame, without marks; can be pickled.

    `write_id` names this write, so that each attempt at a task finds the entries of others.
    """

    def __init__(self, options: KafkaWriteOptions, write_id: str) -> None:
        self._options = options
        self._id = write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows in one transaction, unless another attempt has done so."""
        task = TaskContext.get()
        assert task is not None
        owner = Owner.of(self._options, self._id, task.partitionId())
        _write_rows(self._options, None, iterator, owner, batch=0)
        return WriterCommitMessage()


@hide_tracebacks
class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch; can be pickled.

    `checkpoint` has the batch's watermark; None if CTIs come with the rows, or there are none. A
    checkpoint at `location` on this machine gets a note of the topic.
    """

    def __init__(
        self,
        options: KafkaWriteOptions,
        checkpoint: Path | None,
        *,
        has_marks: bool,
        location: str | None = None,
    ) -> None:
        self._options = options
        self._checkpoint = checkpoint
        self._has_marks = has_marks
        self._location = location

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenTask:
        """Write a task's rows in one transaction, unless an earlier attempt has done so."""
        task = TaskContext.get()
        assert task is not None
        run, batch = _identify_batch(task)
        header = self._options.header if self._has_marks else None
        owner = Owner.of(self._options, run.query_id, task.partitionId())
        rows = _write_rows(self._options, header, iterator, owner, batch)
        return WrittenTask(run, task.partitionId(), rows.count, rows.cti_us)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write the batch's mark after its rows, unless it is written."""
        tasks = [message for message in messages if isinstance(message, WrittenTask)]
        if not tasks:
            return
        run = tasks[0].run
        with_rows = {task.task for task in tasks if task.rows}
        _MARK_WRITER.check_tasks(self._options, run, batchId, with_rows)
        self._note_topic()
        if not self._has_marks:
            return
        mark_us = self._options.find_mark(self._find_cti(tasks, batchId))
        if mark_us is not None:
            _MARK_WRITER.write_mark(self._options, run, batchId, mark_us)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: committed rows stay, and the next attempt finds their entries."""

    def _note_topic(self) -> None:
        if self._location is None or self._options.topic is None:
            return
        with contextlib.suppress(CheckpointUnreadable):  # It is on another machine.
            checkpoint = resolve_directory(self._location)
            if (checkpoint / "offsets").is_dir():
                note_written_topic(checkpoint, self._options.topic)

    def _find_cti(self, tasks: Sequence[WrittenTask], batch: int) -> int | None:
        if self._checkpoint is not None:
            return read_batch_watermark(self._checkpoint, batch)
        return max((task.cti_us for task in tasks if task.cti_us is not None), default=None)


def _write_rows(
    options: KafkaWriteOptions,
    header: str | None,
    blocks: Iterator[pa.RecordBatch],
    owner: Owner,
    batch: int,
) -> TaskRows:
    """Write a task's rows as its part of `batch`; `owner` is the task."""
    rows = TaskRows(header, blocks, by_topic=options.topic is None)
    if rows.has_rows():
        retry_with_new_client(lambda: _write(options, owner, batch, rows), rows.rewind)
    freeze_objects()
    return rows


def _write(options: KafkaWriteOptions, owner: Owner, batch: int, rows: TaskRows) -> None:
    """Write the rows in one transaction, unless their owner has written the batch already."""
    transaction = _open_transaction(options, owner)
    try:
        last_entry = LedgerEntry.decode(*transaction.read_entry())
        if last_entry is not None and check_written(last_entry, batch, owner):
            while rows.next_block():
                pass
            check_row_count(last_entry, rows.count, owner)
            return
        with transaction.open():
            while block := rows.next_block():
                transaction.send(*block)
            transaction.commit(*LedgerEntry(batch, rows=rows.count).encode())
    finally:
        transaction.close()


def _identify_batch(task: TaskContext) -> tuple[QueryRun, int]:
    """Return the run and the number of the batch that the task works for."""
    query_id = task.getLocalProperty("sql.streaming.queryId")
    batch = task.getLocalProperty("streaming.sql.batchId")
    if not query_id or batch is None:
        # Without these ids, one batch could be mistaken for another.
        raise SettingRefused(
            "Spark did not tell the task which query and batch it works for "
            "(sql.streaming.queryId, streaming.sql.batchId)",
            "a streaming query",
            "write with writeStream. Nothing of the batch is written",
        )
    # Spark uses the run's id as the job group of the query's thread.
    run_id = task.getLocalProperty("spark.jobGroup.id") or f"{query_id}/{batch}"
    return QueryRun(query_id, run_id), int(batch)
