"""Rules of compaction: which files it merges, and which events it removes.

Files that were written together are a *run*. Runs are merged from the newest backwards, as long
as the next run is at most twice as large as those gathered before it. An event is therefore
rewritten a number of times that grows with the logarithm of the size of the store. Events are
removed only when all runs are merged, and only those that no query can see at the *horizon*, the
last commit that is older than the minimum retention age, nor after it.

The rules are semantics 24.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import BoolArray, Int64Array, encode_runs, to_int64
from pyspark_tseries.model.retention import RetainedRange, min_retained
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage.data_files import DataFile

__all__ = ["MIN_RUNS_TO_MERGE", "choose_files", "find_horizon", "select_kept_events"]

MIN_RUNS_TO_MERGE: Final = 64
"""Automatic maintenance starts merging at this many runs of single commits."""


def choose_files(data: Sequence[DataFile], *, everything: bool) -> list[DataFile]:
    """Choose the files to merge into one run; none if merging gains nothing.

    Args:
        data: the store's files, at least one kind each.
        everything: all of them, even a single run, since events may be removed.
    """
    runs = _group_runs(data)
    if everything or not runs:
        return [file for run in runs for file in run]
    if sum(not run[0].is_compacted for run in runs) < MIN_RUNS_TO_MERGE:
        return []
    gathered: list[DataFile] = []
    for run in reversed(runs):
        held, size = (sum(file.size for file in files) for files in (gathered, run))
        if run[0].is_compacted and size > 2 * held:
            break
        gathered = run + gathered
    return gathered


def _group_runs(data: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group files by run, in the order of commits; the files of one commit are a run."""
    ordered = sorted(data, key=lambda file: (file.first_commit, file.run, file.path))
    return [list(files) for _, files in groupby(ordered, key=lambda file: file.run)]


def find_horizon(commit: Int64Array, commit_us: Int64Array, latest_us: int) -> int:
    """The last commit not later than `latest_us`; -1 if there is none."""
    return int(commit[commit_us <= latest_us].max(initial=-1))


def select_kept_events(
    events: pa.Table, states: pa.Table, head: SeriesIndex, retained: RetainedRange, horizon: int
) -> BoolArray:
    """Flags of the `events` that compaction keeps: all that are visible at the horizon or later.

    The newest event, original and edit of each series are always kept: the head is rebuilt from
    them.

    Args:
        events: the columns `STATE_COLUMNS`.
        states: the state of every series of `events` at `horizon`, from all events of the store.
        head: has the floors.
        retained: the retained range.
        horizon: the last commit whose events may be removed.
    """
    names, codes = encode_runs(events["series"])
    rows = states.take(pc.index_in(names, states["series"].combine_chunks()))
    at = {name: to_int64(rows[name]) for name in rows.column_names if name != "series"}
    floors = head.min_retained(names.to_pylist())
    low, low_us = min_retained(retained, at["horizon_sequence"], at["horizon_us"], floors)
    sequence, us = to_int64(events["sequence"]), to_int64(events["timestamp"])
    inside = (sequence >= low[codes]) & (us >= low_us[codes])
    for name in ("last_sequence", "original_sequence", "edit_sequence"):
        inside |= sequence == at[name][codes]
    kept: BoolArray = inside | (to_int64(events["commit"]) > horizon)
    return kept
