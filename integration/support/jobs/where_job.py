"""A job that filters in the source, and folds the rest: `where_job.py BOOTSTRAP TOPIC PLACE`.

Its batches are small, so that Spark gets them with their tasks. Run again, it resumes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

SCHEMA = "station string, number long, start_time timestamp, cti timestamp"
WHERE = "station in ('a', 'c') and not (number between 10 and 19)"
OPTIONS = {"valueFormat": "json", "ctiFrequency": "1", "ctiDelay": "5 seconds"}
AGGREGATES = {"rows": "count", "numbers": ("sum", "number")}


def configure(reader: Any, bootstrap: str, topic: str, *, filters: bool) -> Any:
    """The reader of a topic, to its end."""
    place = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    options = {**OPTIONS, **place, "transport": "kafka", "finalCti": "true"}
    reader = reader.format("timestream").options(**options).option("startingOffsets", "earliest")
    return (reader.option("where", WHERE) if filters else reader).schema(SCHEMA)


def main() -> None:
    """Run to the end."""
    from spark_session import local_spark

    from pyspark_timestream import aggregate_windows

    bootstrap, topic, place = sys.argv[1:]
    spark = local_spark("where")
    reader = configure(spark.readStream, bootstrap, topic, filters=True)
    reader = reader.option("maxOffsetsPerTrigger", "40")
    made = aggregate_windows(reader, "10 seconds", AGGREGATES, by="station", slide="4 seconds")
    rows = made.select("station", F.col("window.start").alias("start"), *AGGREGATES)
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(Path(place) / "ck"))
    writer.start(str(Path(place) / "rows")).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
