"""Streaming queries as benchmarks run them: bounded, into `noop`, with what a batch took.

A run has three figures: `batch work`, Spark's `addBatch` of the batch with the data; `triggers`,
`triggerExecution` of all batches, planning, logs and the end-of-run batch included; `whole run`,
from `start()` to the end of the query, as its user waits for it.
"""

import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from side_by_side import Done

__all__ = ["Finished", "finish", "one_batch", "summary"]


class Finished(NamedTuple):
    """A bounded run that has ended: the progress of its batches with rows, in their order.

    `run_s` is the whole run, from its start to its end, and `triggers_s` what its triggers took.
    """

    batches: list[Any]
    run_s: float = 0.0
    triggers_s: float = 0.0

    @property
    def rows(self) -> int:
        """All input rows, CTI rows included."""
        return sum(batch.numInputRows for batch in self.batches)

    def figures(self, batch: Any) -> dict[str, float]:
        """The seconds of the run's figures, given the batch with the data."""
        work_s = batch.durationMs["addBatch"] / 1000
        return {"batch work": work_s, "triggers": self.triggers_s, "whole run": self.run_s}


def finish(frame: DataFrame) -> Finished:
    """Read what there is into `noop`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        began = time.perf_counter()
        query: StreamingQuery = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        run_s = time.perf_counter() - began
        every = query.recentProgress
        triggers_s = sum(batch.durationMs["triggerExecution"] for batch in every) / 1000
        return Finished([each for each in every if each.numInputRows], run_s, triggers_s)


def one_batch(frame: DataFrame, rows: int, extra: float = 0.0, phase: str = "addBatch") -> Done:
    """The one batch with the data; up to `extra` x `rows` CTI rows may come with them.

    Raises:
        SystemExit: the rows were others, or did not come in one batch.
    """
    done = finish(frame)
    full = [batch for batch in done.batches if batch.numInputRows >= rows]
    if not rows <= done.rows <= rows * (1 + extra) or len(full) != 1:
        raise SystemExit(f"{done.rows} rows in {len(done.batches)} batches, not {rows} in one")
    return Done(full[0].durationMs[phase] / 1000, {"rows": rows}, done.figures(full[0]))


def summary(frame: DataFrame, sums: Mapping[str, str]) -> dict[str, Any]:
    """Name -> aggregate over all rows of a bounded stream, as a guard's `checks` want them."""
    aggregates = [F.expr(f"{sql} AS `{name}`") for name, sql in sums.items()]
    found: list[dict[str, Any]] = []

    def collect(batch: DataFrame, number: int) -> None:
        row = batch.agg(*aggregates).first()
        if row and any(value for value in row):
            found.append(row.asDict())

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    if len(found) != 1:
        raise SystemExit(f"{len(found)} batches had rows, not one")
    return found[0]
