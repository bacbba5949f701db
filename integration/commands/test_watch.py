"""The live page beside real queries, in a real browser and in a terminal."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker import Broker
from kafka_query import event
from pyspark.sql import SparkSession

from pyspark_timestream import TimeMetrics

pytestmark = pytest.mark.timeout(300)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def watching(*arguments: str) -> Iterator[str]:
    """The address of a page that the command serves."""
    command = [sys.executable, "-m", "pyspark_timestream", "watch", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.match(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool], seconds: float) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


def start(made, **trigger):
    """Start a query that runs on; what it delivers is of no interest here."""
    writer = made.load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(made.place / "checkpoint"))
    return writer.trigger(**(trigger or {"processingTime": "200 milliseconds"})).start()


def test_a_browser_sees_who_holds_back_and_survives_what_goes_away(
    stream, browser, stoppable_broker: Broker, tmp_path: Path
) -> None:
    made = stream([event(1, 0), event(1, 1)], 2, ctiFrequency="1")
    query = start(made)
    checkpoint = made.place / "checkpoint"
    try:
        wait_for(lambda: (checkpoint / "commits" / "0").exists(), 120)
        given = [str(checkpoint), "--bootstrap-servers", stoppable_broker.bootstrap]
        with watching(*given) as address:
            page, faults = browser.new_page(viewport=WIDE), []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda each: faults.append(each.text))
            page.goto(address)
            page.wait_for_selector("article table", timeout=60_000)
            stoppable_broker.produce(made.topic, [event(second, 0) for second in range(2, 30)])
            batch = len(list((checkpoint / "commits").glob("[0-9]*")))
            wait_for(lambda: len(list((checkpoint / "commits").glob("[0-9]*"))) > batch + 1, 120)
            page.wait_for_selector(f'tr.cause:has-text("{made.topic} 1")', timeout=5_000)
            assert "holds back" in page.inner_text("tr.cause")
            for size in (WIDE, NARROW):
                page.set_viewport_size(size)
                assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
                page.screenshot(path=tmp_path / f"{size['width']}.png", full_page=True)
            page.click("details[data-key=cases0] > summary")
            stoppable_broker.stop()
            page.wait_for_selector("text=what waits is as of earlier", timeout=90_000)
            assert page.locator("details[data-key=cases0]").get_attribute("open") is not None
            query.stop()
            shutil.rmtree(checkpoint)
            page.wait_for_selector("text=not readable", timeout=30_000)
            assert page.locator("article table tbody tr").count() == 2
            assert faults == []
        page.wait_for_selector("text=Nobody answers", timeout=60_000)
        page.close()
    finally:
        query.stop()


def test_the_text_shows_the_same_and_how_much_waits(stream, broker: Broker) -> None:
    made = stream([event(1, 0), event(1, 1)], 2, ctiFrequency="1")
    query = start(made, availableNow=True)
    query.awaitTermination()
    broker.produce(made.topic, [event(2, 0)] * 7)
    given = [str(made.place / "checkpoint"), "--bootstrap-servers", broker.bootstrap]
    command = [sys.executable, "-m", "pyspark_timestream", "watch", "--json", *given]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    ((told,),) = [each["streams"] for each in json.loads(shown.stdout)]
    assert {each["partition"]: each["waiting"] for each in told["partitions"]} == {0: 7, 1: 0}
    command = [*command[:-4], "--text", *given]
    wide = {**os.environ, "COLUMNS": "300"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=wide) as text:
        try:
            lines = [text.stdout.readline() for _ in range(4)]
        finally:
            text.kill()
    assert str(made.place / "checkpoint") in "".join(lines)


def test_time_metrics_serves_the_page_from_within(spark: SparkSession, stream) -> None:
    metrics = TimeMetrics(port=0, page=True)
    spark.streams.addListener(metrics)
    try:
        made = stream([event(1, 0), event(9, 0), event(1, 1)], 2, ctiFrequency="1")
        query = start(made, availableNow=True)
        query.awaitTermination()

        def read(path: str) -> str:
            url = f"http://127.0.0.1:{metrics.port}{path}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.read().decode()

        wait_for(lambda: "stopped" in read("/watch/sections"), 60)
        assert str(query.id) in read("/watch/sections")
        assert made.topic in read("/watch/sections")
        assert "/watch/page.js" in read("/watch")
        assert "timestream_listener_failures_total 0" in read("/metrics")
    finally:
        spark.streams.removeListener(metrics)
        metrics.close()
