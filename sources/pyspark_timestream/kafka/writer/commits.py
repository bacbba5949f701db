"""Ends batches in the driver: compares the tasks with earlier attempts, then writes the mark.

Spark commits the batches of all queries in a pool of processes, each batch in any of them. So a
process keeps a producer for each query, and opens it again where another process has committed
since: opening it there has ended this one.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pyspark_timestream.connector.instants import FINAL_US, format_instant
from pyspark_timestream.errors import DeliveryFailed
from pyspark_timestream.kafka.writer.ledger import (
    MARKS,
    Entry,
    Place,
    check_other_tasks,
    is_written,
)
from pyspark_timestream.kafka.writer.options import KafkaWriteOptions
from pyspark_timestream.producer.batch_transaction import BatchTransaction
from pyspark_timestream.producer.entries import read_entries
from pyspark_timestream.producer.marks import Headers, Writer

__all__ = ["BatchCommits", "QueryRun", "repeat"]

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)

_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class QueryRun:
    """One run of a streaming query.

    Attributes:
        query_id: from the checkpoint.
        run_id: new with each start.
    """

    query_id: str
    run_id: str


@dataclass(slots=True)
class _Opened:
    """A producer of marks, and the entry that it has left."""

    run_id: str
    transaction: BatchTransaction
    last: Entry | None


class BatchCommits:
    """The driver's part of batches, in one of its processes; for one thread."""

    def __init__(self) -> None:
        self._opened: dict[tuple[Any, ...], _Opened] = {}
        self._checked: dict[tuple[Any, ...], str] = {}

    def check_tasks(
        self, options: KafkaWriteOptions, run: QueryRun, batch: int, with_rows: Collection[int]
    ) -> None:
        """Check in the first batch of a run, which may come again, that rows are in the same tasks.

        Args:
            options: the options.
            run: the query.
            batch: the batch.
            with_rows: the numbers of the tasks that have rows.

        Raises:
            ReplayDiffers: a task without rows has written the batch, or a later one.
            DeliveryFailed: what is written cannot be read.
        """
        key = _key(options, Place.of(options, run.query_id, MARKS))
        if self._checked.get(key) == run.run_id:
            return

        def find_task(group: str) -> int | None:
            task = Place.find_task(options, run.query_id, group)
            return None if task in with_rows else task

        found = repeat(lambda: read_entries(options.client, options.topic, find_task))
        entries = {task: Entry.decode(*entry) for task, entry in found.items()}
        noted = {task: entry for task, entry in entries.items() if entry is not None}
        check_other_tasks(noted, batch, with_rows)
        self._checked[key] = run.run_id

    def write_mark(
        self, options: KafkaWriteOptions, run: QueryRun, batch: int, mark_us: int
    ) -> None:
        """Write the mark behind the batch's rows into every partition, unless it is written.

        A fault that passes is met by a new producer, which ends the old one's transaction and then
        reads what is written: so a mark that the old one did write is not written twice.

        Raises:
            ReplayDiffers: a later batch is written.
            DeliveryFailed: it cannot be written.
        """
        repeat(lambda: self._write_mark(options, run, batch, mark_us))

    def _write_mark(
        self, options: KafkaWriteOptions, run: QueryRun, batch: int, mark_us: int
    ) -> None:
        place = Place.of(options, run.query_id, MARKS)
        key = _key(options, place)
        try:
            opened, is_new = self._open(options, run, place)
            if is_written(opened.last, batch, place):
                return
            if not _is_old(mark_us, opened.last):
                assert options.writer is not None
                writer = Writer(options.writer, options.header)
                is_final = mark_us == FINAL_US
                headers = writer.close_mark(mark_us) if is_final else writer.mark(mark_us)
                _write(opened, headers, Entry(batch, mark_us=mark_us))
                _LOG.debug("batch %d: mark %s", batch, format_instant(mark_us))
            elif is_new:
                # Other processes see by the entry that their producers have ended.
                assert opened.last is not None
                _write(opened, None, Entry(batch, mark_us=opened.last.mark_us))
        except BaseException:
            self._close(key)
            raise

    def _open(
        self, options: KafkaWriteOptions, run: QueryRun, place: Place
    ) -> tuple[_Opened, bool]:
        """The producer of the query's marks, and if it is a new one."""
        key = _key(options, place)
        opened = self._opened.get(key)
        is_ours = opened is not None and opened.run_id == run.run_id
        if opened is not None and is_ours and _read_last(opened.transaction) == opened.last:
            return opened, False
        self._close(key)
        transaction = BatchTransaction(
            options.client, options.topic, place.transactional_id, place.group
        )
        opened = self._opened[key] = _Opened(run.run_id, transaction, None)
        opened.last = _read_last(transaction)
        return opened, True

    def _close(self, key: tuple[Any, ...]) -> None:
        opened = self._opened.pop(key, None)
        if opened is not None:
            opened.transaction.close()


def repeat(write: Callable[[], T], can_repeat: Callable[[], bool] = lambda: True) -> T:
    """Call `write`, and again with a new client where the fault passes by itself; 3 times in all.

    Args:
        write: makes its own client.
        can_repeat: prepares another attempt; false: there can be none.

    Raises:
        DeliveryFailed: the last attempt failed, or the fault stays.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return write()
        except DeliveryFailed as error:
            if not (left and error.may_repeat and can_repeat()):
                raise
            _LOG.warning("a new client tries it again: %s", error.problem)
    raise AssertionError("every attempt returns or raises")


def _key(options: KafkaWriteOptions, place: Place) -> tuple[Any, ...]:
    return (*sorted(options.client.items()), place)


def _read_last(transaction: BatchTransaction) -> Entry | None:
    return Entry.decode(*transaction.read_entry())


def _is_old(mark_us: int, last: Entry | None) -> bool:
    return last is not None and last.mark_us is not None and mark_us <= last.mark_us


def _write(opened: _Opened, headers: Headers | None, entry: Entry) -> None:
    transaction = opened.transaction
    transaction.begin()
    try:
        if headers is not None:
            transaction.send_marks(headers)
        transaction.commit(*entry.encode())
    except BaseException:
        transaction.abort()
        raise
    opened.last = entry
