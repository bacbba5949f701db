"""One bounded run of a query in a session of Spark, and its figures."""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from core_seconds import CoreSeconds
from pyspark.sql import SparkSession

from nexmark.sources import Topic, frame

__all__ = ["Taken", "run"]


class Taken(NamedTuple):
    """The times of a run, in seconds.

    Attributes:
        core_s: of processors, in all processes.
        whole_s: from `start()` to the end.
        batches_s: `addBatch` of all batches; None for Flink.
        triggers_s: `triggerExecution` of all batches; None for Flink.
        dropped: the rows that operators have dropped as late; None for Flink.
    """

    core_s: float
    whole_s: float
    batches_s: float | None = None
    triggers_s: float | None = None
    dropped: int | None = None


def run(
    source: str, query: str, spark: SparkSession, topic: Topic, rows: Path | None = None
) -> Taken:
    """Run a query to the end of the topic.

    Args:
        source: of `sources.SOURCES`.
        query: its name.
        spark: the session.
        topic: the topic.
        rows: where its rows go, as Parquet; None if nowhere.
    """
    result = frame(source, query, spark, topic)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = result.writeStream.option("checkpointLocation", checkpoint)
        writer = writer.trigger(availableNow=True)
        sink = writer.format("noop") if rows is None else writer.format("parquet")
        with CoreSeconds() as spent:
            began = time.perf_counter()
            started = sink.start() if rows is None else sink.start(str(rows))
            started.awaitTermination()
            whole_s = time.perf_counter() - began
        progress = started.recentProgress
    times = [each.durationMs for each in progress]
    return Taken(
        spent.total_s,
        whole_s,
        sum(each.get("addBatch", 0) for each in times) / 1000,
        sum(each["triggerExecution"] for each in times) / 1000,
        sum(each.numRowsDroppedByWatermark for one in progress for each in one.stateOperators),
    )
