"""Repair: a store that was damaged from outside is brought back to a sound state (semantics 26).

A list of mends is gone through, each for one kind of damage and in an order in which every mend may
rely on those before it. A mend finds its damage by itself, says what it did, and what is lost by
it; what it cannot mend it leaves as it is and says so. Writers should rest meanwhile.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.errors import UnusableStore, WrongClock
from pyspark_tseries.maintain.head_recovery import Remnant, find_remnant
from pyspark_tseries.maintain.log_statistics import misstated, restate
from pyspark_tseries.maintain.repair.future_commits import (
    FutureCommits,
    correct,
    find_future_commits,
)
from pyspark_tseries.maintain.repair.lost_commits import find_lost_commits, sentences
from pyspark_tseries.maintain.repair.revert import Undoing, carry_out_undoing, find_undoing
from pyspark_tseries.maintain.repair.rewind import (
    Rewind,
    carry_out,
    find_rewind,
    highest_lost,
    state_at,
)
from pyspark_tseries.maintain.verify import rebuild, verify
from pyspark_tseries.model.commit_time import MOST_SKEW_US, check_commit_time
from pyspark_tseries.model.series_index import NEVER_US, Head, next_note
from pyspark_tseries.storage import locks as host_locks
from pyspark_tseries.storage.location import Place, lies_inside, place_of
from pyspark_tseries.store.admin_commits import replace_head
from pyspark_tseries.store.log_check import unknown_changes
from pyspark_tseries.store.ownership import need_owner_of_damaged
from pyspark_tseries.store.store import Store, now_us

__all__ = ["Repaired", "repair"]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do, as sentences.

    Attributes:
        mended: what was wrong, and what was done about it.
        lost: events, commits and settings that are gone.
        left: what is still wrong, with the next step.
    """

    mended: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __add__(self, other: "Repaired") -> "Repaired":
        return Repaired(self.mended + other.mended, self.lost + other.lost, self.left + other.left)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a repair may do: see `repair`."""

    dry_run: bool = False
    give_up: bool = False
    principal: str | None = None


Mend = Callable[[Place, Asked], Repaired]
"""Finds one kind of damage in the store at a place, and mends it unless it is a dry run."""


def repair(
    path: str | Place,
    *,
    dry_run: bool = False,
    give_up: bool = False,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
) -> Repaired:
    """Mends what can be mended of the store at `path`, and says what it did and what is lost.

    Args:
        path: a local path, a `file:` URI or an `s3:` URI.
        dry_run: only says what it would do first; what follows from that is not known before.
        give_up: whether whole commits may be given up, too, where a file of an earlier one is
            broken and cannot be put back.
        storage_options: how an object store is reached; see `STORAGE_OPTIONS`.
        principal: who does it; None: the OS user.

    Raises:
        NoSuchStore: there is no store.
        PermissionDenied: the store has a policy, and the principal is no owner.
        UnusableStore: what is there cannot be opened at all.
        OSError: a file could not be read or written.
        StoreBusy: other writers won every attempt.
        WrongClock: this machine's clock is ahead of the storage's.
    """
    place, asked = place_of(path, storage_options), Asked(dry_run, give_up, principal)
    need_owner_of_damaged(place, principal, "repair the store")
    # A clock that is ahead would do more harm: no last commit is asked about that.
    check_commit_time(place.location, NEVER_US, now_us(), place.clock_us(), same_machine=False)
    done = Repaired()
    for mend in MENDS:
        done += mend(place, asked)
        if dry_run and done.mended:
            return done
    return done + _left(place, done)


def _left(place: Place, done: Repaired) -> Repaired:
    """What `verify` finds all the same."""
    said = " ".join(done.left)
    found = (line for line in verify(place) if not any(word in said for word in _paths(line)))
    step = "next step: put what is broken back from a copy of the store"
    return Repaired(left=tuple(f"{line}; {step}" for line in found))


def _paths(line: str) -> list[str]:
    return [word for word in line.split("'") if word.startswith("kind=")]


def _mend_torn(place: Place, asked: Asked) -> Repaired:
    """A store of which a power loss has torn some goes back to its last whole commit."""
    rewind = find_rewind(place, give_up=asked.give_up) if place.local else None
    if rewind is None:
        return Repaired()
    left = tuple(_left_file(place, rewind, path) for path in rewind.left)
    if not rewind.reasons:
        return Repaired(left=left)
    _, head_id = state_at(place, rewind.last, rewind.checkpoints)
    lost = find_lost_commits(place, head_id, rewind.last, rewind.newest)
    where = place.file("_tseries", "lost")
    if not asked.dry_run:
        numbers = [commit.number for commit in lost if commit.number is not None]
        with host_locks.in_turn(place):
            where = carry_out(place, rewind, lost, max([rewind.newest, *numbers]))
    then = f"The log ends with entry {rewind.last} now" if lost else "The log is read without it"
    what = f"{'; '.join(rewind.reasons)}. {then}; what there is of it was moved to '{where}'"
    gone = tuple(sentence for commit in lost for sentence in sentences(commit))
    return Repaired(mended=(what,), lost=gone, left=left)


def _left_file(place: Place, rewind: Rewind, path: str) -> str:
    return (
        f"file '{path}': {rewind.left[path]}, and no power loss did that: it had been synced; "
        "accepted: the file as it was written; next step: put it back from a copy of the store, or "
        "give up its commit and all that followed with: python -m pyspark_tseries repair "
        f"--give-up {place.location}"
    )


def _mend_foreign(place: Place, asked: Asked) -> Repaired:
    """Changes of rows by other tools are undone; unknown ones are accepted if all is sound."""
    store = Store.open_damaged(place)
    undoing, gone = find_undoing(store)
    if undoing is not None:
        return _undone(store, undoing, asked)
    if gone is None:
        return Repaired()
    said = str(unknown_changes(place, gone, store.version()))
    found = [line for line in verify(place) if line != said]
    if found:
        return Repaired(left=(said,))
    if not asked.dry_run:
        store.log.accept()
        replace_head(store, lambda head_id, _: _next_head(store, head_id), timed=False)
    return Repaired(mended=(f"{said}. All is sound but values, of which nobody can tell",))


def _undone(store: Store, undoing: Undoing, asked: Asked) -> Repaired:
    said = _said_of_change(store, undoing)
    if undoing.gone:
        files = ", ".join(f"'{path}'" for path in undoing.gone)
        why = "removed meanwhile, as VACUUM does; next step: put them back from a copy of the store"
        return Repaired(left=(f"{said}. The files that it took are gone: {files} were {why}",))
    aside = os.path.join("_tseries", "lost", f"{store.version() + 1:020d}")
    kept = [(path, f"{aside}/{path}") for path, _ in undoing.removed if lies_inside(path)]
    if not asked.dry_run:
        carry_out_undoing(store, undoing, kept)
    where = store.place.file(aside)
    lost = tuple(
        f"what another tool has written to '{path}'; a copy is in '{where}'" for path, _ in kept
    )
    return Repaired(mended=(f"{said}. It is undone",), lost=lost)


def _said_of_change(store: Store, undoing: Undoing) -> str:
    change = undoing.change
    if change is None:
        return f"the log of the store '{store.root}' names files outside of it"
    first, last = change.first, change.last.version
    upto = f" to {last}" if last > first.version else ""
    return (
        f"versions {first.version}{upto} of the log: a {first.operation or 'commit'} by "
        f"'{first.engine}' changed rows"
    )


def _next_head(store: Store, head_id: int | None, commit: int | None = None) -> Head:
    """The head as it is, as that of another commit."""
    _, head = store.head()
    note = next_note(head, head_id, now_us=now_us(), rows=0)
    number = note.commit if commit is None else commit
    return dataclasses.replace(head, note=dataclasses.replace(note, commit=number))


def _mend_head(place: Place, asked: Asked) -> Repaired:
    """A head that cannot be read is made again from the events."""
    store = Store.open_damaged(place)
    try:
        store.head()
    except UnusableStore as error:
        lost = tuple(_lost_with_head(find_remnant(store)))
        if not asked.dry_run:
            rebuild(place, principal=asked.principal)
        return Repaired(mended=(f"{error}. It is made again from the events",), lost=lost)
    return Repaired()


def _lost_with_head(remnant: Remnant) -> Iterator[str]:
    """What no event says: the sentences of what is older than the head was."""
    note, known = remnant.note, remnant.head.note.commit
    if not remnant.current:
        yield (
            "what the head alone had said: the counts of dropped and adjusted rows, a policy, and "
            f"a changed retained range, are {_as_of(note.commit)}"
        )
    if note.retained_since is not None and note.retained_since > known:
        yield (
            "which events the changed retained range had put out of range: those that the range "
            f"'{note.retained}' lets in are back"
        )


def _as_of(commit: int) -> str:
    if commit < 0:
        return "those of the store's creation, since no other head can be read"
    return f"as they were with commit {commit}"


def _mend_numbers(place: Place, asked: Asked) -> Repaired:
    """The numbers of lost commits are not used again: a subscriber may have seen these."""
    highest = highest_lost(place) if place.local else -1
    store = Store.open_damaged(place)
    if asked.dry_run or store.head()[1].note.commit >= highest:
        return Repaired()

    replace_head(store, lambda head_id, _: _next_head(store, head_id, highest), timed=False)
    return Repaired()


def _mend_clock(place: Place, asked: Asked) -> Repaired:
    """Commits in the future get the times that they had; a long pause is taken for granted."""
    store = Store.open_damaged(place)
    try:
        us = store.wall_us()
    except WrongClock as error:
        us, last_us, said = now_us(), store.note().commit_us, str(error)
    else:
        return Repaired()
    if last_us <= us:
        if not asked.dry_run:
            replace_head(store, lambda head_id, _: _next_head(store, head_id), timed=False)
        return Repaired(mended=(f"{_cause(said)}. That clock is taken for right",))
    found = find_future_commits(store, max(us, place.clock_us() or us) + MOST_SKEW_US, us)
    if not asked.dry_run:
        correct(store, found)
    return Repaired(mended=(f"{_cause(said)}. {_corrected(found)}",))


def _cause(said: str) -> str:
    return said.partition("; accepted:")[0]


def _corrected(found: FutureCommits) -> str:
    times = found.change.commit_us
    if not times:
        return "No event is of such a commit; the store's time is set back"
    first, last = min(times), max(times)
    events, series = found.change.events.num_rows, found.change.events["series"].unique()
    return (
        f"The commits {first} to {last} are now of {format_instant(times[first])} to "
        f"{format_instant(times[last])}, and so are {events} events of {len(series)} series that "
        "had taken their times; times that were given stay"
    )


def _mend_statistics(place: Place, asked: Asked) -> Repaired:
    """Files of which the log says too little are named again, with the bounds of their rows."""
    store = Store.open_damaged(place)
    found = list(misstated(store))
    if found and not asked.dry_run:
        restate(store, {file: rows for file, rows, _ in found}, now_us())
    return Repaired(mended=tuple(f"{why}. The log says so now" for _, _, why in found))


MENDS: Final[tuple[Mend, ...]] = (
    _mend_torn,
    _mend_foreign,
    _mend_statistics,
    _mend_head,
    _mend_numbers,
    _mend_clock,
)
"""In order: the log, the files that it names, what it says of them, the head, the clock."""
