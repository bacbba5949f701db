"""Rules for correcting times that came from a clock in the future (semantics 26.4).

A commit in the future gets the time at which its file was written, or else the latest time that
it can have. An event whose timestamp is exactly that of a commit in the future got it from that
clock: it gets the corrected time of its commit, or the newest of its series if that is later.
Timestamps that a writer gave stay as they are, even in the future.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import (
    NEVER_US,
    NO_SEQUENCE,
    Int64Array,
    encode_runs,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.columns import INSTANT

__all__ = ["TIME_COLUMNS", "TimeCorrection", "apply_correction", "correct_times", "plan_correction"]

TIME_COLUMNS: Final = (
    "series",
    "sequence",
    "timestamp",
    "original_sequence",
    "commit",
    "commit_time",
)
"""The columns that the correction reads."""


def correct_times(
    commits: Int64Array, written_us: Mapping[int, int], last_good_us: int, now_us: int
) -> dict[int, int]:
    """The corrected time of each commit; times increase with the numbers.

    Args:
        commits: the numbers of those in the future, distinct and increasing.
        written_us: the times at which some of their files were written, by the storage.
        last_good_us: the time of the last commit that is not in the future.
        now_us: the correct time, not before `last_good_us`; no commit is later.

    >>> correct_times(np.array([4, 5, 6]), {4: 70, 6: 2_000}, 60, 100)
    {4: 70, 5: 100, 6: 100}
    """
    found: dict[int, int] = {}
    latest = now_us
    for number in reversed(commits.tolist()):
        us = written_us.get(number, latest)
        latest = min(latest, us if last_good_us <= us <= now_us else latest)
        found[number] = latest
    return {number: found[number] for number in commits.tolist()}


@dataclass(frozen=True, slots=True)
class TimeCorrection:
    """The events whose times change.

    Attributes:
        commit_us: the corrected time of each commit, by its number.
        events: series, sequence and new timestamp of these events.
    """

    commit_us: Mapping[int, int]
    events: pa.Table


def plan_correction(
    keys: pa.Table, newest_us: pa.Table, commit_us: Mapping[int, int]
) -> TimeCorrection:
    """Find the events whose times change.

    Args:
        keys: the columns `TIME_COLUMNS` of all events of commits in the future.
        newest_us: `series` and `newest_us` before these commits.
        commit_us: from `correct_times`.
    """
    names, codes = encode_runs(keys["series"])
    sequence = to_int64(keys["sequence"])
    order = sort_keys(codes, sequence)
    codes, sequence = codes[order], sequence[order]
    times = ("timestamp", "commit", "commit_time")
    us, commit, old_us = (to_int64(keys[name])[order] for name in times)
    assigned = np.isin(us, np.unique(old_us))
    corrected = np.where(assigned, _look_up(commit, commit_us), us)
    newest = _newest_before(names, newest_us)
    ends = [*np.flatnonzero(np.diff(codes, prepend=-1)).tolist(), len(codes)]
    for start, end in pairwise(ends if len(codes) else []):
        part = slice(start, end)
        highest = np.maximum.accumulate(np.maximum(corrected[part], newest[codes[start]]))
        corrected[part] = np.where(assigned[part], highest, corrected[part])
    changed = np.flatnonzero(corrected != us)
    return TimeCorrection(
        commit_us,
        pa.table(
            {
                "series": names.take(pa.array(codes[changed])),
                "sequence": sequence[changed],
                "timestamp": pa.array(corrected[changed]).cast(INSTANT),
            }
        ),
    )


def _look_up(numbers: Int64Array, values: Mapping[int, int]) -> Int64Array:
    known = np.array(sorted(values), np.int64)
    found = np.array([values[number] for number in known.tolist()], np.int64)
    return found[np.searchsorted(known, numbers)]


def _newest_before(names: pa.Array, newest_us: pa.Table) -> Int64Array:
    at = pc.index_in(names, newest_us["series"].combine_chunks().cast(pa.string()))
    found = newest_us["newest_us"].combine_chunks().cast(pa.int64()).take(at)
    newest: Int64Array = found.fill_null(NEVER_US).to_numpy(zero_copy_only=False)
    return newest


def apply_correction(rows: pa.Table, change: TimeCorrection) -> pa.Table:
    """`rows`, whole events in any order, with their new times, and those of edits' originals."""
    stamps = _corrected_column(rows["series"], rows["sequence"], rows["timestamp"], change)
    originals = _corrected_column(
        rows["series"], rows["original_sequence"], rows["original_timestamp"], change
    )
    commit, commit_us = to_int64(rows["commit"]), to_int64(rows["commit_time"])
    moved = np.isin(commit, list(change.commit_us))
    commit_us = commit_us.copy()
    commit_us[moved] = _look_up(commit[moved], change.commit_us)
    new = {
        "timestamp": stamps,
        "original_timestamp": originals,
        "commit_time": pa.array(commit_us).cast(INSTANT),
    }
    for name, column in new.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows


def _corrected_column(
    series: pa.ChunkedArray, sequence: pa.ChunkedArray, us: pa.ChunkedArray, change: TimeCorrection
) -> pa.Array:
    """The times of the events `series`, `sequence`, nulls too, where they change; else `us`."""
    wanted = pa.table(
        {
            "series": series.cast(pa.string()),
            "sequence": sequence.fill_null(NO_SEQUENCE),
            "row": np.arange(len(series)),
        }
    )
    found = wanted.join(change.events, ["series", "sequence"], join_type="left outer")
    new = found.sort_by("row")["timestamp"].combine_chunks()
    return pc.coalesce(new, us.combine_chunks())
