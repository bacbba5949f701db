"""Check a store's log for damage by a power loss, and for changes of rows by other tools.

A commit of this package records how far its client had checked for changes by other tools, so
usually only the newest entry is parsed. But to verify checksums, this module reads every entry that
Delta reads: those after the last checkpoint, and later each new one. The checksum of the checkpoint
is in `_delta_log/_last_checkpoint`.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError

from pyspark_timestream.core.checkpoint import is_instant
from pyspark_tseries.errors import UnusableStore, damage_error
from pyspark_tseries.storage.data_files import outside_file_error
from pyspark_tseries.storage.location import LOG_FOLDER, Location, is_inside_store, list_directories
from pyspark_tseries.storage.snapshot import head_path, unreadable_head_error
from pyspark_tseries.store.checkpoints import LAST_CHECKPOINT, LastCheckpoint, read_last_checkpoint
from pyspark_tseries.store.log_entries import (
    Entry,
    NewEntry,
    TornEntry,
    checkpoint_path,
    entry_path,
    has_wrong_checksum,
    parse_entry,
)

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:.+\.)?(?:parquet|json)")
"""Other tools' checkpoints may have several parts, or other names."""

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of an Arrow stream, and so of a head file."""

_LOG_FILE: Final = re.compile(r"(\d{20})\.(?:json|checkpoint[^/]*\.parquet)")

HEAD_TRANSACTION: Final = "tseries:head"
"""The version of this transaction is the id of the current head."""

MAX_UNSYNCED_ENTRIES: Final = 64
"""Search up to this many entries for unsynced files; if there are more, sync all files."""

FRESH_FILES_S: Final = 600.0
"""Maintenance removes no file of a coming commit within this time of a refresh of the log."""

MAX_SEARCHED_ENTRIES: Final = 100
"""If a tool does not say which version it had read, search this many entries before its own for
removals of the files that it replaces."""


def read_entry(location: Location, version: int) -> Entry | None:
    """Return the log's entry `version`, None if it was removed; raise TornEntry or OSError."""
    try:
        return parse_entry(version, location.read_whole(entry_path(location, version)))
    except FileNotFoundError:
        return None


def read_whole_entry(location: Location, version: int) -> Entry | None:
    """Return the log's entry `version`; None if it was removed or is torn."""
    try:
        return read_entry(location, version)
    except TornEntry:
        return None


def read_plain_entry(location: Location, version: int) -> Entry | None:
    """Return an entry if it is whole, of this package, and only about files; else None."""
    entry = read_whole_entry(location, version)
    if entry is None or entry.own is None or entry.changes_table:
        return None
    return entry if all(map(is_inside_store, entry.added)) else None


def check_checksums(location: Location, first: int, last: int) -> None:
    """Check that the entries from `first` to `last` of a local log are unchanged.

    Raises:
        UnusableStore: an entry is not; the error names it.
        OSError: an entry cannot be read.
    """
    for version in range(first, last + 1):
        try:
            with open(entry_path(location, version), "rb") as file:
                content = file.read()
            if has_wrong_checksum(content) is not False:  # It is wrong, or missing: another tool's.
                parse_entry(version, content)
        except FileNotFoundError:
            continue  # Maintenance removed it after Delta had read it.
        except TornEntry as error:
            raise _torn_entry_error(location, version, str(error)) from None


def check_log_at(location: Location, version: int) -> None:
    """Check what Delta reads to open `version` of a local log: a checkpoint and later entries.

    Raises:
        UnusableStore: one is not as it was written; the error names it.
        OSError: one cannot be read.
    """
    recorded = read_last_checkpoint(location)
    base = recorded.version
    path = checkpoint_path(location, base)
    if base > version or not os.path.exists(path):
        checkpoints = [
            int(name[:20]) for name in _log_names(location) if _CHECKPOINT.fullmatch(name)
        ]
        base = max((number for number in checkpoints if number <= version), default=-1)
        path = checkpoint_path(location, base)
    if base in recorded.checksums and os.path.exists(path) and not _is_as_recorded(path, recorded):
        raise _torn_error(location, "checkpoint", path, "it cannot be read")
    check_checksums(location, base + 1, version)


def _is_as_recorded(path: str, recorded: LastCheckpoint) -> bool:
    """Return False if a checkpoint differs from its recorded checksum; True if it has none."""
    name = os.path.basename(path)
    noted = recorded.checksums.get(int(name[:20]))
    if noted is None or name[20:] != ".checkpoint.parquet":
        return True
    with open(path, "rb") as file:
        return zlib.crc32(file.read()) == noted


def check_entries(location: Location, newest: int, checked: int) -> list[Entry]:
    """Return the unchecked entries after `checked` and up to `newest`, ascending by version.

    Raises:
        UnusableStore: an entry is torn, or names a file outside of the store; or another tool
            changed rows, or may have changed some.
        OSError: an entry cannot be read.
    """
    entries, gone = unchecked_entries(location, newest, checked)
    for entry in entries:
        for path in entry.added:
            if not is_inside_store(path):
                raise outside_file_error(location, path)
    if gone is not None:
        raise unknown_changes_error(location, gone, newest)
    change = find_foreign_change(entries)
    if change is not None:
        raise _foreign_change_error(location, change)
    return entries


def unchecked_entries(
    location: Location, newest: int, checked: int
) -> tuple[list[Entry], int | None]:
    """Return the unchecked entries after `checked`, ascending by version.

    Returns:
        The entries; and the newest unchecked version that the log does not contain any more,
        usually None.

    Raises:
        UnusableStore: an entry is torn.
        OSError: an entry cannot be read.
    """
    entries: list[Entry] = []
    version = newest
    gone = None
    while version > checked:
        try:
            entry = read_entry(location, version)
        except TornEntry as error:
            raise _torn_entry_error(location, version, str(error)) from None
        if entry is None:
            gone = version
            break
        entries.append(entry)
        checked = max(checked, entry.checked)
        version -= 1
    return [_find_doubled_rows(location, entry) for entry in reversed(entries)], gone


def _find_doubled_rows(location: Location, entry: Entry) -> Entry:
    """Return an entry of another tool without the files that were gone before it removed them.

    An OPTIMIZE of delta-rs commits although another client has replaced its files since it read the
    log. Their rows are then in the table twice, so it changes rows. If the tool does not say which
    version it had read, the entries before its own are searched, MAX_SEARCHED_ENTRIES of them, and
    none of them may have removed a file that it removes.
    """
    if entry.own is not None or not entry.removed:
        return entry
    since = entry.read_version
    if since is None:
        # Without a new file no row is there twice, even if a file is removed once more.
        since = entry.version - 1 - (MAX_SEARCHED_ENTRIES if entry.added else 0)
    gone: set[str] = set()
    for version in range(max(since + 1, 0), entry.version):
        between = read_whole_entry(location, version)
        if between is not None:
            gone = (gone | between.removed.keys()) - between.added.keys()
    removed = {path: action for path, action in entry.removed.items() if path not in gone}
    if len(removed) == len(entry.removed):
        return entry
    return replace(entry, removed=removed, changes_rows=True)


def unknown_changes_error(location: Location, version: int, newest: int) -> UnusableStore:
    """Return the error of a log without its unchecked entry `version`, which was removed."""
    return damage_error(
        "unknown changes",
        location.root,
        f"store '{location.root}': other tools made the versions up to {newest} of its log, and "
        f"version {version} is gone, so nobody knows whether they changed rows",
    )


class _TableState(NamedTuple):
    """The files added and removed since the first examined entry."""

    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A change of rows by another tool that was not undone.

    Attributes:
        first: the first entry of the change.
        last: the last entry that another tool made.
        sound: the version of the last sound state.
        followed: True if commits of this package came after `first`.
        missing: the paths of files of the sound state that the table lacks.
        extra: the paths of files of the table that the sound state lacks.
    """

    first: Entry
    last: Entry
    sound: int
    followed: bool
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def find_foreign_change(entries: Iterable[Entry]) -> ForeignChange | None:
    """Return the change of rows that other tools have made in `entries`; None if there is none.

    A state of the table is the set of its files. It is *sound* if it comes from a sound one by a
    commit of this package or by one that changes no rows (OPTIMIZE, z-order, VACUUM), or if a
    RESTORE returned to a sound one. A commit of this package on an unsound state leaves it unsound.

    `sound` has the states that a RESTORE may return to, each with its version. A commit of this
    package moves all of them on, with their versions: undoing an earlier change keeps the commit.

        1  ours, adds a                {a}: 1
        2  OPTIMIZE, replaces a by b   {a}: 1, {b}: 2
        3  DELETE, replaces b by c     {a}: 1, {b}: 2, and the state is {c}: the first change
        4  ours, adds d                {a, d}: 1, {b, d}: 2, and the state is {c, d}: followed
        5  replaces c by b             {a, d}: 1, {b, d}: 5, and the state is {b, d}: no change left

    Args:
        entries: the entries, ascending by version; the state before the first one is sound.
    """
    state = _TableState()
    sound: dict[_TableState, int] = {}
    first_change = last_foreign = None
    followed = False
    for entry in entries:
        sound = sound or {state: entry.version - 1}
        next_state = _apply_entry(state, entry)
        if entry.own is not None:
            sound = {_apply_entry(files, entry): version for files, version in sound.items()}
            followed = followed or first_change is not None
        else:
            last_foreign = entry
            if state in sound and not entry.changes_rows:
                sound[next_state] = entry.version
        state = next_state
        if state in sound:
            sound[state] = entry.version
            first_change, followed = None, False
        else:
            first_change = first_change or entry
    if first_change is None or last_foreign is None:
        return None
    last_sound = max(sound, key=sound.__getitem__)
    missing = (last_sound.added - state.added) | (state.removed - last_sound.removed)
    extra = (state.added - last_sound.added) | (last_sound.removed - state.removed)
    files = tuple(sorted(missing)), tuple(sorted(extra))
    return ForeignChange(first_change, last_foreign, sound[last_sound], followed, *files)


def _apply_entry(state: _TableState, entry: Entry) -> _TableState:
    gone, new = frozenset(entry.removed), frozenset(entry.added)
    added = state.added - gone
    removed = state.removed | (gone - state.added)
    return _TableState(added | (new - removed), removed - new)


def _foreign_change_error(location: Location, change: ForeignChange) -> UnusableStore:
    entry, root = change.first, location.root
    error = damage_error(
        "foreign change",
        root,
        f"store '{root}': version {entry.version} of its log is {entry.title} "
        f"by '{entry.engine}' that changes rows: {len(change.missing)} of its files are missing, "
        f"and {len(change.extra)} are not of this package",
    )
    if change.followed:
        return error
    restore = f"deltalake.DeltaTable('{location.uri}').restore({change.sound})"
    return error.with_next_step(f"{error.next_step}, or with {restore}")


def find_log_damage(location: Location) -> UnusableStore | None:
    """Return the error of a torn log on a local path; None if it is whole, or missing.

    Read the newest checkpoint and the entries after it.
    """
    newest = newest_version(location)
    reach = read_readable_log(location, newest)
    if 0 <= reach.last < newest:
        return _torn_entry_error(location, reach.last + 1, reach.reason)
    # If no entry can be read, this is not a store, unless only its last checkpoint is torn.
    if not reach.torn:
        return None
    path = location.file(LOG_FOLDER, reach.torn[0])
    return _torn_error(location, "checkpoint", path, "it cannot be read")


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """The readable part of a log.

    `last` is the last version with a known state, -1 for none; `reason` is the damage of the next
    entry; `torn` has the names of torn checkpoints, or of a file that names one; `base` is the
    version of the last whole checkpoint, -1 for none.
    """

    last: int
    reason: str
    torn: tuple[str, ...]
    base: int


def newest_version(location: Location) -> int:
    """Return the highest version in the log of a store on a local path; -1 for none."""
    names = _log_names(location)
    return max((int(name[:20]) for name in names if name[:20].isdigit()), default=-1)


def read_readable_log(location: Location, upto: int) -> ReadableLog:
    """Return the readable part of a local store's log, up to the version `upto`.

    Read entries from the last whole checkpoint on, or from the first entry.
    """
    names = _log_names(location)
    torn = []
    base = -1
    recorded = read_last_checkpoint(location)
    for name in reversed(names):
        if _CHECKPOINT.fullmatch(name) and int(name[:20]) <= upto:
            if _is_whole_checkpoint(location.file(LOG_FOLDER, name), recorded):
                base = int(name[:20])
                break
            torn.append(name)
    checkpoints = {
        int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name) and name not in torn
    }
    if recorded.damaged or not checkpoints.issuperset({recorded.version} - {-1}):
        torn.append(LAST_CHECKPOINT)
    for version in range(base + 1, upto + 1):
        reason = entry_damage(location, version)
        if reason is not None:
            return ReadableLog(version - 1, reason, tuple(torn), base)
    return ReadableLog(upto, "", tuple(torn), base)


def entry_damage(location: Location, version: int) -> str | None:
    """Return the damage of the log's entry `version`; None if it is whole."""
    try:
        return "it is missing" if read_entry(location, version) is None else None
    except TornEntry as error:
        return str(error)


def _log_names(location: Location) -> list[str]:
    log = location.file(LOG_FOLDER)
    numbered = (_ENTRY, _CHECKPOINT)
    names = os.listdir(log) if os.path.isdir(log) else []
    return sorted(name for name in names if any(pattern.fullmatch(name) for pattern in numbered))


def _is_whole_checkpoint(path: str, recorded: LastCheckpoint) -> bool:
    if not path.endswith(".parquet"):
        return True
    try:
        if not _is_as_recorded(path, recorded):
            return False
        pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, PermissionError):
            raise
        return False
    return True


def _torn_entry_error(location: Location, version: int, reason: str) -> UnusableStore:
    return _torn_error(location, "log entry", entry_path(location, version), reason)


def _torn_error(location: Location, kind: str, path: str, reason: str) -> UnusableStore:
    return damage_error(
        kind,
        location.root,
        f"the {kind} '{path}' of the store '{location.root}' is not whole ({reason}), as after a "
        "power loss",
        path,
    )


def check_undamaged(
    location: Location,
    newest: int,
    index: str | None,
    live: Callable[[], Iterable[tuple[str, int]]],
) -> None:
    """Refuse a store on a local path if a power loss has torn a file.

    Check the newest entry, its files and the head file `index`; if these were not synced, check all
    files in use. `live` returns their paths and sizes.

    Raises:
        UnusableStore: a file is torn; the error names it.
        OSError: a file cannot be read.
    """
    entry = read_whole_entry(location, newest)
    files: Iterable[tuple[str, int | None]]
    if entry is not None and entry.synced:
        files = ((path, int(action["size"])) for path, action in entry.added.items())
    else:
        damage = find_log_damage(location)
        if damage is not None:
            raise damage
        files = live()
    reason = None if index is None else _torn_reason(index, None)
    if index is not None and reason is not None:
        raise unreadable_head_error(location, index, reason)
    for path, reason in torn_files(location, files):
        raise _torn_error(location, "file", path, reason)


def torn_files(
    location: Location, files: Iterable[tuple[str, int | None]]
) -> Iterator[tuple[str, str]]:
    """Yield the path and the damage of each torn file among `files`, which are paths and sizes.

    Raises:
        UnusableStore: a file lies outside of the store.
    """
    for path, size in files:
        if not is_inside_store(path):
            raise outside_file_error(location, path)
        reason = _torn_reason(location.file(path), size)
        if reason is not None:
            yield path, reason


def _torn_reason(path: str, size: int | None) -> str | None:
    """Return the damage of a file, from its size and its last bytes; None if it seems whole."""
    ending = b"PAR1" if path.endswith(".parquet") else _END_OF_STREAM
    try:
        with open(path, "rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - len(ending)))
            end = file.read()
    except FileNotFoundError:
        return "it is missing"
    if size is not None and length != size:
        return f"it has {length} bytes instead of the {size} in the log"
    if end == ending:
        return None
    return "it breaks off" if length else "it is empty"


def require_files(
    location: Location, new_entry: NewEntry, files: Sequence[str], age_s: float
) -> None:
    """Raise CommitFailedError if a file of a coming commit is gone; a sync finds that, too.

    Maintenance removes a head after an hour and an event file after a day if no commit has named
    it by then, as if its writer had been killed: this process may have stood still. `age_s` is the
    time since the last refresh.
    """
    # Asking takes an object store as long as writing a small file. Appends write their files after
    # the refresh; commits that replace files write theirs before it, and are infrequent.
    if age_s > FRESH_FILES_S or new_entry.files("remove"):
        for path in files:
            if location.identity(path) is None:
                raise CommitFailedError(f"'{path}' was removed before a commit named it")


def unsynced_files(
    location: Location, newest: int, synced: int, live: Callable[[], Iterable[str]]
) -> list[str]:
    """Return the paths to sync so that a local log up to `newest` survives a power loss.

    All entries up to `synced` survive one; `live` returns the paths of the store's files.
    """
    files: list[str] = []
    for version in range(newest, synced, -1):
        entry = None if newest - version > MAX_UNSYNCED_ENTRIES else read_entry(location, version)
        if entry is None:
            # It is unknown whether the older entries were synced, so sync everything, once.
            files = [location.file(path) for path in live()]
            for directory in (LOG_FOLDER, "_tseries/head"):
                files += (path for path, _ in location.list_files(location.file(directory)))
            break
        if entry.synced:
            break
        files += [entry_path(location, version), *map(location.file, entry.added)]
        files += [
            head_path(location, index)
            for name, index in entry.transactions.items()
            if name == HEAD_TRANSACTION
        ]
    present = [
        path
        for path in files
        if is_inside_store(os.path.relpath(path, location.root)) and os.path.isfile(path)
    ]
    return [*present, *list_directories(location.root, present)]


@dataclass(frozen=True, slots=True)
class LogFile:
    """An entry or a checkpoint of the log."""

    version: int
    full: str
    modified_ns: int

    @property
    def name(self) -> str:
        """The name of the file in the directory of the log."""
        return os.path.basename(self.full)

    @property
    def is_plain(self) -> bool:
        """Whether this package writes such names; others' checkpoints may have several parts."""
        return self.full.endswith((".json", ".checkpoint.parquet"))


def list_log_files(location: Location) -> list[LogFile]:
    """Return the entries and checkpoints of the log, ascending by version."""
    files = []
    for full, modified_ns in location.list_files(location.file(LOG_FOLDER)):
        name = _LOG_FILE.fullmatch(os.path.basename(full))
        if name is not None:
            files.append(LogFile(int(name[1]), full, modified_ns))
    return sorted(files, key=lambda file: (file.version, file.full))


def read_commit_us(location: Location, version: int) -> int | None:
    """Return the time of the entry by its writer's wall clock, from its `commitInfo`.

    Return None if the entry is torn, or has no time.

    Raises:
        OSError: it cannot be read; FileNotFoundError: it was removed.
    """
    lines = location.read_whole(entry_path(location, version)).splitlines()
    try:
        info = next(json.loads(line) for line in lines if b'"commitInfo"' in line)
        told_ms = info["commitInfo"]["timestamp"]
    except (KeyError, RecursionError, StopIteration, TypeError, ValueError):
        return None
    return told_ms * 1_000 if is_instant(told_ms) else None


def read_entries_back(location: Location, newest: int) -> Iterator[tuple[int, Entry | None]]:
    """Yield the log's entries from `newest` back to the first removed one; None for a torn one.

    Raises:
        OSError: an entry cannot be read.
    """
    for version in range(newest, -1, -1):
        try:
            entry = read_entry(location, version)
        except TornEntry:
            yield version, None
            continue
        if entry is None:
            return
        yield version, entry
