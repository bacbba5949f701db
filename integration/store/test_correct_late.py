"""Late flights correct the hours of a job with too small a `ctiDelay`, under kills."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import correct_late_job as job
import pyarrow as pa
import pytest
from broker import Broker
from corrected_hours import AIRPORTS, expected_hours, in_force, late_flights, missing_flights
from flights import produce_flights
from harness import DeltaLog, InBatch, Job, run_killed
from lengths import choices, repetitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_timestream.core.instants import HOUR_US, SECOND_US
from pyspark_tseries import StorageFailed, TimeSeries, correct_late, withdraw_corrections
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.rows import staged_schema

KILLS = repetitions(1, 4)
FLIGHTS = choices([3_000], [None])[0]
"""Three days and a half, or all of 2013."""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_corrected_hours_of_flights_equal_those_of_a_large_delay_under_kills(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = produce_flights(broker, count=FLIGHTS)
    store, large, checkpoint = tmp_path / "small", tmp_path / "large", tmp_path / "corrections"
    for place, delay in ((store, job.SMALL_DELAY), (large, job.LARGE_DELAY)):
        rows = job.read_flights(spark, broker.bootstrap, topic, delay)
        job.write_hours(rows, place).awaitTermination()
    assert in_force(large) == expected_hours(FLIGHTS)
    assert missing_flights(store, FLIGHTS) == late_flights(FLIGHTS) > 100

    log = DeltaLog(store, "tseries:late:")
    arguments = [broker.bootstrap, topic, str(store), str(checkpoint)]
    killed = Job(Path(job.__file__), arguments, log=tmp_path / "log")
    result = run_killed(killed, InBatch(checkpoint, then=log.has_batch), kills=KILLS, timeout=800)
    assert (result.hits, result.exit_code) == (KILLS, 0)
    assert in_force(store) == in_force(large)
    assert verify(str(store)) == []
    edits = TimeSeries.open(store).range_query().for_edits().select_from(AIRPORTS[0]).to_arrow()
    authors = set(zip(edits["author"].to_pylist(), edits["reason"].to_pylist(), strict=True))
    assert ("correct_late", "late rows") in authors
    assert len(authors) == 2


@pytest.mark.timeout(300)
def test_corrections_by_another_delay_are_refused_before_anything_is_written(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = produce_flights(broker, count=300)
    store, checkpoint = tmp_path / "s", tmp_path / "c"
    rows = job.read_flights(spark, broker.bootstrap, topic, job.SMALL_DELAY)
    job.write_hours(rows, store).awaitTermination()
    before = in_force(store)
    other = job.read_flights(spark, broker.bootstrap, topic, "1 hour")
    said = "option 'ctiDelay' is '1 hour' here, and '2 hours'"
    with pytest.raises(StreamingQueryException, match=said):
        job.correct(other, store, checkpoint).awaitTermination()
    assert in_force(store) == before
    job.correct(rows, store, tmp_path / "right").awaitTermination()
    assert in_force(store) == expected_hours(300)


def test_results_and_keys_may_have_dots_in_their_names(spark: SparkSession, tmp_path: Path) -> None:
    """Spark takes a dot for the way into a struct."""
    path = tmp_path / "s"
    rides = stations(spark, path, tmp_path / "rides")
    correct_stations(rides, path, tmp_path / "c").start().awaitTermination()
    found = TimeSeries.open(path).range_query().select_from().to_arrow()
    assert found.select(["series", "km.sum"]).to_pylist() == [
        {"series": "north", "km.sum": 3.5},
        {"series": "south", "km.sum": 4.0},
    ]


def test_corrections_on_a_read_only_disk_say_so_and_go_on_when_it_is_writable(
    spark: SparkSession, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "tmpfs", str(disk))
    try:
        path = disk / "s"
        rides = stations(spark, path, tmp_path / "rides")
        said = r"Read-only file system \(EROFS\); next step: mount the file system writable"
        mount("-o", "remount,ro", str(disk))
        with pytest.raises(StorageFailed, match=said):
            correct_stations(rides, path, tmp_path / "c")
        mount("-o", "remount,rw", str(disk))
        query = correct_stations(rides, path, tmp_path / "c")
        mount("-o", "remount,ro", str(disk))
        with pytest.raises(StreamingQueryException, match=said):
            query.start().awaitTermination()
        mount("-o", "remount,rw", str(disk))
        query.start().awaitTermination()
        found = TimeSeries.open(path).range_query().select_from("north").to_arrow()
        assert found["km.sum"].to_pylist() == [3.5]
        mount("-o", "remount,ro", str(disk))
        with pytest.raises(StorageFailed, match=said):
            withdraw_corrections(str(path), start="hour")
        mount("-o", "remount,rw", str(disk))
        assert withdraw_corrections(str(path), start="hour") == 2
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def mount(*options: str) -> None:
    done = subprocess.run(["mount", *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user cannot mount: {done.stderr.strip()}")


def stations(spark: SparkSession, path: Path, rides: Path) -> DataFrame:
    """Make a store with one window of one station, and return a stream of late rides of two."""
    TimeSeries.create(path, {"hour": INSTANT, "km.sum": pa.float64()}, "unlimited")
    store, hour = Store.open(str(path)), datetime(2026, 1, 1, tzinfo=UTC)
    row = {"series": "north", "timestamp": hour, "hour": hour, "km.sum": 2.0}
    table = pa.Table.from_pylist([row], staged_schema(store.values)).combine_chunks()
    cti_us = round(hour.timestamp()) * SECOND_US + HOUR_US
    store.append(Batch(table, "fail", "main", ("tseries:q:main", 0), cti_us=cti_us))
    columns = "start_time timestamp, violation string, `station.name` string, km double"
    rows = [(hour, "late", "north", 1.5), (hour, None, "north", 8.0), (hour, "late", "south", 4.0)]
    spark.createDataFrame(rows, columns).write.json(str(rides))
    return spark.readStream.schema(columns).json(str(rides))


def correct_stations(late: DataFrame, path: Path, checkpoint: Path) -> DataStreamWriter:
    results = {"km.sum": (F.sum("km"), "sum")}
    options = {"series": "station.name", "window": "1 hour", "start": "hour"}
    query = correct_late(late, str(path), results, **options)
    return query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
