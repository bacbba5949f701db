"""Answering a range query from a store's files: prune, read, hide, select.

Needs no Delta: a task answers for a slice of the series from the snapshot that was planned.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.columns import INSTANT, layout, query_schema
from pyspark_tseries.files import DataFile, Snapshot
from pyspark_tseries.heads import ABSENT, FLOORS, Head
from pyspark_tseries.pruning import Bounds, bounds_of
from pyspark_tseries.ranges import Query
from pyspark_tseries.retention import RetainedRange, kept
from pyspark_tseries.selection import Events, select
from pyspark_tseries.slices import EVERYTHING, Slice, by_name
from pyspark_tseries.standing import longs

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
    rows = rows.filter(pa.array(visible(rows, head, snapshot.retained)))
    distinct, codes = by_name(rows["series"])
    order = np.lexsort((longs(rows["sequence"]), codes))
    events = Events(
        names=distinct,
        codes=codes[order],
        sequence=longs(rows["sequence"])[order],
        us=longs(rows["timestamp"])[order],
        original=longs(rows["original_sequence"].fill_null(ABSENT))[order],
    )
    found = select(events, query)
    return Answer(rows.select(names).take(pa.array(order[found.rows])), found.selected)


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
        self.schema = pa.schema([*query_schema(snapshot.values), layout([]).field("commit")])
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
        names = self._names
        if names is None:
            standing = dict(head.columns)
            floors = {name: standing.get(name, np.array([low])) for name, low in FLOORS.items()}
        else:
            standing, floors = head.of(names), head.floors(names)
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

    def read(self, columns: list[str]) -> pa.Table:
        """The rows that may be needed, in the order of files."""
        tables = [
            self._read(self.originals, columns, self.filter),
            self._read(self.edits, columns, self._series_filter()),
        ]
        return pa.concat_tables(tables)

    @property
    def filter(self) -> pc.Expression | None:
        """Which rows of originals may be needed."""
        return _both(self._series_filter(), self._row_filter())

    def _read(
        self, files: Iterable[DataFile], columns: list[str], wanted: pc.Expression | None
    ) -> pa.Table:
        paths = [file.path for file in files]
        if not paths:
            return self.schema.empty_table().select(columns)
        source = self._place.dataset(paths, self.schema)
        return source.to_table(columns=columns, filter=wanted)

    def _series_filter(self) -> pc.Expression | None:
        early = None if self._as_of is None else pc.field("commit") <= self._as_of
        return _both(self._name_filter(), early)

    def _name_filter(self) -> pc.Expression | None:
        if self._names is None:
            return self._part.expression()
        if not self._names:
            return pc.scalar(False)
        column = pc.field("series")
        wanted = (column >= self._names[0]) & (column <= self._names[-1])
        if len(self._names) > 1:
            wanted &= column.isin(pa.array(self._names, pa.string()))
        return _both(wanted, self._part.expression())

    def _row_filter(self) -> pc.Expression | None:
        bounds = self._bounds.over(0, len(self._bounds.least))
        if bounds is None:
            return None
        least, most, least_us, most_us = bounds
        wanted = None
        if least > 0:
            wanted = pc.field("sequence") >= least
        if most < 2**61:
            wanted = _both(wanted, pc.field("sequence") <= most)
        if abs(least_us) < 2**60:
            wanted = _both(wanted, pc.field("timestamp") >= pa.scalar(least_us).cast(INSTANT))
        if abs(most_us) < 2**60:
            wanted = _both(wanted, pc.field("timestamp") <= pa.scalar(most_us).cast(INSTANT))
        return wanted


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _known(series: Sequence[str], head: Head) -> list[str]:
    """The wanted series that have events, sorted."""
    names = sorted(set(series))
    there = head.of(names)["last_sequence"] != ABSENT
    return [name for name, known in zip(names, there.tolist(), strict=True) if known]
