"""A store on a local path brought back to its last whole commit, after a power loss has torn some.

The log is cut: what was stored, the head, what writers and queries have noted and every setting are
those of the last whole commit. What there is of later ones is moved to `_tseries/lost`.

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
from pyspark_tseries.storage.location import Place, lies_inside
from pyspark_tseries.store.log_check import (
    HEAD,
    LAST_CHECKPOINT,
    newest_version,
    reach_of_log,
    read_entry,
    torn_files,
)
from pyspark_tseries.store.log_entries import OWN_FILE, TornEntry, entry_path
from pyspark_tseries.store.log_writer import shadow

__all__ = ["Rewind", "carry_out", "find_rewind", "highest_lost", "state_at"]

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint.*")
_LOST: Final = "lost.json"


@dataclass(frozen=True, slots=True)
class Rewind:
    """How a store gets back to its last whole commit.

    Attributes:
        last: the version of the log that is kept.
        newest: the version of the log as it is.
        reasons: what is torn, as sentences.
        checkpoints: names of files in the log's directory that are torn, or of lost versions.
        left: of files that are torn, by path, what is wrong with them; to go back before these
            would give up commits that are whole and had been synced, or their commits are not in
            the log any more.
    """

    last: int
    newest: int
    reasons: tuple[str, ...]
    checkpoints: tuple[str, ...]
    left: dict[str, str]


def find_rewind(place: Place, *, give_up: bool = False) -> Rewind | None:
    """How far the store at the local `place` is to go back; None where nothing is torn.

    Args:
        place: where the store lies.
        give_up: whether to go back before a torn file although whole commits came after it.

    Raises:
        UnusableStore: the log tells of no whole commit.
    """
    newest = newest_version(place)
    reach = reach_of_log(place, newest)
    last, torn = reach.last, list(reach.torn)
    reasons = [f"'{name}' cannot be read" for name in torn]
    if last < newest:
        reasons.append(f"log entry '{entry_path(place, last + 1)}': {reach.reason}")
    left: dict[str, str] = {}
    while True:
        files = state_at(place, last, torn)[0].items()
        broken = {path: why for path, why in torn_files(place, files) if path not in left}
        if not broken:
            break
        made = {path: _version_of(place, path, last) for path in broken}
        path = max(broken, key=lambda path: made[path])
        later = range(made[path] + 1, last + 1)
        if made[path] < 0 or not (give_up or not any(_is_whole(place, v) for v in later)):
            left[path] = broken[path]
            continue
        reach = reach_of_log(place, made[path] - 1)
        last, torn = reach.last, [*torn, *(name for name in reach.torn if name not in torn)]
        reasons.append(f"file '{path}': {broken[path]}")
    if not reasons and not left:
        return None
    names = sorted(os.listdir(place.file("_delta_log")))
    beyond = [n for n in names if (found := _CHECKPOINT.fullmatch(n)) and int(found[1]) > last]
    if beyond and LAST_CHECKPOINT in names:
        beyond.append(LAST_CHECKPOINT)
    gone = tuple(dict.fromkeys([*torn, *beyond]))
    return Rewind(last, newest, tuple(reasons), gone, left)


def state_at(
    place: Place, version: int, without: Sequence[str] = ()
) -> tuple[dict[str, int], int | None]:
    """The sizes of the store's files by path, and the id of the head, as they were at `version`.

    Args:
        place: where the store lies, a local path.
        version: of the log.
        without: names of files of the log that are not to be read.

    Raises:
        UnusableStore: the log does not reach back to there.
    """
    try:
        with shadow(place, version, without) as copy:
            table = DeltaTable(pathlib.Path(copy).as_uri())
            actions = pa.table(table.get_add_actions())
            columns = (actions[name].to_pylist() for name in ("path", "size_bytes"))
            sizes = {path: size for path, size in zip(*columns, strict=True) if lies_inside(path)}
            return sizes, table.transaction_version(HEAD)
    except (DeltaError, OSError) as error:
        raise UnusableStore(
            f"the log of the store '{place.location}' tells of no whole commit: "
            f"{str(error).splitlines()[0]}; accepted: a log that goes back to a whole checkpoint, "
            "or to its first entry; next step: put the store back from a copy"
        ) from None


def _version_of(place: Place, path: str, last: int) -> int:
    """The version up to `last` that added the file `path`; -1: the log does not say.

    Entries before a checkpoint may be torn: a file that no whole one names may be of such.
    """
    own = OWN_FILE.fullmatch(path)
    found = -1
    for version in range(last, -1, -1):
        try:
            entry = read_entry(place, version)
        except TornEntry:
            found = version
            continue
        if entry is not None and path in entry.added:
            return version
        before = None if entry is None or entry.own is None else entry.own.get("commit")
        if entry is None or own is None or (before is not None and before < int(own["first"])):
            break
    return found


def _is_whole(place: Place, version: int) -> bool:
    """Whether an entry, and what it adds, had been synced and is still whole."""
    try:
        entry = read_entry(place, version)
    except TornEntry:
        return False
    if entry is None or not entry.synced:
        return False
    sizes = ((path, int(action["size"])) for path, action in entry.added.items())
    return not any(torn_files(place, sizes))


def carry_out(place: Place, rewind: Rewind, lost: Sequence[LostCommit], highest: int) -> str:
    """Moves what is after the last whole commit aside; returns the directory where it is.

    A repair that is interrupted begins again where it was: the log is cut from its end.

    Args:
        place: where the store lies.
        rewind: as `find_rewind` gives it.
        lost: the commits that are lost by it.
        highest: no commit that is lost has a higher number.
    """
    aside = place.file("_tseries", "lost", f"{rewind.last + 1:020d}-{secrets.token_hex(4)}")
    make_directories(aside)
    with open(os.path.join(aside, _LOST), "w", encoding="utf-8") as file:
        said = {"highest_commit": highest, "commits": [asdict(commit) for commit in lost]}
        json.dump(said, file, ensure_ascii=False, indent=1)
    sync([file.name, aside])
    kept, _ = state_at(place, rewind.last, rewind.checkpoints)
    files = [path for commit in lost for path in commit.files if path not in kept]
    versions = range(rewind.newest, rewind.last, -1)
    entries = [os.path.relpath(entry_path(place, version), place.location) for version in versions]
    for name in [*(f"_delta_log/{name}" for name in rewind.checkpoints), *entries, *files]:
        _move(place.file(name), os.path.join(aside, name))
    sync([place.file("_delta_log"), aside])
    return aside


def _move(path: str, to: str) -> None:
    os.makedirs(os.path.dirname(to), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, to)


def highest_lost(place: Place) -> int:
    """No commit that a repair of the store has given up had a higher number; -1: there was none."""
    highest = -1
    for found in glob.iglob(os.path.join(glob.escape(place.file("_tseries", "lost")), "*", _LOST)):
        with open(found, encoding="utf-8") as file:
            highest = max(highest, json.load(file)["highest_commit"])
    return highest
