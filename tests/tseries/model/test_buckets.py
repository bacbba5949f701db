"""Buckets, beside a walk over every minute and beside DuckDB (semantics 32.1)."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lengths import outside_ci

from pyspark_timestream.core.instants import DAY_US, HOUR_US, MINUTE_US
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.buckets import Buckets, _list_transitions, parse_buckets

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(*moment: int, zone: str = "UTC", fold: int = 0) -> int:
    local = datetime(*moment, tzinfo=ZoneInfo(zone), fold=fold)  # type: ignore[arg-type, misc]
    return (local - EPOCH) // timedelta(microseconds=1)


def walk(buckets: Buckets, low: int, high: int) -> list[int]:
    """The starts of buckets, found by looking at the zone's clock every minute."""
    zone, starts, shown, before = ZoneInfo(str(buckets.zone)), [], set(), None
    for at in range(low, high, MINUTE_US):
        local = (EPOCH + timedelta(microseconds=at)).astimezone(zone)
        wall = at + local.utcoffset() // timedelta(microseconds=1)  # type: ignore[operator]
        number, on = divmod(wall - buckets.origin_us, buckets.us)
        passed = before is not None and before < number and wall > low
        begins = on == 0 or passed
        if buckets.us >= DAY_US and any(number <= other for other in shown):
            begins = False  # The clock shows this day for the second time.
        if begins:
            starts.append(at)
        shown.add(number)
        before = number
    return starts


ODD_DAYS = [
    ("Europe/Berlin", (2026, 3, 29)),
    ("Europe/Berlin", (2026, 10, 25)),
    ("America/New_York", (2026, 11, 1)),
    ("America/Sao_Paulo", (2018, 11, 4)),  # Midnight is skipped.
    ("America/Sao_Paulo", (2018, 2, 18)),  # 23 o'clock comes twice.
    ("Australia/Lord_Howe", (2026, 4, 5)),  # By half an hour.
    ("Africa/Casablanca", (2026, 2, 15)),
    ("Asia/Kathmandu", (2026, 5, 1)),
]


@pytest.mark.thorough
def test_zones_change_in_any_far_year_as_their_clocks_do_and_not_before_1800() -> None:
    draw = random.Random(7)
    for name in sorted(available_timezones()):
        zone, year = ZoneInfo(name), draw.randrange(2100, 9999)
        days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(366)]
        gaps = [day.astimezone(zone).utcoffset() for day in days]
        changed = [day for n, day in enumerate(days[:-1]) if gaps[n] != gaps[n + 1]]
        found = [EPOCH + timedelta(microseconds=at - 1) for at in _list_transitions(name, year)]
        assert [at.date() for at in found] == [day.date() for day in changed], (name, year)
        first, last = datetime(2, 1, 1, tzinfo=UTC), datetime(1800, 1, 1, tzinfo=UTC)
        assert first.astimezone(zone).utcoffset() == last.astimezone(zone).utcoffset(), name


@pytest.mark.parametrize(
    "width", ["15 minutes", "45 minutes", "1 hour", "2 hours", "6 hours", "1 day"]
)
@pytest.mark.parametrize(("zone", "day"), ODD_DAYS)
def test_buckets_begin_where_the_clock_shows_a_multiple(
    zone: str, day: tuple[int, int, int], width: str
) -> None:
    buckets = parse_buckets(width, zone)
    middle = us(*day)
    low, high = middle - 2 * DAY_US, middle + 3 * DAY_US
    starts = np.array(walk(buckets, low - 2 * DAY_US, high))
    times = np.arange(low, high, 7 * MINUTE_US)
    wanted = starts[np.searchsorted(starts, times, "right") - 1]
    assert buckets.starts(times).tolist() == wanted.tolist()
    every = buckets.between(int(times[0]), int(times[-1]))
    assert every.tolist() == [s for s in starts.tolist() if wanted[0] <= s <= wanted[-1]]
    assert buckets.ends(every[:-1]).tolist() == every[1:].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("width", ["1 day", *outside_ci("1 hour", "1 month")])
def test_a_time_of_a_wrong_clock_changes_the_buckets_of_no_other(width: str) -> None:
    buckets = parse_buckets(width, "Europe/Berlin")
    times = np.arange(us(2024, 3, 1), us(2024, 11, 1), 7 * HOUR_US)
    wrong = np.array([us(9998, 6, 1), us(3, 1, 1)])
    starts = buckets.starts(np.concatenate([times, wrong]))
    assert starts[:-2].tolist() == buckets.starts(times).tolist()
    assert starts[-2:].tolist() == [int(buckets.starts(wrong[n : n + 1])[0]) for n in (0, 1)]


@pytest.mark.parametrize("width", ["15 minutes", "1 hour", "12 hours", "1 day", "2 days"])
@pytest.mark.parametrize(("zone", "day"), [*ODD_DAYS, ("Pacific/Apia", (2011, 12, 30))])
def test_a_bucket_ends_where_the_next_begins_also_if_the_clock_skips_into_one(
    zone: str, day: tuple[int, int, int], width: str
) -> None:
    buckets = parse_buckets(width, zone, datetime(2000, 1, 3, 0, 10, tzinfo=ZoneInfo(zone)))
    middle = us(*day)
    starts = buckets.starts(np.arange(middle - 4 * DAY_US, middle + 5 * DAY_US, 5 * MINUTE_US))
    begins = np.unique(starts)
    assert buckets.ends(begins[:-1]).tolist() == begins[1:].tolist()
    assert buckets.between(int(starts[0]), int(starts[-1])).tolist() == begins.tolist()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"])
@pytest.mark.parametrize("day", [1, 14, 15, 16, 17, 28])
def test_a_month_from_any_day_ends_where_the_next_begins(day: int, zone: str) -> None:
    buckets = parse_buckets("1 month", zone, datetime(2000, 1, day, tzinfo=ZoneInfo(zone)))
    begins = np.unique(buckets.starts(np.arange(us(2010, 1, 1), us(2013, 1, 1), 6 * HOUR_US)))
    assert buckets.ends(begins[:-1]).tolist() == begins[1:].tolist()


def test_the_day_of_25_hours_has_25_hourly_buckets_and_is_one_daily_one() -> None:
    first, end = us(2026, 10, 25, zone="Europe/Berlin"), us(2026, 10, 26, zone="Europe/Berlin")
    assert len(parse_buckets("1 hour", "Europe/Berlin").between(first, end - 1)) == 25
    days = parse_buckets("1 day", "Europe/Berlin").between(first, end)
    assert days.tolist() == [first, end]
    assert end - first == 25 * HOUR_US


def test_the_day_of_23_hours_has_23_hourly_buckets() -> None:
    first, end = us(2026, 3, 29, zone="Europe/Berlin"), us(2026, 3, 30, zone="Europe/Berlin")
    assert len(parse_buckets("1 hour", "Europe/Berlin").between(first, end - 1)) == 23


@pytest.mark.parametrize("width", ["1 month", "1 quarter", "2 years"])
def test_months_begin_at_local_midnight_of_their_first_day(width: str) -> None:
    buckets = parse_buckets(width, "Europe/Berlin")
    for start, end in pairwise(buckets.between(us(2019, 5, 5), us(2031, 5, 5)).tolist()):
        local = (EPOCH + timedelta(microseconds=start)).astimezone(ZoneInfo("Europe/Berlin"))
        assert (local.day, local.hour, local.minute) == (1, 0, 0)
        assert buckets.starts(np.array([start, end - 1])).tolist() == [start, start]
        assert buckets.ends(np.array([start])).tolist() == [end]


WIDTHS = [
    "1 millisecond",
    "7 seconds",
    "1 hour",
    "5 hours",
    "1 day",
    "3 days",
    "1 week",
    "1 month",
    "1 quarter",
    "1 year",
    "7 months",
]


@given(st.sampled_from(WIDTHS), st.lists(st.integers(-(2**55), 2**55), min_size=1, max_size=20))
def test_buckets_without_a_zone_are_those_of_time_bucket(width: str, times: list[int]) -> None:
    buckets = parse_buckets(width)
    found = buckets.starts(np.array(times)).tolist()
    rows = duckdb.execute(
        "SELECT epoch_us(time_bucket(CAST(? AS INTERVAL), make_timestamp(t))) "
        "FROM unnest(?) AS times(t)",
        [width, times],
    ).fetchall()
    assert found == [row[0] for row in rows]
    ends = buckets.ends(np.array(found))
    assert all(
        start <= at < end for start, at, end in zip(found, times, ends.tolist(), strict=True)
    )


@given(st.integers(1, 400), st.integers(0, 3 * 365 * 24 * 60))
def test_buckets_count_from_the_origin(minutes: int, shift: int) -> None:
    origin = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=shift)
    buckets = parse_buckets(timedelta(minutes=minutes), origin=origin)
    at = us(2026, 1, 1) + shift * MINUTE_US
    assert buckets.starts(np.array([at, at - 1])).tolist() == [at, at - minutes * MINUTE_US]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("0 seconds",), "is not the width of buckets"),
        (("-1 hour",), "is not the width of buckets"),
        (("an hour",), "is not the width of buckets"),
        (("0 months",), "is not the width of buckets"),
        ((3600,), "is not the width of buckets"),
        ((timedelta.max,), "is not the width of buckets"),
        (("99999999999 days",), "is not the width of buckets"),
        (("7 hours", "Europe/Berlin"), "neither divides a day nor is whole days"),
        (("36 hours", "Europe/Berlin"), "neither divides a day nor is whole days"),
        (("1 hour", "Berlin"), "is not a time zone"),
        (("1 hour", "../../etc/passwd"), "is not a time zone"),
        (("1 month", None, datetime(2026, 1, 31, tzinfo=UTC)), "a day that some months lack"),
        (("1 hour", None, datetime(2026, 1, 31)), "has no time zone"),  # noqa: DTZ001
    ],
)
def test_what_is_no_bucket_is_refused(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(InvalidQuery, match=said) as raised:
        parse_buckets(*arguments)  # type: ignore[arg-type]
    assert raised.value.next_step


def test_too_many_buckets_are_refused() -> None:
    with pytest.raises(InvalidQuery, match="buckets"):
        parse_buckets("1 millisecond").between(0, us(2026, 1, 1))
