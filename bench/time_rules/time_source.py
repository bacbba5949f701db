"""Rows a second of the unpaced clock against Spark's own `rate-micro-batch`, into `noop`.

The whole trigger is compared, offset logs included.
"""

import os

from pyspark.sql import DataFrame, SparkSession
from side_by_side import Contender, by_figure, compare, report
from sizes import size
from spark_session import local_spark
from streams import one_batch, summary

ROWS = int(os.environ.get("BENCH_ROWS", size(10_000_000, 1_000_000)))
TASKS = 2


def timestream(spark: SparkSession) -> DataFrame:
    """`ROWS` ticks, a millisecond apart, in one batch."""
    clock = spark.readStream.format("timestream").option("rate", "max").option("period", "0.001")
    return clock.option("maxCount", ROWS).option("numPartitions", TASKS).load()


def rate_micro_batch(spark: SparkSession) -> DataFrame:
    """`ROWS` rows of Spark's own source in one batch."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    return rate.option("numPartitions", TASKS).load()


def main() -> None:
    """Print the row."""
    spark = local_spark("time_source")
    sources = {"rate-micro-batch": rate_micro_batch(spark), "timestream": timestream(spark)}
    sums = {"rows": "count(value)", "values": "sum(value)"}

    def run(frame: DataFrame) -> Contender:
        return lambda: one_batch(frame, ROWS, phase="triggerExecution")

    runs = {name: run(frame) for name, frame in sources.items()}
    checks = {name: lambda f=frame: summary(f, sums) for name, frame in sources.items()}
    found = compare("simulated clock -> noop", runs, ROWS, checks=checks)
    report(__file__, by_figure(found))
    spark.stop()


if __name__ == "__main__":
    main()
