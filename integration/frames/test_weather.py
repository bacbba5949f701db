"""Hourly weather as a slow stream, released by the flights that it is joined with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker import Broker, Record
from flights import produce_flights
from flights_data import HARMLESS_DELAY, expected_weather, flights, weather
from kafka_query import Stream
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, import_ctis

FLIGHTS = 6_000
FLIGHT = "origin string, flight int, tailnum string, start_time timestamp, cti timestamp"
WEATHER = "origin string, temp double, start_time timestamp"


def observations(table) -> list[Record]:
    rows = table.to_pylist()
    return [Record(json.dumps(row), row["origin"], 0, row["hour_us"] // 1_000) for row in rows]


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_flights_joined_with_imported_ctis_to_the_weather_equal_a_batch_join(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    table = flights(FLIGHTS)
    departed = table.filter(table["departure_us"].is_valid())
    seen = weather(max(departed["departure_us"].to_pylist()))
    name = topic()
    broker.produce(name, observations(seen))
    fast = Stream(
        spark, broker, produce_flights(broker, count=FLIGHTS), tmp_path / "fast",
        {"valueFormat": "json", "startTime": "departure", "ctiFrequency": "1 hour",
         "ctiDelay": HARMLESS_DELAY, "finalCti": "true", "maxOffsetsPerTrigger": "1500"},
        FLIGHT,
    )  # fmt: skip
    slow = Stream(spark, broker, name, tmp_path / "slow", {"valueFormat": "json"}, WEATHER)
    left = advance_time(fast.load(), releases="rows").alias("flight")
    right = advance_time(import_ctis(slow.load(), fast.load()), releases="rows").alias("weather")
    within = F.expr(
        "flight.origin = weather.origin AND flight.start_time >= weather.start_time "
        "AND flight.start_time < weather.start_time + INTERVAL 1 HOUR"
    )
    joined = left.join(right, within, "leftOuter").select(
        "flight.origin",
        "flight",
        "tailnum",
        F.unix_micros("flight.start_time").alias("departure_us"),
        "temp",
    )
    rows = fast.run(joined)
    expected = expected_weather(departed, seen)
    assert sorted(map(str, (tuple(row)[:5] for row in rows))) == sorted(map(str, expected))
    alone = [row.batch for row in rows if row.temp is None]
    assert 0 < len(alone) < len(rows) / 10
    # A flight without weather is known when the CTIs have passed it, not only at the end.
    assert min(alone) < max(row.batch for row in rows)
