"""The log of a store: its Delta table opened, created, followed, and added to."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
)

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.files import WrittenFile
from pyspark_tseries.places import Place

__all__ = ["Log", "added", "create_table", "open_table", "table_at", "table_of", "unreachable"]

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
        DeltaTable.create(
            place.uri,
            schema,
            partition_by=["kind"],
            configuration=properties,
            raise_if_key_not_exists=False,
            storage_options=place.storage_options,
        )
    except (DeltaError, OSError) as error:
        if open_table(place) is None:
            raise unreachable(place, "created", error) from None


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


def added(files: Iterable[WrittenFile], modified_ms: int, is_new: bool = True) -> list[AddAction]:
    """What a commit says of its new files; `is_new` where they change what is in the table."""
    return [
        AddAction(file.path, file.size, {"kind": file.kind}, modified_ms, is_new, file.statistics)
        for file in files
    ]


class Log:
    """A table and the version of it that is known; not safe for threads by itself."""

    def __init__(self, place: Place, table: DeltaTable) -> None:
        self.place = place
        self.table = table
        self._born = self._birth(table.version())

    def refresh(self) -> bool:
        """Brings the log up to date; False where the table is no longer the one opened."""
        if not self._follow():
            # Its last known commit is gone: cleaned up, or the directory was replaced.
            table = open_table(self.place)
            if table is None or table.metadata().id != self.table.metadata().id:
                return False
            self.table = table
        self._born = self._birth(self.table.version())
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
        return self.place.identity(self.place.file("_delta_log", f"{version:020d}.json"))

    def mark(self, name: str) -> int | None:
        """The last number that a commit gave to the mark `name`; None where there is none."""
        number: int | None = self.table.transaction_version(name)
        return number

    def has(self, token: tuple[str, int] | None) -> bool:
        """Whether a commit has set a mark to the number that `token` gives it, or a higher one."""
        done = None if token is None else self.mark(token[0])
        return token is not None and done is not None and done >= token[1]

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.table.metadata().configuration)

    def commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        marks: dict[str, int],
        said: dict[str, Any] | None = None,
    ) -> None:
        """Commits files and marks as a whole, if nobody else has set one of `marks` meanwhile.

        Args:
            actions: files to add and remove.
            marks: numbers by name, which the log remembers.
            said: for the log's readers.

        Raises:
            DeltaError: a rival's commit was first, or the storage failed.
        """
        # Delta's own retries stay on: they let maintenance pass, while every rival append
        # trips over the head.
        self.table.create_write_transaction(
            list(actions),
            "append",
            self.table.schema(),
            partition_by=["kind"],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*mark) for mark in marks.items()],
                custom_metadata=said,
            ),
            post_commithook_properties=PostCommitHookProperties(True, False),
        )
