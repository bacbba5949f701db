"""Runs a command once the process that asked for it has ended, however it ended.

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

_POLL_INTERVAL_S = 0.2


class OrphanWatch:
    """Runs `command` once this process has ended, unless `stop` is called first."""

    def __init__(self, command: Sequence[str]) -> None:
        watch = [sys.executable, "-P", __file__, str(os.getpid()), *command]
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
        time.sleep(_POLL_INTERVAL_S)
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
