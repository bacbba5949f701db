"""Commits: the id, time and CTIs of each, and the metadata that its head file keeps.

The events do not show the counts of dropped and adjusted rows, a changed retained range or a
changed policy; `CommitMetadata` in every head file keeps these.

A commit also has an id, a time and CTIs (semantics 19.4, 19.5 and 30). Its id is its head's, a
random number: if two copies of a store both go on, their commits have the same numbers, but
different ids. The time of commits never decreases, so one commit from the far future would set the
time of all later ones, and of every event without a timestamp. Therefore a client compares its
clock with the time of the last commit and with the storage's clock, which may be another machine's.

A streaming query may commit a CTI with a batch: it will append no further original before that
time. The store's CTI is the lowest CTI of its writers, once each has given one; it never goes back,
even if writers join or leave.
"""

import bisect
import dataclasses
import json
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.instants import (
    DAY_US,
    HOUR_US,
    clamp_instant,
    format_duration,
    format_instant,
)
from pyspark_tseries.errors import WrongClock
from pyspark_tseries.model.arrays import NEVER_US, Int64Array

CHECKSUM_DIGITS: Final = 8


def with_checksum(content: bytes) -> bytes:
    """Return `content` after its checksum, the CRC-32 in hexadecimal digits."""
    return b"%08x" % zlib.crc32(content) + content


def without_checksum(sealed: bytes | memoryview) -> memoryview:
    """Return the content that `with_checksum` got; raise ValueError if it has changed."""
    content = memoryview(sealed)[CHECKSUM_DIGITS:]
    if sealed[:CHECKSUM_DIGITS] != b"%08x" % zlib.crc32(content):
        raise ValueError("its checksum is another one")
    return content


COMMITS_PER_FILE: Final = 1024
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class CommitId:
    """The number and the id of a commit."""

    number: int
    id: int

    def __str__(self) -> str:
        """Return the name of the commit in messages."""
        return f"commit {self.number} (id {self.id:016x})"

    def to_json(self) -> list[int]:
        """Return the form in a checkpoint."""
        return [self.number, self.id]

    @staticmethod
    def from_json(stored: Any) -> "CommitId | None":
        """Return the id that `to_json` returned as `stored`; None for None."""
        return None if stored is None else CommitId(int(stored[0]), int(stored[1]))


def pack_ids(ids: Mapping[int, int], first_number: int) -> bytes:
    """Return the contents of a file with the ids of the commits from `first_number` on."""
    numbers = range(first_number, first_number + COMMITS_PER_FILE)
    content = np.array([ids.get(number, _UNKNOWN) for number in numbers], "<i8").tobytes()
    return with_checksum(content)


def unpack_ids(content: bytes, first_number: int) -> dict[int, int]:
    """Return the ids, by number, in a file from `pack_ids`; none if it is damaged."""
    try:
        ids: Int64Array = np.frombuffer(without_checksum(content), "<i8")
    except ValueError:
        return {}
    if len(ids) != COMMITS_PER_FILE:
        return {}
    return {first_number + int(row): int(ids[row]) for row in np.flatnonzero(ids != _UNKNOWN)}


MAX_CLOCK_SKEW_US: Final = HOUR_US
"""Clocks of working machines differ by less than an hour."""

MAX_IDLE_US: Final = 2 * 365 * DAY_US
"""After two idle years the user must confirm that the clock has not jumped."""

_MIN_CREDIBLE_US: Final = 1_767_225_600_000_000
"""2026-01-01: a commit with an earlier time comes from an unset clock and proves nothing."""


def is_clock_suspicious(last_us: int, now_us: int, written_us: int | None = None) -> bool:
    """Return whether to ask the storage's clock, because the client's is far from the last commit.

    `written_us` is the storage's time of the last log entry. It reveals a series of commits, each a
    little ahead of the one before.
    """
    ahead = written_us is not None and now_us - written_us > MAX_CLOCK_SKEW_US
    return ahead or abs(now_us - last_us) > MAX_CLOCK_SKEW_US


def check_commit_time(
    store: str, last_us: int, now_us: int, storage_us: int | None, *, same_machine: bool
) -> None:
    """Refuse a commit if a clock is ahead: the client's now, or the writer's at the last commit.

    A clock that is behind does no harm: the next commit then has the time of the last one. If a
    store was idle longer than `MAX_IDLE_US`, the storage clock of another machine must agree.

    Args:
        store: its location, for the message.
        last_us: the time of the last commit; far in the past if there is none.
        now_us: the client's clock.
        storage_us: the storage's clock; None if unknown.
        same_machine: True if the storage's clock may be the client's own.

    Raises:
        WrongClock: the error names the clocks, their times, and the next step.
    """
    known_us = now_us if storage_us is None else storage_us
    clocks = f"this machine's clock says {_format_clamped(now_us)}"
    if storage_us is not None:
        clocks += f", the storage's {_format_clamped(storage_us)}"
    if now_us > known_us + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': {clocks}",
            f"clocks less than {format_duration(MAX_CLOCK_SKEW_US)} apart, or every later commit "
            "would have that time",
            "set this machine's clock. Nothing is stored",
            kind="clock",
        )
    if last_us > max(now_us, known_us) + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, but {clocks}",
            "a last commit of the past",
            "if the clock that made it was wrong, python -m pyspark_tseries repair "
            f"{shlex.quote(store)} corrects the times of such commits; if this machine's is, set "
            "that. Nothing is stored",
            kind="clock",
        )
    idle_us = now_us - last_us
    if (
        (storage_us is None or same_machine)
        and last_us >= _MIN_CREDIBLE_US
        and idle_us > MAX_IDLE_US
    ):
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, and {clocks}",
            f"a commit within {format_duration(MAX_IDLE_US)} of the last one",
            "if this machine's clock is right, say so with: python -m pyspark_tseries repair "
            f"{shlex.quote(store)}; else set it. Nothing is stored",
            kind="clock",
        )


def _format_clamped(us: int) -> str:
    return format_instant(clamp_instant(us))


BATCH_WRITES: Final = "batch"
"""The writer of all batches that no streaming query appends; it never gives CTIs."""

UNKNOWN_WRITERS: Final = "unknown"
"""Stands for the writers that a rebuilt head cannot name."""

MAX_HISTORY: Final = 64
"""The most entries of the history; a longer one loses every second entry of its older half."""

QUERY_PREFIX: Final = "tseries:q:"
"""A streaming query's transaction is this prefix and the query's id."""

APPLICATION_PREFIX: Final = "tseries:app:"
"""The transaction of a batch write with `txnAppId` is this prefix and the id."""


@dataclass(frozen=True, slots=True)
class CtiRecord:
    """CTIs after a commit, in microseconds.

    A subscriber needs the store's CTI as of an earlier commit, so the record keeps a bounded
    history. Between two entries the earlier one counts, because it is lower and still true.

    Attributes:
        writers: the CTI of each writer, None if it has given none.
        history: pairs of a commit and the store's CTI from that commit on; both rise.
    """

    writers: Mapping[str, int | None] = field(default_factory=dict)
    history: tuple[tuple[int, int], ...] = ()

    @property
    def store_us(self) -> int | None:
        """The store's CTI, before which no further original is appended; None if there is none."""
        return self.history[-1][1] if self.history else None

    def cti_at(self, commit: int) -> int | None:
        """Return the store's CTI as of `commit`, or an earlier one; None if there was none."""
        after = bisect.bisect_right(self.history, commit, key=lambda entry: entry[0])
        return self.history[after - 1][1] if after else None

    def without_cti(self) -> list[str]:
        """Return the writers that have given no CTI; while there are any, the store's CTI stays."""
        return sorted(name for name, us in self.writers.items() if us is None)

    def blocking(self) -> list[str]:
        """Return the writers that hold back the store's CTI: without a CTI, or with the lowest."""
        least = min((us for us in self.writers.values() if us is not None), default=None)
        return self.without_cti() or sorted(n for n, us in self.writers.items() if us == least)

    def advance(self, writer: str, cti_us: int | None, commit: int) -> "CtiRecord":
        """Return the record after `writer` appended with `commit`; ignore a CTI below its last."""
        last_us = self.writers.get(writer)
        ctis_us = [us for us in (last_us, cti_us) if us is not None]
        writers = {**self.writers, writer: max(ctis_us, default=None)}
        return (
            self
            if writers == self.writers
            else replace(self, writers=writers)._with_store_cti(commit)
        )

    def forget(self, writer: str, commit: int) -> "CtiRecord":
        """Return the record without `writer`, which holds nothing back from `commit` on."""
        writers = {name: us for name, us in self.writers.items() if name != writer}
        return replace(self, writers=writers)._with_store_cti(commit)

    def _with_store_cti(self, commit: int) -> "CtiRecord":
        ctis_us = [us for us in self.writers.values() if us is not None]
        if not ctis_us or len(ctis_us) < len(self.writers):
            return self
        if self.store_us is not None and min(ctis_us) <= self.store_us:
            return self
        return replace(self, history=_thin_history((*self.history, (commit, min(ctis_us)))))

    def to_json(self) -> dict[str, Any]:
        """Return the form in a head file."""
        return {"history": self.history, "writers": dict(self.writers)}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> "CtiRecord":
        """Return the record in a head file; raise KeyError or TypeError if it is not one."""
        history = tuple((int(commit), int(us)) for commit, us in stored["history"])
        return CtiRecord(dict(stored["writers"]), history)


def name_writer(token: tuple[str, int] | None) -> str:
    """Return the writer that commits a batch with `token`: a query, or all batch writes."""
    if token is None or not token[0].startswith(QUERY_PREFIX):
        return BATCH_WRITES
    return f"query {token[0][len(QUERY_PREFIX) :]}"


def _thin_history(history: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    if len(history) <= MAX_HISTORY:
        return history
    recent = MAX_HISTORY // 2
    return (*history[:-recent:2], *history[-recent:])


COMMITS_PER_MAINTENANCE: Final = 32


def is_maintenance_due(commit: int) -> bool:
    """Return whether the writer of `commit` starts the maintenance of the store."""
    return (commit + 1) % COMMITS_PER_MAINTENANCE == 0


_METADATA_KEY: Final = b"tseries"


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata of a head file.

    Attributes:
        parent: the id of the previous head; None for the first commit.
        commit: the number of the commit, 0, 1, 2, ... per store.
        commit_us: the time of the commit; never decreases.
        depth: changes since the last full table; 0 for a full table.
        rows: rows in these changes.
        dropped: rows that `outOfOrder=drop` left out, since the store's creation.
        adjusted: rows that `outOfOrder=adjust` raised, since the store's creation.
        last_dropped: the latest example: series, timestamps, commit; None if there is none.
        last_adjusted: the same for adjusted rows.
        retained: the retained range, if it was changed after the creation.
        retained_since: the commit that changed it.
        retained_since_us: the time of that commit; None in heads of earlier versions.
        policy: the policy as JSON, if it was set after the creation.
        future: rows that were left out because they were too far in the future, since the store's
            creation.
        last_future: the latest example of these.
        erasure: the id of the last erasure; None if there was none.
        marks: the transactions of the stored batch (`write/batch.py`); None if it has none. The log
            entry has them too, but `repair` may have to write that again.
        ctis: the CTIs of the store and of its writers.
    """

    parent: int | None
    commit: int
    commit_us: int
    depth: int = 0
    rows: int = 0
    dropped: int = 0
    adjusted: int = 0
    last_dropped: dict[str, Any] | None = None
    last_adjusted: dict[str, Any] | None = None
    retained: str | None = None
    retained_since: int | None = None
    retained_since_us: int | None = None
    policy: str | None = None
    future: int = 0
    last_future: dict[str, Any] | None = None
    erasure: str | None = None
    marks: dict[str, int] | None = None
    ctis: CtiRecord = field(default_factory=CtiRecord)


NO_COMMIT: Final = CommitMetadata(parent=None, commit=-1, commit_us=NEVER_US)
"""The metadata of a store without commits."""


_METADATA_FIELDS: Final = tuple(known.name for known in dataclasses.fields(CommitMetadata))


def attach_metadata(change: pa.Table, metadata: CommitMetadata) -> pa.Table:
    """Return `change` with `metadata` in its schema's metadata."""
    fields = {name: getattr(metadata, name) for name in _METADATA_FIELDS}
    text = json.dumps({**fields, "ctis": metadata.ctis.to_json()})
    return change.replace_schema_metadata({_METADATA_KEY: with_checksum(text.encode())})


def read_metadata(schema: pa.Schema) -> CommitMetadata:
    """Return the commit metadata in a head file's schema; raise ValueError if absent or damaged."""
    sealed = (schema.metadata or {}).get(_METADATA_KEY)
    if sealed is None:
        raise ValueError("it has no commit metadata")
    try:
        fields = json.loads(bytes(without_checksum(sealed)))
        return CommitMetadata(**{**fields, "ctis": CtiRecord.from_json(fields["ctis"])})
    except (TypeError, KeyError) as error:
        raise ValueError("its commit metadata has an unknown form") from error
