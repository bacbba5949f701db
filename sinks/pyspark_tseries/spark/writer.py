"""The tasks of a write stage their rows, and the driver commits them as one batch.

A task with many rows writes them as event files right away; see `write/task_output.py`.
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeGuard

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_timestream.core.adapters import freeze_objects, hide_tracebacks
from pyspark_timestream.core.checkpoint import batch_entry_path, read_batch_entry
from pyspark_timestream.core.instants import FINAL_US, MIN_US
from pyspark_timestream.errors import wrap_methods
from pyspark_tseries.errors import OutOfOrder, UpdateFailed
from pyspark_tseries.model.commits import (
    APPLICATION_PREFIX,
    QUERY_PREFIX,
    CommitId,
    CommitMetadata,
    name_writer,
)
from pyspark_tseries.options import WriteOptions
from pyspark_tseries.storage.failures import explain_failure
from pyspark_tseries.storage.location import Location
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.numbering import BEFORE_NEWEST, FutureLimit
from pyspark_tseries.write.rows import (
    RowPlan,
    add_digests,
    cast_rows,
    digest_rows,
    pick_rows,
    split_ctis,
)
from pyspark_tseries.write.task_output import (
    DEFAULT_LIMITS,
    OptimisticNumber,
    SpillLimits,
    TaskOutput,
    read_staged,
    write_task_output,
)

if TYPE_CHECKING:
    from pyspark_tseries.store.store import Store

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The destination and the options of a write, checked against the store; can be pickled."""

    location: Location
    plan: RowPlan
    options: WriteOptions
    author: str
    principal: str
    optimistic: OptimisticNumber
    checkpoint: Path | None = None
    limits: SpillLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class StagedTask(WriterCommitMessage):
    """A task's rows, its partition of the input, and its query.

    `schema` is the schema of the rows; the store may have got more columns since. `cti_us` is the
    greatest of the task's CTIs. `digest` is the digest of the rows, None if it is not compared.
    """

    partition: int
    query_id: str | None
    output: TaskOutput
    schema: pa.Schema
    cti_us: int | None = None
    digest: int | None = None


_warned: Final[dict[tuple[str, str], object]] = {}
"""The warnings of this process, by query and subject."""

_NEW_QUERY_ADVICE: Final = (
    "this query has stored nothing here before, so it is a new one, as with a new or deleted "
    "checkpoint, and writes all of its input again: bring its checkpoint back if it had one; else "
    "write to a new path, or let the source start after what is stored (startingOffsets, "
    "startingTimestamp); outOfOrder 'adjust' would store everything twice, and 'drop' leave out "
    "what comes before the newest event. Nothing of the batch is stored"
)

# A batch without rows, as before the first window closes, makes a query known to the store, too.
_KNOWN_QUERY_ADVICE: Final = (
    "write to a new path if the query has a new checkpoint and the store has its results already; "
    "else "
)


def _stage_batches(
    target: WriteTarget, batches: Iterator[pa.RecordBatch], *, can_repeat: bool
) -> StagedTask:
    task = TaskContext.get()
    assert task is not None
    ctis: list[int] = []
    digest = 0

    def stage_all() -> Iterator[pa.RecordBatch]:
        nonlocal digest
        for batch in batches:
            rows, cti_us = split_ctis(batch, target.plan)
            if cti_us is not None:
                ctis.append(cti_us)
            if not rows.num_rows:
                continue
            picked = pick_rows(rows, target.plan)
            if can_repeat:
                # In the query's own types: the store's may be wider when the batch comes again.
                digest = add_digests(digest, digest_rows(picked))
            yield cast_rows(picked, target.plan)

    output = write_task_output(
        target.location,
        stage_all(),
        target.plan.staged,
        target.optimistic,
        target.author,
        unique_name=uuid.uuid4().hex,
        limits=target.limits,
    )
    freeze_objects()
    return StagedTask(
        task.partitionId(),
        task.getLocalProperty("sql.streaming.queryId"),
        output,
        target.plan.staged,
        max(ctis, default=None),
        digest if can_repeat else None,
    )


def _commit_tasks(
    target: WriteTarget,
    tasks: list[StagedTask],
    token: tuple[str, int] | None,
    cti_us: int | None = None,
) -> CommitId | None:
    """Append the staged rows in the order of the input; return None if that makes no commit.

    Commit a batch without rows only if its CTI is above the query's last one, or if the query
    becomes a writer of the store with it: before its first rows it may still append anything.
    """
    # Imported here because tasks, which unpickle this module's classes, need no Delta.
    from pyspark_tseries.maintain.background import maintain_after_commit
    from pyspark_tseries.store.store import Store

    has_rows = any(task.output.rows for task in tasks)
    store = Store.open(target.location)
    registers_writer = _begins_query(store, target.plan, token)
    commit = None
    if has_rows or registers_writer or _advances_cti(store, token, cti_us):
        batch = _build_batch(target, tasks, token, cti_us, registers_writer=registers_writer)
        try:
            commit = store.append(batch, synced=target.options.synced)
        except OutOfOrder as error:
            if not _is_query(token) or error.kind != BEFORE_NEWEST:
                raise
            is_new = store.transaction(token[0]) is None
            advice = _NEW_QUERY_ADVICE if is_new else f"{_KNOWN_QUERY_ADVICE}{error.next_step}"
            raise error.with_next_step(advice) from None
        if commit is not None:
            _warn_of_future_rows(token, commit.index.metadata)
        if target.options.auto_compact:
            maintain_after_commit(store)
    _remove_staged(target, tasks)
    freeze_objects()
    return None if commit is None else CommitId(commit.index.metadata.commit, commit.head_id)


def _sum_digests(tasks: Iterable[StagedTask]) -> int | None:
    digests = [task.digest for task in tasks if task.digest is not None]
    return add_digests(*digests) if digests else None


def _warn_of_future_rows(token: tuple[str, int] | None, metadata: CommitMetadata) -> None:
    """Warn, once per query, that its batch has left out rows that were too far ahead."""
    example = metadata.last_future
    if example is not None and example["commit"] == metadata.commit:
        text = (
            "%s: rows were left out because their timestamps are further after the commit than "
            "maxFuture allows (futurePolicy is 'drop'), for example series '%s' at %s; describe "
            "counts them as 'future'; next step: correct the clock that the timestamps are of"
        )
        _warn_once(name_writer(token), "future", text, example["series"], example["timestamp"])


def _refresh_in_background(store: "Store") -> None:
    """Read the commit just made while Spark ends the batch, so that the next one need not wait."""
    with contextlib.suppress(RuntimeError):  # No more threads, or the interpreter is ending.
        threading.Thread(target=refresh_quietly, args=(store,), daemon=True).start()


def refresh_quietly(store: "Store") -> None:
    """Refresh `store`; ignore errors, which the next batch meets again and reports."""
    with contextlib.suppress(Exception):
        store.refresh()


def _is_query(token: tuple[str, int] | None) -> TypeGuard[tuple[str, int]]:
    return token is not None and token[0].startswith(QUERY_PREFIX)


def _begins_query(store: "Store", plan: RowPlan, token: tuple[str, int] | None) -> bool:
    """Return whether a batch is the first of a query that may append originals."""
    is_first = _is_query(token) and token[1] == 0
    # A query of edits would hold back the store's CTI for ever.
    return is_first and plan.edit_of is None and not store.has_token(token)


def _advances_cti(store: "Store", token: tuple[str, int] | None, cti_us: int | None) -> bool:
    """Return whether a CTI is above the last one that its writer has committed."""
    last_us = store.metadata().ctis.writers.get(name_writer(token))
    return cti_us is not None and (last_us is None or cti_us > last_us)


def _build_batch(
    target: WriteTarget,
    tasks: list[StagedTask],
    token: tuple[str, int] | None,
    cti_us: int | None,
    *,
    registers_writer: bool,
) -> Batch:
    """Return the staged rows, in the order of the input, as one batch."""
    options = target.options
    outputs = [task.output for task in sorted(tasks, key=lambda task: task.partition)]
    inline = [output.inline for output in outputs if output.inline is not None]
    size = sum(output.size for output in outputs)
    in_memory = len(inline) == len(outputs) and size <= target.limits.memory
    return Batch(
        read_staged(target.location, inline) if in_memory else tasks[0].schema.empty_table(),
        options.out_of_order,
        target.author,
        token,
        principal=target.principal,
        missing_original=options.missing_original,
        clock=options.clock,
        cti_us=cti_us,
        registers_writer=registers_writer,
        digest=_sum_digests(tasks),
        future=FutureLimit(options.max_future_us, options.future_policy),
        tasks=() if in_memory else tuple(outputs),
        limits=target.limits,
    )


def _remove_staged(target: WriteTarget, tasks: Iterable[StagedTask]) -> None:
    # The batch is stored or given up already; maintenance removes leftovers after a day.
    target.location.discard(path for task in tasks for path in task.output.paths(target.location))


def _staged_tasks(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    return [message for message in messages if isinstance(message, StagedTask)]


def _warn_once(query_id: str, subject: str, text: str, *arguments: object) -> None:
    """Log `text` with a query's id and `arguments`, once for each query and `subject`."""
    this_call = object()
    # One step, so that one of two threads warns; a lock might be held when the process forks.
    if _warned.setdefault((query_id, subject), this_call) is this_call:
        _LOG.warning(text, query_id, *arguments)


def _require_query_id(tasks: list[StagedTask]) -> str:
    query_id = tasks[0].query_id
    if not query_id:
        # Without it, batches of different queries could be mistaken for each other.
        raise UpdateFailed(
            "Spark did not tell the tasks which query they work for (sql.streaming.queryId)",
            "a streaming query",
            "write with df.write in foreachBatch, with txnAppId and txnVersion. Nothing of the "
            "batch is stored",
        )
    return query_id


@hide_tracebacks
@wrap_methods(lambda writer, error: explain_failure(getattr(writer, "_location", None), error))
class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one commit; with `txnAppId` and `txnVersion` only once."""

    def __init__(self, target: WriteTarget) -> None:
        self.target = target
        self._location = target.location

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage a task's rows."""
        is_named = self.target.options.txn_app_id is not None
        return _stage_batches(self.target, iterator, can_repeat=is_named)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows of all tasks."""
        options = self.target.options
        token = None
        if options.txn_app_id is not None and options.txn_version is not None:
            token = f"{APPLICATION_PREFIX}{options.txn_app_id}", options.txn_version
        _commit_tasks(self.target, _staged_tasks(messages), token)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged rows."""
        _remove_staged(self.target, _staged_tasks(messages))


@hide_tracebacks
@wrap_methods(lambda writer, error: explain_failure(getattr(writer, "_location", None), error))
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every batch of a query as one commit, exactly once.

    The query's id comes with the tasks' messages and survives restarts from the checkpoint.
    Together with the batch id it is the token that the store remembers.
    """

    def __init__(self, target: WriteTarget) -> None:
        self.target = target
        self._location = target.location

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage a task's rows."""
        return _stage_batches(self.target, iterator, can_repeat=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the rows of all tasks, unless the store has this batch already."""
        tasks = _staged_tasks(messages)
        if not tasks:
            return
        token = f"{QUERY_PREFIX}{_require_query_id(tasks)}", batchId
        is_empty = not any(task.output.rows for task in tasks)
        cti_us = self._find_cti(tasks, batchId)
        # Imported here because tasks, which unpickle this module's classes, need no Delta.
        from pyspark_tseries.spark.query_checks import check_in_commit, remember_commit
        from pyspark_tseries.store.store import Store

        target = self.target
        store = Store.open(self.target.location)
        # Called only for its error; `append`, below, skips a batch that is there already.
        store.has_batch(token, _sum_digests(tasks))
        if batchId > 0 and is_empty and cti_us is None:
            _remove_staged(self.target, tasks)
            return
        synced = target.options.synced
        check_in_commit(target.checkpoint, store, token, is_empty=is_empty, synced=synced)
        self._note_query(_require_query_id(tasks), batchId)
        commit = _commit_tasks(target, tasks, token, cti_us)
        if commit is not None or store.has_token(token):
            # Only now: after a failed first batch the query may be given another store.
            remember_commit(target.checkpoint, store, batchId, commit)
        _refresh_in_background(store)

    def _note_query(self, query_id: str, batch: int) -> None:
        """Note in the store what `correct_late` needs to know about the query."""
        from pyspark_tseries.spark.query_checks import note_writer

        target = self.target
        watermark = target.options.cti_delay_us is not None and target.checkpoint is not None
        gives_ctis = target.plan.cti is not None or watermark
        note_writer(target.location, query_id, batch, target.checkpoint, gives_ctis=gives_ctis)

    def _find_cti(self, tasks: list[StagedTask], batch: int) -> int | None:
        """Return the CTI that the query commits with a batch; None if it gives none."""
        target = self.target
        delay_us = self.target.options.cti_delay_us
        if target.plan.cti is not None:
            cti_us = max((task.cti_us for task in tasks if task.cti_us is not None), default=None)
        elif delay_us is None:
            return None
        elif target.checkpoint is None:
            self._warn_of_unreadable_checkpoint(_require_query_id(tasks))
            return None
        else:
            cti_us = self._read_watermark(target.checkpoint, batch, _require_query_id(tasks))
        if cti_us is None or cti_us >= FINAL_US:
            return cti_us
        return max(cti_us - (delay_us or 0), MIN_US)

    def _read_watermark(self, checkpoint: Path, batch: int, query_id: str) -> int | None:
        """Return a batch's watermark in microseconds; None before the first, or if unreadable."""
        try:
            return read_batch_entry(checkpoint, batch).watermark_us
        except (OSError, ValueError) as error:
            _warn_once(
                query_id,
                "entry",
                "query %s: batch %d is stored in '%s' without a CTI, because its watermark "
                "cannot be read from '%s': %s; the store's CTI stays until a later batch gives "
                "one; next step: see to it that the driver can read the checkpoint, or keep "
                "the column of CTIs in the DataFrame ('ctiColumn')",
                batch,
                self.target.location.root,
                batch_entry_path(checkpoint, batch),
                error,
            )
            return None

    def _warn_of_unreadable_checkpoint(self, query_id: str) -> None:
        _warn_once(
            query_id,
            "checkpoint",
            "query %s: 'ctiDelay' has no effect, and the store '%s' gets no CTI of this query, "
            "because its checkpoint, which has the watermark, is not a directory of the "
            "driver's machine named by the query's option 'checkpointLocation'; next step: put "
            "it there, or keep the column of CTIs in the DataFrame ('ctiColumn')",
            self.target.location.root,
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the files that the tasks staged."""
        _remove_staged(self.target, _staged_tasks(messages))
