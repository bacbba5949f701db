"""Event times out of text and numbers: exact, and the same whatever stands beside them."""

import math
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.event_time import number_times, record_times, text_times, value_times
from pyspark_timestream.instants import FINAL_US, MIN_US, format_instant, parse_instant

SCALE = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
units = st.sampled_from(sorted(SCALE))


def listed(times):
    """(instants, readable) as one list, unreadable as None."""
    instants, readable = times
    assert not instants[~readable].any()
    return [int(us) if fine else None for us, fine in zip(instants, readable, strict=True)]


def texts(*values, unit="ms"):
    return listed(text_times(pa.array(values, pa.string()), unit))


instants = st.integers(MIN_US, FINAL_US)
ODD = [
    None,
    "",
    " ",
    "now",
    "0",
    "-0",
    "+7",
    "-12",
    " 12 ",
    "12\n",
    "007",
    "1.5",
    "1e3",
    "1357017420123456789",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "9" * 18,
    "9" * 30,
    "0" * 30 + "5",
    "20130101",
    "2013-01-01",
    "2013-01-01T05",
    "2013-01-01T05:00",
    "2013-01-01T05:00Z",
    "2013-01-01t05:00:00z",
    "2013-01-01 05:00:00",
    " 2013-01-01T05:00:00Z ",
    "2013-01-01T05:00:00.5",
    "2013-01-01T05:00:00,5Z",
    "2013-01-01T05:00:00.1234567899Z",
    "1969-12-31T23:59:59.9999999Z",
    "2013-01-01T05:00:00ZZ",
    "2013-01-01T05:00:00+01:00",
    "2013-01-01T05:00:00-0530",
    "2013-01-01T05:00:00 +01",
    "2013-01-01T24:00:00Z",
    "2013-01-01T23:59:60Z",
    "2013-02-29T00:00:00Z",
    "2012-02-29T00:00:00Z",
    "2013-13-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59.000001Z",
    "9999-12-31T23:59:59-01:00",
    "10000-01-01T00:00:00Z",
]
some_texts = st.one_of(
    st.sampled_from(ODD),
    instants.map(format_instant),
    instants.map(lambda us: format_instant(us).replace("T", " ").rstrip("Z")),
    st.integers(-(2**66), 2**66).map(str),
    st.text("0123456789-+:TZ. \n", max_size=24),
)


def one(text, unit):
    """What the contract says of one text: digits are a number, else ISO-8601 or nothing."""
    if text is None:
        return None
    bare = text.strip(" \t\r\n\f")
    if bare.lstrip("+-").isdecimal() and len(bare) - len(bare.lstrip("+-")) <= 1:
        number = int(bare)
        us = math.floor(number * SCALE[unit])
        return us if MIN_US <= us <= FINAL_US and -(2**63) <= number < 2**63 else None
    try:
        return parse_instant(text)
    except ValueError:
        return None


@given(st.lists(some_texts, max_size=8), units)
@settings(max_examples=400, deadline=None)
def test_a_text_means_the_same_alone_and_beside_any_others(values, unit):
    together = texts(*values, unit=unit)
    assert together == [value for text in values for value in texts(text, unit=unit)]
    assert together == [one(text, unit) for text in values]


@pytest.mark.parametrize("bad", ["99999999999999999999", "2013-13-01T00:00:00Z", "soon", None])
@pytest.mark.parametrize("unit", sorted(SCALE))
def test_no_neighbour_spoils_a_text(bad, unit):
    for text in ODD:
        assert texts(text, bad, text, unit=unit)[::2] == texts(text, text, unit=unit)


def test_nanoseconds_as_text_have_nineteen_digits():
    assert texts("1357017420123456789", "9" * 20, unit="ns") == [1_357_017_420_123_456, None]


@given(st.lists(instants, max_size=6))
@settings(deadline=None)
def test_every_instant_reads_back_from_its_iso_text(values):
    assert texts(*map(format_instant, values)) == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-01-01 00:00:01.5", 1_500_000),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("1969-12-31T23:59:59.9999999Z", -1),
        ("1000", 1_000_000),
        ("9999-12-31T23:59:59Z", FINAL_US),
        ("9999-12-31T23:59:59.5Z", None),
        ("1.5", None),
    ],
)
def test_a_text_reads_as_the_contract_says(text, expected):
    assert texts(text) == [expected]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=6), units)
@settings(deadline=None)
def test_whole_numbers_are_in_the_unit_and_rounded_down(values, unit):
    expected = [None if v is None else math.floor(v * SCALE[unit]) for v in values]
    inside = [v if v is not None and MIN_US <= v <= FINAL_US else None for v in expected]
    assert listed(number_times(pa.array(values, pa.int64()), unit)) == inside


@given(st.lists(st.floats() | st.floats(-1e12, 1e12), max_size=6), units)
@settings(deadline=None)
def test_a_fraction_is_rounded_to_the_nearest_microsecond(values, unit):
    found = listed(number_times(pa.array(values, pa.float64()), unit))
    for value, us in zip(values, found, strict=True):
        exact = Fraction(value) * SCALE[unit] if math.isfinite(value) else None
        if exact is None or not MIN_US - 99 <= exact <= FINAL_US + 99:
            assert us is None
        elif MIN_US + 99 <= exact <= FINAL_US - 99:
            # A double has 53 bits: at the ends of the calendar they count tens of microseconds.
            assert abs(us - exact) <= 1 + abs(exact) / 2**52


@given(st.integers(-(2**53), 2**53), units)
@settings(deadline=None)
def test_a_whole_double_is_the_same_instant_as_the_whole_number(number, unit):
    """One fraction in a block makes doubles of all its numbers, which must change nothing."""
    as_double = number_times(pa.array([float(number), 0.5]), unit)
    as_integer = number_times(pa.array([number, 0]), unit)
    assert listed(as_double)[0] == listed(as_integer)[0]


def test_a_decimal_that_no_double_holds_is_the_microsecond_that_was_meant():
    assert listed(number_times(pa.array([1357017420.123]), "s")) == [1_357_017_420_123_000]


def test_what_is_no_number_or_beyond_the_calendar_is_unreadable():
    values = pa.array([math.nan, math.inf, -math.inf, 1e300, -1e300, None, 5e18])
    for unit in ("s", "ms", "us"):
        assert listed(number_times(values, unit)) == [None] * 7
    assert listed(number_times(values, "ns")) == [None] * 6 + [5 * 10**15]


def test_the_bounds_of_the_calendar_are_legal_and_their_neighbours_are_not():
    for unit in ("s", "us"):
        low, high = (int(bound / SCALE[unit]) for bound in (MIN_US, FINAL_US))
        found = listed(number_times(pa.array([low - 1, low, high, high + 1]), unit))
        assert found == [None, MIN_US, FINAL_US, None]


def test_a_record_timestamp_is_in_milliseconds_and_negative_means_none():
    stamps = pa.array([0, 1, -1, None, FINAL_US // 1000, FINAL_US // 1000 + 1, 2**63 - 1])
    expected = [0, 1000, None, None, FINAL_US, None, None]
    assert listed(record_times(stamps)) == expected


def test_a_column_of_any_other_type_has_no_times():
    for other in (pa.nulls(2), pa.array([True, False]), pa.array([b"1", b"2"])):
        assert listed(value_times(other, "ms")) == [None, None]
    assert listed(value_times(pa.array(["5", None]), "s")) == [5_000_000, None]
    assert listed(value_times(pa.array([5, None]), "s")) == [5_000_000, None]


def test_nothing_gives_nothing():
    assert texts() == []
    assert listed(number_times(pa.array([], pa.float64()), "ns")) == []
    assert listed(record_times(pa.array([], pa.int64()))) == []
