"""A day of trips that are reported late, and the trips that a watermark and CTIs keep.

`trips()` are the records; `kept_by_spark` and `kept_by_ctis` run the job of the page
docs/how-to/migrate-from-kafka.md before and after, and count the trips in its windows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from both_sources import Source
from broker import Record
from kafka_query import DAY_MS
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pyspark_timestream import advance_time

MINUTES = 1_440
PARTITIONS = 4
FIELDS = "station string, departed timestamp"


class Trip(NamedTuple):
    departed: int
    """Minutes into the day."""
    reported: float
    partition: int


def trips(seed: int = 1) -> list[Trip]:
    """One departure a minute, in the order of the reports.

    A report takes 8 minutes on average; of one in twenty the device was offline for 20 minutes to
    two hours more.
    """
    chance = random.Random(seed)
    found = []
    for minute in range(MINUTES):
        wait = chance.expovariate(1 / 8)
        if chance.random() < 0.05:
            wait += chance.uniform(20, 120)
        found.append(Trip(minute, minute + wait, chance.randrange(PARTITIONS)))
    return sorted(found, key=lambda trip: trip.reported)


def records(some: Iterable[Trip]) -> list[Record]:
    """The records that a producer sends of them."""
    return [
        Record(
            json.dumps({"station": f"s{trip.partition}", "departed": iso(trip.departed)}),
            None, trip.partition, DAY_MS + round(60_000 * trip.reported),
        )
        for trip in some
    ]  # fmt: skip


def iso(minute: int) -> str:
    return f"2024-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z"


def kept_by_spark(
    source: Source, topic: str, delay: str, limit: int = MINUTES, parts: Iterable[Callable] = ()
) -> int:
    """The trips in the hourly windows of Spark's own source and watermark.

    Args:
        source: Spark's.
        topic: the trips.
        delay: of the watermark.
        limit: the most records of a batch.
        parts: each produces the records of one run, in order.
    """
    rows = source.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=limit)
    value = F.from_json(F.col("value").cast("string"), FIELDS)
    parsed = rows.select(value.alias("trip")).select("trip.*")
    return kept(source, parsed.withWatermark("departed", delay), "departed", parts)


def kept_by_ctis(
    source: Source, topic: str, delay: str, limit: int = MINUTES, parts: Iterable[Callable] = ()
) -> int:
    """The same of ours, with a CTI at every event."""
    rows = source.spark.readStream.format("timestream").options(**ours(source, topic))
    rows = rows.option("ctiFrequency", "1").option("ctiDelay", delay)
    rows = rows.option("maxOffsetsPerTrigger", str(limit))
    stream = rows.schema("station string, start_time timestamp, cti timestamp").load()
    return kept(source, advance_time(stream), "start_time", parts)


def ours(source: Source, topic: str) -> dict[str, str]:
    return {
        "transport": "kafka", "kafka.bootstrap.servers": source.broker.bootstrap,
        "subscribe": topic, "startingOffsets": "earliest",
        "valueFormat": "json", "startTime": "departed",
    }  # fmt: skip


def kept(source: Source, rows: DataFrame, time: str, parts: Iterable[Callable]) -> int:
    """Update mode shows a window whenever it grows, so its greatest count is its last."""
    place = source.place / str(random.getrandbits(64))
    hourly = rows.groupBy("station", F.window(time, "1 hour").alias("hour")).count()
    found: dict = {}

    def keep(batch: DataFrame, _: int) -> None:
        found.update({(row.station, row.hour.start): row["count"] for row in batch.collect()})

    writer = hourly.writeStream.outputMode("update").foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(place)).trigger(availableNow=True)
    for part in [*parts] or [lambda: None]:
        part()
        writer.start().awaitTermination()
    return sum(found.values())


def lost_beforehand(source: Source, topic: str, delays: list[int]) -> list[int]:
    """The trips further behind the greatest time before them than each delay, in minutes."""
    rows = source.spark.read.format("timestream").options(**ours(source, topic))
    rows = rows.schema("topic string, partition int, offset long, start_time timestamp").load()
    before = Window.partitionBy("topic", "partition").orderBy("offset")
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    seconds = F.unix_micros("start_time") / 1e6
    behind = rows.select((F.max(seconds).over(before) - seconds).alias("behind"))
    counts = [F.count_if(F.col("behind") > 60 * delay) for delay in delays]
    return list(behind.agg(*counts).first() or ())
