"""A task's share of a batch: few rows are only staged; many are sorted, and written as events.

Only the commit knows which number and time it will have, and where every series will stand then.
A task with many rows assumes what the driver saw when the batch began, the *forecast*, numbers its
rows by it and writes them as the file that the store will have. The commit publishes the file as
it is where the forecast came true and no other task has a series of it, and writes it anew
elsewhere. Stamps beside the rows instead, in the file's name or in a partition column, would need
neither, but then no foreign reader would see a row's commit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.series_index import NEVER_US, Head, Note
from pyspark_tseries.storage.data_files import WrittenFile
from pyspark_tseries.storage.head_files import load_head
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.staging import Staged, stage
from pyspark_tseries.write.event_writer import Merged, Rules, at_once, merge
from pyspark_tseries.write.numbering import number
from pyspark_tseries.write.rows import EDIT_OF
from pyspark_tseries.write.spill import Names, Sorter, fewer, read_run, rising

__all__ = ["LIMITS", "Forecast", "Limits", "Share", "parted", "take_share"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Where few rows end.

    Attributes:
        rows: a task with more rows writes events.
        size: so does one with more bytes of rows.
        memory: so many bytes of rows are sorted in memory at once.
    """

    rows: int = 50_000
    size: int = 16 * 1024 * 1024
    memory: int = 64 * 1024 * 1024


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Forecast:
    """The commit as the driver expects it when a batch begins.

    Attributes:
        head_id: the head before it; None before the first commit.
        commit: its number.
        commit_us: its time, not before the last commit's.
    """

    head_id: int | None
    commit: int
    commit_us: int

    @property
    def note(self) -> Note:
        """As far as events show it."""
        return Note(self.head_id, self.commit, self.commit_us)


@dataclass(frozen=True, slots=True)
class Share:
    """What a task tells the commit.

    Attributes:
        rows: how many it had.
        size: their bytes.
        few: all of them, where they are few, in the order of the input; else None.
        runs: the appends, sorted; paths relative to the store.
        file: the run of events, which is the only one, where they were numbered by the forecast.
        edits: in the order of the input; None where there are none.
        series: where the series of the appends stand after the file; without it their names.
        forecast: what the file assumes.
        has_edits: whether a row is an edit.
    """

    rows: int
    size: int
    few: Staged | None = None
    runs: tuple[str, ...] = ()
    file: WrittenFile | None = None
    edits: Staged | None = None
    series: Staged | None = None
    forecast: Forecast | None = None
    has_edits: bool = False

    def paths(self, place: Place) -> Iterator[str]:
        """All its files, to be removed once the batch is committed or given up."""
        for staged in (self.few, self.edits, self.series):
            if staged is not None and staged.path is not None:
                yield staged.path
        yield from (place.file(run) for run in self.runs)


def take_share(
    place: Place,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    forecast: Forecast,
    author: str,
    own: str,
    limits: Limits = LIMITS,
) -> Share:
    """Writes a task's rows where the commit finds them, at most `limits.memory` of them in memory.

    Args:
        place: where the store lies.
        batches: the rows, in the order of the input.
        schema: the columns of `RowPlan.staged`.
        forecast: the commit as the driver expects it.
        author: of rows that name none.
        own: a name unlike any other.
        limits: where few rows end.

    Raises:
        UpdateFailed: a timestamp is no legal instant.
    """
    rest = iter(batches)
    held: list[pa.RecordBatch] = []
    rows = size = 0
    names = Names(place, own)
    for batch in rest:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > limits.rows or size > limits.size:
            break
    else:
        few = stage(place, held, schema, place.file(names.new()))
        return Share(rows, size, few=few, has_edits=any(parted(b)[1] is not None for b in held))
    task = _Large(place, names, schema, limits.memory)
    try:
        share = task.take(chain(held, rest), forecast, author)
    except BaseException:
        names.discard()
        raise
    names.discard(but=share.paths(place))
    return share


def parted(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The appends and the edits; None where there are no edits."""
    column = rows[EDIT_OF.name]
    if column.null_count == len(column):
        return rows, None
    edit = column.is_valid()
    return rows.filter(pc.invert(edit)), rows.filter(edit)


@dataclass
class _Large:
    """The share of a task with many rows."""

    place: Place
    names: Names
    schema: pa.Schema
    memory: int
    rows: int = 0
    size: int = 0
    edits: list[pa.RecordBatch] = field(default_factory=list)

    def take(self, batches: Iterable[pa.RecordBatch], forecast: Forecast, author: str) -> Share:
        sorter = Sorter(self.place, self.names, self.memory)
        for batch in batches:
            self.rows, self.size = self.rows + batch.num_rows, self.size + batch.nbytes
            appends, edits = parted(batch)
            sorter.add(appends)
            if edits is not None:
                self.edits.append(edits)
        head = _head(self.place, forecast.head_id)
        rules = Rules(forecast.note, author, "drop", NEVER_US)
        merged = None
        if head is not None:
            merged = self._at_once(sorter, head, rules) or self._merged(sorter, head, rules)
        if merged is not None and merged.file is not None:
            return self._share((merged.file.path,), merged.delta, merged.file, forecast)
        runs = sorter.spill()
        return self._share(tuple(runs), pa.table({"series": sorter.series()}), None, None)

    def _at_once(self, sorter: Sorter, head: Head, rules: Rules) -> Merged | None:
        """All rows as a file, from memory; None where they are too many, or not all on time."""
        if sorter.runs:
            return None
        rows = sorter.held()
        series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        if given.null_count or not rows.num_rows:
            return None
        events = number(series, given, head, rules.policy, rules.assigned_us)
        if events.dropped:
            return None
        return at_once(self.place, self.names.new("parquet"), rows, events, rules)

    def _merged(self, sorter: Sorter, head: Head, rules: Rules) -> Merged | None:
        """All rows as a file, by way of runs; None where not all are on time."""
        runs = sorter.spill()
        if not runs or not sorter.on_time(head):
            return None
        runs = fewer(self.place, self.names, runs, self.schema, self.memory)
        tables = rising([read_run(self.place, run, self.schema) for run in runs])
        return merge(self.place, self.names.new("parquet"), tables, head, rules)

    def _share(
        self,
        runs: tuple[str, ...],
        series: pa.Table,
        file: WrittenFile | None,
        forecast: Forecast | None,
    ) -> Share:
        edits = self._staged(self.edits, self.schema) if self.edits else None
        staged = self._staged(series.to_batches(), series.schema)
        return Share(
            self.rows, self.size, None, runs, file, edits, staged, forecast, edits is not None
        )

    def _staged(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Staged:
        return stage(self.place, batches, schema, self.place.file(self.names.new()))


_known: dict[Place, tuple[int | None, Head]] = {}
"""The last head of each store that a task of this process read: the next is its and some deltas."""


def _head(place: Place, head_id: int | None) -> Head | None:
    """The head `head_id`; None where it is not there any more."""
    known_id, known = _known.get(place, (None, Head()))
    try:
        head = load_head(place, head_id, known_id, known)
    except UnusableStore:
        return None
    _known[place] = head_id, head
    return head
