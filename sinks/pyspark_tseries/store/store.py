"""Open and create stores, and append to them; there is no other way to append (semantics 19.2).

A commit is one Delta commit that names the event files, the new head (transaction `tseries:head`)
and the batch's token. Delta rejects it if another client has set a head in the meantime (compare
and swap). The loser discards its files and tries again on top of the winner's index.

A commit may also fail without a competing one: the storage failed, or only its answer was lost. So
before each new attempt the store reads the log to see whether it has an earlier attempt. A token
also makes the batch idempotent across processes.
"""

import contextlib
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from pyspark_timestream.core.processes import ProcessLock, begin_in_forks
from pyspark_tseries.errors import NoSuchStore, ReplayDiffers, StoreBusy
from pyspark_tseries.model import properties
from pyspark_tseries.model.columns import table_schema, value_fields
from pyspark_tseries.model.commits import (
    APPLICATION_PREFIX,
    NO_COMMIT,
    CommitMetadata,
    check_commit_time,
    is_clock_suspicious,
)
from pyspark_tseries.model.properties import AccessPolicy, StoreSettings
from pyspark_tseries.model.ranges import DEFAULT_RANGE, RetainedRange, format_range
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.failures import away_error, unreachable_error
from pyspark_tseries.storage.location import (
    RANDOM_BITS,
    Location,
    heartbeat,
    lock_commits,
    parse_location,
    tagged_id,
)
from pyspark_tseries.storage.snapshot import LastIndex, Snapshot, head_path, read_head_metadata
from pyspark_tseries.store.log import Log, create_table, forked_error, load_table_at, open_table
from pyspark_tseries.store.log_check import HEAD_TRANSACTION
from pyspark_tseries.store.log_entries import NewEntry, add_files, remove_files
from pyspark_tseries.store.shared_commits import AppendedEvent, SharedCommits
from pyspark_tseries.write.batch import (
    Appendable,
    Batch,
    CommitContext,
    PreparedCommit,
    batch_transactions,
    digest_transaction,
)

COLUMNS_TRANSACTION: Final = "tseries:columns"
"""Its version is the last commit that gave value columns wider types."""

HORIZON_TRANSACTION: Final = "tseries:horizon"
"""Its version is one more than the last commit that lost events to compaction."""

_LOG: Final = logging.getLogger(__name__)


def backoff(attempt: int) -> None:
    """Sleep for a random time after the attempt `attempt`, on average longer after each."""
    time.sleep(random.uniform(0.005, min(0.2, 0.01 * 2 ** min(attempt, 8))))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of attempts of a commit, and the pauses between them.

    Attributes:
        commit_attempts: the attempts of a commit; with the pauses they take about half a minute,
            far longer than a race of a few clients.
        rewrite_attempts: the attempts of a commit that rewrites or copies files each time.
        storage_failures: after this many consecutive failures without a competing commit, the
            storage counts as faulty.
        pause: waits after a failed attempt; it gets the attempt's number.
    """

    commit_attempts: int = 200
    rewrite_attempts: int = 20
    storage_failures: int = 5
    pause: Callable[[int], None] = backoff


DEFAULT_RETRYING: Final = RetryPolicy()

_Result = TypeVar("_Result")


class Store:
    """An open store; one object per location and process, safe for threads.

    Between calls it keeps the log, the last index and the last snapshot, and brings them up to date
    before use.

    Args:
        location: the location of the store.
        table: the Delta table there.
        skip_checks: True to ignore foreign changes and torn files.
        host_lock: lets only one client of this host commit at a time; the log separates hosts.
        retrying: how often it tries a commit again.
    """

    def __init__(
        self,
        location: str | Location,
        table: DeltaTable,
        *,
        skip_checks: bool = False,
        host_lock: Callable[[Location], AbstractContextManager[None]] = lock_commits,
        retrying: RetryPolicy = DEFAULT_RETRYING,
    ) -> None:
        self.location = parse_location(location)
        self.log = Log(self.location, table, skip_checks=skip_checks)
        self._lock: threading.RLock | _LostLock = threading.RLock()
        self._last = LastIndex(self.location, self._lock)
        self._last_snapshot: tuple[Any, Snapshot] | None = None
        self._known_settings: tuple[Any, StoreSettings] | None = None
        self._known_values: tuple[pa.Schema, Sequence[pa.Field]] | None = None
        self._host_lock = host_lock
        self.retrying = retrying
        self._shared = SharedCommits(self.append)
        begin_in_forks(self)

    def begin_child(self) -> None:
        """Start afresh in a forked process, or refuse to if a thread of the parent held the lock.

        A fork can use no Delta table with new entries, but an append does not need the table.
        """
        self._shared.begin_child()
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = _LostLock(self.root)
            self._last.begin_child(self._lock)

    @staticmethod
    def find(path: str | Location) -> "Store | None":
        """Return the store at `path`, up to date; None if there is none.

        Raises:
            UnusableStore: it is of another version, not a store, or damaged (see `repair`).
        """
        location = parse_location(path)
        # All of a process share one object: its lock orders their commits, its caches serve them.
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
        """Return the store at `path`, up to date; raise NoSuchStore, or what `find` raises."""
        store = Store.find(path)
        if store is None:
            raise _no_store_error(path)
        return store

    @staticmethod
    def open_damaged(path: str | Location) -> "Store":
        """Like `open`, but accept torn files and changes of rows by other tools.

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
        policy: AccessPolicy | None = None,
        more_properties: Mapping[str, str] | None = None,
    ) -> "Store":
        """Return a new store at `path`, or the one that another client has just created there.

        Its table also gets `more_properties`.
        """
        location = parse_location(path)
        table_properties = properties.new_properties(
            retained, min_retention_us, subscription, policy, is_local=location.is_local
        )
        create_table(
            location, table_schema(values), {**table_properties, **(more_properties or {})}
        )
        # If another client was first, this is its store, with its settings.
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

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.location.root

    @property
    def values(self) -> list[pa.Field]:
        """The value columns."""
        with self._lock:
            return value_fields(self.log.columns())

    @property
    def settings(self) -> StoreSettings:
        """The settings in the log as last refreshed."""
        with self._lock:
            table_properties, metadata = self.properties(), self.metadata()
            key = table_properties, metadata.retained, metadata.policy
            if self._known_settings is None or self._known_settings[0] != key:
                self._known_settings = key, properties.read_settings(table_properties, metadata)
            return self._known_settings[1]

    @property
    def id(self) -> str:
        """The table's id, which no other store has."""
        return self.log.table_id

    def new_id(self) -> int:
        """Return a random id for the names of new files, with the tag of this store."""
        return tagged_id(self.id, secrets.randbits(RANDOM_BITS))

    def metadata(self) -> CommitMetadata:
        """Return the metadata of the last commit, without reading the rows of the head file."""
        head_id = self.head_id()
        if head_id is None:
            return NO_COMMIT
        last_id, last_index = self._last.last
        return (
            last_index.metadata
            if head_id == last_id
            else read_head_metadata(self.location, head_id)
        )

    def properties(self) -> dict[str, str]:
        """Return the table's properties in the log as last refreshed."""
        with self._lock:
            return self.log.properties()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Log]:
        """Yield the log as last refreshed: meanwhile no other thread brings it up to date."""
        with self._lock:
            yield self.log

    def horizon(self) -> int:
        """Return the last commit that may have lost events to compaction; -1 if none has."""
        with self._lock:
            version = self.log.transaction(HORIZON_TRANSACTION)
            return -1 if version is None else version - 1

    def refresh(self, *, whole: bool = True) -> bool:
        """Bring the log up to date; return False if the table was removed or replaced.

        `whole` is as in `Log.refresh`; without it, columns and settings are up to date, too.
        """
        with self._lock:
            return self.log.refresh(whole=whole)

    def head_id(self) -> int | None:
        """Return the head's id in the log as last refreshed; None before the first commit."""
        with self._lock:
            return self.log.transaction(HEAD_TRANSACTION)

    def last_commit(self) -> int:
        """Return the number of the last commit that this object has seen; -1 before the first."""
        return self._last.index.metadata.commit

    def index(self) -> SeriesIndex:
        """Return the index of the head in the log as last refreshed."""
        return self._last.load(self.head_id())

    def snapshot(self) -> Snapshot:
        """Return the current state of the store; raise NoSuchStore if it was removed.

        This does not read the rows of the head file.
        """
        with self._lock:
            self._refresh_or_fail(whole=False)
            return self.last_snapshot()

    def at(self, version: int) -> Snapshot:
        """Return the store as of the entry `version` of its log, at most the last one seen.

        Raises:
            UnusableStore: the log does not reach back so far.
        """
        with self._lock:
            snapshot = self.last_snapshot() if version == self.log.version() else None
            # Taking the snapshot may bring the log up to date, so compare again.
            if snapshot is not None and version == self.log.version():
                return snapshot
        table = load_table_at(self.location, version)
        return Store(self.location, table, skip_checks=True).last_snapshot()

    def last_snapshot(self) -> Snapshot:
        """Return the state of the store in the log as last refreshed, or a later one."""
        with self._lock:
            while self._last_snapshot is None or self._last_snapshot[0] != self.log.state:
                state = self.log.state
                # Taking one may bring the log up to date; then the loop takes another.
                self._last_snapshot = state, self._take_snapshot()
            return self._last_snapshot[1]

    def _take_snapshot(self) -> Snapshot:
        head_id = self.head_id()
        snapshot = Snapshot(
            location=self.location,
            files=self.data_files(),
            head_id=head_id,
            metadata=self.metadata(),
            settings=self.settings,
            values=self.values,
            horizon=self.horizon(),
            heads=self._last,
        )
        if head_id == self._last.head_id:
            snapshot.index()  # It is in memory, and a later commit would replace it there.
        return snapshot

    def data_files(self) -> list[DataFile]:
        """Return the files in the log as last refreshed, in the order of their commits."""
        with self._lock:
            return self.log.files()

    def _refresh_or_fail(self, *, whole: bool) -> None:
        """Bring the log up to date, with its table if `whole`; see `Log.refresh`."""
        with self._lock:
            is_there = self.log.refresh(whole=whole)
        if not is_there:
            if self.location.is_away():
                raise away_error(self.location)
            raise NoSuchStore(
                f"the store '{self.root}' was removed or replaced while it was in use",
                next_step="put it back, or open the one that is there: start a query again",
            )

    @contextlib.contextmanager
    def commit_lock(self, *, whole: bool = True) -> Iterator[Log]:
        """Yield the current log while no other client of this host commits; see `Log.refresh`."""
        with self._lock, self._host_lock(self.location):
            self._refresh_or_fail(whole=whole)
            yield self.log

    @contextlib.contextmanager
    def planned_lock(self) -> Iterator[Log]:
        """Yield the log as `commit_lock` does, if nobody has added to it since it was last read.

        Raises:
            StoreBusy: another client was first.
        """
        version = self.log.version()
        with self.commit_lock() as log:
            if log.version() != version:
                raise StoreBusy(
                    f"store '{self.root}': another repair or a writer was first; nothing was "
                    "changed",
                    next_step="let one repair work at a time, without writers, and repair again",
                )
            yield log

    def retry(
        self,
        attempt: Callable[[], _Result | None],
        limit: int,
        outcome: str = "nothing was changed",
        *,
        rivals: str = "other writers were first",
        next_step: str = "try again",
        races: tuple[type[Exception], ...] = (DeltaError,),
    ) -> _Result:
        """Return the first result of `attempt`; call it again if it has none, or lost a race.

        Args:
            attempt: returns None, or raises one of `races`, to be called again after a pause.
            limit: the most calls.
            outcome: the state that the attempts leave behind, for the error.
            rivals: the clients that interfered, for the error.
            next_step: the next step, for the error.
            races: the errors that a competing commit causes.

        Raises:
            StoreBusy: no attempt had a result.
        """
        last_error: Exception | None = None
        for number in range(limit):
            try:
                result = attempt()
            except races as error:
                last_error = error
            else:
                if result is not None:
                    return result
            self.retrying.pause(number)
        raise self.busy_error(limit, outcome, rivals, next_step) from last_error

    def busy_error(
        self,
        attempts: int,
        outcome: str,
        rivals: str = "other writers were first",
        next_step: str = "try again",
    ) -> StoreBusy:
        """Return the error of an operation that failed in all its `attempts`."""
        problem = f"store '{self.root}': {rivals} in all of {attempts} attempts; {outcome}"
        return StoreBusy(problem, next_step=next_step)

    def read_clock(self, clock: Callable[[], int] | None = None) -> int:
        """Return the time of `clock` in microseconds; raise WrongClock if it is, or was, far ahead.

        None stands for the wall clock.
        """
        us = time.time_ns() // 1000 if clock is None else clock()
        self.check_time(us)
        return us

    def check_time(self, us: int) -> None:
        """Raise WrongClock if the time `us`, or the last commit's, is far ahead of other clocks."""
        last_us = self.metadata().commit_us
        if is_clock_suspicious(last_us, us, self.log.written_us):
            storage_us = self.location.clock_us()
            check_commit_time(
                self.root, last_us, us, storage_us, same_machine=self.location.is_local
            )

    def append_event(self, batch: Batch, *, synced: bool) -> tuple[AppendedEvent, bool]:
        """Append a batch without a token and of one row, no edit; threads share commits.

        Return the event, and True for one of the callers of each commit; raise as `append` does.
        """
        return self._shared.append(batch, synced=synced)

    def append(
        self,
        batch: Appendable,
        clock: Callable[[], int] | None = None,
        *,
        synced: bool = True,
        attempts: list[PreparedCommit] | None = None,
    ) -> PreparedCommit | None:
        """Commit `batch`, once for all calls with the same token.

        Args:
            batch: the rows to append.
            clock: gives the time in microseconds, once per attempt; None: the wall clock.
            synced: True if a commit on a local path must survive a power loss once this returns.
            attempts: the attempts of an interrupted call; this call adds its own. The list is the
                caller's, so that Ctrl-C does not lose it: the next call with the same list finds
                out whether one of them is in the log.

        Returns:
            The commit; None if the store already has the batch, by another call.

        Raises:
            UpdateFailed: a row may not be added.
            ReplayDiffers: the batch is older than the last one with its token's name, or repeats it
                with other rows.
            NoSuchEvent: an edit names no original that may be edited.
            PermissionDenied: the batch's principal may not do this.
            WrongClock: `clock` is far ahead, or was when the last commit was made.
            StoreBusy: other clients won all attempts.
            OSError, DeltaError, UnusableStore: the storage failed again and again.
        """
        # Each turn first settles the attempts before it, because one that failed may be stored: a
        # storage can fail after it has stored, or lose its answer. Then it makes a new one. After
        # the last attempt there is one more turn, only to settle that.
        #
        # A lost race raises an error too, so `faults` counts all failures until a turn sees that a
        # competing commit was first. So races end the loop after `commits` attempts, as StoreBusy,
        # and a faulty storage after `storage_failures`, with its own error.
        attempts = [] if attempts is None else attempts
        last_error: DeltaError | OSError | None = None
        faults = 0
        policy = self.retrying
        for number in range(policy.commit_attempts + 1):
            try:
                with self.commit_lock(whole=False):
                    committed, was_beaten = self._settle(attempts)
                    if committed or self.has_batch(batch.token, batch.digest):
                        if synced:
                            # The call that committed it may have failed before it synced.
                            self.log.sync_entries()
                        return committed
                    # If a competing commit could be stored, the storage is not at fault.
                    faults = 0 if was_beaten else faults
                    if faults >= policy.storage_failures or number == policy.commit_attempts:
                        break
                    return self._try_append(batch, clock, attempts, synced=synced)
            except (DeltaError, OSError) as error:
                last_error = error
                faults += 1
                if faults > policy.storage_failures:
                    break
            policy.pause(number)
        self._give_up(faults, last_error)

    def _give_up(self, faults: int, last_error: DeltaError | OSError | None) -> NoReturn:
        """Raise the error of a batch that is not stored: other clients, or the storage's faults."""
        if last_error is None or faults < self.retrying.storage_failures:
            raise self.busy_error(
                self.retrying.commit_attempts,
                "nothing of the batch is stored",
                next_step="start the write again, or use fewer writers or larger batches",
            ) from last_error
        if self.location.is_local:
            raise last_error
        raise unreachable_error(self.location, "written", last_error)

    def has_batch(self, token: tuple[str, int] | None, digest: int | None) -> bool:
        """Return whether the log, as last refreshed, has this batch; raises as `check_replay`."""
        if token is None:
            return False
        last_digest = None
        with self._lock:
            last_batch = self.log.transaction(token[0])
            if last_batch is not None:
                last_digest = self.log.transaction(digest_transaction(token[0]))
        return check_replay(self.root, token, digest, last_batch, last_digest)

    def transaction(self, name: str) -> int | None:
        """Return the last version of a transaction in the log as last refreshed, or None."""
        with self._lock:
            return self.log.transaction(name)

    def has_token(self, token: tuple[str, int] | None) -> bool:
        """Return whether the log as last refreshed has the batch `token`, or a later one."""
        last = None if token is None else self.transaction(token[0])
        return token is not None and last is not None and last >= token[1]

    def _try_append(
        self,
        batch: Appendable,
        clock: Callable[[], int] | None,
        attempts: list[PreparedCommit],
        *,
        synced: bool,
    ) -> PreparedCommit:
        """Make one attempt to commit; add it to `attempts` before it is in the log."""
        # Take the snapshot first: this may bring the log up to date.
        snapshot = self.last_snapshot() if batch.needs_snapshot else None
        head_id, index = self.head_id(), self.index()
        # A client that waits for the commit lock goes on without it once the holder is silent.
        with heartbeat(self.location) if batch.is_slow else contextlib.nullcontext():
            context = CommitContext(
                location=self.location,
                head_id=head_id,
                index=index,
                now_us=self.read_clock(clock),
                new_id=self.new_id(),
                settings=self.settings,
                snapshot=snapshot,
                values=self._current_values(),
            )
            attempt = batch.prepare(context)
            attempts.append(attempt)
            # Take the version first: no later entry has been compared with the head.
            version = self.log.version()
            if self.head_id() != head_id:
                # A signal handler in this very thread may have committed in the meantime.
                raise CommitFailedError("a competing commit was first")
            transactions = batch_transactions(batch.token, batch.digest)
            self.commit_prepared(attempt, transactions, synced=synced, version=version)
        return attempt

    def _current_values(self) -> Sequence[pa.Field]:
        """Return the value columns; most appends find those of the append before."""
        columns = self.log.columns()
        if self._known_values is None or self._known_values[0] is not columns:
            self._known_values = columns, value_fields(columns)
        return self._known_values[1]

    def _settle(self, attempts: list[PreparedCommit]) -> tuple[PreparedCommit | None, bool]:
        """Return the attempt that is in the log, and whether a competing commit was first.

        Discard attempts that can no longer succeed. In an object store a request that seemed to
        fail may still succeed, until another commit takes its version. The attempt's files are kept
        until then, and maintenance removes the rest.
        """
        committed = next(filter(self.is_committed, attempts), None)
        failed = [attempt for attempt in attempts if attempt is not committed]
        if not failed:
            return committed, False
        head_id = self.head_id()
        beaten = [attempt for attempt in failed if attempt.index.metadata.parent != head_id]
        for attempt in failed if self.location.is_local else beaten:
            self.location.discard(attempt.paths)
            attempts.remove(attempt)
        return committed, bool(beaten)

    def is_committed(self, attempt: PreparedCommit) -> bool:
        """Return whether an attempt is in the log although adding it failed."""
        head_id = self.head_id()
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

    def commit_prepared(
        self,
        attempt: PreparedCommit,
        transactions: Mapping[str, int],
        *,
        synced: bool,
        version: int | None = None,
    ) -> None:
        """Add a prepared commit to the log, unless a competing one was first.

        The caller holds the commit lock.

        Args:
            attempt: the commit; its files are written.
            transactions: the transactions that name the batch.
            synced: as in `append`.
            version: the version of the log with the head that the commit builds on; None for the
                version as last refreshed.

        Raises:
            DeltaError: a competing commit was first, or has replaced one of `attempt.replaced`.
        """
        metadata = attempt.index.metadata
        columns = attempt.columns
        commit_ms = metadata.commit_us // 1000
        changes_rows = columns is None
        widened = {} if columns is None else {COLUMNS_TRANSACTION: metadata.commit}
        entry = NewEntry(
            [
                *remove_files(attempt.replaced, commit_ms, changes_rows=changes_rows),
                *add_files(attempt.written, commit_ms, changes_rows=changes_rows),
            ],
            {HEAD_TRANSACTION: attempt.head_id, **widened, **transactions},
            metadata.commit,
            None if columns is None else self.log.metadata_with(columns),
        )
        files = [
            head_path(self.location, attempt.head_id),
            *(self.location.file(file.path) for file in attempt.written),
            *attempt.beside,
        ]
        self.log.add(entry, files, synced=synced, expected_version=version)
        # The next commit builds on this index, and need not read it from the head.
        self._last.remember(attempt.head_id, attempt.index)


def _no_store_error(path: str | Location) -> NoSuchStore:
    location = path if isinstance(path, str) else path.root
    return NoSuchStore(
        f"there is no store at '{location}'",
        "a path that a tseries write has created",
        "correct the path, or write to it first",
    )


class _LostLock:
    """The lock of a forked store if a thread of the parent held it at the fork.

    The guarded state is half changed, so taking the lock raises an error.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def acquire(self, blocking: bool = True) -> bool:
        """Raise UnusableStore; return False if not `blocking`."""
        if not blocking:
            return False
        raise forked_error(self._root)

    def release(self) -> None:
        """Do nothing: nobody has it."""

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


_open_stores: Final[dict[Location, Store]] = {}
_opening_lock = ProcessLock()


def check_replay(
    root: str,
    token: tuple[str, int],
    digest: int | None,
    last_batch: int | None,
    last_digest: int | None,
) -> bool:
    """Return whether a batch repeats the last one of its transaction; refuse an unequal one.

    Args:
        root: the store's location, for people.
        token: the transaction, and the number of the batch.
        digest: the digest of its rows; None if unknown.
        last_batch: the number of the transaction's last batch in the store; None without one.
        last_digest: the digest of that batch; None if unknown.

    Raises:
        ReplayDiffers: the batch is older than that one, or repeats it with other rows.
    """
    transaction, batch = token
    if last_batch is None or batch > last_batch:
        return False
    if batch < last_batch:
        raise _older_batch_error(root, transaction, batch, last_batch)
    if digest is not None and last_digest is not None and digest != last_digest:
        raise _other_rows_error(root, transaction, batch)
    return True


def _name_owner(transaction: str) -> tuple[str, bool]:
    """Return the txnAppId or the query's id in a transaction, and whether it is a query's."""
    if transaction.startswith(APPLICATION_PREFIX):
        return transaction.removeprefix(APPLICATION_PREFIX), False
    return transaction.rpartition(":")[2], True


def _older_batch_error(root: str, transaction: str, batch: int, last: int) -> ReplayDiffers:
    name, is_query = _name_owner(transaction)
    if not is_query:
        return ReplayDiffers(
            f"txnVersion {batch} of txnAppId '{name}' is to be stored, and the store '{root}' has "
            f"its version {last}",
            f"a txnVersion above {last}, or {last} again with the same rows",
            "give the write another txnAppId if it is new work: the numbers of batches begin at 0 "
            "again with a new or deleted checkpoint. Nothing of the batch is stored",
        )
    return ReplayDiffers(
        f"batch {batch} of query {name} is to be stored, and the store '{root}' has its "
        f"batch {last}: the checkpoint is older than the store, as one that was put back, or "
        "another driver runs this query as well",
        f"a batch above {last}, or batch {last} again with the same rows",
        "let one driver run the query alone; or put the newer checkpoint back, or a state of the "
        "store that is as old as the checkpoint (a backup of both); or start with a new "
        "checkpointLocation, and let the source start after what is stored (startingOffsets, "
        "startingTimestamp). Nothing of the batch is stored",
    )


def _other_rows_error(root: str, transaction: str, batch: int) -> ReplayDiffers:
    name, is_query = _name_owner(transaction)
    if not is_query:
        return ReplayDiffers(
            f"txnVersion {batch} of txnAppId '{name}' comes again with other rows than those that "
            f"the store '{root}' has of it",
            "the same rows, in any order",
            "give the write the same input again; or keep the rows that are stored, and leave this "
            "version out; or, if these are new rows and no repetition, give them a greater "
            "txnVersion. Values such as the current time differ at each evaluation: leave them "
            "out, or persist the DataFrame. Nothing of the batch is stored",
        )
    previous_commit = f"'commits/{batch - 1}'" if batch else "a file with the lines v1 and {}"
    return ReplayDiffers(
        f"batch {batch} of query {name} comes again with other rows than those that the "
        f"store '{root}' has of it: an older checkpoint was put back, the query or its input has "
        "changed, or its rows are not determined by its input (random values, the order of a list)",
        "the same rows, in any order",
        "put the newer checkpoint back; or give the query the code and input of before until this "
        "batch is through; or keep the rows that are stored, and go on with the next batch: copy "
        f"{previous_commit} of the checkpoint to 'commits/{batch}'. Nothing of the batch is stored",
    )
