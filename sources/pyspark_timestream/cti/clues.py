"""What a partition notes for diagnosis: why events were late, and times in a wrong unit.

No rule depends on it. It is a fold like the clock, so any split into blocks notes the same.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from pyspark_timestream.connector.columns import NEVER, Instants, Mask, instant_or_sentinel
from pyspark_timestream.connector.instants import FINAL_US, MIN_US, parse_instant

__all__ = ["MAX_LEAD_US", "Clues", "Judged", "add_clues"]

MAX_LEAD_US: Final = 60_000_000
"""A time further after its record's timestamp, or the wall clock, is more than clock skew."""

_PLAUSIBLE_US: Final = parse_instant("1990-01-01T00:00:00Z"), parse_instant("2100-01-01T00:00:00Z")
_UNIT_RATIOS: Final = (1_000, 1_000_000, 1_000_000_000)


class Clues(NamedTuple):
    """The notes on one partition.

    Attributes:
        lead_us: how far the event that made the CTI in force lies after its record's timestamp;
            None: not so far that it matters, not known, or no event made the CTI.
        ahead: late events whose CTI had a lead.
        behind_us: the greatest time of a late event; None without any.
        misplaced: late events further than the delay before an earlier late one.
        most_late_us: how far an event was before a CTI without a lead, at most.
        old: events before 1990.
        small: those of them that a larger unit would put between 1990 and 2100; as late events they
            count nowhere else.
    """

    lead_us: int | None = None
    ahead: int = 0
    behind_us: int | None = None
    misplaced: int = 0
    most_late_us: int = 0
    old: int = 0
    small: int = 0

    def to_json(self) -> dict[str, int]:
        """A JSON object with sorted keys, without defaults."""
        found, defaults = self._asdict(), Clues._field_defaults
        return {name: found[name] for name in sorted(found) if found[name] != defaults[name]}

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> "Clues":
        """The clues that `to_json` wrote."""
        return cls(**value)


class Judged(NamedTuple):
    """A block of n records after the clock has passed it.

    Attributes:
        times: n instants: the events' times.
        well_formed: n booleans.
        late: n booleans.
        before: n instants: the CTI in force before each record.
        record_us: n instants: the records' timestamps, NEVER where there is none; None: not read.
        cti_index: the records right after which CTIs took effect; -1 for before the first.
        cti_us: these CTIs.
    """

    times: Instants
    well_formed: Mask
    late: Mask
    before: Instants
    record_us: Instants | None
    cti_index: Instants
    cti_us: Instants


def add_clues(clues: Clues, delay_us: int, block: Judged) -> Clues:
    """The clues after a block.

    Args:
        clues: before it.
        delay_us: the delay of generated CTIs.
        block: the block.
    """
    late = block.late
    if len(late) and int(block.times.min()) < _PLAUSIBLE_US[0]:
        is_old = block.well_formed & (block.times < _PLAUSIBLE_US[0])
        is_small = is_old & _is_small(block.times)
        late = late & ~is_small
        clues = clues._replace(
            old=clues.old + int(np.count_nonzero(is_old)),
            small=clues.small + int(np.count_nonzero(is_small)),
        )
    places = np.flatnonzero(late)
    if len(places):
        return _add_late(clues, delay_us, block, places)
    if len(block.cti_index):
        last = _find_leads(delay_us, block, block.cti_index[-1:], block.cti_us[-1:])
        return clues._replace(lead_us=int(last[0]) or None)
    return clues


def _add_late(clues: Clues, delay_us: int, block: Judged, places: Instants) -> Clues:
    leads = np.concatenate(
        ([clues.lead_us or 0], _find_leads(delay_us, block, block.cti_index, block.cti_us))
    )
    is_ahead = leads[np.searchsorted(block.cti_index, places)] > 0
    times = block.times[places]
    gaps = (block.before[places] - times)[~is_ahead]
    highest = np.maximum.accumulate(np.concatenate(([instant_or_sentinel(clues.behind_us)], times)))
    floor = np.where(highest[:-1] == NEVER, MIN_US, highest[:-1]) - max(delay_us, 0)
    return clues._replace(
        lead_us=int(leads[-1]) or None,
        ahead=clues.ahead + int(np.count_nonzero(is_ahead)),
        behind_us=int(highest[-1]),
        misplaced=clues.misplaced + int(np.count_nonzero(times < floor)),
        most_late_us=max(clues.most_late_us, int(gaps.max(initial=0))),
    )


def _find_leads(delay_us: int, block: Judged, index: Instants, ctis_us: Instants) -> Instants:
    """The lead of each CTI that an event made; 0 where there is none."""
    if block.record_us is None:
        return np.zeros(len(index), dtype=np.int64)
    at = np.maximum(index, 0)
    times, record_us = block.times[at], block.record_us[at]
    made = np.clip(times - delay_us, MIN_US, FINAL_US) == ctis_us
    known = (index >= 0) & block.well_formed[at] & made & (record_us != NEVER)
    lead_us = times - np.where(known, record_us, times)
    return np.where(lead_us - max(delay_us, 0) > MAX_LEAD_US, lead_us, 0)


def _is_small(times: Instants) -> Mask:
    first_us, end_us = _PLAUSIBLE_US
    found = np.zeros(len(times), dtype=np.bool_)
    for ratio in _UNIT_RATIOS:
        found |= (times >= first_us // ratio) & (times < end_us // ratio)
    return found
