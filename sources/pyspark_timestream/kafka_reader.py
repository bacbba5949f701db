"""Spark adapters of transport `kafka`: a stream and a batch reader over the pure plan and task."""

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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
from pyspark_timestream.errors import DataLost
from pyspark_timestream.instants import FINAL_US
from pyspark_timestream.kafka_columns import Projection, default_schema, project
from pyspark_timestream.kafka_offset import StreamOffset, left_behind, read_left_behind
from pyspark_timestream.kafka_options import KafkaOptions, read_kafka_options
from pyspark_timestream.kafka_plan import (
    Circumstances,
    first_offset,
    next_offset,
    plan_tasks,
    reconcile,
)
from pyspark_timestream.kafka_progress import progress
from pyspark_timestream.kafka_starts import starting_positions
from pyspark_timestream.kafka_task import Share, TaskPlan, end_state, run_task
from pyspark_timestream.kafka_values import EARLIEST, LATEST
from pyspark_timestream.offsets import SENTINEL, check_offset, is_sentinel
from pyspark_timestream.ranges import Partition, Range

__all__ = ["KafkaTransport"]

_LOG: Final = logging.getLogger(__name__)

_DISCOVERY_S: Final = 1.0
"""How often a running query looks for new partitions."""


class KafkaTransport:
    """Transport `kafka`, as the options ask for it.

    Raises:
        OptionError: an option is wrong, missing, unknown, or conflicts with another.
    """

    def __init__(self, raw: Mapping[str, str]) -> None:
        self._options = read_kafka_options(raw)

    def schema(self) -> StructType:
        """Spark's Kafka columns, then those of event time."""
        return from_arrow_schema(default_schema(self._options))

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one streaming query."""
        return KafkaStreamReader(self._options, self._project(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one batch query."""
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
        self._driver: _Driver | None = None

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
        check_offset(end, self._options.settings())
        offset = StreamOffset.from_json(end)
        group = _group(self._options, offset)
        return [KafkaTask(plan, group, offset) for plan in plan_tasks(offset)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the rows of one `KafkaTask`."""
        assert isinstance(partition, KafkaTask)
        return _read_task(self._options, self._projection, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the tasks have committed to the group already."""

    def _driver_side(self) -> "_Driver":
        # Made late: the copy of this reader that is shipped to tasks never connects.
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver


class _Driver:
    """The driver's side of one run: asks the broker, and folds offsets."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._broker: Any = None
        self._bounds: dict[Partition, int] | None = None
        self._partitions: list[Partition] = []
        self._looked_at = float("-inf")
        self._started = False
        self._ended: tuple[StreamOffset, dict[Partition, PartitionState]] | None = None
        self._planned: StreamOffset | None = None
        self._log_ends: dict[Partition, int] = {}

    def bound(self) -> None:
        """Make this a bounded run that ends at the current ends."""
        # Nothing is asked with a group here, so any name does until the stream has one.
        self._connect(self._options.group_prefix)
        self._bounds = self._ends(fresh=True)

    def plan(self, start: Mapping[str, Any], cap: int | None) -> dict[str, Any]:
        """The next batch's offset as JSON; `start` where there is nothing to do."""
        check_offset(start, self._options.settings())
        run = Circumstances(
            max_offsets=cap,
            max_tasks=self._options.max_tasks,
            bounded=self._bounds is not None,
            new_start=not self._started,
            final_cti=self._options.final_cti,
        )
        if is_sentinel(start):
            planned = self._first(run)
        else:
            previous = StreamOffset.from_json(start)
            planned = self._next(previous, run)
            if planned is previous:
                self._planned = planned
                return dict(start)
        self._started, self._planned = True, planned
        return planned.to_json()

    def progress(self) -> dict[str, Any] | None:
        """What to report of the batch planned last."""
        return progress(self._planned, self._log_ends) if self._planned else None

    def _first(self, run: Circumstances) -> StreamOffset:
        stream = uuid.uuid4().hex
        self._connect(f"{self._options.group_prefix}-{stream}")
        ends = self._ends(fresh=self._bounds is None)
        earliest = self._broker.earliest(ends)
        starts = starting_positions(self._options, earliest, ends)
        return first_offset(stream, self._options.settings(), starts, ends, run)

    def _next(self, previous: StreamOffset, run: Circumstances) -> StreamOffset:
        self._connect(_group(self._options, previous))
        ends = self._ends()
        wanted = {part: share.end_exclusive for part, share in previous.partitions.items()}
        found = [part for part in ends if part not in wanted]
        quiet = not found and not run.new_start and ends == wanted
        earliest = wanted if quiet else self._broker.earliest(self._log_ends)
        fail = self._options.fail_on_data_loss
        positions, losses = reconcile(wanted, earliest, self._log_ends, fail)
        for loss in losses:
            _LOG.warning("%s; going on, as option 'failOnDataLoss' is 'false'", loss)
        positions.update({part: earliest[part] for part in found if part in earliest})
        return next_offset(previous, self._states_after(previous), positions, ends, run)

    def _connect(self, group: str) -> None:
        from pyspark_timestream.kafka import Broker

        if self._broker is None or self._broker.group != group:
            self._broker = Broker(self._options, group)

    def _ends(self, fresh: bool = False) -> dict[Partition, int]:
        """How far each partition may be read now."""
        now_s = time.monotonic()
        if fresh or now_s - self._looked_at > _DISCOVERY_S:
            self._partitions, self._looked_at = self._broker.partitions(), now_s
        self._log_ends = self._broker.ends(self._partitions)
        return self._log_ends if self._bounds is None else self._bounds

    def _states_after(self, offset: StreamOffset) -> dict[Partition, PartitionState]:
        """Every partition's state after the batch `offset`."""
        if self._ended is None or self._ended[0] != offset:
            self._ended = (offset, self._find_states_after(offset))
        return self._ended[1]

    def _find_states_after(self, offset: StreamOffset) -> dict[Partition, PartitionState]:
        states = {part: share.state for part, share in offset.partitions.items()}
        filled = [span for span in offset.ranges() if span.size]
        left = self._broker.left_metadata([span.partition for span in filled])
        for span in filled:
            part = span.partition
            found = read_left_behind(offset, part, left.get(part))
            states[part] = found or self._read_again(offset, span)
        return states

    def _read_again(self, offset: StreamOffset, span: Range) -> PartitionState:
        """The state after `span`, where no task has left it: by reading the range again."""
        from pyspark_timestream.kafka import RangeReader

        state = offset.partitions[span.partition].state
        _LOG.info("reading %s again: no task has left its state in the group", span)
        reader = RangeReader(self._options, _group(self._options, offset))
        try:
            return end_state(self._options, Share(span, state), reader.read)
        except DataLost as error:
            raise DataLost(
                f"the clock of topic '{span.partition.topic}' partition {span.partition.number} "
                f"after offset {span.end_exclusive - 1} was left nowhere, and reading it again "
                f"failed: {error}"
            ) from error
        finally:
            reader.close()


class KafkaBatchReader(DataSourceReader):
    """Kafka records and CTIs as a batch: from `startingOffsets` to the current ends."""

    def __init__(self, options: KafkaOptions, projection: Projection) -> None:
        if options.starting_offsets == LATEST:
            options = replace(options, starting_offsets=EARLIEST)
        self._options = options
        self._projection = projection

    def partitions(self) -> Sequence[InputPartition]:
        """One task a partition; without a second one to wait for, a task carries all CTIs."""
        from pyspark_timestream.kafka import Broker

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


def _group(options: KafkaOptions, offset: StreamOffset) -> str:
    return f"{options.group_prefix}-{offset.stream}"


def _read_task(
    options: KafkaOptions, projection: Projection, task: KafkaTask
) -> Iterator[pa.RecordBatch]:
    from pyspark_timestream.kafka import borrowed_reader

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
