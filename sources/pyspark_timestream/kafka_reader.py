"""Spark adapters of transport `kafka`: a stream and a batch reader over the pure plan and task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_timestream.cti import PartitionState
from pyspark_timestream.instants import FINAL_US
from pyspark_timestream.kafka_batch import plan_tasks
from pyspark_timestream.kafka_broker import Broker
from pyspark_timestream.kafka_columns import Projection, default_schema, project
from pyspark_timestream.kafka_driver import StreamDriver
from pyspark_timestream.kafka_fetch import borrowed_reader
from pyspark_timestream.kafka_offset import OFFSET_VERSION, StreamOffset, group_name, left_behind
from pyspark_timestream.kafka_options import KafkaOptions, read_kafka_options
from pyspark_timestream.kafka_starts import starting_positions
from pyspark_timestream.kafka_task import Share, TaskPlan, run_task
from pyspark_timestream.kafka_values import EARLIEST, LATEST
from pyspark_timestream.offsets import SENTINEL, check_offset, is_sentinel
from pyspark_timestream.option_fields import OptionError
from pyspark_timestream.ranges import Partition, Range

__all__ = ["KafkaTransport"]


class KafkaTransport:
    """Transport `kafka`, as the options ask for it.

    Raises:
        OptionError: an option is wrong, missing, unknown, or conflicts with another.
    """

    def __init__(self, raw: Mapping[str, str]) -> None:
        self._options = read_kafka_options(raw)
        self._starts_given = any(name.lower() == "startingoffsets" for name in raw)

    def schema(self) -> StructType:
        """Spark's Kafka columns, then those of event time."""
        return from_arrow_schema(default_schema(self._options))

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one streaming query."""
        return KafkaStreamReader(self._options, self._project(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one batch query, which starts at earliest unless told otherwise."""
        if not self._starts_given:
            earliest = replace(self._options, starting_offsets=EARLIEST)
            return KafkaBatchReader(earliest, self._project(schema))
        starts = self._options.starting_offsets
        if starts == LATEST or (isinstance(starts, Mapping) and LATEST in starts.values()):
            raise OptionError(
                "startingOffsets",
                "'latest' (-1) was given to a batch read, which would always be empty",
                "'earliest', or JSON with offsets or -2",
                "name where to start, or leave it out",
            )
        return KafkaBatchReader(self._options, self._project(schema))

    def _project(self, schema: StructType) -> Projection:
        return project(self._options, to_arrow_schema(schema, timezone="UTC"))


@dataclass(frozen=True)
class KafkaTask(InputPartition):
    """What Spark ships to a task: its plan, and where to leave the end states."""

    plan: TaskPlan
    group: str = ""
    offset: StreamOffset | None = None


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Kafka records and CTIs as a stream; exactly once per checkpoint.

    The offset holds each batch's ranges and the clocks at its start; the clocks at its end come
    from what the tasks left in the consumer group, or from reading the ranges again.
    """

    def __init__(self, options: KafkaOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> dict[str, Any]:
        """A constant: Spark asks again on a restart, so nothing may be decided here."""
        return SENTINEL

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`, or everything."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends that this run reads up to."""
        self._driver_side().bound()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The next batch's offset; `start` itself where there is nothing to do."""
        cap = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._driver_side().plan(start, cap)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The progress entry (contract section 5), as of the start of the batch planned last."""
        return self._driver_side().progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch that `end` describes."""
        if start == end:
            return []
        check_offset(end, self._options.settings(), OFFSET_VERSION)
        offset = StreamOffset.from_json(end)
        group = group_name(self._options.group_prefix, offset.stream)
        before = -1 if is_sentinel(start) else StreamOffset.from_json(start).number
        if offset.number == before + 1:
            return [KafkaTask(plan, group, offset) for plan in plan_tasks(offset)]
        return [KafkaTask(plan, group) for plan in self._driver_side().join(start, offset)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the rows of one `KafkaTask`."""
        assert isinstance(partition, KafkaTask)
        return _read_task(self._options, self._projection, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the tasks have committed to the group already."""

    def _driver_side(self) -> "StreamDriver":
        # Made late: the copy of this reader that is shipped to tasks never connects.
        if self._driver is None:
            self._driver = StreamDriver(self._options)
        return self._driver


class KafkaBatchReader(DataSourceReader):
    """Kafka records and CTIs as a batch: from `startingOffsets` to the current ends."""

    def __init__(self, options: KafkaOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def partitions(self) -> Sequence[InputPartition]:
        """One task a partition; without a second one to wait for, a task carries all CTIs."""
        broker = Broker(self._options, f"{self._options.group_prefix}-batch")
        ends = broker.ends(broker.partitions())
        starts = starting_positions(self._options, broker.earliest(ends), ends)
        final_us = FINAL_US if self._options.final_cti else None
        spans = [Range(part, start, ends[part]) for part, start in sorted(starts.items())]
        plans = [
            TaskPlan((Share(span, PartitionState()),), (None,) * (len(spans) - 1))
            for span in spans
            if span.size
        ]
        if len(plans) == 1:
            plans = [replace(plans[0], closing_us=final_us)]
        elif final_us is not None:
            plans.append(TaskPlan(closing_us=final_us))
        group = f"{self._options.group_prefix}-batch"
        return [KafkaTask(plan, group) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the rows of one `KafkaTask`."""
        assert isinstance(partition, KafkaTask)
        return _read_task(self._options, self._projection, partition)


def _read_task(
    options: KafkaOptions, projection: Projection, task: KafkaTask
) -> Iterator[pa.RecordBatch]:
    ended: dict[Partition, PartitionState] = {}
    with borrowed_reader(options, task.group) as reader:
        yield from run_task(options, projection, task.plan, reader.read, ended.__setitem__)
        if task.offset is not None and ended:
            reader.leave(
                {
                    part: (
                        task.offset.partitions[part].end_exclusive,
                        left_behind(task.offset, part, state),
                    )
                    for part, state in ended.items()
                }
            )
