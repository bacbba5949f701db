"""Programs of a client of Spark Connect: test_connect.py runs each in its own process.

A process has sessions of Spark Connect or classic ones, never both. So this module is imported by
the process of the tests as well, but only the client's calls its functions; they take and return
plain values.
"""

from __future__ import annotations

import contextlib
import io
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka_query import DAY_MS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DAY_S = DAY_MS // 1000
SECOND = F.unix_micros
FLAGGED = {"ctiFrequency": "1", "finalCti": "true", "violationPolicy": "flag"}
COUNTS = ("series", "window_start", "events")

session: Any = None
"""The client's only one."""


def connect(url: str) -> None:
    """Open the session as users are told to; a warning is an error."""
    from pyspark_timestream import configure_spark

    global session
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = configure_spark(SparkSession.builder.remote(url)).getOrCreate()


def read_settings() -> tuple[str, str, bool]:
    """The module of the session, its time zone, and whether this process has a JVM."""
    from pyspark import SparkContext

    zone = session.conf.get("spark.sql.session.timeZone")
    return type(session).__module__, zone, SparkContext._jvm is not None


def store_clock(place: str) -> list[tuple[float, int]]:
    """The ticks of a bounded clock, through a store; what a batch read of it finds."""
    from pyspark_timestream import await_end

    writer = _clock(3).writeStream.format("tseries").option("seriesName", "clock")
    writer = writer.option("retainedRange", "unlimited")
    await_end(writer.option("checkpointLocation", f"{place}/c").start(f"{place}/store"))
    rows = session.read.format("tseries").load(f"{place}/store").orderBy("timestamp").collect()
    return [(_second(row.timestamp), row.value) for row in rows]


def _clock(count: int) -> DataFrame:
    options = {"timeZero": "2024-01-01T00:00:00Z", "period": "10", "rate": "max"}
    return session.readStream.format("timestream").options(**options, maxCount=count).load()


def _second(instant: Any) -> float:
    # Spark Connect gives times in the session's zone, UTC, without saying so.
    return (instant - type(instant)(2024, 1, 1)).total_seconds()


def _topic(bootstrap: str, name: str, **options: str) -> dict[str, str]:
    return {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": name,
        "startingOffsets": "earliest",
        **options,
    }


def count_windows(bootstrap: str, topic: str, place: str) -> list[list[Any]]:
    """Windows of ten seconds, into a store, then corrected by late rows; as they were and are."""
    from pyspark_timestream import advance_time
    from pyspark_tseries import correct_late

    options = _topic(bootstrap, topic, **FLAGGED)
    rows = session.readStream.format("timestream").options(**options).load()
    rows = rows.withColumn("series", F.lit("all"))
    windows = advance_time(rows).groupBy("series", F.window("start_time", "10 seconds").alias("w"))
    counted = windows.agg(F.count("*").alias("events"))
    start = F.col("w.start").alias("window_start")
    counted = counted.select("series", start, F.col("w.start").alias("timestamp"), "events")
    writer = counted.writeStream.format("tseries").option("ctiDelay", "10 seconds")
    writer = writer.option("retainedRange", "unlimited").trigger(availableNow=True)
    if not Path(f"{place}/store").exists():
        writer.option("checkpointLocation", f"{place}/c").start(f"{place}/store").awaitTermination()
    before = _read_counts(place)
    corrected = correct_late(
        rows, f"{place}/store", {"events": (F.count("*"), "sum")}, series="series",
        window="10 seconds",
    )  # fmt: skip
    corrected = corrected.option("checkpointLocation", f"{place}/late").trigger(availableNow=True)
    corrected.start().awaitTermination()
    return [before, _read_counts(place)]


def count_filtered(place: str) -> dict[str, Any]:
    """Filters before `advance_time` over Spark Connect: released rows, and refusals."""
    from pyspark_timestream import advance_time

    schema = "station string, start_time timestamp, n double, cti timestamp"
    rows = session.readStream.schema(schema).json(place)
    steps = {
        "where": lambda df: df.where("station = 'a'"),
        "column": lambda df: df.filter(F.col("station") == "a").withColumn("k", F.lit(1)),
        "stated": lambda df: df.where("station = 'a' OR cti IS NOT NULL"),
        "na.drop": lambda df: df.na.drop(subset=["station", "n"]),
        "cti is null": lambda df: df.where("cti IS NULL"),
        "limit": lambda df: df.limit(9),
        "na.drop()": lambda df: df.na.drop(),
    }
    found: dict[str, Any] = {}
    frames = []
    for name, step in steps.items():
        try:
            made = advance_time(step(rows))
            frames.append(made.select(F.lit(name).alias("name"), "start_time"))
        except Exception as error:
            found[name] = type(error).__name__
    united = frames[0]
    for frame in frames[1:]:
        united = united.union(frame)
    windows = united.groupBy("name", F.window("start_time", "1 minute")).count()
    query = windows.writeStream.format("memory").queryName("filtered").trigger(availableNow=True)
    query.option("checkpointLocation", f"{place}-checkpoint").start().awaitTermination()
    for row in session.table("filtered").collect():
        found[row["name"]] = found.get(row["name"], 0) + row["count"]
    return found


def run(url: str, *arguments: str) -> None:
    """`count_windows` in a session of its own."""
    connect(url)
    count_windows(*arguments)


def _read_counts(place: str) -> list[tuple[float, int]]:
    rows = session.read.format("tseries").load(f"{place}/store").select(*COUNTS).collect()
    return sorted((_second(row.window_start), row.events) for row in rows)


def pass_on(bootstrap: str, topic: str, place: str) -> list[tuple[float, int]]:
    """The first values of a store, into a topic, with the store's time; the topic's rows."""
    stream = session.readStream.format("tseries").option("cti", "true")
    stream = stream.option("subscriptionRange", "unlimited")
    rows = stream.load(f"{place}/store").where("original_sequence IS NULL")
    value = F.to_json(F.struct(SECOND("window_start").alias("us"), "events"))
    value = F.when(F.col("cti").isNull(), value)
    writer = rows.select(value.alias("value"), "cti").writeStream.format("timestream")
    writer = writer.options(**{
        "transport": "kafka", "kafka.bootstrap.servers": bootstrap, "topic": topic,
        "writer": "pass-on", "checkpointLocation": f"{place}/on",
    })  # fmt: skip
    writer.trigger(availableNow=True).start().awaitTermination()
    options = _topic(bootstrap, topic, valueFormat="json", startTime="timestamp")
    found = session.read.format("timestream").options(**options).schema("us long, events long")
    # Marks have no value.
    rows = found.load().where("us IS NOT NULL").collect()
    return sorted((row.us / 1e6 - DAY_S, row.events) for row in rows)


def order_events(bootstrap: str, topic: str, place: str) -> list[tuple[float, float, int]]:
    """Events moved by a minute, with lifetimes and the CTIs of a clock, in order of time."""
    from pyspark_timestream import alter_lifetime, import_ctis, order_by_time, shift_time

    given = _topic(bootstrap, topic, valueFormat="json", startTime="timestamp")
    stream = session.readStream.format("timestream").options(**given, maxOffsetsPerTrigger="1")
    slow = stream.schema("station string, number long, start_time timestamp").load()
    lasting = alter_lifetime(import_ctis(slow, _clock(4)), "5 seconds")
    ordered = order_by_time(shift_time(lasting, "1 minute", end_time="end_time"), "station")

    def keep(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("unix_micros(start_time)", "unix_micros(end_time)", "number")
        rows.write.mode("overwrite").parquet(f"{place}/batch={number:04d}")

    writer = ordered.writeStream.foreachBatch(keep).option("checkpointLocation", f"{place}-c")
    writer.trigger(availableNow=True).start().awaitTermination()
    found = []
    for each in sorted(Path(place).glob("batch=*")):
        found += [tuple(row) for row in session.read.parquet(str(each)).collect()]
    return [(start / 1e6 - DAY_S, end / 1e6 - DAY_S, number) for start, end, number in found]


@contextmanager
def _metrics() -> Iterator[Any]:
    from pyspark_timestream import TimeMetrics

    metrics = TimeMetrics(port=0)
    session.streams.addListener(metrics)
    try:
        yield metrics
    finally:
        session.streams.removeListener(metrics)
        metrics.close()


def end_running(bootstrap: str, topic: str, place: str) -> dict[str, Any]:
    """A running query explained, measured and told to end; everything it says of itself."""
    from pyspark_timestream import advance_time, end_stream, explain_time

    options = _topic(bootstrap, topic, ctiFrequency="1")
    rows = session.readStream.format("timestream").options(**options).load()
    counts = advance_time(rows).groupBy(F.window("start_time", "10 seconds").alias("w")).count()
    series = counts.select(F.lit("all").alias("series"), "w.start", "count")
    writer = series.writeStream.format("tseries").option("retainedRange", "unlimited")
    with _metrics() as metrics:
        query = writer.option("checkpointLocation", f"{place}/c").start(f"{place}/store")
        try:
            _wait(lambda: len(query.recentProgress) > 1)
            running = str(explain_time(query))
            end_stream(query, timeout_seconds=120)
            ended = str(explain_time(query))
        finally:
            query.stop()
        # The events of a query reach the client a moment after the query has ended.
        _wait(lambda: "timestream_stream_ended{" in metrics.text())
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5) as page:
            text = page.read().decode()
    stored = session.read.format("tseries").load(f"{place}/store").select("start", "count")
    counted = sorted((_second(row.start), row["count"]) for row in stored.collect())
    return {"running": running, "ended": ended, "page": text, "counted": counted}


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ask_in_pipeline() -> list[str]:
    """The answer of each helper in a function of a declarative pipeline."""
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    from pyspark_timestream import (
        SchemaRefused,
        advance_time,
        alter_lifetime,
        import_ctis,
        order_by_time,
        shift_time,
    )

    def refuse(build: Callable[[DataFrame], DataFrame]) -> str:
        try:
            build(_clock(1))
        except SchemaRefused as error:
            return str(error)
        return "not refused"

    graph = create_dataflow_graph(session, None, None, {})
    with add_pipeline_analysis_context(session, graph, "flow"):
        return [
            refuse(advance_time),
            refuse(lambda df: alter_lifetime(df, "1 minute")),
            refuse(lambda df: import_ctis(df, df)),
            refuse(lambda df: order_by_time(df, "value")),
            refuse(lambda df: shift_time(df, "1 minute")),
        ]


def run_blocks(blocks: list[str]) -> str:
    """The output of a page's Python code, block by block, beside this client's session."""
    output = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(output):
        for number, text in enumerate(blocks, 1):
            exec(compile(text, f"block {number}", "exec"), names)
    return output.getvalue()


def fail(bootstrap: str, topic: str, place: str) -> list[str]:
    """The texts of `why` for a failed query and its exception; then the answer of `end_stream`."""
    from pyspark_timestream import end_stream, explain_time, why

    options = _topic(bootstrap, topic, ctiFrequency="1", violationPolicy="fail")
    rows = session.readStream.format("timestream").options(**options).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", f"{place}/c").start()
    said = io.StringIO()
    try:
        query.awaitTermination()
    except Exception as error:
        why(error, file=said)
    why(query, file=said)
    said.write(str(explain_time(query)).splitlines()[1])
    try:
        end_stream(query)
    except ValueError as error:
        said.write(f"\n{error}")
    return said.getvalue().splitlines()
