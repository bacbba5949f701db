"""Adapts transport `kafka` to Spark: a stream reader and a batch reader over plans and tasks.

Spark calls the stream reader in one process, batch after batch, in this order. A small batch is
read there and its rows are handed over (semantics 8.9):

1. `latestOffset` plans the batch. If it is small, a thread begins to read it.
2. `commit` comes for the batch before, once Spark has written the new offset to the checkpoint.
3. `partitions` waits for the rows and hands them over, while another thread commits the clocks; or
   it leaves the rows to tasks. A batch that runs again after a restart begins here.
4. `getCache` gives the rows to Spark, if there are any (`HandingReader`).
5. `read` runs in a task, if no rows were handed over, or if Spark has lost them.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

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

from pyspark_timestream.core.adapters import (
    HandingReader,
    HandOver,
    PendingRows,
    freeze_objects,
    hide_tracebacks,
    log_like_spark,
)
from pyspark_timestream.core.checkpoint import INITIAL_OFFSET, is_initial_offset
from pyspark_timestream.core.session import find_wrong_settings
from pyspark_timestream.errors import OptionError, SchemaRefused
from pyspark_timestream.kafka.client.broker import (
    Broker,
    acquire_broker,
    find_every_range,
)
from pyspark_timestream.kafka.client.native_consumer import warn_of_slow_reading
from pyspark_timestream.kafka.client.range_reader import (
    CommittedClock,
    RangeReader,
    acquire_reader,
    prefetch_small_ranges,
)
from pyspark_timestream.kafka.decode.columns import build_default_schema, check_columns, project
from pyspark_timestream.kafka.decode.payload import list_required_columns
from pyspark_timestream.kafka.decode.records import Projection, ReadRange
from pyspark_timestream.kafka.diagnosis.warner import Warner, log_new_warnings, warn_about_read
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.offsets.group_metadata import encode_group_metadata, group_name
from pyspark_timestream.kafka.offsets.offset import StreamOffset, check_stream_offset
from pyspark_timestream.kafka.offsets.positions import make_end_bound, make_start_bound
from pyspark_timestream.kafka.offsets.tasks import (
    ReadSlice,
    leave_out_topics,
    plan_slice,
    plan_stream_tasks,
    select_partitions,
    slice_read,
)
from pyspark_timestream.kafka.options.checks import (
    adapt_to_batch,
    adapt_to_stream,
    list_ignored_in_batch,
    read_kafka_options,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition, TaskPlan
from pyspark_timestream.kafka.reader_schemas import (
    load_schemas,
    pin_checked_reader_schemas,
    with_reader_schemas,
)
from pyspark_timestream.kafka.schemas import ReaderSchema
from pyspark_timestream.kafka.task import RangeEnd, run_task
from pyspark_timestream.rules.window_fold import fold_rows

_LOG: Final = logging.getLogger(__name__)


class KafkaTransport:
    """Transport `kafka` with the options of one query.

    Args:
        raw: the query's options; names may be in any case.
        topic_settings: options taken from the description of its topics, by name.

    Raises:
        OptionError: an option is wrong, missing, unknown, or conflicts with another.
    """

    def __init__(
        self, raw: Mapping[str, str], topic_settings: Mapping[str, str] | None = None
    ) -> None:
        self._options = load_schemas(read_kafka_options(raw, topic_settings))
        self._set_names = frozenset(name.lower() for name in raw)

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, then those of event time."""
        return from_arrow_schema(build_default_schema(self._options))

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of one streaming query."""
        return KafkaStreamReader(
            adapt_to_stream(self._options, self._set_names), self._project(schema)
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one batch query, which starts at the earliest offsets by default."""
        options = adapt_to_batch(self._options, self._set_names)
        log_like_spark("pyspark_timestream")
        for name in list_ignored_in_batch(self._set_names):
            _LOG.warning("option '%s' has no effect in a batch read", name)
        return KafkaBatchReader(options, self._project(schema))

    def _project(self, schema: StructType) -> Projection:
        fold = self._options.fold
        requested = to_arrow_schema(schema, timezone="UTC")
        if fold is not None:
            try:
                schema = StructType.fromJson(json.loads(fold.columns))
            except (ValueError, TypeError, KeyError) as error:
                raise _refuse_fold("does not name the columns of rows") from error
        projection = project(self._options, to_arrow_schema(schema, timezone="UTC"))
        if projection.condition is not None:
            _refuse_collations(schema, projection.condition.columns)
        if fold is not None:
            folded = fold.build_schema(projection.schema)
            if not folded.equals(requested):
                raise _refuse_fold(f"makes the columns {folded.names}, and the schema has others")
        return projection


def _refuse_collations(schema: StructType, names: Sequence[str]) -> None:
    """Refuse a condition over strings that Spark compares by another collation than bytes."""
    for column in schema:
        if column.name in names and "string collate" in column.dataType.simpleString():
            raise OptionError(
                "where",
                f"column '{column.name}' is {column.dataType.simpleString()}, and texts are "
                "compared by their bytes",
                "strings without a collation",
                "leave the collation out, or filter in Spark",
            )


def _refuse_fold(problem: str) -> SchemaRefused:
    return SchemaRefused(
        f"option 'foldWindows' {problem}",
        "the option and the schema that aggregate_windows sets",
        "leave both to aggregate_windows",
    )


@dataclass(frozen=True)
class KafkaTask(InputPartition):
    """A stream's task as Spark ships it: its plan, and where to commit its end clocks.

    Attributes:
        plan: the work of the task.
        group: the consumer group to commit to.
        offset: the batch, restricted to the task's partitions; None to commit nothing.
        reader_schemas: `value` or `key` -> the schema that it is read by.
    """

    plan: TaskPlan
    group: str = ""
    offset: StreamOffset | None = None
    reader_schemas: Mapping[str, ReaderSchema] = field(default_factory=dict)


@dataclass(slots=True)
class TaskEnd:
    """Where a task ended: the end of each partition's range, and the clocks to commit."""

    ranges: dict[Partition, RangeEnd] = field(default_factory=dict)
    clocks: Mapping[Partition, CommittedClock] = field(default_factory=dict)


class _BegunBatch(NamedTuple):
    """A batch with its tasks; `pending` if it is read here, and then it has one task."""

    offset: StreamOffset
    tasks: list[KafkaTask]
    pending: PendingRows[TaskEnd] | None


class _PlannedBatch(NamedTuple):
    """A begun batch, and the offsets of Spark that it lies between."""

    start: dict[str, Any]
    end: dict[str, Any]
    batch: _BegunBatch


@hide_tracebacks
class KafkaStreamReader(HandingReader, SupportsTriggerAvailableNow):
    """Reads Kafka records and CTIs as a stream, exactly once per checkpoint.

    The offset holds the batch's ranges and the clocks at its start. The tasks commit the clocks at
    its end to the consumer group; if they are missing there, the driver reads the ranges again.
    A small batch is read here instead of in a task (semantics 8.9).
    """

    def __init__(self, options: KafkaOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._driver: StreamDriver | None = None
        self._handing = HandOver[TaskEnd](
            options.max_driver_records, needs_task=projection.requests("cti")
        )
        self._planned: _PlannedBatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A task's copy reads only its own ranges.
        return {**self.__dict__, "_driver": None, "_handing": None, "_planned": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant: Spark calls this again after a restart, so it must decide nothing."""
        return INITIAL_OFFSET

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit `maxOffsetsPerTrigger`, or no limit."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit this run to the current ends."""
        self._get_driver().limit_to_current_ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the next batch's offset, or `start` itself if there is nothing to do."""
        cap = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._get_driver().plan(start, cap)
        self._planned = None if end == start else _PlannedBatch(start, end, self._begin_planned())
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the progress entry (semantics 13.5) as of the start of the batch planned last."""
        return self._get_driver().progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch that `end` describes.

        If Spark joins several batches after a crash (semantics 8.6), return tasks for all of them.
        """
        if start == end:
            return []
        planned, self._planned = self._planned, None
        if (
            planned is not None
            and (planned.start, planned.end) == (start, end)
            # Tasks read later, so for them topics that were recreated meanwhile are left out below.
            and planned.batch.pending is not None
        ):
            return self._finish(planned.batch)
        settings = self._options.settings()
        change_from = self._options.change_from
        check_stream_offset(end, settings, self._options.topic_settings, change_from=change_from)
        offset = self._get_driver().read_offset(end)
        self._check_columns(offset)
        reader_schemas = self._get_driver().pin_schemas(offset.schemas)
        before = -1 if is_initial_offset(start) else self._get_driver().read_offset(start).number
        if offset.number == before + 1:
            recreated = self._get_driver().find_recreated(offset, offset.ranges())
            return self._finish(self._begin(offset, reader_schemas, recreated))
        group = group_name(self._options.group_prefix, offset.stream)
        plans = self._get_driver().plan_joined_batches(start, offset)
        ranges = [task_range.offsets for plan in plans for task_range in plan.ranges]
        remaining_plans = leave_out_topics(plans, self._get_driver().find_recreated(offset, ranges))
        return [KafkaTask(plan, group, reader_schemas=reader_schemas) for plan in remaining_plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run in a task: return the rows of one `KafkaTask`."""
        assert isinstance(partition, KafkaTask)
        return read_task(self._options, self._projection, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget what only a restart before `end` needed; the tasks have committed to the group."""
        self._get_driver().mark_committed(end)

    def _check_columns(self, offset: StreamOffset) -> None:
        """Check the columns again for a batch that has other options, around a change."""
        if offset.settings != self._options.settings():
            check_columns(self._options.as_of(offset.settings), self._projection)

    def _plan_tasks(
        self,
        offset: StreamOffset,
        reader_schemas: Mapping[str, ReaderSchema],
        recreated: Collection[str],
    ) -> list[KafkaTask]:
        plans = leave_out_topics(plan_stream_tasks(self._options, offset), recreated)
        if offset.settings != self._options.settings():
            # It was planned before the options changed, or the change waits for its instant.
            plans = [replace(plan, settings=offset.settings) for plan in plans]
        group = group_name(self._options.group_prefix, offset.stream)
        return [
            KafkaTask(plan, group, _restrict_to_task(offset, plan), reader_schemas)
            for plan in plans
        ]

    def _begin_planned(self) -> _BegunBatch:
        """Begin to read the batch that was just planned, if its rows may be handed over."""
        driver = self._get_driver()
        offset = driver.planned
        assert offset is not None
        self._check_columns(offset)
        return self._begin(offset, driver.pin_schemas(offset.schemas))

    def _begin(
        self,
        offset: StreamOffset,
        reader_schemas: Mapping[str, ReaderSchema],
        recreated: Collection[str] = (),
    ) -> _BegunBatch:
        """Plan the tasks of a batch; begin to read it here if its rows may be handed over.

        The records of the topics `recreated` are not read.
        """
        tasks = self._plan_tasks(offset, reader_schemas, recreated)
        pending = None
        if self.can_hand_over and not self._options.cuts_partitions and len(tasks) == 1:
            pending = self._handing.begin(offset.size, partial(self._read_here, tasks[0]))
        return _BegunBatch(offset, tasks, pending)

    def _read_here(self, task: KafkaTask) -> tuple[Iterator[pa.RecordBatch], TaskEnd]:
        end = TaskEnd()
        return read_task(self._options, self._projection, task, keep=end), end

    def _finish(self, batch: _BegunBatch) -> list[KafkaTask]:
        """Hand over the rows that were read here, and return the tasks."""
        taken = self._handing.finish(batch.offset.size, batch.pending)
        if taken is not None:
            rows, end = taken
            commit = partial(_commit_clocks, self._options, batch.tasks[0].group, end.clocks)
            self._get_driver().note_end(batch.offset, end.ranges, commit)
            self.hand_over(rows)
        return batch.tasks

    def _get_driver(self) -> "StreamDriver":
        # The driver connects on demand: the copy of this reader in a task must never connect.
        if self._driver is None:
            log_like_spark("pyspark_timestream")
            warn_of_slow_reading()
            self._driver = StreamDriver(self._options, projection=self._projection)
        return self._driver


@dataclass(frozen=True)
class BatchTask(InputPartition):
    """A task of a batch read, which Spark ships and keeps for later evaluations."""

    read_slice: ReadSlice
    reader_schemas: Mapping[str, ReaderSchema] = field(default_factory=dict)


@hide_tracebacks
class KafkaBatchReader(DataSourceReader):
    """Reads Kafka records and CTIs as a batch, from the starting to the ending options.

    Each task resolves these options when it runs: see `kafka/offsets/tasks.py`.
    """

    def __init__(self, options: KafkaOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._group = f"{options.group_prefix}-batch"

    def partitions(self) -> Sequence[InputPartition]:
        """Return one task per partition, or per piece of a partition that is cut."""
        broker = Broker(self._options, self._group)
        existing, starts, stops = self._bounds(broker, list)
        if not existing and self._options.subscribe_pattern is not None:
            log_like_spark("pyspark_timestream")
            log_new_warnings(
                (), Warner(self._options, None, RangeReader).warn_at_start({}, {}, bounded=True)
            )
        options = pin_checked_reader_schemas(self._options, self._projection, {})
        slices = slice_read(options, starts, stops)
        return [BatchTask(read_slice, options.reader_schemas) for read_slice in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run in a task: return the rows of one `BatchTask`."""
        assert isinstance(partition, BatchTask)
        with acquire_broker(self._options, self._group) as broker:
            select = partial(select_partitions, partition.read_slice)
            existing, starts, stops = self._bounds(broker, select)
        plan = plan_slice(self._options, partition.read_slice, existing, starts, stops)
        task = KafkaTask(plan, self._group, reader_schemas=partition.reader_schemas)
        yield from read_task(self._options, self._projection, task, is_batch=True)

    def _bounds(
        self, broker: Broker, select: Callable[[Sequence[Partition]], list[Partition]]
    ) -> tuple[Sequence[Partition], dict[Partition, int], dict[Partition, int]]:
        """Return the existing partitions, and the starts and ends of those that `select` returns.

        Raises:
            BrokerUnreachable: as `find_every_range`.
        """
        options, existing = self._options, list[Partition]()

        def list_selected() -> list[Partition]:
            existing[:] = broker.partitions()
            return select(existing)

        earliest, ends = find_every_range(broker, list_selected)
        return (
            existing,
            make_start_bound(options).resolve(earliest, ends, broker.offsets_at, existing),
            make_end_bound(options).resolve(earliest, ends, broker.offsets_at, existing),
        )


def _restrict_to_task(offset: StreamOffset, plan: TaskPlan) -> StreamOffset:
    """Restrict `offset` to one task's partitions, because an offset of many partitions is large."""
    task_partitions = {task_range.offsets.partition for task_range in plan.ranges}
    partitions = {partition: offset.partitions[partition] for partition in task_partitions}
    return StreamOffset(offset.stream, offset.settings, offset.starts, partitions)


def _extend_connect_timeout(options: KafkaOptions) -> KafkaOptions:
    """Let a stream's task wait for brokers for the same time as for progress.

    The driver has just reached the brokers. A task that cannot reach them has met an outage, which
    must only delay the query.
    """
    timeout_ms = max(options.connect_timeout_ms, options.poll_timeout_ms)
    return replace(options, connect_timeout_ms=timeout_ms)


def _commit_clocks(
    options: KafkaOptions, group: str, clocks: Mapping[Partition, CommittedClock]
) -> None:
    """Commit the clocks of a batch that this process has read, with the consumer that read it."""
    with acquire_reader(_extend_connect_timeout(options), group) as reader:
        reader.commit_clocks(clocks)


def read_task(
    options: KafkaOptions,
    projection: Projection,
    task: KafkaTask,
    *,
    keep: TaskEnd | None = None,
    is_batch: bool = False,
    acquire: Callable[[KafkaOptions, str], AbstractContextManager[RangeReader]] = acquire_reader,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task.

    Args:
        options: the query's options; the batch's follow from the task.
        projection: the requested columns.
        task: what to read.
        keep: gets the ends and the clocks, which the driver commits if it hands the rows over;
            None: they are committed when all rows are read.
        is_batch: whether it belongs to a batch read, which has no driver to warn of what it finds.
        acquire: borrows a range reader.
    """
    options = options.as_of(task.plan.settings)
    if task.reader_schemas or options.registry:
        options = with_reader_schemas(options, task.reader_schemas)
    end = TaskEnd() if keep is None else keep
    # A range with a warm-up or forced CTIs is read in pieces, so prefetching it whole is no use.
    unbroken = [task_range for task_range in task.plan.ranges if task_range.is_whole]
    offset_ranges = [task_range.offsets for task_range in unbroken if task_range.offsets.size]
    columns = list_required_columns(options, projection)
    task_options = options if is_batch else _extend_connect_timeout(options)
    with acquire(task_options, task.group) as reader:
        read_range: ReadRange = reader.read
        if len(offset_ranges) > 1:
            read_range = prefetch_small_ranges(
                task_options, task.group, offset_ranges, columns, read_range
            )
        rows = run_task(options, projection, task.plan, read_range, end.ranges.__setitem__)
        null_columns = {*projection.fields.names, *projection.key_fields.names}
        if is_batch:
            rows = _find_nulls(rows, null_columns)
        if options.fold is not None:
            rows = fold_rows(options.fold, projection.schema, rows)
        yield from rows
        if task.offset:
            settings: Mapping[str, str] = {}
            if projection.requests("cti") and (context := TaskContext.get()) is not None:
                # The settings of the query at its start, or the checkpoint's.
                settings = find_wrong_settings(context.getLocalProperty)
            end.clocks = _encode_clocks(options, task.plan, task.offset, end.ranges, settings)
            if keep is None:
                reader.commit_clocks(end.clocks)
    if is_batch:
        # A batch read has no driver that sees the ends of all tasks.
        ends = _list_ends(task.plan).items()
        finished = {partition: (stop, *end.ranges[partition]) for partition, stop in ends}
        log_like_spark("pyspark_timestream")
        warn_about_read(options, projection, RangeReader, finished, null_columns)
    freeze_objects()


def _find_nulls(rows: Iterator[pa.RecordBatch], null_columns: set[str]) -> Iterator[pa.RecordBatch]:
    """Return the rows, and leave in `null_columns` those of only nulls, and nested ones."""
    for batch in rows:
        null_columns -= {
            name
            for name in null_columns
            if batch.column(name).null_count < batch.num_rows
            and not pa.types.is_nested(batch.column(name).type)
        }
        yield batch


def _encode_clocks(
    options: KafkaOptions,
    plan: TaskPlan,
    offset: StreamOffset,
    ended: Mapping[Partition, RangeEnd],
    settings: Mapping[str, str],
) -> dict[Partition, CommittedClock]:
    """Return what a task commits for the partitions that it reads to the end of the batch.

    Tools that measure lag need an end even without a clock: if a partition is cut, only its last
    task reaches the end, and no task knows the clock.
    """
    return {
        partition: CommittedClock(
            end,
            ""
            if options.cuts_partitions
            else encode_group_metadata(offset, partition, *ended[partition], settings),
        )
        for partition, end in _list_ends(plan).items()
        if end == offset.partitions[partition].end_exclusive
    }


def _list_ends(plan: TaskPlan) -> dict[Partition, int]:
    ranges = (task_range.offsets for task_range in plan.ranges)
    return {offsets.partition: offsets.end_exclusive for offsets in ranges}
