"""Stream the result of a query in bounded memory: some series at a time, or a part of a large one.

A *part* is a range of keys whose rows fit into the budget. Whether an original belongs to a result
is decided by itself and its edits where the ends of the ranges are times or sequences, and the
index turns most other ends into such. Then a series may be cut between originals; a query that
counts from elsewhere reads each series as a whole. The edits of a part are always held.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_tseries.model.arrays import ALL_KEYS, NEVER_US, NO_SEQUENCE, Int64Array, KeyRange
from pyspark_tseries.model.columns import result_schema
from pyspark_tseries.model.ranges import FULL_RANGE, NO_LIMIT, Point, Query, Range
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.read.scan import ALL_SEQUENCES, Scan, pick_columns, run_query
from pyspark_tseries.read.select import compute_bounds, fix_view
from pyspark_tseries.storage.snapshot import Snapshot

PART_BYTES: Final = 32 * 1024 * 1024
"""The rows of a part take about this much memory; evaluating them takes a few times as much."""

BATCH_ROWS: Final = 64 * 1024

_CELL_BYTES: Final = 16
_COMPRESSION: Final = 8
"""Assume that a file's rows take this many times its size in memory, or so much a cell."""

_FIRST_ROWS: Final = 16 * 1024
"""The first part shows how much a row takes; compression may hide a multiple of that."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some series, or the originals of one between two sequences, both inclusive."""

    names: list[str]
    keys: KeyRange = ALL_KEYS
    sequences: tuple[int, int] = ALL_SEQUENCES


class _Budget:
    """How many rows the next part may have."""

    def __init__(self, row_bytes: float) -> None:
        self._row_bytes = row_bytes
        self._most = _FIRST_ROWS

    @property
    def rows(self) -> int:
        return max(1, min(self._most, int(PART_BYTES / self._row_bytes)))

    def expect(self, row_bytes: float) -> None:
        """Take note of what a row may need."""
        self._row_bytes = max(self._row_bytes, row_bytes)

    def learn(self, rows: pa.Table) -> None:
        """Take note of what the rows of a part have needed; the next may have eight times as many.

        Series of long rows may follow those of short ones.
        """
        self._most = min(8 * self._most, PART_BYTES)
        if rows.num_rows:
            self.expect(rows.nbytes / rows.num_rows)


def stream_query(
    snapshot: Snapshot,
    index: SeriesIndex,
    query: Query,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield what `run_query` returns, in batches of at most BATCH_ROWS; raise what it raises."""
    schema = stream_schema(snapshot, columns)
    budget = _Budget(_CELL_BYTES * len(schema))
    for part in _plan_parts(snapshot, index, query, names, budget):
        asked = query
        if part.sequences != ALL_SEQUENCES:
            view = _fix_view(query, index, part.names[0])
            assert view is not None
            asked = dataclasses.replace(query, view=view)
        answer = run_query(
            snapshot,
            index,
            asked,
            part.names if names is not None or part.sequences != ALL_SEQUENCES else None,
            part.keys,
            columns=schema.names,
            sequences=part.sequences,
        )
        budget.learn(answer.table)
        yield from answer.table.cast(schema).to_batches(BATCH_ROWS)


def stream_schema(snapshot: Snapshot, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of the table of `run_query`; raise InvalidQuery for an unknown column."""
    schema = pick_columns(result_schema(snapshot.values), columns)
    return pa.schema([field.with_nullable(True) for field in schema])


def _plan_parts(
    snapshot: Snapshot,
    index: SeriesIndex,
    query: Query,
    names: Sequence[str] | None,
    budget: "_Budget",
) -> Iterator[_Part]:
    chosen = sorted(index.ids.names()[: index.columns.rows]) if names is None else list(names)
    states = index.lookup(chosen)
    chosen = [chosen[row] for row in np.flatnonzero(states["last_sequence"] != NO_SEQUENCE)]
    if not chosen:
        return
    scan = Scan(snapshot, index, query, names)
    files = [*scan.originals, *scan.edits]
    stored = sum(file.rows for file in files)
    budget.expect(_COMPRESSION * sum(file.size for file in files) / max(stored, 1))
    low, high = _sequence_ends(snapshot, index, query, chosen, scan)
    rows = np.maximum(high - low + 1, 1)
    asked = rows if rows.sum() <= stored else np.ceil(rows * (stored / rows.sum()))
    first = 0
    held = 0.0
    for place, name in enumerate(chosen):
        if held and held + asked[place] > budget.rows:
            yield _join(chosen, first, place)
            first, held = place, 0.0
        held += float(asked[place])
        if held > budget.rows and _fix_view(query, index, name) is not None:
            start, last = int(low[place]), int(high[place])
            while start <= last:
                step = max(1, int(budget.rows * rows[place] / asked[place]))
                yield _Part([name], sequences=(start, min(start + step - 1, last)))
                start += step
            first, held = place + 1, 0.0
    if first < len(chosen):
        yield _join(chosen, first, len(chosen))


def _join(chosen: Sequence[str], first: int, end: int) -> _Part:
    beyond = (chosen[end], 0) if end < len(chosen) else None
    return _Part(list(chosen[first:end]), KeyRange((chosen[first], 0), beyond))


def _sequence_ends(
    snapshot: Snapshot, index: SeriesIndex, query: Query, names: list[str], scan: Scan
) -> tuple[Int64Array, Int64Array]:
    """Return the lowest and highest sequence that the query may need of each series."""
    states, floors = index.lookup(names), index.min_retained(names)
    edits = sum(file.rows for file in scan.edits)
    bounds = compute_bounds(query, snapshot.settings.retained, states, floors, edits)
    lowest = min((file.min_sequence for file in scan.originals), default=0)
    return (
        np.maximum(bounds.min_sequence, lowest),
        np.minimum(bounds.max_sequence, states["last_sequence"]),
    )


def _fix_view(query: Query, index: SeriesIndex, name: str) -> Range | None:
    """Return the view range with fixed ends of one kind; None if rows elsewhere decide them."""
    if query.kind != "values" or query.limit != NO_LIMIT:
        return None
    ends = query.edits.anchor.kind, query.edits.span.kind
    if query.edits != FULL_RANGE and ends not in (("time", "time"), ("sequence", "sequence")):
        return None
    view = query.view
    if view.anchor.kind == "last_us":
        newest_us = int(index.lookup([name])["original_us"][0])
        if newest_us == NEVER_US:
            return None
        view = Range(Point("time", newest_us - view.anchor.value), view.span)
    return fix_view(view)
