"""Trigger latency: from a record's produce to the commit of the batch that has it, noop sink.

One partition, 100 records a second; Spark's own Kafka source and ours, in a session with Spark's
defaults and in one as docs/how-to/low-latency.md says. For both sources, Spark's commit log says
when a batch was committed, and its offset log which records it has.

And a query's start: from `start()` to the commit of its first records, in a session that has run
both sources before; BENCH_STARTS (default 20) of each, in turns, the median and the worst.
`latency.py starts` measures those only.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from broker import Broker, Record, broker
from kafka_source import DEFAULT, RECOMMENDED, SETTINGS, spark_source, timestream
from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from side_by_side import ROUNDS, Comparison, Done, compare, report
from sizes import size
from spark_session import local_spark

PER_SECOND = 100
WARM_UP = size(200, 50)
RECORDS = int(os.environ.get("BENCH_RECORDS", size(600, 150)))
STARTS = int(os.environ.get("BENCH_STARTS", size(20, 3)))
LOW = "low-latency settings"
QUERY_STARTS = "starts"
MODES = size(("defaults", LOW, QUERY_STARTS), (LOW, QUERY_STARTS))
SOURCES: Mapping[str, Callable[[SparkSession, Broker, str], DataFrame]] = {
    "spark": spark_source,
    "timestream": timestream,
}
Seconds = npt.NDArray[np.float64]


def latencies(frame: DataFrame, kafka: Broker, topic: str) -> tuple[Seconds, dict[str, float]]:
    """The latency of each record after the first ones, and where a batch spent its time (ms)."""
    # In memory: the load on a shared machine's disk has nothing to do with the sources.
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as place:
        checkpoint = Path(place)
        writer = frame.writeStream.format("noop").option("checkpointLocation", place)
        query = writer.start()
        try:
            _wait_for(lambda: query.lastProgress is not None, query)
            produced_s = trickle(kafka, topic)
            _wait_for(lambda: committed(checkpoint)[0][-1] >= len(produced_s), query)
        finally:
            query.stop()
        ends, when_s = committed(checkpoint)
        batch = np.searchsorted(ends, np.arange(len(produced_s)), side="right")
        return (when_s[batch] - produced_s)[WARM_UP:], _durations(query)


def trickle(kafka: Broker, topic: str) -> Seconds:
    """Produce to partition 0; when each record was produced."""
    producer = kafka.producer(linger_ms=0, acks=1)
    produced_s: list[float] = []
    pace, began_s = threading.Event(), time.monotonic()
    while len(produced_s) < WARM_UP + RECORDS:
        pace.wait(began_s + len(produced_s) / PER_SECOND - time.monotonic())
        produced_s.append(time.time())
        producer.produce(topic, b"x" * 85, partition=0)
        producer.poll(0)
    producer.flush(30)
    return np.array(produced_s)


def committed(checkpoint: Path) -> tuple[npt.NDArray[np.int64], Seconds]:
    """Each committed batch's offset after its last record, and when it was committed."""
    found = []
    for path in (checkpoint / "commits").glob("[0-9]*"):
        offset = (checkpoint / "offsets" / path.name).read_text().splitlines()[-1]
        found.append((_end_of(json.loads(offset)), path.stat().st_mtime))
    ends, when_s = zip(*sorted(found), strict=True)
    return np.array(ends), np.array(when_s)


def _end_of(offset: Mapping[str, Any]) -> int:
    """Where partition 0 ends, in Spark's offset or in ours."""
    (topic,) = offset.get("partitions", offset).values()
    return int(topic["0"]["to"] if isinstance(topic["0"], dict) else topic["0"])


def _wait_for(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline_s = time.monotonic() + 90
    while not condition():
        problem = query.exception()
        if problem is not None:
            raise problem
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the query stands still: {query.lastProgress}")
        time.sleep(0.02)


def _durations(query: StreamingQuery) -> dict[str, float]:
    full = [batch.durationMs for batch in query.recentProgress if batch.numInputRows]
    return {
        name: median(each.get(name, 0) for each in full[5:] or full) for name in sorted(full[-1])
    }


def start_s(frame: DataFrame, records: int) -> float:
    """Seconds from the start of a query to the commit of the records that are there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as place:
        began_s = time.time()
        query = frame.writeStream.format("noop").option("checkpointLocation", place).start()
        try:
            _wait_for(lambda: _has_committed(Path(place), records), query)
        finally:
            query.stop()
        ends, when_s = committed(Path(place))
        return float(when_s[np.searchsorted(ends, records)]) - began_s


def _has_committed(checkpoint: Path, records: int) -> bool:
    return any((checkpoint / "commits").glob("[0-9]*")) and committed(checkpoint)[0][-1] >= records


def starts(spark: SparkSession, kafka: Broker) -> list[Comparison]:
    """The median and the worst start."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Record("x" * 85) for _ in range(PER_SECOND)])

    def run(name: str) -> Done:
        took_s = start_s(SOURCES[name](spark, kafka, topic), PER_SECOND)
        print("start", name, f"{took_s:.2f} s", file=sys.stderr, flush=True)
        return Done(took_s * 1000, {"records": PER_SECOND})

    contenders = {name: (lambda n=name: run(n)) for name in SOURCES}
    found = compare("query start, median", contenders, PER_SECOND, "ms", rounds=STARTS)
    worst = {name: [max(each)] for name, each in found.took.items()}
    return [found, dataclasses.replace(found, job=f"query start, worst of {STARTS}", took=worst)]


def measure(mode: str) -> list[Comparison]:
    """The median and the 95th percentile of one mode, of the same runs; or starts."""
    settings = {
        **SETTINGS[RECOMMENDED if mode == LOW else DEFAULT],
        "spark.sql.streaming.minBatchesToRetain": "100000",
    }
    given = {name.replace(".", "_"): value for name, value in settings.items()}
    spark = local_spark("bench", spark_jars=kafka_jars(), **given)
    seen: dict[str, list[Seconds]] = {name: [] for name in SOURCES}
    with broker(say=lambda _: None) as kafka:
        if mode == QUERY_STARTS:
            return starts(spark, kafka)

        def run(name: str) -> Done:
            topic = kafka.create_topic()
            found, spent = latencies(SOURCES[name](spark, kafka, topic), kafka, topic)
            seen[name].append(found)
            print(mode, name, spent, file=sys.stderr, flush=True)
            return Done(float(np.percentile(found, 50)) * 1000, {"records": len(found)})

        contenders = {name: (lambda n=name: run(n)) for name in SOURCES}
        p50 = compare(f"trigger latency p50, {mode}", contenders, RECORDS, "ms")
    spark.stop()
    p95 = {
        name: [float(np.percentile(each, 95)) * 1000 for each in rounds[-ROUNDS:]]
        for name, rounds in seen.items()
    }
    return [p50, dataclasses.replace(p50, job=f"trigger latency p95, {mode}", took=p95)]


def main() -> None:
    """Measure each mode in a process of its own, because its settings are the session's."""
    if len(sys.argv) > 1:
        print(json.dumps([each.to_json() for each in measure(sys.argv[1])]))
        return
    found: list[Comparison] = []
    for mode in MODES:
        command = [sys.executable, __file__, mode]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found += map(Comparison.from_json, json.loads(done.stdout.splitlines()[-1]))
    report(__file__, found)


if __name__ == "__main__":
    main()
