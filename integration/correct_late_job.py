"""Late trips correct windows, in a process that a test can kill: see `test_correct_late.py`.

Arguments: the broker, the topic, the store, and the checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time
from pyspark_tseries import correct_late

VALUES = ("trips", "minutes", "longest")


def main() -> None:
    """Correct until the end of the topic."""
    from spark_session import local_spark

    bootstrap, topic, store, checkpoint = sys.argv[1:]
    spark = local_spark("corrections", spark_sql_adaptive_enabled="false")
    rows = read_trips(spark, bootstrap, topic, "10 seconds", maxOffsetsPerTrigger="1000")
    correct(rows, Path(store), Path(checkpoint))
    spark.stop()


def read_trips(
    spark: SparkSession, bootstrap: str, topic: str, delay: str, **options: str
) -> DataFrame:
    """Trips with CTIs; those that come too late for the delay are flagged."""
    given = {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "startTime": "departed",
        "ctiFrequency": "1",
        "ctiDelay": delay,
        "finalCti": "true",
        "violationPolicy": "flag",
        **options,
    }
    columns = "station string, minutes decimal(20,1), start_time timestamp, violation string"
    stream = spark.readStream.format("timestream").options(**given)
    return stream.schema(f"{columns}, cti timestamp").load()


def write_hours(rows: DataFrame, store: Path) -> None:
    """The windows of the trips in time."""
    hours = (
        advance_time(rows)
        .groupBy(F.col("station").alias("series"), F.window("start_time", "1 hour").alias("hour"))
        .agg(*(column.alias(name) for name, (column, _) in aggregates().items()))
        .select(
            "series",
            F.col("hour.start").alias("timestamp"),
            F.col("hour.start").alias("hour"),
            *VALUES,
        )
    )
    writer = hours.writeStream.format("tseries").option("retainedRange", "unlimited")
    writer = writer.option("ctiDelay", "1 hour").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{store}-checkpoint").start(str(store)).awaitTermination()


def correct(rows: DataFrame, store: Path, checkpoint: Path) -> None:
    """The corrections by the trips that were too late."""
    corrections = correct_late(
        rows, str(store), aggregates(), series="station", window="1 hour", start="hour"
    )
    corrections = corrections.option("checkpointLocation", str(checkpoint))
    corrections.trigger(availableNow=True).start().awaitTermination()


def aggregates() -> dict[str, Any]:
    """Trips of a window, as `correct_late` takes them."""
    return {
        "trips": (F.count("minutes"), "sum"),
        "minutes": (F.sum("minutes").cast("decimal(20,1)"), "sum"),
        "longest": (F.max("minutes"), "max"),
    }


if __name__ == "__main__":
    main()
