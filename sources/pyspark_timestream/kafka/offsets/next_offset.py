"""Plans the next offset of a stream (semantics 5 to 8), and reports its progress (13.5).

A pure fold: the previous offset is the state, the broker's answers (`Observation`) and the run's
limits (`RunContext`) are the input, and the next offset is the result. It decides, in this order:

1. which partitions are idle, and at which clock each partition starts, imported CTIs included;
2. the stream's CTI, the minimum over partitions that are not idle, which never goes back;
3. the range of each partition, within the limits;
4. whether the batch is worth running: it is if it has records, a new CTI, or a decision that a
   replay must repeat (a new start, a loss, an idle partition, an import).
"""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_timestream.core.instants import FINAL_US, format_instant
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.offsets.alignment import (
    MaxSkew,
    advance_by_clock,
    align_ends,
    find_alignment,
    idle_partitions,
    merge_stream_cti,
)
from pyspark_timestream.kafka.offsets.imported_ctis import ImportedTopic, Pending, defer, release
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_VALUES,
    MalformedValues,
    PartitionOffset,
    StreamOffset,
    Warnings,
)
from pyspark_timestream.kafka.offsets.positions import (
    find_ended,
    has_reached,
    has_stream_ended,
    hide_missing,
    limit_ends,
)
from pyspark_timestream.kafka.offsets.tasks import remember_beginning, remember_raise
from pyspark_timestream.kafka.ranges import Partition, count_tasks, limit_ranges
from pyspark_timestream.rules.state import COUNTERS, PartitionState, raise_cti
from pyspark_timestream.rules.stream_cti import find_max_proven, max_known


def build_progress(
    offset: StreamOffset,
    log_ends: Mapping[Partition, int],
    until_us: int | None = None,
    described: tuple[str, Mapping[str, str]] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Build the progress report of the batch `offset`, as of the batch's start.

    `offset` and `lag` of a partition are the batch's start and the number of offsets from there to
    the end of the log, or to the stream's own end (`until_us` is that of `endingCti`). Counters are
    per partition, and summed over existing partitions; `malformedValues` counts by reason as well.
    `warnings` are the texts of those that hold. `described`, the option `timeSettings` and what
    was taken from there, is `timeSettings`.
    """
    ends = limit_ends(log_ends, offset.fixed_ends, find_ended(offset, {}, until_us))
    topics: dict[str, dict[str, Any]] = {}
    totals, malformed = dict.fromkeys(COUNTERS, 0), NO_MALFORMED_VALUES
    for part, share in sorted(offset.partitions.items()):
        topics.setdefault(part.topic, {})[str(part.number)] = _build_partition(
            share, ends.get(part, share.end_exclusive)
        )
        for name, count in share.state.counters().items():
            totals[name] += count
        malformed += share.malformed_values
    return {
        "cti": _format_cti(offset.cti_us),
        "endOfStream": offset.closing,
        "partitions": topics,
        "warnings": list(warnings),
        **totals,
        "malformedValues": _report_malformed(malformed),
        "timeSettings": described and {"from": described[0], "taken": dict(described[1])},
    }


def _build_partition(share: PartitionOffset, log_end: int) -> dict[str, Any]:
    return {
        "cti": _format_cti(share.state.cti_us),
        "idle": share.idle,
        "lag": max(log_end - share.start_inclusive, 0),
        "offset": share.start_inclusive,
        **share.state.counters(),
        "malformedValues": _report_malformed(share.malformed_values),
        "waits": share.waits,
    }


def _report_malformed(found: MalformedValues) -> dict[str, int]:
    return {"total": found.total, **dict(found.by_reason)}


def _format_cti(cti_us: int | None) -> str | None:
    return None if cti_us is None else format_instant(cti_us)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The limits and state of the current run.

    Attributes:
        max_offsets: approximate maximum of offsets in this batch; None for no limit.
        min_offsets: the batch waits until this many offsets exist; None for no minimum.
        max_tasks: maximum number of tasks; None for no limit.
        bounded: the run ends once its given ends are read.
        new_start: this is the first offset of the run.
        lost: positions skip lost records, or a lost partition is back: this needs a new offset.
        final_cti: a bounded run ends with the final CTI.
        idle_timeout_us: how long a quiet partition still holds the stream's CTI back; None for
            ever.
        idle_advance_us: while all partitions are idle, the stream's CTI follows the wall clock this
            far behind; None if it stays.
        max_skew: how much further than the slowest partition others are read; None: as far as
            there are records.
        committed_batch: the last batch that no restart goes back before; -1 if none.
        until_us: the CTI at which partitions and stream end; None for no such end.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_tasks: int | None = None
    bounded: bool = False
    new_start: bool = False
    lost: bool = False
    final_cti: bool = False
    idle_timeout_us: int | None = None
    idle_advance_us: int | None = None
    max_skew: MaxSkew | None = None
    committed_batch: int = -1
    until_us: int | None = None

    def end_at(self, cti_us: int | None) -> "RunContext":
        """Return the run, bounded from here on if the stream's CTI `cti_us` has reached its end."""
        ends = self.bounded or has_reached(cti_us, self.until_us)
        return dataclasses.replace(self, bounded=ends)


@dataclass(frozen=True, slots=True)
class Observation:
    """The driver's observations, apart from positions and ends.

    Attributes:
        now_us: the wall clock.
        since_us: quiet partitions (everything read, no open transaction), and the wall clock when
            each was first seen quiet.
        settled: there has been nothing to do for about a second.
        topic_ids: the known ids of topics.
        imported: the state of the topic of `ctiImport`, read before the ends were asked for; None
            without an import.
        written: the ends of the logs at that time, including open transactions; the ends where
            it is not known.
        warnings: the warnings up to now; None for those of the previous offset.
        malformed_values: per partition, the malformed values and keys so far.
        time_index: the first offset at or after the bound of aligned reading, None where there is
            no such record; without partitions where the records' timestamps are not event times.
    """

    now_us: int = 0
    since_us: Mapping[Partition, int] = field(default_factory=dict)
    settled: bool = False
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    imported: ImportedTopic | None = None
    written: Mapping[Partition, int] = field(default_factory=dict)
    warnings: Warnings | None = None
    malformed_values: Mapping[Partition, MalformedValues] = field(default_factory=dict)
    time_index: Mapping[Partition, int | None] = field(default_factory=dict)


NO_OBSERVATION: Final = Observation()

ClockStart = tuple[PartitionState, Pending]
"""A partition's clock at a batch's start, and the imported CTIs that still wait."""


@dataclass(frozen=True, slots=True)
class _PlanInput:
    """The arguments of `plan_next_offset`; `ended` includes the hidden partitions."""

    previous: StreamOffset
    ended: Mapping[Partition, PartitionState]
    positions: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    run: RunContext
    seen: Observation


def plan_first_offset(
    stream: str,
    settings: Mapping[str, str],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    run: RunContext,
    seen: Observation = NO_OBSERVATION,
) -> StreamOffset:
    """Plan the first batch of a new query, from `starts` towards `ends`."""
    blank = StreamOffset(stream, settings, 1, {}, topic_ids=seen.topic_ids)
    given = _PlanInput(blank, {}, starts, ends, run, seen)
    begun = _start_clocks(given)
    cti_us = merge_stream_cti(begun, begun, set(), set(), None)
    planned = dataclasses.replace(
        blank,
        partitions=_plan_partitions(given, blank.number, begun),
        cti_us=cti_us,
        imported=seen.imported,
        bounded=run.bounded,
        warnings=seen.warnings or (),
    )
    return _complete(planned, None, run)


def empty_offset(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    run: RunContext,
    seen: Observation = NO_OBSERVATION,
) -> StreamOffset:
    """Return the state after `previous` as an offset that reads nothing.

    See `plan_next_offset` for the arguments.
    """
    known = previous.partitions
    shares = {
        part: PartitionOffset(
            position,
            position,
            ended.get(part, PartitionState()),
            part in known and known[part].idle,
            seen.since_us.get(part),
            known[part].pending if part in known else (),
            malformed_values=seen.malformed_values.get(part, NO_MALFORMED_VALUES),
        )
        for part, position in positions.items()
    }
    return dataclasses.replace(
        previous, partitions=shares, imported=seen.imported, bounded=run.bounded
    )


def plan_next_offset(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    run: RunContext,
    seen: Observation = NO_OBSERVATION,
) -> StreamOffset:
    """Plan the offset after `previous`; return `previous` itself if there is nothing to do.

    Args:
        previous: the offset of the last batch.
        ended: the end state of each partition of `previous`.
        positions: the next offset to read of every existing partition.
        ends: the ends up to which records can be read (in a bounded run those at its start).
        run: the limits and state of the run.
        seen: the other observations.

    Raises:
        CheckpointMismatch: there are new records, but the final CTI has been emitted.
    """
    emitted_us = max_emitted_cti(previous, ended)
    ended = {**{part: share.state for part, share in previous.hidden.items()}, **ended}
    was_idle = {part for part, share in previous.partitions.items() if share.idle}
    run = run.end_at(previous.cti_us)
    closed = run.bounded and previous.closing and not run.new_start
    idle = idle_partitions(seen.since_us, was_idle, run.idle_timeout_us, seen.now_us)
    if closed:
        # The closing offset was the run's last word.
        idle = frozenset(was_idle & positions.keys())
    given = _PlanInput(previous, ended, positions, ends, run, seen)
    starts = _start_clocks(given)
    cti_us = merge_stream_cti(starts, previous.partitions, was_idle, idle, emitted_us)
    advanced_us = previous.advanced_us
    if positions and idle >= positions.keys() and not (closed or previous.final):
        moved_us = advance_by_clock(cti_us, run.idle_advance_us, seen.now_us)
        if moved_us is not None:
            cti_us = advanced_us = moved_us
    run = run.end_at(cti_us)
    for part in starts:
        if cti_us is not None and (part not in previous.partitions or part in was_idle - idle):
            state, pending = starts[part]
            starts[part] = raise_cti(state, cti_us), pending
    topic_ids = {**previous.topic_ids, **seen.topic_ids}
    hidden = hide_missing(previous, ended, positions, topic_ids, seen.now_us)
    imported = seen.imported.partitions if seen.imported else {}
    topics = {part.topic for part in (*positions, *hidden, *imported)} | seen.topic_ids.keys()
    number = previous.number + 1
    planned = dataclasses.replace(
        previous,
        number=number,
        partitions=_plan_partitions(given, number, starts, idle),
        cti_us=cti_us,
        starts=previous.starts + run.new_start,
        topic_ids={topic: topic_ids[topic] for topic in topics & topic_ids.keys()},
        imported=seen.imported,
        advanced_us=advanced_us,
        hidden=hidden,
        bounded=run.bounded,
        warnings=previous.warnings if seen.warnings is None else seen.warnings,
    )
    planned = _complete(planned, emitted_us, run)
    has_records = any(span.size for span in planned.ranges())
    if has_records and previous.final:
        raise CheckpointMismatch(
            "this checkpoint's stream has ended: its final CTI promised that nothing changes any "
            "more, and now there are new records; start with a new checkpoint, or run with option "
            "'finalCti' = 'false' from the beginning"
        )
    has_work = has_records or planned.opening_us is not None or run.new_start or run.lost
    # A decision by a clock or another topic takes effect with the offset that records it.
    decided = idle != was_idle & positions.keys() or has_new_import(previous, seen.imported)
    has_new_warnings = planned.warnings != previous.warnings
    settled = seen.settled and (has_new_warnings or any(span.size for span in previous.ranges()))
    if has_work or decided or settled:
        return planned
    return planned if run.bounded and not closed else previous


def find_instants_ms(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    run: RunContext,
) -> dict[Partition, int]:
    """Return the timestamps, in ms, whose offsets `Observation.time_index` is to have."""
    skew, limit = run.max_skew, run.max_offsets
    return find_alignment(previous, ended, positions, ends, skew, limit).instants_ms()


def has_new_import(previous: StreamOffset, imported: ImportedTopic | None) -> bool:
    """Check whether the imported topic has a CTI that `previous` does not know."""
    before_us = None if previous.imported is None else previous.imported.cti_us
    now_us = None if imported is None else imported.cti_us
    return now_us is not None and now_us != before_us and not previous.final


def _start_clocks(given: _PlanInput) -> dict[Partition, ClockStart]:
    """Return every partition's clock at the batch's start, with the imported CTIs in effect."""
    previous, ends, seen = given.previous, given.ends, given.seen
    starts = {}
    for part, position in given.positions.items():
        share = previous.partitions.get(part) or previous.hidden.get(part)
        pending = share.pending if share else ()
        if share and position != share.end_exclusive and pending:
            # The CTIs wait for offsets of records that are gone.
            pending = ((ends.get(part, position), pending[-1][1]),)
        read_us = None if seen.imported is None else seen.imported.cti_us
        is_new = part not in previous.partitions
        if read_us is not None and (is_new or has_new_import(previous, seen.imported)):
            end = seen.written.get(part, ends.get(part, position))
            pending = defer(pending, end, read_us)
        cti_us, pending = release(pending, position)
        state = given.ended.get(part, PartitionState())
        starts[part] = (state if cti_us is None else raise_cti(state, cti_us)), pending
    return starts


def _plan_partitions(
    given: _PlanInput,
    number: int,
    starts: Mapping[Partition, ClockStart],
    idle: Set[Partition] = frozenset(),
) -> dict[Partition, PartitionOffset]:
    """Plan the ranges of the batch `number`."""
    previous, ended, positions, run = given.previous, given.ended, given.positions, given.run
    # A final CTI before `endingCti` raises partitions too: their new records are still refused.
    can_end = not previous.final or has_stream_ended(previous, run.until_us)
    # A partition found during a bounded run has no end there: it waits for the next run.
    reachable = {
        part: at
        if can_end and has_reached(starts[part][0].cti_us, run.until_us)
        else max(given.ends.get(part, at), at)
        for part, at in positions.items()
    }
    limit = run.max_offsets
    alignment = find_alignment(previous, ended, positions, reachable, run.max_skew, limit)
    aligned, waiting = align_ends(alignment, positions, reachable, given.seen.time_index)
    limited = limit_ranges(positions, reachable, limit, run.min_offsets, aligned)
    shares = {}
    for part, position in positions.items():
        state, pending = starts[part]
        before = previous.partitions.get(part) or previous.hidden.get(part)
        place = number, position, run.committed_batch
        is_raised = state.cti_us != ended.get(part, PartitionState()).cti_us
        shares[part] = PartitionOffset(
            position,
            limited[part],
            state,
            part in idle,
            given.seen.since_us.get(part),
            pending,
            remember_beginning(before, *place),
            remember_raise(before, *place, state.cti_us if is_raised else None),
            given.seen.malformed_values.get(part, NO_MALFORMED_VALUES),
            part in waiting,
        )
    return shares


def _complete(planned: StreamOffset, emitted_us: int | None, run: RunContext) -> StreamOffset:
    """Set what follows from the ranges of `planned`: tasks, opening CTI, closing."""
    ranges = planned.ranges()
    closing = run.bounded and not any(span.size for span in ranges)
    final = planned.final or (closing and run.final_cti)
    cti_us = FINAL_US if final else planned.cti_us
    is_new = cti_us is not None and (run.new_start or emitted_us is None or cti_us > emitted_us)
    return dataclasses.replace(
        planned,
        cti_us=cti_us,
        opening_us=cti_us if is_new else None,
        tasks=count_tasks(ranges, run.max_tasks),
        closing=closing,
        final=final,
    )


def max_emitted_cti(
    previous: StreamOffset, ended: Mapping[Partition, PartitionState]
) -> int | None:
    """Return the greatest CTI row emitted up to the end of the batch `previous`.

    Every batch opens with its stream CTI unless that was emitted before, so only a CTI that its
    tasks have proven can be greater.
    """
    spans = [span for span in previous.ranges() if not previous.partitions[span.partition].idle]
    place = {span.partition: index for index, span in enumerate(spans)}
    start_us = [previous.partitions[span.partition].state.cti_us for span in spans]
    # A partition that is missing now has no end state; its task may have proven less than this.
    end_us = [
        ended[span.partition].cti_us if span.partition in ended else start
        for span, start in zip(spans, start_us, strict=True)
    ]
    groups = [[place[span.partition] for span in group] for group in previous.groups()]
    proven = find_max_proven(start_us, end_us, groups)
    return max_known(proven, previous.cti_us)
