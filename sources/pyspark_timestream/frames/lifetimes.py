"""DataFrame helpers that shift events, change their lifetimes, and put them in order.

A CTI at c promises that no event starts before c. If every start moves by the same duration, so
must the CTIs (semantics 11.8 and 11.11). The promise does not cover ends, so a new end moves no
CTI. Only an end edge has its end as its own time: `shift_time` moves it with the CTIs if asked,
and `alter_lifetime` leaves it out, because the start already determines the new end.

For `order_by_time` (11.9) rows wait in Spark's state, grouped by key and event time, until the CTIs
move the watermark past that time. Spark then releases the group, and a task sorts everything that
one batch releases. So the state holds no Python objects, and any state store works.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DayTimeIntervalType, LongType, StructField, StructType

from pyspark_timestream.core.instants import FINAL_US, MIN_US, parse_duration
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.frames.watermark import (
    advance_time,
    check_times,
    check_timestamp,
    is_final,
    quote_name,
    read_schema,
)

_LONGEST_US: Final = FINAL_US - MIN_US
_SECONDS: Final = "decimal(20,6)"
"""Holds an interval of days to seconds as a number of seconds, exact to the microsecond."""


def shift_time(
    df: DataFrame, by: str, event_time: str = "start_time", end_time: str | None = None
) -> DataFrame:
    """Move the event times and CTIs of `df` by the duration `by`, which may be negative.

    A final CTI stays; no other time moves past it. Semantics 11.8.

    Args:
        df: a stream with a timestamp column `cti`, null on data rows.
        by: a duration such as `5 minutes` or `-1 tick`.
        event_time: the column to move; the `original_*` columns stay.
        end_time: a second column to move, such as `end_time` of intervals and edges; without it
            ends stay.

    Raises:
        SchemaRefused: `df` has no such column, or no `cti`; or `end_time` is one of the two.
        ValueError: `by` is not a duration.
    """
    us = _parse_shift(by)
    check_times(df, event_time)
    moved = {event_time: _shift(quote_name(event_time), us), "cti": _shift_cti(us)}
    if end_time is not None:
        _check_end(df, event_time, end_time)
        moved[end_time] = _shift(quote_name(end_time), us)
    return _replace(df, moved)


def alter_lifetime(
    df: DataFrame,
    duration: str | Column,
    by: str = "0 seconds",
    event_time: str = "start_time",
    end_time: str = "end_time",
) -> DataFrame:
    """Let every event of `df` last for `duration`, from its start moved by `by`.

    CTIs also move by `by`, since they are about starts; a final CTI stays. Points become intervals.
    Edges no longer need end edges, so this function drops those, flagged ones included; take
    flagged rows from `df` itself. Semantics 11.11.

    Args:
        df: a stream with a timestamp column `cti`, null on data rows; a stream of edges also has
            the column `edge`.
        duration: the lifetime of an event, greater than zero: a text such as `5 minutes`, or a
            column of intervals of days to seconds over the columns of `df`, such as
            `F.col("end_time") - F.col("start_time") + F.expr("INTERVAL 1 MINUTE")`.
        by: moves starts and CTIs by this duration; may be negative.
        event_time: the column of starts.
        end_time: the column of ends, exclusive; added last if `df` has none. An end after the last
            legal instant becomes that instant.

    Raises:
        SchemaRefused: `df` has no column `event_time`, or no `cti`; `end_time` is one of the two,
            or not a timestamp; or a column `duration` has another type than intervals of days to
            seconds.
        ValueError: a text is not a duration, or `duration` is not greater than zero. If a column
            `duration` is null or not greater than zero in a row, the query fails.
    """
    us = _parse_shift(by)
    check_times(df, event_time)
    _check_end(df, event_time, end_time, may_be_missing=True)
    start = quote_name(event_time)
    length_us = _parse_length(duration) if isinstance(duration, str) else _measure(df, duration)
    end_us = F.unix_micros(_shift(start, us)) + F.when(start.isNotNull(), length_us)
    end = F.timestamp_micros(F.when(end_us.isNotNull(), F.least(end_us, F.lit(FINAL_US))))
    if "edge" in df.columns:
        df = df.where(F.coalesce(F.col("edge") != "end", F.lit(True)))
    return _replace(df, {event_time: _shift(start, us), "cti": _shift_cti(us), end_time: end})


def _parse_shift(by: str) -> int:
    us = parse_duration(by)
    if abs(us) > _LONGEST_US:
        raise ValueError(f"by={by!r}: longer than all of time, from year 1 to year 9999")
    return us


def _parse_length(duration: str) -> Column:
    us = parse_duration(duration)
    if not 0 < us <= _LONGEST_US:
        raise ValueError(
            f"duration={duration!r}: accepted is more than nothing, and at most all of time, from "
            "year 1 to year 9999"
        )
    return F.lit(us)


def _measure(df: DataFrame, duration: Column) -> Column:
    """Return a column of intervals in microseconds; null, zero or less fails the query."""
    kind = df.select(duration).schema.fields[0].dataType
    if kind != DayTimeIntervalType(DayTimeIntervalType.DAY, DayTimeIntervalType.SECOND):
        raise SchemaRefused(
            f"duration is a column of type {kind.simpleString()}",
            "intervals of days to seconds",
            "subtract two timestamps, or use F.expr(\"INTERVAL '5' MINUTE\") or make_dt_interval",
        )
    us = (duration.cast(_SECONDS) * 1_000_000).cast("bigint")
    text = F.concat(
        # In two pieces, or `why` would also find the text in the query's plan.
        F.lit("pyspark_timestream."),
        F.lit("alter_lifetime: an event has the duration "),
        F.coalesce(duration.cast("string"), F.lit("null")),
        F.lit(
            ";  accepted: a duration longer than nothing; next step: give such events another "
            "duration, or leave them out before alter_lifetime"
        ),
    )
    return F.when(us > 0, F.least(us, F.lit(_LONGEST_US))).otherwise(F.raise_error(text))


def _check_end(
    df: DataFrame, event_time: str, end_time: str, *, may_be_missing: bool = False
) -> None:
    if end_time in (event_time, "cti"):
        raise SchemaRefused(
            f"end_time={end_time!r} is the column of starts or of CTIs",
            "the column of the events' ends",
            "pass the event's end, such as end_time='end_time'",
        )
    if end_time in df.columns or not may_be_missing:
        check_timestamp(df, end_time, argument="end_time")


def _replace(df: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """Replace some columns of `df` in place; new ones come last."""
    kept = [columns[n].alias(n) if n in columns else quote_name(n) for n in df.columns]
    return df.select(*kept, *[c.alias(n) for n, c in columns.items() if n not in df.columns])


def _shift_cti(us: int) -> Column:
    cti = F.col("cti")
    return F.when(is_final(cti), cti).otherwise(_shift(cti, us))


def _shift(instant: Column, us: int) -> Column:
    """Move `instant` by `us`, clamped to legal application times; null stays null."""
    moved = F.unix_micros(instant) + F.lit(us)
    # `least` and `greatest` skip nulls, and a null must stay one.
    clamped = F.greatest(F.least(moved, F.lit(FINAL_US)), F.lit(MIN_US))
    return F.timestamp_micros(F.when(instant.isNotNull(), clamped))


ARRIVAL: Final = ("__batch", "__task", "__row")
"""The 64-bit integer columns that hold a row's arrival; they sort in this order."""
_WAITING_COLUMN: Final = "__waiting"
_BATCH_TIME: Final = "__batch_time"
"""The column with the batch's time, the same in every row of the batch and of its replays."""


def order_by_time(
    df: DataFrame, by: str | Sequence[str], event_time: str = "start_time"
) -> DataFrame:
    """Return the data rows of `df` in event-time order per key `by`, each as soon as it is final.

    A CTI above a row's time releases the row, less than a millisecond late: no earlier row can
    follow. Rows of the same time keep their order of arrival. The state holds only the rows at or
    above the CTI. One task delivers all rows of a key in a batch, ordered by time. A final CTI
    releases everything. A sink that is idempotent per batch gets each row exactly once. Flagged
    rows (late, malformed) are left out, as in `advance_time`, and so are rows without an event
    time.

    Args:
        df: a stream with a timestamp column `cti`, null on data rows.
        by: the key column, or several; null is a key like any other.
        event_time: the column that the CTIs are about.

    Returns:
        The columns of `df` without `cti`.

    Raises:
        SchemaRefused: `df` lacks one of the columns, or has one with a reserved name.
    """
    keys = [by] if isinstance(by, str) else list(by)
    _check_columns(df, keys, event_time)
    rows = advance_time(df, event_time, releases="rows")
    rows = rows.where(quote_name(event_time).isNotNull() & (F.spark_partition_id() >= 0))
    schema = rows.schema
    if df.isStreaming:
        rows = rows.withColumn(_BATCH_TIME, F.current_timestamp())
    arrivals = [StructField(name, LongType(), False) for name in ARRIVAL]
    arrived = rows.mapInArrow(
        partial(_add_arrival, is_stream=df.isStreaming), StructType([*schema.fields, *arrivals])
    )
    kept = [name for name in arrived.columns if name not in (*keys, event_time)]
    waiting = F.collect_list(F.struct(*[quote_name(name) for name in kept]))
    groups = [quote_name(name) for name in dict.fromkeys((*keys, event_time))]
    released = arrived.groupBy(*groups).agg(waiting.alias(_WAITING_COLUMN))
    released = released.select(*groups, F.inline(_WAITING_COLUMN))
    # One task for all rows of a key, so that they stay in order on their way into a sink.
    together = released.repartition(*[quote_name(name) for name in keys])
    together = together.select(*[quote_name(name) for name in arrived.columns])
    return together.mapInArrow(partial(sort_by_time, event_time=event_time), schema)


def _add_arrival(batches: Iterable[pa.RecordBatch], is_stream: bool) -> Iterator[pa.RecordBatch]:
    context: Any = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId")
    batch_id = None if number is None and is_stream else int(number or 0)
    return add_arrival(batches, batch_id, context.partitionId(), has_time=is_stream)


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


def add_arrival(
    batches: Iterable[pa.RecordBatch], batch_id: int | None, task: int, *, has_time: bool = False
) -> Iterator[pa.RecordBatch]:
    """Append each row's arrival to the rows of one task, and keep their order.

    If the last column is the batch's time (`has_time`), remove it; it replaces an unknown number of
    the batch. Spark gives none if another thread than the query's own computes the rows, as in
    `foreachBatch` of Spark Connect.
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
    """Sort the released rows of one task by event time and arrival, and remove the arrivals."""
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return
    rows = pa.Table.from_batches(filled)
    order = [(name, "ascending") for name in (event_time, *ARRIVAL)]
    yield from rows.sort_by(order).drop_columns(list(ARRIVAL)).to_batches()
