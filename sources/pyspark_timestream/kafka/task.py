"""Runs one task of a batch: reads its ranges in order, applies the rules and emits CTIs.

For each block of records, a task decodes times and marks (`decode.payload`), advances the
partition's clock and applies the policies (`rules.step`), and interleaves rows with the CTIs that
its partitions prove together (semantics 2 and 7). Only the reader that it is given does I/O.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.arrow import Mask
from pyspark_timestream.core.instants import TICK_US, Instants, format_instant
from pyspark_timestream.core.policies import FUTURE_POLICIES, POLICIES, Action, name_any
from pyspark_timestream.errors import SchemaRefused, SchemaRegistryError, ViolationFound
from pyspark_timestream.kafka.decode.payload import (
    ProcessedBlock,
    build_cti_rows,
    find_true_rows,
    interleave_ctis,
    list_required_columns,
    read_payload,
)
from pyspark_timestream.kafka.decode.records import (
    FINE,
    REASONS,
    RECORD_REASONS,
    ColumnSet,
    Projection,
    ReadRange,
    RecordBlock,
)
from pyspark_timestream.kafka.offsets.changes import change_clock
from pyspark_timestream.kafka.offsets.offset import NO_MALFORMED_PAYLOADS, MalformedPayloads
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.reading import FORMATS
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskPlan, TaskRange
from pyspark_timestream.rules.clocks import (
    PartitionClock,
    TaskWatermark,
    find_early,
    max_known,
    raise_cti,
)
from pyspark_timestream.rules.step import step

_LOG: Final = logging.getLogger(__name__)


class RangeEnd(NamedTuple):
    """A partition's clock after a range, and the malformed values and keys in the range."""

    clock: PartitionClock
    malformed_payloads: MalformedPayloads = NO_MALFORMED_PAYLOADS


def run_task(
    options: KafkaOptions,
    projection: Projection,
    plan: TaskPlan,
    read_range: ReadRange,
    keep_end: Callable[[Partition, RangeEnd], None],
) -> Iterator[pa.RecordBatch]:
    """Return the rows of the task, and pass the clock at each range's end to `keep_end`.

    Raises:
        ViolationFound: the options let an event or value fail the query.
    """
    run = _TaskRun(options, projection, plan, read_range)
    yield from run.show_cti(plan.first_cti_us, run.unshown_us)
    for index, task_range in enumerate(plan.ranges):
        yield from run.read_range(index, task_range)
        keep_end(task_range.offsets.partition, run.range_end)
    yield from run.show_cti(plan.last_cti_us, run.watermark.emitted_us)


class _TaskRun:
    """A running task.

    Attributes:
        unshown_us: in a replay, CTIs up to this one are not shown, since they lie before its start;
            None shows all.
        watermark: the CTI that the task has proven so far.
        range_end: the end of the range that was read last.
    """

    def __init__(
        self, options: KafkaOptions, projection: Projection, plan: TaskPlan, read_range: ReadRange
    ) -> None:
        self._projection = projection
        self._read_range = read_range
        self._options_at_start = options
        self._columns_at_start = list_required_columns(options, projection)
        self._has_ctis = projection.requests("cti")
        own_us = tuple(task_range.clock.cti_us for task_range in plan.ranges)
        from_us = options.rules.from_us
        # A CTI at the start itself is shown.
        self.unshown_us = None if from_us is None else from_us - TICK_US
        shown_us = max_known(plan.emitted_us, self.unshown_us)
        self.watermark = TaskWatermark(own_us, plan.others_us, shown_us)
        self.range_end = RangeEnd(PartitionClock())

    def show_cti(self, cti_us: int | None, shown_us: int | None) -> Iterator[pa.RecordBatch]:
        """Return a CTI row if the CTI is greater than the one shown already."""
        if self._has_ctis and cti_us is not None and (shown_us is None or cti_us > shown_us):
            yield build_cti_rows(self._projection, np.array([cti_us]))

    def read_range(self, index: int, task_range: TaskRange) -> Iterator[pa.RecordBatch]:
        """Return the rows of a range; `index` is its partition's place in the task."""
        # Options may change within a range, and each range begins with the same.
        options, columns = self._options_at_start, self._columns_at_start
        partition = task_range.offsets.partition
        clock = _find_start_clock(options, task_range, self._read_range)
        malformed_payloads = NO_MALFORMED_PAYLOADS
        for settings, forced_us, offset_range in task_range.split():
            if settings is not None:
                changed = options.as_of(settings)
                before_us = clock.cti_us
                clock = change_clock(clock, options, changed)
                options = changed
                columns = list_required_columns(options, self._projection)
                if clock.cti_us != before_us:
                    yield from self._prove(index, np.array([clock.cti_us]))
            if forced_us is not None:
                clock = raise_cti(clock, forced_us)
                yield from self._prove(index, np.array([clock.cti_us]))
            for block in _read_to_end(options, clock, offset_range, columns, self._read_range):
                before = clock
                with _locate_refusals(partition, block):
                    clock, processed = self._process(options, clock, partition, block)
                malformed_payloads += _count_malformed(processed, before, clock)
                _fail_on_violation(options, processed)
                _warn_of_marks(options, processed)
                yield from self._deliver(options, index, processed)
                if options.rules.is_at_end(clock.cti_us):
                    break
        self.range_end = RangeEnd(clock, malformed_payloads)
        end_us = task_range.end_cti_us
        if end_us is not None and (clock.cti_us is None or end_us > clock.cti_us):
            yield from self._prove(index, np.array([end_us]))

    def _prove(self, index: int, ctis_us: Instants) -> Iterator[pa.RecordBatch]:
        _, rows_us = self.watermark.advance(index, ctis_us)
        if self._has_ctis and len(rows_us):
            yield build_cti_rows(self._projection, rows_us)

    def _process(
        self, options: KafkaOptions, clock: PartitionClock, partition: Partition, block: RecordBlock
    ) -> tuple[PartitionClock, ProcessedBlock]:
        """Apply the rules to a block; one before a replay's start is decoded for the clock only."""
        from_us = options.rules.from_us
        if from_us is not None and (clock.cti_us is None or clock.cti_us < from_us):
            payload = read_payload(options, None, block)
            after, result = step(options.rules, clock, payload.events, payload.marks)
            if result.inside is not None and not result.inside.any():
                return after, ProcessedBlock(partition, block, payload, result)
        payload = read_payload(options, self._projection, block)
        after, result = step(options.rules, clock, payload.events, payload.marks)
        return after, ProcessedBlock(partition, block, payload, result)

    def _deliver(
        self, options: KafkaOptions, index: int, processed: ProcessedBlock
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of a block, with the CTI rows that it lets the task prove."""
        result = processed.result
        positions, rows_us = self.watermark.advance(index, result.cti_us)
        after = result.cti_index[positions]
        if not self._has_ctis:
            after = after[:0]
            rows_us = rows_us[:0]
        if result.inside is None or result.inside.any():
            keep = _select_rows(options, processed)
            is_true = find_true_rows(self._projection, processed)
            keep = keep if is_true is None else keep & is_true
            if options.fold is None:
                yield interleave_ctis(self._projection, processed, keep, after, rows_us)
                return
            # The fold keeps only the greatest CTI, at any position between the rows.
            yield interleave_ctis(self._projection, processed, keep, after[:0], rows_us[:0])
            rows_us = rows_us[-1:]
        if len(rows_us):
            yield build_cti_rows(self._projection, rows_us)


def _count_malformed(
    processed: ProcessedBlock, before: PartitionClock, after: PartitionClock
) -> MalformedPayloads:
    """Count malformed values, and note an offset for each warning: that of the last such record."""
    payload, result = processed.payload, processed.result
    inside = result.inside
    malformed_payloads = MalformedPayloads.from_reasons(payload.count_malformed(inside))
    offsets = processed.block.offsets
    if malformed_payloads.total:
        reasons = payload.find_reasons()
        assert reasons is not None
        wrong = (reasons != FINE) if inside is None else (reasons != FINE) & inside
        malformed_payloads = replace(
            malformed_payloads, malformed_payload_at=_find_last_offset(offsets, wrong)
        )
    if after.clues.early > before.clues.early:
        early = result.well_formed & find_early(result.times)
        malformed_payloads = replace(
            malformed_payloads, early_event_at=_find_last_offset(offsets, early)
        )
    if after.malformed > before.malformed:
        malformed = result.malformed
        if payload.events.valueless is not None:
            malformed = malformed & ~payload.events.valueless
        malformed_payloads = replace(
            malformed_payloads, malformed_event_at=_find_last_offset(offsets, malformed)
        )
    return malformed_payloads


def _find_last_offset(offsets: pa.Array, is_selected: Mask) -> int:
    """Return the offset of the last selected record; at least one is selected."""
    offset: int = offsets[int(np.flatnonzero(is_selected)[-1])].as_py()
    return offset


def _read_to_end(
    options: KafkaOptions,
    clock: PartitionClock,
    offset_range: OffsetRange,
    columns: ColumnSet,
    read_range: ReadRange,
) -> Iterable[RecordBlock]:
    """Return the records of a range; none if the partition has reached `endingCti`."""
    has_more = offset_range.size and not options.rules.is_at_end(clock.cti_us)
    return read_range(offset_range, columns) if has_more else ()


@contextmanager
def _locate_refusals(partition: Partition, block: RecordBlock) -> Iterator[None]:
    """Add the record's partition and offset to an error about its schema."""
    try:
        yield
    except (SchemaRefused, SchemaRegistryError) as error:
        if error.row is None:
            raise
        offset = block.offsets[error.row].as_py()
        raise error.locate(f"{partition} offset {offset}") from None


def _find_start_clock(
    options: KafkaOptions, task_range: TaskRange, read_range: ReadRange
) -> PartitionClock:
    """Return the clock before the first record to deliver, reading the warm-up range if any."""
    if task_range.warm_up is None:
        return task_range.clock
    return compute_end_clock(options, TaskRange(task_range.warm_up, task_range.clock), read_range)


def compute_end_clock(
    options: KafkaOptions, task_range: TaskRange, read_range: ReadRange
) -> PartitionClock:
    """Read the range for the clock only, and return the partition's clock after it."""
    clock = task_range.clock
    for after, _ in follow_clock(options, task_range, read_range):
        clock = after
    return clock


def follow_clock(
    options: KafkaOptions, task_range: TaskRange, read_range: ReadRange
) -> Iterator[tuple[PartitionClock, Instants]]:
    """Return, for each block of the range, the partition's clock after it and the block's CTIs."""
    clock = task_range.clock
    columns = list_required_columns(options, None)
    for block in _read_to_end(options, clock, task_range.offsets, columns, read_range):
        with _locate_refusals(task_range.offsets.partition, block):
            payload = read_payload(options, None, block)
        clock, result = step(options.rules, clock, payload.events, payload.marks)
        yield clock, result.cti_us
        if options.rules.is_at_end(clock.cti_us):
            return


def _select_rows(options: KafkaOptions, processed: ProcessedBlock) -> Mask:
    """Select the records that become rows, by the event rules and the parse mode."""
    keep = processed.result.keep
    reasons = processed.payload.find_reasons()
    if reasons is None or options.parse_mode == "PERMISSIVE":
        return keep
    broken: Mask = keep & (reasons != FINE)
    if options.parse_mode == "FAILFAST" and broken.any():
        row = int(np.argmax(broken))
        raise ViolationFound(
            f"{processed.locate(row)}: {_describe_malformed(options, reasons[row])}, and "
            "option 'parseMode' is 'FAILFAST'; use 'PERMISSIVE' to get nulls, or 'DROPMALFORMED' "
            "to leave such rows out"
        )
    return keep & ~broken


def _describe_malformed(options: KafkaOptions, reason: int) -> str:
    is_key = RECORD_REASONS[reason] not in REASONS
    side, form = ("key", options.key_format) if is_key else ("value", options.value_format)
    return (
        f"the {side} is not {FORMATS[form].name} of the schema (reason: {RECORD_REASONS[reason]})"
    )


def _warn_of_marks(options: KafkaOptions, processed: ProcessedBlock) -> None:
    unreadable = processed.result.unreadable
    if len(unreadable):
        _LOG.warning(
            "%s: %d marks in header '%s' from here on cannot be read and are ignored",
            processed.locate(int(unreadable[0])),
            len(unreadable),
            options.cti_header,
        )


def _fail_on_violation(options: KafkaOptions, processed: ProcessedBlock) -> None:
    failure = processed.result.failure
    if failure is None:
        return
    where = processed.locate(failure.index)
    cti = "none yet" if failure.cti_us is None else format_instant(failure.cti_us)
    if failure.kind == "future":
        others = (name for name, policy in FUTURE_POLICIES.items() if policy.action != Action.FAIL)
        raise ViolationFound(
            f"{where}: the event has event time {format_instant(failure.event_us)}, which is "
            "further after its record's timestamp than option 'maxFuture' allows, and option "
            f"'futurePolicy' is '{options.future_policy}'; correct the clock of its writer, or use "
            f"{name_any(others)} to go on"
        )
    if failure.kind == "mark":
        event = f"mark in header '{options.cti_header}' cannot be read"
    elif failure.kind == "malformed":
        event = f"event is malformed ({_describe_expected(options)})"
    else:
        event = f"event has event time {format_instant(failure.event_us)}, before"
    others = (name for name, policy in POLICIES.items() if not policy.fails)
    raise ViolationFound(
        f"{where}: the {event}; the CTI in force is {cti}, and option 'violationPolicy' is "
        f"'{options.policy}'; use {name_any(others)} to go on, or a larger 'ctiDelay'"
    )


def _describe_expected(options: KafkaOptions) -> str:
    readable = f"expected a readable time in '{options.start_time}'"
    if options.end_time is None:
        return readable
    edge = f" and 'start' or 'end' in '{options.edge}'" if options.edge else ""
    return f"{readable} and a later one in '{options.end_time}'{edge}"
