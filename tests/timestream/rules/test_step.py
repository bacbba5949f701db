"""The vectorised state machine against a loop over records, and what a CTI promises."""

import itertools
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.drawn_rules import KINDS, columns, delays, frequencies
from timestream.oracle import Event, Failed, outcome, run

from pyspark_timestream.core.instants import FINAL_US, MIN_US
from pyspark_timestream.core.policies import POLICIES
from pyspark_timestream.rules import generator
from pyspark_timestream.rules.clocks import Events, PartitionClock, TimeRules
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import VIOLATIONS, step

GOING_ON = [name for name, policy in POLICIES.items() if not policy.fails]


@st.composite
def streams(draw, policies=tuple(POLICIES), max_size=24):
    """(shape, policy, frequency and delay, events)."""
    shape = draw(st.sampled_from(sorted(KINDS)))
    how = {**draw(frequencies), "delay": draw(delays)}
    events = draw(st.lists(KINDS[shape], max_size=max_size))
    return shape, draw(st.sampled_from(policies)), how, events


def rules(shape, policy, how):
    return TimeRules(shape, policy, how.get("every"), how.get("span"), how.get("delay", 0))


def stepped(shape, policy, how, events, cuts=(), clock=None):
    """The oracle's form of what `step` says of `events`, cut into batches before `cuts`."""
    clock, out = clock or PartitionClock(), []
    bounds = [0, *sorted(cuts), len(events)]
    for first, stop in itertools.pairwise(bounds):
        clock = PartitionClock.from_json(json.loads(json.dumps(clock.to_json())))
        some = events[first:stop]
        clock, said = step(rules(shape, policy, how), clock, columns(shape, some))
        if said.failure is not None:
            fail = said.failure
            time = None if fail.kind == "malformed" else fail.event_us
            raise Failed(first + fail.index, fail.kind, time, fail.cti_us)
        ctis = dict(zip(said.cti_index.tolist(), said.cti_us.tolist(), strict=True))
        assert len(ctis) == len(said.cti_index)
        for i, event in enumerate(some):
            if said.keep[i]:
                adjusted = said.violation[i] == 2
                start = int(said.start_us[i]) if event.start is not None or adjusted else None
                known = event.end is not None
                end = int(said.end_us[i]) if said.end_us is not None and known else event.end
                out.append(("row", first + i, start, end, VIOLATIONS[said.violation[i]]))
            if i in ctis:
                out.append(("cti", ctis[i]))
    return out, clock


@given(streams())
@settings(max_examples=400, deadline=None)
def test_columns_and_the_loop_say_the_same(stream):
    shape, policy, how, events = stream
    expected = outcome(run, events, policy, **how)
    actual = outcome(stepped, shape, policy, how, events)
    if expected and isinstance(expected[0], list):
        out, tally, cti, _ = expected
        assert actual[0] == out
        assert +Counter(actual[1].counters()) == tally
        assert actual[1].cti_us == cti
    else:
        assert actual == expected


@given(streams(), st.data())
@settings(max_examples=200, deadline=None)
def test_any_split_into_batches_gives_what_one_batch_gives(stream, data):
    shape, policy, how, events = stream
    cuts = data.draw(st.lists(st.integers(0, len(events)), max_size=5))
    whole = outcome(stepped, shape, policy, how, events)
    assert outcome(stepped, shape, policy, how, events, cuts) == whole


@given(streams(policies=GOING_ON, max_size=40))
@settings(deadline=None)
def test_ctis_increase_and_nothing_unflagged_comes_before_the_one_in_force(stream):
    shape, policy, how, events = stream
    in_force = None
    for what in stepped(shape, policy, how, events)[0]:
        if what[0] == "cti":
            assert in_force is None or what[1] > in_force
            in_force = what[1]
        else:
            _, index, start, end, violation = what
            compared = end if events[index].kind == "end" else start
            if violation in (None, "adjusted") and in_force is not None:
                assert compared >= in_force


@given(st.lists(st.integers(0, 9), max_size=20), frequencies)
@settings(deadline=None)
def test_the_policy_never_moves_the_clock(event_times, how):
    events = [Event("interval", t, t + 2) for t in event_times]
    marks = [
        [what for what in stepped("interval", policy, how, events)[0] if what[0] == "cti"]
        for policy in GOING_ON
    ]
    assert all(each == marks[0] for each in marks)


def points(*event_times, policy="drop", **how):
    """A compact reading: kept times, and ¶ with each CTI."""
    events = [Event("point", t) for t in event_times]
    out, clock = stepped("point", policy, how, events)
    return [f"¶{what[1]}" if what[0] == "cti" else what[2] for what in out], clock


def test_increasing_start_time_commits_an_event_when_the_next_one_moves_time_on():
    rows, clock = points(1, 1, 3, 2, 3, 4, every=1)
    assert rows == [1, "¶1", 1, 3, "¶3", 3, 4, "¶4"]
    assert clock.dropped == 1


def test_strictly_increasing_start_time_commits_each_at_once_and_drops_ties():
    rows, clock = points(1, 1, 3, 2, 3, 4, every=1, delay=-1)
    assert rows == [1, "¶2", 3, "¶4", 4, "¶5"]
    assert clock.dropped == 3


def test_unordered_start_time_lets_events_be_late_by_the_delay():
    rows, _ = points(10, 8, 5, 12, 7, 6, every=1, delay=4)
    assert rows == [10, "¶6", 8, 12, "¶8"]


def test_an_event_at_exactly_the_cti_is_legal():
    assert points(5, 5, 4, every=1)[0] == [5, "¶5", 5]


def test_the_delay_is_relative_to_the_last_event_and_not_to_the_greatest():
    rows, clock = points(20, 11, 12, 13, every=2, delay=5)
    assert rows == [20, 11, "¶6", 12, 13, "¶8"]
    assert clock.cti_us == 8


def test_a_dropped_event_counts_toward_the_frequency():
    # 9 makes the CTI; 1 and 2 are dropped, and the second counted one of them is due a CTI.
    rows, clock = points(9, 9, 1, 20, every=2)
    assert rows == [9, 9, "¶9", 20, "¶20"]
    assert (clock.dropped, clock.count) == (1, 0)


def test_a_skipped_cti_still_restarts_the_counter():
    # The CTI due at 1 is not above 9, so it is skipped; the next is due two events later.
    rows, clock = points(9, 9, 9, 1, 10, 11, every=2)
    assert rows == [9, 9, "¶9", 9, 10, 11, "¶11"]
    assert clock.ctis == 2


def test_a_skipped_cti_still_restarts_the_span():
    clock = PartitionClock(cti_us=100, base_us=0)
    late = [Event("point", 60), Event("point", 109), Event("point", 110)]
    out, after = stepped("point", "drop", {"span": 50}, late, clock=clock)
    # 60 triggers and is skipped; from then on 110 is the first that is 50 away.
    assert [what[1] for what in out if what[0] == "cti"] == [110]
    assert after.base_us == 110


def test_one_jump_gives_one_cti():
    assert points(0, 1000, 1001, span=10)[0] == [0, 1000, "¶1000", 1001]


def test_the_span_is_measured_from_the_first_counted_event_dropped_or_not():
    out, _ = stepped(
        "edge",
        "drop",
        {"span": 5},
        [
            Event("end", 0, 1),
            Event("??", 0, 1),
            Event("start", 3),
            Event("start", 7),
            Event("start", 8),
        ],
    )
    assert [what for what in out if what[0] == "cti"] == [("cti", 8)]


def test_end_edges_are_late_by_their_end_and_do_not_count():
    out, clock = stepped(
        "edge",
        "drop",
        {"every": 1},
        [
            Event("start", 5),
            Event("end", 1, 5),
            Event("end", 1, 4),
            Event("end", 6, 9),
            Event("start", 6),
        ],
    )
    assert out == [
        ("row", 0, 5, None, None),
        ("cti", 5),
        ("row", 1, 1, 5, None),
        ("row", 3, 6, 9, None),
        ("row", 4, 6, None, None),
        ("cti", 6),
    ]
    assert (clock.events, clock.dropped) == (5, 1)


@pytest.mark.parametrize(("end", "kept"), [(9, False), (10, False), (11, True)])
def test_an_adjusted_interval_must_have_something_left_after_the_cti(end, kept):
    late = [Event("interval", 10, 20), Event("interval", 3, end)]
    out, _ = stepped("interval", "adjust", {"every": 1}, late)
    assert out[2:] == ([("row", 1, 10, end, "adjusted")] if kept else [])


def test_fail_names_the_first_violating_event_whatever_its_kind():
    bad = Event("interval", 3, 3)
    late = Event("interval", 1, 9)
    ended = Event("interval", 1, 2)
    first = Event("interval", 5, 6)
    for order in ([bad, late, ended], [late, ended, bad], [ended, bad, late]):
        expected = (1, "malformed", None, 5) if order[0] is bad else (1, "late", 1, 5)
        with pytest.raises(Failed) as failed:
            stepped("interval", "fail", {"every": 1}, [first, *order])
        assert failed.value.args == expected


def test_a_malformed_event_at_the_start_fails_without_a_cti():
    with pytest.raises(Failed) as failed:
        stepped("point", "fail", {"every": 1}, [Event("point", 1)] * 0 + [Event("point", None)])
    assert failed.value.args == (0, "malformed", None, None)


@pytest.mark.parametrize("delay", [-1, 0, 1])
@pytest.mark.parametrize("event", [MIN_US, FINAL_US])
def test_a_cti_stays_inside_the_calendar(event, delay):
    out, _ = stepped("point", "drop", {"every": 1, "delay": delay}, [Event("point", event)])
    assert out[1] == ("cti", min(max(event - delay, MIN_US), FINAL_US))


def test_garbage_in_unreadable_places_has_no_effect():
    lowest, greatest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    readable = np.array([False, True, False, True])
    for garbage in (lowest, greatest):
        start = np.array([garbage, 5, garbage, 4], dtype=np.int64)
        how = TimeRules(every_us=1, delay_us=-3)
        clock, said = step(how, PartitionClock(base_us=0), Events(start, readable))
        assert said.cti_us.tolist() == [8]
        assert said.keep.tolist() == [False, True, False, False]
        assert (clock.malformed, clock.dropped) == (2, 1)


def test_an_empty_block_changes_nothing():
    clock = PartitionClock(cti_us=7, count=1, base_us=3, events=9)
    for shape in KINDS:
        after, said = step(rules(shape, "adjust", {"span": 2}), clock, columns(shape, []))
        assert after == clock
        assert len(said.cti_us) == len(said.keep) == 0


def test_the_state_knows_when_the_last_well_formed_event_was():
    known = np.array([True, True, False])
    clock, _ = step(TimeRules(), PartitionClock(), Events(np.array([5, 3, 9]), known))
    assert clock.last_us == 3
    clock, _ = step(TimeRules(), clock, Events(np.array([9]), np.array([False])))
    assert clock.last_us == 3


def test_unreadable_marks_are_told_by_their_places():
    nothing = np.zeros(3, dtype=np.bool_)
    marks = Marks(np.array([0, 2]), np.array([7, 0]), np.array([True, True]),
                  np.array([True, False]), pa.array(["", ""]), nothing[:2])  # fmt: skip
    events = Events(np.zeros(3, dtype=np.int64), nothing, present=nothing)
    clock, result = step(TimeRules(), PartitionClock(), events, marks)
    assert result.unreadable.tolist() == [2]
    assert (clock.cti_us, clock.ignored_ctis) == (7, 1)


def test_without_a_source_of_ctis_a_block_has_none():
    events = Events(np.array([3, 5]), np.ones(2, dtype=np.bool_))
    _, said = step(TimeRules(), PartitionClock(), events)
    for column in (said.cti_index, said.cti_us):
        assert (column.dtype, column.tolist()) == (np.int64, [])


@given(
    st.lists(st.integers(-50, 3000), min_size=1, max_size=200),
    st.integers(-10, 50),
    st.integers(1, 400),
)
@settings(max_examples=150, deadline=None)
def test_few_triggers_of_a_span_are_found_where_a_walk_finds_them(times, base_us, span_us):
    expected, base = [], base_us
    for place, at_us in enumerate(times):
        if at_us - base >= span_us:
            expected.append(place)
            base = at_us
    found = [with_few_triggers(few, np.array(times), base_us, span_us) for few in (1, 50, 10**6)]
    assert found == [expected] * 3


def with_few_triggers(few, *arguments):
    was, generator._EVENTS_PER_SEARCH = generator._EVENTS_PER_SEARCH, few
    try:
        return generator._find_span_triggers(*arguments).tolist()
    finally:
        generator._EVENTS_PER_SEARCH = was
