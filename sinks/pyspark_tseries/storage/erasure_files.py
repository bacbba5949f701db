"""Records of erasures in the directory of a store: one file an act, each names the one before.

The head names the last act, so a record is in force if the chain from there reaches it. What a
crash leaves is not in the chain. Maintenance marks an act with `log` once no entry of the log has
its values any more, and with `done` once nothing has.
"""

import os
from collections.abc import Iterator
from typing import Final

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.erasures import ErasureRecord, parse_record
from pyspark_tseries.storage.location import Location

ERASURES: Final = ("_tseries", "erasures")


def record_path(location: Location, act: str) -> str:
    """The path of the record of `act`."""
    return location.file(*ERASURES, f"{act}.json")


def write_record(location: Location, record: ErasureRecord) -> str:
    """Write the record of an act; return its path."""
    path = record_path(location, record.act.id)
    with location.write(path) as file:
        file.write(record.to_json().encode())
    return path


def read_records(location: Location, last: str | None) -> Iterator[ErasureRecord]:
    """The records of the act `last` and all before it, newest first.

    Raises:
        UnusableStore: one is missing or damaged.
        OSError: one cannot be read now.
    """
    while last is not None:
        path = record_path(location, last)
        try:
            with location.read(path) as file:
                record = parse_record(file.read().decode())
        except (FileNotFoundError, ValueError) as error:
            raise UnusableStore(
                f"the record '{path}' of an erasure cannot be read: {location.redact(str(error))}",
                "a store copied whole, '_tseries' included",
                "restore that file from a copy; the values stay erased without it",
            ) from error
        yield record
        last = record.previous


def list_records(location: Location) -> list[ErasureRecord]:
    """All records that can be read, also those that are not in force."""
    found = []
    for path, _ in location.list_files(location.file(*ERASURES)):
        if path.endswith(".json"):
            try:
                with location.read(path) as file:
                    found.append(parse_record(file.read().decode()))
            except (FileNotFoundError, ValueError):
                continue
    return found


def mark_act(location: Location, act: str, mark: str) -> None:
    """Note of `act` that no entry of the `log`, or nothing (`done`), has a value of it any more."""
    with location.write(location.file(*ERASURES, f"{act}.{mark}")) as file:
        file.write(b"")


def marked_acts(location: Location, mark: str) -> set[str]:
    """The ids of the acts with the mark `log` or `done`."""
    names = (os.path.basename(path) for path, _ in location.list_files(location.file(*ERASURES)))
    return {name.removesuffix(f".{mark}") for name in names if name.endswith(f".{mark}")}
