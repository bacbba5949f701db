"""The state of every series, computed from its events: it rebuilds a lost series index.

That is possible because compaction always keeps a series' last event, and its newest original and
newest edit that are not erased, so `compute_state` of the remaining events gives the same.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import NEVER_US, NO_SEQUENCE, to_int64
from pyspark_tseries.model.series_index import make_delta

__all__ = ["STATE_COLUMNS", "combine_states", "compute_state", "state_to_delta"]

STATE_COLUMNS: Final = (
    *("series", "sequence", "timestamp", "original_sequence", "commit", "commit_time", "erasure"),
)
"""The columns of events that the state of a series is computed from."""

_EMPTY: Final = {
    "last_sequence": NO_SEQUENCE,
    "newest_us": NEVER_US,
    "original_sequence": NO_SEQUENCE,
    "original_us": NEVER_US,
    "edit_sequence": NO_SEQUENCE,
    "horizon_sequence": NO_SEQUENCE,
    "horizon_us": NEVER_US,
}


def compute_state(events: pa.Table, horizon: int) -> pa.Table:
    """The state of each series, one row each; NO_SEQUENCE or NEVER_US if no event counts.

    `last_sequence`: of any event; `newest_us`: of any event that is not erased, an edit's time at
    most that of its commit; `original_sequence`, `original_us`: of originals that are not erased;
    `edit_sequence`: of edits that are not; `horizon_sequence`, `horizon_us`: the last sequence and
    the newest such original's timestamp among the commits up to `horizon`, inclusive.

    Args:
        events: the columns `STATE_COLUMNS`.
        horizon: a commit's number.
    """
    sequence = events["sequence"]
    us = events["timestamp"].cast(pa.int64())
    there = pc.is_null(events["erasure"])
    is_edit = pc.is_valid(events["original_sequence"])
    original, edit = pc.and_not(there, is_edit), pc.and_(there, is_edit)
    # An edit may have its time from an original in the future, which is erased by now (18.8).
    counted_us = pc.if_else(
        edit, pc.min_element_wise(us, events["commit_time"].cast(pa.int64())), us
    )
    early = pc.less_equal(events["commit"], horizon)
    none = pa.scalar(None, pa.int64())
    columns = {
        "last_sequence": sequence,
        "newest_us": pc.if_else(there, counted_us, none),
        "original_sequence": pc.if_else(original, sequence, none),
        "original_us": pc.if_else(original, us, none),
        "edit_sequence": pc.if_else(edit, sequence, none),
        "horizon_sequence": pc.if_else(early, sequence, none),
        "horizon_us": pc.if_else(pc.and_(early, original), us, none),
    }
    return _max_per_series(pa.table({"series": events["series"].cast(pa.string()), **columns}))


def combine_states(parts: Iterable[pa.Table]) -> pa.Table:
    """The state of all events from the states of their parts."""
    held = list(parts)
    if not held:
        columns = {name: pa.array([], pa.int64()) for name in _EMPTY}
        return pa.table({"series": pa.array([], pa.string()), **columns})
    return _max_per_series(pa.concat_tables(held))


def _max_per_series(table: pa.Table) -> pa.Table:
    grouped = table.group_by("series").aggregate([(name, "max") for name in _EMPTY])
    columns = {
        name: grouped[f"{name}_max"].fill_null(absent).combine_chunks()
        for name, absent in _EMPTY.items()
    }
    return pa.table({"series": grouped["series"], **columns})


def state_to_delta(table: pa.Table) -> pa.Table:
    """States as the rows of a delta, without commit metadata."""
    names = table["series"].combine_chunks()
    return make_delta(names, {name: to_int64(table[name]) for name in _EMPTY})
