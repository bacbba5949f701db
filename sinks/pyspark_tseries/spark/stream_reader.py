"""The Spark adapter of subscriptions: `spark.readStream.format("tseries")`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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

from pyspark_timestream.connector.offsets import is_initial_offset
from pyspark_timestream.connector.spark_errors import hide_tracebacks
from pyspark_tseries.options import SubscribeOptions
from pyspark_tseries.subscribe.delivery import Delivery, read_delivery
from pyspark_tseries.subscribe.position import POSITION_VERSION, InitialEvents, Position

__all__ = ["SubscriptionReader"]


@dataclass(frozen=True)
class DeliveryTask(InputPartition):
    """One task of a batch."""

    delivery: Delivery


@hide_tracebacks
class SubscriptionReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The initial events, then every event that is appended, exactly once per checkpoint.

    The offset is a position in the order of commits; see `position`.
    """

    def __init__(
        self, options: SubscribeOptions, initial: InitialEvents, schema: StructType
    ) -> None:
        self._options = options
        self._initial = initial
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._upto: int | None = None
        self._begun: Position | None = None
        self._latest: Position | None = None
        self._follower: Any = None

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
        self._latest = end
        if end == position:
            return start
        offset: dict[str, Any] = end.to_json()
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[DeliveryTask]:
        """The tasks of a batch, by series."""
        last = Position.from_json(end)
        first = last.beginning() if is_initial_offset(start) else Position.from_json(start)
        return [DeliveryTask(task) for task in self._open_follower().plan_tasks(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's events, by series and sequence."""
        assert isinstance(partition, DeliveryTask)
        for batch in read_delivery(partition.delivery):
            columns = [batch[field.name] for field in self._target]
            yield pa.RecordBatch.from_arrays(columns, schema=self._target)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The subscription's entry in the query's progress, at the end of the planned batch."""
        if self._latest is None:
            return None
        commit = self._latest.commit
        return {"commit": commit, "initial": self._latest.initial, "missed": self._latest.missed}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the store keeps no state of a subscriber."""

    def _first_position(self) -> Position:
        # Kept, so that events added before the first batch do not become initial events.
        if self._begun is None:
            self._begun = self._open_follower().find_start()
        return self._begun

    def _open_follower(self) -> Any:
        # Only the driver's side needs Delta; the tasks get this object pickled, without it.
        if self._follower is None:
            from pyspark_tseries.subscribe.follower import Follower

            self._follower = Follower(self._options.location, self._initial)
        return self._follower

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower": None}
