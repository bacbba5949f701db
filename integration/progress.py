"""Says what is being done, how long it has taken, and about how long it takes.

On a terminal a line with a bar is drawn again and again; in a log the beginning, the end, and a
line every ten seconds are printed. As a script it does so for another command, whose output it
keeps to itself unless that fails; it needs nothing but the standard library of any Python 3:

    python3 integration/progress.py "Installing the packages" 90 pip install ...
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_WIDTH = 30
_LOG_SECONDS = 10.0


class Step:
    """One thing that is being done.

    Attributes:
        done: how much of it, from 0 to 1; None: not known, and the clock is believed.
        detail: what is being done right now.
        outcome: what is said in the end.
    """

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._began = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._shown_s = 0.0
        self._longest = 0
        self.done: float | None = None
        self.detail = ""
        self.outcome = "done"

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self._began

    def begin(self) -> None:
        """Say what is being done."""
        if not self._terminal:
            print(f"{self._what} (about {self._seconds:.0f} s)", flush=True)

    def show(self) -> None:
        """Show how far it is."""
        if self._terminal:
            self._draw(self.line())
        elif self.elapsed_s - self._shown_s >= _LOG_SECONDS:
            self._shown_s = self.elapsed_s
            print(f"  {self.line()}", flush=True)

    def end(self) -> None:
        """Say that it has ended, and after how long."""
        said = f"{self.outcome} after {self.elapsed_s:.0f} s"
        if self._terminal:
            self._draw(f"{self._what}: {said}")
            print()
        else:
            print(f"  {said}", flush=True)

    def line(self) -> str:
        """The bar, the time, and what is being done."""
        # Nobody knows the end of what the clock alone measures.
        done = min(self.elapsed_s / self._seconds, 0.95) if self.done is None else self.done
        bar = ("#" * round(_WIDTH * min(done, 1.0))).ljust(_WIDTH, ".")
        known = f"{self.elapsed_s:3.0f} s of about {self._seconds:.0f} s"
        time_shown = known if self.done is None else f"{done:4.0%} after {self.elapsed_s:.0f} s"
        return f"[{bar}] {time_shown}  {self.detail or self._what}"

    def _draw(self, line: str) -> None:
        # A line that is broken in two could not be drawn over.
        line = line[: shutil.get_terminal_size().columns - 1]
        self._longest = max(self._longest, len(line))
        print(f"\r{line.ljust(self._longest)}", end="", flush=True)


@contextmanager
def step(what: str, seconds: float) -> Iterator[Step]:
    """The block that does `what`, which takes about `seconds`; its progress is shown meanwhile."""
    doing = Step(what, seconds)
    over = threading.Event()

    def show() -> None:
        while not over.wait(0.25):
            doing.show()

    shower = threading.Thread(target=show, daemon=True)
    doing.begin()
    shower.start()
    try:
        yield doing
    except BaseException:
        doing.outcome = "stopped"
        raise
    finally:
        over.set()
        shower.join()
        doing.end()


def run(what: str, seconds: float, command: Sequence[str]) -> int:
    """Run a command under a step; its exit code. What it printed is shown where it fails."""
    lines: list[str] = []
    with step(what, seconds) as doing:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                doing.detail = f"{what}: {line.strip()[:60]}" if line.strip() else doing.detail
        finally:
            process.wait()
        if process.returncode:
            doing.outcome = "failed"
    if process.returncode:
        print("".join(lines), end="", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
