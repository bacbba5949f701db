"""What CTIs and policies cost: the JSON read of the flights of 2013 with them on and off.

Both read the same records, in turns; CTIs come every hour, twelve hours behind, so that no flight
is late and both deliver the same flights. Twice: through Spark from a topic into `noop`, by the
clock; and a task's own work on blocks in memory, by its processor time, which other programs on
the machine do not change much.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))
from broker import Broker, broker
from flights import produce_flights
from flights_data import DEPARTED, FLIGHTS, HARMLESS_DELAY, PARTITIONS, flights, json_values
from spark_session import local_spark

from pyspark_timestream.cti import PartitionState
from pyspark_timestream.kafka_columns import project
from pyspark_timestream.kafka_options import read_kafka_options
from pyspark_timestream.kafka_task import Share, TaskPlan, run_task
from pyspark_timestream.ranges import Partition, Range
from pyspark_timestream.records import RecordBlock

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
SCHEMA = "origin string, dest string, carrier string, dep_delay double, start_time timestamp"


BLOCK = 20_000


def settings(punctuated: bool) -> tuple[dict[str, str], str]:
    """The options beside the topic, and the schema: with CTIs and the policy `drop` or without."""
    options = {"startingOffsets": "earliest", "valueFormat": "json", "startTime": "departure"}
    if not punctuated:
        return options, SCHEMA
    ctis = {"ctiFrequency": "1 hour", "ctiDelay": HARMLESS_DELAY, "violationPolicy": "drop"}
    return options | ctis, SCHEMA + ", cti timestamp"


def read(spark: SparkSession, kafka: Broker, topic: str, punctuated: bool) -> DataFrame:
    """The flights of the topic."""
    options, schema = settings(punctuated)
    options |= {"transport": "kafka", "subscribe": topic}
    options |= {"kafka.bootstrap.servers": kafka.bootstrap}
    return spark.readStream.format("timestream").options(**options).schema(schema).load()


def blocks() -> dict[Partition, list[RecordBlock]]:
    """The flights as a task would fetch them, by partition."""
    table = flights()
    values = pa.array([value.encode() for value in json_values(table)], pa.binary())
    found = {}
    for number in range(PARTITIONS):
        mine = pc.equal(table["partition"], number).combine_chunks()
        records = values.filter(mine)
        stamps = pc.divide(table["report_us"], 1_000).combine_chunks().filter(mine)
        found[Partition("flights", number)] = [
            block(records[first : first + BLOCK], stamps[first : first + BLOCK], first)
            for first in range(0, len(records), BLOCK)
        ]
    return found


def block(values: pa.Array, stamps: pa.Array, first: int) -> RecordBlock:
    """One block of records without keys and headers."""
    count = len(values)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return RecordBlock(
        offsets=pa.array(range(first, first + count), pa.int64()),
        timestamps_ms=stamps,
        timestamp_types=pa.repeat(pa.scalar(0, pa.int32()), count),
        keys=pa.nulls(count, pa.binary()),
        values=values,
        headers=pa.nulls(count, headers),
    )


def flights_per_processor_second(given: dict[Partition, list[RecordBlock]], on: bool) -> float:
    """Flights over the processor time of one task that reads them all."""
    options, schema = settings(on)
    fixed = {"kafka.bootstrap.servers": "none:1", "subscribe": "flights"}
    kafka_options = read_kafka_options({**fixed, **options})
    names = [column.split()[0] for column in schema.split(", ")]
    kinds = [column.split()[1] for column in schema.split(", ")]
    types = {"string": pa.string(), "double": pa.float64(), "timestamp": pa.timestamp("us", "UTC")}
    wanted = pa.schema([(n, types[k]) for n, k in zip(names, kinds, strict=True)])
    projection = project(kafka_options, wanted)
    spans = {part: sum(len(b.offsets) for b in each) for part, each in given.items()}
    shares = tuple(Share(Range(part, 0, end), PartitionState()) for part, end in spans.items())
    began = time.process_time()
    tables = run_task(
        kafka_options,
        projection,
        TaskPlan(shares),
        lambda span, needs: iter(given[span.partition]),
        lambda partition, state: None,
    )
    rows = sum(table.num_rows for table in tables)
    spent = time.process_time() - began
    if not DEPARTED <= rows <= DEPARTED * 1.2:
        raise SystemExit(f"{rows} rows were read, not {DEPARTED}")
    return FLIGHTS / spent


def flights_per_second(frame: DataFrame) -> float:
    """Flights over the time of the batch that reads them."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    batch = max(query.recentProgress, key=lambda p: p.numInputRows)
    if not DEPARTED <= batch.numInputRows <= DEPARTED * 1.2:
        raise SystemExit(f"{batch.numInputRows} rows were read, not {DEPARTED}")
    return 1000 * DEPARTED / batch.durationMs["addBatch"]


def in_turns(measure: Callable[[bool], float]) -> tuple[float, float]:
    """The medians of flights a second, off and on."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(ROUNDS + 1):
        for on, found in speeds.items():
            speed = measure(on)
            if turn:  # the first turn warms up
                found.append(speed)
    return statistics.median(speeds[False]), statistics.median(speeds[True])


def show(job: str, speeds: tuple[float, float]) -> None:
    """One row of the table."""
    off, on = speeds
    print(f"{job:<40}{off / 1e6:>12.2f}{on / 1e6:>12.2f}{on / off:>8.2f}", flush=True)


def main() -> None:
    """Print the ratios."""
    print(f"{'flights -> JSON':<40}{'off M/s':>12}{'on M/s':>12}{'ratio':>8}")
    given = blocks()
    show("a task in memory, by processor time", in_turns(
        lambda on: flights_per_processor_second(given, on)
    ))  # fmt: skip
    spark = local_spark("cti_cost")
    with broker(say=lambda _: None) as kafka:
        topic = produce_flights(kafka)
        show("topic -> noop, by the clock", in_turns(
            lambda on: flights_per_second(read(spark, kafka, topic, on))
        ))  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
