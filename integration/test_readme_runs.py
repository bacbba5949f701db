"""Every code block of the README runs, in order, as a reader would paste them into one session."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from broker import Broker, Record
from kafka_query import DAY_MS
from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.timeout(600)
def test_every_python_block_runs_and_gives_what_the_text_says(
    spark: SparkSession, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("trips")
    broker.produce("trips", [trip(minute) for minute in range(0, 180, 5)])
    session: dict[str, object] = {}
    for block in blocks("python"):
        text = block.replace("localhost:9092", broker.bootstrap).replace("/data/", f"{tmp_path}/")
        exec(compile(text, "README.md", "exec"), session)
    said = capsys.readouterr().out
    assert said.count("Central") >= 3
    assert "9999-12-31T23:59:59Z 36 0 0" in said
    clock = spark.read.format("tseries").load(f"{tmp_path}/clock").collect()
    assert [(row.series, row.sequence, row.ticks) for row in clock] == [
        ("clock", 0, 60), ("clock", 1, 60), ("clock", 2, 60),
    ]  # fmt: skip


def trip(minute: int) -> Record:
    departed = DAY_MS + 60_000 * minute
    return Record(json.dumps({"station": "Central", "minutes": 7.5, "departed": departed}))


def test_every_command_of_the_readme_is_a_recipe_of_the_makefile() -> None:
    recipes = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"\$ make ([a-z.-]+)", "".join(blocks("console")))
    assert commands
    assert {*commands, *re.findall(r"`make ([a-z.-]+)`", README)} <= recipes


@pytest.mark.timeout(300)
def test_make_run_simulates_a_day_and_says_how_to_read_it_back(tmp_path: Path) -> None:
    script = ROOT / "integration" / "day.py"
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "100%" in done.stdout
    assert 'spark.read.format("tseries").load(' in done.stdout


def test_a_write_in_another_thread_works_as_the_limits_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    (call,) = re.findall(r"`(spark\._jvm\.\S+)`", README)

    def write() -> None:
        exec(call, {"spark": spark})
        rows = spark.range(3).withColumnRenamed("id", "reading").write.format("tseries")
        rows.mode("append").option("seriesName", "a").save(str(tmp_path / "store"))

    with ThreadPoolExecutor(1) as other:
        other.submit(write).result()
    assert spark.read.format("tseries").load(str(tmp_path / "store")).count() == 3
