"""Kafka -> noop and Kafka -> JSON -> one-minute windows, against Spark's own Kafka source.

Ours comes twice: with the native reader, and without it (`TIMESTREAM_NATIVE`); the libraries that
the workers have loaded show which of the two they used. All read the same topic in one batch, in
turns, each in a session of its own. Before that all deliver the same records, which is checked by
their number, offsets and values, or by the fields and times that were parsed.

Three figures each (`streams`), three times: in a session that has run the job before, with the
settings of `configure_spark`, for each number of records (BENCH_RECORDS, as `1000000,40000000`);
the same with Spark's own defaults; and with those of `configure_spark` in a session that has run
nothing, where the session's own start is a figure more. BENCH_SESSIONS says which of them: `warm`,
`defaults`, `cold`, default all. BENCH_WITHOUT_NATIVE=0 leaves out ours without the native reader.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyspark
from broker import Broker, broker
from kafka_records import START_MS, filled
from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sessions import Apart, Fresh, path_taken
from side_by_side import Comparison, Done, by_figure, compare, each_against_peer, report
from sizes import WARM_UP, chosen, records, size
from spark_session import local_spark
from streams import one_batch, summary

from pyspark_timestream import spark_settings
from pyspark_timestream.kafka.client.native_consumer import load_native_reader

PARTITIONS = 4
SIZES: Final = records((1_000_000, 2_000_000, 4_000_000), (100_000,))
RECORDS: Final = SIZES[0]
SESSIONS: Final = chosen("BENCH_SESSIONS", ("warm", "defaults", "cold"), ("warm",))
WITHOUT_NATIVE: Final = os.environ.get("BENCH_WITHOUT_NATIVE", size("1", "0")) == "1"
COLD_ROUNDS: Final = 5

WAITS_LESS: Final = {"kafka.fetch.max.wait.ms": "5"}
"""A setting for Spark's source, as ours by default. With Kafka's default, when a consumer has asked
beyond a task's range, the task waits half a second or more for the answer: ten minutes for 1,000
partitions."""

JSON = "device long, reading double"


def spark_source(spark: SparkSession, kafka: Broker, topic: str, **more: str) -> DataFrame:
    """Spark's own Kafka source; with `more` options."""
    reader = spark.readStream.format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    return reader.option("startingOffsets", "earliest").options(**more).load()


def timestream(
    spark: SparkSession, kafka: Broker, topic: str, schema: str = "", **more: str
) -> DataFrame:
    """Ours, with CTIs on; with `more` options."""
    reader = spark.readStream.format("timestream").option("transport", "kafka")
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("ctiFrequency", "10 seconds").option("ctiDelay", "1 second")
    if schema:
        reader = reader.option("valueFormat", "json").option("startTime", "ts").schema(schema)
    return reader.options(**more).load()


def spark_parsed(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """`from_json`, and the event time."""
    parsed = F.from_json(F.col("value").cast("string"), JSON + ", ts long").alias("v")
    rows = spark_source(spark, kafka, topic).select(parsed).select("v.*")
    return rows.withColumn("start_time", F.timestamp_millis("ts"))


def timestream_parsed(spark: SparkSession, kafka: Broker, topic: str, **more: str) -> DataFrame:
    """The same of ours, with CTIs."""
    return timestream(spark, kafka, topic, f"{JSON}, start_time timestamp, cti timestamp", **more)


def spark_windows(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """A one-minute average."""
    return minutes(spark_parsed(spark, kafka, topic).withWatermark("start_time", "1 second"))


def timestream_windows(spark: SparkSession, kafka: Broker, topic: str, **more: str) -> DataFrame:
    """The same of ours, released by CTIs."""
    from pyspark_timestream import advance_time

    return minutes(advance_time(timestream_parsed(spark, kafka, topic, **more)))


def minutes(rows: DataFrame) -> DataFrame:
    """The average per device and minute."""
    return rows.groupBy("device", F.window("start_time", "1 minute")).agg(F.avg("reading"))


def data_rows(frame: DataFrame) -> DataFrame:
    """Without CTI rows."""
    return frame.where("cti IS NULL") if "cti" in frame.columns else frame


# The sum of 40 million instants would not fit a long.
MS_SINCE = f"sum(unix_millis({{}}) - {START_MS})"
RECORD_SUMS = {
    "records": "count(*)",
    "offsets": "sum(offset)",
    "keys": "sum(crc32(key))",
    "values": "sum(crc32(value))",
    "timestamps": MS_SINCE.format("timestamp"),
}
FIELD_SUMS = {
    "records": "count(*)",
    "devices": "sum(device)",
    "readings": "sum(cast(round(reading * 7) AS long))",
    "times": MS_SINCE.format("start_time"),
}

Make = Callable[[SparkSession, Broker, str], DataFrame]
JOBS: Mapping[str, Mapping[str, Make]] = {
    "Kafka -> noop": {"spark": spark_source, "timestream": timestream},
    "Kafka -> JSON -> window": {"spark": spark_windows, "timestream": timestream_windows},
}
CHECKED: Mapping[str, tuple[Mapping[str, Make], Mapping[str, str]]] = {
    "Kafka -> noop": ({"spark": spark_source, "timestream": timestream}, RECORD_SUMS),
    "Kafka -> JSON -> window": (
        {"spark": spark_parsed, "timestream": timestream_parsed},
        FIELD_SUMS,
    ),
}
WAYS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "spark": ("spark", {}),
    "without native": ("timestream", {"TIMESTREAM_NATIVE": "0"}),
    "native": ("timestream", {"TIMESTREAM_NATIVE": "1"}),
}
"""Contender -> the source, and its session's environment; `native` only where it is compiled."""


DEFAULT, RECOMMENDED = "Spark's defaults", "recommended"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    RECOMMENDED: spark_settings(),
    DEFAULT: {
        "spark.sql.shuffle.partitions": "200",
        "spark.python.unix.domain.socket.enabled": "false",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
    },
}


@functools.cache
def here(bootstrap: str, settings: str = RECOMMENDED) -> tuple[SparkSession, Broker]:
    """The session of this process, and the broker that another has started."""
    if settings == DEFAULT:
        use_spark_as_installed()
    given = {name.replace(".", "_"): value for name, value in SETTINGS[settings].items()}
    return local_spark("bench", spark_jars=kafka_jars(), **given), Broker(bootstrap, "given")


def use_spark_as_installed() -> None:
    """Leave this process's session the Spark home that it has without `configure_spark`."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)


def run(way: str, settings: str, job: str, bootstrap: str, topic: str, count: int) -> Done:
    """One run of a contender, in its process.

    Raises:
        SystemExit: the workers did not read by the path that was asked for.
    """
    source, _ = WAYS[way]
    done = one_batch(JOBS[job][source](*here(bootstrap, settings), topic), count, extra=0.01)
    if source == "timestream" and path_taken() != ("native" if way == "native" else "python"):
        raise SystemExit(f"{job}, {way}: the workers have used the path '{path_taken()}'")
    return done


def run_cold(*given: Any) -> Done:
    """The same with the start of the session as one more figure."""
    began = time.perf_counter()
    done = run(*given)
    whole_s = time.perf_counter() - began
    return done._replace(figures={**done.figures, "session and run": whole_s})


def check(way: str, settings: str, job: str, bootstrap: str, topic: str) -> dict[str, Any]:
    """The sums of a contender's records."""
    sources, sums = CHECKED[job]
    frame = sources[WAYS[way][0]](*here(bootstrap, settings), topic)
    return summary(data_rows(frame), sums)


def fastest() -> list[str]:
    """The contenders of this machine, ours once: the native reader where it is compiled."""
    return ["spark", "native" if load_native_reader() is not None else "without native"]


def warm(
    kafka: Broker,
    topics: Mapping[int, str],
    settings: str,
    ways: Iterable[str],
    label: str = "",
) -> Iterator[Comparison]:
    """Every job and size in sessions that go on, as a row for each of our ways and figure."""
    with ExitStack() as open_:
        apart = {way: open_.enter_context(Apart(**WAYS[way][1])) for way in ways}
        for count, topic in topics.items():
            for job in JOBS:
                given = (settings, job, kafka.bootstrap, topic)
                checks = {
                    way: functools.partial(each.call, check, way, *given)
                    for way, each in apart.items()
                }
                runs = {way: each.contender(run, way, *given, count) for way, each in apart.items()}
                # More than that, a session has warmed up with a job before.
                rounds = WARM_UP if count == RECORDS else 1
                found = compare(f"{job}{label}", runs, count, warm_up=rounds, checks=checks)
                for each in each_against_peer(found):
                    yield from by_figure(each)


def cold(kafka: Broker, topic: str, count: int) -> Iterator[Comparison]:
    """Each run in a session that has run nothing."""
    for job in JOBS:
        with ExitStack() as open_:
            runs = {
                way: open_.enter_context(
                    Fresh(run_cold, way, RECOMMENDED, job, kafka.bootstrap, topic, count)
                )
                for way in fastest()
            }
            found = compare(f"{job}, cold session", runs, count, rounds=COLD_ROUNDS, warm_up=0)
            yield from by_figure(found)


def measure() -> Iterator[Comparison]:
    """Every job, by Spark's source and by ours."""
    kafka_jars()
    with broker(say=lambda _: None) as kafka:
        topics = {count: filled(kafka, count, PARTITIONS) for count in SIZES}
        every = [way for way in WAYS if way != "native" or load_native_reader() is not None]
        ways = every if WITHOUT_NATIVE else fastest()
        if "warm" in SESSIONS:
            yield from warm(kafka, topics, RECOMMENDED, ways)
        if "defaults" in SESSIONS:
            first = {RECORDS: topics[RECORDS]}
            yield from warm(kafka, first, DEFAULT, fastest(), f", {DEFAULT}")
        if "cold" in SESSIONS:
            yield from cold(kafka, topics[RECORDS], RECORDS)


if __name__ == "__main__":
    report(__file__, measure())
