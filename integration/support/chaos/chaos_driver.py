"""The driver of a chain: queries that are started again when they fail, as a service manager does.

It imports and begins a session first, and then waits for a line, so that another one can stand by
until this one is killed. It notes each failure in a file, as an operator would see it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from chaos_clock import true_time
from chaos_parts import explained
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time
from pyspark_tseries import TimeSeries

QUERIES = ("windows", "topic", "copy")
WINDOW_S, DELAY_S = 10, 20
RETRY_S = 0.3
ROWS = "series string, n long, start_time timestamp, cti timestamp"


class Places(NamedTuple):
    """The places of the chain."""

    bootstrap: str
    source: str
    target: str
    stores: str
    checkpoints: str
    spill: str
    master: str


def main() -> None:
    """Obey the lines of input: `{"start": [NAME, ...]}`, `{"stop": NAME}`, `{"try": NAME}`."""
    from spark_session import local_spark

    faulthandler.register(signal.SIGUSR1)  # For a look at one that hangs.
    places, events = Places(*json.loads(sys.argv[1])), sys.argv[2]
    spark = local_spark(
        "chaos", places.master, spark_sql_adaptive_enabled="false",
        spark_sql_streaming_stopTimeout="20s", spark_task_maxFailures="4",
        spark_local_dir=places.spill,
    )  # fmt: skip
    supervisor = Supervisor(spark, places, events)
    supervisor.note(is_="ready", pid=os.getpid())
    supervisor.run()


class Supervisor:
    """Keeps the queries running that are wanted."""

    def __init__(self, spark: SparkSession, places: Places, events: str) -> None:
        self._spark, self._places = spark, places
        self._file = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._wanted: set[str] = set()
        self._running: dict[str, Any] = {}
        self._due: dict[str, float] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def note(self, *, is_: str, **facts: Any) -> None:
        os.write(self._file, json.dumps({"at": true_time(), "is": is_, **facts}).encode() + b"\n")

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.put(json.loads(line))
        self._orders.put(None)

    def run(self) -> None:
        """Until the input ends."""
        while True:
            try:
                order = self._orders.get(timeout=0.05)
                if order is None:
                    break
                self._obey(order)
            except queue.Empty:
                pass
            for name in QUERIES:
                self._look_after(name)
        for query in self._running.values():
            query.stop()
        self._spark.stop()

    def _obey(self, order: dict[str, Any]) -> None:
        for name in order.get("start", []):
            self._wanted.add(name)
            self._due[name] = 0.0
        if name := order.get("try"):
            self._due[name] = 0.0
            self._begin(name)
        if name := order.get("stop"):
            self._wanted.discard(name)
            if running := self._running.pop(name, None):
                try:
                    running.stop()
                except Exception as error:
                    self.note(is_="failed", query=name, message=explained(error))
            self.note(is_="stopped", query=name)

    def _look_after(self, name: str) -> None:
        running = self._running.get(name)
        if running is not None:
            if running.isActive:
                return
            error = running.exception()
            self.note(is_="failed", query=name, message=explained(error) if error else "ended")
            del self._running[name]
            self._due[name] = time.monotonic() + RETRY_S
        if name in self._wanted and time.monotonic() >= self._due[name]:
            self._begin(name)

    def _begin(self, name: str) -> None:
        try:
            self._running[name] = getattr(self, f"_{name}")()
        except Exception as error:
            self.note(is_="failed", query=name, message=explained(error))
            self._due[name] = time.monotonic() + RETRY_S
        else:
            self.note(is_="started", query=name)

    # -- the queries -----------------------------------------------------------------------------

    def _windows(self) -> Any:
        """The topic's events, in windows of a store."""
        rows = self._read(
            ROWS, valueFormat="json", startTime="at", ctiFrequency="1",
            ctiDelay=f"{DELAY_S} seconds", violationPolicy="drop",
        )  # fmt: skip
        window = F.window("start_time", f"{WINDOW_S} seconds").alias("window")
        sums = F.sum("n").alias("total"), F.count("*").alias("rows")
        found = advance_time(rows).groupBy("series", window).agg(*sums)
        frame = found.select("series", F.col("window.start").alias("timestamp"), "total", "rows")
        return self._write(frame, "windows", ctiDelay=f"{WINDOW_S} seconds")

    def _topic(self) -> Any:
        """The windows as they were first written, to a second topic."""
        options = {"cti": "true", "subscriptionRange": "unlimited", "maxEventsPerTrigger": "500"}
        path = f"{self._places.stores}/windows"
        rows = self._spark.readStream.format("tseries").options(**options).load(path)
        rows = rows.where("original_sequence IS NULL")
        record = F.to_json(F.struct("series", "timestamp", "total", "rows"))
        value = F.when(F.col("cti").isNull(), record).alias("value")
        options = {
            "transport": "kafka", "kafka.bootstrap.servers": self._places.bootstrap,
            "topic": self._places.target, "writer": "chain", "ctiDelay": "0 seconds",
            "kafka.transaction.timeout.ms": "6000",
        }  # fmt: skip
        writer = rows.select(value, "cti").writeStream.format("timestream").options(**options)
        place = f"{self._places.checkpoints}/topic"
        return writer.option("checkpointLocation", place).queryName("topic").start()

    def _copy(self) -> Any:
        """Every record of the topic, as it is, in a store."""
        rows = self._read("value binary, partition int, offset long")
        frame = rows.select(
            F.concat(F.lit("p"), F.col("partition")).alias("series"),
            F.timestamp_micros("offset").alias("timestamp"),
            F.md5("value").alias("digest"),
        )
        return self._write(frame, "copy")

    def _read(self, schema: str, **options: str) -> DataFrame:
        fixed = {
            "transport": "kafka", "kafka.bootstrap.servers": self._places.bootstrap,
            "subscribe": self._places.source, "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "3000",
        }  # fmt: skip
        reader = self._spark.readStream.format("timestream").schema(schema)
        return reader.options(**fixed, **options).load()

    def _write(self, frame: DataFrame, name: str, **options: str) -> Any:
        writer = frame.writeStream.format("tseries").options(**options).queryName(name)
        place = f"{self._places.checkpoints}/{name}"
        return writer.option("checkpointLocation", place).start(f"{self._places.stores}/{name}")


def create_stores(stores: Path) -> None:
    """The stores of the queries."""
    columns = {"total": pa.int64(), "rows": pa.int64()}
    TimeSeries.create(stores / "windows", columns, retained_range="unlimited")
    TimeSeries.create(stores / "copy", {"digest": pa.string()}, retained_range="unlimited")
    TimeSeries.create(stores / "notes", {"number": pa.int64()}, retained_range="unlimited")


if __name__ == "__main__":
    main()
