"""The cost of CTIs and policies: the JSON read of the flights of 2013 with them on and off.

Both read the same records, in turns; CTIs come every hour, twelve hours behind, so that no flight
is late and both deliver the same flights. Twice: through Spark from a topic into `noop`, by the
clock; and a task's own work on blocks in memory, by its processor time, which other programs on
the machine do not change much.
"""

import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from broker import Broker, broker
from flights import produce_flights
from flights_data import DEPARTED, FLIGHTS, HARMLESS_DELAY, PARTITIONS, flights, json_values
from pyspark.sql import DataFrame, SparkSession
from side_by_side import Comparison, Contender, Done, by_figure, compare, report
from spark_session import local_spark
from streams import finish

from pyspark_timestream.kafka.decode.columns import project
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskPlan, TaskRange
from pyspark_timestream.kafka.task import run_task
from pyspark_timestream.rules.clocks import PartitionClock

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


def in_memory(given: dict[Partition, list[RecordBlock]], on: bool) -> Done:
    """The processor time of one task that reads all flights."""
    options, schema = settings(on)
    fixed = {"kafka.bootstrap.servers": "none:1", "subscribe": "flights"}
    kafka_options = read_kafka_options({**fixed, **options})
    names = [column.split()[0] for column in schema.split(", ")]
    kinds = [column.split()[1] for column in schema.split(", ")]
    types = {"string": pa.string(), "double": pa.float64(), "timestamp": pa.timestamp("us", "UTC")}
    wanted = pa.schema([(n, types[k]) for n, k in zip(names, kinds, strict=True)])
    projection = project(kafka_options, wanted)
    spans = {part: sum(len(b.offsets) for b in each) for part, each in given.items()}
    shares = tuple(
        TaskRange(OffsetRange(part, 0, end), PartitionClock()) for part, end in spans.items()
    )
    began = time.process_time()
    found = list(run_task(
        kafka_options,
        projection,
        TaskPlan(shares),
        lambda span, needs: iter(given[span.partition]),
        lambda partition, clock: None,
    ))  # fmt: skip
    spent = time.process_time() - began
    rows = pa.Table.from_batches(found)
    # Without CTIs nothing is dropped: flights that never departed are left out of both.
    flown = rows.filter(pc.is_valid(rows["start_time"]))
    delays = pc.sum(pc.fill_null(flown["dep_delay"], 0)).as_py()
    return Done(spent, {"flights": flown.num_rows, "minutes of delay": delays})


def through_spark(frame: DataFrame) -> Done:
    """The time of the batch that reads all flights."""
    done = finish(frame)
    batch = max(done.batches, key=lambda each: each.numInputRows)
    if not DEPARTED <= batch.numInputRows <= DEPARTED * 1.2:
        raise SystemExit(f"{batch.numInputRows} rows were read, not {DEPARTED}")
    return Done(batch.durationMs["addBatch"] / 1000, figures=done.figures(batch))


def measure() -> Iterator[Comparison]:
    """Alone and through Spark; off is the peer."""
    given = blocks()
    in_turns = {"off": lambda: in_memory(given, False), "on": lambda: in_memory(given, True)}
    yield compare("flights' JSON, CTIs on/off: a task's own work", in_turns, FLIGHTS)
    spark = local_spark("cti_cost")
    with broker(say=lambda _: None) as kafka:
        topic = produce_flights(kafka)

        def run(on: bool) -> Contender:
            return lambda: through_spark(read(spark, kafka, topic, on))

        through = {"off": run(False), "on": run(True)}
        job = "flights' JSON, CTIs on/off: topic -> noop"
        yield from by_figure(compare(job, through, DEPARTED))
    spark.stop()


if __name__ == "__main__":
    report(__file__, measure())
