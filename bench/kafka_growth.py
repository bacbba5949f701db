"""What grows with a Kafka batch: time with its records, memory of a task, time with partitions.

Three answers: the rows a second of a batch of many records against one of few (1.0: each row costs
the same); what a task of the large batch holds in the last quarter of its run against the second
quarter (1.0: memory does not grow with what was read); and a batch over many partitions with a
few records in each against Spark's own source.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator

from kafka_records import filled
from kafka_source import spark_source, timestream
from memory import PeakMemory
from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from side_by_side import ROUNDS, Comparison, Done, compare, report
from streams import finish, one_batch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))
from broker import Broker, broker
from spark_session import local_spark

PARTITIONS = 4
IN_EACH = 5
"""Records in each of the many partitions."""


def arguments() -> argparse.Namespace:
    """The sizes; the goals of the project are stated for 1 to 40 million records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def batch_of(frame: Callable[[], DataFrame], count: int, per: int) -> Done:
    """What a batch of `count` records takes for each `per` of them."""
    done = one_batch(frame(), count, extra=0.01)
    return Done(done.took * per / count, {"every record": True})


def quarters(frame: DataFrame) -> tuple[float, float]:
    """The MB of the largest worker at its peak in the second and in the last quarter of a run."""
    with PeakMemory() as memory:
        finish(frame)
    quarter = len(memory.worker_mb) // 4
    if not quarter:
        raise SystemExit("the run was too short for its memory to be looked at")
    return max(memory.worker_mb[quarter : 2 * quarter]), max(memory.worker_mb[-quarter:])


def growth(spark: SparkSession, kafka: Broker, size: argparse.Namespace) -> Iterator[Comparison]:
    """Rows a second and memory, with the number of records."""
    few, many = (filled(kafka, count, PARTITIONS) for count in (size.small, size.large))
    contenders = {
        f"{count:,}": lambda t=topic, n=count: batch_of(
            lambda: timestream(spark, kafka, t), n, size.small
        )
        for topic, count in ((few, size.small), (many, size.large))
    }
    job = f"Kafka -> noop, a batch of {size.large:,}"
    yield compare(job, contenders, size.small, rounds=size.rounds)
    pairs = [quarters(timestream(spark, kafka, many)) for _ in range(min(size.rounds, 3))]
    took = dict(zip(("second quarter", "last quarter"), zip(*pairs, strict=True), strict=True))
    yield Comparison("  memory of a task, last/second quarter", took, size.large, "MB")


def breadth(spark: SparkSession, kafka: Broker, size: argparse.Namespace) -> Comparison:
    """A batch over many partitions with little in each."""
    count = size.partitions * IN_EACH
    topic = filled(kafka, count, size.partitions)
    contenders = {
        name: lambda make=make: one_batch(
            make(spark, kafka, topic), count, extra=1.0, phase="triggerExecution"
        )
        for name, make in (("spark", spark_source), ("timestream", timestream))
    }
    job = f"Kafka -> noop, {size.partitions:,} partitions of {IN_EACH}"
    return compare(job, contenders, rounds=size.rounds)


def answers(size: argparse.Namespace) -> Iterator[Comparison]:
    """All of them, as they come."""
    spark = local_spark("kafka_growth", spark_jars=kafka_jars())
    with broker(say=lambda _: None) as kafka:
        yield breadth(spark, kafka, size)
        yield from growth(spark, kafka, size)
    spark.stop()


if __name__ == "__main__":
    report(__file__, answers(arguments()))
