"""A first program, in a process with no virtual environment on its PATH: IDE, cron, notebook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLOCK = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import await_end, configure_spark

spark = configure_spark(SparkSession.builder.master("local[2]")).getOrCreate()
ticks = (
    spark.readStream.format("timestream")
    .option("timeZero", "2026-01-01T00:00:00Z")
    .option("period", "60")
    .option("rate", "7200")
    .option("maxCount", "181")
    .load()
)
per_hour = (
    ticks.withWatermark("timestamp", "0 seconds")
    .groupBy(F.window("timestamp", "1 hour").alias("hour"))
    .count()
)
query = (
    per_hour.select(F.col("hour.start").alias("timestamp"), F.col("count").alias("ticks"))
    .writeStream.format("tseries")
    .option("seriesName", "clock")
    .option("retainedRange", "unlimited")
    .option("checkpointLocation", "/data/clock-checkpoint")
    .start("/data/clock")
)
await_end(query)
stored = spark.read.format("tseries").load("/data/clock").collect()
print("stored", sorted((row.series, row.sequence, row.ticks) for row in stored))
"""
"""Needs no broker: a clock, counted by the hour, into a store."""

OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from pyspark_timestream import advance_time, configure_spark
try:
    configure_spark(SparkSession.builder)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""

SUBMITTED = """
from pyspark.sql import SparkSession
from pyspark_timestream import configure_spark
spark = configure_spark(SparkSession.builder.master("local[1]")).getOrCreate()
print("zone", spark.conf.get("spark.sql.session.timeZone"))
print("partitions", spark.conf.get("spark.sql.shuffle.partitions"))
print(spark.readStream.format("timestream").load().schema.simpleString())
"""


KEPT = ("HOME", "SPARK_HOME", "SPARK_SUBMIT_OPTS")
"""Of this environment; the last is how Java runs in tests."""


@pytest.fixture
def foreign(tmp_path: Path) -> dict[str, str]:
    """An environment with a `python3` that does not have this package."""
    commands = tmp_path / "commands"
    commands.mkdir()
    # The interpreter that the virtual environment was made from, under its plain name.
    (commands / "python3").symlink_to(Path(sys.executable).resolve())
    java = Path(shutil.which("java") or "java").parent
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {"PATH": f"{commands}:{java}:/usr/bin:/bin"}


def run(
    tmp_path: Path, program: str, environment: dict[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    job = tmp_path / "job.py"
    job.write_text(program)
    return subprocess.run(
        [*(command or [sys.executable]), str(job)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@pytest.mark.outside_ci
@pytest.mark.timeout(300)
def test_first_program_without_a_virtual_environment_on_path_runs(
    tmp_path: Path, foreign: dict[str, str]
) -> None:
    done = run(tmp_path, CLOCK.replace("/data/", f"{tmp_path}/"), foreign)
    hours = [("clock", 0, 60), ("clock", 1, 60), ("clock", 2, 60)]
    assert f"stored {hours}" in done.stdout, done.stderr[-3000:]


@pytest.mark.timeout(300)
def test_session_built_before_with_a_foreign_interpreter_is_told_by_name(
    tmp_path: Path, foreign: dict[str, str]
) -> None:
    done = run(tmp_path, OWN_SESSION, foreign)
    *_, refusal = done.stderr.strip().splitlines()
    assert refusal.startswith("WrongInterpreter: Spark starts its Python workers as 'python3'")
    assert f"PYSPARK_PYTHON={sys.executable} in its environment" in refusal


@pytest.mark.outside_ci
@pytest.mark.timeout(300)
def test_spark_submit_with_the_interpreter_in_its_environment_keeps_its_own_settings(
    tmp_path: Path, foreign: dict[str, str]
) -> None:
    submit = [f"{os.environ['SPARK_HOME']}/bin/spark-submit"]
    submit += ["--conf", "spark.sql.session.timeZone=Asia/Tokyo"]
    done = run(tmp_path, SUBMITTED, foreign | {"PYSPARK_PYTHON": sys.executable}, *submit)
    assert done.stdout.splitlines()[:2] == ["zone Asia/Tokyo", "partitions 4"], done.stderr[-3000:]
    assert "struct<timestamp:timestamp,value:bigint>" in done.stdout
