"""Rows a second of the `tseries` sink against Spark's own Parquet sink and against deltalake.

All read the same Parquet files, one file a batch. The peers: `format("parquet")`, and
`foreachBatch` with deltalake's `write_deltalake`, which is what a Delta table without a JVM package
takes otherwise. What a batch takes is its trigger, from planning to commit, the median of a query;
its first batch starts workers and is left out. The guard reads back what each sink has written:
how many rows, of how many series, and the sums of their times and values.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from side_by_side import ROUNDS, Comparison, Contender, Done, against_each, compare, report
from sizes import size

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from spark_session import local_spark

SERIES = size({1_000: 1_000, 100_000: 10_000, 1_000_000: 10_000}, {1_000: 1_000})
"""Rows a batch -> series."""

BATCHES = 4
SCHEMA = "series string, timestamp timestamp, value double"

Sink = Callable[[DataFrame, str], DataStreamWriter]


def write_input(directory: Path, rows: int, series: int) -> Path:
    """`BATCHES` files of `rows` rows, in the order of time."""
    directory.mkdir(parents=True)
    names = pa.array([f"series {i}" for i in range(series)])
    for number in range(BATCHES):
        at = np.arange(number * rows, (number + 1) * rows)
        columns = {
            "series": names.take(pa.array(at % series)),
            "timestamp": pa.array(at * 1000).cast(pa.timestamp("us", "UTC")),
            "value": pa.array(at % 1009 / 7),
        }
        file = directory / f"{number}.parquet"
        pq.write_table(pa.table(columns), file)
        # Spark reads files in the order of their times, which may be one for all of them.
        os.utime(file, (number, number))
    return directory


def tseries(frame: DataFrame, path: str) -> DataStreamWriter:
    """Ours; every batch in the store once."""
    writer = frame.writeStream.format("tseries").option("retainedRange", "unlimited")
    return writer.option("path", path)


def parquet(frame: DataFrame, path: str) -> DataStreamWriter:
    """Spark's own file sink: files and a log of them, unsorted and unnumbered."""
    return frame.writeStream.format("parquet").option("path", path)


def deltalake(frame: DataFrame, path: str) -> DataStreamWriter:
    """The rows to the driver as Arrow, and from there into a Delta table."""

    def write(batch: DataFrame, number: int) -> None:
        write_deltalake(path, batch.toArrow(), mode="append")

    return frame.writeStream.foreachBatch(write)


SINKS: dict[str, Sink] = {"parquet": parquet, "deltalake": deltalake, "tseries": tseries}


def one_query(spark: SparkSession, source: Path, sink: Sink) -> Done:
    """What a batch takes, but for the first, and what the query has written."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        writer = sink(frame, f"{place}/out").option("checkpointLocation", f"{place}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
        return Done(statistics.median(took[1:]) / 1000, written(f"{place}/out"))


def written(path: str) -> dict[str, Any]:
    """What is in the table at `path`."""
    if (Path(path) / "_delta_log").exists():
        files = [
            f"{path}/{name}" for name in DeltaTable(path).get_add_actions()["path"].to_pylist()
        ]
    else:
        files = [str(file) for file in Path(path).glob("*.parquet")]
    rows = ds.dataset(files, format="parquet").to_table(columns=["series", "timestamp", "value"])
    return {
        "rows": rows.num_rows,
        "series": pc.count_distinct(rows["series"]).as_py(),
        "times": pc.sum(rows["timestamp"].cast(pa.timestamp("us")).cast(pa.int64())).as_py(),
        "values": round(pc.sum(rows["value"]).as_py()),
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=list(SERIES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    spark = local_spark("tseries_append")
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as place:
        for rows in given.rows:
            source = write_input(Path(place) / str(rows), rows, SERIES.get(rows, rows))

            def run(sink: Sink, source: Path = source) -> Contender:
                return lambda: one_query(spark, source, sink)

            contenders = {name: run(sink) for name, sink in SINKS.items()}
            found += against_each(
                compare("append", contenders, rows, rounds=given.rounds), by=" against "
            )
    report(__file__, found)


if __name__ == "__main__":
    main()
