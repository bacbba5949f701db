"""The write adapters: tasks stage their rows, the driver commits them as one batch."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_tseries import staging
from pyspark_tseries.attempts import Batch
from pyspark_tseries.errors import UpdateFailed
from pyspark_tseries.options import WriteOptions
from pyspark_tseries.places import Place
from pyspark_tseries.rows import RowPlan, stage_rows

__all__ = ["BatchWriter", "StreamWriter", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how rows are written; checked against the store, and made for pickling."""

    place: Place
    plan: RowPlan
    options: WriteOptions
    author: str
    principal: str


@dataclass(frozen=True, slots=True)
class StagedTask(WriterCommitMessage):
    """A task's rows, with its place in the input and the query it worked for."""

    partition: int
    query_id: str | None
    staged: staging.Staged


def _stage(target: Target, batches: Iterator[pa.RecordBatch]) -> StagedTask:
    task = TaskContext.get()
    assert task is not None
    name = f"{uuid.uuid4().hex}.arrow"
    path = target.place.file("_tseries", "staging", name)
    rows = (stage_rows(batch, target.plan) for batch in batches)
    return StagedTask(
        task.partitionId(),
        task.getLocalProperty("sql.streaming.queryId"),
        staging.stage(target.place, rows, target.plan.staged, path),
    )


def _commit(target: Target, tasks: list[StagedTask], token: tuple[str, int] | None) -> None:
    """Appends what the tasks staged, in the order of the input; an empty batch leaves no trace."""
    # Imported here because tasks, which unpickle this module's classes, need no Delta.
    from pyspark_tseries.maintenance import after_commit
    from pyspark_tseries.store import Store

    ordered = [task.staged for task in sorted(tasks, key=lambda task: task.partition)]
    if sum(staged.rows for staged in ordered):
        rows = staging.read_staged(target.place, ordered)
        options = target.options
        batch = Batch(
            rows,
            options.out_of_order,
            target.author,
            token,
            principal=target.principal,
            missing=options.missing_original,
            clock=options.clock,
        )
        store = Store.open(target.place)
        store.append(batch)
        if options.auto_compact:
            after_commit(store)
    _discard(target, tasks)


def _discard(target: Target, tasks: Iterable[StagedTask]) -> None:
    target.place.remove(task.staged.path for task in tasks if task.staged.path)


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
        if tasks:
            _commit(self._target, tasks, (f"tseries:q:{_query_id(tasks)}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Removes what the tasks staged."""
        _discard(self._target, _present(messages))
