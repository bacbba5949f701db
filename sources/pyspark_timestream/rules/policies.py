"""The policies for events that violate a CTI (semantics 3), and the replay window (7.7).

A *late* event has a time strictly before the CTI in force; a *malformed* one has no readable time,
an unknown edge, or an end that is not after its start; one *in the future* lies too far after its
record's timestamp and is not late (3.8).

A replay from T to U delivers the rows of the full run with a time in [T, U). Each partition ends
right after the record at which its CTI reaches U, and that CTI then becomes exactly U. Every
on-time row below U comes before this end, so nobody reads the rest. `select_inside` judges each
record by itself, so neither the split into blocks nor the start of reading changes its result.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.core.instants import Instants, Mask, instant_or_none
from pyspark_timestream.rules.marks import Marks, Window


class Action(Enum):
    """What a policy does with a violating event.

    Attributes:
        text: the words of the policy table of semantics 3.
        counter: counts late events of this action (semantics 3.7); "" if the query fails.
        moves: the time that the action sets to the CTI; the row then has the violation `adjusted`
            and keeps the original times. None: it moves no time.
    """

    text: str
    counter: str
    moves: Literal["start_us", "end_us"] | None

    DROP = "dropped", "dropped", None
    MOVE_START = "start moved to the CTI", "adjusted", "start_us"
    MOVE_END = "end moved to the CTI", "adjusted", "end_us"
    FAIL = "the query fails", "", None
    FLAG = "passed on, flagged", "flagged", None

    def __init__(
        self, text: str, counter: str, moves: Literal["start_us", "end_us"] | None
    ) -> None:
        self.text, self.counter, self.moves = text, counter, moves


class Policy(NamedTuple):
    """A row of the policy table: the action for each kind of event.

    An `ended interval` ends at or before the CTI, so moving its start would leave nothing of it.
    """

    point: Action
    interval: Action
    ended_interval: Action
    start_edge: Action
    end_edge: Action
    malformed: Action

    @property
    def flags(self) -> bool:
        """True if late events become rows that differ from others only by `violation`."""
        return Action.FLAG in self

    @property
    def fails(self) -> bool:
        """True if a violation fails the query."""
        return Action.FAIL in self

    def columns(self, shape: str) -> set[str]:
        """Return the columns that this policy fills in rows of events of `shape`."""
        moves = {action.moves for action in self} - {None}
        filled = {"violation"} if moves or self.flags else set()
        if moves:
            filled |= {"original_start_time"}
            filled |= set() if shape == "point" else {"original_end_time"}
        return filled


POLICIES: Final[Mapping[str, Policy]] = {
    "drop": Policy(*[Action.DROP] * 6),
    # A point lives one tick, so it can never straddle a CTI: adjusting it leaves nothing.
    "adjust": Policy(
        point=Action.DROP,
        interval=Action.MOVE_START,
        ended_interval=Action.DROP,
        start_edge=Action.MOVE_START,
        end_edge=Action.MOVE_END,
        malformed=Action.DROP,
    ),
    "fail": Policy(*[Action.FAIL] * 6),
    "flag": Policy(*[Action.FLAG] * 6),
}
"""The policy table of semantics 3. Its rows alone decide what a policy does, counts and fills."""

KEEP_ALL: Final = "flag"
"""The policy that loses nothing: commands that inspect a topic use it, and messages advise it."""

FUTURE_POLICIES: Final = {"keep": "were kept", "drop": "were dropped", "fail": "failed the query"}
"""The policies for events in the future (semantics 3.8), and what messages say of such events."""

LATE: Final = 1
ADJUSTED: Final = 2
MALFORMED: Final = 3
FUTURE: Final = 4
VIOLATIONS: Final = (None, "late", "adjusted", "malformed", "future")
"""The `violation` column's text by code; code 0 means no violation."""


@dataclass(frozen=True, slots=True)
class Events:
    """A block of n consecutive records of one partition, in offset order, as events.

    Attributes:
        start_us: n instants: the start time (for an end edge: the start of the event it ends).
        readable: n booleans; False where a time is missing or unreadable or the edge unknown.
            Times at unreadable places are arbitrary.
        end_us: n instants for intervals and edges; None for points.
        is_end: n booleans for edges: this is an end edge; None for points and intervals.
        present: n booleans: the record is an event; None: all are. A punctuation without a value
            is no event.
        record_us: n instants: the record timestamps, NEVER where there is none; None if no rule
            needs them.
        valueless: n booleans: the record lacks the value that would contain its time; None: no
            record does.
        writers: n texts: the writer of each record, "" where there is none; each writer has its own
            clock. None: the partition has one clock.
    """

    start_us: Instants
    readable: Mask
    end_us: Instants | None = None
    is_end: Mask | None = None
    present: Mask | None = None
    record_us: Instants | None = None
    writers: pa.Array | None = None
    valueless: Mask | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The first record that a policy `fail` refuses.

    Attributes:
        index: its index in the block.
        malformed: it is malformed, not late.
        event_us: the event time that was compared; arbitrary if the event is malformed.
        cti_us: the CTI in force; None: none yet.
        mark: it is an unreadable mark, not an event.
        future: it is in the future, not late.
    """

    index: int
    malformed: bool
    event_us: int
    cti_us: int | None
    mark: bool = False
    future: bool = False


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts on a block of n records.

    Attributes:
        keep: n booleans: the event becomes a row.
        violation: n codes, each an index into VIOLATIONS.
        start_us: n instants, adjusted.
        end_us: n instants, adjusted; None for points.
        cti_index: each CTI comes right after the record with this index; -1: before the first.
        cti_us: the CTIs, strictly increasing, each above the one in force before the block.
        failure: set if policy `fail` ends the stream; the rest is then meaningless.
        unreadable: the places of unreadable marks.
        window: the rows' time windows; None if the rules ask for none.
        inside: n booleans: the record is in the replay window; None without one.
    """

    keep: Mask
    violation: npt.NDArray[np.uint8]
    start_us: Instants
    end_us: Instants | None
    cti_index: Instants
    cti_us: Instants
    failure: Failure | None = None
    unreadable: Instants = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    window: Window | None = None
    inside: Mask | None = None


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


def classify(
    shape: str,
    policy: str,
    events: Events,
    times: Instants,
    late: Mask,
    malformed: Mask,
    before: Instants,
) -> tuple[Verdicts, dict[str, int]]:
    """Apply the policy to n records; `step` adds the CTIs to the verdicts later.

    Args:
        shape: `point`, `interval` or `edge`.
        policy: one of `POLICIES`.
        events: the n records.
        times: n instants: the event times to compare.
        late: n booleans: a well-formed event before the CTI in force.
        malformed: n booleans: a malformed event.
        before: n instants: the CTI in force before each record, NEVER where there is none.

    Returns:
        The verdicts, and the late events to add to each counter.
    """
    verdicts = Verdicts(
        keep=np.ones(len(times), dtype=np.bool_) if events.present is None else events.present,
        violation=np.zeros(len(times), dtype=np.uint8),
        start_us=events.start_us,
        end_us=events.end_us,
        cti_index=np.empty(0, dtype=np.int64),
        cti_us=np.empty(0, dtype=np.int64),
    )
    row = POLICIES[policy]
    counts = Counter({action.counter: 0 for action in Action if action.counter})
    for kind, mask in _group_by_kind(shape, events, late, malformed, before):
        if mask.any():
            action: Action = getattr(row, kind)
            code = MALFORMED if kind == "malformed" else LATE
            verdicts = _apply(action, code, mask, verdicts, times, before)
            if action.counter and kind != "malformed":
                counts[action.counter] += int(np.count_nonzero(mask))
    return verdicts, dict(counts)


def refuse_future(
    policy: str, is_flagged: bool, future: Mask, times: Instants, before: Instants, said: Verdicts
) -> Verdicts:
    """Apply the policy for events in the future to verdicts (semantics 3.8).

    Args:
        policy: `keep`, `drop` or `fail`.
        is_flagged: flag the events that are kept.
        future: n booleans: a well-formed event in the future that is not late.
        times: n instants: the event times to compare.
        before: n instants: the CTI in force before each record, NEVER where there is none.
        said: the verdicts on late and malformed events.
    """
    if not future.any():
        return said
    if policy == "drop":
        return dataclasses.replace(said, keep=said.keep & ~future)
    if policy == "fail":
        failure = _keep_earlier(said.failure, future, FUTURE, times, before)
        return dataclasses.replace(said, failure=failure)
    if not is_flagged:
        return said
    codes = np.where(future, np.uint8(FUTURE), said.violation)
    return dataclasses.replace(said, violation=codes)


def _group_by_kind(
    shape: str, events: Events, late: Mask, malformed: Mask, before: Instants
) -> list[tuple[str, Mask]]:
    """Split the violating events by kind, which names a column of the policy table."""
    if events.is_end is not None:
        shaped = [("start_edge", late & ~events.is_end), ("end_edge", late & events.is_end)]
    elif shape == "interval" and events.end_us is not None:
        ended = late & (events.end_us <= before)
        shaped = [("ended_interval", ended), ("interval", late & ~ended)]
    else:
        shaped = [("point", late)]
    return [*shaped, ("malformed", malformed)]


def _apply(
    action: Action,
    code: int,
    mask: Mask,
    verdicts: Verdicts,
    times: Instants,
    before: Instants,
) -> Verdicts:
    if action is Action.DROP:
        return dataclasses.replace(verdicts, keep=verdicts.keep & ~mask)
    if action is Action.FAIL:
        return dataclasses.replace(
            verdicts, failure=_keep_earlier(verdicts.failure, mask, code, times, before)
        )
    flagged = code if action is Action.FLAG else ADJUSTED
    verdicts = dataclasses.replace(
        verdicts, violation=np.where(mask, np.uint8(flagged), verdicts.violation)
    )
    if action.moves is None:
        return verdicts
    moved: Any = {action.moves: np.where(mask, before, getattr(verdicts, action.moves))}
    return dataclasses.replace(verdicts, **moved)


def _keep_earlier(
    failure: Failure | None, mask: Mask, code: int, times: Instants, before: Instants
) -> Failure:
    at = int(np.argmax(mask))
    if failure is not None and failure.index < at:
        return failure
    cti_us = instant_or_none(before[at])
    return Failure(at, code == MALFORMED, int(times[at]), cti_us, future=code == FUTURE)


def cut_events(events: Events, stop: int) -> Events:
    """Return the first `stop` records of a block."""
    return Events(
        events.start_us[:stop],
        events.readable[:stop],
        None if events.end_us is None else events.end_us[:stop],
        None if events.is_end is None else events.is_end[:stop],
        None if events.present is None else events.present[:stop],
        None if events.record_us is None else events.record_us[:stop],
        None if events.writers is None else events.writers[:stop],
        None if events.valueless is None else events.valueless[:stop],
    )


def cut_marks(marks: Marks, stop: int) -> Marks:
    """Return the marks of the first `stop` records of a block."""
    count = int(np.searchsorted(marks.places, stop))
    return Marks(
        marks.places[:count],
        marks.us[:count],
        marks.marked[:count],
        marks.readable[:count],
        marks.writers[:count],
        marks.closes[:count],
    )


def select_inside(placed: Instants, from_us: int | None, until_us: int | None) -> Mask:
    """Select the records of a block that are in the replay window.

    Args:
        placed: n instants: each event's time after the policy. A malformed event has none and
            counts at the CTI in force, or at NEVER where there is none.
        from_us: T, inclusive; None for no start.
        until_us: U, exclusive; None for no end.
    """
    inside = np.ones(len(placed), dtype=np.bool_)
    if from_us is not None:
        inside &= placed >= from_us
    if until_us is not None:
        inside &= placed < until_us
    return inside
