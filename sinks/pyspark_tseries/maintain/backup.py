"""Copy one commit of a store while writers go on (semantics 24.5).

A backup reads the log of one moment into memory, copies the files that the log names, which never
change, and writes the log last, so that an interrupted backup is not a store. If maintenance
removes a file before it is copied, the backup starts again from a newer commit and keeps its
copies.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.storage.failures import explained_failures, unreachable_error
from pyspark_tseries.storage.location import (
    CLAIM_FOLDER,
    LOG_FOLDER,
    Location,
    list_directories,
    make_directories,
    parse_location,
    sync,
)
from pyspark_tseries.storage.snapshot import head_chain
from pyspark_tseries.store.checkpoints import LAST_CHECKPOINT, log_tail, read_last_checkpoint
from pyspark_tseries.store.commit_history import LOST_FILE, last_commit_id
from pyspark_tseries.store.log import open_table
from pyspark_tseries.store.log_check import read_entry
from pyspark_tseries.store.store import Store

_COPY_BYTES: Final = 16 * 1024 * 1024

_OTHER_FOLDERS: Final = ("erasures", "history", "late", "lost", "streams")
"""Copy these folders of `_tseries` as they are: they are small, and newer files in them do no harm.
Copy only the lists of lost commits."""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The contents of a backup.

    Attributes:
        commit: the last commit; None if the store has none.
        files: the number of files.
        size: their size in bytes.
    """

    commit: CommitId | None
    files: int
    size: int


def backup(path: str | Location, target: str | Location) -> BackupResult:
    """Copy the store at `path`, up to its last commit, to `target`; the copy is a store.

    Writers, readers and maintenance go on meanwhile. `target` is a directory or a prefix of an
    object store, either empty or not there yet.

    Raises:
        NoSuchStore: there is no store.
        UnusableStore: the store is damaged, or `target` is not empty or lies in a table,
            such as the store.
        StoreBusy: files were removed before they were copied, again and again.
        OSError: a file cannot be read or written; of an object store `target` UnusableStore.
    """
    source, to = parse_location(path), parse_location(target)
    store = Store.open(source)  # Run the checks that `open_damaged` leaves out.
    copied: dict[str, int] = {}
    with _explained(to):
        _refuse_target(source, to)
        with _claimed(to):
            return store.retry(
                lambda: _copy_moment(source, to, copied),
                store.retrying.rewrite_attempts,
                f"what was copied to '{to.root}' is not a store",
                rivals="files were removed before they could be copied,",
                next_step="remove that directory, and copy to a faster one",
            )


def _explained(end: Location) -> AbstractContextManager[None]:
    """Explain failures of an object store; the caller explains a disk's."""
    return contextlib.nullcontext() if end.is_local else explained_failures(end)


def parse_end(path: str | Location, options: Mapping[str, str] | None) -> Location:
    """Parse one end of a backup; `options` apply only if it is an object store."""
    is_remote = isinstance(path, str) and path.lower().startswith(("s3:", "s3a:"))
    return parse_location(path, options if is_remote else None)


def _refuse_target(source: Location, to: Location) -> None:
    """Raise UnusableStore if the target is not empty, or lies in a table such as the store."""
    if to.is_local and source.is_local:
        within = os.path.realpath(to.root) + os.sep
        if within.startswith(os.path.realpath(source.root) + os.sep):
            raise UnusableStore(
                f"'{to.root}' lies in the store '{source.root}' itself",
                "a directory outside of the store",
                "name another one",
            )
    to.require_outside_tables()
    if to.is_local and os.path.lexists(to.root) and not os.path.isdir(to.root):
        raise UnusableStore(
            f"'{to.root}' is a file, or a link that leads nowhere; nothing was copied",
            "a directory that is empty, or is not there yet",
            "name another one, or remove it",
        )
    if names := _list_names(to):
        raise _occupied_error(to, names[0])


@contextlib.contextmanager
def _claimed(to: Location) -> Iterator[None]:
    """Hold the target for one backup; raise UnusableStore if another one has begun there.

    On a disk, making the folder `_tseries` claims the target. An object store has no folders;
    there, creating a table in the claim's folder does. A backup that fails leaves the claim there,
    which lets no store be created.
    """
    if to.is_local:
        os.makedirs(to.root, exist_ok=True)
        try:
            to.make_directories(to.file("_tseries"), new=True)
        except FileExistsError:
            raise _occupied_error(to, "_tseries") from None
        to.make_directories(to.file(*CLAIM_FOLDER))
        yield
        os.rmdir(to.file(*CLAIM_FOLDER))
        return
    claim = Location("/".join([to.root, *CLAIM_FOLDER]), to.options)
    try:
        schema = pa.schema([("kind", pa.string())])
        DeltaTable.create(claim.uri, schema, storage_options=claim.storage_options)
    except DeltaError as error:
        if open_table(claim) is None:
            raise unreachable_error(to, "written", error) from None
        raise _occupied_error(to, "_tseries") from None
    # Another backup may have ended since the target was found empty.
    names = [name for name in _list_names(to) if name != "_tseries"]
    if not names:
        yield
    to.filesystem.delete_dir(claim.file())
    if names:
        raise _occupied_error(to, names[0])


def _list_names(location: Location) -> list[str]:
    files = [os.path.basename(path) for path, _ in location.list_files(location.file())]
    return [*location.list_folders(location.file()), *files]


def _occupied_error(to: Location, name: str, outcome: str = "nothing was copied") -> UnusableStore:
    return UnusableStore(
        f"'{to.root}' is not empty: it has '{name}'; {outcome}",
        "a directory that is empty, or is not there yet",
        "name another one, or remove what is in it",
    )


@dataclass(frozen=True, slots=True)
class _StoreAtVersion:
    """A store at one version of its log.

    Attributes:
        commit: the last commit.
        log: the contents of the log's files, by name; the newest entry last.
        modified: when each file of the log's folder was modified, in nanoseconds, by name.
        files: the other files, relative to the store.
    """

    commit: CommitId | None
    log: dict[str, bytes]
    modified: dict[str, int]
    files: list[str]


def _copy_moment(source: Location, to: Location, copied: dict[str, int]) -> BackupResult | None:
    """Copy the present store, without the files in `copied`; None if a file was removed meanwhile.

    `copied` has the sizes of the files that earlier calls copied, by name; this call adds its own.
    """
    # Copy these before and after the log: a batch of `correct_late` needs the file that the log
    # names, which is written before its commit, and removed two batches later.
    with _explained(source):
        others = _list_other_files(source)
    _copy_files(source, to, others, copied, again=True)
    with _explained(source):
        # Open a new one: this process's writers may refresh an object that they share meanwhile.
        moment = _read_moment(Store.open_damaged(source))
    if moment is None or not _copy_files(source, to, moment.files, copied):
        return None
    with _explained(source):
        later = _list_other_files(source)
    _copy_files(source, to, later, copied, again=True)
    needed = {*moment.files, *others, *later}
    kept = {name: size for name, size in copied.items() if name in needed}
    to.remove([to.file(name) for name in copied if name not in kept])
    if LOG_FOLDER in _list_names(to):  # Of a store that was created just before the claim.
        raise _occupied_error(to, LOG_FOLDER, "the files that were copied belong to no store")
    _write_log(to, moment, [to.file(name) for name in kept])
    Store.open(to).index()  # Raises if the copy is not a whole store.
    size = sum(kept.values()) + sum(map(len, moment.log.values()))
    return BackupResult(moment.commit, len(kept) + len(moment.log), size)


def _read_moment(store: Store) -> _StoreAtVersion | None:
    """Return the store as it was opened; None if a file of the log or a head is gone by now."""
    location = store.location
    version = store.log.version()
    listed = location.list_files(location.file(LOG_FOLDER))
    modified = {os.path.basename(path): time_ns for path, time_ns in listed}
    with contextlib.suppress(FileNotFoundError):
        log = _read_log(location, version, modified)
        head_paths = head_chain(location, store.head_id(), 2**62)
        heads = [os.path.relpath(path, location.file()) for path in head_paths]
        events = [file.path for file in store.data_files()]
        return _StoreAtVersion(last_commit_id(store), log, modified, [*events, *heads])
    return None


def _read_log(location: Location, version: int, names: Collection[str]) -> dict[str, bytes]:
    """Return the contents of the log's files, of `names`, that a store at `version` needs.

    Raises:
        FileNotFoundError: one of them was removed meanwhile.
    """
    tail = sorted(log_tail(names, version), key=lambda name: (name[:20], name.endswith(".json")))
    first_version = int(tail[0][:20]) if tail else version
    # Opening checks other tools' entries from our last one on, so keep these (semantics 27.2).
    own_version = _find_own_entry(location, version)
    earlier = [f"{number:020d}.json" for number in range(own_version, first_version)]
    kept_names = [*(name for name in earlier if name in names), *tail]
    log = {name: location.read_whole(location.file(LOG_FOLDER, name)) for name in kept_names}
    if read_last_checkpoint(location).version == first_version:
        content = location.read_whole(location.file(LOG_FOLDER, LAST_CHECKPOINT))
        # Ask again, because the file may have been replaced before it was read.
        if read_last_checkpoint(location).version == first_version:
            return {LAST_CHECKPOINT: content, **log}
    return log


def _find_own_entry(location: Location, version: int) -> int:
    """Return the last version up to `version` that is not of another tool; at least 0."""
    while version > 0:
        entry = read_entry(location, version)
        if entry is None or entry.own is not None:
            break
        version -= 1
    return version


def _list_other_files(location: Location) -> list[str]:
    names: list[str] = []
    folders = [location.file("_tseries", name) for name in _OTHER_FOLDERS]
    while folders:
        folder = folders.pop()
        paths = [path for path, _ in location.list_files(folder)]
        if os.path.relpath(folder, location.file("_tseries")).split(os.sep)[0] == "lost":
            paths = [path for path in paths if os.path.basename(path) == LOST_FILE]
        names += [os.path.relpath(path, location.file()) for path in paths]
        folders += [os.path.join(folder, name) for name in location.list_folders(folder)]
    return names


def _copy_files(
    source: Location, to: Location, names: list[str], copied: dict[str, int], *, again: bool = False
) -> bool:
    """Copy files that are not in `copied`, and return False if one is gone; or `again` all."""
    for name in names:
        if again or name not in copied:
            try:
                copied[name] = _copy_file(source, to, name)
            except FileNotFoundError:
                if not again:
                    to.remove([to.file(name)])
                    return False
    return True


def _copy_file(source: Location, to: Location, name: str) -> int:
    path, target = source.file(name), to.file(name)
    if source.is_local and to.is_local:
        to.make_directories(os.path.dirname(target))
        shutil.copyfile(path, target)
    else:
        with _explained(source):
            reader = source.read(path)
        with reader:
            block = _read_block(reader, source)
            # Read first, so that an earlier copy stays if the file is gone.
            with to.write(target) as writer:
                while block:
                    writer.write(block)
                    block = _read_block(reader, source)
    return to.size(target)


def _read_block(reader: pa.NativeFile, source: Location) -> bytes:
    with _explained(source):
        return bytes(reader.read(_COPY_BYTES))


def _write_log(to: Location, moment: _StoreAtVersion, files: list[str]) -> None:
    """Write the log, which makes the copy a store, once all else survives a power loss.

    Its files keep their times if the target is local: other readers take them for commit times.
    """
    log = moment.log
    if not to.is_local:
        # Write the beginning of the log last: without it this is not a log yet.
        beginning = min(log, key=lambda name: (name == LAST_CHECKPOINT, name))
        for name in [*(name for name in log if name != beginning), beginning]:
            to.write_whole(to.file(LOG_FOLDER, name), log[name])
        return
    draft = to.file("_tseries", "staging", "log")
    for name, content in log.items():
        to.write_whole(os.path.join(draft, name), content)
        if modified := moment.modified.get(name):
            os.utime(os.path.join(draft, name), ns=(modified, modified))
    drafts = [os.path.join(draft, name) for name in log]
    sync([*files, *drafts, *list_directories(to.root, [*files, *drafts])])
    os.rename(draft, to.file(LOG_FOLDER))
    sync([to.root])
    make_directories(to.root)
