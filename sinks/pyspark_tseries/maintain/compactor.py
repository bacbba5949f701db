"""Compaction carried out: many files in, few files clustered by series out, in one commit.

Appends go on meanwhile: the commit leaves the head alone, so neither makes the other fail for good.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import StoreBusy, UnusableStore
from pyspark_tseries.maintain.compaction import horizon_of, kept_events, to_merge
from pyspark_tseries.model.columns import layout
from pyspark_tseries.model.properties import min_retention_us
from pyspark_tseries.model.series_state import KEYS, longs, standing, together
from pyspark_tseries.model.slices import Sample, Slice, by_name, cut, key_order
from pyspark_tseries.storage import data_files as files
from pyspark_tseries.storage.data_files import DataFile, Snapshot, WrittenFile
from pyspark_tseries.storage.footer_cache import footers
from pyspark_tseries.storage.location import Place, place_of
from pyspark_tseries.storage.table_scan import sample, scan, slice_rows
from pyspark_tseries.store.admin_commits import replace_files
from pyspark_tseries.store.ownership import need_owner
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.numbering import series_column

__all__ = ["SLICE_BYTES", "Compacted", "compact", "merge_runs"]

SLICE_BYTES: Final = 128 * 1024 * 1024
"""Uncompressed: how much is in memory at once, and becomes one file."""

ROWS_PER_GROUP: Final = 20_000
ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: files before and after, and the events that it left out."""

    files_before: int = 0
    files_after: int = 0
    removed_events: int = 0


def compact(
    path: str | Place,
    now_us: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    principal: str | None = None,
) -> Compacted:
    """Merges all files of the store at `path` and removes what is out of the retained range.

    Nothing younger than the store's `minRetentionAge` is removed. Writers and readers go on.

    Args:
        path: a local path, a `file:` URI or an `s3:` URI.
        now_us: the wall clock, where it is not the machine's.
        storage_options: how an object store is reached; see `STORAGE_OPTIONS`.
        principal: who does it; None: the OS user.

    Raises:
        NoSuchStore: there is none.
        PermissionDenied: the store has a policy, and the principal is no owner.
        StoreBusy: other compactions were faster each time.
        WrongClock: this machine's clock is far ahead, or was when the last commit was made.
        UnusableStore: the log does not fit the files; nothing is changed.
    """
    store = Store.open(place_of(path, storage_options))
    need_owner(store, principal, "compact the store")
    now_us = store.wall_us() if now_us is None else now_us
    return merge_runs(store, now_us, everything=True)


def merge_runs(store: Store, now_us: int, *, everything: bool) -> Compacted:
    """One compaction of `store`, of all files or of those that are due."""
    lost: DeltaError | OSError | None = None
    for _ in range(ATTEMPTS):
        snapshot = store.snapshot()
        chosen = to_merge(snapshot.files, everything=everything)
        if not chosen:
            return Compacted()
        merge = _Merge(store, snapshot, chosen, now_us - min_retention_us(store.log.properties()))
        if not merge.due():
            return Compacted(len(chosen), len(chosen), 0)
        written = _written(store, merge)
        if not merge.whole():
            _discard(store, written)
            raise _short(store)
        horizon = merge.horizon if merge.removed else None
        certain = True
        try:
            done = replace_files(store, chosen, written, horizon, now_us)
        except (DeltaError, OSError) as error:
            lost = error
            # The commit may have been made, and only what follows it, a checkpoint, have failed.
            done = bool({file.path for file in written} & _live(store))
            # Of an object store it may still be carried out: then cleaning finds the files.
            certain = store.place.local
        if done:
            return Compacted(len(chosen), len(written), merge.removed)
        if certain:
            _discard(store, written)
        if isinstance(lost, OSError):
            raise lost
    raise StoreBusy(
        f"store '{store.root}': other compactions were first in all of {ATTEMPTS} attempts; "
        "nothing was changed; next step: leave it to them, or try again later"
    ) from lost


def _short(store: Store) -> UnusableStore:
    return UnusableStore(
        f"store '{store.root}': a compaction would lose events, because what the log says of its "
        "files does not fit their rows; nothing was changed; next step: see what is wrong with: "
        f"python -m pyspark_tseries verify {store.root}"
    )


def _written(store: Store, merge: "_Merge") -> list[WrittenFile]:
    written: list[WrittenFile] = []
    try:
        for file in merge.write():
            written.append(file)  # noqa: PERF402 what was written is known when one fails
    except BaseException:
        _discard(store, written)
        raise
    return written


def _live(store: Store) -> set[str]:
    return {file.path for file in store.snapshot().files}


def _discard(store: Store, written: Sequence[WrittenFile]) -> None:
    store.place.remove(store.place.file(file.path) for file in written)


class _Merge:
    """One attempt: the chosen files, what is known of their events, and what is written."""

    def __init__(
        self, store: Store, snapshot: Snapshot, chosen: Sequence[DataFile], latest_us: int
    ) -> None:
        self._place, self._chosen, self._snapshot = store.place, chosen, snapshot
        self._schema = pa.schema(list(layout(snapshot.values))[:-1])
        self._head = store.head()[1]
        self._whole = len(chosen) == len(snapshot.files)
        self.horizon = self._horizon(latest_us) if self._whole else -1
        self.removed = 0
        self._found = self._kept_rows = 0
        self._samples: list[Sample] = []
        self._stood = together([self._look(file) for file in chosen])

    def _horizon(self, latest_us: int) -> int:
        newest = -1
        for file in self._chosen:
            for rows in scan(self._place, file, self._schema, ("commit", "commit_time")):
                commit, us = (longs(rows[name]) for name in ("commit", "commit_time"))
                newest = max(newest, horizon_of(commit, us, latest_us))
        return newest

    def _look(self, file: DataFile) -> pa.Table:
        """Where the series of a file stand by it; takes samples of it on the way."""
        size = _row_bytes(self._place, file, self._schema)
        parts = []
        for table in scan(self._place, file, self._schema, KEYS):
            self._found += table.num_rows
            self._samples += sample(table, size)
            parts.append(standing(table, self.horizon))
        return together(parts)

    def due(self) -> bool:
        """Whether there is anything to merge or to leave out."""
        file = self._chosen[0]
        if len({file.run for file in self._chosen}) > 1 or not file.merged or file.is_foreign:
            return True
        if self.horizon < 0:
            return False
        return any(
            not self._kept(rows).all()
            for file in self._chosen
            for rows in scan(self._place, file, self._schema, KEYS)
        )

    def _kept(self, events: pa.Table) -> np.ndarray:
        retained = self._snapshot.retained
        if self.horizon < 0:
            return np.ones(events.num_rows, bool)
        return kept_events(events, self._stood, self._head, retained, self.horizon)

    def write(self) -> Iterator[WrittenFile]:
        """The new files, one slice in memory at a time."""
        run = secrets.randbits(62)
        commits = (
            min(file.first_commit for file in self._chosen),
            max(file.last_commit for file in self._chosen),
        )
        for number, part in enumerate(cut(self._samples, SLICE_BYTES, whole_series=False)):
            for kind in ("event", "edit"):
                data = [file for file in self._chosen if file.kind == kind]
                table = self._merged(data, part)
                self._kept_rows += table.num_rows
                if table.num_rows:
                    path = files.run_path(kind, commits, run, number)
                    yield files.write_events(self._place, path, table, ROWS_PER_GROUP)

    def whole(self) -> bool:
        """Whether every event was either written or left out on purpose."""
        return self._found == self._kept_rows + self.removed

    def _merged(self, data: Sequence[DataFile], part: Slice) -> pa.Table:
        table = slice_rows(self._place, data, part, self._schema, self._schema.names)
        if not table.num_rows:
            return table
        inside = self._kept(table)
        self.removed += int((~inside).sum())
        table = table.filter(pa.array(inside)).combine_chunks()
        names, codes = by_name(table["series"])
        order = key_order(codes, longs(table["sequence"]))
        table = table.take(pa.array(order)).combine_chunks()
        return table.set_column(0, "series", series_column(names, codes[order]))


def _row_bytes(place: Place, file: DataFile, schema: pa.Schema) -> int:
    """About how many bytes a row takes in memory."""
    with files.reading(place, file):
        about = footers.of(place, file).metadata
    stored = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    size: int = stored // max(about.num_rows, 1)
    return max(size, 16 * len(schema)) + 1
