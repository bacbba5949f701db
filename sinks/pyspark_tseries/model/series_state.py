"""Where every series stands, found from the events themselves.

The head can be lost and rebuilt, because compaction always leaves a series' newest event, its
newest original and its newest edit: `standing` of what is left is `standing` of what there was.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.series_index import ABSENT, NEVER_US, Longs, delta_of

__all__ = ["KEYS", "longs", "standing", "standing_columns", "together"]

KEYS: Final = ("series", "sequence", "timestamp", "original_sequence", "commit")
"""The columns of an event that say where its series stands, and since when."""

_EMPTY: Final = {
    "last_sequence": ABSENT,
    "newest_us": NEVER_US,
    "original_sequence": ABSENT,
    "original_us": NEVER_US,
    "edit_sequence": ABSENT,
    "horizon_sequence": ABSENT,
    "horizon_us": NEVER_US,
}


def standing(events: pa.Table, horizon: int) -> pa.Table:
    """One row a series, with the columns below; a column is absent-valued where nothing counts.

    `last_sequence`, `newest_us`: of any event; `original_sequence`, `original_us`: of originals;
    `edit_sequence`: of edits; `horizon_sequence`, `horizon_us`: the last sequence and the newest
    original's timestamp among the commits up to `horizon`, inclusive.

    Args:
        events: the columns `KEYS`.
        horizon: a commit's number.
    """
    sequence = events["sequence"]
    us = events["timestamp"].cast(pa.int64())
    original = pc.is_null(events["original_sequence"])
    early = pc.less_equal(events["commit"], horizon)
    none = pa.scalar(None, pa.int64())
    columns = {
        "last_sequence": sequence,
        "newest_us": us,
        "original_sequence": pc.if_else(original, sequence, none),
        "original_us": pc.if_else(original, us, none),
        "edit_sequence": pc.if_else(original, none, sequence),
        "horizon_sequence": pc.if_else(early, sequence, none),
        "horizon_us": pc.if_else(pc.and_(early, original), us, none),
    }
    return _most(pa.table({"series": events["series"].cast(pa.string()), **columns}))


def together(parts: Iterable[pa.Table]) -> pa.Table:
    """The standing of all events, of the standings of their parts."""
    held = list(parts)
    if not held:
        columns = {name: pa.array([], pa.int64()) for name in _EMPTY}
        return pa.table({"series": pa.array([], pa.string()), **columns})
    return _most(pa.concat_tables(held))


def _most(table: pa.Table) -> pa.Table:
    grouped = table.group_by("series").aggregate([(name, "max") for name in _EMPTY])
    columns = {
        name: grouped[f"{name}_max"].fill_null(absent).combine_chunks()
        for name, absent in _EMPTY.items()
    }
    return pa.table({"series": grouped["series"], **columns})


def standing_columns(table: pa.Table) -> pa.Table:
    """A standing as the rows of a head, without a note."""
    names = table["series"].combine_chunks()
    return delta_of(names, {name: longs(table[name]) for name in _EMPTY})


def longs(column: pa.ChunkedArray | pa.Array) -> Longs:
    """A column of numbers or timestamps without nulls, as numbers."""
    values: Longs = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values
