"""The log of a store: its Delta table opened, created, followed, and added to."""

import contextlib
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
)

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.columns import layout
from pyspark_tseries.model.properties import check_version
from pyspark_tseries.storage.data_files import WrittenFile
from pyspark_tseries.storage.durability import make_directories, sync
from pyspark_tseries.storage.head_files import head_path
from pyspark_tseries.storage.location import Place
from pyspark_tseries.store.log_check import (
    HEAD,
    check_entries,
    check_whole,
    damaged_log,
    find_log_damage,
    unsynced_files,
)
from pyspark_tseries.store.log_entries import (
    Added,
    Removed,
    claimed,
    entry_path,
    format_entry,
    own_note,
)
from pyspark_tseries.store.log_writer import entry_written_by, publish, write_checkpoint

__all__ = ["Log", "added", "create_table", "open_table", "table_at", "table_of", "unreachable"]

CHECKPOINT_INTERVAL: Final = 10
"""Commits from one checkpoint to the next where the table does not say."""

_FEATURES: Final = frozenset(["appendOnly", "invariants", "timestampNtz"])
"""What a table may ask of its writers, besides what was asked of all before there were features."""

_COLOURS: Final = re.compile("\x1b\\[[0-9;]*m")


def open_table(place: Place) -> DeltaTable | None:
    """The table at `place`; None where there is none.

    Raises:
        UnusableStore: there is something else, or it cannot be reached.
    """
    try:
        return table_of(place)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if not place.local:
            raise unreachable(place, "opened", error) from None
        with contextlib.suppress(OSError):
            damage = find_log_damage(place)
            if damage is not None:
                raise damaged_log(place, damage) from None
        raise UnusableStore(
            f"'{place.location}' cannot be opened as a store: {str(error).splitlines()[0]}; "
            "accepted: a directory that a tseries write has created; next step: check the path "
            "and its rights"
        ) from error


def table_of(place: Place) -> DeltaTable:
    """The table at `place`; raises what Delta raises."""
    return DeltaTable(place.uri, storage_options=place.storage_options)


def table_at(place: Place, version: int) -> DeltaTable:
    """The table at `place` as it was with the entry `version` of its log.

    Raises:
        UnusableStore: the log does not reach back so far, or it cannot be read.
    """
    try:
        return DeltaTable(place.uri, version, storage_options=place.storage_options)
    except (DeltaError, OSError) as error:
        raise UnusableStore(
            f"the store '{place.location}' as it was at entry {version} of its log cannot be "
            f"opened: {place.hides(str(error)).splitlines()[0]}; accepted: a query whose tasks "
            "begin while the log reaches back to its start; next step: start the query again"
        ) from None


def create_table(place: Place, schema: pa.Schema, properties: dict[str, str]) -> None:
    """Creates the table at `place`, unless another writer has just done it.

    Raises:
        UnusableStore: the directory cannot be written, or the object store not be reached.
    """
    try:
        if place.local:
            _create_local(place, schema, properties)
        else:
            _create(place.uri, schema, properties, place.storage_options)
    except (DeltaError, OSError) as error:
        if open_table(place) is None:
            raise unreachable(place, "created", error) from None


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


def _create_local(place: Place, schema: pa.Schema, properties: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        _create(pathlib.Path(elsewhere).as_uri(), schema, properties, None)
        with open(os.path.join(elsewhere, "_delta_log", f"{0:020d}.json"), "rb") as file:
            entry = claimed(file.read(), own_note(None, -1, synced=True), f"{place.uri}/")
    make_directories(place.file("_delta_log"))
    publish(place, 0, entry, [], synced=True, known=set())


def unreachable(place: Place, done: str, error: Exception) -> UnusableStore:
    """An error that shows no secrets, though the storage's answer may; so without its cause."""
    said = " ".join(_COLOURS.sub("", place.hides(str(error))).split())
    there, given = "a directory that can be written", ""
    if not place.local:
        there = "a prefix in a bucket that exists, and credentials that may read and write it"
        given = " and storageOptions (storage_options=, --storage-option)"
    return UnusableStore(
        f"'{place.location}' cannot be {done} as a store: {said[:500]}; accepted: {there}; "
        f"next step: check the path{given}"
    )


def added(files: Iterable[WrittenFile], modified_ms: int, is_new: bool = True) -> list[Added]:
    """What a commit says of its new files; `is_new` where they change what is in the table."""
    return [
        Added(file.path, file.size, file.kind, modified_ms, is_new, file.statistics)
        for file in files
    ]


class Log:
    """A table and the version of it that is known; not safe for threads by itself.

    Args:
        place: where the store lies.
        table: as it was opened.
        trusting: whether what other tools did is not looked at, as a repair must.
    """

    def __init__(self, place: Place, table: DeltaTable, *, trusting: bool = False) -> None:
        self.place = place
        self.table = table
        self._trusting = trusting
        self._checked = self._synced = -1
        self._directories: set[str] = set()
        self._marks: dict[str, int | None] = {}
        self._marks_at = -1
        self._mine: tuple[int, dict[str, int]] | None = None
        self._born = self._birth(table.version())
        if not trusting:
            self._check_whole()
            self.check()

    def refresh(self) -> bool:
        """Brings the log up to date; False where the table is no longer the one opened.

        Raises:
            UnusableStore: another tool has changed rows; see `check_entries`.
        """
        if not self._follow():
            # Its last known commit is gone: cleaned up, or the directory was replaced.
            table = open_table(self.place)
            if table is None or table.metadata().id != self.table.metadata().id:
                return False
            self.table = table
            self._checked = self._synced = self._marks_at = -1
            self._mine = None
        self._born = self._birth(self.table.version())
        if not self._trusting:
            self.check()
        return True

    def _follow(self) -> bool:
        """Reads what the log has besides; False where it has been cleaned beyond that."""
        version = self.table.version()
        if self._birth(version) != self._born:
            return False
        if self._birth(version + 1) is None:
            return True  # Asking is cheap, so a subscriber may do it a hundred times a second.
        try:
            self.table.update_incremental()
        except (DeltaError, OSError):
            return False  # Cleaned at this very moment; if it is more, opening it anew says so.
        return True

    def _birth(self, version: int) -> tuple[int, int] | None:
        """Tells the log's entry `version` from another one of that number, written later."""
        return self.place.identity(entry_path(self.place, version))

    def _check_whole(self) -> None:
        if self.place.local:
            head = self.mark(HEAD)
            path = None if head is None else head_path(self.place, head)
            check_whole(self.place, self.version(), path, self.sizes)

    def accept(self) -> None:
        """Takes for granted that nobody else has changed rows, since somebody has seen to it."""
        self._checked = self.version()

    def check(self) -> None:
        """Makes sure that nobody else has changed rows since this was last looked at.

        Raises:
            UnusableStore: somebody has; see `check_entries`.
        """
        newest = self.version()
        if newest <= self._checked:
            return
        if self._mine is not None and self._mine[0] == newest == self._checked + 1:
            self._learn(newest, self._mine[1])
        else:
            entries = check_entries(self.place, newest, self._checked)
            if any(entry.own is None and entry.changes_table for entry in entries):
                _check_table(self.table, self.place)
            if newest == self._checked + 1:
                self._learn(newest, entries[-1].marks)
        self._checked = newest

    def _learn(self, version: int, marks: Mapping[str, int]) -> None:
        """Notes the marks that the entry `version` has set, where all before it are known."""
        if self._marks_at == version - 1:
            self._marks.update(marks)
            self._marks_at = version

    def version(self) -> int:
        """The newest version that is known."""
        return int(self.table.version())

    def mark(self, name: str) -> int | None:
        """The last number that a commit gave to the mark `name`; None where there is none."""
        version = self.version()
        if self._marks_at != version:
            self._marks, self._marks_at = {}, version
        if name not in self._marks:
            self._marks[name] = self.table.transaction_version(name)
        return self._marks[name]

    def has(self, token: tuple[str, int] | None) -> bool:
        """Whether a commit has set a mark to the number that `token` gives it, or a higher one."""
        done = None if token is None else self.mark(token[0])
        return token is not None and done is not None and done >= token[1]

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.table.metadata().configuration)

    def commit(
        self,
        actions: Sequence[Added | Removed],
        marks: dict[str, int],
        number: int | None = None,
        files: Sequence[str] = (),
        *,
        synced: bool = True,
    ) -> None:
        """Commits files and marks as a whole, if nobody else has set one of `marks` meanwhile.

        Args:
            actions: files to add and remove.
            marks: numbers by name, which the log remembers.
            number: of the commit; None where it adds no events.
            files: full paths of all files that the commit depends on.
            synced: on a local path, whether the commit outlives a power loss when this returns.

        Raises:
            DeltaError: a rival's commit was first, or the storage failed.
            OSError: the storage failed.
        """
        if self.place.local:
            self._commit_here(actions, marks, number, files, synced)
        else:
            self._commit_afar(actions, marks, number)

    def _commit_afar(
        self, actions: Sequence[Added | Removed], marks: dict[str, int], number: int | None
    ) -> None:
        # Delta's own retries stay on: they let maintenance pass, while every rival append
        # trips over the head.
        self.table.create_write_transaction(
            [_delta_action(action) for action in actions],
            "append",
            self.table.schema(),
            partition_by=["kind"],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*mark) for mark in marks.items()],
                custom_metadata={"tseries": own_note(number, self._checked, synced=True)},
            ),
            post_commithook_properties=PostCommitHookProperties(True, False),
        )

    def _commit_here(
        self,
        actions: Sequence[Added | Removed],
        marks: dict[str, int],
        number: int | None,
        files: Sequence[str],
        synced: bool,
    ) -> None:
        _check_writable(self.table, self.place)
        before = {name: self.mark(name) for name in marks}
        gone = {action.path for action in actions if isinstance(action, Removed)}
        while True:
            version = self.version()
            if synced:
                self._sync_before(version)
            note = own_note(number, version, synced=synced)
            entry = format_entry(actions, marks, note, time.time_ns() // 1_000_000)
            if self._publish(version + 1, entry, files, synced):
                self._mine = version + 1, marks
                break
            # Maintenance may pass, while every rival append trips over the head.
            if any(self.mark(name) != known for name, known in before.items()) or not (
                gone <= set(self.paths())
            ):
                raise CommitFailedError("a rival's commit was first")
        self._checkpoint(version + 1)

    def _publish(self, version: int, entry: bytes, files: Sequence[str], synced: bool) -> bool:
        """Makes `entry` the next one; False, with the log up to date, where there is one."""
        try:
            publish(self.place, version, entry, files, synced=synced, known=self._directories)
        except FileExistsError:
            self.table.update_incremental()
            if self.version() < version:
                raise
            self.check()
            return False
        self._synced = version if synced else self._synced
        return True

    def _checkpoint(self, version: int) -> None:
        interval = int(self.properties().get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
        if (version + 1) % interval == 0:
            write_checkpoint(self.place, version)

    def paths(self) -> list[str]:
        """The paths of the table's files, relative to it."""
        return [path for path, _ in self.sizes()]

    def sizes(self) -> list[tuple[str, int]]:
        """The paths of the table's files, relative to it, with their sizes in bytes."""
        files = pa.table(self.table.get_add_actions())
        return list(zip(*(files[name].to_pylist() for name in ("path", "size_bytes")), strict=True))

    def add_columns(self, fields: pa.Schema) -> None:
        """Adds value columns; raises DeltaError where a rival's commit was first."""

        def change(table: DeltaTable) -> None:
            table.alter.add_columns(Schema.from_arrow(fields).fields)

        if not self.place.local:
            change(self.table)
            return
        version = self.version()
        self._sync_before(version)
        note = own_note(None, version, synced=True)
        entry = claimed(entry_written_by(self.place, version, change), note, self.place.uri)
        if not self._publish(version + 1, entry, [], synced=True):
            raise CommitFailedError("a rival's commit was first")
        self._checkpoint(version + 1)

    def settle(self) -> None:
        """Makes sure that on a local path all that the log says outlives a power loss."""
        if self.place.local:
            self._sync_before(self.version())
            sync([self.place.file("_delta_log")])

    def _sync_before(self, version: int) -> None:
        """Syncs what the entries up to `version` depend on, if their writers have not."""
        if self._synced < version:
            sync(unsynced_files(self.place, version, self._synced, self.paths))
            self._synced = version


def _check_table(table: DeltaTable, place: Place) -> None:
    """Refuses a table whose columns or properties another tool has changed for the worse."""
    check_version(table.metadata().configuration, place.location)
    there = pa.schema(table.schema())
    for column in layout([]):
        if column.name not in there.names or there.field(column.name).type != column.type:
            raise UnusableStore(
                f"store '{place.location}': another tool has changed or removed its column "
                f"'{column.name}'; accepted: {column.type}; next step: undo it with that tool, "
                "with RESTORE to the version before"
            )


def _check_writable(table: DeltaTable, place: Place) -> None:
    """Refuses to write to a table that asks more of its writers than this package can do."""
    protocol = table.protocol()
    asked = set(protocol.writer_features or ()) - _FEATURES
    if protocol.min_writer_version > 2 and (asked or protocol.min_writer_version < 7):
        named = ", ".join(sorted(asked)) or f"writer version {protocol.min_writer_version}"
        raise UnusableStore(
            f"the table of the store '{place.location}' asks its writers for {named}, which "
            f"another tool has switched on; accepted: {', '.join(sorted(_FEATURES))}; next step: "
            "drop that feature with the tool"
        )


def _delta_action(action: Added | Removed) -> AddAction | RemoveAction:
    kind = {"kind": action.kind}
    if isinstance(action, Removed):
        return RemoveAction(action.path, action.changes_rows, action.removed_ms, action.size, kind)
    return AddAction(
        action.path,
        action.size,
        kind,
        action.modified_ms,
        action.changes_rows,
        action.statistics,
    )
