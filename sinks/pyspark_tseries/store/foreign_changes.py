"""Finds changes of rows by other tools (semantics 27).

A state of the table is the set of its files. A state is *sound* if a commit of this package made it
from a sound one, if a commit that changes no rows (OPTIMIZE, z-order, VACUUM) did, or if a RESTORE
returned to a sound one. A commit of this package on an unsound state leaves it unsound.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_tseries.store.log_entries import Entry

__all__ = ["ForeignChange", "find_foreign_change"]

FileSet = frozenset[str]
TableState = tuple[FileSet, FileSet]
"""The files added and removed since the first entry considered."""


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A change of rows that another tool has made, and that was not undone.

    Attributes:
        first: the first entry of it.
        last: the last entry that another tool made.
        sound: the version of the last sound state.
        followed: True if commits of this package came after `first`.
        missing: paths of files of the sound state that the table lacks.
        extra: paths of files of the table that the sound state lacks.
    """

    first: Entry
    last: Entry
    sound: int
    followed: bool
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def find_foreign_change(entries: Iterable[Entry]) -> ForeignChange | None:
    """The change of rows that other tools have made in `entries`; None if there is none.

    Args:
        entries: rising by version; the state before the first one is sound.
    """
    state: TableState = (frozenset(), frozenset())
    sound: dict[TableState, int] = {}
    first = last = None
    followed = False
    for entry in entries:
        sound = sound or {state: entry.version - 1}
        after = _apply(state, entry)
        if entry.own is not None:
            sound = {_apply(known, entry): version for known, version in sound.items()}
            followed = followed or first is not None
        else:
            last = entry
            if state in sound and not entry.changes_rows:
                sound[after] = entry.version
        state = after
        if state in sound:
            sound[state] = entry.version
            first, followed = None, False
        else:
            first = first or entry
    if first is None or last is None:
        return None
    back, version = max(sound.items(), key=lambda known: known[1])
    missing = (back[0] - state[0]) | (state[1] - back[1])
    extra = (state[0] - back[0]) | (back[1] - state[1])
    return ForeignChange(
        first, last, version, followed, tuple(sorted(missing)), tuple(sorted(extra))
    )


def _apply(state: TableState, entry: Entry) -> TableState:
    added, removed = map(set, state)
    for path in entry.removed:
        if path in added:
            added.discard(path)
        else:
            removed.add(path)
    for path in entry.added:
        if path in removed:
            removed.discard(path)
        else:
            added.add(path)
    return frozenset(added), frozenset(removed)
