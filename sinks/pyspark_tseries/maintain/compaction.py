"""What compaction does, as rules: which files it merges, and which events it leaves out.

Files that were written together are a *run*. Runs are merged from the newest backwards, as long
as the next is not larger than twice what was gathered, so an event is rewritten a number of times
that grows with the logarithm of the store. Events are left out only where all runs are merged.

The rules are semantics 24.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.model.series_index import NEVER_US, Head, Longs
from pyspark_tseries.model.series_state import longs
from pyspark_tseries.model.slices import by_name
from pyspark_tseries.storage.data_files import DataFile

__all__ = ["FEW_RUNS", "horizon_of", "kept_events", "to_merge"]

FEW_RUNS: Final = 64
"""So many files of single commits are left alone by the store's own upkeep."""


def to_merge(data: Sequence[DataFile], *, everything: bool) -> list[DataFile]:
    """The files to merge into one run; empty where there is nothing to gain.

    Args:
        data: the store's files, at least one kind each.
        everything: all of them, also where there is one run only: events may be left out.
    """
    runs = _runs(data)
    if everything or not runs:
        return [file for run in runs for file in run]
    if sum(not run[0].merged for run in runs) < FEW_RUNS:
        return []
    gathered: list[DataFile] = []
    for run in reversed(runs):
        held, size = (sum(file.size for file in files) for files in (gathered, run))
        if run[0].merged and size > 2 * held:
            break
        gathered = run + gathered
    return gathered


def _runs(data: Sequence[DataFile]) -> list[list[DataFile]]:
    """Files by run, in the order of commits; the files of one commit are a run."""
    ordered = sorted(data, key=lambda file: (file.first_commit, file.run, file.path))
    return [list(files) for _, files in groupby(ordered, key=lambda file: file.run)]


def horizon_of(commit: Longs, commit_us: Longs, latest_us: int) -> int:
    """The last commit not later than `latest_us`; -1 where there is none."""
    return int(commit[commit_us <= latest_us].max(initial=-1))


def kept_events(
    events: pa.Table, stood: pa.Table, head: Head, retained: RetainedRange, horizon: int
) -> npt.NDArray[np.bool_]:
    """Which of `events` compaction keeps: all that may be seen at the horizon or after it.

    Kept as well: each series' newest event, original and edit, of which the head can be rebuilt.

    Args:
        events: the columns `standing.KEYS`.
        stood: where every series of `events` stands by all events of the store, at `horizon`.
        head: has the floors.
        retained: the retained range.
        horizon: the last commit of which events may go.
    """
    names, codes = by_name(events["series"])
    rows = stood.take(pc.index_in(names, stood["series"].combine_chunks()))
    at = {name: longs(rows[name]) for name in rows.column_names if name != "series"}
    floors = head.floors(names.to_pylist())
    low, low_us = floors["floor_sequence"], floors["floor_us"]
    if retained.limit is not None:
        low = np.maximum(low, at["horizon_sequence"] - retained.limit + 1)
    if retained.last_us is not None:
        oldest_us = np.maximum(at["horizon_us"], NEVER_US + retained.last_us) - retained.last_us
        low_us = np.maximum(low_us, oldest_us)
    sequence, us = longs(events["sequence"]), longs(events["timestamp"])
    inside = (sequence >= low[codes]) & (us >= low_us[codes])
    for name in ("last_sequence", "original_sequence", "edit_sequence"):
        inside |= sequence == at[name][codes]
    kept: npt.NDArray[np.bool_] = inside | (longs(events["commit"]) > horizon)
    return kept
