"""Event times out of text and numbers: exact, and the same beside any other values."""

import math
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from time import thread_time

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.clock.time_options import read_time_options
from pyspark_timestream.core.instants import (
    FINAL_US,
    MIN_US,
    format_instant,
    from_datetime,
    parse_instant,
    read_number_times,
    read_record_times,
    read_text_times,
    read_value_times,
)
from pyspark_timestream.producer.producer import _parse_mark_time
from pyspark_tseries.model.ranges import Point, parse_anchor

SCALE = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
units = st.sampled_from(sorted(SCALE))


def listed(times):
    """(instants, readable) as one list, unreadable as None."""
    instants, readable = times
    assert not instants[~readable].any()
    return [int(us) if fine else None for us, fine in zip(instants, readable, strict=True)]


def texts(*values, unit="ms"):
    return listed(read_text_times(pa.array(values, pa.string()), unit))


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
    "2013-01-01T05:00.5",
    "2013-01-01T05:00,5Z",
    "20130101T050000Z",
    "20130101T050000.25+0130",
    "20130101t0500z",
    "20130101T05:00:00Z",
    "2013-01-01T050000Z",
    "20130101 050000Z",
    "20130101T050000 +01:00",
    "20130101T",
    "20130101Z",
    "2013-01-01Z",
    "20130229T050000Z",
    "2013-01-01T05:00:00.Z",
    "2013-01-01T05:00:00+24:00",
    "2013-01-01T05:00:00+23:60",
    "2013-01-01T05:00:00+5",
    "2013-01-01T05:00:00-00:00",
    "\u00a02013-01-01T05:00:00Z\u2003",
    "\x1c2013-01-01T05:00:00Z\x0b",
    "2013-01-01T05:00:00\u00a0+01:00",
    "\u0662\u0660\u0661\u0663-01-01T05:00:00Z",
    "2013-01-01T05:00:00." + "1" * 80 + "Z",
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
    st.datetimes().map(lambda moment: moment.strftime("%4Y%m%d%H%M")),
    st.text("0123456789-+:TZ. \n", max_size=24),
)


fields = st.tuples(
    *(st.integers(low, high) for low, high in ((0, 9999), (0, 13), (0, 32), (0, 25), (0, 61))),
    st.integers(0, 61),
    st.text("0123456789", max_size=10),
    st.none() | st.tuples(st.sampled_from("+-"), st.integers(0, 25), st.integers(0, 61)),
    st.booleans(),
)
"""Year, month, day, hour, minute, second, fraction, zone, whether it is written in basic form."""


def written(year, month, day, hour, minute, second, fraction, zone, basic):
    """The fields as an ISO-8601 text, even if no such time exists."""
    dash, colon = ("", "") if basic else ("-", ":")
    text = f"{year:04}{dash}{month:02}{dash}{day:02}T{hour:02}{colon}{minute:02}{colon}{second:02}"
    text += f".{fraction}" if fraction else ""
    return text + (f"{zone[0]}{zone[1]:02}{colon}{zone[2]:02}" if zone else "Z")


def meant(year, month, day, hour, minute, second, fraction, zone, basic):
    """The instant by the calendar of the standard library; None where there is no such time."""
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        sign, hours, minutes = zone or ("+", 0, 0)
        # Only a time of day has an hour and a minute in range.
        ahead = timedelta(hours=time(hours, minutes).hour, minutes=minutes)
    except ValueError:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC) + (ahead if sign == "-" else -ahead)
    us = since // timedelta(microseconds=1) + int(fraction[:6].ljust(6, "0"))
    return us if MIN_US <= us <= FINAL_US else None


@given(st.lists(fields, min_size=1, max_size=8))
@settings(max_examples=400, deadline=None)
def test_iso_texts_of_either_form_are_what_the_calendar_says(values):
    found = texts(*(written(*value) for value in values))
    assert found == [meant(*value) for value in values]


@given(st.lists(st.tuples(some_texts, st.integers(0, 70)), min_size=70, max_size=90), units)
@settings(max_examples=20, deadline=None)
def test_a_column_of_more_forms_than_are_read_at_once_is_read_all_the_same(values, unit):
    wide = [text and " " * margin + text for text, margin in values]
    assert texts(*wide, unit=unit) == [one(text, unit) for text in wide]


def test_half_a_minute_is_no_fraction_of_a_second():
    assert texts("2013-01-01T05:00.5", "2013-01-01T05:00:00.5") == [None, 1_357_016_400_500_000]
    with pytest.raises(ValueError, match=r"not an ISO-8601 instant such as .* or 20130101T050000Z"):
        parse_instant("2013-01-01T05:00.5")


def test_basic_form_is_read_wherever_a_time_is_text():
    us = 1_357_016_400_000_000
    assert parse_instant("20130101T050000Z") == us
    assert read_time_options({"timeZero": "20130101T050000Z"}).zero_us == us
    assert _parse_mark_time("20130101T050000Z") == us
    assert parse_anchor("20130101T050000Z") == Point("time", us)
    assert texts("20130101T060000+0100", "20130101T0500", unit=None) == [us, us]


@pytest.mark.parametrize("digits", ["20130101", "201301010500", "20130101050000", "602511200900"])
def test_digits_alone_are_a_number_where_numbers_may_stand_and_no_date_anywhere(digits):
    # 602511200900 ms is a time of 1989, and would be the year 6025 as a date without a T.
    assert texts(digits, f" {digits}\n", f"+{digits}", unit="us") == [int(digits)] * 3
    for text in (digits, f"{digits}Z", f"{digits}+0100", f"{digits}.5", f"{digits} "):
        assert texts(text, unit=None) == [None]
        with pytest.raises(ValueError, match="is not an ISO-8601 instant"):
            parse_instant(text)


FORMS = {
    "an offset": "{:%Y-%m-%dT%H:%M:%S}+01:00",
    "an offset without a colon": "{:%Y-%m-%dT%H:%M:%S.%f}-0530",
    "nanoseconds": "{:%Y-%m-%dT%H:%M:%S.%f}123Z",
    "basic form": "{:%Y%m%dT%H%M%S}Z",
    "minutes": "{:%Y-%m-%d %H:%M}",
    "days": "{:%Y-%m-%d}",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMS)
def test_times_of_every_form_cost_about_what_those_with_a_z_cost(name):
    """One by one they would cost 25 times as much."""
    moments = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=97 * i) for i in range(20_000)]
    plain, other = (
        pa.array([form.format(moment) for moment in moments])
        for form in ("{:%Y-%m-%dT%H:%M:%S}Z", FORMS[name])
    )
    assert cpu_seconds(other) < 5 * cpu_seconds(plain)


@pytest.mark.thorough
@pytest.mark.parametrize("bad", ["2024-02-30T00:00:00Z", "soon", ""])
def test_one_impossible_date_does_not_slow_its_block(bad):
    """Reading its block one by one took 30 times as long."""
    moments = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=97 * i) for i in range(20_000)]
    values = [f"{moment:%Y-%m-%dT%H:%M:%S}Z" for moment in moments]
    spoilt = [*values[:100], bad, *values[101:]]
    assert cpu_seconds(pa.array(spoilt)) < 5 * cpu_seconds(pa.array(values))
    assert listed(read_text_times(pa.array(spoilt), "ms"))[100] is None


def cpu_seconds(column):
    """The least time for reading the column, by this thread's processor time."""
    taken = []
    for _ in range(5):
        began = thread_time()
        read_text_times(column, "ms")
        taken.append(thread_time() - began)
    return min(taken)


def one(text, unit):
    """Semantics 1.3 and 1.4 for one text: digits are a number, else ISO-8601 or nothing."""
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
def test_a_text_reads_as_the_rules_say(text, expected):
    assert texts(text) == [expected]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=6), units)
@settings(deadline=None)
def test_whole_numbers_are_in_the_unit_and_rounded_down(values, unit):
    expected = [None if v is None else math.floor(v * SCALE[unit]) for v in values]
    inside = [v if v is not None and MIN_US <= v <= FINAL_US else None for v in expected]
    assert listed(read_number_times(pa.array(values, pa.int64()), unit)) == inside


@given(st.lists(st.floats() | st.floats(-1e12, 1e12), max_size=6), units)
@settings(deadline=None)
def test_a_fraction_is_rounded_to_the_nearest_microsecond(values, unit):
    found = listed(read_number_times(pa.array(values, pa.float64()), unit))
    for value, us in zip(values, found, strict=True):
        exact = Fraction(value) * SCALE[unit] if math.isfinite(value) else None
        if exact is None or not MIN_US - 99 <= exact <= FINAL_US + 99:
            assert us is None
        elif MIN_US + 99 <= exact <= FINAL_US - 99:
            is_whole = value == int(value) and abs(value) <= 2**53
            assert us == math.floor(exact) if is_whole else abs(us - exact) <= 0.5 + 1e-9


@given(st.integers(-(2**53), 2**53), units)
@settings(deadline=None)
def test_a_whole_double_is_the_same_instant_as_the_whole_number(number, unit):
    """One fraction in a block makes doubles of all its numbers, which must change nothing."""
    as_double = read_number_times(pa.array([float(number), 0.5]), unit)
    as_integer = read_number_times(pa.array([number, 0]), unit)
    assert listed(as_double)[0] == listed(as_integer)[0]


@pytest.mark.parametrize("unit", SCALE)
@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "uint32", "float"])
def test_a_number_is_the_same_instant_in_a_column_of_few_bits(kind, unit):
    """Seconds of our days fit an int of Avro, and their microseconds do not."""
    narrow = pa.array([100, 1_357_017_420, -7, 12_345.678, None]).cast(kind, safe=False)
    wide = narrow.cast(pa.float64() if kind == "float" else pa.int64())
    assert listed(read_number_times(narrow, unit)) == listed(read_number_times(wide, unit))


def test_a_decimal_that_no_double_holds_is_the_microsecond_that_was_meant():
    assert listed(read_number_times(pa.array([1357017420.123]), "s")) == [1_357_017_420_123_000]


@pytest.mark.parametrize(
    ("value", "unit", "us"),
    [
        (1_759_785_282.7694566, "s", 1_759_785_282_769_457),
        (180_180_970_511.25, "s", 180_180_970_511_250_000),
        (-44_622_968_565.5625, "s", -44_622_968_565_562_500),
        (1_712_915_857_814.8906, "ms", 1_712_915_857_814_891),
        (224_159_048_790_437_200_000.0, "ns", 224_159_048_790_437_200),
    ],
)
def test_a_double_is_scaled_without_rounding_it_first(value, unit, us):
    assert listed(read_number_times(pa.array([value]), unit)) == [us]


def test_what_is_no_number_or_beyond_the_calendar_is_unreadable():
    values = pa.array([math.nan, math.inf, -math.inf, 1e300, -1e300, None, 5e18])
    for unit in ("s", "ms", "us"):
        assert listed(read_number_times(values, unit)) == [None] * 7
    assert listed(read_number_times(values, "ns")) == [None] * 6 + [5 * 10**15]


def test_the_bounds_of_the_calendar_are_legal_and_their_neighbours_are_not():
    for unit in ("s", "us"):
        low, high = (int(bound / SCALE[unit]) for bound in (MIN_US, FINAL_US))
        found = listed(read_number_times(pa.array([low - 1, low, high, high + 1]), unit))
        assert found == [None, MIN_US, FINAL_US, None]


def test_a_record_timestamp_is_in_milliseconds_and_negative_means_none():
    stamps = pa.array([0, 1, -1, None, FINAL_US // 1000, FINAL_US // 1000 + 1, 2**63 - 1])
    expected = [0, 1000, None, None, FINAL_US, None, None]
    assert listed(read_record_times(stamps)) == expected


def test_a_column_of_any_other_type_has_no_times():
    for other in (pa.nulls(2), pa.array([True, False]), pa.array([b"1", b"2"])):
        assert listed(read_value_times(other, "ms")) == [None, None]
    assert listed(read_value_times(pa.array(["5", None]), "s")) == [5_000_000, None]
    assert listed(read_value_times(pa.array([5, None]), "s")) == [5_000_000, None]


def test_a_timestamp_has_its_own_unit_and_is_unreadable_outside_the_calendar():
    seconds = pa.array([1_357_016_400, None, -1], pa.int64())
    for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        for zone in (None, "UTC", "Asia/Tokyo"):
            times = pc.multiply(seconds, per_second).view(pa.timestamp(unit, tz=zone))
            expected = [1_357_016_400_000_000, None, -1_000_000]
            assert listed(read_value_times(times, "ns")) == expected
    edges = pa.array([MIN_US - 1, MIN_US, FINAL_US, FINAL_US + 1, 2**63 - 1, -(2**63)])
    found = listed(read_value_times(edges.view(pa.timestamp("us")), "ms"))
    assert found == [None, MIN_US, FINAL_US, None, None, None]
    endless = pa.array([2**63 - 1, -(2**63)]).view(pa.timestamp("s"))
    assert listed(read_value_times(endless, "ms")) == [None, None]
    nanos = pa.array([1_999, -1]).view(pa.timestamp("ns"))
    assert listed(read_value_times(nanos, "ms")) == [1, -1]


def test_a_date_is_its_midnight_in_utc_and_is_unreadable_outside_the_calendar():
    days = [date(1970, 1, 1), date(2013, 1, 1), date(1, 1, 1), date(9999, 12, 31), None]
    midnights = [
        None if day is None else from_datetime(datetime(day.year, day.month, day.day, tzinfo=UTC))
        for day in days
    ]
    assert listed(read_value_times(pa.array(days, pa.date32()), "s")) == midnights
    beyond = pa.array([-719_163, 2_932_897, 2**31 - 1, -(2**31)], pa.int32()).view(pa.date32())
    assert listed(read_value_times(beyond, "s")) == [None] * 4


def test_nothing_gives_nothing():
    assert texts() == []
    assert listed(read_number_times(pa.array([], pa.float64()), "ns")) == []
    assert listed(read_record_times(pa.array([], pa.int64()))) == []
