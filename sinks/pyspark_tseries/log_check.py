"""Looking at a store's log before it is trusted: is it whole, and has nobody else changed rows.

A commit of this package says up to where its writer had looked, so as a rule one entry is read: the
newest. An entry that was not synced may have been torn by a power loss, and so may all before it.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.durability import directories_of
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.files import outside
from pyspark_tseries.foreign_changes import ForeignChange, find_foreign_change
from pyspark_tseries.head_files import head_path, unreadable_head
from pyspark_tseries.log_entries import Entry, TornEntry, entry_path, parse_entry
from pyspark_tseries.places import Place, lies_inside

__all__ = [
    "HEAD",
    "LogDamage",
    "check_entries",
    "check_whole",
    "damaged_log",
    "find_log_damage",
    "read_entry",
    "torn_files",
    "unsynced_files",
]

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
HEAD: Final = "tseries:head"
"""The mark that names the head."""

MOST_UNSYNCED: Final = 64
"""So many entries are looked through for what was not synced; if there are more, all is synced."""

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
    entries: list[Entry] = []
    version = newest
    while version > checked:
        try:
            entry = read_entry(place, version)
        except TornEntry as error:
            raise damaged_log(place, LogDamage(version, str(error), ())) from None
        if entry is None:
            raise _unknown(place, version, newest)
        for path in (*entry.added, *entry.removed):
            if not lies_inside(path):
                raise outside(place, path)
        entries.append(entry)
        checked = max(checked, entry.checked)
        version -= 1
    entries.reverse()
    change = find_foreign_change(entries)
    if change is not None:
        raise _foreign_change(place, change)
    return entries


def _unknown(place: Place, version: int, newest: int) -> UnusableStore:
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
    """What is torn of the log of a store on a local path; None where it is whole.

    Reads the newest checkpoint and the entries after it.

    Raises:
        OSError: a file cannot be read.
    """
    log = place.file("_delta_log")
    names = sorted(os.listdir(log)) if os.path.isdir(log) else []
    torn: list[str] = []
    base = -1
    for name in (name for name in reversed(names) if _CHECKPOINT.fullmatch(name)):
        if _is_whole_checkpoint(os.path.join(log, name)):
            base = int(name[:20])
            break
        torn.append(name)
    last = _last_checkpoint(os.path.join(log, "_last_checkpoint"))
    if last is not None and f"{last:020d}.checkpoint.parquet" in torn:
        torn.append("_last_checkpoint")
    versions = [int(name[:20]) for name in names if _ENTRY.fullmatch(name)]
    if base < 0 and 0 not in versions:
        return LogDamage(None, "", tuple(torn)) if torn else None
    entry, reason = _first_torn(place, base, versions)
    if entry == 0 or (entry is None and not torn):
        return None  # Whole, or no store was ever here.
    if entry is not None:
        torn += [name for name in names if _CHECKPOINT.fullmatch(name) and int(name[:20]) >= entry]
    return LogDamage(entry, reason, tuple(dict.fromkeys(torn)))


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


def _first_torn(place: Place, base: int, versions: Sequence[int]) -> tuple[int | None, str]:
    """The first entry after `base` that is not whole, and what is wrong with it."""
    for version in range(base + 1, max(versions, default=base) + 1):
        try:
            if read_entry(place, version) is None:
                return version, "it is missing"
        except TornEntry as error:
            return version, str(error)
    return None, ""


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
