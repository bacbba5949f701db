"""Rewind a store on a local path to its last whole commit, after a power loss.

The log is cut after that commit, and with it events, head, settings and the marks of writers and
queries return to it. The remains of later commits are moved to `_tseries/lost`.

The rules are semantics 26.2.
"""

import contextlib
import glob
import json
import os
import pathlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.repair.lost_commits import LostCommit
from pyspark_tseries.storage.durability import make_directories, sync
from pyspark_tseries.storage.location import EVENT_FILE_PATH, Location, is_inside_store
from pyspark_tseries.store.history import LOST_FILE
from pyspark_tseries.store.last_checkpoint import LAST_CHECKPOINT
from pyspark_tseries.store.log_check import (
    HEAD_TRANSACTION,
    find_readable_log,
    newest_version,
    read_entry,
    torn_files,
)
from pyspark_tseries.store.log_entries import TornEntry, entry_path
from pyspark_tseries.store.log_writer import shadow_log

__all__ = ["Rewind", "carry_out_rewind", "find_max_lost_commit", "plan_rewind", "read_state_at"]

_CHECKPOINT_FILE: Final = re.compile(r"(\d{20})\.checkpoint.*")


@dataclass(frozen=True, slots=True)
class Rewind:
    """A plan to rewind a store to its last whole commit.

    Attributes:
        last: the version of the log that is kept.
        newest: the version of the log as it is.
        reasons: what is torn, as sentences.
        checkpoints: names of files in the log's directory that are torn, or of lost versions.
        left: the problems of torn files that the rewind does not repair, by path: their commits
            are no longer in the log, or rewinding past them would give up whole commits.
        refused: the damage of a log entry if rewinding would give up whole commits after it.
    """

    last: int
    newest: int
    reasons: tuple[str, ...]
    checkpoints: tuple[str, ...]
    left: dict[str, str]
    refused: str | None = None


def plan_rewind(location: Location, *, give_up: bool = False) -> Rewind | None:
    """Plan the rewind of the store at the local `location`; None if nothing is torn.

    Args:
        location: of the store.
        give_up: rewind past a torn file or log entry even if whole commits came after it.

    Raises:
        UnusableStore: the log has no whole commit.
    """
    newest = newest_version(location)
    reach = find_readable_log(location, newest)
    last, torn = reach.last, list(reach.torn)
    reasons = [f"'{name}' cannot be read" for name in torn]
    if last < newest:
        reason = f"log entry '{entry_path(location, last + 1)}': {reach.reason}"
        if not give_up and any(_is_whole(location, v) for v in range(last + 2, newest + 1)):
            return Rewind(last, newest, (), (), {}, reason)
        reasons.append(reason)
    left: dict[str, str] = {}
    while True:
        files = read_state_at(location, last, torn)[0].items()
        broken = {path: why for path, why in torn_files(location, files) if path not in left}
        if not broken:
            break
        made = {path: _find_version(location, path, last) for path in broken}
        path = max(broken, key=lambda path: made[path])
        later = range(made[path] + 1, last + 1)
        if made[path] < 0 or not (give_up or not any(_is_whole(location, v) for v in later)):
            left[path] = broken[path]
            continue
        reach = find_readable_log(location, made[path] - 1)
        last, torn = reach.last, [*torn, *(name for name in reach.torn if name not in torn)]
        reasons.append(f"file '{path}': {broken[path]}")
    if not reasons and not left:
        return None
    names = sorted(os.listdir(location.file("_delta_log")))
    beyond = [n for n in names if (found := _CHECKPOINT_FILE.fullmatch(n)) and int(found[1]) > last]
    if beyond and LAST_CHECKPOINT in names:
        beyond.append(LAST_CHECKPOINT)
    gone = tuple(dict.fromkeys([*torn, *beyond]))
    return Rewind(last, newest, tuple(reasons), gone, left)


def read_state_at(
    location: Location, version: int, without: Sequence[str] = ()
) -> tuple[dict[str, int], int | None]:
    """The sizes of the store's files by path, and the id of its head, at `version`.

    Args:
        location: of the store, a local path.
        version: of the log.
        without: names of files of the log that are not to be read.

    Raises:
        UnusableStore: the log does not reach back to there.
    """
    try:
        with shadow_log(location, version, without) as copy:
            table = DeltaTable(pathlib.Path(copy).as_uri())
            actions = pa.table(table.get_add_actions())
            columns = (actions[name].to_pylist() for name in ("path", "size_bytes"))
            sizes = {
                path: size for path, size in zip(*columns, strict=True) if is_inside_store(path)
            }
            return sizes, table.transaction_version(HEAD_TRANSACTION)
    except (DeltaError, OSError) as error:
        raise UnusableStore(
            f"the log of the store '{location.root}' holds no whole commit: "
            f"{str(error).splitlines()[0]}",
            "a log that goes back to a whole checkpoint, or to its first entry",
            "put the store back from a copy",
        ) from None


def _find_version(location: Location, path: str, last: int) -> int:
    """The version up to `last` that added the file `path`; -1 if the log does not name it.

    Entries before a checkpoint may be torn: a file that no whole entry names may belong to one.
    """
    own = EVENT_FILE_PATH.fullmatch(path)
    found = -1
    for version in range(last, -1, -1):
        try:
            entry = read_entry(location, version)
        except TornEntry:
            found = version
            continue
        if entry is not None and path in entry.added:
            return version
        before = None if entry is None or entry.own is None else entry.own.get("commit")
        if entry is None or own is None or (before is not None and before < int(own["first"])):
            break
    return found


def _is_whole(location: Location, version: int) -> bool:
    """Return whether a log entry and its files were synced and are still whole."""
    try:
        entry = read_entry(location, version)
    except TornEntry:
        return False
    if entry is None or not entry.synced:
        return False
    sizes = ((path, int(action["size"])) for path, action in entry.added.items())
    return not any(torn_files(location, sizes))


def carry_out_rewind(
    location: Location, rewind: Rewind, lost: Sequence[LostCommit], highest: int
) -> str:
    """Move everything after the last whole commit to a directory; return its path.

    An interrupted repair can be repeated, because the log is cut from its end.

    Args:
        location: of the store.
        rewind: from `plan_rewind`.
        lost: the commits that it removes.
        highest: the highest number that one of them may have.
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
    """The highest number of a commit that repairs have given up; -1 if there is none."""
    highest = -1
    for found in glob.iglob(
        os.path.join(glob.escape(location.file("_tseries", "lost")), "*", LOST_FILE)
    ):
        with open(found, encoding="utf-8") as file:
            highest = max(highest, json.load(file)["highest_commit"])
    return highest
