"""Counted waits against the waits themselves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.commands.measure_lateness import Waits

waits = st.lists(st.integers(0, 300) | st.integers(0, 2**55), min_size=1, max_size=40)


def count(ms: list[int]) -> Waits:
    return Waits().add(np.array(ms, dtype=np.int64))


@settings(deadline=None)
@given(waits, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_quantile_is_at_most_0_8_percent_too_high(ms, share) -> None:
    exact = sorted(ms)[max(math.ceil(share * len(ms)), 1) - 1]
    found = count(ms).find_quantile(share)
    assert exact <= found <= exact + exact // 128


@settings(deadline=None)
@given(waits, waits)
def test_waits_counted_apart_are_those_counted_together(one, other) -> None:
    together, merged = count(one + other), count(one).merge(count(other))
    assert np.array_equal(together.counts, merged.counts)
    assert together.greatest_ms == merged.greatest_ms == max(one + other)
    assert len(together) == len(one) + len(other)


@pytest.mark.parametrize("power", range(1, 62))
def test_the_neighbours_of_a_power_of_two_are_in_order(power) -> None:
    ms = [2**power - 1, 2**power, 2**power + 1]
    found = [count([each]).counts.argmax() for each in ms]
    assert found == sorted(found)


def test_no_waits_have_no_quantile() -> None:
    none = Waits().add(np.empty(0, np.int64))
    assert (none.find_quantile(0.5), none.greatest_ms, len(none)) == (None, None, 0)
    assert none.merge(count([7])).find_quantile(0.5) == 7
