"""Number sorted rows and write them to one file of events, part by part.

Tasks use the index that the driver expects, commits the current one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_tseries.model.arrays import Int64Array
from pyspark_tseries.model.columns import table_schema
from pyspark_tseries.model.series_index import CommitMetadata, SeriesIndex, make_change
from pyspark_tseries.storage.data_files import (
    FileStats,
    WrittenFile,
    compute_stats,
    seal_file,
    write_events,
)
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.parquet import (
    ROWS_PER_GROUP,
    checksum_placeholder,
    rows_for_bytes,
    writer_options,
)
from pyspark_tseries.write.edits import lookup_after
from pyspark_tseries.write.numbering import (
    Counts,
    FutureRule,
    NumberedRows,
    SeriesLookup,
    number_rows,
)
from pyspark_tseries.write.rows import build_events

MAX_GROUP_BYTES: Final = 4 * 1024 * 1024
"""A row group of large rows ends at this uncompressed size."""


@dataclass(frozen=True, slots=True)
class WriteRules:
    """The commit's metadata and a batch's options; for the last two see `number_rows`."""

    metadata: CommitMetadata
    author: str
    out_of_order: str
    assigned_us: int
    future: FutureRule | None = None

    def number(self, series: pa.Array, given: pa.Array, index: SeriesLookup) -> NumberedRows:
        """Call `number_rows` with these rules."""
        choices = self.out_of_order, self.assigned_us
        return number_rows(series, given, index, *choices, future=self.future)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A file of events, None if all rows were dropped, with `change` and `counts` of its rows."""

    file: WrittenFile | None
    change: pa.Table
    counts: Counts


def _group_rows(rows: pa.Table) -> int:
    """Return how many rows like these a row group has."""
    return rows_for_bytes(rows, MAX_GROUP_BYTES, ROWS_PER_GROUP)


def write_sorted(
    location: Location, path: str, tables: Iterable[pa.Table], index: SeriesIndex, rules: WriteRules
) -> WriteResult:
    """Number rows on top of `index` and write them to `path`, relative to the store.

    `tables` come from `merge_sorted`. If all rows are dropped, write no file.
    """
    file = _EventFile(location, path)
    stood = _MovingIndex(index)
    counts = Counts()
    try:
        for rows in tables:
            series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
            events = rules.number(series, given, stood)
            if len(events.order):
                file.add(build_events(rows, events, rules.metadata, rules.author))
            stood.advance(events.change)
            counts += events.counts
    finally:
        written = file.close()
    return WriteResult(written, stood.change(), counts)


def write_numbered(
    location: Location, path: str, rows: pa.Table, events: NumberedRows, rules: WriteRules
) -> WriteResult:
    """Like `write_sorted`, for rows in memory that `number_rows` has numbered."""
    file = None
    if len(events.order):
        table = build_events(rows, events, rules.metadata, rules.author)
        file = write_events(location, path, table, _group_rows(rows))
    return WriteResult(file, events.change, events.counts)


def sum_results(results: Sequence[WriteResult]) -> WriteResult:
    """Combine results without their files; no two have a series in common."""
    if len(results) == 1:
        return replace(results[0], file=None)
    empty = make_change(pa.array([], pa.string()), SeriesIndex().lookup([]))
    change = pa.concat_tables([empty, *(result.change for result in results)]).combine_chunks()
    # Use the first series' example, as if the rows had been numbered in one go.
    counts = sorted((result.counts for result in results), key=Counts.first_series)
    return WriteResult(None, change, sum(counts, Counts()))


class _MovingIndex:
    """An index that follows parts in rising order; only a part's last series may continue."""

    def __init__(self, index: SeriesIndex) -> None:
        self._index = index
        self._last: pa.Table | None = None
        self._changes: list[pa.Table] = []

    @property
    def cti_us(self) -> int:
        return self._index.cti_us

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        if self._last is None:
            return self._index.lookup(names)
        return lookup_after(pa.array(names, pa.string()), self._index, self._last)

    def advance(self, change: pa.Table) -> None:
        if change.num_rows:
            self._changes.append(change)
            self._last = change.slice(change.num_rows - 1).combine_chunks()

    def change(self) -> pa.Table:
        """Return the index change of all parts; for a series in two parts, the later one counts."""
        if not self._changes:
            return make_change(pa.array([], pa.string()), self._index.lookup([]))
        whole = pa.concat_tables(self._changes).combine_chunks()
        series = whole["series"].combine_chunks()
        goes_on = pc.equal(series.slice(0, len(series) - 1), series.slice(1)).to_pylist()
        return whole.filter(pa.array([not same for same in goes_on] + [True]))


@dataclass
class _EventFile:
    """A file of events that writes row groups as its rows come."""

    location: Location
    path: str
    _held: list[pa.Table] = field(default_factory=list)
    _stats: FileStats | None = None
    _writer: pq.ParquetWriter | None = None
    _options: dict[str, Any] = field(default_factory=dict)
    _made: list[Any] = field(default_factory=list)
    _groups: int = 0

    def add(self, events: pa.Table) -> None:
        """Add the next events, at least one."""
        if self._stats is None:
            self._options = writer_options(events, is_whole=False)
        stats = compute_stats(events)
        self._stats = self._stats.extended_with(stats) if self._stats else stats
        schema = pa.schema(
            [f.with_nullable(True) for f in table_schema(_value_fields(events))][:-1]
        )
        self._held.append(events.cast(schema))
        rows = sum(table.num_rows for table in self._held)
        group = _group_rows(events)
        if rows >= group:  # Write whole row groups, and hold the rest.
            self._write(rows // group * group, group)

    def _write(self, rows: int, group: int) -> None:
        whole = pa.concat_tables(self._held)
        if self._writer is None:
            full = self.location.file(self.path)
            sink = self.location.write(full)
            self._writer = pq.ParquetWriter(
                sink, whole.schema, metadata_collector=self._made, **self._options
            )
            self._sink = sink
        self._writer.write_table(whole.slice(0, rows), row_group_size=group)
        self._groups += -(-rows // group)
        self._held = [whole.slice(rows)] if whole.num_rows > rows else []

    def close(self) -> WrittenFile | None:
        """Complete the file; return None, and write no file, if there were no events."""
        if self._held:
            rows = sum(table.num_rows for table in self._held)
            self._write(rows, max(rows, 1))
        if self._writer is None or self._stats is None:
            return None
        if self.location.is_local:
            self._writer.add_key_value_metadata(
                checksum_placeholder(self._writer.schema, self._groups)
            )
        self._writer.close()
        self._sink.close()
        size = seal_file(self.location, self.location.file(self.path), self._made[0])
        return WrittenFile(self.path, size, self._stats)


def _value_fields(events: pa.Table) -> list[pa.Field]:
    known = set(table_schema([]).names)
    return [column for column in events.schema if column.name not in known]
