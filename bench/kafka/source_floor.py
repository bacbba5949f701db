"""Core time that Spark takes for a row of any Python data source, even one that does nothing.

A source that sends blocks made beforehand is read in batches into `noop`, with all columns of the
Kafka transport and with some. Beside it stands the cost of reading the records and making their
rows: the reader and the task of the transport, run without Spark. No Python source over Kafka can
cost less than the sum of both.
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from broker import Broker, broker
from core_seconds import CoreSeconds
from kafka_records import filled
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from side_by_side import ROUNDS, report_table
from sizes import WARM_UP, size
from spark_session import local_spark

from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.columns import build_default_schema, project
from pyspark_timestream.kafka.decode.payload import list_required_columns
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskPlan, TaskRange
from pyspark_timestream.kafka.task import RangeEnd, run_task
from pyspark_timestream.rules.clocks import PartitionClock

ROWS: Final = size(4_000_000, 200_000)
BLOCK: Final = 20_000
PARTITIONS: Final = 4
NUMBERS: Final = (
    "partition int, offset long, timestamp timestamp, timestampType int, start_time timestamp, "
    "cti timestamp"
)
COLUMNS: Final = {
    "one number": "offset long",
    "the value": "value binary",
    "all columns but key, value and topic": NUMBERS,
    "all columns": f"key binary, value binary, topic string, {NUMBERS}",
}


class BlockSource(DataSource):
    """Sends one block of rows again and again."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "blocks"

    def schema(self) -> str:
        """The columns."""
        return self.options["columns"]

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of all rows."""
        return BlockReader(schema)


class BlockReader(DataSourceReader):
    """ROWS rows in PARTITIONS partitions."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """As many as the topic has."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same block, until there are enough."""
        schema = to_arrow_schema(self._schema, timezone="UTC")
        columns = [make_column(field, BLOCK) for field in schema]
        block = pa.RecordBatch.from_arrays(columns, schema=schema)
        for _ in range(ROWS // PARTITIONS // BLOCK):
            yield block


def make_column(field: pa.Field, rows: int) -> pa.Array:
    """Values like those of the benchmarks' records."""
    if field.name == "cti":
        return pa.nulls(rows, field.type)
    if pa.types.is_binary(field.type):
        return pa.array([b"v" * (85 if field.name == "value" else 2)] * rows, field.type)
    if pa.types.is_string(field.type):
        return pa.repeat(pa.scalar("topic-0123456"), rows)
    return pa.array(np.arange(rows), pa.int64()).cast(field.type)


def send(spark: SparkSession, columns: str) -> Mapping[str, float]:
    """Kind of process -> microseconds of a core for each row, of one read."""
    with CoreSeconds() as spent:
        rows = spark.read.format("blocks").option("columns", columns).load()
        rows.write.format("noop").mode("overwrite").save()
    return {kind: each / ROWS * 1e6 for kind, each in spent.by_kind.items()}


def take(kafka: Broker, topic: str) -> Iterator[tuple[str, float]]:
    """Job -> microseconds of a core for each record, of all threads of this process."""
    given = {"subscribe": topic, "kafka.bootstrap.servers": kafka.bootstrap}
    more = {"transport": "kafka", "ctiFrequency": "10 seconds", "ctiDelay": "1 second"}
    options = read_kafka_options(given | more)
    projection = project(options, build_default_schema(options))
    needs = list_required_columns(options, projection)
    reader = RangeReader(options, "floor")
    spans = [
        OffsetRange(Partition(topic, number), 0, ROWS // PARTITIONS) for number in range(PARTITIONS)
    ]

    def native_reader() -> int:
        return sum(len(block.offsets) for span in spans for block in reader.read(span, needs))

    def make_rows() -> int:
        plans = [TaskPlan((TaskRange(span, PartitionClock()),)) for span in spans]
        tasks = [run_task(options, projection, each, reader.read, _forget) for each in plans]
        return sum(batch.num_rows for task in tasks for batch in task)

    for name, job in {
        "records into Arrow": native_reader,
        "and their rows, with CTIs": make_rows,
    }.items():
        for turn in range(1 + ROUNDS):
            began_s = time.process_time()
            if job() < ROWS:
                raise SystemExit(f"{name}: records are missing")
            if turn:
                yield name, (time.process_time() - began_s) / ROWS * 1e6
    reader.close()


def _forget(partition: Partition, end: RangeEnd) -> None:
    pass


def measure() -> Iterator[Mapping[str, Any]]:
    """A row for each set of columns, and for each part of a task."""
    spark = local_spark("floor")
    spark.dataSource.register(BlockSource)
    for name, columns in COLUMNS.items():
        runs = [send(spark, columns) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
        yield row(f"rows to Spark: {name}", [sum(each.values()) for each in runs])
    spark.stop()
    with broker(say=lambda _: None) as kafka:
        taken: dict[str, list[float]] = {}
        for name, us in take(kafka, filled(kafka, ROWS, PARTITIONS)):
            taken.setdefault(name, []).append(us)
        yield from (row(f"in Python: {name}", each) for name, each in taken.items())


def row(job: str, us: list[float]) -> Mapping[str, Any]:
    """The least, the median and the most of a job."""
    least, median, most = min(us), statistics.median(us), max(us)
    return {
        "µs of a core for each row": job,
        "least": f"{least:.2f}",
        "median": f"{median:.2f}",
        "most": f"{most:.2f}",
    }


if __name__ == "__main__":
    report_table(__file__, measure())
