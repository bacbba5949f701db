"""Every code block of README.md and of docs/ runs, page by page, as a reader would paste it.

The blocks of a page run in order, in one namespace that has `spark`. One command has made
everything that they need, as for a reader: `python -m pyspark_timestream demo --topics`. Its
addresses take the place of `localhost:9092` and `localhost:8081`, and one directory, the same for
all pages, that of `/data`.
`tests/lib/documents.py` says which comments change what happens to a block.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from broker import Broker, Record
from demo_process import demo, printed_until
from documents import PASTED, ROOT, Block, blocks, check_comments, pages, read
from harness import JOBS
from kafka_process import free_port
from kafka_query import DAY_MS
from lengths import outside_ci
from pyspark.sql import SparkSession
from spark_session import read_back
from tseries.object_store import Bucket, bucket  # noqa: F401 a fixture

from pyspark_tseries import TimeSeries

LATE_ROWS = "docs/how-to/late-rows.md"
S3 = "docs/how-to/s3.md"
MARKS = "docs/how-to/writers-marks.md"
CONNECT = "docs/how-to/spark-connect.md"
HAS_ITS_OWN_TEST = (LATE_ROWS, S3, MARKS, CONNECT)
SLOW = tuple(
    f"docs/how-to/{name}.md"
    for name in (
        "avro-and-protobuf", "backfill", "chain-through-a-store", "change-the-clock",
        "correct-late-rows", "fold-windows", "idle-partitions", "replay", "restarts",
        "session-windows", "use-sql", "write-to-kafka",
    )
)  # fmt: skip
"""Each takes more than ten seconds; the batches of a backfill are more than a hundred."""

PRINTED = {"README.md": ["=> the stream has ended"]}
"""The output of a page for records that only this test has, beside the page's own text."""


def trip(minute: int) -> Record:
    departed = DAY_MS + 60_000 * minute
    return Record(json.dumps({"station": "Central", "minutes": 7.5, "departed": departed}))


class Pages(NamedTuple):
    """The files that the command has made."""

    broker: Broker
    registry: str
    data: Path


# With the broker, not the module: a worker may come back to this module after others.
@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    place = tmp_path_factory.mktemp("reader")
    data = place / "data"
    with demo(place, "--topics", "--port", str(free_port()), "--registry-port", str(free_port()),
              "--data", str(data)) as process:  # fmt: skip
        printed = printed_until(process, "All of it runs until Ctrl-C")
        address = re.search(r"put (localhost:\d+)\.", printed)
        registry = re.search(r"put (http://localhost:\d+)\.", printed)
        assert address, printed
        assert registry, printed
        yield Pages(Broker(address[1], "demo"), registry[1], data)


@dataclass
class Reader:
    """Pastes the blocks of a page, one after the other."""

    spark: SparkSession
    broker: Broker
    place: Path
    data: Path
    session: dict[str, object] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Texts of the page -> their texts in this test, beside the broker's address and `/data/`."""
    printed: str = ""
    """By the blocks since the last that says what is printed."""

    def paste(self, page: str, holding: str = "") -> str:
        """Run the blocks of `page` that have `holding` in them; what they printed."""
        self.session.setdefault("spark", self.spark)
        everything = ""
        for number, block in enumerate(blocks(page), 1):
            if block.is_printed:
                assert self._here(block.text).strip() in self.printed
                self.printed = ""
            elif is_pasted(block) and holding in block.text:
                result = getattr(self, f"_{block.language}")(block, f"{page}, block {number}")
                check_comments(block, result)
                self.printed += result
                everything += result
        return everything

    def _python(self, block: Block, name: str) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(self._here(block.text), name, "exec"), self.session)
        return output.getvalue()

    def _sql(self, block: Block, name: str) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            for statement in self._here(block.text).split(";"):
                if statement.strip():
                    self.spark.sql(statement).show(truncate=False)
        return output.getvalue()

    def _console(self, block: Block, name: str) -> str:
        script = self._here("\n".join(list_commands(block.text)))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-ec", script], cwd=self.place,
            # pytest-xdist makes its workers' terminals narrower than the pages are.
            env={**os.environ, "PATH": path, "COLUMNS": "120"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stdout[-3000:]}"
        return done.stdout

    def _here(self, text: str) -> str:
        here = {"localhost:9092": self.broker.bootstrap, "/data/": f"{self.data}/", **self.names}
        for name, own in here.items():
            text = text.replace(name, own)
        return text


def list_commands(text: str) -> list[str]:
    """Return the lines behind a prompt, and those that continue one after a backslash."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ ") or (lines and lines[-1].endswith("\\")):
            lines.append(line.removeprefix("$ "))
    return lines


@pytest.fixture
def reader(
    spark: SparkSession, made: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    names = {"http://localhost:8081": made.registry, "9464": str(free_port())}
    yield Reader(spark, made.broker, tmp_path, made.data, names=names)
    for query in spark.streams.active:
        query.stop()


def is_pasted(block: Block) -> bool:
    """Whether a test runs it; commands of the Makefile are too slow for that."""
    return block.language in PASTED and not block.not_run and "$ make " not in block.text


def is_run(page: str) -> bool:
    return page not in (*HAS_ITS_OWN_TEST, *SLOW) and any(map(is_pasted, blocks(page)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [*filter(is_run, pages()), *outside_ci(*SLOW)])
def test_every_block_of_a_page_runs_and_prints_what_it_says(page: str, reader: Reader) -> None:
    printed = reader.paste(page)
    for text in PRINTED.get(page, []):
        assert text in printed


@pytest.mark.outside_ci
@pytest.mark.timeout(600)
def test_late_rows_are_kept_beside_those_in_time_and_a_second_run_goes_on(reader: Reader) -> None:
    reader.paste(LATE_ROWS)
    rides = [(0, 2), (60, 1)]
    assert stored_rides(reader) == (rides, [8, 66], [6, 10, 70])
    reader.broker.produce("rides", [trip(minute) for minute in (190, 9, 185)])
    reader.paste(LATE_ROWS, holding="/data/rides-")
    rides.append((120, 1))
    assert stored_rides(reader) == (rides, [8, 66, 9], [6, 10, 70, 130])


def test_no_two_pages_write_to_one_place() -> None:
    """A reader who tries one page after the other keeps `/data`."""
    places: dict[str, set[str]] = {}
    for page in pages():
        for block in filter(is_pasted, blocks(page)):
            for place in re.findall(r"/data/([\w-]+)", block.text):
                places.setdefault(place, set()).add(page)
    assert {place: found for place, found in places.items() if len(found) > 1} == {}


@pytest.mark.outside_ci
def test_the_page_on_s3_runs_against_a_server_of_this_machine(
    reader: Reader,
    bucket: Bucket,  # noqa: F811 the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bucket.options.items():
        monkeypatch.setenv(name, value)
    reader.names["my-bucket"] = bucket.name
    reader.paste(S3)


def stored_rides(reader: Reader) -> tuple[list, list, list]:
    """In minutes: (hour, rides) in time, departures too late, departures in order; by sequence."""

    def rows(name: str) -> list:
        stored = reader.spark.read.format("tseries").load(f"{reader.data}/rides-{name}").collect()
        return sorted(stored, key=lambda row: row.sequence)

    return (
        [(minute(row.timestamp), row.rides) for row in rows("in-time")],
        [minute(row.departed) for row in rows("too-late")],
        [minute(row.timestamp) for row in rows("ordered")],
    )


def minute(instant: datetime) -> int:
    return round((instant.timestamp() - DAY_MS / 1000) / 60)


def test_the_producer_of_the_page_marks_and_closes(reader: Reader) -> None:
    before = len(reader.broker.read("orders"))
    reader.paste(MARKS)
    sent = reader.broker.read("orders")[before:]
    assert [dict(message.headers() or []).keys() for message in sent] == [
        set(), {"cti", "cti-writer"}, {"cti", "cti-writer", "cti-close"},
    ]  # fmt: skip


def test_every_make_command_of_a_page_is_a_recipe() -> None:
    recipes = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        commands = re.findall(r"(?:^\$ |`)make ([a-z0-9.-]+)", read(page), re.MULTILINE)
        assert set(commands) <= recipes, page
    assert re.findall(r"^\$ make ", read("README.md"), re.MULTILINE)


@pytest.mark.timeout(300)
def test_make_run_says_what_it_does_and_its_hint_runs_as_printed(tmp_path: Path) -> None:
    done = run_script("day.py", tmp_path)
    assert "Starting Spark and its Python workers (about 20 s)\n" in done.stdout
    assert "simulated, 100%" in done.stdout
    # Neither Spark's warnings nor its prints.
    assert done.stderr == ""
    assert "attic" in run_hint(done.stdout, tmp_path)


@pytest.mark.outside_ci
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_make_run_flights_shows_each_step_and_its_hint_reads_its_store(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KAFKA_TIER", raising=False)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap)
    done = run_script("flights.py", tmp_path, "--records=3000", f"--place={tmp_path}")
    begun = [line for line in done.stdout.splitlines() if "(about" in line]
    steps = ["Starting a Kafka broker", "Producing 3,000 flights", "Starting Spark", "Counting"]
    assert [line[: len(step)] for line, step in zip(begun, steps, strict=True)] == steps
    assert done.stdout.count("  done after") == 4
    assert done.stderr == ""
    # The same command as that of `make run`, which runs above.
    assert done.stdout.endswith(f" with\n\n{read_back(tmp_path / 'store')}\n")
    assert "EWR" in TimeSeries.open(tmp_path / "store").series()["series"].to_pylist()


def run_script(name: str, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(JOBS / name), *arguments],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def run_hint(printed: str, place: Path) -> str:
    """The output of the command at the end, pasted into a shell."""
    _, _, command = printed.partition(" with\n\n")
    done = subprocess.run(
        ["bash", "-ec", command], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, command + done.stderr[-3000:]
    return done.stdout


@pytest.mark.outside_ci
def test_a_write_in_another_thread_works_as_the_limits_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    (call,) = re.findall(r"`(spark\._jvm\.\S+)`", read("docs/reference/limits.md"))

    def write() -> None:
        exec(call, {"spark": spark})
        rows = spark.range(3).withColumnRenamed("id", "reading").write.format("tseries")
        rows.mode("append").option("seriesName", "a").save(str(tmp_path / "store"))

    with ThreadPoolExecutor(1) as other:
        other.submit(write).result()
    assert spark.read.format("tseries").load(str(tmp_path / "store")).count() == 3
