"""A job with windows that the source folds, into files; it can be killed and run again."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_session import local_spark

SCHEMA = "station string, number long, start_time timestamp, cti timestamp"
AGGREGATES = {"rows": "count", "numbers": ("sum", "number"), "last": ("max", "number")}


def configure(reader: Any, bootstrap: str, topic: str) -> Any:
    """The reader of readings that are at most five seconds late."""
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "ctiFrequency": "1",
        "ctiDelay": "5 seconds",
        "finalCti": "true",
    }
    return reader.format("timestream").options(**options).schema(SCHEMA)


def folded(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Overlapping windows of the readings, forty a batch."""
    from pyspark_timestream import aggregate_windows

    reader = configure(spark.readStream, bootstrap, topic).option("maxOffsetsPerTrigger", "40")
    made = aggregate_windows(reader, "10 seconds", AGGREGATES, by="station", slide="4 seconds")
    return made.select("station", F.col("window.start").alias("start"), *AGGREGATES)


def main() -> None:
    """Run to the end: `fold_job.py BOOTSTRAP TOPIC ROWS CHECKPOINT`; run again, it resumes."""
    bootstrap, topic, rows, checkpoint = sys.argv[1:]
    spark = local_spark("fold")
    writer = folded(spark, bootstrap, topic).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start(rows).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
