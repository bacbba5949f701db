"""Rewind a store on a local path to its last whole commit, after a power loss (semantics 26.2).

A rewind cuts the log after that commit, so events, head, settings and the numbers of writers' and
queries' batches return to it. It moves the remains of later commits to `_tseries/lost`.
"""

import contextlib
import glob
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pyspark_timestream.core.instants import format_instant
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.commits import APPLICATION_PREFIX, QUERY_PREFIX
from pyspark_tseries.model.damage import Finding
from pyspark_tseries.model.series_index import CommitMetadata, SeriesIndex
from pyspark_tseries.storage.head_files import load_index, readable_metadata
from pyspark_tseries.storage.location import (
    EVENT_FILE_PATH,
    Location,
    is_inside_store,
    list_event_files,
    make_directories,
    sync,
)
from pyspark_tseries.store.history import LOST_FILE
from pyspark_tseries.store.log_check import (
    HEAD_TRANSACTION,
    find_readable_log,
    newest_version,
    read_entries_back,
    read_whole_entry,
    torn_files,
)
from pyspark_tseries.store.log_entries import LAST_CHECKPOINT, Entry, entry_path
from pyspark_tseries.store.log_writer import UNREADABLE, shadow_log

MAX_SERIES_NAMED: Final = 20
"""A message names at most this many series; a file next to the commit's remains lists them all."""


NO_HEAD: Final = -1


@dataclass(frozen=True, slots=True)
class LostCommit:
    """The known facts of a lost commit.

    Attributes:
        version: the version of its log entry.
        head: the id of its head; NO_HEAD for a compaction, which has none; None if unknown.
        number: its commit number; None if it added no events, or if unknown.
        time: its commit time; None if unknown.
        series: the first and the last sequence of its events, by series; None if unknown.
        events: the number of its events; None if unknown.
        between: the first and the last series of its events; None if unknown.
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
    """
    metadata_by_head, lost = readable_metadata(location), []
    for version in range(last + 1, newest + 1):
        entry = read_whole_entry(location, version)
        if entry is None:
            own_id = _find_attempt(location, metadata_by_head, head_id)
            commit = LostCommit(version)
        else:
            own_id = entry.transactions.get(HEAD_TRANSACTION)
            commit = LostCommit(version, NO_HEAD, files=tuple(entry.added))
        if own_id is not None:
            files = commit.files if entry is not None else _list_files_of(location, own_id)
            commit = _with_events(
                location, replace(commit, head=own_id, files=tuple(files)), entry, head_id
            )
            head_id = own_id
            if (metadata := metadata_by_head.get(own_id)) is not None:
                number = metadata.commit if commit.number is None else commit.number
                time = format_instant(metadata.commit_us)
                commit = replace(commit, number=number, time=time)
        lost.append(commit)
    return lost


def _with_events(
    location: Location, commit: LostCommit, entry: Entry | None, before: int | None
) -> LostCommit:
    """Complete `commit` from its entry, its files, and its head compared with the one `before`."""
    assert commit.head is not None
    transactions = {} if entry is None else entry.transactions
    batches = {
        name.removeprefix(QUERY_PREFIX).removeprefix(APPLICATION_PREFIX): number
        for name, number in transactions.items()
        if name.startswith((QUERY_PREFIX, APPLICATION_PREFIX))
    }
    number = None if entry is None or entry.own is None else entry.own.get("commit")
    series = _compare_heads(location, commit.head, before)
    series = series or _read_series_ranges(location, commit.files)
    events, between = _read_logged_events(entry)
    if series is not None:
        events = sum(last - first + 1 for first, last in series.values())
    return replace(
        commit, number=number, series=series, events=events, between=between, batches=batches
    )


def _read_logged_events(entry: Entry | None) -> tuple[int | None, tuple[str, str] | None]:
    """Return the number of a commit's events, and their first and last series, by the log."""
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
    """Return the id of the only attempt on top of `head_id` that has left event files, if any."""
    follow = [own_id for own_id, metadata in metadata_by_head.items() if metadata.parent == head_id]
    attempts = [own_id for own_id in follow if _list_files_of(location, own_id)]
    return attempts[0] if len(attempts) == 1 else None


def _list_files_of(location: Location, own_id: int) -> list[str]:
    """Return the event files that by their names belong to the head `own_id`."""
    name = f"-{own_id:016x}."
    return [file.path for file in list_event_files(location) if name in file.path]


def _compare_heads(
    location: Location, own_id: int, head_id: int | None
) -> dict[str, tuple[int, int]] | None:
    """Return, by series, the sequences that the head `own_id` adds to the head `head_id`."""
    try:
        before = load_index(location, head_id, None, SeriesIndex())
        # Again a new index, because heads share the ids that they know.
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
    """Return the sequences of each series in the files, if all of them can be read."""
    tables = []
    for path in files:
        try:
            columns = ["series", "sequence"]
            tables.append(pq.read_table(location.file(path), columns=columns, partitioning=None))
        except (OSError, pa.ArrowException):
            return None
    if not tables:
        return None
    keys = pa.concat_tables([table.cast(tables[0].schema) for table in tables])
    rows = keys.group_by("series").aggregate([("sequence", "min"), ("sequence", "max")])
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
    ranges = [f"'{name}' {a}" + (f" to {b}" if b > a else "") for name, (a, b) in spans]
    more = (
        f" and {len(ranges) - MAX_SERIES_NAMED} more series"
        if len(ranges) > MAX_SERIES_NAMED
        else ""
    )
    return f"{commit.events} events: sequences of {', '.join(ranges[:MAX_SERIES_NAMED])}{more}"


_CHECKPOINT_FILE: Final = re.compile(r"(\d{20})\.checkpoint.*")


@dataclass(frozen=True, slots=True)
class Rewind:
    """A plan to rewind a store to its last whole commit.

    Attributes:
        last: the version of the log that is kept.
        newest: the version of the log as it is.
        torn: the torn entries, checkpoints and files that go.
        checkpoints: names of files in the log's directory that are torn, or of lost versions.
        left: torn files that the rewind does not repair: their commits are no longer in the log, or
            rewinding past them would give up whole commits.
        refused: the damaged log entry if rewinding would give up whole commits after it.
    """

    last: int
    newest: int
    torn: tuple[Finding, ...]
    checkpoints: tuple[str, ...]
    left: tuple[Finding, ...]
    refused: Finding | None = None


def plan_rewind(location: Location, *, give_up: bool = False) -> Rewind | None:
    """Plan the rewind of the store at the local `location`; None if nothing is torn."""
    newest = newest_version(location)
    reach = find_readable_log(location, newest)
    last, torn = reach.last, list(reach.torn)
    findings = [
        Finding("checkpoint", f"'{name}' cannot be read", path=location.file("_delta_log", name))
        for name in torn
    ]
    if last < newest:
        path = entry_path(location, last + 1)
        entry = Finding("log entry", f"log entry '{path}': {reach.reason}", path=path)
        if not give_up and any(_is_whole(location, v) for v in range(last + 2, newest + 1)):
            whole = f"{entry.problem}, and commits after it are whole and were synced"
            return Rewind(last, newest, (), (), (), replace(entry, problem=whole))
        findings.append(entry)
    unsynced: dict[str, Finding] = {}
    # Each step back changes which files the store has, so check them again until none is torn.
    while True:
        files = read_state_at(location, last, torn)[0].items()
        broken = {path: why for path, why in torn_files(location, files) if path not in unsynced}
        if not broken:
            break
        version_of = {path: _find_version(location, path, last) for path in broken}
        path = max(broken, key=lambda path: version_of[path])
        file = Finding("file", f"file '{path}': {broken[path]}", path=path)
        later = range(version_of[path] + 1, last + 1)
        if version_of[path] < 0 or not (give_up or not any(_is_whole(location, v) for v in later)):
            synced = f"{file.problem}, and no power loss did that: it had been synced"
            unsynced[path] = replace(file, problem=synced)
            continue
        reach = find_readable_log(location, version_of[path] - 1)
        last, torn = reach.last, [*torn, *(name for name in reach.torn if name not in torn)]
        findings.append(file)
    if not findings and not unsynced:
        return None
    names = sorted(os.listdir(location.file("_delta_log")))
    beyond = [n for n in names if (m := _CHECKPOINT_FILE.fullmatch(n)) and int(m[1]) > last]
    if beyond and LAST_CHECKPOINT in names:
        beyond.append(LAST_CHECKPOINT)
    gone = tuple(dict.fromkeys([*torn, *beyond]))
    return Rewind(last, newest, tuple(findings), gone, tuple(unsynced.values()))


def read_state_at(
    location: Location, version: int, without: Sequence[str] = ()
) -> tuple[dict[str, int], int | None]:
    """Return the sizes of the store's files by path, and the id of its head, at `version`."""
    try:
        with shadow_log(location, version, without) as copy:
            table = DeltaTable(pathlib.Path(copy).as_uri())
            actions = pa.table(table.get_add_actions())
            columns = (actions[name].to_pylist() for name in ("path", "size_bytes"))
            sizes = {
                path: size for path, size in zip(*columns, strict=True) if is_inside_store(path)
            }
            return sizes, table.transaction_version(HEAD_TRANSACTION)
    except UNREADABLE as error:
        raise UnusableStore(
            f"the log of the store '{location.root}' holds no whole commit: "
            f"{str(error).splitlines()[0]}",
            "a log that goes back to a whole checkpoint, or to its first entry",
            "put the store back from a copy",
        ) from None


def _find_version(location: Location, path: str, last: int) -> int:
    """Return the version up to `last` that added the file `path`; -1 if the log does not name it.

    Entries before a checkpoint may be torn: a file that no whole entry names may belong to one.
    """
    parts = EVENT_FILE_PATH.fullmatch(path)
    oldest = -1
    for version, entry in read_entries_back(location, last):
        if entry is None:
            oldest = version
            continue
        if path in entry.added:
            return version
        before = None if entry.own is None else entry.own.get("commit")
        if parts is None or (before is not None and before < int(parts["first"])):
            break
    return oldest


def _is_whole(location: Location, version: int) -> bool:
    """Return whether a log entry and its files were synced and are still whole."""
    entry = read_whole_entry(location, version)
    if entry is None or not entry.synced:
        return False
    sizes = ((path, int(action["size"])) for path, action in entry.added.items())
    return not any(torn_files(location, sizes))


def carry_out_rewind(
    location: Location, rewind: Rewind, lost: Sequence[LostCommit], highest: int
) -> str:
    """Move everything after the last whole commit to a directory; return its path.

    An interrupted repair can be repeated, because the log is cut from its end.
    """
    aside = location.file("_tseries", "lost", f"{rewind.last + 1:020d}-{secrets.token_hex(4)}")
    make_directories(aside)
    with open(os.path.join(aside, LOST_FILE), "w", encoding="utf-8") as file:
        record = {"highest_commit": highest, "commits": [asdict(commit) for commit in lost]}
        json.dump(record, file, ensure_ascii=False, indent=1)
    sync([file.name, aside])
    kept, _ = read_state_at(location, rewind.last, rewind.checkpoints)
    files = [path for commit in lost for path in commit.files if path not in kept]
    versions = range(rewind.newest, rewind.last, -1)
    entries = [
        os.path.relpath(entry_path(location, version), location.root) for version in versions
    ]
    for name in [*(f"_delta_log/{name}" for name in rewind.checkpoints), *entries, *files]:
        _move_if_there(location.file(name), os.path.join(aside, name))
    sync([location.file("_delta_log"), aside])
    return aside


def _move_if_there(path: str, to: str) -> None:
    os.makedirs(os.path.dirname(to), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, to)


def find_max_lost_commit(location: Location) -> int:
    """Return the highest number of a commit that repairs have given up; -1 if there is none."""
    highest = -1
    for path in glob.iglob(
        os.path.join(glob.escape(location.file("_tseries", "lost")), "*", LOST_FILE)
    ):
        with open(path, encoding="utf-8") as file:
            highest = max(highest, json.load(file)["highest_commit"])
    return highest
