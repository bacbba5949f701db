"""Nothing that takes long is done in silence."""

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyspark_timestream.demo import progress
from pyspark_timestream.demo.progress import show_progress

SCRIPT = Path(progress.__file__)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(*command: str) -> subprocess.CompletedProcess[str]:
    # As the Makefile does, before anything is installed.
    return subprocess.run(
        [sys.executable, "-S", "-E", str(SCRIPT), "Sleeping", "7", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_command_in_a_log_is_told_before_it_begins_and_when_it_has_ended() -> None:
    done = run("sh", "-c", "echo noise")
    assert done.stdout == "Sleeping (about 7 s)\n  done after 0 s\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_command_that_fails_shows_what_it_printed() -> None:
    done = run("sh", "-c", "echo noise; echo reason >&2; exit 3")
    assert done.stdout == "Sleeping (about 7 s)\n  failed after 0 s\n"
    assert (done.returncode, done.stderr) == (3, "noise\nreason\n")


def test_step_on_a_terminal_is_a_bar_that_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    with show_progress("Counting", 60) as doing:
        doing.done = 0.5
        doing.detail = "half of it"
        time.sleep(0.7)
    drawn = terminal.getvalue().split("\r")
    assert f"[{'#' * 15}{'.' * 15}]  50% after 0 s  half of it" in drawn
    assert drawn[-1].split() == ["Counting:", "done", "after", "1", "s"]
    assert "\n" not in "".join(drawn[:-1])
