"""Describe a store, and verify every page, every event and the head (semantics 26.3).

A verification compares each file with its checksums, its footer and the log, and the events of each
series with the rules (semantics 15 to 19): sequences are contiguous and stored once; timestamps of
originals that are not erased do not decrease; commit numbers do not decrease, and each commit has
one time; an edit names an earlier original and repeats its timestamp and author; the head agrees
with the events. Compaction may have removed events up to its horizon that were out of the retained
range there.

A scan holds one key range of whole series in memory, and one row for each series.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries.errors import Finding, UnusableStore, WrongClock
from pyspark_tseries.maintain.erase import list_files_with_values, list_open_records
from pyspark_tseries.maintain.rebuild import compare_bounds, read_logged_bounds
from pyspark_tseries.model.arrays import (
    NEVER_US,
    NO_ORIGINAL,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
    SizedKey,
    encode_runs,
    sample_sizes,
    sort_keys,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.columns import ERASURE_FIELD, fits, type_name
from pyspark_tseries.model.commits import MAX_CLOCK_SKEW_US
from pyspark_tseries.model.ranges import DEFAULT_RANGE, RetainedRange, format_range, min_retained
from pyspark_tseries.model.series_index import SeriesIndex, compute_state
from pyspark_tseries.storage.data_files import (
    DataFile,
    FileStats,
    compute_stats,
    describe_contents,
    read_footer,
)
from pyspark_tseries.storage.erasures import read_records
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, Footer, OpenFile, RowFilter, read_rows
from pyspark_tseries.store.log_check import find_log_damage
from pyspark_tseries.store.store import Store


def describe(
    path: str | Location, storage_options: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the facts of the store at `path`, a local path, a `file:` URI or an `s3:` URI.

    `id` is the Delta table's. `events` counts all events ever appended, `stored_events` those that
    compaction has kept; queries see those in `retained_range`. `dropped` and `adjusted` count late
    rows since the store was created, with the latest example of each. `cti` is the store's CTI: no
    original before it will be appended. `cti_writers` has the CTI of each writer, None for a writer
    that has given none. `erasures` counts the erasures, and `erasure_files` names
    the files that still have some of these values, until the first maintenance ten minutes after
    the act.

    Raises:
        NoSuchStore: there is none.
        UnusableStore: it has a newer version, or is not a store.
        ValueError: `path` is empty or a URI of another kind.
    """
    store = Store.open(parse_location(path, storage_options))
    snapshot = store.snapshot()
    index = snapshot.index()
    metadata = index.metadata
    last_sequences = index.columns["last_sequence"]
    return {
        "path": snapshot.root,
        "id": store.id,
        "value_columns": {field.name: type_name(field.type) for field in snapshot.values},
        "series": int((last_sequences >= 0).sum()),
        "events": int((last_sequences + 1).sum()),
        "retained_range": format_range(snapshot.settings.retained),
        "retained_default": snapshot.settings.retained == DEFAULT_RANGE,
        "stored_events": sum(file.rows for file in snapshot.files),
        "files": len(snapshot.files),
        "bytes": sum(file.size for file in snapshot.files),
        "policy": snapshot.settings.policy,
        "last_commit": None if metadata.commit < 0 else metadata.commit,
        "last_commit_time": None if metadata.commit < 0 else format_instant(metadata.commit_us),
        "dropped": metadata.dropped,
        "last_dropped": metadata.last_dropped,
        "adjusted": metadata.adjusted,
        "last_adjusted": metadata.last_adjusted,
        "future": metadata.future,
        "last_future": metadata.last_future,
        "cti": _format_time(metadata.ctis.store_us),
        "cti_writers": {name: _format_time(us) for name, us in metadata.ctis.writers.items()},
        "erasures": sum(1 for _ in read_records(snapshot.location, metadata.erasure)),
        "erasure_files": list_files_with_values(store, list_open_records(store)),
        "maintenance_error": _read_maintenance_error(snapshot.location),
    }


def _format_time(us: int | None) -> str | None:
    return None if us is None else format_instant(us)


def _read_maintenance_error(location: Location) -> str | None:
    """Return the error of the last maintenance; None if it succeeded."""
    try:
        return location.read_whole(location.file("_tseries", "maintenance.error")).decode()
    except FileNotFoundError:
        return None


_FIXED_BYTES_PER_ROW = sum(
    f.type.bit_width // 8 for f in BASE_SCHEMA if not pa.types.is_string(f.type)
)
_TEXT_BYTES_PER_ROW = 64
"""A typical size of the text columns that are checked."""


@dataclass
class FileCheck:
    """The result of checking a file.

    Attributes:
        problem: a sentence; None if the file is intact.
        stats: the bounds of its rows; None if it has no rows, or a problem.
        samples: samples of its keys.
        narrow: a sentence that the file has a narrower type than the store; else None.
    """

    problem: str | None = None
    stats: FileStats | None = None
    samples: list[SizedKey] = field(default_factory=list)
    narrow: str | None = None


class _DamagedFile(Exception):
    """A file that can be read but has the wrong content."""


def check_file(location: Location, file: DataFile, values: Iterable[pa.Field]) -> FileCheck:
    """Read and check all of `file`; its store has the value columns `values`."""
    checked = FileCheck()
    path = location.file(file.path)
    try:
        size = location.size(path)
        if size != file.size:
            raise _DamagedFile(f"has {size} bytes instead of the {file.size} in the log")
        with location.read(path) as source:
            footer = Footer(*read_footer(source, size))  # Read again, not from the cache.
            _check_content(OpenFile(location, source, footer), file, values, checked)
    except FileNotFoundError:
        problem = "is missing"
    except _DamagedFile as error:
        problem = str(error)
    except (OSError, pa.ArrowException, ValueError) as error:
        if not location.is_local and "AWS Error" in str(error):
            raise
        problem = f"cannot be read: {location.redact(str(error)).splitlines()[0]}"
    else:
        return checked
    return FileCheck(f"file '{file.path}' {problem}; by the log it has {describe_contents(file)}")


def _check_content(
    source: OpenFile, file: DataFile, values: Iterable[pa.Field], checked: FileCheck
) -> None:
    footer = source.footer
    file_schema = footer.metadata.schema.to_arrow_schema()
    checked.narrow = _check_columns(file_schema, pa.schema([*BASE_SCHEMA, *values]), file)
    rows, last_key = 0, None
    for group in range(footer.group_count):
        table = pa.table(source.columns([group], file_schema.names, threads=True))
        table.validate(full=True)
        if table.num_rows != footer.group_rows[group]:
            raise _DamagedFile(
                f"has {table.num_rows} rows in row group {group}, not as many as its footer says"
            )
        _check_footer(table, footer, group)
        rows += table.num_rows
        if table.num_rows:
            last_key = _check_order(table, file, last_key)
            _check_erased(table, values)
            stats = compute_stats(table)
            checked.stats = checked.stats.extended_with(stats) if checked.stats else stats
            checked.samples += sample_sizes(
                table, _FIXED_BYTES_PER_ROW + _TEXT_BYTES_PER_ROW, file.path
            )
    if rows != file.rows:
        raise _DamagedFile(f"has {rows} rows instead of the {file.rows} in the log")


def _check_columns(file_schema: pa.Schema, store_schema: pa.Schema, file: DataFile) -> str | None:
    """Return a sentence about a column with a narrower type than the store's; None without one.

    Raises:
        _DamagedFile: the file lacks a column of every store, or one has a type of another kind.
    """
    narrow = None
    for column in store_schema:
        if column.name not in file_schema.names:
            if column.name in BASE_SCHEMA.names and column.name != ERASURE_FIELD.name:
                raise _DamagedFile(f"has no column '{column.name}'")
            continue
        data_type = file_schema.field(column.name).type
        # Writers name some nested fields, such as the elements of lists, differently.
        may_differ = file.is_foreign or pa.types.is_nested(column.type)
        if data_type != column.type and not may_differ:
            difference = (
                f"has a column '{column.name}' of type {data_type}, the store's is of type "
                f"{column.type}"
            )
            if column.name in BASE_SCHEMA.names or not fits(data_type, column.type):
                raise _DamagedFile(difference)
            narrow = f"file '{file.path}' {difference}"
    return narrow


def _check_erased(table: pa.Table, values: Iterable[pa.Field]) -> None:
    """Raise _DamagedFile if an erased event has a value."""
    if ERASURE_FIELD.name not in table.column_names:
        return
    erased = table.filter(table[ERASURE_FIELD.name].is_valid())
    for name in (value.name for value in values if value.name in table.column_names):
        if erased[name].null_count != erased.num_rows:
            raise _DamagedFile(f"has a value of an erased event in column '{name}'")


def _check_footer(table: pa.Table, footer: Footer, group: int) -> None:
    """Raise _DamagedFile if the bounds in the footer would make a reader skip rows."""
    for name in ("series", "sequence", "timestamp", "commit"):
        bounds = footer.bounds(name)[group]
        if bounds is not None and table.num_rows:
            column = table[name] if name == "series" else pa.chunked_array([to_int64(table[name])])
            ends = pc.min_max(column)
            if ends["min"].as_py() < bounds[0] or ends["max"].as_py() > bounds[1]:
                raise _DamagedFile(f"has a footer that contradicts the values of column '{name}'")
    for name in table.column_names:
        constant = footer.constant([group], name)
        if constant is not None and table[name].unique().to_pylist() not in ([constant[0]], []):
            raise _DamagedFile(f"has a footer that contradicts the values of column '{name}'")


def _check_order(
    table: pa.Table, file: DataFile, previous_key: tuple[str, int] | None
) -> tuple[str, int] | None:
    """Return the last key of the table; raise _DamagedFile if the keys do not increase."""
    if file.is_foreign:
        return None
    series, sequence = table["series"].combine_chunks(), to_int64(table["sequence"])
    first_key = series[0].as_py(), int(sequence[0])
    above = pc.greater(series[1:], series[:-1]).to_numpy(zero_copy_only=False)
    same = pc.equal(series[1:], series[:-1]).to_numpy(zero_copy_only=False)
    rising = above | (same & (np.diff(sequence) > 0))
    if not rising.all() or (previous_key is not None and first_key <= previous_key):
        raise _DamagedFile("is not sorted by (series, sequence)")
    return series[-1].as_py(), int(sequence[-1])


MAX_EXAMPLES: Final = 5
"""Report at most this many examples of each kind of violation."""


@dataclass(frozen=True, slots=True)
class CompactionHorizon:
    """The events that compaction may have removed.

    Attributes:
        horizon: the last commit with events that it may have removed; -1 if it removed none.
        retained: the retained range that applied there, or a smaller one.
    """

    horizon: int = -1
    retained: RetainedRange = RetainedRange()


@dataclass(frozen=True, slots=True)
class _SortedEvents:
    """Events sorted by key.

    Attributes:
        same: flags the events with a predecessor in their series.
        timed: flags originals that are not erased: their times do not decrease.
    """

    names: list[str]
    codes: Int64Array
    sequence: Int64Array
    us: Int64Array
    edited: Int64Array
    commit: Int64Array
    commit_us: Int64Array
    same: BoolArray
    timed: BoolArray
    table: pa.Table

    def series(self, row: int) -> str:
        return self.names[int(self.codes[row])]

    def finding(self, kind: str, row: int, why: str) -> Finding:
        """Return the finding that the event `row` has the fault `why`."""
        name, sequence = self.series(row), int(self.sequence[row])
        problem = f"series '{name}': sequence {sequence} {why}"
        return Finding(kind, problem, series=name, sequences=(sequence, sequence))


def find_violations(
    events: pa.Table, index: SeriesIndex, compacted: CompactionHorizon
) -> list[Finding]:
    """Return the violations of the rules by `events`."""
    if not events.num_rows:
        return []
    sorted_events = _sort_events(events)
    required = _compute_required_sequences(sorted_events, index, compacted)
    checks = (
        _check_sequences(sorted_events, required),
        _check_timestamps(sorted_events),
        _check_commits(sorted_events),
        _check_edits(sorted_events, required),
        _check_head(sorted_events, index),
    )
    return [finding for check in checks for finding in check]


def _sort_events(events: pa.Table) -> _SortedEvents:
    names, codes = encode_runs(events["series"])
    order = sort_keys(codes, to_int64(events["sequence"]))
    table = events.take(pa.array(order)).combine_chunks()
    codes = codes[order]
    edited = to_int64(table["original_sequence"].fill_null(NO_ORIGINAL))
    return _SortedEvents(
        names=names.to_pylist(),
        codes=codes,
        sequence=to_int64(table["sequence"]),
        us=to_int64(table["timestamp"]),
        edited=edited,
        commit=to_int64(table["commit"]),
        commit_us=to_int64(table["commit_time"]),
        same=np.diff(codes, prepend=-1) == 0,
        timed=(edited == NO_ORIGINAL) & table["erasure"].is_null().to_numpy(),
        table=table,
    )


def _compute_required_sequences(
    events: _SortedEvents, index: SeriesIndex, compacted: CompactionHorizon
) -> Int64Array:
    """Return, for each series, a sequence: from there on no event may be missing."""
    required = np.zeros(len(events.names), np.int64)
    if compacted.horizon < 0:
        return required
    states = compute_state(events.table, compacted.horizon).sort_by("series")
    floors = index.floors(events.names)
    newest = to_int64(states["horizon_sequence"]), to_int64(states["horizon_us"])
    required, oldest_us = min_retained(compacted.retained, *newest, floors)
    inside = events.timed & (events.us >= oldest_us[events.codes])
    first_inside = np.full(len(required), np.iinfo(np.int64).max)
    np.minimum.at(first_inside, events.codes[inside], events.sequence[inside])
    first_inside[oldest_us <= NEVER_US] = 0
    needed: Int64Array = np.maximum(required, first_inside)
    return needed


def _check_sequences(events: _SortedEvents, required: Int64Array) -> Iterator[Finding]:
    step = np.diff(events.sequence, prepend=0)
    for row in np.flatnonzero(events.same & (step == 0))[:MAX_EXAMPLES]:
        yield events.finding("sequence", row, "is stored twice")
    before = np.where(events.same, events.sequence - step, -1)
    lowest = np.maximum(before + 1, required[events.codes])
    for row in np.flatnonzero(lowest < events.sequence)[:MAX_EXAMPLES]:
        name, begin = events.series(row), int(lowest[row])
        end = int(events.sequence[row]) - 1
        problem = f"series '{name}': sequences {begin} to {end} are missing"
        yield Finding("sequence", problem, series=name, sequences=(begin, end))


def _check_timestamps(events: _SortedEvents) -> Iterator[Finding]:
    rows = np.flatnonzero(events.timed)
    back = (np.diff(events.us[rows], prepend=0) < 0) & (
        np.diff(events.codes[rows], prepend=-1) == 0
    )
    for i in np.flatnonzero(back)[:MAX_EXAMPLES]:
        us, before = (format_instant(int(events.us[row])) for row in (rows[i], rows[i - 1]))
        why = f"at {us} is before the original {events.sequence[rows[i - 1]]} at {before}"
        yield events.finding("timestamp", rows[i], why)


def _check_commits(events: _SortedEvents) -> Iterator[Finding]:
    back = np.flatnonzero(events.same & (np.diff(events.commit, prepend=0) < 0))
    for row in back[:MAX_EXAMPLES]:
        why = f"is of commit {events.commit[row]}, its predecessor of a later one"
        yield events.finding("commit", row, why)
    order = np.lexsort((events.commit_us, events.commit))
    commit, us = events.commit[order], events.commit_us[order]
    step_us = np.diff(us, prepend=us[:1])
    wrong = (step_us < 0) | ((step_us != 0) & (np.diff(commit, prepend=commit[:1]) == 0))
    for row in order[np.flatnonzero(wrong)][:MAX_EXAMPLES]:
        why = f"is wrong: commit {events.commit[row]} has two times, or one out of order"
        yield events.finding("commit", row, why)


def _check_edits(events: _SortedEvents, required: Int64Array) -> Iterator[Finding]:
    rows = np.flatnonzero(events.edited != NO_ORIGINAL)
    if not len(rows):
        return
    codes, edited = events.codes[rows], events.edited[rows]
    # One 64-bit number per key: code and sequence may not fit together, but code and rank do.
    sequences, ranks = np.unique(np.concatenate([events.sequence, edited]), return_inverse=True)
    stored = events.codes * len(sequences) + ranks[: len(events.sequence)]
    target = codes * len(sequences) + ranks[len(events.sequence) :]
    originals = np.minimum(np.searchsorted(stored, target), len(stored) - 1)
    exists = stored[originals] == target
    forward = edited >= events.sequence[rows]
    lost = ~exists & (edited >= required[codes]) & ~forward
    wrong = exists & (events.edited[originals] != NO_ORIGINAL) & ~forward
    unlike = exists & ~wrong & ~forward & _flag_wrong_originals(events.table, rows, originals)
    for bad, fault in (
        (forward, "which is not before it"),
        (lost, "which does not exist"),
        (wrong, "which is an edit itself"),
        (unlike, "whose timestamp or author differs from what the edit records"),
    ):
        for i in np.flatnonzero(bad)[:MAX_EXAMPLES]:
            yield events.finding("edit", rows[i], f"edits {edited[i]}, {fault}")


def _flag_wrong_originals(
    table: pa.Table, rows: Int64Array, original_rows: Int64Array
) -> BoolArray:
    """Flag the edits that record another timestamp or author than their original has."""
    edits, originals = table.take(pa.array(rows)), table.take(pa.array(original_rows))
    unlike = np.zeros(len(rows), bool)
    for name in ("timestamp", "author"):
        equal = pc.equal(edits[f"original_{name}"], originals[name]).fill_null(False)
        unlike |= ~equal.to_numpy().astype(bool)
    return unlike


def _check_head(events: _SortedEvents, index: SeriesIndex) -> Iterator[Finding]:
    states = compute_state(events.table, -1).sort_by("series")
    head_columns = index.lookup(events.names)
    for column in head_columns:
        stored = to_int64(states[column])
        wrong = head_columns[column] != stored
        if column in ("first_us", "edits"):
            # They include events that compaction has removed since; an old head lacks them.
            is_counted = head_columns["first_us"] != NEVER_US
            is_complete = np.bincount(events.codes) == head_columns["last_sequence"] + 1
            # A series may have nothing left but erased edits: no original to compare with.
            too_few = (
                head_columns[column] < stored
                if column == "edits"
                else (head_columns[column] > stored) & (stored != NEVER_US)
            )
            wrong &= is_counted & (is_complete | too_few)
        for code in np.flatnonzero(wrong)[:MAX_EXAMPLES]:
            name, value = events.names[int(code)], head_columns[column][code]
            text = "nothing" if value in (NO_SEQUENCE, NEVER_US) else value
            problem = f"the head has {column} {text}, its events have {stored[code]}"
            yield Finding("state", f"series '{name}': {problem}", series=name)


MAX_CHECKED_BYTES = 64 * 1024 * 1024
"""The uncompressed size of the checked columns in one key range."""

MAX_LOST_SERIES = 100


def verify(path: str | Location) -> list[Finding]:
    """Return the damage of the store at `path`; an empty list if it is sound.

    Raises:
        NoSuchStore: there is none.
        UnusableStore: the store cannot be opened at all.
        ValueError: `path` is empty or a URI of another kind.
    """
    location = parse_location(path)
    damage = find_log_damage(location) if location.is_local else None
    if damage is not None:
        return [Finding.of(damage)]
    findings = dict.fromkeys(_find_damage(Store.open_damaged(location)))
    return [finding.with_advice(location.root) for finding in findings]


def _find_damage(store: Store) -> Iterator[Finding]:
    errors: list[Finding] = []
    index = data = None
    with _noted(errors):
        store.log.check()
    with _noted(errors):
        if store.metadata().commit_us > read_wall_clock() + MAX_CLOCK_SKEW_US:
            store.read_clock()
    with _noted(errors):
        data = store.data_files()
    with _noted(errors):
        index = store.index() if data is not None else None
    with _noted(errors):
        list(read_records(store.location, None if index is None else index.metadata.erasure))
    yield from errors
    readable: list[DataFile] = []
    samples: list[SizedKey] = []
    values = store.values
    logged = read_logged_bounds(store)
    for file in data or ():
        checked = check_file(store.location, file, values)
        if checked.problem is not None:
            yield Finding("file", checked.problem, path=file.path)
            continue
        if checked.narrow is not None:
            yield Finding("types", checked.narrow, path=file.path)
        readable.append(file)
        samples += checked.samples
        if checked.stats is not None and not file.is_foreign:
            yield from compare_bounds(file, logged[file.path], checked.stats)
    if index is not None:
        compacted = CompactionHorizon(store.horizon(), store.settings.retained)
        yield from check_rows(store.location, compacted, index, readable, samples)


@contextlib.contextmanager
def _noted(errors: list[Finding]) -> Iterator[None]:
    try:
        yield
    except (UnusableStore, WrongClock) as error:
        errors.append(Finding.of(error))


def check_rows(
    location: Location,
    compacted: CompactionHorizon,
    index: SeriesIndex,
    data: list[DataFile],
    samples: list[SizedKey],
) -> Iterator[Finding]:
    """Yield the violations of the events in the readable files `data`, with keys as `samples`."""
    has_rows = np.zeros(len(index.columns["last_sequence"]), bool)
    for keys in split_keys(samples, MAX_CHECKED_BYTES, whole_series=True):
        events = read_rows(location, data, BASE_SCHEMA, RowFilter(keys=keys))
        ids = index.ids.find(events["series"].unique().to_pylist())
        has_rows[ids[(ids >= 0) & (ids < len(has_rows))]] = True
        yield from find_violations(events, index, compacted)
    names = index.ids.names()
    lost = np.flatnonzero(~has_rows & (index.columns["last_sequence"] >= 0))
    for row in lost[:MAX_LOST_SERIES]:
        name, last_sequence = names[int(row)], int(index.columns["last_sequence"][row])
        problem = f"series '{name}': the head has last_sequence {last_sequence}, without events"
        yield Finding("state", problem, series=name, sequences=(0, last_sequence))
