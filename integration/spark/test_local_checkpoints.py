"""Checkpoints on a local disk, with Hadoop's files of checksums and, as by default, without."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from harness import forget_batches
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import spark_settings

SETTING: Final = "spark.hadoop.fs.AbstractFileSystem.file.impl"
OF_A_QUERY: Final = SETTING.removeprefix("spark.hadoop.")
"""The setting's name in a session with a running Spark, which gives it to its queries."""
WITH_CHECKSUMS: Final = "org.apache.hadoop.fs.local.LocalFs"
"""Hadoop's own."""

Windows = dict[int, list[tuple[str, int]]]
"""Batch -> the windows that it emitted, in order: start and count."""


@pytest.mark.outside_ci
def test_a_checkpoint_goes_on_with_files_of_checksums_and_without_them_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole = count_ticks(spark, tmp_path)
    assert [rows for rows in whole.values() if rows]
    assert not list(tmp_path.rglob("*.crc"))
    without = spark_settings()[SETTING]
    try:
        for settings, last in ((WITH_CHECKSUMS, 3), (without, 1)):
            # As after a crash behind that batch; the state's files stay.
            for log in ("offsets", "commits"):
                forget_batches(tmp_path / log, last)
            spark.conf.set(OF_A_QUERY, settings)
            again = count_ticks(spark, tmp_path)
            assert again == {batch: rows for batch, rows in whole.items() if batch > last}
            assert list((tmp_path / "state").rglob("*.delta.crc"))
            has_checksums = bool(list((tmp_path / "offsets").glob(".*.crc")))
            assert has_checksums == (settings == WITH_CHECKSUMS)
    finally:
        spark.conf.unset(OF_A_QUERY)


def count_ticks(spark: SparkSession, checkpoint: Path) -> Windows:
    """Count 60 ticks by seven seconds, ten ticks a batch; return what this run has emitted."""
    emitted: Windows = {}

    def keep(batch: DataFrame, number: int) -> None:
        rows = batch.orderBy("window").select("window.start", "count").collect()
        emitted[number] = [(str(row.start), row["count"]) for row in rows]

    ticks = spark.readStream.format("timestream").option("timeZero", "2026-01-01T00:00:00Z")
    ticks = ticks.options(period="1", rate="max", maxCount="60", maxTicksPerTrigger="10")
    windows = ticks.load().withWatermark("timestamp", "0 seconds")
    query = (
        windows.groupBy(F.window("timestamp", "7 seconds"))
        .count()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return emitted
