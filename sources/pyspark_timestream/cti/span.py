"""The span of a replay: the rules of `startingCti` and `endingCti` (semantics 7.7).

A replay from T to U has the rows of the full run whose time is in [T, U). Each partition ends right
after the record at which its CTI reaches U, and that CTI is then U exactly. Every row on time below
U lies before that place, so the rest of the partition need not be read.

`cut_events` and `cut_marks` return what lies before that place in a block. `select_inside` is a
rule for each record alone: neither the split into blocks nor the place where reading began matters.
"""

import numpy as np

from pyspark_timestream.connector.columns import Instants, Mask
from pyspark_timestream.cti.marks import Marks
from pyspark_timestream.cti.violations import Events

__all__ = ["cut_events", "cut_marks", "select_inside"]


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
    """Select the records of a block that are in the span.

    Args:
        placed: n instants: each event's time after the policy; of a malformed event, which has
            none, the CTI in force, NEVER where there is none.
        from_us: T, inclusive; None for no start.
        until_us: U, exclusive; None for no end.
    """
    inside = np.ones(len(placed), dtype=np.bool_)
    if from_us is not None:
        inside &= placed >= from_us
    if until_us is not None:
        inside &= placed < until_us
    return inside
