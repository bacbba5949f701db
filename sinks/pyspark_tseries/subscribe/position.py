"""Where a subscriber stands, and how far its next batch goes: a fold over positions (semantics 23).

A subscription starts at a commit: first come the initial events of the commits up to it, series
by series; then every event of the commits after it, in the order (commit, series, sequence).
Rows keep the number of their commit for ever, so a position means the same before and after
compaction, and needs no log.
"""

import bisect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.retention import RetainedRange, format_range, parse_range
from pyspark_tseries.model.series_index import Longs, Note
from pyspark_tseries.model.slices import Key

__all__ = [
    "INITIAL_DEFAULT",
    "POSITION_VERSION",
    "Initial",
    "Position",
    "Supply",
    "format_initial",
    "initial_end",
    "live_end",
    "parse_initial",
    "parse_starts",
    "subscribe",
]

POSITION_VERSION: Final = 2
"""1 had no `retained`, `retained_since` and `due`."""


@dataclass(frozen=True, slots=True)
class Initial:
    """The events that a new subscriber gets first.

    Attributes:
        retained: the last entries of each series; `limit 0` for none.
        starts: per series the sequence from which on it gets every event instead.
    """

    retained: RetainedRange
    starts: Mapping[str, int]


INITIAL_DEFAULT: Final = RetainedRange(limit=1)


NO_EVENTS: Final = RetainedRange(limit=0)

_MOST: Final = 2**62


def parse_initial(text: str) -> RetainedRange:
    """A subscription range: `limit N`, `last DURATION`, both, `unlimited`, or `none`.

    Raises:
        ValueError: it is none of these.
    """
    return NO_EVENTS if str(text).strip().lower() == "none" else parse_range(text)


def format_initial(initial: RetainedRange) -> str:
    """The text of a subscription range; reads back with parse_initial."""
    return "none" if initial == NO_EVENTS else format_range(initial)


def parse_starts(text: str) -> dict[str, int]:
    """Sequences by series, of a JSON object.

    Raises:
        ValueError: it is no JSON object of whole numbers from 0 to below 2**62.

    >>> parse_starts('{"a": 7}')
    {'a': 7}
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    for name, sequence in found.items():
        whole = isinstance(sequence, int) and not isinstance(sequence, bool)
        if not whole or not 0 <= sequence < _MOST:
            raise ValueError(f"'{name}' has {sequence!r}, which is no sequence")
    return found


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where a subscriber has got all there is.

    Attributes:
        store: the Delta table's id; a position of another store means nothing here.
        began: the commit whose state the initial events are of.
        upto: the last series whose initial events were delivered, None before the first; only
            while `initial`.
        initial: whether initial events are still due.
        commit: all events up to this commit were delivered.
        after: and of the next commit those up to this key, inclusive; None for none of them.
        seen: events that were ever committed up to here, delivered or not.
        missed: of these, those that compaction removed before they were delivered, and those that
            `startingSequence` asked for in vain.
        retained: the store's retained range at `began`, which the initial events are of; None in
            offsets of version 1, which go by the present one.
        retained_since: the commit that had changed it last by then; None where none had.
        due: how many initial events are still due; None where nobody has counted them.
    """

    store: str
    began: int
    upto: str | None
    initial: bool
    commit: int
    after: Key | None
    seen: int
    missed: int
    retained: str | None = None
    retained_since: int | None = None
    due: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The offset; keys sorted, because Spark compares offsets as JSON text."""
        return {
            "after": None if self.after is None else list(self.after),
            "began": self.began,
            "commit": self.commit,
            "due": self.due,
            "initial": self.initial,
            "missed": self.missed,
            "retained": self.retained,
            "retained_since": self.retained_since,
            "seen": self.seen,
            "store": self.store,
            "upto": self.upto,
            "version": POSITION_VERSION,
        }

    def beginning(self) -> "Position":
        """The position at which the subscription that got here first was, before any batch."""
        start = replace(self, upto=None, initial=True, commit=self.began, after=None, due=None)
        # A store without commits had no initial events, and had never seen any.
        return start if self.began >= 0 else replace(start, initial=False, seen=0)

    @staticmethod
    def from_json(offset: Mapping[str, Any]) -> "Position":
        """The position that a checkpoint holds.

        Raises:
            UnusableStore: it is of a newer version.
        """
        version = offset.get("version")
        if not isinstance(version, int) or version > POSITION_VERSION:
            raise UnusableStore(
                f"the checkpoint's offsets have format version {version}; accepted: "
                f"{POSITION_VERSION} or older; next step: install a newer version of this package"
            )
        fields = {name: value for name, value in offset.items() if name != "version"}
        after = fields.pop("after")
        return Position(after=None if after is None else (after[0], after[1]), **fields)


def subscribe(store: str, note: Note, retained: RetainedRange, seen: int, missed: int) -> Position:
    """The position of a new subscriber.

    Args:
        store: the Delta table's id.
        note: the store's last commit.
        retained: its retained range.
        seen: the events that were ever committed.
        missed: those that the subscriber asked for and that are gone.
    """
    commit = note.commit
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
        retained_since=note.retained_since,
    )


def initial_end(start: Position, series: list[str], counts: Longs, most: int | None) -> Position:
    """The end of a batch of about `most` initial events, never less than a series.

    Events that were due at `start` and are not there any more are missed.

    Args:
        start: a position with `initial`.
        series: the series with initial events, in order.
        counts: how many each has.
        most: at least 1; None for all there are.
    """
    first = 0 if start.upto is None else bisect.bisect_right(series, start.upto)
    within = np.cumsum(counts[first:])
    there = int(within[-1]) if len(within) else 0
    missed = start.missed + max(0, (there if start.due is None else start.due) - there)
    size = len(within)
    if most is not None:
        size = max(int(np.searchsorted(within, most, "right")), 1)
    if size >= len(within):
        return replace(start, initial=False, upto=None, missed=missed, due=None)
    due = there - int(within[size - 1])
    return replace(start, upto=series[first + size - 1], missed=missed, due=due)


@dataclass(frozen=True, slots=True)
class Supply:
    """What there is for a subscriber after a position.

    Attributes:
        commit: the store's last commit.
        seen: the events that were ever committed.
        there: events on disk after the position; None where none of them can have been removed.
    """

    commit: int
    seen: int
    there: int | None


def live_end(
    start: Position,
    supply: Supply,
    most: int | None,
    counts: Callable[[], tuple[Longs, Longs]],
    key_at: Callable[[int, Key | None, int], Key],
) -> Position:
    """The end of the next batch after the initial events; `start` itself where there is none.

    Args:
        start: a position without `initial`.
        supply: what there is.
        most: the most events of a batch; None for all there are.
        counts: the commits that have events after `start`, in order, and how many.
        key_at: (commit, after, number) -> the key of the commit's event of that number, counted
            from 1, after the key `after`.
    """
    if supply.commit == start.commit:
        return start
    there = supply.seen - start.seen if supply.there is None else supply.there
    missed = start.missed + supply.seen - start.seen - there
    if most is None or there <= most:
        return replace(start, commit=supply.commit, after=None, seen=supply.seen, missed=missed)
    commits, rows = counts()
    before = supply.seen - there
    within = np.cumsum(rows)
    whole = int(np.searchsorted(within, most, "right"))
    if whole:
        seen = before + int(within[whole - 1])
        return replace(start, commit=int(commits[whole - 1]), after=None, seen=seen, missed=missed)
    commit = int(commits[0])
    after = start.after if commit == start.commit + 1 else None
    key = key_at(commit, after, most)
    return replace(start, commit=commit - 1, after=key, seen=before + most, missed=missed)
