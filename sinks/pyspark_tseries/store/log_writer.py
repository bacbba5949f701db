"""Write checkpoints on a local path, so that they survive a power loss.

A checkpoint only saves readers time, so the commit that makes one due does not wait for it: a
thread of the process writes it (`checkpoint_later`), and the process ends after it.

Delta writes checkpoints, and some entries, into a *shadow*, a copy of the end of the log; then they
are moved, or written as any entry is. For a checkpoint the copy has all entries since the last one
as a single entry: Delta takes three times as long to read them apart.

`_last_checkpoint` gets an object `tseries` with the checksums of the file and of the checkpoints.
Another tool that writes a checkpoint drops this object; then the checksums are unknown until this
package writes a checkpoint again.
"""

import contextlib
import functools
import glob
import json
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tseries.storage.location import Location, exclusive, sync
from pyspark_tseries.store.log_entries import (
    LAST_CHECKPOINT,
    entry_path,
    format_last_checkpoint,
    read_last_checkpoint,
)

UNREADABLE: Final = (DeltaError, OSError, ValueError)
"""What Delta raises for a log that it cannot read: ValueError if an action lacks a field."""

_LOG_DIRECTORY: Final = "_delta_log"
CHECKPOINT_LOCK: Final = "checkpoint.lock"
"""Who adds a checkpoint beside commits, or removes the log before one, holds this lock: so none is
added that is older than what was removed."""

_NUMBERED: Final = re.compile(r"(\d{20})\.(json|checkpoint.*)")


def capture_entry(
    location: Location, version: int, change: Callable[[DeltaTable], object]
) -> bytes:
    """Return the entry that `change` would add after `version`; do not change the log."""
    with shadow_log(location, version) as copy:
        change(DeltaTable(pathlib.Path(copy).as_uri()))
        with open(os.path.join(copy, _LOG_DIRECTORY, f"{version + 1:020d}.json"), "rb") as file:
            return file.read()


def write_checkpoint(location: Location, version: int) -> None:
    """Write a checkpoint of `version`; sync it before it becomes visible.

    If another store is put at the path meanwhile, such as an older copy of this one, it gets none.
    """
    log = location.file(_LOG_DIRECTORY)
    entry = location.identity(entry_path(location, version))
    # The shadow is in the store: it goes, or moves, with the store's directory.
    with shadow_log(location, version, elsewhere=False, merged=True) as copy:
        copied_log = os.path.join(copy, _LOG_DIRECTORY)
        copied = set(os.listdir(copied_log))  # Maintenance may remove these from the log meanwhile.
        DeltaTable(pathlib.Path(copy).as_uri()).create_checkpoint()
        names = [name for name in os.listdir(copied_log) if name not in copied]
        parts = [name for name in names if _NUMBERED.fullmatch(name)]
        _mark_checkpoint(location, copied_log, parts)
        sync(os.path.join(copied_log, name) for name in [*parts, LAST_CHECKPOINT])
        if location.identity(entry_path(location, version)) != entry:
            return
        for names in (parts, [LAST_CHECKPOINT]):
            for name in names:
                os.replace(os.path.join(copied_log, name), os.path.join(log, name))
            sync([log])


def checkpoint_later(location: Location, version: int, interval: int) -> None:
    """Write a checkpoint in another thread, if the last one is `interval` entries before `version`.

    The entry `version` is in the log. Errors are left out: the entries are there without it, and
    the next checkpoint is written as if this one had not been due. One process at a time writes
    checkpoints of a store.
    """
    _checkpointer(os.getpid()).add(location, version, interval)


def wait_for_checkpoints() -> None:
    """Return once all checkpoints are written that are due in this process."""
    _checkpointer(os.getpid()).wait()


class _Checkpointer:
    """Writes the checkpoints of this process's stores, one after the other, in one thread.

    If a store's next one is due before its last one was begun, only the next one is written. The
    interpreter waits for the thread when it ends, so at most for one checkpoint of each store.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tseries-checkpoint")
        self._due: dict[Location, tuple[int, int, tuple[int, int] | None]] = {}

    def add(self, location: Location, version: int, interval: int) -> None:
        entry = location.identity(entry_path(location, version))
        self._due[location] = version, interval, entry
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
            return  # It was written together with one that was due earlier.
        version, interval, entry = due
        with contextlib.suppress(*UNREADABLE), exclusive(location, CHECKPOINT_LOCK) as lock:
            last = read_last_checkpoint(location).version
            is_due = version - last >= interval or not has_checkpoint(location, last)
            # The store may have been removed meanwhile, and another one may be at its path.
            is_there = location.identity(entry_path(location, version)) == entry
            if lock is not None and is_due and is_there:
                write_checkpoint(location, version)


@functools.lru_cache(maxsize=1)
def _checkpointer(pid: int) -> _Checkpointer:
    """Return the one of this process, which is `pid`: a fork lacks its parent's thread."""
    return _Checkpointer()


def has_checkpoint(location: Location, version: int) -> bool:
    """Return whether there is a checkpoint of `version`, in one part or several."""
    pattern = os.path.join(
        glob.escape(location.file(_LOG_DIRECTORY)), f"{version:020d}.checkpoint*"
    )
    return bool(glob.glob(pattern))


def _mark_checkpoint(location: Location, directory: str, parts: Sequence[str]) -> None:
    """Record the checksums of new checkpoints, the files `parts` of the directory `made`."""
    known = {
        version: crc
        for version, crc in read_last_checkpoint(location).checksums.items()
        if os.path.exists(location.file(_LOG_DIRECTORY, f"{version:020d}.checkpoint.parquet"))
    }
    for name in parts:
        with open(os.path.join(directory, name), "rb") as file:
            known[int(name[:20])] = zlib.crc32(file.read())
    with open(os.path.join(directory, LAST_CHECKPOINT), "r+b") as file:
        content = format_last_checkpoint(file.read(), known)
        file.seek(0)
        file.write(content)


def sync_checkpoint(location: Location) -> None:
    """Sync the last checkpoint of a local store, before maintenance removes entries before it."""
    if location.is_local:
        log = location.file(_LOG_DIRECTORY)
        numbered = [name for name in os.listdir(log) if _NUMBERED.fullmatch(name)]
        written = sorted(name for name in numbered if not name.endswith(".json"))
        last = [name for name in written if name[:20] == written[-1][:20]]
        sync([*(os.path.join(log, name) for name in last), log])


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
    log = os.path.join(to, _LOG_DIRECTORY)
    os.makedirs(log)
    names = set(os.listdir(location.file(_LOG_DIRECTORY))).difference(without)
    for name in log_tail(names, version):
        # A link would change the entry's change time: the time from which it is visible.
        take = shutil.copyfile if name.endswith(".json") else location.copy
        take(location.file(_LOG_DIRECTORY, name), os.path.join(log, name))


def _merge_log(location: Location, version: int, to: str) -> bool:
    """Put a log of one checkpoint and one entry into the directory `to`; return False if it cannot.

    The checkpoint is the last one before `version`, under the number before it: it does not say of
    which version it is.
    """
    log = location.file(_LOG_DIRECTORY)
    names = log_tail(os.listdir(log), version)
    checkpoints = [name for name in names if not name.endswith(".json")]
    if len(checkpoints) != 1 or not _PLAIN_CHECKPOINT.fullmatch(checkpoints[0]):
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
    copied = os.path.join(to, _LOG_DIRECTORY)
    os.makedirs(copied)
    with open(os.path.join(copied, f"{version:020d}.json"), "wb") as file:
        file.write(merged)
    before = os.path.join(copied, f"{version - 1:020d}.checkpoint.parquet")
    location.copy(os.path.join(log, checkpoints[0]), before)
    return True


_PLAIN_CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.parquet")


def merge_entries(entries: Iterable[bytes]) -> bytes | None:
    """Return one entry that has the effect of `entries`, rising; None if that is not certain.

    Of all actions on a file, a transaction, the columns or the protocol the last one counts.
    """
    last: dict[tuple[str, str], bytes] = {}
    for entry in entries:
        mine: dict[tuple[str, str], bytes] = {}
        for line in entry.splitlines():
            subject = _subject_of(line)
            if subject is None or subject in mine:
                return None
            mine[subject] = line
        last |= mine
    return b"".join(line + b"\n" for line in last.values())


def _subject_of(line: bytes) -> tuple[str, str] | None:
    """Return what a line of an entry is about; None if it may not replace an earlier line."""
    try:
        ((action, said),) = json.loads(line).items()
        if action in ("add", "remove"):
            # Two deletion vectors of one file are two subjects.
            return None if said.get("deletionVector") else ("file", str(said["path"]))
        if action == "txn":
            return action, str(said["appId"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (action, "") if action in ("commitInfo", "metaData", "protocol") else None


def log_tail(names: Iterable[str], version: int) -> list[str]:
    """Return names: the last checkpoint up to `version`, and the entries from it to `version`."""
    numbered = [
        (int(match[1]), match[2], match[0])
        for name in names
        if (match := _NUMBERED.fullmatch(name))
    ]
    checkpoints = [number for number, kind, _ in numbered if kind != "json" and number <= version]
    last = max(checkpoints, default=-1)
    return [
        name
        for number, kind, name in numbered
        if (number == last if kind != "json" else last <= number <= version)
    ]
