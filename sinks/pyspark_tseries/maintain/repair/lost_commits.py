"""What was in commits that a power loss has torn: found from what is left of their files."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.series_index import Head, Note
from pyspark_tseries.storage.head_files import load_head, readable_notes
from pyspark_tseries.storage.location import Place
from pyspark_tseries.store.log_check import HEAD, read_entry
from pyspark_tseries.store.log_entries import Entry, TornEntry

__all__ = ["LostCommit", "find_lost_commits", "sentences"]

MOST_SERIES: Final = 20
"""So many series of a commit are said; a file beside what is left of it has all."""

_QUERY: Final = "tseries:q:"
_APPLICATION: Final = "tseries:app:"


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A commit that is gone, as far as that can be told.

    Attributes:
        version: of its log entry.
        number: its own; None where it added no events, or where that is not known.
        time: when it was made; None where that is not known.
        series: the first and the last sequence of its events, by series; None: not known.
        events: how many there were; None: not known.
        between: the first and the last of their series; None: not known.
        batches: the number of the batch that it stored, by query or application.
        files: the files that it added, relative to the store.
    """

    version: int
    number: int | None = None
    time: str | None = None
    series: dict[str, tuple[int, int]] | None = None
    events: int | None = None
    between: tuple[str, str] | None = None
    batches: dict[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def find_lost_commits(
    place: Place, head_id: int | None, last: int, newest: int
) -> list[LostCommit]:
    """What is known of the commits after the version `last`, up to `newest`.

    A torn entry does not say which files are its own; the only attempt on top of the commit before
    it that has left files is taken for it.

    Args:
        place: where the store lies, a local path.
        head_id: the head at the version `last`.
        last: the version before the first lost one.
        newest: the last version.
    """
    notes, found = readable_notes(place), []
    for version in range(last + 1, newest + 1):
        try:
            entry = read_entry(place, version)
        except TornEntry:
            entry = None
        own_id = _attempt(place, notes, head_id) if entry is None else entry.marks.get(HEAD)
        if own_id is None:
            found.append(_without_events(version, entry))
            continue
        files = _files_of(place, own_id) if entry is None else list(entry.added)
        found.append(_lost(place, version, entry, notes.get(own_id), own_id, head_id, files))
        head_id = own_id
    return found


def _without_events(version: int, entry: Entry | None) -> LostCommit:
    return LostCommit(version, files=() if entry is None else tuple(entry.added))


def _lost(
    place: Place,
    version: int,
    entry: Entry | None,
    note: Note | None,
    own_id: int,
    head_id: int | None,
    files: Sequence[str],
) -> LostCommit:
    batches = {
        name.removeprefix(_QUERY).removeprefix(_APPLICATION): number
        for name, number in ({} if entry is None else entry.marks).items()
        if name.startswith((_QUERY, _APPLICATION))
    }
    number = None if note is None else note.commit
    if entry is not None and entry.own is not None:
        number = entry.own.get("commit", number)
    series = _series_of_heads(place, own_id, head_id) or _series_of_files(place, files)
    events, between = _logged(entry)
    if series is not None:
        events = sum(last - first + 1 for first, last in series.values())
    time = None if note is None else format_instant(note.commit_us)
    return LostCommit(version, number, time, series, events, between, batches, tuple(files))


def _logged(entry: Entry | None) -> tuple[int | None, tuple[str, str] | None]:
    """How many events, and between which series, the log says of a commit's files."""
    try:
        said = [json.loads(add["stats"]) for add in ({} if entry is None else entry.added).values()]
        ends = [(file["minValues"]["series"], file["maxValues"]["series"]) for file in said]
        events = sum(file["numRecords"] for file in said)
    except (KeyError, TypeError, ValueError):
        return None, None
    if not said:
        return None, None
    return events, (min(first for first, _ in ends), max(last for _, last in ends))


def _attempt(place: Place, notes: dict[int, Note], head_id: int | None) -> int | None:
    """The id of the attempt to commit on top of `head_id` that has left files of events."""
    follow = [own_id for own_id, note in notes.items() if note.parent == head_id]
    left = [own_id for own_id in follow if _files_of(place, own_id)]
    return left[0] if len(left) == 1 else None


def _files_of(place: Place, own_id: int) -> list[str]:
    """The files of events whose names say that they belong to the head `own_id`."""
    found = []
    for kind in ("kind=event", "kind=edit"):
        names = (os.path.basename(path) for path, _ in place.listed(place.file(kind)))
        found += [f"{kind}/{name}" for name in names if f"-{own_id:016x}." in name]
    return found


def _series_of_heads(
    place: Place, own_id: int, head_id: int | None
) -> dict[str, tuple[int, int]] | None:
    """What the head and the one before it say of where series stood."""
    try:
        before = load_head(place, head_id, None, Head())
        # Another object: heads share the ids that they know.
        after = load_head(place, own_id, None, Head())
    except (UnusableStore, OSError):
        return None
    names = after.ids.names()
    first, last = (head.of(names)["last_sequence"] for head in (before, after))
    rows = zip(names, first.tolist(), last.tolist(), strict=True)
    return {name: (old + 1, new) for name, old, new in rows if new > old}


def _series_of_files(place: Place, files: Iterable[str]) -> dict[str, tuple[int, int]] | None:
    """What the rows of the files say, if all of these can be read."""
    tables = []
    for path in files:
        try:
            columns = ["series", "sequence"]
            tables.append(pq.read_table(place.file(path), columns=columns, partitioning=None))
        except (OSError, pa.ArrowException):
            return None
    if not tables:
        return None
    found = pa.concat_tables([table.cast(tables[0].schema) for table in tables])
    rows = found.group_by("series").aggregate([("sequence", "min"), ("sequence", "max")])
    names, first, last = (rows.column(at).to_pylist() for at in range(3))
    return {name: (a, b) for name, a, b in zip(names, first, last, strict=True)}


def sentences(commit: LostCommit) -> list[str]:
    """What is lost with `commit`, for people."""
    number = "a commit" if commit.number is None else f"commit {commit.number}"
    named = f"{number} of {commit.time}" if commit.time else number
    said = [f"{named} (log entry {commit.version}): {_events(commit)}"]
    said += [
        f"batch {batch} of '{who}': if it is a query, remove 'commits/{batch}' and what follows it "
        "from its checkpoint before it goes on, and it writes them again"
        for who, batch in commit.batches.items()
    ]
    return said


def _events(commit: LostCommit) -> str:
    if commit.series is None and commit.between is not None:
        first, last = commit.between
        among = f"series '{first}'" if first == last else f"series between '{first}' and '{last}'"
        return f"{commit.events} events of {among}; which ones cannot be told"
    if commit.series is None:
        return "which events it had cannot be told"
    if not commit.series:
        return "no events"
    spans = sorted(commit.series.items())
    each = [f"'{name}' {a}" + (f" to {b}" if b > a else "") for name, (a, b) in spans]
    more = f" and {len(each) - MOST_SERIES} more series" if len(each) > MOST_SERIES else ""
    return f"{commit.events} events: sequences of {', '.join(each[:MOST_SERIES])}{more}"
