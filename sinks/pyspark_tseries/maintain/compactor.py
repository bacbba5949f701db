"""Compaction: rewrite many files as few files clustered by series, in one commit.

Files that were written together are a *file group*. Maintenance merges groups from the newest
backwards while the next one is at most twice as large as those gathered so far, so the number of
times that an event is rewritten grows with the logarithm of the store's size. Only a merge of all
groups removes events, and only those that no query can see at the *horizon* (the last commit older
than the minimum retention age) or later.

Appends continue meanwhile: the commit does not change the head, so neither can starve the other.
The rules are semantics 24.
"""

import contextlib
import functools
import shlex
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import (
    BoolArray,
    Int64Array,
    Key,
    KeyRange,
    SizedKey,
    encode_runs,
    sample_sizes,
    sort_keys,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.columns import file_schema, select_fields
from pyspark_tseries.model.ranges import UNLIMITED, RetainedRange, min_retained
from pyspark_tseries.model.series_index import (
    STATE_COLUMNS,
    SeriesIndex,
    combine_states,
    compute_state,
)
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.data_files import (
    DataFile,
    WrittenFile,
    compacted_path,
    explain_read_errors,
    read_footer,
    write_events,
)
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import (
    ALL_ROWS,
    CPU_COUNT,
    MAX_REMOTE_READS,
    SMALL_PIECE_ROWS,
    FilePiece,
    Footer,
    OpenFile,
    PieceRows,
    ReadRequest,
    RowFilter,
    assemble_pieces,
    cast_columns,
    load_footer,
    map_parallel,
    plan_pieces,
    read_pieces,
    read_rows,
    scan_file,
)
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.admin_commits import open_as_owner, replace_files
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.numbering import series_column

MIN_GROUPS_TO_MERGE: Final = 64
"""Automatic maintenance starts merging at this many groups of single commits."""


def choose_files(data: Sequence[DataFile], *, everything: bool) -> list[DataFile]:
    """Choose the files to merge into one group; none if merging gains nothing."""
    groups = _group_files(data)
    if everything or not groups:
        return [file for group in groups for file in group]
    if count_single_commits(data) < MIN_GROUPS_TO_MERGE:
        return []
    first = len(groups)
    gathered_bytes = 0
    for group in reversed(groups):
        group_bytes = sum(file.size for file in group)
        # So an event is rewritten only as often as the logarithm of the store's size grows.
        if group[0].is_compacted and group_bytes > 2 * gathered_bytes:
            break
        first -= 1
        gathered_bytes += group_bytes
    return [file for group in groups[first:] for file in group]


def count_single_commits(data: Sequence[DataFile]) -> int:
    """Return the number of file groups of single commits."""
    return sum(not group[0].is_compacted for group in _group_files(data))


def _group_files(data: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return the file groups, in the order of commits."""
    ordered = sorted(data, key=lambda file: (file.first_commit, file.file_group, file.path))
    return [list(files) for _, files in groupby(ordered, key=lambda file: file.file_group)]


def select_kept_events(
    events: pa.Table, states: pa.Table, index: SeriesIndex, retained: RetainedRange, horizon: int
) -> BoolArray:
    """Flag the `events` that compaction keeps: all that are visible at the horizon or later.

    Always keep the newest event, original and edit of each series: the head is rebuilt from them.
    """
    names, codes = encode_runs(events["series"])
    rows = states.take(pc.index_in(names, states["series"].combine_chunks()))
    state = {name: to_int64(rows[name]) for name in rows.column_names if name != "series"}
    floors = index.floors(names.to_pylist())
    low, low_us = min_retained(retained, state["horizon_sequence"], state["horizon_us"], floors)
    sequence, us = to_int64(events["sequence"]), to_int64(events["timestamp"])
    inside = (sequence >= low[codes]) & (us >= low_us[codes])
    for name in ("last_sequence", "original_sequence", "edit_sequence"):
        inside |= sequence == state[name][codes]
    flags: BoolArray = inside | (to_int64(events["commit"]) > horizon)
    return flags


MAX_RANGE_BYTES: Final = 96 * 1024 * 1024
"""The uncompressed size of a key range that becomes one file; two are in memory at once."""

MAX_HELD_BYTES: Final = 128 * 1024 * 1024
"""The memory for decoded rows of all files that are held for later key ranges."""

SMALL_FILE_BYTES: Final = 64 * 1024
SMALL_FILES_AT_ONCE: Final = 1000
"""Read files of up to this size whole, and this many of them before the memory is counted."""

MAX_COMPACTED_GROUP_ROWS: Final = 20_000
MAX_COMPACTED_GROUP_BYTES: Final = 8 * 1024 * 1024
"""A compacted row group is larger than a written one, because it holds fewer series."""

MAX_ENCODED_TEXTS: Final = 1000
_ENCODED_TEXT: Final = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Counts of a compaction: files before and after, and events removed."""

    files_before: int = 0
    files_after: int = 0
    removed_events: int = 0


def compact(
    path: str | Location, now_us: int | None = None, principal: str | None = None
) -> CompactionResult:
    """Merge all files of the store at `path` and remove events out of the retained range.

    Remove nothing younger than the store's `minRetentionAge`. Writers and readers go on.

    Raises:
        NoSuchStore: there is none.
        PermissionDenied: the store has a policy, and the principal is not an owner.
        StoreBusy: other compactions were faster each time.
        WrongClock: this machine's clock is far ahead, or was when the last commit was made.
        UnusableStore: the log and the files disagree; nothing is changed.
    """
    store = open_as_owner(path, author_or_user(principal), "compact the store")
    now_us = store.read_clock() if now_us is None else now_us
    return merge_file_groups(store, now_us, everything=True)


def merge_file_groups(store: Store, now_us: int, *, everything: bool) -> CompactionResult:
    """Compact all files of `store`, or those that are due."""

    def attempt() -> CompactionResult | None:
        snapshot = store.snapshot()
        chosen = choose_files(snapshot.files, everything=everything)
        if not chosen:
            return CompactionResult()
        merge = Merge(store, snapshot, chosen, now_us - snapshot.settings.min_retention_us)
        if not merge.is_due():
            return CompactionResult(len(chosen), len(chosen), 0)
        new_files = merge.write_all()
        horizon = merge.horizon if merge.removed else None
        try:
            done = replace_files(store, chosen, new_files, horizon, now_us)
        except (DeltaError, OSError):
            # The commit may have succeeded, and only the checkpoint after it failed.
            if not {file.path for file in new_files} & store.snapshot().paths:
                # In an object store it may still happen; if not, maintenance removes the files.
                if store.location.is_local:
                    _discard_files(store, new_files)
                raise
            done = True
        if done:
            return CompactionResult(len(chosen), len(new_files), merge.removed)
        _discard_files(store, new_files)
        return None

    return store.retry(
        attempt,
        store.retrying.rewrite_attempts,
        rivals="other compactions, or acts of erasing, were first",
        next_step="leave it to them, or try again later",
    )


def _lost_events_error(store: Store) -> UnusableStore:
    return UnusableStore(
        f"store '{store.root}': a compaction would lose events, because what the log says of its "
        "files does not fit their rows; nothing was changed",
        next_step="see what is wrong with: python -m pyspark_tseries verify "
        f"{shlex.quote(store.root)}",
    )


def _discard_files(store: Store, new_files: Sequence[WrittenFile]) -> None:
    store.location.discard(store.location.file(file.path) for file in new_files)


class Merge:
    """One attempt to rewrite files: its input files, the state of their series, its output.

    The constructor scans all input files; `write_all` reads their rows again, by key ranges.

    Events of commits later than `latest_us` stay. All events stay unless all files of the store are
    chosen. `convert` converts the events of each key range; it neither drops nor adds any. `group`
    has the id of the new files and the number of the first; None draws an id. The footers of the
    new files keep `notes`.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        chosen: Sequence[DataFile],
        latest_us: int,
        convert: Callable[[pa.Table], pa.Table] | None = None,
        *,
        group: tuple[int, int] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self._store = store
        self._convert = convert
        self._notes = notes
        self._location = store.location
        self._chosen = chosen
        self._snapshot = snapshot
        self._group, self._first = (store.new_id(), 0) if group is None else group
        self._schema = file_schema(snapshot.values)
        room = MemoryBudget(MAX_HELD_BYTES)
        small = SmallFiles(self._location, chosen, self._schema.names, room)
        self._large = [file for file in chosen if file.path not in small.paths]
        # Texts stay encoded until they are written, but `convert` gets plain ones.
        if convert is None:
            self._schema = self._encode_texts(self._schema, small.distinct_texts)
        self._small = {kind: small.rows(kind, self._schema) for kind in ("event", "edit")}
        self._index = snapshot.index()
        self.horizon = self._find_horizon(latest_us) if self._may_remove() else -1
        self.removed = 0
        self._found = self._kept_rows = 0
        self._samples: list[SizedKey] = []
        # Scanning also counts the rows that are found, and samples their keys.
        states = [*map(self._scan_small, self._small.values())]
        self._states = combine_states([*states, *map(self._scan_large, self._large)])
        self._sorted = {
            file.path: SortedFile(self._location, file, self._schema, room) for file in self._large
        }

    def _encode_texts(self, schema: pa.Schema, distinct: Collection[str]) -> pa.Schema:
        """Return the schema with repetitive texts as dictionaries, because these merge faster.

        They need not be decoded, copied and encoded again. `distinct` are columns of small files
        with other texts.
        """
        for field in self._snapshot.values:
            if (
                field.type == pa.string()
                and field.name not in distinct
                and all(
                    load_footer(self._location, file).is_repetitive(field.name)
                    for file in self._large
                )
            ):
                column_index = schema.get_field_index(field.name)
                schema = schema.set(
                    column_index, schema.field(column_index).with_type(_ENCODED_TEXT)
                )
        return schema

    def _may_remove(self) -> bool:
        """Return whether any event may be out of the retained range."""
        is_limited = self._snapshot.settings.retained != UNLIMITED
        # Whether an event is in the range depends on later events, which other files may have.
        is_whole = len(self._chosen) == len(self._snapshot.files)
        return is_whole and (is_limited or "floor_sequence" in self._index.columns)

    def _find_horizon(self, latest_us: int) -> int:
        """Return the last commit not later than `latest_us`; -1 if there is none."""
        newest = -1
        columns = ("commit", "commit_time")
        schema = select_fields(self._schema, columns)
        large = (scan_file(self._location, file, schema) for file in self._large)
        for rows in chain(self._small.values(), *large):
            commit, us = (to_int64(rows[name]) for name in columns)
            newest = max(newest, int(commit[us <= latest_us].max(initial=-1)))
        return newest

    def _scan_small(self, rows: pa.Table) -> pa.Table:
        """Do for the rows of small files, in memory, what `_scan_large` does for a file."""
        keys = rows.select(["series", "sequence"]).sort_by(
            [("series", "ascending"), ("sequence", "ascending")]
        )
        least_bytes = sum(_least_bytes(field.type) for field in self._schema)
        size = max(rows.nbytes // max(rows.num_rows, 1), least_bytes) + 1
        self._found += rows.num_rows
        self._samples += sample_sizes(keys, size, "")
        return compute_state(rows.select(STATE_COLUMNS), self.horizon)

    def _scan_large(self, file: DataFile) -> pa.Table:
        """Count the rows of a file and sample their keys; return the state of its series.

        It is empty if no events may be removed.
        """
        size = _estimate_row_bytes(self._location, file, self._schema)
        columns = STATE_COLUMNS if self.horizon >= 0 else STATE_COLUMNS[:2]
        states = []
        for table in scan_file(self._location, file, select_fields(self._schema, columns)):
            self._found += table.num_rows
            self._samples += sample_sizes(table, size, file.path)
            if self.horizon >= 0:
                states.append(compute_state(table, self.horizon))
        return combine_states(states)

    def is_due(self) -> bool:
        """Return whether there is anything to merge or to remove."""
        file = self._chosen[0]
        if (
            len({file.file_group for file in self._chosen}) > 1
            or not file.is_compacted
            or file.is_foreign
        ):
            return True
        if self.horizon < 0:
            return False
        return any(
            not self._select_kept(rows).all()
            for file in self._chosen
            for rows in scan_file(self._location, file, select_fields(self._schema, STATE_COLUMNS))
        )

    def _select_kept(self, events: pa.Table) -> np.ndarray:
        retained = self._snapshot.settings.retained
        return select_kept_events(events, self._states, self._index, retained, self.horizon)

    def write_all(self) -> list[WrittenFile]:
        """Write the new files; if one cannot be written, remove the others."""
        new_files: list[WrittenFile] = []
        begun: Future[WrittenFile] | None = None
        ranges = list(split_keys(self._samples, MAX_RANGE_BYTES, whole_series=False))
        with ThreadPoolExecutor(1, thread_name_prefix="tseries-merge") as writer:
            try:
                for path, table in self._merge_ranges(ranges):
                    if len(ranges) == 1:
                        # Nothing is merged meanwhile, and many files of a few rows come here.
                        new_files.append(self._write(path, table))
                        continue
                    if begun is not None:
                        new_files.append(begun.result())
                    begun = writer.submit(self._write, path, table)
                if begun is not None:
                    new_files.append(begun.result())
                # A range that lost a row, or got one twice, shows here.
                if self._found != self._kept_rows + self.removed:
                    raise _lost_events_error(self._store)
            except BaseException:
                with contextlib.suppress(Exception):
                    # If the file being written failed, it has removed itself.
                    new_files += [] if begun is None else [begun.result()]
                _discard_files(self._store, new_files)
                raise
        return new_files

    def _write(self, path: str, table: pa.Table) -> WrittenFile:
        return write_events(
            self._location,
            path,
            table,
            MAX_COMPACTED_GROUP_ROWS,
            MAX_COMPACTED_GROUP_BYTES,
            self._notes,
        )

    def _merge_ranges(self, ranges: Sequence[KeyRange]) -> Iterator[tuple[str, pa.Table]]:
        """Yield path and rows of each new file, and merge the next key range while it is written.

        So two key ranges are in memory at once.
        """
        commits = (
            min(file.first_commit for file in self._chosen),
            max(file.last_commit for file in self._chosen),
        )
        for number, keys in enumerate(ranges, self._first):
            for kind in ("event", "edit"):
                table = self._merge_range(kind, keys)
                self._kept_rows += table.num_rows
                if table.num_rows:
                    yield compacted_path(kind, commits, self._group, number), table

    def _merge_range(self, kind: str, keys: KeyRange) -> pa.Table:
        table = self._read_range(kind, keys)
        if not table.num_rows:
            return table
        if self.horizon >= 0:
            inside = self._select_kept(table)
            self.removed += int((~inside).sum())
            table = table.filter(pa.array(inside))
        names, codes = encode_runs(table["series"].combine_chunks())
        order = sort_keys(codes, to_int64(table["sequence"]))
        series = series_column(names, codes[order])
        table = _decode_large(_take_in_order(table.drop_columns(["series"]), order, series))
        return table if self._convert is None else self._convert(table)

    def _read_range(self, kind: str, keys: KeyRange) -> pa.Table:
        """Return the rows of a key range; key ranges are read in ascending order."""
        large = [file for file in self._large if file.kind == kind]
        ordered = [self._sorted[file.path] for file in large if not file.is_foreign]
        width = CPU_COUNT if self._location.is_local else MAX_REMOTE_READS
        pieces = map_parallel(lambda rows: rows.take(keys), ordered, width)
        tables = [assemble_pieces(chain.from_iterable(pieces), self._schema)]
        others = [file for file in large if file.is_foreign]
        if others:
            tables.append(read_rows(self._location, others, self._schema, RowFilter(keys=keys)))
        small = self._small[kind]
        if small.num_rows:
            inside = keys.contains(small["series"], to_int64(small["sequence"]))
            tables.append(small.filter(pa.array(inside)))
        return pa.concat_tables(tables)


class MemoryBudget:
    """The memory for rows held for later key ranges; several threads share it."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take `size` bytes if that many are left; return whether it did."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
        return fits

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._left += size


class SmallFiles:
    """All rows of the first small files among `chosen`; each is opened once.

    Opening a file takes longer than reading its few rows, and a busy store has thousands. Files are
    read while there is room.

    Attributes:
        paths: the files that were read.
        distinct_texts: their columns of texts that hardly repeat.
    """

    def __init__(
        self,
        location: Location,
        chosen: Sequence[DataFile],
        columns: Sequence[str],
        room: MemoryBudget,
    ) -> None:
        self._columns = columns
        self._tables: dict[str, list[pa.Table]] = {"event": [], "edit": []}
        self.paths = set[str]()
        self.distinct_texts = set[str]()
        small = [
            file
            for file in chosen
            if file.size <= SMALL_FILE_BYTES and file.rows <= SMALL_PIECE_ROWS
            if not file.is_foreign
        ]
        for start in range(0, len(small), SMALL_FILES_AT_ONCE):
            some = small[start : start + SMALL_FILES_AT_ONCE]
            # Threads would only wait for each other: Arrow has next to nothing to decode.
            width = 1 if location.is_local else MAX_REMOTE_READS
            tables = map_parallel(functools.partial(self._read, location), some, width)
            for file, table in zip(some, tables, strict=True):
                self.paths.add(file.path)
                self._tables[file.kind].append(table)
            if not room.take(sum(table.get_total_buffer_size() for table in tables)):
                break

    def _read(self, location: Location, file: DataFile) -> pa.Table:
        with explain_read_errors(location, file), location.read(location.file(file.path)) as source:
            footer = Footer(*read_footer(source, file.size))
            names = [name for name in self._columns if name in footer.names]
            columns = OpenFile(location, source, footer).columns(
                range(footer.group_count), names, threads=False
            )
        table = pa.table(columns)
        self.distinct_texts.update(
            field.name
            for field in table.schema
            if field.type == pa.string() and not footer.is_repetitive(field.name)
        )
        return table

    def rows(self, kind: str, schema: pa.Schema) -> pa.Table:
        """Return the rows of the files of one kind, in their order, in the columns of `schema`.

        They are given up here: a second call returns none.
        """
        tables_by_schema: dict[pa.Schema, list[pa.Table]] = {}
        for table in self._tables[kind]:
            tables_by_schema.setdefault(table.schema, []).append(table)
        self._tables[kind] = []
        pieces = []
        for schema_read, tables in tables_by_schema.items():
            table = pa.concat_tables(tables).combine_chunks()
            missing = dict.fromkeys(set(schema.names) - set(schema_read.names))
            pieces.append(PieceRows(missing, cast_columns(table, schema), table.num_rows))
        return assemble_pieces(pieces, schema)


class SortedFile:
    """The rows of a sorted file, read by ascending key ranges.

    A row group that reaches into the next range is decoded once: its remaining rows are held while
    there is room.
    """

    def __init__(
        self, location: Location, file: DataFile, schema: pa.Schema, room: MemoryBudget
    ) -> None:
        self._location = location
        self._file = file
        self._schema = schema
        self._room = room
        self._pieces: list[FilePiece] | None = None
        self._held: list[PieceRows] = []
        self._next = 0

    def take(self, keys: KeyRange) -> list[PieceRows]:
        """Return the rows in `keys`; calls come in ascending order of keys."""
        first_number = self._next - len(self._held)
        pieces = [*self._held, *self._read(keys)]
        self._room.give(sum(map(_measure, self._held)))
        self._held = []
        pieces_in_range = []
        for number, rows in enumerate(pieces, first_number):
            end = _count_before(rows, keys.end, rows.rows)
            rows_in_range = rows.slice(0, end)
            if end < rows.rows and not self._hold(number, rows.slice(end, rows.rows)):
                rows_in_range = _copy_few(rows_in_range)
            if end:
                pieces_in_range.append(rows_in_range)
        return pieces_in_range

    def _hold(self, number: int, rows: PieceRows) -> bool:
        """Hold rows of a row group, if there is room, for the next range."""
        if number >= self._next:
            return False
        rows = _copy_few(rows)
        has_room = self._room.take(_measure(rows))
        if has_room:
            self._held.append(rows)
        else:
            self._next = number  # Read this and later row groups again.
        return has_room

    def _read(self, keys: KeyRange) -> Iterator[PieceRows]:
        """Yield the rows of the next row groups that may begin in the range."""
        pieces = self._plan()
        begin = self._next
        end = keys.end
        while self._next < len(pieces):
            piece = pieces[self._next]
            bounds = piece.footer.bounds("series")[piece.groups[0]]
            if end is not None and bounds is not None and bounds[0] > end[0]:
                break
            self._next += 1
        due_pieces = pieces[begin : self._next]
        for rows in (
            read_pieces(self._location, due_pieces, ReadRequest(self._schema)) if due_pieces else ()
        ):
            # An earlier call has taken the rows before this range.
            yield _copy_few(rows.slice(_count_before(rows, keys.first, 0), rows.rows))

    def _plan(self) -> list[FilePiece]:
        if self._pieces is None:
            footer = load_footer(self._location, self._file)
            self._pieces = plan_pieces(self._file, footer, ALL_ROWS, 1)
        return self._pieces


def _count_before(rows: PieceRows, key: Key | None, default: int) -> int:
    """Return the number of sorted rows before `key`; `default` without a key."""
    if key is None:
        return default
    series, sequence = rows.columns["series"], to_int64(rows.columns["sequence"])
    return int(np.count_nonzero(KeyRange(end=key).contains(series, sequence)))


def _measure(rows: PieceRows) -> int:
    return int(rows.columns.get_total_buffer_size())


def _copy_few(rows: PieceRows) -> PieceRows:
    """Copy rows if they are a small part of the memory that they keep in use."""
    if 2 * rows.columns.nbytes > rows.columns.get_total_buffer_size():
        return rows
    return PieceRows(rows.fixed, rows.columns.take(pa.array(np.arange(rows.rows))), rows.rows)


def _take_in_order(table: pa.Table, order: Int64Array, series: pa.Array) -> pa.Table:
    """Return the rows of `table` in this order, with `series`, each column in one piece.

    Columns are taken one after the other, and each source is given up, so that the next column
    reuses its memory: new memory costs more time than the copies.
    """
    indices = pa.array(order)
    columns = {"series": series}
    for name in table.column_names:
        column = table[name].combine_chunks()
        table = table.drop_columns([name])
        columns[name] = pc.take(column, indices, boundscheck=False)
    return pa.table(columns)


def _decode_large(table: pa.Table) -> pa.Table:
    """Decode texts with many values: Parquet would write all of them into each row group."""
    for i, field in enumerate(table.schema):
        if field.type == _ENCODED_TEXT and field.name != "series":
            column = table[field.name]
            if any(len(chunk.dictionary) > MAX_ENCODED_TEXTS for chunk in column.chunks):
                table = table.set_column(i, field.name, column.cast(pa.string()))
    return table


def _estimate_row_bytes(location: Location, file: DataFile, schema: pa.Schema) -> int:
    metadata = load_footer(location, file).metadata
    stored = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    size: int = stored // max(metadata.num_rows, 1)
    return max(size, sum(_least_bytes(field.type) for field in schema)) + 1


def _least_bytes(data_type: pa.DataType) -> int:
    """Return the least memory of a cell, however small it is in a file."""
    if data_type == _ENCODED_TEXT:
        return 4
    return -(-data_type.bit_width // 8) if pa.types.is_primitive(data_type) else 16
