"""Ends the processes of a broker whose owner is gone, and removes its files: `end_run.py DIR`."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PASSES = 3
_PAUSE_S = 0.3


def main(directory: Path) -> None:
    """Kill the processes, even those just starting, then remove the files."""
    for _ in range(_PASSES):
        for pid in processes_of(directory):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    shutil.rmtree(directory, ignore_errors=True)


def processes_of(directory: Path) -> Iterator[int]:
    """The processes that were started with a file of `directory`."""
    mark = f"{directory}/".encode()
    for entry in Path("/proc").iterdir():
        # A process may end meanwhile.
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                yield int(entry.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
