"""Write checkpoints on a local path, so that they survive a power loss.

Delta writes checkpoints, and some entries, into a *shadow*, a copy of the end of the log; then they
are moved or published.

`_last_checkpoint` gets an object `tseries` with the checksums of the file and of the checkpoints.
Another tool that writes a checkpoint drops this object; then the checksums are unknown until this
package writes a checkpoint again.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from deltalake import DeltaTable

from pyspark_tseries.storage.location import Location, sync
from pyspark_tseries.store.log_entries import (
    LAST_CHECKPOINT,
    format_last_checkpoint,
    read_last_checkpoint,
)

_LOG_DIRECTORY: Final = "_delta_log"
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
    """Write a checkpoint of `version`; sync it before it becomes visible."""
    log = location.file(_LOG_DIRECTORY)
    with shadow_log(location, version) as copy:
        DeltaTable(pathlib.Path(copy).as_uri()).create_checkpoint()
        made = os.path.join(copy, _LOG_DIRECTORY)
        names = [name for name in os.listdir(made) if not os.path.exists(os.path.join(log, name))]
        parts = [name for name in names if _NUMBERED.fullmatch(name)]
        _mark_checkpoint(location, made, parts)
        sync(os.path.join(made, name) for name in [*parts, LAST_CHECKPOINT])
        for names in (parts, [LAST_CHECKPOINT]):
            for name in names:
                os.replace(os.path.join(made, name), os.path.join(log, name))
            sync([log])


def _mark_checkpoint(location: Location, made: str, parts: Sequence[str]) -> None:
    """Record the checksums of new checkpoints, the files `parts` of the directory `made`."""
    known = {
        version: crc
        for version, crc in read_last_checkpoint(location).checksums.items()
        if os.path.exists(location.file(_LOG_DIRECTORY, f"{version:020d}.checkpoint.parquet"))
    }
    for name in parts:
        with open(os.path.join(made, name), "rb") as file:
            known[int(name[:20])] = zlib.crc32(file.read())
    with open(os.path.join(made, LAST_CHECKPOINT), "r+b") as file:
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
def shadow_log(location: Location, version: int, without: Collection[str] = ()) -> Iterator[str]:
    """Yield a directory with a copy of the log from its last checkpoint to `version`.

    Leave out log files with the names `without`.
    """
    name = f"{secrets.token_hex(8)}.shadow"
    copy = location.file("_tseries", "staging", name)
    try:
        location.make_directories(copy)
    except OSError:
        # The store is read-only, or missing; if it is missing, listing its log fails below.
        copy = os.path.join(tempfile.gettempdir(), f"tseries-{name}")
        os.makedirs(copy)
    try:
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
