"""Kafka -> noop and Kafka -> JSON -> one-minute windows, against Spark's own Kafka source.

Both read the same topic in one batch, in turns. Before that both deliver the same records, which
is checked by their number, offsets and values, or by the fields and times that were parsed.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping

from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from side_by_side import Comparison, Contender, compare, report
from streams import one_batch, summary

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))
from broker import Broker, Record, broker
from spark_session import local_spark

PARTITIONS = 4
RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
START_MS = 1_700_000_000_000
JSON = "device long, reading double"


def records(count: int) -> Iterator[Record]:
    """Records of about 85 bytes, a millisecond of event time apart, over four partitions."""
    for number in range(count):
        at = START_MS + number
        value = {"device": number % 100, "ts": at, "reading": number % 977 / 7, "unit": "celsius"}
        text = json.dumps(value | {"site": "north-hall"}).encode()
        yield Record(text, str(number % 100).encode(), number % PARTITIONS, at)


def spark_source(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """Spark's own Kafka source."""
    reader = spark.readStream.format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    return reader.option("startingOffsets", "earliest").load()


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
CHECKED = {
    "Kafka -> noop": ({"spark": spark_source, "timestream": timestream}, RECORD_SUMS),
    "Kafka -> JSON -> window": (
        {"spark": spark_parsed, "timestream": timestream_parsed},
        FIELD_SUMS,
    ),
}


def measure(count: int = RECORDS) -> Iterator[Comparison]:
    """Every job, by Spark's source and by ours."""
    spark = local_spark("bench", spark_jars=kafka_jars())
    with broker(say=lambda _: None) as kafka:
        topic = kafka.create_topic(partitions=PARTITIONS)
        kafka.produce(topic, records(count))

        def run(make: Make) -> Contender:
            return lambda: one_batch(make(spark, kafka, topic), count, extra=0.01)

        def comparison(job: str) -> Comparison:
            sources, sums = CHECKED[job]
            checks = {
                name: lambda m=make: summary(data_rows(m(spark, kafka, topic)), sums)
                for name, make in sources.items()
            }
            runs = {name: run(make) for name, make in JOBS[job].items()}
            return compare(job, runs, count, checks=checks)

        yield from map(comparison, JOBS)
    spark.stop()


if __name__ == "__main__":
    report(__file__, measure())
