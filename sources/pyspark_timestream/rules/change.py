"""The clock of a partition where its rules change (semantics 8.10).

A clock is a fold over records with fixed rules. Between two records the rules may change: what the
new ones do not know of the old state begins anew, and all that was promised stays.
"""

from dataclasses import replace

from pyspark_timestream.rules.state import (
    Clues,
    PartitionState,
    TimeRules,
    WriterState,
    min_cti,
    raise_cti,
)


def change_rules(
    state: PartitionState, before: TimeRules, after: TimeRules, *, forgets_marks: bool = False
) -> PartitionState:
    """Return the clock with which the rules `after` go on where the rules `before` have stopped.

    A CTI in force stays, and may rise if a writer is no longer waited for, or a grace is over.
    Counters stay. Clues about late events begin anew, because they were about the old rules. With
    `forgets_marks` the header of the marks is left out, or another one, and so are its writers.
    """
    if forgets_marks:
        state = replace(state, writers=(), noted_us=None, begun=False)
    elif replace(before, policy=after.policy, future_policy=after.future_policy) == after:
        return state
    state, has_left = _change_writers(state, before, after)
    state = _change_silence(state, before, after)
    if has_left or before.writer_grace_us != after.writer_grace_us:
        state = _raise_to_minimum(state, after)
    if (before.every_events, before.every_us) != (after.every_events, after.every_us):
        writers = (
            (name, writer._replace(counted=0, base_us=None)) for name, writer in state.writers
        )
        state = replace(state, count=0, base_us=None, writers=tuple(writers))
    return replace(state, clues=Clues(old=state.clues.old, early=state.clues.early))


def _change_writers(
    state: PartitionState, before: TimeRules, after: TimeRules
) -> tuple[PartitionState, bool]:
    """Wait for the writers that are new in the list, and no more for those that have left it.

    Return the clock, and whether it waits for fewer writers now.
    """
    if before.writers == after.writers:
        return state, False
    was_listed = before.writers if state.begun else ()
    gone = set(was_listed) - set(after.writers)
    live = {
        name: writer
        for name, writer in state.writers
        if name not in gone or not _has_only_been_waited_for(writer)
    }
    has_left = len(live) < len(state.writers)
    new = [name for name in after.writers if name not in was_listed and name not in live]
    live |= dict.fromkeys(new, WriterState())
    state = replace(
        state, writers=tuple(sorted(live.items())), begun=state.begun or bool(after.writers)
    )
    return state, has_left


def _raise_to_minimum(state: PartitionState, rules: TimeRules) -> PartitionState:
    if _is_in_grace(state, rules):
        return state
    least_us = min_cti(writer.mark_us for _, writer in state.writers)
    return state if least_us is None else raise_cti(state, least_us)


def _has_only_been_waited_for(writer: WriterState) -> bool:
    return writer.mark_us is None and not writer.counted and writer.base_us is None


def _is_in_grace(state: PartitionState, rules: TimeRules) -> bool:
    if rules.writer_grace_us is None:
        return False
    if state.record_us is None or state.first_us is None:
        return True
    return state.record_us - state.first_us < rules.writer_grace_us


def _change_silence(state: PartitionState, before: TimeRules, after: TimeRules) -> PartitionState:
    """Begin to measure silence and grace at the next record, if they were not, or end it."""
    begins_grace = before.writer_grace_us is None and after.writer_grace_us is not None
    if begins_grace or after.writer_grace_us is None:
        state = replace(state, first_us=None)
    if begins_grace or before.needs_record_times != after.needs_record_times:
        state = replace(state, record_us=None)
    is_kept = (before.writer_timeout_us is None) == (after.writer_timeout_us is None)
    if is_kept and not begins_grace:
        return state
    writers = ((name, writer._replace(seen_us=None)) for name, writer in state.writers)
    return replace(state, writers=tuple(writers))
