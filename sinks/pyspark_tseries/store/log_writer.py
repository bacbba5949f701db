"""Log entries and checkpoints of a store on a local path, written so that no power loss tears them.

An entry is written under another name, synced together with the files that it names, and only then
linked to its own name, which fails where another writer was first. What Delta writes by itself is
written to a copy of the log's end, a *shadow*, and brought over in the same way.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from deltalake import DeltaTable

from pyspark_tseries.storage.durability import directories_of, sync
from pyspark_tseries.storage.location import Place
from pyspark_tseries.store.log_entries import entry_path

__all__ = [
    "entry_written_by",
    "publish",
    "remove_shadows",
    "shadow",
    "sync_checkpoint",
    "write_checkpoint",
]

_LOG: Final = "_delta_log"
_NUMBERED: Final = re.compile(r"(\d{20})\.(json|checkpoint.*)")
_LAST: Final = "_last_checkpoint"


def publish(
    place: Place,
    version: int,
    entry: bytes,
    files: Sequence[str],
    *,
    synced: bool,
    known: set[str],
) -> None:
    """Makes `entry` the log's entry `version`.

    Args:
        place: where the store lies, a local path.
        version: of the entry.
        entry: its lines.
        files: the full paths of all files that the entry depends on.
        synced: whether it and `files` outlive a power loss when this returns. If not, the operating
            system brings them to the disk in its own time.
        known: directories whose own names are known to outlive a power loss; it is added to.

    Raises:
        FileExistsError: there is an entry of this version; nothing was changed.
        OSError: a file could not be written, or is gone.
    """
    log, staging = place.file(_LOG), place.file("_tseries", "staging")
    os.makedirs(staging, exist_ok=True)
    draft = os.path.join(staging, f"{secrets.token_hex(8)}.json")
    try:
        with open(draft, "xb") as file:
            file.write(entry)
        if synced:
            directories = {*directories_of(place.location, [*files, os.path.join(log, "")])}
            new = directories - known
            above = (os.path.dirname(path) for path in new if path != place.location)
            names = [*map(os.path.dirname, files), *new, *above]
            sync([draft, *files, *names])
            known |= directories
        os.link(draft, entry_path(place, version))
        os.remove(draft)  # Only then its time is final, which says since when the entry is seen.
        if synced:
            sync([log])
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(draft)


def entry_written_by(place: Place, version: int, change: Callable[[DeltaTable], object]) -> bytes:
    """The entry that `change` adds to the log that ends with `version`; nothing is added to it.

    Raises:
        DeltaError: whatever Delta raises.
    """
    with shadow(place, version) as copy:
        change(DeltaTable(pathlib.Path(copy).as_uri()))
        with open(os.path.join(copy, _LOG, f"{version + 1:020d}.json"), "rb") as file:
            return file.read()


def write_checkpoint(place: Place, version: int) -> None:
    """Makes a checkpoint of `version`, which outlives a power loss before anybody sees it.

    Raises:
        DeltaError, OSError: it could not be made; the log is as good as before.
    """
    log = place.file(_LOG)
    with shadow(place, version) as copy:
        DeltaTable(pathlib.Path(copy).as_uri()).create_checkpoint()
        made = os.path.join(copy, _LOG)
        names = [name for name in os.listdir(made) if not os.path.exists(os.path.join(log, name))]
        parts = [name for name in names if _NUMBERED.fullmatch(name)]
        sync(os.path.join(made, name) for name in [*parts, _LAST])
        for names in (parts, [_LAST]):
            for name in names:
                os.replace(os.path.join(made, name), os.path.join(log, name))
            sync([log])


def sync_checkpoint(place: Place) -> None:
    """Makes sure that the last checkpoint of a local store outlives a power loss.

    Whoever removes entries before it relies on that.
    """
    if place.local:
        log = place.file(_LOG)
        numbered = [name for name in os.listdir(log) if _NUMBERED.fullmatch(name)]
        written = sorted(name for name in numbered if not name.endswith(".json"))
        last = [name for name in written if name[:20] == written[-1][:20]]
        sync([*(os.path.join(log, name) for name in last), log])


def remove_shadows(place: Place, before_us: int) -> None:
    """Removes what writers that were killed have left; `before_us` is when they began at last."""
    staging = place.file("_tseries", "staging")
    if place.local and os.path.isdir(staging):
        for entry in os.scandir(staging):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir() and entry.stat().st_mtime_ns < before_us * 1000:
                    shutil.rmtree(entry.path, ignore_errors=True)


@contextlib.contextmanager
def shadow(place: Place, version: int, without: Collection[str] = ()) -> Iterator[str]:
    """A directory whose log is the end of the store's, from its last checkpoint to `version`.

    Args:
        place: where the store lies, a local path.
        version: the last that is wanted.
        without: names of files of the log that are left out.
    """
    copy = place.file("_tseries", "staging", f"{secrets.token_hex(8)}.shadow")
    log = os.path.join(copy, _LOG)
    os.makedirs(log)
    try:
        names = set(os.listdir(place.file(_LOG))).difference(without)
        for name in _end_of_log(names, version):
            # A link changes the entry's time, which says since when it is seen.
            take = shutil.copyfile if name.endswith(".json") else os.link
            take(place.file(_LOG, name), os.path.join(log, name))
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _end_of_log(names: Iterable[str], version: int) -> list[str]:
    """The last checkpoint that is not after `version`, and the entries from it up to `version`."""
    numbered = [
        (int(found[1]), found[2], found[0])
        for name in names
        if (found := _NUMBERED.fullmatch(name))
    ]
    checkpoints = [number for number, kind, _ in numbered if kind != "json" and number <= version]
    last = max(checkpoints, default=-1)
    return [
        name
        for number, kind, name in numbered
        if (number == last if kind != "json" else last <= number <= version)
    ]
