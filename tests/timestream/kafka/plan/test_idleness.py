"""Which partitions are idle, look by look."""

from timestream.builders import at

from pyspark_timestream.kafka.plan.idleness import due, idle_partitions, looked

A, B, C = at(0), at(1), at(2)


def test_a_partition_is_at_rest_since_the_look_that_first_found_it_so():
    assert looked({A: 5, B: 6}, [A, C], 9, troubled=False) == {A: 5, C: 9}


def test_after_trouble_all_waiting_begins_anew():
    assert looked({A: 5}, [A, B], 9, troubled=True) == {A: 9, B: 9}


def test_a_clock_that_was_set_back_begins_the_waiting_anew():
    assert looked({A: 5, B: 2}, [A, B], 3, troubled=False) == {A: 3, B: 2}


def test_a_partition_is_due_once_it_has_been_at_rest_for_the_timeout_and_only_once():
    since = {A: 5, B: 6, C: 1}
    assert due(since, {C}, 4, 9) == {A}
    assert due(since, set(), 4, 8) == {C}
    assert due(since, set(), None, 10**18) == frozenset()


def test_what_was_idle_stays_so_while_it_is_at_rest_whatever_the_timeout():
    assert idle_partitions({A: 5, B: 6}, {A, C}, None, 9) == {A}
    assert idle_partitions({A: 9, B: 5}, {A, C}, 4, 9) == {A, B}
