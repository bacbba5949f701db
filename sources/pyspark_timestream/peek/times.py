"""Finds what may be the time of an event: fields, headers, and the record's timestamp.

A candidate is readable as a time between 1990 and 2100 in most of the records that have it. Its
unit follows from its type, from its text, or from the range that its numbers are in. The order is
by name first, then by nearness to the record's timestamp. A number whose name does not suggest a
time, and that is far from the record's, may be anything: it comes after the record's timestamp.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.connector.event_time import (
    TIME_UNITS,
    Times,
    read_record_times,
    read_value_times,
)
from pyspark_timestream.kafka.decode.framing import HEADERS
from pyspark_timestream.kafka.decode.records import read_header
from pyspark_timestream.kafka.decode.value_samples import PROBABLE_US, suggests_secret

__all__ = ["Candidate", "can_be_time", "find_candidates"]

_DAY_US: Final = 86_400_000_000
_YEAR_US: Final = 366 * _DAY_US

_EVENT: Final = frozenset(
    ("ts", "time", "timestamp", "event", "occurred", "occurrence", "happened", "datetime")
)
_RELATED: Final = frozenset(
    ("created", "creation", "at", "date", "when", "start", "started", "measured", "observed")
)
_OTHER: Final = frozenset(
    (
        *("updated", "modified", "processed", "processing", "ingested", "ingest", "ingestion"),
        *("received", "loaded", "expires", "expiry", "expired", "deleted", "end", "ended"),
        *("until", "valid", "birth", "born", "due"),
    )
)
"""Words of times at which something else happened than the event."""

_WORD: Final = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_EVENT_NAME, _RELATED_NAME, _RECORD, _PLAIN_NAME, _OTHER_NAME = range(5)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible `startTime`.

    Attributes:
        source: the text of option `startTime`.
        kind: what is there: `timestamp`, `date`, `text`, `number`, or the record's own.
        unit: the unit of numbers; empty where none is needed.
        readable: in how many records there is a plausible time.
        first_us: the earliest of these.
        last_us: the latest.
        least_lag_us: how far they lie behind their records' timestamps, at least; negative if
            ahead. None without timestamps.
        most_lag_us: the same, at most.
    """

    source: str
    kind: str
    unit: str
    readable: int
    first_us: int
    last_us: int
    least_lag_us: int | None = None
    most_lag_us: int | None = None


def can_be_time(kind: pa.DataType) -> bool:
    """Check whether a field of this type may hold a time."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date32(kind)
    )


def find_candidates(
    fields: Mapping[str, Sequence[pa.Array]],
    types: Mapping[str, pa.DataType],
    headers: pa.Array,
    timestamps_ms: pa.Array,
) -> tuple[Candidate, ...]:
    """Find the candidates for the event time of n records, the best one first.

    Args:
        fields: path -> the field's contents, in pieces that add up to n.
        types: path -> the type of its column.
        headers: the records' headers.
        timestamps_ms: the records' timestamps.
    """
    record = read_record_times(timestamps_ms)
    ranked: list[tuple[tuple[int, int, int], Candidate]] = []
    contents = [(f"field:{path}", pieces, types.get(path)) for path, pieces in fields.items()]
    contents += [
        (f"header:{name}", [read_header(headers, name)], None) for name in _list_headers(headers)
    ]
    for place, (source, pieces, kind) in enumerate(contents):
        found = _examine(source, pieces, kind, record)
        if found is not None:
            nearness = _rank_lag(found.least_lag_us, found.most_lag_us)
            rank = _rank_name(source)
            if rank == _PLAIN_NAME and (found.kind != "number" or nearness == 0):
                # It can hardly be anything but a time.
                rank = _RELATED_NAME
            ranked.append(((rank, nearness, place), found))
    own = _describe("record:timestamp", "record", "", record, record)
    if own is not None:
        ranked.append(((_RECORD, 0, 0), own))
    return tuple(each for _, each in sorted(ranked, key=lambda pair: pair[0]))


def _list_headers(headers: pa.Array) -> list[str]:
    names = [each["key"] for record in headers.to_pylist() for each in record or ()]
    return [
        name
        for name in dict.fromkeys(names)
        if name.strip()
        and name.isprintable()
        and not suggests_secret(name)
        and name not in HEADERS.values()
    ]


def _examine(
    source: str, pieces: Sequence[pa.Array], kind: pa.DataType | None, record: Times
) -> Candidate | None:
    present = sum(len(piece) - piece.null_count for piece in pieces)
    read = {unit: _read(pieces, unit) for unit in TIME_UNITS}
    counts = {unit: int(np.count_nonzero(known)) for unit, (_, known) in read.items()}
    unit = max(counts, key=lambda each: counts[each])
    if not present or 2 * counts[unit] <= present:
        return None
    # What has its own unit is read alike in all of them.
    is_number = len(set(counts.values())) > 1
    name = "number" if is_number else "text"
    if kind is not None and pa.types.is_timestamp(kind):
        name = "timestamp"
    if kind is not None and pa.types.is_date32(kind):
        name = "date"
    return _describe(source, name, unit if is_number else "", read[unit], record)


def _read(pieces: Sequence[pa.Array], unit: str) -> Times:
    """Read the plausible times of a field's pieces."""
    parts = [read_value_times(piece, unit) for piece in pieces]
    us = np.concatenate([part for part, _ in parts])
    known = np.concatenate([part for _, part in parts])
    first, end = PROBABLE_US
    return us, known & (us >= first) & (us < end)


def _describe(source: str, kind: str, unit: str, times: Times, record: Times) -> Candidate | None:
    us, known = times
    if not known.any():
        return None
    both = known & record[1]
    lags = (record[0] - us)[both].tolist()
    return Candidate(
        source, kind, unit, int(np.count_nonzero(known)), int(us[known].min()),
        int(us[known].max()), min(lags, default=None), max(lags, default=None),
    )  # fmt: skip


def _rank_name(source: str) -> int:
    """Rank a field or header by the words of its last name; less is better."""
    name = re.split("[.:]", source)[-1]
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _OTHER:
        return _OTHER_NAME
    if words & _EVENT:
        return _EVENT_NAME
    return _RELATED_NAME if words & _RELATED else _PLAIN_NAME


def _rank_lag(least_us: int | None, most_us: int | None) -> int:
    if least_us is None or most_us is None:
        return 1
    middle = abs(statistics.mean((least_us, most_us)))
    return 0 if middle <= _DAY_US else 1 if middle <= _YEAR_US else 2
