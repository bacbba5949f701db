"""The batch read adapter: files that may hold the wanted series, cut to the retained range."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_tseries import files
from pyspark_tseries.columns import query_schema, type_name
from pyspark_tseries.errors import IncompatibleValue, UnusableStore
from pyspark_tseries.heads import Head
from pyspark_tseries.retention import kept

__all__ = ["ValuesReader"]

BYTES_PER_PARTITION: Final = 32 * 1024 * 1024

_heads: dict[str, tuple[int | None, Head]] = {}
"""The last head of each store that this worker has read."""


@dataclass
class FileGroup(InputPartition):
    """Files of successive commits that one task reads."""

    paths: list[str]

    def __init__(self, paths: list[str]) -> None:
        super().__init__(None)
        self.paths = paths


class ValuesReader(DataSourceReader):
    """Reads the events that are inside the retained range, as the store is when planning."""

    def __init__(
        self, snapshot: files.Snapshot, series: Sequence[str] | None, schema: StructType
    ) -> None:
        self._snapshot = snapshot
        self._series = series
        self._target = to_arrow_schema(schema, timezone="UTC")
        _check_readable(snapshot)
        _check_schema(self._target, query_schema(snapshot.values))

    def partitions(self) -> Sequence[FileGroup]:
        """Groups of files whose range of series touches the wanted ones."""
        groups, room = [FileGroup([])], BYTES_PER_PARTITION
        for file in self._snapshot.files:
            if not _may_hold(file, self._series):
                continue
            if file.size > room and groups[-1].paths:
                groups.append(FileGroup([]))
                room = BYTES_PER_PARTITION
            groups[-1].paths.append(os.path.join(self._snapshot.root, file.path))
            room -= file.size
        return groups

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The group's events, in the order of commits and in each by (series, sequence)."""
        assert isinstance(partition, FileGroup)
        head = _head(self._snapshot)
        stored = query_schema(self._snapshot.values)
        needed = dict.fromkeys([*self._target.names, "series", "sequence", "timestamp"])
        for path in partition.paths:
            source = ds.dataset(path, schema=stored, format="parquet")
            scan = source.to_batches(columns=list(needed), filter=_wanted(self._series))
            for batch in scan:
                if batch.num_rows:
                    yield self._cut(batch, head)

    def _cut(self, batch: pa.RecordBatch, head: Head) -> pa.RecordBatch:
        encoded = batch["series"].dictionary_encode()
        codes = encoded.indices.to_numpy()
        names = encoded.dictionary.to_pylist()
        at, floors = head.of(names), head.floors(names)
        inside = kept(
            self._snapshot.retained,
            batch["sequence"].to_numpy(),
            batch["timestamp"].cast(pa.int64()).to_numpy(),
            at["last_sequence"][codes],
            at["original_us"][codes],
            floors["floor_sequence"][codes],
            floors["floor_us"][codes],
        )
        batch = batch.filter(pa.array(inside))
        columns = [batch[field.name].cast(field.type) for field in self._target]
        return pa.RecordBatch.from_arrays(columns, schema=self._target)


def _check_readable(snapshot: files.Snapshot) -> None:
    if any(file.kind != "event" for file in snapshot.files):
        raise UnusableStore(
            f"store '{snapshot.root}' has edits, which this version of tseries cannot read yet; "
            "accepted: a store without edits; next step: install a newer version of this package"
        )


def _check_schema(wanted: pa.Schema, there: pa.Schema) -> None:
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


def _may_hold(file: files.DataFile, series: Sequence[str] | None) -> bool:
    return series is None or any(file.first <= name <= file.last for name in series)


def _wanted(series: Sequence[str] | None) -> pc.Expression | None:
    if series is None:
        return None
    if not series:
        return pc.scalar(False)
    column = pc.field("series")
    names = pa.array(series, pa.string())
    return (column >= min(series)) & (column <= max(series)) & column.isin(names)


def _head(snapshot: files.Snapshot) -> Head:
    known_id, known = _heads.get(snapshot.root, (None, Head()))
    head = files.load_head(snapshot.root, snapshot.head_id, known_id, known)
    _heads[snapshot.root] = snapshot.head_id, head
    return head
