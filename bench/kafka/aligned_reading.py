"""A backfill with `maxSkew` and without: rows in Spark's state, peak memory, and run time.

There are four partitions. One has a tenth of the usual number of records and one a hundredth; one
of the dense two begins three hours before the others; all end at the same time. A query counts them
by device and minute, in batches of at most a fixed number of records, once read as they come and
once aligned. Each run has a process of its own, so that the peaks are its own; both must count the
same windows.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from broker import Broker, Record, broker
from memory import PeakMemory
from pyspark.sql import functions as F
from side_by_side import Comparison, report
from sizes import size
from spark_session import local_spark

from pyspark_timestream import advance_time

DENSE = size(200_000, 10_000)
"""Records in HOURS hours of each of the two dense partitions."""

HOURS, BEHIND_HOURS, DEVICES = 4, 3, 1_000
LIMIT = DENSE // 8
BEGIN_MS = 1_767_312_000_000
"""2026-01-02T00:00:00Z."""

WAYS = {"as they come": "", "aligned": "20 minutes"}


def records() -> Iterator[Record]:
    """The partitions one after the other; time is the record's timestamp."""
    hour_ms = 3_600_000
    for number, count in enumerate((DENSE, DENSE // 10, DENSE // 100, DENSE)):
        earlier = count * BEHIND_HOURS // HOURS if number == 3 else 0
        for n in range(-earlier, count):
            at_ms = BEGIN_MS + HOURS * hour_ms * n // count
            yield Record(None, str(n * 7919 % DEVICES), number, at_ms)


def run(bootstrap: str, topic: str, skew: str) -> dict[str, Any]:
    """One run to the end: the windows that it counted, and the times of its batches."""
    settings = {"spark_sql_streaming_numRecentProgressUpdates": "1000"}
    spark = local_spark("aligned reading", spark_driver_memory="2g", **settings)
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "ctiFrequency": "10 seconds",
        "finalCti": "true",
        "maxOffsetsPerTrigger": str(LIMIT),
        **({"maxSkew": skew} if skew else {}),
    }
    rows = spark.readStream.format("timestream").options(**options).load()
    minute = F.window("start_time", "1 minute")
    counts = advance_time(rows).groupBy("key", minute).count()
    found = {"windows": 0, "records": 0}

    def keep(batch: Any, number: int) -> None:
        row = batch.agg(F.count("*"), F.sum("count")).first()
        found["windows"] += row[0]
        found["records"] += row[1] or 0

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = counts.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [json.loads(each.json) for each in query.recentProgress]
    spark.stop()
    states = [batch["stateOperators"][0] for batch in batches]
    return {
        "work": found,
        "state_rows": max(state["numRowsTotal"] for state in states),
        "state_bytes": max(state["memoryUsedBytes"] for state in states),
        "batches": len(batches),
        "seconds": sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000,
    }


def run_apart(kafka: Broker, topic: str, skew: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The same in a process of its own, and its peaks in MB by kind of process."""
    command = [sys.executable, __file__, kafka.bootstrap, topic, skew]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with child, PeakMemory(child.pid) as memory:
        said, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"the run with maxSkew '{skew}' failed ({child.returncode})")
    return json.loads(said.splitlines()[-1]), memory.peaks_mb


def measure(kafka: Broker) -> list[Comparison]:
    """One run each way, as a row for each figure."""
    topic = kafka.create_topic(None, 4)
    rows = kafka.produce(topic, records())
    done, peaks = {}, {}
    for way, skew in WAYS.items():
        done[way], peaks[way] = run_apart(kafka, topic, skew)
    if len({json.dumps(each["work"]) for each in done.values()}) != 1:
        raise SystemExit(f"unequal work is not compared: {done}")
    work = {way: {**each, "peaks_mb": peaks[way]} for way, each in done.items()}

    def row(job: str, unit: str, took: dict[str, float]) -> Comparison:
        return Comparison(job, {way: [each] for way, each in took.items()}, rows, unit, work, peaks)

    return [
        row("backfill, rows of state", "rows", {w: d["state_rows"] for w, d in done.items()}),
        row(
            "backfill, state in memory", "MB", {w: d["state_bytes"] / 1e6 for w, d in done.items()}
        ),
        row("backfill, peak memory, JVM", "MB", {w: p["driver"] for w, p in peaks.items()}),
        row("backfill, peak memory, Python", "MB", {w: p["worker"] for w, p in peaks.items()}),
        row("backfill, run time", "s", {w: d["seconds"] for w, d in done.items()}),
    ]


def main() -> None:
    """Run one way, if told so by arguments; else both, beside a broker."""
    if sys.argv[1:]:
        print(json.dumps(run(*sys.argv[1:])))
        return
    with broker() as kafka:
        report(__file__, measure(kafka))


if __name__ == "__main__":
    main()
