"""The contents of commits torn by a power loss, found from what is left of their files."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.series_index import CommitMetadata, SeriesIndex
from pyspark_tseries.storage.head_files import load_index, readable_metadata
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.log_check import HEAD_TRANSACTION, read_entry
from pyspark_tseries.store.log_entries import Entry, TornEntry
from pyspark_tseries.write.replay import APPLICATION_PREFIX, QUERY_PREFIX

__all__ = ["LostCommit", "describe_lost_commit", "find_lost_commits"]

MAX_SERIES_NAMED: Final = 20
"""Series named in a message; a file next to the remains of the commit lists all of them."""


NO_HEAD: Final = -1


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A lost commit, as far as it is known.

    Attributes:
        version: of its log entry.
        head: its id; NO_HEAD: a compaction, which has none; None: unknown.
        number: its own; None if it added no events, or if unknown.
        time: its commit time; None if unknown.
        series: the first and the last sequence of its events, by series; None: not known.
        events: their number; None: not known.
        between: the first and the last of their series; None: not known.
        batches: the number of the batch that it stored, by query or application.
        files: the files that it added, relative to the store.
    """

    version: int
    head: int | None = None
    number: int | None = None
    time: str | None = None
    series: dict[str, tuple[int, int]] | None = None
    events: int | None = None
    between: tuple[str, str] | None = None
    batches: dict[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def find_lost_commits(
    location: Location, head_id: int | None, last: int, newest: int
) -> list[LostCommit]:
    """Collect what is known of the commits after the version `last`, up to `newest`.

    A torn entry does not name its files. If exactly one attempt on top of the commit before it has
    left files, that attempt is assumed to be the commit.

    Args:
        location: of the store, a local path.
        head_id: the head at the version `last`.
        last: the version before the first lost one.
        newest: the last version.
    """
    metadata_by_head, found = readable_metadata(location), []
    for version in range(last + 1, newest + 1):
        try:
            entry = read_entry(location, version)
        except TornEntry:
            entry = None
        own_id = (
            _find_attempt(location, metadata_by_head, head_id)
            if entry is None
            else entry.transactions.get(HEAD_TRANSACTION)
        )
        if own_id is None:
            found.append(_unknown_commit(version, entry))
            continue
        files = _list_files_of(location, own_id) if entry is None else list(entry.added)
        found.append(
            _read_lost_commit(
                location, version, entry, metadata_by_head.get(own_id), own_id, head_id, files
            )
        )
        head_id = own_id
    return found


def _unknown_commit(version: int, entry: Entry | None) -> LostCommit:
    if entry is None:
        return LostCommit(version)
    return LostCommit(version, NO_HEAD, files=tuple(entry.added))


def _read_lost_commit(
    location: Location,
    version: int,
    entry: Entry | None,
    metadata: CommitMetadata | None,
    own_id: int,
    head_id: int | None,
    files: Sequence[str],
) -> LostCommit:
    batches = {
        name.removeprefix(QUERY_PREFIX).removeprefix(APPLICATION_PREFIX): number
        for name, number in ({} if entry is None else entry.transactions).items()
        if name.startswith((QUERY_PREFIX, APPLICATION_PREFIX))
    }
    number = None if metadata is None else metadata.commit
    if entry is not None and entry.own is not None:
        number = entry.own.get("commit", number)
    series = _compare_heads(location, own_id, head_id) or _read_series_ranges(location, files)
    events, between = _read_logged_events(entry)
    if series is not None:
        events = sum(last - first + 1 for first, last in series.values())
    time = None if metadata is None else format_instant(metadata.commit_us)
    return LostCommit(version, own_id, number, time, series, events, between, batches, tuple(files))


def _read_logged_events(entry: Entry | None) -> tuple[int | None, tuple[str, str] | None]:
    """The number of events in a commit's files, and their first and last series, by the log."""
    try:
        stats = [
            json.loads(add["stats"]) for add in ({} if entry is None else entry.added).values()
        ]
        ends = [(file["minValues"]["series"], file["maxValues"]["series"]) for file in stats]
        events = sum(file["numRecords"] for file in stats)
    except (KeyError, TypeError, ValueError):
        return None, None
    if not stats:
        return None, None
    return events, (min(first for first, _ in ends), max(last for _, last in ends))


def _find_attempt(
    location: Location, metadata_by_head: dict[int, CommitMetadata], head_id: int | None
) -> int | None:
    """The id of the only attempt to commit on top of `head_id` that has left files of events."""
    follow = [own_id for own_id, metadata in metadata_by_head.items() if metadata.parent == head_id]
    left = [own_id for own_id in follow if _list_files_of(location, own_id)]
    return left[0] if len(left) == 1 else None


def _list_files_of(location: Location, own_id: int) -> list[str]:
    """The files of events whose names say that they belong to the head `own_id`."""
    found = []
    for kind in ("kind=event", "kind=edit"):
        names = (os.path.basename(path) for path, _ in location.list_files(location.file(kind)))
        found += [f"{kind}/{name}" for name in names if f"-{own_id:016x}." in name]
    return found


def _compare_heads(
    location: Location, own_id: int, head_id: int | None
) -> dict[str, tuple[int, int]] | None:
    """The sequences that the head adds to the one before it, by series."""
    try:
        before = load_index(location, head_id, None, SeriesIndex())
        # Another object: heads share the ids that they know.
        after = load_index(location, own_id, None, SeriesIndex())
    except (UnusableStore, OSError):
        return None
    names = after.ids.names()
    first, last = (head.lookup(names)["last_sequence"] for head in (before, after))
    rows = zip(names, first.tolist(), last.tolist(), strict=True)
    return {name: (old + 1, new) for name, old, new in rows if new > old}


def _read_series_ranges(
    location: Location, files: Iterable[str]
) -> dict[str, tuple[int, int]] | None:
    """The sequences of each series in the files, if all of them can be read."""
    tables = []
    for path in files:
        try:
            columns = ["series", "sequence"]
            tables.append(pq.read_table(location.file(path), columns=columns, partitioning=None))
        except (OSError, pa.ArrowException):
            return None
    if not tables:
        return None
    found = pa.concat_tables([table.cast(tables[0].schema) for table in tables])
    rows = found.group_by("series").aggregate([("sequence", "min"), ("sequence", "max")])
    names, first, last = (rows.column(at).to_pylist() for at in range(3))
    return {name: (a, b) for name, a, b in zip(names, first, last, strict=True)}


def describe_lost_commit(commit: LostCommit) -> list[str]:
    """Describe the loss of `commit` in sentences."""
    number = "a commit" if commit.number is None else f"commit {commit.number}"
    named = f"{number} of {commit.time}" if commit.time else number
    sentences = [f"{named} (log entry {commit.version}): {_describe_events(commit)}"]
    sentences += [
        f"batch {batch} of '{who}': if it is a query, remove 'commits/{batch}' and what follows it "
        "from its checkpoint before it goes on, and it writes them again"
        for who, batch in commit.batches.items()
    ]
    return sentences


def _describe_events(commit: LostCommit) -> str:
    if commit.series is None and commit.between is not None:
        first, last = commit.between
        among = f"series '{first}'" if first == last else f"series between '{first}' and '{last}'"
        return f"{commit.events} events of {among}; it is unknown which ones"
    if commit.series is None:
        return "its events are unknown"
    if not commit.series:
        return "no events"
    spans = sorted(commit.series.items())
    each = [f"'{name}' {a}" + (f" to {b}" if b > a else "") for name, (a, b) in spans]
    more = (
        f" and {len(each) - MAX_SERIES_NAMED} more series" if len(each) > MAX_SERIES_NAMED else ""
    )
    return f"{commit.events} events: sequences of {', '.join(each[:MAX_SERIES_NAMED])}{more}"
