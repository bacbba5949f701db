"""The first ten minutes: the demo, README's example pasted beside it, and the end of both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from demo_process import demo, printed_until
from documents import blocks
from process_session import answers, ends

from pyspark_timestream.demo.command import ADDRESS
from pyspark_timestream.demo.orphans import find_processes

pytestmark = pytest.mark.timeout(600)

EXAMPLE = blocks("README.md", "python")[0].text
(RESULT,) = (block.text for block in blocks("README.md") if block.is_printed)
LAST_LINE = "The broker runs until Ctrl-C"


def address_in(printed: str) -> str:
    found = re.search(r"Topic trips is at (localhost:\d+): 20,000 trips in 4 partitions", printed)
    assert found, printed
    return found[1]


@pytest.mark.outside_ci
def test_readme_example_beside_the_demo_prints_readmes_result(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        printed = printed_until(process, LAST_LINE)
        address = address_in(printed)
        example = EXAMPLE.replace(ADDRESS, address)
        assert example in printed
        (tmp_path / "trips.py").write_text(example)
        done = subprocess.run(
            [sys.executable, "trips.py"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.stdout == RESULT, done.stderr[-3000:]
        # Ctrl-C reaches a terminal's whole process group.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
    assert not answers(address)
    assert not list(find_processes(tmp_path))
    assert not list(tmp_path.glob("timestream-demo-*"))


def test_demo_that_is_killed_leaves_no_broker(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        address = address_in(printed_until(process, LAST_LINE))
        assert answers(address)
        os.killpg(process.pid, signal.SIGKILL)
    assert ends(lambda: answers(address))
    assert ends(lambda: list(find_processes(tmp_path)) or list(tmp_path.glob("timestream-demo-*")))


@pytest.mark.outside_ci
@pytest.mark.soak
def test_demos_that_start_at_the_same_time_have_ports_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with demo(tmp_path / "one") as one, demo(tmp_path / "other") as other:
        addresses = {address_in(printed_until(process, LAST_LINE)) for process in (one, other)}
        assert len(addresses) == 2
        assert all(map(answers, addresses))


@pytest.mark.soak
def test_demo_with_seconds_ends_by_itself(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "1") as process:
        printed_until(process, LAST_LINE)
        began = time.monotonic()
        assert process.wait(60) == 0
        assert time.monotonic() - began < 30
