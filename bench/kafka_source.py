"""Kafka -> noop and Kafka -> JSON -> one-minute windows, against Spark's own Kafka source.

Ours comes twice: with the native gather, and without it (`TIMESTREAM_NATIVE`); which of the two the
workers have used is looked up in what they have loaded. All read the same topic in one batch, in
turns, each in a session of its own. Before that all deliver the same records, which is checked by
their number, offsets and values, or by the fields and times that were parsed.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kafka_records import filled
from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sessions import Apart, path_taken
from side_by_side import Comparison, Done, compare, each_against_peer, report
from streams import one_batch, summary

from pyspark_timestream.kafka.client.native.library import load_gather

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))
from broker import Broker, broker
from spark_session import local_spark

PARTITIONS = 4
RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
WARM_UP = 3
"""Rounds until both have met the JVM's last compiler."""

JSON = "device long, reading double"


def spark_source(spark: SparkSession, kafka: Broker, topic: str, **more: str) -> DataFrame:
    """Spark's own Kafka source; with `more` options."""
    reader = spark.readStream.format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    return reader.option("startingOffsets", "earliest").options(**more).load()


def timestream(spark: SparkSession, kafka: Broker, topic: str, schema: str = "") -> DataFrame:
    """Ours, with CTIs on."""
    reader = spark.readStream.format("timestream").option("transport", "kafka")
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("ctiFrequency", "10 seconds").option("ctiDelay", "1 second")
    if schema:
        reader = reader.option("valueFormat", "json").option("startTime", "ts").schema(schema)
    return reader.load()


def spark_parsed(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """`from_json`, and the event time."""
    parsed = F.from_json(F.col("value").cast("string"), JSON + ", ts long").alias("v")
    rows = spark_source(spark, kafka, topic).select(parsed).select("v.*")
    return rows.withColumn("start_time", F.timestamp_millis("ts"))


def timestream_parsed(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """The same of ours, with CTIs."""
    return timestream(spark, kafka, topic, f"{JSON}, start_time timestamp, cti timestamp")


def spark_windows(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """A one-minute average."""
    return minutes(spark_parsed(spark, kafka, topic).withWatermark("start_time", "1 second"))


def timestream_windows(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """The same of ours, released by CTIs."""
    from pyspark_timestream import advance_time

    return minutes(advance_time(timestream_parsed(spark, kafka, topic)))


def minutes(rows: DataFrame) -> DataFrame:
    """The average per device and minute."""
    return rows.groupBy("device", F.window("start_time", "1 minute")).agg(F.avg("reading"))


def data_rows(frame: DataFrame) -> DataFrame:
    """Without CTI rows."""
    return frame.where("cti IS NULL") if "cti" in frame.columns else frame


RECORD_SUMS = {
    "records": "count(*)",
    "offsets": "sum(offset)",
    "keys": "sum(crc32(key))",
    "values": "sum(crc32(value))",
    "timestamps": "sum(unix_millis(timestamp))",
}
FIELD_SUMS = {
    "records": "count(*)",
    "devices": "sum(device)",
    "readings": "sum(cast(round(reading * 7) AS long))",
    "times": "sum(unix_millis(start_time))",
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


@functools.cache
def here(bootstrap: str) -> tuple[SparkSession, Broker]:
    """The session of this process, and the broker that another has started."""
    return local_spark("bench", spark_jars=kafka_jars()), Broker(bootstrap, "given")


def run(way: str, job: str, bootstrap: str, topic: str, count: int) -> Done:
    """One run of a contender, in its process.

    Raises:
        SystemExit: the workers did not read by the path that was asked for.
    """
    source, _ = WAYS[way]
    done = one_batch(JOBS[job][source](*here(bootstrap), topic), count, extra=0.01)
    if source == "timestream" and path_taken() != ("native" if way == "native" else "python"):
        raise SystemExit(f"{job}, {way}: the workers have used the path '{path_taken()}'")
    return done


def check(way: str, job: str, bootstrap: str, topic: str) -> dict[str, Any]:
    """What a contender's records sum up to."""
    sources, sums = CHECKED[job]
    return summary(data_rows(sources[WAYS[way][0]](*here(bootstrap), topic)), sums)


def measure(count: int = RECORDS) -> Iterator[Comparison]:
    """Every job, by Spark's source and by both ways of ours."""
    kafka_jars()
    with ExitStack() as open_:
        kafka = open_.enter_context(broker(say=lambda _: None))
        topic = filled(kafka, count, PARTITIONS)
        ways = {
            way: settings
            for way, (_, settings) in WAYS.items()
            if way != "native" or load_gather() is not None
        }
        apart = {way: open_.enter_context(Apart(**settings)) for way, settings in ways.items()}
        for job in JOBS:
            given = (job, kafka.bootstrap, topic)
            checks = {
                way: functools.partial(each.call, check, way, *given) for way, each in apart.items()
            }
            runs = {way: each.contender(run, way, *given, count) for way, each in apart.items()}
            found = compare(job, runs, count, warm_up=WARM_UP, checks=checks)
            yield from each_against_peer(found)


if __name__ == "__main__":
    report(__file__, measure())
