"""The totals of the bank into a store.

`bank_job.py BOOTSTRAP TOPIC DELAY_S LIMIT STORE CHECKPOINT`; run again, it resumes. `LIMIT` is how
many records a batch takes from each of the two reads.
"""

from __future__ import annotations

import sys

from bank_transfers import by_ctis, totals
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_session import local_spark


def start(
    spark: SparkSession, kafka: str, topic: str, delay_s: int, limit: int, store: str, place: str
) -> StreamingQuery:
    """Read the topic to its present end, which is the end of the stream."""
    more = {"finalCti": "true", "maxOffsetsPerTrigger": str(limit)}
    found = totals(lambda: by_ctis(spark, kafka, topic, delay_s, **more))
    writer = found.withColumn("series", F.lit("total")).writeStream.format("tseries")
    writer = writer.option("retainedRange", "unlimited").option("checkpointLocation", place)
    return writer.trigger(availableNow=True).start(store)


def main() -> None:
    """Run to the end."""
    kafka, topic, delay_s, limit, store, place = sys.argv[1:]
    spark = local_spark("bank")
    start(spark, kafka, topic, int(delay_s), int(limit), store, place).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
