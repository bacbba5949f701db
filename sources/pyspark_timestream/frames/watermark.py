"""DataFrame helpers that drive Spark's watermark by CTIs (semantics 11).

A source delivers CTIs as rows with `cti` set. `withWatermark` on that column, with no delay, makes
the greatest CTI Spark's watermark; data rows have a null `cti` and cannot move it. Metadata on the
event-time column then tells Spark that the watermark is about that column.
"""

from typing import Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType, TimestampType

from pyspark_timestream.core.instants import FINAL_US, TICK_US, format_instant, parse_duration
from pyspark_timestream.core.session import (
    REQUIRED_SETTINGS,
    ZERO_DELAY_SETTING,
    find_wrong_settings,
    suggest_fix,
)
from pyspark_timestream.errors import SchemaRefused, SettingRefused
from pyspark_timestream.frames.plans import keep_cti_rows

_WATERMARK_KEY: Final = "spark.watermarkDelayMs"
"""The metadata key by which Spark recognizes the column that the watermark is about."""

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
    watermark begins at 1970, and operators would silently drop earlier rows: such a row fails the
    stream, and the message says how to shift it.

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
    keep_ms = _parse_keep(keep)
    check_times(df, event_time)
    _check_session(df)
    df = keep_cti_rows(df)
    # Spark drops a row at exactly the watermark; one tick earlier keeps the CTI's own instant.
    clock = F.col("cti") if releases == "windows" else _subtract_tick(F.col("cti"))
    if _adds_to_zero_delay(df):
        # Spark keeps a delay of a millisecond, so add one first: the watermark is then the CTI.
        punctuated = df.withColumn("cti", clock + F.expr(_MILLISECOND))
        punctuated = punctuated.withWatermark("cti", "1 millisecond")
    else:
        punctuated = df.withColumn("cti", clock).withWatermark("cti", "0 seconds")
    # The nondeterministic term is a barrier: without it the optimizer would push this filter, and
    # every later one, below the watermark, which would then never see a CTI.
    data = punctuated.where(F.col("cti").isNull() & (F.spark_partition_id() >= 0))
    if "violation" in df.columns:
        data = data.where(F.col("violation").isNull() | (F.col("violation") == "adjusted"))
    time = _require_1970(event_time, releases) if df.isStreaming else quote_name(event_time)
    marked = time.alias(event_time, metadata={_WATERMARK_KEY: keep_ms})
    kept = [name for name in df.columns if name != "cti"]
    return data.select(*[marked if name == event_time else quote_name(name) for name in kept])


def _parse_keep(keep: str) -> int:
    """Return the duration in milliseconds, Spark's unit, rounded up."""
    us = parse_duration(keep)
    if not 0 <= us <= FINAL_US:
        raise ValueError(
            f"keep={keep!r}: accepted is a duration of 0 or more, such as '10 minutes'"
        )
    return -(-us // 1_000)


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
    if "cti" in read_schema(slow).names:
        check_timestamp(slow, "cti")
        slow = slow.where(F.col("cti").isNull())
    else:
        slow = slow.withColumn("cti", F.lit(None).cast("timestamp"))
    return slow.unionByName(_extract_ctis(fast), allowMissingColumns=True)


def _extract_ctis(fast: DataFrame) -> DataFrame:
    """Return the CTIs of `fast` as a stream with only that column."""
    if [(field.name, field.dataType) for field in read_schema(fast).fields] == _TICK_COLUMNS:
        return fast.select(F.col("timestamp").alias("cti"))
    if "cti" not in fast.columns:
        raise SchemaRefused(
            "fast has no column 'cti', so there is nothing to import",
            "a stream with CTIs, or the columns 'timestamp' and 'value' of transport 'time'",
            "set option 'ctiFrequency' or 'advanceTime' on fast, and add 'cti timestamp' to its "
            ".schema(...) if you give one; or name the clock: fast.selectExpr('TIME AS cti')",
        )
    check_timestamp(fast, "cti")
    return fast.where(F.col("cti").isNotNull()).select("cti")


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


def check_times(df: DataFrame, event_time: str) -> None:
    """Raise SchemaRefused unless `df` has CTIs and `event_time` is a timestamp."""
    types = {field.name: field.dataType for field in read_schema(df).fields}
    if "cti" not in types:
        raise SchemaRefused(
            "the DataFrame has no column 'cti', so nothing would drive its time",
            "a stream with CTIs",
            "set option 'ctiFrequency', 'advanceTime' or 'finalCti', and add 'cti timestamp' to "
            ".schema(...) if you give one; with option 'metadataPrefix', rename the prefixed "
            "columns 'cti' and 'violation' first",
        )
    if event_time == "cti":
        raise SchemaRefused(
            "event_time='cti' is the clock itself",
            "the column that the CTIs are about",
            "pass the event's time, such as event_time='start_time'",
        )
    for name in (event_time, "cti"):
        check_timestamp(df, name)


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


def check_timestamp(df: DataFrame, name: str, argument: str = "event_time") -> None:
    """Raise SchemaRefused unless column `name`, given as `argument`, is a timestamp."""
    types = {field.name: field.dataType for field in df.schema.fields}
    if not isinstance(types.get(name), TimestampType):
        raise SchemaRefused(
            f"column '{name}' is {types.get(name)}",
            "a timestamp column",
            f"pass {argument}=, one of {sorted(types)}, or add it to .schema(...)",
        )


def _require_1970(event_time: str, releases: str) -> Column:
    """Return the column, but fail at a row that Spark's first watermark, 1970, would drop."""
    time = quote_name(event_time)
    since_1970_us = F.unix_micros(time)
    is_dropped = since_1970_us < 0 if releases == "windows" else since_1970_us <= 0
    text = F.concat(
        # `why` searches for this beginning. In two pieces, or it would also find the text in the
        # query's plan.
        F.lit("pyspark_timestream."),
        F.lit(f"advance_time: column '{event_time}' has a row at "),
        F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"),
        F.lit(
            ", where Spark's watermark begins or before: Spark would silently drop it;  "
            "accepted: event times after 1970-01-01T00:00:00Z; next step: move the stream by whole "
            "400 years, which keeps days and weekdays, advance_time(shift_time(df, '20871 weeks')),"
            " and move its results back by as much"
        ),
    )
    return F.when(is_dropped, F.raise_error(text)).otherwise(time)


def _subtract_tick(cti: Column) -> Column:
    """Return a microsecond before `cti`, but a final CTI itself, since nothing follows it."""
    earlier = F.timestamp_micros(F.unix_micros(cti) - F.lit(TICK_US))
    return F.when(is_final(cti), cti).otherwise(earlier)


def is_final(cti: Column) -> Column:
    """Return whether a CTI is final: a stream's last one."""
    return cti >= F.lit(format_instant(FINAL_US)).cast("timestamp")


def quote_name(name: str) -> Column:
    """Return the column with this name, which may contain dots."""
    return F.col(f"`{name}`")
