"""The queries of `make.py`, in words that are public, so that old and new versions run the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_timestream import advance_time

PARTITIONS = 2
TRIPS, WRITERS = "before-the-move-trips", "before-the-move-writers"
"""Topics of that many partitions; the queries stopped in the middle of their records."""

MAX_TICKS = 181


def kafka_options(bootstrap: str, topic: str) -> dict[str, str]:
    """The options of the query over `topic`."""
    timed = {
        TRIPS: {
            "startTime": "departed",
            "ctiFrequency": "5",
            "ctiDelay": "3 minutes",
            "violationPolicy": "flag",
        },
        WRITERS: {
            "startTime": "departed",
            "ctiHeader": "cti",
            "writerTimeout": "1 hour",
            "violationPolicy": "flag",
        },
    }
    return {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "maxOffsetsPerTrigger": "32",
        **timed[topic],
    }


SCHEMA = (
    "station string, minutes double, partition int, offset long, "
    "start_time timestamp, violation string, cti timestamp"
)


def kafka_rows(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """All rows of `topic`, CTIs included."""
    reader = spark.readStream.format("timestream").options(**kafka_options(bootstrap, topic))
    return reader.schema(SCHEMA).load()


def hourly_trips(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Trips per station and hour, as rows of a store."""
    hour = F.window("start_time", "1 hour").alias("hour")
    trips = advance_time(kafka_rows(spark, bootstrap, TRIPS)).groupBy("station", hour)
    sums = trips.agg(F.count("*").alias("trips"), F.round(F.sum("minutes"), 1).alias("minutes"))
    return sums.select(
        F.col("station").alias("series"), F.col("hour.start").alias("timestamp"), "trips", "minutes"
    )


def hourly_ticks(spark: SparkSession) -> DataFrame:
    """Ticks per simulated hour, as rows of a store."""
    options = {
        "timeZero": "2024-01-01T00:00:00Z",
        "period": "60",
        "rate": "max",
        "maxCount": str(MAX_TICKS),
        "maxTicksPerTrigger": "20",
    }
    ticks = spark.readStream.format("timestream").options(**options).load()
    hour = F.window("timestamp", "1 hour").alias("hour")
    counts = ticks.withWatermark("timestamp", "0 seconds").groupBy(hour).count()
    return counts.select(F.col("hour.start").alias("timestamp"), F.col("count").alias("ticks"))


def into_store(frame: DataFrame, place: Path, **options: str) -> DataStreamWriter:
    """Write `frame` into the store `place/store`."""
    writer = frame.writeStream.format("tseries").options(retainedRange="unlimited", **options)
    writer = writer.option("path", str(place / "store"))
    return writer.option("checkpointLocation", str(place / "checkpoint"))


def into_json(frame: DataFrame, place: Path) -> DataStreamWriter:
    """Write `frame` into a folder of JSON lines a batch under `place/rows`."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").json(str(place / "rows" / f"{number:03d}"))

    return frame.writeStream.foreachBatch(write).option(
        "checkpointLocation", str(place / "checkpoint")
    )


def rows_by_partition(place: Path) -> dict[int | None, list[Mapping[str, Any]]]:
    """What `into_json` wrote: the rows of each partition, in order; CTIs lie under None."""
    found: dict[int | None, list[Mapping[str, Any]]] = {}
    for file in sorted((place / "rows").glob("*/part-*.json")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row.get("partition"), []).append(row)
    return found
