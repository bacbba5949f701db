"""Format and parse the entries of a store's log, and verify their checksums.

A commit of this package has an object `tseries` in its `commitInfo`: `commit`, its number;
`checked`, the last version that its client had checked for changes by other tools; `synced`, true
if the commit and everything before it survives a power loss; `lines`, the number of lines; `crc32`,
the checksum of all bytes with zeros in the place of its digits. In an object store Delta writes the
entry: there `lines` is missing, and the checksum covers the actions and the object itself,
independent of their formatting. Entries of other tools have no such object.
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Final

from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.location import LOG_FOLDER, Location

INFO_KEY: Final = "tseries"
"""The key of this package's object in `commitInfo` and `_delta_log/_last_checkpoint`."""

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
        time_ms: when the file was written or removed.
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
    files: Iterable[WrittenFile], now_ms: int, *, changes_rows: bool = True
) -> list[FileAction]:
    """Return the actions that add new files."""
    return [
        FileAction(
            path=file.path,
            size=file.size,
            kind=file.kind,
            time_ms=now_ms,
            changes_rows=changes_rows,
            statistics=file.stats.to_json(),
        )
        for file in files
    ]


def remove_files(
    files: Iterable[DataFile], now_ms: int, *, changes_rows: bool = True
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
    properties or the protocol, and `changes_protocol` if it sets the protocol. `read_version` is
    the version of the log that a tool had read, None if it does not say so.
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
    read_version: int | None = None

    @property
    def commit(self) -> int | None:
        """The number of the entry's commit; None if it has none, or is of another tool."""
        number: int | None = None if self.own is None else self.own["commit"]
        return number

    @property
    def title(self) -> str:
        """The words for the entry in a message, such as "an UPDATE"."""
        operation = self.operation or "commit"
        return f"{'an' if operation.startswith(tuple('AEIOU')) else 'a'} {operation}"

    @property
    def checked(self) -> int:
        """The last version of the log that the entry's client had checked; -1 for none."""
        if self.own is None:
            return -1
        return int(self.own["checked"])

    @property
    def synced(self) -> bool:
        """Whether the entry and everything before it was synced before it was visible."""
        return self.own is not None and bool(self.own["synced"])


def entry_path(location: Location, version: int) -> str:
    """Return the path of the log's entry `version`."""
    return location.file(LOG_FOLDER, f"{version:020d}.json")


def checkpoint_path(location: Location, version: int) -> str:
    """Return the path of the checkpoint of `version`, as this package writes it."""
    return location.file(LOG_FOLDER, f"{version:020d}.checkpoint.parquet")


def format_entry(new_entry: NewEntry, own_info: Mapping[str, Any], now_ms: int) -> bytes:
    """Return an entry of this package; `own_info` is the info of `new_entry`."""
    lines = new_entry.lines()
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["kind"]'},
        "engineInfo": "tseries",
        INFO_KEY: {**own_info, "lines": len(lines) + 1, CHECKSUM_KEY: NO_CHECKSUM},
    }
    return seal(b"".join(_format_line(line) for line in [{"commitInfo": info}, *lines]))


def adopt_entry(entry: bytes, checked: int, location: str) -> bytes:
    """Mark an entry that Delta has written elsewhere as one of this package.

    `checked` is as in `Entry`; `location` is the table's location.
    """
    lines = [json.loads(line) for line in entry.splitlines()]
    for line in lines:
        if "commitInfo" in line:
            info = line["commitInfo"]
            own_info = NewEntry().info(checked)
            info[INFO_KEY] = {**own_info, "lines": len(lines), CHECKSUM_KEY: NO_CHECKSUM}
            if "location" in info.get("operationParameters", {}):
                info["operationParameters"]["location"] = location
    return seal(b"".join(map(_format_line, lines)))


def seal(content: bytes) -> bytes:
    """Return `content` with its checksum in place of the zeros."""
    match = _CHECKSUM.search(content)
    assert match is not None, "there is no room for a checksum"
    crc = _compute_checksum_around(content, *match.span(1))
    return b"%b%08x%b" % (content[: match.start(1)], crc, content[match.end(1) :])


def has_wrong_checksum(content: bytes) -> bool | None:
    """Return whether `content` is not as `seal` returned it; None if it has no checksum."""
    match = _CHECKSUM.search(content)
    return (
        None
        if match is None
        else _compute_checksum_around(content, *match.span(1)) != int(match[1], 16)
    )


def _compute_checksum_around(content: bytes, start: int, end: int) -> int:
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
    right = b"%08x" % _compute_checksum_around(content, start, end)
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


def seal_info(new_entry: NewEntry, own_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return `own_info` with the checksum of an entry that Delta writes into an object store."""
    return {**own_info, CHECKSUM_KEY: _compute_content_checksum(new_entry.lines(), own_info)}


_COVERED: Final = {
    "add": ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats"),
    "remove": ("path", "partitionValues", "size", "deletionTimestamp", "dataChange"),
    "txn": ("appId", "version"),
}
"""Delta writes these fields of actions unchanged."""


def _compute_content_checksum(
    lines: Iterable[Mapping[str, Any]], own_info: Mapping[str, Any]
) -> str:
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
    own_info = info.get(INFO_KEY)
    if own_info is not None:
        _check_own(data, lines, own_info)
    elif has_wrong_checksum(data) is not None:
        raise TornEntry("its 'commitInfo' is not what was written")
    read = info.get("readVersion")
    transactions = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
    added, removed = (
        {line[name]["path"]: line[name] for line in lines if name in line}
        for name in ("add", "remove")
    )
    return Entry(
        version=version,
        own=own_info,
        operation=str(info.get("operation", "")),
        engine=str(info.get("engineInfo", "")),
        transactions=transactions,
        added=added,
        removed=removed,
        changes_rows=any(action["dataChange"] for action in (*added.values(), *removed.values())),
        changes_table=any("metaData" in line or "protocol" in line for line in lines),
        changes_protocol=any("protocol" in line for line in lines),
        read_version=read if isinstance(read, int) else None,
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
        own_info = line.get("commitInfo", {}).get(INFO_KEY)
        if own_info is not None:
            _check_fields(f"commitInfo.{INFO_KEY}", own_info, _OWN_FIELDS)
    return lines


def _check_fields(action: str, content: object, fields: Mapping[str, type | UnionType]) -> None:
    if not isinstance(content, dict):
        raise TornEntry(f"its '{action}' is not an object")
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
        is_changed = own_info[CHECKSUM_KEY] != _compute_content_checksum(lines, own_info)
    if is_changed:
        raise TornEntry("it is not what was written: the checksum is another one")
