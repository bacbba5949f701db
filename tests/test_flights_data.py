"""The flights are what the integration tests believe them to be."""

from __future__ import annotations

import json
import warnings

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flights_data import (
    CANCELLED,
    DEPARTED,
    FLIGHTS,
    HARMLESS_DELAY,
    Hour,
    duration_us,
    expected_hours,
    flights,
    json_values,
    judge,
    judge_flights,
    kept_rows,
    out_of_order,
)

HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return flights()


def totals(table: pa.Table, frequency: str, delay: str) -> dict[str, int]:
    judged = judge_flights(table, frequency, delay).values()
    counters = [each.counters() for each in judged]
    return {name: sum(each[name] for each in counters) for name in counters[0]}


def test_every_flight_is_there_and_the_cancelled_ones_have_no_departure(table: pa.Table) -> None:
    assert table.num_rows == FLIGHTS == DEPARTED + CANCELLED
    assert table["departure_us"].null_count == CANCELLED
    assert sorted(table["row"].to_pylist()) == list(range(FLIGHTS))


def test_reports_are_in_order_and_departures_really_are_not(table: pa.Table) -> None:
    reports = table["report_us"].to_pandas()
    assert reports.is_monotonic_increasing
    behind = out_of_order(table)
    assert behind["rows"] > 250_000
    assert 10 * HOUR < behind["most_us"] < duration_us(HARMLESS_DELAY)


def test_the_first_flight_reads_as_published(table: pa.Table) -> None:
    place = table["row"].to_pylist().index(0)
    value = json.loads(next(json_values(table.slice(place, 1))))
    assert value == {
        "departure": "2013-01-01T05:17:00Z",
        "scheduled": "2013-01-01T05:15:00Z",
        "origin": "EWR",
        "dest": "IAH",
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "dep_delay": 2.0,
        "arr_delay": 11.0,
    }
    # 227 minutes in the air.
    assert table["report_us"][place].as_py() == 1_357_017_420_000_000 + 227 * 60_000_000


def test_with_a_large_delay_nothing_is_late(table: pa.Table) -> None:
    counted = totals(table, "1 hour", HARMLESS_DELAY)
    assert (counted["events"], counted["dropped"]) == (FLIGHTS, 0)
    assert counted["malformed"] == CANCELLED
    kept = kept_rows(table, judge_flights(table, "1", HARMLESS_DELAY))
    assert kept.num_rows == DEPARTED


def test_the_expected_hours_add_up(table: pa.Table) -> None:
    hours = expected_hours(table.filter(pc.is_valid(table["departure_us"])))
    assert len(hours) == 21_105
    assert sum(hour.flights for hour in hours) == DEPARTED
    minutes = sum(hour.flights * hour.mean_delay for hour in hours)
    assert minutes == pytest.approx(pc.sum(table["dep_delay"]).as_py())
    # By hand from the published table: 5:17, 5:54, 5:55, 5:58 and 5:59 with 2, -4, -5, -2 and -1.
    assert hours[0] == Hour("EWR", 1_357_016_400_000_000, 5, -2.0)


# -- the oracle against the rules' own words ------------------------------------------------------


def test_every_second_event_commits_what_is_before_it() -> None:
    judged = judge([10, 30, 20, 30, 40], "2")
    assert judged.ctis == [30]
    # 20 is late, still counts, and 30 is legal at the CTI itself.
    assert judged.verdicts == ["kept", "kept", "late", "kept", "kept"]


def test_a_span_starts_at_the_event_that_triggered_the_cti_before() -> None:
    minute = 60_000_000
    judged = judge([0, 59 * minute, 60 * minute, 90 * minute, 300 * minute], "1 hour")
    assert judged.ctis == [60 * minute, 300 * minute]


def test_a_cti_that_would_go_back_is_left_out_but_restarts_the_count() -> None:
    judged = judge([100, 50, 60, 200], "2")
    assert judged.ctis == [50, 200]
    assert judge([100, 100, 90, 90, 95, 101], "2").ctis == [100, 101]


def test_a_delay_is_relative_to_the_last_received_event() -> None:
    second = 1_000_000
    assert judge([10 * second, 7 * second], "1", "5 seconds").ctis == [5 * second]
    assert judge([10], "1", "-1 second").ctis == [10 + second]


def test_malformed_events_neither_count_nor_move_a_cti() -> None:
    judged = judge([1, None, 2], "2")
    assert (judged.verdicts, judged.ctis) == (["kept", "malformed", "kept"], [2])
    assert judged.counters() == {"events": 3, "dropped": 0, "malformed": 1, "ctis": 1}
