"""The write adapters: tasks stage their rows, the driver commits them as one batch.

A task with many rows writes them as events right away; see `shares` and `large_batches`.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_timestream.connector.spark_errors import brief_errors
from pyspark_timestream.connector.worker_memory import settle
from pyspark_tseries.errors import OutOfOrder, UpdateFailed
from pyspark_tseries.options.values import WriteOptions
from pyspark_tseries.storage import staging
from pyspark_tseries.storage.location import Place
from pyspark_tseries.write.batch import Appended, Batch
from pyspark_tseries.write.large_batch import LargeBatch
from pyspark_tseries.write.numbering import REORDER
from pyspark_tseries.write.rows import RowPlan, stage_rows
from pyspark_tseries.write.task_output import LIMITS, Forecast, Share, take_share

if TYPE_CHECKING:
    from pyspark_tseries.store.store import Store

__all__ = ["BatchWriter", "StreamWriter", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how rows are written; checked against the store, and made for pickling."""

    place: Place
    plan: RowPlan
    options: WriteOptions
    author: str
    principal: str
    forecast: Forecast
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class StagedTask(WriterCommitMessage):
    """A task's rows, with its place in the input and the query it worked for.

    `schema` is that of the rows; the store may have got columns since.
    """

    partition: int
    query_id: str | None
    share: Share
    schema: pa.Schema


_QUERY: Final = "tseries:q:"
"""The beginning of a streaming query's token, before its id."""

_NEW_QUERY: Final = (
    "this query has stored nothing here before, so it is a new one, as with a new or deleted "
    "checkpoint, and writes all of its input again: bring its checkpoint back if it had one; else "
    "write to a new path, or let the source start behind what is stored (startingOffsets, "
    "startingTimestamp); outOfOrder 'adjust' would store everything twice, and 'drop' leave out "
    "what comes before the newest event"
)


def _stage(target: Target, batches: Iterator[pa.RecordBatch]) -> StagedTask:
    task = TaskContext.get()
    assert task is not None
    rows = (stage_rows(batch, target.plan) for batch in batches)
    share = take_share(
        target.place,
        rows,
        target.plan.staged,
        target.forecast,
        target.author,
        uuid.uuid4().hex,
        LIMITS,
    )
    settle()
    return StagedTask(
        task.partitionId(),
        task.getLocalProperty("sql.streaming.queryId"),
        share,
        target.plan.staged,
    )


def _commit(target: Target, tasks: list[StagedTask], token: tuple[str, int] | None) -> None:
    """Appends what the tasks staged, in the order of the input; an empty batch leaves no trace."""
    # Imported here because tasks, which unpickle this module's classes, need no Delta.
    from pyspark_tseries.maintain.background import after_commit
    from pyspark_tseries.store.store import Store

    shares = [task.share for task in sorted(tasks, key=lambda task: task.partition)]
    if sum(share.rows for share in shares):
        store = Store.open(target.place)
        batch = _batch(target, shares, tasks[0].schema, token)
        try:
            store.append(batch, synced=target.options.synced)
        except OutOfOrder as error:
            if _has_written(store, token):
                raise
            raise OutOfOrder(str(error).replace(REORDER, _NEW_QUERY)) from None
        if target.options.auto_compact:
            after_commit(store)
    _discard(target, tasks)
    settle()


def _has_written(store: "Store", token: tuple[str, int] | None) -> bool:
    """Whether a write is none of a streaming query, or of one that has a batch in the store."""
    if token is None or not token[0].startswith(_QUERY):
        return True
    return store.log.mark(token[0]) is not None


def _batch(
    target: Target, shares: list[Share], schema: pa.Schema, token: tuple[str, int] | None
) -> Appended:
    """What the tasks staged, rows of `schema` in the order of the input, as one batch."""
    options = target.options
    few = [share.few for share in shares if share.few is not None]
    if len(few) == len(shares) and sum(share.size for share in shares) <= LIMITS.memory:
        return Batch(
            staging.read_staged(target.place, few),
            options.out_of_order,
            target.author,
            token,
            principal=target.principal,
            missing=options.missing_original,
            clock=options.clock,
        )
    return LargeBatch(
        tuple(shares),
        schema,
        options.out_of_order,
        target.author,
        uuid.uuid4().hex,
        token,
        principal=target.principal,
        missing=options.missing_original,
        clock=options.clock,
        limits=LIMITS,
    )


def _discard(target: Target, tasks: Iterable[StagedTask]) -> None:
    # The batch is stored, or given up, all the same; the upkeep removes what stays after a day.
    with contextlib.suppress(OSError):
        target.place.remove(path for task in tasks for path in task.share.paths(target.place))


def _present(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    return [message for message in messages if isinstance(message, StagedTask)]


def _query_id(tasks: list[StagedTask]) -> str:
    query_id = tasks[0].query_id
    if not query_id:
        # Without it, batches of different queries would pass for each other.
        raise UpdateFailed(
            "Spark did not tell the tasks which query they work for (sql.streaming.queryId); "
            "accepted: a streaming query; next step: write with df.write in foreachBatch, with "
            "txnAppId and txnVersion. Nothing of the batch is stored"
        )
    return query_id


@brief_errors
class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one commit; with `txnAppId` and `txnVersion` only once."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stages a task's rows."""
        return _stage(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Appends the rows of all tasks."""
        options = self._target.options
        token = None
        if options.txn_app_id is not None and options.txn_version is not None:
            token = f"tseries:app:{options.txn_app_id}", options.txn_version
        _commit(self._target, _present(messages), token)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes what the tasks staged."""
        _discard(self._target, _present(messages))


@brief_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every batch of a query as one commit, exactly once.

    The query's id comes with the tasks' messages and stays the same when the query is restarted
    from its checkpoint; with the batch's id it is the token that the store remembers.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stages a task's rows."""
        return _stage(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Appends the rows of all tasks, unless the store has this batch already."""
        tasks = _present(messages)
        if not tasks:
            return
        token = f"{_QUERY}{_query_id(tasks)}", batchId
        is_empty = not any(task.share.rows for task in tasks)
        if batchId > 0 and is_empty:
            return _commit(self._target, tasks, token)
        # Imported here because tasks, which unpickle this module's classes, need no Delta.
        from pyspark_tseries.spark.checkpoint_store import check_in_commit, remember_store
        from pyspark_tseries.store.store import Store

        target, store = self._target, Store.open(self._target.place)
        synced = target.options.synced
        check_in_commit(target.checkpoint, store, token, is_empty=is_empty, synced=synced)
        _commit(target, tasks, token)
        if not is_empty:
            # Not before: a query whose first batch fails may be given another store.
            remember_store(target.checkpoint, store)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Removes what the tasks staged."""
        _discard(self._target, _present(messages))
