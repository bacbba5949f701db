"""Rows a second of the `tseries` sink against Spark's own Parquet sink and against deltalake.

All read the same Parquet files, one file a batch. The peers: `format("parquet")`, and
`foreachBatch` with deltalake's `write_deltalake`, the usual way to a Delta table without a JVM
package. A batch's time is its trigger, from planning to commit, the median of a query; its first
batch starts workers and is left out. The guard reads back what each sink has written: how many
rows, of how many series, and the sums of their times and values.

`tseries` syncs every commit (`durability` = `fsync`); `tseries, os` leaves that to the system, as
the peers do. The last rows are a bound: a sink in Python that takes the rows and keeps nothing,
which is what Spark's three calls of Python a batch, and the rows' way there, cost any sink.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming import DataStreamWriter
from side_by_side import ROUNDS, Comparison, Contender, Done, against_each, compare, pair, report
from sizes import records, size
from spark_session import local_spark

SERIES = size({1_000: 1_000, 100_000: 10_000, 1_000_000: 10_000}, {1_000: 1_000})
"""Rows a batch -> series."""

SIZES = records(tuple(SERIES), tuple(SERIES))

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


def tseries(frame: DataFrame, path: str, durability: str = "fsync") -> DataStreamWriter:
    """Ours; every batch in the store once."""
    writer = frame.writeStream.format("tseries").option("retainedRange", "unlimited")
    return writer.option("durability", durability).option("path", path)


def tseries_os(frame: DataFrame, path: str) -> DataStreamWriter:
    """Ours, with commits that the system writes to the disk when it likes."""
    return tseries(frame, path, "os")


def parquet(frame: DataFrame, path: str) -> DataStreamWriter:
    """Spark's own file sink: files and a log of them, unsorted and unnumbered."""
    return frame.writeStream.format("parquet").option("path", path)


def deltalake(frame: DataFrame, path: str) -> DataStreamWriter:
    """The rows to the driver as Arrow, and from there into a Delta table."""

    def write(batch: DataFrame, number: int) -> None:
        write_deltalake(path, batch.toArrow(), mode="append")

    return frame.writeStream.foreachBatch(write)


def nothing_kept(frame: DataFrame, path: str) -> DataStreamWriter:
    """A sink in Python that takes the rows: the least that a sink in Python costs."""
    return frame.writeStream.format(NothingKept.name())


PEERS: dict[str, Sink] = {"parquet": parquet, "deltalake": deltalake}
OURS: dict[str, Sink] = {"tseries, os": tseries_os, "tseries": tseries}
BOUND: dict[str, Sink] = {**PEERS, "nothing kept": nothing_kept}


@dataclass(frozen=True)
class Taken(WriterCommitMessage):
    """The rows that a task has taken."""

    rows: int


class NothingKept(DataSource):
    """A data source that rows can be written to, and that keeps none."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "nothing_kept"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The writer of a batch."""
        return KeepNothing()


class KeepNothing(DataSourceStreamArrowWriter):
    """Takes rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Taken:
        """Take the rows of a task."""
        return Taken(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing."""


def one_query(spark: SparkSession, source: Path, sink: Sink, reads_back: bool = True) -> Done:
    """The time of a batch, except the first, and what the query has written, or else read."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        writer = sink(frame, f"{place}/out").option("checkpointLocation", f"{place}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each.numInputRows]
        took = [each.durationMs["triggerExecution"] for each in progress]
        rows = {"rows": sum(each.numInputRows for each in progress)}
        return Done(
            statistics.median(took[1:]) / 1000, written(f"{place}/out") if reads_back else rows
        )


def written(path: str) -> dict[str, Any]:
    """The contents of the table at `path`."""
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
    spark = local_spark("tseries_append")
    spark.dataSource.register(NothingKept)
    with tempfile.TemporaryDirectory() as place:
        report(__file__, comparisons(spark, Path(place)))


def comparisons(spark: SparkSession, place: Path) -> Iterator[Comparison]:
    """Ours against each peer, and the bound, for batches of some sizes."""
    sources = {rows: write_input(place / str(rows), rows, SERIES.get(rows, rows)) for rows in SIZES}

    def run(rows: int, sink: Sink, reads_back: bool = True) -> Contender:
        return lambda: one_query(spark, sources[rows], sink, reads_back)

    for rows in SIZES:
        contenders = {name: run(rows, sink) for name, sink in {**PEERS, **OURS}.items()}
        compared = compare("append", contenders, rows, rounds=ROUNDS)
        for ours in OURS:
            how = ours.removeprefix("tseries")
            yield from (pair(compared, peer, ours, f"{how} against {peer}") for peer in PEERS)
    for rows in SIZES:
        bound = {name: run(rows, sink, reads_back=False) for name, sink in BOUND.items()}
        compared = compare("the way to a Python sink alone", bound, rows, rounds=ROUNDS)
        yield from against_each(compared, by=" against ")


if __name__ == "__main__":
    main()
