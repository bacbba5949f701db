"""Every code block of the README runs, in order, as a reader would paste them into one session."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
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
    for name in ("rides", "orders"):
        broker.create_topic(name)
    broker.produce("rides", [trip(minute) for minute in (10, 6, 70, 8, 130, 66)])
    session: dict[str, object] = {}
    for block in blocks("python"):
        run(block, session, broker, tmp_path)
    said = capsys.readouterr().out
    assert said.count("Central") >= 3
    assert "9999-12-31T23:59:59Z 36 0 0" in said
    assert "=> the stream has ended" in said
    # What `why` prints: the sentence as a line of its own.
    assert "\noption 'ctifrequncy': there is no such option: did you mean 'ctiFrequency'?" in said
    clock = spark.read.format("tseries").load(f"{tmp_path}/clock").collect()
    assert [(row.series, row.sequence, row.ticks) for row in clock] == [
        ("clock", 0, 60), ("clock", 1, 60), ("clock", 2, 60),
    ]  # fmt: skip

    rides = [(0, 2), (60, 1)]
    assert stored_rides(spark, tmp_path) == (rides, [8, 66], [6, 10, 70])
    assert [dict(message.headers() or []).keys() for message in broker.read("orders")] == [
        set(), {"cti", "cti-writer"}, {"cti", "cti-writer", "cti-close"},
    ]  # fmt: skip
    broker.produce("rides", [trip(minute) for minute in (190, 9, 185)])
    for block in blocks("python"):
        if "/data/rides-" in block:
            run(block, session, broker, tmp_path)
    rides.append((120, 1))
    assert stored_rides(spark, tmp_path) == (rides, [8, 66, 9], [6, 10, 70, 130])


def run(block: str, session: dict[str, object], broker: Broker, place: Path) -> None:
    text = block.replace("localhost:9092", broker.bootstrap).replace("/data/", f"{place}/")
    exec(compile(text, "README.md", "exec"), session)


def stored_rides(spark: SparkSession, place: Path) -> tuple[list, list, list]:
    """In minutes: (hour, rides) in time, departures too late, departures in order; by sequence."""

    def rows(name: str) -> list:
        stored = spark.read.format("tseries").load(f"{place}/rides-{name}").collect()
        return sorted(stored, key=lambda row: row.sequence)

    return (
        [(minute(row.timestamp), row.rides) for row in rows("in-time")],
        [minute(row.departed) for row in rows("too-late")],
        [minute(row.timestamp) for row in rows("ordered")],
    )


def minute(instant: datetime) -> int:
    return round((instant.timestamp() - DAY_MS / 1000) / 60)


def trip(minute: int) -> Record:
    departed = DAY_MS + 60_000 * minute
    return Record(json.dumps({"station": "Central", "minutes": 7.5, "departed": departed}))


def test_every_command_of_the_readme_is_a_recipe_of_the_makefile() -> None:
    recipes = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"\$ make ([a-z.-]+)", "".join(blocks("console")))
    assert commands
    assert {*commands, *re.findall(r"`make ([a-z.-]+)`", README)} <= recipes


@pytest.mark.timeout(300)
def test_make_run_says_what_it_does_and_its_hint_runs_as_printed(tmp_path: Path) -> None:
    done = run_script("day.py", tmp_path)
    assert "Starting Spark and its Python workers (about 20 s)\n" in done.stdout
    assert "simulated, 100%" in done.stdout
    # Neither Spark's warnings nor its prints.
    assert done.stderr == ""
    assert "attic" in run_hint(done.stdout, tmp_path)


@pytest.mark.timeout(300)
def test_make_run_flights_shows_each_step_and_its_hint_runs_as_printed(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_TIER", raising=False)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap)
    done = run_script("flights.py", tmp_path, "--records=3000", f"--place={tmp_path}")
    begun = [line for line in done.stdout.splitlines() if "(about" in line]
    steps = ["Starting a Kafka broker", "Producing 3,000 flights", "Starting Spark", "Counting"]
    assert [line[: len(step)] for line, step in zip(begun, steps, strict=True)] == steps
    assert done.stdout.count("  done after") == 4
    assert done.stderr == ""
    assert "EWR" in run_hint(done.stdout, tmp_path)


def run_script(name: str, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "integration" / name), *arguments],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def run_hint(printed: str, place: Path) -> str:
    """What the command prints that stands in the end, pasted into a shell."""
    _, _, command = printed.partition(" with\n\n")
    done = subprocess.run(
        ["bash", "-ec", command], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, command + done.stderr[-3000:]
    return done.stdout


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
