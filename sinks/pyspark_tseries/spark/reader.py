"""The batch read adapter: whole series a task, or files where no event depends on another.

Spark keeps the reader and its parts from the first evaluation on; see `evaluation` of timestream.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_timestream.connector.evaluation import later_evaluation_us
from pyspark_timestream.connector.spark_errors import brief_errors
from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.model.columns import query_schema, type_name
from pyspark_tseries.model.policy import Guard
from pyspark_tseries.model.query import Query
from pyspark_tseries.model.series_index import ABSENT, Head
from pyspark_tseries.model.slices import EVERYTHING, Sample, Slice, cut
from pyspark_tseries.read.as_of import head_as_of
from pyspark_tseries.read.late_binding import snapshot_at
from pyspark_tseries.read.scan import KEYS, Scan, answer, visible
from pyspark_tseries.storage import data_files as files
from pyspark_tseries.storage.head_files import GLANCES, load_head, load_series
from pyspark_tseries.storage.location import Place

__all__ = ["RangeReader", "check_schema"]

BYTES_PER_PARTITION: Final = 32 * 1024 * 1024
ROWS_PER_BATCH: Final = 64 * 1024

MOST_SAMPLES: Final = 10_000
"""Of the series' names, to divide them evenly among tasks."""

_heads: dict[Place, tuple[int | None, Head]] = {}
"""The last head of each store that this worker has read."""

_glances: Counter[Place] = Counter()
"""How often it has read of each store where some series stand, without keeping that."""

Part = tuple[str, ...] | Slice
"""What is read at once: files of successive commits, relative to the store, or whole series."""


@dataclass
class TaskPart(InputPartition):
    """What one task reads: a part of the store as it was planned.

    Where the store is read as it is later, the task takes its share of that: one of `tasks`.
    """

    part: Part
    number: int
    tasks: int

    def __init__(self, part: Part, number: int, tasks: int) -> None:
        super().__init__(None)
        self.part, self.number, self.tasks = part, number, tasks


@brief_errors
class RangeReader(DataSourceReader):
    """Answers a range query of the store as it is when Spark begins to evaluate the read.

    Args:
        snapshot: the store as it is when planning.
        query: what is asked of each series.
        series: the wanted ones; None for all.
        schema: the columns wanted.
        planned_us: the clock before the snapshot was made; later evaluations see the store as it
            is then. None: every evaluation sees `snapshot`.
        principal: who reads; None: the store's policy is not looked at again.
    """

    def __init__(
        self,
        snapshot: files.Snapshot,
        query: Query,
        series: Sequence[str] | None,
        schema: StructType,
        *,
        planned_us: int | None = None,
        principal: str | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._query = query
        self._series = series
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._planned_us = planned_us
        self._principal = principal
        check_schema(self._target, query_schema(snapshot.values))

    def partitions(self) -> Sequence[TaskPart]:
        """Groups of series; of files where every original stands for itself."""
        parts = self._parts(self._snapshot)
        return [TaskPart(part, number, len(parts)) for number, part in enumerate(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of whole series, each in the query's order, or of files in their order."""
        assert isinstance(partition, TaskPart)
        snapshot = self._snapshot
        parts: Sequence[Part] = [partition.part]
        later_us = None if self._planned_us is None else later_evaluation_us(self._planned_us)
        if later_us is not None:
            snapshot = self._later(later_us)
            parts = _share(self._parts(snapshot), partition)
        for part in parts:
            if isinstance(part, Slice):
                yield from self._read_series(snapshot, part)
            else:
                yield from self._read_files(snapshot, part)

    def _later(self, us: int) -> files.Snapshot:
        snapshot = snapshot_at(self._snapshot, us)
        check_schema(self._target, query_schema(snapshot.values))
        if self._principal is not None:
            Guard(snapshot.policy, self._principal).need_query(self._query)
        return snapshot

    def _parts(self, snapshot: files.Snapshot) -> list[Part]:
        head = _head_now(snapshot, self._series)
        data = snapshot.files
        if snapshot.as_of is None:
            scan = Scan(snapshot, head, self._query, self._series)
            in_order = not any(file.is_foreign for file in scan.originals)
            if self._query == Query(self._query.kind) and not scan.edits and in_order:
                return _file_groups(scan.originals)
            data = [*scan.originals, *scan.edits]
        samples = _samples(head, self._series, sum(file.size for file in data))
        return list(cut(samples, BYTES_PER_PARTITION, whole_series=True))

    def _read_series(self, snapshot: files.Snapshot, part: Slice) -> Iterator[pa.RecordBatch]:
        head, names = _head(snapshot, self._series, part), self._target.names
        found = answer(snapshot, head, self._query, self._series, part, names).table
        yield from found.cast(self._target).to_batches(ROWS_PER_BATCH)

    def _read_files(
        self, snapshot: files.Snapshot, paths: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        head = _head(snapshot, self._series)
        needed = list(dict.fromkeys([*self._target.names, *KEYS]))
        scan = Scan(snapshot, head, self._query, self._series)
        for path in paths:
            for rows in scan.stream(path, needed):
                inside = pa.array(visible(rows, head, snapshot.retained))
                rows = rows.filter(inside).select(self._target.names)
                yield from rows.cast(self._target).to_batches()


def _share(parts: Sequence[Part], partition: TaskPart) -> Sequence[Part]:
    """The task's parts of all; every part is one task's."""
    first, end = (len(parts) * (partition.number + i) // partition.tasks for i in (0, 1))
    return parts[first:end]


def _file_groups(originals: Sequence[files.DataFile]) -> list[Part]:
    groups: list[list[str]] = [[]]
    room = BYTES_PER_PARTITION
    for file in originals:
        if file.size > room and groups[-1]:
            groups.append([])
            room = BYTES_PER_PARTITION
        groups[-1].append(file.path)
        room -= file.size
    return [tuple(paths) for paths in groups]


def _samples(head: Head, series: Sequence[str] | None, size: int) -> list[Sample]:
    """Series spread evenly, each standing for a part of `size` bytes."""
    if series is None:
        there = np.flatnonzero(head.columns["last_sequence"] != ABSENT)
        names = head.ids.names()
        some = [names[i] for i in there[:: max(1, len(there) // MOST_SAMPLES)].tolist()]
    else:
        some = sorted(set(series))
    return [(name, 0, size // len(some)) for name in some]


def check_schema(wanted: pa.Schema, there: pa.Schema) -> None:
    """Refuses a schema of the user that is no part of the columns that are there.

    Raises:
        IncompatibleValue: a column is not there, or of another type.
    """
    for field in wanted:
        if field.name not in there.names:
            raise IncompatibleValue(
                f"column '{field.name}' is not in the store; accepted: {', '.join(there.names)}; "
                "next step: correct the schema, or leave it out"
            )
        known = there.field(field.name).type
        if field.type != known:
            raise IncompatibleValue(
                f"column '{field.name}' is asked for as {type_name(field.type)}; accepted: "
                f"{type_name(known)}; next step: correct the schema, or leave it out"
            )


def _head(snapshot: files.Snapshot, series: Sequence[str] | None, part: Slice = EVERYTHING) -> Head:
    """The head of `snapshot`, or what it says of `series` or of `part` at least."""
    now = _head_now(snapshot, series)
    return now if snapshot.as_of is None else head_as_of(snapshot, now, series, part)


def _head_now(snapshot: files.Snapshot, series: Sequence[str] | None) -> Head:
    """The head that the snapshot names, or what it says of `series` at least."""
    place, head_id = snapshot.place, snapshot.head_id
    known_id, known = _heads.get(place, (None, Head()))
    if series is not None and known_id is None and _glances[place] < GLANCES:
        _glances[place] += 1
        head, whole = load_series(place, head_id, series)
        if not whole:
            return head
    else:
        head = load_head(place, head_id, known_id, known)
    _heads[place] = head_id, head
    return head
