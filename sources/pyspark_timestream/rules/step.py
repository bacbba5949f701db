"""The state machine of one partition, over columns of records (semantics 2.2).

Each partition has its own clock: the CTI in force, none at first. For each record, in this order:

1. Forget the writers that have been silent for too long, which may raise the CTI (4.5).
2. Judge the event: it is late if its time is strictly before the CTI in force (3), else in the
   future if it is more than `maxFuture` after its record's timestamp (3.8).
3. Count the event, unless it is malformed, an end edge, or more than `maxFuture` after its record's
   timestamp (2.10). It may trigger a CTI right after it, at its received time minus the delay (2.3
   to 2.5).
4. Apply its mark, then its close, which may change the in-band CTI (4.2, 4.4).

A CTI takes effect only if it is greater than the one in force. The policy for late events never
influences the clock: a dropped event counts too, and an adjusted one drives the clock with its
received time. So `step` computes the clock of a whole block first, and the violations after it.
`step` is a fold: any split of the records into calls gives the same verdicts, CTIs and end state.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.instants import (
    NEVER,
    Instants,
    Mask,
    instant_or_none,
    instant_or_sentinel,
)
from pyspark_timestream.rules.generator import (
    GeneratorRules,
    WrittenEvents,
    fold_written_events,
    generate_ctis,
)
from pyspark_timestream.rules.marks import MarkEffects, Marks, WriterRules, fold_marks
from pyspark_timestream.rules.policies import (
    ADJUSTED,
    POLICIES,
    Events,
    Failure,
    Verdicts,
    check_times,
    classify,
    cut_events,
    cut_marks,
    refuse_future,
    select_inside,
)
from pyspark_timestream.rules.state import Judged, PartitionState, add_clues

_NO_INSTANTS = np.empty(0, dtype=np.int64)
_NO_FLAGS = np.empty(0, dtype=np.bool_)
NO_MARKS = Marks(
    _NO_INSTANTS, _NO_INSTANTS, _NO_FLAGS, _NO_FLAGS, pa.nulls(0, pa.string()), _NO_FLAGS
)
"""The marks of a block without any."""


@dataclass(frozen=True, slots=True)
class TimeRules:
    """The options that decide CTIs and violations.

    Attributes:
        shape: `point`, `interval` or `edge`.
        policy: one of `POLICIES`.
        every_events: a CTI at every N-th counted event; None: not by count.
        every_us: a CTI when application time has advanced by this; None: not by timespan.
        delay_us: subtracted from the triggering event's time; may be negative.
        max_future_us: an event further than this after its record's timestamp is in the future and
            does not drive the clock; None: unlimited.
        writers: the partition waits for these writers from the start.
        writer_timeout_us: longest silence of a writer, in record timestamps; None: unlimited.
        time_window: the rows get time windows.
        writer_grace_us: no CTI of the writers takes effect until the record timestamps have
            advanced by this; None: at once.
        future_policy: `keep`, `drop` or `fail`, for events in the future.
        from_us: only rows at or after this instant; None: no start.
        until_us: only rows before this instant, and the partition ends where its CTI reaches it;
            None: no end.
    """

    shape: str = "point"
    policy: str = "drop"
    every_events: int | None = None
    every_us: int | None = None
    delay_us: int = 0
    max_future_us: int | None = None
    writers: tuple[str, ...] = ()
    writer_timeout_us: int | None = None
    time_window: bool = False
    future_policy: str = "keep"
    writer_grace_us: int | None = None
    from_us: int | None = None
    until_us: int | None = None

    def is_at_end(self, cti_us: int | None) -> bool:
        """Return whether `cti_us`, of a partition or of the stream, has reached the end."""
        return self.until_us is not None and cti_us is not None and cti_us >= self.until_us


def step(
    rules: TimeRules, state: PartitionState, events: Events, marks: Marks = NO_MARKS
) -> tuple[PartitionState, Verdicts]:
    """Judge `events`, apply `marks`, and advance the clock.

    Raises:
        ValueError: the columns of `marks` differ in length.
    """
    if rules.is_at_end(state.cti_us):
        return state, _leave_out(rules, events)
    moved, verdicts = _fold(rules, state, events, marks)
    until_us = rules.until_us
    if until_us is None or not rules.is_at_end(moved.cti_us):
        return moved, verdicts
    at = int(np.searchsorted(verdicts.cti_us, until_us))
    stop = int(verdicts.cti_index[at]) + 1
    # Fold again, only up to the record at which the CTI reaches the end.
    moved, before = _fold(rules, state, cut_events(events, stop), cut_marks(marks, stop))
    # The cut block may lack the record that revealed a writer's silence and so brought this CTI.
    moved = dataclasses.replace(moved, cti_us=until_us, ctis=state.ctis + at + 1)
    is_before = np.arange(len(verdicts.keep)) < stop
    return moved, dataclasses.replace(
        verdicts,
        keep=verdicts.keep & is_before,
        cti_index=verdicts.cti_index[: at + 1],
        cti_us=np.append(verdicts.cti_us[:at], until_us),
        failure=before.failure,
        unreadable=before.unreadable,
        inside=is_before if verdicts.inside is None else verdicts.inside & is_before,
    )


def _fold(
    rules: TimeRules, state: PartitionState, events: Events, marks: Marks
) -> tuple[PartitionState, Verdicts]:
    """Fold a block without regard to the partition's end."""
    policy = POLICIES[rules.policy]
    times, well_formed, malformed = check_times(events)
    ahead = _find_ahead(rules, events, times)
    counts = well_formed if events.is_end is None else well_formed & ~events.is_end
    counted = np.flatnonzero(counts if ahead is None else counts & ~ahead)
    writer_rules = WriterRules(
        rules.writers, rules.writer_timeout_us, rules.time_window, rules.writer_grace_us
    )
    frequency = GeneratorRules(rules.every_events, rules.every_us, rules.delay_us)
    driving = times[counted]
    if events.writers is None:
        effects = fold_marks(writer_rules, state, marks, events.record_us, len(times))
    else:
        written = WrittenEvents(counted, driving, events.writers, events.record_us)
        effects = fold_written_events(writer_rules, frequency, state, written)
        # The writers' own generators made the CTIs; the partition generates none (4.8).
        frequency = GeneratorRules(None, None, 0)
    generated = generate_ctis(frequency, state, counted, driving, effects.proposals)
    before = spread_ctis(state.cti_us, generated.index, generated.us, len(times))
    late = well_formed & (times < before)
    verdicts, tally = classify(rules.shape, rules.policy, events, times, late, malformed, before)
    future = None if ahead is None else ahead & well_formed & ~late
    if future is not None:
        verdicts = refuse_future(rules.future_policy, policy.flags, future, times, before, verdicts)
    if policy.fails:
        verdicts = _fail_on_marks(verdicts, effects, before)
    verdicts = dataclasses.replace(
        verdicts,
        cti_index=generated.index,
        cti_us=generated.us,
        unreadable=effects.unreadable,
        window=effects.window,
    )
    present = len(times) if events.present is None else np.count_nonzero(events.present)
    tally["events"] = int(present)
    tally["malformed"] = int(np.count_nonzero(malformed))
    if events.valueless is not None:
        tally["tombstones"] = int(np.count_nonzero(malformed & events.valueless))
        tally["malformed"] -= tally["tombstones"]
    tally["future"] = 0 if future is None else int(np.count_nonzero(future))
    if rules.from_us is not None or rules.until_us is not None:
        placed = np.where(malformed | (verdicts.violation == ADJUSTED), before, times)
        inside = select_inside(placed, rules.from_us, rules.until_us)
        tally["outside"] = int(np.count_nonzero(verdicts.keep & ~inside))
        verdicts = dataclasses.replace(verdicts, keep=verdicts.keep & inside, inside=inside)
    ineffective = int(np.count_nonzero(effects.proposals.is_mark & ~generated.effective))
    tally["ignored_ctis"] = ineffective + len(effects.unreadable)
    tally["ctis"] = len(generated.us)
    judged = Judged(
        times, well_formed, late, before, events.record_us, generated.index, generated.us
    )
    moved = dataclasses.replace(
        state,
        clues=add_clues(state.clues, rules.delay_us, judged),
        cti_us=int(generated.us[-1]) if len(generated.us) else state.cti_us,
        count=generated.count,
        base_us=generated.base_us,
        last_us=_find_last_time(state, times, well_formed),
        writers=effects.writers,
        noted_us=effects.noted_us,
        record_us=effects.record_us,
        first_us=effects.first_us,
        begun=effects.begun,
        **{name: getattr(state, name) + more for name, more in tally.items()},
    )
    return moved, verdicts


def _leave_out(rules: TimeRules, events: Events) -> Verdicts:
    """Return the verdicts on records after the partition's end."""
    _, verdicts = _fold(rules, PartitionState(), events, NO_MARKS)
    none = np.zeros(len(verdicts.keep), dtype=np.bool_)
    return dataclasses.replace(
        verdicts,
        keep=none,
        cti_index=_NO_INSTANTS,
        cti_us=_NO_INSTANTS,
        failure=None,
        unreadable=_NO_INSTANTS,
        inside=none,
    )


def _find_ahead(rules: TimeRules, events: Events, times: Instants) -> Mask | None:
    """Find the records too far after their timestamps (semantics 2.10); None: there is no limit."""
    if rules.max_future_us is None or events.record_us is None:
        return None
    is_ahead: Mask = times - rules.max_future_us > events.record_us
    is_ahead &= events.record_us != NEVER
    return is_ahead


def spread_ctis(cti_us: int | None, index: Instants, us: Instants, rows: int) -> Instants:
    """Return the CTI in force before each record, NEVER where there is none.

    Args:
        cti_us: the CTI before the first record; None if there is none.
        index: each CTI takes effect right after the record with this index; -1: before the first.
        us: these CTIs, increasing.
        rows: the number of records.
    """
    candidates = np.full(rows + 1, NEVER, dtype=np.int64)
    candidates[0] = instant_or_sentinel(cti_us)
    # NumPy assigns in order, so a record keeps the last, greatest CTI after it.
    candidates[index + 1] = us
    return np.maximum.accumulate(candidates)[:-1]


def _find_last_time(state: PartitionState, times: Instants, well_formed: Mask) -> int | None:
    places = np.flatnonzero(well_formed)
    return int(times[places[-1]]) if len(places) else state.last_us


def _fail_on_marks(verdicts: Verdicts, effects: MarkEffects, before: Instants) -> Verdicts:
    """Fail at the first unreadable mark, unless an event in the same or an earlier record fails."""
    failure = verdicts.failure
    if not len(effects.unreadable) or (failure and failure.index <= effects.unreadable[0]):
        return verdicts
    place = int(effects.unreadable[0])
    cti_us = instant_or_none(before[place])
    failure = Failure(place, malformed=False, event_us=0, cti_us=cti_us, mark=True)
    return dataclasses.replace(verdicts, failure=failure)
