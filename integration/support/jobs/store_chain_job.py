"""Jobs in a row, in a process that a test can kill: see `store/test_cti.py`, `test_clusters.py`.

A topic goes into windows of ten minutes in one store. That store's CTIs drive windows of an hour in
another store and in another topic. Arguments: the broker, both topics, the directory of stores and
checkpoints, and the master.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import latest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from writing import fail_once

from pyspark_timestream import advance_time
from pyspark_timestream.core.instants import FINAL_US
from pyspark_tseries import TimeSeries

SCHEMA = "series string, total long, start_time timestamp, cti timestamp"
STAGES = ("fine", "coarse", "topic")
FINAL_MS = FINAL_US // 1000
LIMIT_S = 400


def main() -> None:
    """Run all queries until the last results are final."""
    from spark_session import local_spark

    bootstrap, source, target, place, master = sys.argv[1:]
    spark = local_spark("chain", master, spark_sql_adaptive_enabled="false")
    queries = start_chain(spark, bootstrap, source, target, Path(place))
    wait_until_ended(queries, Path(place))
    spark.stop()


def start_chain(
    spark: SparkSession,
    bootstrap: str,
    source: str,
    target: str,
    place: Path,
    stages: Sequence[str] = STAGES,
) -> dict[str, Any]:
    """Start the queries: the windows of the topic, and the queries that read their store."""
    fine, coarse = place / "fine", place / "coarse"
    for store in (fine, coarse):
        if not store.exists():
            columns = {"total": pa.int64(), "rows": pa.int64()}
            TimeSeries.create(str(store), columns, retained_range="unlimited")
    minutes = sum_windows(read_topic(spark, bootstrap, source), "start_time", "10 minutes")
    hours = sum_windows(subscribe(spark, fine), "timestamp", "1 hour", "rows")
    begin = {
        "fine": lambda: write(minutes, fine, "10 minutes"),
        "coarse": lambda: write(hours, coarse, "1 hour"),
        "topic": lambda: write_topic(hours, bootstrap, target, place / "topic-checkpoint"),
    }
    return {stage: begin[stage]() for stage in stages}


def wait_until_ended(queries: dict[str, Any], place: Path) -> None:
    """Wait until the checkpoint of every query is at the last watermark, and stop them."""
    deadline = time.monotonic() + LIMIT_S
    while not all(has_ended(place / f"{stage}-checkpoint") for stage in queries):
        for query in queries.values():
            assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, [each.lastProgress for each in queries.values()]
        time.sleep(0.1)
    for query in queries.values():
        query.stop()


def has_ended(checkpoint: Path) -> bool:
    """Whether all windows of a query are written, so that nothing follows."""
    batch = latest(checkpoint / "commits")
    if batch < 0:
        return False
    _, settings, *_ = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return bool(json.loads(settings)["batchWatermarkMs"] == FINAL_MS)


def read_topic(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """The rows of the first topic, up to 30 minutes out of order."""
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "ctiFrequency": "1",
        "ctiDelay": "30 minutes",
        "finalCti": "true",
        "violationPolicy": "fail",
        "maxOffsetsPerTrigger": "400",
    }
    return spark.readStream.format("timestream").schema(SCHEMA).options(**options).load()


def subscribe(spark: SparkSession, store: Path) -> DataFrame:
    """The events of a store with its CTIs; its promise does not cover edits."""
    options = {"cti": "true", "subscriptionRange": "unlimited", "maxEventsPerTrigger": "150"}
    rows = spark.readStream.format("tseries").options(**options).load(str(store))
    return rows.where("original_sequence IS NULL")


def sum_windows(rows: DataFrame, event_time: str, length: str, count: str = "1") -> DataFrame:
    """Sums by series and window, which is named by its start."""
    window = F.window(event_time, length).alias("window")
    sums = F.sum("total").alias("total"), F.sum(F.expr(count)).cast("bigint").alias("rows")
    found = advance_time(rows, event_time).groupBy("series", window).agg(*sums)
    return found.select("series", F.col("window.start").alias("timestamp"), "total", "rows")


def write(rows: DataFrame, store: Path, delay: str) -> Any:
    """A query into a store, with its checkpoint beside it."""
    writer = rows.writeStream.format("tseries").option("ctiDelay", delay)
    if store.name == "fine":
        writer = writer.trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{store}-checkpoint").start(str(store))


def write_topic(rows: DataFrame, bootstrap: str, topic: str, checkpoint: Path) -> Any:
    """A query into the last topic; its records carry the start of their hour.

    The first attempt at one row fails, so that Spark tries its task again.
    """
    failing = F.udf(fail_once('"series":"s3"', checkpoint.with_name("failed")), StringType())
    record = F.to_json(F.struct("series", "timestamp", "total", "rows"))
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "topic": topic,
        "writer": "job",
        "ctiFrom": "watermark",
        "ctiDelay": "1 hour",
        "checkpointLocation": str(checkpoint),
    }
    records = rows.select(F.col("series").alias("key"), failing(record).alias("value"))
    return records.writeStream.format("timestream").options(**options).start()


if __name__ == "__main__":
    main()
