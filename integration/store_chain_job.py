"""Three jobs in a row, in a process that a test can kill: see `test_store_cti.py`.

A stream with CTIs goes into windows of ten minutes in one store, whose own CTIs drive windows of
an hour in another one. Argument: the directory of stores and checkpoints.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time
from pyspark_tseries import TimeSeries

TICKS = 1200
"""One a minute, from 2026-01-01 on; tick `k` belongs to series `s<k % 7>` and has the value `k`."""

FINAL_YEAR = 9999
LIMIT_S = 400


def main() -> None:
    """Run both queries until the second store has its final CTI."""
    from spark_session import local_spark

    place = Path(sys.argv[1])
    fine, coarse = place / "fine", place / "coarse"
    for store in (fine, coarse):
        if not store.exists():
            columns = {"total": pa.int64(), "rows": pa.int64()}
            TimeSeries.create(str(store), columns, retained_range="unlimited")
    spark = local_spark("chain", spark_sql_adaptive_enabled="false")
    events = read_clock(spark)
    queries = [
        write(sum_windows(events, "start_time", "10 minutes"), fine, "10 minutes"),
        write(sum_windows(subscribe(spark, fine), "timestamp", "1 hour", "rows"), coarse, "1 hour"),
    ]
    deadline = time.monotonic() + LIMIT_S
    while not has_ended(coarse) and all(query.isActive for query in queries):
        assert time.monotonic() < deadline, [query.lastProgress for query in queries]
        time.sleep(0.1)
    for query in queries:
        assert query.isActive, query.exception()
        query.stop()
    spark.stop()


def has_ended(store: Path) -> bool:
    """Whether a store has promised that nothing follows."""
    cti = TimeSeries.open(str(store)).cti()
    return cti is not None and cti.year == FINAL_YEAR


def read_clock(spark: SparkSession, count: int = TICKS) -> DataFrame:
    """A row of data for each tick of timestream's clock, and after it a CTI at its time."""
    options = {"transport": "time", "timeZero": "2026-01-01T00:00:00Z", "period": "60"}
    pace = {"rate": "max", "maxCount": str(count), "maxTicksPerTrigger": "400"}
    ticks = spark.readStream.format("timestream").options(**options, **pace).load()
    final = F.lit("9999-12-31T23:59:59Z").cast("timestamp")
    cti = F.when(F.col("value") == count - 1, final).otherwise(F.col("timestamp"))
    none = F.lit(None)
    series = F.concat(F.lit("s"), F.col("value") % 7)
    data = F.struct(
        series.alias("series"),
        F.col("timestamp").alias("start_time"),
        F.col("value").alias("total"),
        none.cast("timestamp").alias("cti"),
    )
    mark = F.struct(
        none.cast("string").alias("series"),
        none.cast("timestamp").alias("start_time"),
        none.cast("bigint").alias("total"),
        cti.alias("cti"),
    )
    return ticks.select(F.explode(F.array(data, mark)).alias("row")).select("row.*")


def subscribe(spark: SparkSession, store: Path) -> DataFrame:
    """The events of a store with its CTIs; edits are not in its promise."""
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
    """A query into a store, whose checkpoint is beside it."""
    writer = rows.writeStream.format("tseries").option("ctiDelay", delay)
    return writer.option("checkpointLocation", f"{store}-checkpoint").start(str(store))


if __name__ == "__main__":
    main()
