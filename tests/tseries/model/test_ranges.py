"""The retained range: its language and what it keeps."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tseries import InvalidQuery
from pyspark_tseries.model.ranges import (
    RetainedRange,
    format_range,
    min_retained,
    parse_range,
    point_off,
)
from pyspark_tseries.model.series_index import FLOOR_DEFAULTS

SPANS = st.integers(0, 10**9).map(lambda ms: ms * 1000)
RANGES = st.builds(RetainedRange, st.none() | st.integers(1, 10**9), st.none() | SPANS)


@given(RANGES)
def test_a_range_reads_back_from_its_text(retained):
    assert parse_range(format_range(retained)) == retained


@pytest.mark.parametrize(
    ("text", "limit", "last_us"),
    [
        ("limit 5 last 10s", 5, 10_000_000),
        ("LAST 10S LIMIT 5", 5, 10_000_000),
        ("  last 5 M ", None, 300_000_000),
        ("last 7d", None, 604_800_000_000),
        ("last 2H", None, 7_200_000_000),
        ("last 1500MS", None, 1_500_000),
        ("limit 5 limit 3", 3, None),
        ("last 1H last 2M", None, 120_000_000),
        ("Unlimited", None, None),
    ],
)
def test_clauses_come_in_any_order_and_case_and_the_smaller_wins(text, limit, last_us):
    assert parse_range(text) == RetainedRange(limit, last_us)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "limit",
        "limit 0",
        "limit -1",
        "last 5",
        "last 5 parsecs",
        "last 5w",
        "limit 5 last",
        "limit5",
        "limit 5limit 6",
        "unlimited limit 5",
        "limit 4611686018427387904",
        "last 99999999999D",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_range(text)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40).map(sorted),
    st.builds(RetainedRange, st.none() | st.integers(1, 45), st.none() | st.integers(0, 35)),
)
def test_what_is_kept_equals_brute_force_and_is_a_suffix(stamps, retained):
    size = len(stamps)
    count = size if retained.limit is None else retained.limit
    span = 10**6 if retained.last_us is None else retained.last_us
    expected = [i >= size - count and us >= stamps[-1] - span for i, us in enumerate(stamps)]
    floors = {name: np.array([low]) for name, low in FLOOR_DEFAULTS.items()}
    newest = np.array([size - 1]), np.array([stamps[-1]])
    low, low_us = min_retained(retained, *newest, floors)
    inside = ((np.arange(size) >= low) & (np.array(stamps) >= low_us)).tolist()
    assert inside == expected
    assert inside == sorted(inside)


@pytest.mark.parametrize(
    ("word", "amount", "said"),
    [
        ("last", timedelta(hours=-1), "last -1 hour is negative; accepted: .*; next step: "),
        ("next", timedelta(microseconds=-1), "next -1 tick is negative"),
        ("previous", -5, "previous -5 is negative"),
        ("last", 2**61, f"last {2**61} is too large"),
    ],
)
def test_an_amount_that_makes_no_range_is_told_in_the_words_of_the_question(word, amount, said):
    with pytest.raises(InvalidQuery, match=said):
        point_off(word, amount)
