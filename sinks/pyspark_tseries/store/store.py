"""A store: its log and its head together, and the one way to add to it.

A commit is one Delta commit that names the events' file, the new head (`tseries:head`) and the
writer's token. Delta refuses it where another writer has set a head meanwhile: compare and swap.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import NoSuchStore
from pyspark_tseries.model import properties
from pyspark_tseries.model.columns import layout, stored_values
from pyspark_tseries.model.commit_time import check_commit_time, is_suspicious
from pyspark_tseries.model.policy import Policy
from pyspark_tseries.model.retention import DEFAULT, RetainedRange, format_range
from pyspark_tseries.model.series_index import EMPTY_NOTE, Head, Note
from pyspark_tseries.storage import locks as host_locks
from pyspark_tseries.storage.data_files import DataFile, Snapshot, data_files
from pyspark_tseries.storage.head_files import (
    GLANCES,
    head_path,
    load_head,
    load_series,
    read_head_note,
)
from pyspark_tseries.storage.location import Place, place_of
from pyspark_tseries.store.log import Log, added, create_table, open_table, table_at, unreachable
from pyspark_tseries.store.log_check import HEAD
from pyspark_tseries.store.retry import busy, wait_out
from pyspark_tseries.write.batch import Appended, Attempt, Sight

__all__ = ["HORIZON", "Store", "now_us"]

_LOG: Final = logging.getLogger(__name__)

HORIZON: Final = "tseries:horizon"
"""The mark that says one more than the last commit compaction has removed events of."""

ATTEMPTS: Final = 200
"""With backoff about half a minute: far more than a race among a few writers lasts."""

FAILURES_ALONE: Final = 5
"""So many failed commits in a row without a rival are no race but a fault of the storage."""


_BUSY: Final = (
    "nothing of the batch is stored; next step: start the write again, or use fewer writers or "
    "larger batches"
)


def now_us() -> int:
    """The wall clock, in microseconds."""
    return time.time_ns() // 1000


class Store:
    """An open store; one object a place and process, safe for threads.

    It keeps the log and the head between batches; both are brought up to date before use.
    """

    def __init__(self, place: str | Place, table: DeltaTable, *, trusting: bool = False) -> None:
        self.place = place_of(place)
        self.log = Log(self.place, table, trusting=trusting)
        self._lock = threading.RLock()
        self._head_id: int | None = None
        self._head = Head()
        self._seen: tuple[DeltaTable, int, Snapshot] | None = None
        self._whole: tuple[Snapshot, Head] | None = None
        self._glances = 0

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.place.location

    @staticmethod
    def find(path: str | Place) -> "Store | None":
        """The store at `path`, up to date; None where there is none.

        Raises:
            UnusableStore: it is of a newer version, or something else; or it is damaged, which
                `repair` mends.
        """
        place = place_of(path)
        with _OPENING:
            store = _OPEN.get(place)
            if store is not None and store.refresh():
                return store
            _OPEN.pop(place, None)
            table = open_table(place)
            if table is None:
                return None
            properties.check_version(table.metadata().configuration, place.location)
            return _OPEN.setdefault(place, Store(place, table))

    @staticmethod
    def open(path: str | Place) -> "Store":
        """The store at `path`, up to date; raises NoSuchStore, and what `find` raises."""
        store = Store.find(path)
        if store is None:
            raise _no_store(path)
        return store

    @staticmethod
    def open_damaged(path: str | Place) -> "Store":
        """As `open`, also where files are torn or another tool has changed rows.

        The object is nobody else's, and knows nothing that was read before.
        """
        place = place_of(path)
        table = open_table(place)
        if table is None:
            raise _no_store(path)
        properties.check_version(table.metadata().configuration, place.location)
        return Store(place, table, trusting=True)

    @staticmethod
    def create(
        path: str | Place,
        values: Iterable[pa.Field],
        retained: RetainedRange | None,
        min_retention_us: int | None = None,
        subscription: RetainedRange | None = None,
        *,
        policy: Policy | None = None,
    ) -> "Store":
        """The new store at `path`, or the one that another writer has just created there."""
        fixed = properties.new_properties(retained, min_retention_us, subscription, policy)
        create_table(place_of(path), layout(values), fixed)
        store = Store.open(path)
        if retained is None:
            _LOG.warning(
                "no retained range was given for the new store '%s', so that it keeps '%s': reads "
                "show the ten newest events of each series; next step: give 'retainedRange' "
                "(retained_range=) when a store is created, such as 'last 30D' or 'unlimited'",
                store.root,
                format_range(DEFAULT),
            )
        return store

    @property
    def values(self) -> list[pa.Field]:
        """The value columns."""
        return stored_values(pa.schema(self.log.table.schema()))

    @property
    def retained(self) -> RetainedRange:
        """The retained range."""
        with self._lock:
            return properties.retained_of(self.log.properties(), self.note())

    @property
    def id(self) -> str:
        """The table's id, which no other store has."""
        return str(self.log.table.metadata().id)

    def version(self) -> int:
        """The version of the log as it was last refreshed."""
        return int(self.log.table.version())

    @property
    def policy(self) -> Policy | None:
        """The policy of the log as it was last refreshed; None where there is none."""
        with self._lock:
            return properties.policy_of(self.log.properties(), self.note())

    def note(self) -> Note:
        """What the head says besides its rows, which need not be read."""
        head_id = self.head_id()
        if head_id is None:
            return EMPTY_NOTE
        return self._head.note if head_id == self._head_id else read_head_note(self.place, head_id)

    @property
    def subscription(self) -> RetainedRange:
        """The initial events of subscribers that do not ask for others."""
        return properties.subscription_of(self.log.properties())

    def horizon(self) -> int:
        """The last commit whose events compaction may have removed; -1 where it removed none."""
        with self._lock:
            beyond = self.log.mark(HORIZON)
            return -1 if beyond is None else beyond - 1

    def refresh(self) -> bool:
        """Brings the log up to date; False where the table is no longer the one opened."""
        with self._lock:
            return self.log.refresh()

    def head_id(self) -> int | None:
        """The id of the head of the log as it was last refreshed; None before the first commit."""
        with self._lock:
            return self.log.mark(HEAD)

    def last_commit(self) -> int:
        """The number of the last commit that this object has seen; -1 before the first."""
        return self._head.note.commit

    def head(self) -> tuple[int | None, Head]:
        """The id and the state of the head of the log as it was last refreshed."""
        with self._lock:
            head_id = self.log.mark(HEAD)
            if head_id != self._head_id:
                self._head = load_head(self.place, head_id, self._head_id, self._head)
                self._head_id = head_id
            return head_id, self._head

    def snapshot(self) -> Snapshot:
        """The store as its log now says; raises NoSuchStore where it is gone.

        Of the head it needs the note only.
        """
        with self._lock:
            self._catch_up()
            return self._look()

    def at(self, version: int) -> Snapshot:
        """The store as it was with the entry `version` of its log, not after the one last seen.

        Raises:
            UnusableStore: the log does not reach back so far.
        """
        with self._lock:
            if version == self.version():
                return self._look()
        return Store(self.place, table_at(self.place, version), trusting=True)._look()

    def sight(self) -> tuple[Snapshot, Head]:
        """The store as its log now says, and its head."""
        with self._lock:
            self._catch_up()
            if self._seen is None or not self._is_now(*self._seen[:2]):
                self.head()  # With it the note is there, which the snapshot need not read then.
            snapshot = self._look()
            if self._whole is None or self._whole[0] is not snapshot:
                self._whole = snapshot, self.head()[1]
            return self._whole

    def glance(self, names: Sequence[str]) -> tuple[Snapshot, Head]:
        """As `sight`, with a head that may know no series but `names`.

        A process that asks once need not wait until all series are in its memory.
        """
        with self._lock:
            if self._head_id is None and self._glances < GLANCES:
                self._catch_up()
                head_id = self.log.mark(HEAD)
                head, whole = load_series(self.place, head_id, names)
                if not whole:
                    self._glances += 1
                    return self._look(), head
                self._head_id, self._head = head_id, head
            return self.sight()

    def _look(self) -> Snapshot:
        """As the log said when it was last refreshed."""
        if self._seen is None or not self._is_now(*self._seen[:2]):
            fixed, note = self.log.properties(), self.note()
            snapshot = Snapshot(
                self.place,
                self.data_files(),
                self.head_id(),
                note,
                properties.retained_of(fixed, note),
                self.values,
                policy=properties.policy_of(fixed, note),
            )
            self._seen = self.log.table, self.version(), snapshot
        return self._seen[2]

    def _is_now(self, table: DeltaTable, version: int) -> bool:
        return table is self.log.table and version == self.version()

    def data_files(self) -> list[DataFile]:
        """The files of the log as it was last refreshed, in the order of their commits."""
        with self._lock:
            return data_files(self.place, pa.table(self.log.table.get_add_actions(flatten=True)))

    @contextlib.contextmanager
    def turn(self) -> Iterator[Log]:
        """The log, up to date, while no other writer of this host commits."""
        with self._lock, host_locks.in_turn(self.place):
            self._catch_up()
            yield self.log

    def wall_us(self, clock: Callable[[], int] = now_us) -> int:
        """The wall clock, in microseconds.

        Raises:
            WrongClock: it is far ahead, or was when the last commit was made.
        """
        us = clock()
        self.check_time(us)
        return us

    def check_time(self, us: int) -> None:
        """Refuses a clock that says `us` where it, or the last commit's, is far ahead.

        Raises:
            WrongClock: it is so; see `check_commit_time`.
        """
        last_us = self.note().commit_us
        if is_suspicious(last_us, us):
            storage_us = self.place.clock_us()
            check_commit_time(self.root, last_us, us, storage_us, same_machine=self.place.local)

    def publish_head(self, head_id: int, head: Head) -> None:
        """Commits the head that was written as `head_id`, without events; within a turn.

        Raises:
            DeltaError: a rival's commit was first.
        """
        self._publish(Attempt(head_id, head, [], []), None, synced=True)

    def append(
        self, batch: Appended, clock: Callable[[], int] = now_us, *, synced: bool = True
    ) -> Attempt | None:
        """Commits `batch`, once, however often it is called with the same token.

        Args:
            batch: what to append.
            clock: the wall clock, in microseconds; read once an attempt.
            synced: on a local path, whether the commit outlives a power loss when this returns.

        Returns:
            What was committed; None where the store has had the batch before.

        Raises:
            UpdateFailed: a row may not be added.
            NoSuchEvent: an edit may not.
            PermissionDenied: the batch's principal may not do this.
            WrongClock: `clock` is far ahead, or was when the last commit was made.
            StoreBusy: other writers won every attempt.
            OSError, DeltaError, UnusableStore: the storage failed again and again.
        """
        tried: list[Attempt] = []
        lost: DeltaError | OSError | None = None
        faults = turn = 0
        while True:
            try:
                with self._lock, host_locks.in_turn(self.place):
                    self._catch_up()
                    landed = next((attempt for attempt in tried if self._landed(attempt)), None)
                    if landed or self.log.has(batch.token):
                        if synced:
                            self.log.settle()
                        return landed or (tried[-1] if tried else None)
                    faults = 0 if tried and self._beaten(tried) else faults
                    if faults == FAILURES_ALONE or turn == ATTEMPTS:
                        break
                    return self._try(batch, clock, tried, synced)
            except (DeltaError, OSError) as error:
                # Whether the batch is stored for all that is looked up first in the next turn.
                lost, faults = error, faults + 1
                if faults > FAILURES_ALONE:
                    break
            wait_out(turn)
            turn += 1
        if lost is None or faults < FAILURES_ALONE:
            raise busy(self.root, ATTEMPTS, _BUSY) from lost
        raise lost if self.place.local else unreachable(self.place, "written", lost)

    def _try(
        self, batch: Appended, clock: Callable[[], int], tried: list[Attempt], synced: bool
    ) -> Attempt:
        """One attempt to commit, which is added to `tried` before it counts."""
        head_id, head = self.head()
        new_id = secrets.randbits(62)
        sight = Sight(self.data_files(), self.retained) if batch.has_edits else None
        policy = properties.policy_of(self.log.properties(), head.note)
        working = host_locks.at_work(self.place) if batch.takes_long else contextlib.nullcontext()
        with working:
            us = self.wall_us(clock)
            attempt = batch.prepare(self.place, head_id, head, us, new_id, sight, policy)
            tried.append(attempt)
            self._publish(attempt, batch.token, synced)
        return attempt

    def _beaten(self, tried: list[Attempt]) -> bool:
        """Whether a rival was faster than the attempts; forgets those that come to nothing.

        Of an object store a request that failed may still be carried out, unless a rival's
        commit is in its way; until then its files stay, and cleaning finds them in the end.
        """
        head_id, _ = self.head()
        beaten = [attempt for attempt in tried if attempt.head.note.parent != head_id]
        for attempt in list(tried) if self.place.local else beaten:
            self.place.remove(attempt.paths)
            tried.remove(attempt)
        return bool(beaten)

    def _catch_up(self) -> None:
        if not self.refresh():
            raise NoSuchStore(
                f"the store '{self.root}' was removed or replaced while it was in use; "
                "next step: start the query again"
            )

    def _landed(self, attempt: Attempt) -> bool:
        """Whether a commit is in the log although its writer was told otherwise."""
        head_id, _ = self.head()
        while head_id is not None and head_id != attempt.head_id:
            note = read_head_note(self.place, head_id)
            if note.commit <= attempt.head.note.commit:
                return False
            head_id = note.parent
        if head_id is not None:
            return True
        # A head that was made anew follows none.
        live = {file.path for file in self.data_files()}
        return any(file.path in live for file in attempt.written)

    def _publish(self, attempt: Attempt, token: tuple[str, int] | None, synced: bool) -> None:
        note, files = attempt.head.note, [file.path for file in attempt.written]
        self.log.commit(
            added(attempt.written, note.commit_us // 1000),
            {HEAD: attempt.head_id, **dict([token] if token else [])},
            note.commit,
            [head_path(self.place, attempt.head_id), *map(self.place.file, files)],
            synced=synced,
        )
        self._head_id, self._head = attempt.head_id, attempt.head


def _no_store(path: str | Place) -> NoSuchStore:
    shown = path if isinstance(path, str) else path.location
    return NoSuchStore(
        f"there is no store at '{shown}'; accepted: a path that a tseries write has created; "
        "next step: correct the path, or write to it first"
    )


_OPEN: Final[dict[Place, Store]] = {}
_OPENING: Final = threading.Lock()
