"""The files of events: what Delta's log says of them, and how they are written.

Everything is written under a new name and is part of the store only when a commit names it, so a
crash leaves at most files that nobody reads.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_timestream.connector.instants import clamp_instant, format_instant, parse_instant
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.policy import Policy
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.model.series_index import Note
from pyspark_tseries.storage.foreign_files import FileBounds, bounds_of_file
from pyspark_tseries.storage.location import Place, lies_inside
from pyspark_tseries.storage.parquet_checksums import room_for, seal
from pyspark_tseries.storage.parquet_layout import (
    ROWS_PER_GROUP,
    by_groups,
    compression,
    parquet_options,
)
from pyspark_tseries.store.log_entries import OWN_FILE

__all__ = [
    "DataFile",
    "Extent",
    "Snapshot",
    "WrittenFile",
    "as_stored",
    "contents",
    "data_files",
    "extent_of",
    "finished",
    "logged_series",
    "outside",
    "reading",
    "run_path",
    "write_events",
]

FEW_ROWS: Final = 64
"""Fewer are larger when compressed, and take half a millisecond longer."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of events, sorted by (series, sequence).

    Attributes:
        path: relative to the store.
        size: in bytes.
        first: the first series in it, or a name before that.
        last: the last series in it, or a name after that.
        kind: `event` or `edit`.
        rows: how many.
        least_sequence: the lowest sequence in it, of any series.
        most_sequence: the highest one.
        least_us: the earliest timestamp in it.
        most_us: the latest one.
        first_commit: its rows are of this commit or a later one.
        last_commit: its rows are of this commit or an earlier one.
    """

    path: str
    size: int
    first: str
    last: str
    kind: str
    rows: int
    least_sequence: int
    most_sequence: int
    least_us: int
    most_us: int
    first_commit: int
    last_commit: int

    @property
    def is_foreign(self) -> bool:
        """Whether another tool wrote it: then its rows are in any order."""
        return OWN_FILE.fullmatch(self.path) is None

    @property
    def run(self) -> str:
        """The files that were written together have this in common."""
        return os.path.basename(self.path).split(".")[0].partition("_")[0]

    @property
    def merged(self) -> bool:
        """Whether compaction wrote it, or another tool."""
        return "_" in os.path.basename(self.path) or self.is_foreign


@contextlib.contextmanager
def reading(place: Place, file: DataFile) -> Iterator[None]:
    """While `file` is read: says where it is missing or broken what is in it and what to do.

    Raises:
        UnusableStore: it is so.
        OSError: the object store cannot be reached.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        said = place.hides(str(error))
        if not place.local and "AWS Error" in said and not isinstance(error, FileNotFoundError):
            raise
        raise UnusableStore(
            f"file '{file.path}' of the store '{place.location}' cannot be read: {said}; by the "
            f"log it has {contents(file)}; accepted: files that are there and as they were "
            "written, and a query that was planned within the hour; next step: start the query "
            f"again, or see what is broken with: python -m pyspark_tseries verify {place.location}"
        ) from error


def contents(file: DataFile) -> str:
    """What is in `file` by the log, for people."""
    if not file.rows:
        return "rows that only the file knows"
    least, most = (format_instant(clamp_instant(us)) for us in (file.least_us, file.most_us))
    return (
        f"{file.rows} rows of series '{file.first}' to '{file.last}', sequences "
        f"{file.least_sequence} to {file.most_sequence}, times {least} to {most}, commits "
        f"{file.first_commit} to {file.last_commit}"
    )


def run_path(kind: str, commits: tuple[int, int], run: int, number: int) -> str:
    """The path of a file that compaction writes; its name sorts by the first commit.

    >>> run_path("event", (3, 70), 10, 0)
    'kind=event/0000000003-0000000070-000000000000000a_0000.parquet'
    """
    return f"kind={kind}/{commits[0]:010d}-{commits[1]:010d}-{run:016x}_{number:04d}.parquet"


_ODD_PLANES: Final = "".join(f"{chr(n << 16)}-{chr((n << 16) + 0xFFFF)}" for n in range(1, 16, 2))
_AMBIGUOUS: Final = re.compile(f"[{_ODD_PLANES}]")


def _last_possible(name: str) -> str:
    """A name not before the one that deltalake may have read as `name`.

    Statistics were once written as escaped JSON, and deltalake 1.6 reads an escaped character of
    an even plane as the same one of the plane before.
    """
    return name if name.isascii() else _AMBIGUOUS.sub(lambda c: chr(ord(c[0]) + 0x10000), name)


def data_files(place: Place, actions: pa.Table) -> list[DataFile]:
    """The files that Delta's flat add actions name, in the order of their commits.

    Raises:
        UnusableStore: one of them does not lie in the store's directories.
    """
    plain = ("path", "size_bytes", "partition.kind", "num_records")
    ends = [
        zip(*(_logged(actions, f"{end}.{name}") for end in ("min", "max")), strict=True)
        for name in ("series", "sequence", "timestamp")
    ]
    rows = zip(*(_logged(actions, name) for name in plain), *ends, strict=True)
    found = (_data_file(place, *row) for row in rows)
    return sorted(found, key=lambda file: (file.first_commit, file.path.split("/")[-1], file.path))


def _logged(actions: pa.Table, name: str) -> list[Any]:
    """A column of what the log says of each file; instants in microseconds, nulls if it is not."""
    if name not in actions.column_names:
        return [None] * actions.num_rows
    column = actions[name]
    return list((column.cast(pa.int64()) if name.endswith("timestamp") else column).to_pylist())


def _data_file(
    place: Place,
    path: str,
    size: int,
    kind: str,
    rows: int | None,
    series: tuple[str | None, str | None],
    sequence: tuple[int | None, int | None],
    us: tuple[int | None, int | None],
) -> DataFile:
    own = OWN_FILE.fullmatch(path)
    if own is None and not lies_inside(path):
        raise outside(place, path)
    if own is None or rows is None or None in (*series, *sequence, *us):
        bounds = bounds_of_file(place, path, size)
    else:
        commits = int(own["first"]), int(own["last"] or own["first"])
        names = series[0], _last_possible(str(series[1]))
        bounds = FileBounds(rows, names, sequence, us, commits)  # type: ignore[arg-type]
    return DataFile(
        path,
        size,
        *bounds.series,
        kind,
        bounds.rows,
        *bounds.sequence,
        *bounds.us,
        *bounds.commit,
    )


def outside(place: Place, path: str) -> UnusableStore:
    """The error of a log that names a file which is none of the store's."""
    return UnusableStore(
        f"the log of the store '{place.location}' names the file '{path}'; accepted: relative "
        "paths below the store, without '..' and escapes; it was not read. Next step: find out "
        f"who wrote that, and undo it with: python -m pyspark_tseries repair {place.location}"
    )


def logged_series(actions: pa.Table) -> dict[str, tuple[str, str]]:
    """The first and the last series of each file by its path, as deltalake reads the log."""
    columns = (actions[name].to_pylist() for name in ("path", "min.series", "max.series"))
    return {path: (first, last) for path, first, last in zip(*columns, strict=True)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store as it is after one commit.

    Attributes:
        place: where the store lies.
        files: the files of its events, in the order of their commits.
        head_id: names the head file; None before the first commit.
        note: the last commit, and the counts.
        retained: the retained range.
        values: the value columns.
        as_of: the last commit that counts, where files have later ones too; None: all count.
        policy: who may do what; None where everything is allowed.
    """

    place: Place
    files: list[DataFile]
    head_id: int | None
    note: Note
    retained: RetainedRange
    values: list[pa.Field]
    as_of: int | None = None
    policy: Policy | None = None

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.place.location


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A new file: its path relative to the store, its size in bytes, its Delta statistics."""

    path: str
    size: int
    statistics: str

    @property
    def kind(self) -> str:
        """`event` or `edit`, as its directory says."""
        return self.path.split("/")[0].removeprefix("kind=")


def write_events(
    place: Place, path: str, table: pa.Table, group_rows: int = ROWS_PER_GROUP
) -> WrittenFile:
    """Writes events to `path`, relative to the store, in row groups of `group_rows`.

    `table` is sorted by (series, sequence) and not empty.
    """
    full = place.file(path)
    options = parquet_options(table)
    options["compression"] = "none" if table.num_rows < FEW_ROWS else compression(table)
    rows = by_groups(table, group_rows)
    made: list[Any] = []
    try:
        with (
            place.write(full) as sink,
            pq.ParquetWriter(sink, rows.schema, metadata_collector=made, **options) as writer,
        ):
            writer.write_table(rows, row_group_size=group_rows)
            if place.local:
                groups = -(-rows.num_rows // group_rows)
                writer.add_key_value_metadata(room_for(rows.schema, groups))
        size = finished(place, full, made[0])
    except BaseException:
        place.remove([full])
        raise
    return WrittenFile(path, size, extent_of(table).statistics())


def finished(place: Place, full: str, metadata: Any) -> int:
    """The size of a file of events that was just written to `full`, once it has its checksums.

    On a local path its writer has left room for them; `metadata` is what Arrow says of it.
    """
    if place.local:
        seal(full, metadata)
    return place.size(full)


@dataclass(frozen=True, slots=True)
class Extent:
    """What sorted events are between; pairs of least and most, both inclusive."""

    rows: int
    series: tuple[str, str]
    sequence: tuple[int, int]
    us: tuple[int, int]

    def followed(self, by: "Extent") -> "Extent":
        """With the events `by`, which come after these."""
        spans = ((self.sequence, by.sequence), (self.us, by.us))
        sequence, us = ((min(a[0], b[0]), max(a[1], b[1])) for a, b in spans)
        return Extent(self.rows + by.rows, (self.series[0], by.series[1]), sequence, us)

    def statistics(self) -> str:
        """As Delta has them."""
        least, most = (
            {
                "series": self.series[end],
                "sequence": self.sequence[end],
                "timestamp": format_instant(self.us[end]),
            }
            for end in (0, 1)
        )
        nulls = dict.fromkeys(least, 0)
        said = {"numRecords": self.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
        # Not escaped: deltalake 1.6 reads escaped characters of even planes as others.
        return json.dumps(said, ensure_ascii=False)


def extent_of(table: pa.Table) -> Extent:
    """The extent of events sorted by (series, sequence), of which there are some."""
    ends = table["series"][0].as_py(), table["series"][table.num_rows - 1].as_py()
    sequence, us = (_bounds(table[name]) for name in ("sequence", "timestamp"))
    return Extent(table.num_rows, ends, sequence, us)


def _bounds(column: pa.ChunkedArray) -> tuple[int, int]:
    values = column.cast(pa.int64()).to_numpy()
    return int(values.min()), int(values.max())


def as_stored(file: WrittenFile, commit: int) -> DataFile:
    """`file` as the log will name it, once `commit` is made."""
    said = json.loads(file.statistics)
    least, most = said["minValues"], said["maxValues"]
    return DataFile(
        path=file.path,
        size=file.size,
        first=least["series"],
        last=most["series"],
        kind=file.kind,
        rows=said["numRecords"],
        least_sequence=least["sequence"],
        most_sequence=most["sequence"],
        least_us=parse_instant(least["timestamp"]),
        most_us=parse_instant(most["timestamp"]),
        first_commit=commit,
        last_commit=commit,
    )
