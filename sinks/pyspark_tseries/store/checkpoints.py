"""Write the checkpoints of a store's log, and copy the end of the log, in which Delta writes them.

Checkpoints on a local path are written so that they survive a power loss. A checkpoint only saves
readers time, so the commit that makes one due does not wait for it: a thread of the process writes
it (`checkpoint_later`), and the process ends after it.

Delta writes checkpoints, and some entries, into a *shadow*, a copy of the end of the log; then they
are moved, or written like any entry. For a checkpoint the copy has all entries since the last one
as a single entry, because Delta takes three times as long to read them one by one.

`_last_checkpoint` gets an object `tseries` with the checksums of the file and of the checkpoints.
Another tool that writes a checkpoint drops this object; then the checksums are unknown until this
package writes a checkpoint again.
"""

import contextlib
import functools
import glob
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tseries.storage.location import LOG_FOLDER, Location, exclusive, sync
from pyspark_tseries.store.log_entries import (
    CHECKSUM_KEY,
    INFO_KEY,
    NO_CHECKSUM,
    checkpoint_path,
    entry_path,
    has_wrong_checksum,
    seal,
)

LAST_CHECKPOINT: Final = "_last_checkpoint"
"""The name of the file in which Delta names the last checkpoint."""


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The contents of `_last_checkpoint`.

    Attributes:
        version: the version of the last checkpoint; -1 if the file is missing or damaged.
        checksums: the checksums of checkpoints, by version.
        damaged: True if the file exists, but differs from the written one.
    """

    version: int = -1
    checksums: Mapping[int, int] = field(default_factory=dict)
    damaged: bool = False


def read_last_checkpoint(location: Location) -> LastCheckpoint:
    """Read the `_last_checkpoint` of a store.

    Raises:
        OSError: the file exists, but cannot be read.
    """
    path = location.file(LOG_FOLDER, LAST_CHECKPOINT)
    try:
        # On a local path avoid Arrow, because every opening of a store reads this small file.
        with open(path, "rb") if location.is_local else location.read(path) as file:
            content = file.read()
    except (FileNotFoundError, IsADirectoryError):
        return LastCheckpoint()
    return _parse_last_checkpoint(content)


def _parse_last_checkpoint(content: bytes) -> LastCheckpoint:
    if has_wrong_checksum(content):
        return LastCheckpoint(damaged=True)
    try:
        fields = json.loads(content)
        version = fields["version"]
        own_info = fields.get(INFO_KEY, {})
        checksums = {
            int(number): int(crc, 16) for number, crc in own_info.get("checkpoints", {}).items()
        }
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            return LastCheckpoint(damaged=True)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return LastCheckpoint(damaged=True)
    return LastCheckpoint(version, checksums)


def format_last_checkpoint(content: bytes, checksums: Mapping[int, int]) -> bytes:
    """Return `content`, a `_last_checkpoint` from Delta, with checksums of checkpoints."""
    fields: dict[str, Any] = json.loads(content)
    checkpoints = {str(version): f"{crc:08x}" for version, crc in sorted(checksums.items())}
    # `seal` looks for the checksum after `lines`, as in a log entry.
    fields[INFO_KEY] = {"checkpoints": checkpoints, "lines": 1, CHECKSUM_KEY: NO_CHECKSUM}
    return seal(json.dumps(fields, separators=(",", ":")).encode())


UNREADABLE: Final = (DeltaError, OSError, ValueError)
"""Delta's errors for a log that it cannot read: ValueError if an action lacks a field."""

CHECKPOINT_LOCK: Final = "checkpoint.lock"
"""Hold this lock to add a checkpoint beside commits, or to remove the log before one, so that no
added checkpoint is older than the removed log."""

MAINTENANCE_LOCK: Final = "maintenance.lock"
"""Hold this lock to maintain the store; one process of a host does at a time. Meanwhile writers
leave checkpoints to it, because a checkpoint beside commits makes a few of them wait."""

_INTERVALS_LEFT: Final = 4
"""After this many intervals without a checkpoint writers write one, maintained or not."""

_NUMBERED: Final = re.compile(r"(\d{20})\.(json|checkpoint.*)")


def capture_entry(
    location: Location, version: int, change: Callable[[DeltaTable], object]
) -> bytes:
    """Return the entry that `change` would add after `version`; do not change the log."""
    with shadow_log(location, version) as copy:
        change(DeltaTable(pathlib.Path(copy).as_uri()))
        with open(os.path.join(copy, LOG_FOLDER, f"{version + 1:020d}.json"), "rb") as file:
            return file.read()


def write_checkpoint(location: Location, version: int) -> None:
    """Write a checkpoint of `version`; sync it before it becomes visible.

    If another store is put at the path meanwhile, such as an older copy of this one, it gets none.
    """
    log = location.file(LOG_FOLDER)
    entry = location.identity(entry_path(location, version))
    # The shadow is in the store: it goes, or moves, with the store's directory.
    with shadow_log(location, version, elsewhere=False, merged=True) as copy:
        copied_log = os.path.join(copy, LOG_FOLDER)
        copied = set(os.listdir(copied_log))  # Maintenance may remove these from the log meanwhile.
        DeltaTable(pathlib.Path(copy).as_uri()).create_checkpoint()
        names = [name for name in os.listdir(copied_log) if name not in copied]
        checkpoint_files = [name for name in names if _NUMBERED.fullmatch(name)]
        _mark_checkpoint(location, copied_log, checkpoint_files)
        sync(os.path.join(copied_log, name) for name in [*checkpoint_files, LAST_CHECKPOINT])
        if location.identity(entry_path(location, version)) != entry:
            return
        for names in (checkpoint_files, [LAST_CHECKPOINT]):
            for name in names:
                os.replace(os.path.join(copied_log, name), os.path.join(log, name))
            sync([log])


def checkpoint_later(location: Location, version: int, interval: int) -> None:
    """Call `write_due_checkpoint` in another thread, unless a process maintains the store.

    The entry `version` is in the log.
    """
    _checkpointer(os.getpid()).add(location, version, interval)


def write_due_checkpoint(
    location: Location, version: int, interval: int, entry: tuple[int, int] | None = None
) -> None:
    """Write a checkpoint of `version` if the last one is `interval` entries before it.

    Write none if another process is writing one, or if the entry `version` does not have the
    identity `entry` (None: any), because another store is at the path. Ignore errors: no entry
    depends on a checkpoint, and the next one is written as if this one had not been due.
    """
    with contextlib.suppress(*UNREADABLE), exclusive(location, CHECKPOINT_LOCK) as lock:
        # The store may have been removed meanwhile, and another one may be at its path.
        is_there = entry is None or location.identity(entry_path(location, version)) == entry
        if lock is not None and is_there and _count_overdue(location, version) >= interval:
            write_checkpoint(location, version)


def _count_overdue(location: Location, version: int) -> float:
    """Return the entries from the last checkpoint to `version`; infinity if that is missing."""
    last_version = read_last_checkpoint(location).version
    is_missing = last_version >= 0 and not has_checkpoint(location, last_version)
    return math.inf if is_missing else version - last_version


def wait_for_checkpoints() -> None:
    """Return once this process has written all its due checkpoints."""
    _checkpointer(os.getpid()).wait()


class _DueCheckpoint(NamedTuple):
    """The arguments of `write_due_checkpoint` for a store."""

    version: int
    interval: int
    entry: tuple[int, int] | None


class _Checkpointer:
    """Writes the checkpoints of this process's stores, one after the other, in one thread.

    If a store's next checkpoint is due before its last one was begun, only the next is written. So
    the interpreter, which waits for the thread, waits for at most one checkpoint of each store.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tseries-checkpoint")
        self._due: dict[Location, _DueCheckpoint] = {}

    def add(self, location: Location, version: int, interval: int) -> None:
        entry = location.identity(entry_path(location, version))
        self._due[location] = _DueCheckpoint(version, interval, entry)
        try:
            self._pool.submit(self._write_next, location)
        except RuntimeError:  # No thread is left, or the interpreter is ending.
            self._write_next(location)

    def wait(self) -> None:
        with contextlib.suppress(RuntimeError):  # The interpreter is ending.
            self._pool.submit(int).result()

    def _write_next(self, location: Location) -> None:
        due = self._due.pop(location, None)
        if due is None:
            return  # An earlier call has written it.
        with contextlib.suppress(*UNREADABLE):
            if _is_maintained(location):
                overdue = _count_overdue(location, due.version)
                if overdue < _INTERVALS_LEFT * due.interval:
                    return  # Maintenance writes it.
            write_due_checkpoint(location, *due)


def _is_maintained(location: Location) -> bool:
    """Return whether a process of this host is maintaining the store, which is on a local path."""
    if os.path.exists(location.file("_tseries", MAINTENANCE_LOCK)):
        with contextlib.suppress(OSError), exclusive(location, MAINTENANCE_LOCK) as lock:
            return lock is None
    return False


@functools.lru_cache(maxsize=1)
def _checkpointer(pid: int) -> _Checkpointer:
    """Return the checkpointer of this process, `pid`: a fork lacks its parent's thread."""
    return _Checkpointer()


def has_checkpoint(location: Location, version: int) -> bool:
    """Return whether there is a checkpoint of `version`, in one part or several."""
    pattern = os.path.join(glob.escape(location.file(LOG_FOLDER)), f"{version:020d}.checkpoint*")
    return bool(glob.glob(pattern))


def _mark_checkpoint(location: Location, directory: str, checkpoint_files: Sequence[str]) -> None:
    """Record the checksums of new checkpoints, `checkpoint_files` in `directory`."""
    checksums = {
        version: crc
        for version, crc in read_last_checkpoint(location).checksums.items()
        if os.path.exists(checkpoint_path(location, version))
    }
    for name in checkpoint_files:
        with open(os.path.join(directory, name), "rb") as file:
            checksums[int(name[:20])] = zlib.crc32(file.read())
    with open(os.path.join(directory, LAST_CHECKPOINT), "r+b") as file:
        content = format_last_checkpoint(file.read(), checksums)
        file.seek(0)
        file.write(content)


def sync_checkpoint(location: Location) -> None:
    """Sync the last checkpoint of a local store, before maintenance removes entries before it."""
    if location.is_local:
        log = location.file(LOG_FOLDER)
        numbered = [name for name in os.listdir(log) if _NUMBERED.fullmatch(name)]
        checkpoint_names = sorted(name for name in numbered if not name.endswith(".json"))
        last_names = [name for name in checkpoint_names if name[:20] == checkpoint_names[-1][:20]]
        sync([*(os.path.join(log, name) for name in last_names), log])


def remove_shadows(location: Location, before_us: int) -> None:
    """Remove shadows that killed clients left before `before_us`."""
    staging = location.file("_tseries", "staging")
    if location.is_local and os.path.isdir(staging):
        for entry in os.scandir(staging):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir() and entry.stat().st_mtime_ns < before_us * 1000:
                    shutil.rmtree(entry.path, ignore_errors=True)


@contextlib.contextmanager
def shadow_log(
    location: Location,
    version: int,
    without: Collection[str] = (),
    *,
    elsewhere: bool = True,
    merged: bool = False,
) -> Iterator[str]:
    """Yield a directory with a copy of the log from its last checkpoint to `version`.

    Leave out log files with the names `without`. If the store cannot be written, the directory is
    outside of it, unless `elsewhere` is False. With `merged` the copy has the same table at
    `version`, but its entries may be one.
    """
    name = f"{secrets.token_hex(8)}.shadow"
    copy = location.file("_tseries", "staging", name)
    try:
        location.make_directories(copy)
    except OSError:
        # The store is read-only, or missing; if it is missing, listing its log fails below.
        if not elsewhere:
            raise
        copy = os.path.join(tempfile.gettempdir(), f"tseries-{name}")
        os.makedirs(copy)
    try:
        if not (merged and _merge_log(location, version, copy)):
            copy_log(location, version, copy, without)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def copy_log(location: Location, version: int, to: str, without: Collection[str] = ()) -> None:
    """Copy the log as `shadow_log` does, into the directory `to`."""
    log = os.path.join(to, LOG_FOLDER)
    os.makedirs(log)
    names = set(os.listdir(location.file(LOG_FOLDER))).difference(without)
    for name in log_tail(names, version):
        # A link would change the entry's change time, which says since when it is visible.
        copy = shutil.copyfile if name.endswith(".json") else location.copy
        copy(location.file(LOG_FOLDER, name), os.path.join(log, name))


def _merge_log(location: Location, version: int, to: str) -> bool:
    """Put a log of one checkpoint and one entry into the directory `to`; return False if it cannot.

    The checkpoint is the last one before `version`, renamed to the number before `version`: its
    content has no number.
    """
    log = location.file(LOG_FOLDER)
    names = log_tail(os.listdir(log), version)
    checkpoints = [name for name in names if not name.endswith(".json")]
    if len(checkpoints) != 1 or checkpoints[0][20:] != ".checkpoint.parquet":
        return False
    entries = []
    for number in range(int(checkpoints[0][:20]) + 1, version + 1):
        try:
            with open(entry_path(location, number), "rb") as file:
                entries.append(file.read())
        except FileNotFoundError:
            return False
    merged = merge_entries(entries)
    if not merged:
        return False
    copied = os.path.join(to, LOG_FOLDER)
    os.makedirs(copied)
    with open(os.path.join(copied, f"{version:020d}.json"), "wb") as file:
        file.write(merged)
    checkpoint = os.path.join(copied, f"{version - 1:020d}.checkpoint.parquet")
    location.copy(os.path.join(log, checkpoints[0]), checkpoint)
    return True


def merge_entries(entries: Iterable[bytes]) -> bytes | None:
    """Return one entry with the effect of `entries`, ascending; None if that is not certain.

    The last action on a file, a transaction, the columns or the protocol counts.
    """
    last_lines: dict[tuple[str, str], bytes] = {}
    for entry in entries:
        entry_lines: dict[tuple[str, str], bytes] = {}
        for line in entry.splitlines():
            subject = _subject_of(line)
            if subject is None or subject in entry_lines:
                return None
            entry_lines[subject] = line
        last_lines |= entry_lines
    return b"".join(line + b"\n" for line in last_lines.values())


def _subject_of(line: bytes) -> tuple[str, str] | None:
    """Return the subject of a line of an entry; None if it may not replace an earlier line."""
    try:
        ((action, fields),) = json.loads(line).items()
        if action in ("add", "remove"):
            # Two deletion vectors of one file are two subjects.
            return None if fields.get("deletionVector") else ("file", str(fields["path"]))
        if action == "txn":
            return action, str(fields["appId"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (action, "") if action in ("commitInfo", "metaData", "protocol") else None


def log_tail(names: Iterable[str], version: int) -> list[str]:
    """Return names: the last checkpoint up to `version`, and the entries from it to `version`."""
    # Compare text first: a log has a thousand names, most of them before the last checkpoint.
    end = f"{version + 1:020d}"
    names = list(names)
    checkpoints = [name for name in names if ".checkpoint" in name and name < end]
    last = max((name[:20] for name in checkpoints if _NUMBERED.fullmatch(name)), default="")
    return [
        name
        for name in names
        if last <= name < end and (match := _NUMBERED.fullmatch(name))
        if match[2] == "json" or match[1] == last
    ]
