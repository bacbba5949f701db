"""What a commit carries besides rows: its id, its time, and CTIs (semantics 19.4, 19.5 and 30).

The id of a commit is that of its head, a random number. Two copies of a store that both go on make
commits of the same numbers, but with different ids.

The time of commits never decreases. So one commit from the far future would set the time of all
later ones, and of every event without a timestamp of its own. A client's clock is compared with the
time of the last commit and with the clock of the storage, which may be another machine's.

A streaming query that writes may commit a CTI with a batch: it will append no original before that
time any more. The store's CTI is the least of them, once every writer has given one; it never goes
back, whoever joins or leaves. A subscriber needs the store's CTI as it was at an earlier commit, so
the record keeps a bounded history: between two entries the earlier one counts, which is still true.
"""

import bisect
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from pyspark_timestream.core.instants import (
    DAY_US,
    HOUR_US,
    clamp_instant,
    format_duration,
    format_instant,
)
from pyspark_tseries.errors import WrongClock
from pyspark_tseries.model.arrays import Int64Array

CHECKSUM_DIGITS: Final = 8


def seal(content: bytes) -> bytes:
    """`content` behind its checksum, the CRC-32 in hexadecimal digits."""
    return b"%08x" % zlib.crc32(content) + content


def unseal(sealed: bytes | memoryview) -> memoryview:
    """The content that `seal` was given; raises ValueError if it has changed."""
    content = memoryview(sealed)[CHECKSUM_DIGITS:]
    if sealed[:CHECKSUM_DIGITS] != b"%08x" % zlib.crc32(content):
        raise ValueError("its checksum is another one")
    return content


COMMITS_PER_FILE: Final = 1024
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class CommitMark:
    """A commit."""

    number: int
    id: int

    def __str__(self) -> str:
        """As a message names it."""
        return f"commit {self.number} (id {self.id:016x})"

    def to_json(self) -> list[int]:
        """As a checkpoint has it."""
        return [self.number, self.id]

    @staticmethod
    def from_json(read: Any) -> "CommitMark | None":
        """What `to_json` made; None for None."""
        return None if read is None else CommitMark(int(read[0]), int(read[1]))


def pack_ids(ids: Mapping[int, int], first: int) -> bytes:
    """A file with the ids of the commits from `first` on, by number."""
    numbers = range(first, first + COMMITS_PER_FILE)
    content = np.array([ids.get(number, _UNKNOWN) for number in numbers], "<i8").tobytes()
    return seal(content)


def unpack_ids(content: bytes, first: int) -> dict[int, int]:
    """The ids in a file that `pack_ids` made; none if it is damaged."""
    try:
        ids: Int64Array = np.frombuffer(unseal(content), "<i8")
    except ValueError:
        return {}
    if len(ids) != COMMITS_PER_FILE:
        return {}
    return {first + int(at): int(ids[at]) for at in np.flatnonzero(ids != _UNKNOWN)}


MAX_CLOCK_SKEW_US: Final = HOUR_US
"""Clocks of working machines differ by less than an hour."""

MAX_IDLE_US: Final = 2 * 365 * DAY_US
"""After two idle years the user must confirm that the clock has not jumped."""

_MIN_CREDIBLE_US: Final = 1_767_225_600_000_000
"""2026-01-01: an earlier commit was made with an unset clock and proves nothing."""


def is_clock_suspicious(last_us: int, now_us: int, written_us: int | None = None) -> bool:
    """True if a client's clock is far enough from the last commit to ask the storage's clock.

    `written_us` is when the storage got the last entry of the log, by its own clock: it shows
    commits that are each a little ahead of the last.
    """
    ahead = written_us is not None and now_us - written_us > MAX_CLOCK_SKEW_US
    return ahead or abs(now_us - last_us) > MAX_CLOCK_SKEW_US


def check_commit_time(
    store: str, last_us: int, now_us: int, storage_us: int | None, *, same_machine: bool
) -> None:
    """Refuse a commit by a clock that is ahead, or after one that was.

    A clock that is behind does no harm: the next commit then has the time of the last one. A store
    that was idle longer than `MAX_IDLE_US` goes on only if another machine's storage clock agrees.

    Args:
        store: its location, for the message.
        last_us: the time of the last commit; far in the past where there is none.
        now_us: the client's clock.
        storage_us: the storage's clock; None if unknown.
        same_machine: True if that may be the client's own clock.

    Raises:
        WrongClock: names the clocks, their times, and the next step.
    """
    known_us = now_us if storage_us is None else storage_us
    said = f"this machine's clock says {_format_clamped(now_us)}"
    if storage_us is not None:
        said += f", the storage's {_format_clamped(storage_us)}"
    if now_us > known_us + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': {said}",
            f"clocks less than {format_duration(MAX_CLOCK_SKEW_US)} apart, or every later commit "
            "would have that time",
            "set this machine's clock. Nothing is stored",
            kind="clock",
        )
    if last_us > max(now_us, known_us) + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, but {said}",
            "a last commit of the past",
            f"if the clock that made it was wrong, python -m pyspark_tseries repair {store} "
            "corrects the times of such commits; if this machine's is, set that. Nothing is stored",
            kind="clock",
        )
    idle_us = now_us - last_us
    if (
        (storage_us is None or same_machine)
        and last_us >= _MIN_CREDIBLE_US
        and idle_us > MAX_IDLE_US
    ):
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, and {said}",
            f"a commit within {format_duration(MAX_IDLE_US)} of the last one",
            "if this machine's clock is right, say so with: python -m pyspark_tseries repair "
            f"{store}; else set it. Nothing is stored",
            kind="clock",
        )


def _format_clamped(us: int) -> str:
    return format_instant(clamp_instant(us))


BATCH_WRITES: Final = "batch"
"""The writer of all that is appended without a streaming query, which never gives CTIs."""

UNKNOWN_WRITERS: Final = "unknown"
"""The writers of commits that a rebuilt head knows nothing of."""

MAX_HISTORY: Final = 64
"""Entries of the history; of a longer one, every second of the older half is left out."""

_QUERY_TOKEN_PREFIX: Final = "tseries:q:"


@dataclass(frozen=True, slots=True)
class CtiRecord:
    """CTIs after a commit; instants in microseconds.

    Attributes:
        writers: of each writer its CTI, None where it has given none.
        history: pairs of a commit and the store's CTI from it on; both rise.
    """

    writers: Mapping[str, int | None] = field(default_factory=dict)
    history: tuple[tuple[int, int], ...] = ()

    @property
    def store_us(self) -> int | None:
        """The store's CTI: no original before it is appended any more; None if there is none."""
        return self.history[-1][1] if self.history else None

    def cti_at(self, commit: int) -> int | None:
        """The store's CTI as of `commit`, or an earlier one of it; None if there was none."""
        after = bisect.bisect_right(self.history, commit, key=lambda entry: entry[0])
        return self.history[after - 1][1] if after else None

    def without_cti(self) -> list[str]:
        """The writers that have given no CTI; while there is one the store's stays as it is."""
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
        return (
            self
            if writers == self.writers
            else replace(self, writers=writers)._with_store_cti(commit)
        )

    def forget(self, writer: str, commit: int) -> "CtiRecord":
        """The record without `writer`, which holds nothing back from `commit` on."""
        writers = {name: us for name, us in self.writers.items() if name != writer}
        return replace(self, writers=writers)._with_store_cti(commit)

    def _with_store_cti(self, commit: int) -> "CtiRecord":
        known = [us for us in self.writers.values() if us is not None]
        if not known or len(known) < len(self.writers):
            return self
        if self.store_us is not None and min(known) <= self.store_us:
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


def name_writer(token: tuple[str, int] | None) -> str:
    """The writer that commits a batch with `token`: a query, or all batch writes."""
    if token is None or not token[0].startswith(_QUERY_TOKEN_PREFIX):
        return BATCH_WRITES
    return f"query {token[0][len(_QUERY_TOKEN_PREFIX) :]}"


def _thin(history: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    if len(history) <= MAX_HISTORY:
        return history
    recent = MAX_HISTORY // 2
    return (*history[:-recent:2], *history[-recent:])
