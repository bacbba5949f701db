"""`fold_marks` as a loop over marks; `mechanisms_stream.py` puts the real one beside it.

One record's moments come in the order of semantics 4: silences that it reveals, its mark, its
close. The loop keeps the least mark of the live writers, and looks for it again only when the one
that held it moves or leaves. numpy does what depends on n records, not on k marks.
"""

from heapq import heappop, heappush
from typing import Any

import numpy as np

from pyspark_timestream.core.instants import NEVER, Instants, instant_or_none, instant_or_sentinel
from pyspark_timestream.rules.clocks import PartitionClock, TimeRules, WriterState
from pyspark_timestream.rules.marks import MarkEffects, Marks, Proposals, TimeWindows

__all__ = ["fold_by_loop"]


class Live:
    """The live writers, and the moments when their minimum may have changed."""

    def __init__(self, rows: int, windows: bool, noted_us: int) -> None:
        self.writers: dict[str, tuple[int, int, int]] = {}
        self.noted_us, self.moments = noted_us, [(-1, NEVER, NEVER, noted_us)]
        self._rows, self._windows = rows, windows
        self._least_us: int | None = None
        self._silences: list[tuple[int, str]] = []

    def set(self, name: str, us: int, seen_us: int, silent: int) -> None:
        """Add a writer, or its last mark; `silent` is the record that reveals its silence."""
        before = self.writers.get(name)
        if before is not None and before[0] > us:
            us = before[0]
        self.writers[name] = us, seen_us, silent
        if silent < self._rows:
            heappush(self._silences, (silent, name))
        if before is None and len(self.writers) == 1:
            self._least_us = us
        elif self._least_us is not None:
            if before is not None and before[0] == self._least_us != us:
                self._least_us = None
            elif us < self._least_us:
                self._least_us = us

    def remove(self, name: str) -> None:
        """Remove a writer, if it is live."""
        gone = self.writers.pop(name, None)
        if gone is not None and gone[0] == self._least_us:
            self._least_us = None

    def expire(self, until: int) -> None:
        """Remove the writers that a record up to `until` shows to be silent."""
        while self._silences and self._silences[0][0] <= until:
            place = self._silences[0][0]
            changed = False
            while self._silences and self._silences[0][0] == place:
                name = heappop(self._silences)[1]
                if name in self.writers and self.writers[name][2] == place:
                    self.remove(name)
                    changed = True
            if changed:
                self.propose(3 * place)

    def propose(self, key: int) -> None:
        """Note the minimum from `key` on."""
        if self._least_us is None:
            self._least_us = min((us for us, *_ in self.writers.values()), default=NEVER)
        lower_us = NEVER
        if self._windows:
            known = (us for name, (us, *_) in self.writers.items() if name and us != NEVER)
            lower_us = min(known, default=NEVER)
        self.moments.append((key, self._least_us, lower_us, self.noted_us))


def fold_by_loop(
    rules: TimeRules, state: PartitionClock, marks: Marks, record_us: Instants | None, rows: int
) -> MarkEffects:
    """As `fold_marks`."""
    clock, first_us = None, NEVER
    record_seen_us = state.record_us
    if rules.writer_timeout_us is not None and record_us is not None:
        before = instant_or_sentinel(state.record_us)
        clock = np.maximum(np.maximum.accumulate(record_us), before)
        known = clock[clock > NEVER]
        if len(known):
            first_us, record_seen_us = int(known[0]), int(known[-1])
    begins = bool(rows and rules.writers and not state.begun)
    live = Live(rows, rules.time_window, instant_or_sentinel(state.noted_us))
    at_start = dict(state.writers) | {name: WriterState() for name in rules.writers if begins}
    for name, writer in at_start.items():
        seen_us = first_us if writer.seen_us is None else writer.seen_us
        silent = silences(clock, np.array([seen_us]), rules.writer_timeout_us, rows)[0]
        live.set(name, instant_or_sentinel(writer.mark_us), seen_us, silent)
    live.propose(-1)
    seen = np.full(len(marks.places), NEVER)
    if clock is not None and first_us != NEVER:
        seen = np.maximum(clock[marks.places], first_us)
    columns = zip(
        marks.places.tolist(),
        marks.us.tolist(),
        (marks.marked & marks.readable).tolist(),
        marks.writers.to_pylist(),
        marks.closes.tolist(),
        seen.tolist(),
        silences(clock, seen, rules.writer_timeout_us, rows),
        strict=True,
    )
    for place, us, is_mark, name, closes, seen_us, silent in columns:
        live.expire(place)
        if is_mark:
            if name and us > live.noted_us:
                live.noted_us = us
            live.set(name, us, seen_us, silent)
            live.propose(3 * place + 1)
        if closes and name:
            live.remove(name)
            live.propose(3 * place + 2)
    live.expire(rows - 1)
    writers = {
        name: WriterState(instant_or_none(us), instant_or_none(seen_us))
        for name, (us, seen_us, _) in live.writers.items()
    }
    keys, least_us, lower_us, upper_us = np.array(live.moments[1:], np.int64).T
    later = keys[1:]
    return MarkEffects(
        writers=tuple(sorted(writers.items())),
        noted_us=instant_or_none(live.noted_us),
        record_us=record_seen_us,
        first_us=state.first_us,
        begun=state.begun or begins,
        proposals=Proposals((later + 2) // 3, least_us[1:], later % 3 == 1),
        unreadable=marks.places[marks.marked & ~marks.readable],
        time_windows=find_time_windows(keys, lower_us, upper_us, rows)
        if rules.time_window
        else None,
    )


def silences(clock: Instants | None, seen_us: Any, timeout_us: int | None, rows: int) -> list[int]:
    """The records that reveal silences since `seen_us`; `rows` where none does."""
    if clock is None or timeout_us is None:
        return [rows] * len(seen_us)
    found = np.searchsorted(clock, seen_us + timeout_us, side="right")
    return list(np.where(seen_us == NEVER, rows, found).tolist())


def find_time_windows(
    keys: Instants, lower_us: Instants, upper_us: Instants, rows: int
) -> TimeWindows:
    """The bounds at each record, after its silences and before its own mark."""
    at = np.searchsorted(keys, 3 * np.arange(rows), side="right") - 1
    lower = lower_us[at]
    return TimeWindows(lower, np.where(lower == NEVER, NEVER, upper_us[at]))
