"""Peak memory of a writer to a million series: the last quarter of its batches against the second.

Every batch touches every series, once by `TimeSeries.append_many` in this process and once by a
query of Spark; there the largest Python worker counts, a task's or the one that commits. The heads
of all series are in memory; the ratio shows that nothing else stays.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from memory import PeakMemory
from side_by_side import Comparison, report
from sizes import size, whole_number
from spark_session import local_spark

from pyspark_tseries import TimeSeries, describe

SERIES = whole_number("BENCH_SERIES", size(1_000_000, 200_000))
BATCHES = whole_number("BENCH_BATCHES", size(3, 1))
"""A quarter."""

QUARTERS = ("first", "second", "third", "last")


def batch(series: int, number: int) -> pa.Table:
    """A row of every series."""
    which = np.arange(series)
    return pa.table(
        {
            "series": pa.array(which).cast(pa.string()),
            "timestamp": pa.array(number * series + which).cast(pa.timestamp("us", "UTC")),
            "value": pa.array(which % 1009 / 7),
        }
    )


def quarters(kind: str, job: str, path: str, run: Callable[[int], None], rows: int) -> Comparison:
    """The peaks of a kind of process over `run` of each quarter.

    Raises:
        SystemExit: rows are missing.
    """
    peaks = {}
    for number, name in enumerate(QUARTERS):
        with PeakMemory() as memory:
            run(number)
        peaks[name] = memory.peaks_mb[kind]
    events = describe(path)["events"]
    if events != rows:
        raise SystemExit(f"{events} events in the store, not {rows}")
    took = {name: [peaks[name]] for name in ("second", "last")}
    return Comparison(job, took, rows=rows, unit="MB", work={"events": events, "peaks": peaks})


def by_client(series: int, batches: int) -> Comparison:
    """In this process, which has seen nothing else yet."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
        store = TimeSeries.create(location, {"value": pa.float64()}, "unlimited")

        def run(quarter: int) -> None:
            for number in range(quarter * batches, (quarter + 1) * batches):
                store.append_many(batch(series, number))

        job = "memory, append_many, last/second quarter"
        return quarters("main", job, location, run, 4 * batches * series)


def by_spark(series: int, batches: int) -> Comparison:
    """In the workers of a query that goes on from its checkpoint in each quarter."""
    spark = local_spark("tseries_memory")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
        source = Path(location) / "in"
        source.mkdir()

        def run(quarter: int) -> None:
            for number in range(quarter * batches, (quarter + 1) * batches):
                pq.write_table(batch(series, number), source / f"{number:05}.parquet")
            frame = spark.readStream.schema("series string, timestamp timestamp, value double")
            rows = frame.option("maxFilesPerTrigger", 1).parquet(str(source))
            writer = rows.writeStream.format("tseries").option("retainedRange", "unlimited")
            writer = writer.option("checkpointLocation", f"{location}/checkpoint")
            writer.trigger(availableNow=True).start(f"{location}/out").awaitTermination()

        job = "memory, Spark worker, last/second quarter"
        found = quarters("worker", job, f"{location}/out", run, 4 * batches * series)
    spark.stop()
    return found


def main() -> None:
    """Print the rows."""
    report(__file__, [job(SERIES, BATCHES) for job in (by_client, by_spark)])


if __name__ == "__main__":
    main()
