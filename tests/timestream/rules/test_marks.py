"""In-band CTIs, writers, timeouts and time windows in columns, against a loop over records."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.drawn_marks import mark, marks, stepped, topics
from timestream.oracle import Event, Failed, Record, outcome, run

from pyspark_timestream.core.instants import FINAL_US, MIN_US, NEVER
from pyspark_timestream.core.policies import POLICIES
from pyspark_timestream.rules.clocks import PartitionClock, TimeRules, WriterState
from pyspark_timestream.rules.generator import CountedEvents, generate_ctis
from pyspark_timestream.rules.marks import Proposals, fold_marks


@given(topics())
@settings(max_examples=250, deadline=None)
def test_columns_and_the_loop_say_the_same(topic):
    shape, policy, how, some = topic
    expected = outcome(run, some, policy, **how)
    actual = outcome(stepped, shape, policy, how, some)
    if not expected or not isinstance(expected[0], list):
        assert actual == expected
        return
    out, tally, cti, windows = expected
    assert actual[0] == out
    assert +Counter(actual[1].counters()) == tally
    assert actual[1].cti_us == cti
    assert actual[2] == windows


@given(topics(), st.data())
@settings(max_examples=200, deadline=None)
def test_any_split_gives_the_same_rows_ctis_windows_counters_and_state(topic, data):
    shape, policy, how, some = topic
    cuts = data.draw(st.lists(st.integers(0, len(some)), max_size=6))
    whole = outcome(stepped, shape, policy, how, some)
    assert outcome(stepped, shape, policy, how, some, cuts) == whole


@given(topics(max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_cti_never_goes_back_and_no_unflagged_row_lies_before_it(topic):
    shape, policy, how, some = topic
    how = {**how, "ahead": "drop" if how["ahead"] == "fail" else how["ahead"]}
    said = stepped(shape, "drop" if POLICIES[policy].fails else policy, how, some)
    in_force = None
    for what in said[0]:
        if what[0] == "cti":
            assert in_force is None or what[1] > in_force
            in_force = what[1]
        elif what[4] in (None, "adjusted") and in_force is not None:
            kind = some[what[1]].event.kind
            assert (what[3] if kind == "end" else what[2]) >= in_force


def told(*some, policy="drop", **how):
    """A compact reading: kept times, ¶ with each CTI; and the state."""
    out, clock, _ = stepped("point", policy, how, list(some))
    return [f"¶{what[1]}" if what[0] == "cti" else what[2] for what in out], clock


def at(time, stamp=None):
    """An event."""
    return Record(Event("point", time), stamp=stamp)


def test_an_in_band_cti_takes_effect_and_makes_older_events_late():
    rows, clock = told(at(3), mark(5), at(4), at(5))
    assert rows == [3, "¶5", 5]
    assert (clock.events, clock.dropped, clock.ctis) == (3, 1, 1)


def test_a_mark_at_or_below_the_cti_is_counted_and_ignored():
    rows, clock = told(mark(5), mark(5), mark(4), at(4))
    assert rows == ["¶5"]
    assert clock.ignored_ctis == 2


def test_an_in_band_cti_restarts_the_counter():
    assert told(at(1), mark(2), at(3), at(4), every=2)[0] == [1, "¶2", 3, 4, "¶4"]


def test_an_in_band_cti_becomes_the_base_of_the_span():
    assert told(at(0), mark(7), at(10), at(12), span=5)[0] == [0, "¶7", 10, 12, "¶12"]


def test_the_base_of_a_span_holds_until_the_next_mark():
    assert told(mark(2), at(6), at(7), mark(20), span=5)[0] == ["¶2", 6, 7, "¶7", "¶20"]


def test_without_a_span_an_in_band_cti_leaves_no_base():
    assert told(mark(5))[1].base_us is None
    assert told(mark(5), every=3)[1].base_us is None
    assert told(mark(5), span=3)[1].base_us == 5


@pytest.mark.parametrize(("us", "count"), [(5, 0), (4, 3)])
def test_only_a_mark_that_takes_effect_restarts_the_counter_also_without_a_frequency(us, count):
    before = PartitionClock(cti_us=4, count=3, base_us=2)
    nobody = np.empty(0, dtype=np.int64)
    proposals = Proposals(np.array([1]), np.array([us]), np.array([True]))
    paced = generate_ctis(TimeRules(), before, CountedEvents(nobody, nobody), proposals)
    assert (paced.count, paced.base_us) == (count, 2)


def test_a_mark_at_the_cti_that_an_event_just_made_is_ignored():
    rows, clock = told(at(5), mark(5), every=1)
    assert rows == [5, "¶5"]
    assert (clock.ctis, clock.ignored_ctis) == (1, 1)


def test_an_ignored_mark_restarts_nothing():
    some = [mark(4, "b"), at(5), at(6), mark(3), at(9)]
    assert told(*some, every=3)[0] == ["¶4", 5, 6, 9, "¶9"]


def test_marks_that_generated_ctis_have_overtaken_are_ignored_one_after_another():
    rows, clock = told(at(10), mark(5), mark(7), mark(8), at(9), mark(11), every=1)
    assert rows == [10, "¶10", "¶11"]
    assert (clock.ctis, clock.ignored_ctis) == (2, 3)


def test_an_unreadable_mark_is_ignored_and_counted():
    rows, clock = told(mark("?"), at(1), mark("?", "a"))
    assert rows == [1]
    assert (clock.ignored_ctis, clock.writers) == (2, ())


def test_an_unreadable_mark_fails_under_fail_after_the_event_in_the_same_record():
    with pytest.raises(Failed) as failed:
        told(mark(5), Record(Event("point", 6), "?"), policy="fail")
    assert failed.value.args == (1, "mark", None, 5)
    with pytest.raises(Failed) as failed:
        told(mark(5), Record(Event("point", 4), "?"), policy="fail")
    assert failed.value.args == (1, "late", 4, 5)


def test_a_value_with_a_mark_is_an_event_that_comes_before_its_punctuation():
    assert told(Record(Event("point", 3), 9, "a"), at(8))[0] == [3, "¶9"]


def test_the_partitions_cti_is_the_minimum_of_the_live_writers():
    assert told(mark(5, "a"), mark(3, "b"), mark(9, "a"), mark(7, "b"))[0] == ["¶5", "¶7"]


def test_a_lower_mark_of_the_same_writer_is_ignored():
    rows, clock = told(mark(5, "a"), mark(3, "a"), mark(6, "b"))
    assert rows == ["¶5"]
    assert dict(clock.writers)["a"].mark_us == 5


def test_listed_writers_are_waited_for_from_the_start():
    assert told(mark(5, "a"), mark(9, "a"), mark(7, "b"), writers=("a", "b"))[0] == ["¶7"]


def test_a_writer_that_is_not_listed_joins_at_its_first_mark():
    assert told(mark(5, "a"), mark(2, "c"), mark(9, "a"), mark(8, "c"), writers=("a",))[0] == [
        "¶5", "¶8"]  # fmt: skip


def test_a_close_emits_the_minimum_that_it_raises():
    close = Record(None, None, "b", close=True)
    assert told(mark(5, "a"), mark(5, "b"), mark(9, "a"), close)[0] == ["¶5", "¶9"]


def test_a_mark_together_with_a_close_counts_first():
    last = Record(None, 7, "b", close=True)
    assert told(mark(5, "b"), mark(9, "a"), last)[0] == ["¶5", "¶7", "¶9"]


def test_a_close_of_a_listed_writer_ends_the_waiting_and_stays_so():
    close = Record(None, None, "b", close=True)
    rows, clock = told(mark(5, "a"), close, mark(6, "a"), writers=("a", "b"))
    assert rows == ["¶5", "¶6"]
    assert clock.begun
    assert [name for name, _ in clock.writers] == ["a"]


def test_the_last_close_leaves_the_cti_where_it_is():
    close = Record(None, None, "a", close=True)
    rows, clock = told(mark(5, "a"), close, at(5), at(4))
    assert rows == ["¶5", 5]
    assert clock.writers == ()


def test_a_close_without_a_writer_does_nothing():
    rows, clock = told(mark(5), Record(None, None, "", close=True), mark(9, "a"))
    assert rows == ["¶5"]
    assert [name for name, _ in clock.writers] == ["", "a"]


def test_a_silent_writer_is_forgotten_where_the_clock_says_so_and_may_rejoin():
    rows, _ = told(
        mark(5, "a", stamp=0),
        mark(5, "b", stamp=0),
        mark(9, "a", stamp=10),
        at(6, stamp=10),
        at(6, stamp=11),
        mark(7, "b", stamp=12),
        mark(20, "a", stamp=12),
        mark(15, "b", stamp=12),
        timeout=10,
    )
    assert rows == ["¶5", 6, "¶9", "¶15"]


def test_a_writer_lives_until_it_has_been_silent_for_longer_than_the_timeout():
    rows, clock = told(mark(5, "a", stamp=0), mark(7, "b", stamp=1), at(6, stamp=11), timeout=10)
    assert rows == ["¶5", "¶7"]
    assert [name for name, _ in clock.writers] == ["b"]


def test_a_listed_writer_without_marks_is_forgotten_counted_from_the_first_record():
    rows, _ = told(at(1, stamp=100), mark(3, "a", stamp=109), at(2, stamp=110), at(4, stamp=111),
                   writers=("a", "b"), timeout=10)  # fmt: skip
    assert rows == [1, 2, "¶3", 4]


def test_the_clock_of_the_timeout_never_goes_back_and_skips_records_without_a_timestamp():
    rows, _ = told(mark(1, "a", stamp=50), mark(3, "b", stamp=20), at(5), at(5, stamp=61),
                   timeout=10)  # fmt: skip
    assert rows == ["¶1", 5, 5]


def test_without_a_timeout_a_silent_writer_holds_the_cti_for_ever():
    assert told(mark(1, "a", stamp=0), mark(3, "b", stamp=0), at(5, stamp=10**15))[0] == ["¶1", 5]


def test_record_timestamps_are_kept_only_with_a_timeout():
    _, clock = told(mark(3, "a", stamp=7))
    assert (clock.record_us, clock.writers) == (None, (("a", WriterState(3)),))
    _, clock = told(mark(3, "a", stamp=7), timeout=5)
    assert (clock.record_us, clock.writers) == (7, (("a", WriterState(3, 7)),))


def test_where_record_timestamps_are_not_told_no_writer_is_forgotten():
    before = PartitionClock(writers=(("a", WriterState(3, 7)),), record_us=7)
    noted = fold_marks(TimeRules(writer_timeout_us=5), before, marks([]), None, 2)
    assert (noted.clock.writers, noted.clock.record_us) == (before.writers, 7)


def test_a_block_without_punctuations_forgets_who_falls_silent_in_it():
    before = PartitionClock(
        writers=(("a", WriterState(3, 0)), ("b", WriterState(9, 8))), record_us=8
    )
    noted = fold_marks(TimeRules(writer_timeout_us=5), before, marks([]), np.array([8, 9]), 2)
    assert noted.clock.writers == (("b", WriterState(9, 8)),)
    assert [column.tolist() for column in noted.proposals] == [[0], [9], [False]]


def test_instants_of_marks_and_records_are_exact_up_to_the_end_of_time():
    last = FINAL_US - 1
    some = [mark(last, "a", stamp=last), at(last, stamp=last)]
    for before in ([], [mark(1, "a", stamp=1)], [mark(MIN_US, "a", stamp=MIN_US)]):
        rows, clock = told(*before, *some, timeout=1)
        assert rows[len(before) :] == [f"¶{last}", last]
        assert (clock.writers, clock.record_us) == ((("a", WriterState(last, last)),), last)


def test_an_event_in_the_future_does_not_drive_the_clock():
    rows, clock = told(at(1000, stamp=10), at(14, stamp=12), every=1, delay=2, future=5)
    assert rows == [1000, 14, "¶12"]
    assert clock.future == 1
    assert told(mark(1000, stamp=10), future=5)[0] == ["¶1000"]


def test_an_event_just_within_max_future_drives_the_clock_by_its_own_time():
    assert told(at(15, stamp=10), every=1, delay=2, future=5)[0] == [15, "¶13"]
    assert told(at(16, stamp=10), every=1, delay=2, future=5)[0] == [16]


def test_an_event_in_the_future_moves_neither_counter_nor_base():
    far = at(1000, stamp=10)
    assert told(far, far, at(11, stamp=11), every=2, future=5)[0] == [1000, 1000, 11]
    some = [far, at(20, stamp=30), at(25, stamp=30)]
    assert told(*some, span=5, future=5)[0] == [1000, 20, 25, "¶25"]


def test_a_late_event_too_far_after_its_record_drives_no_clock_either():
    # A delay below nothing would take a late event's CTI beyond the one in force.
    rows, clock = told(mark(30), at(29, stamp=10), every=1, delay=-9, future=5)
    assert (rows, clock.dropped, clock.future) == (["¶30"], 1, 0)


def test_max_future_leaves_records_without_a_timestamp_alone():
    assert told(at(1000), every=1, future=5)[0] == [1000, "¶1000"]


def windows_of(*some, **how):
    return stepped("point", "drop", how, list(some))[2]


def test_a_time_window_has_the_minimum_of_the_live_and_the_greatest_mark_noted():
    close_a, close_b = (Record(None, None, name, close=True) for name in "ab")
    some = [at(0), mark(5, "a"), at(0), mark(3, "b"), at(0), mark(9, "a"), close_a, at(0), close_b,
            at(0), mark(4, "b"), at(0)]  # fmt: skip
    bounds = windows_of(*some)
    at_events = [bounds[i] for i, record in enumerate(some) if record.event]
    assert at_events == [(None, None), (5, 5), (3, 5), (3, 9), (None, None), (4, 9)]


def test_a_time_window_comes_from_named_writers_only_and_does_not_see_the_records_own_mark():
    both = Record(Event("point", 3), 9, "a")
    assert windows_of(mark(5), both, at(9)) == [(None, None), (None, None), (9, 9)]


@pytest.mark.parametrize("short", [["closes"], ["writers"], ["closes", "writers"]])
def test_columns_of_punctuations_that_differ_in_length_are_refused(short):
    two = marks([mark(5, "a"), mark(6, "b")])
    two = two._replace(**{name: getattr(two, name)[:1] for name in short})
    with pytest.raises(ValueError, match=r"^the columns of punctuations differ in length$"):
        fold_marks(TimeRules(), PartitionClock(), two, None, 2)


def test_a_block_without_punctuations_proposes_nothing_in_whole_instants():
    proposals = fold_marks(TimeRules(), PartitionClock(), marks([]), None, 2).proposals
    assert [(column.dtype, len(column)) for column in proposals] == [
        (np.int64, 0), (np.int64, 0), (np.bool_, 0)]  # fmt: skip


def test_time_windows_are_made_only_where_they_are_wanted():
    some = marks([mark(5, "a"), at(6)])
    assert fold_marks(TimeRules(), PartitionClock(), some, None, 2).time_windows is None


def test_the_bounds_of_time_windows_are_whole_instants_also_where_there_are_none():
    some = marks([mark(5, "a"), at(6)])
    window = fold_marks(TimeRules(time_window=True), PartitionClock(), some, None, 2).time_windows
    assert [column.dtype for column in window] == [np.int64, np.int64]
    assert [column.tolist() for column in window] == [[NEVER, 5], [NEVER, 5]]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", *"abcdefghijklmnopqrst"]),
            st.sampled_from([None, "?", *range(0, 60, 4)]),
            st.integers(0, 4),
            st.sampled_from([False, False, False, False, False, True]),
        ),
        min_size=20,
        max_size=150,
    ),
    st.sampled_from([None, 2, 7, 30]),
    st.sets(st.sampled_from(["a", "d", "missing"])),
    st.sampled_from([{}, {}, {"every": 2}, {"span": 9}]),
)
@settings(max_examples=100, deadline=None)
def test_many_marks_of_many_writers_say_what_the_loop_does(told, timeout, listed, how):
    some, stamp = [], 0
    for writer, time, passed, close in told:
        stamp += passed
        event = Event("point", stamp) if passed % 2 else None
        some.append(Record(event, time, writer, close, None if passed == 3 else stamp))
    how = {**how, "delay": 3, "timeout": timeout, "writers": tuple(sorted(listed))}
    test_columns_and_the_loop_say_the_same.hypothesis.inner_test(("point", "flag", how, some))


@given(
    st.lists(st.integers(-3, 6) | st.none() | st.none(), min_size=20, max_size=120),
    st.sampled_from([{"every": 1}, {"every": 3}, {"span": 1}, {"span": 2}]),
    st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_marks_that_keep_pace_with_generated_ctis_take_effect_where_they_are_ahead(
    leads, how, delay
):
    some = [
        Record(Event("point", i), None if lead is None else i - delay + lead)
        for i, lead in enumerate(leads)
    ]
    test_columns_and_the_loop_say_the_same.hypothesis.inner_test(
        ("point", "flag", {**how, "delay": delay}, some)
    )
