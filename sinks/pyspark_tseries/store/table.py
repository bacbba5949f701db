"""The Delta table of a store: opening and creating it, with errors that name the next step."""

import contextlib
import glob
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.storage.durability import make_directories
from pyspark_tseries.storage.location import EVENT_FILE_PATH, Location
from pyspark_tseries.store.last_checkpoint import read_mark
from pyspark_tseries.store.log_check import check_log_at, damaged_log_error, find_log_damage
from pyspark_tseries.store.log_entries import adopt_entry, commit_info
from pyspark_tseries.store.log_writer import copy_log, publish

__all__ = ["create_table", "load_table", "load_table_at", "open_table", "unreachable_error"]

PROBE_WRITERS: Final = 4
PROBE_ROUNDS: Final = 3
PROBE_WAIT_S: Final = 5.0
"""Commits that race, four at a time: in three rounds a service that overwrites loses one."""

_COLOUR_CODES: Final = re.compile("\x1b\\[[0-9;]*m")


def open_table(location: Location) -> DeltaTable | None:
    """The table at `location`; None if there is none.

    Raises:
        UnusableStore: it is not a store, is damaged, or cannot be reached.
    """
    try:
        return load_table(location)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if not location.is_local:
            raise unreachable_error(location, "opened", error) from None
        with contextlib.suppress(OSError):
            damage = find_log_damage(location)
            if damage is not None:
                raise damaged_log_error(location, damage) from None
        raise UnusableStore(
            f"'{location.root}' cannot be opened as a store: {str(error).splitlines()[0]}",
            "a directory that a tseries write has created",
            "check the path and its rights",
        ) from error


def load_table(location: Location) -> DeltaTable:
    """The table at `location`; raises Delta's errors."""
    try:
        return DeltaTable(location.uri, storage_options=location.storage_options)
    except TableNotFoundError:
        raise
    except DeltaError:
        # Delta fails if `_last_checkpoint` names a checkpoint that is missing, but not if it opens
        # a version before that one first.
        before = _missing_checkpoint(location) - 1
        if before < 0:
            raise
        table = DeltaTable(location.uri, before, storage_options=location.storage_options)
        table.update_incremental()
        return table


def _missing_checkpoint(location: Location) -> int:
    """The version of the last checkpoint if that is missing; else -1."""
    version = read_mark(location).version if location.is_local else -1
    there = os.path.join(glob.escape(location.file("_delta_log")), f"{version:020d}.checkpoint*")
    return -1 if glob.glob(there) else version


def load_table_at(location: Location, version: int) -> DeltaTable:
    """The table at `location` as it was with the entry `version` of its log.

    Raises:
        UnusableStore: the log does not reach back so far, or it cannot be read.
    """
    try:
        if version >= _missing_checkpoint(location) >= 0:
            table = _load_copy(location, version)
        else:
            table = DeltaTable(location.uri, version, storage_options=location.storage_options)
        if location.is_local:
            check_log_at(location, version)
        return table
    except (DeltaError, OSError) as error:
        if location.is_local:
            with contextlib.suppress(OSError):
                check_log_at(location, version)
        raise UnusableStore(
            f"the store '{location.root}' as it was at entry {version} of its log cannot be "
            f"opened: {location.redact(str(error)).splitlines()[0]}",
            "a query whose tasks begin while the log reaches back to its start",
            "start the query again",
        ) from None


def _load_copy(location: Location, version: int) -> DeltaTable:
    """The table of a copy of the log up to `version`, without `_last_checkpoint`."""
    copy = tempfile.mkdtemp()
    try:
        copy_log(location, version, copy)
        table = DeltaTable(pathlib.Path(copy).as_uri())
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    weakref.finalize(table, shutil.rmtree, copy, ignore_errors=True)
    return table


def create_table(location: Location, schema: pa.Schema, properties: dict[str, str]) -> None:
    """Create the table at `location`, unless another writer has just done it.

    Raises:
        UnusableStore: there are files of another table, or of a store without its log; or the
            directory cannot be written, or the object store not be reached.
    """
    try:
        stray = _find_data_file(location)
        if stray is not None and open_table(location) is None:
            raise _occupied_error(location, stray)
        if location.is_local:
            _create_local(location, schema, properties)
        else:
            _require_exclusive_writes(location)
            _create(location.uri, schema, properties, location.storage_options)
    except (DeltaError, OSError) as error:
        if open_table(location) is None:
            raise unreachable_error(location, "created", error) from None


def _require_exclusive_writes(location: Location) -> None:
    """Refuse an object store that overwrites where it must refuse (a PUT with If-None-Match).

    Commits that race in a table beside the store show it: each must come after the others. Amazon,
    MinIO and R2 pass; some older and emulated services ignore the header, and there two writers
    lose commits without an error. Delta looks for the newest entry before it writes its own, so
    only a race makes it depend on the header.

    Raises:
        UnusableStore: the service ignores it.
        DeltaError, OSError: the service cannot be reached.
    """
    probe = Location(f"{location.root}/_tseries/probe-{secrets.token_hex(8)}", location.options)
    schema = pa.schema([("kind", pa.string())])
    try:
        _create(probe.uri, schema, {}, probe.storage_options)
        start = threading.Barrier(PROBE_WRITERS)

        def commit() -> None:
            for _ in range(PROBE_ROUNDS):
                table = load_table(probe)
                with contextlib.suppress(threading.BrokenBarrierError):
                    start.wait(PROBE_WAIT_S)
                table.create_write_transaction([], "append", table.schema(), partition_by=["kind"])

        with ThreadPoolExecutor(PROBE_WRITERS) as pool:
            for done in [pool.submit(commit) for _ in range(PROBE_WRITERS)]:
                done.result()
        is_exclusive = load_table(probe).version() == PROBE_WRITERS * PROBE_ROUNDS
    finally:
        with contextlib.suppress(OSError):
            location.filesystem.delete_dir(probe.file())
    if not is_exclusive:
        raise UnusableStore(
            f"'{location.root}' cannot be created as a store: its object store ignores the header "
            "If-None-Match, so a writer would overwrite another's commit without an error",
            "an object store with conditional writes, such as Amazon's",
            "upgrade the service, or put the store on a local disk",
        )


_DATA_FILE: Final = re.compile(r"[^_.].*[.](?:parquet|orc|avro)", re.IGNORECASE)
_EVENT_DIRECTORIES: Final = ("kind=event", "kind=edit")
MAX_FOLDERS_SEARCHED: Final = 1000
"""Somebody may create a store in a directory of anything."""


def _find_data_file(location: Location) -> str | None:
    """The path of a file of data below `location`, relative to it; None if there is none.

    Names that begin with `_` or `.` are not looked at: such are Delta's log and our own directory.
    """
    folders = [*_EVENT_DIRECTORIES, ""]
    for folder in folders:  # It grows meanwhile.
        full = location.file(folder) if folder else location.file()
        try:
            files, names = list(location.list_files(full)), location.list_folders(full)
        except PermissionError:
            if folder in ("", *_EVENT_DIRECTORIES):
                raise
            continue  # Another user's, such as the `lost+found` of a file system.
        for path, _ in files:
            name = os.path.basename(path)
            if _DATA_FILE.fullmatch(name):
                return os.path.join(folder, name)
        inner = [os.path.join(folder, name) for name in names]
        folders += (path for path in inner if not os.path.basename(path).startswith(("_", ".")))
        del folders[MAX_FOLDERS_SEARCHED:]
    return None


def _occupied_error(location: Location, stray: str) -> UnusableStore:
    if EVENT_FILE_PATH.fullmatch(stray):
        return UnusableStore(
            f"'{location.root}' has events of a store, such as '{stray}', but no log that names "
            "them: a new store there would not have them",
            "a directory without files of data, or a store with its '_delta_log'",
            "put '_delta_log' back from a copy of that store, or choose another path",
        )
    return UnusableStore(
        f"'{location.root}' has files of data that are not of a store, such as '{stray}'",
        "a directory without files of data",
        "create the store at another path, or move those files away",
    )


def _create(
    uri: str, schema: pa.Schema, properties: dict[str, str], options: dict[str, str] | None
) -> None:
    DeltaTable.create(
        uri,
        schema,
        partition_by=["kind"],
        configuration=properties,
        raise_if_key_not_exists=False,
        storage_options=options,
    )


def _create_local(location: Location, schema: pa.Schema, properties: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        _create(pathlib.Path(elsewhere).as_uri(), schema, properties, None)
        with open(os.path.join(elsewhere, "_delta_log", f"{0:020d}.json"), "rb") as file:
            entry = adopt_entry(file.read(), commit_info(None, -1, synced=True), f"{location.uri}/")
    make_directories(location.file("_delta_log"))
    publish(location, 0, entry, [], synced=True, known=set())


def unreachable_error(location: Location, done: str, error: Exception) -> UnusableStore:
    """An error without secrets, which the storage's answer, its cause, may contain."""
    said = " ".join(_COLOUR_CODES.sub("", location.redact(str(error))).split())
    there, given = "a directory that can be written", ""
    if not location.is_local:
        there = "a prefix in a bucket that exists, and credentials that may read and write it"
        given = " and storageOptions (storage_options=, --storage-option)"
    return UnusableStore(
        f"'{location.root}' cannot be {done} as a store: {said[:500]}",
        there,
        f"check the path{given}",
    )
