"""Children that may not outlive a process end with it, in every kind of death."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

OWNER = """
import sys, time
from pyspark_timestream.demo.orphans import OrphanWatch
watch = OrphanWatch(["touch", sys.argv[1]])
if sys.argv[2] == "stop":
    watch.stop()
print("watched", flush=True)
time.sleep(60 if sys.argv[2] == "wait" else 0)
"""


def owner(cleaned: Path, deed: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(cleaned), deed],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "watched\n"
    process.stdout.close()
    return process


def appears(path: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not path.exists():
        time.sleep(0.05)
    return path.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_watch_of_a_process_that_is_killed_cleans_up(tmp_path: Path, number: int) -> None:
    process = owner(tmp_path / "cleaned", "wait")
    assert not appears(tmp_path / "cleaned", 0.5)
    # As Ctrl-C does: the whole process group is told.
    os.killpg(process.pid, number)
    process.wait(10)
    assert appears(tmp_path / "cleaned", 20)


def test_watch_that_was_stopped_does_nothing(tmp_path: Path) -> None:
    owner(tmp_path / "cleaned", "stop").wait(10)
    assert not appears(tmp_path / "cleaned", 1)
