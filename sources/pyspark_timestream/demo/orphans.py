"""Runs a command once the process that asked for it has ended, however it ended.

A process that receives SIGKILL, or is interrupted twice, closes nothing. So a small process in a
session of its own, which no signal to the first one reaches, cleans up what must not outlive it,
such as a broker. This file is the program that waits, `orphans.py PARENT COMMAND...`, and the one
that ends a broker, `orphans.py end DIRECTORY`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_POLL_INTERVAL_S = 0.2
_PASSES = 3
_PAUSE_S = 0.3
_PROGRAM = [sys.executable, "-P", __file__]


class OrphanWatch:
    """Runs `command` once this process has ended, unless `stop` is called first."""

    def __init__(self, command: Sequence[str]) -> None:
        watch = [*_PROGRAM, str(os.getpid()), *command]
        self._process = subprocess.Popen(
            watch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """End the watch: there is nothing left to clean up."""
        self._process.kill()
        self._process.wait()


def end_command(directory: Path) -> list[str]:
    """Return a command that ends all processes started from `directory`, and removes it."""
    return [*_PROGRAM, "end", str(directory)]


def _wait(parent: int, command: Sequence[str]) -> None:
    """Wait until `parent` has ended, then become `command`."""
    # When the parent ends, the system gives this process another one.
    while os.getppid() == parent:
        time.sleep(_POLL_INTERVAL_S)
    os.execvp(command[0], list(command))


def _end(directory: Path) -> None:
    """Kill the processes, even those that are just starting, then remove the files."""
    for _ in range(_PASSES):
        for pid in find_processes(directory):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    shutil.rmtree(directory, ignore_errors=True)


def find_processes(directory: Path) -> Iterator[int]:
    """Yield the processes that were started with a file of `directory`."""
    mark = f"{directory}/".encode()
    for entry in Path("/proc").iterdir():
        # A process may end while we read its entry.
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                yield int(entry.name)


if __name__ == "__main__":
    if sys.argv[1] == "end":
        _end(Path(sys.argv[2]))
    else:
        _wait(int(sys.argv[1]), sys.argv[2:])
