"""Answering a range query from a store's files: prune, read, hide, select.

Needs no Delta: a task answers for a slice of the series from the snapshot that was planned.
"""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.columns import query_schema
from pyspark_tseries.model.query import Query
from pyspark_tseries.model.retention import UNLIMITED, RetainedRange, kept
from pyspark_tseries.model.series_index import ABSENT, FLOORS, Head
from pyspark_tseries.model.series_state import longs
from pyspark_tseries.model.slices import EVERYTHING, Slice, by_name, key_order
from pyspark_tseries.read.bounds import HIGHEST, LOWEST, Bounds, bounds_of
from pyspark_tseries.read.select import Events, select
from pyspark_tseries.storage.data_files import DataFile, Snapshot
from pyspark_tseries.storage.row_filter import ANY, Sieve
from pyspark_tseries.storage.row_groups import read, stream

__all__ = ["KEYS", "Answer", "Scan", "answer", "visible"]

KEYS = ("series", "sequence", "timestamp", "original_sequence", "original_timestamp")
"""The columns that a query is evaluated by."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result's rows, per series in the query's order, and their number before the limit."""

    table: pa.Table
    selected: int


def answer(
    snapshot: Snapshot,
    head: Head,
    query: Query,
    series: Sequence[str] | None = None,
    part: Slice = EVERYTHING,
    columns: Sequence[str] | None = None,
) -> Answer:
    """The result of `query`.

    Args:
        snapshot: the store.
        head: the snapshot's.
        query: what is asked of each series.
        series: the wanted ones; None for all. Unknown ones are empty.
        part: only the series in it; it divides no series.
        columns: names of the result's columns; None for all of `query_schema`.

    Raises:
        InvalidQuery: a relative time, and the anchor has no timestamp in some series.
    """
    schema = query_schema(snapshot.values)
    names = schema.names if columns is None else list(columns)
    scan = Scan(snapshot, head, query, series, part)
    rows = scan.read(list(dict.fromkeys([*names, *KEYS])))
    if _hides(snapshot.retained, head):
        rows = rows.filter(pa.array(visible(rows, head, snapshot.retained)))
    distinct, codes = by_name(rows["series"])
    order = key_order(codes, longs(rows["sequence"]))
    events = Events(
        names=distinct,
        codes=codes[order],
        sequence=longs(rows["sequence"])[order],
        us=longs(rows["timestamp"])[order],
        original=longs(rows["original_sequence"].fill_null(ABSENT))[order],
    )
    found = select(events, query)
    return Answer(rows.select(names).take(pa.array(order[found.rows])), found.selected)


def _hides(retained: RetainedRange, head: Head) -> bool:
    """Whether there may be an event that no query sees."""
    return retained != UNLIMITED or any(name in head.columns for name in FLOORS)


def visible(rows: pa.Table, head: Head, retained: RetainedRange) -> npt.NDArray[np.bool_]:
    """Which rows a query sees: originals inside the retained range, and the edits of such."""
    names, codes = by_name(rows["series"])
    distinct = names.to_pylist()
    at, floors = head.of(distinct), head.floors(distinct)
    return kept(
        retained,
        longs(pc.coalesce(rows["original_sequence"], rows["sequence"])),
        longs(pc.coalesce(rows["original_timestamp"], rows["timestamp"])),
        at["last_sequence"][codes],
        at["original_us"][codes],
        floors["floor_sequence"][codes],
        floors["floor_us"][codes],
    )


class Scan:
    """The files and rows that a query needs of a snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        head: Head,
        query: Query,
        series: Sequence[str] | None,
        part: Slice = EVERYTHING,
    ) -> None:
        self._place = snapshot.place
        self._part = part
        self._schema = query_schema(snapshot.values)
        self._as_of = snapshot.as_of
        self._names = None if series is None else _known(series, head)
        touched = [file for file in snapshot.files if self._touches(file)]
        self.edits = [file for file in touched if file.kind == "edit"]
        self._bounds = self._bounds_of(query, snapshot, head)
        self.originals = [
            file for file in touched if file.kind != "edit" and self._may_be_needed(file)
        ]

    def _touches(self, file: DataFile) -> bool:
        if not self._part.touches(file.first, file.last):
            return False
        return self._names is None or self._between(file.first, file.last) > 0

    def _span(self, first: str, last: str) -> tuple[int, int]:
        assert self._names is not None
        return bisect_left(self._names, first), bisect_right(self._names, last)

    def _between(self, first: str, last: str) -> int:
        start, end = self._span(first, last)
        return end - start

    def _bounds_of(self, query: Query, snapshot: Snapshot, head: Head) -> Bounds:
        if self._names is not None or not head.columns.rows:
            names = self._names or []
            standing, floors = head.of(names), head.floors(names)
        else:
            # Every bound grows with where a series stands, so these two have the widest ones.
            standing = {name: head.columns.ends(name) for name in head.columns}
            floors = {name: standing.get(name, np.full(2, low)) for name, low in FLOORS.items()}
        edits = sum(file.rows for file in self.edits)
        return bounds_of(query, snapshot.retained, standing, floors, edits)

    def _may_be_needed(self, file: DataFile) -> bool:
        span = (0, len(self._bounds.least))
        if self._names is not None:
            span = self._span(file.first, file.last)
        bounds = self._bounds.over(*span)
        if bounds is None:
            return False
        least, most, least_us, most_us = bounds
        return (
            file.most_sequence >= least
            and file.least_sequence <= most
            and file.most_us >= least_us
            and file.least_us <= most_us
        )

    def read(self, columns: Sequence[str]) -> pa.Table:
        """The rows that may be needed, in the order of files."""
        schema = self._columns(columns)
        tables = [
            read(self._place, self.originals, schema, self._sieve()),
            read(self._place, self.edits, schema, self._of_series()),
        ]
        return pa.concat_tables(tables)

    def stream(self, path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows that may be needed of one file of originals, a few row groups at a time."""
        schema = self._columns(columns)
        for file in self.originals:
            if file.path == path:
                yield from stream(self._place, file, schema, self._sieve())

    def _columns(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self._schema.field(name) for name in names])

    def _of_series(self) -> Sieve:
        commits = ANY if self._as_of is None else (LOWEST, self._as_of)
        return Sieve(self._names, self._part, commits=commits)

    def _sieve(self) -> Sieve:
        """Which originals may be needed."""
        bounds = self._bounds.over(0, len(self._bounds.least))
        if bounds is None:
            return self._of_series()
        least, most, least_us, most_us = bounds
        return dataclasses.replace(
            self._of_series(),
            sequences=(least if least > 0 else LOWEST, min(most, HIGHEST)),
            times=(max(least_us, LOWEST), min(most_us, HIGHEST)),
        )


def _known(series: Sequence[str], head: Head) -> list[str]:
    """The wanted series that have events, sorted."""
    names = sorted(set(series))
    there = head.of(names)["last_sequence"] != ABSENT
    return [name for name, known in zip(names, there.tolist(), strict=True) if known]
