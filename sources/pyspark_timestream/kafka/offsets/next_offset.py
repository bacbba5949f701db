"""Plans the next offset of a stream (semantics 5 to 8).

`plan_next_offset` follows semantics 8.1: it begins with an offset that reads nothing, at the end
of the last batch, and each step adds one decision. A step that depends on a wall clock or
another topic uses the `BrokerSnapshot`, and the offset records the decision.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import NEW_CHECKPOINT, CheckpointMismatch
from pyspark_timestream.kafka.offsets.changes import ClockChange, keep_changes
from pyspark_timestream.kafka.offsets.offset import (
    PartitionOffset,
    Pending,
    StreamOffset,
    Warnings,
    defer,
    release,
)
from pyspark_timestream.kafka.offsets.positions import (
    find_recreated_topics,
    has_stream_ended,
    keep_missing,
)
from pyspark_timestream.kafka.offsets.stream_state import (
    BrokerSnapshot,
    RunContext,
    StreamState,
    advance_by_clock,
    align_ends,
    compute_alignment,
    find_emitted_cti,
    find_idle,
)
from pyspark_timestream.kafka.offsets.tasks import (
    note_change_points,
    note_forced_cti,
    note_restart_point,
)
from pyspark_timestream.kafka.ranges import Partition, count_tasks, limit_ranges
from pyspark_timestream.rules.clocks import compute_stream_cti, has_reached, raise_cti

NO_TIME_INDEX: Final[Mapping[Partition, int | None]] = {}


def plan_first_offset(
    stream: str,
    settings: Mapping[str, str],
    snapshot: BrokerSnapshot,
    run: RunContext,
    warnings: Warnings = (),
) -> StreamOffset:
    """Plan the first batch of a new query, in which all partitions are new."""
    blank = StreamOffset(stream, settings, starts=0, partitions={}, number=-1)
    state = StreamState(blank, {}, snapshot, replace(run, new_start=True))
    return plan_next_offset(state, warnings)


def plan_next_offset(
    state: StreamState,
    warnings: Warnings | None = None,
    time_index: Mapping[Partition, int | None] = NO_TIME_INDEX,
) -> StreamOffset:
    """Plan the offset after the last batch; return the last one if there is nothing to do.

    Args:
        state: the stream after the last batch.
        warnings: the warnings up to now; None for those of the last offset.
        time_index: the first offset at or after the bound of aligned reading, None if there is no
            such record; empty if the records' timestamps are not the event times.

    Raises:
        CheckpointMismatch: there are new records, but the final CTI has been emitted.
    """
    emitted_us = find_emitted_cti(state.previous, state.clocks)
    # First: `endingCti` bounds the run, and once a bounded run has ended, no partition becomes idle
    # and no CTI follows the wall clock.
    state = _end_run_at(state, state.previous.cti_us)
    planned = carry_over(state)
    # Before `_change_rules`, which also changes the clocks of the missing partitions that this step
    # finds, and before the steps that note the batch's number.
    planned = _begin_batch(state, planned)
    # Before any CTI counts: new rules may raise a clock, and drop imported CTIs that wait.
    planned = _change_rules(state, planned)
    planned = planned if warnings is None else replace(planned, warnings=warnings)
    # Both before the minimum, which leaves out idle partitions and counts imported CTIs.
    planned = _set_idle(state, planned)
    planned = _take_imported_ctis(state, planned)
    planned = _set_stream_cti(state, planned, emitted_us)
    # After the minimum, because a change is recorded with it.
    planned = _note_change(state, planned)
    # After the minimum, since it decides how far to raise. Before the ranges: a partition that is
    # raised to `endingCti` has ended, and a replay must repeat what raises a clock.
    planned = _raise_to_stream_cti(state, planned)
    # Again, because the stream's CTI may have reached `endingCti` since the last batch was planned.
    state = _end_run_at(state, planned.cti_us)
    planned = _set_ranges(state, planned, time_index)
    # After the ranges: only a batch without records can end the run.
    planned = _finish(state, planned, emitted_us)
    return planned if _is_worth_a_batch(state, planned) else state.previous


def carry_over(state: StreamState) -> StreamOffset:
    """Return where the stream is after its last batch, as an offset that reads nothing."""
    partitions = {
        partition: _carry_over_partition(state, partition, position)
        for partition, position in state.snapshot.positions.items()
    }
    imported = state.snapshot.imported
    return replace(
        state.previous, partitions=partitions, imported=imported, bounded=state.run.bounded
    )


def _carry_over_partition(
    state: StreamState, partition: Partition, position: int
) -> PartitionOffset:
    last_offset = state.find_last(partition)
    return PartitionOffset(
        position,
        position,
        state.find_clock(partition),
        idle=state.was_idle(partition),
        caught_up_since_us=state.snapshot.caught_up_since_us.get(partition),
        pending=last_offset.pending if last_offset else (),
        malformed_payloads=state.find_malformed(partition),
    )


def _end_run_at(state: StreamState, cti_us: int | None) -> StreamState:
    """7.7: once the stream's CTI has reached `endingCti`, the run is bounded."""
    bounded = state.run.bounded or has_reached(cti_us, state.run.options.ending_cti_us)
    return replace(state, run=replace(state.run, bounded=bounded))


def _begin_batch(state: StreamState, planned: StreamOffset) -> StreamOffset:
    """8.1: count the batch and the start; keep topic ids and missing partitions that matter."""
    previous, snapshot = state.previous, state.snapshot
    topic_ids = {**previous.topic_ids, **snapshot.topic_ids}
    missing = keep_missing(state, topic_ids)
    imported = snapshot.imported.partitions if snapshot.imported else {}
    topics = {partition.topic for partition in (*snapshot.positions, *missing, *imported)}
    topics |= snapshot.topic_ids.keys()
    return replace(
        planned,
        number=previous.number + 1,
        starts=previous.starts + state.run.new_start,
        topic_ids={topic: topic_ids[topic] for topic in topics & topic_ids.keys()},
        missing=missing,
    )


def _change_rules(state: StreamState, planned: StreamOffset) -> StreamOffset:
    """8.10: existing clocks continue under the new rules; new partitions begin with them.

    A missing partition may come back, so its clock changes as well. CTIs of an import that is left
    out wait no longer.
    """
    change = state.run.change
    if change is None:
        return planned

    def move(partition: Partition, partition_offset: PartitionOffset) -> PartitionOffset:
        if not state.find_last(partition):
            return partition_offset
        pending = () if change.leaves_import_out else partition_offset.pending
        return replace(partition_offset, clock=change.move(partition_offset.clock), pending=pending)

    return replace(planned, settings=change.settings).change_partitions(move, with_missing=True)


def _note_change(state: StreamState, planned: StreamOffset) -> StreamOffset:
    """8.10: record the change with the stream's CTI, and where it takes effect."""
    changes = planned.changes
    committed = state.run.committed_batch
    if state.run.change is not None:
        old, new = state.run.change.old, state.run.change.new
        changes = (*changes, ClockChange(planned.number, planned.cti_us, old, new))
    changes = keep_changes(changes, committed)
    if not changes or changes[-1].number <= committed:
        # Only a restart that runs the batch of a change again asks where it took effect.
        return replace(planned, changes=changes)

    def note(partition: Partition, partition_offset: PartitionOffset) -> PartitionOffset:
        last_offset = state.find_last(partition)
        start = partition_offset.start_inclusive
        points = note_change_points(last_offset, changes, planned.number, start, committed)
        return replace(partition_offset, change_points=points)

    return replace(planned, changes=changes).change_partitions(note, with_missing=True)


def _set_idle(state: StreamState, planned: StreamOffset) -> StreamOffset:
    """5.2: a partition becomes idle after `idleTimeout`, and stays idle while it is caught up."""
    if state.has_run_ended:
        # After the end-of-run batch no partition becomes idle.
        return planned
    since_us = state.snapshot.caught_up_since_us
    now_us = state.snapshot.now_us
    idle = find_idle(since_us, state.previous.idle, state.run.options.idle_timeout_us, now_us)

    def set_idle(partition: Partition, partition_offset: PartitionOffset) -> PartitionOffset:
        is_idle = partition in idle
        if partition_offset.idle == is_idle:
            return partition_offset
        return replace(partition_offset, idle=is_idle)

    return planned.change_partitions(set_idle)


def _take_imported_ctis(state: StreamState, planned: StreamOffset) -> StreamOffset:
    """6.2: an imported CTI takes effect once the partition is read to the end it then had."""
    recreated = find_recreated_topics(state.previous.topic_ids, state.snapshot.topic_ids)

    def take(partition: Partition, partition_offset: PartitionOffset) -> PartitionOffset:
        pending = _defer_import(state, partition, partition_offset, recreated)
        if not pending:
            return partition_offset
        cti_us, pending = release(pending, partition_offset.start_inclusive)
        clock = partition_offset.clock
        clock = clock if cti_us is None else raise_cti(clock, cti_us)
        return replace(partition_offset, pending=pending, clock=clock)

    return planned.change_partitions(take)


def _defer_import(
    state: StreamState,
    partition: Partition,
    partition_offset: PartitionOffset,
    recreated: Collection[str],
) -> Pending:
    """Return the imported CTIs that wait for a partition's records, including a new one."""
    snapshot = state.snapshot
    last_offset = state.find_last(partition)
    position = partition_offset.start_inclusive
    pending = partition_offset.pending
    end = snapshot.ends.get(partition, position)
    is_moved = last_offset is not None and position != last_offset.end_exclusive
    log_end = snapshot.high_watermarks.get(partition, end)
    if pending and (is_moved or partition.topic in recreated):
        # Records are gone or the log is another one, so the offsets of the pairs mean nothing.
        pending = ((log_end, pending[-1][1]),)
    read_us = None if snapshot.imported is None else snapshot.imported.cti_us
    if read_us is not None and (state.is_new(partition) or state.has_new_import):
        pending = defer(pending, log_end, read_us)
    return pending


def _set_stream_cti(
    state: StreamState, planned: StreamOffset, emitted_us: int | None
) -> StreamOffset:
    """5.1, 5.9: take the minimum of the active partitions; if all are idle, follow the clock.

    The CTI never goes below an emitted one, even if a partition that proved it is missing now.
    """
    active: list[int | None] = []
    new: list[int | None] = []
    idle: list[int | None] = []
    for partition, partition_offset in planned.partitions.items():
        if partition_offset.idle:
            group = idle
        elif state.is_new(partition) or state.was_idle(partition):
            group = new
        else:
            group = active
        group.append(partition_offset.clock.cti_us)
    cti_us = compute_stream_cti(active, new, idle, emitted_us)
    if not idle or active or new or state.has_run_ended or state.previous.final:
        # The wall clock speaks only for a stream that is idle in all partitions and goes on.
        return replace(planned, cti_us=cti_us)
    advanced_us = advance_by_clock(cti_us, state.run.options.idle_advance_us, state.snapshot.now_us)
    if advanced_us is None:
        return replace(planned, cti_us=cti_us)
    return replace(planned, cti_us=advanced_us, advanced_us=advanced_us)


def _raise_to_stream_cti(state: StreamState, planned: StreamOffset) -> StreamOffset:
    """5.4, 5.5, 8.3: raise a partition that is new, or no longer idle, to the stream's CTI.

    This also raises a partition that lost its clock with its records; no other active partition is
    below that CTI. After a final CTI only partitions that are new, or no longer idle, are raised:
    the others have not ended if `endingCti` lies later.
    """
    cti_us = planned.cti_us
    if cti_us is None:
        return planned
    previous_is_final = state.previous.final

    def raise_clock(partition: Partition, partition_offset: PartitionOffset) -> PartitionOffset:
        is_active = not partition_offset.idle
        is_back = is_active and state.was_idle(partition)
        if not (state.is_new(partition) or is_back or (is_active and not previous_is_final)):
            return partition_offset
        clock = raise_cti(partition_offset.clock, cti_us)
        if clock is partition_offset.clock:
            return partition_offset
        return replace(partition_offset, clock=clock)

    return planned.change_partitions(raise_clock)


def _set_ranges(
    state: StreamState, planned: StreamOffset, time_index: Mapping[Partition, int | None]
) -> StreamOffset:
    """5.10, 7.6, 7.7: decide how far the batch reads each partition, within all limits."""
    run = state.run
    positions = state.snapshot.positions
    reachable = _find_reachable(state, planned)
    alignment = compute_alignment(state, reachable)
    aligned, waiting = align_ends(alignment, positions, reachable, time_index)
    limited = limit_ranges(positions, reachable, run.max_offsets, run.min_offsets, aligned)

    def set_range(partition: Partition, partition_offset: PartitionOffset) -> PartitionOffset:
        last_offset = state.find_last(partition)
        clock = partition_offset.clock
        position = partition_offset.start_inclusive
        # No record raises a clock that this plan has raised, so a replay must do it again.
        forced_us = None if clock.cti_us == state.find_clock(partition).cti_us else clock.cti_us
        return replace(
            partition_offset,
            end_exclusive=limited[partition],
            restart_points=note_restart_point(
                last_offset,
                batch=planned.number,
                position=position,
                committed=run.committed_batch,
            ),
            forced_ctis=note_forced_cti(
                last_offset,
                batch=planned.number,
                position=position,
                committed=run.committed_batch,
                cti_us=forced_us,
            ),
            waits=partition in waiting,
        )

    return planned.change_partitions(set_range)


def _find_reachable(state: StreamState, planned: StreamOffset) -> dict[Partition, int]:
    """Return how far each partition can be read; one that has ended stays at its position."""
    until_us = state.run.options.ending_cti_us
    # A final CTI that came before `endingCti` raises partitions past that, too. They have not
    # ended: their new records must be reachable, so that `_finish` refuses them.
    can_end = not state.previous.final or has_stream_ended(state.previous, until_us)
    # A partition found during a bounded run has no bound, so it waits for the next run.
    return {
        partition: position
        if can_end and has_reached(planned.partitions[partition].clock.cti_us, until_us)
        else max(state.snapshot.ends.get(partition, position), position)
        for partition, position in state.snapshot.positions.items()
    }


def _finish(state: StreamState, planned: StreamOffset, emitted_us: int | None) -> StreamOffset:
    """7.2, 7.3: derive the tasks, the first CTI row and the end of the run from the ranges."""
    run = state.run
    end_of_run = run.bounded and not planned.has_records
    final = planned.final or (end_of_run and run.final_cti)
    if planned.has_records and state.previous.final:
        raise CheckpointMismatch(
            "this checkpoint's stream has ended: its final CTI promised that nothing changes any "
            f"more, and now there are new records; {NEW_CHECKPOINT}; to run again, set 'finalCti' "
            "to 'false' from the beginning"
        )
    cti_us = FINAL_US if final else planned.cti_us
    is_new = cti_us is not None and (run.new_start or emitted_us is None or cti_us > emitted_us)
    return replace(
        planned,
        cti_us=cti_us,
        first_cti_us=cti_us if is_new else None,
        tasks=count_tasks(planned.ranges(), run.options.max_tasks),
        end_of_run=end_of_run,
        final=final,
        bounded=run.bounded,
    )


def _is_worth_a_batch(state: StreamState, planned: StreamOffset) -> bool:
    """Return whether the batch has records, a new CTI, or a decision that a replay must repeat."""
    previous = state.previous
    run = state.run
    snapshot = state.snapshot
    if planned.has_records or planned.first_cti_us is not None:
        return True
    if run.new_start or run.change is not None or snapshot.lost or state.has_new_import:
        return True
    if any(
        offset.idle != state.was_idle(partition) for partition, offset in planned.partitions.items()
    ):
        return True
    has_new_progress = planned.warnings != previous.warnings or previous.has_records
    if snapshot.nothing_to_do and has_new_progress:
        return True
    return run.bounded and not state.has_run_ended
