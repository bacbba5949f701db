"""Entries of a store's Delta log, written and read as the lines of JSON that they are.

A commit of this package has an object `tseries` in its `commitInfo`: `checked`, the version up to
which its writer had checked for changes by other tools; `lines`, the number of lines of the entry,
which reveals a torn one; and `synced`, true if it and everything before survives a power loss.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_tseries.storage.location import EVENT_FILE_PATH, Location

__all__ = [
    "AddedFile",
    "Entry",
    "RemovedFile",
    "TornEntry",
    "adopt_entry",
    "commit_info",
    "entry_path",
    "format_entry",
    "parse_entry",
]

_INFO_KEY: Final = "tseries"
_TRANSACTION_PREFIX: Final = "tseries:"


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit adds.

    Attributes:
        path: relative to the store.
        size: in bytes.
        kind: `event` or `edit`, its partition.
        modified_ms: the time it was written.
        changes_rows: True if its rows are new to the table.
        statistics: Delta's, as JSON.
    """

    path: str
    size: int
    kind: str
    modified_ms: int
    changes_rows: bool
    statistics: str


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that a commit removes; the attributes are those of `AddedFile`."""

    path: str
    size: int
    kind: str
    removed_ms: int
    changes_rows: bool


class TornEntry(ValueError):
    """An incomplete entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The contents of an entry.

    Attributes:
        version: its number.
        own: the `tseries` object of its `commitInfo`; None if another tool made it.
        operation: the writer's name of the operation.
        engine: the writer.
        transactions: numbers by name (Delta's transactions).
        added: the `add` actions by path.
        removed: the `remove` actions by path.
        changes_rows: True if an added or removed file changes the table's rows.
        changes_table: True if it sets columns, properties or the protocol.
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

    @property
    def checked(self) -> int:
        """The version up to which its writer had checked the log; -1 if it had not."""
        if self.own is None:
            return -1
        return int(self.own.get("checked", self.version - 1))

    @property
    def synced(self) -> bool:
        """True if it and everything before was synced before it was published."""
        return self.own is not None and bool(self.own.get("synced"))


def entry_path(location: Location, version: int) -> str:
    """The path of the log's entry `version`."""
    return location.file("_delta_log", f"{version:020d}.json")


def commit_info(commit: int | None, checked: int, *, synced: bool) -> dict[str, Any]:
    """The `tseries` object of a commit.

    Args:
        commit: its number; None if it has no events.
        checked: see `Entry.checked`.
        synced: see `Entry.synced`.
    """
    return {"commit": commit, "checked": checked, "synced": synced}


def format_entry(
    actions: Iterable[AddedFile | RemovedFile],
    transactions: Mapping[str, int],
    own_info: Mapping[str, Any],
    now_ms: int,
) -> bytes:
    """An entry of this package.

    Args:
        actions: files to add and remove.
        transactions: numbers by name.
        own_info: as `commit_info` makes it.
        now_ms: the wall clock.
    """
    lines: list[dict[str, Any]] = [_action(action) for action in actions]
    lines += [{"txn": {"appId": name, "version": number}} for name, number in transactions.items()]
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["kind"]'},
        "engineInfo": "tseries",
        _INFO_KEY: {**own_info, "lines": len(lines) + 1},
    }
    return b"".join(_line(line) for line in [{"commitInfo": info}, *lines])


def adopt_entry(entry: bytes, own_info: Mapping[str, Any], location: str) -> bytes:
    """Mark an entry that Delta has written elsewhere as one of this package.

    Args:
        entry: its lines.
        own_info: as `commit_info` makes it.
        location: the table's.
    """
    lines = [json.loads(line) for line in entry.splitlines()]
    for line in lines:
        if "commitInfo" in line:
            info = line["commitInfo"]
            info[_INFO_KEY] = {**own_info, "lines": len(lines)}
            if "location" in info.get("operationParameters", {}):
                info["operationParameters"]["location"] = location
    return b"".join(map(_line, lines))


def _line(action: Mapping[str, Any]) -> bytes:
    return json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _action(action: AddedFile | RemovedFile) -> dict[str, Any]:
    common = {
        "path": action.path,
        "partitionValues": {"kind": action.kind},
        "size": action.size,
        "dataChange": action.changes_rows,
    }
    if isinstance(action, AddedFile):
        added = {"modificationTime": action.modified_ms, "stats": action.statistics}
        return {"add": {**common, **added}}
    removed = {"deletionTimestamp": action.removed_ms, "extendedFileMetadata": True}
    return {"remove": {**common, **removed}}


def parse_entry(version: int, data: bytes) -> Entry:
    """Parse the entry `version`.

    Raises:
        TornEntry: it is empty or incomplete.
    """
    try:
        lines = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        raise TornEntry("it is not JSON throughout") from None
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise TornEntry("it is empty" if not data.strip(b"\0 \r\n") else "it has no actions")
    infos = [line["commitInfo"] for line in lines if "commitInfo" in line]
    info: dict[str, Any] = infos[0] if infos else {}
    transactions = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
    added, removed = (
        {line[name]["path"]: line[name] for line in lines if name in line}
        for name in ("add", "remove")
    )
    own = info.get(_INFO_KEY)
    if own is not None and own.get("lines", len(lines)) != len(lines):
        raise TornEntry(f"it has {len(lines)} of {own['lines']} lines")
    operation = str(info.get("operation", ""))
    if own is None and _is_own(operation, transactions, added):
        own = {}
    return Entry(
        version,
        own,
        operation,
        str(info.get("engineInfo", "")),
        transactions,
        added,
        removed,
        any(action.get("dataChange", True) for action in (*added.values(), *removed.values())),
        any("metaData" in line or "protocol" in line for line in lines),
    )


def _is_own(operation: str, transactions: Mapping[str, int], added: Iterable[str]) -> bool:
    """True if an entry without a `tseries` object is of an earlier version of this package."""
    named = list(added)
    compacts = operation == "WRITE" and bool(named) and all(map(EVENT_FILE_PATH.fullmatch, named))
    return compacts or any(name.startswith(_TRANSACTION_PREFIX) for name in transactions)
