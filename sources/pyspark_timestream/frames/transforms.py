"""Drive Spark's watermark by CTIs, shift times and lifetimes, order rows (semantics 11).

A source delivers CTIs as rows with `cti` set. `withWatermark` on that column, with no delay, makes
the greatest CTI Spark's watermark; data rows have a null `cti` and cannot move it. Metadata on the
event-time column then tells Spark that the watermark is about that column.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DayTimeIntervalType, LongType, StructField, StructType, TimestampType

from pyspark_timestream.core.arrow import CTI_COLUMN
from pyspark_timestream.core.checkpoint import WATERMARK_KEY
from pyspark_timestream.core.declarations import quote_column
from pyspark_timestream.core.instants import (
    FINAL_US,
    MIN_US,
    TICK_US,
    format_instant,
    read_duration,
)
from pyspark_timestream.core.session import (
    REQUIRED_SETTINGS,
    ZERO_DELAY_SETTING,
    find_wrong_settings,
    suggest_fix,
)
from pyspark_timestream.errors import SchemaRefused, SettingRefused
from pyspark_timestream.frames.plans import keep_cti_rows

_MILLISECOND: Final = "INTERVAL '0.001' SECOND"
_RELEASE_MODES: Final = ("windows", "rows")
_TICK_COLUMNS: Final = [("timestamp", TimestampType()), ("value", LongType())]
"""The columns of transport `time`, and of Spark's own `rate` source."""
_IN_PIPELINE_FUNCTION: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""Spark's error condition if a function of a declarative pipeline inspects a DataFrame."""


def advance_time(
    df: DataFrame,
    event_time: str = "start_time",
    releases: str = "windows",
    keep: str = "0 seconds",
) -> DataFrame:
    """Return the data rows of `df`, without `cti`; only the CTIs drive Spark's watermark.

    Flagged rows (late, malformed) are left out, because a CTI's promise does not cover them. Take
    them from `df` itself. Filters on other columns may come before this call: CTI rows pass them.
    Any other operator that would remove CTI rows, such as a join, is refused by name. Spark's
    watermark begins at 1970, and operators would silently drop earlier rows: so an earlier row
    fails the stream, and the message says how to shift it.

    Args:
        df: a stream with a timestamp column `cti`, null on data rows.
        event_time: the column that the CTIs are about.
        releases: `windows` for windowed aggregation: a CTI that reaches `e` releases the window
            `[s, e)`. `rows` for operators on the column itself (joins, deduplication, timers):
            rows at exactly the CTI stay legal, rows before it are final.
        keep: `dropDuplicatesWithinWatermark` remembers a key for this long after its event time,
            such as `10 minutes`, as with the delay of `withWatermark`. No other operator uses it.

    Raises:
        SchemaRefused: `df` has no such column, or no `cti`; or an operator below would remove the
            CTI rows.
        SettingRefused: a setting of `df`'s session would lose rows or hold them back.
        ValueError: `releases` is neither, or `keep` is not a duration of 0 or more.
    """
    if releases not in _RELEASE_MODES:
        raise ValueError(f"releases={releases!r}: accepted are 'windows' and 'rows'")
    accepts = "a duration of 0 or more, such as '10 minutes'"
    # Rounded up to Spark's unit.
    keep_ms = -(-read_duration("keep", keep, accepts, at_most_us=FINAL_US) // 1_000)
    check_time_columns(df, event_time)
    _check_session(df)
    df = keep_cti_rows(df)
    # Spark drops a row at exactly the watermark; one tick earlier keeps the CTI's own instant.
    clock = F.col(CTI_COLUMN) if releases == "windows" else _subtract_tick(F.col(CTI_COLUMN))
    if _adds_to_zero_delay(df):
        # Spark keeps a delay of a millisecond, so add one first: the watermark is then the CTI.
        punctuated = df.withColumn(CTI_COLUMN, clock + F.expr(_MILLISECOND))
        punctuated = punctuated.withWatermark(CTI_COLUMN, "1 millisecond")
    else:
        punctuated = df.withColumn(CTI_COLUMN, clock).withWatermark(CTI_COLUMN, "0 seconds")
    # The nondeterministic term is a barrier: without it the optimizer would push this filter, and
    # every later one, below the watermark, which would then never see a CTI.
    data = punctuated.where(F.col(CTI_COLUMN).isNull() & (F.spark_partition_id() >= 0))
    if "violation" in df.columns:
        data = data.where(F.col("violation").isNull() | (F.col("violation") == "adjusted"))
    time = _require_1970(event_time, releases) if df.isStreaming else quote_name(event_time)
    marked = time.alias(event_time, metadata={WATERMARK_KEY: keep_ms})
    data_columns = [name for name in df.columns if name != CTI_COLUMN]
    return data.select(
        *[marked if name == event_time else quote_name(name) for name in data_columns]
    )


def import_ctis(slow: DataFrame, fast: DataFrame) -> DataFrame:
    """Return the data rows of `slow` with the CTIs of `fast`.

    A join of the two then releases results as soon as `fast` allows. The CTIs of `slow` itself are
    left out. No violation policy applies: after `advance_time`, Spark's operators silently drop a
    row with a time before a CTI that has already arrived. If rows of `slow` may be late, use option
    `ctiImport` instead. A final CTI of `fast` also ends `slow`.

    Args:
        slow: the stream that gets CTIs.
        fast: a stream with a timestamp column `cti`; or the ticks of transport `time`, columns
            `timestamp` and `value`: each tick is a CTI at its time. Spark reads `fast` twice.

    Returns:
        The columns of `slow`, and `cti` (last, if `slow` has none).

    Raises:
        SchemaRefused: `fast` has no CTIs, or a `cti` column is not a timestamp.
    """
    if CTI_COLUMN in read_schema(slow).names:
        _check_timestamp(slow, CTI_COLUMN)
        slow = slow.where(F.col(CTI_COLUMN).isNull())
    else:
        slow = slow.withColumn(CTI_COLUMN, F.lit(None).cast("timestamp"))
    return slow.unionByName(_extract_ctis(fast), allowMissingColumns=True)


def _extract_ctis(fast: DataFrame) -> DataFrame:
    """Return the CTIs of `fast` as a stream with only that column."""
    if [(field.name, field.dataType) for field in read_schema(fast).fields] == _TICK_COLUMNS:
        return fast.select(F.col("timestamp").alias(CTI_COLUMN))
    if CTI_COLUMN not in fast.columns:
        raise SchemaRefused(
            "fast has no column 'cti', so there is nothing to import",
            "a stream with CTIs, or the columns 'timestamp' and 'value' of transport 'time'",
            "set option 'ctiFrequency' or 'advanceTime' on fast, and add 'cti timestamp' to its "
            ".schema(...) if you give one; or name the clock: fast.selectExpr('TIME AS cti')",
        )
    _check_timestamp(fast, CTI_COLUMN)
    return fast.where(F.col(CTI_COLUMN).isNotNull()).select(CTI_COLUMN)


def read_schema(df: DataFrame) -> StructType:
    """Return the columns of `df`; call this before any other request to a Spark Connect server.

    Raises:
        SchemaRefused: a function of a declarative pipeline asks, which Spark forbids.
    """
    try:
        return df.schema
    except AnalysisException as error:
        if error.getCondition() != _IN_PIPELINE_FUNCTION:
            raise
        raise SchemaRefused(
            "a function of a pipeline may not ask which columns a DataFrame has, as this one does",
            "a DataFrame that is built outside of such functions",
            "build it at the top of the file, and let the pipeline's function return it",
        ) from None


_EXAMPLES: Final = {"by": "station", "event_time": "start_time", "end_time": "end_time"}
"""A column's name for each argument that takes one."""


def read_names(argument: str, value: str | Iterable[str]) -> list[str]:
    """Return the names of columns that an argument gives as a text, or as several.

    Raises:
        SchemaRefused: it is something else, such as a Column.
    """
    is_one = isinstance(value, str | Column) or not isinstance(value, Iterable)
    names: list[Any] = [value] if is_one else list(value)
    for name in names:
        check_name(argument, name)
    return names


def check_name(argument: str, name: object) -> None:
    """Raise SchemaRefused unless `name` is a text; a Column is none."""
    if not isinstance(name, str):
        raise SchemaRefused(
            f"{argument}={name!r} is {type(name).__name__} and not the name of a column",
            "a column's name as text",
            f"pass that, such as {argument}='{_EXAMPLES[argument]}'",
        )


def check_time_columns(df: DataFrame, event_time: str) -> None:
    """Raise SchemaRefused unless `df` has CTIs and `event_time` is a timestamp."""
    check_name("event_time", event_time)
    types = {field.name: field.dataType for field in read_schema(df).fields}
    if CTI_COLUMN not in types:
        raise SchemaRefused(
            "the DataFrame has no column 'cti', so nothing would drive its time",
            "a stream with CTIs",
            "call this once, on what .load() gives, before columns are chosen or rows grouped; set "
            "option 'ctiFrequency', 'advanceTime' or 'finalCti', and add 'cti timestamp' to "
            ".schema(...) if you give one; with option 'metadataPrefix', rename the prefixed "
            "columns 'cti' and 'violation' first",
        )
    if event_time == CTI_COLUMN:
        raise SchemaRefused(
            "event_time='cti' is the clock itself",
            "the column that the CTIs are about",
            "pass the event's time, such as event_time='start_time'",
        )
    for name in (event_time, CTI_COLUMN):
        _check_timestamp(df, name)


def _check_session(df: DataFrame) -> None:
    """Refuse wrong settings of the session; tasks check the settings at a query's start."""
    if not df.isStreaming:
        return
    conf = df.sparkSession.conf
    for name, value in find_wrong_settings(lambda name: conf.get(name, None)).items():
        raise SettingRefused(
            f"setting '{name}' is '{value}': {REQUIRED_SETTINGS[name].reason}",
            "Spark's default",
            suggest_fix(name),
        )


def _adds_to_zero_delay(df: DataFrame) -> bool:
    """Return whether this Spark turns a zero delay into a millisecond (semantics 11.13)."""
    try:
        return str(df.sparkSession.conf.get(ZERO_DELAY_SETTING)).lower() == "true"
    except PySparkException:
        # The session does not know the setting: no released Spark has it.
        return False


def _check_timestamp(df: DataFrame, name: str, argument: str = "event_time") -> None:
    """Raise SchemaRefused unless column `name`, given as `argument`, is a timestamp."""
    types = {field.name: field.dataType for field in df.schema.fields}
    found = types.get(name)
    if isinstance(found, TimestampType):
        return
    times = sorted(
        each for each in types if isinstance(types[each], TimestampType) and each != CTI_COLUMN
    )
    if name == CTI_COLUMN:
        next_step = "rename it if it is yours: timestream's own column 'cti' is a timestamp"
    else:
        given = f"pass {argument}=, one of {times}, or " if times else ""
        added = (
            f"declare '{name} timestamp' in"
            if found and not times
            else "add a column with the time to"
        )
        next_step = f"{given}{added} .schema(...)"
    raise SchemaRefused(
        f"column '{name}' is {'missing' if found is None else found.simpleString()}",
        "a timestamp column",
        next_step,
    )


def _require_1970(event_time: str, releases: str) -> Column:
    """Return the column, but fail at a row that Spark's first watermark, 1970, would drop."""
    time = quote_name(event_time)
    since_1970_us = F.unix_micros(time)
    is_dropped = since_1970_us < 0 if releases == "windows" else since_1970_us <= 0
    failure = _fail(
        f"advance_time: column '{event_time}' has a row at ",
        F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"),
        ", where Spark's watermark begins or before: Spark would silently drop it;  "
        "accepted: event times after 1970-01-01T00:00:00Z; next step: move the stream by whole "
        "400 years, which keeps days and weekdays, advance_time(shift_time(df, '20871 weeks')),"
        " and move its results back by as much",
    )
    return F.when(is_dropped, failure).otherwise(time)


def _fail(beginning: str, value: Column, end: str) -> Column:
    """Return a column that fails with the text around `value`; `beginning` names the function."""
    # `why` searches for this beginning. In two pieces, or it would also find the text in the
    # query's plan.
    pieces = F.lit("pyspark_timestream."), F.lit(beginning), value, F.lit(end)
    return F.raise_error(F.concat(*pieces))


def _subtract_tick(cti: Column) -> Column:
    """Return a microsecond before `cti`, but a final CTI itself, since nothing follows it."""
    earlier = F.timestamp_micros(F.unix_micros(cti) - F.lit(TICK_US))
    return F.when(is_final(cti), cti).otherwise(earlier)


def is_final(cti: Column) -> Column:
    """Return whether a CTI is final: a stream's last one."""
    return cti >= F.lit(format_instant(FINAL_US)).cast("timestamp")


def quote_name(name: str) -> Column:
    """Return the column with this name, which may contain dots."""
    return F.col(quote_column(name))


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
    check_time_columns(df, event_time)
    shifted = {event_time: _shift(quote_name(event_time), us), CTI_COLUMN: _shift_cti(us)}
    if end_time is not None:
        _check_end(df, event_time, end_time)
        shifted[end_time] = _shift(quote_name(end_time), us)
    return _replace(df, shifted)


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
            `F.col("end_time") - F.col("start_time") + F.expr("INTERVAL 1 MINUTE")`. Spark
            subtracts what the clock of the session's time zone shows: set that to UTC, or a
            lifetime over a change of that clock is an hour off.
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
    fixed_us = None if isinstance(duration, Column) else _parse_length(duration)
    check_time_columns(df, event_time)
    _check_end(df, event_time, end_time, may_be_missing=True)
    start = quote_name(event_time)
    length_us = _measure(df, duration) if isinstance(duration, Column) else F.lit(fixed_us)
    end_us = F.unix_micros(_shift(start, us)) + F.when(start.isNotNull(), length_us)
    end = F.timestamp_micros(F.when(end_us.isNotNull(), F.least(end_us, F.lit(FINAL_US))))
    if "edge" in df.columns:
        df = df.where(F.coalesce(F.col("edge") != "end", F.lit(True)))
    return _replace(df, {event_time: _shift(start, us), CTI_COLUMN: _shift_cti(us), end_time: end})


def _parse_shift(by: str) -> int:
    accepts = "a duration such as '5 minutes' or '-1 tick', at most the years 1 to 9999"
    return read_duration("by", by, accepts, at_least_us=-_LONGEST_US, at_most_us=_LONGEST_US)


def _parse_length(duration: str) -> int:
    accepts = "a duration above 0, such as '5 minutes', at most the years 1 to 9999"
    return read_duration("duration", duration, accepts, at_least_us=TICK_US, at_most_us=_LONGEST_US)


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
    failure = _fail(
        "alter_lifetime: an event has the duration ",
        F.coalesce(duration.cast("string"), F.lit("null")),
        ";  accepted: a duration longer than nothing; next step: give such events another "
        "duration, or leave them out before alter_lifetime",
    )
    return F.when(us > 0, F.least(us, F.lit(_LONGEST_US))).otherwise(failure)


def _check_end(
    df: DataFrame, event_time: str, end_time: str, *, may_be_missing: bool = False
) -> None:
    check_name("end_time", end_time)
    if end_time in (event_time, CTI_COLUMN):
        raise SchemaRefused(
            f"end_time={end_time!r} is the column of starts or of CTIs",
            "the column of the events' ends",
            "pass the event's end, such as end_time='end_time'",
        )
    if end_time in df.columns or not may_be_missing:
        _check_timestamp(df, end_time, argument="end_time")


def _replace(df: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """Replace some columns of `df` in place; new ones come last."""
    names = dict.fromkeys([*df.columns, *columns])
    return df.select(
        *[columns[name].alias(name) if name in columns else quote_name(name) for name in names]
    )


def _shift_cti(us: int) -> Column:
    cti = F.col(CTI_COLUMN)
    return F.when(is_final(cti), cti).otherwise(_shift(cti, us))


def _shift(instant: Column, us: int) -> Column:
    """Move `instant` by `us`, clamped to legal application times; null stays null."""
    shifted_us = F.unix_micros(instant) + F.lit(us)
    # `least` and `greatest` skip nulls, and a null must stay one.
    clamped = F.greatest(F.least(shifted_us, F.lit(FINAL_US)), F.lit(MIN_US))
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
    keys = read_names("by", by)
    _check_columns(df, keys, event_time)
    rows = advance_time(df, event_time, releases="rows")
    rows = rows.where(quote_name(event_time).isNotNull() & (F.spark_partition_id() >= 0))
    schema = rows.schema
    if df.isStreaming:
        rows = rows.withColumn(_BATCH_TIME, F.current_timestamp())
    arrivals = [StructField(name, LongType(), False) for name in ARRIVAL]
    arrived = _map_in_arrow(
        rows,
        partial(_add_arrival, is_stream=df.isStreaming),
        StructType([*schema.fields, *arrivals]),
    )
    data_columns = [name for name in arrived.columns if name not in (*keys, event_time)]
    waiting = F.collect_list(F.struct(*[quote_name(name) for name in data_columns]))
    groups = [quote_name(name) for name in dict.fromkeys((*keys, event_time))]
    released = arrived.groupBy(*groups).agg(waiting.alias(_WAITING_COLUMN))
    released = released.select(*groups, F.inline(_WAITING_COLUMN))
    # One task for all rows of a key, so that they stay in order on their way into a sink.
    together = released.repartition(*[quote_name(name) for name in keys])
    together = together.select(*[quote_name(name) for name in arrived.columns])
    return _map_in_arrow(together, partial(sort_by_time, event_time=event_time), schema)


def _map_in_arrow(
    df: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    names = df.columns
    if not any(mark in name for name in names for mark in ".`"):
        return df.mapInArrow(function, schema)
    # Spark's method takes a dot in a column's name for the way into a struct.
    plain = df.toDF(*[f"column_{number}" for number in range(len(names))])
    return plain.mapInArrow(partial(_map_named, function=function, names=names), schema)


def _map_named(
    batches: Iterable[pa.RecordBatch],
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    return function(batch.rename_columns(names) for batch in batches)


def _add_arrival(batches: Iterable[pa.RecordBatch], *, is_stream: bool) -> Iterator[pa.RecordBatch]:
    context: Any = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId")
    batch_id = None if number is None and is_stream else int(number or 0)
    return add_arrival(batches, batch_id, context.partitionId(), has_time=is_stream)


def _check_columns(df: DataFrame, keys: Sequence[str], event_time: str) -> None:
    check_name("event_time", event_time)
    data = [name for name in read_schema(df).names if name not in (CTI_COLUMN, event_time)]
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
    next_row = 0
    for batch in batches:
        count = batch.num_rows
        columns, fields = list(batch.columns), list(batch.schema)
        batch_number = batch_id
        if has_time:
            del fields[-1]
            times = columns.pop().cast(pa.int64())
            if batch_number is None and count:
                batch_number = times[0].as_py()
        arrival = (
            pa.repeat(pa.scalar(batch_number or 0, pa.int64()), count),
            pa.repeat(pa.scalar(task, pa.int64()), count),
            pa.array(np.arange(next_row, next_row + count)),
        )
        next_row += count
        fields += [pa.field(name, pa.int64()) for name in ARRIVAL]
        yield pa.RecordBatch.from_arrays([*columns, *arrival], schema=pa.schema(fields))


def sort_by_time(batches: Iterable[pa.RecordBatch], event_time: str) -> Iterator[pa.RecordBatch]:
    """Sort the released rows of one task by event time and arrival, and remove the arrivals."""
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return
    rows = pa.Table.from_batches(filled)
    order = [(name, "ascending") for name in (event_time, *ARRIVAL)]
    yield from rows.sort_by(order).drop_columns(list(ARRIVAL)).to_batches()
