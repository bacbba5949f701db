"""What is true of every store, as a pure check of its events against its head.

The rules are semantics 15 to 19. Sequences are contiguous but for what compaction
may have removed: events of commits up to the horizon that were out of the retained range there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.model.series_index import ABSENT, NEVER_US, Head, Longs
from pyspark_tseries.model.series_state import longs, standing
from pyspark_tseries.model.slices import by_name, key_order

__all__ = ["CHECKED", "Trimming", "broken"]

CHECKED: Final = (
    *("series", "sequence", "timestamp", "author"),
    *("original_sequence", "original_timestamp", "original_author", "commit", "commit_time"),
)
"""The columns that the check needs."""

EXAMPLES: Final = 5
"""So many examples of each kind of breakage are told."""

_NONE: Final = -(2**63)
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Trimming:
    """What compaction may have removed.

    Attributes:
        horizon: the last commit whose events it may have removed; -1 where it removed none.
        retained: the range that was applied there, or a smaller one.
    """

    horizon: int = -1
    retained: RetainedRange = RetainedRange()


@dataclass(frozen=True, slots=True)
class _Events:
    """Events sorted by key; `same` marks those with a predecessor in their series."""

    names: list[str]
    codes: Longs
    sequence: Longs
    us: Longs
    edited: Longs
    commit: Longs
    commit_us: Longs
    same: Flags
    table: pa.Table

    def key(self, row: int) -> str:
        return f"series '{self.names[int(self.codes[row])]}': sequence {self.sequence[row]}"


def broken(events: pa.Table, head: Head, trimming: Trimming) -> list[str]:
    """What is broken, as sentences; empty where all is well.

    Args:
        events: whole series, the columns `CHECKED`, in any order; not more than fits in memory.
        head: where the series should stand.
        trimming: what compaction may have removed.
    """
    if not events.num_rows:
        return []
    sorted_events = _sorted(events)
    required = _required(sorted_events, head, trimming)
    checks = (
        _numbers(sorted_events, required),
        _times(sorted_events),
        _commits(sorted_events),
        _edits(sorted_events, required),
        _heads(sorted_events, head),
    )
    return [sentence for check in checks for sentence in check]


def _sorted(events: pa.Table) -> _Events:
    names, codes = by_name(events["series"])
    order = key_order(codes, longs(events["sequence"]))
    table, codes = events.take(pa.array(order)).combine_chunks(), codes[order]
    edited = longs(table["original_sequence"].fill_null(_NONE))
    return _Events(
        names.to_pylist(),
        codes,
        longs(table["sequence"]),
        longs(table["timestamp"]),
        edited,
        longs(table["commit"]),
        longs(table["commit_time"]),
        np.diff(codes, prepend=-1) == 0,
        table,
    )


def _required(events: _Events, head: Head, trimming: Trimming) -> Longs:
    """Per series the sequence from which on nothing may be missing."""
    required = np.zeros(len(events.names), np.int64)
    if trimming.horizon < 0:
        return required
    stood = standing(events.table, trimming.horizon).sort_by("series")
    floors = head.floors(events.names)
    if trimming.retained.limit is not None:
        out = longs(stood["horizon_sequence"]) - trimming.retained.limit + 1
        required = np.maximum(required, out)
    oldest_us = floors["floor_us"]
    if trimming.retained.last_us is not None:
        oldest_us = np.maximum(oldest_us, longs(stood["horizon_us"]) - trimming.retained.last_us)
    inside = (events.edited == _NONE) & (events.us >= oldest_us[events.codes])
    first = np.full(len(required), np.iinfo(np.int64).max)
    np.minimum.at(first, events.codes[inside], events.sequence[inside])
    first[oldest_us <= NEVER_US] = 0
    needed: Longs = np.maximum(np.maximum(required, floors["floor_sequence"]), first)
    return needed


def _numbers(events: _Events, required: Longs) -> Iterator[str]:
    step = np.diff(events.sequence, prepend=0)
    twice = np.flatnonzero(events.same & (step == 0))
    yield from (f"{events.key(row)} is stored twice" for row in twice[:EXAMPLES])
    before = np.where(events.same, events.sequence - step, -1)
    lowest = np.maximum(before + 1, required[events.codes])
    for row in np.flatnonzero(lowest < events.sequence)[:EXAMPLES]:
        name = events.names[int(events.codes[row])]
        yield f"series '{name}': sequences {lowest[row]} to {events.sequence[row] - 1} are missing"


def _times(events: _Events) -> Iterator[str]:
    rows = np.flatnonzero(events.edited == _NONE)
    back = (np.diff(events.us[rows], prepend=0) < 0) & (
        np.diff(events.codes[rows], prepend=-1) == 0
    )
    for at in np.flatnonzero(back)[:EXAMPLES]:
        row, before = rows[at], rows[at - 1]
        yield (
            f"{events.key(row)} at {format_instant(int(events.us[row]))} is before the original "
            f"{events.sequence[before]} at {format_instant(int(events.us[before]))}"
        )


def _commits(events: _Events) -> Iterator[str]:
    back = np.flatnonzero(events.same & (np.diff(events.commit, prepend=0) < 0))
    for row in back[:EXAMPLES]:
        yield f"{events.key(row)} is of commit {events.commit[row]}, the one before of a later"
    order = np.lexsort((events.commit_us, events.commit))
    commit, us = events.commit[order], events.commit_us[order]
    step_us = np.diff(us, prepend=us[:1])
    wrong = (step_us < 0) | ((step_us != 0) & (np.diff(commit, prepend=commit[:1]) == 0))
    for row in order[np.flatnonzero(wrong)][:EXAMPLES]:
        yield f"{events.key(row)}: commit {events.commit[row]} has two times, or one out of order"


def _edits(events: _Events, required: Longs) -> Iterator[str]:
    rows = np.flatnonzero(events.edited != _NONE)
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
    wrong = found & (events.edited[at] != _NONE) & ~forward
    unlike = found & ~wrong & ~forward & _unlike(events.table, rows, at)
    for bad, said in (
        (forward, "which is not before it"),
        (lost, "which does not exist"),
        (wrong, "which is an edit itself"),
        (unlike, "whose timestamp or author is another one"),
    ):
        for i in np.flatnonzero(bad)[:EXAMPLES]:
            yield f"{events.key(rows[i])} edits {wanted[i]}, {said}"


def _unlike(table: pa.Table, rows: Longs, at: Longs) -> Flags:
    """Which edits say of their originals something else than these do."""
    edits, originals = table.take(pa.array(rows)), table.take(pa.array(at))
    unlike = np.zeros(len(rows), bool)
    for name in ("timestamp", "author"):
        equal = pc.equal(edits[f"original_{name}"], originals[name]).fill_null(False)
        unlike |= ~equal.to_numpy().astype(bool)
    return unlike


def _heads(events: _Events, head: Head) -> Iterator[str]:
    stood = standing(events.table, -1).sort_by("series")
    known = head.of(events.names)
    for name in known:
        found = longs(stood[name])
        for code in np.flatnonzero(known[name] != found)[:EXAMPLES]:
            says = "nothing" if known[name][code] in (ABSENT, NEVER_US) else known[name][code]
            yield (
                f"series '{events.names[int(code)]}': the head says {name} {says}, its events say "
                f"{found[code]}"
            )
