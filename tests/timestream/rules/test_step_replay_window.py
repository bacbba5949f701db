"""Replays by their definition: the full run's rows and CTIs, filtered (semantics 7.7)."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.drawn_marks import stepped, topics
from timestream.drawn_writers import records as written
from timestream.drawn_writers import rules as writer_rules
from timestream.drawn_writers import stepped as stepped_writers
from timestream.oracle import Event, Record, outcome, run, run_writers

from pyspark_timestream.rules.clocks import Events, PartitionClock, TimeRules
from pyspark_timestream.rules.step import step

bounds = st.none() | st.integers(0, 14)


def without_failures(topic):
    """The topic, with policies that drop what they would fail on."""
    shape, policy, how, some = topic
    ahead = "drop" if how.get("ahead") == "fail" else how.get("ahead", "keep")
    return shape, "drop" if policy == "fail" else policy, {**how, "ahead": ahead}, some


def filtered(full, records, lower, upper):
    """The rows and CTIs of the `full` run that a replay of [lower, upper) has."""
    out, cti = [], None
    for kind, *rest in full:
        if upper is not None and cti is not None and cti >= upper:
            break
        if kind == "cti":
            cti = rest[0]
            out.append(("cti", cti if upper is None else min(cti, upper)))
            continue
        index, start, end, violation = rest
        time = end if records[index].event.kind == "end" else start
        time = cti if violation in ("malformed", "adjusted") else time
        low = float("-inf") if time is None else time
        if (lower is None or low >= lower) and (upper is None or low < upper):
            out.append(("row", *rest))
    return out


@given(topics(), bounds, bounds, st.data())
@settings(max_examples=300, deadline=None)
def test_a_replay_in_any_split_is_the_filtered_full_run(topic, lower, upper, data):
    shape, policy, how, some = without_failures(topic)
    cuts = data.draw(st.lists(st.integers(0, len(some)), max_size=6))
    full, _, _, _ = run(some, policy, **how)
    span = {**how, "lower": lower, "upper": upper}
    out, clock, _ = stepped(shape, policy, span, some, cuts)
    assert out == filtered(full, some, lower, upper)
    assert stepped(shape, policy, span, some)[1] == clock


def filtered_writers(how, some, lower, upper):
    """The CTIs and the places left out of a replay, from the full run of writers' clocks."""
    full, late, _ = run_writers(some, **how)
    told, out, cti = [], set(late), None
    for place in range(-1, len(some)):
        time = some[place][1] if place >= 0 else None
        has_ended = None not in (cti, upper) and cti >= upper
        if time is not None and (
            has_ended
            or (lower is not None and time < lower)
            or (upper is not None and time >= upper)
        ):
            out.add(place)
        for at, us in full:
            if at == place and (None in (cti, upper) or cti < upper):
                cti = us if upper is None else min(us, upper)
                told.append((place, cti))
    return told, sorted(out), cti


@given(writer_rules, st.lists(written, max_size=40), bounds, bounds,
       st.lists(st.integers(0, 40), max_size=6))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_a_replay_by_writers_clocks_in_any_split_is_the_filtered_full_run(
    how, some, lower, upper, cuts
):
    span = {**how, "lower": lower, "upper": upper}
    said, clock = stepped_writers(span, some, [min(cut, len(some)) for cut in cuts])
    assert said == filtered_writers(how, some, lower, upper)
    assert stepped_writers(span, some)[1] == clock


@given(topics(), st.integers(0, 14))
@settings(max_examples=200, deadline=None)
def test_the_counters_are_those_of_the_full_run_where_the_partition_ends(topic, upper):
    shape, policy, how, some = without_failures(topic)
    _, ended, _ = stepped(shape, policy, {**how, "upper": upper}, some)
    ctis = [run(some[:n], policy, **how)[2] for n in range(len(some) + 1)]
    # The shortest prefix with a CTI at the end or beyond, or all.
    reached = (n for n, cti in enumerate(ctis) if cti is not None and cti >= upper)
    count = next(reached, len(some))
    _, tally, cti, _ = run(some[:count], policy, **how)
    mine = ended.counters()
    effective = [each[1] for each in run(some, policy, **how)[0] if each[0] == "cti"]
    assert mine["ctis"] == sum(each < upper for each in effective) + (ended.cti_us == upper)
    if cti is None or cti < upper:
        assert (mine["events"], ended.cti_us) == (tally["events"], cti)
        return
    assert ended.cti_us == upper
    assert tally["events"] - 1 <= mine["events"] <= tally["events"]


def test_rows_left_out_are_counted_and_are_not_late():
    rules = TimeRules(every_events=1, from_us=3, until_us=6)
    times = np.array([1, 2, 3, 5, 4, 6, 7])
    clock, said = step(rules, PartitionClock(), Events(times, np.ones(7, dtype=bool)))
    assert said.keep.tolist() == [False, False, True, True, False, False, False]
    # 4 is late, 6 reaches the end and is outside, 7 is behind the end.
    assert (clock.events, clock.dropped, clock.outside, clock.cti_us) == (6, 1, 3, 6)
    after, nothing = step(rules, clock, Events(times, np.ones(7, dtype=bool)))
    assert after == clock
    assert (nothing.keep.any(), len(nothing.cti_us), nothing.failure) == (False, 0, None)


def test_two_ctis_that_reach_the_end_after_one_record_count_once():
    both = [Record(Event("point", 9), mark=12)]
    out, clock, _ = stepped("point", "drop", {"every": 1, "upper": 8}, both)
    assert (out, clock.ctis, clock.cti_us) == ([("cti", 8)], 1, 8)


@pytest.mark.parametrize("cuts", [(), (2,)])
def test_a_silent_writer_may_end_a_partition_before_a_record(cuts):
    writers = [
        Record(None, mark=3, writer="a", stamp=0),
        Record(Event("point", 7), mark=9, writer="b", stamp=2),
        Record(Event("point", 6), stamp=9),
    ]
    how = {"timeout": 7, "upper": 8}
    out, clock, _ = stepped("point", "drop", how, writers, cuts)
    assert out == [("cti", 3), ("row", 1, 7, None, None), ("cti", 8)]
    assert (clock.events, clock.ctis) == (1, 2)


def test_policy_fail_does_not_fail_behind_the_end():
    events = [Event("point", 5), Event("point", 9), Event("point", 1)]
    how = {"every": 1, "upper": 9}
    out, _, _ = stepped("point", "fail", how, [Record(event) for event in events])
    assert out == [("row", 0, 5, None, None), ("cti", 5), ("cti", 9)]
    failed = outcome(stepped, "point", "fail", {"every": 1}, [Record(event) for event in events])
    assert failed[0] == 2


def test_a_state_without_a_replay_has_no_word_of_it():
    assert "outside" not in json.dumps(PartitionClock(events=3).to_json())
    assert PartitionClock.from_json({"events": 3, "outside": 2}).outside == 2


@pytest.mark.parametrize(("cti_us", "ended"), [(None, False), (5, False), (6, True), (7, True)])
def test_a_clock_is_at_its_end_from_the_instant_itself_on(cti_us, ended):
    assert TimeRules(until_us=6).is_at_end(cti_us) is ended
    assert not TimeRules().is_at_end(cti_us)
