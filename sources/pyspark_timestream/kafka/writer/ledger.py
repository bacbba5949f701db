"""The record of which batches are written, kept in Kafka with their rows (semantics 29.3).

Each transaction commits, besides its records, an offset of a consumer group of its own: the number
of the next batch, with the number of rows in the offset's metadata. So a batch and the fact that it
is written become visible together, and an attempt that comes later can see both.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.errors import ReplayDiffers
from pyspark_timestream.kafka.writer.options import KafkaWriteOptions

_ANY_TOPIC: Final = "*"
"""Stands for the topics of a column; no topic has this name."""

MARKS: Final = "marks"
"""The place of the driver's transactions; those of tasks are their numbers."""


@dataclass(frozen=True, slots=True)
class Place:
    """The owner of transactions: a task, by its number, or the driver, `marks`.

    Attributes:
        transactional_id: the same in all runs of all queries of this writer, so that a new attempt
            ends the open transaction of an earlier one. Without a writer it is the query's own.
        group: of this query; a new checkpoint has a new one.
    """

    transactional_id: str
    group: str

    @classmethod
    def of(cls, options: KafkaWriteOptions, query_id: str, name: int | str) -> "Place":
        """The place `name` of the query `query_id`, or of a batch write with that id."""
        before, after = cls._frame(options, query_id)
        own = f"{before}{name}{after}"
        return cls(own.removesuffix(f"/{query_id}") if options.writer else own, own)

    @classmethod
    def _frame(cls, options: KafkaWriteOptions, query_id: str) -> tuple[str, str]:
        """What stands before and behind a place's name in its group."""
        writer = f"{options.writer}/{query_id}" if options.writer else query_id
        return f"{options.prefix}/{options.topic or _ANY_TOPIC}/", f"/{writer}"

    @classmethod
    def find_task(cls, options: KafkaWriteOptions, query_id: str, group: str) -> int | None:
        """The task of the query whose group this is; None for all other groups.

        >>> Place.find_task(KafkaWriteOptions("trips", "w"), "q", "timestream-writer/trips/7/w/q")
        7
        """
        before, after = cls._frame(options, query_id)
        name = group.removeprefix(before).removesuffix(after)
        is_task = name.isascii() and name.isdigit() and f"{before}{name}{after}" == group
        return int(name) if is_task else None


@dataclass(frozen=True, slots=True)
class Entry:
    """The last batch that a place has written.

    Attributes:
        batch: its number.
        rows: how many records it had, marks not counted; None: unknown.
        mark_us: the last mark of the driver; None in the entries of tasks.
    """

    batch: int
    rows: int | None = None
    mark_us: int | None = None

    def encode(self) -> tuple[int, str]:
        """The offset and its metadata.

        >>> Entry(4, rows=2).encode()
        (5, '{"rows": 2, "version": 1}')
        """
        known = {"rows": self.rows, "mark_us": self.mark_us, "version": 1}
        text = {name: value for name, value in known.items() if value is not None}
        return self.batch + 1, json.dumps(text, sort_keys=True)

    @classmethod
    def decode(cls, offset: int, metadata: str | None) -> "Entry | None":
        """The entry that `encode` made a text of; None where nothing was committed."""
        if offset <= 0:
            return None
        try:
            read = json.loads(metadata or "{}")
        except ValueError:
            read = {}
        known = read if isinstance(read, dict) else {}
        return cls(offset - 1, known.get("rows"), known.get("mark_us"))


def is_written(last: Entry | None, batch: int, place: Place) -> bool:
    """True if the place has written the batch already.

    Raises:
        ReplayDiffers: it has written a later one, so the checkpoint was set back.
    """
    if last is None or last.batch < batch:
        return False
    if last.batch > batch:
        raise _later_batch_error(last.batch, batch, f"consumer group '{place.group}'")
    return True


def _later_batch_error(last: int, batch: int, where: str) -> ReplayDiffers:
    return ReplayDiffers(
        f"batch {batch} is to be written, and batch {last} of this query is in the topic already "
        f"({where})",
        next_step="bring the newer state of the checkpoint back; or start with a new checkpoint "
        "and a new 'writer', which writes its input again",
    )


def check_rows(last: Entry, rows: int, place: Place) -> None:
    """Check that a batch that is written already has as many rows as it had.

    Raises:
        ReplayDiffers: it has not.
    """
    if last.rows is not None and last.rows != rows:
        raise ReplayDiffers(
            f"batch {last.batch} was written with {last.rows} rows, and this attempt at it has "
            f"{rows} (consumer group '{place.group}')",
            next_step="its input, its code or its number of tasks has changed: give them back what "
            "they were, or start with a new checkpoint and a new 'writer'",
        )


def check_other_tasks(noted: Mapping[int, Entry], batch: int, with_rows: Collection[int]) -> None:
    """Check that no task without rows has written the batch in an earlier attempt.

    Args:
        noted: the last batch that each task has written.
        batch: the batch.
        with_rows: the tasks of this attempt that have rows; they have checked themselves.

    Raises:
        ReplayDiffers: one has, so the earlier attempt had more tasks, or rows in other ones.
    """
    written = {task: each.batch for task, each in noted.items() if task not in with_rows}
    for task in sorted(written):
        if written[task] > batch:
            raise _later_batch_error(written[task], batch, f"task {task}")
    if batch in written.values():
        task = min(task for task, last in written.items() if last == batch)
        raise ReplayDiffers(
            f"batch {batch} comes again with its rows in other tasks: an earlier attempt has "
            f"written rows in task {task}, which has none now, so some rows of it may be in the "
            "topic twice",
            next_step="write with a new checkpoint to a new topic; and finish an interrupted batch "
            "before you change what decides the number of tasks (cores, partitions, options)",
        )
