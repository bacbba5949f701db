"""Ticks are round numbers, and round times by the clock of a zone, for any values."""

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_tseries.chart.figure import format_moment, number_axis, time_axis

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ZONES = st.sampled_from([None, "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])


def us_of(*parts, zone=UTC):
    return round(datetime(*parts, tzinfo=zone).timestamp() * 1_000_000)


def labels(axis):
    return [tick.label for tick in axis.ticks]


# -- numbers -------------------------------------------------------------------------------------


@example(1.0, 1.0)
@example(0.0, 5e-324)
@example(-1.7e308, 1.7e308)
@example(1e9, 1e9 + 0.01)
@given(FINITE, FINITE)
def test_an_axis_of_any_finite_values_is_finite_and_holds_them(one, other):
    low, high = sorted((one, other))
    axis = number_axis(low, high, 6)
    assert axis.low < axis.high
    assert 1 <= len(axis.ticks) <= 14
    assert list(axis.ticks) == sorted(set(axis.ticks))
    assert len(set(axis.labels)) == len(axis.labels)
    ends = axis.fraction(np.array([low, high]))
    assert np.isfinite(ends).all()
    assert -1e-6 <= ends[0] <= ends[1] <= 1 + 1e-6


@given(st.floats(-1e5, 1e5), st.floats(0.5, 1e5), st.integers(2, 10))
def test_ticks_of_plain_numbers_are_1_2_or_5_times_a_power_of_ten_apart(low, size, most):
    axis = number_axis(low, low + size, most)
    step = axis.ticks[1] - axis.ticks[0] if len(axis.ticks) > 1 else 1.0
    digits = step / 10.0 ** math.floor(math.log10(step) + 1e-6)
    assert min(abs(digits - round_) for round_ in (1, 2, 5)) < 1e-6
    assert all(
        float(label.replace(",", "")) == tick + 0.0
        for label, tick in zip(axis.labels, axis.ticks, strict=True)
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (17.2, 24.9, (["18", "20", "22", "24"], 0, 0)),
        (0.0, 3.2e6, (["0", "1", "2", "3"], 6, 0)),
        (-0.00001, 0.00002, (["-10", "0", "10", "20"], -6, 0)),
        (1e9, 1e9 + 0.02, (["0.000", "0.005", "0.010", "0.015", "0.020"], 0, 1e9)),
        (21.5, 21.5, (["21.0", "21.5", "22.0"], 0, 0)),
    ],
)
def test_labels_are_short_and_say_what_they_leave_out(low, high, expected):
    axis = number_axis(low, high, 5)
    texts, exponent, base = expected
    assert (axis.exponent, axis.base) == (exponent, base)
    assert set(texts) <= set(axis.labels)


def test_values_that_are_not_negative_have_no_axis_below_zero():
    assert number_axis(0.0, 10.0, 5).low == 0.0
    assert number_axis(-10.0, 0.0, 5).high == 0.0


def test_ticks_of_whole_numbers_are_whole():
    assert number_axis(2, 4, 8, is_whole=True).labels == ("2", "3", "4")
    assert number_axis(0, 1, 8, is_whole=True).labels == ("0", "1")


# -- times ---------------------------------------------------------------------------------------


@given(
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),  # noqa: DTZ001
    st.integers(0, 10**17),
    ZONES,
    st.integers(1, 12),
)
def test_ticks_of_any_times_lie_on_the_axis_and_are_not_too_many(start, length, zone, most):
    low = round((start - datetime(1970, 1, 1)).total_seconds()) * 1_000_000  # noqa: DTZ001
    axis = time_axis(low, low + length, zone, most)
    us = [tick.us for tick in axis.ticks]
    assert us == sorted(set(us))
    assert all(axis.low <= tick <= axis.high for tick in us)
    assert len(us) <= most + 2
    assert axis.low < axis.high


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (timedelta(microseconds=4), ["12:00:00.000000", "12:00:00.000001", "12:00:00.000002"]),
        (timedelta(milliseconds=40), ["12:00:00.00", "12:00:00.01", "12:00:00.02"]),
        (timedelta(seconds=40), ["12:00:00", "12:00:10", "12:00:20"]),
        (timedelta(minutes=20), ["12:00", "12:05", "12:10"]),
        (timedelta(hours=20), ["12:00", "18:00", "00:00"]),
        (timedelta(days=4), ["2", "3", "4"]),
        (timedelta(days=300), ["Apr", "Jul", "Oct"]),
        (timedelta(days=3000), ["2028", "2030", "2032"]),
    ],
)
def test_ticks_are_what_a_clock_or_a_calendar_calls_round(length, expected):
    start = us_of(2026, 3, 1, 12)
    axis = time_axis(start, start + length // timedelta(microseconds=1), None, 5)
    assert labels(axis)[:3] == expected


@given(st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)), st.integers(3, 9))  # noqa: DTZ001
def test_days_of_a_zone_begin_at_midnight_there_also_beside_its_odd_days(start, days):
    zone = ZoneInfo("Europe/Berlin")
    low = round(start.replace(tzinfo=UTC).timestamp()) * 1_000_000
    axis = time_axis(low, low + days * 86_400_000_000, "Europe/Berlin", days + 1)
    midnights = [datetime.fromtimestamp(tick.us / 1e6, zone) for tick in axis.ticks]
    assert all((at.hour, at.minute) == (0, 0) for at in midnights)
    assert len(midnights) >= days - 1


def test_an_hour_that_the_clock_shows_twice_is_named_twice():
    low = us_of(2026, 10, 25, 0, zone=ZoneInfo("Europe/Berlin"))
    axis = time_axis(low, low + 5 * 3_600_000_000, "Europe/Berlin", 6)
    assert labels(axis) == ["00:00", "01:00", "02:00", "02:00 CET", "03:00", "04:00"]


def test_the_context_of_a_label_is_said_at_the_first_and_where_it_changes():
    axis = time_axis(us_of(2026, 12, 31, 6), us_of(2027, 1, 1, 18), None, 8)
    told = [(tick.label, tick.context) for tick in axis.ticks if tick.context]
    assert told == [("06:00", "31 Dec 2026"), ("00:00", "1 Jan 2027")]


@pytest.mark.parametrize(
    ("parts", "zone", "expected"),
    [
        ((2026, 3, 1, 12), None, "1 Mar 2026 12:00"),
        ((2026, 3, 1, 12, 0, 5), None, "1 Mar 2026 12:00:05"),
        ((2026, 3, 1, 12, 0, 0, 500_000), "Europe/Berlin", "1 Mar 2026 13:00:00.5"),
        ((2026, 10, 25, 0, 30), "Europe/Berlin", "25 Oct 2026 02:30 CEST"),
        ((2026, 10, 25, 1, 30), "Europe/Berlin", "25 Oct 2026 02:30 CET"),
        ((1, 1, 1, 12), "America/New_York", "1 Jan 1 12:00 UTC"),
    ],
)
def test_a_moment_is_as_exact_as_it_is(parts, zone, expected):
    assert format_moment(us_of(*parts), zone) == expected
