"""A week in one query: whether its last quarter takes and holds no more than its second one.

Devices report to a topic; its broker keeps only the last records. Event time passes faster than the
clock. The query counts by device and minute, CTIs release the windows, and a store with a retained
range of half a day keeps them, merges its files and removes old ones. So every day holds the same,
and all growth is a leak. Samples are taken all the time:

- the memory, threads and open files of the driver, of Spark's process of the source, of the largest
  worker and of all processes but the broker and the producer; the JVM's heap after a collection,
  and the JVM's whole memory (it has its heap from the start, so growth is outside the heap);
- the bytes and files of the store's log, of its other metadata (heads, history) and of its events,
  including the files that left the store within the hour; of the checkpoint; of Spark's temporary
  files;
- the time of a batch, and how far the query is behind the devices, in seconds by the clock.

`steady` says which of them have grown. In the end every minute in the store must have all reports,
and `verify` must find nothing.

    LONG_HOURS   how long it takes by the clock; default 0.9, with QUICK=1 a minute
    LONG_DAYS    how many days of event time that is; default 7

`make long HOURS=4` is the long run; a quick one warms up for too long to be judged.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from broker import Broker, broker
from long_producer import DEVICES, EVERY_S, START_S
from memory import kind_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from side_by_side import report_table
from sizes import QUICK, size, whole_number
from spark_session import local_spark
from steady import Allowed, as_row, judge_all

from pyspark_timestream import advance_time
from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.background import MAX_KEPT_SMALL_FILES

HOURS: Final = float(os.environ.get("LONG_HOURS", size(0.9, 1 / 60)))
DAYS: Final = whole_number("LONG_DAYS", 7)
SPEED: Final = DAYS * 24 / HOURS
"""How much faster event time passes than the clock."""

SAMPLES: Final = 120
SAMPLES_FILE: Final = Path(".work/long_query.jsonl")
RETAINED_HOURS: Final = 12
WINDOW_S: Final = 60
HEAP_MB: Final = 700
SOURCE: Final = "python_streaming_source_runner"

FEW_FILES: Final = Allowed(0.1, 40)
REMOVED_FILES: Final = Allowed(0.1, 40 if HOURS >= 4 else MAX_KEPT_SMALL_FILES)
"""Files that left the store stay for up to an hour, so their number still rises in the second
quarter of a run of less than four hours."""

MEMORY: Final = Allowed(0.1, 10)
ALLOWED: Final[Mapping[str, Allowed]] = {
    "driver MB": MEMORY,
    "source MB": MEMORY,
    "largest worker MB": MEMORY,
    "JVM MB": MEMORY,
    "JVM heap after collection MB": MEMORY,
    "all processes MB": Allowed(0.1, 30),
    "threads": Allowed(0.1, 10),
    "open files": Allowed(0.1, 40),
    "log KB": Allowed(0.15, 200),
    "log files": FEW_FILES,
    "other metadata KB": Allowed(0.15, 8 * REMOVED_FILES.least),
    "other metadata files": REMOVED_FILES,
    "event files": REMOVED_FILES,
    "checkpoint KB": Allowed(0.1, 500),
    "checkpoint files": FEW_FILES,
    "temporary files": FEW_FILES,
    "rows of state": Allowed(0.1, DEVICES),
    "batch ms": Allowed(0.2, 100),
    "slowest batch ms": Allowed(0.5, 1000),
    "behind s": Allowed(0.2, 1),
}
"""How far each quantity may rise. Other load on the machine moves the slowest batch of a sample, so
that it may rise by more; files come and go with each round of maintenance."""


def begin(spark: SparkSession, kafka: Broker, topic: str, place: Path) -> StreamingQuery:
    """Windows of the topic, into the store, batch after batch."""
    reader = spark.readStream.format("timestream").option("transport", "kafka")
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("maxOffsetsPerTrigger", "50000").option("valueFormat", "json")
    reader = reader.option("ctiFrequency", "1").option("ctiDelay", "1 minute")
    rows = reader.option("startTime", "ts").schema(
        "device string, reading double, start_time timestamp, cti timestamp"
    )
    window = F.window("start_time", f"{WINDOW_S} seconds").alias("window")
    counted = advance_time(rows.load()).groupBy("device", window)
    found = counted.agg(F.count("*").alias("reports"), F.max("reading").alias("most"))
    start = F.col("window.start").alias("timestamp")
    frame = found.select(F.col("device").alias("series"), start, "reports", "most")
    writer = frame.writeStream.format("tseries").option("ctiDelay", f"{WINDOW_S} seconds")
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    return writer.trigger(processingTime="1 second").start(str(place / "store"))


class Sampler:
    """Looks at a query, its processes and its files."""

    def __init__(self, spark: SparkSession, query: StreamingQuery, place: Path) -> None:
        self._query, self._place = query, place
        self._runtime = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
        self._last = -1

    def sample(self, event_now_s: float) -> dict[str, float]:
        """The quantities of `ALLOWED`, and more that are kept beside them."""
        self._runtime.gc()
        heap = (self._runtime.totalMemory() - self._runtime.freeMemory()) / 1e6
        found = {"JVM heap after collection MB": heap, **processes()}
        for name, paths in {
            "log": ("store/_delta_log",),
            "other metadata": ("store/_tseries",),
            "event": ("store/kind=event", "store/kind=edit"),
            "checkpoint": ("checkpoint",),
            "temporary": ("spark",),
        }.items():
            files, held = self._count(*paths)
            found |= {f"{name} files": files, f"{name} KB": held / 1e3}
        return {name: round(each, 1) for name, each in (found | self._batches(event_now_s)).items()}

    def _count(self, *paths: str) -> tuple[int, int]:
        """The files below some folders, and their bytes."""
        files = held = 0
        for path in paths:
            for folder, _, names in os.walk(self._place / path):
                for name in names:
                    with suppress(OSError):
                        held += os.stat(f"{folder}/{name}").st_size
                        files += 1
        return files, held

    def _batches(self, event_now_s: float) -> dict[str, float]:
        """The batches since the last look."""
        progress: list[Any] = self._query.recentProgress
        # A trigger without data reports the last batch's number again.
        new = [each for each in progress if each.batchId > self._last and each.numInputRows]
        if not new:
            return {}
        self._last = new[-1].batchId
        took = [each.durationMs["triggerExecution"] for each in new]
        text = new[-1].eventTime.get("watermark")
        behind = event_now_s - datetime.fromisoformat(text).timestamp() if text else 0.0
        return {
            "batch": self._last,
            "batches": len(new),
            "batch ms": statistics.median(took),
            "slowest batch ms": max(took),
            "behind s": behind / SPEED,
            "rows of state": new[-1].stateOperators[0].numRowsTotal,
        }


def processes() -> dict[str, float]:
    """Memory, threads and open files of all processes but the broker and the producer."""
    me = psutil.Process()
    found: Counter[str] = Counter()
    for process in [me, *me.children(recursive=True)]:
        try:
            command = " ".join(process.cmdline())
            kind = kind_of(command)
            if kind == "broker" or "long_producer" in command:
                continue
            held = process.memory_info().rss / 1e6
            found["threads"] += process.num_threads()
            found["open files"] += process.num_fds()
        except psutil.Error:
            continue
        found["all processes MB"] += held  # type: ignore[assignment]
        name = {"driver": "JVM MB", "worker": "largest worker MB"}.get(kind or "")
        name = "driver MB" if process == me else "source MB" if SOURCE in command else name
        if name:
            found[name] = max(found[name], held)  # type: ignore[assignment]
    return dict(found)


@contextmanager
def producing(kafka: Broker, topic: str, began_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """The devices, until the `with` block ends."""
    script = str(Path(__file__).with_name("long_producer.py"))
    arguments = [kafka.bootstrap, topic, str(began_s), str(SPEED)]
    child = subprocess.Popen([sys.executable, script, *arguments])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def run(kafka: Broker, place: Path, samples: list[dict[str, float]]) -> dict[str, Any]:
    """Run the query for `HOURS`, appending to `samples`; return what it has done.

    Raises:
        SystemExit: the query failed, or the store lacks something.
    """
    # The oldest records go, as with every broker: a partition keeps some hours.
    topic = kafka.create_topic(None, 4, retention_bytes=8_000_000, segment_bytes=2_000_000)
    TimeSeries.create(
        place / "store", {"reports": pa.int64(), "most": pa.float64()},
        f"last {RETAINED_HOURS}H", min_retention_age=timedelta(minutes=2),
    )  # fmt: skip
    heap = f"-Xms{HEAP_MB}m -XX:+AlwaysPreTouch"
    spark = local_spark(
        "long", spark_driver_memory=f"{HEAP_MB}m", spark_driver_extraJavaOptions=heap,
        spark_local_dir=str(place / "spark"), spark_sql_adaptive_enabled="false",
        # Spark remembers a thousand batches for its pages, with or without them: a short run would
        # end before that.
        spark_sql_ui_retainedExecutions="100", spark_ui_retainedJobs="100",
        spark_ui_retainedStages="100", spark_ui_retainedTasks="1000",
    )  # fmt: skip
    began_s, began = time.time(), time.monotonic()
    with producing(kafka, topic, began_s) as devices:
        query = begin(spark, kafka, topic, place)
        sampler = Sampler(spark, query, place)
        length_s = HOURS * 3600
        for number in range(1, SAMPLES + 1):
            if query.awaitTermination(
                max(began + number * length_s / SAMPLES - time.monotonic(), 0.1)
            ):
                raise SystemExit("the query ended")
            if devices.poll() is not None:
                raise SystemExit("the producer ended")
            at_s = time.monotonic() - began
            sample = {"seconds": at_s} | sampler.sample(START_S + (time.time() - began_s) * SPEED)
            samples.append(sample)
            # A run that is ended early has these.
            with SAMPLES_FILE.open("a") as file:
                file.write(json.dumps(sample) + "\n")
    query.stop()
    facts = check(place / "store") | {
        "hours": HOURS,
        "batches": samples[-1].get("batch", 0),
        "devices": DEVICES,
        "broker MB": round(broker_mb()),
    }
    spark.stop()
    return facts


def broker_mb() -> float:
    """The broker's memory, which is not judged."""
    children = psutil.Process().children(recursive=True)
    return sum(
        each.memory_info().rss / 1e6
        for each in children
        if kind_of(" ".join(each.cmdline())) == "broker"
    )


def check(store: Path) -> dict[str, Any]:
    """Check that all reports of each minute in the store were counted; return how many it has seen.

    Raises:
        SystemExit: they were not, or the store is damaged.
    """
    opened = TimeSeries.open(store)
    (found,) = (
        opened.sql(
            "SELECT count(*) AS minutes, count(*) FILTER (reports <> $due) AS wrong, "
            "count(DISTINCT (series, timestamp)) AS different, "
            "epoch(min(timestamp))::BIGINT AS first, "
            "epoch(max(timestamp))::BIGINT AS last FROM events",
            {"due": WINDOW_S // EVERY_S},
        )
        .to_arrow_table()
        .to_pylist()
    )
    if not found["minutes"]:
        raise SystemExit("the query has stored nothing: give it more LONG_HOURS")
    described, damage = opened.describe(), opened.verify()
    kept = (found["last"] - found["first"]) // WINDOW_S + 1
    days = (found["last"] + WINDOW_S - START_S) / 86400
    wrong = {
        "minutes without all reports": found["wrong"],
        "minutes that are missing": kept * DEVICES - found["different"],
        "minutes twice": found["minutes"] - found["different"],
        "damage": damage,
        "error of maintenance": described["maintenance_error"],
    }
    if any(wrong.values()):
        raise SystemExit(f"the store is not as it should be: {wrong}")
    return {
        "days of event time": round(days, 2),
        "records": round(days * 86400 / EVERY_S * DEVICES),
        "commits": described["last_commit"],
        "events in the store": described["events"],
    }


def main() -> None:
    """Run, judge and keep.

    Raises:
        SystemExit: something has grown.
    """
    samples: list[dict[str, float]] = []
    SAMPLES_FILE.parent.mkdir(exist_ok=True)
    SAMPLES_FILE.write_text("")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place,
        broker(say=lambda _: None) as kafka,
    ):
        facts = run(kafka, Path(place), samples)
    courses = judge_all(samples, ALLOWED)
    rows = [as_row(name, course) for name, course in courses.items()]
    report_table(__file__, rows, run=facts, samples=samples)
    grown = [name for name, course in courses.items() if not course.is_flat]
    if grown and not QUICK:
        raise SystemExit(f"not flat: {', '.join(grown)}")


if __name__ == "__main__":
    main()
