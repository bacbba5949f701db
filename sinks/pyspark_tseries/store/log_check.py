"""Looking at a store's log before it is trusted: is it whole, and has nobody else changed rows.

A commit of this package says up to where its writer had looked, so as a rule one entry is read: the
newest. An entry that was not synced may have been torn by a power loss, and so may all before it.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.storage.data_files import outside
from pyspark_tseries.storage.durability import directories_of
from pyspark_tseries.storage.head_files import head_path, unreadable_head
from pyspark_tseries.storage.location import Place, lies_inside
from pyspark_tseries.store.foreign_changes import ForeignChange, find_foreign_change
from pyspark_tseries.store.log_entries import Entry, TornEntry, entry_path, parse_entry

__all__ = [
    "HEAD",
    "LAST_CHECKPOINT",
    "LogDamage",
    "check_entries",
    "check_whole",
    "damaged_log",
    "find_log_damage",
    "newest_version",
    "reach_of_log",
    "read_entry",
    "torn_files",
    "unchecked_entries",
    "unknown_changes",
    "unsynced_files",
]

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
HEAD: Final = "tseries:head"
"""The mark that names the head."""

MOST_UNSYNCED: Final = 64
"""So many entries are looked through for what was not synced; if there are more, all is synced."""

LAST_CHECKPOINT: Final = "_last_checkpoint"
"""The file that names the last checkpoint."""

NEXT_STEP: Final = (
    "accepted: a store as it was written; next step: see what would be lost with: python -m "
    "pyspark_tseries repair --dry-run {where}, then leave --dry-run out"
)
_LAST: Final = re.compile(rb'"version"\s*:\s*(\d+)')


def read_entry(place: Place, version: int) -> Entry | None:
    """The log's entry `version`; None where it is not there, because the log was cleaned.

    Raises:
        TornEntry: it is not there whole.
        OSError: it cannot be read.
    """
    try:
        with place.read(entry_path(place, version)) as file:
            return parse_entry(version, file.read())
    except FileNotFoundError:
        return None


def check_entries(place: Place, newest: int, checked: int) -> list[Entry]:
    """The entries after `checked`, rising, as far back as nobody has checked them before.

    Args:
        place: where the store lies.
        newest: the log's version.
        checked: the version up to which all is known to be well; -1: none is.

    Raises:
        UnusableStore: an entry is torn, or names a file outside of the store; or another tool
            changed rows, or may have changed some.
        OSError: an entry cannot be read.
    """
    entries, gone = unchecked_entries(place, newest, checked)
    for entry in entries:
        for path in entry.added:
            if not lies_inside(path):
                raise outside(place, path)
    if gone is not None:
        raise unknown_changes(place, gone, newest)
    change = find_foreign_change(entries)
    if change is not None:
        raise _foreign_change(place, change)
    return entries


def unchecked_entries(place: Place, newest: int, checked: int) -> tuple[list[Entry], int | None]:
    """The entries after `checked`, rising, as far back as nobody has checked them before.

    Returns:
        The entries; and the version that would have to be looked at next, but is not in the log
        any more, None as a rule.

    Raises:
        UnusableStore: an entry is torn.
        OSError: an entry cannot be read.
    """
    entries: list[Entry] = []
    version, gone = newest, None
    while version > checked:
        try:
            entry = read_entry(place, version)
        except TornEntry as error:
            raise damaged_log(place, LogDamage(version, str(error), ())) from None
        if entry is None:
            gone = version
            break
        entries.append(entry)
        checked = max(checked, entry.checked)
        version -= 1
    return entries[::-1], gone


def unknown_changes(place: Place, version: int, newest: int) -> UnusableStore:
    """The error of a store of which `version` of the log is gone, though nobody has checked it."""
    return UnusableStore(
        f"store '{place.location}': other tools made the versions up to {newest} of its log, and "
        f"version {version} is gone, so nobody knows whether they changed rows; accepted: a log "
        "that says who changed what; next step: let every event be checked with: python -m "
        f"pyspark_tseries repair {place.location}"
    )


def _foreign_change(place: Place, change: ForeignChange) -> UnusableStore:
    first, where = change.first, place.location
    restore = f", or with deltalake.DeltaTable('{place.uri}').restore({change.sound})"
    return UnusableStore(
        f"store '{where}': version {first.version} of its log is a {first.operation or 'commit'} "
        f"by '{first.engine}' that changes rows: {len(change.missing)} of its files are missing, "
        f"and {len(change.extra)} are not of this package; accepted: events that are added "
        "through tseries (OPTIMIZE, z-order and VACUUM change none); next step: undo it with: "
        f"python -m pyspark_tseries repair {where}{'' if change.followed else restore}"
    )


@dataclass(frozen=True, slots=True)
class LogDamage:
    """What of a log was torn.

    Attributes:
        entry: the first entry that is torn or missing while later ones are there; None: all are
            whole. It and all after it are lost.
        reason: what is wrong with that entry.
        checkpoints: names of files in the log's directory that are torn, or name a torn one.
    """

    entry: int | None
    reason: str
    checkpoints: tuple[str, ...]


def find_log_damage(place: Place) -> LogDamage | None:
    """What is torn of the log of a store on a local path; None where it is whole, or no log.

    Reads the newest checkpoint and the entries after it.

    Raises:
        OSError: a file cannot be read.
    """
    newest = newest_version(place)
    reach = reach_of_log(place, newest)
    torn = list(reach.torn)
    if reach.last == newest and not torn:
        return None
    if reach.last < 0:  # No store was ever here, unless its last checkpoint is what was torn.
        return LogDamage(None, "", tuple(torn)) if torn else None
    if reach.last == newest:
        return LogDamage(None, "", tuple(torn))
    return LogDamage(reach.last + 1, reach.reason, tuple(torn))


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a log can be read.

    Attributes:
        last: the last version of which it tells the state; -1: of none.
        reason: what is wrong with the next entry.
        torn: names of files in the log's directory that are torn checkpoints, or name one.
    """

    last: int
    reason: str
    torn: tuple[str, ...]


def newest_version(place: Place) -> int:
    """The highest version that the log of a store on a local path knows; -1: none."""
    names = _log_names(place)
    return max((int(name[:20]) for name in names if name[:20].isdigit()), default=-1)


def reach_of_log(place: Place, upto: int) -> Reach:
    """How far the log of a store on a local path can be read, `upto` a version.

    Entries are read from the last whole checkpoint on, or from the first entry.
    """
    names, torn, base = _log_names(place), [], -1
    for name in reversed(names):
        if _CHECKPOINT.fullmatch(name) and int(name[:20]) <= upto:
            if _is_whole_checkpoint(place.file("_delta_log", name)):
                base = int(name[:20])
                break
            torn.append(name)
    named = _last_checkpoint(place.file("_delta_log", LAST_CHECKPOINT))
    if named is not None and f"{named:020d}.checkpoint.parquet" in torn:
        torn.append(LAST_CHECKPOINT)
    for version in range(base + 1, upto + 1):
        try:
            reason = "it is missing" if read_entry(place, version) is None else None
        except TornEntry as error:
            reason = str(error)
        if reason is not None:
            return Reach(version - 1, reason, tuple(torn))
    return Reach(upto, "", tuple(torn))


def _log_names(place: Place) -> list[str]:
    log = place.file("_delta_log")
    numbered = (_ENTRY, _CHECKPOINT)
    names = os.listdir(log) if os.path.isdir(log) else []
    return sorted(name for name in names if any(kind.fullmatch(name) for kind in numbered))


def _is_whole_checkpoint(path: str) -> bool:
    try:
        pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, PermissionError):
            raise
        return False
    return True


def _last_checkpoint(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            found = _LAST.search(file.read())
    except (FileNotFoundError, IsADirectoryError):
        return None
    return int(found[1]) if found else None


def damaged_log(place: Place, damage: LogDamage) -> UnusableStore:
    """The error of a store whose log was torn, as by a power loss."""
    where = place.location
    if damage.entry is not None:
        name, reason = f"log entry '{entry_path(place, damage.entry)}'", damage.reason
    else:
        name = f"checkpoint '{place.file('_delta_log', damage.checkpoints[0])}'"
        reason = "it cannot be read"
    return UnusableStore(
        f"the {name} of the store '{where}' is not whole ({reason}), as after a power loss; "
        f"{NEXT_STEP.format(where=where)}"
    )


def check_whole(
    place: Place, newest: int, head: str | None, live: Callable[[], Iterable[tuple[str, int]]]
) -> None:
    """Refuses a store on a local path of which a power loss has left a file torn.

    Looks at the newest entry and its files; where these were not synced, at all that is in use.

    Args:
        place: where the store lies.
        newest: the log's version.
        head: the full path of the head file; None before the first commit.
        live: the paths and sizes of the store's files of events.

    Raises:
        UnusableStore: something is torn; says what.
        OSError: a file cannot be read.
    """
    try:
        entry = read_entry(place, newest)
    except TornEntry:
        entry = None
    files: Iterable[tuple[str, int | None]]
    if entry is not None and entry.synced:
        files = ((path, int(action["size"])) for path, action in entry.added.items())
    else:
        damage = find_log_damage(place)
        if damage is not None:
            raise damaged_log(place, damage)
        files = live()
    reason = None if head is None else _torn(head, None)
    if head is not None and reason is not None:
        raise unreadable_head(place, head, reason)
    for path, reason in torn_files(place, files):
        raise UnusableStore(
            f"file '{path}' of the store '{place.location}' is not whole ({reason}), as after a "
            f"power loss; {NEXT_STEP.format(where=place.location)}"
        )


def torn_files(place: Place, files: Iterable[tuple[str, int | None]]) -> Iterator[tuple[str, str]]:
    """Each torn one of `files`, which are paths and sizes, and what is wrong with it.

    Raises:
        UnusableStore: one of them lies outside of the store.
    """
    for path, size in files:
        if not lies_inside(path):
            raise outside(place, path)
        reason = _torn(place.file(path), size)
        if reason is not None:
            yield path, reason


def _is_below(place: Place, path: str) -> bool:
    return lies_inside(os.path.relpath(path, place.location)) and os.path.isfile(path)


def _torn(path: str, size: int | None) -> str | None:
    """What is wrong with a file at the first glance; None: it seems to be whole."""
    mark = b"PAR1" if path.endswith(".parquet") else b"ARROW1"
    try:
        with open(path, "rb") as file:
            there = file.seek(0, os.SEEK_END)
            file.seek(max(0, there - len(mark)))
            end = file.read()
    except FileNotFoundError:
        return "it is missing"
    if size is not None and there != size:
        return f"it has {there} bytes, the log says {size}"
    return None if end == mark else "it is empty" if not there else "it breaks off"


def unsynced_files(
    place: Place, newest: int, synced: int, live: Callable[[], Iterable[str]]
) -> list[str]:
    """What must be synced so that all of the log up to `newest` outlives a power loss.

    Args:
        place: where the store lies, a local path.
        newest: the log's version.
        synced: the version up to which all is known to outlive one.
        live: the paths of the store's files of events.
    """
    files: list[str] = []
    for version in range(newest, synced, -1):
        entry = None if newest - version > MOST_UNSYNCED else read_entry(place, version)
        if entry is None:
            # Of an earlier version of this package, say: then everything, once.
            files = [place.file(path) for path in live()]
            for directory in ("_delta_log", "_tseries/head"):
                files += (path for path, _ in place.listed(place.file(directory)))
            break
        if entry.synced:
            break
        files += [entry_path(place, version), *map(place.file, entry.added)]
        files += [head_path(place, head) for name, head in entry.marks.items() if name == HEAD]
    there = [path for path in files if _is_below(place, path)]
    return [*there, *directories_of(place.location, there)]
