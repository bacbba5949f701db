"""Carries out a command when the process that asked for it is gone, however it went.

A process that is killed by SIGKILL, or interrupted twice, closes nothing. So what may not outlive
it, such as a broker, is left to a small process of its own, in a session that no signal to the
first one reaches.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

_LOOK_SECONDS = 0.2


class OrphanWatch:
    """Runs `command` once this process has ended, unless it was told to stop before."""

    def __init__(self, command: Sequence[str]) -> None:
        watch = [sys.executable, __file__, str(os.getpid()), *command]
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


def main(parent: int, command: Sequence[str]) -> None:
    """Wait until `parent` has ended, then become `command`."""
    # A process whose parent has ended gets another one.
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
