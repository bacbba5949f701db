"""Idle partitions, observation by observation."""

from timestream.builders import at

from pyspark_timestream.kafka.offsets.stream_state import (
    find_caught_up,
    find_idle,
    find_newly_idle,
)

A, B, C = at(0), at(1), at(2)


def test_a_partition_is_at_rest_since_the_look_that_first_found_it_so():
    assert find_caught_up({A: 5, B: 6}, [A, C], 9, troubled=False) == {A: 5, C: 9}


def test_quiet_time_starts_again_after_trouble():
    assert find_caught_up({A: 5}, [A, B], 9, troubled=True) == {A: 9, B: 9}


def test_quiet_time_starts_again_if_the_clock_is_set_back():
    assert find_caught_up({A: 5, B: 2}, [A, B], 3, troubled=False) == {A: 3, B: 2}


def test_partition_becomes_newly_idle_once_after_the_timeout():
    since = {A: 5, B: 6, C: 1}
    assert find_newly_idle(since, {C}, 4, 9) == {A}
    assert find_newly_idle(since, set(), 4, 8) == {C}
    assert find_newly_idle(since, set(), None, 10**18) == frozenset()


def test_idle_partition_stays_idle_while_quiet_at_any_timeout():
    assert find_idle({A: 5, B: 6}, {A, C}, None, 9) == {A}
    assert find_idle({A: 9, B: 5}, {A, C}, 4, 9) == {A, B}
