"""The invariants of a store, as a pure check of its events against its head.

The rules are semantics 15 to 19. In every series

- sequences are contiguous, each stored once;
- timestamps of originals that are not erased do not decrease;
- commit numbers do not decrease, and each commit has one time, later than those before it;
- an edit names an earlier original, and repeats its timestamp and author;
- the head agrees with the events of the series.

Compaction may have removed events of commits up to its horizon that were out of the retained range
there. Only a gap after the first event that must still exist is a violation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.model.arrays import (
    NEVER_US,
    NO_ORIGINAL,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
    encode_runs,
    sort_keys,
    to_int64,
)
from pyspark_tseries.model.retention import RetainedRange, min_retained
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.model.series_state import compute_state

__all__ = ["CHECKED_COLUMNS", "CompactionHorizon", "find_violations"]

CHECKED_COLUMNS: Final = (
    *("series", "sequence", "timestamp", "author"),
    *("original_sequence", "original_timestamp", "original_author", "commit", "commit_time"),
    "erasure",
)
"""The columns that the checks read."""

MAX_EXAMPLES: Final = 5
"""Examples reported of each kind of violation."""


@dataclass(frozen=True, slots=True)
class CompactionHorizon:
    """The events that compaction may have removed.

    Attributes:
        horizon: the last commit whose events it may have removed; -1 if it removed none.
        retained: the range that was applied there, or a smaller one.
    """

    horizon: int = -1
    retained: RetainedRange = RetainedRange()


@dataclass(frozen=True, slots=True)
class _Events:
    """Events sorted by key.

    Attributes:
        same: flags those with a predecessor in their series.
        timed: flags originals that are not erased: their times do not decrease.
    """

    names: list[str]
    codes: Int64Array
    sequence: Int64Array
    us: Int64Array
    edited: Int64Array
    commit: Int64Array
    commit_us: Int64Array
    same: BoolArray
    timed: BoolArray
    table: pa.Table

    def key(self, row: int) -> str:
        return f"series '{self.names[int(self.codes[row])]}': sequence {self.sequence[row]}"


def find_violations(events: pa.Table, head: SeriesIndex, compacted: CompactionHorizon) -> list[str]:
    """Describe each violation in a sentence.

    Args:
        events: whole series, the columns `CHECKED_COLUMNS`, in any order.
        head: where the series should stand.
        compacted: the events that compaction may have removed.
    """
    if not events.num_rows:
        return []
    sorted_events = _sort_events(events)
    required = _find_required_sequences(sorted_events, head, compacted)
    checks = (
        _check_sequences(sorted_events, required),
        _check_timestamps(sorted_events),
        _check_commits(sorted_events),
        _check_edits(sorted_events, required),
        _check_head(sorted_events, head),
    )
    return [sentence for check in checks for sentence in check]


def _sort_events(events: pa.Table) -> _Events:
    names, codes = encode_runs(events["series"])
    order = sort_keys(codes, to_int64(events["sequence"]))
    table, codes = events.take(pa.array(order)).combine_chunks(), codes[order]
    edited = to_int64(table["original_sequence"].fill_null(NO_ORIGINAL))
    return _Events(
        names.to_pylist(),
        codes,
        to_int64(table["sequence"]),
        to_int64(table["timestamp"]),
        edited,
        to_int64(table["commit"]),
        to_int64(table["commit_time"]),
        np.diff(codes, prepend=-1) == 0,
        (edited == NO_ORIGINAL) & table["erasure"].is_null().to_numpy(),
        table,
    )


def _find_required_sequences(
    events: _Events, head: SeriesIndex, compacted: CompactionHorizon
) -> Int64Array:
    """The sequence of each series from which no event may be missing."""
    required = np.zeros(len(events.names), np.int64)
    if compacted.horizon < 0:
        return required
    states = compute_state(events.table, compacted.horizon).sort_by("series")
    floors = head.min_retained(events.names)
    newest = to_int64(states["horizon_sequence"]), to_int64(states["horizon_us"])
    required, oldest_us = min_retained(compacted.retained, *newest, floors)
    inside = events.timed & (events.us >= oldest_us[events.codes])
    first = np.full(len(required), np.iinfo(np.int64).max)
    np.minimum.at(first, events.codes[inside], events.sequence[inside])
    first[oldest_us <= NEVER_US] = 0
    needed: Int64Array = np.maximum(required, first)
    return needed


def _check_sequences(events: _Events, required: Int64Array) -> Iterator[str]:
    step = np.diff(events.sequence, prepend=0)
    twice = np.flatnonzero(events.same & (step == 0))
    yield from (f"{events.key(row)} is stored twice" for row in twice[:MAX_EXAMPLES])
    before = np.where(events.same, events.sequence - step, -1)
    lowest = np.maximum(before + 1, required[events.codes])
    for row in np.flatnonzero(lowest < events.sequence)[:MAX_EXAMPLES]:
        name = events.names[int(events.codes[row])]
        yield f"series '{name}': sequences {lowest[row]} to {events.sequence[row] - 1} are missing"


def _check_timestamps(events: _Events) -> Iterator[str]:
    rows = np.flatnonzero(events.timed)
    back = (np.diff(events.us[rows], prepend=0) < 0) & (
        np.diff(events.codes[rows], prepend=-1) == 0
    )
    for at in np.flatnonzero(back)[:MAX_EXAMPLES]:
        row, before = rows[at], rows[at - 1]
        yield (
            f"{events.key(row)} at {format_instant(int(events.us[row]))} is before the original "
            f"{events.sequence[before]} at {format_instant(int(events.us[before]))}"
        )


def _check_commits(events: _Events) -> Iterator[str]:
    back = np.flatnonzero(events.same & (np.diff(events.commit, prepend=0) < 0))
    for row in back[:MAX_EXAMPLES]:
        yield f"{events.key(row)} is of commit {events.commit[row]}, its predecessor of a later one"
    order = np.lexsort((events.commit_us, events.commit))
    commit, us = events.commit[order], events.commit_us[order]
    step_us = np.diff(us, prepend=us[:1])
    wrong = (step_us < 0) | ((step_us != 0) & (np.diff(commit, prepend=commit[:1]) == 0))
    for row in order[np.flatnonzero(wrong)][:MAX_EXAMPLES]:
        yield f"{events.key(row)}: commit {events.commit[row]} has two times, or one out of order"


def _check_edits(events: _Events, required: Int64Array) -> Iterator[str]:
    rows = np.flatnonzero(events.edited != NO_ORIGINAL)
    if not len(rows):
        return
    codes, wanted = events.codes[rows], events.edited[rows]
    # One number a key: sequences of a batch of series fit beside the code in 64 bits only as ranks.
    sequences, ranks = np.unique(np.concatenate([events.sequence, wanted]), return_inverse=True)
    there = events.codes * len(sequences) + ranks[: len(events.sequence)]
    target = codes * len(sequences) + ranks[len(events.sequence) :]
    at = np.minimum(np.searchsorted(there, target), len(there) - 1)
    found = there[at] == target
    forward = wanted >= events.sequence[rows]
    lost = ~found & (wanted >= required[codes]) & ~forward
    wrong = found & (events.edited[at] != NO_ORIGINAL) & ~forward
    unlike = found & ~wrong & ~forward & _find_wrong_originals(events.table, rows, at)
    for bad, fault in (
        (forward, "which is not before it"),
        (lost, "which does not exist"),
        (wrong, "which is an edit itself"),
        (unlike, "whose timestamp or author differs from what the edit records"),
    ):
        for i in np.flatnonzero(bad)[:MAX_EXAMPLES]:
            yield f"{events.key(rows[i])} edits {wanted[i]}, {fault}"


def _find_wrong_originals(table: pa.Table, rows: Int64Array, at: Int64Array) -> BoolArray:
    """Flags of the edits that record another timestamp or author than their original has."""
    edits, originals = table.take(pa.array(rows)), table.take(pa.array(at))
    unlike = np.zeros(len(rows), bool)
    for name in ("timestamp", "author"):
        equal = pc.equal(edits[f"original_{name}"], originals[name]).fill_null(False)
        unlike |= ~equal.to_numpy().astype(bool)
    return unlike


def _check_head(events: _Events, head: SeriesIndex) -> Iterator[str]:
    states = compute_state(events.table, -1).sort_by("series")
    known = head.lookup(events.names)
    for name in known:
        found = to_int64(states[name])
        for code in np.flatnonzero(known[name] != found)[:MAX_EXAMPLES]:
            known_value = (
                "nothing" if known[name][code] in (NO_SEQUENCE, NEVER_US) else known[name][code]
            )
            yield (
                f"series '{events.names[int(code)]}': the head has {name} {known_value}, "
                f"its events have {found[code]}"
            )
