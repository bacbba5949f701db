"""Read and write entries and checkpoints of a store's log, and find other tools' changes of rows.

A commit of this package has an object `tseries` in its `commitInfo`: `commit`, its number;
`checked`, the version up to which its client had checked for changes by other tools; `synced`, true
if the commit and everything before it survives a power loss; `lines`, the number of lines; `crc32`,
the checksum of all bytes with zeros in the place of its digits. In an object store Delta writes the
entry: there `lines` is missing, and the checksum covers the actions and the object itself,
independent of their formatting. Entries of other tools have no such object.

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
from types import UnionType
from typing import Any, Final, NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.location import Location, exclusive, sync

_INFO_KEY: Final = "tseries"
CHECKSUM_KEY: Final = "crc32"
"""The key of the checksum in the object `tseries`."""

NO_CHECKSUM: Final = "0" * 8
"""Holds the checksum's place until it is known."""

_CHECKSUM: Final = re.compile(rb'"lines":\d+,"crc32":"([0-9a-f]{8})"')
"""Matches only the object's own checksum: a text in the entry has escaped quotes. Only entries on a
local path have `lines`."""


@dataclass(frozen=True, slots=True)
class FileAction:
    """A file that an entry adds or removes.

    Attributes:
        path: the path relative to the store.
        size: the size in bytes.
        kind: the partition, `event` or `edit`.
        time_ms: the time at which the file was written or removed.
        changes_rows: True if the action changes the table's rows.
        statistics: Delta's statistics, as JSON; None if the action removes the file.
    """

    path: str
    size: int
    kind: str
    time_ms: int
    changes_rows: bool = True
    statistics: str | None = None

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the action as a line of an entry."""
        common = {
            "path": self.path,
            "partitionValues": {"kind": self.kind},
            "size": self.size,
            "dataChange": self.changes_rows,
        }
        if self.statistics is None:
            times = {"deletionTimestamp": self.time_ms, "extendedFileMetadata": True}
            return {"remove": {**common, **times}}
        return {"add": {**common, "modificationTime": self.time_ms, "stats": self.statistics}}


def add_files(
    files: Iterable[WrittenFile], now_ms: int, changes_rows: bool = True
) -> list[FileAction]:
    """Return the actions that add new files."""
    return [
        FileAction(file.path, file.size, file.kind, now_ms, changes_rows, file.stats.to_json())
        for file in files
    ]


def remove_files(
    files: Iterable[DataFile], now_ms: int, changes_rows: bool = True
) -> list[FileAction]:
    """Return the actions that remove files of the table."""
    return [FileAction(file.path, file.size, file.kind, now_ms, changes_rows) for file in files]


@dataclass(frozen=True, slots=True)
class NewEntry:
    """The contents of an entry of this package.

    Attributes:
        actions: the files that it adds and removes.
        transactions: the transactions that it sets.
        number: the number of the commit, or None.
        metadata: the table's new metadata, with its columns; None leaves them.
    """

    actions: Sequence[FileAction] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    number: int | None = None
    metadata: Mapping[str, Any] | None = None

    def lines(self) -> list[dict[str, Any]]:
        """Return the actions and transactions as lines of an entry."""
        transactions = (
            {"appId": name, "version": version} for name, version in self.transactions.items()
        )
        return [
            *([] if self.metadata is None else [{"metaData": self.metadata}]),
            *(action.to_json() for action in self.actions),
            *({"txn": transaction} for transaction in transactions),
        ]

    def files(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the actions `add` or `remove` of the entry, by path."""
        lines = (action.to_json() for action in self.actions)
        return {line[kind]["path"]: line[kind] for line in lines if kind in line}

    def info(self, checked: int, *, synced: bool = True) -> dict[str, Any]:
        """Return the `tseries` object of the entry."""
        return {"commit": self.number, "checked": checked, "synced": synced}


class TornEntry(ValueError):
    """Raised for an entry that is not as it was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The contents of an entry; `added` and `removed` are its actions by path.

    `own` is the `tseries` object of its `commitInfo`, None if another tool made it. `changes_rows`
    is True if a file changes the table's rows, `changes_table` if the entry sets columns,
    properties or the protocol, and `changes_protocol` if it sets the protocol.
    """

    version: int
    own: Mapping[str, Any] | None = None
    operation: str = ""
    engine: str = ""
    transactions: Mapping[str, int] = field(default_factory=dict)
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changes_rows: bool = False
    changes_table: bool = False
    changes_protocol: bool = False

    @property
    def checked(self) -> int:
        """The version up to which the entry's client had checked the log; -1 if it had not."""
        if self.own is None:
            return -1
        return int(self.own["checked"])

    @property
    def synced(self) -> bool:
        """True if the entry and everything before it was synced before it was visible."""
        return self.own is not None and bool(self.own["synced"])


def entry_path(location: Location, version: int) -> str:
    """Return the path of the log's entry `version`."""
    return location.file("_delta_log", f"{version:020d}.json")


def format_entry(change: NewEntry, own_info: Mapping[str, Any], now_ms: int) -> bytes:
    """Return an entry of this package; `own_info` is the info of `change`."""
    lines = change.lines()
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["kind"]'},
        "engineInfo": "tseries",
        _INFO_KEY: {**own_info, "lines": len(lines) + 1, CHECKSUM_KEY: NO_CHECKSUM},
    }
    return seal(b"".join(_format_line(line) for line in [{"commitInfo": info}, *lines]))


def adopt_entry(entry: bytes, checked: int, location: str) -> bytes:
    """Mark an entry that Delta has written elsewhere as one of this package.

    `checked` is as in `Entry`; `location` is the table's location.
    """
    lines = [json.loads(line) for line in entry.splitlines()]
    for line in lines:
        if "commitInfo" in line:
            info, own_info = line["commitInfo"], NewEntry().info(checked)
            info[_INFO_KEY] = {**own_info, "lines": len(lines), CHECKSUM_KEY: NO_CHECKSUM}
            if "location" in info.get("operationParameters", {}):
                info["operationParameters"]["location"] = location
    return seal(b"".join(map(_format_line, lines)))


def seal(content: bytes) -> bytes:
    """Return `content` with its checksum in place of the zeros."""
    match = _CHECKSUM.search(content)
    assert match is not None, "there is no room for a checksum"
    crc = _checksum_around(content, *match.span(1))
    return b"%b%08x%b" % (content[: match.start(1)], crc, content[match.end(1) :])


def has_wrong_checksum(content: bytes) -> bool | None:
    """Return whether `content` is not as `seal` returned it; None if it has no checksum."""
    match = _CHECKSUM.search(content)
    return None if match is None else _checksum_around(content, *match.span(1)) != int(match[1], 16)


def _checksum_around(content: bytes, start: int, end: int) -> int:
    """Return the checksum of `content` with zeros from `start` to `end`."""
    prefix_crc = zlib.crc32(content[:start])
    return zlib.crc32(content[end:], zlib.crc32(NO_CHECKSUM.encode(), prefix_crc))


def correct_bit(content: bytes) -> bytes | None:
    """Return the original `content` if one bit, or one byte of the checksum's key, has changed.

    Every single bit changes the checksum differently, so the checksum shows which bit it was.
    """
    candidates = [content]
    for digit in range(len(_CHECKSUM_KEY)):
        broken = re.escape(_CHECKSUM_KEY[:digit]) + b"." + re.escape(_CHECKSUM_KEY[digit + 1 :])
        candidates += (
            content[: key.start()] + _CHECKSUM_KEY + content[key.end() :]
            for key in re.finditer(broken, content, re.DOTALL)
        )
    for candidate in candidates:
        checksum = _CHECKSUM_PLACE.search(candidate)
        if checksum is not None:
            corrected = _correct_around(candidate, *checksum.span(1))
            if corrected is not None and has_wrong_checksum(corrected) is False:
                return corrected
    return None


_CHECKSUM_KEY: Final = b',"crc32":"'
_CHECKSUM_PLACE: Final = re.compile(rb',"crc32":"(.{8})', re.DOTALL)
_CRC_POLYNOMIAL: Final = 0xEDB88320


def _correct_around(content: bytes, start: int, end: int) -> bytes | None:
    """Return `content` with the wrong bit flipped; its checksum is from `start` to `end`."""
    right = b"%08x" % _checksum_around(content, start, end)
    wrong = [
        position for position in range(start, end) if content[position] != right[position - start]
    ]
    if not wrong:
        return content
    if len(wrong) == 1 and (content[wrong[0]] ^ right[wrong[0] - start]).bit_count() == 1:
        return content[:start] + right + content[end:]
    try:
        difference = int(content[start:end], 16) ^ int(right, 16)
    except ValueError:
        return None
    # Go from the last byte to the first; `changes` has each bit's effect on the checksum.
    table = [_shift(byte) for byte in range(256)]
    changes = [table[1 << bit] for bit in range(8)]
    for position in range(len(content) - 1, -1, -1):
        if difference in changes and not start <= position < end:
            flipped = bytearray(content)
            flipped[position] ^= 1 << changes.index(difference)
            return bytes(flipped)
        changes = [change >> 8 ^ table[change & 0xFF] for change in changes]
    return None


def _shift(change: int) -> int:
    """Return how the `change` of a text's last byte changes its checksum."""
    for _ in range(8):
        change = change >> 1 ^ (_CRC_POLYNOMIAL if change & 1 else 0)
    return change


def seal_info(change: NewEntry, own_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return `own_info` with the checksum of an entry that Delta writes into an object store."""
    return {**own_info, CHECKSUM_KEY: _content_checksum(change.lines(), own_info)}


_COVERED: Final = {
    "add": ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats"),
    "remove": ("path", "partitionValues", "size", "deletionTimestamp", "dataChange"),
    "txn": ("appId", "version"),
}
"""Delta writes these fields of actions unchanged."""


def _content_checksum(lines: Iterable[Mapping[str, Any]], own_info: Mapping[str, Any]) -> str:
    """Return the checksum of an entry's actions and its object `tseries`, in any order and form."""
    values = [
        [kind, [line[kind].get(field) for field in fields]]
        for line in lines
        for kind, fields in _COVERED.items()
        if kind in line
    ]
    own_fields = {name: value for name, value in own_info.items() if name != CHECKSUM_KEY}
    items = sorted(json.dumps(item, sort_keys=True) for item in [*values, ["own", own_fields]])
    return f"{zlib.crc32(chr(10).join(items).encode()):08x}"


def _format_line(action: Mapping[str, Any]) -> bytes:
    return json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def parse_entry(version: int, data: bytes) -> Entry:
    """Parse the entry `version`.

    Raises:
        TornEntry: the entry is empty, incomplete or not as it was written.
    """
    lines = _parse_lines(data)
    infos = [line["commitInfo"] for line in lines if "commitInfo" in line]
    info: dict[str, Any] = infos[0] if infos else {}
    own_info = info.get(_INFO_KEY)
    if own_info is not None:
        _check_own(data, lines, own_info)
    elif has_wrong_checksum(data) is not None:
        raise TornEntry("its 'commitInfo' is not what was written")
    transactions = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
    added, removed = (
        {line[name]["path"]: line[name] for line in lines if name in line}
        for name in ("add", "remove")
    )
    return Entry(
        version,
        own_info,
        str(info.get("operation", "")),
        str(info.get("engineInfo", "")),
        transactions,
        added,
        removed,
        any(action["dataChange"] for action in (*added.values(), *removed.values())),
        any("metaData" in line or "protocol" in line for line in lines),
        any("protocol" in line for line in lines),
    )


_FIELDS: Final[Mapping[str, Mapping[str, type | UnionType]]] = {
    "add": {
        "path": str,
        "size": int,
        "partitionValues": dict,
        "modificationTime": int,
        "dataChange": bool,
        "stats": str | None,
    },
    "remove": {"path": str, "dataChange": bool},
    "txn": {"appId": str, "version": int},
    "commitInfo": {},
    "metaData": {
        "id": str,
        "format": dict,
        "schemaString": str,
        "partitionColumns": list,
        "configuration": dict,
    },
    "protocol": {"minReaderVersion": int, "minWriterVersion": int},
}
"""The fields of each action that Delta requires, and their types."""

_OWN_FIELDS: Final = {"commit": int | None, "checked": int, "synced": bool, CHECKSUM_KEY: str}


def _parse_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the actions of an entry, which have the fields that this package needs."""
    try:
        lines = [json.loads(line) for line in data.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        raise TornEntry("it is not JSON throughout") from None
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise TornEntry("it is empty" if not data.strip(b"\0 \r\n") else "it has no actions")
    for line in lines:
        for action, fields in _FIELDS.items():
            if action in line:
                _check_fields(action, line[action], fields)
        if "add" in line:
            _check_fields("add.partitionValues", line["add"]["partitionValues"], {"kind": str})
    for line in lines:
        own_info = line.get("commitInfo", {}).get(_INFO_KEY)
        if own_info is not None:
            _check_fields(f"commitInfo.{_INFO_KEY}", own_info, _OWN_FIELDS)
    return lines


def _check_fields(action: str, content: object, fields: Mapping[str, type | UnionType]) -> None:
    if not isinstance(content, dict):
        raise TornEntry(f"its '{action}' is no object")
    for name, required in fields.items():
        if not isinstance(content.get(name), required):
            raise TornEntry(f"its '{action}' has no right '{name}'")


def _check_own(
    data: bytes, lines: Sequence[Mapping[str, Any]], own_info: Mapping[str, Any]
) -> None:
    """Raise TornEntry if an entry of this package is not as it was written."""
    if "lines" in own_info:
        if own_info["lines"] != len(lines):
            raise TornEntry(f"it has {len(lines)} of {own_info['lines']} lines")
        is_changed = has_wrong_checksum(data) is not False
    else:
        is_changed = own_info[CHECKSUM_KEY] != _content_checksum(lines, own_info)
    if is_changed:
        raise TornEntry("it is not what was written: the checksum is another one")


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
    added, removed = state.added - gone, state.removed | (gone - state.added)
    return _TableState(added | (new - removed), removed - new)


LAST_CHECKPOINT: Final = "_last_checkpoint"
"""The name of the file in which Delta names the last checkpoint."""


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The contents of `_last_checkpoint`.

    Attributes:
        version: the version of the last checkpoint; -1 if the file is missing or damaged.
        checksums: the checksums of checkpoints, by version.
        damaged: True if the file exists, but is not what was written.
    """

    version: int = -1
    checksums: Mapping[int, int] = field(default_factory=dict)
    damaged: bool = False


def read_last_checkpoint(location: Location) -> LastCheckpoint:
    """Read the `_last_checkpoint` of a store.

    Raises:
        OSError: the file exists, but cannot be read.
    """
    path = location.file("_delta_log", LAST_CHECKPOINT)
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
        version, own_info = fields["version"], fields.get(_INFO_KEY, {})
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
    fields[_INFO_KEY] = {"checkpoints": checkpoints, "lines": 1, CHECKSUM_KEY: NO_CHECKSUM}
    return seal(json.dumps(fields, separators=(",", ":")).encode())


UNREADABLE: Final = (DeltaError, OSError, ValueError)
"""Delta's errors for a log that it cannot read: ValueError if an action lacks a field."""

_LOG_DIRECTORY: Final = "_delta_log"
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
    pattern = os.path.join(
        glob.escape(location.file(_LOG_DIRECTORY)), f"{version:020d}.checkpoint*"
    )
    return bool(glob.glob(pattern))


def _mark_checkpoint(location: Location, directory: str, checkpoint_files: Sequence[str]) -> None:
    """Record the checksums of new checkpoints, `checkpoint_files` in `directory`."""
    checksums = {
        version: crc
        for version, crc in read_last_checkpoint(location).checksums.items()
        if os.path.exists(location.file(_LOG_DIRECTORY, f"{version:020d}.checkpoint.parquet"))
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
        log = location.file(_LOG_DIRECTORY)
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
    log = os.path.join(to, _LOG_DIRECTORY)
    os.makedirs(log)
    names = set(os.listdir(location.file(_LOG_DIRECTORY))).difference(without)
    for name in log_tail(names, version):
        # A link would change the entry's change time: the time from which it is visible.
        copy = shutil.copyfile if name.endswith(".json") else location.copy
        copy(location.file(_LOG_DIRECTORY, name), os.path.join(log, name))


def _merge_log(location: Location, version: int, to: str) -> bool:
    """Put a log of one checkpoint and one entry into the directory `to`; return False if it cannot.

    The checkpoint is the last one before `version`, renamed to the number before `version`: its
    content has no number.
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
    checkpoint = os.path.join(copied, f"{version - 1:020d}.checkpoint.parquet")
    location.copy(os.path.join(log, checkpoints[0]), checkpoint)
    return True


_PLAIN_CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.parquet")


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
    end, names = f"{version + 1:020d}", list(names)
    checkpoints = [name for name in names if ".checkpoint" in name and name < end]
    last = max((name[:20] for name in checkpoints if _NUMBERED.fullmatch(name)), default="")
    return [
        name
        for name in names
        if last <= name < end and (match := _NUMBERED.fullmatch(name))
        if match[2] == "json" or match[1] == last
    ]
