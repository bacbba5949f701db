"""One attempt to commit a batch: its rows numbered on top of a head, its files written.

The files count for nothing until a Delta commit names them; an attempt that lost its race is
discarded, and the next one starts from the head that won.
"""

import os
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tseries import files
from pyspark_tseries.heads import Head, advance, next_note
from pyspark_tseries.numbering import counted, number
from pyspark_tseries.rows import event_rows

__all__ = ["Attempt", "Batch", "prepare"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to append as a whole.

    Attributes:
        rows: columns of `RowPlan.staged`, one chunk each.
        policy: what becomes of late rows: `fail`, `drop` or `adjust`.
        author: of the rows that name none.
        token: (application, version): a batch is skipped where the store has this version of the
            application, or a higher one; None appends always.
    """

    rows: pa.Table
    policy: str
    author: str
    token: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """Files written for a commit.

    Attributes:
        head_id: the id of the new head.
        head: the store as it is after the commit.
        events: the file of events; empty where the batch was dropped whole.
        paths: all files, to discard.
    """

    head_id: int
    head: Head
    events: list[files.WrittenFile]
    paths: list[str]


def prepare(
    root: str, batch: Batch, head_id: int | None, head: Head, now_us: int, new_id: int
) -> Attempt:
    """Numbers `batch` on top of `head` and writes the files of the commit.

    Args:
        root: the store's directory.
        batch: what to append.
        head_id: the id of `head`; None before the first commit.
        head: the store as it is.
        now_us: the wall clock; the commit's time where it is not before the last commit's.
        new_id: the id of the new head, unlike any other.

    Raises:
        UpdateFailed: a row may not be added; nothing has been written.
    """
    now_us = max(now_us, head.note.commit_us)
    series, given = (batch.rows[name].combine_chunks() for name in ("series", "timestamp"))
    events = number(series, given, head, batch.policy, now_us)
    note = counted(next_note(head, head_id, now_us=now_us, rows=len(events.names)), events)
    after, table = advance(head, events.delta, note)
    paths, written = [files.write_head(root, new_id, table)], []
    if len(events.order):
        path = f"kind=event/{note.commit:010d}-{new_id:016x}.parquet"
        paths.append(os.path.join(root, path))
        rows = event_rows(batch.rows, events, note, batch.author)
        written.append(files.write_events(root, path, rows))
    return Attempt(new_id, after, written, paths)
