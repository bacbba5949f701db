"""Acts of erasing values, as values (semantics 18.6): who erased which events, when and why."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import parse_instant
from pyspark_tseries.model.arrays import NO_SEQUENCE, BoolArray, to_int64
from pyspark_tseries.model.columns import ERASURE_FIELD, RESERVED_NAMES

KEY_COLUMNS: Final = ("series", "sequence", "original_sequence", "erasure")
"""The columns that tell whether an act is about an event."""


_RECORD_VERSION: Final = 1


@dataclass(frozen=True)
class Erasure:
    """An act that has erased the values of some events of a series.

    Attributes:
        id: of the act; the column `erasure` of the events has it.
        commit: the number of the commit that erased them.
        time: of that commit, ISO-8601.
        principal: who did it.
        reason: why.
        series: the name of the series.
        sequences: the sequences that were asked for.
        events: the sequences of the events that the act erased, edits of originals included.
        removed: those of `sequences` whose events compaction had removed before.
        files: files and log entries that still held a value, relative to the store; the next
            maintenance that begins ten minutes or more after the act removes them.
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
    """An act as the store keeps it.

    Attributes:
        act: the act, without `files`.
        previous: the id of the act before; None for the first.
        log_version: the last entry of the log that may name a file with the values.
    """

    act: Erasure
    previous: str | None
    log_version: int

    def to_json(self) -> str:
        """The record as JSON; reads back with `parse_record`."""
        act = {name: value for name, value in asdict(self.act).items() if name != "files"}
        record = {
            "version": _RECORD_VERSION,
            "previous": self.previous,
            "log_version": self.log_version,
            **act,
        }
        return json.dumps(record, ensure_ascii=False, indent=1)


def parse_record(text: str) -> ErasureRecord:
    """The record in `text`; raises ValueError if it is damaged, or of another version."""
    try:
        act: dict[str, Any] = json.loads(text)
        version, previous = act.pop("version"), act.pop("previous")
        log_version = int(act.pop("log_version"))
        if version != _RECORD_VERSION:
            raise ValueError(f"it has version {version}; accepted: {_RECORD_VERSION}")
        lists = {name: tuple(act[name]) for name in ("sequences", "events", "removed")}
        return ErasureRecord(Erasure(**{**act, **lists}), previous, log_version)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no record of an erasure: {error}") from error


@dataclass(slots=True)
class ErasedKeys:
    """The events of some acts: by series, the sequences of events and of originals.

    An event is meant that has one of `events`, and an edit whose original is among `originals`.
    """

    events: dict[str, set[int]] = field(default_factory=dict)
    originals: dict[str, set[int]] = field(default_factory=dict)

    def add(self, act: Erasure) -> None:
        """Add the events of an act."""
        self.events.setdefault(act.series, set()).update(act.sequences, act.events)
        self.originals.setdefault(act.series, set()).update(act.sequences)

    def find_values(self, rows: pa.Table) -> BoolArray:
        """Flags of the events that are meant and not erased in `rows`, which has `KEY_COLUMNS`."""
        meant = np.zeros(rows.num_rows, bool)
        for series, events in self.events.items():
            mine = pc.equal(rows["series"].cast(pa.string()), series).to_numpy()
            if mine.any():
                for name, wanted in (
                    ("sequence", events),
                    ("original_sequence", self.originals[series]),
                ):
                    numbers = to_int64(rows[name].fill_null(NO_SEQUENCE))
                    meant |= mine & np.isin(numbers, np.array(sorted(wanted), np.int64))
        meant &= rows[ERASURE_FIELD.name].is_null().to_numpy()
        return meant

    def may_be_in(self, statistics: str | None) -> bool:
        """True if Delta's statistics of a file may have a value of an event that is meant."""
        said: Mapping[str, Any] = json.loads(statistics) if statistics else {}
        least, most = said.get("minValues") or {}, said.get("maxValues") or {}
        if not (set(least) | set(most)) - set(RESERVED_NAMES):
            return False
        if not all(name in ends for name in ("series", "sequence") for ends in (least, most)):
            return True
        return any(
            least["series"] <= series <= most["series"]
            and any(least["sequence"] <= each <= most["sequence"] for each in sequences)
            for series, sequences in self.events.items()
        )
