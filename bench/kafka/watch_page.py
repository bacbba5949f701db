"""The cost of the page of `watch`: to load, while it is open, and for a query beside it.

The checkpoint has a thousand partitions, one of them holding back, and a day of batches, one a
second; all but the newest and one in four hundred share their files' content. `loads`: from the
start of the command to the first page, in core seconds of the command, and by the clock in a real
browser, from when the command tells its address until all lanes and cells are painted; the peer is
the bound of two seconds. `a batch a second`, `at rest`: the core time of the command per second
while a client has the page open, as a browser does; the peer is the bound of 2 %. `a query beside
it`: the same run of a query over a topic, alone and with the page of its checkpoint open, in turns.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from broker import Broker, Record, broker
from side_by_side import Comparison, Contender, Done, by_figure, compare, report
from sizes import size
from spark_session import local_spark

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "lib"))
from timestream.commands_watch import write_large_batch

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PARTITIONS = 1_000
SLOW = 7
"""The partition that holds back."""

BATCHES = size(86_400, 3_600)
SPAN_S = size(10, 6)
SPANS = size(5, 2)
RECORDS = size(40_000, 20_000)
BOUND_S, BOUND_MS = 2.0, 20.0

CLIENT = """
import json, sys, urllib.parse, urllib.request
seen = {}
while True:
    asked = urllib.parse.urlencode({"seen": json.dumps(seen)})
    with urllib.request.urlopen(f"{sys.argv[1]}sections?{asked}", timeout=120) as answer:
        told = json.load(answer)
    seen = told["digests"]
    print(len("".join(told["sections"].values())), flush=True)
"""
"""Asks as a browser does: again as soon as it has an answer."""


def core_s(pid: int) -> float:
    """The core seconds that a process has taken."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def watching(checkpoint: Path) -> Iterator[int]:
    """The process of the command, with a client that keeps its page open and has seen it once."""
    command = [sys.executable, "-m", "pyspark_timestream", "watch", "--port", "0", str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        found = re.match(r"http://\S+", page.stdout.readline())
        assert found is not None
        client = [sys.executable, "-c", CLIENT, found[0]]
        with subprocess.Popen(client, stdout=subprocess.PIPE, text=True) as reader:
            try:
                assert reader.stdout is not None
                while not int(reader.stdout.readline()):
                    pass
                yield page.pid
            finally:
                reader.kill()
                page.kill()


def write_day(root: Path) -> None:
    """A checkpoint of a day.

    `write_large_batch` makes the files. All partitions but one have the same clock, so it is turned
    into text once and not a thousand times, which would take minutes.
    """
    for name in ("offsets", "commits"):
        (root / name).mkdir()
    write_large_batch(root, 0, PARTITIONS)
    small = Path(tempfile.mkdtemp(dir=root.parent))
    for name in ("offsets", "commits"):
        (small / name).mkdir()
    last = 0
    for number in range(1, BATCHES):
        if number % (BATCHES // 400) == 0 or number >= BATCHES - 60:
            write_large_batch(small, number, SLOW + 1)
            head, metadata, text = (small / "offsets" / str(number)).read_text().split("\n")
            offset = json.loads(text)
            ((topic, few),) = offset["partitions"].items()
            few |= {str(n): "usual" for n in range(SLOW + 1, PARTITIONS)}
            offset["partitions"] = {topic: few}
            text = json.dumps(offset).replace('"usual"', json.dumps(few["0"]))
            (root / "offsets" / str(number)).write_text("\n".join((head, metadata, text)))
            (root / "commits" / str(number)).write_text("v1\n{}")
            last = number
        else:
            for name in ("offsets", "commits"):
                (root / name / str(number)).hardlink_to(root / name / str(last))


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser; None where there is none."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def load_in_browser(root: Path, browser: Any) -> float:
    """The seconds until a browser has painted all lanes and cells of a command that has begun."""
    command = [sys.executable, "-m", "pyspark_timestream", "watch", "--port", "0", str(root)]
    page = browser.new_page()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"http://\S+", process.stdout.readline())
            assert found is not None
            began = time.monotonic()
            page.goto(found[0])
            page.wait_for_selector(f"svg.cells rect:nth-of-type({PARTITIONS})", state="attached")
            # The second frame from here begins after the first one was painted.
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => "
                          "requestAnimationFrame(done)))")  # fmt: skip
            return time.monotonic() - began
        finally:
            process.kill()
            page.close()


def measure_page(root: Path) -> list[Comparison]:
    """The page alone."""
    loads, busy, idle = [], [], []
    with browsing() as browser:
        painted = [load_in_browser(root, browser) for _ in range(SPANS if browser else 0)]
    number = BATCHES
    for _ in range(SPANS):
        with watching(root) as pid:
            loads.append(core_s(pid))
            time.sleep(3)  # Work that loading has put off is done by now.
            began, began_s = time.monotonic(), core_s(pid)
            for second in range(SPAN_S):
                write_large_batch(root, number, PARTITIONS)
                number += 1
                time.sleep(max(began + second + 1 - time.monotonic(), 0))
            busy.append((core_s(pid) - began_s) / (time.monotonic() - began) * 1_000)
            time.sleep(3)
            began, began_s = time.monotonic(), core_s(pid)
            time.sleep(SPAN_S)
            idle.append((core_s(pid) - began_s) / (time.monotonic() - began) * 1_000)
    bound_s, bound_ms = [BOUND_S] * SPANS, [BOUND_MS] * SPANS
    return [
        Comparison("page loads, core s", {"bound": bound_s, "page": loads}, BATCHES),
        *(
            [Comparison("page is painted, s", {"bound": bound_s, "page": painted}, BATCHES)]
            if painted
            else []
        ),
        Comparison("page open, a batch a second", {"bound": bound_ms, "page": busy}, unit="ms"),
        Comparison("page open, at rest", {"bound": bound_ms, "page": idle}, unit="ms"),
    ]


def records() -> Iterator[Record]:
    """Of twelve partitions."""
    for n in range(RECORDS):
        yield Record(None, str(n), n % 12, 1_767_312_000_000 + n)


def measure_query(kafka: Broker) -> list[Comparison]:
    """A query, alone and beside a page of it."""
    topic = kafka.create_topic(None, 12)
    kafka.produce(topic, records())
    spark = local_spark("beside a page")
    jvm = spark.sparkContext._gateway.proc.pid
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "ctiFrequency": "10 seconds",
        "finalCti": "true",
        "maxOffsetsPerTrigger": str(RECORDS // 40),
    }

    def run_with(is_watched: bool) -> Contender:
        def run() -> Done:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                root = Path(place) / "checkpoint"
                (root / "offsets").mkdir(parents=True)
                with watching(root) if is_watched else nullcontext():
                    rows = spark.readStream.format("timestream").options(**options).load()
                    writer = rows.writeStream.format("noop").trigger(availableNow=True)
                    began, began_s = time.perf_counter(), core_s(jvm) + time.process_time()
                    query = writer.option("checkpointLocation", str(root)).start()
                    query.awaitTermination()
                    took = time.perf_counter() - began
                    spent = core_s(jvm) + time.process_time() - began_s
                    progress = json.loads(query.lastProgress.json)
                    done: dict[str, Any] = {"batches": progress["batchId"]}
            return Done(took, done, {"run time": took, "core seconds of it": spent})

        return run

    ways = {"alone": run_with(False), "beside the page": run_with(True)}
    compared = compare("a query beside its page", ways, RECORDS, rounds=size(5, 2))
    spark.stop()
    return by_figure(compared)


def measure() -> Iterator[Comparison]:
    """The page, then a query beside one."""
    with tempfile.TemporaryDirectory() as place:
        write_day(Path(place))
        yield from measure_page(Path(place))
    with broker() as kafka:
        yield from measure_query(kafka)


def main() -> None:
    """Measure and keep."""
    report(__file__, measure())


if __name__ == "__main__":
    main()
