"""Repair a store that was damaged or changed from outside (semantics 26).

Commits of this package that came in between stay as they are. Repair keeps copies of the files that
another tool has added in `_tseries/lost`.

Repair runs a list of steps, one for each kind of damage, ordered so that each can rely on those
before it: first the log, then the files that it names, the bounds that it records for them, the
head, and the clock. A step finds its damage itself, and reports what it repaired, what is lost, and
what it left because it cannot repair it. At the end repair also reports as left what `verify` still
finds. Writers should pause meanwhile.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from pyspark_timestream.core.instants import format_instant
from pyspark_tseries.errors import UnusableStore, WrongClock
from pyspark_tseries.maintain.rebuild import (
    RecoveredHead,
    correct_bounds,
    find_wrong_bounds,
    rebuild,
    recover_head,
)
from pyspark_tseries.maintain.repair.future_commits import (
    FutureCommits,
    correct_future_commits,
    find_future_commits,
)
from pyspark_tseries.maintain.repair.rebuild_entries import put_rebuilt, rebuild_entries
from pyspark_tseries.maintain.repair.rewind import (
    carry_out_rewind,
    describe_lost_commit,
    find_lost_commits,
    find_max_lost_commit,
    plan_rewind,
    read_state_at,
)
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.commits import MAX_CLOCK_SKEW_US, check_commit_time
from pyspark_tseries.model.damage import FROM_A_COPY, Finding
from pyspark_tseries.model.series_index import SeriesIndex, next_metadata
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.data_files import DataFile, FileStats, data_files
from pyspark_tseries.storage.location import Location, is_inside_store, lock_commits, parse_location
from pyspark_tseries.store.admin_commits import replace_index, require_owner
from pyspark_tseries.store.log import load_table_at
from pyspark_tseries.store.log_check import (
    find_log_damage,
    unchecked_entries,
    unknown_changes_error,
)
from pyspark_tseries.store.log_entries import (
    Change,
    FileAction,
    ForeignChange,
    entry_path,
    find_foreign_change,
)
from pyspark_tseries.store.store import Store, now_us


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

    Also return the version of a log entry that is gone but needed to be sure; normally None.
    """
    entries, missing = unchecked_entries(store.location, store.version(), -1)
    change = find_foreign_change(entries)
    sizes = dict(store.log.sizes())
    outside = [path for path in sizes if not is_inside_store(path)]
    if change is None and not outside:
        return None, missing
    again: list[DataFile] = []
    gone: list[str] = []
    if change is not None:
        sound = _list_files_at(store.location, change.sound)
        there = {path for path in change.missing if path in sound and _is_there(sound[path], store)}
        again = [sound[path] for path in change.missing if path in there]
        gone = [path for path in change.missing if path not in there]
    extra = dict.fromkeys([*(change.extra if change else ()), *outside])
    removed = tuple((path, sizes.get(path, 0)) for path in extra)
    return Revert(change, tuple(again), removed, tuple(gone)), missing


def _list_files_at(location: Location, version: int) -> dict[str, DataFile]:
    """Return the store's files at `version` by path; empty if the log does not reach back to it."""
    try:
        table = load_table_at(location, version)
    except UnusableStore:
        return {}
    files = data_files(location, pa.table(table.get_add_actions(flatten=True)))
    return {file.path: file for file in files}


def _is_there(file: DataFile, store: Store) -> bool:
    try:
        return store.location.size(store.location.file(file.path)) == file.size
    except FileNotFoundError:
        return False


def revert_changes(store: Store, revert: Revert, kept: Sequence[tuple[str, str]]) -> None:
    """Commit the actions of `revert`."""
    location, now_ms = store.location, time.time_ns() // 1_000_000
    for path, copy in kept:
        location.copy(location.file(path), location.file(copy))
    actions = [
        FileAction(path, size, "edit" if path.startswith("kind=edit/") else "event", now_ms)
        for path, size in revert.removed
    ]
    actions += [
        FileAction(file.path, file.size, file.kind, now_ms, True, _format_statistics(file))
        for file in revert.again
    ]
    with store.commit_lock() as log:
        log.mark_checked()
        log.commit(Change(actions), [location.file(file.path) for file in revert.again])


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

    def __add__(self, other: "RepairResult") -> "RepairResult":
        return RepairResult(
            self.mended + other.mended, self.lost + other.lost, self.left + other.left
        )


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """The arguments of `repair`."""

    dry_run: bool
    give_up: bool
    principal: str


RepairStep = Callable[[Location, RepairRequest], RepairResult]
"""Finds one kind of damage in a store, and repairs it unless this is a dry run."""


def repair(
    path: str | Location,
    *,
    dry_run: bool = False,
    give_up: bool = False,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
) -> RepairResult:
    """Repair what can be repaired of the store at `path`; report what was done and what is lost.

    A dry run only reports the first repairs, since later ones depend on their outcome. `give_up`
    also gives up whole commits if a file of an earlier one is damaged and cannot be restored.

    Raises:
        NoSuchStore: there is no store.
        PermissionDenied: the store has a policy, and the principal is not an owner.
        UnusableStore: what is there cannot be opened at all.
        OSError: a file could not be read or written.
        StoreBusy: other writers won every attempt.
        WrongClock: this machine's clock is ahead of the storage's.
    """
    location = parse_location(path, storage_options)
    request = RepairRequest(dry_run, give_up, author_or_user(principal))
    require_owner(location, request.principal, "repair the store")
    # A clock that is ahead would do more harm. Do not check the last commit: it may be damaged.
    check_commit_time(location.root, NEVER_US, now_us(), location.clock_us(), same_machine=False)
    done = RepairResult()
    for step in REPAIR_STEPS:
        found = step(location, request)
        done += found
        if step is _repair_head and found.left:
            return done  # The later steps, and `verify`, need a head.
        if (dry_run and done.mended) or (done.left and _is_log_damaged(location)):
            return done  # The later steps depend on the outcome of this one.
    return done + _find_remaining(location, done)


def _is_log_damaged(location: Location) -> bool:
    return location.is_local and find_log_damage(location) is not None


def _find_remaining(location: Location, done: RepairResult) -> RepairResult:
    known = {finding.path for finding in done.left if finding.path is not None}
    found = [finding for finding in verify(location) if finding.path not in known]
    return RepairResult(left=tuple(replace(each, next_step=FROM_A_COPY) for each in found))


def _repair_log_entries(location: Location, request: RepairRequest) -> RepairResult:
    """Rebuild damaged log entries that later commits depend on."""
    made = rebuild_entries(location) if location.is_local else []
    if not made:
        return RepairResult()
    where = location.file("_tseries", "lost")
    if not request.dry_run:
        with lock_commits(location):
            where = put_rebuilt(location, made)
    return RepairResult(
        mended=tuple(
            Finding(
                "log entry",
                f"log entry '{path}': {entry.damage}; {entry.how}",
                path=path,
                mended=f"What there was of it is kept in '{where}'",
            )
            for entry in made
            for path in [entry_path(location, entry.version)]
        )
    )


def _repair_torn_commits(location: Location, request: RepairRequest) -> RepairResult:
    """Rewind a store with torn files to its last whole commit."""
    rewind = plan_rewind(location, give_up=request.give_up) if location.is_local else None
    if rewind is None:
        return RepairResult()
    left = tuple(_give_up_advice(location, finding) for finding in rewind.left)
    if rewind.refused is not None:
        return RepairResult(left=(*left, _give_up_advice(location, rewind.refused)))
    if not rewind.torn:
        return RepairResult(left=left)
    _, head_id = read_state_at(location, rewind.last, rewind.checkpoints)
    lost = find_lost_commits(location, head_id, rewind.last, rewind.newest)
    where = location.file("_tseries", "lost")
    if not request.dry_run:
        numbers = [commit.number for commit in lost if commit.number is not None]
        highest = max([rewind.newest, *numbers]) if lost else -1
        with lock_commits(location):
            where = carry_out_rewind(location, rewind, lost, highest)
    then = f"The log ends with entry {rewind.last} now" if lost else "The log is read without it"
    what = Finding(
        rewind.torn[0].kind,
        "; ".join(finding.problem for finding in rewind.torn),
        path=rewind.torn[0].path,
        mended=f"{then}; what there is of it was moved to '{where}'",
    )
    gone = tuple(sentence for commit in lost for sentence in describe_lost_commit(commit))
    return RepairResult(mended=(what,), lost=gone, left=left)


def _give_up_advice(location: Location, finding: Finding) -> Finding:
    """Return `finding` with its next step: a copy of the store, or giving up whole commits."""
    step = (
        "put it back from a copy of the store, or give up its commit and all that followed with: "
        f"python -m pyspark_tseries repair --give-up {location.root}"
    )
    return replace(finding, accepts=f"the {finding.kind} as it was written", next_step=step)


def _repair_foreign_changes(location: Location, request: RepairRequest) -> RepairResult:
    """Undo changes of rows by other tools; accept unknown changes if the store is sound."""
    store = Store.open_damaged(location)
    revert, gone = plan_revert(store)
    if revert is not None:
        return _revert_foreign_changes(store, revert, request)
    if gone is None:
        return RepairResult()
    unknown = Finding.of(unknown_changes_error(location, gone, store.version()))
    if any(finding.kind != unknown.kind for finding in verify(location)):
        return RepairResult(left=(unknown,))
    if not request.dry_run:
        store.log.mark_checked()
        replace_index(store, lambda head_id, _: _advance_head(store, head_id), timed=False)
    accepted = "All that can be checked is sound; values cannot"
    return RepairResult(mended=(replace(unknown, mended=accepted),))


def _revert_foreign_changes(store: Store, revert: Revert, request: RepairRequest) -> RepairResult:
    change = _describe_change(store, revert)
    if revert.gone:
        files = ", ".join(f"'{path}'" for path in revert.gone)
        problem = (
            f"{change.problem}. The files that it took are gone: {files} were removed meanwhile, "
            "as VACUUM does"
        )
        step = "put them back from a copy of the store"
        return RepairResult(left=(replace(change, problem=problem, next_step=step),))
    aside = os.path.join("_tseries", "lost", f"{store.version() + 1:020d}")
    kept = [(path, f"{aside}/{path}") for path, _ in revert.removed if is_inside_store(path)]
    if not request.dry_run:
        revert_changes(store, revert, kept)
    where = store.location.file(aside)
    lost = tuple(
        f"what another tool has written to '{path}'; a copy is in '{where}'" for path, _ in kept
    )
    return RepairResult(mended=(replace(change, mended="It is undone"),), lost=lost)


def _describe_change(store: Store, revert: Revert) -> Finding:
    change = revert.change
    if change is None:
        problem = f"the log of the store '{store.root}' names files outside of it"
        return Finding("outside file", problem)
    first, last = change.first, change.last.version
    upto = f" to {last}" if last > first.version else ""
    problem = (
        f"versions {first.version}{upto} of the log: a {first.operation or 'commit'} by "
        f"'{first.engine}' changed rows"
    )
    return Finding("foreign change", problem)


def _advance_head(store: Store, head_id: int | None, commit: int | None = None) -> SeriesIndex:
    """Return the current head as the head of another commit."""
    head = store.index()
    metadata = next_metadata(head, head_id, now_us=now_us(), rows=0)
    number = metadata.commit if commit is None else commit
    return replace(head, metadata=replace(metadata, commit=number))


def _repair_head(location: Location, request: RepairRequest) -> RepairResult:
    """Rebuild an unreadable head from the events."""
    store = Store.open_damaged(location)
    try:
        store.index()
    except UnusableStore as error:
        lost = tuple(_describe_lost_head(recover_head(store)))
        if not request.dry_run:
            try:
                rebuild(location, principal=request.principal)
            except UnusableStore as missing:
                return RepairResult(left=(_describe_left_head(location, error, missing),))
        rebuilt = replace(Finding.of(error), mended="It is rebuilt from the events")
        return RepairResult(mended=(rebuilt,), lost=lost)
    return RepairResult()


def _describe_left_head(location: Location, head: UnusableStore, file: UnusableStore) -> Finding:
    return replace(
        Finding.of(head),
        problem=f"{head.problem}, and it cannot be rebuilt: {file.problem}",
        accepts="the files as they were written",
        next_step="copy the store again or put the files back; or give up the first commit without "
        "its files and all that followed with: python -m pyspark_tseries repair --give-up "
        f"{location.root}",
    )


def _describe_lost_head(recovered: RecoveredHead) -> Iterator[str]:
    """Describe the recovered state that no event records, so it is older than the lost head."""
    metadata, known = recovered.metadata, recovered.head.metadata.commit
    if not recovered.current:
        yield (
            "what only the head recorded: the counts of dropped and adjusted rows, a policy, and "
            f"a changed retained range, are {_describe_age(metadata.commit)}"
        )
    if metadata.retained_since is not None and metadata.retained_since > known:
        yield (
            "which events the changed retained range had put out of range: those that the range "
            f"'{metadata.retained}' lets in are back"
        )


def _describe_age(commit: int) -> str:
    if commit < 0:
        return "those of the store's creation, since no other head can be read"
    return f"as they were with commit {commit}"


def _raise_commit_number(location: Location, request: RepairRequest) -> RepairResult:
    """Skip the numbers of lost commits: subscribers may have seen them."""
    highest = find_max_lost_commit(location) if location.is_local else -1
    store = Store.open_damaged(location)
    if request.dry_run or store.index().metadata.commit >= highest:
        return RepairResult()

    replace_index(store, lambda head_id, _: _advance_head(store, head_id, highest), timed=False)
    return RepairResult()


def _repair_commit_times(location: Location, request: RepairRequest) -> RepairResult:
    """Correct the times of commits in the future; accept a clock after a long pause."""
    store = Store.open_damaged(location)
    try:
        us = store.read_clock()
    except WrongClock as error:
        us, last_us, wrong = now_us(), store.metadata().commit_us, Finding.of(error)
    else:
        return RepairResult()
    if last_us <= us:
        if not request.dry_run:
            replace_index(store, lambda head_id, _: _advance_head(store, head_id), timed=False)
        accepted = replace(wrong, mended="That clock is assumed to be right")
        return RepairResult(mended=(accepted,))
    found = find_future_commits(store, max(us, location.clock_us() or us) + MAX_CLOCK_SKEW_US, us)
    if not request.dry_run:
        correct_future_commits(store, found)
    return RepairResult(mended=(replace(wrong, mended=_describe_correction(found)),))


def _describe_correction(found: FutureCommits) -> str:
    times = found.change.commit_us
    if not times:
        return "No event is of such a commit; the store's time is set back"
    first, last = min(times), max(times)
    events, series = found.change.events.num_rows, found.change.events["series"].unique()
    return (
        f"The commits {first} to {last} are now of {format_instant(times[first])} to "
        f"{format_instant(times[last])}, and so are {events} events of {len(series)} series that "
        "had taken their times; times that were given stay"
    )


def _repair_bounds(location: Location, request: RepairRequest) -> RepairResult:
    """Correct the bounds that the log records of files."""
    store = Store.open_damaged(location)
    found = find_wrong_bounds(store)
    if found and not request.dry_run:
        correct_bounds(store, {file: rows for file, (_, rows) in found.items()}, now_us())
    mended = (replace(wrong, mended="The log is corrected") for wrong, _ in found.values())
    return RepairResult(mended=tuple(mended))


REPAIR_STEPS: Final[dict[RepairStep, tuple[str, ...]]] = {
    _repair_log_entries: ("log entry",),
    _repair_torn_commits: ("log entry", "checkpoint", "file"),
    _repair_foreign_changes: ("foreign change", "unknown changes", "outside file"),
    _repair_bounds: ("bounds",),
    _repair_head: ("head",),
    _raise_commit_number: (),
    _repair_commit_times: ("clock",),
}
"""The steps in order, each with the kinds of `DAMAGES` that it repairs."""
