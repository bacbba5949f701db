"""Late flights correct the hours of a job whose `ctiDelay` is too small, under kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import correct_late_job as job
import duckdb
import pyarrow.compute as pc
import pytest
from broker import Broker
from deltalake import DeltaTable
from flights import produce_flights
from flights_data import flights, judge_flights
from harness import DeltaLog, InBatch, Job, run_killed
from lengths import choices, repetitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.verify import verify

KILLS = repetitions(1, 4)
FLIGHTS = choices([3_000], [None])[0]
"""Three days and a half, or all of 2013."""

AIRPORTS = ("EWR", "JFK", "LGA")


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


def in_force(store: Path) -> list[Any]:
    """Rows of (airport, hour, values) as queries of the store show them."""
    query = TimeSeries.open(store).range_query()
    columns = ("series", "hour", *job.VALUES)
    tables = [query.select_from(name).to_arrow().select(columns) for name in AIRPORTS]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def expected_hours(count: int | None) -> list[Any]:
    """The same, in one query over all departures."""
    departures = flights(count)  # noqa: F841 DuckDB's
    return duckdb.sql("""
        SELECT origin, time_bucket(INTERVAL 1 HOUR, make_timestamptz(departure_us)) AS hour,
               count(*), sum(dep_delay)::DECIMAL(20, 1), max(dep_delay)::DECIMAL(20, 1)
        FROM departures WHERE departure_us IS NOT NULL GROUP BY ALL ORDER BY ALL""").fetchall()


def missing_flights(store: Path, count: int | None) -> int:
    """The departures that the windows lack that were written first."""
    stored = DeltaTable(store).to_pyarrow_table()
    first = stored.filter(pc.not_equal(stored["author"], "correct_late"))["flights"].to_pylist()
    return sum(hour[2] for hour in expected_hours(count)) - sum(first)


def late_flights(count: int | None) -> int:
    """The departures that come below their partition's CTI, by the plain rules."""
    judged = judge_flights(flights(count), "20", job.SMALL_DELAY).values()
    return sum(each.verdicts.count("late") for each in judged)
