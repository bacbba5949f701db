"""Marks in columns: order, maxima of lives and minima over spans, from what they mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.core.instants import NEVER
from pyspark_timestream.rules.marks import max_in_segments, min_over_intervals, sort_by_writer


def column(values):
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("many", [2, 2**16, 2**16 + 1, 2**17 + 2])
def test_deeds_are_in_the_order_of_their_writers_and_of_each_writer_in_time(many):
    last = many - 1
    order = sort_by_writer(column([7, 1, 4, 4, 1]), column([last, last, 0, last, 0]))
    assert order.tolist() == [4, 2, 1, 3, 0]


def test_no_deeds_have_an_order():
    assert sort_by_writer(column([]), column([])).tolist() == []


FAR = 2**62


@pytest.mark.parametrize(
    ("us", "fresh", "greatest"),
    [
        ([], [], []),
        ([NEVER, NEVER], [1, 0], [NEVER, NEVER]),
        ([5, 3, 6], [1, 0, 0], [5, 5, 6]),
        ([9, 3, 2, 4], [1, 1, 0, 0], [9, 3, 3, 4]),
        ([9, NEVER, 2, NEVER], [1, 1, 0, 0], [9, NEVER, 2, 2]),
        ([-7, NEVER, -9], [1, 1, 0], [-7, NEVER, -9]),
        ([FAR, NEVER, -FAR, 7], [1, 1, 0, 0], [FAR, NEVER, -FAR, 7]),
        ([FAR, -FAR, 7, -FAR], [1, 1, 0, 0], [FAR, -FAR, 7, 7]),
    ],
)
def test_a_life_begins_below_all_and_never_falls(us, fresh, greatest):
    found = max_in_segments(column(us), np.array(fresh, dtype=np.bool_))
    assert found.dtype == np.int64
    assert found.tolist() == greatest


@pytest.mark.parametrize(
    ("spans", "steps", "least"),
    [
        ([], 2, [NEVER, NEVER]),
        ([(0, 1, 5)], 2, [5, NEVER]),
        ([(1, 3, 5), (2, 4, 3)], 5, [NEVER, 5, 3, 3, NEVER]),
        ([(0, 3, 5), (0, 7, 9)], 8, [5, 5, 5, 9, 9, 9, 9, NEVER]),
        ([(1, 6, NEVER), (0, 8, 2)], 8, [2, *[NEVER] * 5, 2, 2]),
    ],
)
def test_a_step_has_the_least_of_what_covers_it(spans, steps, least):
    begins, ends, us = (column([span[i] for span in spans]) for i in range(3))
    assert min_over_intervals(begins, ends, us, steps).tolist() == least


anything = st.sampled_from([NEVER, -(2**62), 2**62]) | st.integers(-9, 9)


@given(st.lists(st.tuples(anything, st.booleans()), min_size=1, max_size=30))
def test_the_greatest_of_a_life_is_of_that_life_alone(told):
    us, fresh = (np.array(column) for column in zip(*told, strict=True))
    expected: list[int] = []
    for instant, begins in told:
        before = NEVER if begins or not expected else expected[-1]
        expected.append(max(before, instant))
    assert max_in_segments(us.astype(np.int64), fresh).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), anything), max_size=20),
    st.integers(80, 90),
)
def test_the_least_of_spans_is_of_those_that_cover_a_step(spans, steps):
    begins, lengths, us = (np.array([s[i] for s in spans], dtype=np.int64) for i in range(3))
    covering = [[v for b, n, v in spans if b <= at < b + n] for at in range(steps)]
    expected = [min(values, default=NEVER) for values in covering]
    assert min_over_intervals(begins, begins + lengths, us, steps).tolist() == expected
