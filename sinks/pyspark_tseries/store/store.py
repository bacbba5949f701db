"""A store: opened, created, and the one way to append to it.

A commit is one Delta commit that names the event files, the new head (transaction `tseries:head`)
and the writer's token. Delta rejects it if another writer has set a head in the meantime: compare
and swap. The loser discards its files and tries again on top of the winner's index.

A commit may also fail without a competing one: the storage failed, or only its answer was lost.
So before each new attempt the log is read to see whether an earlier attempt is in it. A token
makes the batch idempotent beyond that, across processes.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from pyspark_tseries.errors import NoSuchStore
from pyspark_tseries.model import properties
from pyspark_tseries.model.columns import table_schema
from pyspark_tseries.model.commit_time import check_commit_time, is_clock_suspicious
from pyspark_tseries.model.policy import Policy
from pyspark_tseries.model.retention import DEFAULT_RANGE, RetainedRange, format_range
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage import locks as host_locks
from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.head_files import head_path, read_head_metadata
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.log import Log, add_actions
from pyspark_tseries.store.log_check import HEAD_TRANSACTION
from pyspark_tseries.store.log_entries import RemovedFile
from pyspark_tseries.store.retry import backoff, contention_error
from pyspark_tseries.store.shared_commits import SharedCommits
from pyspark_tseries.store.state import StoreState
from pyspark_tseries.store.table import create_table, open_table, unreachable_error
from pyspark_tseries.write.batch import (
    Appendable,
    Batch,
    CommitContext,
    EditContext,
    PreparedCommit,
)
from pyspark_tseries.write.replay import digest_mark, is_replay, make_marks
from pyspark_tseries.write.shared_batch import AppendedEvent

__all__ = ["Store", "now_us"]

_LOG: Final = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 200
"""With backoff about half a minute, far longer than a race of a few writers lasts."""

MAX_STORAGE_FAILURES: Final = 5
"""Consecutive failures without a competing commit before the storage is considered faulty."""


_CONTENTION_TEXTS: Final = (
    "nothing of the batch is stored",
    "start the write again, or use fewer writers or larger batches",
)


def now_us() -> int:
    """The wall clock, in microseconds."""
    return time.time_ns() // 1000


class Store(StoreState):
    """An open store; one object per location and process, safe for threads.

    It keeps the log and the head between batches; both are brought up to date before use.
    """

    def __init__(
        self, location: str | Location, table: DeltaTable, *, skip_checks: bool = False
    ) -> None:
        super().__init__(location, table, skip_checks=skip_checks)
        self._shared = SharedCommits(
            lambda batch, synced, tried: self.append(batch, synced=synced, tried=tried)
        )

    @staticmethod
    def find(path: str | Location) -> "Store | None":
        """The store at `path`, up to date; None where there is none.

        Raises:
            UnusableStore: it is of a newer version, not a store, or damaged (`repair` mends that).
        """
        location = parse_location(path)
        with _opening_lock:
            store = _open_stores.get(location)
            if store is not None and store.refresh():
                return store
            _open_stores.pop(location, None)
            table = open_table(location)
            if table is None:
                return None
            properties.check_version(table.metadata().configuration, location.root)
            return _open_stores.setdefault(location, Store(location, table))

    @staticmethod
    def open(path: str | Location) -> "Store":
        """The store at `path`, up to date; raises NoSuchStore, and what `find` raises."""
        store = Store.find(path)
        if store is None:
            raise _no_store_error(path)
        return store

    @staticmethod
    def open_damaged(path: str | Location) -> "Store":
        """As `open`, also where files are torn or another tool has changed rows.

        The object is not shared, and starts without caches.
        """
        location = parse_location(path)
        table = open_table(location)
        if table is None:
            raise _no_store_error(path)
        properties.check_version(table.metadata().configuration, location.root)
        return Store(location, table, skip_checks=True)

    @staticmethod
    def create(
        path: str | Location,
        values: Iterable[pa.Field],
        retained: RetainedRange | None,
        min_retention_us: int | None = None,
        subscription: RetainedRange | None = None,
        *,
        policy: Policy | None = None,
    ) -> "Store":
        """The new store at `path`, or the one that another writer has just created there."""
        location = parse_location(path)
        asked = retained, min_retention_us, subscription, policy
        fixed = properties.new_properties(*asked, is_local=location.is_local)
        create_table(location, table_schema(values), fixed)
        store = Store.open(path)
        if retained is None:
            _LOG.warning(
                "no retained range was given for the new store '%s', so that it keeps '%s': reads "
                "show the ten newest events of each series; next step: give 'retainedRange' "
                "(retained_range=) when a store is created, such as 'last 30D' or 'unlimited'",
                store.root,
                format_range(DEFAULT_RANGE),
            )
        return store

    @contextlib.contextmanager
    def commit_lock(self) -> Iterator[Log]:
        """The log, up to date, while no other writer of this host commits."""
        with self._lock, host_locks.commit_lock(self.location):
            self._refresh_or_fail()
            yield self.log

    def read_clock(self, clock: Callable[[], int] = now_us) -> int:
        """The wall clock, in microseconds.

        Raises:
            WrongClock: it is far ahead, or was when the last commit was made.
        """
        us = clock()
        self.check_time(us)
        return us

    def check_time(self, us: int) -> None:
        """Refuse the time `us` if it, or the last commit's, is far ahead of other clocks.

        Raises:
            WrongClock: one of them is; see `check_commit_time`.
        """
        last_us = self.metadata().commit_us
        if is_clock_suspicious(last_us, us, self.log.written_us):
            storage_us = self.location.clock_us()
            check_commit_time(
                self.root, last_us, us, storage_us, same_machine=self.location.is_local
            )

    def commit_index(
        self,
        head_id: int,
        index: SeriesIndex,
        replaced: Sequence[DataFile] = (),
        written: Sequence[WrittenFile] = (),
        beside: Sequence[str] = (),
    ) -> None:
        """Commit the head that was written as `head_id`, without new events.

        The commit lock is held.

        Args:
            head_id: of the head.
            index: of the head.
            replaced: files of the store whose events are in `written` from now on.
            written: new files.
            beside: full paths of other files that the commit depends on.

        Raises:
            DeltaError: a competing commit was first, or has replaced one of `replaced`.
        """
        prepared = PreparedCommit(head_id, index, list(written), [])
        self._publish(prepared, {}, synced=True, replaced=replaced, beside=beside)

    def append_event(self, batch: Batch, *, synced: bool = True) -> tuple[AppendedEvent, bool]:
        """Append a batch of one row, no edit, without a token; threads share commits.

        Returns:
            The event; and True for one of the callers of each commit.

        Raises:
            Exception: as `append`.
        """
        return self._shared.append(batch, synced=synced)

    def append(
        self,
        batch: Appendable,
        clock: Callable[[], int] = now_us,
        *,
        synced: bool = True,
        tried: list[PreparedCommit] | None = None,
    ) -> PreparedCommit | None:
        """Commit `batch`, once for all calls with the same token.

        Args:
            batch: the rows to append.
            clock: the wall clock, in microseconds; read once per attempt.
            synced: True if a commit on a local path must survive a power loss once this returns.
            tried: the attempts of a call that was interrupted; this call adds its own.

        Returns:
            The commit; None if the store already has the batch.

        Raises:
            UpdateFailed: a row may not be added.
            ReplayDiffers: the batch lies before the last one with its token's name, or has other
                rows than it.
            NoSuchEvent: an edit may not.
            PermissionDenied: the batch's principal may not do this.
            WrongClock: `clock` is far ahead, or was when the last commit was made.
            StoreBusy: other writers won all attempts.
            OSError, DeltaError, UnusableStore: the storage failed again and again.
        """
        tried = [] if tried is None else tried
        lost: DeltaError | OSError | None = None
        faults = attempts = 0
        while True:
            try:
                with self._lock, host_locks.commit_lock(self.location):
                    self._refresh_or_fail(whole=batch.has_edits)
                    landed = next(
                        (attempt for attempt in tried if self._is_committed(attempt)), None
                    )
                    if landed or self._has_batch(batch):
                        if synced:
                            self.log.sync_entries()
                        return landed or (tried[-1] if tried else None)
                    faults = 0 if tried and self._discard_lost(tried) else faults
                    if faults == MAX_STORAGE_FAILURES or attempts == MAX_ATTEMPTS:
                        break
                    return self._attempt(batch, clock, tried, synced)
            except (DeltaError, OSError) as error:
                # The next attempt first checks whether the batch is stored nevertheless.
                lost, faults = error, faults + 1
                if faults > MAX_STORAGE_FAILURES:
                    break
            backoff(attempts)
            attempts += 1
        if lost is None or faults < MAX_STORAGE_FAILURES:
            raise contention_error(self.root, MAX_ATTEMPTS, *_CONTENTION_TEXTS) from lost
        raise lost if self.location.is_local else unreachable_error(self.location, "written", lost)

    def _has_batch(self, batch: Appendable) -> bool:
        """True if the store's last batch with the token's name is this one.

        Raises:
            ReplayDiffers: it is a later one, or has other rows.
        """
        return batch.token is not None and self.is_replay(batch.token, batch.digest)

    def is_replay(self, token: tuple[str, int], digest: int | None) -> bool:
        """As `write.replay.is_replay`, by the log as it was last refreshed."""
        last = self.log.transaction(token[0])
        stored = None if last is None else self.log.transaction(digest_mark(token[0]))
        return is_replay(self.root, token, digest, last, stored)

    def _attempt(
        self, batch: Appendable, clock: Callable[[], int], tried: list[PreparedCommit], synced: bool
    ) -> PreparedCommit:
        """Make one attempt to commit, added to `tried` before it is published."""
        head_id, index = self.index()
        edits = EditContext(self.data_files(), self.retained) if batch.has_edits else None
        policy = properties.current_policy(self.log.properties(), index.metadata)
        working = host_locks.heartbeat(self.location) if batch.is_slow else contextlib.nullcontext()
        with working:
            us, new_id = self.read_clock(clock), self.new_id()
            context = CommitContext(
                self.location, head_id, index, us, new_id, edits, policy, self.retained
            )
            attempt = batch.prepare(context)
            tried.append(attempt)
            if self.head_id() != head_id:
                # By this very thread: the handler of a signal may have committed meanwhile.
                raise CommitFailedError("a competing commit was first")
            self._publish(attempt, make_marks(batch.token, batch.digest), synced)
        return attempt

    def _discard_lost(self, tried: list[PreparedCommit]) -> bool:
        """True if a competing commit was first; discards attempts that cannot succeed any more.

        An object store may still carry out a request that failed, unless a competing commit is
        in its way. Until then the files of the attempt stay; cleaning removes them in the end.
        """
        head_id, _ = self.index()
        beaten = [attempt for attempt in tried if attempt.index.metadata.parent != head_id]
        for attempt in list(tried) if self.location.is_local else beaten:
            self.location.remove(attempt.paths)
            tried.remove(attempt)
        return bool(beaten)

    def _is_committed(self, attempt: PreparedCommit) -> bool:
        """True if a commit is in the log although publishing it failed."""
        head_id, _ = self.index()
        while head_id is not None and head_id != attempt.head_id:
            metadata = read_head_metadata(self.location, head_id)
            if metadata.commit <= attempt.index.metadata.commit:
                return False
            head_id = metadata.parent
        if head_id is not None:
            return True
        # A rebuilt head has no parent.
        live = {file.path for file in self.data_files()}
        return any(file.path in live for file in attempt.written)

    def _publish(
        self,
        attempt: PreparedCommit,
        marks: Mapping[str, int],
        synced: bool,
        replaced: Sequence[DataFile] = (),
        beside: Sequence[str] = (),
    ) -> None:
        metadata, files = attempt.index.metadata, [file.path for file in attempt.written]
        now_ms = metadata.commit_us // 1000
        gone = [RemovedFile(old.path, old.size, old.kind, now_ms, True) for old in replaced]
        self.log.commit(
            [*gone, *add_actions(attempt.written, now_ms)],
            {HEAD_TRANSACTION: attempt.head_id, **marks},
            metadata.commit,
            [head_path(self.location, attempt.head_id), *map(self.location.file, files), *beside],
            synced=synced,
        )
        self._last.remember(attempt.head_id, attempt.index)


def _no_store_error(path: str | Location) -> NoSuchStore:
    shown = path if isinstance(path, str) else path.root
    return NoSuchStore(
        f"there is no store at '{shown}'",
        "a path that a tseries write has created",
        "correct the path, or write to it first",
    )


_open_stores: Final[dict[Location, Store]] = {}
_opening_lock: Final = threading.Lock()
