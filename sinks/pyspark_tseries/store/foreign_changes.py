"""Changes of a store by other tools: which of them leave its events as they are (semantics 27).

A state of the table is the set of its files. It is *sound* where a commit of this package left it,
where a commit that changes no rows (OPTIMIZE, z-order, VACUUM) made it of a sound one, and where a
RESTORE came back to one. Commits of this package keep a sound state sound, and an unsound unsound.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_tseries.store.log_entries import Entry

__all__ = ["ForeignChange", "find_foreign_change"]

Files = frozenset[str]
State = tuple[Files, Files]
"""The files that were added and removed since the first entry that is looked at."""


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A change of rows that another tool has made, and nobody has undone.

    Attributes:
        first: the first entry of it.
        last: the last entry that another tool made.
        sound: the version of the last sound state.
        followed: whether commits of this package came after `first`.
        missing: paths of files that a sound state has, and the table has not.
        extra: paths of files that the table has, and no sound state.
    """

    first: Entry
    last: Entry
    sound: int
    followed: bool
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def find_foreign_change(entries: Iterable[Entry]) -> ForeignChange | None:
    """The change of rows that other tools have made in `entries`; None where there is none.

    Args:
        entries: rising by version; the state before the first one is sound.
    """
    state: State = (frozenset(), frozenset())
    sound: dict[State, int] = {}
    first = last = None
    followed = False
    for entry in entries:
        sound = sound or {state: entry.version - 1}
        after = _applied(state, entry)
        if entry.own is not None:
            sound = {_applied(known, entry): version for known, version in sound.items()}
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


def _applied(state: State, entry: Entry) -> State:
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
