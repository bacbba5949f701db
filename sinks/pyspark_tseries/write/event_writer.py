"""Sorted runs become one file of events: numbered and written a part at a time.

A task that trusts the head it was given and a commit that repairs do this alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_tseries.model.columns import layout
from pyspark_tseries.model.series_index import Head, Longs, Note, delta_of
from pyspark_tseries.storage.data_files import (
    Extent,
    WrittenFile,
    extent_of,
    finished,
    write_events,
)
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.parquet_checksums import room_for
from pyspark_tseries.storage.parquet_layout import ROWS_PER_GROUP, parquet_options, rows_per
from pyspark_tseries.write.edits import standing
from pyspark_tseries.write.numbering import Numbered, number
from pyspark_tseries.write.rows import event_rows

__all__ = ["Merged", "Rules", "at_once", "merge", "summed"]

GROUP_BYTES: Final = 4 * 1024 * 1024
"""Uncompressed: a row group, where its rows are large, so that it can be read in parts."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How rows become events: see `attempts.Batch`; `assigned_us` is `number`'s `now_us`."""

    note: Note
    author: str
    policy: str
    assigned_us: int


@dataclass(frozen=True, slots=True)
class Merged:
    """A file of events, None where every row was dropped, and what `Numbered` says of them."""

    file: WrittenFile | None
    delta: pa.Table
    dropped: int = 0
    adjusted: int = 0
    example: dict[str, Any] | None = None


def _group_rows(rows: pa.Table) -> int:
    """How many rows like these make a row group."""
    return rows_per(rows, GROUP_BYTES, ROWS_PER_GROUP)


def merge(place: Place, path: str, tables: Iterable[pa.Table], head: Head, rules: Rules) -> Merged:
    """Numbers rows on top of `head` and writes them to `path`, relative to the store.

    Args:
        place: where the store lies.
        path: of the file; there is none where all rows are dropped.
        tables: the rows, in parts as `rising` gives them.
        head: the store before the batch.
        rules: what they become.

    Raises:
        UpdateFailed: a row may not be added; the file is to be removed.
    """
    file = _EventFile(place, path)
    stood = _Moving(head)
    dropped = adjusted = 0
    example = None
    try:
        for rows in tables:
            series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
            events = number(series, given, stood, rules.policy, rules.assigned_us)
            if len(events.order):
                file.add(event_rows(rows, events, rules.note, rules.author))
            stood.advance(events.delta)
            dropped, adjusted = dropped + events.dropped, adjusted + events.adjusted
            example = example or events.example
    finally:
        written = file.close()
    return Merged(written, stood.delta(), dropped, adjusted, example)


def at_once(place: Place, path: str, rows: pa.Table, events: Numbered, rules: Rules) -> Merged:
    """As `merge`, of rows that are in memory whole, and of what `number` says of them."""
    file = None
    if len(events.order):
        table = event_rows(rows, events, rules.note, rules.author)
        file = write_events(place, path, table, _group_rows(rows))
    return Merged(file, events.delta, events.dropped, events.adjusted, events.example)


def summed(parts: Sequence[Merged]) -> Numbered:
    """All parts together, without their events; no two have a series in common."""
    nothing: Longs = np.empty(0, np.int64)
    empty = delta_of(pa.array([], pa.string()), Head().of([]))
    examples = [part.example for part in parts if part.example]
    return Numbered(
        order=nothing,
        names=pa.array([], pa.string()),
        codes=nothing,
        sequence=nothing,
        timestamp_us=nothing,
        delta=pa.concat_tables([empty, *(part.delta for part in parts)]).combine_chunks(),
        dropped=sum(part.dropped for part in parts),
        adjusted=sum(part.adjusted for part in parts),
        example=min(examples, key=lambda example: str(example["series"]), default=None),
    )


class _Moving:
    """A head that moves on with parts in rising order: only the last series may go on."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._last: pa.Table | None = None
        self._deltas: list[pa.Table] = []

    def of(self, names: Sequence[str]) -> dict[str, Longs]:
        if self._last is None:
            return self._head.of(names)
        return standing(pa.array(names, pa.string()), self._head, self._last)

    def advance(self, delta: pa.Table) -> None:
        if delta.num_rows:
            self._deltas.append(delta)
            self._last = delta.slice(delta.num_rows - 1).combine_chunks()

    def delta(self) -> pa.Table:
        """Of all parts; a series in two of them stands where the later one says."""
        if not self._deltas:
            return delta_of(pa.array([], pa.string()), self._head.of([]))
        whole = pa.concat_tables(self._deltas).combine_chunks()
        series = whole["series"].combine_chunks()
        goes_on = pc.equal(series.slice(0, len(series) - 1), series.slice(1)).to_pylist()
        return whole.filter(pa.array([not same for same in goes_on] + [True]))


@dataclass
class _EventFile:
    """A file of events that is written in row groups as its rows come."""

    place: Place
    path: str
    _held: list[pa.Table] = field(default_factory=list)
    _extent: Extent | None = None
    _writer: pq.ParquetWriter | None = None
    _options: dict[str, Any] = field(default_factory=dict)
    _made: list[Any] = field(default_factory=list)
    _groups: int = 0

    def add(self, events: pa.Table) -> None:
        """Takes the next events, at least one."""
        if self._extent is None:
            self._options = parquet_options(events)
        extent = extent_of(events)
        self._extent = self._extent.followed(extent) if self._extent else extent
        schema = pa.schema([f.with_nullable(True) for f in layout(_values(events))][:-1])
        self._held.append(events.cast(schema))
        rows = sum(table.num_rows for table in self._held)
        group = _group_rows(events)
        if rows >= group:
            self._write(rows // group * group, group)

    def _write(self, rows: int, group: int) -> None:
        whole = pa.concat_tables(self._held)
        if self._writer is None:
            full = self.place.file(self.path)
            sink = self.place.write(full)
            self._writer = pq.ParquetWriter(
                sink, whole.schema, metadata_collector=self._made, **self._options
            )
            self._sink = sink
        self._writer.write_table(whole.slice(0, rows), row_group_size=group)
        self._groups += -(-rows // group)
        self._held = [whole.slice(rows)] if whole.num_rows > rows else []

    def close(self) -> WrittenFile | None:
        """Ends the file; None where it has no events, and then it is not there."""
        if self._held:
            rows = sum(table.num_rows for table in self._held)
            self._write(rows, max(rows, 1))
        if self._writer is None or self._extent is None:
            return None
        if self.place.local:
            self._writer.add_key_value_metadata(room_for(self._writer.schema, self._groups))
        self._writer.close()
        self._sink.close()
        size = finished(self.place, self.place.file(self.path), self._made[0])
        return WrittenFile(self.path, size, self._extent.statistics())


def _values(events: pa.Table) -> list[pa.Field]:
    known = set(layout([]).names)
    return [column for column in events.schema if column.name not in known]
