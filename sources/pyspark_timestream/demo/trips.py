"""Trips of one morning, out of order, from four stations of which one reports two hours late.

Each station is a partition of topic `trips`. A trip is reported up to four minutes after its
departure, and Harbour's two hours after that; records lie in the order of these reports. So each
partition alone is nearly in order, and Harbour's is always two hours behind the others.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, NamedTuple

__all__ = ["LAGGING", "LAG_HOURS", "STATIONS", "TOPIC", "TRIPS_PER_STATION", "Trip", "trips"]

TOPIC: Final = "trips"
STATIONS: Final = ("Central", "North", "Park", "Harbour")
"""Partition -> the station whose trips it has."""
LAGGING: Final = STATIONS.index("Harbour")
LAG_HOURS: Final = 2
TRIPS_PER_STATION: Final = 5_000

_FIRST_REPORT: Final = datetime(2026, 1, 1, 8, tzinfo=UTC)
_HOUR_MS: Final = 3_600_000
_SPAN_MS: Final = 8 * _HOUR_MS
_MAX_REPORT_DELAY_MS: Final = 4 * 60_000


class Trip(NamedTuple):
    """One record: milliseconds are since 1970."""

    partition: int
    departed_ms: int
    reported_ms: int
    value: str


def trips(seed: int = 0) -> Iterator[Trip]:
    """All trips in the order in which they are reported; a seed always gives the same."""
    found = (trip for number in range(len(STATIONS)) for trip in _of_station(number, seed))
    return iter(sorted(found, key=lambda trip: (trip.reported_ms, trip.partition)))


def _of_station(partition: int, seed: int) -> Iterator[Trip]:
    # Of all its methods `random` alone gives the same numbers in every version of Python.
    chance = Random(seed * len(STATIONS) + partition).random
    lag_ms = LAG_HOURS * _HOUR_MS if partition == LAGGING else 0
    first_ms = round(_FIRST_REPORT.timestamp() * 1000) - lag_ms
    for _ in range(TRIPS_PER_STATION):
        departed_ms = first_ms + int(chance() * _SPAN_MS)
        reported_ms = departed_ms + lag_ms + int(chance() * _MAX_REPORT_DELAY_MS)
        fields = {
            "station": STATIONS[partition],
            "departed": _iso(departed_ms),
            "minutes": round(3 + 20 * chance(), 1),
        }
        yield Trip(partition, departed_ms, reported_ms, json.dumps(fields))


def _iso(instant_ms: int) -> str:
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
