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


def change_rules(state: PartitionState, before: TimeRules, after: TimeRules) -> PartitionState:
    """Return the clock with which the rules `after` go on where the rules `before` have stopped.

    A CTI in force stays, and may rise if a writer is no longer waited for. Counters stay. Clues
    about late events begin anew, because they were about the old rules.
    """
    if replace(before, policy=after.policy, future_policy=after.future_policy) == after:
        return state
    state = _change_writers(state, before, after)
    state = _change_silence(state, before, after)
    if (before.every_events, before.every_us) != (after.every_events, after.every_us):
        writers = (
            (name, writer._replace(counted=0, base_us=None)) for name, writer in state.writers
        )
        state = replace(state, count=0, base_us=None, writers=tuple(writers))
    return replace(state, clues=Clues(old=state.clues.old, early=state.clues.early))


def _change_writers(state: PartitionState, before: TimeRules, after: TimeRules) -> PartitionState:
    """Wait for the writers that are new in the list, and no more for those that have left it."""
    if before.writers == after.writers:
        return state
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
    if not has_left or _is_in_grace(state, after):
        return state
    least_us = min_cti(writer.mark_us for writer in live.values())
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
    """Begin to measure silence at the next record if it was not, or is not, measured."""
    if before.needs_record_times != after.needs_record_times:
        state = replace(state, record_us=None)
    if (before.writer_timeout_us is None) == (after.writer_timeout_us is None):
        return state
    writers = ((name, writer._replace(seen_us=None)) for name, writer in state.writers)
    return replace(state, writers=tuple(writers))
