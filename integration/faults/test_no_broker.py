"""Brokers that cannot be reached: when a query fails, what it says, and how little is logged."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import JOBS
from lengths import with_rest_outside_ci
from process_session import ProcessSession
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

DEAD = {
    "127.0.0.1:1": "Connect to [^()]*: Connection refused",
    "no.such.host.invalid:9092": "Failed to resolve [^()]*: Name or service not known",
}
TIMEOUT_S = 3.0

Run = Callable[[SparkSession, Path, dict[str, str]], object]


def of_stream(spark: SparkSession, place: Path, options: dict[str, str]) -> object:
    frame = spark.readStream.format("timestream").options(**options).load()
    return run(frame, place, available_now=False)


def of_bounded_stream(spark: SparkSession, place: Path, options: dict[str, str]) -> object:
    frame = spark.readStream.format("timestream").options(**options).load()
    return run(frame, place, available_now=True)


def of_import(spark: SparkSession, place: Path, options: dict[str, str]) -> object:
    frame = spark.readStream.format("timestream").options(**options, ctiImport="fast").load()
    return run(frame, place, available_now=False)


def of_batch(spark: SparkSession, place: Path, options: dict[str, str]) -> object:
    return spark.read.format("timestream").options(**options).load().collect()


def run(frame: DataFrame, place: Path, available_now: bool) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(place))
    (writer.trigger(availableNow=True) if available_now else writer).start().awaitTermination()


@pytest.mark.parametrize("read", [of_stream, of_bounded_stream, of_import, of_batch])
@pytest.mark.parametrize("where", with_rest_outside_ci(DEAD, ["127.0.0.1:1"]))
def test_a_query_without_a_broker_fails_in_time_and_names_who_was_asked_and_what_was_said(
    spark: SparkSession, tmp_path: Path, read: Run, where: str
) -> None:
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": f"{where},127.0.0.1:2",
        "kafkaConsumer.connectTimeoutMs": str(round(TIMEOUT_S * 1000)),
        "subscribe": "trips",
    }
    began_s = time.monotonic()
    with pytest.raises(Exception, match="no Kafka broker answered within 3 s") as failure:
        read(spark, tmp_path / "checkpoint", options)
    # Python processes of a loaded machine start within this.
    assert time.monotonic() - began_s < TIMEOUT_S + 40
    message = str(failure.value)
    assert re.search(rf"{re.escape(where)} \({DEAD[where]}\)", message)
    assert re.search(r"127\.0\.0\.1:2 \(Connect to [^()]*: Connection refused\)", message)
    assert "next step: check option 'kafka.bootstrap.servers'" in message


@pytest.mark.soak
def test_a_query_without_a_broker_logs_one_line_a_minute_of_each(tmp_path: Path) -> None:
    script = JOBS / "no_broker_job.py"
    arguments = ["127.0.0.1:1", "12000", str(tmp_path / "checkpoint")]
    session = ProcessSession.begin([sys.executable, str(script), *arguments],
                                   log=tmp_path / "job.log")  # fmt: skip
    try:
        assert session.wait(200) not in (None, 0)
    finally:
        session.kill()
    lines = (tmp_path / "job.log").read_text().splitlines()
    said = [line for line in lines if "127.0.0.1:1" in line]
    assert len([line for line in said if "Kafka client: " in line]) == 1
    assert not [line for line in said if "|FAIL|" in line]
    assert any("no Kafka broker answered within 12 s" in line for line in said)
