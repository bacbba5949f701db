"""A query of 10,000 batches: whether its last batches take and hold what its earlier ones do.

Twenty records a batch become counts by device and second of event time, which CTIs release, so
that the state has the same size all the time. What the last quarter of the batches takes and holds
is compared with the second quarter: the time of a batch, the largest memory of Spark's JVM, of the
source's process in the driver and of a task's, and the state's rows and bytes. The JVM's heap
grows to what it may have, whatever is in it. LONG_BATCHES says how many batches.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import psutil
from broker import Broker, broker
from kafka_records import filled
from memory import kind_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from side_by_side import Comparison, report
from sizes import size, whole_number
from spark_session import local_spark

from pyspark_timestream import advance_time

BATCHES: Final = whole_number("LONG_BATCHES", size(10_000, 60))
RECORDS: Final = 20
"""A batch."""

PARTITIONS: Final = 2
EVERY_S: Final = 1
SOURCE: Final = "python_streaming_source_runner"
PLACES: Final = {"jvm": "JVM", "source": "the source's process", "task": "a task's process"}


class Look(NamedTuple):
    """What a query was found to hold."""

    batch: int
    at_s: float
    memory_mb: Mapping[str, float]
    state_rows: float
    state_mb: float


def start(spark: SparkSession, kafka: Broker, topic: str, place: str) -> StreamingQuery:
    """Count by device and second, until the topic has been read."""
    reader = spark.readStream.format("timestream").option("transport", "kafka")
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("maxOffsetsPerTrigger", str(RECORDS)).option("valueFormat", "json")
    reader = reader.option("ctiFrequency", "1").option("ctiDelay", "10 ms")
    rows = reader.option("startTime", "ts").schema(
        "device long, start_time timestamp, cti timestamp"
    )
    windows = advance_time(rows.load()).groupBy("device", F.window("start_time", "1 second"))
    writer = windows.count().writeStream.format("noop").option("checkpointLocation", place)
    return writer.outputMode("append").trigger(availableNow=True).start()


def look(query: StreamingQuery) -> Look | None:
    """What the query holds now; None before its first batch."""
    progress: Any = query.lastProgress
    if progress is None or not progress.stateOperators:
        return None
    state = progress.stateOperators[0]
    return Look(
        progress.batchId, time.monotonic(), resident_mb(), state.numRowsTotal,
        state.memoryUsedBytes / 1e6,
    )  # fmt: skip


def resident_mb() -> Mapping[str, float]:
    """Kind of process -> the memory of the largest one."""
    found: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command, held = " ".join(process.cmdline()), process.memory_info().rss / 1e6
        except psutil.Error:
            continue
        kind = {"driver": "jvm", "worker": "task"}.get(kind_of(command) or "")
        kind = "source" if SOURCE in command else kind
        if kind:
            found[kind] = max(found.get(kind, 0.0), held)
    return found


def run(spark: SparkSession, kafka: Broker, topic: str) -> list[Look]:
    """Run the query to its end, and look at it now and then."""
    looks: list[Look] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        query = start(spark, kafka, topic, place)
        while not query.awaitTermination(EVERY_S):
            found = look(query)
            if found is not None and not (looks and looks[-1].batch == found.batch):
                looks.append(found)
        last: Any = query.lastProgress
        if not BATCHES <= last.batchId + 1 <= BATCHES + 2:
            raise SystemExit(f"{last.batchId + 1} batches, not {BATCHES}")
    return looks


def compare_quarters(looks: list[Look]) -> Iterator[Comparison]:
    """The last quarter of the batches against the second."""
    quarters = [
        [each for each in looks if first <= each.batch < first + BATCHES // 4]
        for first in (BATCHES // 4, BATCHES - BATCHES // 4)
    ]
    if min(map(len, quarters)) < 2:
        raise SystemExit("the run was too short to be looked at")

    def quarter(what: str, of: Callable[[list[Look]], float], unit: str) -> Comparison:
        took = dict(
            zip(("second quarter", "last quarter"), ([of(q)] for q in quarters), strict=True)
        )
        job = f"{BATCHES:,} batches, {what}, last/second quarter"
        return Comparison(job, took, unit=unit, work={"looks": len(looks)})

    yield quarter("time of a batch", batch_ms, "ms")
    for kind, name in PLACES.items():
        yield quarter(f"memory of {name}", lambda q, k=kind: most(q, k), "MB")  # type: ignore[misc]
    yield quarter("rows of state", lambda q: max(each.state_rows for each in q), "rows")
    yield quarter("memory of state", lambda q: max(each.state_mb for each in q), "MB")


def batch_ms(looks: list[Look]) -> float:
    """The mean time of a batch."""
    first, last = looks[0], looks[-1]
    return (last.at_s - first.at_s) / (last.batch - first.batch) * 1000


def most(looks: list[Look], kind: str) -> float:
    """The most that a kind of process has held."""
    return max(each.memory_mb.get(kind, 0.0) for each in looks)


def measure() -> Iterator[Comparison]:
    """One run."""
    spark = local_spark("long")
    with broker(say=lambda _: None) as kafka:
        topic = filled(kafka, BATCHES * RECORDS, PARTITIONS)
        yield from compare_quarters(run(spark, kafka, topic))
    spark.stop()


if __name__ == "__main__":
    report(__file__, measure())
