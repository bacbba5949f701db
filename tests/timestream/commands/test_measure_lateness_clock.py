"""A partition's clock by a delay against a loop over records, and by every split into blocks."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.oracle import Event, Record, run

from pyspark_timestream.commands.measure_lateness import DelayTrial, advance_trial, make_block
from pyspark_timestream.core.instants import NEVER
from pyspark_timestream.rules.clocks import Events, TimeRules
from pyspark_timestream.rules.step import NO_MARKS

MS = 1_000
stamps = st.none() | st.integers(0, 40)
records = st.lists(st.tuples(st.none() | st.integers(0, 12), stamps), max_size=24)
frequencies = st.sampled_from([{"every": 1}, {"every": 1}, {"every": 3}, {"span": 2}, {"span": 5}])
splits = st.lists(st.integers(0, 24), max_size=4)


def follow(given, how, delay, cuts=(), sampled_every=1, future=None) -> DelayTrial:
    rules = TimeRules(
        policy="flag", every_events=how.get("every"), every_us=how.get("span"), delay_us=delay,
        max_future_us=future,
    )  # fmt: skip
    trial = DelayTrial()
    bounds = sorted({0, len(given), *(min(cut, len(given)) for cut in cuts)})
    for first, stop in itertools.pairwise(bounds):
        some = given[first:stop]
        time = np.array([0 if t is None else t for t, _ in some], dtype=np.int64)
        known = np.array([t is not None for t, _ in some], dtype=np.bool_)
        record_us = np.array([NEVER if s is None else s * MS for _, s in some], dtype=np.int64)
        events = Events(time, known, record_us=record_us)
        block = make_block(events, NO_MARKS, record_us, first, sampled_every)
        trial = advance_trial(rules, trial, block)
    return trial


def watch(given, how, delay, future=None):
    """(late events, how late the latest was, waits, how many still wait), one record at a time."""
    events = [Event("point", t) for t, _ in given]
    if future is not None:
        events = [Record(Event("point", t), stamp=None if s is None else s * MS) for t, s in given]
    out, *_ = run(events, policy="flag", delay=delay, future=future, **how)
    late, behind, waits, waiting, cti = 0, None, [], 0, None
    for place, each in enumerate(out):
        if each[0] == "cti":
            cti = each[1]
            continue
        _, index, time, _, violation = each
        if violation == "late":
            late, behind = late + 1, max(behind or 0, cti - time)
        elif violation in (None, "future"):
            passed = next(
                (n for n in range(place, len(out)) if out[n][0] == "cti" and out[n][1] > time), None
            )
            if passed is None:
                waiting += 1
                continue
            by = max(row[1] for row in out[:passed] if row[0] == "row")
            own, then = given[index][1], given[by][1]
            if own is not None and then is not None:
                waits.append(max(then - own, 0))
    return late, behind, sorted(waits), waiting


def seen(trial: DelayTrial):
    counts = np.flatnonzero(trial.waits.counts)
    waits = np.repeat(counts, trial.waits.counts[counts]).tolist()
    return trial.clock.flagged, trial.most_late_us, waits, trial.count_waiting()


@settings(deadline=None)
@given(records, frequencies, st.integers(0, 6), splits, st.none() | st.integers(0, 4))
def test_a_clock_sees_what_a_loop_over_records_sees(given, how, delay, cuts, future) -> None:
    trial = follow(given, how, delay, cuts, future=future)
    assert seen(trial) == watch(given, how, delay, future)


@settings(deadline=None)
@given(records, frequencies, st.integers(0, 6), splits, st.integers(1, 4))
def test_no_split_into_blocks_changes_a_clock(given, how, delay, cuts, sampled_every) -> None:
    whole = follow(given, how, delay, (), sampled_every)
    split = follow(given, how, delay, cuts, sampled_every)
    assert seen(split) == seen(whole)
    assert split.clock == whole.clock
    assert split.record_us == whole.record_us


@settings(deadline=None)
@given(records, frequencies, st.integers(1, 4))
def test_a_delay_of_the_largest_lateness_is_the_least_without_late_rows(
    given, how, sampled_every
) -> None:
    largest = follow(given, how, 0, (), sampled_every).most_late_us
    if largest is not None:
        assert follow(given, how, largest).clock.flagged == 0
        assert follow(given, how, largest - 1).clock.flagged > 0


def test_an_event_waits_from_its_record_to_the_one_that_moves_the_cti_past_it() -> None:
    # At delay 2 the CTIs are 8, 9 and 11: the first passes nothing, the last passes 10.
    trial = follow([(10, 0), (11, 5), (9, 6), (13, 20)], {"every": 1}, 2)
    assert seen(trial) == (0, None, [14, 20], 2)
    assert seen(follow([(10, 0), (11, 5), (9, 6), (13, 20)], {"every": 1}, 1))[:2] == (1, 1)


def test_waits_of_each_third_record_are_measured_and_all_late_rows_counted() -> None:
    given = [(t, t) for t in range(30)] + [(0, 30)] * 3
    trial = follow(given, {"every": 1}, 0, sampled_every=3)
    assert seen(trial) == (3, 29, [1] * 10, 0)
