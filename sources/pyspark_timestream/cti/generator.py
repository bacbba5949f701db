"""Generates CTIs, and decides which proposals take effect (semantics 2.3 to 2.5).

The generator counts events, or measures the application time since the last trigger; an in-band
CTI that takes effect restarts both. So a block falls into segments between such CTIs, and each
segment is computed as columns.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pyspark_timestream.connector.columns import Instants, Mask, instant_or_sentinel
from pyspark_timestream.connector.instants import FINAL_US, MIN_US
from pyspark_timestream.cti.marks import Proposals
from pyspark_timestream.cti.state import PartitionState

__all__ = ["GeneratedCtis", "GeneratorRules", "generate_ctis"]


_EVENTS_PER_SEARCH: Final = 50
"""The cost of one search, in events of a search for all events at once."""


class GeneratorRules(NamedTuple):
    """The frequency and the delay of generated CTIs.

    Attributes:
        events: a CTI at every N-th counted event; None: not by count.
        span_us: a CTI once application time has moved on by this; None: not by timespan.
        delay_us: subtracted from the triggering event's time; may be negative.
    """

    events: int | None
    span_us: int | None
    delay_us: int


@dataclass(frozen=True, slots=True)
class GeneratedCtis:
    """The CTIs of a block, and the generator after it.

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


def generate_ctis(
    frequency: GeneratorRules,
    state: PartitionState,
    places: Instants,
    times: Instants,
    proposals: Proposals,
) -> GeneratedCtis:
    """Run the generator over a block.

    Args:
        frequency: the generator's rule.
        state: the partition before the block.
        places: the indices of the counted events.
        times: their times, which drive the clock.
        proposals: the in-band CTIs.
    """
    cti_us = instant_or_sentinel(state.cti_us)
    rising = _find_rising(cti_us, proposals)
    if frequency.events is not None or frequency.span_us is not None:
        return _interleave(frequency, state, places, times, proposals, rising)
    # Nothing comes between them, so each takes effect.
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    effective[rising] = True
    count = 0 if len(rising) else state.count
    cuts, us = proposals.cuts[rising], proposals.us[rising]
    return GeneratedCtis(cuts - 1, us, count, state.base_us, effective)


def _interleave(
    frequency: GeneratorRules,
    state: PartitionState,
    places: Instants,
    times: Instants,
    proposals: Proposals,
    rising: Instants,
) -> GeneratedCtis:
    """As `generate_ctis`, with generated CTIs between the `rising` proposals."""
    cti_us = instant_or_sentinel(state.cti_us)
    count, base_us = state.count, state.base_us
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    indices, ctis, begin, at, ahead = [], [], 0, 0, 1
    ends = np.searchsorted(places, proposals.cuts[rising]).tolist()
    while at < len(rising):
        some = rising[at : at + ahead]
        end = ends[at + len(some) - 1]
        index, us, more, later_us = _generate_segment(
            frequency, cti_us, count, base_us, places[begin:end], times[begin:end]
        )
        first, generated = _find_first_effective(cti_us, index, us, proposals, some)
        indices.append(index[:generated])
        ctis.append(us[:generated])
        if first is None:
            # After proposals without effect, try twice as many together.
            begin, at, ahead = end, at + len(some), 2 * ahead
            cti_us, count, base_us = int(us[-1]) if len(us) else cti_us, more, later_us
            continue
        cti_us, count = int(proposals.us[some[first]]), 0
        base_us = base_us if frequency.span_us is None else cti_us
        effective[some[first]] = True
        indices.append(proposals.cuts[some[first : first + 1]] - 1)
        ctis.append(proposals.us[some[first : first + 1]])
        begin, at, ahead = ends[at + first], at + first + 1, first + 1
    index, us, count, base_us = _generate_segment(
        frequency, cti_us, count, base_us, places[begin:], times[begin:]
    )
    indices.append(index)
    ctis.append(us)
    return GeneratedCtis(np.concatenate(indices), np.concatenate(ctis), count, base_us, effective)


def _find_first_effective(
    cti_us: int, index: Instants, us: Instants, proposals: Proposals, some: Instants
) -> tuple[int | None, int]:
    """The first of `some` proposals that takes effect, and the number of CTIs before it.

    The CTIs `us` are generated as if none took effect; if the first is None, all of them are valid.
    """
    if len(some) == 1:
        in_force_us = us[-1] if len(us) else cti_us
        return 0 if proposals.us[some[0]] > in_force_us else None, len(us)
    before = np.searchsorted(index, proposals.cuts[some])
    in_force = np.concatenate(([cti_us], us))[before]
    found = np.flatnonzero(proposals.us[some] > in_force)
    return (int(found[0]), int(before[found[0]])) if len(found) else (None, len(us))


def _find_rising(cti_us: int, proposals: Proposals) -> Instants:
    """The proposals that are greater than all before them: no other can take effect."""
    highest = np.maximum.accumulate(np.concatenate(([cti_us], proposals.us)))
    return np.flatnonzero(highest[1:] > highest[:-1])


def _generate_segment(
    frequency: GeneratorRules,
    cti_us: int,
    count: int,
    base_us: int | None,
    places: Instants,
    times: Instants,
) -> tuple[Instants, Instants, int, int | None]:
    """The generated CTIs of events between two in-band ones, and counter and base after them."""
    triggers, count, base_us = _find_triggers(frequency, count, base_us, times)
    due = np.clip(times[triggers] - frequency.delay_us, MIN_US, FINAL_US)
    highest = np.maximum.accumulate(np.concatenate(([cti_us], due)))
    rises = highest[1:] > highest[:-1]
    return places[triggers[rises]], due[rises], count, base_us


def _find_triggers(
    frequency: GeneratorRules, count: int, base_us: int | None, times: Instants
) -> tuple[Instants, int, int | None]:
    """The counted events that trigger a CTI, and the counter and span base after them."""
    if len(times) and frequency.events is not None:
        first = frequency.events - 1 - count
        triggers = np.arange(first, len(times), frequency.events, dtype=np.int64)
        return triggers, (count + len(times)) % frequency.events, base_us
    if len(times) and frequency.span_us is not None:
        base_us = int(times[0]) if base_us is None else base_us
        triggers = _find_span_triggers(times, base_us, frequency.span_us)
        return triggers, count, int(times[triggers[-1]]) if len(triggers) else base_us
    return np.empty(0, dtype=np.int64), count, base_us


def _follow_few_triggers(highest: Instants, base_us: int, span_us: int) -> Instants:
    at, chain = int(np.searchsorted(highest, base_us + span_us)), []
    while at < len(highest):
        chain.append(at)
        at = int(np.searchsorted(highest, int(highest[at]) + span_us))
    return np.array(chain, dtype=np.int64)


def _find_span_triggers(times: Instants, base_us: int, span_us: int) -> Instants:
    """Each trigger is the first event at least `span_us` after the one before it.

    The first event that reaches a bound is also the first at which the running maximum does, so
    every event's successor is found by one binary search over all; then follow the chain, one step
    per CTI. If few events can trigger, only the successors in the chain are searched.
    """
    highest = np.maximum.accumulate(times)
    if (int(highest[-1]) - base_us) // span_us < len(times) // _EVENTS_PER_SEARCH:
        return _follow_few_triggers(highest, base_us, span_us)
    successor = np.searchsorted(highest, highest + span_us).tolist()
    at, chain = int(np.searchsorted(highest, base_us + span_us)), []
    while at < len(times):
        chain.append(at)
        at = successor[at]
    return np.array(chain, dtype=np.int64)
