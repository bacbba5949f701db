"""Entries of a store's Delta log, written and read as the lines of JSON that they are.

Every commit of this package says so in its `commitInfo`, under `tseries`: `checked`, the version up
to which its writer had looked for changes by others; `lines`, how many the entry has, so that a
torn one is known; and `synced`, whether it and everything before it outlives a power loss.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_tseries.storage.location import Place

__all__ = [
    "OWN_FILE",
    "Added",
    "Entry",
    "Removed",
    "TornEntry",
    "claimed",
    "entry_path",
    "format_entry",
    "own_note",
    "parse_entry",
]

_OWN: Final = "tseries"
_OWN_MARKS: Final = "tseries:"
OWN_FILE: Final = re.compile(
    r"kind=\w+/(?P<first>\d{10,})-((?P<last>\d{10,})-)?[0-9a-f]{16,}([._]\d{4,})?[.]parquet"
)
"""The paths that this package gives to files of events: of which commits, and a number."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file that a commit adds.

    Attributes:
        path: relative to the store.
        size: in bytes.
        kind: `event` or `edit`, its partition.
        modified_ms: when it was written.
        changes_rows: whether its rows are new to the table.
        statistics: Delta's, as JSON.
    """

    path: str
    size: int
    kind: str
    modified_ms: int
    changes_rows: bool
    statistics: str


@dataclass(frozen=True, slots=True)
class Removed:
    """A file that a commit removes; the attributes are those of `Added`."""

    path: str
    size: int
    kind: str
    removed_ms: int
    changes_rows: bool


class TornEntry(ValueError):
    """An entry that is not there whole."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What an entry says.

    Attributes:
        version: its number.
        own: what a commit of this package says of itself; None where another tool made it.
        operation: what its writer calls it.
        engine: the writer.
        marks: numbers by name (Delta's transactions).
        added: the `add` actions by path.
        removed: the `remove` actions by path.
        changes_rows: whether a file that is added or removed changes the table's rows.
        changes_table: whether its columns, properties or protocol are set.
    """

    version: int
    own: Mapping[str, Any] | None = None
    operation: str = ""
    engine: str = ""
    marks: Mapping[str, int] = field(default_factory=dict)
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changes_rows: bool = False
    changes_table: bool = False

    @property
    def checked(self) -> int:
        """The version up to which its writer knew that all is well; -1 where none has looked."""
        if self.own is None:
            return -1
        return int(self.own.get("checked", self.version - 1))

    @property
    def synced(self) -> bool:
        """Whether it and everything before it was made to outlive a power loss first."""
        return self.own is not None and bool(self.own.get("synced"))


def entry_path(place: Place, version: int) -> str:
    """Where the log's entry `version` lies."""
    return place.file("_delta_log", f"{version:020d}.json")


def own_note(commit: int | None, checked: int, *, synced: bool) -> dict[str, Any]:
    """What a commit of this package says of itself.

    Args:
        commit: its number; None where it has no events.
        checked: see `Entry.checked`.
        synced: see `Entry.synced`.
    """
    return {"commit": commit, "checked": checked, "synced": synced}


def format_entry(
    actions: Iterable[Added | Removed],
    marks: Mapping[str, int],
    note: Mapping[str, Any],
    now_ms: int,
) -> bytes:
    """An entry of this package.

    Args:
        actions: files to add and remove.
        marks: numbers by name.
        note: as `own_note` makes it.
        now_ms: the wall clock.
    """
    lines: list[dict[str, Any]] = [_action(action) for action in actions]
    lines += [{"txn": {"appId": name, "version": number}} for name, number in marks.items()]
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["kind"]'},
        "engineInfo": "tseries",
        _OWN: {**note, "lines": len(lines) + 1},
    }
    return b"".join(_line(line) for line in [{"commitInfo": info}, *lines])


def claimed(entry: bytes, note: Mapping[str, Any], location: str) -> bytes:
    """An entry that Delta has written for this package elsewhere, as one of this package.

    Args:
        entry: its lines.
        note: as `own_note` makes it.
        location: the table's.
    """
    lines = [json.loads(line) for line in entry.splitlines()]
    for line in lines:
        if "commitInfo" in line:
            info = line["commitInfo"]
            info[_OWN] = {**note, "lines": len(lines)}
            if "location" in info.get("operationParameters", {}):
                info["operationParameters"]["location"] = location
    return b"".join(map(_line, lines))


def _line(action: Mapping[str, Any]) -> bytes:
    return json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _action(action: Added | Removed) -> dict[str, Any]:
    common = {
        "path": action.path,
        "partitionValues": {"kind": action.kind},
        "size": action.size,
        "dataChange": action.changes_rows,
    }
    if isinstance(action, Added):
        said = {"modificationTime": action.modified_ms, "stats": action.statistics}
        return {"add": {**common, **said}}
    said = {"deletionTimestamp": action.removed_ms, "extendedFileMetadata": True}
    return {"remove": {**common, **said}}


def parse_entry(version: int, data: bytes) -> Entry:
    """What the entry `version` says.

    Raises:
        TornEntry: it is empty, or breaks off.
    """
    try:
        lines = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        raise TornEntry("it is no JSON throughout") from None
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise TornEntry("it is empty" if not data.strip(b"\0 \r\n") else "it says nothing")
    infos = [line["commitInfo"] for line in lines if "commitInfo" in line]
    info: dict[str, Any] = infos[0] if infos else {}
    marks = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
    added, removed = (
        {line[name]["path"]: line[name] for line in lines if name in line}
        for name in ("add", "remove")
    )
    own = info.get(_OWN)
    if own is not None and own.get("lines", len(lines)) != len(lines):
        raise TornEntry(f"it has {len(lines)} of {own['lines']} lines")
    operation = str(info.get("operation", ""))
    if own is None and _is_own(operation, marks, added):
        own = {}
    return Entry(
        version,
        own,
        operation,
        str(info.get("engineInfo", "")),
        marks,
        added,
        removed,
        any(action.get("dataChange", True) for action in (*added.values(), *removed.values())),
        any("metaData" in line or "protocol" in line for line in lines),
    )


def _is_own(operation: str, marks: Mapping[str, int], added: Iterable[str]) -> bool:
    """Whether an entry that does not say so is of an earlier version of this package."""
    named = list(added)
    compacts = operation == "WRITE" and bool(named) and all(map(OWN_FILE.fullmatch, named))
    return compacts or any(name.startswith(_OWN_MARKS) for name in marks)
