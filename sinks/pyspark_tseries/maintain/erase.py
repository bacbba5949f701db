"""Erase the values of events, and of all edits of them (semantics 18.6).

An erasure replaces the files that hold a value. The old files, and the log's statistics of them,
stay for a while, as after a compaction; maintenance finds them by their contents and removes them
earlier than others (semantics 18.9). The commit changes the head, so it competes with appends: an
edit of an erased original is either erased too, or refused.
"""

import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_timestream.core.instants import DAY_US, format_instant
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import IncompatibleValue, NoSuchEvent, StoreBusy, TseriesError
from pyspark_tseries.maintain.compactor import Merge
from pyspark_tseries.model.arrays import NEVER_US, NO_SEQUENCE, BoolArray, Int64Array, to_int64
from pyspark_tseries.model.columns import ERASURE_FIELD, is_valid_text
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.ranges import is_whole_number
from pyspark_tseries.model.series_index import (
    FLOOR_DEFAULTS,
    STATE_COLUMNS,
    SeriesIndex,
    advance_index,
    compute_state,
    make_change,
    next_metadata,
)
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.erasures import (
    KEY_COLUMNS,
    ErasedKeys,
    Erasure,
    ErasureRecord,
    flag_erasure,
    list_flagged,
    read_records,
    write_record,
)
from pyspark_tseries.storage.location import LOG_FOLDER, Location, exclusive, list_event_files
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, base_fields, read_rows
from pyspark_tseries.storage.snapshot import Snapshot, write_head
from pyspark_tseries.store.admin_commits import add_columns, require_owner
from pyspark_tseries.store.checkpoints import (
    CHECKPOINT_LOCK,
    read_last_checkpoint,
    wait_for_checkpoints,
    write_checkpoint,
)
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.log_check import LogFile, list_log_files
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import CommitContext, PreparedCommit, Revision

KEPT_FOR_READERS_US: Final = 600_000_000
"""Keep files and log entries with erased values this long, for tasks that are reading them."""

_UNDECIDED_US: Final = DAY_US
"""For this long after an erasure, a killed compaction may have left a file with its values."""


def list_open_records(store: Store) -> list[ErasureRecord]:
    """Return the records of erasures with values that may still be in some file, oldest first."""
    last_erasure = store.metadata().erasure
    if last_erasure is None:
        return []
    done_ids = list_flagged(store.location, "done")
    open_records = []
    for record in read_records(store.location, last_erasure):
        if record.erasure.id in done_ids:
            break
        open_records.append(record)
    return open_records[::-1]


def list_files_with_values(store: Store, records: Sequence[ErasureRecord]) -> list[str]:
    """List the files that may still have an erased value; paths are relative to the store."""
    wait_for_checkpoints()  # One that was due before the erasure may have a value as well.
    if not records:
        return []
    keys = _collect_keys(records)
    data = [*_list_dead_files(store, keys), *_list_kept_aside(store.location, keys)]
    data += _list_staged(store.location, max(record.erasure.time_us for record in records))
    return [
        *data,
        *(f"_delta_log/{file.name}" for file in _list_log_files(store.location, records)),
    ]


def remove_erased_bytes(store: Store, now_us: int) -> int:
    """Remove the files and log entries that have an erased value, ten minutes after the erasure.

    Leave out files that no commit has named, because a writer may be about to commit them, and
    files that a repair has put aside, because the operator removes them.
    """
    records = list_open_records(store)
    due = [record for record in records if record.erasure.time_us + KEPT_FOR_READERS_US <= now_us]
    if not due:
        return 0
    location = store.location
    removed = 0
    dead = _list_dead_files(store, _collect_keys(due))
    if dead:
        table = load_table(location)
        obsolete = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))
        obsolete -= store.snapshot().paths
        removable = [location.file(path) for path in dead if path in obsolete]
        location.remove(removable)
        removed = len(removable)
    _remove_log_files(store, due)
    for record in due:
        is_undecided = record.erasure.time_us + _UNDECIDED_US > now_us
        if is_undecided or list_files_with_values(store, [record]):
            break
        flag_erasure(location, record.erasure.id, "done")
    return removed


def _collect_keys(records: Sequence[ErasureRecord]) -> ErasedKeys:
    keys = ErasedKeys()
    for record in records:
        keys.add(record.erasure)
    return keys


def _list_dead_files(store: Store, keys: ErasedKeys) -> list[str]:
    """List the data files outside the store's current version that have one of `keys`."""
    live = store.snapshot().paths
    return sorted(
        file.path
        for file in list_event_files(store.location)
        if file.path not in live
        and file.path.endswith(".parquet")
        and _has_values(store.location, file.full, keys)
    )


def _list_kept_aside(location: Location, keys: ErasedKeys) -> list[str]:
    """List the files with one of `keys` that a repair has put aside."""
    if not location.is_local:
        return []
    folders = os.walk(location.file("_tseries", "lost"))
    paths = [os.path.join(folder, name) for folder, _, names in folders for name in names]
    data = [path for path in sorted(paths) if path.endswith(".parquet")]
    return [
        os.path.relpath(path, location.root) for path in data if _has_values(location, path, keys)
    ]


def _list_staged(location: Location, before_us: int) -> list[str]:
    """List the files that killed writers have staged before an erasure.

    Their rows have no sequences yet, so any of them may belong to an erased event.
    """
    staging = location.file("_tseries", "staging")
    staged = list(location.list_files(staging))
    for folder in location.list_folders(staging):
        staged += location.list_files(location.file("_tseries", "staging", folder, LOG_FOLDER))
    return sorted(
        os.path.relpath(path, location.file())
        for path, changed_ns in staged
        if changed_ns < before_us * 1000
    )


def _has_values(location: Location, path: str, keys: ErasedKeys) -> bool:
    """Return whether a data file has an event of `keys` with its values, or cannot be read."""
    try:
        with location.read(path) as source:
            file = pq.ParquetFile(source)
            key_columns = [name for name in KEY_COLUMNS if name in file.schema_arrow.names]
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=key_columns)
                for name in set(KEY_COLUMNS) - set(key_columns):
                    data_type = pa.string() if name in ("series", "erasure") else pa.int64()
                    rows = rows.append_column(name, pa.nulls(rows.num_rows, data_type))
                if keys.flag_values(rows).any():
                    return True
    except FileNotFoundError:
        return False
    except (OSError, pa.ArrowException):
        return True
    return False


def _list_log_files(location: Location, records: Sequence[ErasureRecord]) -> list[LogFile]:
    """List the log files from before the erasures with statistics that may have an erased value."""
    cleaned = list_flagged(location, "log")
    records = [record for record in records if record.erasure.id not in cleaned]
    if not records:
        return []
    keys = _collect_keys(records)
    last_version = max(record.log_version for record in records)
    early = (file for file in list_log_files(location) if file.version <= last_version)
    return [file for file in early if _may_have_value(location, file, keys)]


def _may_have_value(location: Location, file: LogFile, keys: ErasedKeys) -> bool:
    try:
        return any(map(keys.may_be_in, _read_statistics(location, file.full)))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return True


def _read_statistics(location: Location, path: str) -> Iterator[str | None]:
    with location.read(path) as source:
        if path.endswith(".parquet"):
            file = pq.ParquetFile(source)
            yield from (
                add["stats"]
                for add in file.read(columns=["add.stats"])["add"].to_pylist()
                if add is not None
            )
            return
        content = source.read()
    for line in content.splitlines():
        if b'"add"' in line:
            action = json.loads(line).get("add")
            if action is not None:
                yield action.get("stats")


def _remove_log_files(store: Store, records: Sequence[ErasureRecord]) -> None:
    """Remove the log up to the last entry or checkpoint that may have a value, oldest first."""
    location = store.location
    last_with_values = max(record.log_version for record in records)
    wait_for_checkpoints()
    with exclusive(location, CHECKPOINT_LOCK) as lock:
        if lock is None:
            return  # A writer may be about to add an older checkpoint; the next round tries again.
        files_with_values = _list_log_files(location, records)
        if not files_with_values:
            # The log gains nothing from before an erasure, so read it only once.
            ids = {record.erasure.id for record in records}
            for erasure_id in ids - list_flagged(location, "log"):
                flag_erasure(location, erasure_id, "log")
            return
        if read_last_checkpoint(location).version <= last_with_values:
            if location.is_local:
                write_checkpoint(location, store.log.version())
            else:
                load_table(location).create_checkpoint()
        if read_last_checkpoint(location).version <= last_with_values:
            return  # Another writer made the last one; the next round tries again.
        last_version = files_with_values[-1].version
        # Oldest first, so that a reader that still finds an entry finds all later ones, too.
        location.remove(
            file.full for file in list_log_files(location) if file.version <= last_version
        )


def erase(
    store: Store,
    series: str,
    sequences: int | Iterable[int],
    reason: str,
    *,
    principal: str | None = None,
    clock: Callable[[], int] = read_wall_clock,
) -> Erasure | None:
    """Erase the values of events of `series`, and those of all edits of them.

    Args:
        store: the store, up to date.
        series: the name of the series.
        sequences: the sequences of originals, or of single edits.
        reason: the reason, which the erasure keeps.
        principal: who does it; None: the OS user.
        clock: the wall clock, in microseconds.

    Returns:
        The erasure; None if all of them were erased before.

    Raises:
        NoSuchEvent: the series has never had one of the events; nothing is erased.
        IncompatibleValue: the name, a sequence or the reason is not valid.
        PermissionDenied: the store has a policy, and the principal is not an owner.
        StoreBusy: other writers won all attempts.
        WrongClock: the clock is far ahead, or was when the last commit was made.
        OSError: the storage failed.
    """
    checked = _check_arguments(series, sequences, reason)
    author = author_or_user(principal)
    require_owner(store, author, "erase values")
    batch = _ErasureCommit(store, series, checked, reason, author)
    batch.check(store.index())
    add_columns(store, [ERASURE_FIELD])
    try:
        commit = store.append(batch, clock)
    except _AllErased:
        return None
    except StoreBusy as error:
        raise store.busy_error(store.retrying.commit_attempts, "nothing was erased") from error
    finally:
        batch.discard_unused()
    assert commit is not None
    record = batch.records[commit.head_id]
    files_left = list_files_with_values(store, [record])
    return dataclasses.replace(record.erasure, files=tuple(files_left))


def list_erasures(store: Store) -> list[Erasure]:
    """Return the erasures, oldest first, with the files that still have some."""
    files_left = {}
    open_records = list_open_records(store)
    if list_files_with_values(store, open_records):
        for record in open_records:
            files_left[record.erasure.id] = tuple(list_files_with_values(store, [record]))
    erasures = [record.erasure for record in read_records(store.location, store.metadata().erasure)]
    return [
        dataclasses.replace(erasure, files=files_left.get(erasure.id, ()))
        for erasure in reversed(erasures)
    ]


def _check_arguments(series: str, sequences: int | Iterable[int], reason: str) -> tuple[int, ...]:
    """Check the arguments; return the distinct sequences, ascending."""
    if not is_valid_text(series):
        raise IncompatibleValue(f"{series!r} is not the name of a series", "a text", "correct it")
    if not is_valid_text(reason) or not reason.strip():
        raise IncompatibleValue(
            f"{reason!r} is not a reason", "a text that is not empty", "say why the value is erased"
        )
    is_one = isinstance(sequences, str | bytes) or not isinstance(sequences, Iterable)
    requested: list[Any] = [sequences] if is_one else list(cast("Iterable[Any]", sequences))
    for sequence in requested:
        if not is_whole_number(sequence):
            raise IncompatibleValue(
                f"{show_value(sequence)} is not a sequence", "whole numbers", "correct it"
            )
    if not requested:
        raise IncompatibleValue("no sequence was given", "one sequence or more", "name the events")
    return tuple(sorted({int(sequence) for sequence in requested}))


class _AllErased(Exception):
    """All events of an erasure were erased before."""


class _ErasureCommit(Revision):
    """One erasure, and the files that its attempts have written so far.

    Attributes:
        records: the record of each attempt, by the id of the attempt's head.
    """

    def __init__(
        self, store: Store, series: str, sequences: tuple[int, ...], reason: str, principal: str
    ) -> None:
        self._store = store
        self._location = store.location
        self._series = series
        self._sequences = sequences
        self._reason = reason
        self._principal = principal
        self._id = f"{secrets.randbits(62):016x}"
        self._rewritten: dict[tuple[str, ...], list[WrittenFile]] = {}
        self._keys = ErasedKeys({series: set(sequences)}, {series: set(sequences)})
        self.records: dict[int, ErasureRecord] = {}

    def check(self, index: SeriesIndex) -> None:
        """Raise NoSuchEvent for an event that the series has never had."""
        last_sequence = index.lookup_one(self._series)["last_sequence"]
        unknown = [sequence for sequence in self._sequences if not 0 <= sequence <= last_sequence]
        if unknown:
            newest = (
                "it is empty"
                if last_sequence == NO_SEQUENCE
                else f"its newest is sequence {last_sequence}"
            )
            raise NoSuchEvent(
                f"series '{self._series}' has no event {', '.join(map(str, unknown))}; {newest}",
                "sequences of events of the series",
                "correct the sequences. Nothing is erased",
            )

    def revise(self, context: CommitContext, snapshot: Snapshot) -> PreparedCommit:
        """Rewrite the files that hold a value; raise _AllErased if there is nothing to erase."""
        AccessCheck(context.settings.policy, self._principal).require("own", "erase values")
        index = context.index
        self.check(index)
        stored = _StoredSeries(snapshot, self._series, self._keys, self._id)
        requested = np.array(self._sequences, np.int64)
        removed = tuple(requested[~np.isin(requested, stored.stored)].tolist())
        if not stored.erased and not removed:
            raise _AllErased
        replaced, new_files = self._rewrite(snapshot, stored)
        metadata = next_metadata(index, context.head_id, now_us=context.now_us, rows=1)
        record = ErasureRecord(
            Erasure(
                id=self._id,
                commit=metadata.commit,
                time=format_instant(metadata.commit_us),
                principal=self._principal,
                reason=self._reason,
                series=self._series,
                sequences=self._sequences,
                events=stored.erased,
                removed=removed,
            ),
            metadata.erasure,
            self._store.log.version(),
        )
        metadata = dataclasses.replace(metadata, erasure=self._id)
        after, table = advance_index(index, stored.make_change(index), metadata)
        head = write_head(self._location, context.new_id, table)
        beside = (write_record(self._location, record),)
        self.records[context.new_id] = record
        # The rewritten files serve the next attempt, too.
        return PreparedCommit(
            context.new_id, after, new_files, [head], replaced=tuple(replaced), beside=beside
        )

    def _rewrite(
        self, snapshot: Snapshot, stored: "_StoredSeries"
    ) -> tuple[list[DataFile], list[WrittenFile]]:
        """Rewrite one run of files at a time; return the files to replace and the new ones."""
        replaced: list[DataFile] = []
        new_files: list[WrittenFile] = []
        for file_group in dict.fromkeys(file.file_group for file in stored.holders):
            group_files = [file for file in stored.holders if file.file_group == file_group]
            key = tuple(file.path for file in group_files)
            if key not in self._rewritten:
                merge = Merge(self._store, snapshot, group_files, NEVER_US, self._erase_rows)
                self._rewritten[key] = merge.write_all()
            replaced += group_files
            new_files += self._rewritten[key]
        return replaced, new_files

    def _erase_rows(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with nulls in place of the erased values."""
        is_erased = self._keys.flag_values(rows)
        if not is_erased.any():
            return rows
        # Taking null positions gives nulls of any type, nested ones as well.
        positions = pa.array(np.arange(rows.num_rows), mask=is_erased)
        for i, column in enumerate(rows.schema):
            if column.name not in BASE_SCHEMA.names:
                erased = rows[i].combine_chunks().take(positions)
                rows = rows.set_column(i, column.with_nullable(True), erased)
        return _mark_erased(rows, is_erased, self._id)

    def discard_unused(self) -> None:
        """Remove the files of attempts that are not in the store."""
        if not self._rewritten or not self._location.is_local:
            return  # In an object store a request that failed may still be carried out.
        with contextlib.suppress(TseriesError, OSError):  # The first error is being raised.
            live = self._store.snapshot().paths
            paths = (file.path for files in self._rewritten.values() for file in files)
            unused = [path for path in paths if path not in live]
            self._location.discard(map(self._location.file, unused))


def _mark_erased(rows: pa.Table, is_erased: BoolArray, erasure_id: str) -> pa.Table:
    """Return `rows` with the id of the erasure in those that are erased."""
    column = rows.schema.get_field_index(ERASURE_FIELD.name)
    ids = np.where(is_erased, erasure_id, np.array(rows[column].to_pylist(), object))
    return rows.set_column(column, ERASURE_FIELD, pa.array(ids, pa.string()))


def find_last_gap(stored: Int64Array, last_number: int) -> int:
    """Return the last number from 0 to `last_number` that the ascending `stored` lacks, or -1.

    >>> find_last_gap(np.array([0, 2, 3]), 3), find_last_gap(np.array([0, 1]), 1)
    (1, -1)
    """
    if not len(stored) or stored[-1] < last_number:
        return last_number
    steps = np.flatnonzero(np.diff(stored) > 1)
    return int(stored[steps[-1] + 1]) - 1 if len(steps) else int(stored[0]) - 1


class _StoredSeries:
    """The stored events of a series, before and after an erasure.

    Attributes:
        holders: the files that hold a value to erase.
        erased: the sequences of the events to erase.
        stored: the sequences of all stored events, ascending.
    """

    def __init__(self, snapshot: Snapshot, series: str, keys: ErasedKeys, erasure_id: str) -> None:
        columns = tuple(dict.fromkeys([*STATE_COLUMNS, *KEY_COLUMNS]))
        self._series = series
        self.holders: list[DataFile] = []
        tables = [BASE_SCHEMA.empty_table().select(columns)]
        erased = []
        row_filter = RowFilter([series])
        for file in filter(row_filter.may_match_file, snapshot.files):
            rows = read_rows(snapshot.location, [file], base_fields(columns), row_filter)
            is_erased = keys.flag_values(rows)
            if is_erased.any():
                self.holders.append(file)
                erased += to_int64(rows["sequence"])[is_erased].tolist()
                rows = _mark_erased(rows, is_erased, erasure_id)
            tables.append(rows.cast(tables[0].schema))
        self._rows = pa.concat_tables(tables)
        self.erased = tuple(sorted(erased))
        self.stored = np.unique(to_int64(self._rows["sequence"]))

    def make_change(self, index: SeriesIndex) -> pa.Table:
        """Return the state of the series after the erasure (semantics 18.8)."""
        before = index.lookup_all([self._series])
        after = {name: column.copy() for name, column in before.items()}
        if self._rows.num_rows:
            state = compute_state(self._rows, -1)
            for name in ("newest_us", "original_sequence", "original_us"):
                after[name] = to_int64(state[name])
        # Compaction leaves a gap: raise the floor above it, so that no earlier event comes back.
        last_sequence = int(before["last_sequence"][0])
        gap = find_last_gap(self.stored, last_sequence)
        floor, floor_us = (int(after[name][0]) for name in FLOOR_DEFAULTS)
        floor = max(floor, gap + 1)
        newest_us = int(after["original_us"][0])
        if floor_us > newest_us:
            # An erased original raised the time floor: use a sequence, which hides no new events.
            floor = max(floor, int(after["original_sequence"][0]) + 1)
            floor_us = newest_us
        after["floor_sequence"], after["floor_us"] = np.array([floor]), np.array([floor_us])
        if "floor_sequence" not in index.columns and all(
            after[name][0] == least for name, least in FLOOR_DEFAULTS.items()
        ):
            after = {name: after[name] for name in after if name not in FLOOR_DEFAULTS}
        return make_change(pa.array([self._series], pa.string()), after)
