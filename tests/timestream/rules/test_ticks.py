"""The simulated clock against an oracle that takes one tick at a time, in fractions."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.core.instants import FINAL_US, MIN_US, parse_instant
from pyspark_timestream.rules.ticks import (
    BLOCK_TICKS,
    MAX_PERIOD_DENOMINATOR,
    NO_TICKS,
    Clock,
    Ticks,
    advance_ticks,
    are_last,
    compute_cti,
    compute_delivered_range,
    compute_simulated_time,
    compute_tick_times,
    count_due_ticks,
    count_ticks,
    cut_blocks,
    cut_evenly,
    fits_calendar,
)

SECOND = 1_000_000
# A busy machine is no counterexample.
unhurried = settings(deadline=None)
ZERO = parse_instant("2026-01-01T00:00:00.123456Z")


def oracle_us(clock, k):
    ms = Fraction(clock.zero_us, 1000) + (clock.delay + k * clock.period) * 1000
    return math.floor(ms) * 1000


def times_of(clock, first, end):
    blocks = [compute_tick_times(clock, *block) for block in cut_blocks(first, end)]
    return np.concatenate([np.empty(0, np.int64), *blocks])


def is_due(clock, k, now_us):
    return clock.started_us + (clock.delay + k * clock.period) / clock.rate * SECOND <= now_us


periods = st.builds(
    Fraction, st.integers(1, 10**7), st.sampled_from([1, 3, 7, 1000, 999_983, 10**9 + 7, 10**12])
)
delays = st.builds(Fraction, st.integers(0, 10**6), st.sampled_from([1, 3, 1000]))
rates = st.builds(Fraction, st.integers(1, 5000), st.integers(1, 50))
clocks = st.builds(
    Clock,
    zero_us=st.integers(MIN_US, ZERO),
    started_us=st.integers(0, ZERO),
    delay=delays,
    period=periods,
    rate=rates,
    max_count=st.none() | st.integers(0, 60) | st.integers(0, 2**63 - 1),
    skips=st.booleans(),
)


@unhurried
@given(clocks, st.integers(0, 10**9), st.integers(0, 50))
def test_vectorised_times_equal_the_fraction_oracle_at_any_tick(clock, first, length):
    first = min(first, count_ticks(clock))
    end = min(first + length, count_ticks(clock))
    times = times_of(clock, first, end)
    assert times.dtype == np.int64
    assert times.tolist() == [oracle_us(clock, k) for k in range(first, end)]


@pytest.mark.thorough
@pytest.mark.parametrize("period", [Fraction(1, 1000), Fraction(1, 3), Fraction(7, 999_983)])
@pytest.mark.parametrize("first", [0, 10**12 + 1])
def test_ten_million_ticks_are_exact_to_the_last(period, first):
    count = 10_000_000
    clock = Clock(ZERO, 0, Fraction(1, 7), period)
    times = times_of(clock, first, first + count)
    assert len(times) == count
    edges = [b + d for b in range(BLOCK_TICKS, count, BLOCK_TICKS) for d in (-1, 0, 1)]
    assert all(times[i] == oracle_us(clock, first + i) for i in [0, *edges, count - 1])
    steps = np.diff(times)
    shortest = math.floor(period * 1000) * 1000
    assert set(np.unique(steps).tolist()) <= {shortest, shortest + 1000}


def test_the_worst_legal_denominator_does_not_overflow():
    period = Fraction(MAX_PERIOD_DENOMINATOR * 10**6 - 1, MAX_PERIOD_DENOMINATOR)
    clock = Clock(MIN_US, 0, Fraction(1, 10**12 - 11), period)
    times = times_of(clock, 1, 250_000)
    assert [int(times[i]) for i in (0, BLOCK_TICKS, -1)] == [
        oracle_us(clock, k) for k in (1, BLOCK_TICKS + 1, 249_999)
    ]


def test_a_period_longer_than_the_calendar_still_gives_the_first_tick():
    clock = Clock(ZERO, 0, period=Fraction(10**40))
    assert (count_ticks(clock), compute_tick_times(clock, 0, 1).tolist()) == (
        1,
        [oracle_us(clock, 0)],
    )


@unhurried
@given(clocks, st.integers(0, 100 * SECOND))
def test_due_ticks_are_those_whose_real_instant_has_come(clock, elapsed_us):
    now_us = clock.started_us + elapsed_us
    due = count_due_ticks(clock, now_us)
    assert due == 0 or is_due(clock, due - 1, now_us)
    assert due == count_ticks(clock) or not is_due(clock, due, now_us)


def test_a_tick_is_due_exactly_at_its_instant_and_not_before():
    clock = Clock(0, started_us=50, delay=Fraction(1), period=Fraction(2), rate=Fraction(2))
    # Tick 1 stands at 1 + 2 = 3 simulated seconds, which is 1.5 real ones.
    assert count_due_ticks(clock, 50 + 1_500_000 - 1) == 1
    assert count_due_ticks(clock, 50 + 1_500_000) == 2


def test_before_the_delay_and_before_the_start_nothing_is_due():
    clock = Clock(0, 10 * SECOND, delay=Fraction(1))
    assert [count_due_ticks(clock, s * SECOND) for s in (0, 10, 11)] == [0, 0, 1]


@unhurried
@given(
    clocks,
    st.lists(st.tuples(st.integers(0, 3 * SECOND), st.none() | st.integers(1, 9)), max_size=30),
)
def test_any_split_into_batches_and_restarts_delivers_or_skips_every_tick_once(clock, calls):
    now_us, ticks, seen, skipped = clock.started_us, NO_TICKS, [], []
    for step_us, cap in calls:
        now_us += step_us
        due = count_due_ticks(clock, now_us)
        if due > 10**6:
            return
        before = Ticks.from_json(json.loads(json.dumps(ticks.to_json())))
        ticks = advance_ticks(clock, before, now_us, cap)
        if ticks == before:
            assert due <= before.end_exclusive
            continue
        batch = range(*compute_delivered_range(clock, before, ticks))
        assert batch
        skipped += range(before.end_exclusive, batch.start)
        seen += batch
        assert len(batch) <= (cap or due)
        if clock.skips:
            assert list(batch) == [due - 1]
    assert len(skipped) == ticks.skipped
    assert sorted(seen + skipped) == list(range(ticks.end_exclusive))
    assert seen == sorted(seen)
    assert clock.skips or not skipped
    assert ticks.end_exclusive <= count_ticks(clock)


@unhurried
@given(clocks.filter(lambda clock: not clock.skips), st.integers(1, 40), st.integers(1, 7))
def test_one_batch_and_many_capped_ones_deliver_the_same(clock, seconds, cap):
    now_us = clock.started_us + seconds * 1000
    whole = advance_ticks(clock, NO_TICKS, now_us)
    if whole.end_exclusive > 5000:
        return
    ticks, seen = NO_TICKS, []
    while (after := advance_ticks(clock, ticks, now_us, cap)) != ticks:
        seen += range(*compute_delivered_range(clock, ticks, after))
        ticks = after
    assert seen == list(range(*compute_delivered_range(clock, NO_TICKS, whole)))


def test_several_batches_asked_for_as_one_are_all_their_ticks():
    clock = Clock(0, 0)
    assert compute_delivered_range(clock, Ticks(0, 3), Ticks(7, 9)) == (3, 9)


def test_several_batches_of_a_skipping_clock_asked_for_as_one_are_the_newest():
    clock = Clock(0, 0, skips=True)
    assert compute_delivered_range(clock, Ticks(2, 3), Ticks(8, 9, 6)) == (8, 9)


def test_skipped_ticks_count_toward_max_count():
    clock = Clock(0, 0, max_count=10, skips=True)
    ticks = advance_ticks(clock, NO_TICKS, 60 * SECOND)
    assert ticks == Ticks(9, 10, 9)
    assert are_last(clock, ticks)


def test_without_a_pace_every_tick_is_due_at_once():
    clock = Clock(0, 0, delay=Fraction(5), rate=None, max_count=7)
    assert count_due_ticks(clock, 0) == 7
    assert not are_last(clock, Ticks(0, 6))
    assert are_last(clock, Ticks(6, 7))


def test_a_clock_without_max_count_ends_with_the_calendar():
    clock = Clock(FINAL_US - 2 * SECOND, 0)
    assert count_ticks(clock) == 3
    assert compute_tick_times(clock, 2, 3).tolist() == [FINAL_US]
    assert fits_calendar(clock)
    assert not fits_calendar(Clock(FINAL_US - 2 * SECOND, 0, max_count=4))
    assert not fits_calendar(Clock(FINAL_US, 0, delay=Fraction(1)))


def test_the_cti_is_the_next_ticks_time_and_after_the_end_the_final_one():
    clock = Clock(0, 0, max_count=3)
    assert [compute_cti(clock, Ticks(0, k)) for k in range(4)] == [0, SECOND, 2 * SECOND, FINAL_US]


def test_simulated_time_runs_at_its_rate_and_unpaced_with_the_ticks():
    paced = Clock(ZERO, 5, rate=Fraction(60))
    assert compute_simulated_time(paced, NO_TICKS, 5 + SECOND) == ZERO + 60 * SECOND
    unpaced = Clock(0, 0, rate=None, max_count=9)
    assert compute_simulated_time(unpaced, NO_TICKS, 7) == 0
    assert compute_simulated_time(unpaced, Ticks(0, 3), 7) == 2 * SECOND
    assert compute_simulated_time(Clock(FINAL_US, 0), NO_TICKS, 99 * SECOND) == FINAL_US


@unhurried
@given(st.integers(0, 10**6), st.integers(0, 500), st.integers(1, 9))
def test_pieces_cover_a_range_in_order_with_nearly_equal_parts(start, length, count):
    cuts = cut_evenly(start, start + length, count)
    assert [k for cut in cuts for k in range(*cut)] == list(range(start, start + length))
    sizes = {end - begin for begin, end in cuts}
    assert len(cuts) == min(count, length)
    assert not sizes or (max(sizes) - min(sizes) <= 1 and min(sizes) > 0)


@unhurried
@given(st.builds(Ticks, *[st.integers(0, 2**63 - 1)] * 3))
def test_state_survives_json(ticks):
    assert Ticks.from_json(json.loads(json.dumps(ticks.to_json()))) == ticks
