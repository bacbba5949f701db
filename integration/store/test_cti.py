"""CTIs of a store: a chain of jobs equals one query, under kills; CTIs as rows of a stream."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import store_chain_job
from broker import Broker
from harness import Job, between_sink_and_checkpoint, run_killed
from lengths import repetitions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from store_chain import chain_topics, check_chain

from pyspark_tseries import TimeSeries

KILLS = repetitions(1, 5)
FINAL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


# On a cluster it is killed in CI.
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", ["fine", "coarse"])
def test_chain_of_windows_through_a_store_equals_one_query_under_kills(
    broker: Broker, tmp_path: Path, killed: str
) -> None:
    source, target = chain_topics(broker)
    arguments = [broker.bootstrap, source, target, str(tmp_path), "local[2,3]"]
    job = Job(Path(store_chain_job.__file__), arguments, log=tmp_path / "log")
    point = between_sink_and_checkpoint(
        tmp_path / f"{killed}-checkpoint", tmp_path / killed, "tseries:q:"
    )
    result = run_killed(job, point, kills=KILLS, timeout=500)
    assert (result.hits, result.exit_code) == (KILLS, 0)
    check_chain(broker, target, tmp_path)


def read_clock(spark: SparkSession, count: int) -> DataFrame:
    """A row of data for each tick of timestream's clock, and after it a CTI at its time."""
    options = {"transport": "time", "timeZero": "2026-01-01T00:00:00Z", "period": "60"}
    pace = {"rate": "max", "maxCount": str(count), "maxTicksPerTrigger": "400"}
    ticks = spark.readStream.format("timestream").options(**options, **pace).load()
    final = F.lit("9999-12-31T23:59:59Z").cast("timestamp")
    cti = F.when(F.col("value") == count - 1, final).otherwise(F.col("timestamp"))
    none = F.lit(None)
    series = F.concat(F.lit("s"), F.col("value") % 7)
    data = F.struct(
        series.alias("series"),
        F.col("timestamp"),
        F.col("value").alias("total"),
        none.cast("timestamp").alias("cti"),
    )
    mark = F.struct(
        none.cast("string").alias("series"),
        none.cast("timestamp").alias("timestamp"),
        none.cast("bigint").alias("total"),
        cti.alias("cti"),
    )
    return ticks.select(F.explode(F.array(data, mark)).alias("row")).select("row.*")


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
    write_clock(read_clock(spark, 30), store, tmp_path / "c", ctiDelay="1 minute")
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
