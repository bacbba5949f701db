"""DataFrame helpers on real streams: CTIs imported, rows released in order."""

from __future__ import annotations

import random
from pathlib import Path

import order_job
import pytest
from harness import InBatch, Job, run_killed
from kafka_query import ctis, event, seconds, times
from lengths import repetitions
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, import_ctis, order_by_time
from pyspark_timestream.errors import SchemaRefused

ROWS = repetitions(120, 200)


# -- import_ctis ----------------------------------------------------------------------------------


def test_a_slow_stream_gets_the_ctis_of_a_fast_one_and_loses_its_own(stream) -> None:
    slow = stream([event(5), event(2)], ctiFrequency=1, violationPolicy="flag")
    fast = stream([event(s) for s in (10, 20)], ctiFrequency=1)
    rows = slow.run(import_ctis(slow.load(), fast.load()))
    assert times(rows) == [5, 2]
    assert ctis(rows) == sorted(set(ctis(rows)))
    assert set(ctis(rows)) == {10, 20}
    assert [row.violation for row in rows if row.cti is None] == [None, "late"]


@pytest.mark.outside_ci
def test_a_slow_stream_without_ctis_is_released_as_the_fast_one_comes(stream) -> None:
    slow = stream([event(s) for s in (1, 12, 2, 21)])
    fast = stream([event(s) for s in (3, 19.999, 20)], ctiFrequency=1)
    frame = import_ctis(slow.load(), fast.load())
    assert frame.columns == [*slow.load().columns, "cti"]
    counts = advance_time(frame).groupBy(F.window("start_time", "10 seconds").alias("w"))
    rows = slow.run(counts.count().select(F.col("w.start").alias("start"), "count"))
    assert sorted((seconds(row.start), row["count"]) for row in rows) == [(0, 2), (10, 1)]


@pytest.mark.outside_ci
def test_a_simulated_clock_is_the_clock_of_a_slow_stream(stream, spark) -> None:
    slow = stream([event(s) for s in (1, 12, 2, 29)])
    clock = spark.readStream.format("timestream").options(
        timeZero="2024-01-01T00:00:00Z", period="10", rate="max", maxCount="3"
    )
    frame = import_ctis(slow.load(), clock.load())
    counts = advance_time(frame).groupBy(F.window("start_time", "10 seconds").alias("w"))
    rows = slow.run(counts.count().select(F.col("w.start").alias("start"), "count"))
    assert sorted((seconds(row.start), row["count"]) for row in rows) == [(0, 2), (10, 1)]


def test_an_import_of_nothing_says_what_to_add(stream, spark) -> None:
    slow, plain = stream([event(1)]).load(), stream([event(1)]).load()
    with pytest.raises(SchemaRefused, match=r"fast has no column 'cti'.*'ctiFrequency'.*AS cti"):
        import_ctis(slow, plain)
    with pytest.raises(SchemaRefused, match=r"column 'cti' is string.*rename it if it is yours"):
        import_ctis(slow, plain.selectExpr("'x' AS cti"))
    with pytest.raises(SchemaRefused, match=r"column 'cti' is string.*rename it if it is yours"):
        import_ctis(plain.selectExpr("'x' AS cti"), plain.selectExpr("start_time AS cti"))


# -- order_by_time --------------------------------------------------------------------------------


def shuffled(count: int, seed: int = 7) -> list[tuple[float, str, int]]:
    """(second, station, number) in the order of arrival, at most four seconds out of order."""
    draw = random.Random(seed)
    # Halves: so some readings have the same station and time, and their arrival decides.
    rows = [(number // 4 / 2, draw.choice("abc"), number) for number in range(count)]
    return sorted(rows, key=lambda row: row[0] + draw.random() * 4)


def records(rows: list[tuple[float, str, int]]) -> list:
    return [event(second, 0, station=name, number=number) for second, name, number in rows]


def expected(rows: list[tuple[float, str, int]]) -> dict[str, list[tuple[float, int]]]:
    """Per station (second, number) by time, then arrival: sorting is stable."""
    found: dict[str, list[tuple[float, int]]] = {}
    for second, name, number in sorted(rows, key=lambda row: row[0]):
        found.setdefault(name, []).append((second, number))
    return found


def stored(spark: SparkSession, store: Path) -> dict[str, list[tuple[float, int]]]:
    """Per series (second, number) by sequence."""
    found: dict[str, list[tuple[float, int]]] = {}
    rows = spark.read.format("tseries").load(str(store)).collect()
    for row in sorted(rows, key=lambda row: (row.series, row.sequence)):
        found.setdefault(row.series, []).append((seconds(row.timestamp), row.number))
    return found


@pytest.mark.outside_ci
@pytest.mark.timeout(400)
def test_an_out_of_order_topic_fits_a_store_that_refuses_disorder(
    spark, broker, topic, tmp_path
) -> None:
    name, rows = topic(), shuffled(ROWS)
    assert [row[0] for row in rows] != sorted(row[0] for row in rows)
    broker.produce(name, records(rows))
    frame = order_job.readings(spark, broker.bootstrap, name)
    query = order_job.start(order_by_time(frame, "station"), tmp_path / "store", tmp_path / "ck")
    query.awaitTermination()
    assert stored(spark, tmp_path / "store") == expected(rows)
    with_rows = [p for p in query.recentProgress if p.numInputRows > 1]
    assert len(with_rows) >= ROWS / 40
    # A CTI is five seconds behind the last row, and eight rows share a second.
    waiting = [p.stateOperators[0].numRowsTotal for p in query.recentProgress if p.stateOperators]
    assert 0 < max(waiting) <= 40 + 8 * (5 + 4)
    assert waiting[-1] == 0


@pytest.mark.timeout(400)
def test_without_it_the_store_refuses_the_same_topic(spark, broker, topic, tmp_path) -> None:
    name = topic()
    broker.produce(name, records(shuffled(ROWS)))
    frame = advance_time(order_job.readings(spark, broker.bootstrap, name))
    with pytest.raises(Exception, match="outOfOrder"):
        order_job.start(frame, tmp_path / "store", tmp_path / "ck").awaitTermination()


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_kills_in_flight_neither_lose_nor_double_nor_disorder(
    spark, broker, topic, tmp_path
) -> None:
    name, rows = topic(), shuffled(ROWS)
    broker.produce(name, records(rows))
    store, checkpoint = tmp_path / "store", tmp_path / "ck"
    arguments = [broker.bootstrap, name, str(store), str(checkpoint)]
    job = Job(Path(order_job.__file__), arguments, log=tmp_path / "log")
    killed = run_killed(job, InBatch(checkpoint, only=1), kills=1, timeout=400)
    assert (killed.hits, killed.exit_code) == (1, 0)
    assert stored(spark, store) == expected(rows)


def test_flagged_rows_and_rows_at_the_cti_wait_or_stay_out(stream) -> None:
    made = stream(
        [event(s, id=n) for n, s in enumerate([5, 9, 7, 9, 20])],
        ctiFrequency=1,
        violationPolicy="flag",
        valueFormat="json",
        schema="id long, start_time timestamp, violation string, cti timestamp",
    )
    rows = made.run(order_by_time(made.load(), "id"))
    assert [(row.id, seconds(row.start_time)) for row in rows] == [(0, 5), (1, 9), (3, 9)]
    assert rows[0].asDict().keys() == {"id", "start_time", "violation", "batch"}


@pytest.mark.outside_ci
def test_windows_over_ordered_rows_lose_none_of_them(stream, spark) -> None:
    clock = spark.readStream.format("timestream").options(
        timeZero="2024-01-01T00:00:00Z", rate="max", maxCount="40", maxTicksPerTrigger="10"
    )
    ticks = clock.load()
    back = "timestamp - make_interval(0, 0, 0, 0, 0, 0, value % 3) AS start_time"
    behind = ticks.selectExpr("timestamp - INTERVAL 3 SECONDS AS cti")
    ordered = order_by_time(import_ctis(ticks.selectExpr(back, "value % 2 AS k"), behind), "k")
    counts = ordered.groupBy(F.window("start_time", "5 seconds").alias("w")).count()
    rows = stream().run(counts.select(F.col("w.start").alias("start"), "count"))
    # Three ticks share every third second, and the last CTI is at second 36.
    assert sorted((seconds(row.start), row["count"]) for row in rows) == [
        (0, 6), (5, 6), (10, 3), (15, 6), (20, 6), (25, 3), (30, 6),
    ]  # fmt: skip


def test_a_key_that_is_not_there_is_refused_by_name(stream) -> None:
    frame = stream([event(1)], ctiFrequency=1).load()
    for by, said in (
        ("station", "by='station' is not a key"),
        ("start_time", "by='start_time' is not a key"),
        ([], "by is empty"),
    ):
        with pytest.raises(SchemaRefused, match=said):
            order_by_time(frame, by)
    with pytest.raises(SchemaRefused, match="'__row' has a name"):
        order_by_time(frame.withColumn("__row", F.lit(1)), "topic")
    with pytest.raises(SchemaRefused, match="set option 'ctiFrequency'"):
        order_by_time(frame.drop("cti"), "topic")
