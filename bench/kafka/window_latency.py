"""From a record's time to the time of its count, Kafka to Kafka: Spark's own benchmark.

In the shape of Spark's `RTMKafkaWindowAggregationBenchmark`: 1,000 records a second with 1,000 keys
in 5 partitions, counted by key and minute in update mode, triggers as fast as they come, Spark's
Kafka sink. The latency of a count is the time of its record, as the sink's producer stamps it,
minus the greatest time of the records that it counts; only the newest count of a batch is one. Its
own results, on fifteen cores of other machines, are in Spark's repository; here both sources run on
the same one, in turns, each in a session that has run both before, on settings of
`configure_spark`.

The first seconds of a run are left out. p50, p99 and the worst of all counts of a run.
"""

import functools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from broker import Broker, broker
from kafka_source import here, spark_source, timestream
from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sessions import Apart
from side_by_side import Comparison, Done, by_figure, compare, report
from sizes import size

PER_SECOND: Final = 1_000
PARTITIONS: Final = 5
KEYS: Final = 1_000
SECONDS: Final = size(75, 6)
WARM_UP_S: Final = size(15, 2)
ROUNDS: Final = size(4, 1)
START_S: Final = 60


def counts(spark: SparkSession, kafka: Broker, topic: str, source: str) -> DataFrame:
    """Records by key and minute: how many, and the time of the newest, in ms."""
    if source == "timestream":
        from pyspark_timestream import advance_time

        rows = advance_time(timestream(spark, kafka, topic))
        rows = rows.withColumn("timestamp", F.col("start_time"))
    else:
        rows = spark_source(spark, kafka, topic).withWatermark("timestamp", "1 second")
    newest = F.max(F.unix_millis("timestamp")).alias("newest_ms")
    minutes = rows.groupBy("key", F.window("timestamp", "1 minute").alias("minute"))
    counted = minutes.agg(F.count("*").alias("count"), newest)
    value = F.struct(F.unix_millis("minute.start").alias("minute"), "count", "newest_ms")
    return counted.select("key", F.to_json(value).alias("value"))


def produce(kafka: Broker, topic: str) -> None:
    """All records, evenly over the run."""
    producer = kafka.producer(linger_ms=0, acks=1)
    pace, began_s = threading.Event(), time.monotonic()
    for number in range(PER_SECOND * SECONDS):
        if number % 10 == 0:
            pace.wait(max(0.0, began_s + number / PER_SECOND - time.monotonic()))
        producer.produce(topic, b"x" * 85, b"%d" % (number % KEYS), partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(30)


def run(source: str, bootstrap: str) -> Done:
    """One run of a source, in its process."""
    spark, kafka = here(bootstrap)
    topic, sink = kafka.create_topic(None, PARTITIONS), kafka.create_topic()
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as place:
        writer = counts(spark, kafka, topic, source).writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", sink)
        query = writer.option("checkpointLocation", place).outputMode("update").start()
        try:
            deadline_s = time.monotonic() + START_S
            while query.lastProgress is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
            produce(kafka, topic)
            query.processAllAvailable()
        finally:
            query.stop()
    return judge(kafka, sink)


def judge(kafka: Broker, sink: str) -> Done:
    """The latencies of all counts after the first seconds, and how many records they count."""
    last: dict[tuple[bytes, int], int] = {}
    produced, took = [], []
    for message in kafka.read(sink):
        value = json.loads(message.value())
        last[message.key(), value["minute"]] = value["count"]
        produced.append(value["newest_ms"])
        took.append(message.timestamp()[1] - value["newest_ms"])
    counted = np.array(produced) >= min(produced) + WARM_UP_S * 1000
    ms = np.array(took)[counted]
    p50, p99 = (float(np.percentile(ms, each)) for each in (50, 99))
    figures = {"p50": p50, "p99": p99, "worst": float(ms.max())}
    return Done(p50, {"records": sum(last.values())}, figures)


def measure() -> Iterator[Comparison]:
    """Both sources, in turns."""
    kafka_jars()
    with (
        broker(say=lambda _: None) as kafka,
        Apart() as theirs,
        Apart() as ours,
    ):
        runs = {"spark": theirs, "timestream": ours}
        contenders = {
            name: each.contender(functools.partial(run, name), kafka.bootstrap)
            for name, each in runs.items()
        }
        job = f"window count, {PER_SECOND:,} records a second"
        found = compare(job, contenders, PER_SECOND * SECONDS, "ms", rounds=ROUNDS)
        yield from by_figure(found)


if __name__ == "__main__":
    report(__file__, measure())
