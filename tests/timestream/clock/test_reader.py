"""Transport `time` as Spark drives it: first only the reader, then real queries."""

import json
import logging
import pickle
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.functions import col, udf
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from pyspark_timestream.clock.reader import TIME_SCHEMA, TimeStreamReader, TimeTransport
from pyspark_timestream.clock.time_options import read_time_options
from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.errors import CheckpointMismatch, CheckpointUnreadable, OptionError

SECOND = 1_000_000
ALL = ReadAllAvailable()
SAMPLE = Path(__file__).parents[1] / "formats" / "time_offset.json"
YEAR = "2026-01-01T00:00:00Z"


class FakeClock:
    """A real clock that a test sets, and that counts how often it is read."""

    def __init__(self, now_us=0):
        self.now_us, self.reads = now_us, 0

    def __call__(self):
        self.reads += 1
        return self.now_us


def reader(clock=None, **options):
    return TimeStreamReader(read_time_options(options), clock or FakeClock())


def rows(stream, start, end):
    batches = [b for part in stream.partitions(start, end) for b in stream.read(part)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def values(stream, start, end):
    return [value for _, value in rows(stream, start, end)]


def through_json(offset):
    return json.loads(json.dumps(offset))


def test_the_first_batch_carries_data_and_its_offset_alone_replays_it():
    clock = FakeClock(5 * SECOND)
    end = reader(clock).latestOffset(INITIAL_OFFSET, ALL)
    clock.now_us = 99 * SECOND
    replay = reader(clock)
    assert replay.initialOffset() == INITIAL_OFFSET
    assert values(replay, replay.initialOffset(), through_json(end)) == [0]


def test_a_start_without_due_ticks_is_recorded_all_the_same():
    clock = FakeClock(100 * SECOND)
    end = reader(clock, delay="60").latestOffset(INITIAL_OFFSET, ALL)
    assert values(reader(clock, delay="60"), INITIAL_OFFSET, end) == []
    clock.now_us += 60 * SECOND
    after = reader(clock, delay="60").latestOffset(through_json(end), ALL)
    assert (after["started_us"], after["from"], after["to"]) == (100 * SECOND, 0, 1)


def test_nothing_due_returns_the_very_start_so_that_spark_runs_no_batch():
    stream = reader(FakeClock())
    end = stream.latestOffset(INITIAL_OFFSET, ALL)
    assert json.dumps(stream.latestOffset(through_json(end), ALL)) == json.dumps(end)


def test_an_offsets_keys_are_sorted_because_spark_compares_text():
    end = reader(FakeClock()).latestOffset(INITIAL_OFFSET, ALL)
    assert json.dumps(end) == json.dumps(end, sort_keys=True)


def test_the_wall_clock_is_read_once_a_call_and_never_goes_back():
    clock = FakeClock(10 * SECOND)
    stream = reader(clock)
    end = stream.latestOffset(INITIAL_OFFSET, ALL)
    clock.now_us = 12 * SECOND
    end = stream.latestOffset(end, ALL)
    clock.now_us = 0
    assert stream.latestOffset(end, ALL) == end
    assert clock.reads == 3
    assert stream.reportLatestOffset()["simulatedTime"] == "1970-01-01T00:00:12Z"
    assert clock.reads == 3


def test_a_cap_comes_from_the_option_and_from_the_limit_that_spark_passes():
    clock = FakeClock()
    stream = reader(clock, maxTicksPerTrigger="2", rate="max", maxCount="5")
    assert stream.getDefaultReadLimit() == ReadMaxRows(2)
    first = stream.latestOffset(INITIAL_OFFSET, ReadMaxRows(2))
    rest = stream.latestOffset(first, ALL)
    assert (values(stream, INITIAL_OFFSET, first), values(stream, first, rest)) == (
        [0, 1],
        [2, 3, 4],
    )
    assert reader().getDefaultReadLimit() == ALL


def test_available_now_delivers_what_was_due_when_it_was_prepared():
    clock = FakeClock(10 * SECOND)
    first = reader(clock).latestOffset(INITIAL_OFFSET, ALL)
    clock.now_us = 12 * SECOND
    stream = reader(clock)
    stream.prepareForTriggerAvailableNow()
    clock.now_us = 90 * SECOND
    end = stream.latestOffset(first, ALL)
    assert values(stream, first, end) == [1, 2]
    assert stream.latestOffset(end, ALL) is end


def test_a_batch_is_split_into_contiguous_tasks():
    stream = reader(rate="max", maxCount="10", numPartitions="3", timeZero=YEAR)
    end = stream.latestOffset(INITIAL_OFFSET, ALL)
    parts = pickle.loads(pickle.dumps(stream.partitions(INITIAL_OFFSET, end)))
    assert [(p.start_inclusive, p.end_exclusive) for p in parts] == [(0, 3), (3, 6), (6, 10)]
    assert values(stream, INITIAL_OFFSET, end) == list(range(10))


@pytest.mark.parametrize(
    ("count", "tasks", "is_handed"),
    [(1, 1, True), (10_000, 1, True), (10_001, 1, False), (9, 2, False)],
)
def test_a_small_batch_of_one_task_is_handed_over_with_it(count, tasks, is_handed):
    options = {"rate": "max", "maxCount": str(count), "numPartitions": str(tasks), "timeZero": YEAR}
    stream = TimeTransport(options).stream_reader(TIME_SCHEMA)
    stream.set_handed_schema(TIME_SCHEMA)
    end = stream.latestOffset(INITIAL_OFFSET, ALL)
    parts = stream.partitions(INITIAL_OFFSET, end)
    handed = list(stream.getCache(INITIAL_OFFSET, end))
    expected = [batch for part in parts for batch in stream.read(part)]
    assert handed == (expected if is_handed else [])
    # A batch that is planned again, as after a restart, is the same.
    stream.partitions(INITIAL_OFFSET, end)
    assert list(stream.getCache(INITIAL_OFFSET, end)) == handed


def test_rows_have_exactly_the_types_that_spark_checks():
    stream = reader(rate="max", maxCount="1")
    batch = next(
        stream.read(stream.partitions(INITIAL_OFFSET, stream.latestOffset(INITIAL_OFFSET, ALL))[0])
    )
    utc = pa.timestamp("us", tz="UTC")
    types = {"timestamp": utc, "value": pa.int64()}
    expected = [pa.field(name, each, nullable=False) for name, each in types.items()]
    assert batch.schema.equals(pa.schema(expected))


def test_skips_are_warned_of_once_a_batch_recorded_and_survive_a_restart(caplog):
    clock = FakeClock()
    first = reader(clock, overflow="skip").latestOffset(INITIAL_OFFSET, ALL)
    clock.now_us = 7 * SECOND
    with caplog.at_level(logging.WARNING, "pyspark_timestream"):
        stream = reader(clock, overflow="skip")
        end = stream.latestOffset(first, ALL)
        assert stream.latestOffset(end, ALL) is end
        assert values(stream, first, through_json(end)) == [7]
    (record,) = caplog.records
    assert "overflow=skip: 6 overdue timestamps skipped, ticks 1 to 6" in record.getMessage()
    clock.now_us = 8 * SECOND
    again = reader(clock, overflow="skip")
    after = again.latestOffset(through_json(end), ALL)
    assert values(again, end, after) == [8]
    assert again.reportLatestOffset()["skipped"] == 6


def test_without_skipping_a_late_batch_delivers_everything_across_a_restart():
    clock = FakeClock()
    first = reader(clock).latestOffset(INITIAL_OFFSET, ALL)
    clock.now_us = 7 * SECOND
    stream = reader(clock)
    assert values(stream, first, stream.latestOffset(through_json(first), ALL)) == [*range(1, 8)]


def test_progress_says_what_comes_next_and_when_the_stream_has_ended():
    stream = reader(FakeClock(), rate="max", maxCount="3", timeZero=YEAR, maxTicksPerTrigger="2")
    assert stream.reportLatestOffset() is None
    end = stream.latestOffset(INITIAL_OFFSET, ReadMaxRows(2))
    assert stream.reportLatestOffset() == {
        "cti": "2026-01-01T00:00:02Z",
        "endOfStream": False,
        "maxCount": 3,
        "nextTick": 2,
        "simulatedTime": "2026-01-01T00:00:01Z",
        "skipped": 0,
        "ticksBehind": 1,
    }
    stream.latestOffset(end, ReadMaxRows(2))
    report = stream.reportLatestOffset()
    assert (report["endOfStream"], report["cti"]) == (True, "9999-12-31T23:59:59Z")


def test_a_stream_of_no_ticks_ends_with_its_first_batch():
    stream = reader(maxCount="0")
    end = stream.latestOffset(INITIAL_OFFSET, ALL)
    assert values(stream, INITIAL_OFFSET, end) == []
    assert stream.reportLatestOffset()["endOfStream"]


def test_the_offset_in_the_sample_is_continued():
    offset = json.loads(SAMPLE.read_text())
    kept = {"delay": "0.5", "maxCount": "10", "period": "1/3", "rate": "2", "timeZero": YEAR}
    stream = reader(FakeClock(1795248385395402 + 2 * SECOND), **kept)
    # A sentinel start asks for everything up to the offset: 0.5 + k/3 seconds, floored.
    assert [
        (t.second * 1000 + t.microsecond // 1000, k)
        for t, k in rows(stream, INITIAL_OFFSET, offset)
    ] == [
        (500, 0),
        (833, 1),
        (1166, 2),
        (1500, 3),
        (1833, 4),
    ]
    after = stream.latestOffset(offset, ALL)
    assert {key: after[key] for key in after if key not in ("from", "to")} == {
        key: offset[key] for key in offset if key not in ("from", "to")
    }
    # Two real seconds are four simulated ones: 0.5 + k/3 <= 4 up to k = 10, and 9 is the last of
    # these.
    assert (after["from"], after["to"]) == (5, 10)


@pytest.mark.parametrize("call", ["latestOffset", "partitions"])
def test_an_offset_of_format_version_2_is_refused_by_name(call):
    offset = {**json.loads(SAMPLE.read_text()), "version": 2}
    arguments = {"latestOffset": (offset, ALL), "partitions": (INITIAL_OFFSET, offset)}[call]
    with pytest.raises(CheckpointMismatch, match=r"format version 2; .* reads version 1"):
        getattr(reader(), call)(*arguments)


CHANGES = {
    "timeZero": ("not set", YEAR),
    "delay": ("0", "1"),
    "period": ("1", "0.5"),
    "maxCount": ("not set", "5"),
    "overflow": ("all", "skip"),
    "rate": ("1", "2"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_refused_naming_option_old_and_new(name):
    old, new = CHANGES[name]
    start = reader().latestOffset(INITIAL_OFFSET, ALL)
    said = f"option '{name}' was '{old}' when this checkpoint was made and is '{new}' now"
    with pytest.raises(CheckpointMismatch, match=said):
        reader(**{name: new}).latestOffset(start, ALL)


def test_limits_may_change_on_a_checkpoint():
    start = reader().latestOffset(INITIAL_OFFSET, ALL)
    assert reader(maxTicksPerTrigger="1", numPartitions="4").latestOffset(start, ALL) == start


def test_another_user_schema_is_refused_and_a_batch_read_too():
    transport = TimeTransport({})
    assert transport.schema() == TIME_SCHEMA
    with pytest.raises(OptionError, match=r"'struct<value:string>' was given with \.schema"):
        transport.stream_reader(type(TIME_SCHEMA)().add("value", "string"))
    with pytest.raises(OptionError, match=r"'time' cannot be read with spark\.read;"):
        transport.reader(TIME_SCHEMA)


@pytest.mark.parametrize("nullable", [False, True])
def test_columns_are_never_null_but_a_user_may_declare_them_so(nullable):
    names = ("timestamp", "value")
    types = (TimestampType(), LongType())
    fields = [StructField(*each, nullable) for each in zip(names, types, strict=True)]
    schema = StructType(fields)
    stream = TimeTransport({"rate": "max", "maxCount": "3"}).stream_reader(schema)
    [part] = stream.partitions(INITIAL_OFFSET, stream.latestOffset(INITIAL_OFFSET, ALL))
    [batch] = stream.read(part)
    assert [field.nullable for field in batch.schema] == [nullable, nullable]
    assert batch["value"].to_pylist() == [0, 1, 2]


# ---- real queries ----


def stream_of(spark, **options):
    return spark.readStream.format("timestream").options(**options).load()


def write(frame, tmp_path):
    """A query into Parquet files, which keep exactly one copy of every batch."""
    return (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )


def written(spark, tmp_path):
    frame = spark.read.schema(TIME_SCHEMA).parquet(str(tmp_path / "out"))
    micros = frame.orderBy("value").selectExpr("unix_micros(timestamp)", "value")
    return [tuple(row) for row in micros.collect()]


def available_now(frame, tmp_path):
    query = write(frame, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def report(query):
    return json.loads(query.lastProgress.sources[0].latestOffset)


@pytest.mark.spark
@pytest.mark.everyday
def test_a_stream_ends_at_max_count_and_its_progress_says_so(spark, tmp_path):
    frame = stream_of(spark, timeZero=YEAR, period="0.0005", rate="1", maxCount="100")
    query = write(frame, tmp_path).start()
    deadline = time.monotonic() + 240
    while not (query.lastProgress and report(query)["endOfStream"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    query.processAllAvailable()
    query.stop()
    # Half a millisecond apart, rounded down: two ticks for each millisecond.
    zero_us = parse_instant(YEAR)
    assert written(spark, tmp_path) == [(zero_us + k // 2 * 1000, k) for k in range(100)]
    assert report(query)["nextTick"] == 100


@pytest.mark.outside_ci
@pytest.mark.spark
def test_available_now_first_gives_tick_0_and_later_what_came_due(spark, tmp_path):
    available_now(stream_of(spark, period="1/3"), tmp_path)
    (first,) = written(spark, tmp_path)
    assert first[1] == 0
    time.sleep(1)
    available_now(stream_of(spark, period="1/3"), tmp_path)
    again = written(spark, tmp_path)
    assert again[0] == first
    assert len(again) >= 4
    # A third of a second each, from the first start on: the restart did not move the clock.
    assert all(abs(us - first[0] - k * SECOND / 3) < 1000 for us, k in again)
    assert [k for _, k in again] == list(range(len(again)))


@pytest.mark.outside_ci
@pytest.mark.spark
def test_available_now_honours_the_cap_in_several_batches(spark, tmp_path):
    frame = stream_of(spark, rate="max", maxCount="10", maxTicksPerTrigger="4", timeZero=YEAR)
    query = available_now(frame, tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress] == [4, 4, 2]
    assert report(query)["endOfStream"]
    assert [k for _, k in written(spark, tmp_path)] == list(range(10))


@pytest.mark.spark
def test_a_query_started_again_after_its_end_says_that_it_has_ended(spark, tmp_path):
    frame = stream_of(spark, rate="max", maxCount="2")
    available_now(frame, tmp_path)
    query = write(frame, tmp_path).start()
    query.processAllAvailable()
    # An idle trigger reports its progress a moment after it has found nothing to do.
    deadline = time.monotonic() + 60
    while query.lastProgress is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert report(query)["endOfStream"]
    query.stop()
    assert len(written(spark, tmp_path)) == 2


@pytest.mark.spark
def test_a_batch_that_failed_is_run_again_with_the_same_rows(spark, tmp_path):
    marker = tmp_path / "fail"
    marker.touch()

    @udf("boolean")
    def passes(value):
        if value == 0 and marker.exists():
            raise ValueError("the test asked for it")
        return True

    frame = stream_of(spark, period="0.01", numPartitions="2").where(passes(col("value")))
    with pytest.raises(StreamingQueryException):
        available_now(frame, tmp_path)
    (planned,) = (tmp_path / "checkpoint/offsets").glob("[0-9]*")
    offset = json.loads(planned.read_text().splitlines()[-1])
    marker.unlink()
    available_now(frame, tmp_path)
    kept = written(spark, tmp_path)
    assert kept[0][1] == 0
    assert kept[0][0] == offset["zero_us"] // 1000 * 1000
    assert [k for _, k in kept] == list(range(len(kept)))


@pytest.mark.spark
def test_skipping_delivers_only_the_newest_of_what_is_overdue(spark, tmp_path):
    frame = stream_of(spark, period="0.001", overflow="skip")
    available_now(frame, tmp_path)
    query = available_now(frame, tmp_path)
    (_, first), (_, second) = written(spark, tmp_path)
    assert first == 0
    assert second > 1
    assert report(query)["skipped"] == second - 1


@pytest.mark.spark
def test_a_changed_setting_stops_the_query_with_option_old_and_new(spark, tmp_path):
    available_now(stream_of(spark, period="1"), tmp_path)
    with pytest.raises(StreamingQueryException, match=r"'period' was '1' .* is '2' now"):
        available_now(stream_of(spark, period="2"), tmp_path)


@pytest.mark.spark
def test_an_illegal_option_is_refused_when_the_query_is_built(spark):
    with pytest.raises(AnalysisException, match="option 'period': cannot read '0'"):
        stream_of(spark, period="0")


@pytest.mark.spark
def test_a_write_is_refused_in_batch_and_in_streaming(spark, tmp_path):
    with pytest.raises(AnalysisException, match=r"option 'transport': 'time', the default"):
        spark.range(1).write.format("timestream").mode("append").save()
    query = (
        stream_of(spark)
        .writeStream.format("timestream")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="'time', the default, cannot be written to"):
        query.awaitTermination()


@pytest.mark.spark
def test_a_batch_read_is_refused_with_the_way_out(spark):
    with pytest.raises(AnalysisException, match=r"cannot be read with spark\.read; .*readStream"):
        spark.read.format("timestream").load().collect()


@pytest.mark.outside_ci
@pytest.mark.spark
def test_state_kept_while_columns_could_be_null_is_read_on(spark, tmp_path):
    def distinct(reader):
        return reader.format("timestream").option("period", "0.01").load().dropDuplicates()

    # As every checkpoint was made before the columns were declared never null.
    nullable = spark.readStream.schema("timestamp timestamp, value long")
    available_now(distinct(nullable), tmp_path)
    query = available_now(distinct(spark.readStream), tmp_path)
    kept = [k for _, k in written(spark, tmp_path)]
    assert kept == list(range(len(kept)))
    assert len(kept) > 1
    assert query.lastProgress.stateOperators[0].numRowsTotal == len(kept)


@pytest.mark.spark
def test_a_user_schema_must_be_the_sources_own(spark, tmp_path):
    own = spark.readStream.format("timestream").schema("timestamp timestamp, value long")
    available_now(own.load(), tmp_path / "own")
    assert len(written(spark, tmp_path / "own")) == 1
    other = spark.readStream.format("timestream").schema("timestamp timestamp, value int")
    with pytest.raises(StreamingQueryException, match=r"leave .schema.* out"):
        available_now(other.load(), tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "value"),
    [("to", "5"), ("to", None), ("from", -1), ("skipped", 2**63), ("zero_us", "x"),
     ("started_us", 2**62)],
)  # fmt: skip
def test_a_damaged_offset_is_refused_by_name(name, value):
    sample = json.loads(SAMPLE.read_text())
    raw = {key: text for key, text in sample["settings"].items() if key != "transport"}
    reader = TimeStreamReader(read_time_options(raw))
    with pytest.raises(CheckpointUnreadable, match=r"damaged: its (ticks|clock)"):
        reader.latestOffset({**sample, name: value}, ALL)
