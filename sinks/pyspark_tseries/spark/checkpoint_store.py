"""The store that a query's checkpoint has written to: no batch goes into another one.

Two witnesses say which it was. The store knows each query that wrote to it, by the mark of its last
batch; the first batch of a query leaves its mark even if it is empty. And where the checkpoint is a
directory of this machine, a file in it remembers the store's id and place, so that a store that is
gone is named, and not made again as an empty one.

The rules are semantics 16.6.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark_tseries.errors import StoreMismatch
from pyspark_tseries.storage.location import Place
from pyspark_tseries.store.store import Store

__all__ = [
    "CheckpointStore",
    "check_before_batch",
    "check_in_commit",
    "checkpoint_directory",
    "remember_store",
]

_FILE: Final = ("sinks", "tseries.json")
_OPTION: Final = "checkpointlocation"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """A store as a checkpoint remembers it."""

    id: str
    location: str

    def __str__(self) -> str:
        """As a message names it."""
        return f"'{self.location}' (id {self.id})"


def checkpoint_directory(options: Mapping[str, str]) -> str | None:
    """The checkpoint that Spark's options name, where it is a directory of this machine.

    A checkpoint that is set for the whole session, or lies elsewhere, is not known here.
    """
    location = next((options[name] for name in options if name.lower() == _OPTION), None)
    if location is None:
        return None
    parts = urlsplit(location)
    path = unquote(parts.path) if parts.scheme == "file" else location
    return path if os.path.isdir(os.path.join(path, "offsets")) else None


def check_before_batch(checkpoint: str | None, place: Place) -> None:
    """Refuses a batch of a query that has written to another store than the one at `place`.

    Raises:
        StoreMismatch: that store is gone, or another one is there.
    """
    before = None if checkpoint is None else _remembered(checkpoint)
    if before is None:
        return
    store = Store.find(place)
    if store is None:
        raise _mismatch(f"to the store {before}", f"there is no store at '{place.location}'")
    if store.id != before.id:
        raise _mismatch(f"to the store {before}", f"{_named(store)} is another one")


def check_in_commit(
    checkpoint: str | None,
    store: Store,
    token: tuple[str, int],
    *,
    is_empty: bool = False,
    synced: bool = True,
) -> None:
    """Makes sure, before anything of a batch is stored, that the store is the query's own.

    Args:
        checkpoint: what `checkpoint_directory` gave.
        store: the store, up to date.
        token: the query's mark, and the number of the batch.
        is_empty: the batch has no rows, so that nothing else will leave the mark.
        synced: on a local path, whether what this writes outlives a power loss.

    Raises:
        StoreMismatch: earlier batches of the query went elsewhere.
    """
    mark, batch = token
    before = None if checkpoint is None else _remembered(checkpoint)
    if store.log.mark(mark) is None:
        if before is None and batch > 0:
            batches = "a batch" if batch == 1 else f"{batch} batches"
            raise _mismatch(f"{batches} elsewhere", f"{_named(store)} has nothing of it")
        if is_empty:
            with store.turn() as log:
                # Batches are numbered from 0: the query is known, and none of it is stored yet.
                log.commit([], {mark: -1}, synced=synced)


def remember_store(checkpoint: str | None, store: Store) -> None:
    """Notes in the checkpoint that a batch of its query is in the store, unless it is known."""
    if checkpoint is None or _remembered(checkpoint) is not None:
        return
    path = os.path.join(checkpoint, *_FILE)
    text = {"id": store.id, "location": store.root, "version": _VERSION}
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(text, file)
        os.replace(file.name, path)
    except OSError:
        # The store knows its queries all the same; only the message will say less.
        return


def _mismatch(written: str, found: str) -> StoreMismatch:
    return StoreMismatch(
        f"this query's checkpoint has written {written}, and {found}; accepted: the store that the "
        "checkpoint has written to, wherever it was moved; next step: name that store or bring it "
        "back, or start with a new checkpoint, which writes the input again. Nothing of the batch "
        "is stored"
    )


def _named(store: Store) -> str:
    return str(CheckpointStore(store.id, store.root))


def _remembered(checkpoint: str) -> CheckpointStore | None:
    """What the checkpoint remembers; None: nothing that can be read."""
    try:
        with open(os.path.join(checkpoint, *_FILE), encoding="utf-8") as file:
            read = json.load(file)
        return CheckpointStore(str(read["id"]), str(read["location"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
