"""Keep a query from writing to a store that its checkpoint does not belong to (semantics 16.6).

The checks rely on two records. The store has a mark of every query that wrote to it, with the
number of its last batch; even an empty first batch leaves this mark. If the checkpoint is a
directory on this machine, a file in it records the store's id and location, so that a missing store
is reported instead of being created again, empty. The file also records the commits of the last
batches, so that an older state of the store is noticed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_timestream.core.checkpoint import find_location, resolve_directory
from pyspark_timestream.errors import CheckpointUnreadable
from pyspark_tseries.errors import HistoryChanged, StoreMismatch
from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.history import (
    describe_change,
    is_given_up,
    last_commit_id,
    note_commit,
)
from pyspark_tseries.store.log_entries import Change
from pyspark_tseries.store.store import Store

_FILE_PATH: Final = Path("sinks", "tseries.json")
_FORMAT_VERSION: Final = 1
MAX_BATCHES: Final = 100
"""Record the commits of this many batches, as many as Spark keeps in a checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """A store as a checkpoint records it.

    Attributes:
        id: the id of the Delta table.
        location: the location of the store.
        batches: the numbers of the last batches stored, rising, each with the last commit then.
    """

    id: str
    location: str
    batches: tuple[tuple[int, CommitId], ...] = ()

    def __str__(self) -> str:
        """Name the store as a message does."""
        return f"'{self.location}' (id {self.id})"


def find_checkpoint(options: Mapping[str, str]) -> Path | None:
    """Return the checkpoint in Spark's options, if it is a directory on this machine.

    A checkpoint location set for the whole session, or on another machine, is unknown here.
    """
    location = find_location(options)
    try:
        checkpoint = None if location is None else resolve_directory(location)
    except CheckpointUnreadable:
        return None
    return checkpoint if checkpoint and (checkpoint / "offsets").is_dir() else None


def check_before_batch(checkpoint: Path | None, location: Location) -> None:
    """Refuse a batch if its query has written to another store than the one at `location`."""
    before = None if checkpoint is None else _read_remembered(checkpoint)
    if before is None:
        return
    store = Store.find(location)
    if store is None:
        raise _mismatch_error(f"to the store {before}", f"there is no store at '{location.root}'")
    if store.id != before.id:
        raise _mismatch_error(f"to the store {before}", f"{_describe_store(store)} is another one")


def check_in_commit(
    checkpoint: Path | None,
    store: Store,
    token: tuple[str, int],
    *,
    is_empty: bool = False,
    synced: bool = True,
) -> None:
    """Check, before anything of a batch is stored, that the store is the query's own."""
    name, batch = token
    before = None if checkpoint is None else _read_remembered(checkpoint)
    if before is not None:
        _check_history(before, store, token)
    if store.transaction(name) is None:
        if before is None and batch > 0:
            batches = "a batch" if batch == 1 else f"{batch} batches"
            raise _mismatch_error(
                f"{batches} elsewhere", f"{_describe_store(store)} has nothing of it"
            )
        if is_empty:
            with store.commit_lock() as log:
                # Batches are numbered from 0: -1 marks the query before its first batch.
                log.add(Change((), {name: -1}), synced=synced)


def _check_history(before: CheckpointStore, store: Store, token: tuple[str, int]) -> None:
    """Refuse a store that lacks what the query has stored in it."""
    name, batch = token
    # Ignore the records of later batches: the checkpoint was set back, perhaps by hand.
    earlier = [known for known in before.batches if known[0] < batch]
    if not earlier:
        return
    number, commit = earlier[-1]
    change = describe_change(store, commit)
    last = store.transaction(name)
    has_batch = last is not None and last >= number
    if change is None and has_batch:
        return
    if has_batch and is_given_up(store.location, commit):
        return  # The batch is in the store; a repair has given up commits of others after it.
    raise _changed_error(store, number, commit, change, last)


def _changed_error(
    store: Store, batch: int, commit: CommitId, change: str | None, last: int | None
) -> HistoryChanged:
    change = change or "has nothing of that batch"
    first = 0 if last is None else last + 1
    return HistoryChanged(
        f"the store {_describe_store(store)} {change}, and this query's checkpoint has seen "
        f"{commit} there, with its batch {batch}: an older state of the store was put back, or "
        "another copy of it",
        "the store as the query left it, or a later state of that",
        "put that state of the store back; or put the checkpoint of the same backup back; or let "
        f"the query write what is lost again: stop it and remove all files from number {first} on "
        f"in 'commits', and from number {first + 1} on in 'offsets', of its checkpoint (its source "
        "must still have that input); or start with a new checkpointLocation, which writes all of "
        "its input. Nothing of the batch is stored",
    )


def remember_commit(
    checkpoint: Path | None, store: Store, batch: int, commit: CommitId | None = None
) -> None:
    """Record in the checkpoint that its query has stored a batch.

    Without `commit` the batch was stored before: record the store's last commit.
    """
    if checkpoint is None:
        return
    before, commit = _read_remembered(checkpoint), commit or last_commit_id(store)
    known = () if before is None else before.batches
    batches = [(number, commit_id) for number, commit_id in known if number < batch]
    batches += [] if commit is None else [(batch, commit)]
    if commit is not None:
        # Another query's commits would otherwise make the next batch search the log for this one.
        note_commit(store, commit)
    path = checkpoint / _FILE_PATH
    text = {
        "batches": [[number, *commit_id.to_json()] for number, commit_id in batches[-MAX_BATCHES:]],
        "id": store.id,
        "location": store.root,
        "version": _FORMAT_VERSION,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = Path(f"{path}.{os.getpid()}")
        written.write_text(json.dumps(text), encoding="utf-8")
        written.replace(path)
    except OSError:
        # The store still has its marks of queries; only the error message would say less.
        return


def _mismatch_error(written: str, reality: str) -> StoreMismatch:
    return StoreMismatch(
        f"this query's checkpoint has written {written}, and {reality}",
        "the store that the checkpoint has written to, wherever it was moved",
        "name that store or bring it back, or start with a new checkpoint, which writes the input "
        "again. Nothing of the batch is stored",
    )


def _describe_store(store: Store) -> str:
    return str(CheckpointStore(store.id, store.root))


def _read_remembered(checkpoint: Path) -> CheckpointStore | None:
    """Return the store recorded in the checkpoint; None if there is no readable record."""
    try:
        read = json.loads((checkpoint / _FILE_PATH).read_text(encoding="utf-8"))
        store, location = str(read["id"]), str(read["location"])
        batches = (
            (int(number), CommitId(int(commit), int(head)))
            for number, commit, head in read.get("batches", ())
        )
        return CheckpointStore(store, location, tuple(batches))
    except (OSError, ValueError, KeyError, TypeError):
        return None
