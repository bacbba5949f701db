"""Recovery of a damaged head from earlier heads.

The state of each series is computed from its events; the rest of a head, its commit metadata
and floors, exists nowhere else. The log names the heads that were committed: of those the newest
readable metadata count, and the floors of the newest head that is whole, deltas included. Files
that no entry of the log names come last, since their commits may never have been made; what they
promise does not count, for the same reason.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.series_index import NO_COMMIT, CommitMetadata, SeriesIndex
from pyspark_tseries.promise.record import CtiRecord
from pyspark_tseries.storage.head_files import load_index, read_head_metadata, readable_metadata
from pyspark_tseries.store.log_check import HEAD_TRANSACTION, read_entry
from pyspark_tseries.store.log_entries import TornEntry
from pyspark_tseries.store.store import Store

__all__ = ["RecoveredHead", "recover_head"]

MAX_LOG_ENTRIES: Final = 200
"""So many entries of the log are looked at for the heads that they name."""

_UNREADABLE: Final = (UnusableStore, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class RecoveredHead:
    """The readable parts of a head.

    Attributes:
        metadata: the newest readable one; NO_COMMIT if there is none.
        head: the newest whole head, for its floors; an empty one where there is none.
        current: whether `metadata` is that of the current head.
    """

    metadata: CommitMetadata
    head: SeriesIndex
    current: bool


def recover_head(store: Store) -> RecoveredHead:
    """Read what is readable of the head of `store`, or of earlier heads."""
    ids = list(_list_committed_heads(store))
    readable = {
        head_id: metadata
        for head_id in ids
        if (metadata := _read_metadata(store, head_id)) is not None
    }
    current = store.head_id() in readable
    if not readable:
        found = readable_metadata(store.location)
        readable = {head_id: _without_promises(metadata) for head_id, metadata in found.items()}
    ids += sorted(readable.keys() - set(ids), key=lambda known: -readable[known].commit)
    metadata = next((readable[head_id] for head_id in ids if head_id in readable), NO_COMMIT)
    for head_id in ids:
        with contextlib.suppress(*_UNREADABLE):
            return RecoveredHead(
                metadata, load_index(store.location, head_id, None, SeriesIndex()), current
            )
    return RecoveredHead(metadata, SeriesIndex(), current)


def _read_metadata(store: Store, head_id: int) -> CommitMetadata | None:
    with contextlib.suppress(*_UNREADABLE):
        return read_head_metadata(store.location, head_id)
    return None


def _without_promises(metadata: CommitMetadata) -> CommitMetadata:
    """`metadata` with writers that have given no CTI."""
    return replace(metadata, ctis=CtiRecord(dict.fromkeys(metadata.ctis.writers)))


def _list_committed_heads(store: Store) -> Iterator[int]:
    """The ids of the heads in the log, newest first, each once."""
    newest = last = store.head_id()
    if newest is not None:
        yield newest
    for version in range(store.version(), max(store.version() - MAX_LOG_ENTRIES, -1), -1):
        try:
            entry = read_entry(store.location, version)
        except TornEntry:
            continue
        if entry is None:
            return
        head_id = entry.transactions.get(HEAD_TRANSACTION)
        if head_id is not None and head_id not in (newest, last):
            last = head_id
            yield head_id
