"""Answer a query by buckets: each series, or tag, has a row for each bucket (semantics 32).

The events are those of a `values` query. Where each original decides for itself whether it is in
the result, files are read in pieces, and each piece is folded to states of buckets as it is read,
so memory holds the states. Other queries count events, and hold whole series. Series are asked in
groups of limited size, one after the other; values of a tag may be in all series, so their states
are held together.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    BoolArray,
    KeyRange,
    encode_runs,
    find_runs_of,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.downsampling import Downsampling
from pyspark_tseries.model.ranges import Query, Range
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.read.aggregate import GAP_FIELDS, find_gaps, finish
from pyspark_tseries.read.scan import (
    Ranges,
    Scan,
    run_query,
    sample_series,
    sort_rows,
    take_latest_edits,
)
from pyspark_tseries.read.select import make_plain
from pyspark_tseries.read.states import Folding, Merger
from pyspark_tseries.storage.snapshot import Snapshot

MAX_GROUP_BYTES = 64 * 1024 * 1024
"""The stored size of the files of about as many series as are asked at once."""


def check_values(query: Query, what: str) -> None:
    """Refuse a query of edits, which has no buckets and gaps.

    Raises:
        InvalidQuery: the query is none of `values`.
    """
    if query.kind != "values":
        raise InvalidQuery(
            f"a query of {query.kind} has no {what}",
            "queries of 'values': originals, each replaced by its latest edit",
            "begin with for_values(), which is the default",
        )


def downsample(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    wanted: Downsampling,
    names: Sequence[str] | None = None,
    key_range: KeyRange = ALL_KEYS,
) -> Iterator[pa.Table]:
    """Yield the rows of the result, sorted by group and time, some series at a time.

    Args:
        snapshot: the store.
        head: the snapshot's index, at least of `names`.
        query: the query, of `values`.
        wanted: what to aggregate.
        names: the requested series; None for all. Unknown ones have no rows.
        key_range: what to answer for; it splits no series.

    Raises:
        InvalidQuery: as `run_query` and `aggregate`.
    """
    schema = pa.schema(snapshot.values)
    folding = Folding(schema, wanted)
    ends = find_fill_ends(query.view)
    groups = [key_range]
    if wanted.tag is None:
        groups = _divide_series(snapshot, head, query, names, key_range)
    plain = make_plain(query, has_erasures=snapshot.has_erasures)
    for group in groups:
        merger = Merger(folding)
        if plain is None:
            merger.add(folding.fold(_run_query(snapshot, head, query, names, group, folding)))
        else:
            _fold_plain(Scan(snapshot, head, plain, names, group), snapshot, head, folding, merger)
        if (states := merger.merged()) is not None:
            yield finish(states, schema, wanted, ends)


def _run_query(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    names: Sequence[str] | None,
    key_range: KeyRange,
    folding: Folding,
) -> pa.Table:
    """Return the events of a query, each at the sequence of its original."""
    columns = dict.fromkeys([*folding.columns, "sequence", "original_sequence"])
    rows = run_query(snapshot, head, query, names, key_range, columns=list(columns)).table
    return _place_at_originals(rows)


def _place_at_originals(rows: pa.Table) -> pa.Table:
    sequence = pc.coalesce(rows["original_sequence"], rows["sequence"])
    return rows.set_column(rows.column_names.index("sequence"), "sequence", sequence)


def _fold_plain(
    scan: Scan, snapshot: Snapshot, head: SeriesIndex, folding: Folding, merger: Merger
) -> None:
    """Fold the originals of a plain query as they are read, and the edits in force."""
    ranges = Ranges(scan, snapshot.settings.retained, head)
    edited = _Edited(_find_edits(scan, ranges, folding.columns))
    is_sorted = not any(file.is_foreign for file in scan.originals)
    more = [] if is_sorted and not ranges.has_sequences and not edited else ["sequence"]

    def fold(rows: pa.Table) -> None:
        if more:
            needed = ranges.flag_sequences(rows) & ~edited.flag(rows)
            rows = rows if needed.all() else rows.filter(pa.array(needed))
        merger.add(folding.fold(rows if is_sorted else sort_rows(rows), ranges.times))

    columns = list(dict.fromkeys([*folding.columns, *more]))
    scan.fold(columns, fold, by_runs=not more and not folding.needs_series)
    if edited:
        merger.add(folding.fold(edited.rows()))


class _Edited:
    """The latest edits, sorted by their originals, and which of these are there."""

    def __init__(self, edits: pa.Table) -> None:
        self._edits = edits
        self._sequence = to_int64(edits["original_sequence"])
        self._is_there = np.zeros(len(self._sequence), bool)
        names, begins = find_runs_of(edits["series"])
        ends = np.append(begins[1:], len(self._sequence)).tolist()
        places = zip(begins.tolist(), ends, strict=False)
        self._places = dict(zip(names.to_pylist(), places, strict=False))

    def __bool__(self) -> bool:
        return len(self._sequence) > 0

    def flag(self, rows: pa.Table) -> BoolArray:
        """Flag the originals that have an edit, and remember that they are there."""
        flags = np.zeros(rows.num_rows, bool)
        names, begins = find_runs_of(rows["series"])
        sequence, ends = to_int64(rows["sequence"]), np.append(begins[1:], rows.num_rows)
        for name, begin, end in zip(names.to_pylist(), begins.tolist(), ends.tolist(), strict=True):
            if name in self._places:
                first, last = self._places[name]
                mine = self._sequence[first:last]
                at = np.minimum(np.searchsorted(mine, sequence[begin:end]), len(mine) - 1)
                flags[begin:end] = is_edited = mine[at] == sequence[begin:end]
                # Threads set different originals, or the same to the same.
                self._is_there[first + at[is_edited]] = True
        return flags

    def rows(self) -> pa.Table:
        """Return the edits whose originals are there: compaction may have removed some."""
        return self._edits.filter(pa.array(self._is_there))


def _find_edits(scan: Scan, ranges: Ranges, columns: Sequence[str]) -> pa.Table:
    """Return the latest edit of each original that is shown, at its place; sorted by it."""
    of_original = ["original_sequence", "original_timestamp"]
    edits = scan.read_edits(list(dict.fromkeys([*columns, "sequence", *of_original])))
    names, codes = encode_runs(edits["series"])
    bounds = ranges.of(names.to_pylist())
    sequence, us = (to_int64(edits[name]) for name in of_original)
    shown = (sequence >= bounds.min_sequence[codes]) & (sequence <= bounds.max_sequence[codes])
    shown &= (us >= bounds.min_us[codes]) & (us <= bounds.max_us[codes])
    latest = take_latest_edits(edits.filter(pa.array(shown)))
    place = latest.column_names.index("timestamp")
    latest = latest.set_column(place, "timestamp", latest["original_timestamp"])
    return _place_at_originals(latest)


def gaps(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    longer_than_us: int,
    names: Sequence[str] | None = None,
) -> pa.Table:
    """Return the gaps of each series in the result of a `values` query."""
    tables = []
    for group in _divide_series(snapshot, head, query, names, ALL_KEYS):
        found = run_query(snapshot, head, query, names, group, columns=("series", "timestamp"))
        tables.append(find_gaps(found.table, longer_than_us))
    return pa.concat_tables([GAP_FIELDS.empty_table(), *tables])


def find_fill_ends(view: Range) -> tuple[int | None, int | None]:
    """Return the first and last time that a view range names, both inclusive; None for none."""
    anchor, span = view.anchor, view.span
    ends = [point.value for point in (anchor, span) if point.kind == "time"]
    if len(ends) == 2:
        return min(ends), max(ends)
    if anchor.kind == "time" and not span.kind.startswith("previous"):
        return anchor.value, None
    return None, (ends[0] if ends else None)


def _divide_series(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    names: Sequence[str] | None,
    key_range: KeyRange,
) -> list[KeyRange]:
    """Divide the series of a key range into groups whose files have a limited size."""
    scan = Scan(snapshot, head, query, names, key_range)
    size = sum(file.size for file in (*scan.originals, *scan.edits))
    if size <= MAX_GROUP_BYTES or key_range != ALL_KEYS or (names is not None and len(names) < 2):
        return [key_range]
    samples = sample_series(head, size, names)
    return list(split_keys(samples, MAX_GROUP_BYTES, whole_series=True))
