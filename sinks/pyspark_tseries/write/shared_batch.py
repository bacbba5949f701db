"""Single events of several callers in one commit, each judged by itself.

The callers wait for the commit lock. Whoever gets it draws all that wait and commits them as one
batch, so that they pay once for the files of a commit and for syncing them. The result is one that
the callers could have got one after the other: within a batch the events of a series are in the
order of their timestamps, and none of a batch makes another late (semantics 16.2, 17.1).

A row that may not be appended would fail the whole batch. So if the batch fails, every row is
judged alone on top of the same index: its caller gets the error that the row would have got alone,
and the rest is committed. A row that is accepted alone is accepted with others, too: lateness
depends on the index alone, and others of the batch only raise an assigned timestamp.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pyspark_tseries.errors import TseriesError
from pyspark_tseries.write.batch import Batch, CommitContext, PreparedCommit

__all__ = ["AppendedEvent", "Refused", "SharedBatch", "can_share"]


class Refused(Exception):
    """No row of a shared batch may be appended.

    Attributes:
        reasons: the error of each row.
    """

    def __init__(self, reasons: Sequence[TseriesError]) -> None:
        super().__init__("no row may be appended")
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class AppendedEvent:
    """An event of a shared batch: its sequence, its timestamp, and the number of its commit."""

    sequence: int
    timestamp_us: int
    commit: int


def can_share(first: Batch, other: Batch) -> bool:
    """True if `other` may be in one commit with `first`; both have one row, and no edit."""
    return other.rows.schema.equals(first.rows.schema) and other == replace(first, rows=other.rows)


class SharedBatch:
    """Batches of one row each as one batch that a store can append.

    Args:
        draw: returns the batches, at least one, which can share a commit; called once, when the
            first attempt begins.
    """

    def __init__(self, draw: Callable[[], Sequence[Batch]]) -> None:
        self._draw = draw
        self._batches: Sequence[Batch] = ()
        self._refused: dict[int, dict[int, TseriesError]] = {}

    @property
    def token(self) -> None:
        """None: only batches without one share a commit."""
        return

    @property
    def digest(self) -> None:
        """None: it comes once."""
        return

    @property
    def has_edits(self) -> bool:
        """Never: whether an original exists is not judged alone as it is with others."""
        return False

    @property
    def is_slow(self) -> bool:
        """Never: its rows are few."""
        return False

    def prepare(self, context: CommitContext) -> PreparedCommit:
        """Write the files of a commit of the rows that may be appended.

        Raises:
            Refused: none may; nothing has been written.
        """
        self._batches = self._batches or self._draw()
        refused: dict[int, TseriesError] = {}
        try:
            commit = _join(self._batches).prepare(context)
        except TseriesError as error:
            refused = self._judge(context) if len(self._batches) > 1 else {0: error}
            accepted = [each for row, each in enumerate(self._batches) if row not in refused]
            if not accepted:
                raise Refused([refused[row] for row in range(len(refused))]) from None
            commit = _join(accepted).prepare(context)
        self._refused[commit.head_id] = refused
        return commit

    def _judge(self, context: CommitContext) -> dict[int, TseriesError]:
        """The rows that may not be appended, and the error of each."""
        refused = {}
        for row, batch in enumerate(self._batches):
            try:
                batch.number_appends(context)
            except TseriesError as error:
                refused[row] = error
        return refused

    def outcomes(self, commit: PreparedCommit) -> list[AppendedEvent | TseriesError]:
        """The outcome of each batch by `commit`, which `prepare` has returned."""
        refused, (events,) = self._refused[commit.head_id], commit.numbered
        place = np.argsort(events.order)
        sequence, us = events.sequence[place].tolist(), events.timestamp_us[place].tolist()
        number = commit.index.metadata.commit
        appended = (AppendedEvent(*each, number) for each in zip(sequence, us, strict=True))
        return [refused.get(row) or next(appended) for row in range(len(self._batches))]


def _join(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_tables([batch.rows for batch in batches]).combine_chunks()
    return replace(batches[0], rows=rows)
