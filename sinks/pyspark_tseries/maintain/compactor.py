"""Compaction: rewrite many files as few files clustered by series, in one commit.

Files that were written together are a *file group*. Maintenance merges groups from the newest
backwards while the next one is at most twice as large as those gathered so far, so the number of
times that an event is rewritten grows with the logarithm of the store's size. Only a merge of all
groups removes events, and only those that no query can see at the *horizon* (the last commit older
than the minimum retention age) or later.

Appends continue meanwhile: the commit does not change the head, so neither can starve the other.
The rules are semantics 24.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import (
    BoolArray,
    Int64Array,
    KeyRange,
    Sample,
    encode_runs,
    sort_keys,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.columns import file_schema
from pyspark_tseries.model.ranges import RetainedRange, min_retained
from pyspark_tseries.model.series_index import (
    STATE_COLUMNS,
    SeriesIndex,
    combine_states,
    compute_state,
)
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage import data_files as files
from pyspark_tseries.storage.data_files import DataFile, WrittenFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import FOOTER_CACHE, read_key_range, sample_sizes, scan_file
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
    if sum(not group[0].is_compacted for group in groups) < MIN_GROUPS_TO_MERGE:
        return []
    gathered: list[DataFile] = []
    for group in reversed(groups):
        held, size = (sum(file.size for file in files) for files in (gathered, group))
        if group[0].is_compacted and size > 2 * held:
            break
        gathered = group + gathered
    return gathered


def _group_files(data: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return the file groups, in the order of commits."""
    ordered = sorted(data, key=lambda file: (file.first_commit, file.run, file.path))
    return [list(files) for _, files in groupby(ordered, key=lambda file: file.run)]


def find_horizon(commit: Int64Array, commit_us: Int64Array, latest_us: int) -> int:
    """Return the last commit not later than `latest_us`; -1 if there is none."""
    return int(commit[commit_us <= latest_us].max(initial=-1))


def select_kept_events(
    events: pa.Table, states: pa.Table, head: SeriesIndex, retained: RetainedRange, horizon: int
) -> BoolArray:
    """Flag the `events` that compaction keeps: all that are visible at the horizon or later.

    Always keep the newest event, original and edit of each series: the head is rebuilt from them.
    """
    names, codes = encode_runs(events["series"])
    rows = states.take(pc.index_in(names, states["series"].combine_chunks()))
    at = {name: to_int64(rows[name]) for name in rows.column_names if name != "series"}
    floors = head.min_retained(names.to_pylist())
    low, low_us = min_retained(retained, at["horizon_sequence"], at["horizon_us"], floors)
    sequence, us = to_int64(events["sequence"]), to_int64(events["timestamp"])
    inside = (sequence >= low[codes]) & (us >= low_us[codes])
    for name in ("last_sequence", "original_sequence", "edit_sequence"):
        inside |= sequence == at[name][codes]
    kept: BoolArray = inside | (to_int64(events["commit"]) > horizon)
    return kept


MAX_RANGE_BYTES: Final = 128 * 1024 * 1024
"""The uncompressed size of a key range that is in memory at once, and becomes one file."""

MAX_ROWS_PER_ROW_GROUP: Final = 20_000


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Counts of a compaction: files before and after, and events removed."""

    files_before: int = 0
    files_after: int = 0
    removed_events: int = 0


def compact(
    path: str | Location,
    now_us: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
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
    who = author_or_user(principal)
    store = open_as_owner(path, storage_options, who, "compact the store")
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
        written = merge.write_all()
        horizon = merge.horizon if merge.removed else None
        try:
            done = replace_files(store, chosen, written, horizon, now_us)
        except (DeltaError, OSError):
            # The commit may have succeeded, and only the checkpoint after it failed.
            if not {file.path for file in written} & store.snapshot().paths:
                # In an object store it may still happen; if not, maintenance removes the files.
                if store.location.is_local:
                    _discard(store, written)
                raise
            done = True
        if done:
            return CompactionResult(len(chosen), len(written), merge.removed)
        _discard(store, written)
        return None

    return store.retry(
        attempt,
        store.retrying.rewrites,
        rivals="other compactions, or acts of erasing, were first",
        next_step="leave it to them, or try again later",
    )


def _lost_events_error(store: Store) -> UnusableStore:
    return UnusableStore(
        f"store '{store.root}': a compaction would lose events, because what the log says of its "
        "files does not fit their rows; nothing was changed",
        next_step=f"see what is wrong with: python -m pyspark_tseries verify {store.root}",
    )


def _discard(store: Store, written: Sequence[WrittenFile]) -> None:
    store.location.discard(store.location.file(file.path) for file in written)


class Merge:
    """One attempt to rewrite files: its input files, the state of their series, its output.

    Events of commits later than `latest_us` stay, and all events unless all files of the store are
    chosen. `change` converts the events of each key range; it neither drops nor adds any. `group`
    has the id of the new files and the number of the first; None draws an id. Their footers keep
    `notes`.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        chosen: Sequence[DataFile],
        latest_us: int,
        change: Callable[[pa.Table], pa.Table] | None = None,
        *,
        group: tuple[int, int] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self._store, self._change, self._notes = store, change, notes
        self._location, self._chosen, self._snapshot = store.location, chosen, snapshot
        self._group, self._first = (store.new_id(), 0) if group is None else group
        self._schema = file_schema(snapshot.values)
        self._head = snapshot.index()
        self._whole = len(chosen) == len(snapshot.files)
        self.horizon = self._find_horizon(latest_us) if self._whole else -1
        self.removed = 0
        self._found = self._kept_rows = 0
        self._samples: list[Sample] = []
        self._states = combine_states([self._read_series_state(file) for file in chosen])

    def _find_horizon(self, latest_us: int) -> int:
        newest = -1
        for file in self._chosen:
            for rows in scan_file(self._location, file, self._schema, ("commit", "commit_time")):
                commit, us = (to_int64(rows[name]) for name in ("commit", "commit_time"))
                newest = max(newest, find_horizon(commit, us, latest_us))
        return newest

    def _read_series_state(self, file: DataFile) -> pa.Table:
        """Return the state of the series of a file, and sample its keys."""
        size = _estimate_row_bytes(self._location, file, self._schema)
        parts = []
        for table in scan_file(self._location, file, self._schema, STATE_COLUMNS):
            self._found += table.num_rows
            self._samples += sample_sizes(table, size)
            parts.append(compute_state(table, self.horizon))
        return combine_states(parts)

    def is_due(self) -> bool:
        """Return whether there is anything to merge or to remove."""
        file = self._chosen[0]
        if len({file.run for file in self._chosen}) > 1 or not file.is_compacted or file.is_foreign:
            return True
        if self.horizon < 0:
            return False
        return any(
            not self._select_kept(rows).all()
            for file in self._chosen
            for rows in scan_file(self._location, file, self._schema, STATE_COLUMNS)
        )

    def _select_kept(self, events: pa.Table) -> np.ndarray:
        retained = self._snapshot.settings.retained
        if self.horizon < 0:
            return np.ones(events.num_rows, bool)
        return select_kept_events(events, self._states, self._head, retained, self.horizon)

    def write_all(self) -> list[WrittenFile]:
        """Write the new files; if one cannot be written, remove the others."""
        written: list[WrittenFile] = []
        try:
            for file in self._write_files():
                written.append(file)  # noqa: PERF402 what was written is known when one fails
            if self._found != self._kept_rows + self.removed:
                raise _lost_events_error(self._store)
        except BaseException:
            _discard(self._store, written)
            raise
        return written

    def _write_files(self) -> Iterator[WrittenFile]:
        """Write and yield the new files, with one key range in memory at a time."""
        commits = (
            min(file.first_commit for file in self._chosen),
            max(file.last_commit for file in self._chosen),
        )
        for number, keys in enumerate(
            split_keys(self._samples, MAX_RANGE_BYTES, whole_series=False), self._first
        ):
            for kind in ("event", "edit"):
                data = [file for file in self._chosen if file.kind == kind]
                table = self._merge_range(data, keys)
                self._kept_rows += table.num_rows
                if table.num_rows:
                    path = files.compacted_path(kind, commits, self._group, number)
                    yield files.write_events(
                        self._location, path, table, MAX_ROWS_PER_ROW_GROUP, self._notes
                    )

    def _merge_range(self, data: Sequence[DataFile], keys: KeyRange) -> pa.Table:
        table = read_key_range(self._location, data, keys, self._schema, self._schema.names)
        if not table.num_rows:
            return table
        inside = self._select_kept(table)
        self.removed += int((~inside).sum())
        table = table.filter(pa.array(inside)).combine_chunks()
        names, codes = encode_runs(table["series"])
        order = sort_keys(codes, to_int64(table["sequence"]))
        table = table.take(pa.array(order)).combine_chunks()
        table = table.set_column(0, "series", series_column(names, codes[order]))
        return table if self._change is None else self._change(table)


def _estimate_row_bytes(location: Location, file: DataFile, schema: pa.Schema) -> int:
    with files.explain_read_errors(location, file):
        about = FOOTER_CACHE.get(location, file).metadata
    stored = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    size: int = stored // max(about.num_rows, 1)
    return max(size, 16 * len(schema)) + 1
