"""The state machine of one partition (semantics 2.2), over whole columns.

`step(rules, state, events, marks)` is a fold: records come in offset order, any split of them into
calls gives the same judgements, the same CTIs and the same end state. The state round-trips through
JSON, because it is part of the Spark offset.

The rule in one paragraph: an event is judged against the CTI in force before it; then it counts;
if it triggers, a CTI at its received time minus the delay comes right after it, provided that it
is greater than the CTI in force. What the policy does to an event never drives the clock. Then
comes the mark that the record carries; an in-band CTI restarts the generator.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.cti.generator import Frequency, pace
from pyspark_timestream.cti.marks import NEVER, Marks, Noted, WriterRules, note
from pyspark_timestream.cti.state import COUNTERS, PartitionState, raised
from pyspark_timestream.cti.violations import (
    ADJUSTED,
    LATE,
    VIOLATIONS,
    Events,
    Failure,
    Judgement,
    judge,
    judged_times,
)

__all__ = [
    "ADJUSTED",
    "COUNTERS",
    "NO_MARKS",
    "VIOLATIONS",
    "Events",
    "Failure",
    "Judgement",
    "Marks",
    "PartitionState",
    "TimeRules",
    "raised",
    "step",
]

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NOTHING = np.empty(0, dtype=np.int64)
_NOBODY = np.empty(0, dtype=np.bool_)
NO_MARKS = Marks(_NOTHING, _NOTHING, _NOBODY, _NOBODY, pa.nulls(0, pa.string()), _NOBODY)
"""The punctuations of a block that has none."""


@dataclass(frozen=True, slots=True)
class TimeRules:
    """The options that decide CTIs and violations.

    Attributes:
        shape: `point`, `interval` or `edge`.
        policy: `drop`, `adjust`, `fail` or `flag`.
        every_events: a CTI at every N-th counted event; None: not by count.
        every_us: a CTI once application time has moved this far; None: not by timespan.
        delay_us: subtracted from the triggering event's time; may be negative.
        max_future_us: for the clock an event's time counts as at most its record's timestamp plus
            this; None: as it is.
        writers: the writers that are waited for from the start.
        writer_timeout_us: how long a writer may be silent, in record timestamps; None: for ever.
        time_window: the rows' time windows are wanted.
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


def step(
    rules: TimeRules, state: PartitionState, events: Events, marks: Marks = NO_MARKS
) -> tuple[PartitionState, Judgement]:
    """Judge `events`, hear `marks`, and advance the clock."""
    times, well_formed, malformed = judged_times(events)
    counted = np.flatnonzero(well_formed if events.is_end is None else well_formed & ~events.is_end)
    writer_rules = WriterRules(rules.writers, rules.writer_timeout_us, rules.time_window)
    noted = note(writer_rules, state, marks, events.record_us, len(times))
    frequency = Frequency(rules.every_events, rules.every_us, rules.delay_us)
    driving = _driving_times(rules, events, times, counted)
    paced = pace(frequency, state, counted, driving, noted.proposals)
    before = _in_force(state, paced.index, paced.us, len(times))
    late = well_formed & (times < before)
    judgement = judge(rules.shape, rules.policy, events, times, late, malformed, before)
    if rules.policy == "fail":
        judgement = _fail_on_marks(judgement, noted, before)
    judgement = dataclasses.replace(
        judgement,
        cti_index=paced.index,
        cti_us=paced.us,
        unreadable=noted.unreadable,
        window=noted.window,
    )
    present = len(times) if events.present is None else int(np.count_nonzero(events.present))
    tally = _tally(present, late, malformed, judgement)
    ineffective = int(np.count_nonzero(noted.proposals.is_mark & ~paced.effective))
    tally["ignored_ctis"] = ineffective + len(noted.unreadable)
    tally["ctis"] = len(paced.us)
    moved = dataclasses.replace(
        state,
        cti_us=int(paced.us[-1]) if len(paced.us) else state.cti_us,
        count=paced.count,
        base_us=paced.base_us,
        last_us=_last(state, times, well_formed),
        writers=noted.writers,
        noted_us=noted.noted_us,
        record_us=noted.record_us,
        begun=noted.begun,
        **{name: getattr(state, name) + more for name, more in tally.items()},
    )
    return moved, judgement


def _driving_times(
    rules: TimeRules, events: Events, times: Instants, counted: Instants
) -> Instants:
    """The times of the counted events as the clock takes them: not too far in the future."""
    driving = times[counted]
    if rules.max_future_us is None or events.record_us is None:
        return driving
    record_us = events.record_us[counted]
    capped = np.minimum(driving, record_us + rules.max_future_us)
    return np.where(record_us == NEVER, driving, capped)


def _in_force(state: PartitionState, index: Instants, us: Instants, rows: int) -> Instants:
    """The CTI in force before each record."""
    candidates = np.full(rows + 1, NEVER, dtype=np.int64)
    candidates[0] = NEVER if state.cti_us is None else state.cti_us
    # Of several CTIs after one record the last, which is the greatest, is written last.
    candidates[index + 1] = us
    return np.maximum.accumulate(candidates)[:-1]


def _last(state: PartitionState, times: Instants, well_formed: Mask) -> int | None:
    places = np.flatnonzero(well_formed)
    return int(times[places[-1]]) if len(places) else state.last_us


def _fail_on_marks(judgement: Judgement, noted: Noted, before: Instants) -> Judgement:
    """An unreadable mark fails; an event in the same record comes before it."""
    failure = judgement.failure
    if not len(noted.unreadable) or (failure and failure.index <= noted.unreadable[0]):
        return judgement
    place = int(noted.unreadable[0])
    cti_us = None if before[place] == NEVER else int(before[place])
    failure = Failure(place, malformed=False, event_us=0, cti_us=cti_us, mark=True)
    return dataclasses.replace(judgement, failure=failure)


def _tally(events: int, late: Mask, malformed: Mask, judgement: Judgement) -> dict[str, int]:
    """How many events this block adds to each counter; late and malformed are disjoint."""
    violation = judgement.violation
    return {
        "events": events,
        "dropped": int(np.count_nonzero(late & ~judgement.keep)),
        "adjusted": int(np.count_nonzero(violation == ADJUSTED)),
        "flagged": int(np.count_nonzero(violation == LATE)),
        "malformed": int(np.count_nonzero(malformed)),
    }
