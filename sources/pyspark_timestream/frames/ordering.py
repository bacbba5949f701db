"""`order_by_time`: an out-of-order stream in event-time order, as its CTIs commit it.

How it works: rows wait in Spark's state, grouped by key and event time, until the watermark that
the CTIs drive reaches that time; Spark then removes the group from its state and hands it over.
What one batch releases is sorted. So there is no Python in the state, any state store does, and a
row's columns come out exactly as they went in.

The rules are semantics 11.9.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.frames.watermark import advance_time, read_schema

__all__ = ["ARRIVAL", "add_arrival", "order_by_time", "sort_by_time"]

ARRIVAL: Final = ("__batch", "__task", "__row")
"""The columns, of 64-bit integers, that hold a row's arrival; they sort in this order."""
_WAITING_COLUMN: Final = "__waiting"
_BATCH_TIME: Final = "__batch_time"
"""The column with the time of a row's batch, the same in every row of the batch and its replays."""


def order_by_time(
    df: DataFrame, by: str | Sequence[str], event_time: str = "start_time"
) -> DataFrame:
    """The data rows of `df`, per key `by` in event-time order, each as soon as it is final.

    A row is released once a CTI is above its time, and less than a millisecond late: no earlier row
    can follow. Rows of the same time keep the order in which they arrived. The state holds only the
    rows at or above the CTI. The rows of a batch are grouped by key in one task,
    ordered by time. A final CTI releases all. Rows are released exactly once into a sink that is
    idempotent per batch. Flagged rows (late, malformed) are left out, as by `advance_time`, and
    so are rows without an event time.

    Args:
        df: a stream with a timestamp column `cti`, null on data rows.
        by: the key column, or several; a null is a key like any other.
        event_time: the column that the CTIs are about.

    Returns:
        The columns of `df` without `cti`.

    Raises:
        SchemaRefused: `df` lacks one of the columns, or has one of a reserved name.
    """
    keys = [by] if isinstance(by, str) else list(by)
    _check_columns(df, keys, event_time)
    rows = advance_time(df, event_time, releases="rows")
    rows = rows.where(F.col(_quoted(event_time)).isNotNull() & (F.spark_partition_id() >= 0))
    wanted = rows.schema
    if df.isStreaming:
        rows = rows.withColumn(_BATCH_TIME, F.current_timestamp())
    arrivals = [StructField(name, LongType(), False) for name in ARRIVAL]
    arrived = rows.mapInArrow(
        partial(_add_arrival, is_stream=df.isStreaming), StructType([*wanted.fields, *arrivals])
    )
    kept = [name for name in arrived.columns if name not in (*keys, event_time)]
    waiting = F.collect_list(F.struct(*[F.col(_quoted(name)) for name in kept]))
    groups = [F.col(_quoted(name)) for name in dict.fromkeys((*keys, event_time))]
    released = arrived.groupBy(*groups).agg(waiting.alias(_WAITING_COLUMN))
    released = released.select(*groups, F.inline(_WAITING_COLUMN))
    # One task for all of a key, so that its rows stay in order on their way into a sink.
    together = released.repartition(*[F.col(_quoted(name)) for name in keys])
    together = together.select(*[F.col(_quoted(name)) for name in arrived.columns])
    return together.mapInArrow(partial(_sort_by_time, event_time=event_time), wanted)


def _add_arrival(batches: Iterable[pa.RecordBatch], is_stream: bool) -> Iterator[pa.RecordBatch]:
    context: Any = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId")
    batch_id = None if number is None and is_stream else int(number or 0)
    return add_arrival(batches, batch_id, context.partitionId(), has_time=is_stream)


def _sort_by_time(batches: Iterable[pa.RecordBatch], event_time: str) -> Iterator[pa.RecordBatch]:
    return sort_by_time(batches, event_time)


def _check_columns(df: DataFrame, keys: Sequence[str], event_time: str) -> None:
    data = [name for name in read_schema(df).names if name not in ("cti", event_time)]
    for name in keys:
        if name not in data:
            raise SchemaRefused(
                f"by='{name}' is not a key of the DataFrame",
                f"one of {sorted(data)}, or a list of them",
                "correct the name, or add it to .schema(...)",
            )
    if not keys:
        raise SchemaRefused(
            "by is empty",
            "one column, or several",
            "for an order over all rows add a constant column, and order by that: one task then "
            "sorts everything",
        )
    for name in (*ARRIVAL, _WAITING_COLUMN, _BATCH_TIME):
        if name in df.columns:
            raise SchemaRefused(
                f"column '{name}' has a name that order_by_time uses itself",
                "any other",
                "rename it",
            )


def _quoted(name: str) -> str:
    return f"`{name}`"


def add_arrival(
    batches: Iterable[pa.RecordBatch], batch_id: int | None, task: int, *, has_time: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in the same order, each with its arrival as last columns.

    Args:
        batches: the rows.
        batch_id: the number of their batch; None: not known, and its time counts instead. Spark
            tells no number where rows are computed in another thread than the query's own, as in
            `foreachBatch` of Spark Connect.
        task: the number of their task.
        has_time: the last column is the time of the batch, and is left out.
    """
    first = 0
    for batch in batches:
        count = batch.num_rows
        columns, fields = list(batch.columns), list(batch.schema)
        number = batch_id
        if has_time:
            time = columns.pop().cast(pa.int64())
            del fields[-1]
            number = time[0].as_py() if number is None and count else number
        numbers = (
            pa.repeat(pa.scalar(number or 0, pa.int64()), count),
            pa.repeat(pa.scalar(task, pa.int64()), count),
            pa.array(np.arange(first, first + count)),
        )
        first += count
        fields += [pa.field(name, pa.int64()) for name in ARRIVAL]
        yield pa.RecordBatch.from_arrays([*columns, *numbers], schema=pa.schema(fields))


def sort_by_time(batches: Iterable[pa.RecordBatch], event_time: str) -> Iterator[pa.RecordBatch]:
    """The released rows of one task in the order of (event time, arrival), without arrivals."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return
    rows = pa.Table.from_batches(found)
    order = [(name, "ascending") for name in (event_time, *ARRIVAL)]
    yield from rows.sort_by(order).drop_columns(list(ARRIVAL)).to_batches()
