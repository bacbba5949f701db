"""Writers' own clocks in columns, against a loop over records."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.drawn_writers import records, rules, stepped
from timestream.oracle import FINAL, run_writers

from pyspark_timestream.rules.clocks import Events, PartitionClock, TimeRules
from pyspark_timestream.rules.step import step


@given(rules, st.lists(records, max_size=40))
@settings(max_examples=400, deadline=None)
def test_writers_clocks_in_columns_and_the_loop_say_the_same(how, some):
    assert stepped(how, some)[0] == run_writers(some, **how)


@given(rules, st.lists(records, max_size=40), st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=300, deadline=None)
def test_any_split_of_writers_events_gives_the_same_and_the_same_state(how, some, cuts):
    assert stepped(how, some, [min(cut, len(some)) for cut in cuts]) == stepped(how, some)


def told(*some, **how):
    """The CTIs in order, the late places, and the state, of (writer, time[, timestamp])."""
    whole = [(*record, None)[:3] for record in some]
    (ctis, late, _), clock = stepped(how, whole)
    return [us for _, us in ctis], late, clock


def test_a_clock_of_the_far_future_moves_only_its_writer():
    wrong = [("b", FINAL - 5), ("b", FINAL - 4)]
    some = [("a", 1), *wrong, ("a", 3), ("c", 2), ("a", 5), ("c", 4)]
    ctis, late, clock = told(*some, every=1)
    assert (ctis, late) == ([1, 3, 4], [4])
    assert dict(clock.writers)["b"].mark_us == FINAL - 4


def test_a_far_future_clock_alone_decides_once_the_others_are_forgotten():
    some = [("a", 1, 1), ("b", 90, 5), ("b", 91, 12)]
    assert told(*some, every=1, timeout=10)[0] == [1, 90, 91]
    assert told(*some, every=1)[0] == [1]


def test_every_writer_counts_and_measures_for_itself():
    some = [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert told(*some, every=2)[0] == [2]
    some = [("a", 0), ("b", 3), ("a", 4), ("b", 6), ("a", 5), ("b", 8)]
    assert told(*some, span=5, delay=1)[0] == [4]


def test_a_writer_that_joins_below_the_cti_is_late_and_holds_it():
    ctis, late, _ = told(("a", 5), ("b", 3), ("a", 9), ("b", 7), every=1)
    assert (ctis, late) == ([5, 7], [1])


def test_the_grace_ends_before_the_record_that_ends_it():
    some = [("a", 5, 0), ("b", 2, 4), ("a", 8, 9), ("b", 1, 10), ("b", 3, 11)]
    assert stepped({"every": 1, "grace": 10}, some)[0] == ([(2, 2), (4, 3)], [3], 3)
    assert told(*some, every=1)[:2] == ([5], [1, 3, 4])


def test_marks_wait_for_the_grace_and_are_counted_as_ignored_until_then():
    from timestream.drawn_marks import marks
    from timestream.oracle import Event, Record

    some = [Record(Event("point", 0), 5, "a", stamp=0), Record(Event("point", 0), 6, "a", stamp=9)]
    events = Events(np.zeros(2, np.int64), np.ones(2, np.bool_), record_us=np.array([0, 9]))
    clock, said = step(TimeRules(writer_grace_us=9), PartitionClock(), events, marks(some))
    assert list(zip(said.cti_index.tolist(), said.cti_us.tolist(), strict=True)) == [(0, 5), (1, 6)]
    assert clock.ignored_ctis == 1


def test_the_generators_of_writers_survive_json_in_short():
    _, _, clock = told(("a", 5), ("b", 3), ("a", 9), span=4, delay=2)
    assert clock.to_json()["writers"] == [["a", 7, None, 0, 2], ["b", None, None, 0, 3]]
    assert PartitionClock.from_json(json.loads(json.dumps(clock.to_json()))) == clock
