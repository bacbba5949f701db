"""The state of an open store: its log, its series index and its snapshots.

Three things are kept between calls and brought up to date before use: the log, the series index
loaded last, and the snapshot of the last version.
"""

import secrets
import threading
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from pyspark_tseries.errors import NoSuchStore
from pyspark_tseries.model import properties
from pyspark_tseries.model.columns import value_fields
from pyspark_tseries.model.policy import Policy
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.model.series_index import NO_COMMIT, CommitMetadata, SeriesIndex
from pyspark_tseries.storage.data_files import DataFile, Snapshot, data_files
from pyspark_tseries.storage.head_files import LastIndex, read_head_metadata
from pyspark_tseries.storage.location import (
    RANDOM_BITS,
    Location,
    marked_id,
    parse_location,
)
from pyspark_tseries.store.log import Log
from pyspark_tseries.store.log_check import HEAD_TRANSACTION
from pyspark_tseries.store.table import load_table_at

__all__ = ["HORIZON_TRANSACTION", "StoreState"]

HORIZON_TRANSACTION: Final = "tseries:horizon"
"""The transaction whose version is one more than the last commit that lost events to compaction."""


class StoreState:
    """The state of an open store, up to the log entry that it has read; safe for threads."""

    def __init__(
        self, location: str | Location, table: DeltaTable, *, skip_checks: bool = False
    ) -> None:
        self.location = parse_location(location)
        self.log = Log(self.location, table, skip_checks=skip_checks)
        self._lock = threading.RLock()
        self._last = LastIndex(self.location)
        self._last_snapshot: tuple[DeltaTable, int, Snapshot] | None = None
        self._last_with_index: tuple[Snapshot, SeriesIndex] | None = None

    @property
    def root(self) -> str:
        """The store's location, for people."""
        return self.location.root

    @property
    def values(self) -> list[pa.Field]:
        """The value columns."""
        return value_fields(pa.schema(self.log.table.schema()))

    @property
    def retained(self) -> RetainedRange:
        """The retained range."""
        with self._lock:
            return properties.retained_range(self.log.properties(), self.metadata())

    @property
    def id(self) -> str:
        """The table's id, which no other store has."""
        return self.log.table_id

    def new_id(self) -> int:
        """A random id for the names of new files, which bears the mark of this store."""
        return marked_id(self.id, secrets.randbits(RANDOM_BITS))

    def version(self) -> int:
        """The version of the log as it was last refreshed."""
        return self.log.version()

    @property
    def policy(self) -> Policy | None:
        """The policy of the log as it was last refreshed; None if there is none."""
        with self._lock:
            return properties.current_policy(self.log.properties(), self.metadata())

    def metadata(self) -> CommitMetadata:
        """The metadata of the last commit; the rows of the head file are not read."""
        head_id = self.head_id()
        if head_id is None:
            return NO_COMMIT
        if head_id == self._last.head_id:
            return self._last.index.metadata
        return read_head_metadata(self.location, head_id)

    @property
    def subscription(self) -> RetainedRange:
        """The default range of initial events of a subscription."""
        return properties.subscription_range(self.log.properties())

    def horizon(self) -> int:
        """The last commit whose events compaction may have removed; -1 if it removed none."""
        with self._lock:
            beyond = self.log.transaction(HORIZON_TRANSACTION)
            return -1 if beyond is None else beyond - 1

    def refresh(self) -> bool:
        """Bring the log up to date; False if the table was removed or replaced."""
        with self._lock:
            return self.log.refresh()

    def head_id(self) -> int | None:
        """The id of the head of the log as it was last refreshed; None before the first commit."""
        with self._lock:
            return self.log.transaction(HEAD_TRANSACTION)

    def last_commit(self) -> int:
        """The number of the last commit that this object has seen; -1 before the first."""
        return self._last.index.metadata.commit

    def index(self) -> tuple[int | None, SeriesIndex]:
        """The id and the state of the head of the log as it was last refreshed."""
        with self._lock:
            head_id = self.log.transaction(HEAD_TRANSACTION)
            return head_id, self._last.load(head_id)

    def snapshot(self) -> Snapshot:
        """The current state of the store; raises NoSuchStore if it was removed.

        The rows of the head file are not read.
        """
        with self._lock:
            self._refresh_or_fail()
            return self._current_snapshot()

    def at(self, version: int) -> Snapshot:
        """The store as it was with the entry `version` of its log, not after the one last seen.

        Raises:
            UnusableStore: the log does not reach back so far.
        """
        with self._lock:
            if version == self.version():
                return self._current_snapshot()
        table = load_table_at(self.location, version)
        return StoreState(self.location, table, skip_checks=True)._current_snapshot()

    def snapshot_with_index(self) -> tuple[Snapshot, SeriesIndex]:
        """The current state of the store, and its series index."""
        with self._lock:
            self._refresh_or_fail()
            if self._last_snapshot is None or not self._is_current(*self._last_snapshot[:2]):
                self.index()  # Saves reading the metadata separately.
            snapshot = self._current_snapshot()
            if self._last_with_index is None or self._last_with_index[0] is not snapshot:
                self._last_with_index = snapshot, self.index()[1]
            return self._last_with_index

    def snapshot_with_series(self, names: Sequence[str]) -> tuple[Snapshot, SeriesIndex]:
        """As `snapshot_with_index`, with an index that may lack all series but `names`.

        So a process with a single query need not load the index of all series.
        """
        with self._lock:
            if self._last.head_id is None:
                self._refresh_or_fail()
                index = self._last.load_series(self.log.transaction(HEAD_TRANSACTION), names)
                if index is not self._last.index:
                    return self._current_snapshot(), index
            return self.snapshot_with_index()

    def _current_snapshot(self) -> Snapshot:
        """The snapshot of the log as it was last refreshed."""
        if self._last_snapshot is None or not self._is_current(*self._last_snapshot[:2]):
            fixed, metadata = self.log.properties(), self.metadata()
            snapshot = Snapshot(
                self.location,
                self.data_files(),
                self.head_id(),
                metadata,
                properties.retained_range(fixed, metadata),
                self.values,
                policy=properties.current_policy(fixed, metadata),
            )
            self._last_snapshot = self.log.table, self.version(), snapshot
        return self._last_snapshot[2]

    def _is_current(self, table: DeltaTable, version: int) -> bool:
        return table is self.log.table and version == self.version()

    def data_files(self) -> list[DataFile]:
        """The files of the log as it was last refreshed, in the order of their commits."""
        with self._lock:
            return data_files(self.location, pa.table(self.log.table.get_add_actions(flatten=True)))

    def _refresh_or_fail(self, *, whole: bool = True) -> None:
        """Bring the log up to date, without its table unless `whole`; see `Log.refresh`."""
        with self._lock:
            there = self.log.refresh(whole=whole)
        if not there:
            raise NoSuchStore(
                f"the store '{self.root}' was removed or replaced while it was in use",
                next_step="start the query again",
            )
