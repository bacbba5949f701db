"""Milliseconds a batch of the `tseries` sink against Spark's own Parquet sink, side by side.

Both read the same Parquet files, one file a batch. The sinks take turns, so that both meet the
same noise; the first batch of a query starts workers and is left out.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

SIZES = {1_000: 1_000, 100_000: 10_000, 1_000_000: 10_000}
"""Rows a batch -> series."""

BATCHES = 4
ROUNDS = 2
SINKS = {"tseries": {"retainedRange": "unlimited"}, "parquet": {}}
SCHEMA = "series string, timestamp timestamp, value double"


def session() -> SparkSession:
    """A local session with the settings that the README recommends."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )


def write_input(directory: Path, rows: int, series: int) -> None:
    """`BATCHES` files of `rows` rows, in the order of time."""
    directory.mkdir(parents=True)
    names = pa.array([f"series {i}" for i in range(series)])
    for number in range(BATCHES):
        at = np.arange(number * rows, (number + 1) * rows)
        columns = {
            "series": names.take(pa.array(at % series)),
            "timestamp": pa.array(at * 1000).cast(pa.timestamp("us", "UTC")),
            "value": pa.array(np.sin(at)),
        }
        pq.write_table(pa.table(columns), directory / f"{number}.parquet")


def batch_ms(spark: SparkSession, source: Path, sink: str) -> list[int]:
    """What each batch but the first took, from trigger to commit."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    with tempfile.TemporaryDirectory() as place:
        writer = frame.writeStream.format(sink).options(**SINKS[sink])
        writer = writer.option("checkpointLocation", f"{place}/checkpoint")
        query = writer.trigger(availableNow=True).start(f"{place}/out")
        query.awaitTermination()
        done = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
    return done[1:]


def measure(sizes: dict[int, int] = SIZES, rounds: int = ROUNDS) -> dict[int, dict[str, float]]:
    """Rows a batch -> sink -> median milliseconds a batch."""
    spark, found = session(), {}
    with tempfile.TemporaryDirectory() as place:
        for rows, series in sizes.items():
            source = Path(place) / str(rows)
            write_input(source, rows, series)
            took: dict[str, list[int]] = {sink: [] for sink in SINKS}
            for _ in range(rounds):
                for sink in SINKS:
                    took[sink] += batch_ms(spark, source, sink)
            found[rows] = {sink: statistics.median(each) for sink, each in took.items()}
    return found


def main() -> None:
    """Print the table."""
    print(f"{'rows a batch':>12} {'tseries':>10} {'parquet':>10} {'ratio':>6}")
    for rows, took in measure().items():
        ours, theirs = took["tseries"], took["parquet"]
        print(f"{rows:>12,} {ours:>7.0f} ms {theirs:>7.0f} ms {ours / theirs:>6.2f}")


if __name__ == "__main__":
    main()
