"""Answer a query by buckets: each series, or tag, has a row for each bucket (semantics 32).

The events are those of a `values` query. Series are asked in groups of limited size, one after the
other, so memory holds one group and the result. Values of a tag may be in all series, so their
events are held together.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    KeyRange,
    are_sorted_keys,
    encode_runs,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.downsampling import Downsampling
from pyspark_tseries.model.ranges import FULL_RANGE, Query, Range
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.read.aggregate import GAP_FIELDS, aggregate, find_gaps
from pyspark_tseries.read.scan import Scan, may_hide, run_query, sample_series
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
    ends = find_fill_ends(query.view)
    groups = [key_range]
    if wanted.tag is None:
        groups = _divide_series(snapshot, head, query, names, key_range)
    for group in groups:
        events = _read_in_order(snapshot, head, query, names, group, wanted.columns)
        if events is None:
            found = run_query(snapshot, head, query, names, group, columns=wanted.columns)
            events = found.table
        yield aggregate(events, schema, wanted, ends)


def _read_in_order(
    snapshot: Snapshot,
    head: SeriesIndex,
    query: Query,
    names: Sequence[str] | None,
    key_range: KeyRange,
    columns: Sequence[str],
) -> pa.Table | None:
    """Return the result of a query of originals that lie in order, as after a compaction.

    Return None if edits, erasures, the retained range or a count may change what is in the result,
    or if the rows lie in another order.
    """
    low, high = find_fill_ends(query.view)
    has_ends = query.view == FULL_RANGE or (low is not None and high is not None)
    plain = query == Query(view=query.view) and has_ends
    hides = may_hide(snapshot.settings.retained, head)
    if not plain or hides or snapshot.has_erasures or snapshot.as_of is not None:
        return None
    scan = Scan(snapshot, head, query, names, key_range)
    if scan.edits or any(file.is_foreign for file in scan.originals):
        return None
    rows = scan.read([*columns, "sequence"])
    if low is not None and high is not None:
        us = to_int64(rows["timestamp"])
        inside = (us >= low) & (us <= high)
        rows = rows if inside.all() else rows.filter(pa.array(inside))
    _, codes = encode_runs(rows["series"])
    return rows if are_sorted_keys(codes, to_int64(rows["sequence"])) else None


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
