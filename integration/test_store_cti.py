"""CTIs of a store: a chain of jobs equals one query, under kills; CTIs as rows of a stream."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import store_chain_job
from deltalake import DeltaTable
from harness import Job, between_sink_and_checkpoint, run_killed
from lengths import repetitions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.verify import verify

KILLS = repetitions(1, 5)
COLUMNS = ("series", "timestamp", "total", "rows")
FINAL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", ["fine", pytest.param("coarse", marks=pytest.mark.soak)])
def test_chain_of_windows_through_a_store_equals_one_query_under_kills(
    tmp_path: Path, killed: str
) -> None:
    job = Job(Path(store_chain_job.__file__), [str(tmp_path)], log=tmp_path / "log")
    point = between_sink_and_checkpoint(
        tmp_path / f"{killed}-checkpoint", tmp_path / killed, "tseries:q:"
    )
    result = run_killed(job, point, kills=KILLS, timeout=500)
    assert (result.hits, result.exit_code) == (KILLS, 0)
    for name, hours in (("fine", "10 minutes"), ("coarse", "1 hour")):
        assert stored_sums(tmp_path / name) == computed_sums(hours)
        assert TimeSeries.open(tmp_path / name).cti() == FINAL
        assert verify(str(tmp_path / name)) == []


def stored_sums(store: Path) -> list[Any]:
    """Rows of (series, start, total, rows) that a store has."""
    table = DeltaTable(store).to_pyarrow_table()
    return sorted(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


def computed_sums(length: str) -> list[Any]:
    """The same, in one query over all ticks."""
    return duckdb.sql(f"""
        SELECT 's' || k % 7, time_bucket(INTERVAL '{length}', us) AS start, sum(k)::BIGINT, count(*)
        FROM (SELECT k, TIMESTAMPTZ '2026-01-01 00:00:00Z' + INTERVAL 1 MINUTE * k AS us
              FROM range({store_chain_job.TICKS}) AS ticks(k))
        GROUP BY ALL ORDER BY ALL""").fetchall()


def subscribe_to_memory(spark: SparkSession, store: Path, **options: str) -> list[Any]:
    """All rows of a subscription to everything, in their order."""
    given = {"subscriptionRange": "unlimited", **options}
    rows = spark.readStream.format("tseries").options(**given).load(str(store))
    query = rows.writeStream.format("memory").queryName("got").trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.table("got").collect()


def write_clock(rows: DataFrame, store: Path, checkpoint: Path, **options: str) -> None:
    columns = [name for name in ("series", "timestamp", "total", "cti") if name in rows.columns]
    writer = rows.select(*columns).writeStream.format("tseries").options(**options)
    writer = writer.option("retainedRange", "unlimited").trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start(str(store)).awaitTermination()


def test_ctis_of_a_frame_become_those_of_the_store_and_rows_of_a_subscription(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    rows = store_chain_job.read_clock(spark, 30).withColumnRenamed("start_time", "timestamp")
    write_clock(rows, store, tmp_path / "c", ctiDelay="1 minute")
    series = TimeSeries.open(store)
    assert (series.cti(), series.describe()["events"]) == (FINAL, 30)
    series.edit("s0", 0, 100)
    got = subscribe_to_memory(spark, store, cti="mark")
    final = FINAL.replace(tzinfo=None)
    assert (got[-1].mark, sum(row.mark is not None for row in got)) == (final, 1)
    assert set(got[-1].asDict().values()) == {None, final}
    assert [row.total for row in got if row.original_sequence is not None] == [100]
    assert sum(row.mark is None for row in got) == 31


def test_column_of_ctis_with_the_name_of_a_value_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    TimeSeries.create(tmp_path / "store", {"CTI": pa.int64()}, retained_range="unlimited")
    with pytest.raises(PySparkException, match="option 'cti': the store has a column 'cti'"):
        spark.readStream.format("tseries").option("cti", "true").load(str(tmp_path / "store"))
