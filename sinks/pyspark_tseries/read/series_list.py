"""List series with their counts and times, from the index alone (semantics 31.3)."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import MAX_NUMBER, NEVER_US, NO_SEQUENCE, Int64Array, to_int64
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, read_rows
from pyspark_tseries.storage.snapshot import Snapshot

SERIES_SCHEMA: Final = pa.schema(
    [
        pa.field("series", pa.string(), nullable=False),
        pa.field("events", pa.int64()),
        pa.field("edits", pa.int64()),
        pa.field("first", INSTANT),
        pa.field("newest", INSTANT),
    ]
)
"""Null stands for what the head of an old store does not say, and for no newest original."""


def list_series(
    snapshot: Snapshot, index: SeriesIndex, names: Sequence[str] | None = None
) -> pa.Table:
    """Return the series that have an event, sorted by name, in the columns of `SERIES_SCHEMA`.

    Args:
        snapshot: the store.
        index: its index, at least of `names`.
        names: the series, sorted and distinct; None for all.
    """
    if names is None:
        texts = pa.array(index.ids.names()[: index.columns.rows], pa.string())
        columns = {name: index.columns[name] for name in SeriesIndex().lookup([])}
    else:
        texts, columns = pa.array(names, pa.string()), index.lookup(names)
    rows_used = np.flatnonzero(columns["last_sequence"] != NO_SEQUENCE)
    columns = {name: column[rows_used] for name, column in columns.items()}
    texts = texts.take(pa.array(rows_used))
    if snapshot.as_of is not None and snapshot.horizon >= 0:
        columns |= _count_as_of(snapshot, texts)
    unknown = columns["first_us"] == NEVER_US
    counts = columns["last_sequence"] + 1 - columns["edits"], columns["edits"]
    table = pa.Table.from_arrays(
        [
            texts,
            *(pa.array(count, mask=unknown) for count in counts),
            pa.array(columns["first_us"], mask=unknown).cast(INSTANT),
            _show_times(columns["original_us"]),
        ],
        schema=SERIES_SCHEMA,
    )
    order = pc.sort_indices(texts)
    return table if names is not None else table.take(order)


def _show_times(us: Int64Array) -> pa.Array:
    return pa.array(us, mask=us == NEVER_US).cast(INSTANT)


def _count_as_of(snapshot: Snapshot, names: pa.Array) -> dict[str, Int64Array]:
    """Return first time and edits as of an earlier commit: those of now without the later ones.

    Compaction may have removed rows of that time, but none of later commits.
    """
    assert snapshot.as_of is not None
    now = snapshot.newest_index(names.to_pylist()).lookup(names.to_pylist())
    edits = now["edits"].copy()
    files = [file for file in snapshot.files if file.kind == "edit"]
    later = RowFilter(commits=(snapshot.as_of + 1, MAX_NUMBER))
    rows = read_rows(snapshot.location, files, BASE_SCHEMA, ("series", "commit"), later)
    places = pc.index_in(rows["series"].cast(pa.string()), names).fill_null(-1)
    codes = to_int64(places)
    edits -= np.bincount(codes[codes >= 0], minlength=len(names))
    return {"edits": edits, "first_us": now["first_us"]}
