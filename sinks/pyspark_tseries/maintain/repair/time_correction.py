"""The times that a clock in the future has given to commits and events, corrected (semantics 26.4).

A commit that lies in the future gets the time at which its file was written, or else the latest
that it can have. An event got its time from such a clock where it has exactly that of a commit in
the future; it gets its commit's corrected one, or its series' newest where that is later. Times
that somebody has given stay, in the future too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.series_index import ABSENT, NEVER_US, Longs
from pyspark_tseries.model.series_state import longs
from pyspark_tseries.model.slices import by_name, key_order

__all__ = ["KEYS", "Restamping", "corrected_times", "find_restamping", "restamped"]

KEYS: Final = ("series", "sequence", "timestamp", "original_sequence", "commit", "commit_time")
"""The columns by which times are corrected."""


def corrected_times(
    commits: Longs, written_us: Mapping[int, int], last_good_us: int, now_us: int
) -> dict[int, int]:
    """The time that each of some commits gets; rising with their numbers.

    Args:
        commits: the numbers of those in the future, distinct and rising.
        written_us: when the files of some of them were written, as the storage says.
        last_good_us: the time of the last commit that is not in the future.
        now_us: a clock that is right, not before that; no commit is later.

    >>> corrected_times(np.array([4, 5, 6]), {4: 70, 6: 2_000}, 60, 100)
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
class Restamping:
    """The events whose times change.

    Attributes:
        commit_us: the corrected time of each commit, by its number.
        events: series, sequence and new timestamp of the events that get another one.
    """

    commit_us: Mapping[int, int]
    events: pa.Table


def find_restamping(
    keys: pa.Table, newest_us: pa.Table, commit_us: Mapping[int, int]
) -> Restamping:
    """Which events get another time.

    Args:
        keys: the columns `KEYS` of all events of commits in the future.
        newest_us: `series` and `newest_us` before these commits.
        commit_us: as `corrected_times` gives it.
    """
    names, codes = by_name(keys["series"])
    sequence = longs(keys["sequence"])
    order = key_order(codes, sequence)
    codes, sequence = codes[order], sequence[order]
    times = ("timestamp", "commit", "commit_time")
    us, commit, old_us = (longs(keys[name])[order] for name in times)
    assigned = np.isin(us, np.unique(old_us))
    earned = np.where(assigned, _mapped(commit, commit_us), us)
    stood = _stood(names, newest_us)
    ends = [*np.flatnonzero(np.diff(codes, prepend=-1)).tolist(), len(codes)]
    for start, end in pairwise(ends if len(codes) else []):
        part = slice(start, end)
        highest = np.maximum.accumulate(np.maximum(earned[part], stood[codes[start]]))
        earned[part] = np.where(assigned[part], highest, earned[part])
    changed = np.flatnonzero(earned != us)
    return Restamping(
        commit_us,
        pa.table(
            {
                "series": names.take(pa.array(codes[changed])),
                "sequence": sequence[changed],
                "timestamp": pa.array(earned[changed]).cast(INSTANT),
            }
        ),
    )


def _mapped(numbers: Longs, values: Mapping[int, int]) -> Longs:
    known = np.array(sorted(values), np.int64)
    found = np.array([values[number] for number in known.tolist()], np.int64)
    return found[np.searchsorted(known, numbers)]


def _stood(names: pa.Array, newest_us: pa.Table) -> Longs:
    at = pc.index_in(names, newest_us["series"].combine_chunks().cast(pa.string()))
    found = newest_us["newest_us"].combine_chunks().cast(pa.int64()).take(at)
    stood: Longs = found.fill_null(NEVER_US).to_numpy(zero_copy_only=False)
    return stood


def restamped(rows: pa.Table, change: Restamping) -> pa.Table:
    """`rows`, whole events in any order, with their new times, and those of edits' originals."""
    stamps = _times_of(rows["series"], rows["sequence"], rows["timestamp"], change)
    originals = _times_of(
        rows["series"], rows["original_sequence"], rows["original_timestamp"], change
    )
    commit, commit_us = longs(rows["commit"]), longs(rows["commit_time"])
    moved = np.isin(commit, list(change.commit_us))
    commit_us = commit_us.copy()
    commit_us[moved] = _mapped(commit[moved], change.commit_us)
    new = {
        "timestamp": stamps,
        "original_timestamp": originals,
        "commit_time": pa.array(commit_us).cast(INSTANT),
    }
    for name, column in new.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows


def _times_of(
    series: pa.ChunkedArray, sequence: pa.ChunkedArray, us: pa.ChunkedArray, change: Restamping
) -> pa.Array:
    """The times of the events `series`, `sequence`, nulls too, where they change; else `us`."""
    wanted = pa.table(
        {
            "series": series.cast(pa.string()),
            "sequence": sequence.fill_null(ABSENT),
            "row": np.arange(len(series)),
        }
    )
    found = wanted.join(change.events, ["series", "sequence"], join_type="left outer")
    new = found.sort_by("row")["timestamp"].combine_chunks()
    return pc.coalesce(new, us.combine_chunks())
