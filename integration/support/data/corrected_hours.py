"""The hours of flights that `correct_late_job` corrects: in a store, and by plain rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import correct_late_job as job
import duckdb
import pyarrow.compute as pc
from deltalake import DeltaTable
from flights_data import flights, judge_flights

from pyspark_tseries import TimeSeries

AIRPORTS = ("EWR", "JFK", "LGA")


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
    """The departures that the first windows lack."""
    stored = DeltaTable(store).to_pyarrow_table()
    first = stored.filter(pc.not_equal(stored["author"], "correct_late"))["flights"].to_pylist()
    return sum(hour[2] for hour in expected_hours(count)) - sum(first)


def late_flights(count: int | None) -> int:
    """The departures that come below their partition's CTI, by the plain rules."""
    judged = judge_flights(flights(count), "20", job.SMALL_DELAY).values()
    return sum(each.verdicts.count("late") for each in judged)
