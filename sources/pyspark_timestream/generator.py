"""When CTIs are generated, and which of the proposed ones take effect (contract section 3.4).

The generator counts events, or measures the application time since the last trigger; an in-band
CTI that takes effect restarts both. So a block falls into segments between such CTIs, and each
segment is computed as columns.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_timestream.instants import FINAL_US, MIN_US
from pyspark_timestream.partition_state import PartitionState
from pyspark_timestream.punctuations import NEVER, Proposals

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
    count, base_us = state.count, state.base_us
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    hopeful = _hopeful(cti_us, proposals)
    if frequency.events is None and frequency.span_us is None:
        # Nothing comes between them, so each takes effect.
        effective[hopeful] = True
        count = 0 if len(hopeful) else count
        return Paced(proposals.cuts[hopeful] - 1, proposals.us[hopeful], count, base_us, effective)
    indices, ctis, begin = [], [], 0
    for which in hopeful.tolist():
        cut, proposed_us = int(proposals.cuts[which]), int(proposals.us[which])
        end = int(np.searchsorted(places, cut))
        part = slice(begin, end)
        index, us, count, base_us = _segment(
            frequency, cti_us, count, base_us, places[part], times[part]
        )
        begin, cti_us = end, int(us[-1]) if len(us) else cti_us
        indices.append(index)
        ctis.append(us)
        if proposed_us > cti_us:
            cti_us, count = proposed_us, 0
            base_us = base_us if frequency.span_us is None else proposed_us
            effective[which] = True
            indices.append(np.array([cut - 1], dtype=np.int64))
            ctis.append(np.array([proposed_us], dtype=np.int64))
    index, us, count, base_us = _segment(
        frequency, cti_us, count, base_us, places[begin:], times[begin:]
    )
    if not indices:
        return Paced(index, us, count, base_us, effective)
    return Paced(
        np.concatenate([*indices, index]), np.concatenate([*ctis, us]), count, base_us, effective
    )


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
