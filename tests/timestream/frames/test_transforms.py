"""Refusals of `advance_time`: Spark would lose rows or hold them back."""

import itertools
import json
import os
import re
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from documents import table
from lengths import outside_ci, with_rest_outside_ci
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, alter_lifetime, order_by_time, shift_time, why
from pyspark_timestream.core.session import ZERO_DELAY_SETTING
from pyspark_timestream.errors import SchemaRefused, SettingRefused

pytestmark = pytest.mark.spark

SCHEMA = "station string, start_time timestamp, cti timestamp"
CENTURIES = "20871 weeks"
"""400 years, as the message proposes."""

BACK = timedelta(weeks=20871)
FINAL = {"cti": "9999-12-31T23:59:59Z"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LANDING = datetime(1969, 7, 20, 20, 17, 40, tzinfo=UTC)


@pytest.fixture
def stream(spark, tmp_path):
    """Make a stream with CTIs of files: a batch of events at some times, then a final CTI."""
    numbers = itertools.count()

    def make(*times):
        place = tmp_path / f"stream{next(numbers)}"
        place.mkdir()
        events = [{"station": "a", "start_time": time.isoformat()} for time in times]
        # Spark takes files in the order of their times, which may be the same.
        for name, rows in (("events", events), ("final", [FINAL])):
            (place / name).write_text("\n".join(json.dumps(row) for row in rows))
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(place))

    return make


@pytest.fixture
def rows(spark, tmp_path):
    """Run a streaming frame to its end; its rows as tuples in order."""
    numbers = itertools.count()

    def run(frame):
        name = f"rows{next(numbers)}"
        query = (
            frame.writeStream.format("memory").queryName(name)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return sorted(tuple(map(in_utc, row)) for row in spark.table(name).collect())

    return run


def in_utc(value):
    """A timestamp as Spark gives it, which is in this machine's zone, in UTC."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def test_columns_with_backquotes_and_dots_in_their_names_stay(spark) -> None:
    names = ["a`b", "`c`", "d.e", "start_time", "cti"]
    rows = spark.createDataFrame([(1, 2, 3, LANDING, None)], SCHEMA_OF_ODD_NAMES).toDF(*names)
    assert advance_time(rows).columns == names[:-1]
    assert [tuple(row)[:3] for row in shift_time(rows, "1 hour").collect()] == [(1, 2, 3)]


SCHEMA_OF_ODD_NAMES = "a int, b int, c int, start_time timestamp, cti timestamp"

CANARY = (
    "a window is not released by a CTI at exactly its end. Does this Spark make a millisecond of a "
    "delay of none (Spark PR 56043, "
    "spark.sql.streaming.eventTimeWatermark.bumpZeroDelayToOneMs) by another setting than that?"
)


@pytest.mark.parametrize("bumped", [pytest.param(None, marks=pytest.mark.everyday), "true"])
def test_window_is_released_by_a_cti_at_exactly_its_end(spark, tmp_path, rows, bumped):
    place = tmp_path / "stream"
    place.mkdir()
    lines = [{"station": "a", "start_time": f"2026-01-01T1{hour}:59:59Z"} for hour in (0, 1)]
    lines.append({"cti": "2026-01-01T11:00:00Z"})
    (place / "rows").write_text("\n".join(json.dumps(line) for line in lines))
    if bumped:
        spark.conf.set(ZERO_DELAY_SETTING, bumped)
    try:
        made = windowed(spark.readStream.schema(SCHEMA).json(str(place)))
    finally:
        spark.conf.unset(ZERO_DELAY_SETTING)
    assert [row[1].hour for row in rows(made)] == [11], CANARY


def windowed(df):
    hours = advance_time(df).groupBy("station", F.window("start_time", "1 hour"))
    return hours.count().select("window.start", "window.end", "count")


def in_sessions(df):
    sessions = advance_time(df).groupBy("station", F.session_window("start_time", "10 minutes"))
    return sessions.count().select("session_window.start", "count")


def distinct(df):
    rows = advance_time(df, releases="rows")
    return rows.dropDuplicates(["station", "start_time"]).select("start_time")


def distinct_within(df):
    rows = advance_time(df, releases="rows")
    return rows.dropDuplicatesWithinWatermark(["station"]).select("start_time")


def joined(df):
    one, other = (advance_time(df, releases="rows").alias(name) for name in ("one", "other"))
    same = F.expr("one.station = other.station AND one.start_time = other.start_time")
    return one.join(other, same, "leftOuter").select("one.start_time", "other.start_time")


def ordered(df):
    return order_by_time(df, "station").select("start_time")


HOUR = LANDING.replace(minute=0, second=0)
OPERATORS = {
    windowed: (HOUR, HOUR + timedelta(hours=1), 1),
    in_sessions: (LANDING, 1),
    distinct: (LANDING,),
    distinct_within: (LANDING,),
    joined: (LANDING, LANDING),
    ordered: (LANDING,),
}
"""Each with what it makes of one event."""


@pytest.mark.parametrize(
    "operator",
    with_rest_outside_ci(OPERATORS, [joined, ordered]),
    ids=lambda operator: operator.__name__,
)
def test_an_event_before_1970_fails_the_query_by_name_in_every_operator(
    stream, rows, operator, capsys
):
    with pytest.raises(StreamingQueryException) as failure:
        rows(operator(stream(EPOCH + timedelta(days=1), LANDING)))
    said = "column 'start_time' has a row at 1969-07-20T20:17:40.000000Z, where Spark's watermark"
    why(failure.value)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(said)
    assert f"advance_time(shift_time(df, '{CENTURIES}'))" in line


@pytest.mark.parametrize(
    "operator",
    [
        *(pytest.param(each, marks=pytest.mark.everyday) for each in (windowed, ordered)),
        *outside_ci(*(each for each in OPERATORS if each not in (windowed, ordered))),
    ],
    ids=lambda operator: operator.__name__,
)
def test_an_event_before_1970_passes_every_operator_once_it_is_shifted(stream, rows, operator):
    (row,) = rows(operator(shift_time(stream(LANDING), CENTURIES)))
    moved = tuple(each - BACK if isinstance(each, datetime) else each for each in row)
    assert moved == OPERATORS[operator]


@pytest.mark.everyday
def test_results_before_1970_are_moved_back_into_a_store(stream, spark, tmp_path):
    hours = windowed(shift_time(stream(LANDING), CENTURIES)).select(
        F.lit("landings").alias("series"),
        F.expr(f"start - INTERVAL {CENTURIES}").alias("timestamp"),
        "count",
    )
    query = (
        hours.writeStream.format("tseries").option("retainedRange", "unlimited")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start(str(tmp_path / "store"))
    )  # fmt: skip
    query.awaitTermination()
    (row,) = spark.read.format("tseries").load(str(tmp_path / "store")).collect()
    assert (in_utc(row.timestamp), row["count"]) == (HOUR, 1)


@pytest.mark.outside_ci
def test_an_event_at_the_very_beginning_of_1970_is_refused_where_spark_drops_it(stream, rows):
    assert rows(windowed(stream(EPOCH))) == [(EPOCH, EPOCH + timedelta(hours=1), 1)]
    with pytest.raises(StreamingQueryException, match=r"a row at 1970-01-01T00:00:00\.000000Z"):
        rows(distinct(stream(EPOCH)))
    a_tick_later = EPOCH + timedelta(microseconds=1)
    assert rows(distinct(stream(a_tick_later))) == [(a_tick_later,)]


def test_ctis_before_1970_are_harmless(stream, rows):
    events = stream(EPOCH)
    early = F.when(F.col("cti").isNotNull(), F.lit("1960-01-01").cast("timestamp"))
    assert rows(windowed(events.withColumn("cti", early))) == []


@pytest.mark.parametrize(
    ("name", "is_said", "next_step"),
    [
        ("start_tim", "'start_tim' is missing", r"event_time=, one of \['start_time'\], or add a"),
        ("station", "'station' is string", r"event_time=, one of \['start_time'\], or add a"),
    ],
)
def test_an_event_time_that_is_none_is_told_with_those_that_are(spark, name, is_said, next_step):
    frame = spark.createDataFrame([], SCHEMA)
    with pytest.raises(SchemaRefused, match=f"column {is_said}") as refused:
        advance_time(frame, event_time=name)
    assert re.search(next_step, refused.value.next_step)
    advance_time(frame, event_time="start_time")


def test_an_event_time_of_another_type_is_to_be_declared_as_a_timestamp(spark):
    frame = spark.createDataFrame([], "start_time string, cti timestamp")
    with pytest.raises(SchemaRefused, match=r"declare 'start_time timestamp' in \.schema"):
        advance_time(frame)


def test_a_frame_that_has_its_time_already_is_told_where_to_call(spark):
    advanced = advance_time(spark.createDataFrame([], SCHEMA))
    with pytest.raises(SchemaRefused, match=r"no column 'cti'.*call this once, on what \.load"):
        advance_time(advanced)


NO_NAMES = [None, 3, b"start_time", F.lit, {1: 2}, timedelta(0)]


@pytest.mark.parametrize(
    ("argument", "helper"),
    [
        ("event_time", advance_time),
        ("event_time", partial(shift_time, by="1 hour")),
        ("end_time", partial(shift_time, by="1 hour")),
        ("event_time", partial(alter_lifetime, duration="1 hour")),
        ("end_time", partial(alter_lifetime, duration="1 hour")),
        ("event_time", partial(order_by_time, by="station")),
        ("by", order_by_time),
    ],
)
def test_what_is_no_name_of_a_column_is_refused_with_an_example(spark, argument, helper):
    frame = spark.createDataFrame([], SCHEMA)
    optional = argument == "end_time" and helper.func is shift_time
    for no_name in [*NO_NAMES[optional:], F.col("start_time"), [F.col("station")]]:
        with pytest.raises(SchemaRefused, match=f"{argument}=.* and not the name of a") as refused:
            helper(frame, **{argument: no_name})
        assert f"{argument}='" in refused.value.next_step


def test_a_batch_frame_may_hold_any_time(spark):
    frame = spark.createDataFrame([("a", LANDING, None)], SCHEMA)
    assert [in_utc(row.start_time) for row in advance_time(frame).collect()] == [LANDING]


SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": ("max", "the slower one are silently dropped"),
    "spark.sql.streaming.noDataMicroBatches.enabled": ("false", "waits for the next record"),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("helper", [advance_time, lambda df: order_by_time(df, "station")])
def test_a_setting_that_breaks_what_ctis_promise_is_refused_by_name(spark, stream, name, helper):
    (value, reason), usual = SETTINGS[name], spark.conf.get(name)
    df = stream(LANDING)
    spark.conf.set(name, value.upper())
    try:
        with pytest.raises(SettingRefused) as refusal:
            helper(df)
        advance_time(spark.createDataFrame([("a", LANDING, None)], SCHEMA))
    finally:
        spark.conf.set(name, usual)
    assert f"setting '{name}' is '{value}'" in str(refusal.value).replace(value.upper(), value)
    assert reason in str(refusal.value)
    assert f"spark.conf.set('{name}', '{usual}')" in str(refusal.value)
    helper(df)


@pytest.mark.outside_ci
def test_duplicates_are_dropped_for_as_long_as_keep_says(spark, tmp_path, rows):
    place = tmp_path / "stream"
    place.mkdir()
    # The second is a duplicate within 10 minutes of the first, though a CTI has passed that; the
    # third is not. The CTI is in force from the batch after the next on.
    batches = [[event_at(0), cti_at(5)], [cti_at(5)], [event_at(6), cti_at(20)], [cti_at(20)]]
    batches.append([event_at(21)])
    for number, batch in enumerate(batches):
        path = place / f"{number}.json"
        path.write_text("\n".join(json.dumps(row) for row in batch))
        os.utime(path, (number, number))
    read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(place))

    def find(**keep):
        kept = advance_time(read, releases="rows", **keep)
        times = rows(kept.dropDuplicatesWithinWatermark(["station"]).select("start_time"))
        return [minute(time) for (time,) in times]

    assert find(keep="10 minutes") == [0, 21]
    assert find() == [0, 6, 21]


@pytest.fixture
def released(spark, tmp_path):
    """Run a frame of sessions over batches of rows: (batch, first minute, last minute, events)."""

    def run(releases, *batches):
        place = tmp_path / releases
        place.mkdir()
        for number, batch in enumerate(batches):
            path = place / f"{number}.json"
            path.write_text("\n".join(json.dumps(row) for row in batch))
            os.utime(path, (number, number))
        read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(place))
        rows = advance_time(read, releases=releases)
        sessions = count_sessions(rows)
        found = []

        def keep(batch, number):
            found.extend(
                (number, minute(row.s.start), minute(row.s.end), row["count"])
                for row in batch.collect()
            )

        query = (
            sessions.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / f"{releases} checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return found

    return run


def count_sessions(rows):
    gap = F.session_window("start_time", "10 minutes").alias("s")
    return rows.groupBy("station", gap).count()


def minute(time):
    return (time.astimezone(UTC) - NOON).total_seconds() / 60


def event_at(minute):
    return {"station": "a", "start_time": (NOON + timedelta(minutes=minute)).isoformat()}


def cti_at(minute):
    return {"cti": (NOON + timedelta(minutes=minute)).isoformat()}


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT_THE_END = [[event_at(0), cti_at(10)], [cti_at(10)], [event_at(10), cti_at(20)], [cti_at(20.1)]]
"""An event at exactly the end of a session, after a CTI at that end, which allows it."""


@pytest.mark.outside_ci
def test_sessions_wait_for_an_event_at_their_end_with_releases_rows(released, spark) -> None:
    times = [("a", NOON), ("a", NOON + timedelta(minutes=10))]
    (row,) = count_sessions(
        spark.createDataFrame(times, "station string, start_time timestamp")
    ).collect()
    once = minute(row.s.start), minute(row.s.end), row["count"]
    # The CTI at 20 is in force in batch 3, which brings that past the end, for the batch after.
    assert released("rows", *AT_THE_END) == [(4, *once)]
    assert once == (0, 20, 2)


@pytest.mark.outside_ci
def test_sessions_are_torn_at_their_end_with_releases_windows(released) -> None:
    torn = [row[1:] for row in released("windows", *AT_THE_END)]
    assert torn == [(0, 10, 1), (10, 20, 1)]


def test_what_spark_itself_refuses_is_on_the_page_of_errors(spark, stream, tmp_path) -> None:
    """The page has Spark's words: a Spark with others needs others there."""
    events = stream(LANDING)
    ticks = spark.readStream.format("rate").load().withColumnRenamed("timestamp", "start_time")
    clocked = advance_time(ticks.withColumn("cti", F.col("start_time")))
    named = advance_time(events).withColumn("series", F.lit("a"))
    store, kept = str(tmp_path / "store"), {"checkpointLocation": str(tmp_path / "checkpoint")}
    hours = events.groupBy(F.window("start_time", "1 hour")).count()
    updates = named.writeStream.format("tseries").outputMode("update").options(**kept)
    refused = {
        "not supported for streaming aggregations without watermark": lambda: (
            hours.writeStream.format("noop").options(**kept).start()
        ),
        "Continuous processing does not support EventTimeWatermark": lambda: (
            clocked.writeStream.format("noop").trigger(continuous="1 second").start()
        ),
        "tseries does not support Update mode": lambda: updates.start(store).awaitTermination(),
        "checkpointLocation must be specified": lambda: named.writeStream.format("tseries").start(
            store
        ),
        "Failed to find the data source": lambda: spark.read.format("timestreams").load(),
        'cannot be written in the "ErrorIfExists" mode': lambda: (
            spark.range(1).write.format("tseries").save(store)
        ),
    }
    rows = table("docs/reference/errors.md", "errors of Spark")
    assert [row[0].strip("`") for row in rows] == [*refused, "JAVA_GATEWAY_EXITED"]
    for said, start in refused.items():
        with pytest.raises(Exception, match=re.escape(said)):
            start()
