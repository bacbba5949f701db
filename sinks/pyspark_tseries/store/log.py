"""Keep a store's log, its Delta table, up to date; only this module and repairs add entries to it.

On a local path an entry is written under a temporary name and synced together with the files that
it names. Then it is linked to its own name, which fails if another client was first.
"""

import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
)

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.columns import UNIT_KEY, table_schema
from pyspark_tseries.model.properties import check_version
from pyspark_tseries.storage.data_files import DataFile, LiveFiles, data_files
from pyspark_tseries.storage.failures import unreachable_error
from pyspark_tseries.storage.location import (
    EVENT_FILE_PATH,
    LOG_FOLDER,
    Location,
    list_directories,
    make_directories,
    move_exclusively,
    sync,
)
from pyspark_tseries.storage.snapshot import head_path
from pyspark_tseries.store.checkpoints import (
    UNREADABLE,
    capture_entry,
    checkpoint_later,
    copy_log,
    has_checkpoint,
    read_last_checkpoint,
)
from pyspark_tseries.store.log_check import (
    HEAD_TRANSACTION,
    check_checksums,
    check_entries,
    check_log_at,
    check_undamaged,
    find_log_damage,
    read_entry,
    read_plain_entry,
    require_files,
    unsynced_files,
)
from pyspark_tseries.store.log_entries import (
    FileAction,
    NewEntry,
    adopt_entry,
    entry_path,
    format_entry,
    seal_info,
)

PROBE_WRITERS: Final = 4
PROBE_ROUNDS: Final = 3
PROBE_WAIT_S: Final = 5.0
"""Four commits race at a time; within three rounds, a service that overwrites loses one."""


def open_table(location: Location) -> DeltaTable | None:
    """Return the table at `location`; None if there is none.

    Raises:
        UnusableStore: it is not a store, is damaged, or cannot be reached.
    """
    try:
        return load_table(location)
    except TableNotFoundError:
        return None
    except UNREADABLE as error:
        raise _unreadable_error(location, error) from error


def _unreadable_error(location: Location, error: Exception) -> UnusableStore:
    """Return the error of a log that Delta cannot read, which names the damage if there is one."""
    if not location.is_local:
        return unreachable_error(location, "opened", error)
    with contextlib.suppress(OSError):
        damage = find_log_damage(location)
        if damage is not None:
            return damage
    return UnusableStore(
        f"'{location.root}' cannot be opened as a store: {str(error).splitlines()[0]}",
        "a directory that a tseries write has created",
        "check the path and its rights",
    )


_delta_process: int | None = None
"""The process that used Delta first; its forks cannot use it."""


def _require_delta(location: Location) -> None:
    """Raise UnusableStore in a process that is forked from one that has used Delta."""
    global _delta_process
    pid = os.getpid()
    _delta_process = _delta_process or pid
    if _delta_process != pid:
        raise forked_error(location.root)


def forked_error(root: str) -> UnusableStore:
    """Return the error of a process forked from one that has used stores."""
    return UnusableStore(
        f"the store '{root}' cannot be used in this process, which was forked from one that has "
        "used a store: the threads that delta-rs started there run only in that process",
        "a process of its own",
        "start it with multiprocessing.get_context('spawn'), or fork before the first store is "
        "opened",
    )


def load_table(location: Location) -> DeltaTable:
    """Return the table at `location`; raise Delta's errors, and UnusableStore in a fork."""
    _require_delta(location)
    try:
        return DeltaTable(location.uri, storage_options=location.storage_options)
    except TableNotFoundError:
        raise
    except (DeltaError, ValueError, FileNotFoundError):
        # Delta fails if `_last_checkpoint` names a missing checkpoint. It succeeds if it first
        # opens an older version, and then updates.
        earlier = _missing_checkpoint(location) - 1
        if earlier < 0:
            # Delta may have listed the log while another process shortened it, and then misses
            # entries that are there. Open it once more; a second failure is real.
            return DeltaTable(location.uri, storage_options=location.storage_options)
        table = DeltaTable(location.uri, earlier, storage_options=location.storage_options)
        table.update_incremental()
        return table


def _missing_checkpoint(location: Location) -> int:
    """Return the version of the last checkpoint if that is missing; else -1."""
    version = read_last_checkpoint(location).version if location.is_local else -1
    return -1 if has_checkpoint(location, version) else version


def load_table_at(location: Location, version: int) -> DeltaTable:
    """Return the table at `location` as of the entry `version` of its log.

    Raises:
        UnusableStore: the log does not reach back so far, or it cannot be read.
    """
    _require_delta(location)
    try:
        if version >= _missing_checkpoint(location) >= 0:
            table = _load_copy(location, version)
        else:
            table = DeltaTable(location.uri, version, storage_options=location.storage_options)
        if location.is_local:
            check_log_at(location, version)
        return table
    except UNREADABLE as error:
        if location.is_local:
            with contextlib.suppress(OSError):
                check_log_at(location, version)
        raise UnusableStore(
            f"the store '{location.root}' as it was at entry {version} of its log cannot be "
            f"opened: {location.redact(str(error)).splitlines()[0]}",
            "a query whose tasks begin while the log reaches back to its start",
            "start the query again",
        ) from None


def _load_copy(location: Location, version: int) -> DeltaTable:
    """Return the table of a copy of the log up to `version`, without `_last_checkpoint`."""
    copy = tempfile.mkdtemp()
    try:
        copy_log(location, version, copy)
        table = DeltaTable(pathlib.Path(copy).as_uri())
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    weakref.finalize(table, shutil.rmtree, copy, ignore_errors=True)
    return table


def create_table(location: Location, schema: pa.Schema, properties: dict[str, str]) -> None:
    """Create the table at `location`, unless another client has just created it.

    Raises:
        UnusableStore: there are files of another table, of a store without its log, or of an
            unfinished backup; the directory lies in another table, cannot be written, or the object
            store cannot be reached.
    """
    _require_delta(location)
    try:
        data_file = _find_data_file(location)
        if data_file is not None and open_table(location) is None:
            raise _occupied_error(location, data_file)
        location.require_outside_tables()
        if not location.is_local:
            _require_exclusive_writes(location)
        location.require_unclaimed()
        if location.is_local:
            _create_local(location, schema, properties)
        else:
            _create(location.uri, schema, properties, location.storage_options)
    except (DeltaError, OSError) as error:
        if open_table(location) is None:
            raise unreachable_error(location, "created", error) from None


def _require_exclusive_writes(location: Location) -> None:
    """Refuse an object store that overwrites files in spite of the header If-None-Match.

    The check lets commits race in a table below the store: every commit must get its own version.
    Amazon, MinIO and R2 pass. Some older and emulated services ignore the header, so that two
    clients lose commits without an error. The check needs a race, because Delta looks for the
    newest entry before it writes its own.
    """
    probe = Location(f"{location.root}/_tseries/probe-{secrets.token_hex(8)}", location.options)
    schema = pa.schema([("kind", pa.string())])
    try:
        _create(probe.uri, schema, {}, probe.storage_options)
        start = threading.Barrier(PROBE_WRITERS)

        def commit() -> None:
            for _ in range(PROBE_ROUNDS):
                table = load_table(probe)
                with contextlib.suppress(threading.BrokenBarrierError):
                    start.wait(PROBE_WAIT_S)
                table.create_write_transaction([], "append", table.schema(), partition_by=["kind"])

        with ThreadPoolExecutor(PROBE_WRITERS) as pool:
            for writer in [pool.submit(commit) for _ in range(PROBE_WRITERS)]:
                writer.result()
        is_exclusive = load_table(probe).version() == PROBE_WRITERS * PROBE_ROUNDS
    finally:
        with contextlib.suppress(OSError):
            location.filesystem.delete_dir(probe.file())
    if not is_exclusive:
        raise UnusableStore(
            f"'{location.root}' cannot be created as a store: its object store ignores the header "
            "If-None-Match, so a writer would overwrite another's commit without an error",
            "an object store with conditional writes, such as Amazon's",
            "upgrade the service, or put the store on a local disk",
        )


_DATA_FILE: Final = re.compile(r"[^_.].*[.](?:parquet|orc|avro)", re.IGNORECASE)
_EVENT_DIRECTORIES: Final = ("kind=event", "kind=edit")
MAX_FOLDERS_SEARCHED: Final = 1000
"""The search stops there, because the directory may hold anything."""


def _find_data_file(location: Location) -> str | None:
    """Return the relative path of a data file below `location`; None if there is none.

    Skip names that begin with `_` or `.`, such as those of Delta's log and our own directory.
    """
    folders = [*_EVENT_DIRECTORIES, ""]
    for folder in folders:  # The loop appends the folders that it finds.
        directory = location.file(folder) if folder else location.file()
        try:
            files = list(location.list_files(directory))
            names = location.list_folders(directory)
        except PermissionError:
            if folder in ("", *_EVENT_DIRECTORIES):
                raise
            continue  # The folder is another user's, such as a file system's `lost+found`.
        for path, _ in files:
            name = os.path.basename(path)
            if _DATA_FILE.fullmatch(name):
                return os.path.join(folder, name)
        visible = (name for name in names if not os.path.basename(name).startswith(("_", ".")))
        folders += (os.path.join(folder, name) for name in visible)
        del folders[MAX_FOLDERS_SEARCHED:]
    return None


def _occupied_error(location: Location, data_file: str) -> UnusableStore:
    if EVENT_FILE_PATH.fullmatch(data_file):
        return UnusableStore(
            f"'{location.root}' has events of a store, such as '{data_file}', but no log that "
            "names them: a new store there would not have them",
            "a directory without files of data, or a store with its '_delta_log'",
            "put '_delta_log' back from a copy of that store, or choose another path",
        )
    return UnusableStore(
        f"'{location.root}' has files of data that are not of a store, such as '{data_file}'",
        "a directory without files of data",
        "create the store at another path, or move those files away",
    )


def _create(
    uri: str, schema: pa.Schema, properties: dict[str, str], options: dict[str, str] | None
) -> None:
    DeltaTable.create(
        uri,
        schema,
        partition_by=["kind"],
        configuration=properties,
        raise_if_key_not_exists=False,
        storage_options=options,
    )


def _create_local(location: Location, schema: pa.Schema, properties: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as draft:
        _create(pathlib.Path(draft).as_uri(), schema, properties, None)
        with open(os.path.join(draft, LOG_FOLDER, f"{0:020d}.json"), "rb") as file:
            entry = adopt_entry(file.read(), -1, f"{location.uri}/")
    make_directories(location.file(LOG_FOLDER))
    write_entry(location, 0, entry, [], synced=True, synced_directories=set())


def write_entry(
    location: Location,
    version: int,
    entry: bytes,
    files: Sequence[str],
    *,
    synced: bool,
    synced_directories: set[str],
) -> None:
    """Make `entry` the log's entry `version`.

    Args:
        location: the location of the store, a local path.
        version: the version of the entry.
        entry: the lines of the entry.
        files: the full paths of all files that the entry depends on.
        synced: True if the entry and `files` must survive a power loss once this returns.
        synced_directories: directories that survive a power loss; the call adds to them.

    Raises:
        FileExistsError: there is already an entry of this version; nothing was changed.
        OSError: a file could not be written, or is missing.
    """
    log = location.file(LOG_FOLDER)
    staging = location.file("_tseries", "staging")
    draft = os.path.join(staging, f"{secrets.token_hex(8)}.json")
    try:
        # Written elsewhere first, because other clients read an entry as soon as it has its name.
        location.write_whole(draft, entry, new=True)
        if synced:
            # All that the entry depends on comes before it: after a power loss an entry without its
            # files would be damage.
            directories = {*list_directories(location.root, [*files, os.path.join(log, "")])}
            new = directories - synced_directories
            parents = (os.path.dirname(path) for path in new if path != location.root)
            sync([draft, *files, *map(os.path.dirname, files), *new, *parents])
            synced_directories |= directories
        # Only one client can take the name, so this decides which of two commits is first.
        move_exclusively(draft, entry_path(location, version))
        if synced:
            sync([log])
    finally:
        location.discard([draft])


DEFAULT_CHECKPOINT_INTERVAL: Final = 10
"""Commits from one checkpoint to the next, unless the table sets it."""

_LOCAL_TIMES: Final = "timestampNtz"
_SUPPORTED_FEATURES: Final = frozenset(["appendOnly", "invariants", _LOCAL_TIMES])
"""The table features that this package can write."""


class Log:
    """A table and its last known version; not safe for threads without a lock.

    Args:
        location: the location of the store.
        table: the open table.
        skip_checks: skip the checks for damage and other tools' changes; repair needs this.
    """

    def __init__(self, location: Location, table: DeltaTable, *, skip_checks: bool = False) -> None:
        self.location = location
        self._table = table
        self.table_id = str(table.metadata().id)
        """The id of the table; no other store has it."""
        # The newest known entry. `_table` may be older, as entries are also read without it; the
        # property `table` brings it up to date. `_checked` and `_verified` are never above it.
        self._version = int(table.version())
        self._skips_checks = skip_checks
        # All entries up to these: no other tool has changed rows; they, and all that they name,
        # survive a power loss; their checksums are right. After `add` the second is one ahead.
        self._checked = self._synced = self._verified = -1
        self._directories: set[str] = set()  # They survive a power loss, too.
        # The last versions, as of `_transactions_version`, of some transactions, not of all: those
        # requested, and those of entries read since. If that is not `_version`, they do not count.
        self._transactions: dict[str, int | None] = {}
        self._transactions_version = -1
        # The version and the contents of the last entry that this object has added, one ahead of
        # `_version` until it is read: then it need not be read from its file.
        self._own_entry: tuple[int, NewEntry] | None = None
        self._files = LiveFiles()
        self._columns: pa.Schema | None = None
        self._properties: dict[str, str] | None = None
        self._is_writable = False
        self._last_checkpoint: int | None = None  # The newest one known or begun.
        self.proven: dict[int, int] = {}
        """The ids of commits in this log, by number; a new dictionary if the log is replaced."""
        # If the file of the entry `_version` is replaced or gone, the table is opened again.
        self._identity = self._entry_identity(self._version)
        # By the wall clock, which goes on while the machine is suspended.
        self._refreshed_s = time.time()
        if not skip_checks:
            self._check_undamaged()
            self.check()

    @property
    def written_us(self) -> int | None:
        """The time, by the storage's clock, of the newest known entry; None if unknown."""
        return None if self._identity is None else self._identity[1] // 1000

    @property
    def state(self) -> tuple[int, tuple[int, int] | None]:
        """The value that no other state of the log has, even of another store put at its path."""
        return self._version, self._identity

    @property
    def table(self) -> DeltaTable:
        """The table, at the newest known version."""
        if self._table.version() != self._version and not self._refresh_table():
            raise UnusableStore(
                f"the store '{self.location.root}' was removed or replaced while it was in use",
                next_step="start the query again",
            )
        return self._table

    def refresh(self, *, whole: bool = True) -> bool:
        """Bring the log up to date; return False if the table was removed or replaced.

        Args:
            whole: False if the caller needs only the version and transactions that it requested
                earlier. Then the log reads new entries, but updates the table only on request:
                listing its files takes longer than a small commit.

        Raises:
            UnusableStore: another tool has changed rows; see `check_entries`.
        """
        self._refreshed_s = time.time()
        return (not whole and self._read_new_entries()) or self._refresh_table()

    def _read_new_entries(self) -> bool:
        """Read new entries; return False if one has more than files and transactions."""
        if not self.location.is_local or self._skips_checks:
            return False
        if not self._version == self._checked == self._transactions_version:
            return False  # This object's facts about the log are not of one version.
        if self._entry_identity(self._version) != self._identity:
            return False  # The last known entry was removed, or the table was replaced.
        while (identity := self._entry_identity(self._version + 1)) is not None:
            version = self._version + 1
            own_entry = self._own_entry
            if own_entry is not None and own_entry[0] == version and own_entry[1].metadata is None:
                # This object wrote the entry, so it need not read it.
                new_entry = own_entry[1]
                self._remember_transactions(version, new_entry.transactions)
                self._files.add_entry(new_entry.files("add"), new_entry.files("remove"))
            else:
                entry = read_plain_entry(self.location, version)
                if entry is None:
                    return False
                self._remember_transactions(version, entry.transactions)
                self._files.add_entry(entry.added, entry.removed)
            self._version = self._checked = self._verified = version
            self._identity = identity
        return True

    def _refresh_table(self) -> bool:
        """Bring the table up to date; return False if it was removed or replaced."""
        if not self._update_table():
            # Maintenance removed the last known entry, or the directory was replaced.
            table = open_table(self.location)
            if table is None or table.metadata().id != self.table_id:
                return False
            self._table = table
            self._checked = self._synced = self._verified = self._transactions_version = -1
            self._own_entry = self._last_checkpoint = None
            self._forget_table()
            self.proven = {}  # A running search of the old log keeps the old dictionary.
        if self._version != self._table.version():
            self._version = int(self._table.version())
            self._forget_table()
        self._identity = self._entry_identity(self._version)
        if not self._skips_checks:
            self.check()
        return True

    def _forget_table(self) -> None:
        """Forget everything about a table that has changed in any way."""
        self._properties = self._columns = None
        self._is_writable = False
        self._files.forget()

    def _update_table(self) -> bool:
        """Read new entries; return False if the last known one was removed or replaced."""
        version = self._version
        if self._entry_identity(version) != self._identity:
            return False
        if self._table.version() == version and self._entry_identity(version + 1) is None:
            return True  # This must be cheap: subscribers poll up to a hundred times a second.
        _require_delta(self.location)
        try:
            self._table.update_incremental()
        except UNREADABLE:
            return False  # Entries were just removed; opening the table reports anything else.
        return bool(self._table.version() >= version)

    def _entry_identity(self, version: int) -> tuple[int, int] | None:
        """Return a value that differs for a later entry of the same `version`; None if missing."""
        return self.location.identity(entry_path(self.location, version))

    def _check_undamaged(self) -> None:
        if self.location.is_local:
            check_log_at(self.location, self._version)
            self._verified = self._version
            head_id = self.transaction(HEAD_TRANSACTION)
            path = None if head_id is None else head_path(self.location, head_id)
            check_undamaged(self.location, self.version(), path, self.sizes)

    def mark_checked(self) -> None:
        """Mark all entries as checked for changes by other tools."""
        self._checked = self.version()

    def check(self) -> None:
        """Check whether other tools changed rows in the entries since the last check.

        Raises:
            UnusableStore: another tool did; see `check_entries`.
        """
        newest = self.version()
        if newest <= self._checked:
            return
        if self._own_entry is not None and self._own_entry[0] == newest == self._checked + 1:
            self._remember_transactions(newest, self._own_entry[1].transactions)
        else:
            self._verify_checksums()
            entries = check_entries(self.location, newest, self._checked)
            if any(entry.own is None and entry.changes_table for entry in entries):
                _check_table(self.table, self.location)
            if newest == self._checked + 1:
                self._remember_transactions(newest, entries[-1].transactions)
        self._checked = newest

    def _verify_checksums(self) -> None:
        """Check the checksums of the entries that Delta has read since the last check."""
        if self.location.is_local and self._verified < self._version:
            if self._verified < 0:
                check_log_at(self.location, self._version)
            else:
                check_checksums(self.location, self._verified + 1, self._version)
            self._verified = self._version

    def _remember_transactions(self, version: int, transactions: Mapping[str, int]) -> None:
        """Add the transactions of the entry `version`, if all earlier ones are known."""
        if self._transactions_version == version - 1:
            self._transactions.update(transactions)
            self._transactions_version = version

    def version(self) -> int:
        """Return the newest known version."""
        return self._version

    def transaction(self, name: str) -> int | None:
        """Return the last version of the transaction `name`; None if there is none."""
        if self._transactions_version == self._version and name in self._transactions:
            return self._transactions[name]
        table = self.table  # This may bring the log up to date.
        if self._transactions_version != self._version:
            self._transactions = {}
            self._transactions_version = self._version
        try:
            self._transactions[name] = table.transaction_version(name)
        except UNREADABLE as error:
            raise _unreadable_error(self.location, error) from error
        return self._transactions[name]

    def files(self) -> list[DataFile]:
        """Return the files of the table; this may bring the log up to date."""
        location = self.location
        return self._files.listed(
            lambda: data_files(location, pa.table(self.table.get_add_actions(flatten=True)))
        )

    def columns(self) -> pa.Schema:
        """Return the table's columns."""
        if self._columns is None:
            self._columns = pa.schema(self._table.schema())
        return self._columns

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        if self._properties is None:
            self._properties = dict(self._table.metadata().configuration)
        return dict(self._properties)

    def add(
        self,
        new_entry: NewEntry,
        files: Sequence[str] = (),
        *,
        synced: bool = True,
        expected_version: int | None = None,
    ) -> None:
        """Add `new_entry` as an entry, unless another client has set one of its transactions.

        Args:
            new_entry: the contents of the entry.
            files: the full paths of all files that it depends on.
            synced: True if a commit on a local path must survive a power loss once this returns.
            expected_version: the version that `new_entry` was made for; None for the newest known.

        Raises:
            DeltaError: a competing commit was first, or the storage failed.
            OSError: the storage failed.
        """
        expected = {name: self.transaction(name) for name in new_entry.transactions}
        # The line above may have brought the log up to date, with a head unknown to the caller.
        if expected_version not in (None, self.version()):
            raise CommitFailedError("a competing commit was first")
        if not (self.location.is_local and synced):
            require_files(self.location, new_entry, files, time.time() - self._refreshed_s)
        if self.location.is_local:
            self._add_local(new_entry, files, expected, synced=synced)
        else:
            if new_entry.metadata is not None:
                self._change_columns_remote(new_entry)
            self._add_remote(new_entry)

    def _change_columns_remote(self, new_entry: NewEntry) -> None:
        """Set the columns in a separate entry: Delta sets them only when it overwrites files.

        The overwritten partition has no files.
        """
        assert new_entry.metadata is not None
        transactions = {
            name: version
            for name, version in new_entry.transactions.items()
            if name != HEAD_TRANSACTION
        }
        columns = NewEntry(transactions=transactions)
        self.table.create_write_transaction(
            [],
            "overwrite",
            Schema.from_json(new_entry.metadata["schemaString"]),
            partition_by=["kind"],
            partition_filters=[("kind", "=", "none")],
            commit_properties=CommitProperties(
                max_commit_retries=0,
                app_transactions=[Transaction(*pair) for pair in transactions.items()],
                custom_metadata={"tseries": seal_info(columns, columns.info(self._checked))},
            ),
            post_commithook_properties=PostCommitHookProperties(True, False),
        )
        self._refresh_table()

    def _add_remote(self, new_entry: NewEntry) -> None:
        # Keep Delta's own retries: only appends conflict, over the head; commits without a head
        # succeed in a retry.
        self.table.create_write_transaction(
            [_delta_action(action) for action in new_entry.actions],
            "append",
            self.table.schema(),
            partition_by=["kind"],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*pair) for pair in new_entry.transactions.items()],
                custom_metadata={"tseries": seal_info(new_entry, new_entry.info(self._checked))},
            ),
            post_commithook_properties=PostCommitHookProperties(True, False),
        )

    def _add_local(
        self,
        new_entry: NewEntry,
        files: Sequence[str],
        expected: Mapping[str, int | None],
        *,
        synced: bool,
    ) -> None:
        if not self._is_writable:
            _check_writable(self._table, self.location)
            self._is_writable = True
        removed_paths = {action.path for action in new_entry.actions if action.statistics is None}
        while True:
            version = self.version()
            if synced:
                self._sync_up_to(version)
            info = new_entry.info(version, synced=synced)
            entry = format_entry(new_entry, info, time.time_ns() // 1_000_000)
            if self._try_entry(version + 1, entry, files, synced=synced):
                self._own_entry = version + 1, new_entry
                break
            # Appends conflict over the head. A commit without a head may try again, unless another
            # client has set one of its transactions or removed one of its files. One that sets the
            # columns may not: it would undo what another client has changed there.
            if (
                new_entry.metadata is not None
                or any(self.transaction(name) != last for name, last in expected.items())
                or not (removed_paths <= set(self.paths()))
            ):
                raise CommitFailedError("a competing commit was first")
        self._checkpoint_if_due(version + 1)

    def _try_entry(self, version: int, entry: bytes, files: Sequence[str], *, synced: bool) -> bool:
        """Make `entry` the next one; if there is one, bring the log up to date and return False."""
        try:
            write_entry(
                self.location,
                version,
                entry,
                files,
                synced=synced,
                synced_directories=self._directories,
            )
        except FileExistsError:
            if not self._refresh_table() or self._version < version:
                raise  # No competing entry is there, so another turn would end here, too.
            return False
        self._synced = version if synced else self._synced
        return True

    def checkpoint_interval(self) -> int:
        """Return the number of commits from one checkpoint to the next."""
        setting = self.properties().get("delta.checkpointInterval")
        return DEFAULT_CHECKPOINT_INTERVAL if setting is None else int(setting)

    def _checkpoint_if_due(self, version: int) -> None:
        """Let another thread write a checkpoint if one is due after the entry `version`."""
        interval = self.checkpoint_interval()
        if self._last_checkpoint is None:
            # A process that commits once must also write one, if earlier processes have not.
            self._last_checkpoint = read_last_checkpoint(self.location).version
        if not 0 <= version - self._last_checkpoint < interval:  # A wrong one may be later.
            self._last_checkpoint = version
            checkpoint_later(self.location, version, interval)

    def paths(self) -> list[str]:
        """Return the paths of the table's files, relative to it."""
        return [path for path, _ in self.sizes()]

    def sizes(self) -> list[tuple[str, int]]:
        """Return the paths of the table's files, relative to it, with their sizes in bytes."""
        files = pa.table(self.table.get_add_actions())
        return list(zip(*(files[name].to_pylist() for name in ("path", "size_bytes")), strict=True))

    def metadata_with(self, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
        """Return the table's metadata for a `NewEntry`, with new `types` of some columns."""
        schema = json.loads(self.table.schema().to_json())
        new = json.loads(Schema.from_arrow(pa.schema(list(types.items()))).to_json())
        new_types = {field["name"]: field["type"] for field in new["fields"]}
        for field in schema["fields"]:
            field["type"] = new_types.get(field["name"], field["type"])
        return self._metadata_of(schema)

    def metadata_as_of(self, table: DeltaTable) -> dict[str, Any] | None:
        """Return metadata for a `NewEntry`, with the columns of `table`; None if they are the same.

        `table` is the table as it was earlier.
        """
        earlier, current = (json.loads(state.schema().to_json()) for state in (table, self.table))
        return None if earlier == current else self._metadata_of(earlier)

    def _metadata_of(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        metadata = self.table.metadata()
        return {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema, separators=(",", ":")),
            "partitionColumns": metadata.partition_columns,
            "createdTime": metadata.created_time,
            "configuration": metadata.configuration,
        }

    def allow_local_times(self) -> None:
        """Let the table have columns of the type timestamp_ntz; raise as `add_columns` does."""
        feature = TableFeatures.TimestampWithoutTimezone
        if _LOCAL_TIMES not in (self.table.protocol().writer_features or ()):
            self._change_table(
                lambda table: table.alter.add_feature(
                    feature, allow_protocol_versions_increase=True
                )
            )

    def add_columns(self, fields: pa.Schema) -> None:
        """Add value columns; raise DeltaError if a competing commit was first."""
        self._change_table(lambda table: table.alter.add_columns(Schema.from_arrow(fields).fields))

    def set_unit(self, column: str, unit: str) -> None:
        """Set the unit of a value column, empty for none; raise as `add_columns` does."""
        metadata = {UNIT_KEY.decode(): unit}
        self._change_table(lambda table: table.alter.set_column_metadata(column, metadata))

    def _change_table(self, change: Callable[[DeltaTable], object]) -> None:
        if not self.location.is_local:
            change(self.table)  # An object store has nothing to sync.
            return
        version = self.version()
        self._sync_up_to(version)
        captured = capture_entry(self.location, version, change)
        entry = adopt_entry(captured, version, self.location.uri)
        if not self._try_entry(version + 1, entry, [], synced=True):
            raise CommitFailedError("a competing commit was first")
        self._checkpoint_if_due(version + 1)

    def sync_entries(self) -> None:
        """Sync all entries on a local path, so that they survive a power loss."""
        if self.location.is_local:
            self._sync_up_to(self.version())
            sync([self.location.file(LOG_FOLDER)])

    def _sync_up_to(self, version: int) -> None:
        """Sync the files of the entries up to `version`, if their clients have not."""
        if self._synced < version:
            sync(unsynced_files(self.location, version, self._synced, self.paths))
            self._synced = version


def _check_table(table: DeltaTable, location: Location) -> None:
    """Raise UnusableStore if another tool changed the table so that it is no longer a store."""
    check_version(table.metadata().configuration, location.root)
    columns = pa.schema(table.schema())
    for column in table_schema([]):
        if column.name not in columns.names or columns.field(column.name).type != column.type:
            raise UnusableStore(
                f"store '{location.root}': another tool has changed or removed its column "
                f"'{column.name}'",
                str(column.type),
                "undo it with that tool, with RESTORE to the version before",
                kind="foreign change",
            )


def _check_writable(table: DeltaTable, location: Location) -> None:
    """Raise UnusableStore if the table requires features that this package cannot write."""
    protocol = table.protocol()
    features = set(protocol.writer_features or ()) - _SUPPORTED_FEATURES
    if protocol.min_writer_version <= 2 or (not features and protocol.min_writer_version >= 7):
        return
    next_step = "drop that feature with the tool"
    earlier = _version_before_protocol(table, location)
    if earlier is not None:
        restore = f"deltalake.DeltaTable('{location.uri}').restore({earlier}, "
        next_step += f", or undo it with {restore}protocol_downgrade_allowed=True)"
    required = ", ".join(sorted(features)) or f"writer version {protocol.min_writer_version}"
    raise UnusableStore(
        f"the table of the store '{location.root}' asks its writers for {required}, which another "
        "tool has switched on",
        ", ".join(sorted(_SUPPORTED_FEATURES)),
        next_step,
    )


def _version_before_protocol(table: DeltaTable, location: Location) -> int | None:
    """Return the last version before other tools changed the protocol; None if unknown.

    This package wrote nothing after that change, because it would have refused.
    """
    earlier = None
    for version in range(table.version(), 0, -1):
        entry = read_entry(location, version)
        if entry is None or entry.own is not None:
            break
        if entry.changes_protocol:
            earlier = version - 1
    return earlier


def _delta_action(action: FileAction) -> AddAction | RemoveAction:
    kind = {"kind": action.kind}
    changes = action.changes_rows
    if action.statistics is None:
        return RemoveAction(action.path, changes, action.time_ms, action.size, kind)
    return AddAction(action.path, action.size, kind, action.time_ms, changes, action.statistics)
