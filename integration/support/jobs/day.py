"""A day in seconds: a simulated clock, hourly windows per sensor, a time-series store.

No Kafka, no Docker. The clock ticks once a simulated second; three sensors are read at each tick;
Spark's own windows make hourly means of them, and `tseries` keeps those. Run it with `make run`.
"""

import json
import math
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from spark_session import local_spark, read_back

from pyspark_timestream import why
from pyspark_timestream.demo.progress import show_progress

WORK = Path(".work/day").absolute()
DAY_SECONDS = 86_400
REAL_SECONDS = 10
START_SECONDS = 20
"""Seconds for Spark, its Python workers and their first batch, on two cores."""

SENSORS = {"attic": (24.0, 6.0), "cellar": (12.0, 0.5), "garden": (15.0, 9.0)}
"""Sensor -> mean temperature and daily swing, in degrees Celsius."""


def ticks(spark: SparkSession) -> DataFrame:
    """One row a simulated second; the last one is midnight, which closes the last window.

    The cap only makes the bar move: a slow start would otherwise deliver half a day in one batch.
    """
    return (
        spark.readStream.format("timestream")
        .option("timeZero", "2026-01-01T00:00:00Z")
        .option("period", "1")
        .option("maxCount", DAY_SECONDS + 1)
        .option("rate", DAY_SECONDS // REAL_SECONDS)
        .option("maxTicksPerTrigger", DAY_SECONDS // 8)
        .load()
    )


def temperature(sensor: Column) -> Column:
    """Coldest at three, warmest at fifteen o'clock, with a ripple that only looks random."""
    mean = F.create_map(*[F.lit(x) for name, (m, _) in SENSORS.items() for x in (name, m)])[sensor]
    swing = F.create_map(*[F.lit(x) for name, (_, s) in SENSORS.items() for x in (name, s)])[sensor]
    hour = F.col("value") / 3600
    ripple = F.pmod(F.col("value") * 7919, F.lit(101)) / 101 - 0.5
    return mean + swing * F.sin((hour - 9) * (2 * math.pi / 24)) + ripple


def hourly(clock: DataFrame) -> DataFrame:
    """Sensor, hour, and the mean, lowest and highest temperature of that hour."""
    readings = clock.withColumn("sensor", F.explode(F.array(*map(F.lit, SENSORS))))
    readings = readings.withColumn("celsius", temperature(F.col("sensor")))
    windows = readings.withWatermark("timestamp", "0 seconds").groupBy(
        F.col("sensor"), F.window("timestamp", "1 hour").alias("hour")
    )
    return windows.agg(
        F.round(F.mean("celsius"), 2).alias("mean"),
        F.round(F.min("celsius"), 2).alias("lowest"),
        F.round(F.max("celsius"), 2).alias("highest"),
    ).select("sensor", F.col("hour.start").alias("timestamp"), "mean", "lowest", "highest")


def store_hours(hours: DataFrame, store: Path) -> StreamingQuery:
    """The running query; a store keeps two days of hours per sensor."""
    return (
        hours.writeStream.format("tseries")
        .option("seriesColumn", "sensor")
        .option("retainedRange", "limit 48")
        .option("checkpointLocation", str(store.with_name("checkpoint")))
        .start(str(store))
    )


def first_report(query: StreamingQuery) -> None:
    """Return when the first batch has begun, or when nothing will come any more."""
    while query.isActive and not clock_report(query):
        time.sleep(0.1)


def watch(query: StreamingQuery) -> None:
    """Show simulated time until the stream has ended and its last windows are stored."""
    shown = ""
    while query.isActive:
        report = clock_report(query)
        line = progress_line(report) if report else shown
        if line != shown:
            print(f"\r{line}" if sys.stdout.isatty() else line, end=line_end(), flush=True)
            shown = line
        if report.get("endOfStream"):
            query.processAllAvailable()
            query.stop()
        time.sleep(0.1)
    if sys.stdout.isatty():
        print()
    if failure := query.exception():
        raise failure


def clock_report(query: StreamingQuery) -> dict[str, Any]:
    """The time source's last report of itself; empty before its first batch."""
    progress = query.lastProgress
    said = progress.sources[0].latestOffset if progress else None
    return json.loads(said) if said and said != "null" else {}


def progress_line(report: dict[str, Any]) -> str:
    """A bar of the day so far, and the simulated time of the last tick."""
    done = report["nextTick"] / report["maxCount"]
    bar = ("#" * round(40 * done)).ljust(40, ".")
    second = min(report["nextTick"], DAY_SECONDS)
    return f"[{bar}] {second // 3600:02d}:{second // 60 % 60:02d} simulated, {done:4.0%}"


def line_end() -> str:
    """A terminal's line is drawn again, a log's is not."""
    return "" if sys.stdout.isatty() else "\n"


def sparkline(values: list[float]) -> str:
    """One block a value, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (v - low) / ((high - low) or 1))] for v in values)


def stored_series(series: DataFrame) -> tuple[list[Row], str]:
    """The stored rows, in order, and the means of the sensors as a table."""
    rows = series.orderBy("series", "timestamp").collect()
    table = series.groupBy("timestamp").pivot("series", sorted(SENSORS)).agg(F.first("mean"))
    named = table.orderBy("timestamp").withColumnsRenamed({s: f"{s} °C" for s in SENSORS})
    with warnings.catch_warnings():
        # Spark 4.3 warns of each conversion with pandas 3.
        warnings.simplefilter("ignore", FutureWarning)
        return rows, named.toPandas().to_string(index=False)


def show_series(rows: list[Row], table: str) -> None:
    """The stored series as a table and as one line of blocks each."""
    print(f"{table}\n")
    for sensor in sorted(SENSORS):
        means = [row["mean"] for row in rows if row["series"] == sensor]
        print(f"{sensor:>8} {sparkline(means)}  {min(means):5.2f} to {max(means):5.2f} °C")
        if len(means) != 24:
            raise SystemExit(f"{sensor} has {len(means)} hours in the store, and a day has 24")


def simulate(work: Path) -> None:
    """The day into a store under `work`, and then the store's contents."""
    store = work / "store"
    with show_progress("Starting Spark and its Python workers", START_SECONDS):
        spark = local_spark("day", log=work / "spark.log", spark_sql_shuffle_partitions="1")
        query = store_hours(hourly(ticks(spark)), store)
        first_report(query)
    print(f"Simulating a day, {DAY_SECONDS:,} ticks, in some {REAL_SECONDS} s:")
    watch(query)
    with show_progress("Reading the store back", 5):
        rows, table = stored_series(spark.read.format("tseries").load(str(store)))
    show_series(rows, table)
    spark.stop()


def main() -> None:
    """Simulate the day, then say how to read it back."""
    began = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        simulate(WORK)
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None
    except Exception as error:
        why(error, file=sys.stderr)
        raise SystemExit(f"What Spark says of it is in {WORK / 'spark.log'}") from None
    print(f"\nAll of it took {time.monotonic() - began:.0f} s. Read it back with\n")
    print(read_back(WORK / "store"))


if __name__ == "__main__":
    main()
