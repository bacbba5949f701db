"""The commit of a batch that tasks have written: publish files that fit, rewrite the others.

A task with many rows has numbered them for the commit that the driver expected, and written them
as a file of the store. The commit publishes such a file unchanged where two conditions hold: the
expected commit is this one, and no other task has rows of the file's series. Otherwise tasks with
a series in common form a group, whose sorted rows are merged, numbered again and written part by
part, by the rules of a small batch. The few rows of small tasks form one group.

Edits come last. They are the only rows that are in memory all at once.

The rules are semantics 16.7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.policy import AccessCheck
from pyspark_tseries.model.series_index import advance_index, next_metadata
from pyspark_tseries.storage.data_files import WrittenFile, to_data_file, write_events
from pyspark_tseries.storage.head_files import write_head
from pyspark_tseries.write.batch import CommitContext, EditContext, PreparedCommit, make_marks
from pyspark_tseries.write.edits import find_originals, make_targets, number_edits
from pyspark_tseries.write.event_writer import (
    WriteResult,
    WriteRules,
    sum_results,
    write_numbered,
    write_sorted,
)
from pyspark_tseries.write.numbering import FutureLimit, NumberedRows, add_counts, record_cti
from pyspark_tseries.write.rows import EDIT_OF, build_events
from pyspark_tseries.write.spill import SpillSorter, TempPaths, merge_sorted, read_run, reduce_runs
from pyspark_tseries.write.task_output import (
    DEFAULT_LIMITS,
    ExpectedCommit,
    SpillLimits,
    TaskOutput,
    read_staged_task,
    split_edits,
)

MAX_EXPECTED_TIME_ERROR_US: Final = 60_000_000
"""How far the time of the expected commit may be from the clock; `asOf` counts from that time."""


@dataclass(frozen=True, slots=True)
class LargeBatch:
    """Rows to append atomically, written by tasks; other attributes are those of `Batch`.

    Attributes:
        outputs: of the tasks, in the order of the input; the caller removes their files once the
            batch is committed or given up.
        schema: the columns of `RowPlan.staged`, as the tasks knew them.
        unique_name: a unique name.
        limits: how much is sorted in memory at once.
    """

    outputs: tuple[TaskOutput, ...]
    schema: pa.Schema
    out_of_order: str
    author: str
    unique_name: str
    token: tuple[str, int] | None = None
    principal: str | None = None
    missing_original: str = "fail"
    clock: str = "wall"
    limits: SpillLimits = DEFAULT_LIMITS
    cti_us: int | None = None
    joins: bool = False
    digest: int | None = None
    future: FutureLimit = FutureLimit()

    @property
    def has_edits(self) -> bool:
        """True if a row is an edit."""
        return any(output.has_edits for output in self.outputs)

    @property
    def is_slow(self) -> bool:
        """Always: all files may have to be rewritten."""
        return True

    def prepare(self, context: CommitContext) -> PreparedCommit:
        """As `Batch.prepare`, with its errors, after which nothing that was written remains."""
        temp_paths = TempPaths(context.location, f"{self.unique_name}-{context.new_id:016x}")
        commit = LargeCommit(self, context, temp_paths)
        try:
            commit.check_access()
            return commit.write()
        except BaseException:
            context.location.remove(commit.paths)
            raise
        finally:
            temp_paths.discard()


class LargeCommit:
    """One attempt to commit a large batch.

    Attributes:
        paths: full paths of the files of the commit that were begun so far.
    """

    def __init__(self, batch: LargeBatch, context: CommitContext, temp_paths: TempPaths) -> None:
        self._batch, self._context, self._temp_paths = batch, context, temp_paths
        self._location, self._index = context.location, context.index
        principal = batch.author if batch.principal is None else batch.principal
        self._guard = AccessCheck(context.policy, principal)
        self.paths: list[str] = []
        self._groups = _group_by_series(
            batch.outputs, [self._series(output) for output in batch.outputs]
        )
        latest_us = max(context.now_us, self._index.metadata.commit_us)
        self._future = batch.future.rule(context.retained, latest_us)
        self._expected = self._confirm_expected()
        now_us = context.now_us
        if self._expected is not None and any(map(self._is_published, self._groups)):
            now_us = self._expected.commit_us
        self._metadata = next_metadata(
            self._index,
            context.head_id,
            now_us=now_us,
            rows=0,
            marks=make_marks(batch.token, batch.digest),
        )
        assigned_us = self._metadata.commit_us if batch.clock == "wall" else NEVER_US
        choices = batch.out_of_order, assigned_us, self._future
        self._rules = WriteRules(self._metadata, batch.author, *choices)

    def check_access(self) -> None:
        """Raise PermissionDenied where the policy does not allow the batch."""
        guard = self._guard
        if guard.policy is None:
            return
        guard.require("update", "add events")
        guard.require_authors([self._batch.author])
        for output in self._batch.outputs:
            for part in self._parts(output):
                guard.require_authors(part["author"].drop_null().unique().to_pylist())

    def write(self) -> PreparedCommit:
        """Write all files of the commit."""
        parts = [self._write_group(number, group) for number, group in enumerate(self._groups)]
        appended = sum_results(parts)
        written = [part.file for part in parts if part.file is not None]
        metadata, delta = add_counts(self._metadata, appended), appended.delta
        if self._context.edits is not None:
            edited, file = self._write_edits(self._context.edits, appended, written)
            metadata, delta = add_counts(metadata, edited), edited.delta
            written += [file] if file is not None else []
        metadata = replace(metadata, rows=metadata.rows + delta.num_rows)
        appends = self._batch.joins or any(file.kind == "event" for file in written)
        metadata = record_cti(metadata, self._batch.token, self._batch.cti_us, appends=appends)
        after, table = advance_index(self._index, delta, metadata)
        self.paths.append(write_head(self._location, self._context.new_id, table))
        return PreparedCommit(self._context.new_id, after, written, self.paths)

    def _path(self, kind: str, number: int) -> str:
        name = f"{self._metadata.commit:010d}-{self._context.new_id:016x}.{number:04d}.parquet"
        path = f"kind={kind}/{name}"
        self.paths.append(self._location.file(path))
        return path

    def _series(self, output: TaskOutput) -> pa.Array:
        if output.series is not None:
            return read_staged_task(self._location, output.series)["series"].unique()
        parts = [split_edits(part)[0]["series"].unique() for part in self._inline_batches(output)]
        return pa.chunked_array(parts, pa.string()).unique()

    def _inline_batches(self, output: TaskOutput) -> Iterator[pa.RecordBatch]:
        if output.inline is not None:
            yield from read_staged_task(self._location, output.inline).to_batches()

    def _parts(self, output: TaskOutput) -> Iterator[pa.RecordBatch | pa.Table]:
        """All rows of a task, in any order."""
        yield from self._appends(output)
        yield from self._edits(output)

    def _confirm_expected(self) -> ExpectedCommit | None:
        """The commit that the tasks expected, where this is it."""
        context, last = self._context, self._index.metadata
        given = (output.expected for output in self._batch.outputs if output.expected is not None)
        expected = next(given, None)
        if expected is None:
            return None
        if (expected.head_id, expected.commit) != (context.head_id, last.commit + 1):
            return None
        # Absolute, because the clock may have been set back since the tasks began.
        error_us = abs(max(context.now_us, last.commit_us) - expected.commit_us)
        if error_us > MAX_EXPECTED_TIME_ERROR_US or expected.commit_us < last.commit_us:
            return None
        return expected

    def _is_published(self, group: Sequence[TaskOutput]) -> bool:
        output = group[0]
        if len(group) > 1 or output.file is None or self._is_ahead(output.file):
            return False
        return self._expected is not None and output.expected == self._expected

    def _is_ahead(self, file: WrittenFile) -> bool:
        """True if some event of a task's file is too far ahead, and so none is published as is."""
        future = self._future
        if future is None:
            return False
        return to_data_file(file, 0).max_us > future.commit_us + future.allowed_us

    def _write_group(self, number: int, group: Sequence[TaskOutput]) -> WriteResult:
        path = self._path("event", number)
        if self._is_published(group):
            file, series = group[0].file, group[0].series
            assert file is not None
            assert series is not None
            self._location.copy(self._location.file(file.path), self._location.file(path))
            return WriteResult(replace(file, path=path), read_staged_task(self._location, series))
        if sum(output.size for output in group) <= self._batch.limits.memory:
            return self._write_group_in_memory(path, group)
        runs = reduce_runs(
            self._location,
            self._temp_paths,
            self._runs(group),
            self._batch.schema,
            self._batch.limits.memory,
        )
        tables = merge_sorted([read_run(self._location, run, self._batch.schema) for run in runs])
        return write_sorted(self._location, path, tables, self._index, self._rules)

    def _write_group_in_memory(self, path: str, group: Sequence[TaskOutput]) -> WriteResult:
        parts = [part for output in group for part in self._appends(output)]
        rows = pa.Table.from_batches(parts, self._batch.schema).combine_chunks()
        series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        events = self._rules.number(series, given, self._index)
        return write_numbered(self._location, path, rows, events, self._rules)

    def _appends(self, output: TaskOutput) -> Iterator[pa.RecordBatch]:
        yield from (split_edits(part)[0] for part in self._inline_batches(output))
        for run in output.runs:
            yield from read_run(self._location, run, self._batch.schema)

    def _runs(self, group: Sequence[TaskOutput]) -> list[str]:
        """The sorted runs of some tasks, in the order of the input."""
        runs: list[str] = []
        sorter: SpillSorter | None = None
        for output in group:
            if output.inline is None and sorter is not None:
                runs, sorter = runs + sorter.spill(), None
            runs += output.runs
            for part in self._inline_batches(output):
                sorter = sorter or SpillSorter(
                    self._location, self._temp_paths, self._batch.limits.memory
                )
                sorter.add(split_edits(part)[0])
        return runs + (sorter.spill() if sorter is not None else [])

    def _write_edits(
        self, edits: EditContext, appended: NumberedRows, written: Sequence[WrittenFile]
    ) -> tuple[NumberedRows, WrittenFile | None]:
        tables = [part for output in self._batch.outputs for part in self._edits(output)]
        rows = pa.concat_tables(tables).combine_chunks()
        series, sequence = (rows[name].combine_chunks() for name in ("series", EDIT_OF.name))
        data = [*edits.files, *(to_data_file(file, self._metadata.commit) for file in written)]
        targets = find_originals(self._location, data, make_targets(series, sequence))
        if self._guard.policy is not None:
            self._guard.require_edits(targets.author.drop_null().unique().to_pylist())
        edited = number_edits(
            targets,
            self._index,
            appended,
            edits.retained,
            self._batch.missing_original,
            self._rules.assigned_us,
        )
        if not len(edited.events.order):
            return edited.events, None
        table = build_events(
            rows, edited.events, self._metadata, self._batch.author, edited.originals
        )
        return edited.events, write_events(self._location, self._path("edit", 0), table)

    def _edits(self, output: TaskOutput) -> Iterator[pa.Table]:
        for part in self._inline_batches(output):
            edits = split_edits(part)[1]
            if edits is not None:
                yield pa.Table.from_batches([edits])
        if output.edits is not None:
            yield read_staged_task(self._location, output.edits)


def _group_by_series(
    outputs: Sequence[TaskOutput], series: Sequence[pa.Array]
) -> list[list[TaskOutput]]:
    """Groups of tasks that have no series in common; all tasks with few rows are in one group.

    Groups, and the tasks in each, are in the order of the input.
    """
    root = list(range(len(outputs)))

    def find(at: int) -> int:
        while root[at] != at:
            at = root[at]
        return at

    def join(one: int, other: int) -> None:
        low, high = sorted((find(one), find(other)))
        root[high] = low

    few = [at for at, output in enumerate(outputs) if output.inline is not None]
    for at in few:
        join(few[0], at)
    for one, other in _overlapping_pairs(series):
        join(one, other)
    groups: dict[int, list[TaskOutput]] = {}
    for at, output in enumerate(outputs):
        groups.setdefault(find(at), []).append(output)
    return list(groups.values())


def _overlapping_pairs(series: Sequence[pa.Array]) -> list[tuple[int, int]]:
    """Enough pairs of lists to connect all that have a name in common; a list repeats no name."""
    # Encoded part by part, with one dictionary: all names in one array may be too large for it.
    parts = pa.chunked_array(list(series), pa.string()).dictionary_encode().chunks
    codes = np.concatenate([np.empty(0, np.int32), *(part.indices.to_numpy() for part in parts)])
    last = np.full(codes.max(initial=-1) + 1, -1)  # The last list so far that has each name.
    pairs: list[tuple[int, int]] = []
    ends = np.cumsum([len(names) for names in series])
    for other, mine in enumerate(np.split(codes, ends[:-1])):
        before = np.flatnonzero(np.bincount(last[mine] + 1)[1:])
        pairs += [(one, other) for one in before.tolist()]
        last[mine] = other
    return pairs
