"""Through Spark: a store in an object store is written, read and followed as one on a disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from store_query import files, write_input
from tseries.object_store import Bucket, bucket  # noqa: F401 a fixture

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.storage.location import parse_location

pytestmark = pytest.mark.timeout(300)

COLUMNS = "series string, value bigint"


def asked(given: Bucket, **options: str) -> dict[str, str]:
    reached = {f"storageOptions.{key}": value for key, value in given.options.items()}
    return {**reached, **options}


def read(spark: SparkSession, given: Bucket, path: str, **options: str) -> list[tuple[object, ...]]:
    frame = spark.read.format("tseries").options(**asked(given, **options)).load(path)
    return sorted((row.series, row.sequence, row.value) for row in frame.collect())


@pytest.mark.outside_ci
def test_batches_are_appended_edited_and_read(
    spark: SparkSession,
    bucket: Bucket,  # noqa: F811 the fixture
) -> None:
    path = bucket.uri("spark/batches")
    # More than a message of a task holds: these are staged in the object store.
    many = spark.range(50_000).selectExpr("concat('s', id % 3) AS series", "id AS value")
    write = many.write.format("tseries").mode("append").options(**asked(bucket))
    write.option("retainedRange", "unlimited").save(path)
    edits = spark.createDataFrame([("s0", -1, 0)], f"{COLUMNS}, edit_of bigint")
    edits.write.format("tseries").mode("append").options(**asked(bucket)).save(path)
    # The edit stands for the original, under its own number: s0 had 16,667 events before.
    assert read(spark, bucket, path, series="s0", to="next 1") == [("s0", 16_667, -1)]
    assert len(read(spark, bucket, path)) == 50_000
    assert len(read(spark, bucket, path, query="allEdits")) == 50_001
    assert verify(parse_location(path, bucket.options)) == []


def follow(spark: SparkSession, given: Bucket, path: str, out: Path, checkpoint: Path) -> None:
    subscribed = spark.readStream.format("tseries").options(**asked(given)).load(path)
    query = (
        subscribed.writeStream.format("json")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()


@pytest.mark.outside_ci
def test_a_query_and_a_client_write_at_once_and_a_subscriber_gets_every_event_once(
    spark: SparkSession,
    bucket: Bucket,  # noqa: F811 the fixture
    tmp_path: Path,
) -> None:
    path = bucket.uri("spark/stream")
    for number in range(3):
        write_input(tmp_path / "in", number, [("a", None, number)])
    source: DataFrame = files(spark, tmp_path / "in")
    query = (
        source.writeStream.format("tseries")
        .options(**asked(bucket, retainedRange="unlimited", checkpointLocation=str(tmp_path / "c")))
        .trigger(availableNow=True)
        .start(path)
    )
    end = time.monotonic() + 120
    client = None
    while client is None:
        assert time.monotonic() < end
        try:
            client = TimeSeries.open(path, storage_options=bucket.options)
        except Exception:
            assert query.isActive or query.exception() is None, query.exception()
            time.sleep(0.1)
    for number in range(5):
        client.append("a", 100 + number)
    query.awaitTermination()
    found = read(spark, bucket, path)
    assert [row[1] for row in found] == list(range(8))
    assert sorted(row[2] for row in found) == [0, 1, 2, *range(100, 105)]  # type: ignore[type-var]
    out, checkpoint = tmp_path / "out", tmp_path / "s"
    follow(spark, bucket, path, out, checkpoint)
    client.append("b", 7)
    follow(spark, bucket, path, out, checkpoint)
    got = sorted((row.series, row.sequence) for row in spark.read.json(str(out)).collect())
    assert got == [("a", 7), ("b", 0)]
    assert verify(parse_location(path, bucket.options)) == []


def test_a_bucket_that_is_not_there_and_an_option_that_is_none_are_said_so_without_secrets(
    spark: SparkSession,
    bucket: Bucket,  # noqa: F811 the fixture
) -> None:
    frame = spark.createDataFrame([("a", 1)], COLUMNS)
    with pytest.raises(PySparkException, match="'s3://nowhere/a' cannot be opened") as error:
        frame.write.format("tseries").mode("append").options(**asked(bucket)).save("s3://nowhere/a")
    secret = bucket.options["AWS_SECRET_ACCESS_KEY"]
    assert secret not in str(error.value)
    wrong = {"storageOptions.AWS_SECRET": secret}
    with pytest.raises(PySparkException, match="no storage option 'aws_secret'") as error:
        spark.read.format("tseries").options(**wrong).load("s3://nowhere/a").collect()
    assert secret not in str(error.value)
