"""The jobs of large sizes; each runs in a process of its own and returns its figures."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from spark_session import local_spark

from pyspark_timestream import advance_time
from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.compactor import compact as compact_store

APPENDED: Final = 40
"""How many commits fill the large store."""

EVENTS_OF_A_SERIES: Final = 1_000
START_US: Final = 1_700_000_000_000_000

Figures = dict[str, Any]


def partitions(bootstrap: str, topic: str, count: int) -> Figures:
    """Count by device and minute what many partitions have."""
    rows = _read(bootstrap, topic, 5 * count, "device long, start_time timestamp, cti timestamp")
    return _run(_windows(rows, "device"))


def series(bootstrap: str, topic: str, count: int) -> Figures:
    """Windows of as many series, into a store."""
    rows = _read(bootstrap, topic, count, "device long, start_time timestamp, cti timestamp")
    device = F.col("device").cast("string").alias("series")
    start = F.col("window.start").alias("timestamp")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        TimeSeries.create(place + "/store", {"count": pa.int64()}, "limit 10")
        found = _run(_windows(rows, "device").select(device, start, "count"), place + "/store")
        return found | {"stored": TimeSeries.open(place + "/store").describe()["events"]}


def values(bootstrap: str, topic: str, count: int) -> Figures:
    """Read large values, all columns."""
    return _run(_read(bootstrap, topic, count, "value binary, partition int, offset long", ""))


def stored_values(bootstrap: str, topic: str, count: int) -> Figures:
    """Large values into a store, and the newest of each series back."""
    rows = _read(bootstrap, topic, count, "value binary, partition int, offset long", "")
    frame = rows.select(
        F.concat(F.lit("p"), F.col("partition")).alias("series"),
        F.timestamp_micros("offset").alias("timestamp"),
        F.col("value").alias("body"),
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        TimeSeries.create(place + "/store", {"body": pa.binary()}, "unlimited")
        found = _run(frame, place + "/store")
        began = time.monotonic()
        compact_store(place + "/store")
        compacted_s = time.monotonic() - began
        spark = local_spark("load")
        back = spark.read.format("tseries").load(place + "/store")
        held: Any = back.agg(F.count("*"), F.sum(F.length("body"))).first()
        return found | {"read back": held[0], "bytes": held[1], "compaction s": compacted_s}


def ctis(bootstrap: str, topic: str, count: int) -> Figures:
    """A CTI after every record, into windows."""
    rows = _read(bootstrap, topic, count, "device long, start_time timestamp, cti timestamp")
    return _run(_windows(rows, "device"))


def writers(bootstrap: str, topic: str, count: int) -> Figures:
    """As many writers as records of a batch mark one partition."""
    schema = "device long, start_time timestamp, cti timestamp"
    rows = _read(bootstrap, topic, count, schema, frequency="", ctiHeader="cti")
    return _run(_windows(rows, "device"))


def clocks(bootstrap: str, topic: str, count: int) -> Figures:
    """As many writers as records of a batch, each with a clock."""
    schema = "device long, start_time timestamp, cti timestamp"
    rows = _read(bootstrap, topic, count, schema, writerFrom="field:device")
    return _run(_windows(rows, "device"))


def _read(
    bootstrap: str, topic: str, most: int, schema: str, time_field: str = "ts",
    frequency: str = "1", **options: str,
) -> DataFrame:  # fmt: skip
    spark = local_spark("load", spark_sql_adaptive_enabled="false")
    reader = spark.readStream.format("timestream").option("transport", "kafka")
    reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(most))
    reader = reader.options(**options)
    if time_field:
        reader = reader.option("valueFormat", "json").option("startTime", time_field)
        if frequency:
            reader = reader.option("ctiFrequency", frequency).option("ctiDelay", "0 seconds")
    return reader.schema(schema).load()


def _windows(rows: DataFrame, *by: str) -> DataFrame:
    window = F.window("start_time", "1 minute").alias("window")
    return advance_time(rows).groupBy(*by, window).count()


def _run(frame: DataFrame, store: str | None = None) -> Figures:
    """All batches of what there is; the time of the longest, and how many rows came."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = frame.writeStream.format("noop" if store is None else "tseries")
        writer = writer.option("checkpointLocation", checkpoint).outputMode("append")
        writer = writer.trigger(availableNow=True)
        query = writer.start() if store is None else writer.start(store)
        query.awaitTermination()
        every: list[Any] = [each for each in query.recentProgress if each.numInputRows]
    took = [each.durationMs["triggerExecution"] / 1000 for each in every]
    rows = [each.numInputRows for each in every]
    middle = statistics.median(took)
    return {"seconds": max(took), "median s": middle, "batches": len(took), "rows": max(rows)}


# -- a large store ---------------------------------------------------------------------------------


def append(place: str, count: int) -> Figures:
    """Fill a store in `APPENDED` commits, every series in each."""
    store = TimeSeries.create(place, {"value": pa.float64()}, "unlimited", auto_compact=False)
    took = []
    for table in _tables(count):
        began = time.monotonic()
        store.append_many(table)
        took.append(time.monotonic() - began)
    size_mb = sum(path.stat().st_size for path in Path(place).rglob("*.parquet")) / 1e6
    return {
        "seconds": max(took), "median s": statistics.median(took), "batches": len(took),
        "rows": count // APPENDED, "disk MB": size_mb,
    }  # fmt: skip


def _tables(count: int) -> Iterator[pa.Table]:
    series = max(count // EVENTS_OF_A_SERIES, 1)
    each = count // APPENDED // series
    names = pa.array([f"s{number:06}" for number in range(series)])
    for commit in range(APPENDED):
        which = np.tile(np.arange(series, dtype=np.int32), each)
        at = np.repeat(np.arange(each), series) + commit * each
        yield pa.table(
            {
                "series": pa.DictionaryArray.from_arrays(pa.array(which), names).cast(pa.string()),
                "timestamp": pa.array(START_US + at * 10_000_000).cast(pa.timestamp("us", "UTC")),
                "value": pa.array((which * 31 + at) % 1009 / 7),
            }
        )


def compact(place: str, count: int) -> Figures:
    """Merge all files of it."""
    began = time.monotonic()
    done = compact_store(place)
    taken = time.monotonic() - began
    return {"seconds": taken, "files before": done.files_before, "files after": done.files_after}


def ask(place: str, count: int) -> Figures:
    """Open it, and ask what people ask."""
    series = count // EVENTS_OF_A_SERIES
    began = time.monotonic()
    store = TimeSeries.open(place)
    name = f"s{series // 2:06}"
    found = store.range_query().from_start().select_from(name)
    one_s = time.monotonic() - began
    if len(found) != EVENTS_OF_A_SERIES:
        raise ValueError(f"{len(found)} events of {name}, not {EVENTS_OF_A_SERIES}")
    newest = store.latest()
    all_s = time.monotonic() - began - one_s
    if len(newest) != series:
        raise ValueError(f"{len(newest)} newest events, not {series}")
    return {"seconds": one_s + all_s, "one series s": one_s, "all newest s": all_s}
