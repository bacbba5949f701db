"""The demo's trips: the same for everyone, out of order, one partition behind."""

import json
from datetime import datetime
from itertools import pairwise

from pyspark_timestream.demo.data import (
    LAG_HOURS,
    LAGGING,
    STATIONS,
    TRIPS_PER_STATION,
    DemoRecord,
    make_trips,
)

HOUR_MS = 3_600_000
DELAY_MS = 5 * 60_000
"""Of the example's `ctiDelay`."""
ALL = make_trips()


def departed_ms(trip: DemoRecord) -> int:
    return round(datetime.fromisoformat(json.loads(trip.value)["departed"]).timestamp() * 1000)


def test_trips_with_the_same_seed_are_the_same() -> None:
    assert make_trips() == ALL
    assert make_trips(1) != ALL


def test_first_trip_is_the_same_on_every_python() -> None:
    first = ALL[0]
    assert json.loads(first.value) == {
        "station": "North", "departed": "2026-01-01T08:00:06.385Z", "minutes": 4.5,
    }  # fmt: skip


def test_each_partition_has_the_trips_of_one_station() -> None:
    found = [(trip.partition, json.loads(trip.value)["station"]) for trip in ALL]
    assert {pair: found.count(pair) for pair in set(found)} == dict.fromkeys(
        enumerate(STATIONS), TRIPS_PER_STATION
    )


def test_every_partition_is_out_of_order_by_less_than_the_examples_delay() -> None:
    for partition in range(len(STATIONS)):
        departed = [departed_ms(trip) for trip in ALL if trip.partition == partition]
        newest, worst = departed[0], 0
        for instant in departed:
            worst = max(worst, newest - instant)
            newest = max(newest, instant)
        assert DELAY_MS / 2 < worst < DELAY_MS
        assert any(later < sooner for sooner, later in pairwise(departed))


def test_lagging_partition_is_two_hours_behind_in_the_order_of_reports() -> None:
    newest = dict.fromkeys(range(len(STATIONS)), 0)
    for number, trip in enumerate(ALL):
        newest[trip.partition] = max(newest[trip.partition], departed_ms(trip))
        if number > 1000:
            behind = max(newest.values()) - newest[LAGGING]
            assert abs(behind - LAG_HOURS * HOUR_MS) < DELAY_MS
