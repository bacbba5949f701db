"""Keeps the ledger of written batches in Kafka, beside the rows (semantics 29.3).

Each transaction commits an offset to a consumer group together with its records: the offset is the
number of the next batch, and its metadata has the number of rows. So a batch and its entry become
visible together, and a later attempt can see both.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.errors import ReplayDiffers
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions

_ANY_TOPIC: Final = "*"
"""Stands for the topic in a group's name if a column names the topics; no topic has this name."""

MARKS: Final = "marks"
"""The name of the driver as an owner; the name of a task is its number."""


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner of transactions: a task, or the driver, which writes the marks.

    Attributes:
        transactional_id: the same in all runs of all queries of this writer, so that a new attempt
            ends the open transaction of an earlier one. Without a writer it is the query's own.
        group: the consumer group of this query and owner; a new checkpoint has a new one.
    """

    transactional_id: str
    group: str

    @classmethod
    def of(cls, options: KafkaWriteOptions, query_id: str, name: int | str) -> "Owner":
        """Return the owner `name` of a query or of a batch write."""
        prefix, suffix = cls._affixes(options, query_id)
        group = f"{prefix}{name}{suffix}"
        return cls(group.removesuffix(f"/{query_id}") if options.writer else group, group)

    @classmethod
    def _affixes(cls, options: KafkaWriteOptions, query_id: str) -> tuple[str, str]:
        writer = f"{options.writer}/{query_id}" if options.writer else query_id
        return f"{options.prefix}/{options.topic or _ANY_TOPIC}/", f"/{writer}"

    @classmethod
    def find_task(cls, options: KafkaWriteOptions, query_id: str, group: str) -> int | None:
        """Return the task of the query that owns this group; None for other groups.

        >>> Owner.find_task(KafkaWriteOptions("trips", "w"), "q", "timestream-writer/trips/7/w/q")
        7
        """
        prefix, suffix = cls._affixes(options, query_id)
        name = group.removeprefix(prefix).removesuffix(suffix)
        is_task = name.isascii() and name.isdigit() and f"{prefix}{name}{suffix}" == group
        return int(name) if is_task else None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The last batch that an owner has written."""

    batch: int
    rows: int | None = None
    """The number of records, without marks; None if unknown."""
    mark_us: int | None = None
    """The driver's last mark; None in the entries of tasks."""

    def encode(self) -> tuple[int, str]:
        """Return the offset to commit, and its metadata.

        >>> LedgerEntry(4, rows=2).encode()
        (5, '{"rows": 2, "version": 1}')
        """
        fields = {"rows": self.rows, "mark_us": self.mark_us, "version": 1}
        known = {name: value for name, value in fields.items() if value is not None}
        return self.batch + 1, json.dumps(known, sort_keys=True)

    @classmethod
    def decode(cls, offset: int, metadata: str | None) -> "LedgerEntry | None":
        """Read the result of `encode`; None if nothing was committed."""
        if offset <= 0:
            return None
        try:
            value = json.loads(metadata or "{}")
        except ValueError:
            value = {}
        fields = value if isinstance(value, dict) else {}
        return cls(offset - 1, fields.get("rows"), fields.get("mark_us"))


def check_written(last_entry: LedgerEntry | None, batch: int, owner: Owner) -> bool:
    """Return whether the owner has written the batch already; refuse one before its last."""
    if last_entry is None or last_entry.batch < batch:
        return False
    if last_entry.batch > batch:
        # The checkpoint was set back.
        raise _later_batch_error(last_entry.batch, batch, f"consumer group '{owner.group}'")
    return True


def _later_batch_error(last_batch: int, batch: int, place: str) -> ReplayDiffers:
    return ReplayDiffers(
        f"batch {batch} is to be written, and batch {last_batch} of this query is in the topic "
        f"already ({place})",
        next_step="if another query runs with this checkpoint, end one of the two, and start the "
        "other one again. If not, the checkpoint is an older one: bring its newer state back, or "
        "start with a new checkpoint and a new 'writer', which writes its input again",
    )


def check_row_count(last_entry: LedgerEntry, rows: int, owner: Owner) -> None:
    """Check that a batch that is written already still has the same number of rows."""
    if last_entry.rows is not None and last_entry.rows != rows:
        raise ReplayDiffers(
            f"batch {last_entry.batch} was written with {last_entry.rows} rows, and this attempt "
            f"at it has {rows} (consumer group '{owner.group}')",
            next_step="its input, its code or its number of tasks has changed: give them back what "
            "they were, or start with a new checkpoint and a new 'writer'",
        )


def check_other_tasks(
    entries: Mapping[int, LedgerEntry], batch: int, with_rows: Collection[int]
) -> None:
    """Check that no task without rows has written the batch in an earlier attempt.

    Tasks in `with_rows` have rows in this attempt; each has checked its own entry.
    """
    last_batches = {task: entry.batch for task, entry in entries.items() if task not in with_rows}
    for task in sorted(last_batches):
        if last_batches[task] > batch:
            raise _later_batch_error(last_batches[task], batch, f"task {task}")
    if batch in last_batches.values():
        task = min(task for task, last_batch in last_batches.items() if last_batch == batch)
        raise ReplayDiffers(
            f"batch {batch} comes again with its rows in other tasks: an earlier attempt has "
            f"written rows in task {task}, which has none now, so some rows of it may be in the "
            "topic twice",
            next_step="write with a new checkpoint to a new topic; and finish an interrupted batch "
            "before you change what decides the number of tasks (cores, partitions, options)",
        )
