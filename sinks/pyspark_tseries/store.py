"""A store: a Delta table, its properties, and the one way to add to it.

A commit is one Delta commit that names the events' file, the new head (`tseries:head`) and the
writer's token. Delta refuses it where another writer has set a head meanwhile: compare and swap.
"""

import contextlib
import fcntl
import json
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
)

from pyspark_timestream.instants import format_duration, parse_duration
from pyspark_timestream.option_fields import OptionError
from pyspark_tseries import files
from pyspark_tseries.attempts import Attempt, Batch, Sight, prepare
from pyspark_tseries.columns import layout, stored_values
from pyspark_tseries.errors import NoSuchStore, StoreBusy, UnusableStore
from pyspark_tseries.files import DataFile, Snapshot, data_files
from pyspark_tseries.heads import EMPTY_NOTE, Head, Note
from pyspark_tseries.permissions import Policy, format_policy, parse_policy
from pyspark_tseries.places import Place, place_of
from pyspark_tseries.retention import DEFAULT, RetainedRange, format_range, parse_range
from pyspark_tseries.subscription import INITIAL_DEFAULT, format_initial, parse_initial

__all__ = ["HORIZON", "Store"]

FORMAT_VERSION: Final = 1
_VERSION: Final = "tseries.formatVersion"
_RANGE: Final = "tseries.retainedRange"
_POLICY: Final = "tseries.policy"
_HEAD: Final = "tseries:head"
_SUBSCRIPTION: Final = "tseries.subscriptionRange"
MIN_RETENTION: Final = "tseries.minRetentionAge"
DEFAULT_MIN_RETENTION_US: Final = 600_000_000
HORIZON: Final = "tseries:horizon"
"""The transaction that says one more than the last commit compaction has removed events of."""

_COLOURS: Final = re.compile("\x1b\\[[0-9;]*m")

ATTEMPTS: Final = 200
"""With backoff about half a minute: far more than a race among a few writers lasts."""

QUEUE_SECONDS: Final = 10.0
"""How long a writer waits for those of its host before it just races them."""


FAILURES_ALONE: Final = 5
"""So many failed commits in a row without a rival are no race but a fault of the storage."""


def now_us() -> int:
    """The wall clock, in microseconds."""
    return time.time_ns() // 1000


def _open_table(place: Place) -> DeltaTable | None:
    try:
        return _table_of(place)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if not place.local:
            raise _unreachable(place, "opened", error) from None
        raise UnusableStore(
            f"'{place.location}' cannot be opened as a store: {str(error).splitlines()[0]}; "
            "accepted: a directory that a tseries write has created; next step: check the path "
            "and its rights"
        ) from error


def _table_of(place: Place) -> DeltaTable:
    return DeltaTable(place.uri, storage_options=place.storage_options)


def _unreachable(place: Place, done: str, error: Exception) -> UnusableStore:
    """An error that shows no secrets, though the storage's answer may; so without its cause."""
    said = " ".join(_COLOURS.sub("", place.hides(str(error))).split())
    return UnusableStore(
        f"'{place.location}' cannot be {done} as a store: {said[:500]}; accepted: a prefix in a "
        "bucket that exists, and credentials that may read and write it; next step: check the "
        "path and storageOptions (storage_options=, --storage-option)"
    )


def _check_version(place: Place, table: DeltaTable) -> None:
    version = table.metadata().configuration.get(_VERSION)
    if version is None:
        raise UnusableStore(
            f"'{place.location}' is a Delta table but no tseries store; accepted: a path that a "
            "tseries write has created; next step: choose another path"
        )
    if int(version) > FORMAT_VERSION:
        raise UnusableStore(
            f"store '{place.location}' has {_VERSION} {version}; accepted: {FORMAT_VERSION} or "
            "older; next step: install a newer version of this package"
        )


def _adds(attempt: Attempt) -> list[AddAction | RemoveAction]:
    modified = attempt.head.note.commit_us // 1000
    return [
        AddAction(file.path, file.size, {"kind": file.kind}, modified, True, file.statistics)
        for file in attempt.written
    ]


def _birth(place: Place, version: int) -> tuple[int, int] | None:
    """Tells the log's entry `version` from another one of that number, written later."""
    return place.identity(place.file("_delta_log", f"{version:020d}.json"))


@contextlib.contextmanager
def _queue(place: Place) -> Iterator[None]:
    """Lets the writers of one host commit in turn; the log's own check is what keeps it correct."""
    if not place.local:
        yield  # Its writers are seldom of one host: they race.
        return
    with open(place.lock_path("commit.lock"), "ab") as file:
        patience = time.monotonic() + QUEUE_SECONDS
        while not _try_lock(file.fileno()) and time.monotonic() < patience:
            time.sleep(random.uniform(0.001, 0.005))
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # A file system without locks: the writers race.
    return True


def _shown(path: str | Place) -> str:
    return path if isinstance(path, str) else path.location


class Store:
    """An open store; one object a place and process, safe for threads.

    It keeps the log and the head between batches; both are brought up to date before use.
    """

    def __init__(self, place: str | Place, table: DeltaTable) -> None:
        self.place = place_of(place)
        self._table = table
        self._born = _birth(self.place, table.version())
        self._lock = threading.RLock()
        self._head_id: int | None = None
        self._head = Head()

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.place.location

    @staticmethod
    def find(path: str | Place) -> "Store | None":
        """The store at `path`, up to date; None where there is none.

        Raises:
            UnusableStore: it is of a newer version, or something else.
        """
        place = place_of(path)
        with _OPENING:
            store = _OPEN.get(place)
            if store is not None and store.refresh():
                return store
            _OPEN.pop(place, None)
            table = _open_table(place)
            if table is None:
                return None
            _check_version(place, table)
            return _OPEN.setdefault(place, Store(place, table))

    @staticmethod
    def open(path: str | Place) -> "Store":
        """The store at `path`, up to date; raises NoSuchStore."""
        store = Store.find(path)
        if store is None:
            raise NoSuchStore(
                f"there is no store at '{_shown(path)}'; accepted: a path that a tseries write has "
                "created; next step: correct the path, or write to it first"
            )
        return store

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
        place = place_of(path)
        properties = {
            "delta.checkpointInterval": "10",
            "delta.logRetentionDuration": "interval 1 hours",
            "delta.deletedFileRetentionDuration": "interval 1 days",
            _VERSION: str(FORMAT_VERSION),
            _RANGE: format_range(retained or DEFAULT),
        }
        if min_retention_us is not None:
            properties[MIN_RETENTION] = format_duration(min_retention_us)
        if subscription is not None:
            properties[_SUBSCRIPTION] = format_initial(subscription)
        if policy is not None:
            properties[_POLICY] = format_policy(policy)
        try:
            DeltaTable.create(
                place.uri,
                layout(values),
                partition_by=["kind"],
                configuration=properties,
                raise_if_key_not_exists=False,
                storage_options=place.storage_options,
            )
        except (DeltaError, OSError) as error:
            if Store.find(path) is None:
                if place.local:
                    raise
                raise _unreachable(place, "created", error) from None
        return Store.open(path)

    @property
    def values(self) -> list[pa.Field]:
        """The value columns."""
        return stored_values(pa.schema(self._table.schema()))

    @property
    def retained(self) -> RetainedRange:
        """The retained range."""
        with self._lock:
            head_id = self._table.transaction_version(_HEAD)
            if head_id is None:
                return self._range_of(EMPTY_NOTE)
            if head_id == self._head_id:
                return self._range_of(self._head.note)
            return self._range_of(files.read_head_note(self.place, head_id))

    def _range_of(self, note: Note) -> RetainedRange:
        return parse_range(note.retained or self.properties[_RANGE])

    @property
    def id(self) -> str:
        """The table's id, which no other store has."""
        return str(self._table.metadata().id)

    def version(self) -> int:
        """The version of the log as it was last refreshed."""
        return int(self._table.version())

    @property
    def policy(self) -> Policy | None:
        """The policy of the log as it was last refreshed; None where there is none."""
        with self._lock:
            return self.policy_of(self.head()[1].note)

    def policy_of(self, note: Note) -> Policy | None:
        """The policy that is in force with the head of `note`; None where there is none."""
        text = note.policy or self.properties.get(_POLICY)
        return None if text is None else parse_policy(json.loads(text))

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self._table.metadata().configuration)

    @property
    def min_retention_us(self) -> int:
        """Compaction removes no event that was committed less than this ago."""
        given = self.properties.get(MIN_RETENTION)
        return DEFAULT_MIN_RETENTION_US if given is None else parse_duration(given)

    def horizon(self) -> int:
        """The last commit whose events compaction may have removed; -1 where it removed none."""
        with self._lock:
            beyond = self._table.transaction_version(HORIZON)
            return -1 if beyond is None else beyond - 1

    def check_range(self, wanted: RetainedRange | None) -> None:
        """Raises OptionError where `wanted` is given and is not the store's range."""
        if wanted is None or wanted == self.retained:
            return
        mine, given = format_range(self.retained), format_range(wanted)
        raise OptionError(
            "retainedRange",
            f"'{given}' is not the range '{mine}' that the store '{self.root}' was created with",
            f"'{mine}'",
            "leave it out, or write to a new store",
        )

    @property
    def subscription(self) -> RetainedRange:
        """The initial events of subscribers that do not ask for others."""
        given = self.properties.get(_SUBSCRIPTION)
        return INITIAL_DEFAULT if given is None else parse_initial(given)

    def check_subscription(self, wanted: RetainedRange | None) -> None:
        """Raises OptionError where `wanted` is given and is not the store's subscription range."""
        if wanted is None or wanted == self.subscription:
            return
        mine, given = format_initial(self.subscription), format_initial(wanted)
        raise OptionError(
            "subscriptionRange",
            f"'{given}' is not the range '{mine}' that the store '{self.root}' was created with",
            f"'{mine}'",
            "leave it out, and set it on the subscription instead",
        )

    def refresh(self) -> bool:
        """Brings the log up to date; False where the table is no longer the one opened."""
        with self._lock:
            if not self._follow():
                # Its last known commit is gone: cleaned up, or the directory was replaced.
                table = _open_table(self.place)
                if table is None or table.metadata().id != self._table.metadata().id:
                    return False
                self._table = table
            self._born = _birth(self.place, self._table.version())
            return True

    def _follow(self) -> bool:
        """Reads what the log has besides; False where it has been cleaned beyond that."""
        version = self._table.version()
        if _birth(self.place, version) != self._born:
            return False
        if _birth(self.place, version + 1) is None:
            return True  # Asking is cheap, so a subscriber may do it a hundred times a second.
        try:
            self._table.update_incremental()
        except (DeltaError, OSError):
            return False  # Cleaned at this very moment; if it is more, opening it anew says so.
        return True

    def head_id(self) -> int | None:
        """The id of the head of the log as it was last refreshed; None before the first commit."""
        with self._lock:
            head_id: int | None = self._table.transaction_version(_HEAD)
            return head_id

    def last_commit(self) -> int:
        """The number of the last commit that this object has seen; -1 before the first."""
        return self._head.note.commit

    def table_of_its_own(self) -> DeltaTable:
        """The table once more, for what may take long."""
        return _table_of(self.place)

    def head(self) -> tuple[int | None, Head]:
        """The id and the state of the head of the log as it was last refreshed."""
        with self._lock:
            head_id = self._table.transaction_version(_HEAD)
            if head_id != self._head_id:
                self._head = files.load_head(self.place, head_id, self._head_id, self._head)
                self._head_id = head_id
            return head_id, self._head

    def snapshot(self) -> Snapshot:
        """The store as its log now says; raises NoSuchStore where it is gone."""
        with self._lock:
            self._catch_up()
            found = self.data_files()
            head_id, head = self.head()
            retained = self._range_of(head.note)
            return Snapshot(
                self.place,
                found,
                head_id,
                head.note,
                retained,
                self.values,
                policy=self.policy_of(head.note),
            )

    def sight(self) -> tuple[Snapshot, Head]:
        """The store as its log now says, and its head."""
        with self._lock:
            return self.snapshot(), self.head()[1]

    def data_files(self) -> list[DataFile]:
        """The files of the log as it was last refreshed, in the order of their commits."""
        with self._lock:
            return data_files(pa.table(self._table.get_add_actions(flatten=True)))

    @contextlib.contextmanager
    def turn(self) -> Iterator[DeltaTable]:
        """The table, up to date, while no other writer of this host commits."""
        with self._lock, _queue(self.place):
            self._catch_up()
            yield self._table

    def publish_head(self, head_id: int, head: Head) -> None:
        """Commits the head that was written as `head_id`, without events; within a turn.

        Raises:
            DeltaError: a rival's commit was first.
        """
        self._publish(Attempt(head_id, head, [], []), None)

    def append(self, batch: Batch, clock: Callable[[], int] = now_us) -> Attempt | None:
        """Commits `batch`, once, however often it is called with the same token.

        Args:
            batch: what to append.
            clock: the wall clock, in microseconds; read once an attempt.

        Returns:
            What was committed; None where the store has had the batch before.

        Raises:
            UpdateFailed: a row may not be added.
            NoSuchEvent: an edit may not.
            PermissionDenied: the batch's principal may not do this.
            StoreBusy: other writers won every attempt.
        """
        attempt: Attempt | None = None
        lost: DeltaError | None = None
        alone = turn = 0
        while True:
            with self._lock, _queue(self.place):
                self._catch_up()
                if self._has(batch.token) or (attempt and self._landed(attempt)):
                    return attempt
                if attempt:
                    self.place.remove(attempt.paths)
                    alone = alone + 1 if self.head()[0] == attempt.head.note.parent else 0
                if lost and alone == FAILURES_ALONE:
                    raise lost
                if turn == ATTEMPTS:
                    raise self._busy() from lost
                head_id, head = self.head()
                new_id = secrets.randbits(62)
                sight = Sight(self.data_files(), self.retained) if batch.has_edits else None
                policy = self.policy_of(head.note)
                attempt = prepare(self.place, batch, head_id, head, clock(), new_id, sight, policy)
                try:
                    self._publish(attempt, batch.token)
                    return attempt
                except DeltaError as error:
                    lost = error
            time.sleep(random.uniform(0.005, min(0.2, 0.01 * 2 ** min(turn, 8))))
            turn += 1

    def _catch_up(self) -> None:
        if not self.refresh():
            raise NoSuchStore(
                f"the store '{self.root}' was removed or replaced while it was in use; "
                "next step: start the query again"
            )

    def _has(self, token: tuple[str, int] | None) -> bool:
        done = None if token is None else self._table.transaction_version(token[0])
        return token is not None and done is not None and done >= token[1]

    def _landed(self, attempt: Attempt) -> bool:
        """Whether a commit is in the log although its writer was told otherwise."""
        head_id, _ = self.head()
        while head_id is not None and head_id != attempt.head_id:
            note = files.read_head_note(self.place, head_id)
            head_id = note.parent if note.commit > attempt.head.note.commit else None
        return head_id is not None

    def _publish(self, attempt: Attempt, token: tuple[str, int] | None) -> None:
        marks = [Transaction(_HEAD, attempt.head_id)]
        if token is not None:
            marks.append(Transaction(*token))
        # Delta's own retries stay on: they let maintenance pass, while every rival append
        # trips over the head.
        self._table.create_write_transaction(
            _adds(attempt),
            "append",
            self._table.schema(),
            partition_by=["kind"],
            commit_properties=CommitProperties(
                app_transactions=marks,
                custom_metadata={"tseries": {"commit": attempt.head.note.commit}},
            ),
            post_commithook_properties=PostCommitHookProperties(True, False),
        )
        self._head_id, self._head = attempt.head_id, attempt.head

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"store '{self.root}': other writers won all of {ATTEMPTS} attempts to commit; "
            "nothing of the batch is stored; next step: start the write again, or use fewer "
            "writers or larger batches"
        )


_OPEN: Final[dict[Place, Store]] = {}
_OPENING: Final = threading.Lock()
