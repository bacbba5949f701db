"""The record of CTIs that every commit carries: writers, the store's promise, and its history.

A streaming query that writes may commit a CTI with a batch: it will append no original before that
time any more. The record has the greatest CTI of each writer that has appended originals, and None
for one that has given none. The store promises the least of them, once all writers have one; the
promise never goes back, whoever joins or leaves. A final CTI is the greatest instant, so a writer
that has ended holds nothing back.

A subscriber needs the promise as it was at an earlier commit, so the record keeps its history. It
is bounded: of older promises only some are kept. Between two of them the earlier one counts, which
is less than what was promised, and so still true.

The rules are semantics 30.
"""

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

__all__ = ["BATCH_WRITES", "EARLIER_VERSIONS", "NO_RECORD", "CtiRecord", "name_writer"]

BATCH_WRITES: Final = "batch"
"""The writer of all that is appended without a streaming query, which never gives CTIs."""

EARLIER_VERSIONS: Final = "earlier"
"""The writer of all that versions of this package without CTIs have committed."""

MAX_PROMISES: Final = 64
"""Promises in the history; of a longer one, every second of the older half is left out."""

_QUERY_TOKEN_PREFIX: Final = "tseries:q:"


@dataclass(frozen=True, slots=True)
class CtiRecord:
    """CTIs after a commit; instants in microseconds.

    Attributes:
        writers: of each writer its CTI, None where it has given none.
        history: pairs of a commit and what the store promised from it on; both rise.
    """

    writers: Mapping[str, int | None] = field(default_factory=dict)
    history: tuple[tuple[int, int], ...] = ()

    @property
    def promised_us(self) -> int | None:
        """The store's CTI: no original before it is appended any more; None if there is none."""
        return self.history[-1][1] if self.history else None

    def promised_at(self, commit: int) -> int | None:
        """The CTI that the store had promised with `commit`, or an earlier one of it."""
        after = bisect.bisect_right(self.history, commit, key=lambda promise: promise[0])
        return self.history[after - 1][1] if after else None

    def without_cti(self) -> list[str]:
        """The writers that have given no CTI; while there is one the promise stays as it is."""
        return sorted(name for name, us in self.writers.items() if us is None)

    def blocking(self) -> list[str]:
        """The writers that hold the store's CTI back: those without one, else the least."""
        least = min((us for us in self.writers.values() if us is not None), default=None)
        return self.without_cti() or sorted(n for n, us in self.writers.items() if us == least)

    def advance(self, writer: str, cti_us: int | None, commit: int) -> "CtiRecord":
        """The record after `writer` has appended with `commit`; a CTI below its last is ignored."""
        known = self.writers.get(writer)
        given = [us for us in (known, cti_us) if us is not None]
        writers = {**self.writers, writer: max(given, default=None)}
        return self if writers == self.writers else replace(self, writers=writers)._promise(commit)

    def forget(self, writer: str, commit: int) -> "CtiRecord":
        """The record without `writer`, which holds nothing back from `commit` on."""
        writers = {name: us for name, us in self.writers.items() if name != writer}
        return replace(self, writers=writers)._promise(commit)

    def _promise(self, commit: int) -> "CtiRecord":
        known = [us for us in self.writers.values() if us is not None]
        if not known or len(known) < len(self.writers):
            return self
        if self.promised_us is not None and min(known) <= self.promised_us:
            return self
        return replace(self, history=_thin((*self.history, (commit, min(known)))))

    def to_json(self) -> dict[str, Any]:
        """The record in a head file."""
        return {"history": self.history, "writers": dict(self.writers)}

    @staticmethod
    def from_json(read: Mapping[str, Any]) -> "CtiRecord":
        """The record in a head file; raises KeyError or TypeError if it is none."""
        history = tuple((int(commit), int(us)) for commit, us in read["history"])
        return CtiRecord(dict(read["writers"]), history)


NO_RECORD: Final = CtiRecord({EARLIER_VERSIONS: None})
"""The record of a head without one: what wrote it gave no CTIs."""


def name_writer(token: tuple[str, int] | None) -> str:
    """The writer that commits a batch with `token`: a query, or all batch writes."""
    if token is None or not token[0].startswith(_QUERY_TOKEN_PREFIX):
        return BATCH_WRITES
    return f"query {token[0][len(_QUERY_TOKEN_PREFIX) :]}"


def _thin(history: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    if len(history) <= MAX_PROMISES:
        return history
    recent = MAX_PROMISES // 2
    return (*history[:-recent:2], *history[-recent:])
