"""Let threads of one process that append single events share commits (semantics 16.9).

The leader, one of the waiting callers, commits for all callers that are waiting when it gets the
commit lock, so that files are written and synced once. The others sleep until their event is stored
or refused; then the leader hands over to another caller. The callers could have got the same
result one after the other: within a batch the events of a series are in the order of their
timestamps, and none makes another late.

A leader may be interrupted (Ctrl-C) in the middle of a commit, without knowing whether it is in the
log. Then another caller of the same commit takes over the attempts; before it makes a new one, it
checks whether one of them is in the log.
"""

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_tseries.errors import TseriesError
from pyspark_tseries.write.batch import Appendable, Batch, CommitContext, PreparedCommit


class Refused(Exception):
    """Raised if no row of a shared batch may be appended.

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
    """Return whether two batches may share a commit; each has one row, which is not an edit."""
    return other.rows.schema.equals(first.rows.schema) and other == replace(first, rows=other.rows)


class SharedBatch(Appendable):
    """Joins batches of one row each into one batch that a store can append.

    If that batch fails, it checks each row separately on top of the same index. The caller of a
    refused row gets the error of that row; the rest is committed. Rows that are accepted separately
    are accepted together: lateness depends only on the index, and other rows of the batch can only
    raise an assigned timestamp. No row is an edit, because the originals of edits are not looked up
    row by row.

    Args:
        draw: returns one or more batches that can share a commit; called once, at the first try.
    """

    def __init__(self, draw: Callable[[], Sequence[Batch]]) -> None:
        self._draw = draw
        self._batches: Sequence[Batch] = ()
        self._refused: dict[int, dict[int, TseriesError]] = {}

    def prepare(self, context: CommitContext) -> PreparedCommit:
        """Write the files of a commit with the rows that may be appended.

        Raises:
            Refused: no row may be appended; nothing has been written.
        """
        self._batches = self._batches or self._draw()
        refused: dict[int, TseriesError] = {}
        try:
            commit = _join_batches(self._batches).prepare(context)
        except TseriesError as error:
            refused = self._find_refused(context) if len(self._batches) > 1 else {0: error}
            accepted = [batch for row, batch in enumerate(self._batches) if row not in refused]
            if not accepted:
                raise Refused([refused[row] for row in range(len(refused))]) from None
            commit = _join_batches(accepted).prepare(context)
        self._refused[commit.head_id] = refused
        return commit

    def _find_refused(self, context: CommitContext) -> dict[int, TseriesError]:
        """Return the error of each row that may not be appended."""
        refused = {}
        for row, batch in enumerate(self._batches):
            try:
                batch.number_appends(context)
            except TseriesError as error:
                refused[row] = error
        return refused

    def outcomes(self, commit: PreparedCommit) -> list[AppendedEvent | TseriesError]:
        """Return the outcome of each batch in `commit`, which `prepare` has returned."""
        refused, (events,) = self._refused[commit.head_id], commit.numbered
        event_of_row = np.argsort(events.order)
        sequence, us = (
            events.sequence[event_of_row].tolist(),
            events.timestamp_us[event_of_row].tolist(),
        )
        number = commit.index.metadata.commit
        appended = (AppendedEvent(*event, number) for event in zip(sequence, us, strict=True))
        return [refused.get(row) or next(appended) for row in range(len(self._batches))]


def _join_batches(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_tables([batch.rows for batch in batches]).combine_chunks()
    return replace(batches[0], rows=rows)


MAX_SHARED_EVENTS: Final = 1000
"""The most events of a shared commit; numbering and writing them takes a few ms."""

Append = Callable[..., PreparedCommit | None]
"""`Store.append`."""


class SharedCommits:
    """Appends single events of any number of threads in as few commits as possible.

    Args:
        append: appends a batch; called by one thread at a time.
    """

    def __init__(self, append: Append) -> None:
        self._append = append
        self.begin_child()

    def begin_child(self) -> None:
        """Forget all callers: a forked process has its parent's, but not their threads."""
        self._mutex = threading.Lock()
        self._waiting: list[_Caller] = []
        self._inside: set[int] = set()
        self._leader: _Caller | None = None
        self._current = _SharedCommit()

    def append(self, batch: Batch, *, synced: bool) -> tuple[AppendedEvent, bool]:
        """Do what `Store.append_event` describes."""
        thread = threading.get_ident()
        caller = _Caller(batch, synced=synced)
        if thread in self._inside:
            return self._append_alone(caller)
        self._inside.add(thread)
        try:
            with self._mutex:
                self._waiting.append(caller)
                self._leader = self._leader or caller
            while caller.outcome is None and self._leader is not caller:
                caller.signal.acquire()
            if caller.outcome is None:
                self._lead(caller)
        finally:
            self._inside.discard(thread)
            self._leave(caller)
        if isinstance(caller.outcome, AppendedEvent):
            return caller.outcome, caller.is_first
        assert caller.outcome is not None
        raise caller.outcome

    def _append_alone(self, caller: "_Caller") -> tuple[AppendedEvent, bool]:
        """Append one batch in a signal handler of an appending thread: a wait would deadlock."""
        batch = SharedBatch(lambda: [caller.batch])
        try:
            commit = self._append(batch, synced=caller.synced)
        except Refused as refused:
            raise refused.reasons[0] from None
        assert commit is not None
        (event,) = batch.outcomes(commit)
        assert isinstance(event, AppendedEvent)
        return event, True

    def _lead(self, leader: "_Caller") -> None:
        """Commit for the waiting callers, or finish the commit that another leader has begun."""
        if not self._current.remaining():
            self._current = _SharedCommit()
        shared = self._current
        batch = shared.batch = shared.batch or SharedBatch(lambda: self._draw(leader, shared))
        if shared.outcomes is None:
            try:
                commit = self._append(batch, synced=leader.synced, attempts=shared.attempts)
                assert commit is not None
                shared.outcomes = batch.outcomes(commit)
            except Refused as refused:
                shared.outcomes = refused.reasons
            except Exception as error:
                if not shared.callers:  # The commit failed before it drew any caller.
                    leader.outcome = error
                    return
                shared.outcomes = [_copy_error(error) for _ in shared.callers]
        shared.settle()

    def _draw(self, leader: "_Caller", shared: "_SharedCommit") -> Sequence[Batch]:
        """Move the leader, and the waiting callers that can share its commit, into the commit."""
        if not shared.callers:
            with self._mutex:
                others = (caller for caller in self._waiting if leader.can_share(caller))
                drawn = [leader, *islice(others, MAX_SHARED_EVENTS - 1)]
                drawn_ids = set(map(id, drawn))
                still_waiting = [caller for caller in self._waiting if id(caller) not in drawn_ids]
                shared.callers = drawn
                self._waiting = still_waiting
        return [caller.batch for caller in shared.callers]

    def _leave(self, caller: "_Caller") -> None:
        """Make another caller the leader if `caller` is; it may be interrupted at any moment."""
        with self._mutex:
            caller.has_left = True
            self._waiting = [waiting for waiting in self._waiting if waiting is not caller]
            if self._leader is caller:
                heirs = self._current.remaining() or self._waiting
                self._leader = heirs[0] if heirs else None
                if heirs:
                    heirs[0].signal.release()


class _Caller:
    """A thread that waits for the result of appending an event."""

    __slots__ = ("batch", "has_left", "is_first", "outcome", "signal", "synced")

    def __init__(self, batch: Batch, *, synced: bool) -> None:
        self.batch = batch
        self.synced = synced
        self.outcome: AppendedEvent | Exception | None = None
        self.is_first = self.has_left = False
        self.signal = threading.Semaphore(0)

    def can_share(self, other: "_Caller") -> bool:
        """Return whether another caller's event may share a commit with this one's."""
        same = other is not self and other.synced == self.synced
        return same and can_share(self.batch, other.batch)


class _SharedCommit:
    """A commit for several callers.

    Attributes:
        callers: the callers in the order of the batch; empty until they are drawn.
        batch: the batch of their rows.
        attempts: the attempts to commit the batch.
        outcomes: the outcomes of the callers; None until they are known.
    """

    def __init__(self) -> None:
        self.callers: list[_Caller] = []
        self.batch: SharedBatch | None = None
        self.attempts: list[PreparedCommit] = []
        self.outcomes: Sequence[AppendedEvent | Exception] | None = None

    def remaining(self) -> list[_Caller]:
        """Return the callers that still wait for their outcome."""
        return [caller for caller in self.callers if caller.outcome is None and not caller.has_left]

    def settle(self) -> None:
        """Tell each caller its outcome."""
        assert self.outcomes is not None
        for row, (caller, outcome) in enumerate(zip(self.callers, self.outcomes, strict=True)):
            caller.is_first = row == 0
            caller.outcome = outcome
            caller.signal.release()


def _copy_error(error: Exception) -> Exception:
    """Copy `error`, because each thread that raises it adds its own traceback."""
    with contextlib.suppress(Exception):
        return copy.copy(error)
    return error
