"""Protection of a query from writing to another store than its checkpoint belongs to.

The rules are semantics 16.6. They rely on two records. The store has a mark of every query that
wrote to it, with the number of its last batch; the first batch of a query leaves this mark even if
it is empty. And if the checkpoint is a directory of this machine, a file in it records the id and
the location of the store, so that a missing store is named instead of being created again, empty.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark_tseries.errors import StoreMismatch
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.store import Store

__all__ = [
    "CheckpointStore",
    "check_before_batch",
    "check_in_commit",
    "checkpoint_directory",
    "remember_store",
]

_FILE_PATH: Final = ("sinks", "tseries.json")
_CHECKPOINT_OPTION: Final = "checkpointlocation"
_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """A store as a checkpoint records it."""

    id: str
    location: str

    def __str__(self) -> str:
        """As a message names it."""
        return f"'{self.location}' (id {self.id})"


def checkpoint_directory(options: Mapping[str, str]) -> str | None:
    """The checkpoint in Spark's options, if it is a directory of this machine.

    A checkpoint location set for the whole session, or on another machine, is unknown here.
    """
    location = next((options[name] for name in options if name.lower() == _CHECKPOINT_OPTION), None)
    if location is None:
        return None
    parts = urlsplit(location)
    path = unquote(parts.path) if parts.scheme == "file" else location
    return path if os.path.isdir(os.path.join(path, "offsets")) else None


def check_before_batch(checkpoint: str | None, location: Location) -> None:
    """Refuse a batch of a query that has written to another store than the one at `location`.

    Raises:
        StoreMismatch: its store is gone, or another one has taken its place.
    """
    before = None if checkpoint is None else _read_remembered(checkpoint)
    if before is None:
        return
    store = Store.find(location)
    if store is None:
        raise _mismatch_error(f"to the store {before}", f"there is no store at '{location.root}'")
    if store.id != before.id:
        raise _mismatch_error(f"to the store {before}", f"{_describe_store(store)} is another one")


def check_in_commit(
    checkpoint: str | None,
    store: Store,
    token: tuple[str, int],
    *,
    is_empty: bool = False,
    synced: bool = True,
) -> None:
    """Ensure, before anything of a batch is stored, that the store is the query's own.

    Args:
        checkpoint: from `checkpoint_directory`.
        store: the store, up to date.
        token: the query's mark, and the number of the batch.
        is_empty: the batch is empty, so nothing else leaves the mark.
        synced: on a local path, whether this commit must survive a power loss.

    Raises:
        StoreMismatch: earlier batches of the query went elsewhere.
    """
    mark, batch = token
    before = None if checkpoint is None else _read_remembered(checkpoint)
    if store.log.transaction(mark) is None:
        if before is None and batch > 0:
            batches = "a batch" if batch == 1 else f"{batch} batches"
            raise _mismatch_error(
                f"{batches} elsewhere", f"{_describe_store(store)} has nothing of it"
            )
        if is_empty:
            with store.commit_lock() as log:
                # Batches are numbered from 0: -1 marks the query before its first batch.
                log.commit([], {mark: -1}, synced=synced)


def remember_store(checkpoint: str | None, store: Store) -> None:
    """Record in the checkpoint which store its query writes to, unless it is recorded."""
    if checkpoint is None or _read_remembered(checkpoint) is not None:
        return
    path = os.path.join(checkpoint, *_FILE_PATH)
    text = {"id": store.id, "location": store.root, "version": _FORMAT_VERSION}
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(text, file)
        os.replace(file.name, path)
    except OSError:
        # The store still has its marks of queries; only the error message would say less.
        return


def _mismatch_error(written: str, found: str) -> StoreMismatch:
    return StoreMismatch(
        f"this query's checkpoint has written {written}, and {found}",
        "the store that the checkpoint has written to, wherever it was moved",
        "name that store or bring it back, or start with a new checkpoint, which writes the input "
        "again. Nothing of the batch is stored",
    )


def _describe_store(store: Store) -> str:
    return str(CheckpointStore(store.id, store.root))


def _read_remembered(checkpoint: str) -> CheckpointStore | None:
    """The store recorded in the checkpoint; None if there is no readable record."""
    try:
        with open(os.path.join(checkpoint, *_FILE_PATH), encoding="utf-8") as file:
            read = json.load(file)
        return CheckpointStore(str(read["id"]), str(read["location"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
