"""The Spark adapter of subscriptions: `spark.readStream.format("tseries")`."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_timestream.connector.instants import format_instant
from pyspark_timestream.connector.offsets import is_initial_offset
from pyspark_timestream.connector.spark_errors import hide_tracebacks
from pyspark_timestream.errors import wrap_methods
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.options import SubscribeOptions
from pyspark_tseries.promise.record import BATCH_WRITES, EARLIER_VERSIONS, CtiRecord
from pyspark_tseries.storage.data_files import Snapshot
from pyspark_tseries.storage.failures import named_failures
from pyspark_tseries.subscribe.delivery import Delivery, read_delivery
from pyspark_tseries.subscribe.position import POSITION_VERSION, InitialEvents, Position

__all__ = ["SubscriptionReader"]

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeliveryTask(InputPartition):
    """One task of a batch: events, or the CTI that comes after all of them."""

    delivery: Delivery | None
    cti_us: int | None = None


@hide_tracebacks
@wrap_methods(lambda reader: named_failures(getattr(reader, "_location", None)))
class SubscriptionReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The initial events, then every event that is appended, exactly once per checkpoint.

    The offset is a position in the order of commits; see `position`.

    Args:
        options: of the subscription.
        initial: the initial events.
        schema: the columns wanted.
        check: refuses the store as it is by now, on the driver (semantics 23.6).
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
        self._follower: Any = None
        self._told = False

    def initialOffset(self) -> dict[str, Any]:
        """A constant: Spark calls this again on a restart, so nothing may be decided here."""
        return {"version": POSITION_VERSION}

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxEventsPerTrigger`, or everything."""
        max_events = self._options.max_events
        return ReadAllAvailable() if max_events is None else ReadMaxRows(max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the commit that this run reads up to."""
        self._upto = self._open_follower().last_commit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself if there is nothing to do."""
        follower = self._open_follower()
        position = self._first_position() if is_initial_offset(start) else Position.from_json(start)
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        upto = None if self._upto is None else max(self._upto, position.commit)
        end = follower.find_end(position, max_events, upto)
        if self._options.cti:
            ctis = follower.ctis()
            self._tell_without_cti(ctis)
            end = end.with_cti(ctis)
        self._latest = end
        if end == position:
            return start
        offset: dict[str, Any] = end.to_json()
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[DeliveryTask]:
        """The tasks of a batch, by series."""
        if is_initial_offset(end):
            return []  # A query with state runs a batch even if the store has no commit yet.
        last = Position.from_json(end)
        first = last.beginning() if is_initial_offset(start) else Position.from_json(start)
        tasks = [DeliveryTask(task) for task in self._open_follower().plan_tasks(first, last)]
        is_new = last.cti is not None and last.cti != first.cti
        # Last, so that it follows the events that it covers also where order is kept.
        return [*tasks, DeliveryTask(None, last.cti)] if self._options.cti and is_new else tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's events, by series and sequence."""
        assert isinstance(partition, DeliveryTask)
        cti = self._options.cti
        if partition.delivery is None:
            row = {cti: pa.array([partition.cti_us], pa.int64()).cast(INSTANT)}
            yield self._select([row.get(f.name, pa.nulls(1, f.type)) for f in self._target])
            return
        for batch in read_delivery(partition.delivery):
            none = pa.nulls(batch.num_rows, INSTANT)
            yield self._select([none if f.name == cti else batch[f.name] for f in self._target])

    def _select(self, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The subscription's entry in the query's progress, at the end of the planned batch."""
        if self._latest is None:
            return None
        commit = self._latest.commit
        report = {"commit": commit, "initial": self._latest.initial, "missed": self._latest.missed}
        if not self._options.cti:
            return report
        cti_us, blocking = self._latest.cti, self._open_follower().ctis().blocking()
        cti = None if cti_us is None else format_instant(cti_us)
        return {**report, "cti": cti, "ctiHeldBackBy": blocking}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the store keeps no state of a subscriber."""

    def _tell_without_cti(self, ctis: CtiRecord) -> None:
        """Warn once of writers that let the store have no CTI."""
        names = ctis.without_cti()
        if names and not self._told:
            self._told = True
            _LOG.warning(
                "the store '%s' gives no %sCTIs while a writer has given none: %s ('%s' stands for "
                "all writes that are not streaming, '%s' for those of older versions); next step: "
                "set 'ctiDelay' on those queries, or if a writer will append nothing any more, "
                "run: python -m pyspark_tseries forget-writer STORE --writer NAME",
                self._options.location.root,
                "" if ctis.promised_us is None else "further ",
                ", ".join(f"'{name}'" for name in names),
                BATCH_WRITES,
                EARLIER_VERSIONS,
            )

    def _first_position(self) -> Position:
        # Kept, so that events added before the first batch do not become initial events.
        if self._begun is None:
            self._begun = self._open_follower().find_start()
        return self._begun

    def _open_follower(self) -> Any:
        # Only the driver's side needs Delta; the tasks get this object pickled, without it.
        if self._follower is None:
            from pyspark_tseries.subscribe.follower import Follower

            self._follower = Follower(self._options.location, self._initial, self._check)
        return self._follower

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower": None, "_check": None}
