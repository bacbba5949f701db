"""Adapts transport `time` to Spark: offsets, tasks and rows of the clock (semantics 12)."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import DataType, LongType, StructType, TimestampType

from pyspark_timestream.clock.time_options import TimeOptions, read_time_options
from pyspark_timestream.core.adapters import HandingReader, hide_tracebacks
from pyspark_timestream.core.arrow import INSTANT
from pyspark_timestream.core.checkpoint import (
    INITIAL_OFFSET,
    OFFSET_VERSION,
    check_offset,
    damaged_offset,
    is_initial_offset,
    is_instant,
)
from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import OptionError
from pyspark_timestream.rules.ticks import (
    NO_TICKS,
    Clock,
    Ticks,
    advance_ticks,
    are_last,
    compute_cti,
    compute_delivered_range,
    compute_simulated_time,
    compute_tick_times,
    count_due_ticks,
    cut_blocks,
    cut_evenly,
)

TIME_SCHEMA: Final = (
    StructType().add("timestamp", TimestampType(), False).add("value", LongType(), False)
)
"""The columns of Spark's `rate` source: `value` is the tick's number.

Declared as never null, because Spark then delivers rows faster.
"""

_MAX_HANDED: Final = 10_000
"""The most ticks to hand Spark along with a batch's only task, which then starts no Python."""

_LOG: Final = logging.getLogger("pyspark_timestream")


@dataclass(frozen=True)
class TickPartition(InputPartition):
    """One task: ticks [start_inclusive, end_exclusive) of `clock`."""

    clock: Clock
    start_inclusive: int
    end_exclusive: int


def _count(task: TickPartition) -> int:
    return task.end_exclusive - task.start_inclusive


class TimeTransport:
    """Format `timestream` with transport `time`; errors recognize the other transport's options."""

    def __init__(self, raw: Mapping[str, str], kafka_options: Collection[str] = ()) -> None:
        self._options = read_time_options(raw, kafka_options)

    def schema(self) -> StructType:
        """Return TIME_SCHEMA."""
        return TIME_SCHEMA

    def stream_reader(self, schema: StructType) -> "TimeStreamReader":
        """Return the reader of one query; `schema` must be TIME_SCHEMA, nullable or not."""
        if _list_columns(schema) != _list_columns(TIME_SCHEMA):
            raise OptionError(
                "schema",
                f"'{schema.simpleString()}' was given with .schema(...)",
                f"'{TIME_SCHEMA.simpleString()}', which transport 'time' always has",
                "leave .schema(...) out and select the columns you want",
            )
        return TimeStreamReader(self._options, schema=schema)

    def reader(self, schema: StructType) -> Any:
        """Refuse: a clock never ends, so a batch could not read all of it."""
        raise OptionError(
            "transport",
            "'time' cannot be read with spark.read",
            "spark.readStream",
            "use spark.readStream, with trigger(availableNow=True) for what is due now",
        )


@hide_tracebacks
class TimeStreamReader(HandingReader, SupportsTriggerAvailableNow):
    """Plans batches of ticks on the driver and delivers them in tasks, a small one at once.

    An offset holds the batch that ends at it and the decisions of the first start: `from` and `to`
    (the ticks delivered, end exclusive), `skipped`, `zero_us`, `started_us`, `settings`, `version`.
    So the end offset suffices to replay a batch, and the first batch can carry data.

    Args:
        options: the options of the query.
        now_us: reads the real clock, once per call from Spark. The reader ignores steps backwards.
        schema: TIME_SCHEMA, nullable or not.
    """

    def __init__(
        self,
        options: TimeOptions,
        now_us: Callable[[], int] = read_wall_clock,
        schema: StructType = TIME_SCHEMA,
    ) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._settings = options.settings()
        self._now_us = now_us
        self._latest_us: int | None = None
        self._available_until_us: int | None = None
        self._planned = INITIAL_OFFSET

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant: the first real offset records when the stream started."""
        return INITIAL_OFFSET

    def getDefaultReadLimit(self) -> ReadLimit:
        """Limit a batch to `maxTicksPerTrigger` ticks, if that is set."""
        max_ticks = self._options.max_ticks_per_trigger
        return ReadAllAvailable() if max_ticks is None else ReadMaxRows(max_ticks)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: it delivers ticks up to the present instant, inclusive."""
        self._available_until_us = self._real_us()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` itself if nothing is due.

        The first batch may be empty: its end records when the stream started.

        Raises:
            CheckpointMismatch: the checkpoint has other settings or another format version.
            OptionError: `maxCount` ticks from now on would pass the year 9999.
        """
        check_offset(start, self._settings)
        now_us = self._real_us()
        clock, before = self._resume(start, now_us)
        cap = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ticks = advance_ticks(clock, before, now_us, cap)
        _warn_of_skips(before, ticks)
        nothing_new = ticks == before and not is_initial_offset(start)
        self._planned = start if nothing_new else self._offset(clock, ticks)
        return self._planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TickPartition]:
        """Cut the batch's ticks into at most `numPartitions` contiguous tasks."""
        if start == end:
            return []
        check_offset(end, self._settings)
        clock, ticks = self._resume(end, now_us=0)
        before = NO_TICKS if is_initial_offset(start) else Ticks.from_json(start)
        cuts = cut_evenly(*compute_delivered_range(clock, before, ticks), self._options.partitions)
        tasks = [TickPartition(clock, begin, stop) for begin, stop in cuts]
        if self.can_hand_over and len(tasks) == 1 and _count(tasks[0]) <= _MAX_HANDED:
            self.hand_over(list(self.read(tasks[0])))
        return tasks

    def read(self, partition: TickPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the rows of one task in tick order."""
        for begin, stop in cut_blocks(partition.start_inclusive, partition.end_exclusive):
            times = pa.array(compute_tick_times(partition.clock, begin, stop))
            columns = [times.view(INSTANT), pa.array(np.arange(begin, stop))]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Report the stream's progress at the end of the batch just planned."""
        if self._latest_us is None or is_initial_offset(self._planned):
            return None
        clock, ticks = self._resume(self._planned, self._latest_us)
        return {
            "cti": format_instant(compute_cti(clock, ticks)),
            "endOfStream": are_last(clock, ticks),
            "maxCount": clock.max_count,
            "nextTick": ticks.end_exclusive,
            "simulatedTime": format_instant(compute_simulated_time(clock, ticks, self._latest_us)),
            "skipped": ticks.skipped,
            "ticksBehind": count_due_ticks(clock, self._latest_us) - ticks.end_exclusive,
        }

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a clock holds no resources."""

    def _real_us(self) -> int:
        # NTP and operators set clocks back; a tick that was due stays due.
        fixed_us = self._available_until_us
        now_us = self._now_us() if fixed_us is None else fixed_us
        self._latest_us = now_us if self._latest_us is None else max(now_us, self._latest_us)
        return self._latest_us

    def _resume(self, offset: dict[str, Any], now_us: int) -> tuple[Clock, Ticks]:
        """Return the clock and the batch in `offset`; the initial offset means a start now."""
        if is_initial_offset(offset):
            zero_us = self._options.zero_us
            return self._options.clock(now_us if zero_us is None else zero_us, now_us), NO_TICKS
        zero_us, started_us = offset.get("zero_us"), offset.get("started_us")
        if not (is_instant(zero_us) and is_instant(started_us)):
            raise damaged_offset(f"its clock begins at {zero_us!r}, when it was {started_us!r}")
        return self._options.clock(zero_us, started_us), Ticks.from_json(offset)

    def _offset(self, clock: Clock, ticks: Ticks) -> dict[str, Any]:
        # Sorted, because Spark compares offsets as JSON text.
        offset = {
            "settings": dict(sorted(self._settings.items())),
            "started_us": clock.started_us,
            "version": OFFSET_VERSION,
            "zero_us": clock.zero_us,
            **ticks.to_json(),
        }
        return dict(sorted(offset.items()))


def _list_columns(schema: StructType) -> list[tuple[str, DataType]]:
    return [(column.name, column.dataType) for column in schema]


def _warn_of_skips(before: Ticks, ticks: Ticks) -> None:
    newly = ticks.skipped - before.skipped
    if newly:
        _LOG.warning(
            "overflow=skip: %d overdue timestamps skipped, ticks %d to %d; %d since the start",
            newly,
            before.end_exclusive,
            ticks.start_inclusive - 1,
            ticks.skipped,
        )
