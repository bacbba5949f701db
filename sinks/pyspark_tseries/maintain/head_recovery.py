"""What can still be read of a store's head where the head itself cannot.

Where series stand is found from their events; what a head says besides that, its note and floors,
is in no other place. The log names the heads that were committed: of those the newest readable
note counts, and the floors of the newest that is whole, deltas and all. Files that no entry of the
log names come last, since their commits may never have been made.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.series_index import EMPTY_NOTE, Head, Note
from pyspark_tseries.storage.head_files import load_head, read_head_note, readable_notes
from pyspark_tseries.store.log_check import HEAD, read_entry
from pyspark_tseries.store.log_entries import TornEntry
from pyspark_tseries.store.store import Store

__all__ = ["Remnant", "find_remnant"]

MOST_ENTRIES: Final = 200
"""So many entries of the log are looked at for the heads that they name."""

_TORN: Final = (UnusableStore, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Remnant:
    """What is left of a head.

    Attributes:
        note: the newest readable one; EMPTY_NOTE where there is none.
        head: the newest whole head, for its floors; an empty one where there is none.
        current: whether `note` is that of the current head.
    """

    note: Note
    head: Head
    current: bool


def find_remnant(store: Store) -> Remnant:
    """Returns what can be read of the head of `store`, or of those before it."""
    ids = list(_committed(store))
    notes = {head_id: note for head_id in ids if (note := _note(store, head_id)) is not None}
    current = store.head_id() in notes
    if not notes:
        notes = readable_notes(store.place)
    ids += sorted(notes.keys() - set(ids), key=lambda known: -notes[known].commit)
    note = next((notes[head_id] for head_id in ids if head_id in notes), EMPTY_NOTE)
    for head_id in ids:
        with contextlib.suppress(*_TORN):
            return Remnant(note, load_head(store.place, head_id, None, Head()), current)
    return Remnant(note, Head(), current)


def _note(store: Store, head_id: int) -> Note | None:
    with contextlib.suppress(*_TORN):
        return read_head_note(store.place, head_id)
    return None


def _committed(store: Store) -> Iterator[int]:
    """The ids of the heads that the log names, newest first, each once."""
    newest = last = store.head_id()
    if newest is not None:
        yield newest
    for version in range(store.version(), max(store.version() - MOST_ENTRIES, -1), -1):
        try:
            entry = read_entry(store.place, version)
        except TornEntry:
            continue
        if entry is None:
            return
        head_id = entry.marks.get(HEAD)
        if head_id is not None and head_id not in (newest, last):
            last = head_id
            yield head_id
