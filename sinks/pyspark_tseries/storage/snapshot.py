"""A snapshot is a store as of one commit: its settings, files and series index (21.10, 22).

Queries, subscriptions, maintenance and the client all read snapshots. A snapshot of an earlier
moment has only the files of the commits up to then. Every row keeps its commit, and compaction
removes only rows that were out of range at its horizon. So all rows visible at the horizon or later
are still stored, and the index of any series can be computed from them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.core.threads import lazy
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import (
    ALL_KEYS,
    MIN_NUMBER,
    NEVER_US,
    BoolArray,
    Int64Array,
    KeyRange,
    to_int64,
)
from pyspark_tseries.model.commits import NO_COMMIT, CommitMetadata
from pyspark_tseries.model.properties import StoreSettings
from pyspark_tseries.model.series_index import SeriesIndex, build_index, min_retained_table
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.head_files import LastIndex, last_index
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, scan_file, scan_state


@dataclass(frozen=True)
class Snapshot:
    """A store as of a commit; pickle leaves out the index, because a task loads it itself.

    Attributes:
        location: the location of the store.
        files: the files of its events, in the order of their commits.
        head_id: the id of the current head file; None before the first commit.
        metadata: the metadata of the last commit, with the counts.
        settings: the settings after that commit.
        values: the value columns.
        horizon: the last commit that may have lost events to compaction; -1 if none has.
        as_of: the last commit that counts, if the files have later ones; None if all count.
        heads: where the store keeps the index it loaded last; None in a task.
        later_files: the files that only have events of later commits than `as_of`; [] in a task.
    """

    location: Location
    files: list[DataFile]
    head_id: int | None
    metadata: CommitMetadata
    settings: StoreSettings
    values: list[pa.Field]
    horizon: int = -1
    as_of: int | None = None
    heads: LastIndex | None = dataclasses.field(default=None, repr=False, compare=False)
    later_files: list[DataFile] = dataclasses.field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task needs."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "heads": None,
            "later_files": [],
        }

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.location.root

    @property
    def paths(self) -> set[str]:
        """The paths of its files, relative to the store."""
        return {file.path for file in self.files}

    @property
    def has_erasures(self) -> bool:
        """True if events of the store may be erased."""
        return self.metadata.erasure is not None

    def index(self, series: Sequence[str] | None = None, keys: KeyRange = ALL_KEYS) -> SeriesIndex:
        """Return the series index, at least for `series` (None: all) in the key range `keys`.

        `keys` splits no series. With few series, a process need not load the index of all.
        """
        now = self.newest_index(series)
        return now if self.as_of is None else self._past_index(now, series, keys)

    def newest_index(self, series: Sequence[str] | None = None) -> SeriesIndex:
        """Return the index of the current head, at least for `series`, whatever `as_of` says."""
        if series is None or "_whole_index" in vars(self):
            return self._whole_index
        return self._heads.load_series(self.head_id, series)

    @lazy
    def _whole_index(self) -> SeriesIndex:
        return self._heads.load(self.head_id)

    @property
    def _heads(self) -> LastIndex:
        return last_index(self.location) if self.heads is None else self.heads

    def _past_index(
        self, now: SeriesIndex, series: Sequence[str] | None, keys: KeyRange
    ) -> SeriesIndex:
        """Compute the index from the rows up to then, and the floors of the index `now`."""
        assert self.as_of is not None
        names = None if series is None else sorted(set(series))
        row_filter = RowFilter(names, keys, commits=(MIN_NUMBER, self.as_of))
        data = [file for file in self.files if keys.overlaps(file.first, file.last)]
        states, _ = scan_state(self.location, data, -1, row_filter)
        floors = min_retained_table(now)
        if floors is not None:
            floors = floors.filter(pc.is_in(floors["series"], states["series"].combine_chunks()))
        return build_index(states, self.metadata, floors)

    def at_time(self, us: int) -> "Snapshot":
        """Return the store as it was at the commit time `us`, including its retained range.

        Raises:
            InvalidQuery: rows visible then may be gone; the message names the oldest possible time.
        """
        if us >= self.metadata.commit_us:
            return self
        commit, _ = self._last_commit(lambda _, times: times <= us)
        since_us = self.metadata.retained_since_us
        # The commit that changed the retained range has no rows that tell its time.
        oldest = self._oldest if since_us is None else self.horizon
        if commit < oldest or (since_us is not None and us < since_us):
            oldest_us = NEVER_US if oldest < 0 else self._commit_time(oldest)
            possible_us = oldest_us if since_us is None else max(oldest_us, since_us)
            raise _gone_error(
                f"asOf {format_instant(us)}", f"{format_instant(possible_us)} or later"
            )
        return self._before(commit, us)

    def at_commit(self, number: int) -> "Snapshot":
        """Return the store as it was after the commit `number`; raise as `at_time` does."""
        if number >= self.metadata.commit:
            return self
        if number < self._oldest:
            raise _gone_error(f"commit {number}", f"commit {self._oldest} or later")
        return self._before(*self._last_commit(lambda numbers, _: numbers <= number))

    @property
    def _oldest(self) -> int:
        """The first commit that still has all rows that were visible then."""
        since = self.metadata.retained_since
        return max(self.horizon, -1 if since is None else since)

    def _before(self, commit: int, us: int) -> "Snapshot":
        data = [file for file in self.files if file.first_commit <= commit]
        later_files = [file for file in self.files if file.first_commit > commit]
        metadata = dataclasses.replace(self.metadata, parent=None, commit=commit, commit_us=us)
        metadata = NO_COMMIT if commit < 0 else metadata
        return dataclasses.replace(
            self,
            files=data,
            metadata=metadata,
            as_of=commit,
            later_files=[*later_files, *self.later_files],
        )

    def _last_commit(
        self, counts: Callable[[Int64Array, Int64Array], BoolArray]
    ) -> tuple[int, int]:
        """Return the last commit with rows that passes `counts`, and its time.

        `counts` flags commits by their numbers and times.
        """
        commit, us = -1, NEVER_US
        for numbers, times in self._scan_commits():
            counted = counts(numbers, times)
            commit = max(commit, int(numbers[counted].max(initial=-1)))
            us = max(us, int(times[counted].max(initial=NEVER_US)))
        return commit, us

    def _commit_time(self, first_number: int) -> int:
        """Return the earliest time of the commits from `first` on."""
        times_from = (times[numbers >= first_number] for numbers, times in self._scan_commits())
        newest_us = self.metadata.commit_us
        return min((int(us.min(initial=newest_us)) for us in times_from), default=newest_us)

    def _scan_commits(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        for file in self.files:
            for rows in scan_file(self.location, file, BASE_SCHEMA, ("commit", "commit_time")):
                yield to_int64(rows["commit"]), to_int64(rows["commit_time"])


def _gone_error(which: str, accepts: str) -> InvalidQuery:
    return InvalidQuery(
        f"{which}: some events that were visible then may be gone",
        accepts,
        "ask for a later time, and keep more with tseries.minRetentionAge",
    )
