"""The state machine of one partition (semantics 2.2) and its policies (3), over columns.

Each partition keeps its own clock, the CTI in force; initially there is none. For each record, in
this order:

1. Forget the writers that have been silent for too long, which may raise the CTI (4.5).
2. Compare the event with the CTI in force: it is *late* if its time is strictly before it (3), else
   *in the future* if it is more than `maxFuture` after its record's timestamp (3.8). It is
   *malformed* if it has no readable time, an unknown edge, or an end that is not after its start.
3. Count the event, unless it is malformed, an end edge, or more than `maxFuture` after its record's
   timestamp (2.10). It may trigger a CTI right after it, at its received time minus the delay (2.3
   to 2.5).
4. Apply its mark, then its close, which may change the in-band CTI (4.2, 4.4).

A CTI takes effect only if it is greater than the one in force. The policy for late events never
influences the clock: a dropped event counts too, and an adjusted one drives the clock with its
received time. So `step` computes the clock of a whole block first, and the violations after it.
`step` is a fold: any split of the records into calls gives the same results, CTIs and end clock.

A replay from T to U (7.7) delivers the rows of the full run with a time in [T, U). Each partition
ends right after the record that takes its CTI to U or beyond, and the CTI then becomes exactly U.
Every on-time row below U comes before this end, so nobody reads the rest.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.core.arrow import Integers, Mask
from pyspark_timestream.core.instants import (
    FINAL_US,
    MIN_US,
    NEVER,
    Instants,
    instant_or_none,
    instant_or_sentinel,
)
from pyspark_timestream.core.policies import FUTURE_POLICIES, LATE_COUNTERS, POLICIES, Action
from pyspark_timestream.rules.clocks import (
    MAX_LEAD_US,
    OLD_US,
    Clues,
    Events,
    PartitionClock,
    TimeRules,
    find_early,
)
from pyspark_timestream.rules.generator import (
    CountedEvents,
    GeneratedCtis,
    fold_written_events,
    generate_ctis,
)
from pyspark_timestream.rules.marks import (
    MarkEffects,
    Marks,
    Proposals,
    TimeWindows,
    fold_marks,
)

LATE: Final = 1
ADJUSTED: Final = 2
MALFORMED: Final = 3
FUTURE: Final = 4
VIOLATIONS: Final = (None, "late", "adjusted", "malformed", "future")
"""The `violation` column's text by code; code 0 means no violation."""

_NO_INSTANTS: Final = np.empty(0, dtype=np.int64)
_NO_FLAGS: Final = np.empty(0, dtype=np.bool_)
NO_MARKS: Final = Marks(
    _NO_INSTANTS, _NO_INSTANTS, _NO_FLAGS, _NO_FLAGS, pa.nulls(0, pa.string()), _NO_FLAGS
)
"""The marks of a block without any."""

_NO_PROPOSALS: Final = Proposals(_NO_INSTANTS, _NO_INSTANTS, _NO_FLAGS)


@dataclass(frozen=True, slots=True)
class Failure:
    """The first record that a policy `fail` refuses.

    Attributes:
        index: its index in the block.
        kind: `late`, `malformed` or `future`, or `mark` for an unreadable mark.
        event_us: the event time that was compared; arbitrary if malformed, or a mark.
        cti_us: the CTI in force; None: none yet.
    """

    index: int
    kind: str
    event_us: int
    cti_us: int | None


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The result of the rules for a block of n records.

    Attributes:
        keep: n booleans: the event becomes a row.
        violation: n codes, each an index into VIOLATIONS.
        start_us: n instants, adjusted.
        end_us: n instants, adjusted; None for points.
        times: n instants: the received event times that were compared.
        well_formed: n booleans: the record is an event with such a time.
        malformed: n booleans: the record is an event without one.
        late: n booleans: the event is well-formed and before the CTI in force.
        in_force_us: n instants: the CTI in force before each record, NEVER where there is none.
        cti_index: each CTI comes right after the record with this index; -1: before the first.
        cti_us: the CTIs, strictly increasing, each above the one in force before the block.
        unreadable: the rows of unreadable marks.
        time_windows: the rows' time windows; None if the rules ask for none.
        failure: set if policy `fail` ends the stream; the rest is then meaningless.
        inside: n booleans: the record is in the replay window; None without one.
    """

    keep: Mask
    violation: npt.NDArray[np.uint8]
    start_us: Instants
    end_us: Instants | None
    times: Instants
    well_formed: Mask
    malformed: Mask
    late: Mask
    in_force_us: Instants
    cti_index: Integers
    cti_us: Instants
    unreadable: Integers
    time_windows: TimeWindows | None = None
    failure: Failure | None = None
    inside: Mask | None = None


def step(
    rules: TimeRules, clock: PartitionClock, events: Events, marks: Marks = NO_MARKS
) -> tuple[PartitionClock, BlockResult]:
    """Apply the rules to `events` and `marks`, and advance the clock.

    Raises:
        ValueError: the columns of `marks` differ in length.
    """
    if rules.is_at_end(clock.cti_us):
        return clock, _leave_out_all(rules, events)
    end_clock, result = _fold_block(rules, clock, events, marks)
    until_us = rules.until_us
    if until_us is None or not rules.is_at_end(end_clock.cti_us):
        return end_clock, result
    last_cti = int(np.searchsorted(result.cti_us, until_us))
    stop = int(result.cti_index[last_cti]) + 1
    # Fold again, only up to the record that takes the CTI to the end. From this come what later
    # records must not touch: the clock with its counters, the failure and the unreadable marks.
    end_clock, cut = _fold_block(rules, clock, _cut_events(events, stop), _cut_marks(marks, stop))
    # The rest comes from the whole block: its columns have an entry for each of its records. The
    # CTI at the end may be missing in the cut block: if a writer's silence or the end of the grace
    # brought it, the record that revealed this comes after the CTI and was cut off.
    end_clock = dataclasses.replace(end_clock, cti_us=until_us, ctis=clock.ctis + last_cti + 1)
    is_before = np.arange(len(result.keep)) < stop
    return end_clock, dataclasses.replace(
        result,
        keep=result.keep & is_before,
        cti_index=result.cti_index[: last_cti + 1],
        cti_us=np.append(result.cti_us[:last_cti], until_us),
        failure=cut.failure,
        unreadable=cut.unreadable,
        inside=is_before if result.inside is None else result.inside & is_before,
    )


def _leave_out_all(rules: TimeRules, events: Events) -> BlockResult:
    """Return the result for records after the partition's end."""
    _, result = _fold_block(rules, PartitionClock(), events, NO_MARKS)
    no_rows = np.zeros(len(result.keep), dtype=np.bool_)
    return dataclasses.replace(
        result,
        keep=no_rows,
        cti_index=_NO_INSTANTS,
        cti_us=_NO_INSTANTS,
        failure=None,
        unreadable=_NO_INSTANTS,
        inside=no_rows,
    )


def _cut_events(events: Events, stop: int) -> Events:
    columns = ((field.name, getattr(events, field.name)) for field in dataclasses.fields(events))
    cut: Any = {name: None if column is None else column[:stop] for name, column in columns}
    return Events(**cut)


def _cut_marks(marks: Marks, stop: int) -> Marks:
    count = int(np.searchsorted(marks.rows, stop))
    cut: Any = (column[:count] for column in marks)
    return Marks(*cut)


def _fold_block(
    rules: TimeRules, clock: PartitionClock, events: Events, marks: Marks
) -> tuple[PartitionClock, BlockResult]:
    """Fold a block without regard to the partition's end."""
    times, well_formed, malformed = check_times(events)
    beyond = _find_beyond_max_future(rules, events, times)
    is_counted = well_formed if events.is_end is None else well_formed & ~events.is_end
    rows = np.flatnonzero(is_counted if beyond is None else is_counted & ~beyond)
    counted = CountedEvents(rows, times[rows])
    effects, generated = _follow_records(rules, clock, events, marks, counted)
    in_force_us = _spread_ctis(clock.cti_us, generated.index, generated.us, len(times))
    result = BlockResult(
        keep=np.ones(len(times), dtype=np.bool_) if events.present is None else events.present,
        violation=np.zeros(len(times), dtype=np.uint8),
        start_us=events.start_us,
        end_us=events.end_us,
        times=times,
        well_formed=well_formed,
        malformed=malformed,
        late=well_formed & (times < in_force_us),
        in_force_us=in_force_us,
        cti_index=generated.index,
        cti_us=generated.us,
        unreadable=effects.unreadable,
        time_windows=effects.time_windows,
    )
    future = None if beyond is None else beyond & well_formed & ~result.late
    result, late_counts = _apply_policies(rules, events, future, result)
    result, outside_count = _limit_to_replay_window(rules, result)
    tombstone_count = 0 if events.valueless is None else _count_true(malformed & events.valueless)
    ineffective_marks = effects.proposals.is_mark & ~generated.effective
    counts = {
        "events": len(times) if events.present is None else _count_true(events.present),
        "malformed": _count_true(malformed) - tombstone_count,
        "tombstones": tombstone_count,
        "future": 0 if future is None else _count_true(future),
        "outside": outside_count,
        "ctis": len(generated.us),
        "ignored_ctis": len(effects.unreadable) + _count_true(ineffective_marks),
        **late_counts,
    }
    clues = _add_clues(clock.clues, rules.delay_us, result, events.record_us)
    return _advance_clock(effects.clock, generated, result, counts, clues), result


def _limit_to_replay_window(rules: TimeRules, result: BlockResult) -> tuple[BlockResult, int]:
    """Leave out the rows outside the replay window, and count them."""
    if rules.from_us is None and rules.until_us is None:
        return result, 0
    inside = _select_inside(rules, result)
    outside_count = _count_true(result.keep & ~inside)
    return dataclasses.replace(result, keep=result.keep & inside, inside=inside), outside_count


def _advance_clock(
    clock: PartitionClock,
    generated: GeneratedCtis,
    result: BlockResult,
    counts: Mapping[str, int],
    clues: Clues,
) -> PartitionClock:
    """Return the clock after a block, from one that knows its marks; add `counts`."""
    well_formed_rows = np.flatnonzero(result.well_formed)
    return dataclasses.replace(
        clock,
        clues=clues,
        cti_us=int(generated.us[-1]) if len(generated.us) else clock.cti_us,
        count=generated.count,
        base_us=generated.base_us,
        last_us=int(result.times[well_formed_rows[-1]]) if len(well_formed_rows) else clock.last_us,
        # A test checks that each late counter of the table of policies is a field.
        **{name: getattr(clock, name) + count for name, count in counts.items()},
    )


def _count_true(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def check_times(events: Events) -> tuple[Instants, Mask, Mask]:
    """Return each event's time to compare, and masks of the well-formed and malformed events."""
    times, well_formed = events.start_us, events.readable
    if events.end_us is not None:
        lasting = events.end_us > events.start_us
        if events.is_end is None:
            well_formed = well_formed & lasting
        else:
            times = np.where(events.is_end, events.end_us, events.start_us)
            well_formed = well_formed & (lasting | ~events.is_end)
    if events.present is None:
        return times, well_formed, ~well_formed
    return times, well_formed & events.present, ~well_formed & events.present


def _find_beyond_max_future(rules: TimeRules, events: Events, times: Instants) -> Mask | None:
    """Find the records too far after their timestamps (semantics 2.10); None: there is no limit."""
    if rules.max_future_us is None or events.record_us is None:
        return None
    is_beyond: Mask = times - rules.max_future_us > events.record_us
    is_beyond &= events.record_us != NEVER
    return is_beyond


def _follow_records(
    rules: TimeRules,
    clock: PartitionClock,
    events: Events,
    marks: Marks,
    counted: CountedEvents,
) -> tuple[MarkEffects, GeneratedCtis]:
    """Find the CTIs that the marks and the counted events of a block bring."""
    if events.writers is None and not len(marks.rows) and not rules.follows_writers:
        effects = MarkEffects(clock, _NO_PROPOSALS, unreadable=_NO_INSTANTS, time_windows=None)
    elif events.writers is None:
        effects = fold_marks(rules, clock, marks, events.record_us, len(events.start_us))
    else:
        effects = fold_written_events(rules, clock, events, counted)
        # The writers' own generators made the CTIs; the partition generates none (4.8).
        rules = dataclasses.replace(rules, every_events=None, every_us=None)
    return effects, generate_ctis(rules, clock, counted, effects.proposals)


def _spread_ctis(cti_us: int | None, index: Integers, us: Instants, rows: int) -> Instants:
    """Return the CTI in force before each record; `cti_us` is in force before the first."""
    candidates = np.full(rows + 1, NEVER, dtype=np.int64)
    candidates[0] = instant_or_sentinel(cti_us)
    # NumPy assigns in order, so a record keeps the last, greatest CTI after it.
    candidates[index + 1] = us
    return np.maximum.accumulate(candidates)[:-1]


def _apply_policies(
    rules: TimeRules, events: Events, future: Mask | None, result: BlockResult
) -> tuple[BlockResult, dict[str, int]]:
    """Apply the policies, and count the late events of each counter."""
    policy = POLICIES[rules.policy]
    counts = dict.fromkeys(LATE_COUNTERS, 0)
    for kind, mask in _group_by_kind(rules.shape, events, result):
        if mask.any():
            action: Action = getattr(policy, kind)
            if kind == "malformed":
                result = _apply_action(action, MALFORMED, mask, result)
                continue
            result = _apply_action(action, LATE, mask, result)
            if action.counter:
                counts[action.counter] += _count_true(mask)
    future_action = FUTURE_POLICIES[rules.future_policy].action
    future_action = Action.FLAG if future_action is None and policy.flags else future_action
    if future_action is not None and future is not None and future.any():
        result = _apply_action(future_action, FUTURE, future, result)
    if policy.fails and len(result.unreadable):
        row = int(result.unreadable[0])
        # An event of the same record fails before its mark.
        if result.failure is None or result.failure.index > row:
            cti_us = instant_or_none(result.in_force_us[row])
            result = dataclasses.replace(result, failure=Failure(row, "mark", 0, cti_us))
    return result, counts


def _group_by_kind(shape: str, events: Events, result: BlockResult) -> list[tuple[str, Mask]]:
    """Split the violating events by kind, which names a column of the policy table."""
    late = result.late
    if events.is_end is not None:
        shaped = [("start_edge", late & ~events.is_end), ("end_edge", late & events.is_end)]
    elif shape == "interval" and events.end_us is not None:
        ended = late & (events.end_us <= result.in_force_us)
        shaped = [("ended_interval", ended), ("interval", late & ~ended)]
    else:
        shaped = [("point", late)]
    return [*shaped, ("malformed", result.malformed)]


def _apply_action(action: Action, code: int, mask: Mask, result: BlockResult) -> BlockResult:
    """Apply an action to the events of `mask`; `code` is their violation."""
    if action is Action.DROP:
        return dataclasses.replace(result, keep=result.keep & ~mask)
    if action is Action.FAIL:
        return dataclasses.replace(result, failure=_find_failure(code, mask, result))
    code = code if action is Action.FLAG else ADJUSTED
    violation = np.where(mask, np.uint8(code), result.violation)
    if action.moves is None:
        return dataclasses.replace(result, violation=violation)
    times: Any = {action.moves: np.where(mask, result.in_force_us, getattr(result, action.moves))}
    return dataclasses.replace(result, violation=violation, **times)


def _find_failure(code: int, mask: Mask, result: BlockResult) -> Failure:
    row, failure = int(np.argmax(mask)), result.failure
    if failure is not None and failure.index < row:
        return failure
    cti_us = instant_or_none(result.in_force_us[row])
    return Failure(row, str(VIOLATIONS[code]), int(result.times[row]), cti_us)


def _select_inside(rules: TimeRules, result: BlockResult) -> Mask:
    """Select the records in the replay window, by each event's time after the policy.

    A malformed event has none and counts at the CTI in force. Each record is selected separately,
    so neither the split into blocks nor the start of reading changes the result.
    """
    counts_at_cti = result.malformed | (result.violation == ADJUSTED)
    placed = np.where(counts_at_cti, result.in_force_us, result.times)
    inside = np.ones(len(placed), dtype=np.bool_)
    if rules.from_us is not None:
        inside &= placed >= rules.from_us
    if rules.until_us is not None:
        inside &= placed < rules.until_us
    return inside


def _add_clues(
    clues: Clues, delay_us: int, result: BlockResult, record_us: Instants | None
) -> Clues:
    """Return the clues after a block; `record_us` are the timestamps, if they were read.

    The *lead* of a CTI is how far the event that made it is ahead of its own record's timestamp, if
    that is more than the delay and a skew of clocks explain. So a lead is over a minute, and in
    arrays 0 stands for none; `lead_us` is None then.
    """
    late, times = result.late, result.times
    if len(late) and int(times.min()) < OLD_US:
        is_old = result.well_formed & (times < OLD_US)
        is_early = is_old & find_early(times)
        late = late & ~is_early
        clues = clues._replace(
            old=clues.old + _count_true(is_old), early=clues.early + _count_true(is_early)
        )
    late_rows = np.flatnonzero(late)
    if not len(late_rows):
        if len(result.cti_index):
            newest_lead = _find_leads(delay_us, result, record_us, slice(-1, None))
            clues = clues._replace(lead_us=int(newest_lead[0]) or None)
        return clues
    # `leads[0]` is the lead of the CTI before the block, `leads[i + 1]` that of its CTI i. For a
    # late row the lead of the CTI in force counts: that of the last one before the row.
    leads = np.append(clues.lead_us or 0, _find_leads(delay_us, result, record_us, slice(None)))
    is_ahead = leads[np.searchsorted(result.cti_index, late_rows)] > 0
    late_us = times[late_rows]
    late_by_us = (result.in_force_us[late_rows] - late_us)[~is_ahead]
    # A late row is misplaced if it is further than the delay before an earlier late row.
    highest = np.maximum.accumulate(np.append(instant_or_sentinel(clues.behind_us), late_us))
    earlier = highest[:-1]
    floor = np.where(earlier == NEVER, MIN_US, earlier) - max(delay_us, 0)
    return clues._replace(
        lead_us=int(leads[-1]) or None,
        ahead=clues.ahead + _count_true(is_ahead),
        behind_us=int(highest[-1]),
        misplaced=clues.misplaced + _count_true(late_us < floor),
        most_late_us=max(clues.most_late_us, int(late_by_us.max(initial=0))),
    )


def _find_leads(
    delay_us: int, result: BlockResult, record_us: Instants | None, selected: slice
) -> Instants:
    """Return the leads of the selected CTIs; 0 if one has none or no event made it."""
    index, ctis_us = result.cti_index[selected], result.cti_us[selected]
    if record_us is None:
        return np.zeros(len(index), dtype=np.int64)
    rows = np.maximum(index, 0)
    times, stamps_us = result.times[rows], record_us[rows]
    # The event made the CTI if that is its time minus the delay; else a mark did.
    is_own = np.clip(times - delay_us, MIN_US, FINAL_US) == ctis_us
    has_lead = (index >= 0) & result.well_formed[rows] & is_own & (stamps_us != NEVER)
    lead_us = times - np.where(has_lead, stamps_us, times)
    return np.where(lead_us - max(delay_us, 0) > MAX_LEAD_US, lead_us, 0)
