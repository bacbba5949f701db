"""An error of ours as it reaches the user: our sentence comes first, and `why` prints only it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from lengths import outside_ci
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_timestream import why

KAFKA = {"transport": "kafka", "kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
UNNAMED = "column 'series' is null in 1 of 1 rows of a task"
MISSPELT = "option 'ctifrequncy': there is no such option: did you mean 'ctiFrequency'?"


class Owner:
    """The names that the mistakes below use; `query` is the one that was started last."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.query: StreamingQuery | None = None

    def clock(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("timestream").options(maxCount="1", **options).load()

    def append(self, sql: str, **options: str) -> None:
        writer = self.spark.sql(sql).write.format("tseries").mode("append").options(**options)
        writer.save(str(self.path / "store"))

    def run(self, frame: DataFrame, sink: str = "noop") -> None:
        writer = frame.writeStream.format(sink).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.path / "checkpoint"))
        self.query = writer.start(str(self.path / "store")) if sink == "tseries" else writer.start()
        self.query.awaitTermination()


def build_a_stream(place: Owner) -> None:
    place.spark.readStream.format("timestream").options(**KAFKA, ctiFrequncy="1").load()


def start_a_stream(place: Owner) -> None:
    reader = place.spark.readStream.format("timestream").options(**KAFKA, ctiFrequncy="1")
    place.run(reader.schema("value binary").load())


def start_a_subscription(place: Owner) -> None:
    place.append("SELECT 'a' series, 1 v")
    schema = place.spark.read.format("tseries").load(str(place.path / "store")).schema
    reader = place.spark.readStream.format("tseries").schema(schema)
    place.run(reader.option("startingSequence", "many").load(str(place.path / "store")))


def read_a_batch(place: Owner) -> None:
    place.spark.read.format("tseries").load(str(place.path / "none")).show()


def plan_a_batch(place: Owner) -> None:
    place.spark.read.format("timestream").option("maxCount", "1").load().count()


def write_a_batch(place: Owner) -> None:
    place.append("SELECT 'a' series, 1 v", retainedRnge="limit 3")


def run_a_batch_task(place: Owner) -> None:
    place.append("SELECT cast(NULL AS string) series, 1 v")


def run_a_stream_task(place: Owner) -> None:
    place.run(place.clock().selectExpr("cast(NULL AS string) series", "timestamp"), "tseries")


def commit_a_batch(place: Owner) -> None:
    for day in (2, 1):
        place.append(f"SELECT 'a' series, timestamp'2026-01-0{day}' timestamp, 1 v")


def commit_a_stream(place: Owner) -> None:
    place.append("SELECT 'a' series, timestamp'2026-01-01' timestamp, 1L value")
    clock = place.clock(timeZero="2020-01-01T00:00:00Z")
    place.run(clock.selectExpr("'a' series", "timestamp", "value"), "tseries")


def query_in_sql(place: Owner) -> None:
    options = f"OPTIONS (path '{place.path}/none')"
    place.spark.sql(f"CREATE TEMPORARY VIEW none USING tseries {options}").show()


@pytest.mark.parametrize(
    ("make", "begins"),
    [
        (build_a_stream, MISSPELT),
        (start_a_stream, MISSPELT),
        (read_a_batch, "there is no store at"),
        (plan_a_batch, "option 'transport': 'time' cannot be read with spark.read"),
        (write_a_batch, "option 'retainedrnge': there is no such option: did you mean"),
        (run_a_batch_task, UNNAMED),
        (run_a_stream_task, UNNAMED),
        (commit_a_batch, "series 'a': timestamp 2026-01-01T00:00:00Z is before the newest event"),
        (commit_a_stream, "series 'a': timestamp 2020-01-01T00:00:00Z is before the newest event"),
        (query_in_sql, "there is no store at"),
        *outside_ci((start_a_subscription, "option 'startingSequence': cannot read 'many'")),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_error_wherever_it_is_raised_leads_spark_s_message(
    make: Callable[[Owner], None], begins: str, spark: SparkSession, tmp_path: Path
) -> None:
    place = Owner(spark, tmp_path)
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        make(place)
    text = str(caught.value)
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if begins in line)
    # Spark's own words on that line, or a heading of its own before it; and no frames at all.
    assert first <= 1, text
    assert "Traceback" not in text
    assert 'File "' not in text
    for subject in (caught.value, place.query):
        if subject is not None:
            out = io.StringIO()
            why(subject, file=out)
            assert out.getvalue().startswith(begins)
            assert "SQLSTATE" not in out.getvalue()
            assert out.getvalue().count("\n") == 1
