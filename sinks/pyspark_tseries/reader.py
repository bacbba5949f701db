"""The batch read adapter: whole series a task, or files where no event depends on another."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_tseries import files
from pyspark_tseries.columns import query_schema, type_name
from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.head_files import GLANCES, load_head, load_series
from pyspark_tseries.heads import ABSENT, Head
from pyspark_tseries.places import Place
from pyspark_tseries.ranges import Query
from pyspark_tseries.scan import KEYS, Scan, answer, visible
from pyspark_tseries.slices import Sample, Slice, cut

__all__ = ["RangeReader", "check_schema"]

BYTES_PER_PARTITION: Final = 32 * 1024 * 1024
ROWS_PER_BATCH: Final = 64 * 1024

MOST_SAMPLES: Final = 10_000
"""Of the series' names, to divide them evenly among tasks."""

_heads: dict[Place, tuple[int | None, Head]] = {}
"""The last head of each store that this worker has read."""

_glances: Counter[Place] = Counter()
"""How often it has read of each store where some series stand, without keeping that."""


@dataclass
class FileGroup(InputPartition):
    """Files of successive commits that one task reads, relative to the store."""

    paths: list[str]

    def __init__(self, paths: list[str]) -> None:
        super().__init__(None)
        self.paths = paths


@dataclass
class SeriesGroup(InputPartition):
    """The series that one task reads."""

    part: Slice

    def __init__(self, part: Slice) -> None:
        super().__init__(None)
        self.part = part


class RangeReader(DataSourceReader):
    """Answers a range query of the store as it is when planning."""

    def __init__(
        self,
        snapshot: files.Snapshot,
        query: Query,
        series: Sequence[str] | None,
        schema: StructType,
    ) -> None:
        self._snapshot = snapshot
        self._query = query
        self._series = series
        self._target = to_arrow_schema(schema, timezone="UTC")
        check_schema(self._target, query_schema(snapshot.values))

    def narrow(self, series: Sequence[str]) -> None:
        """Leaves out all series but these."""
        asked = set(series) if self._series is None else set(series) & set(self._series)
        self._series = sorted(asked)

    def partitions(self) -> Sequence[FileGroup | SeriesGroup]:
        """Groups of series; of files where every original stands for itself."""
        head = _head(self._snapshot, self._series)
        scan = Scan(self._snapshot, head, self._query, self._series)
        if self._query == Query(self._query.kind) and not scan.edits:
            return _file_groups(scan.originals)
        size = sum(file.size for file in (*scan.originals, *scan.edits))
        samples = _samples(head, self._series, size)
        return [SeriesGroup(part) for part in cut(samples, BYTES_PER_PARTITION, whole_series=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of whole series, each in the query's order, or of files in their order."""
        head = _head(self._snapshot, self._series)
        if isinstance(partition, FileGroup):
            with files.reading(self._snapshot.place):
                yield from self._read_files(partition.paths, head)
            return
        assert isinstance(partition, SeriesGroup)
        names = self._target.names
        with files.reading(self._snapshot.place):
            found = answer(
                self._snapshot, head, self._query, self._series, partition.part, names
            ).table
        yield from found.cast(self._target).to_batches(ROWS_PER_BATCH)

    def _read_files(self, paths: list[str], head: Head) -> Iterator[pa.RecordBatch]:
        needed = list(dict.fromkeys([*self._target.names, *KEYS]))
        scan = Scan(self._snapshot, head, self._query, self._series)
        for path in paths:
            for rows in scan.stream(path, needed):
                inside = pa.array(visible(rows, head, self._snapshot.retained))
                rows = rows.filter(inside).select(self._target.names)
                yield from rows.cast(self._target).to_batches()


def _file_groups(originals: Sequence[files.DataFile]) -> list[FileGroup]:
    groups, room = [FileGroup([])], BYTES_PER_PARTITION
    for file in originals:
        if file.size > room and groups[-1].paths:
            groups.append(FileGroup([]))
            room = BYTES_PER_PARTITION
        groups[-1].paths.append(file.path)
        room -= file.size
    return groups


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


def _head(snapshot: files.Snapshot, series: Sequence[str] | None) -> Head:
    """The head of `snapshot`, or what it says of `series` at least."""
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
