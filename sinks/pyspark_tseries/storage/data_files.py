"""Describe the files of events that the log names, and write new ones.

Every file has a new name and is part of the store only once a commit names it, so a crash leaves
unused files at worst. A file of another tool may lack statistics and have any name; then its bounds
come from the footer, or from the rows.

Parquet's own checksums cover the contents of pages, but not page headers and the footer: one wrong
bit there can shift values without an error. So this module adds a key to the footer of a file on a
local path, and fills in its value last: eight hexadecimal digits for the footer (computed with
zeros in their place), then eight for each column chunk, row group by row group. Other readers
ignore the key. An object store checks its contents itself.
"""

import contextlib
import functools
import json
import os
import re
import shlex
import zlib
from bisect import insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_timestream.core.instants import clamp_instant, format_instant, parse_instant
from pyspark_tseries.errors import UnusableStore, damage_error
from pyspark_tseries.model.arrays import Int64Array, is_any_list, to_int64
from pyspark_tseries.model.columns import COMMIT_FIELDS, ERASURE_FIELD, EVENT_FIELDS
from pyspark_tseries.storage.location import EVENT_FILE_PATH, Location, is_inside_store

ROWS_PER_GROUP: Final = 10_000
"""With small row groups, a reader of one series can skip most of a file that has all series."""

MAX_ROW_GROUP_BYTES: Final = 4 * 1024 * 1024
"""The uncompressed size of a row group of large rows; readers decode whole row groups."""

ENCODING_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Encode about this many bytes at once; after each batch Arrow checks the dictionary's size."""

_OFTEN_CONSTANT: Final = (
    *("author", "original_sequence", "original_timestamp", "original_author"),
    *("commit", "commit_time"),
)
"""These columns are usually constant in the file of a commit."""


# -- how events are encoded ------------------------------------------------------------------------


def choose_compression(events: pa.Table) -> str | dict[str, str]:
    """Choose each column's compression: none for constant columns, because it would cost more.

    Nested columns would need the names of their leaves, so if a table has any, all are compressed.
    """
    if any(pa.types.is_nested(field.type) for field in events.schema):
        return "zstd"
    alike = {name for name in _OFTEN_CONSTANT if _has_one_value(events[name])}
    return {name: "none" if name in alike else "zstd" for name in events.column_names}


def _has_one_value(column: pa.ChunkedArray) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    if pa.types.is_dictionary(column.type):
        return all(len(chunk.dictionary) == 1 for chunk in column.chunks)
    ends = pc.min_max(column)
    return bool(ends["min"] == ends["max"])


def cut_groups(events: pa.Table, max_rows: int, max_bytes: int) -> list[pa.Table]:
    """Return the row groups of `events`: as many rows as allowed, halved while they are too large.

    Large rows are often those of one series, so a mean over all rows would say little. `events` are
    sorted by series. If `series` is a dictionary, each group has its own: Parquet writes the whole
    dictionary into every group, so a shared one would be repeated.
    """
    # A slice counts a dictionary as a whole.
    plain = [field.name for field in events.schema if not pa.types.is_dictionary(field.type)]
    sized = events.select(plain)
    starts = range(0, events.num_rows, max_rows)
    spans = [(start, min(max_rows, events.num_rows - start)) for start in reversed(starts)]
    groups = []
    while spans:
        start, rows = spans.pop()
        if rows > 1 and sized.slice(start, rows).nbytes > max_bytes:
            spans += [(start + rows // 2, rows - rows // 2), (start, rows // 2)]
        else:
            groups.append((start, rows))
    if "series" in plain:
        return [events.slice(start, rows) for start, rows in groups]
    series = events["series"].unify_dictionaries().combine_chunks()
    names = series.dictionary
    codes = series.indices.to_numpy()
    return [_with_own_dictionary(events.slice(*at), names, codes[at[0] : sum(at)]) for at in groups]


def _with_own_dictionary(group: pa.Table, names: pa.Array, codes: Int64Array) -> pa.Table:
    own_names = names.slice(codes[0], codes[-1] - codes[0] + 1)
    series = pa.DictionaryArray.from_arrays(pa.array(codes - codes[0]), own_names)
    return group.set_column(0, "series", series)


def has_raw_bounds(column: Any) -> bool:
    """Return whether the bounds of integers or times are integers, for times in microseconds.

    Spark's Delta usually writes times as INT96, which has no meaningful bounds; other tools may use
    milliseconds.
    """
    if column.physical_type != "INT64":
        return False
    return column.logical_type.type != "TIMESTAMP" or (
        '"timeUnit":"microseconds"' in column.logical_type.to_json().replace(" ", "")
    )


def rows_for_bytes(rows: pa.Table, size: int, max_rows: int) -> int:
    """Return the number of rows like these with about `size` bytes, from 1 to `max_rows`."""
    return max(1, min(max_rows, int(size * rows.num_rows // max(rows.nbytes, 1))))


def choose_bounds(events: pa.Table, *, is_whole: bool) -> bool | list[str]:
    """Return the leaves that get bounds, or True for all; floats that may have a NaN get none.

    Arrow leaves NaN out of bounds, but Spark, DuckDB and Polars sort it above all numbers, so they
    would skip a group with a NaN that passes their filter. `events` are the first rows of a file,
    or all of them if `is_whole`.
    """
    leaves = _list_schema_leaves(events.schema)
    if not any(is_float for _, is_float in leaves):
        return True
    chosen = [
        path
        for path, is_float in leaves
        if not is_float or (is_whole and path in events.column_names and not _has_nan(events[path]))
    ]
    return len(chosen) == len(leaves) or chosen


@functools.lru_cache(maxsize=64)
def _list_schema_leaves(schema: pa.Schema) -> list[tuple[str, bool]]:
    """Return the path of each leaf, and True for floating-point numbers."""
    leaves = (leaf for field in schema for leaf in _list_leaves(field.name, field.type))
    return [(path, pa.types.is_floating(data_type)) for path, data_type in leaves]


def _list_leaves(path: str, data_type: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the paths and types of a column's leaves in a Parquet file."""
    if pa.types.is_struct(data_type):
        return [
            leaf for child in data_type for leaf in _list_leaves(f"{path}.{child.name}", child.type)
        ]
    if pa.types.is_map(data_type):
        return [
            *_list_leaves(f"{path}.key_value.key", data_type.key_type),
            *_list_leaves(f"{path}.key_value.value", data_type.item_type),
        ]
    if is_any_list(data_type):
        return _list_leaves(f"{path}.list.element", data_type.value_type)
    return [(path, data_type)]


def count_leaves(data_type: pa.DataType) -> int:
    """Return the number of chunks of a column of the type `data_type` in each row group."""
    return len(_list_leaves("", data_type))


def _has_nan(column: pa.ChunkedArray) -> bool:
    if len(column) == 1:  # Takes a tenth of the time of Arrow's functions.
        value = column[0].as_py()
        return bool(value != value)
    return bool(pc.any(pc.is_nan(column)).as_py())


def writer_options(events: pa.Table, *, is_whole: bool) -> dict[str, Any]:
    """Return the options to write events like these, the first of a file, or all if `is_whole`."""
    # One row is one batch of any size, and computing the size takes longer than writing the row.
    batch_rows = ROWS_PER_GROUP
    is_one_row = is_whole and events.num_rows == 1
    if not is_one_row:
        batch_rows = rows_for_bytes(events, ENCODING_BATCH_BYTES, ROWS_PER_GROUP)
    return {
        "compression": "zstd",
        "write_batch_size": batch_rows,
        **_choose_encodings(events.schema, is_one_row=is_one_row),
        "write_statistics": choose_bounds(events, is_whole=is_whole),
        # Readers must see Delta's types; a stored Arrow schema would make `series` a dictionary.
        "store_schema": False,
        "write_page_checksum": True,
    }


@functools.lru_cache(maxsize=64)
def _choose_encodings(schema: pa.Schema, *, is_one_row: bool) -> dict[str, Any]:
    """Return how columns are encoded: with a dictionary, unless no value can repeat."""
    deltas = dict.fromkeys(("sequence", "timestamp"), "DELTA_BINARY_PACKED")
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    encoding = deltas | dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
    if not pa.types.is_dictionary(schema.field("series").type):
        encoding["series"] = "PLAIN"
    return {
        "use_dictionary": (
            False if is_one_row else [name for name in schema.names if name not in encoding]
        ),
        "column_encoding": encoding,
    }


# -- checksums -------------------------------------------------------------------------------------

Checksums = npt.NDArray[np.uint32]

_KEY: Final = "tseries.crc32"
_CHECKSUM_DIGITS: Final = 8
_TRAILER_BYTES: Final = 8
"""A file ends with the length of the footer and a magic number, four bytes each."""

_MARK: Final = b"PAR1"
_THRIFT_VALUE_FIELD: Final = b"\x18"
"""The Thrift header of the value after the key."""

_TAIL_BYTES: Final = 64 * 1024
"""Read this many bytes at a file's end first; a footer is rarely longer."""


@functools.lru_cache(maxsize=64)
def checksum_placeholder(schema: pa.Schema, groups: int) -> dict[str, str]:
    """Return the key for a file of `groups` row groups, with zeros instead of checksums."""
    chunks = groups * len(_list_schema_leaves(schema))
    return {_KEY: "0" * _CHECKSUM_DIGITS * (1 + chunks)}


def chunk_span(chunk: Any) -> tuple[int, int]:
    """Return the offset and size of a column chunk in its file, from Arrow's metadata."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, chunk.total_compressed_size


def fill_in_checksums(path: str, metadata: Any) -> None:
    """Fill in the placeholder of a file that no commit names yet; `metadata` is Arrow's."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        offset, checksums = _compute_checksums(
            functools.partial(os.pread, descriptor), size, metadata
        )
        os.pwrite(descriptor, checksums, offset)
    finally:
        os.close(descriptor)


def _fill_in_content(content: bytearray, metadata: Any) -> None:
    """Do the same as `fill_in_checksums` for a whole file in memory."""
    view = memoryview(content)
    offset, checksums = _compute_checksums(
        lambda length, start: view[start : start + length], len(content), metadata
    )
    view[offset : offset + len(checksums)] = checksums


def _compute_checksums(
    read: Callable[[int, int], bytes | memoryview], size: int, metadata: Any
) -> tuple[int, bytes]:
    """Return the offset of the placeholder in a file of `size` bytes, and its checksums.

    `read` returns the bytes of the file for a length and an offset.
    """
    end = size - _TRAILER_BYTES
    length = int.from_bytes(read(4, end), "little")
    footer = bytes(read(length, end - length))
    value_span = _find_value(footer)
    assert value_span is not None, "the file was written without room for checksums"
    offset, value_size = value_span
    chunks = b"".join(
        b"%08x" % zlib.crc32(read(chunk_size, start))
        for start, chunk_size in _list_chunk_spans(metadata)
    )
    assert len(chunks) == value_size - _CHECKSUM_DIGITS, (
        "there is not as much room as there are chunks"
    )
    filled = footer[: offset + _CHECKSUM_DIGITS] + chunks + footer[offset + value_size :]
    return end - length + offset, b"%08x" % zlib.crc32(filled) + chunks


def _list_chunk_spans(metadata: Any) -> Iterator[tuple[int, int]]:
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(metadata.num_columns):
            yield chunk_span(row_group.column(column))


def _find_value(footer: bytes) -> tuple[int, int] | None:
    """Return offset and size of the key's value; None if the key is missing."""
    offset = footer.rfind(_KEY.encode())
    if offset < 0:
        return None
    offset += len(_KEY)
    if footer[offset : offset + 1] != _THRIFT_VALUE_FIELD:
        return offset, 0
    size = shift = 0  # The size is a varint: seven bits a byte, the low ones first.
    for byte in footer[offset + 1 : offset + 6]:
        offset += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return offset + 1, size


def read_footer(source: Any, size: int) -> tuple[Any, Checksums | None]:
    """Return Arrow's metadata of a file, and its column chunks' checksums; None if it has none.

    Raises:
        OSError, pa.ArrowException: the footer cannot be read, or is broken.
    """
    tail = _read_tail(source, size, min(size, _TAIL_BYTES))
    if tail[-4:] != _MARK:
        raise pa.ArrowInvalid("it is not a Parquet file, or is cut short")
    length = int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES
    if length > size:
        raise pa.ArrowInvalid(f"its footer of {length} bytes is longer than the file")
    if length > len(tail):
        tail = _read_tail(source, size, length)
    tail = tail[-length:]
    sums = _verify_footer(tail[:-_TRAILER_BYTES])
    return pq.read_metadata(pa.BufferReader(tail)), sums


def _read_tail(source: Any, size: int, length: int) -> bytes:
    tail: bytes = source.read_at(length, size - length)
    if len(tail) < length:
        raise pa.ArrowInvalid(f"it is shorter than {size} bytes")
    return tail


def _verify_footer(footer: bytes) -> Checksums | None:
    value_span = _find_value(footer)
    if value_span is None:
        return None
    offset, size = value_span
    zeros = footer[:offset] + b"0" * _CHECKSUM_DIGITS + footer[offset + _CHECKSUM_DIGITS :]
    try:
        sums = np.frombuffer(bytes.fromhex(footer[offset : offset + size].decode()), ">u4")
    except ValueError:
        sums = np.empty(0, np.uint32)
    if not len(sums) or zlib.crc32(zeros) != sums[0]:
        raise pa.ArrowInvalid("its footer is not what was written: the checksum is another one")
    return sums[1:]


# -- bounds ----------------------------------------------------------------------------------------

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
        lowest, highest = (
            {
                "series": self.series[end],
                "sequence": self.sequence[end],
                "timestamp": format_instant(self.us[end]),
            }
            for end in (0, 1)
        )
        nulls = dict.fromkeys(lowest, 0)
        statistics = {
            "numRecords": self.rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": nulls,
        }
        # Do not escape: deltalake 1.6 misreads escaped characters of even planes.
        return json.dumps(statistics, ensure_ascii=False)


def compute_stats(table: pa.Table) -> FileStats:
    """Return the bounds of at least one event; the events are sorted by (series, sequence)."""
    ends = table["series"][0].as_py(), table["series"][table.num_rows - 1].as_py()
    if table.num_rows == 1:
        sequence, us = table["sequence"][0].as_py(), table["timestamp"][0].value
        return FileStats(1, ends, (sequence, sequence), (us, us))
    sequence, us = (_bounds(table[name]) for name in ("sequence", "timestamp"))
    return FileStats(table.num_rows, ends, sequence, us)


def _bounds(column: pa.ChunkedArray) -> tuple[int, int]:
    values = to_int64(column)
    return int(values.min()), int(values.max())


FileBounds = tuple[FileStats, tuple[int, int]]
"""The bounds of a file's events and of its commits."""

_UNKNOWN: Final[FileBounds] = (
    FileStats(0, ("", _LAST_NAME), (0, 2**62), (-(2**62), 2**62)),
    (0, 2**62),
)


@functools.lru_cache(maxsize=MAX_CACHED_FILES)
def read_bounds(location: Location, path: str, size: int) -> FileBounds:
    """Return the bounds of the file at `path`, from its footer or its rows; a file never changes.

    A file that cannot be read gets the widest bounds, so that a query that may need it fails.
    """
    try:
        metadata = pq.read_metadata(location.file(path), filesystem=location.filesystem)
        bounds_of: dict[str, Any] = {
            name: _read_footer_bounds(metadata, name) for name in _BOUNDED_COLUMNS
        }
        missing = [name for name, column_bounds in bounds_of.items() if column_bounds is None]
        if missing and metadata.num_rows:
            bounds_of.update(_compute_row_bounds(location, path, missing))
    except (OSError, pa.ArrowException, KeyError):
        return _UNKNOWN
    if not metadata.num_rows:
        return FileStats(0, ("", ""), (0, 0), (0, 0)), (0, 0)
    series, sequence, us, commits = (bounds_of[name] for name in _BOUNDED_COLUMNS)
    return FileStats(metadata.num_rows, series, sequence, us), commits


def _read_footer_bounds(metadata: Any, column: str) -> tuple[Any, Any] | None:
    """Return the bounds of a column from the footer; None if it lacks them."""
    leaf = metadata.schema.names.index(column)
    groups = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups)]
    statistics = [group.statistics for group in groups]
    if not statistics or not all(group is not None and group.has_min_max for group in statistics):
        return None
    if column == "series":
        return min(group.min for group in statistics), max(group.max for group in statistics)
    if not has_raw_bounds(metadata.schema.column(leaf)):
        return None
    return min(group.min_raw for group in statistics), max(group.max_raw for group in statistics)


def _compute_row_bounds(
    location: Location, path: str, columns: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    table = pq.read_table(
        location.file(path),
        columns=list(columns),
        partitioning=None,
        filesystem=location.filesystem,
        coerce_int96_timestamp_unit="us",
    )
    bounds = {}
    for name in columns:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        ends = pc.min_max(column)
        bounds[name] = ends["min"].as_py(), ends["max"].as_py()
    return bounds


# -- files that the log names ----------------------------------------------------------------------


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
        """Whether another tool wrote the file; then its rows may be in any order."""
        return EVENT_FILE_PATH.fullmatch(self.path) is None

    @property
    def file_group(self) -> str:
        """The part of the name that is the same in all files written together."""
        return os.path.basename(self.path).split(".")[0].partition("_")[0]

    @property
    def is_compacted(self) -> bool:
        """Whether compaction or another tool wrote the file."""
        return "_" in os.path.basename(self.path) or self.is_foreign


@contextlib.contextmanager
def explain_read_errors(location: Location, file: DataFile) -> Iterator[None]:
    """Turn errors of reading `file` into UnusableStore with its contents and the next step."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = location.redact(str(error))
        if (
            not location.is_local
            and "AWS Error" in reason
            and not isinstance(error, FileNotFoundError)
        ):
            raise
        raise UnusableStore(
            f"file '{file.path}' of the store '{location.root}' cannot be read: {reason}; by the "
            f"log it has {describe_contents(file)}",
            "files that are there and as they were written, and a query that was planned within "
            "the hour",
            "start the query again (one of the past from a new `as_of`), or see what is broken "
            f"with: python -m pyspark_tseries verify {shlex.quote(location.root)}",
            kind="file",
            path=file.path,
        ) from error


def describe_contents(file: DataFile) -> str:
    """Describe the contents of `file` according to the log, for people."""
    if not file.rows:
        return "rows that only the file knows"
    oldest, newest = (format_instant(clamp_instant(us)) for us in (file.min_us, file.max_us))
    return (
        f"{file.rows} rows of series '{file.first}' to '{file.last}', sequences "
        f"{file.min_sequence} to {file.max_sequence}, times {oldest} to {newest}, commits "
        f"{file.first_commit} to {file.last_commit}"
    )


def compacted_path(kind: str, commits: tuple[int, int], group_id: int, number: int) -> str:
    """Return the path of a file that compaction writes; its name sorts by the first commit.

    >>> compacted_path("event", (3, 70), 10, 0)
    'kind=event/0000000003-0000000070-000000000000000a_0000.parquet'
    """
    return f"kind={kind}/{commits[0]:010d}-{commits[1]:010d}-{group_id:016x}_{number:04d}.parquet"


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
    files = (_logged_file(location, action[:3], FileStats(*action[3:])) for action in rows)
    return sorted(files, key=_order_key)


def _order_key(file: DataFile) -> tuple[int, str, str]:
    return file.first_commit, file.path.split("/")[-1], file.path


LoggedFiles = Mapping[str, Mapping[str, Any]]
"""The actions of a log entry that add or remove files, by path."""

MAX_ENTRIES_HELD: Final = 1000
"""After this many entries without a request for the files, Delta lists them faster."""


class LiveFiles:
    """The files of a store, kept up to date from each new entry of the log.

    Delta lists all files of a table every time; many files take longer than a small commit.
    """

    def __init__(self) -> None:
        self._files: list[DataFile] | None = None
        self._paths: set[str] = set()
        self._later: list[tuple[LoggedFiles, Collection[str]]] = []

    def forget(self) -> None:
        """Forget all files, so that they are listed again."""
        self._files = None
        self._later = []

    def add_entry(self, added_files: LoggedFiles, removed: Collection[str]) -> None:
        """Take the next entry, with the files that it adds and the paths that it removes."""
        if self._files is not None:
            self._later.append((added_files, removed))
        if len(self._later) > MAX_ENTRIES_HELD:
            self.forget()

    def listed(self, list_anew: Callable[[], list[DataFile]]) -> list[DataFile]:
        """Return the files in the order of their commits; `list_anew` lists them if need be."""
        files, later = self._files, self._later
        # If this is interrupted, as by Ctrl-C in a notebook, the files are listed again.
        self.forget()
        if files is None or not all(self._apply(files, *entry) for entry in later):
            files = list_anew()
            self._paths = {file.path for file in files}
        self._files = files
        return files.copy()

    def _apply(
        self, files: list[DataFile], added_files: LoggedFiles, removed: Collection[str]
    ) -> bool:
        """Apply an entry to `files`; return False if only Delta can read it."""
        new = [_added_file(path, action) for path, action in added_files.items()]
        if not self._paths.isdisjoint(added_files) or not self._paths.issuperset(removed):
            return False
        if removed:
            self._paths.difference_update(removed)
            files[:] = [file for file in files if file.path in self._paths]
        for file in new:
            if file is None:
                return False
            self._paths.add(file.path)
            insort(files, file, key=_order_key)
        return True


def _added_file(path: str, action: Mapping[str, Any]) -> DataFile | None:
    """Return a file of this package that an entry adds; None for any other file."""
    path_fields = EVENT_FILE_PATH.fullmatch(path)
    try:
        statistics = json.loads(action["stats"])
        ends = statistics["minValues"], statistics["maxValues"]
        series, sequence, texts = (
            (ends[0][name], ends[1][name]) for name in ("series", "sequence", "timestamp")
        )
        us = parse_instant(texts[0]), parse_instant(texts[1])
        stats = FileStats(statistics["numRecords"], series, sequence, us)
        file = path, action["size"], action["partitionValues"]["kind"]
    except (KeyError, TypeError, ValueError):
        return None
    return None if path_fields is None else _make_data_file(file, stats, _commits_of(path_fields))


def _log_column(actions: pa.Table, name: str) -> list[Any]:
    """Return a column of the add actions, instants in microseconds; all null if it is missing."""
    if name not in actions.column_names:
        return [None] * actions.num_rows
    column = actions[name]
    return list((column.cast(pa.int64()) if name.endswith("timestamp") else column).to_pylist())


def _logged_file(location: Location, file: tuple[Any, ...], logged: FileStats) -> DataFile:
    """Return the file that the log names with the bounds `logged`, which may be null."""
    path, size, _ = file
    path_fields = EVENT_FILE_PATH.fullmatch(path)
    if path_fields is None and not is_inside_store(path):
        raise outside_file_error(location, path)
    logged_bounds = (logged.rows, *logged.series, *logged.sequence, *logged.us)
    if path_fields is None or None in logged_bounds:
        return _make_data_file(file, *read_bounds(location, path, size))
    return _make_data_file(file, logged, _commits_of(path_fields))


def _commits_of(path: re.Match[str]) -> tuple[int, int]:
    return int(path["first"]), int(path["last"] or path["first"])


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


def logged_series_bounds(actions: pa.Table) -> dict[str, tuple[str | None, str | None]]:
    """Return the first and last series of each file, by path, as deltalake reads the log.

    None stands for a bound that the log lacks, as after another tool: then no reader skips a row.
    """
    columns = (_log_column(actions, name) for name in ("path", "min.series", "max.series"))
    return {path: (lowest, highest) for path, lowest, highest in zip(*columns, strict=True)}


# -- new files -------------------------------------------------------------------------------------

SMALL_FILE_ROWS: Final = 64
"""Files of fewer rows grow when they are compressed, and take half a millisecond longer."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A new file: its path relative to the store, its size in bytes, its events' bounds."""

    path: str
    size: int
    stats: FileStats

    @property
    def kind(self) -> str:
        """The kind, `event` or `edit`, from its directory."""
        return self.path.split("/")[0].removeprefix("kind=")


def write_events(
    location: Location,
    path: str,
    table: pa.Table,
    max_rows: int = ROWS_PER_GROUP,
    max_bytes: int = MAX_ROW_GROUP_BYTES,
    notes: Mapping[str, str] | None = None,
    *,
    stats: FileStats | None = None,
) -> WrittenFile:
    """Write events to `path`, relative to the store, in row groups of `max_rows` and `max_bytes`.

    `table` is sorted by (series, sequence) and not empty; the file's footer keeps `notes`. A caller
    that knows the events' bounds passes them as `stats`.
    """
    table = drop_empty_erasure(table)
    full = location.file(path)
    options = writer_options(table, is_whole=True)
    options["compression"] = (
        "none" if table.num_rows < SMALL_FILE_ROWS else choose_compression(table)
    )
    groups = cut_groups(table, max_rows, max_bytes)
    schema = groups[0].schema
    is_small = location.is_local and table.num_rows < SMALL_FILE_ROWS
    footers: list[Any] = []
    try:
        with (
            pa.BufferOutputStream() if is_small else location.write(full) as sink,
            pq.ParquetWriter(sink, schema, metadata_collector=footers, **options) as writer,
        ):
            for group in groups:
                writer.write_table(group, row_group_size=max_rows)
            if notes:
                writer.add_key_value_metadata(dict(notes))
            if location.is_local:
                writer.add_key_value_metadata(checksum_placeholder(schema, len(groups)))
            writer.close()
            content = sink.getvalue() if is_small else None
        if content is None:
            size = seal_file(location, full, footers[0])
        else:
            # Complete a small file in memory, so that it is written once.
            sealed = bytearray(content)
            _fill_in_content(sealed, footers[0])
            location.write_whole(full, sealed)
            size = len(sealed)
    except BaseException:
        location.discard([full])
        raise
    return WrittenFile(path, size, stats or compute_stats(table))


def drop_empty_erasure(table: pa.Table) -> pa.Table:
    """Return `table`, without the column `erasure` if no event is erased."""
    name = ERASURE_FIELD.name
    if name in table.column_names and table[name].null_count == table.num_rows:
        return table.drop_columns([name])
    return table


def seal_file(location: Location, full: str, metadata: Any) -> int:
    """Complete a new event file at `full` with its checksums; return its size.

    On a local path they replace the placeholder in the file; `metadata` is Arrow's, of this file.
    """
    if location.is_local:
        fill_in_checksums(full, metadata)
    return location.size(full)
