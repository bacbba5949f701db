"""The demo as a process of its own, with the jars that the tests have."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kafka_process import CACHE, kafka_jars


@contextlib.contextmanager
def demo(place: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a directory of its own, with the jars that the tests have."""
    kafka_jars()
    (place / "cache").mkdir()
    (place / "cache" / "timestream").symlink_to(CACHE)
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache"), "TMPDIR": str(place)}
    # A shell's background jobs ignore Ctrl-C, and so would a demo that they start.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "pyspark_timestream", "demo"]
    with subprocess.Popen(
        [*command, *arguments],
        cwd=place, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def printed_until(process: subprocess.Popen[str], words: str) -> str:
    """The output of the demo up to the line that begins with `words`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(words):
            break
    return "".join(lines)
