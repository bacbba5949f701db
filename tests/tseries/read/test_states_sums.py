"""Sums of doubles equal sums of fractions, rounded once, for any cut (semantics 32.2)."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tseries.read.states import add_exactly, add_parts, round_sums

usual = st.floats(-1e3, 1e3) | st.integers(-9999, 9999).map(lambda n: n / 100)
any_float = usual | st.floats() | st.sampled_from([math.inf, -math.inf, math.nan, 1.7e308, 5e-324])
runs = st.lists(
    st.one_of(
        st.lists(usual, min_size=1, max_size=12), st.lists(any_float, min_size=1, max_size=6)
    ),
    min_size=1,
    max_size=5,
)


def by_fractions(values):
    odd = [value for value in values if not math.isfinite(value)]
    if odd:
        return math.nan if len(set(map(str, odd))) > 1 else odd[0]
    total = sum(map(Fraction, values))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def lay_out(runs):
    sizes = np.array([len(run) for run in runs])
    return np.array([value for run in runs for value in run]), np.cumsum(sizes) - sizes, sizes


@given(runs, st.integers(0, 3))
def test_a_sum_is_exact_and_rounded_once(runs, between):
    wanted = np.array([by_fractions(run) for run in runs])
    values, first, sizes = lay_out([[*run, *[1e9] * between] for run in runs])
    found = round_sums(add_exactly(values, first, sizes - between))
    assert np.array_equal(found, wanted, equal_nan=True)


@given(runs, st.data())
def test_sums_of_pieces_are_the_sum_of_the_whole(runs, data):
    wanted = np.array([by_fractions(run) for run in runs])
    pieces = []
    for run in runs:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(run)), max_size=3)) | {0, len(run)})
        parts = [run[a:b] for a, b in pairwise(cuts)]
        pieces.append(data.draw(st.permutations(parts)))
    parts = add_exactly(*lay_out([piece for of_run in pieces for piece in of_run]))
    counts = np.array([len(of_run) for of_run in pieces])
    merged = add_parts(parts, np.cumsum(counts) - counts, counts)
    assert np.array_equal(round_sums(merged), wanted, equal_nan=True)


def test_usual_values_need_two_parts():
    values = np.round(np.linspace(-100, 100, 10_001), 2)
    assert len(add_exactly(values, np.array([0, 5000]), np.array([5000, 5001]))) == 2
