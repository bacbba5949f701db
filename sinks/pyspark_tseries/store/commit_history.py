"""Find which commits a store has, by number and id (semantics 19.5), in the log and before it.

The log has the ids of its entries' commits until maintenance removes the entries. So maintenance
first keeps the ids in files of 1024 commits, `_tseries/history/N`. The log takes precedence: after
an older log was put back, a history file may still have ids of commits that no longer exist.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Final

from pyspark_tseries.model.commits import COMMITS_PER_FILE, CommitId, pack_ids, unpack_ids
from pyspark_tseries.storage.location import LOG_FOLDER, Location
from pyspark_tseries.store.log_check import HEAD_TRANSACTION, read_whole_entry
from pyspark_tseries.store.store import Store

LOST_FILE: Final = "lost.json"
"""This file in a folder of `_tseries/lost` lists the commits that a repair has given up."""

MAX_PROVEN: Final = 1000
"""An open store remembers up to this many commits that it has found in its log."""

_ENTRY: Final = re.compile(r"(\d{20})[.]json")


def last_commit_id(store: Store) -> CommitId | None:
    """Return the last commit of the log as last refreshed; None before the first."""
    with store.reading():
        head_id = store.head_id()
        return None if head_id is None else CommitId(store.metadata().commit, head_id)


def find_commit_id(store: Store, number: int) -> CommitId | None:
    """Return the commit `number`, or the last one before it; None if that is not known."""
    with store.reading() as log:
        last_commit = last_commit_id(store)
        version = log.version()
    if last_commit is None or number >= last_commit.number:
        return last_commit
    return _find_in_log(store.location, number, version) or _find_kept(store.location, number)


def describe_change(store: Store, commit: CommitId) -> str | None:
    """Describe what the store has in place of an earlier commit; None if it still has that commit.

    If a commit's id was not kept, because another tool removed its log entry, the store has it.
    """
    with store.reading() as log:
        proven = log.proven
        last_commit = last_commit_id(store)
    if proven.get(commit.number) == commit.id:
        return None
    if last_commit is None:
        return "has no commit"
    if commit.number > last_commit.number:
        return f"ends with {last_commit}"
    present = find_commit_id(store, commit.number)
    if present is not None and present.number == commit.number and present != commit:
        return f"has {present} in its place"
    if present is not None and present.number < commit.number:
        return f"has no commit of that number after {present}"
    # If the log is replaced meanwhile, `proven` no longer belongs to it.
    _note(proven, commit)
    return None


def note_commit(store: Store, commit: CommitId) -> None:
    """Note that the store's log has a commit, so that no one has to search for it."""
    with store.reading() as log:
        _note(log.proven, commit)


def _note(proven: dict[int, int], commit: CommitId) -> None:
    if len(proven) >= MAX_PROVEN:
        proven.clear()
    proven[commit.number] = commit.id


def _read_lost(location: Location) -> Iterator[tuple[set[int | None], int]]:
    """Yield the ids and the highest number of the commits that each repair has given up.

    Some have no list: what another tool has written is put aside without one, and a repair that is
    killed before its list is whole has moved nothing. A backup has the lists, too.
    """
    for folder in location.list_folders(location.file("_tseries", "lost")):
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            record = json.loads(
                location.read_whole(location.file("_tseries", "lost", folder, LOST_FILE))
            )
            lost = {commit["head"] for commit in record["commits"]}, int(record["highest_commit"])
            yield lost


def is_given_up(location: Location, lost: CommitId) -> bool:
    """Return whether a repair has given up this commit after damage, and skipped its number."""
    # The id of a commit may be unknown if its entry is torn.
    return any(
        lost.id in ids or (None in ids and lost.number <= highest)
        for ids, highest in _read_lost(location)
    )


def find_max_lost_commit(location: Location) -> int:
    """Return the highest number of a commit that repairs have given up; -1 if there is none."""
    return max((highest for _, highest in _read_lost(location)), default=-1)


def keep_history(store: Store) -> None:
    """Keep the ids of the log's commits, before maintenance removes entries."""
    last_commit = last_commit_id(store)
    if last_commit is None:
        return
    location = store.location
    kept_ids = dict[int, dict[int, int]]()
    changed = set[int]()
    above = last_commit.number + COMMITS_PER_FILE
    versions = reversed(_list_versions(location, store.log.version()))
    for commit in filter(None, (_read_commit_id(location, version) for version in versions)):
        file_start = _first_of(commit.number)
        if file_start not in kept_ids:
            kept_ids[file_start] = _read_kept(location, file_start)
        # Kept ids of numbers between two commits of the log come from a log that was replaced.
        gone = range(commit.number + 1, above)
        for number in gone:
            if kept_ids.get(_first_of(number), {}).pop(number, None) is not None:
                changed.add(_first_of(number))
        if kept_ids[file_start].get(commit.number) == commit.id:
            break
        kept_ids[file_start][commit.number] = commit.id
        above = commit.number
        changed.add(file_start)
    # Write the oldest first: the next run goes back only to the first commit that is already kept,
    # so after a crash no older one may be missing.
    for file_start in sorted(changed):
        _write_kept(location, file_start, kept_ids[file_start])


def _find_in_log(location: Location, number: int, newest: int) -> CommitId | None:
    """Search the log up to entry `newest` for the commit `number`, or the last one before it."""
    versions = _list_versions(location, newest)
    low = 0
    high = len(versions)
    best = None
    while low < high:
        middle = probe = (low + high) // 2
        commit = None
        while probe >= low and (commit := _read_commit_id(location, versions[probe])) is None:
            probe -= 1  # The entry is of a compaction or of another tool.
        if commit is None:
            low = middle + 1
        elif commit.number <= number:
            best = commit
            low = middle + 1
        else:
            high = probe
    return best


def _list_versions(location: Location, newest: int) -> list[int]:
    """Return the versions of the log's entries up to `newest`, ascending."""
    log = location.file(LOG_FOLDER)
    if location.is_local:
        names = os.listdir(log)
    else:
        names = [os.path.basename(path) for path, _ in location.list_files(log)]
    versions = (int(entry[1]) for name in names if (entry := _ENTRY.fullmatch(name)))
    return sorted(version for version in versions if version <= newest)


def _read_commit_id(location: Location, version: int) -> CommitId | None:
    """Return the commit of a log entry; None if the entry has none, was removed, or is damaged."""
    entry = read_whole_entry(location, version)
    head_id = None if entry is None else entry.transactions.get(HEAD_TRANSACTION)
    if entry is None or entry.commit is None or head_id is None:
        return None
    return CommitId(entry.commit, head_id)


def _first_of(number: int) -> int:
    """Return the first commit in the file that keeps the id of commit `number`."""
    return number // COMMITS_PER_FILE * COMMITS_PER_FILE


def _kept_path(location: Location, file_start: int) -> str:
    return location.file("_tseries", "history", f"{file_start // COMMITS_PER_FILE:010d}")


def _find_kept(location: Location, number: int) -> CommitId | None:
    ids = _read_kept(location, _first_of(number))
    head_id = ids.get(number)
    return None if head_id is None else CommitId(number, head_id)


def _read_kept(location: Location, file_start: int) -> dict[int, int]:
    try:
        return unpack_ids(location.read_whole(_kept_path(location, file_start)), file_start)
    except FileNotFoundError:
        return {}


def _write_kept(location: Location, file_start: int, ids: dict[int, int]) -> None:
    location.replace_whole(_kept_path(location, file_start), pack_ids(ids, file_start))
