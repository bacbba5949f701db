"""Late trips correct the windows of a job whose `ctiDelay` is too small, under kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import correct_late_job as job
import duckdb
import pyarrow as pa
import pytest
from broker import Broker, Record
from harness import DeltaLog, InBatch, Job, run_killed
from lengths import repetitions
from pyspark.sql import SparkSession

from pyspark_timestream.demo.trips import LAGGING, STATIONS, trips
from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.verify import verify

KILLS = repetitions(1, 4)


@pytest.mark.timeout(600)
def test_corrected_windows_equal_one_query_over_all_trips_under_kills(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    # Harbour is hours behind, so almost all of its trips would be late.
    found = [each for each in trips() if each.partition != LAGGING][::3]
    topic = broker.create_topic(partitions=3)
    broker.produce(topic, [Record(each.value, None, each.partition) for each in found])
    store, checkpoint = tmp_path / "small", tmp_path / "corrections"
    job.write_hours(job.read_trips(spark, broker.bootstrap, topic, "10 seconds"), store)
    assert in_force(store) != computed(found)

    log = DeltaLog(store, "tseries:late:")
    point = InBatch(checkpoint, then=log.has_batch)
    arguments = [broker.bootstrap, topic, str(store), str(checkpoint)]
    killed = Job(Path(job.__file__), arguments, log=tmp_path / "log")
    result = run_killed(killed, point, kills=KILLS, timeout=500)
    assert (result.hits, result.exit_code) == (KILLS, 0)
    assert in_force(store) == computed(found)
    assert verify(str(store)) == []
    edits = TimeSeries.open(store).range_query().for_edits().select_from(STATIONS[0]).to_arrow()
    authors = set(zip(edits["author"].to_pylist(), edits["reason"].to_pylist(), strict=True))
    assert ("correct_late", "late rows") in authors
    assert len(authors) == 2


def in_force(store: Path) -> list[Any]:
    """Rows of (series, hour, values) as queries of the store show them."""
    query = TimeSeries.open(store).range_query()
    columns = ("series", "hour", *job.VALUES)
    tables = [query.select_from(name).to_arrow().select(columns) for name in STATIONS]
    return sorted(tuple(row.values()) for row in pa.concat_tables(tables).to_pylist())


def computed(found: list[Any]) -> list[Any]:
    """The same, in one query over all trips."""
    rows = pa.Table.from_pylist([json.loads(each.value) for each in found])  # noqa: F841 DuckDB's
    return duckdb.sql("""
        SELECT station, date_trunc('hour', departed::TIMESTAMPTZ) AS hour, count(*),
               sum(minutes::DECIMAL(20, 1))::DECIMAL(20, 1), max(minutes)::DECIMAL(20, 1)
        FROM rows GROUP BY ALL ORDER BY ALL""").fetchall()
