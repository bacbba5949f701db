"""The readers of Spark's batch reads and subscriptions.

Spark keeps the reader and its partitions for later evaluations of the same DataFrame; see
`pyspark_timestream.core.adapters`. All tasks of an evaluation must see the same commits (semantics
21.10). They know its start by the driver's clock, and every log entry has a time, so each task
takes the last entry up to the start and always finds the same one. An entry can become visible
shortly after its time, so an early task waits.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_timestream.core.adapters import (
    MAX_HANDED_BYTES,
    HandingReader,
    HandOver,
    collect_rows,
    find_later_start,
    hide_tracebacks,
)
from pyspark_timestream.core.checkpoint import is_initial_offset
from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import wrap_methods
from pyspark_tseries.errors import IncompatibleValue, NoSuchStore
from pyspark_tseries.model.arrays import KeyRange, find_first, split_keys
from pyspark_tseries.model.columns import INSTANT, result_schema, show_columns, type_name
from pyspark_tseries.model.commits import BATCH_WRITES, UNKNOWN_WRITERS, CtiRecord
from pyspark_tseries.model.downsampling import Downsampling, result_fields
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.ranges import Query
from pyspark_tseries.options import SubscribeOptions
from pyspark_tseries.read.delivery import (
    MAX_ROWS_PER_BATCH,
    POSITION_VERSION,
    Delivery,
    InitialEvents,
    Position,
    read_delivery,
)
from pyspark_tseries.read.downsample import downsample
from pyspark_tseries.read.newest import find_newest_count, newest_in
from pyspark_tseries.read.scan import (
    Scan,
    Scope,
    run_query,
    sample_series,
    select_visible,
    stored_columns,
)
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.failures import explain_failure
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.log_entries import entry_path

_LOG: Final = logging.getLogger(__name__)

LOCAL_VISIBILITY_DELAY_US: Final = 50_000
"""A local log entry becomes visible within this time: file systems have coarse clocks."""

EVALUATION_RESOLUTION_US: Final = 999
"""Spark reports the start of an evaluation in whole milliseconds."""

MAX_PUBLISH_US: Final = 1_000_000
"""A writer removes a local log entry's second name within this time, unless it is killed."""

MAX_REMOTE_CLOCK_SKEW_US: Final = 1_000_000
"""An object store's clock, in whole seconds, differs from the driver's by at most this."""

REMOTE_VISIBILITY_DELAY_US: Final = 1_000_000
"""An object store's log entry becomes visible within this time; its time is in whole seconds."""

_last_snapshots: dict[Location, tuple[int, Snapshot]] = {}
"""By store, the start of the last evaluation and the snapshot that this worker found for it."""


def find_snapshot_at(planned: Snapshot, began_us: int) -> Snapshot:
    """Return the store of `planned` as it was at `began_us`, the same in every task.

    Args:
        planned: an earlier snapshot, returned if the log does not reach back to `began_us`.
        began_us: the start of the evaluation, from `find_later_start`.

    Raises:
        NoSuchStore: the store is gone.
        UnusableStore: it cannot be opened.
    """
    from pyspark_tseries.store.store import Store

    location = planned.location
    cached = _last_snapshots.get(location)
    if cached is not None and cached[0] == began_us:
        return cached[1]
    latest_us = began_us + (
        EVALUATION_RESOLUTION_US if location.is_local else MAX_REMOTE_CLOCK_SKEW_US
    )
    _wait_until(
        latest_us + (LOCAL_VISIBILITY_DELAY_US if location.is_local else REMOTE_VISIBILITY_DELAY_US)
    )
    store = Store.find(location)
    if store is None:
        raise NoSuchStore(
            f"the store '{location.root}' was removed while a query over it was in use",
            next_step="load it again once it is there",
        )
    version = _find_version(location, store.log.version(), latest_us)
    snapshot = planned if version is None else store.at(version)
    _last_snapshots[location] = began_us, snapshot
    return snapshot


def _wait_until(us: int) -> None:
    ahead_us = us - read_wall_clock()
    if (
        0 < ahead_us < MAX_REMOTE_CLOCK_SKEW_US + REMOTE_VISIBILITY_DELAY_US
    ):  # A longer wait means another clock, not an early task.
        time.sleep(ahead_us / 1_000_000)


def _find_version(location: Location, newest: int, latest_us: int) -> int | None:
    """Return the last log entry up to `newest` not later than `latest_us`; None for none."""
    if _is_visible(location, newest, latest_us):
        return newest
    later = find_first(newest + 1, lambda _, end: not _is_visible(location, end - 1, latest_us))
    return later - 1 if later else None


def _is_visible(location: Location, version: int, latest_us: int) -> bool:
    since_ns = _read_entry_time_ns(location, version)
    return since_ns is None or since_ns <= latest_us * 1000  # Only old entries are removed.


def _read_entry_time_ns(location: Location, version: int) -> int | None:
    """Return when a log entry became visible; None if it does not exist."""
    path = entry_path(location, version)
    if not location.is_local:
        entry = location.identity(path)
        return None if entry is None else entry[1]
    until_us = read_wall_clock() + MAX_PUBLISH_US
    try:
        while (status := os.stat(path)).st_nlink > 1:
            # The writer is about to unlink the draft's name, and that changes the time.
            now_us = read_wall_clock()
            if now_us >= min(until_us, status.st_ctime_ns // 1000 + MAX_PUBLISH_US):
                break
            time.sleep(0.001)
    except FileNotFoundError:
        return None
    return status.st_ctime_ns  # Changed by linking the name, the last step.


MAX_BYTES_PER_PARTITION: Final = 32 * 1024 * 1024

Work = tuple[str, ...] | KeyRange
"""Files of successive commits, by their paths in the store, or whole series."""


@dataclass
class ReadTask(InputPartition):
    """The series or files of the planned snapshot that one task reads.

    In a later evaluation the task reads as much, `number` of `tasks`, of a later snapshot.
    """

    work: Work
    number: int
    tasks: int

    def __init__(self, work: Work, number: int, tasks: int) -> None:
        super().__init__(None)
        self.work = work
        self.number = number
        self.tasks = tasks


@hide_tracebacks
@wrap_methods(lambda reader, error: explain_failure(getattr(reader, "_location", None), error))
class RangeQueryReader(DataSourceReader):
    """Runs a range query on the store as it is when Spark begins to evaluate the read."""

    def __init__(
        self,
        snapshot: Snapshot,
        query: Query,
        series: Sequence[str] | None,
        schema: StructType,
        *,
        principal: str,
        planned_us: int | None = None,
        buckets: Downsampling | None = None,
    ) -> None:
        self._buckets = buckets
        self._snapshot = snapshot
        self._location = snapshot.location
        self._query = query
        self._series = series
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._planned_us = planned_us
        self._principal = principal
        self._check_store(snapshot)

    def partitions(self) -> Sequence[ReadTask]:
        """Plan groups of series, or groups of files if each original is read on its own."""
        work = self._plan_work(self._snapshot)
        return [ReadTask(piece, number, len(work)) for number, piece in enumerate(work)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of whole series, each in the query's order, or of files in theirs."""
        assert isinstance(partition, ReadTask)
        snapshot = self._snapshot
        work: Sequence[Work] = [partition.work]
        later_us = None if self._planned_us is None else find_later_start(self._planned_us)
        if later_us is not None:
            snapshot = self._rebind_snapshot(later_us)
            work = self._plan_work(snapshot)
            # Each item of the new plan belongs to one of the tasks that were planned before.
            begin, end = (len(work) * (partition.number + i) // partition.tasks for i in (0, 1))
            work = work[begin:end]
        for piece in work:
            if isinstance(piece, KeyRange):
                yield from self._read_series(snapshot, piece)
            else:
                yield from self._read_files(snapshot, piece)

    def _rebind_snapshot(self, us: int) -> Snapshot:
        snapshot = find_snapshot_at(self._snapshot, us)
        self._check_store(snapshot)
        AccessCheck(snapshot.settings.policy, self._principal).require_query(self._query)
        return snapshot

    def _check_store(self, snapshot: Snapshot) -> None:
        if self._buckets is None:
            check_schema(self._target, result_schema(snapshot.values))
        else:
            check_schema(self._target, result_fields(pa.schema(snapshot.values), self._buckets))

    def _plan_work(self, snapshot: Snapshot) -> list[Work]:
        index = snapshot.newest_index(self._series)
        data = snapshot.files
        if snapshot.as_of is None:
            scan = Scan(Scope(snapshot, index, self._series), self._query)
            in_order = not any(file.is_foreign for file in scan.originals)
            by_file = self._buckets is None and self._query == Query(self._query.kind)
            if by_file and not scan.edits and in_order:
                return _group_files(scan.originals)
            data = [*scan.originals, *scan.edits]
        samples = sample_series(index, sum(file.size for file in data), self._series)
        return list(split_keys(samples, MAX_BYTES_PER_PARTITION, whole_series=True))

    def _read_series(self, snapshot: Snapshot, key_range: KeyRange) -> Iterator[pa.RecordBatch]:
        index = snapshot.index(self._series, key_range)
        names = self._target.names
        scope = Scope(snapshot, index, self._series, key_range)
        if self._buckets is not None:
            for table in downsample(scope, self._query, self._buckets):
                yield from table.select(names).cast(self._target).to_batches(MAX_ROWS_PER_BATCH)
            return
        if (count := find_newest_count(self._query)) is not None:
            table = newest_in(scope, count, names)
        else:
            table = run_query(scope, self._query, columns=names).table
        yield from table.cast(self._target).to_batches(MAX_ROWS_PER_BATCH)

    def _read_files(self, snapshot: Snapshot, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        index = snapshot.index(self._series)
        needed = stored_columns(self._target.names)
        scan = Scan(Scope(snapshot, index, self._series), self._query)
        for path in paths:
            for rows in scan.stream(path, needed):
                inside = pa.array(select_visible(rows, index, snapshot.settings.retained))
                rows = show_columns(
                    rows.filter(inside),
                    self._target.names,
                    at_originals=self._query.kind == "values",
                )
                yield from rows.cast(self._target).to_batches()


def _group_files(originals: Sequence[DataFile]) -> list[Work]:
    groups: list[list[str]] = [[]]
    room = MAX_BYTES_PER_PARTITION
    for file in originals:
        if file.size > room and groups[-1]:
            groups.append([])
            room = MAX_BYTES_PER_PARTITION
        groups[-1].append(file.path)
        room -= file.size
    return [tuple(paths) for paths in groups]


def check_schema(schema: pa.Schema, schema_of_store: pa.Schema) -> None:
    """Refuse a user's schema with columns or types that the store does not have."""
    for field in schema:
        if field.name not in schema_of_store.names:
            raise IncompatibleValue(
                f"column '{field.name}' is not in the store",
                ", ".join(schema_of_store.names),
                "correct the schema, or leave it out",
            )
        store_type = schema_of_store.field(field.name).type
        if field.type != store_type:
            raise IncompatibleValue(
                f"column '{field.name}' is asked for as {type_name(field.type)}",
                type_name(store_type),
                "correct the schema, or leave it out",
            )


@dataclass(frozen=True)
class DeliveryTask(InputPartition):
    """One task of a batch: events, the CTI that follows all events of the batch, or both."""

    delivery: Delivery | None
    cti_us: int | None = None


@hide_tracebacks
@wrap_methods(lambda reader, error: explain_failure(getattr(reader, "_location", None), error))
class SubscriptionReader(HandingReader, SupportsTriggerAvailableNow):
    """Delivers the initial events, then every appended event, exactly once per checkpoint.

    The offset is a position in the order of commits; see `read/delivery.py`. A small batch is read
    here instead of in a task (semantics 23.8).
    """

    def __init__(
        self,
        options: SubscribeOptions,
        initial: InitialEvents,
        schema: StructType,
        check: Callable[[Snapshot], None],
    ) -> None:
        self._options = options
        self._check = check
        self._location = options.location
        self._initial = initial
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._upto: int | None = None
        self._begun: Position | None = None
        self._latest: Position | None = None
        self._subscription: Any = None
        self._has_warned = False
        self._handing = HandOver[None](options.max_driver_events, needs_task=False)

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant: Spark calls this again on a restart, so it may decide nothing."""
        return {"version": POSITION_VERSION}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxEventsPerTrigger`, or no limit."""
        max_events = self._options.max_events
        return ReadAllAvailable() if max_events is None else ReadMaxRows(max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the commit that this run reads up to."""
        self._upto = self._open_subscription().last_commit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing to do."""
        subscription = self._open_subscription()
        position = (
            self._find_first_position() if is_initial_offset(start) else Position.from_json(start)
        )
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        upto = None if self._upto is None else max(self._upto, position.commit)
        end = subscription.find_end(position, max_events, upto)
        if self._options.cti:
            ctis = subscription.ctis()
            self._warn_without_cti(ctis)
            end = end.with_cti(ctis)
        self._latest = end
        if end == position:
            return start
        offset: dict[str, Any] = end.to_json()
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[DeliveryTask]:
        """Return the tasks of a batch, by series."""
        if is_initial_offset(end):
            return []  # A query with state runs a batch even if the store has no commit yet.
        end_position = Position.from_json(end)
        start_position = (
            end_position.beginning() if is_initial_offset(start) else Position.from_json(start)
        )
        tasks = [
            DeliveryTask(task)
            for task in self._open_subscription().plan_tasks(start_position, end_position)
        ]
        if (
            self._options.cti
            and end_position.cti is not None
            and end_position.cti != start_position.cti
        ):
            # The CTI is last, so that it follows the events that it covers if order is kept.
            delivery = tasks.pop().delivery if len(tasks) == 1 else None
            tasks.append(DeliveryTask(delivery, end_position.cti))
        self._hand_over_if_small(tasks)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's events, by series and sequence, and then its CTI."""
        assert isinstance(partition, DeliveryTask)
        cti = self._options.cti
        if partition.delivery is not None:
            for batch in read_delivery(partition.delivery):
                no_cti = pa.nulls(batch.num_rows, INSTANT)
                yield self._select(
                    [no_cti if f.name == cti else batch[f.name] for f in self._target]
                )
        if partition.cti_us is not None:
            row = {cti: pa.array([partition.cti_us], pa.int64()).cast(INSTANT)}
            yield self._select([row.get(f.name, pa.nulls(1, f.type)) for f in self._target])

    def _hand_over_if_small(self, tasks: Sequence[DeliveryTask]) -> None:
        """Read the only task's rows and hand them over, unless they are many or large."""
        if not self.can_hand_over or len(tasks) != 1:
            return
        events, stored_bytes = _measure_delivery(tasks[0].delivery)
        if events > self._handing.max_records or stored_bytes > MAX_HANDED_BYTES:
            return
        taken = self._handing.take(events, lambda: (collect_rows(self.read(tasks[0])), None))
        if taken is not None:
            self.hand_over(taken[0])

    def _select(self, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the subscription's entry in the query's progress at the planned batch's end."""
        if self._latest is None:
            return None
        commit = self._latest.commit
        report = {"commit": commit, "initial": self._latest.initial, "missed": self._latest.missed}
        if not self._options.cti:
            return report
        cti_us = self._latest.cti
        blocking = self._open_subscription().ctis().blocking()
        cti = None if cti_us is None else format_instant(cti_us)
        return {**report, "cti": cti, "ctiHeldBackBy": blocking}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the store keeps no state of a subscriber."""

    def _warn_without_cti(self, ctis: CtiRecord) -> None:
        """Warn once of writers that keep the store from having a CTI."""
        names = ctis.without_cti()
        if names and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "the store '%s' gives no %sCTIs while a writer has given none: %s ('%s' stands for "
                "all writes that are not streaming, '%s' for those that a repair lost); next step: "
                "set 'ctiDelay' on those queries, or if a writer will append nothing any more, "
                "run: python -m pyspark_tseries forget-writer STORE --writer NAME",
                self._options.location.root,
                "" if ctis.store_us is None else "further ",
                ", ".join(f"'{name}'" for name in names),
                BATCH_WRITES,
                UNKNOWN_WRITERS,
            )

    def _find_first_position(self) -> Position:
        # Keep it, so that events added before the first batch do not become initial events.
        if self._begun is None:
            self._begun = self._open_subscription().find_start()
        return self._begun

    def _open_subscription(self) -> Any:
        # Only the driver's side needs Delta; the tasks get this object pickled, without it.
        if self._subscription is None:
            from pyspark_tseries.read.subscription import Subscription

            self._subscription = Subscription(self._options.location, self._initial, self._check)
        return self._subscription

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_subscription": None, "_check": None}


def _measure_delivery(delivery: Delivery | None) -> tuple[int, int]:
    """Return an upper bound of the events that a task delivers, and the size of their files."""
    if delivery is None:
        return 0, 0
    events = sum(file.rows for file in delivery.files)
    if not delivery.start.initial:
        events = min(events, delivery.end.seen - delivery.start.seen)
    return events, sum(file.size for file in delivery.files)
