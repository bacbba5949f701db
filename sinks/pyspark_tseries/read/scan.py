"""Run a range query on the files of a snapshot: prune, read, hide, select (semantics 21).

A scan skips files and row groups outside the query's bounds and reads the rest. Events outside the
retained range are hidden, and `select` picks the result. A task needs no Delta: it runs the query
on the planned snapshot, for one key range.

A result is streamed in bounded memory: some series at a time, or a *part* of a large one, which is
a range of keys with rows that fit into the budget. If the ends of the query's ranges are times or
sequences, only an original and its edits decide whether it is in the result; the index turns most
other ends into these. Then a series may be cut between originals. A query that counts events reads
each series as a whole. Memory always holds all edits of a part.
"""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    MAX_NUMBER,
    MIN_NUMBER,
    NEVER_US,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
    KeyRange,
    SizedKey,
    encode_runs,
    find_number_runs,
    find_runs_of,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.columns import (
    EDIT_TIME,
    ERASURE_FIELD,
    SHOWN_FROM,
    originals_of,
    query_schema,
    result_schema,
    select_fields,
    show_columns,
)
from pyspark_tseries.model.ranges import (
    NO_LIMIT,
    UNLIMITED,
    Point,
    Query,
    Range,
    RetainedRange,
    min_retained,
)
from pyspark_tseries.model.series_index import FLOOR_DEFAULTS, SeriesIndex
from pyspark_tseries.read.select import (
    Bounds,
    SeriesEvents,
    compute_bounds,
    is_absolute,
    make_plain,
    pin_view,
    select,
)
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.row_reader import (
    ReadRequest,
    RowFilter,
    fold_files,
    read_rows,
    scan_file,
)
from pyspark_tseries.storage.snapshot import Snapshot

EVALUATED_COLUMNS = ("series", "sequence", "timestamp", "original_sequence", "original_timestamp")
"""The columns that the evaluation of a query reads."""

ALL_SEQUENCES: Final = (0, MAX_NUMBER)

_ROWS_OF_LONG_SERIES: Final = 1000

MAX_SAMPLES: Final = 10_000
"""Sample about this many series to divide all series evenly among tasks."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The series of a snapshot that a query asks for.

    Attributes:
        snapshot: the store.
        index: the snapshot's index, at least of `names`.
        names: the requested series; None for all. Unknown ones have no rows.
        keys: the range to answer for; it splits no series.
    """

    snapshot: Snapshot
    index: SeriesIndex
    names: Sequence[str] | None = None
    keys: KeyRange = ALL_KEYS

    @property
    def retained(self) -> RetainedRange:
        """The retained range of the snapshot."""
        return self.snapshot.settings.retained


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a result, each series in the query's order, and their number before the limit."""

    table: pa.Table
    selected: int


def pick_columns(schema: pa.Schema, names: Sequence[str] | None) -> pa.Schema:
    """Return the columns `names` of a query's `schema`, in their order; None for all.

    Raises:
        InvalidQuery: `schema` lacks one of them.
    """
    if names is None:
        return schema
    for name in names:
        if name not in schema.names:
            raise InvalidQuery(
                f"column '{name}' is not in the store", ", ".join(schema.names), "correct the name"
            )
    return select_fields(schema, names)


def run_query(
    scope: Scope,
    query: Query,
    *,
    columns: Sequence[str] | None = None,
    sequences: tuple[int, int] = ALL_SEQUENCES,
) -> Answer:
    """Run `query` on each series and return the result.

    Args:
        scope: the requested series.
        query: the query.
        columns: names of the result's columns; None for all of `result_schema`.
        sequences: answer for originals between these, inclusive; the ends of the view range must be
            fixed.

    Raises:
        InvalidQuery: the store lacks one of `columns`, or the query asks for a duration from an
            anchor that has no timestamp in some series.
    """
    snapshot, index = scope.snapshot, scope.index
    names = pick_columns(result_schema(snapshot.values), columns).names
    plain = make_plain(query, has_erasures=snapshot.has_erasures)
    scan = Scan(scope, plain or query, sequences)
    if plain is not None and not scan.edits:
        # Nothing replaces an original, and each is tested separately: `select` has nothing to do.
        ranges = ShownRanges(scan)
        rows = sort_by_sequence(ranges.filter(scan.read(stored_columns(names))))
        return Answer(_show_rows(rows, names, query), rows.num_rows)
    erasure = [ERASURE_FIELD.name] if snapshot.has_erasures else []
    rows = scan.read([*stored_columns(names), *erasure])
    if may_hide(scope.retained, index):
        rows = rows.filter(pa.array(select_visible(rows, index, scope.retained)))
    distinct, codes = encode_runs(rows["series"])
    order = sort_keys(codes, to_int64(rows["sequence"]))
    events = SeriesEvents(
        names=distinct,
        codes=codes[order],
        sequence=to_int64(rows["sequence"])[order],
        us=to_int64(rows["timestamp"])[order],
        original=to_int64(rows["original_sequence"].fill_null(NO_SEQUENCE))[order],
        erased=_find_erased(rows, order),
    )
    selection = select(events, query)
    needed = [name for name in rows.column_names if name in names or name in SHOWN_FROM]
    chosen = _take_rows(rows.select(needed), order[selection.rows])
    return Answer(_show_rows(chosen, names, query), selection.selected)


def _show_rows(rows: pa.Table, names: Sequence[str], query: Query) -> pa.Table:
    result = show_columns(rows, names, at_originals=query.kind == "values")
    if "series" not in names:
        return result
    column_index = result.column_names.index("series")
    return result.set_column(column_index, "series", result["series"].cast(pa.string()))


def sort_by_sequence(rows: pa.Table) -> pa.Table:
    """Return rows in the order of (series, sequence); do not copy them if they are in it."""
    names, begins = find_runs_of(rows["series"])
    sequence = to_int64(rows["sequence"])
    rises = sequence[1:] > sequence[:-1]
    rises[begins[1:] - 1] = True  # From one series to the next a sequence may fall.
    if rises.all() and pc.all(pc.less(names[:-1], names[1:])).as_py():
        return rows
    _, codes = encode_runs(rows["series"])
    return rows.take(pa.array(sort_keys(codes, sequence)))


def stored_columns(names: Sequence[str]) -> list[str]:
    """Return the columns to read for a result with the columns `names`."""
    stored = [name for name in names if name != EDIT_TIME.name]
    return list(dict.fromkeys([*stored, *EVALUATED_COLUMNS]))


def _find_erased(rows: pa.Table, order: Int64Array) -> BoolArray | None:
    """Return flags of the erased events among `rows` in their `order`; None if there are none."""
    if ERASURE_FIELD.name not in rows.column_names:
        return None
    column = rows[ERASURE_FIELD.name]
    if column.null_count == rows.num_rows:
        return None
    flags: BoolArray = column.is_valid().to_numpy()[order]
    return flags


def _take_rows(rows: pa.Table, positions: Int64Array) -> pa.Table:
    """Return `rows` at `positions`; do not copy if these are all rows in their order."""
    if len(positions) == rows.num_rows and np.array_equal(positions, np.arange(len(positions))):
        return rows
    return rows.take(pa.array(positions))


def may_hide(retained: RetainedRange, index: SeriesIndex) -> bool:
    """Return whether the retained range, or an earlier one, may hide events."""
    return retained != UNLIMITED or any(name in index.columns for name in FLOOR_DEFAULTS)


def select_visible(rows: pa.Table, index: SeriesIndex, retained: RetainedRange) -> BoolArray:
    """Flag the rows that a query sees: originals inside the retained range, and their edits."""
    names, codes = encode_runs(rows["series"])
    states = index.lookup_all(names.to_pylist())
    low, low_us = min_retained(retained, states["last_sequence"], states["original_us"], states)
    sequence = to_int64(originals_of(rows))
    us = to_int64(pc.coalesce(rows["original_timestamp"], rows["timestamp"]))
    visible: BoolArray = (sequence >= low[codes]) & (us >= low_us[codes])
    return visible


def take_latest_edits(edits: pa.Table) -> pa.Table:
    """Return the latest edit of each original, sorted by series and by its sequence."""
    _, codes = encode_runs(edits["series"])
    original, sequence = to_int64(edits["original_sequence"]), to_int64(edits["sequence"])
    order = np.lexsort((sequence, original, codes))
    begins, sizes = find_number_runs(codes[order], original[order])
    return edits.take(pa.array(order[begins + sizes - 1]))


class Scan:
    """The files and rows of a snapshot that a query needs.

    Attributes:
        scope: the requested series.
        query: the query.
        edits: the files of edits.
        originals: the files of originals.
        bounds: the bounds of the originals: of each known series that was named, or of all.
    """

    def __init__(
        self, scope: Scope, query: Query, sequences: tuple[int, int] = ALL_SEQUENCES
    ) -> None:
        self.scope = scope
        self.query = query
        snapshot, index = scope.snapshot, scope.index
        self._location = snapshot.location
        self._sequences = sequences
        self._schema = query_schema(snapshot.values).append(ERASURE_FIELD)
        self._names = None if scope.names is None else _list_known(scope.names, index)
        has_series = RowFilter(self._names, scope.keys).may_match_file
        touched = [file for file in snapshot.files if has_series(file)]
        self.edits = [file for file in touched if file.kind == "edit"]
        self.bounds = self._compute_bounds()
        self.originals = [
            file for file in touched if file.kind != "edit" and self._may_be_needed(file)
        ]

    def _compute_bounds(self) -> Bounds:
        index = self.scope.index
        if self._names is not None or not index.columns.rows:
            states = index.lookup_all(self._names or [])
        else:
            # Bounds grow with a series' state, so the lowest and highest state bound all series.
            states = {name: np.full(2, low) for name, low in FLOOR_DEFAULTS.items()}
            states |= {name: index.columns.bounds(name) for name in index.columns}
        edits = sum(file.rows for file in self.edits)
        bounds = compute_bounds(self.query, self.scope.retained, states, edits)
        lowest, highest = self._sequences
        return dataclasses.replace(
            bounds,
            min_sequence=np.maximum(bounds.min_sequence, lowest),
            max_sequence=np.minimum(bounds.max_sequence, highest),
        )

    def _may_be_needed(self, file: DataFile) -> bool:
        positions = (0, len(self.bounds.min_sequence))
        if self._names is not None:
            names = self._names
            positions = bisect_left(names, file.first), bisect_right(names, file.last)
        bounds = self.bounds.over(*positions)
        if bounds is None:
            return False
        min_sequence, max_sequence, min_us, max_us = bounds
        return (
            file.max_sequence >= min_sequence
            and file.min_sequence <= max_sequence
            and file.max_us >= min_us
            and file.min_us <= max_us
        )

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Read the rows that may be needed, in the order of files; `series` is a dictionary."""
        schema = encode_series(select_fields(self._schema, columns))
        tables = [
            read_rows(self._location, self.originals, schema, self._make_original_filter()),
            self._pick_edits(self.read_edits(columns)),
        ]
        # An empty chunk would become an empty batch.
        return pa.concat_tables([rows for rows in tables if rows.num_rows] or tables)

    def fold(
        self, columns: Sequence[str], fold: Callable[[pa.Table], None], *, by_runs: bool
    ) -> None:
        """Call `fold` with the originals that may be needed, a piece at a time, in threads.

        `series` is a dictionary, or with `by_runs` may be encoded by runs; times may be out of
        `bounds`.
        """
        schema = encode_series(select_fields(self._schema, columns))
        series = self._list_long_series() if by_runs else []
        request = ReadRequest(schema, self._make_original_filter(), series)
        fold_files(self._location, self.originals, request, fold)

    def _list_long_series(self) -> list[str]:
        """Return all series of the store, if their times never fall and they have many rows."""
        rows = sum(file.rows for file in self.originals)
        snapshot, index = self.scope.snapshot, self.scope.index
        is_part = self._names is not None or snapshot.as_of is not None or snapshot.has_erasures
        if is_part or rows < index.columns.rows * _ROWS_OF_LONG_SERIES:
            return []
        return index.by_name()[1]

    def read_edits(self, columns: Sequence[str]) -> pa.Table:
        """Read the edits, of any original."""
        # The bounds are of originals; their edits have later sequences, and may have later times.
        schema = encode_series(select_fields(self._schema, columns))
        return read_rows(self._location, self.edits, schema, self._make_series_filter())

    def _pick_edits(self, edits: pa.Table) -> pa.Table:
        if self._sequences == ALL_SEQUENCES:
            return edits
        lowest, highest = self._sequences
        original = pc.field("original_sequence")
        return edits.filter((original >= lowest) & (original <= highest))

    def stream(self, path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of one file of originals that may be needed, some row groups at a time."""
        schema = select_fields(self._schema, columns)
        for file in self.originals:
            if file.path == path:
                yield from scan_file(self._location, file, schema, self._make_original_filter())

    def _make_series_filter(self) -> RowFilter:
        return RowFilter(self._names, self.scope.keys, commits=self.scope.snapshot.commits)

    def _make_original_filter(self) -> RowFilter:
        bounds = self.bounds.over(0, len(self.bounds.min_sequence))
        if bounds is None:
            return self._make_series_filter()
        min_sequence, max_sequence, min_us, max_us = bounds
        return dataclasses.replace(
            self._make_series_filter(),
            sequences=(
                min_sequence if min_sequence > 0 else MIN_NUMBER,
                min(max_sequence, MAX_NUMBER),
            ),
            times=(max(min_us, MIN_NUMBER), min(max_us, MAX_NUMBER)),
        )


def encode_series(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with `series` as a dictionary, because that takes a third of the time."""
    column_index = schema.get_field_index("series")
    names = pa.field("series", pa.dictionary(pa.int32(), pa.string()))
    return schema if column_index < 0 else schema.set(column_index, names)


class ShownRanges:
    """The sequences and times of the originals that a plain query shows of each series."""

    def __init__(self, scan: Scan) -> None:
        self._query = scan.query
        self._scope = scan.scope
        bounds = scan.bounds
        # A scan reads no originals with sequences outside the bounds of all series.
        is_joint = all((ends == ends[:1]).all() for ends in dataclasses.astuple(bounds))
        self._joint = bounds if is_joint and len(bounds.min_us) else None
        low, high = bounds.min_sequence.max(initial=0), bounds.max_sequence.min(initial=MAX_NUMBER)
        self.has_sequences = self._joint is None and bool(low > 0 or high < MAX_NUMBER)

    def of(self, names: Sequence[str]) -> Bounds:
        """Return the ranges of some series."""
        states = self._scope.index.lookup_all(names)
        return compute_bounds(self._query, self._scope.retained, states, edits=0)

    def filter(self, rows: pa.Table) -> pa.Table:
        """Return the rows inside the ranges."""
        if self._joint is not None:
            return rows
        names, codes = encode_runs(rows["series"])
        bounds = self.of(names.to_pylist())
        us = to_int64(rows["timestamp"])
        is_shown = self.flag_sequences(rows) & bounds.flag_times(codes, us)
        return rows if is_shown.all() else rows.filter(pa.array(is_shown))

    def times(self, names: pa.Array) -> tuple[Int64Array, Int64Array]:
        """Return the first and last time of each series, both inclusive."""
        if self._joint is None:
            bounds = self.of(names.to_pylist())
            return bounds.min_us, bounds.max_us
        low, high = self._joint.min_us[0], self._joint.max_us[0]
        return np.full(len(names), low), np.full(len(names), high)

    def flag_sequences(self, rows: pa.Table) -> BoolArray:
        """Flag the rows with a sequence inside the range."""
        if not self.has_sequences:
            return np.ones(rows.num_rows, bool)
        names, codes = encode_runs(rows["series"])
        return self.of(names.to_pylist()).flag_sequences(codes, to_int64(rows["sequence"]))


def sample_series(
    index: SeriesIndex, size: int, series: Sequence[str] | None = None
) -> list[SizedKey]:
    """Sample evenly spaced series, or `series`; each stands for an equal part of `size`."""
    if series is None:
        rows = np.flatnonzero(index.columns["last_sequence"] != NO_SEQUENCE)
        names = index.ids.names()
        sampled = [names[i] for i in rows[:: max(1, len(rows) // MAX_SAMPLES)].tolist()]
    else:
        sampled = sorted(set(series))
    return [(name, 0, max(1, size // len(sampled))) for name in sampled]


def _list_known(series: Sequence[str], index: SeriesIndex) -> list[str]:
    """Return the requested series that have events, sorted."""
    names = sorted(set(series))
    is_known = index.lookup(names)["last_sequence"] != NO_SEQUENCE
    return [name for name, has_events in zip(names, is_known.tolist(), strict=True) if has_events]


PART_BYTES: Final = 32 * 1024 * 1024
"""The rows of a part take about this much memory; evaluating them takes a few times more."""

BATCH_ROWS: Final = 64 * 1024

_CELL_BYTES: Final = 16
_COMPRESSION: Final = 8
"""Assume that rows take this many times their file's size in memory, or this many bytes a cell."""

_FIRST_ROWS: Final = 16 * 1024
"""Measure the size of a row with a first part of this many rows, because files are compressed."""


@dataclass(frozen=True, slots=True)
class _ScanPart:
    """Some series, or the originals of one series between two sequences, both inclusive."""

    names: list[str]
    keys: KeyRange = ALL_KEYS
    sequences: tuple[int, int] = ALL_SEQUENCES


class _Budget:
    """The number of rows that the next part may have."""

    def __init__(self, row_bytes: float) -> None:
        self._row_bytes = row_bytes
        self._most = _FIRST_ROWS

    @property
    def rows(self) -> int:
        return max(1, min(self._most, int(PART_BYTES / self._row_bytes)))

    def expect(self, row_bytes: float) -> None:
        """Note how much memory a row may need."""
        self._row_bytes = max(self._row_bytes, row_bytes)

    def learn(self, rows: pa.Table) -> None:
        """Note how much memory the rows of a part needed; the next may have eight times as many.

        Series with long rows may follow series with short ones.
        """
        # A row needs a byte at least.
        self._most = min(8 * self._most, PART_BYTES)
        if rows.num_rows:
            self.expect(rows.nbytes / rows.num_rows)


def stream_query(
    scope: Scope, query: Query, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield what `run_query` returns, in batches of at most BATCH_ROWS; raise what it raises."""
    schema = stream_schema(scope.snapshot, columns)
    budget = _Budget(_CELL_BYTES * len(schema))
    for scan_part in _plan_parts(scope, query, budget):
        part_query, part_names = query, None if scope.names is None else scan_part.names
        if scan_part.sequences != ALL_SEQUENCES:
            view = _pin_view_of_series(query, scope.index, scan_part.names[0])
            assert view is not None
            part_query, part_names = dataclasses.replace(query, view=view), scan_part.names
        answer = run_query(
            dataclasses.replace(scope, names=part_names, keys=scan_part.keys),
            part_query,
            columns=schema.names,
            sequences=scan_part.sequences,
        )
        budget.learn(answer.table)
        yield from answer.table.cast(schema).to_batches(BATCH_ROWS)


def stream_schema(snapshot: Snapshot, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of the table of `run_query`; raise InvalidQuery for an unknown column."""
    schema = pick_columns(result_schema(snapshot.values), columns)
    return pa.schema([field.with_nullable(True) for field in schema])


def _plan_parts(scope: Scope, query: Query, budget: _Budget) -> Iterator[_ScanPart]:
    """Yield parts of about `budget.rows` rows each: some whole series, or sequences of a long one.

    The budget may learn from the rows of a part before the next one is asked for.
    """
    index, names = scope.index, scope.names
    chosen = index.by_name()[1] if names is None else list(names)
    states = index.lookup(chosen)
    chosen = [chosen[row] for row in np.flatnonzero(states["last_sequence"] != NO_SEQUENCE)]
    if not chosen:
        return
    scan = Scan(scope, query)
    files = [*scan.originals, *scan.edits]
    stored = sum(file.rows for file in files)
    budget.expect(_COMPRESSION * sum(file.size for file in files) / max(stored, 1))
    low, high = _compute_sequence_ends(scan, chosen)
    sequences = np.maximum(high - low + 1, 1)
    # Together the series have no more rows than the files; compaction may have removed sequences.
    rows_per_sequence = min(1.0, stored / sequences.sum())
    estimates = np.ceil(sequences * rows_per_sequence)
    begin = 0
    pending_rows = 0.0
    for position, name in enumerate(chosen):
        if pending_rows and pending_rows + estimates[position] > budget.rows:
            yield _make_scan_part(chosen, begin, position)
            begin, pending_rows = position, 0.0
        pending_rows += float(estimates[position])
        if pending_rows > budget.rows and _pin_view_of_series(query, index, name) is not None:
            first, last = int(low[position]), int(high[position])
            while first <= last:
                step = max(1, int(budget.rows * sequences[position] / estimates[position]))
                yield _ScanPart([name], sequences=(first, min(first + step - 1, last)))
                first += step
            begin, pending_rows = position + 1, 0.0
    if begin < len(chosen):
        yield _make_scan_part(chosen, begin, len(chosen))


def _make_scan_part(chosen: Sequence[str], begin: int, end: int) -> _ScanPart:
    """Return the part of the whole series from `begin` to `end`, exclusive."""
    beyond = (chosen[end], 0) if end < len(chosen) else None
    return _ScanPart(list(chosen[begin:end]), KeyRange((chosen[begin], 0), beyond))


def _compute_sequence_ends(scan: Scan, names: list[str]) -> tuple[Int64Array, Int64Array]:
    """Return the lowest and highest sequence that the query may need of each series."""
    states = scan.scope.index.lookup_all(names)
    edits = sum(file.rows for file in scan.edits)
    bounds = compute_bounds(scan.query, scan.scope.retained, states, edits)
    lowest = min((file.min_sequence for file in scan.originals), default=0)
    return (
        np.maximum(bounds.min_sequence, lowest),
        np.minimum(bounds.max_sequence, states["last_sequence"]),
    )


def _pin_view_of_series(query: Query, index: SeriesIndex, name: str) -> Range | None:
    """Return the view range with fixed ends of one kind; None if its ends depend on other rows."""
    if query.kind != "values" or query.limit != NO_LIMIT or not is_absolute(query.edits):
        return None
    view = query.view
    if view.anchor.kind == "last_us":
        newest_us = index.lookup_one(name)["original_us"]
        if newest_us == NEVER_US:
            return None
        view = Range(Point("time", newest_us - view.anchor.value), view.span)
    return pin_view(view)
