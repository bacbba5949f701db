"""Read the newest originals of series with their latest edits (semantics 31.2).

The index says how many events and edits a series ever got, so its newest `count` originals, and all
edits of them, have sequences from a *low* on. Files, row groups and rows below it are not read.
This low may miss an event where values were erased: an erased original with a time in the future
stays in the range of times even after many later events. Then, and for the newest events up to a
time, the sequences of originals are read first, in bounded memory, and then the rows.

For each series the result has the rows of its newest originals; a row with an edit belongs to the
original that it overrides.
"""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.processes import lazy
from pyspark_tseries.model.arrays import (
    MAX_NUMBER,
    MIN_NUMBER,
    NEVER_US,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
    encode_runs,
    expand_ranges,
    find_number_runs,
    flag_last,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.columns import originals_of, query_schema, select_fields, show_columns
from pyspark_tseries.model.ranges import Query, Range, min_retained
from pyspark_tseries.model.series_index import FLOOR_DEFAULTS, STATE_DEFAULTS, SeriesIndex
from pyspark_tseries.read.scan import Scope, stored_columns
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.row_reader import (
    CPU_COUNT,
    MAX_REMOTE_READS,
    RowFilter,
    base_fields,
    map_parallel,
    read_rows,
    scan_file,
)
from pyspark_tseries.storage.snapshot import Snapshot

MAX_COUNT: Final = 2**61
"""An upper bound on the events of a series; keeps arithmetic within int64."""

MAX_HELD_ROWS: Final = 1_000_000
"""While reading sequences, hold about this many of a file before dropping unneeded ones."""

_STATES: Final = STATE_DEFAULTS | FLOOR_DEFAULTS
KEYS: Final = ("series", "sequence", "timestamp", "original_sequence")
"""Rows always have these columns, besides the question's."""


def find_newest_count(query: Query) -> int | None:
    """Return how many newest originals of each series `query` asks for; None if it asks for others.

    >>> from pyspark_tseries.model.ranges import Point
    >>> find_newest_count(Query(view=Range(Point("last_count", 3)))), find_newest_count(Query())
    (3, None)
    """
    anchor = query.view.anchor
    is_newest = query == Query(view=Range(anchor), limit=query.limit)
    if not is_newest or anchor.kind != "last_count" or not 0 < anchor.value <= query.limit:
        return None
    return anchor.value


@dataclass(frozen=True)
class KnownSeries:
    """Series that have events, with their states in the index.

    Attributes:
        names: the names, sorted by code points, distinct.
        rows: their rows in the index.
        index: the index.
    """

    names: list[str]
    rows: Int64Array
    index: SeriesIndex

    def __len__(self) -> int:
        return len(self.names)

    @lazy
    def last(self) -> Int64Array:
        """The last sequence of each."""
        return self._take("last_sequence")["last_sequence"]

    def pick(self, positions: Int64Array) -> "KnownSeries":
        """Return the series at `positions`, which are ascending."""
        if len(positions) == len(self):
            return self
        names = [self.names[position] for position in positions.tolist()]
        return KnownSeries(names, self.rows[positions], self.index)

    def retained(self, snapshot: Snapshot) -> tuple[Int64Array, Int64Array]:
        """Return the lowest sequence and the earliest timestamp that each retains."""
        states = self._take("last_sequence", "original_us", *FLOOR_DEFAULTS)
        newest = states["last_sequence"], states["original_us"]
        return min_retained(snapshot.settings.retained, *newest, states)

    def edits(self, snapshot: Snapshot) -> Int64Array:
        """Return an upper bound of the edits of each; an old index has no count."""
        states = self._take("edits", "first_us")
        stored = sum(file.rows for file in snapshot.edit_files)
        return np.where(states["first_us"] == NEVER_US, stored, states["edits"])

    def _take(self, *names: str) -> dict[str, Int64Array]:
        return self.index.columns.take(self.rows, {name: _STATES[name] for name in names})


def find_series(index: SeriesIndex, names: Sequence[str] | None) -> KnownSeries:
    """Return the series with events among `names`, sorted and distinct; None for all."""
    if names is None:
        rows, all_names = index.by_name()
        series = KnownSeries(all_names, rows, index)
    else:
        series = KnownSeries(list(names), index.ids.find(names), index)
    return series.pick(np.flatnonzero(series.last != NO_SEQUENCE))


@dataclass(frozen=True)
class NewestRows:
    """The newest rows of some series, as a `values` query shows them.

    Attributes:
        table: the rows, sorted by series and original.
        starts: where the rows of each series begin, and the end of the last one.
    """

    table: pa.Table
    starts: Int64Array

    @lazy
    def originals(self) -> Int64Array:
        """The sequence of each row's original."""
        return to_int64(originals_of(self.table))

    @lazy
    def us(self) -> Int64Array:
        """The timestamp of each row's original."""
        return to_int64(self.table["timestamp"])

    @property
    def sizes(self) -> Int64Array:
        """The number of rows of each series."""
        return np.diff(self.starts)

    @property
    def codes(self) -> Int64Array:
        """The series of each row, by its position."""
        return np.repeat(np.arange(len(self.starts) - 1), self.sizes)

    def rows_of(self, positions: Int64Array) -> Int64Array:
        """Return the rows of the series at these positions."""
        return expand_ranges(self.starts[positions], self.sizes[positions])

    def pick(self, positions: Int64Array) -> "NewestRows":
        """Return the rows of the series at these positions."""
        if np.array_equal(positions, np.arange(len(self.starts) - 1)):
            return self
        table = self.table.take(pa.array(self.rows_of(positions)))
        return NewestRows(table, np.append(0, np.cumsum(self.sizes[positions])))

    def keep(self, flags: BoolArray) -> "NewestRows":
        """Return the flagged rows."""
        if flags.all():
            return self
        before = np.append(0, np.cumsum(flags))
        return NewestRows(self.table.filter(pa.array(flags)), before[self.starts])


def interleave(size: int, pieces: Sequence[tuple[Int64Array, NewestRows]]) -> NewestRows:
    """Join the rows of `size` series from pieces, each with the positions of its series."""
    filled_pieces = [(positions, rows) for positions, rows in pieces if len(positions)]
    if len(filled_pieces) == 1 and len(filled_pieces[0][0]) == size:
        return filled_pieces[0][1]
    sizes = np.zeros(size, np.int64)
    for positions, rows in filled_pieces:
        sizes[positions] = rows.sizes
    starts = np.append(0, np.cumsum(sizes))
    order = np.empty(starts[-1], np.int64)
    begin = 0
    for positions, rows in filled_pieces:
        rows_of_piece = NewestRows(rows.table, starts).rows_of(positions)
        order[rows_of_piece] = np.arange(begin, begin + len(rows_of_piece))
        begin += len(rows_of_piece)
    table = pa.concat_tables([rows.table for _, rows in filled_pieces] or [pieces[0][1].table])
    return NewestRows(table.combine_chunks().take(pa.array(order)), starts)


def read_newest(
    snapshot: Snapshot,
    series: KnownSeries,
    columns: Sequence[str],
    count: int,
    *,
    seen_sequences: Int64Array | None = None,
    earlier_rows: NewestRows | None = None,
) -> NewestRows:
    """Return the newest `count` originals of each series inside the retained range, edits merged.

    Args:
        snapshot: the store.
        series: the series.
        columns: the columns of the rows, with `KEYS`.
        count: how many of each, at least 1.
        seen_sequences: the last sequence of each series at an earlier commit, NO_SEQUENCE for
            series without earlier rows; None if none has any.
        earlier_rows: the rows that this function returned at that commit; only later rows are read.
    """
    count = min(count, MAX_COUNT)
    oldest, oldest_us = series.retained(snapshot)
    # Even if all edits are among the newest events, `count` originals are from these lows on.
    lows = np.maximum(oldest, series.last + 1 - count - series.edits(snapshot))
    is_new = np.ones(len(series), bool) if seen_sequences is None else seen_sequences == NO_SEQUENCE
    later = lows if seen_sequences is None else np.maximum(lows, seen_sequences + 1)
    rows = _read_rows(snapshot, series, later, columns)
    newest = _pick_newest(series, rows, (oldest, oldest_us), count, earlier_rows)
    # If erased events left too few, there may be older originals below the low.
    may_miss = is_new & (newest.sizes < count) & (lows > oldest)
    if not snapshot.has_erasures or not may_miss.any():
        return newest
    doubtful = np.flatnonzero(may_miss)
    exact = read_newest_exactly(snapshot, series.pick(doubtful), columns, count)
    others = np.setdiff1d(np.arange(len(series)), doubtful)
    return interleave(len(series), [(others, newest.pick(others)), (doubtful, exact)])


def newest_in(scope: Scope, count: int, columns: Sequence[str]) -> pa.Table:
    """Return `columns` of the rows of `read_newest` for the series of a scope, sorted by name."""
    names = None if scope.names is None else sorted(set(scope.names))
    series = find_series(scope.index, names)
    inside = scope.keys.contains(
        pa.array(series.names, pa.string()), np.zeros(len(series.names), int)
    )
    read_columns = _with_keys(columns)
    rows = read_newest(scope.snapshot, series.pick(np.flatnonzero(inside)), read_columns, count)
    return rows.table.select(list(columns))


def _with_keys(columns: Sequence[str]) -> list[str]:
    return [*columns, *(name for name in KEYS if name not in columns)]


def read_newest_one(
    snapshot: Snapshot, index: SeriesIndex, name: str, columns: Sequence[str]
) -> pa.Table:
    """Return `columns` of the newest original of a series, with its latest edit; one row at most.

    If it is the last event of the series, only files that may have it are read, the newest first,
    until it is found: usually in the first file, even if the store has many.
    """
    state = index.lookup_one(name)
    floors = index.floors([name])
    last_sequence, us = state["last_sequence"], state["original_us"]
    is_shown = last_sequence >= floors["floor_sequence"][0] and us >= floors["floor_us"][0]
    read_columns = _with_keys(columns)
    if (
        NO_SEQUENCE != last_sequence == state["original_sequence"]
        and is_shown
        and snapshot.as_of is None
    ):
        stored = _pick_stored_schema(snapshot, read_columns)
        row_filter = RowFilter([name], sequences=(last_sequence, last_sequence))
        for file in reversed(snapshot.files):
            if file.kind != "edit" and row_filter.may_match_file(file):
                rows = read_rows(snapshot.location, [file], stored, row_filter)
                if rows.num_rows:
                    return show_columns(rows, columns, at_originals=True)
    return read_newest(snapshot, find_series(index, [name]), read_columns, 1).table.select(
        list(columns)
    )


def read_newest_exactly(
    snapshot: Snapshot,
    series: KnownSeries,
    columns: Sequence[str],
    count: int,
    at_us: int | None = None,
) -> NewestRows:
    """Return what `read_newest` returns, but read all sequences, because the index cannot help.

    With `at_us`, only originals with a timestamp up to it count.
    """
    count = min(count, MAX_COUNT)
    retained = series.retained(snapshot)
    to_us = MAX_NUMBER if at_us is None else at_us
    lows = _read_lows(snapshot, series, retained, count, to_us)
    rows = _read_rows(snapshot, series, lows, columns, to_us)
    return _pick_newest(series, rows, retained, count)


def _pick_newest(
    series: KnownSeries,
    rows: pa.Table,
    retained: tuple[Int64Array, Int64Array],
    count: int,
    earlier_rows: NewestRows | None = None,
) -> NewestRows:
    """Return the newest `count` originals of each series among `rows` and `earlier_rows`."""
    oldest, oldest_us = retained
    codes, row_originals = _compute_codes(rows, series.names), to_int64(originals_of(rows))
    us = to_int64(rows["timestamp"])
    visible = (row_originals >= oldest[codes]) & (us >= oldest_us[codes])
    is_original = visible & rows["original_sequence"].is_null().to_numpy()
    if earlier_rows is not None and earlier_rows.table.num_rows:
        rows = pa.concat_tables([earlier_rows.table, rows])
        codes = np.concatenate([earlier_rows.codes, codes])
        row_originals = np.concatenate([earlier_rows.originals, row_originals])
        is_original = np.concatenate([np.ones(earlier_rows.table.num_rows, bool), is_original])
    sequence = to_int64(rows["sequence"])
    order = np.lexsort((sequence, row_originals, codes))
    ordered_codes, ordered_originals = codes[order], row_originals[order]
    firsts, run_sizes = find_number_runs(ordered_codes, ordered_originals)
    # An edit is left out if its original is hidden, or older than the newest ones.
    has_original = (
        np.maximum.reduceat(is_original[order], firsts) if len(firsts) else np.empty(0, bool)
    )
    lasts = (firsts + run_sizes - 1)[has_original]
    # Example: the originals 1 1 2 of series 0 (an event and its edit, another event) and 5 of
    # series 1: `firsts` is 0 2 3, `lasts` is 1 2 3, and for a count of 1 the newest are 2 and 3.
    newest_lasts = lasts[flag_last(ordered_codes[lasts], count)]
    sizes = np.bincount(ordered_codes[newest_lasts], minlength=len(series))
    chosen = order[newest_lasts]
    if not np.array_equal(chosen, np.arange(rows.num_rows)):
        rows = rows.take(pa.array(chosen))
    return NewestRows(rows, np.append(0, np.cumsum(sizes)))


def _compute_codes(rows: pa.Table, names: Sequence[str]) -> Int64Array:
    """Return the position of the series of each row in `names`."""
    distinct, codes = encode_runs(rows["series"])
    if not len(distinct):
        return codes
    start = bisect_left(names, distinct[0].as_py())
    end = bisect_right(names, distinct[-1].as_py())
    if len(distinct) == end - start:
        return codes + start
    among = pa.array(names[start:end], pa.string())
    return (to_int64(pc.index_in(distinct, among)) + start)[codes]


def _read_rows(
    snapshot: Snapshot,
    series: KnownSeries,
    lows: Int64Array,
    columns: Sequence[str],
    to_us: int = MAX_NUMBER,
) -> pa.Table:
    """Read events from `lows` on, originals only up to `to_us`; show them in `columns`."""
    stored = _pick_stored_schema(snapshot, columns)
    sequences = int(lows.min(initial=MAX_NUMBER)), MAX_NUMBER
    edits = RowFilter(series.names, sequences=sequences, commits=snapshot.commits, lows=lows)
    originals = dataclasses.replace(edits, times=(MIN_NUMBER, to_us))
    tables = [
        read_rows(snapshot.location, snapshot.original_files, stored, originals),
        read_rows(snapshot.location, snapshot.edit_files, stored, edits),
    ]
    return show_columns(pa.concat_tables(tables), columns, at_originals=True)


def _pick_stored_schema(snapshot: Snapshot, columns: Sequence[str]) -> pa.Schema:
    return select_fields(query_schema(snapshot.values), stored_columns(columns))


def _read_lows(
    snapshot: Snapshot,
    series: KnownSeries,
    retained: tuple[Int64Array, Int64Array],
    count: int,
    to_us: int,
) -> Int64Array:
    """Return the lowest sequence of the newest `count` originals up to `to_us` of each series."""
    oldest, oldest_us = retained
    from_us = int(oldest_us.min(initial=MAX_NUMBER))
    times = max(from_us, MIN_NUMBER), to_us
    row_filter = RowFilter(series.names, times=times, commits=snapshot.commits, lows=oldest)
    location = snapshot.location
    schema = base_fields(KEYS[:3])

    def find(file: DataFile) -> tuple[Int64Array, Int64Array]:
        newest_keys = _NewestKeys(count)
        for rows in scan_file(location, file, schema, row_filter):
            codes, sequence = _compute_codes(rows, series.names), to_int64(rows["sequence"])
            inside = to_int64(rows["timestamp"]) >= oldest_us[codes]
            newest_keys.add(codes[inside], sequence[inside])
        return newest_keys.reduced()

    files = [file for file in snapshot.original_files if row_filter.may_match_file(file)]
    width = CPU_COUNT if location.is_local else MAX_REMOTE_READS
    merged = _NewestKeys(count)
    for codes, sequence in map_parallel(find, files, width):
        merged.add(codes, sequence)
    codes, sequence = merged.reduced()
    lows = np.full(len(series), MAX_NUMBER, np.int64)
    np.minimum.at(lows, codes, sequence)
    return lows


class _NewestKeys:
    """The `count` highest sequences of each series among those added."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._codes, self._sequences = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        self._held = 0
        self._most = MAX_HELD_ROWS

    def add(self, codes: Int64Array, sequence: Int64Array) -> None:
        self._codes.append(codes)
        self._sequences.append(sequence)
        self._held += len(codes)
        if self._held > self._most:
            self._held = len(self.reduced()[0])
            self._most = MAX_HELD_ROWS + 2 * self._held

    def reduced(self) -> tuple[Int64Array, Int64Array]:
        """Return series and sequences, sorted; drop all others."""
        codes, sequence = np.concatenate(self._codes), np.concatenate(self._sequences)
        order = sort_keys(codes, sequence)
        codes, sequence = codes[order], sequence[order]
        is_newest = flag_last(codes, self._count)
        self._codes, self._sequences = [codes[is_newest]], [sequence[is_newest]]
        return self._codes[0], self._sequences[0]
