"""Rows a second of the unpaced clock against Spark's own `rate-micro-batch`, into `noop`."""

import os
import statistics
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

ROWS = 5_000_000
TASKS = 2
ROUNDS = 3


def session() -> SparkSession:
    """A local session with the settings that the README recommends."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master(f"local[{TASKS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )


def timestream(spark: SparkSession, rows: int) -> DataFrame:
    """`rows` ticks, a millisecond apart, in one batch."""
    clock = spark.readStream.format("timestream").option("rate", "max").option("period", "0.001")
    return clock.option("maxCount", rows).option("numPartitions", TASKS).load()


def rate_micro_batch(spark: SparkSession, rows: int) -> DataFrame:
    """`rows` rows of Spark's own source in one batch."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return rate.option("numPartitions", TASKS).load()


def rows_per_second(frame: DataFrame) -> float:
    """Rows of the one batch over the time that its trigger took, offset logs included."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    batches = [p for p in query.recentProgress if p.numInputRows]
    milliseconds = sum(p.durationMs["triggerExecution"] for p in batches)
    return 1000 * sum(p.numInputRows for p in batches) / milliseconds


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, float]:
    """Source -> median rows a second; the sources take turns, so that both meet the same noise."""
    spark = session()
    sources = {"timestream": timestream, "rate-micro-batch": rate_micro_batch}
    for make in sources.values():
        rows_per_second(make(spark, rows))
    found: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, make in sources.items():
            found[name].append(rows_per_second(make(spark, rows)))
    return {name: statistics.median(speeds) for name, speeds in found.items()}


def main() -> None:
    """Print the table."""
    speeds = measure()
    print(f"{'source':<20}{'M rows/s':>10}   ({ROWS:,} rows, {TASKS} tasks, median of {ROUNDS})")
    for name, speed in speeds.items():
        print(f"{name:<20}{speed / 1e6:>10.2f}")
    print(f"{'ratio':<20}{speeds['timestream'] / speeds['rate-micro-batch']:>10.2f}")


if __name__ == "__main__":
    main()
