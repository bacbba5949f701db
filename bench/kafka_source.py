"""Kafka -> noop and Kafka -> JSON -> one-minute windows, against Spark's own Kafka source.

Both read the same topic in one batch, in turns; every job counts its rows, so that equal work is
proven and not assumed.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator

from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))
from broker import Broker, Record, broker
from spark_session import local_spark

PARTITIONS = 4
RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
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


def spark_windows(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """`from_json` and a one-minute average."""
    parsed = F.from_json(F.col("value").cast("string"), JSON + ", ts long").alias("v")
    rows = spark_source(spark, kafka, topic).select(parsed).select("v.*")
    rows = rows.withColumn("start_time", F.timestamp_millis("ts"))
    return minutes(rows.withWatermark("start_time", "1 second"))


def timestream_windows(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """The same of ours, released by CTIs."""
    from pyspark_timestream import advance_time

    rows = timestream(spark, kafka, topic, f"{JSON}, start_time timestamp, cti timestamp")
    return minutes(advance_time(rows))


def minutes(rows: DataFrame) -> DataFrame:
    """The average per device and minute."""
    return rows.groupBy("device", F.window("start_time", "1 minute")).agg(F.avg("reading"))


def rows_per_second(frame: DataFrame, count: int) -> float:
    """`count` records over the time of the batch that reads them."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.outputMode("append").trigger(availableNow=True).start()
        query.awaitTermination()
    progress = query.recentProgress
    read = sum(p.numInputRows for p in progress)
    if not count <= read <= count * 1.01:
        raise SystemExit(f"{read} rows were read, not {count}")
    batch = max(progress, key=lambda p: p.numInputRows)
    return 1000 * count / batch.durationMs["addBatch"]


JOBS: dict[str, dict[str, Callable[..., DataFrame]]] = {
    "Kafka -> noop": {"spark": spark_source, "timestream": timestream},
    "Kafka -> JSON -> window": {"spark": spark_windows, "timestream": timestream_windows},
}


def measure(rounds: int = ROUNDS, count: int = RECORDS) -> dict[str, dict[str, list[float]]]:
    """Job -> source -> rows a second of each round, the sources in turns."""
    found: dict[str, dict[str, list[float]]] = {}
    spark = local_spark("bench", spark_jars=kafka_jars(), spark_ui_showConsoleProgress="false")
    with broker() as kafka:
        topic = kafka.create_topic(partitions=PARTITIONS)
        kafka.produce(topic, records(count))
        for job, sources in JOBS.items():
            found[job] = {name: [] for name in sources}
            for turn in range(rounds + 1):
                for name, make in sources.items():
                    speed = rows_per_second(make(spark, kafka, topic), count)
                    if turn:  # the first turn warms up
                        found[job][name].append(speed)
    spark.stop()
    return found


def main() -> None:
    """Print the table."""
    print(f"{'job':<26}{'spark M/s':>12}{'timestream':>12}{'ratio':>8}  ({RECORDS:,} records)")
    for job, speeds in measure().items():
        spark, ours = (statistics.median(speeds[name]) for name in ("spark", "timestream"))
        print(f"{job:<26}{spark / 1e6:>12.2f}{ours / 1e6:>12.2f}{ours / spark:>8.2f}")


if __name__ == "__main__":
    main()
