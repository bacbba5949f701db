"""Prepare a batch of rows as one commit: number its rows, write its files (semantics 16.5, 16.7).

The rows are in memory, or in files that tasks with many rows have written (`task_output`). Tasks
with a series in common form a group. If a group is one task with a file that it numbered for this
very commit, the commit publishes the file unchanged. It numbers and writes the rows of all other
groups, in memory or by merging sorted files. Edits come last, all in memory at once. The files are
not part of the store until a Delta commit names them.

For each query and application, the store keeps the number of its last batch and a digest of that
batch's rows (`write/rows.py`), as transactions of its Delta log.

Edits are checked against their originals (semantics 18). An edit is an ordinary event at the end of
its series that also carries sequence, timestamp and author of the original it overrides. As in
`numbering`, nothing is kept between attempts: after a lost race the edits are checked again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.policies import Action
from pyspark_timestream.core.processes import lazy
from pyspark_tseries.errors import ConditionFailed, IncompatibleValue, NoSuchEvent
from pyspark_tseries.model.arrays import (
    NEVER_US,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
    encode_values,
    expand_ranges,
    find_number_runs,
)
from pyspark_tseries.model.columns import (
    ERASURE_FIELD,
    EVENT_FIELDS,
    INSTANT,
    fits,
    type_name,
    widen_rows,
)
from pyspark_tseries.model.commits import CommitMetadata, CtiRecord
from pyspark_tseries.model.properties import AccessCheck, StoreSettings
from pyspark_tseries.model.ranges import UNLIMITED, RetainedRange, min_retained
from pyspark_tseries.model.series_index import (
    SeriesIndex,
    advance_index,
    make_change,
    next_metadata,
)
from pyspark_tseries.options import LEAVE_OUT_POLICIES, STORE_POLICIES, name_lenient
from pyspark_tseries.storage.data_files import DataFile, WrittenFile, to_data_file, write_events
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import RowFilter, base_fields, read_rows
from pyspark_tseries.storage.snapshot import Snapshot, head_path, write_head
from pyspark_tseries.write.numbering import (
    Counts,
    FutureLimit,
    NumberedRows,
    WriteResult,
    WriteRules,
    add_counts,
    build_events,
    count_such,
    lookup_after,
    record_cti,
    split_edits,
    sum_results,
    write_numbered,
    write_sorted,
)
from pyspark_tseries.write.rows import EDIT_OF, STAGED_NAMES
from pyspark_tseries.write.task_output import (
    DEFAULT_LIMITS,
    OptimisticNumber,
    SpillLimits,
    SpillSorter,
    StagedRows,
    TaskOutput,
    TempPaths,
    merge_sorted,
    read_chunk,
    read_staged_task,
    reduce_chunks,
)

_REASON_ABSENT: Final = "the series has no such event"
_REASON_ERASED: Final = "that event was erased"
_REASON_HIDDEN: Final = "that event is itself an edit, or was discarded by the retained range"


@dataclass(frozen=True, slots=True)
class EditTargets:
    """The originals that a batch's edits name, in the order of the batch.

    Attributes:
        names: the distinct series, sorted.
        codes: the position in `names` of each edit's series.
        sequence: the sequence of the original that each edit names.
        us: the original's timestamp, NEVER_US if there is no original.
        author: the original's author, null if there is no original.
        erased: flags of the originals that were erased.
    """

    names: pa.Array
    codes: Int64Array
    sequence: Int64Array
    us: Int64Array
    author: pa.Array
    erased: BoolArray


def number_edits(
    targets: EditTargets,
    index: SeriesIndex,
    appended: pa.Table,
    retained: RetainedRange,
    *,
    missing_original: str,
    now_us: int,
) -> tuple[NumberedRows, list[pa.Array]]:
    """Check and number a batch's edits, which follow its appends in the order of the input.

    An original may be edited if it is inside `retained` before the batch (by `index`), or in the
    batch itself. An edit gets the timestamp `now_us`, or its series' newest if that is later.

    Example: three edits name original 3 of series b, a missing 9 of a, and 1 of b. If b's last
    sequence, after the appends of the batch, is 6:

        by edit: codes [1, 0, 1], is_editable [True, False, True], and of those left, order [0, 2]
        by series with an edit left: present [1], names [b], sizes [2]

    So b gets the sequences 7 and 8, both at the same time, and a gets none.

    Returns:
        The edits as events: `order` is the position among the batch's edits; `change` also covers
        the series of the appends; `counts.dropped` is the number of edits without an original. And
        the columns `original_sequence`, `original_timestamp`, `original_author`.
    """
    # The index before the batch decides what may be edited; sequences follow its appends.
    is_editable = _flag_editable(targets, index, retained)
    before = lookup_after(targets.names, index, appended)
    missing = np.flatnonzero(~is_editable)
    example = _describe_missing(targets, int(missing[0]), before) if len(missing) else None
    if example and STORE_POLICIES[missing_original] is Action.FAIL:
        raise _missing_original_error(example, len(missing))
    order = np.flatnonzero(is_editable)
    # The edits of a series stay in the order of the input.
    order = order[np.argsort(targets.codes[order], kind="stable")]
    first_rows, sizes = find_number_runs(targets.codes[order])
    # Only the series with an edit that is left.
    present = targets.codes[order[first_rows]]
    names = targets.names.take(pa.array(present))
    before = {name: column[present] for name, column in before.items()}
    last_sequence = before["last_sequence"]
    us = np.maximum(before["newest_us"], now_us)
    after = {
        "last_sequence": last_sequence + sizes,
        "newest_us": us,
        "edits": before["edits"] + sizes,
    }
    events = NumberedRows(
        order=order,
        names=names,
        codes=np.repeat(np.arange(len(present)), sizes),
        sequence=expand_ranges(last_sequence + 1, sizes),
        timestamp_us=np.repeat(us, sizes),
        change=_merge_changes(appended, make_change(names, before | after)),
        counts=Counts(dropped=len(missing), example=example),
    )
    return events, _original_columns(targets, order)


def _flag_editable(targets: EditTargets, index: SeriesIndex, retained: RetainedRange) -> BoolArray:
    states = index.lookup_all(targets.names.to_pylist())
    codes = targets.codes
    last_sequence = states["last_sequence"]
    low, low_us = min_retained(retained, last_sequence, states["original_us"], states)
    is_editable = targets.us != NEVER_US
    is_editable &= ~targets.erased
    visible = (targets.sequence >= low[codes]) & (targets.us >= low_us[codes])
    # An original above the last sequence is one of this batch.
    flags: BoolArray = is_editable & (visible | (targets.sequence > last_sequence[codes]))
    return flags


def _describe_missing(
    targets: EditTargets, row: int, before: dict[str, Int64Array]
) -> dict[str, Any]:
    code, sequence = int(targets.codes[row]), int(targets.sequence[row])
    last_sequence = int(before["last_sequence"][code])
    hidden = _REASON_HIDDEN if 0 <= sequence <= last_sequence else _REASON_ABSENT
    return {
        "series": targets.names[code].as_py(),
        "edit_of": sequence,
        "last_sequence": None if last_sequence == NO_SEQUENCE else last_sequence,
        "reason": _REASON_ERASED if targets.erased[row] else hidden,
    }


def _missing_original_error(example: dict[str, Any], count: int) -> NoSuchEvent:
    last_sequence = example["last_sequence"]
    newest = (
        "it is empty" if last_sequence is None else f"its newest event is sequence {last_sequence}"
    )
    step = "name the original_sequence where the event is an edit"
    if example["reason"] == _REASON_ERASED:
        step = "append a new event"
    return NoSuchEvent(
        f"series '{example['series']}': there is no original {example['edit_of']} to edit, "
        f"{example['reason']}; {newest} ({count_such(count, 'edit')})",
        "the sequence of an original inside the retained range that was not erased",
        f"{step}, or set missingOriginal to {name_lenient(LEAVE_OUT_POLICIES)}. Nothing of the "
        "batch is stored",
    )


def _merge_changes(appended: pa.Table, edited: pa.Table) -> pa.Table:
    is_not_edited = pc.invert(pc.is_in(appended["series"], edited["series"].combine_chunks()))
    return pa.concat_tables([appended.filter(is_not_edited), edited]).combine_chunks()


def _original_columns(targets: EditTargets, order: Int64Array) -> list[pa.Array]:
    rows = pa.array(order)
    stamps = pa.array(targets.us[order]).cast(INSTANT)
    return [pa.array(targets.sequence[order]), stamps, targets.author.take(rows)]


EVENT_NAMES: Final = tuple(field.name for field in (*EVENT_FIELDS, ERASURE_FIELD))


def find_originals(
    location: Location, files: Iterable[DataFile], series: pa.Array, sequence: pa.Array
) -> EditTargets:
    """Return the originals in `files` that edits name by `series` and `sequence`, without nulls.

    Open only the files, and read only the row groups, that may have one by their bounds.
    """
    names, codes = encode_values(series)
    sequences = sequence.to_numpy(zero_copy_only=False)
    distinct = names.to_pylist()
    bounds = (int(sequences.min()), int(sequences.max()))
    data = [file for file in files if file.kind == "event"]
    row_filter = RowFilter(distinct, sequences=bounds)
    is_named = pc.field("sequence").isin(pa.array(np.unique(sequences)))
    originals = read_rows(location, data, base_fields(EVENT_NAMES), row_filter, is_named)
    edits = pa.table({"series": series, "sequence": sequence, "row": np.arange(len(codes))})
    # A join returns its rows in any order.
    joined = edits.join(originals, ["series", "sequence"], join_type="left outer").sort_by("row")
    us = joined["timestamp"].cast(pa.int64()).fill_null(NEVER_US).to_numpy()
    author = joined["author"].combine_chunks().cast(pa.string())
    erased = joined[ERASURE_FIELD.name].is_valid().to_numpy()
    return EditTargets(
        names=names, codes=codes, sequence=sequences, us=us, author=author, erased=erased
    )


_DIGEST_PREFIX: Final = "tseries:rows:"


def digest_transaction(transaction: str) -> str:
    """Return the transaction with the digest of the last batch under `transaction`."""
    return _DIGEST_PREFIX + transaction.removeprefix("tseries:")


def batch_transactions(token: tuple[str, int] | None, digest: int | None) -> dict[str, int]:
    """Return the transactions of a batch: its number, and the digest of its rows if known."""
    if token is None:
        return {}
    return {
        token[0]: token[1],
        **({} if digest is None else {digest_transaction(token[0]): digest}),
    }


class Appendable(ABC):
    """Rows that a store can append; `Batch` describes the members."""

    __slots__ = ()

    @property
    def token(self) -> tuple[str, int] | None:
        """The transaction and number of the batch, so that it is committed only once."""
        return None

    @property
    def digest(self) -> int | None:
        """The digest of the rows, to recognize a repeated batch; None if it was not computed."""
        return None

    @property
    def needs_snapshot(self) -> bool:
        """Whether `prepare` needs `CommitContext.snapshot`."""
        return False

    @property
    def is_slow(self) -> bool:
        """Whether `prepare` needs a heartbeat, so that other clients of the host go on waiting."""
        return False

    @abstractmethod
    def prepare(self, context: "CommitContext") -> "PreparedCommit":
        """Write the files of a commit, which stay invisible until it is in the log."""


class Revision(Appendable):
    """An `Appendable` that is made from the events of the store; reading them takes time."""

    __slots__ = ()

    @property
    def needs_snapshot(self) -> bool:
        """Whether it needs the snapshot: yes, because `revise` reads events."""
        return True

    @property
    def is_slow(self) -> bool:
        """Whether it needs a heartbeat: yes, because that takes time."""
        return True

    def prepare(self, context: "CommitContext") -> "PreparedCommit":
        """Call `revise` with the snapshot of the context."""
        assert context.snapshot is not None
        return self.revise(context, context.snapshot)

    @abstractmethod
    def revise(self, context: "CommitContext", snapshot: Snapshot) -> "PreparedCommit":
        """Write the files of a commit on top of `snapshot`, as `prepare` does."""


class StoreCondition(Protocol):
    """A condition that a store must meet when a batch is committed."""

    def check(self, context: "CommitContext") -> None:
        """Raise an error if it does not hold; then nothing of the batch is stored."""


@dataclass(frozen=True, slots=True)
class SeriesCondition:
    """The state that a series must have when a batch is committed (semantics 35.2).

    Attributes:
        series: its name.
        sequence: its highest sequence; -1 if it must have no event.
        shown: what decides, without a new event, which events a query shows; None for any.
    """

    series: str
    sequence: int
    shown: tuple[object, ...] | None = None

    @staticmethod
    def as_read(series: str, index: SeriesIndex, retained: RetainedRange) -> "SeriesCondition":
        """Return the condition that a series is as in `index`, and a query shows the same of it."""
        floors = index.floors([series])
        shown = (index.metadata.erasure, retained, *(int(floor[0]) for floor in floors.values()))
        return SeriesCondition(series, index.lookup_one(series)["last_sequence"], shown)

    def check(self, context: "CommitContext") -> None:
        """Raise ConditionFailed if the series is in another state."""
        self.check_series(context.index)
        now = SeriesCondition.as_read(self.series, context.index, context.settings.retained)
        if self.shown not in (None, now.shown):
            raise condition_error(
                "values were erased, or the retained range was set, since the newest event of "
                f"series '{self.series}' was read",
                self.sequence,
            )

    def check_series(self, index: SeriesIndex) -> None:
        """Raise ConditionFailed if the series has another highest sequence in `index`."""
        last_sequence = index.lookup_one(self.series)["last_sequence"]
        if last_sequence != self.sequence:
            raise condition_error(
                f"the last event of series '{self.series}' has sequence {last_sequence}, and "
                f"{self.sequence} is expected",
                last_sequence,
            )


def condition_error(problem: str, last_sequence: int) -> ConditionFailed:
    """Return the error of a condition that a series with this `last_sequence` does not meet."""
    error = ConditionFailed(
        problem, next_step="read the series again, and decide again. Nothing is stored"
    )
    error.sequence = last_sequence
    return error


@dataclass(frozen=True, slots=True)
class Batch(Appendable):
    """Rows to append atomically.

    Attributes:
        rows: the rows in memory, with the columns `RowPlan.staged`, one chunk each; no rows if
            `tasks` have them.
        out_of_order: the policy for late rows, of `STORE_POLICIES`.
        author: the author of rows that name none.
        token: (transaction, number): the store skips the batch if its last number of the
            transaction is this one, and refuses it if that is higher; None always appends.
        principal: who appends; None stands for the author.
        missing_original: the policy for edits without an original, of `LEAVE_OUT_POLICIES`.
        clock: the source of missing timestamps: `wall`, the time of the commit, or `event`, the
            newest timestamp of the series.
        cti_us: the CTI of the writer once the batch is stored; None if it gives none.
        registers_writer: True if this batch registers its query as a writer, even if it
            appends nothing.
        is_correction: True if its originals may lie before the store's CTI; then the batch makes
            no one a writer.
        digest: the digest of its rows, from `digest_rows`; None skips the comparison with the rows
            that the store has for the same token.
        future: the limit of how far a timestamp may be ahead of the commit.
        tasks: the tasks that have written the rows, in the order of the input; the caller removes
            their files once the batch is committed or given up.
        limits: the bytes of their rows that are sorted in memory at once.
        condition: what must hold of the store; None for anything.
    """

    rows: pa.Table
    out_of_order: str
    author: str
    token: tuple[str, int] | None = None
    principal: str | None = None
    missing_original: str = "fail"
    clock: str = "wall"
    cti_us: int | None = None
    registers_writer: bool = False
    is_correction: bool = False
    digest: int | None = None
    future: FutureLimit = FutureLimit()
    tasks: tuple[TaskOutput, ...] = ()
    limits: SpillLimits = DEFAULT_LIMITS
    condition: StoreCondition | None = None

    @property
    def has_edits(self) -> bool:
        """Whether a row is an edit."""
        column = self.rows[EDIT_OF.name]
        return column.null_count < len(column) or any(task.has_edits for task in self.tasks)

    @property
    def needs_snapshot(self) -> bool:
        """Whether a row is an edit, which names an original in the store."""
        return self.has_edits

    @property
    def is_slow(self) -> bool:
        """Whether the commit may have to rewrite the files of tasks."""
        return bool(self.tasks)

    def prepare(self, context: "CommitContext") -> "PreparedCommit":
        """Number the rows on top of the context's index and write the files of the commit.

        After an error, none of these files remains.

        Raises:
            UpdateFailed: a row may not be added.
            NoSuchEvent: an edit names no original that may be edited.
            PermissionDenied: the policy does not allow the batch.
            ConditionFailed: the condition does not hold.
        """
        if self.condition is not None:
            # The commit builds on this very state, or fails: nothing comes in between (35.2).
            self.condition.check(context)
        commit = _Commit(self, context)
        try:
            commit.check_access()
            return commit.write()
        except BaseException:
            context.location.discard(commit.paths)
            raise
        finally:
            commit.discard_temporary()

    def number_appends(self, context: "CommitContext") -> NumberedRows:
        """Number the rows as `prepare` does, with its errors; they are in memory, without edits."""
        commit = _Commit(self, context)
        commit.check_access()
        return commit.number(self.rows)


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The state of a store before a commit.

    Attributes:
        location: the location of the store.
        head_id: the id of the head file of `index`; None before the first commit.
        index: the series index after the last commit.
        now_us: the wall clock; the commit's time unless the last commit's is later.
        new_id: a unique id for the new head file.
        settings: the store's settings.
        snapshot: the store as of `index`; None unless the batch needs it.
        values: the value columns; None if the rows are known to fit them.
    """

    location: Location
    head_id: int | None
    index: SeriesIndex
    now_us: int
    new_id: int
    settings: StoreSettings = StoreSettings(UNLIMITED)
    snapshot: Snapshot | None = None
    values: Sequence[pa.Field] | None = None


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """Files written for a commit.

    Attributes:
        head_id: the id of the new head.
        index: the series index after the commit.
        written: the files of events and edits; empty if all rows were dropped.
        paths: the full paths of all files, to remove if the commit fails.
        numbered: for rows in memory, the numbered appends, then the edits if there are any.
        replaced: files of the store; the commit moves their events to `written`.
        beside: the full paths of other files that the commit depends on.
        columns: new types of value columns, by name, which `written` have.
    """

    head_id: int
    index: SeriesIndex
    written: list[WrittenFile]
    paths: list[str]
    numbered: tuple[NumberedRows, ...] = ()
    replaced: tuple[DataFile, ...] = ()
    beside: tuple[str, ...] = ()
    columns: Mapping[str, pa.DataType] | None = None


MAX_OPTIMISTIC_TIME_ERROR_US: Final = 60_000_000
"""An optimistic number's time may differ from the clock by this; `asOf` counts from that time."""


class _Commit:
    """One attempt to commit a batch.

    Attributes:
        paths: the full paths of the commit's files that were begun so far.
    """

    def __init__(self, batch: Batch, context: CommitContext) -> None:
        self._batch = batch
        self._context = context
        self._location = context.location
        self._index = context.index
        self.paths: list[str] = []
        self._numbered: list[NumberedRows] = []
        principal = batch.author if batch.principal is None else batch.principal
        self._access = AccessCheck(context.settings.policy, principal)
        self._has_current_types = self._check_types()
        in_memory = StagedRows(batch.rows.num_rows, table=batch.rows)
        self._outputs = batch.tasks or (TaskOutput(batch.rows.num_rows, 0, inline=in_memory),)
        self._groups = self._group_outputs()
        commit_us = max(context.now_us, context.index.metadata.commit_us)
        self._future = batch.future.make_rule(context.settings.retained, commit_us)
        # Each of these three depends on those before it.
        self._optimistic = self._confirm_optimistic()
        self._metadata = self._begin_metadata()
        assigned_us = self._metadata.commit_us if batch.clock == "wall" else NEVER_US
        self._rules = WriteRules(
            self._metadata, batch.author, batch.out_of_order, assigned_us, self._future
        )

    def _group_outputs(self) -> list[list[TaskOutput]]:
        if len(self._outputs) == 1:
            return [list(self._outputs)]
        return _group_by_series(self._outputs, [self._read_series(each) for each in self._outputs])

    def _begin_metadata(self) -> CommitMetadata:
        """Return the metadata of the commit, so far without rows and counts."""
        batch, context = self._batch, self._context
        now_us = context.now_us
        if self._optimistic is not None and any(map(self._is_published, self._groups)):
            now_us = self._optimistic.commit_us  # The published files have this time already.
        marks = batch_transactions(batch.token, batch.digest)
        return next_metadata(context.index, context.head_id, now_us=now_us, rows=0, marks=marks)

    def check_access(self) -> None:
        """Raise PermissionDenied if the policy does not allow the batch."""
        access = self._access
        if access.policy is None:
            return
        access.require("update", "add events")
        access.require_authors([self._batch.author])
        for output in self._outputs:
            for rows in (*self._read_appends(output), *self._read_edits(output)):
                access.require_authors(rows["author"].drop_null().unique().to_pylist())

    def write(self) -> PreparedCommit:
        """Write all files of the commit."""
        batch, context = self._batch, self._context
        results = [self._write_group(number, group) for number, group in enumerate(self._groups)]
        appended = sum_results(results)
        files = [result.file for result in results if result.file is not None]
        metadata = add_counts(self._metadata, appended.counts)
        change = appended.change
        appends = batch.registers_writer or bool(files)
        if context.snapshot is not None and batch.has_edits:
            edited, file = self._write_edits(context.snapshot, change, files)
            metadata = add_counts(metadata, edited.counts)
            change = edited.change
            files += [file] if file is not None else []
            self._numbered.append(edited)
        metadata = replace(metadata, rows=metadata.rows + change.num_rows)
        if not batch.is_correction:
            metadata = record_cti(metadata, batch.token, batch.cti_us, appends=appends)
        is_alone = len(self._numbered) == len(self._groups) == 1
        row = self._numbered[0].row if is_alone else None
        after, table = advance_index(self._index, change, metadata, row)
        self.paths.append(head_path(self._location, context.new_id))
        write_head(self._location, context.new_id, table)
        numbered = () if batch.tasks else tuple(self._numbered)
        return PreparedCommit(context.new_id, after, files, self.paths, numbered)

    def number(self, rows: pa.Table) -> NumberedRows:
        """Number appends that are in memory."""
        index = self._index
        if self._batch.is_correction:  # A correction may lie before the store's CTI.
            index = replace(index, metadata=replace(index.metadata, ctis=CtiRecord()))
        if rows.num_rows == 1:
            series, us = rows["series"][0].as_py(), rows["timestamp"][0].value
            before = index.lookup_one(series)
            event = self._rules.number_event(series, us, before, index.cti_us)
            if event is not None:
                return event
        series, stamps = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        return self._rules.number(series, stamps, index)

    @lazy
    def _temp_paths(self) -> TempPaths:
        return TempPaths(self._location, f"commit-{self._context.new_id:016x}")

    def discard_temporary(self) -> None:
        """Remove the files that were written only for sorting in this attempt."""
        if "_temp_paths" in vars(self):
            self._temp_paths.discard()

    def _path(self, kind: str, number: int) -> str:
        suffix = f".{number:04d}" if self._batch.tasks else ""
        name = f"{self._metadata.commit:010d}-{self._context.new_id:016x}{suffix}.parquet"
        path = f"kind={kind}/{name}"
        self.paths.append(self._location.file(path))
        return path

    def _confirm_optimistic(self) -> OptimisticNumber | None:
        """Return the tasks' optimistic number if this commit has it; else None."""
        context = self._context
        last_commit = self._index.metadata
        numbers = (task.optimistic for task in self._batch.tasks if task.optimistic is not None)
        optimistic = next(numbers, None)
        if optimistic is None:
            return None
        if (optimistic.head_id, optimistic.commit) != (context.head_id, last_commit.commit + 1):
            # A competing commit was first, and its events may have these sequences.
            return None
        # Use the absolute value, because the clock may have been set back since the tasks began.
        error_us = abs(max(context.now_us, last_commit.commit_us) - optimistic.commit_us)
        if error_us > MAX_OPTIMISTIC_TIME_ERROR_US or optimistic.commit_us < last_commit.commit_us:
            return None
        return optimistic

    def _is_published(self, group: Sequence[TaskOutput]) -> bool:
        """Return whether the commit publishes a group, one task's file, unchanged."""
        output = group[0]
        future = self._future
        if len(group) > 1 or output.file is None or self._optimistic != output.optimistic:
            # Its events are merged with those of other tasks, or numbered here.
            return False
        if not self._has_current_types:
            return False  # Its columns have the narrower types.
        if self._optimistic is None or future is None:
            return self._optimistic is not None
        return to_data_file(output.file, 0).max_us <= future.last_us

    def _write_group(self, number: int, group: Sequence[TaskOutput]) -> WriteResult:
        path = self._path("event", number)
        schema = self._batch.rows.schema
        if self._is_published(group):
            file, series = group[0].file, group[0].series
            assert file is not None
            assert series is not None
            # The commit needs a name of its own: the caller removes the task's files afterwards.
            self._location.copy(self._location.file(file.path), self._location.file(path))
            change = read_staged_task(self._location, series)
            return WriteResult(replace(file, path=path), change, Counts())
        memory = self._batch.limits.memory
        if sum(output.size for output in group) <= memory:
            if not self._batch.tasks and not self._batch.has_edits:
                rows = self._batch.rows  # There is nothing to split off, so nothing to copy.
            else:
                batches = [appends for output in group for appends in self._read_appends(output)]
                rows = pa.Table.from_batches(batches, schema).combine_chunks()
            rows = self._widen(rows)
            events = self.number(rows)
            self._numbered.append(events)
            return write_numbered(self._location, path, rows, events, self._rules)
        chunks = reduce_chunks(
            self._location, self._temp_paths, self._sort_chunks(group), schema, memory
        )
        tables = merge_sorted([read_chunk(self._location, chunk, schema) for chunk in chunks])
        wide = map(self._widen, tables)
        return write_sorted(self._location, path, wide, self._index, self._rules)

    def _check_types(self) -> bool:
        """Return False if the store's columns were widened after the rows were staged.

        Raises:
            IncompatibleValue: the store lacks one of the rows' columns, or has a narrower type.
        """
        if self._context.values is None:
            return True
        types = {field.name.lower(): field.type for field in self._context.values}
        has_current_types = True
        for field in self._batch.rows.schema:
            stored = types.get(field.name.lower())
            if field.name in STAGED_NAMES or stored == field.type:
                continue
            if stored is None or not fits(field.type, stored):
                raise IncompatibleValue(
                    f"the rows have a column '{field.name}' of type {type_name(field.type)}, and "
                    "the store has none that holds it: an older state of the store was put back, "
                    "or another store",
                    ", ".join(f"'{f.name}' {type_name(f.type)}" for f in self._context.values)
                    or "no value columns",
                    "make the rows again for these columns, or add or widen the column first. "
                    "Nothing of the batch is stored",
                )
            has_current_types = False
        return has_current_types

    def _widen(self, rows: pa.Table) -> pa.Table:
        return rows if self._has_current_types else widen_rows(rows, self._context.values or ())

    def _sort_chunks(self, group: Sequence[TaskOutput]) -> list[str]:
        """Return the sorted chunks of some tasks, in the order of the input."""
        chunks: list[str] = []
        sorter: SpillSorter | None = None
        for output in group:
            if output.inline is None and sorter is not None:
                chunks = chunks + sorter.spill()
                sorter = None
            chunks += output.chunks
            for rows in self._inline_batches(output):
                sorter = sorter or SpillSorter(
                    self._location, self._temp_paths, self._batch.limits.memory
                )
                sorter.add(split_edits(rows)[0])
        return chunks + (sorter.spill() if sorter is not None else [])

    def _write_edits(
        self, snapshot: Snapshot, appended: pa.Table, new_files: Sequence[WrittenFile]
    ) -> tuple[NumberedRows, WrittenFile | None]:
        batch, index = self._batch, self._index
        rows = pa.concat_tables(
            [edits for output in self._outputs for edits in self._read_edits(output)]
        ).combine_chunks()
        series, sequence = (rows[name].combine_chunks() for name in ("series", EDIT_OF.name))
        data = [*snapshot.files, *(to_data_file(file, self._metadata.commit) for file in new_files)]
        targets = find_originals(self._location, data, series, sequence)
        if self._access.policy is not None:
            self._access.require_edits(targets.author.drop_null().unique().to_pylist())
        edited, originals = number_edits(
            targets,
            index,
            appended,
            self._context.settings.retained,
            missing_original=batch.missing_original,
            now_us=self._rules.assigned_us,
        )
        if not len(edited.order):
            return edited, None
        wide = self._widen(rows)
        table = build_events(wide, edited, self._metadata, batch.author, originals)
        return edited, write_events(self._location, self._path("edit", 0), table)

    def _read_series(self, output: TaskOutput) -> pa.Array:
        if output.series is not None:
            return read_staged_task(self._location, output.series)["series"].unique()
        names_of_batches = [
            split_edits(rows)[0]["series"].unique() for rows in self._inline_batches(output)
        ]
        return pa.chunked_array(names_of_batches, pa.string()).unique()

    def _read_appends(self, output: TaskOutput) -> Iterator[pa.RecordBatch]:
        yield from (split_edits(rows)[0] for rows in self._inline_batches(output))
        for chunk in output.chunks:
            yield from read_chunk(self._location, chunk, self._batch.rows.schema)

    def _read_edits(self, output: TaskOutput) -> Iterator[pa.Table]:
        for rows in self._inline_batches(output):
            edits = split_edits(rows)[1]
            if edits is not None:
                yield pa.Table.from_batches([edits])
        if output.edits is not None:
            yield read_staged_task(self._location, output.edits)

    def _inline_batches(self, output: TaskOutput) -> Iterator[pa.RecordBatch]:
        if output.inline is not None:
            yield from read_staged_task(self._location, output.inline).to_batches()


def _group_by_series(
    outputs: Sequence[TaskOutput], series: Sequence[pa.Array]
) -> list[list[TaskOutput]]:
    """Group tasks so that no two groups share a series; all tasks with few rows share a group.

    So each group is numbered separately, and has its own file. Groups, and the tasks in each, are
    in the order of the input.
    """
    root = list(range(len(outputs)))

    def find(task: int) -> int:
        while root[task] != task:
            task = root[task]
        return task

    def join(task_a: int, task_b: int) -> None:
        low, high = sorted((find(task_a), find(task_b)))
        root[high] = low

    small_tasks = [task for task, output in enumerate(outputs) if output.inline is not None]
    for task in small_tasks:
        join(small_tasks[0], task)
    for task_a, task_b in _overlapping_pairs(series):
        join(task_a, task_b)
    groups: dict[int, list[TaskOutput]] = {}
    for task, output in enumerate(outputs):
        groups.setdefault(find(task), []).append(output)
    return list(groups.values())


def _overlapping_pairs(series: Sequence[pa.Array]) -> list[tuple[int, int]]:
    """Return enough pairs of lists to connect all lists that share a name.

    No list repeats a name.
    """
    # Encode the lists separately, with one dictionary: one array of all names could be too large.
    encoded_lists = pa.chunked_array(list(series), pa.string()).dictionary_encode().chunks
    codes = np.concatenate(
        [np.empty(0, np.int32), *(encoded.indices.to_numpy() for encoded in encoded_lists)]
    )
    last_list = np.full(codes.max(initial=-1) + 1, -1)  # The last list so far that has each name.
    pairs: list[tuple[int, int]] = []
    ends = np.cumsum([len(names) for names in series])
    for list_number, list_codes in enumerate(np.split(codes, ends[:-1])):
        earlier_lists = np.flatnonzero(np.bincount(last_list[list_codes] + 1)[1:])
        pairs += [(earlier_list, list_number) for earlier_list in earlier_lists.tolist()]
        last_list[list_codes] = list_number
    return pairs
