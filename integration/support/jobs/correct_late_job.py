"""Late flights correct hours, in a process that a test can kill: see `test_correct_late.py`.

Arguments: the broker, the topic, the store, and the checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flights_data import HARMLESS_DELAY
from lengths import repetitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time
from pyspark_tseries import correct_late

VALUES = ("flights", "minutes", "longest")
SMALL_DELAY, LARGE_DELAY = "2 hours", HARMLESS_DELAY
"""A flight is reported when it lands, so many come more than two hours behind others."""


def main() -> None:
    """Correct until the end of the topic."""
    from spark_session import local_spark

    bootstrap, topic, store, checkpoint = sys.argv[1:]
    spark = local_spark("corrections", spark_sql_adaptive_enabled="false")
    limit = str(repetitions(1_000, 40_000))
    rows = read_flights(spark, bootstrap, topic, SMALL_DELAY, maxOffsetsPerTrigger=limit)
    correct(rows, Path(store), Path(checkpoint)).awaitTermination()
    spark.stop()


def read_flights(
    spark: SparkSession, bootstrap: str, topic: str, delay: str, **options: str
) -> DataFrame:
    """Departures with CTIs; those that are reported too late for the delay are flagged."""
    given = {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "startTime": "departure",
        "ctiFrequency": "20",
        "ctiDelay": delay,
        "finalCti": "true",
        "violationPolicy": "flag",
        **options,
    }
    columns = "origin string, dep_delay decimal(6,1), start_time timestamp, violation string"
    stream = spark.readStream.format("timestream").options(**given)
    return stream.schema(f"{columns}, cti timestamp").load()


def write_hours(rows: DataFrame, store: Path) -> Any:
    """Start writing the windows of the flights in time."""
    hours = (
        advance_time(rows)
        .groupBy(F.col("origin").alias("series"), F.window("start_time", "1 hour").alias("window"))
        .agg(*(column.alias(name) for name, (column, _) in aggregates().items()))
        .select(
            "series",
            F.col("window.start").alias("timestamp"),
            F.col("window.start").alias("hour"),
            *VALUES,
        )
    )
    writer = hours.writeStream.format("tseries").option("retainedRange", "unlimited")
    writer = writer.option("ctiDelay", "1 hour").trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{store}-checkpoint").start(str(store))


def correct(rows: DataFrame, store: Path, checkpoint: Path) -> Any:
    """Start the corrections by the flights that were too late."""
    corrections = correct_late(
        rows, str(store), aggregates(), series="origin", window="1 hour", start="hour"
    )
    corrections = corrections.option("checkpointLocation", str(checkpoint))
    return corrections.trigger(availableNow=True).start()


def aggregates() -> dict[str, Any]:
    """Departures of a window and their delays, as `correct_late` takes them."""
    return {
        "flights": (F.count("*"), "sum"),
        "minutes": (F.sum("dep_delay").cast("decimal(20,1)"), "sum"),
        "longest": (F.max("dep_delay").cast("decimal(20,1)"), "max"),
    }


if __name__ == "__main__":
    main()
