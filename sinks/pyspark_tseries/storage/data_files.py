"""Describe the files of events that the log names, and write new ones.

Every file has a new name and is part of the store only once a commit names it, so a crash leaves
unused files at worst. A file of another tool may lack statistics and have any name; then its bounds
come from the footer, or from the rows.
"""

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_timestream.core.instants import clamp_instant, format_instant
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.columns import COMMIT_FIELDS, ERASURE_FIELD, EVENT_FIELDS
from pyspark_tseries.model.damage import damage_error
from pyspark_tseries.storage.location import EVENT_FILE_PATH, Location, is_inside_store
from pyspark_tseries.storage.parquet import (
    ROWS_PER_GROUP,
    checksum_placeholder,
    choose_compression,
    fill_in_checksums,
    fill_in_content,
    has_raw_bounds,
    split_dictionaries,
    writer_options,
)

MAX_CACHED_FILES: Final = 4096
_LAST_NAME: Final = chr(0x10FFFF) * 64
"""Sorts after all likely names."""

_BOUNDED_COLUMNS: Final = tuple(field.name for field in (*EVENT_FIELDS[:3], COMMIT_FIELDS[0]))


@dataclass(frozen=True, slots=True)
class FileStats:
    """The bounds of events: pairs of lowest and highest, both inclusive; they may be too wide."""

    rows: int
    series: tuple[str, str]
    sequence: tuple[int, int]
    us: tuple[int, int]

    def extended_with(self, by: "FileStats") -> "FileStats":
        """Return the bounds of these events together with `by`, which come after them."""
        pairs = ((self.sequence, by.sequence), (self.us, by.us))
        sequence, us = ((min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs)
        return FileStats(self.rows + by.rows, (self.series[0], by.series[1]), sequence, us)

    def to_json(self) -> str:
        """Return the bounds as Delta's statistics."""
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
        # Do not escape: deltalake 1.6 misreads escaped characters of even planes.
        return json.dumps(said, ensure_ascii=False)


def compute_stats(table: pa.Table) -> FileStats:
    """Return the bounds of at least one event; the events are sorted by (series, sequence)."""
    ends = table["series"][0].as_py(), table["series"][table.num_rows - 1].as_py()
    sequence, us = (_bounds(table[name]) for name in ("sequence", "timestamp"))
    return FileStats(table.num_rows, ends, sequence, us)


def _bounds(column: pa.ChunkedArray) -> tuple[int, int]:
    values = to_int64(column)
    return int(values.min()), int(values.max())


Bounds = tuple[FileStats, tuple[int, int]]
"""The bounds of a file's events and of its commits."""

_UNKNOWN: Final[Bounds] = (
    FileStats(0, ("", _LAST_NAME), (0, 2**62), (-(2**62), 2**62)),
    (0, 2**62),
)


@functools.lru_cache(maxsize=MAX_CACHED_FILES)
def read_bounds(location: Location, path: str, size: int) -> Bounds:
    """Return the bounds of the file at `path`, from its footer or its rows; a file never changes.

    A file that cannot be read gets the widest bounds, so that a query that may need it fails.
    """
    try:
        metadata = pq.read_metadata(location.file(path), filesystem=location.filesystem)
        known: dict[str, Any] = {name: _footer_bounds(metadata, name) for name in _BOUNDED_COLUMNS}
        missing = [name for name, bounds in known.items() if bounds is None]
        if missing and metadata.num_rows:
            known.update(_row_bounds(location, path, missing))
    except (OSError, pa.ArrowException, KeyError):
        return _UNKNOWN
    if not metadata.num_rows:
        return FileStats(0, ("", ""), (0, 0), (0, 0)), (0, 0)
    series, sequence, us, commits = (known[name] for name in _BOUNDED_COLUMNS)
    return FileStats(metadata.num_rows, series, sequence, us), commits


def _footer_bounds(metadata: Any, column: str) -> tuple[Any, Any] | None:
    """Return the bounds of a column from the footer; None if it lacks them."""
    at = metadata.schema.names.index(column)
    groups = [metadata.row_group(group).column(at) for group in range(metadata.num_row_groups)]
    known = [group.statistics for group in groups]
    if not known or not all(group is not None and group.has_min_max for group in known):
        return None
    if column == "series":
        return min(group.min for group in known), max(group.max for group in known)
    if not has_raw_bounds(metadata.schema.column(at)):
        return None
    return min(group.min_raw for group in known), max(group.max_raw for group in known)


def _row_bounds(
    location: Location, path: str, columns: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    table = pq.read_table(
        location.file(path),
        columns=list(columns),
        partitioning=None,
        filesystem=location.filesystem,
        coerce_int96_timestamp_unit="us",
    )
    found = {}
    for name in columns:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        ends = pc.min_max(column)
        found[name] = ends["min"].as_py(), ends["max"].as_py()
    return found


SMALL_FILE_ROWS: Final = 64
"""Files of fewer rows grow when they are compressed, and take half a millisecond longer."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of events, sorted by (series, sequence).

    `first` and `last` are its first and last series, or names before and after them; `kind` is
    `event` or `edit`; the other pairs are inclusive bounds of sequences, timestamps and commits.
    """

    path: str
    size: int
    first: str
    last: str
    kind: str
    rows: int
    min_sequence: int
    max_sequence: int
    min_us: int
    max_us: int
    first_commit: int
    last_commit: int

    @property
    def is_foreign(self) -> bool:
        """True if another tool wrote the file; then its rows may be in any order."""
        return EVENT_FILE_PATH.fullmatch(self.path) is None

    @property
    def run(self) -> str:
        """The part of the name that files have in common if they were written together."""
        return os.path.basename(self.path).split(".")[0].partition("_")[0]

    @property
    def is_compacted(self) -> bool:
        """True if compaction or another tool wrote the file."""
        return "_" in os.path.basename(self.path) or self.is_foreign


@contextlib.contextmanager
def explain_read_errors(location: Location, file: DataFile) -> Iterator[None]:
    """Turn errors of reading `file` into UnusableStore with its contents and the next step."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        said = location.redact(str(error))
        if (
            not location.is_local
            and "AWS Error" in said
            and not isinstance(error, FileNotFoundError)
        ):
            raise
        raise UnusableStore(
            f"file '{file.path}' of the store '{location.root}' cannot be read: {said}; by the "
            f"log it has {describe_contents(file)}",
            "files that are there and as they were written, and a query that was planned within "
            "the hour",
            "start the query again, or see what is broken with: python -m pyspark_tseries verify "
            f"{location.root}",
            kind="file",
            path=file.path,
        ) from error


def describe_contents(file: DataFile) -> str:
    """Describe the contents of `file` according to the log, for people."""
    if not file.rows:
        return "rows that only the file knows"
    least, most = (format_instant(clamp_instant(us)) for us in (file.min_us, file.max_us))
    return (
        f"{file.rows} rows of series '{file.first}' to '{file.last}', sequences "
        f"{file.min_sequence} to {file.max_sequence}, times {least} to {most}, commits "
        f"{file.first_commit} to {file.last_commit}"
    )


def compacted_path(kind: str, commits: tuple[int, int], run: int, number: int) -> str:
    """Return the path of a file that compaction writes; its name sorts by the first commit.

    >>> compacted_path("event", (3, 70), 10, 0)
    'kind=event/0000000003-0000000070-000000000000000a_0000.parquet'
    """
    return f"kind={kind}/{commits[0]:010d}-{commits[1]:010d}-{run:016x}_{number:04d}.parquet"


def data_files(location: Location, actions: pa.Table) -> list[DataFile]:
    """Return the files in Delta's flattened add actions, in the order of their commits.

    Raises:
        UnusableStore: one of them is outside of the store's directory.
    """
    plain = ("path", "size_bytes", "partition.kind", "num_records")
    ends = [
        zip(*(_log_column(actions, f"{end}.{name}") for end in ("min", "max")), strict=True)
        for name in ("series", "sequence", "timestamp")
    ]
    rows = zip(*(_log_column(actions, name) for name in plain), *ends, strict=True)
    found = (_logged_file(location, action[:3], FileStats(*action[3:])) for action in rows)
    return sorted(found, key=lambda file: (file.first_commit, file.path.split("/")[-1], file.path))


def _log_column(actions: pa.Table, name: str) -> list[Any]:
    """Return a column of the add actions, instants in microseconds; all null if it is missing."""
    if name not in actions.column_names:
        return [None] * actions.num_rows
    column = actions[name]
    return list((column.cast(pa.int64()) if name.endswith("timestamp") else column).to_pylist())


def _logged_file(location: Location, file: tuple[Any, ...], logged: FileStats) -> DataFile:
    """Return the file that the log names with the bounds `logged`, which may be null."""
    path, size, _ = file
    own = EVENT_FILE_PATH.fullmatch(path)
    if own is None and not is_inside_store(path):
        raise outside_file_error(location, path)
    known = (logged.rows, *logged.series, *logged.sequence, *logged.us)
    if own is None or None in known:
        return _make_data_file(file, *read_bounds(location, path, size))
    commits = int(own["first"]), int(own["last"] or own["first"])
    return _make_data_file(file, logged, commits)


def to_data_file(file: "WrittenFile", commit: int) -> DataFile:
    """Return `file` as the log has it after `commit`."""
    return _make_data_file((file.path, file.size, file.kind), file.stats, (commit, commit))


def _make_data_file(file: tuple[Any, ...], stats: FileStats, commits: tuple[int, int]) -> DataFile:
    (path, size, kind), series = file, stats.series
    return DataFile(path, size, *series, kind, stats.rows, *stats.sequence, *stats.us, *commits)


def outside_file_error(location: Location, path: str) -> UnusableStore:
    """Return the error of a log that names a file outside of the store."""
    problem = f"the log of the store '{location.root}' names the file '{path}'"
    return damage_error("outside file", location.root, problem, path)


def logged_series_bounds(actions: pa.Table) -> dict[str, tuple[str, str]]:
    """Return the first and last series of each file, by path, as deltalake reads the log."""
    columns = (actions[name].to_pylist() for name in ("path", "min.series", "max.series"))
    return {path: (first, last) for path, first, last in zip(*columns, strict=True)}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A new file: its path relative to the store, its size in bytes, its events' bounds."""

    path: str
    size: int
    stats: FileStats

    @property
    def kind(self) -> str:
        """`event` or `edit`, from its directory."""
        return self.path.split("/")[0].removeprefix("kind=")


def write_events(
    location: Location, path: str, table: pa.Table, group_rows: int = ROWS_PER_GROUP
) -> WrittenFile:
    """Write events to `path`, relative to the store, in row groups of `group_rows`.

    `table` is sorted by (series, sequence) and not empty.
    """
    table = drop_empty_erasure(table)
    full = location.file(path)
    options = writer_options(table, is_whole=True)
    options["compression"] = (
        "none" if table.num_rows < SMALL_FILE_ROWS else choose_compression(table)
    )
    rows = split_dictionaries(table, group_rows)
    is_small = location.is_local and table.num_rows < SMALL_FILE_ROWS
    made: list[Any] = []
    try:
        with (
            pa.BufferOutputStream() if is_small else location.write(full) as sink,
            pq.ParquetWriter(sink, rows.schema, metadata_collector=made, **options) as writer,
        ):
            writer.write_table(rows, row_group_size=group_rows)
            if location.is_local:
                groups = -(-rows.num_rows // group_rows)
                writer.add_key_value_metadata(checksum_placeholder(rows.schema, groups))
            writer.close()
            content = sink.getvalue() if is_small else None
        size = (
            seal_file(location, full, made[0])
            if content is None
            else _write_sealed(location, full, bytearray(content), made[0])
        )
    except BaseException:
        location.remove([full])
        raise
    return WrittenFile(path, size, compute_stats(table))


def drop_empty_erasure(table: pa.Table) -> pa.Table:
    """Return `table`, without the column `erasure` if no event is erased."""
    name = ERASURE_FIELD.name
    if name in table.column_names and table[name].null_count == table.num_rows:
        return table.drop_columns([name])
    return table


def _write_sealed(location: Location, full: str, content: bytearray, metadata: Any) -> int:
    """Write a small file at once, with its checksums; return its size."""
    fill_in_content(content, metadata)
    with location.write(full) as file:
        file.write(content)
    return len(content)


def seal_file(location: Location, full: str, metadata: Any) -> int:
    """Complete a new event file at `full` with its checksums; return its size.

    On a local path they replace the placeholder in the file; `metadata` is Arrow's, of this file.
    """
    if location.is_local:
        fill_in_checksums(full, metadata)
    return location.size(full)
