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

from pyspark_timestream.connector.offsets import is_sentinel
from pyspark_timestream.connector.spark_errors import brief_errors
from pyspark_tseries.options.values import SubscribeOptions
from pyspark_tseries.subscribe.delivery import Delivery, deliver
from pyspark_tseries.subscribe.position import POSITION_VERSION, Initial, Position

__all__ = ["Subscriber"]


@dataclass(frozen=True)
class DeliveryTask(InputPartition):
    """One task of a batch."""

    delivery: Delivery


@brief_errors
class Subscriber(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The initial events, then every event that is appended, exactly once per checkpoint.

    The offset is a position in the order of commits; see `subscription`.
    """

    def __init__(self, options: SubscribeOptions, initial: Initial, schema: StructType) -> None:
        self._options = options
        self._initial = initial
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._upto: int | None = None
        self._begun: Position | None = None
        self._latest: Position | None = None
        self._follower: Any = None

    def initialOffset(self) -> dict[str, Any]:
        """A constant: Spark asks again on a restart, so nothing may be decided here."""
        return {"version": POSITION_VERSION}

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxEventsPerTrigger`, or everything."""
        most = self._options.max_events
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the commit that this run reads up to."""
        self._upto = self._driver().commit_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself where there is nothing to do."""
        follower = self._driver()
        position = self._begin() if is_sentinel(start) else Position.from_json(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        upto = None if self._upto is None else max(self._upto, position.commit)
        end = follower.end(position, most, upto)
        self._latest = end
        if end == position:
            return start
        offset: dict[str, Any] = end.to_json()
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[DeliveryTask]:
        """The tasks of a batch, by series."""
        last = Position.from_json(end)
        first = last.beginning() if is_sentinel(start) else Position.from_json(start)
        return [DeliveryTask(task) for task in self._driver().tasks(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's events, by series and sequence."""
        assert isinstance(partition, DeliveryTask)
        for batch in deliver(partition.delivery):
            columns = [batch[field.name] for field in self._target]
            yield pa.RecordBatch.from_arrays(columns, schema=self._target)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What a query's progress says of the subscription at the end of the batch just planned."""
        if self._latest is None:
            return None
        commit = self._latest.commit
        return {"commit": commit, "initial": self._latest.initial, "missed": self._latest.missed}

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the store keeps nothing for a subscriber."""

    def _begin(self) -> Position:
        # Kept, because what is added while there is nothing to deliver yet is no initial event.
        if self._begun is None:
            self._begun = self._driver().begin()
        return self._begun

    def _driver(self) -> Any:
        # Only the driver's side needs Delta; the tasks get this object pickled, without it.
        if self._follower is None:
            from pyspark_tseries.subscribe.follower import Follower

            self._follower = Follower(self._options.place, self._initial)
        return self._follower

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower": None}
