"""Entries of a store's Delta log as lines of JSON, and changes of rows by other tools.

A commit of this package has an object `tseries` in its `commitInfo`: `commit`, its number;
`checked`, the version up to which its client had checked for changes by other tools; `synced`,
true if it and everything before survives a power loss; `lines`, how many the entry has; `crc32`,
the checksum of all its bytes with zeros in the place of these digits. In an object store Delta
writes the entry: there `lines` is missing, and the checksum is of the actions and of the object
itself, whatever their form. Entries of other tools have no such object.

A state of the table is the set of its files. It is *sound* if a commit of this package made it from
a sound one, if a commit that changes no rows (OPTIMIZE, z-order, VACUUM) did, or if a RESTORE
returned to a sound one. A commit of this package on an unsound state leaves it unsound.
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Final

from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.location import Location

_INFO_KEY: Final = "tseries"
CHECKSUM_KEY: Final = "crc32"
"""The key of the checksum in the object `tseries`."""

NO_CHECKSUM: Final = "0" * 8
"""The checksum's place, before it is known."""

_CHECKSUM: Final = re.compile(rb'"lines":\d+,"crc32":"([0-9a-f]{8})"')
"""It is not in a text within the entry, whose quotes are escaped."""
"""Only an entry on a local path has the number of its lines."""


@dataclass(frozen=True, slots=True)
class FileAction:
    """A file that an entry adds or removes.

    Attributes:
        path: relative to the store.
        size: in bytes.
        kind: `event` or `edit`, its partition.
        time_ms: when it was written or removed.
        changes_rows: True if the table has other rows then.
        statistics: Delta's, as JSON; None if the file is removed.
    """

    path: str
    size: int
    kind: str
    time_ms: int
    changes_rows: bool = True
    statistics: str | None = None

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The action as a line of an entry has it."""
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
    """The actions that add new files."""
    return [
        FileAction(file.path, file.size, file.kind, now_ms, changes_rows, file.stats.to_json())
        for file in files
    ]


def remove_files(
    files: Iterable[DataFile], now_ms: int, changes_rows: bool = True
) -> list[FileAction]:
    """The actions that remove files of the table."""
    return [FileAction(file.path, file.size, file.kind, now_ms, changes_rows) for file in files]


@dataclass(frozen=True, slots=True)
class Change:
    """What an entry of this package says; `number` is that of a commit with events, else None."""

    actions: Sequence[FileAction] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    number: int | None = None

    def lines(self) -> list[dict[str, Any]]:
        """The actions as lines of an entry have them."""
        marks = ({"appId": name, "version": mark} for name, mark in self.transactions.items())
        return [*(action.to_json() for action in self.actions), *({"txn": mark} for mark in marks)]

    def info(self, checked: int, *, synced: bool = True) -> dict[str, Any]:
        """The `tseries` object of the entry; see `Entry`."""
        return {"commit": self.number, "checked": checked, "synced": synced}


class TornEntry(ValueError):
    """An entry that is not as it was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The contents of an entry; `added` and `removed` are its actions by path.

    `own` is the `tseries` object of its `commitInfo`, None if another tool made it. `changes_rows`:
    a file changes the table's rows; `changes_table`: it sets columns, properties or the protocol.
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
        """The version up to which its writer had checked the log; -1 if it had not."""
        if self.own is None:
            return -1
        return int(self.own["checked"])

    @property
    def synced(self) -> bool:
        """True if it and everything before was synced before it was published."""
        return self.own is not None and bool(self.own["synced"])


def entry_path(location: Location, version: int) -> str:
    """The path of the log's entry `version`."""
    return location.file("_delta_log", f"{version:020d}.json")


def format_entry(change: Change, own_info: Mapping[str, Any], now_ms: int) -> bytes:
    """An entry of this package; `own_info` is the info of `change`."""
    lines = change.lines()
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["kind"]'},
        "engineInfo": "tseries",
        _INFO_KEY: {**own_info, "lines": len(lines) + 1, CHECKSUM_KEY: NO_CHECKSUM},
    }
    return seal(b"".join(_line(line) for line in [{"commitInfo": info}, *lines]))


def adopt_entry(entry: bytes, checked: int, location: str) -> bytes:
    """Mark an entry that Delta has written elsewhere as one of this package.

    `checked` is that of `Entry`, `location` the table's.
    """
    lines = [json.loads(line) for line in entry.splitlines()]
    for line in lines:
        if "commitInfo" in line:
            info, own = line["commitInfo"], Change().info(checked)
            info[_INFO_KEY] = {**own, "lines": len(lines), CHECKSUM_KEY: NO_CHECKSUM}
            if "location" in info.get("operationParameters", {}):
                info["operationParameters"]["location"] = location
    return seal(b"".join(map(_line, lines)))


def seal(content: bytes) -> bytes:
    """`content`, which has a place for it, with its checksum."""
    found = _CHECKSUM.search(content)
    assert found is not None, "there is no room for a checksum"
    crc = _checksum_around(content, *found.span(1))
    return b"%b%08x%b" % (content[: found.start(1)], crc, content[found.end(1) :])


def has_wrong_checksum(content: bytes) -> bool | None:
    """True if `content` is not as `seal` returned it; None if it has no checksum."""
    found = _CHECKSUM.search(content)
    return None if found is None else _checksum_around(content, *found.span(1)) != int(found[1], 16)


def _checksum_around(content: bytes, start: int, end: int) -> int:
    """The checksum of `content` with zeros from `start` to `end`."""
    before = zlib.crc32(content[:start])
    return zlib.crc32(content[end:], zlib.crc32(NO_CHECKSUM.encode(), before))


def correct_bit(content: bytes) -> bytes | None:
    """`content` as `seal` returned it, if one bit, or one byte of its checksum's key, changed.

    The checksum tells which bit: those of two single bits differ.
    """
    candidates = [content]
    for at in range(len(_CHECKSUM_KEY)):
        broken = re.escape(_CHECKSUM_KEY[:at]) + b"." + re.escape(_CHECKSUM_KEY[at + 1 :])
        candidates += (
            content[: key.start()] + _CHECKSUM_KEY + content[key.end() :]
            for key in re.finditer(broken, content, re.DOTALL)
        )
    for candidate in candidates:
        place = _CHECKSUM_PLACE.search(candidate)
        if place is not None:
            corrected = _correct_around(candidate, *place.span(1))
            if corrected is not None and has_wrong_checksum(corrected) is False:
                return corrected
    return None


_CHECKSUM_KEY: Final = b',"crc32":"'
_CHECKSUM_PLACE: Final = re.compile(rb',"crc32":"(.{8})', re.DOTALL)
_CRC_POLYNOMIAL: Final = 0xEDB88320


def _correct_around(content: bytes, start: int, end: int) -> bytes | None:
    """`content`, whose checksum is from `start` to `end`, with that bit flipped that is wrong."""
    right = b"%08x" % _checksum_around(content, start, end)
    wrong = [at for at in range(start, end) if content[at] != right[at - start]]
    if not wrong:
        return content
    if len(wrong) == 1 and (content[wrong[0]] ^ right[wrong[0] - start]).bit_count() == 1:
        return content[:start] + right + content[end:]
    try:
        difference = int(content[start:end], 16) ^ int(right, 16)
    except ValueError:
        return None
    # What each bit of a byte changes in the checksum, the last byte first.
    table = [_shift(byte) for byte in range(256)]
    changes = [table[1 << bit] for bit in range(8)]
    for at in range(len(content) - 1, -1, -1):
        if difference in changes and not start <= at < end:
            flipped = bytearray(content)
            flipped[at] ^= 1 << changes.index(difference)
            return bytes(flipped)
        changes = [change >> 8 ^ table[change & 0xFF] for change in changes]
    return None


def _shift(change: int) -> int:
    """What `change` in a byte changes in the checksum of a text that ends with that byte."""
    for _ in range(8):
        change = change >> 1 ^ (_CRC_POLYNOMIAL if change & 1 else 0)
    return change


def seal_info(change: Change, own_info: Mapping[str, Any]) -> dict[str, Any]:
    """`own_info` with the checksum of an entry that Delta writes into an object store."""
    return {**own_info, CHECKSUM_KEY: _content_checksum(change.lines(), own_info)}


_COVERED: Final = {
    "add": ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats"),
    "remove": ("path", "partitionValues", "size", "deletionTimestamp", "dataChange"),
    "txn": ("appId", "version"),
}
"""The fields of actions that Delta writes as they are given."""


def _content_checksum(lines: Iterable[Mapping[str, Any]], own_info: Mapping[str, Any]) -> str:
    """The checksum of an entry's actions and its object `tseries`, in any order and form."""
    said = [
        [kind, [line[kind].get(field) for field in fields]]
        for line in lines
        for kind, fields in _COVERED.items()
        if kind in line
    ]
    own = {name: value for name, value in own_info.items() if name != CHECKSUM_KEY}
    parts = sorted(json.dumps(part, sort_keys=True) for part in [*said, ["own", own]])
    return f"{zlib.crc32(chr(10).join(parts).encode()):08x}"


def _line(action: Mapping[str, Any]) -> bytes:
    return json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def parse_entry(version: int, data: bytes) -> Entry:
    """Parse the entry `version`.

    Raises:
        TornEntry: it is empty, incomplete or not as it was written.
    """
    lines = _parse_lines(data)
    infos = [line["commitInfo"] for line in lines if "commitInfo" in line]
    info: dict[str, Any] = infos[0] if infos else {}
    own = info.get(_INFO_KEY)
    if own is not None:
        _check_own(data, lines, own)
    elif has_wrong_checksum(data) is not None:
        raise TornEntry("its 'commitInfo' is not what was written")
    transactions = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
    added, removed = (
        {line[name]["path"]: line[name] for line in lines if name in line}
        for name in ("add", "remove")
    )
    return Entry(
        version,
        own,
        str(info.get("operation", "")),
        str(info.get("engineInfo", "")),
        transactions,
        added,
        removed,
        any(action.get("dataChange", True) for action in (*added.values(), *removed.values())),
        any("metaData" in line or "protocol" in line for line in lines),
        any("protocol" in line for line in lines),
    )


_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "add": {"path": str, "size": int},
    "remove": {"path": str},
    "txn": {"appId": str, "version": int},
    "commitInfo": {},
    "metaData": {},
    "protocol": {},
}
"""The fields that every action has, and their types."""

_OWN_FIELDS: Final = {"commit": int | None, "checked": int, "synced": bool, CHECKSUM_KEY: str}


def _parse_lines(data: bytes) -> list[dict[str, Any]]:
    """The actions of an entry, with those fields that this package needs."""
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
    for line in lines:
        own = line.get("commitInfo", {}).get(_INFO_KEY)
        if own is not None:
            _check_fields(f"commitInfo.{_INFO_KEY}", own, _OWN_FIELDS)
    return lines


def _check_fields(action: str, content: object, fields: Mapping[str, type | UnionType]) -> None:
    if not isinstance(content, dict):
        raise TornEntry(f"its '{action}' is no object")
    for name, kind in fields.items():
        if not isinstance(content.get(name), kind):
            raise TornEntry(f"its '{action}' has no right '{name}'")


def _check_own(data: bytes, lines: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> None:
    """Raise TornEntry if an entry of this package is not as it was written."""
    if "lines" in own:
        if own["lines"] != len(lines):
            raise TornEntry(f"it has {len(lines)} of {own['lines']} lines")
        wrong = has_wrong_checksum(data) is not False
    else:
        wrong = own[CHECKSUM_KEY] != _content_checksum(lines, own)
    if wrong:
        raise TornEntry("it is not what was written: the checksum is another one")


FileSet = frozenset[str]
TableState = tuple[FileSet, FileSet]
"""The files added and removed since the first entry considered."""


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A change of rows that another tool has made, and that was not undone.

    Attributes:
        first: the first entry of it.
        last: the last entry that another tool made.
        sound: the version of the last sound state.
        followed: True if commits of this package came after `first`.
        missing: paths of files of the sound state that the table lacks.
        extra: paths of files of the table that the sound state lacks.
    """

    first: Entry
    last: Entry
    sound: int
    followed: bool
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def find_foreign_change(entries: Iterable[Entry]) -> ForeignChange | None:
    """The change of rows that other tools have made in `entries`; None if there is none.

    Args:
        entries: rising by version; the state before the first one is sound.
    """
    state: TableState = (frozenset(), frozenset())
    sound: dict[TableState, int] = {}
    first = last = None
    followed = False
    for entry in entries:
        sound = sound or {state: entry.version - 1}
        after = _apply(state, entry)
        if entry.own is not None:
            sound = {_apply(known, entry): version for known, version in sound.items()}
            followed = followed or first is not None
        else:
            last = entry
            if state in sound and not entry.changes_rows:
                sound[after] = entry.version
        state = after
        if state in sound:
            sound[state] = entry.version
            first, followed = None, False
        else:
            first = first or entry
    if first is None or last is None:
        return None
    back, version = max(sound.items(), key=lambda known: known[1])
    missing = (back[0] - state[0]) | (state[1] - back[1])
    extra = (state[0] - back[0]) | (back[1] - state[1])
    return ForeignChange(
        first, last, version, followed, tuple(sorted(missing)), tuple(sorted(extra))
    )


def _apply(state: TableState, entry: Entry) -> TableState:
    added, removed = map(set, state)
    for path in entry.removed:
        if path in added:
            added.discard(path)
        else:
            removed.add(path)
    for path in entry.added:
        if path in removed:
            removed.discard(path)
        else:
            added.add(path)
    return frozenset(added), frozenset(removed)


LAST_CHECKPOINT: Final = "_last_checkpoint"
"""The name of the file."""


_KEY: Final = "tseries"


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """The contents of the file.

    Attributes:
        version: of the last checkpoint; -1 if the file is missing or damaged.
        checksums: of checkpoints, by version.
        damaged: True if the file is there, but is not what was written.
    """

    version: int = -1
    checksums: Mapping[int, int] = field(default_factory=dict)
    damaged: bool = False


def read_mark(location: Location) -> CheckpointMark:
    """The mark of a store.

    Raises:
        OSError: the file is there, but cannot be read.
    """
    path = location.file("_delta_log", LAST_CHECKPOINT)
    try:
        # Not through Arrow on a local path: every opening of a store reads this small file.
        with open(path, "rb") if location.is_local else location.read(path) as file:
            content = file.read()
    except (FileNotFoundError, IsADirectoryError):
        return CheckpointMark()
    return _parse_mark(content)


def _parse_mark(content: bytes) -> CheckpointMark:
    if has_wrong_checksum(content):
        return CheckpointMark(damaged=True)
    try:
        said = json.loads(content)
        version, own = said["version"], said.get(_KEY, {})
        known = {int(number): int(crc, 16) for number, crc in own.get("checkpoints", {}).items()}
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            return CheckpointMark(damaged=True)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return CheckpointMark(damaged=True)
    return CheckpointMark(version, known)


def format_mark(content: bytes, checksums: Mapping[int, int]) -> bytes:
    """The contents of the file as Delta has written it, with checksums of checkpoints."""
    said: dict[str, Any] = json.loads(content)
    known = {str(version): f"{crc:08x}" for version, crc in sorted(checksums.items())}
    # `lines` is where the checksum of a log entry is looked for, too.
    said[_KEY] = {"checkpoints": known, "lines": 1, CHECKSUM_KEY: NO_CHECKSUM}
    return seal(json.dumps(said, separators=(",", ":")).encode())
