"""The state machine of one partition (contract section 3.4), over whole columns.

`step(rules, state, events)` is a fold: events come in offset order, any split of them into calls
gives the same judgements, the same CTIs and the same end state. The state round-trips through
JSON, because it is part of the Spark offset.

The rule in one paragraph: an event is judged against the CTI in force before it; then it counts;
if it triggers, a CTI at its received time minus the delay comes right after it, provided that it
is greater than the CTI in force. What the policy does to an event never drives the clock.
"""

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pyspark_timestream.instants import FINAL_US, MIN_US
from pyspark_timestream.partition_state import COUNTERS, PartitionState, raised
from pyspark_timestream.policy import Action, action

__all__ = [
    "COUNTERS",
    "Events",
    "Failure",
    "Judgement",
    "PartitionState",
    "TimeRules",
    "raised",
    "step",
]

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NO_VIOLATION: Final = 0
LATE: Final = 1
ADJUSTED: Final = 2
MALFORMED: Final = 3
VIOLATIONS: Final = (None, "late", "adjusted", "malformed")
"""The `violation` column's text by code."""

_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class TimeRules:
    """The options that decide CTIs and violations.

    Attributes:
        shape: `point`, `interval` or `edge`.
        policy: `drop`, `adjust`, `fail` or `flag`.
        every_events: a CTI at every N-th counted event; None: not by count.
        every_us: a CTI once application time has moved this far; None: not by timespan.
        delay_us: subtracted from the triggering event's time; may be negative.
    """

    shape: str = "point"
    policy: str = "drop"
    every_events: int | None = None
    every_us: int | None = None
    delay_us: int = 0


@dataclass(frozen=True, slots=True)
class Events:
    """A block of n consecutive events of one partition, in offset order.

    Attributes:
        start_us: n instants: the start time (of an end edge: the start of what it ends).
        readable: n booleans; False where a time is missing or unreadable or the edge unknown.
            Times at unreadable places may be anything.
        end_us: n instants for intervals and edges; None for points.
        is_end: n booleans for edges: this is an end edge; None for points and intervals.
    """

    start_us: Instants
    readable: Mask
    end_us: Instants | None = None
    is_end: Mask | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The first event that policy `fail` does not let pass."""

    index: int
    malformed: bool
    event_us: int
    cti_us: int | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a block of n events.

    Attributes:
        keep: n booleans: the event is passed on.
        violation: n codes, an index into VIOLATIONS.
        start_us: n instants, adjusted.
        end_us: n instants, adjusted; None for points.
        cti_index: for each CTI the index of the event that it comes right after.
        cti_us: the CTIs, strictly increasing, each above the one in force before the block.
        failure: set where policy `fail` ends the stream; the rest then means nothing.
    """

    keep: Mask
    violation: npt.NDArray[np.uint8]
    start_us: Instants
    end_us: Instants | None
    cti_index: Instants
    cti_us: Instants
    failure: Failure | None = None


def step(
    rules: TimeRules, state: PartitionState, events: Events
) -> tuple[PartitionState, Judgement]:
    """Judge `events` and advance the clock."""
    times, well_formed = _judged_times(rules, events)
    counted = np.flatnonzero(well_formed if events.is_end is None else well_formed & ~events.is_end)
    triggers, count, base_us = _triggers(rules, state, times[counted])
    trigger_index = counted[triggers]
    before, cti_index, cti_us = _clock(rules, state, times, trigger_index)
    late = well_formed & (times < before)
    judgement = _apply_policy(rules, events, times, late, ~well_formed, before)
    judgement = dataclasses.replace(judgement, cti_index=cti_index, cti_us=cti_us)
    tally = _tally(late, ~well_formed, judgement)
    moved = dataclasses.replace(
        state,
        cti_us=int(cti_us[-1]) if len(cti_us) else state.cti_us,
        count=count,
        base_us=base_us,
        last_us=_last(state, times, well_formed),
        ctis=state.ctis + len(cti_us),
        **{name: getattr(state, name) + more for name, more in tally.items()},
    )
    return moved, judgement


def _last(state: PartitionState, times: Instants, well_formed: Mask) -> int | None:
    places = np.flatnonzero(well_formed)
    return int(times[places[-1]]) if len(places) else state.last_us


def _judged_times(rules: TimeRules, events: Events) -> tuple[Instants, Mask]:
    """The time each event is judged by, and which events are well-formed."""
    if rules.shape == "point" or events.end_us is None:
        return events.start_us, events.readable
    lasting = events.end_us > events.start_us
    if events.is_end is None:
        return events.start_us, events.readable & lasting
    times = np.where(events.is_end, events.end_us, events.start_us)
    return times, events.readable & (lasting | ~events.is_end)


def _triggers(
    rules: TimeRules, state: PartitionState, times: Instants
) -> tuple[Instants, int, int | None]:
    """Which of the counted events trigger a CTI, and the counter and span base after them."""
    none = np.empty(0, dtype=np.int64)
    if not len(times):
        return none, state.count, state.base_us
    if rules.every_events is not None:
        first = rules.every_events - 1 - state.count
        triggers = np.arange(first, len(times), rules.every_events, dtype=np.int64)
        return triggers, (state.count + len(times)) % rules.every_events, state.base_us
    if rules.every_us is not None:
        base_us = int(times[0]) if state.base_us is None else state.base_us
        triggers = _span_triggers(times, base_us, rules.every_us)
        return triggers, state.count, int(times[triggers[-1]]) if len(triggers) else base_us
    return none, state.count, state.base_us


def _span_triggers(times: Instants, base_us: int, span_us: int) -> Instants:
    """Each trigger is the first event at least `span_us` after the one before it.

    The first event that reaches a bound is also the first at which the running maximum does, so
    every event's successor is found by one binary search over all; what is left is to follow the
    chain, one step a CTI.
    """
    highest = np.maximum.accumulate(times)
    successor = np.searchsorted(highest, highest + span_us).tolist()
    at, chain = int(np.searchsorted(highest, base_us + span_us)), []
    while at < len(times):
        chain.append(at)
        at = successor[at]
    return np.array(chain, dtype=np.int64)


def _clock(
    rules: TimeRules, state: PartitionState, times: Instants, trigger_index: Instants
) -> tuple[Instants, Instants, Instants]:
    """The CTI in force before each event, and the CTIs that take effect with their places."""
    candidates = np.full(len(times) + 1, _NEVER, dtype=np.int64)
    candidates[0] = _NEVER if state.cti_us is None else state.cti_us
    candidates[trigger_index + 1] = np.clip(times[trigger_index] - rules.delay_us, MIN_US, FINAL_US)
    in_force = np.maximum.accumulate(candidates)
    effective = np.flatnonzero(in_force[1:] > in_force[:-1])
    return in_force[:-1], effective, in_force[1:][effective]


def _apply_policy(
    rules: TimeRules,
    events: Events,
    times: Instants,
    late: Mask,
    malformed: Mask,
    before: Instants,
) -> Judgement:
    judgement = Judgement(
        keep=np.ones(len(times), dtype=np.bool_),
        violation=np.zeros(len(times), dtype=np.uint8),
        start_us=events.start_us,
        end_us=events.end_us,
        cti_index=np.empty(0, dtype=np.int64),
        cti_us=np.empty(0, dtype=np.int64),
    )
    for kind, mask in _kinds(rules, events, late, malformed, before):
        if mask.any():
            code = MALFORMED if kind == "malformed" else LATE
            judgement = _act(action(rules.policy, kind), code, mask, judgement, times, before)
    return judgement


def _kinds(
    rules: TimeRules, events: Events, late: Mask, malformed: Mask, before: Instants
) -> list[tuple[str, Mask]]:
    """The violating events by their kind in the policy table."""
    if events.is_end is not None:
        shaped = [("start edge", late & ~events.is_end), ("end edge", late & events.is_end)]
    elif rules.shape == "interval" and events.end_us is not None:
        ended = late & (events.end_us <= before)
        shaped = [("ended interval", ended), ("interval", late & ~ended)]
    else:
        shaped = [("point", late)]
    return [*shaped, ("malformed", malformed)]


def _act(
    what: Action,
    code: int,
    mask: Mask,
    judgement: Judgement,
    times: Instants,
    before: Instants,
) -> Judgement:
    if what is Action.DROP:
        return dataclasses.replace(judgement, keep=judgement.keep & ~mask)
    if what is Action.FAIL:
        return dataclasses.replace(
            judgement, failure=_earlier(judgement.failure, mask, code, times, before)
        )
    flagged = code if what is Action.FLAG else ADJUSTED
    judgement = dataclasses.replace(
        judgement, violation=np.where(mask, np.uint8(flagged), judgement.violation)
    )
    if what is Action.MOVE_START:
        moved = np.where(mask, before, judgement.start_us)
        return dataclasses.replace(judgement, start_us=moved)
    if what is Action.MOVE_END and judgement.end_us is not None:
        moved = np.where(mask, before, judgement.end_us)
        return dataclasses.replace(judgement, end_us=moved)
    return judgement


def _earlier(
    failure: Failure | None, mask: Mask, code: int, times: Instants, before: Instants
) -> Failure:
    at = int(np.argmax(mask))
    if failure is not None and failure.index < at:
        return failure
    cti_us = None if before[at] == _NEVER else int(before[at])
    return Failure(at, code == MALFORMED, int(times[at]), cti_us)


def _tally(late: Mask, malformed: Mask, judgement: Judgement) -> dict[str, int]:
    """How many events this block adds to each counter; late and malformed are disjoint."""
    violation = judgement.violation
    return {
        "events": len(late),
        "dropped": int(np.count_nonzero(late & ~judgement.keep)),
        "adjusted": int(np.count_nonzero(violation == ADJUSTED)),
        "flagged": int(np.count_nonzero(violation == LATE)),
        "malformed": int(np.count_nonzero(malformed)),
    }
