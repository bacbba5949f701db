"""The typical job of `order_by_time`: an out-of-order topic into a store that refuses disorder."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_session import local_spark

SCHEMA = "station string, number long, start_time timestamp, cti timestamp"


def readings(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Readings at most five seconds late, forty a batch, to the present end of the topic."""
    reader = spark.readStream.format("timestream").schema(SCHEMA)
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "ctiFrequency": "1",
        "ctiDelay": "5 seconds",
        "finalCti": "true",
        "violationPolicy": "fail",
        "maxOffsetsPerTrigger": "40",
    }
    return reader.options(**options).load()


def start(rows: DataFrame, store: Path, checkpoint: Path) -> StreamingQuery:
    """Write `rows` as they come; the store refuses a row before the newest of its series."""
    named = rows.select(
        F.col("station").alias("series"), F.col("start_time").alias("timestamp"), "number"
    )
    writer = named.writeStream.format("tseries").option("outOfOrder", "fail")
    writer = writer.option("retainedRange", "unlimited")
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start(str(store))


def main() -> None:
    """Run to the end: `order_job.py BOOTSTRAP TOPIC STORE CHECKPOINT`; run again, it resumes."""
    from pyspark_timestream import order_by_time

    bootstrap, topic, store, checkpoint = sys.argv[1:]
    spark = local_spark("order")
    ordered = order_by_time(readings(spark, bootstrap, topic), "station")
    start(ordered, Path(store), Path(checkpoint)).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
