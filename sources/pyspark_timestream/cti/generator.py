"""When CTIs are generated, and which of the proposed ones take effect (semantics 2.3 to 2.5).

The generator counts events, or measures the application time since the last trigger; an in-band
CTI that takes effect restarts both. So a block falls into segments between such CTIs, and each
segment is computed as columns.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_timestream.connector.instants import FINAL_US, MIN_US
from pyspark_timestream.cti.marks import NEVER, Proposals
from pyspark_timestream.cti.state import PartitionState

__all__ = ["Frequency", "Paced", "pace"]

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


_FEW_TRIGGERS: Final = 50
"""A search costs as much as so many steps of a search for all events at once."""


class Frequency(NamedTuple):
    """How often CTIs are generated, and how far behind.

    Attributes:
        events: a CTI at every N-th counted event; None: not by count.
        span_us: a CTI once application time has moved this far; None: not by timespan.
        delay_us: subtracted from the triggering event's time; may be negative.
    """

    events: int | None
    span_us: int | None
    delay_us: int


@dataclass(frozen=True, slots=True)
class Paced:
    """The clock of a block.

    Attributes:
        index: for each CTI the index of the record that it comes right after; -1: before the first.
        us: the CTIs, strictly increasing, each above the one in force before the block.
        count: the counter after the block.
        base_us: the span base after it.
        effective: for each proposal, whether it took effect.
    """

    index: Instants
    us: Instants
    count: int
    base_us: int | None
    effective: Mask


def pace(
    frequency: Frequency,
    state: PartitionState,
    places: Instants,
    times: Instants,
    proposals: Proposals,
) -> Paced:
    """Run the clock over a block.

    Args:
        frequency: the generator's rule.
        state: the partition before the block.
        places: the indices of the counted events.
        times: their times, which drive the clock.
        proposals: the in-band CTIs.
    """
    cti_us = NEVER if state.cti_us is None else state.cti_us
    hopeful = _hopeful(cti_us, proposals)
    if frequency.events is not None or frequency.span_us is not None:
        return _in_turns(frequency, state, places, times, proposals, hopeful)
    # Nothing comes between them, so each takes effect.
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    effective[hopeful] = True
    count = 0 if len(hopeful) else state.count
    cuts, us = proposals.cuts[hopeful], proposals.us[hopeful]
    return Paced(cuts - 1, us, count, state.base_us, effective)


def _in_turns(
    frequency: Frequency,
    state: PartitionState,
    places: Instants,
    times: Instants,
    proposals: Proposals,
    hopeful: Instants,
) -> Paced:
    """As `pace`, where generated CTIs come between the `hopeful` proposals."""
    cti_us = NEVER if state.cti_us is None else state.cti_us
    count, base_us = state.count, state.base_us
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    indices, ctis, begin, at, ahead = [], [], 0, 0, 1
    ends = np.searchsorted(places, proposals.cuts[hopeful]).tolist()
    while at < len(hopeful):
        some = hopeful[at : at + ahead]
        end = ends[at + len(some) - 1]
        index, us, more, later_us = _segment(
            frequency, cti_us, count, base_us, places[begin:end], times[begin:end]
        )
        first, generated = _first_effective(cti_us, index, us, proposals, some)
        indices.append(index[:generated])
        ctis.append(us[:generated])
        if first is None:
            # Where proposals come to nothing, ever more of them are looked at together.
            begin, at, ahead = end, at + len(some), 2 * ahead
            cti_us, count, base_us = int(us[-1]) if len(us) else cti_us, more, later_us
            continue
        cti_us, count = int(proposals.us[some[first]]), 0
        base_us = base_us if frequency.span_us is None else cti_us
        effective[some[first]] = True
        indices.append(proposals.cuts[some[first : first + 1]] - 1)
        ctis.append(proposals.us[some[first : first + 1]])
        begin, at, ahead = ends[at + first], at + first + 1, first + 1
    index, us, count, base_us = _segment(
        frequency, cti_us, count, base_us, places[begin:], times[begin:]
    )
    indices.append(index)
    ctis.append(us)
    return Paced(np.concatenate(indices), np.concatenate(ctis), count, base_us, effective)


def _first_effective(
    cti_us: int, index: Instants, us: Instants, proposals: Proposals, some: Instants
) -> tuple[int | None, int]:
    """The first of `some` proposals that takes effect, and how many CTIs come before it.

    The CTIs `us` are generated as if none took effect; with None for the first all of them stand.
    """
    if len(some) == 1:
        in_force_us = us[-1] if len(us) else cti_us
        return 0 if proposals.us[some[0]] > in_force_us else None, len(us)
    before = np.searchsorted(index, proposals.cuts[some])
    in_force = np.concatenate(([cti_us], us))[before]
    found = np.flatnonzero(proposals.us[some] > in_force)
    return (int(found[0]), int(before[found[0]])) if len(found) else (None, len(us))


def _hopeful(cti_us: int, proposals: Proposals) -> Instants:
    """The proposals above all before them: no other can take effect."""
    highest = np.maximum.accumulate(np.concatenate(([cti_us], proposals.us)))
    return np.flatnonzero(highest[1:] > highest[:-1])


def _segment(
    frequency: Frequency,
    cti_us: int,
    count: int,
    base_us: int | None,
    places: Instants,
    times: Instants,
) -> tuple[Instants, Instants, int, int | None]:
    """The generated CTIs of events between two in-band ones, and counter and base after them."""
    triggers, count, base_us = _triggers(frequency, count, base_us, times)
    due = np.clip(times[triggers] - frequency.delay_us, MIN_US, FINAL_US)
    highest = np.maximum.accumulate(np.concatenate(([cti_us], due)))
    rises = highest[1:] > highest[:-1]
    return places[triggers[rises]], due[rises], count, base_us


def _triggers(
    frequency: Frequency, count: int, base_us: int | None, times: Instants
) -> tuple[Instants, int, int | None]:
    """Which of the counted events trigger a CTI, and the counter and span base after them."""
    if len(times) and frequency.events is not None:
        first = frequency.events - 1 - count
        triggers = np.arange(first, len(times), frequency.events, dtype=np.int64)
        return triggers, (count + len(times)) % frequency.events, base_us
    if len(times) and frequency.span_us is not None:
        base_us = int(times[0]) if base_us is None else base_us
        triggers = _span_triggers(times, base_us, frequency.span_us)
        return triggers, count, int(times[triggers[-1]]) if len(triggers) else base_us
    return np.empty(0, dtype=np.int64), count, base_us


def _few_triggers(highest: Instants, base_us: int, span_us: int) -> Instants:
    at, chain = int(np.searchsorted(highest, base_us + span_us)), []
    while at < len(highest):
        chain.append(at)
        at = int(np.searchsorted(highest, int(highest[at]) + span_us))
    return np.array(chain, dtype=np.int64)


def _span_triggers(times: Instants, base_us: int, span_us: int) -> Instants:
    """Each trigger is the first event at least `span_us` after the one before it.

    The first event that reaches a bound is also the first at which the running maximum does, so
    every event's successor is found by one binary search over all; what is left is to follow the
    chain, one step a CTI. Where few can trigger, only the chain's own successors are searched.
    """
    highest = np.maximum.accumulate(times)
    if (int(highest[-1]) - base_us) // span_us < len(times) // _FEW_TRIGGERS:
        return _few_triggers(highest, base_us, span_us)
    successor = np.searchsorted(highest, highest + span_us).tolist()
    at, chain = int(np.searchsorted(highest, base_us + span_us)), []
    while at < len(times):
        chain.append(at)
        at = successor[at]
    return np.array(chain, dtype=np.int64)
