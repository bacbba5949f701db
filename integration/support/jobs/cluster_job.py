"""Jobs that run at once on a cluster, in a driver that a test can kill: see `test_clusters.py`.

Arguments: `Places` as JSON, and the names of the jobs. Run again, they resume.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import correct_late_job
import pyarrow.parquet as pq
import store_chain_job
from broker import Broker
from handed_blocks import list_blocks
from kafka_query import Stream
from pyspark.sql import SparkSession

QUIET = {
    "ctiFrequency": "1",
    "violationPolicy": "flag",
    "idleTimeout": "1 second",
    "idleAdvance": "3 seconds",
}
QUIET_ROWS = 4
MAX_SKEW = "1 day"
STAGES = ("fine", "topic")
EXECUTORS = 2
LIMIT_S = 300


class Places(NamedTuple):
    """The places that the jobs read and write."""

    bootstrap: str
    master: str
    place: str
    ticks: str
    hours: str
    flights: str
    quiet: str


def main() -> None:
    """Run the jobs that are named, until each has ended."""
    from spark_session import local_spark

    given = Places(*json.loads(sys.argv[1]))
    spark = local_spark(
        "jobs", given.master, spark_executor_memory="512m", spark_sql_adaptive_enabled="false"
    )
    wait_until(lambda: executors(spark) == EXECUTORS)
    for end in [JOBS[name](spark, given) for name in sys.argv[2:]]:
        end()
    spark.stop()


def start_chain(spark: SparkSession, given: Places) -> Callable[[], None]:
    """Windows of a topic in a store, and windows of these in another topic."""
    place = Path(given.place) / "chain"
    topics = given.bootstrap, given.ticks, given.hours
    chain = store_chain_job.start_chain(spark, *topics, place, STAGES)
    return lambda: store_chain_job.wait_until_ended(chain, place)


def start_quiet(spark: SparkSession, given: Places) -> Callable[[], None]:
    """A topic that is quiet, and gets two events more."""
    broker = Broker(given.bootstrap, "given")
    quiet = Stream(spark, broker, given.quiet, Path(given.place) / "quiet", QUIET)
    query = quiet.start(once=False)

    def end() -> None:
        wait_until(lambda: count_rows(quiet.place / "rows") == QUIET_ROWS)
        if os.environ.get("HAND_OVER") != "off":
            # Executors read rows that the driver has been handed (semantics 8.9).
            wait_until(lambda: list_blocks(spark))
        query.stop()

    return end


def start_late(spark: SparkSession, given: Places) -> Callable[[], None]:
    """The hours of the flights in time, read side by side, and then corrections by the others."""
    store = Path(given.place) / "late"
    delay = correct_late_job.SMALL_DELAY
    topic = given.bootstrap, given.flights
    aligned = correct_late_job.read_flights(spark, *topic, delay, maxSkew=MAX_SKEW)
    query = correct_late_job.write_hours(aligned, store)
    rows = correct_late_job.read_flights(spark, *topic, delay)

    def end() -> None:
        query.awaitTermination()
        checkpoint = store.with_name("corrections")
        correct_late_job.correct(rows, store, checkpoint).awaitTermination()

    return end


JOBS: dict[str, Callable[[SparkSession, Places], Callable[[], None]]] = {
    "late": start_late,
    "chain": start_chain,
    "quiet": start_quiet,
}
"""Each starts a job, and returns what waits for its end."""


def count_rows(place: Path) -> int:
    """The rows of data in the batches that are written."""
    written = [each.parent for each in place.glob("batch=*/_SUCCESS")]
    return sum(pq.read_table(each)["cti"].null_count for each in written)


def executors(spark: SparkSession) -> int:
    """How many have registered."""
    context: Any = spark.sparkContext
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s"
        time.sleep(0.2)


if __name__ == "__main__":
    main()
