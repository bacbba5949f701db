"""Repair a store that was damaged or changed from outside (semantics 26).

Commits of this package that came in between stay as they are. Repair keeps copies of the files that
another tool has added in `_tseries/lost`.

Repair runs a list of steps, one for each kind of damage, ordered so that each can rely on those
before it: first the log, then the files that it names, the bounds that it records for them, the
head, and the clock. A step finds its damage itself, and reports what it repaired, what is lost, and
what it cannot repair. At the end repair adds the damage that `verify` still finds. Writers should
pause meanwhile.

After a power loss a store on a local path is rewound to its last whole commit (26.2): the log is
cut after it, so events, head, settings and the numbers of writers' and queries' batches return to
it, and the remains of later commits go to `_tseries/lost`.
"""

import contextlib
import json
import os
import pathlib
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries.errors import (
    DAMAGES,
    FROM_A_COPY,
    Finding,
    StoreBusy,
    UnusableStore,
    WrongClock,
)
from pyspark_tseries.maintain.rebuild import (
    RecoveredHead,
    TimeCorrection,
    correct_bounds,
    correct_future_commits,
    find_future_commits,
    find_wrong_bounds,
    rebuild,
    recover_head,
)
from pyspark_tseries.maintain.rebuild_entries import put_rebuilt, rebuild_entries
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.commits import (
    APPLICATION_PREFIX,
    MAX_CLOCK_SKEW_US,
    QUERY_PREFIX,
    CommitMetadata,
    check_commit_time,
)
from pyspark_tseries.model.series_index import SeriesIndex, next_metadata
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.data_files import DataFile, FileStats, data_files
from pyspark_tseries.storage.location import (
    EVENT_FILE_PATH,
    LOG_FOLDER,
    Location,
    exclusive,
    heartbeat,
    is_inside_store,
    list_event_files,
    lock_commits,
    make_directories,
    parse_location,
    sync,
)
from pyspark_tseries.storage.snapshot import load_index, readable_metadata
from pyspark_tseries.store.admin_commits import replace_index, require_owner
from pyspark_tseries.store.checkpoints import LAST_CHECKPOINT, UNREADABLE, shadow_log
from pyspark_tseries.store.commit_history import LOST_FILE, find_max_lost_commit
from pyspark_tseries.store.log import load_table_at
from pyspark_tseries.store.log_check import (
    HEAD_TRANSACTION,
    ForeignChange,
    find_foreign_change,
    find_log_damage,
    newest_version,
    read_entries_back,
    read_readable_log,
    read_whole_entry,
    torn_files,
    unchecked_entries,
    unknown_changes_error,
)
from pyspark_tseries.store.log_entries import Entry, FileAction, NewEntry, entry_path
from pyspark_tseries.store.store import Store

MAX_SERIES_NAMED: Final = 20
"""A message names at most this many series; a file next to the commit's remains lists them all."""

NO_HEAD: Final = -1

_LOCK_FILE: Final = "repair.lock"


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
    location: Location, head_id: int | None, last_kept: int, newest: int
) -> list[LostCommit]:
    """Collect the known facts of the commits after the version `last_kept`, up to `newest`.

    A torn entry does not name its files. If exactly one attempt on top of the commit before it has
    left files, that attempt is assumed to be the commit.
    """
    metadata_by_head = readable_metadata(location)
    lost = []
    for version in range(last_kept + 1, newest + 1):
        entry = read_whole_entry(location, version)
        if entry is None:
            next_id = _find_attempt(location, metadata_by_head, head_id)
            commit = LostCommit(version)
        else:
            next_id = entry.transactions.get(HEAD_TRANSACTION)
            commit = LostCommit(version, NO_HEAD, files=tuple(entry.added))
        if next_id is not None:
            files = commit.files if entry is not None else _list_files_of(location, next_id)
            commit = _with_events(
                location, replace(commit, head=next_id, files=tuple(files)), entry, head_id
            )
            head_id = next_id
            if (metadata := metadata_by_head.get(next_id)) is not None:
                number = metadata.commit if commit.number is None else commit.number
                time = format_instant(metadata.commit_us)
                commit = replace(commit, number=number, time=time)
        lost.append(commit)
    return lost


def _with_events(
    location: Location, commit: LostCommit, entry: Entry | None, head_id: int | None
) -> LostCommit:
    """Complete `commit` from its entry, its files, and its head compared with `head_id`."""
    assert commit.head is not None
    transactions = {} if entry is None else entry.transactions
    batches = {
        name.removeprefix(QUERY_PREFIX).removeprefix(APPLICATION_PREFIX): number
        for name, number in transactions.items()
        if name.startswith((QUERY_PREFIX, APPLICATION_PREFIX))
    }
    number = None if entry is None else entry.commit
    series = _compare_heads(location, commit.head, head_id)
    series = series or _read_series_ranges(location, commit.files)
    events, between = _read_logged_events(entry)
    if series is not None:
        events = sum(high - low + 1 for low, high in series.values())
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
    return events, (min(low for low, _ in ends), max(high for _, high in ends))


def _find_attempt(
    location: Location, metadata_by_head: dict[int, CommitMetadata], head_id: int | None
) -> int | None:
    """Return the id of the attempt on top of `head_id` that left event files, if there is one."""
    children = [
        own_id for own_id, metadata in metadata_by_head.items() if metadata.parent == head_id
    ]
    attempts = [own_id for own_id in children if _list_files_of(location, own_id)]
    return attempts[0] if len(attempts) == 1 else None


def _list_files_of(location: Location, own_id: int) -> list[str]:
    """Return the event files that belong to the head `own_id` by their names."""
    name = f"-{own_id:016x}."
    return [file.path for file in list_event_files(location) if name in file.path]


def _compare_heads(
    location: Location, own_id: int, head_id: int | None
) -> dict[str, tuple[int, int]] | None:
    """Return, by series, the sequences that the head `own_id` adds to the head `head_id`."""
    try:
        index_before = load_index(location, head_id, None, SeriesIndex())
        # Begin with another new index, because loading a head adds its series to the index's ids.
        index_after = load_index(location, own_id, None, SeriesIndex())
    except (UnusableStore, OSError):
        return None
    names = index_after.ids.names()
    last_before, last_after = (
        index.lookup(names)["last_sequence"] for index in (index_before, index_after)
    )
    rows = zip(names, last_before.tolist(), last_after.tolist(), strict=True)
    return {
        name: (sequence_before + 1, sequence_after)
        for name, sequence_before, sequence_after in rows
        if sequence_after > sequence_before
    }


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
    names, lows, highs = (rows.column(i).to_pylist() for i in range(3))
    return {name: (a, b) for name, a, b in zip(names, lows, highs, strict=True)}


def describe_lost_commit(commit: LostCommit) -> list[str]:
    """Describe the loss of `commit` in sentences."""
    number = "a commit" if commit.number is None else f"commit {commit.number}"
    subject = f"{number} of {commit.time}" if commit.time else number
    sentences = [f"{subject} (log entry {commit.version}): {_describe_events(commit)}"]
    sentences += [
        f"batch {batch} of '{writer}': if it is a query, remove 'commits/{batch}' and what follows "
        "it from its checkpoint before it goes on, and it writes them again"
        for writer, batch in commit.batches.items()
    ]
    return sentences


def _describe_events(commit: LostCommit) -> str:
    if commit.series is None and commit.between is not None:
        first_series, last_series = commit.between
        among = (
            f"series '{first_series}'"
            if first_series == last_series
            else f"series between '{first_series}' and '{last_series}'"
        )
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
        torn: the torn entries, checkpoints and files to remove.
        checkpoints: names of files in the log's directory that are torn, or of lost versions.
        left: torn files that the rewind does not repair: their commits are no longer in the log, or
            rewinding past them would give up whole commits.
        refused: the damaged log entry, if rewinding would give up whole commits after it.
    """

    last: int
    newest: int
    torn: tuple[Finding, ...]
    checkpoints: tuple[str, ...]
    left: tuple[Finding, ...]
    refused: Finding | None = None


def plan_rewind(location: Location, *, give_up: bool) -> Rewind | None:
    """Plan the rewind of the store at the local `location`; None if nothing is torn."""
    newest = newest_version(location)
    reach = read_readable_log(location, newest)
    last, torn = reach.last, list(reach.torn)
    findings = [
        Finding("checkpoint", f"'{name}' cannot be read", path=location.file(LOG_FOLDER, name))
        for name in torn
    ]
    if last < newest:
        path = entry_path(location, last + 1)
        entry = Finding("log entry", f"log entry '{path}': {reach.reason}", path=path)
        if not give_up and _is_any_whole(location, range(last + 2, newest + 1)):
            problem = f"{entry.problem}, and commits after it are whole and were synced"
            return Rewind(last, newest, (), (), (), refused=replace(entry, problem=problem))
        findings.append(entry)
    unsynced: dict[str, Finding] = {}
    # Each step back changes which files the store has, so check them again until none is torn.
    # `last` is the last entry that would be kept so far; its state can be read without the `torn`
    # checkpoints. Each turn takes the torn file that the newest entry added. Either it steps back
    # to before that entry, or further, to before a damaged entry that a later checkpoint covered.
    # Or, if that gives up whole commits or no entry names the file, it goes to `unsynced` and stays
    # as it is. So the loop ends: each turn lowers `last` or adds to `unsynced`.
    while True:
        files = read_state_at(location, last, torn)[0].items()
        broken = {path: why for path, why in torn_files(location, files) if path not in unsynced}
        if not broken:
            break
        added_by = {path: _find_version(location, path, last) for path in broken}
        path = max(broken, key=lambda path: added_by[path])
        version = added_by[path]
        file = Finding("file", f"file '{path}': {broken[path]}", path=path)
        later = range(version + 1, last + 1)
        if version < 0 or (not give_up and _is_any_whole(location, later)):
            synced = f"{file.problem}, and no power loss did that: it had been synced"
            unsynced[path] = replace(file, problem=synced)
            continue
        findings.append(file)
        reach = read_readable_log(location, version - 1)
        last, torn = reach.last, list(dict.fromkeys([*torn, *reach.torn]))
    if not findings and not unsynced:
        return None
    gone = tuple(dict.fromkeys([*torn, *_list_checkpoints_after(location, last)]))
    return Rewind(last, newest, tuple(findings), gone, tuple(unsynced.values()))


def _is_any_whole(location: Location, versions: Iterable[int]) -> bool:
    """Return whether an entry of the log is whole, so that a rewind past it gives up its commit."""
    return any(_is_whole(location, version) for version in versions)


def _list_checkpoints_after(location: Location, version: int) -> list[str]:
    """Return the names of the checkpoints of later versions, and of the file that names the last.

    That one is included if there are any, because it names one of them.
    """
    names = sorted(os.listdir(location.file(LOG_FOLDER)))
    matches = filter(None, map(_CHECKPOINT_FILE.fullmatch, names))
    later = [match[0] for match in matches if int(match[1]) > version]
    return [*later, LAST_CHECKPOINT] if later and LAST_CHECKPOINT in names else later


def read_state_at(
    location: Location, version: int, without: Sequence[str]
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


def _find_version(location: Location, path: str, newest: int) -> int:
    """Return the version up to `newest` that added the file `path`; -1 if the log does not name it.

    Entries before a checkpoint may be torn: a file that no whole entry names may belong to one.
    """
    path_fields = EVENT_FILE_PATH.fullmatch(path)
    oldest = -1
    for version, entry in read_entries_back(location, newest):
        if entry is None:
            oldest = version
            continue
        if path in entry.added:
            return version
        commit = entry.commit
        if path_fields is None or (commit is not None and commit < int(path_fields["first"])):
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
    lost_directory = location.file(
        "_tseries", "lost", f"{rewind.last + 1:020d}-{secrets.token_hex(4)}"
    )
    make_directories(lost_directory)
    with open(os.path.join(lost_directory, LOST_FILE), "w", encoding="utf-8") as file:
        record = {"highest_commit": highest, "commits": [asdict(commit) for commit in lost]}
        json.dump(record, file, ensure_ascii=False, indent=1)
    sync([file.name, lost_directory])
    kept_sizes, _ = read_state_at(location, rewind.last, rewind.checkpoints)
    files = [path for commit in lost for path in commit.files if path not in kept_sizes]
    versions = range(rewind.newest, rewind.last, -1)
    entries = [
        os.path.relpath(entry_path(location, version), location.root) for version in versions
    ]
    for name in [*(f"_delta_log/{name}" for name in rewind.checkpoints), *entries, *files]:
        lost_path = os.path.join(lost_directory, name)
        os.makedirs(os.path.dirname(lost_path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(location.file(name), lost_path)
    sync([location.file(LOG_FOLDER), lost_directory])
    return lost_directory


@dataclass(frozen=True, slots=True)
class Revert:
    """The actions that undo the changes of other tools.

    Attributes:
        change: the changes; None if the log only names files outside the store.
        again: files to add to the log again.
        removed: paths and sizes of files to remove from the log.
        gone: paths of files that should be added again but no longer exist.
    """

    change: ForeignChange | None
    again: tuple[DataFile, ...]
    removed: tuple[tuple[str, int], ...]
    gone: tuple[str, ...]


def plan_revert(store: Store) -> tuple[Revert | None, int | None]:
    """Plan how to undo the changes of other tools in `store`; None if there are none.

    Also return the version of a log entry that is missing but needed to be sure; normally None.
    """
    entries, missing = unchecked_entries(store.location, store.log.version(), -1)
    change = find_foreign_change(entries)
    sizes = dict(store.log.sizes())
    outside = [path for path in sizes if not is_inside_store(path)]
    if change is None and not outside:
        return None, missing
    again: list[DataFile] = []
    gone: list[str] = []
    if change is not None:
        sound = _list_files_at(store.location, change.sound)
        present = {
            path
            for path in change.missing
            if path in sound and store.location.has(store.location.file(path), sound[path].size)
        }
        again = [sound[path] for path in change.missing if path in present]
        gone = [path for path in change.missing if path not in present]
    extra = dict.fromkeys([*(change.extra if change else ()), *outside])
    removed = tuple((path, sizes.get(path, 0)) for path in extra)
    return Revert(change, tuple(again), removed, tuple(gone)), missing


def _list_files_at(location: Location, version: int) -> dict[str, DataFile]:
    """Return the store's files at `version` by path; empty if the log does not reach back to it."""
    table = _load_sound(location, version)
    if table is None:
        return {}
    files = data_files(location, pa.table(table.get_add_actions(flatten=True)))
    return {file.path: file for file in files}


def revert_changes(store: Store, revert: Revert, copies: Sequence[tuple[str, str]]) -> None:
    """Commit the actions of `revert`; raise StoreBusy if the store has changed since the read."""
    location = store.location
    now_ms = time.time_ns() // 1_000_000
    for path, copy in copies:
        location.copy(location.file(path), location.file(copy))
    actions = [
        FileAction(path, size, "edit" if path.startswith("kind=edit/") else "event", now_ms)
        for path, size in revert.removed
    ]
    actions += [
        FileAction(
            path=file.path,
            size=file.size,
            kind=file.kind,
            time_ms=now_ms,
            changes_rows=True,
            statistics=_format_statistics(file),
        )
        for file in revert.again
    ]
    with store.planned_lock() as log:
        log.mark_checked()
        # RESTORE also takes back columns and their types.
        sound = None if revert.change is None else _load_sound(location, revert.change.sound)
        metadata = None if sound is None else log.metadata_as_of(sound)
        again = [location.file(file.path) for file in revert.again]
        log.add(NewEntry(actions, metadata=metadata), again)


def _load_sound(location: Location, version: int) -> DeltaTable | None:
    try:
        return load_table_at(location, version)
    except UnusableStore:
        return None


def _format_statistics(file: DataFile) -> str:
    series, sequence = (file.first, file.last), (file.min_sequence, file.max_sequence)
    return FileStats(file.rows, series, sequence, (file.min_us, file.max_us)).to_json()


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The report of a repair, or of a dry run.

    Attributes:
        mended: each damage that was repaired.
        lost: events, commits and settings that are gone, as sentences.
        left: remaining damage, with the next step.
    """

    mended: tuple[Finding, ...] = ()
    lost: tuple[str, ...] = ()
    left: tuple[Finding, ...] = ()


@dataclass
class _Repair:
    """A repair or a dry run, and its report so far; each step finds and repairs one damage."""

    location: Location
    dry_run: bool
    give_up: bool
    principal: str
    mended: list[Finding] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def repair(self, finding: Finding, how: str, act: Callable[[], object]) -> None:
        """Repair the damage `finding` with `act`, unless this is a dry run; `how` says how."""
        if not self.dry_run:
            act()
        self.mended.append(replace(finding, mended=how))

    def advance_head(self, store: Store, commit: int | None = None) -> None:
        """Commit the current head again, as the next commit, with at least the number `commit`."""

        def make(head_id: int | None, _: int) -> SeriesIndex:
            index = store.index()
            metadata = next_metadata(index, head_id, now_us=read_wall_clock(), rows=0)
            number = metadata.commit if commit is None else max(commit, metadata.commit)
            return replace(index, metadata=replace(metadata, commit=number))

        replace_index(store, make, timed=False)


def repair(
    path: str | Location,
    *,
    dry_run: bool = False,
    give_up: bool = False,
    principal: str | None = None,
) -> RepairResult:
    """Repair all that can be repaired in the store at `path`; report the repairs and the losses.

    A dry run reports only the first repairs, since later ones depend on their outcome. With
    `give_up`, repair also gives up whole commits if a file of an earlier one is damaged and cannot
    be restored.

    Raises:
        NoSuchStore: there is no store.
        PermissionDenied: the store has a policy, and the principal is not an owner.
        UnusableStore: the store cannot be opened at all.
        OSError: a file could not be read or written.
        StoreBusy: another writer won every attempt, or another repair is at work.
        WrongClock: this machine's clock is ahead of the storage's.
    """
    location, author = parse_location(path), author_or_user(principal)
    require_owner(location, author, "repair the store")
    # A clock that is ahead would add damage. Do not check the last commit: it may be damaged.
    check_commit_time(
        location.root, NEVER_US, read_wall_clock(), location.clock_us(), same_machine=False
    )
    job = _Repair(location, dry_run, give_up, author)
    # What a step has found no longer holds once another repair has acted: it would move whole
    # commits aside that were made since.
    lock = (
        contextlib.nullcontext(-1) if dry_run else exclusive(location, _LOCK_FILE, is_needed=False)
    )
    with lock as held:
        if held is None:
            raise StoreBusy(
                f"store '{location.root}': another repair is at work; nothing was changed",
                next_step="wait for it",
            )
        if _run_steps(job):
            reported = {finding.path for finding in job.left if finding.path is not None}
            for finding in verify(location):
                if DAMAGES[finding.kind].mended is not None:
                    finding = replace(finding, next_step=FROM_A_COPY)
                if finding.path not in reported:
                    job.left.append(finding)
    return RepairResult(tuple(job.mended), tuple(job.lost), tuple(job.left))


def _run_steps(job: _Repair) -> bool:
    """Run the steps; return False if the later ones, and `verify`, cannot rely on their outcome."""
    for step in REPAIR_STEPS:
        left_before = len(job.left)
        step(job)
        if step is _repair_head and len(job.left) > left_before:
            return False  # The rest needs a head.
        is_torn = bool(job.left) and job.location.is_local and find_log_damage(job.location)
        if (job.dry_run and job.mended) or is_torn:
            return False
    return True


@contextlib.contextmanager
def _without_writers(job: _Repair) -> Iterator[None]:
    """Let no writer of this host commit between what a step finds in the log and what it does.

    Its commit would be behind the entries that a rewind moves aside, or in the place of one.
    """
    if job.dry_run:
        yield
        return
    with lock_commits(job.location), heartbeat(job.location):
        yield


def _repair_log_entries(job: _Repair) -> None:
    """Rebuild damaged log entries that later commits depend on."""
    location = job.location
    lost_directory = location.file("_tseries", "lost")
    with _without_writers(job):
        entries = rebuild_entries(location) if location.is_local else []
        if not entries:
            return
        if not job.dry_run:
            lost_directory = put_rebuilt(location, entries)
    for entry in entries:
        path = entry_path(location, entry.version)
        problem = f"log entry '{path}': {entry.damage}; {entry.how}"
        note = f"What there was of it is kept in '{lost_directory}'"
        job.mended.append(Finding("log entry", problem, path=path, mended=note))


def _repair_torn_commits(job: _Repair) -> None:
    """Rewind a store with torn files to its last whole commit."""
    with _without_writers(job):
        _rewind_torn_commits(job)


def _rewind_torn_commits(job: _Repair) -> None:
    location = job.location
    rewind = plan_rewind(location, give_up=job.give_up) if location.is_local else None
    if rewind is None:
        return
    refused = [] if rewind.refused is None else [rewind.refused]
    job.left += (_give_up_advice(location, finding) for finding in [*rewind.left, *refused])
    if refused or not rewind.torn:
        return
    _, head_id = read_state_at(location, rewind.last, rewind.checkpoints)
    lost = find_lost_commits(location, head_id, rewind.last, rewind.newest)
    lost_directory = location.file("_tseries", "lost")
    if not job.dry_run:
        numbers = [commit.number for commit in lost if commit.number is not None]
        highest = max([rewind.newest, *numbers]) if lost else -1
        lost_directory = carry_out_rewind(location, rewind, lost, highest)
    outcome = f"The log ends with entry {rewind.last} now" if lost else "The log is read without it"
    job.mended.append(
        replace(
            rewind.torn[0],
            problem="; ".join(finding.problem for finding in rewind.torn),
            mended=f"{outcome}; what there is of it was moved to '{lost_directory}'",
        )
    )
    job.lost += (sentence for commit in lost for sentence in describe_lost_commit(commit))


def _give_up_advice(location: Location, finding: Finding) -> Finding:
    """Return `finding` with its next step: a copy of the store, or giving up whole commits."""
    step = (
        "put it back from a copy of the store, or give up its commit and all that followed with: "
        f"python -m pyspark_tseries repair --give-up {shlex.quote(location.root)}"
    )
    return replace(finding, accepts=f"the {finding.kind} as it was written", next_step=step)


def _repair_foreign_changes(job: _Repair) -> None:
    """Undo changes of rows by other tools; accept unknown changes if the store is sound."""
    store = Store.open_damaged(job.location)
    revert, gone = plan_revert(store)
    if revert is not None:
        _revert_foreign_changes(job, store, revert)
    elif gone is not None:
        unknown = Finding.of(unknown_changes_error(job.location, gone, store.log.version()))
        if any(finding.kind != unknown.kind for finding in verify(job.location)):
            job.left.append(unknown)
            return
        store.log.mark_checked()
        accepted = "All that can be checked is sound; values cannot"
        job.repair(unknown, accepted, lambda: job.advance_head(store))


def _revert_foreign_changes(job: _Repair, store: Store, revert: Revert) -> None:
    change = _describe_change(store, revert)
    if revert.gone:
        files = ", ".join(f"'{path}'" for path in revert.gone)
        problem = (
            f"{change.problem}. The files that it took are gone: {files} were removed meanwhile, "
            "as VACUUM does"
        )
        step = "put them back from a copy of the store"
        job.left.append(replace(change, problem=problem, next_step=step))
        return
    lost_path = os.path.join("_tseries", "lost", f"{store.log.version() + 1:020d}")
    copies = [(path, f"{lost_path}/{path}") for path, _ in revert.removed if is_inside_store(path)]
    job.repair(change, "It is undone", lambda: revert_changes(store, revert, copies))
    lost_directory = store.location.file(lost_path)
    job.lost += (
        f"what another tool has written to '{path}'; a copy is in '{lost_directory}'"
        for path, _ in copies
    )


def _describe_change(store: Store, revert: Revert) -> Finding:
    change = revert.change
    if change is None:
        problem = f"the log of the store '{store.root}' names files outside of it"
        return Finding("outside file", problem)
    first = change.first
    until = change.last.version
    upto = f" to {until}" if until > first.version else ""
    problem = (
        f"versions {first.version}{upto} of the log: {first.title} by '{first.engine}' changed rows"
    )
    return Finding("foreign change", problem)


def _repair_bounds(job: _Repair) -> None:
    """Correct the bounds that the log records of files."""
    store = Store.open_damaged(job.location)
    wrong = find_wrong_bounds(store)
    if wrong and not job.dry_run:
        correct_bounds(store, {file: rows for file, (_, rows) in wrong.items()}, read_wall_clock())
    for finding, _ in wrong.values():
        job.mended.append(replace(finding, mended="The log is corrected"))


def _repair_head(job: _Repair) -> None:
    """Rebuild an unreadable head from the events."""
    store = Store.open_damaged(job.location)
    try:
        store.index()
    except UnusableStore as error:
        damage = Finding.of(error)
        lost = list(_describe_lost_head(recover_head(store)))
    else:
        return
    try:
        how = "It is rebuilt from the events"
        job.repair(damage, how, lambda: rebuild(job.location, principal=job.principal))
        job.lost += lost
    except UnusableStore as missing:
        finding = replace(
            damage,
            problem=f"{damage.problem}, and it cannot be rebuilt: {missing.problem}",
            accepts="the files as they were written",
            next_step="copy the store again or put the files back; or give up the first commit "
            "without its files and all that followed with: python -m pyspark_tseries repair "
            f"--give-up {shlex.quote(job.location.root)}",
        )
        job.left.append(finding)


def _describe_lost_head(recovered: RecoveredHead) -> Iterator[str]:
    """Describe the recovered state that no event records, so that it is older than the head."""
    metadata = recovered.metadata
    event_commit = recovered.index.metadata.commit
    if not recovered.current:
        age = (
            f"as they were with commit {metadata.commit}"
            if metadata.commit >= 0
            else "those of the store's creation, since no other head can be read"
        )
        yield (
            "what only the head recorded: the counts of dropped and adjusted rows, a policy, and "
            f"a changed retained range, are {age}"
        )
    if metadata.retained_since is not None and metadata.retained_since > event_commit:
        yield (
            "which events the changed retained range had put out of range: those that the range "
            f"'{metadata.retained}' lets in are back"
        )


def _raise_commit_number(job: _Repair) -> None:
    """Skip the numbers of lost commits: subscribers may have seen them."""
    highest = find_max_lost_commit(job.location)
    store = Store.open_damaged(job.location)
    if not job.dry_run and store.index().metadata.commit < highest:
        job.advance_head(store, highest)


def _repair_commit_times(job: _Repair) -> None:
    """Correct the times of commits in the future; accept a clock after a long pause."""
    location = job.location
    store = Store.open_damaged(job.location)
    try:
        store.read_clock()
    except WrongClock as error:
        wrong = Finding.of(error)
    else:
        return
    us = read_wall_clock()
    if store.metadata().commit_us <= us:
        accepted = "That clock is assumed to be right"
        job.repair(wrong, accepted, lambda: job.advance_head(store))
        return
    limit_us = max(us, location.clock_us() or us) + MAX_CLOCK_SKEW_US
    future = find_future_commits(store, limit_us, us)
    how = _describe_correction(future)
    job.repair(wrong, how, lambda: correct_future_commits(store, future))


def _describe_correction(future: TimeCorrection) -> str:
    times = future.commit_us
    if not times:
        return "No event belongs to such a commit; the store's time is set back"
    begin, end = min(times), max(times)
    events = future.events.num_rows
    series = future.events["series"].unique()
    return (
        f"The commits {begin} to {end} are now of {format_instant(times[begin])} to "
        f"{format_instant(times[end])}, and so are {events} events of {len(series)} series that "
        "had taken their times; times that were given stay"
    )


REPAIR_STEPS: Final[dict[Callable[[_Repair], None], tuple[str, ...]]] = {
    _repair_log_entries: ("log entry",),
    _repair_torn_commits: ("log entry", "checkpoint", "file"),
    _repair_foreign_changes: ("foreign change", "unknown changes", "outside file"),
    _repair_bounds: ("bounds",),
    _repair_head: ("head",),
    _raise_commit_number: (),
    _repair_commit_times: ("clock",),
}
"""The steps in order, each with the kinds of `DAMAGES` that it repairs."""
