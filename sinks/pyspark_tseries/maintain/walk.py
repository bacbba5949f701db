"""Walks over a store's files: those of events, those of the log, and the log's entries."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.log_check import read_entry
from pyspark_tseries.store.log_entries import Entry, TornEntry

_LOG_FILE: Final = re.compile(r"(\d{20})\.(?:json|checkpoint[^/]*\.parquet)")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of events in the directory of a store, whether the log names it or not.

    Attributes:
        path: relative to the store.
        full: the full path.
        modified_ns: when it was last changed.
    """

    path: str
    full: str
    modified_ns: int


def list_event_files(location: Location) -> Iterator[StoredFile]:
    """All files in the folders of events and edits."""
    for kind in ("event", "edit"):
        for full, modified_ns in list(location.list_files(location.file(f"kind={kind}"))):
            yield StoredFile(f"kind={kind}/{os.path.basename(full)}", full, modified_ns)


@dataclass(frozen=True, slots=True)
class LogFile:
    """An entry or a checkpoint of the log."""

    version: int
    full: str
    modified_ns: int

    @property
    def name(self) -> str:
        """Its name in the directory of the log."""
        return os.path.basename(self.full)

    @property
    def is_plain(self) -> bool:
        """False for a checkpoint in several parts, or of another name, which only others write."""
        return self.full.endswith((".json", ".checkpoint.parquet"))


def list_log_files(location: Location) -> list[LogFile]:
    """The entries and checkpoints of the log, rising by version."""
    found = []
    for full, modified_ns in location.list_files(location.file("_delta_log")):
        name = _LOG_FILE.fullmatch(os.path.basename(full))
        if name is not None:
            found.append(LogFile(int(name[1]), full, modified_ns))
    return sorted(found, key=lambda file: (file.version, file.full))


def read_entries_back(location: Location, newest: int) -> Iterator[tuple[int, Entry | None]]:
    """The log's entries from `newest` back to the first that was cleaned up; None for a torn one.

    Raises:
        OSError: one cannot be read.
    """
    for version in range(newest, -1, -1):
        try:
            entry = read_entry(location, version)
        except TornEntry:
            yield version, None
            continue
        if entry is None:
            return
        yield version, entry
