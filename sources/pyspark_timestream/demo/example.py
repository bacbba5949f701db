"""The first query, as README shows it and as the demo prints it with its own address."""

from typing import Final

__all__ = ["ADDRESS", "EXAMPLE", "example"]

ADDRESS: Final = "localhost:9092"

EXAMPLE: Final = """\
import json
from tempfile import mkdtemp

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, configure_spark

spark = configure_spark(SparkSession.builder.master("local[2]")).getOrCreate()

trips = (
    spark.readStream.format("timestream")
    .option("transport", "kafka")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .option("subscribe", "trips")
    .option("startingOffsets", "earliest")
    .option("valueFormat", "json")
    .option("startTime", "departed")  # a field of the JSON value is the event's time
    .option("ctiFrequency", "10")  # in each partition a CTI at every tenth event,
    .option("ctiDelay", "5 minutes")  # five minutes behind it
    .option("finalCti", "true")  # the end of this run is the end of the stream
    .schema("station string, minutes double, start_time timestamp, cti timestamp")
    .load()
)

hourly = (
    advance_time(trips)  # Spark's watermark follows the CTIs from here
    .groupBy("station", F.window("start_time", "1 hour").alias("hour"))
    .agg(F.count("*").alias("trips"), F.avg("minutes").alias("mean_minutes"))
    .select(
        F.col("station").alias("series"),
        F.col("hour.start").alias("timestamp"),
        "trips",
        "mean_minutes",
    )
)

place = mkdtemp(prefix="trips-")
query = (
    hourly.writeStream.format("tseries")
    .option("retainedRange", "unlimited")
    .option("checkpointLocation", f"{place}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{place}/store")
)
query.awaitTermination()

store = spark.read.format("tseries").load(f"{place}/store")
store.groupBy("timestamp").pivot("series").sum("trips").orderBy("timestamp").show()
report = json.loads(query.lastProgress.sources[0].latestOffset)
print(report["events"], "trips,", report["dropped"], "dropped")
"""


def example(address: str) -> str:
    """The example for a broker at `address`."""
    return EXAMPLE.replace(ADDRESS, address)
