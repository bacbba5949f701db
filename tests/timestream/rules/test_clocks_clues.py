"""A partition's notes for diagnosis, against a loop over records, and by any split."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.core.instants import NEVER, parse_instant
from pyspark_timestream.rules.clocks import (
    EARLY_US,
    MAX_LEAD_US,
    Clues,
    Events,
    PartitionClock,
    TimeRules,
)
from pyspark_timestream.rules.step import step

MINUTE = 60_000_000
NOON = parse_instant("2026-01-01T12:00:00Z")
OLD = parse_instant("1990-01-01T00:00:00Z")


def note(rules, records, cuts=()):
    """The clues of (time or None, timestamp or None), in minutes after noon."""
    clock = PartitionClock()
    for some in np.split(np.arange(len(records)), sorted(cuts)):
        chosen = [records[at] for at in some]
        events = Events(
            np.array([t or 0 for t, _ in chosen], dtype=np.int64),
            np.array([t is not None for t, _ in chosen], dtype=np.bool_),
            record_us=np.array([NEVER if s is None else s for _, s in chosen], dtype=np.int64),
        )
        clock, _ = step(rules, clock, events)
    return clock.clues


def tell(rules, records):
    """The same, record by record, as the attributes of `Clues` say."""
    cti = lead = behind = None
    ahead = misplaced = most = old = early = count = 0
    delay = rules.delay_us
    for time, stamp in records:
        if time is None:
            continue
        is_early = EARLY_US[0] <= time < EARLY_US[1]
        old += time < OLD
        early += is_early
        if cti is not None and time < cti and not is_early:
            ahead += lead is not None
            most = most if lead is not None else max(most, cti - time)
            misplaced += behind is not None and time < behind - max(delay, 0)
            behind = time if behind is None else max(behind, time)
        count += 1
        if count % rules.every_events == 0 and (cti is None or time - delay > cti):
            cti = time - delay
            known = stamp is not None and time - stamp - max(delay, 0) > MAX_LEAD_US
            lead = time - stamp if known else None
    return Clues(lead, ahead, behind, misplaced, most, old, early)


times = st.sampled_from(
    [
        None,
        *(NOON + MINUTE * n for n in (0, 1, 2, 5, 9, 30, 1440)),
        -1,
        OLD - 1,
        1_767_268_800_000,
        1_767_268_800,
        5,
    ]
)
stamps = st.none() | st.sampled_from([NOON + MINUTE * n for n in (0, 1, 3, 8, 40)])


@given(
    st.lists(st.tuples(times, stamps), max_size=12),
    st.integers(1, 2),
    st.sampled_from([-MINUTE, 0, 3 * MINUTE]),
    st.lists(st.integers(0, 12), max_size=4),
)
@settings(deadline=None, max_examples=150)
def test_clues_are_those_of_a_loop_over_records_in_any_split(records, every, delay, cuts):
    rules = TimeRules(every_events=every, delay_us=delay)
    assert note(rules, records, [cut for cut in cuts if cut <= len(records)]) == tell(
        rules, records
    )


def test_clues_go_through_json_with_an_instant_of_1970():
    clock = dataclasses.replace(PartitionClock(), clues=Clues(behind_us=0, old=1))
    assert clock.to_json() == {"clues": {"behind_us": 0, "old": 1}}
    assert PartitionClock.from_json(clock.to_json()) == clock
