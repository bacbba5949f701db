"""The page of a store in a real browser: found, clicked, read by keyboard, and never in the way."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_tseries import TimeSeries

pytestmark = pytest.mark.timeout(300)

WIDE = {"width": 1280, "height": 900}
T0 = datetime(2026, 3, 27, 8, tzinfo=UTC)
EVE = "<img src=x onerror=alert(1)>"


@contextmanager
def browsing(store: Path) -> Iterator[str]:
    """The address of a page that the command serves."""
    command = [sys.executable, "-m", "pyspark_tseries", "browse", str(store), "--port", "0"]
    command += ["--timezone", "UTC"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.match(r"http://\S+/", process.stdout.readline())[0]
        finally:
            process.kill()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    schema = pa.schema([pa.field("celsius", pa.float64(), metadata={"unit": "°C"})])
    ovens = TimeSeries.create(path, schema, retained_range="unlimited", author="anna")
    count = 30_000
    texts = pa.array([f"oven/{n:05d}" for n in range(count)] + ["hall"] * 300)
    times = [T0] * count + [T0 + timedelta(minutes=n) for n in range(300)]
    values = pa.array([float(n % 40) for n in range(count + 300)])
    ovens.append_many(pa.table({"series": texts, "timestamp": times, "celsius": values}))
    TimeSeries.open(path, EVE).edit("hall", 40, 185.5)
    return path


def test_a_browser_finds_a_series_and_who_edited_it_and_survives_what_others_do(
    browser, store: Path, tmp_path: Path, check_looks
) -> None:
    with browsing(store) as address:
        page, faults = browser.new_page(viewport=WIDE), []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda each: faults.append(each.text))
        page.goto(address)
        page.wait_for_selector("text=1 to 25 of 30,001")
        # By keyboard: the field, a name, its link.
        page.keyboard.press("Tab")
        page.keyboard.type("HAL")
        page.wait_for_selector("text=1 to 1 of 1 that fit, of 30,001")
        assert page.evaluate("document.activeElement.id") == "q"
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("#drawn svg")
        assert page.evaluate("document.activeElement.textContent") == "hall"
        page.wait_for_timeout(1_000)  # It is drawn again as wide as there is room.
        page.click("#drawn svg a >> nth=0", force=True)
        page.wait_for_selector("#event table")
        assert page.locator("#event tbody tr").all_inner_texts()[1].split("\t")[2] == EVE
        check_looks(page)
        # Another process appends and compacts; the page follows, and what is open stays.
        series = TimeSeries.open(store, "anna")
        series.append("hall", 77.25, T0 + timedelta(minutes=300))
        page.wait_for_selector("#drawn td:has-text('77.25')", timeout=10_000)
        series.compact()
        series.erase("hall", [40], "a wrong sensor")
        page.wait_for_selector("#event td:has-text('a wrong sensor')", timeout=10_000)
        page.go_back()
        page.wait_for_selector("#event", state="detached")
        assert "hall" in page.inner_text("#drawn h2")
        store.rename(tmp_path / "away")
        page.wait_for_selector("#store >> text=not readable", timeout=10_000)
        assert "hall" in page.inner_text("#drawn h2")
        (tmp_path / "away").rename(store)
        page.wait_for_selector("#store .ok", timeout=10_000)
        assert faults == []
    page.wait_for_selector("text=Nobody answers", timeout=30_000)
    page.close()


def test_the_page_needs_no_script(browser, store: Path) -> None:
    with browsing(store) as address:
        phone = {"width": 390, "height": 844}
        context = browser.new_context(java_script_enabled=False, viewport=phone)
        page = context.new_page()
        page.goto(address)
        page.fill("#q", "hall")
        page.keyboard.press("Enter")
        page.click("#series a >> text=hall")
        page.click("#drawn .scroll a >> nth=0")
        assert EVE in page.inner_text("#event")
        context.close()
