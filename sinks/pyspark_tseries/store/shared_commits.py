"""Group commit: threads of one process that append single events share commits (semantics 16.9).

The callers wait for the commit lock. One of them, the leader, commits for all that wait by the time
it has the lock, so that they pay once for the files of a commit and for syncing them. The others
sleep until their event is stored or refused; then the leader passes the lead on to one that has
come meanwhile. The result is one that the callers could have got one after the other: within a
batch the events of a series are in the order of their timestamps, and none makes another late.

If the batch fails, every row is checked alone on top of the same index: its caller gets the error
that the row would have got alone, and the rest is committed. A row that is accepted alone is
accepted with others, too: lateness depends on the index alone, and others of the batch only raise
an assigned timestamp.

A leader may be interrupted (Ctrl-C) in the middle of a commit, without knowing whether that is in
the log. Another caller of the same commit then takes over with the same attempts, and looks whether
one of them is in the log before it makes a new one.
"""

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_tseries.errors import TseriesError
from pyspark_tseries.write.batch import Batch, CommitContext, PreparedCommit


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

    token = digest = None
    """Only batches without a token share a commit."""

    has_edits = is_slow = False
    """Its rows are few, and no edits: whether an original exists is not checked row by row."""

    def __init__(self, draw: Callable[[], Sequence[Batch]]) -> None:
        self._draw = draw
        self._batches: Sequence[Batch] = ()
        self._refused: dict[int, dict[int, TseriesError]] = {}

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
            refused = self._find_refused(context) if len(self._batches) > 1 else {0: error}
            accepted = [each for row, each in enumerate(self._batches) if row not in refused]
            if not accepted:
                raise Refused([refused[row] for row in range(len(refused))]) from None
            commit = _join(accepted).prepare(context)
        self._refused[commit.head_id] = refused
        return commit

    def _find_refused(self, context: CommitContext) -> dict[int, TseriesError]:
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


MAX_SHARED_EVENTS: Final = 1000
"""The events of a shared commit at most; as many are numbered and written in a few ms."""

Append = Callable[..., PreparedCommit | None]
"""`Store.append`."""


class SharedCommits:
    """Appends single events of any number of threads, with as few commits as there can be.

    Args:
        append: appends a batch; called by one thread at a time.
    """

    def __init__(self, append: Append) -> None:
        self._append = append
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._waiting: list[_Caller] = []
        self._inside: set[int] = set()
        self._leader: _Caller | None = None
        self._current = _SharedCommit()

    def append(self, batch: Batch, *, synced: bool) -> tuple[AppendedEvent, bool]:
        """As `Store.append_event`."""
        if self._pid != os.getpid():
            self._start()  # A fork has the callers of its parent, but not their threads.
        thread, caller = threading.get_ident(), _Caller(batch, synced)
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
        """Append without waiting for others: a signal has interrupted an append of this thread."""
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
        """Commit for the callers that wait; or end the commit that another leader has begun."""
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
                if not shared.callers:  # It failed before any was drawn.
                    leader.outcome = error
                    return
                shared.outcomes = [_copy_error(error) for _ in shared.callers]
        shared.settle()

    def _draw(self, leader: "_Caller", shared: "_SharedCommit") -> Sequence[Batch]:
        """Take the leader, and those of the waiting that can share its commit, into it."""
        if not shared.callers:
            with self._mutex:
                others = (each for each in self._waiting if leader.can_share(each))
                drawn = [leader, *islice(others, MAX_SHARED_EVENTS - 1)]
                taken = set(map(id, drawn))
                rest = [each for each in self._waiting if id(each) not in taken]
                shared.callers, self._waiting = drawn, rest
        return [each.batch for each in shared.callers]

    def _leave(self, caller: "_Caller") -> None:
        """Pass on the lead if `caller` has it; it may have been interrupted at any moment."""
        with self._mutex:
            caller.has_left = True
            self._waiting = [each for each in self._waiting if each is not caller]
            if self._leader is caller:
                heirs = self._current.remaining() or self._waiting
                self._leader = heirs[0] if heirs else None
                if heirs:
                    heirs[0].signal.release()


class _Caller:
    """A thread that appends an event, and waits."""

    __slots__ = ("batch", "has_left", "is_first", "outcome", "signal", "synced")

    def __init__(self, batch: Batch, synced: bool) -> None:
        self.batch = batch
        self.synced = synced
        self.outcome: AppendedEvent | Exception | None = None
        self.is_first = self.has_left = False
        self.signal = threading.Semaphore(0)

    def can_share(self, other: "_Caller") -> bool:
        """True if another caller's event may be in one commit with this one's."""
        same = other is not self and other.synced == self.synced
        return same and can_share(self.batch, other.batch)


class _SharedCommit:
    """A commit for several callers.

    Attributes:
        callers: in the order of the batch; empty until they are drawn.
        batch: of their rows.
        attempts: to commit it.
        outcomes: of the callers; None until they are known.
    """

    def __init__(self) -> None:
        self.callers: list[_Caller] = []
        self.batch: SharedBatch | None = None
        self.attempts: list[PreparedCommit] = []
        self.outcomes: Sequence[AppendedEvent | Exception] | None = None

    def remaining(self) -> list[_Caller]:
        """The callers that still wait for their outcome."""
        return [each for each in self.callers if each.outcome is None and not each.has_left]

    def settle(self) -> None:
        """Tell each caller its outcome."""
        assert self.outcomes is not None
        for row, (caller, outcome) in enumerate(zip(self.callers, self.outcomes, strict=True)):
            caller.is_first = row == 0
            caller.outcome = outcome
            caller.signal.release()


def _copy_error(error: Exception) -> Exception:
    """A copy of `error`, since each thread that raises one adds its own traceback."""
    with contextlib.suppress(Exception):
        return copy.copy(error)
    return error
