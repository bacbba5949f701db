"""The position of a subscriber, and the end of its next batch (semantics 23).

A new subscription begins at the store's last commit. It first delivers the initial events of the
commits up to it, series by series, then every event of later commits in the order (commit, series,
sequence). A position is a point in this order; it is the Spark offset, as JSON.

Rows keep the number of their commit for ever, so a position stays valid across compaction and
needs no log. A position also records how many events had ever been committed up to it. So the later
events that compaction removed before they were delivered can be counted: they were missed.
"""

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import Int64Array, Key
from pyspark_tseries.model.commits import CommitMark, CtiRecord
from pyspark_tseries.model.retention import RetainedRange, format_range
from pyspark_tseries.model.series_index import CommitMetadata

POSITION_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class InitialEvents:
    """The events that a new subscriber gets first.

    Attributes:
        retained: the last entries of each series; `limit 0` for none.
        starts: by series, the sequence from which the subscriber gets every event instead.
    """

    retained: RetainedRange
    starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Position:
    """A point up to which a subscriber has received everything.

    Attributes:
        store: the Delta table's id; a position is only valid for its own store.
        began: the commit at which the subscription began.
        upto: while `initial`, the last series with its initial events delivered; None before the
            first.
        initial: True while initial events are still due.
        commit: all events up to this commit were delivered.
        after: the last delivered key of the next commit, inclusive; None for none of it.
        seen: the number of events ever committed up to here, delivered or not.
        missed: how many of these were removed before they were delivered, or were gone when
            `startingSequence` asked for them.
        retained: the retained range at `began`, which selects the initial events.
        retained_since: the commit that had last changed that range by then; None if none had.
        due: the number of initial events still due; None if not counted yet.
        cti: the last CTI delivered, in microseconds; None if there was none.
        mark: the newest commit with a delivered event, or one before it; None if unknown.
    """

    store: str
    began: int
    upto: str | None
    initial: bool
    commit: int
    after: Key | None
    seen: int
    missed: int
    retained: str
    retained_since: int | None = None
    due: int | None = None
    cti: int | None = None
    mark: CommitMark | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the offset, with sorted keys because Spark compares offsets as JSON text."""
        return {
            "after": None if self.after is None else list(self.after),
            "began": self.began,
            "commit": self.commit,
            "cti": self.cti,
            "due": self.due,
            "initial": self.initial,
            "mark": None if self.mark is None else self.mark.to_json(),
            "missed": self.missed,
            "retained": self.retained,
            "retained_since": self.retained_since,
            "seen": self.seen,
            "store": self.store,
            "upto": self.upto,
            "version": POSITION_VERSION,
        }

    def with_cti(self, ctis: CtiRecord) -> "Position":
        """Return the position with the CTI that its store had by then; a CTI never goes back.

        A position gets no CTI while initial events are due.
        """
        cti_us = None if self.initial else ctis.cti_at(self.commit)
        if cti_us is None or (self.cti is not None and cti_us <= self.cti):
            return self
        return replace(self, cti=cti_us)

    def beginning(self) -> "Position":
        """Return the position of the same subscription before its first batch."""
        start = replace(
            self,
            upto=None,
            initial=True,
            commit=self.began,
            after=None,
            due=None,
            cti=None,
            mark=None,  # The end of the batch has a later one.
        )
        # A store without commits had no initial events, and had never seen any.
        return start if self.began >= 0 else replace(start, initial=False, seen=0)

    @staticmethod
    def from_json(offset: Mapping[str, Any]) -> "Position":
        """Return the position that a checkpoint's offset holds.

        Raises:
            UnusableStore: the offset has another format version.
        """
        version = offset.get("version")
        if version != POSITION_VERSION:
            raise UnusableStore(
                f"the checkpoint's offsets have format version {version}",
                str(POSITION_VERSION),
                "go on with the version of this package that wrote them",
            )
        fields = {name: value for name, value in offset.items() if name != "version"}
        after, mark = fields.pop("after"), CommitMark.from_json(fields.pop("mark"))
        key = None if after is None else (after[0], after[1])
        return Position(after=key, mark=mark, **fields)


def start_position(
    store: str, metadata: CommitMetadata, retained: RetainedRange, seen: int, missed: int
) -> Position:
    """Return the position of a new subscriber."""
    commit = metadata.commit
    return Position(
        store=store,
        began=commit,
        upto=None,
        initial=commit >= 0,
        commit=commit,
        after=None,
        seen=seen,
        missed=missed,
        retained=format_range(retained),
        retained_since=metadata.retained_since,
    )


def find_initial_end(
    start: Position, series: list[str], counts: Int64Array, max_events: int | None
) -> Position:
    """Return the end of a batch of whole series: at most `max_events` events, or one series.

    Events that were due at `start` and are gone count as missed.
    """
    first = 0 if start.upto is None else bisect.bisect_right(series, start.upto)
    within = np.cumsum(counts[first:])
    there = int(within[-1]) if len(within) else 0
    missed = start.missed + max(0, (there if start.due is None else start.due) - there)
    size = len(within)
    if max_events is not None:
        size = max(int(np.searchsorted(within, max_events, "right")), 1)
    if size >= len(within):
        return replace(start, initial=False, upto=None, missed=missed, due=None)
    due = there - int(within[size - 1])
    return replace(start, upto=series[first + size - 1], missed=missed, due=due)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The events that wait for a subscriber after a position.

    Attributes:
        commit: the store's last commit.
        seen: the number of events ever committed.
        stored: the number of events on disk after the position; None if none can have been removed.
    """

    commit: int
    seen: int
    stored: int | None


def find_live_end(
    start: Position,
    backlog: Backlog,
    max_events: int | None,
    counts: Callable[[], tuple[Int64Array, Int64Array]],
    key_at: Callable[[int, Key | None, int], Key],
) -> Position:
    """Return the end of the next batch after the initial events; `start` itself if nothing is new.

    `counts` returns the commits with events after `start`, in order, and their numbers of events.
    `key_at(commit, after, number)` returns the key of the commit's event with that number, counted
    from 1 after the key `after`.
    """
    if backlog.commit == start.commit:
        return start
    there = backlog.seen - start.seen if backlog.stored is None else backlog.stored
    missed = start.missed + backlog.seen - start.seen - there
    if max_events is None or there <= max_events:
        return replace(start, commit=backlog.commit, after=None, seen=backlog.seen, missed=missed)
    commits, rows = counts()
    before = backlog.seen - there
    within = np.cumsum(rows)
    whole = int(np.searchsorted(within, max_events, "right"))
    if whole:
        seen = before + int(within[whole - 1])
        return replace(start, commit=int(commits[whole - 1]), after=None, seen=seen, missed=missed)
    # Not even one commit fits, so the batch ends within it.
    commit = int(commits[0])
    after = start.after if commit == start.commit + 1 else None
    key = key_at(commit, after, max_events)
    return replace(start, commit=commit - 1, after=key, seen=before + max_events, missed=missed)
