"""Spark adapters of transport `kafka`: a stream and a batch reader over the pure plan and task."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_timestream.connector.driver_log import log_like_spark
from pyspark_timestream.connector.offsets import SENTINEL, check_offset, is_sentinel
from pyspark_timestream.connector.spark_errors import brief_errors
from pyspark_timestream.connector.watermark_settings import broken_settings
from pyspark_timestream.connector.worker_memory import settle
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.batch_read import BatchShare, bind, share_out, wanted
from pyspark_timestream.kafka.client.broker import Broker, borrowed_broker
from pyspark_timestream.kafka.client.prefetch import with_small_ranges
from pyspark_timestream.kafka.client.range_reader import RangeReader, borrowed_reader
from pyspark_timestream.kafka.decode.columns import Projection, default_schema, project
from pyspark_timestream.kafka.decode.payload import needs_of
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.driver.warner import say_of_read
from pyspark_timestream.kafka.options.checks import KafkaOptions, read_kafka_options
from pyspark_timestream.kafka.plan.ends import end_instants, ending_positions
from pyspark_timestream.kafka.plan.group_metadata import encode_group_metadata
from pyspark_timestream.kafka.plan.offset import (
    OFFSET_VERSION,
    StreamOffset,
    group_name,
)
from pyspark_timestream.kafka.plan.positions import start_instants, starting_positions
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.kafka.read_modes import (
    for_batch,
    for_stream,
    stream_tasks,
    useless_in_batch,
)
from pyspark_timestream.kafka.task import TaskPlan, run_task

__all__ = ["KafkaTransport"]

_LOG: Final = logging.getLogger(__name__)


class KafkaTransport:
    """Transport `kafka`, as the options ask for it.

    Raises:
        OptionError: an option is wrong, missing, unknown, or conflicts with another.
    """

    def __init__(self, raw: Mapping[str, str]) -> None:
        self._options = read_kafka_options(raw)
        self._given = frozenset(name.lower() for name in raw)

    def schema(self) -> StructType:
        """Spark's Kafka columns, then those of event time."""
        return from_arrow_schema(default_schema(self._options))

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one streaming query."""
        return KafkaStreamReader(for_stream(self._options, self._given), self._project(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one batch query, which starts at earliest unless told otherwise."""
        options = for_batch(self._options, self._given)
        log_like_spark("pyspark_timestream")
        for name in useless_in_batch(self._given):
            _LOG.warning("option '%s' has no effect in a batch read", name)
        return KafkaBatchReader(options, self._project(schema))

    def _project(self, schema: StructType) -> Projection:
        return project(self._options, to_arrow_schema(schema, timezone="UTC"))


@dataclass(frozen=True)
class KafkaTask(InputPartition):
    """What Spark ships to a task: its plan, and where to leave the end states.

    Attributes:
        plan: what to do.
        group: the consumer group in which to leave them.
        offset: what they follow from: the task's own partitions; None: nothing is left.
    """

    plan: TaskPlan
    group: str = ""
    offset: StreamOffset | None = None


@brief_errors
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
        """The progress entry (semantics 13.5), as of the start of the batch planned last."""
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
            plans = stream_tasks(self._options, offset)
            return [KafkaTask(plan, group, _own_part(offset, plan)) for plan in plans]
        return [KafkaTask(plan, group) for plan in self._driver_side().join(start, offset)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the rows of one `KafkaTask`."""
        assert isinstance(partition, KafkaTask)
        return _read_task(self._options, self._projection, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget what only a restart before `end` needed; the tasks have committed to the group."""
        self._driver_side().note_done(end)

    def _driver_side(self) -> "StreamDriver":
        # Made late: the copy of this reader that is shipped to tasks never connects.
        if self._driver is None:
            log_like_spark("pyspark_timestream")
            self._driver = StreamDriver(self._options, projection=self._projection)
        return self._driver


@dataclass(frozen=True)
class BatchTask(InputPartition):
    """What Spark ships to a task of a batch read, and keeps for later evaluations."""

    share: BatchShare


@brief_errors
class KafkaBatchReader(DataSourceReader):
    """Kafka records and CTIs as a batch, from the starting to the ending options.

    What these mean is found by each task when it runs: see `kafka_batch_read`.
    """

    def __init__(self, options: KafkaOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._group = f"{options.group_prefix}-batch"

    def partitions(self) -> Sequence[InputPartition]:
        """One task a partition or part of one."""
        broker = Broker(self._options, self._group)
        listed = broker.partitions()
        starts, stops = self._bounds(broker, listed, listed)
        return [BatchTask(share) for share in share_out(self._options, starts, stops)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the rows of one `BatchTask`."""
        assert isinstance(partition, BatchTask)
        with borrowed_broker(self._options, self._group) as broker:
            listed = broker.partitions()
            bounds = self._bounds(broker, listed, wanted(partition.share, listed))
        plan = bind(self._options, partition.share, listed, *bounds)
        yield from _read_task(self._options, self._projection, KafkaTask(plan, self._group), True)

    def _bounds(
        self, broker: Broker, listed: Sequence[Partition], asked: Sequence[Partition]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Where the read starts and ends of those of `asked` that exist."""
        options, ends = self._options, broker.ends(asked)
        earliest = broker.earliest(ends)
        starting = broker.offsets_at(start_instants(options, ends, listed))
        ending = broker.offsets_at(end_instants(options, ends, listed))
        return (
            starting_positions(options, earliest, ends, starting, listed),
            ending_positions(options, earliest, ends, ending, listed),
        )


def _own_part(offset: StreamOffset, plan: TaskPlan) -> StreamOffset:
    """What one task needs of `offset` to leave its end states; with many partitions it is large."""
    own = {share.span.partition for share in plan.shares}
    partitions = {part: offset.partitions[part] for part in own}
    return StreamOffset(offset.stream, offset.settings, offset.starts, partitions)


def _as_patient_as_for_progress(options: KafkaOptions) -> KafkaOptions:
    """The options of a stream's task, whose batch the driver planned by what brokers answered.

    One that no broker answers meets an outage, which only delays the query.
    """
    most_ms = max(options.connect_timeout_ms, options.poll_timeout_ms)
    return replace(options, connect_timeout_ms=most_ms)


def _read_task(
    options: KafkaOptions, projection: Projection, task: KafkaTask, is_batch: bool = False
) -> Iterator[pa.RecordBatch]:
    ended: dict[Partition, PartitionState] = {}
    unfit: Counter[Partition] = Counter()
    # What is read in pieces is read in turn.
    whole = [share for share in task.plan.shares if share.lead is None and not share.raises]
    spans = [share.span for share in whole]
    needs = needs_of(options, projection)
    patient = options if is_batch else _as_patient_as_for_progress(options)
    with borrowed_reader(patient, task.group) as reader:
        read = with_small_ranges(patient, task.group, spans, needs, reader.read)
        yield from run_task(options, projection, task.plan, read, ended.__setitem__, unfit)
        if task.offset:
            settings = _broken_settings() if projection.wants("cti") else {}
            reader.leave(_ends_of(options, task.plan, task.offset, ended, unfit, settings))
    if is_batch:
        ends = {share.span.partition: share.span.end_exclusive for share in task.plan.shares}
        told = {part: (ends[part], state, unfit[part]) for part, state in ended.items()}
        log_like_spark("pyspark_timestream")
        say_of_read(options, projection, RangeReader, told)
    settle()


def _ends_of(
    options: KafkaOptions,
    plan: TaskPlan,
    offset: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    unfit: Mapping[Partition, int],
    settings: Mapping[str, str],
) -> dict[Partition, tuple[int, str]]:
    """What to leave in the group: the offsets that lag tools look at, and the clocks there.

    A part of a partition knows no clock, and only the last part knows that offset.
    """
    found = {}
    for part, end in ((share.span.partition, share.span.end_exclusive) for share in plan.shares):
        if end == offset.partitions[part].end_exclusive:
            told = (ended[part], unfit[part], settings)
            found[part] = end, "" if options.is_cut else encode_group_metadata(offset, part, *told)
    return found


def _broken_settings() -> dict[str, str]:
    """The settings that a query runs with, and that break what CTIs promise.

    A task has those of its query's session, which were set before the query was started, or are
    the checkpoint's.
    """
    task = TaskContext.get()
    return {} if task is None else broken_settings(task.getLocalProperty)
