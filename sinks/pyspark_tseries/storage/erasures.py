"""Write and read the records of erasures: who erased which events, when and why (semantics 18.6).

A record counts once a commit names it, so a crash leaves unused files at worst. The head names the
last erasure, and each record the one before; a record outside this chain does not count.
Maintenance flags an erasure with `log` once no log entry has its values any more, and with `done`
once no file has them.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import parse_instant
from pyspark_tseries.errors import UnusableStore, damage_error
from pyspark_tseries.model.arrays import NO_SEQUENCE, BoolArray, to_int64
from pyspark_tseries.model.columns import ERASURE_FIELD, RESERVED_NAMES
from pyspark_tseries.storage.location import Location

KEY_COLUMNS: Final = ("series", "sequence", "original_sequence", "erasure")
"""These columns show whether an erasure concerns an event."""


_RECORD_VERSION: Final = 1


@dataclass(frozen=True)
class Erasure:
    """Who erased the values of some events of a series, when and why.

    Attributes:
        id: its id; the erased events have it in the column `erasure`.
        commit: the number of the commit that erased them.
        time: the time of that commit, ISO-8601.
        principal: who erased them.
        reason: why.
        series: the name of the series.
        sequences: the requested sequences.
        events: the sequences of the erased events, including edits of originals.
        removed: the `sequences` of events that compaction had removed before.
        files: files and log entries that still held a value, relative to the store; the next
            maintenance that begins ten minutes or more after it removes them.
    """

    id: str
    commit: int
    time: str
    principal: str
    reason: str
    series: str
    sequences: tuple[int, ...]
    events: tuple[int, ...]
    removed: tuple[int, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def time_us(self) -> int:
        """The time of the commit, in microseconds."""
        return parse_instant(self.time)


@dataclass(frozen=True, slots=True)
class ErasureRecord:
    """The file of an erasure.

    Attributes:
        erasure: the erasure, without `files`.
        previous: the id of the erasure before; None for the first.
        log_version: the last entry of the log that may name a file with the values.
    """

    erasure: Erasure
    previous: str | None
    log_version: int

    def to_json(self) -> str:
        """Return the record as JSON; `parse_record` reads it back."""
        fields = {name: value for name, value in asdict(self.erasure).items() if name != "files"}
        record = {
            "version": _RECORD_VERSION,
            "previous": self.previous,
            "log_version": self.log_version,
            **fields,
        }
        return json.dumps(record, ensure_ascii=False, indent=1)


def parse_record(text: str) -> ErasureRecord:
    """Return the record in `text`; raise ValueError if it is damaged or of another version."""
    try:
        fields: dict[str, Any] = json.loads(text)
        version, previous = fields.pop("version"), fields.pop("previous")
        log_version = int(fields.pop("log_version"))
        if version != _RECORD_VERSION:
            raise ValueError(f"it has version {version}; accepted: {_RECORD_VERSION}")
        lists = {name: tuple(fields[name]) for name in ("sequences", "events", "removed")}
        return ErasureRecord(Erasure(**{**fields, **lists}), previous, log_version)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is not a record of an erasure: {error}") from error


@dataclass(slots=True)
class ErasedKeys:
    """The events of some erasures: by series, the sequences of events and of originals.

    An event is included if its sequence is in `events`, or if it is an edit and the sequence of its
    original is in `originals`.
    """

    events: dict[str, set[int]] = field(default_factory=dict)
    originals: dict[str, set[int]] = field(default_factory=dict)

    def add(self, erasure: Erasure) -> None:
        """Add the events of an erasure."""
        self.events.setdefault(erasure.series, set()).update(erasure.sequences, erasure.events)
        self.originals.setdefault(erasure.series, set()).update(erasure.sequences)

    def flag_values(self, rows: pa.Table) -> BoolArray:
        """Flag the included events that are not erased in `rows`, which has `KEY_COLUMNS`."""
        is_included = np.zeros(rows.num_rows, bool)
        for series, events in self.events.items():
            is_of_series = pc.equal(rows["series"].cast(pa.string()), series).to_numpy()
            if is_of_series.any():
                for name, sequences in (
                    ("sequence", events),
                    ("original_sequence", self.originals[series]),
                ):
                    numbers = to_int64(rows[name].fill_null(NO_SEQUENCE))
                    is_included |= is_of_series & np.isin(
                        numbers, np.array(sorted(sequences), np.int64)
                    )
        is_included &= rows[ERASURE_FIELD.name].is_null().to_numpy()
        return is_included

    def may_be_in(self, statistics: str | None) -> bool:
        """Return whether Delta's statistics of a file may show a value of an included event.

        An erased original takes no more edits, and those that it has are in `events`.
        """
        stats: Mapping[str, Any] = json.loads(statistics) if statistics else {}
        lowest, highest = stats.get("minValues") or {}, stats.get("maxValues") or {}
        if not (set(lowest) | set(highest)) - set(RESERVED_NAMES):
            return False
        if not all(name in ends for name in ("series", "sequence") for ends in (lowest, highest)):
            return True
        return any(
            lowest["series"] <= series <= highest["series"]
            and any(lowest["sequence"] <= sequence <= highest["sequence"] for sequence in sequences)
            for series, sequences in self.events.items()
        )


ERASURES: Final = ("_tseries", "erasures")


def record_path(location: Location, erasure_id: str) -> str:
    """Return the path of the record of an erasure."""
    return location.file(*ERASURES, f"{erasure_id}.json")


def write_record(location: Location, record: ErasureRecord) -> str:
    """Write the record of an erasure; return its path."""
    path = record_path(location, record.erasure.id)
    location.write_whole(path, record.to_json().encode())
    return path


def read_records(location: Location, erasure_id: str | None) -> Iterator[ErasureRecord]:
    """Yield the records of an erasure and of all before it, newest first.

    Raises:
        UnusableStore: a record is missing or damaged.
        OSError: a record cannot be read now.
    """
    while erasure_id is not None:
        path = record_path(location, erasure_id)
        try:
            record = parse_record(location.read_whole(path).decode())
        except (FileNotFoundError, ValueError) as error:
            why = location.redact(str(error))
            problem = f"the record '{path}' of an erasure cannot be read: {why}"
            raise damage_error("erasure record", location.root, problem, path) from error
        yield record
        erasure_id = record.previous


def flag_erased(
    location: Location, erasure_id: str | None, series: pa.ChunkedArray, sequences: pa.ChunkedArray
) -> BoolArray:
    """Flag the events of `series` and `sequences` that an erasure, or one before it, has erased.

    Raises:
        UnusableStore: a record is missing or damaged.
    """
    erased = {
        (record.erasure.series, sequence)
        for record in read_records(location, erasure_id)
        for sequence in record.erasure.events
    }
    keys = zip(series.to_pylist(), sequences.to_pylist(), strict=True)
    return np.array([key in erased for key in keys], bool)


def find_erased_series(
    location: Location, erasure_id: str | None, since: str | None
) -> set[str] | None:
    """Return the series of an erasure and of all before it, back to `since`, exclusive.

    Return None if `since` is not among them, or a record cannot be read.
    """
    names: set[str] = set()
    try:
        for record in read_records(location, erasure_id):
            if record.erasure.id == since:
                return names
            names.add(record.erasure.series)
    except UnusableStore:
        return None
    return names if since is None else None


def list_records(location: Location) -> list[ErasureRecord]:
    """Return all readable records, including those outside the chain."""
    records = []
    for path, _ in location.list_files(location.file(*ERASURES)):
        if path.endswith(".json"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                records.append(parse_record(location.read_whole(path).decode()))
    return records


Flag = Literal["log", "done"]
"""Says of an erasure that no log entry has its values any more, or that no file has them."""


def flag_erasure(location: Location, erasure_id: str, flag: Flag) -> None:
    """Note `flag` of an erasure, in an empty file beside its record."""
    location.write_whole(location.file(*ERASURES, f"{erasure_id}.{flag}"), b"")


def list_flagged(location: Location, flag: Flag) -> set[str]:
    """Return the ids of the erasures that have `flag`."""
    names = (os.path.basename(path) for path, _ in location.list_files(location.file(*ERASURES)))
    return {name.removesuffix(f".{flag}") for name in names if name.endswith(f".{flag}")}
