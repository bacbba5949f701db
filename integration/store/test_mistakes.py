"""Mistakes with a store's path, life and retained range, through Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_timestream import explain_time
from pyspark_tseries import describe

pytestmark = pytest.mark.timeout(300)


def numbers(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.schema("series string, value bigint").option("maxFilesPerTrigger", 1)
    return reader.json(str(directory))


def add(directory: Path, value: int) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{value}.json").write_text(f'{{"series": "a", "value": {value}}}')


def run(frame: DataFrame, store: object, checkpoint: Path | None) -> None:
    writer = frame.writeStream.format("tseries").option("retainedRange", "unlimited")
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(str(store)).awaitTermination()


def values(spark: SparkSession, store: Path) -> list[int]:
    rows = spark.read.format("tseries").load(str(store)).collect()
    return sorted(row["value"] for row in rows)


def test_a_checkpoint_goes_on_with_its_own_store_only_and_both_are_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, other, checkpoint = tmp_path / "first", tmp_path / "other", tmp_path / "checkpoint"
    add(tmp_path / "in", 1)
    run(numbers(spark, tmp_path / "in"), first, checkpoint)
    add(tmp_path / "in", 2)
    with pytest.raises(Exception, match=r"StoreMismatch: .*first' \(id .*no store at '.*other'"):
        run(numbers(spark, tmp_path / "in"), other, checkpoint)
    assert not other.exists()
    shutil.rmtree(first)
    with pytest.raises(Exception, match=r"StoreMismatch: .*there is no store at '.*first'"):
        run(numbers(spark, tmp_path / "in"), first, checkpoint)
    assert not first.exists()


def test_a_store_that_was_moved_is_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    add(tmp_path / "in", 1)
    run(numbers(spark, tmp_path / "in"), tmp_path / "first", checkpoint)
    (tmp_path / "first").rename(tmp_path / "moved")
    add(tmp_path / "in", 2)
    run(numbers(spark, tmp_path / "in"), tmp_path / "moved", checkpoint)
    assert values(spark, tmp_path / "moved") == [1, 2]


def test_a_checkpoint_of_the_session_that_the_sink_does_not_see_is_guarded_by_the_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    add(tmp_path / "in", 1)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    try:
        frame = numbers(spark, tmp_path / "in").where("value > 1")
        for store, name in (("first", "named"), ("first", "named"), ("other", "named")):
            writer = frame.writeStream.format("tseries").option("retainedRange", "unlimited")
            writer = writer.queryName(name).trigger(availableNow=True)
            if store == "other":
                add(tmp_path / "in", 2)
                with pytest.raises(Exception, match=r"StoreMismatch: .*a batch elsewhere"):
                    writer.start(str(tmp_path / store)).awaitTermination()
            else:
                # The first batch is empty, and known to the store all the same.
                writer.start(str(tmp_path / store)).awaitTermination()
        assert describe(tmp_path / "other")["events"] == 0
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_store_that_is_removed_under_a_running_query_is_not_made_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    add(tmp_path / "in", 1)
    writer = numbers(spark, tmp_path / "in").writeStream.format("tseries")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("retainedRange", "unlimited").start(str(store))
    try:
        query.processAllAvailable()
        shutil.rmtree(store)
        add(tmp_path / "in", 2)
        with pytest.raises(Exception, match=r"StoreMismatch: .*there is no store"):
            query.awaitTermination(120)
    finally:
        query.stop()
    assert not store.exists()


def test_a_relative_path_is_refused_wherever_spark_is_given_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    said = r"option 'path': .*trips/store.*os\.path\.abspath\('trips/store'\)"
    add(tmp_path / "in", 1)
    frame = spark.createDataFrame([("a", 1)], "series string, value bigint")
    with pytest.raises(Exception, match=said):
        frame.write.format("tseries").mode("append").save("trips/store")
    with pytest.raises(Exception, match=said):
        spark.read.format("tseries").load("trips/store")
    with pytest.raises(Exception, match=said):
        spark.readStream.format("tseries").load("trips/store")
    with pytest.raises(Exception, match=said):
        run(numbers(spark, tmp_path / "in"), "trips/store", tmp_path / "checkpoint")
    assert not Path("trips").exists()


CREATES = """
import sys
from spark_session import local_spark
spark = local_spark("creates")
rows = spark.createDataFrame([("a", 1)], "series string, value bigint")
for number in range(2):
    rows.write.format("tseries").mode("append").save(sys.argv[1])
rows.write.format("tseries").mode("append").option("retainedRange", "limit 10").save(sys.argv[2])
spark.stop()
"""


@pytest.mark.outside_ci
def test_a_retained_range_that_was_left_out_is_said_once_when_the_store_is_created(
    tmp_path: Path,
) -> None:
    job = [sys.executable, "-c", CREATES, str(tmp_path / "a"), str(tmp_path / "b")]
    here = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(job, check=False, capture_output=True, text=True, env=here, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stderr.splitlines() if "no retained range was given" in line]
    assert " WARN pyspark_tseries" in line
    assert str(tmp_path / "a") in line
    assert "ten newest events of each series" in line


def test_a_query_that_left_the_retained_range_out_is_explained_with_what_reads_show(
    spark: SparkSession, tmp_path: Path
) -> None:
    add(tmp_path / "in", 1)
    said = []
    for name, options in (("without", {}), ("with", {"RetainedRange": "limit 10"})):
        writer = numbers(spark, tmp_path / "in").writeStream.format("tseries").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / name))
        query.awaitTermination()
        said.append("the ten newest events of each series" in str(explain_time(query)))
    assert said == [True, False]


def test_text_that_is_no_utf8_is_refused_by_series_and_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's cast of binary to string checks nothing."""
    rows = spark.sql("SELECT concat('s', id) AS series, 'ä' AS text, X'ff' AS raw FROM range(4)")
    rows.write.format("tseries").mode("append").save(str(tmp_path / "s"))
    broken = rows.selectExpr(
        "series", "CAST(IF(series = 's2', X'7370ff', X'61') AS string) AS text", "raw"
    )
    with pytest.raises(Exception, match=r"IncompatibleValue: series 's2': column 'text' holds"):
        broken.write.format("tseries").mode("append").save(str(tmp_path / "s"))
    assert describe(tmp_path / "s")["events"] == 4


ASKS = """
import sys
from spark_session import local_spark
spark = local_spark("asks")
rows = spark.createDataFrame([("a", 1)], "series string, value bigint")
rows.write.format("tseries").mode("append").option("retainedRange", "limit 10").save(sys.argv[1])
read = lambda **options: spark.read.format("tseries").options(**options).load(sys.argv[1])
print(read(series="A*").count(), read(series="a").count(), read().where("series LIKE 'a%'").count())
spark.stop()
"""


@pytest.mark.outside_ci
def test_a_series_that_the_store_does_not_have_is_named_and_the_advice_helps(
    tmp_path: Path,
) -> None:
    job = [sys.executable, "-c", ASKS, str(tmp_path / "a")]
    here = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(job, check=False, capture_output=True, text=True, env=here, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stderr.splitlines() if "has no series" in line]
    assert " WARN pyspark_tseries" in line
    assert "has no series 'A*', which a question names; next step: correct the name" in line
    assert "series LIKE 'room%' chooses by their form" in line
    assert done.stdout.split() == ["0", "1", "1"]
